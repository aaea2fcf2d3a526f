//! A plan as the launch script of Megatron-LM.

use engine::formats::Formats;
use engine::model::{Activation, Mixer, Model, Norm, Norms, OutputGate, Positions, QueryKeyNorm};
use hw::{Dtype, Format};
use train::Problem;
use train::layout::{Axis, ContextExchange, Zero};
use train::muon::Qkv;
use train::optimizer::{Optimizer, Rule};
use train::plan::Plan;
use train::problem::{AttentionKernel, Execution, Framework, Fusion, GradientSync, Launches, Loss, Recompute};
use train::schedule::Placement;

use crate::export::{self, Even, ExportError, File, Planned, Target, Words, comments, even, training, unsaid};
use crate::fields::{self, Rest, Stack};
use crate::flags::{Flag, Flags};
use crate::megatron::model::positions;
use crate::megatron::rules;
use crate::weeks;
use train::stage_text;

const NAME: &str = "megatron";
const VERSION: &str = "Megatron-LM core 0.20 (megatron/training/arguments.py @ d98e8a64ddf3)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "a launch script with all flags of the layout", VERSION, write);

/// Flags with their values; a switch has none.
pub(crate) type Given = Vec<(&'static str, Option<String>)>;

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let groups = flags(problem, plan, true).map_err(|what| ExportError::NotExpressible { target: NAME, what })?;
    let [(model_args, model), (parallel_args, mut parallel), rest_of_training] = groups;
    parallel.extend(checkpoints(problem.layout.zero));
    let groups = [(model_args, model), (parallel_args, parallel), rest_of_training];
    let cluster = &problem.cluster;
    let mut text = "#!/bin/bash\n".to_owned();
    text += &words.comments(VERSION);
    text += &format!("# GPU: {}. Stand-ins, which are yours: data and tokenizer in DATA_ARGS, ", cluster.gpu.name);
    text += "steps and learning rate in STEP_ARGS.\n";
    if cluster.n_gpus() > cluster.gpus_per_node {
        text += "# It runs on every node: NODE_RANK is the position of the node from 0, MASTER_ADDR the address of the first.\n";
    }
    text += &comments(&rest(problem, plan).told);
    text += &comments(&weeks::remarks(words.weeks.as_ref(), problem, true));
    text += &format!("set -eu\n{}\n\n", connections(problem.layout.zero));
    let n_nodes = cluster.n_gpus() / cluster.gpus_per_node;
    text += &format!(
        "DISTRIBUTED_ARGS=(\n    --nnodes {n_nodes}\n    --nproc-per-node {}\n{})\n",
        cluster.gpus_per_node,
        meeting(n_nodes)
    );
    let saves = Vec::from_iter(weeks::flags(words.weeks.as_ref(), problem).map(|given| ("CHECKPOINT_ARGS", given)));
    let groups: Vec<(&str, Given)> = groups.into_iter().chain(saves).collect();
    for (name, given) in &groups {
        text += &format!("{name}=(\n");
        for (flag, value) in given {
            // A list is several words.
            let words = value.iter().flat_map(|value| value.split(' '));
            let value: String = words.map(|word| format!(" {}", shown(word))).collect();
            text += &format!("    --{flag}{value}\n");
        }
        text += ")\n";
    }
    text += "DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer)\nSTEP_ARGS=(--train-iters 100 --lr 1e-4)\n\ntorchrun \"${DISTRIBUTED_ARGS[@]}\" pretrain_gpt.py";
    for (name, _) in &groups {
        text += &format!(" \\\n    \"${{{name}[@]}}\"");
    }
    text += " \\\n    \"${DATA_ARGS[@]}\" \\\n    \"${STEP_ARGS[@]}\"\n";
    Ok(vec![File::new("train.sh", text)])
}

/// How several nodes meet: each is told its position and the address of the first in variables, as the scripts of Megatron-LM have them
/// (`examples/gpt3/train_gpt3_175b_distributed.sh`).
fn meeting(n_nodes: u32) -> &'static str {
    if n_nodes > 1 {
        "    --node-rank \"${NODE_RANK:-0}\"\n    --master-addr \"${MASTER_ADDR:-localhost}\"\n    --master-port \"${MASTER_PORT:-6000}\"\n"
    } else {
        ""
    }
}

