//! Plans against costs by hand, every recipe tried by brute force, and the calibration against its own target.

use super::calibration::{calibrated, growth_ratio};
use super::*;
use engine::random;

const FACTS: Counts = [100.0, 200.0, 300.0, 400.0];
/// Costs of up to three stages.
fn costs() -> Costs {
    Costs { classification_s: 1000.0, evaluation_s: 0.5, training_s: vec![0.01; 3] }
}
const BOTH: TrainingSet = TrainingSet::Kept { upgraded: true, replay_ratio: 0.5 };

/// Facts stay what they are.
fn unchanged() -> Transition {
    let rows = std::array::from_fn(|from| std::array::from_fn(|to| if from == to { 1.0 } else { 0.0 }));
    Transition::of_probabilities(rows).expect("rows add up to 1")
}

fn with(way: (Class, Class), p: f64) -> Transition {
    unchanged().with(way.0, way.1, p)
}

/// Training masters 40 % of MaybeKnown facts, others lose 20 % of HighlyKnown ones and gain 10 % of WeaklyKnown ones.
fn stages() -> [Stage; 3] {
    let trained = with((Class::MaybeKnown, Class::HighlyKnown), 0.4);
    let others = with((Class::HighlyKnown, Class::MaybeKnown), 0.2).with(Class::WeaklyKnown, Class::MaybeKnown, 0.1);
    [8, 3, 3].map(|epochs| Stage { epochs, effect: Effect { trained, others } })
}

fn question(stages: &[Stage]) -> Question<'_> {
    Question {
        facts: FACTS,
        retest: unchanged(),
        stages,
        everything: None,
        held_out_ratio: 0.0,
        patience_epochs: 2,
        costs: costs(),
    }
}

const fn recipe(n_stages: usize, later: TrainingSet) -> Recipe {
    Recipe { n_stages, first: TrainingSet::MaybeKnown, later }
}

#[test]
fn time_is_passes_epochs_and_evaluations() {
    let stages = stages();
    let plan = question(&stages).plan(recipe(2, BOTH));
    // 8 epochs of 200 examples; then 120 left, 30 upgraded and half of 80 + 80 mastered: 3 epochs of 230.
    assert_eq!((plan.n_classifications, plan.classification_s, plan.evaluation_s), (2, 2000.0, 0.0));
    assert!((plan.training_s - (8.0 * 200.0 + 3.0 * 230.0) * 0.01).abs() < 1e-9, "{}", plan.training_s);
    // Held-out facts: two epochs of patience, and each epoch asks 100 facts.
    let held_out = Question { held_out_ratio: 0.1, ..question(&stages) };
    let plan = held_out.plan(recipe(1, BOTH));
    assert!((plan.training_s - 10.0 * 180.0 * 0.01).abs() < 1e-9);
    assert!((plan.evaluation_s - 10.0 * 100.0 * 0.5).abs() < 1e-9);
    // Who trains on the same facts again, or on all, does not ask.
    assert_eq!(question(&stages).plan(recipe(3, TrainingSet::Again)).n_classifications, 1);
    let everything = Recipe { n_stages: 1, first: TrainingSet::Everything, later: TrainingSet::Again };
    assert_eq!(question(&stages).plan(everything).n_classifications, 0);
}

#[test]
fn no_recipe_within_the_budget_beats_the_plan() {
    let stages = stages();
    let replay_ratios: Vec<f64> = (0..=20).map(|n| f64::from(n) / 20.0).collect();
    for seed in 0..40 {
        let mut stream = random::stream(seed, "plans");
        let costs = Costs { classification_s: 100.0 * stream.unit(), ..costs() };
        let question = Question { costs, ..question(&stages) };
        let budget_s = 300.0 * stream.unit();
        let found = best(&question, &Choice { replay_ratios: replay_ratios.clone(), stages_max: 3, budget_s });
        assert!(found.best.plan.total_s() <= budget_s);
        assert!(found.unlimited.mastered() >= found.best.plan.mastered());
        for n_stages in 0..=3 {
            for &replay_ratio in &replay_ratios {
                for later in [
                    TrainingSet::Again,
                    TrainingSet::Kept { upgraded: false, replay_ratio },
                    TrainingSet::Kept { upgraded: true, replay_ratio },
                ] {
                    let plan = question.plan(recipe(n_stages, later));
                    assert!(plan.total_s() > budget_s || plan.mastered() <= found.best.plan.mastered() + 1e-9);
                }
            }
        }
        // Where the budget pays no training at all, there is nothing else.
        assert!(found.best.runner_up().is_some() || found.best.plan.recipe.n_stages == 0);
        if let Some(runner_up) = found.best.runner_up().map(|other| &other.plan) {
            assert!(
                runner_up.mastered() <= found.best.plan.mastered()
                    && runner_up.recipe.is_other_than(&found.best.plan.recipe)
            );
        }
    }
}

#[test]
fn without_a_budget_to_speak_of_nothing_is_trained_and_the_limit_is_named() {
    let stages = stages();
    let choice = Choice { replay_ratios: vec![0.0, 1.0], stages_max: 3, budget_s: 1.0 };
    let found = best(&question(&stages), &choice);
    assert_eq!((found.best.plan.recipe.n_stages, found.best.plan.total_s(), found.n_within), (0, 0.0, 1));
    assert!(found.best.limit.contains("limited by the budget"), "{}", found.best.limit);
    // Training that only forgets is not worth any time.
    let forgets = Effect::none(with((Class::HighlyKnown, Class::Unknown), 0.5));
    let stages = [Stage { epochs: 1, effect: forgets }];
    let found = best(&question(&stages), &Choice { budget_s: f64::INFINITY, stages_max: 1, ..choice });
    assert_eq!(found.best.plan.recipe.n_stages, 0);
    assert!(found.best.limit.contains("loses more"), "{}", found.best.limit);
}

#[test]
fn training_that_does_nothing_gains_nothing() {
    let retest = with((Class::HighlyKnown, Class::MaybeKnown), 0.1).with(Class::MaybeKnown, Class::HighlyKnown, 0.05);
    let stages = stages().map(|stage| Stage { effect: Effect::none(retest), ..stage });
    let plan = Question { retest, ..question(&stages) }.plan(recipe(3, BOTH));
    assert!(plan.gain().abs() < 1e-9, "{}", plan.gain());
}

#[test]
fn calibration_meets_its_target_or_says_what_can_be_met() {
    let stages = stages();
    let question = question(&stages);
    for target in [-0.1, 0.3, 0.9] {
        let found = calibrated(&question, recipe(2, BOTH), target).expect("within reach");
        let fitted = Question { stages: &found.stages, ..question.clone() };
        let growth = growth_ratio(&fitted, recipe(2, BOTH));
        assert!((growth - target).abs() < 1e-9, "{growth}, asked for {target}");
    }
    let same = calibrated(&question, recipe(2, BOTH), growth_ratio(&question, recipe(2, BOTH))).expect("as given");
    assert!((same.factor - 1.0).abs() < 1e-9, "{}", same.factor);
    let why = calibrated(&question, recipe(2, BOTH), 50.0).expect_err("fifty times").why;
    assert!(why.contains("lies outside"), "{why}");
}
