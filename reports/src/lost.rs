//! A policy's step against the certified lower bound, and the largest causes of the difference, in words.

use engine::cause::Cause;

use crate::PolicyResult;
use crate::quantity::{duration, percent};

/// Causes that are named.
const N_NAMED: usize = 5;

/// Lower bound on the step, seconds, where it is known.
pub(crate) fn bound_s(result: &PolicyResult) -> Option<f64> {
    result.metrics.get("iteration_time_bound_s").copied().filter(|bound| bound.is_finite())
}

/// Causes with the seconds that they lose, in their order.
pub(crate) fn causes(result: &PolicyResult) -> Vec<(Cause, f64)> {
    let lost = |cause: Cause| Some((cause, *result.metrics.get(cause.key())?));
    Cause::ALL.into_iter().filter_map(lost).filter(|(_, seconds)| seconds.is_finite()).collect()
}

/// `no schedule with these degrees is below 1.156 s (gap 13.7 %); lost: imbalance between ranks 75.9 ms, …`.
pub(crate) fn words(result: &PolicyResult) -> Option<String> {
    let bound = bound_s(result)?;
    let gap = result.metrics.get("bound_gap_ratio").map_or_else(String::new, |gap| format!(" (gap {})", percent(*gap)));
    let mut causes = causes(result);
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named: Vec<String> = causes
        .iter()
        .take(N_NAMED)
        .map(|&(cause, seconds)| format!("{} {}", cause.name(), duration(seconds, None)))
        .collect();
    let lost = if named.is_empty() { String::new() } else { format!("; lost: {}", named.join(", ")) };
    // Causes are of a step whose tensor, pipeline and expert degrees the bound takes as they are; other bounds hold for any placement.
    let of = if named.is_empty() { "" } else { " with these degrees" };
    Some(format!("no schedule{of} is below {}{gap}{lost}", duration(bound, None)))
}

/// What the planner knows of its plan, with its time.
pub(crate) fn planner(result: &PolicyResult) -> Option<String> {
    result.planner.as_ref().map(|planner| planner.words(result.measured.planner_wall_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_largest_causes_are_named_in_order() {
        let metrics = [
            ("iteration_time_bound_s", 1.0),
            ("bound_gap_ratio", 0.5),
            ("lost_imbalance_s", 0.1),
            ("lost_bubble_s", 0.4),
            ("lost_kernel_s", 0.2),
            ("lost_recompute_s", 0.15),
            ("lost_offload_s", 0.1),
            ("lost_padding_s", 0.05),
        ];
        let metrics = metrics.map(|(key, value)| (key.to_owned(), value)).into();
        let result = PolicyResult { metrics, ..PolicyResult::default() };
        let expected = "no schedule with these degrees is below 1.000 s (gap 50.0 %); lost: pipeline bubbles 400.0 ms, kernels below their best \
                        efficiency 200.0 ms, recompute 150.0 ms, imbalance between ranks 100.0 ms, offload stalls 100.0 ms";
        assert_eq!(words(&result).as_deref(), Some(expected));
        assert_eq!(words(&PolicyResult::default()), None);
    }
}
