//! Claims about shared KV memory, against small cases by hand and random traces.

use hw::{BytesPerSecond, Seconds, Time};

use super::Exchange;
use super::ledger::{Heartbeat, Ledger, cancel_cycles};
use super::performance::{Load, Rates};
use super::pool::{Pool, Refusal};
use super::run::{Cluster, Outcome, Prefill, Sharing, serve};
use crate::request::{Request, Requests};
use crate::step_cost::{StepTable, ticks_of};
use engine::random::{self, Stream};

const EXCHANGE: Exchange =
    Exchange { bytes_per_sequence: 16_640, n_layers: 32, latency: Seconds::ZERO, bandwidth: BytesPerSecond::ZERO };

fn exchange() -> Exchange {
    Exchange { latency: Seconds::new(5e-6), bandwidth: BytesPerSecond::new(25e9), ..EXCHANGE }
}

/// An iteration takes 10 ms, 10 µs per token and 0.3 µs per cached token.
fn table() -> StepTable {
    StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-5), Seconds::new(3e-7))
}

fn cluster(table: &StepTable, sharing: Sharing, n_instances: usize, blocks: u64) -> Cluster<'_> {
    Cluster {
        table,
        n_instances,
        per_node: 2,
        blocks,
        block_tokens: 16,
        block_bytes: 16 * 524_288,
        lent_max: blocks,
        sequences_max: 32,
        tokens_max: 512,
        exchange: exchange(),
        heartbeat: ticks_of(Seconds::new(0.1)),
        sharing,
        prefill: Prefill::Here,
    }
}

fn draw(stream: &mut Stream, from: u64, to: u64) -> u32 {
    u32::try_from(from + stream.below(to - from + 1)).expect("small")
}

/// Requests of random lengths, a share of them long.
fn trace(seed: u64, n: u64, short: (u64, u64), long: (u64, u64)) -> Requests {
    let mut stream = random::stream(seed, "trace");
    let list = (0..n).map(|index| {
        let (from, to) = if stream.below(8) == 0 { long } else { short };
        let prompt = draw(&mut stream, from, to);
        let output = draw(&mut stream, 1, 60);
        Request::new(Time::from_ns(index * 20_000_000), prompt, output)
    });
    Requests::of(list.collect())
}

fn served(outcome: &Outcome) -> usize {
    outcome.end.iter().flatten().count()
}

#[test]
fn a_lender_refuses_what_it_has_not_and_nothing_changes() {
    let mut pool = Pool::new(vec![10, 10, 10], 6);
    pool.take(0, 0, 10).expect("free");
    pool.take(0, 1, 4).expect("lent");
    let before = pool.clone();
    assert_eq!(pool.take(0, 1, 7), Err(Refusal::Full));
    // Instance 2 is empty, but instance 1 does not ask it: no chains.
    assert_eq!(pool.take(2, 1, 3), Err(Refusal::Cap));
    assert_eq!(pool, before);
    assert_eq!((pool.lent(1), pool.borrowed(0), pool.free(1), pool.debt()), (4, 4, 6, 4));
    let placed = [10, 4, 0];
    assert_eq!(pool.check([(0, &placed[..])].into_iter()), Ok(()));
    assert!(pool.check(std::iter::empty()).is_err(), "blocks that nobody holds are found");
    pool.give(0, 1, 4);
    assert_eq!(pool.debt(), 0);
}

#[test]
fn lenders_with_room_nearby_are_asked_first() {
    let mut ledger = Ledger::new(5, 2);
    for (instance, free, n_waiting) in [(0, 9, 0), (1, 1, 0), (2, 5, 0), (3, 8, 0), (4, 9, 2)] {
        ledger.note(instance, Heartbeat { free, n_waiting });
    }
    // Instance 1 shares the node of 0; then by room; 4 has requests of its own that wait.
    assert_eq!(ledger.candidates(0), [1, 3, 2, 4]);
}

