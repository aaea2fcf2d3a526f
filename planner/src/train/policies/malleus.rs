//! Malleus (arXiv:2410.13333): training goes on beside stragglers, with tensor groups, layers and micro-batches that fit each device's speed.
//!
//! Hybrid-parallel training goes at the pace of its slowest GPU. When a straggler shows, the job is planned anew for the measured rates and
//! changes to the new plan without a restart:
//!
//! 1. nodes with stragglers split their tensor groups, so that a straggler slows few devices or none (`malleus/grouping.rs`);
//! 2. groups go to the data-parallel pipelines, layers to stages, micro-batches to pipelines, such that max m_i · max_j y_ij · l_ij is
//!    least, with y = α · max x the rate of a group, and the filling of pipelines counted too (`division.rs`; the allocations are exact, `allocate.rs`);
//! 3. the concrete groups take the stages whose slices they hold, and the rest moves (`arrangement.rs`, `migration.rs`).
//!
//! The rates of a step are those that the steps before it measured; those of the first are known. The word `reaction` gives what Malleus is
//! compared with under the same cost model (`reaction.rs`). Times of layers are the scenario's; `coefficients` takes α and memory from
//! the authors' tests instead (`profiles/published/malleus.toml`).

use std::collections::BTreeMap;

use hw::GIB;
use train::layout::Axis;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::straggler::Rates;
use train::{Plan, Problem};

use super::{all_fit, limit_of_own_pipelines};
use crate::proof::{Decision, Status};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

mod allocate;
mod arrangement;
mod costs;
mod division;
mod grouping;
mod migration;
mod played;
mod reaction;
mod words;

use arrangement::Arrangement;
use costs::Costs;
use migration::migration;
pub use reaction::Divisions;
use reaction::{Answer, Limits, Planner, Reaction};

pub(super) const CARD: Card = Card {
    name: "malleus",
    about: "pipelines, layers and micro-batches that fit the speed of stragglers, changed without a restart when rates change",
    source: "Malleus, arXiv:2410.13333; PKU-DAIR/Hetu examples/malleus",
    method: "splits of tensor groups, branch and bound over divisions, exact min-max allocation",
    parameters: &[
        Parameter::word(
            "reaction",
            &["replan", "none", "restart", "templates"],
            "Malleus, or what it is compared with: no reaction, a restart or pipeline templates without the slow nodes",
        ),
        Parameter::word(
            "coefficients",
            &["own", "published-32b", "published-70b", "published-110b"],
            "slowdown of small groups and memory: of the scenario's models, or the authors'",
        ),
        Parameter::word(
            "fill",
            &["counted", "ignored"],
            "whether plans count the filling of pipelines; the authors' objective ignores it",
        ),
        Parameter::count(
            ("reaction_steps", "steps"),
            ("1", 0.0, 1000.0),
            "steps that a change of rates is measured and planned for before the plan changes",
        ),
        Parameter::number(("threshold", "ratio"), ("1.2", 1.0, 100.0), "rates below it count as healthy"),
        Parameter::number(("safe_gap", "ratio"), ("0.3", 0.0, 100.0), "change of a rate that is planned for"),
        Parameter::number(
            ("gap_gib", "GiB"),
            ("4", 0.0, 1000.0),
            "memory of a GPU that plans leave free, with the scenario's own coefficients",
        ),
        Parameter::count(("splits", "splits"), ("6", 1.0, 100.0), "splits of a node with stragglers that are tried"),
        Parameter::count(
            ("nodes_max", "divisions"),
            ("4000", 0.0, 1e9),
            "divisions, begun or whole, that are looked at for every set of tensor groups",
        ),
        Parameter::number(
            ("restart_s", "s"),
            ("300", 0.0, 1e6),
            "checkpoint, start of processes and communicators under `restart`: assumed",
        )
        .under("reaction", &["restart"]),
    ],
};

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    planned(problem, context, &Divisions::default())
}

