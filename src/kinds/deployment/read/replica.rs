//! `[engine]`: the engine of every replica, the degrees that are tried, and where its rates come from.

use engine::Model;
use hw::{Bytes, Cluster, Seconds};
use planner::deploy::Demand;
use planner::deploy::inventory::Offer;
use planner::deploy::throughput::{Lengths, Parallel, Replica};
use serve::capacity;
use serve::replica::{Limits, Preemption};
use serve::step_cost::ReplicaConfig;
use toml_span::value::ValueInner;

use super::time::Deployed;
use crate::diagnostic::{Code, Finding};
use crate::scenario::reader::{Reader, Section, unknown};

/// Where rates of enumerated configurations come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rates {
    /// The serving simulator, under the mix of the plan.
    Simulated,
    /// The closed form of `planner::deploy::throughput`.
    Roofline,
}

/// Where the simulator's costs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    /// The datasheet roofline for every GPU type.
    Datasheet,
    /// The shipped profile of a GPU type where there is one.
    Measured,
}

/// What the section says.
#[derive(Clone, Debug)]
pub struct ReplicaSection {
    /// Where rates come from.
    pub rates: Rates,
    /// Where costs come from.
    pub costs: Costs,
    /// Tensor degrees that are tried.
    tp: Vec<u32>,
    /// Pipeline degrees that are tried.
    pp: Vec<u32>,
    /// Limits; blocks follow from memory.
    limits: Limits,
    memory_ratio: f64,
    reserved: Bytes,
    host_us_per_step: f64,
}

/// Reads the section.
pub fn replica(mut section: Section<'_>) -> ReplicaSection {
    let small = |n: u64| u32::try_from(n).expect("ranges keep counts below 2^32");
    let rates = [Rates::Simulated, Rates::Roofline][section.word("rates", 0, &["simulated", "roofline"])];
    let costs = [Costs::Datasheet, Costs::Measured][section.word("costs", 0, &["datasheet", "measured"])];
    let tp = degrees(&mut section, "tp", &[1, 2, 4, 8]);
    let pp = degrees(&mut section, "pp", &[1]);
    let sequences_max = small(section.count("max_sequences", Some(256), 1..=65_536).0);
    let (tokens_max, tokens_at) = section.count("max_tokens", Some(2048), 1..=1 << 20);
    if tokens_max < u64::from(sequences_max) {
        let what = format!("`engine.max_tokens` = {tokens_max} is below `engine.max_sequences` = {sequences_max}");
        section.find(Finding::error(Code::FewTokens, tokens_at, what).help("every decoding sequence has its token"));
    }
    let block_tokens = small(section.count("block_tokens", Some(16), 1..=4096).0);
    let memory_ratio = section.number("memory_ratio", 0.9, 0.01..=1.0);
    let reserved = Bytes::from_gib(section.number("reserved_gib", 1.2, 0.0..=10_000.0));
    let host_us_per_step = section.number("host_us_per_step", 0.0, 0.0..=1e6);
    section.finish();
    let limits = Limits {
        sequences_max,
        tokens_max: small(tokens_max),
        context_max: u32::MAX,
        block_tokens,
        blocks_per_sequence: 0,
        kv_blocks: 0,
        watermark_blocks: 0,
        preemption: Preemption::Recompute,
        shares_prefixes: false,
    };
    ReplicaSection { rates, costs, tp, pp, limits, memory_ratio, reserved, host_us_per_step }
}

fn degrees(section: &mut Section<'_>, key: &'static str, default: &[u32]) -> Vec<u32> {
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    let ValueInner::Array(items) = &value else {
        section.find(Finding::error(Code::WrongType, at, format!("`engine.{key}` is no list of degrees")));
        return default.to_vec();
    };
    let degree =
        |item: &toml_span::Value<'_>| u32::try_from(item.as_integer()?).ok().filter(|n| (1..=1024).contains(n));
    let found: Option<Vec<u32>> = items.iter().map(degree).collect();
    found.filter(|all| !all.is_empty()).unwrap_or_else(|| {
        let what = format!("`engine.{key}` holds something that is no degree");
        section.find(Finding::error(Code::OutOfRange, at, what).help("allowed are whole numbers from 1 to 1024"));
        default.to_vec()
    })
}

