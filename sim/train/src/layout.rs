//! Degrees of parallelism, the order of ranks, and how model states are sharded.
//!
//! Invariant: `dp × cp × tp × pp` equals the ranks in use, checked by the scenario reader. The default order is
//! tensor fastest, then context, data, pipeline, as in Megatron-LM: a tensor group is consecutive and stays inside a node.
//! An expert group covers tensor ranks (when experts are not cut), then context, then data ranks of one pipeline stage.

use engine::Model;
use hw::Rank;
use serde::{Deserialize, Serialize};

/// ZeRO stage: which model states are sharded over the data-parallel group (which includes context ranks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Zero {
    /// Nothing is sharded.
    Off,
    /// Optimizer states.
    OptimizerStates,
    /// Optimizer states and gradients.
    Gradients,
    /// Optimizer states, gradients and parameters.
    Parameters,
}

/// How ranks of a context-parallel group exchange keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextExchange {
    /// Key and value blocks travel around a ring, one step ahead of the attention that needs them.
    Ring,
    /// Heads are exchanged for tokens by all-to-all before and after attention (Ulysses).
    Ulysses,
    /// Keys and values of sharded sequences are all-gathered before attention (Skrull, Llama 3).
    Gather,
}

/// A dimension of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Axis {
    /// Tensor.
    #[serde(rename = "tp")]
    Tensor,
    /// Context.
    #[serde(rename = "cp")]
    Context,
    /// Data.
    #[serde(rename = "dp")]
    Data,
    /// Pipeline.
    #[serde(rename = "pp")]
    Pipeline,
}

/// Position of a rank along every axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Tensor.
    pub tp: u32,
    /// Context.
    pub cp: u32,
    /// Data.
    pub dp: u32,
    /// Pipeline.
    pub pp: u32,
}

/// Parallel degrees of a training job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Data-parallel degree.
    pub dp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Pipeline ranks.
    pub pp: u32,
    /// Chunks of layers per pipeline rank (virtual stages).
    pub chunks: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Ranks over which one expert's matrices are cut: 1, or `tp`.
    pub expert_tp: u32,
    /// Whether norms and residuals are cut along the sequence over the tensor group (arXiv:2205.05198).
    pub sequence_parallel: bool,
    /// Sharding of model states.
    pub zero: Zero,
    /// Groups of ranks that each hold all sharded states (hybrid sharding: PyTorch's HSDP, Megatron-LM's instances of the distributed
    /// optimizer). Ranks of a group follow one another.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicate: u32,
    /// Exchange inside a context group.
    pub exchange: ContextExchange,
    /// Axes from the fastest-varying to the slowest.
    pub order: [Axis; 4],
}

/// How many positions of each axis an expert group covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSpan {
    /// Tensor.
    pub tp: u32,
    /// Context.
    pub cp: u32,
    /// Data.
    pub dp: u32,
}

impl Layout {
    /// Whether every exchange between nodes of so many GPUs joins GPUs of one place in their nodes. That is so where degrees are powers of two on consecutive
    /// ranks: a group then has as many places in each of its nodes. A ring of context and stages of a pipeline reach their neighbours, whatever place these have,
    /// and an all-to-all over nodes all of its ranks.
    pub fn stays_on_rails(&self, in_node: u32) -> bool {
        let usual = Self::data_and_context(1, 1, Zero::Off, self.exchange).order;
        let degrees = [self.tp, self.cp, self.dp, self.pp, self.ep, in_node];
        if self.order != usual || !degrees.into_iter().all(u32::is_power_of_two) {
            return false;
        }
        let (of_context, of_stage) = (self.tp * self.cp, self.tp * self.cp * self.dp);
        let ring_stays = self.exchange != ContextExchange::Ring || self.cp == 1 || of_context <= in_node;
        let stages_stay = self.pp == 1 || of_stage.is_multiple_of(in_node) || of_stage * self.pp <= in_node;
        let is_one_of_each_node = self.tp >= in_node;
        let heads_stay = self.exchange != ContextExchange::Ulysses || of_context <= in_node || is_one_of_each_node;
        let experts_stay = self.expert_span().is_none_or(|span| {
            let spread = if span.dp > 1 { of_context * span.dp } else { self.tp * span.cp };
            spread <= in_node || (span.tp == 1 && is_one_of_each_node)
        });
        ring_stays && stages_stay && (heads_stay || self.cp == 1) && experts_stay
    }

