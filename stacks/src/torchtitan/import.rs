//! Options of torchtitan → a training scenario: a launch script, or options alone. The model is what `--config` or `--model.flavor` names.

use std::sync::LazyLock;

use engine::model::of_checkpoint;
use input::diagnostic::{Code, Finding};

use super::release::{self, Release};
use super::{configurations, file};
use crate::flags::{Flag, Flags, Table, of_words, words};
use crate::job::Job;
use crate::launch::{self, Launch};
use crate::{Imported, Machine, schedule, shell};
use train::problem::Overlap;

/// Options of torchtitan.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../../tables/torchtitan.tsv")));
/// Largest count.
const MOST: u64 = 100_000_000;
/// The option that names a schedule.
const SCHEDULE: &str = "parallelism.pipeline-parallel-schedule";
/// Schedules of PyTorch's pipelines (`get_schedule_class` of `torch/distributed/pipelining/schedules.py`), what they are called here, and what is said where
/// another one is taken.
const SCHEDULES: [(&str, &str, &str); 8] = [
    ("1F1B", "1f1b", ""),
    ("GPipe", "gpipe", ""),
    ("Interleaved1F1B", "interleaved", ""),
    ("ZBVZeroBubble", "zb-v", ""),
    ("_PipelineScheduleRuntime", "1f1b", ""),
    ("LoopedBFS", "interleaved", "`Interleaved1F1B` is taken, which does not wait for all forwards"),
    ("InterleavedZeroBubble", "interleaved", "`Interleaved1F1B` is taken, whose backward is one pass"),
    ("DualPipeV", "zb-v", "`ZBVZeroBubble` is taken, with stages in the same places"),
];

/// Which word of a command begins the program.
fn begins(words: &[String]) -> Option<usize> {
    words
        .iter()
        .position(|word| word == "torchtitan.train" || word.ends_with("run_train.sh") || word.ends_with("train.py"))
}

/// Reads a launch script, or options alone.
pub fn import(text: &str, machine: &Machine) -> Imported {
    if toml_span::parse(text).is_ok_and(|root| file::is_file(&root)) {
        return of_options(file::options(text, None), Launch::default(), machine);
    }
    let mut launch = match launch::of_script(text, begins, &|name| FLAGS.find(name).is_some()) {
        Ok(launch) if !launch.program.is_empty() => launch,
        Ok(_) => Launch { flags: options(text), ..Launch::default() },
        Err(finding) => return Imported::refused(finding),
    };
    configurations::variables(&mut launch);
    match file::beside(&launch.flags, machine) {
        Some(of_file) => of_options(of_file, launch, machine),
        None => of_launch(launch, None, machine),
    }
}

/// Options of a file, or what is wrong with it, below those of a launch.
fn of_options(of_file: Result<Vec<Flag>, Finding>, launch: Launch, machine: &Machine) -> Imported {
    match of_file {
        Ok(of_file) => of_launch(launch, Some(of_file), machine),
        Err(finding) => Imported::refused(finding),
    }
}

/// A launch as a scenario. Its own flags count before those of a file, which stands in the place of the configurations that are known.
fn of_launch(launch: Launch, of_file: Option<Vec<Flag>>, machine: &Machine) -> Imported {
    let gpus = launch::gpus_on(&launch.launcher, machine);
    let has_file = of_file.is_some();
    let mut flags = Flags::new(of_file.into_iter().flatten().chain(launch.flags).collect(), &FLAGS);
    flags.findings = launch.findings;
    flags.findings.extend(launch::unknown_gpus(&launch.launcher, machine));
    let mut job = Job { stack: "torchtitan", model_key: "config", gpus, ..Job::default() };
    let configuration = configuration(&mut flags, has_file);
    let named = model(&mut flags, configuration.as_deref());
    job.model = named.as_deref().or(configuration.as_deref()).map(configurations::model);
    configurations::add(&mut flags, configuration.as_deref().filter(|_| !has_file));
    let names = ["training.seq-len", "training.max-context-length"];
    job.tokens = Some(names.iter().find_map(|name| flags.count(name, 1..=MOST)).unwrap_or(2048));
    job.degrees = ["tensor", "pipeline", "context"]
        .map(|kind| flags.count(&format!("parallelism.{kind}-parallel-degree"), 1..=100_000).unwrap_or(1));
    replicas(&mut flags, &mut job);
    batch(&mut flags, &mut job, machine);
    layout(&mut flags, &mut job);
    pipeline(&mut flags, &mut job, machine);
    memory(&mut flags, &mut job, machine);
    modules(&mut flags, &mut job);
    release::repeated_keys(&flags, &mut job, machine);
    optimizer(&mut flags, &mut job);
    job.import(flags, machine)
}

