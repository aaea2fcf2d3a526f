//! Passes as planners time them, beside passes as they are played.

use engine::cost::roofline::Roofline;
use engine::launch::Captured;
use engine::shard::{Casts, Framework, TorchModules};
use engine::task::{Role, Stream};
use hw::Seconds;

use super::*;
use crate::layout::{ContextExchange, Layout, Zero};
use crate::plan::{Place, Placement, Step};
use crate::problem::{Execution, GradientSync, Launches};
use crate::schedule;
use crate::workload::Workload;

const MODULES: TorchModules =
    TorchModules { compiled: false, fused_norms: false, casts: Casts::Off, in_pieces: false, repeats_keys: true };
/// By name in scenarios: `formulas`, `megatron-core`, `pytorch`, `deepspeed`.
const FRAMEWORKS: [Framework; 4] =
    [Framework::Formulas, Framework::MegatronCore, Framework::Fsdp2(MODULES), Framework::DeepSpeed(MODULES)];
/// Models with dense layers alone, and with experts in all of their layers but the first.
const MODELS: [&str; 3] = ["llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"];

fn problem(model: &str, framework: Framework, recompute: Recompute, schedule: &str) -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let each = if framework == Framework::Formulas { Seconds::ZERO } else { Seconds::new(6e-6) };
    let model = engine::model::embedded(model).expect("embedded");
    let n_layers = u32::try_from(model.n_layers).expect("few");
    Problem {
        layout: Layout { pp: 2, tp: 2, ..Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather) },
        cluster: hw::catalog::cluster(&gpu, 1, 8),
        schedule: schedule::named(schedule).expect("listed"),
        workload: Workload { lengths: vec![512], batch_size: 1, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution {
            framework,
            recompute,
            // A last backward behind which gradients are reduced goes in pieces, each with a layer that leads.
            gradient_sync: GradientSync::AtEnd,
            recompute_layers: n_layers,
            launches: Launches { each, captured: Captured::default() },
            ..Execution::default()
        },
        bucket_tokens: 1 << 20,
        reserved_memory: hw::Bytes(0),
        seed: 0,
        model,
    }
}

/// One micro-batch of the problem's sequences.
fn plan(problem: &Problem, place: Place) -> Plan {
    let of = |(sequence, &tokens): (u32, &u64)| Placement { sequence, from: 0, tokens, place };
    let sequences = (0..).zip(&problem.workload.lengths).map(of).collect();
    Plan::new("test", problem, vec![Step::of_groups(vec![vec![MicroBatch { sequences, ..MicroBatch::default() }]])])
}

/// Forward and backward of the slowest lane of a pipeline rank as they are played, nanoseconds: what it computes and waits for one after another.
fn played(problem: &Problem, plan: &Plan, pp: u32, cost: &dyn CostModel) -> [u64; 2] {
    let graph = super::super::lower(problem, plan, 0);
    let lanes = (0..graph.lanes.len()).filter(|&lane| graph.lanes[lane].stage == pp);
    let of_lane = |lane: usize| {
        let mut sums = [0; 2];
        for task in graph.tasks.iter().filter(|task| task.lane.index() == lane) {
            let waits = matches!(task.role, Role::TensorExchange | Role::ExpertExchange);
            if task.role == Role::Optimizer || !(task.stream == Stream::Compute || waits) {
                continue;
            }
            let backward = sums[1] > 0 || matches!(task.role, Role::Backward | Role::Recompute | Role::WeightGradient);
            let ns = Span::from_seconds(cost.estimate(&graph.ops[task.op.0 as usize]).time).as_ns();
            sums[usize::from(backward)] += ns;
        }
        sums
    };
    lanes.map(of_lane).fold([0; 2], |most, sums| [most[0].max(sums[0]), most[1].max(sums[1])])
}

