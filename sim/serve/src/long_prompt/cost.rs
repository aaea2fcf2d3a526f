//! How long a pipeline stage computes a chunk of a prompt.
//!
//! Projections, feed-forward and exchanges come from the cost model through the engine's table of iterations; attention is its operations
//! at a share of the peak, dense or sparse. Stages have equal parts of the layers.

use hw::{Cluster, Flops, Seconds, Span};

use super::PromptChunk;
use super::chunks::ChunkLaw;
use super::memory::Degrees;
use crate::step_cost::{StepLoad, StepTable, span_of};
use engine::cost::Source;
use engine::cost::sparse_attention::{Kernel, SparseAttention};
use engine::model::Model;
use engine::play::Case;
use engine::task::Document;

/// Attention of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Share of the GPU's peak that dense attention reaches.
    pub flops_ratio: f64,
    /// `None` is dense throughout.
    pub sparse: Option<SparseAttention>,
}

/// Costs of an engine's stages.
#[derive(Clone, Debug)]
pub struct StageCost<'a> {
    /// Iterations of the tensor group over all layers, without attention.
    pub table: &'a StepTable,
    /// Architecture.
    pub model: &'a Model,
    /// Machine.
    pub cluster: &'a Cluster,
    /// GPUs.
    pub degrees: Degrees,
    /// Attention.
    pub attention: Attention,
    /// End of the interval.
    pub case: Case,
}

