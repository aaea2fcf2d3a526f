//! A table by columns, of numbers and of texts, as other programs take it: Parquet files, and frames of Python. Units stand in the names.

pub use packed::columns::{Cells, Column};

use crate::frame::Frame;
use crate::{Picture, RunResult};

/// A row for each policy: its status, why, and every metric.
pub fn of_results(run: &RunResult) -> Vec<Column> {
    let rows = || run.results.iter();
    let keys: std::collections::BTreeSet<&String> = rows().flat_map(|row| row.metrics.keys()).collect();
    let mut columns = vec![
        Column::texts("policy", rows().map(|row| Some(row.policy.as_str()))),
        Column::texts("status", rows().map(|row| Some(row.status.name()))),
        Column::texts("why", rows().map(|row| Some(row.why.as_str()))),
        Column::numbers("speedup_ratio", rows().map(|row| run.speedup_ratio.get(&row.policy).copied())),
    ];
    columns.extend(keys.into_iter().map(|key| Column::numbers(key, rows().map(|row| row.metrics.get(key).copied()))));
    columns
}

/// Frames of several policies below each other, with the policy in front.
pub fn of_frames(frames: &[(&str, Frame)]) -> Vec<Column> {
    let names = frames.first().map_or(&[][..], |(_, frame)| frame.columns);
    let rows = || frames.iter().flat_map(|(policy, frame)| frame.rows.iter().map(move |row| (*policy, row)));
    let mut columns = vec![Column::texts("policy", rows().map(|(policy, _)| Some(policy)))];
    let column = |(index, name): (usize, &&str)| Column::numbers(*name, rows().map(|(_, row)| row[index]));
    columns.extend(names.iter().enumerate().map(column));
    columns
}

/// A row for each task of the simulated steps: who does what, and when.
pub fn of_tasks(pictures: &[Picture<'_>]) -> Vec<Column> {
    let rows = || pictures.iter().flat_map(|picture| (0..picture.graph.tasks.len()).map(move |index| (picture, index)));
    let task = |(picture, index): (&Picture<'_>, usize)| picture.graph.tasks[index];
    let seconds = |time: hw::Time| Some((time - hw::Time::ZERO).to_seconds().get());
    let micro_batch = |n: u32| (n != u32::MAX).then(|| f64::from(n));
    vec![
        Column::texts("policy", rows().map(|(picture, _)| Some(picture.policy))),
        Column::numbers("step", rows().map(|(picture, _)| Some(crate::quantity::float_of(picture.step.unwrap_or(0))))),
        Column::numbers("rank", rows().map(|row| Some(f64::from(row.0.graph.lanes[task(row).lane.index()].rank.0)))),
        Column::texts("stream", rows().map(|row| Some(task(row).stream.name()))),
        Column::texts("role", rows().map(|row| Some(task(row).role.name()))),
        Column::texts("operation", rows().map(|row| Some(crate::trace::operation(row.0.graph, task(row).op)))),
        Column::numbers("micro_batch", rows().map(|row| micro_batch(task(row).micro_batch))),
        Column::numbers("start_s", rows().map(|(picture, index)| seconds(picture.timeline.start[index]))),
        Column::numbers("end_s", rows().map(|(picture, index)| seconds(picture.timeline.end[index]))),
    ]
}

/// A row for each change of memory of each rank in the simulated steps.
pub fn of_memory(pictures: &[Picture<'_>]) -> Vec<Column> {
    let mut rows: Vec<Mark<'_>> = Vec::new();
    for picture in pictures {
        for (lane, marks) in picture.timeline.memory.iter().enumerate() {
            rows.extend(of_marks(picture, lane, marks));
        }
    }
    vec![
        Column::texts("policy", rows.iter().map(|row| Some(row.0))),
        Column::numbers("step", rows.iter().map(|row| Some(row.1[0]))),
        Column::numbers("rank", rows.iter().map(|row| Some(row.1[1]))),
        Column::numbers("at_s", rows.iter().map(|row| Some(row.1[2]))),
        Column::numbers("memory_bytes", rows.iter().map(|row| Some(row.1[3]))),
    ]
}

/// Policy; step, rank, seconds and bytes.
type Mark<'a> = (&'a str, [f64; 4]);

fn of_marks<'a>(picture: &Picture<'a>, lane: usize, marks: &[engine::timeline::MemoryMark]) -> Vec<Mark<'a>> {
    let (step, rank) = (crate::quantity::float_of(picture.step.unwrap_or(0)), picture.graph.lanes[lane].rank.0);
    let seconds = |at: hw::Time| (at - hw::Time::ZERO).to_seconds().get();
    let row = |mark: &engine::timeline::MemoryMark| {
        (picture.policy, [step, f64::from(rank), seconds(mark.at), crate::quantity::float(mark.bytes)])
    };
    marks.iter().map(row).collect()
}
