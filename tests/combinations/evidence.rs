//! Mechanisms of a training step, the keys that ask for them, and what shows in a step that they were not ignored.

use engine::task::{Collective, Op, Role, Task};
use reports::PolicyResult;
use train::metrics::Played;

/// A row and its first step.
type Ran<'a> = (&'a PolicyResult, &'a Played);

/// What a step shows: beside the same step without the mechanism, where that ran.
type Shows = fn(Ran<'_>, Option<Ran<'_>>) -> Result<(), String>;

/// A mechanism.
pub(super) struct Mechanism {
    /// Column of the page.
    pub(super) name: &'static str,
    /// Mechanisms of one family exclude each other.
    pub(super) family: &'static str,
    /// Keys that ask for it.
    pub(super) set: &'static [&'static str],
    /// One of these stands in a refusal.
    pub(super) words: &'static [&'static str],
    /// Its evidence.
    pub(super) shows: Shows,
}

impl Mechanism {
    /// Whether both can be asked for together.
    pub(super) fn stands_beside(&self, other: &Self) -> bool {
        self.family != other.family
    }

    /// Mechanism that takes its place in the step that it is compared with.
    pub(super) fn instead(&self) -> Option<&'static str> {
        (self.name == "compression").then_some("experts")
    }
}

const EXPERTS: [&str; 2] = ["model.name=\"mixtral-8x7b\"", "parallel.ep=2"];
/// Inside tensor groups, which pipelines of their own have as well.
const GROUPED: [&str; 3] = [EXPERTS[0], EXPERTS[1], "parallel.tp=2"];
const COMPRESSION: [&str; 4] =
    [EXPERTS[0], EXPERTS[1], "experts.compression.hashes=4", "experts.compression.rate=0.25"];

/// Every mechanism of the table.
pub(super) static MECHANISMS: [Mechanism; 12] = [
    mechanism("experts", &EXPERTS, &["experts"], experts),
    Mechanism { family: "experts", ..mechanism("experts in tensor groups", &GROUPED, &["experts"], experts) },
    mechanism("pipeline", &["parallel.pp=2"], &["pipeline"], pipeline),
    mechanism("tensor", &["parallel.tp=2"], &["tensor"], tensor),
    mechanism("stragglers", &["stragglers=[{ ranks = [3], rate = 3.0 }]"], &["straggl"], stragglers),
    zero("ZeRO 0", &["parallel.zero=0"], zero_0),
    zero("ZeRO 1", &["parallel.zero=1"], zero_1),
    zero("ZeRO 2", &["parallel.zero=2"], zero_2),
    zero("ZeRO 3", &["parallel.zero=3"], zero_3),
    mechanism("offload", &["training.offload_ratio=0.5"], &["offload"], offload),
    mechanism("recompute", &["training.recompute=\"full\""], &["recompute"], recompute),
    Mechanism { family: "experts", ..mechanism("compression", &COMPRESSION, &["experts"], compression) },
];

const fn mechanism(
    name: &'static str,
    set: &'static [&'static str],
    words: &'static [&'static str],
    shows: Shows,
) -> Mechanism {
    Mechanism { name, family: name, set, words, shows }
}

