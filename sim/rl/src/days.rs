//! A run of days over steps of reinforcement learning.
//!
//! A failure of any GPU, of the trainer's or the engines', takes the job down, and it begins again behind the last checkpoint. Checkpoints stand behind whole
//! steps, so a batch that was being generated or trained is made again (verl-project/verl, `verl/trainer/ppo/ray_trainer.py`: one controller
//! saves every `save_freq` steps, and `resume_mode = "auto"` loads the last). Where batches are ahead of the trainer, the first update behind a restart waits for
//! a whole batch. Units: seconds.

use engine::verdict::Refused;
use train::long_run::{Cards, Job, Lasted, LongRun};
use train::problem::Problem;

use crate::step::Step;

/// The run over such steps of so many tokens, whose trainer writes checkpoints of a problem.
///
/// # Errors
/// When nothing of the run is kept.
pub fn lasted(run: &LongRun, step: &Step, tokens: f64, problem: &Problem) -> Result<Lasted, Refused> {
    with_first_wait(run, step).kept(&job(step, tokens, problem), None)
}

fn with_first_wait(run: &LongRun, step: &Step) -> LongRun {
    LongRun { restart_s: run.restart_s + first_waits_s(step), ..run.clone() }
}

/// Engines may have GPUs of another price.
fn job<'p>(step: &Step, tokens: f64, problem: &'p Problem) -> Job<'p> {
    let cards = vec![Cards::of(&problem.cluster, step.n_gpus(), None)];
    Job { problem, step_s: step.expected_s(), tokens, cards, n_writers: problem.cluster.n_gpus(), usd_per_step: 0.0 }
}

/// How much longer the first step takes, before which no batch was made ahead.
fn first_waits_s(step: &Step) -> f64 {
    let [_, parts, _] = &step.parts;
    (parts.in_turn() - step.expected_s()).max(0.0)
}
