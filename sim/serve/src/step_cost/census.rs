//! Kernels that a layer launches beside those that `engine::layer` writes, counted in the engines' model code.
//!
//! A table's row may hold kernels that the layer writes as well, as a rotary position inside of an attention's row; then a number is negative. What a row
//! holds was read in its collector (ai-dynamo/aiconfigurator @ 095f58a51c4c, `collector/`). Kernels on a second stream beside longer ones are
//! not counted. docs/serving-terms.md has the numbers with their sources. Each takes the start of a kernel in a replayed graph: what they move is
//! small. Units: kernels of a layer, seconds.

use engine::model::{Layer, LinearRule, Mixer, Model, OutputGate, QueryKeyNorm};
use engine::shard::Shard;
use hw::{Dtype, Seconds};

use super::fusion::GRAPH_START_S;

/// Kernels more than are written, or fewer, by what a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Attention of plain heads.
    pub heads: i32,
    /// Norms of queries and keys of every head.
    pub query_key_norm: i32,
    /// Copies in front of a norm over all heads together, and its sums of squares.
    pub whole_norm: i32,
    /// All launches of these norms where no graph holds them and nothing is compiled into one kernel.
    pub launched_norms: u32,
    /// A gate on what attention gives.
    pub output_gate: i32,
    /// Latent attention whose row is its kernel.
    pub latent: i32,
    /// The same with keys and values of 8 bits.
    pub latent_of_8_bits: i32,
    /// The same besides, where its products have narrow formats.
    pub narrow_latent: i32,
    /// Attention to selected keys, whose row is the whole block.
    pub selected: i32,
    /// A gated delta net.
    pub delta: i32,
    /// Experts that every token visits: the sum of theirs and the routed ones'.
    pub shared: i32,
    /// A gate on these, where they are not computed beside the routed ones.
    pub shared_gate: i32,
    /// A choice of experts that no kernel knows: it is compiled from what PyTorch says of it.
    pub compiled_choice: i32,
}

/// Most experts of a group that a kernel chooses among (`moe_fused_gate` of `SGLang`, its `topk.py`).
const GROUP_MAX: u64 = 32;
/// Experts of Kimi-K2, for which there is a kernel of its own (there, `kimi_k2_moe_fused_gate`).
const KIMI_EXPERTS: u64 = 384;

/// Whether nobody has a kernel for a router with a bias: its experts are no power of two, or a group has too many. MiniMax chooses without groups, by a kernel
/// (`topk_sigmoid`). Models with an index ran builds of their own, of which nobody knows how they choose.
fn compiles_choice(model: &Model) -> bool {
    let Some(experts) = model.experts.filter(|experts| experts.balanced) else { return false };
    let has_groups = model.qk_norm != QueryKeyNorm::Whole && model.index.is_none() && model.state_space.is_none();
    let is_known = experts.n_routed.is_power_of_two() && experts.n_routed / experts.n_groups <= GROUP_MAX;
    has_groups && !is_known && experts.n_routed != KIMI_EXPERTS
}

/// No engine.
pub const NONE: Census = Census {
    heads: 0,
    query_key_norm: 0,
    whole_norm: 0,
    launched_norms: 0,
    output_gate: 0,
    latent: 0,
    latent_of_8_bits: 0,
    narrow_latent: 0,
    selected: 0,
    delta: 0,
    shared: 0,
    shared_gate: 0,
    compiled_choice: 0,
};

/// vLLM 0.19.0. Rows of latent attention with 8 bits are those of the whole block.
pub const VLLM: Census = Census {
    query_key_norm: 1,
    launched_norms: 2,
    output_gate: 1,
    latent: 3,
    latent_of_8_bits: 0,
    selected: -1,
    delta: -1,
    shared: 1,
    shared_gate: 2,
    ..NONE
};

