//! What steps take beside a slow node, for a run of days: with the plan that a policy has made for healthy nodes, and with the plan of `malleus`
//! (arXiv:2410.13333) that fits it, whose change takes the time in which its slices move.

use std::collections::BTreeMap;

use engine::CostModel;
use hw::topology::Topology;
use hw::{Cluster, Rank};
use train::Problem;
use train::long_run::slow::{Asked, Beside, Reaction, Replanned, SlowNodes, Slowed};
use train::long_run::{Job, Lasted, LongRun};
use train::plan::Plan;
use train::straggler::Straggler;

use super::policies::Replans;
use super::policy::{PlanContext, PlanError, Value};
use super::{orders, search};

/// Most GPUs of all steps that are played beside a slow node, and most nodes of which each is slow once.
const GPUS: u32 = 2048;
const NODES: u32 = 16;

/// A policy by its name in the table, with its parameters.
pub type Chosen<'a> = (&'a str, &'a BTreeMap<String, Value>);

/// What comes of a run of days over steps of a policy's plan that take so long.
///
/// # Errors
/// When nothing of the run is kept, and as `beside`.
pub fn lasted(
    run: &LongRun,
    choice: Chosen<'_>,
    (problem, plan, step_s): (&Problem, &Plan, f64),
    costs: (&dyn CostModel, &Topology),
) -> Result<Lasted, PlanError> {
    let beside = run.slow_nodes.as_ref().map(|slow| beside(slow, choice, (problem, plan), costs)).transpose()?;
    run.kept(&Job::of_training(problem, step_s), beside.as_ref()).map_err(|refused| PlanError::Infeasible(refused.why))
}

/// Steps of a row beside a slow node, over its healthy step, and what the job may do about it.
///
/// # Errors
/// When its plan is to change, and `malleus` has none for its layout.
fn beside(
    slow: &SlowNodes,
    choice: Chosen<'_>,
    (problem, plan): (&Problem, &Plan),
    (cost, topology): (&dyn CostModel, &Topology),
) -> Result<Beside, PlanError> {
    let asked = match slow.reaction {
        Asked::OfPolicy => Asked::Given(own(choice)),
        other => other,
    };
    let step = |problem: &Problem, plan: &Plan, index: usize| {
        let context = PlanContext { cost, parameters: choice.1.clone() };
        let graph = train::lower::training::lower(problem, plan, index);
        let timeline = search::play(problem, &graph, &context, topology);
        let why = "a step beside a slow node does not fit memory";
        let timeline = timeline.ok_or_else(|| PlanError::Infeasible(why.to_owned()))?;
        Ok::<f64, PlanError>(timeline.span().to_seconds().get())
    };
    let healthy_s = step(problem, plan, 0)?;
    let nodes = played_nodes(&problem.cluster);
    let beside_node = |node: &u32| step(&with_slow_node(problem, (*node, slow.rate), 0), plan, 0);
    let endured: Vec<f64> = nodes.iter().map(beside_node).collect::<Result<_, _>>()?;
    let endured = (pace(&endured) / healthy_s).max(1.0);
    let replanned = match asked {
        Asked::Given(Reaction::Endure | Reaction::Restart) => None,
        _ => {
            let replans = Replans::default();
            let of_node = |node: &u32| {
                let (problem, plan) = replanned((problem, &replans), (*node, slow.rate), choice, cost)?;
                let pause_s = hw::Span::from_ns(plan.steps[2].pause_ns).to_seconds().get();
                Ok((step(&problem, &plan, 2)? - pause_s, pause_s))
            };
            let found = nodes.iter().map(of_node).collect::<Result<Vec<(f64, f64)>, PlanError>>().map(|found| {
                let (steps, pauses): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
                let pause_s = pauses.iter().sum::<f64>() / hw::real(pauses.len() as u64);
                Replanned { pace: (pace(&steps) / healthy_s).max(1.0), pause_s, late_s: n_late(choice) * healthy_s }
            });
            match (found, asked) {
                (Err(why), Asked::Given(_)) => return Err(why),
                (found, _) => found.ok(),
            }
        }
    };
    let slowed = Slowed { endured, replanned };
    let reactions = match asked {
        Asked::Given(reaction) => vec![reaction],
        _ => slowed.reactions().collect(),
    };
    Ok(Beside { slowed, reactions })
}

