//! GPUs that share a cache and what they read of the graph in an epoch, sampled or expected.

use graph::Csr;
use graph::cache::{self, Epochs, Hotness, LINE_BYTES, Ranked, feature_bytes, feature_lines, held_vertices, row_bytes};
use graph::distribution;
use graph::legion::{Demand, Point, place};
use graph::partition;
use graph::partition::multilevel::{NoPartition, multilevel};
use graph::sample::{Sampling, Visits, batches, epoch_stream, visits};
use graph::step::GpuStep;
use graph::traffic::{Counted, Owner, Owners, replay};

use super::{Asked, Cut, Policy, Share};
use crate::graph::Known;

/// Numbers of the epochs that rank vertices, that count what they save, and that is replayed.
const RANKING: u32 = 0;
const COUNTING: u32 = 1;
const REPLAYED: u32 = 2;

/// GPUs that share a cache.
pub(super) struct Group {
    /// Which.
    pub(super) gpus: Vec<u32>,
    /// What they read.
    pub(super) demand: Demand,
    /// Batches of the GPU that has most.
    pub(super) n_batches: f64,
    /// Batches of all of them.
    n_all_batches: f64,
    n_vertices: Vec<f64>,
    n_picks: Vec<f64>,
    /// What each GPU visits, and its training vertices, where the graph is there.
    own: Vec<(Epochs, Vec<u32>)>,
}

/// Groups of a policy on a machine with cliques of this size, each with its demand.
///
/// # Errors
/// When no partition is to be had.
pub(super) fn of(asked: &Asked, policy: &Policy, clique: u32) -> Result<Vec<Group>, NoPartition> {
    let n_gpus = asked.machine.cluster.n_gpus();
    let size = match policy.share {
        Share::Own => 1,
        Share::Same => n_gpus,
        Share::Clique => clique,
    };
    let groups = (0..n_gpus).step_by(size as usize).map(|first| (first..first + size).collect::<Vec<u32>>());
    match &asked.known {
        Known::Whole { graph, train, .. } => {
            let seeds = cut(graph, train, policy.cut, n_gpus, clique)?;
            Ok(groups.map(|gpus| sampled(asked, policy, graph, &seeds, gpus)).collect())
        }
        Known::Degrees { .. } if policy.cut == Cut::Metis => Err(NoPartition::NoEdges),
        Known::Degrees { degrees, n_train } => {
            let found = distribution::expected(degrees, &asked.sampling, *n_train, n_train / f64::from(n_gpus));
            Ok(groups.map(|gpus| expected(asked, policy, &found, gpus)).collect())
        }
    }
}

/// Training vertices of every GPU.
fn cut(graph: &Csr, train: &[u32], cut: Cut, n_gpus: u32, clique: u32) -> Result<Vec<Vec<u32>>, NoPartition> {
    let n_parts = match cut {
        Cut::Hash => 1,
        Cut::Cliques | Cut::Metis => n_gpus / clique,
        Cut::Gpus => n_gpus,
    };
    let parts = match cut {
        _ if n_parts == 1 => vec![0; graph.n_vertices() as usize],
        Cut::Metis => multilevel(graph, n_parts)?,
        Cut::Hash | Cut::Cliques | Cut::Gpus => partition::streamed(graph, n_parts),
    };
    let mut seeds = vec![Vec::new(); n_gpus as usize];
    let in_part = n_gpus / n_parts;
    for (part, vertices) in (0..).zip(evened(train, &parts, n_parts)) {
        for vertex in vertices {
            seeds[(part * in_part + partition::hash(vertex, in_part)) as usize].push(vertex);
        }
    }
    Ok(seeds)
}

/// Training vertices of every part. All parts take as many steps, so those that one has too many of go to those with too few.
fn evened(train: &[u32], parts: &[u32], n_parts: u32) -> Vec<Vec<u32>> {
    let mut found = vec![Vec::new(); n_parts as usize];
    train.iter().for_each(|vertex| found[parts[*vertex as usize] as usize].push(*vertex));
    let share = train.len().div_ceil(n_parts as usize);
    let mut spare = Vec::new();
    for vertices in &mut found {
        spare.extend(vertices.drain(share.min(vertices.len())..));
    }
    for vertices in &mut found {
        let n = spare.len().min(share - vertices.len());
        vertices.extend(spare.drain(spare.len() - n..));
    }
    assert!(spare.is_empty(), "every training vertex has a part");
    found
}

fn sampled(asked: &Asked, policy: &Policy, graph: &Csr, seeds: &[Vec<u32>], gpus: Vec<u32>) -> Group {
    let sampling = &asked.sampling;
    let mut own = Vec::with_capacity(gpus.len());
    for &gpu in &gpus {
        let train = seeds[gpu as usize].clone();
        let epoch = |number: u32| {
            visits(graph, &batches(&train, sampling, number, gpu), sampling, &epoch_stream(sampling, number, gpu))
        };
        let counting = epoch(COUNTING);
        let ranking = if policy.hotness == Hotness::Sampled { epoch(RANKING) } else { counting.clone() };
        own.push((Epochs { ranking, counting }, train));
    }
    let gpus_epochs: Vec<&Epochs> = own.iter().map(|(epochs, _)| epochs).collect();
    let rows = Ranked::new(&cache::row_items(graph, &gpus_epochs, sampling, policy.hotness));
    let features = Ranked::new(&cache::feature_items(graph, &gpus_epochs, asked.network.width, policy.hotness));
    let all: Vec<&Visits> = gpus_epochs.iter().map(|epochs| &epochs.counting).collect();
    let n_hops = sampling.fan_out.len();
    let n_all_batches = hw::real(all.iter().map(|visits| visits.n_batches).sum::<u64>().max(1));
    let n_vertices = (0..=n_hops).map(|hop| total(&all, |own| own.n_vertices[hop]) / n_all_batches).collect();
    let n_picks = (0..n_hops).map(|hop| total(&all, |own| own.n_picks[hop]) / n_all_batches).collect();
    let n_batches = hw::real(all.iter().map(|visits| visits.n_batches).max().unwrap_or(0));
    Group { gpus, demand: Demand { rows, features }, n_batches, n_all_batches, n_vertices, n_picks, own }
}

