//! Rates of every configuration: as given, from the roofline, or from serving requests of one type until the batch is full.

use engine::cost::Source;
use engine::cost::profile::Profile;
use engine::play::Case;
use planner::deploy::simulated;
use planner::deploy::throughput::{Parallel, Replica};
use planner::deploy::{Configuration, Demand};
use rayon::prelude::*;
use serve::batcher;
use serve::replica::{Engine, Spans};
use serve::step_cost::StepTable;

use crate::kinds::deployment::read::time::{Configurations, Costs, Deployed, Rates, Rental};

/// Policy that batches on every replica.
const BATCHER: &str = "vllm-v1";

/// What was found.
pub struct Asked {
    /// Configurations with their rates.
    pub configurations: Vec<Configuration>,
    /// Engine of every configuration; empty where rates are not simulated.
    pub engines: Vec<Engine>,
    /// Rate under the mix of all demands over the rate of types served alone, by configuration; 1 where rates are not simulated.
    pub mixing: Vec<f64>,
    /// Name of the cost model.
    pub profile: String,
    /// Its weakest source.
    pub source: String,
    /// What was fitted or assumed, as sentences.
    pub free_parameters: Vec<String>,
}

impl Asked {
    /// Seconds that one replica of c takes for so many requests of every type.
    pub fn serve_s(&self, scenario: &Rental, c: usize, work: &[f64]) -> f64 {
        let count = |n: f64| hw::Bytes::from_f64(n.round()).0;
        let work: Vec<_> = scenario.lengths.iter().zip(work).map(|(&lengths, &n)| (lengths, count(n))).collect();
        simulated::alone_s(&self.engines[c], &work)
    }
}

/// Finds the rates of a scenario.
pub fn ask(scenario: &Rental) -> Asked {
    match &scenario.configurations {
        Configurations::Given(configurations) => Asked {
            mixing: vec![1.0; configurations.len()],
            configurations: configurations.clone(),
            engines: Vec::new(),
            profile: "rates of the scenario".to_owned(),
            source: "published".to_owned(),
            free_parameters: Vec::new(),
        },
        Configurations::Enumerated(all) if scenario.replica.rates == Rates::Roofline => Asked {
            configurations: all.iter().map(|&deployed| by_roofline(scenario, deployed)).collect(),
            engines: Vec::new(),
            mixing: vec![1.0; all.len()],
            profile: "roofline in closed form".to_owned(),
            source: Source::Datasheet.name().to_owned(),
            free_parameters: scenario.replica.free_parameters(),
        },
        Configurations::Enumerated(all) => simulated(scenario, all),
    }
}

/// The configuration's name, model and GPUs, with rates.
fn configuration(scenario: &Rental, deployed: Deployed, rate: impl Fn(usize, &Demand) -> f64) -> Configuration {
    let Deployed { offer, model, parallel: Parallel { tp, pp } } = deployed;
    let mut n_gpus = vec![0; scenario.inventory.offers.len()];
    n_gpus[offer] = tp * pp;
    let gpu = &scenario.inventory.offers[offer].name;
    let stages = if pp > 1 { format!(" pp {pp}") } else { String::new() };
    let of = if scenario.models.len() > 1 { format!("{} on ", scenario.model_names[model]) } else { String::new() };
    let rates = scenario.demands.iter().enumerate();
    let requests_per_s = rates.map(|(w, demand)| if demand.model == model { rate(w, demand) } else { 0.0 }).collect();
    Configuration { name: format!("{of}{gpu} tp {tp}{stages}"), model, n_gpus, requests_per_s }
}

fn by_roofline(scenario: &Rental, deployed: Deployed) -> Configuration {
    let gpu = scenario.inventory.offers[deployed.offer].gpu.as_ref().expect("the reader keeps types of the catalogue");
    let replica = Replica { gpu, model: &scenario.models[deployed.model], parallel: deployed.parallel };
    configuration(scenario, deployed, |w, _| replica.requests_per_s(scenario.lengths[w]))
}

fn simulated(scenario: &Rental, all: &[Deployed]) -> Asked {
    let profiles: Vec<Option<Profile>> =
        scenario.inventory.offers.iter().map(|offered| profile(scenario, &offered.name)).collect();
    let engines: Vec<Engine> = all.par_iter().map(|&deployed| engine(scenario, deployed, &profiles)).collect();
    let configurations: Vec<Configuration> = all
        .par_iter()
        .zip(&engines)
        .map(|(&deployed, engine)| {
            let rate = |w: usize, demand: &Demand| {
                if demand.requests > 0.0 { simulated::requests_per_s(engine, scenario.lengths[w]) } else { 0.0 }
            };
            configuration(scenario, deployed, rate)
        })
        .collect();
    let mixing =
        configurations.par_iter().zip(&engines).map(|(configuration, engine)| mixing(scenario, configuration, engine));
    let mixing = mixing.collect();
    let source = engines.iter().map(|engine| engine.table.source).max().unwrap_or(Source::Datasheet);
    let named: Vec<&str> = profiles.iter().flatten().map(|profile| profile.name.as_str()).collect();
    Asked {
        configurations,
        engines,
        mixing,
        profile: if named.is_empty() { "roofline".to_owned() } else { format!("{}, else roofline", named.join(", ")) },
        source: source.name().to_owned(),
        free_parameters: scenario.replica.free_parameters(),
    }
}

/// How much faster one replica is when it serves its model's demands in their shares than type by type.
fn mixing(scenario: &Rental, configuration: &Configuration, engine: &Engine) -> f64 {
    let types = scenario.demands.iter().zip(&scenario.lengths).zip(&configuration.requests_per_s);
    let mix: Vec<simulated::Mixed> = types
        .filter(|(_, rate)| **rate > 0.0)
        .map(|((demand, lengths), rate)| simulated::Mixed {
            lengths: *lengths,
            requests: demand.requests,
            alone_per_s: *rate,
        })
        .collect();
    simulated::mixing(engine, &mix)
}

/// The shipped profile of a GPU type, where measured costs are asked for.
fn profile(scenario: &Rental, gpu: &str) -> Option<Profile> {
    let name = calibrate::profiles::of_gpu(gpu).filter(|_| scenario.replica.costs == Costs::Measured)?;
    Some(Profile::parse(calibrate::profiles::embedded(name)?).expect("shipped profiles are held by a test"))
}

fn engine(scenario: &Rental, deployed: Deployed, profiles: &[Option<Profile>]) -> Engine {
    let offered = &scenario.inventory.offers[deployed.offer];
    let gpu = offered.gpu.as_ref().expect("the reader keeps types of the catalogue");
    let cluster = hw::catalog::cluster(gpu, 1, offered.n_gpus_per_machine);
    let cost = crate::costs::cost_model(&cluster, profiles[deployed.offer].as_ref(), 1.0);
    let deployment = scenario.replica.deployment(&scenario.models[deployed.model], &cluster, deployed.parallel);
    let limits = scenario.replica.limits(&deployment).expect("the reader keeps what fits");
    let table = StepTable::new(&deployment, (limits.tokens_max, limits.sequences_max), cost.as_ref(), Case::Expected);
    let batcher = batcher::named(BATCHER).expect("listed");
    Engine { limits, table, batcher, spans: Spans::Closed }
}
