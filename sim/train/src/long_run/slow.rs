//! Nodes that are slow for a time in a run of days, and what a job does about them.
//!
//! A slow node computes so many times slower, and recovers after a time. The job goes on at the pace of its slowest node, or restarts with a
//! spare node in its place, or changes its plan to one that fits the speeds (Malleus, arXiv:2410.13333) and back. Without a spare a restarted job
//! goes on without the node, at the pace of those that are left, and takes it back when it recovers. Several nodes slow a changed plan
//! down by as much each. A change of plan comes some steps late, as the job measures first: until then it goes on with the plan that it has. Units: seconds.

use std::collections::VecDeque;
use std::ops::Range;

/// When nodes become slow.
#[derive(Clone, Debug, PartialEq)]
pub enum Begins {
    /// At random: mean time between two spells of one node.
    Rate {
        /// Seconds.
        node_s: f64,
    },
    /// At these moments of the run, in order, each another node.
    Trace {
        /// Seconds.
        at_s: Vec<f64>,
    },
}

hw::words! {
    /// What a job does about a slow node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reaction: word {
        /// It goes on at the slow node's pace.
        Endure = "none",
        /// It saves, and restarts without the node.
        Restart = "restart",
        /// It changes its plan to one that fits, without a restart.
        Replan = "replan",
    }
}

/// Which reaction is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The policy's own.
    OfPolicy,
    /// This one.
    Given(Reaction),
    /// The one under which most of the run is useful.
    Best,
}

/// What steps take beside slow nodes, and among which reactions the job chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Steps.
    pub slowed: Slowed,
    /// Reactions, at least one.
    pub reactions: Vec<Reaction>,
}

/// Nodes that are slow for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowNodes {
    /// When.
    pub begins: Begins,
    /// For how long.
    pub lasts_s: f64,
    /// Time of a slow node for some computation over a healthy one's, at least 1.
    pub rate: f64,
    /// What the job does.
    pub reaction: Asked,
}

impl SlowNodes {
    /// Spells in a run of so many seconds on so many nodes, about.
    pub fn n_spells(&self, span_s: f64, n_nodes: u32) -> f64 {
        match &self.begins {
            Begins::Rate { node_s } => span_s * f64::from(n_nodes) / node_s,
            Begins::Trace { at_s } => hw::real(at_s.len() as u64),
        }
    }
}

/// What steps take beside slow nodes, over a healthy step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowed {
    /// With the plan for healthy nodes.
    pub endured: f64,
    /// With a plan that fits one slow node; `None` where there is no such plan.
    pub replanned: Option<Replanned>,
}

/// Steps with a plan that fits one slow node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replanned {
    /// Over a healthy step.
    pub pace: f64,
    /// How long the change to it takes, and the one back.
    pub pause_s: f64,
    /// Work of the steps in which a change of speeds is measured, among healthy nodes.
    pub late_s: f64,
}

impl Slowed {
    /// What a job can do.
    pub fn reactions(&self) -> impl Iterator<Item = Reaction> {
        let can = |reaction: &Reaction| *reaction != Reaction::Replan || self.replanned.is_some();
        [Reaction::Endure, Reaction::Restart, Reaction::Replan].into_iter().filter(can)
    }
}

/// Slow nodes while a run is played.
pub(super) struct Spells<'r> {
    pub(super) reaction: Reaction,
    slowed: Slowed,
    lasts_s: f64,
    n_nodes: u32,
    /// When the next one becomes slow.
    begins_s: f64,
    next: Box<dyn FnMut() -> f64 + 'r>,
    /// Type of the cards of the node that becomes slow.
    of_type: Box<dyn FnMut() -> usize>,
    /// When those that are slow recover, and whether the job has left them out without a spare.
    ends: VecDeque<(f64, bool)>,
    /// Slow times that have begun.
    n_begun: usize,
    /// When the job has measured changes of speeds for which it changes its plan, and which nodes were slow behind each.
    measured: VecDeque<(f64, Slow)>,
    /// Slow nodes that its plan fits.
    planned: Slow,
}

/// Nodes that are slow at one time, as slow times are counted: each lasts as long, so the first to begin is the first to end.
type Slow = Range<usize>;

/// What happens to a job when a node becomes slow or recovers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// Nothing but its pace.
    Pace,
    /// It saves and restarts.
    Restart,
    /// It stops for so long, to change its plan.
    Stop(f64),
}

