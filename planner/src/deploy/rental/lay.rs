//! A plan of renting as deployments: a deployment for each model, replicas of one GPU type each on the next GPUs of their offer, and the shares of its
//! request types as routes. A replica lies in one machine, larger ones are laid first; copies that do not lie end to end are entries of their own.

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

/// A deployment, and the configuration of each of its replicas with the part of its copies that lies there.
struct Laid {
    deployment: Deployment,
    configurations: Vec<(usize, f64)>,
}

/// Copies that lie end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    configuration: usize,
    first: u32,
    copies: u32,
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
    let runs = runs(of, all)?;
    let machines: Vec<Machine> = question.inventory.offers.iter().map(machine).collect();
    let mut found = Vec::new();
    for (m, model) in question.models.iter().enumerate() {
        let used: Vec<Run> = runs.iter().copied().filter(|run| all[run.configuration].model == m).collect();
        if used.is_empty() {
            continue;
        }
        let part = |run: &Run| f64::from(run.copies) / f64::from(of.plan.replicas[run.configuration]);
        let used: Vec<(Run, f64)> = used.iter().map(|run| (*run, part(run))).collect();
        let n_layers = u32::try_from(model.n_layers).expect("fewer than 2^32 layers");
        let mut deployment = Deployment::new(&model.name, n_layers, machines.clone());
        for (run, _) in &used {
            deployment.replicas.push(replica(question, of, all[run.configuration], *run)?);
        }
        let used: Vec<(usize, f64)> = used.iter().map(|(run, part)| (run.configuration, *part)).collect();
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

/// Where the replicas of every configuration lie on their offer, by configuration.
fn runs(of: Rents<'_>, all: &[Deployed]) -> Result<Vec<Run>, RentalError> {
    let mut runs: Vec<Run> = Vec::new();
    for (offer, offered) in of.problem.inventory.offers.iter().enumerate() {
        let laid = of.problem.laid(offer, &of.plan.replicas).ok_or_else(|| {
            let (name, machine) = (&offered.name, offered.n_gpus_per_machine);
            RentalError::Infeasible(format!("replicas do not fit the machines of `{name}`, {machine} GPUs each"))
        })?;
        for (c, firsts) in laid.into_iter().enumerate() {
            let size = all[c].parallel.tp * all[c].parallel.pp;
            for first in firsts {
                match runs.last_mut() {
                    Some(run) if run.configuration == c && run.first + run.copies * size == first => run.copies += 1,
                    _ => runs.push(Run { configuration: c, first, copies: 1 }),
                }
            }
        }
    }
    runs.sort_by_key(|run| (run.configuration, run.first));
    Ok(runs)
}

/// Copies of a configuration that lie end to end.
fn replica(question: &Question, of: Rents<'_>, deployed: Deployed, run: Run) -> Result<Replica, RentalError> {
    let Run { configuration: c, first, copies } = run;
    let cluster = question.cluster(deployed);
    let model = &question.models[deployed.model];
    let drafters = OwnDrafters::of(model);
    let config = question.replica.config((model, &drafters), &cluster, deployed.parallel);
    let limits = question.replica.limits(&config).map_err(|refused| RentalError::Infeasible(refused.why))?;
    let name = &of.problem.configurations[c].name;
    let machine = u32::try_from(deployed.offer).expect("few offers");
    let lifted = Lifted { name, copies, role: Role::Both, config, limits, batcher: BATCHER, usd_per_gpu_hour: None };
    Ok(lifted.on(machine, first))
}

/// Shares of the request types of a model, whose classes count those that have requests.
fn routes(of: Rents<'_>, model: usize, used: &[(usize, f64)]) -> Vec<Route> {
    let demands = of.problem.demands.iter().enumerate();
    let asked = demands.filter(|(_, demand)| demand.model == model && demand.requests > 0.0);
    let mut routes = Vec::new();
    for (class, (w, _)) in (0..).zip(asked) {
        let shares: Vec<f64> = used.iter().map(|&(c, part)| of.plan.shares[c][w].max(0.0) * part).collect();
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
        let tables = laid.configurations.iter().map(|&(c, _)| rated.table(c, case).clone()).collect();
        let played = serve::deployment::fleet(&laid.deployment, tables, 0.0);
        fleet.groups.extend(played.map_err(|why| RentalError::Refused(why.to_string()))?.groups);
        used.extend(laid.configurations);
    }
    let shares = &of.plan.shares;
    let of_type = |w: usize| used.iter().map(|&(c, part): &(usize, f64)| shares[c][w] * part).collect();
    fleet.assignment =
        Assignment { shares: (0..question.demands.len()).map(of_type).collect(), ..Assignment::default() };
    Ok(fleet)
}

/// The same fleet, whose replicas are lost as their offers say.
pub(super) fn losing(mut fleet: Fleet, question: &Question, of: Rents<'_>, seed: u64) -> Result<Fleet, RentalError> {
    let used = laid(question, of)?.into_iter().flat_map(|laid| laid.configurations);
    for (group, (c, _)) in fleet.groups.iter_mut().zip(used) {
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