/// Whether Megatron's own FSDP shards gradients or parameters.
fn is_fsdp(zero: Zero) -> bool {
    zero > Zero::OptimizerStates
}

/// Queues of the device: FSDP asserts that there are several, tensor and context ranks before Blackwell that there is one (`validate_args`).
fn connections(zero: Zero) -> &'static str {
    if is_fsdp(zero) { "unset CUDA_DEVICE_MAX_CONNECTIONS" } else { "export CUDA_DEVICE_MAX_CONNECTIONS=1" }
}

/// The format of checkpoints, which FSDP asserts.
fn checkpoints(zero: Zero) -> Option<(&'static str, Option<String>)> {
    is_fsdp(zero).then(|| n("ckpt-format", "fsdp_dtensor"))
}

/// A value in quotes where a shell would read it otherwise.
fn shown(value: &str) -> String {
    let is_plain = value.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-+,".contains(letter));
    if is_plain { value.to_owned() } else { format!("'{value}'") }
}

/// Flags in groups, or everything that no flag says and all that is refused; `is_script` where Megatron-LM's own reader of flags runs.
pub(crate) fn flags(
    problem: &Problem,
    plan: &Plan,
    is_script: bool,
) -> Result<[(&'static str, Given); 3], Vec<String>> {
    let mut what = Vec::new();
    let found = even(problem, plan).map_err(|why| what.extend(why)).ok();
    what.extend(rounds(problem, plan));
    let model = model(&problem.model, problem, &mut what);
    let layout = layout(problem, &mut what);
    let execution = execution(problem, found, &mut what);
    what.extend(rest(problem, plan).unsaid);
    what.extend(refused(problem, found, &[&model, &layout, &execution], is_script));
    if what.is_empty() {
        Ok([("MODEL_ARGS", model), ("PARALLEL_ARGS", layout), ("TRAINING_ARGS", execution)])
    } else {
        Err(what)
    }
}

/// Combinations of flags that Megatron-LM refuses.
fn refused(problem: &Problem, found: Option<Even>, groups: &[&Given], is_script: bool) -> Vec<String> {
    let flag = |(name, value): &(&str, Option<String>)| {
        Flag::added(name, value.iter().flat_map(|value| value.split(' ')).map(str::to_owned).collect())
    };
    let flags = Flags::new(groups.iter().flat_map(|given| given.iter().map(flag)).collect(), &super::FLAGS);
    let mut refusals = rules::all(&flags, is_script);
    if let Some(found) = found {
        let (layout, n_micro_batches) = (&problem.layout, found.n_micro_batches);
        let whole = found.batch / n_micro_batches.max(1);
        let rounds = rules::Rounds { pp: layout.pp.into(), chunks: layout.chunks.into(), n_micro_batches, whole };
        let group = problem.execution.micro_batch_group.map(u64::from);
        refusals.extend(rules::stages(&flags, rounds).into_iter().chain(rules::groups(rounds, group)));
    }
    refusals.into_iter().map(|refusal| refusal.what).collect()
}

/// What flags do not say.
pub(crate) fn rest(problem: &Problem, plan: &Plan) -> Rest {
    fields::rest(&export::asked(problem, plan), Stack::Megatron)
}

/// A flag with a number.
fn n(flag: &'static str, value: impl std::fmt::Display) -> (&'static str, Option<String>) {
    (flag, Some(value.to_string()))
}

/// Where ranks wait for each other between rounds, what lets Megatron-LM make them itself.
fn rounds(problem: &Problem, plan: &Plan) -> Option<String> {
    let is_planned = plan.policy == "hybrid-cp";
    let waits = plan.steps.iter().flat_map(|step| &step.groups).flatten().any(|micro_batch| micro_batch.barrier);
    (is_planned || waits).then(|| {
        format!(
            "rounds of groups; Megatron-LM makes them from your data itself, with --hybrid-context-parallel, \
             --max-seqlen-per-dp-cp-rank {} and --calculate-per-token-loss",
            problem.bucket_tokens
        )
    })
}

fn model(model: &Model, problem: &Problem, what: &mut Vec<String>) -> Given {
    let mut given = vec![
        n("num-layers", model.n_layers),
        n("hidden-size", model.hidden),
        n("ffn-hidden-size", model.intermediate),
        n("num-attention-heads", model.n_heads),
        n("kv-channels", model.head_dim),
        // The tokenizer of stand-in data adds a row in core 0.16 and none in 0.20: all rows come from padding to as many.
        n("vocab-size", model.vocab.saturating_sub(1)),
        n("make-vocab-size-divisible-by", (model.vocab / u64::from(problem.layout.tp.max(1))).max(1)),
    ];
    if !model.vocab.is_multiple_of(u64::from(problem.layout.tp)) {
        what.push(format!("{} rows of the vocabulary over {} tensor ranks", model.vocab, problem.layout.tp));
    }
    if model.n_kv_heads != model.n_heads && model.latent.is_none() {
        given.extend([("group-query-attention", None), n("num-query-groups", model.n_kv_heads)]);
    }
    let tokens = problem.workload.lengths.first().copied().unwrap_or(1);
    given.push(n("max-position-embeddings", model.max_positions.max(tokens)));
    given.push(n("position-embedding-type", positions(model)));
    let switches = [
        ("swiglu", model.gated),
        ("untie-embeddings-and-output-weights", !model.tied),
        ("disable-bias-linear", !model.output_bias),
        ("add-qkv-bias", model.qkv_bias && !model.output_bias),
        ("qk-layernorm", model.qk_norm == QueryKeyNorm::Head),
    ];
    given.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| (flag, None)));
    given.extend(style(model, what));
    let odd = [
        (model.sinks, "learned scores that no key belongs to"),
        (model.norms != Norms::Each, "norms behind mixer and feed-forward, or one for both"),
        (model.output_gate != OutputGate::Off, "a gate behind attention"),
        (model.qk_norm == QueryKeyNorm::Whole, "one norm over all heads of queries and keys"),
        (
            model.layers.kinds().iter().any(|layer| layer.mixer != Mixer::Full),
            "layers that do not attend to all tokens",
        ),
    ];
    what.extend(unsaid(&odd));
    if let Some(latent) = &model.latent {
        given.push(("multi-latent-attention", None));
        given.extend(latent.q_rank.map(|rank| n("q-lora-rank", rank)));
        given.extend([
            n("kv-lora-rank", latent.kv_rank),
            n("qk-head-dim", latent.nope_dim),
            n("qk-pos-emb-head-dim", latent.rope_dim),
            n("v-head-dim", latent.value_dim),
        ]);
    }
    given.extend(experts(model, problem));
    given
}

