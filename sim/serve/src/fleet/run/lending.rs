//! What passes between replicas that lend each other blocks: loans, blocks that are asked back or moved, and attention over them.
//!
//! A replica that lacks blocks for its next iteration asks, and is answered after all ends of that tick: what it has lent comes back, blocks of
//! its largest sequence go to lenders, borrowers with blocks on it are preempted, and who waits there borrows. At every heartbeat
//! replicas say how much is free, cycles of debt are cancelled, replicas that stop have their blocks back, and a planner may move blocks.
//! Blocks are copied in the background, between two heartbeats at most as many as a replica's link carries in that time.
//! Units: blocks, ticks. Invariants, checked at every heartbeat of a debug build: debts, what pools have lent and borrowed, and where blocks
//! of sequences lie say the same.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Run;
use crate::fleet::{Fleet, Loaned};
use crate::kv::lending::ledger::{Heartbeat, Ledger};
use crate::kv::lending::rates::{Load, Member, Rates};
use crate::kv::lending::{Borrow, Party, Terms};
use crate::replica::{Engine, Head, Lost, Neighbour, Part, Replica};
use hw::Tick;

/// Part of a replica's blocks that its largest sequence sends away at once where blocks run out.
const SENT_AWAY_PART: u32 = 64;

/// Everything between lenders and borrowers.
pub(in crate::fleet) struct Lending<'r> {
    pub(in crate::fleet) is_active: bool,
    terms: Option<&'r Terms>,
    ledger: Ledger,
    /// Blocks that a replica's link can still carry before the next heartbeat.
    links: Vec<u32>,
    /// Tick of the next heartbeat; none after the end.
    next_heartbeat: Option<Tick>,
    /// Replicas that wait for an answer, by the tick at which they asked.
    asking: BTreeSet<(Tick, u32)>,
    /// Whether lenders have gone since somebody was last found to be too long.
    has_shrunk: bool,
    pub(in crate::fleet) loaned: Loaned,
}

impl<'r> Lending<'r> {
    pub(in crate::fleet) fn new(fleet: &'r Fleet, group_of: &[u32]) -> Self {
        let terms = terms_of(fleet);
        let nodes = if let Some(terms) = terms { nodes(terms, group_of) } else { Vec::new() };
        Self {
            is_active: terms.is_some(),
            terms,
            links: vec![0; nodes.len()],
            ledger: Ledger::new(nodes),
            next_heartbeat: terms.map(|_| Tick::ZERO),
            asking: BTreeSet::new(),
            has_shrunk: false,
            loaned: Loaned::default(),
        }
    }

    pub(in crate::fleet) fn next(&self) -> Option<Tick> {
        let asked = self.asking.first().map(|(at, _)| *at);
        [asked, self.next_heartbeat].into_iter().flatten().min()
    }

    /// Nothing is to come any more.
    pub(in crate::fleet) fn end(&mut self) {
        self.next_heartbeat = None;
    }

    fn terms(&self) -> &'r Terms {
        self.terms.expect("replicas that lend")
    }

    fn party(&self, group: u32) -> &'r Party {
        &self.terms().parties[group as usize]
    }
}

/// Terms of a fleet where anybody may borrow.
fn terms_of(fleet: &Fleet) -> Option<&Terms> {
    let terms = fleet.lending.as_ref()?;
    let may = terms.borrow != Borrow::Never && terms.parties.iter().any(|party| party.borrows);
    may.then_some(terms)
}

/// Node of every replica: consecutive replicas of a group share one.
fn nodes(terms: &Terms, group_of: &[u32]) -> Vec<u32> {
    let (mut nodes, mut node, mut nth) = (Vec::new(), 0, 0);
    for (index, &group) in group_of.iter().enumerate() {
        let is_new = index > 0 && group_of[index - 1] != group;
        if is_new || nth == terms.parties[group as usize].per_node.max(1) {
            (node, nth) = (node + 1, 0);
        }
        nodes.push(node);
        nth += 1;
    }
    nodes
}

