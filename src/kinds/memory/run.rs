//! From a checked memory scenario to a result: every compiler on the same batches, peak by peak.

use std::time::Instant;

use engine::cost::Source;
use engine::verdict::Refused;
use planner::train::rematerialisation::batches::{Batches, Compiler};
use planner::train::rematerialisation::words::{self, Judged};
use reports::{Ended, Measured, PlannerFacts, PolicyResult, RunResult, gains, views};
use serde_json::json;

use crate::kinds::{self, Kind, Planned, Run};
use calibrate::costs::cost_model;
use scenario::Head;
use scenario::memory::MemoryScenario;

impl Kind for MemoryScenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let asked = self.asked();
        let rows = kinds::rows(
            &asked,
            |(name, ..)| name,
            done,
            |(name, choice, size)| row(self, name, choice, *size),
            |row| (row, Source::Measured),
        );
        let (results, source) = kinds::weakest(rows);
        Run::from(result(self, &asked, results, source))
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let (name, found) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Ok(planned(self, name, found)))
    }
}

/// Batches of a size under a compiler.
fn play(scenario: &MemoryScenario, compiler: &Compiler, size: u32) -> Batches {
    let cost = cost_model(&scenario.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    Batches::play(&scenario.steps, compiler, size, cost.as_ref())
}

fn result(
    scenario: &MemoryScenario,
    asked: &[(String, &Compiler, u32)],
    results: Vec<PolicyResult>,
    source: Source,
) -> RunResult {
    let baseline = scenario.choices.iter().position(|(name, _)| *name == scenario.head.baseline).unwrap_or(0);
    let profile = kinds::profile_name(scenario.profile.as_ref());
    RunResult {
        cost_model: kinds::costs(profile, source.name(), &scenario.free_parameters),
        columns: views::columns(&views::MEMORY),
        speedup_ratio: gains::of_own_metric(&results, &scenario.head.baseline, views::MEMORY[0].0),
        relative_to: gains::relative_to(&results, &scenario.head.baseline, "batch size"),
        results,
        baseline: asked[baseline].0.clone(),
        ..kinds::blank(&scenario.head)
    }
}

fn row(scenario: &MemoryScenario, name: &str, choice: &Compiler, size: u32) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let batches = play(scenario, choice, size);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let (fits, mut why) = words::why(&scenario.steps, &batches, size);
    // Words are of what is in use, figures of what the allocator takes for it.
    if scenario.steps.fragmentation > 1.0 {
        why += &format!("; figures are {} times that, for fragmentation", scenario.steps.fragmentation);
    }
    let row = PolicyResult {
        policy: name.to_owned(),
        status: if fits { Ended::Ok } else { Ended::OutOfMemory },
        why,
        metrics: batches.metrics(&scenario.steps),
        interval: batches.interval(&scenario.steps),
        planner: Some(facts(words::judged(&scenario.steps, choice, &batches))),
        measured: Measured { planner_wall_s, simulate_wall_s: 0.0 },
        ..PolicyResult::default()
    };
    (row, batches.source)
}

fn facts(judged: Judged) -> PlannerFacts {
    PlannerFacts {
        objective: Some(judged.objective),
        aim: judged.aim,
        bound: Some(judged.bound),
        gap_ratio: Some(judged.gap_ratio),
        status: judged.status,
        notes: judged.notes,
        ..PlannerFacts::default()
    }
}

/// `plan.json`: a plan for every batch size.
fn planned(scenario: &MemoryScenario, name: &str, choice: &Compiler) -> Planned {
    let (mut sizes, mut words) = (Vec::new(), Vec::new());
    for &size in &scenario.batch_sizes {
        let (json, [n_programs, n_lengths]) = words::plan_json(&scenario.steps, &play(scenario, choice, size), size);
        sizes.push(json);
        words.push(format!("batches of {size}: {n_programs} programs, {n_lengths} lengths"));
    }
    let json = json!({
        "schema": "skrull-sim/memory-plan/1", "version": env!("CARGO_PKG_VERSION"), "scenario": scenario.head.name,
        "policy": name, "batches": sizes,
    });
    Planned { json, words: words.join("\n"), ..Planned::default() }
}
