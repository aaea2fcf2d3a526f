//! Claims of the paper about plans (its sections 3.3 to 3.5 and 5), on made-up tasks whose layers follow T(n) = a + w/n.

use engine::cost::fixed::Fixed;
use engine::play::Case;
use hw::{Bytes, Cluster};
use proptest::prelude::*;
use train::multi_task::curve::Curve;
use train::multi_task::play::{iteration_s, play};
use train::multi_task::schedule::{Schedule, check};
use train::multi_task::{Body, Call, Execution, MultiTask, Operator, Task, Work};

use super::bound::bound;
use super::contract::contract;
use super::optimum::{Job, optimum, two_sizes, whole_layers};
use super::place::Placement;
use super::{POLICIES, Policy, plan, spindle};

/// An encoder or head: layers, and milliseconds of one sample's layer.
type Kind = (&'static str, u32, f64);

/// Lengths and widths of ImageBind's encoders, as milliseconds per sample in the proportion of their work, and a contrastive head.
const KINDS: [Kind; 7] = [
    ("vision", 32, 0.050),
    ("text", 24, 0.010),
    ("audio", 12, 0.016),
    ("depth", 12, 0.004),
    ("thermal", 12, 0.014),
    ("imu", 6, 0.008),
    ("head", 1, 0.010),
];

/// Pairs of modalities; the first `n` are a set.
const PAIRS: [(&str, &str); 10] = [
    ("vision", "text"),
    ("audio", "text"),
    ("vision", "audio"),
    ("depth", "text"),
    ("thermal", "text"),
    ("imu", "text"),
    ("vision", "depth"),
    ("vision", "thermal"),
    ("audio", "imu"),
    ("vision", "imu"),
];

fn cluster(n_gpus: u32) -> Cluster {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    let per_node = if n_gpus.is_multiple_of(8) { 8 } else { n_gpus };
    hw::catalog::cluster(&gpu, n_gpus / per_node, per_node)
}

/// A call whose layer takes `law(n)` milliseconds.
fn call(task: usize, operator: usize, after: Vec<usize>, n_gpus: u32, law: impl Fn(f64) -> f64) -> Call {
    let times = (1..=n_gpus).map(|n| (n, law(f64::from(n)) / 1e3)).collect();
    let name = KINDS.get(operator).map_or("part", |kind| kind.0).to_owned();
    Call { task, operator, name, tokens: 64, output_tokens: 1, after, times }
}

fn operator(name: &str, n_layers: u32) -> Operator {
    let body = Body::Given;
    Operator { name: name.to_owned(), n_layers, hidden: 1024, body, parameters: 1_000_000, tensor_degrees: vec![1] }
}

fn work(training: MultiTask) -> Work {
    let meta_ops = contract(&training);
    Work::new(training, meta_ops, &Fixed::default(), Case::Expected).expect("every call can run")
}

fn training(operators: Vec<Operator>, tasks: Vec<Task>, calls: Vec<Call>, n_gpus: u32) -> MultiTask {
    let (cluster, reserved, execution) = (cluster(n_gpus), Bytes::ZERO, Execution::default());
    MultiTask { operators, tasks, calls, cluster, reserved, execution }
}

/// The first pairs with these batches on so many GPUs, each layer with `fixed_ms` that more GPUs do not shorten.
fn pairs(batches: &[u64], n_gpus: u32, fixed_ms: f64) -> Work {
    let of = |name: &str| KINDS.iter().position(|kind| kind.0 == name).expect("listed");
    let (mut tasks, mut calls) = (Vec::new(), Vec::new());
    for (task, (&(a, b), &batch)) in PAIRS.iter().zip(batches).enumerate() {
        tasks.push(Task { name: format!("{a}-{b}"), batch });
        for (kind, after) in [(of(a), vec![]), (of(b), vec![]), (6, vec![calls.len(), calls.len() + 1])] {
            let samples = f64::from(u32::try_from(batch).expect("small"));
            calls.push(call(task, kind, after, n_gpus, |n| fixed_ms + KINDS[kind].2 * samples / n));
        }
    }
    work(training(KINDS.map(|(name, n, _)| operator(name, n)).to_vec(), tasks, calls, n_gpus))
}

fn seconds(work: &Work, policy: Policy) -> f64 {
    let planned = plan(work, policy, Placement::Local, &|_| 0.0);
    check(work, &planned.plan).expect("every plan is a schedule");
    planned.objective().expect("seconds")
}

/// Waves fit the machine, have no `MetaOp` twice, and are at most twice as many as `MetaOps`.
fn waves_hold(work: &Work) {
    let slots = spindle::decide(work).slots;
    let n_waves = slots.last().map_or(0, |slot| slot.wave + 1) as usize;
    assert!(n_waves <= 2 * work.meta_ops.len(), "{n_waves} waves of {} MetaOps", work.meta_ops.len());
    for wave in 0..n_waves {
        let of_wave: Vec<_> = slots.iter().filter(|slot| slot.wave as usize == wave).collect();
        let devices: u32 = of_wave.iter().map(|slot| work.sizes[slot.meta_op][slot.size].n_devices).sum();
        let mut meta_ops: Vec<usize> = of_wave.iter().map(|slot| slot.meta_op).collect();
        meta_ops.sort_unstable();
        meta_ops.dedup();
        assert!(devices <= work.n_devices(), "wave {wave} takes {devices} devices");
        assert_eq!(meta_ops.len(), of_wave.len(), "wave {wave} has a MetaOp twice");
    }
}

/// Batches that powers of two divide, as training uses them.
const EVEN: [u64; 10] = [64, 128, 64, 64, 128, 64, 32, 32, 64, 64];

#[test]
fn plans_of_clip_like_sets_are_within_seven_percent_of_the_continuous_optimum() {
    for n_tasks in [4, 7, 10] {
        for n_gpus in [8, 16, 32] {
            let work = pairs(&EVEN[..n_tasks], n_gpus, 0.05);
            let over = seconds(&work, Policy::Spindle) / spindle::theory_s(&work);
            assert!((1.0..=1.07).contains(&over), "{n_tasks} tasks on {n_gpus} GPUs: {over}");
            waves_hold(&work);
        }
    }
}

#[test]
fn batches_that_divide_badly_cost_a_few_percent_more() {
    for n_gpus in [8, 16, 32] {
        let work = pairs(&[64, 96, 48, 64, 96, 64, 32, 32, 64, 48], n_gpus, 0.05);
        let over = seconds(&work, Policy::Spindle) / spindle::theory_s(&work);
        assert!((1.0..=1.1).contains(&over), "{n_gpus} GPUs: {over}");
        waves_hold(&work);
    }
}

#[test]
fn where_more_gpus_help_little_waves_win_and_one_after_another_loses() {
    for (n_tasks, n_gpus) in [(7, 16), (7, 32), (10, 32)] {
        let work = pairs(&EVEN[..n_tasks], n_gpus, 0.2);
        let [waves, in_turn, distmm, optimus] = POLICIES.map(|(_, policy, _)| seconds(&work, policy));
        assert!(waves < distmm && waves < optimus, "{n_tasks} on {n_gpus}: {waves} {distmm} {optimus}");
        assert!(distmm < in_turn && optimus < in_turn, "{n_tasks} on {n_gpus}: {distmm} {optimus} {in_turn}");
    }
}

#[test]
fn tasks_on_devices_of_their_own_are_sequences_when_they_are_played_too() {
    // More GPUs than tasks fill, as many, and more tasks than GPUs.
    for (n_tasks, n_gpus) in [(3, 64), (10, 40), (10, 32), (10, 8)] {
        let work = pairs(&EVEN[..n_tasks], n_gpus, 0.2);
        for placement in [Placement::Local, Placement::Consecutive, Placement::Random { seed: 3 }] {
            let planned = plan(&work, Policy::Optimus, placement, &|_| 0.0);
            check(&work, &planned.plan).expect("every plan is a schedule");
            let played = play(&work, &planned.plan, &Fixed::default()).expect("memory is enough");
            // Forward and backward of the longest task follow one another on one device.
            let planned_s = planned.objective().expect("seconds");
            assert!(played.computation_s >= planned_s * (1.0 - 1e-6), "{n_tasks} on {n_gpus}: {played:?} {planned_s}");
            let pieces = &planned.plan.pieces;
            for (a, b) in pieces.iter().flat_map(|a| pieces.iter().map(move |b| (a, b))) {
                if work.meta_ops[a.meta_op].task == work.meta_ops[b.meta_op].task {
                    assert_eq!(a.devices[0], b.devices[0], "{n_tasks} on {n_gpus}: parts of a task side by side");
                }
            }
        }
    }
}

/// Tasks with two branches and a part that joins them, all of 12 layers, whose times scale without loss.
fn linear(branches: &[[f64; 2]], n_gpus: u32) -> Work {
    let (mut tasks, mut calls) = (Vec::new(), Vec::new());
    let operators = vec![operator("a", 12), operator("b", 12), operator("c", 12)];
    for (task, of) in branches.iter().enumerate() {
        tasks.push(Task { name: format!("task {task}"), batch: 5040 });
        let first = calls.len();
        calls.push(call(task, 0, vec![], n_gpus, |n| of[0] / n));
        calls.push(call(task, 1, vec![], n_gpus, |n| of[1] / n));
        calls.push(call(task, 2, vec![first, first + 1], n_gpus, |n| 1.0 / n));
    }
    work(training(operators, tasks, calls, n_gpus))
}

#[test]
fn where_everything_scales_without_loss_all_ways_take_the_same_time() {
    // Four tasks whose branches have half of the work each: every split over 8 GPUs is in whole GPUs.
    let work = linear(&[[4.0, 4.0]; 4], 8);
    let expected = 4.0 * 12.0 * (4.0 + 4.0 + 1.0) / 8.0 / 1e3;
    for (name, policy, _) in POLICIES {
        let found = seconds(&work, policy);
        assert!((found - expected).abs() < 1e-9, "{name}: {found}, {expected}");
    }
    assert!((bound(&work).expect("solved").value - expected).abs() < 1e-7);
}

#[test]
fn one_dominant_branch_takes_the_edge_from_sharing_inside_a_task() {
    let set = |share: [f64; 2]| {
        let (mut tasks, mut calls) = (Vec::new(), Vec::new());
        for task in 0..4 {
            tasks.push(Task { name: format!("task {task}"), batch: 64 });
            for part in share {
                calls.push(call(task, calls.len() % 2, vec![], 16, |n| 0.5 * part + 8.0 * part / n));
            }
        }
        work(training(vec![operator("a", 12), operator("b", 12)], tasks, calls, 16))
    };
    let gain = |work: &Work| seconds(work, Policy::Sequential) / seconds(work, Policy::DistMm);
    let (balanced, dominated) = (gain(&set([1.0, 1.0])), gain(&set([1.95, 0.05])));
    assert!(balanced > 1.3, "{balanced}");
    assert!(dominated < 1.05, "{dominated}");
}

#[test]
fn the_papers_cut_of_twelve_layers_comes_out() {
    // Section 3.3: a share of 1.5 devices and 12 layers become 8.4 on two and 3.6 on one where their times add up.
    let curve = Curve::new(vec![(1, 10.0), (2, 6.0)]);
    let job = Job { n_layers: 12, curve: &curve };
    let seconds = 8.4 * 6.0 + 3.6 * 10.0;
    let cut = two_sizes(&job, 1.5, seconds);
    assert_eq!(cut.iter().map(|part| part.0).collect::<Vec<_>>(), [1, 0]);
    assert!((cut[0].1 - 8.4).abs() < 1e-9 && (cut[1].1 - 3.6).abs() < 1e-9, "{cut:?}");
    let whole: Vec<u32> = whole_layers(&job, 1.5, seconds).iter().map(|part| part.n_layers).collect();
    assert_eq!(whole, [8, 4]);
}

#[test]
fn layers_contract_until_something_branches_or_changes() {
    let times = |n: f64| 1.0 / n;
    let operators = vec![operator("a", 3), operator("b", 2)];
    let tasks = vec![Task { name: "one".to_owned(), batch: 4 }];
    // a → a (again) → b, and a second b beside the first; both b join in a.
    let mut calls: Vec<Call> = [(0, vec![]), (0, vec![0]), (1, vec![1]), (1, vec![1]), (0, vec![2, 3])]
        .map(|(operator, after)| call(0, operator, after, 2, times))
        .into();
    let found = contract(&training(operators.clone(), tasks.clone(), calls.clone(), 2));
    let shape = |found: &[train::multi_task::MetaOp]| -> Vec<(Vec<u32>, Vec<usize>, u32)> {
        found.iter().map(|of| (of.layers.clone(), of.preds.clone(), of.level)).collect()
    };
    assert_eq!(
        shape(&found),
        [
            (vec![0, 1, 2, 0, 1, 2], vec![], 0),
            (vec![0, 1], vec![0], 1),
            (vec![0, 1], vec![0], 1),
            (vec![0, 1, 2], vec![1, 2], 2),
        ]
    );
    // Another input size is another MetaOp.
    calls[1].tokens = 128;
    assert_eq!(contract(&training(operators, tasks, calls, 2)).len(), 5);
}

/// The shortest schedule of independent chains of layers by trying every order and size, each layer as early as it can.
fn brute_force(work: &Work) -> f64 {
    fn earliest(placed: &[(f64, f64, u32)], ready: f64, needed: u32, length: f64, n: u32) -> f64 {
        let mut starts: Vec<f64> = placed.iter().map(|at| at.1).filter(|end| *end > ready).chain([ready]).collect();
        starts.sort_by(f64::total_cmp);
        let fits = |start: f64| {
            let moments = placed.iter().map(|at| at.0).filter(|at| *at > start && *at < start + length).chain([start]);
            moments.into_iter().all(|at| {
                let busy: u32 = placed.iter().filter(|of| of.0 <= at + 1e-12 && of.1 > at + 1e-12).map(|of| of.2).sum();
                busy + needed <= n
            })
        };
        starts.into_iter().find(|&start| fits(start)).expect("behind everything there is room")
    }
    fn search(work: &Work, left: &mut [u32], ready: &mut [f64], placed: &mut Vec<(f64, f64, u32)>, best: &mut f64) {
        let end = placed.iter().map(|at| at.1).fold(0.0, f64::max);
        if end >= *best {
            return;
        }
        if left.iter().all(|left| *left == 0) {
            *best = end;
            return;
        }
        for at in 0..left.len() {
            if left[at] == 0 {
                continue;
            }
            for &(needed, length) in work.curves[at].points() {
                let before = ready[at];
                let start = earliest(placed, before, needed, length, work.n_devices());
                placed.push((start, start + length, needed));
                (left[at], ready[at]) = (left[at] - 1, start + length);
                search(work, left, ready, placed, best);
                (left[at], ready[at]) = (left[at] + 1, before);
                placed.pop();
            }
        }
    }
    let mut left: Vec<u32> = (0..work.meta_ops.len()).map(|at| work.n_layers(at)).collect();
    let (mut ready, mut best) = (vec![0.0; left.len()], f64::INFINITY);
    search(work, &mut left, &mut ready, &mut Vec::new(), &mut best);
    best
}

/// Independent tasks of one part each: layers, work and loss in milliseconds.
fn independent(parts: &[(u32, f64, f64)], n_gpus: u32) -> Work {
    let operators = parts.iter().enumerate().map(|(at, part)| operator(&format!("o{at}"), part.0)).collect();
    let tasks = (0..parts.len()).map(|at| Task { name: format!("t{at}"), batch: 12 }).collect();
    let calls =
        parts.iter().enumerate().map(|(at, part)| call(at, at, vec![], n_gpus, |n| part.2 + part.1 / n)).collect();
    work(training(operators, tasks, calls, n_gpus))
}

/// Tasks of a long part and a layer behind it, so that levels are of unlike lengths: layers, work, loss and the layer's work in milliseconds.
fn chains(parts: &[(u32, f64, f64, f64)], n_gpus: u32) -> Work {
    let (mut operators, mut calls) = (Vec::new(), Vec::new());
    for (task, &(n_layers, of_long, loss, of_last)) in parts.iter().enumerate() {
        operators.extend([operator(&format!("long {task}"), n_layers), operator(&format!("last {task}"), 1)]);
        calls.push(call(task, 2 * task, vec![], n_gpus, |n| loss + of_long / n));
        calls.push(call(task, 2 * task + 1, vec![2 * task], n_gpus, |n| loss + of_last / n));
    }
    let tasks = (0..parts.len()).map(|at| Task { name: format!("t{at}"), batch: 24 }).collect();
    work(training(operators, tasks, calls, n_gpus))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_plan_beats_the_best_schedule_and_that_not_the_bound(
        parts in prop::collection::vec((1_u32..3, 1.0_f64..8.0, 0.1_f64..3.0), 2..4), n_gpus in 2_u32..4,
    ) {
        let work = independent(&parts, n_gpus);
        let best = brute_force(&work);
        let bound = bound(&work).expect("solved").value;
        prop_assert!(bound <= best * (1.0 + 1e-6), "bound {bound}, best {best}");
        for (name, policy, _) in POLICIES {
            let found = seconds(&work, policy);
            prop_assert!(found >= best * (1.0 - 1e-9), "{name} {found}, best {best}");
        }
    }

    #[test]
    fn waves_are_left_where_another_plan_ends_sooner_when_it_is_played(
        parts in prop::collection::vec((1_u32..12, 1.0_f64..9.0, 0.1_f64..3.0, 0.5_f64..9.0), 2..5), n_gpus in 2_u32..9,
    ) {
        let work = chains(&parts, n_gpus);
        let played_s = |schedule: &Schedule| iteration_s(&work, schedule, &Fixed::default()).unwrap_or(f64::INFINITY);
        let [spindle, others @ ..] = POLICIES.map(|(_, policy, _)| played_s(&plan(&work, policy, Placement::Local, &played_s).plan));
        prop_assert!(others.iter().all(|&other| spindle <= other), "{spindle} {others:?}");
    }

    #[test]
    fn shares_of_the_continuous_optimum_add_up_and_end_together(
        parts in prop::collection::vec((1_u32..40, 1.0_f64..50.0, 0.01_f64..2.0), 1..12), n_gpus in 2_u32..33,
    ) {
        let work = independent(&parts, n_gpus);
        let jobs: Vec<Job<'_>> = (0..parts.len()).map(|at| Job { n_layers: work.n_layers(at), curve: &work.curves[at] }).collect();
        let found = optimum(&jobs, n_gpus);
        let total: f64 = found.devices.iter().sum();
        let is_full = (total / f64::from(n_gpus) - 1.0).abs() < 1e-6;
        let fastest = jobs.iter().map(|job| f64::from(job.n_layers) * job.curve.largest().1).fold(0.0, f64::max);
        prop_assert!(is_full || (found.seconds == fastest && total < f64::from(n_gpus)), "{total} of {n_gpus}");
        for (job, devices) in jobs.iter().zip(&found.devices) {
            let end = f64::from(job.n_layers) * job.curve.seconds(*devices);
            prop_assert!(end <= found.seconds * (1.0 + 1e-6));
        }
        // The linear program may mix whole sizes only, so it is not below the curve's optimum, and hardly above.
        let bound = bound(&work).expect("solved").value;
        prop_assert!(bound >= found.seconds * (1.0 - 1e-6), "bound {bound}, optimum {}", found.seconds);
        prop_assert!(bound <= found.seconds * 1.3, "bound {bound}, optimum {}", found.seconds);
    }
}

/// Tasks of a batch each, with two branches and a part that joins them: layers, work and loss of a branch in milliseconds.
fn joined(tasks: &[(u64, u32, f64, f64)], n_gpus: u32) -> Work {
    let (mut operators, mut calls) = (Vec::new(), Vec::new());
    for (task, &(_, n_layers, of_branch, loss)) in tasks.iter().enumerate() {
        let first = calls.len();
        operators.extend(["a", "b", "joins"].map(|name| operator(&format!("{name}{task}"), n_layers)));
        for (part, after) in [vec![], vec![], vec![first, first + 1]].into_iter().enumerate() {
            let of_part = of_branch * hw::real(part as u64 + 1);
            calls.push(call(task, first + part, after, n_gpus, |n| loss + of_part / n));
        }
    }
    let of_batch = |(task, of): (usize, &(u64, u32, f64, f64))| Task { name: format!("t{task}"), batch: of.0 };
    work(training(operators, tasks.iter().enumerate().map(of_batch).collect(), calls, n_gpus))
}

/// Seconds of such a task where every part has all devices that divide the batch, one after another.
fn over_all_devices_s(&(batch, n_layers, of_branch, loss): &(u64, u32, f64, f64), n_gpus: u32) -> f64 {
    let widest = (1..=u64::from(n_gpus)).rev().find(|n| batch.is_multiple_of(*n)).expect("1 divides");
    let of_part = |part: f64| f64::from(n_layers) * (loss + of_branch * part / hw::real(widest)) / 1e3;
    [1.0, 2.0, 3.0].map(of_part).iter().sum()
}

fn computed_s(work: &Work, policy: Policy, placement: Placement) -> f64 {
    let planned = plan(work, policy, placement, &|_| 0.0);
    check(work, &planned.plan).expect("every plan is a schedule");
    play(work, &planned.plan, &Fixed::default()).expect("memory is enough").computation_s
}

/// What Spindle's planner takes in the engine.
fn waves_s(work: &Work) -> f64 {
    let played_s = |schedule: &Schedule| iteration_s(work, schedule, &Fixed::default()).unwrap_or(f64::INFINITY);
    let planned = plan(work, Policy::Spindle, Placement::Local, &played_s);
    check(work, &planned.plan).expect("every plan is a schedule");
    played_s(&planned.plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn tasks_in_turn_take_the_sum_of_their_times_over_all_devices(
        tasks in prop::collection::vec((1_u64..9, 1_u32..5, 0.5_f64..9.0, 0.1_f64..2.0), 1..5), n_gpus in 1_u32..9,
    ) {
        let work = joined(&tasks, n_gpus);
        let expected: f64 = tasks.iter().map(|task| over_all_devices_s(task, n_gpus)).sum();
        for placement in [Placement::Local, Placement::Consecutive, Placement::Random { seed: 3 }] {
            let found = computed_s(&work, Policy::Sequential, placement);
            prop_assert!((found / expected - 1.0).abs() < 1e-5, "{placement:?}: {found} s, by hand {expected} s");
        }
        // Branches that share the devices end no later, and tasks follow one another all the same.
        let alone: f64 = tasks.iter().map(|task| computed_s(&joined(&[*task], n_gpus), Policy::DistMm, Placement::Local)).sum();
        let shared = computed_s(&work, Policy::DistMm, Placement::Local);
        prop_assert!((shared / alone - 1.0).abs() < 1e-5, "{shared} s, {alone} s one by one");
        prop_assert!(shared <= expected * (1.0 + 1e-5), "{shared} s, {expected} s in turn");
    }

    #[test]
    fn one_more_gpu_never_ends_later(
        parts in prop::collection::vec((1_u32..6, 1.0_f64..9.0, 0.1_f64..3.0, 0.5_f64..9.0), 2..4), n_gpus in 1_u32..6,
    ) {
        let [fewer, more] = [n_gpus, n_gpus + 1].map(|n| waves_s(&chains(&parts, n)));
        prop_assert!(more <= fewer * (1.0 + 1e-9), "{n_gpus} GPUs {fewer} s, one more {more} s");
    }

    #[test]
    fn the_plan_is_the_best_over_all_numbers_of_devices_that_it_may_use(
        parts in prop::collection::vec((1_u32..6, 1.0_f64..9.0, 0.1_f64..3.0, 0.5_f64..9.0), 2..4), n_gpus in 2_u32..6,
    ) {
        let work = chains(&parts, n_gpus);
        let played_s =
            |schedule: &Schedule| iteration_s(&work, schedule, &Fixed::default()).unwrap_or(f64::INFINITY);
        let every = (1..n_gpus).filter_map(|n| work.on_fewer(n)).chain([work.clone()]);
        let best = every.map(|of| super::soonest(&of, Policy::Spindle, Placement::Local, &played_s).played_s);
        let (best, found) = (best.fold(f64::INFINITY, f64::min), waves_s(&work));
        prop_assert!((found / best - 1.0).abs() < 1e-9, "{found} s, tried one by one {best} s");
    }
}

/// As above on larger machines, as far as every number of GPUs is tried.
#[test]
fn one_more_of_up_to_32_gpus_never_ends_later() {
    let parts = [(5, 8.0, 0.2, 3.0), (3, 2.0, 1.0, 7.0), (4, 5.0, 0.1, 0.5)];
    for n_gpus in [16, 23, 31] {
        let [fewer, more] = [n_gpus, n_gpus + 1].map(|n| waves_s(&chains(&parts, n)));
        assert!(more <= fewer * (1.0 + 1e-9), "{n_gpus} GPUs {fewer} s, one more {more} s");
    }
}

#[test]
fn near_devices_move_less_than_any_devices() {
    let work = pairs(&EVEN, 32, 0.05);
    let bytes = |placement| {
        let schedule = plan(&work, Policy::Spindle, placement, &|_| 0.0).plan;
        let flows = train::multi_task::flow::flows(&work, &schedule);
        let travels = |flow: &train::multi_task::flow::Flow| {
            let devices = |at: usize| &schedule.pieces[at].devices[..];
            let (from, to) = (devices(flow.from), devices(flow.to));
            let parts = train::multi_task::flow::messages(flow.bytes, from.len(), to.len());
            parts.iter().filter(|part| from[part.from] != to[part.to]).map(|part| part.bytes).sum::<u64>()
        };
        flows.iter().map(travels).sum::<u64>()
    };
    let [local, consecutive, random] =
        [Placement::Local, Placement::Consecutive, Placement::Random { seed: 1 }].map(bytes);
    assert!(local < consecutive && consecutive < random, "{local} {consecutive} {random}");
}
