//! What a process takes of a GPU beside weights, keys and values, and how a refusal for want of room says so. Units: bytes, GiB in words.

use hw::Bytes;

/// What a process takes of a GPU beside weights, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
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

impl ProcessMemory {
    /// All that the process takes.
    pub fn beside(self) -> Bytes {
        self.iteration.max(self.kept) + self.graphs + self.exchanges
    }

    /// As `capacity::by_rule` takes it.
    pub fn by_rule(self) -> [Bytes; 3] {
        [self.beside(), self.reserve, self.kept]
    }

    /// Parts of what is reserved: that of an iteration, in words, and the others. As they are rounded they add up to what is rounded of all.
    pub fn in_words(self, of_iteration: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_is_reserved_as_they_are_printed() {
        let taken = |iteration, graphs, exchanges| {
            let [iteration, kept, graphs, exchanges] = [iteration, 1.0, graphs, exchanges].map(Bytes::from_gib);
            ProcessMemory { iteration, kept, graphs, exchanges, reserve: Bytes(0) }
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
