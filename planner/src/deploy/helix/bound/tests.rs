//! Two nodes in closed form that reach the bound, and random machines, placements, loads and schedulers that never pass it.

use hw::{Seconds, Span, Time};
use proptest::prelude::*;
use serve::fleet::{Changing, serve_stations};
use serve::pool::path::flow::Expected;
use serve::pool::path::{Flow, Paths, Random, Swarm};
use serve::pool::{Hop, Load, Node, NodeType, Outcome, Passed, Run};
use serve::request::Request;

use super::*;
use crate::deploy::helix::{Fill, Range, Typical, max_flow};
use crate::deploy::inventory::{Inventory, Link, Network, Offer};

fn curve(points: &[(f64, f64)]) -> Curve {
    Curve::new(points.to_vec()).expect("rising")
}

#[test]
fn what_rounding_leaves_of_a_flat_curve_is_no_time() {
    let of =
        |slope: f64| Speed::new(&curve(&[(1.0, slope), (2.0, 2.0 * slope)]), &curve(&[(1.0, 1.0)]), 10, 1).prompt_s;
    assert_eq!([1e-22, 1e-6].map(of), [0.0, 1e-6]);
}

fn seconds(at: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(at))
}

/// Layers 0 and 1 at 4 µs a prompt token and 10 ms a batch of generated ones, layers 2 to 4 at 2 µs and 20 ms; 2 ms and 1 GB/s between
/// them; activations of 98 bytes, copied at 98 MB/s, so in 1 µs; identities of 2 bytes.
fn two_nodes() -> Pool {
    let node = |first, end, prompt_us: f64, decode_s| Node {
        name: format!("{first}..{end}"),
        first,
        end,
        prompt: curve(&[(1000.0, prompt_us * 1e-3)]),
        decode: curve(&[(1.0, decode_s), (101.0, 2.0 * decode_s)]),
        room: Room { layers: end - first, kv_tokens: 100_000, prompts: 2, decodes: 64 },
    };
    let hop = |from, to| Hop { from, to, weight: 1.0, bytes_per_s: 1e9, latency: Span::from_ns(2_000_000) };
    Pool {
        n_layers: 5,
        nodes: vec![node(0, 2, 4.0, 0.010), node(2, 5, 2.0, 0.020)],
        hops: vec![hop(None, Some(0)), hop(Some(0), Some(1)), hop(Some(1), None)],
        activation_bytes: 98.0,
        token_bytes: 2.0,
        copy_bytes_per_s: 98e6,
        prompt_tokens_max: 2048,
        context_per_decode: 1000,
    }
}

/// Tokens per second that passed from the start on, and the bound.
fn from_start(pool: &Pool, requests: &[Request], load: Load, until_s: f64) -> (f64, Bound) {
    let asked = Run { requests, load, warm_up: Time::ZERO, until: seconds(until_s) };
    let outcome = serve_stations(pool, &mut Random::new(pool, 0), &asked, &Changing::default());
    let traffic = Traffic::of_run(&outcome.from_start, until_s, longest(requests)).expect("tokens");
    (hw::real(outcome.from_start.tokens()) / until_s, on_pool(pool, &traffic).expect("a bound"))
}

fn longest(requests: &[Request]) -> u32 {
    requests.iter().map(|request| request.prompt).max().unwrap_or(0)
}

#[test]
fn prompts_alone_reach_the_slower_of_two_nodes() {
    // A prompt token takes 2 x 4 µs and 1 µs of copying on the first node, 3 x 2 µs and 1 µs on the second: 1 / 9 µs.
    let list = vec![Request::new(Time::ZERO, 50_000, 1); 4];
    let (passed, bound) = from_start(&two_nodes(), &list, Load::Closed { in_flight: 8 }, 100.0);
    assert!((bound.value * 9e-6 - 1.0).abs() < 1e-6, "{bound:?}");
    assert_eq!(bound.limit, "1 of 2 nodes always at work");
    // A prompt takes 0.45 s; the last one is on its way, and there is the second node's 0.35 s before the first is through.
    assert!(passed <= bound.value && passed > 0.985 * bound.value, "{passed}, {bound:?}");
}

#[test]
fn a_request_alone_reaches_the_time_of_its_round() {
    // A token: 2 x 10 ms and 3 x 20 ms of work, 1 µs of copying at either node, 2 ms on each of three hops, (2 + 100 + 2) / 1e9 s.
    let round_s = 0.020 + 0.060 + 2e-6 + 0.006 + 104e-9;
    let list = [Request::new(Time::ZERO, 1, 100_000)];
    let (passed, bound) = from_start(&two_nodes(), &list, Load::Open, 200.0);
    // The prompt of one token is quicker; no bound knows that its hops have a latency too.
    assert!((bound.value * round_s - 1.0).abs() < 1e-3, "{bound:?}");
    assert_eq!(bound.limit, "1.0 requests in flight");
    assert!(passed <= bound.value && passed > 0.999 * bound.value, "{passed}, {bound:?}");
}

