//! What a policy is asked: model, machine, data and the freedom it has.
//!
//! Invariant: the scenario reader has checked every field against the others, so nothing here is re-checked.

use hw::{Bytes, Cluster, Dtype, Seconds};

use crate::layout::Layout;
use crate::model::Model;
use crate::workload::Workload;

/// Which activations are dropped in forward and computed again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Everything is kept.
    Off,
    /// The cheap, large ones: attention internals, norms and activation functions (arXiv:2205.05198, section 5).
    Selective,
    /// Only each layer's input is kept.
    Full,
}

/// When gradients are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientSync {
    /// During the last micro-batch's backward, bucket by bucket.
    Overlapped,
    /// After the last backward.
    AtEnd,
}

/// A training question.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Parallel degrees.
    pub layout: Layout,
    /// Sequences.
    pub workload: Workload,
    /// Number format of parameters and activations.
    pub dtype: Dtype,
    /// Activation recompute.
    pub recompute: Recompute,
    /// Gradient reduction.
    pub gradient_sync: GradientSync,
    /// Tokens that a rank may hold in one micro-batch: Skrull's BucketSize C.
    pub bucket_tokens: u64,
    /// Host time per layer and pass that the kernels of a layer cannot hide (free parameter of a training
    /// framework: Python, autograd, launches); zero for a graph-captured one.
    pub host_overhead_per_layer: Seconds,
    /// Memory that the framework, NCCL and fragmentation take from each device.
    pub reserved_memory: Bytes,
    /// Seed of every random choice.
    pub seed: u64,
}
