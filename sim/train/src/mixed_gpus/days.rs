//! A run of days on mixed GPUs: rates of failure add up over the types, and a node that fails needs another of its own type. Units: seconds, dollars.

use engine::verdict::Refused;

use super::{Group, MixedJob, MixedStep, Pipelines};
use crate::long_run::slow::Beside;
use crate::long_run::{Cards, Failing, Job, Lasted, LongRun};

impl Group {
    /// What fails where so many of its GPUs compute.
    pub const fn failing(&self, n_gpus: u32) -> Failing {
        Failing { n_gpus, gpu_mtbf_s: self.gpu_mtbf_s }
    }
}

impl MixedJob {
    /// The steps of a plan as they go on for days, on so many GPUs of every group; `None` where no run is asked for.
    fn for_days(&self, n_gpus: &[u32], step_s: f64, link_usd: f64) -> Option<(&LongRun, Job<'_>)> {
        let (run, problem) = self.run.as_ref().zip(self.problem.as_ref())?;
        let has_price = self.groups.iter().any(|group| group.usd_per_gpu_hour > 0.0);
        let of_group = |(group, &n_gpus): (&Group, &u32)| Cards {
            failing: group.failing(n_gpus),
            ..Cards::of(&group.cluster, n_gpus, has_price.then_some(group.usd_per_gpu_hour))
        };
        let job = Job {
            problem,
            step_s,
            tokens: hw::real(self.batch.tokens()),
            cards: self.groups.iter().zip(n_gpus).filter(|(_, n_gpus)| **n_gpus > 0).map(of_group).collect(),
            n_writers: n_gpus.iter().sum(),
            usd_per_step: link_usd,
        };
        Some((run, job))
    }

    /// What comes of a run of days over steps of a plan, which has so many GPUs of every group and pays so many dollars for its links, beside nodes that are slow
    /// for a time; `None` where no run is asked for.
    ///
    /// # Errors
    /// When nothing of the run is kept.
    pub fn lasted(
        &self,
        n_gpus: &[u32],
        (step_s, link_usd): (f64, f64),
        beside: Option<&Beside>,
    ) -> Option<Result<Lasted, Refused>> {
        let (run, job) = self.for_days(n_gpus, step_s, link_usd)?;
        Some(run.kept(&job, beside))
    }

    /// Tokens that such a run keeps for a dollar in the mean, by its closed form; none where no run is asked for, or a price is not known.
    pub fn kept_per_usd(&self, n_gpus: &[u32], step_s: f64, link_usd: f64) -> f64 {
        self.for_days(n_gpus, step_s, link_usd).and_then(|(run, job)| run.tokens_per_usd(&job)).unwrap_or(0.0)
    }

    /// Share of such a run that is useful in the mean, by its closed form; all of it where no run is asked for.
    pub fn useful_share(&self, n_gpus: &[u32], step_s: f64) -> f64 {
        self.for_days(n_gpus, step_s, 0.0).map_or(1.0, |(run, job)| run.useful_share(&job))
    }

    /// A played step with what comes of a run of days over such steps, where one is asked for, beside nodes that are slow for a time.
    ///
    /// # Errors
    /// When nothing of the run is kept.
    pub fn over_days(
        &self,
        plan: &Pipelines,
        mut step: MixedStep,
        beside: Option<&Beside>,
    ) -> Result<MixedStep, Refused> {
        let step_s = step.metrics["iteration_time_s"];
        let link_usd = step.metrics.get("link_usd_per_step").copied().unwrap_or(0.0);
        let Some(lasted) = self.lasted(&self.n_gpus(plan), (step_s, link_usd), beside) else { return Ok(step) };
        let lasted = lasted?;
        let interval_s = step.intervals["iteration_time_s"];
        step.intervals.extend(lasted.intervals(step_s, interval_s));
        step.metrics.extend(lasted.values);
        step.why = format!("{}; {}", step.why, lasted.why);
        Ok(step)
    }

    /// GPUs that a plan takes of every group.
    pub fn n_gpus(&self, plan: &Pipelines) -> Vec<u32> {
        (0..self.groups.len()).map(|group| plan.n_gpus_of(group)).collect()
    }
}
