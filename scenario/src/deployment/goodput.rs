//! `objective.is = "goodput"`: one model over mixed GPUs, most requests per second within limits; prefill and decode on different groups of
//! GPUs or on the same.

use std::path::Path;

use hw::Tokens;
use planner::deploy::goodput::{Choice, Load, Method};
use planner::deploy::inventory::Network;
use planner::deploy::objective::Objective;
use planner::deploy::policies::serving;
use planner::deploy::throughput::Lengths;
use planner::deploy::thunderserve::played::BLOCK_TOKENS;
use planner::deploy::thunderserve::{Beside, MeanLayer, Tabu, Task, alone_s};
use serve::arrivals::{self, Arrivals};
use serve::beginnings::Beginnings;
use serve::request::{Request, Requests};

use super::inventory::inventory;
use super::lengths_table;
use super::objective::{self, Targets};
use super::working::{self, Asks, Engine};
use crate::serving::adapters;
use crate::{Head, Overrides, expect, model};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, small};
use input::run_list::RunList;

const SECTIONS: [&str; 8] = ["model", "inventory", "objective", "engine", "requests", "search", "policies", "expect"];

/// One way of serving that a scenario compares.
#[derive(Clone, Debug)]
pub struct GoodputChoice {
    /// Name in results.
    pub name: String,
    /// What it does.
    pub way: Choice,
}

/// A checked scenario of most requests within limits.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// Whose it is.
    pub head: Head,
    /// Requests that arrive once per second on average.
    pub requests: Requests,
    /// Share of the requests that must meet both targets.
    pub attainment_ratio: f64,
    /// Limits of the search.
    pub tabu: Tabu,
    /// Ways of serving, in order.
    pub choices: Vec<GoodputChoice>,
    /// Parameters that were chosen and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

impl Goodput {
    /// What plans are made for and played with.
    pub const fn load(&self) -> Load<'_> {
        Load { requests: &self.requests, attainment_ratio: self.attainment_ratio, tabu: self.tabu }
    }
}

/// Requests of a trace that stand for its lengths when a plan is made; more change plans little and cost time.
const N_CLASSES: usize = 64;

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(
    reader: &mut Reader<'_>,
    targets: &Targets,
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
) -> Option<Goodput> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let stock = inventory(reader.section("inventory"), Objective::Goodput);
    let (listed, machines) = (stock.machines(), Some(stock.inventory.by_machine()).filter(|_| stock.is_whole));
    let (wire_bits, engine) = engine(reader.section("engine"), head.seed);
    let (requests, asks) = requests(reader.section("requests"), head.seed);
    let tabu = search(reader.section("search"), head.seed);
    let task = model.zip(machines).filter(|_| !requests.list.is_empty());
    let task = task.and_then(|(model, machines)| {
        let (requests_per_s, classes) = (targets.planned_per_s, classes(&requests));
        let (beside, kept_tokens, mean_layer) = (Beside::default(), 0, MeanLayer::default());
        let [ttft_s, tpot_s] = [1.0; 2];
        let task = Task {
            machines,
            model,
            classes,
            requests_per_s,
            ttft_s,
            tpot_s,
            wire_bits,
            beside,
            kept_tokens,
            mean_layer,
        };
        with_targets(reader, task, (targets, &listed))
    });
    let shared_tokens = requests.prefix_tokens;
    let base = Base { task: task.as_ref(), listed: &listed, engine: &engine, asks, shared_tokens, seed: head.seed };
    let Ways { choices, baseline, engines } = policies(reader.section("policies"), &base);
    let expectations = expect::read(reader.section("expect"));
    let task = task?;
    engines.iter().for_each(|engine| engine.check(reader, &task.model, asks));
    let mut free_parameters = vec![format!(
        "targets are {:.2} s to the first token and {:.0} ms per token, {} and {} times those of a mean request alone",
        task.ttft_s,
        task.tpot_s * 1e3,
        targets.ttft_scale,
        targets.tpot_scale
    )];
    free_parameters.extend(engines.iter().flat_map(Engine::free_parameters));
    free_parameters.dedup();
    Some(Goodput {
        head: Head { baseline, expectations, ..head },
        requests,
        attainment_ratio: targets.attainment_ratio,
        tabu,
        choices,
        free_parameters,
    })
}

