//! Megatron-LM: a launch script or the YAML of its functional tests becomes a training scenario.
//!
//! What flags mean is that of `megatron/training/arguments.py` (the version stands in `tables/megatron.tsv`). Degrees that do not divide and
//! stages that lose layers are findings at the flag, before a scenario is made.

mod attention;
mod bigscience;
pub(crate) mod deepspeed;
mod dispatch;
pub(crate) mod export;
mod hybrid;
mod layers;
mod model;
pub(crate) mod named;
mod older;
mod optimizer;
mod parallel;
mod rules;
pub(crate) mod slime;
pub(crate) mod swift;
use std::collections::BTreeSet;
pub use std::sync::LazyLock;

use input::diagnostic::{Code, Finding, Severity};

use crate::again::{Again, Names};
use crate::document::Document;
use crate::flags::{Effect, Flag, Flags, Table, words};
use crate::launch::{self, Judge, Launch};
use crate::{Imported, Machine};
use engine::recompute::Module;
pub use export::TARGET;
pub(crate) use model::write as shape;
use parallel::Degrees;
use train::megatron_core::{self, Graphs};
use train::problem::{Dropout, Fusion};

/// Flags of Megatron-LM.
pub static FLAGS: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../tables/megatron.tsv")).without_negations());

/// Its flags that take no value.
static SWITCHES: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let lines = include_str!("../tables/megatron-switches.tsv").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
});

/// What programs train whose layers a pattern tells.
const STATE_SPACE: &str = "state-space layers";
/// Programs whose models are not decoders of attention and feed-forward, with what they train.
const OTHER_PROGRAMS: [(&str, &str); 8] = [
    ("t5", "an encoder and a decoder"),
    ("bert", "an encoder, whose attention is not causal"),
    ("mamba", STATE_SPACE),
    ("hybrid", STATE_SPACE),
    ("vlm", "an encoder of images beside the decoder"),
    ("vision", "an encoder of images"),
    ("retro", "a retriever beside the decoder"),
    ("ict", "two encoders"),
];

/// Flags that ask for other layers than those of a decoder, with what they ask for.
const ASKING: [(&str, &str); 4] = [
    ("is-hybrid-model", "layers without attention"),
    ("hybrid-attention-ratio", "layers without attention"),
    ("heterogeneous-layers-config-path", "layers with shapes of their own, from a file"),
    ("heterogeneous-layers-config-encoded-json", "layers with shapes of their own"),
];
/// Whose jobs its own reader of flags checks.
const STACK: &str = "Megatron-LM";

/// Which word of a command begins the program.
pub(crate) fn begins(words: &[String]) -> Option<usize> {
    swift::begins(words).or_else(|| words.iter().position(|word| is_program(word)))
}

/// Whether a word is a program of Python, and not the launcher of several.
fn is_program(word: &str) -> bool {
    word.ends_with(".py") && !word.contains("torch.distributed")
}

/// Reads a launch script or the YAML of a functional test.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let is_yaml = launch::lines(text).any(|line| line.starts_with("MODEL_ARGS:"));
    let (is_swift, table) = (swift::starts(text), &*deepspeed::FLAGS);
    let knows = |name: &str| table.find(name).is_some();
    let matters = |name: &str| table.find(name).is_none_or(|known| known.effect != Effect::Silent);
    let judge = Judge { knows: &knows, matters: &matters, is_switch: &|name| !is_swift && SWITCHES.contains(name) };
    let launch = if is_yaml { launch::of_yaml(text, "MODEL_ARGS") } else { launch::of_judged(text, begins, judge) };
    match launch {
        Ok(mut launch) => {
            launch.findings.extend(if is_yaml || is_swift { Vec::new() } else { switched(&launch.flags) });
            older::today(&mut launch.flags);
            slime::today(&mut launch);
            bigscience::today(&mut launch);
            deepspeed::today(&mut launch);
            let machine = swift::today(&mut launch, machine);
            let machine = deepspeed::with_written(text, &machine, &launch);
            of_launch(launch, &machine)
        }
        Err(finding) => Imported::refused(finding),
    }
}

