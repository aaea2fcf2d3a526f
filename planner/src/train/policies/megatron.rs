//! Fixed-length packing as in Megatron-LM's SFT data path: sequences are laid one after another into micro-batches of one
//! fixed length, padded to it, all cut over the context group.
//!
//! With `fill = "packed"` each sequence goes, longest first, to the fullest micro-batch that takes it, as packers of fine-tuning do (axolotl-ai-cloud/axolotl
//! `utils/samplers/multipack.py`; hiyouga/LLaMA-Factory `greedy_knapsack`). With its other words micro-batches have so many sequences instead, dealt to replicas in turn: what Hugging Face's Trainer makes of a data set that nobody packs.
//! Megatron-LM itself takes batches of whole micro-batches: `num_microbatches_calculator.py` of Megatron-LM asserts that the global batch is a multiple of
//! micro-batch times data-parallel size. Under its framework equal sequences that do not fill them are refused; packs of mixed ones are taken as they are.
//! Sources: `BatchSamplerShard` of huggingface/accelerate `data_loader.py` deals batches in turn; `DataCollatorForLanguageModeling` of huggingface/trl
//! `trainer/sft_trainer.py` pads a batch to its longest row, or lays it flat (`padding_free`). The Trainer's `LengthGroupedSampler` sorts 50 batches at once,
//! and here a step is sorted. Layers compute padding; attention does not, as `FlashAttention` with rows of their own lengths.

use train::plan::{MicroBatch, Place, Placement, Step};
use train::problem::Framework;
use train::{Plan, Problem};

use super::{all_fit, deal, heuristic};
use crate::proof::Decision;
use crate::train::pack;
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "megatron",
    about: "sequences packed in arrival order into padded micro-batches of a fixed length, cut over all context ranks",
    source: "Megatron-LM packed sequences with context parallelism",
    method: "next-fit packing",
    parameters: &[
        Parameter::word(
            "fill",
            &[TOKENS, PACKED, PADDED, FLAT],
            "micro-batches are full of tokens and padded to them, in order or by best fit, or have so many sequences, padded to the longest or laid flat",
        ),
        Parameter::count(("sequences", "sequences"), ("1", 1.0, 1e6), "sequences of a micro-batch on one replica")
            .under("fill", &[PADDED, FLAT]),
        Parameter::count(("row_tokens", "tokens"), ("0", 0.0, 1e8), "to what every sequence is padded at least")
            .under("fill", &[PADDED]),
        Parameter::word(
            "order",
            &["given", LONGEST_FIRST],
            "sequences of a step as they come, or sorted by length, so that alike ones share a micro-batch",
        )
        .under("fill", &[PADDED, FLAT]),
    ],
};

/// Words of `fill`.
const TOKENS: &str = "tokens";
const PACKED: &str = "packed";
const PADDED: &str = "padded";
const FLAT: &str = "flat";
/// The other word of `order`.
const LONGEST_FIRST: &str = "longest_first";

/// Sequences that share a micro-batch, all sharded.
pub(super) fn together(items: &[usize], sequences: &[(u32, u64)]) -> MicroBatch {
    let place = |&index: &usize| Placement {
        sequence: sequences[index].0,
        from: 0,
        tokens: sequences[index].1,
        place: Place::Sharded,
    };
    MicroBatch { sequences: items.iter().map(place).collect(), ..MicroBatch::default() }
}

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    are_whole(problem)?;
    let steps = (0..problem.workload.n_steps()).map(|index| {
        let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
        let micro_batches = match context.word("fill", TOKENS) {
            TOKENS => full(problem, &sequences, pack::next_fit),
            PACKED => full(problem, &sequences, pack::best_fit_decreasing),
            fill => counted(problem, sequences, (context, fill == PADDED))?,
        };
        Ok(Step::of_groups(deal(micro_batches, problem.layout.dp)))
    });
    Ok(heuristic(CARD.name, problem, steps.collect::<Result<Vec<Step>, PlanError>>()?))
}

