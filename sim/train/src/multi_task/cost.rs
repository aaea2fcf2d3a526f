//! How long a layer of a call takes on so many devices, and what it leaves in their memory.
//!
//! The batch is cut over data-parallel ranks, each layer over a tensor group of every rank. A number of devices can be had when the rest
//! after the tensor group divides the batch; of the ways to have it the fastest is taken. Operations are those of a
//! training step (`sim/engine/src/layer.rs`); calls with measured times are interpolated between their points and not extended beyond.

use hw::{Dtype, GroupShape};

use super::curve::Curve;
use super::{Body, Call, ELEMENT, MultiTask};
use crate::layout::{ContextExchange, Layout, Zero};
use crate::problem::{Problem, Recompute};
use crate::schedule::{PassKind, SCHEDULES};
use crate::stage::Stage;
use crate::workload::Workload;
use engine::CostModel;
use engine::layer;
use engine::model::Model;
use engine::play::Case;
use engine::task::Ops;
use engine::task::{Document, Op, Pass};

/// One layer, in the middle of a model.
const LAYER: Stage = Stage { n_dense: 1, again_dense: 1, ..Stage::NONE };

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
    let samples = training.batch(call) / u64::from(n_devices / shape.n_ranks);
    match &training.operator(call).body {
        Body::FeedForward { intermediate } => {
            feed_forward(&problem, samples * training.calls[call].tokens, *intermediate)
        }
        Body::Transformer { causal, .. } => {
            let tokens = training.calls[call].tokens;
            let document = if *causal {
                Document::causal(tokens)
            } else {
                Document { queries: tokens, keys: tokens, pairs: tokens * tokens }
            };
            let documents = vec![document; usize::try_from(samples).expect("batches fit memory")];
            transformer(&problem, &documents, shape)
        }
        Body::Given => unreachable!("the reader asks for times where nothing else is known"),
    }
}

fn transformer(problem: &Problem, documents: &[Document], shape: GroupShape) -> [Ops; 2] {
    let tokens = documents.iter().map(|document| document.queries).sum();
    let pass = |kind: PassKind, pass: Pass| {
        let mut ops = layer::before_attention(&problem.shard(), tokens, kind);
        ops.extend(layer::attention(&problem.shard(), documents, 1, pass));
        ops.extend(layer::after_attention(&problem.shard(), tokens, kind, None));
        ops.extend(layer::tensor_exchange(&problem.shard(), &LAYER, tokens, kind, shape));
        ops.extend(layer::host(problem.execution.host_overhead_per_layer, 1));
        ops
    };
    let forward = pass(PassKind::Forward, Pass::Forward);
    let mut backward = pass(PassKind::Backward, Pass::Backward);
    match problem.execution.recompute {
        Recompute::Full => backward.extend(forward.clone()),
        _ => backward.extend(layer::recomputed_part(&problem.shard(), tokens, documents, None)),
    }
    [forward, backward]
}

/// Two products with an activation function between them; backward has two products for each.
fn feed_forward(problem: &Problem, tokens: u64, intermediate: u64) -> [Ops; 2] {
    let (hidden, dtype) = (problem.model.hidden, problem.dtype);
    let wide = intermediate.div_ceil(u64::from(problem.layout.tp));
    let gemm = |m, n, k| (Op::Gemm { m, n, k, format: dtype.into() }, 1);
    let bytes = tokens * 2 * wide * dtype.bytes();
    let mut forward = vec![gemm(tokens, wide, hidden), (Op::Elementwise { bytes }, 1), gemm(tokens, hidden, wide)];
    let mut backward = vec![
        gemm(tokens, wide, hidden),
        gemm(wide, hidden, tokens),
        (Op::Elementwise { bytes: bytes + bytes / 2 }, 1),
        gemm(tokens, hidden, wide),
        gemm(hidden, wide, tokens),
    ];
    forward.extend(layer::host(problem.execution.host_overhead_per_layer, 1));
    backward.extend(layer::host(problem.execution.host_overhead_per_layer, 1));
    [forward, backward]
}

/// A layer of a call as a training problem, so that its operations and memory are those of training.
fn problem(training: &MultiTask, call: usize, tensor: u32) -> Problem {
    let operator = training.operator(call);
    let (n_heads, n_kv_heads, intermediate, gated) = match operator.body {
        Body::Transformer { n_heads, n_kv_heads, intermediate, gated, .. } => {
            (n_heads, n_kv_heads, intermediate, gated)
        }
        Body::FeedForward { intermediate } => (1, 1, intermediate, false),
        Body::Given => (1, 1, 1, false),
    };
    let heads = [n_heads, n_kv_heads, operator.hidden / n_heads];
    let plain = Model::dense(operator.name.clone(), operator.n_layers.into(), operator.hidden, heads, intermediate);
    let max_positions = training.calls[call].tokens;
    let model = Model { gated, output_bias: !gated, learned_positions: !gated, max_positions, ..plain };
    let base = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Ring);
    Problem {
        model,
        cluster: training.cluster.clone(),
        layout: Layout { tp: tensor, sequence_parallel: tensor > 1, ..base },
        schedule: &SCHEDULES[0],
        workload: Workload { lengths: Vec::new(), batch_size: 1, source: String::new() },
        dtype: Dtype::Bf16,
        execution: crate::problem::Execution {
            recompute: training.execution.recompute,
            host_overhead_per_layer: training.execution.host_overhead_per_layer,
            ..crate::problem::Execution::default()
        },
        bucket_tokens: 0,
        reserved_memory: training.reserved,
        seed: 0,
    }
}

/// Activations that layers of a call keep on each of their devices from forward to backward, with what backward of one layer makes again,
/// bytes. Of calls with measured times only the layers' inputs are known.
pub fn activation_bytes(training: &MultiTask, call: usize, size: &Size, n_layers: u32) -> u64 {
    let (operator, cut, n) = (training.operator(call), u64::from(size.tensor), u64::from(n_layers));
    let per_token = match operator.body {
        Body::Transformer { .. } => {
            let problem = problem(training, call, size.tensor);
            let kept = engine::memory::activation_bytes_per_token(&problem.shard(), &LAYER);
            n * kept + engine::memory::working_bytes_per_token(&problem.shard(), &LAYER)
        }
        Body::FeedForward { intermediate } => n * (ELEMENT * (operator.hidden + 2 * intermediate)).div_ceil(cut),
        Body::Given => n * (ELEMENT * operator.hidden).div_ceil(cut),
    };
    let samples = training.batch(call) / u64::from(size.n_devices / size.tensor);
    samples * training.calls[call].tokens * per_token
}

/// Parameters of a transformer layer of this body, or of a feed-forward.
pub fn parameters(hidden: u64, body: &Body) -> u64 {
    match *body {
        Body::Transformer { n_heads, n_kv_heads, intermediate, gated, .. } => {
            let kv = hidden / n_heads * n_kv_heads;
            let matrices = if gated { 3 } else { 2 };
            2 * hidden * hidden + 2 * hidden * kv + matrices * hidden * intermediate + 4 * hidden
        }
        Body::FeedForward { intermediate } => 2 * hidden * intermediate,
        Body::Given => 0,
    }
}
