//! Fields of a training plan: every one is written by a target, told in a remark, or refused. A table has a row for each, with a column for each target.
//!
//! What a file says is written where the file is made; here stands what becomes of the rest, so that no export loses it in silence. What the prediction
//! takes of the machine, and what code decides that no file configures, is a remark. What would make another plan is refused.

use train::Problem;
use train::layout::{Axis, ContextExchange, Layout, Zero};
use train::optimizer::Optimizer;
use train::problem::{AttentionKernel, Framework, GradientSync, Loss, Recompute};

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

type Judge = fn(&Asked<'_>) -> Fate;

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
        match columns[stack as usize](asked) {
            Fate::Said => {}
            Fate::Told(words) => rest.told.push(words),
            Fate::Unsaid(words) => rest.unsaid.push(words),
        }
    }
    rest
}

/// Every field, with its columns in the order of `Stack`.
const ROWS: [(&str, [Judge; 3]); 53] = [
    ("problem.dtype", [said, half, said]),
    ("problem.schedule", [said, v_shapes, said]),
    ("layout.dp", [said, said, said]),
    ("layout.cp", [said, said, said]),
    ("layout.tp", [said, said, said]),
    ("layout.pp", [said, said, pipeline]),
    ("layout.chunks", [said, said, said]),
    ("layout.ep", [said, said, expert_ranks]),
    ("layout.expert_tp", [said, cut_experts, said]),
    ("layout.sequence_parallel", [said, said, sequence_parallel]),
    ("layout.zero", [said, partly_sharded, said]),
    ("layout.replicate", [said, uneven_copies, copies]),
    ("layout.exchange", [said, ulysses, no_ulysses]),
    ("layout.order", [said, order, order]),
    ("execution.recompute", [recompute_megatron, recompute_torchtitan, recompute_deepspeed]),
    ("execution.recompute_layers", [said, some_layers, some_layers]),
    ("execution.gradient_sync", [said, sync_torchtitan, sync_deepspeed]),
    ("execution.gradient_dtype", [said, narrow_gradients, said]),
    ("execution.attention", [said, unfused, unfused_deepspeed]),
    ("execution.framework", [megatron_core, pytorch, pytorch]),
    ("execution.loss", [widened, other_loss, other_loss]),
    ("execution.dropout", [said, dropout, dropout]),
    ("execution.formats", [said, narrow_products, narrow_products]),
    ("execution.wide_layers", [wide_layers, wide_layers, wide_layers]),
    ("execution.gathers_narrow", [said, narrow_gathers, narrow_gathers]),
    ("overlap.tensor", [share_tensor, pieces, tensor]),
    ("overlap.expert", [share_expert, expert, expert]),
    ("overlap.delayed_weights", [not_behind, delayed, delayed]),
    ("overlap.slowdown", [slowdown, slowdown, slowdown]),
    ("overlap.stage", [messages_megatron, waits_for_messages, said]),
    ("overlap.parameter_gather", [said, said, gathers_ahead]),
    ("overlap.forward_prefetch", [no_prefetch_forward, no_prefetch_forward, prefetch_of_one]),
    ("overlap.backward_prefetch", [no_prefetch_backward, no_prefetch_backward, said]),
    ("experts.imbalance", [imbalance, imbalance, imbalance]),
    ("experts.capacity", [said, capacity, capacity]),
    ("experts.compression", [merged, merged, merged]),
    ("experts.once_per_node", [said, once_per_node, once_per_node]),
    ("execution.offload", [offload, offload, offload]),
    ("execution.fragmentation", [fragmentation, fragmentation, fragmentation]),
    ("execution.host_overhead_per_layer", [host, host, host]),
    ("launches.each", [said, said, said]),
    ("launches.captured", [said, captured, captured]),
    ("execution.context_in_blocks", [blocks, blocks, blocks]),
    ("execution.optimizer", [said, optimizer, optimizer]),
    ("execution.adapters", [adapters, adapters, adapters]),
    ("execution.unit_times", [unit_times, unit_times, unit_times]),
    ("execution.layers", [said, said, said]),
    ("execution.micro_batch_group", [said, groups, groups]),
    ("execution.places", [places, places, places]),
    ("execution.stragglers", [stragglers, stragglers, stragglers]),
    ("execution.overlap", [said, said, said]),
    ("execution.experts", [said, said, said]),
    ("execution.launches", [said, said, said]),
];

