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

#[cfg(test)]
mod tests {
    use engine::model::Model;
    use hw::Cluster;

    use super::*;

    fn machine() -> (Model, Cluster) {
        let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
        (engine::model::embedded("mixtral-8x22b").expect("embedded"), hw::catalog::cluster(&gpu, 4, 8))
    }

    fn config<'a>((model, cluster): &'a (Model, Cluster), gpus: u32) -> ReplicaConfig<'a> {
        let ffn = FfnSide { gpus, attention_ranks: 4, micro_batches: 2 };
        ReplicaConfig { expert_degree: gpus, ffn: Some(ffn), ..ReplicaConfig::new(model, cluster, 2) }
    }

    #[test]
    fn both_sides_hold_the_model_once_and_experts_leave_keys_alone() {
        let machine = machine();
        let experts = hw::real(56 * 8 * machine.0.expert_parameters() * 2);
        let shared = 2.0 * hw::real(machine.0.n_parameters()) - experts;
        let rooms = [1, 2, 4, 8].map(|gpus| {
            let config = config(&machine, gpus);
            let attending = super::super::of(&config, 0.9, Bytes::ZERO).expect("it fits");
            assert!((attending.weights.as_f64() * 2.0 / shared - 1.0).abs() < 1e-3, "{attending:?}");
            assert!((weights(&config).as_f64() * f64::from(gpus) / experts - 1.0).abs() < 1e-6);
            assert_eq!(attending.n_ranks, 4);
            attending.kv
        });
        assert!(rooms.iter().all(|room| *room == rooms[0]), "{rooms:?}");
    }

    #[test]
    fn who_has_no_room_for_its_experts_is_told_how_many_gpus_would_do() {
        let machine = machine();
        let told = |gpus| experts_fit(&config(&machine, gpus), MemoryRule::OfDevice(0.9), [Bytes::ZERO; 3]);
        // 252 GiB of experts: 118 GiB of a card are there for a quarter of them, and not for a half.
        let why = told(1).expect_err("too many for one GPU").why;
        assert!(why.contains("252.0 GiB of experts on each GPU of `ffn`") && why.contains("`ffn.gpus = 4`"), "{why}");
        assert_eq!(told(4), Ok(()));
    }
}
