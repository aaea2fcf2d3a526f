//! GPUs and clusters by name, read from `hw/catalog/*.toml`, where every figure has a dated source.

use crate::cluster::Cluster;
use crate::gpu::Gpu;

/// A GPU by name.
#[must_use]
pub fn gpu(_name: &str) -> Option<Gpu> {
    todo!()
}

/// Names of all GPUs.
#[must_use]
pub fn gpu_names() -> Vec<&'static str> {
    todo!()
}

/// A cluster of `n_nodes` nodes of `gpus_per_node` GPUs with the GPU's usual network.
#[must_use]
pub fn cluster(_gpu: &Gpu, _n_nodes: u32, _gpus_per_node: u32) -> Cluster {
    todo!()
}
