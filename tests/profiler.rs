//! `validate --measured` of a training step: a trace that says what was predicted agrees with it, and one that does not names the term.

use std::io::{BufRead, BufReader, Write};

use engine::cost::calibrated::Calibrated;
use engine::cost::kernel_kind::KernelKind;
use engine::task::{LaneId, Stream};
use engine::validation::elementary;
use engine::{CostModel, Op, TaskGraph, Timeline};
use flate2::Compression;
use flate2::write::GzEncoder;
use scenario::training::Scenario;
use score::profiler::compare::{self, Compared, Predicted};
use score::profiler::step::measured;
use score::profiler::term::Term;
use score::profiler::{self, read, text};
use serde_json::{Value, json};
use skrull_sim::hardware::{self, PlannedStep};

/// A kernel of a stream's lane.
fn kernel(stream: Stream) -> (&'static str, &'static str) {
    match stream {
        Stream::Compute => ("kernel", "nvjet_tst_128x256"),
        Stream::HostToDevice | Stream::DeviceToHost => ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
        _ => ("kernel", "ncclDevKernel_AllReduce_Sum_bf16"),
    }
}

/// A trace of one lane as it was predicted, `slower` times slower.
fn trace(graph: &TaskGraph, timeline: &Timeline, lane: LaneId, slower: f64) -> String {
    let of_lane = graph.tasks.iter().enumerate().filter(|(_, task)| task.lane == lane);
    let event = |(id, task): (usize, &engine::task::Task)| {
        let [start, end] = [timeline.start[id], timeline.end[id]].map(|at| hw::real(at.as_ns()) / 1e3 * slower);
        let (category, name) = kernel(task.stream);
        json!({ "ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "args": { "device": 0, "stream": task.stream.index() } })
    };
    json!({ "distributedInfo": { "rank": graph.lanes[lane.index()].rank.0 }, "traceEvents": of_lane.map(event).collect::<Vec<Value>>() }).to_string()
}

/// A shipped scenario.
fn shipped(name: &str) -> Scenario {
    let text = scenario::EMBEDDED.iter().find(|(known, _)| *known == name).expect("shipped").1;
    let source = input::diagnostic::Source { path: name.to_owned(), text: text.to_owned() };
    let checked = skrull_sim::kinds::check(source, std::path::Path::new(""), &scenario::Overrides::default());
    checked.scenario.and_then(|kind| kind.training().cloned()).expect("a training scenario")
}

/// A name that a profiler prints for a kernel of a term.
fn name_of(term: Term) -> &'static str {
    match term {
        Term::Product => "nvjet_tst_128x256",
        Term::AttentionForward => "flash_fwd_kernel",
        Term::AttentionBackward => "flash_bwd_kernel",
        Term::Embedding => "indexSelectLargeIndex",
        Term::Optimizer => "multi_tensor_apply_kernel<FusedAdam>",
        Term::AllReduce => "ncclDevKernel_AllReduce_Sum_bf16",
        Term::AllGather => "ncclDevKernel_AllGather_RING_LL",
        Term::ReduceScatter => "ncclDevKernel_ReduceScatter_Sum_bf16",
        Term::Message => "ncclDevKernel_SendRecv",
        _ => "vectorized_elementwise_kernel",
    }
}

/// A trace of rank 0 as it was predicted, a kernel for every operation of a task, each `slower` times slower by its term.
fn trace_by_term(
    planned: &PlannedStep,
    timeline: &Timeline,
    cost: &dyn CostModel,
    slower: &dyn Fn(Term) -> f64,
) -> String {
    let graph = &planned.graph;
    let mut events = Vec::new();
    for (id, task) in graph.tasks.iter().enumerate().filter(|(_, task)| task.lane == LaneId(0)) {
        let [start, end] = [timeline.start[id], timeline.end[id]].map(|at| hw::real(at.as_ns()) / 1e3);
        let parts = elementary(&graph.ops[task.op.0 as usize]);
        let times: Vec<f64> = parts.iter().map(|(op, n)| cost.estimate(op).time.get() * f64::from(*n)).collect();
        let mut at = start;
        for ((op, _), time) in parts.iter().zip(&times) {
            let term = Term::of_op(op, task.role);
            let took = time / times.iter().sum::<f64>() * (end - start) * slower(term);
            events.push(json!({ "ph": "X", "cat": "kernel", "name": name_of(term), "ts": at, "dur": took, "args": { "device": 0 } }));
            at += took;
        }
    }
    json!({ "distributedInfo": { "rank": 0 }, "traceEvents": events }).to_string()
}

/// How much slower a term is recorded than it was predicted.
fn slower(term: Term) -> f64 {
    match term {
        Term::Product => 1.25,
        Term::AttentionBackward => 0.8,
        Term::AllReduce | Term::AllGather => 1.5,
        Term::ReduceScatter => 0.5,
        _ => 1.0,
    }
}

#[test]
fn factors_of_a_recorded_step_are_what_its_kernels_are_slower_by() {
    let scenario = shipped("quickstart");
    let profile = scenario.profile.clone().expect("a measured card");
    let cost = scenario.costs();
    let (_, planned) = hardware::plans(&scenario, cost.as_ref()).remove(0);
    let planned = planned.map_err(|why| why.why).expect("a plan");
    let (timeline, ends) = hardware::predict(&planned, cost.as_ref()).map_err(|why| why.why).expect("a step");
    let text = trace_by_term(&planned, &timeline, cost.as_ref(), &slower);
    let found = measured(read(text.as_bytes()).expect("a trace")).expect("a step");
    let asked = (&planned.problem, &planned.graph);
    let found = profiler::compared(found, asked, (&timeline, ends), cost.as_ref());
    let factors = profiler::refit::factors(&[("a".to_owned(), found.clone())]);
    let chosen = |kind: KernelKind| factors.kernels.get(&kind).copied();
    let near = |kind, factor: f64| {
        assert!((chosen(kind).expect("recorded") / factor - 1.0).abs() < 1e-3, "{kind:?}: {factors:?}")
    };
    near(KernelKind::Product, 1.25);
    near(KernelKind::AttentionForward, 1.0);
    near(KernelKind::AttentionBackward, 0.8);
    near(KernelKind::ReduceScatter, 0.5);
    // One rank alone cannot tell a slow exchange from a wait.
    near(KernelKind::AllGather, 1.0);
    assert!(factors.left_out.iter().any(|why| why.starts_with("optimizer: ")), "{factors:?}");
    // Of three ranks the one that waited least counts, and one without the exchange does not.
    let with = |gathers: fn(Option<f64>) -> Option<f64>| {
        let mut other = found.clone();
        let rows = other.rows.iter_mut().filter(|row| row.term == Term::AllGather);
        rows.for_each(|row| row.measured_s = gathers(row.measured_s));
        ("other".to_owned(), other)
    };
    let three = [with(|s| s.map(|s| 2.0 * s)), with(|s| s), with(|_| None)];
    let of_three = profiler::refit::factors(&three);
    assert!((of_three.kernels[&KernelKind::AllGather] - 1.5).abs() < 1e-3, "{of_three:?}");
    // A product then takes 1.25 times as long, in any other plan as well.
    let calibrated = profile.calibrated(Calibrated { kernels: factors.kernels, ..Calibrated::plain(0.0) });
    let product = Op::Gemm { m: 4096, n: 4096, k: 4096, format: hw::Format::Bf16 };
    let time = |profile| Scenario { profile: Some(profile), ..scenario.clone() }.costs().estimate(&product).time.get();
    assert!((time(calibrated) / time(profile) - 1.25).abs() < 1e-3);
}

/// A shipped scenario's first policy, and a trace of its last lane.
fn compared(name: &str, slower: f64) -> Compared {
    let scenario = shipped(name);
    let cost = scenario.costs();
    let (_, planned) = hardware::plans(&scenario, cost.as_ref()).remove(0);
    let planned = planned.map_err(|why| why.why).expect("a plan");
    let (timeline, ends) = hardware::predict(&planned, cost.as_ref()).map_err(|why| why.why).expect("a step");
    let lane = LaneId(u32::try_from(planned.graph.lanes.len() - 1).expect("few lanes"));
    let trace = trace(&planned.graph, &timeline, lane, slower);
    let found = measured(read(trace.as_bytes()).expect("a trace")).expect("a step");
    let rank = found.rank.expect("told");
    let predicted = compare::predicted((&planned.problem, &planned.graph), (&timeline, ends), cost.as_ref(), rank);
    assert_eq!(predicted.rank, rank, "the lane of the rank is its own");
    sums(&predicted, &planned.graph, &timeline, lane);
    compare::compare(found, predicted, planned.problem.layout.n_ranks())
}

/// Terms of a prediction add up to what its lane's streams are busy.
fn sums(predicted: &Predicted, graph: &TaskGraph, timeline: &Timeline, lane: LaneId) {
    let of_lane = graph.tasks.iter().enumerate().filter(|(_, task)| task.lane == lane);
    let busy: u64 = of_lane.map(|(id, _)| (timeline.end[id] - timeline.start[id]).as_ns()).sum();
    let terms: f64 = predicted.terms.values().map(|(seconds, _)| seconds).sum();
    assert!((terms - hw::real(busy) / 1e9).abs() < 1e-6, "{terms} s of {busy} ns");
    let compute: u64 = graph
        .tasks
        .iter()
        .enumerate()
        .filter(|(_, task)| task.lane == lane && task.stream == Stream::Compute)
        .map(|(id, _)| (timeline.end[id] - timeline.start[id]).as_ns())
        .sum();
    let kernels = predicted.busy.compute_s + host_s(predicted);
    assert!(
        (kernels - hw::real(compute) / 1e9).abs() < 1e-6,
        "a stream does one thing at a time: kernels, or the host's"
    );
}

/// Time of the host, which stands on the stream of computation.
fn host_s(predicted: &Predicted) -> f64 {
    predicted.terms.get(&Term::Host).map_or(0.0, |(seconds, _)| *seconds)
}

#[test]
fn a_trace_of_the_prediction_itself_has_the_same_lanes() {
    let found = compared("quickstart", 1.0);
    let (measured, predicted) = (found.measured.busy, found.predicted.busy);
    let compute_s = predicted.compute_s + host_s(&found.predicted);
    for (one, other) in [(measured.compute_s, compute_s), (measured.exchange_s, predicted.exchange_s)] {
        assert!((one - other).abs() < 1e-5, "{measured:?} {predicted:?}");
    }
    assert!(text::markdown(&found).contains("| kernels compute |"), "{}", text::markdown(&found));
}

#[test]
fn a_packed_trace_is_read_as_it_is_unpacked() {
    let text = r#"{"traceEvents": []}"#;
    let path = std::env::temp_dir().join(format!("skrull-sim-{}.json.gz", std::process::id()));
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).expect("memory");
    input::text_file::write(&path, packed.finish().expect("memory")).expect("a folder for temporary files");
    // Who has looked at the first bytes has taken none: a pipe would not give them again.
    let mut file = BufReader::new(input::text_file::open(&path).expect("a file"));
    assert!(!file.fill_buf().expect("bytes").is_empty());
    let unpacked = input::text_file::unpacked(file).expect("packed text");
    let lines = input::text_file::lines(&path).expect("a file");
    std::fs::remove_file(&path).expect("its own");
    for read in [lines, unpacked] {
        assert_eq!(std::io::read_to_string(read).expect("text"), text);
    }
}

#[test]
fn a_trace_that_is_slower_is_off_by_as_much() {
    let found = compared("quickstart", 1.25);
    // The recorded step begins with its first kernel, so it may be shorter than the predicted one.
    let ratio = found.measured.busy.compute_s / (found.predicted.busy.compute_s + host_s(&found.predicted));
    assert!((ratio - 1.25).abs() < 1e-3, "{ratio}");
    assert_eq!(found.guilty().map(|row| row.measured_s.is_some()), Some(true));
}
