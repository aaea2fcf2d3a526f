//! The independent checker: holds a plan against its problem and shares no code with any policy.
//!
//! It asks for conservation (every token of every sequence exactly once) and for shape (steps, groups and
//! context ranks exist). Memory is not asked here: a plan that does not fit runs out of memory in the simulation,
//! which is an outcome.

use std::collections::BTreeMap;

use crate::plan::{MicroBatch, Place, Plan, SCHEMA, Step};
use crate::problem::Problem;
use crate::schedule::{Order, PassKind, Pipeline, Slot, play};
use crate::workload::distribution::LENGTH_MAX;

/// Findings kept at most; a broken plan would list every sequence otherwise.
const FINDINGS_MAX: usize = 20;

/// Checks a plan.
///
/// # Errors
/// Every finding, in plan order, at most 20.
pub fn check(problem: &Problem, plan: &Plan) -> Result<(), Vec<String>> {
    let mut findings = Vec::new();
    if plan.schema != SCHEMA {
        findings.push(format!("plan schema is `{}`, expected `{SCHEMA}`", plan.schema));
    }
    if plan.layout != problem.layout {
        findings.push("plan is for another layout than the problem".to_owned());
    }
    if plan.steps.len() != problem.workload.n_steps() {
        findings.push(format!("plan has {} steps, the workload {}", plan.steps.len(), problem.workload.n_steps()));
    }
    let mut parts: Vec<Vec<(u64, u64)>> = vec![Vec::new(); problem.workload.lengths.len()];
    for (step_index, step) in plan.steps.iter().enumerate() {
        findings.extend(mixed(problem, step_index, step));
        findings.extend(placed(problem, step_index, step));
        if !step.is_mixed() && step.groups.len() != problem.layout.dp as usize {
            findings.push(format!(
                "step {step_index} has {} data-parallel groups, the layout {}",
                step.groups.len(),
                problem.layout.dp
            ));
        }
        findings.extend(orders(problem, step_index, step));
        findings.extend(step.groups.iter().flatten().filter_map(|micro_batch| one_ring(problem, micro_batch)));
        let paddings = step.groups.iter().flatten().map(|micro_batch| micro_batch.padding);
        if let Some(padding) = paddings.into_iter().find(|padding| *padding > LENGTH_MAX) {
            findings
                .push(format!("step {step_index} pads a micro-batch with {padding} tokens, allowed are {LENGTH_MAX}"));
        }
        let shares = step.groups.iter().flatten().flat_map(|micro_batch| &micro_batch.offload_permille);
        if let Some(share) = shares.into_iter().find(|share| **share > 1000) {
            findings.push(format!("step {step_index} offloads {share} thousandths of a rank's activations"));
        }
        let counted = step.groups.iter().flatten().filter(|micro_batch| !micro_batch.forward_only);
        for placement in counted.flat_map(|micro_batch| &micro_batch.sequences) {
            let id = placement.sequence as usize;
            match parts.get_mut(id) {
                None => findings.push(format!("step {step_index} places sequence {id}, which does not exist")),
                Some(parts) => parts.push((placement.from, placement.tokens)),
            }
            let (first, count) = match placement.place {
                Place::Local(index) => (index, 1),
                other => other.ring(problem.layout.cp).unwrap_or((0, 1)),
            };
            if count == 0 || u64::from(first) + u64::from(count) > u64::from(problem.layout.cp) {
                let last = u64::from(first) + u64::from(count);
                findings.push(format!("sequence {id} is on context ranks {first} to {last} of {}", problem.layout.cp));
            }
        }
    }
    findings
        .extend(parts.iter_mut().enumerate().filter_map(|(id, parts)| covers(id, parts, problem.workload.lengths[id])));
    findings.truncate(FINDINGS_MAX);
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}

/// Pipelines of different shape: one per group, on the ranks of the layout, each of a kind that the model can be cut into.
fn mixed(problem: &Problem, step_index: usize, step: &Step) -> Vec<String> {
    let (layout, model) = (&problem.layout, &problem.model);
    let mut findings = Vec::new();
    if step.pipelines.is_empty() {
        return findings;
    }
    if step.pipelines.len() != step.groups.len() {
        let (shapes, groups) = (step.pipelines.len(), step.groups.len());
        findings.push(format!("step {step_index} has {shapes} pipeline shapes for {groups} groups"));
    }
    let taken: u64 = step.pipelines.iter().map(|shape| u64::from(shape.tp) * u64::from(shape.pp)).sum();
    let all = u64::from(layout.dp * layout.cp * layout.tp * layout.pp);
    if taken > all {
        findings.push(format!("step {step_index} has pipelines of {taken} ranks, the layout {all}"));
    }
    findings.extend(joined_groups(problem, &format!("step {step_index} has pipelines of its own")));
    for shape in &step.pipelines {
        let fits = shape.pp > 0 && layout.cuts(model, shape.tp);
        if !fits || u64::from(shape.pp) > model.n_layers {
            findings.push(format!("step {step_index}: no pipeline is {} × {}", shape.tp, shape.pp));
        }
    }
    findings
}

