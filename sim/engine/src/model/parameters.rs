//! Parameters of a model, by part: mixers, feed-forwards, experts, embedding, head. Units: parameters.
//!
//! Counts are those of the tensors in public checkpoints, but for the bias with which a router selects experts (one number per expert).

use super::{
    FeedForward, LatentAttention, Layer, LinearAttention, LinearRule, Mixer, Model, Norms, QueryKeyNorm, StateSpace,
    Streams,
};

impl LatentAttention {
    fn parameters(&self, hidden: u64, n_heads: u64) -> u64 {
        let query = n_heads * (self.nope_dim + self.rope_dim);
        let queries = self.q_rank.unwrap_or(hidden) * query;
        let expanded = self.kv_rank * n_heads * (self.nope_dim + self.value_dim);
        self.compressing_parameters(hidden) + queries + expanded + n_heads * self.value_dim * hidden
    }

    /// What compresses queries, keys and values, with the norms behind it.
    pub(super) fn compressing_parameters(&self, hidden: u64) -> u64 {
        let keys = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank;
        self.q_rank.map_or(0, |rank| rank * hidden + rank) + keys
    }
}

impl LinearAttention {
    /// Width of all queries, or of all keys.
    pub const fn key_width(&self) -> u64 {
        self.n_key_heads * self.key_dim
    }

    /// Width of all values.
    pub const fn value_width(&self) -> u64 {
        self.n_value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub const fn channels(&self) -> u64 {
        2 * self.key_width() + self.value_width()
    }

    /// Columns of the projections in front: queries, keys, values, the gate, and two numbers per value head. With gates of a rank: both of their first
    /// factors, and one number. Lightning attention has the gate alone.
    pub const fn projected(&self) -> u64 {
        self.channels()
            + match self.rule {
                LinearRule::Delta => self.value_width() + 2 * self.n_value_heads,
                LinearRule::Channels { rank } => 2 * rank + self.n_value_heads,
                LinearRule::Lightning => self.value_width(),
            }
    }

    /// Numbers of state that a sequence keeps.
    pub const fn state(&self) -> u64 {
        self.n_value_heads * self.key_dim * self.value_dim
    }

    /// The projections, the convolution, decay and step of each head, the norm of a head. With gates of a rank: their second factors, and a step of each
    /// channel of the keys. Lightning attention has a norm over all heads.
    const fn parameters(&self, hidden: u64) -> u64 {
        let convolution = self.channels() * self.kernel;
        hidden * (self.projected() + self.value_width())
            + match self.rule {
                LinearRule::Delta => convolution + 2 * self.n_value_heads + self.value_dim,
                LinearRule::Channels { rank } => {
                    let seconds = rank * (self.value_width() + self.key_width());
                    seconds + convolution + self.n_value_heads + self.key_width() + self.value_dim
                }
                LinearRule::Lightning => self.value_width(),
            }
    }
}

impl StateSpace {
    /// Width of all heads.
    pub const fn width(&self) -> u64 {
        self.n_heads * self.head_dim
    }

    /// Channels of the convolution: the heads, and what goes into the state and comes out of it.
    pub const fn channels(&self) -> u64 {
        self.width() + 2 * self.n_groups * self.state
    }

    /// Columns of the projection in front: those channels, the gate, and a step per head.
    pub const fn projected(&self) -> u64 {
        self.channels() + self.width() + if self.step_rank.is_some() { 0 } else { self.n_heads }
    }

    /// Columns of the projection behind the convolution of Mamba-1: steps of a rank, and what goes into the state and comes out of it.
    pub const fn stepped(&self, rank: u64) -> u64 {
        rank + 2 * self.state
    }

    /// Numbers of state that a sequence keeps.
    pub const fn kept(&self) -> u64 {
        self.width() * self.state
    }

