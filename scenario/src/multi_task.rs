//! Scenarios of `kind = "multi-task"`: tasks that share parts of a model and train together on one machine.
//!
//! `multi_task/work.rs` reads operators and tasks. How layers are computed and stepped is said by the sections of a training scenario;
//! `multi_task/unread.rs` has what of those is not read, and why.

mod unread;
mod work;

use std::path::Path;

use calibrate::profiles;
use engine::CostModel;
use engine::cost::profile::Profile;
use hw::Cluster;
use planner::train::multi_task::place::{PLACEMENTS, Placement};
use planner::train::multi_task::{POLICIES, Policy};
use score::training::constants::Constants;
use train::Problem;
use train::multi_task::{Body, Execution, MultiTask, cost as task_cost};
use train::optimizer::{Rule, UpdateKernels};
use train::problem::Framework;

use crate::network::{Exchanges, SUMS, Written};
use crate::training::usual::Usual;
use crate::training::{Asked, costs_of, framework, no_effect, optimizer, stragglers, training as executed};
use crate::unread::{idle, read_since};
use crate::{Head, Overrides, cluster, cost, expect};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section};
use input::run_list::{RunList, run_list};
use unread::UNREAD;

const SECTIONS: [&str; 7] = ["cluster", "training", "optimizer", "stragglers", "policies", "cost", "expect"];
/// Sections whose keys may have no effect beside others.
const OF_EXECUTION: [&str; 2] = ["training", "optimizer"];
/// Keys of `[training]` that act on what was measured too: what is kept, and what is stepped.
const OF_MEASURED: [&str; 4] = ["framework", "gradient_dtype", "fragmentation", "offload_ratio"];
/// Keys that act on layers with attention alone.
const OF_ATTENTION: [&str; 3] = ["recompute", "dropout", "attention"];

/// What links to a host need.
const OVER_HOST: &str = "something that is copied to the host: `optimizer.offload_ratio` or `training.offload_ratio`; or GPUs that exchange over its bus";

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
    /// Constants of the card that costs are held to, where a framework is named.
    pub of_card: Option<Constants>,
    /// Parameters that were fitted or assumed and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

