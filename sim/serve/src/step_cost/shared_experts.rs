//! A shared expert that an engine keeps as one more of the routed ones, so that one kernel computes all of them. Every token visits it.

use engine::task::{Op, Ops};

use super::writer::Writer;

impl Writer<'_> {
    /// Whether the shared expert is one of the routed ones. It is of their width then, and no other GPU has a part of them.
    pub(super) fn is_shared_among_routed(&self) -> bool {
        let is_alike =
            self.shard.model.experts.is_some_and(|experts| experts.shared_intermediate == experts.intermediate);
        self.deployment.shared_among_routed && self.shard.ep == 1 && is_alike
    }

    /// Leaves the shared expert's own kernels out of a layer: the last two products, and the activation between them.
    pub(super) fn leave_out_shared(&self, ops: &mut Ops) {
        let mut products = (0..ops.len()).rev().filter(|at| matches!(ops[*at].0, Op::Gemm { .. }));
        if let (Some(last), Some(first)) = (products.next(), products.next()) {
            ops.drain(first..=last);
        }
    }
}