/// What a policy does by itself: `malleus` what its parameter says, others nothing.
fn own((policy, parameters): Chosen<'_>) -> Reaction {
    match parameters.get("reaction") {
        _ if policy != Replans::POLICY => Reaction::Endure,
        Some(Value::Word(word)) if word == "none" => Reaction::Endure,
        Some(Value::Word(word)) if word == "restart" => Reaction::Restart,
        _ => Reaction::Replan,
    }
}

/// Parameter of `malleus`: steps in which a change of rates is measured, and its default.
const LATE: (&str, f64) = ("reaction_steps", 1.0);

/// Steps in which the job measures that a node is slow, or is not any more.
fn n_late((policy, parameters): Chosen<'_>) -> f64 {
    match parameters.get(LATE.0) {
        Some(Value::Number(n)) if policy == Replans::POLICY => *n,
        _ => LATE.1,
    }
}

/// Nodes of which each is slow once: all of a small job, and of a large one so many that `GPUS` are played. They lie evenly, as their
/// tasks differ by stage and by what a batch gives them. The last node is one of them.
fn played_nodes(cluster: &Cluster) -> Vec<u32> {
    let n_nodes = cluster.n_gpus() / cluster.gpus_per_node;
    let n_played = (GPUS / cluster.n_gpus()).clamp(1, n_nodes.min(NODES));
    (1..=n_played).map(|nth| nth * n_nodes / n_played - 1).collect()
}

/// A step that takes as long as those do together: whichever node is slow, it is for as long a time, so steps per second add up.
fn pace(steps_s: &[f64]) -> f64 {
    let per_s: f64 = steps_s.iter().map(|step_s| 1.0 / step_s).sum();
    hw::real(steps_s.len() as u64) / per_s
}

/// The problem with a node of slow devices from a step on.
fn with_slow_node(problem: &Problem, (node, rate): (u32, f64), from_step: usize) -> Problem {
    let first = node * problem.cluster.gpus_per_node;
    let ranks = (first..first + problem.cluster.gpus_per_node).map(Rank).collect();
    let mut slowed = problem.clone();
    slowed.execution.stragglers = vec![Straggler { ranks, rate, from_step, until_step: None }];
    slowed
}

/// Three steps of the first batch: healthy, slow under the old plan, and under the new one behind the change to it.
fn replanned(
    (problem, replans): (&Problem, &Replans),
    node: (u32, f64),
    (policy, parameters): Chosen<'_>,
    cost: &dyn CostModel,
) -> Result<(Problem, Plan), PlanError> {
    let mut slowed = with_slow_node(problem, node, 1);
    let first: Vec<u64> = problem.workload.step(0).map(|(_, tokens)| tokens).collect();
    slowed.workload.lengths = first.repeat(3);
    slowed.workload.batch_size = first.len();
    let mut parameters = if policy == Replans::POLICY { parameters.clone() } else { BTreeMap::default() };
    // However late the change comes, it is the same; here it comes before the third step.
    parameters.insert(LATE.0.to_owned(), Value::Number(1.0));
    let context = PlanContext { cost, parameters };
    let mut plan = replans.plan(&slowed, &context)?.plan;
    _ = orders::complete(&slowed, &mut plan, cost);
    Ok((slowed, plan))
}

#[cfg(test)]
mod tests {
    use train::Workload;
    use train::layout::{ContextExchange, Layout, Zero};
    use train::long_run::slow::Begins;
    use train::problem::Execution;

    use super::super::policies;
    use super::*;

