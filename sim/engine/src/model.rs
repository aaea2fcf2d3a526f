//! Architecture of a model: layers, widths, heads, experts. Parameters, operations and bytes are derived, never stored.
//!
//! Units: counts and elements. Read from a Hugging Face `config.json` (`model/config.rs`) or embedded by name
//! (`model/embedded.rs`). Invariant: widths and counts are positive and heads divide evenly.

mod attending;
mod blocks;
pub mod checkpoint_formats;
mod checkpoints;
mod config;
mod draft_head;
mod embedded;
mod layers;
mod parameters;
mod predicting;
mod streams;
mod style;
mod unpriced;
mod vision;

pub use attending::{CompressedAttention, Heads, HeadsByLayer, Index, IndexMade, OutputGate};
pub use blocks::{BLOCK, BlockCut};
pub use checkpoint_formats::{last_part, narrow_checkpoint};
pub use checkpoints::{known_names, of_checkpoint, of_name};
pub use draft_head::DraftHead;
pub use embedded::{embedded, embedded_models, embedded_names};
pub use layers::{FeedForward, Layer, Mixer, Pattern};
pub use streams::{LayerInputs, Streams};
pub use style::{Activation, Norm, Positions, Style};
pub use unpriced::Unpriced;
pub use vision::{Grid, Image, NoImage, SIDE_MAX, Squares, Tower, VisionEncoder};

use crate::formats::Formats;
use crate::frozen::Frozen;

/// Latent attention of DeepSeek-V2/V3 (arXiv:2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Rank of the compressed query; `None` where queries are not compressed.
    pub q_rank: Option<u64>,
    /// Rank of the compressed key and value.
    pub kv_rank: u64,
    /// Width of a head's part without rotary position.
    pub nope_dim: u64,
    /// Width of the part with rotary position, shared by all heads.
    pub rope_dim: u64,
    /// Width of a value head.
    pub value_dim: u64,
}

impl LatentAttention {
    /// Width of a head of queries and of keys.
    pub const fn key_dim(&self) -> u64 {
        self.nope_dim + self.rope_dim
    }

    /// Width of a head that has as many products as scores over such keys and sums over such values.
    pub const fn mean_dim(&self) -> u64 {
        u64::midpoint(self.key_dim(), self.value_dim)
    }
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts per layer.
    pub n_routed: u64,
    /// Routed experts that a token visits: on average, where it may choose some that compute nothing.
    pub top_k: u64,
    /// Experts that a router chooses among besides and that compute nothing (LongCat-Flash, arXiv:2509.01322).
    pub n_zero: u64,
    /// Intermediate width of one expert.
    pub intermediate: u64,
    /// Intermediate width of all experts together that every token visits.
    pub shared_intermediate: u64,
    /// Whether a gate of one number per token weighs the shared experts (Qwen).
    pub shared_gate: bool,
    /// Whether routed and shared experts have norms of their own, and the router scales (Gemma 4).
    pub normed: bool,
    /// Width to which tokens are projected for the routed experts and back behind them; `None` where they are not (Nemotron 3).
    pub latent: Option<u64>,
    /// Whether router and experts have biases (gpt-oss).
    pub biased: bool,
    /// Whether what enters the experts' activation function is clamped (gpt-oss).
    pub clamped: bool,
    /// Whether engines multiply by the router in 32-bit floats (MiniMax-M2).
    pub fp32_router: bool,
    /// Groups of experts that a router chooses among first; 1 where it does not.
    pub n_groups: u64,
    /// Groups of them that a token chooses.
    pub groups_of_token: u64,
    /// Whether a bias for every expert balances their load (DeepSeek-V3, arXiv:2408.15664).
    pub balanced: bool,
}

impl Experts {
    /// Experts without anything besides.
    pub const fn plain(n_routed: u64, top_k: u64, intermediate: u64) -> Self {
        Self {
            n_routed,
            top_k,
            n_zero: 0,
            intermediate,
            shared_intermediate: 0,
            shared_gate: false,
            normed: false,
            latent: None,
            biased: false,
            clamped: false,
            fp32_router: false,
            n_groups: 1,
            groups_of_token: 1,
            balanced: false,
        }
    }
}

/// What linear attention does with the state of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearRule {
    /// Gated delta net (arXiv:2412.06464): one decay of a head, and a delta rule.
    Delta,
    /// Kimi delta attention (arXiv:2510.26692): a decay of each channel of the keys, and a gate, each of such a rank.
    Channels {
        /// Rank of both.
        rank: u64,
    },
    /// Lightning attention (arXiv:2501.08313): a fixed decay of a head, without convolution and delta rule.
    Lightning,
}

