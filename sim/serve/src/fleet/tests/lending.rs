//! Replicas that lend each other memory: against the loop of instances that shared memory before fleets did, against single steps, and
//! against a fleet that lends nothing.

use hw::{BytesPerSecond, Seconds, Time};

use super::*;
use crate::kv::lending::{Borrow, Exchange, Party, Terms};
use crate::kv_sharing::run as old;
use crate::router::{Router, View};
use crate::step_cost::ticks_of;

const HEARTBEAT_S: f64 = 0.1;

fn exchange() -> Exchange {
    let (latency, bandwidth) = (Seconds::new(5e-6), BytesPerSecond::new(25e9));
    Exchange { bytes_per_token: 16_640, n_layers: 32, latency, bandwidth }
}

/// An iteration takes 10 ms, 10 µs per token and 0.3 µs per cached token.
fn table() -> StepTable {
    StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-5), Seconds::new(3e-7))
}

fn lender(batcher: &str, kv_blocks: u32, spans: Spans) -> Engine {
    let base = engine(32);
    let limits = Limits { kv_blocks, ..base.limits };
    Engine { limits, table: table(), batcher: batcher::named(batcher).expect("listed"), spans }
}

fn terms(borrow: Borrow, plans_moves: bool, lent_max: u32, n_groups: usize) -> Terms {
    let party = Party { lent_max, borrows: true, per_node: 2, exchange: exchange() };
    let (heartbeat, block_bytes) = (Seconds::new(HEARTBEAT_S), 16 * 524_288);
    Terms { borrow, plans_moves, heartbeat, block_bytes, parties: vec![party; n_groups] }
}

fn fleet(engine: &Engine, n: u32, lending: Option<Terms>) -> Fleet {
    Fleet { lending, ..Fleet::of(Group::new("lenders", engine.clone(), n)) }
}

fn by(router: &str) -> Box<dyn Router> {
    (router::named(router).expect("listed").make)(7)
}

fn moments(served: &Served) -> Vec<(Option<Time>, Option<Time>)> {
    served.records.list.iter().map(|record| (record.first_token(), record.finished())).collect()
}

/// The loop of instances that shared memory before fleets did.
fn before(requests: &Requests, table: &StepTable, n: usize, blocks: u64, sharing: old::Sharing, prefill: old::Prefill) -> old::Outcome {
    let Exchange { bytes_per_token, n_layers, latency, bandwidth } = exchange();
    let exchange = crate::kv_sharing::Exchange { bytes_per_sequence: bytes_per_token, n_layers, latency, bandwidth };
    let cluster = old::Cluster {
        table,
        n_instances: n,
        per_node: 2,
        blocks,
        block_tokens: 16,
        block_bytes: 16 * 524_288,
        lent_max: blocks,
        sequences_max: 32,
        tokens_max: 512,
        exchange,
        heartbeat: ticks_of(Seconds::new(HEARTBEAT_S)),
        sharing,
        prefill,
    };
    old::serve(requests, &cluster)
}

fn moments_before(outcome: &old::Outcome) -> Vec<(Option<Time>, Option<Time>)> {
    let time = |ticks: &Option<u64>| ticks.map(crate::step_cost::time_of);
    outcome.first.iter().zip(&outcome.end).map(|(first, end)| (time(first), time(end))).collect()
}

/// Requests of random lengths, a share of them long.
fn trace(seed: u64, n: u64, short: (u64, u64), long: (u64, u64), per_s: f64) -> Requests {
    let mut stream = random::stream(seed, "trace");
    let mut draw = |from: u64, to: u64| u32::try_from(from + stream.below(to - from + 1)).expect("small");
    let mut list = Vec::new();
    for _ in 0..n {
        let (from, to) = if draw(0, 7) == 0 { long } else { short };
        list.push(Request::new(Time::ZERO, draw(from, to), draw(1, 60)));
    }
    let mut requests = Requests::of(list);
    lay(&mut requests, Arrivals::Poisson { per_s }, seed);
    requests
}

#[test]
fn one_replica_does_what_the_loop_of_shared_memory_did() {
    for seed in 0..6 {
        let requests = trace(seed, 200, (10, 400), (400, 900), [5.0, 20.0, 60.0][seed as usize % 3]);
        let old = before(&requests, &table(), 1, 40_000, old::Sharing::Off, old::Prefill::Here);
        let served = fleet(&lender("sarathi", 40_000, Spans::Closed), 1, None).serve(&requests, by("round-robin").as_mut());
        assert_eq!(moments(&served), moments_before(&old), "seed {seed}");
    }
}

#[test]
fn outputs_alone_are_what_the_loop_of_shared_memory_made_of_them() {
    for seed in 0..6 {
        let requests = trace(seed, 200, (10, 400), (400, 900), [5.0, 20.0, 60.0][seed as usize % 3]);
        let old = before(&requests, &table(), 1, 40_000, old::Sharing::Off, old::Prefill::Elsewhere);
        // That loop let the first output token follow the whole prompt: it attended to a key too many.
        let mut longer = requests.clone();
        longer.list.iter_mut().for_each(|request| request.prompt += 1);
        let mut fleet = fleet(&lender("sarathi", 40_000, Spans::Closed), 1, None);
        fleet.groups[0].role = Role::Outputs;
        let served = fleet.serve(&longer, by("round-robin").as_mut());
        assert_eq!(moments(&served), moments_before(&old), "seed {seed}");
    }
}

/// The first request to the first replica, all others to the second one.
struct FirstApart;

impl Router for FirstApart {
    fn choose(&mut self, request: u32, _view: &View<'_, '_>) -> u32 {
        u32::from(request > 0)
    }
}

#[test]
fn a_lender_beside_its_own_requests_is_as_slow_as_it_was_in_the_loop_of_shared_memory() {
    // A request of 15 to 20 blocks on two replicas of 12: the rest lies on the other one, which serves small requests meanwhile.
    let model = engine::model::embedded("llama-2-7b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 1);
    let config = crate::step_cost::ReplicaConfig::new(&model, &cluster, 1);
    let roofline = engine::cost::roofline::Roofline::new(&cluster);
    let real = StepTable::new(&config, (512, 32), &roofline, engine::play::Case::Expected);
    for (name, table) in [("linear", table()), ("roofline", real)] {
        for seed in 0..5 {
            let mut requests = trace(seed, 12, (1, 16), (1, 16), 3.0);
            requests.list[0] = Request::new(Time::ZERO, 240 + 16 * u32::try_from(seed).expect("small"), 150);
            let old = before(&requests, &table, 2, 12, old::Sharing::Borrow, old::Prefill::Here);
            let engine = Engine { table: table.clone(), ..lender("sarathi", 12, Spans::Closed) };
            let served = fleet(&engine, 2, Some(terms(Borrow::WhenShort, false, 12, 1))).serve(&requests, &mut FirstApart);
            assert_eq!(moments(&served), moments_before(&old), "{name}, seed {seed}");
            assert_eq!(served.loaned.borrowed_blocks, old.counts.borrowed_blocks, "{name}, seed {seed}");
            assert!(old.counts.borrowed_blocks > 3);
        }
    }
}
