//! Layers on single GPUs within limits: Helix's placement (arXiv:2406.01566) on the machines of a task, beside plans of whole replicas.
//!
//! Every GPU is a node, and GPUs of a machine have its own link between them. Times are those of the other plans' roofline, at the mean context
//! of a decoding request. Activations cost no copying, as no other plan pays for it. Helix plans for most tokens at typical batches and knows
//! no limits; what its placement is worth within them is found by playing it, request by request. Units: requests per second, seconds.
//!
//! Bound of any placement of layers: by Little's law a rate r of requests that are there for at most W seconds on average has r·W of them in
//! flight, and no run passes more than the linear program of `helix/bound.rs` allows for so many. With mean limits W = TTFT + (output - 1)·TPOT.
//! The largest r that the program allows for its own r·W is a bound, and so is that with full caches.

use hw::{Span, Time};
use serve::batcher;
use serve::check::{Site, check};
use serve::deployment::Deployment;
use serve::fleet::{Changing, serve_stations};
use serve::pool::path::Flow;
use serve::pool::path::flow::Expected;
use serve::pool::{self, Answer, NodeType, Pool};
use serve::request::{Request, Requests};

use super::super::RentalError;
use super::super::helix::{HandOver, Held, Machines, Placed, Traffic, Typical, played, tables};
use super::super::inventory::{Inventory, Offer};
use super::super::roofline::LINK_REACHED;
use super::super::thunderserve::{Task, Working};

/// Share of a cache that is planned to be in use; the public artefact's.
const CACHE_RATIO: f64 = 0.3;
/// Part of the mean output that a request's cache is expected to hold, and share of a cache above which a node takes no request; the
/// artefact's for requests that arrive.
const EXPECTED: (f64, f64) = (0.6, 0.9);
/// Seconds after the last arrival in which requests may end that have missed their limits by far.
const AFTER_S: f64 = 1e4;
/// Halvings of a rate: as close as matters.
const HALVINGS: usize = 40;

/// The single GPUs of a task as nodes.
///
/// # Errors
/// When no GPU holds one layer.
pub fn machines(task: &Task, requests: &[Request]) -> Result<Machines, RentalError> {
    let (prompt, output) = played::means(requests);
    let (mut types, mut offers, mut hosts) = (Vec::<NodeType>::new(), Vec::new(), Vec::new());
    for (at, machine) in task.machines.offers.iter().enumerate() {
        let Some(gpu) = machine.gpu.as_ref() else { continue };
        // Rows of one name may have figures of their own.
        let name = format!("{} of machine {at}", machine.name);
        let Some(node) = tables::datasheet(gpu, &task.model, prompt + output / 2.0) else { continue };
        let known = types.iter().find(|of| NodeType { name: of.name.clone(), ..node.clone() } == **of);
        let name = known.map_or_else(|| name.clone(), |of| of.name.clone());
        if known.is_none() {
            types.push(NodeType { name: name.clone(), ..node });
        }
        for _ in 0..machine.n_available {
            offers.push(Offer { name: name.clone(), n_available: 1, n_gpus_per_machine: 1, ..machine.clone() });
            hosts.push((at, LINK_REACHED * gpu.intra_node_bandwidth.get()));
        }
    }
    if offers.is_empty() {
        let model = &task.model.name;
        return Err(RentalError::Infeasible(format!("no GPU holds one layer of `{model}`")));
    }
    let longest = |of: fn(&Request) -> u32| requests.iter().map(of).max().unwrap_or(1);
    Ok(Machines {
        n_layers: u32::try_from(task.model.n_layers).expect("fewer than 2^32 layers"),
        activation_bytes: 2.0 * hw::real(task.model.hidden),
        types,
        inventory: Inventory { offers, network: task.machines.network },
        hosts,
        typical: Typical { prompt: prompt.max(1.0), output: output.max(1.0), cache_ratio: CACHE_RATIO },
        hand_over: HandOver::Strict,
        copy_bytes_per_s: f64::INFINITY,
        prompt_tokens_max: longest(|request| request.prompt),
        context_per_decode: longest(|request| request.prompt + request.output),
    })
}