/// Linear attention: each value head keeps a matrix of key width times value width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttention {
    /// Heads of queries and of keys.
    pub n_key_heads: u64,
    /// Heads of values.
    pub n_value_heads: u64,
    /// Width of a key.
    pub key_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
    /// Tokens that the convolution in front sees.
    pub kernel: u64,
    /// Bytes of a number of state.
    pub state_bytes: u64,
    /// What it does with the state.
    pub rule: LinearRule,
}

/// Mamba-2 (arXiv:2405.21060): each head keeps a matrix of its width times the state. In Mamba-1 each channel is a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpace {
    /// Heads.
    pub n_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Groups of heads that share what goes into the state and comes out of it.
    pub n_groups: u64,
    /// Numbers of state per channel.
    pub state: u64,
    /// Tokens that the convolution in front sees.
    pub kernel: u64,
    /// Bytes of a number of state.
    pub state_bytes: u64,
    /// Whether a norm stands in front of the last projection.
    pub normed: bool,
    /// Mamba-1 (arXiv:2312.00752): rank of the steps of all channels, which a projection behind the convolution makes with what goes into the state and
    /// comes out of it; `None` in Mamba-2.
    pub step_rank: Option<u64>,
}

/// How queries and keys are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// They are not, or without weights (Llama 4).
    Off,
    /// Each head by itself, all heads with the same weights (Qwen3, Gemma 3).
    Head,
    /// All heads together (MiniMax).
    Whole,
}

/// Norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// One in front of the mixer and one in front of the feed-forward, or one behind each (OLMo 2).
    Each,
    /// One in front of both and one behind both (Gemma 2 and 3, GLM-4).
    Around,
    /// One in front of mixer and feed-forward, which run side by side (Command R, Phi-2).
    Shared,
}

/// Matrices of one input that a checkpoint holds as one, and that the model's own code multiplies by at once (huggingface/transformers, `modeling_<type>.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Queries, keys and values (`qkv_proj`, `query_key_value`, `c_attn`, `Wqkv`).
    pub queries: bool,
    /// Gate and up-projection (`gate_up_proj`).
    pub factors: bool,
}

impl Joined {
    /// Each matrix by itself.
    pub const NONE: Self = Self { queries: false, factors: false };
    /// Queries, keys and values alone.
    pub const QUERIES: Self = Self { queries: true, factors: false };
    /// Gate and up-projection alone.
    pub const FACTORS: Self = Self { queries: false, factors: true };
    /// Both.
    pub const BOTH: Self = Self { queries: true, factors: true };
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name for people, for example `qwen2.5-0.5b`.
    pub name: String,
    /// Transformer layers.
    pub n_layers: u64,
    /// What they are.
    pub layers: Pattern,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub n_heads: u64,
    /// Key-value heads.
    pub n_kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Intermediate width of the dense feed-forward.
    pub intermediate: u64,
    /// Whether the feed-forward is gated (three matrices instead of two).
    pub gated: bool,
    /// Matrices of one input that its checkpoints hold as one.
    pub joined: Joined,
    /// Rows of the embedding table.
    pub vocab: u64,
    /// Whether the output head shares the embedding table.
    pub tied: bool,
    /// Whether query, key and value projections have biases (Qwen2, GPT).
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias (GPT, gpt-oss).
    pub output_bias: bool,
    /// Gate behind attention.
    pub output_gate: OutputGate,
    /// Whether each head has a learned score that no key belongs to (gpt-oss).
    pub sinks: bool,
    /// Whether positions are learned, with a table of `max_positions` rows, and feed-forwards and norms have biases (GPT).
    pub learned_positions: bool,
    /// Whether rotated queries and keys are scaled as well (YaRN's concentration; gpt-oss).
    pub scaled_positions: bool,
    /// Where norms stand.
    pub norms: Norms,
    /// What scripts of training say of it beside its widths.
    pub style: Style,
    /// How each head's query and key are normalised.
    pub qk_norm: QueryKeyNorm,
    /// Longest position that the model was made for.
    pub max_positions: u64,
    /// Heads by kind of layer, where those above are not those of all.
    pub heads_by_layer: Option<HeadsByLayer>,
    /// Width that the queries of all heads are made from, where they are not made from the token itself (Step-3, arXiv:2507.19427, section 3.1).
    pub query_rank: Option<u64>,
    /// Latent attention, where the model has it.
    pub latent: Option<LatentAttention>,
    /// Compressed attention, where the model has it.
    pub compressed: Option<CompressedAttention>,
    /// What picks the tokens that are attended to, where a layer has it.
    pub index: Option<Index>,
    /// Mixture of experts, where the model has it.
    pub experts: Option<Experts>,
    /// Linear attention, where a layer has it.
    pub linear: Option<LinearAttention>,
    /// State space, where a layer has it.
    pub state_space: Option<StateSpace>,
    /// Tokens that a convolution sees, where a layer has one as its mixer.
    pub convolution: Option<u64>,
    /// Residual streams of a token, where it has several.
    pub streams: Option<Streams>,
    /// Inputs of every layer, where the model has them.
    pub layer_inputs: Option<LayerInputs>,
    /// Whether feed-forwards are twice as wide in layers that use the keys and values of another (Gemma 4).
    pub wide_reusing: bool,
    /// Layers behind the last one that predict a token more each; engines load them to draft.
    pub n_predicting: u64,
    /// What each of them is, where that is not as the model's other layers.
    pub predicting_layer: Option<Layer>,
    /// Whether a checkpoint in narrow formats has them in 16 bits.
    pub predicting_whole: bool,
    /// Encoder of images in front of it, where it has one that is known.
    pub vision: Option<Box<VisionEncoder>>,
    /// Formats of the checkpoint's parts.
    pub formats: Formats,
    /// How bitsandbytes has packed the weights of the layers in the file: they are frozen beside adapters, and no kernel here serves them.
    pub packed: Option<Frozen>,
    /// Parts of the public configuration that are neither timed nor counted here.
    pub unpriced: Vec<Unpriced>,
}

