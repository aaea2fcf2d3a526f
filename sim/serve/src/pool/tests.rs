//! Two nodes in closed form, tokens that are conserved, weights that are realised, and layers at once against layer by layer.

use hw::{Seconds, Span, Time};
use proptest::prelude::*;

use super::path::flow::Expected;
use super::path::{Flow, Paths, Random, Swarm};
use super::*;
use crate::fleet::dynamics::{Failures, Outage};
use crate::fleet::{Changing, serve_stations};

/// Serves requests until the end of the run, with stations that stay.
fn run(pool: &Pool, paths: &mut dyn Paths, asked: &Run<'_>) -> Outcome {
    serve_stations(pool, paths, asked, &Changing::default())
}

fn node(first: u32, end: u32, ms_per_prompt_token: f64, decode_ms: f64) -> Node {
    let curve = |points: Vec<(f64, f64)>| Curve::new(points).expect("rising");
    Node {
        name: format!("{first}..{end}"),
        first,
        end,
        prompt: curve(vec![(1000.0, ms_per_prompt_token)]),
        decode: curve(vec![(1.0, decode_ms * 1e-3), (101.0, 2.0 * decode_ms * 1e-3)]),
        room: Room { layers: end - first, kv_tokens: 100_000, prompts: 2, decodes: 64 },
    }
}

/// Nodes with hops wherever the next layer follows; weights 1, 1e6 bytes per second, 2 ms.
fn pool(nodes: Vec<Node>) -> Pool {
    let n_layers = nodes.iter().map(|node| node.end).max().unwrap_or(0);
    let hop = |from, to| Hop { from, to, weight: 1.0, bytes_per_s: 1e6, latency: Span::from_ns(2_000_000) };
    let mut hops = Vec::new();
    for (i, a) in nodes.iter().enumerate() {
        if a.first == 0 {
            hops.push(hop(None, Some(i)));
        }
        if a.end == n_layers {
            hops.push(hop(Some(i), None));
        }
        let onward = nodes.iter().enumerate().filter(|(_, b)| b.first == a.end);
        hops.extend(onward.map(|(j, _)| hop(Some(i), Some(j))));
    }
    Pool {
        n_layers,
        nodes,
        hops,
        activation_bytes: 98.0,
        token_bytes: 2.0,
        copy_bytes_per_s: 98e6,
        prompt_tokens_max: 2048,
        context_per_decode: 1000,
    }
}

fn requests(shapes: &[(u32, u32)]) -> Vec<Request> {
    shapes.iter().map(|&(prompt, output)| Request::new(Time::ZERO, prompt, output)).collect()
}

fn seconds(at: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(at))
}

/// Everything counts; where requests are not replaced, everything can end.
fn all(requests: &[Request], load: Load) -> Run<'_> {
    let until = if load == Load::Open { 1e6 } else { 60.0 };
    Run { requests, load, warm_up: Time::ZERO, until: seconds(until) }
}

fn as_s(ns: u64) -> f64 {
    Span::from_ns(ns).to_seconds().get()
}

#[test]
fn a_chain_of_two_nodes_is_the_sum_of_its_parts() {
    // 500 prompt tokens. Coordinator to node: 1,000 bytes at 1 MB/s = 1 ms; node to node 50,000 bytes = 50 ms; 2 ms of latency for each of
    // three hops. Copying 49,000 bytes at 98 MB/s = 0.5 ms at either node. Node 0: 2 layers of 500 x 4 us = 4 s; node 1: 3 layers of 1 s = 3 s.
    let pool = pool(vec![node(0, 2, 4.0, 10.0), node(2, 5, 2.0, 20.0)]);
    let list = requests(&[(500, 4)]);
    let outcome = run(&pool, &mut Random::new(&pool, 0), &all(&list, Load::Open));
    let prompt_s = 0.001 + 0.050 + 0.001 + 3.0 * 0.002 + 2.0 * 0.0005 + 2.0 * 2.0 + 3.0 * 1.0;
    assert_eq!(outcome.prompt_ns.len(), 1);
    assert!((as_s(outcome.prompt_ns[0]) - prompt_s).abs() < 1e-7, "{:?}", outcome.prompt_ns);
    // A token: 2 bytes, 100 bytes and 2 bytes, 1 us of copying at either node, 2 layers of 10 ms and 3 of 20 ms.
    let decode_s = 104e-6 + 3.0 * 0.002 + 2e-6 + 0.020 + 0.060;
    assert_eq!(outcome.decode_ns.len(), 3);
    assert!(outcome.decode_ns.iter().all(|&ns| (as_s(ns) - decode_s).abs() < 1e-7), "{:?}", outcome.decode_ns);
    // The cache holds 500 + 3 tokens in 2 and in 3 layers.
    assert_eq!(outcome.kv_peak, [1006, 1509]);
    // It was in flight for the prompt and three tokens. When the warm-up ends in the middle of the prompt, that counts, but only the tokens
    // lie within what is counted.
    let (passed, whole_s) = (outcome.from_start, prompt_s + 3.0 * decode_s);
    assert_eq!((passed.prompt_tokens, passed.decode_tokens, passed.tokens()), (500, 3, 503));
    assert!((as_s(passed.in_flight_ns) - whole_s).abs() < 1e-7 && outcome.within == passed, "{outcome:?}");
    let late = Run { warm_up: seconds(1.0), ..all(&list, Load::Open) };
    let outcome = run(&pool, &mut Random::new(&pool, 0), &late);
    assert_eq!((outcome.prompt_tokens, outcome.within.prompt_tokens, outcome.within.decode_tokens), (500, 0, 3));
    assert!((as_s(outcome.within.in_flight_ns) - (whole_s - 1.0)).abs() < 1e-7, "{outcome:?}");
}