fn told(is_so: bool, words: impl Into<String>) -> Fate {
    if is_so { Fate::Told(words.into()) } else { Said }
}

fn unsaid(is_so: bool, words: impl Into<String>) -> Fate {
    if is_so { Fate::Unsaid(words.into()) } else { Said }
}

const fn said(_: &Asked<'_>) -> Fate {
    Said
}

fn half(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.dtype == hw::Dtype::Fp16, "activations in fp16")
}

/// torchtitan places stages as a V for `zb-v` alone, whose class says so; its placement of the others is the same.
fn v_shapes(asked: &Asked<'_>) -> Fate {
    let is_pipeline = asked.problem.layout.pp > 1;
    let is_twice = asked.problem.schedule.placement == train::schedule::Placement::Bidirectional;
    unsaid(is_pipeline && is_twice, "two copies of the model on every rank, as DualPipe has them")
}

fn pipeline(asked: &Asked<'_>) -> Fate {
    let words = "a pipeline: DeepSpeed takes it from the module, not from the configuration";
    unsaid(asked.problem.layout.pp > 1, words)
}

fn expert_ranks(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.layout.ep > 1, "experts over ranks: DeepSpeed takes them from the module")
}

fn cut_experts(asked: &Asked<'_>) -> Fate {
    let Layout { expert_tp, ep, .. } = asked.problem.layout;
    unsaid(expert_tp != 1 && ep > 1, "experts that are cut over tensor ranks")
}

fn sequence_parallel(asked: &Asked<'_>) -> Fate {
    let Layout { tp, sequence_parallel, .. } = asked.problem.layout;
    unsaid(tp > 1 && sequence_parallel, "activations that are cut over the tensor group between products")
}

fn partly_sharded(asked: &Asked<'_>) -> Fate {
    match asked.problem.layout.zero {
        Zero::Off | Zero::Parameters => Said,
        Zero::OptimizerStates => Fate::Unsaid("optimizer states that are sharded alone (ZeRO 1)".to_owned()),
        Zero::Gradients => Fate::Unsaid("gradients that are sharded without parameters (ZeRO 2)".to_owned()),
    }
}

fn copies(asked: &Asked<'_>) -> Fate {
    let Layout { zero, replicate, .. } = asked.problem.layout;
    unsaid(zero > Zero::Off && replicate > 1, "several groups of ranks that hold all sharded states each")
}

/// torchtitan's groups shard over whole data-parallel groups.
fn uneven_copies(asked: &Asked<'_>) -> Fate {
    let Layout { zero, replicate, dp, .. } = asked.problem.layout;
    let is_uneven = zero > Zero::Off && !dp.is_multiple_of(replicate);
    unsaid(is_uneven, format!("{replicate} copies of sharded states over {dp} data-parallel groups"))
}

fn ulysses(asked: &Asked<'_>) -> Fate {
    let Layout { cp, exchange, .. } = asked.problem.layout;
    unsaid(cp > 1 && exchange == ContextExchange::Ulysses, "a context exchange by all-to-all")
}

fn no_ulysses(asked: &Asked<'_>) -> Fate {
    let Layout { cp, exchange, .. } = asked.problem.layout;
    unsaid(cp > 1 && exchange != ContextExchange::Ulysses, "a context exchange other than Ulysses")
}

fn order(asked: &Asked<'_>) -> Fate {
    let layout = &asked.problem.layout;
    unsaid(!is_usual_order(layout), "ranks in another order than tensor, context, data, pipeline")
}

