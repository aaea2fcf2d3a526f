//! Claims about shared memory, against small cases by hand and random debts and loads.

use engine::random::{self, Stream};
use hw::{BytesPerSecond, Seconds};

use super::ledger::{Heartbeat, Ledger, cancel_cycles};
use super::rates::{Load, Member, Rates};
use super::{Borrow, Exchange, Party, Terms};
use crate::step_cost::StepTable;

fn exchange() -> Exchange {
    let (latency, bandwidth) = (Seconds::new(5e-6), BytesPerSecond::new(25e9));
    Exchange { bytes_per_token: 16_640, n_layers: 32, latency, bandwidth }
}

fn draw(stream: &mut Stream, from: u64, to: u64) -> u32 {
    u32::try_from(from + stream.below(to - from + 1)).expect("small")
}

#[test]
fn lenders_with_room_nearby_are_asked_first() {
    let mut ledger = Ledger::new(vec![0, 0, 1, 1, 2]);
    for (replica, free, n_waiting) in [(0, 9, 0), (1, 1, 0), (2, 5, 0), (3, 8, 0), (4, 9, 2)] {
        ledger.note(replica, Heartbeat { free, n_waiting });
    }
    // Replica 1 shares the node of 0; then by room; 4 has requests of its own that wait.
    assert_eq!(ledger.candidates(0), [1, 3, 2, 4]);
}

#[test]
fn debts_are_noted_and_paid() {
    let mut ledger = Ledger::new(vec![0; 3]);
    ledger.lend(0, 1, 4);
    ledger.lend(0, 2, 3);
    ledger.repay(0, 1, 1);
    assert_eq!((ledger.owed(0, 1), ledger.owed(0, 2), ledger.owed(1, 0), ledger.debt()), (3, 3, 0, 6));
}

#[test]
fn cancelling_cycles_lowers_debt_keeps_net_positions_and_leaves_no_cycle() {
    let mut stream = random::stream(11, "debts");
    for _ in 0..300 {
        let n = 2 + usize::try_from(stream.below(5)).expect("small");
        let mut debts = vec![vec![0; n]; n];
        for (debtor, row) in debts.iter_mut().enumerate() {
            for (lender, owed) in row.iter_mut().enumerate() {
                if debtor != lender && stream.below(3) == 0 {
                    *owed = draw(&mut stream, 1, 9);
                }
            }
        }
        let paid = cancel_cycles(&debts);
        let mut after = debts.clone();
        for repayment in &paid {
            assert!(repayment.blocks > 0, "every repayment lowers the debt");
            after[repayment.debtor as usize][repayment.lender as usize] -= repayment.blocks;
        }
        let net = |debts: &[Vec<u32>], of: usize| {
            let (owed, lent): (u32, u32) = (debts[of].iter().sum(), debts.iter().map(|row| row[of]).sum());
            i64::from(owed) - i64::from(lent)
        };
        (0..n).for_each(|of| assert_eq!(net(&debts, of), net(&after, of)));
        assert!(!has_cycle(&after), "{debts:?} became {after:?}");
        assert_eq!(paid.is_empty(), !has_cycle(&debts));
    }
}

