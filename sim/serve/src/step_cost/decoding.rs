//! What the layers of a model make of decode attention: how many run a kernel, how many read all keys, and what the others read.
//!
//! A layer with a window of W tokens reads W keys of every sequence, and what the kernel reads beyond them. That is right once contexts are
//! longer than the window; a shorter context is charged the whole window, or the longest context that a replica takes. A chunk counts half of its length, where a sequence is on average.
//! Layers with a state read and write it. Layers that keep entries of several tokens read those, or as many as an index picks. So a span of iterations
//! stays linear in cached tokens. Layers with a kernel that was measured by itself are counted by themselves, all others in keys of the model's plain
//! attention.

use engine::memory::index_key_bytes;
use engine::model::{Index, Mixer};
use engine::state::State;

use crate::step_cost::ReplicaConfig;

/// Decode attention of layers of a model, in those of one that reads all keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoding {
    /// Layers that run a kernel for decoding sequences.
    kernels: f64,
    /// Layers that attend to all keys, and what else is read per key, in their keys.
    keys: f64,
    /// Keys of a sequence that the other layers read, and states that are read and written, in the same unit.
    per_sequence: f64,
}

impl Decoding {
    /// Layers of a deployment with these mixers, in keys of so many bytes, with a kernel that reads so many keys of a layer with a window.
    pub fn new(
        deployment: &ReplicaConfig<'_>,
        is_one: impl Fn(Mixer) -> bool,
        key_bytes: u64,
        read_of: impl Fn(u64) -> u64,
    ) -> Self {
        let (model, shard) = (deployment.model, deployment.shard());
        let in_keys = |bytes: u64| hw::real(bytes) / hw::real(key_bytes);
        let index_keys = |index: Index| in_keys(index_key_bytes(index)) / hw::real(index.pool);
        let index = model.index.map_or(0.0, index_keys);
        let mut found = Self { kernels: 0.0, keys: 0.0, per_sequence: 0.0 };
        for (kind, n) in model.kinds(0, model.n_layers).into_iter().filter(|(kind, _)| is_one(kind.mixer)) {
            let (n, mixer) = (hw::real(n), kind.mixer);
            // A convolution is one of the small kernels of its layer.
            let state = State::of(&shard, mixer).filter(|_| mixer != Mixer::Convolution);
            if let Some(state) = state {
                found.per_sequence += n * in_keys(2 * state.bytes());
                found.kernels += n;
            }
            if !mixer.attends() {
                continue;
            }
            found.kernels += n;
            found.keys += if mixer.has_index() { n * index } else { 0.0 };
            match (mixer, mixer.attended_max()) {
                (Mixer::Compressed { ratio, window, .. }, None) => {
                    found.keys += n / hw::real(ratio);
                    found.per_sequence += n * hw::real(window);
                }
                (_, None) => found.keys += n,
                (Mixer::Window(tokens) | Mixer::Reused(Some(tokens)), _) => {
                    found.per_sequence += n * hw::real(read_of(tokens));
                }
                (_, Some(tokens)) => found.per_sequence += n * hw::real(tokens),
            }
        }
        found
    }

    /// Whether there is no such layer.
    pub fn is_empty(&self) -> bool {
        self.kernels <= 0.0
    }

    /// Seconds of all layers for `n` sequences but for their keys, and per key, from those of one layer.
    pub fn seconds(&self, fixed_s: f64, per_key_s: f64, n: u64) -> [f64; 2] {
        [self.kernels * fixed_s + self.per_sequence * per_key_s * hw::real(n), self.keys * per_key_s]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_cost::decode_attention::shape;

    fn of(name: &str, tensor_degree: u32) -> Decoding {
        let model = engine::model::embedded(name).expect("embedded");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let deployment = ReplicaConfig::new(&model, &cluster, tensor_degree);
        let shape = shape(&deployment, engine::model::Mixer::Full);
        Decoding::new(&deployment, |_| true, shape.token_bytes(), |window| window)
    }

    #[test]
    fn plain_models_read_every_key_in_every_layer() {
        assert_eq!(of("llama-3-8b", 2), Decoding { kernels: 32.0, keys: 32.0, per_sequence: 0.0 });
        assert_eq!(of("deepseek-v3", 8), Decoding { kernels: 61.0, keys: 61.0, per_sequence: 0.0 });
    }

    #[test]
    fn windows_and_states_are_read_however_long_the_context() {
        assert_eq!(of("gpt-oss-120b", 1), Decoding { kernels: 36.0, keys: 18.0, per_sequence: 18.0 * 128.0 });
        // Twelve layers attend to all, 36 to half of a chunk of 8192.
        assert_eq!(of("llama-4-maverick", 8), Decoding { kernels: 48.0, keys: 12.0, per_sequence: 36.0 * 4096.0 });
        // A state of 4 MiB and a convolution's tokens, read and written, in keys of 2 KiB.
        let qwen = of("qwen3.5-397b-a17b", 1);
        let state = hw::real(2 * (4 * 1024 * 1024 + 3 * 12_288 * 2)) / 2048.0;
        assert_eq!((qwen.kernels, qwen.keys), (60.0, 15.0));
        assert!((qwen.per_sequence / (45.0 * state) - 1.0).abs() < 1e-12, "{}", qwen.per_sequence);
        // 2048 selected latent vectors of 1152 bytes, and 132 bytes of the index for every token.
        let sparse = of("deepseek-v3.2", 8);
        assert!((sparse.keys - 61.0 * 132.0 / 1152.0).abs() < 1e-12 && sparse.per_sequence == 61.0 * 2048.0);
        // Six of 52 blocks attend, 23 scan, 23 are feed-forwards.
        assert_eq!((of("nemotron-3-nano-30b-a3b", 1).kernels, of("nemotron-3-nano-30b-a3b", 1).keys), (29.0, 6.0));
    }
}
