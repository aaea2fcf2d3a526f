//! A plan of renting as deployments: a deployment for each model, replicas of one GPU type each on the next GPUs of their offer, and the shares of its
//! request types as routes. Larger replicas are laid first, so that tensor groups lie in nodes.

use engine::play::Case;
use hw::Seconds;
use serve::assignment::Assignment;
use serve::check::{Site, check};
use serve::deployment::{Deployment, Lifted, Machine, Replica, Route};
use serve::drafter::OwnDrafters;
use serve::fleet::Fleet;
use serve::fleet::dynamics::Failures;
use serve::replica::Role;

use super::rates::BATCHER;
use super::{Configurations, Decided, Deployed, Question, Rated};
use crate::deploy::inventory::Offer;
use crate::deploy::{Plan, Problem, RentalError};

/// A plan that is laid, at the rates that it was made with.
#[derive(Clone, Copy)]
pub(super) struct Rents<'d> {
    pub(super) problem: &'d Problem,
    pub(super) plan: &'d Plan,
}

/// A deployment, and the configuration of each of its replicas.
struct Laid {
    deployment: Deployment,
    configurations: Vec<usize>,
}

/// The deployments of a plan, each held by the checker; none where configurations are given with their rates, which say nothing of stages.
///
/// # Errors
/// When the checker refuses one.
pub fn deployments(question: &Question, decided: &Decided) -> Result<Vec<Deployment>, RentalError> {
    Ok(laid(question, decided.rents())?.into_iter().map(|laid| laid.deployment).collect())
}

fn laid(question: &Question, of: Rents<'_>) -> Result<Vec<Laid>, RentalError> {
    let Configurations::Enumerated(all) = &question.configurations else { return Ok(Vec::new()) };
    let gpus = gpus(question, of, all);
    let machines: Vec<Machine> = question.inventory.offers.iter().map(machine).collect();
    let mut found = Vec::new();
    for (m, model) in question.models.iter().enumerate() {
        let counts = of.plan.replicas.iter().enumerate();
        let used: Vec<usize> = counts.filter(|(c, n)| **n > 0 && all[*c].model == m).map(|(c, _)| c).collect();
        if used.is_empty() {
            continue;
        }
        let n_layers = u32::try_from(model.n_layers).expect("fewer than 2^32 layers");
        let mut deployment = Deployment::new(&model.name, n_layers, machines.clone());
        for &c in &used {
            deployment.replicas.push(replica(question, of, (c, all[c]), gpus[c])?);
        }
        deployment.routes = routes(of, m, &used);
        let site = Site::of(model, &machines);
        check(&deployment, &site).map_err(RentalError::refused)?;
        found.push(Laid { deployment, configurations: used });
    }
    Ok(found)
}

/// An offer as equal GPUs in nodes.
fn machine(offer: &Offer) -> Machine {
    Machine {
        name: offer.name.clone(),
        gpu: offer.gpu.as_ref().map_or_else(|| offer.name.clone(), |gpu| gpu.name.clone()),
        n_gpus: offer.n_available,
        gpus_per_node: offer.n_gpus_per_machine,
        memory: offer.gpu.as_ref().map(|gpu| gpu.memory),
        ..offer.terms()
    }
}

/// The first GPU of every configuration on its offer: the largest replicas first, of equals the first.
fn gpus(question: &Question, of: Rents<'_>, all: &[Deployed]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&c| std::cmp::Reverse(all[c].parallel.tp * all[c].parallel.pp));
    let mut taken = vec![0_u32; question.inventory.offers.len()];
    let mut first = vec![0; all.len()];
    for c in order.into_iter().filter(|&c| of.plan.replicas[c] > 0) {
        let Deployed { offer, parallel, .. } = all[c];
        first[c] = taken[offer].next_multiple_of(parallel.tp);
        taken[offer] = first[c] + of.plan.replicas[c] * parallel.tp * parallel.pp;
    }
    first
}

/// The replicas of a configuration, from a GPU on.
fn replica(
    question: &Question,
    of: Rents<'_>,
    (c, deployed): (usize, Deployed),
    first: u32,
) -> Result<Replica, RentalError> {
    let cluster = question.cluster(deployed);
    let model = &question.models[deployed.model];
    let drafters = OwnDrafters::of(model);
    let config = question.replica.config((model, &drafters), &cluster, deployed.parallel);
    let limits = question.replica.limits(&config).map_err(|refused| RentalError::Infeasible(refused.why))?;
    let copies = of.plan.replicas[c];
    let name = &of.problem.configurations[c].name;
    let machine = u32::try_from(deployed.offer).expect("few offers");
    let lifted = Lifted { name, copies, role: Role::Both, config, limits, batcher: BATCHER, usd_per_gpu_hour: None };
    Ok(lifted.on(machine, first))
}

/// Shares of the request types of a model, whose classes count those that have requests.
fn routes(of: Rents<'_>, model: usize, used: &[usize]) -> Vec<Route> {
    let demands = of.problem.demands.iter().enumerate();
    let asked = demands.filter(|(_, demand)| demand.model == model && demand.requests > 0.0);
    let mut routes = Vec::new();
    for (class, (w, _)) in (0..).zip(asked) {
        let shares: Vec<f64> = used.iter().map(|&c| of.plan.shares[c][w].max(0.0)).collect();
        let total: f64 = shares.iter().sum();
        let taken = (0..).zip(&shares).filter(|(_, share)| **share > 0.0);
        routes.extend(taken.map(|(at, share)| Route { class, replicas: vec![at], share_ratio: share / total }));
    }
    routes
}

/// The deployments of a plan side by side as one fleet, a group for each configuration; requests go by the shares of their type.
///
/// # Errors
/// When the checker refuses one.
pub(super) fn fleet(question: &Question, of: Rents<'_>, (rated, case): (&Rated, Case)) -> Result<Fleet, RentalError> {
    let (mut fleet, mut used) = (Fleet::default(), Vec::new());
    for laid in laid(question, of)? {
        let tables = laid.configurations.iter().map(|&c| rated.table(c, case).clone()).collect();
        let played = serve::deployment::fleet(&laid.deployment, tables, 0.0);
        fleet.groups.extend(played.map_err(|why| RentalError::Refused(why.to_string()))?.groups);
        used.extend(laid.configurations);
    }
    let shares = &of.plan.shares;
    let of_type = |w: usize| used.iter().map(|&c| shares[c][w]).collect();
    fleet.assignment =
        Assignment { shares: (0..question.demands.len()).map(of_type).collect(), ..Assignment::default() };
    Ok(fleet)
}

/// The same fleet, whose replicas are lost as their offers say.
pub(super) fn losing(mut fleet: Fleet, question: &Question, of: Rents<'_>, seed: u64) -> Result<Fleet, RentalError> {
    let used = laid(question, of)?.into_iter().flat_map(|laid| laid.configurations);
    for (group, c) in fleet.groups.iter_mut().zip(used) {
        group.failures = failures(of.problem, c, seed);
    }
    Ok(fleet)
}

/// Losses of a configuration: those of the first of its offers that are taken back.
fn failures(problem: &Problem, c: usize, seed: u64) -> Option<Failures> {
    let taken = problem.configurations[c].n_gpus.iter().zip(&problem.inventory.offers).filter(|(n, _)| **n > 0);
    let losses = taken.filter_map(|(_, offer)| offer.losses).next()?;
    Some(Failures { mtbf: Seconds::new(losses.mtbf_s), mttr: Seconds::new(losses.mttr_s), seed })
}