impl Model {
    /// A plain transformer that others are variations of: layers with attention to all tokens and a gated dense feed-forward, heads as queries, keys and values
    /// and their width, all in 16 bits and without biases; an embedding of one token.
    pub fn dense(
        name: String,
        n_layers: u64,
        hidden: u64,
        [n_heads, n_kv_heads, head_dim]: [u64; 3],
        intermediate: u64,
    ) -> Self {
        Self {
            name,
            n_layers,
            layers: Pattern::uniform(Layer::DENSE),
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            intermediate,
            gated: true,
            joined: Joined::NONE,
            vocab: 1,
            tied: true,
            qkv_bias: false,
            output_bias: false,
            output_gate: OutputGate::Off,
            sinks: false,
            learned_positions: false,
            scaled_positions: false,
            norms: Norms::Each,
            style: Style::PLAIN,
            qk_norm: QueryKeyNorm::Off,
            max_positions: u64::MAX,
            heads_by_layer: None,
            query_rank: None,
            latent: None,
            compressed: None,
            index: None,
            experts: None,
            linear: None,
            state_space: None,
            convolution: None,
            streams: None,
            layer_inputs: None,
            wide_reusing: false,
            n_predicting: 0,
            predicting_layer: None,
            predicting_whole: false,
            vision: None,
            formats: Formats::of(hw::Dtype::Bf16),
            packed: None,
            unpriced: Vec::new(),
        }
    }

    /// Whether it is the other one but for its name, its formats and how far its positions go.
    pub fn has_layers_of(&self, other: &Self) -> bool {
        let (formats, predicting_whole, max_positions) = (other.formats, other.predicting_whole, other.max_positions);
        Self { name: other.name.clone(), formats, predicting_whole, max_positions, ..self.clone() } == *other
    }

    /// Width of all keys (or all values) of a token.
    pub const fn kv_width(&self) -> u64 {
        self.n_kv_heads * self.head_dim
    }

    /// Elements of keys and values that a token leaves in a layer that attends to all of them, all heads together.
    pub fn kept_width(&self) -> u64 {
        self.kept_elements(Mixer::Full, 1)
    }

    /// Elements of keys and values that a token leaves in an attending layer on each GPU of a tensor group. A latent or compressed vector is whole on every
    /// GPU.
    pub fn kept_elements(&self, mixer: Mixer, tensor_degree: u32) -> u64 {
        match (self.latent, self.compressed) {
            (Some(latent), _) => latent.kv_rank + latent.rope_dim,
            (None, Some(_)) => self.head_dim,
            (None, None) => self.heads(mixer).kept(tensor_degree),
        }
    }

    /// Layers among the first `n` that are so.
    pub fn count(&self, n: u64, is: impl Fn(Layer) -> bool) -> u64 {
        self.layers.count(n, is)
    }

    /// Kinds of layers, each with how many of the layers from `first` to before `end` are of it.
    pub fn kinds(&self, first: u64, end: u64) -> Vec<(Layer, u64)> {
        let counted = |kind| self.count(end, |layer| layer == kind) - self.count(first.min(end), |layer| layer == kind);
        self.layers.kinds().into_iter().map(|kind| (kind, counted(kind))).filter(|(_, n)| *n > 0).collect()
    }

