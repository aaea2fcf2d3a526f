//! What torchtitan is told beside its options: the variables of `run_train.sh`, and the configurations that it ships.

use std::ops::Range;
use std::sync::LazyLock;

use engine::model::of_checkpoint;
use input::diagnostic::Code;

use crate::environment::Variable;
use crate::flags::{Flag, Flags, named, rows};
use crate::launch::Launch;
use crate::shell::UNKNOWN;

/// Configurations by their names: checkpoint, sequences of a micro-batch on a replica, tokens of a sequence, other options.
static KNOWN: LazyLock<Vec<[&str; 5]>> = LazyLock::new(|| rows(include_str!("../../tables/torchtitan_configs.tsv")));
/// Where the table is from.
const SOURCE: &str = "pytorch/torchtitan @ b5bcd76c66d0";
/// The script that comes with torchtitan, and the flags that its variables stand for, with what it takes where nobody sets them.
const SCRIPT: &str = "run_train.sh";
const VARIABLES: [(&str, &str, &str); 3] = [
    ("NGPU", "nproc-per-node", "8"),
    ("CONFIG", "config", "llama3_debugmodel"),
    ("CONFIG_FILE", "job.config-file", ""),
];
/// Options of older releases about lengths and batches: a file that has one of them counts sequences, and not tokens.
const OLDER: [&str; 4] =
    ["training.seq-len", "training.local-batch-size", "training.batch-size", "training.global-batch-size"];
/// Options that say the same as others.
const ALIKE: [(&str, &str); 5] = [
    ("ac.mode", "activation-checkpoint.mode"),
    ("training.compile", "compile.enable"),
    ("model-converters", "model.converters"),
    ("parallelism.enable-async-tensor-parallel", "compile.enable-async-tensor-parallel"),
    ("experimental.enable-async-tensor-parallel", "compile.enable-async-tensor-parallel"),
];

/// Whether a text starts the script of torchtitan with its variables, or with options of its own.
pub(crate) fn is_script(text: &str) -> bool {
    let has_variables = VARIABLES[1..].iter().any(|(name, ..)| text.contains(&format!("{name}=")));
    text.contains(SCRIPT) && (has_variables || text.contains("--module") || names_known(text))
}

/// Whether a text has `--config` with a configuration that torchtitan ships.
fn names_known(text: &str) -> bool {
    let words =
        text.split("--config").skip(1).filter_map(|rest| rest.trim_start_matches(['=', ' ']).split_whitespace().next());
    words.map(stem).any(|name| KNOWN.iter().any(|[known, ..]| *known == name))
}

/// Puts the variables of the script into the launch as the flags that they stand for, where nothing else says them.
pub(super) fn variables(launch: &mut Launch) {
    if !launch.program.first().is_some_and(|word| word.ends_with(SCRIPT)) {
        return;
    }
    let environment = launch.environment.clone();
    let has_file = set(&environment, "CONFIG_FILE").is_some();
    for (variable, flag, usual) in VARIABLES {
        let (value, at) = set(&environment, variable).unwrap_or_else(|| (usual.to_owned(), 0..0));
        // A file is a configuration too.
        let is_left = value.is_empty() || flag == "config" && has_file;
        let flags = if flag == "nproc-per-node" { &mut launch.launcher } else { &mut launch.flags };
        if !is_left && !flags.iter().any(|known| known.name == flag) {
            flags.insert(0, Flag { name: flag.to_owned(), values: vec![value], at });
        }
    }
}

/// The value that a variable has where the script of torchtitan starts, and where it stands.
fn set(environment: &[Variable], name: &str) -> Option<(String, Range<usize>)> {
    let variable = environment.iter().rev().find(|variable| variable.name == name)?;
    let is_known = !variable.value.is_empty() && !variable.value.contains(UNKNOWN);
    is_known.then(|| (variable.value.clone(), variable.at.clone()))
}