/// Norms and functions of a model. Megatron-LM has LayerNorm and a plain GELU unless flags say otherwise, and gates with SiLU alone (`--swiglu`).
fn style(model: &Model, what: &mut Vec<String>) -> Given {
    let style = model.style;
    let mut given = match style.norm {
        _ if model.learned_positions => Vec::new(),
        Norm::Rms => vec![n("normalization", "RMSNorm")],
        Norm::LayerAroundOne => vec![n("normalization", "LayerNorm"), ("apply-layernorm-1p", None)],
        Norm::Layer | Norm::LayerWithoutWeights => vec![n("normalization", "LayerNorm")],
    };
    given.extend((style.activation == Some(Activation::SquaredRelu) && !model.gated).then_some(("squared-relu", None)));
    let is_usual = style.activation.is_none_or(|activation| activation.is_usual(model.gated));
    let odd = [
        (style.norm == Norm::LayerWithoutWeights, "norms without weights"),
        (!is_usual, "a function of feed-forwards that is neither SwiGLU nor a plain GELU or squared ReLU"),
        (style.positions == Positions::Biases && !model.learned_positions, "positions as biases of attention (ALiBi)"),
        (style.parallel && model.norms == Norms::Each, "attention and feed-forward that run beside each other"),
    ];
    what.extend(unsaid(&odd));
    given
}

