//! Heads that a tensor group puts together again, where it has more ranks than heads of keys and values.
//!
//! Megatron-Core cuts the joined projection evenly, so that a rank has a part of a head. Every rank gathers what all give, and takes its own out of it; backward
//! scatters the sums of their gradients (NVIDIA/Megatron-LM @ d98e8a64ddf3, `SelfAttention.get_query_key_value_tensors` and
//! `tensor_parallel/mappings.py`: `_gather_along_last_dim`, `_reduce_scatter_along_last_dim`). As the last axis is cut, each has a copy that puts parts in order.

use hw::GroupShape;

use super::Writer;
use crate::memory::over_layers;
use crate::model::{Mixer, Model};
use crate::shard::{Framework, Shard};
use crate::stage::Stage;
use crate::task::{Collective, Op, Ops, PassKind};

/// Elements of a token that are gathered in a layer with such a mixer; 0 where nothing is.
fn width(shard: &Shard<'_>, mixer: Mixer) -> u64 {
    let model = shard.model;
    let is_plain = model.latent.is_none() && model.compressed.is_none() && mixer.attends();
    if !is_plain || shard.framework != Framework::MegatronCore {
        return 0;
    }
    let heads = model.heads(mixer);
    let is_short = heads.n_kv > 0 && heads.n_kv < u64::from(shard.tp);
    if is_short { model.query_columns(mixer) + heads.projected_width() } else { 0 }
}

/// The exchanges of a stage's layers in a pass.
pub(super) fn exchanged(shard: &Shard<'_>, stage: &Stage, tokens: u64, kind: PassKind, shape: GroupShape) -> Ops {
    let kind = match kind {
        PassKind::Forward => Collective::AllGather,
        PassKind::Backward | PassKind::Input => Collective::ReduceScatter,
        PassKind::Weight => return Ops::new(),
    };
    let mut widths: Vec<u64> = shard.model.layers.kinds().iter().map(|layer| width(shard, layer.mixer)).collect();
    widths.sort_unstable();
    widths.dedup();
    let of_width = |wanted: u64| {
        let is_one = |_: &Model, layer: crate::model::Layer| u64::from(width(shard, layer.mixer) == wanted);
        let n = hw::whole(over_layers(shard, stage, is_one).round());
        let bytes = tokens * wanted * shard.dtype.bytes();
        (Op::Collective { kind, bytes, shape }, u32::try_from(n).expect("layers fit u32"))
    };
    let gathered = widths.into_iter().filter(|width| *width > 0).map(of_width);
    gathered.filter(|(_, n)| *n > 0).collect()
}

/// The copy beside the exchange of a layer: all parts are read and written.
pub(super) fn copied(writer: &mut Writer<'_>, mixer: Mixer) {
    let elements = writer.tokens * width(writer.shard, mixer);
    if elements > 0 {
        writer.moves(elements, [2 * writer.shard.dtype.bytes(); 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{before_attention, tensor_exchange};
    use super::*;

    /// 32 heads of queries and 8 of keys and values of 128 numbers each.
    #[test]
    fn more_ranks_than_heads_of_keys_gather_the_whole_projection() {
        let model = crate::model::embedded("llama-3-8b").expect("listed");
        let stage = Stage { n_dense: 4, ..Stage::NONE };
        let shape = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 4, 8).group(16, 2);
        let base = Shard {
            framework: Framework::MegatronCore,
            sequence_parallel: true,
            ..Shard::forward(&model, hw::Dtype::Bf16, 1)
        };
        let of = |framework, tp, kind| {
            let shard = Shard { framework, tp, ..base };
            let ops = tensor_exchange(&shard, &stage, 100, kind, shape);
            let is_wide = |op: &Op| matches!(op, Op::Collective { bytes, .. } if *bytes == 100 * 2 * 48 * 128);
            ops.into_iter().find(|(op, _)| is_wide(op))
        };
        let found = of(Framework::MegatronCore, 16, PassKind::Forward);
        assert!(matches!(found, Some((Op::Collective { kind: Collective::AllGather, .. }, 4))), "{found:?}");
        let found = of(Framework::MegatronCore, 16, PassKind::Backward);
        assert!(matches!(found, Some((Op::Collective { kind: Collective::ReduceScatter, .. }, 4))), "{found:?}");
        assert_eq!(of(Framework::MegatronCore, 16, PassKind::Weight), None);
        assert_eq!(of(Framework::MegatronCore, 8, PassKind::Forward), None);
        assert_eq!(of(Framework::Formulas, 16, PassKind::Forward), None);
        let copied = |tp| {
            let ops = before_attention(&Shard { tp, ..base }, 100, PassKind::Forward);
            ops.iter().any(|(op, _)| *op == Op::Elementwise { bytes: 2 * 100 * 2 * 48 * 128 })
        };
        assert!(copied(16) && !copied(8));
    }
}
