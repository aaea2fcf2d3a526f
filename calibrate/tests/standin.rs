//! The CUDA backend on a machine without a GPU: `standin/` holds C++ sources of a driver, a run-time compiler and a library of products
//! that run everything on the CPU and end the program at any mistake. They are compiled into the folder for test outputs; each test
//! then starts itself again with these libraries to be found, because libraries are loaded once per process.
//!
//! A machine without a C++ compiler named `c++` says so and skips.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use calibrate::device::{self, Device, DeviceError, Mark};
use hw::Dtype;
use sim::task::{CopyKind, Document, Op, Pass, Stream};

/// Set in the process that runs with the libraries.
const INSIDE: &str = "SKRULL_STANDIN";
/// Among the settings, a folder whose libraries come before those that were built.
const FIRST: &str = "SKRULL_STANDIN_FIRST";
const LIMIT: Duration = Duration::from_secs(20);

/// The test harness captures `println!`; a skipped check must be seen.
fn aloud(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on stderr");
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin")
}

fn built() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry").path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn compile(arguments: &[&str], paths: &[&Path], to: &Path) {
    let part = to.with_extension("part");
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-O2", "-fno-strict-aliasing", "-fPIC"])
        .args(paths)
        .args(arguments)
        .arg("-o")
        .arg(&part);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", said(&output));
    // Under another name first: a compilation that is broken off must not look like a finished one.
    std::fs::rename(&part, to).expect("a file of our own");
}

/// Compiles the libraries unless they are newer than all sources; one test at a time does that.
fn libraries() -> PathBuf {
    static ONCE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONCE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = built();
    std::fs::create_dir_all(&folder).expect("a folder for test outputs");
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let all = [sources(), kernels.join("emulate"), kernels].iter().flat_map(|folder| files(folder)).collect::<Vec<_>>();
    let newest: Option<SystemTime> = all.iter().filter_map(changed).max();
    let last = folder.join("libcublasLt.so");
    if changed(&last).is_some_and(|time| newest < Some(time)) {
        return folder;
    }
    let units: Vec<PathBuf> =
        files(&sources()).into_iter().filter(|path| path.to_string_lossy().contains("/kernels_")).collect();
    let object = |path: &Path| folder.join(path.file_name().expect("a file")).with_extension("o");
    std::thread::scope(|scope| {
        for half in units.chunks(units.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(|unit| compile(&["-c"], &[unit], &object(unit))));
        }
    });
    let cuda = sources().join("cuda.cpp");
    let objects: Vec<PathBuf> = units.iter().map(|unit| object(unit)).collect();
    let paths: Vec<&Path> = std::iter::once(cuda.as_path()).chain(objects.iter().map(PathBuf::as_path)).collect();
    compile(&["-shared", "-Wl,-soname,libcuda.so"], &paths, &folder.join("libcuda.so"));
    compile(&["-shared"], &[&sources().join("nvrtc.cpp")], &folder.join("libnvrtc.so"));
    let driver = folder.join("libcuda.so");
    let lacking = folder.join("lacking");
    std::fs::create_dir_all(&lacking).expect("a folder for test outputs");
    let products = sources().join("cublaslt.cpp");
    compile(&["-shared", "-DSTANDIN_WITHOUT_PRODUCT"], &[&products, &driver], &lacking.join("libcublasLt.so"));
    compile(&["-shared"], &[&products, &driver], &last);
    folder
}

/// Whether the caller is done: it ran again in a process that finds the libraries and these settings, or cannot run here.
fn ran_inside(test: &str, settings: &[(&str, &str)], without: Option<&str>) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    if !Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success()) {
        aloud("skipped: the stand-in of a CUDA machine needs a C++ compiler named c++");
        return true;
    }
    let mut folder = libraries();
    if let Some(missing) = without {
        folder = folder.join(format!("without-{missing}"));
        std::fs::create_dir_all(&folder).expect("a folder for test outputs");
        for name in ["libcuda.so", "libnvrtc.so", "libcublasLt.so"].into_iter().filter(|name| *name != missing) {
            std::fs::copy(built().join(name), folder.join(name)).expect("a library that was built");
        }
    }
    let mut path = folder.into_os_string();
    if let Some((_, first)) = settings.iter().find(|(name, _)| *name == FIRST) {
        path = std::env::join_paths([PathBuf::from(first), PathBuf::from(path)]).expect("plain paths");
    }
    let exe = std::env::current_exe().expect("this program");
    let mut command = Command::new(exe);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).envs(settings.iter().copied());
    let output = command.env(INSIDE, "1").env("LD_LIBRARY_PATH", path).output().expect("it starts");
    let text = said(&output);
    print!("{text}");
    assert!(output.status.success(), "{test}: {}\n{text}", output.status);
    true
}

