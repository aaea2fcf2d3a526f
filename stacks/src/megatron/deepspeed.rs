//! Megatron-DeepSpeed: its own flags beside those of Megatron-LM, and the engine that `--deepspeed` starts.
//!
//! Source: deepspeedai/Megatron-DeepSpeed @ 4efb479d5317 (`megatron/arguments.py`, `megatron/training.py`, `megatron/initialize.py`,
//! `megatron/model/transformer.py`, `pretrain_gpt.py`). The stage of ZeRO is that of DeepSpeed's file: `training.py` hands it to the engine as it is.

use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};
use serde_json::Value;

use super::{Shape, bigscience};
use crate::deepspeed::filled::Filled;
use crate::deepspeed::import as config;
use crate::deepspeed::named::{Hosted, Named};
use crate::document::Document;
use crate::flags::{Effect, Flag, Flags, Table, last};
use crate::job::Job;
use crate::launch::{self, Launch, bare};
use crate::shell::UNKNOWN;
use crate::trtllm::in_place::Written;
use crate::{Machine, megatron};

/// Flags that Megatron-LM does not have.
pub(crate) static OWN: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../../tables/megatron-deepspeed.tsv")));
/// Those, and the flags of Megatron-LM.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| OWN.clone().over(&megatron::FLAGS));

/// The flag that names DeepSpeed's file.
const CONFIG: &str = "deepspeed-config";
/// The stage that it says for parts of the model.
const STAGE: &str = "zero-stage";
/// The group of DeepSpeed-Ulysses.
pub(super) const ULYSSES: &str = "ds-sequence-parallel-size";
/// The engine without its pipeline.
const WITHOUT_PIPELINE: &str = "no-pipeline-parallel";
/// Optimizer on the host.
const ON_HOST: &str = "cpu-optimizer";
/// What says the kernel of attention: any of these is flash attention.
const FLASH: [&str; 4] = ["use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton", "use-flash-attn-builder"];
/// Largest width or count.
const MOST: u64 = 100_000_000;
/// Stage where no flag says it.
const USUAL_STAGE: u64 = 1;

/// Whether flags are those of a job of Megatron-DeepSpeed: one of them gives a key and is none of Megatron-LM's.
pub(super) fn is_job(given: &[Flag]) -> bool {
    given.iter().any(|flag| OWN.find(&flag.name).is_some_and(|known| matches!(known.effect, Effect::Sets(_))))
}

/// The table that judges the flags of a job.
pub(super) fn table(given: &[Flag]) -> &'static Table {
    if is_job(given) { &FLAGS } else { &megatron::FLAGS }
}

/// The name of DeepSpeed's file that a script gives to the program, without its folder.
pub(crate) fn named_beside(text: &str) -> Option<String> {
    if !text.contains("deepspeed_config") && !text.contains("deepspeed-config") {
        return None;
    }
    let launch = launch::of_script(text, megatron::begins, &|name| FLAGS.find(name).is_some()).ok()?;
    file(&launch.flags)
}

fn file(given: &[Flag]) -> Option<String> {
    let flag = last(given, CONFIG)?;
    bare(&flag.value()).filter(|name| !name.contains(UNKNOWN)).map(str::to_owned)
}

/// The machine with the file that a script writes itself: `cat <<EOT > $DS_CONFIG`.
pub(super) fn with_written(text: &str, machine: &Machine, launch: &Launch) -> Machine {
    let mut machine = machine.clone();
    let flag = last(&launch.flags, CONFIG);
    // A part of its name may be the batch system's (`$SLURM_JOB_ID`), where the script writes what it names.
    let found = flag.and_then(|flag| {
        let path = flag.value();
        Some((Written::of(text, &path)?.filled(text)?, bare(&path)?.to_owned()))
    });
    if let Some((body, name)) = found {
        machine.files.insert(0, (name, body));
    }
    machine
}