impl MultiTaskScenario {
    /// Costs of its machine.
    pub fn costs(&self) -> Box<dyn CostModel> {
        costs_of(&self.training.cluster, self.profile.as_ref(), (self.of_card, self.sustained_flops_ratio))
    }
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(
    reader: &mut Reader<'_>,
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
) -> Option<MultiTaskScenario> {
    let (network, sustained_at) = (Written::of(reader), reader.peek_in("cost", "sustained_flops_ratio"));
    let (given, asked, usual) = (no_effect::Given::of(reader, false), Asked::of(reader), Usual::of(reader));
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    let work = work::read(&mut top);
    UNREAD.sections(&mut top);
    top.finish();
    let cluster = cluster::cluster(reader.section("cluster"));
    let has = work.as_ref().map_or(Has::ALL, Has::of);
    let Training { mut executed, shards_optimizer, forward_ratio } = training(reader, &has, usual);
    let machine = cluster.as_ref().map(|(cluster, _)| cluster);
    let stragglers = stragglers::of_every_step(reader, machine.map(Cluster::n_gpus), "a run");
    let run = policies(reader.section("policies"), head.seed);
    let cost = cost::of_engine(reader.section("cost"), folder, machine.map(|cluster| cluster.gpu.name.as_str()), None);
    let expectations = expect::read(reader.section("expect"));
    let ((cluster, reserved), work) = cluster.zip(work)?;
    framework::kernels_of_card(reader, &mut executed, &cluster.gpu);
    let of_card = asked.of_card(executed.execution.framework, &cost, &cluster.gpu.name);
    let (host_overhead_per_layer, launches) = asked.host(&executed, &cluster.gpu.name);
    let of_step = train::problem::Execution { host_overhead_per_layer, launches, stragglers, ..executed.execution };
    let mut free_parameters: Vec<String> = cluster.joined().into_iter().collect();
    if executed.host_us > 0.0 {
        let us = executed.host_us;
        free_parameters.push(format!("`training.host_overhead_per_layer_us` = {us}: fitted or assumed, not measured"));
    }
    if has.measured {
        free_parameters
            .push(format!("forward is {forward_ratio:.3} of measured times (`training.forward_ratio`): assumed"));
    }
    if !has.computed && cost.sustained_flops_ratio < 1.0 {
        let what = "`cost.sustained_flops_ratio` changes nothing";
        let help = "it needs an item of a flow without `times_ms`: measured times have it";
        reader.warn(Code::NoEffect, sustained_at.and_then(|(_, at)| at), what, help);
    } else if cost.sustained_flops_ratio < 1.0 {
        free_parameters.push(format!("`cost.sustained_flops_ratio` = {}: fitted", cost.sustained_flops_ratio));
    }
    free_parameters.extend(of_card.iter().map(Constants::to_string));
    let work::WorkSection { operators, tasks, calls } = work;
    let execution = Execution { of_step, dtype: executed.dtype, shards_optimizer, forward_ratio };
    let training = MultiTask { operators, tasks, calls, cluster, reserved, execution };
    cross_checks(reader, &training);
    heed_network(reader, &network, &training.cluster, (&has, cost.profile.as_ref()));
    let of_step = &training.execution.of_step;
    if of_step.offload == 0.0 && (of_step.optimizer.on_device() >= 1.0 || !has.parameters) {
        no_effect::of_host_links(reader, &given, (&training.cluster, training.cluster.n_gpus()), OVER_HOST);
    }
    let problems = problems(&training);
    if reader.n_errors() == 0 && !problems.is_empty() {
        no_effect::of_problems(reader, &given, &OF_EXECUTION, (&problems, false));
    }
    let own = of_card.filter(|_| !asked.profile);
    let kernels = own.map(|_| of_framework(&training));
    Some(MultiTaskScenario {
        head: Head { baseline: run.baseline, expectations, ..head },
        training,
        choices: run.choices,
        profile: kernels.or(cost.profile),
        sustained_flops_ratio: cost.sustained_flops_ratio,
        of_card,
        free_parameters,
    })
}

/// Layers with attention as problems of training, by what keys may lack there.
fn problems(training: &MultiTask) -> Vec<Problem> {
    let mut found = Vec::new();
    for call in (0..training.calls.len()).filter(|&call| training.calls[call].times.is_empty()) {
        let operator = training.operator(call);
        if matches!(operator.body, Body::Transformer { .. }) {
            found.extend(operator.tensor_degrees.iter().map(|tensor| task_cost::problem(training, call, *tensor)));
        }
    }
    found
}

/// Kernels of the card under the framework.
fn of_framework(training: &MultiTask) -> Profile {
    let of_step = &training.execution.of_step;
    profiles::training(&training.cluster.gpu, of_step.framework, of_step.attention)
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

/// `[training]` and `[optimizer]`: how an iteration is executed.
struct Training {
    executed: executed::Training,
    shards_optimizer: bool,
    forward_ratio: f64,
}

fn training(reader: &mut Reader<'_>, has: &Has, usual: Usual) -> Training {
    let steps = ["rule", "kernels"].map(|key| reader.peek_in("optimizer", key).and_then(|(_, at)| at));
    let mut section = reader.section("training");
    if !has.measured {
        section.idle(&["forward_ratio"], "measured times: `times_ms` of a flow");
    }
    if !has.attention {
        section.idle(&OF_ATTENTION, "an operator with `heads`: others keep what they need");
    }
    if !has.parameters {
        section.idle(&["zero", "gradient_dtype"], "an operator with parameters");
    }
    UNREAD.keys("training", &mut section);
    let forward_ratio = section.number("forward_ratio", 1.0 / 3.0, 0.01..=0.99);
    let shards_optimizer = zero(&mut section);
    let before = section.left();
    let mut executed = executed::executed(&mut section, usual);
    if !has.computed {
        let read = read_since(&section, before);
        let acts = |key: &str| OF_MEASURED.contains(&key) || OF_ATTENTION.contains(&key);
        let of_layers = read.into_iter().filter(|(key, _)| !acts(key));
        idle(&mut section, of_layers, "an item of a flow without `times_ms`: measured times have it");
    }
    section.finish();
    let mut section = reader.section("optimizer");
    UNREAD.keys("optimizer", &mut section);
    let given = if has.parameters { Vec::new() } else { section.left() };
    idle(&mut section, given, "an operator with parameters");
    optimizer::optimizer(section, &mut executed, None);
    let of_step = &executed.execution.optimizer;
    let [rule_at, kernels_at] = steps;
    if of_step.rule == Rule::Muon {
        let help =
            "Muon needs the shapes of matrices, and operators may have times and parameters alone: leave `rule` out";
        reader.refuse(
            Code::WrongOperation,
            rule_at,
            "`optimizer.rule = \"muon\"` is not read where tasks share a model",
            help,
        );
    }
    if of_step.kernels == UpdateKernels::InBackward && executed.execution.framework != Framework::Formulas {
        let what = "`optimizer.kernels = \"in-backward\"` steps before other tasks have made their gradients";
        reader.refuse(Code::WrongOperation, kernels_at, what, "`fused` and `foreach` step behind the last backward");
    }
    Training { executed, shards_optimizer, forward_ratio }
}

/// `zero`: whether optimizer states are shared out.
fn zero(section: &mut Section<'_>) -> bool {
    let (zero, at) = section.count("zero", Some(0), 0..=3);
    if zero > 1 {
        let what = format!("`training.zero` is {zero}, where tasks share a model");
        let help = "gradients of what tasks share are added up over them, and reduced behind the last backward: until then devices hold them, and the parameters, whole; use 0 or 1";
        section.refuse(Code::WrongOperation, at, what, help);
    }
    zero == 1
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
        Body::Transformer { intermediate, experts, .. } => intermediate * experts.map_or(1, |[_, of_token]| of_token),
        Body::FeedForward { intermediate } => intermediate,
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
