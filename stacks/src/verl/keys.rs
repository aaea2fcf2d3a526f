//! What a file says: keys of a YAML file, or overrides behind a command, with the configuration that they lie over.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::{ACTOR, actor};
use crate::flags::{Flag, last};
use crate::launch;
use crate::shell::{self, Command, UNKNOWN, Word};
use crate::yaml;

/// Ends of the names of verl's own configurations (`verl/trainer/config`, `verl/experimental/*/config`).
const OWN: [&str; 2] = ["ppo_trainer", "ppo_megatron_trainer"];
/// What names a configuration with an actor in Megatron Core.
const MEGATRON: &str = "megatron";
/// Overrides that choose the actor's configuration; the second is of releases after 2026-01.
const CHOICES: [&str; 2] = ["actor@actor_rollout_ref.actor", "model_engine"];

/// Keys of a file, and what is to be said of them.
pub(super) struct Given {
    pub(super) flags: Vec<Flag>,
    pub(super) findings: Vec<Finding>,
}

/// Reads a text.
///
/// # Errors
/// What is wrong with it.
pub(super) fn of_text(text: &str) -> Result<Given, Finding> {
    let is_script = text.contains("actor_rollout_ref.") && text.lines().any(has_override);
    let mut given = if is_script { of_script(text)? } else { of_yaml(text)? };
    beside_sharded(&mut given);
    Ok(given)
}

/// Warns of keys of Megatron Core that stand beside an actor in FSDP, which does not read them.
fn beside_sharded(given: &mut Given) {
    let strategy = last(&given.flags, &actor("strategy"));
    let is_of_megatron = |flag: &&Flag| flag.name.strip_prefix(ACTOR).is_some_and(|own| own.starts_with("megatron."));
    let Some(key) =
        given.flags.iter().find(is_of_megatron).filter(|_| strategy.is_none_or(|flag| flag.value() != MEGATRON))
    else {
        return;
    };
    let what = format!("`{}` is of Megatron Core, and the actor is taken to be in FSDP: it is not read", key.name);
    let help = "write `actor_rollout_ref.actor.strategy=megatron`, or `--config-name=ppo_megatron_trainer`";
    given.findings.push(Finding::warning(Code::NotModelled, Some(key.at.clone()), what).help(help));
}

/// The key that says that the actor is in Megatron Core.
fn in_megatron(at: Range<usize>) -> Flag {
    Flag { name: actor("strategy"), values: vec![MEGATRON.to_owned()], at }
}

/// Whether a line has a word `actor_rollout_ref.…=…`.
fn has_override(line: &str) -> bool {
    line.split_whitespace().any(is_of_actor)
}

fn is_of_actor(word: &str) -> bool {
    word.trim_start_matches('+').starts_with("actor_rollout_ref.") && word.contains('=')
}

/// Keys of a YAML file.
fn of_yaml(text: &str) -> Result<Given, Finding> {
    let entries = yaml::unfolded(text)?;
    let valued = entries.iter().filter(|entry| !entry.value.is_empty());
    let own: Vec<Flag> =
        valued.filter_map(|entry| flag(entry.path.join("."), &entry.value, entry.at.clone())).collect();
    // A file that begins with another one has the actor of that one, where it says nothing else.
    let is_choice = |flag: &&Flag| flag.name.starts_with("defaults.") && flag.value().contains(MEGATRON);
    let choice =
        own.iter().find(|flag| is_choice(flag) && (flag.name.contains(CHOICES[0]) || flag.name == "defaults.-"));
    let mut flags: Vec<Flag> = choice.map(|flag| in_megatron(flag.at.clone())).into_iter().collect();
    flags.extend(own);
    Ok(Given { flags, findings: Vec::new() })
}

/// Overrides in a script.
fn of_script(text: &str) -> Result<Given, Finding> {
    let commands = shell::script(text)
        .map_err(|why| Finding::error(Code::UnreadableScript, why.at(), format!("the script cannot be read: {why}")))?;
    let (words, mut findings) = of_launch(&commands);
    findings.extend(launch::line_ends(text));
    let mut given = Given { flags: Vec::new(), findings };
    configuration(&words, &mut given);
    given.flags.extend(words.iter().filter_map(|word| over(word)));
    Ok(given)
}

