//! What it takes to change from one arrangement to another without a restart.
//!
//! A device lacks what its new stage needs and its old one did not hold: slices of layers (of embedding and head too), with their parameters and
//! their share of the optimizer's states. Some device that had the slice sends it: one of the same node first, then the one that sends
//! least so far. All transfers run together, so the busiest port sets the time: max over ports of bytes / bandwidth, and a start-up per
//! message, of which one carries a few layers. Planning itself runs on the host while training goes on and costs no time.

use std::collections::BTreeMap;

use hw::Rank;
use train::Problem;

use super::arrangement::{Arrangement, Stage};

/// Layers that a message carries (free parameter: the authors pack several).
const LAYERS_PER_MESSAGE: u64 = 4;
/// Bytes of a parameter's 32-bit copy and its two Adam moments, cut over the pipelines.
const OPTIMIZER_BYTES: f64 = 12.0;

/// Cost of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Migration {
    /// Bytes that devices receive.
    pub(super) bytes: f64,
    /// Seconds in which nothing is computed.
    pub(super) seconds: f64,
}

/// What a device holds: parts from..upto of the model, and its cut of them in units of a full group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slices {
    from: u64,
    upto: u64,
    cut: (u32, u32),
}

/// Parts of the model in a row: the embedding, every layer, the head.
fn slices(arrangement: &Arrangement, n_layers: u64, tp: u32) -> BTreeMap<Rank, Slices> {
    let mut of = BTreeMap::new();
    for pipeline in &arrangement.pipelines {
        for (at, stage) in pipeline.stages.iter().enumerate() {
            let Stage { ranks, from_layer, layers } = stage;
            let from = if at == 0 { 0 } else { from_layer + 1 };
            let upto = if at + 1 == pipeline.stages.len() { n_layers + 2 } else { from_layer + layers + 1 };
            let width = tp / u32::try_from(ranks.len()).expect("ranks fit u32").min(tp);
            for (index, &rank) in (0_u32..).zip(ranks) {
                of.insert(rank, Slices { from, upto, cut: (index * width, (index + 1) * width) });
            }
        }
    }
    of
}

/// Traffic of one device: by the network and inside its node, in and out; messages in.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    bytes: [[f64; 2]; 2],
    messages: u64,
}

/// The change from `old` to `new`.
pub(super) fn migration(problem: &Problem, old: &Arrangement, new: &Arrangement) -> Migration {
    let (n_layers, tp) = (problem.model.n_layers, problem.layout.tp);
    let (before, after) = (slices(old, n_layers, tp), slices(new, n_layers, tp));
    let weights = part_bytes(problem, old.pipelines.len());
    let cluster = &problem.cluster;
    let mut ports: BTreeMap<Rank, Port> = BTreeMap::new();
    let mut total = 0.0;
    // Who had each part, in rank order.
    let mut owners: Vec<Vec<(Rank, (u32, u32))>> = vec![Vec::new(); weights.len()];
    for (&rank, held) in &before {
        (held.from..held.upto).for_each(|part| owners[part as usize].push((rank, held.cut)));
    }
    for (&rank, wanted) in &after {
        let mut from_whom: BTreeMap<Rank, u64> = BTreeMap::new();
        for part in wanted.from..wanted.upto {
            for unit in wanted.cut.0..wanted.cut.1 {
                let has = |(_, cut): &&(Rank, (u32, u32))| (cut.0..cut.1).contains(&unit);
                let all: Vec<Rank> = owners[part as usize].iter().filter(has).map(|(owner, _)| *owner).collect();
                if all.is_empty() || all.contains(&rank) {
                    continue;
                }
                let is_far = |owner: Rank| cluster.domain_of(owner) != cluster.domain_of(rank);
                let sent =
                    |owner: Rank| ports.get(&owner).map_or(0.0, |port| port.bytes[usize::from(is_far(owner))][1]);
                let key = |owner: &Rank| (is_far(*owner), sent(*owner));
                let best = |a: &Rank, b: &Rank| key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1));
                let owner = all.into_iter().min_by(best).expect("an owner was found");
                let (bytes, far) = (weights[part as usize] / f64::from(tp), usize::from(is_far(owner)));
                ports.entry(owner).or_default().bytes[far][1] += bytes;
                ports.entry(rank).or_default().bytes[far][0] += bytes;
                *from_whom.entry(owner).or_default() += 1;
                total += bytes;
            }
        }
        if let Some(port) = ports.get_mut(&rank) {
            let units = u64::from(wanted.cut.1 - wanted.cut.0).max(1);
            port.messages = from_whom.values().map(|n| n.div_ceil(units * LAYERS_PER_MESSAGE)).sum();
        }
    }
    let bandwidth = [cluster.gpu.intra_node_bandwidth.get(), cluster.nic_bandwidth.get()];
    let seconds = |port: &Port| {
        let links = port.bytes.iter().zip(bandwidth).map(|(bytes, rate)| bytes[0].max(bytes[1]) / rate);
        links.fold(0.0, f64::max) + hw::real(port.messages) * cluster.inter_node_latency.get()
    };
    Migration { bytes: total, seconds: ports.values().map(seconds).fold(0.0, f64::max) }
}

/// Bytes of every part of the model: parameters and a pipeline's share of the optimizer's states.
fn part_bytes(problem: &Problem, n_pipelines: usize) -> Vec<f64> {
    let whole = train::lower::training::mixed::shaped(problem, train::plan::PipelineShape { tp: 1, pp: 1 }, 1);
    let share = OPTIMIZER_BYTES / hw::real((n_pipelines as u64).max(1));
    let each = hw::real(problem.dtype.bytes()) + share;
    let bytes = |n_layers, first, last| {
        let held = super::costs::stage(problem, n_layers, first, last);
        let (shared, experts) = engine::memory::stage_parameters(&whole.shard(), &held);
        (shared + experts) * each
    };
    let layers = (0..problem.model.n_layers).map(|_| bytes(1, false, false));
    std::iter::once(bytes(0, true, false)).chain(layers).chain([bytes(0, false, true)]).collect()
}
