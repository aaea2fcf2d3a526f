//! A run of days: failures, checkpoints, restarts and spare nodes, over steps that all take as long.
//!
//! The clock goes from event to event, so a run of a month takes no longer to simulate than it has checkpoints and failures. Every second of the
//! run is useful, done again, in a checkpoint, in a restart, or in wait of a node. A node that fails takes the whole job down; a spare one takes
//! its place, and it comes back when it is repaired. Failures strike while a job restarts as well.
//!
//! The interval between checkpoints is given, or the one of least expected loss (Daly, Future Generation Computer Systems 22, 2006): a segment
//! of work τ behind which a checkpoint stalls δ takes M e^(R/M) (e^((τ+δ)/M) − 1) in the mean, with failures every M and restarts of R. Young's
//! √(2 δ M) is where it ends for rare failures. Units: seconds.

mod clock;
mod job;
pub mod slow;
#[cfg(test)]
mod slow_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use clock::Clock;
use engine::random;
pub use job::{Cards, Failing, Job};
use slow::{Begins, Beside, Reaction, SlowNodes, Slowed, Spells};

use crate::layout::Layout;
use crate::memory::{all_adapters, bytes_per_parameter};
use crate::problem::Problem;
use crate::stage::{no_matrices, stages};
use engine::verdict::Refused;

/// Share of a step by which a quotient of seconds may be off.
const ROUNDING: f64 = 1e-9;
/// Runs that are drawn where failures are random; figures are their means.
const DRAWS: u64 = 32;

/// Hours as seconds.
pub fn hours(hours: f64) -> f64 {
    hours * 3600.0
}

/// Days as seconds.
pub fn days(days: f64) -> f64 {
    hours(days * 24.0)
}

/// Gigabytes per second as bytes per second.
pub fn gigabytes(per_second: f64) -> f64 {
    per_second * 1e9
}

hw::words! {
    /// How a checkpoint is written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CheckpointMode: word {
        /// The job stops until storage has it.
        Synchronous = "synchronous",
        /// The job stops until host memory has it; storage gets it behind.
        Asynchronous = "asynchronous",
        /// The job stops until host memory has it; the memory of another node gets it behind (Gemini, SOSP 2023).
        Memory = "memory",
    }
}

/// Checkpoints of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    /// How they are written.
    pub mode: CheckpointMode,
    /// Work between two of them; `None` for the best.
    pub every_s: Option<f64>,
    /// Bandwidth of the storage, bytes per second.
    pub storage_bytes_per_s: f64,
}

/// When nodes fail.
#[derive(Clone, Debug, PartialEq)]
pub enum Failures {
    /// At random: mean time between failures of a GPU, with its share of the node around it.
    Rate {
        /// Seconds.
        gpu_mtbf_s: f64,
    },
    /// At these moments of the run, in order.
    Trace {
        /// Seconds.
        at_s: Vec<f64>,
    },
}

/// A run of days.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRun {
    /// How long it is.
    pub span_s: f64,
    /// When nodes fail.
    pub failures: Failures,
    /// From a failure until the job has started again and reads its checkpoint.
    pub restart_s: f64,
    /// Nodes that stand by, of each type of card.
    pub spares: u32,
    /// Until a node that failed is a spare again.
    pub repair_s: f64,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
    /// Nodes that are slow for a time.
    pub slow_nodes: Option<SlowNodes>,
}

/// What a checkpoint costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointTimes {
    /// How long the job stops for one.
    pub stall_s: f64,
    /// From then until it can be read.
    pub behind_s: f64,
    /// Reading it.
    pub restore_s: f64,
}

/// Where the seconds of a run went; they add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Steps that were not lost.
    pub useful_s: f64,
    /// Steps that a failure took back.
    pub again_s: f64,
    /// In checkpoints.
    pub checkpoint_s: f64,
    /// Restarting and reading.
    pub restart_s: f64,
    /// In wait of a node.
    pub waiting_s: f64,
    /// Longer steps beside slow nodes.
    pub slow_s: f64,
    /// Saving, restarting and changing plans because of them.
    pub reacting_s: f64,
    /// Failures that took the job down.
    pub failures: f64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Lasted {
    /// Contract keys.
    pub values: BTreeMap<String, f64>,
    /// Share of the run that is useful, the least and the most of all draws.
    pub goodput: [f64; 2],
    /// What costs most, in words.
    pub why: String,
}

