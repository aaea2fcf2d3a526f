//! Bytes of a training job on one rank: model states by ZeRO stage, activations by recompute mode, of a pipeline stage.
//!
//! Activation terms follow arXiv:2205.05198 section 4 (per token and layer 10 + 24/t bytes times the hidden size, all of it
//! over t with sequence parallelism, plus 5·a·s/t for an unfused score matrix), rewritten for grouped key-value heads, gated
//! feed-forwards and experts. With flash attention all terms are linear in tokens, which is Skrull's Memory(S) = α·S + β
//! (arXiv:2505.19609, section 4.1) with β in the static part.

use hw::Bytes;

use crate::layout::Zero;
use crate::problem::{AttentionKernel, Problem, Recompute};
use crate::schedule::{Pipeline, play};
use crate::stage::{Stage, stages};

/// Bytes of a parameter's 32-bit master copy and its two Adam moments.
const OPTIMIZER_BYTES_PER_PARAMETER: f64 = 12.0;
/// Bytes per token and vocabulary row: logits in the model's format (2) and their 32-bit copy for the loss (4).
const LOGIT_BYTES_PER_TOKEN_AND_ROW: u64 = 6;
/// Bytes per score of an unfused attention: softmax output, dropout mask, dropout output.
const SCORE_BYTES: u64 = 5;

/// Layers whose offloaded activations a device holds while a pass makes or takes them: one is computed, one is copied.
pub const LAYERS_IN_PASSING: u32 = 2;

/// Model states that stay on a rank for the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Parameters.
    pub parameters: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Optimizer states.
    pub optimizer: Bytes,
}

impl States {
    /// All of them.
    #[must_use]
    pub fn total(self) -> Bytes {
        self.parameters + self.gradients + self.optimizer
    }
}

/// Parameters of a stage on one rank: (shared by the tensor group's cut, experts).
#[must_use]
pub fn stage_parameters(problem: &Problem, stage: &Stage) -> (f64, f64) {
    let (model, layout) = (&problem.model, &problem.layout);
    let number = |n: u64| hw::Tokens(n).as_f64();
    let mut shared = f64::from(stage.n_dense) * number(model.shared_layer_parameters(false))
        + f64::from(stage.n_expert) * number(model.shared_layer_parameters(true));
    if stage.first {
        shared += number(model.first_stage_parameters());
    }
    if stage.last {
        shared += number(model.last_stage_parameters(stage.first));
    }
    let routed = model.experts.map_or(0.0, |experts| number(experts.n_routed * model.expert_parameters()));
    let experts = f64::from(stage.n_expert) * routed / f64::from(layout.ep * layout.expert_tp);
    (shared / f64::from(layout.tp), experts)
}

/// Model states of a rank that holds `stages`.
#[must_use]
pub fn states(problem: &Problem, stages: &[Stage]) -> States {
    if problem.execution.unit_times.is_some() {
        return States::default();
    }
    let element = Bytes(problem.dtype.bytes()).as_f64();
    let gradient = Bytes(problem.execution.gradient_dtype.bytes()).as_f64();
    let share = |at: Zero, n: u32| if problem.layout.zero >= at { 1.0 / f64::from(n) } else { 1.0 };
    let (shared, experts) = stages
        .iter()
        .map(|stage| stage_parameters(problem, stage))
        .fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let sharded = |at: Zero| {
        shared * share(at, problem.layout.n_shards()) + experts * share(at, problem.layout.n_expert_shards())
    };
    States {
        parameters: Bytes::from_f64(sharded(Zero::Parameters) * element),
        gradients: Bytes::from_f64(sharded(Zero::Gradients) * gradient),
        optimizer: Bytes::from_f64(sharded(Zero::OptimizerStates) * OPTIMIZER_BYTES_PER_PARAMETER),
    }
}

/// Bytes per token of one layer: kept from forward to backward, and what backward makes again and holds for one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerActivation {
    kept: u64,
    working: u64,
}

