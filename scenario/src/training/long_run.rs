//! `[failures]`, `[checkpoint]` and `[slow_nodes]`: a run of days over the steps of a scenario.

use std::ops::RangeInclusive;

use hw::Cluster;
use planner::effort;
use train::long_run::slow::{Asked, Begins, Reaction, SlowNodes};
use train::long_run::{self, Checkpoint, CheckpointMode, Failing, Failures, LongRun};
use train::straggler::Straggler;

use crate::effort::is_within_reason;
use input::diagnostic::Code;
use input::reader::{Place, Reader, Section};

/// Seconds of a year.
const YEAR: f64 = 31_536_000.0;
/// Bandwidths of storage, GB/s.
const STORAGE: RangeInclusive<f64> = 0.001..=1e6;
/// From a failure until the job runs again, seconds: assumed, as for `malleus` with restarts.
const RESTART_S: f64 = 300.0;
/// Until a node is repaired, hours: assumed.
const REPAIR_HOURS: f64 = 24.0;

/// Longest run, days.
const DAYS_MAX: f64 = 3650.0;
/// Slow nodes of a run, at most.
const SPELLS_MAX: f64 = 1e6;
/// Failures of all runs that are drawn, at most: some seconds of a core. 100,000 GPUs that fail every 50,000 hours draw 46,000 in thirty days.
const DRAWN_MAX: f64 = 5e7;
/// Words of `slow_nodes.reaction`.
const REACTIONS: [(&str, Asked); 5] = [
    ("policy", Asked::OfPolicy),
    ("none", Asked::Given(Reaction::Endure)),
    ("restart", Asked::Given(Reaction::Restart)),
    ("replan", Asked::Given(Reaction::Replan)),
    ("best", Asked::Best),
];

/// Machines of a run.
pub struct Machines {
    /// What fails of each type.
    pub failing: Vec<Failing>,
    /// Nodes of the type that has most.
    pub n_nodes: u32,
    /// Nodes of all types.
    pub n_nodes_in_all: u32,
    /// Whether other nodes work beside them: those that generate for a trainer.
    pub has_others: bool,
}

impl Machines {
    /// Of one type.
    fn of((cluster, has_others): (&Cluster, bool)) -> Self {
        let failing = vec![Failing { n_gpus: cluster.n_gpus(), gpu_mtbf_s: None }];
        Self { failing, n_nodes: cluster.n_nodes, n_nodes_in_all: cluster.n_nodes, has_others }
    }

    const fn is_one_node(&self) -> bool {
        self.failing.len() == 1 && self.n_nodes == 1 && !self.has_others
    }

    /// Refuses moments at which more nodes fail than there are.
    fn has_all_that_fail(&self, section: &mut Section<'_>, at: Place, at_s: &[f64]) {
        let n_nodes = self.n_nodes as usize;
        let crowd = at_s.chunk_by(|a, b| a == b).find(|together| together.len() > n_nodes);
        if let (Some(together), 1) = (crowd, self.failing.len()) {
            let (n, hour) = (together.len(), together[0] / long_run::hours(1.0));
            let what = format!("{n} nodes fail at hour {hour} of `failures.at_hours`, and the job has {n_nodes}");
            section.refuse(Code::OutOfRange, at, what, "a moment stands there once for every node that fails at it");
        }
    }
}

/// A run of days over machines of several types; `None` where the scenario is of steps alone.
pub fn of_types(reader: &mut Reader<'_>, machines: &Machines) -> Option<LongRun> {
    for (section, what, instead) in [
        ("failures", "failed", "gpu_mtbf_hours`, here or in each `[[group]]"),
        ("slow_nodes", "became slow", "node_hours"),
    ] {
        let at = reader.peek_in(section, "at_hours");
        if let Some((_, at)) = at.filter(|_| machines.failing.len() > 1) {
            let what =
                format!("`{section}.at_hours` does not say nodes of which type {what}, and the scenario has several");
            reader.refuse(Code::ExclusiveKeys, at, what, format!("write `{instead}`"));
        }
    }
    of_machines(reader, Some(machines), &[])
}

/// Reads all sections, of a job on a cluster that may have others beside it; `None` where the scenario is of steps alone.
pub fn long_run(reader: &mut Reader<'_>, on: Option<(&Cluster, bool)>, stragglers: &[Straggler]) -> Option<LongRun> {
    of_machines(reader, on.map(Machines::of).as_ref(), stragglers)
}

