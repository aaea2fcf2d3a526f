//! How much of the attention's mass a sparse pattern keeps, and how many positions that takes (Qwen2.5-1M, arXiv:2501.15383, section 3.2.3).

/// Share of the attention mass that a sparse pattern keeps, from the log-sum-exps of sparse and full attention.
#[must_use]
pub fn recall(log_sum_exp_sparse: f64, log_sum_exp_full: f64) -> f64 {
    libm::exp((log_sum_exp_sparse - log_sum_exp_full).min(0.0))
}

/// Sparsity refinement: positions are added by `step` until the recall reaches `wanted` or `most` positions are kept.
///
/// Ends for every `recall_of`: each round adds at least one position. The shipped budgets lie on such ladders of 2,048.
pub fn refined(start: u64, step: u64, most: u64, wanted: f64, recall_of: &dyn Fn(u64) -> f64) -> u64 {
    let mut positions = start.min(most);
    while positions < most && recall_of(positions) < wanted {
        positions = (positions + step.max(1)).min(most);
    }
    positions
}

#[cfg(test)]
mod tests {
    use engine::random;

    use super::*;
    use crate::partial_attention::PartialAttention;

    #[test]
    fn recall_rises_to_one_with_the_budget_and_refinement_ends() {
        let mut stream = random::stream(5, "scores");
        let mut scores: Vec<f64> = (0..500).map(|_| 12.0 * stream.unit()).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        let values = vec![vec![1.0]; scores.len()];
        let lse = |n: usize| PartialAttention::over(&scores[..n], &values[..n], 1).log_sum_exp();
        let recall_of = |n: u64| recall(lse(usize::try_from(n).expect("small")), lse(500));
        let recalls: Vec<f64> = (0..=10).map(|n| recall_of(n * 50)).collect();
        assert!(recalls.is_sorted() && recalls[0] == 0.0 && (recalls[10] - 1.0).abs() < 1e-12, "{recalls:?}");
        let kept = refined(10, 16, 500, 0.9, &recall_of);
        assert!(recall_of(kept) >= 0.9 && recall_of(kept - 16) < 0.9, "{kept}");
        assert_eq!(refined(10, 0, 500, 2.0, &recall_of), 500, "an unreachable recall ends at everything");
    }
}
