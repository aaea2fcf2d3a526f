//! Whether layouts and formats of a model on a card come out in the order in which they were measured.
//!
//! Compared are tokens per second and GPU, so layouts of several sizes stand beside each other. A prediction knows no release of the software. So a
//! setting that was measured several times counts once, with the mean of its measurements and of its predictions. One release at a time would
//! leave one or two layouts of most models. Two settings may lie closer together than two measurements of one setting do: these pairs are
//! counted, and tau is also given without them.

use std::collections::BTreeMap;

use hw::quantile::median;

use super::play::{Says, Scored};
use super::row::Compared;
use crate::errors::mean;
use crate::order::Agreement;

/// How settings that may be compared stand in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// What they have in common: set, model, card, task.
    pub among: String,
    /// Settings.
    pub n_settings: usize,
    /// Over all pairs.
    pub all: Agreement,
    /// Over pairs that lie further apart than repeats do: at the median of these, and in the mean.
    pub beyond: [Agreement; 2],
}

/// Orders of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orders {
    /// Pairs of measurements of one setting.
    pub n_repeats: usize,
    /// Factor by which two of them differ: median, mean; 1 without repeats.
    pub apart: [f64; 2],
    /// Kendall's tau that one more measurement of every setting would reach with those that there are: over all pairs, and over those beyond either factor.
    pub again: [Option<f64>; 3],
    /// Groups of two settings and more.
    pub groups: Vec<Ordered>,
}

/// Predicted and measured figures of a setting: tokens per second and GPU, or seconds of a step.
#[derive(Default)]
struct Measurements {
    predicted: Vec<f64>,
    measured: Vec<f64>,
}

/// Predicted and measured seconds of a row that is compared with others; `None` where one of them is missing.
fn timed(scored: &Scored) -> Option<(&Compared, Measurements)> {
    let (compared, found) = (scored.row.compared.as_ref()?, scored.outcome.as_ref().ok()?);
    let measured = &scored.row.measured;
    let step_s = measured.step_s.filter(|_| found.says == Says::Value)?;
    let measured = std::iter::once(step_s).chain(measured.again_s.iter().copied()).collect();
    Some((compared, Measurements { predicted: vec![found.step_s], measured }))
}

/// Predicted and measured time of a step of every setting, means over its measurements. Seconds.
pub fn mean_steps<'s>(rows: impl Iterator<Item = &'s Scored>) -> Vec<[f64; 2]> {
    let mut settings: BTreeMap<(&str, &str), Measurements> = BTreeMap::new();
    for (compared, steps) in rows.filter_map(timed) {
        let setting = settings.entry((&compared.among, &compared.setting)).or_default();
        setting.predicted.extend(steps.predicted);
        setting.measured.extend(steps.measured);
    }
    let middle = |values: &[f64]| mean(values).expect("a setting was measured");
    settings.values().map(|setting| [middle(&setting.predicted), middle(&setting.measured)]).collect()
}

/// Settings of every group by their words.
type Groups<'s> = BTreeMap<&'s str, BTreeMap<&'s str, Measurements>>;

impl Orders {
    /// Of rows that have a prediction and a measured step.
    pub fn of<'s>(rows: impl Iterator<Item = &'s Scored>) -> Self {
        let groups = settings(rows);
        let apart = repeats(&groups);
        let middle = median(&apart);
        let factors = [middle, mean(&apart).unwrap_or(0.0)].map(libm::exp);
        let of = |(among, settings): (&&str, &BTreeMap<&str, Measurements>)| ordered(among, settings, factors);
        let pairs = pairs(&groups);
        let again = [1.0, factors[0], factors[1]].map(|factor| tau_again(&pairs, &apart, libm::log(factor)));
        let groups = groups.iter().filter(|(_, settings)| settings.len() > 1).map(of).collect();
        Self { n_repeats: apart.len(), apart: factors, again, groups }
    }

    /// All groups together: pairs within a group alone.
    pub fn all(&self) -> Ordered {
        let together =
            |of: fn(&Ordered) -> Agreement| self.groups.iter().map(of).fold(Agreement::default(), Agreement::plus);
        Ordered {
            among: "all".to_owned(),
            n_settings: self.groups.iter().map(|group| group.n_settings).sum(),
            all: together(|group| group.all),
            beyond: [together(|group| group.beyond[0]), together(|group| group.beyond[1])],
        }
    }
}

fn settings<'s>(rows: impl Iterator<Item = &'s Scored>) -> Groups<'s> {
    let mut groups = Groups::new();
    for (compared, steps) in rows.filter_map(timed) {
        let setting = groups.entry(&compared.among).or_default().entry(&compared.setting).or_default();
        let rate = |step_s: f64| compared.tokens_per_gpu / step_s;
        setting.predicted.extend(steps.predicted.into_iter().map(rate));
        setting.measured.extend(steps.measured.into_iter().map(rate));
    }
    groups
}