    /// Data and context parallelism only.
    pub const fn data_and_context(dp: u32, cp: u32, zero: Zero, exchange: ContextExchange) -> Self {
        Self {
            dp,
            cp,
            tp: 1,
            pp: 1,
            chunks: 1,
            ep: 1,
            expert_tp: 1,
            sequence_parallel: false,
            zero,
            replicate: 1,
            exchange,
            order: [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline],
        }
    }

    /// Ranks that the layout uses.
    pub const fn n_ranks(&self) -> u32 {
        self.dp * self.cp * self.tp * self.pp
    }

    const fn degree(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.tp,
            Axis::Context => self.cp,
            Axis::Data => self.dp,
            Axis::Pipeline => self.pp,
        }
    }

    /// Rank at a position.
    pub fn rank(&self, position: Position) -> Rank {
        let along = |axis| match axis {
            Axis::Tensor => position.tp,
            Axis::Context => position.cp,
            Axis::Data => position.dp,
            Axis::Pipeline => position.pp,
        };
        let (rank, _) = self
            .order
            .iter()
            .fold((0, 1), |(rank, stride), &axis| (rank + stride * along(axis), stride * self.degree(axis)));
        Rank(rank)
    }

    /// Position of a rank.
    pub fn position(&self, rank: Rank) -> Position {
        let mut position = Position::default();
        let mut rest = rank.0;
        for axis in self.order {
            let along = match axis {
                Axis::Tensor => &mut position.tp,
                Axis::Context => &mut position.cp,
                Axis::Data => &mut position.dp,
                Axis::Pipeline => &mut position.pp,
            };
            *along = rest % self.degree(axis);
            rest /= self.degree(axis);
        }
        position
    }

    /// What an expert group covers; `None` when the degrees do not divide into whole groups.
    pub const fn expert_span(&self) -> Option<ExpertSpan> {
        // Ranks that cut an expert together follow one another in the tensor group.
        let cuts = self.tp / self.expert_tp;
        let tp = if self.ep > 1 && cuts > 0 { min(cuts, self.ep) } else { 1 };
        let cp = min(self.cp, self.ep / tp);
        let dp = self.ep / tp / cp;
        let whole = tp * cp * dp == self.ep
            && (self.ep == 1 || self.tp.is_multiple_of(self.expert_tp))
            && cuts.is_multiple_of(tp)
            && self.cp.is_multiple_of(cp)
            && self.dp.is_multiple_of(dp);
        if whole { Some(ExpertSpan { tp, cp, dp }) } else { None }
    }

    /// Whether each expert lies inside one tensor group, which holds all of them: whole ones are dealt out over it, or each is cut over it.
    pub const fn holds_experts_in_tensor_groups(&self) -> bool {
        self.ep * self.expert_tp == self.tp && (self.ep == 1 || self.expert_tp == 1)
    }

    /// The same on tensor groups of another size. Experts that are dealt out or cut over a group are so there too; those of a rank that has no group are cut.
    pub const fn on_tensor_group(&self, tp: u32) -> Self {
        let [ep, expert_tp] = match *self {
            Self { ep: 1, expert_tp: 1, tp: 2.., .. } => [1, 1],
            Self { ep: 2.., .. } => [tp, 1],
            _ => [1, tp],
        };
        Self { tp, ep, expert_tp, sequence_parallel: self.sequence_parallel && tp > 1, ..*self }
    }

    /// Whether a model can be cut over a tensor group of so many ranks, with its experts as they lie in this layout's.
    pub fn cuts(&self, model: &Model, tp: u32) -> bool {
        let own = self.on_tensor_group(tp);
        let experts_fit = model.experts.is_none_or(|experts| {
            experts.n_routed.is_multiple_of(u64::from(own.ep))
                && experts.intermediate.is_multiple_of(u64::from(own.expert_tp))
        });
        tp > 0 && model.n_heads.is_multiple_of(u64::from(tp)) && experts_fit
    }

    /// Consecutive data-parallel groups whose exchanges join them pass by pass (experts over several groups, ZeRO 3): they have
    /// equally many micro-batches and one order.
    pub fn groups_in_step(&self) -> u32 {
        if self.zero == Zero::Parameters {
            return self.dp;
        }
        self.expert_span().map_or(1, |span| span.dp)
    }

    /// Ranks that hold the same non-expert parameters.
    pub const fn n_holders(&self) -> u32 {
        self.dp * self.cp
    }

    /// Ranks over which non-expert states are sharded.
    pub const fn n_shards(&self) -> u32 {
        self.shards_of(self.n_holders())
    }

    /// Over how many of so many holders of the same parameters a copy of the states is sharded. Holders that do not divide into the copies,
    /// as few holders of experts may not, have one. Without sharding there is nothing to copy.
    pub const fn shards_of(&self, n_holders: u32) -> u32 {
        let is_cut = !matches!(self.zero, Zero::Off) && n_holders.is_multiple_of(self.replicate);
        if is_cut { n_holders / self.replicate } else { n_holders }
    }

    /// Ranks that hold the same experts, those of a tensor group among them.
    pub const fn n_expert_holders(&self) -> u32 {
        let n = self.dp * self.cp * self.tp / (self.ep * self.expert_tp);
        if n == 0 { 1 } else { n }
    }

    /// Of these, the ones over which a copy of the experts' states is sharded.
    pub const fn n_expert_shards(&self) -> u32 {
        self.shards_of(self.n_expert_holders())
    }
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_one(n: &u32) -> bool {
    *n == 1
}

