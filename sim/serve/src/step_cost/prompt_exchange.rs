//! How ranks of data-parallel attention exchange tokens with experts in an iteration with prompts.
//!
//! Usually all tokens are gathered on all GPUs, and what experts gave is scattered on the way back. SGLang does so where it only decodes. Where any rank has
//! a prompt, ranks have unequal tokens. Then every rank writes its own into a buffer of zeros that has room for all, and the buffers are added up. What
//! experts gave is added up as well, and every rank reads its part. So two sums take the place of a gather and a scatter, which carry half as much.
//!
//! Source: sgl-project/sglang v0.5.5 to v0.5.8 (Apache-2.0), `layers/dp_attention.py` (`DpPaddingMode.get_dp_padding_mode`, `_dp_gather_via_all_reduce`) and
//! `models/deepseek_v2.py` (`forward_normal`). DeepEP (`--moe-a2a-backend`) and the gather of 4-bit tokens (`--moe-runner-backend flashinfer_cutlass`)
//! do not. Units: tokens of all ranks together.

use engine::task::{Collective, Op, Ops};

/// How tokens of an iteration with prompts go to experts and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptExchange {
    /// As those of any other iteration.
    #[default]
    Gathered,
    /// By sums over a buffer of all tokens.
    Summed,
}

/// Sums in so many layers over so many GPUs, and the zeros in front of the first one.
pub(super) fn sums(bytes: u64, n_layers: u32, shape: hw::GroupShape) -> Ops {
    let sum = Op::Collective { kind: Collective::AllReduce, bytes, shape };
    vec![(sum, 2 * n_layers), (Op::Elementwise { bytes }, n_layers)]
}
