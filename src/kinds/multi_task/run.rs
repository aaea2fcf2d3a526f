//! From a checked multi-task scenario to a result: contract, bound, then every policy planned, placed, checked and played, in parallel.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::CostModel;
use engine::play::Case;
use planner::train::multi_task::bound::bound;
use planner::train::multi_task::contract::contract;
use planner::train::multi_task::{plan, spindle};
use planner::{Bound, Decision};
use reports::{Aim, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use train::multi_task::Work;
use train::multi_task::play::{Played, play};
use train::multi_task::schedule::Schedule;
use train::multi_task::schedule::check;

use crate::costs::cost_model;
use crate::kinds::multi_task::read::{MultiTaskScenario, TaskChoice};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for MultiTaskScenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let asked = Asked::new(self);
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, |(name, choice)| row(&asked, name, *choice));
        result(self, rows)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let (name, choice) = self.choices.iter().find(|(name, _)| name == choice)?;
        let asked = Asked::new(self);
        let planned = Planned::of_row(&row(&asked, name, *choice)).and_then(|mut planned| {
            let work = asked.work.as_ref().map_err(Clone::clone)?;
            let pieces = pieces(work, &plan(work, choice.policy, choice.placement));
            planned.json["pieces"] = pieces;
            Ok(planned)
        });
        Some(planned)
    }
}

/// What all policies are asked, and what none of them passes.
struct Asked {
    cost: Box<dyn CostModel>,
    work: Result<Work, String>,
    bound: Result<Bound, String>,
}

