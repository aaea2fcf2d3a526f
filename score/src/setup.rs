//! A measured run as an engine that can be played: model, formats, degrees, limits; or the reason why there is none.
//!
//! Approximations: attention groups of a dense model are workers of their own; experts that are cut and spread at once are spread; a decode
//! worker of a split run has the options of a whole one. Units: tokens, sequences, GPUs, bytes.

mod checkpoint;

use std::num::NonZeroU32;

use engine::Model;
use engine::cost::experts::{Routing, Tactic};
use engine::cost::reduce::ReduceKernel;
use engine::formats::Formats;
use engine::latent_layout::LatentLayout;
use hw::{Bytes, Cluster, Dtype, Format};
use serve::api_server::ApiServer;
use serve::batcher;
use serve::capacity;
use serve::engine_constants::EngineConstants;
use serve::engine_preset::{self, EnginePreset, GraphRule, PromptGraphs, RESERVED_GIB};
use serve::engine_reduces;
use serve::layer_split::LayerSplit;
use serve::replica::batcher::Cut;
use serve::replica::{FirstToken, Limits, Role};
use serve::sampler::Sampler;
use serve::step_cost::ReplicaConfig;
use serve::step_cost::census::Census;
use serve::step_cost::fusion::Fusion;
use serve::step_cost::graphs::GraphFit;
use serve::step_cost::host::EngineLoop;
use serve::step_cost::prompt_exchange::PromptExchange;

use crate::client::{self, Client};
use crate::reason::Reason;
use crate::recipe::split::Split;
use crate::recipe::{self, Recipe};
use crate::run::{Run, Shape, Worker, Workers};

/// A run that can be played.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Architecture.
    pub model: Model,
    /// Formats of weights, keys and values.
    pub formats: Formats,
    /// Workers: one kind, or those that prefill and those that decode.
    pub parts: Vec<Part>,
    /// Who loads them.
    pub client: &'static Client,
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens of prompt and answer.
    pub lengths: [u32; 2],
    /// Constants of the engine.
    pub constants: EngineConstants,
    /// Engines through which a request goes one after another.
    pub n_starts: u32,
    /// Who gives first tokens of a split run.
    pub first_token: FirstToken,
    /// Frontends that each deal out their requests in turn.
    pub n_frontends: u32,
    /// What an API server works on each request, and how many there are; none where routers of other makers take the requests.
    pub api_servers: (ApiServer, u32),
}

/// Equal workers.
#[derive(Clone, Debug)]
pub struct Part {
    /// What they do.
    pub role: Role,
    /// How many.
    pub n: u32,
    /// GPUs that one of them takes, at least.
    pub cluster: Cluster,
    /// Degrees: tensor, pipeline, expert.
    degrees: [u32; 3],
    layer_split: LayerSplit,
    /// Limits of the engine.
    pub limits: Limits,
    /// Batching policy.
    pub batcher: &'static str,
    engine_loop: EngineLoop,
    graph_sizes: Vec<u32>,
    graph_fit: GraphFit,
    /// Largest batch that runs in one.
    batch_max: u32,
    prompt_graph_tokens: u32,
    expert_rows: Option<u64>,
    expert_tactic: Tactic,
    triton_experts: bool,
    fusion: Fusion,
    census: Census,
    joint_attention: bool,
    all_reduce: ReduceKernel,
    shared_beside: u32,
    shared_among_routed: bool,
    latent_layout: LatentLayout,
    routing: Routing,
    prompt_exchange: PromptExchange,
}

impl Setup {
    /// Requests of full length that the memory of all workers of the first kind holds.
    pub fn sequences_held(&self) -> u32 {
        self.parts[0].n * self.parts[0].limits.full_sequences()
    }

    /// The same with other constants.
    pub fn with(&self, constants: EngineConstants) -> Self {
        Self { constants, ..self.clone() }
    }

    /// The same where every one of so many drafts is accepted, and drafting takes no time: an answer has so many iterations fewer.
    pub fn with_drafts(&self, n_drafts: u32) -> Self {
        let [prompt, output] = self.lengths;
        Self { lengths: [prompt, output.div_ceil(1 + n_drafts)], ..self.clone() }
    }

