//! Gates of `compare`: `metric<=1.02` holds a ratio to the baseline, `ttft_s.p99<=2s` an amount, `policy:metric<=0.9` asks it of one policy.

mod bound;

use bound::{Bound, WrongBound};
use thiserror::Error;

use crate::comparison::{Comparison, Entry, Spread};
use crate::junit::Case;

/// The nearest of some names, where one is near enough to be meant.
pub type Nearest = for<'n> fn(&str, Vec<&'n str>) -> Option<&'n str>;

/// What was perhaps meant, behind a message; empty where no name is near.
pub(crate) fn hint(nearest: Nearest, found: &str, names: Vec<&str>) -> String {
    nearest(found, names).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

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
    bound: Bound,
}

/// Why a gate cannot be read, or cannot be held against a comparison.
#[derive(Clone, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WrongGate {
    /// Nothing is written.
    #[error("a gate is empty; write `metric<=1.02`, `metric>=0.98` or `policy:metric<=1.02`")]
    Empty,
    /// It is not written like a gate.
    #[error("gate `{gate}`: {why}; write `metric<=1.02`, `metric<=2s` or `policy:metric>=0.98x`")]
    Form { gate: String, why: &'static str },
    /// Its bound cannot be read.
    #[error("gate `{gate}`: {why}; write `metric<=1.02`, `metric<=2s` or `policy:metric>=0.98x`")]
    Bound { gate: String, why: WrongBound },
    /// Its bound does not fit the metric.
    #[error("gate `{gate}`: {why}")]
    Unfit { gate: String, why: WrongBound },
    /// No row is of the policy.
    #[error("gate `{gate}`: no policy `{policy}` besides the baseline{hint}")]
    NoPolicy { gate: String, policy: String, hint: String },
    /// The policy is what others are held against.
    #[error(
        "gate `{gate}`: `{policy}` is the baseline, so its ratio is always 1; ask for an amount, for example `<=2s`"
    )]
    Baseline { gate: String, policy: String },
    /// The comparison has one row.
    #[error("gate `{gate}`: there is nothing besides the baseline")]
    Nothing { gate: String },
    /// No validation has the figure.
    #[error("gate `{gate}`: no figure `{figure}`; allowed are {figures}")]
    NoFigure { gate: String, figure: String, figures: String },
    /// This validation does not have it.
    #[error("gate `{gate}`: this run says nothing of `{figure}`, which needs {needs}; it has {figures}")]
    NotOfRun { gate: String, figure: String, needs: &'static str, figures: String },
    /// No row has the metric.
    #[error("gate `{gate}`: no metric `{metric}`{hint}")]
    NoMetric { gate: String, metric: String, hint: String },
}

/// Figures of validations, and what each needs.
const FIGURES: [(&str, &str); 6] = [
    ("step_error", "a training step or an epoch"),
    ("operator_error", "plans that run here"),
    ("tau", "several policies that run here"),
    ("regret", "several policies that run here"),
    ("ttft_error", "`--measured` of an engine that serves"),
    ("tpot_error", "`--measured` of an engine that serves"),
];

/// Gates of a validation that has some of its figures.
///
/// # Errors
/// The first gate that is none, or that this validation has no figure for.
pub fn of_figures(texts: &[String], of_run: &[&str]) -> Result<Vec<Gate>, WrongGate> {
    texts.iter().map(|text| of_figure(text, of_run)).collect()
}

fn of_figure(text: &str, of_run: &[&str]) -> Result<Gate, WrongGate> {
    let gate = Gate::parse(text)?;
    let figure = gate.metric.clone();
    let Some((_, needs)) = FIGURES.iter().find(|(known, _)| *known == figure) else {
        let figures = FIGURES.map(|(known, _)| known).join(", ");
        return Err(WrongGate::NoFigure { gate: text.to_owned(), figure, figures });
    };
    if of_run.contains(&figure.as_str()) {
        Ok(gate)
    } else {
        Err(WrongGate::NotOfRun { gate: text.to_owned(), figure, needs, figures: of_run.join(", ") })
    }
}

/// Gates that figures miss, a line each; nothing where all hold. One that is no number holds no gate.
pub fn missed(gates: &[Gate], found: &dyn Fn(&Gate) -> f64) -> Option<String> {
    let words = |gate: &Gate| match found(gate) {
        value if value.is_finite() => format!("{}: found {value:.3}", gate.text()),
        _ => format!("{}: nothing was measured that says it", gate.text()),
    };
    let missed: Vec<String> = gates.iter().filter(|gate| !gate.holds(found(gate))).map(words).collect();
    (!missed.is_empty()).then(|| missed.join("\n  "))
}

