//! Subgraphs and labels against all paths by brute force; work against what must hold of hubs.

use engine::random;
use proptest::prelude::*;

use super::*;
use crate::csr::Direction;
use crate::generate::{barabasi_albert, configuration};

fn graph(n: u32, edges: &[(u32, u32)]) -> Csr {
    Csr::from_edges(n, edges, Direction::Undirected).expect("a graph").0
}

const ALL: Rule = Rule { hops: 1, ratio: 1.0, neighbours_max: u64::MAX, paths: Paths::WithoutEdge };

/// Shortest distances by Floyd and Warshall, without the edge of the pair, and without a vertex where one is blocked.
fn brute_force(n: u32, edges: &[(u32, u32)], pair: [u32; 2], from: u32, blocked: Option<u32>) -> Vec<u32> {
    let far = 1000;
    let mut found = vec![vec![far; n as usize]; n as usize];
    for &(a, b) in edges {
        let is_pair = [a, b] == pair || [b, a] == pair;
        if !is_pair && Some(a) != blocked && Some(b) != blocked {
            found[a as usize][b as usize] = 1;
            found[b as usize][a as usize] = 1;
        }
    }
    (0..n as usize).for_each(|at| found[at][at] = 0);
    for k in 0..n as usize {
        for a in 0..n as usize {
            for b in 0..n as usize {
                found[a][b] = found[a][b].min(found[a][k] + found[k][b]);
            }
        }
    }
    found[from as usize].iter().map(|&distance| if distance >= far { FAR } else { distance }).collect()
}

proptest! {
    /// With as many hops as vertices the subgraph is all that the pair reaches, so labels are distances in the graph.
    #[test]
    fn labels_are_shortest_paths(edges in prop::collection::vec((0_u32..10, 0_u32..10), 0..24), a in 0_u32..10, b in 0_u32..10) {
        prop_assume!(a != b);
        let graph = graph(10, &edges);
        for paths in [Paths::WithoutEdge, Paths::WithoutEnd] {
            let found = extract(&graph, [a, b], &Rule { hops: 10, paths, ..ALL }, &random::stream(0, "test"));
            for (end, (from, other)) in [(a, b), (b, a)].into_iter().enumerate() {
                let blocked = (paths == Paths::WithoutEnd).then_some(other);
                let expected = brute_force(10, &edges, [a, b], from, blocked);
                for (vertex, label) in found.vertices.iter().zip(&found.labels) {
                    prop_assert_eq!(label[end], expected[*vertex as usize], "{} from {}", vertex, from);
                }
            }
        }
    }

    #[test]
    fn edges_are_all_between_the_vertices_but_the_pair(edges in prop::collection::vec((0_u32..9, 0_u32..9), 0..30), a in 0_u32..9, b in 0_u32..9) {
        prop_assume!(a != b);
        let graph = graph(9, &edges);
        let found = extract(&graph, [a, b], &ALL, &random::stream(0, "test"));
        let mut expected = 0;
        for (at, from) in found.vertices.iter().enumerate() {
            expected += found.vertices[..at].iter().filter(|to| graph.row(*from).contains(to) && at > 1).count();
        }
        prop_assert_eq!(found.edges.len(), expected);
        let near = |vertex: &u32| *vertex == a || *vertex == b || graph.row(a).contains(vertex) || graph.row(b).contains(vertex);
        prop_assert_eq!(found.vertices.len(), (0..9).filter(near).count());
    }
}

/// Two hubs of 5000 leaves that have 3 edges each: half of the neighbours is half of the work, to a row.
#[test]
fn half_of_the_neighbours_is_half_of_the_work_at_hubs() {
    let mut edges: Vec<(u32, u32)> = Vec::new();
    for leaf in 0..10_000_u32 {
        edges.push((leaf % 2, 2 + leaf));
        edges.push((2 + leaf, 2 + (leaf + 1) % 10_000));
    }
    let graph = graph(10_002, &edges);
    let costs = |ratio: f64| {
        let work = extract(&graph, [0, 1], &Rule { ratio, ..ALL }, &random::stream(1, "test")).work;
        work.reads * 25.0 + work.probes * 2.0
    };
    for ratio in [1.0, 0.5, 0.25] {
        assert!(costs(ratio / 2.0) <= costs(ratio) * 0.501, "{ratio}");
    }
}

#[test]
fn degrees_alone_give_the_work_of_pairs() {
    let cases =
        [(21_000, configuration(&[(4, 16_000), (20, 4000), (300, 1000)], 2)), (20_000, barabasi_albert(20_000, 6, 2))];
    for (n, edges) in cases {
        let graph = graph(n, &edges);
        let stream = random::stream(3, "pairs");
        let real = works(&graph, &pairs(&graph, 600, &stream), &ALL, &stream);
        let real = real.into_iter().fold(Work::default(), Work::plus).times(1.0 / 600.0);
        let found = expected(&Degrees::of(&graph), &ALL, 2000, &stream);
        println!("{real:?} {found:?}");
        for (name, found, real) in [("vertices", found.n_vertices, real.n_vertices), ("reads", found.reads, real.reads)]
        {
            assert!((found / real - 1.0).abs() < 0.25, "{name}: {found} {real}");
        }
    }
}

#[test]
fn extraction_costs_most_on_ppa_and_least_on_collab() {
    let costs = ["ppa", "citation2", "collab"].map(|name| {
        let shape = crate::published::Shape::named(name).expect("listed");
        let degrees = Degrees::power_law(hw::real(shape.n_vertices), 2.0 * hw::real(shape.n_edges), 2.5);
        let work = expected(&degrees, &ALL, 300, &random::stream(0, "test"));
        work.reads * 25.0 + work.probes * 2.0
    });
    assert!(costs[0] > costs[1] && costs[1] > costs[2], "{costs:?}");
}
