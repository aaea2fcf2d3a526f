//! Programs that start the processes of a job, and the flags that each of them has.

use std::sync::LazyLock;

use input::diagnostic::{Code, Finding, nearest};

use crate::flags::{Flag, of_words, rows};
use crate::shell::{UNKNOWN, Word};

/// Modules that are started by `python -m`, and the program that each of them is.
const MODULES: [(&str, &str); 3] = [
    ("torch.distributed.run", "torchrun"),
    ("torch.distributed.launch", "torchrun"),
    ("accelerate.commands.launch", ACCELERATE),
];
/// The program that takes no beginnings of its flags (`allow_abbrev=False`), and whose processes are those of all nodes.
const ACCELERATE: &str = "accelerate";

/// Programs and their flags.
static TABLE: LazyLock<Vec<[&str; 2]>> = LazyLock::new(|| rows(include_str!("../../tables/launchers.tsv")));

/// A program that starts the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Starter {
    name: &'static str,
    flags: &'static str,
}

impl Starter {
    /// The last one in front of a script, and the words behind it.
    pub(super) fn of(before: &[Word]) -> Option<(Self, &[Word])> {
        let known = before.iter().enumerate().rev().find_map(|(at, word)| Some((at, Self::named(&word.text())?)));
        known.map(|(at, starter)| (starter, &before[at + 1..]))
    }

    fn named(word: &str) -> Option<Self> {
        let file = word.rsplit('/').next()?;
        let program = MODULES.iter().find(|(module, _)| *module == file).map_or(file, |(_, program)| program);
        TABLE.iter().find(|[name, _]| *name == program).map(|[name, flags]| Self { name, flags })
    }

    /// Whether it starts one process for each GPU of a node on its own, so that a task of the batch system is a node.
    pub(super) fn fills_a_node(self) -> bool {
        self.name != ACCELERATE
    }

    /// Whether it takes devices by its own flags, whatever the environment shows (`deepspeed/launcher/runner.py`).
    pub(super) fn has_own_devices(self) -> bool {
        self.name == "deepspeed"
    }

    /// The whole name of a flag, of which the beginning is enough where one flag alone begins so (`argparse`).
    pub(super) fn whole(self, name: &str) -> Option<&'static str> {
        let exact = self.names().find(|own| *own == name);
        let mut longer = self.names().filter(|own| own.starts_with(name));
        let takes_beginnings = name.len() > 1 && self.name != ACCELERATE;
        exact.or_else(|| longer.next().filter(|_| takes_beginnings && longer.next().is_none()))
    }

    /// Warnings about flags that it does not have.
    pub(super) fn unknown(self, words: &[Word]) -> Vec<Finding> {
        let is_unknown = |flag: &Flag| !flag.name.contains(UNKNOWN) && self.whole(&flag.name).is_none();
        of_words(words).iter().filter(|flag| is_unknown(flag)).map(|flag| self.no_flag(flag)).collect()
    }

    fn no_flag(self, flag: &Flag) -> Finding {
        let what = format!("`--{}` is no flag of `{}`, and is not read", flag.name, self.name);
        let help = match nearest(&flag.name, self.names()) {
            Some(near) => format!("did you mean `--{near}`?"),
            None => "the script's own flags stand behind the script".to_owned(),
        };
        Finding::warning(Code::UnknownFlag, Some(flag.at.clone()), what).help(help)
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        self.flags.split(' ')
    }
}
