//! Renting GPUs for serving: the problem, the plan and the proof that the planners below `deploy/` share.
//!
//! A problem offers GPU types at a price and in a number, lists configurations (the GPUs of one replica and how many requests of each
//! type it serves per second when its batch is full) and asks for an amount of work under a budget. A paper is a file:
//! `cost_efficiency.rs` (arXiv:2502.00722), `melange.rs` (arXiv:2404.14527), `helix.rs` (arXiv:2406.01566), `thunderserve.rs`
//! (arXiv:2502.09334), `dynamo.rs` (NVIDIA Dynamo's planner), `hindsight.rs` (what its schedules are held against); `policies.rs` names those that
//! scenarios may use. Rates come from the serving simulator (`simulated.rs`, and under the mix of a plan `mixing.rs`) or from the roofline of
//! `throughput.rs`; `roofline.rs` is the time of a layer that it shares with the planners of pools.
//!
//! Units: dollars per hour, requests, requests per second, seconds. Invariant: bad input is a named reason, never a panic.

pub mod capacity;
pub mod cost_efficiency;
pub mod dynamo;
pub mod goodput;
pub mod helix;
pub mod hindsight;
pub mod inventory;
mod kinds;
mod machines;
pub mod melange;
pub mod mixing;
pub mod objective;
pub mod policies;
pub mod rental;
mod roofline;
pub mod simulated;
pub mod throughput;
pub mod thunderserve;
pub mod tune;

use engine::verdict::Refused;
use inventory::Inventory;
use thiserror::Error;

/// One way to deploy a replica of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Name, for messages.
    pub name: String,
    /// Model that it serves, an index that demands use too.
    pub model: usize,
    /// GPUs of each offer that one replica takes.
    pub n_gpus: Vec<u32>,
    /// Saturated requests per second of one replica for each demand; 0 where it cannot serve such requests.
    pub requests_per_s: Vec<f64>,
}

/// Requests of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Name, for messages.
    pub name: String,
    /// Model that they ask for.
    pub model: usize,
    /// Number of requests.
    pub requests: f64,
}

/// What to rent for.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// GPU types.
    pub inventory: Inventory,
    /// Configurations to choose from.
    pub configurations: Vec<Configuration>,
    /// Work of each request type.
    pub demands: Vec<Demand>,
    /// Most dollars per hour.
    pub budget_usd_per_hour: f64,
}

/// What is rented, and who serves what.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Replicas of each configuration.
    pub replicas: Vec<u32>,
    /// GPUs of each offer.
    pub n_gpus: Vec<u32>,
    /// Dollars per hour.
    pub usd_per_hour: f64,
    /// `shares[c][w]`: part of demand w that all replicas of c serve together; 0 for demands without requests.
    pub shares: Vec<Vec<f64>>,
    /// When the last replica ends, seconds.
    pub makespan_s: f64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RentalError {
    /// The input has no meaning; names the entry and what is allowed.
    #[error("{0}")]
    Input(String),
    /// Nothing that can be rented serves the demand.
    #[error("{0}")]
    Infeasible(String),
    /// No memory that is offered holds the model.
    #[error("{0}")]
    OutOfMemory(String),
    /// The search ended before it found anything.
    #[error("{0}")]
    Budget(String),
    /// The checker of deployments refused what was planned: a fault of the planner.
    #[error("the plan breaks the rules of a deployment: {0}")]
    Refused(String),
}

impl From<RentalError> for Refused {
    fn from(error: RentalError) -> Self {
        match error {
            RentalError::Budget(why) => Self::out_of_time(why),
            RentalError::OutOfMemory(why) => Self::out_of_memory(why),
            RentalError::Input(_) | RentalError::Infeasible(_) | RentalError::Refused(_) => Self::infeasible(error),
        }
    }
}

impl RentalError {
    /// What the checker found.
    pub fn refused(found: Vec<serve::check::Refusal>) -> Self {
        Self::Refused(found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }
}

impl Problem {
    /// Checks that every figure has a meaning.
    ///
    /// # Errors
    /// Names the first entry that has none.
    pub fn check(&self) -> Result<(), RentalError> {
        let input = |message: String| Err(RentalError::Input(message));
        self.inventory.check_prices()?;
        if !(self.budget_usd_per_hour.is_finite() && self.budget_usd_per_hour >= 0.0) {
            return input(format!("budget must not be below 0 $/h, found {}", self.budget_usd_per_hour));
        }
        for demand in &self.demands {
            if !(demand.requests.is_finite() && demand.requests >= 0.0) {
                return input(format!("requests of `{}` must not be below 0, found {}", demand.name, demand.requests));
            }
        }
        if self.demands.iter().all(|demand| demand.requests == 0.0) {
            return input("the demand is empty: every type has 0 requests".to_owned());
        }
        self.configurations.iter().try_for_each(|configuration| self.check_configuration(configuration))
    }

    fn check_configuration(&self, configuration: &Configuration) -> Result<(), RentalError> {
        let name = &configuration.name;
        let input = |message: String| Err(RentalError::Input(message));
        if configuration.n_gpus.len() != self.inventory.offers.len() {
            let (found, offers) = (configuration.n_gpus.len(), self.inventory.offers.len());
            return input(format!("`{name}` counts {found} GPU types, {offers} are offered"));
        }
        if configuration.n_gpus.iter().all(|&n| n == 0) {
            return input(format!("`{name}` takes no GPU"));
        }
        if configuration.requests_per_s.len() != self.demands.len() {
            let (found, demands) = (configuration.requests_per_s.len(), self.demands.len());
            return input(format!("`{name}` has rates for {found} request types, {demands} are demanded"));
        }
        for (rate, demand) in configuration.requests_per_s.iter().zip(&self.demands) {
            if !(rate.is_finite() && *rate >= 0.0 && (*rate == 0.0 || (demand.requests / rate).is_finite())) {
                return input(format!("rate of `{name}` for `{}` must not be below 0, found {rate}", demand.name));
            }
        }
        Ok(())
    }