fn of_machines(reader: &mut Reader<'_>, machines: Option<&Machines>, stragglers: &[Straggler]) -> Option<LongRun> {
    let has_failures = reader.has("failures");
    let checkpoint = checkpoint(reader.section("checkpoint"), has_failures, machines);
    let slow_nodes = slow_nodes(reader.section("slow_nodes"), has_failures, !stragglers.is_empty());
    let run = failures(reader.section("failures"), checkpoint, machines, stragglers)?;
    let n_spells = slow_nodes.as_ref().zip(machines);
    let n_spells = n_spells.map_or(0.0, |(slow, on)| slow.n_spells(run.span_s, on.n_nodes_in_all));
    if n_spells > SPELLS_MAX {
        let what = format!("{n_spells:.1e} slow nodes in the run are more than {SPELLS_MAX:.0e}");
        reader.refuse(Code::TakesTooLong, None, what, "raise `slow_nodes.node_hours`");
        return None;
    }
    Some(LongRun { slow_nodes, ..run })
}

/// `[slow_nodes]`: nodes that are slow for a time in a run of days.
fn slow_nodes(mut section: Section<'_>, has_failures: bool, has_stragglers: bool) -> Option<SlowNodes> {
    if !section.is_given() {
        section.finish();
        return None;
    }
    if !has_failures {
        let what = "`[slow_nodes]` has no effect without a section `[failures]`, which makes a run of days";
        section.refuse_all(Code::NoEffect, what, "nodes that are slow in single steps are `[[stragglers]]`");
    }
    if has_failures && has_stragglers {
        let what = "`[slow_nodes]` and `[[stragglers]]` do not go together: a step beside a slow node is reckoned from one of healthy nodes";
        section.refuse_all(Code::NoEffect, what, "leave one of them out");
    }
    if section.alternatives(&["node_hours", "at_hours"]).len() != 1 {
        let what = "`[slow_nodes]` takes one of two keys: `node_hours`, the mean time between two spells of a node, and `at_hours`, when nodes became slow";
        section.refuse_all(Code::MissingKey, what, "for example `node_hours = 5000.0`");
    }
    let node_s = long_run::hours(section.some_number("node_hours", 0.001..=1e9).unwrap_or(1.0));
    let begins = match moments(&mut section, DAYS_MAX) {
        Some(at_s) => Begins::Trace { at_s },
        None => Begins::Rate { node_s },
    };
    let lasts = section.needed("lasts_hours", 0.001..=87_600.0, "for how long a node is slow, for example 6.0");
    let rate = section.needed("rate", 1.0..=1000.0, "a slow node's time over a healthy one's, for example 2.57");
    let reaction = section.one_of("reaction", Asked::OfPolicy, &REACTIONS);
    section.finish();
    Some(SlowNodes { begins, lasts_s: long_run::hours(lasts), rate, reaction })
}

fn checkpoint(mut section: Section<'_>, has_failures: bool, machines: Option<&Machines>) -> Option<Checkpoint> {
    if !section.is_given() {
        section.finish();
        return None;
    }
    if !has_failures {
        let what = "`[checkpoint]` has no effect without a section `[failures]`";
        section.refuse_all(Code::NoEffect, what, "say what fails, or leave it out");
    }
    let at = section.place("mode").flatten();
    let mode = section.one_of("mode", CheckpointMode::Asynchronous, &CheckpointMode::WORDS);
    if mode == CheckpointMode::Memory && has_failures && machines.is_some_and(Machines::is_one_node) {
        let what = "`checkpoint.mode = \"memory\"` keeps a copy in another node's memory, and there is one node";
        section.refuse(Code::OutOfRange, at, what, "`\"asynchronous\"` writes to storage behind the next steps");
    }
    let every_s = section.some_number("every_s", 0.001..=YEAR);
    let storage = if mode == CheckpointMode::Memory {
        section.idle(&["storage_gb_per_s"], "`mode = \"synchronous\"` or `\"asynchronous\"`");
        section.number("storage_gb_per_s", 1.0, STORAGE)
    } else {
        section.needed("storage_gb_per_s", STORAGE, "what all nodes together write to storage, for example 100.0")
    };
    section.finish();
    Some(Checkpoint { mode, every_s, storage_bytes_per_s: long_run::gigabytes(storage) })
}

