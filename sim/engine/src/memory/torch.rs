//! What PyTorch's own modules under fully sharded parameters hold, as the caching allocator sees it. Units: bytes, bytes per token.
//!
//! What tensors take is exact: fifteen settings on an H100 (`profiles/measured/h100-sxm/steps.csv`) are met to 0.1 % in every phase. A step has three
//! heights, and the highest counts:
//!
//! - the loss. No gradient is there yet, since they are set to none. All that layers keep is there, with logits and what the loss makes of them;
//! - the end of backward, when the embedding and the head are reduced at last, and all gradients are there;
//! - the optimizer, which may make lists of tensors of its own.
//!
//! What torchtitan prints is the peak of what the allocator reserves (`max_reserved_gib` of its `DeviceMemoryMonitor`), with segments that expand. So
//! what is free but too small for the tensors of the loss counts as well (`reserved`):
//!
//! - the 16-bit logits, freed before backward makes its first 32-bit tensor;
//! - what the forward of a layer held beside what it kept, under the tensors that were kept above it;
//! - the gathered input of the head before it is copied into the order of tokens, and gathered logits.
//!
//! Other streams have memory of their own (`train`, `lower/training/sharded.rs`).

use hw::Bytes;

use super::sizes::{HALF, SOFTMAX_BYTES, attention_weights, cut, feed_forward_weights, serial};
use crate::loss::Loss;
use crate::recompute::Recompute;
use crate::shard::{Casts, Shard, TorchModules};
use crate::stage::Stage;

/// Bytes per logit of the loss: kept logarithms and two gradients in 32 bits (`log_softmax`, `nll_loss`).
const LOSS_BYTES_PER_LOGIT: u64 = 12;
/// The same of a compiled one: logits and their gradient in 16 bits.
const COMPILED_LOSS_BYTES_PER_LOGIT: u64 = 4;
/// Chunks of tokens whose logits torchtune makes one after another (pytorch/torchtune, `LinearCrossEntropyLoss`: `num_output_chunks`).
const CHUNKS: u64 = 8;
/// Bytes per logit that such a loss keeps of all chunks until backward: logarithms in 32 bits; compiled, the logits themselves.
const KEPT_OF_CHUNKS: u64 = 4;
const COMPILED_KEPT_OF_CHUNKS: u64 = 2;
/// Bytes per logit of the chunk in work: two gradients in 32 bits; compiled, one in 16.
const CHUNK_BYTES: u64 = 8;
const COMPILED_CHUNK_BYTES: u64 = 2;
/// Tokens of a chunk of TRL's loss (huggingface/trl @ f2cd57710ae3, `_CHUNKED_LM_HEAD_CHUNK_SIZE`).
const CHUNK_OF_TRL: u64 = 256;
/// The same where the vocabulary is cut over the tensor group (`torch/distributed/tensor/parallel/loss.py`): kept logarithms behind 16-bit logits,
/// their 32-bit copy and the shifted one, 14; then zeros and exponentials fit into what is free, their sum does not.
const CUT_LOSS_BYTES_PER_LOGIT: u64 = 18;
/// Bytes of a gradient that is reduced.
const REDUCED: u64 = 4;
/// Bytes per parameter of a shared table while its last gradient is added: the table, gradients by the head and by the embedding, and their sum.
const SHARED_TABLE: u64 = 4 * HALF;
/// Bytes per element of the 32-bit tensors of a norm that runs as single kernels.
const SINGLE_NORM_BYTES: u64 = 8;

