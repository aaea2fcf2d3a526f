//! Spread over draws of what is random, beside the interval of the costs.
//!
//! Both are kept apart: an interval is what the costs leave open for one draw, a spread is what the draws leave open at expected costs. Near
//! saturation the spread is the wider one, so a sentence names how busy the replicas are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PolicyResult;
use crate::quantity::{figure_text, percent};

/// Metric of how busy replicas are.
const BUSY: &str = "busy_ratio";
/// Metrics that a sentence names, as far as they are there.
const TOLD: [&str; 4] = ["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "slo_attainment_ratio"];
/// Most over least from which on one draw says little.
const WIDE: f64 = 1.5;

/// Figures over draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draws {
    /// Draws, that of the scenario's seed included.
    pub n: usize,
    /// Least and most over the draws, by the keys of the metrics.
    pub spread: BTreeMap<String, [f64; 2]>,
}

impl Draws {
    /// From the figures of every draw.
    pub fn of<'k>(all: &[BTreeMap<String, f64>], keys: impl Iterator<Item = &'k str>) -> Self {
        let spread = keys.filter_map(|key| Some((key.to_owned(), least_and_most(all, key)?))).collect();
        Self { n: all.len(), spread }
    }
}

/// Least and most of a metric; `None` where no draw has it.
fn least_and_most(all: &[BTreeMap<String, f64>], key: &str) -> Option<[f64; 2]> {
    let mut found: Option<[f64; 2]> = None;
    for value in all.iter().filter_map(|figures| figures.get(key).copied()) {
        let [low, high] = found.unwrap_or([value; 2]);
        found = Some([low.min(value), high.max(value)]);
    }
    found
}

/// What is said of a row that was drawn several times.
pub(crate) fn words(row: &PolicyResult) -> Vec<String> {
    let Some(draws) = &row.draws else { return Vec::new() };
    let told = TOLD.iter().filter_map(|key| Some(told(row, key, *draws.spread.get(*key)?)));
    let mut all = vec![format!("over {} draws of the requests: {}", draws.n, told.collect::<Vec<_>>().join("; "))];
    if let Some([low, high]) = draws.spread.get(BUSY).copied() {
        let is_wide = TOLD.iter().filter_map(|key| draws.spread.get(*key)).any(|[least, most]| *most > WIDE * least);
        let what = if is_wide { ", and one draw says little" } else { "" };
        all.push(format!("replicas are busy {} to {} of the time{what}", percent(low), percent(high)));
    }
    all
}

/// Spread and interval of a metric in words.
fn told(row: &PolicyResult, key: &str, spread: [f64; 2]) -> String {
    let text = |[low, high]: [f64; 2]| format!("{} to {}", figure_text(key, low), figure_text(key, high));
    let costs = row.interval.get(key).map_or_else(String::new, |interval| format!(" (costs: {})", text(*interval)));
    format!("{key} {}{costs}", text(spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ttft_s: f64, busy: f64) -> BTreeMap<String, f64> {
        [("ttft_s.mean", ttft_s), (BUSY, busy)].map(|(key, value)| (key.to_owned(), value)).into()
    }

    #[test]
    fn the_spread_is_from_the_least_to_the_most_and_stands_beside_the_interval() {
        let all = [figures(6.0, 0.95), figures(32.0, 0.99), figures(9.0, 0.97)];
        let draws = Draws::of(&all, ["ttft_s.mean", BUSY, "tpot_s.mean"].into_iter());
        assert_eq!((draws.n, draws.spread["ttft_s.mean"], draws.spread[BUSY]), (3, [6.0, 32.0], [0.95, 0.99]));
        assert_eq!(draws.spread.len(), 2, "no draw has TPOT");
        let interval = [("ttft_s.mean".to_owned(), [5.0, 7.0])].into();
        let row = PolicyResult { interval, draws: Some(draws), ..PolicyResult::default() };
        let found = words(&row);
        assert!(
            found[0].contains("over 3 draws") && found[0].contains("6.000 s to 32.00 s (costs: 5.000 s to 7.000 s)"),
            "{found:?}"
        );
        assert!(found[1].contains("95") && found[1].contains("one draw says little"), "{found:?}");
        assert!(words(&PolicyResult::default()).is_empty());
    }
}
