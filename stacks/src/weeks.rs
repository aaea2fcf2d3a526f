//! A run of days in files of training: how often and how a checkpoint is written. What fails, and how long a restart takes, is no flag: a remark.
//!
//! Intervals are whole steps of the predicted time. Megatron-LM's flags: `megatron/training/config/training_config.py`. Bridge has keys of the same names
//! (`CheckpointConfig`).

use train::Problem;
use train::long_run::{CheckpointMode, Job, LongRun};

/// A run of days over steps that take so long.
#[derive(Clone, Debug, PartialEq)]
pub struct Weeks {
    /// The run.
    pub run: LongRun,
    /// A step, seconds.
    pub step_s: f64,
}

impl Weeks {
    /// Steps between two checkpoints.
    fn n_steps(&self, problem: &Problem) -> u64 {
        hw::whole(self.run.steps_between(&Job::of_training(problem, self.step_s)))
    }
}

/// Flags of checkpoints of Megatron-LM.
pub(crate) fn flags(weeks: Option<&Weeks>, problem: &Problem) -> Option<Vec<(&'static str, Option<String>)>> {
    let weeks = weeks?;
    let interval = ("save-interval", Some(weeks.n_steps(problem).to_string()));
    let behind = (weeks.run.checkpoint.mode == CheckpointMode::Asynchronous).then_some(("async-save", None));
    Some([("save", Some("checkpoints".to_owned())), interval].into_iter().chain(behind).collect())
}

/// Remarks about the rest; `says_flags` where a file has the flags above.
pub(crate) fn remarks(weeks: Option<&Weeks>, problem: &Problem, says_flags: bool) -> Vec<String> {
    let Some(weeks) = weeks else { return Vec::new() };
    let run = &weeks.run;
    let mut found = Vec::new();
    if !says_flags {
        let (n, mode) = (weeks.n_steps(problem), run.checkpoint.mode.word());
        found.push(format!(
            "The prediction writes a checkpoint every {n} steps ({mode}), which this file does not say."
        ));
    } else if run.checkpoint.mode == CheckpointMode::Memory {
        found.push(
            "The prediction keeps checkpoints in the memory of another node, which no flag here says.".to_owned(),
        );
    }
    let days = run.span_s / train::long_run::days(1.0);
    found.push(format!(
        "The prediction of {days} days has failures, restarts of {} s and {} spare nodes, which no file says.",
        run.restart_s, run.spares
    ));
    found
}