#[test]
fn a_full_cache_is_a_number_of_requests() {
    // 100,000 tokens in every layer are 40 requests of 2,500 tokens; half of them twice as large and half of them small come to the same
    // only where every token takes equally long, so it can only be more.
    let traffic = |held| Traffic { prompt_share: 0.0, prompt_max: 1, held, token_s_max: f64::INFINITY };
    let rate = |held| on_pool(&two_nodes(), &traffic(held)).expect("a bound").value;
    let same = Held::Cached(vec![Holding { tokens: 2500.0, share: 1.0 }]);
    let half = |tokens| Holding { tokens, share: 0.5 };
    let (cached, flying) = (rate(same), rate(Held::InFlight(40.0)));
    assert!((cached / flying - 1.0).abs() < 1e-6, "{cached} and {flying}");
    assert!(rate(Held::Cached(vec![half(500.0), half(4500.0)])) >= cached * (1.0 - 1e-9));
    assert_eq!(rate(Held::InFlight(0.0)), 0.0);
}

/// Machines of two types with times, limits and links by chance.
fn machines() -> impl Strategy<Value = Machines> {
    let times = |most: u32| prop::collection::vec((1..=most, 1_u32..=60), 1..4);
    let node = (times(400), times(12), 1_u32..=3, 1_u32..=12).prop_map(|(prompt, decode, prompts, decodes)| {
        // Tokens add up, times are in tenths of a millisecond and may fall.
        let of = |steps: Vec<(u32, u32)>| {
            let mut at = 0;
            let points = steps.into_iter().map(|(more, time)| {
                at += more;
                (f64::from(at), f64::from(time) * 1e-4)
            });
            curve(&points.collect::<Vec<_>>())
        };
        NodeType {
            name: format!("{prompts} and {decodes}"),
            prompt: of(prompt),
            decode: of(decode),
            rooms: (1..=6)
                .map(|layers| Room { layers, kv_tokens: 9000 / u64::from(layers), prompts, decodes })
                .collect(),
            layers_max: 6,
            layers_typical: 2,
        }
    });
    let link = (1e6..1e8_f64, 0.0..5e-3_f64).prop_map(|(bytes_per_s, latency_s)| Link { bytes_per_s, latency_s });
    let pool =
        (2_u32..=6, prop::collection::vec((0_usize..2, 0_u32..2), 2..6), any::<bool>(), 1e5..1e8_f64, 50_u32..500);
    (prop::collection::vec(node, 2), (link.clone(), link), pool).prop_map(
        |(types, (within, between), (n_layers, members, is_strict, copy_bytes_per_s, prompt_tokens_max))| Machines {
            n_layers,
            activation_bytes: 100.0,
            inventory: Inventory {
                offers: members
                    .into_iter()
                    .map(|(of, region)| Offer { region, ..Offer::priced(types[of].name.clone(), 0.0, 1) })
                    .collect(),
                network: Network { within, between, card_bytes_per_s: 1e8, coordinator: None },
            },
            tensor: 1,
            hosts: Vec::new(),
            types,
            typical: Typical { prompt: 100.0, output: 20.0, cache_ratio: 0.3 },
            hand_over: if is_strict { HandOver::Strict } else { HandOver::Partial },
            copy_bytes_per_s,
            prompt_tokens_max,
            context_per_decode: 200,
        },
    )
}

/// A chain of the first two nodes, and any ranges on the others.
fn ranges(machines: &Machines, seed: u64) -> Vec<Range> {
    let mut random = engine::random::stream(seed, "ranges");
    let mut draw = |n: u32| u32::try_from(random.below(u64::from(n))).expect("few");
    let n = machines.n_layers;
    let cut = 1 + draw(n - 1);
    let mut all = vec![Range { first: 0, end: cut }, Range { first: cut, end: n }];
    for _ in 2..machines.inventory.offers.len() {
        let first = draw(n);
        all.push(Range { first, end: first + 1 + draw(n - first) });
    }
    all
}

/// Requests with times at which they arrive, where they do.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec((0_u32..400, 1_u32..600, 1_u32..60), 1..40).prop_map(|shapes| {
        let mut at = Time::ZERO;
        let request = |(pause_ms, prompt, output)| {
            at = at + Span::from_ns(u64::from(pause_ms) * 1_000_000);
            Request::new(at, prompt, output)
        };
        shapes.into_iter().map(request).collect()
    })
}

