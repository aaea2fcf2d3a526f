//! Operations of one transformer layer, of the embedding and of the head, for a number of tokens on a rank.
//!
//! Backward of a GEMM is two GEMMs of the same size (data and weight gradient). Memory-bound kernels are counted by the
//! bytes that they read and write. With tokens 0 every list is empty.

use hw::Bytes;

use crate::model::Experts;
use crate::problem::{Problem, Recompute};
use crate::task::{Document, Op, Pass};

/// Operations with their repeat counts.
pub type Ops = Vec<(Op, u32)>;

/// Bytes read and written per logit by the loss: model-format read, 32-bit write and read.
const LOSS_BYTES_PER_LOGIT: u64 = 10;
/// Bytes moved per parameter by an Adam step: gradient 2, master and two moments read and written 24, parameter 2,
/// and the 32-bit copy of the gradient for the norm 2.
const ADAM_BYTES_PER_PARAMETER: f64 = 30.0;

/// Repeats a list of operations `n` times.
#[must_use]
pub fn repeated(ops: &Ops, n: u32) -> Ops {
    if n == 0 { Vec::new() } else { ops.iter().map(|(op, count)| (op.clone(), count * n)).collect() }
}

struct Writer {
    ops: Ops,
    tokens: u64,
    pass: Pass,
    dtype: hw::Dtype,
}

impl Writer {
    fn new(problem: &Problem, tokens: u64, pass: Pass) -> Self {
        Self { ops: Vec::new(), tokens, pass, dtype: problem.dtype }
    }

    fn gemm(&mut self, n: u64, k: u64) {
        let (m, dtype) = (self.tokens, self.dtype);
        match self.pass {
            Pass::Forward => self.ops.push((Op::Gemm { m, n, k, dtype }, 1)),
            Pass::Backward => {
                self.ops.push((Op::Gemm { m, n: k, k: n, dtype }, 1));
                self.ops.push((Op::Gemm { m: n, n: k, k: m, dtype }, 1));
            }
        }
    }

    fn grouped(&mut self, rows: &[u64], n: u64, k: u64) {
        let dtype = self.dtype;
        let op = |n, k| Op::GroupedGemm { rows: rows.to_vec(), n, k, dtype };
        match self.pass {
            Pass::Forward => self.ops.push((op(n, k), 1)),
            Pass::Backward => {
                self.ops.push((op(k, n), 1));
                self.ops.push((op(n, k), 1));
            }
        }
    }

    /// A kernel that moves `width` elements per token in forward and half as many again in backward.
    fn elementwise(&mut self, width: u64) {
        let forward = self.tokens * width * self.dtype.bytes();
        let bytes = match self.pass {
            Pass::Forward => forward,
            Pass::Backward => forward + forward / 2,
        };
        self.ops.push((Op::Elementwise { bytes }, 1));
    }

    fn done(self) -> Ops {
        if self.tokens == 0 { Vec::new() } else { self.ops }
    }
}

