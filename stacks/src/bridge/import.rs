//! Overrides of a recipe of Megatron Bridge → a training scenario: `section.key=value` words, alone or in the script that starts the recipe.
//!
//! Keys are those of Megatron-LM under other names, so its table says what they do. The model is the one of the recipe.

use std::ops::Range;

use engine::model::of_checkpoint;
use input::diagnostic::{Code, Finding, nearest};

use super::{KEYS, Override, UNFUSED_PERMUTATION, adapters, precision, program, recipes, shape};
use crate::document::Document;
use crate::flags::{Flag, Flags, named};
use crate::launch::{self, Launch};
use crate::megatron::{self, Shape};
use crate::shell::{self, UNKNOWN, Word};
use crate::{Imported, Machine, checkpoint};
use train::stage_text;

/// Sections of a configuration of Bridge.
const SECTIONS: [&str; 15] = [
    "model",
    "train",
    "optimizer",
    "ddp",
    "scheduler",
    "dataset",
    "logger",
    "tokenizer",
    "checkpoint",
    "dist",
    "comm_overlap",
    "rng",
    "profiling",
    "mixed_precision",
    "peft",
];
/// Keys by which overrides are known.
const MARKS: [&str; 5] = [
    "model.tensor_model_parallel_size=",
    "model.pipeline_model_parallel_size=",
    "train.global_batch_size=",
    "train.micro_batch_size=",
    "ddp.use_distributed_optimizer=",
];
/// Overrides whose keys have no dot: on a line of their own a shell takes them for assignments.
const WITHOUT_DOT: [&str; 3] = [precision::KEY, recipes::OVERLAP, adapters::SECTION];

/// Whether a text holds overrides of Bridge.
pub(crate) fn has_overrides(text: &str) -> bool {
    let is_one = |word: &str| MARKS.iter().any(|mark| word.trim_start_matches('+').starts_with(mark));
    launch::lines(text).any(|line| line.contains(program::NAME) || line.split_whitespace().any(is_one))
}

/// Reads overrides.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let unreadable = |what: String| Imported {
        findings: vec![Finding::error(Code::UnreadableScript, None, what)],
        ..Imported::default()
    };
    let commands = match shell::commands(text) {
        Ok(commands) => commands,
        Err(why) => return unreadable(format!("the script cannot be read: {why}")),
    };
    let begins = |words: &[String]| words.iter().position(|word| word.ends_with(".py"));
    let mut launch = match launch::of_script(text, begins, &|_| false) {
        Ok(launch) => launch,
        // Overrides may stand alone, without a command.
        Err(_) if launch::has_any(text, &[program::NAME]) => {
            let what = format!("the command that starts `{}` is not read", program::NAME);
            let help =
                "it stands in a text or under what only a shell knows: write it out, or give its overrides alone";
            let findings = vec![Finding::error(Code::UnreadableScript, None, what).help(help)];
            return Imported { findings, ..Imported::default() };
        }
        Err(_) => Launch::default(),
    };
    let recipe = known_recipe(&mut launch, machine);
    let mut words = program::overrides(&launch.flags);
    let parts = commands.iter().flatten().flat_map(parts);
    let mut behind: Vec<Override> =
        parts.map(|word| (word.text(), word.at())).filter(|(text, _)| is_override(text)).collect();
    behind.extend(without_dot(text));
    behind.sort_by_key(|(_, at)| at.start);
    words.extend(behind);
    let (of_adapters, words): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|(text, _)| adapters::is_of_adapters(text));
    let adapters = adapters::read(recipe.as_deref(), &launch.flags, &of_adapters);
    launch.findings.extend(program::not_read(&launch));
    launch.findings.extend(commands.iter().flat_map(|words| strange(words)));
    let stated: Vec<&str> = words.iter().map(|(text, _)| recipes::key(text)).collect();
    let has_no_overlap = words.iter().any(|(text, _)| recipes::is_without_overlap(text));
    let taken = recipes::taken(recipe.as_deref(), &stated, has_no_overlap);
    let (flags, said) = flags(&taken.words, &words);
    launch.flags = flags;
    launch.findings.extend(said);
    launch
        .findings
        .extend(taken.warning.map(|(what, help)| Finding::warning(Code::MissingFlag, None, what).help(help)));
    // Recipes fuse permutations, which a script of Megatron-LM has to say.
    let is_unfused = |text: &str| text.trim_start_matches('+').eq_ignore_ascii_case(UNFUSED_PERMUTATION);
    if !words.iter().any(|(text, _)| is_unfused(text)) {
        launch.flags.push(Flag::added("moe-permute-fusion", Vec::new()));
    }
    narrow(&mut launch.flags);
    launch.findings.extend(without_sequences(&mut launch.flags));
    launch.program.clear();
    let asked = Asked {
        model: machine.model.clone().or(taken.model),
        is_of_user: machine.model.is_some(),
        stated: words.iter().filter(|(text, _)| is_of_model(text)).map(|(text, _)| flag_of(text)).collect(),
        adapters,
        tokens: machine.tokens,
    };
    let model = |flags: &mut Flags<'_>, out: &mut Document| model(flags, out, &asked);
    let mut imported = megatron::of_job(launch, machine, "Megatron Bridge", &model);
    imported.findings.iter_mut().for_each(|finding| as_written(finding, text));
    imported
}