/// Lengths of some of the requests, each with its share.
fn classes(requests: &Requests) -> Vec<(Lengths, f64)> {
    let every = requests.list.len().div_ceil(N_CLASSES);
    let drawn: Vec<&Request> = requests.list.iter().step_by(every).collect();
    let share = 1.0 / hw::real(drawn.len() as u64);
    let of = |r: &&Request| (Lengths { input: Tokens(r.prompt.into()), output: Tokens(r.output.into()) }, share);
    drawn.iter().map(of).collect()
}

/// The task with targets in seconds: multiples of a mean request that is alone on the reference machine, one of those that the file lists.
fn with_targets(reader: &mut Reader<'_>, mut task: Task, (targets, listed): (&Targets, &[usize])) -> Option<Task> {
    let Some(&reference) = listed.get(targets.reference) else {
        let (at, last) = (targets.reference, listed.len().saturating_sub(1));
        let what = format!("`objective.reference_machine` is {at}, the inventory has machines 0 to {last}");
        reader.wrong(Code::UnknownPosition, None, what);
        return None;
    };
    match alone_s(&task, reference) {
        Ok((ttft_s, tpot_s)) => {
            task.ttft_s = targets.ttft_scale * ttft_s;
            task.tpot_s = targets.tpot_scale * tpot_s;
            Some(task)
        }
        Err(why) => {
            let help = "`objective.reference_machine` names the machine whose latencies the targets are multiples of";
            reader.refuse(Code::NoReference, None, why.to_string(), help);
            None
        }
    }
}

fn search(mut section: Section<'_>, seed: u64) -> Tabu {
    let usual = Tabu::default();
    let count = |section: &mut Section<'_>, key, default: usize| {
        usize::try_from(section.count(key, Some(default as u64), 1..=100_000).0).expect("bounded")
    };
    let tabu = Tabu {
        steps: count(&mut section, "steps", usual.steps),
        neighbours: count(&mut section, "neighbours", usual.neighbours),
        memory: count(&mut section, "memory", usual.memory),
        restarts: count(&mut section, "restarts", usual.restarts),
        seed,
    };
    section.finish();
    tabu
}

/// `[requests]`, arriving once per second, and what they ask of engines.
fn requests(mut section: Section<'_>, seed: u64) -> (Requests, Asks) {
    let n = section.size("requests", 2000, 1..=100_000);
    let prompt_max = section.count("prompt_max", Some(2048), 1..=10_000_000).0;
    let output_max = section.count("output_max", Some(1024), 1..=10_000_000).0;
    let shared = shared(&mut section);
    let adapters = section.table("adapters").map(adapters::popularity);
    let asks = Asks { adapters, shares: shared.n > 0 };
    let is_given = section.has("lengths");
    let table = lengths_table(&mut section);
    if is_given && table.is_none() {
        section.finish();
        return (Requests::default(), asks);
    }
    let mut list = table.map_or_else(Vec::new, |table| table.sample(2 * n, seed).list);
    list.retain(|request| u64::from(request.prompt) <= prompt_max && u64::from(request.output) <= output_max);
    list.truncate(n);
    if list.is_empty() {
        let what = "no request is within `requests.prompt_max` and `requests.output_max`";
        let at = section.at();
        section.wrong(Code::NoRequests, at, what);
    }
    section.finish();
    let mut requests = Requests::of(list);
    arrivals::lay(&mut requests, Arrivals::Poisson { per_s: 1.0 }, seed);
    shared.lay(&mut requests, seed);
    match adapters {
        Some(popularity) => (popularity.lay(requests, seed), asks),
        None => (requests, asks),
    }
}

/// `requests.shared_prefixes` and `requests.shared_prefix_tokens`: beginnings that requests share.
fn shared(section: &mut Section<'_>) -> Beginnings {
    let (n, at) = section.count("shared_prefixes", Some(0), 1..=1_000_000);
    let (tokens, tokens_at) = section.count("shared_prefix_tokens", Some(0), 1..=1_000_000);
    if !tokens.is_multiple_of(BLOCK_TOKENS.into()) {
        let what =
            format!("`requests.shared_prefix_tokens` is {tokens}, blocks of the cache have {BLOCK_TOKENS} tokens");
        section.refuse(Code::OutOfRange, tokens_at, what, "take a multiple");
    }
    if (n > 0) != (tokens > 0) {
        let what = "`requests.shared_prefixes` and `requests.shared_prefix_tokens` go together";
        section.refuse(Code::NoEffect, at, what, "how many beginnings there are, and how long each is");
    }
    Beginnings { n: small(n), tokens: small(tokens) }
}

