//! Graphs that are too large for memory, by how many vertices have which degree: what sampling visits, in expectation.
//!
//! A pick lands on a vertex in proportion to its degree, whatever vertex picks: a configuration model. So a batch has a vertex of degree d in
//! its next frontier with 1 - (1 - P)(1 - e^(-M d / S)) where P is the chance to be there already, M the picks of the hop and S all slots.
//! Real graphs have communities, in which picks meet more often: the answer carries an interval, and tests hold it against real sampling.

use crate::cache::{Hotness, Item, feature_bytes, feature_lines, row_lines};
use crate::csr::Csr;
use crate::sample::{Replacement, Sampling};

/// Ratio of neighbouring degrees of a power law's table.
const BIN: f64 = 1.1;
/// Largest relative error of transactions and gathered vertices against real sampling of R-MAT, preferential attachment and configuration
/// models of 2^14 to 2^15 vertices, in this file's tests; communities of other graphs may be stronger.
pub const INTERVAL_RATIO: f64 = 0.15;

/// Vertices of the same degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Neighbours.
    pub degree: f64,
    /// Vertices.
    pub count: f64,
}

/// A graph by its degrees, ascending.
#[derive(Clone, Debug, PartialEq)]
pub struct Degrees {
    /// Classes.
    pub classes: Vec<Class>,
}

impl Degrees {
    /// Those of a graph.
    pub fn of(graph: &Csr) -> Self {
        let mut degrees: Vec<u64> = (0..graph.n_vertices()).map(|vertex| graph.degree(vertex)).collect();
        degrees.sort_unstable();
        let same = degrees.chunk_by(|a, b| a == b);
        let class = |same: &[u64]| Class { degree: hw::real(same[0]), count: hw::real(same.len() as u64) };
        Self { classes: same.map(class).collect() }
    }

    /// A power law with so many vertices and slots: P(degree) ~ degree^-exponent between the smallest degree that gives the mean and
    /// the largest that one vertex is expected to have, or that a graph without duplicates can have.
    ///
    /// # Panics
    /// When there is no vertex or slot, or the exponent is not above 1.
    pub fn power_law(n_vertices: f64, n_slots: f64, exponent: f64) -> Self {
        assert!(n_vertices >= 1.0 && n_slots > 0.0 && exponent > 1.0, "a power law has vertices, slots and a fall");
        let mean = n_slots / n_vertices;
        // The mean grows with the smallest degree: halve the interval that holds it.
        let most = (n_vertices, libm::sqrt(mean * n_vertices));
        let (mut low, mut high) = (1e-3, mean);
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if mean_of(&bins(most, middle, exponent)) < mean { low = middle } else { high = middle }
        }
        let mut classes = bins(most, high, exponent);
        let factor = mean / mean_of(&classes);
        classes.iter_mut().for_each(|class| class.degree *= factor);
        Self { classes }
    }

    /// Vertices.
    pub fn n_vertices(&self) -> f64 {
        self.classes.iter().map(|class| class.count).sum()
    }

    /// Slots.
    pub fn n_slots(&self) -> f64 {
        self.classes.iter().map(|class| class.count * class.degree).sum()
    }

    /// Whole degrees and counts, for a generator.
    pub fn rounded(&self) -> Vec<(u64, u64)> {
        self.classes.iter().map(|class| (hw::whole(class.degree), hw::whole(class.count))).collect()
    }

    /// Distinct vertices that so many picks by slots meet, in expectation.
    pub fn met(&self, n_picks: f64) -> f64 {
        let n_slots = self.n_slots();
        self.classes.iter().map(|class| class.count * -libm::expm1(-n_picks * class.degree / n_slots)).sum()
    }
}

/// Distinct vertices that so many draws of all vertices alike meet, in expectation.
pub fn drawn(n_draws: f64, n_vertices: f64) -> f64 {
    -n_vertices * libm::expm1(-n_draws / n_vertices)
}

