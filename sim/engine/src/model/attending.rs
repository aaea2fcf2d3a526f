//! What attention is made of where it is more than one number of heads for all layers: heads by kind of layer, compressed keys, and indices that
//! pick keys. Units: counts and elements.
//!
//! Parameters are those of huggingface/transformers 5.24.0, `modeling_<type>.py`.

use super::{Layer, Mixer, Model};

/// Heads of attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n: u64,
    /// Key-value heads.
    pub n_kv: u64,
    /// Width of a query and of a key.
    pub key_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
    /// Whether values have a projection of their own; elsewhere that of keys gives both (Gemma 4).
    pub projects_values: bool,
    /// Whether each head has a learned score that no key belongs to.
    pub sinks: bool,
}

impl Heads {
    /// Width of all queries.
    pub const fn query_width(&self) -> u64 {
        self.n * self.key_dim
    }

    /// Width of all keys and values that a token is projected to.
    pub const fn projected_width(&self) -> u64 {
        self.n_kv * (self.key_dim + if self.projects_values { self.value_dim } else { 0 })
    }

    /// Width of what the heads give together.
    pub const fn mixed_width(&self) -> u64 {
        self.n * self.value_dim
    }

    /// GPUs of a tensor group that have the same head of keys and values: with fewer heads than GPUs every GPU has a whole one (vLLM and SGLang
    /// `QKVParallelLinear`, `num_kv_head_replicas`; TensorRT-LLM `duplicate_kv_weight`).
    pub fn copies(&self, tensor_degree: u32) -> u64 {
        (u64::from(tensor_degree) / self.n_kv.max(1)).max(1)
    }

    /// Elements of keys and values that a token leaves on each GPU of a tensor group: with fewer key-value heads than GPUs every GPU keeps one.
    pub fn kept(&self, tensor_degree: u32) -> u64 {
        self.n_kv.div_ceil(u64::from(tensor_degree)) * (self.key_dim + self.value_dim)
    }

    /// Width of a head that has as many products as one with such keys and values.
    pub const fn mean_dim(&self) -> u64 {
        u64::midpoint(self.key_dim, self.value_dim)
    }
}

/// Heads where they differ by kind of layer, or where values are not as wide as keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsByLayer {
    /// Of layers that attend to all tokens.
    pub whole: Heads,
    /// Of layers with a window.
    pub windowed: Heads,
}

/// Gate behind attention, by a projection of what goes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// None.
    Off,
    /// A number for each head (Step 3.7).
    Heads,
    /// As wide as the queries (Qwen3-Next).
    Whole,
}

/// An index: a small attention whose scores pick the tokens for the large one (DeepSeek-V3.2, arXiv:2512.02556, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Query heads; all share one key.
    pub n_heads: u64,
    /// Width of a head and of the key.
    pub head_dim: u64,
    /// Tokens that share a key; 1 where each has its own.
    pub pool: u64,
    /// Where its queries and keys come from.
    pub made: IndexMade,
}

/// Where queries and keys of an index come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexMade {
    /// Queries from the compressed query, keys from the token, and a weight for each head (DeepSeek-V3.2).
    Weighed,
    /// The same, and the keys of a pool are added up with weights of a gate (GLM-5 Next).
    Pooled,
    /// The same, with keys of a compression of its own (DeepSeek-V4).
    Compressed,
    /// Queries and keys from the token, each normed (MiniMax-M3, Qwen4).
    Plain,
}

impl Index {
    /// Projections, norms, and what joins the keys of a pool.
    pub(super) const fn parameters(self, hidden: u64, q_rank: u64) -> u64 {
        let (all, one) = (self.n_heads * self.head_dim, self.head_dim);
        // A norm of keys with a bias, or a norm of queries and one of keys.
        let weighed = q_rank * all + hidden * (one + self.n_heads) + 2 * one;
        match self.made {
            IndexMade::Weighed => weighed,
            IndexMade::Pooled => weighed + hidden * one + self.pool * one,
            IndexMade::Compressed => q_rank * all + hidden * self.n_heads + compression(hidden, one, self.pool, true),
            IndexMade::Plain => hidden * (all + one) + 2 * one,
        }
    }

