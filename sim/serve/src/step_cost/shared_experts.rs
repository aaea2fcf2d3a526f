//! Shared experts, and what runs beside them.
//!
//! Every token visits a shared expert, so its products need nothing of the router. Engines therefore launch them on a stream of their own while the routed
//! experts run, in iterations of few tokens that are replayed as a graph. What is hidden is what the shared experts take above reading their weights once:
//! both kernels read memory, which they share. Two measurements say how much that is. DeepSeek-R1 in 8 bits on eight B200 with 32 sequences takes 22.09 ms a token
//! in place of 23.35 (vllm-project/vllm #26440), and in 4 bits 73 tokens a second in place of 67 (NVIDIA/TensorRT-LLM,
//! docs/source/blogs/tech_blog/blog1_Pushing_Latency_Boundaries_Optimizing_DeepSeek-R1_Performance_on_NVIDIA_B200_GPUs.md). Both are 21 µs of each of 58 layers.
//! An engine may also keep a shared expert as one more of the routed ones, so that one kernel computes all. Units: seconds, tokens.

use engine::cost::provenance::what_of;
use engine::task::{Op, Ops};
use hw::{Bytes, Flops, Seconds};

use super::writer::Writer;

/// Where an engine computes shared experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedExperts {
    /// Behind the routed ones.
    #[default]
    Behind,
    /// On a stream of their own, in iterations of at most so many tokens.
    Beside(u64),
    /// As one more of the routed ones, which every token visits.
    Among,
}

impl SharedExperts {
    /// The same where graphs hold at most so many sequences: other iterations launch one kernel behind the other.
    pub fn in_graphs(self, largest: u64) -> Self {
        match self {
            Self::Beside(tokens) => Self::Beside(tokens.min(largest)),
            other => other,
        }
    }
}

impl Writer<'_> {
    /// Whether the shared expert is one of the routed ones. It is of their width then, and no other GPU has a part of them.
    pub(super) fn is_among_routed(&self) -> bool {
        let is_alike =
            self.shard.model.experts.is_some_and(|experts| experts.shared_intermediate == experts.intermediate);
        self.deployment.shared_experts == SharedExperts::Among && self.shard.ep == 1 && is_alike
    }

    /// Takes out of a layer what shared experts compute beside or among routed ones, which take so long in so many layers; the time of that, where it is not theirs.
    pub(super) fn shared(&self, ops: &mut Ops, m: u64, (routed, n_layers): (Seconds, u32)) -> Seconds {
        let has_shared = self.shard.model.experts.is_some_and(|experts| experts.shared_intermediate > 0);
        if !has_shared || routed == Seconds::ZERO {
            return Seconds::ZERO;
        }
        let Some((first, last)) = last_two_products(ops) else { return Seconds::ZERO };
        if self.is_among_routed() {
            ops.drain(first..=last);
            return Seconds::ZERO;
        }
        if !matches!(self.deployment.shared_experts, SharedExperts::Beside(tokens) if m <= tokens) {
            return Seconds::ZERO;
        }
        let shared: Ops = ops.drain(first..=last).collect();
        let least = self.least(&shared);
        let found = self.cost.estimate(&Op::Sequence(shared));
        let hidden = (found.time - least).max(Seconds::ZERO).get().min(routed.get() / f64::from(n_layers));
        let left = 1.0 - hidden / found.time.get();
        self.own(
            what_of(&Op::Gemm { m: 1, n: 1, k: 1, format: self.shard.formats.dense }),
            &found.scaled(left),
            n_layers,
        )
    }

    /// Seconds of products by the datasheet: their operations, or what they read and write, whichever takes longer.
    fn least(&self, ops: &Ops) -> Seconds {
        let gpu = &self.deployment.cluster.gpu;
        let of = |(op, times): &(Op, u32)| match op {
            Op::Gemm { m, n, k, format } => {
                let memory = Bytes::from_f64(format.product_bytes(*m, *n, *k)) / gpu.memory_bandwidth;
                (Flops::new(op.flops()) / gpu.peak(*format)).max(memory) * f64::from(*times)
            }
            _ => Seconds::ZERO,
        };
        ops.iter().map(of).sum()
    }
}

/// Places of the last two products: into the shared experts and out of them.
fn last_two_products(ops: &Ops) -> Option<(usize, usize)> {
    let mut products = (0..ops.len()).rev().filter(|at| matches!(ops[*at].0, Op::Gemm { .. }));
    let (last, first) = (products.next()?, products.next()?);
    Some((first, last))
}