fn failures(
    mut section: Section<'_>,
    checkpoint: Option<Checkpoint>,
    machines: Option<&Machines>,
    stragglers: &[Straggler],
) -> Option<LongRun> {
    if !section.is_given() {
        section.finish();
        return None;
    }
    if checkpoint.is_none() {
        let what =
            "`[failures]` needs a section `[checkpoint]`: without one every failure takes the run back to its start";
        section.refuse_all(Code::MissingKey, what, "for example `[checkpoint]` with `storage_gb_per_s = 100.0`");
    }
    if stragglers.iter().any(|of| of.from_step > 0 || of.until_step.is_some()) {
        let what = "`[failures]` does not go with `from_step` or `until_step` of `[[stragglers]]`: steps of a run of days all take as long";
        let help = "leave these keys out: the devices are slow for the whole run; `[slow_nodes]` has nodes that are slow for a time of such a run";
        section.refuse_all(Code::NoEffect, what, help);
    }
    let at = section.place("gpu_mtbf_hours").flatten();
    let days = section.needed("days", 0.001..=DAYS_MAX, "length of the run, for example 30.0");
    let own = machines.is_some_and(|machines| machines.failing.iter().all(|of| of.gpu_mtbf_s.is_some()));
    let n_said = section.alternatives(&["gpu_mtbf_hours", "at_hours"]).len();
    if let Some(at) = section.place("gpu_mtbf_hours").filter(|_| own) {
        let what = "`failures.gpu_mtbf_hours` changes nothing: every `[[group]]` has its own";
        section.warn(Code::NoEffect, at, what, "leave one of them out");
    }
    if n_said != 1 && !(own && n_said == 0) {
        let what = "`[failures]` takes one of two keys: `gpu_mtbf_hours`, the mean time between failures of a GPU, and `at_hours`, when nodes failed";
        section.refuse_all(Code::MissingKey, what, "for example `gpu_mtbf_hours = 50000.0`");
    }
    let gpu_mtbf_s = long_run::hours(section.some_number("gpu_mtbf_hours", 0.001..=1e9).unwrap_or(1.0));
    let of_list = section.place("at_hours").flatten();
    let failures = match moments(&mut section, days) {
        Some(at_s) => {
            machines.iter().for_each(|machines| machines.has_all_that_fail(&mut section, of_list.clone(), &at_s));
            Failures::Trace { at_s }
        }
        None => Failures::Rate { gpu_mtbf_s },
    };
    let restart_s = section.number("restart_s", RESTART_S, 0.0..=YEAR);
    let most = machines.map_or(1_000_000, |machines| u64::from(machines.n_nodes));
    let spares = section.small("spare_nodes", Some(0), 0..=most);
    let repair_s = long_run::hours(section.number("repair_hours", REPAIR_HOURS, 0.0..=87_600.0));
    let run = checkpoint.map(|checkpoint| {
        let span_s = long_run::days(days);
        LongRun { span_s, failures, restart_s, spares, repair_s, checkpoint, slow_nodes: None }
    });
    let is_begun = match run.as_ref().zip(machines) {
        Some((run, machines)) => are_drawn(&mut section, run, &machines.failing, at),
        None => true,
    };
    section.finish();
    run.filter(|_| is_begun)
}

/// Whether failures are few enough to be drawn.
fn are_drawn(section: &mut Section<'_>, run: &LongRun, failing: &[Failing], at: Place) -> bool {
    let n_drawn = run.n_drawn(failing);
    let (effort, what) = (effort::failed(n_drawn), format!("{n_drawn:.1e} failures"));
    let help = "raise `failures.gpu_mtbf_hours`: at such a rate no step is done between two failures";
    if n_drawn <= DRAWN_MAX || effort.is_beyond_reason() {
        return is_within_reason(section, effort, (at, &what, help));
    }
    let (between_s, restart_s) = (run.between_s(failing), run.restart_s);
    let what =
        format!("a failure of the job every {between_s:.2} s against a restart of {restart_s:.0} s: {what} are drawn");
    let help = format!("raise `failures.gpu_mtbf_hours`, or shorten the run: {DRAWN_MAX:.0e} are drawn at most");
    section.refuse(Code::TakesTooLong, at, what, help);
    false
}

/// Hours from the start of the run, in order and inside of it, as seconds.
fn moments(section: &mut Section<'_>, days: f64) -> Option<Vec<f64>> {
    let (place, most) = (section.place("at_hours").flatten(), days * 24.0);
    match section.some_numbers("at_hours", 0.0..=most)? {
        Ok(hours) if hours.is_sorted() => Some(hours.into_iter().map(long_run::hours).collect()),
        _ => {
            let what = format!("`{}` is not a list of hours in order", section.full("at_hours"));
            let help = format!("allowed are numbers from 0 to {most}, the length of the run");
            section.refuse(Code::OutOfRange, place, what, help);
            None
        }
    }
}
