//! Lists the scenarios that are shipped: every file of `scenarios/` but those of `scenarios/bad/`, by name.

use std::fmt::Write as _;
use std::io::Result;
use std::path::{Path, PathBuf};

/// Files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("bad") {
            files(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "toml") {
            found.push(path);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../scenarios");
    let mut found = Vec::new();
    files(&root, &mut found)?;
    found.sort();
    let mut list = String::from("&[\n");
    for path in found {
        let name = path.strip_prefix(&root).expect("below it").with_extension("");
        // Names have slashes on every system.
        let name = name.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        writeln!(list, "    ({name:?}, include_str!({:?})),", path.display().to_string()).expect("text");
    }
    list.push(']');
    std::fs::write(Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("scenarios.rs"), list)
}
