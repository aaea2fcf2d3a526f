//! Engines as replicas of a deployment: the stages of a configuration on GPUs of a machine, its limits as options.
//!
//! So a planner that counts replicas of engines answers with the same type as one that places layers. Units: GPUs, layers, tokens.

use engine::model::Model;

use super::{Deployment, EngineOptions, Machine, OnHost, Range, Replica, Stage};
use crate::replica::{Limits, PromptRank, Role};
use crate::step_cost::{ReplicaConfig, host_bytes};

/// Equal replicas of an engine.
#[derive(Clone, Debug)]
pub struct Lifted<'a> {
    /// Name in results.
    pub name: &'a str,
    /// How many there are.
    pub copies: u32,
    /// What they do.
    pub role: Role,
    /// How the engine lies on its GPUs.
    pub config: ReplicaConfig<'a>,
    /// Its limits.
    pub limits: Limits,
    /// Its batching policy.
    pub batcher: &'a str,
    /// Price of a GPU, where it is rented.
    pub usd_per_gpu_hour: Option<f64>,
}

impl Lifted<'_> {
    /// On the GPUs of a machine from `first` on.
    ///
    /// # Panics
    /// When a stage has more layers than a number of 32 bits.
    pub fn on(&self, machine: u32, first: u32) -> Replica {
        let tensor = self.config.tensor_degree;
        let n_gpus = self.config.n_gpus() / self.config.pipeline_degree;
        let ffn_gpus = self.config.ffn.map_or(0, |ffn| ffn.gpus);
        let (mut stages, mut layer) = (Vec::new(), 0);
        for (at, stage) in (0_u32..).zip(self.config.stages()) {
            let layers = Range::new(layer, stage.n_layers());
            layer = layers.end;
            let gpus = Range::new(first + at * n_gpus, n_gpus);
            let on_host = on_host(&self.config, &stage);
            stages.push(Stage { machine, gpus, tensor, ffn_gpus, layers, on_host });
        }
        Replica { name: self.name.to_owned(), copies: self.copies, role: self.role, stages, engine: self.options() }
    }

    fn options(&self) -> EngineOptions {
        let limits = &self.limits;
        EngineOptions {
            batcher: self.batcher.to_owned(),
            sequences_max: limits.sequences_max,
            tokens_max: limits.tokens_max,
            context_max: Some(limits.context_max),
            prompts_max: None,
            batch_context_max: None,
            block_tokens: limits.block_tokens,
            kv_tokens: u64::from(limits.kv_blocks) * u64::from(limits.block_tokens),
            watermark_blocks: limits.watermark_blocks,
            capacity_policy: limits.capacity_policy,
            prefix_cache: limits.shares_prefixes,
            recv_interval: limits.recv_interval,
            batch_wait: limits.gather,
            prompt_rank: if self.role == Role::Prefill && self.config.lanes().ranks > 1 {
                limits.prompt_rank
            } else {
                PromptRank::Even
            },
        }
    }

    /// A machine with as many of its GPUs as all copies take.
    fn machine(&self) -> Machine {
        let cluster = self.config.cluster;
        Machine {
            name: self.name.to_owned(),
            gpu: cluster.gpu.name.clone(),
            n_gpus: self.copies * self.config.n_gpus(),
            gpus_per_node: cluster.gpus_per_node,
            memory: Some(cluster.gpu.memory),
            host_memory: cluster.host_memory,
            usd_per_gpu_hour: self.usd_per_gpu_hour,
            ..Machine::default()
        }
    }
}

/// What a stage leaves in the memory of hosts, on each GPU; `None` where that is nothing.
fn on_host(config: &ReplicaConfig<'_>, stage: &engine::stage::Stage) -> Option<OnHost> {
    let way = config.host_weights?;
    let [weights, buffers] = [host_bytes::kept, host_bytes::buffers].map(|bytes| bytes(way, config, stage));
    (weights.0 > 0).then_some(OnHost { weights, buffers })
}

/// Engines of one model side by side, each group on a machine of its own; the router decides by itself.
///
/// # Panics
/// When the model has more layers than a number of 32 bits.
pub fn of_engines(model: &Model, engines: &[Lifted<'_>]) -> Deployment {
    let n_layers = u32::try_from(model.n_layers).expect("fewer than 2^32 layers");
    let machines = engines.iter().map(Lifted::machine).collect();
    let replicas = (0..).zip(engines).map(|(at, engine)| engine.on(at, 0)).collect();
    Deployment { replicas, ..Deployment::new(&model.name, n_layers, machines) }
}
