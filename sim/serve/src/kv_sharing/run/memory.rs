//! Memory decisions of the event loop: placing, growing, recalling, preempting, cancelling cycles, and the planner's moves.

use super::super::performance::{Load, Rates};
use super::{Live, Sharing, State};

/// Waiting requests that the planner looks at.
const WAITING_SEEN: usize = 8;

impl State<'_> {
    /// Places blocks of a request whose home is `at`: there as far as they fit, the rest on lenders; `None` where there is not enough.
    pub(super) fn place(&mut self, at: usize, blocks: u64) -> Option<Vec<u64>> {
        let missing = |state: &Self| blocks.saturating_sub(state.pool.free(at));
        let may_borrow = match self.cluster.sharing {
            Sharing::Off => false,
            Sharing::Borrow => true,
            Sharing::Planned => blocks > self.cluster.blocks,
        };
        if missing(self) > 0 && self.pool.lent(at) > 0 {
            // Its own requests come first: what it has lent is asked back.
            self.recall(at, missing(self));
        }
        if self.pool.free(at) == 0 || (missing(self) > 0 && !may_borrow) {
            return None;
        }
        let local = blocks.min(self.pool.free(at));
        self.pool.take(at, at, local).expect("at most what is free");
        let mut placed = vec![0; self.instances.len()];
        placed[at] = local;
        for (lender, part) in self.borrow(at, blocks - local) {
            placed[lender] += part;
        }
        if placed.iter().sum::<u64>() == blocks {
            self.outcome.counts.borrowed_blocks += blocks - local;
            return Some(placed);
        }
        placed.iter().enumerate().for_each(|(from, &part)| self.pool.give(at, from, part));
        None
    }

    /// Borrows up to so many blocks: asks the ledger's candidates for what they said to have; whoever has no room any more refuses.
    fn borrow(&mut self, at: usize, blocks: u64) -> Vec<(usize, u64)> {
        let (mut left, mut parts) = (blocks, Vec::new());
        if left == 0 {
            return parts;
        }
        for lender in self.ledger.candidates(at) {
            let may = self.cluster.lent_max.saturating_sub(self.pool.lent(lender));
            let part = left.min(self.ledger.free(lender)).min(may);
            if part == 0 {
                continue;
            }
            // The ledger may be old: the lender answers by what it has now.
            match self.pool.take(at, lender, part) {
                Ok(()) => {
                    parts.push((lender, part));
                    left -= part;
                }
                Err(_) => self.outcome.counts.refused_loans += 1,
            }
            if left == 0 {
                break;
            }
        }
        parts
    }

    /// Gives every decoding sequence the block of its next token: free, recalled, or by moving an older block of its own to a lender. Where
    /// nothing helps, the youngest request makes room.
    pub(super) fn grow(&mut self, at: usize) {
        let mut index = 0;
        while index < self.instances[at].running.len() {
            let live = &self.instances[at].running[index];
            let needed = self.cluster.blocks_of(live.tokens + 1);
            if live.computed < live.prompt || live.placed.iter().sum::<u64>() >= needed {
                index += 1;
                continue;
            }
            if self.pool.free(at) == 0 {
                self.make_room(at);
            }
            if self.pool.take(at, at, 1).is_ok() {
                self.instances[at].running[index].placed[at] += 1;
                index += 1;
            } else {
                // The youngest is at the end and may be this one; then the loop ends.
                self.preempt_youngest(at);
            }
        }
    }

    /// Frees a block of an instance: asks back what it lent, or sends a block of its own away, or evicts a borrower.
    fn make_room(&mut self, at: usize) {
        if self.pool.lent(at) > 0 {
            self.recall(at, 1);
        }
        if self.pool.free(at) == 0 && self.cluster.sharing != Sharing::Off {
            self.send_away(at, self.cluster.blocks / 64 + 1);
        }
        if self.pool.free(at) == 0 && self.pool.lent(at) > 0 {
            self.evict_borrower(at);
        }
    }

    /// Moves up to so many blocks of the instance's largest request to lenders; the last one stays.
    fn send_away(&mut self, at: usize, blocks: u64) {
        let largest = self.instances[at].running.iter().enumerate().max_by_key(|(_, live)| live.placed[at]);
        let Some((index, most)) = largest.map(|(index, live)| (index, live.placed[at].saturating_sub(1))) else {
            return;
        };
        let may = blocks.min(most).min(self.instances[at].link_blocks);
        for (lender, part) in self.borrow(at, may) {
            let over = part - part.min(self.instances[lender].link_blocks);
            self.pool.give(at, lender, over);
            self.shift(at, index, at, lender, part - over);
            self.outcome.counts.borrowed_blocks += part - over;
        }
    }

    /// Asks lent blocks back: they go home where there is room, else to another lender. What finds no place stays.
    fn recall(&mut self, lender: usize, blocks: u64) {
        let mut left = blocks;
        for home in (0..self.instances.len()).filter(|&home| home != lender) {
            for index in 0..self.instances[home].running.len() {
                let placed = self.instances[home].running[index].placed[lender];
                let there = placed.min(left).min(self.instances[lender].link_blocks);
                if there == 0 {
                    continue;
                }
                let back = there.min(self.pool.free(home)).min(self.instances[home].link_blocks);
                self.pool.take(home, home, back).expect("at most what is free");
                self.shift(home, index, lender, home, back);
                left -= back;
                for (other, part) in self.pass_on(home, lender, there - back) {
                    self.shift(home, index, lender, other, part);
                    left -= part;
                }
            }
        }
    }

    /// Other lenders that take over a debt.
    fn pass_on(&mut self, home: usize, lender: usize, blocks: u64) -> Vec<(usize, u64)> {
        let mut parts = self.borrow(home, blocks);
        for (other, part) in &mut parts {
            // The one that asks back is no candidate, and links carry what they can.
            let kept = if *other == lender { 0 } else { (*part).min(self.instances[*other].link_blocks) };
            self.pool.give(home, *other, *part - kept);
            *part = kept;
        }
        parts
    }

    /// Notes that blocks of a running request, already taken on `to`, have left `from`.
    fn shift(&mut self, home: usize, index: usize, from: usize, to: usize, blocks: u64) {
        let placed = &mut self.instances[home].running[index].placed;
        placed[from] -= blocks;
        placed[to] += blocks;
        self.pool.give(home, from, blocks);
        for end in [from, to] {
            self.instances[end].link_blocks -= blocks;
        }
        self.outcome.counts.moved_blocks += blocks;
    }

    /// Preempts the youngest request of others that has blocks here.
    fn evict_borrower(&mut self, lender: usize) {
        let homes = (0..self.instances.len()).filter(|&home| home != lender);
        let borrowers = homes.flat_map(|home| {
            let running = self.instances[home].running.iter().enumerate();
            running.filter(|(_, live)| live.placed[lender] > 0).map(move |(index, live)| (live.admitted, home, index))
        });
        if let Some((_, home, index)) = borrowers.max() {
            self.preempt(home, index);
        }
    }

    fn preempt_youngest(&mut self, at: usize) {
        if let Some(last) = self.instances[at].running.len().checked_sub(1) {
            self.preempt(at, last);
        }
    }

    /// Takes a request's memory; it waits at the front and is computed again.
    fn preempt(&mut self, home: usize, index: usize) {
        let live = self.instances[home].running.remove(index);
        self.free(&live);
        self.instances[home].waiting.push_front(live.request);
        self.instances[home].waiting_blocks += self.prompt_blocks(live.request);
        self.outcome.counts.preempted += 1;
    }

    /// Gives all blocks of a request back.
    pub(super) fn free(&mut self, live: &Live) {
        for (from, &blocks) in live.placed.iter().enumerate() {
            self.pool.give(live.home, from, blocks);
        }
    }

    /// What the centre does at a heartbeat: cancels cycles of debt, and lets the planner move blocks.
    pub(super) fn settle(&mut self) {
        if self.cluster.sharing == Sharing::Off {
            return;
        }
        let before = self.pool.debt();
        for repayment in self.pool.repayments() {
            self.repay(repayment.debtor, repayment.lender, repayment.blocks);
        }
        let after = self.pool.debt();
        assert!(after <= before, "cancelled cycles raised the debt from {before} to {after}");
        self.outcome.counts.cancelled_blocks += before - after;
        if self.cluster.sharing == Sharing::Planned {
            self.follow_plan();
        }
    }

    /// Brings blocks of a debtor home, as many as have room now: a cycle makes room as it is paid, its first debt in pieces.
    fn repay(&mut self, debtor: usize, lender: usize, blocks: u64) {
        let links = self.instances[debtor].link_blocks.min(self.instances[lender].link_blocks);
        let mut left = blocks.min(self.pool.free(debtor)).min(links);
        for index in 0..self.instances[debtor].running.len() {
            let back = self.instances[debtor].running[index].placed[lender].min(left);
            if back > 0 {
                self.pool.take(debtor, debtor, back).expect("at most what is free");
                self.shift(debtor, index, lender, debtor, back);
                left -= back;
            }
        }
    }

    /// Plans on the loads of this moment and carries the moves out; a lender may have no room by its cap, then the move is left.
    fn follow_plan(&mut self) {
        let rates = Rates { table: self.cluster.table, exchange: self.cluster.exchange };
        for step in rates.plan(&self.loads()) {
            let wanted = step.tokens.div_ceil(self.cluster.block_tokens);
            let running = &self.instances[step.debtor].running;
            let largest = running.iter().enumerate().max_by_key(|(_, live)| live.placed[step.debtor]);
            let Some((index, most)) = largest.map(|(index, live)| (index, live.placed[step.debtor] - 1)) else {
                continue;
            };
            let links = self.instances[step.debtor].link_blocks.min(self.instances[step.lender].link_blocks);
            let blocks = wanted.min(most).min(links);
            if self.pool.take(step.debtor, step.lender, blocks).is_ok() {
                self.outcome.counts.borrowed_blocks += blocks;
                self.shift(step.debtor, index, step.debtor, step.lender, blocks);
            } else {
                self.outcome.counts.refused_loans += 1;
            }
        }
    }

    /// What the planner sees.
    fn loads(&self) -> Vec<Load> {
        let block_tokens = self.cluster.block_tokens;
        let hosted = |at: usize| {
            let others = self.instances.iter().flat_map(|instance| &instance.running).filter(|live| live.home != at);
            others.map(|live| live.placed[at] * block_tokens).sum()
        };
        let load = |(at, instance): (usize, &super::Instance)| {
            let mut remote_tokens = vec![0; self.instances.len()];
            for live in &instance.running {
                for (lender, blocks) in live.placed.iter().enumerate().filter(|(lender, _)| *lender != at) {
                    remote_tokens[lender] += blocks * block_tokens;
                }
            }
            let home = |live: &Live| live.placed[at] * block_tokens;
            let n_remote = instance.running.iter().filter(|live| live.remote() > 0).count();
            let small = |n: usize| u32::try_from(n).expect("few sequences");
            let waiting = instance.waiting.iter().take(WAITING_SEEN).map(|&request| {
                let prompt = u64::from(self.requests.list[request].prompt) + u64::from(self.generated[request]);
                self.cluster.blocks_of(prompt) * block_tokens
            });
            Load {
                n_running: small(instance.running.len()),
                own_tokens: instance.running.iter().map(home).sum(),
                hosted_tokens: hosted(at),
                remote_tokens,
                n_remote: small(n_remote),
                free_tokens: self.pool.free(at) * block_tokens,
                waiting: waiting.collect(),
                movable_tokens: instance.running.iter().map(home).max().unwrap_or(0).saturating_sub(block_tokens),
            }
        };
        self.instances.iter().enumerate().map(load).collect()
    }
}
