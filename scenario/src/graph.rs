//! Scenarios of `kind = "graph"`: the objective decides which sections there are besides graph, network and machine.

mod given;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use ::graph::epoch::Epoch;
use ::graph::host::{HostCosts, Kernel};
use ::graph::sample::{Replacement, Sampling};
use ::graph::step::{Layer, Network};
use ::graph::subgraph::{Paths, Rule};
use ::graph::tcsr::{Event, Reverse, Take};
use ::planner::graph::tf_tgn::{self, past};
use ::planner::graph::{Known, Machine, legion, seg};
use engine::cost::profile::Profile;
use engine::verdict::Refused;
use hw::Bytes;

use crate::network::Written;
use crate::training::stragglers;
use crate::{Head, Overrides, cluster, cost, expect};
use ::planner::graph::source::Source as GraphSource;
use given::Given;
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, counts, small};
use input::run_list::run_list;

/// Words of `objective.is` with the section that each has of its own.
const OBJECTIVES: [(&str, &[&str]); 3] =
    [("caching", &["sampling", "cache"]), ("subgraphs", &["subgraphs", "host"]), ("sequences", &["sequences", "host"])];
/// Sections of every objective.
const SECTIONS: [&str; 9] =
    ["objective", "graph", "network", "cluster", "stragglers", "budget", "policies", "cost", "expect"];
/// Reads of memory that a thread has under way at once hide most of a miss of some 90 ns: an assumption, `docs/graphs.md` has measurements.
const READ_NS: f64 = 25.0;
/// Handling an item that is at hand: an assumption of the same kind.
const ITEM_NS: f64 = 2.0;
const TAKES: [(&str, Take); 2] = [("recent", Take::Recent), ("random", Take::Random)];
const LAYERS: [(&str, Layer); 2] = [("graphsage", Layer::GraphSage), ("gcn", Layer::Gcn)];
const PATHS: [(&str, Paths); 2] = [("edge", Paths::WithoutEdge), ("end", Paths::WithoutEnd)];

/// A question with its graph, which is made when the first policy runs: a file is checked without it.
pub type Later<T> = LazyLock<T, Box<dyn FnOnce() -> T + Send>>;

/// What is asked, with the policies that answer.
pub enum Question {
    /// What to cache.
    Caching(Later<legion::Asked>, Vec<(String, legion::Policy)>),
    /// How to extract.
    Subgraphs(Later<seg::Asked>, Vec<(String, seg::Method)>),
    /// How to sample the past.
    Sequences(Later<tf_tgn::Asked>, Vec<(String, tf_tgn::Policy)>, Box<dyn Fn() -> Option<Epoch> + Send + Sync>),
}