fn layer_activation(problem: &Problem, recompute: Recompute, with_experts: bool) -> LayerActivation {
    let (model, element) = (&problem.model, problem.dtype.bytes());
    let hidden = model.hidden;
    let heads = model.n_heads * model.head_dim;
    let keys_and_values = 2 * model.n_kv_heads * model.head_dim;
    let wide = feed_forward_width(problem, with_experts);
    let projections = if model.gated { 2 } else { 1 };
    let cut = |bytes: u64| bytes.div_ceil(u64::from(problem.layout.tp));
    let serial = |bytes: u64| if problem.layout.sequence_parallel { cut(bytes) } else { bytes };
    let masks = if problem.execution.attention == AttentionKernel::Unfused { 2 * hidden } else { 0 };
    // Layer input, attention residual; outputs of both norms; query, key, value, attention output, feed-forward.
    let (residuals, norms) = (serial(element * 2 * hidden + masks), serial(element * 2 * hidden));
    let attended = cut(element * (2 * heads + keys_and_values));
    let inside = cut(element * (2 * heads + keys_and_values + projections * wide));
    let activated = cut(element * wide);
    let all = residuals + norms + inside + activated;
    match (recompute, problem.execution.attention) {
        (Recompute::Off, _) | (Recompute::Selective, AttentionKernel::Unfused) => {
            LayerActivation { kept: all, working: 0 }
        }
        (Recompute::Selective, AttentionKernel::Flash) => {
            LayerActivation { kept: residuals + inside, working: norms + activated }
        }
        (Recompute::FeedForward, _) => {
            LayerActivation { kept: residuals + norms + attended, working: all - residuals - norms - attended }
        }
        (Recompute::Full, _) => LayerActivation { kept: serial(element * hidden), working: all },
    }
}

/// Width of the feed-forward as a token sees it: the experts that it visits, or the dense one.
#[must_use]
pub fn feed_forward_width(problem: &Problem, with_experts: bool) -> u64 {
    match problem.model.experts {
        Some(experts) if with_experts => (experts.top_k + experts.n_shared) * experts.intermediate,
        _ => problem.model.intermediate,
    }
}

/// Activations that a stage keeps from forward to backward, bytes per token.
#[must_use]
pub fn activation_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    let of = |n: u32, again: u32, with_experts: bool| {
        let kept = |recompute| layer_activation(problem, recompute, with_experts).kept;
        u64::from(again) * kept(problem.execution.recompute) + u64::from(n - again) * kept(Recompute::Off)
    };
    of(stage.n_dense, stage.again_dense, false) + of(stage.n_expert, stage.again_expert, true)
}

/// What backward of one layer makes again and holds while it runs, bytes per token.
#[must_use]
pub fn working_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    let of = |again: u32, with_experts: bool| {
        let activation = layer_activation(problem, problem.execution.recompute, with_experts);
        if again > 0 { activation.working } else { 0 }
    };
    of(stage.again_dense, false).max(of(stage.again_expert, true))
}

/// Of so many bytes of a stage's activations, those on their way to or from the host that the device holds while a pass runs.
#[must_use]
pub fn in_passing(problem: &Problem, stage: &Stage, bytes: u64) -> u64 {
    let factor = problem.execution.fragmentation * problem.execution.offload;
    if factor == 0.0 {
        return 0;
    }
    let n_layers = stage.n_layers().max(1);
    let window = f64::from(n_layers.min(LAYERS_IN_PASSING)) / f64::from(n_layers);
    // Upwards, so that what is planned for is never less than what is held.
    Bytes::from_f64((Bytes(bytes).as_f64() * factor * window).ceil()).0
}

/// Buffers of the exchanges around one layer, bytes per token: the gathered sequence of a tensor group, and tokens on their way
/// to experts and back.
#[must_use]
pub fn buffer_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    let (layout, row) = (&problem.layout, problem.model.hidden * problem.dtype.bytes());
    let gathered = if layout.tp > 1 && layout.sequence_parallel { row } else { 0 };
    let routed = match problem.model.experts {
        Some(experts) if layout.ep > 1 && stage.n_expert > 0 => {
            let senders = if layout.expert_tp == 1 { u64::from(layout.tp) } else { 1 };
            (2 * experts.top_k * row).div_ceil(senders)
        }
        _ => 0,
    };
    gathered + routed
}