/// What selective checkpointing by operation drops of a layer's tensors. Kept are its input, the results of every second product (query, value, gate
/// and the last one), attention's, and what the tensor group has reduced. The last product's result is read by nobody in backward, so a
/// compiled layer drops it.
pub(super) fn dropped(shard: &Shard<'_>, all: u64) -> u64 {
    let Some(modules) = shard.framework.torch() else { return 0 };
    let model = shard.model;
    let (heads, hidden) = (model.n_heads * model.head_dim, serial(shard, HALF * model.hidden));
    let attended = cut(shard, HALF * (2 * heads + model.kv_width()) + SOFTMAX_BYTES * model.n_heads);
    let last = if modules.compiled { 0 } else { hidden };
    let reduced = if shard.tp > 1 { hidden } else { 0 };
    all.saturating_sub(hidden + attended + cut(shard, HALF * model.intermediate) + last + reduced)
}

/// Final norm, head and loss of so many tokens at their highest.
pub(super) fn head(shard: &Shard<'_>, tokens: u64) -> u64 {
    let model = shard.model;
    let (vocab, hidden) = (model.vocab.div_ceil(u64::from(shard.tp)), HALF * model.hidden);
    let logits = tokens * of_loss(shard);
    // The norm's input and output; where the tensor group cuts tokens, the gathered output, as it comes and in their order.
    let norm = 2 * serial(shard, hidden) + if shard.tp > 1 { 2 * hidden } else { 0 };
    let weight_gradient = if shard.adapters.is_some() { 0 } else { HALF * vocab * model.hidden };
    let input_gradient = tokens * (hidden + if shard.tp > 1 { serial(shard, hidden) } else { 0 });
    let (of_loss, at_once) = match shard.loss {
        Loss::WithHead if !shard.cuts_loss() => {
            // A piece with its gradient in its place; its part of the weight's gradient is added to the whole one.
            let piece = HALF * tokens.min(piece_of_head(tokens, vocab, model.hidden)) * vocab;
            return tokens * norm + piece + 2 * weight_gradient + input_gradient;
        }
        Loss::ChunkedNll if !shard.cuts_loss() => {
            // A chunk's part of the weight's gradient is added to the whole one.
            let chunk = tokens.min(CHUNK_OF_TRL) * of_loss(shard) * LOSS_BYTES_PER_LOGIT;
            return tokens * norm + chunk + 2 * weight_gradient + input_gradient;
        }
        Loss::Chunked if !shard.cuts_loss() => {
            (logits * kept_of_chunks(shard) + of_chunk(shard, logits), logits / CHUNKS)
        }
        _ => (logits * loss_bytes_per_logit(shard), logits),
    };
    let backward = HALF * at_once + weight_gradient + input_gradient;
    tokens * norm + of_loss.max(backward)
}

/// Tokens of a piece of Liger's loss: as many as make its logits as large as the input of the head (linkedin/Liger-Kernel, `fused_linear_cross_entropy_forward`:
/// `inc_factor`, `chunk_size`).
fn piece_of_head(tokens: u64, vocab: u64, hidden: u64) -> u64 {
    let n_pieces = vocab.div_ceil(hidden.max(1));
    tokens.div_ceil(n_pieces.max(1)).next_power_of_two()
}

/// Bytes per logit that a loss over chunks keeps of those that are done.
fn kept_of_chunks(shard: &Shard<'_>) -> u64 {
    if shard.framework.is_compiled() { COMPILED_KEPT_OF_CHUNKS } else { KEPT_OF_CHUNKS }
}

/// Bytes of the chunk in work.
fn of_chunk(shard: &Shard<'_>, logits: u64) -> u64 {
    logits.div_ceil(CHUNKS) * if shard.framework.is_compiled() { COMPILED_CHUNK_BYTES } else { CHUNK_BYTES }
}

/// Logits of a token that the loss of a rank works on.
fn of_loss(shard: &Shard<'_>) -> u64 {
    if shard.gathers_logits { shard.model.vocab } else { shard.model.vocab.div_ceil(u64::from(shard.tp)) }
}

fn loss_bytes_per_logit(shard: &Shard<'_>) -> u64 {
    match (shard.cuts_loss(), shard.loss) {
        (true, _) => CUT_LOSS_BYTES_PER_LOGIT,
        (false, Loss::Compiled) => COMPILED_LOSS_BYTES_PER_LOGIT,
        (false, _) => LOSS_BYTES_PER_LOGIT,
    }
}

