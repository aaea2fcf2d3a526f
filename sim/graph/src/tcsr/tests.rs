//! T-CSR against rows by hand, brute force, and a decoder that looks at prefixes one by one.

use engine::random;
use proptest::prelude::*;

use super::*;
use crate::generate::{Bursts, bursts};

fn events(list: &[(u32, u32, u64)]) -> Vec<Event> {
    list.iter().map(|&(source, target, time)| Event { source, target, time }).collect()
}

fn on_threads<R: Send>(n: usize, run: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads").install(run)
}

/// Edges 0:(0,1,1) 1:(0,2,3) 2:(1,2,2) 3:(0,1,5) with reverse ones, rows by hand: event 1 is given before event 2 and is later.
#[test]
fn rows_are_those_by_hand() {
    let graph =
        TCsr::convert(3, &events(&[(0, 1, 1), (0, 2, 3), (1, 2, 2), (0, 1, 5)]), Reverse::With).expect("a graph");
    assert_eq!(graph.offsets(), [0, 3, 6, 8]);
    assert_eq!(graph.neighbours, [1, 2, 1, 0, 2, 0, 1, 0]);
    assert_eq!(graph.times, [1, 3, 5, 1, 2, 5, 2, 3]);
    assert_eq!(graph.edges, [0, 1, 3, 0, 2, 3, 2, 1]);
    let recent = |vertex, time, k| {
        let found = graph.sample(vertex, time, k, Take::Recent, random::stream(0, "test"));
        found.iter().map(|past| past.neighbour).collect::<Vec<u32>>()
    };
    assert_eq!(recent(0, 5, 2), [1, 2]);
    assert_eq!(recent(0, 1, 2), [0; 0]);
    assert_eq!(recent(0, 6, 2), [2, 1]);
    let one_way = TCsr::convert(3, &events(&[(0, 1, 1), (1, 2, 2), (0, 2, 3), (0, 1, 5)]), Reverse::Without);
    assert_eq!(one_way.expect("a graph").offsets(), [0, 3, 4, 4]);
}

#[test]
fn ties_stand_in_the_order_of_their_ids_on_any_number_of_threads() {
    let same: Vec<Event> =
        (0..4000).map(|at| Event { source: at % 7, target: at % 3, time: u64::from(at / 1000) }).collect();
    let convert = || TCsr::convert(7, &same, Reverse::With).expect("a graph");
    let one = on_threads(1, convert);
    assert_eq!(one, on_threads(2, convert));
    assert_eq!(one, on_threads(8, convert));
    for row in one.offsets().windows(2) {
        let row = index(row[0])..index(row[1]);
        let keys: Vec<(u64, u64)> = row.map(|slot| (one.times[slot], one.edges[slot])).collect();
        assert!(keys.is_sorted());
    }
}

#[test]
fn wrong_events_are_refused() {
    let beyond = TCsr::convert(3, &events(&[(0, 3, 5)]), Reverse::With);
    assert_eq!(beyond, Err(EventError::Beyond { event: 0, vertex: 3, n_vertices: 3 }));
}

proptest! {
    #[test]
    fn what_is_sampled_is_before_and_distinct(
        list in prop::collection::vec((0_u32..6, 0_u32..6, 0_u64..20), 0..120), vertex in 0_u32..6, time in 0_u64..22, k in 0_usize..9,
    ) {
        let mut list = events(&list);
        list.sort_by_key(|event| event.time);
        let graph = TCsr::convert(6, &list, Reverse::With).expect("a graph");
        // Brute force: every end of every event before the moment.
        let mut expected = Vec::new();
        for (edge, event) in list.iter().enumerate() {
            for (from, to) in [(event.source, event.target), (event.target, event.source)] {
                if from == vertex && event.time < time {
                    expected.push(Past { neighbour: to, time: event.time, edge: edge as u64 });
                }
            }
        }
        let recent = graph.sample(vertex, time, k, Take::Recent, random::stream(1, "test"));
        prop_assert_eq!(&recent[..], &expected[expected.len().saturating_sub(k)..]);
        let random = graph.sample(vertex, time, k, Take::Random, random::stream(1, "test"));
        prop_assert_eq!(random.len(), k.min(expected.len()));
        prop_assert!(random.iter().all(|past| past.time < time && expected.contains(past)));
        prop_assert!(random.is_sorted_by_key(|past| (past.time, past.edge)));
    }
}

