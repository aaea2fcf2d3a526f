//! From a checked memory scenario to a result: every compiler on the same batches, peak by peak.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use planner::train::rematerialisation::Compiled;
use planner::train::rematerialisation::batches::{Batch, Batches, Compiler};
use reports::{Aim, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serde_json::json;
use train::tensor_graph::{OperationId, TensorGraph};

use crate::costs::cost_model;
use crate::kinds::memory::read::MemoryScenario;
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

const BYTES_PER_GIB: f64 = 1_073_741_824.0;

impl Kind for MemoryScenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let asked = self.asked();
        let rows = kinds::rows(&asked, |(name, ..)| name, done, |(name, choice, size)| row(self, name, choice, *size));
        let (results, source) = kinds::weakest(rows);
        result(self, &asked, results, source)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let (name, found) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Ok(planned(self, name, found)))
    }
}

impl MemoryScenario {
    /// Batches of a size under a compiler.
    fn play(&self, compiler: &Compiler, size: u32) -> Batches {
        let cost = cost_model(&self.cluster, self.profile.as_ref(), self.sustained_flops_ratio);
        Batches::play(&self.steps, compiler, size, cost.as_ref())
    }

    /// Every compiler at every batch size; the size is part of the name where there are several.
    fn asked(&self) -> Vec<(String, &Compiler, u32)> {
        let is_one = self.batch_sizes.len() == 1;
        let name = |policy: &str, size: u32| if is_one { policy.to_owned() } else { format!("{policy}@{size}") };
        let sizes = self.batch_sizes.iter().flat_map(|size| self.choices.iter().map(move |choice| (choice, *size)));
        sizes.map(|((policy, choice), size)| (name(policy, size), choice, size)).collect()
    }
}

fn result(
    scenario: &MemoryScenario,
    asked: &[(String, &Compiler, u32)],
    results: Vec<PolicyResult>,
    source: Source,
) -> RunResult {
    let rate = |row: &PolicyResult| row.metrics.get("tokens_per_s").copied();
    // Gains are relative to the baseline with the same batch size.
    let baseline = scenario.choices.iter().position(|(name, _)| *name == scenario.head.baseline).unwrap_or(0);
    let per_size = scenario.choices.len();
    let gain = |(at, row): (usize, &PolicyResult)| {
        let base = &results[at / per_size * per_size + baseline];
        Some((row.policy.clone(), rate(row)? / rate(base)?))
    };
    let speedup_ratio = results.iter().enumerate().filter_map(gain).collect();
    let baseline = asked[baseline].0.clone();
    RunResult {
        cost_model: CostModelFacts {
            profile: scenario.profile.as_ref().map_or_else(|| "roofline".to_owned(), |profile| profile.name.clone()),
            source: source.name().to_owned(),
            outside_hull_ratio: f64::NAN,
            free_parameters: scenario.free_parameters.clone(),
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&[
            ("tokens_per_s", "tokens/s"),
            ("peak_memory_bytes", "peak"),
            ("peak_memory_mean_bytes", "mean peak"),
            ("recompute_ratio", "recompute"),
            ("n_compiles", "programs"),
            ("n_not_fitting", "do not fit"),
        ]),
        results,
        speedup_ratio,
        baseline,
        ..kinds::blank(&scenario.head)
    }
}

fn gib(bytes: u64) -> f64 {
    hw::Bytes(bytes).as_f64() / BYTES_PER_GIB
}

fn operation(graph: &TensorGraph, id: Option<OperationId>) -> &str {
    id.map_or("its arguments alone", |id| graph.at(id).name.as_str())
}

