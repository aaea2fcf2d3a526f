//! From a checked scenario of reinforcement learning to a result: plan the updates, serve the answers, and put the parts of a step together.

use std::time::Instant;

use engine::cost::Source;
use engine::cost::provenance::Grounds;
use engine::verdict::Refused;
use planner::rl::trained::{Figured, Trained};
use planner::train::chosen::{Decided, fields, layout_words};
use reports::{CostModelFacts, Measured, PolicyResult, RunResult, views};

use super::sides::Sides;
use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::rl::{Nodes, Rl, Way};

impl Kind for Rl {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.ways.iter().map(|way| way.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let sides = Sides::of(self).ahead();
        let rows = kinds::rows(&self.ways, |way| &way.name, done, |way| row(&sides, way), Row::without);
        of_rows(self, rows)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let way = self.ways.iter().find(|way| way.name == choice)?;
        Some(Planned::of_row(&row(&Sides::of(self), way).result))
    }

    fn strict_hull(&self) -> Option<bool> {
        Some(self.training.strict_hull)
    }
}

/// What came of a way.
struct Row<'s> {
    result: PolicyResult,
    source: Source,
    /// Whose first update is drawn; none where the way was not played.
    trained: Option<&'s Trained>,
}

impl Row<'_> {
    /// Of a way that was not played.
    const fn without(result: PolicyResult) -> Self {
        Self { result, source: Source::Measured, trained: None }
    }
}

fn of_rows(scenario: &Rl, rows: Vec<Row<'_>>) -> Run {
    let mut free_parameters = scenario.training.free_parameters.clone();
    free_parameters.extend(scenario.rules.orchestrator.said());
    let of_serving = scenario.serving.free_parameters.iter();
    free_parameters
        .extend(of_serving.filter(|sentence| !scenario.training.free_parameters.contains(sentence)).cloned());
    let mut grounds = Grounds::default();
    let (mut results, mut pictures) = (Vec::new(), Vec::new());
    for Row { result, source, trained } in rows {
        grounds.source = grounds.source.max(source);
        if let Some(Trained { metrics, first, .. }) = trained {
            grounds.join(&Grounds::of(source, metrics.provenance.clone()));
            pictures.push((result.policy.clone(), None, first.clone()));
        }
        results.push(result);
    }
    let profiles = [kinds::profile_name(scenario.training.profile.as_ref()).to_owned(), scenario.serving.profiles()];
    let cost_model = kinds::grounded(&profiles.join(" and "), &grounds, &free_parameters);
    // Shares are of training alone.
    let cost_model = CostModelFacts { shares: Vec::new(), ..cost_model };
    let result = RunResult {
        cost_model,
        columns: views::columns(&views::RL),
        speedup_ratio: reports::gains::of_least(&results, &scenario.head.baseline, views::RL[0].0),
        results,
        ..kinds::blank(&scenario.head)
    };
    let problem = &scenario.training.problem;
    Run {
        result,
        pictures,
        curves: Vec::new(),
        lengths: problem.workload.lengths[..problem.workload.batch_size].to_vec(),
        device_memory_bytes: problem.cluster.gpu.memory.0,
    }
}

fn row<'s>(sides: &'s Sides<'_>, way: &Way) -> Row<'s> {
    played(sides, way).unwrap_or_else(|why| Row::without(kinds::refused(&way.name, why)))
}

/// Plans and plays a way.
fn played<'s>(sides: &'s Sides<'_>, way: &Way) -> Result<Row<'s>, Refused> {
    let begun = Instant::now();
    let (n_nodes, split) = match way.places.train_nodes {
        Nodes::Own => (None, None),
        Nodes::Stated(n_nodes) => (Some(n_nodes), None),
        Nodes::Searched => sides.split(way).map(|split| (Some(split.plan), Some(split)))?,
    };
    let searched_s = begun.elapsed().as_secs_f64();
    let (step, source) = sides.step(way, n_nodes)?;
    let (trained, measured) = sides.trainer(way.policy, n_nodes)?;
    let Decided { problem, decision, found } = &trained.decided;
    let Rl { rollouts, answers, training, .. } = sides.scenario;
    let Figured { values, interval, why } = trained.figured(&step, (rollouts, answers), training.long_run.as_ref())?;
    let layouts = found.iter().map(|found| layout_words(problem, found));
    let words = split.iter().map(|split| split.limit.clone()).chain(layouts);
    let mut result = PolicyResult {
        policy: way.name.clone(),
        status: reports::Ended::Ok,
        why: words.map(|words| words + "; ").chain([why]).collect(),
        chosen: fields(problem, found.as_ref()),
        interval,
        metrics: values,
        planner: Some(split.as_ref().map_or_else(|| kinds::facts(decision), kinds::facts)),
        measured: Measured {
            planner_wall_s: measured.planner_wall_s + searched_s,
            simulate_wall_s: measured.simulate_wall_s + begun.elapsed().as_secs_f64() - searched_s,
        },
        ..PolicyResult::default()
    };
    let n_nodes = training.problem.cluster.n_nodes;
    let shared_out = split.map(|split| [("train_nodes", split.plan), ("n_nodes", n_nodes)]);
    result.chosen.extend(shared_out.into_iter().flatten().map(|(key, n)| (key.to_owned(), n.into())));
    Ok(Row { result, source, trained: Some(trained) })
}
