//! Jobs of Hugging Face's Trainer, of what is built on it, and of torchtune → a training scenario.
//!
//! Axolotl, LLaMA-Factory, ms-swift, TRL and scripts of their own say the same few things, each in words of its own. A dialect is a table of words, by the key of a
//! scenario that a word gives, and what holds where nothing is said. Files that a script or a YAML names are read where they lie beside it.

mod adapters;
mod frozen;
mod given;
#[cfg(test)]
mod launches;
mod padded;
#[cfg(test)]
mod projects;
mod rollouts;
mod scripts;
mod sharding;
mod step;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::environment::Variable;
use crate::flags::{Effect, Flag, Flags, Known, Table};
use crate::job::Job;
use crate::{Imported, Machine};

/// Words of Hugging Face's Trainer and of accelerate.
pub static TRAINER: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/trainer.tsv")));
/// Words of Axolotl, and those of the Trainer.
pub static AXOLOTL: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../tables/axolotl.tsv")).over(&TRAINER));
/// Words of LLaMA-Factory, and those of the Trainer.
pub static LLAMA_FACTORY: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../tables/llamafactory.tsv")).over(&TRAINER));
/// Words of ms-swift, and those of the Trainer.
pub static SWIFT: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/swift.tsv")).over(&TRAINER));
/// Words of ms-swift for what is tuned, the newest first: its releases 4, 3 and 2.
const TUNERS: [&str; 3] = ["tuner_type", "train_type", "sft_type"];
/// Keys of torchtune.
pub static TORCHTUNE: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/torchtune.tsv")));
/// Largest count.
const MOST: u64 = 100_000_000;

hw::words! {
    /// Whose words a job has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Dialect: name {
        /// Axolotl.
        Axolotl = "Axolotl",
        /// LLaMA-Factory.
        LlamaFactory = "LLaMA-Factory",
        /// ms-swift.
        Swift = "ms-swift",
        /// TRL's scripts, and recipes for them.
        Trl = "TRL",
        /// A script around the Trainer.
        Trainer = "Hugging Face Trainer",
        /// torchtune.
        Torchtune = "torchtune",
    }
}

impl Dialect {
    fn table(self) -> &'static Table {
        match self {
            Self::Axolotl => &AXOLOTL,
            Self::LlamaFactory => &LLAMA_FACTORY,
            Self::Swift => &SWIFT,
            Self::Trl | Self::Trainer => &TRAINER,
            Self::Torchtune => &TORCHTUNE,
        }
    }

    /// Tokens of the longest sequence without a word; `None` where a program of its own knows (`sequence_len`, `cutoff_len`, `max_length`).
    const fn tokens(self) -> Option<u64> {
        match self {
            Self::Axolotl => Some(512),
            Self::LlamaFactory => Some(2048),
            Self::Trl => Some(1024),
            Self::Trainer | Self::Torchtune | Self::Swift => None,
        }
    }

    /// Sequences of a GPU without a word.
    const fn micro_batch(self) -> u64 {
        match self {
            Self::Axolotl | Self::Swift => 1,
            Self::LlamaFactory | Self::Trl | Self::Trainer => 8,
            Self::Torchtune => 2,
        }
    }

    /// Whether layers are computed again without a word (`disable_gradient_checkpointing`; TRL's `SFTConfig`; ms-swift's `TrainArgumentsMixin`).
    const fn recomputes(self) -> bool {
        matches!(self, Self::LlamaFactory | Self::Trl | Self::Swift)
    }

    /// Rank of adapters without a word: PEFT's, or TRL's `ModelConfig.lora_r`.
    const fn rank(self) -> u64 {
        if matches!(self, Self::Trl) { 16 } else { 8 }
    }
}

/// Whether a text is a job of one of them: a YAML, or a script that gives such words to a program.
pub(crate) fn is_job(text: &str) -> bool {
    given::dialect(text).is_some()
}

/// Whether a text starts some program by `accelerate` or `deepspeed`, of which no other stack knows a word.
pub(crate) fn is_launch(text: &str) -> bool {
    given::is_launch(text)
}

/// Names of files beside a job: configurations of accelerate and of DeepSpeed, and the YAML that a command is given.
pub(crate) fn named_beside(text: &str) -> Vec<String> {
    given::named_beside(text)
}

/// GPUs that variables say in front of a command, as flags of a launcher.
pub(crate) fn gpus_of_variables(environment: &[Variable]) -> Vec<Flag> {
    given::of_variables(environment)
}

/// Reads a YAML or a script.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let given = match given::of_text(text, machine) {
        Ok(given) => given,
        Err(finding) => return Imported::refused(finding),
    };
    let dialect = given.dialect;
    let table = dialect.table();
    let mut flags = if given.is_command { Flags::new(given.flags, table) } else { Flags::of_keys(given.flags, table) };
    flags.findings = given.findings;
    let mut job = Job { stack: dialect.name(), model_key: "model_name_or_path", gpus: given.gpus, ..Job::default() };
    let script = Some(dialect).filter(|one| *one == Dialect::Trainer).and_then(|_| scripts::Script::of(&flags, text));
    let whose = (dialect, script);
    scripts::projector(&mut flags);
    step::model(&mut flags, &mut job, machine);
    step::lengths(&mut flags, &mut job, (dialect, machine));
    step::batch(&mut flags, &mut job, (dialect, machine));
    step::degrees(&mut flags, &mut job, machine);
    padded::write(&mut flags, &mut job, machine);
    rollouts::left_out(&mut flags, text, dialect);
    step::kernels(&mut flags, &mut job, dialect);
    let trained = adapters::trained(&mut flags, &mut job, whose);
    frozen::frozen(&mut flags, &mut job, (whose, trained));
    sharding::sharding(&mut flags, &mut job, sharding::Asked { whose, machine, trained, text });
    job.import(flags, machine)
}

/// Names of the words that give a key, the last one first.
fn words_of(flags: &Flags<'_>, key: &str) -> Vec<String> {
    let gives =
        |name: &str| matches!(flags.table.find(name), Some(Known { effect: Effect::Sets(given), .. }) if *given == key);
    let names = flags.given.iter().rev().filter(|flag| gives(&flag.name));
    names.map(|flag| flag.name.clone()).collect()
}

/// The word that gives a key: the last one counts.
fn word_of(flags: &Flags<'_>, key: &str) -> Option<String> {
    words_of(flags, key).into_iter().next()
}

/// Whether a value turns something on.
fn is_true(value: &str) -> bool {
    ["true", "yes", "on", "1", "auto"].contains(&value.to_lowercase().as_str())
}

/// Whether a word is given and turns something on.
fn is_on(flags: &mut Flags<'_>, name: &str) -> bool {
    flags.text(name).is_some_and(|value| is_true(&value))
}
