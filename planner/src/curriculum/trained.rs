//! How examples are trained: optimizer steps of the scenario's training, planned and played as the kind `training` plays them. They are the same for
//! every way, so they are played once; a stage with settings of its own has steps of its own. What it takes to move model states from one layout to
//! another between stages is not counted. Units: seconds.

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
    fn example_s(&self, case: Case) -> f64 {
        self.updates.seconds(case) / hw::real(self.decided.problem.workload.batch_size as u64)
    }

    /// Weakest source of the costs.
    const fn source(&self) -> Source {
        self.updates.metrics.source
    }

    /// Share of the time outside the measured hull, and where that is.
    fn outside_hull(&self) -> (f64, Vec<String>) {
        let (ratio, dimensions) = self.updates.metrics.provenance.outside_hull();
        // Stated durations have no hull.
        (ratio.max(0.0), dimensions)
    }

    /// Memory of the fullest GPU at its fullest moment.
    fn peak_bytes(&self) -> f64 {
        self.updates.metrics.values.get(PEAK).copied().unwrap_or_default()
    }

    /// Whether model states lie on other ranks, or are other ones, than in another training.
    fn lies_otherwise(&self, other: &Self) -> bool {
        let of = |trained: &Self| {
            let problem = &trained.decided.problem;
            (problem.layout, problem.execution.layers.clone(), problem.execution.trains_weights())
        };
        of(self) != of(other)
    }

    /// What a step is, in words.
    fn words(&self) -> String {
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

/// Trainings of a scenario, and which one each stage has.
pub struct Trainings {
    all: Vec<Trained>,
    of_stage: Vec<usize>,
}

impl Trainings {
    /// Of these trainings each stage has the one of its index.
    pub const fn new(all: Vec<Trained>, of_stage: Vec<usize>) -> Self {
        Self { all, of_stage }
    }

    /// The training of a stage; a recipe without stages has that of the first.
    fn of(&self, stage_index: usize) -> &Trained {
        &self.all[self.of_stage.get(stage_index).copied().unwrap_or(0)]
    }

    /// Trainings of so many stages, each once, with their stages.
    fn by_stages(&self, n_stages: usize) -> Vec<(&Trained, Vec<usize>)> {
        let stages =
            |training: usize| (0..n_stages).filter(|&stage| self.of_stage.get(stage) == Some(&training)).collect();
        let all = self.all.iter().enumerate().map(|(training, trained)| (trained, stages(training)));
        all.filter(|(_, stages): &(&Trained, Vec<usize>)| !stages.is_empty()).collect()
    }

    /// Time of an example of every stage, at one end of the costs or as expected.
    pub(super) fn examples_s(&self, case: Case) -> Vec<f64> {
        (0..self.of_stage.len().max(1)).map(|stage| self.of(stage).example_s(case)).collect()
    }

    /// Weakest source of the costs.
    pub(super) fn source(&self) -> Source {
        self.all.iter().map(Trained::source).max().expect("something is trained")
    }

    /// Share of the time of so many stages outside the measured hull: the most of their trainings.
    pub(super) fn outside_hull_ratio(&self, n_stages: usize) -> f64 {
        self.by_stages(n_stages).into_iter().map(|(trained, _)| trained.outside_hull().0).fold(0.0, f64::max)
    }

    /// Where trainings lie outside the measured hull.
    pub fn outside_hull(&self) -> Vec<String> {
        let mut dimensions: Vec<String> = self.all.iter().flat_map(|trained| trained.outside_hull().1).collect();
        dimensions.sort();
        dimensions.dedup();
        dimensions
    }

    /// Memory of the fullest GPU of so many stages.
    pub(super) fn peak_bytes(&self, n_stages: usize) -> f64 {
        self.by_stages(n_stages).into_iter().map(|(trained, _)| trained.peak_bytes()).fold(0.0, f64::max)
    }

    /// What steps of so many stages are, in words, and what is not counted between them.
    pub(super) fn words(&self, n_stages: usize) -> Vec<String> {
        let by_stages = self.by_stages(n_stages);
        let is_one = by_stages.len() < 2;
        let of = |(trained, stages): &(&Trained, Vec<usize>)| {
            let names: Vec<String> = stages.iter().map(|stage| (stage + 1).to_string()).collect();
            if is_one { trained.words() } else { format!("stage {}: {}", names.join(" and "), trained.words()) }
        };
        let mut words: Vec<String> = by_stages.iter().map(of).collect();
        let moves = (1..n_stages).filter(|&stage| self.of(stage - 1).lies_otherwise(self.of(stage)));
        words.extend(moves.map(|stage| {
            format!(
                "model states lie otherwise in stage {} than in the one before: moving them is not counted",
                stage + 1
            )
        }));
        if words.is_empty() { vec![self.of(0).words()] } else { words }
    }
}
