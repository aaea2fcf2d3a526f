//! How long a layer of a call takes on so many devices, and what it leaves in their memory.
//!
//! The batch is cut over data-parallel ranks, each layer over a tensor group of every rank. A number of devices can be had when the rest
//! after the tensor group divides the batch; of the ways to have it the fastest is taken. Operations and memory are those of a
//! layer in a training step (`lower/training`); calls with measured times are interpolated between their points and not extended beyond.

use hw::GroupShape;

use super::curve::Curve;
use super::{Body, Call, ELEMENT, MultiTask};
use crate::layout::{ContextExchange, Layout, Zero};
use crate::lower::training::layer_passes;
use crate::memory;
use crate::problem::{self, Problem};
use crate::schedule::SCHEDULES;
use crate::stage::Stage;
use crate::workload::Workload;
use engine::CostModel;
use engine::layer;
use engine::model::{Experts, Layer, Model, Pattern};
use engine::play::Case;
use engine::task::Ops;
use engine::task::{Document, Op};

/// Kernels of a feed-forward alone: two products and what lies between them; backward has two products for each.
const FEED_FORWARD_LAUNCHES: [u64; 2] = [3, 5];

/// Devices of a call, and how long one layer takes on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Devices.
    pub n_devices: u32,
    /// Devices of a tensor group.
    pub tensor: u32,
    /// Forward of a layer, seconds.
    pub forward_s: f64,
    /// Backward of a layer, seconds.
    pub backward_s: f64,
}

impl Size {
    /// Forward and backward of a layer.
    pub fn seconds(&self) -> f64 {
        self.forward_s + self.backward_s
    }
}

/// Whether two calls have one operator, one input size and the same times, and so the same sizes.
pub fn is_alike(training: &MultiTask, a: usize, b: usize) -> bool {
    let key = |call: usize| {
        let Call { operator, tokens, times, .. } = &training.calls[call];
        (operator, tokens, times, training.batch(call))
    };
    key(a) == key(b)
}

/// Sizes of a call, each faster than all smaller ones.
pub fn sizes(training: &MultiTask, call: usize, cost: &dyn CostModel, case: Case) -> Vec<Size> {
    let mut found: Vec<Size> = Vec::new();
    for n_devices in 1..=training.cluster.n_gpus() {
        let degrees = training.operator(call).tensor_degrees.iter();
        let ways = degrees.filter_map(|&tensor| size(training, call, (n_devices, tensor), cost, case));
        let Some(best) = ways.min_by(|a, b| a.seconds().total_cmp(&b.seconds())) else { continue };
        if found.last().is_none_or(|smaller| best.seconds() < smaller.seconds()) {
            found.push(best);
        }
    }
    found
}

/// Whether a call can run on so many devices with some tensor degree.
pub fn can_be_had(training: &MultiTask, call: usize, n_devices: u32) -> bool {
    training.operator(call).tensor_degrees.iter().any(|&tensor| divides(training, call, (n_devices, tensor)))
}

/// Whether the tensor group fits a node, the rest divides the batch, and measured times reach so far.
fn divides(training: &MultiTask, call: usize, (n_devices, tensor): (u32, u32)) -> bool {
    tensor <= training.cluster.nvlink_island
        && n_devices.is_multiple_of(tensor)
        && training.batch(call).is_multiple_of(u64::from(n_devices / tensor))
        && given(training, call, n_devices).is_none_or(|time| time.is_some())
}

/// A size, where it can be had.
fn size(
    training: &MultiTask,
    call: usize,
    (n_devices, tensor): (u32, u32),
    cost: &dyn CostModel,
    case: Case,
) -> Option<Size> {
    if !divides(training, call, (n_devices, tensor)) {
        return None;
    }
    let shape = GroupShape::inside(tensor);
    let [forward_s, backward_s] =
        passes(training, call, (n_devices, shape)).map(|ops| case.of(&cost.estimate(&Op::Sequence(ops))).get());
    Some(Size { n_devices, tensor, forward_s, backward_s })
}

/// Measured seconds of a call on so many devices: `None` where it has no measured times, `Some(None)` outside of them.
fn given(training: &MultiTask, call: usize, n_devices: u32) -> Option<Option<f64>> {
    let times = &training.calls[call].times;
    let (first, last) = (times.first()?, times.last()?);
    let is_inside = (first.0..=last.0).contains(&n_devices);
    Some(is_inside.then(|| Curve::new(times.clone()).seconds(f64::from(n_devices))))
}

