//! Which ranks act alike and are simulated once.
//!
//! Ranks of a tensor group do the same work at the same time over links of their own, so a group is one lane. Data-parallel
//! groups with equal micro-batches are alike too; groups that an expert exchange (or ZeRO 3) joins step by step are alike
//! only as whole blocks. Groups with stragglers at other places are not alike, nor are those that lie otherwise on leaves with narrow links above. A lane
//! is as slow as its slowest rank. A test holds that folded and unfolded steps give the same times to the nanosecond; known to differ, in
//! when they happen and not in the step's length, are the exchanges of an empty micro-batch whose experts lie over several groups. Where an expert group
//! over several data-parallel groups lies on two leaves and those like it on one, the first one speaks for all.

use std::collections::BTreeMap;

use hw::{Fabric, Rank};

use super::Content;
use crate::layout::Position;
use crate::problem::Problem;
use crate::straggler::Rates;
use engine::task::{Lane, LaneId};

/// What to fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Ranks that act alike become one lane.
    Alike,
    /// Every rank is a lane.
    Nothing,
}

/// A data-parallel group that is simulated, for itself and those like it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaneGroup {
    pub(super) dp: u32,
    /// All that it stands for, itself among them.
    alike: Vec<u32>,
}

/// Lanes of a step: groups × pipeline ranks × context ranks × tensor positions.
pub(super) struct Lanes {
    pub(super) groups: Vec<LaneGroup>,
    pub(super) lanes: Vec<Lane>,
    /// By lane: most of the ranks that it stands for below one PCIe switch. They share its link to the host, so their copies take turns.
    copies_in_turn: Vec<u32>,
    /// Tensor positions with lanes of their own: 1 when folded.
    pub(super) n_tp: u32,
    pp: u32,
    cp: u32,
}

impl Lanes {
    pub(super) fn new(problem: &Problem, contents: &[Vec<Content>], step_index: usize, fold: Fold) -> Self {
        let (layout, rates) = (&problem.layout, problem.rates(step_index));
        let groups = match fold {
            Fold::Alike => alike(contents, &signs_of_groups(problem, &rates), problem.layout.groups_in_step()),
            Fold::Nothing => (0..layout.dp).map(|dp| LaneGroup { dp, alike: vec![dp] }).collect(),
        };
        // Stages that are placed one by one have tensor groups of different size.
        let folds_tp = fold == Fold::Alike || !problem.execution.places.is_empty();
        let n_tp = if folds_tp { 1 } else { layout.tp };
        let (mut lanes, mut copies_in_turn) = (Vec::new(), Vec::new());
        for group in &groups {
            for pp in 0..layout.pp {
                for cp in 0..layout.cp {
                    for tp in 0..n_tp {
                        let own_tp = problem
                            .execution
                            .places
                            .get(pp as usize)
                            .map_or(layout.tp, |ranks| u32::try_from(ranks.len()).expect("ranks fit u32"));
                        let members = if folds_tp { 0..own_tp } else { tp..tp + 1 };
                        let rank = |tp| problem.rank(Position { tp, cp, dp: group.dp, pp });
                        let of_group = |&dp: &u32| members.clone().map(move |tp| Position { tp, cp, dp, pp });
                        copies_in_turn.push(below_one_switch(problem, group.alike.iter().flat_map(of_group)));
                        lanes.push(Lane {
                            rank: rank(tp),
                            multiplicity: size(&group.alike) * if folds_tp { own_tp } else { 1 },
                            group: group.dp,
                            stage: pp,
                            rate: rates.slowest(members.map(rank)),
                        });
                    }
                }
            }
        }
        Self { groups, lanes, copies_in_turn, n_tp, pp: layout.pp, cp: layout.cp }
    }

    pub(super) fn id(&self, group: usize, pp: u32, cp: u32, tp: u32) -> LaneId {
        let group = u32::try_from(group).expect("groups fit u32");
        LaneId(((group * self.pp + pp) * self.cp + cp) * self.n_tp + tp)
    }

    /// Ranks of a lane whose copies to and from the host take turns.
    pub(super) fn copies_in_turn(&self, lane: LaneId) -> u32 {
        self.copies_in_turn[lane.index()]
    }

    pub(super) fn position(&self, group: usize, pp: u32, cp: u32, tp: u32) -> Position {
        Position { tp, cp, dp: self.groups[group].dp, pp }
    }

    pub(super) fn at_pipeline_rank(&self, pp: u32) -> impl Iterator<Item = LaneId> + '_ {
        (0..self.groups.len()).flat_map(move |group| {
            (0..self.cp).flat_map(move |cp| (0..self.n_tp).map(move |tp| self.id(group, pp, cp, tp)))
        })
    }
}

/// Most of some ranks that one PCIe switch joins to their host.
fn below_one_switch(problem: &Problem, positions: impl Iterator<Item = Position>) -> u32 {
    let n = problem.cluster.gpus_per_switch;
    if n < 2 {
        return 1;
    }
    let mut of_switches: BTreeMap<u32, u32> = BTreeMap::new();
    positions.for_each(|position| *of_switches.entry(problem.rank(position).0 / n).or_default() += 1);
    of_switches.into_values().max().unwrap_or(1)
}

