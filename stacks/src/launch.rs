//! The command in a script that starts a stack: what starts it, its program, and the program's flags.

pub(crate) mod by_variable;
mod candidates;
mod gpus;
pub(crate) mod images;
mod starter;

use std::ops::Range;
use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use crate::environment::{self, Variable};
use crate::flags::{Flag, is_flag, named, of_words, rows, with_own};
use crate::shell::{self, Left, UNKNOWN, Unreadable, Word};
use crate::yaml;
pub(crate) use candidates::is_showing;
use candidates::{Candidate, is_left};
pub use gpus::unknown_gpus;
pub(crate) use gpus::{gpus, gpus_on, with_nodes, with_stated};
use starter::Starter;

/// A program as it is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Flags of what starts it: `torchrun`, `srun`.
    pub launcher: Vec<Flag>,
    /// The program and the words without a flag behind it.
    pub program: Vec<String>,
    /// Flags of the program.
    pub flags: Vec<Flag>,
    /// Variables of the environment that servers read.
    pub environment: Vec<Variable>,
    /// Version of the engine, where the image that it runs in says it.
    pub version: Option<String>,
    /// Whether a program calls the engine, and no server hands its tokens to clients.
    pub is_offline: bool,
    /// Warnings.
    pub findings: Vec<Finding>,
}

impl Launch {
    /// The same where the words of its command stand in such a place of another file.
    pub(crate) fn moved_to(mut self, place: &Range<usize>) -> Self {
        self.flags.iter_mut().for_each(|flag| flag.at = place.clone());
        self.findings.iter_mut().for_each(|finding| finding.at = Some(place.clone()));
        self.environment.iter_mut().for_each(|variable| variable.at = place.clone());
        self
    }
}

/// Which word of a command begins the program.
pub(crate) type Begins = fn(&[String]) -> Option<usize>;

/// Lines of a text that are no remarks.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with('#'))
}

/// Whether a line that is no remark has one of these marks.
pub(crate) fn has_any(text: &str, marks: &[&str]) -> bool {
    lines(text).any(|line| marks.iter().any(|mark| line.contains(mark)))
}

/// What a stack says of flags before they are read.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'a> {
    /// Whether it has a flag.
    pub(crate) knows: &'a dyn Fn(&str) -> bool,
    /// Whether a flag may change time or memory.
    pub(crate) matters: &'a dyn Fn(&str) -> bool,
    /// Whether a flag takes no value.
    pub(crate) is_switch: &'a dyn Fn(&str) -> bool,
}

/// The command of a script with the most flags that a stack knows; `begins` says which word begins the program.
///
/// # Errors
/// What is wrong with the script.
pub fn of_script(text: &str, begins: Begins, knows: &dyn Fn(&str) -> bool) -> Result<Launch, Finding> {
    of_judged(text, begins, Judge { knows, matters: &|_| true, is_switch: &|_| false })
}