    /// The projections, the convolution with its bias, three numbers per head, the norm. In Mamba-1: the projections of steps with a bias, decays of all
    /// states, a number per channel, and norms of what the second projection gives.
    const fn parameters(&self, hidden: u64) -> u64 {
        let around = hidden * (self.projected() + self.width()) + self.channels() * (self.kernel + 1);
        let norm = if self.normed { self.width() } else { 0 };
        match self.step_rank {
            Some(rank) => around + self.width() * (self.stepped(rank) + rank + self.state + 2) + self.stepped(rank),
            None => around + 3 * self.n_heads + norm,
        }
    }
}

impl Model {
    /// Parameters of attention to all tokens in one layer.
    #[cfg(test)]
    pub fn attention_parameters(&self) -> u64 {
        self.attention_of(Mixer::Full)
    }

    /// Parameters of attention in one layer, without an index.
    fn attention_of(&self, mixer: Mixer) -> u64 {
        if let Some(latent) = &self.latent {
            return latent.parameters(self.hidden, self.n_heads);
        }
        let heads = self.heads(mixer);
        let (query, projected) = (heads.query_width(), heads.projected_width());
        let kept = if matches!(mixer, Mixer::Reused(_)) { 0 } else { projected };
        let biases = if self.qkv_bias { query + kept } else { 0 };
        let output_bias = if self.output_bias { self.hidden } else { 0 };
        let sinks = if heads.sinks { heads.n } else { 0 };
        let norms = match self.qk_norm {
            QueryKeyNorm::Off | QueryKeyNorm::Head => self.head_norm_parameters(mixer),
            QueryKeyNorm::Whole => query + self.kv_width(),
        };
        let ranked = self.ranked_parameters(query);
        self.hidden * (self.query_columns(mixer) + kept + heads.mixed_width())
            + ranked
            + biases
            + norms
            + output_bias
            + sinks
    }

    /// Parameters of the norms over each head of queries, and of keys where a layer makes its own.
    pub(super) fn head_norm_parameters(&self, mixer: Mixer) -> u64 {
        let has_own = self.latent.is_none() && self.compressed.is_none() && mixer.attends();
        if self.qk_norm != QueryKeyNorm::Head || !has_own {
            return 0;
        }
        self.heads(mixer).key_dim * if matches!(mixer, Mixer::Reused(_)) { 1 } else { 2 }
    }

    /// Parameters of the norms of a layer that no tensor group cuts: those around mixer and feed-forward, and those over each head.
    pub fn whole_norm_parameters(&self, layer: Layer) -> u64 {
        self.norm_parameters(layer) + self.head_norm_parameters(layer.mixer)
    }

    /// Parameters of what mixes the tokens of a layer.
    pub fn mixer_parameters(&self, layer: Layer) -> u64 {
        let index = self.index.filter(|_| layer.mixer.has_index());
        let q_rank = self.latent.and_then(|latent| latent.q_rank).unwrap_or(self.hidden);
        let state_space = self.state_space.map_or(0, |space| space.parameters(self.hidden));
        match (layer.mixer, self.compressed) {
            (mixer, Some(compressed)) if mixer.attends() => self.compressed_parameters(compressed, mixer),
            (Mixer::Joint, _) => self.attention_of(layer.mixer) + state_space,
            (mixer, _) if mixer.attends() => {
                self.attention_of(mixer) + index.map_or(0, |index| index.parameters(self.hidden, q_rank))
            }
            (Mixer::Linear, _) => self.linear.map_or(0, |linear| linear.parameters(self.hidden)),
            (Mixer::StateSpace, _) => state_space,
            (Mixer::Convolution, _) => self.hidden * (4 * self.hidden + self.convolution.unwrap_or(0)),
            _ => 0,
        }
    }

    /// Width of what mixing the tokens of a layer gives, in front of the output projection.
    pub fn mixed_width(&self, mixer: Mixer) -> u64 {
        match (mixer, self.linear, self.state_space) {
            (Mixer::Linear, Some(linear), _) => linear.value_width(),
            (Mixer::StateSpace, _, Some(space)) => space.width(),
            (Mixer::Convolution, _, _) => self.hidden,
            _ => self.latent.map_or(self.heads(mixer).mixed_width(), |latent| self.n_heads * latent.value_dim),
        }
    }

    /// Parameters of the projection behind what mixes the tokens of a layer.
    pub fn output_parameters(&self, layer: Layer) -> u64 {
        if layer.mixer == Mixer::Off { 0 } else { self.hidden * self.mixed_width(layer.mixer) }
    }

