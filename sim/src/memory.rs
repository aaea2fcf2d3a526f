//! Bytes of a training job on one rank: model states by ZeRO stage, activations per token by recompute mode.
//!
//! Activation terms follow arXiv:2205.05198 section 4, rewritten for flash attention (no score matrix), grouped
//! key-value heads and gated feed-forwards. All are linear in tokens, which is Skrull's Memory(S) = α·S + β
//! (arXiv:2505.19609, section 4.1) with β in the static part.

use hw::Bytes;

use crate::layout::Zero;
use crate::problem::{Problem, Recompute};

/// Bytes of a parameter's 32-bit master copy and its two Adam moments.
const OPTIMIZER_BYTES_PER_PARAMETER: f64 = 12.0;
/// Bytes per token and vocabulary row: logits in the model's format (2) and their 32-bit copy for the loss (4).
const LOGIT_BYTES_PER_TOKEN_AND_ROW: u64 = 6;

/// Model states that stay on a rank for the whole step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// Parameters.
    pub parameters: Bytes,
    /// Gradients, kept in the model's number format as DeepSpeed does.
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

/// Model states of one rank.
#[must_use]
pub fn states(problem: &Problem) -> States {
    let n = Bytes(problem.model.n_parameters()).as_f64();
    let element = Bytes(problem.dtype.bytes()).as_f64();
    let shards = f64::from(problem.layout.dp * problem.layout.cp);
    let share = |stage: Zero| {
        if problem.layout.zero >= stage { 1.0 / shards } else { 1.0 }
    };
    States {
        parameters: Bytes::from_f64(n * element * share(Zero::Parameters)),
        gradients: Bytes::from_f64(n * element * share(Zero::Gradients)),
        optimizer: Bytes::from_f64(n * OPTIMIZER_BYTES_PER_PARAMETER * share(Zero::OptimizerStates)),
    }
}

/// Activations kept from forward to backward, bytes per token over all layers.
#[must_use]
pub fn activation_bytes_per_token(problem: &Problem) -> u64 {
    let model = &problem.model;
    let element = problem.dtype.bytes();
    let hidden = model.hidden;
    let heads = model.n_heads * model.head_dim;
    let keys_and_values = 2 * model.n_kv_heads * model.head_dim;
    // Width of the feed-forward as a token sees it: the experts that it visits, or the dense one.
    let wide =
        model.experts.map_or(model.intermediate, |experts| (experts.top_k + experts.n_shared) * experts.intermediate);
    let projections = if model.gated { 2 } else { 1 };
    // Layer input, attention residual, query, key, value, attention output, feed-forward projections.
    let kept = 2 * hidden + 2 * heads + keys_and_values + projections * wide;
    // Outputs of both norms and of the activation function: cheap to make again.
    let cheap = 2 * hidden + wide;
    let elements = match problem.recompute {
        Recompute::Off => kept + cheap,
        Recompute::Selective => kept,
        Recompute::Full => hidden,
    };
    let working_layer = if problem.recompute == Recompute::Full { kept + cheap } else { 0 };
    element * (elements * model.n_layers + working_layer)
}

/// Logits and their 32-bit copy, bytes per token.
#[must_use]
pub const fn logit_bytes_per_token(problem: &Problem) -> u64 {
    LOGIT_BYTES_PER_TOKEN_AND_ROW * problem.model.vocab
}

/// Device memory left for tokens after reserved memory and model states; `None` when the model does not fit.
#[must_use]
pub fn room_for_tokens(problem: &Problem) -> Option<u64> {
    let taken = problem.reserved_memory + states(problem).total();
    problem.cluster.gpu.memory.0.checked_sub(taken.0)
}

/// Tokens that a rank can hold in one micro-batch: Skrull's BucketSize C.
#[must_use]
pub fn token_capacity(problem: &Problem) -> u64 {
    let per_token = activation_bytes_per_token(problem) + logit_bytes_per_token(problem);
    room_for_tokens(problem).unwrap_or(0) / per_token
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
    let stages = [(Zero::OptimizerStates, 1), (Zero::Gradients, 2), (Zero::Parameters, 3)];
    let advice = stages
        .into_iter()
        .filter(|(stage, _)| *stage > problem.layout.zero)
        .find(|(stage, _)| {
            let mut easier = problem.clone();
            easier.layout.zero = *stage;
            token_capacity(&easier) > 0
        })
        .map_or_else(
            || "more GPUs or larger ones are needed".to_owned(),
            |(_, number)| format!("`zero = {number}` would fit"),
        );
    Err(format!(
        "`{}` needs {:.1} GiB of model states per GPU, and `{}` has {:.1} GiB of which {:.1} GiB are reserved; {advice}",
        problem.model.name,
        gib(states(problem).total()),
        problem.cluster.gpu.name,
        gib(problem.cluster.gpu.memory),
        gib(problem.reserved_memory),
    ))
}