    /// Columns of the projections from the token: keys, weights of heads, gates of pools; and queries where they come from the token too.
    pub(crate) const fn projected(self) -> u64 {
        let one = self.head_dim;
        match self.made {
            IndexMade::Weighed => one + self.n_heads,
            IndexMade::Pooled => 2 * one + self.n_heads,
            IndexMade::Compressed => 4 * one + self.n_heads,
            IndexMade::Plain => (self.n_heads + 1) * one,
        }
    }
}

/// Parameters of what joins the vectors of `ratio` tokens to one of so many elements: vectors and gates of a token, twice where a vector has a part of
/// the next one; a bias for each place; and a norm.
pub(super) const fn compression(hidden: u64, width: u64, ratio: u64, overlaps: bool) -> u64 {
    let wide = if overlaps { 2 * width } else { width };
    2 * hidden * wide + ratio * wide + width
}

/// Attention of DeepSeek-V4: one vector of a token is the key and the value of all heads; old tokens are kept as vectors of several together, beside a
/// window of single ones. Queries come from a compressed one, and what heads give goes through two products, the first by groups of heads
/// (deepseek-ai/DeepSeek-V4-Pro; `modeling_deepseek_v4.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedAttention {
    /// Rank of the compressed query.
    pub q_rank: u64,
    /// Part of a head with rotary position.
    pub rope_dim: u64,
    /// Groups of heads behind attention.
    pub n_groups: u64,
    /// Width to which each group is projected.
    pub group_rank: u64,
}

impl CompressedAttention {
    /// All but what compresses, which a layer with a window alone lacks.
    const fn parameters(&self, hidden: u64, n_heads: u64, head_dim: u64) -> u64 {
        let query = n_heads * head_dim;
        let queries = self.q_rank * (hidden + query) + self.q_rank;
        let output = query * self.group_rank + self.n_groups * self.group_rank * hidden;
        queries + hidden * head_dim + head_dim + output + n_heads
    }

    /// Those of these that a tensor group cuts: queries of the compressed one, what is behind attention, and a number for each head.
    const fn cut_parameters(&self, hidden: u64, n_heads: u64, head_dim: u64) -> u64 {
        let query = n_heads * head_dim;
        self.q_rank * query + query * self.group_rank + self.n_groups * self.group_rank * hidden + n_heads
    }
}

impl Model {
    /// Whether attention of some layers has learned sinks.
    pub fn has_sinks(&self) -> bool {
        self.layers.kinds().iter().any(|kind| self.heads(kind.mixer).sinks)
    }

    /// Why heads cannot be cut over a tensor group whose GPUs are so many ranks of attention; `None` where they can. Heads of keys and values are dealt out, or
    /// each is kept by as many GPUs (vLLM and SGLang assert either, for example in `vllm/model_executor/models/llama.py`). Latent vectors are not cut.
    pub fn uncut(&self, tensor_degree: u32, ranks: u32) -> Option<String> {
        if !self.n_heads.is_multiple_of(tensor_degree.into()) {
            return Some(format!("does not divide the {} attention heads", self.n_heads));
        }
        let each = u64::from(tensor_degree / ranks.max(1)).max(1);
        let fits = |n_kv: u64| n_kv.is_multiple_of(each) || each.is_multiple_of(n_kv);
        let kinds = self.layers.kinds().into_iter().map(|kind| kind.mixer).filter(|mixer| mixer.attends());
        let wrong = kinds.map(|mixer| self.heads(mixer).n_kv).find(|n_kv| *n_kv > 0 && !fits(*n_kv))?;
        let is_whole = self.latent.is_some() || self.compressed.is_some();
        (!is_whole).then(|| format!("neither divides the {wrong} heads of keys and values nor is divided by them"))
    }

    /// Heads of the attention of a layer.
    pub fn heads(&self, mixer: Mixer) -> Heads {
        match (self.heads_by_layer, mixer) {
            (Some(heads), Mixer::Window(_) | Mixer::Reused(Some(_))) => heads.windowed,
            (Some(heads), _) => heads.whole,
            (None, _) => Heads {
                n: self.n_heads,
                n_kv: self.n_kv_heads,
                key_dim: self.head_dim,
                value_dim: self.head_dim,
                projects_values: true,
                sinks: self.sinks,
            },
        }
    }