#[test]
fn requests_that_wait_for_a_node_are_batched() {
    // One node, one layer. Two requests decode together from the second round on: 10.1 ms for two against 10 ms for one.
    let pool = pool(vec![node(0, 1, 1.0, 10.0)]);
    let list = requests(&[(10, 2000), (10, 2000)]);
    let run_s = |load| {
        let asked = Run { requests: &list, load, warm_up: seconds(2.0), until: seconds(12.0) };
        hw::real(run(&pool, &mut Random::new(&pool, 0), &asked).decode_tokens) / 10.0
    };
    let (one, two) = (run_s(Load::Closed { in_flight: 1 }), run_s(Load::Closed { in_flight: 2 }));
    // A round is 10 ms of work and 4 ms of latency; two requests alternate between both, or share batches.
    assert!((one - 1.0 / 0.014_006).abs() < 1.0, "{one}");
    assert!(two > 1.3 * one && two <= 2.0 * one, "{two} after {one}");
}

#[test]
fn weights_are_realised_within_two_percent() {
    let mut pool = pool(vec![node(0, 1, 0.1, 1.0), node(0, 1, 0.1, 1.0), node(1, 2, 0.1, 1.0), node(1, 2, 0.1, 1.0)]);
    // 3 to 1 at the entrance; from the first node 1 to 2, from the second all to the last.
    let weight = |from: Option<usize>, to: Option<usize>| match (from, to) {
        (None, Some(0)) => 3.0,
        (Some(0), Some(3)) => 2.0,
        (Some(1), Some(2)) => 0.0,
        _ => 1.0,
    };
    pool.hops.iter_mut().for_each(|hop| hop.weight = weight(hop.from, hop.to));
    let shapes: Vec<(u32, u32)> = (0..2000).map(|i| (10 + i * 37 % 400, 1 + i * 13 % 50)).collect();
    let list = requests(&shapes);
    let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
    let outcome = run(&pool, &mut Flow::new(&pool, expected), &all(&list, Load::Closed { in_flight: 20 }));
    let tokens = |from, to| {
        let hop = pool.hops.iter().position(|hop| (hop.from, hop.to) == (from, to)).expect("a hop");
        hw::real(outcome.hop_tokens[hop])
    };
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.02;
    assert!(near(tokens(None, Some(0)) / tokens(None, Some(1)), 3.0));
    assert!(near(tokens(Some(0), Some(3)) / tokens(Some(0), Some(2)), 2.0));
    assert_eq!(tokens(Some(1), Some(2)), 0.0);
}

#[test]
fn a_cache_that_would_overflow_makes_requests_wait() {
    let mut small = node(0, 1, 0.1, 1.0);
    small.room.kv_tokens = 1000;
    let pool = pool(vec![small]);
    let list = requests(&[(300, 50); 40]);
    let expected = Expected { output_tokens: 50.0, high_water_ratio: 0.9 };
    let mut paths = Flow::new(&pool, expected);
    let outcome = run(&pool, &mut paths, &all(&list, Load::Open));
    // Two requests of 350 tokens fit below 900, three do not.
    assert_eq!((outcome.n_ended, outcome.n_waiting), (40, 0));
    assert!(outcome.kv_peak[0] <= 700, "{:?}", outcome.kv_peak);
    assert_eq!(paths.filled_ratio(), 0.0);
    // A prompt that no cache takes waits for ever.
    let list = requests(&[(950, 5)]);
    let outcome = run(&pool, &mut Flow::new(&pool, expected), &all(&list, Load::Open));
    assert_eq!((outcome.n_ended, outcome.n_waiting), (0, 1));
}

