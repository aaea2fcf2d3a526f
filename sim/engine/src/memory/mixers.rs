//! What layers that keep a state save from forward to backward, bytes per token on one rank.
//!
//! Mamba-2 (NVIDIA/Megatron-LM @ 00bebb45b9b2, `megatron/core/ssm/mamba_mixer.py`, `use_mamba_mem_eff_path`): one function from the projection to
//! the norm (state-spaces/mamba, `ssd_combined.py`, `MambaSplitConv1dScanCombinedFn`). It saves what the projection gave, the output of the scan in
//! 16 bits, and a 32-bit number of the norm for each group. Its backward makes the convolution and all states again.
//!
//! Gated delta nets (@ 00caa53af309, `gated_delta_net.py`): the convolution saves its input (Dao-AILab/causal-conv1d, `CausalConv1dFn`), the norm of queries
//! and keys its outputs, the rule queries and keys of every value head, values, decays, steps and a square per chunk of 64 tokens
//! (fla-org/flash-linear-attention, `ops/gated_delta_rule/chunk.py`), and the norm with its gate three more tensors of values.

use super::sizes::{HALF, cut};
use crate::model::{LinearAttention, LinearRule, StateSpace};
use crate::shard::Shard;

/// Tokens of a chunk of the scan (`MambaMixer.chunk_size`).
const SCANNED: u64 = 128;
/// Tokens of a chunk of the delta rule.
const RULED: u64 = 64;
/// Bytes of decays and statistics.
const WHOLE: u64 = 4;

/// What a layer of Mamba-2 saves: also what the projection behind it reads.
pub(super) fn state_space(shard: &Shard<'_>, space: StateSpace) -> u64 {
    cut(shard, HALF * (space.projected() + 2 * space.width()) + WHOLE * space.n_groups)
}

/// What its backward makes besides: the convolution's output again, gradients of what the projection gave, and states in 32 bits at the ends
/// of chunks with their gradients.
pub(super) fn scanned(shard: &Shard<'_>, space: StateSpace) -> u64 {
    let states = (2 * WHOLE * space.kept()).div_ceil(SCANNED);
    cut(shard, HALF * (space.projected() + space.channels()) + states)
}

/// What a layer of a gated delta net saves.
pub(super) fn delta_rule(shard: &Shard<'_>, linear: LinearAttention) -> u64 {
    let repeated = if linear.n_value_heads > linear.n_key_heads { linear.n_value_heads * linear.key_dim } else { 0 };
    // Values, and around the gated norm its input, its output, the gate, and the input of the projection.
    let values = 5 * linear.value_width();
    let halves = linear.channels() + 2 * (linear.key_width() + repeated) + values + linear.n_value_heads * RULED;
    // The input of a decay, its softplus, and sums of decays; a statistic of every normed head. Steps have 16 bits.
    let decays =
        if matches!(linear.rule, LinearRule::Channels { .. }) { linear.key_width() } else { linear.n_value_heads };
    let wholes = 3 * decays + 2 * linear.n_key_heads + linear.n_value_heads;
    cut(shard, HALF * (halves + linear.n_value_heads) + WHOLE * wholes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hw::Dtype;

    #[test]
    fn a_layer_of_mamba_saves_its_projection_and_two_outputs() {
        // 128 heads of 64, eight groups, a state of 128: 8192 channels of heads, 2 · 8 · 128 beside them.
        let space = StateSpace {
            n_heads: 128,
            head_dim: 64,
            n_groups: 8,
            state: 128,
            kernel: 4,
            state_bytes: 4,
            normed: true,
            step_rank: None,
        };
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |tp| state_space(&Shard::forward(&model, Dtype::Bf16, tp), space);
        let projected = 2 * 8192 + 2 * 8 * 128 + 128;
        assert_eq!(of(1), 2 * projected + 2 * 2 * 8192 + 4 * 8);
        assert_eq!(of(8), of(1) / 8);
        // States of 64 by 128 for each head every 128 tokens, twice in 32 bits.
        let working = scanned(&Shard::forward(&model, Dtype::Bf16, 1), space);
        assert_eq!(working, 2 * projected + 2 * (8192 + 2 * 8 * 128) + 2 * 4 * 8192);
    }

    #[test]
    fn a_layer_of_a_gated_delta_net_saves_every_tensor_of_its_kernels() {
        // As Qwen3-Next has it: 16 heads of keys and 32 of values, 128 wide.
        let linear = LinearAttention {
            n_key_heads: 16,
            n_value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            kernel: 4,
            state_bytes: 4,
            rule: LinearRule::Delta,
        };
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |linear| delta_rule(&Shard::forward(&model, Dtype::Bf16, 1), linear);
        let convolution = 2 * (2048 + 2048 + 4096);
        let normed = 2 * 2 * 2048 + 4 * 2 * 16;
        let rule = 2 * (4096 + 4096 + 4096 + 32 * 64 + 32) + 4 * 3 * 32;
        let gated = 2 * 4 * 4096 + 4 * 32;
        assert_eq!(of(linear), convolution + normed + rule + gated);
        // With as many keys as values the normed ones are those of the rule.
        let alike = LinearAttention { n_key_heads: 32, ..linear };
        assert_eq!(of(alike), of(linear) + 2 * (2 * 2048) + 4 * 2 * 16 - 2 * 2 * 4096 + 2 * 2 * 2048);
    }
}