    /// Parameters of a feed-forward from so wide tokens to them.
    const fn feed_forward_parameters(&self, hidden: u64, intermediate: u64) -> u64 {
        let matrices = if self.gated { 3 } else { 2 };
        let biases = if self.learned_positions { intermediate + hidden } else { 0 };
        matrices * hidden * intermediate + biases
    }

    /// Parameters of the norms of a layer.
    pub(super) fn norm_parameters(&self, layer: Layer) -> u64 {
        let n_blocks = n_blocks(layer);
        let n_norms = match self.norms {
            _ if self.streams.is_some_and(Streams::replaces_norms) => 0,
            Norms::Each => n_blocks,
            Norms::Around => 2 * n_blocks,
            Norms::Shared => 1,
        };
        n_norms * if self.learned_positions { 2 * self.hidden } else { self.hidden }
    }

    /// Parameters that mix the streams of a layer and bring its own inputs.
    fn stream_parameters(&self, layer: Layer) -> u64 {
        let streams = self.streams.map_or(0, |streams| streams.layer_parameters(self.hidden, n_blocks(layer)));
        streams + self.layer_inputs.map_or(0, |inputs| inputs.layer_parameters(self.hidden))
    }

    /// Width of the dense feed-forward of a layer.
    pub const fn dense_intermediate(&self, mixer: Mixer) -> u64 {
        let is_wide = self.wide_reusing && matches!(mixer, Mixer::Reused(_));
        if is_wide { 2 * self.intermediate } else { self.intermediate }
    }

    /// Parameters of a layer's dense feed-forward, or of its shared experts and the projections around the routed ones.
    pub fn dense_parameters(&self, layer: Layer) -> u64 {
        match (layer.feed_forward, self.experts) {
            (FeedForward::Off, _) => 0,
            (FeedForward::Experts, Some(experts)) => {
                let shared = match experts.shared_intermediate {
                    0 => 0,
                    width => self.feed_forward_parameters(self.hidden, width),
                };
                shared + self.latent_projections(layer)
            }
            _ => self.feed_forward_parameters(self.hidden, self.dense_intermediate(layer.mixer)),
        }
    }

    /// Parameters of the projections around the routed experts of a layer. No tensor group cuts them (Megatron-Core `MoELayer`: `TELinear` with
    /// `parallel_mode="duplicated"`; vLLM `NemotronHMoE`: `ReplicatedLinear`).
    pub fn latent_projections(&self, layer: Layer) -> u64 {
        let latent = self.experts.filter(|_| layer.has_experts()).and_then(|experts| experts.latent);
        latent.map_or(0, |latent| 2 * self.hidden * latent)
    }

    /// Parameters that decide which experts a token visits, and how much the shared ones count.
    pub(super) fn router_parameters(&self, layer: Layer) -> u64 {
        let Some(experts) = self.experts.filter(|_| layer.has_experts()) else { return 0 };
        let gate = if experts.shared_gate { self.hidden } else { 0 };
        let bias = if experts.biased { experts.n_routed } else { 0 };
        // Three norms around both kinds of experts, and scales of what enters the router and of what each expert gives.
        let normed = if experts.normed { 4 * self.hidden + experts.n_routed } else { 0 };
        self.hidden * (experts.n_routed + experts.n_zero) + bias + gate + normed
    }

    /// Parameters of a layer that every tensor group holds once: mixer, norms, and the dense feed-forward or, with experts, what is around
    /// them.
    pub fn shared_layer_parameters(&self, layer: Layer) -> u64 {
        let feed_forward = self.dense_parameters(layer) + self.router_parameters(layer);
        self.mixer_parameters(layer) + self.norm_parameters(layer) + self.stream_parameters(layer) + feed_forward
    }

    /// The same of all layers from `first` to before `end`.
    pub fn shared_parameters(&self, first: u64, end: u64) -> u64 {
        self.kinds(first, end).into_iter().map(|(kind, n)| n * self.shared_layer_parameters(kind)).sum()
    }

