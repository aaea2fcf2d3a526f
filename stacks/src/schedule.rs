//! Pipeline schedules as the CSV that `torch.distributed.pipelining` loads: a line for each rank, an action for each pass.
//!
//! An action is stage, kind and micro-batch: `0F0` forward, `1I3` gradients of inputs, `1W3` of weights, `2B0` both. Stages count along the path.
//! The runtime adds the messages by itself. It keeps losses in the order in which the last stage computes them and finds them by the number of the
//! micro-batch, so micro-batches are numbered in that order; a remark says which of the plan's each is.

use std::ops::Range;

use train::Problem;
use train::plan::Plan;
use train::schedule::{Order, PassKind, Pipeline, Placement, Slot};

use crate::export::{ExportError, File, Planned, Target, Words, training};

const VERSION: &str = "PyTorch 2.15 (torch/distributed/pipelining/schedules.py)";

/// The target.
pub const TARGET: Target = Target::new(
    "pytorch-schedule",
    "the pipeline schedule as the CSV that torch.distributed.pipelining loads",
    VERSION,
    write,
);

pub(crate) fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, "pytorch-schedule")?;
    let refused =
        |what: &str| Err(ExportError::NotExpressible { target: "pytorch-schedule", what: vec![what.to_owned()] });
    let Some(step) = plan.steps.first() else { return refused("a plan without steps") };
    if step.orders.is_empty() {
        return refused("a plan without a pipeline");
    }
    if step.is_mixed() {
        return refused("pipelines of shapes of their own");
    }
    if problem.schedule.placement == Placement::Bidirectional {
        return refused("two copies of the model on every rank, as DualPipe has them");
    }
    if step.groups.iter().flatten().any(|micro_batch| micro_batch.forward_only) {
        return refused("micro-batches with a forward alone");
    }
    let Some(orders) = step.orders.iter().map(|order| of_flush(problem, order)).collect::<Option<Vec<Order>>>() else {
        return refused("flushes of a step that differ from each other");
    };
    let mut files: Vec<File> = orders
        .iter()
        .enumerate()
        .map(|(index, order)| {
            let name = if index == 0 { "schedule.csv".to_owned() } else { format!("schedule-{index}.csv") };
            File::new(&name, csv(problem, order))
        })
        .collect();
    files.push(File::new(&words.beside(VERSION).name, remarks(problem, plan, words)));
    Ok(files)
}

/// The order of one flush, which `step` of a schedule plays; `None` where flushes of an order differ.
fn of_flush(problem: &Problem, order: &Order) -> Option<Order> {
    let Some(every) = problem.flush_every().and_then(|every| u32::try_from(every).ok()) else {
        return Some(order.clone());
    };
    let n_most = order.iter().flatten().map(|slot| slot.micro_batch + 1).max().unwrap_or(0);
    let first = within(order, 0..every);
    (0..n_most).step_by(every as usize).all(|from| within(order, from..from + every) == first).then_some(first)
}

/// The passes of some micro-batches, which are numbered from 0.
fn within(order: &Order, micro_batches: Range<u32>) -> Order {
    let of_rank = |slots: &Vec<Slot>| {
        let own = slots.iter().filter(|slot| micro_batches.contains(&slot.micro_batch));
        own.map(|slot| Slot { micro_batch: slot.micro_batch - micro_batches.start, ..*slot }).collect()
    };
    order.iter().map(of_rank).collect()
}

/// A line for each rank.
pub fn csv(problem: &Problem, order: &Order) -> String {
    let (p, v) = (problem.layout.pp as usize, problem.layout.chunks as usize);
    let pipeline = Pipeline::of_schedule(problem.schedule, p, v, 1);
    let fed = fed(problem, order);
    let number = |micro_batch: u32| fed.iter().position(|one| *one == micro_batch).unwrap_or_default();
    let action = |rank: usize, slot: &Slot| {
        let kind = match slot.kind {
            PassKind::Forward => 'F',
            PassKind::Backward => 'B',
            PassKind::Input => 'I',
            PassKind::Weight => 'W',
        };
        format!("{}{kind}{}", pipeline.stage(rank, slot.chunk as usize), number(slot.micro_batch))
    };
    let line = |(rank, slots): (usize, &Vec<Slot>)| {
        let actions: Vec<String> = slots.iter().map(|slot| action(rank, slot)).collect();
        actions.join(",") + "\n"
    };
    order.iter().enumerate().map(line).collect()
}

/// Micro-batches of the plan in the order in which the last stage computes them.
pub fn fed(problem: &Problem, order: &Order) -> Vec<u32> {
    let (p, v) = (problem.layout.pp as usize, problem.layout.chunks as usize);
    let pipeline = Pipeline::of_schedule(problem.schedule, p, v, 1);
    let (rank, chunk) = pipeline.place(pipeline.n_stages() - 1, 0);
    let is_last = |slot: &&Slot| slot.kind == PassKind::Forward && slot.chunk as usize == chunk;
    order[rank].iter().filter(is_last).map(|slot| slot.micro_batch).collect()
}

