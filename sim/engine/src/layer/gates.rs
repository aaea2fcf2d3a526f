//! Gates of linear attention whose projections are products of two narrow ones (Kimi delta attention, arXiv:2510.26692).

use super::Writer;
use crate::model::{LinearAttention, LinearRule};

/// Second factors of the gate and of the decays of channels, and the softplus of those; nothing where the gate has whole projections.
pub(super) fn of_rank(writer: &mut Writer<'_>, linear: LinearAttention) {
    let LinearRule::Channels { rank } = linear.rule else { return };
    writer.column(linear.value_width(), rank);
    writer.column(linear.key_width(), rank);
    writer.elementwise(2 * linear.key_width());
}