/// Refuses a batch of equal sequences that Megatron-LM would not start.
fn are_whole(problem: &Problem) -> Result<(), PlanError> {
    let (layout, lengths) = (&problem.layout, &problem.workload.lengths);
    let is_plain = problem.execution.framework == Framework::MegatronCore && lengths.iter().all(|of| *of == lengths[0]);
    let shard = lengths.first().map_or(1, |length| length.div_ceil(u64::from(layout.cp)).max(1));
    let (batch, micro_batch) = (problem.workload.batch_size as u64, problem.bucket_tokens / shard);
    if !is_plain || batch.is_multiple_of(u64::from(layout.dp) * micro_batch) {
        return Ok(());
    }
    Err(PlanError::Unsupported(format!(
        "Megatron-LM takes batches of whole micro-batches: {batch} sequences are no multiple of dp {} times the {micro_batch} of a micro-batch. Change `batch_size`, or `bucket_tokens`, which is room for them",
        layout.dp
    )))
}

/// Tokens of sequences on one rank: shards are whole tokens, so lengths count rounded up to the context degree, and so does the padding.
fn shards(problem: &Problem, sequences: &[(u32, u64)]) -> Vec<u64> {
    sequences.iter().map(|(_, tokens)| tokens.div_ceil(u64::from(problem.layout.cp))).collect()
}

/// Micro-batches of so many tokens, filled by a rule of packing.
fn full(problem: &Problem, sequences: &[(u32, u64)], packs: fn(&[u64], u64) -> Vec<Vec<usize>>) -> Vec<MicroBatch> {
    let shards = shards(problem, sequences);
    let padded = packs(&shards, problem.bucket_tokens).into_iter().map(|bin| {
        let micro_batch = together(&bin, sequences);
        let held: u64 = bin.iter().map(|&index| shards[index]).sum();
        MicroBatch { padding: (problem.bucket_tokens - held) * u64::from(problem.layout.cp), ..micro_batch }
    });
    padded.collect()
}

