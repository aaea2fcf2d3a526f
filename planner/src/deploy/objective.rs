//! What a deployment is to be best at, and what a plan that rents must keep.
//!
//! One table for planners, readers and messages; `policies.rs` says who serves which. Units: dollars per hour, seconds.

hw::words! {
    /// What is to be best.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Objective: name {
        /// Given work ends soonest within a budget of dollars per hour.
        Time = "time",
        /// Given work ends within a deadline for the fewest dollars per hour.
        Dollars = "dollars",
        /// Most requests per second of which a share meets limits.
        Goodput = "goodput",
        /// Most tokens per second.
        Throughput = "throughput",
    }
}

impl Objective {
    /// Whether GPUs are rented, so that each needs a price.
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
    /// The same limit at another figure.
    pub const fn with(self, value: f64) -> Self {
        match self {
            Self::Budget { .. } => Self::Budget { usd_per_hour: value },
            Self::Deadline { .. } => Self::Deadline { seconds: value },
        }
    }

    /// Its figure.
    pub const fn value(self) -> f64 {
        match self {
            Self::Budget { usd_per_hour } => usd_per_hour,
            Self::Deadline { seconds } => seconds,
        }
    }
}
