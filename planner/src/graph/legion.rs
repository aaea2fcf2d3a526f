//! Which rows and features of a graph each GPU caches: Legion (arXiv:2305.16588) and the systems that it is compared with.
//!
//! A policy says who shares a cache, by what vertices are ranked and how training vertices are cut. What an epoch reads comes from sampling one
//! epoch beforehand, or from degrees alone. The plan is the split of memory; its objective counts 64-byte transactions over PCIe, the
//! bound is that memory filled by transactions per byte. Steps then play on the engine, with switches shared and NVLink beside.

mod groups;
mod told;

use engine::CostModel;
use graph::cache::Hotness;
use graph::legion::{Point, best, bound, point, sweep};
use graph::sample::Sampling;
use graph::step::{self, GpuStep, Network, Split};

use engine::verdict::Refused;

use super::judged::{Costs, Judged, N_STEPS, Times, play, size};
use super::{Known, Machine};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};
use groups::Group;

/// How memory is split between rows and features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing is cached.
    Nothing,
    /// Features alone.
    Features,
    /// By the α with the fewest transactions.
    Swept,
    /// By the α with the shortest epoch, as played.
    Timed,
    /// Some GPUs hold all rows and sample, the others cache features and train.
    Apart,
}

impl Memory {
    /// Whether rows and features share memory by an α.
    const fn is_split(self) -> bool {
        matches!(self, Self::Swept | Self::Timed)
    }
}

/// Who shares a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Nobody: each GPU caches what it reads itself.
    Own,
    /// Nobody: every GPU caches the same.
    Same,
    /// The GPUs of an NVLink clique.
    Clique,
}

/// How training vertices are cut over GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// By hash.
    Hash,
    /// With few edges between cliques, by hash inside.
    Cliques,
    /// With few edges between GPUs.
    Gpus,
    /// As between cliques, but by METIS.
    Metis,
}

/// A way to cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What memory holds.
    pub memory: Memory,
    /// Who shares it.
    pub share: Share,
    /// By what vertices are ranked.
    pub hotness: Hotness,
    /// How training vertices are cut.
    pub cut: Cut,
}

const LEGION: Policy = Policy {
    name: "legion",
    about: "Legion: rows and features by the best split, ranked by sampling, shared in NVLink cliques, cut between them",
    memory: Memory::Swept,
    share: Share::Clique,
    hotness: Hotness::Sampled,
    cut: Cut::Cliques,
};

/// Every policy.
pub const POLICIES: [Policy; 10] = [
    Policy {
        name: "dgl-uva",
        about: "DGL with UVA: no cache, GPUs sample and gather over PCIe",
        memory: Memory::Nothing,
        share: Share::Own,
        hotness: Hotness::Degree,
        cut: Cut::Hash,
    },
    Policy {
        name: "pagraph",
        about: "PaGraph: each GPU caches features of its own part by degree, parts with few edges between them",
        memory: Memory::Features,
        share: Share::Own,
        hotness: Hotness::Degree,
        cut: Cut::Gpus,
    },
    Policy {
        name: "gnnlab",
        about: "GNNLab: some GPUs hold all rows and sample, the others cache the same features, ranked by sampling",
        memory: Memory::Apart,
        share: Share::Same,
        hotness: Hotness::Sampled,
        cut: Cut::Hash,
    },
    Policy {
        name: "quiver",
        about: "Quiver: features by degree, shared in NVLink cliques; rows stay on the host",
        memory: Memory::Features,
        share: Share::Clique,
        hotness: Hotness::Degree,
        cut: Cut::Hash,
    },
    LEGION,
    Policy {
        name: "legion-timed",
        about: "Legion with the split whose epoch is the shortest as played, not the one with the fewest transactions",
        memory: Memory::Timed,
        ..LEGION
    },
    Policy {
        name: "legion-features",
        about: "Legion with features alone in the cache",
        memory: Memory::Features,
        ..LEGION
    },
    Policy {
        name: "legion-replicated",
        about: "Legion with the same cache on every GPU",
        share: Share::Same,
        ..LEGION
    },
    Policy {
        name: "legion-metis",
        about: "Legion with the cut between cliques by METIS; the program is built with `--features metis` for it",
        cut: Cut::Metis,
        ..LEGION
    },
    Policy {
        name: "legion-hashed",
        about: "Legion with training vertices cut by hash, not between cliques",
        cut: Cut::Hash,
        ..LEGION
    },
];

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The graph.
    pub known: Known,
    /// The network.
    pub network: Network,
    /// How neighbours are sampled.
    pub sampling: Sampling,
    /// Machine.
    pub machine: Machine,
    /// Bytes of a GPU for caches.
    pub cache_bytes: f64,
    /// Whether a second epoch is sampled to count what the caches leave.
    pub replay: bool,
}

