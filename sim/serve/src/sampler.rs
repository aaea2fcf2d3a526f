//! What a sampler takes: memory of a device at its fullest, where an engine counts it before it takes keys and values; and what its kernels do to
//! the logits of an iteration.
//!
//! Units: bytes, seconds. vLLM runs its sampler once with a row of logits for every sequence that may run (`_dummy_sampler_run` in
//! vllm/v1/worker/gpu_model_runner.py, from `profile_run`), with a temperature, top-k and top-p, so the peak is in what it reserves. Every GPU of a
//! tensor group has all rows. Logits are in 16 bits, and the caller keeps them while their copy of 32 bits is worked on.
//!
//! Times of filters are read from tables of vLLM's own benchmark of them, with 131,072 logits a row. The tables do not name their cards.
//! vllm-project/vllm#51507 has PyTorch with 64, 128, 512 and 1,024 rows, #32558 with 256, and #40376 has all three kernels with 64, 128 and 512.
//! With 1,024 rows a sort moves 238 bytes a logit at the bandwidth of an H100, and it is as slow with 128 rows as with 256. So this is its law.

use hw::Seconds;

/// Which sampler an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// Not known: it counts no memory, and takes no time beyond the largest logit's.
    Uncounted,
    /// `FlashInfer`, in memory that the engine reserves anyway (`SGLang`: `top_k_top_p_sampling_from_probs` of layers/sampler.py).
    Reserved,
    /// `FlashInfer` draws and rejects, without a sort. vLLM takes it up to 0.11.0 where it is installed, as in the published images, and from 0.21.0 on.
    /// Between them it does where `VLLM_USE_FLASHINFER_SAMPLER` asks for it (`TopKTopPSampler` of vllm/v1/sample/ops/topk_topp_sampler.py, and
    /// vllm/envs.py). Without `FlashInfer` the old releases sort: vllm-project/vllm#23278 and #27508 are such installations.
    Rejecting,
    /// PyTorch sorts every row (`apply_top_k_top_p` of vllm/v1/sample/ops/topk_topp_sampler.py).
    Sorting,
    /// A kernel finds the threshold of every row and masks it in place (vllm-project/vllm#33538).
    Masking,
}

/// Which logits of a row may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The largest.
    TopK,
    /// The likeliest, up to a sum.
    TopP,
    /// Both.
    Both,
}

/// What requests ask of a sampler. One request of a batch is enough: an engine does it to every row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// The largest logit.
    #[default]
    Greedy,
    /// The largest logit where tokens are punished that were there before: nothing is drawn (`all_greedy` in `Sampler.sample` of vllm/v1/sample/sampler.py).
    Punished,
    /// A random one.
    Random {
        /// Of which.
        filter: Option<Filter>,
        /// Whether tokens are punished that were there before.
        has_penalties: bool,
    },
}

/// How an engine draws what requests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// By what.
    pub sampler: Sampler,
    /// What.
    pub sampling: Sampling,
}

impl Drawing {
    /// The largest logit.
    pub const GREEDY: Self = Self { sampler: Sampler::Uncounted, sampling: Sampling::Greedy };

    /// What it takes beside reading so many rows of logits, on a device with so many multiprocessors.
    pub fn work(self, rows: (u64, u64), multiprocessors: u64) -> Work {
        self.sampler.work(self.sampling, rows, multiprocessors)
    }
}

/// What a sampler does beside taking the largest logit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes that kernels move one after another.
    pub passes: u64,
    /// Bytes that a kernel moves which has a block of threads for every row.
    pub by_rows: u64,
    /// The least that this kernel takes: the time of a block.
    pub block: Seconds,
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

