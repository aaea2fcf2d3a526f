//! Activations of an iteration that leave no room for keys and values: what is said of them.

use engine::verdict::Refused;
use hw::Bytes;
use serve::capacity;
use serve::memory_rule::MemoryRule;
use serve::step_cost::ReplicaConfig;

/// Fewest tokens of an iteration that are advised.
const TOKENS_MIN: u32 = 256;

/// What a process takes of a GPU beside weights, keys and values.
#[derive(Clone, Copy)]
pub(super) struct OfProcess {
    /// What an engine finds that its largest iteration takes: activations of the layers, or logits and their sampler.
    pub iteration: Bytes,
    /// What the process alone keeps. It lies within what an iteration takes, where that is more.
    pub kept: Bytes,
    /// Graphs of captured batches, where the engine takes them off.
    pub graphs: Bytes,
    /// Exchanges with other GPUs, where the engine takes them off.
    pub exchanges: Bytes,
    /// What an engine with a reserve of its own leaves.
    pub reserve: Bytes,
}

impl OfProcess {
    /// All that the process takes.
    fn beside(self) -> Bytes {
        self.iteration.max(self.kept) + self.graphs + self.exchanges
    }

    /// As `capacity::by_rule` takes it.
    pub(super) fn by_rule(self) -> [Bytes; 3] {
        [self.beside(), self.reserve, self.kept]
    }

    /// Parts of what is reserved: that of an iteration, in words, and the others. As they are rounded they add up to what is rounded of all.
    fn in_words(self, of_iteration: &str) -> String {
        let tenths = |bytes: Bytes| (bytes.as_f64() / hw::GIB * 10.0).round();
        let others = [("CUDA graphs", tenths(self.graphs)), ("exchanges between GPUs", tenths(self.exchanges))];
        let gib = (tenths(self.beside()) - others.iter().map(|(_, tenths)| tenths).sum::<f64>()) / 10.0;
        let what =
            if self.iteration >= self.kept { format!("{of_iteration} take") } else { "the process takes".to_owned() };
        let mut words = format!("{what} {gib:.1} GiB of what is reserved");
        for (part, tenths) in others.into_iter().filter(|(_, tenths)| *tenths > 0.0) {
            words += &format!(", {part} {:.1} GiB", tenths / 10.0);
        }
        words
    }
}

/// What a process takes, by the tokens and sequences of an iteration.
pub(super) type BySizes<'a> = &'a dyn Fn((u32, u32)) -> OfProcess;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_is_reserved_as_they_are_printed() {
        let taken = |iteration, graphs, exchanges| {
            let [iteration, kept, graphs, exchanges] = [iteration, 1.0, graphs, exchanges].map(Bytes::from_gib);
            OfProcess { iteration, kept, graphs, exchanges, reserve: Bytes(0) }
        };
        assert_eq!(taken(2.0, 0.0, 0.0).in_words("logits"), "logits take 2.0 GiB of what is reserved");
        // 2.04 and 0.84 are 2.88, which is printed as 2.9.
        let both = taken(2.04, 0.84, 0.0);
        assert_eq!(format!("{:.1}", both.beside().as_f64() / hw::GIB), "2.9");
        assert_eq!(both.in_words("logits"), "logits take 2.1 GiB of what is reserved, CUDA graphs 0.8 GiB");
        // Nobody blames logits that hide behind the process itself.
        let small = taken(0.5, 0.25, 1.75).in_words("logits");
        assert_eq!(
            small,
            "the process takes 0.9 GiB of what is reserved, CUDA graphs 0.3 GiB, exchanges between GPUs 1.8 GiB"
        );
    }
}