/// A flag of Megatron-LM in the place of another one.
fn one(name: &str, value: impl ToString, of: Option<&Flag>) -> Flag {
    let at = of.map_or(0..0, |flag| flag.at.clone());
    Flag { name: name.to_owned(), values: vec![value.to_string()], at }
}

/// Its flags as those that say the same in Megatron-LM, with its own defaults.
pub(super) fn today(launch: &mut Launch) {
    if !is_job(&launch.flags) {
        return;
    }
    let mut more = Vec::new();
    let find = |name: &str| last(&launch.flags, name);
    if let Some(flag) = find(ULYSSES) {
        more.push(one("context-parallel-size", flag.value(), Some(flag)));
        more.push(one("cp-comm-type", "a2a", Some(flag)));
    }
    if let Some(flag) = FLASH.into_iter().find_map(find) {
        more.push(Flag { name: "use-flash-attn".to_owned(), values: Vec::new(), at: flag.at.clone() });
    }
    let listed = find("num-experts").cloned();
    let numbers: Option<Vec<u64>> =
        listed.as_ref().and_then(|flag| flag.values.iter().map(|n| n.parse().ok()).collect());
    let most = numbers.iter().flatten().max().copied();
    if most.is_some_and(|most| most > 1) {
        more.extend(of_experts(&launch.flags, most.unwrap_or(1)));
    }
    if let (Some(most), Some(flag)) = (most, listed)
        && numbers.is_some_and(|numbers| numbers.iter().any(|n| *n != most))
    {
        let what = "layers with different numbers of experts are not modelled";
        let help = format!("every layer with experts has {most} here: memory comes out too large");
        launch.findings.push(Finding::warning(Code::NotModelled, Some(flag.at), what).help(help));
    }
    // One expert is none (`ParallelTransformerLayer`).
    launch.flags.retain(|flag| flag.name != "num-experts" || most.is_none_or(|most| most > 1));
    launch.flags.extend(more);
}

/// Experts as `get_num_experts_per_layer` and `MoE` of `transformer.py` have them.
fn of_experts(given: &[Flag], n_experts: u64) -> Vec<Flag> {
    let find = |name: &str| last(given, name);
    let number = |name: &str| find(name).and_then(|flag| flag.value().parse::<u64>().ok()).filter(|n| *n <= MOST);
    let top_k = find("topk");
    let mut more = vec![
        one("num-experts", n_experts, find("num-experts")),
        one("moe-router-topk", top_k.map_or_else(|| "1".to_owned(), Flag::value), top_k),
    ];
    if let Some(n_layers) = number("num-layers").or_else(|| number("encoder-num-layers")).filter(|n| *n <= 10_000) {
        let every = number("expert-interval").unwrap_or(2).clamp(1, n_layers.max(1));
        more.push(one("moe-layer-freq", interval(n_layers, every), find("expert-interval")));
    }
    if let Some(width) =
        number("ffn-hidden-size").or_else(|| usual_width(number("hidden-size")?, find("swiglu").is_some()))
    {
        more.push(one("moe-ffn-hidden-size", width, None));
        // A feed-forward beside the experts (`use_residual`).
        if let Some(flag) = find("mlp-type").filter(|flag| flag.value() == "residual") {
            more.push(one("moe-shared-expert-intermediate-size", width, Some(flag)));
        }
    }
    if find("disable-moe-token-dropping").is_none() {
        let flag = find("moe-train-capacity-factor");
        more.push(one("moe-expert-capacity-factor", flag.map_or_else(|| "1.0".to_owned(), Flag::value), flag));
    }
    if find("enable-expert-tensor-parallelism").is_none() {
        more.push(one("expert-tensor-parallel-size", 1, None));
    }
    more
}

/// Width of a feed-forward where no flag says it (`validate_args`).
fn usual_width(hidden: u64, is_gated: bool) -> Option<u64> {
    let width = if is_gated { (4 * hidden * 2 / 3) / 64 * 64 } else { 4 * hidden };
    (width > 0).then_some(width)
}