/// Replicas that take part in lending, where any does.
pub(in crate::fleet) fn equip<'a>(
    replicas: Vec<Replica<'a>>,
    fleet: &Fleet,
    of: (&[&'a Engine], &[u32]),
) -> Vec<Replica<'a>> {
    let (engines, group_of) = of;
    let Some(terms) = terms_of(fleet) else { return replicas };
    let mut neighbours = Vec::new();
    for (engine, &group) in engines.iter().zip(group_of) {
        let exchange = terms.parties[group as usize].exchange;
        neighbours.push(Neighbour { rate: engine.table.rate(1), exchange });
    }
    let neighbours: Rc<[Neighbour]> = neighbours.into();
    let mut equipped = Vec::new();
    for ((replica, &group), me) in replicas.into_iter().zip(group_of).zip(0..) {
        let party = &terms.parties[group as usize];
        let borrow = if party.borrows { terms.borrow } else { Borrow::Never };
        let takes_part = party.lent_max > 0 || borrow != Borrow::Never;
        equipped.push(if takes_part { replica.with_loans(me, borrow, Rc::clone(&neighbours)) } else { replica });
    }
    equipped
}

impl Run<'_, '_> {
    fn party_of(&self, replica: u32) -> &Party {
        self.lending.party(self.group_of[replica as usize])
    }

    /// Blocks that a replica lends at most, where it takes part.
    fn lent_max(&self, replica: u32) -> u32 {
        let most = self.party_of(replica).lent_max;
        most.min(self.replicas[replica as usize].limits().kv_blocks)
    }

    /// Notes how much every replica may count on from others.
    pub(in crate::fleet) fn count_lenders(&mut self) {
        if !self.lending.is_active {
            return;
        }
        self.lending.has_shrunk = true;
        for replica in 0..self.n_replicas() {
            if self.party_of(replica).borrows {
                let blocks = self.lendable_to(replica, true);
                self.replicas[replica as usize].may_borrow(blocks);
            }
        }
    }

    fn n_replicas(&self) -> u32 {
        u32::try_from(self.replicas.len()).expect("fewer than 2^32 replicas")
    }

    /// Blocks that others lend a replica at most: those that serve now, or those that may come back too. Of a group that scales, as many
    /// as there always are.
    pub(in crate::fleet) fn lendable_to(&self, replica: u32, is_now: bool) -> u32 {
        if !self.lending.is_active || !self.party_of(replica).borrows {
            return 0;
        }
        let mut of_group = vec![0_u32; self.fleet.groups.len()];
        let debtor = *self.party_of(replica);
        let mut blocks = 0_u32;
        for other in 0..self.n_replicas() {
            let group = self.group_of[other as usize];
            let scaling = self.fleet.groups[group as usize].scaling.as_ref();
            let least = scaling.map_or(u32::MAX, |scaling| scaling.replicas_min.max(1));
            let counts = scaling.is_some() || if is_now { self.is_up(other) } else { self.comes_back(other) };
            let of_group = &mut of_group[group as usize];
            // One of a group that scales is the replica itself.
            let is_me = u32::from(scaling.is_some() && group == self.group_of[replica as usize]);
            let counts = counts && self.party_of(other).is_counted_on_by(&debtor);
            if other != replica && counts && *of_group + is_me < least {
                *of_group += 1;
                blocks = blocks.saturating_add(self.lent_max(other));
            }
        }
        blocks
    }

    /// After anything has happened at a replica: blocks that came free elsewhere go back, lenders compute, and it may ask.
    pub(in crate::fleet) fn settle(&mut self, replica: u32, now: Tick) {
        if !self.lending.is_active {
            return;
        }
        for part in self.replicas[replica as usize].take_returned() {
            self.return_part(replica, part);
            self.wake(part.lender, now);
            self.rest(part.lender, now);
        }
        for (lender, ticks) in self.replicas[replica as usize].take_sent() {
            self.replicas[lender as usize].host(ticks);
        }
        self.note_asking(replica);
    }