/// What a CSV cannot say.
fn remarks(problem: &Problem, plan: &Plan, words: &Words) -> String {
    let mut lines = words.lines(VERSION);
    let layers: Vec<String> = train::stage::stages(problem).iter().map(|stage| stage.n_layers().to_string()).collect();
    lines.push(format!(
        "Schedule `{}`: {} ranks, layers of the stages along the path: {}.",
        plan.schedule,
        problem.layout.pp,
        layers.join(" ")
    ));
    let way = if problem.schedule.placement == Placement::V { "v" } else { "loop" };
    lines.push(format!("Stages lie on ranks as style `{way}` of generate_stage_to_rank_mapping."));
    let step = &plan.steps[0];
    for (index, order) in step.orders.iter().enumerate() {
        let fed: Vec<String> = fed(problem, order).iter().map(u32::to_string).collect();
        lines.push(format!("Order {index} takes the micro-batches of the plan as {}.", fed.join(" ")));
    }
    if let Some(every) = problem.flush_every() {
        lines.push(format!("Each step of the optimizer plays the file for every {every} micro-batches."));
    }
    if step.orders.len() > 1 {
        let of: Vec<String> = step.order_of.iter().map(u32::to_string).collect();
        lines.push(format!(
            "Data-parallel groups follow the orders {}; order 0 is schedule.csv, order N schedule-N.csv.",
            of.join(" ")
        ));
    }
    if plan.steps.len() > 1 {
        lines.push(format!("This is the first of {} steps.", plan.steps.len()));
    }
    lines.join("\n") + "\n"
}

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A word is no action.
    #[error("`{word}` of rank {rank} is no action")]
    Action { word: String, rank: usize },
    /// A rank has no actions, or another number of stages than the first.
    #[error("rank {rank} has not as many stages as the first")]
    Stages { rank: usize },
    /// Stages lie on ranks as no schedule has them.
    #[error("stages lie neither in a row, nor in a loop, nor in a V")]
    Placement,
}

/// An action of a rank: stage and kind.
struct Action {
    stage: usize,
    kind: u8,
}

/// The schedule that a CSV is nearest to, by its shape: how stages lie, whether backward is split, and how many micro-batches a rank holds.
///
/// Orders of one schedule differ with the times of passes, so its name stands for all of them.
///
/// # Errors
/// What is wrong with the text.
pub fn read(text: &str) -> Result<&'static str, ReadError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    let ranks: Vec<Vec<Action>> = lines.map(|(rank, line)| actions(rank, line)).collect::<Result<_, _>>()?;
    let p = ranks.len();
    let mut places = Vec::new();
    for (rank, actions) in ranks.iter().enumerate() {
        let mut stages: Vec<usize> = actions.iter().map(|action| action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        places.push(stages);
        if places[rank].is_empty() || places[rank].len() != places[0].len() {
            return Err(ReadError::Stages { rank });
        }
    }
    let Some(v) = places.first().map(Vec::len) else { return Err(ReadError::Stages { rank: 0 }) };
    let is_v = v == 2 && places.iter().enumerate().all(|(rank, stages)| *stages == [rank, 2 * p - 1 - rank]);
    let is_loop = (0..p).all(|rank| (0..v).all(|chunk| places[rank][chunk] == chunk * p + rank));
    let is_split = ranks.iter().flatten().any(|action| action.kind == b'I');
    let held = ranks.iter().map(|actions| most_held(actions)).max().unwrap_or(0);
    match (is_v && p > 1, is_loop) {
        // Each forward is of half a rank's layers (`train/src/schedule/v_half.rs`, `v_min.rs`: the most that they hold).
        (true, _) if held > (p + 2) / 2 * 2 => Ok("zb-v"),
        (true, _) if held > (p + 4) / 3 * 2 => Ok("v-half"),
        (true, _) => Ok("v-min"),
        (false, true) if v > 1 => Ok("interleaved"),
        (false, true) if is_split => Ok(if held > p { "zb-2p" } else { "zb-1p" }),
        (false, true) => Ok(if is_all_forward_first(&ranks) { "gpipe" } else { "1f1b" }),
        (false, false) => Err(ReadError::Placement),
    }
}

/// Actions of a line; those that move data, or gather and reduce parameters, are none of the order.
fn actions(rank: usize, line: &str) -> Result<Vec<Action>, ReadError> {
    const OTHERS: [&str; 6] = ["SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD"];
    let mut found = Vec::new();
    for word in line.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if OTHERS.iter().any(|other| word.contains(other)) || word.contains("REDUCE_GRAD") {
            continue;
        }
        let wrong = || ReadError::Action { word: word.chars().take(20).collect(), rank };
        let at = word.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
        let kind = word.as_bytes()[at];
        let is_known = b"FBIW".contains(&kind) && word[at + 1..].parse::<u32>().is_ok();
        let stage = word[..at].parse::<u16>().ok().filter(|_| is_known).ok_or_else(wrong)?;
        found.push(Action { stage: stage.into(), kind });
    }
    Ok(found)
}