fn row(scenario: &MemoryScenario, name: &str, choice: &Compiler, size: u32) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let batches = scenario.play(choice, size);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let largest = batches.largest();
    let misses = batches.misses();
    let n_misses = misses.len();
    let worst = misses.into_iter().max_by_key(|batch| batch.choice.plan.residual_bytes);
    let shown = |batch: &Batch| format!("{size} sequences of {} tokens", batch.sequence);
    let (status, why) = match worst {
        Some(batch) => {
            let why = format!(
                "{n_misses} of {} batches do not fit: {} need {:.2} GiB, {:.2} GiB more than there are, while `{}` runs",
                batches.all.len(),
                shown(batch),
                gib(batch.choice.plan.played.peak_bytes),
                gib(batch.choice.plan.residual_bytes),
                operation(&scenario.steps.graph, batch.choice.plan.played.peak_at)
            );
            ("oom", why)
        }
        None => {
            let why = format!(
                "the highest peak: {} need {:.2} GiB of {:.2} while `{}` runs",
                shown(largest),
                gib(largest.choice.plan.played.peak_bytes),
                gib(batches.limit),
                operation(&scenario.steps.graph, largest.choice.plan.played.peak_at)
            );
            ("ok", why)
        }
    };
    let row = PolicyResult {
        policy: name.to_owned(),
        status: status.to_owned(),
        why,
        metrics: batches.metrics(&scenario.steps),
        interval: batches.interval(&scenario.steps),
        planner: Some(facts(scenario, choice, &batches)),
        measured: Measured { planner_wall_s, simulate_wall_s: 0.0 },
    };
    (row, batches.source)
}

/// Of a compiler without eviction the order is judged, by the peak of its largest batch; else the time that fitting costs.
fn facts(scenario: &MemoryScenario, choice: &Compiler, batches: &Batches) -> PlannerFacts {
    let largest = batches.largest();
    let (objective, bound, aim) = if choice.manager.is_none() {
        (largest.choice.plan.played.peak_bytes, largest.order_bound_bytes, Aim::Bytes)
    } else {
        (batches.mean_ns(&scenario.steps), batches.mean_undisturbed_ns(), Aim::Seconds)
    };
    let gap = hw::Tokens(objective - bound.min(objective)).as_f64() / hw::Tokens(objective.max(1)).as_f64();
    let scale = if aim == Aim::Seconds { 1e-9 } else { 1.0 };
    let compiled = batches.compiled.values().next().expect("a batch was compiled for");
    let mut notes = vec![order_note(choice, compiled)];
    notes.extend(eviction_notes(scenario, choice, batches, compiled));
    let longest = batches.longest();
    notes.push(format!(
        "at {} tokens no order without recompute stays below {:.2} GiB, no order at all below {:.2} GiB; as operations come it is {:.2} GiB",
        longest.sequence,
        gib(longest.order_bound_bytes),
        gib(longest.floor_bytes),
        gib(longest.original_bytes)
    ));
    PlannerFacts {
        objective: Some(hw::Tokens(objective).as_f64() * scale),
        aim,
        bound: Some(hw::Tokens(bound.min(objective)).as_f64() * scale),
        gap_ratio: Some(gap),
        status: if objective <= bound { "optimal" } else { "heuristic" }.to_owned(),
        notes,
        figures: BTreeMap::new(),
    }
}

fn order_note(choice: &Compiler, compiled: &Compiled) -> String {
    match (choice.schedule, compiled.is_proven) {
        (false, _) => "operations run as they come".to_owned(),
        (true, true) => "scheduled order, proven to need no more than the original one at any size".to_owned(),
        (true, false) => {
            "scheduled order; that it never needs more than the original one is not proven, so both are compiled and sizes decide".to_owned()
        }
    }
}

