//! A group of equal replicas, as a checked scenario has it.

use std::num::NonZeroU32;

use ::engine::Model;
use ::engine::cost::profile::Profile;
use hw::{Bytes, Cluster};
use serve::fleet::dynamics::Failures;
use serve::replica::Role;

use super::scaling::ServingScaling;

/// Equal replicas of a checked scenario.
#[derive(Clone, Debug)]
pub struct ServingGroup {
    /// Name in results.
    pub name: String,
    /// Architecture.
    pub model: Model,
    /// The model's own layer that predicts tokens further on, where it has one.
    pub predicting: Option<Model>,
    /// Position of its model among those of all groups.
    pub model_index: u32,
    /// Machine.
    pub cluster: Cluster,
    /// Measured profile of its GPU; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// GPUs that share every layer.
    pub tensor_degree: u32,
    /// Replicas.
    pub n_replicas: u32,
    /// Price of a GPU hour, where given.
    pub usd_per_gpu_hour: Option<f64>,
    /// Sequences that run at once, where they differ from the engine's.
    pub sequences_max: Option<u32>,
    /// Tokens of an iteration, where they differ from the engine's.
    pub tokens_max: Option<u32>,
    /// Iterations between two looks for requests, where they differ from the engine's.
    pub recv_interval: Option<NonZeroU32>,
    /// Memory that is not the engine's, where it differs from the cluster's.
    pub reserved: Option<Bytes>,
    /// Blocks of device memory; 0 where they follow from it.
    pub kv_blocks: u32,
    /// What its replicas do.
    pub role: Role,
    /// Bytes per second that one GPU of a replica sends, and as many that it receives.
    pub port_bytes_per_s: f64,
    /// How many replicas run as load changes; `n_replicas` is then the most.
    pub scaling: Option<ServingScaling>,
    /// How replicas fail.
    pub failures: Option<Failures>,
    /// Whether its replicas lend memory, where any do.
    pub lends: bool,
    /// Whether its replicas borrow memory, where any do.
    pub borrows: bool,
}

impl ServingGroup {
    /// The same with failures of another seed.
    pub(super) fn reseeded(&self, seed: u64) -> Self {
        let failures = self.failures.map(|failures| Failures { seed, ..failures });
        Self { failures, ..self.clone() }
    }
}