/// `[engine]`: bits of a key or value on the wire, and how replicas work.
fn engine(mut section: Section<'_>, seed: u64) -> (u32, Engine) {
    let bits = u32::try_from(section.count("wire_bits", Some(4), 1..=16).0).expect("at most 16");
    let engine = working::engine(&mut section, &Engine::default(), seed);
    section.finish();
    (bits, engine)
}

/// What every way of serving begins with.
struct Base<'b> {
    task: Option<&'b Task>,
    /// Positions of machines as the file lists them.
    listed: &'b [usize],
    engine: &'b Engine,
    asks: Asks,
    /// Tokens of the beginnings that requests share.
    shared_tokens: u32,
    seed: u64,
}

impl Base<'_> {
    /// A way of serving by engines, of a task whose links and losses are its own.
    fn way(&self, name: &str, method: Method, (task, lost): (Task, Vec<u32>), engine: Engine) -> Way {
        let kept_tokens = if engine.working.prefix_cache { self.shared_tokens } else { 0 };
        let task = Task { beside: engine.beside(&task.model, self.asks), kept_tokens, ..task };
        let way = Choice { method, task, lost, working: engine.working };
        (GoodputChoice { name: name.to_owned(), way }, engine)
    }
}

/// Ways of serving in order, the baseline, and the engines of these ways, each once.
struct Ways {
    choices: Vec<GoodputChoice>,
    baseline: String,
    engines: Vec<Engine>,
}

/// A way of serving and its engine.
type Way = (GoodputChoice, Engine);

/// `[policies]`; no choices without a task.
fn policies(mut section: Section<'_>, base: &Base<'_>) -> Ways {
    let mut variants: Vec<(String, Option<Way>)> = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, base)));
    let plain = |name: &str, method: Method| {
        let lost = |task: &Task| vec![0; task.machines.offers.len()];
        base.task.map(|task| base.way(name, method, (task.clone(), lost(task)), base.engine.clone()))
    };
    let plain = serving(Objective::Goodput, |policy| policy.places.map(|method| plain(policy.name, method)));
    let RunList { choices, baseline } = objective::run_list(&mut section, Objective::Goodput, plain, variants);
    section.finish();
    let ways: Vec<Way> = choices.into_iter().filter_map(|(_, way)| way).collect();
    let (choices, mut engines): (Vec<GoodputChoice>, Vec<Engine>) = ways.into_iter().unzip();
    engines.dedup();
    Ways { choices, baseline, engines }
}

/// `[[policies.variant]]`: a policy under a name of its own, with other links, other bits on the wire, other engines, or a loss.
fn variant(mut section: Section<'_>, base: &Base<'_>) -> Option<(String, Option<Way>)> {
    let name = section.name();
    let help = Some("a policy, for example `thunderserve`");
    let policy = objective::named(&mut section, "policy", help, Objective::Goodput);
    let link = section.number("link_gb_per_s", 0.0, 1e-6..=1e6) * 1e9;
    let bits = section.count("wire_bits", Some(0), 1..=16).0;
    let engine = working::engine(&mut section, base.engine, base.seed);
    let n = base.task.map_or(1, |task| task.machines.offers.len());
    let lose = section.some_count("lose_gpu_of_machine", 0..=n.saturating_sub(1) as u64);
    let lose = lose.and_then(|line| base.listed.get(line as usize).copied());
    section.finish();
    let (name, method) = (name?, policy?.places?);
    let way = base.task.map(|task| {
        let mut task = task.clone();
        if link > 0.0 {
            let Network { within, between, .. } = &mut task.machines.network;
            (within.bytes_per_s, between.bytes_per_s) = (link, link);
        }
        if bits > 0 {
            task.wire_bits = u32::try_from(bits).expect("at most 16");
        }
        let lost = (0..n).map(|machine| u32::from(Some(machine) == lose)).collect();
        base.way(&name, method, (task, lost), engine)
    });
    Some((name, way))
}
