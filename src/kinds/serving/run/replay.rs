//! A measured run played again: its requests with the scenario's engine, fleet and costs, calibrated or not.

use std::collections::BTreeMap;

use engine::cost::calibrated::Calibrated;
use engine::cost::profile::Profile;
use engine::play::Case;
use hw::Seconds;
use reports::PolicyResult;
use score::bench::Bench;

use super::{figures, policy};
use crate::kinds::serving::read::{CostLaw, Serving, ServingChoice, Stream};

impl Serving {
    /// The choice that a measured run is compared with: the baseline; why there is none.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn replays(&self) -> Result<&ServingChoice, String> {
        if self.streams.len() > 1 || !matches!(self.law, CostLaw::Operations) {
            return Err("a measured run is played with one stream of requests and operations as costs".to_owned());
        }
        let found = self.plain().find(|choice| choice.name == self.head.baseline);
        found
            .ok_or_else(|| format!("`{}` is chosen among several ways; name one in `policies.run`", self.head.baseline))
    }

    /// The same scenario under a measured load, with every profile calibrated where something was found.
    fn under(&self, bench: &Bench, found: Option<&Calibrated>) -> Self {
        let calibrated = |profile: &Profile| match found {
            Some(found) => Profile { calibrated: Some(found.clone()), ..profile.clone() },
            None => profile.clone(),
        };
        let mut scenario = self.clone();
        (scenario.requests, scenario.warm_up) = (bench.played(), Seconds::ZERO);
        scenario.streams = vec![Stream { users: bench.users(), ..Stream::default() }];
        scenario.profile = self.profile.as_ref().map(calibrated);
        for group in &mut scenario.groups {
            group.profile = group.profile.as_ref().map(calibrated);
        }
        scenario
    }

    /// Figures of a measured load with the costs as expected.
    #[must_use]
    pub fn replayed(&self, choice: &ServingChoice, bench: &Bench, found: &Calibrated) -> BTreeMap<String, f64> {
        figures(&self.under(bench, Some(found)), choice, Case::Expected).values
    }

    /// The row of a measured load, with intervals.
    #[must_use]
    pub fn replayed_row(&self, choice: &ServingChoice, bench: &Bench, found: Option<&Calibrated>) -> PolicyResult {
        policy(&self.under(bench, found), choice).result
    }
}
