//! Ways to put a model on a pool of nodes and to send requests through it.

use super::{
    Fill, Flow, FlowProblem, Machines, Placed, Range, heuristic, layouts, max_flow, petals, plan, separate, swarm,
};
use crate::deploy::RentalError;
use crate::milp::Budget;
use crate::proof::{Aim, Bound, Decision, Status};

/// Where layers lie.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// The best that is found; with seconds for the program beside the descent.
    Searched {
        /// Wall clock of the program; 0 leaves it out.
        solver_s: f64,
    },
    /// Of what the search looks at, the one that serves most when it is played; the caller plays.
    Played,
    /// Equal stages, nodes dealt to them.
    Swarm,
    /// Fastest nodes first, each where the rate is least.
    Petals,
    /// A pipeline per type of node.
    Separate,
    /// As it is said.
    Given(Vec<Range>),
}

/// How requests find their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// Helix: weights of the maximum flow, and caches that are not overfilled.
    Flow,
    /// SWARM: by recent times.
    Swarm,
    /// By chance.
    Random,
}

impl Machines {
    /// Puts the model on the nodes.
    ///
    /// # Errors
    /// When figures have no meaning, or no token gets through.
    pub fn place(&self, placement: &Placement) -> Result<Decision<Placed>, RentalError> {
        let (cluster, full) = (self.cluster(Fill::Planned), self.cluster(Fill::Full));
        full.check()?;
        match placement {
            Placement::Searched { solver_s } if *solver_s > 0.0 => {
                plan(roomy(&cluster)?, Budget::new(i32::MAX, *solver_s))
            }
            Placement::Searched { .. } | Placement::Played => heuristic(roomy(&cluster)?),
            Placement::Swarm => known(roomy(&cluster)?, swarm(&cluster)),
            Placement::Petals => known(roomy(&cluster)?, petals(&cluster)),
            // A type that cannot hold the model beside caches has to do with less cache.
            Placement::Separate => {
                let (planned, forced) = (separate(&cluster), separate(&full));
                let is_left_out = |name: &str| {
                    let of = |(node, range): (&super::Node, &Range)| node.name == name && !range.is_empty();
                    !cluster.nodes.iter().zip(&planned).any(of)
                };
                let choose = |i: usize| if is_left_out(&cluster.nodes[i].name) { forced[i] } else { planned[i] };
                known(&full, (0..cluster.nodes.len()).map(choose).collect())
            }
            Placement::Given(ranges) => known(&full, ranges.clone()),
        }
    }
}

/// The cluster, where nodes hold the model and leave the room for caches that Helix plans.
fn roomy(cluster: &FlowProblem) -> Result<&FlowProblem, RentalError> {
    let (n_held, n_layers) = (cluster.n_layers_held(), cluster.n_layers);
    if n_held >= u64::from(n_layers) {
        return Ok(cluster);
    }
    Err(RentalError::Infeasible(format!(
        "all nodes together hold {n_held} of {n_layers} layers where caches keep the room that Helix plans (half of the memory, \
         where a datasheet is all that is known); `played` and given `ranges` may take that room"
    )))
}

impl Machines {
    /// What the search looks at where caches keep the room that Helix plans, and where nodes hold as many layers as fit, each also from the other end of the
    /// model: equal flows are played differently. Each placement once.
    ///
    /// # Errors
    /// When figures have no meaning, or all nodes together cannot hold the model.
    pub fn candidates(&self) -> Result<Vec<Decision<Placed>>, RentalError> {
        let (cluster, full) = (self.cluster(Fill::Planned), self.cluster(Fill::Full));
        full.check()?;
        let planned = roomy(&cluster).map_or_else(|_| Vec::new(), looked_at);
        let mut found: Vec<Decision<Placed>> = Vec::new();
        let seen = planned.into_iter().chain(looked_at(&full));
        for ranges in seen.flat_map(|ranges| both_ways(ranges, self.n_layers)) {
            if !found.iter().any(|placed| placed.plan.ranges == ranges) {
                found.extend(known(&full, ranges));
            }
        }
        Ok(found)
    }
}

/// What the search looks at, and the chain from the last node to the first.
fn looked_at(cluster: &FlowProblem) -> Vec<Vec<Range>> {
    let tried = super::tried(cluster).into_iter().map(|placed| placed.ranges);
    tried.chain([layouts::chain_from_last(cluster)]).collect()
}

/// A layout, and the same from the other end of the model.
fn both_ways(ranges: Vec<Range>, n_layers: u32) -> [Vec<Range>; 2] {
    let mut mirrored = ranges.clone();
    for range in mirrored.iter_mut().filter(|range| !range.is_empty()) {
        *range = Range { first: n_layers - range.end, end: n_layers - range.first };
    }
    [ranges, mirrored]
}

/// A placement that nobody searched for.
fn known(cluster: &FlowProblem, ranges: Vec<Range>) -> Result<Decision<Placed>, RentalError> {
    let flow: Flow = max_flow(cluster, &ranges);
    if flow.tokens_per_s <= 0.0 {
        return Err(RentalError::Infeasible("no token gets through: no path has all layers".to_owned()));
    }
    let (rate, placed) = (flow.tokens_per_s, Placed { ranges, flow });
    let limit = super::limit(&placed);
    let bound = Bound::plain(cluster.compute_bound());
    Ok(Decision::new(placed, Aim::TokensPerS, rate).bounded(Some(bound), Status::Heuristic).limited(limit))
}
