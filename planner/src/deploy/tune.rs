//! The best of several settings, with the one that comes next.
//!
//! `best` looks at settings that were all served by the simulator. `search` serves few of many: each setting has an outlook, a figure that it
//! cannot beat, and the most promising are served first, until no outlook is better than the best figure by more than a gap (best-first
//! branch and bound over a list). The answer is proved best within that gap among the settings, and among no others. Ties end at the first.

use engine::verdict::Refused;

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
    pub figure: Result<f64, Refused>,
}

impl Tried {
    fn words(&self) -> String {
        self.label.replace('_', " ")
    }
}

/// What was chosen among ways that were tried, what came next, and what every way gives of the metric that is sought. All were tried, so the bound
/// is the answer, unless one is known that holds for ways that were not listed as well, with words for it.
///
/// # Panics
/// When a way is better than that bound.
pub fn decided(
    found: Found,
    tried: &[Tried],
    (metric, aim): (&str, Aim),
    beyond: Option<(f64, &str)>,
) -> Decision<usize> {
    let value = |at: usize| tried[at].figure.as_ref().copied().unwrap_or(f64::NAN);
    let objective = value(found.best);
    let n_refused = tried.len() - found.n_tried;
    let proof = beyond
        .map_or_else(|| "so the bound is the answer".to_owned(), |(_, words)| format!("and the bound is {words}"));
    let mut notes =
        vec![format!("best of {} ways that can be served, {n_refused} cannot; all were tried, {proof}", found.n_tried)];
    if let Some(at) = found.runner_up {
        let worse = worse_by(objective, value(at)) * 100.0;
        notes.push(format!("runner-up, {worse:.1} % worse: {}", tried[at].words()));
    }
    if let Some((way, why)) = tried.iter().find_map(|way| Some((way, way.figure.as_ref().err()?))) {
        notes.push(format!("{} is out: {why}", way.words()));
    }
    let chosen = tried[found.best].values.iter().map(|(key, value)| (format!("chosen_{key}"), *value));
    let of_way = |way: &Tried| Some((format!("ways_{metric}_{}", way.label), *way.figure.as_ref().ok()?));
    let figures = chosen.chain(tried.iter().filter_map(of_way)).collect();
    let bound = beyond.map_or(objective, |(bound, _)| bound);
    let status = if aim.is_better(bound, objective) { Status::Feasible } else { Status::Optimal };
    let decision = Decision::new(found.best, aim, objective).bounded(Some(Bound::plain(bound)), status);
    decision.said(notes, figures)
}

/// Settings that are served together; a constant, so that the answer is the same with any number of threads.
const BATCH: usize = 8;

/// What became of a setting in a search.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It cannot be served, or cannot keep the limits: known without serving.
    Refused(Refused),
    /// Its outlook was no better than what was found.
    Outdone,
    /// It was served: its figure, or the limit that it broke.
    Served(Result<f64, Refused>),
}

impl Outcome {
    /// Its figure, where it was served within the limits.
    pub fn figure(&self) -> Option<f64> {
        match self {
            Self::Served(Ok(figure)) => Some(*figure),
            _ => None,
        }
    }
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// What became of every setting.
    pub outcomes: Vec<Outcome>,
    /// The best one and the one that comes next; `None` where no setting keeps the limits.
    pub found: Option<Found>,
    /// What no setting is better than; `None` where none was found.
    pub bound: Option<f64>,
    /// Whether it went on to its end, and was not asked to stop before.
    pub is_complete: bool,
}

impl Search {
    /// How much better than the answer some setting may be at most, as a share of the bound.
    pub fn gap(&self) -> Option<f64> {
        let best = self.outcomes[self.found?.best].figure()?;
        self.bound.map(|bound| (best - bound).abs() / bound.abs().max(f64::MIN_POSITIVE))
    }

    /// Settings that were served.
    pub fn n_served(&self) -> usize {
        self.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Served(_))).count()
    }
}

/// Settings that differ from one in a single value: for every place the nearest one before it and the nearest behind it, with that place.
pub fn neighbours<T: PartialEq>(settings: &[&[T]], of: usize) -> Vec<(usize, usize)> {
    let mut near = Vec::new();
    for place in 0..settings[of].len() {
        let differs = |at: &usize| {
            (0..settings[of].len()).all(|index| (settings[*at][index] == settings[of][index]) == (index != place))
        };
        let others: Vec<usize> = (0..settings.len()).filter(differs).collect();
        let below = others.iter().rev().find(|at| **at < of);
        near.extend(below.into_iter().chain(others.iter().find(|at| **at > of)).map(|at| (place, *at)));
    }
    near
}