/// `SGLang` 0.5.9.
pub const SGLANG: Census = Census {
    query_key_norm: 1,
    whole_norm: 3,
    launched_norms: 2,
    output_gate: 4,
    latent: 2,
    latent_of_8_bits: 2,
    narrow_latent: 4,
    selected: -1,
    delta: 0,
    shared: 1,
    shared_gate: 3,
    compiled_choice: 10,
    ..NONE
};

/// `SGLang` 0.5.10, which joins the projections of a gated delta net.
pub const SGLANG_JOINED: Census = Census { delta: -2, ..SGLANG };

/// TensorRT-LLM 1.2.
pub const TRTLLM: Census = Census { heads: -1, query_key_norm: 1, launched_norms: 1, selected: -1, shared: 1, ..NONE };

impl Census {
    /// Kernels of a layer beside those that are written, with shared experts beside the routed ones or not, and where the kernel of experts chooses them or not.
    fn of_layer(self, shard: &Shard<'_>, layer: Layer, [is_beside, chooses]: [bool; 2]) -> i32 {
        let when = |is: bool, n: i32| if is { n } else { 0 };
        let shared = shard.model.experts.filter(|experts| layer.has_experts() && experts.shared_intermediate > 0);
        let of_shared =
            shared.map_or(0, |experts| self.shared + when(experts.shared_gate && !is_beside, self.shared_gate));
        let is_compiled = layer.has_experts() && !chooses && compiles_choice(shard.model);
        self.of_mixer(shard, layer.mixer) + of_shared + when(is_compiled, self.compiled_choice)
    }

    fn of_mixer(self, shard: &Shard<'_>, mixer: Mixer) -> i32 {
        let model = shard.model;
        let when = |is: bool, n: i32| if is { n } else { 0 };
        match mixer {
            Mixer::Linear => when(model.linear.is_some_and(|linear| linear.rule != LinearRule::Lightning), self.delta),
            // Nobody counted those of compressed attention.
            Mixer::Compressed { .. } | Mixer::StateSpace | Mixer::Convolution | Mixer::Off => 0,
            Mixer::Selected(_) => self.selected,
            _ if model.latent.is_some() => {
                let is_narrow = hw::whole(shard.formats.attention.weight_bytes(8.0)) < 8 * shard.dtype.bytes();
                let of_row = if shard.formats.kv == Dtype::Fp8 { self.latent_of_8_bits } else { self.latent };
                of_row + when(is_narrow, self.narrow_latent)
            }
            _ => {
                let of_norm = match model.qk_norm {
                    QueryKeyNorm::Off => 0,
                    QueryKeyNorm::Head => self.query_key_norm,
                    QueryKeyNorm::Whole => self.whole_norm,
                };
                self.heads + of_norm + when(model.output_gate == OutputGate::Whole, self.output_gate)
            }
        }
    }