/// Whether ranks count along tensor, context, data and pipeline; where an axis stands that has one rank makes no difference.
pub(crate) fn is_usual_order(layout: &Layout) -> bool {
    let degrees =
        [(Axis::Tensor, layout.tp), (Axis::Context, layout.cp), (Axis::Data, layout.dp), (Axis::Pipeline, layout.pp)];
    let usual = degrees.iter().filter(|(_, degree)| *degree > 1).map(|(axis, _)| *axis);
    let is_cut = |axis: &Axis| degrees.iter().any(|(known, degree)| known == axis && *degree > 1);
    layout.order.into_iter().filter(is_cut).eq(usual)
}

/// Megatron-LM's plain selective recompute is that of attention, fused or not.
fn recompute_megatron(asked: &Asked<'_>) -> Fate {
    let execution = &asked.problem.execution;
    let is_other = execution.recompute == Recompute::Selective && execution.attention == AttentionKernel::Flash;
    let words = "The prediction computes norms and activation functions again; Megatron-LM computes attention again.";
    told(is_other, words)
}

fn optimizer(asked: &Asked<'_>) -> Fate {
    let is_other = asked.problem.execution.optimizer != Optimizer::ADAM;
    unsaid(is_other, "an optimizer other than Adam with states in 32 bits on the device")
}

fn recompute_torchtitan(asked: &Asked<'_>) -> Fate {
    let recompute = asked.problem.execution.recompute;
    let is_known = matches!(recompute, Recompute::Off | Recompute::Selective | Recompute::Full);
    unsaid(!is_known, "recompute of single modules of a layer")
}

/// Which layers are checkpointed is a matter of the model's code; that all are, the configuration counts.
fn recompute_deepspeed(asked: &Asked<'_>) -> Fate {
    let recompute = asked.problem.execution.recompute;
    let is_code = !matches!(recompute, Recompute::Off | Recompute::Full);
    told(is_code, "The prediction computes a part of each layer again: the model's code has to ask for that.")
}

fn some_layers(asked: &Asked<'_>) -> Fate {
    let execution = &asked.problem.execution;
    let is_some = execution.recompute == Recompute::Full && execution.recompute_layers != u32::MAX;
    unsaid(is_some, format!("recompute of {} layers of a stage alone", execution.recompute_layers))
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

fn narrow_gradients(asked: &Asked<'_>) -> Fate {
    let is_narrow = asked.problem.execution.gradient_dtype != hw::Dtype::Fp32;
    let words = "gradients in 16 bits: torchtitan reduces them in 32 (`training.gradient_dtype = \"fp32\"`)";
    unsaid(is_narrow, words)
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
    of_framework(asked, "pytorch", asked.problem.execution.framework.torch().is_some())
}

fn of_framework(asked: &Asked<'_>, usual: &str, is_usual: bool) -> Fate {
    let found = match asked.problem.execution.framework {
        Framework::Formulas => "published formulas",
        Framework::MegatronCore => "Megatron-Core's kernels",
        Framework::Fsdp2(_) => "PyTorch's modules",
    };
    let words = format!("The prediction counts by {found}; `training.framework = \"{usual}\"` counts what runs here.");
    told(!is_usual, words)
}

fn narrow_products(asked: &Asked<'_>) -> Fate {
    let formats = asked.problem.execution.formats.map(|formats| formats.products());
    let narrow = formats.and_then(|formats| formats.into_iter().find(|format| !format.is_whole()));
    narrow.map_or(Said, |format| Fate::Unsaid(format!("products in {}", format.word())))
}

fn wide_layers(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.wide_layers > 0, "layers whose products stay in 16 bits")
}

