//! What only shows when sections are seen together.

use engine::model::Mixer;
use train::layout::{ContextExchange, Zero};
use train::problem::{Framework, Frozen};
use train::{Problem, fitting, memory};

use super::PolicyChoice;
use super::batches;
use super::framework;
use super::parallel::Places;
use super::rocm;
use input::diagnostic::{Code, divisors};
use input::reader::{Place, Reader};

/// The policy that pads its micro-batches to their full length.
const PADS: &str = "megatron";

/// The policy that takes all context ranks as a pool of groups.
const POOLS: &str = "flexsp";

/// Positions of keys that findings across sections point to, before their sections are read.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// `training.batch_size`.
    pub batch_size: Place,
    /// `optimizer.frozen`.
    pub frozen: Place,
    /// `optimizer.kernels`.
    pub kernels: Place,
}

impl Keys {
    /// Where they stand.
    pub fn of(reader: &Reader<'_>) -> Self {
        let at = |section, key| reader.peek_in(section, key).and_then(|(_, at)| at);
        Self {
            batch_size: at("training", "batch_size"),
            frozen: at("optimizer", "frozen"),
            kernels: at("optimizer", "kernels"),
        }
    }
}

/// Checks a problem and every policy's own schedule, and fills in what follows from the rest.
pub fn cross_checks(
    reader: &mut Reader<'_>,
    problem: &mut Problem,
    policies: &[PolicyChoice],
    (at, keys): (&Places, &Keys),
) {
    if !ranks(reader, problem, at) {
        return;
    }
    let before = reader.n_errors();
    divisions(reader, problem, policies, at);
    copies(reader, problem, at);
    experts(reader, problem, at);
    frozen(reader, problem, (&keys.frozen, &OF_PARALLEL));
    states(reader, problem, at);
    stages(reader, problem, at);
    for choice in policies.iter().filter(|choice| choice.schedule.is_some() || choice.chunks.is_some()) {
        stages(reader, &choice.problem(problem), at);
    }
    let ranks = problem.layout.dp * problem.layout.cp;
    for choice in policies {
        if let Some(cp) = choice.cp.filter(|cp| *cp == 0 || !ranks.is_multiple_of(*cp)) {
            let what = format!("policy `{}` has cp {cp}, which does not divide its {ranks} ranks", choice.name);
            reader.refuse(Code::WrongPolicyDegree, None, what, format!("allowed are {}", divisors(u64::from(ranks))));
        }
    }
    if reader.n_errors() == before {
        let pads = |choice: &PolicyChoice| choice.policy == PADS;
        lengths(reader, problem, policies);
        if reader.n_errors() == before && policies.iter().any(pads) {
            batches::whole(reader, problem, keys.batch_size.clone());
        }
    }
}

/// Checks of a step, however its layout is found.
pub fn of_every_layout(reader: &mut Reader<'_>, problem: &Problem, model_at: Place) {
    framework::windows(reader, problem, model_at);
    positions(reader, problem);
    rocm::check(reader, &problem.execution, [&problem.cluster.gpu]);
}

/// A table of positions has no row for tokens behind its last one, so a model looks nothing up there.
pub fn positions(reader: &mut Reader<'_>, problem: &Problem) {
    let (model, longest) = (&problem.model, problem.workload.lengths.iter().copied().max().unwrap_or(0));
    if model.learned_positions && longest > model.max_positions {
        let what = format!(
            "sequences of {longest} tokens, and the table of positions of `{}` has {} rows",
            model.name, model.max_positions
        );
        reader.refuse(
            Code::LongContext,
            None,
            what,
            "`workload` has shorter sequences, or the model's configuration more positions",
        );
    }
}