/// The recipe that the program is told to run, and an error where only a shell knows it; a warning where the command line names the model.
fn known_recipe(launch: &mut Launch, machine: &Machine) -> Option<String> {
    let recipe = program::recipe(&launch.flags)?;
    if !recipe.contains(UNKNOWN) {
        return Some(recipe);
    }
    let at = launch.flags.iter().find(|flag| flag.value().contains(UNKNOWN)).map(|flag| flag.at.clone());
    let what = "the name of the recipe is known only when the script runs";
    let found = if machine.model.is_some() { Finding::warning } else { Finding::error };
    let help = "write the name into the script; `--set model.name=…` gives the model alone";
    launch.findings.push(found(Code::UnknownValue, at, what.to_owned()).help(help));
    None
}

/// What a scenario's model is made of.
struct Asked {
    model: Option<String>,
    /// Whether the command line names the model, and not the recipe.
    is_of_user: bool,
    /// Flags of Megatron-LM that overrides stand for.
    stated: Vec<String>,
    adapters: Option<adapters::Adapters>,
    tokens: Option<u64>,
}

/// A finding about an override names the key that the user wrote, not the flag of Megatron-LM that says the same.
fn as_written(finding: &mut Finding, text: &str) {
    let Some(word) = finding.at.as_ref().and_then(|at| text.get(at.clone())) else { return };
    let Some((key, _)) = word.trim_start_matches(['+', '\'', '"']).split_once('=') else { return };
    let Some(start) = finding.what.find("`--").filter(|_| key.contains('.')) else { return };
    let name = &finding.what[start + 1..];
    let end = name.find([' ', '`']).map_or(finding.what.len(), |end| start + 1 + end);
    finding.what.replace_range(start + 1..end, key);
}

/// A word, or those of a whole command in quotes.
fn parts(word: &Word) -> Vec<Word> {
    if word.text().contains(program::NAME) { word.cut() } else { vec![word.clone()] }
}

/// Whether an override is of the model.
fn is_of_model(text: &str) -> bool {
    text.trim_start_matches('+').starts_with("model.")
}

/// Whether a word sets a key of a section.
fn is_override(text: &str) -> bool {
    let Some((key, _)) = text.trim_start_matches('+').split_once('=') else { return false };
    SECTIONS.contains(&key.split_once('.').map_or(key, |(section, _)| section))
}

