//! Keys of a training scenario that change nothing beside the others: each is a warning, so that nothing is ignored in silence.
//!
//! A key has an effect when it has one for any policy that runs. Degrees of 1 make no warning of their own: what is cut in one part is whole.

use engine::model::Experts;
use engine::shard::Shard;
use hw::Format;
use planner::train::search::space::Space;
use train::layout::{ContextExchange, Layout, Zero};
use train::muon::TensorMode;
use train::problem::{Dropout, Framework, GradientSync, Loss, Module, Recompute};
use train::schedule::Placement;
use train::{Problem, memory};

use super::{PolicyChoice, rails, searched, unfused};
use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// No dropout anywhere.
const NONE: Dropout = Dropout::WORDS[0].1;

/// A key whose effect hangs on others.
struct Key {
    section: &'static str,
    name: &'static str,
    /// Whether it changes nothing in a problem.
    is_idle: fn(&Problem) -> bool,
    /// What it would need.
    needs: &'static str,
    hangs_on: HangsOn,
}

/// What of a problem decides whether a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangsOn {
    /// Model, framework and formats, which a search of layouts leaves as they are.
    Model,
    /// The stage of ZeRO: a search tries a list of them.
    Sharding,
    /// More of the layout. A search decides it.
    Layout,
}

const KEYS: [Key; 33] = [
    of_model("parallel", "expert_tp", has_no_experts, "experts, which the model does not have"),
    of_model("experts", "imbalance", has_no_experts, "experts, which the model does not have"),
    of_model("experts", "capacity", has_no_experts, "experts, which the model does not have"),
    of_layout(
        "experts",
        "dispatcher",
        |problem| problem.layout.ep == 1 && problem.execution.experts.dispatcher.is_once_per_node(),
        "an all-to-all of experts, which `parallel.ep = 1` does not have",
    ),
    of_model(
        "experts",
        "fused",
        no_fused,
        "experts whose products are `mxfp8`, `framework = \"megatron-core\"`, and a Blackwell of servers, which has the kernels",
    ),
    of_model(
        "training",
        "graphs",
        |problem| problem.execution.framework == Framework::Formulas,
        "launches of a host, which `framework = \"megatron-core\"` and `\"pytorch\"` have",
    ),
    of_model(
        "training",
        "predicting_layers",
        |problem| problem.execution.framework != Framework::MegatronCore,
        "`framework = \"megatron-core\"`, which trains such layers",
    ),
    of_layout(
        "training",
        "narrow_gather",
        gathers_wide,
        "narrow products, and copies of their weights or parameters that several ranks gather",
    ),
    of_model(
        "training",
        "loss",
        no_loss,
        "`framework = \"megatron-core\"`, whose kernels of the loss are told apart, or `\"native\"` with `\"pytorch\"` and a whole vocabulary",
    ),
    of_layout(
        "overlap",
        "delayed_weights",
        no_delay,
        "an all-to-all of experts, a schedule whose backward is whole, and gradients of the model's own weights",
    ),
    of_layout(
        "parallel",
        "micro_batch_group",
        no_chunks,
        "`schedule = \"interleaved\"` on a pipeline; other schedules have no groups",
    ),
    of_layout(
        "overlap",
        "slowdown",
        no_slowdown,
        "exchanges behind computation: `overlap.tensor` of a tensor group, or `overlap.expert` of an all-to-all",
    ),
    of_layout(
        "parallel",
        "exchange",
        |problem| problem.layout.cp == 1 && problem.layout.exchange != ContextExchange::Gather,
        "a context group, which `cp = 1` does not have",
    ),
    of_model("training", "products", no_narrow_part, "a part that layers of the model have"),
    of_model(
        "training",
        "dropout",
        no_dropout,
        "`attention = \"unfused\"`, whose scores have masks, or masks of residuals, which `framework = \"pytorch\"` does not count",
    ),
    of_model(
        "optimizer",
        "master",
        has_no_copy,
        "a copy of the parameters, which `framework = \"pytorch\"` does not have: they are in 32 bits, or in 16 by `none`",
    ),
    of_layout("overlap", "expert", no_all_to_all, "an all-to-all of experts, which `parallel.ep = 1` does not have"),
    of_layout("training", "recompute_layers", no_recompute, "recompute, which `recompute = \"none\"` turns off"),
    of_layout(
        "parallel",
        "sequence_parallel",
        |problem| problem.layout.tp == 1 && problem.layout.sequence_parallel,
        "a tensor group, which `tp = 1` does not have",
    ),
    of_sharding(
        "parallel",
        "replicate",
        |problem| problem.layout.zero < Zero::OptimizerStates,
        "sharded model states, which `zero = 0` does not have",
    ),
    of_model(
        "training",
        "gradient_dtype",
        |problem| !problem.execution.trains_weights() && problem.execution.framework.torch().is_some(),
        "gradients of the model's own weights: those of PyTorch's adapters have the format of the adapters",
    ),
    of_model(
        "training",
        "gradient_sync",
        |problem| {
            let execution = &problem.execution;
            !execution.trains_weights() && execution.gradient_sync == GradientSync::EachMicroBatch
        },
        "gradients of the model's own weights, which `optimizer.trains = \"adapters\"` does not have",
    ),
    of_sharding(
        "training",
        "gradient_sync",
        |problem| problem.execution.gradient_sync == GradientSync::AtEnd && problem.gradients_cannot_wait(),
        "gradients that a rank can hold whole until the end; with `zero = 3` they are reduced in every backward, but where PyTorch shards without a pipeline",
    ),
    of_layout(
        "overlap",
        "stage",
        |problem| problem.layout.pp == 1 && !problem.execution.overlap.stage,
        "messages between stages, which `pp = 1` does not have",
    ),
    of_layout(
        "training",
        "loss_parallel",
        |problem| problem.layout.tp == 1 && problem.execution.gathers_logits,
        "a tensor group, which `tp = 1` does not have",
    ),
    of_layout(
        "optimizer",
        "muon_tensor",
        |problem| problem.layout.tp == 1 && problem.execution.optimizer.muon.tensor != TensorMode::Blockwise,
        "a tensor group, which `tp = 1` does not have",
    ),
    of_layout("parallel", "schedule", no_pipeline, "a pipeline, which `pp = 1` does not have"),
    of_layout(
        "parallel",
        "chunks",
        no_chunks,
        "`schedule = \"interleaved\"` on a pipeline; other schedules fix their chunks",
    ),
    of_layout(
        "overlap",
        "tensor",
        |problem| problem.layout.tp == 1 && problem.execution.overlap.tensor > 0.0,
        "a tensor group, which `tp = 1` does not have",
    ),
    of_layout(
        "overlap",
        "parameter_gather",
        no_gather,
        "a gather behind the optimizer, which ZeRO 1 and 2 have on several ranks that update the model's own weights",
    ),
    of_layout("overlap", "forward_prefetch", no_prefetch, "gathers of layers, which ZeRO 3 has on several ranks"),
    of_layout("overlap", "backward_prefetch", no_prefetch, "gathers of layers, which ZeRO 3 has on several ranks"),
    of_layout("training", "parameters_on_host", no_shares, "shares of parameters, which ZeRO 3 has"),
];

