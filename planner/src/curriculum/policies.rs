//! Policies of fine-tuning in stages by name: how facts are chosen.

use curriculum::TrainingSet;
use curriculum::generation::Prompts;

use super::Recipe;

/// How facts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// No training.
    NoTraining,
    /// One stage on all facts.
    OneStageAll,
    /// One stage on MaybeKnown facts.
    OneStage,
    /// A second stage on the same facts.
    Again,
    /// A second stage on what is still MaybeKnown, with replay.
    Replay,
    /// A second stage on what is still MaybeKnown and what was upgraded.
    Upgraded,
    /// A second stage with both.
    Gradual,
    /// Stages, sets and replay as is best within the budget.
    Planned,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Policy, &str); 8] = [
    ("no-training", Policy::NoTraining, "fine-tune on nothing: what is known at the start"),
    ("one-stage-all", Policy::OneStageAll, "fine-tune once, on all facts; nothing is classified"),
    ("one-stage", Policy::OneStage, "fine-tune once, on facts that are MaybeKnown"),
    ("two-stage-again", Policy::Again, "fine-tune twice on the same MaybeKnown facts"),
    ("two-stage-replay", Policy::Replay, "second stage on facts still MaybeKnown, with replay of HighlyKnown ones"),
    ("two-stage-upgraded", Policy::Upgraded, "second stage on facts still or newly MaybeKnown, without replay"),
    ("gradual", Policy::Gradual, "Gradual Learning: second stage on facts still or newly MaybeKnown, with replay"),
    ("planned", Policy::Planned, "stages, sets and replay that master most facts within the budget"),
];

/// One way to fine-tune that is compared.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// How facts are chosen.
    pub policy: Policy,
    /// Share of HighlyKnown facts that later stages replay.
    pub replay_ratio: f64,
    /// Share of facts that is held out to stop training.
    pub held_out_ratio: f64,
    /// How facts are classified.
    pub prompts: Prompts,
    /// Whether training does nothing, so that all that moves is noise.
    pub is_noise: bool,
}

impl Way {
    /// What the policy trains on; `None` where it is to be found.
    pub const fn recipe(&self) -> Option<Recipe> {
        let (n_stages, first, later) = match self.policy {
            Policy::NoTraining => (0, TrainingSet::MaybeKnown, TrainingSet::Again),
            Policy::OneStageAll => (1, TrainingSet::Everything, TrainingSet::Again),
            Policy::OneStage => (1, TrainingSet::MaybeKnown, TrainingSet::Again),
            Policy::Again => (2, TrainingSet::MaybeKnown, TrainingSet::Again),
            Policy::Replay => (2, TrainingSet::MaybeKnown, kept(false, self.replay_ratio)),
            Policy::Upgraded => (2, TrainingSet::MaybeKnown, kept(true, 0.0)),
            Policy::Gradual => (2, TrainingSet::MaybeKnown, kept(true, self.replay_ratio)),
            Policy::Planned => return None,
        };
        Some(Recipe { n_stages, first, later })
    }
}

const fn kept(upgraded: bool, replay_ratio: f64) -> TrainingSet {
    TrainingSet::Kept { upgraded, replay_ratio }
}