#[test]
fn samples_are_the_same_on_any_number_of_threads() {
    let shape = Bursts { n_vertices: 40, n_events: 3000, length: 6.0, skew: 2.5, span: 5000 };
    let list = bursts(&shape, 3);
    let graph = TCsr::convert(40, &list, Reverse::With).expect("a graph");
    let queries: Vec<(u32, u64)> = list.iter().map(|event| (event.source, event.time)).collect();
    let run = || graph.sample_all(&queries, 5, Take::Random, &random::stream(4, "test"));
    let one = on_threads(1, run);
    assert_eq!(one, on_threads(2, run));
    assert_eq!(one, on_threads(8, run));
}

/// A uniform graph of a million vertices with 20 slots each: every step is divided, so eight threads are eight times as fast but for the
/// longest row, which is nothing. With one row of a fifth of the slots the hub holds it back.
#[test]
fn conversion_scales_until_the_hub_holds_it_back() {
    let costs = &HostCosts::of_ns(25.0, 2.0);
    let uniform = [(20.0, 1e6)];
    let one = conversion(&uniform, 1, costs).seconds;
    for threads in [2, 4, 8] {
        let speed_up = one / conversion(&uniform, threads, costs).seconds;
        assert!(speed_up >= 0.6 * f64::from(threads), "{threads}: {speed_up}");
    }
    let hub = [(20.0, 8e5), (4e6, 1.0)];
    let found = conversion(&hub, 64, costs);
    assert!(found.seconds >= found.hub_s);
    assert!(conversion(&hub, 1, costs).seconds / found.seconds < 0.6 * 64.0);
    // By hand for one thread: 2 · 20e6 · 25 ns + 1e6 · 2 ns + 20e6 · log2(20) · 2 ns.
    assert!((one - (1.0 + 0.002 + 0.04 * 20_f64.log2())).abs() < 1e-9, "{one}");
}

/// A decoder layer in plain Rust: one head, scores by dot products, softmax over positions up to the query's own (the self-loop), two rows
/// of weights. One pass under a causal mask gives at every position what a pass over that prefix gives at its end.
#[test]
fn one_causal_pass_equals_a_pass_over_every_prefix() {
    const WIDTH: usize = 8;
    let mut stream = random::stream(11, "decoder");
    let mut matrix = |rows: usize| -> Vec<Vec<f64>> {
        (0..rows).map(|_| (0..WIDTH).map(|_| stream.normal() * 0.4).collect()).collect()
    };
    let weights: [Vec<Vec<f64>>; 3] = [matrix(WIDTH), matrix(WIDTH), matrix(WIDTH)];
    // A node's past neighbours in the order of time, and the node itself at the end: the suffix.
    let sequence = matrix(17);
    let once = decoder(&sequence, &weights);
    for end in 1..=sequence.len() {
        let prefix = decoder(&sequence[..end], &weights);
        for (a, b) in prefix[end - 1].iter().zip(&once[end - 1]) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}

fn decoder(sequence: &[Vec<f64>], weights: &[Vec<Vec<f64>>; 3]) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let by = |matrix: &[Vec<f64>], x: &[f64]| matrix.iter().map(|row| dot(row, x)).collect::<Vec<f64>>();
    let [queries, keys, values] = [0, 1, 2].map(|at| sequence.iter().map(|x| by(&weights[at], x)).collect::<Vec<_>>());
    let mut out = Vec::new();
    for (at, query) in queries.iter().enumerate() {
        let scores: Vec<f64> = keys[..=at].iter().map(|key| dot(query, key).exp()).collect();
        let sum: f64 = scores.iter().sum();
        let mixed =
            |column: usize| scores.iter().zip(&values).map(|(score, value)| score / sum * value[column]).sum::<f64>();
        out.push((0..query.len()).map(mixed).zip(&sequence[at]).map(|(mixed, own)| mixed + own).collect());
    }
    out
}
