//! What layers that predict further tokens compute besides a layer (Megatron-Core, `MultiTokenPredictionBlock`).

use super::{Writer, repeated};
use crate::shard::{Framework, Shard};
use crate::task::{Ops, PassKind};

/// The head's operations and those of each layer that predicts: it norms the vector of the layer before and the embedding of the next token, joins both by a
/// product (`eh_proj`), and sends its output through the same head.
pub(super) fn with_heads(shard: &Shard<'_>, tokens: u64, kind: PassKind, head: Ops) -> Ops {
    let n = if shard.framework == Framework::MegatronCore { shard.model.n_predicting } else { 0 };
    if n == 0 {
        return head;
    }
    let n = u32::try_from(n).expect("few layers predict");
    let mut writer = Writer::new(shard, tokens, kind);
    let hidden = shard.model.hidden;
    writer.residual(4 * hidden);
    writer.enter(shard.formats.dense);
    writer.gemm(hidden.div_ceil(writer.cut), 2 * hidden);
    let mut ops = repeated(&head, 1 + n);
    ops.extend(repeated(&writer.done(), n));
    ops
}

#[cfg(test)]
mod tests {
    use crate::layer::head;
    use crate::model::embedded;
    use crate::shard::{Framework, Shard};
    use crate::task::{Op, PassKind};

    #[test]
    fn each_layer_that_predicts_joins_two_vectors_and_has_the_head_once_more() {
        let plain = embedded("llama-3-8b").expect("embedded");
        // Multiplications of ten tokens on one of two ranks.
        let products = |n: u64, framework, kind| {
            let model = plain.clone().with_predicting(n);
            let shard = Shard { framework, ..Shard::forward(&model, hw::Dtype::Bf16, 2) };
            let of = |(op, count): &(Op, u32)| {
                if let Op::Gemm { m, n, k, .. } = op { m * n * k * u64::from(*count) } else { 0 }
            };
            head(&shard, 10, kind).iter().map(of).sum::<u64>()
        };
        let (of_head, joins) = (10 * 4096 * 128_256 / 2, 10 * 2 * 4096 * 4096 / 2);
        for (kind, times) in [(PassKind::Forward, 1), (PassKind::Backward, 2), (PassKind::Weight, 1)] {
            for n in [0, 1, 3] {
                let expected = times * ((1 + n) * of_head + n * joins);
                assert_eq!(products(n, Framework::MegatronCore, kind), expected, "{n} {kind:?}");
            }
            assert_eq!(products(2, Framework::Formulas, kind), times * of_head, "{kind:?}");
        }
    }
}