fn size(groups: &[u32]) -> u32 {
    u32::try_from(groups.len()).expect("groups fit u32")
}

/// What sets data-parallel groups apart besides micro-batches: rates of their ranks, as bits, where devices straggle; and leaves of their ranks, counted
/// from the group's first, where links above leaves are narrow.
fn signs_of_groups(problem: &Problem, rates: &Rates) -> Vec<Vec<u64>> {
    let mut of_groups = vec![Vec::new(); problem.layout.dp as usize];
    let cluster = &problem.cluster;
    let is_narrow = cluster.oversubscription > 1.0 && matches!(cluster.fabric, Fabric::FatTree { .. });
    if !problem.execution.places.is_empty() || (rates.is_healthy() && !is_narrow) {
        return of_groups;
    }
    for rank in (0..problem.layout.n_ranks()).map(Rank) {
        let dp = problem.position(rank).dp;
        let signs = &mut of_groups[dp as usize];
        if !rates.is_healthy() {
            signs.push(rates.of(rank).to_bits());
        }
        if is_narrow {
            let first = problem.rank(Position { dp, ..Position::default() });
            signs.push(u64::from(cluster.leaf_of(rank).abs_diff(cluster.leaf_of(first))));
        }
    }
    of_groups
}

/// Micro-batches and signs of groups that are alike only as a whole.
type Block<'a> = (&'a [Vec<Content>], &'a [Vec<u64>]);

/// One group per distinct block of micro-batches and signs; a block of equal groups is one group.
fn alike(contents: &[Vec<Content>], signs: &[Vec<u64>], in_step: u32) -> Vec<LaneGroup> {
    let mut seen: BTreeMap<Block<'_>, usize> = BTreeMap::new();
    let mut groups: Vec<LaneGroup> = Vec::new();
    let mut at: Vec<std::ops::Range<usize>> = Vec::new();
    let blocks = contents.chunks(in_step as usize).zip(signs.chunks(in_step as usize));
    for ((block, own), first_dp) in blocks.zip((0_u32..).step_by(in_step as usize)) {
        let index = *seen.entry((block, own)).or_insert_with(|| {
            let begin = groups.len();
            let equal = block.iter().all(|group| *group == block[0]) && own.iter().all(|of| *of == own[0]);
            let shown = if equal { 1 } else { in_step };
            groups.extend((0..shown).map(|offset| LaneGroup { dp: first_dp + offset, alike: Vec::new() }));
            at.push(begin..groups.len());
            at.len() - 1
        });
        let shown = &mut groups[at[index].clone()];
        // A group that stands for a block of equal ones stands for each of it.
        let n_each = block.len() / shown.len();
        for (dp, offset) in (first_dp..).zip(0..block.len()) {
            shown[offset / n_each].alike.push(dp);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ContextExchange, Layout, Zero};
    use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
    use crate::problem::Execution;
    use engine::cost::roofline::Roofline;
    use engine::play::{Case, Machine, simulate};

    /// Three tensor groups of two nodes each, three nodes on a leaf: the one in the middle lies on both leaves.
    #[test]
    fn a_group_on_two_leaves_is_not_like_those_on_one() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let fabric = Fabric::FatTree { nodes_per_leaf: 3 };
        let whole = engine::model::embedded("gpt-7b").expect("embedded");
        let sequential = Layout::data_and_context(3, 1, Zero::Off, ContextExchange::Gather);
        let problem = |oversubscription: f64| Problem {
            model: engine::Model { n_layers: 2, ..whole.clone() },
            cluster: hw::Cluster { fabric, oversubscription, ..hw::catalog::cluster(&gpu, 6, 8) },
            layout: Layout { tp: 16, ..sequential },
            workload: crate::Workload { batch_size: 3, lengths: vec![1024; 3], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 1024,
            execution: Execution::default(),
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 1,
        };
        let group = |sequence: u32| {
            let placement = Placement { sequence, from: 0, tokens: 1024, place: Place::Local(0) };
            vec![MicroBatch { sequences: vec![placement], ..MicroBatch::default() }]
        };
        let played = |problem: &Problem, fold: Fold| {
            let plan = Plan::new("test", problem, vec![Step::of_groups((0..3).map(group).collect())]);
            let graph = super::super::lower_folded(problem, &plan, 0, fold);
            let (topology, cost) = (hw::topology::Topology::of(&problem.cluster), Roofline::new(&problem.cluster));
            let (memory_bytes, case) = (u64::MAX, Case::Expected);
            let machine = Machine { cost: &cost, topology: &topology, memory_bytes, case, speed_changes: &[] };
            let engine::Outcome::Done(timeline) = simulate(&graph, &machine) else { panic!("it ends") };
            (graph.lanes.iter().map(|lane| lane.multiplicity).collect::<Vec<_>>(), timeline.span())
        };
        let (wide, narrow) = (problem(1.0), problem(8.0));
        assert_eq!(played(&wide, Fold::Alike).0, [48]);
        let (lanes, span) = played(&narrow, Fold::Alike);
        assert_eq!(lanes, [32, 16]);
        assert!(span > played(&wide, Fold::Alike).1);
        assert_eq!(span, played(&narrow, Fold::Nothing).1);
    }
}
