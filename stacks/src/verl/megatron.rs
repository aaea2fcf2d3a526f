//! The actor in Megatron Core: degrees, stages, experts, gradients, and what the optimizer keeps where.
//!
//! Overrides are fields of Megatron Core's own configurations and have its names (`TransformerConfig`, `OptimizerConfig`,
//! `DistributedDataParallelConfig`). What is taken where a file says nothing is verl's: `verl/trainer/config/engine/megatron.yaml`,
//! `verl/utils/megatron_utils.py`, `verl/utils/megatron/optimizer.py`, volcengine/verl @ b178a3cd56f5.

use engine::model::{Model, of_checkpoint};
use input::diagnostic::divisors;
use train::problem::Fusion;
use train::stage_text;

use super::{actor, is_set};
use crate::Machine;
use crate::again::{Again, Names};
use crate::bridge::adapters::beside;
use crate::flags::Flags;
use crate::job::Job;

/// Where adapters are.
const ADAPTERS: &str = "actor_rollout_ref.model.lora.";

/// A key of Megatron Core's `TransformerConfig`.
fn transformer(name: &str) -> String {
    actor(&format!("megatron.override_transformer_config.{name}"))
}

/// Pipeline ranks, and virtual stages of each.
#[derive(Clone, Copy)]
struct Stages {
    pp: u64,
    chunks: u64,
}

/// Reads the actor's keys.
pub(super) fn megatron(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let asked = machine.model.as_ref().or(job.model.as_ref());
    let model = asked.and_then(|asked| of_checkpoint(asked));
    job.word(("training", "framework"), "megatron-core", "actor.strategy");
    let pp = degrees(flags, job);
    pipeline(flags, job, model.as_ref(), pp);
    experts(flags, job, model.as_ref());
    gradients(flags, job);
    optimizer(flags, job);
    adapters(flags, job, model.as_ref());
    unfused(flags, job, model.as_ref());
    again(flags, job);
}

/// Degrees but for those of experts. Gives the pipeline's.
fn degrees(flags: &mut Flags<'_>, job: &mut Job) -> u64 {
    let mut degree = |name: &str| flags.count(&actor(&format!("megatron.{name}")), 1..=100_000).unwrap_or(1);
    let tp = degree("tensor_model_parallel_size");
    let pp = degree("pipeline_model_parallel_size");
    job.degrees = [tp, pp, degree("context_parallel_size")];
    let is_sharded = is_set(flags, &actor("megatron.use_distributed_optimizer"), true);
    job.key(("parallel", "zero"), u8::from(is_sharded), "actor.megatron.use_distributed_optimizer, which is usual");
    if tp > 1 {
        let is_cut = is_set(flags, &actor("megatron.sequence_parallel"), true);
        job.key(("parallel", "sequence_parallel"), is_cut, "actor.megatron.sequence_parallel, which is usual");
    }
    pp
}

/// Schedule, virtual stages and layers of each stage.
fn pipeline(flags: &mut Flags<'_>, job: &mut Job, model: Option<&Model>, pp: u64) {
    let chunks = flags.count(&actor("megatron.virtual_pipeline_model_parallel_size"), 1..=1000).unwrap_or(1);
    let n_predicting = predicting(flags, job, model);
    let stages = Stages { pp, chunks };
    let (stages, mut layers) = match (pp > 1, model) {
        (true, Some(model)) => split(flags, stages, model.n_layers, n_predicting),
        _ => (stages, Vec::new()),
    };
    if pp < 2 {
        return;
    }
    let chunks = stages.chunks;
    job.word(("parallel", "schedule"), if chunks > 1 { "interleaved" } else { "1f1b" }, "Megatron Core's own");
    if chunks > 1 {
        job.key(("parallel", "chunks"), chunks, "actor.megatron.virtual_pipeline_model_parallel_size");
    }
    job.key(("overlap", "stage"), chunks > 1, "messages go behind computation with virtual stages alone");
    let each = model.map_or(0, |model| model.n_layers / (pp * chunks));
    if layers.is_empty() && n_predicting > 0 && each > 0 {
        layers = with_predicting(vec![each; usize::try_from(pp * chunks).unwrap_or(0)], n_predicting);
    }
    if !layers.is_empty() {
        let words: Vec<String> = layers.iter().map(u64::to_string).collect();
        let remark = "override_transformer_config: account_for_…, num_layers_in_…, pipeline_model_parallel_layout";
        job.key(("parallel", "layers"), format!("[{}]", words.join(", ")), remark);
    }
}