/// Splits of memory, one for each group of GPUs that share a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Caches {
    /// GPUs of each group and what they cache.
    pub groups: Vec<(Vec<u32>, Point)>,
    /// GPUs that only sample.
    pub n_samplers: u32,
}

/// A split with its steps and times.
struct Timed {
    caches: Caches,
    steps: Vec<GpuStep>,
    times: Times,
    n_steps: f64,
    /// The split that came second, with the seconds of its epoch, where splits are chosen by them.
    second: Option<(Caches, f64)>,
}

impl Timed {
    /// Seconds of an epoch, as expected.
    fn epoch_s(&self) -> f64 {
        self.times.epoch_s(self.n_steps)[1]
    }
}

/// Decides and plays a policy.
pub fn judged(asked: &Asked, policy: &Policy, costs: &Costs<'_>) -> Judged<Caches> {
    let cost = costs(&asked.machine.cluster);
    let groups = match groups::of(asked, policy, asked.machine.cluster.nvlink_island) {
        Ok(groups) => groups,
        Err(why) => return Judged::refused(Refused::infeasible(why)),
    };
    let rows_bytes = groups[0].demand.rows.bytes();
    if policy.memory == Memory::Apart && rows_bytes > asked.cache_bytes {
        let why =
            format!("all rows take {}, a GPU that samples has {} for them", size(rows_bytes), size(asked.cache_bytes));
        return Judged::refused(Refused::out_of_memory(why));
    }
    if policy.memory == Memory::Apart && asked.machine.cluster.n_gpus() < 2 {
        return Judged::refused(Refused::infeasible("one GPU cannot sample for others"));
    }
    let timed = timed(asked, policy, &groups, cost.as_ref());
    let batch = timed.steps.iter().map(|own| step::batch_bytes(&asked.network, own)).fold(0.0, f64::max);
    let free = hw::real(asked.machine.memory_bytes) - asked.cache_bytes;
    if batch > free {
        let why = format!(
            "a batch takes {}, {} are left beside the cache; lower `sampling.batch` or `cache.gib`",
            size(batch),
            size(free.max(0.0))
        );
        return Judged::refused(Refused::out_of_memory(why));
    }
    let decision = decided(asked, policy, &groups, &timed);
    told::row(asked, policy, &groups, timed, decision, costs)
}

/// The policy's caches, timed; of several numbers of GPUs that sample, or of several splits, those with the shortest epoch.
fn timed(asked: &Asked, policy: &Policy, groups: &[Group], cost: &dyn CostModel) -> Timed {
    let plain: Vec<Point> = groups.iter().map(|group| chosen(policy, group, asked.cache_bytes)).collect();
    let n_gpus = asked.machine.cluster.n_gpus();
    let samplers = if policy.memory == Memory::Apart { 1..n_gpus } else { 0..1 };
    let mut ways: Vec<Timed> =
        samplers.map(|n_samplers| laid(asked, policy, groups, &plain, n_samplers, cost)).collect();
    if policy.memory == Memory::Timed {
        for tenth in 0..=10 {
            let alpha = f64::from(tenth) / 10.0;
            let at = |group: &Group| point(&group.demand, budget(policy, group, asked.cache_bytes), alpha);
            let points: Vec<Point> = groups.iter().map(at).collect();
            if points != plain {
                ways.push(laid(asked, policy, groups, &points, 0, cost));
            }
        }
    }
    // Of equals the first: the fewest transactions, the fewest GPUs that only sample.
    ways.sort_by(|a, b| a.epoch_s().total_cmp(&b.epoch_s()));
    let mut ways = ways.into_iter();
    let best = ways.next().expect("there is a way");
    let second = ways.next().filter(|_| policy.memory == Memory::Timed).map(|way| (way.caches.clone(), way.epoch_s()));
    Timed { second, ..best }
}

