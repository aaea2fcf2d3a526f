//! From a checked kv-sharing scenario to a result: the same requests on instances that do or do not share memory.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use engine::play::Case;
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serve::decode_attention::kv_bytes_per_token;
use serve::kv_sharing::Exchange;
use serve::kv_sharing::run::{Cluster, Outcome, Prefill, Sharing, serve};
use serve::metrics;
use serve::step_cost::{SECONDS_PER_TICK, StepLoad, StepTable, TICKS_PER_NS, ticks_of};

use crate::costs::cost_model;
use crate::kinds::kv_sharing::read::{KvSharing, Policy};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for KvSharing {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, |(name, policy)| row(self, name, *policy));
        let (results, source) = kinds::weakest(rows);
        result(self, results, source)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        // All of them, so that the plan knows which one is next.
        let results = self.run(&|_| {}).results;
        results.iter().find(|row| row.policy == choice).map(Planned::of_row)
    }
}

fn rate(row: &PolicyResult) -> Option<f64> {
    row.metrics.get("served_tokens_per_s").copied()
}

/// The best row says which one is next, the others how far they are behind.
fn name_runner_up(results: &mut [PolicyResult]) {
    let mut ranked: Vec<usize> = (0..results.len()).filter(|&index| results[index].status == "ok").collect();
    let of = |index: &usize| rate(&results[*index]).unwrap_or(0.0);
    ranked.sort_by(|a, b| of(b).total_cmp(&of(a)).then(a.cmp(b)));
    let [best, next, ..] = ranked[..] else { return };
    let less = |index: usize| (1.0 - of(&index) / of(&best)) * 100.0;
    let best_name = results[best].policy.clone();
    let note = |index: usize| match index {
        _ if index == best => {
            format!("best of {}; runner-up, {:.1} % fewer tokens: {}", ranked.len(), less(next), results[next].policy)
        }
        _ => format!("{:.1} % fewer tokens per second than {best_name}, the best of {}", less(index), ranked.len()),
    };
    let notes: Vec<(usize, String)> = ranked.iter().map(|&index| (index, note(index))).collect();
    for (index, note) in notes {
        results[index].planner.get_or_insert_default().notes.push(note);
    }
}