    /// What a worker of a part runs.
    pub fn config<'s>(&'s self, part: &'s Part) -> ReplicaConfig<'s> {
        let [tensor_degree, pipeline_degree, expert_degree] = part.degrees;
        ReplicaConfig {
            pipeline_degree,
            layer_split: part.layer_split,
            expert_degree,
            formats: self.formats,
            host_per_step: self.constants.host_per_step,
            host_per_sequence: self.constants.host_per_sequence,
            host_per_layer: self.constants.host_per_layer,
            host_per_expert_layer: self.constants.host_per_expert_layer,
            host_per_intricate_layer: self.constants.host_per_intricate_layer,
            engine_loop: part.engine_loop,
            graph_sizes: part.graph_sizes.clone(),
            graph_fit: part.graph_fit,
            graph_max: part.batch_max,
            prompt_graph_tokens: part.prompt_graph_tokens,
            expert_rows: part.expert_rows,
            expert_tactic: part.expert_tactic,
            triton_experts: part.triton_experts,
            fusion: part.fusion,
            census: part.census,
            joint_attention: part.joint_attention,
            all_reduce: part.all_reduce,
            shared_beside: part.shared_beside,
            shared_among_routed: part.shared_among_routed,
            latent_layout: part.latent_layout,
            routing: part.routing.clone(),
            prompt_exchange: part.prompt_exchange,
            ..ReplicaConfig::new(&self.model, &part.cluster, tensor_degree)
        }
    }
}

/// Everything that a part of a setup is made of.
struct Asked<'r> {
    run: &'r Run,
    preset: &'static EnginePreset,
    recipe: &'r Recipe,
    /// How its workers were configured, where it is split and that was published.
    split: Option<&'static Split>,
    in_flight: u32,
    /// Tokens of a prompt as the server counts them.
    prompt: u32,
    gpu: hw::Gpu,
    experts: Format,
}

/// The setup of a run.
///
/// # Errors
/// Why it cannot be played.
pub fn of(run: &Run) -> Result<Setup, Reason> {
    of_split(run, recipe::split::of(run))
}

/// The setup of a run whose workers were configured so.
///
/// # Errors
/// Why it cannot be played.
pub fn of_split(run: &Run, split: Option<&'static Split>) -> Result<Setup, Reason> {
    let model = engine::model::of_checkpoint(&run.model).ok_or_else(|| Reason::Model { word: run.model.clone() })?;
    laid_out(run, (model, None), split)
}

/// The setup of a run of a model, in formats that are given or else in those of the run's checkpoint.
///
/// # Errors
/// Why it cannot be played.
pub fn of_model(run: &Run, model: Model, given: Option<Formats>) -> Result<Setup, Reason> {
    laid_out(run, (model, given), recipe::split::of(run))
}

fn laid_out(
    run: &Run,
    (model, given): (Model, Option<Formats>),
    split: Option<&'static Split>,
) -> Result<Setup, Reason> {
    hw::catalog::gpu(&run.card).ok_or_else(|| Reason::Card { word: run.card.clone() })?;
    engine_preset::named(&run.engine, run.engine_version()).ok_or(Reason::Engine)?;
    let client = client::of(&run.source, &run.measured);
    if recipe::drafts::are_drafted(run, client) {
        return Err(Reason::Drafted);
    }
    let recipe = recipe::of(run, client);
    let formats = match given {
        Some(formats) => formats,
        None => published_formats(run, recipe)?,
    };
    started(run, (model, formats), recipe, split)
}

/// The setup of a run of a model in these formats, whose engine was started with a recipe that is given.
///
/// # Errors
/// Why it cannot be played.
pub fn of_recipe(run: &Run, model: Model, formats: Formats, recipe: &Recipe) -> Result<Setup, Reason> {
    started(run, (model, formats), recipe, None)
}