impl Asked {
    fn new(scenario: &MultiTaskScenario) -> Self {
        let cluster = &scenario.training.cluster;
        let cost = cost_model(cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
        let meta_ops = contract(&scenario.training);
        let work = Work::new(scenario.training.clone(), meta_ops, cost.as_ref(), Case::Expected);
        let bound = work.as_ref().map_err(Clone::clone).and_then(bound);
        Self { cost, work, bound }
    }
}

/// What the table shows.
const COLUMNS: [(&str, &str); 6] = [
    ("iteration_time_s", "iteration"),
    ("planned_s", "planned"),
    ("theory_gap_ratio", "over optimum"),
    ("messages_ratio", "messages"),
    ("sync_ratio", "gradients"),
    ("peak_memory_bytes", "memory"),
];

fn result(scenario: &MultiTaskScenario, results: Vec<PolicyResult>) -> RunResult {
    let speed = |row: &PolicyResult| row.metrics.get(COLUMNS[0].0).map(|seconds| 1.0 / seconds);
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, speed);
    let is_given = |call: &train::multi_task::Call| !call.times.is_empty();
    let (profile, source) = match &scenario.profile {
        _ if scenario.training.calls.iter().all(is_given) => {
            ("times of the scenario".to_owned(), engine::cost::Source::Measured)
        }
        Some(profile) => (profile.name.clone(), engine::cost::Source::Measured),
        None => ("roofline".to_owned(), engine::cost::Source::Datasheet),
    };
    RunResult {
        cost_model: CostModelFacts {
            profile,
            source: source.name().to_owned(),
            outside_hull_ratio: f64::NAN,
            free_parameters: scenario.free_parameters.clone(),
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&COLUMNS),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

fn row(asked: &Asked, name: &str, choice: TaskChoice) -> PolicyResult {
    let row = PolicyResult { policy: name.to_owned(), ..PolicyResult::default() };
    let work = match &asked.work {
        Ok(work) => work,
        Err(why) => return PolicyResult { status: "infeasible".to_owned(), why: why.clone(), ..row },
    };
    let begun = Instant::now();
    let planned = plan(work, choice.policy, choice.placement);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    if let Err(broken) = check(work, &planned.plan) {
        let why = format!("the plan is no schedule: {broken}");
        return PolicyResult { status: "infeasible".to_owned(), why, ..row };
    }
    let begun = Instant::now();
    let played = play(work, &planned.plan, asked.cost.as_ref());
    let measured = Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() };
    let facts = Some(facts(asked, work, &planned));
    match played {
        Ok(played) => PolicyResult {
            status: "ok".to_owned(),
            why: why(asked, &played),
            metrics: metrics(asked, work, &planned, &played),
            interval: BTreeMap::from([(COLUMNS[0].0.to_owned(), played.interval_s)]),
            planner: facts,
            measured,
            ..row
        },
        Err(why) => PolicyResult { status: "oom".to_owned(), why, planner: facts, measured, ..row },
    }
}

fn why(asked: &Asked, played: &Played) -> String {
    let percent = |seconds: f64| seconds / played.iteration_s * 100.0;
    let limit = asked.bound.as_ref().map_or("", |bound| &bound.limit);
    format!(
        "forward and backward {:.1} %, gradients and optimizer {:.1} %, messages {:.1} %; {limit}",
        percent(played.computation_s),
        percent(played.sync_s),
        percent(played.messages_s)
    )
}

fn metrics(asked: &Asked, work: &Work, planned: &Decision<Schedule>, played: &Played) -> BTreeMap<String, f64> {
    let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    let theory_s = spindle::theory_s(work);
    let mut all = vec![
        (COLUMNS[0].0, played.iteration_s),
        ("planned_s", seconds(planned)),
        ("theory_s", theory_s),
        ("theory_gap_ratio", seconds(planned) / theory_s - 1.0),
        ("forward_backward_ratio", played.computation_s / played.iteration_s),
        ("messages_ratio", played.messages_s / played.iteration_s),
        ("sync_ratio", played.sync_s / played.iteration_s),
        ("busy_ratio", played.busy_ratio),
        ("message_bytes", hw::Bytes(played.message_bytes).as_f64()),
        ("peak_memory_bytes", played.peak_memory.as_f64()),
        ("least_memory_bytes", played.least_memory.as_f64()),
        ("n_waves", count(planned.plan.n_waves())),
        ("n_meta_ops", count(work.meta_ops.len())),
    ];
    if let Ok(bound) = &asked.bound {
        let gap = 1.0 - bound.value / played.iteration_s;
        all.extend([("iteration_time_bound_s", bound.value), ("bound_gap_ratio", gap)]);
    }
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Planned seconds of forward and backward.
fn seconds(planned: &Decision<Schedule>) -> f64 {
    planned.objective().expect("every schedule has a time")
}

/// The objective is the planned time of forward and backward; no schedule's is below the bound.
fn facts(asked: &Asked, work: &Work, planned: &Decision<Schedule>) -> PlannerFacts {
    let mut notes = planned.notes.clone();
    let known = asked.bound.as_ref().ok();
    match &asked.bound {
        Ok(bound) => notes.push(bound.limit.clone()),
        Err(why) => notes.push(format!("no bound: {why}")),
    }
    let parameters: u64 = work.training.operators.iter().map(|of| of.parameters * u64::from(of.n_layers)).sum();
    let mut figures = BTreeMap::from([
        ("theory_s".to_owned(), spindle::theory_s(work)),
        ("parameters".to_owned(), hw::Tokens(parameters).as_f64()),
    ]);
    for (number, level) in spindle::levels(work).iter().enumerate() {
        figures.insert(format!("optimum_of_level_{number}_s"), spindle::of_level(work, level).seconds);
    }
    PlannerFacts {
        objective: Some(seconds(planned)),
        aim: Aim::Seconds,
        bound: known.map(|bound| bound.value),
        gap_ratio: known.map(|bound| ((seconds(planned) - bound.value) / seconds(planned)).max(0.0)),
        status: "heuristic".to_owned(),
        notes,
        figures,
    }
}

/// Tuples of a plan, each with its devices.
fn pieces(work: &Work, planned: &Decision<Schedule>) -> serde_json::Value {
    let pieces = planned.plan.pieces.iter().map(|piece| {
        let size = work.sizes[piece.meta_op][piece.size];
        serde_json::json!({
            "meta_op": work.meta_ops[piece.meta_op].name,
            "wave": piece.wave,
            "first_layer": piece.first,
            "layers": piece.n_layers,
            "start_s": piece.start_s,
            "end_s": piece.end_s(work),
            "tensor": size.tensor,
            "devices": piece.devices.iter().map(|rank| rank.0).collect::<Vec<u32>>(),
        })
    });
    pieces.collect()
}

/// Names and sentences of the policies.
pub fn policies() -> impl Iterator<Item = (&'static str, &'static str)> {
    planner::train::multi_task::POLICIES.into_iter().map(|(name, _, about)| (name, about))
}