/// Removes replicas that owe nothing until none is left or all left owe somebody (Kahn's order).
fn has_cycle(debts: &[Vec<u32>]) -> bool {
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

/// Replicas with random loads; one in four neither lends nor borrows.
fn loads(stream: &mut Stream) -> Vec<Load> {
    let n = 2 + usize::try_from(stream.below(5)).expect("small");
    let mut loads = Vec::new();
    for _ in 0..n {
        let (own_tokens, takes_part) = (1000 + stream.below(100_000), stream.below(4) > 0);
        loads.push(Load {
            lends: takes_part,
            borrows: takes_part,
            n_running: draw(stream, 1, 30),
            own_tokens,
            hosted_tokens: 0,
            remote_tokens: vec![0; n],
            n_remote: 0,
            free_tokens: stream.below(60_000),
            waiting: (0..stream.below(4)).map(|_| 1 + stream.below(20_000)).collect(),
            movable_tokens: own_tokens / 2,
        });
    }
    loads
}

#[test]
fn the_planner_never_lowers_the_modelled_rate() {
    // An iteration takes 10 ms, 10 µs per token and 0.3 µs per cached token.
    let table = StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-5), Seconds::new(3e-7));
    let mut stream = random::stream(13, "loads");
    let mut n_moves = 0;
    for _ in 0..2400 {
        let loads = loads(&mut stream);
        let rates = Rates { members: vec![Member { table: &table, exchange: exchange() }; loads.len()] };
        let moves = rates.plan(&loads);
        n_moves += moves.len();
        // Replays the moves one by one: each is within bounds, and the total only rises.
        let mut now = loads.clone();
        let mut total = rates.total(&now);
        for step in &moves {
            assert!(now[step.debtor].borrows && now[step.lender].lends, "{step:?}");
            assert!(step.debtor != step.lender && step.tokens <= now[step.lender].free_tokens, "{step:?}");
            now = super::planner::moved(&now, *step);
            assert!(rates.total(&now) > total, "{step:?}");
            total = rates.total(&now);
        }
    }
    assert!(n_moves > 40, "{n_moves} moves are too few to say anything");
}

#[test]
fn a_move_is_planned_by_hand() {
    // One request waits for 1,000 tokens where 200 are free; the other replica has room: 800 tokens go there.
    let table = StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-5), Seconds::new(3e-7));
    let rates = Rates { members: vec![Member { table: &table, exchange: exchange() }; 2] };
    let base = Load { lends: true, borrows: true, n_running: 1, remote_tokens: vec![0; 2], ..Load::default() };
    let full = Load { own_tokens: 5000, free_tokens: 200, waiting: vec![1000], movable_tokens: 4000, ..base.clone() };
    let roomy = Load { own_tokens: 100, free_tokens: 3000, ..base };
    let moves = rates.plan(&[full, roomy]);
    assert_eq!(moves, [super::planner::Move { debtor: 0, lender: 1, tokens: 800 }]);
}

#[test]
fn what_others_lend_is_theirs_and_not_ones_own() {
    let party = |lent_max, borrows| Party { lent_max, borrows, ..Party::APART };
    let terms = |borrow| Terms {
        borrow,
        plans_moves: false,
        heartbeat: Seconds::new(0.5),
        block_bytes: 1,
        parties: vec![party(100, true), party(30, false)],
    };
    // Four replicas of 100 blocks and two that lend 30: 3 · 100 + 2 · 30 for each of the four; the two do not borrow.
    assert_eq!(terms(Borrow::WhenShort).lendable(0, &[4, 2]), 360);
    assert_eq!(terms(Borrow::WhenLong).lendable(1, &[4, 2]), 0);
    assert_eq!(terms(Borrow::Never).lendable(0, &[4, 2]), 0);
    // What the two lend is not counted on where they hand their sequences on to the four.
    let mut split = terms(Borrow::WhenShort);
    split.parties[1].hands_on = true;
    assert_eq!(split.lendable(0, &[4, 2]), 300);
    assert!(split.parties[1].may_lend_to(&split.parties[0]) && !split.parties[0].may_lend_to(&split.parties[1]));
}

#[test]
fn shipping_queries_is_less_than_keys_from_two_tokens_on() {
    // LLaMA-2-7B: 16.6 KB per layer and token to a shard, 532 KB over all layers, against 512 KB of keys and values per cached token.
    let model = engine::model::embedded("llama-2-7b").expect("listed");
    let exchange = Exchange::of_model(&model, Seconds::ZERO, BytesPerSecond::new(1e9));
    assert_eq!((exchange.bytes_per_token, exchange.bytes_per_token * exchange.n_layers), (16_640, 532_480));
    let keys = engine::memory::kv_bytes_per_token(&model, 1, 2);
    assert!(532_480 > keys && 532_480 < 2 * keys);
}
