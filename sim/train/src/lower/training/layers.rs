//! Operations of the layers of a stage, whatever pass they are in, and what they take.

use engine::layer;
use engine::shard::ExpertLoad;
use engine::task::{Ops, PassKind};

use crate::problem::Problem;
use crate::stage::Stage;

/// Seconds of forward, input and weight gradients: of the device, and of the host that launches, with what the device waits for besides.
/// The host's of weight gradients are what a whole backward launches more than one of inputs.
pub(super) type Times = [[f64; 3]; 2];

/// Both together.
pub(super) fn plus(a: Times, b: Times) -> Times {
    std::array::from_fn(|of| std::array::from_fn(|pass| a[of][pass] + b[of][pass]))
}

/// What follows attention in all layers of a stage.
pub(crate) fn after_attention(problem: &Problem, load: ExpertLoad, stage: &Stage, tokens: u64, kind: PassKind) -> Ops {
    let shard = problem.shard();
    let dense = if stage.is_repeated && shard.framework.torch().is_some() {
        layer::read_by_backward(&shard, tokens)
    } else {
        layer::after_attention(&shard, tokens, kind, None)
    };
    let mut ops = layer::repeated(&dense, stage.n_dense);
    if stage.n_expert > 0 {
        let experts = layer::after_attention(&shard, tokens, kind, Some(&load));
        ops.extend(layer::repeated(&experts, stage.n_expert));
    }
    ops
}

/// GEMM of the weight gradients of some layers, and of the head where the piece has it.
pub(super) fn weight_ops(problem: &Problem, load: ExpertLoad, piece: &Stage, tokens: u64) -> Ops {
    if !problem.execution.trains_weights() {
        return Vec::new();
    }
    let mut ops = if piece.last { layer::head(&problem.shard(), tokens, PassKind::Weight) } else { Vec::new() };
    let before = layer::before_attention(&problem.shard(), tokens, PassKind::Weight);
    ops.extend(layer::repeated(&before, piece.n_layers()));
    ops.extend(after_attention(problem, load, piece, tokens, PassKind::Weight));
    ops
}

/// The layer that leads the backward of a piece.
pub(super) const fn one_layer(piece: &Stage) -> Stage {
    let expert = piece.n_expert > 0;
    let dense = !expert && piece.n_dense > 0;
    let (n_dense, n_expert) = (dense as u32, expert as u32);
    Stage { n_dense, n_expert, before: piece.before, ..Stage::NONE }
}

/// The others.
pub(super) const fn all_but_one_layer(piece: &Stage) -> Stage {
    let one = one_layer(piece);
    Stage { n_dense: piece.n_dense - one.n_dense, n_expert: piece.n_expert - one.n_expert, ..one }
}