    /// Time of all layers' kernels beside those that are written; below zero where rows of tables hold more of these than are missing.
    pub fn added(self, shard: &Shard<'_>, layers: impl Iterator<Item = (Layer, u32)>, how: [bool; 2]) -> Seconds {
        let of_kind = |(layer, n): (Layer, u32)| f64::from(self.of_layer(shard, layer, how)) * f64::from(n);
        Seconds::new(layers.map(of_kind).sum::<f64>() * GRAPH_START_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::embedded;
    use hw::Format;

    /// Kernels of a model's first layer and of its last one.
    fn of(census: Census, name: &str, kv: Dtype, attention: Format) -> [i32; 2] {
        let model = embedded(name).expect("embedded");
        let mut shard = Shard::forward(&model, Dtype::Bf16, 8);
        (shard.formats.kv, shard.formats.attention) = (kv, attention);
        [0, model.n_layers - 1].map(|index| census.of_layer(&shard, model.layers.layer(index), [false; 2]))
    }

    #[test]
    fn layers_have_what_was_counted_for_their_mixer_and_their_experts() {
        // DeepSeek-V3 begins with dense layers. Norms and a second product; four kernels that make activations narrow; the sum of the shared expert.
        assert_eq!(of(SGLANG, "deepseek-v3", Dtype::Bf16, Format::Bf16), [2, 3]);
        assert_eq!(of(SGLANG, "deepseek-v3", Dtype::Fp8, Format::Fp8Block), [6, 7]);
        assert_eq!(of(VLLM, "kimi-k2.5", Dtype::Bf16, Format::Bf16), [3, 4]);
        assert_eq!(of(VLLM, "kimi-k2.5", Dtype::Fp8, Format::Bf16), [0, 1]);
        assert_eq!(of(SGLANG, "glm-5", Dtype::Fp8, Format::Fp8Block), [-1, 0]);
        // Three layers with a gated delta net and one with attention whose output is gated.
        assert_eq!(of(SGLANG, "qwen3.5-397b-a17b", Dtype::Bf16, Format::Bf16), [4, 9]);
        assert_eq!(of(SGLANG_JOINED, "qwen3.5-397b-a17b", Dtype::Bf16, Format::Bf16), [2, 9]);
        // Copies of queries and keys, and sums of their squares (`forward_prepare` and `forward_qk` in `models/minimax_m2.py`).
        assert_eq!(of(SGLANG, "minimax-m2.5", Dtype::Bf16, Format::Fp8Block), [3, 3]);
        assert_eq!(of(TRTLLM, "llama-3-8b", Dtype::Bf16, Format::Bf16), [-1, -1]);
        assert_eq!(of(NONE, "deepseek-v3", Dtype::Bf16, Format::Bf16), [0, 0]);
        // Rows of block-scaled products have the kernel that makes activations narrow inside of them (`collect_gemm.py` of SGLang and vLLM).
        for census in [SGLANG, VLLM] {
            let narrow = of(census, "qwen3-8b", Dtype::Bf16, Format::Fp8Block);
            assert_eq!(narrow, of(census, "qwen3-8b", Dtype::Bf16, Format::Bf16));
        }
    }

    #[test]
    fn experts_that_no_kernel_of_sglang_chooses_are_chosen_by_compiled_ones() {
        // `topk.py` of v0.5.6 to v0.5.10. GLM-4.5 has 160 experts in one group, GLM-4.5-Air 128. Both have a shared expert, whose sum is a kernel.
        let compiled = |name: &str| of(SGLANG, name, Dtype::Bf16, Format::Bf16)[1] >= SGLANG.compiled_choice;
        assert!(compiled("glm-4.5") && compiled("glm-4.5-air"));
        // Eight groups of 32; 384 experts, which have a kernel of their own; a choice without a bias; a plain one with a bias.
        for name in ["deepseek-v3", "kimi-k2.5", "qwen3-235b-a22b", "minimax-m2.5"] {
            assert!(!compiled(name), "{name}");
        }
        let model = embedded("glm-4.5").expect("embedded");
        let shard = Shard::forward(&model, Dtype::Bf16, 8);
        let last = model.layers.layer(model.n_layers - 1);
        let [apart, inside] = [false, true].map(|chooses| SGLANG.of_layer(&shard, last, [false, chooses]));
        assert_eq!(apart - inside, SGLANG.compiled_choice);
    }

    #[test]
    fn a_gate_beside_the_routed_experts_is_waited_for_by_nobody() {
        let model = embedded("qwen3.5-397b-a17b").expect("embedded");
        let shard = Shard::forward(&model, Dtype::Bf16, 8);
        let layers = || std::iter::once((model.layers.layer(0), 45));
        let added = |is_beside| SGLANG.added(&shard, layers(), [is_beside, false]).get();
        assert!((added(false) - 45.0 * 4.0 * GRAPH_START_S).abs() < 1e-12);
        assert!((added(true) - 45.0 * GRAPH_START_S).abs() < 1e-12);
    }
}
