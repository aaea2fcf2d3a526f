//! PyTorch's single kernels over operands that are broadcast, or that lie apart in memory. Units: bytes.
//!
//! Such a kernel computes an address for every element and reads them one by one, so multiprocessors bound it and not memory.

use hw::Capability;

use super::Writer;
use crate::task::{Op, PassKind};

/// What lies apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strided {
    /// Halves of rows: a gate and what it opens.
    Halves,
    /// Heads and angles of positions, which are broadcast over sequences and heads.
    Positions,
}

/// Elements per second of multiprocessors, H100 over B200, by their number and clock; and bandwidth of memory, B200 over H100.
const UNITS: f64 = 1.0 / 1.1;
const MEMORY: f64 = 2.4;

impl Strided {
    /// Time over that of a plain kernel with as many bytes.
    ///
    /// Halves: on an H100 `silu(a[:, :w]) * a[:, w:]` moves 1.79 TB/s, where plain kernels are taken to move 2.5 (this project, `profiles/measured/h100-sxm`). A B200 has
    /// as many addresses to compute with about as many units, and 2.4 times the memory.
    /// Positions: on a B200 ten rotations of queries and keys in single kernels take 8.675 ms, 4 sequences of 2,048 tokens with 32 heads of 128 each. That is 1.55 TB/s by
    /// their 20 bytes an element, where plain kernels are taken to move 6.0 (pytorch/pytorch, pull request 176223). On Hopper they were not measured, and count as halves.
    fn slowness(self, capability: Capability) -> f64 {
        const HALVES_ON_HOPPER: f64 = 1.4;
        match (self, capability) {
            (_, Capability::Other) => 1.0,
            (_, Capability::Nine) => HALVES_ON_HOPPER,
            (Self::Halves, Capability::Ten) => HALVES_ON_HOPPER * MEMORY * UNITS,
            (Self::Positions, Capability::Ten) => 3.9,
        }
    }
}

impl Writer<'_> {
    /// Kernels that move so many bytes for each of so many elements, forward and backward: those over strided operands, and plain ones.
    pub(super) fn moves_strided(&mut self, elements: u64, what: Strided, strided: [f64; 2], plain: [f64; 2]) {
        let direction = match self.kind {
            PassKind::Forward => 0,
            PassKind::Backward | PassKind::Input => 1,
            PassKind::Weight => return,
        };
        let bytes = plain[direction] + what.slowness(self.shard.capability) * strided[direction];
        self.push(Op::Elementwise { bytes: hw::whole(hw::real(elements) * bytes) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_bind_more_where_memory_is_faster() {
        for what in [Strided::Halves, Strided::Positions] {
            let [other, nine, ten] =
                [Capability::Other, Capability::Nine, Capability::Ten].map(|card| what.slowness(card));
            assert!(other <= nine && nine < ten, "{what:?}: {other} {nine} {ten}");
        }
        // 20 bytes of 67.1 million elements in 0.8675 ms: 1.55 of 6.0 TB/s.
        let moved = 20.0 * 2.0 * hw::real(4 * 2048 * 32 * 128) / 0.8675e-3;
        assert!((6.0e12 / moved / Strided::Positions.slowness(Capability::Ten) - 1.0).abs() < 0.01);
    }
}