/// Keys of Bridge that are read.
fn read_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|[_, key, _]| *key).chain(WITHOUT_DOT).chain(MARKS.map(|mark| mark.trim_end_matches('=')))
}

/// Warnings about words behind the program that are overrides of no section, or that delete a key of the recipe.
fn strange(words: &[Word]) -> Vec<Finding> {
    let words: Vec<Word> = words.iter().flat_map(parts).collect();
    let Some(start) = words.iter().position(|word| word.text().ends_with(program::NAME)) else { return Vec::new() };
    let behind = words[start + 1..].iter().filter(|word| !word.text().starts_with('-'));
    behind.filter_map(|word| strange_word(&word.text(), word.at())).collect()
}

fn strange_word(text: &str, at: Range<usize>) -> Option<Finding> {
    if text.starts_with('~') {
        let what = format!("`{text}` is not modelled");
        let help = "what it deletes of the recipe is taken as the recipe has it: write the value that is meant";
        return Some(Finding::warning(Code::NotModelled, Some(at), what).help(help));
    }
    let (key, _) = text.trim_start_matches('+').split_once('=').filter(|_| !is_override(text))?;
    let is_key = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-/@".contains(letter));
    is_key.then(|| unknown(key, at))
}

/// A warning about a key that is not known.
fn unknown(key: &str, at: Range<usize>) -> Finding {
    let what = format!("`{key}` is not in the table of keys");
    let near = nearest(key, read_keys()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}it is taken to change neither time nor memory");
    Finding::warning(Code::UnknownFlag, Some(at), what).help(help)
}

/// Whether a key that leaves a switch off is one that is known: in the table, or a flag of Megatron-LM of the same name.
fn is_known(text: &str) -> bool {
    let (key, _) = key_and_value(text);
    read_keys().any(|known| known == key || known == recipes::key(text))
        || megatron::FLAGS.effect(&flag_of(text), "").is_some()
}

/// Overrides whose keys have no dot, on lines of their own: the last one of each. In a script that starts a program such a line may be a variable of its own.
fn without_dot(text: &str) -> Vec<Override> {
    let begins_line = |at: usize| text[..at].chars().next_back().is_none_or(|before| before == '\n');
    let is_script = launch::has_any(text, &[".py"]);
    let keys = WITHOUT_DOT.iter().filter(|key| **key == precision::KEY || !is_script);
    let found = keys.filter_map(|key| {
        let mark = format!("{key}=");
        let (at, _) = text.match_indices(&mark).filter(|(at, _)| begins_line(*at)).last()?;
        let word = text[at..].split_whitespace().next()?;
        Some((word.to_owned(), at..at + word.len()))
    });
    found.collect()
}

/// Flags of a recipe's words and of those of the user, of which the last one of a key counts; errors about values.
fn flags(taken: &[&str], words: &[Override]) -> (Vec<Flag>, Vec<Finding>) {
    let is_last = |index: &usize| {
        !words[index + 1..].iter().any(|(text, _)| recipes::key(text) == recipes::key(&words[*index].0))
    };
    let of_user = (0..words.len()).filter(is_last).map(|index| (words[index].0.as_str(), words[index].1.clone()));
    let all = taken.iter().map(|word| (*word, 0..0)).chain(of_user);
    let (mut flags, mut said): (Vec<Flag>, Vec<Finding>) = (Vec::new(), Vec::new());
    for (text, at) in all {
        let found = match key_and_value(text) {
            (precision::KEY, value) => precision::flags(value, &at),
            (REDUCED, _) => Ok((Vec::new(), Some(overwritten(at)))),
            // It stands for what the name of the precision has.
            (key, value) if precision::is_gathering(key) && value.eq_ignore_ascii_case("false") => {
                flags.retain(|flag| flag.name != precision::GATHERS);
                continue;
            }
            _ => over(text, at.clone()).map(|flag| {
                let is_lost = flag.is_none() && !is_known(text);
                (flag.into_iter().collect(), is_lost.then(|| unknown(key_and_value(text).0, at)))
            }),
        };
        match found {
            Ok((found, warning)) => {
                flags.extend(found);
                said.extend(warning);
            }
            Err(finding) => said.push(*finding),
        }
    }
    (flags, said)
}

