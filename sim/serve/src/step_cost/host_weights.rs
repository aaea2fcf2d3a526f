//! Weights of layers that lie in the memory of the host, where a device has no room for all of them.
//!
//! - *In place*: kernels read them over the link to the host, so a product takes what it computes or what the link takes, whichever is longer. Of routed
//!   experts those are read that a token visits (vLLM from 0.8.3 on, `--cpu-offload-gb`, `model_executor/offloader/uva.py`).
//! - *Copied*: every pass copies them before it computes with them, one after another (vLLM before, and SGLang `--cpu-offload-gb`).
//! - *Ahead*: the last `n` layers of every `of` are copied into buffers while layers in front of them compute. A layer that is done starts the copy of the one
//!   that is `ahead` layers of this kind behind it, and a pass waits for all copies that it started (vLLM `--offload-group-size` and
//!   `model_executor/offloader/prefetch.py`, after SGLang's `utils/offloader.py`).
//!
//! Embedding, head, encoder and what drafts stay on the device. All layers of a stage take equally long here. Copies of a pass are played at both ends, where
//! computation takes long and where it takes as long as that of a token, and the longer of both lines counts. Units: bytes per GPU, seconds, layers.

use engine::stage::Stage;
use hw::Bytes;

/// How weights come to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWay {
    /// So many bytes of each GPU are read over the link by the kernels that need them.
    InPlace(Bytes),
    /// So many bytes of each GPU are copied before they are needed.
    Copied(Bytes),
    /// Those of some layers are copied while others compute.
    Ahead {
        /// Layers of a group in host memory: its last ones.
        n: u32,
        /// Layers of a group.
        of: u32,
        /// Layers of this kind by which a copy is ahead, each with a buffer on the device.
        ahead: u32,
    },
}

/// Which weights may lie in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPart {
    /// All of a layer.
    #[default]
    All,
    /// Those of routed experts.
    Experts,
}

/// Weights in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWeights {
    /// How they come to the device.
    pub way: HostWay,
    /// Which they are.
    pub part: HostPart,
}

impl HostWeights {
    /// Positions of a stage's layers that are copied ahead.
    pub(super) fn layers(&self, stage: &Stage) -> Vec<u32> {
        let HostWay::Ahead { n, of, .. } = self.way else { return Vec::new() };
        (0..stage.n_layers()).filter(|index| index % of >= of - n).collect()
    }
}
