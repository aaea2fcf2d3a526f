//! What compilers did with memory in words, and as the plan's file: peaks, orders, what is evicted and made again. Units: bytes, nanoseconds.

use serde_json::{Value, json};
use train::tensor_graph::play::{Event, Eviction};
use train::tensor_graph::program::{Candidate, Program};
use train::tensor_graph::{OperationId, TensorGraph, TensorId};

use super::Compiled;
use super::batches::{Batch, Batches, Compiler, Steps};
use crate::proof::{Aim, Status};

/// How good what a compiler made is known to be, and what it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What is counted: the peak of the largest batch without eviction, else the mean time of a batch.
    pub aim: Aim,
    /// How much.
    pub objective: f64,
    /// What nothing stays below.
    pub bound: f64,
    /// Distance to the bound over the objective.
    pub gap_ratio: f64,
    /// Whether it reaches the bound.
    pub status: Status,
    /// What it did, a sentence each.
    pub notes: Vec<String>,
}

/// Of a compiler without eviction the order is judged, by the peak of its largest batch; else the time that fitting costs.
///
/// # Panics
/// When nothing was compiled.
pub fn judged(steps: &Steps, compiler: &Compiler, batches: &Batches) -> Judged {
    let largest = batches.largest();
    let (objective, bound, aim) = if compiler.manager.is_none() {
        (largest.choice.plan.played.peak_bytes, largest.order_bound_bytes, Aim::Bytes)
    } else {
        (batches.mean_ns(), batches.mean_undisturbed_ns(), Aim::Seconds)
    };
    let gap_ratio = hw::real(objective - bound.min(objective)) / hw::real(objective.max(1));
    let scale = if aim == Aim::Seconds { 1e-9 } else { 1.0 };
    Judged {
        aim,
        objective: hw::real(objective) * scale,
        bound: hw::real(bound.min(objective)) * scale,
        gap_ratio,
        status: if objective <= bound { Status::Optimal } else { Status::Heuristic },
        notes: notes(steps, compiler, batches),
    }
}

fn notes(steps: &Steps, compiler: &Compiler, batches: &Batches) -> Vec<String> {
    let compiled = batches.compiled.values().next().expect("a batch was compiled for");
    let mut notes = vec![order_note(compiler, compiled)];
    notes.extend(eviction_notes(steps, compiler, batches, compiled));
    let longest = batches.longest();
    notes.push(format!(
        "at {} tokens no order without recompute stays below {:.2} GiB, no order at all below {:.2} GiB; as operations come it is {:.2} GiB",
        longest.sequence,
        gib(longest.order_bound_bytes),
        gib(longest.floor_bytes),
        gib(longest.original_bytes)
    ));
    notes
}

/// Whether every batch fits, and the one that says why: the worst that does not fit, or the highest peak.
pub fn why(steps: &Steps, batches: &Batches, size: u32) -> (bool, String) {
    let misses = batches.misses();
    let (n_misses, n) = (misses.len(), batches.all.len());
    let running = |batch: &Batch| operation(&steps.graph, batch.choice.plan.played.peak_at).to_owned();
    let Some(worst) = misses.into_iter().max_by_key(|batch| batch.choice.plan.residual_bytes) else {
        let largest = batches.largest();
        let (peak, limit) = (gib(largest.choice.plan.played.peak_bytes), gib(batches.limit));
        let (sequence, running) = (largest.sequence, running(largest));
        let why = format!(
            "the highest peak: {size} sequences of {sequence} tokens need {peak:.2} GiB of {limit:.2} while `{running}` runs"
        );
        return (true, why);
    };
    let (peak, missing) = (gib(worst.choice.plan.played.peak_bytes), gib(worst.choice.plan.residual_bytes));
    let (sequence, running) = (worst.sequence, running(worst));
    let why = format!(
        "{n_misses} of {n} batches do not fit: {size} sequences of {sequence} tokens need {peak:.2} GiB, {missing:.2} GiB more than there are, while `{running}` runs"
    );
    (false, why)
}