/// The format of gradients as `ddp` has it, which mixed precision overwrites (`MixedPrecisionConfig.setup`).
const REDUCED: &str = "ddp.grad_reduce_in_fp32";

fn overwritten(at: Range<usize>) -> Finding {
    let what = format!("`{REDUCED}` changes nothing: mixed precision overwrites it");
    let help = "gradients of 16 bits are `mixed_precision.grad_reduce_in_fp32=false`";
    Finding::warning(Code::NotModelled, Some(at), what).help(help)
}

/// Both sides of an override.
fn key_and_value(text: &str) -> (&str, &str) {
    text.trim_start_matches('+').split_once('=').unwrap_or((text, ""))
}

/// The flag of Megatron-LM that an override stands for, by the first one of its key.
fn flag_of(text: &str) -> String {
    let (key, _) = key_and_value(text);
    let own = key.split_once('.').map_or(key, |(_, own)| own);
    let known = KEYS.iter().find(|[_, known, _]| *known == key);
    known.map_or_else(|| named(own), |[flag, ..]| (*flag).to_owned())
}

/// An override as the flag of Megatron-LM that says the same; none where it leaves a switch off.
fn over(text: &str, at: Range<usize>) -> Result<Option<Flag>, Box<Finding>> {
    let (key, value) = key_and_value(text);
    let own = key.split_once('.').map_or(key, |(_, own)| own);
    let bare = value.trim_matches(['[', ']']).replace(['"', '\''], "");
    let lower = bare.to_lowercase();
    // A key may be the switch of two flags.
    let mut rows = KEYS.iter().filter(|[_, known, _]| *known == key);
    let first = rows.clone().next();
    let known = rows.find(|[.., fixed]| *fixed == lower).or(first);
    let name = known.map_or_else(|| named(own), |[flag, ..]| (*flag).to_owned());
    // A switch is there or not; some keys say the opposite of theirs.
    let switch = known.map_or("true", |[.., fixed]| if *fixed == "false" { "false" } else { "true" });
    let other = if switch == "true" { "false" } else { "true" };
    match lower {
        word if name == "mtp-num-layers" && (word == "null" || word == "none") => {
            Ok(Some(Flag { name, values: vec!["0".to_owned()], at }))
        }
        word if word == other || word == "null" || word == "none" => Ok(None),
        word if word == switch => Ok(Some(Flag { name, values: Vec::new(), at })),
        word if known.is_some_and(|[.., fixed]| *fixed == switch) && !word.contains(UNKNOWN) => {
            let what = format!("`{key}={value}` is neither true nor false");
            Err(Box::new(Finding::error(Code::WrongFlag, Some(at), what).help("allowed are true, false")))
        }
        _ => {
            let words = bare.split([' ', ',']).filter(|word| !word.is_empty());
            Ok(Some(Flag { name, values: words.map(str::to_owned).collect(), at }))
        }
    }
}

/// Turns the overlap of tensor exchange off where sequences are not shared, as Bridge does (`megatron/bridge/training/comm_overlap.py`), and says so.
fn without_sequences(flags: &mut Vec<Flag>) -> Option<Finding> {
    const OVERLAP: &str = "tp-comm-overlap";
    let is_cut = flags.iter().any(|flag| flag.name == "tensor-model-parallel-size" && flag.values != ["1"]);
    if !is_cut || flags.iter().any(|flag| flag.name == "sequence-parallel") {
        return None;
    }
    let at = flags.iter().find(|flag| flag.name == OVERLAP)?.at.clone();
    flags.retain(|flag| flag.name != OVERLAP);
    let what = "`comm_overlap.tp_comm_overlap` is off without `model.sequence_parallel`, as Bridge has it";
    let help = "write `model.sequence_parallel=true`, or `comm_overlap.tp_comm_overlap=false`";
    Some(Finding::warning(Code::NotModelled, Some(at).filter(|at| !at.is_empty()), what).help(help))
}

