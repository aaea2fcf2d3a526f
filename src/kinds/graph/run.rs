//! From a checked graph scenario to a result: every policy on the same graph and machine.

use std::time::Instant;

use ::graph::epoch::Epoch;
use ::planner::graph::judged::Judged;
use ::planner::graph::{legion, seg, tf_tgn};
use engine::cost::Source;
use engine::verdict::Refused;
use hw::Cluster;
use reports::views;
use reports::{Measured, PolicyResult, RunResult};
use train::metrics::Played;

use crate::kinds::{self, Kind, Planned, Run};
use calibrate::costs::cost_model;
use scenario::Head;
use scenario::graph::{GraphScenario, Question};

/// Names of policies with what they do.
pub fn policies() -> Vec<(&'static str, &'static str)> {
    let caching = legion::POLICIES.iter().map(|policy| (policy.name, policy.about));
    let subgraphs = seg::POLICIES.iter().map(|(name, _, about)| (*name, *about));
    let sequences = tf_tgn::POLICIES.iter().map(|policy| (policy.name, policy.about));
    caching.chain(subgraphs).chain(sequences).collect()
}

/// A row, the source of its costs, and its steps.
type Row = (PolicyResult, Source, Option<Played>);

impl Kind for GraphScenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        match &self.question {
            Question::Caching(_, choices) => choices.iter().map(|(name, _)| name.as_str()).collect(),
            Question::Subgraphs(_, choices) => choices.iter().map(|(name, _)| name.as_str()).collect(),
            Question::Sequences(_, choices, _) => choices.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let names = self.choices();
        let rows = kinds::rows(&names, |name| name, done, |name| row(self, name), |row| (row, Source::Measured, None));
        let (mut pictures, mut of_rows) = (Vec::new(), Vec::new());
        for (row, source, played) in rows {
            pictures.extend(played.map(|played| (row.policy.clone(), None, played)));
            of_rows.push((row, source));
        }
        let (results, source) = kinds::weakest(of_rows);
        let device_memory_bytes = self.machine.cluster.gpu.memory.0;
        Run { result: result(self, results, source), pictures, device_memory_bytes, ..Run::default() }
    }

    fn epoch(&self) -> Option<Result<Epoch, Refused>> {
        Some(self.question.epoch())
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let name = self.choices().into_iter().find(|name| *name == choice)?;
        Some(Planned::of_row(&row(self, name).0))
    }
}

/// A row of the table: the policy of that name on the scenario's graph.
fn row(scenario: &GraphScenario, name: &str) -> Row {
    let begun = Instant::now();
    let costs = |cluster: &Cluster| cost_model(cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let cost = costs(&scenario.machine.cluster);
    let cost = cost.as_ref();
    match &scenario.question {
        Question::Caching(asked, choices) => {
            told(scenario, name, begun, legion::judged(asked, chosen(choices, name), &costs))
        }
        Question::Subgraphs(asked, choices) => {
            told(scenario, name, begun, seg::judged(asked, *chosen(choices, name), cost))
        }
        Question::Sequences(asked, choices, _) => {
            told(scenario, name, begun, tf_tgn::judged(asked, chosen(choices, name), cost))
        }
    }
}

fn told<P>(scenario: &GraphScenario, name: &str, begun: Instant, judged: Judged<P>) -> Row {
    let mut planner = judged.decision.as_ref().map(kinds::facts);
    if let Some(facts) = &mut planner {
        facts.notes.splice(0..0, scenario.input.iter().cloned());
    }
    let row = PolicyResult {
        policy: name.to_owned(),
        status: judged.ended,
        why: judged.why,
        metrics: judged.metrics,
        interval: judged.interval,
        planner,
        measured: Measured { planner_wall_s: begun.elapsed().as_secs_f64(), simulate_wall_s: 0.0 },
        ..PolicyResult::default()
    };
    (row, judged.source, judged.played.map(|(graph, timeline)| Played { graph, timeline }))
}

fn result(scenario: &GraphScenario, results: Vec<PolicyResult>, source: Source) -> RunResult {
    let columns = match &scenario.question {
        Question::Caching(..) => views::CACHING,
        Question::Subgraphs(..) => views::SUBGRAPHS,
        Question::Sequences(..) => views::SEQUENCES,
    };
    let shorter = |row: &PolicyResult| row.metrics.get("epoch_time_s").map(|seconds| seconds.recip());
    RunResult {
        cost_model: kinds::costs(
            kinds::profile_name(scenario.profile.as_ref()),
            source.name(),
            &scenario.free_parameters,
        ),
        columns: views::columns(&columns),
        speedup_ratio: reports::gains::of_worth(&results, &scenario.head.baseline, shorter),
        results,
        ..kinds::blank(&scenario.head)
    }
}

/// The choice of that name.
fn chosen<'a, C>(choices: &'a [(String, C)], name: &str) -> &'a C {
    &choices.iter().find(|(known, _)| known == name).expect("choices are asked by their own names").1
}
