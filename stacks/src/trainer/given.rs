//! What files of a job say: keys of a YAML, flags of a command, and those of files that lie beside either.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::{Dialect, is_true};
use crate::Machine;
use crate::environment::{self, Variable};
use crate::flags::{Flag, is_flag, named};
use crate::launch::{self, Launch};
use crate::shell::UNKNOWN;
use crate::yaml::{self, Entry};

/// Words of a job, whose they are, and the GPUs that are started.
pub(super) struct Given {
    pub(super) dialect: Dialect,
    pub(super) flags: Vec<Flag>,
    /// Whether they stand in a command, with dashes in front.
    pub(super) is_command: bool,
    pub(super) gpus: (Option<u32>, Option<u32>),
    pub(super) findings: Vec<Finding>,
}

/// Files beside a job that are read.
const BESIDE_MAX: usize = 8;
/// Words in front of the name of a file that is read.
const BEFORE_FILES: [&str; 6] =
    ["deepspeed", "deepspeed_config", "deepspeed_config_file", "config_file", "config", "fsdp_config"];
/// Ends of the names of such files.
const FILES: [&str; 3] = [".yaml", ".yml", ".json"];
/// Programs of TRL (`examples/scripts`, `scripts` of alignment-handbook).
const TRL: [&str; 11] =
    ["sft", "dpo", "orpo", "kto", "cpo", "reward_modeling", "run_sft", "run_dpo", "run_orpo", "grpo", "rloo"];
