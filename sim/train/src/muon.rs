//! Muon: momentum of every matrix of a layer is made nearly orthogonal by Newton-Schulz iterations. All other parameters have Adam.
//!
//! Sources: Keller Jordan, "Muon: An optimizer for hidden layers in neural networks"; arXiv:2502.16982; NVIDIA/Megatron-LM
//! `megatron/core/optimizer/muon.py` @ 025c931ad09f (`TensorParallelMuon`) and `layer_wise_optimizer.py`; NVIDIA-NeMo/Emerging-Optimizers
//! `orthogonalized_optimizers/muon_utils.py` (`newton_schulz_tp`).

use hw::{Format, GroupShape};

use crate::layout::{Layout, Zero};
use engine::layer;
use engine::shard::{ExpertLoad, Shard};
use engine::stage::Stage;
use engine::task::{Collective, Op, Ops, PassKind};

/// Bytes of an element of momentum that travels whole: it is cast behind the gather.
const MOMENTUM_BYTES: u64 = 4;
/// Bytes of an element inside of the iterations (`fp32_matmul_prec = "medium"`).
const ITERATED_BYTES: u64 = 2;

hw::words! {
    /// What a tensor group does with a matrix that it cuts (`--muon-tp-mode`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TensorMode: word {
        /// Every rank makes its own part orthogonal, by itself.
        Blockwise = "blockwise",
        /// Every rank gathers the whole matrix, and all compute the same.
        Duplicated = "duplicated",
        /// Every rank multiplies its part. Products along the cut side are summed over the group.
        Distributed = "distributed",
    }
}

hw::words! {
    /// Whether queries, keys and values are matrices of their own (`--muon-no-split-qkv`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Qkv: word {
        /// Three matrices.
        Split = "split",
        /// One matrix, as their product has it.
        Whole = "whole",
    }
}

/// How matrices are made orthogonal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Muon {
    /// Newton-Schulz iterations (`--muon-num-ns-steps`).
    pub n_iterations: u32,
    /// Of what a tensor group cuts.
    pub tensor: TensorMode,
    /// Of queries, keys and values.
    pub qkv: Qkv,
}

impl Muon {
    /// As Megatron-Core has it where nothing is said.
    pub const DEFAULT: Self = Self { n_iterations: 5, tensor: TensorMode::Blockwise, qkv: Qkv::Split };
}

/// Where the matrices of a stage are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dealt {
    /// Ranks that share whole matrices outside of experts: each makes its own ones orthogonal.
    pub n_shards: u32,
    /// The same for those of experts.
    pub n_expert_shards: u32,
    /// The tensor group on its nodes.
    pub tensor: GroupShape,
}

impl Dealt {
    /// What a layout says of it: without shards every rank updates all that it holds.
    pub fn over(layout: &Layout, tensor: GroupShape) -> Self {
        let over = |n: u32| if layout.zero >= Zero::OptimizerStates { n } else { 1 };
        Self { n_shards: over(layout.n_shards()), n_expert_shards: over(layout.n_expert_shards()), tensor }
    }
}

/// Equal matrices of the layers of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Matrices {
    rows: u64,
    columns: u64,
    n: u32,
    is_of_expert: bool,
}

/// The weights of the products of a layer's forward.
fn matrices(shard: &Shard<'_>, stage: &Stage, with_experts: bool, qkv: Qkv) -> Vec<Matrices> {
    let n_layers = if with_experts { stage.n_expert } else { stage.n_dense };
    let load = Some(&ExpertLoad::EVEN).filter(|_| with_experts);
    let mut found = weights(layer::before_attention(shard, 1, PassKind::Forward), n_layers);
    let is_joined =
        shard.model.latent.is_none() && shard.model.compressed.is_none() && shard.framework.torch().is_none();
    if is_joined && qkv == Qkv::Split {
        let joined = found.remove(0);
        found.splice(0..0, split(shard, joined));
    }
    found.extend(weights(layer::after_attention(shard, 1, PassKind::Forward, load), n_layers));
    found.retain(|matrices| matrices.n > 0);
    found
}

