//! Claims about the checker and the played iteration: hand arithmetic on measured times.

use hw::{Bytes, Rank, Seconds};

use super::lower::{Extent, lower, memory_bytes};
use super::play::play;
use super::schedule::{Piece, Schedule, Turns, check};
use super::*;
use engine::cost::fixed::Fixed;
use engine::play::Case;
use engine::task::{Op, Role};

/// Everything but layers takes no time.
const COST: Fixed = Fixed { default: Seconds::ZERO, table: Vec::new() };
const PARAMETERS: u64 = 1000;

fn operator(name: &str, n_layers: u32) -> Operator {
    let body = Body::Given;
    Operator { name: name.to_owned(), n_layers, hidden: 8, body, parameters: PARAMETERS, tensor_degrees: vec![1] }
}

/// A layer takes 3 ms on one device and 2 ms on two.
fn call(task: usize, operator: usize, after: Vec<usize>) -> Call {
    let name = format!("{task}-{operator}");
    Call { task, operator, name, tokens: 10, output_tokens: 1, after, times: vec![(1, 3e-3), (2, 2e-3)] }
}

fn meta_op(task: usize, call: usize, n_layers: u32, preds: Vec<usize>, level: u32) -> MetaOp {
    let name = format!("meta-{call}");
    MetaOp { name, task, call, last_call: call, layers: (0..n_layers).collect(), preds, level }
}

fn work(operators: Vec<Operator>, calls: Vec<Call>, meta_ops: Vec<MetaOp>) -> Work {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    let tasks = vec![Task { name: "one".to_owned(), batch: 4 }, Task { name: "two".to_owned(), batch: 4 }];
    let (cluster, reserved) = (hw::catalog::cluster(&gpu, 1, 2), Bytes::ZERO);
    let training = MultiTask { operators, tasks, calls, cluster, reserved, execution: Execution::default() };
    Work::new(training, meta_ops, &COST, Case::Expected).expect("every call can run")
}

/// A chain of two operators: four layers, then two.
fn chain() -> Work {
    let calls = vec![call(0, 0, vec![]), call(0, 1, vec![0])];
    let meta_ops = vec![meta_op(0, 0, 4, vec![], 0), meta_op(0, 1, 2, vec![0], 1)];
    work(vec![operator("a", 4), operator("b", 2)], calls, meta_ops)
}

fn piece(meta_op: usize, (first, n_layers): (u32, u32), start_ms: f64, devices: &[u32]) -> Piece {
    let devices: Vec<Rank> = devices.iter().map(|&rank| Rank(rank)).collect();
    Piece { meta_op, first, n_layers, size: devices.len() - 1, wave: 0, start_s: start_ms / 1e3, devices }
}

/// Pieces that take no turns.
fn schedule(pieces: Vec<Piece>) -> Schedule {
    Schedule { pieces, turns: Turns::Off }
}

/// The first two layers on both devices, the rest on the first, the second operator on the second.
fn plan() -> Schedule {
    schedule(vec![piece(0, (0, 2), 0.0, &[0, 1]), piece(0, (2, 2), 4.0, &[0]), piece(1, (0, 2), 10.0, &[1])])
}

#[test]
fn a_schedule_that_keeps_every_rule_is_accepted_and_each_broken_rule_is_named() {
    let work = chain();
    assert_eq!(check(&work, &plan()), Ok(()));
    assert!((plan().seconds(&work) - 16e-3).abs() < 1e-12, "4 + 6 + 6 ms");
    let broken = |change: &dyn Fn(&mut Schedule), words: &str| {
        let mut schedule = plan();
        change(&mut schedule);
        let why = check(&work, &schedule).expect_err(words).to_string();
        assert!(why.contains(words), "{why}");
    };
    broken(&|schedule| schedule.pieces[1].start_s = 3e-3, "before what it needs");
    broken(&|schedule| schedule.pieces[2].start_s = 9e-3, "before what it needs");
    broken(&|schedule| schedule.pieces[1].first = 3, "2 layers were done before");
    broken(&|schedule| schedule.pieces[0].devices[1] = Rank(0), "not 2 devices");
    broken(&|schedule| schedule.pieces[1].devices[0] = Rank(2), "not 1 devices");
    broken(&|schedule| schedule.pieces[2].n_layers = 1, "layers that nobody runs");
    let two = work_of_two_tasks();
    let at_once = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 1.0, &[0])]);
    assert!(check(&two, &at_once).expect_err("one device").to_string().contains("device 0 is busy"));
}

/// Two tasks with one layer of the same operator.
fn work_of_two_tasks() -> Work {
    let calls = vec![call(0, 0, vec![]), call(1, 0, vec![])];
    work(vec![operator("a", 1)], calls, vec![meta_op(0, 0, 1, vec![], 0), meta_op(1, 1, 1, vec![], 0)])
}

#[test]
fn a_task_out_of_its_turn_is_named() {
    let two = work_of_two_tasks();
    let side_by_side = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 0.0, &[1])]);
    assert_eq!(check(&two, &side_by_side), Ok(()));
    for turns in [Turns::Tasks, Turns::Pieces] {
        let why = check(&two, &Schedule { turns, ..side_by_side.clone() }).expect_err("both at once").to_string();
        assert!(why.contains("out of turn"), "{why}");
    }
    // Pieces of one task may run side by side in its turn, unless pieces take turns.
    let mut one = work_of_two_tasks();
    one.meta_ops[1].task = 0;
    assert_eq!(check(&one, &Schedule { turns: Turns::Tasks, ..side_by_side.clone() }), Ok(()));
    assert!(check(&one, &Schedule { turns: Turns::Pieces, ..side_by_side }).is_err());
    // A task has one turn.
    let calls = vec![call(0, 0, vec![]), call(1, 0, vec![])];
    let layers = work(vec![operator("a", 2)], calls, vec![meta_op(0, 0, 2, vec![], 0), meta_op(1, 1, 2, vec![], 0)]);
    let pieces = vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 2), 3.0, &[0]), piece(0, (1, 1), 9.0, &[0])];
    assert!(check(&layers, &Schedule { pieces, turns: Turns::Tasks }).is_err());
}

