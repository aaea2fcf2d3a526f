//! Parameters of a stage outside of its layers.

use crate::shard::{Framework, Shard};
use crate::stage::Stage;

/// Parameters of embedding, positions, final norm and head, and of what predicts further tokens, over all ranks of a tensor group.
pub(super) fn parameters(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let model = shard.model;
    let mut all = 0;
    if stage.first {
        // Every rank has the whole table of positions.
        all += model.first_stage_parameters() + u64::from(shard.tp - 1) * model.position_parameters();
    }
    if stage.last {
        all += model.last_stage_parameters(stage.first);
        if shard.framework == Framework::MegatronCore {
            all += model.joining_parameters(stage.first);
        }
    }
    all
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
}