/// Keys of which a YAML of TRL has at least one.
const OF_TRAINER: [&str; 5] =
    ["per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "max_length", "max_seq_length"];
/// Keys of which a YAML of LLaMA-Factory has at least one.
const OF_LLAMA_FACTORY: [&str; 4] = ["finetuning_type", "cutoff_len", "template", "stage"];
/// Keys of which a YAML of Axolotl has at least one.
const OF_AXOLOTL: [&str; 4] = ["sequence_len", "micro_batch_size", "adapter", "datasets"];
/// What `swift` trains by, and words that say of a YAML that it is of ms-swift.
const OF_SWIFT: [&str; 3] = ["sft", "pt", "rlhf"];
const SWIFT_STARTS: [&str; 6] =
    ["swift sft", "swift pt", "swift rlhf", "swift/cli/sft.py", "swift/cli/pt.py", "swift/cli/rlhf.py"];
/// What starts processes, and no stack's own program.
const STARTERS: [&str; 2] = ["accelerate", "deepspeed"];

/// Whose words a text has.
pub(super) fn dialect(text: &str) -> Option<Dialect> {
    of_keys(text).or_else(|| of_commands(text))
}

/// Whose YAML a text is.
fn of_keys(text: &str) -> Option<Dialect> {
    let keys: Vec<&str> = text.lines().filter_map(top_key).collect();
    let has = |key: &str| keys.contains(&key);
    let has_any = |some: &[&str]| some.iter().any(|key| has(key));
    if text.contains("_component_: torchtune.") && has_any(&["optimizer", "loss"]) {
        Some(Dialect::Torchtune)
    } else if has("base_model") && has_any(&OF_AXOLOTL) {
        Some(Dialect::Axolotl)
    } else if has("model") && has_any(&super::TUNERS) {
        Some(Dialect::Swift)
    } else if has("model_name_or_path") && has_any(&OF_LLAMA_FACTORY) {
        Some(Dialect::LlamaFactory)
    } else if has("model_name_or_path") && has_any(&OF_TRAINER) {
        Some(Dialect::Trl)
    } else if has("distributed_type") && has_any(&["num_processes", "mixed_precision"]) {
        Some(Dialect::Trainer)
    } else {
        None
    }
}

/// The key of a line that begins with one.
fn top_key(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let is_word = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    (is_word && (rest.is_empty() || rest.starts_with([' ', '\r']))).then_some(key)
}

/// Whose program a script starts.
fn of_commands(text: &str) -> Option<Dialect> {
    let has = |marks: &[&str]| launch::has_any(text, marks);
    let starts_trl = || {
        let words = launch::lines(text).flat_map(str::split_whitespace);
        let names = words.filter_map(|word| {
            word.strip_prefix("trl.scripts.").or_else(|| word.rsplit('/').next()?.strip_suffix(".py"))
        });
        names.into_iter().any(|name| TRL.contains(&name))
    };
    let is_of_trainer =
        has(&["--per_device_train_batch_size", "--per-device-train-batch-size", "--model_name_or_path"]);
    if starts_swift(text) {
        Some(Dialect::Swift)
    } else if has(&["llamafactory-cli", "llamafactory.cli", "train_bash.py"])
        || is_of_trainer && has(&["--finetuning_type"])
    {
        Some(Dialect::LlamaFactory)
    } else if has(&["axolotl train", "axolotl.cli"]) {
        Some(Dialect::Axolotl)
    } else if has(&["tune run "]) {
        Some(Dialect::Torchtune)
    } else if has(&["trl sft", "trl dpo", "trl grpo", "trl kto", "trl rloo"]) || is_of_trainer && starts_trl() {
        Some(Dialect::Trl)
    } else {
        is_of_trainer.then_some(Dialect::Trainer)
    }
}

/// Whether a line starts ms-swift's training in the Trainer; `megatron sft` is another program.
fn starts_swift(text: &str) -> bool {
    launch::has_any(text, &SWIFT_STARTS)
}

/// Whether a line starts a program by one of the starters.
pub(super) fn is_launch(text: &str) -> bool {
    let starts = |line: &str| {
        let first = line.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
        STARTERS.contains(&first) && line.contains(".py")
    };
    launch::lines(text).any(starts)
}

/// Names of files that are read with a text; of a path its last part, which is looked for beside the text.
pub(super) fn named_beside(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in launch::lines(text) {
        let mut before = "";
        for word in line.split([' ', '\t', '=', '"', '\'']).filter(|word| !word.is_empty() && *word != "\\") {
            if is_read_behind(before) && is_file(word) {
                names.extend(launch::bare(word).map(str::to_owned).filter(|name| !names.contains(name)));
            }
            before = word;
        }
    }
    names.truncate(BESIDE_MAX);
    names
}

/// Whether a file behind this word is read: a flag or key that names one, or a program.
fn is_read_behind(word: &str) -> bool {
    let name = word.trim_start_matches('-').trim_end_matches(':').replace('-', "_");
    BEFORE_FILES.contains(&name.as_str())
        || ["train", "sft", "pt", "rlhf"].contains(&name.as_str())
        || name.ends_with(".py")
        || name.starts_with("axolotl.cli")
}

fn is_file(word: &str) -> bool {
    FILES.iter().any(|end| word.ends_with(end))
}

/// Reads a text.
///
/// # Errors
/// What is wrong with it.
pub(super) fn of_text(text: &str, machine: &Machine) -> Result<Given, Finding> {
    if let Some(dialect) = of_keys(text) {
        let flags = of_entries(&yaml::unfolded(text)?);
        let gpus = launch::gpus_on(&of_launcher(&flags), machine);
        return Ok(Given {
            dialect,
            flags,
            is_command: false,
            gpus: or_single(gpus, dialect, text),
            findings: Vec::new(),
        });
    }
    of_script(text, machine)
}

/// A recipe of torchtune for a single device says so in its name.
fn or_single(gpus: (Option<u32>, Option<u32>), dialect: Dialect, text: &str) -> (Option<u32>, Option<u32>) {
    let is_single = dialect == Dialect::Torchtune && text.contains("single_device") && !text.contains("_distributed");
    if is_single && gpus.0.is_none() { (Some(1), Some(1)) } else { gpus }
}

/// Options of Python and of launchers before a module that is the program.
const MODULE: [&str; 2] = ["-m", "--module"];
/// Modules that start others.
const OF_STARTERS: [&str; 3] = ["torch.distributed", "accelerate", "deepspeed"];

/// Which word of a command begins the program.
fn begins(words: &[String]) -> Option<usize> {
    let is_program = |word: &&String| {
        word.ends_with(".py")
            || word.starts_with("axolotl.cli")
            || word.starts_with("llamafactory.cli")
            || word.ends_with("_single_device")
            || word.ends_with("_distributed")
    };
    let is_module = |pair: &[String]| {
        MODULE.contains(&pair[0].as_str()) && !OF_STARTERS.iter().any(|starter| pair[1].starts_with(starter))
    };
    let of_module = words.windows(2).position(is_module).map(|at| at + 1);
    let at = words.iter().position(|word| is_program(&word)).or(of_module);
    let of_swift = || words.windows(2).position(|pair| pair[0] == "swift" && OF_SWIFT.contains(&pair[1].as_str()));
    let others = ["llamafactory-cli", "axolotl", "trl", "tune"];
    at.or_else(of_swift).or_else(|| words.iter().position(|word| others.contains(&word.as_str())))
}

fn of_script(text: &str, machine: &Machine) -> Result<Given, Finding> {
    let asked = of_commands(text).unwrap_or(Dialect::Trainer);
    let knows = |name: &str| asked.table().find(&name.replace('-', "_")).is_some();
    let launch = launch::of_script(text, begins, &knows)?;
    let mut findings = launch.findings.clone();
    let mut flags = Vec::new();
    let mut dialect = asked;
    for (name, at) in files(text, &launch) {
        match machine.beside(&name) {
            Some(beside) => {
                dialect = of_keys(beside)
                    .filter(|one| *one != Dialect::Trainer && asked == Dialect::Trainer)
                    .unwrap_or(dialect);
                let own = of_entries(&yaml::unfolded(beside).map_err(|why| at_place(why.into(), &at))?);
                flags.extend(own.into_iter().map(|flag| Flag { at: at.clone(), ..flag }));
            }
            None => findings.push(absent(&name, &at, machine)),
        }
    }
    let mut of_file = of_launcher(&flags);
    if dialect == Dialect::Trl {
        // Its own command hands them to accelerate (`trl/cli`).
        of_file.extend(of_launcher(&launch.flags.iter().map(underscored).collect::<Vec<Flag>>()));
    }
    let of_variables = of_variables(&launch.environment).into_iter();
    let started: Vec<Flag> = of_file.into_iter().chain(of_variables).chain(launch.launcher.iter().cloned()).collect();
    let is_known = |flag: &&Flag| dialect.table().find(&flag.name.replace('-', "_")).is_some();
    flags.extend(launch.launcher.iter().filter(is_known).map(underscored));
    flags.extend(overrides(&launch.program, &launch.flags));
    flags.extend(launch.flags.iter().map(|flag| positive(underscored(flag), dialect)));
    findings.extend(launch::unknown_gpus(&started, machine));
    let gpus = or_single(launch::gpus_on(&started, machine), dialect, text);
    findings.extend(in_one_process(dialect, &started));
    Ok(Given { dialect, flags, is_command: true, gpus, findings })
}

fn at_place(finding: Finding, at: &Range<usize>) -> Finding {
    Finding { at: Some(at.clone()), ..finding }
}

/// What is said of a file that a command is given and that is not there: how states are shared may stand in it, where an override does not say it.
fn absent(name: &str, at: &Range<usize>, machine: &Machine) -> Finding {
    let what = format!("`{name}` does not lie beside this file: what it says is not read");
    let at = Some(at.clone());
    if machine.states(&["parallel.zero"]) {
        return Finding::warning(Code::MissingFlag, at, what).help("put it into the same folder");
    }
    let help = "put it into the same folder, or say what it does: `--set parallel.zero=3` (0 where nothing is sharded)";
    Finding::error(Code::MissingFlag, at, what).help(help)
}

/// YAML files that a command is given, those of its launcher first, each with its place.
fn files(text: &str, launch: &Launch) -> Vec<(String, Range<usize>)> {
    let configured = launch.launcher.iter().chain(&launch.flags).filter(|flag| is_read_behind(&flag.name));
    let of_flags = configured.flat_map(|flag| flag.values.first().map(|word| (word.clone(), flag.at.clone())));
    let place = |word: &String| {
        let at = text.find(word.as_str()).unwrap_or(0);
        at..at + word.len().min(text.len() - at)
    };
    let of_program = launch.program.iter().map(|word| (word.clone(), place(word)));
    let yamls = of_flags.chain(of_program).filter(|(word, _)| is_file(word) && !word.ends_with(".json"));
    yamls.filter_map(|(word, at)| Some((launch::bare(&word)?.to_owned(), at))).collect()
}

/// Words such as `batch_size=4` behind a program or behind its configuration.
fn overrides(program: &[String], flags: &[Flag]) -> Vec<Flag> {
    let behind = flags.iter().filter(|flag| flag.name == "config").flat_map(|flag| flag.values.iter().skip(1));
    let words = program.iter().skip(1).chain(behind);
    let pairs = words.filter_map(|word| word.split_once('=').filter(|(name, _)| !is_flag(name)));
    pairs.map(|(name, value)| flag(folded(name), value, 0..0)).collect()
}

/// A flag of a command; one without a value turns something on.
fn underscored(flag: &Flag) -> Flag {
    let values = if flag.values.is_empty() { vec!["true".to_owned()] } else { flag.values.clone() };
    Flag { name: flag.name.replace('-', "_"), values, at: flag.at.clone() }
}

/// A switch that is on, turned off by `--no_…` (`_parse_dataclass_field` of transformers `hf_argparser.py`), as the switch with false behind it.
fn positive(flag: Flag, dialect: Dialect) -> Flag {
    let is_known = |name: &str| dialect.table().find(name).is_some();
    match flag.name.strip_prefix("no_").filter(|name| !is_known(&flag.name) && is_known(name)) {
        Some(name) if is_true(&flag.value()) => {
            Flag { name: name.to_owned(), values: vec!["false".to_owned()], ..flag }
        }
        _ => flag,
    }
}

/// What starts processes, among keys of a file: as flags of a launcher.
fn of_launcher(flags: &[Flag]) -> Vec<Flag> {
    let names = ["num_processes", "num_machines", "nproc_per_node", "nnodes"];
    let own = flags.iter().filter(|flag| names.contains(&flag.name.as_str()));
    own.map(|flag| Flag { name: named(&flag.name), ..flag.clone() }).collect()
}

/// GPUs that variables in front of a command say: `CUDA_VISIBLE_DEVICES=0,1`, `NPROC_PER_NODE=4`, `NNODES=2`.
pub(super) fn of_variables(environment: &[Variable]) -> Vec<Flag> {
    const COUNTS: [(&str, &str); 2] = [("nproc-per-node", "NPROC_PER_NODE"), ("nnodes", "NNODES")];
    let devices = environment::devices(environment).map(|n| flag("num-gpus".to_owned(), &n.to_string(), 0..0));
    let counts = COUNTS.into_iter().filter_map(|(flag, name)| counted(environment, flag, name));
    counts.chain(devices).collect()
}

/// ms-swift without `NPROC_PER_NODE` is one process, which spreads the layers over all devices that it sees (`device_map`).
fn in_one_process(dialect: Dialect, started: &[Flag]) -> Option<Finding> {
    let says = |name: &str| started.iter().find(|flag| flag.name == name);
    let devices = says("num-gpus").filter(|flag| flag.value() != "1")?;
    if dialect != Dialect::Swift || says("nproc-per-node").is_some() {
        return None;
    }
    let what = format!(
        "without `NPROC_PER_NODE` one process has the layers on {} devices, one after another: a copy on each is counted",
        devices.value()
    );
    Some(Finding::warning(Code::NotModelled, None, what).help("put `NPROC_PER_NODE=…` in front of `swift`"))
}

/// The number that a variable has; unknown where only a shell knows it.
fn counted(environment: &[Variable], flag: &str, name: &str) -> Option<Flag> {
    let Variable { value, at, .. } = environment.iter().rev().find(|variable| variable.name == name)?;
    let is_number = !value.is_empty() && value.chars().all(|letter| letter.is_ascii_digit());
    let number = if is_number { value.clone() } else { UNKNOWN.to_string() };
    Some(Flag { name: flag.to_owned(), values: vec![number], at: at.clone() })
}

/// Keys of a YAML: those inside others with their names in front, items of a list as words of it.
fn of_entries(entries: &[Entry]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for entry in entries.iter().filter(|entry| !is_null(&entry.value)) {
        let path: Vec<&str> = entry.path.iter().map(String::as_str).filter(|key| *key != "-").collect();
        let name = folded(&path.join("."));
        if entry.value.starts_with('{') {
            let inner = yaml::in_braces(&entry.value).into_iter().filter(|(_, value)| !is_null(value));
            flags.extend(inner.map(|(key, value)| flag(folded(&format!("{name}.{key}")), &value, entry.at.clone())));
            continue;
        }
        match flags.last_mut().filter(|last| entry.key() == "-" && last.name == name) {
            Some(last) => {
                last.values.push(entry.value.clone());
                last.at.end = entry.at.end;
            }
            None => flags.push(flag(name, &entry.value, entry.at.clone())),
        }
    }
    flags
}

fn is_null(value: &str) -> bool {
    ["", "null", "~", "None", "[]", "{}"].contains(&value)
}

fn flag(name: String, value: &str, at: Range<usize>) -> Flag {
    // What another key holds is not followed.
    let word = if value.contains("${") { UNKNOWN.to_string() } else { value.to_owned() };
    Flag { name, values: vec![word], at }
}

/// The name of a key in a section of FSDP or DeepSpeed, which flags have without the section (`accelerate`, `fsdp_config` of the Trainer).
fn folded(name: &str) -> String {
    let name = name.replace('-', "_");
    if let Some(own) = name.strip_prefix("deepspeed_config.") {
        return own.to_owned();
    }
    match name.strip_prefix("fsdp_config.") {
        Some(own) if own.starts_with("fsdp_") => own.to_owned(),
        Some(own) => format!("fsdp_{own}"),
        None => name,
    }
}
