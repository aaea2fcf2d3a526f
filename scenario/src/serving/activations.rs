//! Activations of an iteration that leave no room for keys and values: what is said of them.

use engine::verdict::Refused;
use hw::Bytes;
use serve::capacity;
use serve::memory_rule::MemoryRule;
use serve::step_cost::ReplicaConfig;

/// Fewest tokens of an iteration that are advised.
const TOKENS_MIN: u32 = 256;

/// What the process takes beside weights, what an engine with a reserve of its own leaves, and what the process alone keeps, as
/// `capacity::by_rule` takes them; by the tokens of an iteration.
pub(super) type OfProcess<'a> = &'a dyn Fn(u32) -> [Bytes; 3];

/// A refusal for want of memory. Where fewer tokens of an iteration would fit, or its activations are more than what the process keeps, that is said too.
pub(super) fn told(
    refused: Refused,
    (deployment, rule): (&ReplicaConfig<'_>, MemoryRule),
    of_process: OfProcess<'_>,
    tokens_max: u32,
) -> Refused {
    let fits = |tokens: &u32| capacity::by_rule(deployment, rule, of_process(*tokens)).is_ok();
    let fewer = std::iter::successors(Some(tokens_max / 2), |tokens| Some(tokens / 2));
    let fitting = fewer.take_while(|tokens| *tokens >= TOKENS_MIN).find(fits);
    // A share of the device that is given holds activations within what it leaves.
    let beside = match rule {
        MemoryRule::OfDevice(_) | MemoryRule::OfFree(_) => of_process(tokens_max)[0],
        MemoryRule::Reserve => of_process(tokens_max)[1],
        MemoryRule::Static(_) => Bytes(0),
    };
    let is_most = beside > of_process(tokens_max)[2];
    if fitting.is_none() && !is_most {
        return refused;
    }
    let why = &refused.why;
    let why = if fitting.is_some() { why.strip_suffix("; larger GPUs are needed").unwrap_or(why) } else { why };
    let gib = beside.as_f64() / hw::GIB;
    let own = match rule {
        MemoryRule::Reserve => format!("the engine's reserve beside `max_tokens` = {tokens_max} is {gib:.1} GiB"),
        _ => format!("activations of `max_tokens` = {tokens_max} take {gib:.1} GiB of what is reserved"),
    };
    let advice = fitting.map_or_else(String::new, |tokens| format!(": `max_tokens = {tokens}` would fit"));
    Refused::out_of_memory(format!("{why}; {own}{advice}"))
}