/// Norm, query-key-value projections and rotary position.
#[must_use]
pub fn before_attention(problem: &Problem, tokens: u64, pass: Pass) -> Ops {
    let model = &problem.model;
    let mut writer = Writer::new(problem, tokens, pass);
    writer.elementwise(2 * model.hidden);
    if let Some(latent) = model.latent {
        let query_width = model.n_heads * (latent.nope_dim + latent.rope_dim);
        match latent.q_rank {
            Some(rank) => {
                writer.gemm(rank, model.hidden);
                writer.gemm(query_width, rank);
            }
            None => writer.gemm(query_width, model.hidden),
        }
        writer.gemm(latent.kv_rank + latent.rope_dim, model.hidden);
        writer.gemm(model.n_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
        writer.elementwise(2 * model.n_heads * latent.rope_dim);
    } else {
        let rotated = (model.n_heads + model.n_kv_heads) * model.head_dim;
        writer.gemm(rotated + model.n_kv_heads * model.head_dim, model.hidden);
        writer.elementwise(2 * rotated);
    }
    writer.done()
}

/// Output projection, residual, norm and feed-forward.
#[must_use]
pub fn after_attention(problem: &Problem, tokens: u64, pass: Pass) -> Ops {
    let model = &problem.model;
    let value_dim = model.latent.map_or(model.head_dim, |latent| latent.value_dim);
    let mut writer = Writer::new(problem, tokens, pass);
    writer.gemm(model.hidden, model.n_heads * value_dim);
    // Residual add and norm: read two, write two.
    writer.elementwise(4 * model.hidden);
    match model.experts {
        Some(experts) => feed_forward_of_experts(&mut writer, problem, experts),
        None => feed_forward(&mut writer, model.hidden, model.intermediate, model.gated),
    }
    writer.elementwise(3 * model.hidden);
    writer.done()
}

fn feed_forward(writer: &mut Writer, hidden: u64, intermediate: u64, gated: bool) {
    let projections = if gated { 2 } else { 1 };
    writer.gemm(projections * intermediate, hidden);
    writer.elementwise((projections + 1) * intermediate);
    writer.gemm(hidden, intermediate);
}

/// Router, permutation and experts; tokens are spread evenly over experts, which is stated as an approximation.
fn feed_forward_of_experts(writer: &mut Writer, problem: &Problem, experts: Experts) {
    let hidden = problem.model.hidden;
    let projections = if problem.model.gated { 2 } else { 1 };
    writer.gemm(experts.n_routed, hidden);
    writer.elementwise(2 * experts.top_k * hidden);
    let routed = writer.tokens * experts.top_k;
    let rows: Vec<u64> = (0..experts.n_routed)
        .map(|expert| routed / experts.n_routed + u64::from(expert < routed % experts.n_routed))
        .collect();
    writer.grouped(&rows, projections * experts.intermediate, hidden);
    writer.elementwise((projections + 1) * experts.intermediate * experts.top_k);
    writer.grouped(&rows, hidden, experts.intermediate);
    writer.elementwise(2 * experts.top_k * hidden);
    if experts.n_shared > 0 {
        feed_forward(writer, hidden, experts.n_shared * experts.intermediate, problem.model.gated);
    }
}

/// Attention over documents, one variable-length kernel; empty without documents.
#[must_use]
pub fn attention(problem: &Problem, documents: Vec<Document>, head_share: u64, pass: Pass) -> Ops {
    if documents.is_empty() {
        return Vec::new();
    }
    let model = &problem.model;
    let (kv_heads, head_dim) = model
        .latent
        .map_or((model.n_kv_heads, model.head_dim), |latent| (model.n_heads, latent.nope_dim + latent.rope_dim));
    let op = Op::Attention {
        documents,
        n_heads: model.n_heads.div_ceil(head_share),
        n_kv_heads: kv_heads.div_ceil(head_share),
        head_dim,
        pass,
    };
    vec![(op, 1)]
}

/// What backward computes again per layer under selective recompute: norms and the activation function.
#[must_use]
pub fn selective_recompute(problem: &Problem, tokens: u64) -> Ops {
    if problem.recompute != Recompute::Selective {
        return Vec::new();
    }
    let model = &problem.model;
    let wide =
        model.experts.map_or(model.intermediate, |experts| (experts.top_k + experts.n_shared) * experts.intermediate);
    let projections = if model.gated { 2 } else { 1 };
    let mut writer = Writer::new(problem, tokens, Pass::Forward);
    writer.elementwise(4 * model.hidden);
    writer.elementwise((projections + 1) * wide);
    writer.done()
}

/// Embedding look-up, or its gradient.
#[must_use]
pub fn embedding(problem: &Problem, tokens: u64) -> Ops {
    if tokens == 0 {
        return Vec::new();
    }
    vec![(Op::Embedding { tokens, row_bytes: problem.model.hidden * problem.dtype.bytes() }, 1)]
}

/// Final norm, output head and loss.
#[must_use]
pub fn head(problem: &Problem, tokens: u64, pass: Pass) -> Ops {
    let mut writer = Writer::new(problem, tokens, pass);
    writer.elementwise(2 * problem.model.hidden);
    writer.gemm(problem.model.vocab, problem.model.hidden);
    let mut ops = writer.done();
    if tokens > 0 {
        ops.push((Op::Elementwise { bytes: tokens * problem.model.vocab * LOSS_BYTES_PER_LOGIT }, 1));
    }
    ops
}

/// Host time of `n` layers in one pass.
#[must_use]
pub fn host(problem: &Problem, n: u32) -> Ops {
    let ns = hw::Span::from_seconds(problem.host_overhead_per_layer).as_ns();
    if ns == 0 || n == 0 { Vec::new() } else { vec![(Op::Host { ns }, n)] }
}

/// Adam over this rank's share of the parameters.
#[must_use]
pub fn optimizer(problem: &Problem, shards: u32) -> Ops {
    let parameters = Bytes(problem.model.n_parameters()).as_f64() / f64::from(shards);
    vec![(Op::Elementwise { bytes: Bytes::from_f64(parameters * ADAM_BYTES_PER_PARAMETER).0 }, 1)]
}
