//! Keys and values that preempted sequences have left in free blocks: whoever comes back finds those that nobody took meanwhile.
//!
//! Source: vllm-project/vllm, `vllm/v1/core/sched/scheduler.py` (`_preempt_request` frees the blocks, and a sequence that comes back asks
//! `get_computed_blocks` as a new one does) and `vllm/v1/core/block_pool.py`: freed blocks queue up, the last of a sequence first, and lose what they hold when
//! they are given to somebody. Units: blocks. Invariant: what is counted here is free. Approximation: cached prefixes leave behind all free blocks.

use std::collections::VecDeque;

/// A sequence by its slot, and how often that was taken.
pub type Owner = (u32, u32);

/// What one sequence has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    owner: Owner,
    /// Tokens of the prefixes in front of it.
    behind: u32,
    n: u32,
    /// Free blocks that are taken before it, behind those that others have left before.
    ahead: u32,
}

/// Free blocks in the order in which they are taken, as far as preempted sequences have left something there.
#[derive(Clone, Debug, Default)]
pub struct LeftBlocks {
    queue: VecDeque<Left>,
    /// Blocks up to the end of the last of them.
    counted: u32,
}

impl LeftBlocks {
    /// A sequence gives `n` blocks up that hold what follows `behind` tokens, where `free` were free before.
    pub fn leave(&mut self, owner: Owner, behind: u32, n: u32, free: u32) {
        if n == 0 {
            return;
        }
        self.queue.push_back(Left { owner, behind, n, ahead: free - self.counted });
        self.counted = free + n;
    }

    /// Blocks of a sequence that still hold what follows `behind` tokens.
    pub fn of(&self, owner: Owner, behind: u32) -> u32 {
        let found = self.queue.iter().find(|left| left.owner == owner && left.behind == behind);
        found.map_or(0, |left| left.n)
    }

    /// `n` free blocks are taken by somebody.
    pub fn take(&mut self, mut n: u32) {
        self.counted -= n.min(self.counted);
        while let Some(first) = self.queue.front_mut() {
            let before = n.min(first.ahead);
            let lost = (n - before).min(first.n);
            first.ahead -= before;
            first.n -= lost;
            n -= before + lost;
            if first.n > 0 {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// The first `n` blocks of a sequence are its own again; what else it has left is free like other blocks.
    pub fn come_back(&mut self, owner: Owner, n: u32) {
        let Some(at) = self.queue.iter().position(|left| left.owner == owner) else { return assert!(n == 0) };
        let left = self.queue.remove(at).expect("it is there");
        assert!(n <= left.n, "{n} blocks come back, {} are left", left.n);
        let free = left.ahead + left.n - n;
        match self.queue.get_mut(at) {
            Some(next) => {
                next.ahead += free;
                self.counted -= n;
            }
            None => self.counted -= left.ahead + left.n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same one block after another.
    #[derive(Default)]
    struct Queue(VecDeque<Option<(Owner, u32)>>);

    impl Queue {
        fn of(&self, owner: Owner) -> u32 {
            u32::try_from(self.0.iter().flatten().filter(|block| block.0 == owner).count()).unwrap()
        }
    }

    #[test]
    fn what_is_left_is_that_of_a_queue_of_single_blocks() {
        let mut state = 7_u64;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(state >> 33).unwrap() % below
        };
        let (mut left, mut queue) = (LeftBlocks::default(), Queue((0..40).map(|_| None).collect()));
        for turn in 0..20_000_u32 {
            let (owner, free) = ((turn, 1), u32::try_from(queue.0.len()).unwrap());
            match draw(4) {
                0 => {
                    let n = draw(9);
                    left.leave(owner, 0, n, free);
                    // The last block of a sequence is taken first.
                    queue.0.extend((0..n).rev().map(|index| Some((owner, index))));
                }
                1 => {
                    let n = draw(free.min(12) + 1);
                    left.take(n);
                    queue.0.drain(..n as usize);
                }
                2 => queue.0.extend((0..draw(5)).map(|_| None)),
                _ => {
                    let owner = (turn.saturating_sub(draw(12)), 1);
                    let n = queue.of(owner).saturating_sub(draw(3));
                    left.come_back(owner, n);
                    queue.0.retain(|block| block.is_none_or(|(other, index)| other != owner || index >= n));
                    queue
                        .0
                        .iter_mut()
                        .filter(|block| block.is_some_and(|(other, _)| other == owner))
                        .for_each(|it| *it = None);
                }
            }
            for back in 0..20 {
                let owner = (turn.saturating_sub(back), 1);
                assert_eq!(left.of(owner, 0), queue.of(owner), "turn {turn}, {owner:?}");
            }
            assert_eq!(left.of(owner, 16), 0, "behind other prefixes");
        }
    }
}
