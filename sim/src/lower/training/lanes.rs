//! Which ranks act alike and are simulated once.
//!
//! Ranks of a tensor group do the same work at the same time over links of their own, so a group is one lane. Data-parallel
//! groups with equal micro-batches are alike too; groups that an expert exchange (or ZeRO 3) joins step by step are alike
//! only as whole blocks. A test holds that folded and unfolded steps give the same times to the nanosecond; known to differ, in
//! when they happen and not in the step's length, are the exchanges of an empty micro-batch whose experts lie over several groups.

use std::collections::BTreeMap;

use super::Content;
use crate::layout::Position;
use crate::problem::Problem;
use crate::task::{Lane, LaneId};

/// What to fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Ranks that act alike become one lane.
    Alike,
    /// Every rank is a lane.
    Nothing,
}

/// A data-parallel group that is simulated, for itself and those like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneGroup {
    pub(super) dp: u32,
    multiplicity: u32,
}

/// Lanes of a step: groups × pipeline ranks × context ranks × tensor positions.
pub(super) struct Lanes {
    pub(super) groups: Vec<LaneGroup>,
    pub(super) lanes: Vec<Lane>,
    /// Tensor positions with lanes of their own: 1 when folded.
    pub(super) n_tp: u32,
    pp: u32,
    cp: u32,
}

impl Lanes {
    pub(super) fn new(problem: &Problem, contents: &[Vec<Content>], fold: Fold) -> Self {
        let layout = &problem.layout;
        let groups = match fold {
            Fold::Alike => alike(contents, problem.layout.groups_in_step()),
            Fold::Nothing => (0..layout.dp).map(|dp| LaneGroup { dp, multiplicity: 1 }).collect(),
        };
        let (n_tp, per_tp) = if fold == Fold::Alike { (1, layout.tp) } else { (layout.tp, 1) };
        let mut lanes = Vec::new();
        for group in &groups {
            for pp in 0..layout.pp {
                for cp in 0..layout.cp {
                    for tp in 0..n_tp {
                        let rank = layout.rank(Position { tp, cp, dp: group.dp, pp });
                        lanes.push(Lane {
                            rank,
                            multiplicity: group.multiplicity * per_tp,
                            group: group.dp,
                            stage: pp,
                        });
                    }
                }
            }
        }
        Self { groups, lanes, n_tp, pp: layout.pp, cp: layout.cp }
    }

    pub(super) fn id(&self, group: usize, pp: u32, cp: u32, tp: u32) -> LaneId {
        let group = u32::try_from(group).expect("groups fit u32");
        LaneId(((group * self.pp + pp) * self.cp + cp) * self.n_tp + tp)
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

/// One group per distinct block of micro-batches; a block of equal groups is one group.
fn alike(contents: &[Vec<Content>], in_step: u32) -> Vec<LaneGroup> {
    let mut seen: BTreeMap<&[Vec<Content>], usize> = BTreeMap::new();
    let mut groups: Vec<LaneGroup> = Vec::new();
    let mut at: Vec<std::ops::Range<usize>> = Vec::new();
    for (block, first_dp) in contents.chunks(in_step as usize).zip((0_u32..).step_by(in_step as usize)) {
        let index = *seen.entry(block).or_insert_with(|| {
            let begin = groups.len();
            let equal = block.iter().all(|group| *group == block[0]);
            let shown = if equal { 1 } else { in_step };
            groups.extend((0..shown).map(|offset| LaneGroup { dp: first_dp + offset, multiplicity: 0 }));
            at.push(begin..groups.len());
            at.len() - 1
        });
        let shown = u32::try_from(at[index].len()).expect("groups fit u32");
        let size = u32::try_from(block.len()).expect("groups fit u32");
        groups[at[index].clone()].iter_mut().for_each(|group| group.multiplicity += size / shown);
    }
    groups
}