/// Errors about switches with a word behind them that says on or off: the reader of flags has none (`store_true`), and stops.
fn switched(flags: &[Flag]) -> Vec<Finding> {
    const WORDS: [&str; 6] = ["true", "false", "yes", "no", "on", "off"];
    let is_word = |flag: &&Flag| WORDS.contains(&flag.value().to_lowercase().as_str());
    let wrong = flags.iter().filter(|flag| SWITCHES.contains(flag.name.as_str())).filter(is_word).map(|flag| {
        let what = format!("`--{}` takes no word, and `{}` stands behind it", flag.name, flag.value());
        let help = "it is on where it stands, and off where it is left out";
        Finding::error(Code::WrongFlag, Some(flag.at.clone()), what).help(help)
    });
    wrong.collect()
}

/// A training job as it is started.
pub fn of_launch(launch: Launch, machine: &Machine) -> Imported {
    let guessed = model::guessed(&launch.flags, machine);
    let mut imported = of_job(launch, machine, STACK, &|flags, out| shape_of(flags, out, machine));
    // What was guessed comes behind what is wrong.
    imported.findings.extend(guessed);
    imported
}

/// Writes the model: that of the command line, where the script leaves its shape to another file, and else what flags state.
fn shape_of(flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) -> Option<Shape> {
    named::length(flags, machine);
    match named::model(flags, machine) {
        Some(Ok(model)) => named::write(flags, out, &model),
        Some(Err(finding)) => {
            flags.findings.push(finding);
            None
        }
        None => model::write(flags, out, machine),
    }
}

/// Writes the model, and says what layouts need of its shape; `None` where it cannot.
type WriteModel<'a> = dyn Fn(&mut Flags<'_>, &mut Document) -> Option<Shape> + 'a;

/// A training job of a stack with the flags of Megatron-LM.
pub(crate) fn of_job(launch: Launch, machine: &Machine, stack: &str, model: &WriteModel<'_>) -> Imported {
    let (gpus, per_node) = launch::with_stated(launch::gpus_on(&launch.launcher, machine), machine);
    let is_deepspeed = deepspeed::is_job(&launch.flags);
    let is_slime = slime::is_job(&launch.flags);
    let is_swift = swift::is_job(&launch.program);
    let table = match (is_slime, is_swift) {
        (true, _) => &slime::FLAGS,
        (_, true) => &swift::FLAGS,
        _ => deepspeed::table(&launch.flags),
    };
    let mut flags = Flags::new(launch.flags, table);
    flags.findings = launch.findings;
    flags.findings.extend(launch::unknown_gpus(&launch.launcher, machine));
    program(&mut flags, &launch.program);
    let mut out = Document::default();
    out.remark(format!("A training job of {stack} as a scenario; remarks name the flags that gave the keys."));
    out.word("", "kind", "training", "");
    out.set("", "seed", 0, "");
    let shape = model(&mut flags, &mut out);
    if let Some(shape) = shape {
        let degrees = Degrees::read(&mut flags, &shape, gpus, machine);
        parallel::machine(&mut flags, &mut out, &degrees, per_node, machine);
        parallel::write(&mut flags, &mut out, &degrees, &shape);
        let n_micro_batches = training(&mut flags, &mut out, &degrees, (&shape, machine));
        let is_own = stack == STACK && !is_deepspeed && !is_slime && !is_swift;
        dispatch::write(&mut flags, &mut out, (&shape, &degrees), is_own);
        if is_slime {
            slime::filled(&mut flags, &mut out, &shape);
        }
        if is_swift {
            swift::trained(&mut flags, &mut out, (&shape, machine));
        }
        if is_deepspeed {
            deepspeed::engine(&mut flags, &mut out, (&shape, machine, n_micro_batches));
        }
    }
    out.set("policies", "run", "[\"megatron\"]", "sequences of one length, in order");
    // The rules are Megatron-LM's of today.
    let refusals = if is_deepspeed { Vec::new() } else { rules::all(&flags, stack == STACK) };
    rules::refuse(&mut flags, refusals);
    flags.judge();
    Imported { scenario: out.toml(), findings: flags.findings }
}