/// Words of the command that starts verl, and of lines that are overrides alone. Of several commands the first one with the most overrides counts.
fn of_launch(commands: &[Command]) -> (Vec<&Word>, Vec<Finding>) {
    // What nothing calls counts where nothing else starts verl.
    let is_called =
        commands.iter().any(|command| command.is_called && command.words.iter().any(|word| is_of_actor(&word.text())));
    let commands: Vec<&Command> = commands.iter().filter(|command| command.is_called || !is_called).collect();
    let is_shown = |words: &[Word]| words.first().is_some_and(|word| launch::is_showing(&[word.text()]));
    let starts = |words: &[Word]| {
        let begins = words.first().is_some_and(|word| over(word).is_none()) && !is_shown(words);
        begins && words.iter().any(|word| is_of_actor(&word.text()))
    };
    let n_overrides = |words: &[Word]| words.iter().filter(|word| over(word).is_some()).count();
    let launches = commands.iter().copied().enumerate().filter(|(_, command)| starts(&command.words));
    let taken = launches.rev().max_by_key(|(_, command)| n_overrides(&command.words)).map(|(index, _)| index);
    let (mut read, mut findings) = (Vec::new(), Vec::new());
    for (index, Command { words, left, .. }) in commands.iter().copied().enumerate() {
        if Some(index) != taken && starts(words) {
            let what = "another command of the script starts verl with overrides too: this one is not read";
            let help = "the one with the most overrides is read, the first of several: leave the others out";
            findings.push(Finding::warning(Code::NotModelled, words.first().map(Word::at), what).help(help));
        } else if taken.is_none() || !is_shown(words) {
            read.extend(words);
        }
        if Some(index) == taken {
            findings.extend(launch::not_followed(left));
        }
    }
    (read, findings)
}

/// The configuration that overrides lie over, by its name or by the choice of the actor's.
fn configuration(words: &[&Word], given: &mut Given) {
    for (index, word) in words.iter().enumerate() {
        let text = word.text();
        let (name, value) = text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value)));
        let value =
            value.map(str::to_owned).or_else(|| words.get(index + 1).map(|next| next.text())).unwrap_or_default();
        let stem = value.trim_matches(['"', '\'']).trim_end_matches(".yaml").trim_end_matches(".yml");
        let is_named = matches!(name, "--config-name" | "-cn");
        if (is_named || CHOICES.contains(&name.trim_start_matches('+'))) && stem.contains(MEGATRON) {
            given.flags.push(in_megatron(word.at()));
        }
        if is_named && !OWN.iter().any(|own| stem.ends_with(own)) {
            given.findings.push(not_read(stem, word.at()));
        }
    }
}

/// A warning about a configuration that is no one of verl's own.
fn not_read(stem: &str, at: Range<usize>) -> Finding {
    if stem.contains(UNKNOWN) {
        let what = "the value of `--config-name` is known only when the script runs: `ppo_trainer` is taken";
        let help = "write the name into the script: one of Megatron Core has `megatron` in it";
        return Finding::warning(Code::UnknownValue, Some(at), what).help(help);
    }
    let what = format!("`--config-name {stem}` is a file that is not read");
    let help = "what it sets otherwise than verl's own `ppo_trainer` is not known: write it behind the command";
    Finding::warning(Code::NotModelled, Some(at), what).help(help)
}

fn over(word: &Word) -> Option<Flag> {
    let text = word.text();
    let (key, value) = text.trim_start_matches('+').split_once('=')?;
    let is_key = !key.contains(char::is_whitespace) && key.contains('.') && !key.starts_with('-') && !key.contains('@');
    is_key.then(|| flag(key.to_owned(), value, word.at())).flatten()
}

/// A key with its value; none where it is null or has nothing in it. What other keys give is known only when the program runs.
fn flag(name: String, value: &str, at: Range<usize>) -> Option<Flag> {
    let is_empty = matches!(value, "null" | "~" | "None" | "{}");
    let value = if value.contains("${") { UNKNOWN.to_string() } else { value.to_owned() };
    (!is_empty).then(|| Flag { name, values: vec![value], at })
}