/// Forward and backward operations of a layer on one of `n_devices` devices, whose tensor group has this shape.
///
/// # Panics
/// When the size cannot be had.
pub fn passes(training: &MultiTask, call: usize, (n_devices, shape): (u32, GroupShape)) -> [Ops; 2] {
    if let Some(time) = given(training, call, n_devices) {
        let all = time.expect("sizes are inside the measured ones");
        let forward = all * training.execution.forward_ratio;
        let ns = |seconds: f64| hw::Span::from_seconds(hw::Seconds::new(seconds)).as_ns();
        return [forward, all - forward].map(|part| vec![(Op::Host { ns: ns(part) }, 1)]);
    }
    let problem = problem(training, call, shape.n_ranks);
    match &training.operator(call).body {
        Body::FeedForward { intermediate } => {
            let samples = training.batch(call) / u64::from(n_devices / shape.n_ranks);
            feed_forward(&problem, samples * training.calls[call].tokens, *intermediate)
        }
        Body::Transformer { .. } => transformer(&problem, documents(training, call, n_devices / shape.n_ranks), shape),
        Body::Given => unreachable!("the reader asks for times where nothing else is known"),
    }
}

/// Samples of a call on one of so many data-parallel ranks.
fn documents(training: &MultiTask, call: usize, n_ranks: u32) -> Vec<Document> {
    let (samples, tokens) = (training.batch(call) / u64::from(n_ranks), training.calls[call].tokens);
    let document = match training.operator(call).body {
        Body::Transformer { causal: false, .. } => Document { queries: tokens, keys: tokens, pairs: tokens * tokens },
        _ => Document::causal(tokens),
    };
    vec![document; usize::try_from(samples).expect("batches fit memory")]
}

fn transformer(problem: &Problem, documents: Vec<Document>, shape: GroupShape) -> [Ops; 2] {
    let mut passes = layer_passes(problem, &stage(problem), documents);
    // All that a layer sends here goes around its tensor group, which may lie elsewhere than on the first devices.
    for (op, _) in passes.iter_mut().flatten() {
        if let Op::Collective { shape: of_group, .. } = op {
            *of_group = shape;
        }
    }
    passes
}

/// One layer, in the middle of a model.
fn stage(problem: &Problem) -> Stage {
    let has_experts = u32::from(problem.model.experts.is_some());
    let layer = Stage { n_dense: 1 - has_experts, n_expert: has_experts, ..Stage::NONE };
    layer.recomputing(problem.execution.recompute, u32::MAX)
}

/// Two products with an activation function between them; backward has two products for each.
fn feed_forward(problem: &Problem, tokens: u64, intermediate: u64) -> [Ops; 2] {
    let (hidden, format) = (problem.model.hidden, problem.shard().formats.dense);
    let wide = intermediate.div_ceil(u64::from(problem.layout.tp));
    let gemm = |m, n, k| (Op::Gemm { m, n, k, format }, 1);
    let bytes = tokens * 2 * wide * problem.dtype.bytes();
    let forward = vec![gemm(tokens, wide, hidden), (Op::Elementwise { bytes }, 1), gemm(tokens, hidden, wide)];
    let backward = vec![
        gemm(tokens, wide, hidden),
        gemm(wide, hidden, tokens),
        (Op::Elementwise { bytes: bytes + bytes / 2 }, 1),
        gemm(tokens, hidden, wide),
        gemm(hidden, wide, tokens),
    ];
    let mut passes = [forward, backward];
    for (ops, n_launches) in passes.iter_mut().zip(FEED_FORWARD_LAUNCHES) {
        let host = problem.execution.launches.each * hw::real(n_launches);
        if host > hw::Seconds::ZERO {
            let ns = hw::Span::from_seconds(host).as_ns();
            *ops = vec![(Op::Launched { parts: std::mem::take(ops), ns }, 1)];
        }
        ops.extend(layer::host(problem.execution.host_overhead_per_layer, 1));
    }
    passes
}

