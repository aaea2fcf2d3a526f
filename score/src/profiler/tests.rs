//! A trace of two steps, written by hand in the form of Kineto, with sums that were counted by hand.

use std::io::Cursor;

use super::step::{Busy, Measured, measured};
use super::term::Term;
use super::{ProfilerError, nsys, read};

/// Moments in microseconds. Step 7 on the device is 1020 to 1120, step 8 is 1120 to 1168.
const TRACE: &str = r#"{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912}],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "traceEvents": [
  {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1, "ts": 1000, "dur": 100},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#8", "pid": 1, "tid": 1, "ts": 1100, "dur": 100},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 990, "dur": 5, "args": {"correlation": 9}},
  {"ph": "X", "cat": "kernel", "name": "warm_up", "pid": 0, "tid": 7, "ts": 1001, "dur": 2, "args": {"device": 0, "stream": 7, "correlation": 9}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1002, "dur": 9},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1005, "dur": 5, "args": {"correlation": 1}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1012, "dur": 5, "args": {"correlation": 2}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": 1020, "dur": 5, "args": {"correlation": 3}},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": 1088, "dur": 4, "args": {"correlation": 4}},
  {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16", "pid": 0, "tid": 7, "ts": 1020, "dur": 30, "args": {"device": 0, "stream": 7, "correlation": 1}},
  {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "pid": 0, "tid": 7, "ts": 1050, "dur": 10, "args": {"device": 0, "stream": 7, "correlation": 2}},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0, "tid": 13, "ts": 1055, "dur": 25,
    "args": {"device": 0, "stream": 13, "correlation": 3, "Collective name": "allreduce", "Group size": 8}},
  {"ph": "X", "cat": "kernel", "name": "my_own_kernel", "pid": 0, "tid": 7, "ts": 1095, "dur": 5, "args": {"device": 0, "stream": 7, "correlation": 4}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1105, "dur": 5, "args": {"correlation": 5}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 1112, "dur": 2, "args": {"correlation": 6}},
  {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16", "pid": 0, "tid": 7, "ts": 1120, "dur": 34, "args": {"device": 0, "stream": 7, "correlation": 5}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "pid": 0, "tid": 7, "ts": 1160, "dur": 8, "args": {"device": 0, "correlation": 6}},
  {"ph": "X", "cat": "kernel", "name": "elsewhere", "pid": 1, "tid": 7, "ts": 1130, "dur": 8, "args": {"device": 1, "stream": 7}}
  ],
  "traceName": "rank3.pt.trace.json"
}"#;

fn found() -> Measured {
    measured(read(TRACE.as_bytes()).expect("a trace")).expect("two steps")
}

/// Microseconds of a step.
fn us(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

#[test]
fn terms_are_the_sums_counted_by_hand() {
    let found = found();
    assert_eq!(found.steps.iter().map(|step| us(*step)).collect::<Vec<f64>>(), [100.0, 48.0]);
    let terms: Vec<(Term, Vec<f64>, u64)> =
        found.terms.iter().map(|(term, took)| (*term, took.seconds.iter().map(|s| us(*s)).collect(), took.n)).collect();
    let expected = [
        (Term::Product, vec![30.0, 34.0], 2),
        (Term::AttentionForward, vec![10.0, 0.0], 1),
        (Term::AllReduce, vec![25.0, 0.0], 1),
        (Term::CopyOut, vec![0.0, 8.0], 1),
        (Term::Unknown, vec![5.0, 0.0], 1),
    ];
    assert_eq!(terms, expected);
    assert_eq!((found.rank, found.n_ranks, found.n_left_out), (Some(3), Some(8), 2));
    assert_eq!(found.device.as_deref(), Some("NVIDIA H100 80GB HBM3"));
}

#[test]
fn lanes_and_gaps_are_the_sums_counted_by_hand() {
    let found = found();
    // Computation 1020-1060, 1095-1100, 1120-1154; the exchange 1055-1080, of which 1060-1080 is alone; the copy 1160-1168; over two steps.
    let Busy { compute_s, exchange_s, exposed_s, copy_s, idle_s } = found.busy;
    assert_eq!([compute_s, exchange_s, exposed_s, copy_s, idle_s].map(us), [39.5, 12.5, 10.0, 4.0, 20.5]);
    // 1080-1095, of which the host takes until 1092; 1100-1120, until 1110; 1154-1160, launched at 1114.
    let gaps: Vec<(&str, &str, f64, f64)> = found
        .gaps
        .iter()
        .map(|gap| (gap.before.as_str(), gap.after.as_str(), us(gap.seconds), us(gap.host_s)))
        .collect();
    let expected = [
        ("my_own_kernel", "sm90_xmma_gemm_bf16", 10.0, 5.0),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "my_own_kernel", 7.5, 6.0),
        ("sm90_xmma_gemm_bf16", "Memcpy DtoH (Device -> Pinned)", 3.0, 0.0),
    ];
    assert_eq!(gaps, expected);
    assert_eq!(found.host_s.map(us), Some(11.0));
    assert_eq!(found.unknown, [("my_own_kernel".to_owned(), 1, 2.5e-6)]);
}

