//! The policy seam: a card that describes it, and one function from problem to decision.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::verdict::Refused;
use thiserror::Error;
use train::{Plan, Problem};

use crate::proof::Decision;

/// Value of a policy parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number, in the parameter's unit.
    Number(f64),
    /// One of the words that the parameter allows.
    Word(String),
}

/// Values that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// A number in this closed range.
    Range(f64, f64),
    /// A whole number in this closed range.
    Count(f64, f64),
    /// One of these words.
    Words(&'static [&'static str]),
}

/// A parameter that a scenario may set under `[policies.<name>]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Key.
    pub name: &'static str,
    /// Unit, or `word`.
    pub unit: &'static str,
    /// Default, written as in the scenario file.
    pub default: &'static str,
    /// Values that it takes.
    pub allowed: Allowed,
    /// What it does, one sentence.
    pub about: &'static str,
    /// Parameter with the words under which alone it has an effect, where it hangs on one.
    pub under: Option<(&'static str, &'static [&'static str])>,
}

impl Parameter {
    /// One of some words, the first where nothing is set.
    pub const fn word(name: &'static str, words: &'static [&'static str], about: &'static str) -> Self {
        Self { name, unit: "word", default: words[0], allowed: Allowed::Words(words), about, under: None }
    }

    /// A number: name and unit; default, least and most.
    pub const fn number(
        (name, unit): (&'static str, &'static str),
        (default, least, most): (&'static str, f64, f64),
        about: &'static str,
    ) -> Self {
        Self { name, unit, default, allowed: Allowed::Range(least, most), about, under: None }
    }

    /// A whole number: name and unit; default, least and most.
    pub const fn count(
        named: (&'static str, &'static str),
        (default, least, most): (&'static str, f64, f64),
        about: &'static str,
    ) -> Self {
        Self { allowed: Allowed::Count(least, most), ..Self::number(named, (default, least, most), about) }
    }

    /// The same, of no effect unless another parameter is one of these words.
    pub const fn under(self, name: &'static str, words: &'static [&'static str]) -> Self {
        Self { under: Some((name, words)), ..self }
    }
}

/// What a policy says of itself; help, listings, docs and suggestions read it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Name in scenario files.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Paper or public source.
    pub source: &'static str,
    /// Planning method inside, for `show`.
    pub method: &'static str,
    /// Parameters.
    pub parameters: &'static [Parameter],
}

/// What a policy may use besides the problem.
pub struct PlanContext<'a> {
    /// Cost model of the scenario.
    pub cost: &'a dyn CostModel,
    /// Parameters that the scenario set, already checked against the card.
    pub parameters: BTreeMap<String, Value>,
}

impl PlanContext<'_> {
    /// A word parameter, or its default.
    pub fn word<'b>(&'b self, name: &str, default: &'b str) -> &'b str {
        match self.parameters.get(name) {
            Some(Value::Word(word)) => word,
            _ => default,
        }
    }

    /// A numeric parameter, or its default.
    pub fn number(&self, name: &str, default: f64) -> f64 {
        match self.parameters.get(name) {
            Some(Value::Number(number)) => *number,
            _ => default,
        }
    }
}

/// Why there is no plan. A status in the result, not bad input.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// No plan fits.
    #[error("{0}")]
    Infeasible(String),
    /// No plan fits memory.
    #[error("{0}")]
    OutOfMemory(String),
    /// The policy does not handle such a problem.
    #[error("{0}")]
    Unsupported(String),
    /// The budget ran out before any plan was found.
    #[error("{0}")]
    Budget(String),
}

impl PlanError {
    /// A limit of a policy with the policy's name; what no plan could do is the problem's.
    pub(crate) fn of(self, policy: &str) -> Self {
        match self {
            Self::Unsupported(why) => Self::Unsupported(format!("`{policy}`: {why}")),
            other => other,
        }
    }
}

impl From<PlanError> for Refused {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Infeasible(why) | PlanError::Unsupported(why) => Self::infeasible(why),
            PlanError::OutOfMemory(why) => Self::out_of_memory(why),
            PlanError::Budget(why) => Self::out_of_time(why),
        }
    }
}

/// What of a layout the micro-batches of a policy follow from: a search of layouts plans once for all that are alike in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Data-parallel groups, context ranks, and the tokens that a rank may hold.
    Room,
    /// Whatever a layout has: other degrees, sharding, schedule, recompute, memory.
    Everything,
}

/// A scheduling policy.
pub trait Policy: Sync {
    /// What it is.
    fn card(&self) -> &'static Card;

    /// Whether its plans fit the speed of devices that straggle; one that does not plans as if all were healthy.
    fn weighs_stragglers(&self) -> bool {
        false
    }

    /// Whether it leaves every sequence to one context group of the layout, so that it has no plan for one that no group holds.
    fn fits_whole(&self) -> bool {
        false
    }

    /// What of a layout its micro-batches follow from.
    fn reads(&self) -> Reads {
        Reads::Everything
    }

    /// Decides every simulated step.
    ///
    /// # Errors
    /// When no plan fits, the problem is not of a kind it handles, or its budget ran out.
    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError>;
}