/// Keys and values of a part of a long sequence, or their gradients, bytes per token of a stage.
#[must_use]
pub fn state_bytes_per_token(problem: &Problem, stage: &Stage) -> u64 {
    let model = &problem.model;
    let width = model.latent.map_or(2 * model.kv_width(), |latent| latent.kv_rank + latent.rope_dim);
    let cut = if model.latent.is_some() { 1 } else { u64::from(problem.layout.tp).min(model.n_kv_heads) };
    u64::from(stage.n_layers()) * (width * problem.dtype.bytes()).div_ceil(cut)
}

/// Score matrices of an unfused attention that a stage keeps, bytes per query-key pair over all layers.
#[must_use]
pub fn score_bytes_per_pair(problem: &Problem, stage: &Stage) -> u64 {
    if problem.execution.attention != AttentionKernel::Unfused {
        return 0;
    }
    let drops = matches!(problem.execution.recompute, Recompute::Selective | Recompute::Full);
    let n_kept = stage.n_layers() - if drops { stage.again().n_layers() } else { 0 };
    let heads = problem.model.n_heads.div_ceil(u64::from(problem.layout.tp));
    SCORE_BYTES * heads * u64::from(n_kept)
}

/// Logits and their 32-bit copy, bytes per token, on a rank with the head.
#[must_use]
pub const fn logit_bytes_per_token(problem: &Problem) -> u64 {
    LOGIT_BYTES_PER_TOKEN_AND_ROW * problem.model.vocab.div_ceil(problem.layout.tp as u64)
}

/// Memory that a pipeline rank needs: model states, and bytes per token of a micro-batch that it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Model states.
    pub states: States,
    /// Bytes per token of `bucket_tokens`, over all micro-batches in flight.
    pub bytes_per_token: u64,
}

/// Needs of every pipeline rank, from the activations that the schedule holds at most when micro-batches are equal.
#[must_use]
pub fn needs(problem: &Problem) -> Vec<Need> {
    let (layout, stages) = (&problem.layout, stages(problem));
    // Enough micro-batches for any schedule to reach its peak.
    let n_micro_batches = 3 * layout.pp as usize * layout.chunks as usize;
    let mut pipeline =
        Pipeline::of_schedule(problem.schedule, layout.pp as usize, layout.chunks as usize, n_micro_batches);
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
    let made =
        |stage: &Stage| activation_bytes_per_token(problem, stage) + score_bytes_per_pair(problem, stage) * longest;
    for (row, stage) in pipeline.activation.iter_mut().zip(&stages) {
        row.fill(on_device(problem, made(stage)));
    }
    let order = (problem.schedule.order)(&pipeline);
    let played = play(&pipeline, &order).expect("every schedule of the table can be played");
    (0..layout.pp as usize)
        .map(|rank| {
            let held: Vec<Stage> =
                (0..layout.chunks as usize).map(|chunk| stages[pipeline.stage(rank, chunk)]).collect();
            let passing = |stage: &Stage| {
                working_bytes_per_token(problem, stage)
                    + buffer_bytes_per_token(problem, stage)
                    + in_passing(problem, stage, made(stage))
            };
            let working = held.iter().map(passing).max().unwrap_or(0);
            let logits = if held.iter().any(|stage| stage.last) { logit_bytes_per_token(problem) } else { 0 };
            Need { states: states(problem, &held), bytes_per_token: played.peak_activation[rank] + working + logits }
        })
        .collect()
}

/// Activation bytes as the device sees them: fragmented, and without the share that is offloaded.
#[must_use]
pub fn on_device(problem: &Problem, bytes: u64) -> u64 {
    let factor = problem.execution.fragmentation * (1.0 - problem.execution.offload);
    if factor == 1.0 { bytes } else { Bytes::from_f64(Bytes(bytes).as_f64() * factor).0 }
}

