//! From a checked scenario of reinforcement learning to a result: plan the updates, serve the answers, and put the parts of a step together.

use std::time::Instant;

use engine::cost::Source;
use engine::verdict::Refused;
use hw::Bytes;
use hw::topology::Topology;
use planner::train::chosen::{Decided, fields, layout_words, simulate};
use reports::{CostModelFacts, Measured, PolicyResult, RunResult, views};
use rl::cycle::CASES;
use rl::orchestrator::{self, Orchestrator};
use rl::step::{self, Engines, Step, Trainer};
use train::metrics::{self, Played};

use crate::kinds::{self, Kind, Planned, Run, serving, training};
use scenario::Head;
use scenario::rl::{Rl, Way};
use scenario::serving::Serving;

impl Kind for Rl {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.ways.iter().map(|way| way.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let rows = kinds::rows(&self.ways, |way| &way.name, done, |way| row(self, way), Row::without);
        of_rows(self, rows)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let way = self.ways.iter().find(|way| way.name == choice)?;
        Some(Planned::of_row(&row(self, way).result))
    }

    fn strict_hull(&self) -> Option<bool> {
        Some(self.training.strict_hull)
    }
}

/// What came of a way.
struct Row {
    result: PolicyResult,
    source: Source,
    /// The first update, to be drawn.
    drawn: Option<Played>,
    outside_hull_ratio: f64,
    outside_hull: Vec<String>,
}

impl Row {
    /// Of a way that was not played.
    const fn without(result: PolicyResult) -> Self {
        Self { result, source: Source::Measured, drawn: None, outside_hull_ratio: 0.0, outside_hull: Vec::new() }
    }
}

fn of_rows(scenario: &Rl, rows: Vec<Row>) -> Run {
    let mut free_parameters = scenario.training.free_parameters.clone();
    if scenario.rules.orchestrator == Orchestrator::NemoRl {
        free_parameters.push(orchestrator::SAID.to_owned());
    }
    let of_serving = scenario.serving.free_parameters.iter();
    free_parameters
        .extend(of_serving.filter(|sentence| !scenario.training.free_parameters.contains(sentence)).cloned());
    let (mut source, mut facts) = (Source::Measured, CostModelFacts::default());
    let (mut results, mut pictures) = (Vec::new(), Vec::new());
    for row in rows {
        source = source.max(row.source);
        facts.outside_hull_ratio = facts.outside_hull_ratio.max(row.outside_hull_ratio);
        facts.outside_hull.extend(row.outside_hull);
        pictures.extend(row.drawn.map(|step| (row.result.policy.clone(), None, step)));
        results.push(row.result);
    }
    facts.outside_hull.sort();
    facts.outside_hull.dedup();
    let profiles = [kinds::profile_name(scenario.training.profile.as_ref()).to_owned(), scenario.serving.profiles()];
    let cost_model = CostModelFacts {
        outside_hull_ratio: facts.outside_hull_ratio,
        outside_hull: facts.outside_hull,
        ..kinds::costs(&profiles.join(" and "), source.name(), &free_parameters)
    };
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

fn row(scenario: &Rl, way: &Way) -> Row {
    played(scenario, way).unwrap_or_else(|why| Row::without(kinds::refused(&way.name, why)))
}

/// Plans and plays a way.
fn played(scenario: &Rl, way: &Way) -> Result<Row, Refused> {
    let begun = Instant::now();
    let (trains, generates) = scenario.sides(way)?;
    let cost = training::run::cost_model(&trains);
    let topology = Topology::of(&trains.problem.cluster);
    let decided = training::run::decide(&trains, scenario.policy(way), cost.as_ref(), &topology)?;
    let Decided { problem, decision, found } = decided;
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let (mut updates, [low, high]) = simulate(&problem, &decision, cost.as_ref(), &Topology::of(&problem.cluster))?;
    let of_updates = metrics::of_steps(&problem, &updates, cost.as_ref());
    let update_s = [low, of_updates.step_s(), high];
    let trainer = Trainer { problem: &problem, plan: &decision.plan, update_s, cost: cost.as_ref() };
    let (step, source) = with_engines(scenario, way, &generates, &trainer)?;
    let mut result = PolicyResult {
        policy: way.name.clone(),
        status: reports::Ended::Ok,
        why: found.iter().map(|found| layout_words(found) + "; ").chain([step.why()]).collect(),
        chosen: fields(&problem, found.as_ref()),
        metrics: step.figures(&scenario.rollouts, &scenario.answers),
        interval: step.interval(),
        planner: Some(kinds::facts(&decision)),
        measured: Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() },
        ..PolicyResult::default()
    };
    result.metrics.insert("n_updates".to_owned(), hw::real(updates.len() as u64));
    let of_update = ["mfu_ratio", "peak_memory_bytes"].map(|key| Some((key.to_owned(), *of_updates.values.get(key)?)));
    result.metrics.extend(of_update.into_iter().flatten());
    Ok(Row {
        result,
        source: source.max(of_updates.source),
        drawn: Some(updates.swap_remove(0)),
        outside_hull_ratio: of_updates.outside_hull_ratio,
        outside_hull: of_updates.outside_hull.iter().map(|dimension| (*dimension).to_owned()).collect(),
    })
}

/// The step of a trainer with the engines of a way, and the weakest source of their times.
fn with_engines(scenario: &Rl, way: &Way, side: &Serving, trainer: &Trainer<'_>) -> Result<(Step, Source), Refused> {
    let choice = way.serving(side);
    let mut source = Source::Measured;
    let fleets = CASES.map(|case| {
        let (fleet, weakest) = serving::run::fleet(side, choice, case);
        source = source.max(weakest);
        fleet
    });
    let (mut bytes_per_gpu, mut weights_per_gpu) = (Bytes::ZERO, Bytes::ZERO);
    for group in side.groups_of(choice) {
        let (deployment, limits) = (side.deployment_of(choice, group), side.limits(choice, group));
        bytes_per_gpu = bytes_per_gpu.max(serve::capacity::peak(&deployment, &limits, limits.kv_blocks));
        weights_per_gpu = weights_per_gpu.max(serve::capacity::weights(&deployment));
    }
    let engines = Engines {
        fleets: &fleets,
        router: choice.router,
        seed: scenario.head.seed,
        block_tokens: side.engine.limits.block_tokens,
        bytes_per_gpu,
        weights_per_gpu,
    };
    let step = step::step(&scenario.rollouts, &scenario.answers, &scenario.rules(way), trainer, &engines)?;
    Ok((step, source))
}
