//! Parameters of a model, by part: mixers, feed-forwards, experts, embedding, head. Units: parameters.
//!
//! Counts are those of the tensors in public checkpoints, but for the bias with which a router selects experts (one number per expert).

use super::{
    FeedForward, Index, LatentAttention, Layer, LinearAttention, Mixer, Model, Norms, QueryKeyNorm, StateSpace,
};

impl Index {
    /// Projections of its queries from the compressed query, of its key and of the heads' weights, and the norm of the key with its bias.
    const fn parameters(self, hidden: u64, q_rank: u64) -> u64 {
        let queries = q_rank * self.n_heads * self.head_dim;
        queries + hidden * (self.head_dim + self.n_heads) + 2 * self.head_dim
    }
}

impl LatentAttention {
    fn parameters(&self, hidden: u64, n_heads: u64) -> u64 {
        let query = n_heads * (self.nope_dim + self.rope_dim);
        let queries = self.q_rank.map_or(hidden * query, |rank| rank * (hidden + query) + rank);
        let compressed = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank;
        let expanded = self.kv_rank * n_heads * (self.nope_dim + self.value_dim);
        let index = self.index.map_or(0, |index| index.parameters(hidden, self.q_rank.unwrap_or(hidden)));
        queries + compressed + expanded + n_heads * self.value_dim * hidden + index
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
    /// factors, and one number.
    pub fn projected(&self) -> u64 {
        let gates = self.gate_rank.map_or(self.value_width() + self.n_value_heads, |rank| 2 * rank);
        self.channels() + gates + self.n_value_heads
    }

    /// Numbers of state that a sequence keeps.
    pub const fn state(&self) -> u64 {
        self.n_value_heads * self.key_dim * self.value_dim
    }

    /// The projections, the convolution, decay and step of each head, the norm of a head. With gates of a rank: their second factors, and a step of each
    /// channel of the keys.
    fn parameters(&self, hidden: u64) -> u64 {
        let seconds = self.gate_rank.map_or(0, |rank| rank * (self.value_width() + self.key_width()));
        let steps = self.gate_rank.map_or(self.n_value_heads, |_| self.key_width());
        let heads = self.n_value_heads + steps + self.value_dim;
        hidden * (self.projected() + self.value_width()) + seconds + self.channels() * self.kernel + heads
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
        self.channels() + self.width() + self.n_heads
    }

    /// Numbers of state that a sequence keeps.
    pub const fn kept(&self) -> u64 {
        self.width() * self.state
    }

    /// The projections, the convolution with its bias, three numbers per head, the norm.
    const fn parameters(&self, hidden: u64) -> u64 {
        let convolution = self.channels() * (self.kernel + 1);
        hidden * (self.projected() + self.width()) + convolution + 3 * self.n_heads + self.width()
    }
}

impl Model {
    /// Parameters of attention in one layer.
    pub fn attention_parameters(&self) -> u64 {
        if let Some(latent) = &self.latent {
            return latent.parameters(self.hidden, self.n_heads);
        }
        let query = self.n_heads * self.head_dim;
        let gate = if self.output_gate { query } else { 0 };
        let biases = if self.qkv_bias { query + 2 * self.kv_width() } else { 0 };
        let output_bias = if self.output_bias { self.hidden } else { 0 };
        let sinks = if self.sinks { self.n_heads } else { 0 };
        let norms = match self.qk_norm {
            QueryKeyNorm::Off => 0,
            QueryKeyNorm::Head => 2 * self.head_dim,
            QueryKeyNorm::Whole => query + self.kv_width(),
        };
        self.hidden * (gate + query + 2 * self.kv_width()) + query * self.hidden + biases + norms + output_bias + sinks
    }

    /// Parameters of what mixes the tokens of a layer.
    pub fn mixer_parameters(&self, layer: Layer) -> u64 {
        match layer.mixer {
            Mixer::Full | Mixer::Window(_) | Mixer::Chunked(_) | Mixer::Selected(_) => self.attention_parameters(),
            Mixer::Linear => self.linear.map_or(0, |linear| linear.parameters(self.hidden)),
            Mixer::StateSpace => self.state_space.map_or(0, |space| space.parameters(self.hidden)),
            Mixer::Off => 0,
        }
    }

