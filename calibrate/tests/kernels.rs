//! The CUDA kernels without a GPU: their arithmetic by emulation on the CPU, their compilation by NVRTC.
//!
//! Emulation: every `kernels/*.cu` has a harness `kernels/emulate/*.cpp` that runs it, one fiber per thread, and compares
//! with a float64 reference. A kernel file without a harness fails. Compilation: machine code for sm_90 and PTX for
//! sm_90 and sm_80; a kernel that spills many registers fails. What a machine lacks is said aloud and skipped:
//! the C++ compiler, or NVRTC (`scripts/nvrtc.sh` fetches it; `SKRULL_NVRTC` names another copy).

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// Names of the files of `folder` that end in `.extension`, without it, sorted.
fn stems(folder: &Path, extension: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut stems: Vec<String> = paths
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .map(|path| path.file_stem().expect("a file name").to_string_lossy().into_owned())
        .collect();
    stems.sort();
    stems
}

/// The test harness captures `println!`; a skipped check must be seen.
fn aloud(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on stderr");
}

fn compiler_is_there() -> bool {
    Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Compiles one C++ file into the folder for test outputs, unless what lies there is newer than all the sources.
fn build(source: &Path, flags: &[&str]) -> Result<PathBuf, String> {
    let name = source.file_stem().expect("a file name");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kernels_{}", name.to_string_lossy()));
    if changed(&program).is_some_and(|built| newest_source() < Some(built)) {
        return Ok(program);
    }
    // Under another name first: a compilation that is broken off must not look like a finished one.
    let part = program.with_extension("part");
    let output =
        Command::new("c++").arg("-std=c++17").args(flags).arg(source).arg("-o").arg(&part).arg("-ldl").output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(said(&output));
    }
    std::fs::rename(&part, &program).map_err(|error| error.to_string())?;
    Ok(program)
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// When the youngest of all the kernels, harnesses and programs of this test was written.
fn newest_source() -> Option<SystemTime> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let folders = [kernels(), kernels().join("emulate"), tests];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder of sources"));
    files.filter_map(|entry| changed(&entry.ok()?.path())).max()
}

/// Runs `check` for every name on two threads and returns what failed.
fn failures(names: &[String], check: impl Fn(&str) -> Result<(), String> + Sync) -> Vec<String> {
    let half = |odd: usize| {
        let mine = names.iter().enumerate().filter(move |(i, _)| i % 2 == odd);
        mine.filter_map(|(_, name)| check(name).err().map(|error| format!("{name}: {error}"))).collect::<Vec<String>>()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut failed = half(0);
        failed.extend(other.join().expect("the checks do not panic"));
        failed
    })
}

#[test]
fn every_kernel_file_has_a_harness_and_the_reverse() {
    assert_eq!(stems(&kernels(), "cu"), stems(&kernels().join("emulate"), "cpp"));
    assert!(!stems(&kernels(), "cu").is_empty());
}

#[test]
fn emulated_kernels_agree_with_float64() {
    if !compiler_is_there() {
        aloud("skipped: emulation of the CUDA kernels needs a C++ compiler named c++");
        return;
    }
    let failed = failures(&stems(&kernels(), "cu"), |name| {
        let source = kernels().join("emulate").join(name).with_extension("cpp");
        let program = build(&source, &["-O2", "-fno-strict-aliasing"])?;
        let output = Command::new(program).output().map_err(|error| error.to_string())?;
        let lines = said(&output);
        print!("{lines}");
        let checked = lines.lines().any(|line| line.starts_with("ok"));
        if output.status.success() && checked { Ok(()) } else { Err(lines) }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_emulation_sees_faults() {
    if !compiler_is_there() {
        aloud("skipped: emulation of the CUDA kernels needs a C++ compiler named c++");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/faults.cpp");
    let program = build(&source, &["-O2", "-fno-strict-aliasing"]).expect("the kernels with faults compile");
    let exit = |fault: &str| Command::new(&program).arg(fault).output().expect("the program starts").status.code();
    assert_eq!(exit("none"), Some(0));
    let faults = ["barrier", "wait", "copy-barrier", "left", "bounds", "alignment", "lanes", "unwritten", "nan"];
    for fault in faults {
        assert_eq!(exit(fault), Some(1), "{fault}");
    }
}

/// The library from `SKRULL_NVRTC` (a file, or a folder that holds it) or from the folder that the script fills.
fn nvrtc() -> Option<PathBuf> {
    let named = std::env::var_os("SKRULL_NVRTC").map(PathBuf::from);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc/nvidia/cu13/lib");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../nvrtc/nvidia/cu13/lib");
    let places = match named {
        Some(place) => vec![place],
        None => vec![target, script],
    };
    places.into_iter().find_map(|place| if place.is_file() { Some(place) } else { library_in(&place) })
}

fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so")))
        .collect();
    found.sort();
    found.pop()
}

/// Bytes per thread that a kernel may spill: a few cold words beside 255 registers in use cost nothing that is measurable.
const SPILL_BYTES_MAX: u32 = 32;

/// The line of the assembler's report that shows more spills than that, if any kernel has one.
fn spill(log: &str) -> Option<&str> {
    let stores = |line: &str| -> Option<u32> {
        let before = line.split(" bytes spill stores").next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    log.lines()
        .filter(|line| line.contains("bytes spill stores"))
        .find(|line| stores(line).is_none_or(|bytes| bytes > SPILL_BYTES_MAX))
}

#[test]
fn nvrtc_compiles_every_kernel_for_hopper_and_ampere() {
    let Some(library) = nvrtc() else {
        aloud("skipped: compiling the CUDA kernels needs NVRTC; scripts/nvrtc.sh fetches it, or set SKRULL_NVRTC");
        return;
    };
    if !compiler_is_there() {
        aloud("skipped: compiling the CUDA kernels needs a C++ compiler named c++ to load NVRTC");
        return;
    }
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/nvrtc.cpp");
    let program = build(&driver, &["-O1"]).expect("the program that loads NVRTC compiles");
    let failed = failures(&stems(&kernels(), "cu"), |name| {
        let source = kernels().join(name).with_extension("cu");
        let output = Command::new(&program).arg(&library).arg(source).arg(kernels().join("common.cuh")).output();
        let output = output.map_err(|error| error.to_string())?;
        let log = said(&output);
        println!("{name}\n{log}");
        match spill(&log) {
            _ if !output.status.success() => Err(log),
            Some(line) => Err(format!("a kernel spills too many registers: {line}")),
            None => Ok(()),
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_spill_is_found_in_the_report() {
    let clean = "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    assert_eq!(spill(clean), None);
    let spilled = "ptxas         .     48 bytes stack frame, 40 bytes spill stores, 36 bytes spill loads";
    assert_eq!(spill(spilled), Some(spilled));
}