    fn note_asking(&mut self, replica: u32) {
        if let Some(at) = self.replicas[replica as usize].asks() {
            self.lending.asking.insert((at, replica));
        }
    }

    fn return_part(&mut self, debtor: u32, part: Part) {
        self.lending.ledger.repay(debtor, part.lender, part.blocks);
        self.replicas[part.lender as usize].pool.take_back(part.blocks);
    }

    /// An idle replica at which somebody waits tries again.
    fn wake(&mut self, replica: u32, now: Tick) {
        if self.is_serving(replica) && self.replicas[replica as usize].ask_again(now) {
            self.note_asking(replica);
        }
    }

    /// Answers who asks, and does what is due at a heartbeat.
    pub(in crate::fleet) fn lend(&mut self, now: Tick) {
        if self.lending.next_heartbeat.is_some_and(|at| at <= now) {
            self.beat(now);
        }
        while let Some(&(at, replica)) = self.lending.asking.first().filter(|(at, _)| *at <= now) {
            self.lending.asking.remove(&(at, replica));
            // It may have been lost meanwhile.
            if self.replicas[replica as usize].asks().is_some() {
                self.provide(replica, now);
                let (end, left) = self.replicas[replica as usize].answer(now, &mut self.records);
                self.reset(replica, end);
                left.into_iter().for_each(|part| self.return_part(replica, part));
                self.collect(replica, now);
                self.rest(replica, now);
            }
        }
    }

    /// Finds blocks for the next iteration of a replica, as far as there are any.
    fn provide(&mut self, at: u32, now: Tick) {
        let needs = self.replicas[at as usize].needs();
        self.make_room(at, needs.growth, now);
        let Some(mut room) = self.free(at, now).checked_sub(needs.growth) else { return };
        for head in &needs.heads {
            if head.wanted() > room {
                let Some(found) = self.provide_for(at, head, room, now) else { return };
                room = found;
            }
            room -= head.taken();
        }
    }

    fn free(&self, replica: u32, now: Tick) -> u32 {
        self.replicas[replica as usize].free_blocks(now)
    }

    /// Finds blocks for somebody who waits, `room` of which are at home, all or none. Returns the room that there is then.
    fn provide_for(&mut self, at: u32, head: &Head, room: u32, now: Tick) -> Option<u32> {
        let kept = self.free(at, now) - room;
        let wanted = head.wanted();
        // Its own requests come first: what it has lent is asked back.
        self.recall(at, wanted - room, now);
        let room = self.free(at, now) - kept;
        let missing = wanted.saturating_sub(room);
        if missing == 0 {
            return Some(room);
        }
        // The last block is at home, and so are windows and states.
        let replica = &self.replicas[at as usize];
        if !replica.borrows_for(head) || missing + replica.limits().home_blocks() > head.blocks {
            return None;
        }
        let parts = self.borrow(at, missing, now);
        if parts.iter().map(|part| part.blocks).sum::<u32>() == missing {
            self.lending.loaned.borrowed_blocks += u64::from(missing);
            self.replicas[at as usize].promise(head.request, parts);
            return Some(wanted);
        }
        parts.into_iter().for_each(|part| self.return_part(at, part));
        None
    }

    /// Borrows up to so many blocks: asks the ledger's candidates for what they said to have; whoever has no room any more refuses.
    fn borrow(&mut self, at: u32, blocks: u32, now: Tick) -> Vec<Part> {
        let (mut left, mut parts) = (blocks, Vec::new());
        if left == 0 {
            return parts;
        }
        let debtor = *self.party_of(at);
        for lender in self.lending.ledger.candidates(at) {
            if !self.party_of(lender).may_lend_to(&debtor) {
                continue;
            }
            let lent = self.replicas[lender as usize].pool.lent();
            let may = self.lent_max(lender).saturating_sub(lent);
            let part = left.min(self.lending.ledger.free(lender)).min(may);
            if part == 0 {
                continue;
            }
            // The ledger may be old: the lender answers by what it has now.
            if !self.lend_from(lender, at, part, now) {
                self.lending.loaned.n_refused += 1;
                continue;
            }
            parts.push(Part { lender, blocks: part });
            left -= part;
            if left == 0 {
                break;
            }
        }
        parts
    }

