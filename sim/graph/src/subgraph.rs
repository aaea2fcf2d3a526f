//! Enclosing subgraphs of pairs of vertices, path labels, and what extracting them costs (SEG, arXiv:2201.05293; SEAL, arXiv:1802.09691).
//!
//! A pair's subgraph holds its ends and the neighbours within some hops, or a share of them at each hop, with the edges between them but
//! the one of the pair itself. A vertex is labelled by its distances to both ends. Work is counted as reads of memory (a row and its lines) and
//! probes (a slot looked up in the set, a vertex or edge of a labelling). Hubs are drawn as they are: work is no function of mean degrees.

use engine::random::Stream;
use rayon::prelude::*;

use crate::cache::{LINE_BYTES, row_bytes};
use crate::csr::{Csr, index};
use crate::distribution::{Class, Degrees};
use crate::recurrence::{Alike, Recurrence};
use crate::sample::distinct;

/// Label of a vertex that no path reaches.
pub const FAR: u32 = u32::MAX;

/// What paths may not use besides the edge of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Nothing: distances without the target edge.
    WithoutEdge,
    /// The other end, as SEAL labels.
    WithoutEnd,
}

/// Which subgraph is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Hops around the pair.
    pub hops: u32,
    /// Share of a vertex's neighbours that is taken at a hop.
    pub ratio: f64,
    /// Most neighbours of a vertex that are taken at a hop.
    pub neighbours_max: u64,
    /// What labels count.
    pub paths: Paths,
}

/// What one extraction takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Vertices of the subgraph.
    pub n_vertices: f64,
    /// Edges of the subgraph.
    pub n_edges: f64,
    /// Reads of memory.
    pub reads: f64,
    /// Probes.
    pub probes: f64,
}

impl Work {
    /// Sums.
    pub fn plus(self, other: Self) -> Self {
        Self {
            n_vertices: self.n_vertices + other.n_vertices,
            n_edges: self.n_edges + other.n_edges,
            reads: self.reads + other.reads,
            probes: self.probes + other.probes,
        }
    }

    /// The same for a part or a multiple.
    pub fn times(self, factor: f64) -> Self {
        Self {
            n_vertices: self.n_vertices * factor,
            n_edges: self.n_edges * factor,
            reads: self.reads * factor,
            probes: self.probes * factor,
        }
    }

    /// A row that is read from its first slot to its last.
    fn row(degree: f64) -> Self {
        let lines = 1.0 + libm::floor(degree * 4.0 / hw::real(LINE_BYTES));
        Self { reads: 1.0 + lines, probes: degree, ..Self::default() }
    }

    /// Two labellings.
    fn labelling(n_vertices: f64, n_edges: f64) -> Self {
        Self { probes: 2.0 * (n_vertices + n_edges), ..Self::default() }
    }
}

/// A subgraph.
#[derive(Clone, Debug, PartialEq)]
pub struct Enclosing {
    /// Vertices; the ends of the pair come first.
    pub vertices: Vec<u32>,
    /// Edges between positions of `vertices`, each once.
    pub edges: Vec<(u32, u32)>,
    /// Distances of every vertex to the first and the second end; `FAR` where there is no path.
    pub labels: Vec<[u32; 2]>,
    /// What it took.
    pub work: Work,
}

/// Neighbours that are taken of a degree.
fn taken(degree: f64, rule: &Rule) -> f64 {
    libm::ceil(degree * rule.ratio).min(hw::real(rule.neighbours_max))
}

/// Extracts the subgraph of a pair.
pub fn extract(graph: &Csr, pair: [u32; 2], rule: &Rule, stream: &Stream) -> Enclosing {
    let mut places = Places::new(graph);
    let mut work = Work::default();
    let vertices = around(graph, pair, rule, stream, &mut places, &mut work);
    let n_ends = n_ends(pair);
    let mut edges = Vec::new();
    induced(graph, &vertices, n_ends, &places, &mut work, |edge| edges.push(edge));
    let labels = labelled(vertices.len(), n_ends, &edges, rule.paths);
    let work = whole_work(work, vertices.len(), edges.len());
    Enclosing { vertices, edges, labels, work }
}

/// What the extraction of a pair takes: labels and edges themselves are not kept.
fn work_of(graph: &Csr, pair: [u32; 2], rule: &Rule, stream: &Stream, places: &mut Places) -> Work {
    let mut work = Work::default();
    let vertices = around(graph, pair, rule, stream, places, &mut work);
    let mut n_edges = 0;
    induced(graph, &vertices, n_ends(pair), places, &mut work, |_| n_edges += 1);
    places.clear(&vertices);
    whole_work(work, vertices.len(), n_edges)
}

/// Reads and probes, and the labelling of so many vertices and edges.
fn whole_work(read: Work, n_vertices: usize, n_edges: usize) -> Work {
    let (n_vertices, n_edges) = (hw::real(n_vertices as u64), hw::real(n_edges as u64));
    Work { n_vertices, n_edges, ..read.plus(Work::labelling(n_vertices, n_edges)) }
}