    /// Parameters of a feed-forward from so wide tokens to them.
    const fn feed_forward_parameters(&self, hidden: u64, intermediate: u64) -> u64 {
        let matrices = if self.gated { 3 } else { 2 };
        let biases = if self.learned_positions { intermediate + hidden } else { 0 };
        matrices * hidden * intermediate + biases
    }

    /// Parameters of the norms of a layer.
    fn norm_parameters(&self, layer: Layer) -> u64 {
        let n_blocks = u64::from(layer.mixer != Mixer::Off) + u64::from(layer.feed_forward != FeedForward::Off);
        let n_norms = match self.norms {
            Norms::Each => n_blocks,
            Norms::Around => 2 * n_blocks,
            Norms::Shared => 1,
        };
        n_norms * if self.learned_positions { 2 * self.hidden } else { self.hidden }
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
                shared + experts.latent.map_or(0, |latent| 2 * self.hidden * latent)
            }
            _ => self.feed_forward_parameters(self.hidden, self.intermediate),
        }
    }

    /// Parameters that decide which experts a token visits, and how much the shared ones count.
    fn router_parameters(&self, layer: Layer) -> u64 {
        let Some(experts) = self.experts.filter(|_| layer.has_experts()) else { return 0 };
        let gate = if experts.shared_gate { self.hidden } else { 0 };
        let bias = if experts.biased { experts.n_routed } else { 0 };
        self.hidden * experts.n_routed + bias + gate
    }

    /// Parameters of a layer that every tensor group holds once: mixer, norms, and the dense feed-forward or, with experts, what is around
    /// them.
    pub fn shared_layer_parameters(&self, layer: Layer) -> u64 {
        let feed_forward = self.dense_parameters(layer) + self.router_parameters(layer);
        self.mixer_parameters(layer) + self.norm_parameters(layer) + feed_forward
    }

    /// The same of all layers from `first` to before `end`.
    pub fn shared_parameters(&self, first: u64, end: u64) -> u64 {
        self.kinds(first, end).into_iter().map(|(kind, n)| n * self.shared_layer_parameters(kind)).sum()
    }

    /// Some count of parameters of a layer, on average over those with experts, or over those without.
    pub fn mean(&self, with_experts: bool, count: fn(&Self, Layer) -> u64) -> f64 {
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

    /// Parameters of the embedding table and the learned positions.
    pub const fn first_stage_parameters(&self) -> u64 {
        let positions = if self.learned_positions { self.max_positions } else { 0 };
        (self.vocab + positions) * self.hidden
    }

    /// Parameters of the final norm and of the head, which a tied model shares with the embedding.
    pub const fn last_stage_parameters(&self, shares_embedding: bool) -> u64 {
        let norm = if self.learned_positions { 2 } else { 1 } * self.hidden;
        norm + if self.tied && shares_embedding { 0 } else { self.vocab * self.hidden }
    }

    /// Parameters outside the layers.
    pub const fn embedding_parameters(&self) -> u64 {
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

    /// The layer that predicts a token further on: attention to all tokens, and experts where the last layer with a feed-forward has them.
    fn predicting_layer(&self) -> Layer {
        if self.n_expert_layers() > 0 { Layer::EXPERTS } else { Layer::DENSE }
    }

    /// Parameters of all layers that predict tokens further on: each joins the last state with the next token's embedding, both normed,
    /// and shares embedding and head with the model (arXiv:2412.19437, section 2.2).
    pub fn predicting_parameters(&self) -> u64 {
        let layer = self.predicting_layer();
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
            layers: super::Pattern::uniform(self.predicting_layer()),
            n_predicting: 0,
            vision: None,
            unpriced: Vec::new(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::model::embedded;

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
}
