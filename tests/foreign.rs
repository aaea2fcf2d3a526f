//! Files of other stacks: how many of their published configurations become scenarios, and that nothing of them is lost.

use std::collections::BTreeMap;
use std::io::Read;

use engine::cost::roofline::Roofline;
use engine::formats::Formats;
use input::diagnostic::{Finding, Severity, Source};
use scenario::Overrides;
use skrull_sim::hardware::PlannedStep;
use skrull_sim::kinds;
use stacks::Machine;
use stacks::export::{ExportError, File, Planned, Words};
use train::problem::{AttentionKernel, Execution, Module, Modules, Recompute};

/// Columns of the table of functional tests and the flags of Megatron-LM that they were read from.
const COLUMNS: [(&str, &str); 28] = [
    ("global_batch_seqs", "global-batch-size"),
    ("micro_batch_seqs", "micro-batch-size"),
    ("seq_tokens", "seq-length"),
    ("tp_gpus", "tensor-model-parallel-size"),
    ("pp_stages", "pipeline-model-parallel-size"),
    ("cp_gpus", "context-parallel-size"),
    ("ep_gpus", "expert-model-parallel-size"),
    ("etp_gpus", "expert-tensor-parallel-size"),
    ("pipeline_layout", "pipeline-model-parallel-layout"),
    ("layers", "num-layers"),
    ("hidden", "hidden-size"),
    ("ffn", "ffn-hidden-size"),
    ("heads", "num-attention-heads"),
    ("kv_heads", "num-query-groups"),
    ("head_dim", "kv-channels"),
    ("experts", "num-experts"),
    ("topk", "moe-router-topk"),
    ("moe_ffn", "moe-ffn-hidden-size"),
    ("shared_ffn", "moe-shared-expert-intermediate-size"),
    ("moe_dispatcher", "moe-token-dispatcher-type"),
    ("mtp_layers", "mtp-num-layers"),
    ("fp8_recipe", "fp8-recipe"),
    ("recompute_granularity", "recompute-granularity"),
    ("recompute_method", "recompute-method"),
    ("recompute_num_layers", "recompute-num-layers"),
    ("recompute_modules", "recompute-modules"),
    ("attention_backend", "attention-backend"),
    ("layer_pattern", "hybrid-override-pattern"),
];

/// Columns of 0 and 1, and their switches.
const SWITCHES: [(&str, &str); 9] = [
    ("sequence_parallel", "sequence-parallel"),
    ("mla", "multi-latent-attention"),
    ("swiglu", "swiglu"),
    ("untied_embeddings", "untie-embeddings-and-output-weights"),
    ("distributed_optimizer", "use-distributed-optimizer"),
    ("grad_reduce_overlap", "overlap-grad-reduce"),
    ("param_gather_overlap", "overlap-param-gather"),
    ("tp_comm_overlap", "tp-comm-overlap"),
    ("fsdp", "use-megatron-fsdp"),
];

/// Rows of the table; `None` where it is absent.
fn rows() -> Option<Vec<BTreeMap<String, String>>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/truth/megatron_lm.csv.gz");
    let Ok(bytes) = std::fs::read(path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("a packed text");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    Some(reader.deserialize().map(|row| row.expect("a row")).collect())
}

/// The YAML from which a row was read, with the flags that the table keeps.
fn yaml(row: &BTreeMap<String, String>) -> String {
    let mut text = "MODEL_ARGS:\n".to_owned();
    let mut flag = |name: &str, value: &str| text += &format!("  --{name}: {value}\n");
    COLUMNS.iter().filter(|(column, _)| !row[*column].is_empty()).for_each(|(column, name)| flag(name, &row[*column]));
    SWITCHES.iter().filter(|(column, _)| row[*column] == "1").for_each(|(_, name)| flag(name, "true"));
    if row["linear_bias"] == "0" {
        flag("disable-bias-linear", "true");
    }
    if row["kv_heads"] != row["heads"] {
        flag("group-query-attention", "true");
    }
    if !row["fp8_recipe"].is_empty() {
        flag("fp8-format", "hybrid");
    }
    let chunks: u32 = row["vp_chunks"].parse().unwrap_or(1);
    if chunks > 1 && row["pipeline_layout"].is_empty() {
        flag("num-virtual-stages-per-pipeline-rank", &chunks.to_string());
    }
    flag(if row["precision"] == "fp16" { "fp16" } else { "bf16" }, "true");
    for other in row["other_flags"].split(';').filter(|other| !other.is_empty()) {
        let (name, value) = other.split_once('=').unwrap_or((other, "true"));
        flag(name, value);
    }
    text
}