impl<'r> Spells<'r> {
    pub(super) fn new(
        (reaction, slowed): (Reaction, Slowed),
        (lasts_s, n_nodes): (f64, u32),
        mut next: Box<dyn FnMut() -> f64 + 'r>,
    ) -> Self {
        assert!(slowed.endured >= 1.0 && slowed.replanned.is_none_or(|plan| plan.pace >= 1.0), "{slowed:?}");
        let begins_s = next();
        let (ends, measured, of_type) = (VecDeque::new(), VecDeque::new(), Box::new(|| 0));
        Self { reaction, slowed, lasts_s, n_nodes, begins_s, next, of_type, ends, n_begun: 0, measured, planned: 0..0 }
    }

    /// The same of nodes of several types.
    pub(super) fn on_types(self, of_type: Box<dyn FnMut() -> usize>) -> Self {
        Self { of_type, ..self }
    }

    /// When a node next becomes slow or recovers.
    fn turns_s(&self) -> f64 {
        self.ends.front().map_or(self.begins_s, |(ends_s, _)| ends_s.min(self.begins_s))
    }

    /// The same, or when the job has measured it.
    pub(super) fn changes_s(&self) -> f64 {
        self.measured.front().map_or_else(|| self.turns_s(), |(measured_s, _)| measured_s.min(self.turns_s()))
    }

    /// Time that work takes, over that among healthy nodes.
    pub(super) fn pace(&self) -> f64 {
        let Slowed { endured, replanned } = self.slowed;
        match (self.reaction, replanned) {
            (Reaction::Endure, _) if !self.ends.is_empty() => endured,
            // The plan does not fit all that are slow.
            (Reaction::Replan, Some(_)) if !self.ends.is_empty() && self.n_begun > self.planned.end => endured,
            (Reaction::Replan, Some(Replanned { pace, .. })) => {
                let n = hw::real(self.planned.len() as u64);
                (1.0 + n * (pace - 1.0)).min(endured.max(pace))
            }
            (Reaction::Restart, _) => {
                let n_out = self.ends.iter().filter(|(_, is_out)| *is_out).count();
                let n_left = f64::from(self.n_nodes) - hw::real(n_out as u64);
                f64::from(self.n_nodes) / n_left.max(1.0)
            }
            _ => 1.0,
        }
    }

    /// Takes the change of this moment; `spare` gives the place of a node of a type that is left out to a spare one of its type, if one is there: the node itself is a
    /// spare one from a moment on.
    pub(super) fn change(&mut self, now_s: f64, spare: &mut dyn FnMut(usize, f64) -> bool) -> Change {
        if self.measured.front().is_some_and(|(measured_s, _)| *measured_s <= self.turns_s()) {
            let (_, slow) = self.measured.pop_front().expect("one is measured");
            return self.replan(slow);
        }
        let recovers = self.ends.front().is_some_and(|(ends_s, _)| *ends_s <= self.begins_s);
        let is_out = if recovers { self.recovered() } else { self.begun(spare) };
        match self.reaction {
            Reaction::Replan => self.measure(now_s),
            Reaction::Restart if is_out || !recovers => Change::Restart,
            _ => Change::Pace,
        }
    }

    /// Takes back the node that recovers: whether the job has left it out without a spare.
    fn recovered(&mut self) -> bool {
        self.ends.pop_front().expect("one recovers").1
    }

    /// Has the next node become slow: whether the job leaves it out without a spare.
    fn begun(&mut self, spare: &mut dyn FnMut(usize, f64) -> bool) -> bool {
        let ends_s = self.begins_s + self.lasts_s;
        self.begins_s = (self.next)();
        let is_out = self.reaction == Reaction::Restart && !spare((self.of_type)(), ends_s);
        self.ends.push_back((ends_s, is_out));
        self.n_begun += 1;
        is_out
    }

    /// Begins to measure a change of speeds, with the plan that runs.
    fn measure(&mut self, now_s: f64) -> Change {
        let slow = self.n_begun - self.ends.len()..self.n_begun;
        let late_s = self.slowed.replanned.map_or(0.0, |plan| plan.late_s);
        if late_s == 0.0 {
            return self.replan(slow);
        }
        self.measured.push_back((now_s + late_s * self.pace(), slow));
        Change::Pace
    }

    /// Stops for a plan that fits these nodes.
    fn replan(&mut self, slow: Slow) -> Change {
        self.planned = slow;
        self.slowed.replanned.map_or(Change::Pace, |plan| Change::Stop(plan.pause_s))
    }
}