impl Gate {
    /// Reads a gate.
    ///
    /// # Errors
    /// What is wrong with it and what is allowed.
    pub fn parse(text: &str) -> Result<Self, WrongGate> {
        let wrong = |why| WrongGate::Form { gate: text.to_owned(), why };
        if text.trim().is_empty() {
            return Err(WrongGate::Empty);
        }
        let (left, relation, right) = match (text.split_once("<="), text.split_once(">=")) {
            (Some((left, right)), _) => (left, Relation::AtMost, right),
            (_, Some((left, right))) => (left, Relation::AtLeast, right),
            _ => return Err(wrong("no `<=` or `>=`")),
        };
        let bound = Bound::parse(right).map_err(|why| WrongGate::Bound { gate: text.to_owned(), why })?;
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
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// The gate as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a figure keeps the bound.
    pub fn holds(&self, value: f64) -> bool {
        match self.relation {
            Relation::AtMost => value <= self.bound.number(),
            Relation::AtLeast => value >= self.bound.number(),
        }
    }

    /// Holds every policy that the gate is about against it. With a confidence the far end of the interval must hold as well.
    ///
    /// # Errors
    /// When the comparison has no such policy or metric, or the bound may mean two things.
    pub fn cases(
        &self,
        comparison: &Comparison,
        confidence: Option<f64>,
        nearest: Nearest,
    ) -> Result<Vec<Case>, WrongGate> {
        let gate = || self.text.clone();
        let is_amount = self.bound.is_amount(&self.metric).map_err(|why| WrongGate::Unfit { gate: gate(), why })?;
        // An amount is asked of the baseline as well; a ratio to itself says nothing.
        let about = |entry: &&Entry| {
            (is_amount || !entry.is_baseline) && self.policy.as_ref().is_none_or(|policy| is_of(entry, policy))
        };
        let entries: Vec<&Entry> = comparison.entries.iter().filter(about).collect();
        let hint = |found: &str, names| hint(nearest, found, names);
        if let (Some(policy), true) = (&self.policy, entries.is_empty()) {
            if comparison.entries.iter().any(|entry| is_of(entry, policy)) {
                return Err(WrongGate::Baseline { gate: gate(), policy: policy.clone() });
            }
            let names = comparison.entries.iter().map(|entry| entry.policy.as_str()).collect();
            return Err(WrongGate::NoPolicy { gate: gate(), policy: policy.clone(), hint: hint(policy, names) });
        }
        if entries.is_empty() {
            return Err(WrongGate::Nothing { gate: gate() });
        }
        let known: Vec<&str> = entries.iter().flat_map(|entry| entry.metrics.keys().map(String::as_str)).collect();
        if !known.is_empty() && !known.contains(&self.metric.as_str()) {
            let near = hint(&self.metric, known);
            let near = if near.is_empty() { "; metrics are those of result.json".to_owned() } else { near };
            return Err(WrongGate::NoMetric { gate: gate(), metric: self.metric.clone(), hint: near });
        }
        Ok(entries.into_iter().map(|entry| self.case(entry, is_amount, confidence)).collect())
    }

    fn case(&self, entry: &Entry, is_amount: bool, confidence: Option<f64>) -> Case {
        let of = if is_amount { &entry.metrics } else { &entry.ratio };
        let failure = match (&entry.failure, of.get(&self.metric)) {
            (Some(why), _) => Some(why.clone()),
            (None, None) if is_amount => Some(format!("no `{}`", self.metric)),
            (None, None) => Some(format!("no ratio of `{}` to the baseline", self.metric)),
            (None, Some(spread)) => self.failure(spread, entry.n_ok, is_amount, confidence),
        };
        Case { suite: entry.scenario.clone(), name: format!("{}: {}", entry.policy, self.text), failure }
    }

    /// Why a figure breaks the bound; nothing where it holds.
    fn failure(&self, spread: &Spread, n: usize, is_amount: bool, confidence: Option<f64>) -> Option<String> {
        let shown = |value: f64| match is_amount {
            true => crate::shown::figure(&self.metric, value, None),
            false => format!("{value:.4} of the baseline's"),
        };
        if !self.holds(spread.mean) {
            return Some(format!("`{}` is {}", self.metric, shown(spread.mean)));
        }
        let confidence = confidence?;
        let Some([low, high]) = spread.at(confidence, n) else {
            return Some("one batch has no interval; `--seeds 2` or more gives one".to_owned());
        };
        let end = if self.relation == Relation::AtMost { high } else { low };
        (!self.holds(end)).then(|| {
            let percent = crate::quantity::percent(confidence);
            format!("`{}` is {}, but its {percent} interval reaches {}", self.metric, shown(spread.mean), shown(end))
        })
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
    fn a_gate_about_what_a_validation_does_not_measure_is_refused() {
        let why = |gate: &str, of_run: &[&str]| {
            of_figures(&[gate.to_owned()], of_run).map_or_else(|why| why.to_string(), |_| String::new())
        };
        assert_eq!(why("step_error<=0.1", &["step_error", "operator_error"]), "");
        assert!(why("ttft_error<=0.1", &["step_error"]).contains("needs `--measured` of an engine that serves"));
        assert!(why("tau>=0.8", &["step_error"]).contains("several policies that run here; it has step_error"));
        assert!(why("speed<=1", &["step_error"]).contains("no figure `speed`"));
    }

    #[test]
    fn gates_are_read_or_explained() {
        let gate = Gate::parse("skrull:iteration_time_s<=0.9").expect("a gate");
        assert_eq!(
            (gate.policy.as_deref(), gate.metric.as_str(), gate.bound),
            (Some("skrull"), "iteration_time_s", Bound::Bare(0.9))
        );
        assert_eq!(Gate::parse("mfu_ratio >= 1").expect("a gate").relation, Relation::AtLeast);
        for bad in ["", "step", "step<=", "<=1", "step<=NaN", "step=1"] {
            assert!(Gate::parse(bad).is_err(), "{bad}");
        }
    }
}