/// What may go, what went, and what would have been next best.
fn eviction_notes(scenario: &MemoryScenario, choice: &Compiler, batches: &Batches, compiled: &Compiled) -> Vec<String> {
    if choice.manager.is_none() {
        return Vec::new();
    }
    let program = &compiled.programs[0];
    let longest = program.candidates.iter().map(|candidate| candidate.recompute.len()).max().unwrap_or(0);
    let mut notes = vec![format!(
        "{} candidates for eviction, recompute subgraphs of up to {longest} operations, {} checks per step",
        program.candidates.len(),
        program.n_checks()
    )];
    let costly = batches.all.iter().max_by_key(|batch| (batch.choice.plan.again_ns, batch.sequence));
    if let Some(batch) = costly.filter(|batch| batch.choice.plan.played.n_evictions > 0) {
        let way = &batch.choice.plan;
        let rule = train::tensor_graph::play::Eviction::WORDS.iter().find(|(_, rule)| *rule == way.rule);
        notes.push(format!(
            "most recompute at {} tokens: {} evictions of {:.2} GiB in all, {:.3} ms again (rule {}, played at {:.2} GiB)",
            batch.sequence,
            way.played.n_evictions,
            gib(way.played.evicted_bytes),
            hw::Tokens(way.again_ns).as_f64() / 1e6,
            rule.map_or("", |(word, _)| word),
            gib(way.limit.min(batches.limit))
        ));
        notes.push(match batch.choice.runner_up().map(|other| &other.plan) {
            Some(other) => format!(
                "runner-up: {} evictions, {:.3} ms again",
                other.played.n_evictions,
                hw::Tokens(other.again_ns).as_f64() / 1e6
            ),
            None => "runner-up: no other way that was tried fits".to_owned(),
        });
        if batch.choice.plan.residual_bytes == 0 {
            notes.push(format!(
                "memory binds in {} of {} batches, in which something is evicted",
                batches.all.iter().filter(|batch| batch.choice.plan.played.n_evictions > 0).count(),
                batches.all.len()
            ));
        }
    }
    if scenario.steps.check_ns == 0 {
        notes.push("checks on the host are taken to cost nothing".to_owned());
    }
    notes
}

/// `plan.json`: order, candidates, and what is evicted for every length of the batches.
fn planned(scenario: &MemoryScenario, name: &str, choice: &Compiler) -> Planned {
    let graph = &scenario.steps.graph;
    let op = |id: &OperationId| graph.at(*id).name.clone();
    let tensor = |id: &train::tensor_graph::TensorId| graph.tensors[id.index()].name.clone();
    let (mut sizes, mut words) = (Vec::new(), Vec::new());
    for &size in &scenario.batch_sizes {
        let batches = scenario.play(choice, size);
        let programs: Vec<_> = batches
            .compiled
            .iter()
            .map(|(sequence, compiled)| {
                let program = |program: &train::tensor_graph::program::Program| {
                    let candidate = |c: &train::tensor_graph::program::Candidate| {
                        json!({
                            "tensor": tensor(&c.tensor), "bytes": graph.symbols.words(&graph.tensors[c.tensor.index()].bytes),
                            "first_check_point": c.window[0], "last_check_point": c.window[1], "next_use": c.next_use,
                            "recompute": c.recompute.iter().map(op).collect::<Vec<_>>(),
                            "kept": c.kept.iter().map(tensor).collect::<Vec<_>>(),
                        })
                    };
                    json!({
                        "order": program.order.iter().map(op).collect::<Vec<_>>(),
                        "candidates": program.candidates.iter().map(candidate).collect::<Vec<_>>(),
                    })
                };
                json!({
                    "sequence_tokens": sequence, "proven_never_worse": compiled.is_proven,
                    "programs": compiled.programs.iter().map(program).collect::<Vec<_>>(),
                })
            })
            .collect();
        let shapes: Vec<_> = batches.shapes().into_iter().map(|batch| shape(batch, &tensor)).collect();
        words.push(format!("batches of {size}: {} programs, {} lengths", programs.len(), shapes.len()));
        sizes.push(json!({ "batch": size, "compiled": programs, "shapes": shapes }));
    }
    let json = json!({
        "schema": "skrull-sim/memory-plan/1", "version": env!("CARGO_PKG_VERSION"), "scenario": scenario.head.name,
        "policy": name, "batches": sizes,
    });
    Planned { json, words: words.join("\n"), ..Planned::default() }
}

fn shape(batch: &Batch, tensor: &dyn Fn(&train::tensor_graph::TensorId) -> String) -> serde_json::Value {
    let way = &batch.choice.plan;
    let evicted = way.played.events.iter().filter_map(|event| match event {
        train::tensor_graph::play::Event::Evict(id) => Some(tensor(id)),
        _ => None,
    });
    json!({
        "sequence_tokens": batch.sequence, "program": way.program, "evict": evicted.collect::<Vec<_>>(),
        "peak_memory_bytes": way.played.peak_bytes, "missing_bytes": way.residual_bytes,
        "recompute_s": hw::Tokens(way.again_ns).as_f64() / 1e9,
    })
}