/// Holds planned passes of both pipeline ranks against played ones, and the parts of a bound below them.
fn hold(problem: &Problem, mut plan: Plan, case: &str) {
    let cost = Roofline::new(&problem.cluster);
    let (found, order_of) = pipelines(problem, &plan, 0, &cost);
    let order = (problem.schedule.order)(&found[0]);
    (plan.steps[0].orders, plan.steps[0].order_of) = (vec![order.clone()], order_of);
    let micro_batch = &plan.steps[0].groups[0][0];
    let load = experts::load(problem, 0).unwrap_or(ExpertLoad::EVEN);
    let parts = parts(problem, micro_batch, load, &cost);
    for (pp, (slots, stage)) in (0..2).zip(order.iter().zip(stages(problem))) {
        let sum = |forward: bool| -> u64 {
            let slots = slots.iter().filter(|slot| (slot.kind == PassKind::Forward) == forward);
            slots.map(|slot| found[0].duration(slot.kind, pp as usize, 0)).sum()
        };
        let [forward, input, weight] = parts.stage(&stage);
        let planned = [(sum(true), forward), (sum(false), input + weight)];
        for ((planned, bound_s), played) in planned.into_iter().zip(played(problem, &plan, pp, &cost)) {
            assert!(planned.abs_diff(played) <= 20, "{case}, rank {pp}: {planned} planned, {played} played");
            let ratio = bound_s * 1e9 / hw::real(played);
            assert!((0.75..1.0 + 1e-6).contains(&ratio), "{case}, rank {pp}: a bound of {ratio} of the pass");
        }
    }
}

#[test]
fn passes_are_planned_as_long_as_they_are_played() {
    let recomputes = [Recompute::Off, Recompute::Full, Recompute::Selective];
    for (framework, model) in FRAMEWORKS.into_iter().flat_map(|of| MODELS.map(|model| (of, model))) {
        for (schedule, recompute) in ["1f1b", "zb-1p"].into_iter().flat_map(|of| recomputes.map(|again| (of, again))) {
            // Short passes wait for their host, long ones for their device.
            for tokens in [512, 4096, 16_384] {
                let mut problem = problem(model, framework, recompute, schedule);
                problem.workload.lengths = vec![tokens];
                let case = format!("{model} {framework:?} {recompute:?} {schedule} {tokens}");
                hold(&problem, plan(&problem, Place::Local(0)), &case);
            }
        }
    }
}

#[test]
fn passes_of_context_groups_are_planned_as_long_as_they_are_played() {
    let exchanges = [ContextExchange::Gather, ContextExchange::Ring, ContextExchange::Ulysses];
    for (framework, exchange) in FRAMEWORKS.into_iter().flat_map(|of| exchanges.map(|exchange| (of, exchange))) {
        for (recompute, tokens) in [(Recompute::Off, 2048), (Recompute::Full, 2048), (Recompute::Off, 32_768)] {
            let mut problem = problem(MODELS[0], framework, recompute, "1f1b");
            (problem.layout.cp, problem.layout.tp, problem.layout.exchange) = (4, 1, exchange);
            problem.workload.lengths = vec![tokens];
            let case = format!("{framework:?} {exchange:?} {recompute:?} {tokens}");
            hold(&problem, plan(&problem, Place::Sharded), &case);
            // Beside a sequence of its own the first rank is the slowest.
            problem.workload.lengths.push(tokens / 4);
            let mut both = plan(&problem, Place::Sharded);
            both.steps[0].groups[0][0].sequences[1].place = Place::Local(0);
            let cost = Roofline::new(&problem.cluster);
            let (found, _) = pipelines(&problem, &both, 0, &cost);
            let order = (problem.schedule.order)(&found[0]);
            (both.steps[0].orders, both.steps[0].order_of) = (vec![order], vec![0]);
            let planned = [PassKind::Forward, PassKind::Backward].map(|kind| found[0].duration(kind, 0, 0));
            let played = played(&problem, &both, 0, &cost);
            let is_near = planned.into_iter().zip(played).all(|(planned, played)| planned.abs_diff(played) <= 20);
            assert!(is_near, "{case} with one more: {planned:?} planned, {played:?} played");
        }
    }
}
