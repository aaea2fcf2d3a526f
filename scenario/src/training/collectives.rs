//! `cluster.collectives` in training: groups inside of a node are measured, and groups over several nodes have some of the ways.

use engine::cost::profile::Profile;
use engine::task::Collective;
use hw::{GroupShape, Rank};
use planner::train::policies;
use planner::train::policy::Reads;
use train::Problem;
use train::layout::{Position, Zero};
use train::optimizer::Rule;

use super::PolicyChoice;
use crate::network::{Exchanges, Exchanging, SUMS, Written};
use input::reader::Reader;

/// Warns of a way of collectives that no exchange of the policies' layouts takes. Not all exchanges over several nodes are known where layouts are searched for, or
/// the other side of a step of reinforcement learning is on the same machine.
pub fn warn(
    reader: &mut Reader<'_>,
    written: &Written,
    (problem, profile): (&Problem, Option<&Profile>),
    is_open: bool,
    choices: &[PolicyChoice],
) {
    let cluster = &problem.cluster;
    if cluster.n_domains() == 1 {
        return written.warn_inside(reader, cluster, profile);
    }
    if is_open || choices.iter().any(|choice| has_own_groups(choice, problem)) {
        return;
    }
    let machine = |choice: &PolicyChoice| -> Exchanging<'_> { (cluster, profile, exchanges(&choice.problem(problem))) };
    let machines: Vec<Exchanging<'_>> = choices.iter().map(machine).collect();
    written.warn_of_collectives(reader, &machines);
}

/// Whether a policy makes groups by itself, or degrees let groups begin anywhere in a node.
fn has_own_groups(choice: &PolicyChoice, problem: &Problem) -> bool {
    let layout = choice.problem(problem).layout;
    let degrees = [layout.tp, layout.cp, layout.dp, layout.pp, layout.ep, problem.cluster.domain()];
    !degrees.into_iter().all(u32::is_power_of_two)
        || policies::named(&choice.policy).is_none_or(|policy| policy.reads() != Reads::Room)
}

/// Sums and gathers of a problem's groups, and of parts of them.
fn exchanges(problem: &Problem) -> Exchanges {
    let (layout, cluster, model) = (&problem.layout, &problem.cluster, &problem.model);
    let states = of_states(problem);
    let mut all = Exchanges::default()
        .and(cluster, lies(problem, [layout.tp, 1, 1]), &SUMS)
        .and(cluster, lies(problem, [1, layout.cp, 1]), &SUMS)
        .and(cluster, lies(problem, [1, layout.cp, layout.dp]), &states);
    if layout.ep > 1 {
        let of_experts = [&states[..], &SUMS[1..]].concat();
        all = all.and(cluster, lies(problem, [layout.tp, layout.cp, layout.dp]), &of_experts);
    }
    if model.tied && layout.pp > 1 {
        let ends = [0, layout.pp - 1].map(|pp| layout.rank(Position { pp, ..Position::default() }));
        all = all.and(cluster, cluster.shape_of(&ends), &SUMS[..1]);
    }
    all
}

/// How gradients, parameters and products of an optimizer travel between replicas.
fn of_states(problem: &Problem) -> Vec<Collective> {
    let layout = &problem.layout;
    let is_summed = layout.zero == Zero::Off || layout.replicate > 1 || problem.execution.optimizer.rule == Rule::Muon;
    SUMS[usize::from(!is_summed)..].to_vec()
}

/// How the group of the first ranks of so many tensor, context and data positions lies on the nodes.
fn lies(problem: &Problem, [tp, cp, dp]: [u32; 3]) -> GroupShape {
    let of_data = (0..dp).flat_map(|dp| (0..cp).flat_map(move |cp| (0..tp).map(move |tp| (tp, cp, dp))));
    let rank = |(tp, cp, dp)| problem.layout.rank(Position { tp, cp, dp, ..Position::default() });
    problem.cluster.shape_of(&of_data.map(rank).collect::<Vec<Rank>>())
}
