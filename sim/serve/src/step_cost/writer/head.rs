//! What follows the layers: norm, head and sampler.

use engine::cost::{CostModel, Estimate, Source};
use engine::task::{Collective, Op};
use hw::Seconds;

use super::Writer;
use crate::sampler::Work;

/// Bytes read and written per logit by the sampler: 16-bit read, 32-bit write and read.
const SAMPLER_BYTES_PER_LOGIT: u64 = 10;
/// Multiprocessors of a card that is not of the catalogue: those of an H100.
const MULTIPROCESSORS: u32 = 132;

impl Writer<'_> {
    /// Costs without sparse weights, which layers alone have. A head may have the shape of one of their products.
    fn dense(&self) -> &dyn CostModel {
        let below = self.cost.inner().filter(|_| self.deployment.sparse_weights.is_some());
        below.unwrap_or(self.cost)
    }

    /// Final norm, head, gathered logits and sampler.
    pub(in crate::step_cost) fn head(&self, n: u64) -> Seconds {
        let (model, dtype) = (self.shard.model, self.shard.dtype);
        let columns = model.vocab.div_ceil(u64::from(self.shape.n_ranks));
        let mut ops = vec![
            (Op::Elementwise { bytes: 2 * n * model.hidden * dtype.bytes() }, 1),
            (Op::Gemm { m: n, n: columns, k: model.hidden, format: self.shard.formats.head }, 1),
            (Op::Elementwise { bytes: n * model.vocab * SAMPLER_BYTES_PER_LOGIT }, 1),
        ];
        if self.shape.n_ranks > 1 {
            let bytes = n * model.vocab * dtype.bytes();
            ops.push((Op::Collective { kind: Collective::AllGather, bytes, shape: self.shape }, 1));
        }
        self.sum_by(self.dense(), ops) + self.drawn((n, model.vocab))
    }

    /// What drawing from so many rows of logits takes beside reading them.
    fn drawn(&self, rows: (u64, u64)) -> Seconds {
        let gpu = &self.deployment.cluster.gpu;
        let multiprocessors = hw::catalog::multiprocessors(&gpu.name).unwrap_or(MULTIPROCESSORS);
        let work = self.deployment.drawing.work(rows, multiprocessors.into());
        if work == Work::default() {
            return Seconds::ZERO;
        }
        let moved = |bytes: u64| match bytes {
            0 => Estimate::exact(Seconds::ZERO, Source::Published),
            _ => self.cost.estimate(&Op::Elementwise { bytes }),
        };
        let by_rows = moved(work.by_rows);
        let by_rows = if by_rows.time < work.block { Estimate::exact(work.block, Source::Published) } else { by_rows };
        self.own("sampler", &by_rows.then(moved(work.passes)), 1)
    }
}
