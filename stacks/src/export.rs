//! Files of other stacks from plans: what a target can say is written, what it cannot say is an error that names it.
//!
//! Each file names the version of the target that it was written for and carries the prediction; where a format has no remarks, a file beside it
//! does.

use std::borrow::Cow;

use engine::CostModel;
use engine::model::of_name;
use serve::deployment::Deployment;
use train::Problem;
use train::plan::{Place, Plan};

use crate::checkpoint;
use crate::fields::{self, Asked, Stack};
use crate::settings::{Settings, groups};
use crate::weeks::Weeks;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

impl File {
    pub(crate) fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), bytes: bytes.into() }
    }

    /// What it holds as a text; what is none has marks in its place.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

/// Why a plan has no file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ExportError {
    /// The target has no words for parts of the plan.
    #[error("{target} cannot say: {}", what.join("; "))]
    NotExpressible { target: &'static str, what: Vec<String> },
    /// A file that is none of a plan that can be.
    #[error("the plan cannot be: {}", what.join("; "))]
    Wrong { what: Vec<String> },
    /// There is no such target.
    #[error("unknown target `{found}`; allowed are {allowed}")]
    UnknownTarget { found: String, allowed: String },
    /// The target is for plans of another kind.
    #[error("{target} takes {wanted}, and the plan is none")]
    OtherKind { target: &'static str, wanted: &'static str },
}

/// What a plan is, with what it was made for.
pub enum Planned<'a> {
    /// A training step.
    Training {
        /// What was asked.
        problem: &'a Problem,
        /// What was decided.
        plan: &'a Plan,
        /// What its operations take.
        cost: &'a dyn CostModel,
    },
    /// Replicas that serve.
    Serving {
        /// One deployment for each model.
        deployments: &'a [Deployment],
        /// What was written for their engines besides.
        settings: &'a Settings,
    },
}

/// What a remark says besides the version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Words {
    /// The scenario.
    pub scenario: String,
    /// What is predicted, in a line.
    pub predicted: String,
    /// The run of days that the steps are of, where it is asked for.
    pub weeks: Option<Weeks>,
}

impl Words {
    /// Lines of remarks, without a mark.
    pub(crate) fn lines(&self, version: &str) -> Vec<String> {
        let written = format!("Written for {version} from the plan of `{}`.", self.scenario);
        let predicted = format!("Predicted: {}", self.predicted);
        [written, predicted].into_iter().filter(|line| line != "Predicted: ").collect()
    }

    /// The same as comments of a script, a YAML or a TOML file.
    pub(crate) fn comments(&self, version: &str) -> String {
        comments(&self.lines(version))
    }

    /// The same in a file of its own.
    pub(crate) fn beside(&self, version: &str) -> File {
        File::new("PREDICTED.txt", self.lines(version).join("\n") + "\n")
    }
}

/// Lines behind the mark of a comment.
pub(crate) fn comments(lines: &[String]) -> String {
    lines.iter().map(|line| format!("# {line}\n")).collect()
}

/// A step's time and its interval, seconds, in words.
pub fn step_words(seconds: [f64; 3]) -> String {
    let unit = if seconds[0] < 1e-3 { (1e6, "µs") } else { (1.0, "s") };
    let [step, low, high] = seconds.map(|time| time * unit.0);
    format!("a step of {step:.4} {0}, 90 % interval {low:.4} to {high:.4} {0}", unit.1)
}

/// Writes a plan.
type Write = fn(&Planned<'_>, &Words) -> Result<Vec<File>, ExportError>;

/// A target: its name, what is written, and how.
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// What is written, in a few words.
    pub about: &'static str,
    /// The version that it is written for.
    pub version: &'static str,
    pub(crate) write: Write,
}

impl Target {
    pub(crate) const fn new(name: &'static str, about: &'static str, version: &'static str, write: Write) -> Self {
        Self { name, about, version, write }
    }
}

/// The parts of a training plan.
pub(crate) fn training<'a>(
    planned: &Planned<'a>,
    target: &'static str,
) -> Result<(&'a Problem, &'a Plan), ExportError> {
    match planned {
        Planned::Training { problem, plan, .. } => Ok((problem, plan)),
        Planned::Serving { .. } => Err(ExportError::OtherKind { target, wanted: "plans of training steps" }),
    }
}

/// The deployments of a plan for servers, each of the checkpoint that is served, with what was written for their engines: of a fleet's groups, those
/// that they have.
pub(crate) fn serving(planned: &Planned<'_>, target: &'static str) -> Result<(Vec<Deployment>, Settings), ExportError> {
    match planned {
        Planned::Serving { deployments, settings } => {
            let of =
                |one: &Deployment| Deployment { model: checkpoint::served(one, settings).to_owned(), ..one.clone() };
            Ok((deployments.iter().map(of).collect(), groups::of_plan(settings, deployments)))
        }
        Planned::Training { .. } => Err(ExportError::OtherKind { target, wanted: "deployments of servers" }),
    }
}

