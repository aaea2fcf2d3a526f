//! Which sequence goes to which micro-batch and rank: a line of JSON for every micro-batch of a plan, for a data loader of any framework. The same as a table
//! in Parquet has a row for every part of a sequence.
//!
//! A line says step, data-parallel group, micro-batch, and its sequences in order: position in the data, first token, tokens, and the context ranks that
//! hold it. The first line says what the columns mean and what was predicted. Every policy's plan can be said. `docs/launch-scripts.md` has a reader.

use packed::columnar;
use packed::columns::Column;
use serde_json::{Value, json};
use train::plan::{MicroBatch, Place, Placement, Plan};

use crate::export::{ExportError, File, Planned, Target, Words, training};

const NAME: &str = "data-order";
/// Format of the file.
const SCHEMA: &str = "skrull-sim/data-order/1";

/// The target.
pub const TARGET: Target =
    Target::new(NAME, "an index of sequences by micro-batch and rank, JSON lines and Parquet", SCHEMA, write);

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
    let table = columnar::render(&columns(plan, problem.layout.cp));
    Ok(vec![File::new("order.jsonl", format!("{head}\n{lines}")), File::new("order.parquet", table)])
}

/// Columns of the table, in their order.
const COLUMNS: [&str; 9] = [
    "step",
    "group",
    "micro_batch",
    "position",
    "sequence",
    "first_token",
    "tokens",
    "first_context_rank",
    "context_ranks",
];

/// A row for every part of a sequence, in the order of the lines.
fn columns(plan: &Plan, cp: u32) -> Vec<Column> {
    let mut rows: Vec<[u64; 9]> = Vec::new();
    for ([step, group, index], micro_batch) in micro_batches(plan) {
        for (position, placed) in (0..).zip(&micro_batch.sequences) {
            let [sequence, from, tokens, first, count] = part(placed, cp);
            rows.push([step, group, index, position, sequence, from, tokens, first, count]);
        }
    }
    let column = |(at, name): (usize, &str)| Column::numbers(name, rows.iter().map(|row| Some(hw::real(row[at]))));
    COLUMNS.into_iter().enumerate().map(column).collect()
}

fn lines(plan: &Plan, cp: u32) -> Vec<Value> {
    let line = |([step, group, index], micro_batch): ([u64; 3], &MicroBatch)| {
        json!({
            "step": step,
            "group": group,
            "micro_batch": index,
            "forward_only": micro_batch.forward_only,
            "barrier": micro_batch.barrier,
            "padding": micro_batch.padding,
            "sequences": sequences(micro_batch, cp),
        })
    };
    micro_batches(plan).into_iter().map(line).collect()
}

/// Micro-batches in their order, each with its step, its group and its number there.
fn micro_batches(plan: &Plan) -> Vec<([u64; 3], &MicroBatch)> {
    let mut all = Vec::new();
    for (step_index, step) in (0..).zip(&plan.steps) {
        for (group_index, group) in (0..).zip(&step.groups) {
            all.extend((0..).zip(group).map(|(index, micro_batch)| ([step_index, group_index, index], micro_batch)));
        }
    }
    all
}

/// Parts of sequences in a micro-batch.
fn sequences(micro_batch: &MicroBatch, cp: u32) -> Vec<Value> {
    micro_batch.sequences.iter().map(|placed| json!(part(placed, cp))).collect()
}

/// `[sequence, first token, tokens, first context rank, context ranks]`.
fn part(placed: &Placement, cp: u32) -> [u64; 5] {
    let (first, count) = match placed.place {
        Place::Local(rank) => (rank, 1),
        Place::Sharded => (0, cp),
        Place::Ring { first, count } => (first, count),
    };
    [u64::from(placed.sequence), placed.from, placed.tokens, u64::from(first), u64::from(count)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use packed::columns::Cells;
    use train::plan::Step;

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
            searched: None,
            steps: vec![Step { groups: vec![vec![whole, cut]], ..Step::default() }],
            origin: None,
        };
        let found = lines(&plan, 4);
        assert_eq!(found[0]["sequences"], json!([[2, 0, 7, 1, 1]]));
        assert_eq!(found[1]["sequences"], json!([[0, 0, 64, 0, 4], [1, 8, 8, 2, 2]]));
        assert_eq!((&found[1]["micro_batch"], &found[1]["padding"]), (&json!(1), &json!(3)));
        // The table has the same parts: three rows, of two micro-batches.
        let table: Vec<(String, Cells)> =
            columns(&plan, 4).into_iter().map(|column| (column.name, column.cells)).collect();
        let cells = |name: &str| table.iter().find(|(known, _)| known == name).expect("a column").1.clone();
        let numbers = |cells: [u32; 3]| Cells::Numbers(cells.map(|cell| Some(f64::from(cell))).to_vec());
        assert_eq!(cells("micro_batch"), numbers([0, 1, 1]));
        assert_eq!(cells("sequence"), numbers([2, 0, 1]));
        assert_eq!(cells("first_context_rank"), numbers([1, 0, 2]));
        assert_eq!(cells("context_ranks"), numbers([1, 4, 2]));
    }
}