const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_numbers_ranks_densely_and_back() {
        use Axis::{Context, Data, Pipeline, Tensor};
        for order in
            [[Tensor, Context, Data, Pipeline], [Pipeline, Data, Context, Tensor], [Tensor, Pipeline, Data, Context]]
        {
            let base = Layout::data_and_context(3, 2, Zero::Off, ContextExchange::Ring);
            let layout = Layout { tp: 4, pp: 5, order, ..base };
            let mut seen = vec![false; layout.n_ranks() as usize];
            for rank in 0..layout.n_ranks() {
                let position = layout.position(Rank(rank));
                assert_eq!(layout.rank(position), Rank(rank));
                seen[layout.rank(position).index()] = true;
            }
            assert!(seen.iter().all(|seen| *seen));
        }
    }

    #[test]
    fn copies_of_the_states_divide_the_ranks_that_hold_them() {
        let base = Layout::data_and_context(8, 2, Zero::OptimizerStates, ContextExchange::Ring);
        let shards = |replicate, ep| {
            let layout = Layout { replicate, ep, ..base };
            (layout.n_shards(), layout.n_expert_shards())
        };
        assert_eq!(shards(1, 4), (16, 4));
        assert_eq!(shards(2, 4), (8, 2));
        // Two holders of experts have four copies no more than one holder has two.
        assert_eq!(shards(4, 8), (4, 2));
    }

    #[test]
    fn expert_groups_cover_tensor_then_context_then_data() {
        let base = Layout::data_and_context(8, 2, Zero::Off, ContextExchange::Ring);
        let of = |ep, expert_tp| Layout { tp: 4, ep, expert_tp, ..base }.expert_span();
        assert_eq!(of(8, 1), Some(ExpertSpan { tp: 4, cp: 2, dp: 1 }));
        assert_eq!(of(8, 2), Some(ExpertSpan { tp: 2, cp: 2, dp: 2 }));
        assert_eq!(of(8, 4), Some(ExpertSpan { tp: 1, cp: 2, dp: 4 }));
        assert_eq!(of(8, 3), None);
        // Without groups of experts nothing is cut.
        assert_eq!(of(1, 8), Some(ExpertSpan { tp: 1, cp: 1, dp: 1 }));
        assert_eq!(of(6, 1), None);
    }
}
