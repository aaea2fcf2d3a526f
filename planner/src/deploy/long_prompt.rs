//! How to compute a long prompt: cut and attention by simulation of every candidate, within memory (arXiv:2501.15383).
//!
//! Candidates are whole prompts, equal chunks and chunks of equal time over a ladder of sizes, each with dense and, where allowed, sparse
//! attention. The objective is the time to the last prompt's first token. Dynamic chunks are gated: with several prompts at once the next
//! prompt fills the pipeline anyway, and small chunks only cost.

use hw::{Bytes, Seconds};
use serve::long_prompt::chunks::{Cut, Grain, sizes};
use serve::long_prompt::cost::StageCost;
use serve::long_prompt::memory::{self, PromptMemory};
use serve::long_prompt::{Played, laid, play};

use crate::proof::{self, Aim, Decision};

/// Ladder of sizes, tokens.
const SIZES: [u64; 10] = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288];

/// Prompts that arrive together on an engine.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Costs with dense attention.
    pub dense: &'a StageCost<'a>,
    /// Costs with sparse attention, where it is allowed.
    pub sparse: Option<&'a StageCost<'a>>,
    /// Tokens of each prompt.
    pub tokens: u64,
    /// Prompts.
    pub n_prompts: u32,
    /// Sizes that chunks may have.
    pub grain: Grain,
    /// Memory of a GPU that the engine may use.
    pub room: Bytes,
    /// Whether dynamic chunks are kept to a single prompt.
    pub is_gated: bool,
}

/// A way to compute the prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// How prompts are cut.
    pub cut: Cut,
    /// Whether attention may be sparse.
    pub is_sparse: bool,
}

impl Way {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let attention = if self.is_sparse { "sparse" } else { "dense" };
        match self.cut {
            Cut::Whole => format!("{attention} attention, whole prompt"),
            Cut::Fixed(size) => format!("{attention} attention, chunks of {size}"),
            Cut::Dynamic(size) => format!("{attention} attention, dynamic chunks from {size}"),
        }
    }
}

/// A way and what it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The way, after the gate.
    pub way: Way,
    /// Sizes of a prompt's chunks.
    pub sizes: Vec<u64>,
    /// The pipeline's time.
    pub played: Played,
    /// Memory of a GPU.
    pub memory: PromptMemory,
}

impl Judged {
    /// Seconds to the last prompt's first token.
    #[must_use]
    pub fn makespan_s(&self) -> f64 {
        self.played.makespan().to_seconds().get()
    }
}

/// The best way and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The way, and the best one that cuts or attends differently.
    pub best: Decision<Judged>,
    /// Ways that were simulated.
    pub n_judged: usize,
    /// Ways that do not fit memory.
    pub n_too_large: usize,
}

impl<'a> Question<'a> {
    /// Costs of a way; dense where sparse attention is not allowed.
    #[must_use]
    pub fn cost(&self, is_sparse: bool) -> &'a StageCost<'a> {
        self.sparse.filter(|_| is_sparse).unwrap_or(self.dense)
    }

    /// No way ends sooner.
    #[must_use]
    pub fn bound(&self) -> Seconds {
        let of = |cost: &StageCost<'_>| cost.least(self.tokens, u64::from(self.n_prompts));
        let dense = of(self.dense);
        self.sparse.map_or(dense, |sparse| if of(sparse) < dense { of(sparse) } else { dense })
    }

    /// Simulates a way.
    ///
    /// # Errors
    /// A sentence with the figures when it does not fit memory.
    pub fn judge(&self, way: Way) -> Result<Judged, String> {
        let way = match way.cut {
            Cut::Dynamic(size) if self.is_gated && self.n_prompts > 1 => Way { cut: Cut::Fixed(size), ..way },
            _ => way,
        };
        let cost = self.cost(way.is_sparse);
        let first = match way.cut {
            Cut::Whole => self.tokens,
            Cut::Fixed(size) | Cut::Dynamic(size) => size.min(self.tokens),
        };
        let n_tokens = self.tokens * u64::from(self.n_prompts);
        let memory = memory::of(cost.model, cost.degrees, n_tokens, first);
        if memory.total() > self.room {
            let gib = |bytes: Bytes| bytes.as_f64() / 1_073_741_824.0;
            return Err(format!(
                "{} needs {:.1} GiB per GPU (weights {:.1}, keys and values {:.1}, activations {:.1}), {:.1} GiB may be used",
                way.words(),
                gib(memory.total()),
                gib(memory.weights),
                gib(memory.kv),
                gib(memory.activations),
                gib(self.room)
            ));
        }
        let sizes = sizes(self.tokens, way.cut, &cost.law(first), self.grain);
        let prompts = vec![laid(&sizes); self.n_prompts as usize];
        let played = play(&prompts, cost.degrees.pipeline, &|chunk| cost.stage(chunk), &|chunk| cost.send(chunk));
        Ok(Judged { way, sizes, played, memory })
    }
}

