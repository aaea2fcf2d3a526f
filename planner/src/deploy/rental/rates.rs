//! Rates of every configuration: as given, from the roofline, or from serving requests of one type until the batch is full.

use std::fmt;

use engine::CostModel;
use engine::cost::Source;
use engine::model::Model;
use engine::play::Case;
use engine::verdict::{Ended, Refused};
use hw::{Bytes, Cluster, Seconds, Tokens};
use serve::batcher;
use serve::capacity;
use serve::drafter::{Drafts, OwnDrafters};
use serve::replica::{Engine, Limits, Spans};
use serve::step_cost::{ReplicaConfig, StepTable};

use super::{Answers, Configurations, Deployed, Question};
use crate::deploy::inventory::Offer;
use crate::deploy::simulated;
use crate::deploy::throughput::{Lengths, Parallel, Replica};
use crate::deploy::{Configuration, Demand};

/// Policy that batches on every replica.
pub(super) const BATCHER: &str = "vllm-v1";

/// Where rates of enumerated configurations come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rates {
    /// The serving simulator, under the mix of the plan.
    Simulated,
    /// The closed form of `throughput.rs`.
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

/// Engine of every replica, the degrees that are tried, and where its rates come from.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// Where rates come from.
    pub rates: Rates,
    /// Where costs come from.
    pub costs: Costs,
    /// Tensor degrees that are tried.
    pub tp: Vec<u32>,
    /// Pipeline degrees that are tried.
    pub pp: Vec<u32>,
    /// Limits; blocks follow from memory.
    pub limits: Limits,
    /// Share of the device's memory that the engine may use.
    pub memory_ratio: f64,
    /// Memory that is not the engine's.
    pub reserved: Bytes,
    /// Host time per iteration: a free parameter.
    pub host_us_per_step: f64,
    /// Drafted tokens, where they are; a closed form of rates knows none.
    pub drafts: Option<Drafts>,
}

/// A model that no GPU type holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheld {
    /// Its name.
    pub model: String,
    /// Why the replica with the most memory does not; `None` where degrees do not fit any.
    pub why: Option<Refused>,
}

impl Unheld {
    /// Whether memory alone is missing, which is an outcome; degrees that fit nothing are a wrong file.
    pub fn is_memory(&self) -> bool {
        self.why.as_ref().is_some_and(|why| why.ended == Ended::OutOfMemory)
    }
}

impl fmt::Display for Unheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.iter().map(|why| format!(": {why}")).collect::<String>();
        write!(f, "no offered GPU type holds `{}` with the degrees of `[engine]`{why}", self.model)
    }
}

