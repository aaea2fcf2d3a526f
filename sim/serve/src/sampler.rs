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
/// Bytes per logit of the draw: probabilities, and as many random numbers (`random_sample`).
const DRAW: u64 = 4 + 4;
/// Bytes per logit of a row that a block of threads collects candidates in.
const CANDIDATE: u64 = 4;

impl Sampler {
    /// The most of so many rows of a vocabulary, on a device with so many multiprocessors.
    pub const fn bytes(self, rows: u64, vocab: u64, multiprocessors: u64) -> u64 {
        match self {
            Self::Uncounted => 0,
            Self::Sorting => rows * vocab * (COPIES + SORT),
            Self::Masking => rows * vocab * (COPIES + DRAW) + multiprocessors * vocab * CANDIDATE,
        }
    }
}
