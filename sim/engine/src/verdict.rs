//! What planners and reports say of a plan and of a row: what its objective counts, how good it is known to be, how it ended.
//!
//! Both know this crate and not each other, so the words they share stand here.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Relative distance by which solvers and sums put a figure on the wrong side of another one.
const ROUNDING: f64 = 1e-6;

/// What an objective counts, and so which way is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Seconds, to be few.
    #[default]
    Seconds,
    /// Dollars, to be few.
    Usd,
    /// Dollars per hour, to be few.
    UsdPerHour,
    /// Dollars per million output tokens, to be few.
    UsdPerMtok,
    /// GPUs, to be few.
    Gpus,
    /// Bytes, to be few.
    Bytes,
    /// Requests per second, within limits where there are any.
    RequestsPerS,
    /// Share of the requests that meet their limits.
    AttainmentRatio,
    /// Tokens per second.
    TokensPerS,
    /// Tokens per dollar.
    TokensPerUsd,
    /// Tokens per second and GPU.
    TokensPerSPerGpu,
    /// Facts that a model has mastered.
    Facts,
    /// Transactions over a link, to be few.
    Transactions,
    /// Watt-hours, to be few.
    WattHours,
    /// Joules per output token, to be few.
    JoulesPerToken,
}

impl Aim {
    /// Whether less is better; a bound is then below, and above otherwise.
    pub const fn is_least(self) -> bool {
        matches!(
            self,
            Self::Seconds
                | Self::Usd
                | Self::UsdPerHour
                | Self::UsdPerMtok
                | Self::Gpus
                | Self::Bytes
                | Self::Transactions
                | Self::WattHours
                | Self::JoulesPerToken
        )
    }

    /// The better one first.
    pub fn order(self, a: f64, b: f64) -> Ordering {
        if self.is_least() { a.total_cmp(&b) } else { b.total_cmp(&a) }
    }

    /// Whether `a` is better than `b` by more than rounding.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        let slack = ROUNDING * a.abs().max(b.abs());
        if self.is_least() { a < b - slack } else { a > b + slack }
    }
}

hw::words! {
    /// How good a plan is known to be.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Status: name {
        /// Proved best for the planner's own objective.
        Optimal = "optimal",
        /// Found by a solver that stopped early.
        Feasible = "feasible",
        /// Found by a heuristic.
        #[default]
        Heuristic = "heuristic",
    }
}

impl Status {
    /// The one that says less.
    pub const fn weaker(self, other: Self) -> Self {
        match (self, other) {
            (Self::Heuristic, _) | (_, Self::Heuristic) => Self::Heuristic,
            (Self::Feasible, _) | (_, Self::Feasible) => Self::Feasible,
            _ => Self::Optimal,
        }
    }
}

hw::words! {
    /// How a row ended. All but the first come with a reason and are results, no errors.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Ended: name {
        /// It has figures.
        #[serde(rename = "ok")]
        Ok = "ok",
        /// It does not fit memory.
        #[serde(rename = "oom")]
        OutOfMemory = "oom",
        /// It cannot be, or nobody has filled the row yet.
        #[default]
        #[serde(rename = "infeasible")]
        Infeasible = "infeasible",
        /// Its planner ran out of time before it had a plan.
        #[serde(rename = "timeout")]
        OutOfTime = "timeout",
    }
}

impl Ended {
    /// Whether it has figures.
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something has no figures: how it ended, and the reason for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// How it ended; never `Ok`.
    pub ended: Ended,
    /// The reason, in words.
    pub why: String,
}

impl Refused {
    /// It does not fit memory.
    pub fn out_of_memory(why: impl fmt::Display) -> Self {
        Self { ended: Ended::OutOfMemory, why: why.to_string() }
    }

    /// It cannot be.
    pub fn infeasible(why: impl fmt::Display) -> Self {
        Self { ended: Ended::Infeasible, why: why.to_string() }
    }

    /// Its planner ran out of time.
    pub fn out_of_time(why: impl fmt::Display) -> Self {
        Self { ended: Ended::OutOfTime, why: why.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_better_where_an_aim_says_so() {
        assert_eq!(Aim::Seconds.order(1.0, 2.0), Ordering::Less);
        assert_eq!(Aim::TokensPerS.order(1.0, 2.0), Ordering::Greater);
        assert!(!Aim::Seconds.is_better(1.0 - 1e-9, 1.0), "rounding is no advantage");
    }

    #[test]
    fn names_are_those_of_the_file() {
        for ended in Ended::ALL {
            assert_eq!(serde_json::to_value(ended).expect("a word"), ended.name());
        }
        for status in [Status::Optimal, Status::Feasible, Status::Heuristic] {
            assert_eq!(serde_json::to_value(status).expect("a word"), status.name());
        }
    }

    #[test]
    fn the_weaker_proof_counts() {
        assert_eq!(Status::Optimal.weaker(Status::Feasible), Status::Feasible);
        assert_eq!(Status::Feasible.weaker(Status::Heuristic), Status::Heuristic);
    }
}