/// The same, with nothing said of what does not matter.
///
/// # Errors
/// What is wrong with the script.
pub(crate) fn of_judged(text: &str, begins: Begins, judge: Judge<'_>) -> Result<Launch, Finding> {
    let commands = shell::script(text).map_err(unreadable)?;
    let (mut candidates, mut shown): (Vec<Candidate>, Vec<Candidate>) = Default::default();
    for command in commands {
        let words = unwrapped(command.words);
        let texts: Vec<String> = words.iter().map(Word::text).collect();
        let n_known = of_words(&words).iter().filter(|flag| (judge.knows)(&flag.name)).count();
        let start = begins(&texts);
        if n_known > 0 || start.is_some() {
            let at = words.get(start.unwrap_or(0)).map_or(0..0, Word::at);
            // What a script shows, and functions that it does not call, count where nothing else starts the stack.
            let is_shown = candidates::is_showing(&texts) || !command.is_called;
            let list = if is_shown { &mut shown } else { &mut candidates };
            let environment = command.environment;
            list.push(Candidate { words, texts, start, n_known, at, left: command.left, environment });
        }
    }
    // What a script shows before it is started in a way that cannot be read.
    if candidates.iter().all(|one| one.start.is_none()) {
        candidates.append(&mut shown);
    }
    // Of equal ones the first.
    let best = candidates.iter().rev().max_by_key(|one| one.score()).ok_or_else(|| {
        let help = "a command of `torchrun`, `srun` or `python` with the program's flags is needed";
        Finding::error(Code::UnreadableScript, None, "the script starts nothing that is known").help(help)
    })?;
    let of_its_own =
        |flag: &str, word: &Word| (judge.is_switch)(&named(flag)) || candidates::is_list(text, word.at().start);
    let mut launch = launched(&best.words, &best.texts, best.start.unwrap_or(0), &of_its_own);
    let before = &best.words[..best.start.unwrap_or(0)];
    launch.launcher = gpus::launcher(before, gpus::batch_options(text));
    launch.environment = environment::of_command(&best.environment, before);
    launch.launcher.extend(gpus::shown(&launch));
    launch.findings.extend(gpus::not_enough(before, &launch));
    launch.findings.extend(line_ends(text));
    launch.findings.extend(Starter::of(before).into_iter().flat_map(|(starter, words)| starter.unknown(words)));
    launch.findings.extend(words_of_program(&best.words, &best.texts, best.start.unwrap_or(0)));
    let is_said = |finding: &Finding| finding.at.as_ref().is_some_and(|at| is_left(text, at.start, &best.left));
    launch.findings.retain(|finding| !is_said(finding));
    launch.findings.extend(candidates::others(text, best, &candidates));
    launch.findings.extend(candidates::not_followed(&best.left, judge));
    Ok(launch)
}

/// Warnings about assignments that a command uses and that are not followed.
pub(crate) fn not_followed(left: &[Left]) -> Vec<Finding> {
    candidates::not_followed(left, Judge { knows: &|_| true, matters: &|_| true, is_switch: &|_| false })
}

/// A warning about lines that go on behind CR LF: bash ends a command there.
pub(crate) fn line_ends(text: &str) -> Option<Finding> {
    let at = text.find("\\\r\n")?;
    let what = "lines end in CR LF: bash ends a command at such an end, and here the next line goes on with it";
    let help = "convert the file to line feeds: `sed -i 's/\\r$//'`";
    Some(Finding::warning(Code::UnreadableScript, Some(at..at + 1), what).help(help))
}

/// An error about a script.
fn unreadable(why: Unreadable) -> Finding {
    let help = "only assignments, lists, sums and the command that starts the program are read";
    Finding::error(Code::UnreadableScript, why.at(), format!("the script cannot be read: {why}")).help(help)
}

/// Warnings about words right behind a program that only a shell knows.
fn words_of_program(words: &[Word], texts: &[String], start: usize) -> Vec<Finding> {
    let n_program = texts[start..].iter().take_while(|text| !is_flag(text)).count();
    let open = (start + 1..start + n_program).filter(|index| is_unknown(&texts[*index]));
    open.map(|index| left_out(&words[index])).collect()
}

/// A warning about a word that may hold flags.
fn left_out(word: &Word) -> Finding {
    let what = "what stands here is known only when the script runs, and left out";
    let help = "flags in it are not read; write them into the script";
    Finding::warning(Code::UnknownValue, Some(word.at()), what).help(help)
}

/// Every command of a script that starts one of several programs, each with the position of what began it.
///
/// # Errors
/// What is wrong with the script.
pub(crate) fn all_of_script(text: &str, begins: &[Begins]) -> Result<Vec<(usize, Launch)>, Finding> {
    let all = begun(text, begins, &|_, _| true)?.into_iter();
    let with_environment = all.map(|Begun { which, mut launch, .. }| {
        launch.findings.extend(environment::judged(&launch.environment));
        (which, launch)
    });
    Ok(with_environment.collect())
}

