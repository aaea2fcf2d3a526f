//! The best of several settings that were all tried, with the one that comes next.
//!
//! Every setting is served by the simulator and judged by one figure; so the answer is proved best among those that were tried, and among no
//! others. Ties end at the first.

use std::collections::BTreeMap;

use crate::proof::{Aim, Bound, Decision, Status};

/// What is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeks {
    /// As little as can be.
    Least,
    /// As much as can be.
    Most,
}

/// Positions among the settings that were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The best one.
    pub best: usize,
    /// The best one with another figure; another one with the same where all are alike.
    pub runner_up: Option<usize>,
    /// Settings that could be served within the limits.
    pub n_tried: usize,
}

/// The best of settings; a figure is `None` where a setting does not fit or breaks a limit. `None` where no setting has a figure.
#[must_use]
pub fn best(figures: &[Option<f64>], seeks: Seeks) -> Option<Found> {
    let mut ranked: Vec<(usize, f64)> =
        figures.iter().enumerate().filter_map(|(at, figure)| Some((at, (*figure)?))).collect();
    let n_tried = ranked.len();
    // A stable sort: of equal settings the first one wins.
    match seeks {
        Seeks::Least => ranked.sort_by(|a, b| a.1.total_cmp(&b.1)),
        Seeks::Most => ranked.sort_by(|a, b| b.1.total_cmp(&a.1)),
    }
    let (best, value) = *ranked.first()?;
    // Another way to the same figure is no other answer, unless there is no other.
    let other = ranked.iter().find(|(_, figure)| figure.total_cmp(&value).is_ne()).or(ranked.get(1));
    Some(Found { best, runner_up: other.map(|(at, _)| *at), n_tried })
}

/// How much worse another figure is than the best one, as a share of it.
#[must_use]
pub fn worse_by(best: f64, other: f64) -> f64 {
    (other - best).abs() / best.abs().max(f64::MIN_POSITIVE)
}

/// A way that was tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Values that were listed, as a label of the way.
    pub label: String,
    /// Listed values that are numbers, by key.
    pub values: Vec<(String, f64)>,
    /// Its figure, or why it has none.
    pub figure: Result<f64, String>,
}

impl Tried {
    fn words(&self) -> String {
        self.label.replace('_', " ")
    }
}

/// What was chosen among ways that were tried, what came next, and what every way gives of the metric that is sought. All were tried, so the bound
/// is the answer.
#[must_use]
pub fn decided(found: Found, tried: &[Tried], metric: &str, aim: Aim) -> Decision<usize> {
    let value = |at: usize| tried[at].figure.as_ref().copied().unwrap_or(f64::NAN);
    let objective = value(found.best);
    let n_refused = tried.len() - found.n_tried;
    let mut notes = vec![format!(
        "best of {} ways that can be served, {n_refused} cannot; all were tried, so the bound is the answer",
        found.n_tried
    )];
    if let Some(at) = found.runner_up {
        let worse = worse_by(objective, value(at)) * 100.0;
        notes.push(format!("runner-up, {worse:.1} % worse: {}", tried[at].words()));
    }
    if let Some((way, why)) = tried.iter().find_map(|way| Some((way, way.figure.as_ref().err()?))) {
        notes.push(format!("{} is out: {why}", way.words()));
    }
    let mut figures: BTreeMap<String, f64> = tried[found.best].values.iter().cloned().collect();
    for way in tried {
        figures.extend(way.figure.iter().map(|value| (format!("{metric}_{}", way.label), *value)));
    }
    let decision = Decision::new(found.best, aim, objective).bounded(Some(Bound::plain(objective)), Status::Optimal);
    decision.said(notes, figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_beats_the_best_and_ties_end_at_the_first() {
        let figures = [None, Some(3.0), Some(1.0), Some(3.0), Some(2.0)];
        let most = best(&figures, Seeks::Most).expect("four were tried");
        assert_eq!((most.best, most.runner_up, most.n_tried), (1, Some(4), 4));
        let least = best(&figures, Seeks::Least).expect("four were tried");
        assert_eq!((least.best, least.runner_up), (2, Some(4)));
        assert_eq!(best(&[None, None], Seeks::Most), None);
        assert_eq!(best(&[Some(1.0), Some(1.0)], Seeks::Least).expect("two").runner_up, Some(1));
        assert_eq!(best(&[Some(1.0)], Seeks::Least).expect("one").runner_up, None);
    }

    #[test]
    fn worse_is_a_share_of_the_best() {
        assert!((worse_by(2.0, 3.0) - 0.5).abs() < 1e-12 && (worse_by(4.0, 3.0) - 0.25).abs() < 1e-12);
    }
}