#[test]
fn a_filled_load_keeps_the_cache_near_its_level() {
    let pool = pool(vec![node(0, 1, 0.01, 1.0), node(1, 2, 0.01, 1.0)]);
    let list = requests(&[(400, 300); 10]);
    let expected = Expected { output_tokens: 300.0, high_water_ratio: 0.85 };
    let load = Load::Filled { start: 20, level_ratio: 0.8 };
    let asked = Run { requests: &list, load, warm_up: seconds(30.0), until: seconds(90.0) };
    let outcome = run(&pool, &mut Flow::new(&pool, expected), &asked);
    // 0.8 of 100,000 tokens are 114 requests of 700.
    let at_once = outcome.n_issued - outcome.n_ended;
    assert!((114..=122).contains(&at_once), "{at_once}");
}

#[test]
fn swarm_sends_less_to_slow_nodes() {
    let pool = pool(vec![node(0, 1, 0.01, 1.0), node(1, 2, 0.01, 10.0), node(1, 2, 0.01, 30.0)]);
    let list = requests(&[(10, 20); 300]);
    let outcome = run(&pool, &mut Swarm::new(&pool), &all(&list, Load::Closed { in_flight: 1 }));
    let tokens = |to| {
        let hop = pool.hops.iter().position(|hop| (hop.from, hop.to) == (Some(0), Some(to))).expect("a hop");
        hw::real(outcome.hop_tokens[hop])
    };
    // Ways are taken in inverse proportion to 12 and 32 ms.
    let ratio = tokens(1) / tokens(2);
    assert!((2.0..3.4).contains(&ratio), "{ratio}");
}

#[test]
fn layers_at_once_are_the_same_as_layer_by_layer() {
    // A hop into the middle of both nodes, which no one takes, makes them go layer by layer.
    let whole = pool(vec![node(0, 4, 0.3, 2.0), node(4, 9, 0.2, 3.0)]);
    let mut stepped = whole.clone();
    stepped.nodes.push(node(0, 3, 1.0, 1.0));
    stepped.nodes.push(node(0, 6, 1.0, 1.0));
    let hop = |from, to| Hop { from: Some(from), to: Some(to), weight: 0.0, bytes_per_s: 1e6, latency: Span::ZERO };
    stepped.hops.extend([hop(2, 0), hop(3, 1)]);
    let shapes: Vec<(u32, u32)> = (0..60).map(|i| (1 + i * 97 % 900, 1 + i * 31 % 40)).collect();
    let list = requests(&shapes);
    let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
    let asked = all(&list, Load::Open);
    let a = run(&whole, &mut Flow::new(&whole, expected), &asked);
    let b = run(&stepped, &mut Flow::new(&stepped, expected), &asked);
    assert_eq!((a.n_ended, a.prompt_ns.len(), a.decode_tokens), (60, 60, b.decode_tokens));
    // A sum of roundings to nanoseconds differs from the rounding of a sum, and a message may then just miss a batch.
    let mean = |ns: &[u64]| as_s(ns.iter().sum()) / hw::real(ns.len() as u64);
    assert!((mean(&a.prompt_ns) / mean(&b.prompt_ns) - 1.0).abs() < 1e-3);
    assert!((mean(&a.decode_ns) / mean(&b.decode_ns) - 1.0).abs() < 1e-3);
}

#[test]
fn who_enters_between_layers_joins_the_batch_there() {
    // Node 1 holds layers 1 to 4; requests that come from node 2 have done layer 1 already, and do three layers there.
    let mut mixed = pool(vec![node(0, 1, 0.01, 1.0), node(1, 5, 0.01, 1.0), node(0, 2, 0.01, 1.0)]);
    let inner = Hop { from: Some(2), to: Some(1), ..mixed.hops[0].clone() };
    mixed.hops.push(inner);
    let inner = mixed.hops.len() - 1;
    assert_eq!(mixed.layers_done(inner), 3);
    let list = requests(&[(100, 30); 50]);
    let outcome = run(&mixed, &mut Random::new(&mixed, 3), &all(&list, Load::Closed { in_flight: 8 }));
    assert!(outcome.n_ended >= 50 && outcome.hop_tokens[inner] > 0);
}

/// Loses a station after so many seconds, for so many.
fn outage(station: usize, at_s: f64, back_after_s: Option<f64>) -> Outage {
    let back_after = back_after_s.map(Seconds::new);
    Outage { group: station, replica: 0, at: seconds(at_s), notice: Seconds::ZERO, back_after }
}