/// Bytes of a checkpoint: parameters as they are trained, and the optimizer's states. Of adapters they and their states alone are saved (huggingface/peft,
/// `get_peft_model_state_dict`; NeMo's PEFT callback leaves frozen weights out).
pub fn checkpoint_bytes(problem: &Problem) -> f64 {
    let (execution, all) = (&problem.execution, hw::real(problem.model.n_parameters()));
    let [element, adam] = bytes_per_parameter(problem);
    if let Some([parameters, element]) = all_adapters(problem) {
        return parameters * (element + adam);
    }
    // Tables and norms have Adam under every rule. Each is saved once.
    let uncut = Problem { layout: Layout { tp: 1, ..problem.layout }, ..problem.clone() };
    let tables: f64 = stages(&uncut).iter().map(|stage| no_matrices(&uncut, stage)).sum();
    let of_layers = execution.optimizer.bytes_per_parameter(execution.framework, execution.optimizer.rule);
    all * element + tables * adam + (all - tables) * of_layers
}

/// Times of a checkpoint of a job, every GPU with an equal part of it: the slowest type sets the pace. What goes to storage crosses the host's memory and
/// the network, so it takes as long as the slowest of the three.
pub fn checkpoint_times(job: &Job<'_>, checkpoint: &Checkpoint) -> CheckpointTimes {
    let bytes = checkpoint_bytes(job.problem);
    let of_gpu = bytes / f64::from(job.n_writers);
    let slowest_s = |of: fn(&Cards) -> f64| job.cards.iter().map(|cards| of_gpu / of(cards)).fold(0.0, f64::max);
    let copied_s = slowest_s(|cards| cards.host_bandwidth.get());
    let sent_s = slowest_s(|cards| cards.nic_bandwidth.get());
    let stored_s = (bytes / checkpoint.storage_bytes_per_s).max(copied_s).max(sent_s);
    match checkpoint.mode {
        CheckpointMode::Synchronous => CheckpointTimes { stall_s: stored_s, behind_s: 0.0, restore_s: stored_s },
        CheckpointMode::Asynchronous => CheckpointTimes { stall_s: copied_s, behind_s: stored_s, restore_s: stored_s },
        CheckpointMode::Memory => CheckpointTimes { stall_s: copied_s, behind_s: sent_s, restore_s: sent_s + copied_s },
    }
}

/// The interval of least expected time per work, but no shorter than `least_s`.
pub fn best_interval_s(stall_s: f64, between_s: f64, least_s: f64) -> f64 {
    // The best one solves e^x (1 − x) = e^(−δ/M) for x = τ/M: the left side falls from 1 to 0 between 0 and 1.
    let wanted = libm::exp(-stall_s / between_s);
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if libm::exp(middle) * (1.0 - middle) > wanted { low = middle } else { high = middle }
    }
    (low * between_s).max(least_s)
}

/// Time that so many seconds of work and checkpoint take in the mean, with failures every `between_s`, each with a restart (Daly 2006).
fn segment_s(segment_s: f64, restart_s: f64, between_s: f64) -> f64 {
    between_s * libm::exp(restart_s / between_s) * libm::expm1(segment_s / between_s)
}

/// Tokens of a step, the mean of all that the workload has.
fn tokens_per_step(problem: &Problem) -> f64 {
    let tokens: f64 = problem.workload.lengths.iter().map(|&length| hw::real(length)).sum();
    tokens / count(problem.workload.n_steps())
}

impl LongRun {
    /// Mean time between failures of a whole job on such cards; endless where none is in the trace.
    pub fn between_s(&self, failing: &[Failing]) -> f64 {
        self.failures.between_s(failing, self.span_s)
    }

