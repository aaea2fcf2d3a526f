//! What the objective of a planner counts, and the sentence that says how good a plan is known to be.

use serde::{Deserialize, Serialize};

use crate::PlannerFacts;
use crate::quantity::{duration, gib, percent, plain, significant};

/// What an objective counts; seconds and bytes are to be few, rates are to be many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Seconds; a bound is below.
    #[default]
    Seconds,
    /// Requests per second; a bound is above.
    RequestsPerS,
    /// Tokens per second; a bound is above.
    TokensPerS,
    /// Tokens per second and GPU; a bound is above.
    TokensPerSPerGpu,
    /// Bytes, to be few; a bound is below.
    Bytes,
    /// Facts that a model has mastered; a bound is above.
    Facts,
    /// Dollars per hour, to be few; a bound is below.
    UsdPerHour,
    /// Dollars per million output tokens, to be few; a bound is below.
    UsdPerMtok,
    /// GPUs, to be few; a bound is below.
    Gpus,
    /// Share of the requests that meet their limits; a bound is above.
    AttainmentRatio,
    /// Transactions over a link, to be few; a bound is below.
    Transactions,
}

impl Aim {
    pub(crate) fn is_seconds(&self) -> bool {
        *self == Self::Seconds
    }

    pub(crate) fn figure(self, value: f64) -> String {
        match self {
            Self::Seconds => duration(value, None),
            Self::RequestsPerS => format!("{} requests/s", significant(value)),
            Self::TokensPerS => format!("{} tokens/s", significant(value)),
            Self::TokensPerSPerGpu => format!("{} tokens/s/GPU", significant(value)),
            Self::Bytes => gib(value),
            Self::Facts => format!("{} facts", significant(value)),
            Self::UsdPerHour => format!("{} $/h", significant(value)),
            Self::UsdPerMtok => format!("$ {} per million output tokens", significant(value)),
            Self::Gpus => format!("{} GPUs", significant(value)),
            Self::AttainmentRatio => percent(value),
            Self::Transactions => format!("{} transactions", significant(value)),
        }
    }

    /// Whether less of it is better, so that a bound is below.
    pub(crate) const fn is_least(self) -> bool {
        matches!(
            self,
            Self::Seconds | Self::Bytes | Self::UsdPerHour | Self::UsdPerMtok | Self::Gpus | Self::Transactions
        )
    }

    const fn limit(self) -> &'static str {
        if self.is_least() { "at least" } else { "at most" }
    }
}

impl PlannerFacts {
    /// `heuristic plan in 18.2 µs; its own objective 0.131 s, at least 0.120 s (gap 8.4 %)`; without the time where it is 0.
    #[must_use]
    pub fn words(&self, planner_wall_s: f64) -> String {
        let mut words = plain(&self.status) + " plan";
        if planner_wall_s > 0.0 {
            words = format!("{words} in {}", duration(planner_wall_s, None));
        }
        if let Some(objective) = self.objective {
            words = format!("{words}; its own objective {}", self.aim.figure(objective));
            if let Some(bound) = self.bound {
                let gap = self.gap_ratio.map_or_else(String::new, |gap| format!(" (gap {})", percent(gap)));
                words = format!("{words}, {} {}{gap}", self.aim.limit(), self.aim.figure(bound));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_it_knows() {
        let facts = PlannerFacts {
            objective: Some(2.0),
            bound: Some(1.5),
            gap_ratio: Some(0.25),
            status: "feasible".to_owned(),
            ..PlannerFacts::default()
        };
        let expected = "feasible plan in 2.000 ms; its own objective 2.000 s, at least 1.500 s (gap 25.0 %)";
        assert_eq!(facts.words(0.002), expected);
        let rate = PlannerFacts { aim: Aim::RequestsPerS, bound: Some(2.5), ..facts };
        let expected = "feasible plan; its own objective 2.000 requests/s, at most 2.500 requests/s (gap 25.0 %)";
        assert_eq!(rate.words(0.0), expected);
    }
}
