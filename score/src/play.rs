//! Plays a setup as its client loads it: mean latencies as the benchmark counts them, with the interval of the costs.

use std::collections::BTreeMap;

use engine::cost::{CostModel, Source};
use engine::play::Case;
use engine::shard::Shard;
use hw::{Cluster, Dtype, Seconds};
use serve::batcher;
use serve::capacity::draft_kv_bytes_per_token;
use serve::engine_constants::EngineConstants;
use serve::fleet::held::Users;
use serve::fleet::start::Start;
use serve::fleet::{Fleet, Group, Moves, Rules};
use serve::kept::Kept;
use serve::metrics::saturation::RateSetBy;
use serve::metrics::{self, Slo, unexplained};
use serve::replica::{Engine, Spans};
use serve::router;
use serve::step_cost::StepTable;
use serve::step_cost::host::Host;
use serve::transfer::PORT_REACHED;

use crate::setup::{Part, Setup};

/// Most requests of a run; clients that send more are cut short, which the result says.
pub const REQUESTS_MAX: u32 = 20_000;

/// Costs of a machine for an engine.
pub type Costs<'c> = dyn Fn(&Cluster, &str) -> Box<dyn CostModel> + Sync + 'c;

/// A latency with the interval of the costs, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Mean over requests.
    pub mean: f64,
    /// With every cost at its low and at its high end.
    pub interval: [f64; 2],
}

/// What is predicted of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Time to first token.
    pub ttft: Latency,
    /// Time per output token.
    pub tpot: Latency,
    /// Requests that were played, and those that the client sends.
    pub n_requests: [u32; 2],
    /// Weakest source of the costs.
    pub source: Source,
    /// Preemptions.
    pub n_preempted: f64,
}

/// Predicts a setup.
pub fn predict(setup: &Setup, engine: &str, costs: &Costs<'_>) -> Predicted {
    let (figures, source) = played(setup, engine, costs, Case::Expected);
    let [low, high] = [Case::Low, Case::High].map(|case| played(setup, engine, costs, case).0);
    let latency = |key: &str| {
        let [low, mean, high] = [&low, &figures, &high].map(|of| of.get(key).copied().unwrap_or(0.0));
        Latency { mean, interval: unexplained::around(key, &figures, [low, high], RateSetBy::Fleet) }
    };
    let count = |n: f64| u32::try_from(hw::whole(n)).unwrap_or(u32::MAX);
    Predicted {
        ttft: latency("ttft_s.mean"),
        tpot: latency("tpot_s.mean"),
        n_requests: [count(figures["n_requests"]), setup.client.requests_per_place * setup.in_flight],
        source,
        n_preempted: figures.get("n_preempted").copied().unwrap_or(0.0),
    }
}

/// Mean TTFT and TPOT for every choice of constants, seconds, costs as expected. Choices that are the same to the run are played once: a dense model has
/// no layers with experts, and captured prompts have no launches.
pub fn means(setup: &Setup, engine: &str, costs: &Costs<'_>, choices: &[EngineConstants]) -> Vec<[f64; 2]> {
    let tables: Vec<StepTable> =
        setup.parts.iter().map(|part| table(setup, part, (engine, costs), Case::Expected)).collect();
    let mean = |constants: &EngineConstants| {
        let setup = setup.with(*constants);
        let hosted = |(part, table): (&Part, &StepTable)| table.clone().hosted(setup.config(part).host());
        let figures = served(&setup, setup.parts.iter().zip(&tables).map(hosted));
        ["ttft_s.mean", "tpot_s.mean"].map(|key| figures.get(key).copied().unwrap_or(0.0))
    };
    let mut played: Vec<(Vec<Host>, Seconds, [f64; 2])> = Vec::new();
    let mut found = Vec::with_capacity(choices.len());
    for constants in choices {
        let asked = setup.with(*constants);
        let hosts: Vec<Host> = asked.parts.iter().map(|part| asked.config(part).host()).collect();
        let known = played.iter().find(|(of, start, _)| *of == hosts && *start == constants.start);
        let means = known.map_or_else(|| mean(constants), |(.., means)| *means);
        if known.is_none() {
            played.push((hosts, constants.start, means));
        }
        found.push(means);
    }
    found
}

