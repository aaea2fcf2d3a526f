//! A measured training step: what it is, the problem that was run, and what was measured of it.
//!
//! Units: seconds, bytes, tokens, sequences, GPUs.

use train::metrics::unexplained::{HOST, Kernels};
use train::problem::Problem;
use train::timed::TimedStep;

use crate::reason::Reason;

/// One line of a table of measured steps.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is.
    pub label: Label,
    /// What was run, or why it cannot be played.
    pub asked: Result<Asked, Reason>,
    /// What was measured.
    pub measured: Measured,
    /// What it may be compared with; none where its work is not known.
    pub compared: Option<Compared>,
}

/// Where a row stands among others, for their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// What those have in common that may be compared: set, model, card, task.
    pub among: String,
    /// Its setting: rows of one setting differ by their release alone.
    pub setting: String,
    /// Tokens of a step over its GPUs.
    pub tokens_per_gpu: f64,
}

/// What a row is, in words, for people and for groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Number in the table.
    pub row: String,
    /// Line of the file.
    pub line: u64,
    /// Set that it belongs to.
    pub set: &'static str,
    /// Model.
    pub model: String,
    /// Card, as the table writes it.
    pub card: String,
    /// Number format.
    pub format: String,
    /// Degrees in words, for example `tp2 pp1 cp4 dp1`.
    pub layout: String,
    /// What else tells it apart: a release, a test.
    pub variant: String,
}

/// What was run.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A layout of a model, whose times come from the costs of its cards.
    Layout(Box<Run>),
    /// The same where the number of GPUs is not published: one for every number that it may be, the fewest first.
    Counts(Vec<Run>),
    /// Stages whose times were measured.
    Stages(TimedStep),
}

impl From<Run> for Asked {
    fn from(run: Run) -> Self {
        Self::Layout(Box::new(run))
    }
}

/// A problem with the micro-batches of its step.
#[derive(Clone, Debug)]
pub struct Run {
    /// Model, machine, layout and execution.
    pub problem: Problem,
    /// Sequences of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of each data-parallel group.
    pub n_micro_batches: u32,
    /// Tokens of a sequence.
    pub tokens: u64,
    /// Whose kernels ran.
    pub kernels: Kernels,
    /// By how much the host is off, as a share of its time.
    pub host_off: f64,
    /// Time of a step in which the device waits for its host to do something else than launch passes, seconds.
    pub host_waits_s: f64,
    /// What the last stage holds beside the problem, bytes.
    pub beside: f64,
    /// Whether the problem has all that runs; without it nothing is said of the step.
    pub is_whole: bool,
    /// Which memory its table has.
    pub counted: Counted,
    /// What may have been run instead, where a row does not say it; the interval then holds both.
    pub other: Option<Box<Other>>,
}

impl Run {
    /// With usual kernels and a host that is off as others are; nothing else may have run. A step has so many sequences in a micro-batch, and so many
    /// micro-batches in each group.
    pub(super) fn usual(problem: Problem, [micro_batch, n_micro_batches]: [u32; 2], tokens: u64) -> Self {
        Self {
            problem,
            micro_batch,
            n_micro_batches,
            tokens,
            kernels: Kernels::Usual,
            host_off: HOST,
            host_waits_s: 0.0,
            beside: 0.0,
            is_whole: true,
            counted: Counted::Reserved,
            other: None,
        }
    }
}

/// What may have been run instead.
#[derive(Clone, Debug)]
pub struct Other {
    /// As it was run then.
    pub run: Run,
    /// Where the prediction lies.
    pub weighs: Weighs,
}

/// Which of two runs counts where a row may have been one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighs {
    /// Both: the middle.
    #[default]
    Both,
    /// The first one.
    First,
}

hw::words! {
    /// What a measured time tells of. Both are never in one mean.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Bound: word {
        /// Of devices and exchanges.
        #[default]
        Device = "device",
        /// Of the host: the device is idle most of the time.
        Host = "host",
    }
}

/// Which memory of PyTorch's allocator a table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// What it reserves, with segments that expand.
    #[default]
    Reserved,
    /// What tensors take.
    Allocated,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time of a step.
    pub step_s: Option<f64>,
    /// What the time of the step tells of.
    pub bound: Bound,
    /// The same where it was measured again.
    pub again_s: Vec<f64>,
    /// Highest memory of a rank of each pipeline stage that was measured: (stage, bytes).
    pub memory: Vec<(u32, f64)>,
    /// The highest of all stages, bytes, where the table says no stage.
    pub largest_memory: Option<f64>,
    /// Time of forward, of backward and of the optimizer.
    pub parts_s: Option<[f64; 3]>,
}
