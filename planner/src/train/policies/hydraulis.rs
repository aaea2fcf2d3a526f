//! Hydraulis (arXiv:2412.07894): every step runs on a mix of pipelines of different shape, chosen for its lengths; wide pipelines for
//! the few long sequences, many narrow ones for the short.
//!
//! 1. Offline, a dynamic programme over the length histogram proposes strategies (`hydraulis/proposal.rs`). Copies of one shape alone are strategies too:
//!    a step that may run on any mix may run on any of these, so `dynamic` is never worse than `switched` by its own objective.
//! 2. For a step, each strategy that can hold its longest sequence gets its sequences dispatched to pipelines (`dispatch.rs`), which pack them
//!    into micro-batches (`packing.rs`); the strategy whose slowest pipeline ends first runs.
//! 3. Gradients and parameters go to and from an optimizer that is cut over all ranks, so a change of strategy between steps costs only
//!    the gather that every step has (`sim/train/src/lower/training/mixed.rs`).
//!
//! The layout (`dp` pipelines of `tp` × `pp`) is the homogeneous baseline and, with published coefficients, the optimizer's layout. The words
//! `strategy` and `packing` give the ladder of the authors' ablation: homogeneous and padded, homogeneous and packed to a fixed length,
//! dynamic with fixed packing, dynamic with fine packing.

use std::collections::BTreeMap;

use engine::random;
use train::layout::{Layout, Zero};
use train::plan::{MicroBatch, PipelineShape, Place, Placement, Step};
use train::{Plan, Problem};

use super::limit_of_own_pipelines;
use crate::milp::Budget;
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

mod dispatch;
mod packing;
mod proposal;
mod schemes;

use proposal::Histogram;
use schemes::Scheme;

pub(super) const CARD: Card = Card {
    name: "hydraulis",
    about: "every step on a mix of pipelines of different shape, chosen from the lengths; sequences dispatched, then packed",
    source: "Hydraulis, arXiv:2412.07894; PKU-DAIR/Hetu examples/hydraulis",
    method: "dynamic programme for strategies, greedy or MILP dispatch, min-max packing",
    parameters: &[
        Parameter::word(
            "strategy",
            &["dynamic", "static", "switched", "homogeneous"],
            "per step, one mix for all steps, one shape per step, or the layout's shape",
        ),
        Parameter::word(
            "packing",
            &["fine", "fixed", "padded"],
            "least largest micro-batch, best fit to a fixed length, or one padded sequence per micro-batch",
        ),
        Parameter::word("dispatch", &["greedy", "milp"], "how sequences are assigned to pipelines"),
        Parameter::word(
            "coefficients",
            &["own", "published-7b", "published-13b", "published-32b"],
            "stage times and token limits: fitted to the scenario's cost model, or the authors'",
        ),
        Parameter::count(("spans", "spans"), ("32", 1.0, 1024.0), "length spans of the histogram"),
        Parameter::number(("seconds", "s"), ("5", 0.0, 3600.0), "time limit of one dispatch MILP")
            .under("dispatch", &["milp"]),
    ],
};

/// Nodes of one dispatch MILP.
const NODES: i32 = 20_000;

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    supported(problem)?;
    let own_shape = PipelineShape { tp: problem.layout.tp, pp: problem.layout.pp };
    let published = schemes::published(context.word("coefficients", "own"));
    let mut all = match published {
        Some(model) => model.schemes(problem.layout.n_ranks(), (problem.layout.dp, own_shape)),
        None => schemes::own(problem, context.cost),
    };
    // Published shapes are those of another model: what this one cannot be cut into is left out.
    all.retain(|scheme| schemes::cuts(problem, scheme.shape));
    // The layout's own shape first.
    all.sort_by_key(|scheme| scheme.shape != own_shape);
    if all.first().is_none_or(|scheme| scheme.shape != own_shape) {
        let (tp, pp) = (own_shape.tp, own_shape.pp);
        return Err(PlanError::Infeasible(format!("no coefficients or no room for the layout's {tp} × {pp} pipeline")));
    }
    let planner = Planner { problem, context, schemes: all };
    let strategies = planner.strategies();
    let mut chosen = Vec::with_capacity(problem.workload.n_steps());
    for index in 0..problem.workload.n_steps() {
        chosen.push(planner.step(index, &strategies)?);
    }
    if context.word("strategy", "dynamic") == "static" {
        chosen = planner.one_for_all(&strategies)?;
    }
    Ok(planner.decision(&strategies, chosen))
}