fn machine(gpu: &str, row: &BTreeMap<String, String>) -> Machine {
    let gpu = match gpu {
        "A100" => "a100-sxm-80g",
        "GB200" => "gb200",
        _ => "h100-sxm",
    };
    let n: Option<u32> = row.get("gpus").and_then(|gpus| gpus.parse().ok());
    let per_node = n.map(|n| n.min(hw::catalog::gpus_per_node(gpu)));
    let nodes = n.zip(per_node).map(|(n, per_node)| n.div_ceil(per_node));
    Machine { gpu: Some(gpu.to_owned()), nodes, gpus_per_node: per_node, ..Machine::default() }
}

pub fn errors(findings: &[Finding]) -> Vec<String> {
    let wrong = findings.iter().filter(|finding| finding.severity == Severity::Error);
    wrong.map(|finding| finding.what.clone()).collect()
}

/// What is wrong with a file of another stack, as a scenario.
fn wrong(text: &str, machine: &Machine) -> Vec<String> {
    let stack = stacks::recognise(text).expect("a known stack");
    let imported = stacks::import(stack, text, machine);
    let wrong = errors(&imported.findings);
    if !wrong.is_empty() {
        return wrong;
    }
    let source = Source { path: "imported.toml".to_owned(), text: imported.scenario };
    errors(&kinds::check(source, std::path::Path::new(""), &Overrides::default()).findings)
}

