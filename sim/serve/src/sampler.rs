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
    Reserved {
        /// Whether a penalty for repetition acts: up to 0.5.9 requests may have one, and no kernel reads it (sgl-project/sglang#28179).
        punishes_repetition: bool,
    },
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

/// Which tokens that were there before are punished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Penalties {
    /// Those of prompt and answer, by a factor.
    pub repetition: bool,
    /// Those of the answer, once.
    pub presence: bool,
    /// Those of the answer, each time that they came.
    pub frequency: bool,
}

impl Penalties {
    /// None.
    pub const NONE: Self = Self { repetition: false, presence: false, frequency: false };

    /// Those of both.
    const fn with(self, other: Self) -> Self {
        Self {
            repetition: self.repetition || other.repetition,
            presence: self.presence || other.presence,
            frequency: self.frequency || other.frequency,
        }
    }
}

/// What requests ask of a sampler. One request of a batch is enough: an engine does it to every row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// The largest logit.
    #[default]
    Greedy,
    /// The largest logit where tokens are punished that were there before: nothing is drawn (`all_greedy` in `Sampler.sample` of vllm/v1/sample/sampler.py).
    Punished(Penalties),
    /// A random one.
    Random {
        /// Of which.
        filter: Option<Filter>,
        /// Which tokens are punished.
        penalties: Penalties,
    },
}

/// Which logarithms of probabilities clients are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Logprobs {
    /// None.
    #[default]
    None,
    /// That of the token.
    OfToken,
    /// Those of the likeliest tokens as well.
    OfLikeliest,
}

/// What requests ask for beside filters and penalties. One request of a batch is enough here too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Whether tokens far less likely than the likeliest are left out of a draw.
    pub min_p: bool,
    /// What clients are told.
    pub logprobs: Logprobs,
}

impl Beside {
    /// What requests of both ask.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { min_p: self.min_p || other.min_p, logprobs: self.logprobs.max(other.logprobs) }
    }
}

/// How an engine draws what requests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// By what.
    pub sampler: Sampler,
    /// What.
    pub sampling: Sampling,
    /// And what besides.
    pub beside: Beside,
}

impl Drawing {
    /// The largest logit.
    pub const GREEDY: Self = Self {
        sampler: Sampler::Uncounted,
        sampling: Sampling::Greedy,
        beside: Beside { min_p: false, logprobs: Logprobs::None },
    };

    /// What it takes beside reading so many rows of logits, on a device with so many multiprocessors.
    pub fn work(self, rows: (u64, u64), multiprocessors: u64) -> Work {
        let work = self.sampler.work(self.sampling, rows, multiprocessors);
        let draws = matches!(self.sampling, Sampling::Random { .. });
        let beside = rows.0 * rows.1 * self.sampler.beside_bytes(self.beside, draws);
        Work { passes: work.passes + beside, ..work }
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
/// The same by penalties of `SGLang` beside a host that is an iteration ahead (0.5.9 and 0.5.14: `update_penalties` and `apply_logits_bias` of
/// python/sglang/srt/sampling/sampling_batch_info.py, `_apply` in penaltylib): a table of 32 bits is set to zero, and added to the logits.
const TABLE: u64 = 4 + (4 + 4 + 4);
/// Each of presence and frequency is taken off that table.
const TAKEN_OFF: u64 = 4 + 4 + 4;
/// Factors for repetition are copied, and one kernel applies them.
const SCALES: u64 = (4 + 4) + (4 + 4 + 4);
/// The same by `min_p` of vLLM (`MinPLogitsProcessor.apply` of vllm/v1/sample/logits_processor/builtin.py @ 0272a72c): softmax, its largest value, a comparison with it,
/// and a mask over the logits.
const MIN_P: u64 = (4 + 4 + 4) + 4 + (4 + 1) + (1 + 4 + 4);
/// The same by logarithms of probabilities of logits in 16 bits in vLLM (`compute_logprobs` and `gather_logprobs` of vllm/v1/sample/sampler.py): a softmax in 32 bits, and
/// one pass that finds the rank of the token (`batched_count_greater_than`).
const LOGPROBS: u64 = (2 + 2 + 4) + 4;
/// The same by those of `SGLang` (0.5.9: `Sampler.forward` and `_attach_logprobs_to_output` of python/sglang/srt/layers/sampler.py), whose logits have 32 bits: a softmax where
/// nothing is drawn, else the logarithm of the probabilities that there are; and a clamp in place.
const LOGPROBS_OF_LOGITS: u64 = (4 + 4 + 4) + (4 + 4);
const LOGPROBS_OF_PROBABILITIES: u64 = (4 + 4) + (4 + 4);
/// The same by `torch.topk` of 32-bit values: a pass for each of four digits of 8 bits, and one that gathers (`mbtopk` of ATen/native/cuda/TensorTopK.cu, for rows of 20,000
/// logits and more whatever their number).
const TOP: u64 = 4 * 4 + 4;
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
            Self::Uncounted | Self::Reserved { .. } => 0,
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
        let punished = logits * self.penalty_bytes(sampling.penalties());
        let filter = match sampling {
            Sampling::Greedy => return Work::default(),
            Sampling::Punished(_) => return Work { passes: punished, ..Work::default() },
            Sampling::Random { filter, .. } => filter,
        };
        let ahead = logits * SCALED + punished;
        let Some(filter) = filter else { return Work { passes: ahead + logits * DRAWN, ..Work::default() } };
        let found = match self {
            Self::Sorting => sorted(filter, (rows, vocab)),
            Self::Masking if rows < MASKED_ROWS => sorted(filter, (rows, vocab)),
            Self::Masking => masked(filter, (rows, vocab), multiprocessors),
            _ => rejected(filter, (rows, vocab)),
        };
        Work { passes: found.passes + ahead, ..found }
    }