fn experts(model: &Model, problem: &Problem) -> Given {
    let Some(experts) = &model.experts else { return Vec::new() };
    let sends = problem.execution.experts.dispatcher;
    let mut given = vec![
        n("num-experts", experts.n_routed),
        n("moe-router-topk", experts.top_k),
        n("moe-ffn-hidden-size", experts.intermediate),
        n("moe-token-dispatcher-type", if sends.is_once_per_node() { "flex" } else { "alltoall" }),
        ("moe-grouped-gemm", None),
    ];
    given.extend(sends.is_once_per_node().then(|| n("moe-flex-dispatcher-backend", sends.word())));
    given.extend((!problem.execution.unfused.has(Fusion::Permutation)).then_some(("moe-permute-fusion", None)));
    if experts.shared_intermediate > 0 {
        given.push(n("moe-shared-expert-intermediate-size", experts.shared_intermediate));
        given.extend(experts.shared_gate.then_some(("moe-shared-expert-gate", None)));
    }
    given.extend(expert_layers(model).map(|layers| n("moe-layer-freq", layers)));
    given
}

/// Which layers have experts, as a list of Python; `None` where all have.
pub(super) fn expert_layers(model: &Model) -> Option<String> {
    let has: Vec<bool> = (0..model.n_layers)
        .map(|index| model.n_expert_layers_of(index + 1) > model.n_expert_layers_of(index))
        .collect();
    has.contains(&false).then(|| runs(&has))
}

/// `([0]*3+[1]*58)`.
pub(crate) fn runs(has: &[bool]) -> String {
    let parts: Vec<String> =
        has.chunk_by(|a, b| a == b).map(|run| format!("[{}]*{}", u8::from(run[0]), run.len())).collect();
    format!("({})", parts.join("+"))
}

fn layout(problem: &Problem, what: &mut Vec<String>) -> Given {
    let layout = &problem.layout;
    let mut given = vec![
        n("tensor-model-parallel-size", layout.tp),
        n("pipeline-model-parallel-size", layout.pp),
        n("context-parallel-size", layout.cp),
    ];
    if problem.model.experts.is_some() {
        given.extend([n("expert-model-parallel-size", layout.ep), n("expert-tensor-parallel-size", layout.expert_tp)]);
    }
    if layout.cp > 1 {
        let exchange = match layout.exchange {
            ContextExchange::Ring => "p2p",
            ContextExchange::Ulysses => "a2a",
            ContextExchange::Gather => "allgather",
        };
        given.push(n("cp-comm-type", exchange));
    }
    if layout.sequence_parallel && layout.tp > 1 {
        given.push(("sequence-parallel", None));
    }
    match layout.order {
        [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline] => {}
        [Axis::Tensor, Axis::Context, Axis::Pipeline, Axis::Data] => given.push(("use-tp-pp-dp-mapping", None)),
        _ if fields::is_usual_order(layout) => {}
        _ => what.push("ranks in another order than tensor, context, data, pipeline".to_owned()),
    }
    match layout.zero {
        Zero::Off => {}
        Zero::OptimizerStates => given.push(("use-distributed-optimizer", None)),
        Zero::Gradients => {
            given.extend([("use-megatron-fsdp", None), n("data-parallel-sharding-strategy", "optim_grads")])
        }
        Zero::Parameters => {
            given.extend([("use-megatron-fsdp", None), n("data-parallel-sharding-strategy", "optim_grads_params")])
        }
    }
    if layout.zero > Zero::Off && layout.replicate > 1 {
        given.push(n("num-distributed-optimizer-instances", layout.replicate));
    }
    if layout.pp > 1 {
        pipeline(problem, &mut given, what);
    }
    given
}