fn f(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

const fn document(chunk: PromptChunk) -> Document {
    Document::chunk(chunk.past, chunk.new)
}

/// Operations of estimating the pattern of one head: scores of the last 64 queries against all keys.
fn estimation(chunk: PromptChunk, head_dim: u64) -> Flops {
    Flops::new(4.0 * 64.0 * f(chunk.past + chunk.new) * f(head_dim))
}

/// Time of attention at a share of a device's peak.
fn at_peak(flops: Flops, peak: hw::FlopsPerSecond, ratio: f64) -> Seconds {
    flops / (peak * ratio)
}

impl StageCost<'_> {
    /// Everything but attention, on one stage.
    #[must_use]
    pub fn linear(&self, tokens: u64) -> Seconds {
        let n_chunk_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let load = StepLoad { n_chunk_tokens, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
        span_of(self.table.step(&load, std::iter::empty())).to_seconds() * (1.0 / f64::from(self.degrees.pipeline))
    }

    /// Time of one query-key pair of dense attention in all heads and layers of a GPU.
    fn per_pair(&self) -> Seconds {
        let heads = self.model.n_heads.div_ceil(u64::from(self.degrees.tensor));
        let flops = 4.0 * f(heads * self.model.head_dim * self.model.n_layers) / f64::from(self.degrees.pipeline);
        at_peak(Flops::new(flops), self.cluster.gpu.peak_bf16, self.attention.flops_ratio)
    }

    /// Heads of all layers of a GPU.
    fn heads(&self) -> f64 {
        let heads = self.model.n_heads.div_ceil(u64::from(self.degrees.tensor));
        f(heads * self.model.n_layers) / f64::from(self.degrees.pipeline)
    }

    /// Whether a chunk is computed with sparse attention.
    #[must_use]
    pub fn is_sparse(&self, chunk: PromptChunk) -> bool {
        self.attention.sparse.is_some_and(|sparse| chunk.past + chunk.new > sparse.threshold)
    }

    /// Attention of a chunk on one stage.
    #[must_use]
    pub fn attend(&self, chunk: PromptChunk) -> Seconds {
        let Some(sparse) = self.attention.sparse.filter(|_| self.is_sparse(chunk)) else {
            let (past, new) = (f(chunk.past), f(chunk.new));
            return self.per_pair() * (past * new + new * (new + 1.0) / 2.0);
        };
        let selected = self.per_pair() * sparse.kernel.pairs(&document(chunk), sparse.positions);
        let estimation =
            at_peak(estimation(chunk, self.model.head_dim), self.cluster.gpu.peak_bf16, self.attention.flops_ratio);
        let call = (estimation + Seconds::new(sparse.kernel.per_head_s)) * self.heads();
        (selected + call) * self.residual(sparse.kernel)
    }

    /// Measured over predicted time of a sparse kernel at this end of the interval.
    const fn residual(&self, kernel: &Kernel) -> f64 {
        match self.case {
            Case::Low => kernel.interval[0],
            Case::Expected => 1.0,
            Case::High => kernel.interval[1],
        }
    }

    /// A chunk on one stage.
    #[must_use]
    pub fn stage(&self, chunk: PromptChunk) -> Span {
        Span::from_seconds(self.linear(chunk.new) + self.attend(chunk))
    }

    /// Message of a chunk to the next stage; none within a stage of its own.
    #[must_use]
    pub fn send(&self, chunk: PromptChunk) -> Span {
        if self.degrees.pipeline == 1 {
            return Span::ZERO;
        }
        let bytes = hw::Bytes(chunk.new * self.model.hidden * 2);
        let crosses = self.degrees.tensor * self.degrees.pipeline > self.cluster.gpus_per_node;
        let (bandwidth, latency) = if crosses {
            (self.cluster.nic_bandwidth, self.cluster.inter_node_latency)
        } else {
            (self.cluster.gpu.intra_node_bandwidth, self.cluster.intra_node_latency)
        };
        // Every tensor rank sends its part.
        Span::from_seconds(latency + bytes / bandwidth * (1.0 / f64::from(self.degrees.tensor)))
    }

    /// The law that dynamic chunks are cut with: two sizes give the linear part, attention has a closed form. For sparse attention it is that
    /// of chunks beyond the budget: `kappa · positions` pairs per token and `floor` of the dense pairs.
    #[must_use]
    pub fn law(&self, size: u64) -> ChunkLaw {
        let (small, large) = (size.div_ceil(2), size.max(2));
        let (at_small, at_large) = (self.linear(small).get(), self.linear(large).get());
        let b = ((at_large - at_small) / f(large - small)).max(0.0);
        let c = (at_small - b * f(small)).max(0.0);
        let a = self.per_pair().get() / 2.0;
        let Some(sparse) = self.attention.sparse else { return ChunkLaw { a, b, c, gamma: 0.0 } };
        let estimation = at_peak(
            estimation(PromptChunk { past: 0, new: 1 }, self.model.head_dim),
            self.cluster.gpu.peak_bf16,
            self.attention.flops_ratio,
        );
        ChunkLaw {
            a: a * sparse.kernel.floor,
            b: b + 2.0 * a * sparse.kernel.kappa * sparse.positions,
            c: c + sparse.kernel.per_head_s * self.heads(),
            gamma: estimation.get() * self.heads(),
        }
    }

    /// No cut of the prompts ends sooner on this engine: every stage computes every token at the rate of the best chunk size and every query
    /// with the cheaper attention, and the last chunk still passes the stages behind the first.
    #[must_use]
    pub fn least(&self, tokens: u64, n_prompts: u64) -> Seconds {
        let sizes = std::iter::successors(Some(tokens), |size| (*size > 1).then_some(size / 2));
        let rate = sizes.map(|size| self.linear(size).get() / f(size)).fold(f64::INFINITY, f64::min);
        let dense = self.per_pair() * (f(tokens) * (f(tokens) + 1.0) / 2.0);
        let attention = self.attention.sparse.map_or(dense, |sparse| {
            let pairs = sparse.kernel.pairs(&Document::causal(tokens), sparse.positions);
            self.per_pair() * (pairs * self.residual(sparse.kernel).min(1.0))
        });
        let whole = Seconds::new(rate * f(tokens)) + attention;
        whole * f(n_prompts) + self.linear(1) * (f64::from(self.degrees.pipeline) - 1.0)
    }

    /// Weakest source among what was asked.
    #[must_use]
    pub fn source(&self) -> Source {
        self.table.source
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunks::{Cut, Grain, sizes};
    use super::super::{laid, play};
    use super::*;
    use crate::step_cost::ReplicaConfig;
    use engine::cost::roofline::Roofline;

    fn with(degrees: Degrees, is_sparse: bool, check: &dyn Fn(&StageCost<'_>)) {
        let model = engine::model::embedded("qwen2.5-14b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h20").expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, degrees.tensor);
        let table = StepTable::new(&deployment, (262_144, 1), &Roofline::new(&cluster), Case::Expected);
        let positions = engine::cost::sparse_attention::budget(&model.name).expect("shipped").positions(degrees.tensor);
        let sparse =
            SparseAttention { kernel: &engine::cost::sparse_attention::KERNELS[0], positions, threshold: 32_768 };
        let attention = Attention { flops_ratio: 0.6, sparse: is_sparse.then_some(sparse) };
        let (model, cluster, case) = (&model, &cluster, Case::Expected);
        check(&StageCost { table: &table, model, cluster, degrees, attention, case });
    }

    #[test]
    fn the_law_of_dynamic_chunks_is_the_stage_time() {
        for is_sparse in [false, true] {
            with(Degrees { tensor: 2, pipeline: 4 }, is_sparse, &|cost| {
                let law = cost.law(32_768);
                for (past, new) in [(65_536, 16_384), (131_072, 8_192), (200_000, 32_768)] {
                    let (found, exact) =
                        (law.time(past, new).get(), cost.stage(PromptChunk { past, new }).to_seconds().get());
                    assert!((found / exact - 1.0).abs() < 0.02, "({past}, {new}): {found}, stage {exact}");
                }
            });
        }
    }

    #[test]
    fn no_cut_beats_the_bound_and_dynamic_chunks_beat_equal_ones_of_the_same_first_size() {
        for is_sparse in [false, true] {
            with(Degrees { tensor: 2, pipeline: 4 }, is_sparse, &|cost| {
                let grain = Grain { block: 64, least: 2048 };
                let time = |cut| {
                    let prompt = laid(&sizes(262_144, cut, &cost.law(32_768), grain));
                    play(&[prompt], 4, &|chunk| cost.stage(chunk), &|chunk| cost.send(chunk))
                        .makespan()
                        .to_seconds()
                        .get()
                };
                let bound = cost.least(262_144, 1).get();
                let cuts = [Cut::Whole, Cut::Fixed(4096), Cut::Fixed(32_768), Cut::Dynamic(16_384)];
                for cut in cuts.into_iter().chain([Cut::Dynamic(32_768)]) {
                    assert!(time(cut) >= bound, "{cut:?}: {} below {bound}", time(cut));
                }
                if !is_sparse {
                    assert!(time(Cut::Dynamic(32_768)) < time(Cut::Fixed(32_768)));
                }
            });
        }
    }
}