/// What a configuration is called: a name, or the stem of a file.
fn stem(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name).trim_end_matches(".toml")
}

/// The family of a configuration: what stands before the size, `deepseek_v3` of `deepseek_v3_16b_hybridep`.
pub(super) fn family(name: &str) -> String {
    let is_family = |part: &&str| !part.starts_with(|first: char| first.is_ascii_digit()) && *part != "debugmodel";
    stem(name).split('_').take_while(is_family).collect::<Vec<_>>().join("_")
}

/// The model of a configuration: by its own name, or by the checkpoint that the table has.
pub(super) fn model(name: &str) -> String {
    let stem = stem(name);
    let is_known = |row: &&[&str; 5]| row[0].eq_ignore_ascii_case(stem);
    let known = KNOWN.iter().find(is_known).filter(|_| of_checkpoint(stem).is_none());
    known.map_or(stem, |[_, checkpoint, ..]| checkpoint).to_owned()
}

/// Puts what the named configuration sets in front of the options, and says it; or says that it is not known.
pub(super) fn add(flags: &mut Flags<'_>, name: Option<&str>) {
    let is_older = OLDER.iter().any(|name| flags.find(name).is_some());
    let known = name.and_then(|name| KNOWN.iter().find(|[known, ..]| *known == stem(name)));
    let Some([name, _, sequences, tokens, others]) = known else { return unknown(flags, is_older) };
    let counts = |text: &str| text.parse::<u64>().unwrap_or(1);
    let micro_batch = counts(sequences) * counts(tokens);
    let mut words = if is_older {
        vec![format!("training.seq_len={tokens}"), format!("training.local_batch_size={sequences}")]
    } else {
        vec![
            format!("training.max_context_length={tokens}"),
            format!("training.num_tokens_per_microbatch_per_dp_rank={micro_batch}"),
        ]
    };
    words.extend(others.split(' ').map(str::to_owned));
    words.retain(|word| !is_stated(flags, word));
    if words.is_empty() {
        return;
    }
    let what = format!("the configuration `{name}` gives {}", words.join(", "));
    let is_of_file = flags.find("job.config-file").is_some();
    let beside = if is_of_file { ", or put the file into the same folder" } else { "" };
    let help = format!("they are those of {SOURCE}: write what your release has otherwise as options{beside}");
    flags.warn(Code::MissingFlag, None, what, help);
    flags.given.splice(0..0, words.iter().filter_map(|word| option(word)));
}

/// An option as a flag.
fn option(word: &str) -> Option<Flag> {
    let (name, value) = word.split_once('=')?;
    Some(Flag::added(&named(name), vec![value.to_owned()]))
}

/// Whether options state what a word of the table does, under any of its names.
fn is_stated(flags: &Flags<'_>, word: &str) -> bool {
    let name = named(word.split('=').next().unwrap_or(word));
    let is_other = |other: &str| {
        flags.find(other).is_some()
            || name == "training.local-batch-size" && flags.find("training.batch-size").is_some()
    };
    let (section, own) = name.split_once('.').unwrap_or(("", &name));
    is_other(&name)
        || is_other(&format!("{section}.no-{own}"))
        || ALIKE.iter().any(|(other, usual)| *usual == name && is_other(other))
}

