//! Options of torchtitan in a TOML file, as releases before 2026 had them (`--job.config_file`, pytorch/torchtitan `torchtitan/config/job_config.py`).

use std::ops::Range;

use input::diagnostic::{Code, Finding};
use toml_span::Value;
use toml_span::value::ValueInner;

use crate::Machine;
use crate::flags::{Flag, named};

/// Options whose value is the name of such a file, as the command and as its script have them.
const NAMED_BY: [&str; 2] = ["job.config-file", "config"];
/// Sections that such a file has and no scenario.
const OWN_SECTIONS: [&str; 2] = ["job", "parallelism"];

/// Whether a TOML is such a file.
pub(crate) fn is_file(root: &Value<'_>) -> bool {
    let Some(table) = root.as_table() else { return false };
    let is_section = |name: &&str| table.get(*name).is_some_and(|value| value.as_table().is_some());
    is_section(&"training") && OWN_SECTIONS.iter().any(is_section) && !table.contains_key("kind")
}

/// Names of such files in a text, without their folders.
pub(crate) fn names(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| letter.is_whitespace() || "\"'={}/\\".contains(letter));
    words.filter(|word| word.len() > ".toml".len() && word.ends_with(".toml")).map(str::to_owned).collect()
}

/// Options of the file that flags name, where it lies beside the script. They point to the flag.
pub(super) fn beside(flags: &[Flag], machine: &Machine) -> Option<Result<Vec<Flag>, Finding>> {
    let of_file = |flag: &&Flag| NAMED_BY.contains(&flag.name.as_str()) && flag.value().ends_with(".toml");
    let flag = flags.iter().rev().find(of_file)?;
    let path = flag.value();
    let text = machine.beside(path.rsplit('/').next()?)?;
    Some(options(text, Some(&flag.at)))
}

/// Options of a file, each with its place or with that of the flag that names the file.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn options(text: &str, at: Option<&Range<usize>>) -> Result<Vec<Flag>, Finding> {
    let root = toml_span::parse(text).map_err(|why| {
        let what = format!("the configuration is no TOML: {why}");
        Finding::error(Code::UnreadableScript, at.cloned(), what).help("torchtitan reads it as TOML too")
    })?;
    let mut flags = Vec::new();
    add(&mut flags, "", &root, at);
    Ok(flags)
}

/// Adds what a value says under a name: sections are parts of names, with points between them.
fn add(flags: &mut Vec<Flag>, name: &str, value: &Value<'_>, at: Option<&Range<usize>>) {
    let ValueInner::Table(table) = value.as_ref() else {
        let at = at.cloned().unwrap_or(value.span.start..value.span.end);
        flags.push(Flag { name: named(name), values: words(value), at });
        return;
    };
    for (key, inner) in table {
        let gap = if name.is_empty() { "" } else { "." };
        add(flags, &format!("{name}{gap}{}", key.name), inner, at);
    }
}

/// A value as words of a command.
fn words(value: &Value<'_>) -> Vec<String> {
    match value.as_ref() {
        ValueInner::String(text) => vec![text.to_string()],
        ValueInner::Integer(number) => vec![number.to_string()],
        ValueInner::Float(number) => vec![number.to_string()],
        ValueInner::Boolean(flag) => vec![flag.to_string()],
        ValueInner::Array(items) => items.iter().flat_map(words).collect(),
        ValueInner::Table(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{has_parts, on};
    use crate::torchtitan::import::import;

    const FILE: &str = "[model]\nname = \"llama3\"\nflavor = \"70B\"\nconverters = [\"float8\"]\n[training]\nlocal_batch_size = 1\nseq_len = 16384\n\
        [parallelism]\ntensor_parallel_degree = 4\n[activation_checkpoint]\nmode = \"full\"\n[compile]\nenable = true\n";
    const SCRIPT: &str =
        "torchrun --nproc_per_node=8 --nnodes 32 -m torchtitan.train --job.config_file ./conf/llama3_8b.toml";

    fn machine(files: &[(&str, &str)]) -> Machine {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Machine { files, ..on("h100-sxm") }
    }

    #[test]
    fn a_file_beside_the_script_stands_in_the_place_of_a_known_configuration() {
        let parts = [
            "llama-3-70b",
            "tp = 4",
            "bucket_tokens = 16384",
            "recompute = \"full\"",
            "compile = true",
            "products = \"fp8\"",
        ];
        let found = import(SCRIPT, &machine(&[("llama3_8b.toml", FILE)]));
        has_parts(&found, &parts);
        // What the command says counts before what the file says.
        let found = import(&format!("{SCRIPT} --training.seq_len 4096"), &machine(&[("llama3_8b.toml", FILE)]));
        assert!(found.scenario.contains("bucket_tokens = 4096"), "{}", found.scenario);
        // Without the file the configuration of that name is taken, which is said.
        let found = import(SCRIPT, &machine(&[]));
        assert!(
            found.scenario.contains("llama-3-8b") && found.findings.iter().any(|one| one.what.contains("llama3_8b"))
        );
        let wrong = import(SCRIPT, &machine(&[("llama3_8b.toml", "[model")]));
        assert!(wrong.findings.iter().any(|one| one.code == Code::UnreadableScript), "{:?}", wrong.findings);
    }

    #[test]
    fn a_file_by_itself_is_a_job() {
        assert_eq!(crate::recognise(FILE), Some(crate::Stack::Torchtitan));
        let found = import(FILE, &Machine { nodes: Some(2), gpus_per_node: Some(8), ..machine(&[]) });
        assert!(found.scenario.contains("llama-3-70b") && found.scenario.contains("nodes = 2"), "{}", found.scenario);
        // A scenario has neither of the sections, or says what it is.
        for scenario in ["kind = \"training\"\n[training]\n[job]\n", "[training]\nbatch_size = 8\n"] {
            assert_eq!(crate::recognise(scenario), None, "{scenario}");
        }
        assert_eq!(names("CONFIG=${CONFIG_FILE:-\"./a/b.toml\"} --job.config_file=c.toml .toml"), ["b.toml", "c.toml"]);
    }
}
