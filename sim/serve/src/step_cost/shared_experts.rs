//! Experts that every token visits: kept as one more of the routed ones, so that one kernel computes all of them, or computed on a second stream beside
//! them, so that nothing waits for their kernels.

use engine::task::{Op, Ops};
use hw::{Bytes, Seconds};

use super::writer::Writer;

impl Writer<'_> {
    /// Whether the shared expert is one of the routed ones. It is of their width then, inside and outside, and no other GPU has a part of them.
    pub(super) fn is_shared_among_routed(&self) -> bool {
        let is_alike = self
            .shard
            .model
            .experts
            .is_some_and(|experts| experts.shared_intermediate == experts.intermediate && experts.latent.is_none());
        self.deployment.shared_among_routed && self.deployment.ffn.is_none() && self.shard.ep == 1 && is_alike
    }

    /// Whether a batch of so many tokens computes it beside the routed ones.
    pub(super) fn is_shared_beside(&self, m: u64) -> bool {
        let has_shared = self.shard.model.experts.is_some_and(|experts| experts.shared_intermediate > 0);
        let captured = self.deployment.graph_sizes.iter().copied().max().unwrap_or(0);
        // Beside them there are none where they have GPUs of their own.
        let has_both = has_shared && self.deployment.ffn.is_none();
        has_both && !self.is_shared_among_routed() && m <= u64::from(self.deployment.shared_beside.min(captured))
    }

    /// Time in which the weights of shared experts are read once. It adds to the routed ones' on the other stream, because both read one memory.
    pub(super) fn shared_weights(&self) -> Seconds {
        let (model, shard) = (self.shard.model, &self.shard);
        let width = model.experts.map_or(0, |experts| experts.shared_intermediate).div_ceil(u64::from(shard.tp));
        let n_matrices = if model.gated { 3.0 } else { 2.0 };
        let bytes = shard.formats.dense.weight_bytes(n_matrices * hw::real(width * model.hidden));
        Bytes::from_f64(bytes) / self.deployment.cluster.gpu.memory_bandwidth
    }

    /// Leaves the shared expert's own kernels out of a layer: the last two products, and the activation between them.
    pub(super) fn leave_out_shared(&self, ops: &mut Ops) {
        let mut products = (0..ops.len()).rev().filter(|at| matches!(ops[*at].0, Op::Gemm { .. }));
        if let (Some(last), Some(first)) = (products.next(), products.next()) {
            ops.drain(first..=last);
        }
    }
}
