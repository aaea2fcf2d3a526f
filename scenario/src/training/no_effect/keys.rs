//! The table of keys of a training scenario whose effect hangs on others, with what each needs.

use engine::model::Experts;
use engine::shard::Shard;
use hw::{Cluster, Format, InsideLink};
use train::layout::{ContextExchange, Zero};
use train::muon::TensorMode;
use train::problem::{Casts, Dropout, Framework, GradientSync, Loss, Recompute};
use train::schedule::Placement;
use train::{Problem, memory};

use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// No dropout anywhere.
const NONE: Dropout = Dropout::WORDS[0].1;

/// A key whose effect hangs on others.
pub struct Key {
    /// Its section.
    pub section: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Whether it changes nothing in a problem.
    pub is_idle: fn(&Problem) -> bool,
    /// What it would need.
    pub needs: &'static str,
    /// What decides whether it has an effect.
    pub hangs_on: HangsOn,
}

impl Key {
    /// The key with its value.
    pub fn written(&self, value: &str) -> String {
        format!("{}.{} = {value}", self.section, self.name)
    }

    /// Warns of it, where its value is not what an absent key means.
    pub fn warn(&self, reader: &mut Reader<'_>, value: &str, at: &Place) {
        if !is_default(self, value) {
            let what = format!("`{}` changes nothing", self.written(value));
            reader.warn(Code::NoEffect, at.clone(), what, format!("it needs {}", self.needs));
        }
    }
}

/// What of a problem decides whether a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangsOn {
    /// Model, framework and formats, which a search of layouts leaves as they are.
    Model,
    /// The stage of ZeRO: a search tries a list of them.
    Sharding,
    /// More of the layout. A search decides it.
    Layout,
}