    /// Failures that are drawn in all runs, about.
    pub fn n_drawn(&self, failing: &[Failing]) -> f64 {
        match self.failures {
            Failures::Rate { .. } => hw::real(DRAWS) * self.span_s / self.between_s(failing),
            Failures::Trace { .. } => 0.0,
        }
    }

    /// The best interval between two checkpoints, and the least: one stands behind a whole step, and begins when the one before it is safe.
    fn best_and_least_s(&self, job: &Job<'_>) -> (f64, f64) {
        let times = checkpoint_times(job, &self.checkpoint);
        let between_s = self.between_s(&job.failing());
        let least_s = job.step_s.max(times.behind_s);
        let best_s =
            if between_s.is_finite() { best_interval_s(times.stall_s, between_s, least_s) } else { self.span_s };
        (best_s, least_s)
    }

    /// Whole steps between two checkpoints: those that are asked for, else the best.
    pub fn steps_between(&self, job: &Job<'_>) -> f64 {
        let ((best_s, least_s), step_s) = (self.best_and_least_s(job), job.step_s);
        match self.checkpoint.every_s {
            Some(given_s) => (given_s / step_s).round().max(1.0),
            // Below the least, every checkpoint would wait for the one before.
            None => (best_s / step_s).round().max((least_s / step_s - ROUNDING).ceil()),
        }
    }

    /// What comes of the run over steps of a job, as `play` has it.
    ///
    /// # Errors
    /// When nothing of the run is kept.
    pub fn kept(&self, job: &Job<'_>, beside: Option<&Beside>) -> Result<Lasted, Refused> {
        if let Some(why) = self.hopeless(job) {
            return Err(Refused::infeasible(why));
        }
        let lasted = self.play(job, beside);
        if lasted.useful() > 0.0 {
            return Ok(lasted);
        }
        Err(Refused::infeasible(format!("nothing of the run is kept: {}", lasted.why)))
    }

    /// Seconds in which a job does so much work behind a checkpoint in the mean, without waits for nodes: Daly's closed form.
    fn segment_with_failures_s(&self, job: &Job<'_>, every_s: f64) -> f64 {
        let between_s = self.between_s(&job.failing());
        let times = checkpoint_times(job, &self.checkpoint);
        let all_s = every_s + times.stall_s;
        if between_s.is_finite() { segment_s(all_s, self.restart_s + times.restore_s, between_s) } else { all_s }
    }

    /// Share of the run that is useful in the mean, by Daly's closed form. Without spare nodes each failure waits for its repair besides.
    pub fn useful_share(&self, job: &Job<'_>) -> f64 {
        let every_s = self.steps_between(job) * job.step_s;
        let wait_s = if self.spares == 0 { self.repair_s } else { 0.0 };
        let n_failures = every_s / self.between_s(&job.failing());
        every_s / (self.segment_with_failures_s(job, every_s) + n_failures * wait_s)
    }

    /// Tokens of a run that are kept for a dollar in the mean, by the same closed form; `None` where a price is not known.
    pub fn tokens_per_usd(&self, job: &Job<'_>) -> Option<f64> {
        self.per_usd(job, self.useful_share(job))
    }

    /// Tokens that are kept in a second and for a dollar at most over steps that take as long. Without a price there is no end to the latter.
    pub fn most_kept(&self, job: &Job<'_>) -> [f64; 2] {
        let share = self.up_share(job);
        [share * job.tokens / job.step_s, self.per_usd(job, share).unwrap_or(f64::INFINITY)]
    }