fn gib(bytes: u64) -> f64 {
    hw::real(bytes) / hw::GIB
}

fn operation(graph: &TensorGraph, id: Option<OperationId>) -> &str {
    id.map_or("its arguments alone", |id| graph.at(id).name.as_str())
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
fn eviction_notes(steps: &Steps, choice: &Compiler, batches: &Batches, compiled: &Compiled) -> Vec<String> {
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
        let rule = Eviction::WORDS.iter().find(|(_, rule)| *rule == way.rule);
        notes.push(format!(
            "most recompute at {} tokens: {} evictions of {:.2} GiB in all, {:.3} ms again (rule {}, played at {:.2} GiB)",
            batch.sequence,
            way.played.n_evictions,
            gib(way.played.evicted_bytes),
            hw::real(way.again_ns) / 1e6,
            rule.map_or("", |(word, _)| word),
            gib(way.limit.min(batches.limit))
        ));
        notes.push(match batch.choice.runner_up().map(|other| &other.plan) {
            Some(other) => format!(
                "runner-up: {} evictions, {:.3} ms again",
                other.played.n_evictions,
                hw::real(other.again_ns) / 1e6
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
    if steps.check_ns == 0 {
        notes.push("checks on the host are taken to cost nothing".to_owned());
    }
    notes
}

/// The plan of a batch size: order, candidates, and what is evicted for every length of the batches; how many programs and lengths there are.
pub fn plan_json(steps: &Steps, batches: &Batches, size: u32) -> (Value, [usize; 2]) {
    let graph = &steps.graph;
    let programs: Vec<Value> =
        batches.compiled.iter().map(|(sequence, compiled)| of_length(graph, *sequence, compiled)).collect();
    let shapes: Vec<Value> = batches.shapes().into_iter().map(|batch| shape(graph, batch)).collect();
    let n = [programs.len(), shapes.len()];
    (json!({ "batch": size, "compiled": programs, "shapes": shapes }), n)
}

fn op(graph: &TensorGraph, id: OperationId) -> &str {
    &graph.at(id).name
}

fn tensor(graph: &TensorGraph, id: TensorId) -> &str {
    &graph.tensors[id.index()].name
}

fn of_length(graph: &TensorGraph, sequence: u64, compiled: &Compiled) -> Value {
    let programs: Vec<Value> = compiled.programs.iter().map(|program| of_program(graph, program)).collect();
    json!({ "sequence_tokens": sequence, "proven_never_worse": compiled.is_proven, "programs": programs })
}

fn of_program(graph: &TensorGraph, program: &Program) -> Value {
    let candidates: Vec<Value> = program.candidates.iter().map(|candidate| of_candidate(graph, candidate)).collect();
    json!({
        "order": program.order.iter().map(|id| op(graph, *id)).collect::<Vec<_>>(),
        "candidates": candidates,
    })
}

fn of_candidate(graph: &TensorGraph, c: &Candidate) -> Value {
    json!({
        "tensor": tensor(graph, c.tensor), "bytes": graph.symbols.words(&graph.tensors[c.tensor.index()].bytes),
        "first_check_point": c.window[0], "last_check_point": c.window[1], "next_use": c.next_use,
        "recompute": c.recompute.iter().map(|id| op(graph, *id)).collect::<Vec<_>>(),
        "kept": c.kept.iter().map(|id| tensor(graph, *id)).collect::<Vec<_>>(),
    })
}

fn shape(graph: &TensorGraph, batch: &Batch) -> Value {
    let way = &batch.choice.plan;
    let evicted = way.played.events.iter().filter_map(|event| match event {
        Event::Evict(id) => Some(tensor(graph, *id)),
        _ => None,
    });
    json!({
        "sequence_tokens": batch.sequence, "program": way.program, "evict": evicted.collect::<Vec<_>>(),
        "peak_memory_bytes": way.played.peak_bytes, "missing_bytes": way.residual_bytes,
        "recompute_s": hw::real(way.again_ns) / 1e9,
    })
}