/// A command that starts one of several programs.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    /// Position of what began it.
    pub(crate) which: usize,
    /// Where the program stands.
    pub(crate) at: Range<usize>,
    /// The command.
    pub(crate) launch: Launch,
}

/// The same with nothing said of variables; `matters` says of a flag of each program whether it may change time or memory.
///
/// # Errors
/// What is wrong with the script.
pub(crate) fn begun(
    text: &str,
    begins: &[Begins],
    matters: &dyn Fn(usize, &str) -> bool,
) -> Result<Vec<Begun>, Finding> {
    let (mut found, mut shown) = (Vec::new(), Vec::new());
    for command in shell::script(text).map_err(unreadable)? {
        let words = unwrapped(command.words);
        let texts: Vec<String> = words.iter().map(Word::text).collect();
        let first = begins.iter().enumerate().find_map(|(index, begins)| Some((index, begins(&texts)?)));
        let Some((which, start)) = first else { continue };
        let mut launch = launched(&words, &texts, start, &|_, _| false);
        launch.launcher = gpus::launcher(&words[..start], gpus::batch_options(text));
        launch.findings.extend(candidates::not_followed(
            &command.left,
            Judge { knows: &|_| true, matters: &|flag| matters(which, flag), is_switch: &|_| false },
        ));
        launch.findings.extend(by_variable::told(text, &words, &texts, start));
        launch.environment = environment::of_command(&command.environment, &words[..start]);
        let list = if is_showing(&texts) || !command.is_called { &mut shown } else { &mut found };
        list.push(Begun { which, at: words[start].at(), launch });
    }
    for begun in found.iter_mut().chain(&mut shown).take(1) {
        begun.launch.findings.extend(line_ends(text));
    }
    // What a script shows alone is started in a way that cannot be read.
    Ok(if found.is_empty() { shown } else { found })
}

/// A command with what `bash -c '…'` would run in the place of its one word.
fn unwrapped(words: Vec<Word>) -> Vec<Word> {
    words.into_iter().flat_map(|word| if word.text().contains(" --") { word.cut() } else { vec![word] }).collect()
}

/// A command as a launch; `of_its_own` says of a flag and the word behind it whether that is no value of it.
fn launched(words: &[Word], texts: &[String], start: usize, of_its_own: &dyn Fn(&str, &Word) -> bool) -> Launch {
    let (before, after) = words.split_at(start);
    let n_program = texts[start..].iter().take_while(|text| !is_flag(text)).count();
    // Behind a flag it is the flag's value, which is judged when it is asked for.
    let is_open = |index: &usize| {
        let before = &texts[start + *index - 1];
        let has_no_value = !before.starts_with("--") || before.contains('=');
        is_unknown(&texts[start + *index]) && (has_no_value || of_its_own(before, &after[*index]))
    };
    let from = n_program.max(1);
    let findings = (from..after.len()).filter(is_open).map(|index| left_out(&after[index]));
    let is_kept = |index: &usize| *index < from || !is_open(index);
    let kept: Vec<Word> = (n_program..after.len()).filter(is_kept).map(|index| after[index].clone()).collect();
    let (mut flags, own) = with_own(&kept);
    for flag in &mut flags {
        let mut is_first = true;
        flag.values.retain(|value| std::mem::take(&mut is_first) || !is_unknown(value));
    }
    Launch {
        launcher: gpus::launcher(before, Vec::new()),
        program: [&texts[start..start + n_program], &own].concat(),
        version: images::version(&texts[..start + n_program]),
        findings: findings.collect(),
        environment: Vec::new(),
        is_offline: false,
        flags,
    }
}

fn is_unknown(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter == UNKNOWN)
}