fn n_ends(pair: [u32; 2]) -> usize {
    if pair[0] == pair[1] { 1 } else { 2 }
}

/// Where each vertex of the graph stands in a subgraph. It is kept from pair to pair: a graph has many more vertices than a subgraph.
struct Places(Vec<u32>);

impl Places {
    /// Of a vertex that is not in the subgraph.
    const ABSENT: u32 = u32::MAX;

    fn new(graph: &Csr) -> Self {
        Self(vec![Self::ABSENT; graph.n_vertices() as usize])
    }

    fn of(&self, vertex: u32) -> Option<u32> {
        Some(self.0[vertex as usize]).filter(|place| *place != Self::ABSENT)
    }

    /// Gives the vertices from a place on their places.
    fn add(&mut self, vertices: &[u32], first: usize) {
        for (place, vertex) in (0..).zip(vertices).skip(first) {
            self.0[*vertex as usize] = place;
        }
    }

    fn clear(&mut self, vertices: &[u32]) {
        vertices.iter().for_each(|vertex| self.0[*vertex as usize] = Self::ABSENT);
    }
}

/// The vertices of the subgraph, ends first, with their places.
fn around(graph: &Csr, pair: [u32; 2], rule: &Rule, stream: &Stream, places: &mut Places, work: &mut Work) -> Vec<u32> {
    let mut vertices = pair[..n_ends(pair)].to_vec();
    places.add(&vertices, 0);
    let (mut frontier, mut picked) = (vertices.clone(), Vec::new());
    for hop in 0..rule.hops {
        let mut next = Vec::new();
        for &vertex in &frontier {
            engine::stop::pause();
            let row = graph.row(vertex);
            let n = index(hw::whole(taken(hw::real(row.len() as u64), rule)));
            picked.clear();
            distinct(row.len() as u64, n, crate::sample::stream_of(stream, hop, vertex), &mut picked);
            *work = work.plus(Work::row(hw::real(picked.len() as u64)));
            next.extend(picked.iter().map(|&position| row[index(position)]).filter(|at| places.of(*at).is_none()));
        }
        next.sort_unstable();
        next.dedup();
        let first = vertices.len();
        vertices.extend_from_slice(&next);
        places.add(&vertices, first);
        frontier = next;
    }
    vertices
}

/// Edges between the vertices. Rows of the ends need no look: what they share with others stands in the others' rows.
fn induced(
    graph: &Csr,
    vertices: &[u32],
    n_ends: usize,
    places: &Places,
    work: &mut Work,
    mut found: impl FnMut((u32, u32)),
) {
    for (own, &vertex) in (0..).zip(vertices).skip(n_ends) {
        *work = work.plus(Work::row(hw::real(graph.degree(vertex))));
        for neighbour in graph.row(vertex) {
            // Both rows of two inner vertices have the edge: it counts from the later one.
            if let Some(other) = places.of(*neighbour).filter(|other| *other < own) {
                found((other, own));
            }
        }
    }
}

/// Distances to both ends.
fn labelled(n_vertices: usize, n_ends: usize, edges: &[(u32, u32)], paths: Paths) -> Vec<[u32; 2]> {
    let mut neighbours = vec![Vec::new(); n_vertices];
    for &(a, b) in edges {
        neighbours[a as usize].push(b);
        neighbours[b as usize].push(a);
    }
    let mut labels = vec![[FAR; 2]; n_vertices];
    for end in 0..n_ends {
        let blocked = match paths {
            Paths::WithoutEdge => None,
            Paths::WithoutEnd => Some(n_ends - 1 - end).filter(|_| n_ends == 2),
        };
        let distances = distances(&neighbours, end, blocked);
        labels.iter_mut().zip(distances).for_each(|(label, distance)| label[end] = distance);
    }
    labels
}

/// Breadth-first distances from a vertex, around one that is blocked.
fn distances(neighbours: &[Vec<u32>], from: usize, blocked: Option<usize>) -> Vec<u32> {
    let mut found = vec![FAR; neighbours.len()];
    found[from] = 0;
    let (mut queue, mut head) = (vec![from], 0);
    while head < queue.len() {
        let vertex = queue[head];
        head += 1;
        for &next in &neighbours[vertex] {
            let next = next as usize;
            if found[next] == FAR && Some(next) != blocked {
                found[next] = found[vertex] + 1;
                queue.push(next);
            }
        }
    }
    found
}

/// Work of pairs, in parallel and in order; pair number i draws from branch i.
pub fn works(graph: &Csr, pairs: &[[u32; 2]], rule: &Rule, stream: &Stream) -> Vec<Work> {
    let one = |places: &mut Places, (at, pair): (usize, &[u32; 2])| {
        work_of(graph, *pair, rule, &stream.branch(at as u64), places)
    };
    pairs.par_iter().enumerate().map_init(|| Places::new(graph), one).collect()
}

