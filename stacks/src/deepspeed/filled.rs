//! What a trainer says beside DeepSpeed's configuration, and where the two differ.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use crate::flags::Flag;

/// What a trainer fills in, and where it names the configuration.
pub(crate) struct Filled {
    /// Number format of the activations.
    pub(crate) half: &'static str,
    /// Whether gradients are added up over several micro-batches.
    pub(crate) is_several: bool,
    /// Where the trainer's file names it.
    pub(crate) at: Range<usize>,
    /// Keys of the configuration that the trainer says too: its own word for them, and its number.
    pub(crate) sizes: Vec<(&'static str, String, u64)>,
}

impl Filled {
    /// Values of a configuration that are others than the trainer's. It stops on them (`trainer_config_finalize` of transformers `integrations/deepspeed.py`: "Please correct the
    /// following DeepSpeed config values that mismatch TrainingArguments values").
    pub(super) fn mismatched(&self, given: &[Flag]) -> Vec<Finding> {
        let value = |name: &str| given.iter().rev().find(|flag| flag.name == name).map(Flag::value);
        let other = if self.half == "fp16" { "bf16" } else { "fp16" };
        let of_sizes = self.sizes.iter().filter_map(|(name, word, own)| {
            let number = value(name)?.parse::<u64>().ok().filter(|number| number != own)?;
            Some((format!("{name} = {number}"), format!("`{word}` says {own}")))
        });
        let is_other = value(&format!("{other}.enabled")).is_some_and(|value| value == "true");
        // Who says no sizes is no trainer of Hugging Face.
        let of_format = (is_other && !self.sizes.is_empty())
            .then(|| (format!("{other}.enabled = true"), format!("the trainer does not ask for {other}")));
        let wrong = |(says, own): (String, String)| {
            let what = format!("DeepSpeed's file says `{says}`, and {own}");
            let help = "the Trainer stops on values that differ: write `auto` into the file, or the same value";
            Finding::error(Code::WrongFlag, Some(self.at.clone()), what).help(help)
        };
        of_sizes.chain(of_format).map(wrong).collect()
    }
}