fn result(scenario: &KvSharing, mut results: Vec<PolicyResult>, source: Source) -> RunResult {
    name_runner_up(&mut results);
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, rate);
    RunResult {
        cost_model: CostModelFacts {
            profile: scenario.profile.as_ref().map_or_else(|| "roofline".to_owned(), |profile| profile.name.clone()),
            source: source.name().to_owned(),
            outside_hull_ratio: f64::NAN,
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&[
            ("served_tokens_per_s", "tokens/s"),
            ("makespan_s", "makespan"),
            ("n_refused", "refused"),
            ("context_max_tokens", "context"),
            ("ttft_s.p50", "TTFT p50"),
            ("debt_max_bytes", "lent at most"),
        ]),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// Instances of a policy, and their GPUs each.
fn instances(scenario: &KvSharing, policy: Policy) -> (u32, u32) {
    let n_gpus = scenario.cluster.n_gpus();
    match policy {
        Policy::Single => (1, n_gpus),
        _ => (n_gpus / scenario.engine.tensor_degree, scenario.engine.tensor_degree),
    }
}

/// Runs a policy at one end of the costs.
fn served(scenario: &KvSharing, policy: Policy, case: Case) -> (Outcome, BTreeMap<String, f64>, f64, Source) {
    let (n_instances, tp) = instances(scenario, policy);
    let engine = &scenario.engine;
    // One instance over all GPUs gets the limits of all that it replaces.
    let merged = tp / engine.tensor_degree;
    let (sequences_max, tokens_max) = (engine.sequences_max * merged, engine.tokens_max * merged);
    let deployment = scenario.deployment(tp);
    let model = cost_model(&scenario.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let table = StepTable::new(&deployment, (tokens_max, sequences_max), model.as_ref(), case);
    let blocks = u64::from(scenario.capacity(tp).expect("checked by the reader"));
    let machine = &scenario.cluster;
    let per_node = (machine.gpus_per_node / tp).max(1);
    let is_one_node = n_instances <= per_node;
    let (per_gpu, latency) = if is_one_node {
        (machine.gpu.intra_node_bandwidth, machine.intra_node_latency)
    } else {
        (machine.nic_bandwidth, machine.inter_node_latency)
    };
    let token_bytes = kv_bytes_per_token(&scenario.model, tp, 2) * u64::from(tp);
    let cluster = Cluster {
        table: &table,
        n_instances: n_instances as usize,
        per_node: per_node as usize,
        blocks,
        block_tokens: u64::from(engine.block_tokens),
        block_bytes: token_bytes * u64::from(engine.block_tokens),
        lent_max: hw::Bytes::from_f64(hw::Tokens(blocks).as_f64() * engine.lend_ratio).0,
        sequences_max: sequences_max as usize,
        tokens_max,
        exchange: Exchange::of(&scenario.model, latency, per_gpu * f64::from(tp)),
        heartbeat: ticks_of(hw::Seconds::new(engine.heartbeat_s)),
        sharing: match policy {
            Policy::Multi | Policy::Single => Sharing::Off,
            Policy::Borrow => Sharing::Borrow,
            Policy::Planned => Sharing::Planned,
        },
        prefill: engine.prefill,
    };
    let outcome = serve(&scenario.requests, &cluster);
    let metrics = metrics(scenario, &cluster, &outcome);
    (outcome.clone(), metrics, bound_s(scenario, &cluster, &outcome), table.source)
}

fn row(scenario: &KvSharing, name: &str, policy: Policy) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let (outcome, metrics, bound_s, source) = served(scenario, policy, Case::Expected);
    let ends = [Case::Low, Case::High].map(|case| served(scenario, policy, case).1);
    let mut interval = BTreeMap::new();
    for key in ["served_tokens_per_s", "makespan_s", "ttft_s.p50"] {
        if let (Some(low), Some(high)) = (ends[0].get(key), ends[1].get(key)) {
            interval.insert(key.to_owned(), [low.min(*high), high.max(*low)]);
        }
    }
    let makespan_s = metrics.get("makespan_s").copied().unwrap_or(0.0);
    let planner = PlannerFacts {
        objective: Some(makespan_s),
        bound: Some(bound_s),
        gap_ratio: (makespan_s > 0.0).then(|| ((makespan_s - bound_s) / makespan_s).max(0.0)),
        status: "heuristic".to_owned(),
        notes: notes(&outcome),
        ..PlannerFacts::default()
    };
    let row = PolicyResult {
        policy: name.to_owned(),
        status: if outcome.end.iter().any(Option::is_some) { "ok" } else { "infeasible" }.to_owned(),
        why: words(scenario, policy, &metrics),
        metrics,
        interval,
        planner: Some(planner),
        measured: Measured { planner_wall_s: 0.0, simulate_wall_s: begun.elapsed().as_secs_f64() },
    };
    (row, source)
}

fn count(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

fn metrics(scenario: &KvSharing, cluster: &Cluster<'_>, outcome: &Outcome) -> BTreeMap<String, f64> {
    let requests = &scenario.requests.list;
    let done = || requests.iter().zip(&outcome.end).filter(|(_, end)| end.is_some()).map(|(request, _)| request);
    let makespan_s = count(outcome.end.iter().flatten().copied().max().unwrap_or(0)) * SECONDS_PER_TICK;
    let tokens: u64 = done().map(|request| u64::from(request.prompt) + u64::from(request.output)).sum();
    let outputs: u64 = done().map(|request| u64::from(request.output)).sum();
    let wait = |index: usize| {
        let first = outcome.first[index]?;
        Some(count(first - requests[index].arrival.as_ns() * TICKS_PER_NS) * SECONDS_PER_TICK)
    };
    let waits = |is_long: bool| -> Vec<f64> {
        let chosen = (0..requests.len()).filter(|&index| (requests[index].prompt >= scenario.long_tokens) == is_long);
        chosen.filter_map(wait).collect()
    };
    let counts = &outcome.counts;
    let mut figures: BTreeMap<String, f64> = [
        ("served_tokens_per_s", if makespan_s > 0.0 { count(tokens) / makespan_s } else { 0.0 }),
        ("output_tokens_per_s", if makespan_s > 0.0 { count(outputs) / makespan_s } else { 0.0 }),
        ("makespan_s", makespan_s),
        ("n_served", count(done().count() as u64)),
        ("n_refused", count((requests.len() - done().count()) as u64)),
        ("n_preempted", count(counts.preempted)),
        ("context_max_tokens", count(cluster.context_max())),
        ("borrowed_bytes", count(counts.borrowed_blocks * cluster.block_bytes)),
        ("moved_bytes", count(counts.moved_blocks * cluster.block_bytes)),
        ("cancelled_debt_bytes", count(counts.cancelled_blocks * cluster.block_bytes)),
        ("debt_max_bytes", count(counts.debt_max * cluster.block_bytes)),
        ("n_refused_loans", count(counts.refused_loans)),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    metrics::spread(&mut figures, "ttft_s", waits(false));
    metrics::spread(&mut figures, "long_ttft_s", waits(true));
    figures
}

/// No schedule of the served requests ends sooner: every token passes the products of some instance at the best rate of any batch, and the
/// last request still comes when it comes.
fn bound_s(scenario: &KvSharing, cluster: &Cluster<'_>, outcome: &Outcome) -> f64 {
    let served = || scenario.requests.list.iter().zip(&outcome.end).filter(|(_, end)| end.is_some());
    let is_here = cluster.prefill == Prefill::Here;
    let prompt = |tokens: u32| if is_here { u64::from(tokens) - 1 } else { 0 };
    let tokens: u64 = served().map(|(r, _)| prompt(r.prompt) + u64::from(r.output)).sum();
    let per_token = |n: u32| {
        let load = StepLoad { n_chunk_tokens: n, n_chunks: 1, ..StepLoad::default() };
        count(cluster.table.step(&load, std::iter::empty())) / f64::from(n)
    };
    let rate = (1..=cluster.tokens_max).map(per_token).fold(f64::INFINITY, f64::min);
    let work = count(tokens) * rate / count(cluster.n_instances as u64);
    let last = served().map(|(request, _)| request.arrival.as_ns() * TICKS_PER_NS).max().unwrap_or(0);
    work.max(count(last)) * SECONDS_PER_TICK
}

/// What holds a policy back, in a sentence.
fn words(scenario: &KvSharing, policy: Policy, metrics: &BTreeMap<String, f64>) -> String {
    let value = |key: &str| metrics.get(key).copied().unwrap_or(0.0);
    let (n, tp) = instances(scenario, policy);
    let what = if n == 1 { format!("one instance of {tp} GPUs") } else { format!("{n} instances of {tp} GPUs") };
    let longest = scenario.requests.list.iter().map(|request| request.prompt).max().unwrap_or(0);
    let limit = if value("n_refused") > 0.0 {
        format!(
            "limited by memory: {} requests of up to {longest} tokens are refused, a request may have {}",
            value("n_refused"),
            value("context_max_tokens")
        )
    } else if value("n_preempted") > 0.0 {
        format!("limited by memory: {} preemptions", value("n_preempted"))
    } else {
        "limited by time: all requests fit".to_owned()
    };
    let decodes = if scenario.engine.prefill == Prefill::Elsewhere { ", prompts are computed elsewhere" } else { "" };
    format!("{what}{decodes}; {limit}")
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let counts = &outcome.counts;
    if counts.borrowed_blocks + counts.moved_blocks == 0 {
        return Vec::new();
    }
    vec![format!(
        "{} blocks borrowed, {} moved, {} of debt cancelled in cycles, {} loans refused; the ledger agreed with all blocks at the end",
        counts.borrowed_blocks, counts.moved_blocks, counts.cancelled_blocks, counts.refused_loans
    )]
}
