//! What a run found, as one type, and the shapes it is shown in: table, JSON, Markdown, trace, HTML.
//!
//! Each format is a function of a `RunResult`; measured wall times stand under the key `measured` alone.

mod aim;
pub mod capacity;
pub mod chart;
pub mod columns;
pub mod compared;
pub mod comparison;
pub mod curves;
pub mod draws;
pub mod expect;
pub mod frame;
pub mod gains;
pub mod gate;
mod graph;
pub mod html;
pub mod json;
pub mod junit;
mod lanes;
pub mod lines;
mod lost;
pub mod markdown;
pub mod metrics;
mod nested;
mod origin;
mod quantity;
pub mod read;
mod rows;
pub mod serving;
mod shown;
pub mod sound;
pub mod svg;
pub mod swept;
pub mod table;
pub mod trace;
pub mod tuned;
pub mod validation;
mod view;
pub mod views;

use std::collections::BTreeMap;

pub use engine::Origin;
pub use engine::verdict::{Aim, Ended, Status};
pub use packed::columnar as parquet;

use serde::{Deserialize, Serialize, Serializer};

/// Schema of `result.json`.
pub const SCHEMA: &str = "skrull-sim/run/1";

/// Share of the time outside of the measured hull from which on a run says so.
const OUTSIDE_TOLD: f64 = 0.005;

/// Which cost model answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModelFacts {
    /// Profile name, or `roofline`.
    pub profile: String,
    /// The weakest source: `measured`, `published`, `datasheet`, …; `given by the scenario` where it states durations.
    pub source: String,
    /// What share of the time comes from where, the largest first: of computation in a step, of an average iteration in serving.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<CostShare>,
    /// Share of the step's busy time that lies outside the measured hull, worst policy.
    #[serde(default, skip_serializing_if = "is_not_finite")]
    pub outside_hull_ratio: f64,
    /// Dimensions outside the hull.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside_hull: Vec<String>,
    /// Free parameters that were fitted and not measured, as sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_parameters: Vec<String>,
}

impl CostModelFacts {
    /// Whether a share of the time that can be seen lies outside what was measured.
    pub(crate) fn is_outside_hull(&self) -> bool {
        self.outside_hull_ratio.is_finite() && self.outside_hull_ratio >= quantity::SHOWN_RATIO_MIN
    }

    /// The same in a sentence, where it is half a per cent or more. Where nothing was computed there is no share.
    pub fn outside_words(&self) -> Option<String> {
        let share = Some(self.outside_hull_ratio).filter(|share| *share >= OUTSIDE_TOLD)?;
        let (percent, dimensions) = (share * 100.0, self.outside_hull.join(", "));
        Some(format!("{percent:.0} % of the time comes from shapes outside the measured hull ({dimensions})"))
    }

    /// Of a run whose durations the scenario states: nothing is asked of a profile, so nothing lies outside of what one measured.
    #[must_use]
    pub fn given(self) -> Self {
        let source = "given by the scenario".to_owned();
        Self { source, shares: Vec::new(), outside_hull_ratio: f64::NAN, outside_hull: Vec::new(), ..self }
    }

    /// Whether all costs are known to come from the weakest source: nothing is better than a roofline's datasheet, and nothing is weaker
    /// than a measured profile's measurements.
    pub(crate) fn is_one_source(&self) -> bool {
        self.profile.starts_with("roofline") || !["published", "datasheet"].contains(&self.source.as_str())
    }
}

/// A part of the time and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostShare {
    /// What is done.
    pub what: String,
    /// `measured`, `borrowed within generation`, `borrowed`, `published` or `datasheet`.
    pub source: String,
    /// Share of all time.
    pub ratio: f64,
}

/// What a planner knows of its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerFacts {
    /// Policy's own objective.
    #[serde(skip_serializing_if = "is_no_figure", default)]
    pub objective: Option<f64>,
    /// What it counts, and so which way is better.
    #[serde(skip_serializing_if = "aim::is_seconds", default)]
    pub aim: Aim,
    /// No plan is better: a lower bound on seconds, an upper bound on rates.
    #[serde(skip_serializing_if = "is_no_figure", default)]
    pub bound: Option<f64>,
    /// |objective − bound| / objective.
    #[serde(skip_serializing_if = "is_no_figure", default)]
    pub gap_ratio: Option<f64>,
    /// How good the plan is known to be.
    pub status: Status,
    /// What it chose, in words.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// What it chose, as figures with units in the keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_figures", default)]
    pub figures: BTreeMap<String, f64>,
}

impl PlannerFacts {
    /// A figure by its name in `result.json`.
    fn figure(&self, name: &str) -> Option<f64> {
        match name {
            "objective" => self.objective,
            "bound" => self.bound,
            "gap_ratio" => self.gap_ratio,
            _ => self.figures.get(name).copied(),
        }
    }

