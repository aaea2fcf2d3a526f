//! A measured run played again: its requests with the scenario's engine, fleet and costs, calibrated or not.

use std::collections::BTreeMap;

use engine::cost::calibrated::Calibrated;
use engine::play::Case;
use hw::Seconds;
use reports::PolicyResult;
use scenario::serving::{CostLaw, Serving, ServingChoice, Stream};
use score::bench::Bench;

use super::{figures, policy};

/// Why a scenario is compared with no measured run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReplay {
    /// Several streams, or costs that are no operations.
    #[error("a measured run is played with one stream of requests and operations as costs")]
    OtherLoad,
    /// The baseline is chosen among several ways.
    #[error("`{0}` is chosen among several ways; name one in `policies.run`")]
    Chosen(String),
}

/// The choice that a measured run is compared with: the baseline.
///
/// # Errors
/// Why there is none.
pub fn choice(scenario: &Serving) -> Result<&ServingChoice, NoReplay> {
    if scenario.streams.len() > 1 || !matches!(scenario.law, CostLaw::Operations) {
        return Err(NoReplay::OtherLoad);
    }
    let baseline = &scenario.head.baseline;
    let found = scenario.plain().find(|choice| choice.name == *baseline);
    found.ok_or_else(|| NoReplay::Chosen(baseline.clone()))
}

/// The same scenario under a measured load, with every profile calibrated where something was found.
fn under(scenario: &Serving, bench: &Bench, found: Option<&Calibrated>) -> Serving {
    let mut scenario = scenario.clone();
    (scenario.requests, scenario.warm_up) = (bench.played(), Seconds::ZERO);
    scenario.streams = vec![Stream { users: bench.users(), ..Stream::default() }];
    let of_groups = scenario.groups.iter_mut().chain(&mut scenario.roles).map(|group| &mut group.profile);
    for profile in of_groups.chain([&mut scenario.profile]).flatten() {
        profile.calibrated = found.cloned().or_else(|| profile.calibrated.take());
    }
    scenario
}

/// Figures of a measured load with the costs as expected.
pub fn figures_of(
    scenario: &Serving,
    choice: &ServingChoice,
    bench: &Bench,
    found: &Calibrated,
) -> BTreeMap<String, f64> {
    figures(&under(scenario, bench, Some(found)), choice, Case::Expected).values
}

/// The row of a measured load, with intervals.
pub fn row_of(scenario: &Serving, choice: &ServingChoice, bench: &Bench, found: Option<&Calibrated>) -> PolicyResult {
    policy(&under(scenario, bench, found), choice).result
}
