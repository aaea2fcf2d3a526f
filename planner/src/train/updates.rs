//! Optimizer steps of a plan that are part of something longer, played: a step on average at every end of the costs. Units: seconds.

use engine::CostModel;
use engine::play::Case;
use engine::verdict::Refused;
use hw::topology::Topology;
use train::metrics::{self, Metrics, Played};
use train::problem::Problem;

use super::chosen::{Decided, simulate};

/// Played steps.
pub struct Updates {
    /// The first one, to be drawn.
    pub first: Played,
    /// How many.
    pub n: usize,
    /// Figures of one on average.
    pub metrics: Metrics,
    /// One on average, at every end of the costs: low, expected, high.
    pub ends_s: [f64; 3],
}

impl Updates {
    /// Plays all steps of what was decided.
    ///
    /// # Errors
    /// When a step does not fit memory.
    pub fn of(decided: &Decided, cost: &dyn CostModel) -> Result<Self, Refused> {
        let Decided { problem, decision, .. } = decided;
        let (mut updates, [low, high]) = simulate(problem, decision, cost, &Topology::of(&problem.cluster))?;
        let metrics = metrics::of_steps(problem, &updates, cost);
        let ends_s = with_ends(&metrics, problem, [low, metrics.step_s(), high]);
        Ok(Self { n: updates.len(), first: updates.swap_remove(0), metrics, ends_s })
    }

    /// One on average.
    pub const fn seconds(&self, case: Case) -> f64 {
        match case {
            Case::Low => self.ends_s[0],
            Case::Expected => self.ends_s[1],
            Case::High => self.ends_s[2],
        }
    }
}

/// A time of these kernels with the ends that costs leave open.
pub fn with_ends(metrics: &Metrics, problem: &Problem, at: [f64; 3]) -> [f64; 3] {
    let [low, high] = metrics.parts.interval_of(problem, at);
    [low, at[1], high]
}
