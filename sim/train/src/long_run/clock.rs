//! A run of days while it is played: work, checkpoints, failures and slow nodes, event by event. Units: seconds.

use super::slow::{Change, Spells};
use super::{CheckpointTimes, LongRun, Spent};

/// A run while it is played.
pub(super) struct Clock<'r> {
    pub(super) run: &'r LongRun,
    pub(super) times: &'r CheckpointTimes,
    pub(super) now_s: f64,
    /// The next failure.
    pub(super) strike_s: f64,
    pub(super) next: &'r mut dyn FnMut() -> f64,
    /// Type of the cards that fail.
    pub(super) struck: &'r mut dyn FnMut() -> usize,
    /// When each spare node is there, by type.
    pub(super) spares: Vec<Vec<f64>>,
    /// A checkpoint that is written behind: its work, and when it can be read.
    pub(super) written: Option<(f64, f64)>,
    /// Work that is done.
    pub(super) done_s: f64,
    /// Work that a checkpoint holds.
    pub(super) safe_s: f64,
    pub(super) spells: Option<Spells<'r>>,
    pub(super) spent: Spent,
}

impl Clock<'_> {
    /// Work up to the next checkpoint, and the checkpoint; or up to a failure, and the restart.
    pub(super) fn segment(&mut self, every_s: f64) {
        engine::stop::pause();
        self.work(every_s);
        if self.is_struck() {
            return self.restart();
        }
        // Storage that still writes the one before is waited for.
        let behind_s = self.written.map_or(0.0, |(_, ready_s)| (ready_s - self.now_s).max(0.0));
        self.spent.checkpoint_s += self.pass(behind_s + self.times.stall_s);
        if self.is_struck() {
            return self.restart();
        }
        if self.now_s < self.run.span_s {
            self.settle();
            self.written = Some((self.done_s, self.now_s + self.times.behind_s));
        }
    }

    /// Does so much work, up to the next failure or the end of the run; slow nodes make it longer and stop it.
    fn work(&mut self, work_s: f64) {
        let Some(spells) = &self.spells else {
            self.done_s += self.pass(work_s);
            return;
        };
        let mut left_s = work_s;
        let (mut pace, mut changes_s) = (spells.pace(), spells.changes_s());
        while left_s > 0.0 && self.now_s < self.run.span_s && !self.is_struck() {
            if changes_s <= self.now_s {
                self.react();
            } else {
                let passed_s = self.pass((left_s * pace).min(changes_s - self.now_s));
                let done_s = passed_s / pace;
                self.done_s += done_s;
                self.spent.slow_s += passed_s - done_s;
                left_s -= done_s;
                // What rounding leaves over is shorter than the clock tells apart, and would never end.
                if left_s < work_s * 1e-9 || passed_s == 0.0 {
                    left_s = 0.0;
                }
            }
            let spells = self.spells.as_ref().expect("there are some");
            (pace, changes_s) = (spells.pace(), spells.changes_s());
        }
    }

    /// What the job does when a node becomes slow or recovers.
    fn react(&mut self) {
        engine::stop::pause();
        let (now_s, spares) = (self.now_s, &mut self.spares);
        let mut spare = |of_type: usize, ends_s: f64| {
            let spares = &mut spares[of_type];
            let ready = spares.iter().position(|ready_s| *ready_s <= now_s);
            // The slow node is a spare one when it has recovered.
            ready.is_some_and(|at| {
                spares[at] = ends_s;
                true
            })
        };
        let change = self.spells.as_mut().expect("there are some").change(now_s, &mut spare);
        match change {
            Change::Pace => {}
            Change::Stop(stop_s) => self.spent.reacting_s += self.pass(stop_s),
            Change::Restart => {
                self.spent.reacting_s += self.pass(self.times.stall_s + self.times.behind_s);
                if !self.is_struck() && self.now_s < self.run.span_s {
                    (self.safe_s, self.written) = (self.done_s, None);
                    self.spent.reacting_s += self.pass(self.run.restart_s + self.times.restore_s);
                }
            }
        }
    }

    /// Lets so much time pass, up to the next failure or the end of the run: the time that passed.
    fn pass(&mut self, span_s: f64) -> f64 {
        let until_s = (self.now_s + span_s).min(self.run.span_s).min(self.strike_s.max(self.now_s));
        let passed_s = until_s - self.now_s;
        self.now_s = until_s;
        passed_s
    }

    fn is_struck(&self) -> bool {
        self.strike_s <= self.now_s && self.now_s < self.run.span_s
    }

    /// A checkpoint that is written by now is safe.
    fn settle(&mut self) {
        if let Some((work_s, _)) = self.written.filter(|(_, ready_s)| *ready_s <= self.now_s) {
            self.safe_s = work_s;
            self.written = None;
        }
    }

    /// Takes the job back to its last safe checkpoint and starts it again, as often as it is struck meanwhile.
    fn restart(&mut self) {
        self.settle();
        self.written = None;
        self.spent.again_s += self.done_s - self.safe_s;
        self.done_s = self.safe_s;
        while self.is_struck() {
            self.replace();
            self.spent.restart_s += self.pass(self.run.restart_s + self.times.restore_s);
        }
    }

    /// Puts nodes that are there in the places of all that fail at this moment, and waits for the last one. What fails meanwhile costs nothing more.
    fn replace(&mut self) {
        let mut ready_s = self.now_s;
        // Nodes of a lost rack fail together, and each of them needs another.
        while self.strike_s <= self.now_s {
            engine::stop::pause();
            self.spent.failures += 1.0;
            ready_s = ready_s.max(self.first_node_s());
            self.strike_s = (self.next)();
        }
        let next_s = std::mem::replace(&mut self.strike_s, f64::INFINITY);
        self.spent.waiting_s += self.pass(ready_s - self.now_s);
        self.strike_s = next_s;
        while self.strike_s <= self.now_s {
            engine::stop::pause();
            self.strike_s = (self.next)();
        }
    }

    /// Takes the first node of its type that is there when one fails now, which comes back when it is repaired: when it is there.
    fn first_node_s(&mut self) -> f64 {
        let spares = &mut self.spares[(self.struck)()];
        spares.push(self.now_s + self.run.repair_s);
        let earlier = |a: &usize, b: &usize| spares[*a].total_cmp(&spares[*b]);
        let first = (0..spares.len()).min_by(earlier).expect("one was added");
        spares.swap_remove(first)
    }
}
