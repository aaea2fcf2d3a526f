//! Parts of long sequences in a data-parallel group: what they ask of the order, and whose keys and values are held.
//!
//! A sequence in several micro-batches is a chain: forward goes up, backward goes down. A part that was computed before for its
//! keys and values alone comes again after the backward of the part behind it (ChunkFlow, arXiv:2503.02356, algorithm 2).

use std::collections::BTreeMap;

use super::Content;
use crate::plan::MicroBatch;
use crate::problem::Problem;
use crate::schedule::Chains;

/// Marks the contents of one group that are parts of a sequence.
pub(super) fn mark(problem: &Problem, group: &[MicroBatch], contents: &mut [Content]) {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    let mut seen: BTreeMap<(u32, u64), ()> = BTreeMap::new();
    let mut parts: BTreeMap<u32, BTreeMap<u64, u32>> = BTreeMap::new();
    for placement in group.iter().flat_map(|micro_batch| &micro_batch.sequences) {
        let parts = parts.entry(placement.sequence).or_default();
        let next = u32::try_from(parts.len()).expect("parts fit u32");
        parts.entry(placement.from).or_insert(next);
    }
    for (micro_batch, content) in group.iter().zip(contents) {
        for placement in &micro_batch.sequences {
            let whole = problem.workload.lengths[placement.sequence as usize];
            if placement.tokens == whole {
                continue;
            }
            let next = u32::try_from(numbers.len()).expect("sequences fit u32");
            let number = *numbers.entry(placement.sequence).or_insert(next);
            content.chain = Some((number, parts[&placement.sequence][&placement.from]));
            content.part_tokens += placement.tokens;
            match placement.from + placement.tokens == whole {
                true => content.earlier_tokens += placement.from,
                false => content.gradient_tokens += placement.tokens,
            }
            content.opens_state = seen.insert((placement.sequence, placement.from), ()).is_none();
        }
    }
}

/// Chains of a group's micro-batches, in their order; empty without parts.
pub(super) fn of(contents: &[Content]) -> Chains {
    if contents.iter().all(|content| content.chain.is_none()) {
        return Chains::default();
    }
    let index = |index: usize| u32::try_from(index).expect("micro-batches fit u32");
    let mut backward_order: Vec<u32> =
        (0..contents.len()).filter(|&mb| !contents[mb].forward_only).map(index).collect();
    // Places in the order that a chain has, filled from its last part to its first.
    let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (place, &mb) in backward_order.iter().enumerate() {
        if let Some((chain, _)) = contents[mb as usize].chain {
            places.entry(chain).or_default().push(place);
        }
    }
    let mut backward_of: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (&chain, places) in &places {
        let mut members: Vec<(u32, u32)> = places
            .iter()
            .map(|&place| (contents[backward_order[place] as usize].chain.expect("a member").1, backward_order[place]))
            .collect();
        members.sort_unstable_by(|a, b| b.cmp(a));
        for (&place, &(part, mb)) in places.iter().zip(&members) {
            backward_order[place] = mb;
            backward_of.insert((chain, part), mb);
        }
    }
    // A part that comes again waits for the backward of the part behind it.
    let mut made: BTreeMap<(u32, u32), ()> = BTreeMap::new();
    let forward_after = contents
        .iter()
        .map(|content| {
            let (chain, part) = content.chain?;
            made.insert((chain, part), ())?;
            backward_of.get(&(chain, part + 1)).copied()
        })
        .collect();
    Chains {
        forward_only: contents.iter().map(|content| content.forward_only).collect(),
        backward_order,
        forward_after,
    }
}
