//! How many tokens a replica's memory holds beside the weights.
//!
//! Units: bytes per GPU. Weights are those of the stage, cut over the tensor group, experts over the GPUs that share them; a draft model
//! and its keys and values lie on every tensor group besides. What the engine may use is a share of the device's memory, and the
//! framework, the graphs and the activations of an iteration take `reserved` of that. The stage with the least room decides. An encoder of
//! images lies on the first stage, whether images come or not.

use hw::{Bytes, Gpu};

mod ffn;

pub use ffn::{expert_activations, experts_fit};

use crate::memory_rule::MemoryRule;
use crate::replica::Limits;
use crate::sampler::Sampler;
use crate::speculation::DraftKind;
use crate::step_cost::{ReplicaConfig, host_bytes};
use engine::memory::{kept_bytes_per_sequence, stage_weight_bytes};
use engine::model::{DraftHead, Model};
use engine::stage::Stage;
use engine::verdict::Refused;

/// Memory of one GPU of a replica, in the stage that has the least room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Weights.
    pub weights: Bytes,
    /// Left for keys and values.
    pub kv: Bytes,
    /// Keys and values of a token.
    pub bytes_per_token: u64,
    /// What a sequence keeps beside all of its tokens: windows, as full as the average one has them, and states.
    pub bytes_per_sequence: u64,
    /// Ranks of data-parallel attention, each with its own keys and values.
    pub n_ranks: u32,
}

impl Capacity {
    /// Whole blocks of so many tokens, over all ranks.
    pub fn blocks(&self, block_tokens: u32) -> u32 {
        let blocks = self.kv.0 / (self.bytes_per_token * u64::from(block_tokens)).max(1);
        u32::try_from(blocks * u64::from(self.n_ranks)).unwrap_or(u32::MAX)
    }

    /// Blocks of so many tokens that every sequence takes besides those of its tokens.
    pub fn blocks_per_sequence(&self, block_tokens: u32) -> u32 {
        let block = (self.bytes_per_token * u64::from(block_tokens)).max(1);
        u32::try_from(self.bytes_per_sequence.div_ceil(block)).unwrap_or(u32::MAX)
    }

    fn holds_a_token(&self) -> bool {
        self.kv.0 >= self.bytes_per_token + self.bytes_per_sequence
    }
}

/// Memory of the stage with the least room for tokens, where `room` bytes may be used.
fn of_room(deployment: &ReplicaConfig<'_>, room: u64) -> Capacity {
    let tokens = |capacity: &Capacity| (capacity.kv.0 / capacity.bytes_per_token.max(1), u64::MAX - capacity.weights.0);
    of_stages(deployment, room).into_iter().min_by_key(tokens).expect("a model has a stage")
}

/// Memory of every stage, where `room` bytes may be used.
fn of_stages(deployment: &ReplicaConfig<'_>, room: u64) -> Vec<Capacity> {
    let shard = deployment.shard();
    let tensor_degree = deployment.tensor_degree;
    let draft_weights = draft_weight_bytes(deployment);
    let draft_kv = draft_kv_bytes_per_token(deployment, tensor_degree);
    let all_layers = deployment.kv_bytes_per_token(tensor_degree);
    // Slots for adapters are taken with the weights, whatever they hold.
    let adapters =
        deployment.adapters.map_or(Bytes(0), |room| room.bytes(deployment.model, tensor_degree, deployment.dtype));
    let kept = kept_bytes_per_sequence(&shard, deployment.sequence_tokens);
    let encoder = deployment.encoding().map_or(0, |encoding| encoding.weight_bytes());
    let of_stage = |stage: &Stage| {
        let saved = deployment
            .sparse_weights
            .map_or(0, |layers| layers.saved(deployment.model, tensor_degree, u64::from(stage.n_layers())).0);
        let dense = Bytes::from_f64(stage_weight_bytes(&shard, stage));
        let encoder = if stage.first { encoder } else { 0 };
        let n_apart = if deployment.ffn.is_some() { stage.n_expert } else { 0 };
        let saved = saved + ffn::routed_bytes(deployment, n_apart.into());
        let n_expert = u64::from(stage.n_expert - n_apart);
        let again = redundant_bytes(deployment, n_expert);
        let filled = padding_bytes(deployment, n_expert);
        let on_host = deployment.host_weights.map_or(0, |weights| host_bytes::saved(weights, deployment, stage).0);
        let layers = dense.0.saturating_sub(saved + on_host);
        let weights = Bytes(layers + draft_weights + encoder + again + filled) + adapters;
        let kv = Bytes(room.saturating_sub(weights.0));
        let bytes_per_token = all_layers * u64::from(stage.n_layers()) / deployment.model.n_layers + draft_kv;
        let bytes_per_sequence = kept * u64::from(stage.n_layers()) / deployment.model.n_layers;
        Capacity { weights, kv, bytes_per_token, bytes_per_sequence, n_ranks: deployment.lanes().ranks }
    };
    deployment.stages().iter().map(of_stage).collect()
}