/// What costs of passes, states and exchanges follow from, by section. `[cost.units]` gives passes their times, and none of the rest is counted.
const COSTS: [(&str, &[&str]); 6] = [
    (
        "optimizer",
        &[
            "rule",
            "master",
            "first_moment",
            "second_moment",
            "trains",
            "adapter_rank",
            "adapters_beside",
            "adapter_dtype",
            "adapter_dropout",
            "frozen",
            "offload_ratio",
            "host_memory_gb_per_s",
            "muon_iterations",
            "muon_tensor",
            "muon_qkv",
            "kernels",
        ],
    ),
    (
        "overlap",
        &[
            "tensor",
            "expert",
            "slowdown",
            "delayed_weights",
            "parameter_gather",
            "forward_prefetch",
            "backward_prefetch",
        ],
    ),
    ("experts", &["fused", "dispatcher"]),
    (
        "training",
        &[
            "gradient_dtype",
            "gradient_sync",
            "host_overhead_per_layer_us",
            "loss",
            "loss_parallel",
            "narrow_gather",
            "parameters_on_host",
            "products",
        ],
    ),
    ("parallel", &["replicate"]),
    ("cost", &["sustained_flops_ratio"]),
];

type IsIdle = fn(&Problem) -> bool;

const fn of_model(section: &'static str, name: &'static str, is_idle: IsIdle, needs: &'static str) -> Key {
    Key { section, name, is_idle, needs, hangs_on: HangsOn::Model }
}

