//! The libraries of the stand-in CUDA machine, compiled into the folder for test outputs unless they are newer than all sources.
//!
//! `standin/` has the three that every machine has, under the names that the loader finds; `standin/python` is the prefix of a Python whose
//! packages have the versioned ones and NCCL; `standin/lacking` has a library of products without the product, `standin/old` an old driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// Folder of NVIDIA's packages below a Python's prefix.
const PACKAGES: &str = "python/lib/python3.12/site-packages/nvidia";

/// Where the libraries are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin")
}

/// Whether this machine can compile them.
pub fn has_compiler() -> bool {
    Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What a program said.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// C++ sources of a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.is_file() && path.extension().is_none_or(|extension| extension != "rs")).collect();
    files.sort();
    files
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

/// Compiles what is missing or old, from the folder of the crate `calibrate`; one test at a time does that.
pub fn libraries(calibrate: &Path) -> PathBuf {
    static ONCE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONCE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = folder();
    std::fs::create_dir_all(&folder).expect("a folder for test outputs");
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let (sources, kernels) = (calibrate.join("tests/standin"), calibrate.join("kernels"));
    let all = [sources.clone(), kernels.join("emulate"), kernels].iter().flat_map(|one| files(one)).collect::<Vec<_>>();
    let newest: Option<SystemTime> = all.iter().filter_map(changed).max();
    let last = folder.join("libcublasLt.so");
    if changed(&last).is_some_and(|time| newest < Some(time)) {
        return folder;
    }
    driver(&sources, &folder);
    let packages = folder.join(PACKAGES);
    for package in ["cu13/lib", "nccl/lib"] {
        std::fs::create_dir_all(packages.join(package)).expect("a folder for test outputs");
    }
    std::fs::create_dir_all(folder.join("lacking")).expect("a folder for test outputs");
    let cuda = folder.join("libcuda.so");
    let named = |name: &str| format!("-Wl,-soname,{name}");
    let library = |source: &str, name: &str, more: &[&str], to: &Path| {
        compile(&[&["-shared", &named(name)], more].concat(), &[&sources.join(source), &cuda], to);
    };
    library("nccl.cpp", "libnccl.so.2", &[], &packages.join("nccl/lib/libnccl.so.2"));
    let lacking = folder.join("lacking/libcublasLt.so");
    library("cublaslt.cpp", "libcublasLt.so.13", &["-DSTANDIN_WITHOUT_PRODUCT"], &lacking);
    for (source, name) in [("nvrtc.cpp", "libnvrtc"), ("cublaslt.cpp", "libcublasLt")] {
        let version = format!("{name}.so.13");
        let packed = packages.join("cu13/lib").join(&version);
        library(source, &version, &[], &packed);
        std::fs::copy(packed, folder.join(format!("{name}.so"))).expect("a library that was built");
    }
    folder
}

/// The driver with all kernels, which take the longest to compile.
fn driver(sources: &Path, folder: &Path) {
    let units: Vec<PathBuf> =
        files(sources).into_iter().filter(|path| path.to_string_lossy().contains("/kernels_")).collect();
    let object = |path: &Path| folder.join(path.file_name().expect("a file")).with_extension("o");
    std::thread::scope(|scope| {
        for half in units.chunks(units.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(|unit| compile(&["-c"], &[unit], &object(unit))));
        }
    });
    let cuda = sources.join("cuda.cpp");
    let objects: Vec<PathBuf> = units.iter().map(|unit| object(unit)).collect();
    let paths: Vec<&Path> = std::iter::once(cuda.as_path()).chain(objects.iter().map(PathBuf::as_path)).collect();
    let shared = ["-shared", "-Wl,-soname,libcuda.so"];
    compile(&shared, &paths, &folder.join("libcuda.so"));
    std::fs::create_dir_all(folder.join("old")).expect("a folder for test outputs");
    compile(&[&shared[..], &["-DSTANDIN_OLD"]].concat(), &paths, &folder.join("old/libcuda.so"));
}
