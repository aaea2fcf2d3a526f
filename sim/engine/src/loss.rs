//! How the loss over a vocabulary is computed: bytes that a logit takes and moves. Units: bytes, tokens.
//!
//! Sources: NVIDIA/Megatron-LM @ d98e8a64ddf3, `megatron/core/tensor_parallel/cross_entropy.py` and `fusions/fused_cross_entropy.py`; its branch
//! `dev` @ d48bd6be0a, `fusions/linear_cross_entropy/blackwell/entry.py`; NVIDIA/TransformerEngine `pytorch/triton/cross_entropy.py` @
//! e6d97ffc7 and, from release 2.18 on, @ 01bbe3eea.

use crate::task::PassKind;

hw::words! {
    /// Whose kernels compute the loss (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Loss: word {
        /// One kernel after another over a 32-bit copy that each changes in place.
        #[default]
        Unfused = "unfused",
        /// The same steps compiled (`native`). What a step changes in place is a copy there.
        Compiled = "native",
        /// The same by the older PyTorch of containers for long-term support, where the product with the loss's gradient takes the place of that copy.
        CompiledReused = "native-lts",
        /// Kernels of Transformer Engine before release 2.18 (`te`): the gradient takes the place of the 16-bit logits.
        InPlace = "te",
        /// The same from release 2.18 on: the gradient is a 32-bit tensor of its own.
        Widened = "te-2.18",
        /// The head's product and the loss in one kernel (`linear`): logits are made piece by piece, and once more in backward. Beside PyTorch's modules it is Liger's
        /// loss, which makes the gradients of each piece at once.
        WithHead = "linear",
        /// torchtune's loss over chunks of tokens: logits of one chunk are there in 16 bits, and what backward reads of all of them.
        Chunked = "chunked",
        /// TRL's loss over chunks of tokens (`loss_type = "chunked_nll"`): each is a checkpoint, so nothing of it is kept and backward makes its logits again.
        ChunkedNll = "chunked-nll",
    }
}

/// Rows of the vocabulary that the kernel with the head makes at once (`LCE_FWD_VOCAB_SPLIT_SIZE`, `LCE_BWD_VOCAB_SPLIT_SIZE`).
pub const PIECE: u64 = 3072;
/// Bytes per token and piece of the kernel with the head: a largest value and a sum in 32 bits; a tensor group keeps its own largest ones too.
pub const STATISTICS: [u64; 2] = [8, 12];

impl Loss {
    /// Bytes per logit at the highest moment of the loss.
    ///
    /// Unfused: 16-bit logits and their 32-bit copy, or in backward that copy and the 16-bit gradient. Compiled: backward holds the softmax, a copy
    /// in which the labels' gradients are put, their product with the loss's gradient, and the 16-bit gradient.
    pub const fn held_per_logit(self) -> u64 {
        match self {
            Self::Unfused | Self::Widened => 6,
            Self::Compiled => 14,
            Self::CompiledReused => 10,
            Self::InPlace => 2,
            Self::WithHead | Self::Chunked | Self::ChunkedNll => 0,
        }
    }

    /// Bytes per logit that are kept until backward: the exponentials, or logits in whose place the gradient stands.
    pub const fn kept_per_logit(self) -> u64 {
        match self {
            Self::Unfused | Self::Compiled | Self::CompiledReused | Self::Widened => 4,
            Self::InPlace => 2,
            Self::WithHead | Self::Chunked | Self::ChunkedNll => 0,
        }
    }

    /// Bytes per logit that kernels read and write in a pass.
    ///
    /// Unfused: copy 6, largest value 4, difference 8, exponentials 8, their sum 4, quotient 8; in backward product 8 and cast 6. Compiled: copy with
    /// the largest value 6, exponentials with their sum 8, quotient 8; copy for the labels 8, product with cast 10. Transformer Engine: read 2,
    /// read and written 4; product in place 4. With a 32-bit gradient: read 2, read and written 6; product in place 8 and cast 6.
    pub const fn moved_per_logit(self, kind: PassKind) -> u64 {
        let [forward, backward] = match self {
            Self::Unfused => [38, 14],
            Self::Compiled | Self::CompiledReused => [22, 18],
            Self::InPlace => [6, 4],
            Self::Widened => [8, 14],
            Self::WithHead | Self::Chunked | Self::ChunkedNll => [0, 0],
        };
        match kind {
            PassKind::Forward => forward,
            PassKind::Backward | PassKind::Input => backward,
            PassKind::Weight => 0,
        }
    }

    /// Whether backward multiplies by the head's weights once more to have the logits.
    pub fn makes_logits_again(self) -> bool {
        matches!(self, Self::WithHead | Self::ChunkedNll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_one_word_and_fused_kernels_move_less() {
        for (word, loss) in Loss::WORDS {
            assert_eq!(loss.word(), word);
            let moved = |loss: Loss| loss.moved_per_logit(PassKind::Forward) + loss.moved_per_logit(PassKind::Input);
            assert!(moved(loss) <= moved(Loss::Unfused), "{word}");
            assert_eq!(loss.moved_per_logit(PassKind::Weight), 0);
        }
    }
}
