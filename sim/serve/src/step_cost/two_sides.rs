//! Attention and feed-forward on GPUs of their own (attention–FFN disaggregation): what lies where, and the way between both sides.
//!
//! GPUs that attend hold all weights but those of routed experts, and the keys and values. They choose the experts of a token, send it there, and add up what comes back.
//! Shared experts stay with them: every token visits these, so they need no way. The other GPUs hold whole routed experts and nothing else.
//! Source: MegaScale-Infer (Zhu et al., arXiv:2504.02263). Units: GPUs, tokens, bytes.

use engine::layer;
use engine::model::Experts;
use engine::task::{Collective, Op};
use hw::{GroupShape, Rank};

use super::{FfnSide, ReplicaConfig};

impl ReplicaConfig<'_> {
    /// The experts' GPUs by themselves, each as one rank that has its share of all tokens.
    pub(crate) fn of_experts(&self) -> Option<Self> {
        let ffn = self.ffn?;
        let (tensor_degree, expert_degree) = (1, ffn.gpus);
        Some(Self { ffn: None, tensor_degree, expert_degree, shared_among_routed: false, ..self.clone() })
    }

    /// A GPU of each side, as they lie on nodes: where one node does not hold both sides, all goes over ports.
    fn between_sides(&self) -> GroupShape {
        self.cluster.shape_of(&[Rank(0), Rank(self.n_gpus() - 1)])
    }

    /// Both ways of a layer for so many tokens of every group that attends, there and back: a token goes once to every GPU that has one of its experts, in 8 bits where
    /// these compute in 8 bits or fewer, and every such GPU sends one sum back. The port that carries most counts: that of a GPU that attends, or that of the
    /// busiest GPU with experts, which has so many thousandths of an even share.
    pub(super) fn ways(&self, ffn: FfnSide, experts: Experts, tokens: u64, permille: u64) -> [Op; 2] {
        let copies = hw::real(tokens) * layer::reached(experts, ffn.gpus);
        let of_attending = copies / f64::from(self.tensor_degree);
        let all = copies * f64::from(ffn.attention_ranks);
        let of_experts = all / f64::from(ffn.gpus) * hw::real(permille) / 1000.0;
        let most = of_attending.max(of_experts);
        let wide = experts.latent.unwrap_or(self.model.hidden);
        let rows = [layer::dispatched_bytes(self.formats.experts, wide), wide * self.dtype.bytes()];
        let shape = self.between_sides();
        rows.map(|row| Op::Collective { kind: Collective::SendRecv, bytes: hw::whole(most * hw::real(row)), shape })
    }
}