/// Virtual stages, and the layers of each where they differ.
fn pipeline(problem: &Problem, given: &mut Given, what: &mut Vec<String>) {
    let layout = &problem.layout;
    if !matches!(problem.schedule.name, "1f1b" | "interleaved") {
        let is_twice = problem.schedule.placement == Placement::Bidirectional;
        let other = if is_twice { "" } else { "; `pytorch-schedule` writes it" };
        what.push(format!("the schedule `{}`{other}", problem.schedule.name));
        return;
    }
    let layers: Vec<u32> = train::stage::stages(problem).iter().map(|stage| stage.n_layers()).collect();
    if layers.windows(2).all(|pair| pair[0] == pair[1]) {
        if layout.chunks > 1 {
            given.push(n("num-virtual-stages-per-pipeline-rank", layout.chunks));
        }
    } else {
        given.push(n("pipeline-model-parallel-layout", stage_text::write(&layers)));
    }
    let overlaps = problem.execution.overlap.stage;
    if let Some(size) = problem.execution.micro_batch_group.filter(|_| layout.chunks > 1) {
        given.push(n("microbatch-group-size-per-virtual-pipeline-stage", size));
    }
    if layout.chunks > 1 && !overlaps {
        given.push(("no-overlap-p2p-communication", None));
    }
}

const fn word(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Fp32 => "fp32",
        Dtype::Bf16 => "bf16",
        Dtype::Fp16 => "fp16",
        Dtype::Fp8 | Dtype::Int8 => "fp8",
    }
}

/// The optimizer, where it is not Adam in 32 bits on the device.
fn optimizer(execution: &Execution, given: &mut Given) {
    // PyTorch's optimizer has no flag here.
    let Optimizer { rule, muon, master, moments, on_host, kernels: _ } = execution.optimizer;
    if rule == Rule::Muon {
        // Beside `--use-distributed-optimizer` each rank has whole matrices; `dist_muon` is the older word for both.
        given.push(n("optimizer", "muon"));
        given.extend([n("muon-num-ns-steps", muon.n_iterations), n("muon-tp-mode", muon.tensor.word())]);
        if muon.qkv == Qkv::Whole {
            given.push(("muon-no-split-qkv", None));
        }
    }
    // Parameters without a master copy are refused (`fields.rs`).
    let master = master.unwrap_or(Dtype::Fp32);
    let dtypes = [("main-params-dtype", master), ("exp-avg-dtype", moments[0]), ("exp-avg-sq-dtype", moments[1])];
    let is_narrow = dtypes.iter().any(|(_, dtype)| *dtype != Dtype::Fp32);
    // The optimizer on the host shares its code.
    if is_narrow || on_host.is_some() {
        given.push(("use-precision-aware-optimizer", None));
    }
    if is_narrow {
        let narrow = dtypes.into_iter().filter(|(_, dtype)| *dtype != Dtype::Fp32);
        given.extend(narrow.map(|(flag, dtype)| n(flag, word(dtype))));
    }
    if let Some(host) = on_host {
        given.extend([("optimizer-cpu-offload", None), n("optimizer-offload-fraction", host.share)]);
    }
}