/// Micro-batches of so many sequences, as rows that are all as long as the longest, or one behind the other.
fn counted(
    problem: &Problem,
    mut sequences: Vec<(u32, u64)>,
    (context, pads): (&PlanContext<'_>, bool),
) -> Result<Vec<MicroBatch>, PlanError> {
    let cp = u64::from(problem.layout.cp);
    if context.word("order", "given") == LONGEST_FIRST {
        sequences.sort_by_key(|(index, tokens)| (std::cmp::Reverse(*tokens), *index));
    }
    let number = |name: &str, usual: f64| hw::whole(context.number(name, usual));
    let (n, least) = (number("sequences", 1.0).max(1), number("row_tokens", 0.0).div_ceil(cp));
    let rows = sequences.chunks(usize::try_from(n).unwrap_or(usize::MAX)).map(|rows| {
        let shards = shards(problem, rows);
        let held: u64 = shards.iter().sum();
        let longest = shards.iter().copied().max().unwrap_or(0).max(least);
        let whole = if pads { longest * shards.len() as u64 } else { held };
        if whole > problem.bucket_tokens {
            let what = if pads { format!(" padded to {longest} tokens each") } else { String::new() };
            return Err(PlanError::Infeasible(format!(
                "a micro-batch of {} sequences{what} has {whole} tokens per rank, which may hold {}",
                rows.len(),
                problem.bucket_tokens
            )));
        }
        let all: Vec<usize> = (0..rows.len()).collect();
        Ok(MicroBatch { padding: (whole - held) * cp, ..together(&all, rows) })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::train::policies::tests::problem;
    use crate::train::policy::{PlanContext, Value};

    use super::*;

    /// Tokens and padding of every micro-batch of every replica.
    fn planned(
        lengths: &[u64],
        (dp, bucket): (u32, u64),
        set: &[(&str, Value)],
    ) -> Result<Vec<Vec<(u64, u64)>>, String> {
        let problem = problem(lengths.to_vec(), lengths.len(), dp, 1, bucket);
        let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
        let parameters: BTreeMap<String, Value> =
            set.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let plan = plan(&problem, &PlanContext { cost: &cost, parameters }).map_err(|error| error.to_string())?;
        let of = |group: &Vec<MicroBatch>| group.iter().map(|one| (one.tokens(), one.padding)).collect();
        Ok(plan.plan.steps[0].groups.iter().map(of).collect())
    }

    fn word(text: &str) -> Value {
        Value::Word(text.to_owned())
    }

    /// Two sequences a micro-batch over two replicas: the Trainer gives the first replica the first and the third batch. Padding by hand.
    #[test]
    fn micro_batches_of_so_many_sequences_are_padded_to_their_longest() {
        let lengths = [100, 300, 50, 20, 400, 400, 10, 200];
        let two = ("sequences", Value::Number(2.0));
        let padded = [("fill", word(PADDED)), two.clone()];
        let first = vec![vec![(400, 200), (800, 0)], vec![(70, 30), (210, 190)]];
        assert_eq!(planned(&lengths, (2, 1000), &padded), Ok(first));
        let flat = [("fill", word(FLAT)), two.clone()];
        let without = vec![vec![(400, 0), (800, 0)], vec![(70, 0), (210, 0)]];
        assert_eq!(planned(&lengths, (2, 1000), &flat), Ok(without));
        // 400 400 | 300 200 | 100 50 | 20 10
        let sorted = [("fill", word(PADDED)), two.clone(), ("order", word(LONGEST_FIRST))];
        let alike = vec![vec![(800, 0), (150, 50)], vec![(500, 100), (30, 10)]];
        assert_eq!(planned(&lengths, (2, 1000), &sorted), Ok(alike));
        let whole = [("fill", word(PADDED)), two, ("row_tokens", Value::Number(500.0))];
        let rows = vec![vec![(400, 600), (800, 200)], vec![(70, 930), (210, 790)]];
        assert_eq!(planned(&lengths, (2, 1000), &whole), Ok(rows));
        let refused = planned(&lengths, (2, 700), &padded).expect_err("800 tokens are more than 700");
        assert!(refused.contains("2 sequences padded to 400 tokens each has 800 tokens"), "{refused}");
    }

    /// Twelve equal sequences over four replicas: three micro-batches of one each, and no whole number of pairs.
    #[test]
    fn megatron_takes_whole_micro_batches() {
        let planned = |lengths: &[u64], bucket: u64, framework: Framework| {
            let mut problem = problem(lengths.to_vec(), lengths.len(), 4, 1, bucket);
            problem.execution.framework = framework;
            let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
            let plan = plan(&problem, &PlanContext { cost: &cost, parameters: BTreeMap::new() });
            plan.map(|plan| plan.plan.steps[0].groups.len()).map_err(|error| error.to_string())
        };
        assert_eq!(planned(&[64; 12], 64, Framework::MegatronCore), Ok(4));
        assert_eq!(planned(&[64; 12], 128, Framework::Formulas), Ok(4));
        let refused = planned(&[64; 12], 128, Framework::MegatronCore).expect_err("three each are no pairs");
        assert!(refused.contains("12 sequences are no multiple of dp 4 times the 2 of a micro-batch"), "{refused}");
        // What is packed of different lengths is another number.
        let mut mixed = [64; 12];
        mixed[0] = 32;
        assert_eq!(planned(&mixed, 128, Framework::MegatronCore), Ok(4));
    }

    /// Sequences of one length are the same micro-batches either way.
    #[test]
    fn of_one_length_both_ways_to_fill_are_one() {
        let four = [("fill", word(PADDED)), ("sequences", Value::Number(4.0))];
        assert_eq!(planned(&[64; 32], (4, 256), &four), planned(&[64; 32], (4, 256), &[]));
    }
}
