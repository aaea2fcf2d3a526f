//! How far a measured step may lie from its prediction: what costs leave open by what they rest on.
//!
//! A step is a sum of kernels, exchanges and a host. Each is off by a share of its own, and they do not err together, so their parts of the step add
//! up as squares do. Kernels of the card's own tables are known best, then those of another card of its generation. Other lent kernels, and those by the
//! datasheet, are known less, and exchanges that nothing hides least: they depend on a fabric and a library that no row states.

use std::collections::BTreeMap;

use engine::cost::Source;
use train::metrics::Metrics;
use train::problem::Problem;

use super::row::{Counted, Kernels, Run};

/// By how much kernels are off that the card's own tables have.
const OWN: f64 = 0.06;
/// By how much more where libraries are of another age than the tables'. Two prints of one setting by different releases lie 10.6 % apart in the mean
/// (Bridge's table, `order.rs`), those of other recipes with them. Normal errors of which two differ by that stay within 15.5 % nine times of ten.
const OTHER_AGE: f64 = 0.155;
/// The same of releases of Bridge from 26.02 on. Where recipes agree too, their prints of one setting lie 3.9 % apart in the mean (110 pairs), which is 5.7 % for nine of
/// ten.
const LATER_RELEASES: f64 = 0.057;
/// The same of the first releases, whose libraries are older than every table. Their prints lie 11.4 % from other ones of the same recipe in the mean (five pairs
/// of releases 25.09 and 25.11). Without the part of later releases that is 22.7 % for nine of ten.
const FIRST_RELEASES: f64 = 0.227;
/// By how much more where another card of the generation lent them. Nine products of ten of H100 and H200 lie within 11 to 22 % of each other, three
/// engines and three formats each, and 16 % in the middle (aiconfigurator, `gemm_perf`, from 512 rows on).
const WITHIN_GENERATION: f64 = 0.16;
/// By how much kernels are off that another generation or another format lent, that follow from a datasheet, or that are not those of the tables.
const LENT: f64 = 0.30;
/// By how much exchanges are off that nothing hides.
const EXCHANGE: f64 = 0.40;
/// The same of a host that launches.
pub const HOST: f64 = 0.20;

/// Half of the width that is left open, as the logarithm of a factor.
pub fn half_width(metrics: &Metrics, kernels_are: Kernels, host_off: f64) -> f64 {
    let share = |key: &str| metrics.values.get(key).copied().unwrap_or(0.0);
    let kernels = share("busy_gemm_ratio") + share("busy_attention_ratio") + share("busy_memory_bound_ratio");
    let mut parts = vec![(EXCHANGE, share("comm_exposed_ratio")), (host_off, share("busy_host_ratio"))];
    let age = match kernels_are {
        Kernels::Usual => Some(0.0),
        // Releases change one library at a time, so each kind of kernels has its own age.
        Kernels::OfOtherAge => Some(OTHER_AGE),
        Kernels::OfFirstReleases => Some(FIRST_RELEASES),
        Kernels::OfLaterReleases => Some(LATER_RELEASES),
        // What ran is in no table: all of it is off together.
        Kernels::Unlisted => None,
    };
    match age {
        Some(age) => {
            let by_source = by_source(metrics).into_iter();
            parts.extend(by_source.map(|(source, part)| (joined(&[(off(source), 1.0), (age, 1.0)]), kernels * part)));
        }
        None => parts.push((LENT, kernels)),
    }
    // Ranks wait for what is off elsewhere, so waiting is as far off as the rest.
    let at_work = 1.0 - share("wait_ratio");
    if at_work > 0.0 { joined(&parts) / at_work } else { 0.0 }
}

/// By how much kernels of a source are off.
fn off(source: Source) -> f64 {
    match source {
        Source::Measured => OWN,
        Source::WithinGeneration => joined(&[(OWN, 1.0), (WITHIN_GENERATION, 1.0)]),
        Source::Borrowed | Source::Published | Source::Datasheet => LENT,
    }
}

/// Root of the sum of squares of parts that are off by a share each.
fn joined(parts: &[(f64, f64)]) -> f64 {
    parts.iter().map(|(off, part)| off * part * off * part).sum::<f64>().sqrt()
}

/// Shares of the time of kernels by the source of their times.
fn by_source(metrics: &Metrics) -> BTreeMap<Source, f64> {
    let mut by_source = BTreeMap::<Source, f64>::new();
    for (_, source, seconds) in metrics.provenance.seconds().filter(|(what, ..)| *what != "host") {
        *by_source.entry(source).or_default() += seconds;
    }
    let all: f64 = by_source.values().sum();
    by_source.retain(|_, seconds| *seconds > 0.0);
    by_source.values_mut().for_each(|seconds| *seconds /= all);
    by_source
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
            beside: 0.0,
            is_whole: true,
            counted: Counted::Reserved,
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
        let found = joined(&[(OWN, 0.7), (LENT, 0.0), (EXCHANGE, 0.14), (HOST, 0.0)]);
        assert!((found - 0.07).abs() < 1e-12, "{found}");
    }

    #[test]
    fn nearer_kernels_are_off_by_less() {
        let sources = [Source::Measured, Source::WithinGeneration, Source::Borrowed, Source::Datasheet];
        assert!(sources.windows(2).all(|pair| off(pair[0]) <= off(pair[1])));
        // 0.06 and 0.16 beside each other: 0.0292 = 0.171 squared.
        assert!((off(Source::WithinGeneration) - 0.171).abs() < 1e-3);
    }
}