/// Every so many-th of the layers, counted from one, as a list of Python.
fn interval(n_layers: u64, every: u64) -> String {
    let unit = [vec!["0"; usize::try_from(every).unwrap_or(1) - 1], vec!["1"]].concat().join(",");
    let rest = n_layers % every;
    let behind = if rest > 0 { format!("+[0]*{rest}") } else { String::new() };
    format!("[{unit}]*{}{behind}", n_layers / every)
}

/// What stands in the keys of Megatron-LM where DeepSpeed's engine runs. `n_micro_batches` of a replica are added up.
pub(super) fn engine(
    flags: &mut Flags<'_>,
    out: &mut Document,
    (shape, machine, n_micro_batches): (&Shape, &Machine, u64),
) {
    ulysses(flags, shape);
    if !flags.is("deepspeed") {
        for name in [STAGE, CONFIG, ON_HOST].into_iter().filter(|name| flags.is(name)).collect::<Vec<_>>() {
            flags.not_modelled(name, "the engine of DeepSpeed runs with `--deepspeed` alone: states are Megatron-LM's");
        }
        return;
    }
    let mut job = Job::default();
    config::of_engine(&mut job);
    let half = if flags.is("fp16") { "fp16" } else { "bf16" };
    let at = flags.at(CONFIG).or_else(|| flags.at("deepspeed")).unwrap_or(0..0);
    let filled = Filled { half, is_several: n_micro_batches > 1, at, sizes: Vec::new() };
    let name = file(&flags.given);
    let written = flags.find(CONFIG).map(Flag::value);
    let text = written.as_deref().and_then(bare).and_then(|name| machine.beside(name));
    let stage = match text {
        Some(text) => of_file(flags, &mut job, (text, &filled)),
        None => without_file(flags, &mut job, (name.as_deref(), machine), &filled),
    };
    on_host(flags, &mut job, stage);
    pipeline(flags, stage);
    if !flags.is(WITHOUT_PIPELINE) {
        bigscience::shared_by_pipeline(flags, &mut job, half);
    }
    block_of_pipeline(flags, out);
    // Stage 3 has one way to reduce gradients, and Megatron-LM's own kernels and layers stay out.
    for (section, name) in [("training", "gradient_sync"), ("training", "predicting_layers"), ("training", "unfused")] {
        out.leave_key_out(section, name);
    }
    for (section, name, value, remark) in job.keys.iter().filter(|(_, name, ..)| *name != "recompute") {
        out.set(section, name, value, *remark);
    }
}

/// What DeepSpeed's file says; the stage.
fn of_file(flags: &mut Flags<'_>, job: &mut Job, (text, filled): (&str, &Filled)) -> u64 {
    match config::beside_trainer(text, job, filled) {
        Ok(findings) => flags.findings.extend(findings),
        Err(finding) => flags.findings.push(finding),
    }
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    for (key, name) in
        [("train_batch_size", "global-batch-size"), ("train_micro_batch_size_per_gpu", "micro-batch-size")]
    {
        let (in_file, in_flag) =
            (json[key].as_u64(), flags.find(name).and_then(|flag| flag.value().parse::<u64>().ok()));
        if let (Some(in_file), Some(in_flag)) = (in_file, in_flag)
            && in_file != in_flag
        {
            let what = format!("`--{name} {in_flag}`, but `{key}` of DeepSpeed's file is {in_file}");
            flags.warn(Code::WrongFlag, flags.at(name), what, "the flag is taken: write the same into both");
        }
    }
    let stage = job.zero().unwrap_or(0);
    let asked = flags.count(STAGE, 0..=3);
    if asked.is_some_and(|asked| asked != stage) {
        let what =
            format!("`--{STAGE} {}`, but the engine runs the stage of DeepSpeed's file: {stage}", asked.unwrap_or(0));
        let help = "write `zero_optimization.stage` into the file, or give `--set parallel.zero=…`";
        flags.warn(Code::WrongFlag, flags.at(STAGE), what, help);
    }
    stage
}