    /// Some count of parameters of a layer, on average over those with experts, or over those without.
    pub fn mean(&self, with_experts: bool, count: impl Fn(&Self, Layer) -> u64) -> f64 {
        let (mut n_layers, mut parameters) = (0, 0);
        for (kind, n) in self.kinds(0, self.n_layers) {
            if kind.has_experts() == with_experts {
                n_layers += n;
                parameters += n * count(self, kind);
            }
        }
        if n_layers == 0 { 0.0 } else { hw::real(parameters) / hw::real(n_layers) }
    }

    /// Parameters of one routed expert of a layer; 0 without experts.
    pub fn expert_parameters(&self) -> u64 {
        self.experts.map_or(0, |experts| {
            let hidden = experts.latent.unwrap_or(self.hidden);
            let into = if self.gated { 2 * experts.intermediate } else { experts.intermediate };
            let biases = if experts.biased { into + hidden } else { 0 };
            self.feed_forward_parameters(hidden, experts.intermediate) + biases
        })
    }

    /// Parameters of all layers where each routed layer counts `n_experts` routed experts.
    fn layer_parameters(&self, n_experts: u64) -> u64 {
        let routed = self.n_expert_layers() * n_experts * self.expert_parameters();
        self.shared_parameters(0, self.n_layers) + routed
    }

    /// Parameters of the embedding table and the learned positions, and of what makes streams and inputs of layers.
    pub fn first_stage_parameters(&self) -> u64 {
        let streams = self.streams.map_or(0, |streams| streams.first_parameters(self.hidden));
        let inputs = self.layer_inputs.map_or(0, |inputs| inputs.first_parameters(self.hidden, self.n_layers));
        self.vocab * self.hidden + self.position_parameters() + streams + inputs
    }

    /// Parameters of the table of learned positions, which no tensor group cuts (Megatron-Core `LanguageModelEmbedding`, vLLM `OPTLearnedPositionalEmbedding`).
    pub const fn position_parameters(&self) -> u64 {
        if self.learned_positions { self.max_positions * self.hidden } else { 0 }
    }

    /// Parameters of the final norm, of what joins streams, and of the head, which a tied model shares with the embedding.
    pub fn last_stage_parameters(&self, shares_embedding: bool) -> u64 {
        let streams = self.streams.map_or(0, |streams| streams.last_parameters(self.hidden));
        let head = if self.tied && shares_embedding { 0 } else { self.vocab * self.hidden };
        self.final_norm_parameters() + streams + head
    }

    /// Parameters of the norm in front of the head.
    pub fn final_norm_parameters(&self) -> u64 {
        let n_norms = match (self.learned_positions, self.streams) {
            (true, _) => 2,
            (false, Some(streams)) if streams.replaces_norms() => 0,
            _ => 1,
        };
        n_norms * self.hidden
    }

    /// Parameters outside the layers.
    pub fn embedding_parameters(&self) -> u64 {
        self.first_stage_parameters() + self.last_stage_parameters(true)
    }

    /// Parameters of the whole model, without the layers that predict tokens further on and without an encoder of images.
    pub fn n_parameters(&self) -> u64 {
        self.layer_parameters(self.experts.map_or(0, |experts| experts.n_routed)) + self.embedding_parameters()
    }

    /// Parameters that one token uses.
    pub fn active_parameters(&self) -> u64 {
        self.layer_parameters(self.experts.map_or(0, |experts| experts.top_k)) + self.embedding_parameters()
    }

    /// The layer that predicts a token further on: what its type says, else attention to all tokens, or to selected ones where the model has it, and experts
    /// where the last layer with a feed-forward has them. One of a model with compressed attention has the window alone (DeepSeek-V4's `compress_ratios` end with its 0).
    pub(super) fn layer_that_predicts(&self) -> Layer {
        if let Some(layer) = self.predicting_layer {
            return layer;
        }
        let of_kind = |layer: Layer| match layer.mixer {
            Mixer::Compressed { window, .. } => Some(Mixer::Window(window)),
            Mixer::Selected(_) => Some(layer.mixer),
            _ => None,
        };
        let plain = if self.n_expert_layers() > 0 { Layer::EXPERTS } else { Layer::DENSE };
        Layer { mixer: self.layers.kinds().into_iter().find_map(of_kind).unwrap_or(plain.mixer), ..plain }
    }

