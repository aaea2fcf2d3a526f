//! Activations of an iteration that leave no room for keys and values: what is said of them.

use engine::verdict::Refused;
use hw::Bytes;
use serve::capacity;
use serve::memory_rule::MemoryRule;
use serve::step_cost::ReplicaConfig;

/// Fewest tokens of an iteration that are advised.
const TOKENS_MIN: u32 = 256;

/// A refusal for want of memory, with the tokens of an iteration that would fit where its activations are more than what the process keeps. `of_process` is
/// as `capacity::by_rule` takes it.
pub(super) fn told(
    refused: Refused,
    (deployment, rule): (&ReplicaConfig<'_>, MemoryRule),
    of_process: [Bytes; 3],
    tokens_max: u32,
) -> Refused {
    let [beside, reserve, kept] = of_process;
    let of = |tokens: u32| capacity::activations(deployment, u64::from(tokens));
    if beside != of(tokens_max) || beside <= kept {
        return refused;
    }
    let fits = |tokens: &u32| {
        let beside = Bytes(of(*tokens).0.max(kept.0));
        capacity::by_rule(deployment, rule, [beside, reserve, kept]).is_ok()
    };
    let fewer = std::iter::successors(Some(tokens_max / 2), |tokens| Some(tokens / 2));
    let Some(tokens) = fewer.take_while(|tokens| *tokens >= TOKENS_MIN).find(fits) else { return refused };
    let why = refused.why.strip_suffix("; larger GPUs are needed").unwrap_or(&refused.why);
    let gib = beside.as_f64() / hw::GIB;
    Refused::out_of_memory(format!(
        "{why}; activations of `max_tokens` = {tokens_max} take {gib:.1} GiB: `max_tokens = {tokens}` would fit"
    ))
}
