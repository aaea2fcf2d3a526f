//! Fits the one figure of learning that published counts do not give: how many of the facts that a stage trains on are mastered.
//!
//! The paper reports how many more facts are mastered after two stages (arXiv:2410.05802, abstract: 24 %), not the whole matrix. A factor on the
//! probability that a trained MaybeKnown fact becomes HighlyKnown, the same in every stage, is found by bisection. What comes out is a
//! fit: a run that is calibrated to a growth does not predict it.

use curriculum::{Class, Effect};
use engine::verdict::Refused;

use crate::curriculum::{Question, Recipe, Stage};

/// Halvings of the interval: more than a float has bits.
const HALVINGS: u32 = 60;

/// Stages that were fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// Stages with the factor applied.
    pub stages: Vec<Stage>,
    /// The factor.
    pub factor: f64,
}

/// An effect whose probability that a trained MaybeKnown fact is mastered is scaled, up to 1.
pub fn scaled(effect: &Effect, factor: f64) -> Effect {
    let (from, to) = (Class::MaybeKnown, Class::HighlyKnown);
    let learned = (effect.trained.probability(from, to) * factor).min(1.0);
    Effect { trained: effect.trained.with(from, to, learned), ..*effect }
}

fn scaled_stages(stages: &[Stage], factor: f64) -> Vec<Stage> {
    stages.iter().map(|stage| Stage { effect: scaled(&stage.effect, factor), ..*stage }).collect()
}

/// Growth of mastered facts under a recipe, over those at the start.
pub fn growth_ratio(question: &Question<'_>, recipe: Recipe) -> f64 {
    question.plan(recipe).mastered() / question.facts[Class::HighlyKnown.index()] - 1.0
}

/// Scales the learning of every stage so that mastered facts grow by a ratio under a recipe.
///
/// # Errors
/// A sentence with the growth at no learning and at the most when the ratio lies outside.
pub fn calibrated(question: &Question<'_>, recipe: Recipe, target: f64) -> Result<Calibrated, Refused> {
    let growth = |factor| {
        let stages = scaled_stages(question.stages, factor);
        growth_ratio(&Question { stages: &stages, ..question.clone() }, recipe)
    };
    let learned = |stage: &Stage| stage.effect.trained.probability(Class::MaybeKnown, Class::HighlyKnown);
    let most = question.stages.iter().map(learned).fold(0.0, f64::max);
    // From here on no stage learns more.
    let least = question.stages.iter().map(learned).filter(|p| *p > 0.0).fold(most, f64::min);
    let (mut low, mut high) = (0.0, if least > 0.0 { 1.0 / least } else { 0.0 });
    let (at_low, at_high) = (growth(low), growth(high));
    if !(at_low..=at_high).contains(&target) {
        return Err(Refused::infeasible(format!(
            "mastered facts grow by {:.1} % without learning and by {:.1} % when every trained MaybeKnown fact is mastered; {:.1} % lies outside",
            at_low * 100.0,
            at_high * 100.0,
            target * 100.0
        )));
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if growth(middle) < target {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Calibrated { stages: scaled_stages(question.stages, high), factor: high })
}
