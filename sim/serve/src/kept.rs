//! What layers that forget keep of a sequence: windows of keys and values, and states. It moves with the sequence. Units: tokens, bytes.

use engine::memory::{state_bytes, window_of};
use engine::shard::Shard;

/// What a sequence keeps in layers that forget, on all GPUs of a replica together, each byte once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Most tokens that some layers keep, and bytes per kept token of them together.
    windows: Vec<(u64, u64)>,
    state_bytes: u64,
}

impl Kept {
    /// Of all layers of a model; `shard` is not cut.
    pub fn of(shard: &Shard<'_>) -> Self {
        assert_eq!(shard.tp, 1, "each byte counts once");
        let mut kept = Self::default();
        for (kind, n) in shard.model.kinds(0, shard.model.n_layers) {
            let [tokens, bytes] = window_of(shard, kind.mixer);
            kept.state_bytes += n * state_bytes(shard, kind.mixer);
            if tokens > 0 {
                kept.windows.push((tokens, n * bytes));
            }
        }
        kept
    }

    /// Bytes of a sequence of so many tokens; one shorter than a window keeps all of it.
    pub fn bytes(&self, tokens: u64) -> u64 {
        let of_window = |(most, bytes): &(u64, u64)| tokens.min(*most) * bytes;
        self.state_bytes + self.windows.iter().map(of_window).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::formats::Formats;
    use engine::memory::kept_bytes_per_sequence;
    use engine::model::{Model, embedded};

    fn shard(model: &Model) -> Shard<'_> {
        Shard::forward(model, hw::Dtype::Bf16, 1)
    }

    #[test]
    fn windows_grow_until_they_are_full_and_states_are_there_from_the_start() {
        let model = embedded("gpt-oss-120b").expect("embedded");
        let kept = Kept::of(&shard(&model));
        // 18 layers keep the last 128 tokens: a key and a value of 8 heads of 64 in 16 bits.
        assert_eq!((kept.bytes(0), kept.bytes(100), kept.bytes(128)), (0, 18 * 100 * 2048, 18 * 128 * 2048));
        assert_eq!(kept.bytes(100_000), kept.bytes(128));
        let formats = Formats { kv: hw::Dtype::Fp8, ..model.formats };
        let narrow = Shard { formats, ..shard(&model) };
        assert_eq!(Kept::of(&narrow).bytes(128), 18 * 128 * 1024);
        let model = embedded("qwen3.5-397b-a17b").expect("embedded");
        assert_eq!(Kept::of(&shard(&model)).bytes(1), 45 * (4 * 1024 * 1024 + 3 * 12_288 * 2));
    }

    #[test]
    fn a_long_sequence_keeps_what_memory_has_for_it() {
        for name in engine::model::embedded_names() {
            let model = embedded(name).expect("listed");
            let shard = shard(&model);
            for tokens in [1, 100, 5_000, 1 << 40] {
                assert_eq!(Kept::of(&shard).bytes(tokens), kept_bytes_per_sequence(&shard, tokens), "{name}");
            }
        }
    }
}
