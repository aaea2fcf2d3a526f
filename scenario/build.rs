//! Lists the scenarios that are shipped, by name, and the files that they name: every file of `scenarios/` but those of `scenarios/bad/`. Those that are
//! wrong are a list of their own.

use std::fmt::Write as _;
use std::io::Result;
use std::path::{Path, PathBuf};

/// The folder of scenarios that are wrong.
const WRONG: &str = "bad";

/// Files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with(WRONG) {
            files(&path, found)?;
        } else if path.is_file() {
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
    let mut wrong = Vec::new();
    files(&root.join(WRONG), &mut wrong)?;
    wrong.sort();
    let is_scenario = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "toml");
    let (scenarios, data): (Vec<PathBuf>, Vec<PathBuf>) = found.into_iter().partition(is_scenario);
    write("scenarios.rs", &listed(&root, named(scenarios.iter()), "include_str"))?;
    let wrong = wrong.iter().filter(|path| is_scenario(path));
    write("wrong.rs", &listed(&root, named(wrong), "include_str"))?;
    let data = data.iter().filter(|path| path.extension().is_some_and(|ending| ending != "md"));
    write("data.rs", &listed(&root, data.map(|path| (path.clone(), path)), "include_bytes"))
}

/// Files with their names.
fn named<'a>(files: impl Iterator<Item = &'a PathBuf>) -> impl Iterator<Item = (PathBuf, &'a PathBuf)> {
    files.map(|path| (path.with_extension(""), path))
}

/// Names below a folder with what includes their files.
fn listed<'a>(root: &Path, found: impl Iterator<Item = (PathBuf, &'a PathBuf)>, include: &str) -> String {
    let mut list = String::from("&[\n");
    for (name, path) in found {
        let name = name.strip_prefix(root).expect("below it");
        // Names have slashes on every system.
        let name = name.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        writeln!(list, "    ({name:?}, {include}!({:?})),", path.display().to_string()).expect("text");
    }
    list.push(']');
    list
}

fn write(name: &str, text: &str) -> Result<()> {
    std::fs::write(Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join(name), text)
}
