//! What a sampler takes of a device's memory at its fullest, where an engine counts it before it takes keys and values.
//!
//! Units: bytes. vLLM runs its sampler once with a row of logits for every sequence that may run (`_dummy_sampler_run` in
//! vllm/v1/worker/gpu_model_runner.py, from `profile_run`), with a temperature, top-k and top-p, so the peak is in what it reserves. Every GPU of a
//! tensor group has all rows. Logits are in 16 bits, and the caller keeps them while their copy of 32 bits is worked on.

/// Which sampler an engine counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// None: what samples lies in a reserve, or is not counted.
    Uncounted,
    /// `FlashInfer` draws and rejects, without a sort. vLLM takes it up to 0.11.0 where it is installed, as in the published images, and from 0.11.1 on only
    /// where `VLLM_USE_FLASHINFER_SAMPLER` asks for it (`TopKTopPSampler` of vllm/v1/sample/ops/topk_topp_sampler.py, 0.10.2 to 0.11.1). Without
    /// `FlashInfer` these releases sort: vllm-project/vllm#23278 and #27508 are such installations, and lack the room that the images have.
    Rejecting,
    /// PyTorch sorts every row (`apply_top_k_top_p` of vllm/v1/sample/ops/topk_topp_sampler.py).
    Sorting,
    /// A kernel finds the threshold of every row and masks it in place (vllm-project/vllm#33538).
    Masking,
}

/// Bytes per logit of both copies: 16 and 32 bits.
const COPIES: u64 = 2 + 4;
/// Bytes per logit while PyTorch sorts: values and indices sorted, indices before, and what the radix sort of both alternates with (ATen/native/cuda/SortStable.cu,
/// `segmented_sort_pairs`; `cub::DeviceSegmentedRadixSort`). Softmax and sums behind it take less.
const SORT: u64 = (4 + 8) + 8 + (4 + 8);
/// Bytes per logit that `FlashInfer` makes: masked logits, and their probabilities (`top_k_top_p_sampling_from_logits` of flashinfer/sampling.py: top-k first).
const MASKED: u64 = 4 + 4;
/// Bytes per logit of the draw: probabilities, and as many random numbers (`random_sample`).
const DRAW: u64 = 4 + 4;
/// Bytes per logit of a row that a block of threads collects candidates in.
const CANDIDATE: u64 = 4;

impl Sampler {
    /// The most of so many rows of a vocabulary, on a device with so many multiprocessors.
    pub const fn bytes(self, rows: u64, vocab: u64, multiprocessors: u64) -> u64 {
        match self {
            Self::Uncounted => 0,
            Self::Rejecting => rows * vocab * (COPIES + MASKED),
            Self::Sorting => rows * vocab * (COPIES + SORT),
            Self::Masking => rows * vocab * (COPIES + DRAW) + multiprocessors * vocab * CANDIDATE,
        }
    }
}