fn open() -> Box<dyn Device> {
    device::open("cuda:0").unwrap_or_else(|error| panic!("{error}"))
}

fn attention(documents: Vec<Document>, heads: (u64, u64, u64), pass: Pass) -> Op {
    let (n_heads, n_kv_heads, head_dim) = heads;
    Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass }
}

/// Every kind at awkward sizes, small ones first, so that buffers are no larger than what the next one counts for itself.
fn operations() -> Vec<Op> {
    let gemm = |m, n, k, dtype| Op::Gemm { m, n, k, dtype };
    let mut all = vec![
        Op::Host { ns: 1000 },
        Op::Elementwise { bytes: 1 },
        Op::Elementwise { bytes: 997 },
        Op::Embedding { tokens: 9, row_bytes: 50 },
        Op::Embedding { tokens: 3, row_bytes: 1000 },
        gemm(1, 1, 1, Dtype::Bf16),
        gemm(17, 33, 5, Dtype::Fp16),
        gemm(5, 7, 31, Dtype::Fp8),
        gemm(33, 48, 64, Dtype::Fp8),
        Op::GroupedGemm { rows: vec![3, 0, 9], n: 7, k: 13, dtype: Dtype::Bf16 },
        Op::GroupedGemm { rows: vec![3, 0, 9], n: 17, k: 13, dtype: Dtype::Fp8 },
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
        gemm(130, 257, 100, Dtype::Bf16),
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

#[test]
fn every_speed_is_measured() {
    if ran_inside("every_speed_is_measured", &[("STANDIN_LAZY", "1")], None) {
        return;
    }
    let lines = open().speeds().unwrap_or_else(|error| panic!("{error}"));
    lines.iter().for_each(|line| println!("{line}"));
    assert!(
        lines.len() >= 24 && lines.iter().all(|line| !line.contains("inf") && !line.contains("ends here")),
        "{lines:?}"
    );
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
    let gemm = Op::Gemm { m: 16, n: 16, k: 16, dtype: Dtype::Fp8 };
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
    let gemm = |m, n, k| Op::Gemm { m, n, k, dtype: Dtype::Bf16 };
    assert_eq!(named(&gemm(1 << 20, 8, 1 << 12)), ("operands", "gemm 1048576 × 8 × 4096".to_owned()));
    assert_eq!(named(&gemm(1 << 15, 1 << 15, 8)).0, "result");
    let copy = Op::Copy { kind: CopyKind::DeviceToDevice, bytes: 20_000_000 };
    assert_eq!(named(&copy).0, "result");
    // What fits still runs.
    device.check_finite(&gemm(64, 64, 64)).unwrap_or_else(|error| panic!("{error}"));
}

fn why_not(name: &str) -> String {
    match device::open(name) {
        Err(error @ DeviceError::Missing { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{name} opened"),
    }
}

fn one_line_with(text: &str, part: &str) {
    assert!(text.contains(part) && text.lines().count() == 1 && text.len() < 200, "{text}");
}

#[test]
fn a_missing_driver_is_named() {
    if !ran_inside("a_missing_driver_is_named", &[], Some("libcuda.so")) {
        one_line_with(&why_not("cuda:0"), "the CUDA driver (libcuda) was not found");
    }
}

#[test]
fn a_missing_compiler_is_named() {
    if !ran_inside("a_missing_compiler_is_named", &[], Some("libnvrtc.so")) {
        one_line_with(&why_not("cuda:0"), "NVRTC (libnvrtc) was not found");
    }
}

#[test]
fn a_missing_library_of_products_is_named() {
    if !ran_inside("a_missing_library_of_products_is_named", &[], Some("libcublasLt.so")) {
        one_line_with(&why_not("cuda:0"), "cuBLASLt (libcublasLt) was not found");
    }
}

#[test]
fn a_missing_symbol_is_named() {
    let lacking = built().join("lacking");
    if !ran_inside("a_missing_symbol_is_named", &[(FIRST, &lacking.to_string_lossy())], None) {
        one_line_with(&why_not("cuda:0"), "cuBLASLt is too old or too new: it has no `cublasLtMatmul`");
    }
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
    let text = device::open("cuda:0").err().expect("no kernel compiles").to_string();
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