/// Layers that predict further tokens. verl trains without those of a model, unless it is told to (`megatron_workers.py`).
fn predicting(flags: &mut Flags<'_>, job: &mut Job, model: Option<&Model>) -> u64 {
    let has = is_set(flags, "actor_rollout_ref.model.mtp.enable", false);
    let of_model = model.map_or(0, |model| model.n_predicting);
    if of_model > 0 {
        job.key(
            ("training", "predicting_layers"),
            if has { of_model } else { 0 },
            "actor_rollout_ref.model.mtp.enable",
        );
    }
    if has { of_model } else { 0 }
}

/// Layers of stages, the last of which has those that predict.
fn with_predicting(mut layers: Vec<u64>, n_predicting: u64) -> Vec<u64> {
    if let Some(last) = layers.last_mut() {
        *last += n_predicting;
    }
    layers
}

/// Virtual stages, and layers of each stage; no layers where all have as many.
fn split(flags: &mut Flags<'_>, stages: Stages, n_layers: u64, n_predicting: u64) -> (Stages, Vec<u64>) {
    if let Some(found) = of_layout(flags, stages, [n_layers, n_predicting]) {
        return found;
    }
    let Stages { pp, chunks } = stages;
    let ends = ["num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"].map(transformer);
    let given = [0, 1].map(|end: usize| flags.count(&ends[end], 1..=10_000));
    if given.iter().any(Option::is_some) {
        let name = if given[0].is_some() { &ends[0] } else { &ends[1] };
        let layers = of_ends(n_layers, stages, given);
        if layers.is_none() {
            let what = format!("{n_layers} layers less those of the ends do not divide over the other of {pp} ranks");
            let help = "what is left must divide, and every rank's layers over its virtual stages".to_owned();
            flags.wrong(name, what, help);
        }
        return (stages, with_predicting(layers.unwrap_or_default(), n_predicting));
    }
    let places = ["account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"];
    let places = places.map(|name| u32::from(is_set(flags, &transformer(name), false)));
    let all = n_layers + u64::from(places[0] + places[1]);
    if !all.is_multiple_of(pp * chunks) {
        let what = format!("{all} layers do not divide into {} stages", pp * chunks);
        let help = format!(
            "allowed pipeline degrees are {}; or give `override_transformer_config.num_layers_in_first_pipeline_stage`",
            divisors(all)
        );
        flags.wrong(&actor("megatron.pipeline_model_parallel_size"), what, help);
        return (stages, Vec::new());
    }
    if places == [0, 0] {
        return (stages, Vec::new());
    }
    let layers = train::stage::beside_ends(all, pp * chunks, places).into_iter().map(u64::from).collect();
    (stages, with_predicting(layers, n_predicting))
}

/// Stages that a layout lists.
fn of_layout(flags: &mut Flags<'_>, stages: Stages, asked: [u64; 2]) -> Option<(Stages, Vec<u64>)> {
    let name = transformer("pipeline_model_parallel_layout");
    let text = flags.text(&name)?;
    let mut refuse = |why: String| {
        let help = "for example `Et*2|(tt|)*5t|tL`: embedding, layers, head, with `|` between stages".to_owned();
        flags.wrong(&name, format!("`{text}` is no layout: {why}"), help);
        Some((stages, Vec::new()))
    };
    let found = match stage_text::read(&text) {
        Ok(found) => found,
        Err(why) => return refuse(why.to_string()),
    };
    let n_stages = found.len() as u64;
    if !n_stages.is_multiple_of(stages.pp) {
        return refuse(format!("{} pipeline ranks do not share {n_stages} stages evenly", stages.pp));
    }
    let sums = found.iter().fold([0, 0], |[layers, predicting], held| {
        [layers + u64::from(held.layers), predicting + u64::from(held.predicting)]
    });
    if sums != asked {
        let [layers, predicting] = asked;
        let what = "a letter `t` stands for a layer, `m` for one that predicts further tokens";
        return refuse(format!("{what}: the model has {layers} and {predicting}"));
    }
    let layers = found.iter().map(|held| u64::from(held.layers + held.predicting)).collect();
    Some((Stages { chunks: n_stages / stages.pp, ..stages }, layers))
}

