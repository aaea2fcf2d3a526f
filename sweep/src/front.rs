//! What the rows of a sweep say: the points that no other one beats in every objective, and which axis matters most.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::given::{Objective, Sweep};
use crate::row::Row;

/// Parts of an axis with more values than that, of equally many points.
const PARTS: usize = 8;
/// Candidates of a part at least: a mean of one explains itself.
const OF_PART_MIN: usize = 4;

/// A policy under values of the axes, over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Values, written as overrides.
    pub point: BTreeMap<String, Value>,
    /// Policy.
    pub policy: String,
    /// Means of the objectives.
    pub figures: Vec<f64>,
}

/// Candidates of rows that have every objective, in order of the sweep.
pub fn candidates(rows: &[Row], objectives: &[Objective]) -> Vec<Candidate> {
    let mut sums: BTreeMap<String, usize> = BTreeMap::new();
    let mut found: Vec<(Candidate, f64)> = Vec::new();
    for row in rows.iter().filter(|row| row.status == "ok") {
        let figure = |objective: &Objective| row.metrics.get(&objective.metric).and_then(Value::as_f64);
        let Some(figures) = objectives.iter().map(figure).collect::<Option<Vec<f64>>>() else { continue };
        let name = format!("{} {}", row.policy, Value::Object(row.point.clone()));
        let index = *sums.entry(name).or_insert_with(|| {
            let point = row.point.clone().into_iter().collect();
            found.push((Candidate { point, policy: row.policy.clone(), figures: vec![0.0; figures.len()] }, 0.0));
            found.len() - 1
        });
        let (candidate, n) = &mut found[index];
        *n += 1.0;
        for (mean, figure) in candidate.figures.iter_mut().zip(figures) {
            *mean += (figure - *mean) / *n;
        }
    }
    found.into_iter().map(|(candidate, _)| candidate).collect()
}

/// Whether a candidate is at least as good in all objectives and better in one.
fn beats(one: &Candidate, other: &Candidate, objectives: &[Objective]) -> bool {
    let pairs = || one.figures.iter().zip(&other.figures).zip(objectives);
    let is_better = |((one, other), objective): ((&f64, &f64), &Objective)| {
        if objective.is_most { one > other } else { one < other }
    };
    pairs().any(is_better) && !pairs().any(|((one, other), objective)| is_better(((other, one), objective)))
}

/// Positions of the candidates that no other one beats, by the first objective.
pub fn front(all: &[Candidate], objectives: &[Objective]) -> Vec<usize> {
    if objectives.is_empty() {
        return Vec::new();
    }
    let least = |index: &usize| {
        let figures = all[*index].figures.iter().zip(objectives);
        figures.map(|(figure, objective)| if objective.is_most { -figure } else { *figure }).collect::<Vec<f64>>()
    };
    let mut order: Vec<usize> = (0..all.len()).collect();
    order
        .sort_by(|one, other| least(one).partial_cmp(&least(other)).expect("figures are numbers").then(one.cmp(other)));
    // Whoever beats a candidate comes before it, and so does one of the front that beats it too.
    let mut front: Vec<usize> = Vec::new();
    for index in order {
        if !front.iter().any(|other| beats(&all[*other], &all[index], objectives)) {
            front.push(index);
        }
    }
    front
}

/// How much of the spread of an objective an axis explains.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Key of the axis.
    pub key: String,
    /// Objective.
    pub metric: String,
    /// Variance between values of the axis over all variance: first-order index of Sobol' (1993).
    pub ratio: f64,
    /// Value with the best mean.
    pub best: Value,
    /// That mean.
    pub mean: f64,
}

/// Effects of every key on every objective, the largest first.
pub fn effects(all: &[Candidate], objectives: &[Objective]) -> Vec<Effect> {
    let keys: std::collections::BTreeSet<&String> = all.iter().flat_map(|candidate| candidate.point.keys()).collect();
    let mut found = Vec::new();
    for (index, objective) in objectives.iter().enumerate() {
        for key in &keys {
            found.extend(effect(all, key, index, objective));
        }
    }
    found.sort_by(|one, other| other.ratio.total_cmp(&one.ratio).then_with(|| one.key.cmp(&other.key)));
    found
}

fn effect(all: &[Candidate], key: &str, index: usize, objective: &Objective) -> Option<Effect> {
    let figure = |candidate: &Candidate| candidate.figures[index];
    let mean = |of: &[&Candidate]| of.iter().map(|candidate| figure(candidate)).sum::<f64>() / of.len() as f64;
    let every: Vec<&Candidate> = all.iter().collect();
    let middle = mean(&every);
    let spread: f64 = every.iter().map(|candidate| (figure(candidate) - middle) * (figure(candidate) - middle)).sum();
    let (groups, is_drawn) = groups(all, key);
    if groups.len() < 2 || spread <= 0.0 {
        return None;
    }
    let means: Vec<f64> = groups.iter().map(|(_, group)| mean(group)).collect();
    let between =
        |((_, group), mean): (&(Value, Vec<&Candidate>), &f64)| group.len() as f64 * (mean - middle) * (mean - middle);
    let ratio = groups.iter().zip(&means).map(between).sum::<f64>() / spread;
    // Means of few that were drawn differ by chance too, by as much as what they leave over is worth.
    let left = (all.len() - 1) as f64 / (all.len() - groups.len()).max(1) as f64;
    let ratio = if is_drawn { (1.0 - (1.0 - ratio) * left).max(0.0) } else { ratio };
    let worth = |mean: &f64| if objective.is_most { -mean } else { *mean };
    let best = (0..means.len()).min_by(|one, other| worth(&means[*one]).total_cmp(&worth(&means[*other])))?;
    Some(Effect {
        key: key.to_owned(),
        metric: objective.metric.clone(),
        ratio,
        best: groups[best].0.clone(),
        mean: means[best],
    })
}