/// `tests/nsys.py` wrote the same events by SQLite itself, with pages of 512 bytes.
#[test]
fn a_report_of_nsight_systems_is_the_same_steps() {
    let read = |bytes: &[u8]| nsys::read(Cursor::new(bytes));
    let report = measured(read(include_bytes!("tests/nsys.sqlite")).expect("a report")).expect("two steps");
    let mut expected = found();
    // It says neither the rank nor which memory a copy came from.
    (expected.rank, expected.n_ranks) = (None, None);
    expected.gaps[2].after = "Memcpy DtoH".to_owned();
    assert_eq!(report, expected);
}

/// Every byte of the report changed in turn, and many lengths cut: read or refused, and never without an end.
#[test]
fn a_broken_report_is_refused() {
    let report = include_bytes!("tests/nsys.sqlite");
    for at in 0..report.len() {
        let mut bytes = report.to_vec();
        bytes[at] = bytes[at].wrapping_add(if at % 2 == 0 { 1 } else { 0x80 });
        if let Ok(found) = nsys::read(Cursor::new(&bytes)) {
            assert!(found.events.len() <= 100, "{at}");
        }
    }
    for n_bytes in (0..report.len()).step_by(97) {
        let _ = nsys::read(Cursor::new(&report[..n_bytes]));
    }
}

#[test]
fn a_list_of_events_is_read_like_a_trace() {
    let (from, to) = (TRACE.find("[\n").expect("events"), TRACE.rfind(']').expect("events"));
    let alone = measured(read(&TRACE.as_bytes()[from..=to]).expect("events")).expect("two steps");
    assert_eq!((alone.rank, &alone.terms), (None, &found().terms));
}

#[test]
fn a_trace_without_marks_is_one_step() {
    let found = measured(read(TRACE.replace("ProfilerStep#", "step ").as_bytes()).expect("a trace")).expect("a step");
    // From the first kernel, 1001, to the last end, 1168.
    assert_eq!((found.is_whole, found.steps.iter().map(|step| us(*step)).collect::<Vec<f64>>()), (true, vec![167.0]));
}

#[test]
fn what_is_no_trace_is_refused() {
    let refused = |text: &str| read(text.as_bytes()).expect_err("it is refused");
    assert!(matches!(refused("SQLite format 3"), ProfilerError::Unknown));
    assert!(matches!(refused(r#"{"traceEvents": []}"#), ProfilerError::NoKernels));
    let text = r#"[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]"#;
    assert!(refused(text).to_string().contains("a kernel without `ts` and `dur`"), "{}", refused(text));
    assert!(refused(r#"{"traceEvents": [{"#).to_string().contains("EOF"));
    // Moments that no clock has.
    assert!(matches!(refused(&text.replace("\"ts\": 1", "\"ts\": 1e300, \"dur\": 1")), ProfilerError::Json(_)));
    // One event without an end: refused after 16 MiB, and not when memory is full.
    let long = std::io::Read::chain(&b"[{\"name\": \""[..], std::io::repeat(b'x'));
    let why = read(std::io::BufReader::new(long)).expect_err("it has no end");
    assert!(why.to_string().contains("one event is longer than 16 MiB"), "{why}");
}

/// Two traces of whole steps of PyTorch on cards of this project's own runs: every kernel has a term, and the terms have the sums that adding up the
/// kernels of a name by hand gives, in milliseconds.
#[test]
fn kernels_of_real_steps_have_terms() {
    let cases = [
        ("h100-sxm/trace-eager.json.gz", [140.10, 14.26, 44.03]),
        ("h200-sxm/trace-compiled.json.gz", [156.71, 14.38, 44.59]),
    ];
    for (file, expected) in cases {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles/measured").join(file);
        let packed = std::fs::File::open(path).expect("a trace of the repository");
        let text = std::io::BufReader::new(packed::Unpacked::new(packed));
        let found = measured(read(text).expect("a trace")).expect("a step");
        let ms = |term: Term| found.terms.get(&term).map_or(0.0, |took| took.seconds.iter().sum::<f64>() * 1e3);
        let sums = [Term::Product, Term::AttentionForward, Term::AttentionBackward].map(ms);
        for (sum, expected) in sums.iter().zip(expected) {
            assert!((sum - expected).abs() < 0.02, "{file}: {sums:?}");
        }
        assert!(ms(Term::Unknown) < 0.001 * found.steps[0] * 1e3, "{file}: {} ms without a term", ms(Term::Unknown));
        assert!(ms(Term::Embedding) > 0.3, "the embedding's backward: {}", ms(Term::Embedding));
    }
}
