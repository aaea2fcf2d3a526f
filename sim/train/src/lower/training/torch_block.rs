//! A block of keys in PyTorch's context parallelism, as every rank attends to one after the other
//! (`torch/distributed/tensor/experimental/_attention.py`). Units: bytes.

use super::Share;
use crate::layout::ContextExchange;
use crate::problem::Problem;
use engine::layer;
use engine::task::{Op, Ops, Pass};

/// Bytes per element that are moved behind a block of attention. Forward: a 32-bit copy 6, a difference 12, a product 8, another difference 12.
/// Backward: three gradients of 16 bits are added to 32-bit ones, 10 each.
const MERGED_BYTES: [u64; 2] = [38, 30];

/// Bytes of a 32-bit gradient over those of its 16-bit value.
pub(super) const GRADIENT_OVER_VALUE: u64 = 2;
/// Copies of a block that are there at once where blocks go around (`_AllToAllRotater`): the one that is attended to, the one on its way out, and the one that comes.
const COPIES: u64 = 3;

/// Blocks of keys and values of other ranks that a rank holds, as blocks in 16 bits: all of them where they are gathered (`_AllGatherRotater`). In backward gradients in
/// 32 bits go around beside them in both ways. With heads exchanged for tokens what comes takes the place of a rank's own.
pub(super) fn held(exchange: ContextExchange, n_ranks: u64, pass: Pass) -> u64 {
    let gradients = if pass == Pass::Backward { COPIES * GRADIENT_OVER_VALUE } else { 0 };
    match exchange {
        ContextExchange::Gather => n_ranks + gradients,
        ContextExchange::Ring => COPIES.min(n_ranks) + gradients,
        ContextExchange::Ulysses => 0,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_holds_blocks_and_a_gather_all_of_them() {
        for n in [4, 8, 16, 32] {
            assert_eq!(held(ContextExchange::Gather, n, Pass::Forward), n);
            assert_eq!(held(ContextExchange::Ring, n, Pass::Forward), 3, "in use, on its way out, and coming");
            for exchange in [ContextExchange::Gather, ContextExchange::Ring] {
                // Three copies of gradients, which have twice the bytes.
                assert_eq!(held(exchange, n, Pass::Backward) - held(exchange, n, Pass::Forward), 6);
            }
            assert_eq!(held(ContextExchange::Ulysses, n, Pass::Backward), 0);
        }
        assert_eq!(held(ContextExchange::Ring, 2, Pass::Forward), 2, "no more than there are");
    }
}