    /// Whether tokens of another model may be the same. Rows that fill a table up are no tokens, so counts may differ a little (Qwen2.5 has 151,936 rows below
    /// 7B and 152,064 from there on).
    pub const fn shares_vocabulary(&self, other: &Self) -> bool {
        self.vocab.abs_diff(other.vocab) * 100 <= self.vocab
    }

    /// Layers with experts among the first `n`.
    pub fn n_expert_layers_of(&self, n: u64) -> u64 {
        self.count(n, Layer::has_experts)
    }

    /// Layers with experts.
    pub fn n_expert_layers(&self) -> u64 {
        self.n_expert_layers_of(self.n_layers)
    }

    /// Whether a layer keeps keys and values of all tokens. Where no layer attends to all, windows are taken as kept whole: there is nothing
    /// to hold them against.
    pub fn keeps_all(&self, mixer: Mixer) -> bool {
        let is_whole = |layer: &Layer| layer.mixer.kept_tokens_max().is_none();
        let has_whole = || self.compressed.is_some() || self.layers.kinds().iter().any(is_whole);
        let is_kept = mixer.attends() && !matches!(mixer, Mixer::Reused(_));
        is_kept && (mixer.kept_tokens_max().is_none() || !has_whole())
    }

    /// Whether some layer lacks attention or a feed-forward, or layers have attention of several kinds to tokens that are kept together: then stages of as
    /// many layers differ.
    pub fn is_hybrid(&self) -> bool {
        let lacks = |layer: &Layer| !layer.mixer.attends() || layer.feed_forward == FeedForward::Off;
        self.compressed.is_some() || self.layers.kinds().iter().any(lacks)
    }

    /// Whether heads of queries and keys are rotated by their positions, by a kernel that may be fused or not.
    pub const fn rotates_heads(&self) -> bool {
        !self.learned_positions && self.compressed.is_none()
    }

    /// Whether every layer attends to all tokens before and has a feed-forward.
    pub fn is_plain(&self) -> bool {
        self.layers.kinds().into_iter().all(Layer::is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_those_of_the_published_checkpoints() {
        // Counts of the tensors in the public checkpoints.
        for (name, expected) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-7b", 7_615_616_512),
            ("llama-3-8b", 8_030_261_248),
            ("llama-2-7b", 6_738_415_616),
            ("llama-2-13b", 13_015_864_320),
            ("tinyllama-1.1b", 1_100_048_384),
            ("mistral-7b", 7_241_732_096),
            ("mixtral-8x7b", 46_702_792_704),
            ("qwen3-8b", 8_190_735_360),
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3.1-70b", 70_553_706_496),
            ("llama-3.1-405b", 405_853_388_800),
            ("qwen3-32b", 32_762_123_264),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("qwen3-235b-a22b", 235_093_634_560),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.2-3b", 3_212_749_824),
            ("qwen2.5-3b", 3_085_938_688),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-1.7b", 1_720_574_976),
            ("qwen3-4b", 4_022_468_096),
            ("qwen3-14b", 14_768_307_200),
            ("qwen3-coder-480b-a35b", 480_154_875_392),
            ("mistral-nemo-12b", 12_247_782_400),
            ("mistral-small-24b", 23_572_403_200),
            ("mistral-large-123b", 122_610_069_504),
            ("phi-4", 14_659_507_200),
            ("gemma-2-2b", 2_614_341_888),
            ("gemma-2-9b", 9_241_705_984),
            ("gemma-2-27b", 27_227_128_320),
            ("glm-4.5", 352_797_814_784),
            ("glm-4.5-air", 106_852_245_504),
            ("deepseek-v2-lite", 15_706_484_224),
            ("deepseek-llm-7b", 6_910_365_696),
            // Without the 64 correction terms of each router.
            ("moonlight-16b-a3b", 15_960_108_544),
            ("qwen1.5-moe-a2.7b", 14_315_784_192),
            ("deepseek-v2", 235_741_434_880),
            ("command-r-35b", 34_980_831_232),
            ("olmo-2-7b", 7_298_617_344),
            ("olmo-2-32b", 32_234_279_936),
            ("olmoe-1b-7b", 6_919_161_856),
            ("seed-oss-36b", 36_151_104_512),
            ("granite-3.3-8b", 8_170_864_640),
            ("yi-34b", 34_388_917_248),
        ] {
            assert_eq!(embedded(name).expect(name).n_parameters(), expected, "{name}");
        }
        let deepseek = embedded("deepseek-v3").expect("embedded");
        // The report gives 671 B in total and 37 B active, without the multi-token head.
        assert!((670e9..672e9).contains(&hw::real(deepseek.n_parameters())));
        assert!((36e9..38.5e9).contains(&hw::real(deepseek.active_parameters())));
    }
}
