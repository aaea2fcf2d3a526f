//! How far a measured step may lie from its prediction: what costs leave open by what they rest on.
//!
//! It is the interval of every step that is predicted, and `score` counts how many measured steps lie inside (`docs/accuracy-training.md`). A step is
//! a sum of kernels by kind (products, attention, norms, …), exchanges and a host. Each is off by a share of its own: a kind of kernels has a library
//! and tables of its own. They do not err together, so their parts of the step add up as squares do. Kernels of the card's own tables are known best,
//! then those of another card of its generation. Other lent kernels, and those by the datasheet, are known less, and exchanges that nothing hides
//! least: they depend on a fabric and a library that no row states. How far releases of libraries lie apart was seen of whole steps, so all kernels
//! have it together.

use std::collections::BTreeMap;

use engine::cost::{CostModel, Source};
use engine::shard::Framework;
use hw::Maker;

use super::shares::Shares;
use super::{Played, Work};
use crate::problem::{AttentionKernel, Problem};

/// Whether the kernels of a run are those that tables were measured with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// Those of the library's choice, as in tables.
    #[default]
    Usual,
    /// The same of libraries of another age than the tables', or of an age that nobody states: tests run in nightly and in older containers, the first
    /// releases of Bridge are older than every table, and a scenario names no release.
    OfOtherAge,
    /// The same of releases that are as old as the tables: Bridge's later ones.
    OfLikeAge,
    /// Those that no table has: deterministic ones; those of an attention that is unfused, has sinks, or meets compressed tokens; those of a card of which nobody measured
    /// one, as AMD's are; and those of formulas, which say nothing of the library that a job runs.
    Unlisted,
}

impl Kernels {
    /// Those of a problem whose libraries nobody dates.
    pub fn of(problem: &Problem) -> Self {
        let is_unfused = problem.execution.attention == AttentionKernel::Unfused;
        let is_of_nobody = match problem.cluster.gpu.maker() {
            Maker::Amd => true,
            Maker::Nvidia => problem.execution.framework == Framework::Formulas,
            // What runs on a host is this program's own kernels, which it measures there.
            Maker::Host => false,
        };
        if is_unfused || is_of_nobody || problem.model.sinks || problem.model.compressed.is_some() {
            Self::Unlisted
        } else {
            Self::OfOtherAge
        }
    }
}

/// By how much kernels are off that the card's own tables have.
const OWN: f64 = 0.06;
/// By how much more where libraries are of another age than the tables'. Two prints of one setting by different releases lie 10.6 % apart in the mean
/// (Bridge's table, `order.rs`), those of other recipes with them. Normal errors of which two differ by that stay within 15.5 % nine times of ten.
const OTHER_AGE: f64 = 0.155;
/// The same where libraries are as old as the tables. Where recipes of Bridge agree too, prints of one setting by its releases from 26.02 on lie 3.9 % apart in the
/// mean (110 pairs), which is 5.7 % for nine of ten.
const LIKE_AGE: f64 = 0.057;
/// By how much more where another card of the generation lent them. Nine products of ten of H100 and H200 lie within 11 to 22 % of each other, three
/// engines and three formats each, and 16 % in the middle (aiconfigurator, `gemm_perf`, from 512 rows on).
const WITHIN_GENERATION: f64 = 0.16;
/// By how much kernels are off that another generation or another format lent, that follow from a datasheet, or that are not those of the tables.
const LENT: f64 = 0.30;
/// By how much exchanges are off that nothing hides.
const EXCHANGE: f64 = 0.40;
/// The same of a host that launches.
pub const HOST: f64 = 0.20;

/// Power of the ends over the middle that remains of all costs at one end: kernels do not err together.
const TOGETHER: f64 = 0.25;

/// Shares of a step by what they rest on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Kernels by their kind and the source of their times.
    kernels: BTreeMap<(&'static str, Source), f64>,
    /// Exchanges that nothing hides.
    exchanges: f64,
    /// A host that launches.
    host: f64,
    /// Ranks that wait for others.
    waiting: f64,
}

impl Parts {
    /// Those of played steps.
    pub fn of(steps: &[Played], cost: &dyn CostModel) -> Self {
        let shares = Shares::mean(&steps.iter().map(Shares::of).collect::<Vec<_>>());
        Self::from(&shares, &Work::of(steps, cost))
    }

