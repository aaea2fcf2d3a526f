//! State that a layer without keys keeps of a sequence: a matrix per head, and the tokens that a short convolution sees. Units: bytes.

use crate::model::Mixer;
use crate::shard::Shard;

/// State of a sequence in a layer on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Heads on this GPU.
    pub n_heads: u64,
    /// Numbers of a key.
    pub key_dim: u64,
    /// Numbers of a value.
    pub value_dim: u64,
    element_bytes: u64,
    /// What the convolution keeps, bytes.
    kept_tokens: u64,
}

impl State {
    /// The state of a mixer that has one.
    pub fn of(shard: &Shard<'_>, mixer: Mixer) -> Option<Self> {
        let (model, cut, element) = (shard.model, u64::from(shard.tp), shard.dtype.bytes());
        let kept = |channels: u64, kernel: u64| channels.div_ceil(cut) * kernel.saturating_sub(1) * element;
        match mixer {
            Mixer::Linear => model.linear.map(|linear| Self {
                n_heads: linear.n_value_heads.div_ceil(cut),
                key_dim: linear.key_dim,
                value_dim: linear.value_dim,
                element_bytes: linear.state_bytes,
                kept_tokens: kept(linear.channels(), linear.kernel),
            }),
            Mixer::StateSpace | Mixer::Joint => model.state_space.map(|space| Self {
                n_heads: space.n_heads.div_ceil(cut),
                key_dim: space.state,
                value_dim: space.head_dim,
                element_bytes: space.state_bytes,
                kept_tokens: kept(space.channels(), space.kernel),
            }),
            // The convolution alone: no matrix of state.
            Mixer::Convolution => model.convolution.map(|kernel| Self {
                n_heads: 0,
                key_dim: 0,
                value_dim: 0,
                element_bytes: element,
                kept_tokens: kept(model.hidden, kernel),
            }),
            _ => None,
        }
    }

    /// Bytes that a sequence keeps.
    pub const fn bytes(&self) -> u64 {
        self.n_heads * self.key_dim * self.value_dim * self.element_bytes + self.kept_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::embedded;

    #[test]
    fn states_are_as_large_as_published() {
        // Qwen3.5-397B: 64 heads of 128 by 128 in 32 bits are 4 MiB a layer, and 3 tokens of 2 · 2048 + 8192 channels in 16 bits.
        let model = embedded("qwen3.5-397b-a17b").expect("embedded");
        let state =
            |tp| State::of(&Shard::forward(&model, hw::Dtype::Bf16, tp), Mixer::Linear).expect("linear").bytes();
        assert_eq!(state(1), 4 * 1024 * 1024 + 3 * 12_288 * 2);
        assert_eq!(state(8) * 8, state(1));
        // Nemotron 3 Nano: 64 heads of 64 by 128.
        let model = embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 1);
        let state = State::of(&shard, Mixer::StateSpace).expect("a state space").bytes();
        assert_eq!(state, 64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2);
        assert!(State::of(&shard, Mixer::Full).is_none());
    }
}