/// Whether mixed pipelines can run the problem.
fn supported(problem: &Problem) -> Result<(), PlanError> {
    let layout = &problem.layout;
    let what = if layout.cp > 1 {
        "pipelines of different shape know no context groups: use `cp = 1`"
    } else if problem.schedule.name != "1f1b" || layout.chunks > 1 {
        "pipelines of different shape need `schedule = \"1f1b\"`"
    } else if layout.order != Layout::data_and_context(1, 1, Zero::Off, layout.exchange).order {
        "pipelines of different shape lie on consecutive ranks, tensor fastest: leave `parallel.order` out"
    } else if let Some(why) = limit_of_own_pipelines(problem) {
        why
    } else {
        return Ok(());
    };
    Err(PlanError::Unsupported(what.to_owned()))
}

/// Pipelines of a strategy, by scheme.
type Strategy = Vec<Scheme>;

/// A step with its strategy and predicted seconds.
struct Chosen {
    step: Step,
    strategy: usize,
    seconds: f64,
    /// What no dispatch of the step over any of its strategies is below, seconds.
    bound_s: f64,
}

struct Planner<'a> {
    problem: &'a Problem,
    context: &'a PlanContext<'a>,
    /// The layout's shape first.
    schemes: Vec<Scheme>,
}

impl Planner<'_> {
    fn n_ranks(&self) -> u32 {
        self.problem.layout.n_ranks()
    }

    /// Strategies that steps may choose from.
    fn strategies(&self) -> Vec<Strategy> {
        let copies = |scheme: &Scheme| vec![*scheme; (self.n_ranks() / scheme.shape.n_ranks()) as usize];
        let homogeneous = copies(&self.schemes[0]);
        match self.context.word("strategy", "dynamic") {
            "homogeneous" => vec![homogeneous],
            "switched" => self.schemes.iter().map(copies).collect(),
            _ => self.mixes(self.schemes.iter().map(copies).collect()),
        }
    }

    /// Strategies of one shape, and mixes that the histogram of lengths proposes.
    fn mixes(&self, of_one_shape: Vec<Strategy>) -> Vec<Strategy> {
        let spans = hw::whole(self.context.number("spans", 32.0));
        let workload = &self.problem.workload;
        let histogram = Histogram::of(&workload.lengths, workload.n_steps(), spans);
        let mut all = of_one_shape;
        for (strategy, _) in proposal::propose(&self.schemes, &histogram, self.n_ranks()) {
            let mut pipelines: Strategy = Vec::new();
            for (scheme, n) in strategy {
                pipelines.extend(std::iter::repeat_n(self.schemes[scheme], n as usize));
            }
            // Wide pipelines first: tensor groups then lie inside nodes.
            pipelines.sort_by_key(|scheme| std::cmp::Reverse(scheme.shape.n_ranks()));
            if !all.contains(&pipelines) {
                all.push(pipelines);
            }
        }
        all
    }

    /// The strategy whose slowest pipeline ends first.
    fn step(&self, index: usize, strategies: &[Strategy]) -> Result<Chosen, PlanError> {
        let found: Vec<Chosen> =
            strategies.iter().enumerate().filter_map(|(at, of)| self.with(index, at, of)).collect();
        let bound_s = found.iter().map(|chosen| chosen.bound_s).fold(f64::INFINITY, f64::min);
        let best = found.into_iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        best.map(|best| Chosen { bound_s, ..best }).ok_or_else(|| {
            let longest = self.problem.workload.step(index).map(|(_, tokens)| tokens).max().unwrap_or(0);
            let room = strategies.iter().flatten().map(|scheme| scheme.max_tokens).max().unwrap_or(0);
            PlanError::Infeasible(format!("step {index} has a sequence of {longest} tokens, a pipeline holds {room}"))
        })
    }

    /// One strategy for every step: the least sum.
    fn one_for_all(&self, strategies: &[Strategy]) -> Result<Vec<Chosen>, PlanError> {
        let n_steps = self.problem.workload.n_steps();
        let all = strategies.iter().enumerate().filter_map(|(at, strategy)| {
            (0..n_steps).map(|index| self.with(index, at, strategy)).collect::<Option<Vec<Chosen>>>()
        });
        let all: Vec<Vec<Chosen>> = all.collect();
        let total = |steps: &Vec<Chosen>| steps.iter().map(|step| step.seconds).sum::<f64>();
        // One strategy stands for all steps, so the least of their sums bounds the choice: every step says its mean.
        let bounds = all.iter().map(|steps| steps.iter().map(|step| step.bound_s).sum::<f64>());
        let bound_s = bounds.fold(f64::INFINITY, f64::min) / hw::real(n_steps as u64);
        let best = all.into_iter().min_by(|a, b| total(a).total_cmp(&total(b)));
        best.map(|steps| steps.into_iter().map(|step| Chosen { bound_s, ..step }).collect())
            .ok_or_else(|| PlanError::Infeasible("no strategy holds the sequences of every step".to_owned()))
    }

    /// A step under one strategy; `None` when it cannot hold the step.
    fn with(&self, index: usize, at: usize, strategy: &[Scheme]) -> Option<Chosen> {
        let sequences: Vec<(u32, u64)> = self.problem.workload.step(index).collect();
        let lengths: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
        let ways = self.dispatched(index, &lengths, strategy)?;
        let found = ways.into_iter().filter_map(|assigned| self.grouped(assigned, &sequences, strategy));
        let (groups, seconds) = found.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let pipelines = strategy.iter().map(|scheme| scheme.shape).collect();
        let step = Step { pipelines, ..Step::of_groups(groups) };
        let sync_s = self.sync_s(strategy);
        let bound_s = dispatch::least_s(&lengths, strategy) + sync_s;
        Some(Chosen { step, strategy: at, seconds: seconds + sync_s, bound_s })
    }

    /// Micro-batches of every pipeline, and the seconds of the slowest; `None` where one cannot hold its sequences.
    fn grouped(
        &self,
        assigned: Vec<Vec<usize>>,
        sequences: &[(u32, u64)],
        strategy: &[Scheme],
    ) -> Option<(Vec<Vec<MicroBatch>>, f64)> {
        let (mut groups, mut seconds) = (Vec::with_capacity(strategy.len()), 0.0_f64);
        for (scheme, items) in strategy.iter().zip(assigned) {
            let own: Vec<u64> = items.iter().map(|&item| sequences[item].1).collect();
            let (bins, of_pipeline) = self.packed(&own, scheme)?;
            seconds = seconds.max(of_pipeline);
            let longest = own.iter().max().copied().unwrap_or(0);
            let micro_batch = |bin: Vec<usize>| self.micro_batch(&bin, &items, sequences, longest);
            groups.push(bins.into_iter().map(micro_batch).collect());
        }
        Some((groups, seconds))
    }

    /// Assignments of a step's sequences to the pipelines of a strategy, of which the best counts; `None` when some sequence fits nowhere.
    fn dispatched(&self, index: usize, lengths: &[u64], strategy: &[Scheme]) -> Option<Vec<Vec<Vec<usize>>>> {
        // The homogeneous baseline deals sequences in turn. Whoever may dispatch them may do that too.
        let mut in_turn = vec![Vec::new(); strategy.len()];
        (0..lengths.len()).for_each(|item| in_turn[item % strategy.len()].push(item));
        if self.context.word("strategy", "dynamic") == "homogeneous" {
            return Some(vec![in_turn]);
        }
        let mut random = random::stream(self.problem.seed, &format!("dispatch of step {index}"));
        let greedy = dispatch::greedy(lengths, strategy, &mut random)?;
        let mut ways = vec![greedy.0.clone()];
        if self.context.word("dispatch", "greedy") == "milp" {
            let budget = Budget::new(NODES, self.context.number("seconds", 5.0));
            ways.push(dispatch::milp(lengths, strategy, greedy, budget).0.0);
        }
        if !is_mixed(strategy) {
            ways.push(in_turn);
        }
        Some(ways)
    }

    fn packed(&self, lengths: &[u64], scheme: &Scheme) -> Option<packing::Packing> {
        let longest = self.problem.workload.lengths.iter().max().copied().unwrap_or(1);
        match self.context.word("packing", "fine") {
            "fine" => packing::fine(lengths, scheme),
            "fixed" => packing::fixed(lengths, scheme, longest),
            _ => {
                let own = lengths.iter().max().copied().unwrap_or(0);
                let seconds = scheme.pipeline_s(&vec![scheme.sequence_s(own); lengths.len()]);
                (own <= scheme.max_tokens).then(|| ((0..lengths.len()).map(|item| vec![item]).collect(), seconds))
            }
        }
    }

    fn micro_batch(&self, bin: &[usize], items: &[usize], sequences: &[(u32, u64)], longest: u64) -> MicroBatch {
        let place = |&at: &usize| {
            let (sequence, tokens) = sequences[items[at]];
            Placement { sequence, from: 0, tokens, place: Place::Local(0) }
        };
        let sequences: Vec<Placement> = bin.iter().map(place).collect();
        let tokens: u64 = sequences.iter().map(|placement| placement.tokens).sum();
        let padding = if self.context.word("packing", "fine") == "padded" { longest - tokens } else { 0 };
        MicroBatch { sequences, padding, ..MicroBatch::default() }
    }

    /// What is not hidden of the reduction (the last of four pieces) and the gather over pipelines, seconds.
    fn sync_s(&self, strategy: &[Scheme]) -> f64 {
        if let Some(model) = schemes::published(self.context.word("coefficients", "own")) {
            return if is_mixed(strategy) { model.hetero_sync_ms * 1e-3 } else { 0.0 };
        }
        let mut first = 0;
        let mut members = Vec::with_capacity(strategy.len());
        for scheme in strategy {
            members.push(hw::Rank(first));
            first += scheme.shape.n_ranks();
        }
        let shapes: Vec<(PipelineShape, u32)> = strategy.iter().map(|scheme| (scheme.shape, 1)).collect();
        let ops = train::lower::training::mixed::exchanges(self.problem, &shapes, &members, 4);
        if members.len() < 2 { 0.0 } else { ops.iter().map(|op| self.context.cost.estimate(op).time.get()).sum() }
    }

    fn decision(&self, strategies: &[Strategy], chosen: Vec<Chosen>) -> Decision<Plan> {
        let mut figures: BTreeMap<String, f64> = BTreeMap::new();
        for scheme in &self.schemes {
            let key = format!("max_tokens_tp{}_pp{}", scheme.shape.tp, scheme.shape.pp);
            figures.insert(key, hw::real(scheme.max_tokens));
        }
        let ranks = |strategy: &Strategy| strategy.iter().map(|scheme| scheme.shape.n_ranks()).sum::<u32>();
        let most = strategies.iter().map(ranks).max().unwrap_or(0);
        figures.insert("strategy_ranks_max".to_owned(), f64::from(most));
        figures.insert("strategies".to_owned(), hw::real(strategies.len() as u64));
        let switches = chosen.windows(2).filter(|pair| pair[0].strategy != pair[1].strategy).count();
        figures.insert("strategy_switches".to_owned(), hw::real(switches as u64));
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        chosen.iter().for_each(|step| *used.entry(step.strategy).or_default() += 1);
        let words = |(&at, &n): (&usize, &usize)| format!("{} in {n} of {} steps", name(&strategies[at]), chosen.len());
        let notes = vec![format!(
            "{} strategies, tp×pp: {}",
            strategies.len(),
            used.iter().map(words).collect::<Vec<_>>().join("; ")
        )];
        let n_steps = hw::real(chosen.len() as u64);
        let objective = chosen.iter().map(|step| step.seconds).sum::<f64>() / n_steps;
        // Rounding alone puts a bound above what it bounds.
        let bound = (chosen.iter().map(|step| step.bound_s).sum::<f64>() / n_steps).min(objective);
        let steps = chosen.into_iter().map(|step| step.step).collect();
        let plan = Plan { steps, ..super::heuristic(CARD.name, self.problem, Vec::new()).plan };
        let decision =
            Decision::new(plan, Aim::Seconds, objective).bounded(Some(Bound::plain(bound)), Status::Heuristic);
        decision.said(notes, figures)
    }
}