    /// Lends blocks of a replica that are free now; false where there are not so many.
    fn lend_from(&mut self, lender: u32, debtor: u32, blocks: u32, now: Tick) -> bool {
        if !self.is_up(lender) || self.replicas[lender as usize].free_blocks(now) < blocks {
            return false;
        }
        let end = self.replicas[lender as usize].lend(blocks, now, &mut self.records);
        self.reset(lender, end);
        self.lending.ledger.lend(debtor, lender, blocks);
        self.lending.loaned.debt_max = self.lending.loaned.debt_max.max(self.lending.ledger.debt());
        true
    }

    /// Frees blocks of a replica until so many are free: asks back what it lent, sends blocks of its own away, evicts borrowers.
    fn make_room(&mut self, at: u32, wanted: u32, now: Tick) {
        let missing = wanted.saturating_sub(self.free(at, now));
        self.recall(at, missing, now);
        let missing = wanted.saturating_sub(self.free(at, now));
        if missing > 0 && self.replicas[at as usize].may_send_away() {
            let blocks = self.replicas[at as usize].limits().kv_blocks / SENT_AWAY_PART + 1;
            self.send_away(at, missing.max(blocks), now);
        }
        while self.free(at, now) < wanted && self.evict_borrower(at, now) {}
    }

    /// Moves up to so many blocks of the replica's largest sequence to lenders; the last one stays.
    fn send_away(&mut self, at: u32, blocks: u32, now: Tick) {
        let Some((id, most)) = self.replicas[at as usize].largest(now) else { return };
        let may = blocks.min(most).min(self.lending.links[at as usize]);
        for part in self.borrow(at, may, now) {
            let kept = part.blocks.min(self.lending.links[part.lender as usize]);
            self.return_part(at, Part { blocks: part.blocks - kept, ..part });
            self.shift(at, id, [None, Some(part.lender)], kept);
            self.lending.loaned.borrowed_blocks += u64::from(kept);
        }
    }

    /// Notes that blocks of a running sequence have moved, home being `None`; their new place was taken before, unless it is home.
    fn shift(&mut self, home: u32, id: u32, way: [Option<u32>; 2], blocks: u32) {
        if blocks == 0 {
            return;
        }
        let [from, to] = way;
        self.replicas[home as usize].shift(id, from, to, blocks);
        if let Some(lender) = from {
            self.return_part(home, Part { lender, blocks });
        }
        for end in way {
            self.lending.links[end.unwrap_or(home) as usize] -= blocks;
        }
        self.lending.loaned.moved_blocks += u64::from(blocks);
    }

    /// Asks lent blocks back: they go home where there is room, else to another lender. What finds no place stays.
    fn recall(&mut self, lender: u32, blocks: u32, now: Tick) {
        let mut left = blocks;
        for home in 0..self.n_replicas() {
            if left == 0 || self.replicas[lender as usize].pool.lent() == 0 {
                return;
            }
            if self.lending.ledger.owed(home, lender) == 0 {
                continue;
            }
            for (id, placed) in self.replicas[home as usize].parts_on(lender) {
                let there = placed.min(left).min(self.lending.links[lender as usize]);
                let back = there.min(self.free(home, now)).min(self.lending.links[home as usize]);
                self.shift(home, id, [Some(lender), None], back);
                left -= back + self.lend_on(home, id, lender, there - back, now);
            }
        }
    }

    /// Other lenders take over blocks of a sequence; how many.
    fn lend_on(&mut self, home: u32, id: u32, lender: u32, blocks: u32, now: Tick) -> u32 {
        let mut passed = 0;
        for part in self.borrow(home, blocks, now) {
            // Links carry what they can, and the one that asks back takes nothing.
            let may = self.lending.links[part.lender as usize];
            let kept = if part.lender == lender { 0 } else { part.blocks.min(may) };
            self.return_part(home, Part { blocks: part.blocks - kept, ..part });
            self.shift(home, id, [Some(lender), Some(part.lender)], kept);
            passed += kept;
        }
        passed
    }