/// Options that stand alone, a line each.
fn options(text: &str) -> Vec<Flag> {
    let commands = shell::commands(text).unwrap_or_default();
    commands.iter().flat_map(|words| of_words(words)).collect()
}

/// `llama3_8b`, a configuration file of that name, or a family and its flavor, as a file that is read says it.
fn configuration(flags: &mut Flags<'_>, has_file: bool) -> Option<String> {
    let named = ["config", "job.config-file"].into_iter().find_map(|name| flags.text(name)).filter(|_| !has_file);
    named.or_else(|| Some(format!("{}_{}", flags.text("model.name")?, flags.text("model.flavor")?)))
}

/// The model whose flavor options say, over that of a configuration: of the family that they name, or of the configuration's.
fn model(flags: &mut Flags<'_>, configuration: Option<&str>) -> Option<String> {
    let flavor = flags.text("model.flavor")?;
    let family = flags.text("model.name").or_else(|| configuration.map(configurations::family))?;
    Some(format!("{family}_{flavor}"))
}

/// Replicas, and what is sharded over them.
fn replicas(flags: &mut Flags<'_>, job: &mut Job) {
    let replicate = flags.count("parallelism.data-parallel-replicate-degree", 1..=100_000).unwrap_or(1);
    let shard_text = flags.text("parallelism.data-parallel-shard-degree").unwrap_or_else(|| "-1".to_owned());
    let shard =
        if shard_text == "-1" { None } else { flags.count("parallelism.data-parallel-shard-degree", 1..=100_000) };
    job.dp = shard.map(|shard| shard * replicate);
    let is_sharded = shard != Some(1) || replicate == 1 && shard.is_none();
    if replicate > 1 && is_sharded {
        job.key(("parallel", "replicate"), replicate, "--parallelism.data_parallel_replicate_degree");
    }
    // A pipeline gathers parameters once in a step, as it does by default; without one they are gathered in every pass.
    const RESHARD: &str = "parallelism.fsdp-reshard-after-forward";
    let is_usual = if job.degrees[1] > 1 { "never" } else { "always" };
    if flags.text(RESHARD).is_some_and(|word| word != "default" && word != is_usual) {
        flags.not_modelled(RESHARD, "a pipeline keeps gathered parameters for a step, other layouts for a pass");
    }
    job.key(("parallel", "zero"), if is_sharded { 3 } else { 0 }, "--parallelism.data_parallel_shard_degree");
    job.word(("training", "framework"), "pytorch", "modules of PyTorch");
}

/// Sequences of a step and of a micro-batch.
fn batch(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    const OF_MICRO_BATCH: &str = "training.num-tokens-per-microbatch-per-dp-rank";
    // Releases before 2025-06 had it under another name.
    let names = ["training.local-batch-size", "training.batch-size"];
    let is_in_tokens = flags.find(OF_MICRO_BATCH).is_some();
    if is_in_tokens && !names.iter().any(|name| flags.find(name).is_some()) {
        return in_tokens(flags, job, machine, OF_MICRO_BATCH);
    }
    let local = names.into_iter().find_map(|name| flags.count(name, 1..=MOST)).unwrap_or(8);
    let given = flags.text("training.global-batch-size").filter(|text| text != "-1");
    job.batch = given.and_then(|_| flags.count("training.global-batch-size", 1..=MOST));
    job.micro_batch = local;
    if job.degrees[1] > 1 {
        job.micro_batch = flags.count("parallelism.pipeline-parallel-microbatch-size", 1..=MOST).unwrap_or(1);
        job.of_replica = Some(local);
        flush(job, machine, local.div_ceil(job.micro_batch));
    }
}