/// Whether pipelines have different shapes.
fn is_mixed(strategy: &[Scheme]) -> bool {
    strategy.iter().any(|scheme| scheme.shape != strategy[0].shape)
}

/// `16×1 + 12 of 4×1`.
fn name(strategy: &[Scheme]) -> String {
    let part = |run: &[Scheme]| {
        let shape = format!("{}×{}", run[0].shape.tp, run[0].shape.pp);
        if run.len() == 1 { shape } else { format!("{} of {shape}", run.len()) }
    };
    strategy.chunk_by(|a, b| a.shape == b.shape).map(part).collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::problem;
    use super::*;

    fn word(name: &str, word: &str) -> (String, crate::train::policy::Value) {
        (name.to_owned(), crate::train::policy::Value::Word(word.to_owned()))
    }

    #[test]
    fn a_choice_among_more_is_never_worse_and_none_is_below_its_bound() {
        for (lengths, n_steps) in [
            (vec![3000, 200, 900, 40, 1500, 700, 60, 2500], 2),
            (vec![900; 8], 1),
            ((1..=24).map(|n| (n * 7919) % 6000 + 30).collect(), 3),
        ] {
            let batch = lengths.len() / n_steps;
            let mut problem = problem(lengths, batch, 8, 1, 8_000);
            (problem.layout.tp, problem.layout.dp) = (2, 4);
            if n_steps == 3 {
                // Eight experts, four on each rank of a tensor group, and fewer on those of wider ones.
                problem.model =
                    engine::Model { n_layers: 6, ..engine::model::embedded("mixtral-8x7b").expect("listed") };
                problem.layout.ep = 2;
            }
            let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
            for dispatch in ["greedy", "milp"] {
                let objective = |strategy: &str| {
                    let parameters = [word("strategy", strategy), word("dispatch", dispatch)].into();
                    let decision = plan(&problem, &PlanContext { cost: &cost, parameters }).expect("a plan");
                    let bound = decision.bound().expect("known");
                    let objective = decision.objective().expect("counted");
                    assert!(0.0 < bound && bound <= objective, "{strategy}: {bound} {objective}");
                    objective
                };
                let [dynamic, fixed, switched, homogeneous] =
                    ["dynamic", "static", "switched", "homogeneous"].map(objective);
                assert!(dynamic <= fixed && dynamic <= switched, "{dynamic} {fixed} {switched}");
                assert!(fixed <= homogeneous && switched <= homogeneous, "{fixed} {switched} {homogeneous}");
            }
        }
    }

    #[test]
    fn shapes_that_the_model_cannot_be_cut_into_are_never_planned() {
        // 14 heads: published shapes of tensor degree 4, 8 and 16 are left out.
        let mut problem = problem(vec![3000, 200, 900, 40, 1500, 700], 6, 8, 1, 8_000);
        problem.layout.tp = 2;
        problem.layout.dp = 4;
        let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
        let parameters = [word("coefficients", "published-7b")].into();
        let decision = plan(&problem, &PlanContext { cost: &cost, parameters }).expect("a plan");
        assert!(decision.plan.steps[0].pipelines.iter().all(|shape| shape.tp <= 2));
        assert!(decision.figures.keys().all(|key| !key.contains("tp4") && !key.contains("tp8")));
    }
}
