//! How long a part of a card is busy: its memory at the datasheet's bandwidth, or its units for products at the datasheet's peak.
//!
//! Work and not time: nothing starts, nothing waits, and no kernel is slower than its card. So the parts of a step add up, whatever runs beside
//! what. Links and the host are not of the card and do nothing. What a card draws follows from both (`hw::power`). Units: seconds.

use hw::{Bytes, Flops, Gpu, Seconds};

use crate::cost::decode::{DecodeLaw, DecodeShape, ShapedDecode};
use crate::cost::experts::FusedExperts;
use crate::cost::{CostModel, Estimate, Source};
use crate::task::{CopyKind, Document, Op, PassKind};

/// A part of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its memory.
    Memory,
    /// Its units for products.
    Products,
}

/// How long a part of a card is busy, asked as what costs are asked.
#[derive(Clone, Copy, Debug)]
pub struct Busy<'a> {
    /// The part.
    pub part: Part,
    /// The card.
    pub gpu: &'a Gpu,
}

impl Busy<'_> {
    fn seconds(&self, op: &Op) -> Seconds {
        match self.part {
            Part::Memory => Bytes::from_f64(moved(op)) / self.gpu.memory_bandwidth,
            Part::Products => match op {
                Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => {
                    Flops::new(op.flops()) / self.gpu.peak(*format)
                }
                _ => Flops::new(op.flops()) / self.gpu.peak_bf16,
            },
        }
    }

    /// Seconds of a key that a decoding sequence attends to. Every query head multiplies a key once with its query, and once with its weight.
    fn of_key(&self, shape: &DecodeShape) -> Seconds {
        match self.part {
            Part::Memory => Bytes(shape.token_bytes()) / self.gpu.memory_bandwidth,
            Part::Products => Flops::new(4.0 * hw::real(shape.n_heads) * hw::real(shape.head_dim)) / self.gpu.peak_bf16,
        }
    }
}

/// What the elementary parts of an operation take together: work that is slowed, or that waits for a host, is no more work.
pub fn work(of_part: &impl CostModel, op: &Op) -> Estimate {
    match op {
        Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => {
            let seconds = |(part, n): &(Op, u32)| work(of_part, part).time * f64::from(*n);
            Estimate::exact(parts.iter().map(seconds).sum(), Source::Measured)
        }
        elementary => of_part.elementary(elementary),
    }
}

/// Bytes that an elementary operation reads and writes of its card's memory.
pub(super) fn moved(op: &Op) -> f64 {
    match op {
        Op::Gemm { m, n, k, format } => format.product_bytes(*m, *n, *k),
        Op::GroupedGemm { rows, n, k, format, .. } => {
            let visited = rows.iter().filter(|rows| **rows > 0);
            visited.map(|rows| format.product_bytes(*rows, *n, *k)).sum()
        }
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, .. } => {
            let keys = 2 * n_kv_heads * head_dim * kv.bytes();
            let queries = 2 * n_heads * head_dim * 2;
            let of = |document: &Document| hw::real(document.queries * queries + document.keys * keys);
            documents.iter().map(of).sum()
        }
        Op::Elementwise { bytes } => hw::real(*bytes),
        Op::Embedding { tokens, row_bytes } => hw::real(2 * tokens * row_bytes),
        Op::Copy { kind: CopyKind::DeviceToDevice, bytes } => hw::real(2 * bytes),
        Op::Copy { bytes, .. } => hw::real(*bytes),
        Op::Collective { .. } | Op::Host { .. } | Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => 0.0,
    }
}

impl CostModel for Busy<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        Estimate::exact(self.seconds(op), Source::Measured)
    }

    fn estimate(&self, op: &Op) -> Estimate {
        work(self, op)
    }

    fn experts(&self, layer: &FusedExperts) -> Option<Estimate> {
        let FusedExperts { hidden, width, format, .. } = *layer;
        let product = |n, k| Op::GroupedGemm { rows: layer.rows.clone(), n, k, format, kind: PassKind::Forward };
        let products = vec![(product(width * (layer.n_matrices() - 1), hidden), 1), (product(hidden, width), 1)];
        Some(self.estimate(&Op::Sequence(products)))
    }

    fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        // A law is a share of the memory's bandwidth.
        let of_memory = Bytes(shape.token_bytes()) / self.gpu.memory_bandwidth;
        let reached = of_memory.get() / self.of_key(shape).get();
        let law = DecodeLaw { start_s: 0.0, per_sequence_s: 0.0, reached, mixed: None, ..DecodeLaw::assumed() };
        Some(ShapedDecode::of_law(&law, *shape, self.gpu.memory_bandwidth))
    }
}

#[cfg(test)]
mod tests {
    use hw::{Dtype, Format};

    use super::*;
    use crate::cost::decode::Reads;

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found}, not {wanted}");
    }

    #[test]
    fn parts_are_busy_for_what_the_datasheet_says_and_nothing_starts() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let [memory, products] = [Part::Memory, Part::Products].map(|part| Busy { part, gpu: &gpu });
        let op = Op::Gemm { m: 8, n: 4096, k: 4096, format: Format::Bf16 };
        near(products.estimate(&op).time.get(), 2.0 * 8.0 * 4096.0 * 4096.0 / 989e12);
        near(memory.estimate(&op).time.get(), 2.0 * (4096.0 * 4096.0 + 2.0 * 8.0 * 4096.0) / 3.35e12);
        let parts = vec![(op.clone(), 2), (Op::Host { ns: 1_000_000 }, 1)];
        let [slowed, waiting] =
            [Op::Slowed { parts: parts.clone(), permille: 1500 }, Op::Launched { parts, ns: 1_000_000 }];
        for more in [slowed, waiting] {
            near(products.estimate(&more).time.get(), 2.0 * products.estimate(&op).time.get());
        }
    }

    #[test]
    fn a_key_is_read_once_and_multiplied_twice_by_every_query_head() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let shape = DecodeShape { n_heads: 32, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, reads: Reads::Heads };
        let of = |part| Busy { part, gpu: &gpu }.decode(&shape).expect("any shape").alone(4);
        near(of(Part::Memory).per_key_s, 4096.0 / 3.35e12);
        near(of(Part::Products).per_key_s, 4.0 * 32.0 * 128.0 / 989e12);
        assert!(of(Part::Memory).fixed_s.abs() < 1e-15);
    }
}
