//! What a deployment is to be best at, and what a plan that rents must keep.
//!
//! One table for planners, readers and messages; `policies.rs` says who serves which. Units: dollars per hour, seconds.

/// What is to be best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Given work ends soonest within a budget of dollars per hour.
    Time,
    /// Given work ends within a deadline for the fewest dollars per hour.
    Dollars,
    /// Most requests per second of which a share meets limits.
    Goodput,
    /// Most tokens per second.
    Throughput,
}

/// Every objective: its word in scenarios, and what it asks.
pub static OBJECTIVES: [(&str, Objective, &str); 4] = [
    ("time", Objective::Time, "given work ends soonest within a budget of dollars per hour"),
    ("dollars", Objective::Dollars, "given work ends within a deadline for the fewest dollars per hour"),
    ("goodput", Objective::Goodput, "most requests per second of which a share meets limits"),
    ("throughput", Objective::Throughput, "most tokens per second"),
];

impl Objective {
    /// Its word in scenarios.
    ///
    /// # Panics
    /// Never: every objective has a row.
    #[must_use]
    pub fn name(self) -> &'static str {
        OBJECTIVES.iter().find(|row| row.1 == self).expect("every objective has a row").0
    }

    /// Whether GPUs are rented, so that each needs a price.
    #[must_use]
    pub const fn is_rented(self) -> bool {
        matches!(self, Self::Time | Self::Dollars)
    }
}

/// What a plan that rents must keep; the other of the two figures is the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Most dollars per hour: work ends soonest.
    Budget {
        /// Dollars per hour.
        usd_per_hour: f64,
    },
    /// Latest end of the work: dollars per hour are fewest.
    Deadline {
        /// Seconds.
        seconds: f64,
    },
}

impl Limit {
    /// Its figure.
    #[must_use]
    pub const fn value(self) -> f64 {
        match self {
            Self::Budget { usd_per_hour } => usd_per_hour,
            Self::Deadline { seconds } => seconds,
        }
    }
}
