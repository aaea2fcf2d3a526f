//! What replicas hold of the requests: prefixes in whole blocks, and whether any replica could ever hold one.

use engine::verdict::Refused;
use serve::replica::Limits;
use serve::replica::batcher::Cut;
use serve::request::Request;

use super::{Serving, ServingChoice, ServingGroup, kv};
use input::diagnostic::Code;
use input::reader::Reader;

/// Names what no replica holds, and prefixes that no replica shares.
pub(super) fn check(reader: &mut Reader<'_>, serving: &mut Serving) {
    starts(reader, serving);
    // What is said of requests is said of those that are played.
    if !serving.given.measured {
        holds(reader, serving);
        shares(reader, serving);
    }
}

/// Limits of a rank of data-parallel attention, on which a request lies, and on whoever lends to it.
fn of_rank(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Limits {
    let limits = serving.limits(choice, group);
    let of_rank = u64::from(limits.kv_blocks / serving.deployment_of(choice, group).lanes().ranks);
    let blocks = of_rank + kv::lendable(serving, choice, group);
    Limits { kv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..limits }
}

/// Blocks of a group where they are written, and do not follow from memory.
fn written_blocks(serving: &Serving, group: &ServingGroup) -> Option<u32> {
    [group.kv_blocks, serving.engine.limits.kv_blocks].into_iter().find(|blocks| *blocks > 0)
}

/// Tokens of the longest sequence that memory holds.
fn room(limits: &Limits) -> u64 {
    u64::from(limits.kv_blocks.saturating_sub(limits.blocks_per_sequence)) * u64::from(limits.block_tokens)
}

/// vLLM does not start where no sequence of the whole context fits (`check_enough_kv_cache_memory`, vllm/v1/core/kv_cache_utils.py).
fn starts(reader: &mut Reader<'_>, serving: &Serving) {
    if serving.engine.fits_context || serving.engine.preset.is_none_or(|preset| preset.name != "vllm") {
        return;
    }
    let limits = serving.fitting().flat_map(|choice| {
        let of = move |group| (of_rank(serving, choice, group), written_blocks(serving, group));
        serving.groups_of(choice).into_iter().map(of).collect::<Vec<_>>()
    });
    let is_short = |(limits, _): &(Limits, Option<u32>)| room(limits) < u64::from(limits.context_max);
    let Some((short, written)) = limits.into_iter().find(is_short) else { return };
    let what = format!(
        "vLLM does not start so: a sequence of the whole context has {} tokens, and there is room for {}{}",
        short.context_max,
        room(&short),
        written.map_or_else(String::new, |blocks| format!(" in `kv_blocks` = {blocks}"))
    );
    let more = if written.is_some() { "more `kv_blocks`" } else { "more memory or a larger `tp`" };
    let help = format!(
        "give `engine.max_context` (`--max-model-len`) as your requests need it, or as \"fits\" (`auto`), {more}; here it is served all the same"
    );
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
    /// Blocks for keys and values where they are written.
    written: Option<u32>,
    /// Tokens of the longest of them, and of the longest prompt among them.
    longest: (u64, u32),
    /// Whether prompts are not cut, so that an iteration holds a whole one.
    is_whole: bool,
    /// Whether the group says how many tokens an iteration has.
    is_of_group: bool,
    /// Whether some were made long.
    are_made_long: bool,
}

impl TooLong {
    /// `None` where the largest replica holds every request.
    fn of(serving: &Serving, choice: &ServingChoice) -> Option<Self> {
        let limits = serving
            .groups_of(choice)
            .into_iter()
            .map(|group| (of_rank(serving, choice, group), written_blocks(serving, group), group.tokens_max.is_some()));
        let (largest, written, is_of_group) = limits.max_by_key(|(limits, ..)| most(limits))?;
        let requests = serving.requests_of(choice);
        let is_whole = choice.batcher.cut() == Cut::Never;
        let is_too_long = |index: &usize| {
            let Request { prompt, output, .. } = requests.list[*index];
            u64::from(prompt) + u64::from(output) > most(&largest) || (is_whole && prompt > largest.tokens_max)
        };
        let (mut n, mut longest) = (0, (0, 0));
        for index in (0..requests.len()).filter(is_too_long) {
            let Request { prompt, output, .. } = requests.list[index];
            n += 1;
            longest = (longest.0.max(u64::from(prompt) + u64::from(output)), longest.1.max(prompt));
        }
        let (n_requests, are_made_long) = (requests.len(), serving.long_from.is_some());
        (n > 0).then_some(Self { n, n_requests, largest, written, longest, is_whole, is_of_group, are_made_long })
    }

    /// Whether other engines could hold some: memory leaves no room, and no limit that is written.
    fn is_for_memory(&self) -> bool {
        room(&self.largest) < u64::from(self.largest.context_max) && !self.is_whole
    }

    fn words(&self, name: &str) -> String {
        let Self { n, n_requests, largest, written, is_whole, .. } = self;
        let whole = if *is_whole {
            format!(", {} tokens of an iteration, which cuts no prompt", largest.tokens_max)
        } else {
            String::new()
        };
        let of = written.map_or_else(|| "of memory".to_owned(), |blocks| format!("in `kv_blocks` = {blocks}"));
        format!(
            "{n} of {n_requests} requests are longer than a replica of `{name}` can hold ({} tokens of context, {} tokens {of}{whole})",
            largest.context_max,
            room(largest)
        )
    }

    fn help(&self) -> String {
        format!("they are refused and meet no limit; {}", self.remedy())
    }

    /// What would hold them: the limits that the longest of them exceeds.
    fn remedy(&self) -> String {
        let Self { largest, written, is_whole, is_of_group, longest: (tokens, prompt), .. } = *self;
        let iteration =
            if is_of_group { "a larger `max_tokens` of `[[fleet.group]]`" } else { "a larger `engine.max_tokens`" };
        let memory = if written.is_some() { "more `kv_blocks`" } else { "more memory, or a larger `engine.tp`" };
        let limits = [
            (tokens > room(&largest) + 1, memory),
            (tokens > u64::from(largest.context_max), "a larger `engine.max_context`"),
            (is_whole && prompt > largest.tokens_max, iteration),
        ];
        let wider: Vec<&str> = limits.into_iter().filter_map(|(is_over, words)| is_over.then_some(words)).collect();
        let shorter = if self.are_made_long { ", or a smaller `trace.long.tokens_max`" } else { "" };
        format!("all would need {}{shorter}", wider.join(" and "))
    }
}

/// Tokens of the longest request that limits hold.
fn most(limits: &Limits) -> u64 {
    u64::from(limits.context_max).min(room(limits) + 1)
}

/// Requests that no replica could ever hold are named before the run. A choice whose memory holds none of them is an outcome.
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
        } else if found.is_for_memory() {
            serving.choices[index].refused = Some(Refused::out_of_memory(format!("{what}; {}", found.remedy())));
        } else {
            let help = format!("no request could run; {}", found.remedy());
            reader.refuse(Code::LongRequests, None, what, help);
        }
    }
}