fn execution(problem: &Problem, found: Option<Even>, what: &mut Vec<String>) -> Given {
    let (execution, layout) = (&problem.execution, &problem.layout);
    let mut given = Given::new();
    if let Some(found) = found {
        given.extend([
            n("micro-batch-size", found.micro_batch),
            n("global-batch-size", found.batch),
            n("seq-length", found.tokens),
        ]);
    }
    // Beside fp16 gradients are of 16 bits unless they are added up in 32.
    match (problem.dtype, execution.gradient_dtype) {
        (Dtype::Fp16, Dtype::Fp32) => given.extend([("fp16", None), ("accumulate-allreduce-grads-in-fp32", None)]),
        (Dtype::Fp16, _) => given.push(("fp16", None)),
        (_, Dtype::Fp32) => given.push(("bf16", None)),
        _ => given.extend([("bf16", None), ("grad-reduce-in-bf16", None)]),
    }
    match execution.gradient_sync {
        GradientSync::Overlapped => given.push(("overlap-grad-reduce", None)),
        GradientSync::AtEnd => {}
        GradientSync::EachMicroBatch if layout.zero == Zero::Parameters => given.push(("overlap-grad-reduce", None)),
        GradientSync::EachMicroBatch => what.push("gradients that are reduced with every micro-batch".to_owned()),
    }
    if execution.overlap.parameter_gather {
        given.push(("overlap-param-gather", None));
    }
    given.extend(recompute(problem));
    optimizer(execution, &mut given);
    given.push(n(
        "attention-backend",
        match execution.attention {
            AttentionKernel::Unfused => "unfused",
            AttentionKernel::FlashTwo => "flash",
            AttentionKernel::Flash | AttentionKernel::FlashThree | AttentionKernel::CuDnn => "auto",
        },
    ));
    if let Some(formats) = &execution.formats {
        products(formats.dense, &mut given, what);
        if execution.gathers_narrow && !formats.dense.is_whole() {
            given.push(("fp8-param-gather", None));
        }
    }
    graphs(problem, &mut given, what);
    if let Some(capacity) = execution.experts.capacity {
        given.extend([n("moe-expert-capacity-factor", capacity), ("moe-pad-expert-input-to-capacity", None)]);
    }
    given.extend(execution.experts.fused.then_some(("use-transformer-engine-op-fuser", None)));
    if execution.overlap.tensor > 0.0 {
        given.push(("tp-comm-overlap", None));
    }
    if execution.overlap.expert.is_some() {
        given.push(("overlap-moe-expert-parallel-comm", None));
        given.extend(execution.overlap.delayed_weights.then_some(("delay-wgrad-compute", None)));
    }
    given.extend(unfused(problem));
    given.extend(loss(execution.loss));
    let dropout = problem.shard().dropout();
    given.extend([("attention-dropout", dropout.attention), ("hidden-dropout", dropout.residual)].map(rate));
    let is_mixed = |formats: &Formats| {
        formats.behind() != formats.dense || formats.attention != formats.dense || formats.experts != formats.dense
    };
    let odd = [
        (problem.n_predicting() > 0, "layers that predict further tokens"),
        (execution.formats.as_ref().is_some_and(is_mixed), "products whose formats differ by part"),
        (execution.formats.is_some_and(|formats| formats.kv.bytes() == 1), "attention in 8 bits"),
    ];
    what.extend(unsaid(&odd));
    given
}

/// Flags of kernels that are not fused; that of permutations stands beside the experts.
fn unfused(problem: &Problem) -> Given {
    let activation = if problem.model.gated { "no-bias-swiglu-fusion" } else { "no-bias-gelu-fusion" };
    let flags = [
        (Fusion::Activation, activation),
        (Fusion::Positions, "no-rope-fusion"),
        (Fusion::GradientAccumulation, "no-gradient-accumulation-fusion"),
    ];
    let unfused = flags.into_iter().filter(|(fusion, _)| problem.execution.unfused.has(*fusion));
    unfused.map(|(_, flag)| (flag, None)).collect()
}

/// Flags of fused kernels of the loss.
fn loss(loss: Loss) -> Given {
    let kind = match loss {
        Loss::Unfused | Loss::Chunked | Loss::ChunkedNll => return Given::new(),
        Loss::Compiled | Loss::CompiledReused => "native",
        Loss::InPlace | Loss::Widened => "te",
        Loss::WithHead => "linear",
    };
    vec![("cross-entropy-loss-fusion", None), n("cross-entropy-fusion-impl", kind)]
}

