//! Micro-batches of rows that are packed, and of data sets that nobody packs: so many sequences, as rows that are padded to the longest, or laid flat.
//!
//! Sources: transformers 5.24.0 `trainer.py` (`train_sampling_strategy`, `group_by_length` before) and huggingface/trl @ f2cd57710 `trainer/sft_trainer.py`
//! (`padding_free`); Axolotl's `pad_to_sequence_len` pads every row to the longest that there may be.

use super::{is_on, step, word_of, words_of};
use crate::Machine;
use crate::flags::Flags;
use crate::job::Job;

/// The section of the policy that fills micro-batches.
const POLICY: &str = "policies.megatron";
/// Axolotl's word for rows of one length.
const TO_THE_END: &str = "pad_to_sequence_len";

/// Writes how micro-batches are filled. Whoever states their tokens, or another policy, has them filled so.
pub(super) fn write(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    if machine.states(&["policies.run"]) || machine.stated.iter().any(|key| key.starts_with(POLICY)) {
        return;
    }
    if job.row_tokens.is_some() {
        return job.word((POLICY, "fill"), "packed", "rows are filled by best fit");
    }
    if machine.states(&["training.bucket_tokens"]) || step::packs(flags) {
        return;
    }
    let is_flat = words_of(flags, "policies.megatron.fill").iter().any(|name| is_on(flags, name));
    let (fill, remark) = if is_flat {
        ("flat", "padding_free: sequences lie one behind the other")
    } else {
        ("padded", "nothing packs: a micro-batch is as long as its longest sequence")
    };
    job.word((POLICY, "fill"), fill, remark);
    job.key((POLICY, "sequences"), job.micro_batch, "of a micro-batch");
    if !is_flat && is_on(flags, TO_THE_END) {
        let longest = job.tokens.unwrap_or(0);
        job.key((POLICY, "row_tokens"), longest, TO_THE_END);
    }
    if sorts(flags) {
        job.word((POLICY, "order"), "longest_first", "group_by_length, over a step");
    }
}

/// Whether sequences of like lengths share a micro-batch.
fn sorts(flags: &mut Flags<'_>) -> bool {
    const STRATEGY: &str = "train_sampling_strategy";
    match word_of(flags, "policies.megatron.order") {
        Some(name) if name == STRATEGY => flags.text(&name).is_some_and(|word| word == "group_by_length"),
        Some(name) => is_on(flags, &name),
        None => false,
    }
}
