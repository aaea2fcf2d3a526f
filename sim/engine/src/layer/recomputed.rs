//! Operations that backward computes again: attention, norms and activation functions, or whole modules of a layer.

use super::attending::latent_parts_copied;
use super::{Writer, attention, experts, feed_forward, single, torch};
use crate::memory;
use crate::model::{CompressedAttention, LatentAttention};
use crate::recompute::{Module, Recompute};
use crate::shard::{AttentionKernel, ExpertLoad, Shard};
use crate::task::{Document, Ops, Pass, PassKind};
use crate::unfused::Fusion;

/// What backward computes again per layer that recomputes in part; a layer of experts has a load. Selective: attention internals where they are
/// not fused, else norms and the activation function.
pub fn recomputed_part(shard: &Shard<'_>, tokens: u64, documents: &[Document], load: Option<&ExpertLoad>) -> Ops {
    match shard.recompute {
        _ if tokens == 0 => Vec::new(),
        Recompute::Off | Recompute::Full => Vec::new(),
        Recompute::Modules(modules) => {
            let of = |module| recomputed_module(shard, module, tokens, documents, load);
            modules.apart(load.is_some()).flat_map(of).collect()
        }
        Recompute::Selective if shard.attention == AttentionKernel::Unfused => {
            attention(shard, documents, 1, Pass::Forward)
        }
        Recompute::Selective => norms_and_activation(shard, tokens, load.is_some()),
    }
}

/// Forward of one module of a layer.
fn recomputed_module(
    shard: &Shard<'_>,
    module: Module,
    tokens: u64,
    documents: &[Document],
    load: Option<&ExpertLoad>,
) -> Ops {
    let model = shard.model;
    let mut writer = Writer::new(shard, tokens, PassKind::Forward);
    match (module, model.experts, model.latent, load) {
        (Module::CoreAttention, ..) => return attention(shard, documents, 1, Pass::Forward),
        // Layers of hybrids mix tokens or compute on them one by one: each has one norm.
        (Module::Norms, ..) if model.state_space.is_some() => writer.residual(2 * model.hidden),
        (Module::Norms, ..) => writer.residual(4 * model.hidden),
        (Module::UpProjections, _, Some(latent), _) => up_projections(&mut writer, latent),
        (Module::UpProjections, ..) if let Some(compressed) = model.compressed => {
            queries_and_key(&mut writer, compressed)
        }
        (Module::FeedForward, ..) => feed_forward(&mut writer, model.intermediate),
        (Module::Experts, Some(experts), _, Some(load)) => experts::feed_forward(&mut writer, experts, *load),
        (Module::ExpertActivation, Some(experts), _, Some(load)) => experts::activation(&mut writer, experts, *load),
        (Module::SharedExperts, Some(experts), _, Some(_)) if experts.shared_intermediate > 0 => {
            feed_forward(&mut writer, experts.shared_intermediate);
        }
        _ => {}
    }
    writer.done()
}

/// What latent attention makes of its compressed queries, keys and values. Queries that are not compressed are projected there too
/// (Megatron-Core, `MLASelfAttention`, `qkv_up_proj_and_rope_apply`).
fn up_projections(writer: &mut Writer<'_>, latent: LatentAttention) {
    let model = writer.shard.model;
    writer.enter(writer.shard.formats.attention);
    writer.column(model.n_heads * (latent.nope_dim + latent.rope_dim), latent.q_rank.unwrap_or(model.hidden));
    writer.column(model.n_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
    latent_parts_copied(writer, latent);
}

/// The same of compressed attention: queries with their norms, and the key of a token (`DSv4HybridSelfAttention` of the branch `dev`).
fn queries_and_key(writer: &mut Writer<'_>, compressed: CompressedAttention) {
    let model = writer.shard.model;
    writer.enter(writer.shard.formats.attention);
    writer.column(model.n_heads * model.head_dim, compressed.q_rank);
    writer.elementwise(2 * model.n_heads * model.head_dim);
    writer.gemm(model.head_dim, model.hidden);
}

fn norms_and_activation(shard: &Shard<'_>, tokens: u64, with_experts: bool) -> Ops {
    let model = shard.model;
    let wide = memory::feed_forward_width(shard, with_experts);
    let mut writer = Writer::new(shard, tokens, PassKind::Forward);
    writer.residual(4 * model.hidden);
    match model.experts.filter(|_| with_experts) {
        Some(experts) if shard.is_unfused(Fusion::Activation) => {
            let elements = (tokens * wide).div_ceil(u64::from(shard.tp));
            single::activation(&mut writer, elements, single::weight(shard, experts));
        }
        Some(_) => writer.elementwise(if model.gated { 3 } else { 2 } * wide),
        None => single::dense_activation(&mut writer, wide),
    }
    if shard.framework.torch().is_some() {
        torch::every_second_product(&mut writer, wide);
    }
    writer.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Framework;
    use hw::Dtype;

    #[test]
    fn modules_compute_their_forward_again() {
        let model = crate::model::embedded("deepseek-v3").expect("embedded");
        let again = |module, load| {
            let recompute = Recompute::Modules(crate::recompute::Modules::NONE.with(module));
            let shard = Shard {
                recompute,
                ep: 8,
                framework: Framework::MegatronCore,
                ..Shard::forward(&model, Dtype::Bf16, 1)
            };
            recomputed_part(&shard, 100, &[Document::causal(100)], load)
        };
        let flops = |ops: &Ops| -> f64 { ops.iter().map(|(op, n)| op.flops() * f64::from(*n)).sum() };
        let even = Some(&ExpertLoad::EVEN);
        // Queries of 128 heads of 192 from 1536 numbers, keys and values of 128 and 128 from 512.
        let up = 2.0 * 100.0 * 128.0 * (192.0 * 1536.0 + 256.0 * 512.0);
        assert!((flops(&again(Module::UpProjections, even)) / up - 1.0).abs() < 1e-12);
        // Eight experts and a shared one of three matrices of 2048 by 7168, and the router over 256.
        let experts = 2.0 * 100.0 * 7168.0 * (9.0 * 3.0 * 2048.0 + 256.0);
        assert!((flops(&again(Module::Experts, even)) / experts - 1.0).abs() < 1e-12);
        assert!(flops(&again(Module::Norms, even)) == 0.0 && !again(Module::Norms, even).is_empty());
        assert!(again(Module::FeedForward, even).is_empty() && again(Module::Experts, None).is_empty());
        assert_eq!(
            again(Module::CoreAttention, None),
            attention(
                &Shard { framework: Framework::MegatronCore, ..Shard::forward(&model, Dtype::Bf16, 1) },
                &[Document::causal(100)],
                1,
                Pass::Forward
            )
        );
    }
}
