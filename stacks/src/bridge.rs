//! A plan as overrides of a recipe of Megatron Bridge: `section.key=value` words behind the recipe's name.

pub mod import;

use crate::export::{ExportError, File, Planned, Target, Words, comments, training};
use crate::megatron;

const NAME: &str = "bridge";
const VERSION: &str = "Megatron Bridge 0.6 (megatron/bridge/training/config.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "overrides of a recipe", VERSION, write);

/// Flags of Megatron-LM and the keys of Bridge that say the same; a value in the third place stands for a switch.
const KEYS: [(&str, &str, &str); 46] = [
    ("tensor-model-parallel-size", "model.tensor_model_parallel_size", ""),
    ("pipeline-model-parallel-size", "model.pipeline_model_parallel_size", ""),
    ("context-parallel-size", "model.context_parallel_size", ""),
    ("expert-model-parallel-size", "model.expert_model_parallel_size", ""),
    ("expert-tensor-parallel-size", "model.expert_tensor_parallel_size", ""),
    ("num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size", ""),
    ("pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", ""),
    ("cp-comm-type", "model.cp_comm_type", ""),
    ("sequence-parallel", "model.sequence_parallel", "true"),
    ("no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", "false"),
    ("use-distributed-optimizer", "ddp.use_distributed_optimizer", "true"),
    ("use-megatron-fsdp", "ddp.use_megatron_fsdp", "true"),
    ("data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", ""),
    ("use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", "true"),
    ("overlap-grad-reduce", "ddp.overlap_grad_reduce", "true"),
    ("overlap-param-gather", "ddp.overlap_param_gather", "true"),
    ("grad-reduce-in-bf16", "ddp.grad_reduce_in_fp32", "false"),
    ("micro-batch-size", "train.micro_batch_size", ""),
    ("global-batch-size", "train.global_batch_size", ""),
    ("seq-length", "dataset.sequence_length", ""),
    ("recompute-granularity", "model.recompute_granularity", ""),
    ("recompute-modules", "model.recompute_modules", "list"),
    ("recompute-method", "model.recompute_method", ""),
    ("recompute-num-layers", "model.recompute_num_layers", ""),
    ("optimizer", "optimizer.optimizer", ""),
    ("use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer", "true"),
    ("main-params-dtype", "optimizer.main_params_dtype", ""),
    ("exp-avg-dtype", "optimizer.exp_avg_dtype", ""),
    ("exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype", ""),
    ("optimizer-cpu-offload", "optimizer.optimizer_cpu_offload", "true"),
    ("optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", ""),
    ("attention-backend", "model.attention_backend", ""),
    ("moe-token-dispatcher-type", "model.moe_token_dispatcher_type", ""),
    ("cuda-graph-impl", "model.cuda_graph_impl", ""),
    ("cuda-graph-scope", "model.cuda_graph_scope", "list"),
    // Written for fp16 alone: elsewhere it is usual, and `grad-reduce-in-bf16` stands for its opposite.
    ("accumulate-allreduce-grads-in-fp32", "ddp.grad_reduce_in_fp32", "true"),
    ("tp-comm-overlap", "comm_overlap.tp_comm_overlap", "true"),
    ("overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm", "true"),
    ("delay-wgrad-compute", "comm_overlap.delay_wgrad_compute", "true"),
    ("microbatch-group-size-per-virtual-pipeline-stage", "model.microbatch_group_size_per_vp_stage", ""),
    ("cross-entropy-loss-fusion", "model.cross_entropy_loss_fusion", "true"),
    ("cross-entropy-fusion-impl", "model.cross_entropy_fusion_impl", ""),
    ("attention-dropout", "model.attention_dropout", ""),
    ("hidden-dropout", "model.hidden_dropout", ""),
    ("moe-expert-capacity-factor", "model.moe_expert_capacity_factor", ""),
    ("moe-pad-expert-input-to-capacity", "model.moe_pad_expert_input_to_capacity", "true"),
];
/// Number formats as mixed precision names them.
const PRECISIONS: [(&str, &str); 4] = [
    ("tensorwise", "bf16_with_fp8_current_scaling_mixed"),
    ("blockwise", "bf16_with_fp8_subchannel_scaling_mixed"),
    ("mxfp8", "bf16_with_mxfp8_mixed"),
    ("nvfp4", "bf16_with_nvfp4_mixed"),
];

/// Mixed precision of fp16 (`megatron/bridge/training/mixed_precision.py`).
const HALF: &str = "fp16_mixed";

/// A line with a word that a shell leaves as it is: layouts have `|` and `*`, lists brackets.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._=,-".contains(letter);
    if text.chars().all(is_plain) { format!("{text}\n") } else { format!("'{text}'\n") }
}

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let refused = |what| ExportError::NotExpressible { target: NAME, what };
    let [(_, model), (_, parallel), (_, training)] = megatron::export::flags(problem, plan).map_err(refused)?;
    let mut text = words.comments(VERSION);
    text += &format!("# Behind the name of a recipe of {}.\n", problem.model.name);
    text += &format!("# Planned for {} GPUs, {} of a node.\n", problem.layout.n_ranks(), problem.cluster.gpus_per_node);
    text += &comments(&megatron::export::rest(problem, plan).told);
    let mut unsaid = Vec::new();
    // The recipe has the model; how its tokens reach experts is a matter of the plan.
    let of_model = model.into_iter().filter(|(flag, _)| *flag == "moe-token-dispatcher-type");
    for (flag, value) in of_model.chain(parallel).chain(training) {
        let value = value.unwrap_or_default();
        if let Some((_, key, fixed)) = KEYS.iter().find(|(known, _, _)| *known == flag) {
            let value = match *fixed {
                "" => value,
                "list" => format!("[{}]", value.replace(' ', ",")),
                fixed => fixed.to_owned(),
            };
            text += &word(&format!("{key}={value}"));
        } else if flag == "fp8-recipe" || flag == "fp4-recipe" {
            let found = PRECISIONS.iter().find(|(recipe, _)| *recipe == value);
            text += &format!("mixed_precision={}\n", found.map_or(value.as_str(), |(_, name)| name));
        } else if flag == "fp16" {
            text += &format!("mixed_precision={HALF}\n");
        } else if !matches!(flag, "bf16" | "fp8-format" | "fp4-format") {
            unsaid.push(format!("`--{flag}`"));
        }
    }
    if problem.dtype == hw::Dtype::Fp16 && text.matches("mixed_precision=").count() > 1 {
        unsaid.push("narrow products beside fp16".to_owned());
    }
    if unsaid.is_empty() { Ok(vec![File::new("overrides.txt", text)]) } else { Err(refused(unsaid)) }
}