/// The same with divisions that are known from other stragglers.
pub(super) fn planned(
    problem: &Problem,
    context: &PlanContext<'_>,
    known: &Divisions,
) -> Result<Decision<Plan>, PlanError> {
    supported(problem)?;
    all_fit(problem)?;
    let published = costs::published(context.word("coefficients", "own"));
    if let Some(of) = published.filter(|of| of.tp != problem.layout.tp) {
        let (found, wanted) = (problem.layout.tp, of.tp);
        return Err(PlanError::Unsupported(format!(
            "the published coefficients are of tp {wanted}, the layout has {found}"
        )));
    }
    let costs = Costs::new(problem, context.cost, published, context.number("gap_gib", 4.0) * GIB);
    let costs = if context.word("fill", "counted") == "counted" { costs } else { costs.without_fill() };
    let limits = Limits {
        threshold: context.number("threshold", 1.2),
        splits: count(context, "splits", 6.0),
        budget: count(context, "nodes_max", 4000.0),
    };
    let n_micro_batches = problem.workload.batch_size as u64;
    let planner = Planner { problem, costs: &costs, limits, n_micro_batches, known };
    let job = Job {
        planner,
        context,
        reaction: Reaction::named(context.word("reaction", "replan")).unwrap_or(Reaction::Replan),
        is_published: published.is_some(),
    };
    let steps = job.steps()?;
    Ok(words::decision(&job, &steps))
}

fn count(context: &PlanContext<'_>, name: &str, default: f64) -> usize {
    usize::try_from(hw::whole(context.number(name, default))).unwrap_or(usize::MAX)
}

/// Whether pipelines of their own can run the problem.
fn supported(problem: &Problem) -> Result<(), PlanError> {
    let layout = &problem.layout;
    let per_node = problem.cluster.nvlink_island;
    let what = if layout.cp > 1 {
        "stages that are placed one by one know no context groups: use `cp = 1`"
    } else if ![0, problem.model.n_layers].contains(&problem.model.n_expert_layers()) {
        "stages that are placed one by one count layers, and some of this model have experts and others none"
    } else if problem.schedule.name != "1f1b" || layout.chunks > 1 {
        "stages that are placed one by one need `schedule = \"1f1b\"`"
    } else if let Some(why) = limit_of_own_pipelines(problem) {
        why
    } else if layout.order[0] != Axis::Tensor || !per_node.is_multiple_of(layout.tp) {
        "tensor groups must be consecutive and whole inside a node"
    } else if problem.execution.unit_times.is_some() {
        "passes of fixed duration have no layers to share out"
    } else {
        return Ok(());
    };
    Err(PlanError::Unsupported(what.to_owned()))
}

/// A job with its reaction.
struct Job<'a> {
    planner: Planner<'a>,
    context: &'a PlanContext<'a>,
    reaction: Reaction,
    /// Whether coefficients are the authors'.
    is_published: bool,
}

/// What a step runs.
struct Chosen {
    step: Step,
    planned: Answer,
    rates: Rates,
    /// Predicted, with the pause before it, seconds.
    predicted_s: f64,
    bound_s: f64,
    /// The change before it, where there is one.
    change: Option<Change>,
}

/// A change of plan.
struct Change {
    /// What the old arrangement would take under the rates that were planned for, seconds.
    kept_s: f64,
    /// What the new one takes, seconds.
    planned_s: f64,
    pause_s: f64,
    moved_bytes: f64,
}

