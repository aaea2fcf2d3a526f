//! Which sequence goes to which micro-batch and rank: a line of JSON for every micro-batch of a plan, for a data loader of any framework.
//!
//! A line says step, data-parallel group, micro-batch, and its sequences in order: position in the data, first token, tokens, and the context ranks that
//! hold it. The first line says what the columns mean and what was predicted. Every policy's plan can be said. `docs/launch-scripts.md` has a reader.

use serde_json::{Value, json};
use train::plan::{MicroBatch, Place, Plan};

use crate::export::{ExportError, File, Planned, Target, Words, training};

const NAME: &str = "data-order";
/// Format of the file.
const SCHEMA: &str = "skrull-sim/data-order/1";

/// The target.
pub const TARGET: Target =
    Target::new(NAME, "an index of sequences by micro-batch and rank, JSON lines", SCHEMA, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let lengths = &problem.workload.lengths;
    let head = json!({
        "schema": SCHEMA,
        "policy": plan.policy,
        "sequences": lengths.len(),
        "data_parallel": problem.layout.dp,
        "context_parallel": problem.layout.cp,
        "remarks": words.lines(SCHEMA),
    });
    let lines: String = lines(plan, problem.layout.cp).iter().map(|line| format!("{line}\n")).collect();
    Ok(vec![File::new("order.jsonl", format!("{head}\n{lines}"))])
}

fn lines(plan: &Plan, cp: u32) -> Vec<Value> {
    let mut lines = Vec::new();
    for (step_index, step) in plan.steps.iter().enumerate() {
        for (group_index, group) in step.groups.iter().enumerate() {
            for (index, micro_batch) in group.iter().enumerate() {
                lines.push(json!({
                    "step": step_index,
                    "group": group_index,
                    "micro_batch": index,
                    "forward_only": micro_batch.forward_only,
                    "padding": micro_batch.padding,
                    "sequences": sequences(micro_batch, cp),
                }));
            }
        }
    }
    lines
}

/// `[sequence, first token, tokens, first context rank, context ranks]` of each.
fn sequences(micro_batch: &MicroBatch, cp: u32) -> Vec<Value> {
    let one = |placed: &train::plan::Placement| {
        let (first, count) = match placed.place {
            Place::Local(rank) => (rank, 1),
            Place::Sharded => (0, cp),
            Place::Ring { first, count } => (first, count),
        };
        json!([placed.sequence, placed.from, placed.tokens, first, count])
    };
    micro_batch.sequences.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use train::plan::{Placement, Step};

    #[test]
    fn every_micro_batch_is_a_line_with_its_sequences_and_their_ranks() {
        let placed = |sequence, from, tokens, place| Placement { sequence, from, tokens, place };
        let whole = MicroBatch { sequences: vec![placed(2, 0, 7, Place::Local(1))], ..MicroBatch::default() };
        let cut = MicroBatch {
            sequences: vec![placed(0, 0, 64, Place::Sharded), placed(1, 8, 8, Place::Ring { first: 2, count: 2 })],
            padding: 3,
            ..MicroBatch::default()
        };
        let plan = Plan {
            schema: String::new(),
            policy: "p".to_owned(),
            schedule: String::new(),
            layout: train::Layout::data_and_context(
                1,
                4,
                train::layout::Zero::Off,
                train::layout::ContextExchange::Ring,
            ),
            steps: vec![Step { groups: vec![vec![whole, cut]], ..Step::default() }],
            origin: None,
        };
        let found = lines(&plan, 4);
        assert_eq!(found[0]["sequences"], json!([[2, 0, 7, 1, 1]]));
        assert_eq!(found[1]["sequences"], json!([[0, 0, 64, 0, 4], [1, 8, 8, 2, 2]]));
        assert_eq!((&found[1]["micro_batch"], &found[1]["padding"]), (&json!(1), &json!(3)));
    }
}
