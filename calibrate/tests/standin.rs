//! The CUDA backend on a machine without a GPU: `standin/` holds C++ sources of a driver, a run-time compiler and a library of products
//! that run everything on the CPU and end the program at any mistake. They are compiled into the folder for test outputs; each test
//! then starts itself again with these libraries to be found, because libraries are loaded once per process.
//!
//! A machine without a C++ compiler named `c++` says so and skips.

#[path = "standin/built.rs"]
mod built;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use calibrate::device::{self, Device, DeviceError, Mark};
use calibrate::devices;
use engine::task::{Collective, CopyKind, Document, Op, Pass, PassKind, Stream};
use hw::{Format, GroupShape};

/// Set in the process that runs with the libraries.
const INSIDE: &str = "SKRULL_STANDIN";
/// Among the settings, a folder whose libraries come before those that were built.
const FIRST: &str = "SKRULL_STANDIN_FIRST";
const LIBRARIES: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];
/// Among the settings, the only folder whose libraries are found, below the one that was built.
const ONLY: &str = "SKRULL_STANDIN_ONLY";
const LIMIT: Duration = Duration::from_secs(20);

/// The test harness captures `println!`; a skipped check must be seen.
fn aloud(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on stderr");
}

/// Whether the caller is done: it ran again in a process that finds the libraries and these settings, or cannot run here.
fn ran_inside(test: &str, settings: &[(&str, &str)], without: Option<&str>) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    if !built::has_compiler() {
        aloud("skipped: the stand-in of a CUDA machine needs a C++ compiler named c++");
        return true;
    }
    let mut folder = built::libraries(Path::new(env!("CARGO_MANIFEST_DIR")));
    if let Some(missing) = without {
        folder = folder.join(format!("without-{missing}"));
        std::fs::create_dir_all(&folder).expect("a folder for test outputs");
        for name in LIBRARIES.into_iter().filter(|name| *name != missing) {
            std::fs::copy(built::folder().join(name), folder.join(name)).expect("a library that was built");
        }
    }
    if let Some((_, only)) = settings.iter().find(|(name, _)| *name == ONLY) {
        folder = folder.join(only);
    }
    let mut path = folder.into_os_string();
    if let Some((_, first)) = settings.iter().find(|(name, _)| *name == FIRST) {
        path = std::env::join_paths([PathBuf::from(first), PathBuf::from(path)]).expect("plain paths");
    }
    let exe = std::env::current_exe().expect("this program");
    let mut command = Command::new(exe);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).envs(settings.iter().copied());
    let output = command.env(INSIDE, "1").env("LD_LIBRARY_PATH", path).output().expect("it starts");
    let text = built::said(&output);
    print!("{text}");
    assert!(output.status.success(), "{test}: {}\n{text}", output.status);
    true
}

fn open() -> Box<dyn Device> {
    devices::open("cuda:0").unwrap_or_else(|error| panic!("{error}"))
}

fn attention(documents: Vec<Document>, heads: (u64, u64, u64), pass: Pass) -> Op {
    let (n_heads, n_kv_heads, head_dim) = heads;
    Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: hw::Dtype::Bf16, pass }
}

