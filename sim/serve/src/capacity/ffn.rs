//! Memory of GPUs that hold routed experts and nothing else. Units: bytes per GPU.

use engine::layer::reached;
use engine::verdict::Refused;
use hw::Bytes;

use super::{padding_bytes, redundant_bytes, room};
use crate::memory_rule::MemoryRule;
use crate::step_cost::{FfnSide, ReplicaConfig};

/// Routed experts of so many layers on one of the GPUs that share them, each once.
pub(super) fn routed_bytes(deployment: &ReplicaConfig<'_>, n_layers: u64) -> u64 {
    let n_routed = deployment.model.experts.map_or(0, |experts| experts.n_routed);
    let parameters = hw::real(n_layers * n_routed * deployment.model.expert_parameters());
    hw::whole(deployment.formats.experts.weight_bytes(parameters / f64::from(deployment.expert_degree)))
}

/// Weights of a GPU that holds experts alone; nothing where there is none.
pub(super) fn weights(deployment: &ReplicaConfig<'_>) -> Bytes {
    if deployment.ffn.is_none() {
        return Bytes(0);
    }
    let n_layers = deployment.stages().iter().map(|stage| u64::from(stage.n_expert)).sum();
    let more = redundant_bytes(deployment, n_layers) + padding_bytes(deployment, n_layers);
    Bytes(routed_bytes(deployment, n_layers) + more)
}

/// What such a GPU holds of a micro-batch of an iteration of so many tokens of every group that attends: tokens that come, and rows of their experts as in
/// `activations`.
pub fn expert_activations(deployment: &ReplicaConfig<'_>, tokens: u64) -> Bytes {
    let (Some(ffn), Some(experts)) = (deployment.ffn, deployment.model.experts) else { return Bytes(0) };
    let of_all = hw::real(tokens.div_ceil(ffn.micro_batches.into()) * u64::from(ffn.attention_ranks));
    let each = of_all / f64::from(ffn.gpus);
    let into = if deployment.model.gated { 2 * experts.intermediate } else { experts.intermediate };
    let wide = experts.latent.unwrap_or(deployment.model.hidden);
    let rows = each * hw::real(experts.top_k) * hw::real(into.max(wide) + experts.intermediate);
    let come = each * reached(experts, ffn.gpus) * hw::real(wide);
    Bytes::from_f64((rows + come) * hw::real(deployment.dtype.bytes()))
}

/// Whether experts with GPUs of their own fit there by an engine's rule, with what `by_rule` asks for.
///
/// # Errors
/// A sentence with the figures, and how many GPUs would hold them.
pub fn experts_fit(deployment: &ReplicaConfig<'_>, rule: MemoryRule, taken: [Bytes; 3]) -> Result<(), Refused> {
    let Some(ffn) = deployment.ffn else { return Ok(()) };
    let (room, of_what) = room(&deployment.cluster.gpu, rule, taken);
    let needs = weights(deployment);
    if needs.0 <= room {
        return Ok(());
    }
    let n_kept = deployment.model.experts.map_or(0, |experts| deployment.replicas_of(experts));
    let mut divisors = (ffn.gpus + 1..=4096).filter(|gpus| n_kept.is_multiple_of((*gpus).into()));
    let fitting = divisors.find(|gpus| {
        let side = FfnSide { gpus: *gpus, ..ffn };
        weights(&ReplicaConfig { expert_degree: *gpus, ffn: Some(side), ..deployment.clone() }).0 <= room
    });
    let advice =
        fitting.map_or_else(|| "larger GPUs are needed".to_owned(), |gpus| format!("`ffn.gpus = {gpus}` would fit"));
    let [gib, of_room] = [needs.as_f64(), hw::real(room)].map(|bytes| bytes / hw::GIB);
    let name = &deployment.model.name;
    Err(Refused::out_of_memory(format!(
        "`{name}` needs {gib:.1} GiB of experts on each GPU of `ffn`, and {of_what} {of_room:.1} GiB; {advice}"
    )))
}
