//! What layers that predict further tokens compute besides a layer (Megatron-Core, `MultiTokenPredictionBlock`).

use super::{Writer, repeated};
use crate::shard::{Framework, Shard};
use crate::task::{Ops, PassKind};

/// The head's operations and those of each layer that predicts: it norms the vector of the layer before and the embedding of the next token, joins both by a
/// product (`eh_proj`), and sends its output through the same head.
pub(super) fn with_heads(shard: &Shard<'_>, tokens: u64, kind: PassKind, head: &Ops) -> Ops {
    let n = if shard.framework == Framework::MegatronCore { shard.model.n_predicting } else { 0 };
    let n = u32::try_from(n).expect("few layers predict");
    let mut writer = Writer::new(shard, tokens, kind);
    let hidden = shard.model.hidden;
    writer.residual(4 * hidden);
    writer.enter(shard.formats.dense);
    writer.gemm(hidden.div_ceil(writer.cut), 2 * hidden);
    let mut ops = repeated(head, 1 + n);
    ops.extend(repeated(&writer.done(), n));
    ops
}
