//! Room for adapters (LoRA) on the GPUs of a replica, and the modules that they adapt. Units: bytes, elements.
//!
//! On a tensor group the matrix that meets the cut side is cut, the other one is whole on every GPU (vLLM, `vllm/lora/layers/column_parallel_linear.py`
//! and `row_parallel_linear.py`, without `--fully-sharded-loras`). Slots lie padded to the largest rank and are taken at the start.

use engine::model::Model;
use hw::{Bytes, Dtype};

/// Which matrices of a layer have adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modules {
    /// Queries, keys and values, and the output of attention.
    pub attention: bool,
    /// Matrices of the feed-forward.
    pub feed_forward: bool,
}

/// Room for adapters on every GPU of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterRoom {
    /// Adapters that it holds.
    pub slots: u32,
    /// Rank that each has room for.
    pub rank_max: u32,
    /// Which matrices have adapters.
    pub modules: Modules,
}

/// Products side by side that one pair of kernels adapts, as one GPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Matrices.
    pub(super) slices: u64,
    /// Rows of each.
    pub(super) inputs: u64,
    /// Columns of all.
    pub(super) outputs: u64,
}

impl AdapterRoom {
    /// Adapted modules of a layer on one GPU of a tensor group of so many.
    pub(super) fn modules_of(&self, model: &Model, n_ranks: u64) -> Vec<Module> {
        let cut = |n: u64| n.div_ceil(n_ranks);
        let mut found = Vec::new();
        if self.modules.attention {
            let queries = cut(model.n_heads) * model.head_dim;
            let outputs = queries + 2 * cut(model.n_kv_heads) * model.head_dim;
            found.push(Module { slices: 3, inputs: model.hidden, outputs });
            found.push(Module { slices: 1, inputs: queries, outputs: model.hidden });
        }
        if self.modules.feed_forward {
            let (slices, width) = (if model.gated { 2 } else { 1 }, cut(model.intermediate));
            found.push(Module { slices, inputs: model.hidden, outputs: slices * width });
            found.push(Module { slices: 1, inputs: width, outputs: model.hidden });
        }
        found
    }

    /// Bytes of an adapter per rank on each GPU of a tensor group; on one GPU as in its file.
    pub fn bytes_per_rank(&self, model: &Model, n_ranks: u32, dtype: Dtype) -> Bytes {
        let elements = |module: &Module| module.slices * module.inputs + module.outputs;
        let of_layer: u64 = self.modules_of(model, n_ranks.into()).iter().map(elements).sum();
        Bytes(of_layer * model.n_layers * dtype.bytes())
    }

    /// Memory that is taken on each GPU from the start.
    pub fn bytes(&self, model: &Model, n_ranks: u32, dtype: Dtype) -> Bytes {
        Bytes(self.bytes_per_rank(model, n_ranks, dtype).0 * u64::from(self.slots) * u64::from(self.rank_max))
    }
}
