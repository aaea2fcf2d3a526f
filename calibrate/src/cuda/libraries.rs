//! The CUDA libraries on this machine: where the loader finds them, else where toolkits and Python packages keep them.
//!
//! The loader looks in `LD_LIBRARY_PATH` and in the system's folders. Machines that were set up for Python have NVRTC, cuBLASLt and NCCL
//! in `site-packages/nvidia` only, under names with a version (`libnvrtc.so.13`); what lies there is loaded by its path first, and is then
//! known under its own name to whoever asks the loader.

use super::missing::Missing;
use std::path::{Path, PathBuf};

use libloading::Library;

/// A library, and the names that its file has.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// What it is, in words.
    pub what: &'static str,
    /// File names, the one without a version first.
    pub names: &'static [&'static str],
}

/// The driver: it comes with the kernel module and is never in a toolkit.
pub const DRIVER: Wanted = Wanted { what: "the CUDA driver", names: &["libcuda.so", "libcuda.so.1"] };
/// The run-time compiler.
pub const COMPILER: Wanted = Wanted { what: "NVRTC", names: &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"] };
/// Products.
pub const PRODUCTS: Wanted =
    Wanted { what: "cuBLASLt", names: &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"] };
/// Exchanges.
pub const EXCHANGES: Wanted = Wanted { what: "NCCL", names: &["libnccl.so", "libnccl.so.2"] };

/// Loads a library.
///
/// # Errors
/// Where it was looked for, or why what was found does not load.
pub fn load(wanted: Wanted) -> Result<Library, Missing> {
    if let Some(library) = wanted.names.iter().find_map(|name| open(Path::new(name)).ok()) {
        return Ok(library);
    }
    let folders = folders();
    let mut broken = None;
    for path in folders.iter().flat_map(|folder| wanted.names.iter().map(|name| folder.join(name))) {
        if !path.is_file() {
            continue;
        }
        match open(&path) {
            Ok(library) => return Ok(library),
            Err(why) => broken = broken.or(Some(Missing::Broken { path, why })),
        }
    }
    let (what, names, n_folders) = (wanted.what, wanted.names.join(", "), folders.len());
    Err(broken.unwrap_or(Missing::Library { what, names, n_folders }))
}

/// Loads a library that others find by its name from then on.
///
/// # Errors
/// As [`load`].
pub fn keep(wanted: Wanted) -> Result<(), Missing> {
    load(wanted).map(std::mem::forget)
}

fn open(path: &Path) -> Result<Library, libloading::Error> {
    #[expect(unsafe_code, reason = "loads a library of NVIDIA")]
    // SAFETY: loading a library of this name runs its initialisers only.
    unsafe {
        Library::new(path)
    }
}

/// Folders in which toolkits and packages keep libraries, those that the environment names first.
fn folders() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named).chain(installed());
    let mut all: Vec<PathBuf> = toolkits.flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("lib")]).collect();
    // The folder above that of each `python3`, environments that are switched on, and packages of this user.
    let search = std::env::var_os("PATH").unwrap_or_default();
    let with_python = std::env::split_paths(&search).filter(|folder| folder.join("python3").exists());
    let above = with_python.filter_map(|folder| folder.parent().map(Path::to_path_buf));
    let user = named("HOME").map(|home| home.join(".local"));
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(named).chain(above).chain(user);
    for prefix in prefixes {
        all.extend(packages(&prefix));
        all.push(prefix.join("lib"));
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    all
}

/// Toolkits in their usual places, the newest first; and where containers mount the driver.
fn installed() -> Vec<PathBuf> {
    let mut versions = below(Path::new("/usr/local"), "cuda-");
    versions.reverse();
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
    usual
        .into_iter()
        .chain(versions)
        .chain([PathBuf::from("/usr/local/nvidia"), PathBuf::from("/usr/lib/wsl")])
        .collect()
}

/// Folders of NVIDIA's packages for a Python below this prefix.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let pythons = ["lib", "lib64"].into_iter().flat_map(|lib| below(&prefix.join(lib), "python3"));
    let sites =
        pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name).join("nvidia")));
    sites.flat_map(|site| below(&site, "")).map(|package| package.join("lib")).collect()
}

/// Entries of a folder whose names begin so, in order.
fn below(folder: &Path, begin: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
    let mut paths: Vec<PathBuf> = names.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_python_are_found_below_their_prefix() {
        let prefix = std::env::temp_dir().join(format!("skrull-sim-libraries-{}", std::process::id()));
        let site = prefix.join("lib/python3.12/site-packages/nvidia");
        for package in ["nccl/lib", "cu13/lib"] {
            std::fs::create_dir_all(site.join(package)).expect("a temporary folder");
        }
        assert_eq!(packages(&prefix), ["cu13/lib", "nccl/lib"].map(|package| site.join(package)));
        assert!(packages(&prefix.join("lib")).is_empty());
        std::fs::remove_dir_all(prefix).expect("removed");
    }

    #[test]
    fn what_is_nowhere_is_named_with_all_that_was_tried() {
        let nowhere = Wanted { what: "the library of nothing", names: &["libno-such.so", "libno-such.so.7"] };
        let why = load(nowhere).expect_err("it does not exist").to_string();
        assert!(why.starts_with("the library of nothing was not found: no libno-such.so, libno-such.so.7 "), "{why}");
        assert_eq!(why.lines().count(), 1);
    }
}