/// Flags of a section of a YAML file, each a key of its own.
///
/// # Errors
/// What is wrong with the file.
pub fn of_yaml(text: &str, section: &str) -> Result<Launch, Finding> {
    let entries = yaml::entries(text)?;
    let own = entries.into_iter().filter(|entry| entry.path.len() == 2 && entry.path[0] == section);
    let flags = own.filter(|entry| entry.value != "false" && entry.value != "False").map(|entry| {
        let value = entry.value.trim_start_matches('[').trim_end_matches(']');
        let value =
            if entry.value.starts_with('[') && !entry.value.contains('*') { value } else { entry.value.as_str() };
        let is_switch = value == "true" || value == "True";
        // Variables in braces are those of the test's environment.
        let words = value.split([' ', ',']).filter(|word| !word.is_empty() && !is_switch);
        let words = words.map(|word| if word.contains("${") { UNKNOWN.to_string() } else { word.to_owned() });
        Flag { name: named(entry.key()), values: words.collect(), at: entry.at.clone() }
    });
    Ok(Launch { flags: flags.collect(), ..Launch::default() })
}

/// Every key of a YAML file as a flag; a key inside others has their names in front.
///
/// # Errors
/// What is wrong with the file.
pub fn of_all_yaml(text: &str) -> Result<Launch, Finding> {
    let entries = yaml::entries(text)?;
    Ok(Launch { flags: keys_as_flags(&entries), ..Launch::default() })
}

/// The same with keys of values in braces.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn of_unfolded_yaml(text: &str) -> Result<Launch, Finding> {
    Ok(Launch { flags: keys_as_flags(&yaml::unfolded(text)?), ..Launch::default() })
}

/// Keys of a file of options as flags: words of a list in lines of its own stand behind the key of the list.
pub(crate) fn keys_as_flags<'e>(entries: impl IntoIterator<Item = &'e yaml::Entry>) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for entry in entries {
        let flag = key_as_flag(entry);
        match flags.last_mut().filter(|list| entry.key() == "-" && list.name == flag.name) {
            Some(list) => {
                list.values.extend(flag.values);
                list.at.end = flag.at.end;
            }
            None => flags.push(flag),
        }
    }
    flags
}

/// The last part of a path: files are looked for beside a text, whatever folder it names.
pub(crate) fn bare(path: &str) -> Option<&str> {
    let last = path.rsplit(['/', '\\']).next()?;
    (!last.is_empty() && last != ".." && !last.contains('$')).then_some(last)
}

/// Files of options that stand behind options of such names, without their folders.
pub(crate) fn files_behind(text: &str, options: &[&str]) -> Vec<String> {
    const MOST: usize = 8;
    let mut names: Vec<String> = Vec::new();
    let mut before = "";
    for word in lines(text).flat_map(|line| line.split([' ', '\t', '=', '"', '\'', ',', '[', ']'])) {
        if word.is_empty() || word == "\\" {
            continue;
        }
        let is_asked = before.starts_with('-') && options.contains(&named(before).as_str());
        let is_file = word.ends_with(".yaml") || word.ends_with(".yml");
        if let Some(name) = bare(word).filter(|_| is_asked && is_file)
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
        before = word;
    }
    names.truncate(MOST);
    names
}

/// A launch with the options of the YAML that `--config` names, where that lies beside: those of the command count before them (vLLM
/// `vllm/utils/argparse_utils.py`, SGLang `srt/server_args_config_parser.py`).
pub(crate) fn with_config(mut launch: Launch, beside: &dyn Fn(&str) -> Option<String>) -> Launch {
    let Some(asked) = launch.flags.iter().position(|flag| flag.name == CONFIG) else { return launch };
    let flag = launch.flags[asked].clone();
    let text = bare(&flag.value()).and_then(beside);
    let Some(options) = text.and_then(|text| of_all_yaml(&text).ok()) else { return launch };
    launch.flags.remove(asked);
    // A switch that is false is left out, and one that is true has no value.
    let given = options.moved_to(&flag.at).flags.into_iter().filter(|flag| flag.value() != "false");
    let given = given.map(|flag| if flag.value() == "true" { Flag { values: Vec::new(), ..flag } } else { flag });
    launch.flags.splice(0..0, given);
    launch
}

/// The option that names a file of options.
pub(crate) const CONFIG: &str = "config";