/// Layers of stages whose first and last rank have their own; nothing where the others do not share the rest.
fn of_ends(n_layers: u64, stages: Stages, given: [Option<u64>; 2]) -> Option<Vec<u64>> {
    let n_inner = stages.pp.checked_sub(given.iter().flatten().count() as u64)?;
    if stages.pp * stages.chunks > n_layers {
        return None;
    }
    let rest = n_layers.checked_sub(given.iter().flatten().sum())?;
    let is_shared = if n_inner == 0 { rest == 0 } else { rest.is_multiple_of(n_inner) };
    let inner = is_shared.then(|| rest.checked_div(n_inner).unwrap_or(0))?;
    let mut ranks = vec![inner; usize::try_from(stages.pp).ok()?];
    if let (Some(first), Some(rank)) = (given[0], ranks.first_mut()) {
        *rank = first;
    }
    if let (Some(last), Some(rank)) = (given[1], ranks.last_mut()) {
        *rank = last;
    }
    let each: Option<Vec<u64>> =
        ranks.iter().map(|n| n.is_multiple_of(stages.chunks).then_some(n / stages.chunks)).collect();
    Some(each?.repeat(usize::try_from(stages.chunks).ok()?))
}

/// Ranks of experts, and how tokens get to them.
fn experts(flags: &mut Flags<'_>, job: &mut Job, model: Option<&Model>) {
    let ep = flags.count(&actor("megatron.expert_model_parallel_size"), 1..=100_000).unwrap_or(1);
    let expert_tp = flags.count(&actor("megatron.expert_tensor_parallel_size"), 1..=100_000);
    if ep > 1 {
        job.key(("parallel", "ep"), ep, "actor.megatron.expert_model_parallel_size");
    }
    if model.is_none_or(|model| model.experts.is_none()) {
        return;
    }
    let cut = actor("megatron.sequence_parallel");
    if job.degrees[0] > 1 && !is_set(flags, &cut, true) {
        let what = format!("`{cut} False` does not go with experts beside tensor ranks");
        flags.wrong(&cut, what, "Megatron Core refuses to train them: write True, or one tensor rank".to_owned());
    }
    let remark = "actor.megatron.expert_tensor_parallel_size, else that of the rest";
    job.key(("parallel", "expert_tp"), expert_tp.unwrap_or(job.degrees[0]), remark);
    let kind = transformer("moe_token_dispatcher_type");
    let is_flex = flags.text(&kind).is_some_and(|word| word.trim_matches(['"', '\'']) == "flex");
    if ep > 1 && (is_flex || is_set(flags, &transformer("moe_enable_deepep"), false)) {
        job.word(("experts", "dispatcher"), "flex", "override_transformer_config.moe_token_dispatcher_type");
    }
    let capacity = transformer("moe_expert_capacity_factor");
    if let Some(factor) = flags.find(&capacity).is_some().then(|| flags.number(&capacity)).flatten() {
        job.key(("experts", "capacity"), factor, "override_transformer_config.moe_expert_capacity_factor");
    }
}

/// When gradients are reduced, and in which format. verl reduces them at the end and in 32 bits, unless it is told otherwise.
fn gradients(flags: &mut Flags<'_>, job: &mut Job) {
    let of = |name: &str| actor(&format!("megatron.override_ddp_config.{name}"));
    let is_early = is_set(flags, &of("overlap_grad_reduce"), false);
    let sync = if is_early { "overlapped" } else { "at_end" };
    job.word(("training", "gradient_sync"), sync, "override_ddp_config.overlap_grad_reduce");
    if !is_set(flags, &of("grad_reduce_in_fp32"), true) {
        job.word(("training", "gradient_dtype"), "bf16", "override_ddp_config.grad_reduce_in_fp32");
    }
    if is_set(flags, &of("overlap_param_gather"), false) {
        job.key(("overlap", "parameter_gather"), true, "override_ddp_config.overlap_param_gather");
    }
    if flags.text(&actor("megatron.dtype")).is_some_and(|word| word == "float16") {
        job.word(("training", "dtype"), "fp16", "actor.megatron.dtype");
    }
}