/// Bytes moved per logit by a division by the temperature.
const SCALED: u64 = 4 + 4;
/// The same by a draw of PyTorch (`random_sample`): softmax reads twice and writes, random numbers are written, and a division reads both and writes.
const DRAWN: u64 = (4 + 4 + 4) + 4 + (4 + 4 + 4);
/// The same by penalties of vLLM (`apply_penalties` of vllm/model_executor/layers/utils.py, all three at once): two tables of 64-bit counts are set to zero and
/// compared, logits are punished by both, and products of counts and of presence are made and taken off.
const PENALTIES: u64 = 2 * (8 + 8 + 1) + (1 + 1 + 4 + 4) + (8 + 4 + 4 + 4 + 4) + (1 + 4 + 4 + 4 + 4);
/// The same by a sort of fewer rows than `FEW_ROWS`: all rows at once, twice (`segmented_sort_pairs_by_full_sort` of SortStable.cu).
const FULL_SORT: u64 = 358;
/// Rows below which PyTorch sorts all at once.
const FEW_ROWS: u64 = 128;
/// The same by a sort of every row by a block of its own.
const SORT_BY_ROWS: u64 = 238;
/// Bytes moved per logit that top-p, and both filters, take beyond top-k's.
const BEYOND_TOP_K: [u64; 3] = [0, 39, 49];
/// Time of a block per logit of its row that it sorts. On the card of #40376 it is 16 ns.
const SORTED_NS: f64 = 28.9;
/// The same of a threshold, for each filter: a multiprocessor has one block at a time.
const MASKED_NS: [f64; 3] = [2.3, 4.0, 2.75];
/// The same of a draw with rejections, and bytes moved per logit beside it.
const REJECTED: [(f64, u64); 3] = [(0.84, 17), (0.51, 14), (1.02, 23)];
/// Rows below which vLLM's kernel for thresholds leaves the work to PyTorch.
const MASKED_ROWS: u64 = 8;

impl Sampler {
    /// The most memory that so many rows of a vocabulary take, on a device with so many multiprocessors.
    pub const fn bytes(self, rows: u64, vocab: u64, multiprocessors: u64) -> u64 {
        match self {
            Self::Uncounted | Self::Reserved => 0,
            Self::Rejecting => rows * vocab * (COPIES + MASKED),
            Self::Sorting => rows * vocab * (COPIES + SORT),
            Self::Masking => rows * vocab * (COPIES + DRAW) + multiprocessors * vocab * CANDIDATE,
        }
    }

    /// What it does to so many rows.
    pub fn work(self, sampling: Sampling, (rows, vocab): (u64, u64), multiprocessors: u64) -> Work {
        if self == Self::Uncounted || rows == 0 {
            return Work::default();
        }
        let logits = rows * vocab;
        let penalties = if self == Self::Reserved { 0 } else { logits * PENALTIES };
        let (filter, ahead) = match sampling {
            Sampling::Greedy => return Work::default(),
            Sampling::Punished => return Work { passes: penalties, ..Work::default() },
            Sampling::Random { filter, has_penalties } => {
                (filter, logits * SCALED + if has_penalties { penalties } else { 0 })
            }
        };
        let Some(filter) = filter else { return Work { passes: ahead + logits * DRAWN, ..Work::default() } };
        let found = match self {
            Self::Sorting => sorted(filter, (rows, vocab)),
            Self::Masking if rows < MASKED_ROWS => sorted(filter, (rows, vocab)),
            Self::Masking => masked(filter, (rows, vocab), multiprocessors),
            _ => rejected(filter, (rows, vocab)),
        };
        Work { passes: found.passes + ahead, ..found }
    }
}

/// Sorted, masked, put back in order, and drawn from.
fn sorted(filter: Filter, (rows, vocab): (u64, u64)) -> Work {
    let logits = rows * vocab;
    let behind = logits * (BEYOND_TOP_K[filter as usize] + DRAWN);
    if rows < FEW_ROWS {
        return Work { passes: logits * FULL_SORT + behind, ..Work::default() };
    }
    Work { passes: behind, by_rows: logits * SORT_BY_ROWS, block: ns(SORTED_NS, vocab) }
}

/// Masked below a threshold, and drawn from.
fn masked(filter: Filter, (rows, vocab): (u64, u64), multiprocessors: u64) -> Work {
    let waves = (hw::real(rows) / hw::real(multiprocessors.max(1))).max(1.0);
    Work { passes: rows * vocab * DRAWN, by_rows: 0, block: ns(MASKED_NS[filter as usize], vocab) * waves }
}

/// Drawn until what is drawn may be taken.
fn rejected(filter: Filter, (rows, vocab): (u64, u64)) -> Work {
    let (per_logit, bytes) = REJECTED[filter as usize];
    Work { passes: rows * vocab * bytes, by_rows: 0, block: ns(per_logit, vocab) }
}

fn ns(per_logit: f64, vocab: u64) -> Seconds {
    Seconds::new(per_logit * 1e-9 * hw::real(vocab))
}