/// Classes of growing degree with their share of the vertices.
fn bins((n_vertices, structural): (f64, f64), degree_min: f64, exponent: f64) -> Vec<Class> {
    // One vertex is expected above min · V^(1 / (exponent - 1)); above sqrt(mean · V) a graph without duplicate edges would have too few
    // partners (structural cut-off: Boguñá, Pastor-Satorras, Vespignani, Eur. Phys. J. B 38, 2004).
    let natural = degree_min * libm::pow(n_vertices, 1.0 / (exponent - 1.0));
    let degree_max = natural.min(structural).min(n_vertices).max(degree_min * BIN);
    let mut classes = Vec::new();
    let mut degree = degree_min;
    while degree < degree_max {
        // The weight of an interval [d, BIN d) is its width times d^-exponent.
        classes.push(Class { degree, count: libm::pow(degree, 1.0 - exponent) });
        degree *= BIN;
    }
    let sum: f64 = classes.iter().map(|class| class.count).sum();
    classes.iter_mut().for_each(|class| class.count *= n_vertices / sum);
    classes
}

fn mean_of(classes: &[Class]) -> f64 {
    let (mut slots, mut vertices) = (0.0, 0.0);
    for class in classes {
        slots += class.degree * class.count;
        vertices += class.count;
    }
    slots / vertices
}

/// What the batches of one GPU read in an epoch, in expectation.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Vertices alike: those of a degree that are trained on, and those that are not.
    pub groups: Vec<Group>,
    /// Batches.
    pub n_batches: f64,
    /// Vertices of a batch's frontiers, per hop and gathered.
    pub n_vertices: Vec<f64>,
    /// Edges that a batch picks, per hop.
    pub n_picks: Vec<f64>,
}

/// Vertices alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Neighbours.
    pub degree: f64,
    /// Vertices.
    pub count: f64,
    /// Chance to be in a batch's frontier, per hop and gathered.
    pub chances: Vec<f64>,
}

/// Chances of all vertices when a GPU trains on so many of the training vertices, which are drawn without regard to their degree.
///
/// # Panics
/// When there are more training vertices than vertices.
pub fn expected(degrees: &Degrees, sampling: &Sampling, n_train: f64, n_train_of_gpu: f64) -> Expected {
    let (n_vertices, n_slots) = (degrees.n_vertices(), degrees.n_slots());
    assert!(n_train <= n_vertices * (1.0 + 1e-9), "{n_train} of {n_vertices} vertices are trained on");
    let n_batches = libm::ceil(n_train_of_gpu / f64::from(sampling.batch)).max(1.0);
    let batch = n_train_of_gpu / n_batches;
    let ratio = (n_train / n_vertices).min(1.0);
    let mut groups = Vec::with_capacity(2 * degrees.classes.len());
    for class in &degrees.classes {
        for (part, chance) in [(ratio, batch / n_train), (1.0 - ratio, 0.0)] {
            if part > 0.0 {
                groups.push(Group { degree: class.degree, count: class.count * part, chances: vec![chance] });
            }
        }
    }
    let mut found = Expected { groups, n_batches, n_vertices: vec![batch], n_picks: Vec::new() };
    for &fan_out in &sampling.fan_out {
        hop(&mut found, fan_out, sampling.replacement, n_slots);
    }
    found
}

fn hop(found: &mut Expected, fan_out: u32, replacement: Replacement, n_slots: f64) {
    let mut n_picks = 0.0;
    for group in &found.groups {
        let picks =
            if replacement == Replacement::With { f64::from(fan_out) } else { group.degree.min(f64::from(fan_out)) };
        n_picks += group.count * group.chances[group.chances.len() - 1] * picks;
    }
    let mut n_vertices = 0.0;
    for group in &mut found.groups {
        let before = group.chances[group.chances.len() - 1];
        let chance = 1.0 - (1.0 - before) * libm::exp(-n_picks * group.degree / n_slots);
        group.chances.push(chance);
        n_vertices += group.count * chance;
    }
    found.n_picks.push(n_picks);
    found.n_vertices.push(n_vertices);
}

/// Items of rows when so many GPUs share a cache.
pub fn row_items(found: &Expected, sampling: &Sampling, n_gpus: f64, hotness: Hotness) -> Vec<Item> {
    let mut items = Vec::with_capacity(found.groups.len());
    for group in &found.groups {
        let (mut visits, mut saved) = (0.0, 0.0);
        for (chance, &fan_out) in group.chances.iter().zip(&sampling.fan_out) {
            let n = chance * found.n_batches * n_gpus;
            visits += n;
            saved += n * row_lines(group.degree, fan_out, sampling.replacement);
        }
        let hotness = if hotness == Hotness::Degree { group.degree } else { visits };
        items.push(Item { hotness, saved, bytes: 8.0 + 4.0 * group.degree, count: group.count });
    }
    items
}

