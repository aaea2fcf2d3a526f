//! Which facts to fine-tune on, in which stage, with how much replay: curricula after Gradual Learning (arXiv:2410.05802).
//!
//! A recipe names the training set of the first and of all later stages and how many stages there are; its costs are classification passes,
//! epochs of training and, with held-out facts, an evaluation per epoch for early stopping:
//! `T = Σ passes · t_classify + Σ epochs · (examples · t_train + t_evaluate)`. The aim is expected mastered facts at the end, within a time.
//! Sets, shares of replay and numbers of stages are enumerated, so the answer is the best of what may be tried. Units: facts, seconds.

pub mod asked;
pub mod calibration;
pub mod policies;
pub mod trained;

use curriculum::{Class, Counts, Course, Effect, TrainingSet, Transition, course, retested};

use crate::proof::{self, Aim, Bound, Decision, Status};

/// A stage of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Epochs up to the best one.
    pub epochs: u32,
    /// What it does to facts.
    pub effect: Effect,
}

/// Seconds of what a curriculum is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// A classification of all facts.
    pub classification_s: f64,
    /// An evaluation of one held-out fact.
    pub evaluation_s: f64,
    /// An example, per epoch: by stage. One that is not priced costs nothing.
    pub training_s: Vec<f64>,
}

impl Costs {
    /// An example of a stage, per epoch.
    fn example_s(&self, stage_index: usize) -> f64 {
        self.training_s.get(stage_index).copied().unwrap_or(0.0)
    }
}

/// What is to be learned, and how.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Facts by class, as first classified.
    pub facts: Counts,
    /// What a retest without training does.
    pub retest: Transition,
    /// Stages that may be run, in order.
    pub stages: &'a [Stage],
    /// Effect of a stage that trains on all classes, where it is known.
    pub everything: Option<Effect>,
    /// Share of facts that is held out of training to stop it; 0 trains on all for exactly the stages' epochs.
    pub held_out_ratio: f64,
    /// Epochs without a better result after which training stops; without held-out facts nobody looks.
    pub patience_epochs: u32,
    /// Costs.
    pub costs: Costs,
}

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Stages; none leaves the model as it is.
    pub n_stages: usize,
    /// What the first one trains on.
    pub first: TrainingSet,
    /// What every further one trains on.
    pub later: TrainingSet,
}

impl Recipe {
    /// What a stage trains on.
    pub const fn set(&self, stage_index: usize) -> TrainingSet {
        if stage_index == 0 { self.first } else { self.later }
    }

    /// Whether it differs in more than the share of replay.
    fn is_other_than(&self, other: &Self) -> bool {
        let form = |recipe: &Self| {
            let later = match recipe.later {
                _ if recipe.n_stages < 2 => TrainingSet::Again,
                TrainingSet::Kept { upgraded, replay_ratio } => {
                    TrainingSet::Kept { upgraded, replay_ratio: f64::from(u8::from(replay_ratio > 0.0)) }
                }
                set => set,
            };
            (recipe.n_stages, recipe.first, later)
        };
        form(self) != form(other)
    }

    /// The recipe in words.
    pub fn words(&self) -> String {
        let first = match (self.n_stages, self.first) {
            (0, _) => return "no training".to_owned(),
            (_, TrainingSet::Everything) => "all facts",
            _ => "MaybeKnown facts",
        };
        let later = match self.later {
            TrainingSet::Again => "the same facts again".to_owned(),
            TrainingSet::Everything => "all facts".to_owned(),
            TrainingSet::MaybeKnown => "MaybeKnown facts".to_owned(),
            TrainingSet::Kept { upgraded, replay_ratio } => {
                let more = if upgraded { " and upgraded ones" } else { "" };
                format!("those still MaybeKnown{more}, {:.0} % of HighlyKnown replayed", replay_ratio * 100.0)
            }
        };
        match self.n_stages {
            1 => format!("one stage on {first}"),
            n => format!("{n} stages: {first}, then {later}"),
        }
    }
}

/// A recipe with what it costs and what comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The recipe.
    pub recipe: Recipe,
    /// Facts on their way.
    pub course: Course,
    /// Classification passes over all facts.
    pub n_classifications: u32,
    /// Time of classification.
    pub classification_s: f64,
    /// Time of training.
    pub training_s: f64,
    /// Time of evaluations for early stopping.
    pub evaluation_s: f64,
    /// Mastered facts after as many retests without training.
    pub retested: f64,
}

impl Plan {
    /// Expected HighlyKnown facts at the end.
    pub const fn mastered(&self) -> f64 {
        self.course.facts[Class::HighlyKnown.index()]
    }

    /// Time of everything.
    pub const fn total_s(&self) -> f64 {
        self.classification_s + self.training_s + self.evaluation_s
    }

    /// Mastered facts above those that retests alone would show.
    pub const fn gain(&self) -> f64 {
        self.mastered() - self.retested
    }
}