/// What leaves a tensor group out, and a pipeline, in the words of the keys that say so.
pub type Undivided = [&'static str; 2];

/// As `[parallel]` says it.
const OF_PARALLEL: Undivided = ["`parallel.tp = 1`", "`parallel.pp = 1`"];

/// Packed weights beside what no library packs, cuts or multiplies. The place is that of `optimizer.frozen`.
pub fn frozen(reader: &mut Reader<'_>, problem: &Problem, (at, undivided): (&Place, &Undivided)) {
    let (layout, frozen) = (&problem.layout, problem.shard().frozen());
    if !frozen.is_packed() {
        return;
    }
    let is_sharded = layout.zero >= Zero::Parameters && layout.n_shards() > 1;
    let narrow = problem.execution.formats.is_some_and(|formats| formats.is_narrow());
    let [one_gpu, one_stage] = undivided;
    let misfits = [
        (
            problem.model.experts.is_some(),
            "experts lie in one tensor of all, which bitsandbytes does not pack: a model without experts".to_owned(),
        ),
        (layout.tp > 1, format!("no library cuts packed weights over a tensor group: {one_gpu}")),
        (layout.pp > 1, format!("no pipeline here holds packed weights: {one_stage}")),
        (narrow, "packed weights are widened to 16 bits and multiplied so: leave `training.products` out".to_owned()),
        (
            is_sharded && frozen == Frozen::Int8,
            "FSDP cuts weights of 4 bits alone: `frozen = \"nf4\"`, `\"nf4-double\"` or `\"nf4-torchao\"`, or `parallel.zero = 0`".to_owned(),
        ),
    ];
    let what = format!("`optimizer.frozen = \"{}\"` does not fit the rest", frozen.word());
    for (_, help) in misfits.into_iter().filter(|(misfits, _)| *misfits) {
        reader.refuse(Code::WrongOperation, at.clone(), what.clone(), help);
    }
    if frozen == Frozen::Int8 {
        let what = "products beside `optimizer.frozen = \"int8\"` are counted in 16 bits";
        let help =
            "LLM.int8 multiplies in 8 bits and columns of outliers apart in 16; here a kernel widens each matrix first";
        reader.warn(Code::NotModelled, at.clone(), what, help);
    }
}

/// Divisors that stay inside a node.
fn node_divisors(n: u64, problem: &Problem) -> String {
    let most = problem.cluster.domain();
    // A degree that leaves GPUs over is refused next.
    let fits = |d: &u64| n.is_multiple_of(*d) && u64::from(problem.cluster.n_gpus()).is_multiple_of(*d);
    let all: Vec<String> = (1..=u64::from(most)).filter(fits).map(|d| d.to_string()).collect();
    let who = if most > problem.cluster.gpus_per_node { "an NVLink domain" } else { "a node" };
    format!("{} ({who} has {most} GPUs)", all.join(", "))
}

/// The degrees use every GPU; `dp` left out takes what remains.
fn ranks(reader: &mut Reader<'_>, problem: &mut Problem, at: &Places) -> bool {
    let n_gpus = problem.cluster.n_gpus();
    let layout = &mut problem.layout;
    let others = u64::from(layout.cp) * u64::from(layout.tp) * u64::from(layout.pp);
    let left_out = layout.dp == 0;
    if left_out {
        layout.dp = u32::try_from(u64::from(n_gpus) / others).expect("below the GPUs").max(1);
    }
    let ranks = u64::from(layout.dp) * others;
    if ranks == u64::from(n_gpus) {
        return true;
    }
    let degrees = [("dp", layout.dp), ("cp", layout.cp), ("tp", layout.tp), ("pp", layout.pp)];
    let named: Vec<String> = degrees
        .iter()
        .filter(|(name, degree)| *degree > 1 || *name == "dp" || *name == "cp")
        .map(|(name, degree)| format!("{name} {degree}"))
        .collect();
    let what = format!("{} = {ranks} ranks, the cluster has {n_gpus} GPUs", named.join(" × "));
    let fitting = if u64::from(n_gpus).is_multiple_of(others) {
        format!("`dp = {}` would use them all", u64::from(n_gpus) / others)
    } else {
        let what = if layout.tp == 1 && layout.pp == 1 { "cp does" } else { "cp × tp × pp do" };
        format!("{what} not divide {n_gpus}; allowed are {}", divisors(u64::from(n_gpus)))
    };
    reader.refuse(Code::WrongGpuCount, at.cp.clone(), what, fitting);
    false
}

/// Heads and widths that a degree cuts.
fn divisions(reader: &mut Reader<'_>, problem: &Problem, policies: &[PolicyChoice], at: &Places) {
    let (layout, model) = (&problem.layout, &problem.model);
    let heads = model.n_heads;
    if !heads.is_multiple_of(u64::from(layout.tp)) {
        let what =
            format!("tensor parallel {} does not divide the {heads} attention heads of `{}`", layout.tp, model.name);
        reader.refuse(
            Code::UnevenDegree,
            at.tp.clone(),
            what,
            format!("allowed here: {}", node_divisors(heads, problem)),
        );
    }
    let cut = u64::from(layout.cp) * u64::from(layout.tp);
    // Its groups are as wide as the heads allow, whatever the pool is.
    let is_pool = !policies.is_empty() && policies.iter().all(|choice| choice.policy == POOLS);
    if layout.exchange == ContextExchange::Ulysses && layout.cp > 1 && !heads.is_multiple_of(cut) && !is_pool {
        let degrees = if layout.tp == 1 { format!("cp {}", layout.cp) } else { format!("cp × tp {cut}") };
        let what = format!("ulysses cuts heads: {degrees} does not divide the {heads} heads of `{}`", model.name);
        let help = format!("allowed here: {}; a variant may have a `cp` of its own", divisors(heads));
        reader.refuse(Code::UlyssesHeads, at.cp.clone(), what, help);
    }
    let island = problem.cluster.nvlink_island;
    if layout.tp > 1 && problem.scatters_tensor_groups() {
        let what = format!("GPUs of a tensor group lie on several NVLink islands of {island} GPUs");
        let help = "write `order` with tp first: an exchange of GPUs that lie apart has no price";
        reader.refuse(Code::CrossesIslands, at.tp.clone(), what, help);
    } else if layout.tp > island && island < problem.cluster.gpus_per_node {
        let what = format!("a tensor group of {} crosses NVLink islands of {island} GPUs", layout.tp);
        let help = format!("its exchange goes over PCIe with every layer; `tp = {island}` stays inside");
        reader.warn(Code::CrossesIslands, at.tp.clone(), what, help);
    }
}

/// Groups that hold all sharded states each divide the ranks that hold the same parameters.
fn copies(reader: &mut Reader<'_>, problem: &Problem, at: &Places) {
    let (n, holders) = (problem.layout.replicate, problem.layout.n_holders());
    if !holders.is_multiple_of(n) {
        let what = format!("`replicate = {n}` does not divide the {holders} ranks that hold the same parameters");
        let help = format!("allowed here: {}", divisors(u64::from(holders)));
        reader.refuse(Code::UnevenDegree, at.replicate.clone(), what, help);
    }
}

fn experts(reader: &mut Reader<'_>, problem: &Problem, at: &Places) {
    let layout = &problem.layout;
    let n_routed = problem.model.experts.map_or(0, |experts| experts.n_routed);
    let ep = u64::from(layout.ep);
    if ep > 1 && n_routed == 0 {
        let what = format!("expert parallel {ep}, but `{}` has no experts", problem.model.name);
        reader.refuse(Code::WrongExperts, at.ep.clone(), what, "leave `ep` out");
    } else if ep > 1 && !n_routed.is_multiple_of(ep) {
        let what = format!("expert parallel {ep} does not divide the {n_routed} experts of `{}`", problem.model.name);
        reader.refuse(Code::WrongExperts, at.ep.clone(), what, format!("allowed here: {}", divisors(n_routed)));
    }
    if !layout.tp.is_multiple_of(layout.expert_tp) {
        let what = format!("`expert_tp` is {}, which does not divide tp {}", layout.expert_tp, layout.tp);
        let help = format!("allowed here: {}", divisors(u64::from(layout.tp)));
        reader.refuse(Code::WrongExperts, at.ep.clone(), what, help);
    } else if layout.expert_span().is_none() {
        let what = format!("expert groups of {ep} do not fill tp {} × cp {} × dp {}", layout.tp, layout.cp, layout.dp);
        let help =
            "a group covers tensor ranks (with `expert_tp = 1`), then context, then data ranks; each in whole parts";
        reader.refuse(Code::WrongExperts, at.ep.clone(), what, help);
    }
}

/// Layers with a state, or with keys of several tokens together, are computed on whole sequences.
fn states(reader: &mut Reader<'_>, problem: &Problem, at: &Places) {
    let model = &problem.model;
    let n = model.count(model.n_layers, |layer| matches!(layer.mixer, Mixer::StateSpace | Mixer::Linear));
    let n_together = model.count(model.n_layers, |layer| layer.mixer.kept_together() > 1);
    // Formulas have no times for such layers at all, which the model was refused for.
    let is_timed = problem.execution.framework != Framework::Formulas;
    if n + n_together > 0 && is_timed && problem.layout.cp > 1 {
        let (n, do_what) =
            if n > 0 { (n, "carry a state along") } else { (n_together, "keep keys of several tokens together") };
        let what = format!("context parallel {}, and {n} layers of `{}` {do_what}", problem.layout.cp, model.name);
        let help = "sequences are not cut where layers have a state or such keys: `cp = 1`";
        reader.refuse(Code::UnsupportedModel, at.cp.clone(), what, help);
    }
}

fn stages(reader: &mut Reader<'_>, problem: &Problem, at: &Places) {
    let (layout, n_layers) = (&problem.layout, problem.model.n_layers);
    let n_stages = problem.schedule.placement.n_stages(layout.pp as usize, layout.chunks as usize) as u64;
    // Listed layers may leave embedding and loss alone on their stages, as Megatron-Core counts each as a layer.
    if n_stages > n_layers && problem.execution.unit_times.is_none() && problem.execution.layers.is_empty() {
        let what = format!(
            "{n_stages} pipeline stages ({} ranks, {} chunks each), but `{}` has {n_layers} layers",
            layout.pp, layout.chunks, problem.model.name
        );
        let help =
            format!("allowed are up to {n_layers} stages, for example `pp = {}`", n_layers.min(u64::from(layout.pp)));
        reader.refuse(Code::WrongStages, at.pp.clone(), what, help);
    }
    let given = &problem.execution.layers;
    let sum: u64 = given.iter().map(|&n| u64::from(n)).sum();
    if !given.is_empty() && (given.len() as u64 != n_stages || sum != n_layers) {
        let what = format!(
            "`layers` gives {sum} layers to {} stages, the model has {n_layers} and the pipeline {n_stages}",
            given.len()
        );
        let help = match problem.n_predicting() {
            0 => "one number per stage along the path, all layers in total".to_owned(),
            n => {
                format!("one number per stage along the path, all layers in total; {n} of them predict further tokens")
            }
        };
        reader.refuse(Code::WrongStages, at.layers.clone(), what, help);
    }
    let cuts_gradients = layout.pp > 1 && layout.zero >= Zero::Gradients;
    if cuts_gradients && !problem.execution.framework.cuts_gradients_of_stages() {
        let what = format!("DeepSpeed's pipeline does not start with ZeRO {}", layout.zero as u32);
        reader.refuse(Code::WrongOperation, at.pp.clone(), what, "use `zero = 1`, or `pp = 1`");
    }
    if cuts_gradients && problem.schedule.splits_backward {
        let what = "ZeRO 2 and 3 shard gradients, which a schedule with split backward accumulates over the whole step";
        reader.refuse(
            Code::ShardedSplitBackward,
            at.pp.clone(),
            what.to_owned(),
            "use `zero = 1`, or `schedule = \"1f1b\"`",
        );
    }
}

/// Fills in the tokens of a micro-batch, where nobody wrote them, and holds sequences against them. Where states leave room for none, each policy says so.
fn lengths(reader: &mut Reader<'_>, problem: &mut Problem, policies: &[PolicyChoice]) {
    if problem.execution.unit_times.is_none() && memory::fits(problem).is_err() {
        return;
    }
    if problem.bucket_tokens == 0 {
        problem.bucket_tokens = fitting::usual_bucket(problem);
    }
    warn_of_long(reader, problem, policies);
}

/// Warns of a sequence that no context group holds, and says which policies run nothing of the kind: others cut it into chunks, or make groups of their own.
fn warn_of_long(reader: &mut Reader<'_>, problem: &Problem, policies: &[PolicyChoice]) {
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
    let capacity = |cp: u32| problem.bucket_tokens * u64::from(cp);
    let keeps_whole = |choice: &&PolicyChoice| {
        let policy = planner::train::policies::named(&choice.policy);
        policy.is_none_or(|policy| policy.fits_whole()) && longest > capacity(choice.cp.unwrap_or(problem.layout.cp))
    };
    let named: Vec<String> = policies.iter().filter(keeps_whole).map(|choice| format!("`{}`", choice.name)).collect();
    let Some(first) = policies.iter().find(keeps_whole).filter(|_| problem.bucket_tokens > 0) else { return };
    let capacity = capacity(first.cp.unwrap_or(problem.layout.cp));
    let what = format!(
        "the longest sequence has {longest} tokens, a context group holds {capacity} ({} per rank); {} will find it infeasible",
        problem.bucket_tokens,
        named.join(", ")
    );
    reader.warn(
        Code::LongSequence,
        None,
        what,
        format!("`workload.max_tokens = {capacity}`, a larger `cp` or a larger `training.bucket_tokens`"),
    );
}
