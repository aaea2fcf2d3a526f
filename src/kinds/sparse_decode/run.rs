//! From a checked sparse-decode scenario to a result: every number of GPUs, batch and format, the best one in words.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::play::Case;
use planner::deploy::sparse_decode::{Best, Decoding, Question, best, every_choice};
use reports::{Aim, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serve::sparse_weights::{SparseGemm, products};

use crate::costs::cost_model;
use crate::kinds::sparse_decode::read::{DecodeChoice, Policy, SparseDecode};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for SparseDecode {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let results = kinds::rows(&self.choices, |(name, _)| name, done, |(name, choice)| row(self, name, choice));
        result(self, results)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let (name, choice) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, name, choice)))
    }
}

fn result(scenario: &SparseDecode, results: Vec<PolicyResult>) -> RunResult {
    let rate = |row: &PolicyResult| row.metrics.get("tokens_per_s_per_gpu").copied();
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, rate);
    let outside = |row: &PolicyResult| row.metrics.get("outside_hull_ratio").copied().unwrap_or(0.0);
    let outside_hull_ratio = results.iter().map(outside).fold(0.0, f64::max);
    RunResult {
        cost_model: CostModelFacts {
            profile: scenario.profile.as_ref().map_or_else(|| "roofline".to_owned(), |profile| profile.name.clone()),
            source: engine::cost::Source::Published.name().to_owned(),
            outside_hull_ratio,
            outside_hull: if outside_hull_ratio > 0.0 {
                vec!["sparse products of other GPUs or more sequences than the published figure has".to_owned()]
            } else {
                Vec::new()
            },
            free_parameters: scenario.free_parameters.clone(),
        },
        columns: kinds::columns(&[
            ("tokens_per_s_per_gpu", "tokens/s/GPU"),
            ("n_gpus", "GPUs"),
            ("batch_sequences", "batch"),
            ("step_s", "step"),
            ("weights_bytes", "weights"),
            ("peak_memory_bytes", "memory"),
        ]),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

fn row(scenario: &SparseDecode, name: &str, choice: &DecodeChoice) -> PolicyResult {
    let begun = Instant::now();
    let row = PolicyResult { policy: name.to_owned(), ..PolicyResult::default() };
    let model = cost_model(&scenario.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let choices = match choice.policy {
        Policy::Dense => vec![[false; 4]],
        Policy::Sparse => vec![[true; 4]],
        Policy::FlashLlm => every_choice(),
    };
    let question = Question {
        model: &scenario.model,
        cluster: &scenario.cluster,
        cost: model.as_ref(),
        case: Case::Expected,
        degrees: &choice.degrees,
        batches: &choice.batches,
        sparsity: choice.sparsity,
        choices: &choices,
        prompt_tokens: scenario.prompt_tokens,
        output_tokens: scenario.output_tokens,
        room: scenario.room,
        other_s: scenario.other_s,
    };
    let found = match best(&question) {
        Ok(found) => found,
        Err(why) => return PolicyResult { status: "infeasible".to_owned(), why, ..row },
    };
    let interval = interval(&question, &found.best.plan);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    PolicyResult {
        status: "ok".to_owned(),
        why: format!("{}; {}", found.best.plan.words(), found.best.limit),
        metrics: metrics(&found.best.plan),
        interval,
        planner: Some(facts(scenario, choice, &found)),
        measured: Measured { planner_wall_s, simulate_wall_s: 0.0 },
        ..row
    }
}

/// The chosen way with every cost at its low and at its high end.
fn interval(question: &Question<'_>, way: &Decoding) -> BTreeMap<String, [f64; 2]> {
    let (degrees, batches, choices) = ([way.n_gpus], [way.batch], [way.sparse]);
    let at = |case| {
        let one = Question { degrees: &degrees, batches: &batches, choices: &choices, case, ..*question };
        best(&one).map(|found| found.best.plan)
    };
    let (Ok(low), Ok(high)) = (at(Case::Low), at(Case::High)) else { return BTreeMap::new() };
    [
        ("step_s".to_owned(), [low.step_s, high.step_s]),
        ("tokens_per_s_per_gpu".to_owned(), [high.tokens_per_s_per_gpu(), low.tokens_per_s_per_gpu()]),
    ]
    .into()
}

fn metrics(way: &Decoding) -> BTreeMap<String, f64> {
    [
        ("tokens_per_s_per_gpu", way.tokens_per_s_per_gpu()),
        ("tokens_per_s", f64::from(way.batch) / way.step_s),
        ("n_gpus", f64::from(way.n_gpus)),
        ("batch_sequences", f64::from(way.batch)),
        ("step_s", way.step_s),
        ("products_ratio", way.products_s / way.step_s),
        ("outside_hull_ratio", way.outside_s / way.step_s),
        ("weights_bytes", way.weights.as_f64()),
        ("kv_bytes", way.kv.as_f64()),
        ("peak_memory_bytes", (way.weights + way.kv).as_f64()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

fn facts(scenario: &SparseDecode, choice: &DecodeChoice, found: &Best) -> PlannerFacts {
    let way = &found.best.plan;
    let objective = way.tokens_per_s_per_gpu();
    let mut notes = vec![format!(
        "best of {} ways that fit, {} do not; all were tried, so the bound is the answer",
        found.all.len(),
        found.n_too_large
    )];
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        let less = (1.0 - other.tokens_per_s_per_gpu() / objective) * 100.0;
        notes.push(format!("runner-up, {less:.1} % fewer tokens per GPU: {}", other.words()));
    }
    for ((product, m, k), sparse) in products(&scenario.model, way.n_gpus).into_iter().zip(way.sparse) {
        let tiling = SparseGemm { m, k, n: u64::from(way.batch), sparsity: choice.sparsity }.tiling();
        notes.push(if sparse {
            format!(
                "{product} ({m} × {k}): sparse, tiles of {} × {}, split-k {}",
                tiling.tile_m, tiling.tile_n, tiling.split_k
            )
        } else {
            format!("{product} ({m} × {k}): dense")
        });
    }
    // Best format of every number of GPUs and batch, for comparison with published tables.
    let mut figures = BTreeMap::new();
    for way in &found.all {
        let key = format!("tokens_per_s_per_gpu_{}_gpus_{}_sequences", way.n_gpus, way.batch);
        let best = figures.entry(key).or_insert(0.0_f64);
        *best = best.max(way.tokens_per_s_per_gpu());
    }
    PlannerFacts {
        objective: Some(objective),
        aim: Aim::TokensPerSPerGpu,
        bound: found.best.bound(),
        gap_ratio: found.best.gap(),
        status: found.best.status.name().to_owned(),
        notes,
        figures,
    }
}