/// The same where the file is not there: the stage is that of the flag.
fn without_file(
    flags: &mut Flags<'_>,
    job: &mut Job,
    (name, machine): (Option<&str>, &Machine),
    filled: &Filled,
) -> u64 {
    let of_name = name.and_then(Named::of);
    let asked = machine.zero.or_else(|| flags.count(STAGE, 0..=3));
    let stage = asked.or(of_name.map(|named| named.stage)).unwrap_or(USUAL_STAGE);
    let hosted = of_name.map_or(Hosted::Nothing, |named| named.hosted);
    config::without_file(job, Named { stage, hosted }, filled);
    if machine.states(&["parallel.zero"]) {
        return stage;
    }
    let shown = name.map_or_else(|| "DeepSpeed's file".to_owned(), |name| format!("`{name}`"));
    let why = match (asked, of_name) {
        (Some(_), _) => "as `--zero-stage` says",
        (None, Some(_)) => "as its name says",
        (None, None) => "the usual of `--zero-stage`",
    };
    let what = format!("{shown} is not read: ZeRO {stage} is taken, {why}");
    let help = "put the file beside the script, or give `--set parallel.zero=…`";
    flags.warn(Code::MissingFlag, Some(filled.at.clone()), what, help);
    stage
}

/// States and parameters that flags put into the memory of the host.
fn on_host(flags: &mut Flags<'_>, job: &mut Job, stage: u64) {
    if flags.is(ON_HOST) && !job.has_states_on_host() {
        job.states_on_host(1.0, "--cpu-optimizer");
    }
    let has_parameters = job.keys.iter().any(|(_, name, ..)| *name == "parameters_on_host");
    if !has_parameters {
        config::offload_parameters(flags, job, ("remote-device", stage));
    }
}

/// What DeepSpeed's engine refuses of stages and of its pipeline.
fn pipeline(flags: &mut Flags<'_>, stage: u64) {
    let pp = flags.count("pipeline-model-parallel-size", 1..=100_000).unwrap_or(1);
    if flags.is(WITHOUT_PIPELINE) && pp > 1 {
        let what = format!("`--{WITHOUT_PIPELINE}` does not go with `--pipeline-model-parallel-size {pp}`");
        flags.wrong(WITHOUT_PIPELINE, what, "Megatron-DeepSpeed asserts a pipeline of 1 beside it".to_owned());
    }
    if stage > 1 && !flags.is(WITHOUT_PIPELINE) {
        let what = format!("ZeRO {stage} needs `--{WITHOUT_PIPELINE}`");
        let help = "DeepSpeed asserts that its pipeline has ZeRO 0 or 1 (deepspeed/runtime/pipe/engine.py): give the flag, \
                    or another stage";
        let at = flags.at(STAGE).or_else(|| flags.at(CONFIG)).or_else(|| flags.at("deepspeed"));
        flags.refuse(Code::WrongFlag, at, what, help);
    }
}

/// Layers that DeepSpeed's pipeline does not compute again: it counts them by `uniform` alone (`GPTModelPipe` of `gpt_model.py`).
fn block_of_pipeline(flags: &mut Flags<'_>, out: &mut Document) {
    const METHOD: &str = "recompute-method";
    let is_block = flags.find(METHOD).is_some_and(|flag| flag.value() == "block");
    if !is_block || flags.is(WITHOUT_PIPELINE) || flags.is("checkpoint-activations") {
        return;
    }
    out.word("training", "recompute", "none", "DeepSpeed's pipeline computes nothing again by block");
    out.leave_key_out("training", "recompute_layers");
    let help = "give `--recompute-method uniform`, or `--no-pipeline-parallel`";
    flags.warn(Code::WrongFlag, flags.at(METHOD), "DeepSpeed's pipeline computes nothing again by block", help);
}