impl ReplicaOptions {
    /// What a replica of a model runs on a cluster, with what drafts for the model.
    pub fn config<'a>(
        &'a self,
        (model, drafters): (&'a Model, &'a OwnDrafters),
        cluster: &'a Cluster,
        parallel: Parallel,
    ) -> ReplicaConfig<'a> {
        ReplicaConfig {
            pipeline_degree: parallel.pp,
            draft: self.drafts.as_ref().and_then(|drafts| drafts.by.drafting(drafters)),
            host_per_step: Seconds::new(self.host_us_per_step / 1e6),
            ..ReplicaConfig::new(model, cluster, parallel.tp)
        }
    }

    /// Limits of a replica; why where it cannot hold the model.
    ///
    /// # Errors
    /// A sentence with the figures.
    pub fn limits(&self, config: &ReplicaConfig<'_>) -> Result<Limits, Refused> {
        let capacity = capacity::of(config, self.memory_ratio, self.reserved)?;
        let context_max = u32::try_from(config.model.max_positions).unwrap_or(u32::MAX);
        let block_tokens = self.limits.block_tokens;
        let blocks_per_sequence = capacity.blocks_per_sequence(block_tokens);
        Ok(Limits { kv_blocks: capacity.blocks(block_tokens), blocks_per_sequence, context_max, ..self.limits })
    }

    /// Times of iterations of a replica within limits, with what it drafts.
    fn table(&self, config: &ReplicaConfig<'_>, limits: &Limits, cost: &dyn CostModel, case: Case) -> StepTable {
        let Some(Drafts { speculation, .. }) = &self.drafts else {
            return StepTable::new(config, (limits.tokens_max, limits.sequences_max), cost, case);
        };
        let verified_max = limits.sequences_max * speculation.n_verified();
        StepTable::new(config, (limits.tokens_max, verified_max), cost, case).speculating(speculation)
    }

    /// Parameters that are no measurement, as sentences.
    pub fn free_parameters(&self) -> Vec<String> {
        let host = self.host_us_per_step;
        let words = format!("`engine.host_us_per_step` = {host}: fitted or assumed, not measured");
        let drafts = self.drafts.as_ref().map_or_else(Vec::new, |drafts| drafts.free_parameters("engine"));
        (host > 0.0).then_some(words).into_iter().chain(drafts).collect()
    }

    /// Whether a replica holds a model; a sentence with the figures where its memory does not.
    fn holds(&self, model: &Model, offered: &Offer, parallel: Parallel) -> Result<bool, Refused> {
        let Some(gpu) = &offered.gpu else { return Ok(false) };
        if self.rates == Rates::Roofline {
            let one = Lengths { input: Tokens(1), output: Tokens(1) };
            let replica = Replica { gpu, model, parallel };
            return if replica.batch(one) >= 1.0 { Ok(true) } else { Err(replica.without_room()) };
        }
        let is_cut = model.n_heads.is_multiple_of(u64::from(parallel.tp)) && u64::from(parallel.pp) <= model.n_layers;
        let (cluster, drafters) = (hw::catalog::cluster(gpu, 1, offered.n_gpus_per_machine), OwnDrafters::of(model));
        if !is_cut {
            return Ok(false);
        }
        let misfits =
            self.drafts.as_ref().map_or_else(Vec::new, |drafts| drafts.misfits(model, &drafters, parallel.tp));
        if let Some((what, _)) = misfits.into_iter().next() {
            return Err(Refused::infeasible(what));
        }
        self.limits(&self.config((model, &drafters), &cluster, parallel)).map(|_| true)
    }

    /// Every GPU type of the catalogue with every degree that holds the model of some demand and fits a node, and models that none holds.
    pub fn enumerated(&self, offers: &[Offer], models: &[Model], demands: &[Demand]) -> (Vec<Deployed>, Vec<Unheld>) {
        let (mut all, mut unheld) = (Vec::new(), Vec::new());
        for (m, model) in models.iter().enumerate().filter(|(m, _)| demands.iter().any(|demand| demand.model == *m)) {
            let (before, mut refusals) = (all.len(), Vec::new());
            for (offer, offered) in offers.iter().enumerate() {
                let pairs = self.tp.iter().flat_map(|&tp| self.pp.iter().map(move |&pp| Parallel { tp, pp }));
                for parallel in pairs.filter(|p| p.tp.saturating_mul(p.pp) <= offered.n_gpus_per_machine) {
                    match self.holds(model, offered, parallel) {
                        Ok(true) => all.push(Deployed { offer, model: m, parallel }),
                        Ok(false) => {}
                        Err(refused) => refusals.push((offered.memory_bytes(parallel.tp * parallel.pp), refused)),
                    }
                }
            }
            if all.len() == before && offers.iter().any(|offered| offered.gpu.is_some()) {
                // Of the largest replica, whatever the order of offers.
                let largest = refusals.into_iter().max_by(|(a, of_a), (b, of_b)| (a, &of_a.why).cmp(&(b, &of_b.why)));
                unheld.push(Unheld { model: model.name.clone(), why: largest.map(|(_, why)| why) });
            }
        }
        (all, unheld)
    }
}

/// Configurations with their rates.
#[derive(Clone, Debug)]
pub struct Rated {
    /// Configurations with their rates.
    pub configurations: Vec<Configuration>,
    /// Engine of every configuration; empty where rates are not simulated.
    pub engines: Vec<Engine>,
    /// Times of its iterations at the low and the high end of the costs.
    pub ends: Vec<[StepTable; 2]>,
    /// Rate under the mix of all demands over the rate of types served alone, by configuration; 1 where rates are not simulated.
    pub mixing: Vec<f64>,
    /// Weakest source of the costs.
    pub source: Source,
    /// What was answered at these rates.
    pub answers: Answers,
}

impl Rated {
    /// Times of a configuration's iterations at an end of the costs.
    pub(super) fn table(&self, configuration: usize, case: Case) -> &StepTable {
        match case {
            Case::Low => &self.ends[configuration][0],
            Case::Expected => &self.engines[configuration].table,
            Case::High => &self.ends[configuration][1],
        }
    }
}

/// One configuration that was served.
pub struct Served {
    configuration: Configuration,
    engine: Engine,
    ends: [StepTable; 2],
    mixing: f64,
}

impl Question {
    /// Whether rates are found by serving.
    pub fn is_simulated(&self) -> bool {
        matches!(self.configurations, Configurations::Enumerated(_)) && self.replica.rates == Rates::Simulated
    }

