//! How far a measured step may lie from its prediction: what costs leave open by what they rest on.
//!
//! A step is a sum of kernels, exchanges and a host. Each is off by a share of its own, and they do not err together, so their parts of the step add
//! up as squares do. Kernels of the card's own tables are known best. Lent kernels, and those by the datasheet, are known less, and
//! exchanges that nothing hides least: they depend on a fabric and a library that no row states.

use engine::cost::Source;
use train::metrics::Metrics;
use train::problem::Problem;

use super::row::{Kernels, Run};

/// By how much kernels are off that the card's own tables have.
const OWN: f64 = 0.06;
/// The same where libraries are of another age than the tables'. Two prints of one setting by different releases lie 10.6 % apart in the mean (Bridge's
/// table, `order.rs`). Normal errors of which two differ by that stay within 15.5 % nine times of ten; with the tables' own, as squares add up, 17 %.
const OTHER_AGE: f64 = 0.17;
/// The same of kernels that are lent, follow from a datasheet, or are not those of the tables.
const LENT: f64 = 0.30;
/// The same of exchanges that nothing hides.
const EXCHANGE: f64 = 0.40;
/// The same of a host that launches.
pub(super) const HOST: f64 = 0.20;

/// Half of the width that is left open, as the logarithm of a factor.
pub fn half_width(metrics: &Metrics, run: &Run) -> f64 {
    let share = |key: &str| metrics.values.get(key).copied().unwrap_or(0.0);
    let kernels = share("busy_gemm_ratio") + share("busy_attention_ratio") + share("busy_memory_bound_ratio");
    let (own_off, own) = match run.kernels {
        Kernels::Usual => (OWN, kernels * own_share(metrics)),
        Kernels::OfOtherAge => (OTHER_AGE, kernels * own_share(metrics)),
        Kernels::Unlisted => (OWN, 0.0),
    };
    let parts = [
        (own_off, own),
        (LENT, kernels - own),
        (EXCHANGE, share("comm_exposed_ratio")),
        (run.host_off, share("busy_host_ratio")),
    ];
    // Ranks wait for what is off elsewhere, so waiting is as far off as the rest.
    let at_work = 1.0 - share("wait_ratio");
    if at_work > 0.0 { joined(parts) / at_work } else { 0.0 }
}

/// Root of the sum of squares of parts that are off by a share each.
fn joined(parts: [(f64, f64); 4]) -> f64 {
    parts.iter().map(|(off, part)| off * part * off * part).sum::<f64>().sqrt()
}

/// Share of the time of kernels that the card's own tables have.
fn own_share(metrics: &Metrics) -> f64 {
    let (mut own, mut all) = (0.0, 0.0);
    for (what, source, seconds) in metrics.provenance.seconds() {
        if what != "host" {
            all += seconds;
            own += if source == Source::Measured { seconds } else { 0.0 };
        }
    }
    if all > 0.0 { own / all } else { 0.0 }
}

impl Run {
    /// With usual kernels and a host that is off as others are; nothing else may have run. A step has so many sequences in a micro-batch, and so many
    /// micro-batches in each group.
    pub(super) fn usual(problem: Problem, [micro_batch, n_micro_batches]: [u32; 2], tokens: u64) -> Self {
        Self {
            problem,
            micro_batch,
            n_micro_batches,
            tokens,
            kernels: Kernels::Usual,
            host_off: HOST,
            host_waits_s: 0.0,
            other: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_err_together_add_up_as_squares() {
        // 0.06 · 0.7 = 0.042 and 0.4 · 0.14 = 0.056: 0.07 together.
        let found = joined([(OWN, 0.7), (LENT, 0.0), (EXCHANGE, 0.14), (HOST, 0.0)]);
        assert!((found - 0.07).abs() < 1e-12, "{found}");
    }
}
