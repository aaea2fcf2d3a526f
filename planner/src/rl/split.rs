//! Nodes of one machine between trainer and engines: the split with the shortest step.
//!
//! Every number of nodes that train has a floor, a step that it cannot be shorter than (`floor`). Splits are played in order of their floors, some at a time, until no
//! floor is below the best step (`deploy::tune::search`). So the answer is that of playing all splits. More nodes need not make a trainer faster, and nothing
//! here takes that for granted. Units: nodes, seconds.

use engine::verdict::Refused;

use crate::deploy::tune::{self, Outcome, Search};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// Plays splits by their positions: their steps, or why there are none.
pub type Play<'a> = &'a mut dyn FnMut(&[usize]) -> Vec<Result<f64, Refused>>;

/// The nodes that train: `floors[i]` is what a step with `i + 1` of them takes at least, or why there is none.
///
/// # Errors
/// When no split can be played: the reason of the first one.
///
/// # Panics
/// When a step is shorter than its floor.
pub fn decide(floors: &[Result<f64, Refused>], play: Play<'_>) -> Result<Decision<u32>, Refused> {
    let search = tune::search(Aim::Seconds, floors, 0.0, &mut |positions| {
        let outcome =
            |step: Result<f64, Refused>| step.map_or_else(Outcome::Refused, |step_s| Outcome::Served(Ok(step_s)));
        play(positions).into_iter().map(outcome).collect()
    });
    let Some(found) = search.found else { return Err(none(&search)) };
    let step_s = |at: usize| search.outcomes[at].figure().expect("it was played");
    let status = if search.is_complete { Status::Optimal } else { Status::Feasible };
    let decision = Decision::new(nodes(found.best), Aim::Seconds, step_s(found.best));
    let second = found.runner_up.map(|at| RunnerUp { plan: nodes(at), objective: step_s(at) });
    let decision = decision.bounded(search.bound.map(Bound::plain), status).beside(second);
    let notes = words(&search, &decision);
    Ok(decision.limited(notes[0].clone()).said(notes, Default::default()))
}

/// Nodes of a position.
fn nodes(at: usize) -> u32 {
    u32::try_from(at + 1).expect("fewer than 2^32 nodes")
}

/// Why there is no split at all.
fn none(search: &Search) -> Refused {
    if !search.is_complete {
        return Refused::out_of_time("stopped before a split of the nodes was played: give it more time");
    }
    let why = search.outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Refused(why) => Some(why.clone()),
        Outcome::Outdone | Outcome::Served(_) => None,
    });
    why.unwrap_or_else(|| Refused::infeasible("one node cannot be shared out"))
}

/// What was tried, in words.
fn words(search: &Search, decision: &Decision<u32>) -> Vec<String> {
    let n = search.outcomes.len();
    let n_outdone = search.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Outdone)).count();
    let mut words = vec![format!(
        "{} of {} nodes train: {} of {n} splits were played, {n_outdone} cannot be shorter",
        decision.plan,
        n + 1,
        search.n_served()
    )];
    if let Some(second) = decision.runner_up() {
        words.push(format!("runner-up: {} nodes that train, a step of {:.1} s", second.plan, second.objective));
    }
    for (at, outcome) in search.outcomes.iter().enumerate() {
        if let Outcome::Refused(refused) = outcome {
            words.push(format!("{} nodes that train: {}", nodes(at), refused.why));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn played(steps: &[Option<f64>], floors: &[Result<f64, Refused>]) -> (Result<Decision<u32>, Refused>, usize) {
        let mut n_played = 0;
        let found = decide(floors, &mut |positions| {
            n_played += positions.len();
            positions.iter().map(|at| steps[*at].ok_or_else(|| Refused::infeasible("no layout"))).collect()
        });
        (found, n_played)
    }

    proptest! {
        #[test]
        fn the_answer_is_that_of_playing_every_split(
            of in prop::collection::vec((1.0_f64..100.0, 0.0_f64..1.0, 0_u8..5), 1..40),
        ) {
            let steps: Vec<Option<f64>> = of.iter().map(|(step, _, kind)| (*kind > 0).then_some(*step)).collect();
            let floors: Vec<_> = of.iter().map(|(step, share, _)| Ok(step * share)).collect();
            let least = steps.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            match played(&steps, &floors).0 {
                Err(_) => prop_assert!(steps.iter().all(Option::is_none)),
                Ok(found) => {
                    prop_assert_eq!(found.objective(), Some(least));
                    prop_assert_eq!(steps[found.plan as usize - 1], Some(least));
                    prop_assert_eq!((found.gap(), found.status), (Some(0.0), Status::Optimal));
                }
            }
        }
    }

    #[test]
    fn splits_whose_floor_is_above_the_best_step_are_not_played() {
        // Steps of 1 + 99/n seconds are shortest with all nodes; tight floors leave the first ones out.
        let steps: Vec<Option<f64>> = (1..=64).map(|n| Some(1.0 + 99.0 / f64::from(n))).collect();
        let floors: Vec<Result<f64, Refused>> = steps.iter().map(|step| Ok(step.expect("all") * 0.99)).collect();
        let (found, n_played) = played(&steps, &floors);
        assert_eq!((found.expect("played").plan, n_played), (64, 8));
    }

    #[test]
    fn splits_that_cannot_be_say_why() {
        let floors = [Err(Refused::infeasible("16 ranks on 8 GPUs")), Ok(1.0), Ok(2.0)];
        let (found, _) = played(&[None, Some(3.0), None], &floors);
        let found = found.expect("the second one");
        assert_eq!(found.plan, 2);
        assert!(
            found.notes[1].contains("1 nodes that train: 16 ranks") && found.notes[2].contains("no layout"),
            "{:?}",
            found.notes
        );
        assert!(played(&[], &[]).0.expect_err("one node").why.contains("shared out"));
    }
}