/// States of the optimizer in host memory: none without a fraction, as Megatron Core's `OptimizerConfig` has it.
fn optimizer(flags: &mut Flags<'_>, job: &mut Job) {
    let of = |name: &str| actor(&format!("optim.override_optimizer_config.{name}"));
    let fraction = of("optimizer_offload_fraction");
    if !is_set(flags, &of("optimizer_cpu_offload"), false) || flags.find(&fraction).is_none() {
        return;
    }
    let share = flags.number(&fraction).unwrap_or(0.0);
    if !(0.0..=1.0).contains(&share) {
        let what = format!("`{fraction} {share}` is no share");
        return flags.wrong(&fraction, what, "allowed are numbers from 0 to 1".to_owned());
    }
    if share > 0.0 {
        job.states_on_host(share, "override_optimizer_config.optimizer_offload_fraction");
    }
}

/// Adapters that alone are trained (`verl/workers/config/megatron_peft.py`).
fn adapters(flags: &mut Flags<'_>, job: &mut Job, model: Option<&Model>) {
    let of = |name: &str| format!("{ADAPTERS}{name}");
    let rank = flags.count(&of("rank"), 0..=100_000).unwrap_or(0);
    if rank == 0 {
        return flags.given.retain(|flag| !flag.name.starts_with(ADAPTERS));
    }
    job.word(("optimizer", "trains"), "adapters", "actor_rollout_ref.model.lora.rank");
    job.key(("optimizer", "adapter_rank"), rank, "actor_rollout_ref.model.lora.rank");
    if model.is_some_and(|model| model.experts.is_some()) {
        flags.not_modelled(&of("rank"), "adapters beside the products of experts are not counted");
    }
    let modules = flags.text(&of("target_modules")).unwrap_or_default();
    let beside = if modules.is_empty() { Some("all") } else { beside(&modules) };
    if beside.is_none() {
        let why = "adapters are counted beside all products around attention and of a dense feed-forward";
        flags.not_modelled(&of("target_modules"), why);
    }
    job.word(("optimizer", "adapters_beside"), beside.unwrap_or("all"), "actor_rollout_ref.model.lora.target_modules");
}

/// Kernels that are not fused. Permutations of tokens are fused by an override alone (`verl/models/mcore/config_converter.py`), others are unless one says no.
fn unfused(flags: &mut Flags<'_>, job: &mut Job, model: Option<&Model>) {
    let has_experts = model.is_some_and(|model| model.experts.is_some());
    let mut is_off = |name: &str, usual| !is_set(flags, &transformer(name), usual);
    let found = [
        (Fusion::Permutation, has_experts & is_off("moe_permute_fusion", false)),
        (Fusion::Activation, is_off("bias_activation_fusion", true)),
        (Fusion::Positions, is_off("apply_rope_fusion", true)),
    ];
    let words: Vec<String> =
        found.iter().filter(|(_, is_off)| *is_off).map(|(fusion, _)| format!("\"{}\"", fusion.word())).collect();
    if !words.is_empty() {
        let remark = "override_transformer_config: no moe_permute_fusion, bias_activation_fusion, apply_rope_fusion";
        job.key(("training", "unfused"), format!("[{}]", words.join(", ")), remark);
    }
}

/// Which activations Megatron Core computes again. Nothing but these keys says so: verl's Megatron workers do not read `enable_gradient_checkpointing`.
fn again(flags: &mut Flags<'_>, job: &mut Job) {
    let keys = ["recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"];
    let [granularity, modules, method, n_layers] = &keys.map(transformer);
    let backend = flags.text(&transformer("attention_backend"));
    let is_unfused = backend.is_some_and(|word| word == "unfused" || word == "local");
    if is_unfused {
        job.word(("training", "attention"), "unfused", "override_transformer_config.attention_backend");
    }
    let again = Again::of(flags, &Names { granularity, modules, method, n_layers }, false, is_unfused);
    job.key(("training", "recompute"), again.recompute.written(), "override_transformer_config.recompute_granularity");
    if let Some(n) = again.layers {
        job.key(("training", "recompute_layers"), n, "override_transformer_config.recompute_num_layers");
    }
}