fn started(
    run: &Run,
    (model, formats): (Model, Formats),
    recipe: &Recipe,
    split: Option<&'static Split>,
) -> Result<Setup, Reason> {
    let gpu = hw::catalog::gpu(&run.card).ok_or_else(|| Reason::Card { word: run.card.clone() })?;
    let preset = engine_preset::named(&run.engine, run.engine_version()).ok_or(Reason::Engine)?;
    let client = client::of(&run.source, &run.measured);
    let in_flight = run.in_flight.ok_or(Reason::InFlight)?;
    // Of several engines each has its share.
    let share = in_flight / run.n_engines();
    let prompt = run.prompt * recipe::tokens::per_asked(run, client);
    let asked = Asked { run, preset, recipe, split, in_flight: share, prompt, gpu, experts: formats.experts };
    let parts = match &run.workers {
        Workers::Whole(worker) => vec![part(&asked, &model, worker, (Role::Both, run.n_engines()))?],
        Workers::Split { prefill, decode } => {
            let (Some(n_prefill), Some(n_decode)) = (prefill.n, decode.n) else {
                return Err(Reason::WorkersNotStated);
            };
            vec![
                part(&asked, &model, prefill, (Role::Prefill, n_prefill))?,
                part(&asked, &model, decode, (Role::Decode, n_decode))?,
            ]
        }
    };
    let mut setup = Setup {
        model,
        formats,
        parts,
        client,
        in_flight,
        lengths: [prompt, run.output],
        constants: EngineConstants::of(&run.engine),
        n_starts: if run.is_split() { preset.split.n_starts } else { 1 },
        first_token: preset.split.first_token,
        n_frontends: recipe::frontends::of(run, client, hw::catalog::gpus_per_node(&asked.gpu.name)),
        api_servers: (ApiServer::NONE, 0),
    };
    if let ([only], false) = (&setup.parts[..], run.is_split()) {
        let [tensor, _, expert] = only.degrees;
        let servers = only.n * preset.frontend([tensor, expert]).processes.get();
        setup.api_servers = (preset.api_server, servers);
    }
    for index in 0..setup.parts.len() {
        let room = room(&setup, &setup.parts[index], &asked)?;
        let limits = &mut setup.parts[index].limits;
        (limits.kv_blocks, limits.blocks_per_sequence) = room;
    }
    Ok(setup)
}

/// Formats of a run's checkpoint as the engine was told to compute it.
fn published_formats(run: &Run, recipe: &Recipe) -> Result<Formats, Reason> {
    let formats = checkpoint::formats(run, recipe.kv.unwrap_or(Dtype::Bf16))?;
    Ok(Formats { experts: recipe.experts.unwrap_or(formats.experts), ..formats })
}

/// Workers of one kind, their blocks left open.
fn part(asked: &Asked<'_>, model: &Model, worker: &Worker, (role, n): (Role, u32)) -> Result<Part, Reason> {
    let published = asked.split.and_then(|split| split.side(role));
    let shape = published.map_or_else(|| worker.shape(), |side| side.shape(worker));
    let tensor = shape.gpus / shape.groups;
    check_degrees(model, &shape)?;
    // Attention groups of a dense model share nothing.
    let (copies, expert) = match (&model.experts, shape.groups) {
        (None, groups) => (groups, 1),
        (Some(_), 1) if !shape.spreads_experts => (1, 1),
        (Some(_), _) => (1, shape.gpus),
    };
    let Asked { run, preset, recipe, in_flight, .. } = *asked;
    let sizes = preset.sizes_on(&asked.gpu);
    let amount = |asked: Option<recipe::Amount>, default: u32| {
        asked.map_or(default, |amount| amount.under(in_flight, run.prompt))
    };
    let places = published.map_or_else(|| amount(recipe.sequences_max, sizes.sequences_max), |side| side.sequences);
    let sequences_max = places.min(in_flight);
    let looks = match published {
        Some(side) => side.looks,
        None if run.is_split() => NonZeroU32::MIN,
        None => recipe.recv_interval(in_flight),
    };
    let batching = recipe.batcher.unwrap_or(preset.batcher);
    // Without chunks a prompt has to fit an iteration, beside all who decode.
    let least = if cuts_nothing(batching) { asked.prompt + sequences_max } else { 1 };
    let tokens = published.and_then(|side| side.tokens).unwrap_or_else(|| amount(recipe.tokens_max, sizes.tokens_max));
    let tokens_asked = tokens.max(sequences_max);
    let (graph_sizes, batch_max) = captured(asked, tensor, (places, tokens));
    let is_plain = role == Role::Both && [shape.stages, shape.groups] == [1, 1];
    let all_reduce = preset.reduces.kernel(model, &asked.gpu, shape.groups, recipe.all_reduce);
    Ok(Part {
        role,
        n: n * copies,
        cluster: cluster(asked, shape.gpus * shape.stages),
        degrees: [tensor, shape.stages, expert],
        layer_split: preset.layer_split,
        limits: Limits {
            sequences_max,
            tokens_max: tokens_asked.max(least),
            context_max: asked.prompt + run.output,
            block_tokens: preset.block_tokens,
            kv_blocks: 0,
            recv_interval: looks,
            gather: recipe.gather(tokens_asked, shape.groups, role),
            capacity_policy: preset.capacity_policy,
            prompt_rank: preset.prompt_rank,
            shares_prefixes: recipe.prefix_cache.unwrap_or_else(|| preset.keeps_prefixes_of(model)),
            ..Limits::ROOMY
        },
        batcher: batching,
        engine_loop: recipe.engine_loop.unwrap_or(preset.engine_loop),
        graph_sizes: graph_sizes.clone(),
        graph_fit: graphs(asked, tensor).0.fit(),
        batch_max,
        expert_rows: preset.expert_rows_of(asked.experts, if shape.spreads_experts { 1 } else { shape.gpus }),
        expert_tactic: expert_tactic(asked, model, shape.groups),
        triton_experts: preset.has_triton_experts(asked.experts, &asked.gpu),
        prompt_graph_tokens: prompt_graphs(asked).tokens(model, graph_sizes.last().copied().unwrap_or(0), is_plain),
        fusion: engine_reduces::fusion(all_reduce, preset.fusion),
        census: preset.census,
        joint_attention: preset.has_joint_attention(),
        all_reduce,
        shared_beside: preset.shared_beside,
        shared_among_routed: preset.shared_among_routed(model, &asked.gpu, expert > 1),
        latent_layout: preset.latent_layout(&asked.gpu, model),
        routing: published.map_or_else(|| engine_preset::routing(model), |side| side.routing(model)),
        prompt_exchange: asked.split.map_or(preset.prompt_exchange, |split| split.prompt_exchange),
    })
}