    /// Preempts the youngest request of others that has blocks here; false where there is none.
    fn evict_borrower(&mut self, lender: u32, now: Tick) -> bool {
        let mut youngest = None;
        for home in 0..self.n_replicas() {
            if self.lending.ledger.owed(home, lender) > 0 {
                for (id, _) in self.replicas[home as usize].parts_on(lender) {
                    youngest = youngest.max(Some((self.replicas[home as usize].request_of(id), home, id)));
                }
            }
        }
        let Some((_, home, id)) = youngest else { return false };
        self.replicas[home as usize].evict(id);
        self.lending.loaned.n_evicted += 1;
        self.settle(home, now);
        true
    }

    /// What is due at a heartbeat.
    fn beat(&mut self, now: Tick) {
        let terms = self.lending.terms();
        self.lending.next_heartbeat = Some(now + Tick::from_seconds(terms.heartbeat).max(Tick::ONE));
        for replica in 0..self.n_replicas() {
            let exchange = self.party_of(replica).exchange;
            self.lending.links[replica as usize] = exchange.blocks_in(terms.heartbeat, terms.block_bytes);
            let heartbeat = self.heartbeat(replica, now);
            self.lending.ledger.note(replica, heartbeat);
        }
        if now > Tick::ZERO {
            self.cancel_cycles(now);
            self.empty_stopping(now);
            self.follow_plan(now);
            self.send_too_long_away(now);
            (0..self.n_replicas()).for_each(|replica| self.wake(replica, now));
        }
        if cfg!(debug_assertions) {
            self.check_books();
        }
    }

    /// What a replica says of itself.
    fn heartbeat(&self, replica: u32, now: Tick) -> Heartbeat {
        if !self.is_up(replica) || self.lent_max(replica) == 0 {
            return Heartbeat::default();
        }
        let of = &self.replicas[replica as usize];
        Heartbeat { free: of.free_blocks(now), n_waiting: of.n_waiting() }
    }

    /// Brings blocks of debtors home that owe each other in a cycle, as many as have room now: a cycle makes room as it is paid.
    fn cancel_cycles(&mut self, now: Tick) {
        let before = self.lending.ledger.debt();
        for paid in self.lending.ledger.repayments() {
            let links = &self.lending.links;
            let links = links[paid.debtor as usize].min(links[paid.lender as usize]);
            let mut left = paid.blocks.min(self.free(paid.debtor, now)).min(links);
            for (id, placed) in self.replicas[paid.debtor as usize].parts_on(paid.lender) {
                let back = placed.min(left);
                self.shift(paid.debtor, id, [Some(paid.lender), None], back);
                left -= back;
            }
        }
        self.lending.loaned.cancelled_blocks += before - self.lending.ledger.debt();
    }

    /// Replicas that are to stop have back what they lent.
    fn empty_stopping(&mut self, now: Tick) {
        for replica in 0..self.n_replicas() {
            if !self.is_up(replica) && self.is_serving(replica) {
                self.recall(replica, u32::MAX, now);
                self.rest(replica, now);
            }
        }
    }

