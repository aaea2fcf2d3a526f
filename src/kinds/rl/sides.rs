//! What ways of a step share: trainers that are planned and played, and engines with their answers. Each is made once.

use std::time::Instant;

use engine::cost::Source;
use engine::play::Case;
use engine::stop;
use engine::verdict::Refused;
use hw::topology::Topology;
use planner::Decision;
use planner::rl::once::Once;
use planner::rl::trained::Trained;
use planner::rl::{floor, split};
use planner::train::chosen;
use rayon::prelude::*;
use reports::Measured;
use rl::generation::Generated;
use rl::step::{self, Engines, Step};

use crate::kinds::training;
use scenario::rl::{Rl, Way};
use scenario::serving::played;

/// Sides of a scenario by their way of planning or serving, and the nodes that train.
pub(super) struct Sides<'s> {
    pub(super) scenario: &'s Rl,
    trainers: Once<(usize, Option<u32>), Result<Known, Refused>>,
    engines: Once<(String, Option<u32>), Result<Serves, Refused>>,
}

/// Engines, how they generate a batch alone at every end of the costs, and the weakest source of their times.
type Serves = (Engines, [Generated; 3], Source);

/// A trainer, and how long it took to find.
pub(super) type Known = (Trained, Measured);

impl<'s> Sides<'s> {
    /// Nothing made yet.
    pub(super) fn of(scenario: &'s Rl) -> Self {
        let nodes = scenario.train_nodes();
        let with_nodes = || scenario.ways.iter().flat_map(|way| nodes.iter().map(move |n| (way, *n)));
        Self {
            scenario,
            trainers: Once::of(with_nodes().map(|(way, n)| (way.policy, n))),
            engines: Once::of(with_nodes().map(|(way, n)| (way.serves.clone(), n))),
        }
    }

    /// Finds trainers on as many nodes as they are given, before anybody waits for one: a search for their layouts spreads over threads.
    pub(super) fn ahead(self) -> Self {
        let (policies, nodes) = (0..self.scenario.training.policies.len(), self.scenario.stated_nodes());
        let all: Vec<_> = policies.flat_map(|policy| nodes.iter().map(move |n| (policy, *n))).collect();
        all.into_par_iter().for_each(|(policy, n_nodes)| {
            stop::unless_over(|| self.trainer(policy, n_nodes).is_ok());
        });
        self
    }

    /// The trainer of a policy.
    pub(super) fn trainer(&self, policy: usize, n_nodes: Option<u32>) -> Result<&Known, Refused> {
        self.trainers.get(&(policy, n_nodes), || known(self.scenario, policy, n_nodes)).as_ref().map_err(Clone::clone)
    }

    /// The step of a way, and the weakest source of its times.
    pub(super) fn step(&self, way: &Way, n_nodes: Option<u32>) -> Result<(Step, Source), Refused> {
        let scenario = self.scenario;
        let cost = scenario.trainer(n_nodes)?.costs();
        let (trained, _) = self.trainer(way.policy, n_nodes)?;
        let served = self.engines.get(&(way.serves.clone(), n_nodes), || serves(scenario, way, n_nodes));
        let (engines, alone, source) = served.as_ref().map_err(Clone::clone)?;
        let (rules, trainer) = (scenario.rules(way), trained.trainer(cost.as_ref()));
        let step = step::step(&scenario.rollouts, &scenario.answers, &rules, &trainer, (engines, alone))?;
        Ok((step, trained.metrics.source.max(*source)))
    }

    /// Nodes that train under a way, where they are searched for.
    pub(super) fn split(&self, way: &Way) -> Result<Decision<u32>, Refused> {
        let nodes: Vec<u32> = (1..self.scenario.training.problem.cluster.n_nodes).collect();
        let floors: Vec<_> = nodes.par_iter().map(|n| floor_s(self.scenario, way, *n)).collect();
        let step_s = |at: &usize| Ok(self.step(way, Some(nodes[*at]))?.0.expected_s());
        split::decide(&floors, &mut |positions| positions.par_iter().map(step_s).collect())
    }
}

/// Plans and plays a trainer.
fn known(scenario: &Rl, policy: usize, n_nodes: Option<u32>) -> Result<Known, Refused> {
    let begun = Instant::now();
    let trains = scenario.trainer(n_nodes)?;
    let (cost, topology) = (trains.costs(), Topology::of(&trains.problem.cluster));
    let decided = training::run::decide(&trains, &trains.policies[policy], cost.as_ref(), &topology)?;
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let trained = Trained::of(decided, &scenario.rules, cost.as_ref())?;
    let simulate_wall_s = begun.elapsed().as_secs_f64() - planner_wall_s;
    Ok((trained, Measured { planner_wall_s, simulate_wall_s }))
}

/// The engines of a way and how they generate, with the weakest source of their times.
fn serves(scenario: &Rl, way: &Way, n_trains: Option<u32>) -> Result<Serves, Refused> {
    let side = scenario.engines(way, n_trains)?;
    way.serving(&side).sound()?;
    let (engines, source) = scenario::rl::engines(&side, way.serving(&side));
    let alone = step::alone(&scenario.rollouts, &scenario.answers, &engines);
    Ok((engines, alone, source))
}

/// What a step with so many nodes that train takes at least.
fn floor_s(scenario: &Rl, way: &Way, n_trains: u32) -> Result<f64, Refused> {
    let (trains, side) = (scenario.trainer(Some(n_trains))?, scenario.engines(way, Some(n_trains))?);
    let (problem, _) = chosen::problem(&trains.problem, &trains.policies[way.policy])?;
    let training_s = floor::training_s(&scenario.rules, &problem, trains.costs().as_ref());
    let (choice, group) = (way.serving(&side), &side.groups[0]);
    choice.sound()?;
    let (config, cost, (fleet, _)) =
        (side.deployment_of(choice, group), side.costs(group), played::fleet(&side, choice, Case::Expected));
    let served = fleet.groups.first().filter(|_| side.is_bounded(choice) && choice.operation.drafts.is_none());
    let of = |served| floor::generation_s(&config, cost.as_ref(), served, &scenario.answers);
    Ok(floor::step_s(&scenario.rules(way), served.map_or(0.0, of), training_s))
}