    pub(super) fn from(shares: &Shares, work: &Work) -> Self {
        let of_host = work.classes.get("host").copied().unwrap_or(0.0);
        let of_kernels: f64 = work.classes.values().sum::<f64>() - of_host;
        let kernels = work.provenance.seconds().filter(|(what, _, seconds)| *what != "host" && *seconds > 0.0);
        let mut kernels: BTreeMap<_, _> = kernels.map(|(what, source, seconds)| ((what, source), seconds)).collect();
        let all: f64 = kernels.values().sum();
        kernels.values_mut().for_each(|seconds| *seconds *= of_kernels * shares.busy / all);
        Self { kernels, exchanges: shares.exposed, host: of_host * shares.busy, waiting: shares.waiting() }
    }

    /// Half of the width that is left open, as the logarithm of a factor.
    pub fn half_width(&self, kernels_are: Kernels, host_off: f64) -> f64 {
        let by_kind = self.kernels.iter().map(|((_, source), part)| (off(*source), *part));
        let together = match kernels_are {
            Kernels::Usual => 0.0,
            Kernels::OfOtherAge => OTHER_AGE,
            Kernels::OfLikeAge => LIKE_AGE,
            Kernels::Unlisted => LENT,
        };
        let mut parts = vec![(EXCHANGE, self.exchanges), (host_off, self.host)];
        // What ran is in no table, so no kind of it is known by one.
        if kernels_are != Kernels::Unlisted {
            parts.extend(by_kind);
        }
        parts.push((together, self.kernels.values().sum()));
        // Ranks wait for what is off elsewhere, so waiting is as far off as the rest.
        let at_work = 1.0 - self.waiting;
        if at_work > 0.0 { joined(&parts) / at_work } else { 0.0 }
    }

    /// Interval of a step's time, seconds: what is left open, or all costs at one end where that is wider. Given are its times with all costs at their low end, as
    /// expected, and at their high end.
    pub fn interval(&self, at: [f64; 3], kernels: Kernels, host_off: f64) -> [f64; 2] {
        around(at, self.half_width(kernels, host_off))
    }

    /// The same of a problem whose libraries nobody dates. Durations that a scenario states leave nothing open.
    pub fn interval_of(&self, problem: &Problem, at: [f64; 3]) -> [f64; 2] {
        let is_stated = problem.execution.unit_times.is_some();
        if is_stated { [at[0], at[2]] } else { self.interval(at, Kernels::of(problem), HOST) }
    }
}

/// The middle with its ends where kernels do not err together, at least half a width away; the width is the logarithm of a factor.
pub fn around([low, middle, high]: [f64; 3], half_width: f64) -> [f64; 2] {
    let [low, high] = [low, high].map(|end| middle * libm::pow(end / middle, TOGETHER));
    let open = libm::exp(half_width);
    [low.min(middle / open), high.max(middle * open)]
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
    fn kinds_of_kernels_err_apart_and_the_age_of_libraries_is_one_part_of_all() {
        let kernels = [(("matrix products", Source::Measured), 0.3), (("attention", Source::Measured), 0.4)].into();
        let parts = Parts { kernels, ..Parts::default() };
        let squares = |of_kinds: f64, age: f64| (0.25 * of_kinds * of_kinds + 0.49 * age * age).sqrt();
        for (kernels_are, expected) in [
            // 0.3² and 0.4² are 0.25, and 0.7² is 0.49.
            (Kernels::Usual, squares(OWN, 0.0)),
            (Kernels::OfOtherAge, squares(OWN, OTHER_AGE)),
            (Kernels::OfLikeAge, squares(OWN, LIKE_AGE)),
            (Kernels::Unlisted, squares(0.0, LENT)),
        ] {
            let found = parts.half_width(kernels_are, HOST);
            assert!((found - expected).abs() < 1e-12, "{kernels_are:?}: {found} for {expected}");
        }
    }

    #[test]
    fn what_is_left_open_and_a_quarter_of_the_ends_make_the_interval() {
        // Ends at 1/16 and 81 times the middle: their fourth roots are a half and three.
        assert_eq!(around([1.0, 16.0, 1296.0], 0.1), [8.0, 48.0]);
        let [low, high] = around([10.0, 10.0, 10.0], 1.25_f64.ln());
        assert!((low - 8.0).abs() < 1e-9 && (high - 12.5).abs() < 1e-9, "{low} {high}");
    }

    #[test]
    fn nearer_kernels_are_off_by_less() {
        let sources = [Source::Measured, Source::WithinGeneration, Source::Borrowed, Source::Datasheet];
        assert!(sources.windows(2).all(|pair| off(pair[0]) <= off(pair[1])));
        // 0.06 and 0.16 beside each other: 0.0292 = 0.171 squared.
        assert!((off(Source::WithinGeneration) - 0.171).abs() < 1e-3);
    }
}
