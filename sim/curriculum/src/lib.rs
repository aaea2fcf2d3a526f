//! What stages of fine-tuning do to facts, by how well the model knows them: Gradual Learning (arXiv:2410.05802).
//!
//! A fact is in one of four classes (taxonomy of arXiv:2405.05904). A stage moves each fact independently, by one row-stochastic matrix if it
//! was trained on and by another if it was not, so counts are conserved and expectations are products of matrices. A retest without any
//! training moves facts too, because answers are sampled: that noise is a matrix of its own, and a gain is what is above it.
//! The matrices are data of a scenario: nothing here knows how well a model learns. What they leave out: that the effect of a stage depends on
//! what else is in its set. Units: facts, as expectations.

pub mod generation;

use thiserror::Error;

hw::words! {
    /// How well a model knows a fact, from answers to several prompts: greedy ones, and samples at a temperature.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Class: key {
        /// Greedy answers are always right: the fact is mastered.
        HighlyKnown = "highly_known",
        /// Greedy answers are sometimes right.
        MaybeKnown = "maybe_known",
        /// Greedy answers are never right, samples sometimes.
        WeaklyKnown = "weakly_known",
        /// No answer is right.
        Unknown = "unknown",
    }
}

impl Class {
    /// Index into counts and matrices.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Class of a fact with so many right greedy answers, and right answers in all.
    pub const fn of(n_greedy: u32, n_greedy_right: u32, n_samples_right: u32) -> Self {
        match n_greedy_right {
            0 if n_samples_right == 0 => Self::Unknown,
            0 => Self::WeaklyKnown,
            right if right < n_greedy => Self::MaybeKnown,
            _ => Self::HighlyKnown,
        }
    }
}

/// Facts per class, in the order of `Class`.
pub type Counts = [f64; 4];

/// Half of the width of a normal 90 % interval, in standard deviations.
const NORMAL_90: f64 = 1.644_853_6;
/// How far a row may be from adding up to 1.
const ROW_TOLERANCE: f64 = 1e-6;

/// Why numbers are no matrix of transitions: the first row that is none.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WrongRow {
    /// Probabilities that are negative or do not add up to 1.
    #[error("row `{}` adds up to {sum}, expected probabilities that add up to 1", class.key())]
    Probabilities { class: Class, sum: f64 },
    /// Counts that are negative, all zero or beyond a float.
    #[error("row `{}` adds up to {sum}, expected counts of at least one fact", class.key())]
    Counts { class: Class, sum: f64 },
}

/// Where a fact of each class goes: rows are classes before, columns classes after. Invariant: rows add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition([[f64; 4]; 4]);

impl Transition {
    /// A matrix of probabilities.
    ///
    /// # Errors
    /// The first row that has a negative entry or does not add up to 1.
    pub fn of_probabilities(rows: [[f64; 4]; 4]) -> Result<Self, WrongRow> {
        for (class, row) in Class::ALL.into_iter().zip(&rows) {
            let sum: f64 = row.iter().sum();
            if row.iter().any(|p| *p < 0.0) || (sum - 1.0).abs() > ROW_TOLERANCE {
                return Err(WrongRow::Probabilities { class, sum });
            }
        }
        Ok(Self::normalized(rows))
    }

    /// The matrix that counted facts show: `counts[i][j]` facts were in class i before and in class j after.
    ///
    /// # Errors
    /// The first row that has a negative entry, no fact at all or more than a float holds.
    pub fn of_counts(counts: [[f64; 4]; 4]) -> Result<Self, WrongRow> {
        for (class, row) in Class::ALL.into_iter().zip(&counts) {
            let sum: f64 = row.iter().sum();
            if row.iter().any(|n| *n < 0.0) || sum <= 0.0 || !sum.is_finite() {
                return Err(WrongRow::Counts { class, sum });
            }
        }
        Ok(Self::normalized(counts))
    }

    fn normalized(rows: [[f64; 4]; 4]) -> Self {
        Self(rows.map(|row| row.map(|entry| entry / row.iter().sum::<f64>())))
    }

    /// Probability that a fact goes from one class to another.
    pub const fn probability(&self, from: Class, to: Class) -> f64 {
        self.0[from.index()][to.index()]
    }

    /// The same with another probability of one way; the rest of its row keeps its proportions, or stays where there is no rest.
    pub fn with(&self, from: Class, to: Class, probability: f64) -> Self {
        let mut rows = self.0;
        let row = &mut rows[from.index()];
        let rest = 1.0 - row[to.index()];
        for (index, entry) in row.iter_mut().enumerate() {
            *entry = match index {
                _ if index == to.index() => probability,
                _ if rest > 0.0 => *entry * (1.0 - probability) / rest,
                _ if index == from.index() => 1.0 - probability,
                _ => 0.0,
            };
        }
        Self(rows)
    }

    /// Expected counts after one step.
    pub fn step(&self, counts: &Counts) -> Counts {
        std::array::from_fn(|to| counts.iter().zip(&self.0).map(|(n, row)| n * row[to]).sum())
    }
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// To facts that it trains on.
    pub trained: Transition,
    /// To all others: related facts get better, some are forgotten.
    pub others: Transition,
}

impl Effect {
    /// Training that does nothing: all facts move as in a retest.
    pub const fn none(retest: Transition) -> Self {
        Self { trained: retest, others: retest }
    }
}

/// Facts that a stage trains on (arXiv:2410.05802, the two stages and their ablation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainingSet {
    /// All of them.
    Everything,
    /// Those that are MaybeKnown.
    MaybeKnown,
    /// Those of the stage before, whatever they are now.
    Again,
    /// Those of the stage before that are still MaybeKnown, and more.
    Kept {
        /// Whether facts that the stage before made MaybeKnown from WeaklyKnown or Unknown join.
        upgraded: bool,
        /// Share of the HighlyKnown ones that are replayed.
        replay_ratio: f64,
    },
}

