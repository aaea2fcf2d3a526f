//! What no prompt is long enough for: chunks of equal time, and sparse attention.

use input::diagnostic::{Code, Finding};
use serve::step_cost::chunks::{Chunking, Sizes};

use super::super::Serving;

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
