//! Asks a cost model for the parts of an iteration.

use std::cell::Cell;

use hw::{GroupShape, Seconds};

use crate::step_cost::{Chunk, ReplicaConfig};
use engine::cost::{CostModel, Estimate, Source};
use engine::layer;
use engine::play::Case;
use engine::shard::{ExpertLoad, Shard};
use engine::stage::Stage;
use engine::task::{Collective, Document, Op, Ops, Pass, PassKind};

/// Bytes read and written per logit by the sampler: 16-bit read, 32-bit write and read.
const SAMPLER_BYTES_PER_LOGIT: u64 = 10;

/// Asks the cost model for parts of an iteration.
pub(super) struct Writer<'a> {
    deployment: &'a ReplicaConfig<'a>,
    shard: Shard<'a>,
    shape: GroupShape,
    n_layers: u32,
    n_dense: u32,
    cost: &'a dyn CostModel,
    case: Case,
    /// Weakest source so far.
    pub(super) source: Cell<Source>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(deployment: &'a ReplicaConfig<'a>, cost: &'a dyn CostModel, case: Case) -> Self {
        let model = deployment.model;
        let n_layers = u32::try_from(model.n_layers).expect("few layers");
        let n_dense = u32::try_from(model.n_layers - model.n_expert_layers()).expect("few layers");
        let (shard, shape) = (deployment.shard(), deployment.tensor_shape());
        Self { deployment, shard, shape, n_layers, n_dense, cost, case, source: Cell::new(Source::Measured) }
    }

    fn sum(&self, ops: Ops) -> Seconds {
        self.end(&self.cost.estimate(&Op::Sequence(ops)))
    }

    /// The end of an estimate's interval that is tabulated.
    fn end(&self, estimate: &Estimate) -> Seconds {
        self.source.set(self.source.get().max(estimate.source));
        match self.case {
            Case::Low => estimate.low,
            Case::Expected => estimate.time,
            Case::High => estimate.high,
        }
    }

    /// Takes out what the engine has kernels of its own for; their time.
    fn taken(&self, ops: &mut Ops) -> Seconds {
        let mut own = Seconds::ZERO;
        ops.retain(|(op, n)| {
            let found = self.cost.engine(op);
            own = own + found.map_or(Seconds::ZERO, |found| self.end(&found.times(*n)));
            found.is_none()
        });
        own
    }

    /// Embedding, GEMMs, norms and exchanges of all layers.
    pub(super) fn layers(&self, m: u64) -> Seconds {
        let forward = PassKind::Forward;
        let mut own = Seconds::ZERO;
        let mut ops = layer::embedding(&self.shard, m);
        ops.extend(layer::repeated(&layer::before_attention(&self.shard, m, forward), self.n_layers));
        ops.extend(layer::repeated(&layer::after_attention(&self.shard, m, forward, None), self.n_dense));
        let n_expert = self.n_layers - self.n_dense;
        if n_expert > 0 {
            let mut with_experts = layer::after_attention(&self.shard, m, forward, Some(&ExpertLoad::EVEN));
            with_experts.iter_mut().for_each(|(op, _)| self.visit(op, m));
            own = own + self.taken(&mut with_experts) * f64::from(n_expert);
            ops.extend(layer::repeated(&with_experts, n_expert));
        }
        if self.shape.n_ranks > 1 {
            let bytes = m * self.shard.model.hidden * self.shard.dtype.bytes();
            // Two per layer, and one behind the embedding, which is cut over the vocabulary.
            let reduce = Op::Collective { kind: Collective::AllReduce, bytes, shape: self.shape };
            let mut reduces = vec![(reduce, 2 * self.n_layers + 1)];
            own = own + self.taken(&mut reduces);
            ops.extend(reduces);
        }
        ops.extend(self.exchanges(m, n_expert));
        self.sum(ops) + own
    }

    /// Tokens to experts and back, and activations from stage to stage.
    fn exchanges(&self, m: u64, n_expert: u32) -> Ops {
        let mut ops = Vec::new();
        if self.deployment.lanes().ranks > 1 {
            let stage = Stage { n_dense: self.n_dense, n_expert, first: true, last: true, ..Stage::default() };
            let (even, shape) = (ExpertLoad::EVEN, self.deployment.expert_shape());
            ops.extend(layer::expert_exchange(&self.shard, &stage, m, PassKind::Forward, even, shape));
        }
        let bytes = m * self.shard.model.hidden * self.shard.dtype.bytes();
        let message = |shape| (Op::Collective { kind: Collective::SendRecv, bytes, shape }, 1);
        ops.extend(self.deployment.hand_offs().map(message));
        ops
    }

    /// Leaves out experts that no token visits: with few tokens their weights are not read. A token's experts are taken as drawn evenly,
    /// so that an expert is left alone with probability `(1 − top_k / n_routed)^tokens`.
    fn visit(&self, op: &mut Op, m: u64) {
        let (Op::GroupedGemm { rows, .. }, Some(experts)) = (op, self.shard.model.experts) else { return };
        let tokens = m * u64::from(self.deployment.lanes().ranks);
        let f = |n: u64| hw::Tokens(n).as_f64();
        let visited = 1.0 - libm::pow(1.0 - f(experts.top_k) / f(experts.n_routed), f(tokens));
        let total: u64 = rows.iter().sum();
        let n = hw::Tokens(rows.len() as u64).0;
        let n_visited = hw::Bytes::from_f64(visited * f(n)).0.clamp(1, n.min(total.max(1)));
        *rows = (0..n_visited).map(|index| total / n_visited + u64::from(index < total % n_visited)).collect();
    }

    /// Final norm, head, gathered logits and sampler.
    pub(super) fn head(&self, n: u64) -> Seconds {
        let (model, dtype) = (self.shard.model, self.shard.dtype);
        let columns = model.vocab.div_ceil(u64::from(self.shape.n_ranks));
        let mut ops = vec![
            (Op::Elementwise { bytes: 2 * n * model.hidden * dtype.bytes() }, 1),
            (Op::Gemm { m: n, n: columns, k: model.hidden, format: self.shard.formats.head }, 1),
            (Op::Elementwise { bytes: n * model.vocab * SAMPLER_BYTES_PER_LOGIT }, 1),
        ];
        if self.shape.n_ranks > 1 {
            let bytes = n * model.vocab * dtype.bytes();
            ops.push((Op::Collective { kind: Collective::AllGather, bytes, shape: self.shape }, 1));
        }
        self.sum(ops)
    }

    /// Attention of one chunk in all layers.
    pub(super) fn prefill(&self, chunk: Chunk) -> Seconds {
        let document = Document::chunk(u64::from(chunk.past), u64::from(chunk.new));
        let ops = layer::attention(&self.shard, &[document], 1, Pass::Forward);
        self.sum(layer::repeated(&ops, self.n_layers))
    }
}