#[test]
fn four_of_five_functional_tests_of_megatron_become_scenarios_and_the_rest_has_a_reason() {
    let Some(rows) = rows() else { return };
    let (mut n, mut tests) = (0, BTreeMap::<String, bool>::new());
    let mut reasons = BTreeMap::<String, usize>::new();
    for row in &rows {
        // The table keeps what kind of model a test trains; its flags alone do not say so.
        let kind = row["kind"].as_str();
        let wrong = match kind {
            "gpt" | "moe" | "nemotron" => wrong(&yaml(row), &machine(&row["gpu"], row)),
            other => vec![format!("trains {other}")],
        };
        let is_read = wrong.is_empty();
        n += usize::from(is_read);
        *tests.entry(row["test"].clone()).or_default() |= is_read;
        for reason in wrong.into_iter().take(1) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let n_tests = tests.values().filter(|is_read| **is_read).count();
    println!("{n} of {} rows, {n_tests} of {} tests; the rest: {reasons:#?}", rows.len(), tests.len());
    assert!(n * 5 >= rows.len() * 4, "{n} of {} rows become scenarios: {reasons:#?}", rows.len());
    assert!(n_tests * 5 >= tests.len() * 4, "{n_tests} of {} tests", tests.len());
}

/// What a plan decides, without the name of its policy and the scenario that it carries. On one context rank nothing is
/// exchanged, and whole sequences are where cut ones are.
fn decided(planned: &PlannedStep) -> (train::Layout, String, Vec<train::plan::Step>) {
    let plan = &planned.decision.plan;
    let (mut layout, mut steps) = (plan.layout, plan.steps.clone());
    if layout.cp == 1 {
        layout.exchange = train::layout::ContextExchange::Ring;
        let batches = steps.iter_mut().flat_map(|step| &mut step.groups).flatten();
        batches.flat_map(|batch| &mut batch.sequences).for_each(|one| one.place = train::plan::Place::Sharded);
    }
    (layout, plan.schedule.clone(), steps)
}

/// How a problem is executed, as far as a target's files can say it. What they tell in remarks is left out: it is the prediction's, or the code's.
fn executed(problem: &train::Problem, target: &str) -> (hw::Dtype, Execution) {
    let mut execution = problem.execution.clone();
    let plain = Execution::default();
    // What the model leaves open is said; DeepSpeed leaves it to the model's code.
    execution.dropout = (target != "deepspeed").then(|| problem.shard().dropout());
    execution.framework = plain.framework;
    execution.host_overhead_per_layer = plain.host_overhead_per_layer;
    execution.launches.each = plain.launches.each;
    execution.fragmentation = plain.fragmentation;
    execution.experts.imbalance = plain.experts.imbalance;
    // A format that is said though it is that of the activations.
    execution.formats = execution.formats.filter(|formats| *formats != Formats::of(problem.dtype));
    // Switches have no shares.
    let overlap = &mut execution.overlap;
    (overlap.tensor, overlap.expert, overlap.slowdown) = (overlap.tensor.ceil(), overlap.expert.map(f64::ceil), 1.0);
    if problem.layout.pp == 1 || problem.layout.chunks == 1 {
        overlap.stage = true;
    }
    execution.layers = train::stage::stages(problem).iter().map(train::stage::Stage::n_layers).collect();
    // Norms and activation functions are told in a remark: plain selective recompute of Megatron-LM is that of attention.
    let of_attention = Recompute::Modules(Modules::NONE.with(Module::CoreAttention));
    if execution.attention == AttentionKernel::Flash && execution.recompute == of_attention {
        execution.recompute = Recompute::Selective;
    }
    // The model's code chooses its kernels.
    if target == "deepspeed" {
        execution.attention = plain.attention;
    }
    (problem.dtype, execution)
}

/// A policy's plan in a scenario, with what it was asked.
pub fn planned(text: &str, choice: &str) -> Result<PlannedStep, String> {
    planned_of(&training(text).ok_or("no training")?, choice)
}

pub fn planned_of(scenario: &scenario::training::Scenario, choice: &str) -> Result<PlannedStep, String> {
    let cost = scenario.costs();
    let topology = hw::topology::Topology::of(&scenario.problem.cluster);
    let choice = scenario.policies.iter().find(|known| known.name == choice).ok_or("no policy")?;
    let decided =
        kinds::training::run::decide(scenario, choice, cost.as_ref(), &topology).map_err(|why| why.to_string())?;
    let graph = engine::TaskGraph::default();
    let policy = choice.name.clone();
    Ok(PlannedStep { policy, problem: decided.problem, decision: decided.decision, graph })
}

fn training(text: &str) -> Option<scenario::training::Scenario> {
    let checked = super::written(text.to_owned(), &[]);
    checked.scenario?.training().cloned()
}

/// Shipped training scenarios whose plan Megatron-LM can say, policy by policy: all of them come back as the same plan.
const ROUND_TRIPS: [&str; 24] = [
    "long-context/bytescale-offload none",
    "megatron-large/gpt-1t-full megatron",
    "megatron-large/gpt-1t-selective megatron",
    "megatron-large/gpt-530b-full megatron",
    "megatron-large/gpt-530b-selective megatron",
    "megatron/gpt-145b-1536 megatron",
    "megatron/gpt-175b-1536 megatron",
    "megatron/gpt-175b-384 megatron",
    "megatron/gpt-175b-768 megatron",
    "megatron/gpt-175b-full megatron",
    "megatron/gpt-175b-selective megatron",
    "megatron/gpt-22b-full megatron",
    "megatron/gpt-22b-selective megatron",
    "megatron/gpt-39b-512 megatron",
    "megatron/gpt-530b-2520 megatron",
    "megatron/gpt-7.5b-128 megatron",
    "moe/lsh-gpt-15b plain",
    "moe/lsh-gpt-52b plain",
    "moe/lsh-hashes plain",
    "resilience/weeks megatron",
    "resilience/weeks-100k megatron",
    "resilience/weeks-slow megatron",
    "scale/gpt-175b-12288 megatron",
    "scale/llama-3-405b megatron",
];

/// The files of a plan for a target; one that wants times gets those of the datasheet.
pub fn exported(planned: &PlannedStep, target: &str) -> Result<Vec<File>, ExportError> {
    let cost = Roofline::new(&planned.problem.cluster);
    let asked = Planned::Training { problem: &planned.problem, plan: &planned.decision.plan, cost: &cost };
    stacks::targets::export(target, &asked, &Words::default())
}

/// Those that DeepSpeed can say; overrides of Bridge say what flags of Megatron-LM say.
const DEEPSPEED_TRIPS: [&str; 2] = ["megatron/gpt-22b-full megatron", "megatron/gpt-7.5b-128 megatron"];

/// The plan of a policy through files of a target and back; `None` where it cannot say it.
fn round_trip(name: &str, text: &str, policy: &str, target: &str) -> Option<()> {
    let first = planned(text, policy).ok()?;
    let files = exported(&first, target).ok()?;
    let machine = machine_of(&first.problem, target);
    let stack = stacks::recognise(&files[0].text()).unwrap_or_else(|| panic!("{name}: {}", files[0].text()));
    let imported = stacks::import(stack, &files[0].text(), &machine);
    assert_eq!(errors(&imported.findings), Vec::<String>::new(), "{name}: {}", files[0].text());
    let again =
        planned(&imported.scenario, "megatron").unwrap_or_else(|why| panic!("{name}: {why}\n{}", imported.scenario));
    assert_eq!(executed(&first.problem, target), executed(&again.problem, target), "{name} {policy}");
    assert_eq!(decided(&first), decided(&again), "{name} {policy}");
    Some(())
}

/// What the command line has to say besides: a launch script says all but the GPU, configurations neither model nor lengths.
pub fn machine_of(problem: &train::Problem, target: &str) -> Machine {
    let machine = Machine { gpu: Some(problem.cluster.gpu.name.clone()), ..Machine::default() };
    if target == "megatron" {
        return machine;
    }
    let (nodes, gpus_per_node) = (Some(problem.cluster.n_nodes), Some(problem.cluster.gpus_per_node));
    let model = Some(problem.model.name.clone());
    Machine { nodes, gpus_per_node, model, tokens: problem.workload.lengths.first().copied(), ..machine }
}

/// Plans of shipped scenarios that come back from a target's files.
fn round_trips(target: &str) -> Vec<String> {
    let mut came_back = Vec::new();
    for (name, text) in scenario::EMBEDDED {
        // Lengths that differ are nothing that such files say, and a search would be of the same plans.
        let is_asked = text.contains("kind = \"training\"") && text.contains("\ntokens = ");
        let Some(scenario) = training(text).filter(|scenario| is_asked && scenario.search.is_none()) else { continue };
        // A model that stands in the scenario itself has no name that others know.
        if target != "megatron" && engine::model::embedded(&scenario.problem.model.name).is_none() {
            continue;
        }
        // Malleus deals runs of equal sequences to a group, which no flag says.
        for choice in scenario.policies.iter().filter(|choice| choice.policy != "malleus") {
            came_back.extend(round_trip(name, text, &choice.name, target).map(|()| format!("{name} {}", choice.name)));
        }
    }
    came_back.sort();
    came_back
}

#[test]
fn every_shipped_plan_that_megatron_can_say_comes_back_as_the_same_plan() {
    let came_back = round_trips("megatron");
    // Bridge has no words for Muon.
    let mut expected = ROUND_TRIPS.to_vec();
    expected.push("optimizer/muon-8b megatron");
    expected.sort_unstable();
    assert_eq!(came_back, expected, "{came_back:#?}");
}

#[test]
fn every_shipped_plan_that_deepspeed_or_bridge_can_say_comes_back_as_the_same_plan() {
    let found = [round_trips("deepspeed"), round_trips("bridge")];
    assert_eq!(found, [DEEPSPEED_TRIPS.to_vec(), ROUND_TRIPS.to_vec()], "{found:#?}");
}

/// A Python with PyTorch: that of the environment, or the one on the path.
fn python_with_torch() -> Option<std::ffi::OsString> {
    let python = std::env::var_os("SKRULL_SIM_CHECK_PYTHON").unwrap_or_else(|| "python3".into());
    let found = std::process::Command::new(&python).args(["-c", "import torch.distributed.pipelining"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!("skipped: no Python with PyTorch at hand; SKRULL_SIM_CHECK_PYTHON names one");
    None
}

#[test]
fn pytorchs_validator_takes_every_schedule() {
    let Some(python) = python_with_torch() else { return };
    let text = scenario::EMBEDDED.iter().find(|(name, _)| *name == "pipeline/schedules").expect("shipped").1;
    let folder = std::env::temp_dir().join(format!("skrull-schedules-{}", std::process::id()));
    let mut paths = Vec::new();
    for policy in ["1f1b", "gpipe", "interleaved", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min"] {
        let files = exported(&planned(text, policy).expect("a plan"), "pytorch-schedule").expect("a schedule");
        std::fs::create_dir_all(folder.join(policy)).expect("a folder");
        let path = folder.join(policy).join("schedule.csv");
        std::fs::write(&path, &files[0].bytes).expect("a file");
        paths.push(path);
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stacks/check/validate_schedule.py");
    let output =
        std::process::Command::new(python).args(["-W", "ignore", script]).args(&paths).output().expect("it runs");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(folder).ok();
}

#[test]
fn a_bad_script_is_shown_with_everything_that_is_wrong_with_it() {
    let text = "L=13\ntorchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers $L --hidden-size 768 \\\n\
                  --num-attention-heads 12 --seq-length 512 --bf16 --tensor-model-parallel-size 8 \\\n\
                  --global-batch-size $BATCH --recompute-granularity ful\n";
    let source = Source { path: "train.sh".to_owned(), text: text.to_owned() };
    let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() };
    let stack = stacks::recognise(text).expect("a launch script");
    let shown = input::diagnostic::render(&source, &stacks::import(stack, text, &machine).findings);
    let expected = "\
error[S194]: `--tensor-model-parallel-size 8` does not divide 12 attention heads
 --> train.sh:3:50
  |
3 | --num-attention-heads 12 --seq-length 512 --bf16 --tensor-model-parallel-size 8 \\
  |                                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: allowed are 1, 2, 3, 4, 6, 12, nearest is 6

error[S194]: `--tensor-model-parallel-size 8` does not divide 12 query groups
 --> train.sh:3:50
";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.contains("the value of `--global-batch-size` is known only when the script runs"), "{shown}");
    assert!(shown.contains("did you mean `full`? allowed are full, selective"), "{shown}");
}

/// Llama 3 8B on a node of B200 in MXFP8, as NVIDIA measured it (Megatron Bridge, performance summary of release 25.11): 29,521 tokens a second and GPU,
/// so 128 sequences of 8,192 tokens on eight GPUs take 4.440 s.
const MEASURED: &str = "\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 2 --global-batch-size 128 \\
  --tensor-model-parallel-size 1 --use-distributed-optimizer --bf16 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights \\
  --vocab-size 128256 --overlap-grad-reduce --overlap-param-gather --fp8-format hybrid --fp8-recipe mxfp8
";

#[test]
fn a_script_is_predicted_with_the_constants_of_its_card_and_says_so() {
    let machine = Machine { gpu: Some("b200".to_owned()), ..Machine::default() };
    let stack = stacks::recognise(MEASURED).expect("a launch script");
    let found = stacks::import(stack, MEASURED, &machine);
    let step_s = |text: &str| {
        let source = Source { path: "train.sh".to_owned(), text: text.to_owned() };
        let checked = kinds::check(source, super::root(), &Overrides::default());
        let result = checked.scenario.expect("a good script").run(&|_| {});
        (result.results[0].metrics["iteration_time_s"], result.cost_model.free_parameters)
    };
    let (predicted, free) = step_s(&found.scenario);
    assert!((predicted / 4.440 - 1.0).abs() < 0.08, "{predicted} s");
    assert!(free.iter().any(|sentence| sentence.contains("fitted on SimuMax B200")), "{free:?}");
    // A share of one's own takes the place of the card's, and its links and its host stay. So they do beside a profile. The datasheet stands alone.
    let with = |cost: &str| step_s(&format!("{}\n[cost]\n{cost}\n", found.scenario));
    let (held, free) = with("sustained_flops_ratio = 0.2");
    assert!(held > predicted, "{held} s");
    assert!(
        free.iter().any(|sentence| sentence.contains("hold 0.2 of the peak") && sentence.contains("links reach 0.67")),
        "{free:?}"
    );
    assert!(free.iter().all(|sentence| !sentence.contains("SimuMax")), "{free:?}");
    let (_, free) = with("profile = \"b200\"");
    assert!(free.iter().any(|sentence| sentence.contains("fitted on SimuMax B200")), "{free:?}");
    let (_, free) = with("profile = \"roofline\"");
    assert!(free.iter().all(|sentence| !sentence.contains("links reach")), "{free:?}");
}

#[test]
fn a_share_that_is_a_switch_elsewhere_stands_beside_it_in_words() {
    let text = scenario::EMBEDDED.iter().find(|(name, _)| *name == "megatron/gpt-175b-384").expect("shipped").1;
    let text = format!("{text}\n[overlap]\ntensor = 0.45\n");
    // Megatron-LM refuses the switch without sequence parallelism.
    let alone = exported(&planned(&text, "megatron").expect("a plan"), "megatron");
    assert!(alone.is_err_and(|why| why.to_string().contains("`--tp-comm-overlap` needs `--sequence-parallel`")));
    let text = text.replacen("sequence_parallel = false", "sequence_parallel = true", 1);
    let first = planned(&text, "megatron").expect("a plan");
    let files = exported(&first, "megatron").expect("a script");
    assert!(
        files[0].text().contains("--tp-comm-overlap is a switch; the prediction takes 0.45 of"),
        "{}",
        files[0].text()
    );
}

/// A configuration of verl whose GPUs generate and train in turns: two updates of 32 prompts with four answers each.
const IN_TURNS: &str = "\
data:
  max_prompt_length: 256
  max_response_length: 512
  train_batch_size: 64
actor_rollout_ref:
  model:
    path: Qwen/Qwen2.5-7B-Instruct
  actor:
    ppo_mini_batch_size: 32
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 4096
    use_kl_loss: true
    fsdp_config:
      param_offload: true
      optimizer_offload: true
  rollout:
    name: vllm
    n: 4
    tensor_model_parallel_size: 2
    gpu_memory_utilization: 0.6
algorithm:
  adv_estimator: grpo
trainer:
  n_gpus_per_node: 8
";

/// The same prompts for a trainer of four GPUs beside engines of four, one step off.
const ONE_STEP_OFF: &str = "\
python3 -m verl.experimental.one_step_off_policy.main_ppo data.max_prompt_length=256 data.max_response_length=512 data.train_batch_size=64 \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=sglang \\
  actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1 algorithm.adv_estimator=grpo trainer.n_gpus_per_node=4 \\
  rollout.n_gpus_per_node=4
";

/// Metrics of the step that a file of verl is.
fn step_of(text: &str) -> BTreeMap<String, f64> {
    let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() };
    let imported = stacks::import(stacks::recognise(text).expect("a file of verl"), text, &machine);
    assert_eq!(errors(&imported.findings), Vec::<String>::new(), "{}", imported.scenario);
    let checked = super::written(imported.scenario.clone(), &[]);
    assert_eq!(errors(&checked.findings), Vec::<String>::new(), "{}", imported.scenario);
    let run = checked.scenario.expect("checked").run(&|_| {});
    assert_eq!(run.results.len(), 1, "{}", imported.scenario);
    run.results[0].metrics.clone().into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[test]
fn files_of_verl_with_the_prompts_of_a_step_are_steps_that_run() {
    let turns = step_of(IN_TURNS);
    let off = step_of(ONE_STEP_OFF);
    for (step, n_updates) in [(&turns, 2.0), (&off, 2.0)] {
        assert_eq!((step["n_updates"], step["n_gpus"]), (n_updates, 8.0), "{step:?}");
    }
    // In turns the parts add up; states go to the host and back. One step off the longer side counts, and the engine's log probabilities are taken.
    let parts = ["generation_s", "rewards_s", "log_probability_s", "training_s", "weights_s", "switch_s"];
    let sum: f64 = parts.iter().map(|part| turns[*part]).sum();
    assert!((turns["step_s"] / sum - 1.0).abs() < 1e-9 && turns["switch_s"] > 0.0, "{turns:?}");
    assert_eq!(off.get("log_probability_s").copied().unwrap_or(0.0), 0.0);
    let longer = (off["training_s"] + off["weights_s"]).max(off["generation_s"] + off["weights_s"]);
    assert!((off["step_s"] / longer - 1.0).abs() < 1e-9, "{off:?}");
}