impl Job<'_> {
    /// Every step: the plan that runs, after the change to it where rates have changed.
    fn steps(&self) -> Result<Vec<Chosen>, PlanError> {
        let problem = self.planner.problem;
        let n_pipelines = problem.layout.dp as usize;
        let n_late = count(self.context, "reaction_steps", 1.0);
        let mut planned_for = Rates::default();
        let mut planned =
            Answer { arrangement: self.planner.uniform(), runner_up_s: None, is_exhaustive: true, n_full: 0 };
        let mut steps = Vec::with_capacity(problem.workload.n_steps());
        for index in 0..problem.workload.n_steps() {
            let known = problem.rates(index.saturating_sub(n_late));
            let mut change = None;
            if (index == 0 && self.straggles(&known)) || self.is_due(&planned_for, &known, &planned.arrangement) {
                let new = self.planner.react(self.reaction, &known, &planned.arrangement).ok_or_else(|| {
                    PlanError::Infeasible(format!("step {index}: no pipelines without the stragglers hold all layers"))
                })?;
                let new = self.soonest(index, &known, new, &planned.arrangement);
                change = self.change(&planned.arrangement, &new.arrangement, &known, index == 0);
                (planned, planned_for) = (new, known);
            }
            let rates = problem.rates(index);
            let pause_s = change.as_ref().map_or(0.0, |change: &Change| change.pause_s);
            steps.push(Chosen {
                step: self.step_of(problem, index, &planned.arrangement, pause_s),
                predicted_s: planned.arrangement.predicted_s(self.planner.costs, &rates) + pause_s,
                bound_s: self.planner.bound_s(&rates, planned.arrangement.pipelines.len().max(n_pipelines)),
                planned: planned.clone(),
                rates,
                change,
            });
        }
        Ok(steps)
    }

    /// Whether a device counts as a straggler: what a job begins with is known, and no plan has to be left for it, so no gap is asked for.
    fn straggles(&self, known: &Rates) -> bool {
        known.stragglers().iter().any(|(_, rate)| *rate >= self.planner.limits.threshold)
    }

    /// Whether rates have changed enough: by the safe gap on a device in use, across the threshold on one that is not, whose probe is
    /// noisy.
    fn is_due(&self, planned_for: &Rates, known: &Rates, arrangement: &Arrangement) -> bool {
        let (gap, threshold) = (self.context.number("safe_gap", 0.3), self.planner.limits.threshold);
        let named = planned_for.stragglers().iter().chain(known.stragglers()).map(|(rank, _)| *rank);
        named.into_iter().any(|rank| {
            let (old, new) = (planned_for.of(rank), known.of(rank));
            let crosses = (old < threshold) != (new < threshold);
            if arrangement.uses(rank) { (new - old).abs() >= gap } else { crosses }
        })
    }

    /// What a change costs; `None` where nothing changes. The first plan is the one that the job starts with.
    fn change(&self, old: &Arrangement, new: &Arrangement, rates: &Rates, is_start: bool) -> Option<Change> {
        if old == new {
            return None;
        }
        let moved = if is_start { migration::Migration::default() } else { migration(self.planner.problem, old, new) };
        let pause_s = match self.reaction {
            Reaction::Restart if !is_start => self.context.number("restart_s", 300.0),
            _ => moved.seconds,
        };
        Some(Change {
            kept_s: old.predicted_s(self.planner.costs, rates),
            planned_s: new.predicted_s(self.planner.costs, rates),
            pause_s,
            moved_bytes: moved.bytes,
        })
    }

    /// Sequences in order of arrival, one per micro-batch, so many to every pipeline.
    fn step_of(&self, problem: &Problem, index: usize, arrangement: &Arrangement, pause_s: f64) -> Step {
        let mut sequences = problem.workload.step(index);
        let one = |(sequence, tokens)| MicroBatch {
            sequences: vec![Placement { sequence, from: 0, tokens, place: Place::Local(0) }],
            ..MicroBatch::default()
        };
        let groups = arrangement.pipelines.iter().map(|pipeline| {
            let n = usize::try_from(pipeline.micro_batches).expect("micro-batches fit memory");
            sequences.by_ref().take(n).map(one).collect()
        });
        let groups = groups.collect();
        let pause_ns = hw::Span::from_seconds(hw::Seconds::new(pause_s)).as_ns();
        Step { placed: arrangement.placed(), pause_ns, ..Step::of_groups(groups) }
    }

    /// Seconds that a healthy job takes for a step.
    fn healthy_s(&self) -> f64 {
        self.planner.uniform().predicted_s(self.planner.costs, &Rates::default())
    }

    /// GPUs over the sum of their speeds: what a step takes over a healthy one's if work could be cut at will and small groups were as
    /// efficient as full ones.
    fn capacity_ratio(&self, rates: &Rates) -> f64 {
        let n = f64::from(self.planner.problem.layout.n_ranks());
        let lost: f64 = rates.stragglers().iter().map(|(_, rate)| 1.0 - 1.0 / rate).sum();
        n / (n - lost)
    }
}

/// How good the plans of all steps are known to be.
fn status(job: &Job<'_>, steps: &[Chosen]) -> Status {
    let is_exhaustive = steps.iter().all(|chosen| chosen.planned.is_exhaustive);
    if job.reaction == Reaction::Replan && is_exhaustive { Status::Feasible } else { Status::Heuristic }
}

#[cfg(test)]
mod tests;