/// Steps with given splits, played.
fn laid(
    asked: &Asked,
    policy: &Policy,
    groups: &[Group],
    points: &[Point],
    n_samplers: u32,
    cost: &dyn CostModel,
) -> Timed {
    let cluster = &asked.machine.cluster;
    let mut caches = Caches { groups: Vec::with_capacity(groups.len()), n_samplers };
    let mut steps = vec![GpuStep::default(); cluster.n_gpus() as usize];
    for (group, point) in groups.iter().zip(points) {
        let step = groups::step(asked, policy, group, point);
        group.gpus.iter().for_each(|gpu| steps[*gpu as usize] = step.clone());
        caches.groups.push((group.gpus.clone(), *point));
    }
    let split = if n_samplers == 0 { Split::Together } else { Split::Apart { n_samplers } };
    let graph = step::steps(cluster, asked.network, split, &steps, N_STEPS);
    let times = play(graph, &asked.machine, cost, N_STEPS);
    // Batches of all GPUs, over those that train; the GPU with most batches sets the steps.
    let n_steps = if n_samplers == 0 {
        groups.iter().map(|group| group.n_batches).fold(0.0, f64::max)
    } else {
        let all: f64 = groups.iter().map(|group| group.n_batches * hw::real(group.gpus.len() as u64)).sum();
        all / f64::from(cluster.n_gpus() - n_samplers)
    };
    Timed { caches, steps, times, n_steps, second: None }
}

/// Bytes of a group's cache.
fn budget(policy: &Policy, group: &Group, cache_bytes: f64) -> f64 {
    match policy.share {
        Share::Own | Share::Same => cache_bytes,
        Share::Clique => cache_bytes * hw::real(group.gpus.len() as u64),
    }
}

/// The split that a policy takes.
fn chosen(policy: &Policy, group: &Group, cache_bytes: f64) -> Point {
    let budget = budget(policy, group, cache_bytes);
    match policy.memory {
        Memory::Nothing => point(&group.demand, 0.0, 0.0),
        Memory::Features => point(&group.demand, budget, 0.0),
        Memory::Apart => {
            // Rows lie on the GPUs that sample, and cost no memory of those that train.
            let features = point(&group.demand, budget, 0.0);
            let rows = group.demand.rows.within(f64::INFINITY);
            Point { transactions: [0.0, features.transactions[1]], rows, ..features }
        }
        Memory::Swept | Memory::Timed => {
            let points = sweep(&group.demand, budget);
            points[best(&points)]
        }
    }
}

/// The split with its bound and the next best one.
fn decided(asked: &Asked, policy: &Policy, groups: &[Group], timed: &Timed) -> Decision<Caches> {
    if policy.memory == Memory::Timed {
        let other = timed.second.clone().map(|(plan, objective)| RunnerUp { plan, objective });
        return Decision::new(timed.caches.clone(), Aim::Seconds, timed.epoch_s())
            .limited(timed.times.binding.to_owned())
            .beside(other);
    }
    let objective: f64 = timed.caches.groups.iter().map(|(_, point)| point.sum()).sum();
    let least: f64 = match policy.memory {
        Memory::Apart => objective,
        _ => groups.iter().map(|group| bound(&group.demand, budget(policy, group, asked.cache_bytes))).sum(),
    };
    let status = if policy.memory == Memory::Swept { Status::Optimal } else { Status::Heuristic };
    let words = "the same memory filled by transactions per byte".to_owned();
    let decision = Decision::new(timed.caches.clone(), Aim::Transactions, objective)
        .bounded(Some(Bound { value: least.min(objective), limit: words }), status)
        .limited(timed.times.binding.to_owned());
    decision.beside(second(asked, policy, groups))
}

/// The best splits that are none of the answer's, where splits are chosen.
fn second(asked: &Asked, policy: &Policy, groups: &[Group]) -> Option<RunnerUp<Caches>> {
    if policy.memory != Memory::Swept {
        return None;
    }
    let mut found = Vec::with_capacity(groups.len());
    for group in groups {
        let mut points = sweep(&group.demand, budget(policy, group, asked.cache_bytes));
        points.remove(best(&points));
        found.push((group.gpus.clone(), points[best(&points)]));
    }
    let objective = found.iter().map(|(_, point)| point.sum()).sum();
    Some(RunnerUp { plan: Caches { groups: found, n_samplers: 0 }, objective })
}

#[cfg(test)]
mod tests;