fn total(all: &[&Visits], count: impl Fn(&Visits) -> u64) -> f64 {
    hw::real(all.iter().map(|own| count(own)).sum())
}

fn expected(asked: &Asked, policy: &Policy, found: &distribution::Expected, gpus: Vec<u32>) -> Group {
    let n = hw::real(gpus.len() as u64);
    let rows = distribution::row_items(found, &asked.sampling, n, policy.hotness);
    let features = distribution::feature_items(found, asked.network.width, n, policy.hotness);
    Group {
        gpus,
        demand: Demand { rows: Ranked::new(&rows), features: Ranked::new(&features) },
        n_batches: found.n_batches,
        n_all_batches: found.n_batches * n,
        n_vertices: found.n_vertices.clone(),
        n_picks: found.n_picks.clone(),
        own: Vec::new(),
    }
}

/// What a GPU of a group does for a batch.
pub(super) fn step(asked: &Asked, policy: &Policy, group: &Group, point: &Point) -> GpuStep {
    let n_all = group.n_all_batches;
    let features_hit = point.features.saved / feature_lines(asked.network.width) / n_all;
    let width_bytes = hw::real(feature_bytes(asked.network.width));
    let hit_bytes = point.rows.saved / n_all * hw::real(LINE_BYTES) + features_hit * width_bytes;
    // Vertices of a shared cache lie on any of the clique's GPUs, so a GPU finds its share of the hits at home.
    let home = if policy.share == Share::Clique { 1.0 / hw::real(group.gpus.len() as u64) } else { 1.0 };
    let gathered = group.n_vertices[group.n_vertices.len() - 1] * width_bytes;
    GpuStep {
        row_lines: point.transactions[0] / n_all,
        feature_lines: point.transactions[1] / n_all,
        peer_bytes: hit_bytes * (1.0 - home),
        // All that is gathered is written to a batch.
        local_bytes: hit_bytes * home + gathered,
        n_vertices: group.n_vertices.clone(),
        n_picks: group.n_picks.clone(),
    }
}

/// Transactions of another epoch with these caches, counted line by line; `None` where the graph is not there.
pub(super) fn counted(asked: &Asked, policy: &Policy, group: &Group, point: &Point) -> Option<Counted> {
    let Known::Whole { graph, .. } = &asked.known else { return None };
    let owners = owners(asked, policy, graph, group, point);
    let mut all = Counted::default();
    for (at, (gpu, (_, train))) in (0..).zip(group.gpus.iter().zip(&group.own)) {
        let (batches, stream) =
            (batches(train, &asked.sampling, REPLAYED, *gpu), epoch_stream(&asked.sampling, REPLAYED, *gpu));
        all = all.plus(&replay(graph, &batches, &asked.sampling, &stream, (&owners, at, asked.network.width)));
    }
    Some(all)
}

/// Who holds what of a group's cache.
fn owners(asked: &Asked, policy: &Policy, graph: &Csr, group: &Group, point: &Point) -> Owners {
    let mut owners = Owners::host(graph.n_vertices());
    let rows = held_vertices(&group.demand.rows, &point.rows);
    let features = held_vertices(&group.demand.features, &point.features);
    if policy.share != Share::Clique {
        rows.iter().for_each(|vertex| owners.rows[*vertex as usize] = Owner::Every);
        features.iter().for_each(|vertex| owners.features[*vertex as usize] = Owner::Every);
        return owners;
    }
    let visited: Vec<Vec<u32>> = group.own.iter().map(|(epochs, _)| row_visits(&epochs.ranking)).collect();
    let row_reads: Vec<&[u32]> = visited.iter().map(Vec::as_slice).collect();
    let gathers: Vec<&[u32]> = group.own.iter().map(|(epochs, _)| epochs.ranking.gathers.as_slice()).collect();
    let width = asked.network.width;
    let room = [point.alpha * asked.cache_bytes, (1.0 - point.alpha) * asked.cache_bytes];
    let of_rows = place(&rows, &|vertex| row_bytes(graph.degree(vertex)), &row_reads, room[0]);
    let of_features = place(&features, &|_| feature_bytes(width), &gathers, room[1]);
    lay(&mut owners.rows, &rows, &of_rows.owners);
    lay(&mut owners.features, &features, &of_features.owners);
    owners
}

fn row_visits(visits: &Visits) -> Vec<u32> {
    let mut sums = vec![0; visits.gathers.len()];
    for hop in &visits.rows {
        sums.iter_mut().zip(hop).for_each(|(sum, n)| *sum += n);
    }
    sums
}

fn lay(owners: &mut [Owner], vertices: &[u32], placed: &[Option<u32>]) {
    for (vertex, owner) in vertices.iter().zip(placed) {
        owners[*vertex as usize] = owner.map_or(Owner::Host, Owner::Gpu);
    }
}

/// By what is ranked, in words.
pub(super) const fn ranked_by(hotness: Hotness) -> &'static str {
    match hotness {
        Hotness::Sampled => "visits of an epoch sampled beforehand",
        Hotness::Degree => "degree",
    }
}

/// Hops of a sampling, in words.
pub(super) fn hops(sampling: &Sampling) -> String {
    sampling.fan_out.iter().map(u32::to_string).collect::<Vec<_>>().join("/")
}