    /// Dollars per hour of one replica.
    pub fn price(&self, c: usize) -> f64 {
        let n_gpus = &self.configurations[c].n_gpus;
        n_gpus.iter().zip(&self.inventory.offers).map(|(&n, offer)| f64::from(n) * offer.usd_per_hour).sum()
    }

    /// Replicas of a configuration that budget and availability allow when nothing else is rented.
    pub fn n_replicas_max(&self, c: usize) -> u32 {
        let available = self.n_replicas_available(c);
        // The slack forgives a budget that is a sum of prices up to rounding.
        let affordable = (self.budget_usd_per_hour / self.price(c) * (1.0 + 1e-9)).floor();
        if affordable >= f64::from(available) { available } else { whole(affordable) }
    }

    /// Replicas of a configuration that availability allows when nothing else is rented, whatever they cost.
    pub fn n_replicas_available(&self, c: usize) -> u32 {
        let taken = self.configurations[c].n_gpus.iter().zip(&self.inventory.offers).filter(|(n, _)| **n > 0);
        taken.map(|(&n, offer)| machines::n_replicas_max(offer, n)).min().unwrap_or(0)
    }

    /// Where the replicas of each configuration lie on the machines of an offer, by their first GPU; `None` where they do not fit.
    pub fn laid(&self, offer: usize, replicas: &[u32]) -> Option<Vec<Vec<u32>>> {
        machines::laid(&self.inventory.offers[offer], &self.wanted(offer, replicas))
    }

    /// GPUs of an offer for a replica, and replicas, of each configuration.
    fn wanted(&self, offer: usize, replicas: &[u32]) -> Vec<(u32, u32)> {
        let wanted = replicas.iter().zip(&self.configurations).map(|(&y, c)| (c.n_gpus[offer], y));
        wanted.map(|(size, y)| (size, if size > 0 { y } else { 0 })).collect()
    }

    /// Whether replicas can be rented: within the budget, on the machines that are offered.
    pub fn can_rent(&self, replicas: &[u32]) -> bool {
        self.usd_per_hour(replicas) <= self.budget_usd_per_hour * (1.0 + 1e-9)
            && (0..self.inventory.offers.len()).all(|offer| self.fits(offer, replicas))
    }

    /// Whether replicas fit the machines of an offer.
    pub fn fits(&self, offer: usize, replicas: &[u32]) -> bool {
        machines::fits(&self.inventory.offers[offer], &self.wanted(offer, replicas))
    }

    /// GPUs of each offer that replicas take.
    pub fn n_gpus(&self, replicas: &[u32]) -> Vec<u32> {
        let of = |offer: usize| {
            let taken = replicas.iter().zip(&self.configurations).map(|(&y, c)| y.saturating_mul(c.n_gpus[offer]));
            taken.fold(0, u32::saturating_add)
        };
        (0..self.inventory.offers.len()).map(of).collect()
    }

    /// Dollars per hour of replicas.
    pub fn usd_per_hour(&self, replicas: &[u32]) -> f64 {
        replicas.iter().enumerate().map(|(c, &y)| f64::from(y) * self.price(c)).sum()
    }

    /// Seconds in which one replica of c would serve all of demand w; `None` where it cannot, or where there is nothing to serve.
    pub fn seconds(&self, c: usize, w: usize) -> Option<f64> {
        let (configuration, demand) = (&self.configurations[c], &self.demands[w]);
        let rate = configuration.requests_per_s[w];
        let serves = configuration.model == demand.model && rate > 0.0 && demand.requests > 0.0;
        serves.then(|| demand.requests / rate)
    }

    /// Seconds in which one replica of c would serve all that is asked of its model; infinite where it cannot.
    pub fn seconds_alone(&self, c: usize) -> f64 {
        let model = self.configurations[c].model;
        let asked =
            (0..self.demands.len()).filter(|&w| self.demands[w].model == model && self.demands[w].requests > 0.0);
        asked.map(|w| self.seconds(c, w).unwrap_or(f64::INFINITY)).sum()
    }

    /// Of some configurations with as many GPUs the one that would serve all that is asked soonest; of equals the first.
    pub fn fastest(&self, of: impl Iterator<Item = usize>) -> Option<usize> {
        of.min_by(|&a, &b| self.seconds_alone(a).total_cmp(&self.seconds_alone(b)))
    }

    /// Replicas in words, for example `1 x a100 + 2 x l4`.
    pub fn words(&self, replicas: &[u32]) -> String {
        let used = replicas.iter().zip(&self.configurations).filter(|(y, _)| **y > 0);
        used.map(|(y, c)| format!("{y} x {}", c.name)).collect::<Vec<_>>().join(" + ")
    }
}

/// Dollars per hour in a sentence, to a hundredth of a cent: sums of prices have rounding behind it.
pub(crate) fn usd(per_hour: f64) -> f64 {
    let rounded = (per_hour * 1e4).round() / 1e4;
    if rounded == 0.0 || !rounded.is_finite() { per_hour } else { rounded }
}

/// A non-negative count that a solver returned as a float; what lies outside of `u32` ends at its border.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
pub(crate) fn whole(value: f64) -> u32 {
    value.round() as u32
}