    /// Parameters of all layers that predict tokens further on: each joins the last state with the next token's embedding, both normed,
    /// and shares embedding and head with the model (arXiv:2412.19437, section 2.2).
    #[cfg(test)]
    pub fn predicting_parameters(&self) -> u64 {
        let layer = self.layer_that_predicts();
        let experts = self.experts.map_or(0, |experts| experts.n_routed * self.expert_parameters());
        let joins = 2 * self.hidden * self.hidden + 3 * self.hidden;
        let of_layer = self.shared_layer_parameters(layer) + if layer.has_experts() { experts } else { 0 };
        self.n_predicting * (of_layer + joins)
    }

    /// A layer that predicts a token further on, as a model that drafts: without embedding and head of its own.
    pub fn predicting(&self) -> Option<Self> {
        (self.n_predicting > 0).then(|| Self {
            name: format!("{}'s own prediction", self.name),
            n_layers: 1,
            layers: super::Pattern::uniform(self.layer_that_predicts()),
            n_predicting: 0,
            vision: None,
            packed: None,
            unpriced: Vec::new(),
            ..self.clone()
        })
    }
}

/// Parts of a layer: a mixer and a feed-forward.
fn n_blocks(layer: Layer) -> u64 {
    u64::from(layer.mixer != Mixer::Off) + u64::from(layer.feed_forward != FeedForward::Off)
}

#[cfg(test)]
mod tests {
    use crate::model::{Mixer, embedded};

    fn billions(n: u64) -> f64 {
        hw::real(n) / 1e9
    }

    /// Published totals in billions with their margin, and active parameters. Publishers count embedding and head among the active ones or
    /// not, so those lie between the counts with and without.
    fn check(name: &str, total: (f64, f64), active: (f64, f64)) {
        let model = embedded(name).expect(name);
        let (found, with) = (billions(model.n_parameters()), billions(model.active_parameters()));
        let without = with - billions(model.embedding_parameters());
        println!("{name}: {found:.3} B of {}, active {without:.3} to {with:.3} B of {}", total.0, active.0);
        assert!((found - total.0).abs() <= total.1, "{name}: {found} B, published are {} B", total.0);
        let margin = without - active.1..=with + active.1;
        assert!(margin.contains(&active.0), "{name}: {without} to {with} B active, published are {} B", active.0);
    }

    #[test]
    fn published_counts_of_models_with_layers_of_their_own_are_met() {
        // Model card of gpt-oss, arXiv:2508.10925, table 1.
        check("gpt-oss-120b", (116.83, 0.005), (5.13, 0.005));
        check("gpt-oss-20b", (20.91, 0.006), (3.61, 0.005));
        // arXiv:2412.19437, abstract; arXiv:2507.20534, table 2.
        check("deepseek-r1", (671.0, 0.5), (37.0, 0.5));
        check("kimi-k2", (1026.0, 1.0), (32.6, 0.5));
        check("kimi-k2.5", (1026.0, 1.0), (32.6, 0.5));
        // Model cards: MiniMaxAI/MiniMax-M2, zai-org/GLM-5, Qwen/Qwen3-Next-80B-A3B, Qwen/Qwen3.5-397B-A17B, meta-llama/Llama-4-Maverick.
        check("minimax-m2", (230.0, 2.0), (10.0, 0.05));
        check("glm-5", (744.0, 1.0), (40.0, 0.5));
        check("qwen3-next-80b-a3b", (80.0, 1.0), (3.0, 0.5));
        check("qwen3.5-397b-a17b", (396.5, 0.5), (17.0, 0.5));
        check("qwen3.5-27b", (27.0, 0.5), (27.0, 0.5));
        check("llama-4-maverick", (400.0, 1.5), (17.0, 0.5));
        // arXiv:2504.03624, table 1 and abstract; arXiv:2512.20848, table 1.
        check("nemotron-h-56b", (56.0, 0.6), (56.0, 0.6));
        check("nemotron-3-nano-30b-a3b", (31.6, 0.05), (3.6, 0.05));
        // Model cards: deepseek-ai/DeepSeek-V4-Flash and -Pro, XiaomiMiMo/MiMo-V2-Flash, google/gemma-4-26B-A4B and -31B.
        check("deepseek-v4-flash", (284.0, 0.5), (13.0, 0.5));
        check("deepseek-v4-pro", (1600.0, 50.0), (49.0, 0.5));
        check("mimo-v2-flash", (309.0, 1.0), (15.0, 0.5));
        check("gemma-4-26b-a4b", (25.2, 0.1), (3.8, 0.1));
        check("gemma-4-31b", (30.7, 0.1), (30.7, 0.1));
        // arXiv:2509.01322, abstract; arXiv:2403.19887, section 3.1.
        check("longcat-flash", (560.0, 3.0), (27.0, 1.0));
        check("jamba-v0.1", (52.0, 0.5), (12.0, 0.5));
    }