/// Gradients of the input of so many projections, which every rank of a tensor group has whole before they are added up and scattered.
pub(super) fn whole_gradients(shard: &Shard<'_>, projections: u64) -> u64 {
    if shard.tp > 1 { projections * HALF * shard.model.hidden } else { 0 }
}

/// What the allocator reserves for one stream beside all tensors while the loss of so many tokens is computed.
pub(super) fn reserved(shard: &Shard<'_>, modules: TorchModules, tokens: u64) -> u64 {
    if tokens == 0 {
        return 0;
    }
    let logits = tokens * of_loss(shard);
    let hole = match shard.loss {
        Loss::Compiled | Loss::WithHead => 0,
        Loss::ChunkedNll => HALF * tokens.min(CHUNK_OF_TRL) * of_loss(shard),
        Loss::Chunked => HALF * logits.div_ceil(CHUNKS),
        _ => HALF * logits,
    };
    let hole = if shard.cuts_loss() { 0 } else { hole };
    // Gathered logits lie in the order of ranks before they are copied into that of the vocabulary.
    let gathered = if shard.tp > 1 && shard.gathers_logits { HALF * logits } else { 0 };
    hole + gathered + tokens * passing(shard, modules)
}

/// Most that the forward of a layer holds beside what it keeps: a gathered input and both factors of the gate, or the last product's whole result
/// and its copy in the order of ranks.
fn passing(shard: &Shard<'_>, modules: TorchModules) -> u64 {
    let model = shard.model;
    let (hidden, wide) = (HALF * model.hidden, cut(shard, HALF * model.intermediate));
    let normed = serial(shard, hidden);
    let is_narrow = modules.casts == Casts::Whole && shard.casts_for(shard.formats.dense);
    let gathered = match (shard.tp > 1 && !modules.in_pieces, is_narrow) {
        (true, true) => hidden / 2,
        (true, false) => hidden,
        (false, _) => normed,
    };
    let n_factors = if shard.recompute == Recompute::Full { 2 } else { 1 };
    let single = if modules.compiled { 0 } else { wide + serial(shard, SINGLE_NORM_BYTES * model.hidden) };
    let gate = (gathered + n_factors * wide).max((n_factors + 1) * wide) + single;
    let last = if shard.tp > 1 && !modules.in_pieces { wide + 2 * hidden } else { wide + normed };
    normed + gate.max(last)
}

fn is_whole(stages: &[Stage]) -> bool {
    stages.iter().any(|stage| stage.first) && stages.iter().any(|stage| stage.last)
}

/// Whole parameters while the loss is computed: of the last layer, which is not gathered again, and of embedding and head. A pipeline keeps all of
/// its own (`train::pipeline_states`).
pub(super) fn gathered(shard: &Shard<'_>, stages: &[Stage]) -> Bytes {
    let [layer, tables] = elements(shard, stages);
    Bytes(if is_whole(stages) { super::gathered_weights(shard, layer) + HALF * tables } else { 0 })
}

/// What is held beside all reduced gradients when backward ends, over so many ranks: gradients of the embedding and the head as they go into
/// their reduction. A shared table is higher before that, while its gradient has not come out and what the first layer's gradients
/// were reduced from is there.
pub(super) fn reduced_last(shard: &Shard<'_>, stages: &[Stage], n_ranks: u64) -> u64 {
    let [layer, tables] = elements(shard, stages);
    let summed = if shard.model.tied && is_whole(stages) { SHARED_TABLE * tables + REDUCED * layer } else { 0 };
    (REDUCED * tables).max(summed.saturating_sub((REDUCED * tables).div_ceil(n_ranks)))
}

