//! The actor in FSDP: what is sharded, what is computed again, and the loss.

use super::{actor, is_set};
use crate::flags::Flags;
use crate::job::Job;

/// Degree of Ulysses, where it stands today and where it stood (`actor/dp_actor.yaml`).
const CONTEXT: [&str; 2] = ["fsdp_config.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"];

/// Whether activations wait on the host.
const OFFLOAD: &str = "actor_rollout_ref.model.enable_activation_offload";

/// Reads the actor's keys.
pub(super) fn sharded(flags: &mut Flags<'_>, job: &mut Job) {
    let words = [("fsdp", 3_u32), ("fsdp2", 3)];
    let strategy = actor("strategy");
    let zero = if flags.find(&strategy).is_some() { flags.word(&strategy, &words).unwrap_or(3) } else { 3 };
    let is_kept = !is_set(flags, &actor("fsdp_config.reshard_after_forward"), true);
    let zero = if is_kept { 2 } else { zero };
    job.key(("parallel", "zero"), zero, "actor.strategy, actor.fsdp_config.reshard_after_forward");
    job.pytorch(flags, zero);
    if zero == 3 {
        loss(flags, job);
    }
    let is_checkpointed = is_set(flags, "actor_rollout_ref.model.enable_gradient_checkpointing", true);
    let recompute = if is_checkpointed { "full" } else { "none" };
    job.word(("training", "recompute"), recompute, "actor_rollout_ref.model.enable_gradient_checkpointing");
    // Layers but the last go there by a stream of their own (`verl/utils/activation_offload.py`).
    if is_set(flags, OFFLOAD, false) {
        job.key(("training", "offload_ratio"), 1, OFFLOAD);
    }
    let cp = CONTEXT.iter().find_map(|name| flags.count(&actor(name), 1..=100_000)).unwrap_or(1);
    job.degrees = [1, 1, cp];
    if cp > 1 {
        job.word(("parallel", "exchange"), "ulysses", "actor.ulysses_sequence_parallel_size");
    }
}

/// How log probabilities are computed. Logits have 16 bits, and flash-attn's kernel puts their gradient in their place. The division by the temperature
/// makes another one behind it in backward (`verl/workers/actor/dp_actor.py`, `verl/utils/torch_functional.py` @ b178a3cd56f5). So four bytes a logit are
/// held at most, as of a compiled loss. An entropy needs the logits besides, so nothing takes their place.
fn loss(flags: &mut Flags<'_>, job: &mut Job) {
    const FUSED: &str = "actor_rollout_ref.model.use_fused_kernels";
    let coefficient = actor("entropy_coeff");
    let has_entropy = flags.find(&coefficient).is_some() && flags.number(&coefficient).unwrap_or(0.0) != 0.0
        || is_set(flags, &actor("calculate_entropy"), false);
    if has_entropy && !is_set(flags, FUSED, false) {
        let name = if flags.find(&coefficient).is_some() { coefficient } else { actor("calculate_entropy") };
        let why = "the loss is taken as PyTorch's own kernels one by one, which hold more than a loss with an entropy";
        return flags.not_modelled(&name, why);
    }
    job.word(
        ("training", "loss"),
        "native",
        "16-bit logits and one gradient of them: flash-attn's kernel in place, / temperature",
    );
}