/// A layer of a call as a training problem, so that its operations and memory are those of training.
pub fn problem(training: &MultiTask, call: usize, tensor: u32) -> Problem {
    let operator = training.operator(call);
    let (n_heads, n_kv_heads, intermediate, gated, experts) = match operator.body {
        Body::Transformer { n_heads, n_kv_heads, intermediate, gated, experts, .. } => {
            (n_heads, n_kv_heads, intermediate, gated, experts)
        }
        Body::FeedForward { intermediate } => (1, 1, intermediate, false, None),
        Body::Given => (1, 1, 1, false, None),
    };
    let heads = [n_heads, n_kv_heads, operator.hidden / n_heads];
    let plain = Model::dense(operator.name.clone(), operator.n_layers.into(), operator.hidden, heads, intermediate);
    let max_positions = training.calls[call].tokens;
    let layers = Pattern::uniform(if experts.is_some() { Layer::EXPERTS } else { Layer::DENSE });
    let experts = experts.map(|[n, of_token]| Experts::plain(n, of_token, intermediate));
    let model =
        Model { layers, experts, gated, output_bias: !gated, learned_positions: !gated, max_positions, ..plain };
    let base = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Ring);
    Problem {
        model,
        cluster: training.cluster.clone(),
        layout: Layout { tp: tensor, expert_tp: tensor, sequence_parallel: tensor > 1, ..base },
        schedule: &SCHEDULES[0],
        workload: Workload { lengths: Vec::new(), batch_size: 1, source: String::new() },
        dtype: training.execution.dtype,
        execution: training.execution.of_step.clone(),
        bucket_tokens: 0,
        reserved_memory: training.reserved,
        seed: 0,
    }
}

/// Activations of layers of a call on each of their devices, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activations {
    /// Kept from forward to backward, with what backward of one layer makes again.
    pub kept: u64,
    /// Held besides while a pass runs: layers on their way to the host or back.
    pub in_passing: u64,
    /// On the host between the passes.
    pub on_host: u64,
}

/// What a layer of a call makes on each of its devices, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Kept from forward to backward.
    of_layer: u64,
    /// Made again by the backward of one layer.
    again: u64,
}

impl Made {
    /// What so many layers keep.
    pub fn by(self, execution: &problem::Execution, n_layers: u32) -> Activations {
        let made = self.of_layer * u64::from(n_layers);
        let on_host = memory::streamed(execution, made);
        let [made, streamed] = [made, on_host].map(|bytes| memory::taken(execution, bytes));
        let in_passing = streamed / u64::from(n_layers.max(1)) * u64::from(n_layers.min(memory::LAYERS_IN_PASSING));
        Activations { kept: made - streamed + self.again, in_passing, on_host }
    }
}

/// What a layer of a call makes. Of calls with measured times only the layers' inputs are known.
pub fn made(training: &MultiTask, call: usize, size: &Size) -> Made {
    let (operator, cut) = (training.operator(call), u64::from(size.tensor));
    let problem = problem(training, call, size.tensor);
    let stage = stage(&problem);
    let of_sample = training.calls[call].tokens;
    let tokens = training.batch(call) / u64::from(size.n_devices / size.tensor) * of_sample;
    let (of_layer, again) = match operator.body {
        Body::Transformer { .. } => {
            let working = engine::memory::working_bytes_per_token(&problem.shard(), &stage);
            (memory::activation(&problem, &stage, tokens, tokens * of_sample).whole, tokens * working)
        }
        Body::FeedForward { intermediate } => {
            (tokens * (ELEMENT * (operator.hidden + 2 * intermediate)).div_ceil(cut), 0)
        }
        Body::Given => (tokens * (ELEMENT * operator.hidden).div_ceil(cut), 0),
    };
    Made { of_layer, again }
}

/// Bytes of a parameter, of its gradient, and of what the optimizer keeps of it on the device.
pub fn bytes_per_parameter(training: &MultiTask) -> [f64; 3] {
    // They are those of any layer.
    let problem = problem(training, 0, 1);
    let [parameter, states] = memory::bytes_per_parameter(&problem);
    [parameter, hw::real(problem.held_gradient_dtype().bytes()), states * problem.execution.optimizer.on_device()]
}

/// Parameters of a transformer layer of this body, or of a feed-forward.
pub fn parameters(hidden: u64, body: &Body) -> u64 {
    match *body {
        Body::Transformer { n_heads, n_kv_heads, intermediate, gated, experts, .. } => {
            let kv = hidden / n_heads * n_kv_heads;
            let matrices = if gated { 3 } else { 2 };
            let [n_experts, router] = experts.map_or([1, 0], |[n, _]| [n, n * hidden]);
            2 * hidden * hidden + 2 * hidden * kv + n_experts * matrices * hidden * intermediate + router + 4 * hidden
        }
        Body::FeedForward { intermediate } => 2 * hidden * intermediate,
        Body::Given => 0,
    }
}