#[test]
fn cancelling_cycles_lowers_debt_keeps_net_positions_and_leaves_no_cycle() {
    let mut stream = random::stream(11, "debts");
    for _ in 0..300 {
        let n = 2 + usize::try_from(stream.below(5)).expect("small");
        let debts: Vec<Vec<u64>> = (0..n)
            .map(|a| (0..n).map(|b| if a == b || stream.below(3) > 0 { 0 } else { 1 + stream.below(9) }).collect())
            .collect();
        let paid = cancel_cycles(&debts);
        let mut after = debts.clone();
        for repayment in &paid {
            assert!(repayment.blocks > 0, "every repayment lowers the debt");
            after[repayment.debtor][repayment.lender] -= repayment.blocks;
        }
        let net = |debts: &[Vec<u64>], of: usize| {
            let (owed, lent): (u64, u64) = (debts[of].iter().sum(), debts.iter().map(|row| row[of]).sum());
            i64::try_from(owed).expect("small") - i64::try_from(lent).expect("small")
        };
        (0..n).for_each(|of| assert_eq!(net(&debts, of), net(&after, of)));
        assert!(!has_cycle(&after), "{debts:?} became {after:?}");
        assert_eq!(paid.is_empty(), !has_cycle(&debts));
    }
}

/// Removes instances that owe nothing until none is left or all left owe somebody (Kahn's order).
fn has_cycle(debts: &[Vec<u64>]) -> bool {
    let mut left: Vec<usize> = (0..debts.len()).collect();
    loop {
        let before = left.len();
        let known = left.clone();
        left.retain(|&a| known.iter().any(|&b| debts[a][b] > 0));
        if left.len() == before {
            return before > 0;
        }
    }
}

#[test]
fn the_planner_never_lowers_the_modelled_rate() {
    let table = table();
    let rates = Rates { table: &table, exchange: exchange() };
    let mut stream = random::stream(13, "loads");
    let mut n_moves = 0;
    for _ in 0..800 {
        let n = 2 + usize::try_from(stream.below(5)).expect("small");
        let loads: Vec<Load> = (0..n)
            .map(|_| {
                let own_tokens = 1000 + stream.below(100_000);
                Load {
                    n_running: draw(&mut stream, 1, 30),
                    own_tokens,
                    hosted_tokens: 0,
                    remote_tokens: vec![0; n],
                    n_remote: 0,
                    free_tokens: stream.below(60_000),
                    waiting: (0..stream.below(4)).map(|_| 1 + stream.below(20_000)).collect(),
                    movable_tokens: own_tokens / 2,
                }
            })
            .collect();
        let moves = rates.plan(&loads);
        n_moves += moves.len();
        // Replays the moves one by one: each is within bounds, and the total only rises.
        let mut now = loads.clone();
        let mut total = rates.total(&now);
        for step in &moves {
            assert!(step.debtor != step.lender && step.tokens <= now[step.lender].free_tokens, "{step:?}");
            now = super::performance::moved(&now, *step);
            assert!(rates.total(&now) > total, "{step:?}");
            total = rates.total(&now);
        }
    }
    assert!(n_moves > 40, "{n_moves} moves are too few to say anything");
}

#[test]
fn with_room_for_all_sharing_changes_nothing() {
    let table = table();
    let requests = trace(1, 200, (10, 400), (10, 400));
    let alone = serve(&requests, &cluster(&table, Sharing::Off, 4, 4000));
    assert_eq!(served(&alone), 200);
    for sharing in [Sharing::Borrow, Sharing::Planned] {
        let shared = serve(&requests, &cluster(&table, sharing, 4, 4000));
        assert_eq!((&shared.first, &shared.end), (&alone.first, &alone.end));
        assert_eq!(shared.counts.borrowed_blocks, 0);
    }
}