/// Bytes on a GPU of the experts that so many layers keep once more.
fn redundant_bytes(deployment: &ReplicaConfig<'_>, n_layers: u64) -> u64 {
    let n = deployment.redundant_experts.filter(|_| deployment.model.experts.is_some()).unwrap_or(0);
    let parameters = hw::real(n_layers * u64::from(n) * deployment.model.expert_parameters());
    hw::whole(deployment.formats.experts.weight_bytes(parameters / f64::from(deployment.expert_degree)))
}

/// Bytes on a GPU by which the kernel of experts fills up their products in so many layers. Biases are in 16 bits.
fn padding_bytes(deployment: &ReplicaConfig<'_>, n_layers: u64) -> u64 {
    let (model, shard) = (deployment.model, deployment.shard());
    let (Some(experts), Some([of_model, of_expert])) = (model.experts, deployment.expert_padding) else { return 0 };
    let (matrices, into) = if model.gated { (3, 2) } else { (2, 1) };
    let cut = u64::from(shard.expert_tp);
    let (wide, narrow) = (experts.latent.unwrap_or(model.hidden), experts.intermediate.div_ceil(cut));
    let [filled_wide, filled_narrow] = [wide.next_multiple_of(of_model), narrow.next_multiple_of(of_expert)];
    let products = hw::real(matrices * filled_wide * filled_narrow);
    let biases = if experts.biased { 2 * (into * filled_narrow + filled_wide) } else { 0 };
    let bytes = deployment.formats.experts.weight_bytes(products) + hw::real(biases);
    let counted = deployment.formats.experts.weight_bytes(hw::real(model.expert_parameters())) / hw::real(cut);
    let n = hw::real(n_layers * deployment.replicas_of(experts)) / f64::from(shard.ep);
    hw::whole((n * (bytes - counted)).max(0.0))
}

/// Bytes of weights of who drafts on a GPU; none where nobody has weights of its own.
pub fn draft_weight_bytes(deployment: &ReplicaConfig<'_>) -> u64 {
    deployment.of_draft().zip(deployment.draft).map_or(0, |(draft, (_, kind))| match kind {
        DraftKind::Model => hw::whole(stage_weight_bytes(&draft.shard(), &draft.stages()[0])),
        DraftKind::Own => of_own_draft(&draft, deployment.model.n_predicting),
        DraftKind::Head(head) => of_head(&draft, head),
    })
}

/// Bytes of keys and values of a token that who drafts keeps on a GPU of so many: with one, each byte once.
pub fn draft_kv_bytes_per_token(deployment: &ReplicaConfig<'_>, tensor_degree: u32) -> u64 {
    let Some((draft, (_, kind))) = deployment.of_draft().zip(deployment.draft) else { return 0 };
    let n = if kind == DraftKind::Own { deployment.model.n_predicting } else { 1 };
    n * draft.kv_bytes_per_token(tensor_degree)
}

/// Bytes of weights of so many layers that predict tokens further on: without embedding and head, which are the model's, and with the product that joins
/// state and embedding, which every GPU has whole.
fn of_own_draft(draft: &ReplicaConfig<'_>, n_layers: u64) -> u64 {
    let stage = Stage { first: false, last: false, ..draft.stages()[0] };
    let joins = 2 * draft.model.hidden * draft.model.hidden * draft.dtype.bytes();
    let layer = hw::whole(stage_weight_bytes(&draft.shard(), &stage)) + joins;
    n_layers * layer + redundant_bytes(draft, n_layers)
}

/// The same of a head that was trained to draft: what is whole on every GPU, and the rest cut over the tensor group.
fn of_head(draft: &ReplicaConfig<'_>, head: DraftHead) -> u64 {
    let (all, whole) = (head.parameters(draft.model), head.joining_parameters(draft.model.hidden));
    let on_gpu = whole + (all - whole).div_ceil(u64::from(draft.tensor_degree));
    on_gpu * draft.dtype.bytes()
}