/// Whether a batching policy computes whole prompts.
fn cuts_nothing(batching: &str) -> bool {
    batcher::named(batching).expect("presets name batchers").cut() == Cut::Never
}

/// Iterations with prompts that run in graphs.
fn prompt_graphs(asked: &Asked<'_>) -> PromptGraphs {
    asked.recipe.prompt_graphs.unwrap_or(asked.preset.prompt_graphs)
}

/// GPUs that a worker takes, on whole hosts.
fn cluster(asked: &Asked<'_>, n_gpus: u32) -> Cluster {
    let per_node = hw::catalog::gpus_per_node(&asked.gpu.name);
    hw::catalog::cluster(&asked.gpu, n_gpus.div_ceil(per_node), per_node)
}

/// Which batches the engine captures on so many GPUs, and the largest.
fn graphs(asked: &Asked<'_>, tensor: u32) -> (GraphRule, u32) {
    let given = asked.recipe.graphs.map(|(rule, most)| (rule, most.under(asked.in_flight, asked.run.prompt)));
    let largest = asked.preset.sizes_on(&asked.gpu).graph_max[usize::from(tensor >= 4)];
    given.unwrap_or((asked.preset.graphs, largest))
}

/// Which kernel of experts a worker runs with so many ranks of attention: what its script asked for, where the engine has several.
fn expert_tactic(asked: &Asked<'_>, model: &Model, groups: u32) -> Tactic {
    let by_itself = asked.preset.expert_tactic(asked.experts, model, &asked.gpu, groups);
    match asked.recipe.expert_tactic {
        Some([alone, between]) if by_itself == Tactic::Cutlass => {
            if groups > 1 {
                between
            } else {
                alone
            }
        }
        _ => by_itself,
    }
}

/// Captured batches where so many sequences and tokens run at once, and the largest batch that runs in a graph.
fn captured(asked: &Asked<'_>, tensor: u32, room: (u32, u32)) -> (Vec<u32>, u32) {
    let (rule, largest) = graphs(asked, tensor);
    rule.captured(largest, rule.most(room, asked.recipe.graphs.is_some()))
}