/// The switch of a format beside its recipe.
fn narrow(flags: &mut Vec<Flag>) {
    let Some(recipe) = flags.iter().find(|flag| flag.name == "fp8-recipe").cloned() else { return };
    let name = if recipe.values == ["nvfp4"] { "fp4-format" } else { "fp8-format" };
    let format = if name == "fp4-format" { "e2m1" } else { "hybrid" };
    flags.push(Flag { name: name.to_owned(), values: vec![format.to_owned()], at: recipe.at });
    if name == "fp4-format" {
        flags.retain(|flag| flag.name != "fp8-recipe");
    }
}

/// The model of a recipe, with what overrides change of its shape.
fn model(flags: &mut Flags<'_>, out: &mut Document, asked: &Asked) -> Option<Shape> {
    // Recipes compute in 16 bits, which a script of Megatron-LM has to say.
    if flags.find("fp16").is_none() && flags.find("bf16").is_none() {
        flags.given.push(Flag::added("bf16", Vec::new()));
    }
    let Some(recipe) = asked.model.as_deref() else {
        // A recipe that only a shell knows has its error.
        if !megatron::is_wrong(&flags.findings) {
            flags.findings.push(checkpoint::unnamed());
        }
        return None;
    };
    let Some(model) = of_checkpoint(recipe) else {
        flags.findings.push(checkpoint::unknown(recipe, None));
        return None;
    };
    if let Some(adapters) = &asked.adapters {
        flags.findings.extend(adapters.write(out, model.experts.is_some()));
    }
    let tokens = asked.tokens.or_else(|| flags.count("seq-length", 1..=100_000_000));
    let Some(tokens) = tokens else {
        flags.missing(
            "seq-length",
            "a scenario needs it: `dataset.sequence_length=4096`, or `--set workload.tokens=4096`",
        );
        return None;
    };
    megatron::named::add(&mut flags.given, &model, &asked.stated);
    state(flags, "seq-length", tokens);
    let n_predicting = predicting(flags).unwrap_or(model.n_predicting);
    state(flags, "mtp-num-layers", n_predicting);
    // Recipes train without dropout (`megatron/bridge/models`).
    for name in ["attention-dropout", "hidden-dropout"] {
        if flags.find(name).is_none() {
            state(flags, name, 0);
        }
    }
    if let Some(shape) = shape::write(flags, out, &model, &asked.stated) {
        return Some(shape);
    }
    megatron::dropout(flags, out, 0.0);
    out.word("model", "name", &model.name, if asked.is_of_user { "--set model.name" } else { "of the recipe" });
    let n_experts = model.experts.as_ref().map_or(0, |experts| experts.n_routed);
    Some(Shape {
        n_layers: model.n_layers,
        n_predicting,
        layers_per_further_token: if model.state_space.is_some() { 2 } else { 1 },
        stages: Vec::new(),
        n_heads: model.n_heads,
        n_groups: model.n_kv_heads,
        n_experts,
        tokens,
    })
}

/// A number that a flag has from now on, where it was given.
fn state(flags: &mut Flags<'_>, name: &str, value: u64) {
    let at = flags.at(name).unwrap_or(0..0);
    flags.given.push(Flag { name: name.to_owned(), values: vec![value.to_string()], at });
}

/// Layers that predict further tokens, as an override or a layout says; the recipe's own where neither does.
fn predicting(flags: &mut Flags<'_>) -> Option<u64> {
    let layout = flags.text("pipeline-model-parallel-layout");
    let stages = layout.and_then(|text| stage_text::read(&text).ok());
    let of_layout = stages.map(predicted);
    flags.count("mtp-num-layers", 0..=100).or(of_layout)
}

