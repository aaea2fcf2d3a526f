//! Scenarios of `kind = "multi-task"`: tasks that share parts of a model and train together on one machine.
//!
//! `multi_task/work.rs` reads operators and tasks.

mod work;

use std::path::Path;

use engine::cost::profile::Profile;
use hw::{Cluster, Seconds};
use planner::train::multi_task::place::{PLACEMENTS, Placement};
use planner::train::multi_task::{POLICIES, Policy};
use train::multi_task::{Body, Execution, MultiTask, cost as task_cost};

use crate::network::{Exchanges, SUMS, Written};
use crate::{Head, Overrides, cluster, cost, expect, recompute};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section};
use input::run_list::{RunList, run_list};

const SECTIONS: [&str; 5] = ["cluster", "training", "policies", "cost", "expect"];

/// GPUs that a plan may have; beyond it plans take minutes.
const GPUS_MAX: u32 = 1024;

/// Elements that a call may have: a hundred bytes for each are still an integer.
const ELEMENTS_MAX: f64 = 1e16;

/// One way of sharing the machine that a scenario compares.
#[derive(Clone, Copy, Debug)]
pub struct TaskChoice {
    /// Policy.
    pub policy: Policy,
    /// How devices are chosen.
    pub placement: Placement,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct MultiTaskScenario {
    /// Whose it is.
    pub head: Head,
    /// Tasks, operators, machine.
    pub training: MultiTask,
    /// Ways, in order.
    pub choices: Vec<(String, TaskChoice)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted or assumed and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(
    reader: &mut Reader<'_>,
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
) -> Option<MultiTaskScenario> {
    let (network, sustained_at) = (Written::of(reader), reader.peek_in("cost", "sustained_flops_ratio"));
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    let work = work::read(&mut top);
    top.finish();
    let cluster = cluster::cluster(reader.section("cluster"));
    let has = work.as_ref().map_or(Has::ALL, Has::of);
    let training = training(reader.section("training"), &has);
    let run = policies(reader.section("policies"), head.seed);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu, None);
    let expectations = expect::read(reader.section("expect"));
    let ((cluster, reserved), work) = cluster.zip(work)?;
    let mut free_parameters = training.1;
    free_parameters.extend(cluster.joined());
    if has.measured {
        let ratio = training.0.forward_ratio;
        free_parameters.push(format!("forward is {ratio:.3} of measured times (`training.forward_ratio`): assumed"));
    }
    if !has.computed && cost.sustained_flops_ratio < 1.0 {
        let what = "`cost.sustained_flops_ratio` changes nothing";
        let help = "it needs an item of a flow without `times_ms`: measured times have it";
        reader.warn(Code::NoEffect, sustained_at.and_then(|(_, at)| at), what, help);
    } else if cost.sustained_flops_ratio < 1.0 {
        free_parameters.push(format!("`cost.sustained_flops_ratio` = {}: fitted", cost.sustained_flops_ratio));
    }
    let work::WorkSection { operators, tasks, calls } = work;
    let training = MultiTask { operators, tasks, calls, cluster, reserved, execution: training.0 };
    cross_checks(reader, &training);
    heed_network(reader, &network, &training.cluster, (&has, cost.profile.as_ref()));
    Some(MultiTaskScenario {
        head: Head { baseline: run.baseline, expectations, ..head },
        training,
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters,
    })
}

/// Warns of a way of collectives that nothing takes. Gradients and tensor groups are all that is summed, and placements are compared by the datasheet.
fn heed_network(
    reader: &mut Reader<'_>,
    network: &Written,
    cluster: &Cluster,
    (has, profile): (&Has, Option<&Profile>),
) {
    let n_gpus = if has.parameters || has.computed { cluster.n_gpus() } else { 1 };
    let exchanges = Exchanges::among(cluster, n_gpus, &SUMS);
    network.warn_of_collectives(reader, &[(cluster, profile, exchanges.clone()), (cluster, None, exchanges)]);
}

/// What the flows have that keys of `[training]` act on.
struct Has {
    /// Calls with `times_ms`.
    measured: bool,
    /// Calls whose time follows from their shapes.
    computed: bool,
    /// Layers with attention: others compute nothing again.
    attention: bool,
    parameters: bool,
}

impl Has {
    /// Nothing is idle in a file that cannot be read.
    const ALL: Self = Self { measured: true, computed: true, attention: true, parameters: true };