/// Items of features.
pub fn feature_items(found: &Expected, width: u64, n_gpus: f64, hotness: Hotness) -> Vec<Item> {
    let (bytes, lines) = (hw::real(feature_bytes(width)), feature_lines(width));
    let item = |group: &Group| {
        let visits = group.chances[group.chances.len() - 1] * found.n_batches * n_gpus;
        let hotness = if hotness == Hotness::Degree { group.degree } else { visits };
        Item { hotness, saved: visits * lines, bytes, count: group.count }
    };
    found.groups.iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache;
    use crate::csr::Direction;
    use crate::generate::{Quadrants, barabasi_albert, configuration, rmat};
    use crate::legion::{Demand, best, sweep};
    use crate::sample::{batches, epoch_stream, visits};

    #[test]
    fn a_power_law_has_its_counts_and_its_fall() {
        for (n_vertices, mean) in [(1e6, 10.0), (7.9e8, 60.0), (2.4e6, 50.5)] {
            let found = Degrees::power_law(n_vertices, n_vertices * mean, 2.2);
            assert!((found.n_vertices() / n_vertices - 1.0).abs() < 1e-9);
            assert!((found.n_slots() / n_vertices / mean - 1.0).abs() < 1e-9);
            // Between a degree and ten times it the vertices at or above it fall by 10^1.2 = 15.8.
            let above = |degree: f64| {
                found.classes.iter().filter(|class| class.degree >= degree).map(|class| class.count).sum::<f64>()
            };
            let fall = above(100.0) / above(1000.0);
            assert!((13.0..22.0).contains(&fall), "{fall}");
        }
    }

    /// A name, vertices and edges.
    type Named = (&'static str, u32, Vec<(u32, u32)>);

    /// Gathered vertices of a batch and transactions under the best split, from degrees alone and from real sampling.
    #[test]
    fn degrees_alone_are_within_the_interval_of_real_sampling() {
        let graphs: [Named; 4] = [
            ("rmat", 1 << 15, rmat(15, 400_000, Quadrants::GRAPH500, 1)),
            ("flat", 1 << 14, rmat(14, 200_000, Quadrants::skewed(0.3), 1)),
            ("attachment", 30_000, barabasi_albert(30_000, 8, 1)),
            ("configuration", 21_000, configuration(&[(4, 16_000), (20, 4000), (300, 1000)], 1)),
        ];
        for (name, n_vertices, edges) in graphs {
            let (graph, _) = Csr::from_edges(n_vertices, &edges, Direction::Undirected).expect("a graph");
            let sampling = Sampling { fan_out: vec![10, 5], replacement: Replacement::Without, batch: 200, seed: 5 };
            let train: Vec<u32> = (0..n_vertices).filter(|vertex| crate::partition::hash(*vertex, 10) == 0).collect();
            let real = visits(&graph, &batches(&train, &sampling, 0, 0), &sampling, &epoch_stream(&sampling, 0, 0));
            let both = cache::Epochs { ranking: real.clone(), counting: real.clone() };
            let n_train = hw::real(train.len() as u64);
            let found = expected(&Degrees::of(&graph), &sampling, n_train, n_train);
            let gathered = hw::real(real.n_vertices[2]) / hw::real(real.n_batches);
            let error = found.n_vertices[2] / gathered - 1.0;
            assert!(error.abs() < INTERVAL_RATIO, "{name}: gathered {} for {gathered}", found.n_vertices[2]);
            let left = |rows: Vec<Item>, features: Vec<Item>| {
                let demand = Demand { rows: cache::Ranked::new(&rows), features: cache::Ranked::new(&features) };
                let points = sweep(&demand, f64::from(n_vertices) * 60.0);
                points[best(&points)].sum()
            };
            let by_hand = left(
                cache::row_items(&graph, &[&both], &sampling, Hotness::Degree),
                cache::feature_items(&graph, &[&both], 64, Hotness::Degree),
            );
            let ours = left(
                row_items(&found, &sampling, 1.0, Hotness::Degree),
                feature_items(&found, 64, 1.0, Hotness::Degree),
            );
            let error = ours / by_hand - 1.0;
            println!("{name}: gathered {:.3}, transactions {error:.3}", found.n_vertices[2] / gathered - 1.0);
            assert!(error.abs() < INTERVAL_RATIO, "{name}: {ours} transactions for {by_hand}");
        }
    }
}