impl Question<'_> {
    /// Epochs that a stage runs: to the best one, and on until its successors have disappointed.
    pub fn epochs(&self, stage_index: usize) -> u32 {
        let patience = if self.held_out_ratio > 0.0 { self.patience_epochs } else { 0 };
        self.stages[stage_index].epochs + patience
    }

    fn effect(&self, set: TrainingSet, stage_index: usize) -> Effect {
        let everything = self.everything.filter(|_| set == TrainingSet::Everything);
        everything.unwrap_or(self.stages[stage_index].effect)
    }

    /// What a recipe costs and brings.
    ///
    /// # Panics
    /// When it has more stages than the question.
    pub fn plan(&self, recipe: Recipe) -> Plan {
        let sets: Vec<TrainingSet> = (0..recipe.n_stages).map(|index| recipe.set(index)).collect();
        let effects = sets.iter().enumerate().map(|(index, set)| (*set, self.effect(*set, index)));
        let course = course(&self.facts, self.held_out_ratio, &effects.collect::<Vec<_>>());
        let n_facts: f64 = self.facts.iter().sum();
        let (mut n_classifications, mut training_s, mut evaluation_s) = (0, 0.0, 0.0);
        for (index, (set, outcome)) in sets.iter().zip(&course.stages).enumerate() {
            // Who asks what a stage has upgraded has classified before it too.
            let asks_next = matches!(recipe.later, TrainingSet::Kept { upgraded: true, .. }) && index + 1 < sets.len();
            n_classifications += u32::from(set.needs_classes() || asks_next);
            let epochs = f64::from(self.epochs(index));
            training_s += epochs * outcome.examples.iter().sum::<f64>() * self.costs.example_s(index);
            evaluation_s += epochs * n_facts * self.held_out_ratio * self.costs.evaluation_s;
        }
        let retested = retested(&self.facts, &self.retest, recipe.n_stages)[Class::HighlyKnown.index()];
        let classification_s = f64::from(n_classifications) * self.costs.classification_s;
        Plan { recipe, course, n_classifications, classification_s, training_s, evaluation_s, retested }
    }
}

/// What a planner may choose from.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Shares of HighlyKnown facts that may be replayed.
    pub replay_ratios: Vec<f64>,
    /// Most stages.
    pub stages_max: usize,
    /// Time that may be spent, seconds; infinite where there is no limit.
    pub budget_s: f64,
}

impl Choice {
    /// Every recipe, shortest first.
    fn recipes(&self, question: &Question<'_>) -> Vec<Recipe> {
        let kept =
            |upgraded| self.replay_ratios.iter().map(move |&replay_ratio| TrainingSet::Kept { upgraded, replay_ratio });
        let later: Vec<TrainingSet> =
            std::iter::once(TrainingSet::Again).chain(kept(false)).chain(kept(true)).collect();
        let recipe = |n_stages, first, later| Recipe { n_stages, first, later };
        let mut recipes = vec![recipe(0, TrainingSet::MaybeKnown, TrainingSet::Again)];
        // What a second stage does after one on all facts is not given.
        recipes.extend(question.everything.map(|_| recipe(1, TrainingSet::Everything, TrainingSet::Again)));
        for n_stages in 1..=self.stages_max.min(question.stages.len()) {
            let n_later = if n_stages == 1 { 1 } else { later.len() };
            recipes.extend(later[..n_later].iter().map(|&later| recipe(n_stages, TrainingSet::MaybeKnown, later)));
        }
        recipes
    }
}

/// The best plan within a budget, and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The plan, what holds it back, and the best of another form: stages, sets, or whether anything is replayed.
    pub best: Decision<Plan>,
    /// The best without a budget.
    pub unlimited: Plan,
    /// Recipes within the budget.
    pub n_within: usize,
    /// Recipes that take longer.
    pub n_beyond: usize,
}

/// The plan with most expected mastered facts; of equals the shortest one. All recipes are tried, so the bound is the answer.
///
/// # Panics
/// Never: doing nothing costs nothing, so there is always an answer.
pub fn best(question: &Question<'_>, choice: &Choice) -> Best {
    let plans: Vec<Plan> = choice.recipes(question).into_iter().map(|recipe| question.plan(recipe)).collect();
    let within: Vec<Plan> = plans.iter().filter(|plan| plan.total_s() <= choice.budget_s).cloned().collect();
    let (n_within, n_beyond) = (within.len(), plans.len() - within.len());
    let best = most(within);
    let unlimited = most(plans).plan;
    let (bound, limit) = (Bound::plain(best.plan.mastered()), limit(&best.plan, &unlimited, choice));
    Best { best: best.bounded(Some(bound), Status::Optimal).limited(limit), unlimited, n_within, n_beyond }
}

/// The one with most mastered facts, then the shortest, then the first.
fn most(plans: Vec<Plan>) -> Decision<Plan> {
    let worth = plans.into_iter().map(|plan| (plan.mastered(), plan)).collect();
    // Bits of times, which are never below 0, are in their order.
    let shortest = |plan: &Plan| plan.total_s().to_bits();
    let is_other = |other: &Plan, best: &Plan| other.recipe.is_other_than(&best.recipe);
    proof::ranked(Aim::Facts, worth, shortest, is_other).expect("no training costs nothing")
}

fn limit(best: &Plan, unlimited: &Plan, choice: &Choice) -> String {
    if unlimited.mastered() > best.mastered() {
        return format!(
            "limited by the budget of {:.2} h: {:.2} h would master {:.0} facts more ({})",
            choice.budget_s / 3600.0,
            unlimited.total_s() / 3600.0,
            unlimited.mastered() - best.mastered(),
            unlimited.recipe.words()
        );
    }
    let replay_max = choice.replay_ratios.iter().copied().fold(0.0, f64::max);
    match best.recipe.later {
        _ if best.recipe.n_stages == 0 => {
            "limited by training itself: every stage loses more than it brings".to_owned()
        }
        _ if best.recipe.first == TrainingSet::Everything => "limited by stages that no longer gain".to_owned(),
        _ if best.recipe.n_stages == choice.stages_max => {
            format!("limited by the stages that may be run, {}", choice.stages_max)
        }
        TrainingSet::Kept { replay_ratio, .. } if replay_ratio == replay_max && best.recipe.n_stages > 1 => {
            format!(
                "limited by stages that no longer gain, with the largest share of replay, {:.0} %",
                replay_max * 100.0
            )
        }
        _ => "limited by stages that no longer gain".to_owned(),
    }
}

#[cfg(test)]
mod tests;
