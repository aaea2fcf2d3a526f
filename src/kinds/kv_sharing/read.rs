//! Scenarios of `kind = "kv-sharing"`: a trace with some very long requests, and instances that do or do not lend each other memory.

use std::path::Path;

use engine::Model;
use engine::cost::profile::Profile;
use engine::random;
use hw::{Bytes, Cluster};
use serve::kv_sharing::run::Prefill;
use serve::request::Requests;

use crate::diagnostic::{Code, Finding, Source};
use crate::kinds::serving::read as serving;
use crate::scenario::reader::{Reader, Section};
use crate::scenario::run_list::run_list;
use crate::scenario::{Head, Overrides, cluster, cost, expect, model};

const SECTIONS: [&str; 8] = ["model", "cluster", "trace", "long", "engine", "policies", "cost", "expect"];

/// Who holds the keys and values of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Its instance alone.
    Multi,
    /// One instance over all GPUs.
    Single,
    /// Its instance, and whoever lends.
    Borrow,
    /// The same, with blocks moved by a planner.
    Planned,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Policy, &str); 4] = [
    ("vllm-multi", Policy::Multi, "instances that share no memory: what none of them holds is refused"),
    ("vllm-single", Policy::Single, "one instance over all GPUs"),
    ("distkv-llm", Policy::Borrow, "instances lend each other blocks of keys and values, with a ledger of debts"),
    ("infinite-llm", Policy::Planned, "instances share blocks that a planner moves by a model of their rates"),
];

/// Settings of the instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSettings {
    /// GPUs of an instance.
    pub tensor_degree: u32,
    /// Most sequences of an instance.
    pub sequences_max: u32,
    /// Most tokens of an iteration.
    pub tokens_max: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Share of a GPU's memory that the engine may use.
    pub memory_ratio: f64,
    /// Share of its blocks that an instance may lend.
    pub lend_ratio: f64,
    /// Seconds between heartbeats.
    pub heartbeat_s: f64,
    /// Where prompts are computed.
    pub prefill: Prefill,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct KvSharing {
    /// Whose it is.
    pub head: Head,
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Memory of a GPU that is not the engine's.
    pub reserved: Bytes,
    /// What arrives.
    pub requests: Requests,
    /// Requests from this prompt length on count as long, tokens.
    pub long_tokens: u32,
    /// Settings.
    pub engine: EngineSettings,
    /// Ways, in order.
    pub choices: Vec<(String, Policy)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
}

fn small(n: u64) -> u32 {
    u32::try_from(n).expect("ranges keep counts below 2^32")
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<KvSharing> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let cluster = cluster::cluster(reader.section("cluster"));
    let requests = serving::requests::requests(reader.section("trace"), folder, head.seed);
    let long = long(reader.section("long"));
    let engine = engine(reader.section("engine"));
    let mut section = reader.section("policies");
    let plain = POLICIES.iter().map(|(name, policy, _)| (*name, *policy)).collect();
    let run = run_list(&mut section, plain, Vec::new());
    section.finish();
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let ((model, (cluster, reserved)), (mut requests, _)) = model.zip(cluster).zip(requests)?;
    long.lay(&mut requests, head.seed);
    let scenario = KvSharing {
        head: Head { baseline: run.baseline, expectations, ..head },
        model,
        cluster,
        reserved,
        requests,
        long_tokens: long.tokens[0],
        engine,
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
    };
    cross_checks(reader, &scenario);
    Some(scenario)
}

/// Requests that are made long.
struct Long {
    share: f64,
    tokens: [u32; 2],
    output: u32,
}

fn long(mut section: Section<'_>) -> Long {
    let share = section.number("share", 0.0, 0.0..=1.0);
    let (least, at) = section.count("tokens_min", Some(100_000), 1..=16_000_000);
    let most = section.count("tokens_max", Some(200_000), 1..=16_000_000).0;
    let output = small(section.count("output_tokens", Some(256), 1..=1_000_000).0);
    if least > most {
        let what = format!("`long.tokens_min` = {least} is above `long.tokens_max` = {most}");
        section.find(Finding::error(Code::OutOfRange, at, what));
    }
    section.finish();
    Long { share, tokens: [small(least), small(most.max(least))], output }
}