/// Layers of some stages that predict further tokens.
fn predicted(stages: Vec<stage_text::Held>) -> u64 {
    stages.iter().map(|stage| u64::from(stage.predicting)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{has_parts, on, said};

    #[test]
    fn overrides_are_flags_under_other_names() {
        let text = "torchrun --nproc_per_node=8 --nnodes=2 run_recipe.py --recipe llama3_8b_pretrain_config \\\n\
                    model.tensor_model_parallel_size=2 +model.recompute_granularity=full dataset.sequence_length=4096 train.micro_batch_size=1 \\\n\
                    train.global_batch_size=64 ddp.use_distributed_optimizer=true mixed_precision.grad_reduce_in_fp32=false ddp.overlap_grad_reduce=false \\\n\
                    model.made_up_key=3 checkpoint.save=null mixed_precision=bf16_with_mxfp8_mixed\n";
        assert!(has_overrides(text));
        let found = import(text, &on("h100-sxm"));
        has_parts(
            &found,
            &[
                "name = \"llama-3-8b\"",
                "tp = 2",
                "nodes = 2",
                "batch_size = 64",
                "zero = 1",
                "gradient_dtype = \"bf16\"",
                "gradient_sync = \"at_end\"",
                "recompute = \"full\"",
                "products = \"mxfp8\"",
            ],
        );
        let words = said(&found);
        assert!(matches!(words[..], [_, "`model.made_up_key` is not in the table of flags"]), "{words:?}");
    }

    fn of_recipe(words: &str) -> Imported {
        let text = format!("torchrun --nproc_per_node=8 --nnodes=8 run_recipe.py {words}\n");
        assert_eq!(crate::recognise(&text), Some(crate::Stack::Bridge), "{words}");
        import(&text, &on("h100-sxm"))
    }

    #[test]
    fn a_recipe_has_its_own_values_where_no_override_says_otherwise() {
        // `llama3_70b_pretrain_32gpu_h100_bf16_config` of `recipes/llama/h100/llama3.py` @ 067f987df03b.
        let words =
            "--recipe llama3_70b_pretrain_config model.tensor_model_parallel_size=8 train.global_batch_size=128";
        let found = of_recipe(words);
        for part in [
            "tp = 8",
            "pp = 4",
            "cp = 2",
            "chunks = 5",
            "zero = 1",
            "sequence_parallel = true",
            "batch_size = 128",
            "bucket_tokens = 4096",
            "tokens = 8192",
            "gradient_sync = \"overlapped\"",
            "parameter_gather = true",
            "tensor = 0.75",
            "loss = \"te\"",
            "recompute = \"none\"",
        ] {
            assert!(found.scenario.lines().any(|line| line.starts_with(part)), "{part} in {}", found.scenario);
        }
        let [warning] = &found.findings[..] else { panic!("{:?}", found.findings) };
        assert!(warning.code == Code::MissingFlag && warning.what.contains("model.pipeline_model_parallel_size=4"));
        assert!(!warning.what.contains("tensor_model_parallel_size"), "{}", warning.what);
        // `ddp` says nothing where the recipe has communication overlapped, whose own key does.
        let with = |word: &str| of_recipe(&format!("{words} {word}")).scenario.contains("\"at_end\"");
        assert!(with("comm_overlap.overlap_grad_reduce=false") && !with("ddp.overlap_grad_reduce=false"));
    }

    #[test]
    fn recipes_of_mixtures_keep_their_stages_with_their_own_pipeline() {
        let machine = on("h100-sxm");
        let of = |more: &str| {
            let text = format!(
                "torchrun --nproc_per_node=8 --nnodes=128 run_recipe.py --model deepseek_v3 --mode pretrain {more}\n"
            );
            import(&text, &machine)
        };
        let own = of("");
        assert!(own.findings.iter().all(|finding| finding.code == Code::MissingFlag), "{:?}", own.findings);
        has_parts(&own, &["pp = 16", "ep = 64", "dispatcher = \"flex\"", "layers = [4, 4, 4", "predicting_layers = 1"]);
        assert!(!of("-pp 1").scenario.contains("layers = ["));
    }

    #[test]
    fn what_recipes_share_is_taken_of_one_that_is_not_known_and_named_once() {
        let words =
            "--recipe llama31_8b_pretrain_64gpu_mine_config model.tensor_model_parallel_size=2 dataset.seq_length=4096";
        let found = of_recipe(words);
        for part in
            ["zero = 1", "sequence_parallel = true", "gradient_sync = \"overlapped\"", "parameter_gather = true"]
        {
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        let [warning] = &found.findings[..] else { panic!("{:?}", found.findings) };
        for part in ["is not known", "ddp.use_distributed_optimizer=true", "train.micro_batch_size=1"] {
            assert!(warning.what.contains(part), "{part} in {}", warning.what);
        }
        assert!(!warning.what.contains("tensor_model_parallel_size"), "{}", warning.what);
        // Fine-tuning shares less: nothing is taken of it in silence.
        let tuned = of_recipe(&words.replace("pretrain", "sft"));
        assert!(
            tuned.scenario.contains("gradient_sync = \"at_end\"") && tuned.findings.len() == 1,
            "{:?}",
            tuned.findings
        );
    }

    #[test]
    fn flags_of_the_program_are_overrides_that_words_come_before() {
        let found = of_recipe(
            "--recipe llama3_8b_pretrain_config -tp 2 --micro_batch_size 2 -gb 64 model.tensor_model_parallel_size=4",
        );
        has_parts(&found, &["tp = 4", "batch_size = 64", "bucket_tokens = 8192"]);
    }

    #[test]
    fn a_switch_that_is_neither_on_nor_off_is_refused() {
        let wrong = |word: &str| {
            let found = of_recipe(&format!("--recipe llama3_8b_pretrain_config {word}"));
            let wrong = found.findings.into_iter().filter(|finding| finding.code == Code::WrongFlag);
            wrong.map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(
            wrong("model.sequence_parallel=maybe"),
            ["`model.sequence_parallel=maybe` is neither true nor false"]
        );
        assert_eq!(wrong("mixed_precision.grad_reduce_in_fp32=2").len(), 1);
        assert_eq!(wrong("model.sequence_parallel=False model.attention_backend=flash"), Vec::<String>::new());
    }

    #[test]
    fn recipes_fuse_what_no_override_turns_off() {
        let unfused = |more: &str| {
            let text = format!(
                "model.tensor_model_parallel_size=2\ntrain.micro_batch_size=1\ntrain.global_batch_size=8\ndataset.sequence_length=4096\n{more}\n"
            );
            let model = Some("qwen3-30b-a3b".to_owned());
            let machine = Machine { model, ..on("h100-sxm") };
            let found = import(&text, &machine);
            found.scenario.lines().find(|line| line.starts_with("unfused")).map(str::to_owned)
        };
        assert_eq!(unfused(""), None);
        assert_eq!(unfused("model.moe_permute_fusion=true"), None);
        assert!(unfused("model.moe_permute_fusion=False").is_some_and(|line| line.contains("[\"permutation\"]")));
    }

    #[test]
    fn precision_on_a_line_of_its_own_is_no_assignment() {
        let text = "model.tensor_model_parallel_size=2\nmixed_precision=bf16_with_fp8_current_scaling_mixed\ntrain.micro_batch_size=1\n\
                    train.global_batch_size=8\ndataset.sequence_length=4096\n";
        let machine = Machine { model: Some("llama-3-8b".to_owned()), ..on("h100-sxm") };
        let found = import(text, &machine);
        assert!(found.scenario.contains("products = \"fp8\""), "{}", found.scenario);
    }
}
