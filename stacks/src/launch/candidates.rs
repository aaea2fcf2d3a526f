//! Commands of a script that may be the one that starts a stack, and what is said of those that are not read.

use std::collections::BTreeSet;
use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::Judge;
use crate::shell::{Left, Why, Word};

/// Flags that a warning names; further ones are counted.
const NAMED_MAX: usize = 8;

/// Flags of launchers that say where processes meet, not how many there are.
const OF_LAUNCHERS: [&str; 10] = [
    "runtime-env-json",
    "master-addr",
    "master-port",
    "node-rank",
    "machine-rank",
    "rdzv-endpoint",
    "rdzv-backend",
    "rdzv-id",
    "log-dir",
    "max-restarts",
];
/// Programs that show words, and start nothing.
const SHOWING: [&str; 3] = ["echo", "printf", "cat"];

/// A command with flags of a stack, or with its program.
pub(super) struct Candidate {
    pub(super) words: Vec<Word>,
    pub(super) texts: Vec<String>,
    /// The word that begins the program.
    pub(super) start: Option<usize>,
    /// Flags that the stack knows.
    pub(super) n_known: usize,
    /// Where the program stands.
    pub(super) at: Range<usize>,
    /// What it uses of assignments that are not followed.
    pub(super) left: Vec<Left>,
    /// Variables that programs read.
    pub(super) environment: Vec<(String, Word)>,
}

impl Candidate {
    /// A program counts more than any number of flags.
    pub(super) const fn score(&self) -> usize {
        self.n_known + if self.start.is_some() { 1_000_000 } else { 0 }
    }
}

/// Whether a command shows its words alone.
pub(crate) fn is_showing(texts: &[String]) -> bool {
    texts.first().is_some_and(|first| SHOWING.contains(&first.as_str()))
}

/// Whether the word that begins at a byte is a name whose assignments are not followed, which is said of the name.
pub(super) fn is_left(text: &str, at: usize, left: &[Left]) -> bool {
    let word = text.get(at..).unwrap_or_default().trim_start_matches(['$', '{', '"']);
    let end = word.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(word.len());
    left.iter().any(|left| left.name == word[..end])
}

/// Whether the word that begins at a byte is a whole list, `${NAME[@]}`, and so no value of one flag.
pub(super) fn is_list(text: &str, at: usize) -> bool {
    let word = text.get(at..).unwrap_or_default().trim_start_matches(['$', '{', '"']);
    let rest = word.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    rest.starts_with("[@]") || rest.starts_with("[*]")
}

/// A warning where several commands start programs with such flags, of which one is read.
pub(super) fn others(text: &str, best: &Candidate, all: &[Candidate]) -> Option<Finding> {
    // Programs that prepare data share a few flags with the one that trains.
    let is_alike = |one: &&Candidate| one.start.is_some() && one.n_known > 0 && one.n_known * 2 >= best.n_known;
    let alike = || all.iter().filter(is_alike).filter(|one| one.texts != best.texts);
    let n = alike().count();
    if n == 0 || best.start.is_none() {
        return None;
    }
    let line = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let lines: Vec<String> = alike().take(NAMED_MAX).map(|one| line(one.at.start).to_string()).collect();
    let what = format!("{} commands start a program with such flags: this one is read, which has the most", n + 1);
    let help = format!("not read: line {}; leave those in the script that are meant", lines.join(", "));
    Some(Finding::warning(Code::NotModelled, Some(best.at.clone()), what).help(help))
}

/// Warnings about assignments that a command uses and that are not followed, where they may matter.
pub(super) fn not_followed(left: &[Left], judge: Judge<'_>) -> Vec<Finding> {
    let may_matter = |left: &&Left| match (&left.of_flag, &left.flags[..]) {
        (Some(flag), []) => {
            let name = flag.replace('_', "-");
            !OF_LAUNCHERS.contains(&name.as_str()) && (judge.matters)(&name)
        }
        (_, []) => true,
        (_, flags) => flags.iter().any(|flag| (judge.matters)(flag)),
    };
    left.iter().filter(may_matter).map(of_one).collect()
}

fn of_one(left: &Left) -> Finding {
    let mut seen = BTreeSet::new();
    let all: Vec<&String> = left.flags.iter().filter(|flag| seen.insert(*flag)).collect();
    let mut flags: Vec<String> = all.iter().take(NAMED_MAX).map(|flag| format!("`--{flag}`")).collect();
    if all.len() > NAMED_MAX {
        flags.push(format!("{} more", all.len() - NAMED_MAX));
    }
    let without = if flags.is_empty() { String::new() } else { format!("; not read: {}", flags.join(", ")) };
    let name = &left.name;
    let (what, help) = match left.why {
        Why::Condition => (
            format!("whether `{name}` is assigned here is known only when the script runs, and not followed{without}"),
            "the value before it stands; set what the condition asks for in the script, or leave the condition out",
        ),
        Why::Loop => (
            format!("a loop assigns `{name}` several times: its first value is followed"),
            "write the values that are meant into the script, without the loop",
        ),
    };
    Finding::warning(Code::UnknownValue, Some(left.at.clone()), what).help(help)
}