/// What DeepSpeed-Ulysses refuses (`initialize.py`; `ParallelAttention` of `transformer.py`).
fn ulysses(flags: &mut Flags<'_>, shape: &Shape) {
    let n = flags.count(ULYSSES, 1..=100_000).unwrap_or(1);
    if n < 2 {
        return;
    }
    let tp = flags.count("tensor-model-parallel-size", 1..=100_000).unwrap_or(1);
    if flags.is("sequence-parallel") && tp > 1 {
        let what = format!("`--{ULYSSES} {n}` does not go with `--sequence-parallel`");
        flags.wrong(ULYSSES, what, "Megatron-DeepSpeed refuses both: leave one out".to_owned());
    }
    if !shape.n_heads.is_multiple_of(n) {
        let what = format!("`--{ULYSSES} {n}` does not divide {} attention heads", shape.n_heads);
        flags.wrong(ULYSSES, what, format!("allowed are {}", input::diagnostic::divisors(shape.n_heads)));
    }
    if shape.n_groups != shape.n_heads {
        let what = format!("`--{ULYSSES} {n}` does not go with {} query groups", shape.n_groups);
        let help = "Megatron-DeepSpeed asserts that keys and values have as many heads as queries";
        flags.wrong(ULYSSES, what, help.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Severity;

    use crate::example::{has_lines, import_text, on};
    use crate::{Imported, Machine, beside};

    /// As the examples of the repository start a job: words in variables, a file that the script makes of a template.
    const SCRIPT: &str = "
dir=`pwd`
zero_stage=2
mp_size=1
config_json=\"ds_config_zero${zero_stage}.json\"
sed \"s/ZERO_STAGE/${zero_stage}/\" ds_config_gpt_TEMPLATE.json > ${config_json}
options=\" --override-opt_param-scheduler --tensor-model-parallel-size ${mp_size} --lr-decay-tokens 300000000000 \\
    --micro-batch-size 2 --global-batch-size 64 --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
    --max-position-embeddings 2048 --train-tokens 1000 --split 949,50,1 --data-impl mmap --vocab-file gpt2-vocab.json \\
    --merge-file gpt2-merges.txt --fp16 --checkpoint-activations --log-optimizer-states-to-tensorboard\"
engine=\" --deepspeed --deepspeed_config ${config_json} --zero-stage ${zero_stage} --no-pipeline-parallel \\
    --deepspeed-activation-checkpointing\"
deepspeed --num_nodes 1 --num_gpus 8 ${dir}/../../pretrain_gpt.py ${options} ${engine} MORE &> out.log
";

    fn found(more: &str, files: &[(&str, &str)]) -> Imported {
        let text = SCRIPT.replace("MORE", more);
        let read = |name: &str| files.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        let gpu = Some("a100-sxm-80g".to_owned());
        let machine = Machine { gpu, files: beside(&text, &read), ..Machine::default() };
        import_text(&text, &machine)
    }

    fn said(found: &Imported, severity: Severity) -> Vec<&str> {
        let of = found.findings.iter().filter(|one| one.severity == severity);
        of.map(|one| one.what.as_str()).collect()
    }

    /// Lines of the scenario, and what is said beside them.
    fn check(more: &str, files: &[(&str, &str)], lines: &[&str], words: &[&str]) {
        let found = found(more, files);
        assert_eq!(said(&found, Severity::Error), [""; 0], "{more}");
        has_lines(&found, lines);
        assert_eq!(said(&found, Severity::Warning), words, "{more}");
    }

    const NAME: &str = "ds_config_zero2.json";
    const OF_FLAG: &str = "`ds_config_zero2.json` is not read: ZeRO 2 is taken, as `--zero-stage` says";

    #[test]
    fn an_example_runs_with_the_engine_and_the_stage_of_its_flag() {
        let lines = [
            "framework = \"deepspeed\"",
            "zero = 2",
            "gradient_dtype = \"bf16\"",
            "dtype = \"fp16\"",
            "recompute = \"full\"",
            "attention = \"unfused\"",
            "tp = 1",
            "batch_size = 64",
            // 50,257 tokens of GPT-2 to a multiple of 128.
            "vocab_size = 50304",
        ];
        check("", &[], &lines, &[OF_FLAG]);
    }

    #[test]
    fn the_file_says_more_than_the_flag() {
        let config = "{\"train_batch_size\": 32, \"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1, \
                      \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"cpu\"}}}";
        let lines = ["zero = 1", "offload_ratio = 1", "gradient_sync = \"overlapped\""];
        let words = [
            "`--global-batch-size 64`, but `train_batch_size` of DeepSpeed's file is 32",
            "`--zero-stage 2`, but the engine runs the stage of DeepSpeed's file: 1",
        ];
        check("", &[(NAME, config)], &lines, &words);
        // Without a stage in the file the engine has none: `training.py` does not put the flag into it.
        let config = "{\"train_batch_size\": 64, \"fp16\": {\"enabled\": true}}";
        let words = ["`--zero-stage 2`, but the engine runs the stage of DeepSpeed's file: 0"];
        check("", &[(NAME, config)], &["zero = 0"], &words);
    }

    #[test]
    fn a_file_that_the_script_writes_is_read() {
        let text = "ZERO=3\nCFG=a/x.json\ncat <<EOT > $CFG\n{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": $ZERO},\n\
                    \"bf16\": {\"enabled\": true}}\nEOT\ntorchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 \\\n\
                    --num-attention-heads 16 --seq-length 2048 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 64 \\\n\
                    --deepspeed --deepspeed_config=$CFG --zero-stage=$ZERO --no-pipeline-parallel --use-flash-attn-v2\n";
        let found = import_text(text, &on("h100-sxm"));
        assert!(found.scenario.contains("zero = 3") && !found.scenario.contains("unfused"), "{}", found.scenario);
        assert!(!found.scenario.contains("gradient_sync"), "{}", found.scenario);
        assert!(found.findings.is_empty(), "{:?}", found.findings);
    }

    #[test]
    fn ulysses_is_a_context_group_that_exchanges_heads() {
        let lines = ["cp = 4", "exchange = \"ulysses\"", "bucket_tokens = 1024"];
        check("--ds-sequence-parallel-size 4 --use-flash-attn-triton", &[], &lines, &[OF_FLAG]);
        let fpdt = [
            "`--ds-sequence-parallel-fpdt` is not modelled",
            "`--ds-sequence-parallel-fpdt-offloading` is not modelled",
        ];
        let more = "--ds-sequence-parallel-size 4 --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-offloading";
        check(more, &[], &lines, &[OF_FLAG, fpdt[0], fpdt[1]]);
    }

    #[test]
    fn experts_stand_in_every_second_layer_beside_what_stays() {
        let more = "--num-experts 64 --moe-expert-parallel-size 8 --mlp-type residual --create-moe-param-group";
        let lines = [
            "num_experts = 64",
            "num_experts_per_tok = 1",
            "moe_intermediate_size = 8192",
            "shared_expert_intermediate_size = 8192",
            "ep = 8",
            "expert_tp = 1",
            "capacity = 1",
        ];
        check(more, &[], &lines, &[OF_FLAG]);
        let all = found(more, &[]).scenario;
        let expected = format!("moe_layer_freq = [{}]", ["0, 1"; 12].join(", "));
        assert!(all.contains(&expected), "{all}");
        // `--topk`, `--expert-interval`, and tokens that are not dropped.
        let more = "--num-experts 8 --topk 2 --expert-interval 1 --disable-moe-token-dropping";
        let all = found(more, &[]).scenario;
        assert!(all.contains("num_experts_per_tok = 2") && !all.contains("capacity"), "{all}");
        assert!(all.contains(&format!("moe_layer_freq = [{}]", ["1"; 24].join(", "))), "{all}");
        // One expert is a dense layer, and a list of different numbers is named.
        assert!(!found("--num-experts 1", &[]).scenario.contains("num_experts"));
        let pyramid = found("--num-experts 64 64 128 --moe-expert-parallel-size 8", &[]);
        assert!(pyramid.scenario.contains("num_experts = 128"), "{}", pyramid.scenario);
        assert!(
            said(&pyramid, Severity::Warning).contains(&"layers with different numbers of experts are not modelled")
        );
    }

    #[test]
    fn states_and_parameters_go_to_the_host_by_flags() {
        check("--cpu-optimizer", &[], &["offload_ratio = 1"], &[OF_FLAG]);
        let stays = "`--remote-device cpu` is not modelled";
        check("--remote-device cpu", &[], &[], &[OF_FLAG, stays]);
        let of_three = OF_FLAG.replace("ZeRO 2", "ZeRO 3");
        check("--remote-device cpu --zero-stage 3", &[], &["parameters_on_host = true"], &[&of_three]);
        check("--random-ltd", &[], &[], &[OF_FLAG, "`--random-ltd` is not modelled"]);
    }

    #[test]
    fn what_the_engine_refuses_is_an_error() {
        let of = |text: &str| {
            let found = import_text(text, &on("h100-sxm"));
            said(&found, Severity::Error).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let with = |more: &str| SCRIPT.replace("MORE", more);
        assert_eq!(of(&with("").replace("--no-pipeline-parallel", "")), ["ZeRO 2 needs `--no-pipeline-parallel`"]);
        let both = of(&with("--pipeline-model-parallel-size 2"));
        assert_eq!(both, ["`--no-pipeline-parallel` does not go with `--pipeline-model-parallel-size 2`"]);
        let divides = of(&with("--ds-sequence-parallel-size 8 --num-attention-heads 20 --hidden-size 2560"));
        assert_eq!(divides, ["`--ds-sequence-parallel-size 8` does not divide 20 attention heads"]);
        let groups = of(&with("--ds-sequence-parallel-size 2 --num-key-value-heads 4"));
        assert_eq!(groups, ["`--ds-sequence-parallel-size 2` does not go with 4 query groups"]);
        let pair = "--ds-sequence-parallel-size 2 --sequence-parallel --tensor-model-parallel-size 2";
        assert_eq!(of(&with(pair)), ["`--ds-sequence-parallel-size 2` does not go with `--sequence-parallel`"]);
    }

    #[test]
    fn the_pipeline_of_the_engine_computes_nothing_again_by_block() {
        let base = SCRIPT.replace("--checkpoint-activations", "").replace("zero_stage=2", "zero_stage=1");
        let machine = on("h100-sxm");
        let recompute = |more: &str, pipeline: &str| {
            let text = base.replace("--no-pipeline-parallel", pipeline).replace("MORE", more);
            let found = import_text(&text, &machine).scenario;
            ["full", "none"].into_iter().find(|word| found.contains(&format!("recompute = \"{word}\"")))
        };
        let block = "--recompute-granularity full --recompute-method block --recompute-num-layers 2";
        assert_eq!(recompute(block, "--no-pipeline-parallel"), Some("full"));
        assert_eq!(recompute(block, ""), Some("none"));
        assert_eq!(recompute(&block.replace("block", "uniform"), ""), Some("full"));
    }

    #[test]
    fn without_the_engine_its_flags_are_named() {
        let text = SCRIPT.replace(" --deepspeed --", " --").replace("MORE", "");
        let found = import_text(&text, &on("h100-sxm"));
        assert!(found.scenario.contains("framework = \"megatron-core\""), "{}", found.scenario);
        assert!(said(&found, Severity::Warning).contains(&"`--zero-stage 2` is not modelled"), "{:?}", found.findings);
    }
}