const fn of_layout(section: &'static str, name: &'static str, is_idle: IsIdle, needs: &'static str) -> Key {
    Key { section, name, is_idle, needs, hangs_on: HangsOn::Layout }
}

const fn of_sharding(section: &'static str, name: &'static str, is_idle: IsIdle, needs: &'static str) -> Key {
    Key { section, name, is_idle, needs, hangs_on: HangsOn::Sharding }
}

const fn has_no_experts(problem: &Problem) -> bool {
    problem.model.experts.is_none()
}

/// Parameters are as wide as before, gathered and kept. Copies that stand in for them are of any part that is narrow, the head too.
fn gathers_wide(problem: &Problem) -> bool {
    let is_narrow = problem.gathered_bytes() < hw::real(problem.dtype.bytes());
    let is_gathered = is_narrow && problem.layout.zero > Zero::Off && problem.layout.n_shards() > 1;
    problem.execution.gathers_narrow && !is_gathered && !memory::has_narrow_copies(problem)
}

fn no_fused(problem: &Problem) -> bool {
    problem.execution.experts.fused && (has_no_experts(problem) || !problem.shard().fuses_experts())
}

fn no_loss(problem: &Problem) -> bool {
    let loss = problem.execution.loss;
    match problem.execution.framework {
        Framework::MegatronCore => loss == Loss::Chunked,
        Framework::Fsdp2(_) | Framework::DeepSpeed(_) => {
            let has_kernels = matches!(loss, Loss::Unfused | Loss::Compiled | Loss::Chunked | Loss::WithHead);
            !has_kernels || loss != Loss::Unfused && problem.layout.tp > 1
        }
        Framework::Formulas => loss != Loss::Unfused,
    }
}

fn no_delay(problem: &Problem) -> bool {
    let is_whole = problem.layout.pp == 1 || !problem.schedule.splits_backward;
    let has_them = problem.layout.ep > 1 && is_whole && problem.execution.trains_weights();
    problem.execution.overlap.delayed_weights && !has_them
}

fn no_all_to_all(problem: &Problem) -> bool {
    problem.layout.ep == 1 && problem.execution.overlap.expert > 0.0
}

fn no_slowdown(problem: &Problem) -> bool {
    let (overlap, layout) = (problem.execution.overlap, &problem.layout);
    let is_beside = layout.tp > 1 && overlap.tensor > 0.0 || layout.ep > 1 && overlap.expert > 0.0;
    overlap.slowdown > 1.0 && !is_beside
}

/// One part alone is narrow, and no layer has it: experts, or a dense feed-forward.
/// Whether a format is given to a copy of parameters that PyTorch's modules do not have.
fn has_no_copy(problem: &Problem) -> bool {
    let execution = &problem.execution;
    execution.framework.has_wide_parameters() && execution.trains_weights() && execution.optimizer.master.is_some()
}

fn no_narrow_part(problem: &Problem) -> bool {
    let (model, wide) = (&problem.model, Format::from(problem.dtype));
    let Some(of) = problem.execution.formats.filter(|of| [of.attention, of.head] == [wide; 2]) else { return false };
    if of.kv != problem.dtype {
        return false;
    }
    match (of.dense == wide, of.experts == wide) {
        (true, false) => has_no_experts(problem),
        (false, true) => {
            let is_routed = |experts: Experts| experts.shared_intermediate == 0 && experts.latent.is_none();
            let has_dense = model.n_expert_layers() < model.n_layers || !model.experts.is_some_and(is_routed);
            !has_dense && !problem.execution.gathers_narrow
        }
        _ => false,
    }
}

/// Flash attention writes no scores, so it keeps no mask of them, and PyTorch counts none of residuals either.
fn no_dropout(problem: &Problem) -> bool {
    let execution = &problem.execution;
    let Some(dropout) = execution.dropout.filter(|dropout| *dropout != NONE) else { return false };
    let hides_scores = execution.attention.is_fused();
    let usual = Shard { given_dropout: None, ..problem.shard() }.dropout();
    hides_scores && (execution.framework.torch().is_some() || !dropout.residual && !usual.residual)
}

