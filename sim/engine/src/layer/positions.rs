//! Rotary positions of queries and keys. Units: bytes.

use super::Writer;
use super::strided::Strided;

/// Bytes per element of 16 bits that single kernels of positions read and write. Forward: two products, a negative half and its join, and a sum. Backward: two
/// products, a negative half and its join, two cuts that are filled up with zeros, and two sums.
const SINGLE_BYTES: [f64; 2] = [20.0, 34.0];
/// The same of a plain kernel: in forward a join with what is not rotated.
const JOIN_BYTES: [f64; 2] = [4.0, 0.0];

/// Positions of so many elements of queries and keys, by a fused kernel or by PyTorch's single ones (`_apply_rotary_pos_emb_bshd`).
pub(super) fn rotate(writer: &mut Writer<'_>, width: u64) {
    let model = writer.shard.model;
    if model.learned_positions || model.style.positions != crate::model::Positions::Rotary {
        return;
    }
    if !writer.shard.rotates_singly() {
        return writer.elementwise(2 * width);
    }
    let elements = (writer.tokens * width).div_ceil(writer.cut);
    writer.moves_strided(elements, Strided::Positions, SINGLE_BYTES, JOIN_BYTES);
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use crate::layer::before_attention;
    use crate::model::{Model, Positions, Style};
    use crate::shard::{Framework, Shard};
    use crate::task::{Op, PassKind};

    #[test]
    fn scaled_positions_are_single_kernels_in_megatron_core_alone() {
        let model = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let moved = |framework, kind| {
            let shard = Shard { framework, ..Shard::forward(&model, Dtype::Bf16, 2) };
            let ops = before_attention(&shard, 10, kind);
            ops.iter().map(|(op, _)| if let Op::Elementwise { bytes } = op { *bytes } else { 0 }).sum::<u64>()
        };
        // Half of 64 heads and of eight, 64 wide each, for ten tokens. A fused kernel reads and writes them: four bytes, and half as many again in backward.
        let elements = 10 * 36 * 64;
        let more = |kind| moved(Framework::MegatronCore, kind) - moved(Framework::Formulas, kind);
        assert_eq!(more(PassKind::Forward), elements * (24 - 4));
        assert_eq!(more(PassKind::Backward), elements * (34 - 6));
    }

    #[test]
    fn a_table_biases_and_no_positions_turn_nothing() {
        let plain = crate::model::embedded("llama-3-8b").expect("embedded");
        let turned =
            |model: &Model| before_attention(&Shard::forward(model, Dtype::Bf16, 1), 10, PassKind::Forward).len();
        let with = |positions| Model { style: Style { positions, ..plain.style }, ..plain.clone() };
        let learned = Model { learned_positions: true, ..plain.clone() };
        for without in [with(Positions::Off), with(Positions::Biases), learned] {
            assert_eq!(turned(&without) + 1, turned(&plain));
        }
    }
}