/// Every candidate, in a fixed order.
fn ways(question: &Question<'_>) -> Vec<Way> {
    let sizes = SIZES.iter().copied().filter(|&size| size < question.tokens && size >= question.grain.block);
    let cuts: Vec<Cut> = sizes.flat_map(|size| [Cut::Fixed(size), Cut::Dynamic(size)]).chain([Cut::Whole]).collect();
    let kinds = [Some(false), question.sparse.map(|_| true)];
    kinds.into_iter().flatten().flat_map(|is_sparse| cuts.iter().map(move |&cut| Way { cut, is_sparse })).collect()
}

/// The best way; `Err` has the reason of the smallest candidate when none fits.
///
/// # Errors
/// A sentence when no candidate fits memory.
pub fn best(question: &Question<'_>) -> Result<Best, String> {
    let (mut judged, mut why) = (Vec::new(), Vec::new());
    for way in ways(question) {
        match question.judge(way) {
            Ok(found) => judged.push(found),
            Err(reason) => why.push(reason),
        }
    }
    let (n_judged, n_too_large) = (judged.len(), why.len());
    let kind = |way: &Way| (std::mem::discriminant(&way.cut), way.is_sparse);
    let is_other = |other: &Judged, best: &Judged| kind(&other.way) != kind(&best.way);
    let judged = judged.into_iter().map(|judged| (judged.makespan_s(), judged)).collect();
    let none = || why.into_iter().next().unwrap_or_else(|| "there is no way to compute an empty prompt".to_owned());
    let best = proof::ranked(Aim::Seconds, judged, |_| (), is_other).ok_or_else(none)?;
    Ok(Best { best, n_judged, n_too_large })
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use engine::cost::sparse_attention as sparse;
    use engine::cost::sparse_attention::SparseAttention;
    use engine::play::Case;
    use serve::long_prompt::cost::Attention;
    use serve::long_prompt::memory::Degrees;
    use serve::step_cost::{ReplicaConfig, StepTable};

    use super::*;

    fn with(n_prompts: u32, room_gib: f64, check: &dyn Fn(&Question<'_>)) {
        let model = engine::model::embedded("qwen2.5-14b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h20").expect("listed"), 1, 8);
        let degrees = Degrees { tensor: 2, pipeline: 4 };
        let deployment = ReplicaConfig::new(&model, &cluster, degrees.tensor);
        let tokens = 131_072;
        let table = StepTable::new(&deployment, (131_072, 1), &Roofline::new(&cluster), Case::Expected);
        let positions = sparse::budget(&model.name).expect("shipped").positions(degrees.tensor);
        let sparse = SparseAttention { kernel: &sparse::KERNELS[0], positions, threshold: 32_768 };
        let cost = |sparse| StageCost {
            table: &table,
            model: &model,
            cluster: &cluster,
            degrees,
            attention: Attention { flops_ratio: 0.6, sparse },
            case: Case::Expected,
        };
        let (dense, sparse) = (cost(None), cost(Some(sparse)));
        let grain = Grain { block: 64, least: 1024 };
        let (sparse, room, is_gated) = (Some(&sparse), Bytes::from_gib(room_gib), true);
        check(&Question { dense: &dense, sparse, tokens, n_prompts, grain, room, is_gated });
    }

    #[test]
    fn the_best_way_is_no_worse_than_any_and_no_better_than_the_bound() {
        for n_prompts in [1, 3] {
            with(n_prompts, 80.0, &|question| {
                let found = best(question).expect("fits");
                let runner_up = found.best.runner_up().expect("several kinds fit").plan.clone();
                assert!(question.bound().get() <= found.best.plan.makespan_s());
                assert!(found.best.plan.makespan_s() <= runner_up.makespan_s());
                for way in ways(question) {
                    assert!(question.judge(way).expect("fits").makespan_s() >= found.best.plan.makespan_s(), "{way:?}");
                }
            });
        }
    }

    #[test]
    fn the_gate_keeps_equal_chunks_when_prompts_come_together() {
        let dynamic = Way { cut: Cut::Dynamic(16_384), is_sparse: false };
        with(1, 80.0, &|question| assert_eq!(question.judge(dynamic).expect("fits").way, dynamic));
        with(4, 80.0, &|question| {
            let gated = question.judge(dynamic).expect("fits");
            assert_eq!(gated.way.cut, Cut::Fixed(16_384));
            // Small chunks cost their starts and fill no bubble that the next prompt would not fill.
            let open = Question { is_gated: false, ..*question }.judge(dynamic).expect("fits");
            assert!(open.played.busy > gated.played.busy);
        });
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_figures() {
        with(1, 6.0, &|question| {
            let why = best(question).expect_err("14.8 GB of weights over eight GPUs and 25.8 GB of keys");
            assert!(why.contains("6.0 GiB may be used") && why.contains("keys and values 3.0"), "{why}");
        });
    }
}
