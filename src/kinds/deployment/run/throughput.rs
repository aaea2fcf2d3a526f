//! From most tokens per second to a result: place the layers, play the requests, measure, for every policy in parallel.
//!
//! Pipelines of one type without a common plan are run one by one, each with requests of its own, and added up. Results are collected by
//! index, so the number of threads changes nothing outside `measured`. `pool/bound.rs` has what no run passes.

use std::collections::BTreeMap;
use std::time::Instant;

use planner::Decision;
use planner::deploy::RentalError;
use planner::deploy::helix::held::{self, Ran};
use planner::deploy::helix::{POLICIES, Placed, Placement, Range, Scheduling};
use reports::{Aim, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serve::arrivals::{self, Arrivals};
use serve::check::{Site, check};
use serve::deployment::Deployment;
use serve::fleet::{Changing, serve_stations};
use serve::pool::path::{Flow, Paths, Random, Swarm};
use serve::pool::{self, Outcome, Pool, Run};
use serve::request::Requests;

use crate::kinds::deployment::read::throughput::{Arriving, Load, Throughput, ThroughputChoice};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for Throughput {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        run(self, done)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let choice = self.choices.iter().find(|known| known.name == choice)?;
        let placed = placed(self, choice).and_then(|placed| {
            let parts = parts(self, choice, &placed)?;
            let bound = held::of_plan(held::of_pool(&self.machines, &self.requests).as_ref(), &parts.pools)?;
            Ok((placed, parts.placed, bound))
        });
        Some(placed.map_err(|why| why.to_string()).map(|(placed, deployments, bound)| {
            let facts = facts(self, &placed, &Ok(bound));
            let words: Vec<String> = std::iter::once(facts.words(0.0)).chain(facts.notes.clone()).collect();
            let max_flow = placed.plan.flow.tokens_per_s;
            let json = serde_json::json!({
                "scenario": self.head.name, "version": env!("CARGO_PKG_VERSION"), "policy": choice.name,
                "deployments": deployments, "max_flow_tokens_per_s": max_flow, "plan": facts,
            });
            Planned { json, words: words.join("\n"), ..Planned::default() }
        }))
    }
}

/// What the table shows.
const COLUMNS: [(&str, &str); 7] = [
    ("decode_tokens_per_s", "decode tok/s"),
    ("tokens_per_s", "all tok/s"),
    ("bound_tokens_per_s", "bound"),
    ("max_flow_tokens_per_s", "planned flow"),
    ("prompt_latency_s.mean", "prompt"),
    ("decode_latency_s.mean", "token"),
    ("kv_peak_ratio", "cache"),
];