fn changing(outages: Vec<Outage>) -> Changing {
    Changing { outages, failures: Vec::new() }
}

#[test]
fn a_request_on_a_lost_station_goes_again_by_another() {
    // Two stations with the one layer, the first with twice the weight. A prompt of 500 tokens: 1,000 bytes and back are 1 ms each, 2 ms of
    // latency twice, 0.5 ms of copying, 500 ms of work: 506.5 ms. A token: 2 us and 2 ms each way, 1 us of copying, 10 ms of work.
    let mut pool = pool(vec![node(0, 1, 1.0, 10.0), node(0, 1, 1.0, 10.0)]);
    pool.hops.iter_mut().filter(|hop| hop.to == Some(0)).for_each(|hop| hop.weight = 2.0);
    let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
    let list = requests(&[(500, 4)]);
    let (prompt_s, token_s) = (0.5065, 0.014_005);
    let served =
        |outages| serve_stations(&pool, &mut Flow::new(&pool, expected), &all(&list, Load::Open), &changing(outages));
    let near = |ns: &[u64], expected: &[f64]| {
        let found: Vec<f64> = ns.iter().map(|&ns| as_s(ns)).collect();
        let all = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-7);
        assert!(all && found.len() == expected.len(), "{found:?}, expected {expected:?}");
    };
    // Lost while it reads the prompt: it begins again on the other one.
    let outcome = served(vec![outage(0, 0.2, None)]);
    near(&outcome.prompt_ns, &[0.2 + prompt_s]);
    near(&outcome.decode_ns, &[token_s; 3]);
    assert_eq!((outcome.n_outages, outcome.n_retried, outcome.recomputed_tokens, outcome.n_ended), (1, 1, 500, 1));
    assert_eq!(outcome.kv_peak, [0, 503]);
    // Lost 5 ms after the second token, with the third under way: 502 tokens are computed again and give the third, and 503 would not be.
    let at = prompt_s + token_s + 0.005;
    let outcome = served(vec![outage(0, at, None)]);
    near(&outcome.prompt_ns, &[prompt_s]);
    // 502 tokens: 4 us more on each hop, 2 us of copying, 2 ms of work.
    let again_s = prompt_s + 2.0 * 4e-6 + 2e-6 + 0.002;
    near(&outcome.decode_ns, &[token_s, 0.005 + again_s, token_s]);
    assert_eq!((outcome.prompt_tokens, outcome.decode_tokens, outcome.recomputed_tokens), (500, 3, 502));
    // Both are lost; the second comes back a second later.
    let outcome = served(vec![outage(0, 0.2, None), outage(1, 0.3, Some(1.0))]);
    near(&outcome.prompt_ns, &[1.3 + prompt_s]);
    // No one comes back.
    let outcome = served(vec![outage(0, 0.2, None), outage(1, 0.3, None)]);
    assert_eq!((outcome.n_ended, outcome.n_waiting, outcome.n_retried), (0, 1, 2));
}

#[test]
fn a_batch_under_way_counts_up_to_the_end_or_the_loss() {
    // The prompt comes after 1 ms of sending and 2 ms of latency. It takes 500 ms and 0.5 ms of copying, of which 97 ms are played.
    let pool = pool(vec![node(0, 1, 1.0, 10.0), node(0, 1, 1.0, 10.0)]);
    let list = requests(&[(500, 4)]);
    let busy_ns = |until_s, outages| {
        let asked = Run { until: seconds(until_s), ..all(&list, Load::Open) };
        serve_stations(&pool, &mut Random::new(&pool, 0), &asked, &changing(outages)).busy_ns
    };
    let first = usize::from(busy_ns(0.1, Vec::new())[0] == 0);
    assert_eq!(busy_ns(0.1, Vec::new())[first], 97_000_000);
    // The first station is lost after 47 ms of work; the other one has the prompt 3 ms later.
    let outages = vec![outage(first, 0.05, None)];
    assert_eq!((busy_ns(0.1, outages.clone())[first], busy_ns(0.1, outages)[1 - first]), (47_000_000, 47_000_000));
}