/// The weights of products, in so many layers.
fn weights(ops: Ops, n_layers: u32) -> Vec<Matrices> {
    let mut found = Vec::new();
    for (op, n) in ops {
        match op {
            Op::Gemm { n: rows, k: columns, .. } => {
                found.push(Matrices { rows, columns, n: n * n_layers, is_of_expert: false });
            }
            Op::GroupedGemm { rows: experts, n: rows, k: columns, .. } => {
                let n_experts = u32::try_from(experts.len()).expect("experts fit u32");
                found.push(Matrices { rows, columns, n: n * n_layers * n_experts, is_of_expert: true });
            }
            _ => {}
        }
    }
    found
}

/// Queries, with their gate, keys, and values of one joined matrix.
fn split(shard: &Shard<'_>, joined: Matrices) -> [Matrices; 3] {
    let key = (shard.model.n_kv_heads * shard.model.head_dim).div_ceil(u64::from(shard.tp));
    assert!(2 * key < joined.rows, "queries are left of {} rows", joined.rows);
    [joined.rows - 2 * key, key, key].map(|rows| Matrices { rows, ..joined })
}

/// What makes the momentum of a stage's matrices orthogonal on one rank.
pub fn orthogonalised(muon: Muon, shard: &Shard<'_>, stage: &Stage, dealt: &Dealt) -> Ops {
    let uncut = Shard { tp: 1, expert_tp: 1, ..*shard };
    let mut ops = Ops::new();
    for with_experts in [false, true] {
        let own = matrices(shard, stage, with_experts, muon.qkv);
        let whole = matrices(&uncut, stage, with_experts, muon.qkv);
        assert_eq!(own.len(), whole.len(), "a tensor group cuts the same products");
        for (own, whole) in own.into_iter().zip(whole) {
            let n_shards = if own.is_of_expert { dealt.n_expert_shards } else { dealt.n_shards };
            let own = Matrices { n: own.n.div_ceil(n_shards), ..own };
            ops.extend(of_cut(muon, own, whole, dealt.tensor));
        }
    }
    ops
}

/// Iterations on parts of whole matrices, and what the tensor group exchanges for them.
fn of_cut(muon: Muon, own: Matrices, whole: Matrices, shape: GroupShape) -> Ops {
    let Matrices { rows, columns, n, .. } = own;
    let is_whole = (rows, columns) == (whole.rows, whole.columns);
    match muon.tensor {
        TensorMode::Duplicated if !is_whole => {
            let bytes = whole.rows * whole.columns * MOMENTUM_BYTES;
            let gather = Op::Collective { kind: Collective::AllGather, bytes, shape };
            let mut ops = vec![(gather, n)];
            ops.extend(iterated(whole.rows.min(whole.columns), whole.rows.max(whole.columns), n * muon.n_iterations));
            ops
        }
        TensorMode::Distributed if !is_whole => {
            let (kept, cut) = if rows < whole.rows { (columns, rows) } else { (rows, columns) };
            let bytes = kept * kept * ITERATED_BYTES;
            let sum = Op::Collective { kind: Collective::AllReduce, bytes, shape };
            let mut ops = iterated(kept, cut, n * muon.n_iterations);
            ops.insert(1, (sum, n * muon.n_iterations));
            ops
        }
        _ => iterated(rows.min(columns), rows.max(columns), n * muon.n_iterations),
    }
}