/// Each step of accumulation runs the schedule on a local batch (`train_step`, `forward_backward_step`), so it ends with a flush.
fn flush(job: &mut Job, machine: &Machine, n_micro_batches: u64) {
    let [tp, pp, cp] = machine.over_degrees(job.degrees);
    let dp = job.dp.or_else(|| job.n_gpus(machine).map(|n_gpus| n_gpus / (tp * pp * cp).max(1)));
    let at_once = dp.zip(job.of_replica).map(|(dp, local)| dp.saturating_mul(local));
    if job.batch.is_some_and(|batch| at_once.is_none_or(|at_once| batch > at_once)) {
        job.key(("parallel", "flush_every"), n_micro_batches, "a pipeline runs one local batch after the other");
    }
}

/// The same of releases that count tokens: those of a micro-batch on a replica, before context ranks share it, and those of a step. A pipeline has as many
/// micro-batches as an option of its own says.
fn in_tokens(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine, of_micro_batch: &str) {
    const OF_STEP: &str = "training.num-tokens-per-train-step";
    let tokens = machine.tokens.or(job.tokens).unwrap_or(1).max(1);
    let slots = flags.count(of_micro_batch, 1..=MOST).unwrap_or(tokens);
    job.micro_batch = slots.div_ceil(tokens);
    job.bucket_tokens = Some(slots.max(tokens).div_ceil(job.degrees[2]));
    let has_number = flags.text(OF_STEP).is_some_and(|text| text != "-1");
    job.batch = if has_number { flags.count(OF_STEP, 1..=MOST).map(|all| all.div_ceil(tokens)) } else { None };
    if job.degrees[1] > 1 {
        let n = flags.count("parallelism.num-pp-microbatches", 1..=MOST).unwrap_or(1);
        job.of_replica = Some(n.saturating_mul(slots).div_ceil(tokens));
        flush(job, machine, n);
    }
}

/// Tensor, context and expert ranks.
fn layout(flags: &mut Flags<'_>, job: &mut Job) {
    let [tp, _, cp] = job.degrees;
    if tp > 1 {
        let is_off = flags.is("parallelism.no-enable-sequence-parallel")
            || flags
                .text("parallelism.enable-sequence-parallel")
                .is_some_and(|word| word.eq_ignore_ascii_case("false"));
        job.key(("parallel", "sequence_parallel"), !is_off, "--parallelism.enable_sequence_parallel");
    }
    if cp > 1 {
        let words = [("allgather", "gather"), ("alltoall", "ring")];
        let given = flags.find("parallelism.context-parallel-rotate-method").is_some();
        let word =
            if given { flags.word("parallelism.context-parallel-rotate-method", &words) } else { Some("gather") };
        job.word(("parallel", "exchange"), word.unwrap_or("gather"), "--parallelism.context_parallel_rotate_method");
    }
    if let Some(ep) = flags.count("parallelism.expert-parallel-degree", 1..=100_000).filter(|ep| *ep > 1) {
        job.key(("parallel", "ep"), ep, "--parallelism.expert_parallel_degree");
        job.key(("parallel", "expert_tp"), 1, "experts are whole: their ranks are taken from all others");
        let backend = flags.text("parallelism.expert-parallel-comm-backend");
        if let Some(word) = backend.filter(|word| *word == "deepep" || *word == "hybridep") {
            job.word(("experts", "dispatcher"), &word, "--parallelism.expert_parallel_comm_backend");
        }
    }
}

/// Layers of the model, where it is known.
fn n_layers(job: &Job, machine: &Machine) -> Option<u64> {
    let asked = machine.model.as_ref().or(job.model.as_ref())?;
    of_checkpoint(asked).map(|model| model.n_layers)
}

