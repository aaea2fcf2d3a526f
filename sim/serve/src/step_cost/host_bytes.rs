//! How many bytes of weights lie in host memory, and how much room that leaves (`step_cost/host_weights.rs`).

use engine::memory::stage_weight_bytes;
use engine::stage::Stage;
use hw::Bytes;

use super::ReplicaConfig;
use super::host_weights::{HostPart, HostWay, HostWeights};

/// Bytes that a GPU of a stage has in host memory.
pub fn kept(weights: HostWeights, deployment: &ReplicaConfig<'_>, stage: &Stage) -> Bytes {
    let [experts, rest] = held(deployment, stage);
    let all = Bytes::from_f64(if weights.part == HostPart::Experts { experts } else { experts + rest });
    match weights.way {
        HostWay::InPlace(bytes) | HostWay::Copied(bytes) => bytes.min(all),
        HostWay::Ahead { .. } => Bytes(all.0 / u64::from(stage.n_layers()).max(1) * weights.layers(stage).len() as u64),
    }
}

/// Bytes by which a GPU of a stage has more room: what it keeps, less the buffers for copies. What is copied has one for a layer.
pub fn saved(weights: HostWeights, deployment: &ReplicaConfig<'_>, stage: &Stage) -> Bytes {
    Bytes(kept(weights, deployment, stage).0.saturating_sub(buffers(weights, deployment, stage).0))
}

/// Bytes of the buffers of a GPU for copies.
pub fn buffers(weights: HostWeights, deployment: &ReplicaConfig<'_>, stage: &Stage) -> Bytes {
    let of_layer = |n: usize| kept(weights, deployment, stage).0 / (n as u64).max(1);
    Bytes(match weights.way {
        HostWay::InPlace(_) => 0,
        HostWay::Copied(_) => of_layer(stage.n_layers() as usize),
        HostWay::Ahead { ahead, .. } => of_layer(weights.layers(stage).len()) * u64::from(ahead),
    })
}

/// Bytes of the layers of a stage on a GPU: of routed experts, and of the rest.
pub(super) fn held(deployment: &ReplicaConfig<'_>, stage: &Stage) -> [f64; 2] {
    let shard = deployment.shard();
    let inside = Stage { first: false, last: false, ..*stage };
    let all = stage_weight_bytes(&shard, &inside);
    let Some(experts) = deployment.model.experts else { return [0.0, all] };
    let n = u64::from(stage.n_expert) * experts.n_routed * deployment.model.expert_parameters();
    let cut = f64::from(shard.ep) * f64::from(shard.expert_tp);
    let routed = shard.formats.experts.weight_bytes(hw::real(n) / cut).min(all);
    [routed, all - routed]
}