/// Activations of an iteration of so many tokens on one GPU: the residual stream and its norm are whole on every GPU, the inside of a
/// feed-forward is cut over the tensor group. Or those of the images of an iteration, which are gone before its layers begin but for what
/// the encoder gave: an engine keeps that of as many tokens (vLLM 0.11, `compute_mm_encoder_budget`).
pub fn activations(deployment: &ReplicaConfig<'_>, tokens: u64) -> Bytes {
    let of_layers = of_layers(deployment, tokens);
    let Some(encoding) = deployment.encoding() else { return of_layers };
    let encoder = encoding.encoder;
    let tokens = tokens.max(encoder.tokens_max());
    let of_images = encoding.activation_bytes(tokens * encoder.patches_per_token());
    Bytes(of_layers.0.max(of_images) + tokens * encoder.given_per_token() * deployment.dtype.bytes())
}

/// What an engine finds that an iteration of so many tokens and sequences takes, where it tries one: activations of the layers, and then the sampler beside the
/// states of all tokens. One follows the other.
pub fn profiled(deployment: &ReplicaConfig<'_>, (tokens, sequences): (u64, u64), sampler: Sampler) -> Bytes {
    let layers = activations(deployment, tokens);
    let multiprocessors = hw::catalog::multiprocessors(&deployment.cluster.gpu.name).unwrap_or(0);
    let logits = sampler.bytes(sequences.min(tokens), deployment.model.vocab, multiprocessors.into());
    let states = tokens * deployment.model.hidden * deployment.dtype.bytes();
    layers.max(Bytes(if logits > 0 { logits + states } else { 0 }))
}

/// Activations of the layers for so many tokens.
fn of_layers(deployment: &ReplicaConfig<'_>, tokens: u64) -> Bytes {
    let (model, element) = (deployment.model, deployment.dtype.bytes());
    let streams = model.streams.map_or(1, engine::model::Streams::n);
    let residual = (streams + 1) * tokens * model.hidden * element;
    let inside = match model.experts.filter(|_| deployment.ffn.is_none()) {
        Some(experts) => {
            // `fused_experts_impl` of vllm/model_executor/layers/fused_moe/fused_moe.py: one buffer for what comes into and out of the experts of every token,
            // whose rows are as wide as the model behind the second product, and one between them.
            let cut = if deployment.has_whole_experts() { 1 } else { u64::from(deployment.tensor_degree) };
            let between = experts.intermediate.div_ceil(cut);
            let into = if model.gated { 2 * between } else { between };
            tokens * experts.top_k * (into.max(experts.latent.unwrap_or(model.hidden)) + between) * element
        }
        None => feed_forward_activations(model, tokens, element).0.div_ceil(u64::from(deployment.tensor_degree)),
    };
    Bytes(residual + inside)
}

/// Inside of one dense feed-forward layer for so many tokens, uncut: gate and up projection where it is gated.
fn feed_forward_activations(model: &Model, tokens: u64, element: u64) -> Bytes {
    let matrices = if model.gated { 2 } else { 1 };
    Bytes(tokens * matrices * model.intermediate * element)
}

/// Bytes of the weights on a GPU of the stage that has most of them, or on one with experts alone, where that has more.
pub fn weights(deployment: &ReplicaConfig<'_>) -> Bytes {
    let of_stages = of_stages(deployment, 0).into_iter().map(|stage| stage.weights);
    of_stages.fold(ffn::weights(deployment), Bytes::max)
}

/// Memory of a GPU of the fullest stage with so many blocks in use, of all ranks, beside the weights and the activations of the largest iteration; or of one with
/// experts alone, where that is more.
pub fn peak(deployment: &ReplicaConfig<'_>, limits: &Limits, blocks: u32) -> Bytes {
    let used = |stage: Capacity| {
        let tokens = u64::from(blocks.div_ceil(stage.n_ranks)) * u64::from(limits.block_tokens);
        stage.weights + Bytes(tokens * stage.bytes_per_token)
    };
    let fullest = of_stages(deployment, 0).into_iter().map(used).fold(Bytes::ZERO, Bytes::max);
    let of_experts = ffn::weights(deployment) + expert_activations(deployment, u64::from(limits.tokens_max));
    of_experts.max(fullest + activations(deployment, u64::from(limits.tokens_max)))
}

/// Memory of a deployment by an engine's rule: `beside` is what the process and the activations take, `reserve` what an engine with a reserve
/// of its own leaves, and `kept` what the process alone keeps.
///
/// SGLang multiplies what is free before it loads the model, when the process is there, and takes the weights off
/// (`profile_max_num_token` of python/sglang/srt/model_executor/model_runner.py). Its own share is that of the board that the reserve leaves (`server_args.py`).
///
/// # Errors
/// As `of`.
pub fn by_rule(deployment: &ReplicaConfig<'_>, rule: MemoryRule, taken: [Bytes; 3]) -> Result<Capacity, Refused> {
    let (room, of_what) = room(&deployment.cluster.gpu, rule, taken);
    let found = within(deployment, room, &of_what)?;
    let share = if let MemoryRule::OfFree(share) = rule { share } else { 1.0 };
    Ok(Capacity { kv: Bytes::from_f64(found.kv.as_f64() * share), ..found })
}

