//! Fields of a training plan: every one is written by a target, told in a remark, or refused. A table has a row for each, with a column for each target.
//!
//! What a file says is written where the file is made; here stands what becomes of the rest, so that no export loses it in silence. What the prediction
//! takes of the machine, and what code decides that no file configures, is a remark. What would make another plan is refused.

use train::Problem;
use train::layout::{Axis, ContextExchange, Layout, Zero};
use train::optimizer::{Optimizer, Rule};
use train::problem::{AttentionKernel, Framework, GradientSync, Loss, Modules, Recompute, Unfused};

/// What is asked of a plan.
pub(crate) struct Asked<'a> {
    /// Model, layout and execution.
    pub(crate) problem: &'a Problem,
    /// Micro-batches of a group.
    pub(crate) n_micro_batches: u64,
}

/// What becomes of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// A file says it, or it changes nothing there.
    Said,
    /// A remark.
    Told(String),
    /// The target cannot say it.
    Unsaid(String),
}
use Fate::Said;

/// What says what becomes of a field.
#[derive(Clone, Copy)]
enum Judge {
    /// The target cannot say it where this holds.
    Unsaid(fn(&Problem) -> bool, &'static str),
    /// A function of the plan.
    By(fn(&Asked<'_>) -> Fate),
}
use Judge::{By, Unsaid};

/// A target whose files are of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// Megatron-LM, and Bridge with it: its keys are flags under other names.
    Megatron,
    /// torchtitan.
    Torchtitan,
    /// DeepSpeed.
    Deepspeed,
}

/// What the files of a plan do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Sentences for remarks.
    pub(crate) told: Vec<String>,
    /// What the target cannot say.
    pub(crate) unsaid: Vec<String>,
}

/// What becomes of all fields of a plan.
pub(crate) fn rest(asked: &Asked<'_>, stack: Stack) -> Rest {
    let mut rest = Rest::default();
    for (_, columns) in &ROWS {
        let fate = match columns[stack as usize] {
            Unsaid(is_so, words) => unsaid(is_so(asked.problem), words),
            By(judge) => judge(asked),
        };
        match fate {
            Fate::Said => {}
            Fate::Told(words) => rest.told.push(words),
            Fate::Unsaid(words) => rest.unsaid.push(words),
        }
    }
    rest
}

/// Every field, with its columns in the order of `Stack`.
const ROWS: [(&str, [Judge; 3]); 60] = [
    ("problem.dtype", [SAID, HALF, SAID]),
    ("problem.schedule", [SAID, V_SHAPES, SAID]),
    ("layout.dp", [SAID, SAID, SAID]),
    ("layout.cp", [SAID, SAID, SAID]),
    ("layout.tp", [SAID, SAID, SAID]),
    ("layout.pp", [SAID, SAID, PIPELINE]),
    ("layout.chunks", [SAID, SAID, SAID]),
    ("layout.ep", [SAID, SAID, EXPERT_RANKS]),
    ("layout.expert_tp", [SAID, CUT_EXPERTS, SAID]),
    ("layout.sequence_parallel", [SAID, SAID, SEQUENCE_PARALLEL]),
    ("layout.zero", [SAID, By(partly_sharded), SAID]),
    ("layout.replicate", [SAID, By(uneven_copies), COPIES]),
    ("layout.exchange", [SAID, ULYSSES, NO_ULYSSES]),
    ("layout.order", [SAID, ORDER, ORDER]),
    ("execution.recompute", [By(recompute_megatron), By(recompute_torchtitan), By(recompute_deepspeed)]),
    ("execution.recompute_layers", [By(some_layers_megatron), By(some_layers), By(some_layers)]),
    ("execution.gradient_sync", [SAID, By(sync_torchtitan), By(sync_deepspeed)]),
    ("execution.gradient_dtype", [SAID, NARROW_GRADIENTS, SAID]),
    ("execution.attention", [SAID, By(unfused), By(unfused_deepspeed)]),
    ("execution.framework", [By(megatron_core), By(pytorch), By(under_deepspeed)]),
    ("execution.unfused", [SAID, UNFUSED, UNFUSED]),
    ("execution.loss", [By(widened), By(compiled_loss), By(compiled_loss)]),
    ("execution.dropout", [SAID, By(dropout), By(dropout)]),
    ("execution.gathers_logits", [SAID, GATHERS_LOGITS, SAID]),
    ("execution.formats", [SAID, By(narrow_products), By(narrow_products)]),
    ("execution.casts", [SAID, SAID, SAID]),
    ("execution.rotates_apart", [ROTATES_APART, ROTATES_APART, ROTATES_APART]),
    ("execution.wide_layers", [WIDE_LAYERS, WIDE_LAYERS, WIDE_LAYERS]),
    ("execution.gathers_narrow", [SAID, NARROW_GATHERS, NARROW_GATHERS]),
    ("overlap.tensor", [By(share_tensor), By(pieces), TENSOR]),
    ("overlap.expert", [By(share_expert), EXPERT, EXPERT]),
    ("overlap.delayed_weights", [NOT_BEHIND, DELAYED, DELAYED]),
    ("overlap.slowdown", [By(slowdown), By(slowdown), By(slowdown)]),
    ("overlap.stage", [By(messages_megatron), WAITS_FOR_MESSAGES, SAID]),
    ("overlap.parameter_gather", [SAID, SAID, By(gathers_ahead)]),
    ("overlap.forward_prefetch", [NO_PREFETCH_FORWARD, NO_PREFETCH_FORWARD, PREFETCH_OF_ONE]),
    ("overlap.backward_prefetch", [NO_PREFETCH_BACKWARD, NO_PREFETCH_BACKWARD, SAID]),
    ("experts.imbalance", [By(imbalance), By(imbalance), By(imbalance)]),
    ("experts.capacity", [SAID, CAPACITY, CAPACITY]),
    ("experts.compression", [MERGED, MERGED, MERGED]),
    ("experts.dispatcher", [SAID, ONCE_PER_NODE, ONCE_PER_NODE]),
    ("experts.fused", [SAID, FUSED, FUSED]),
    ("execution.offload", [OFFLOAD, OFFLOAD, OFFLOAD]),
    ("execution.parameters_on_host", [PARAMETERS_ON_HOST, PARAMETERS_ON_HOST, SAID]),
    ("execution.fragmentation", [By(fragmentation), By(fragmentation), By(fragmentation)]),
    ("execution.host_overhead_per_layer", [By(host), By(host), By(host)]),
    ("launches.each", [SAID, SAID, SAID]),
    ("launches.captured", [SAID, CAPTURED, CAPTURED]),
    ("execution.context_in_blocks", [BLOCKS, BLOCKS, BLOCKS]),
    ("execution.optimizer", [By(optimizer_megatron), OPTIMIZER, OPTIMIZER]),
    ("execution.adapters", [ADAPTERS, ADAPTERS, ADAPTERS]),
    ("execution.unit_times", [UNIT_TIMES, UNIT_TIMES, UNIT_TIMES]),
    ("execution.layers", [SAID, SAID, SAID]),
    ("execution.micro_batch_group", [SAID, By(groups), By(groups)]),
    ("execution.flush_every", [By(flushed), By(alike_flushes), By(flushed)]),
    ("execution.places", [PLACES, PLACES, PLACES]),
    ("execution.stragglers", [STRAGGLERS, STRAGGLERS, STRAGGLERS]),
    ("execution.overlap", [SAID, SAID, SAID]),
    ("execution.experts", [SAID, SAID, SAID]),
    ("execution.launches", [SAID, SAID, SAID]),
];

const SAID: Judge = By(|_| Said);
const HALF: Judge = Unsaid(|p| p.dtype == hw::Dtype::Fp16, "activations in fp16");
/// torchtitan places stages as a V for `zb-v` alone, whose class says so; its placement of the others is the same.
const V_SHAPES: Judge = Unsaid(
    |p| p.layout.pp > 1 && p.schedule.placement == train::schedule::Placement::Bidirectional,
    "two copies of the model on every rank, as DualPipe has them",
);
const PIPELINE: Judge =
    Unsaid(|p| p.layout.pp > 1, "a pipeline: DeepSpeed takes it from the module, not from the configuration");
const EXPERT_RANKS: Judge = Unsaid(|p| p.layout.ep > 1, "experts over ranks: DeepSpeed takes them from the module");
const CUT_EXPERTS: Judge =
    Unsaid(|p| p.layout.expert_tp != 1 && p.layout.ep > 1, "experts that are cut over tensor ranks");
const SEQUENCE_PARALLEL: Judge = Unsaid(
    |p| p.layout.tp > 1 && p.layout.sequence_parallel,
    "activations that are cut over the tensor group between products",
);
const COPIES: Judge = Unsaid(
    |p| p.layout.zero > Zero::Off && p.layout.replicate > 1,
    "several groups of ranks that hold all sharded states each",
);
const ULYSSES: Judge =
    Unsaid(|p| p.layout.cp > 1 && p.layout.exchange == ContextExchange::Ulysses, "a context exchange by all-to-all");
const NO_ULYSSES: Judge = Unsaid(
    |p| p.layout.cp > 1 && p.layout.exchange != ContextExchange::Ulysses,
    "a context exchange other than Ulysses",
);
const ORDER: Judge =
    Unsaid(|p| !is_usual_order(&p.layout), "ranks in another order than tensor, context, data, pipeline");
const OPTIMIZER: Judge = Unsaid(
    |p| p.execution.optimizer != Optimizer::ADAM,
    "an optimizer other than Adam with states in 32 bits on the device",
);
const NARROW_GRADIENTS: Judge = Unsaid(
    |p| p.execution.gradient_dtype != hw::Dtype::Fp32,
    "gradients in 16 bits: torchtitan reduces them in 32 (`training.gradient_dtype = \"fp32\"`)",
);
const ROTATES_APART: Judge = Unsaid(
    |p| p.execution.rotates_apart,
    "casts to 4 bits of a Transformer Engine before 2.14, which no option chooses",
);
const WIDE_LAYERS: Judge = Unsaid(|p| p.execution.wide_layers > 0, "layers whose products stay in 16 bits");
const NARROW_GATHERS: Judge =
    Unsaid(|p| p.execution.gathers_narrow, "parameters that are gathered in the format of the products");
const GATHERS_LOGITS: Judge = Unsaid(
    |p| p.execution.gathers_logits && p.layout.tp > 1,
    "logits that are gathered before the loss (`--parallelism.disable_loss_parallel`)",
);
const TENSOR: Judge =
    Unsaid(|p| p.execution.overlap.tensor > 0.0 && p.layout.tp > 1, "exchanges of the tensor group behind products");
const EXPERT: Judge =
    Unsaid(|p| p.execution.overlap.expert.is_some() && p.layout.ep > 1, "all-to-alls of experts behind computation");
/// Megatron-LM delays gradients of weights beside an all-to-all that runs behind computation.
const NOT_BEHIND: Judge = Unsaid(
    |p| p.execution.overlap.delayed_weights && p.execution.overlap.expert.is_none(),
    "gradients of weights that are delayed while no all-to-all runs behind computation",
);
const DELAYED: Judge =
    Unsaid(|p| p.execution.overlap.delayed_weights, "gradients of weights beside the all-to-all of experts");
const WAITS_FOR_MESSAGES: Judge =
    Unsaid(|p| p.layout.pp > 1 && !p.execution.overlap.stage, "stages that wait until their message is sent");
const NO_PREFETCH_FORWARD: Judge = Unsaid(
    |p| !p.execution.overlap.forward_prefetch && p.layout.zero == Zero::Parameters,
    "a forward that waits for its parameters",
);
const NO_PREFETCH_BACKWARD: Judge = Unsaid(
    |p| !p.execution.overlap.backward_prefetch && p.layout.zero == Zero::Parameters,
    "a backward that waits for its parameters",
);
/// DeepSpeed has one number for both directions.
const PREFETCH_OF_ONE: Judge = Unsaid(
    |p| {
        p.execution.overlap.forward_prefetch != p.execution.overlap.backward_prefetch
            && p.layout.zero == Zero::Parameters
    },
    "parameters that are gathered ahead in one direction alone",
);
const CAPACITY: Judge =
    Unsaid(|p| p.execution.experts.capacity.is_some(), "experts that drop tokens beyond their capacity");
const MERGED: Judge =
    Unsaid(|p| p.execution.experts.compression.is_some(), "similar tokens that are merged before the all-to-all");
const ONCE_PER_NODE: Judge = Unsaid(
    |p| p.execution.experts.dispatcher.is_once_per_node() && p.layout.ep > 1,
    "a dispatcher that sends a token to a node once",
);
const FUSED: Judge =
    Unsaid(|p| p.execution.experts.fused, "products of experts that are fused with what lies between them");
const UNFUSED: Judge = Unsaid(|p| p.execution.unfused != Unfused::NONE, "kernels of Megatron-Core that are not fused");
const OFFLOAD: Judge = Unsaid(|p| p.execution.offload > 0.0, "a share of all activations in host memory");
const PARAMETERS_ON_HOST: Judge =
    Unsaid(|p| p.execution.parameters_on_host, "shares of parameters in host memory (`training.parameters_on_host`)");
const CAPTURED: Judge = Unsaid(
    |p| p.execution.launches.captured.attention || p.execution.launches.captured.router,
    "modules that CUDA graphs replay",
);
const BLOCKS: Judge = Unsaid(
    |p| p.execution.context_in_blocks && p.layout.cp > 1,
    "context ranks that hold blocks of a sequence in order",
);
const ADAPTERS: Judge = Unsaid(|p| p.execution.adapters.is_some(), "training of adapters alone");
const UNIT_TIMES: Judge = Unsaid(|p| p.execution.unit_times.is_some(), "passes with times of their own");
const PLACES: Judge = Unsaid(|p| !p.execution.places.is_empty(), "stages with ranks of their own");
const STRAGGLERS: Judge = Unsaid(|p| !p.execution.stragglers.is_empty(), "stages around devices that are slower");

/// What keeps states narrow or on the host is of Adam alone (`OptimizerConfig.__post_init__`: `use_precision_aware_optimizer`).
fn optimizer_megatron(asked: &Asked<'_>) -> Fate {
    let optimizer = asked.problem.execution.optimizer;
    if optimizer.master.is_none() {
        return Fate::Unsaid("parameters in 16 bits that are updated themselves".to_owned());
    }
    unsaid(
        optimizer.rule == Rule::Muon && !optimizer.is_plain(),
        "Muon with states in fewer bits or on the host: `--use-precision-aware-optimizer` takes Adam alone",
    )
}

/// The flag is that of all releases of Transformer Engine and of PyTorch.
fn widened(asked: &Asked<'_>) -> Fate {
    match asked.problem.execution.loss {
        Loss::Widened => Fate::Told("The prediction takes the loss of Transformer Engine 2.18.".to_owned()),
        Loss::CompiledReused => Fate::Told("The prediction takes the loss of an older PyTorch.".to_owned()),
        Loss::Chunked | Loss::ChunkedNll => other_loss(asked),
        Loss::Unfused | Loss::Compiled | Loss::InPlace | Loss::WithHead => Said,
    }
}

/// A loss that is compiled with its modules: torchtitan has a key for it, and with DeepSpeed a script compiles both.
fn compiled_loss(asked: &Asked<'_>) -> Fate {
    let execution = &asked.problem.execution;
    if execution.framework.is_compiled() && execution.loss == Loss::Compiled { Said } else { other_loss(asked) }
}

/// Whose loss is no key of these targets; it counts with Megatron-Core's kernels alone.
fn other_loss(asked: &Asked<'_>) -> Fate {
    let loss = asked.problem.execution.loss;
    unsaid(loss != Loss::Unfused, format!("the kernels `{}` of the loss", loss.word()))
}

fn dropout(asked: &Asked<'_>) -> Fate {
    let dropout = asked.problem.execution.dropout;
    let has = dropout.is_some_and(|dropout| dropout.attention || dropout.residual);
    told(has, "The prediction has dropout in the layers: the model's code has to have it.")
}

fn groups(asked: &Asked<'_>) -> Fate {
    let n = asked.problem.execution.micro_batch_group.filter(|_| asked.problem.layout.chunks > 1);
    n.map_or(Said, |n| Fate::Unsaid(format!("groups of {n} micro-batches of interleaved stages")))
}

/// Micro-batches of a flush, where there are several flushes in a step.
fn of_flush(asked: &Asked<'_>) -> Option<u64> {
    asked.problem.flush_every().map(|every| every as u64).filter(|every| *every < asked.n_micro_batches)
}

fn flushed(asked: &Asked<'_>) -> Fate {
    let words =
        |every| format!("a pipeline that is flushed behind every {every} micro-batches (`parallel.flush_every`)");
    of_flush(asked).map_or(Said, |every| Fate::Unsaid(words(every)))
}

/// torchtitan runs its schedule for one local batch after the other, all of one size.
fn alike_flushes(asked: &Asked<'_>) -> Fate {
    let n = asked.n_micro_batches;
    let uneven = of_flush(asked).filter(|every| !n.is_multiple_of(*every));
    uneven.map_or(Said, |every| Fate::Unsaid(format!("flushes of {every} micro-batches, of which {n} are no multiple")))
}

fn told(is_so: bool, words: impl Into<String>) -> Fate {
    if is_so { Fate::Told(words.into()) } else { Said }
}

fn unsaid(is_so: bool, words: impl Into<String>) -> Fate {
    if is_so { Fate::Unsaid(words.into()) } else { Said }
}

fn partly_sharded(asked: &Asked<'_>) -> Fate {
    match asked.problem.layout.zero {
        Zero::Off | Zero::Parameters => Said,
        Zero::OptimizerStates => Fate::Unsaid("optimizer states that are sharded alone (ZeRO 1)".to_owned()),
        Zero::Gradients => Fate::Unsaid("gradients that are sharded without parameters (ZeRO 2)".to_owned()),
    }
}

/// torchtitan's groups shard over whole data-parallel groups.
fn uneven_copies(asked: &Asked<'_>) -> Fate {
    let Layout { zero, replicate, dp, .. } = asked.problem.layout;
    let is_uneven = zero > Zero::Off && !dp.is_multiple_of(replicate);
    unsaid(is_uneven, format!("{replicate} copies of sharded states over {dp} data-parallel groups"))
}

/// Whether ranks count along tensor, context, data and pipeline; where an axis stands that has one rank makes no difference.
pub(crate) fn is_usual_order(layout: &Layout) -> bool {
    let degrees =
        [(Axis::Tensor, layout.tp), (Axis::Context, layout.cp), (Axis::Data, layout.dp), (Axis::Pipeline, layout.pp)];
    let usual = degrees.iter().filter(|(_, degree)| *degree > 1).map(|(axis, _)| *axis);
    let is_cut = |axis: &Axis| degrees.iter().any(|(known, degree)| known == axis && *degree > 1);
    layout.order.into_iter().filter(is_cut).eq(usual)
}

/// Megatron-LM's plain selective recompute is that of attention, fused or not. What is predicted of its own kernels has modules; formulas of papers have no others.
fn recompute_megatron(asked: &Asked<'_>) -> Fate {
    let (execution, model) = (&asked.problem.execution, &asked.problem.model);
    let is_other = execution.recompute == Recompute::Selective && execution.attention.is_fused();
    if is_other && execution.framework == Framework::MegatronCore {
        let modules = Recompute::Modules(Modules::cheap(model)).written();
        return Fate::Unsaid(format!(
            "`recompute = \"selective\"`, norms and activation functions: plain `--recompute-granularity selective` computes attention again; write \
             `training.recompute = {modules}` for modules that Megatron-LM has, or `\"core_attn\"` for attention"
        ));
    }
    told(
        is_other,
        "The prediction computes norms and activation functions again; Megatron-LM computes attention again.",
    )
}

fn recompute_torchtitan(asked: &Asked<'_>) -> Fate {
    let recompute = asked.problem.execution.recompute;
    let is_known = matches!(recompute, Recompute::Off | Recompute::Selective | Recompute::Full);
    unsaid(!is_known, "recompute of single modules of a layer")
}

/// Which layers are checkpointed is a matter of the model's code: the configuration sets options of DeepSpeed's own function and turns nothing on
/// (`deepspeed/runtime/activation_checkpointing/checkpointing.py`).
fn recompute_deepspeed(asked: &Asked<'_>) -> Fate {
    match asked.problem.execution.recompute {
        Recompute::Off => Said,
        Recompute::Full => Fate::Told(
            "The prediction computes each layer again, which no key turns on: the model's code has to call `deepspeed.checkpointing.checkpoint`, or \
             `gradient_checkpointing_enable()` of a Hugging Face model."
                .to_owned(),
        ),
        _ => Fate::Told(
            "The prediction computes a part of each layer again: the model's code has to ask for that.".to_owned(),
        ),
    }
}

fn some_layers(asked: &Asked<'_>) -> Fate {
    let (execution, n_layers) = (&asked.problem.execution, asked.problem.model.n_layers);
    let is_some = execution.recompute != Recompute::Off && u64::from(execution.recompute_layers) < n_layers;
    unsaid(is_some, format!("recompute of {} layers of a stage alone", execution.recompute_layers))
}

/// Megatron-LM counts layers that are computed again as a whole (`--recompute-num-layers`); modules are computed again in all of them.
fn some_layers_megatron(asked: &Asked<'_>) -> Fate {
    if asked.problem.execution.recompute == Recompute::Full { Said } else { some_layers(asked) }
}

/// Without a pipeline torchtitan reduces with every micro-batch (`trainer.py` has no `no_sync`); a pipeline reduces behind the last ones.
fn sync_torchtitan(asked: &Asked<'_>) -> Fate {
    let (layout, sync) = (&asked.problem.layout, asked.problem.execution.gradient_sync);
    let is_each = layout.pp == 1 && asked.n_micro_batches > 1 && layout.zero != Zero::Parameters;
    match sync {
        GradientSync::AtEnd => Fate::Unsaid("gradients that are reduced after the last backward".to_owned()),
        GradientSync::Overlapped if is_each => {
            Fate::Unsaid("gradients that are reduced with the last micro-batch alone".to_owned())
        }
        GradientSync::EachMicroBatch if layout.pp > 1 && layout.zero != Zero::Parameters => {
            Fate::Unsaid("gradients that are reduced with every micro-batch of a pipeline".to_owned())
        }
        GradientSync::Overlapped | GradientSync::EachMicroBatch => Said,
    }
}

/// ZeRO 2 reduces with every micro-batch, for a rank keeps its part alone; below, the steps of accumulation keep whole gradients.
fn sync_deepspeed(asked: &Asked<'_>) -> Fate {
    let (zero, sync) = (asked.problem.layout.zero, asked.problem.execution.gradient_sync);
    let is_several = asked.n_micro_batches > 1;
    match (sync, zero) {
        (GradientSync::Overlapped, Zero::Gradients) if is_several => {
            Fate::Unsaid("gradients of ZeRO 2 that are reduced with the last micro-batch alone".to_owned())
        }
        (GradientSync::EachMicroBatch, Zero::Off | Zero::OptimizerStates) if is_several => {
            Fate::Unsaid("gradients that are reduced with every micro-batch below ZeRO 2".to_owned())
        }
        _ => Said,
    }
}

fn unfused(asked: &Asked<'_>) -> Fate {
    unsaid(is_unfused(asked), "attention that keeps its score matrix")
}

fn unfused_deepspeed(asked: &Asked<'_>) -> Fate {
    told(is_unfused(asked), "The prediction has attention that keeps its score matrix: the model's code chooses it.")
}

fn is_unfused(asked: &Asked<'_>) -> bool {
    asked.problem.execution.attention == AttentionKernel::Unfused
}

fn megatron_core(asked: &Asked<'_>) -> Fate {
    of_framework(asked, "megatron-core", asked.problem.execution.framework == Framework::MegatronCore)
}

fn pytorch(asked: &Asked<'_>) -> Fate {
    of_framework(asked, "pytorch", matches!(asked.problem.execution.framework, Framework::Fsdp2(_)))
}

/// A script compiles, and no key of the configuration.
fn under_deepspeed(asked: &Asked<'_>) -> Fate {
    let words = "The prediction has compiled modules (`training.compile`): the script has to compile the model, as `engine.compile()` does.";
    if asked.problem.execution.framework.is_compiled() {
        return Fate::Told(words.to_owned());
    }
    of_framework(asked, "deepspeed", matches!(asked.problem.execution.framework, Framework::DeepSpeed(_)))
}

fn of_framework(asked: &Asked<'_>, usual: &str, is_usual: bool) -> Fate {
    let found = match asked.problem.execution.framework {
        Framework::Formulas => "published formulas",
        Framework::MegatronCore => "Megatron-Core's kernels",
        Framework::Fsdp2(_) => "PyTorch's modules",
        Framework::DeepSpeed(_) => "PyTorch's modules under DeepSpeed",
    };
    let words = format!("The prediction counts by {found}; `training.framework = \"{usual}\"` counts what runs here.");
    told(!is_usual, words)
}

fn narrow_products(asked: &Asked<'_>) -> Fate {
    let formats = asked.problem.execution.formats.map(|formats| formats.products());
    let narrow = formats.and_then(|formats| formats.into_iter().find(|format| !format.is_whole()));
    narrow.map_or(Said, |format| Fate::Unsaid(format!("products in {}", format.word())))
}

fn share_tensor(asked: &Asked<'_>) -> Fate {
    share("tp-comm-overlap", asked.problem.execution.overlap.tensor)
}

fn share_expert(asked: &Asked<'_>) -> Fate {
    share("overlap-moe-expert-parallel-comm", asked.problem.execution.overlap.hidden_experts())
}

/// Shares of exchanges that are hidden: Megatron-LM has a switch for each, and no number.
fn share(flag: &str, share: f64) -> Fate {
    told(share > 0.0, format!("--{flag} is a switch; the prediction takes {share} of that exchange as hidden."))
}

/// torchtitan 0.3 has a switch where the model is compiled.
fn pieces(asked: &Asked<'_>) -> Fate {
    let execution = &asked.problem.execution;
    let (share, is_compiled) = (execution.overlap.tensor, execution.framework.torch().is_some_and(|one| one.compiled));
    if share > 0.0 && !is_compiled {
        let words = "exchanges of the tensor group behind products, without `training.compile`";
        return Fate::Unsaid(words.to_owned());
    }
    let words = format!("Asynchronous tensor parallelism is a switch; the prediction takes {share} as hidden.");
    told(share > 0.0, words)
}

fn slowdown(asked: &Asked<'_>) -> Fate {
    let slowdown = asked.problem.execution.overlap.slowdown;
    told(slowdown > 1.0, format!("The prediction takes computation beside an exchange as {slowdown} times as long."))
}

/// Without virtual stages Megatron-LM waits for messages.
fn messages_megatron(asked: &Asked<'_>) -> Fate {
    let layout = &asked.problem.layout;
    let is_ahead = layout.pp > 1 && layout.chunks == 1 && asked.problem.execution.overlap.stage;
    told(is_ahead, "The prediction sends messages between stages behind computation; without virtual stages they wait.")
}

fn gathers_ahead(asked: &Asked<'_>) -> Fate {
    let is_ahead = asked.problem.execution.overlap.parameter_gather;
    let is_gathered = matches!(asked.problem.layout.zero, Zero::OptimizerStates | Zero::Gradients);
    unsaid(is_ahead && is_gathered, "parameters that are gathered behind the first forward")
}

fn imbalance(asked: &Asked<'_>) -> Fate {
    let imbalance = asked.problem.execution.experts.imbalance;
    told(imbalance > 0.0, format!("The prediction takes popularities of experts with a spread of {imbalance}."))
}

fn fragmentation(asked: &Asked<'_>) -> Fate {
    let fragmentation = asked.problem.execution.fragmentation;
    told(
        fragmentation > 1.0,
        format!("The prediction takes {fragmentation} times the memory that activations ask for."),
    )
}

fn host(asked: &Asked<'_>) -> Fate {
    let us = asked.problem.execution.host_overhead_per_layer.get() * 1e6;
    told(us > 0.0, format!("The prediction takes {us:.3} µs of the host for each layer and pass."))
}

#[cfg(test)]
mod tests;