/// The schedule, and layers of every stage.
fn pipeline(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let pp = job.degrees[1];
    if pp == 1 {
        return;
    }
    let of_file = of_file(flags, machine);
    let schedule = of_file.or_else(|| of_class(flags)).unwrap_or("1f1b");
    job.word(("parallel", "schedule"), schedule, "--parallelism.pipeline_parallel_schedule, …_schedule_csv");
    let less = ["first", "last"].map(|end| {
        flags.count(&format!("parallelism.pipeline-parallel-{end}-stage-less-layers"), 0..=1000).unwrap_or(1)
    });
    let Some(all) = n_layers(job, machine).map(|n| n + less[0] + less[1]) else { return };
    let each = flags.count("parallelism.pipeline-parallel-layers-per-stage", 1..=10_000);
    let is_looped = matches!(schedule, "interleaved" | "zb-v" | "v-half" | "v-min");
    let n_stages = each.map_or(if is_looped { 2 * pp } else { pp }, |each| all.div_ceil(each));
    if !n_stages.is_multiple_of(pp) || n_stages > all {
        let what =
            format!("{all} layers, ends counted, are {n_stages} stages, which {pp} pipeline ranks do not share evenly");
        let name = "parallelism.pipeline-parallel-degree";
        return flags.wrong(
            name,
            what,
            "give another degree, or `--parallelism.pipeline_parallel_layers_per_stage`".to_owned(),
        );
    }
    if schedule == "interleaved" {
        job.key(("parallel", "chunks"), n_stages / pp, "--parallelism.pipeline_parallel_layers_per_stage");
    }
    let layers = super::stages(all, n_stages, less);
    if layers.iter().any(|n| *n != layers[0]) {
        let words: Vec<String> = layers.iter().map(u64::to_string).collect();
        let remark = "--parallelism.pipeline_parallel_first_stage_less_layers, …_last_stage_less_layers";
        job.key(("parallel", "layers"), format!("[{}]", words.join(", ")), remark);
    }
}

/// The schedule of a class. PyTorch compares names in small letters.
fn of_class(flags: &mut Flags<'_>) -> Option<&'static str> {
    let given = flags.text(SCHEDULE)?;
    let known = SCHEDULES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&given));
    if let Some((_, schedule, why)) = known {
        if !why.is_empty() {
            flags.not_modelled(SCHEDULE, why);
        }
        return Some(schedule);
    }
    flags.word(SCHEDULE, &SCHEDULES.map(|(name, schedule, _)| (name, schedule)))
}

/// The schedule of the file that the options name.
fn of_file(flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    const CSV: &str = "parallelism.pipeline-parallel-schedule-csv";
    let name = flags.text(CSV)?;
    let Some(text) = machine.beside(&name) else {
        flags.not_modelled(CSV, "the schedule's file is not beside this one: that of the class is taken");
        return None;
    };
    match schedule::read(text) {
        Ok(found) => Some(found),
        Err(why) => {
            flags.wrong(
                CSV,
                format!("`{name}` is no schedule: {why}"),
                "a line for each rank, `0F0,0B0` and so on".to_owned(),
            );
            None
        }
    }
}

/// What backward computes again, and number formats.
fn memory(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let words = [("none", "none"), ("selective", "selective"), ("full", "full")];
    let name = ["activation-checkpoint.mode", "ac.mode"].into_iter().find(|name| flags.find(name).is_some());
    let word = match name {
        Some(name) => flags.word(name, &words).unwrap_or("none"),
        None => {
            let what = "the options do not say what backward computes again: `selective`, the default, is taken";
            let help = "give `--set training.recompute=full` or `none` where the recipe says so";
            flags.warn(Code::MissingFlag, None, what, help);
            "selective"
        }
    };
    let every = if word == "selective" { every_so_many(flags) } else { None };
    let word = if every.is_some() { "full" } else { word };
    job.word(
        ("training", "recompute"),
        word,
        "--activation_checkpoint.mode, --activation_checkpoint.selective_ac_option",
    );
    if let Some((every, n_layers)) = every.zip(n_layers(job, machine)) {
        // Every so many-th layer of a stage.
        let n = n_layers.div_ceil(job.degrees[1]).div_ceil(every);
        job.key(("training", "recompute_layers"), n, "--activation_checkpoint.selective_ac_option");
    }
    precision(flags, job);
    // Copies of parameters are reduced with every micro-batch where no pipeline cuts the batch.
    let is_several = job.batch.zip(job.dp).is_some_and(|(batch, dp)| batch > dp.saturating_mul(job.micro_batch));
    let is_copied = job.keys.iter().any(|(_, name, value, _)| *name == "zero" && value == "0");
    let is_each = is_copied && is_several && job.degrees[1] == 1;
    let sync = if is_each { "each_micro_batch" } else { "overlapped" };
    job.word(("training", "gradient_sync"), sync, "gradients are reduced behind the backward pass");
}

