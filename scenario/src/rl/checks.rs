//! What only shows when the sides of a step are seen together, and sections that one side does not have.

use planner::effort::served;
use rl::cycle::{Batches, Placement, STREAMED_BATCHES};

use super::rollouts::Nodes;
use super::{Rl, Way};
use crate::{effort, inside};
use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// Sections of a training scenario that say where sequences come from, or what many steps meet.
const NOT_OF_STEPS: [(&str, &str); 3] = [
    ("workload", "the answers of `[rollouts]` are trained on"),
    ("slow_nodes", "`kind = \"training\"` plays nodes that are slow for a time: here they may be the engines'"),
    inside::EXPECT,
];

/// Sections of a serving scenario that say what arrives, or ask something of it.
const NOT_OF_REQUESTS: [(&str, &str); 5] = [
    ("trace", "the prompts of `[rollouts]` arrive together"),
    ("slo", "nobody waits for one answer: the last one counts"),
    ("capacity", "`kind = \"serving\"` asks about capacity"),
    ("tune", "`kind = \"serving\"` tunes engines"),
    inside::EXPECT,
];

/// Refuses sections that the trainer does not have.
pub(super) fn of_steps(inside: &mut Reader<'_>) {
    inside::refuse(inside, ("train", "a step"), &NOT_OF_STEPS);
    if let Some((_, at)) = inside.peek_in("training", "steps") {
        let help = "answers of a step over `training.batch_size` are the updates of a step";
        inside.refuse(Code::NoEffect, at, "`training.steps` follows from the rollouts", help);
    }
    let is_searched = inside.peek_in("parallel", "layout").is_some();
    idle(inside, "train", if is_searched { &["baseline"] } else { &["baseline", "maximize", "minimize"] });
}

/// Refuses sections that the engines do not have.
pub(super) fn of_requests(inside: &mut Reader<'_>) {
    inside::refuse(inside, ("generate", "a step"), &NOT_OF_REQUESTS);
    idle(inside, "generate", &["baseline"]);
}

/// Warns of what a side says of a comparison that is the step's.
fn idle(inside: &mut Reader<'_>, side: &str, keys: &[&str]) {
    for key in keys {
        if let Some((_, at)) = inside.peek_in("policies", key) {
            let what = format!("`{side}.policies.{key}` changes nothing");
            inside.warn(Code::NoEffect, at, what, "steps are compared by their time, with the first one");
        }
    }
}

/// Both sides have one model, fleets that stay, and GPUs that fit each other.
pub(super) fn check(reader: &mut Reader<'_>, scenario: &Rl, reference: Option<Place>) {
    let (trained, served) = (&scenario.training.problem.model.name, &scenario.serving.model.name);
    if trained != served {
        let what = format!("`{trained}` is trained, and `{served}` generates");
        reader.refuse(Code::OtherModel, None, what, "write one `[model]` for both sides");
    }
    if !scenario.serving.best.is_empty() {
        let what = "`[[generate.policies.best]]` has no place in a step";
        reader.refuse(Code::AskedElsewhere, None, what, "list ways of serving as `[[generate.policies.variant]]`");
    }
    if scenario.serving.groups.iter().any(|group| group.scaling.is_some()) {
        let what = "a group of `[generate.fleet]` scales with its load";
        reader.refuse(Code::WrongScaling, None, what, "all answers of a step come at once, so replicas are to stay");
    }
    if scenario.ways.iter().any(|way| way.places.placement == Placement::Colocated) {
        same_gpus(reader, scenario);
    }
    slow_gpus(reader, scenario);
    idle_reference(reader, scenario, reference);
    if scenario.ways.iter().any(|way| way.places.train_nodes != Nodes::Own) {
        shared_out(reader, scenario);
    }
    tell_effort(reader, scenario);
}

/// Tells how long it may take to play the answers of all ways.
fn tell_effort(reader: &mut Reader<'_>, scenario: &Rl) {
    let is_streamed = scenario.rules.batches == Batches::Streamed;
    let of_way = |way: &Way| if is_streamed && way.places.off_policy > 0 { STREAMED_BATCHES } else { 1 };
    let n_batches: u64 = scenario.ways.iter().map(of_way).sum();
    let n_answers = u64::from(scenario.rollouts.n());
    let what = format!("{n_batches} batches of {n_answers} answers");
    let help = "lower `rollouts.prompts` or `rollouts.answers`";
    if let Some(finding) = effort::told(served(n_batches * n_answers, 0), (None, &what, help)) {
        reader.find(finding);
    }
}