/// What an engine's rule leaves for weights, keys and values of a device, and of what that is, in words.
fn room(gpu: &Gpu, rule: MemoryRule, [beside, reserve, kept]: [Bytes; 3]) -> (u64, String) {
    match rule {
        MemoryRule::OfDevice(share) => of_device(gpu, share, beside),
        MemoryRule::Static(share) => of_free_before(gpu, share, kept),
        MemoryRule::Reserve => {
            let share = 1.0 - reserve.as_f64() / gpu.memory.as_f64();
            of_free_before(gpu, share.max(0.0), kept)
        }
        MemoryRule::OfFree(_) => of_device(gpu, 1.0, beside),
    }
}

/// A share of what is free before the model is loaded.
fn of_free_before(gpu: &Gpu, share: f64, kept: Bytes) -> (u64, String) {
    let free = Bytes(gpu.visible().0.saturating_sub(kept.0));
    let gib = free.as_f64() / hw::GIB;
    let of_what =
        format!("{:.0} % of the {gib:.1} GiB of `{}` that are free before it is loaded are", share * 100.0, gpu.name);
    (hw::whole(free.as_f64() * share), of_what)
}

/// A share of what programs see of the device, less what is reserved.
fn of_device(gpu: &Gpu, usable: f64, reserved: Bytes) -> (u64, String) {
    let seen = gpu.visible().as_f64();
    let room = hw::whole(seen * usable).saturating_sub(reserved.0);
    let (share, gib, less) = (usable * 100.0, seen / hw::GIB, reserved.as_f64() / hw::GIB);
    (room, format!("{share:.0} % of the {gib:.1} GiB of `{}` less {less:.1} GiB reserved leave", gpu.name))
}

/// Memory of a deployment that may use `usable` of what programs see of the device.
///
/// # Errors
/// A sentence with the figures and the smallest tensor degree that would fit, when weights leave no room for a token.
pub fn of(deployment: &ReplicaConfig<'_>, usable: f64, reserved: Bytes) -> Result<Capacity, Refused> {
    let (room, of_what) = of_device(&deployment.cluster.gpu, usable, reserved);
    within(deployment, room, &of_what)
}

/// Memory of a deployment in so many bytes, which are so in words.
fn within(deployment: &ReplicaConfig<'_>, room: u64, of_what: &str) -> Result<Capacity, Refused> {
    let found = of_room(deployment, room);
    if found.holds_a_token() {
        return Ok(found);
    }
    let wider = |degree: &u32| {
        // Whole experts stay whole, and those that are apart stay where they are.
        let is_shared = deployment.expert_degree > 1 && deployment.ffn.is_none();
        let expert_degree = deployment.expert_degree.max(if is_shared { *degree } else { 1 });
        let wider = ReplicaConfig { tensor_degree: *degree, expert_degree, ..deployment.clone() };
        of_room(&wider, room).holds_a_token()
    };
    let fitting = [2, 4, 8, 16, 32, 64].into_iter().filter(|degree| *degree > deployment.tensor_degree).find(wider);
    let advice =
        fitting.map_or_else(|| "larger GPUs are needed".to_owned(), |degree| format!("`tp = {degree}` would fit"));
    let beside = match (deployment.adapters.is_some(), deployment.draft) {
        (true, _) => "weights and slots for adapters".to_owned(),
        (false, Some((draft, DraftKind::Model | DraftKind::Head(_)))) => {
            format!("weights, with those of the draft model `{}`,", draft.name)
        }
        (false, _) => "weights".to_owned(),
    };
    let (name, weights) = (&deployment.model.name, found.weights.as_f64() / hw::GIB);
    let gib = hw::real(room) / hw::GIB;
    Err(Refused::out_of_memory(format!(
        "`{name}` needs {weights:.1} GiB of {beside} per GPU, and {of_what} {gib:.1} GiB; {advice}"
    )))
}

#[cfg(test)]
mod tests {
    use engine::cost::sparse_weights::SparseLayers;
    use engine::formats::Formats;
    use engine::model::Model;
    use hw::{Dtype, Format};

    use super::*;
    use engine::encoder::Split;

