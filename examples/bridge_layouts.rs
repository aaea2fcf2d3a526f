//! For each model and card of Megatron Bridge's table: the published layout against the best one that the search finds, as Markdown.
//!
//! `cargo run --release --example bridge_layouts -- megatron_bridge.csv [--only MODEL]`. The last release of a model on a card counts. What the
//! recipe fixes besides the layout (format, graphs, overlaps, recompute) is that of its row.

use std::collections::BTreeMap;

use planner::train::policies;
use planner::train::policy::PlanContext;
use planner::train::search::space::{Candidate, Space};
use planner::train::search::{Effort, Found, Kept, search};
use rayon::prelude::*;
use score::training::play::{Predicted, predict};
use score::training::row::{Asked, Row, Run};
use score::training::{constants, tables};
use train::layout::Layout;
use train::problem::{AttentionKernel, Framework, Problem};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        println!("skipped: name the table, for example ../shared/data/truth/megatron_bridge.csv");
        return;
    };
    let only = arguments.nth(1);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: no table at {path}");
        return;
    };
    let rows = tables::read(&text, &|_| None).and_then(Result::ok).expect("a table of measured steps");
    println!(
        "| row | model | card | published | measured s | predicted s | GiB | found | predicted s | GiB | of the published |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let last = last(&rows);
    let takes = |row: &&&Row| only.as_ref().is_none_or(|only| row.label.model.contains(only.as_str()));
    last.values().filter(takes).for_each(|row| println!("{}", line(row)));
}

/// The last row of each model and card that is trained in full and has a prediction.
fn last(rows: &[Row]) -> BTreeMap<(&str, &str), &Row> {
    let mut last = BTreeMap::new();
    for row in rows {
        let is_whole = row.label.variant.contains("pretrain") && !row.label.variant.contains("tokendrop");
        if is_whole && matches!(row.asked, Ok(Asked::Layout(_))) {
            last.insert((row.label.model.as_str(), row.label.card.as_str()), row);
        }
    }
    last
}

/// A row of the table.
fn line(row: &Row) -> String {
    let Ok(Asked::Layout(run)) = &row.asked else { return String::new() };
    let label = &row.label;
    let head = format!("| {} | {} | {} {} |", label.row, label.model, label.card, label.format);
    let alone = Run { other: None, ..(**run).clone() };
    let published = predict(&Asked::from(alone), &costs);
    let measured = row.measured.step_s.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}"));
    let (words, taken) = (degrees(&run.problem.layout, u64::from(run.micro_batch)), highest_gib(&published));
    let here = format!("{head} {words} | {measured} | {:.3} | {taken:.0} |", published.step_s);
    match searched(run) {
        Err(why) => format!("{here} {why} | - | - | - |"),
        Ok(found) => format!("{here} {}", best(run, &published, &found)),
    }
}

/// The best layout with its step and its memory.
fn best(run: &Run, published: &Predicted, found: &Found) -> String {
    let candidate = found.best.plan.candidate;
    let alike = of_candidate(run, &candidate);
    let again = predict(&Asked::from(alike), &costs);
    let highest = highest_gib(&again);
    let there = run.problem.cluster.gpu.memory.as_f64() / hw::GIB;
    let words = degrees(&candidate.layout, candidate.micro_batch);
    let share = again.step_s / published.step_s;
    format!("{words} | {:.3} | {highest:.0} of {there:.0} | {share:.2} |", again.step_s)
}

/// The row with another layout.
fn of_candidate(run: &Run, candidate: &Candidate) -> Run {
    let problem = candidate.problem(&run.problem);
    let micro_batch = u32::try_from(candidate.micro_batch).expect("few sequences");
    let n_sequences = run.problem.layout.dp * run.n_micro_batches * run.micro_batch;
    let n_micro_batches = n_sequences / (problem.layout.dp * micro_batch);
    Run { problem, micro_batch, n_micro_batches, other: None, ..run.clone() }
}

/// Memory of the fullest rank.
fn highest_gib(predicted: &Predicted) -> f64 {
    predicted.memory.iter().flatten().copied().fold(0.0, f64::max) / hw::GIB
}