/// The flag is that of all releases of Transformer Engine and of PyTorch.
fn widened(asked: &Asked<'_>) -> Fate {
    match asked.problem.execution.loss {
        Loss::Widened => Fate::Told("The prediction takes the loss of Transformer Engine 2.18.".to_owned()),
        Loss::CompiledReused => Fate::Told("The prediction takes the loss of an older PyTorch.".to_owned()),
        Loss::Unfused | Loss::Compiled | Loss::InPlace | Loss::WithHead => Said,
    }
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

/// Megatron-LM delays gradients of weights beside an all-to-all that runs behind computation.
fn not_behind(asked: &Asked<'_>) -> Fate {
    let overlap = asked.problem.execution.overlap;
    let is_alone = overlap.delayed_weights && overlap.expert == 0.0;
    unsaid(is_alone, "gradients of weights that are delayed while no all-to-all runs behind computation")
}

fn delayed(asked: &Asked<'_>) -> Fate {
    let is_delayed = asked.problem.execution.overlap.delayed_weights;
    unsaid(is_delayed, "gradients of weights beside the all-to-all of experts")
}

fn groups(asked: &Asked<'_>) -> Fate {
    let n = asked.problem.execution.micro_batch_group.filter(|_| asked.problem.layout.chunks > 1);
    n.map_or(Said, |n| Fate::Unsaid(format!("groups of {n} micro-batches of interleaved stages")))
}

fn narrow_gathers(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.gathers_narrow, "parameters that are gathered in the format of the products")
}

fn share_tensor(asked: &Asked<'_>) -> Fate {
    share("tp-comm-overlap", asked.problem.execution.overlap.tensor)
}

fn share_expert(asked: &Asked<'_>) -> Fate {
    share("overlap-moe-expert-parallel-comm", asked.problem.execution.overlap.expert)
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

fn tensor(asked: &Asked<'_>) -> Fate {
    let is_behind = asked.problem.execution.overlap.tensor > 0.0;
    unsaid(is_behind && asked.problem.layout.tp > 1, "exchanges of the tensor group behind products")
}

fn expert(asked: &Asked<'_>) -> Fate {
    let is_behind = asked.problem.execution.overlap.expert > 0.0;
    unsaid(is_behind && asked.problem.layout.ep > 1, "all-to-alls of experts behind computation")
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

fn waits_for_messages(asked: &Asked<'_>) -> Fate {
    let waits = asked.problem.layout.pp > 1 && !asked.problem.execution.overlap.stage;
    unsaid(waits, "stages that wait until their message is sent")
}

fn gathers_ahead(asked: &Asked<'_>) -> Fate {
    let is_ahead = asked.problem.execution.overlap.parameter_gather;
    let is_gathered = matches!(asked.problem.layout.zero, Zero::OptimizerStates | Zero::Gradients);
    unsaid(is_ahead && is_gathered, "parameters that are gathered behind the first forward")
}

fn no_prefetch_forward(asked: &Asked<'_>) -> Fate {
    let is_late = !asked.problem.execution.overlap.forward_prefetch;
    unsaid(is_late && asked.problem.layout.zero == Zero::Parameters, "a forward that waits for its parameters")
}

fn no_prefetch_backward(asked: &Asked<'_>) -> Fate {
    let is_late = !asked.problem.execution.overlap.backward_prefetch;
    unsaid(is_late && asked.problem.layout.zero == Zero::Parameters, "a backward that waits for its parameters")
}

/// DeepSpeed has one number for both directions.
fn prefetch_of_one(asked: &Asked<'_>) -> Fate {
    let overlap = asked.problem.execution.overlap;
    let differs = overlap.forward_prefetch != overlap.backward_prefetch;
    let words = "parameters that are gathered ahead in one direction alone";
    unsaid(differs && asked.problem.layout.zero == Zero::Parameters, words)
}

fn imbalance(asked: &Asked<'_>) -> Fate {
    let imbalance = asked.problem.execution.experts.imbalance;
    told(imbalance > 0.0, format!("The prediction takes popularities of experts with a spread of {imbalance}."))
}

fn capacity(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.experts.capacity.is_some(), "experts that drop tokens beyond their capacity")
}

fn merged(asked: &Asked<'_>) -> Fate {
    let is_merged = asked.problem.execution.experts.compression.is_some();
    unsaid(is_merged, "similar tokens that are merged before the all-to-all")
}

fn once_per_node(asked: &Asked<'_>) -> Fate {
    let is_once = asked.problem.execution.experts.once_per_node;
    unsaid(is_once && asked.problem.layout.ep > 1, "a dispatcher that sends a token to a node once")
}

fn offload(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.offload > 0.0, "a share of all activations in host memory")
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

fn captured(asked: &Asked<'_>) -> Fate {
    let captured = asked.problem.execution.launches.captured;
    unsaid(captured.attention || captured.router, "modules that CUDA graphs replay")
}

fn blocks(asked: &Asked<'_>) -> Fate {
    let is_so = asked.problem.execution.context_in_blocks && asked.problem.layout.cp > 1;
    unsaid(is_so, "context ranks that hold blocks of a sequence in order")
}

fn adapters(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.adapters.is_some(), "training of adapters alone")
}