const fn zero(name: &'static str, set: &'static [&'static str], shows: Shows) -> Mechanism {
    Mechanism { family: "ZeRO", ..mechanism(name, set, &["ZeRO", "zero"], shows) }
}

fn tasks(played: &Played, role: Role) -> impl Iterator<Item = &Task> {
    played.graph.tasks.iter().filter(move |task| task.role == role)
}

fn has(played: &Played, role: Role) -> bool {
    tasks(played, role).next().is_some()
}

/// Bytes of the collectives of a role, over all lanes.
fn bytes(played: &Played, role: Role) -> u64 {
    tasks(played, role).map(|task| bytes_of(&played.graph.ops[task.op.0 as usize])).sum()
}

fn bytes_of(op: &Op) -> u64 {
    match op {
        Op::Sequence(parts) => parts.iter().map(|(part, n)| bytes_of(part) * u64::from(*n)).sum(),
        Op::Collective { bytes, .. } => *bytes,
        _ => 0,
    }
}

fn holds(op: &Op, is: &dyn Fn(&Op) -> bool) -> bool {
    match op {
        Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => {
            parts.iter().any(|(part, _)| holds(part, is))
        }
        other => is(other),
    }
}

/// Most bytes that a rank holds for the whole step under a label.
fn resident(played: &Played, label: &str) -> u64 {
    let named =
        |(of, bytes): &(engine::task::LabelId, u64)| (played.graph.labels[of.0 as usize] == label).then_some(*bytes);
    played.graph.resident.iter().map(|held| held.iter().filter_map(named).sum()).max().unwrap_or(0)
}

fn metric(ran: Ran<'_>, key: &str) -> f64 {
    ran.0.metrics[key]
}

fn ensure(is: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is { Ok(()) } else { Err(what()) }
}

fn experts(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    let grouped = with.1.graph.ops.iter().any(|op| holds(op, &|op| matches!(op, Op::GroupedGemm { .. })));
    ensure(grouped && bytes(with.1, Role::ExpertExchange) > 0, || "no expert GEMM or no all-to-all".to_owned())
}

fn pipeline(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    let staged = with.1.graph.lanes.iter().any(|lane| lane.stage > 0);
    ensure(staged && has(with.1, Role::StageExchange), || "no second stage, or no messages to it".to_owned())
}

fn tensor(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    ensure(bytes(with.1, Role::TensorExchange) > 0, || "no tensor exchange".to_owned())
}

/// Whether a note is about the device that straggles.
pub(super) fn tells_of_stragglers(note: &str) -> bool {
    note.contains("straggl") || note.contains("rank 3 at 3")
}

fn stragglers(with: Ran<'_>, without: Option<Ran<'_>>) -> Result<(), String> {
    let is_slow = with.1.graph.lanes.iter().any(|lane| lane.rate > 1.0);
    let mut notes = with.0.planner.iter().flat_map(|facts| &facts.notes);
    ensure(notes.any(|note| tells_of_stragglers(note)), || "no note says what the plan makes of them".to_owned())?;
    let Some(without) = without else { return Ok(()) };
    let (slow_s, well_s) = (metric(with, "iteration_time_s"), metric(without, "iteration_time_s"));
    ensure(slow_s >= well_s, || format!("{slow_s} s with them, {well_s} s without"))?;
    ensure(is_slow || slow_s > well_s, || "no lane is slower and the step is as long".to_owned())
}

fn zero_0(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    let whole = |op: &Op| matches!(op, Op::Collective { kind: Collective::AllReduce, .. });
    let mut syncs = tasks(with.1, Role::GradientSync).map(|task| &with.1.graph.ops[task.op.0 as usize]);
    ensure(syncs.all(|op| holds(op, &whole)), || "gradients are not reduced as a whole".to_owned())?;
    ensure(!has(with.1, Role::ParameterGather), || "parameters are gathered".to_owned())
}

fn zero_1(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    let (optimizer, parameters) = (resident(with.1, "optimizer states"), resident(with.1, "parameters"));
    // Twelve bytes per parameter against two, over at least four ranks.
    ensure(optimizer < 4 * parameters, || {
        format!("{optimizer} bytes of optimizer states, {parameters} of parameters")
    })?;
    ensure(resident(with.1, "gradients") > parameters / 2, || "gradients are cut as well".to_owned())
}

fn zero_2(with: Ran<'_>, _without: Option<Ran<'_>>) -> Result<(), String> {
    let (gradients, parameters) = (resident(with.1, "gradients"), resident(with.1, "parameters"));
    ensure(2 * gradients <= parameters, || format!("{gradients} bytes of gradients, {parameters} of parameters"))
}

fn zero_3(with: Ran<'_>, without: Option<Ran<'_>>) -> Result<(), String> {
    zero_gathers(with)?;
    let Some(without) = without else { return Ok(()) };
    let (now, before) = (resident(with.1, "parameters"), resident(without.1, "parameters"));
    ensure(2 * now <= before, || format!("{now} bytes of parameters, {before} under ZeRO 1"))
}

/// Whether passes wait for parameters.
fn zero_gathers(with: Ran<'_>) -> Result<(), String> {
    let passes = tasks(with.1, Role::ParameterGather).any(|task| task.micro_batch != u32::MAX);
    ensure(passes, || "no pass gathers parameters".to_owned())
}

fn offload(with: Ran<'_>, without: Option<Ran<'_>>) -> Result<(), String> {
    ensure(has(with.1, Role::Offload), || "nothing is copied".to_owned())?;
    let Some(without) = without else { return Ok(()) };
    let key = "peak_activation_bytes";
    let (now, before) = (metric(with, key), metric(without, key));
    ensure(now < before, || format!("{now} bytes of activations, {before} without"))
}

fn recompute(with: Ran<'_>, without: Option<Ran<'_>>) -> Result<(), String> {
    ensure(has(with.1, Role::Recompute), || "nothing is computed again".to_owned())?;
    let Some(without) = without else { return Ok(()) };
    let falls = metric(with, "peak_activation_bytes") < metric(without, "peak_activation_bytes");
    let rises = metric(with, "iteration_time_s") > metric(without, "iteration_time_s");
    ensure(falls || rises, || "neither memory nor time changes".to_owned())
}

fn compression(with: Ran<'_>, without: Option<Ran<'_>>) -> Result<(), String> {
    let Some(without) = without else { return experts(with, without) };
    let [now, before] = [with, without].map(|ran| bytes(ran.1, Role::ExpertExchange));
    ensure(now < before, || format!("{now} bytes of all-to-all, {before} without"))
}