#[test]
fn turns_follow_one_another_on_whichever_devices_and_hold_the_activations_of_one() {
    let work = work_of_two_tasks();
    let apart = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 3.0, &[1])]);
    // A layer takes 3 ms forward and backward, on devices that nobody else uses.
    let computation_s = |turns| {
        let schedule = Schedule { turns, ..apart.clone() };
        play(&work, &schedule, &COST).expect("fits").computation_s
    };
    for (turns, expected_s) in [(Turns::Off, 3e-3), (Turns::Tasks, 6e-3), (Turns::Pieces, 6e-3)] {
        assert!((computation_s(turns) - expected_s).abs() < 1e-9, "{turns:?}: {}", computation_s(turns));
    }
    // Gradients are reduced and stepped with for 2 ms behind the last backward of all.
    let slow = Fixed { default: Seconds::new(1e-3), table: Vec::new() };
    let on_both = schedule(vec![piece(0, (0, 1), 0.0, &[0, 1]), piece(1, (0, 1), 2.0, &[0, 1])]);
    for turns in [Turns::Off, Turns::Tasks, Turns::Pieces] {
        let played = play(&work, &Schedule { turns, ..on_both.clone() }, &slow).expect("fits");
        assert!((played.sync_s - 2e-3).abs() < 1e-9, "{turns:?}: {}", played.sync_s);
    }
    // 16 bytes of each parameter, and the input of one layer or of both (640 bytes each).
    let together = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 3.0, &[0])]);
    for (turns, n_held) in [(Turns::Off, 2), (Turns::Tasks, 1)] {
        let schedule = Schedule { turns, ..together.clone() };
        assert_eq!(memory_bytes(&work, &schedule), [16 * PARAMETERS + n_held * 640, 0]);
        let played = play(&work, &schedule, &COST).expect("fits");
        assert_eq!(played.peak_memory, Bytes(16 * PARAMETERS + n_held * 640));
    }
}

#[test]
fn an_iteration_goes_through_the_pieces_and_back() {
    let work = chain();
    let slow = Fixed { default: Seconds::new(1e-3), table: Vec::new() };
    let played = play(&work, &plan(), &slow).expect("fits");
    // Forward and backward of the pieces one after another: 4 + 6 + 6 ms.
    assert!((played.computation_s - 16e-3).abs() < 1e-9, "{}", played.computation_s);
    // Device 1 sends its half to device 0, which sends the output to device 1; gradients go back: four messages of 1 ms.
    assert!((played.messages_s - 4e-3).abs() < 1e-9, "{}", played.messages_s);
    // Both devices hold layers 0 and 1: they reduce those for 1 ms, then both optimizers take 1 ms.
    assert!((played.sync_s - 2e-3).abs() < 1e-9, "{}", played.sync_s);
    // Half of 4 samples × 10 tokens × 8 × 2 bytes inside, 4 × 1 × 8 × 2 bytes at the end, both ways.
    assert_eq!(played.message_bytes, 2 * (320 + 64));
    // Device seconds: both for 4 ms, one for 6 and the other for 6.
    assert!((played.busy_ratio - 20.0 / (2.0 * 22.0)).abs() < 1e-9, "{}", played.busy_ratio);
}

#[test]
fn tasks_on_different_devices_reduce_the_gradients_of_what_they_share() {
    let work = work_of_two_tasks();
    let apart = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 0.0, &[1])]);
    let graph = lower(&work, &apart, Extent::Iteration);
    let reductions: Vec<&Op> = graph
        .tasks
        .iter()
        .filter(|task| task.role == Role::GradientSync)
        .map(|task| &graph.ops[task.op.0 as usize])
        .collect();
    assert_eq!(reductions.len(), 2, "one reduction with two members");
    assert!(matches!(reductions[0], Op::Collective { bytes, .. } if *bytes == PARAMETERS * ELEMENT));
    let together = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 3.0, &[0])]);
    let graph = lower(&work, &together, Extent::Iteration);
    assert!(graph.tasks.iter().all(|task| task.role != Role::GradientSync), "one device holds the layer once");
    // 16 bytes per parameter, once; the input of the layer (4 samples × 10 tokens × 8 × 2 bytes) for each task.
    assert_eq!(memory_bytes(&work, &together), [16 * PARAMETERS + 2 * 640, 0]);
    let played = play(&work, &together, &COST).expect("fits");
    assert_eq!(played.peak_memory, Bytes(16 * PARAMETERS + 2 * 640));
}

#[test]
fn sharded_optimizer_states_are_cut_over_those_who_share() {
    let mut work = work_of_two_tasks();
    work.training.execution.shards_optimizer = true;
    let apart = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 0.0, &[1])]);
    assert_eq!(memory_bytes(&work, &apart), [(4 + 6) * PARAMETERS + 640; 2]);
}

#[test]
fn too_little_memory_is_a_reason_and_not_a_plan() {
    let mut work = work_of_two_tasks();
    work.training.reserved = Bytes(work.training.cluster.gpu.memory.0 - 16 * PARAMETERS);
    let together = schedule(vec![piece(0, (0, 1), 0.0, &[0]), piece(1, (0, 1), 3.0, &[0])]);
    let why = play(&work, &together, &COST).expect_err("no room for activations").why;
    assert!(why.contains("device 0 has no room for activations"), "{why}");
}
