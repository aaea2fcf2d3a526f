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
    /// Matrices of the feed-forward, or of all experts.
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
    /// Experts that have these products each, where they are no products of all tokens.
    pub(super) experts: Option<Visited>,
}

/// Experts of a layer, and how many of them a token visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visited {
    all: u64,
    of_token: u64,
}

impl Module {
    /// Rows of so many tokens.
    pub(super) fn rows(&self, tokens: u64) -> u64 {
        tokens * self.experts.map_or(1, |experts| experts.of_token)
    }

    /// Matrices that tokens of so many adapters read: one of each adapter, or one for every expert that its tokens visit. Adapters have as many tokens each, and
    /// experts are drawn evenly.
    pub(super) fn matrices(&self, tokens: u64, n: u64) -> f64 {
        let Some(Visited { all, of_token }) = self.experts else { return hw::real(n) };
        let of_adapter = hw::real(tokens) / hw::real(n.max(1));
        let missed = libm::pow(1.0 - hw::real(of_token) / hw::real(all), of_adapter);
        hw::real(n) * hw::real(all) * (1.0 - missed)
    }

    /// Elements of an adapter per rank.
    const fn elements(&self) -> u64 {
        let each = self.slices * self.inputs + self.outputs;
        match self.experts {
            Some(experts) => each * experts.all,
            None => each,
        }
    }
}

impl AdapterRoom {
    /// Adapted modules of a layer on one GPU of a tensor group of so many.
    pub(super) fn modules_of(&self, model: &Model, n_ranks: u64) -> Vec<Module> {
        let cut = |n: u64| n.div_ceil(n_ranks);
        let mut found = Vec::new();
        if self.modules.attention {
            let queries = cut(model.n_heads) * model.head_dim;
            let outputs = queries + 2 * cut(model.n_kv_heads) * model.head_dim;
            found.push(Module { slices: 3, inputs: model.hidden, outputs, experts: None });
            found.push(Module { slices: 1, inputs: queries, outputs: model.hidden, experts: None });
        }
        if self.modules.feed_forward {
            let width = cut(model.experts.map_or(model.intermediate, |experts| experts.intermediate));
            let experts = model.experts.map(|found| Visited { all: found.n_routed, of_token: found.top_k });
            let slices = if model.gated { 2 } else { 1 };
            found.push(Module { slices, inputs: model.hidden, outputs: slices * width, experts });
            found.push(Module { slices: 1, inputs: width, outputs: model.hidden, experts });
        }
        found
    }

    /// Bytes of an adapter per rank on each GPU of a tensor group; on one GPU as in its file.
    pub fn bytes_per_rank(&self, model: &Model, n_ranks: u32, dtype: Dtype) -> Bytes {
        let of_layer: u64 = self.modules_of(model, n_ranks.into()).iter().map(Module::elements).sum();
        Bytes(of_layer * model.n_layers * dtype.bytes())
    }

    /// Memory that is taken on each GPU from the start.
    pub fn bytes(&self, model: &Model, n_ranks: u32, dtype: Dtype) -> Bytes {
        Bytes(self.bytes_per_rank(model, n_ranks, dtype).0 * u64::from(self.slots) * u64::from(self.rank_max))
    }
}
