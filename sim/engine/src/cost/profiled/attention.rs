//! An attention on its way to a curve: which kernel it is, and what the curve's base counts.

use hw::Dtype;

use crate::cost::names;
use crate::task::Document;

/// Mean width of a head's keys and values of latent attention in prompts, in the models whose tables there are: keys of 128 elements and 64 that rotate,
/// values of 128.
const LATENT_DIM: u64 = 160;
/// Width that the base of the curves of latent attention counts for both: that of keys.
const LATENT_BASE_DIM: u64 = 192;

/// An attention as a curve sees it.
pub(super) struct Attention<'a> {
    pub(super) documents: &'a [Document],
    pub(super) n_heads: u64,
    pub(super) n_kv_heads: u64,
    pub(super) head_dim: u64,
    pub(super) kv: Dtype,
}

impl Attention<'_> {
    /// Whether it is the latent attention that there are tables of.
    pub(super) const fn is_latent(&self) -> bool {
        self.head_dim == LATENT_DIM && self.n_kv_heads == self.n_heads
    }

    /// Width of a head in the base of a curve.
    pub(super) fn base_dim(&self, name: &str) -> u64 {
        if self.is_latent() && names::is_latent(name) { LATENT_BASE_DIM } else { self.head_dim }
    }
}
