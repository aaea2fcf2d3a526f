//! Activations of an iteration that leave no room for keys and values: what is said of them.

use engine::verdict::Refused;
use hw::Bytes;
use serve::capacity;
use serve::memory_rule::MemoryRule;
use serve::process_memory::ProcessMemory;
use serve::step_cost::ReplicaConfig;

/// Fewest tokens of an iteration that are advised.
const TOKENS_MIN: u32 = 256;

/// What a process takes, by the tokens and sequences of an iteration.
pub(super) type BySizes<'a> = &'a dyn Fn((u32, u32)) -> ProcessMemory;

/// A refusal for want of memory. Where fewer tokens or sequences of an iteration would fit, or it takes more than what the process keeps, that is said too.
pub(super) fn told(
    refused: Refused,
    (deployment, rule): (&ReplicaConfig<'_>, MemoryRule),
    of_process: BySizes<'_>,
    (tokens_max, sequences_max): (u32, u32),
) -> Refused {
    // Rows of logits may be more than what the layers take.
    let of_layers = capacity::activations(deployment, tokens_max.into());
    let [all, one] = [sequences_max, 1].map(|n| of_process((tokens_max, n)).iteration);
    let of_sampler = all > one && all > of_layers;
    let (key, most, least) =
        if of_sampler { ("max_sequences", sequences_max, 1) } else { ("max_tokens", tokens_max, TOKENS_MIN) };
    let with = |n: u32| if of_sampler { (tokens_max, n) } else { (n, sequences_max) };
    let fits = |n: &u32| capacity::by_rule(deployment, rule, of_process(with(*n)).by_rule()).is_ok();
    let fewer = std::iter::successors(Some(most / 2), |n| Some(n / 2));
    let fitting = fewer.take_while(|n| *n >= least).find(fits);
    let taken = of_process((tokens_max, sequences_max));
    // A share of what is free holds activations within what it leaves.
    let beside = match rule {
        MemoryRule::OfDevice(_) | MemoryRule::OfFree(_) => taken.beside(),
        MemoryRule::Reserve => taken.reserve,
        MemoryRule::Static(_) => Bytes(0),
    };
    if fitting.is_none() && beside <= taken.kept {
        return refused;
    }
    let why = &refused.why;
    let why = if fitting.is_some() { why.strip_suffix("; larger GPUs are needed").unwrap_or(why) } else { why };
    let own = match rule {
        MemoryRule::Reserve => {
            let gib = beside.as_f64() / hw::GIB;
            format!("the engine's reserve beside `max_tokens` = {tokens_max} is {gib:.1} GiB")
        }
        _ if of_sampler => taken.in_words(&format!("logits of `{key}` = {most} and their sampler")),
        _ => taken.in_words(&format!("activations of `{key}` = {most}")),
    };
    let advice = fitting.map_or_else(String::new, |n| format!(": `{key} = {n}` would fit"));
    Refused::out_of_memory(format!("{why}; {own}{advice}"))
}