/// Refuses ways of working that stations do not know.
///
/// # Errors
/// Names them.
pub fn check_working(working: Working) -> Result<(), RentalError> {
    if working == Working::default() {
        return Ok(());
    }
    let usual = batcher::named(Working::default().batcher).map_or("", |batcher| batcher.name());
    Err(RentalError::Infeasible(format!(
        "nodes with a part of the layers batch whole rounds, first come, first served, and keep no prefixes: `batcher = \"{usual}\"`, no \
         `max_tokens` and no `prefix_cache`"
    )))
}

/// A placement as the loop plays it.
#[derive(Clone, Debug)]
pub struct Playable {
    /// The deployment that the checker holds.
    pub placed: Deployment,
    pool: Pool,
    changing: Changing,
    expected: Expected,
}

/// Checks a placement and makes it what the loop plays.
///
/// # Errors
/// When the checker refuses it, which would be a fault of the planner.
pub fn playable(task: &Task, machines: &Machines, placed: &Placed) -> Result<Playable, RentalError> {
    let Placed { ranges, flow } = placed;
    let placed = machines.deployment(&task.model.name, ranges, Some(flow))?;
    let all = machines.machines();
    let site = Site { model: &task.model, machines: &all, parameter_bytes: 2.0, kv_bytes: 2.0 };
    check(&placed, &site).map_err(RentalError::refused)?;
    let pool = machines.stations(&placed)?;
    let changing = Changing { outages: Vec::new(), failures: machines.failures(&placed, 0) };
    let expected =
        Expected { output_tokens: EXPECTED.0 * machines.typical.output, high_water_ratio: EXPECTED.1 };
    Ok(Playable { placed, pool, changing, expected })
}

/// Plays requests in order of their arrivals; `None` for those that did not end.
#[must_use]
pub fn play(playable: &Playable, requests: &Requests) -> Vec<Option<Answer>> {
    let last = requests.list.last().map_or(Time::ZERO, |request| request.arrival);
    let until = last + Span::from_seconds(hw::Seconds::new(AFTER_S));
    let run = pool::Run { requests: &requests.list, load: pool::Load::Open, warm_up: Time::ZERO, until };
    let mut paths = Flow::new(&playable.pool, playable.expected);
    serve_stations(&playable.pool, &mut paths, &run, &playable.changing).answers
}

/// Tokens of a mean request without the first of its output, which is its prompt's.
fn tokens(requests: &[Request]) -> f64 {
    let (prompt, output) = played::means(requests);
    prompt + output - 1.0
}

/// Requests per second of a placement by its flow.
#[must_use]
pub fn planned_per_s(placed: &Placed, requests: &[Request]) -> f64 {
    placed.flow.tokens_per_s / tokens(requests)
}

/// Requests per second that no placement of layers passes, of all arrivals.
#[must_use]
pub fn bound_per_s(task: &Task, requests: &[Request]) -> f64 {
    let Ok(machines) = machines(task, requests) else { return 0.0 };
    let Some(traffic) = Traffic::of_requests(requests) else { return 0.0 };
    let passed = |traffic: &Traffic| match machines.any_placement(traffic) {
        Ok(bound) => bound.value / tokens(requests),
        Err(RentalError::Infeasible(_)) => 0.0,
        // A program that was not solved says nothing.
        Err(_) => f64::INFINITY,
    };
    let (_, output) = played::means(requests);
    let there_s = task.ttft_s + (output - 1.0) * task.tpot_s;
    let holds = |per_s: f64| passed(&Traffic { held: Held::InFlight(per_s * there_s), ..traffic.clone() }) >= per_s;
    let most = passed(&traffic).min(task.requests_per_s);
    if most <= 0.0 || holds(most) {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    high
}