/// Modules that are computed again and that no layer of the model has, with what it lacks.
fn missing_modules(problem: &Problem) -> Vec<(Module, &'static str)> {
    let model = &problem.model;
    let lacks = |module: Module| match module {
        Module::CoreAttention | Module::Norms => None,
        Module::UpProjections => model.latent.is_none().then_some("latent attention"),
        Module::FeedForward => (model.n_expert_layers() == model.n_layers).then_some("a dense feed-forward"),
        Module::ExpertActivation | Module::Experts => model.experts.is_none().then_some("experts"),
        Module::SharedExperts => {
            let has_shared = model.experts.is_some_and(|experts| experts.shared_intermediate > 0);
            (!has_shared).then_some("shared experts")
        }
    };
    problem.execution.recompute.modules().iter().filter_map(|module| Some((module, lacks(module)?))).collect()
}

fn modules(reader: &mut Reader<'_>, key: &str, at: Place, problem: &Problem) {
    for (module, lacks) in missing_modules(problem) {
        let what = format!("module `{}` of `{key}` changes nothing", module.word());
        let help = format!("it needs {lacks}, which no layer of `{}` has", problem.model.name);
        reader.warn(Code::NoEffect, at.clone(), what, help);
    }
}

fn no_recompute(problem: &Problem) -> bool {
    problem.execution.recompute == Recompute::Off
}

const fn no_pipeline(problem: &Problem) -> bool {
    problem.layout.pp == 1
}

fn no_chunks(problem: &Problem) -> bool {
    problem.layout.pp == 1 || problem.schedule.placement != Placement::Loop
}

fn no_gather(problem: &Problem) -> bool {
    let gathers = matches!(problem.layout.zero, Zero::OptimizerStates | Zero::Gradients);
    let follows = gathers && problem.layout.n_shards() > 1 && problem.execution.trains_weights();
    problem.execution.overlap.parameter_gather && !follows
}

fn no_shares(problem: &Problem) -> bool {
    problem.execution.parameters_on_host && !problem.hosts_parameters()
}

fn no_prefetch(problem: &Problem) -> bool {
    let overlap = problem.execution.overlap;
    let is_plain = overlap.forward_prefetch && overlap.backward_prefetch;
    let gathers = problem.layout.zero == Zero::Parameters && problem.layout.n_shards() > 1;
    !is_plain && !gathers
}

/// What the file has of these keys and of the policies' tables, with its places; taken before sections are read.
pub struct Given {
    keys: Vec<(usize, String, Place)>,
    costs: Vec<(String, Place)>,
    tables: Vec<(String, Place)>,
    recompute: Option<(String, Place)>,
    unfused: Option<Place>,
    narrow_rails: Option<Place>,
    of_one_layout: searched::Given,
}

impl Given {
    /// What a file has.
    pub fn of(reader: &Reader<'_>) -> Self {
        let keys = KEYS.iter().enumerate().filter_map(|(index, key)| {
            let (value, at) = reader.peek_in(key.section, key.name)?;
            Some((index, value, at))
        });
        let recompute = reader.peek_in("training", "recompute");
        let unfused = reader.peek_in("training", "unfused").map(|(_, at)| at);
        Self {
            keys: keys.collect(),
            costs: costs(reader),
            tables: reader.tables_in("policies"),
            recompute,
            unfused,
            narrow_rails: rails::narrow_at(reader),
            of_one_layout: searched::Given::of(reader),
        }
    }
}

/// Keys that costs follow from, as the file writes them. Checkpoints of a run of days have the optimizer's states under any costs.
fn costs(reader: &Reader<'_>) -> Vec<(String, Place)> {
    let all = COSTS.iter().flat_map(|(section, keys)| keys.iter().map(move |key| (*section, *key)));
    let read = all.filter(|(section, _)| *section != "optimizer" || !reader.has("failures"));
    let given = read.filter_map(|(section, key)| {
        let (value, at) = reader.peek_in(section, key)?;
        Some((format!("{section}.{key} = {value}"), at))
    });
    given.collect()
}

