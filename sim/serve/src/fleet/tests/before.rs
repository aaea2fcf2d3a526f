//! Replicas that lend each other memory against the loop of instances that shared memory before fleets did.

use hw::{Seconds, Time};

use super::lending::{FirstApart, by, fleet, lender, moments, table, terms, trace};
use super::*;
use crate::kv::lending::Borrow;
use crate::kv_sharing::run as old;
use crate::replica::Spans;
use crate::request::Request;
use crate::step_cost::{StepTable, ticks_of};

/// The loop of instances that shared memory before fleets did.
fn before(
    requests: &Requests,
    table: &StepTable,
    n: usize,
    blocks: u64,
    sharing: old::Sharing,
    prefill: old::Prefill,
) -> old::Outcome {
    let crate::kv::lending::Exchange { bytes_per_token, n_layers, latency, bandwidth } =
        terms(Borrow::Never, false, 0, 1).parties[0].exchange;
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
        heartbeat: ticks_of(Seconds::new(0.1)),
        sharing,
        prefill,
    };
    old::serve(requests, &cluster)
}

fn moments_before(outcome: &old::Outcome) -> Vec<(Option<Time>, Option<Time>)> {
    let time = |ticks: &Option<u64>| ticks.map(crate::step_cost::time_of);
    outcome.first.iter().zip(&outcome.end).map(|(first, end)| (time(first), time(end))).collect()
}

#[test]
fn one_replica_does_what_the_loop_of_shared_memory_did() {
    for seed in 0..6 {
        let requests = trace(seed, 200, [(10, 400), (400, 900)], [5.0, 20.0, 60.0][seed as usize % 3]);
        let old = before(&requests, &table(), 1, 40_000, old::Sharing::Off, old::Prefill::Here);
        let served =
            fleet(&lender("sarathi", 40_000, Spans::Closed), 1, None).serve(&requests, by("round-robin").as_mut());
        assert_eq!(moments(&served), moments_before(&old), "seed {seed}");
    }
}

#[test]
fn outputs_alone_are_what_the_loop_of_shared_memory_made_of_them() {
    for seed in 0..6 {
        let requests = trace(seed, 200, [(10, 400), (400, 900)], [5.0, 20.0, 60.0][seed as usize % 3]);
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

#[test]
fn a_lender_beside_its_own_requests_is_as_slow_as_it_was_in_the_loop_of_shared_memory() {
    // A request of 63 to 86 blocks on two replicas of 60: the rest lies on the other one, which serves small requests meanwhile.
    let model = engine::model::embedded("llama-2-7b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 1);
    let config = crate::step_cost::ReplicaConfig::new(&model, &cluster, 1);
    let roofline = engine::cost::roofline::Roofline::new(&cluster);
    let real = StepTable::new(&config, (512, 32), &roofline, engine::play::Case::Expected);
    for (name, table) in [("linear", table()), ("roofline", real)] {
        for seed in 0..5 {
            let mut requests = trace(seed, 10, [(1, 16), (1, 16)], 5.0);
            requests.list[0] = Request::new(Time::ZERO, 1000 + 16 * u32::try_from(seed).expect("small"), 300);
            let old = before(&requests, &table, 2, 60, old::Sharing::Borrow, old::Prefill::Here);
            let engine = Engine { table: table.clone(), ..lender("sarathi", 60, Spans::Closed) };
            let served =
                fleet(&engine, 2, Some(terms(Borrow::WhenShort, false, 60, 1))).serve(&requests, &mut FirstApart);
            assert_eq!(moments(&served), moments_before(&old), "{name}, seed {seed}");
            assert_eq!(served.loaned.borrowed_blocks, old.counts.borrowed_blocks, "{name}, seed {seed}");
            assert!(old.counts.borrowed_blocks > 3);
        }
    }
}
