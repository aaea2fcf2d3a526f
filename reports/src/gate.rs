//! Gates of `compare`: `metric<=1.02` asks that a policy's ratio to the baseline holds, `policy:metric<=0.9` asks it of one.

use crate::comparison::{Comparison, Entry};
use crate::junit::Case;

/// The nearest of some names, where one is near enough to be meant.
pub type Nearest = for<'n> fn(&str, Vec<&'n str>) -> Option<&'n str>;

/// How a ratio is held against a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    AtMost,
    AtLeast,
}

/// One gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    text: String,
    policy: Option<String>,
    metric: String,
    relation: Relation,
    bound: f64,
}

impl Gate {
    /// Reads a gate.
    ///
    /// # Errors
    /// What is wrong with it and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("gate `{text}`: {why}; write `metric<=1.02`, `metric>=0.98` or `policy:metric<=1.02`");
        if text.trim().is_empty() {
            return Err("a gate is empty; write `metric<=1.02`, `metric>=0.98` or `policy:metric<=1.02`".to_owned());
        }
        let (left, relation, right) = match (text.split_once("<="), text.split_once(">=")) {
            (Some((left, right)), _) => (left, Relation::AtMost, right),
            (_, Some((left, right))) => (left, Relation::AtLeast, right),
            _ => return Err(wrong("no `<=` or `>=`")),
        };
        let bound: f64 = right.trim().parse().map_err(|_| wrong("the bound is not a number"))?;
        if !bound.is_finite() {
            return Err(wrong("the bound is not a number"));
        }
        let (policy, metric) = match left.trim().split_once(':') {
            Some((policy, metric)) => (Some(policy.to_owned()), metric.to_owned()),
            None => (None, left.trim().to_owned()),
        };
        if metric.is_empty() {
            return Err(wrong("no metric"));
        }
        Ok(Self { text: text.to_owned(), policy, metric, relation, bound })
    }

    /// What it is about.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// The gate as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a figure keeps the bound.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        match self.relation {
            Relation::AtMost => value <= self.bound,
            Relation::AtLeast => value >= self.bound,
        }
    }

    /// Holds every policy that the gate is about against it.
    ///
    /// # Errors
    /// When the comparison has no such policy or metric.
    pub fn cases(&self, comparison: &Comparison, nearest: Nearest) -> Result<Vec<Case>, String> {
        let about =
            |entry: &&Entry| !entry.is_baseline && self.policy.as_ref().is_none_or(|policy| is_of(entry, policy));
        let entries: Vec<&Entry> = comparison.entries.iter().filter(about).collect();
        let hint = |found: &str, names: Vec<&str>| {
            nearest(found, names).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
        };
        if let (Some(policy), true) = (&self.policy, entries.is_empty()) {
            let names = comparison.entries.iter().map(|entry| entry.policy.as_str()).collect();
            return Err(format!(
                "gate `{}`: no policy `{policy}` besides the baseline{}",
                self.text,
                hint(policy, names)
            ));
        }
        if entries.is_empty() {
            return Err(format!("gate `{}`: there is nothing besides the baseline", self.text));
        }
        let known: Vec<&str> = entries.iter().flat_map(|entry| entry.metrics.keys().map(String::as_str)).collect();
        if !known.is_empty() && !known.contains(&self.metric.as_str()) {
            let near = hint(&self.metric, known);
            let near = if near.is_empty() { "; metrics are those of result.json".to_owned() } else { near };
            return Err(format!("gate `{}`: no metric `{}`{near}", self.text, self.metric));
        }
        Ok(entries.into_iter().map(|entry| self.case(entry)).collect())
    }

    fn case(&self, entry: &Entry) -> Case {
        let failure = match (&entry.failure, entry.ratio.get(&self.metric)) {
            (Some(why), _) => Some(why.clone()),
            (None, None) => Some(format!("no ratio of `{}` to the baseline", self.metric)),
            (None, Some(ratio)) => {
                let holds = match self.relation {
                    Relation::AtMost => ratio.mean <= self.bound,
                    Relation::AtLeast => ratio.mean >= self.bound,
                };
                (!holds).then(|| format!("`{}` is {:.4} of the baseline's", self.metric, ratio.mean))
            }
        };
        Case { suite: entry.scenario.clone(), name: format!("{}: {}", entry.policy, self.text), failure }
    }
}

/// Whether a row is of a policy; where files are compared, the file stands behind it in brackets.
fn is_of(entry: &Entry, policy: &str) -> bool {
    entry.policy.strip_prefix(policy).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_or_explained() {
        let gate = Gate::parse("skrull:iteration_time_s<=0.9").expect("a gate");
        assert_eq!(
            (gate.policy.as_deref(), gate.metric.as_str(), gate.bound),
            (Some("skrull"), "iteration_time_s", 0.9)
        );
        assert_eq!(Gate::parse("mfu_ratio >= 1").expect("a gate").relation, Relation::AtLeast);
        for bad in ["", "step", "step<=", "<=1", "step<=NaN", "step=1"] {
            assert!(Gate::parse(bad).is_err(), "{bad}");
        }
    }
}