/// Every kind at awkward sizes, small ones first, so that buffers are no larger than what the next one counts for itself.
fn operations() -> Vec<Op> {
    let gemm = |m, n, k, format| Op::Gemm { m, n, k, format };
    let mut all = vec![
        Op::Host { ns: 1000 },
        Op::Elementwise { bytes: 1 },
        Op::Elementwise { bytes: 997 },
        Op::Embedding { tokens: 9, row_bytes: 50 },
        Op::Embedding { tokens: 3, row_bytes: 1000 },
        gemm(1, 1, 1, Format::Bf16),
        gemm(17, 33, 5, Format::Fp16),
        gemm(5, 7, 31, Format::Fp8),
        gemm(33, 48, 64, Format::Fp8),
        Op::GroupedGemm { rows: vec![3, 0, 9], n: 7, k: 13, format: Format::Bf16, kind: PassKind::Forward },
        Op::GroupedGemm { rows: vec![3, 0, 9], n: 17, k: 13, format: Format::Fp8, kind: PassKind::Forward },
    ];
    for kind in [CopyKind::HostToDevice, CopyKind::DeviceToHost, CopyKind::DeviceToDevice] {
        all.extend([Op::Copy { kind, bytes: 1 }, Op::Copy { kind, bytes: 99_999 }]);
    }
    let shares = || vec![Document::zigzag(90, 4), Document::chunk(64, 7)];
    let several = || vec![Document::causal(1), Document::causal(131), Document::chunk(150, 37)];
    for pass in [Pass::Forward, Pass::Backward] {
        all.push(attention(vec![Document::causal(1)], (1, 1, 64), pass));
        all.push(attention(shares(), (3, 1, 64), pass));
        all.push(attention(several(), (4, 2, 128), pass));
    }
    all.extend([
        Op::Embedding { tokens: 700, row_bytes: 130 },
        Op::Elementwise { bytes: 600_001 },
        // Fewer rows than before: they must not point beyond their own table.
        Op::Embedding { tokens: 5, row_bytes: 200_000 },
        gemm(130, 257, 100, Format::Bf16),
    ]);
    all
}