/// Every key whose effect hangs on others.
pub static KEYS: &[Key] = &[
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
    of_model("training", "repeat_kv", no_grouped_heads, "fewer heads of keys and values than of queries"),
    of_model("training", "casts", no_casts, "products of 8 bits or fewer"),
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
    of_layout(
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
            !execution.trains_weights() && execution.gradient_sync != GradientSync::Overlapped
        },
        "gradients of the model's own weights, which `optimizer.trains = \"adapters\"` does not have",
    ),
    of_sharding(
        "training",
        "gradient_sync",
        |problem| problem.execution.gradient_sync == GradientSync::AtEnd && problem.gradients_cannot_wait(),
        "gradients that a rank can hold whole until the end; with `zero = 3` they are reduced in every backward, but where PyTorch shards without a pipeline",
    ),
    of_sharding(
        "training",
        "gradient_sync",
        |problem| {
            let (execution, layout) = (&problem.execution, &problem.layout);
            let is_each = execution.gradient_sync == GradientSync::EachMicroBatch && execution.trains_weights();
            is_each && layout.zero == Zero::Parameters
        },
        "gradients that wait: with `zero = 3` every backward reduces its own anyway",
    ),
    of_layout(
        "parallel",
        "order",
        |problem| problem.cluster.n_domains() == 1 && problem.cluster.gpus_per_switch == 1,
        "several nodes, or switches that GPUs share: all ranks of one node reach each other alike",
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
    of_layout(
        "parallel",
        "flush_every",
        no_flush,
        "a pipeline, and more sequences in a step: a replica has no more micro-batches than these",
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
    of_layout(
        "cluster",
        "host_memory_gib",
        no_host,
        "something on the host: `optimizer.offload_ratio`, `training.offload_ratio` or `training.parameters_on_host`",
    ),
    of_layout("cluster", "host_gb_per_s", passes_no_host, OVER_HOST),
    of_layout("cluster", "gpus_per_switch", passes_no_host, OVER_HOST),
    of_layout("training", "parameters_on_host", no_shares, "shares of parameters, which ZeRO 3 has"),
];

/// What costs of passes, states and exchanges follow from, by section. `[cost.units]` gives passes their times, and none of the rest is counted.
pub const COSTS: [(&str, &[&str]); 6] = [
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

/// What links to a host need.
const OVER_HOST: &str = "something that is copied to the host: `optimizer.offload_ratio`, `training.offload_ratio` or `training.parameters_on_host`; or GPUs that exchange over its bus";

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
    let is_gathered = is_narrow && problem.shards_states();
    problem.execution.gathers_narrow && !is_gathered && !memory::has_narrow_copies(problem)
}

fn no_grouped_heads(problem: &Problem) -> bool {
    problem.execution.framework.repeats_keys() && problem.model.n_heads == problem.model.n_kv_heads
}

fn no_casts(problem: &Problem) -> bool {
    problem.execution.framework.torch().is_some_and(|modules| modules.casts == Casts::Off)
}

fn no_fused(problem: &Problem) -> bool {
    problem.execution.experts.fused && (has_no_experts(problem) || !problem.shard().fuses_experts())
}

fn no_loss(problem: &Problem) -> bool {
    let loss = problem.execution.loss;
    match problem.execution.framework {
        Framework::MegatronCore => matches!(loss, Loss::Chunked | Loss::ChunkedNll),
        Framework::Fsdp2(_) | Framework::DeepSpeed(_) => {
            let of_megatron = [Loss::CompiledReused, Loss::InPlace, Loss::Widened];
            of_megatron.contains(&loss) || loss != Loss::Unfused && problem.layout.tp > 1
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
    problem.layout.ep == 1 && problem.execution.overlap.expert.is_some()
}

fn no_slowdown(problem: &Problem) -> bool {
    let (overlap, layout) = (problem.execution.overlap, &problem.layout);
    let is_beside = layout.tp > 1 && overlap.tensor > 0.0 || layout.ep > 1 && overlap.hidden_experts() > 0.0;
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
    // In a pipeline PyTorch's modules are counted by the terms that hold masks.
    let is_listed = execution.framework.torch().is_some() && problem.layout.pp == 1;
    hides_scores && (is_listed || !dropout.residual && !usual.residual)
}

pub fn no_recompute(problem: &Problem) -> bool {
    problem.execution.recompute == Recompute::Off
}

pub const fn no_pipeline(problem: &Problem) -> bool {
    problem.layout.pp == 1
}

fn no_flush(problem: &Problem) -> bool {
    let all = problem.workload.batch_size;
    problem.execution.flush_every.is_some_and(|every| no_pipeline(problem) || every as usize >= all)
}

pub fn no_chunks(problem: &Problem) -> bool {
    problem.layout.pp == 1 || problem.schedule.placement != Placement::Loop
}

fn no_gather(problem: &Problem) -> bool {
    let gathers = matches!(problem.layout.zero, Zero::OptimizerStates | Zero::Gradients);
    let follows = gathers && problem.shards_states() && problem.execution.trains_weights();
    problem.execution.overlap.parameter_gather && !follows
}

fn no_shares(problem: &Problem) -> bool {
    problem.execution.parameters_on_host && !problem.hosts_parameters()
}

/// Whoever writes a prefetch means it, also where it is the usual one: `forward_prefetch` of FSDP is off by default.
fn no_prefetch(problem: &Problem) -> bool {
    problem.layout.zero != Zero::Parameters || !problem.shards_states()
}

/// No host keeps anything, so its memory is no limit.
fn no_host(problem: &Problem) -> bool {
    !problem.uses_hosts()
}

/// Nothing is copied to a host, and GPUs of a node reach each other without one.
fn passes_no_host(problem: &Problem) -> bool {
    no_host(problem) && have_own_links(&problem.cluster, problem.layout.n_ranks())
}

/// Whether so many GPUs of a cluster reach those of their node without a host.
pub fn have_own_links(cluster: &Cluster, n_gpus: u32) -> bool {
    let n_gpus = cluster.gpus_per_node.min(n_gpus);
    n_gpus == 1 || cluster.inside_link(n_gpus) == InsideLink::Own
}

/// Whether the value is what an absent key means, where the key has no say.
fn is_default(key: &Key, value: &str) -> bool {
    match key.name {
        "schedule" => value == "\"1f1b\"",
        "chunks" | "expert_tp" | "gpus_per_switch" => value == "1",
        _ => false,
    }
}