    /// Plans on the loads of this moment and carries the moves out; a lender may have no room by its cap, then the move is left.
    fn follow_plan(&mut self, now: Tick) {
        if !self.lending.terms().plans_moves {
            return;
        }
        let mut members = Vec::new();
        for replica in 0..self.n_replicas() {
            let of = &self.fleet.groups[self.group_of[replica as usize] as usize];
            members.push(Member { table: &of.engine.table, exchange: self.party_of(replica).exchange });
        }
        for step in (Rates { members }).plan(&self.loads(now)) {
            let index = |member: usize| u32::try_from(member).expect("fewer than 2^32 replicas");
            let (debtor, lender) = (index(step.debtor), index(step.lender));
            let block_tokens = u64::from(self.replicas[step.debtor].limits().block_tokens);
            let wanted = u32::try_from(step.tokens.div_ceil(block_tokens)).unwrap_or(u32::MAX);
            let Some((id, most)) = self.replicas[step.debtor].largest(now) else { continue };
            let links = self.lending.links[step.debtor].min(self.lending.links[step.lender]);
            let blocks = wanted.min(most).min(links);
            let may = self.lent_max(lender).saturating_sub(self.replicas[step.lender].pool.lent());
            let may_lend = self.party_of(lender).may_lend_to(self.party_of(debtor));
            if may_lend && blocks <= may && self.lend_from(lender, debtor, blocks, now) {
                self.lending.loaned.borrowed_blocks += u64::from(blocks);
                self.shift(debtor, id, [None, Some(lender)], blocks);
            } else {
                self.lending.loaned.n_refused += 1;
            }
        }
    }

    /// What the planner sees.
    fn loads(&self, now: Tick) -> Vec<Load> {
        let block_tokens = |of: &Replica<'_>| u64::from(of.limits().block_tokens);
        let mut loads = Vec::new();
        for (of, replica) in self.replicas.iter().zip(0..) {
            let is_up = self.is_up(replica);
            loads.push(Load {
                lends: is_up && self.lent_max(replica) > 0,
                borrows: is_up && of.may_send_away(),
                hosted_tokens: u64::from(of.pool.lent()) * block_tokens(of),
                ..of.load(now, self.replicas.len())
            });
        }
        loads
    }

    /// Whoever is more than a replica and its lenders hold, since lenders have gone, goes back to the router.
    fn send_too_long_away(&mut self, now: Tick) {
        if !std::mem::take(&mut self.lending.has_shrunk) {
            return;
        }
        for replica in 0..self.n_replicas() {
            let lost = self.replicas[replica as usize].lose_too_long(now);
            self.send_back(lost, now);
        }
        self.try_again(now);
    }

    /// Everybody with blocks on a replica that is lost, and everybody on it.
    pub(in crate::fleet) fn lose_memory(&mut self, replica: u32, now: Tick) -> Lost {
        let mut lost = Lost::default();
        if self.lending.is_active {
            let others: Vec<u32> = (0..self.n_replicas()).filter(|home| *home != replica).collect();
            // What is on its way from there is given up where it goes before anything there is lost.
            let mut sending = self.replicas[replica as usize].sending(None);
            for home in &others {
                sending.extend(self.replicas[*home as usize].sending(Some(replica)));
            }
            self.give_up_moves(&sending, now);
            for home in others {
                if self.lending.ledger.owed(home, replica) > 0 {
                    lost.add(self.replicas[home as usize].lose_parts_on(replica, now));
                    self.settle(home, now);
                    let end = self.replicas[home as usize].interrupt(now, &mut self.records);
                    self.reset(home, end);
                    self.settle(home, now);
                }
            }
            self.lending.ledger.note(replica, Heartbeat::default());
        }
        lost.add(self.replicas[replica as usize].lose(now));
        self.settle(replica, now);
        lost
    }

    /// Debts, pools and sequences say the same.
    ///
    /// # Panics
    /// When they do not.
    fn check_books(&self) {
        let n = self.n_replicas();
        let mut lent = vec![0; self.replicas.len()];
        for home in 0..n {
            let mut borrowed = 0;
            let mut owed = vec![0; self.replicas.len()];
            for part in self.replicas[home as usize].parts() {
                owed[part.lender as usize] += part.blocks;
                lent[part.lender as usize] += part.blocks;
                borrowed += part.blocks;
            }
            for lender in 0..n {
                assert_eq!(owed[lender as usize], self.lending.ledger.owed(home, lender), "debts of {home}");
            }
            assert_eq!(borrowed, self.replicas[home as usize].pool.borrowed(), "borrowed by {home}");
        }
        for (of, lent) in self.replicas.iter().zip(lent) {
            assert_eq!(of.pool.lent(), lent, "lent");
            assert!(of.pool.is_conserved(), "blocks of a replica");
        }
    }
}