/// Most forwards of a rank whose backward has not come yet.
fn most_held(actions: &[Action]) -> usize {
    let (mut held, mut most) = (0_usize, 0);
    for action in actions {
        match action.kind {
            b'F' => held += 1,
            b'B' | b'I' => held = held.saturating_sub(1),
            _ => {}
        }
        most = most.max(held);
    }
    most
}

/// Whether every rank ends its forwards before a backward; with one micro-batch for each rank or fewer the last rank tells.
fn is_all_forward_first(ranks: &[Vec<Action>]) -> bool {
    let is_first = |actions: &Vec<Action>| {
        let n = actions.iter().filter(|action| action.kind == b'F').count();
        n > 1 && actions[..n].iter().all(|action| action.kind == b'F')
    };
    ranks.iter().all(is_first)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::export::Words;
    use crate::targets::export;

    #[test]
    fn actions_of_an_order_are_those_that_pytorch_reads() {
        // Two ranks and two micro-batches by hand: the second one goes first, and the first rank runs ahead by one.
        let slot = |kind, micro_batch| Slot { kind, chunk: 0, micro_batch };
        let (f, i, w) = (PassKind::Forward, PassKind::Input, PassKind::Weight);
        let order = vec![
            vec![slot(f, 1), slot(f, 0), slot(i, 1), slot(w, 1), slot(i, 0), slot(w, 0)],
            vec![slot(f, 1), slot(i, 1), slot(w, 1), slot(f, 0), slot(i, 0), slot(w, 0)],
        ];
        let problem = problem();
        assert_eq!(fed(&problem, &order), [1, 0]);
        assert_eq!(csv(&problem, &order), "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
    }

    #[test]
    fn a_file_has_one_flush_where_all_are_alike() {
        let execution = train::problem::Execution { flush_every: Some(2), ..problem().execution };
        let schedule = train::schedule::named("1f1b").expect("listed");
        let problem = Problem { schedule, execution, ..problem() };
        let of = |m: usize, flush_every: Option<usize>| {
            let pipeline = Pipeline { flush_every, ..Pipeline::equal(2, schedule, m, [1, 1, 1]) };
            schedule.ordered(&pipeline)
        };
        assert_eq!(of_flush(&problem, &of(6, Some(2))), Some(of(2, None)));
        assert_eq!(of_flush(&problem, &of(5, Some(2))), None, "the last one has a micro-batch less");
    }

    use train::layout::{ContextExchange, Layout, Zero};

    pub(crate) fn problem() -> Problem {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let layout = Layout { pp: 2, ..Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Ring) };
        Problem {
            model: engine::model::embedded("llama-3m").expect("listed"),
            cluster: hw::catalog::cluster(&gpu, 1, 2),
            layout,
            schedule: train::schedule::named("zb-1p").expect("listed"),
            workload: train::Workload { lengths: vec![4, 4], batch_size: 2, source: String::new() },
            dtype: hw::Dtype::Bf16,
            execution: train::problem::Execution::default(),
            bucket_tokens: 4,
            reserved_memory: hw::Bytes::ZERO,
            seed: 0,
        }
    }

    /// Every schedule comes back from its file by its name, for equal passes and for passes of different lengths.
    #[test]
    fn a_schedule_is_known_by_its_file() {
        for name in ["gpipe", "1f1b", "interleaved", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min"] {
            let schedule = train::schedule::named(name).expect("listed");
            for (p, m, durations) in [(4, 8, [1, 1, 1]), (4, 16, [10, 12, 8]), (8, 24, [100, 130, 70])] {
                let layout = Layout { pp: p, chunks: schedule.n_chunks as u32, ..problem().layout };
                let problem = Problem { layout, schedule, ..problem() };
                let order = (schedule.order)(&Pipeline::equal(p as usize, schedule, m, durations));
                assert_eq!(read(&csv(&problem, &order)), Ok(name), "{p} ranks, {m} micro-batches");
            }
        }
        assert!(read("").is_err() && read("0X0\n").is_err() && read("0F0\n5F0\n").is_err());
    }

    #[test]
    fn a_plan_without_a_pipeline_is_refused() {
        let problem = problem();
        let plan = Plan::new("megatron", &problem, vec![train::plan::Step::default()]);
        let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
        let why = export(
            "pytorch-schedule",
            &Planned::Training { problem: &problem, plan: &plan, cost: &cost },
            &Words::default(),
        );
        assert!(matches!(why, Err(ExportError::NotExpressible { .. })));
    }
}