fn degrees(layout: &Layout, micro_batch: u64) -> String {
    let degrees = [
        ("tp", layout.tp),
        ("pp", layout.pp),
        ("vp", layout.chunks),
        ("cp", layout.cp),
        ("ep", layout.ep),
        ("dp", layout.dp),
    ];
    let shown = degrees.into_iter().filter(|(_, degree)| *degree > 1).map(|(name, degree)| format!("{name}{degree}"));
    shown.chain([format!("mbs{micro_batch}")]).collect::<Vec<_>>().join(" ")
}

/// The best layout of those that Megatron has: degrees, virtual stages and micro-batches, with the rest as the recipe has it.
fn searched(run: &Run) -> Result<Found, String> {
    let mut problem = run.problem.clone();
    let n_sequences = (problem.layout.dp * run.n_micro_batches * run.micro_batch) as usize;
    problem.workload.lengths = vec![run.tokens; n_sequences];
    problem.workload.batch_size = n_sequences;
    let space = space(&problem);
    let cost = costs(&problem.cluster, problem.execution.framework);
    let topology = hw::topology::Topology::of(&problem.cluster);
    let context = PlanContext { cost: cost.as_ref(), parameters: BTreeMap::new() };
    let policy = policies::named("megatron").expect("listed");
    // The step is sought, and nothing of days.
    let sought: (&Space, Kept<'_>) = (&space, &|_, _, _| Ok(0.0));
    let each = |n: usize, job: &(dyn Fn(usize) + Sync)| (0..n).into_par_iter().for_each(job);
    search(&problem, policy, &context, sought, &topology, (Effort::UntilProved, &each)).map_err(|why| why.to_string())
}

fn space(problem: &Problem) -> Space {
    let few = |list: &[u32], most: u32| list.iter().copied().filter(|n| *n <= most).collect();
    let whole = Space::of(problem);
    let named = |name| train::schedule::named(name).expect("listed");
    Space {
        tp: few(&whole.tp, 8),
        cp: vec![problem.layout.cp],
        pp: few(&whole.pp, 16),
        ep: few(&whole.ep, 64),
        chunks: vec![2, 4, 5],
        micro_batch: vec![1, 2, 4, 8],
        schedules: vec![named("1f1b"), named("interleaved")],
        zero: vec![problem.layout.zero],
        recompute: vec![problem.execution.recompute],
        offload: vec![problem.execution.offload],
        ..whole
    }
}

fn costs(cluster: &hw::Cluster, framework: Framework) -> Box<dyn engine::CostModel> {
    constants::costs(cluster, &calibrate::profiles::training(&cluster.gpu, framework, AttentionKernel::Flash))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3 8B on B200 and Qwen3 30B on GB200, both on eight GPUs.
    #[test]
    fn layouts_that_are_found_are_as_fast_as_published_ones() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/truth/megatron_bridge.csv");
        let Ok(text) = std::fs::read_to_string(path) else {
            println!("skipped: shared data absent ({path})");
            return;
        };
        let rows = tables::read(&text, &|_| None).and_then(Result::ok).expect("a table of measured steps");
        for number in ["162", "277"] {
            let row = rows.iter().find(|row| row.label.row == number).expect("a given row");
            let Ok(Asked::Layout(run)) = &row.asked else { panic!("row {number} has a layout") };
            let published = predict(&Asked::from(Run { other: None, ..(**run).clone() }), &costs);
            let candidate = searched(run).expect("a layout fits").best.plan.candidate;
            let found = predict(&Asked::from(of_candidate(run, &candidate)), &costs);
            let words = degrees(&candidate.layout, candidate.micro_batch);
            println!("row {number}: {words} takes {:.3} s, the published one {:.3} s", found.step_s, published.step_s);
            assert!(found.step_s <= 1.005 * published.step_s, "row {number}: {} {}", found.step_s, published.step_s);
            assert!(highest_gib(&found) * hw::GIB <= run.problem.cluster.gpu.memory.as_f64(), "row {number}");
        }
    }
}
