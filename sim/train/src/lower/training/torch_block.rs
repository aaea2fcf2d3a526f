//! A block of keys in PyTorch's context parallelism, as every rank attends to one after the other
//! (`torch/distributed/tensor/experimental/_attention.py`). Units: bytes.

use super::Share;
use crate::problem::Problem;
use engine::layer;
use engine::task::{Op, Ops, Pass};

/// Bytes per element that are moved behind a block of attention. Forward: a 32-bit copy 6, a difference 12, a product 8, another difference 12.
/// Backward: three gradients of 16 bits are added to 32-bit ones, 10 each.
const MERGED_BYTES: [u64; 2] = [38, 30];

/// Attention to one block of keys, and the kernels behind it that merge its output with that of the blocks before, or add its gradients to theirs, in
/// 32 bits. Three quarters of the rows take part, as a block sees all queries and half of the keys, or half of the queries.
pub(super) fn block(problem: &Problem, share: &Share, pass: Pass) -> Ops {
    let mut ops = layer::attention(&problem.shard(), &share.sharded, 1, pass);
    let tokens: u64 = share.sharded.iter().map(|document| document.queries).sum();
    let model = &problem.model;
    let width = (model.n_heads * model.head_dim).div_ceil(u64::from(problem.layout.tp));
    let merged = MERGED_BYTES[usize::from(pass == Pass::Backward)];
    if tokens > 0 {
        ops.push((Op::Elementwise { bytes: tokens * width * merged * 3 / 4 }, 1));
    }
    ops
}