/// Candidates by the value of a key. Where there are many values or most come once, parts of equally many stand for them, each named by its
/// first value, and it says so.
fn groups<'a>(all: &'a [Candidate], key: &str) -> (Vec<(Value, Vec<&'a Candidate>)>, bool) {
    let mut by_value: Vec<(Value, Vec<&Candidate>)> = Vec::new();
    let mut sorted: Vec<(&Value, &Candidate)> =
        all.iter().filter_map(|candidate| Some((candidate.point.get(key)?, candidate))).collect();
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    sorted.sort_by(|one, other| {
        number(one.0).total_cmp(&number(other.0)).then_with(|| one.0.to_string().cmp(&other.0.to_string()))
    });
    for (value, candidate) in &sorted {
        match by_value.last_mut().filter(|(last, _)| last == *value) {
            Some((_, group)) => group.push(candidate),
            None => by_value.push(((*value).clone(), vec![candidate])),
        }
    }
    let is_alone = all.iter().all(|candidate| candidate.point.len() == 1);
    if by_value.len() <= 2 * PARTS && (is_alone || sorted.len() >= 2 * by_value.len()) {
        return (by_value, false);
    }
    let n_parts = (sorted.len() / OF_PART_MIN).min(PARTS);
    if n_parts < 2 {
        return (Vec::new(), true);
    }
    let size = sorted.len().div_ceil(n_parts);
    let part = |part: &[(&Value, &'a Candidate)]| (part[0].0.clone(), part.iter().map(|(_, one)| *one).collect());
    (sorted.chunks(size).map(part).collect(), true)
}

/// An objective that no row has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no row has the metric `{metric}` of `[front]`{}", input::diagnostic::meant(metric, known.iter().map(String::as_str)))]
pub struct UnknownObjective {
    metric: String,
    known: BTreeSet<String>,
}

impl UnknownObjective {
    /// The first of a sweep; where no row has figures, nobody can say.
    pub fn of(sweep: &Sweep, rows: &[Row]) -> Option<Self> {
        let known: BTreeSet<String> = rows.iter().flat_map(|row| row.metrics.keys().cloned()).collect();
        let is_unknown = |objective: &&Objective| !known.is_empty() && !known.contains(&objective.metric);
        let metric = sweep.objectives.iter().find(is_unknown)?.metric.clone();
        Some(Self { metric, known })
    }

    /// Whether it is the beginning of a metric, as without a unit. Any other may be a metric that other points have.
    pub fn is_cut(&self) -> bool {
        self.known.iter().any(|name| name.starts_with(&self.metric))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(x: u32, y: u32, figures: [f64; 2]) -> Candidate {
        let point = BTreeMap::from([("a.x".to_owned(), Value::from(x)), ("a.y".to_owned(), Value::from(y))]);
        Candidate { point, policy: "p".to_owned(), figures: figures.to_vec() }
    }

    fn objectives() -> Vec<Objective> {
        [("cost", false), ("rate", true)].map(|(name, is_most)| Objective { metric: name.to_owned(), is_most }).to_vec()
    }

    #[test]
    fn the_front_is_what_brute_force_finds() {
        let mut stream = engine::random::stream(7, "front");
        let mut figure = || stream.below(12) as f64;
        let all: Vec<Candidate> = (0..200).map(|index| candidate(index, 0, [figure(), figure()])).collect();
        let objectives = objectives();
        let is_beaten = |one: &Candidate| {
            all.iter().any(|other| {
                other.figures[0] <= one.figures[0] && other.figures[1] >= one.figures[1] && other.figures != one.figures
            })
        };
        let mut found = front(&all, &objectives);
        found.sort_unstable();
        assert_eq!(found, (0..all.len()).filter(|index| !is_beaten(&all[*index])).collect::<Vec<_>>());
    }

    #[test]
    fn an_axis_that_decides_alone_explains_everything() {
        let all: Vec<Candidate> =
            (0..4).flat_map(|x| (0..4).map(move |y| candidate(x, y, [f64::from(x), 1.0]))).collect();
        let effects = effects(&all, &objectives());
        assert_eq!(effects.len(), 2, "the rate does not change, so nothing explains it");
        assert_eq!((effects[0].key.as_str(), effects[0].ratio, &effects[0].best), ("a.x", 1.0, &Value::from(0)));
        assert_eq!((effects[1].key.as_str(), effects[1].ratio), ("a.y", 0.0));
        let alone = |x: u32| Candidate {
            point: BTreeMap::from([("a.x".to_owned(), Value::from(x))]),
            ..candidate(x, 0, [f64::from(x), 1.0])
        };
        assert_eq!(super::effects(&[alone(0), alone(1)], &objectives())[0].ratio, 1.0);
    }

    #[test]
    fn values_that_were_drawn_once_do_not_explain_themselves() {
        let mut stream = engine::random::stream(3, "effects");
        for n in [16_u32, 32, 128] {
            let drawn = |x| candidate(x, u32::try_from(stream.below(1 << 20)).expect("small"), [f64::from(x), 1.0]);
            let all: Vec<Candidate> = (0..n).map(drawn).collect();
            let found = effects(&all, &objectives());
            let ratio = |key: &str| found.iter().find(|effect| effect.key == key).expect("it varies").ratio;
            assert!(ratio("a.x") > 0.8 && ratio("a.y") < 0.5, "{n}: {found:?}");
        }
        let few: Vec<Candidate> = (0..6).map(|x| candidate(x, x, [f64::from(x), 1.0])).collect();
        assert!(effects(&few, &objectives()).is_empty(), "too few to say");
    }
}
