//! Profiles as Dynamo's profiler takes them before a deployment, here from an engine's table of iteration times.
//!
//! Prefill: one prompt at a time, chunk by chunk. Decode: iterations of a full batch at one context, for batches up to the engine's sequences
//! and memory. With drafts an iteration gives a sequence several tokens, as many as are accepted on average. Units: tokens, seconds, tokens per second and GPU. No
//! queue is in either, so observed times correct them.

use serve::replica::Engine;
use serve::step_cost::{Chunk, StepLoad};

use super::{Decode, Prefill};

/// Shortest prompt and context of a profile.
const TOKENS_MIN: u32 = 16;
/// Longest ones; border values hold beyond.
const TOKENS_MAX: u32 = 1 << 17;

/// Powers of two up to what an engine takes, and that length itself.
fn lengths(engine: &Engine) -> Vec<u32> {
    let most = engine.limits.context_max.clamp(TOKENS_MIN, TOKENS_MAX);
    let below = std::iter::successors(Some(TOKENS_MIN), |n| n.checked_mul(2)).take_while(|n| *n < most);
    below.chain([most]).collect()
}

/// Tokens that an iteration gives a sequence: one, or those of a verification of drafts on average.
pub(super) fn tokens_per_step(engine: &Engine) -> f64 {
    engine.table.speculation().map_or(1.0, |speculation| speculation.tokens_per_verification())
}

/// Seconds of one iteration of so many sequences that decode at a context.
pub(super) fn decode_s(engine: &Engine, batch: u32, context: f64) -> f64 {
    let keys = hw::whole(context * f64::from(batch));
    let load = StepLoad { n_decode: batch, context: keys, n_sampled: batch, ..StepLoad::default() };
    engine.table.step(&load, std::iter::empty()).to_seconds()
}

/// Seconds of the iterations that compute a prompt beside so many sequences that decode at a context.
pub(super) fn prompt_s(engine: &Engine, prompt: u32, batch: u32, context: f64) -> Vec<f64> {
    let keys = hw::whole(context * f64::from(batch));
    let tokens = engine.limits.tokens_max.saturating_mul(engine.table.lanes().n());
    let room = tokens.saturating_sub(batch.saturating_mul(engine.table.tokens_per_sequence())).max(1);
    let mut past = 0;
    let mut all = Vec::new();
    while past < prompt {
        let new = room.min(prompt - past);
        let n_sampled = batch + u32::from(past + new == prompt);
        let load = StepLoad {
            n_decode: batch,
            context: keys,
            n_chunk_tokens: new,
            n_chunks: 1,
            n_sampled,
            ..StepLoad::default()
        };
        all.push(engine.table.step(&load, std::iter::once(Chunk { past, new })).to_seconds());
        past += new;
    }
    all
}

/// Sequences that decode at once at a context at most; at least one.
pub(super) fn batch_max(engine: &Engine, context: f64) -> u32 {
    let limits = &engine.limits;
    let room = f64::from(limits.kv_blocks) * f64::from(limits.block_tokens);
    let held = super::whole((room / context.max(1.0)).floor().max(1.0));
    held.min(limits.sequences_max.saturating_mul(engine.table.lanes().ranks))
}

/// One prompt at a time on a replica of so many GPUs.
pub fn prefill(engine: &Engine, n_gpus: u32) -> Vec<Prefill> {
    lengths(engine).into_iter().map(|input| prefill_row(engine, n_gpus, input)).collect()
}

fn prefill_row(engine: &Engine, n_gpus: u32, input: u32) -> Prefill {
    let ttft_s: f64 = prompt_s(engine, input, 0, 0.0).iter().sum();
    let input = f64::from(input);
    Prefill { input, ttft_s, tokens_per_s: input / ttft_s / f64::from(n_gpus) }
}

/// Full batches at one context on a replica of so many GPUs, whose iterations give a sequence so many tokens.
pub fn decode(engine: &Engine, n_gpus: u32, tokens_per_step: f64) -> Vec<Decode> {
    let mut rows = Vec::new();
    for context in lengths(engine).into_iter().map(f64::from) {
        let most = batch_max(engine, context);
        let below = std::iter::successors(Some(1_u32), |n| n.checked_add((n / 4).max(1))).take_while(|n| *n < most);
        rows.extend(below.chain([most]).map(|batch| {
            let itl_s = decode_s(engine, batch, context) / tokens_per_step;
            Decode { context, itl_s, tokens_per_s: f64::from(batch) / itl_s / f64::from(n_gpus) }
        }));
    }
    rows
}
