//! A run of days on mixed GPUs: rates of failure add up over the types, and a node that fails needs another of its own type. Units: seconds, dollars.

use engine::verdict::Refused;

use super::{Group, MixedJob, MixedStep, Pipelines};
use crate::long_run::{Cards, Failing, Job};

impl Group {
    /// What fails where so many of its GPUs compute.
    pub const fn failing(&self, n_gpus: u32) -> Failing {
        Failing { n_gpus, gpu_mtbf_s: self.gpu_mtbf_s }
    }
}

impl MixedJob {
    /// A played step with what comes of a run of days over such steps, where one is asked for.
    ///
    /// # Errors
    /// When nothing of the run is kept.
    pub fn over_days(&self, plan: &Pipelines, mut step: MixedStep) -> Result<MixedStep, Refused> {
        let (Some(run), Some(problem)) = (&self.run, &self.problem) else { return Ok(step) };
        let step_s = step.metrics["iteration_time_s"];
        let has_price = self.groups.iter().any(|group| group.usd_per_gpu_hour > 0.0);
        let taken = self.groups.iter().enumerate().map(|(index, group)| (group, plan.n_gpus_of(index)));
        let of_group = |(group, n_gpus): (&Group, u32)| Cards {
            failing: group.failing(n_gpus),
            ..Cards::of(&group.cluster, n_gpus, has_price.then_some(group.usd_per_gpu_hour))
        };
        let job = Job {
            problem,
            step_s,
            tokens: hw::real(self.batch.tokens()),
            cards: taken.filter(|(_, n_gpus)| *n_gpus > 0).map(of_group).collect(),
            n_writers: plan.n_gpus(),
            usd_per_step: step.metrics.get("link_usd_per_step").copied().unwrap_or(0.0),
        };
        let lasted = run.kept(&job, None)?;
        let interval_s = step.intervals["iteration_time_s"];
        step.intervals.extend(lasted.intervals(step_s, interval_s));
        step.metrics.extend(lasted.values);
        step.why = format!("{}; {}", step.why, lasted.why);
        Ok(step)
    }
}
