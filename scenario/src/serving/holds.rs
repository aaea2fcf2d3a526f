//! What replicas hold of the requests: prefixes in whole blocks, and whether any replica could ever hold one.

use serve::replica::Limits;
use serve::replica::batcher::Cut;
use serve::request::Request;

use super::{Serving, ServingChoice, ServingGroup, kv};
use input::diagnostic::Code;
use input::reader::Reader;

/// Names what no replica holds, and prefixes that no replica shares.
pub(super) fn check(reader: &mut Reader<'_>, serving: &mut Serving) {
    holds(reader, serving);
    starts(reader, serving);
    shares(reader, serving);
}

/// Limits of a rank of data-parallel attention, on which a request lies, and on whoever lends to it.
fn of_rank(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Limits {
    let limits = serving.limits(choice, group);
    let of_rank = u64::from(limits.kv_blocks / serving.deployment_of(choice, group).lanes().ranks);
    let blocks = of_rank + kv::lendable(serving, choice, group);
    Limits { kv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..limits }
}

/// Tokens of the longest sequence that memory holds.
fn room(limits: &Limits) -> u64 {
    u64::from(limits.kv_blocks.saturating_sub(limits.blocks_per_sequence)) * u64::from(limits.block_tokens)
}

/// vLLM does not start where no sequence of the whole context fits (`check_enough_kv_cache_memory`, vllm/v1/core/kv_cache_utils.py).
fn starts(reader: &mut Reader<'_>, serving: &Serving) {
    if serving.engine.preset.is_none_or(|preset| preset.name != "vllm") {
        return;
    }
    let limits = serving.fitting().flat_map(|choice| {
        serving.groups_of(choice).into_iter().map(move |group| of_rank(serving, choice, group)).collect::<Vec<_>>()
    });
    let Some(short) = limits.into_iter().find(|limits| room(limits) < u64::from(limits.context_max)) else { return };
    let what = format!(
        "vLLM does not start so: a sequence of the whole context has {} tokens, and there is room for {}",
        short.context_max,
        room(&short)
    );
    let help = "give `engine.max_context` (`--max-model-len`) as your requests need it, more memory or a larger `tp`; here it is served all the same";
    reader.warn(Code::NoRoomForCache, None, what, help);
}

/// Prefixes of a trace are shared in whole blocks.
fn shares(reader: &mut Reader<'_>, serving: &Serving) {
    let (prefix, block) = (serving.requests.prefix_tokens, serving.engine.limits.block_tokens);
    let is_shared = serving.choices.iter().any(|choice| choice.limits.shares_prefixes);
    if is_shared && prefix > 0 && !prefix.is_multiple_of(block) {
        let what = format!(
            "no prefix is shared: the trace names prefixes of {prefix} tokens, `engine.block_tokens` is {block}"
        );
        let help = format!("{prefix} is to be a multiple of `engine.block_tokens`, for example 16");
        reader.warn(Code::NoEffect, None, what, help);
    }
}

/// Requests of a choice that its largest replica could never hold.
struct TooLong {
    n: usize,
    n_requests: usize,
    largest: Limits,
    /// Whether prompts are not cut, so that an iteration holds a whole one.
    is_whole: bool,
}

impl TooLong {
    /// `None` where the largest replica holds every request.
    fn of(serving: &Serving, choice: &ServingChoice) -> Option<Self> {
        let limits = serving.groups_of(choice).into_iter().map(|group| of_rank(serving, choice, group));
        let largest = limits.max_by_key(most)?;
        let requests = serving.requests_of(choice);
        let is_whole = choice.batcher.cut() == Cut::Never;
        let is_too_long = |index: &usize| {
            let Request { prompt, output, .. } = requests.list[*index];
            u64::from(prompt) + u64::from(output) > most(&largest) || (is_whole && prompt > largest.tokens_max)
        };
        let n = (0..requests.len()).filter(is_too_long).count();
        (n > 0).then(|| Self { n, n_requests: requests.len(), largest, is_whole })
    }

    /// Whether other engines could hold some: memory leaves no room, and no limit that is written.
    fn is_for_memory(&self) -> bool {
        room(&self.largest) < u64::from(self.largest.context_max) && !self.is_whole
    }

    fn words(&self, name: &str) -> String {
        let Self { n, n_requests, largest, is_whole } = self;
        let whole = if *is_whole {
            format!(", {} tokens of an iteration, which cuts no prompt", largest.tokens_max)
        } else {
            String::new()
        };
        format!(
            "{n} of {n_requests} requests are longer than a replica of `{name}` can hold ({} tokens of context, {} tokens of memory{whole})",
            largest.context_max,
            room(largest)
        )
    }

    fn help(&self) -> String {
        let tokens = if self.is_whole { ", `engine.max_tokens`" } else { "" };
        format!(
            "they are refused and meet no limit; more memory, a larger `engine.tp`{tokens} or `engine.max_context` holds them"
        )
    }
}

/// Tokens of the longest request that limits hold.
fn most(limits: &Limits) -> u64 {
    u64::from(limits.context_max).min(room(limits) + 1)
}

/// Requests that no replica could ever hold are named before the run. A policy that holds none is refused when it is run, where a verb looks at
/// other engines.
fn holds(reader: &mut Reader<'_>, serving: &mut Serving) {
    for index in 0..serving.choices.len() {
        let choice = &serving.choices[index];
        if choice.candidate.is_some() || choice.refused.is_some() {
            continue;
        }
        let Some(found) = TooLong::of(serving, choice) else { continue };
        let what = found.words(&choice.name);
        if found.n < found.n_requests {
            reader.warn(Code::LongRequests, None, what, found.help());
        } else if serving.looks_at_others() && found.is_for_memory() {
            serving.choices[index].refused = Some(what);
        } else {
            reader.refuse(Code::LongRequests, None, what, "no request could run");
        }
    }
}