impl ReplicaSection {
    /// What a replica runs on a cluster.
    #[must_use]
    pub fn deployment<'a>(&self, model: &'a Model, cluster: &'a Cluster, parallel: Parallel) -> ReplicaConfig<'a> {
        ReplicaConfig {
            pipeline_degree: parallel.pp,
            host_per_step: Seconds::new(self.host_us_per_step / 1e6),
            ..ReplicaConfig::new(model, cluster, parallel.tp)
        }
    }

    /// Limits of a replica; why where it cannot hold the model.
    ///
    /// # Errors
    /// A sentence with the figures.
    pub fn limits(&self, deployment: &ReplicaConfig<'_>) -> Result<Limits, String> {
        let capacity = capacity::of(deployment, self.memory_ratio, self.reserved)?;
        let context_max = u32::try_from(deployment.model.max_positions).unwrap_or(u32::MAX);
        let block_tokens = self.limits.block_tokens;
        let blocks_per_sequence = capacity.blocks_per_sequence(block_tokens);
        Ok(Limits { kv_blocks: capacity.blocks(block_tokens), blocks_per_sequence, context_max, ..self.limits })
    }

    /// Parameters that are no measurement, as sentences.
    #[must_use]
    pub fn free_parameters(&self) -> Vec<String> {
        let host = self.host_us_per_step;
        let words = format!("`engine.host_us_per_step` = {host}: fitted or assumed, not measured");
        if host > 0.0 { vec![words] } else { Vec::new() }
    }
}

/// Every GPU type of the catalogue with every degree that holds the model of some demand and fits a node.
pub fn enumerated(
    reader: &mut Reader<'_>,
    replica: &ReplicaSection,
    offers: &[Offer],
    models: &[Model],
    demands: &[Demand],
) -> Vec<Deployed> {
    let mut all = Vec::new();
    for offered in offers.iter().filter(|offered| offered.gpu.is_none()) {
        let what = format!("unknown GPU `{}`", offered.name);
        let finding = unknown(Code::UnknownGpu, what, &offered.name, hw::catalog::gpu_names(), None);
        reader.find(finding.help("a type of the catalogue, or `[[configurations]]` with their rates"));
    }
    for (m, model) in models.iter().enumerate().filter(|(m, _)| demands.iter().any(|demand| demand.model == *m)) {
        let before = all.len();
        let mut why = String::new();
        for (offer, offered) in offers.iter().enumerate() {
            let Some(gpu) = &offered.gpu else { continue };
            let pairs = replica.tp.iter().flat_map(|&tp| replica.pp.iter().map(move |&pp| Parallel { tp, pp }));
            for parallel in pairs.filter(|p| p.tp.saturating_mul(p.pp) <= offered.n_gpus_per_machine) {
                let held = match replica.rates {
                    Rates::Simulated => {
                        let cluster = hw::catalog::cluster(gpu, 1, offered.n_gpus_per_machine);
                        let is_cut = model.n_heads.is_multiple_of(u64::from(parallel.tp))
                            && u64::from(parallel.pp) <= model.n_layers;
                        if is_cut {
                            replica.limits(&replica.deployment(model, &cluster, parallel)).map(|_| true)
                        } else {
                            Ok(false)
                        }
                    }
                    Rates::Roofline => {
                        let one = Lengths { input: hw::Tokens(1), output: hw::Tokens(1) };
                        Ok(Replica { gpu, model, parallel }.batch(one) >= 1.0)
                    }
                };
                match held {
                    Ok(true) => all.push(Deployed { offer, model: m, parallel }),
                    Ok(false) => {}
                    Err(sentence) => why = sentence,
                }
            }
        }
        if all.len() == before && offers.iter().any(|offered| offered.gpu.is_some()) {
            let what = format!("no offered GPU type holds `{}` with the degrees of `[engine]`", model.name);
            reader.find(Finding::error(Code::NoRoomForCache, None, what).help(if why.is_empty() {
                "try larger degrees".to_owned()
            } else {
                why
            }));
        }
    }
    all
}
