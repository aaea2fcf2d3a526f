//! How examples are trained: optimizer steps of the scenario's training, planned and played as the kind `training` plays them. They are the same for
//! every way, so they are played once. Units: seconds.

use engine::CostModel;
use engine::cost::Source;
use engine::play::Case;
use engine::verdict::Refused;

use crate::train::chosen::Decided;
use crate::train::updates::Updates;

/// Key of the memory of the fullest GPU.
pub(super) const PEAK: &str = "peak_memory_bytes";

/// Played steps.
pub struct Trained {
    decided: Decided,
    updates: Updates,
}

impl Trained {
    /// Plays what was decided.
    ///
    /// # Errors
    /// When a step does not fit memory.
    pub fn of(decided: Decided, cost: &dyn CostModel) -> Result<Self, Refused> {
        let updates = Updates::of(&decided, cost)?;
        Ok(Self { decided, updates })
    }

    /// Time of an example at one end of the costs or as expected: a step's over its batch.
    pub fn example_s(&self, case: Case) -> f64 {
        self.updates.seconds(case) / hw::real(self.decided.problem.workload.batch_size as u64)
    }

    /// Weakest source of the costs.
    pub const fn source(&self) -> Source {
        self.updates.metrics.source
    }

    /// Share of the time outside the measured hull, and where that is.
    pub fn outside_hull(&self) -> (f64, Vec<String>) {
        let (ratio, dimensions) = self.updates.metrics.provenance.outside_hull();
        // Stated durations have no hull.
        (ratio.max(0.0), dimensions)
    }

    /// Memory of the fullest GPU at its fullest moment.
    pub fn peak_bytes(&self) -> f64 {
        self.updates.metrics.values.get(PEAK).copied().unwrap_or_default()
    }

    /// What a step is, in words.
    pub(super) fn words(&self) -> String {
        let Decided { problem, decision, .. } = &self.decided;
        let what = if problem.execution.trains_weights() { "all weights" } else { "adapters beside frozen weights" };
        let groups = decision.plan.steps.iter().flat_map(|step| &step.groups);
        format!(
            "examples are trained by `{}` ({what}): {} micro-batches per step, {:.1} GiB per GPU",
            decision.plan.policy,
            groups.map(Vec::len).max().unwrap_or(0),
            self.peak_bytes() / hw::GIB
        )
    }
}