#[test]
fn nobody_enters_a_station_from_which_nothing_leads_on() {
    // 0 leads to 2 alone, 1 to 2 and 3. While 2 is gone, 0 is of no use and everyone takes 1 and 3.
    let mut pool = pool(vec![node(0, 1, 0.1, 1.0), node(0, 1, 0.1, 1.0), node(1, 2, 0.1, 1.0), node(1, 2, 0.1, 1.0)]);
    pool.hops.retain(|hop| (hop.from, hop.to) != (Some(0), Some(3)));
    let list = requests(&[(100, 10); 40]);
    let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
    let ways: [Box<dyn Paths>; 3] =
        [Box::new(Random::new(&pool, 1)), Box::new(Swarm::new(&pool)), Box::new(Flow::new(&pool, expected))];
    for mut paths in ways {
        let lost = changing(vec![outage(2, 0.0, None)]);
        let outcome = serve_stations(&pool, paths.as_mut(), &all(&list, Load::Open), &lost);
        let into = |to| {
            pool.hops.iter().zip(&outcome.hop_tokens).filter(|(hop, _)| hop.to == Some(to)).map(|(_, n)| n).sum::<u64>()
        };
        assert_eq!((outcome.n_ended, into(2)), (40, 0));
        assert!(into(0) <= 100 && into(3) >= 40 * 109, "{:?}", outcome.hop_tokens);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_token_comes_once_though_stations_fail(
        shapes in prop::collection::vec((1_u32..600, 1_u32..40), 1..30),
        mtbf_s in 2.0_f64..20.0,
        seed in 0_u64..1000,
    ) {
        let nodes = [(0, 2), (0, 2), (2, 3), (2, 3), (0, 3)].map(|(first, end)| node(first, end, 0.5, 5.0));
        let pool = pool(nodes.into());
        let list = requests(&shapes);
        let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
        let failures = Failures { mtbf: Seconds::new(mtbf_s), mttr: Seconds::new(1.0), seed };
        let changing = Changing { outages: Vec::new(), failures: vec![Some(failures); 5] };
        let mut ways: [Box<dyn Paths>; 3] =
            [Box::new(Random::new(&pool, seed)), Box::new(Swarm::new(&pool)), Box::new(Flow::new(&pool, expected))];
        for paths in &mut ways {
            let asked = Run { until: seconds(600.0), ..all(&list, Load::Open) };
            let outcome = serve_stations(&pool, paths.as_mut(), &asked, &changing);
            let total: u64 = shapes.iter().map(|(prompt, output)| u64::from(prompt + output - 1)).sum();
            prop_assert_eq!((outcome.n_ended, outcome.n_waiting), (shapes.len() as u64, 0));
            prop_assert_eq!(outcome.prompt_tokens + outcome.decode_tokens, total);
            prop_assert_eq!(outcome.prompt_ns.len(), shapes.len());
            prop_assert!(outcome.n_outages > 0);
        }
    }

    #[test]
    fn tokens_are_conserved_and_nothing_is_faster_than_alone(
        shapes in prop::collection::vec((1_u32..600, 1_u32..40), 1..40),
        cuts in prop::collection::vec(1_u32..5, 2..4),
        copies in 1_usize..3,
        seed in 0_u64..100,
    ) {
        let mut nodes = Vec::new();
        let mut first = 0;
        for n in cuts {
            nodes.extend((0..copies).map(|_| node(first, first + n, 0.05, 1.5)));
            first += n;
        }
        let pool = pool(nodes);
        let list = requests(&shapes);
        let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
        let mut ways: [Box<dyn Paths>; 3] =
            [Box::new(Random::new(&pool, seed)), Box::new(Swarm::new(&pool)), Box::new(Flow::new(&pool, expected))];
        for paths in &mut ways {
            let outcome = run(&pool, paths.as_mut(), &all(&list, Load::Open));
            let total: u64 = shapes.iter().map(|(prompt, output)| u64::from(prompt + output - 1)).sum();
            let over = |from: Option<usize>| -> u64 { pool.ways(from).iter().map(|&hop| outcome.hop_tokens[hop]).sum() };
            let into = |to: Option<usize>| -> u64 {
                (0..pool.hops.len()).filter(|&hop| pool.hops[hop].to == to).map(|hop| outcome.hop_tokens[hop]).sum()
            };
            prop_assert_eq!(outcome.n_ended, shapes.len() as u64);
            prop_assert_eq!(outcome.prompt_tokens + outcome.decode_tokens, total);
            prop_assert_eq!((over(None), into(None)), (total, total));
            for node in 0..pool.nodes.len() {
                prop_assert_eq!(over(Some(node)), into(Some(node)));
            }
            // Alone, a token takes 1.5 ms in every layer and 2 ms on every hop.
            let least = 1.5e-3 * f64::from(first) + 2e-3 * 3.0;
            prop_assert!(outcome.decode_ns.iter().all(|&ns| as_s(ns) >= least - 1e-9));
            prop_assert!(outcome.prompt_ns.len() == shapes.len());
        }
    }
}