/// Whether there is an error among findings.
pub(crate) fn is_wrong(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

/// Refuses programs that train something else.
fn program(flags: &mut Flags<'_>, program: &[String]) {
    let name = program.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    let found = OTHER_PROGRAMS.iter().find(|(word, _)| name.split(['_', '.']).any(|part| part == *word));
    let is_hybrid = found.is_none_or(|(_, what)| *what == STATE_SPACE) && hybrid::flag(flags).is_some();
    if is_hybrid {
        return;
    }
    let by_flag = ASKING.into_iter().find(|(flag, _)| flags.is(flag));
    let (what, at) = match (found, by_flag) {
        (Some((_, what)), _) => (format!("`{name}` trains {what}"), None),
        (None, Some((flag, what))) => (format!("`--{flag}` asks for {what}"), flags.at(flag)),
        (None, None) if flags.is("encoder-pipeline-model-parallel-size") || flags.is("decoder-seq-length") => {
            ("the job trains an encoder and a decoder".to_owned(), flags.at("decoder-seq-length"))
        }
        _ => return,
    };
    let help = "training steps are modelled of decoders with attention and feed-forward in every layer, or by `--hybrid-layer-pattern`";
    flags.refuse(Code::UnsupportedJob, at, what, help);
}

/// What the shape of the model says of layouts.
pub(crate) struct Shape {
    pub(crate) n_layers: u64,
    /// Further tokens that layers behind them predict.
    pub(crate) n_predicting: u64,
    /// Layers that predict one of them.
    pub(crate) layers_per_further_token: u64,
    /// Layers of the stages that the model's pattern marks; empty where it marks none.
    pub(crate) stages: Vec<u32>,
    pub(crate) n_heads: u64,
    pub(crate) n_groups: u64,
    pub(crate) n_experts: u64,
    pub(crate) tokens: u64,
}

/// `[training]`, `[overlap]`, `[experts]` and `[workload]`; micro-batches of a replica.
fn training(flags: &mut Flags<'_>, out: &mut Document, degrees: &Degrees, (shape, machine): (&Shape, &Machine)) -> u64 {
    let micro_batch = flags.count("micro-batch-size", 1..=1_000_000).unwrap_or(1);
    let replicas = u64::from(degrees.dp());
    let of_schedule = last_batch(flags);
    let given = flags.count("global-batch-size", 1..=1_000_000).or(of_schedule);
    let batch = given.unwrap_or(micro_batch * replicas);
    let whole = micro_batch * replicas;
    if !batch.is_multiple_of(whole) && !is_wrong(&flags.findings) {
        let what = format!(
            "`--global-batch-size {batch}` is not a multiple of micro-batch {micro_batch} times {replicas} replicas"
        );
        let (below, above) = (batch / whole * whole, batch.div_ceil(whole) * whole);
        let near = if below > 0 && batch - below < above - batch { below } else { above };
        flags.wrong("global-batch-size", what, format!("allowed are multiples of {whole}, for example {near}"));
    }
    rounds(flags, degrees, batch / whole, whole);
    out.set("training", "batch_size", batch, "--global-batch-size");
    let tokens = (micro_batch * shape.tokens).div_ceil(u64::from(degrees.cp));
    out.set("training", "bucket_tokens", tokens, "--micro-batch-size × --seq-length / --context-parallel-size");
    out.word("training", "framework", "megatron-core", "whose kernels keep what in memory");
    out.set("training", "predicting_layers", shape.n_predicting, "--mtp-num-layers");
    loss(flags, out);
    precision(flags, out);
    let unfused_by = attention::unfused_by(flags, machine);
    recompute(flags, out, unfused_by.is_some());
    on_host(flags, out, shape);
    optimizer::optimizer(flags, out);
    if let Some(remark) = unfused_by {
        out.word("training", "attention", "unfused", remark);
    } else if attention::is_flash_two(flags, machine) {
        out.word("training", "attention", "flash-attention-2", "--attention-backend flash");
    }
    let sync = if flags.is("overlap-grad-reduce") { "overlapped" } else { "at_end" };
    out.word("training", "gradient_sync", sync, "--overlap-grad-reduce");
    if flags.is("overlap-param-gather") {
        out.set("overlap", "parameter_gather", true, "--overlap-param-gather");
    }
    let is_overlapped = degrees.chunks > 1 && !flags.is("no-overlap-p2p-communication");
    if degrees.pp > 1 {
        out.set("overlap", "stage", is_overlapped, "messages go behind computation with virtual stages alone");
    }
    hidden(flags, out, degrees, u32::try_from(batch / whole).unwrap_or(u32::MAX).max(1));
    graphs(flags, out);
    fused(flags, out);
    unfused(flags, out, shape);
    if let Some(capacity) = flags.number("moe-expert-capacity-factor") {
        out.set("experts", "capacity", capacity, "--moe-expert-capacity-factor");
    }
    out.set("workload", "tokens", shape.tokens, "--seq-length");
    batch / whole
}

/// The last batch of a schedule, `0:768 250B:1536`, which stands in the place of `--global-batch-size`.
fn last_batch(flags: &mut Flags<'_>) -> Option<u64> {
    const NAME: &str = "step-batch-size-schedule";
    let schedule = flags.needed(NAME)?;
    let last = schedule.split_whitespace().last().and_then(|step| step.trim_matches(['"', '\'']).split_once(':'));
    let batch = last.and_then(|(_, batch)| batch.parse().ok()).filter(|batch| (1..=1_000_000).contains(batch));
    match batch {
        Some(_) => flags.not_modelled(NAME, "the batch is taken at its last size, or as `--global-batch-size` says"),
        None => {
            let help = "allowed are steps of a threshold and a batch, for example `0:768 250B:1536`";
            flags.wrong(NAME, format!("`--{NAME} {schedule}` is no schedule"), help.to_owned());
        }
    }
    batch
}

/// Refuses what Megatron Core does not run of stages and micro-batches.
fn rounds(flags: &mut Flags<'_>, degrees: &Degrees, n_micro_batches: u64, whole: u64) {
    let (pp, chunks) = (u64::from(degrees.pp), u64::from(degrees.chunks));
    let rounds = rules::Rounds { pp, chunks, n_micro_batches, whole };
    let mut refusals: Vec<_> = rules::stages(flags, rounds).into_iter().collect();
    refusals.extend(rules::interleaved(flags, rounds));
    if !is_wrong(&flags.findings) {
        let group = flags.count("microbatch-group-size-per-virtual-pipeline-stage", pp..=100_000);
        refusals.extend(rules::groups(rounds, group));
    }
    rules::refuse(flags, refusals);
}

/// How the loss is computed; the kind of fusion counts with the switch alone.
fn loss(flags: &mut Flags<'_>, out: &mut Document) {
    if !flags.is("cross-entropy-loss-fusion") {
        return;
    }
    let kinds = [("native", "native"), ("te", "te"), ("linear", "linear")];
    let word = flags.word("cross-entropy-fusion-impl", &kinds).unwrap_or("native");
    out.word("training", "loss", word, "--cross-entropy-loss-fusion, --cross-entropy-fusion-impl");
}

/// Says of a history of largest values that scales of earlier steps are not counted. Megatron-LM scales so where no recipe is named (`--fp8-recipe`).
fn delayed_scaling(flags: &mut Flags<'_>) {
    const HISTORY: &str = "fp8-amax-history-len";
    const WHY: &str = "scales of earlier steps save a reading of each tensor that is cast: those of the same step are counted (`tensorwise`)";
    let is_delayed = flags.find("fp8-recipe").is_none_or(|recipe| recipe.value() == "delayed");
    if is_delayed && flags.find(HISTORY).is_some_and(|flag| flag.value() != "1") {
        flags.not_modelled(HISTORY, WHY);
    }
}

/// Where layers have dropout: what no flag says is the stack's default.
pub(crate) fn dropout(flags: &mut Flags<'_>, out: &mut Document, default: f64) {
    let mut has = |name: &str| flags.number(name).unwrap_or(default) > 0.0;
    let dropout = Dropout { attention: has("attention-dropout"), residual: has("hidden-dropout") };
    const TIMELESS: &str =
        "--attention-dropout, --hidden-dropout: masks are kept; the time of random numbers and masks is not modelled";
    let has_any = dropout.attention || dropout.residual;
    let remark = if has_any { TIMELESS } else { "--attention-dropout, --hidden-dropout" };
    out.word("training", "dropout", dropout.word(), remark);
}

/// Exchanges that run behind computation.
fn hidden(flags: &mut Flags<'_>, out: &mut Document, degrees: &Degrees, n_micro_batches: u32) {
    if flags.is("tp-comm-overlap") && degrees.tp > 1 {
        out.set("overlap", "tensor", megatron_core::USER_BUFFERS, "--tp-comm-overlap: all but one of a ring of chunks");
    }
    if degrees.ep > 1 && flags.is("overlap-moe-expert-parallel-comm") {
        // Gradients of weights behind those of inputs.
        if flags.is("delay-wgrad-compute") {
            out.set("overlap", "delayed_weights", true, "--delay-wgrad-compute");
        }
        let share = megatron_core::EXPERT_OVERLAP * megatron_core::steady_share(degrees.pp, n_micro_batches);
        let remark = "--overlap-moe-expert-parallel-comm: the steady state has a neighbour's passes to run behind";
        out.set("overlap", "expert", share, remark);
    }
}

/// Kernels that Transformer Engine fuses: those of experts count, others do not.
fn fused(flags: &mut Flags<'_>, out: &mut Document) {
    const NAME: &str = "use-transformer-engine-op-fuser";
    if !flags.is(NAME) {
        return;
    }
    if flags.find("num-experts").is_some() && flags.text("fp8-recipe").is_some_and(|recipe| recipe == "mxfp8") {
        out.set("experts", "fused", true, "--use-transformer-engine-op-fuser");
    } else {
        flags.not_modelled(NAME, "kernels are fused for experts with `--fp8-recipe mxfp8` alone");
    }
}

/// Kernels that are not fused: those of permutation but for a switch, the others by a switch.
fn unfused(flags: &mut Flags<'_>, out: &mut Document, shape: &Shape) {
    let (has_experts, is_gated) = (shape.n_experts > 0, flags.is("swiglu"));
    // A plain function without a bias is one kernel either way.
    let has_bias = has_experts || !flags.is("disable-bias-linear");
    let is_single =
        if is_gated { flags.is("no-bias-swiglu-fusion") } else { flags.is("no-bias-gelu-fusion") && has_bias };
    let is_rotated = flags.is("multi-latent-attention")
        || flags.is("use-rotary-position-embeddings")
        || flags.text("position-embedding-type").is_some_and(|kind| kind == "rope");
    let found = [
        (Fusion::Permutation, has_experts && !flags.is("moe-permute-fusion")),
        (Fusion::Activation, is_single),
        (Fusion::Positions, is_rotated && flags.is("no-rope-fusion")),
        (Fusion::GradientAccumulation, flags.is("no-gradient-accumulation-fusion")),
    ];
    let words: Vec<String> =
        found.iter().filter(|(_, is_so)| *is_so).map(|(fusion, _)| format!("\"{}\"", fusion.word())).collect();
    if !words.is_empty() {
        let remark = "no --moe-permute-fusion; --no-bias-swiglu-fusion, --no-rope-fusion and their like";
        out.set("training", "unfused", format!("[{}]", words.join(", ")), remark);
    }
}

/// Layers whose activations wait on the host: the first ones, by streams of their own (Transformer Engine, `get_cpu_offload_context`).
fn on_host(flags: &mut Flags<'_>, out: &mut Document, shape: &Shape) {
    const NAME: &str = "cpu-offloading-num-layers";
    let Some(n) = flags.count(NAME, 0..=100_000).filter(|n| *n > 0) else { return };
    if n >= shape.n_layers {
        let what = format!("`--{NAME} {n}` is not below the {} layers of the model", shape.n_layers);
        return flags.wrong(NAME, what, "Megatron-Core keeps the last layer's activations on the device".to_owned());
    }
    out.set("training", "offload_ratio", hw::real(n) / hw::real(shape.n_layers), "--cpu-offloading-num-layers");
}

/// What CUDA graphs replay; older versions have a switch for each kind.
fn graphs(flags: &mut Flags<'_>, out: &mut Document) {
    const NAMES: [&str; 2] = ["cuda-graph-modules", "cuda-graph-scope"];
    let switches = [
        ("full-cuda-graph", "full_iteration"),
        ("external-cuda-graph", "transformer_engine"),
        ("enable-cuda-graph", "local"),
    ];
    let of_switch = switches.iter().find(|(name, _)| flags.is(name)).map(|(_, word)| (*word).to_owned());
    let Some(implementation) = flags.text("cuda-graph-impl").or(of_switch) else { return };
    let name = NAMES.into_iter().find(|name| flags.find(name).is_some());
    let text = name.and_then(|name| flags.text(name)).unwrap_or_default();
    let mut modules: Vec<&str> = words(&text).collect();
    // Graphs without modules are of whole layers.
    let is_whole = modules.iter().all(|module| *module == "full");
    if is_whole && implementation == "transformer_engine" {
        modules.extend(["attn", "moe_router"]);
    }
    let found = Graphs::of_options(&implementation, &modules);
    if found != Graphs::Off {
        out.word("training", "graphs", found.word(), "--cuda-graph-impl, --cuda-graph-modules");
    }
    let is_known =
        |module: &&str| matches!(*module, "attn" | "moe_router" | "moe_preprocess") || module.starts_with("full");
    if let Some(name) = name.filter(|_| found != Graphs::Off && !modules.iter().all(is_known)) {
        flags.not_modelled(
            name,
            "of modules `attn` and `moe_router` are replayed; the host launches the kernels of others",
        );
    }
}

/// Number formats of activations, gradients and products.
fn precision(flags: &mut Flags<'_>, out: &mut Document) {
    let is_half = flags.is("bf16") || flags.is("fp16");
    if !is_half {
        let what = "neither `--bf16` nor `--fp16` is given: Megatron-LM computes in 32 bits, which is taken as 16 here";
        let help = "products come out faster and activations smaller than they are; states come out as 18 bytes a parameter, and 32 bits have 16";
        flags.warn(Code::NotModelled, None, what, help);
    }
    out.word(
        "training",
        "dtype",
        if flags.is("fp16") { "fp16" } else { "bf16" },
        if flags.is("fp16") { "--fp16" } else { "--bf16" },
    );
    let is_narrow = flags.is("grad-reduce-in-bf16")
        || flags.text("main-grads-dtype").is_some_and(|word| word == "bf16")
        || flags.is("fp16") && !flags.is("accumulate-allreduce-grads-in-fp32");
    out.word(
        "training",
        "gradient_dtype",
        if is_narrow { "bf16" } else { "fp32" },
        "--grad-reduce-in-bf16, --accumulate-allreduce-grads-in-fp32",
    );
    if flags.is("fp8-format") {
        let recipes = [("tensorwise", "fp8"), ("delayed", "fp8"), ("blockwise", "fp8-block"), ("mxfp8", "mxfp8")];
        let format = if flags.find("fp8-recipe").is_some() { flags.word("fp8-recipe", &recipes) } else { Some("fp8") };
        out.word("training", "products", format.unwrap_or("fp8"), "--fp8-format, --fp8-recipe");
        delayed_scaling(flags);
    }
    if flags.is("fp4-format") {
        out.word("training", "products", "nvfp4", "--fp4-format");
    }
    const GATHERS: [&str; 4] = ["fp8-param-gather", "fp8-param", "fp4-param-gather", "fp4-param"];
    let is_narrow = flags.is("fp8-format") || flags.is("fp4-format");
    if is_narrow && GATHERS.into_iter().any(|name| flags.is(name)) {
        out.set("training", "narrow_gather", true, "--fp8-param-gather, --fp4-param-gather");
    }
}

/// Which activations are computed again.
fn recompute(flags: &mut Flags<'_>, out: &mut Document, is_unfused: bool) {
    let names = Names {
        granularity: "recompute-granularity",
        modules: "recompute-modules",
        method: "recompute-method",
        n_layers: "recompute-num-layers",
    };
    // The older word for experts (`transformer_config.py`, `__post_init__`): selective, with them among the modules.
    let has_experts = flags.is("moe-layer-recompute");
    let is_selective = has_experts || flags.is("recompute-activations");
    let mut again = Again::of(flags, &names, is_selective, is_unfused);
    if has_experts {
        again.recompute = again.recompute.with(Module::Experts);
    }
    out.set("training", "recompute", again.recompute.written(), "--recompute-granularity, --recompute-modules");
    if let Some(n) = again.layers {
        out.set("training", "recompute_layers", n, "--recompute-num-layers");
    }
}

#[cfg(test)]
mod tests;