/// Pairs to train on: edges of the graph, and as many with a random second end.
///
/// # Panics
/// When the graph has no edge.
pub fn pairs(graph: &Csr, n: u64, stream: &Stream) -> Vec<[u32; 2]> {
    assert!(graph.n_slots() > 0, "a pair to train on is an edge");
    (0..n).map(|at| pair(graph, at.is_multiple_of(2), stream.branch(at))).collect()
}

fn pair(graph: &Csr, is_edge: bool, mut stream: Stream) -> [u32; 2] {
    let slot = stream.below(graph.n_slots());
    let from = last_at_or_below(graph, slot);
    let to = graph.row(from)[index(slot - graph.offset(from))];
    let other = u32::try_from(stream.below(u64::from(graph.n_vertices()))).expect("a vertex");
    [from, if is_edge { to } else { other }]
}

/// The vertex whose row has the slot.
fn last_at_or_below(graph: &Csr, slot: u64) -> u32 {
    let (mut low, mut high) = (0, graph.n_vertices());
    while high - low > 1 {
        let middle = low.midpoint(high);
        if graph.offset(middle) <= slot { low = middle } else { high = middle }
    }
    low
}

/// Mean work of a pair from degrees alone, over so many pairs that are drawn: an end of an edge and a neighbour have a degree by its slots, a
/// random end by its vertices. Edges among neighbours are those of a configuration model, so triangles are too few.
pub fn expected(degrees: &Degrees, rule: &Rule, n_pairs: u64, stream: &Stream) -> Work {
    let (by_slots, by_vertices) = (Ladder::new(degrees, true), Ladder::new(degrees, false));
    let n_slots = degrees.n_slots();
    let one = |at: u64| {
        let mut draws = stream.branch(at);
        let second = if at.is_multiple_of(2) { &by_slots } else { &by_vertices };
        let ends = [by_slots.draw(&mut draws), second.draw(&mut draws)];
        drawn(ends, rule, &by_slots, n_slots, &mut draws)
    };
    // Sums of floats are made in order.
    let all: Vec<Work> = (0..n_pairs).into_par_iter().map(one).collect();
    all.into_iter().fold(Work::default(), Work::plus).times(1.0 / hw::real(n_pairs))
}

fn drawn(ends: [f64; 2], rule: &Rule, by_slots: &Ladder, n_slots: f64, draws: &mut Stream) -> Work {
    let mut work = Work { n_vertices: 2.0, ..Work::default() };
    let mut inner_slots = 0.0;
    let mut frontier: Vec<f64> = ends.to_vec();
    for hop in 0..rule.hops {
        engine::stop::pause();
        let n: f64 = frontier.iter().map(|degree| taken(*degree, rule)).sum();
        frontier.iter().for_each(|degree| work = work.plus(Work::row(taken(*degree, rule))));
        work.n_vertices += n;
        work.n_edges += n;
        // Every neighbour is drawn; of later hops, which are many, their mean.
        frontier = match hop {
            0 => (0..hw::whole(n)).map(|_| by_slots.draw(draws)).collect(),
            _ => vec![by_slots.mean; index(hw::whole(n))],
        };
        for degree in &frontier {
            work = work.plus(Work::row(*degree));
            inner_slots += degree;
        }
    }
    // Every two neighbours have an edge with a chance that never passes 1.
    let n_inner = work.n_vertices - 2.0;
    let n_twos = n_inner * (n_inner - 1.0) / 2.0;
    if n_twos >= 0.5 {
        work.n_edges += n_twos * -libm::expm1(-inner_slots * inner_slots / n_slots / 2.0 / n_twos);
    }
    work.plus(Work::labelling(work.n_vertices, work.n_edges))
}

/// What extraction reads, a row a step: a row is met by its slots, and read whole.
pub fn visits(degrees: &Degrees) -> Recurrence {
    let n_slots = degrees.n_slots();
    let alike = |class: &Class| Alike {
        count: class.count,
        chance: (class.degree / n_slots).min(1.0),
        bytes: hw::real(row_bytes(0)) + 4.0 * class.degree,
    };
    Recurrence::new(degrees.classes.iter().map(alike).collect())
}

/// Degrees with running weights, to draw from.
struct Ladder {
    degrees: Vec<f64>,
    sums: Vec<f64>,
    mean: f64,
}

impl Ladder {
    fn new(degrees: &Degrees, by_slots: bool) -> Self {
        let (mut sums, mut sum, mut moment) = (Vec::new(), 0.0, 0.0);
        for class in &degrees.classes {
            let weight = if by_slots { class.count * class.degree } else { class.count };
            sum += weight;
            moment += weight * class.degree;
            sums.push(sum);
        }
        Self { degrees: degrees.classes.iter().map(|class| class.degree).collect(), sums, mean: moment / sum }
    }

    fn draw(&self, stream: &mut Stream) -> f64 {
        let at = stream.unit() * self.sums[self.sums.len() - 1];
        self.degrees[self.sums.partition_point(|&sum| sum <= at).min(self.degrees.len() - 1)]
    }
}

#[cfg(test)]
mod tests;