    /// Bytes per logit of what stands beside filters and penalties, where tokens are drawn or the largest logit is taken. With `min_p` `SGLang` makes probabilities anew by
    /// kernels of `FlashInfer` that nobody timed, which is not in it. What a host makes of the logarithms is not either.
    fn beside_bytes(self, asked: Beside, draws: bool) -> u64 {
        let logprobs = match self {
            Self::Uncounted => return 0,
            Self::Reserved { .. } if draws => LOGPROBS_OF_PROBABILITIES,
            Self::Reserved { .. } => LOGPROBS_OF_LOGITS,
            _ => LOGPROBS,
        };
        let told = match asked.logprobs {
            Logprobs::None => 0,
            Logprobs::OfToken => logprobs,
            Logprobs::OfLikeliest => logprobs + TOP,
        };
        told + if self.prices_min_p() && draws && asked.min_p { MIN_P } else { 0 }
    }

    /// Whether it is known what `min_p` takes.
    pub const fn prices_min_p(self) -> bool {
        !matches!(self, Self::Uncounted | Self::Reserved { .. })
    }

    /// Bytes that penalties move per logit. `SGLang`'s tables are also gathered anew when a batch changes, which is not in it.
    fn penalty_bytes(self, asked: Penalties) -> u64 {
        let Penalties { repetition, presence, frequency } = asked;
        let (repetition, n_taken_off) = match self {
            Self::Uncounted => return 0,
            Self::Reserved { punishes_repetition } => {
                (repetition && punishes_repetition, u64::from(presence) + u64::from(frequency))
            }
            _ => return if repetition || presence || frequency { PENALTIES } else { 0 },
        };
        let scales = if repetition { SCALES } else { 0 };
        if repetition || n_taken_off > 0 { TABLE + n_taken_off * TAKEN_OFF + scales } else { 0 }
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
            (Self::Punished(one), Self::Punished(other)) => Self::Punished(one.with(other)),
            (Self::Punished(of_one), Self::Random { filter, penalties })
            | (Self::Random { filter, penalties }, Self::Punished(of_one)) => {
                Self::Random { filter, penalties: penalties.with(of_one) }
            }
            (Self::Random { filter, penalties }, Self::Random { filter: also, penalties: too }) => {
                let filter = match (filter, also) {
                    (Some(one), Some(two)) if one != two => Some(Filter::Both),
                    (one, two) => one.or(two),
                };
                Self::Random { filter, penalties: penalties.with(too) }
            }
        }
    }

    /// Which tokens are punished.
    pub const fn penalties(self) -> Penalties {
        match self {
            Self::Greedy => Penalties::NONE,
            Self::Punished(penalties) | Self::Random { penalties, .. } => penalties,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of a filter alone, without draw and temperature, on a card that moves 3 TB a second and has 132 multiprocessors.
    fn filtered_ms(sampler: Sampler, filter: Filter, rows: u64) -> f64 {
        let logits = rows * 131_072;
        let asked = Sampling::Random { filter: Some(filter), penalties: Penalties::NONE };
        let work = sampler.work(asked, (rows, 131_072), 132);
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

    const SGLANG: [Sampler; 2] =
        [Sampler::Reserved { punishes_repetition: false }, Sampler::Reserved { punishes_repetition: true }];
    const PRESENCE: Penalties = Penalties { presence: true, ..Penalties::NONE };
    const REPETITION: Penalties = Penalties { repetition: true, ..Penalties::NONE };

    #[test]
    fn a_greedy_batch_has_no_work_and_penalties_are_the_same_before_a_draw() {
        let rows = (256, 128_256);
        for sampler in [Sampler::Sorting, Sampler::Masking, Sampler::Rejecting].into_iter().chain(SGLANG) {
            assert_eq!(sampler.work(Sampling::Greedy, rows, 132), Work::default());
            // Penalties in front of the largest logit are those in front of a draw without the temperature and the draw.
            for penalties in [PRESENCE, REPETITION, PRESENCE.with(REPETITION)] {
                let of = |penalties| sampler.work(Sampling::Random { filter: None, penalties }, rows, 132).passes;
                let punished = Work { passes: of(penalties) - of(Penalties::NONE), ..Work::default() };
                assert_eq!(sampler.work(Sampling::Punished(penalties), rows, 132), punished);
            }
        }
        let drawn = Sampling::Random { filter: Some(Filter::Both), penalties: PRESENCE };
        assert_eq!(Sampler::Uncounted.work(drawn, rows, 132), Work::default());
    }

    #[test]
    fn penalties_of_sglang_move_a_table_for_each_and_one_for_all() {
        let per_logit =
            |sampler: Sampler, penalties| sampler.work(Sampling::Punished(penalties), (8, 1000), 132).passes;
        let frequency = Penalties { frequency: true, ..Penalties::NONE };
        for sampler in SGLANG {
            // A row of zeros; the penalty off it; it to the logits: 4 + 12 + 12 bytes, and 12 for a second penalty.
            assert_eq!(per_logit(sampler, PRESENCE), 8000 * 28);
            assert_eq!(per_logit(sampler, PRESENCE.with(frequency)), 8000 * 40);
        }
        // Nothing reads it up to 0.5.9; then zeros are added as before, factors copied, and logits multiplied: 16 + 8 + 12.
        assert_eq!(SGLANG.map(|sampler| per_logit(sampler, REPETITION)), [0, 8000 * 36]);
    }

    /// Bytes per logit of what requests ask for beside filters and penalties.
    fn beside(sampler: Sampler, sampling: Sampling, asked: Beside) -> u64 {
        let of = |beside| Drawing { sampler, sampling, beside }.work((8, 1000), 132).passes;
        (of(asked) - of(Beside::default())) / 8000
    }

    #[test]
    fn probabilities_that_clients_are_told_move_what_each_engine_says() {
        let drawn = Sampling::Random { filter: None, penalties: Penalties::NONE };
        let told = |logprobs| Beside { min_p: false, logprobs };
        let of = |sampler: Sampler, sampling| {
            [Logprobs::None, Logprobs::OfToken, Logprobs::OfLikeliest].map(|n| beside(sampler, sampling, told(n)))
        };
        for sampling in [Sampling::Greedy, Sampling::Punished(PRESENCE), drawn] {
            // 16 bits twice, 32 written and read; and five passes over 32 bits.
            for sampler in [Sampler::Sorting, Sampler::Masking, Sampler::Rejecting] {
                assert_eq!(of(sampler, sampling), [0, 12, 32]);
            }
            assert_eq!(of(Sampler::Uncounted, sampling), [0; 3]);
        }
        for sampler in SGLANG {
            assert_eq!((of(sampler, Sampling::Greedy), of(sampler, drawn)), ([0, 20, 40], [0, 16, 36]));
        }
    }

    #[test]
    fn a_least_probability_leaves_out_nothing_of_what_is_not_drawn() {
        let drawn = Sampling::Random { filter: Some(Filter::TopK), penalties: Penalties::NONE };
        let asked = Beside { min_p: true, logprobs: Logprobs::None };
        for sampler in [Sampler::Sorting, Sampler::Masking, Sampler::Rejecting] {
            assert_eq!([Sampling::Greedy, drawn].map(|sampling| beside(sampler, sampling, asked)), [0, 30]);
        }
        assert!(SGLANG.iter().all(|sampler| beside(*sampler, drawn, asked) == 0 && !sampler.prices_min_p()));
        let both = asked.with(Beside { min_p: false, logprobs: Logprobs::OfToken });
        assert_eq!(both, Beside { min_p: true, logprobs: Logprobs::OfToken });
    }

    #[test]
    fn one_request_is_enough_for_all() {
        let drawn = |filter, penalties| Sampling::Random { filter, penalties };
        let (none, both) = (Penalties::NONE, PRESENCE.with(REPETITION));
        assert_eq!(Sampling::Punished(PRESENCE).with(Sampling::Greedy), Sampling::Punished(PRESENCE));
        assert_eq!(Sampling::Punished(PRESENCE).with(Sampling::Punished(REPETITION)), Sampling::Punished(both));
        let punished = Sampling::Punished(PRESENCE).with(drawn(Some(Filter::TopP), none));
        assert_eq!(punished, drawn(Some(Filter::TopP), PRESENCE));
        assert_eq!(Sampling::Greedy.with(drawn(None, PRESENCE)), drawn(None, PRESENCE));
        let found = drawn(Some(Filter::TopK), REPETITION).with(drawn(Some(Filter::TopP), PRESENCE));
        assert_eq!(found, drawn(Some(Filter::Both), both));
    }
}