fn unit_times(asked: &Asked<'_>) -> Fate {
    unsaid(asked.problem.execution.unit_times.is_some(), "passes with times of their own")
}

fn places(asked: &Asked<'_>) -> Fate {
    unsaid(!asked.problem.execution.places.is_empty(), "stages with ranks of their own")
}

fn stragglers(asked: &Asked<'_>) -> Fate {
    unsaid(!asked.problem.execution.stragglers.is_empty(), "stages around devices that are slower")
}

#[cfg(test)]
mod tests {
    use train::problem::{Execution, ExpertTraffic, Launches, Overlap};

    use super::*;

    /// Names of all fields of a type; one that is left out does not compile.
    macro_rules! fields {
        ($before:literal, $type:ident { $($field:ident),* $(,)? }) => {{
            const _: fn($type) = |$type { $($field: _),* }| {};
            [$(concat!($before, ".", stringify!($field))),*]
        }};
    }

    #[test]
    fn every_field_of_a_plan_has_a_row_and_every_row_a_field() {
        let execution = fields!(
            "execution",
            Execution {
                recompute,
                recompute_layers,
                gradient_sync,
                gradient_dtype,
                attention,
                framework,
                loss,
                dropout,
                formats,
                wide_layers,
                gathers_narrow,
                overlap,
                experts,
                offload,
                fragmentation,
                host_overhead_per_layer,
                launches,
                context_in_blocks,
                optimizer,
                adapters,
                unit_times,
                layers,
                micro_batch_group,
                places,
                stragglers,
            }
        );
        let layout = fields!(
            "layout",
            Layout { dp, cp, tp, pp, chunks, ep, expert_tp, sequence_parallel, zero, replicate, exchange, order }
        );
        let overlap = fields!(
            "overlap",
            Overlap {
                tensor,
                expert,
                delayed_weights,
                slowdown,
                stage,
                parameter_gather,
                forward_prefetch,
                backward_prefetch,
            }
        );
        let experts = fields!("experts", ExpertTraffic { imbalance, capacity, compression, once_per_node });
        let launches = fields!("launches", Launches { each, captured });
        let mut known: Vec<&str> = ["problem.dtype", "problem.schedule"].to_vec();
        for fields in [&execution[..], &layout, &overlap, &experts, &launches] {
            known.extend(fields);
        }
        let mut rows = ROWS.map(|(name, _)| name).to_vec();
        known.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, known);
    }

    #[test]
    fn an_axis_of_one_rank_may_stand_anywhere() {
        let base = Layout::data_and_context(4, 1, Zero::Off, ContextExchange::Ring);
        let other = Layout { order: [Axis::Pipeline, Axis::Data, Axis::Context, Axis::Tensor], ..base };
        assert!(is_usual_order(&base) && is_usual_order(&other));
        assert!(!is_usual_order(&Layout { tp: 2, ..other }));
    }
}
