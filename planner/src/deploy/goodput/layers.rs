//! Layers on nodes within limits: Helix's placement (arXiv:2406.01566) on the machines of a task, beside plans of whole replicas.
//!
//! A node is a tensor group of a machine, all of one degree; nodes of a machine have its own link between them. Times are those of the other
//! plans' roofline, at the mean context of a decoding request. Activations cost no copying, as no other plan pays for it. Helix plans for most
//! tokens at typical batches and knows no limits, so its placements of every degree are played, and the one that serves most within them
//! is taken. Units: requests per second, seconds.
//!
//! Bound of any placement of layers: the linear program of `helix/bound.rs` over each degree, with caches that are never overfilled and
//! with generated tokens that take at most their target on average.

use hw::{Span, Time};
use serve::batcher;
use serve::check::{Site, check};
use serve::deployment::Deployment;
use serve::fleet::{Changing, serve_stations};
use serve::pool::path::Flow;
use serve::pool::path::flow::Expected;
use serve::pool::{self, NodeType, Pool};
use serve::request::{Request, Requests};

use super::super::RentalError;
use super::super::helix::{HandOver, Machines, Placed, Placement, Traffic, Typical, played, tables};
use super::super::inventory::{Inventory, Offer};
use super::super::roofline::LINK_REACHED;
use super::super::thunderserve::played::{Played, faster, highest, seen};
use super::super::thunderserve::{Task, Trial, Working};
use crate::proof::{self, Aim, Decision};

/// Share of a cache that is planned to be in use; the public artefact's.
const CACHE_RATIO: f64 = 0.3;
/// Part of the mean output that a request's cache is expected to hold, and share of a cache above which a node takes no request; the
/// artefact's for requests that arrive.
const EXPECTED: (f64, f64) = (0.6, 0.9);
/// Seconds after the last arrival in which requests may end that have missed their limits by far.
const AFTER_S: f64 = 1e4;

/// Where layers lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// Tensor-parallel GPUs of every node.
    pub tensor: u32,
    /// Ranges and flow.
    pub placed: Placed,
    /// What holds the flow back, in words.
    pub limit: String,
}

/// Tensor degrees that some machine has GPUs for.
fn degrees(task: &Task) -> impl Iterator<Item = u32> + use<> {
    let widest = task.machines.offers.iter().map(|machine| machine.n_available).max().unwrap_or(0);
    (0..u32::BITS).map(|power| 1 << power).take_while(move |tensor| *tensor <= widest)
}

/// The tensor groups of a task's machines as nodes; GPUs that fill no group are left out.
///
/// # Errors
/// When no node holds one layer.
pub fn machines(task: &Task, tensor: u32, requests: &[Request]) -> Result<Machines, RentalError> {
    let (prompt, output) = played::means(requests);
    let (mut types, mut offers, mut hosts) = (Vec::<NodeType>::new(), Vec::new(), Vec::new());
    for (at, machine) in task.machines.offers.iter().enumerate() {
        let Some(gpu) = machine.gpu.as_ref() else { continue };
        // Rows of one name may have figures of their own.
        let name = format!("{} of machine {at}", machine.name);
        let Some(node) = tables::datasheet_of((gpu, tensor), (&task.model, &task.beside), prompt + output / 2.0) else {
            continue;
        };
        let known = types.iter().find(|of| NodeType { name: of.name.clone(), ..node.clone() } == **of);
        let name = known.map_or_else(|| name.clone(), |of| of.name.clone());
        if known.is_none() {
            types.push(NodeType { name: name.clone(), ..node });
        }
        for _ in 0..machine.n_available / tensor {
            let of = Offer { name: name.clone(), n_available: tensor, n_gpus_per_machine: tensor, ..machine.clone() };
            offers.push(of);
            hosts.push((at, LINK_REACHED * gpu.bandwidth_to(1).get()));
        }
    }
    if offers.is_empty() {
        let model = &task.model.name;
        return Err(RentalError::OutOfMemory(format!("no node of {tensor} GPUs holds one layer of `{model}`")));
    }
    let longest = |of: fn(&Request) -> u32| requests.iter().map(of).max().unwrap_or(1);
    Ok(Machines {
        n_layers: u32::try_from(task.model.n_layers).expect("fewer than 2^32 layers"),
        activation_bytes: 2.0 * hw::real(task.model.hidden),
        types,
        inventory: Inventory { offers, network: task.machines.network },
        tensor,
        hosts,
        typical: Typical { prompt: prompt.max(1.0), output: output.max(1.0), cache_ratio: CACHE_RATIO },
        hand_over: HandOver::Strict,
        copy_bytes_per_s: f64::INFINITY,
        prompt_tokens_max: longest(|request| request.prompt),
        context_per_decode: longest(|request| request.prompt + request.output),
    })
}