/// Elements of a layer's weights on one rank when they are whole, and of a stage's embedding and head.
pub(super) fn elements(shard: &Shard<'_>, stages: &[Stage]) -> [u64; 2] {
    let layer = attention_weights(shard) + feed_forward_weights(shard, shard.model.intermediate, u64::from(shard.tp));
    let n_ends = stages.iter().map(|stage| u64::from(stage.first) + u64::from(stage.last)).sum::<u64>();
    let n_tables = if shard.model.tied && is_whole(stages) { 1 } else { n_ends };
    [layer, n_tables * cut(shard, shard.model.vocab * shard.model.hidden)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Framework;
    use hw::Dtype;

    /// One layer that is computed again.
    const LAYER: Stage = Stage { n_dense: 1, again_dense: 1, ..Stage::NONE };

    fn shard(model: &crate::Model, compiled: bool, tp: u32, recompute: Recompute) -> Shard<'_> {
        let framework = Framework::Fsdp2(TorchModules {
            compiled,
            fused_norms: true,
            casts: Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        });
        let forward = Shard::forward(model, Dtype::Bf16, tp);
        Shard { framework, recompute, sequence_parallel: tp > 1, ..forward }
    }

    #[test]
    fn every_second_product_is_kept_and_the_last_one_where_nothing_is_compiled() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let kept = |compiled| {
            let shard = shard(&model, compiled, 1, Recompute::Selective);
            crate::memory::activation_bytes_per_token(&shard, &LAYER)
        };
        // The input, query, value, attention's output with a 32-bit number per head, and the gate.
        let compiled = 2 * (4096 + 4096 + 1024 + 4096 + 14_336) + 4 * 32;
        assert_eq!(kept(true), compiled);
        assert_eq!(kept(false), compiled + 2 * 4096);
    }

    #[test]
    fn a_loss_over_gathered_logits_holds_the_whole_vocabulary() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let cut = shard(&model, false, 2, Recompute::Full);
        let gathered = Shard { gathers_logits: true, ..cut };
        let (tokens, vocab) = (4096, 128_256);
        // 12 bytes of every logit in place of 18 of every second one; all else is alike.
        let more = head(&gathered, tokens) - head(&cut, tokens);
        assert_eq!(more, tokens * (12 * vocab - 18 * vocab / 2));
        // Beside tensors lie the 16-bit logits, as ranks sent them and as the loss reads them.
        let Some(modules) = cut.framework.torch() else { unreachable!("PyTorch's") };
        let free = reserved(&gathered, modules, tokens) - reserved(&cut, modules, tokens);
        assert_eq!(free, tokens * 2 * 2 * vocab);
    }

    #[test]
    fn a_loss_by_pieces_holds_one_of_them() {
        let model = crate::model::embedded("llama-3.2-3b").expect("embedded");
        let (tokens, vocab, hidden) = (8192, 128_256, 3072);
        let of = |compiled, loss| Shard { loss, ..shard(&model, compiled, 1, Recompute::Off) };
        let saved = |shard| head(&of(false, Loss::Unfused), tokens) - head(&shard, tokens);
        // Logarithms of all logits are kept in 32 bits, and two gradients of an eighth of them are made. Twelve bytes of each without chunks.
        assert_eq!(saved(of(false, Loss::Chunked)), tokens * vocab * (12 - 4 - 8 / 8));
        // pytorch/torchtune @ README, "Optimization flags": two sequences of 4,096 tokens take 51.0 GiB, and 42.9 with this loss. Another moment is the highest then.
        let gib = saved(of(true, Loss::Chunked)) as f64 / 1_073_741_824.0;
        assert!((8.1..10.0).contains(&gib), "{gib}");
        // Liger's pieces have as many tokens as make their logits as large as the head's input: 42 of them, so 196 tokens, or 256 as a power of two. The gradient of the
        // head's weight is there with its next summand.
        let norm_and_gradient = tokens * 2 * (2 * hidden + hidden);
        let expected = norm_and_gradient + 256 * vocab * 2 + 2 * 2 * vocab * hidden;
        assert_eq!(head(&of(false, Loss::WithHead), tokens), expected);
    }

    #[test]
    fn a_loss_that_keeps_nothing_holds_one_chunk() {
        let model = crate::model::embedded("llama-3.2-3b").expect("embedded");
        let loss = crate::loss::Loss::ChunkedNll;
        let of = |tokens| head(&Shard { loss, ..shard(&model, false, 1, Recompute::Off) }, tokens);
        let (vocab, hidden) = (128_256, 3072);
        // Twelve bytes for each logit of 256 tokens; of a token the norm's input and output and the gradient of the latter. Both parts of the weight's gradient.
        assert_eq!(of(8192), 256 * vocab * 12 + 8192 * 3 * 2 * hidden + 2 * 2 * vocab * hidden);
        assert_eq!(of(8192) - of(4096), 4096 * 3 * 2 * hidden, "logits do not grow with the tokens");
    }

    /// What a step holds at most beside what layers keep: the loss with the holes of forwards, or a layer's backward, which fills them.
    #[test]
    fn backward_fills_the_holes_that_forwards_left() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let stage = Stage { n_dense: 32, again_dense: 32, first: true, last: true, ..Stage::NONE };
        for (loss, recompute, is_filled) in [
            (Loss::WithHead, Recompute::Full, true),
            (Loss::Unfused, Recompute::Full, false),
            (Loss::Compiled, Recompute::Selective, false),
        ] {
            let shard = Shard { loss, ..shard(&model, false, 1, recompute) };
            let Some(modules) = shard.framework.torch() else { unreachable!("PyTorch's") };
            let tokens = 131_072;
            let (head, holes) = (head(&shard, tokens), reserved(&shard, modules, tokens));
            let of_backward = tokens * crate::memory::working_bytes_per_token(&shard, &stage);
            let free = crate::memory::reserved_bytes(&shard, &stage, tokens);
            assert_eq!(head.max(of_backward) + free, (head + holes).max(of_backward), "{loss:?}");
            assert_eq!(free < holes, is_filled, "{loss:?}");
        }
    }

    #[test]
    fn peaks_of_measured_runs_are_met_within_three_percent() {
        // pytorch/torchtitan @ b5bcd76c66d0, benchmarks/llama3_h100_202412_torchtitan.md: Llama 3.1 8B on 128 H100, two sequences of 8,192 tokens,
        // peak reserved: 62.0 GiB compiled, 67.0 GiB not.
        let model = crate::model::embedded("llama-3.1-8b").expect("embedded");
        let (tokens, stage) = (16_384, Stage { n_dense: 32, first: true, last: true, ..Stage::default() });
        for (compiled, measured) in [(true, 62.0), (false, 67.0)] {
            let shard = shard(&model, compiled, 1, Recompute::Selective);
            let (parameters, _) = crate::memory::stage_parameters(&shard, &stage);
            let gpu = hw::catalog::gpu("h100-sxm-96g").expect("listed");
            let layers = 32 * crate::memory::activation_bytes_per_token(&shard, &LAYER) * tokens;
            let Some(modules) = shard.framework.torch() else { unreachable!("PyTorch's") };
            let head = head(&shard, tokens) + reserved(&shard, modules, tokens);
            // The buffer of embedding and head is as large as they are; shares of gradients stay reserved.
            let states =
                Bytes::from_f64(parameters * 16.0 / 128.0) + gathered(&shard, &[stage]) + gathered(&shard, &[stage]);
            let held = states + crate::memory::workspace_bytes(&shard, &[stage], &gpu);
            let gib = (held + Bytes(layers + head)).as_f64() / 1_073_741_824.0;
            assert!((gib / measured - 1.0).abs() < 0.03, "{gib} against {measured}");
        }
    }
}