#[test]
fn random_traces_keep_every_invariant_and_serve_whatever_fits() {
    let table = table();
    let (mut borrowed, mut preempted, mut cancelled) = (0, 0, 0);
    for seed in 0..40 {
        // 40 blocks of 16 tokens are 640; long requests need up to 1,900 of four instances' 2,560.
        let requests = trace(seed, 60, (10, 300), (500, 1_900));
        for sharing in [Sharing::Off, Sharing::Borrow, Sharing::Planned] {
            let mut cluster = cluster(&table, sharing, 4, 40);
            cluster.prefill = if seed % 4 == 3 { Prefill::Elsewhere } else { Prefill::Here };
            cluster.lent_max = [40, 25, 40][usize::try_from(seed % 3).expect("small")];
            // The event loop itself checks the ledger at every event of a debug build.
            let outcome = serve(&requests, &cluster);
            for (index, request) in requests.list.iter().enumerate() {
                let tokens = u64::from(request.prompt + request.output - 1);
                let fits = tokens.div_ceil(16) * 16 <= cluster.context_max();
                assert_eq!(outcome.end[index].is_some(), fits, "{sharing:?}, seed {seed}: request {index}");
                if let (Some(first), Some(end)) = (outcome.first[index], outcome.end[index]) {
                    let arrival = request.arrival.as_ns() * 1024;
                    let steps = u64::from(request.output - 1) * ticks_of(Seconds::new(1e-2));
                    assert!(arrival < first && first + steps <= end, "{sharing:?}, seed {seed}: request {index}");
                }
            }
            borrowed += outcome.counts.borrowed_blocks;
            preempted += outcome.counts.preempted;
            cancelled += outcome.counts.cancelled_blocks;
            assert_eq!(serve(&requests, &cluster), outcome, "the same trace gives the same result");
        }
    }
    assert!(borrowed > 0 && preempted > 0, "{borrowed} blocks borrowed, {preempted} requests preempted");
    assert!(cancelled > 0, "no cycle of debts ever arose");
}

#[test]
fn eight_instances_hold_eight_times_the_context_of_one() {
    let table = table();
    let context = |sharing| cluster(&table, sharing, 8, 100).context_max();
    assert_eq!((context(Sharing::Off), context(Sharing::Borrow)), (1600, 12_800));
    // 750 blocks, 100 of them at home; the first new block sends a 64th of the home blocks and one more away.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 12_000, 10)]);
    assert_eq!(served(&serve(&requests, &cluster(&table, Sharing::Off, 8, 100))), 0);
    let shared = serve(&requests, &cluster(&table, Sharing::Borrow, 8, 100));
    assert_eq!((served(&shared), shared.counts.borrowed_blocks), (1, 652));
}

#[test]
fn lent_attention_hides_behind_the_own_and_slows_the_lender() {
    // One request of 320 tokens on two instances of 10 blocks: 160 tokens here, 160 there. Its first iteration takes 512 of the prompt's
    // tokens at 10 µs and 10 ms; then one decode per 10 ms + 10 µs, plus 0.3 µs for each token at home, plus what the way of the
    // query takes beyond that: 32 · (5 µs + 16,640 B / 25 GB/s) + 160 · 0.3 µs − own attention.
    let table = table();
    let requests = Requests::of(vec![Request::new(Time::ZERO, 310, 2)]);
    let outcome = serve(&requests, &cluster(&table, Sharing::Borrow, 2, 10));
    let us = |ticks: u64| hw::Tokens(ticks).as_f64() / 1024e3;
    assert!((us(outcome.first[0].expect("served")) - (10_000.0 + 3_100.0)).abs() < 0.1);
    let own = 0.3 * (311.0 - 160.0);
    let way = 32.0 * (5.0 + 16_640.0 / 25e3) + 0.3 * 160.0;
    let expected = 10_000.0 + 10.0 + own + (way - own);
    let found = us(outcome.end[0].expect("served") - outcome.first[0].expect("served"));
    assert!((found - expected).abs() < 0.1, "{found} µs, expected {expected}");
}

#[test]
fn shipping_queries_is_less_than_keys_from_two_tokens_on() {
    // LLaMA-2-7B: 16.6 KB per layer and token to a shard, 532 KB over all layers, against 512 KB of keys and values per cached token.
    let model = engine::model::embedded("llama-2-7b").expect("listed");
    let exchange = Exchange::of(&model, Seconds::ZERO, BytesPerSecond::new(1e9));
    assert_eq!((exchange.bytes_per_sequence, exchange.bytes_per_sequence * exchange.n_layers), (16_640, 532_480));
    let keys = crate::decode_attention::kv_bytes_per_token(&model, 1, 2);
    assert!(532_480 > keys && 532_480 < 2 * keys);
}
