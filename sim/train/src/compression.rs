//! Which tokens merge before an all-to-all: hashes, buckets and how alike tokens are.
//!
//! LSH-MoE (arXiv:2411.08446). What merging costs are operations of the engine (`engine::compression`); what it merges is in `hash.rs`,
//! `merge.rs` and `tokens.rs`. Memory is counted as without compression: fewer rows at the experts against residuals and bucket numbers
//! at the sender.

pub mod hash;
pub mod merge;
pub mod tokens;

#[cfg(test)]
mod tests {
    use engine::compression::{Compression, ExpertRows};
    use engine::task::{Op, Ops, PassKind};

    use crate::problem::Problem;

    /// Speed-up of a step that spends `share` of its time in all-to-all when `rate` of the rows travel and the merging takes
    /// `overhead` of the uncompressed step: 1 / ((1 − s) + s·ρ + o).
    fn speedup(share: f64, rate: f64, overhead: f64) -> f64 {
        1.0 / (1.0 - share + share * rate + overhead)
    }

    /// Overhead that explains a measured speed-up: the inverse of `speedup`.
    fn overhead(share: f64, rate: f64, measured: f64) -> f64 {
        1.0 / measured - (1.0 - share + share * rate)
    }

    #[test]
    fn the_work_is_that_of_the_published_formulas() {
        // T_hash: 2 n k h d q operations, and 2 n k h elements for the means and again for the restored rows (n k rows of h).
        let gpu = hw::catalog::gpu("a100-sxm-40g").expect("listed");
        let mut problem = Problem {
            model: engine::model::embedded("gpt-moe-15b").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: crate::Layout::data_and_context(
                8,
                1,
                crate::layout::Zero::Off,
                crate::layout::ContextExchange::Gather,
            ),
            workload: crate::Workload { batch_size: 1, lengths: vec![128], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 128,
            execution: crate::problem::Execution::default(),
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 0,
        };
        let (rows, q, width) = (256, 6, 768);
        let compression = Compression {
            columns: q * width,
            rate_permille: 200,
            expert_rows: ExpertRows::Centroids,
            compensation: true,
            host_ns: 0,
        };
        let sums = |ops: &Ops| {
            let flops: f64 = ops.iter().map(|(op, n)| op.flops() * f64::from(*n)).sum();
            let bytes = |op: &Op| if let Op::Elementwise { bytes } = op { *bytes } else { 0 };
            (flops, ops.iter().map(|(op, n)| bytes(op) * u64::from(*n)).sum::<u64>())
        };
        let (flops, bytes) = sums(&compression.work(width, problem.dtype, rows, PassKind::Forward));
        assert!((flops - 2.0 * 256.0 * 768.0 * 768.0 * 6.0).abs() < 1.0);
        // The look for the largest coordinate reads what the rotations wrote, which the formula leaves out.
        assert_eq!(bytes, 2 * (2 * rows * 768 * 2) + rows * (q * width * 2 + 4));
        let (flops, bytes) = sums(&compression.work(width, problem.dtype, rows, PassKind::Backward));
        assert!(flops == 0.0 && bytes == 2 * (2 * rows * 768 * 2));
        assert!(compression.work(width, problem.dtype, rows, PassKind::Weight).is_empty());
        // A fifth of 256 rows, rounded up, in the exchange and at the experts; all of them where only the exchange is credited.
        assert_eq!((compression.rows_sent(rows), compression.rows_computed(rows)), (52, 52));
        let credited = Compression { expert_rows: ExpertRows::Tokens, ..compression };
        assert_eq!((credited.rows_sent(rows), credited.rows_computed(rows)), (52, 256));
        // Without expert ranks there is no exchange and nothing is merged.
        problem.execution.experts.compression = Some(compression);
        assert_eq!(problem.shard().compression, None);
        problem.layout.ep = 8;
        assert_eq!(problem.shard().compression, Some(compression));
    }

    #[test]
    fn published_points_of_the_closed_form() {
        // GPT-MoE 15B: 30 % in all-to-all, a fifth of the rows: 1.32, published 1.3 to 1.4 on six tasks (table 2).
        assert!((speedup(0.30, 0.20, 0.0) - 1.0 / 0.76).abs() < 1e-12);
        // Swin-MoE-L: 70 %, 11.7 %, 184.3 to 236.6 samples/s (table 3). Ideally 2.6 times as fast; what is missing is 40 % of the step.
        assert!((speedup(0.70, 0.117, 0.0) - 2.62).abs() < 0.01);
        let missing = overhead(0.70, 0.117, 236.6 / 184.3);
        assert!((missing - 0.40).abs() < 0.005, "{missing}");
        assert!((speedup(0.70, 0.117, missing) - 236.6 / 184.3).abs() < 1e-12);
    }
}