/// Formats of parameters, of their states, and of gradients that are reduced. With `training.dtype` of 16 bits parameters have them and are updated
/// themselves (`torchtitan/config/job_config.py`, `Training.dtype`).
fn precision(flags: &mut Flags<'_>, job: &mut Job) {
    const REDUCED: &str = "training.mixed-precision-reduce";
    const DTYPE: &str = "training.dtype";
    let is_narrow = flags.text(DTYPE).is_some_and(|word| word == "bfloat16");
    let reduces_narrow = flags.text(REDUCED).is_some_and(|word| word == "bfloat16");
    if is_narrow {
        job.word(("optimizer", "master"), "none", "--training.dtype: no parameters in 32 bits");
    } else if reduces_narrow {
        flags.not_modelled(REDUCED, "gradients are reduced in the format in which they are kept, `--training.dtype`");
    }
    let gradients = if is_narrow && reduces_narrow { "bf16" } else { "fp32" };
    job.word(("training", "gradient_dtype"), gradients, "--training.mixed_precision_reduce, --training.dtype");
}

/// How the optimizer runs. A loop over tensors moves the bytes of lists of them, by more launches. Before 6e4988550 of 2025-02-24 lists were usual (`--optimizer.fused`).
fn optimizer(flags: &mut Flags<'_>, job: &mut Job) {
    const KERNELS: &str = "optimizer.implementation";
    if Release::of(flags) == Release::First && flags.find(KERNELS).is_none() && !flags.is("optimizer.fused") {
        job.word(("optimizer", "kernels"), "foreach", "without --optimizer.fused, in releases before 2025-02-24");
    }
    let words = [("fused", "fused"), ("foreach", "foreach"), ("for-loop", "foreach")];
    let Some(word) = flags.find(KERNELS).is_some().then(|| flags.word(KERNELS, &words)).flatten() else { return };
    if flags.text(KERNELS).is_some_and(|given| given == "for-loop") {
        flags.not_modelled(KERNELS, "a loop launches kernels for every tensor: those of lists are counted");
    }
    if word == "foreach" {
        job.word(("optimizer", "kernels"), word, "--optimizer.implementation");
    }
}

/// Every how many-th layer is computed again whole, where operations are not chosen inside of layers (`op`).
fn every_so_many(flags: &mut Flags<'_>) -> Option<u64> {
    let names = ["activation-checkpoint.selective-ac-option", "ac.selective-ac-option"];
    let name = names.into_iter().find(|name| flags.find(name).is_some())?;
    if flags.text(name)? == "op" { None } else { flags.count(name, 1..=1000) }
}