/// What a reader has to put into files where a plan names models alone.
pub(crate) fn to_put(deployments: &[Deployment]) -> &'static str {
    let is_path = |deployment: &Deployment| deployment.model.contains('/') && of_name(&deployment.model).is_some();
    if deployments.iter().all(is_path) {
        ""
    } else {
        "# Put the path of the checkpoint in the place of the model's name.\n"
    }
}

/// The name of a deployment's model, without whose it is.
pub(crate) fn model_of(deployment: &Deployment) -> &str {
    deployment.model.rsplit('/').next().unwrap_or_default()
}

/// The files of a plan, where the target has words for all of it.
pub(crate) fn expressed(
    files: Vec<File>,
    mut what: Vec<String>,
    target: &'static str,
) -> Result<Vec<File>, ExportError> {
    what.dedup();
    if what.is_empty() { Ok(files) } else { Err(ExportError::NotExpressible { target, what }) }
}

/// What all micro-batches of a plan have in common, where a stack makes them from two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Even {
    /// Tokens of a sequence.
    pub(crate) tokens: u64,
    /// Sequences of a micro-batch.
    pub(crate) micro_batch: u64,
    /// Micro-batches of a group.
    pub(crate) n_micro_batches: u64,
    /// Sequences of a step.
    pub(crate) batch: u64,
}

/// The parts of a plan that are there and that a target has no words for.
pub(crate) fn unsaid(parts: &[(bool, &str)]) -> impl Iterator<Item = String> {
    parts.iter().filter(|(is_there, _)| *is_there).map(|(_, words)| (*words).to_owned())
}

/// Micro-batches that are all alike, and what remarks tell, of a plan without parts that a stack cannot say.
pub(crate) fn expressible(
    (problem, plan): (&Problem, &Plan),
    target: &'static str,
    stack: Stack,
) -> Result<(Even, Vec<String>), ExportError> {
    let (found, mut what) = match even(problem, plan) {
        Ok(found) => (Some(found), Vec::new()),
        Err(what) => (None, what),
    };
    let rest = fields::rest(&asked(problem, plan), stack);
    what.extend(rest.unsaid);
    let found = found.filter(|_| what.is_empty()).ok_or(ExportError::NotExpressible { target, what })?;
    Ok((found, rest.told))
}

/// What is asked of the fields of a plan.
pub(crate) fn asked<'a>(problem: &'a Problem, plan: &Plan) -> Asked<'a> {
    let groups = plan.steps.iter().flat_map(|step| &step.groups);
    Asked { problem, n_micro_batches: groups.map(Vec::len).max().unwrap_or(0) as u64 }
}

/// Micro-batches that are all alike; otherwise what they differ in.
pub(crate) fn even(problem: &Problem, plan: &Plan) -> Result<Even, Vec<String>> {
    let mut what = Vec::new();
    let mut found: Option<Even> = None;
    let lengths = &problem.workload.lengths;
    if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
        what.push("sequences of different lengths, dealt out by the plan".to_owned());
    }
    if plan.steps.iter().any(train::plan::Step::is_mixed) {
        what.push("pipelines of shapes of their own".to_owned());
    }
    let batches = || plan.steps.iter().flat_map(|step| &step.groups).flatten();
    if batches().any(|batch| !batch.offload_permille.is_empty()) {
        what.push("activations in host memory, micro-batch by micro-batch".to_owned());
    }
    if problem.workload.lengths.is_empty() || plan.steps.is_empty() {
        return Err(vec!["a plan without steps".to_owned()]);
    }
    let tokens = lengths[0];
    for group in plan.steps.iter().flat_map(|step| &step.groups) {
        for micro_batch in group {
            let is_whole = |placed: &train::plan::Placement| placed.from == 0 && placed.tokens == tokens;
            let is_spread = |placed: &train::plan::Placement| problem.layout.cp == 1 || placed.place == Place::Sharded;
            let is_plain =
                micro_batch.sequences.iter().all(|one| is_whole(one) && is_spread(one)) && !micro_batch.forward_only;
            let n = micro_batch.sequences.len() as u64;
            let batch = problem.workload.batch_size as u64;
            let each = Even { tokens, micro_batch: n, n_micro_batches: group.len() as u64, batch };
            let same = found.is_none_or(|found| found == each);
            if (!is_plain || !same || micro_batch.padding >= tokens) && what.is_empty() {
                what.push("micro-batches that differ from each other, dealt out by the plan".to_owned());
            }
            found = Some(each);
        }
    }
    match found {
        Some(found) if what.is_empty() => Ok(found),
        _ => Err(what),
    }
}

/// A name that files and fleets accept: small letters, digits and dashes.
pub(crate) fn named(text: &str) -> String {
    let name: String = text.chars().take(50).map(letter).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "replicas".to_owned() } else { name.to_owned() }
}

const fn letter(letter: char) -> char {
    if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }
}