/// Nodes that are shared out are those of one machine, and each side fills what it gets.
fn shared_out(reader: &mut Reader<'_>, scenario: &Rl) {
    let (train, generate) = (&scenario.training.problem.cluster, &scenario.serving.cluster);
    if train != generate {
        let help = "write one `[cluster]` for both sides";
        let what = "`rollouts.train_nodes` shares out the nodes of one machine, and each side has its own";
        reader.refuse(Code::ExclusiveKeys, None, what, help);
    }
    let serving = &scenario.serving;
    if let Some(group) = serving.groups.iter().find(|group| serving.is_apart(group)) {
        let what = format!(
            "`rollouts.train_nodes` shares out the nodes of `[cluster]`, and group `{}` has GPUs of its own",
            group.name
        );
        let help = "leave `gpu` out of the group, or give each side a `[cluster]` and leave out `train_nodes`";
        reader.refuse(Code::WrongGpuCount, None, what, help);
    }
    if scenario.training.search.is_some() && scenario.ways.iter().any(|way| way.places.train_nodes == Nodes::Searched) {
        let what = "`rollouts.train_nodes = \"search\"` stands beside a search for the trainer's layout";
        reader.refuse(Code::ExclusiveKeys, None, what, "state the trainer's degrees, or the number of `train_nodes`");
    }
    if scenario.training.search.as_ref().is_some_and(|space| space.nodes != [train.n_nodes]) {
        let what = "`train.search.nodes` stands beside `rollouts.train_nodes`, which says how many nodes train";
        reader.refuse(Code::ExclusiveKeys, None, what, "keep one of the two");
    }
    let most = train.n_nodes;
    let beyond = |way: &Way| matches!(way.places.train_nodes, Nodes::Stated(n) if n >= most) || most < 2;
    if scenario.ways.iter().any(beyond) {
        let what = format!("`rollouts.train_nodes` leaves no node of {most} to generate");
        reader.refuse(Code::OutOfRange, None, what, format!("allowed are 1 to {}", most.saturating_sub(1).max(1)));
    }
}

/// GPUs that are slow are the trainer's: engines have no slow ones.
fn slow_gpus(reader: &mut Reader<'_>, scenario: &Rl) {
    let problem = &scenario.training.problem;
    let generates = |way: &Way, rank: u32| match (way.places.placement, way.places.train_nodes) {
        (Placement::Colocated, _) => true,
        (Placement::Split, Nodes::Stated(n)) => rank >= n.saturating_mul(problem.cluster.gpus_per_node),
        (Placement::Split, Nodes::Own | Nodes::Searched) => false,
    };
    let mut slow = problem.execution.stragglers.iter().flat_map(|straggler| &straggler.ranks);
    if let Some(rank) = slow.find(|rank| scenario.ways.iter().any(|way| generates(way, rank.0))) {
        let what = format!("rank {} of `[[train.stragglers]]` is an engine's too", rank.0);
        let help = "`placement = \"split\"` with slow GPUs on nodes that train, or `kind = \"training\"`: here they may be the engines'";
        reader.refuse(Code::AskedElsewhere, None, what, help);
    }
}

/// Beside adapters the frozen weights are the reference, wherever it were to lie.
fn idle_reference(reader: &mut Reader<'_>, scenario: &Rl, written: Option<Place>) {
    if let Some(at) = written.filter(|_| !scenario.training.problem.execution.trains_weights()) {
        let help = "leave it out: the frozen weights beside adapters are the reference, and they are there";
        reader.warn(Code::NoEffect, at, "`rollouts.reference` changes nothing", help);
    }
}

/// Sides that share their GPUs have as many.
fn same_gpus(reader: &mut Reader<'_>, scenario: &Rl) {
    let train = scenario.training.problem.cluster.n_gpus();
    for choice in scenario.serving.plain() {
        let generate = scenario.serving.n_gpus(choice);
        if generate != train {
            let what = format!("{train} GPUs train and {generate} generate under `{}`", choice.name);
            let help = "with `placement = \"colocated\"` they are the same; `generate.fleet.replicas` times the GPUs of a replica is their number";
            reader.refuse(Code::WrongGpuCount, None, what, help);
        }
    }
}
