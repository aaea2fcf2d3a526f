//! What no prompt is long enough for: chunks of equal time, and sparse attention. And whole prompts that are too long to join anybody who decodes.

use input::diagnostic::{Code, Finding};
use serve::replica::Role;
use serve::replica::batcher::Cut;
use serve::step_cost::chunks::{Chunking, Sizes};

use super::super::{Serving, ServingChoice, ServingGroup};

/// Chunks of equal time whose smallest is as large as the first: all are alike.
pub(super) fn equal_chunks(serving: &Serving) -> Option<Finding> {
    let mut asked: Vec<Chunking> = Vec::new();
    for choice in serving.plain() {
        for group in serving.groups_of(choice) {
            asked.extend(choice.operation.kernels.chunking(&serving.limits(choice, group)));
        }
    }
    asked.retain(|chunking| chunking.sizes == Sizes::EqualTime);
    let Chunking { tokens_min, tokens_max, .. } = asked.first()?;
    if asked.iter().any(|chunking| chunking.tokens_min < chunking.tokens_max) {
        return None;
    }
    let what = format!(
        "`chunk_sizes = \"equal-time\"` changes nothing: chunks have {tokens_min} tokens at least, and {tokens_max} at most"
    );
    let help = "it needs `chunk_tokens_min` below `chunk_tokens` and `max_tokens`";
    Some(Finding::warning(Code::NoEffect, None, what).help(help))
}

/// Sparse attention above more tokens than any request has.
pub(super) fn dense(serving: &Serving) -> Option<Finding> {
    let mut thresholds: Vec<u64> = Vec::new();
    for choice in serving.plain() {
        for group in serving.groups_of(choice) {
            let sparse = serving.deployment_of(choice, group).prompt_attention.sparse;
            thresholds.extend(sparse.map(|sparse| sparse.threshold));
        }
    }
    let least = thresholds.into_iter().min()?;
    let requests = serving.requests.list.iter();
    let longest = requests.map(|request| u64::from(request.prompt) + u64::from(request.output)).max()?;
    if longest > least {
        return None;
    }
    let what = format!(
        "`prefill_attention` changes nothing: the longest request has {longest} tokens, and prompts are sparse above {least}"
    );
    Some(Finding::warning(Code::NoEffect, None, what).help("it needs longer prompts, or fewer `above_tokens`"))
}

/// An engine that cuts no prompt, and whose iterations have no room for most prompts beside one sequence that decodes: such a prompt waits until nobody
/// decodes, so that one sequence is served at a time.
pub(super) fn alone(serving: &Serving) -> Option<Finding> {
    let room_of = |choice: &ServingChoice, group: &ServingGroup| {
        let is_whole = choice.batcher.cut() == Cut::Never && group.role == Role::Both;
        let tokens_max = serving.limits(choice, group).tokens_max;
        is_whole.then(|| tokens_max.saturating_sub(choice.operation.tokens_per_sequence())..tokens_max)
    };
    let rooms = serving.plain().flat_map(|choice| {
        serving.groups_of(choice).into_iter().filter_map(move |group| Some((choice, room_of(choice, group)?)))
    });
    let (choice, room) = rooms.min_by_key(|(_, room)| room.start)?;
    let mut prompts: Vec<u32> = serving.requests_of(choice).list.iter().map(|request| request.prompt).collect();
    // Those that no iteration holds are refused.
    prompts.retain(|prompt| *prompt <= room.end);
    let n_long = prompts.iter().filter(|prompt| **prompt > room.start).count();
    if prompts.len() < 2 || 2 * n_long < prompts.len() {
        return None;
    }
    let what = format!(
        "{n_long} of {} prompts do not fit an iteration beside one sequence that decodes: each of them waits until nobody \
         decodes, so one sequence is served at a time",
        prompts.len()
    );
    let (longest, room) = (prompts.iter().max()?, room.start);
    let help = format!(
        "`max_tokens` holds {room} tokens of prompts beside one that decodes, and the longest prompt has {longest}: raise it, or cut \
         prompts with `run = [\"sarathi\"]` in `[policies]`"
    );
    Some(Finding::warning(Code::FewTokens, None, what).help(help))
}
