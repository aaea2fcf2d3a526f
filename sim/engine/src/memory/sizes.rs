//! Sizes on one rank that every framework shares: of numbers, of what a tensor group cuts, of weights by module. Units: bytes, elements.

use crate::shard::Shard;

/// Bytes of the number per query and head that attention keeps of its softmax.
pub(super) const SOFTMAX_BYTES: u64 = 4;
/// Bytes of a 16-bit number.
pub(super) const HALF: u64 = 2;

pub(super) fn cut(shard: &Shard<'_>, bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(shard.tp))
}

/// Cut over the tensor group by sequence parallelism alone.
pub(super) fn serial(shard: &Shard<'_>, bytes: u64) -> u64 {
    if shard.sequence_parallel { cut(shard, bytes) } else { bytes }
}

/// Elements of the different weights around attention on one rank.
pub(super) fn attention_weights(shard: &Shard<'_>) -> u64 {
    let (model, tp) = (shard.model, u64::from(shard.tp));
    let Some(latent) = model.latent else {
        let width = model.n_heads * model.head_dim;
        return (model.hidden * (2 * width + 2 * model.kv_width())).div_ceil(tp);
    };
    let query = model.n_heads * (latent.nope_dim + latent.rope_dim);
    let (down, up) = latent.q_rank.map_or((0, model.hidden), |rank| (model.hidden * rank, rank));
    let kept = model.hidden * (latent.kv_rank + latent.rope_dim);
    let wide = latent.kv_rank * model.n_heads * (latent.nope_dim + latent.value_dim);
    let output = model.n_heads * latent.value_dim * model.hidden;
    down + kept + (up * query + wide + output).div_ceil(tp)
}

/// Elements of both products of a feed-forward on one rank.
pub(super) fn feed_forward_weights(shard: &Shard<'_>, intermediate: u64, cut: u64) -> u64 {
    let projections = if shard.model.gated { 3 } else { 2 };
    (projections * shard.model.hidden * intermediate).div_ceil(cut)
}