/// A checked scenario.
pub struct GraphScenario {
    /// Whose it is.
    pub head: Head,
    /// What is asked.
    pub question: Question,
    /// What was found of the input, in words: edges that were removed.
    pub input: Vec<String>,
    /// Machine.
    pub machine: Machine,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// What was assumed and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

/// What every objective reads.
struct Shared {
    given: Option<Given>,
    network: NetworkSection,
    machine: Option<Machine>,
    epoch_s_max: f64,
    seed: u64,
}

struct NetworkSection {
    layer: Layer,
    hidden: u64,
    n_layers: u32,
    n_heads: u64,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<GraphScenario> {
    let written = Written::of(reader);
    let word = reader.peek_in("objective", "is").map_or_else(String::new, |(word, _)| word);
    let objective = OBJECTIVES.iter().position(|(known, _)| word.trim_matches('"') == *known).unwrap_or(0);
    let sections: Vec<&'static str> = SECTIONS.iter().chain(OBJECTIVES[objective].1).copied().collect();
    let head = Head::read(reader, &sections, source, overrides);
    objective_word(reader.section("objective"));
    let given = given::given(reader.section("graph"), folder, head.seed, objective == 2, objective == 0);
    let network = network(reader.section("network"), objective);
    let machine = cluster::cluster(reader.section("cluster"));
    let (usd_per_gpu_hour, epoch_s_max) = budget(reader.section("budget"), objective);
    let stragglers = stragglers::of_epochs(reader, machine.as_ref().map(|(cluster, _)| cluster.n_gpus()));
    let machine = machine.map(|(cluster, reserved)| Machine {
        memory_bytes: cluster.gpu.memory.0.saturating_sub(reserved.0),
        stragglers,
        cluster,
        usd_per_gpu_hour,
    });
    let gpu = machine.as_ref().map(|machine| machine.cluster.gpu.name.clone());
    let n_gpus = machine.as_ref().map_or(1, |machine| machine.cluster.n_gpus());
    let shared = Shared { given, network, machine: machine.clone(), epoch_s_max, seed: head.seed };
    let mut free_parameters = shared.given.as_ref().map(|given| given.assumed.clone()).unwrap_or_default();
    let input = shared.given.as_ref().map(|given| given.input.clone()).unwrap_or_default();
    let question = match objective {
        0 => caching(reader, shared),
        1 => subgraphs(reader, shared, folder, &mut free_parameters),
        _ => sequences(reader, shared, folder, &mut free_parameters),
    };
    let cost = cost::of_engine(reader.section("cost"), folder, gpu.as_deref(), None);
    let expectations = expect::read(reader.section("expect"));
    let (question, baseline) = question?;
    let machine = machine?;
    if machine.cluster.n_nodes > 1 {
        let what = format!("`cluster.nodes` is {}, caches and links are those of one machine", machine.cluster.n_nodes);
        reader.refuse(Code::WrongGraph, None, what, format!("write `nodes = 1`; {n_gpus} GPUs of one node may share"));
    }
    written.warn_inside(reader, &machine.cluster, cost.profile.as_ref());
    Some(GraphScenario {
        head: Head { baseline, expectations, ..head },
        question,
        input,
        machine,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters,
    })
}

fn objective_word(mut section: Section<'_>) {
    section.needs("is", "`caching`, `subgraphs` or `sequences`");
    section.word("is", 0, &OBJECTIVES.map(|(word, _)| word));
    section.finish();
}

fn network(mut section: Section<'_>, objective: usize) -> NetworkSection {
    let hidden = section.count("hidden", Some(256), 1..=65_536).0;
    let mut found = NetworkSection { layer: Layer::GraphSage, hidden, n_layers: 2, n_heads: 1 };
    match objective {
        // A layer for every hop.
        0 => found.layer = section.one_of("layer", Layer::GraphSage, &LAYERS),
        1 => found.n_layers = section.small("layers", Some(3), 1..=100),
        _ => {
            found.n_layers = section.small("layers", Some(2), 1..=100);
            let (n_heads, at) = section.count("heads", Some(2), 1..=1024);
            if !hidden.is_multiple_of(n_heads) {
                let what = format!("`network.heads` {n_heads} does not divide `network.hidden` {hidden}");
                section.wrong(Code::UnevenDegree, at, what);
            }
            found.n_heads = n_heads;
        }
    }
    section.finish();
    found
}

/// Price of a GPU and hour, and the longest epoch that is accepted.
fn budget(mut section: Section<'_>, objective: usize) -> (Option<f64>, f64) {
    let price = section.some_number("usd_per_gpu_hour", 1e-9..=1e9);
    // A split of caches has no larger or smaller answer to choose from.
    let epoch_s = if objective == 0 { None } else { section.some_number("epoch_s", 1e-9..=1e12) };
    section.finish();
    (price, epoch_s.unwrap_or(f64::INFINITY))
}

type Asked = Option<(Question, String)>;

fn caching(reader: &mut Reader<'_>, shared: Shared) -> Asked {
    let mut section = reader.section("sampling");
    let replacement = if section.flag("replacement", false) { Replacement::With } else { Replacement::Without };
    let sampling = Sampling {
        fan_out: fan_out(&mut section),
        replacement,
        batch: section.small("batch", Some(8000), 1..=10_000_000),
        seed: shared.seed,
    };
    section.finish();
    let mut section = reader.section("cache");
    let gib = section.needed("gib", 0.0..=10_000.0, "GiB of each GPU for caches");
    let replay = section.flag("replay", true);
    section.finish();
    let mut section = reader.section("policies");
    let plain = legion::POLICIES.iter().map(|policy| (policy.name, *policy)).collect();
    let run = run_list(&mut section, plain, Vec::new());
    section.finish();
    let (given, machine) = shared.given.zip(shared.machine)?;
    if Bytes::from_gib(gib).0 > machine.memory_bytes {
        let room = hw::real(machine.memory_bytes) / hw::GIB;
        let what = format!("`cache.gib` is {gib}, a GPU has {room:.2} GiB for the job");
        reader.refuse(Code::OutOfRange, None, what, "leave room for a batch beside the cache");
    }
    let network = Network { layer: shared.network.layer, width: given.width, hidden: shared.network.hidden };
    let cache_bytes = Bytes::from_gib(gib).as_f64();
    let source = given.source;
    let asked = move || legion::Asked { known: source.graph(), network, sampling, machine, cache_bytes, replay };
    Some((Question::Caching(Later::new(Box::new(asked)), run.choices), run.baseline))
}

/// Picks of a vertex at each hop, first hop first.
fn fan_out(section: &mut Section<'_>) -> Vec<u32> {
    match section.numbers("fan_out", 1.0..=10_000.0) {
        None => vec![25, 10],
        Some(Ok(found)) if found.iter().all(|n| n.fract() == 0.0) && found.len() <= 8 => {
            found.into_iter().map(|n| small(hw::whole(n))).collect()
        }
        Some(found) => {
            let what = "`sampling.fan_out` is no list of one to eight whole numbers";
            section.refuse(Code::OutOfRange, found.err().flatten(), what, "allowed are whole numbers from 1 to 10000");
            vec![25, 10]
        }
    }
}

fn subgraphs(reader: &mut Reader<'_>, shared: Shared, folder: &Path, assumed: &mut Vec<String>) -> Asked {
    let host = host(reader.section("host"), folder, &[Kernel::Extract], assumed);
    let mut section = reader.section("subgraphs");
    let ratios = section.numbers("neighbour_ratio", 1e-6..=1.0);
    let ratios = ratios.unwrap_or(Ok(vec![1.0])).unwrap_or_else(|at| {
        let what = "`subgraphs.neighbour_ratio` is no list of shares";
        section.refuse(Code::OutOfRange, at, what, "allowed are numbers above 0 up to 1");
        vec![1.0]
    });
    let rule = Rule {
        hops: section.small("hops", Some(1), 1..=4),
        ratio: 1.0,
        neighbours_max: section.count("neighbours_max", Some(u64::from(u32::MAX)), 1..=u64::from(u32::MAX)).0,
        paths: section.one_of("paths_without", Paths::WithoutEdge, &PATHS),
    };
    let n_pairs = section.count("pairs", None, 1..=1_000_000_000_000).0;
    let batch = section.small("batch", Some(32), 1..=1_000_000);
    let encode_batch = section.small("encode_batch", Some(65_536), 1..=100_000_000);
    let epochs_at = section.place("epochs");
    let n_epochs = section.small("epochs", Some(10), 1..=1_000_000);
    let n_drawn = section.count("drawn_pairs", Some(400), 10..=100_000).0;
    section.finish();
    let mut section = reader.section("policies");
    let run = run_list(&mut section, seg::POLICIES.map(|(name, method, _)| (name, method)).to_vec(), Vec::new());
    section.finish();
    let extracts_ahead = run.choices.iter().any(|(_, method)| *method == seg::Method::PathLabels);
    if let Some(at) = epochs_at.filter(|_| !extracts_ahead) {
        let help = "it needs `seg`, which may extract once for all epochs";
        reader.warn(Code::NoEffect, at, "`subgraphs.epochs` changes nothing", help);
    }
    let (given, machine) = shared.given.zip(shared.machine)?;
    let (network, epoch_s_max, seed) = (shared.network, shared.epoch_s_max, shared.seed);
    let asked = move || seg::Asked {
        known: given.source.graph(),
        width: given.width,
        hidden: network.hidden,
        n_layers: network.n_layers,
        n_pairs: hw::real(n_pairs),
        batch,
        encode_batch,
        n_epochs,
        ratios,
        rule,
        workers_max: host.threads.div_ceil(machine.cluster.n_gpus()),
        costs: host.costs,
        host_bytes: host.memory_bytes,
        hot_bytes: host.hot_bytes,
        epoch_s_max,
        machine,
        n_drawn,
        seed,
    };
    Some((Question::Subgraphs(Later::new(Box::new(asked)), run.choices), run.baseline))
}

fn sequences(reader: &mut Reader<'_>, shared: Shared, folder: &Path, assumed: &mut Vec<String>) -> Asked {
    let host = host(reader.section("host"), folder, &[Kernel::Convert, Kernel::Past, Kernel::Gather], assumed);
    let mut section = reader.section("sequences");
    let neighbours = counts(&mut section, "neighbours", &[64], 100_000);
    let batches = counts(&mut section, "batch", &[512], 10_000_000);
    let take = section.one_of("take", Take::Recent, &TAKES);
    let reverse = if section.flag("reverse_edges", true) { Reverse::With } else { Reverse::Without };
    let n_epochs = section.small("epochs", Some(10), 1..=1_000_000);
    let train_ratio = section.number("train_ratio", 0.7, 1e-6..=1.0);
    section.finish();
    let mut section = reader.section("policies");
    let plain = tf_tgn::POLICIES.iter().map(|policy| (policy.name, *policy)).collect();
    let run = run_list(&mut section, plain, Vec::new());
    section.finish();
    let (given, machine) = shared.given.zip(shared.machine)?;
    let (network, epoch_s_max) = (shared.network, shared.epoch_s_max);
    let (width, batch) = (given.width, batches[0] as usize);
    let k = neighbours.iter().copied().max().unwrap_or(1) as usize;
    let (known, events) = match given.source {
        GraphSource::Events { make, n_vertices } => (None, Some((n_vertices, Later::new(make)))),
        source => (Some(source), None),
    };
    let events: Arc<Option<(u32, Later<Vec<Event>>)>> = Arc::new(events);
    let executed = Arc::clone(&events);
    let epoch = move || {
        let (n_vertices, events) = executed.as_ref().as_ref()?;
        Some(Epoch::Past { n_vertices: *n_vertices, events: (**events).clone(), reverse, k, take, batch, width })
    };
    let asked = move || tf_tgn::Asked {
        past: match (known, events.as_ref()) {
            (_, Some((n_vertices, events))) => {
                let past = past::of_events(*n_vertices, events, reverse, (&neighbours, &batches), take);
                past.expect("readers and generators name vertices that there are")
            }
            (known, None) => past::of_degrees(&known.expect("no events").graph().degrees(), &neighbours, &batches),
        },
        n_events: hw::real(given.n_edges) * train_ratio,
        n_epochs,
        width,
        hidden: network.hidden,
        n_heads: network.n_heads,
        n_layers: network.n_layers,
        neighbours,
        batches,
        threads_max: host.threads,
        costs: host.costs,
        epoch_s_max,
        machine,
    };
    Some((Question::Sequences(Later::new(Box::new(asked)), run.choices, Box::new(epoch)), run.baseline))
}

struct Host {
    threads: u32,
    costs: HostCosts,
    memory_bytes: f64,
    hot_bytes: f64,
}

/// Kernels of the host: those of a profile that an objective uses, and times that are assumed for all others.
fn host(mut section: Section<'_>, folder: &Path, kernels: &[Kernel], assumed: &mut Vec<String>) -> Host {
    let threads = section.small("threads", None, 1..=4096);
    let [read_ns, item_ns] =
        [("read_ns", READ_NS), ("item_ns", ITEM_NS)].map(|(key, usual)| section.number(key, usual, 0.01..=1e6));
    let mut costs = HostCosts::of_ns(read_ns, item_ns);
    if let Some((name, at)) = section.text("profile") {
        let found = cost::named(&mut section, folder, &name, &at);
        let is_read = found.is_some();
        costs.measured = found.map(|profile| profile.host).unwrap_or_default();
        if is_read && kernels.iter().all(|kernel| costs.of(*kernel).is_none()) {
            let what = "`host.profile` has no kernel that this objective uses";
            let help =
                "`skrull-sim calibrate --device cpu` measures those of conversion, sampling, gather and extraction";
            section.refuse(Code::NoEffect, at, what, help);
        }
    }
    if kernels.iter().any(|kernel| costs.of(*kernel).is_none()) {
        for (key, value) in [("read_ns", read_ns), ("item_ns", item_ns)] {
            assumed.push(format!(
                "`host.{key}` = {value}: fitted or assumed, not measured on the host that is asked about"
            ));
        }
    }
    if !costs.measured.is_empty() {
        assumed.extend(costs.sources(kernels));
    }
    let memory_bytes = Bytes::from_gib(section.number("memory_gib", 0.0, 0.0..=1e6)).as_f64();
    if kernels.contains(&Kernel::Extract) && costs.of(Kernel::Extract).is_some() {
        section.idle(
            &["hot_rows_gib"],
            "a host whose extraction is assumed; a measured one has its caches in the measurement",
        );
    }
    let hot_bytes = Bytes::from_gib(section.number("hot_rows_gib", 0.0, 0.0..=1e6)).as_f64();
    section.finish();
    Host { threads, costs, memory_bytes, hot_bytes }
}

impl Question {
    /// An epoch of it on the host, which a device can execute.
    ///
    /// # Errors
    /// Why there is none.
    pub fn epoch(&self) -> Result<Epoch, Refused> {
        let absent = || Refused::infeasible("the graph is known by its degrees alone; give a generator or a file");
        match self {
            Self::Caching(asked, _) => match &asked.known {
                Known::Whole { graph, train, .. } => Ok(Epoch::Sampled {
                    graph: graph.clone(),
                    train: train.clone(),
                    sampling: asked.sampling.clone(),
                    width: asked.network.width,
                }),
                Known::Degrees { .. } => Err(absent()),
            },
            Self::Sequences(_, _, epoch) => epoch().ok_or_else(absent),
            Self::Subgraphs(asked, _) => match &asked.known {
                Known::Whole { graph, .. } => Ok(Epoch::Pairs {
                    graph: graph.clone(),
                    n_pairs: asked.n_drawn,
                    rule: asked.rule,
                    seed: asked.seed,
                }),
                Known::Degrees { .. } => Err(absent()),
            },
        }
    }
}