    /// Share of the run in which no failure keeps the job from its work, in the mean of the draws that are played: no more of the run is useful. Checkpoints,
    /// work that is done again and slow nodes are left out, and so is the time in which a checkpoint is read, which is not that of every layout.
    fn up_share(&self, job: &Job<'_>) -> f64 {
        // A slow node may have a spare one's place, and then others wait at other times.
        let repair_s = if self.slow_nodes.is_some() { 0.0 } else { self.repair_s };
        let run = Self { repair_s, ..self.clone() };
        let times = CheckpointTimes { stall_s: 0.0, behind_s: 0.0, restore_s: 0.0 };
        let n_draws = if matches!(self.failures, Failures::Rate { .. }) { DRAWS } else { 1 };
        let up_s = |draw| {
            let (mut next, mut struck) = (run.strikes(job, draw), job.struck(&run, draw));
            let spent = run.spent_on(f64::INFINITY, &times, (&mut *next, &mut *struck, job.cards.len()), None);
            spent.useful_s + spent.again_s
        };
        (0..n_draws).map(up_s).sum::<f64>() / hw::real(n_draws) / self.span_s
    }

    /// Tokens that are kept for a dollar where such a share of the run is useful.
    fn per_usd(&self, job: &Job<'_>, useful_share: f64) -> Option<f64> {
        let n_steps = self.span_s * useful_share / job.step_s;
        Some(n_steps * job.tokens / job.usd(self, n_steps)?)
    }

    /// Why less than one step is kept, in words, where failures at random come much faster than the job restarts. It is Daly's closed form, so nothing is drawn.
    /// Waits for nodes and slow nodes would only add to it.
    fn hopeless(&self, job: &Job<'_>) -> Option<String> {
        let Failures::Rate { .. } = self.failures else { return None };
        let (between_s, every_s) = (self.between_s(&job.failing()), self.steps_between(job) * job.step_s);
        let restart_s = self.restart_s + checkpoint_times(job, &self.checkpoint).restore_s;
        let kept_s = self.span_s * every_s / self.segment_with_failures_s(job, every_s);
        (between_s < self.span_s && kept_s < job.step_s).then(|| {
            format!(
                "a failure every {} against a restart of {} and {} of work between two checkpoints: less than one step of the run is kept",
                seconds(between_s),
                seconds(restart_s),
                seconds(every_s)
            )
        })
    }

    /// Plays the run over steps of a job, which take so much longer beside slow nodes: under the reaction with which most is
    /// useful, of those that the job chooses from.
    ///
    /// # Panics
    /// When there is no reaction to choose.
    pub fn play(&self, job: &Job<'_>, beside: Option<&Beside>) -> Lasted {
        let Some(Beside { slowed, reactions }) = beside else { return self.played(job, None) };
        let all = reactions.iter().map(|&reaction| self.played(job, Some((reaction, *slowed))));
        // The first of equal ones, which does least.
        let better = |a: Lasted, b: Lasted| if b.useful() > a.useful() { b } else { a };
        all.reduce(better).expect("a job can always go on")
    }

    fn played(&self, job: &Job<'_>, slow: Option<(Reaction, Slowed)>) -> Lasted {
        let Job { problem, step_s, .. } = *job;
        let times = checkpoint_times(job, &self.checkpoint);
        let (best_s, _) = self.best_and_least_s(job);
        let every_s = self.steps_between(job) * step_s;
        let is_drawn = matches!(self.failures, Failures::Rate { .. })
            || self.slow_nodes.as_ref().is_some_and(|slow| matches!(slow.begins, Begins::Rate { .. }));
        let n_draws = if is_drawn { DRAWS } else { 1 };
        let drawn = |draw| {
            let spells = slow.map(|slow| self.spells(job, draw, slow));
            let (mut next, mut struck) = (self.strikes(job, draw), job.struck(self, draw));
            self.spent_on(every_s, &times, (&mut *next, &mut *struck, job.cards.len()), spells)
        };
        let all: Vec<Spent> = (0..n_draws).map(drawn).collect();
        let mut lasted = Lasted::of(&all, self.span_s);
        if let Some((reaction, slowed)) = slow {
            lasted.say(reaction, slowed, &mean(&all), self.span_s);
        }
        let Spent { useful_s, again_s, .. } = mean(&all);
        let tokens = useful_s / step_s * job.tokens;
        if let Some(usd) = job.usd(self, (useful_s + again_s) / step_s) {
            lasted.values.insert("run_cost_usd".to_owned(), usd);
            if tokens > 0.0 {
                lasted.values.insert("run_cost_usd_per_mtok".to_owned(), usd / (tokens / 1e6));
                lasted.values.insert("run_tokens_per_usd".to_owned(), tokens / usd);
            }
        }
        let more = [
            ("run_tokens_per_s", tokens / self.span_s),
            ("run_steps", useful_s / step_s),
            ("checkpoint_interval_s", every_s),
            ("checkpoint_best_interval_s", best_s),
            ("checkpoint_stall_s", times.stall_s),
            ("checkpoint_bytes", checkpoint_bytes(problem)),
        ];
        lasted.values.extend(more.map(|(key, value)| (key.to_owned(), value)));
        lasted
    }