fn load() -> impl Strategy<Value = Load> {
    prop_oneof![
        (1_u32..30).prop_map(|in_flight| Load::Closed { in_flight }),
        (1_u32..30, 0.1..0.9_f64).prop_map(|(start, level_ratio)| Load::Filled { start, level_ratio }),
        Just(Load::Open),
    ]
}

const WARM_UP_S: f64 = 3.0;
const UNTIL_S: f64 = 12.0;

/// What passed in a span over its bounds on the placement and on any; at most 1 but for the rounding of times to nanoseconds.
fn ratios(machines: &Machines, pool: &Pool, passed: &Passed, spent: (f64, u32)) -> Option<(f64, f64)> {
    let traffic = Traffic::of_run(passed, spent.0, spent.1)?;
    let rate = hw::real(passed.tokens()) / spent.0;
    let here = on_pool(pool, &traffic).unwrap_or_else(|why| panic!("{why:?} of {traffic:?}")).value;
    let anywhere = machines.any_placement(&traffic).expect("a bound").value;
    assert!(anywhere >= here * (1.0 - 1e-6), "{anywhere} anywhere, {here} here");
    Some((rate / here, rate / anywhere))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_run_passes_its_bound(
        machines in machines(),
        list in requests(),
        load in load(),
        seed in any::<u64>(),
    ) {
        let ranges = ranges(&machines, seed);
        let pool = machines.pool(&ranges, None).expect("the first two nodes are a pipeline");
        let flow = max_flow(&machines.cluster(Fill::Full), &ranges);
        let planned = machines.pool(&ranges, Some(&flow)).ok();
        let expected = Expected { output_tokens: 20.0, high_water_ratio: 0.9 };
        let mut ways: Vec<(&Pool, Box<dyn Paths + '_>)> =
            vec![(&pool, Box::new(Random::new(&pool, seed))), (&pool, Box::new(Swarm::new(&pool)))];
        ways.extend(planned.as_ref().map(|pool| (pool, Box::new(Flow::new(pool, expected)) as Box<dyn Paths + '_>)));
        for (pool, mut paths) in ways {
            let asked = Run { requests: &list, load, warm_up: seconds(WARM_UP_S), until: seconds(UNTIL_S) };
            let outcome: Outcome = serve_stations(pool, paths.as_mut(), &asked, &Changing::default());
            let spans = [(&outcome.from_start, UNTIL_S), (&outcome.within, UNTIL_S - WARM_UP_S)];
            for (passed, span_s) in spans {
                if let Some(ratios) = ratios(&machines, pool, passed, (span_s, longest(&list))) {
                    prop_assert!(ratios.0 <= 1.0 + 1e-5 && ratios.1 <= 1.0 + 1e-5, "{ratios:?} of {passed:?}");
                }
            }
            prop_assert!(outcome.within.tokens() <= outcome.prompt_tokens + outcome.decode_tokens);
        }
    }

    #[test]
    fn no_placement_passes_the_bound_of_all(machines in machines(), list in requests(), seed in any::<u64>()) {
        let traffic = Traffic::of_requests(&list).expect("prompts");
        let pool = machines.pool(&ranges(&machines, seed), None).expect("the first two nodes are a pipeline");
        let here = on_pool(&pool, &traffic).expect("a bound");
        let anywhere = machines.any_placement(&traffic).expect("a bound");
        prop_assert!(here.value <= anywhere.value * (1.0 + 1e-6), "{here:?}, {anywhere:?}");
    }

    #[test]
    fn the_hull_has_the_best_batch_for_any_price(
        steps in prop::collection::vec((1_u32..9, 1_u32..50), 1..6),
        most in 1_u32..40,
        price in 0.0..10.0_f64,
    ) {
        let mut at = 0.0;
        let points = steps.into_iter().map(|(more, time)| {
            at += f64::from(more);
            (at, f64::from(time))
        });
        let decode = curve(&points.collect::<Vec<_>>());
        let cost = |(node, request): (f64, f64)| node + price * request;
        let least = |all: Vec<(f64, f64)>| all.into_iter().map(cost).fold(f64::INFINITY, f64::min);
        let all = (1..=most).map(|d| (decode.at(f64::from(d)) / f64::from(d), decode.at(f64::from(d))));
        let (hull, every) = (least(batches(&decode, most)), least(all.collect()));
        prop_assert!((hull - every).abs() <= 1e-9 * every.max(1.0), "{hull}, {every}");
    }
}
