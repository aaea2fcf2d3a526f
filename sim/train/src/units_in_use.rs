//! Whole parameters and gradients of the layers that a rank works on, where it keeps shares of them (ZeRO 2 and 3, Megatron FSDP, DeepSpeed).
//!
//! A layer is a unit: the next one is gathered beside the one that runs, and the gradients of the last one are scattered beside those of the one that
//! runs. Embedding and head belong to the unit around all layers, which is whole from its first to its last use. The head's gradient is scattered before
//! the embedding's comes. Sources: NVIDIA/Megatron-LM @ d98e8a64ddf3 (`megatron/core/distributed/fsdp`: double buffering), ZeRO (arXiv:1910.02054,
//! section 5). Units: bytes.
//!
//! PyTorch's own modules have lists of their own (`lower/training/sharded.rs`, `pipeline_states.rs`). Of packed weights one matrix is wide at a time.

use engine::memory::{around_layers, stage_parameters};
use hw::Bytes;

use crate::layout::Zero;
use crate::problem::Problem;
use crate::stage::Stage;

/// Units in use: one is computed, one is exchanged.
const IN_USE: u32 = 2;

/// What a rank that holds these stages needs besides its shares.
pub(crate) fn of(problem: &Problem, held: &[Stage]) -> Bytes {
    let layout = &problem.layout;
    if problem.execution.framework.torch().is_some() || !problem.shards_gradients() {
        return Bytes(engine::memory::widened_matrix(&problem.shard()));
    }
    let cut = |n_shards: u32| if n_shards > 1 { 1.0 } else { 0.0 };
    let [shared, experts] = [layout.n_shards(), layout.n_expert_shards()].map(cut);
    let units = largest_units(problem, held, [shared, experts]);
    let tables = held.iter().map(|stage| around_layers(&problem.shard(), stage));
    let [first, last] = tables.fold([0.0; 2], |all, one| [all[0] + shared * one[0], all[1] + shared * one[1]]);
    let gathered = if layout.zero >= Zero::Parameters { problem.gathered_bytes() } else { 0.0 };
    let is_trained = problem.execution.trains_weights();
    let gradient = if is_trained { hw::real(problem.execution.gradient_dtype.bytes()) } else { 0.0 };
    Bytes::from_f64((units + first + last) * gathered + (units + first.max(last)) * gradient)
}

/// Parameters of the largest layers that are in use together, each part times its weight.
fn largest_units(problem: &Problem, held: &[Stage], [shared, experts]: [f64; 2]) -> f64 {
    let elements = |n_dense: u32, n_expert: u32| {
        let parts = stage_parameters(&problem.shard(), &Stage { n_dense, n_expert, ..Stage::default() });
        shared * parts.0 + experts * parts.1
    };
    let n_dense: u32 = held.iter().map(|stage| stage.n_dense).sum();
    let n_expert: u32 = held.iter().map(|stage| stage.n_expert).sum();
    let of_experts = n_expert.min(IN_USE);
    elements(n_dense.min(IN_USE - of_experts), of_experts)
}