    /// Columns of the projection of queries from a token: all of them with their gates, or the vector that they are made from.
    pub fn query_columns(&self, mixer: Mixer) -> u64 {
        let heads = self.heads(mixer);
        let gate = match self.output_gate {
            OutputGate::Off => 0,
            OutputGate::Heads => heads.n,
            OutputGate::Whole => heads.query_width(),
        };
        self.query_rank.unwrap_or_else(|| heads.query_width() + gate)
    }

    /// Parameters that make the queries of all heads from their common vector, with its norm.
    pub(super) const fn ranked_parameters(&self, query_width: u64) -> u64 {
        match self.query_rank {
            Some(rank) => rank * query_width + rank,
            None => 0,
        }
    }

    /// Parameters in front of attention that every GPU of a tensor group has whole, as the products of `layer/attending.rs` are: what compresses queries, keys and
    /// values with the norms behind it, and an index (vLLM and SGLang `ReplicatedLinear`; TensorRT-LLM `kv_a_proj_with_mqa`, without a tensor group; Megatron-Core
    /// `TELinear` with `parallel_mode="duplicated"`).
    fn whole_parameters(&self, mixer: Mixer) -> u64 {
        if !mixer.attends() {
            return 0;
        }
        let compresses = match (self.latent, self.compressed, self.query_rank) {
            (Some(latent), _, _) => latent.compressing_parameters(self.hidden),
            (None, Some(compressed), _) => {
                let cut = compressed.cut_parameters(self.hidden, self.n_heads, self.head_dim);
                return self.compressed_parameters(compressed, mixer) - cut;
            }
            (None, None, Some(rank)) => self.hidden * (rank + self.heads(mixer).projected_width()) + rank,
            (None, None, None) => 0,
        };
        let q_rank = self.latent.and_then(|latent| latent.q_rank).unwrap_or(self.hidden);
        let index = self.index.filter(|_| mixer.has_index());
        let index = index.map_or(0, |index| index.parameters(self.hidden, q_rank));
        compresses + index + self.head_norm_parameters(mixer)
    }

    /// Parameters of the projections of keys and values of a layer, where a tensor group cuts them by heads.
    fn parameters_by_key_head(&self, mixer: Mixer) -> u64 {
        let is_whole = self.latent.is_some() || self.compressed.is_some() || self.query_rank.is_some();
        if is_whole || !mixer.attends() || matches!(mixer, Mixer::Reused(_)) {
            return 0;
        }
        let inputs = self.hidden + u64::from(self.qkv_bias);
        inputs * self.heads(mixer).projected_width()
    }

    /// Parameters of what mixes the tokens of a layer that a tensor group has beyond once, over all of its GPUs: those that each has whole, and heads of keys and
    /// values that several have where `repeats_heads`.
    pub fn repeated_by_mixer(&self, layer: Layer, tensor_degree: u32, repeats_heads: bool) -> u64 {
        let whole = u64::from(tensor_degree - 1) * self.whole_parameters(layer.mixer);
        let copies = if repeats_heads { self.heads(layer.mixer).copies(tensor_degree) } else { 1 };
        whole + (copies - 1) * self.parameters_by_key_head(layer.mixer)
    }

    /// The same of a whole layer: every GPU has its norms, its router (Megatron-Core `TopKRouter`; vLLM `ReplicatedLinear`; torchtitan `NoParallel`) and the
    /// projections around latent experts.
    pub fn repeated_parameters(&self, layer: Layer, tensor_degree: u32, repeats_heads: bool) -> u64 {
        let whole = self.norm_parameters(layer) + self.router_parameters(layer) + self.latent_projections(layer);
        u64::from(tensor_degree - 1) * whole + self.repeated_by_mixer(layer, tensor_degree, repeats_heads)
    }

    /// Parameters of compressed attention in a layer, with its index where entries are picked.
    pub(super) fn compressed_parameters(&self, compressed: CompressedAttention, mixer: Mixer) -> u64 {
        let (hidden, width) = (self.hidden, self.head_dim);
        let around = compressed.parameters(hidden, self.n_heads, width);
        match mixer {
            Mixer::Compressed { ratio, picked, .. } => {
                let index = self.index.filter(|_| picked.is_some());
                let index = index.map_or(0, |index| index.parameters(hidden, compressed.q_rank));
                around + compression(hidden, width, ratio, picked.is_some()) + index
            }
            _ => around,
        }
    }
}