/// Says what is taken of lengths and batches where no configuration is known that has them.
fn unknown(flags: &mut Flags<'_>, is_older: bool) {
    let usual: [(&str, &str); 2] = if is_older {
        [("training.seq-len", "2048"), ("training.local-batch-size", "8")]
    } else {
        [("training.max-context-length", "2048"), ("training.num-tokens-per-microbatch-per-dp-rank", "16384")]
    };
    let open: Vec<String> = usual
        .iter()
        .filter(|(name, value)| !is_stated(flags, &format!("{name}={value}")))
        .map(|(name, value)| format!("`--{} {value}`", name.replace('-', "_")))
        .collect();
    if !open.is_empty() {
        let what = format!("no configuration is known that says lengths and batch: taken are {}", open.join(" and "));
        let help = "write these options, or name a configuration that torchtitan ships: `--config llama3_8b`";
        flags.warn(Code::MissingFlag, None, what, help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::on;
    use crate::torchtitan::import::FLAGS;

    #[test]
    fn configurations_name_models_of_the_catalogue_and_options_of_the_table() {
        assert!(include_str!("../../tables/torchtitan_configs.tsv").contains(SOURCE.split(" @ ").last().unwrap()));
        assert!(KNOWN.len() > 15, "{}", KNOWN.len());
        for [name, checkpoint, sequences, tokens, words] in KNOWN.iter() {
            assert!(
                of_checkpoint(checkpoint).is_some() && of_checkpoint(&model(name)).is_some(),
                "{name}: {checkpoint}"
            );
            assert!(sequences.parse::<u64>().is_ok() && tokens.parse::<u64>().is_ok(), "{name}");
            for word in words.split(' ') {
                let flag = option(word).unwrap_or_else(|| panic!("{name}: {word}"));
                assert!(FLAGS.find(&flag.name).is_some(), "{name}: {word}");
            }
        }
    }

    /// The scenario of a script, and what is said of it.
    fn read(text: &str) -> (String, Vec<String>) {
        assert_eq!(crate::recognise(text), Some(crate::Stack::Torchtitan), "{text}");
        let read = crate::torchtitan::import::import(text, &on("h100-sxm"));
        (read.scenario, read.findings.into_iter().map(|finding| finding.what).collect())
    }

    fn check(text: &str, lines: &[&str]) -> Vec<String> {
        let (scenario, said) = read(text);
        for line in lines {
            assert!(scenario.lines().any(|own| own.starts_with(line)), "`{line}` of {text}: {scenario}");
        }
        said
    }

    const RUN: &str = "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config";

    #[test]
    fn variables_of_the_script_are_its_flags() {
        let of_8b = ["name = \"llama-3-8b\"", "gpus_per_node = 8", "tokens = 8192", "bucket_tokens = 8192"];
        let said = check("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh\n", &of_8b);
        assert!(
            matches!(&said[..], [one] if one.contains("`llama3_8b` gives training.max_context_length=8192")),
            "{said:?}"
        );
        check(
            "export CONFIG=llama3_8b\nNGPU=4 ./run_train.sh --parallelism.tensor_parallel_degree 2\n",
            &["gpus_per_node = 4"],
        );
        let file = "CONFIG_FILE=./train_configs/llama3_70b.toml ./run_train.sh --training.local_batch_size 1\n";
        check(file, &["tp = 8", "recompute = \"full\"", "bucket_tokens = 8192", "tokens = 8192"]);
        for options in ["--module llama3 --config llama3_8b", "--config=llama3_8b"] {
            check(
                &format!("NGPU=4 ./run_train.sh {options}\n"),
                &["name = \"llama-3-8b\"", "gpus_per_node = 4", "tokens = 8192"],
            );
        }
        assert_eq!(crate::recognise("./run_train.sh --config mine.yaml\n"), None);
        // What its caller sets is the script's own.
        let (_, said) = read("CONFIG=$1 ./run_train.sh\n");
        assert!(said.iter().any(|what| what.contains("`llama3_debugmodel` is not in the catalogue")), "{said:?}");
    }

    /// A flavor is another size of the family, and the configuration's lengths stay.
    #[test]
    fn a_flavor_of_the_command_counts_before_that_of_the_configuration() {
        let file = "CONFIG_FILE=./train_configs/llama3_8b.toml ./run_train.sh";
        for (options, name) in [
            ("--model.flavor 70B", "llama-3-70b"),
            ("--model.name llama3 --model.flavor 405B", "llama-3.1-405b"),
            ("--model.flavor 8B", "llama-3-8b"),
        ] {
            check(&format!("{file} {options}\n"), &[&format!("name = \"{name}\""), "tokens = 8192"]);
            check(&format!("{RUN} llama3_8b {options}\n"), &[&format!("name = \"{name}\"")]);
        }
        assert_eq!(family("deepseek_v3_16b_hybridep"), "deepseek_v3");
        assert_eq!(family("./llama3_debugmodel.toml"), "llama3");
    }

    /// `get_schedule_class` compares names in small letters, and knows more classes than are modelled.
    #[test]
    fn classes_of_schedules_are_those_of_pytorch() {
        let run = format!(
            "{RUN} llama3_8b --parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule"
        );
        for (class, schedule, is_said) in [
            ("1f1b", "1f1b", false),
            ("interleaved1f1b", "interleaved", false),
            ("LoopedBFS", "interleaved", true),
            ("InterleavedZeroBubble", "interleaved", true),
            ("DualPipeV", "zb-v", true),
        ] {
            let said = check(&format!("{run} {class}\n"), &[&format!("schedule = \"{schedule}\"")]);
            assert_eq!(said.iter().any(|what| what.contains("is not modelled")), is_said, "{class}: {said:?}");
        }
        let said = read(&format!("{run} Interleaved1F1\n")).1;
        assert!(said.iter().any(|what| what.contains("is none of its words")), "{said:?}");
    }

    #[test]
    fn options_lie_over_those_of_the_configuration() {
        check(&format!("{RUN} llama3_8b --training.seq_len 4096\n"), &["tokens = 4096", "bucket_tokens = 4096"]);
        // Two sequences of half the length fill the same tokens.
        let words = "--training.max_context_length 4096 --compile.enable --ac.mode none";
        let lines =
            ["tokens = 4096", "bucket_tokens = 8192", "batch_size = 16", "recompute = \"none\"", "compile = true"];
        let said = check(&format!("{RUN} llama3_8b {words}\n"), &lines);
        assert!(!said[0].contains("activation_checkpoint") && said.len() == 1, "{said:?}");
        let stages = "--parallelism.pipeline_parallel_degree 2 --parallelism.num_pp_microbatches 4";
        check(&format!("{RUN} llama3_8b {stages}\n"), &["batch_size = 16", "bucket_tokens = 8192", "pp = 2"]);
        let step = "--training.num_tokens_per_train_step 131072 --parallelism.context_parallel_degree 2";
        check(&format!("{RUN} llama3_8b {step}\n"), &["batch_size = 16", "bucket_tokens = 4096"]);
    }

    #[test]
    fn configurations_compile_and_exchange_as_they_say() {
        let run = RUN.replace("nproc_per_node=8", "nproc_per_node=8 --nnodes=16");
        let of_405b = ["name = \"llama-3.1-405b\"", "tensor = 0.45", "products = \"fp8\"", "compile = true"];
        check(&format!("{run} llama3_405b\n"), &of_405b);
        check(&format!("{run} llama3_405b --compile.no_enable\n"), &["compile = false"]);
        let of_16b = [
            "name = \"deepseek-v2-lite\"",
            "ep = 8",
            "dispatcher = \"hybridep\"",
            "compile = false",
            "loss = \"native\"",
        ];
        check(&format!("{run} deepseek_v3_16b_hybridep\n"), &of_16b);
    }

    #[test]
    fn lengths_and_batches_that_nothing_says_are_named() {
        let of_old =
            check(&format!("{RUN} llama3_1b_mine --model.name x --training.local_batch_size 2\n"), &["tokens = 2048"]);
        assert!(of_old.iter().any(|what| what.ends_with("taken are `--training.seq_len 2048`")), "{of_old:?}");
        let of_new = check(&format!("{RUN} llama3_1b_mine\n"), &["tokens = 2048", "bucket_tokens = 16384"]);
        assert!(of_new.iter().any(|what| what.contains("`--training.max_context_length 2048` and")), "{of_new:?}");
    }
}