    /// Configurations with their rates. `serve` gives what `served` gives for each, in order, perhaps at once.
    pub fn rated(&self, serve: &dyn Fn(&[Deployed]) -> Vec<Served>) -> Rated {
        let unserved = |configurations: Vec<Configuration>, source| Rated {
            mixing: vec![1.0; configurations.len()],
            configurations,
            engines: Vec::new(),
            ends: Vec::new(),
            source,
            answers: Answers::default(),
        };
        match &self.configurations {
            Configurations::Given(configurations) => unserved(configurations.clone(), Source::Published),
            Configurations::Enumerated(all) if !self.is_simulated() => {
                unserved(all.iter().map(|&deployed| self.by_roofline(deployed)).collect(), Source::Datasheet)
            }
            Configurations::Enumerated(all) => {
                let mut rated = Rated {
                    configurations: Vec::new(),
                    engines: Vec::new(),
                    ends: Vec::new(),
                    mixing: Vec::new(),
                    source: Source::Datasheet,
                    answers: Answers::default(),
                };
                let served = serve(all);
                rated.source = served.iter().map(|of| of.engine.table.source).max().unwrap_or(Source::Datasheet);
                for Served { configuration, engine, ends, mixing } in served {
                    rated.configurations.push(configuration);
                    rated.engines.push(engine);
                    rated.ends.push(ends);
                    rated.mixing.push(mixing);
                }
                rated
            }
        }
    }

    /// The configuration's name, model and GPUs, with rates.
    fn configuration(&self, deployed: Deployed, rate: impl Fn(usize, &Demand) -> f64) -> Configuration {
        let Deployed { offer, model, parallel: Parallel { tp, pp } } = deployed;
        let mut n_gpus = vec![0; self.inventory.offers.len()];
        n_gpus[offer] = tp * pp;
        let gpu = &self.inventory.offers[offer].name;
        let stages = if pp > 1 { format!(" pp {pp}") } else { String::new() };
        let of = if self.models.len() > 1 { format!("{} on ", self.model_names[model]) } else { String::new() };
        let rates = self.demands.iter().enumerate();
        let requests_per_s =
            rates.map(|(w, demand)| if demand.model == model { rate(w, demand) } else { 0.0 }).collect();
        Configuration { name: format!("{of}{gpu} tp {tp}{stages}"), model, n_gpus, requests_per_s }
    }

    fn by_roofline(&self, deployed: Deployed) -> Configuration {
        let gpu = self.inventory.offers[deployed.offer].gpu.as_ref().expect("the reader keeps types of the catalogue");
        let replica = Replica { gpu, model: &self.models[deployed.model], parallel: deployed.parallel };
        self.configuration(deployed, |w, _| replica.requests_per_s(self.lengths[w]))
    }

    /// The machine of a configuration.
    ///
    /// # Panics
    /// When its type is not of the catalogue; the reader keeps those that are.
    pub fn cluster(&self, deployed: Deployed) -> Cluster {
        let offered = &self.inventory.offers[deployed.offer];
        let gpu = offered.gpu.as_ref().expect("the reader keeps types of the catalogue");
        hw::catalog::cluster(gpu, 1, offered.n_gpus_per_machine)
    }

    /// A configuration's engine with the costs of its machine, its rates by serving, and what a mix of all demands makes of them.
    ///
    /// # Panics
    /// When the replica does not hold its model; `enumerated` keeps those that do.
    pub fn served(&self, deployed: Deployed, cluster: &Cluster, cost: &dyn CostModel) -> Served {
        let model = &self.models[deployed.model];
        let drafters = OwnDrafters::of(model);
        let config = self.replica.config((model, &drafters), cluster, deployed.parallel);
        let limits = self.replica.limits(&config).expect("what is enumerated fits");
        let table = |case| self.replica.table(&config, &limits, cost, case);
        let batcher = batcher::named(BATCHER).expect("listed");
        let engine = Engine { limits, table: table(Case::Expected), batcher, spans: Spans::Closed };
        let configuration = self.configuration(deployed, |w, demand| {
            if demand.requests > 0.0 { simulated::requests_per_s(&engine, self.lengths[w]) } else { 0.0 }
        });
        let mixing = self.mixing(&configuration, &engine);
        Served { configuration, engine, ends: [Case::Low, Case::High].map(table), mixing }
    }

    /// How much faster one replica is when it serves its model's demands in their shares than type by type.
    fn mixing(&self, configuration: &Configuration, engine: &Engine) -> f64 {
        let types = self.demands.iter().zip(&self.lengths).zip(&configuration.requests_per_s);
        let mixed = |((demand, lengths), rate): ((&Demand, &Lengths), &f64)| simulated::Mixed {
            lengths: *lengths,
            requests: demand.requests,
            alone_per_s: *rate,
        };
        let mix: Vec<simulated::Mixed> = types.filter(|(_, rate)| **rate > 0.0).map(mixed).collect();
        simulated::mixing(engine, &mix)
    }
}