impl Sampling {
    /// What requests of both ask.
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Greedy, asked) | (asked, Self::Greedy) => asked,
            (Self::Punished, Self::Punished) => Self::Punished,
            (Self::Punished, Self::Random { filter, .. }) | (Self::Random { filter, .. }, Self::Punished) => {
                Self::Random { filter, has_penalties: true }
            }
            (Self::Random { filter, has_penalties }, Self::Random { filter: also, has_penalties: too }) => {
                let filter = match (filter, also) {
                    (Some(one), Some(two)) if one != two => Some(Filter::Both),
                    (one, two) => one.or(two),
                };
                Self::Random { filter, has_penalties: has_penalties || too }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of a filter alone, without draw and temperature, on a card that moves 3 TB a second and has 132 multiprocessors.
    fn filtered_ms(sampler: Sampler, filter: Filter, rows: u64) -> f64 {
        let logits = rows * 131_072;
        let work = sampler.work(Sampling::Random { filter: Some(filter), has_penalties: false }, (rows, 131_072), 132);
        let drawn = if sampler == Sampler::Rejecting { 0 } else { DRAWN };
        let moved = |bytes: u64| hw::real(bytes) / 3.0e9;
        moved(work.by_rows).max(work.block.get() * 1e3) + moved(work.passes - logits * (SCALED + drawn))
    }

    #[test]
    fn filters_take_what_the_tables_of_vllm_say() {
        use Filter::{Both, TopK, TopP};
        let of_pytorch = [
            (TopP, 64, 1.132),
            (Both, 64, 1.164),
            (TopK, 128, 3.790),
            (TopP, 128, 4.180),
            (Both, 128, 4.231),
            (TopK, 256, 3.812),
            (TopK, 512, 5.322),
            (TopP, 512, 6.194),
            (Both, 512, 6.427),
            (TopK, 1024, 10.655),
        ];
        let of_masks =
            [(TopK, 64, 0.252), (TopP, 64, 0.459), (Both, 128, 0.359), (TopK, 512, 1.124), (TopP, 512, 2.013)];
        let of_draws =
            [(TopK, 64, 0.163), (TopP, 64, 0.106), (Both, 128, 0.267), (TopK, 512, 0.488), (TopP, 512, 0.372)];
        let rows = [
            (Sampler::Sorting, &of_pytorch[..], 0.06),
            (Sampler::Masking, &of_masks[..], 0.21),
            (Sampler::Rejecting, &of_draws[..], 0.06),
        ];
        for (sampler, measured, most) in rows {
            for &(filter, rows, ms) in measured {
                let ratio = filtered_ms(sampler, filter, rows) / ms;
                assert!((ratio - 1.0).abs() < most, "{sampler:?} {filter:?} {rows}: {ratio}");
            }
        }
    }

    #[test]
    fn a_greedy_batch_has_no_work_and_one_request_is_enough_for_all() {
        let drawn = |filter, has_penalties| Sampling::Random { filter, has_penalties };
        for sampler in [Sampler::Sorting, Sampler::Masking, Sampler::Rejecting, Sampler::Reserved] {
            assert_eq!(sampler.work(Sampling::Greedy, (256, 128_256), 132), Work::default());
        }
        // Penalties in front of the largest logit are those in front of a draw without the temperature and the draw.
        let rows = (256, 128_256);
        for sampler in [Sampler::Sorting, Sampler::Masking, Sampler::Rejecting] {
            let [with, without] = [true, false].map(|has| sampler.work(drawn(None, has), rows, 132).passes);
            let punished = Work { passes: with - without, ..Work::default() };
            assert_eq!(sampler.work(Sampling::Punished, rows, 132), punished);
        }
        assert_eq!(Sampler::Reserved.work(Sampling::Punished, rows, 132), Work::default());
        assert_eq!(Sampling::Punished.with(Sampling::Greedy), Sampling::Punished);
        assert_eq!(Sampling::Punished.with(drawn(Some(Filter::TopP), false)), drawn(Some(Filter::TopP), true));
        assert_eq!(Sampler::Uncounted.work(drawn(Some(Filter::Both), true), (256, 128_256), 132), Work::default());
        assert_eq!(Sampling::Greedy.with(drawn(None, true)), drawn(None, true));
        let both = drawn(Some(Filter::TopK), false).with(drawn(Some(Filter::TopP), true));
        assert_eq!(both, drawn(Some(Filter::Both), true));
    }
}
