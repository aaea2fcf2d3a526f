//! The trainer's side of a step: updates and forwards of its plan, played. It is the same for every way that trains alike. Units: seconds.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::verdict::Refused;
use hw::Bytes;
use rl::rollouts::Rollouts;
use rl::step::{Rules, Step, Trainer};
use rl::{days, forward};
use train::long_run::LongRun;
use train::metrics::{Metrics, Played};
use train::problem::Problem;

use crate::train::chosen::Decided;
use crate::train::updates::{Updates, with_ends};

/// Key of the memory of the fullest GPU.
const PEAK: &str = "peak_memory_bytes";

/// A plan whose updates were played.
pub struct Trained {
    /// The plan, and how it was found.
    pub decided: Decided,
    /// The first update, to be drawn.
    pub first: Played,
    /// Updates of a step.
    pub n_updates: usize,
    /// Figures of an update on average.
    pub metrics: Metrics,
    /// An update on average, at every end of the costs.
    update_s: [f64; 3],
    /// A forward over all answers, at every end of the costs.
    forward_s: [f64; 3],
}

/// What is said of a step.
pub struct Figured {
    /// By their keys.
    pub values: BTreeMap<String, f64>,
    /// Low and high ends of some of them.
    pub interval: BTreeMap<String, [f64; 2]>,
    /// Where the time goes, in words.
    pub why: String,
}

impl Trained {
    /// Plays what was decided.
    ///
    /// # Errors
    /// When an update does not fit memory with the references beside it, or the plan has no forward alone.
    pub fn of(decided: Decided, rules: &Rules, cost: &dyn CostModel) -> Result<Self, Refused> {
        let Updates { first, n: n_updates, mut metrics, ends_s: update_s } = Updates::of(&decided, cost)?;
        let Decided { problem, decision, .. } = &decided;
        beside(&mut metrics, rules.references(problem), problem)?;
        let forward_s =
            if rules.n_forwards > 0 { forward::forward_s(problem, &decision.plan, cost)? } else { Default::default() };
        // Kernels of a forward are those of an update, so both are left as open.
        let forward_s = if forward_s[1] > 0.0 { with_ends(&metrics, problem, forward_s) } else { forward_s };
        Ok(Self { first, n_updates, metrics, update_s, forward_s, decided })
    }

    /// Figures of a step of this trainer with such answers, with their intervals and where the time goes; of a run of days over it besides.
    ///
    /// # Errors
    /// When nothing of the run of days is kept.
    pub fn figured(
        &self,
        step: &Step,
        (rollouts, answers): (&Rollouts, &[u32]),
        run: Option<&LongRun>,
    ) -> Result<Figured, Refused> {
        let mut values = step.figures(rollouts, answers);
        let mut interval = step.interval(&values);
        let mut why = step.why();
        if let Some(run) = run {
            let tokens = rollouts.tokens(answers);
            let problem = &self.decided.problem;
            let lasted = days::lasted(run, step, tokens, problem)?;
            let [low, expected, high] = step.step_s;
            interval.extend(lasted.intervals(expected, [low, high]));
            why = format!("{why}; {}", lasted.why);
            values.extend(lasted.values);
        }
        values.insert("n_updates".to_owned(), hw::real(self.n_updates as u64));
        let of_update = ["mfu_ratio", PEAK].map(|key| Some((key.to_owned(), *self.metrics.values.get(key)?)));
        values.extend(of_update.into_iter().flatten());
        Ok(Figured { values, interval, why })
    }

    /// The trainer of a step.
    pub fn trainer<'a>(&'a self, cost: &'a dyn CostModel) -> Trainer<'a> {
        let Decided { problem, decision, .. } = &self.decided;
        let (update_s, forward_s) = (self.update_s, self.forward_s);
        Trainer { problem, plan: &decision.plan, update_s, forward_s, cost }
    }
}

/// Counts references in the memory of an update.
fn beside(metrics: &mut Metrics, references: Bytes, problem: &Problem) -> Result<(), Refused> {
    let Some(peak) = metrics.values.get_mut(PEAK) else { return Ok(()) };
    let (updates, gpu) = (*peak, &problem.cluster.gpu);
    *peak += references.as_f64();
    if *peak <= gpu.memory.as_f64() {
        return Ok(());
    }
    let gib = |bytes: f64| bytes / hw::GIB;
    Err(Refused::out_of_memory(format!(
        "an update takes {:.1} GiB and a reference {:.1} GiB of the {:.1} GiB of `{}`: keep the reference on the host",
        gib(updates),
        gib(references.as_f64()),
        gib(gpu.memory.as_f64()),
        gpu.name
    )))
}