    /// Names of its figures.
    fn names(&self) -> impl Iterator<Item = &str> {
        let always = ["objective", "bound", "gap_ratio"].into_iter().filter(|name| self.figure(name).is_some());
        always.chain(self.figures.keys().map(String::as_str))
    }
}

/// Wall times of this very run; the only figures that differ between machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Planning.
    #[serde(default, skip_serializing_if = "is_not_finite")]
    pub planner_wall_s: f64,
    /// Lowering and simulating.
    #[serde(default, skip_serializing_if = "is_not_finite")]
    pub simulate_wall_s: f64,
}

/// One policy's row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyResult {
    /// Policy name.
    pub policy: String,
    /// How it ended.
    pub status: Ended,
    /// Reason where the status is not `ok`, else what dominates the step, in words.
    pub why: String,
    /// Contract metrics, units in the keys; `ttft_s.mean` is the part `mean` of the object `ttft_s` in JSON.
    #[serde(serialize_with = "nested::figures", deserialize_with = "nested::flat")]
    pub metrics: BTreeMap<String, f64>,
    /// `[low, high]` for metrics that carry an interval, with the same keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_intervals")]
    pub interval: BTreeMap<String, [f64; 2]>,
    /// What other draws of the requests give, where several were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draws: Option<draws::Draws>,
    /// What was chosen, as fields: `tp`, `pp`, `dp`, `schedule`, …; absent where nothing was to choose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<String, serde_json::Value>,
    /// Planner facts, absent where no plan was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub planner: Option<PlannerFacts>,
    /// Wall times.
    pub measured: Measured,
}

/// A metric that the table shows; its unit is the end of its key (`_s`, `_ratio`, `_bytes`, `_per_s`, `_usd…`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Key of `PolicyResult::metrics`.
    pub key: String,
    /// Heading, with the unit where the figure has none.
    pub heading: String,
}

/// Everything a run found (`result.json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// `SCHEMA`.
    pub schema: String,
    /// Kind of the scenario, which chooses the view.
    pub kind: String,
    /// Scenario name.
    pub scenario: String,
    /// Seed.
    pub seed: u64,
    /// Version of the program.
    pub version: String,
    /// The scenario's text and what was laid over it: enough to run it again.
    #[serde(default)]
    pub origin: Origin,
    /// Cost model.
    pub cost_model: CostModelFacts,
    /// One row per policy, in scenario order.
    pub results: Vec<PolicyResult>,
    /// What the table shows, at most six metrics, the one that counts first; empty for steps of training and for requests served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Column>,
    /// Policy that speed-ups are relative to.
    pub baseline: String,
    /// The same in words where each row has a baseline of its own: `padded at the same batch size`; empty where all have one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relative_to: String,
    /// Baseline's iteration time over the policy's, or in serving the policy's goodput over the baseline's; above 1 is better.
    #[serde(serialize_with = "finite_figures")]
    pub speedup_ratio: BTreeMap<String, f64>,
    /// What differs from run to run.
    #[serde(default)]
    pub measured: RunMeasured,
}

impl RunResult {
    /// What speed-ups are relative to, in words.
    pub fn against(&self) -> &str {
        if self.relative_to.is_empty() { &self.baseline } else { &self.relative_to }
    }

    /// Whether there is one policy alone, which is neither the best nor the worst.
    pub const fn is_of_one(&self) -> bool {
        self.results.len() == 1
    }
}

/// What differs from run to run beside the wall times of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunMeasured {
    /// When it was run, in UTC; empty where nobody looked at a clock.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub date: String,
}

/// What the pictures need beyond the numbers: a simulated step of one policy.
pub struct Picture<'a> {
    /// Policy name.
    pub policy: &'a str,
    /// Number of the step, where more than one is drawn.
    pub step: Option<usize>,
    /// Tasks.
    pub graph: &'a engine::TaskGraph,
    /// When they ran.
    pub timeline: &'a engine::Timeline,
    /// Lengths of the step's sequences, tokens.
    pub lengths: &'a [u64],
    /// Memory of a device; 0 where it is not known.
    pub device_memory_bytes: u64,
}

fn is_not_finite(value: &f64) -> bool {
    !value.is_finite()
}

fn is_no_figure(value: &Option<f64>) -> bool {
    !value.is_some_and(f64::is_finite)
}

fn finite_figures<S: Serializer>(figures: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(figures.iter().filter(|(_, value)| value.is_finite()))
}

fn finite_intervals<S: Serializer>(map: &BTreeMap<String, [f64; 2]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().filter(|(_, bounds)| bounds.iter().all(|bound| bound.is_finite())))
}
