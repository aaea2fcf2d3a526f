//! What the objective of a planner counts, and the sentence that says how good a plan is known to be.

use engine::verdict::Aim;

use crate::PlannerFacts;
use crate::quantity::{duration, gib, percent, significant};

/// Whether it is the aim that a file leaves out.
pub(crate) fn is_seconds(aim: &Aim) -> bool {
    *aim == Aim::Seconds
}

/// A figure with its unit.
pub(crate) fn figure(aim: Aim, value: f64) -> String {
    match aim {
        Aim::Seconds => duration(value, None),
        Aim::RequestsPerS => format!("{} requests/s", significant(value)),
        Aim::TokensPerS => format!("{} tokens/s", significant(value)),
        Aim::TokensPerUsd => format!("{} tokens per $", significant(value)),
        Aim::TokensPerSPerGpu => format!("{} tokens/s/GPU", significant(value)),
        Aim::Bytes => gib(value),
        Aim::Facts => format!("{value:.0} facts"),
        Aim::Usd => format!("$ {}", significant(value)),
        Aim::UsdPerHour => format!("{} $/h", significant(value)),
        Aim::UsdPerMtok => format!("$ {} per million output tokens", significant(value)),
        Aim::Gpus if value == 1.0 => "1 GPU".to_owned(),
        Aim::Gpus if value.fract() == 0.0 => format!("{value:.0} GPUs"),
        Aim::Gpus => format!("{} GPUs", significant(value)),
        Aim::AttainmentRatio => percent(value),
        Aim::Transactions => format!("{} transactions", significant(value)),
        Aim::WattHours => format!("{} Wh", significant(value)),
        Aim::JoulesPerToken => format!("{} J per output token", significant(value)),
    }
}

/// Both ends of an interval, with the unit once where they share it: `$ 1.114 to $ 1.127 per million output tokens`.
pub(crate) fn ends(aim: Aim, ends: [f64; 2]) -> String {
    let [low, high] = ends.map(|end| figure(aim, end));
    let unit_at = |text: &str| {
        let sign = if text.starts_with("$ ") { 2 } else { 0 };
        text[sign..].find(' ').map_or(text.len(), |at| sign + at)
    };
    let (in_low, in_high) = (unit_at(&low), unit_at(&high));
    let low = if low[in_low..] == high[in_high..] { &low[..in_low] } else { &low };
    format!("{low} to {high}")
}

/// On which side of the bound every plan lies that the planner may choose.
const fn limit(aim: Aim) -> &'static str {
    if aim.is_least() { "no plan it may choose is below" } else { "no plan it may choose is above" }
}

impl PlannerFacts {
    /// `heuristic plan in 18.2 µs; its own objective 0.131 s, no plan it may choose is below 0.120 s (gap 8.4 %)`; without the time where it
    /// is 0.
    pub fn words(&self, planner_wall_s: f64) -> String {
        let mut words = format!("{} plan", self.status.name());
        if planner_wall_s > 0.0 {
            words = format!("{words} in {}", duration(planner_wall_s, None));
        }
        if let Some(objective) = self.objective {
            words = format!("{words}; its own objective {}", figure(self.aim, objective));
            if let Some(bound) = self.bound {
                let gap = self.gap_ratio.map_or_else(String::new, |gap| format!(" (gap {})", percent(gap)));
                words = format!("{words}, {} {}{gap}", limit(self.aim), figure(self.aim, bound));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_an_interval_say_their_unit_once() {
        assert_eq!(ends(Aim::UsdPerMtok, [1.114, 1.127]), "$ 1.114 to $ 1.127 per million output tokens");
        assert_eq!(ends(Aim::Seconds, [0.5, 1.5]), "500.0 ms to 1.500 s");
        assert_eq!(ends(Aim::AttainmentRatio, [0.5, 0.75]), "50.0 to 75.0 %");
    }

    #[test]
    fn a_plan_says_what_it_knows() {
        let facts = PlannerFacts {
            objective: Some(2.0),
            bound: Some(1.5),
            gap_ratio: Some(0.25),
            status: engine::verdict::Status::Feasible,
            ..PlannerFacts::default()
        };
        let expected =
            "feasible plan in 2.000 ms; its own objective 2.000 s, no plan it may choose is below 1.500 s (gap 25.0 %)";
        assert_eq!(facts.words(0.002), expected);
        let rate = PlannerFacts { aim: Aim::RequestsPerS, bound: Some(2.5), ..facts };
        let expected = "feasible plan; its own objective 2.000 requests/s, no plan it may choose is above 2.500 requests/s (gap 25.0 %)";
        assert_eq!(rate.words(0.0), expected);
    }
}