/// Tokens that a rank can hold in one micro-batch, over all pipeline ranks: Skrull's BucketSize C.
#[must_use]
pub fn token_capacity(problem: &Problem) -> u64 {
    let room = |need: &Need| {
        let taken = problem.reserved_memory + need.states.total();
        problem.cluster.gpu.memory.0.saturating_sub(taken.0) / need.bytes_per_token.max(1)
    };
    needs(problem).iter().map(room).min().unwrap_or(0)
}

/// Whether the model states leave room for at least one token.
///
/// # Errors
/// A sentence with the figures, and the smallest ZeRO stage that would fit, if any.
pub fn fits(problem: &Problem) -> Result<(), String> {
    if token_capacity(problem) > 0 {
        return Ok(());
    }
    let gib = |bytes: Bytes| bytes.as_f64() / 1_073_741_824.0;
    let zero_stages = [(Zero::OptimizerStates, 1), (Zero::Gradients, 2), (Zero::Parameters, 3)];
    let advice = zero_stages
        .into_iter()
        .filter(|(stage, _)| *stage > problem.layout.zero)
        .find(|(stage, _)| {
            let mut easier = problem.clone();
            easier.layout.zero = *stage;
            token_capacity(&easier) > 0
        })
        .map_or_else(
            || "more GPUs, larger ones, or a larger `tp` or `pp` are needed".to_owned(),
            |(_, number)| format!("`zero = {number}` would fit"),
        );
    let largest = needs(problem).iter().map(|need| need.states.total()).max().unwrap_or_default();
    Err(format!(
        "`{}` needs {:.1} GiB of model states per GPU, and `{}` has {:.1} GiB of which {:.1} GiB are reserved; {advice}",
        problem.model.name,
        gib(largest),
        problem.cluster.gpu.name,
        gib(problem.cluster.gpu.memory),
        gib(problem.reserved_memory),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ContextExchange, Layout};
    use crate::problem::Execution;
    use crate::workload::Workload;

    /// Bytes that one layer keeps of one sequence, by our terms.
    fn layer(tp: u32, sequence_parallel: bool, recompute: Recompute) -> f64 {
        let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
        let base = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather);
        let problem = Problem {
            model: engine::model::embedded("gpt-3-175b").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: Layout { tp, sequence_parallel, ..base },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            workload: Workload { lengths: vec![2048], batch_size: 1, source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            execution: Execution { recompute, attention: AttentionKernel::Unfused, ..Execution::default() },
            bucket_tokens: 2048,
            reserved_memory: Bytes(0),
            seed: 0,
        };
        let stage = Stage { n_dense: 1, ..Stage::default() }.recomputing(&problem);
        let per_token = activation_bytes_per_token(&problem, &stage) * 2048;
        Bytes(per_token + score_bytes_per_pair(&problem, &stage) * 2048 * 2048).as_f64()
    }

    #[test]
    fn a_layer_keeps_what_the_published_formulas_say() {
        // arXiv:2205.05198, table 2, for s = 2048, b = 1, h = 12288, a = 96, t = 8.
        let (s, h, a, t) = (2048.0, 12_288.0, 96.0, 8.0);
        let sbh = s * h;
        let close = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} against {expected}");
        };
        close(layer(1, false, Recompute::Off), sbh * (34.0 + 5.0 * a * s / h));
        close(layer(8, false, Recompute::Off), sbh * (10.0 + 24.0 / t + 5.0 * a * s / (h * t)));
        close(layer(8, true, Recompute::Off), sbh / t * (34.0 + 5.0 * a * s / h));
        close(layer(8, false, Recompute::Selective), sbh * (10.0 + 24.0 / t));
        close(layer(8, true, Recompute::Selective), sbh * 34.0 / t);
        close(layer(8, false, Recompute::Full), 2.0 * sbh);
        // Without what the activation function of the feed-forward reads and writes, 8 sbh each, cut over t.
        let inside = layer(8, false, Recompute::Off) - layer(8, false, Recompute::FeedForward);
        close(inside, sbh * 16.0 / t);
    }
}