impl TrainingSet {
    /// Whether somebody has to classify the facts right before.
    pub const fn needs_classes(self) -> bool {
        matches!(self, Self::MaybeKnown | Self::Kept { .. })
    }

    /// Share of such facts that are trained on.
    fn share(self, was_trained: bool, before: Class, now: Class) -> f64 {
        let is_upgrade = now == Class::MaybeKnown && before > Class::MaybeKnown;
        let chosen = match self {
            Self::Everything => true,
            Self::MaybeKnown => now == Class::MaybeKnown,
            Self::Again => was_trained,
            Self::Kept { replay_ratio, .. } if now == Class::HighlyKnown => return replay_ratio,
            Self::Kept { upgraded, .. } => was_trained && now == Class::MaybeKnown || upgraded && is_upgrade,
        };
        f64::from(u8::from(chosen))
    }
}

/// Facts by whether the last stage trained on them, what they were before it and what they are now.
#[derive(Clone, Copy, Debug, Default)]
struct State([[[f64; 4]; 4]; 2]);

impl State {
    fn starting(counts: &Counts) -> Self {
        let mut state = Self::default();
        for (class, n) in counts.iter().enumerate() {
            state.0[0][class][class] = *n;
        }
        state
    }

    fn now(&self) -> Counts {
        std::array::from_fn(|now| self.0.iter().flatten().map(|row| row[now]).sum())
    }

    /// Facts that became MaybeKnown from something worse.
    fn upgraded(&self) -> f64 {
        let worse = [Class::WeaklyKnown, Class::Unknown];
        let of = |table: &[[f64; 4]; 4]| -> f64 {
            worse.iter().map(|class| table[class.index()][Class::MaybeKnown.index()]).sum()
        };
        self.0.iter().map(of).sum()
    }

    /// After a stage that may choose a share of all facts; and what it trained on, by class.
    fn after(&self, set: TrainingSet, effect: &Effect) -> (Self, Counts) {
        let (mut next, mut examples) = (Self::default(), Counts::default());
        for (was_trained, table) in [false, true].into_iter().zip(&self.0) {
            for (before, row) in Class::ALL.into_iter().zip(table) {
                for (now, n) in Class::ALL.into_iter().zip(row) {
                    let trained = n * set.share(was_trained, before, now);
                    examples[now.index()] += trained;
                    for to in Class::ALL {
                        let (from, to) = (now.index(), to);
                        next.0[1][from][to.index()] += trained * effect.trained.probability(now, to);
                        next.0[0][from][to.index()] += (n - trained) * effect.others.probability(now, to);
                    }
                }
            }
        }
        (next, examples)
    }
}

/// What a stage trained on and left behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageOutcome {
    /// Expected examples by class.
    pub examples: Counts,
    /// Expected facts by class after it.
    pub facts: Counts,
    /// Expected facts that it made MaybeKnown from WeaklyKnown or Unknown.
    pub upgraded: f64,
}

/// Expected way of all facts through stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Stages, in order.
    pub stages: Vec<StageOutcome>,
    /// Expected facts by class at the end.
    pub facts: Counts,
    /// Their standard deviations, as each fact moves by itself.
    pub deviations: Counts,
}

impl Course {
    /// 90 % interval of a class at the end (normal approximation of the binomial noise), cut to what is possible.
    pub fn interval(&self, class: Class) -> [f64; 2] {
        let (n, deviation) = (self.facts[class.index()], self.deviations[class.index()]);
        let all: f64 = self.facts.iter().sum();
        [(n - NORMAL_90 * deviation).max(0.0), (n + NORMAL_90 * deviation).min(all)]
    }
}

/// Plays stages over facts of which a share is held out of training.
///
/// Exact for expectations. The variance of a class is that of independent facts, `Σᵢ nᵢ pᵢⱼ (1 − pᵢⱼ)` with `p` the whole way from start to
/// end; held-out and replayed facts are drawn independently, which is a little more noise than a fixed number of them.
pub fn course(facts: &Counts, held_out_ratio: f64, stages: &[(TrainingSet, Effect)]) -> Course {
    let of = |facts: &Counts| -> (Vec<StageOutcome>, Counts) {
        let part = |share: f64| State::starting(&facts.map(|n| n * share));
        let (mut open, mut held_out) = (part(1.0 - held_out_ratio), part(held_out_ratio));
        let outcomes = stages.iter().map(|(set, effect)| {
            let (next, examples) = open.after(*set, effect);
            open = next;
            held_out = held_out.after(TrainingSet::Again, effect).0;
            let counts = added(&open.now(), &held_out.now());
            StageOutcome { examples, facts: counts, upgraded: open.upgraded() + held_out.upgraded() }
        });
        let outcomes: Vec<_> = outcomes.collect();
        (outcomes, added(&open.now(), &held_out.now()))
    };
    let (stages, end) = of(facts);
    let mut variances = Counts::default();
    for class in Class::ALL {
        let mut one = Counts::default();
        one[class.index()] = 1.0;
        for (variance, p) in variances.iter_mut().zip(of(&one).1) {
            *variance += facts[class.index()] * (p * (1.0 - p)).max(0.0);
        }
    }
    Course { stages, facts: end, deviations: variances.map(f64::sqrt) }
}

fn added(a: &Counts, b: &Counts) -> Counts {
    std::array::from_fn(|class| a[class] + b[class])
}

/// Expected facts by class after so many retests without training.
pub fn retested(facts: &Counts, retest: &Transition, n: usize) -> Counts {
    (0..n).fold(*facts, |counts, _| retest.step(&counts))
}

#[cfg(test)]
mod tests;