/// Megatron-LM's usual rate of dropout, or none.
fn rate((flag, has): (&'static str, bool)) -> (&'static str, Option<String>) {
    n(flag, if has { "0.1" } else { "0.0" })
}

/// Flags of what is computed again.
fn recompute(problem: &Problem) -> Given {
    let execution = &problem.execution;
    let mut given = Given::new();
    match execution.recompute {
        Recompute::Off => {}
        Recompute::Selective => given.push(n("recompute-granularity", "selective")),
        Recompute::Modules(_) => {
            let modules = execution.recompute.words().join(" ");
            given.extend([n("recompute-granularity", "selective"), n("recompute-modules", modules)]);
        }
        Recompute::Full if execution.recompute_layers == u32::MAX => {
            given.extend([
                n("recompute-granularity", "full"),
                n("recompute-method", "uniform"),
                n("recompute-num-layers", 1),
            ]);
        }
        Recompute::Full => {
            let layers = execution.recompute_layers;
            given.extend([
                n("recompute-granularity", "full"),
                n("recompute-method", "block"),
                n("recompute-num-layers", layers),
            ]);
        }
    }
    given
}

/// Flags of what graphs replay.
fn graphs(problem: &Problem, given: &mut Given, what: &mut Vec<String>) {
    let execution = &problem.execution;
    let captured = execution.launches.captured;
    if captured.router {
        if captured.attention {
            let scope = "attn moe_router".to_owned();
            given.extend([n("cuda-graph-impl", "transformer_engine"), ("cuda-graph-scope", Some(scope))]);
        } else {
            what.push("graphs of the router alone".to_owned());
        }
    } else if captured.attention {
        given.extend([n("cuda-graph-impl", "transformer_engine"), n("cuda-graph-scope", "attn")]);
    } else if execution.framework == Framework::MegatronCore && execution.launches == Launches::UNSEEN {
        given.extend([n("cuda-graph-impl", "local"), n("cuda-graph-scope", "full_iteration")]);
    }
}

/// Flags of the format of products.
fn products(format: Format, given: &mut Given, what: &mut Vec<String>) {
    match format {
        Format::Bf16 => {}
        Format::Fp8 => given.extend([n("fp8-format", "hybrid"), n("fp8-recipe", "tensorwise")]),
        Format::Fp8Block => given.extend([n("fp8-format", "e4m3"), n("fp8-recipe", "blockwise")]),
        Format::Mxfp8 => given.extend([n("fp8-format", "e4m3"), n("fp8-recipe", "mxfp8")]),
        Format::Nvfp4 => given.extend([n("fp4-format", "e2m1"), n("fp4-recipe", "nvfp4")]),
        other => what.push(format!("products in {}", other.word())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts of `validate_args` for `use_megatron_fsdp`.
    #[test]
    fn what_flags_cannot_say_of_a_model_is_refused() {
        let of = |kind: &str, more: &str| {
            let config = format!(
                r#"{{ "model_type": "{kind}", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 4,
                "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 4096{more} }}"#
            );
            let (model, mut what) = (Model::from_config("x", &config).expect(kind), Vec::new());
            let given = style(&model, &mut what)
                .into_iter()
                .map(|(flag, value)| format!("{flag} {}", value.unwrap_or_default()));
            (given.collect::<Vec<_>>().join(" ").trim().to_owned(), what.join("; "))
        };
        let said = |kind: &str, more: &str, flags: &str| {
            assert_eq!(of(kind, more), (flags.to_owned(), String::new()), "{kind}")
        };
        said("llama", "", "normalization RMSNorm");
        said("nemotron", "", "normalization LayerNorm apply-layernorm-1p  squared-relu");
        said("gpt_neox", r#", "use_parallel_residual": false, "hidden_act": "gelu""#, "normalization LayerNorm");
        for (kind, part) in [
            ("gpt_neox", "run beside each other"),
            ("bloom", "ALiBi"),
            ("olmo", "norms without weights"),
            ("opt", "a function of feed-forwards"),
            ("gemma", "a function of feed-forwards"),
        ] {
            let (_, what) = of(kind, "");
            assert!(what.contains(part), "{kind}: {what}");
        }
    }

    #[test]
    fn scripts_of_fsdp_have_what_it_asserts() {
        for (zero, is_sharded) in
            [(Zero::Off, false), (Zero::OptimizerStates, false), (Zero::Gradients, true), (Zero::Parameters, true)]
        {
            assert_eq!(connections(zero).starts_with("unset"), is_sharded);
            assert_eq!(checkpoints(zero), is_sharded.then(|| ("ckpt-format", Some("fsdp_dtensor".to_owned()))));
        }
    }
}
