//! What was decided, in words and figures: for every change of plan the groups, layers and micro-batches, what keeping the old plan would
//! have cost, the next best division, and what limits it.

use super::arrangement::{Arrangement, Pipeline, Stage};
use hw::GIB;

use super::{BTreeMap, CARD, Chosen, Decision, Job, Plan, Rates, status};
use crate::proof::{Aim, Bound};

/// The decision of all steps.
pub(super) fn decision(job: &Job<'_>, steps: &[Chosen]) -> Decision<Plan> {
    let problem = job.planner.problem;
    let n_steps = f(steps.len());
    let mean = |of: &dyn Fn(&Chosen) -> f64| steps.iter().map(of).sum::<f64>() / n_steps;
    let plan = Plan::new(CARD.name, problem, steps.iter().map(|chosen| chosen.step.clone()).collect());
    let changes = steps.iter().enumerate().filter_map(|(index, chosen)| note(job, index, chosen));
    let notes = changes.chain(ragged(&problem.workload.lengths)).collect();
    let bound = Bound::plain(mean(&|chosen| chosen.bound_s));
    let decision = Decision::new(plan, Aim::Seconds, mean(&|chosen| chosen.predicted_s));
    decision.bounded(Some(bound), status(job, steps)).said(notes, figures(job, steps))
}

fn f(n: usize) -> f64 {
    hw::real(n as u64)
}

fn figures(job: &Job<'_>, steps: &[Chosen]) -> BTreeMap<String, f64> {
    let problem = job.planner.problem;
    let n_ranks = problem.layout.n_ranks() as usize;
    let changes: Vec<(&Chosen, &super::Change)> =
        steps.iter().filter_map(|chosen| Some((chosen, chosen.change.as_ref()?))).collect();
    let healthy_s = job.healthy_s();
    let most = |of: &dyn Fn(&Chosen) -> f64| steps.iter().map(of).fold(0.0, f64::max);
    let sum = |of: &dyn Fn(&super::Change) -> f64| {
        changes.iter().map(|(_, change)| of(change)).fold(0.0, |sum, value| sum + value)
    };
    let layer_s = job.planner.costs.layer_s(job.planner.costs.tp, 1.0);
    let planned_s = |chosen: &Chosen| chosen.planned.arrangement.predicted_s(job.planner.costs, &chosen.rates);
    let replanned_s = |chosen: &Chosen| chosen.change.as_ref().map_or(0.0, |change| change.planned_s);
    let last = steps.last().expect("a job has at least one step");
    [
        ("replans", f(changes.len())),
        ("moved_gib", sum(&|change| change.moved_bytes) / GIB),
        ("pause_s", sum(&|change| change.pause_s)),
        ("suspended_gpus_max", most(&|chosen| f(n_ranks - chosen.planned.arrangement.n_ranks().min(n_ranks)))),
        ("predicted_over_healthy_ratio_max", most(&|chosen| planned_s(chosen) / healthy_s)),
        ("replanned_over_healthy_ratio_max", most(&|chosen| replanned_s(chosen) / healthy_s)),
        ("capacity_over_healthy_ratio_max", most(&|chosen| job.capacity_ratio(&chosen.rates))),
        ("last_over_healthy_ratio", planned_s(last) / healthy_s),
        ("last_objective_layers", planned_s(last) / layer_s),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// A change of plan in words.
fn note(job: &Job<'_>, index: usize, chosen: &Chosen) -> Option<String> {
    let change = chosen.change.as_ref()?;
    let (arrangement, healthy_s) = (&chosen.planned.arrangement, job.healthy_s());
    let over = |seconds: f64| format!("{:.3}", seconds / healthy_s);
    let mut parts = vec![format!("step {index}, {}: {}", slow(&chosen.rates), shape(arrangement))];
    let n_ranks = job.planner.problem.layout.n_ranks() as usize;
    if arrangement.n_ranks() < n_ranks {
        parts.push(format!("{} GPUs suspended", n_ranks - arrangement.n_ranks()));
    }
    let limit = match chosen.planned.n_full {
        0 => "whole layers and micro-batches".to_owned(),
        n => format!("memory, full in {n} stages, and whole layers"),
    };
    let next =
        chosen.planned.runner_up_s.map_or_else(String::new, |next| format!(", the next best division {}", over(next)));
    parts.push(format!(
        "{} of a healthy step, the old plan {}{next}; limited by {limit} (no division at will is below {})",
        over(change.planned_s),
        over(change.kept_s),
        over(chosen.bound_s)
    ));
    if change.planned_s < healthy_s * (1.0 - 1e-6) {
        let what =
            "faster than a healthy step in the layout's own pipelines: the layout could be better, so search for one";
        parts.push(what.to_owned());
    }
    if change.pause_s > 0.0 {
        parts.push(format!("{:.1} GiB move, {:.2} s pause", change.moved_bytes / GIB, change.pause_s));
    }
    Some(parts.join("; "))
}

/// What plans leave out where sequences differ: micro-batches count as equal ones.
fn ragged(lengths: &[u64]) -> Option<String> {
    let (least, most) = (lengths.iter().min()?, lengths.iter().max()?);
    (least < most).then(|| {
        format!(
            "one sequence per micro-batch, {least} to {most} tokens, each counted as the mean: with few stragglers a policy that packs is faster"
        )
    })
}

fn slow(rates: &Rates) -> String {
    let all = rates.stragglers();
    let shown: Vec<String> = all.iter().take(4).map(|(rank, rate)| format!("rank {} at {rate}", rank.0)).collect();
    match all.len() {
        0 => "no straggler".to_owned(),
        n if n > shown.len() => format!("{} and {} more", shown.join(", "), n - shown.len()),
        _ => shown.join(", "),
    }
}

/// `tp 1+2+4+8+8 with 2,5,11,20,22 layers × 32 | …`; equal pipelines once.
fn shape(arrangement: &Arrangement) -> String {
    if arrangement.is_uniform {
        return "the layout's own pipelines".to_owned();
    }
    let list = |pipeline: &Pipeline, of: &dyn Fn(&Stage) -> u64, by: &str| {
        pipeline.stages.iter().map(|stage| of(stage).to_string()).collect::<Vec<_>>().join(by)
    };
    let word = |pipeline: &Pipeline| {
        let degrees = list(pipeline, &|stage| stage.ranks.len() as u64, "+");
        let layers = list(pipeline, &|stage| stage.layers, ",");
        format!("tp {degrees} with {layers} layers × {}", pipeline.micro_batches)
    };
    let words: Vec<String> = arrangement.pipelines.iter().map(word).collect();
    let runs = words.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].clone(),
        n => format!("{n} of {}", run[0]),
    });
    runs.collect::<Vec<_>>().join(" | ")
}
