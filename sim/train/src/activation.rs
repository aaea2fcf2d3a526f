//! What a micro-batch keeps on a stage between its passes, and what each pass frees of it. Units: bytes.

use engine::task::PassKind;

/// Activations of a micro-batch on a stage, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activation {
    /// From its forward to its backward, or to its input pass where backward is split.
    pub whole: u64,
    /// From its input pass to its weight pass. Scores and dropout masks are gone; a gradient of an output takes the place of all else that
    /// is. That is 32·s·b·h of 34·s·b·h + 5·a·s²·b (arXiv:2401.10241, appendix on memory).
    pub for_weights: u64,
}

impl Activation {
    /// What a pass adds to the memory of its rank, as it starts (a forward) or ends.
    ///
    /// # Panics
    /// When more stays for the weight pass than there was.
    pub fn change(self, kind: PassKind) -> i64 {
        let [whole, rest] =
            [self.whole, self.for_weights].map(|bytes| i64::try_from(bytes).expect("activations stay below 2^63"));
        assert!(rest <= whole, "an input pass frees memory or none");
        match kind {
            PassKind::Forward => whole,
            PassKind::Backward => -whole,
            PassKind::Input => rest - whole,
            PassKind::Weight => -rest,
        }
    }

    /// So much of both.
    pub fn map(self, change: impl Fn(u64) -> u64) -> Self {
        Self { whole: change(self.whole), for_weights: change(self.for_weights) }
    }
}