impl Long {
    /// Makes a share of requests long, chosen at random, with log-uniform prompts.
    fn lay(&self, requests: &mut Requests, seed: u64) {
        let mut stream = random::stream(seed, "long requests");
        let [least, most] = self.tokens.map(f64::from);
        for request in &mut requests.list {
            let (chosen, at) = (stream.unit() < self.share, stream.unit());
            if chosen {
                let tokens = least * random::power(most / least, at);
                request.prompt = small(Bytes::from_f64(tokens).0);
                request.output = self.output;
                (request.prefix_first, request.prefix_count) = (0, 0);
            }
        }
    }
}

fn engine(mut section: Section<'_>) -> EngineSettings {
    let settings = EngineSettings {
        tensor_degree: small(section.count("tp", Some(1), 1..=1024).0),
        sequences_max: small(section.count("max_sequences", Some(256), 1..=65_536).0),
        tokens_max: small(section.count("max_tokens", Some(2048), 1..=1 << 20).0),
        block_tokens: small(section.count("block_tokens", Some(16), 1..=4096).0),
        memory_ratio: section.number("memory_ratio", 0.9, 0.01..=1.0),
        lend_ratio: section.number("lend_ratio", 1.0, 0.0..=1.0),
        heartbeat_s: section.number("heartbeat_s", 0.5, 0.001..=1000.0),
        prefill: [Prefill::Here, Prefill::Elsewhere][section.word("prefill", 0, &["here", "elsewhere"])],
    };
    if settings.tokens_max < settings.sequences_max {
        let (tokens, sequences) = (settings.tokens_max, settings.sequences_max);
        let what = format!("`engine.max_tokens` = {tokens} is below `engine.max_sequences` = {sequences}");
        let help = "every decoding sequence has its token in each iteration; raise the one or lower the other";
        section.find(Finding::error(Code::FewTokens, None, what).help(help));
    }
    section.finish();
    settings
}

/// Whole instances, whole heads, and weights that fit.
fn cross_checks(reader: &mut Reader<'_>, scenario: &KvSharing) {
    let (n_gpus, tp, heads) = (scenario.cluster.n_gpus(), scenario.engine.tensor_degree, scenario.model.n_heads);
    if !n_gpus.is_multiple_of(tp) || n_gpus / tp > 64 {
        let what = format!("instances of {tp} GPUs do not cut the cluster's {n_gpus} GPUs into 1 to 64 whole ones");
        return reader.find(Finding::error(Code::WrongGpuCount, None, what).help("change `engine.tp` or the cluster"));
    }
    let degrees = scenario.choices.iter().map(|(_, policy)| if *policy == Policy::Single { n_gpus } else { tp });
    let mut degrees: Vec<u32> = degrees.collect();
    degrees.sort_unstable();
    degrees.dedup();
    for degree in degrees {
        if !heads.is_multiple_of(u64::from(degree)) {
            let name = &scenario.model.name;
            let what = format!("{degree} GPUs of an instance do not divide the {heads} attention heads of `{name}`");
            reader.find(Finding::error(Code::UnevenDegree, None, what));
        } else if let Err(why) = scenario.capacity(degree) {
            reader.find(Finding::error(Code::NoRoomForCache, None, why));
        }
    }
}

impl KvSharing {
    /// Blocks of an instance of so many GPUs.
    ///
    /// # Errors
    /// A sentence with the figures when the weights leave no room.
    pub fn capacity(&self, tensor_degree: u32) -> Result<u32, String> {
        let deployment = self.deployment(tensor_degree);
        let capacity = serve::capacity::of(&deployment, self.engine.memory_ratio, self.reserved)?;
        Ok(capacity.blocks(self.engine.block_tokens))
    }

    /// An instance of so many GPUs.
    #[must_use]
    pub fn deployment(&self, tensor_degree: u32) -> serve::step_cost::ReplicaConfig<'_> {
        serve::step_cost::ReplicaConfig::new(&self.model, &self.cluster, tensor_degree)
    }
}