    #[test]
    fn a_static_share_is_of_what_is_free_before_the_model_is_loaded() {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, 1);
        let (board, seen) = (cluster.gpu.memory.as_f64(), cluster.gpu.visible().as_f64());
        assert!(seen < board);
        let reserve = Bytes::from_gib(4.0);
        for (rule, share) in [(MemoryRule::Static(0.8), 0.8), (MemoryRule::Reserve, 1.0 - reserve.as_f64() / board)] {
            for kept_gib in [1.0, 30.0] {
                let kept = Bytes::from_gib(kept_gib);
                let found = by_rule(&deployment, rule, [kept, reserve, kept]).expect("there is room");
                let expected = (seen - kept.as_f64()) * share - weights(&deployment).as_f64();
                assert!((found.kv.as_f64() / expected - 1.0).abs() < 1e-6, "{rule:?} {kept_gib}");
            }
        }
    }

    fn of_model(name: &str, gpu: &str, tensor_degree: u32, reserved_gib: f64) -> Result<Capacity, Refused> {
        let model = engine::model::embedded(name).expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, tensor_degree);
        of(&deployment, 0.9, Bytes::from_gib(reserved_gib))
    }

    #[test]
    fn blocks_are_those_that_an_engine_reported() {
        // vLLM 0.19 on an RTX 4090 (25,250,627,584 bytes, 90 % of it usable) reports 2,588 blocks of 16 tokens for Llama-3.1-8B with 2,048 tokens and 256
        // sequences (casys-kaist/LLMServingSim @ 5daddb21a545, bench/examples/RTX4090): 1.15 GiB are reserved there, and the sampler is within them.
        let on_4090 = of_model("llama-3.1-8b", "rtx-4090", 1, 1.15).expect("fits");
        assert_eq!(on_4090.bytes_per_token, 131_072);
        assert!((on_4090.weights.as_f64() / 16.06e9 - 1.0).abs() < 1e-3);
        assert!(on_4090.blocks(16).abs_diff(2588) <= 2, "{} blocks", on_4090.blocks(16));
        assert!(beside("llama-3.1-8b", 1, (2048, 256), Sampler::Masking) < 1.15);
    }

    /// GiB of a sampler and the states beside it, and of weights, for a model on H100 cards in a format of weights.
    fn beside(name: &str, tensor_degree: u32, (tokens, sequences): (u64, u64), sampler: Sampler) -> f64 {
        let model = engine::model::embedded(name).expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, tensor_degree);
        profiled(&deployment, (tokens, sequences), sampler).as_f64() / hw::GIB
    }

    #[test]
    fn a_sampler_that_sorts_takes_what_an_engine_measured() {
        // llm-d/llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md: peak activation memory of vLLM in GiB, on H100 with its 1,024 sequences and
        // 8,192 tokens. On two GPUs it is the same as on one. vllm-project/vllm#23278: 0.9 of the card, less 65.97 of weights, less -2.14 left, is 7.4.
        for (name, tensor_degree, measured) in [
            ("gpt-oss-20b", 1, 7.38),
            ("gpt-oss-120b", 1, 7.38),
            ("llama-3.1-8b", 1, 4.76),
            ("llama-3.1-70b", 2, 4.84),
            ("qwen3-0.6b", 1, 5.56),
            ("qwen3-32b", 1, 5.64),
            ("qwen3-32b", 2, 5.64),
        ] {
            let found = beside(name, tensor_degree, (8192, 1024), Sampler::Sorting);
            assert!(
                (found / measured - 1.0).abs() < 0.02,
                "{name} on {tensor_degree}: {found} GiB, measured {measured}"
            );
        }
        // Without a sort `FlashInfer` keeps 24 bytes of every logit less: flashinfer-ai/flashinfer#1180 has 1.51 GiB more room with it.
        let less = Sampler::Sorting.bytes(1024, 201_088, 132) - Sampler::Rejecting.bytes(1024, 201_088, 132);
        assert_eq!(less, 1024 * 201_088 * 24);
        // vllm-project/vllm#33538: the sort of 256 rows of 131,072 takes 1.25 GiB with a copy of 32 bits in place of one of 16.
        let sorted = Sampler::Sorting.bytes(256, 131_072, 132) + 2 * 256 * 131_072;
        assert_eq!(sorted, 5 << 28);
    }

    #[test]
    fn more_sequences_take_more_for_their_logits_and_few_are_hidden_behind_the_layers() {
        let of = |sequences| beside("llama-3.1-8b", 1, (8192, sequences), Sampler::Masking);
        assert_eq!(of(1), of(16), "the layers of 8,192 tokens take more");
        assert!(of(4096) > 3.0 * of(1024));
        assert_eq!(of(8192), of(1 << 20), "an iteration has no more sequences than tokens");
        // Two copies of logits, probabilities and draws: 14 bytes for each.
        let more = (of(4096) - of(2048)) * hw::GIB;
        assert!((more / (2048.0 * 128_256.0 * 14.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn exchanges_of_older_releases_are_taken_off() {
        // vllm-project/vllm#21348 (July 2025): Qwen3-235B in 8 bits on four H100 has room for 178,880 tokens. What is left over, a tenth, has no source.
        let model = engine::model::of_checkpoint("Qwen/Qwen3-235B-A22B-FP8").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 4);
        let deployment = ReplicaConfig { formats: model.formats, ..ReplicaConfig::new(&model, &cluster, 4) };
        let sampler = profiled(&deployment, (8192, 1024), Sampler::Sorting);
        let version = crate::engine_preset::Version::parse("0.10.0");
        let exchanges = crate::engine_preset::named("vllm", version).expect("listed").exchange_bytes(4);
        let tokens = |beside| of(&deployment, 0.9, beside).expect("fits").blocks(16) * 16;
        let (with, without) = [sampler + exchanges, sampler].map(tokens).into();
        assert!(with < without && f64::from(with) / 178_880.0 < 1.13, "{with} and {without}");
        assert!(f64::from(without) / 178_880.0 > 1.3, "{without}");
    }

    #[test]
    fn a_kernel_of_experts_fills_them_up() {
        // GiB that vLLM says it loaded with Marlin: vllm-project/vllm#23278, and a log of the smaller one.
        for (name, loaded) in [("gpt-oss-120b", 65.965), ("gpt-oss-20b", 13.72)] {
            let model = engine::model::embedded(name).expect("listed");
            let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
            let formats = Formats { experts: Format::Mxfp4, ..Formats::of(Dtype::Bf16) };
            let plain = ReplicaConfig { formats, ..ReplicaConfig::new(&model, &cluster, 1) };
            let filled = ReplicaConfig { expert_padding: Some([256, 128]), ..plain.clone() };
            let [plain, filled] = [plain, filled].map(|config| weights(&config).as_f64() / hw::GIB);
            assert!((filled / loaded - 1.0).abs() < 0.01, "{name}: {filled} GiB, loaded {loaded}");
            assert!(plain < 0.94 * loaded, "{name}: {plain} GiB as the checkpoint has it");
        }
    }

    #[test]
    fn experts_of_a_token_are_as_wide_as_the_model_behind_them() {
        // `fused_experts_impl`: max(2 · 1,536 / 4, 4,096) and 1,536 / 4 elements of 16 bits for each of eight experts.
        let model = engine::model::embedded("qwen3-235b-a22b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let found = activations(&ReplicaConfig::new(&model, &cluster, 4), 8192).0;
        assert_eq!(found, 8192 * 2 * (2 * 4096 + 8 * (4096 + 384)));
    }

    #[test]
    fn stages_and_experts_divide_weights_and_keys() {
        let (mixtral, cluster) = (
            engine::model::embedded("mixtral-8x22b").expect("listed"),
            hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 2, 8),
        );
        let of = |tensor_degree, pipeline_degree, expert_degree| {
            let base = ReplicaConfig::new(&mixtral, &cluster, tensor_degree);
            super::of(&ReplicaConfig { pipeline_degree, expert_degree, ..base }, 0.9, Bytes::ZERO).expect("fits")
        };
        let whole = 2.0 * hw::real(mixtral.n_parameters());
        for (tp, pp, ep) in [(4, 1, 1), (8, 1, 8), (4, 2, 1), (4, 4, 4)] {
            let found = of(tp, pp, ep);
            let even = whole / f64::from(tp * pp);
            // Embedding and head are on one stage each.
            assert!((found.weights.as_f64() / even - 1.0).abs() < 0.02, "{tp} {pp} {ep}: {found:?}");
            // 2 · 56 layers · 8 heads · 128 · 2 bytes over tensor ranks and stages.
            assert_eq!(found.bytes_per_token, 2 * 56 * 8 * 128 * 2 / u64::from(tp * pp));
        }
        // Two groups of attention and half of the experts on each: attention is there twice, experts once.
        let (one, two) = (of(4, 1, 4), of(4, 1, 8));
        let experts = hw::real(56 * 8 * mixtral.expert_parameters() * 2);
        // Routers of eight experts, two norms of a layer and the last one are whole on every GPU.
        let on_each = hw::real(2 * (56 * (8 + 2) + 1) * mixtral.hidden);
        let cut = whole - experts - on_each;
        assert!((two.weights.as_f64() / (cut / 4.0 + on_each + experts / 8.0) - 1.0).abs() < 1e-6);
        assert_eq!((one.n_ranks, two.n_ranks), (1, 2));
        assert_eq!(two.blocks(16) / 2, Capacity { n_ranks: 1, ..two }.blocks(16));
    }

    #[test]
    fn a_million_tokens_of_the_7b_keep_71_gib_per_layer_and_chunks_save_96_7_percent() {
        let model = engine::model::embedded("qwen2.5-7b").expect("listed");
        let whole = feed_forward_activations(&model, 1_000_000, 2).as_f64();
        assert!((whole / hw::GIB - 71.0).abs() < 0.5, "{whole} bytes");
        let saved = 1.0 - feed_forward_activations(&model, 32_768, 2).as_f64() / whole;
        assert!((saved - 0.967).abs() < 5e-4, "{saved}");
    }

    #[test]
    fn a_million_tokens_fit_what_the_models_page_asks_for() {
        // The model cards ask for 120 GB and 320 GB over all GPUs for a million tokens.
        for (name, tensor_degree, limit) in [("qwen2.5-7b", 4, 120e9), ("qwen2.5-14b", 8, 320e9)] {
            let model = engine::model::embedded(name).expect("listed");
            let cluster = hw::catalog::cluster(&hw::catalog::gpu("h20").expect("listed"), 1, 8);
            let config = ReplicaConfig::new(&model, &cluster, tensor_degree);
            let capacity = super::of(&config, 1.0, activations(&config, 32_768)).expect("fits");
            let of_gpu = capacity.weights.0 + capacity.bytes_per_token * 1_000_000 + activations(&config, 32_768).0;
            let all = hw::real(of_gpu * u64::from(tensor_degree));
            assert!(all < limit && all > 0.5 * limit, "{name}: {all}");
        }
        // 57 KB and 197 KB of keys and values per token.
        let kv = |name: &str| engine::memory::kv_bytes_per_token(&engine::model::embedded(name).expect("listed"), 1, 2);
        assert_eq!((kv("qwen2.5-7b"), kv("qwen2.5-14b")), (57_344, 196_608));
    }

    #[test]
    fn a_head_that_drafts_takes_its_parameters_and_the_keys_of_a_layer() {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let model = engine::model::embedded("llama-3-70b").expect("listed");
        let head = model.draft_head(DraftHead::Eagle3);
        let base = ReplicaConfig::new(&model, &cluster, 4);
        let drafted = ReplicaConfig { draft: Some((&head, DraftKind::Head(DraftHead::Eagle3))), ..base.clone() };
        let [plain, with] = [&base, &drafted].map(|config| of_room(config, 1 << 40));
        // The product that fuses three states is whole on every GPU, the rest is cut in four.
        let whole = 3 * 8192 * 8192;
        let cut = (DraftHead::Eagle3.parameters(&head) - whole) / 4;
        assert_eq!(with.weights.0 - plain.weights.0, 2 * (whole + cut));
        // One layer beside eighty.
        assert_eq!(80 * (with.bytes_per_token - plain.bytes_per_token), plain.bytes_per_token);
        // All bytes of a token, each once: a key and a value of 8 heads of 128, in 16 bits.
        assert_eq!([&base, &drafted].map(|config| draft_kv_bytes_per_token(config, 1)), [0, 2 * 8 * 128 * 2]);
        // A model that drafts has those of its 16 layers, of 8 heads of 64.
        let small = engine::model::embedded("llama-3.2-1b").expect("listed");
        let drafted = ReplicaConfig { draft: Some((&small, DraftKind::Model)), ..base.clone() };
        assert_eq!(draft_kv_bytes_per_token(&drafted, 1), 32_768);
    }

    #[test]
    fn a_layer_that_predicts_takes_its_own_parameters_and_keys_and_no_second_head() {
        // In 16 bits on one tensor group of eight: what the model counts, its product that joins states whole on every GPU.
        let model = engine::model::embedded("deepseek-v3.2").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 2, 8);
        let predicting = model.predicting().expect("one layer");
        let base = ReplicaConfig::new(&model, &cluster, 16);
        let drafted = ReplicaConfig { draft: Some((&predicting, DraftKind::Own)), ..base.clone() };
        let [plain, with] = [&base, &drafted].map(|config| of_room(config, 1 << 40));
        let joins = 2 * model.hidden * model.hidden;
        let layer = predicting.n_parameters() - 2 * model.vocab * model.hidden;
        // Both compressions with their norms, the index, the router and the norms of the layer are whole too.
        let whole = 7168 * (1536 + 512 + 64) + 1536 + 512 + 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128;
        let whole = whole + 7168 * (256 + 2);
        let expected = 2.0 * (hw::real(layer - whole) / 16.0 + hw::real(whole + joins));
        let found = hw::real(with.weights.0 - plain.weights.0);
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} bytes, expected {expected}");
        // Keys and values of one layer more.
        assert_eq!(with.bytes_per_token * model.n_layers, plain.bytes_per_token * (model.n_layers + 1));
        // A checkpoint in 4 bits may have that layer in 16.
        let formats = Formats::weights(Format::Nvfp4, Dtype::Bf16);
        let narrow = Model { formats, predicting_whole: true, ..model.clone() };
        let base = ReplicaConfig { model: &narrow, formats, ..base };
        let drafted = ReplicaConfig { draft: Some((&predicting, DraftKind::Own)), ..base.clone() };
        let [plain, with] = [&base, &drafted].map(|config| of_room(config, 1 << 40));
        let found = hw::real(with.weights.0 - plain.weights.0);
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} bytes, expected {expected}");
    }

    #[test]
    fn sparse_weights_take_two_fifths_at_a_sparsity_of_four_fifths() {
        // 4 bytes for each weight that is kept, 2 for each dense one: 0.4 of the layers' products, the rest as before.
        let model = engine::model::embedded("opt-66b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
        let dense = ReplicaConfig::new(&model, &cluster, 2);
        let sparse = ReplicaConfig { sparse_weights: Some(SparseLayers::all(0.8)), ..dense.clone() };
        let weights = |config: &ReplicaConfig<'_>| super::of(config, 1.0, Bytes::ZERO).expect("fits").weights.as_f64();
        let products = hw::real(model.n_layers * 12 * model.hidden * model.hidden);
        let saved = (weights(&dense) - weights(&sparse)) / products;
        assert!((saved / 0.6 - 1.0).abs() < 5e-3, "{saved} bytes of two per weight and two GPUs");
    }

    #[test]
    fn a_model_that_does_not_fit_is_told_what_would() {
        let why = of_model("llama-3-70b", "a100-sxm-80g", 1, 2.0).expect_err("141 GB of weights").why;
        assert!(why.contains("131.4 GiB of weights") && why.contains("`tp = 2` would fit"), "{why}");
    }

    #[test]
    fn an_encoder_lies_on_the_first_stage() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let cluster = hw::catalog::cluster(&gpu, 1, 8);
        let seeing = engine::model::embedded("qwen2.5-vl-7b").expect("embedded");
        let blind = Model { vision: None, ..seeing.clone() };
        let n = seeing.vision.as_deref().expect("an encoder").n_parameters();
        let of = |model, tensor, split| {
            let config = ReplicaConfig { encoder_split: split, ..ReplicaConfig::new(model, &cluster, tensor) };
            of_room(&config, cluster.gpu.visible().0)
        };
        let more = |tensor, split| of(&seeing, tensor, split).weights.0 - of(&blind, tensor, split).weights.0;
        assert_eq!(more(1, Split::Weights), 2 * n);
        assert_eq!(more(4, Split::Images), 2 * n);
        assert!(more(4, Split::Weights) < 2 * n / 3);
        // An engine that is told to leave it out has neither its weights nor what its images take.
        assert_eq!(more(4, Split::Nothing), 0);
        let told = ReplicaConfig { encoder_split: Split::Nothing, ..ReplicaConfig::new(&seeing, &cluster, 1) };
        assert_eq!(activations(&told, 8192), activations(&ReplicaConfig::new(&blind, &cluster, 1), 8192));
        assert_eq!(of(&seeing, 1, Split::Weights).kv.0 + 2 * n, of(&blind, 1, Split::Weights).kv.0);
        // Behind the first stage there is none, and the first has the least room.
        let staged = ReplicaConfig { pipeline_degree: 2, ..ReplicaConfig::new(&seeing, &cluster, 1) };
        let plain = ReplicaConfig { model: &blind, ..staged.clone() };
        let (with, without) = (of_room(&staged, cluster.gpu.visible().0), of_room(&plain, cluster.gpu.visible().0));
        // Without it the last stage has the least room, as it has the norm of the end.
        assert!((with.weights.0 - without.weights.0).abs_diff(2 * n) < 10_000);
        assert!(activations(&staged, 8192) > activations(&plain, 8192));
    }
}