/// A key of a file of options as a flag.
fn key_as_flag(entry: &yaml::Entry) -> Flag {
    // A word of a list has no name.
    let path = entry.path.strip_suffix(&["-".to_owned()][..]).unwrap_or(&entry.path);
    let name: Vec<String> = path.iter().map(|key| named(key)).collect();
    let value = entry.value.trim_start_matches('[').trim_end_matches(']');
    // YAML has several words for a truth.
    let value = match value {
        "True" | "TRUE" => "true",
        "False" | "FALSE" => "false",
        other => other,
    };
    Flag {
        name: name.join("."),
        values: value.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        at: entry.at.clone(),
    }
}

/// Short names of vLLM's options, without those that the degrees are read by (vLLM 0.32, `vllm/engine/arg_utils.py`).
static SHORT_NAMES: LazyLock<Vec<[&str; 2]>> = LazyLock::new(|| rows(include_str!("../tables/vllm-short.tsv")));

/// Flags whose names of one or two letters are the usual short ones.
pub fn with_short_names(flags: Vec<Flag>) -> Vec<Flag> {
    let long = |name: String| {
        let found = SHORT_NAMES.iter().find(|[short, _]| *short == name);
        found.map_or(name, |[_, long]| (*long).to_owned())
    };
    flags.into_iter().map(|flag| Flag { name: long(flag.name), ..flag }).collect()
}

#[cfg(test)]
mod tests {
    use super::gpus::gpus;
    use super::*;
    use crate::Machine;

    #[test]
    fn gpus_are_those_of_the_launcher() {
        let of = |script: &str| {
            let begins = |words: &[String]| words.iter().position(|word| word.ends_with(".py"));
            gpus(&of_script(script, begins, &|_| false).unwrap().launcher)
        };
        assert_eq!(of("torchrun --nnodes=4 --nproc_per_node 8 a.py --x"), (Some(32), Some(8)));
        assert_eq!(of("#SBATCH --nodes=2 --gpus-per-node=4\nsrun python a.py"), (Some(8), Some(4)));
        assert_eq!(of("srun bash -c \"torchrun --nnodes 2:3 --nproc-per-node 8 a.py --x 1\""), (Some(16), Some(8)));
        assert_eq!(of("python a.py --x"), (None, None));
        assert_eq!(of("torchrun --nproc_per_node 8 a.py --x"), (Some(8), Some(8)));
        // One task on a node starts the processes of its GPUs, in any order of the lines.
        for lines in ["--ntasks-per-node=1\n#SBATCH --gres=gpu:8", "--gpus-per-node=8\n#SBATCH --ntasks-per-node=1"] {
            let script = format!("#SBATCH --nodes=4\n#SBATCH {lines}\nsrun torchrun --nproc_per_node 8 a.py --x");
            assert_eq!(of(&script), (Some(32), Some(8)), "{script}");
            let script = script.replace(" --nproc_per_node 8", "");
            assert_eq!(of(&script), (Some(32), Some(8)), "{script}");
        }
        // A space or nothing in the place of `=`, types of GPUs, and a line that is none.
        assert_eq!(
            of("#SBATCH --nodes 4 # four\n#SBATCH --gres=nvme:1,gpu:a100:8\nsrun python a.py"),
            (Some(32), Some(8))
        );
        assert_eq!(of("#SBATCH -N4 -n 32\n##SBATCH --nodes=128\nsrun python a.py"), (Some(32), Some(8)));
        assert_eq!(
            of("#SBATCH -N 4 --gpus-per-task=1\n#SBATCH --ntasks-per-node=8\nsrun python a.py"),
            (Some(32), Some(8))
        );
        assert_eq!(of("#SBATCH --nodes=your_own\n#SBATCH --gres=gpu:8\nsrun python a.py"), (None, Some(8)));
        // What stands behind the number is the program's.
        assert_eq!(of("srun --nodes 4 --ntasks-per-node 8 python -u a.py --x"), (Some(32), Some(8)));
        assert_eq!(of("srun --ntasks-per-node=8 -N4 bash -c \"python a.py --x 1\""), (Some(32), Some(8)));
        assert_eq!(of("mpirun -x PATH -np 32 python a.py --x"), (Some(32), None));
        // Open MPI's `-N` is `-npernode`.
        assert_eq!(of("mpirun -np 32 -N 8 python a.py --x"), (Some(32), Some(8)));
        assert_eq!(of("#SBATCH --nodes=4\nmpirun -npernode 8 python a.py --x"), (Some(32), Some(8)));
        // As many as the environment shows.
        let shown = "export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nnodes 2 --nproc_per_node=gpu a.py --x";
        assert_eq!(of(shown), (Some(8), Some(4)));
    }

