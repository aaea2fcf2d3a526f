//! Parameters of a stage outside of its layers.

use crate::shard::{Framework, Shard};
use crate::stage::Stage;

/// Parameters before the first layer, embedding and positions, and behind the last one, final norm and head, over all ranks of a tensor group. Every rank has
/// the whole table of positions and the whole norm.
fn around(shard: &Shard<'_>, stage: &Stage) -> [u64; 2] {
    let (model, others) = (shard.model, u64::from(shard.tp - 1));
    let first = model.first_stage_parameters() + others * model.position_parameters();
    let last = model.last_stage_parameters(stage.first) + others * model.final_norm_parameters();
    [u64::from(stage.first) * first, u64::from(stage.last) * last]
}

/// Parameters of a stage on one rank before its first layer, and behind its last one. A shared table lies before.
pub fn around_layers(shard: &Shard<'_>, stage: &Stage) -> [f64; 2] {
    around(shard, stage).map(|parameters| hw::real(parameters) / f64::from(shard.tp))
}

/// Parameters over all ranks with what predicts further tokens.
pub(super) fn parameters(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let predicts = stage.last && shard.framework == Framework::MegatronCore;
    let joining = if predicts { shard.model.joining_parameters(stage.first) } else { 0 };
    around(shard, stage).iter().sum::<u64>() + joining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::model::embedded;

    fn stage(first: bool, last: bool) -> Stage {
        Stage { first, last, ..Stage::default() }
    }

    #[test]
    fn every_rank_has_the_whole_table_of_positions() {
        let model = Model { learned_positions: true, max_positions: 2048, ..embedded("llama-3-8b").expect("embedded") };
        for tp in [1, 2, 8] {
            let on_all = parameters(&Shard::forward(&model, hw::Dtype::Bf16, tp), &stage(true, false));
            assert_eq!(on_all, (128_256 + u64::from(tp) * 2048) * 4096);
        }
    }

    #[test]
    fn a_layer_that_predicts_has_a_product_that_joins_and_an_embedding_where_the_stage_has_none() {
        let plain = embedded("llama-3-8b").expect("embedded");
        let model = plain.clone().with_predicting(2);
        let of = |model: &Model, framework, stage: &Stage| {
            parameters(&Shard { framework, ..Shard::forward(model, hw::Dtype::Bf16, 2) }, stage)
        };
        // Two norms and one product of two vectors each, and a norm behind the layer.
        let joins = 2 * (2 * 4096 * 4096 + 3 * 4096);
        for (stage, copy) in [(stage(true, true), 0), (stage(false, true), 128_256 * 4096), (stage(true, false), 0)] {
            let more = of(&model, Framework::MegatronCore, &stage) - of(&plain, Framework::MegatronCore, &stage);
            assert_eq!(more, if stage.last { joins + copy } else { 0 });
            assert_eq!(of(&model, Framework::Formulas, &stage), of(&plain, Framework::Formulas, &stage));
        }
    }

    /// Mixtral 8x7B: a router of eight columns, two norms and a last norm of 4,096 numbers are on every rank.
    #[test]
    fn router_and_norms_are_whole_on_every_rank() {
        let model = crate::model::embedded("mixtral-8x7b").expect("embedded");
        let stage = Stage { n_expert: 3, last: true, ..Stage::default() };
        for framework in [Framework::Formulas, Framework::MegatronCore] {
            let on_rank = |tp: u32| {
                crate::memory::stage_parameters(
                    &Shard { framework, ..Shard::forward(&model, hw::Dtype::Bf16, tp) },
                    &stage,
                )
                .0
            };
            let whole = hw::real(3 * 4096 * (8 + 2) + 4096);
            for tp in [2, 8] {
                let expected = (on_rank(1) - whole) / f64::from(tp) + whole;
                assert!((on_rank(tp) - expected).abs() < 0.5, "{tp}");
            }
        }
    }

    /// Nemotron 3 Super: tokens of 4,096 numbers become 1,024 for the experts, and 4,096 behind them, of two bytes.
    #[test]
    fn projections_around_latent_experts_are_whole_on_every_rank() {
        let latent = crate::model::embedded("nemotron-3-super-120b-a12b").expect("embedded");
        let experts = latent.experts.map(|experts| crate::model::Experts { latent: None, ..experts });
        let wide = Model { experts, ..latent.clone() };
        let stage = Stage { n_expert: 1, ..Stage::default() };
        for tp in [1, 2, 8] {
            let shards = [&latent, &wide].map(|model| Shard::forward(model, hw::Dtype::Bf16, tp));
            let [narrow, wide] = shards.map(|shard| crate::memory::stage_parameters(&shard, &stage).0);
            assert!((narrow - wide - 2.0 * 4096.0 * 1024.0).abs() < 0.5, "{tp}: {}", narrow - wide);
            // What is stored in the format of dense products is whole as well.
            let formats = |dense| crate::formats::Formats { dense, ..crate::formats::Formats::of(hw::Dtype::Bf16) };
            let bytes =
                |dense| crate::memory::stage_weight_bytes(&Shard { formats: formats(dense), ..shards[0] }, &stage);
            let shared = hw::real(2 * 4096 * 5376) / f64::from(tp);
            let saved = bytes(hw::Format::Bf16) - bytes(hw::Format::Fp8);
            assert!((saved / (2.0 * 4096.0 * 1024.0 + shared) - 1.0).abs() < 0.01, "{tp}: {saved}");
        }
    }
}