fn run(scenario: &Throughput, done: &(dyn Fn(&str) + Sync)) -> RunResult {
    let pool = held::of_pool(&scenario.machines, &scenario.requests);
    let results = kinds::rows(&scenario.choices, |choice| &choice.name, done, |choice| policy(scenario, choice, &pool));
    let worth = |row: &PolicyResult| row.metrics.get(COLUMNS[0].0).copied();
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, worth);
    RunResult {
        cost_model: CostModelFacts {
            profile: "times of a layer by batch size".to_owned(),
            source: scenario.times.clone(),
            free_parameters: scenario.free_parameters.clone(),
            outside_hull_ratio: f64::NAN,
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&COLUMNS),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

fn policy(scenario: &Throughput, choice: &ThroughputChoice, pool: &held::OfPool) -> PolicyResult {
    let begun = Instant::now();
    let placed = placed(scenario, choice);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let played = placed.and_then(|placed| Ok((parts(scenario, choice, &placed)?, placed)));
    let (parts, placed) = match played {
        Ok(played) => played,
        Err(why) => {
            return PolicyResult {
                policy: choice.name.clone(),
                status: "infeasible".to_owned(),
                why: why.to_string(),
                measured: Measured { planner_wall_s, simulate_wall_s: 0.0 },
                ..PolicyResult::default()
            };
        }
    };
    let begun = Instant::now();
    let outcomes = play_all(scenario, choice, &parts);
    let simulate_wall_s = begun.elapsed().as_secs_f64();
    let changes = scenario.machines.has_losses().then(|| losses(&outcomes));
    let parts = parts.pools;
    let mut metrics = metrics(choice, &parts, &outcomes);
    metrics.extend(changes.into_iter().flatten());
    let flow = placed.plan.flow.tokens_per_s;
    metrics.insert("max_flow_tokens_per_s".to_owned(), flow);
    metrics.insert("flow_ratio".to_owned(), metrics["tokens_per_s"] / flow);
    metrics.insert("flow_from_start_ratio".to_owned(), metrics["tokens_from_start_per_s"] / flow);
    let mut facts = facts(scenario, &placed, &held::of_plan(pool.as_ref(), &parts));
    let Load { warm_up, until, .. } = choice.load;
    match held::of_run(&Ran { requests: &scenario.requests, warm_up, until }, &parts, &outcomes) {
        Ok((bounds, words)) => {
            metrics.extend(bounds);
            facts.notes.push(words);
        }
        Err(why) => facts.notes.push(unproved(&why)),
    }
    PolicyResult {
        policy: choice.name.clone(),
        status: "ok".to_owned(),
        why: words(&parts, &outcomes, choice),
        metrics,
        planner: Some(facts),
        measured: Measured { planner_wall_s, simulate_wall_s },
        ..PolicyResult::default()
    }
}

/// What is known of a placement; its objective is the maximum flow at planned batches, beside which stands what no run passes.
fn facts(scenario: &Throughput, placed: &Decision<Placed>, bound: &Result<held::Most, RentalError>) -> PlannerFacts {
    let flow = placed.plan.flow.tokens_per_s;
    let mut notes = notes(scenario, placed);
    notes.push(planned(placed));
    let mut figures = BTreeMap::from([
        ("max_flow_tokens_per_s".to_owned(), flow),
        ("max_flow_bound_tokens_per_s".to_owned(), placed.bound().unwrap_or(f64::INFINITY)),
    ]);
    match bound {
        Ok(bound) => {
            figures.insert("placement_bound_tokens_per_s".to_owned(), bound.placement_tokens_per_s);
            figures.insert("pool_bound_tokens_per_s".to_owned(), bound.pool_tokens_per_s);
            notes.push(bound.words.clone());
        }
        Err(why) => notes.push(unproved(why)),
    }
    PlannerFacts {
        objective: Some(flow),
        aim: Aim::TokensPerS,
        bound: placed.bound(),
        gap_ratio: placed.gap(),
        status: placed.status.name().to_owned(),
        notes,
        figures,
    }
}

fn unproved(why: &RentalError) -> String {
    format!("no bound on runs: {why}")
}

/// Where layers lie: decided by flow, or by playing what the search looks at.
fn placed(scenario: &Throughput, choice: &ThroughputChoice) -> Result<Decision<Placed>, RentalError> {
    if choice.placement != Placement::Played {
        return scenario.machines.place(&choice.placement);
    }
    let mut best: Option<(f64, Decision<Placed>)> = None;
    let mut second: Option<f64> = None;
    let candidates = scenario.machines.candidates()?;
    let n = candidates.len();
    for placed in candidates {
        let Ok(parts) = parts(scenario, choice, &placed) else { continue };
        let outcomes = play_all(scenario, choice, &parts);
        let rate = metrics(choice, &parts.pools, &outcomes)[COLUMNS[0].0];
        if best.as_ref().is_none_or(|(most, _)| rate > *most) {
            second = best.map(|(rate, _)| rate).or(second);
            best = Some((rate, placed));
        } else if second.is_none_or(|most| rate > most) {
            second = Some(rate);
        }
    }
    let (rate, mut placed) = best.ok_or_else(|| RentalError::Infeasible("no candidate has a pipeline".to_owned()))?;
    let second = second.map_or_else(String::new, |second| format!(", the second {second:.1}"));
    placed.limit += &format!("; {rate:.1} decode tokens/s is the most of {n} candidates{second}");
    Ok(placed)
}

/// What is played by itself.
struct Parts {
    placed: Vec<Deployment>,
    /// What the loop plays of each.
    pools: Vec<Pool>,
}

/// Deployments that the checker holds, and what the loop plays of them.
fn parts(scenario: &Throughput, choice: &ThroughputChoice, placed: &Decision<Placed>) -> Result<Parts, RentalError> {
    let mut placed = deployments(scenario, choice, placed)?;
    let mut pools = Vec::new();
    let machines = scenario.machines.machines();
    let site = Site { model: &scenario.model, machines: &machines, parameter_bytes: 2.0, kv_bytes: 2.0 };
    for deployment in &mut placed {
        if let Some(most) = choice.decodes_max {
            deployment.limit_decodes(most);
        }
        check(deployment, &site).map_err(RentalError::refused)?;
        pools.push(scenario.machines.stations(deployment)?);
    }
    Ok(Parts { placed, pools })
}

/// The whole placement, or every type by itself where each has a pipeline of its own and nothing is planned over all.
fn deployments(
    scenario: &Throughput,
    choice: &ThroughputChoice,
    placed: &Decision<Placed>,
) -> Result<Vec<Deployment>, RentalError> {
    let (machines, model) = (&scenario.machines, &scenario.model.name);
    if choice.scheduling == Scheduling::Flow {
        return Ok(vec![machines.deployment(model, &placed.plan.ranges, Some(&placed.plan.flow))?]);
    }
    if choice.placement != Placement::Separate {
        return Ok(vec![machines.deployment(model, &placed.plan.ranges, None)?]);
    }
    let of_type = |of: usize| {
        let own = placed.plan.ranges.iter().enumerate();
        own.map(|(node, range)| if machines.type_of(node) == of { *range } else { Range::default() })
            .collect::<Vec<Range>>()
    };
    let all = (0..machines.types.len()).map(of_type);
    let holds = |ranges: &Vec<Range>| ranges.iter().any(|range| range.first < range.end);
    all.filter(holds).map(|ranges| machines.deployment(model, &ranges, None)).collect()
}

/// The figure of a part: its own, or the only one.
fn of_part<T: Copy>(all: &[T], at: usize) -> Option<T> {
    all.get(at).or(all.first().filter(|_| all.len() == 1)).copied()
}

/// What comes of every part, with the losses of its machines.
fn play_all(scenario: &Throughput, choice: &ThroughputChoice, parts: &Parts) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (at, (placed, pool)) in parts.placed.iter().zip(&parts.pools).enumerate() {
        let failures = scenario.machines.failures(placed, scenario.head.seed);
        outcomes.push(play(scenario, choice, pool, (at, &Changing { outages: Vec::new(), failures })));
    }
    outcomes
}