/// How PyTorch's modules run: compiled or not, narrow products, exchanges in pieces.
fn modules(flags: &mut Flags<'_>, job: &mut Job) {
    let is_on = |flags: &Flags<'_>, name: &str| {
        flags.is(name) && flags.find(name).is_some_and(|flag| !flag.value().eq_ignore_ascii_case("false"))
    };
    let is_asked = ["compile.enable", "training.compile"].into_iter().any(|name| is_on(flags, name));
    let parts = flags.text("compile.components");
    let is_compiled = is_asked && parts.is_none_or(|parts| words(&parts).any(|part| part == "model"));
    job.key(("training", "compile"), is_compiled, "--compile.enable, --compile.components");
    if is_asked {
        release::loss(flags, job, is_compiled);
    }
    let pieces = ["compile", "parallelism", "experimental"].map(|at| format!("{at}.enable-async-tensor-parallel"));
    if job.degrees[0] > 1 && pieces.iter().any(|name| is_on(flags, name)) {
        job.key(("overlap", "tensor"), Overlap::ASYNC_TENSOR, "--parallelism.enable_async_tensor_parallel");
    }
    let gathered = ["parallelism", "training"].map(|at| format!("{at}.disable-loss-parallel"));
    if job.degrees[0] > 1 && gathered.iter().any(|name| is_on(flags, name)) {
        job.key(("training", "loss_parallel"), false, "--parallelism.disable_loss_parallel");
    }
    let converters: Vec<String> =
        ["model.converters", "model-converters"].into_iter().filter_map(|name| flags.text(name)).collect();
    let has = |kind: &str| converters.iter().any(|text| words(text).any(|word| word.contains(kind)));
    let is_float8 = has("float8") || is_on(flags, "float8.enable-float8-linear");
    let product = if is_float8 { "fp8" } else { "mxfp8" };
    if !is_float8 && !has("mx") {
        return;
    }
    job.word(("training", "products"), product, "--model.converters");
    if let Some(recipe) = flags.text("float8.recipe-name").filter(|_| is_float8) {
        let recipes = [("tensorwise", "tensorwise"), ("rowwise", "rowwise"), ("rowwise_with_gw_hp", "rowwise")];
        let casts = flags.word("float8.recipe-name", &recipes).unwrap_or("tensorwise");
        job.word(("training", "casts"), casts, "--float8.recipe_name");
        if recipe == "rowwise_with_gw_hp" {
            flags.not_modelled("float8.recipe-name", "gradients of weights are computed in 8 bits too");
        }
    }
    if is_float8 && is_on(flags, "float8.enable-fsdp-float8-all-gather") {
        job.key(("training", "narrow_gather"), true, "--float8.enable_fsdp_float8_all_gather");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{has_parts, on, said};

    const SCRIPT: &str = "torchrun --nnodes=2 --nproc_per_node=8 -m torchtitan.train --config llama3_8b --training.seq_len=8192 \\\n\
        --training.local_batch_size 8 --parallelism.tensor_parallel_degree=2 --parallelism.pipeline_parallel_degree=4 \\\n\
        --parallelism.pipeline_parallel_schedule Interleaved1F1B --training.enable_cpu_offload --made.up 3\n";

    fn found(text: &str) -> Imported {
        import(text, &on("h100-sxm"))
    }

    #[test]
    fn a_script_gives_stages_as_torchtitan_cuts_them() {
        let found = found(SCRIPT);
        // 32 layers and an end on both sides are 34 over 8 stages: 5 5 4 4 4 4 4 4, less one at both ends.
        for part in [
            "layers = [4, 5, 4, 4, 4, 4, 4, 3]",
            "chunks = 2",
            "schedule = \"interleaved\"",
            "llama-3-8b",
            "zero = 3",
            "framework = \"pytorch\"",
            "compile = false",
            "nodes = 2",
            // Two replicas with a local batch each, which the pipeline cuts into single sequences.
            "batch_size = 16",
            "bucket_tokens = 8192",
        ] {
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        let words = said(&found);
        assert!(words.contains(&"`--training.enable-cpu-offload` is not modelled"), "{words:?}");
        assert!(words.contains(&"`--made.up` is not in the table of flags"), "{words:?}");
    }

    #[test]
    fn options_with_numbers_alone_are_no_scenario() {
        let text = "# a remark\n--training.seq_len=4096\n--parallelism.tensor_parallel_degree=2\n";
        assert_eq!(crate::recognise(text), Some(crate::Stack::Torchtitan));
        assert_eq!(crate::recognise("training.batch_size = 3\nparallel.tp = 2\n"), None);
    }

    #[test]
    fn modules_run_as_options_say() {
        let base = "torchrun --nnodes=1 --nproc_per_node=8 -m torchtitan.train --config llama3_8b --parallelism.tensor_parallel_degree=2 ";
        for (options, part) in [
            ("--compile.enable", "compile = true"),
            ("--compile.enable False", "compile = false"),
            ("--compile.enable --compile.components model", "loss = \"unfused\""),
            ("--model.converters=float8 --float8.recipe_name rowwise", "casts = \"rowwise\""),
            ("--model.converters float8 --float8.enable_fsdp_float8_all_gather", "narrow_gather = true"),
            ("--parallelism.enable_async_tensor_parallel", "tensor = 0.45"),
            ("--parallelism.disable_loss_parallel", "loss_parallel = false"),
            ("--optimizer.implementation foreach", "kernels = \"foreach\""),
            ("--optimizer.implementation for-loop", "kernels = \"foreach\""),
            ("--training.dtype bfloat16", "master = \"none\""),
            ("--training.dtype bfloat16", "gradient_dtype = \"fp32\""),
            ("--training.dtype bfloat16 --training.mixed_precision_reduce bfloat16", "gradient_dtype = \"bf16\""),
            (
                "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option 2",
                "recompute_layers = 16",
            ),
            (
                "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op",
                "recompute = \"selective\"",
            ),
        ] {
            let found = found(&format!("{base}{options}\n"));
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        for options in [
            "--training.mixed_precision_param foo",
            "--float8.recipe_name foo --model.converters float8",
            "--optimizer.name foo",
            "--optimizer.implementation foo",
        ] {
            let found = found(&format!("{base}{options}\n"));
            let wrong = found.findings.iter().filter(|finding| finding.code == Code::WrongFlag).count();
            assert_eq!(wrong, 1, "{options}: {:?}", found.findings);
        }
    }

    /// `global_batch_size` over local batches of all replicas are steps of accumulation, and each runs the schedule on its own micro-batches.
    #[test]
    fn a_pipeline_is_flushed_behind_each_local_batch() {
        let base = "torchrun --nnodes=2 --nproc_per_node=8 -m torchtitan.train --config llama3_8b --parallelism.pipeline_parallel_degree=4 \\\n\
            --training.local_batch_size 8 --parallelism.pipeline_parallel_microbatch_size 2 ";
        // Four replicas with four local batches each, of four micro-batches.
        let several = found(&format!("{base}--training.global_batch_size 128\n"));
        has_parts(&several, &["flush_every = 4", "batch_size = 128"]);
        for options in ["", "--training.global_batch_size 32"] {
            let one = found(&format!("{base}{options}\n")).scenario;
            assert!(!one.contains("flush_every") && one.contains("batch_size = 32"), "{one}");
        }
    }

    #[test]
    fn options_that_are_misspelt_are_named_with_the_nearest() {
        let base = "torchrun --nnodes=1 --nproc_per_node=8 -m torchtitan.train --config llama3_8b ";
        let unknown = |options: &str| -> Vec<(String, String)> {
            let found = found(&format!("{base}{options}\n")).findings;
            let unknown = found.into_iter().filter(|finding| finding.code == Code::UnknownFlag);
            unknown.map(|finding| (finding.what, finding.help.unwrap_or_default())).collect()
        };
        for (options, near) in [
            ("--training.seq_lenn 3", "--training.seq-len"),
            ("--compile.enabel", "--compile.enable"),
            ("--activation_checkpoint.mod full", "--activation-checkpoint.mode"),
            ("--optimizer.nam SGD", "--optimizer.name"),
            ("--float8.recipe rowwise", "--float8.recipe-name"),
            ("--training.no_enable_cpu_ofload", "--training.enable-cpu-offload"),
        ] {
            let found = unknown(options);
            assert!(found.len() == 1 && found[0].1.contains(&format!("`{near}`")), "{options}: {found:?}");
        }
        let known = "--compile.no_enable --training.no_enable_cpu_offload --training.steps 10 --training.max_norm 1.0 --ac.early_stop";
        assert_eq!(unknown(known), []);
    }

    #[test]
    fn older_names_of_options_are_read_or_named() {
        let base = "torchrun --nnodes=1 --nproc_per_node=8 -m torchtitan.train --config llama3_8b ";
        let older = found(&format!("{base}--training.batch_size 2 --training.tensor_parallel_degree 4\n"));
        assert!(older.scenario.contains("batch_size = 16"), "{}", older.scenario);
        let help = |finding: &input::diagnostic::Finding| finding.help.clone().unwrap_or_default();
        let named: Vec<String> =
            older.findings.iter().filter(|finding| finding.code == Code::NotModelled).map(help).collect();
        assert_eq!(named, ["give `--parallelism.tensor_parallel_degree`"]);
    }

    #[test]
    fn options_alone_are_read_line_by_line() {
        let text = "# a remark\n--training.seq_len=4096\n--training.local_batch_size=2\n--training.global_batch_size=64\n\
                    --parallelism.data_parallel_replicate_degree=1\n--parallelism.data_parallel_shard_degree=8\n--config=llama3_8b\n";
        let found = found(text);
        has_parts(
            &found,
            &["batch_size = 64", "bucket_tokens = 8192", "gpus_per_node = 8", "zero = 3", "tokens = 4096"],
        );
    }
}