    #[test]
    fn a_flag_that_the_starter_does_not_have_is_said_with_the_nearest() {
        // A beginning is enough for `torchrun` and `deepspeed`, and not for `accelerate`.
        for (script, said) in [
            ("torchrun --nproc_per_nod 8 --master-adr h a.py --x 1", "master-adr"),
            ("python -m torch.distributed.launch --use_env --nproc 8 --nodes 2 a.py --x 1", "nodes"),
            ("srun --foo 1 deepspeed --num_gpu 8 --inclde h:0 a.py --x 1", "inclde"),
            ("accelerate launch --num_process 8 --mixed_precision bf16 a.py --x 1", "num-process"),
            ("accelerate launch --use_fsdp --fsdp_actvation_checkpointing true a.py --x 1", "fsdp-actvation"),
        ] {
            let found = findings(script);
            assert!(matches!(&found[..], [one] if one.starts_with(&format!("`--{said}"))), "{script}: {found:?}");
        }
        let begins: Begins = |words| words.iter().position(|word| word.ends_with(".py"));
        let of = |script: &str| gpus(&of_script(script, begins, &|_| false).unwrap().launcher);
        assert_eq!(of("torchrun --nnode 2 --nproc 8 a.py --x"), (Some(16), Some(8)));
    }

    fn findings(script: &str) -> Vec<String> {
        let begins = |words: &[String]| words.iter().position(|word| word.ends_with(".py"));
        let knows = |name: &str| name.len() == 1;
        let matters = |name: &str| name != "save";
        let is_switch = |name: &str| name == "s";
        let judge = Judge { knows: &knows, matters: &matters, is_switch: &is_switch };
        let launch = of_judged(script, begins, judge).unwrap();
        launch.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn words_that_a_shell_alone_knows_are_said_wherever_they_stand() {
        for script in
            ["a.py $L --x 1", "a.py --x=1 $L --y", "a.py --x 1 $L", "a.py --x $L $M", "a.py --s $L", "a.py --y ${L[@]}"]
        {
            assert!(matches!(&findings(script)[..], [one] if one.starts_with("what stands here")), "{script}");
        }
        assert_eq!(findings("a.py --x $L --y"), [""; 0]);
    }

    #[test]
    fn assignments_under_conditions_are_said_where_they_matter() {
        // The word itself is said no second time; where processes meet changes nothing.
        let script =
            "if [ $1 = x ]; then L=--fp8; D=/y; M=h; fi\ntorchrun --master_addr $M a.py --x 1 --save $D --y 1 $L";
        let found = findings(script);
        assert!(matches!(&found[..], [one] if one.contains("`L`") && one.ends_with("not read: `--fp8`")), "{found:?}");
    }

    /// What stands in front of a condition is read: what it adds alone is not.
    #[test]
    fn of_what_is_put_behind_a_value_the_rest_alone_is_not_read() {
        for rest in ["L=\"$L --y 99\"", "L=\"$L  --y=99\"", "L+=\" --y 99\""] {
            let script = format!(
                "L=''\nif [ 1 -gt 0 ]; then L=\"$L --x 2\"; fi\nif [ -n \"$F\" ]; then {rest}; fi\na.py --z 1 $L"
            );
            let found = findings(&script);
            assert!(matches!(&found[..], [one] if one.ends_with("not read: `--y`")), "{script}: {found:?}");
        }
    }

    #[test]
    fn servers_say_what_they_use_and_is_not_followed() {
        let text = "if [ $1 = x ]; then Q='--fp8'; fi\nserve --x 1 $Q";
        let begins: Begins = |words| words.iter().position(|word| word == "serve");
        let found = all_of_script(text, &[begins]).unwrap();
        let said: Vec<&str> = found[0].1.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(said.iter().any(|what| what.contains("`Q`") && what.contains("`--fp8`")), "{said:?}");
    }

    #[test]
    fn commands_that_are_not_read_are_named() {
        let found =
            findings("if [ $1 = x ]; then a.py --x 1 --y 2; else\n  a.py --x 1 --y 3 --z 4; fi\nprepare.py --x 1\n");
        assert!(matches!(&found[..], [one] if one.starts_with("2 commands start a program")), "{found:?}");
        // A branch that does not run is none, nor is the same command again.
        assert_eq!(findings("A=1\nif [ $A = 2 ]; then a.py --x 1; else a.py --x 2; fi\na.py --x 2"), [""; 0]);
    }

    /// Nodes that are known have as many GPUs as is usual for the card, which is said.
    #[test]
    fn nodes_that_are_known_count_where_their_gpus_are_not() {
        let begins = |words: &[String]| words.iter().position(|word| word.ends_with(".py"));
        let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() };
        let stated = Machine { gpus_per_node: Some(4), ..machine.clone() };
        for (number, part) in
            [("$(nvidia-smi -L | wc -l)", "only when the script runs: 8"), ("gpu", "node has GPUs: 8")]
        {
            let script = format!("torchrun --nnodes 4 --nproc_per_node={number} a.py --x");
            let launcher = of_script(&script, begins, &|_| false).unwrap().launcher;
            assert_eq!(gpus_on(&launcher, &machine), (Some(32), Some(8)), "{script}");
            let found = unknown_gpus(&launcher, &machine);
            assert!(matches!(&found[..], [one] if one.what.contains(part)), "{found:?}");
            assert_eq!((gpus_on(&launcher, &stated), unknown_gpus(&launcher, &stated)), ((Some(16), Some(4)), vec![]));
        }
    }