    /// Moments of failures from the start, endlessly many where they are drawn.
    fn strikes(&self, job: &Job<'_>, draw: u64) -> Box<dyn FnMut() -> f64 + '_> {
        match &self.failures {
            Failures::Trace { at_s } => {
                let mut rest = at_s.iter();
                Box::new(move || rest.next().copied().unwrap_or(f64::INFINITY))
            }
            Failures::Rate { .. } => {
                let between_s = self.between_s(&job.failing());
                let mut stream = random::stream(job.problem.seed, "failures").branch(draw);
                let mut at_s = 0.0;
                Box::new(move || {
                    at_s += stream.exponential() * between_s;
                    at_s
                })
            }
        }
    }

    /// Slow nodes of one run.
    fn spells(&self, job: &Job<'_>, draw: u64, slow: (Reaction, Slowed)) -> Spells<'_> {
        let SlowNodes { begins, lasts_s, .. } = self.slow_nodes.as_ref().expect("there are some");
        let n_nodes = job.cards.iter().map(Cards::n_nodes).sum();
        let next: Box<dyn FnMut() -> f64> = match begins {
            Begins::Trace { at_s } => {
                let mut rest = at_s.iter();
                Box::new(move || rest.next().copied().unwrap_or(f64::INFINITY))
            }
            Begins::Rate { node_s } => {
                let mut stream = random::stream(job.problem.seed, "slow nodes").branch(draw);
                let mut at_s = 0.0;
                Box::new(move || {
                    at_s += stream.exponential() * node_s / f64::from(n_nodes);
                    at_s
                })
            }
        };
        Spells::new(slow, (*lasts_s, n_nodes), next).on_types(job.slowed(draw))
    }

    /// Where the seconds of one run go on cards of one type.
    #[cfg(test)]
    fn spent(
        &self,
        every_s: f64,
        times: &CheckpointTimes,
        next: &mut dyn FnMut() -> f64,
        spells: Option<Spells<'_>>,
    ) -> Spent {
        self.spent_on(every_s, times, (next, &mut || 0, 1), spells)
    }

    /// Where the seconds of one run go, with moments of failures and the types of cards that fail.
    fn spent_on(
        &self,
        every_s: f64,
        times: &CheckpointTimes,
        (next, struck, n_types): (&mut dyn FnMut() -> f64, &mut dyn FnMut() -> usize, usize),
        spells: Option<Spells<'_>>,
    ) -> Spent {
        let mut clock = Clock {
            run: self,
            times,
            now_s: 0.0,
            strike_s: next(),
            next,
            struck,
            spares: vec![vec![0.0; self.spares as usize]; n_types],
            written: None,
            done_s: 0.0,
            safe_s: 0.0,
            spells,
            spent: Spent::default(),
        };
        while clock.now_s < self.span_s {
            clock.segment(every_s);
        }
        Spent { useful_s: clock.done_s, ..clock.spent }
    }
}

impl Lasted {
    /// Intervals of a run whose step takes from so many seconds to so many: of the share that is useful over all draws, and of what is kept, where the slowest
    /// step meets the worst draw at one end.
    pub fn intervals(&self, step_s: f64, [low_s, high_s]: [f64; 2]) -> BTreeMap<String, [f64; 2]> {
        let useful = self.useful();
        let of =
            |key: &str, ends: [f64; 2]| self.values.get(key).map(|value| (key.to_owned(), ends.map(|end| value * end)));
        let mut intervals = BTreeMap::from([("run_goodput_ratio".to_owned(), self.goodput)]);
        if useful > 0.0 {
            let [worst, best] = self.goodput.map(|share| share / useful);
            let kept = [worst * step_s / high_s, best * step_s / low_s];
            let in_proportion = ["run_tokens_per_s", "run_tokens_per_usd", "run_steps"];
            intervals.extend(in_proportion.iter().filter_map(|key| of(key, kept)));
            let dollars = of("run_cost_usd_per_mtok", [1.0 / kept[1], 1.0 / kept[0]]);
            intervals.extend(dollars.filter(|_| worst > 0.0));
        }
        intervals
    }

    /// Share of the run that is useful.
    pub fn useful(&self) -> f64 {
        self.values["run_goodput_ratio"]
    }

    /// What slow nodes cost, and what the job does about them.
    fn say(&mut self, reaction: Reaction, slowed: Slowed, spent: &Spent, span_s: f64) {
        let values = [
            ("run_slow_ratio", spent.slow_s / span_s),
            ("run_reacting_ratio", spent.reacting_s / span_s),
            ("slow_step_ratio", slowed.endured),
        ];
        self.values.extend(values.map(|(key, value)| (key.to_owned(), value)));
        if let Some(plan) = slowed.replanned {
            self.values.insert("replanned_step_ratio".to_owned(), plan.pace);
            self.values.insert("replan_s".to_owned(), plan.pause_s);
        }
        self.why = format!(
            "{}; slow nodes (reaction `{}`) cost {}, the reaction {}",
            self.why,
            reaction.word(),
            percent(spent.slow_s / span_s),
            percent(spent.reacting_s / span_s)
        );
    }

    fn of(all: &[Spent], span_s: f64) -> Self {
        let Spent { useful_s, again_s, checkpoint_s, restart_s, waiting_s, slow_s, reacting_s, failures } = mean(all);
        let lost = [
            ("slow nodes", slow_s),
            ("reactions to slow nodes", reacting_s),
            ("work done again", again_s),
            ("checkpoints", checkpoint_s),
            ("restarts", restart_s),
            ("waits for a node", waiting_s),
        ];
        let most = lost.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("some of them");
        let useful = all.iter().map(|spent| spent.useful_s / span_s);
        let goodput = useful.fold([f64::INFINITY, 0.0], |[least, most], share| [least.min(share), most.max(share)]);
        let values = [
            ("run_goodput_ratio", useful_s / span_s),
            ("run_again_ratio", again_s / span_s),
            ("run_checkpoint_ratio", checkpoint_s / span_s),
            ("run_restart_ratio", restart_s / span_s),
            ("run_waiting_ratio", waiting_s / span_s),
            ("run_failures", failures),
        ];
        let why = format!(
            "of the run {} is useful; {} cost most, {}",
            percent(useful_s / span_s),
            most.0,
            percent(most.1 / span_s)
        );
        Self { values: values.map(|(key, value)| (key.to_owned(), value)).into(), goodput, why }
    }
}

/// Seconds in words, short ones with digits enough to tell them from none.
fn seconds(s: f64) -> String {
    match s {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 0.01 => format!("{s:.2} s"),
        s => format!("{s:.1e} s"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn count(n: usize) -> f64 {
    hw::real(n as u64)
}

/// Mean over draws.
fn mean(all: &[Spent]) -> Spent {
    let of = |part: fn(&Spent) -> f64| all.iter().map(part).sum::<f64>() / count(all.len());
    Spent {
        useful_s: of(|spent| spent.useful_s),
        again_s: of(|spent| spent.again_s),
        checkpoint_s: of(|spent| spent.checkpoint_s),
        restart_s: of(|spent| spent.restart_s),
        waiting_s: of(|spent| spent.waiting_s),
        slow_s: of(|spent| spent.slow_s),
        reacting_s: of(|spent| spent.reacting_s),
        failures: of(|spent| spent.failures),
    }
}