/// Degrees divide what they cut.
fn check_degrees(model: &Model, shape: &Shape) -> Result<(), Reason> {
    let refused = |what: String| Err(Reason::Degrees { what });
    let Shape { gpus, groups, stages, .. } = *shape;
    if !gpus.is_multiple_of(groups) {
        return refused(format!("{gpus} GPUs in {groups} attention groups"));
    }
    let tensor = u64::from(gpus / groups);
    if !model.n_heads.is_multiple_of(tensor) {
        return refused(format!("{} heads over {tensor} GPUs", model.n_heads));
    }
    if u64::from(stages) > model.n_layers {
        return refused(format!("{} layers over {stages} stages", model.n_layers));
    }
    match &model.experts {
        Some(experts) if !experts.n_routed.is_multiple_of(u64::from(gpus)) => {
            refused(format!("{} experts over {gpus} GPUs", experts.n_routed))
        }
        _ => Ok(()),
    }
}

/// Blocks that a worker's memory holds, and those that a sequence takes besides its tokens'; a request has to fit.
fn room(setup: &Setup, part: &Part, asked: &Asked<'_>) -> Result<(u32, u32), Reason> {
    let expert_padding = asked.preset.expert_padding(setup.formats.experts, &asked.gpu);
    let config = ReplicaConfig { expert_padding, ..setup.config(part) };
    let sizes = asked.preset.sizes_on(&asked.gpu);
    // Options of the runs change the prompts of an iteration, and not the chunk from which SGLang's share follows.
    let sizes = sizes.asked(sizes.tokens_max, graphs(asked, config.tensor_degree).1);
    let reserve = asked.preset.reserve(&sizes, &config, u32::MAX);
    let kept = Bytes::from_gib(RESERVED_GIB);
    let iteration = (part.limits.tokens_max.into(), part.limits.sequences_max.into());
    let beside = match asked.preset.sampler {
        Sampler::Uncounted => kept + capacity::activations(&config, iteration.0),
        // What an engine measures of itself has all in it.
        counted => {
            kept.max(capacity::profiled(&config, iteration, counted)) + asked.preset.exchange_bytes(config.n_gpus())
        }
    };
    let rule = asked.recipe.memory.unwrap_or(asked.preset.memory);
    let found = capacity::by_rule(&config, rule, [beside, reserve, kept])
        .map_err(|refused| Reason::Memory { what: refused.why })?;
    let published = asked.split.and_then(|split| split.side(part.role)?.kv_tokens);
    let most = published.map_or(u32::MAX, |tokens| tokens.saturating_mul(found.n_ranks) / part.limits.block_tokens);
    let blocks = found.blocks(part.limits.block_tokens).min(most);
    let per_sequence = found.blocks_per_sequence(part.limits.block_tokens);
    let tokens = (blocks / found.n_ranks).saturating_sub(per_sequence);
    let held = u64::from(tokens) * u64::from(part.limits.block_tokens);
    if held < u64::from(part.limits.context_max) {
        let what = format!("room for {held} tokens, a request has {}", part.limits.context_max);
        return Err(Reason::Memory { what });
    }
    Ok((blocks, per_sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured batches of a run's only worker: the last of those to which a batch is padded, and the largest that runs in a graph.
    fn captured(backend: &str, model: &str, in_flight: u32) -> (Option<u32>, u32) {
        let source =
            format!("source_file=x; model=y; silicon_concurrency={in_flight}; measured=2025-10-29T00:00:00.000Z");
        let cells = format!("{backend},,{model},h200_sxm,fp8,agg,1024,1024,fp8,fp8,{in_flight},8");
        let run = crate::run::of_line(&format!("a,{source},{cells},500,20"));
        let part = of(&run).expect("a setup").parts.remove(0);
        (part.graph_sizes.last().copied(), part.batch_max)
    }

    #[test]
    fn recipes_capture_batches_by_the_rules_of_their_engines() {
        // vLLM: `min(max_num_seqs * 2, 512)`; the script asks for as many sequences as there are requests in flight.
        let llama = "meta-llama/Llama-3.1-70B";
        assert_eq!([8, 64, 512].map(|n| captured("vllm", llama, n).0), [Some(16), Some(128), Some(512)]);
        // TensorRT-LLM captures what the script asks for, and no batch decodes beyond it.
        assert_eq!(captured("trtllm", llama, 64), (Some(1024), 1024));
    }
}