    #[test]
    fn a_number_of_nodes_that_only_the_shell_knows_is_said_at_its_flag() {
        let begins = |words: &[String]| words.iter().position(|word| word.ends_with(".py"));
        let elsewhere = Machine { nodes: Some(4), ..Machine::default() };
        for (script, at) in [
            ("NNODES=$SLURM_NNODES\ntorchrun --nproc_per_node 8 --nnodes $NNODES a.py --x", "--nnodes"),
            ("torchrun --nnodes $(scontrol show hostnames | wc -l) --nproc_per_node 8 a.py --x", "--nnodes"),
            ("torchrun --nnodes 2 --nproc_per_node $GPUS a.py --x", "--nproc-per-node"),
            ("srun -N $N --ntasks-per-node=8 python a.py --x", "--N"),
        ] {
            let launcher = of_script(script, begins, &|_| false).unwrap().launcher;
            assert_eq!(gpus(&launcher).0, None, "{script}");
            let found = unknown_gpus(&launcher, &Machine::default());
            assert!(
                matches!(&found[..], [one] if one.code == Code::UnknownValue && one.what.contains(at)),
                "{found:?}"
            );
            assert_eq!(unknown_gpus(&launcher, &elsewhere), [], "{script}");
        }
        let slurm = "#SBATCH --nodes=4\ntorchrun --nproc_per_node 8 --nnodes $SLURM_NNODES a.py --x";
        let launcher = of_script(slurm, begins, &|_| false).unwrap().launcher;
        assert_eq!(gpus(&launcher), (Some(32), Some(8)));
        assert_eq!(unknown_gpus(&launcher, &Machine::default()), []);
    }
}