/// Figures at one end of the costs.
fn played(setup: &Setup, engine: &str, costs: &Costs<'_>, case: Case) -> (BTreeMap<String, f64>, Source) {
    let (tables, source) = tables(setup, engine, costs, case);
    (served(setup, tables.into_iter()), source)
}

/// Times of all parts at one end of the costs, and their weakest source.
fn tables(setup: &Setup, engine: &str, costs: &Costs<'_>, case: Case) -> (Vec<StepTable>, Source) {
    let tables: Vec<StepTable> = setup.parts.iter().map(|part| table(setup, part, (engine, costs), case)).collect();
    let source = tables.iter().map(|table| table.source).max().unwrap_or(Source::Measured);
    (tables, source)
}

/// The fleet of a setup at one end of the costs, and their weakest source; requests are in its queue as they are sent.
pub fn fleet(setup: &Setup, engine: &str, costs: &Costs<'_>, case: Case) -> (Fleet, Source) {
    let (tables, source) = tables(setup, engine, costs, case);
    (fleet_of(setup, tables.into_iter()), source)
}

fn fleet_of(setup: &Setup, tables: impl Iterator<Item = StepTable>) -> Fleet {
    let groups = setup.parts.iter().zip(tables).map(|(part, table)| group(part, setup, table)).collect();
    Fleet { groups, first_token: setup.first_token, ..Fleet::default() }
}

/// Figures of a setup whose parts take so long.
fn served(setup: &Setup, tables: impl Iterator<Item = StepTable>) -> BTreeMap<String, f64> {
    let mean = setup.constants.start * f64::from(setup.n_starts);
    let tokenize = setup.client.tokenize(setup.constants.tokenize);
    let (server, servers) = setup.api_servers;
    let start = Start { mean, server, servers, tokenize, seed: 0 };
    let fleet = Fleet { start, ..fleet_of(setup, tables) };
    let requests = setup.client.requests(setup.lengths, setup.in_flight, REQUESTS_MAX);
    let warm_up = setup.client.warm_up(setup.in_flight);
    let users = Users::Held { n: setup.in_flight, ramp: Seconds::ZERO, warm_up };
    let mut router = router::frontends(setup.n_frontends, 0);
    let (requests, served) = fleet.serve_held(&requests, Rules::of(router.as_mut()), users);
    metrics::of(&requests, &served, &Slo::default(), users.begun(&requests))
}

fn table(setup: &Setup, part: &Part, (engine, costs): (&str, &Costs<'_>), case: Case) -> StepTable {
    let inner = costs(&part.cluster, engine);
    StepTable::new(&setup.config(part), (part.limits.tokens_max, part.limits.sequences_max), inner.as_ref(), case)
}

fn group(part: &Part, setup: &Setup, table: StepTable) -> Group {
    let batcher = batcher::named(part.batcher).expect("presets name batchers");
    let engine = Engine { limits: part.limits, table, batcher, spans: Spans::Closed };
    let config = setup.config(part);
    let n_gpus = config.n_gpus();
    let kv_bytes = config.kv_bytes_per_token(1) + draft_kv_bytes_per_token(&config, 1);
    let kept = Kept::of(&Shard { formats: setup.formats, ..Shard::forward(&setup.model, Dtype::Bf16, 1) });
    let port = part.cluster.nic_bandwidth.get() * PORT_REACHED * f64::from(n_gpus);
    Group {
        gpus_per_replica: n_gpus,
        role: part.role,
        port_bytes_per_s: Some(port),
        moves: Moves { kv_bytes_per_token: hw::real(kv_bytes), kept },
        ..Group::new("workers", engine, part.n)
    }
}