    #[test]
    fn every_node_of_a_small_job_is_slow_once_and_a_few_of_a_large_one() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let played = |n_nodes| played_nodes(&hw::catalog::cluster(&gpu, n_nodes, 8));
        assert_eq!(played(1), [0]);
        assert_eq!(played(5), [0, 1, 2, 3, 4]);
        assert_eq!(played(64), [15, 31, 47, 63]);
        assert_eq!(played(2048), [2047]);
    }

    /// Two nodes of eight GPUs with two pipelines of two stages.
    fn job() -> Problem {
        let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
        let mut model = engine::model::embedded("llama-2-70b").expect("embedded");
        model.n_layers = 16;
        Problem {
            model,
            cluster: hw::catalog::cluster(&gpu, 2, 8),
            layout: Layout {
                tp: 4,
                pp: 2,
                sequence_parallel: true,
                ..Layout::data_and_context(2, 1, Zero::OptimizerStates, ContextExchange::Gather)
            },
            schedule: train::schedule::named("1f1b").expect("listed"),
            workload: Workload { lengths: vec![4096; 8], batch_size: 8, source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            execution: Execution::default(),
            bucket_tokens: 4096,
            reserved_memory: hw::Bytes(1 << 30),
            seed: 0,
        }
    }

    /// A job of many steps in which a node becomes slow before the second one, played by hand: the step that changes the plan is as many behind it as the change is measured for.
    #[test]
    fn steps_and_pauses_are_those_of_the_change_however_late_it_comes() {
        let problem = job();
        let (cost, topology) =
            (engine::cost::roofline::Roofline::new(&problem.cluster), Topology::of(&problem.cluster));
        let slow = SlowNodes {
            begins: Begins::Trace { at_s: vec![100.0] },
            lasts_s: 1000.0,
            rate: 3.0,
            reaction: Asked::OfPolicy,
        };
        for n_late in [0, 1, 2, 5_u32] {
            let parameters = BTreeMap::from([(LATE.0.to_owned(), Value::Number(f64::from(n_late)))]);
            let context = PlanContext { cost: &cost, parameters: parameters.clone() };
            let plan_of = |problem: &Problem| {
                let mut plan =
                    policies::named(Replans::POLICY).expect("listed").plan(problem, &context).expect("a plan").plan;
                _ = orders::complete(problem, &mut plan, &cost);
                plan
            };
            let played_s = |problem: &Problem, plan: &Plan, index: usize| {
                let graph = train::lower::training::lower(problem, plan, index);
                search::play(problem, &graph, &context, &topology).expect("it fits").span().to_seconds().get()
            };
            let plan = plan_of(&problem);
            let found = beside(&slow, (Replans::POLICY, &parameters), (&problem, &plan), (&cost, &topology));
            let found = found.expect("a plan beside a slow node").slowed.replanned.expect("a plan that fits");
            let healthy_s = played_s(&problem, &plan, 0);
            // By hand: all steps in a row, for a slow node at each place.
            let by_hand = [0, 1].map(|node| {
                let mut all = with_slow_node(&problem, (node, 3.0), 1);
                all.workload.lengths = problem.workload.lengths.repeat(3 + n_late as usize);
                let plan = plan_of(&all);
                let changed: Vec<usize> = (0..plan.steps.len()).filter(|&step| plan.steps[step].pause_ns > 0).collect();
                assert_eq!(changed, [1 + n_late as usize]);
                let pause_s = hw::Span::from_ns(plan.steps[changed[0]].pause_ns).to_seconds().get();
                (played_s(&all, &plan, changed[0]) - pause_s, pause_s)
            });
            let [first, second] = by_hand;
            let expected = Replanned {
                pace: (pace(&[first.0, second.0]) / healthy_s).max(1.0),
                pause_s: f64::midpoint(first.1, second.1),
                late_s: f64::from(n_late) * healthy_s,
            };
            let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-9 * expected;
            assert!(found.pause_s > 0.0 && near(found.pause_s, expected.pause_s), "{n_late}: {found:?} {expected:?}");
            assert!(
                near(found.pace, expected.pace) && near(found.late_s, expected.late_s),
                "{n_late}: {found:?} {expected:?}"
            );
        }
    }

    #[test]
    fn steps_per_second_add_up_whichever_node_is_slow() {
        // Half of the time at one step a second, half at a third of it: two thirds of a step.
        assert!((pace(&[1.0, 3.0]) - 1.5).abs() < 1e-12);
        assert!((pace(&[2.0; 3]) - 2.0).abs() < 1e-12);
    }
}
