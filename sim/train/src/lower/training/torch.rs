//! What PyTorch does around the passes of its own modules, as torchtitan runs them: copies of sharded parameters, and context parallelism.
//! Units: bytes.
//!
//! Sources: pytorch/pytorch (`torch/distributed/fsdp/_fully_shard`, `torch/distributed/tensor/experimental/_attention.py`), pytorch/torchtitan
//! (`context_parallel_rotate_method`).

use hw::Rank;

use super::attention::{Attend, behind, key_value_bytes};
use super::torch_block::{GRADIENT_OVER_VALUE, block};
use super::{Builder, Ring, Share};
use crate::layout::Zero;
use crate::problem::Problem;
use crate::schedule::PassKind;
use crate::stage::Stage;
use engine::layer::{self, Accumulation, ShardedCopies};
use engine::task::{Collective, Ops, Pass, TaskId};

impl Builder<'_> {
    /// Keys and values of all ranks are gathered beside the first block alone (`context_parallel_rotate_method = "allgather"`); in backward their
    /// gradients go around in 32 bits, a hop behind the blocks.
    pub(super) fn torch_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        let (problem, pass, n_layers) = (frame.problem, frame.pass, frame.n_layers);
        let gather = move |builder: &mut Self, ring: &Ring, members: &[Rank]| {
            builder.collective(Collective::AllGather, key_value_bytes(problem, ring.tokens), members, n_layers)
        };
        let gathered = self.exchange(frame, gather, leads);
        let first = self.attend(frame, |share| block(problem, share, pass), &[]);
        let between = |share: &Share| {
            let mut ops = layer::attention(&problem.shard(), &share.local, 1, pass);
            ops.extend(layer::repeated(&block(problem, share, pass), share.ring.saturating_sub(2)));
            ops
        };
        self.attend(frame, between, &gathered);
        if pass == Pass::Forward {
            return behind(&gathered);
        }
        let shift = move |builder: &mut Self, ring: &Ring, members: &[Rank]| {
            let bytes = GRADIENT_OVER_VALUE * key_value_bytes(problem, ring.tokens) / u64::from(ring.count);
            builder.collective(Collective::RingShift, bytes, members, n_layers * (ring.count - 1))
        };
        behind(&self.exchange(frame, shift, &first))
    }
}

/// Copies that sharded modules make around their exchanges. A pipeline gathers and reduces once in a step, not in every pass; a forward that
/// runs again has its parameters from the backward around it.
pub(super) fn sharded_copies(problem: &Problem, stage: &Stage, kind: PassKind, accumulation: Accumulation) -> Ops {
    if !copies_shards(problem, stage, kind) {
        return Vec::new();
    }
    let (layout, shard) = (&problem.layout, problem.shard());
    let parameters = |stage: &Stage| {
        let (shared, experts) = engine::memory::stage_parameters(&shard, stage);
        shared + experts
    };
    let all = parameters(stage);
    // Backward finds embedding, head and the last layer as forward left them.
    let layers = Stage { first: false, last: false, ..*stage };
    let n_again = stage.n_layers() - u32::from(stage.last && stage.n_layers() > 0);
    let again = parameters(&layers) * f64::from(n_again) / f64::from(stage.n_layers().max(1));
    let (gathered, made) = if kind == PassKind::Forward { (all, 0.0) } else { (again, all) };
    // Frozen weights have no gradients.
    let made = if problem.execution.trains_weights() { made } else { 0.0 };
    let copied = ShardedCopies {
        gathered,
        parameter_bytes: [problem.held_bytes(), problem.gathered_bytes()],
        made,
        reduced_bytes: hw::real(problem.reduced_dtype().bytes()),
        accumulation,
        n_ranks: layout.n_shards(),
    };
    layer::sharded_copies(&shard, copied)
}

/// Launches around the exchanges of sharded modules.
pub(super) fn sharded_launches(problem: &Problem, stage: &Stage, kind: PassKind) -> u32 {
    if problem.execution.framework.torch().is_none() || !copies_shards(problem, stage, kind) {
        return 0;
    }
    let of = |with_experts| engine::launch::torch::of_sharded(&problem.shard(), with_experts, kind);
    stage.n_dense * of(false) + stage.n_expert * of(true)
}

fn copies_shards(problem: &Problem, stage: &Stage, kind: PassKind) -> bool {
    let layout = &problem.layout;
    if problem.uses_parameters_in_place() {
        return false;
    }
    layout.zero >= Zero::Parameters && layout.pp == 1 && !stage.is_repeated && kind != PassKind::Weight
}