/// What losses did.
fn losses(outcomes: &[Outcome]) -> [(String, f64); 3] {
    let sum = |of: fn(&Outcome) -> u64| hw::Tokens(outcomes.iter().map(of).sum()).as_f64();
    [
        ("n_outages", sum(|outcome| outcome.n_outages)),
        ("n_retried", sum(|outcome| outcome.n_retried)),
        ("recomputed_tokens", sum(|outcome| outcome.recomputed_tokens)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

fn play(scenario: &Throughput, choice: &ThroughputChoice, pool: &Pool, (at, changing): (usize, &Changing)) -> Outcome {
    let load = &choice.load;
    let expected = load.expected(scenario.machines.typical.output);
    let mut paths: Box<dyn Paths + '_> = match choice.scheduling {
        Scheduling::Flow => Box::new(Flow::new(pool, expected)),
        Scheduling::Swarm => Box::new(Swarm::new(pool)),
        Scheduling::Random => Box::new(Random::new(pool, scenario.head.seed)),
    };
    let mut requests = Requests { list: scenario.requests.clone(), ..Requests::default() };
    let (prompt, output) = scenario.means();
    let coming = match &load.arriving {
        Arriving::Online { tokens_per_s } => {
            let tokens_per_s = of_part(tokens_per_s, at).unwrap_or(0.0);
            let arrivals = Arrivals::Poisson { per_s: tokens_per_s.max(1e-9) / (prompt + output) };
            arrivals::lay(&mut requests, arrivals, scenario.head.seed.wrapping_add(at as u64));
            pool::Load::Open
        }
        Arriving::Offline { start, level_ratio, .. } if choice.scheduling == Scheduling::Flow => {
            pool::Load::Filled { start: *start, level_ratio: *level_ratio }
        }
        Arriving::Offline { in_flight, .. } => {
            let n = of_part(in_flight, at).unwrap_or_else(|| fitting(pool, load, prompt + output));
            pool::Load::Closed { in_flight: u32::try_from(n).unwrap_or(u32::MAX) }
        }
    };
    let asked = Run { requests: &requests.list, load: coming, warm_up: load.warm_up, until: load.until };
    serve_stations(pool, paths.as_mut(), &asked, changing)
}

/// Requests whose keys and values fit the fullest layer below the high-water mark, at least one.
fn fitting(pool: &Pool, load: &Load, tokens: f64) -> u64 {
    let held = |layer: u32| -> u64 {
        let nodes = pool.nodes.iter().filter(|node| (node.first..node.end).contains(&layer));
        nodes.map(|node| node.room.kv_tokens).sum()
    };
    let least = (0..pool.n_layers).map(held).min().unwrap_or(0);
    hw::Bytes::from_f64((hw::Tokens(least).as_f64() * load.high_water_ratio / tokens).floor().max(1.0)).0
}

fn mean_s(ns: &[u64]) -> f64 {
    ns.iter().map(|&ns| seconds(ns)).sum::<f64>() / hw::Tokens(ns.len().max(1) as u64).as_f64()
}

fn seconds(ns: u64) -> f64 {
    hw::Span::from_ns(ns).to_seconds().get()
}

/// The 99th percentile, the nearest rank.
fn p99_s(mut ns: Vec<u64>) -> f64 {
    ns.sort_unstable();
    let rank = (ns.len() * 99).div_ceil(100).max(1) - 1;
    ns.get(rank).map_or(0.0, |&ns| seconds(ns))
}

fn metrics(choice: &ThroughputChoice, parts: &[Pool], outcomes: &[Outcome]) -> BTreeMap<String, f64> {
    let counted_s = (choice.load.until - choice.load.warm_up).to_seconds().get();
    let until_s = (choice.load.until - hw::Time::ZERO).to_seconds().get();
    let sum = |of: fn(&Outcome) -> u64| hw::Tokens(outcomes.iter().map(of).sum()).as_f64();
    let decode = sum(|outcome| outcome.decode_tokens);
    let prompts: Vec<u64> = outcomes.iter().flat_map(|outcome| outcome.prompt_ns.iter().copied()).collect();
    let tokens: Vec<u64> = outcomes.iter().flat_map(|outcome| outcome.decode_ns.iter().copied()).collect();
    let nodes = || parts.iter().zip(outcomes).flat_map(|(pool, outcome)| pool.nodes.iter().zip(&outcome.kv_peak));
    let peak = nodes().map(|(node, &peak)| hw::Tokens(peak).as_f64() / hw::Tokens(node.cache().max(1)).as_f64());
    let busy = outcomes.iter().flat_map(|outcome| outcome.busy_ns.iter().map(|&ns| seconds(ns) / until_s));
    let n_nodes = nodes().count();
    BTreeMap::from(
        [
            ("decode_tokens_per_s", decode / counted_s),
            ("tokens_per_s", (decode + sum(|outcome| outcome.prompt_tokens)) / counted_s),
            ("tokens_from_start_per_s", sum(|outcome| outcome.from_start.tokens()) / until_s),
            ("prompt_latency_s.mean", mean_s(&prompts)),
            ("prompt_latency_s.p99", p99_s(prompts)),
            ("decode_latency_s.mean", mean_s(&tokens)),
            ("decode_latency_s.p99", p99_s(tokens)),
            ("kv_peak_ratio", peak.fold(0.0, f64::max)),
            ("busy_ratio", busy.sum::<f64>() / hw::Tokens(n_nodes.max(1) as u64).as_f64()),
            ("n_requests", sum(|outcome| outcome.n_ended)),
            ("n_waiting", sum(|outcome| outcome.n_waiting)),
            ("n_put_back", sum(|outcome| outcome.n_put_back)),
            ("n_nodes", hw::Tokens(n_nodes as u64).as_f64()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// What limits it, in a sentence.
fn words(parts: &[Pool], outcomes: &[Outcome], choice: &ThroughputChoice) -> String {
    let until_s = (choice.load.until - hw::Time::ZERO).to_seconds().get();
    let all = parts.iter().zip(outcomes).flat_map(|(pool, outcome)| pool.nodes.iter().zip(&outcome.busy_ns));
    let busiest = all.max_by_key(|(_, busy)| **busy);
    let busiest = busiest.map_or_else(String::new, |(node, busy)| {
        let share = 100.0 * seconds(*busy) / until_s;
        format!(
            "busiest is node {} with layers {} to {}, {share:.0} % of the time",
            node.name,
            node.first,
            node.end - 1
        )
    });
    let waiting: u64 = outcomes.iter().map(|outcome| outcome.n_waiting).sum();
    let over = parts.iter().zip(outcomes).flat_map(|(pool, outcome)| pool.nodes.iter().zip(&outcome.kv_peak));
    let n_over = over.filter(|(node, peak)| **peak > node.cache()).count();
    let mut text = busiest;
    if waiting > 0 {
        text += &format!("; {waiting} requests wait for room in caches at the end");
    }
    if n_over > 0 {
        text += &format!("; {n_over} nodes are asked for more cache than they have, so a real pool would be slower");
    }
    text
}

/// The planned flow in words.
fn planned(placed: &Decision<Placed>) -> String {
    let (flow, most) = (placed.plan.flow.tokens_per_s, placed.bound().unwrap_or(f64::INFINITY));
    format!("{flow:.0} tokens/s by maximum flow at planned batches, at which no placement has more than {most:.0}")
}

/// The placement in words.
fn notes(scenario: &Throughput, placed: &Decision<Placed>) -> Vec<String> {
    let mut ranges = Vec::new();
    for (of, node) in scenario.machines.types.iter().enumerate() {
        let nodes = placed.plan.ranges.iter().enumerate();
        let own = nodes.filter(|(at, _)| scenario.machines.type_of(*at) == of);
        let own: Vec<String> = own
            .map(
                |(_, range)| {
                    if range.first < range.end { format!("{}..{}", range.first, range.end) } else { "-".to_owned() }
                },
            )
            .collect();
        ranges.push(format!("{}: {}", node.name, own.join(" ")));
    }
    let mut notes = vec![format!("layers on {}", ranges.join("; "))];
    if !placed.limit.is_empty() {
        notes.push(format!("what holds it back: {}", placed.limit));
    }
    if let Some(other) = placed.runner_up() {
        notes.push(format!("runner-up: {}", other.plan.words()));
    }
    notes
}

/// Names that such a scenario may use for policies, with what they do.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str)> {
    POLICIES.iter().map(|policy| (policy.name, policy.about)).collect()
}