/// Logarithms of the factors by which measurements of one setting differ, pair by pair.
fn repeats(groups: &Groups<'_>) -> Vec<f64> {
    let mut apart = Vec::new();
    for setting in groups.values().flat_map(BTreeMap::values) {
        for (index, first) in setting.measured.iter().enumerate() {
            apart.extend(setting.measured[index + 1..].iter().map(|second| libm::log(first / second).abs()));
        }
    }
    apart
}

/// Logarithms of the factors by which settings of a group lie apart as measured.
fn pairs(groups: &Groups<'_>) -> Vec<f64> {
    let mut pairs = Vec::new();
    for settings in groups.values() {
        let logs: Vec<f64> = settings.values().filter_map(|setting| mean(&setting.measured)).map(libm::log).collect();
        for (index, first) in logs.iter().enumerate() {
            pairs.extend(logs[index + 1..].iter().map(|second| (first - second).abs()));
        }
    }
    pairs
}

/// Tau of a further measurement, over pairs that lie at least so far apart. Two measurements of one setting differ by `repeats`, either way alike. So a
/// pair changes its order in half of the repeats that are wider than it: its tau is the share of those that are narrower.
fn tau_again(pairs: &[f64], repeats: &[f64], least: f64) -> Option<f64> {
    let mut shares = Vec::with_capacity(pairs.len());
    for pair in pairs.iter().filter(|pair| **pair >= least) {
        let narrower: Vec<f64> = repeats.iter().map(|repeat| if repeat <= pair { 1.0 } else { 0.0 }).collect();
        shares.push(mean(&narrower)?);
    }
    mean(&shares)
}

fn ordered(among: &str, settings: &BTreeMap<&str, Measurements>, factors: [f64; 2]) -> Ordered {
    let middle = |values: &[f64]| mean(values).expect("a setting was measured");
    let values: Vec<[f64; 2]> =
        settings.values().map(|setting| [middle(&setting.predicted), middle(&setting.measured)]).collect();
    Ordered {
        among: among.to_owned(),
        n_settings: values.len(),
        all: Agreement::of(&values, 1.0),
        beyond: factors.map(|factor| Agreement::of(&values, factor)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::dominant::Dominant;
    use super::super::play::Predicted;
    use super::super::row::{Compared, Label, Measured, Row};
    use super::*;
    use crate::reason::Reason;

    /// A row of so many tokens per GPU and second as predicted and as measured.
    fn row(setting: &str, predicted: f64, measured: f64) -> Scored {
        let found = Predicted {
            step_s: 1.0 / predicted,
            says: Says::Value,
            interval: [0.0, 1.0],
            memory: Vec::new(),
            parts_s: None,
            source: engine::cost::Source::Measured,
            dominant: Dominant::Products,
            why: String::new(),
        };
        let compared = Compared { among: "a model".to_owned(), setting: setting.to_owned(), tokens_per_gpu: 1.0 };
        let row = Row {
            label: Label::default(),
            asked: Err(Reason::Vocabulary),
            measured: Measured { step_s: Some(1.0 / measured), ..Measured::default() },
            compared: Some(compared),
        };
        Scored { row, outcome: Ok(found) }
    }

    #[test]
    fn a_setting_of_several_releases_counts_once() {
        // Two releases of `a` differ by a fifth. Their means are 3 and 11, above `b` and below `c` on both sides.
        let rows = [row("a", 2.0, 10.0), row("a", 4.0, 12.0), row("b", 1.0, 10.5), row("c", 5.0, 20.0)];
        let orders = Orders::of(rows.iter());
        assert_eq!((orders.n_repeats, orders.groups.len(), orders.groups[0].n_settings), (1, 1, 3));
        assert!(orders.apart.iter().all(|factor| (factor - 1.2).abs() < 1e-12), "{:?}", orders.apart);
        let group = &orders.groups[0];
        assert_eq!((group.all.n, group.all.tau()), (3, Some(1.0)));
        // `a` and `b` lie 5 % apart, closer than the one repeat; the other two pairs are wider than it, so that another measurement has 2 of 3.
        assert!((orders.again[0].expect("repeats") - 2.0 / 3.0).abs() < 1e-12, "{:?}", orders.again);
        assert_eq!(orders.again[1..], [Some(1.0), Some(1.0)]);
        assert_eq!(group.beyond.map(|pairs| pairs.n), [2, 2]);
    }

    #[test]
    fn an_interval_alone_has_no_place_in_an_order() {
        let mut open = row("b", 1.0, 2.0);
        if let Ok(found) = &mut open.outcome {
            found.says = Says::Interval;
        }
        assert!(Orders::of([row("a", 1.0, 1.0), open].iter()).groups.is_empty());
    }
}