/// Serves settings in order of their outlooks until none left may be better than the best by more than `gap`, a share of it. An outlook is an
/// error where a setting cannot be served, and infinitely good where nothing is known. `serve` is given positions and says for each what became
/// of it: refused by a closer look, or served.
///
/// # Panics
/// When a figure is better than its outlook, or `serve` does not answer for every position.
pub fn search(
    aim: Aim,
    outlooks: &[Result<f64, Refused>],
    gap: f64,
    serve: &mut dyn FnMut(&[usize]) -> Vec<Outcome>,
) -> Search {
    let refused = |outlook: &Result<f64, Refused>| {
        outlook.as_ref().err().map_or(Outcome::Outdone, |why| Outcome::Refused(why.clone()))
    };
    let mut outcomes: Vec<Outcome> = outlooks.iter().map(refused).collect();
    let mut left: Vec<(usize, f64)> =
        outlooks.iter().enumerate().filter_map(|(at, outlook)| Some((at, *outlook.as_ref().ok()?))).collect();
    left.sort_by(|a, b| aim.order(a.1, b.1).then(a.0.cmp(&b.0)));
    let mut best: Option<f64> = None;
    let mut n_done = 0;
    let mut is_complete = true;
    while n_done < left.len() && best.is_none_or(|best| may_beat(aim, left[n_done].1, best, gap)) {
        if engine::stop::is_asked() {
            is_complete = false;
            break;
        }
        let batch = &left[n_done..left.len().min(n_done + BATCH)];
        let positions: Vec<usize> = batch.iter().map(|(at, _)| *at).collect();
        let answers = serve(&positions);
        assert_eq!(answers.len(), positions.len(), "an answer for every setting");
        for ((at, outlook), outcome) in batch.iter().zip(answers) {
            if let Some(figure) = outcome.figure() {
                assert!(
                    !aim.is_better(figure, *outlook),
                    "setting {at}: {figure} is better than its outlook {outlook}"
                );
                best = Some(best.map_or(figure, |best| if aim.is_better(figure, best) { figure } else { best }));
            }
            outcomes[*at] = outcome;
        }
        if engine::stop::is_over() {
            is_complete = false;
            break;
        }
        n_done += positions.len();
    }
    let seeks = if aim.is_least() { Seeks::Least } else { Seeks::Most };
    let figures: Vec<Option<f64>> = outcomes.iter().map(Outcome::figure).collect();
    let found = self::best(&figures, seeks);
    let bound = found.map(|found| {
        let answer = figures[found.best].expect("the best has a figure");
        let unserved = left.get(n_done).map_or(answer, |(_, outlook)| *outlook);
        if aim.order(unserved, answer).is_lt() { unserved } else { answer }
    });
    Search { outcomes, found, bound, is_complete }
}

/// Whether an outlook is better than the best figure by more than a gap.
fn may_beat(aim: Aim, outlook: f64, best: f64, gap: f64) -> bool {
    let ahead = if aim.is_least() { best - outlook } else { outlook - best };
    ahead > gap * best.abs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_search_finds_what_serving_everything_finds(
            of in prop::collection::vec((0.0_f64..100.0, 0.0_f64..30.0, 0_u8..6), 1..80),
            gap in prop::sample::select(vec![0.0, 0.05]),
            is_least in any::<bool>(),
        ) {
            // An outlook is better than the figure by some distance; some settings are refused at once, some break a limit when served.
            let aim = if is_least { Aim::UsdPerHour } else { Aim::RequestsPerS };
            let outlook = |(figure, distance, kind): &(f64, f64, u8)| match kind {
                0 => Err(Refused::infeasible("too large")),
                1 => Ok(if is_least { f64::NEG_INFINITY } else { f64::INFINITY }),
                _ => Ok(if is_least { figure - distance } else { figure + distance }),
            };
            let figure = |at: usize| match of[at].2 {
                2 => Err(Refused::infeasible("late")),
                _ => Ok(of[at].0),
            };
            let outlooks: Vec<_> = of.iter().map(outlook).collect();
            let mut n = 0;
            let found = search(aim, &outlooks, gap, &mut |positions| {
                n += positions.len();
                positions.iter().map(|at| Outcome::Served(figure(*at))).collect()
            });
            prop_assert_eq!(n, found.n_served());
            let all: Vec<Option<f64>> =
                (0..of.len()).map(|at| outlooks[at].as_ref().ok().and_then(|_| figure(at).ok())).collect();
            let exhaustive = best(&all, if is_least { Seeks::Least } else { Seeks::Most });
            prop_assert_eq!(exhaustive.is_some(), found.found.is_some());
            if let (Some(exhaustive), Some(answer)) = (exhaustive, found.found) {
                let (truth, answer) = (all[exhaustive.best].expect("best"), all[answer.best].expect("best"));
                prop_assert!((truth - answer).abs() <= gap * answer.abs() + 1e-12, "{truth} and {answer}");
                let bound = found.bound.expect("found");
                prop_assert!(!aim.is_better(truth, bound), "the bound {bound} holds for {truth}");
                prop_assert!(found.gap().expect("found") <= gap / (1.0 - gap) + 1e-12);
            }
        }
    }

    fn decided_against(bound: f64) -> Decision<usize> {
        let way = |label: &str, figure| Tried { label: label.to_owned(), values: Vec::new(), figure: Ok(figure) };
        let found = Found { best: 0, runner_up: Some(1), n_tried: 2 };
        decided(found, &[way("a", 2.0), way("b", 3.0)], ("ttft_s.mean", Aim::Seconds), Some((bound, "known")))
    }

    #[test]
    fn a_way_at_its_bound_is_the_best_and_another_one_may_be_beaten() {
        assert_eq!((decided_against(1.0).status, decided_against(1.0).bound()), (Status::Feasible, Some(1.0)));
        assert_eq!((decided_against(2.0).status, decided_against(2.0).bound()), (Status::Optimal, Some(2.0)));
    }

    #[test]
    #[should_panic(expected = "better than the bound")]
    fn a_bound_that_is_beaten_is_a_defect() {
        decided_against(2.5);
    }

    #[test]
    fn settings_that_cannot_win_are_not_served() {
        let outlooks: Vec<Result<f64, Refused>> = (0..1000).map(|n| Ok(f64::from(n))).collect();
        let found = search(Aim::Seconds, &outlooks, 0.0, &mut |positions| {
            positions.iter().map(|at| Outcome::Served(Ok(outlooks[*at].clone().expect("known") + 10.0))).collect()
        });
        assert_eq!(found.found.expect("found").best, 0);
        // Ten more outlooks are below the first figure; a batch is served whole.
        assert_eq!(found.n_served(), 16);
        assert!(found.is_complete && found.bound == Some(10.0));
    }

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
