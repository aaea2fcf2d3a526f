//! What is found of fleets that were tried for a load: planners fill it in, reports show it.
//!
//! Units: dollars per hour and per million output tokens, requests per second; an attainment is the share of requests that meet every limit.

use serde::{Deserialize, Serialize};

hw::words! {
    /// What the chosen fleet has least of, as a key and in words.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Minimize: key, name {
        /// Dollars per hour.
        #[default]
        UsdPerHour = ("usd_per_hour", "is the cheapest fleet"),
        /// Dollars per million output tokens.
        UsdPerMtok = ("usd_per_mtok", "is the fleet with the cheapest tokens"),
        /// Replicas that are paid on average.
        Replicas = ("replicas", "is the fleet of the fewest replicas"),
        /// Watt-hours of all its GPUs over the run.
        EnergyWh = ("energy_wh", "is the fleet that draws least"),
        /// Joules of all its GPUs over the tokens that they gave.
        EnergyPerToken = ("energy_j_per_output_token", "is the fleet that draws least for a token"),
    }
}

/// More requests come than a fleet serves with full batches: its queue grows as long as they come. A trace may end before that shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overload {
    /// Requests per second that come.
    pub offered_requests_per_s: f64,
    /// Requests per second that it serves at most.
    pub most_requests_per_s: f64,
}

impl Overload {
    /// Of so many requests per second where so many are served at most, and more come.
    pub fn of(offered_requests_per_s: f64, most_requests_per_s: f64) -> Option<Self> {
        (offered_requests_per_s > most_requests_per_s).then_some(Self { offered_requests_per_s, most_requests_per_s })
    }

    /// The same in words.
    pub fn words(&self) -> String {
        let Self { offered_requests_per_s: offered, most_requests_per_s: most } = self;
        format!("{offered:.2} requests per second come, and full batches serve {most:.2} at most")
    }
}

/// Where the costs of a fleet come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostSources {
    /// Profiles and shares of the time, in words.
    pub words: String,
    /// Share of the time whose costs were measured on such GPUs; absent where times are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ratio: Option<f64>,
}

/// A fleet that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What it is, for example `4 x h100-sxm tp 2`.
    pub name: String,
    /// GPU type.
    pub gpu: String,
    /// GPUs of all replicas.
    pub n_gpus: u64,
    /// Dollars per hour.
    pub usd_per_hour: f64,
    /// Dollars per million output tokens.
    pub usd_per_mtok: f64,
    /// Its interval.
    pub usd_per_mtok_interval: [f64; 2],
    /// Share of requests that met every limit.
    pub attainment_ratio: f64,
    /// Its interval.
    pub attainment_interval: [f64; 2],
    /// Why it does not keep the load, whatever its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
    /// Where its costs come from.
    #[serde(default)]
    pub costs: CostSources,
    /// What the chosen fleet has least of (`Minimize`).
    #[serde(default)]
    pub minimized: f64,
    /// Whether no other fleet is cheaper per token and meets as much.
    pub is_on_front: bool,
}

/// A load that was tried at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Times the load of the trace.
    pub factor: f64,
    /// Share of requests that met every limit.
    pub attainment_ratio: f64,
    /// Its interval.
    pub attainment_interval: [f64; 2],
    /// Why the fleet does not keep it, whatever the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
}

/// How much more load the chosen fleet takes at the peak.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Headroom {
    /// The window, in words.
    pub window: String,
    /// Its start, seconds of the trace.
    #[serde(default)]
    pub from_s: f64,
    /// Its end.
    #[serde(default)]
    pub to_s: f64,
    /// Requests per second of the window.
    pub requests_per_s: f64,
    /// Highest load that was served within the target; 0 where none was.
    pub meets: f64,
    /// Lowest load that was not; infinite loads are not tried, so that it may be absent.
    pub fails: Option<f64>,
    /// Every load that was tried, in order of load.
    pub loads: Vec<Load>,
    /// What breaks first, in words.
    pub breaks: String,
}

/// What would be chosen if something were different.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// What is different, for example `load +20 %`.
    pub change: String,
    /// The fleet within the target that would be chosen; empty where none is.
    pub cheapest: String,
    /// Its dollars per million output tokens.
    pub usd_per_mtok: Option<f64>,
    /// Attainment of the fleet that is chosen today.
    pub attainment_ratio: Option<f64>,
}