/// What joins ranks of several pipelines, where these are each other's peers no more.
fn joined_groups(problem: &Problem, what: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if problem.layout.cp > 1 {
        findings.push(format!("{what}, which know no context groups"));
    }
    if problem.model.experts.is_some() && !problem.layout.holds_experts_in_tensor_groups() {
        findings.push(format!("{what}: experts have to lie inside tensor groups, `ep = tp` or `expert_tp = tp`"));
    }
    findings
}

/// Pipelines whose stages are placed: every stage on ranks of one node that no other stage has, all layers in each pipeline.
fn placed(problem: &Problem, step_index: usize, step: &Step) -> Vec<String> {
    let mut findings = Vec::new();
    if step.placed.is_empty() {
        return findings;
    }
    if step.placed.len() != step.groups.len() || !step.pipelines.is_empty() {
        findings.push(format!(
            "step {step_index} places {} pipelines for {} groups",
            step.placed.len(),
            step.groups.len()
        ));
    }
    findings.extend(joined_groups(problem, &format!("step {step_index} places stages")));
    let mut taken = vec![false; problem.layout.n_ranks() as usize];
    for (group, pipeline) in step.placed.iter().enumerate() {
        let layers: u64 = pipeline.iter().map(|stage| u64::from(stage.layers)).sum();
        if layers != problem.model.n_layers || pipeline.iter().any(|stage| stage.layers == 0) {
            findings.push(format!("pipeline {group} of step {step_index} has {layers} layers, or a stage without one"));
        }
        for stage in pipeline {
            let tp = u32::try_from(stage.ranks.len()).unwrap_or(u32::MAX);
            let ranks: Vec<hw::Rank> = stage.ranks.iter().map(|&rank| hw::Rank(rank)).collect();
            if !problem.layout.cuts(&problem.model, tp) || problem.cluster.shape_of(&ranks).n_nodes > 1 {
                findings.push(format!("step {step_index}: no tensor group is {:?}", stage.ranks));
            }
            for &rank in &stage.ranks {
                match taken.get_mut(rank as usize) {
                    Some(taken) if !*taken => *taken = true,
                    _ => {
                        findings.push(format!("step {step_index}: rank {rank} is no rank of the job, or in two stages"))
                    }
                }
            }
        }
    }
    findings
}

/// Pipeline ranks and schedule's chunks of a group.
fn depth(problem: &Problem, step: &Step, group: usize) -> (usize, usize) {
    match step.own_depth(group) {
        Some(depth) => (depth, 1),
        None => (problem.layout.pp as usize, problem.layout.chunks as usize),
    }
}

/// Whether every context rank is in one ring of a micro-batch at most.
fn one_ring(problem: &Problem, micro_batch: &MicroBatch) -> Option<String> {
    let mut rings: Vec<(u32, u32)> = micro_batch
        .sequences
        .iter()
        .filter_map(|placement| placement.place.ring(problem.layout.cp))
        .filter(|(_, count)| *count > 1)
        .collect();
    rings.sort_unstable();
    rings.dedup();
    let crossed = rings.windows(2).find(|pair| u64::from(pair[0].0) + u64::from(pair[0].1) > u64::from(pair[1].0))?;
    Some(format!("context rank {} is in two rings of a micro-batch", crossed[1].0))
}

/// Whether the parts of a sequence are the whole of it, each token once.
fn covers(id: usize, parts: &mut [(u64, u64)], length: u64) -> Option<String> {
    parts.sort_unstable();
    let mut next = 0;
    for &(from, tokens) in parts.iter() {
        if from != next || tokens == 0 {
            return Some(format!("sequence {id}: a part starts at token {from}, expected {next}; parts are {parts:?}"));
        }
        next = tokens.saturating_add(next);
    }
    (next != length).then(|| format!("sequence {id} has {length} tokens, the plan places {next}"))
}