/// So many iterations on `kept × other`: X·Xᵀ, its square, and both times X.
fn iterated(kept: u64, other: u64, n: u32) -> Ops {
    [(kept, kept, other), (kept, kept, kept), (kept, other, kept)]
        .map(|(m, n, k)| Op::Gemm { m, n, k, format: Format::Bf16 })
        .map(|product| (product, n))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::Model;
    use hw::Dtype;

    fn model() -> Model {
        engine::model::embedded("llama-3-8b").expect("embedded")
    }

    fn ops(muon: Muon, tp: u32, n_shards: u32) -> Ops {
        let model = model();
        let stage = Stage { n_dense: 2, ..Stage::default() };
        let tensor = GroupShape::inside(tp);
        let dealt = Dealt { n_shards, n_expert_shards: 1, tensor };
        orthogonalised(muon, &Shard::forward(&model, Dtype::Bf16, tp), &stage, &dealt)
    }

    fn flops(ops: &Ops) -> f64 {
        ops.iter().map(|(op, n)| op.flops() * f64::from(*n)).sum()
    }

    fn bytes(ops: &Ops, wanted: Collective) -> u64 {
        let mut sum = 0;
        for (op, n) in ops {
            if let Op::Collective { kind, bytes, .. } = op
                && *kind == wanted
            {
                sum += bytes * u64::from(*n);
            }
        }
        sum
    }

    /// Five times 4·m²·n + 2·m³, of the side m that is multiplied with itself and the other n.
    fn of(kept: f64, other: f64) -> f64 {
        5.0 * (4.0 * kept * kept * other + 2.0 * kept.powi(3))
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} against {expected}");
    }

    #[test]
    fn every_matrix_of_a_layer_is_multiplied_fifteen_times() {
        // Queries and the output of 4096 by 4096, keys and values of 1024 by 4096, both factors in one of 28672 by 4096, the last of 14336 by 4096.
        let behind = of(4096.0, 4096.0) + of(4096.0, 28_672.0) + of(4096.0, 14_336.0);
        let expected = 2.0 * (of(4096.0, 4096.0) + 2.0 * of(1024.0, 4096.0) + behind);
        close(flops(&ops(Muon::DEFAULT, 1, 1)), expected);
        // Queries, keys and values in one matrix of 6144 rows.
        let whole = Muon { qkv: Qkv::Whole, ..Muon::DEFAULT };
        close(flops(&ops(whole, 1, 1)), 2.0 * (of(4096.0, 6144.0) + behind));
        // Two layers over two ranks are one for each; six iterations are a fifth more.
        close(flops(&ops(Muon::DEFAULT, 1, 2)), expected / 2.0);
        close(flops(&ops(Muon { n_iterations: 6, ..Muon::DEFAULT }, 1, 1)), 1.2 * expected);
    }

    #[test]
    fn a_tensor_group_multiplies_parts_or_gathers_or_sums() {
        let of_mode = |tensor| ops(Muon { tensor, ..Muon::DEFAULT }, 4, 1);
        // Parts alone: a quarter of the rows of queries, keys, values and factors, a quarter of the columns of the others.
        let parts = of_mode(TensorMode::Blockwise);
        let expected =
            2.0 * (2.0 * of(1024.0, 4096.0) + 2.0 * of(256.0, 4096.0) + of(4096.0, 7168.0) + of(3584.0, 4096.0));
        close(flops(&parts), expected);
        assert_eq!(bytes(&parts, Collective::AllGather) + bytes(&parts, Collective::AllReduce), 0);
        // Whole matrices on every rank: four bytes of every parameter are gathered.
        let whole = of_mode(TensorMode::Duplicated);
        close(flops(&whole), flops(&ops(Muon::DEFAULT, 1, 1)));
        let parameters = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336);
        assert_eq!(bytes(&whole, Collective::AllGather), 2 * 4 * parameters);
        // The side that is whole is multiplied with itself, which is 4096 for all, and its products are summed.
        let summed = of_mode(TensorMode::Distributed);
        let of_parts = 2.0 * of(4096.0, 1024.0) + 2.0 * of(4096.0, 256.0) + of(4096.0, 7168.0) + of(4096.0, 3584.0);
        close(flops(&summed), 2.0 * of_parts);
        assert_eq!(bytes(&summed, Collective::AllReduce), 2 * 6 * 5 * 2 * 4096 * 4096);
        // Without a group all three are the same.
        for tensor in TensorMode::ALL {
            assert_eq!(ops(Muon { tensor, ..Muon::DEFAULT }, 1, 1), ops(Muon::DEFAULT, 1, 1));
        }
    }
}