/// Warns of every key that changes nothing, of the file and of the policies that run.
pub fn warn(
    reader: &mut Reader<'_>,
    given: &Given,
    problem: &Problem,
    search: Option<&Space>,
    policies: &[PolicyChoice],
) {
    // What is wrong with the list of policies is said. Without them nothing has an effect.
    if policies.is_empty() {
        return;
    }
    let asked: Vec<Problem> = policies.iter().map(|choice| choice.problem(problem)).collect();
    let sharded = search.map_or_else(Vec::new, |space| each_sharding(&asked, &space.zero));
    let has_times = problem.execution.unit_times.is_some();
    let costs: &[(String, Place)] = if has_times { &given.costs } else { &[] };
    for (key, at) in costs {
        let help = "it needs times that are counted, and `[cost.units]` gives them";
        reader.warn(Code::NoEffect, at.clone(), format!("`{key}` changes nothing"), help.to_owned());
    }
    for (index, value, at) in &given.keys {
        let key = &KEYS[*index];
        let is_idle = match (search, key.hangs_on) {
            (Some(_), HangsOn::Layout) => false,
            (Some(_), HangsOn::Sharding) => sharded.iter().all(key.is_idle),
            (None, _) | (_, HangsOn::Model) => asked.iter().all(key.is_idle),
        };
        let key_and_value = format!("{}.{} = {value}", key.section, key.name);
        let is_said = costs.iter().any(|(said, _)| *said == key_and_value);
        if !is_said && is_idle && !is_default(key, value) {
            let what = format!("`{key_and_value}` changes nothing");
            reader.warn(Code::NoEffect, at.clone(), what, format!("it needs {}", key.needs));
        }
    }
    if search.is_some() {
        searched::warn(reader, &given.of_one_layout, policies);
    } else {
        policies.iter().zip(&asked).for_each(|(choice, asked)| own_keys(reader, choice, asked));
        rails::warn(reader, given.narrow_rails.clone(), problem, policies);
    }
    if let Some(at) = &given.unfused {
        unfused::warn(reader, at, problem);
    }
    if let Some((_, at)) = given.recompute.clone() {
        modules(reader, "training.recompute", at, problem);
    }
    for (choice, asked) in policies.iter().zip(&asked).filter(|(choice, _)| choice.recompute.is_some()) {
        modules(reader, &format!("recompute of policy {}", choice.name), None, asked);
    }
    tables(reader, given, policies);
}

/// Problems with every stage of ZeRO that a search tries.
fn each_sharding(problems: &[Problem], stages: &[Zero]) -> Vec<Problem> {
    let with = |problem: &Problem, zero| Problem { layout: Layout { zero, ..problem.layout }, ..problem.clone() };
    problems.iter().flat_map(|problem| stages.iter().map(move |&zero| with(problem, zero))).collect()
}

/// Whether the value is what an absent key means, where the key has no say.
fn is_default(key: &Key, value: &str) -> bool {
    match key.name {
        "schedule" => value == "\"1f1b\"",
        "chunks" | "expert_tp" => value == "1",
        _ => false,
    }
}

/// Keys of a policy of its own.
fn own_keys(reader: &mut Reader<'_>, choice: &PolicyChoice, asked: &Problem) {
    let mut find = |key: String, needs: &str| {
        let what = format!("`{key}` of policy `{}` changes nothing", choice.name);
        reader.warn(Code::NoEffect, None, what, format!("it needs {needs}"));
    };
    if let Some(schedule) = choice.schedule.filter(|_| no_pipeline(asked)) {
        find(format!("schedule = \"{}\"", schedule.name), "a pipeline, which `pp = 1` does not have");
    }
    if let Some(chunks) = choice.chunks.filter(|chunks| no_chunks(asked) && *chunks != asked.layout.chunks) {
        find(
            format!("chunks = {chunks}"),
            "`schedule = \"interleaved\"` on a pipeline; other schedules fix their chunks",
        );
    }
    if let Some(n) = choice.recompute_layers.filter(|_| no_recompute(asked)) {
        find(format!("recompute_layers = {n}"), "recompute, which `recompute = \"none\"` turns off");
    }
}

/// Tables of policies that do not run.
fn tables(reader: &mut Reader<'_>, given: &Given, policies: &[PolicyChoice]) {
    for (name, at) in &given.tables {
        if planner::train::policies::named(name).is_none() || policies.iter().any(|choice| choice.name == *name) {
            continue;
        }
        let variants: Vec<String> = policies
            .iter()
            .filter(|choice| choice.policy == *name)
            .map(|choice| format!("`{}`", choice.name))
            .collect();
        let what = format!("`[policies.{name}]` changes nothing: `{name}` is not in `policies.run`");
        let help = match variants.as_slice() {
            [] => "leave it out, or run the policy".to_owned(),
            variants => format!("the keys of {} stand in the variant's own table", variants.join(", ")),
        };
        reader.warn(Code::NoEffect, at.clone(), what, help);
    }
}