/// Orders of a pipeline: one per data-parallel group, every pass exactly once, and playable.
fn orders(problem: &Problem, step_index: usize, step: &Step) -> Vec<String> {
    if step.orders.is_empty() && (0..step.groups.len()).all(|group| depth(problem, step, group).0 == 1) {
        return Vec::new();
    }
    if let Some(group) = (0..step.groups.len()).find(|&group| step.order(group).is_none()) {
        return vec![format!("step {step_index} has no order for group {group}")];
    }
    // Groups of one order are held against the longest of them.
    let of_order = |(index, order): (usize, &Order)| {
        let groups: Vec<usize> =
            (0..step.groups.len()).filter(|&group| step.order_of[group] as usize == index).collect();
        let longest = groups.iter().map(|&group| step.groups[group].len()).max()?;
        let (pp, chunks) = depth(problem, step, groups[0]);
        let n = order.iter().flatten().map(|slot| slot.micro_batch as usize + 1).max().unwrap_or(0);
        let pipeline = Pipeline::of_schedule(problem.schedule, pp, chunks, n);
        let what = format!("order {index} of step {step_index}");
        if n < longest || order.len() != pp {
            return Some(format!("{what} is for {n} micro-batches on {} ranks", order.len()));
        }
        if let Some(slots) = order.iter().find(|slots| slots.len() < n) {
            return Some(format!("{what} is for {n} micro-batches, and a rank has {} passes", slots.len()));
        }
        for (rank, slots) in order.iter().enumerate() {
            let forward_only = |mb: u32| {
                groups.iter().filter_map(|&group| step.groups[group].get(mb as usize)).any(|mb| mb.forward_only)
            };
            let in_order = groups.iter().find_map(|&group| parts_in_order(&step.groups[group], slots));
            if let Some(wrong) = passes(&pipeline, slots, &forward_only).or(in_order) {
                return Some(format!("{what}, rank {rank}: {wrong}"));
            }
        }
        play(&pipeline, order).err().map(|stuck| format!("{what} cannot be played: {:?} wait", stuck.waiting))
    };
    step.orders.iter().enumerate().filter_map(of_order).collect()
}

/// Whether the parts of every sequence run forward first to last, and backward last to first: a part reads the keys and values
/// of the parts before it, and gives them gradients.
fn parts_in_order(micro_batches: &[MicroBatch], slots: &[Slot]) -> Option<String> {
    let mut reached: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut left: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for slot in slots {
        let Some(micro_batch) = micro_batches.get(slot.micro_batch as usize) else { continue };
        for part in &micro_batch.sequences {
            let (begin, end) = (part.from, part.from.saturating_add(part.tokens));
            let key = (slot.chunk, part.sequence);
            let known = reached.entry(key).or_insert(0);
            let wrong = match slot.kind {
                PassKind::Forward => {
                    let early = begin > *known;
                    *known = end.max(*known);
                    early
                }
                PassKind::Backward | PassKind::Input => {
                    let before = left.insert(key, begin);
                    before.is_some_and(|before| before != end)
                }
                PassKind::Weight => false,
            };
            if wrong {
                let what = if slot.kind == PassKind::Forward { "forward" } else { "backward" };
                return Some(format!(
                    "{what} of tokens {begin} to {end} of sequence {} comes too early",
                    part.sequence
                ));
            }
        }
    }
    None
}

/// Whether a rank does every pass once: a forward, and either a whole backward or its two halves.
fn passes(pipeline: &Pipeline, slots: &[Slot], forward_only: &dyn Fn(u32) -> bool) -> Option<String> {
    let mut kinds: BTreeMap<(u32, u32), Vec<PassKind>> = BTreeMap::new();
    for slot in slots {
        kinds.entry((slot.chunk, slot.micro_batch)).or_default().push(slot.kind);
    }
    let expected: usize = (0..pipeline.n_chunks).map(|chunk| pipeline.micro_batches(chunk).count()).sum();
    if kinds.len() != expected {
        return Some(format!("passes of {} micro-batches and chunks, expected {expected}", kinds.len()));
    }
    kinds.into_iter().find_map(|((chunk, micro_batch), mut kinds)| {
        kinds.sort_unstable();
        let whole = kinds == [PassKind::Forward, PassKind::Backward];
        let halves = kinds == [PassKind::Forward, PassKind::Input, PassKind::Weight];
        let once = kinds == [PassKind::Forward] && forward_only(micro_batch);
        (!whole && !halves && !once).then(|| format!("chunk {chunk}, micro-batch {micro_batch} has passes {kinds:?}"))
    })
}