    fn of(work: &work::WorkSection) -> Self {
        let operators = || work.calls.iter().filter_map(|call| work.operators.get(call.operator));
        Self {
            measured: work.calls.iter().any(|call| !call.times.is_empty()),
            computed: work.calls.iter().any(|call| call.times.is_empty()),
            attention: operators().any(|operator| matches!(operator.body, Body::Transformer { .. })),
            parameters: operators().any(|operator| operator.parameters > 0),
        }
    }
}

/// `[training]`: how an iteration is executed, and what of it was assumed.
fn training(mut section: Section<'_>, has: &Has) -> (Execution, Vec<String>) {
    if !has.measured {
        section.idle(&["forward_ratio"], "measured times: `times_ms` of a flow");
    }
    if !has.computed {
        section.idle(&["host_overhead_per_layer_us"], "an item of a flow without `times_ms`: measured times have it");
    }
    if !has.attention {
        section.idle(&["recompute"], "an operator with `heads`: others keep what they need");
    }
    if !has.parameters {
        section.idle(&["zero"], "an operator with parameters");
    }
    let recompute = recompute::read(&mut section, engine::recompute::Recompute::Selective);
    let shards_optimizer = section.count("zero", Some(0), 0..=1).0 == 1;
    let host_us = section.number("host_overhead_per_layer_us", 0.0, 0.0..=1e6);
    let forward_ratio = section.number("forward_ratio", 1.0 / 3.0, 0.01..=0.99);
    section.finish();
    let free = (host_us > 0.0)
        .then(|| format!("`training.host_overhead_per_layer_us` = {host_us}: fitted or assumed, not measured"));
    let host_overhead_per_layer = Seconds::new(host_us / 1e6);
    (Execution { recompute, shards_optimizer, host_overhead_per_layer, forward_ratio }, free.into_iter().collect())
}

fn policies(mut section: Section<'_>, seed: u64) -> RunList<TaskChoice> {
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, seed)));
    let plain = POLICIES.map(|(name, policy, _)| (name, TaskChoice { policy, placement: Placement::Local }));
    let run = run_list(&mut section, plain.to_vec(), variants);
    section.finish();
    run
}

/// `[[policies.variant]]`: a policy under a name of its own, placed in its own way.
fn variant(mut section: Section<'_>, seed: u64) -> Option<(String, TaskChoice)> {
    let name = section.name();
    let policy = POLICIES[section.word("policy", 0, &POLICIES.map(|(name, ..)| name))].1;
    let placement = [Placement::Local, Placement::Consecutive, Placement::Random { seed }]
        [section.word("placement", 0, &PLACEMENTS)];
    section.finish();
    name.map(|name| (name, TaskChoice { policy, placement }))
}

/// Elements of a call's widest activations over all layers; more than this many would not fit an integer as bytes.
fn elements(training: &MultiTask, call: usize) -> f64 {
    let operator = training.operator(call);
    let wide = match operator.body {
        Body::Transformer { intermediate, .. } | Body::FeedForward { intermediate } => intermediate,
        Body::Given => 0,
    };
    let factors = [training.batch(call), training.calls[call].tokens, operator.hidden + wide, operator.n_layers.into()];
    factors.into_iter().map(hw::real).product()
}

/// Every call can be counted, and can run on some number of the machine's GPUs.
fn cross_checks(reader: &mut Reader<'_>, training: &MultiTask) {
    let n = training.cluster.n_gpus();
    if n > GPUS_MAX {
        let what = format!("the cluster has {n} GPUs, plans of several tasks have at most {GPUS_MAX}");
        reader.refuse(Code::WrongGpuCount, None, what, "lower `cluster.nodes`");
        return;
    }
    for (index, call) in training.calls.iter().enumerate() {
        if elements(training, index) > ELEMENTS_MAX {
            let what = format!("`{}/{}` is larger than can be counted", training.tasks[call.task].name, call.name);
            let help = "lower the batch, `tokens`, or the operator's widths or `layers`";
            reader.refuse(Code::OutOfRange, None, what, help);
            continue;
        }
        if (1..=n).any(|n| task_cost::can_be_had(training, index, n)) {
            continue;
        }
        let (task, operator) = (&training.tasks[call.task], training.operator(index));
        let what = format!("`{}/{}` runs on no number of GPUs from 1 to {n}", task.name, call.name);
        let measured = match (call.times.first(), call.times.last()) {
            (Some((from, _)), Some((to, _))) => format!(" among the {from} to {to} of its `times_ms`"),
            _ => String::new(),
        };
        let help = format!(
            "a number of GPUs{measured} is a tensor degree of `{}` ({:?}, inside a node) times a divisor of the batch, {}",
            operator.name, operator.tensor_degrees, task.batch
        );
        reader.refuse(Code::WrongGpuCount, None, what, help);
    }
}