    #[test]
    fn gemma_has_the_parameters_of_its_report() {
        // arXiv:2503.19786, table 1: 1,416 M of embedding and 25,600 M besides.
        let model = embedded("gemma-3-27b").expect("embedded");
        let outside = billions(model.first_stage_parameters());
        assert!((outside - 1.416).abs() < 0.008, "{outside} B");
        let inside = billions(model.n_parameters() - model.first_stage_parameters());
        assert!((inside - 25.6).abs() < 0.05, "{inside} B");
    }

    #[test]
    fn a_layer_that_predicts_is_as_large_as_published() {
        // DeepSeek-V3's README: 685 B on the hub, 671 B of the model and 14 B of its multi-token module with embedding and head of its own.
        let model = embedded("deepseek-v3.2").expect("embedded");
        let own = billions(model.predicting_parameters() + 2 * model.vocab * model.hidden);
        assert!((13.0..14.2).contains(&own), "{own} B");
        let drafting = model.predicting().expect("one layer");
        assert_eq!((drafting.n_layers, drafting.n_predicting), (1, 0));
    }

    #[test]
    fn layers_that_predict_are_what_their_models_publish() {
        let of = |name: &str| {
            let model = embedded(name).expect(name);
            let layer = model.predicting().expect(name).layers.layer(0);
            let each = hw::real(model.predicting_parameters()) / hw::real(model.n_predicting);
            (model.n_predicting, layer.mixer, layer.has_experts(), each)
        };
        // Model card of XiaomiMiMo/MiMo-V2-Flash: three blocks of 0.33 B with a dense feed-forward and a window.
        let (n, mixer, experts, each) = of("mimo-v2-flash");
        assert_eq!((n, mixer, experts), (3, Mixer::Window(129), false));
        assert!((each / 0.33e9 - 1.0).abs() < 0.02, "{each}");
        // The three layers of Step-3.7-Flash alone have 5.92 GB in 16 bits, with an embedding and a head each (Hikari07jp/Step-3.7-Flash-MTP-draft).
        let (n, mixer, experts, each) = of("step-3.5-flash");
        assert_eq!((n, mixer, experts), (3, Mixer::Window(512), false));
        let tables = hw::real(4 * 128_896 * 4096_u64);
        assert!((2.0 * (3.0 * each + tables) / 5.92e9 - 1.0).abs() < 0.002, "{each}");
        // `longcat_flash_mtp.py` of vllm-project/vllm: latent attention and a dense feed-forward of 12,288, without experts.
        let (n, mixer, experts, each) = of("longcat-flash");
        assert_eq!((n, mixer, experts), (1, Mixer::Full, false));
        let longcat = embedded("longcat-flash").expect("embedded");
        let dense = longcat.attention_parameters() + 3 * 6144 * 12_288 + 2 * 6144 * 6144 + 5 * 6144;
        assert_eq!(each.to_bits(), hw::real(dense).to_bits());
        // `qwen3_next_mtp.py` and `nemotron_h_mtp.py` (`*E`): attention to all tokens and experts.
        for name in ["qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b"] {
            let (n, mixer, experts, _) = of(name);
            assert_eq!((n, mixer, experts), (1, Mixer::Full, true), "{name}");
        }
    }
}