fn every_operation() {
    let mut device = open();
    for op in operations() {
        let words = device::describe(&op);
        assert!(device.runs(&op), "{words}");
        device.check_finite(&op).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
    // Again, now that buffers are large and turn over, and on a stream that nothing was reserved for.
    for op in operations() {
        let words = device::describe(&op);
        device.reserve(&op).unwrap_or_else(|error| panic!("{words}: {error}"));
        for stream in [Stream::Compute, Stream::PointToPoint, Stream::Compute] {
            device.launch(&op, stream).unwrap_or_else(|error| panic!("{words}: {error}"));
        }
    }
    device.finish(LIMIT).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_operation_writes_all_of_its_result() {
    // A cache of 16 bytes: buffers are as small as the operations allow, so that what they lack shows.
    if !ran_inside("every_operation_writes_all_of_its_result", &[("STANDIN_L2", "16")], None) {
        every_operation();
    }
}

#[test]
fn operations_that_run_as_late_as_they_may_write_the_same() {
    if !ran_inside("operations_that_run_as_late_as_they_may_write_the_same", &[("STANDIN_LAZY", "1")], None) {
        every_operation();
    }
}

#[test]
fn every_kernel_agrees_with_its_reference() {
    if ran_inside("every_kernel_agrees_with_its_reference", &[("STANDIN_LAZY", "1")], None) {
        return;
    }
    let lines = open().check_kernels().unwrap_or_else(|error| panic!("{error}"));
    lines.iter().for_each(|line| println!("{line}"));
    assert!(lines.len() > 80, "{}", lines.len());
}

/// The folder of the compiler that `scripts/nvrtc.sh` fetches, or that `SKRULL_NVRTC` names.
fn compiler() -> Option<PathBuf> {
    let named = std::env::var_os("SKRULL_NVRTC").map(PathBuf::from);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc/nvidia/cu13/lib");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../nvrtc/nvidia/cu13/lib");
    named.into_iter().chain([target, script]).find(|folder| folder.join("libnvrtc.so.13").is_file())
}

#[test]
fn the_compiler_itself_takes_every_source_as_it_is_sent() {
    let Some(folder) = compiler() else {
        aloud("skipped: compiling as a device does needs NVRTC; scripts/nvrtc.sh fetches it, or set SKRULL_NVRTC");
        return;
    };
    let test = "the_compiler_itself_takes_every_source_as_it_is_sent";
    // Without the stand-in's own, whose name would be found first.
    let settings = [(FIRST, &*folder.to_string_lossy())];
    if !ran_inside(test, &settings, Some("libnvrtc.so")) {
        open().check_kernels().unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn kernels_that_want_more_shared_memory_than_there_is_are_left_out() {
    let test = "kernels_that_want_more_shared_memory_than_there_is_are_left_out";
    if ran_inside(test, &[("STANDIN_SHARED", "101376")], None) {
        return;
    }
    let mut device = open();
    let runs = |dim, pass| device.runs(&attention(vec![Document::causal(9)], (1, 1, dim), pass));
    assert!(
        runs(128, Pass::Forward) && runs(64, Pass::Backward) && !runs(128, Pass::Backward) && !runs(96, Pass::Forward)
    );
    let lines = device.check_kernels().unwrap_or_else(|error| panic!("{error}"));
    assert!(lines.iter().any(|line| line.contains("left out")), "{lines:?}");
}

fn speeds(device: &mut dyn Device) -> Vec<String> {
    let mut lines = Vec::new();
    device.speeds(&mut |line| lines.push(line)).unwrap_or_else(|error| panic!("{error}"));
    lines
}

#[test]
fn a_device_that_is_lost_keeps_the_speeds_before() {
    let settings = [("STANDIN_FAULT", "decode_merge")];
    if ran_inside("a_device_that_is_lost_keeps_the_speeds_before", &settings, None) {
        return;
    }
    let (mut lines, mut device) = (Vec::new(), open());
    let error = device.speeds(&mut |line| lines.push(line)).expect_err("decoding is lost").to_string();
    assert!(
        error.starts_with("device lost: ") && lines.iter().any(|line| line.starts_with("gemm")),
        "{error} {lines:?}"
    );
}

#[test]
fn every_speed_is_measured() {
    if ran_inside("every_speed_is_measured", &[("STANDIN_LAZY", "1")], None) {
        return;
    }
    let lines = speeds(open().as_mut());
    lines.iter().for_each(|line| println!("{line}"));
    assert!(lines.len() >= 24 && lines.iter().all(|line| !line.contains("inf")), "{lines:?}");
}

#[test]
fn streams_run_in_order_and_wait_for_marks() {
    if ran_inside("streams_run_in_order_and_wait_for_marks", &[("STANDIN_LAZY", "1"), ("STANDIN_DEVICES", "2")], None) {
        return;
    }
    let mut device = open();
    let gpu = device.facts().clone();
    assert_eq!((gpu.gpu.as_deref(), gpu.n_devices), (Some("h200-sxm"), 1));
    let work = Op::Elementwise { bytes: 60_000 };
    let begun = device.mark(Stream::Compute).expect("a stream");
    device.launch(&work, Stream::Compute).expect("a stream");
    let half = device.mark(Stream::Compute).expect("a stream");
    device.wait(Stream::DeviceToHost, half).expect("a stream");
    device.launch(&work, Stream::DeviceToHost).expect("a stream");
    let copied = device.mark(Stream::DeviceToHost).expect("a stream");
    // Without a mark behind it, it is waited for as well.
    device.launch(&work, Stream::HostToDevice).expect("a stream");
    let times = device.finish(LIMIT).expect("ends");
    assert_eq!(times.len(), 3);
    assert!(times[begun.0] < times[half.0] && times[half.0] < times[copied.0], "{times:?}");
    // Marks start over.
    assert_eq!(device.mark(Stream::Compute).expect("a stream"), Mark(0));
    assert_eq!(device.finish(LIMIT).expect("ends").len(), 1);
    assert_eq!(device.finish(LIMIT).expect("ends").len(), 0);
    let gemm = Op::Gemm { m: 16, n: 16, k: 16, format: Format::Fp8 };
    for op in [work, gemm] {
        device.reserve(&op).expect("it fits");
        let begun = device.mark(Stream::Compute).expect("a stream");
        device.launch(&op, Stream::Compute).expect("a stream");
        let ended = device.mark(Stream::Compute).expect("a stream");
        let times = device.finish(LIMIT).expect("ends");
        assert!(times[begun.0] < times[ended.0], "{}: {times:?}", device::describe(&op));
    }
    // Behind operations of the compute stream runs the reference kernel, which is far too large for an emulation.
    let copy = Op::Copy { kind: CopyKind::DeviceToHost, bytes: 1000 };
    let timed = calibrate::sample::time(device.as_mut(), &copy).expect("it runs");
    assert!(timed.seconds > 0.0 && timed.spread.is_finite() && timed.reference_s.is_none(), "{timed:?}");
}

#[test]
fn what_does_not_fit_is_named() {
    if ran_inside("what_does_not_fit_is_named", &[("STANDIN_MEMORY", "60000000")], None) {
        return;
    }
    let mut device = open();
    let mut named = |op: &Op| match device.reserve(op) {
        Err(DeviceError::OutOfMemory { tensor, op, needed, free }) if needed > free => (tensor, op),
        other => panic!("{op:?}: {other:?}"),
    };
    let gemm = |m, n, k| Op::Gemm { m, n, k, format: Format::Bf16 };
    assert_eq!(named(&gemm(1 << 20, 8, 1 << 12)), ("operands", "gemm 1048576 × 8 × 4096".to_owned()));
    assert_eq!(named(&gemm(1 << 15, 1 << 15, 8)).0, "result");
    let copy = Op::Copy { kind: CopyKind::DeviceToDevice, bytes: 20_000_000 };
    assert_eq!(named(&copy).0, "result");
    // What fits still runs.
    device.check_finite(&gemm(64, 64, 64)).unwrap_or_else(|error| panic!("{error}"));
}

fn why_not(name: &str) -> String {
    match devices::open(name) {
        Err(error @ DeviceError::Missing { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{name} opened"),
    }
}

fn one_line_with(text: &str, part: &str) {
    assert!(text.contains(part) && text.lines().count() == 1 && text.len() < 300, "{text}");
}

#[test]
fn a_missing_driver_is_named() {
    if !ran_inside("a_missing_driver_is_named", &[], Some("libcuda.so")) {
        one_line_with(&why_not("cuda:0"), "the CUDA driver was not found: no libcuda.so, libcuda.so.1 by the loader");
    }
}

#[test]
fn a_missing_compiler_is_named() {
    if !ran_inside("a_missing_compiler_is_named", &[], Some("libnvrtc.so")) {
        one_line_with(&why_not("cuda:0"), "NVRTC was not found: no libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12 by");
    }
}

#[test]
fn a_missing_library_of_products_is_named() {
    if !ran_inside("a_missing_library_of_products_is_named", &[], Some("libcublasLt.so")) {
        one_line_with(&why_not("cuda:0"), "cuBLASLt was not found: no libcublasLt.so, libcublasLt.so.13");
    }
}

#[test]
fn a_missing_symbol_is_named() {
    let lacking = built::folder().join("lacking");
    if !ran_inside("a_missing_symbol_is_named", &[(FIRST, &lacking.to_string_lossy())], None) {
        one_line_with(&why_not("cuda:0"), "cuBLASLt is too old or too new: it has no `cublasLtMatmul`");
    }
}

#[test]
fn a_compiler_that_is_newer_than_the_driver_is_named() {
    if !ran_inside("a_compiler_that_is_newer_than_the_driver_is_named", &[("STANDIN_VERSION", "12040")], None) {
        one_line_with(&why_not("cuda:0"), "NVRTC 13.0 makes code for newer drivers than this one (CUDA 12.4)");
    }
}

#[test]
fn an_older_driver_is_enough() {
    let old = built::folder().join("old");
    let settings = [(FIRST, &*old.to_string_lossy()), ("STANDIN_VERSION", "12020"), ("STANDIN_NVRTC", "12")];
    if ran_inside("an_older_driver_is_enough", &settings, None) {
        return;
    }
    let mut device = open();
    assert!(device.facts().driver.starts_with("CUDA 12.2"), "{:?}", device.facts());
    let timed = calibrate::sample::time(device.as_mut(), &Op::Copy { kind: CopyKind::DeviceToHost, bytes: 1000 });
    assert!(timed.as_ref().is_ok_and(|timed| timed.seconds > 0.0), "{timed:?}");
    device.check_finite(&Op::Elementwise { bytes: 6000 }).unwrap_or_else(|error| panic!("{error}"));
}

/// Prefix of a Python whose packages have the libraries under their versioned names, and NCCL.
fn python() -> String {
    built::folder().join("python").to_string_lossy().into_owned()
}

#[test]
fn libraries_of_python_packages_are_found() {
    let test = "libraries_of_python_packages_are_found";
    // The driver is where the loader looks; the compiler is not, and products neither.
    if std::env::var_os(INSIDE).is_none() && built::has_compiler() {
        let built = built::libraries(Path::new(env!("CARGO_MANIFEST_DIR")));
        let only = built.join("only-driver");
        std::fs::create_dir_all(&only).expect("a folder for test outputs");
        std::fs::copy(built.join("libcuda.so"), only.join("libcuda.so")).expect("a library that was built");
    }
    let settings = [("VIRTUAL_ENV", &*python()), (ONLY, "only-driver")];
    if !ran_inside(test, &settings, None) {
        let gemm = Op::Gemm { m: 64, n: 64, k: 64, format: Format::Bf16 };
        open().check_finite(&gemm).unwrap_or_else(|error| panic!("{error}"));
    }
}

const EXCHANGES: [Collective; 6] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::AllToAll,
    Collective::RingShift,
    Collective::SendRecv,
];

#[test]
fn several_gpus_exchange_what_plain_loops_say() {
    let test = "several_gpus_exchange_what_plain_loops_say";
    let settings = [("VIRTUAL_ENV", &*python()), ("STANDIN_DEVICES", "4"), ("STANDIN_LAZY", "1")];
    if ran_inside(test, &settings, None) {
        return;
    }
    // Not the first one: ranks and devices differ in their numbers.
    let mut device = devices::open("cuda:2").unwrap_or_else(|error| panic!("{error}"));
    assert!(device.facts().n_devices == 4 && device.facts().driver.contains("NCCL 2.28.3"), "{:?}", device.facts());
    let lines = device.check_kernels().unwrap_or_else(|error| panic!("{error}"));
    let exact = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
    assert_eq!((exact("on 2 GPUs: exact"), exact("on 4 GPUs: exact")), (12, 12), "{lines:?}");
    // Beside other work, on streams that are waited for.
    for (kind, n_ranks) in EXCHANGES.iter().flat_map(|kind| [2, 3, 4].map(|n| (*kind, n))) {
        let op = Op::Collective { kind, bytes: 40_000, shape: GroupShape::inside(n_ranks) };
        let work = Op::Elementwise { bytes: 60_000 };
        assert!(device.runs(&op));
        device.reserve(&op).and_then(|()| device.reserve(&work)).expect("they fit");
        device.launch(&work, Stream::Compute).expect("a stream");
        let ready = device.mark(Stream::Compute).expect("a stream");
        device.wait(Stream::IntraNode, ready).expect("a stream");
        device.launch(&op, Stream::IntraNode).expect("a stream");
        let done = device.mark(Stream::IntraNode).expect("a stream");
        let times = device.finish(LIMIT).expect("ends");
        assert!(times[ready.0] < times[done.0], "{times:?}");
        let timed = calibrate::sample::time(device.as_mut(), &op).expect("it runs");
        assert!(timed.seconds > 1e-6 && timed.seconds < 1e-3, "{timed:?}");
    }
    let beyond = Op::Collective { kind: Collective::AllReduce, bytes: 8, shape: GroupShape::inside(5) };
    assert!(!device.runs(&beyond));
    let lines = speeds(device.as_mut());
    assert_eq!(lines.iter().filter(|line| line.contains("bytes on 4 GPUs: ")).count(), 5, "{lines:?}");
}

#[test]
fn an_exchange_that_is_wrong_is_named() {
    let settings = [("VIRTUAL_ENV", &*python()), ("STANDIN_DEVICES", "2"), ("STANDIN_WRONG", "ncclReduceScatter")];
    if ran_inside("an_exchange_that_is_wrong_is_named", &settings, None) {
        return;
    }
    let error = open().check_kernels().expect_err("one kind moves nothing").to_string();
    assert!(error.contains("reduce-scatter of 1 on 2 GPUs") && !error.contains("all-reduce"), "{error}");
}

#[test]
fn gpus_without_nccl_measure_all_but_exchanges() {
    if ran_inside("gpus_without_nccl_measure_all_but_exchanges", &[("STANDIN_DEVICES", "2")], None) {
        return;
    }
    let device = open();
    let facts = device.facts();
    if facts.driver.contains(", NCCL ") {
        aloud("skipped: this machine has an NCCL of its own");
        return;
    }
    assert!(facts.n_devices == 1 && facts.driver.contains("no exchanges: NCCL was not found"), "{facts:?}");
}

#[test]
fn a_device_that_is_lost_while_a_product_is_prepared_is_not_a_missing_kernel() {
    let test = "a_device_that_is_lost_while_a_product_is_prepared_is_not_a_missing_kernel";
    // The first launch makes operands; the second one is lost, behind which the product comes.
    if ran_inside(test, &[("STANDIN_FAULT_AFTER", "1")], None) {
        return;
    }
    let mut device = open();
    let error = device.check_finite(&Op::Elementwise { bytes: 600 }).expect_err("lost").to_string();
    assert!(error.starts_with("device lost: "), "{error}");
    let gemm = Op::Gemm { m: 64, n: 64, k: 64, format: Format::Bf16 };
    let error = device.reserve(&gemm).expect_err("lost").to_string();
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    if !ran_inside("a_device_that_does_not_exist_is_named", &[("STANDIN_DEVICES", "2")], None) {
        one_line_with(&why_not("cuda:7"), "`cuda:7` cannot be used: this machine has 2 CUDA devices");
    }
}

#[test]
fn a_source_that_does_not_compile_is_shown() {
    if ran_inside("a_source_that_does_not_compile_is_shown", &[("STANDIN_SOURCE_FAULT", "1")], None) {
        return;
    }
    let text = devices::open("cuda:0").err().expect("no kernel compiles").to_string();
    assert!(text.contains("tools.cu does not compile") && text.contains("told not to compile"), "{text}");
}

#[test]
fn a_kernel_that_never_ends_is_noticed() {
    if ran_inside("a_kernel_that_never_ends_is_noticed", &[("STANDIN_HANG", "add")], None) {
        return;
    }
    let mut device = open();
    let op = Op::Elementwise { bytes: 6000 };
    device.reserve(&op).expect("it fits");
    device.launch(&op, Stream::Compute).expect("a launch returns at once");
    let error = device.finish(Duration::from_millis(200)).expect_err("it never ends");
    assert!(matches!(&error, DeviceError::Hung { op, .. } if op.contains("elementwise")), "{error}");
    // Giving memory back would wait for ever; the stand-in ends the program with a failure when someone does.
    drop(device);
}

#[test]
fn an_illegal_address_is_a_lost_device() {
    if ran_inside("an_illegal_address_is_a_lost_device", &[("STANDIN_FAULT", "add")], None) {
        return;
    }
    let mut device = open();
    let op = Op::Elementwise { bytes: 6000 };
    let sent = device.reserve(&op).and_then(|()| device.launch(&op, Stream::Compute));
    let error = sent.and_then(|()| device.finish(LIMIT)).expect_err("the device is lost").to_string();
    assert!(error.starts_with("device lost: ") && error.contains("ILLEGAL_ADDRESS"), "{error}");
    assert!(device.check_finite(&op).is_err());
}