/// Refuses what stations do not do.
///
/// # Errors
/// Names it.
pub fn check_working(task: &Task, working: Working) -> Result<(), RentalError> {
    if let Some(what) = task.beside.undone_by_stations() {
        return Err(RentalError::Infeasible(what.to_owned()));
    }
    if working == Working::default() {
        return Ok(());
    }
    let usual = batcher::named(Working::default().batcher).map_or("", |batcher| batcher.name());
    Err(RentalError::Infeasible(format!(
        "nodes with a part of the layers batch whole rounds, first come, first served, and keep no prefixes: `batcher = \"{usual}\"`, no \
         `max_tokens`, no `prefix_cache` and no `tiers`"
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
pub fn playable(task: &Task, layers: &Layers, requests: &[Request]) -> Result<Playable, RentalError> {
    let machines = machines(task, layers.tensor, requests)?;
    let Placed { ranges, flow } = &layers.placed;
    let placed = machines.deployment(&task.model.name, ranges, Some(flow))?;
    let all = machines.machines();
    let site = Site::of(&task.model, &all);
    check(&placed, &site).map_err(RentalError::refused)?;
    let pool = machines.stations(&placed)?;
    let changing = Changing { outages: Vec::new(), failures: machines.failures(&placed, 0) };
    let expected = Expected { output_tokens: EXPECTED.0 * machines.typical.output, high_water_ratio: EXPECTED.1 };
    Ok(Playable { placed, pool, changing, expected })
}

/// Plays requests in order of their arrivals.
pub fn play(task: &Task, playable: &Playable, requests: &Requests) -> Played {
    let last = requests.list.last().map_or(Time::ZERO, |request| request.arrival);
    let until = last + Span::from_seconds(hw::Seconds::new(AFTER_S));
    let run = pool::Run { requests: &requests.list, load: pool::Load::Open, warm_up: Time::ZERO, until };
    let mut paths = Flow::new(&playable.pool, playable.expected);
    seen(task, requests, &serve_stations(&playable.pool, &mut paths, &run, &playable.changing).answers)
}

/// Of the placements of every degree that Helix looks at the one that serves most within the limits when it is played: its flow does not know them.
///
/// # Errors
/// When replicas are to work as stations do not, and when no degree has a placement; the reason is the first degree's.
pub fn plan(task: &Task, trial: &Trial<'_>) -> Result<Decision<Layers>, RentalError> {
    check_working(task, trial.working)?;
    let (mut found, mut why) = (Vec::new(), None);
    for tensor in degrees(task) {
        match placements(task, tensor, &trial.requests.list) {
            Ok(all) => found.extend(all),
            Err(error) => why = why.or(Some(error)),
        }
    }
    // Of equals the largest planned flow is first.
    found.sort_by(|a, b| b.placed.flow.tokens_per_s.total_cmp(&a.placed.flow.tokens_per_s));
    let rate = |layers: Layers| {
        let playable = playable(task, &layers, &trial.requests.list)?;
        let seen = |per_s| play(task, &playable, &faster(trial.requests, per_s));
        Ok::<_, RentalError>((highest(trial.attainment_ratio, &seen).0, layers))
    };
    let found = found.into_iter().map(rate).collect::<Result<Vec<_>, _>>()?;
    let none = || RentalError::Infeasible("there is no GPU".to_owned());
    let is_other = |other: &Layers, best: &Layers| other != best;
    proof::ranked(Aim::RequestsPerS, found, |_| (), is_other).ok_or_else(|| why.unwrap_or_else(none))
}

/// The placements that Helix looks at on nodes of a degree, where it has one of its own.
fn placements(task: &Task, tensor: u32, requests: &[Request]) -> Result<Vec<Layers>, RentalError> {
    let machines = machines(task, tensor, requests)?;
    let searched = machines.place(&Placement::Searched { solver_s: 0.0 })?;
    let mut all = vec![searched];
    for other in machines.candidates()? {
        if all.iter().all(|known| known.plan.ranges != other.plan.ranges) {
            all.push(other);
        }
    }
    Ok(all.into_iter().map(|of| Layers { tensor, limit: of.limit, placed: of.plan }).collect())
}

impl Layers {
    /// Ranges in words.
    pub fn words(&self) -> String {
        format!("layers on nodes of {} GPUs: {}", self.tensor, self.placed.words())
    }
}

/// Tokens of a mean request without the first of its output, which is its prompt's.
fn tokens(requests: &[Request]) -> f64 {
    let (prompt, output) = played::means(requests);
    prompt + output - 1.0
}

/// Requests per second of a placement by its flow.
pub fn planned_per_s(layers: &Layers, requests: &[Request]) -> f64 {
    layers.placed.flow.tokens_per_s / tokens(requests)
}

/// Requests per second of all arrivals that no placement of layers on nodes of one degree passes within the target of tokens.
pub fn bound_per_s(task: &Task, requests: &[Request]) -> f64 {
    let Some(traffic) = Traffic::of_requests(requests) else { return 0.0 };
    let traffic = Traffic { token_s_max: task.tpot_s, ..traffic };
    let of_degree = |tensor: u32| {
        let Ok(machines) = machines(task, tensor, requests) else { return 0.0 };
        match machines.any_placement(&traffic) {
            Ok(bound) => bound.value / tokens(requests),
            Err(RentalError::Infeasible(_) | RentalError::OutOfMemory(_)) => 0.0,
            // A program that was not solved says nothing.
            Err(_) => f64::INFINITY,
        }
    };
    degrees(task).map(of_degree).fold(0.0, f64::max).min(task.requests_per_s)
}

#[cfg(test)]
mod tests {
    use serve::arrivals::{self, Arrivals};

    use super::super::super::inventory::{Link, Network};
    use super::super::super::throughput::Lengths;
    use super::super::super::thunderserve::{Beside, MeanLayer};
    use super::*;

    /// Llama-3-8B on two L4 and one A100 behind 40 Gb/s, with targets of which single L4s miss that per token.
    fn task(tpot_s: f64) -> Task {
        let offer = |name: &str, n| Offer::machine(hw::catalog::gpu(name).expect("listed"), n);
        let network = Network::uniform(Link { bytes_per_s: 5e9, latency_s: 1e-3 });
        let lengths = Lengths { input: hw::Tokens(500), output: hw::Tokens(100) };
        Task {
            machines: Inventory { offers: vec![offer("l4", 2), offer("a100-sxm-80g", 1)], network },
            model: engine::model::embedded("llama-3-8b").expect("embedded"),
            classes: vec![(lengths, 1.0)],
            requests_per_s: 100.0,
            ttft_s: 0.5,
            tpot_s,
            wire_bits: 16,
            beside: Beside::default(),
            kept_tokens: 0,
            mean_layer: MeanLayer::default(),
        }
    }

    /// So many that what is under way at the end is a small part.
    fn requests() -> Requests {
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 500, 100); 2000]);
        arrivals::lay(&mut requests, Arrivals::Poisson { per_s: 1.0 }, 3);
        requests
    }

    #[test]
    fn what_is_played_stays_below_the_bound_and_both_fall_with_the_target() {
        let requests = requests();
        let mut before = f64::INFINITY;
        for tpot_s in [0.2, 0.1, 0.05, 0.03] {
            let task = task(tpot_s);
            let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
            let found = plan(&task, &trial).expect("a placement");
            let (rate, bound) = (found.objective().expect("a rate"), bound_per_s(&task, &requests.list));
            assert!(rate <= bound && bound <= before, "{tpot_s}: {rate} of {bound} after {before}");
            before = bound;
        }
        // Nobody reads 16 GB in a tenth of a millisecond.
        assert_eq!(bound_per_s(&task(1e-4), &requests.list), 0.0);
    }

    #[test]
    fn nodes_of_a_machine_have_its_own_link_and_other_ways_of_working_are_refused() {
        let machines = machines(&task(0.1), 1, &requests().list).expect("nodes");
        assert_eq!((machines.inventory.offers.len(), machines.types.len()), (3, 2));
        let links = machines.cluster(super::super::super::helix::Fill::Planned).links;
        assert!(links[0][1] > links[0][2] && links[0][2] == links[2][1]);
        let why =
            check_working(&task(0.1), Working { prefix_cache: true, ..Working::default() }).expect_err("no prefixes");
        assert!(why.to_string().contains("keep no prefixes"), "{why}");
    }

    #[test]
    fn what_is_taken_serves_no_less_than_the_largest_flow_of_any_degree() {
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 500, 30); 100]);
        arrivals::lay(&mut requests, Arrivals::Poisson { per_s: 1.0 }, 3);
        let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
        for tpot_s in [0.1, 0.06] {
            let task = task(tpot_s);
            let taken = plan(&task, &trial).expect("a placement").objective().expect("a rate");
            for tensor in degrees(&task) {
                let Ok(all) = placements(&task, tensor, &requests.list) else { continue };
                let playable = playable(&task, &all[0], &requests.list).expect("a right deployment");
                let rate = highest(0.9, &|per_s| play(&task, &playable, &faster(&requests, per_s))).0;
                assert!(taken >= rate, "{taken} where the largest flow of degree {tensor} serves {rate}");
            }
        }
    }
}
