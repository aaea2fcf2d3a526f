//! Begins an iteration of a replica, or a span of iterations with an unchanged batch, and ends it.

use std::cmp::Reverse;

use super::going::Going;
use super::loans::Elsewhere;
use super::pipeline::Passed;
use super::{Composed, Order, Phase, Replica, Role, Spans, Waiting};
use crate::frontend::Queue;
use crate::records::Records;
use crate::step_cost::{Chunk, Placed, StepLoad};
use hw::Tick;

impl Replica<'_> {
    /// Takes a request that arrives now. Returns the end of what is under way, if that is new or has moved.
    pub fn enqueue(&mut self, request: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        self.count_in(request, now);
        let goes_ahead = self.goes_ahead(request) || self.passes(request);
        let n_ahead = u64::from(self.engine.table.is_asynchronous());
        let (looks, interval) = (self.looks, self.engine.limits.recv_interval);
        let has_chunks = self.looks_behind_chunks();
        let moved = match &mut self.going {
            None => {
                self.queue(Waiting::New(request));
                return self.begin(now, records);
            }
            Some(going) => {
                let seen_after = looks.from(going.steps_until(now), has_chunks, interval) + n_ahead;
                // Behind somebody whom the host has not seen, nobody is seen.
                let is_behind = self.n_unseen > 0 && self.engine.limits.order == Order::Priority;
                let is_unseen = is_behind || seen_after > going.n_steps;
                // Who waits already cannot be admitted before the span ends, and a newcomer behind them neither.
                let has_moved = goes_ahead && seen_after < going.n_steps;
                going.n_steps = if has_moved { seen_after } else { going.n_steps };
                let end = going.end_of(seen_after);
                if is_unseen {
                    self.queue_unseen(request);
                } else {
                    self.queue(Waiting::New(request));
                }
                has_moved.then_some(end)
            }
        };
        self.note_newcomer(request, now);
        moved
    }

    /// Something has come that the next iteration should see: what is under way ends at its next boundary after `now`. Returns the end
    /// of what is under way, if that is new or has moved.
    pub(crate) fn interrupt(&mut self, now: Tick, records: &mut Records) -> Option<Tick> {
        self.count_time(now);
        match &mut self.going {
            None => self.begin(now, records),
            Some(going) if going.n_steps > 1 => {
                let n_steps = going.steps_until(now + Tick::ONE);
                let has_moved = n_steps < going.n_steps;
                going.n_steps = n_steps;
                has_moved.then(|| going.end_of(n_steps))
            }
            Some(_) => None,
        }
    }

    /// Composes and starts the next iteration or span; its end, or none when nothing is to do.
    pub fn begin(&mut self, now: Tick, records: &mut Records) -> Option<Tick> {
        assert!(self.going.is_none(), "one iteration at a time");
        if self.asks_first(now) {
            return None;
        }
        // A host that is not ahead composes with whoever it sees now.
        if !self.engine.table.is_asynchronous() {
            self.handover.ready.extend(self.handover.arrived.drain(..));
            if self.looks.now() {
                self.see_all();
            }
        }
        let mut composed = std::mem::take(&mut self.composed);
        self.compose(&mut composed, now, records);
        if composed.is_empty() && (self.has_waiting() || self.handover.has_news()) {
            // Nothing is under way, so the host sees who came last and who has left. Or blocks of a sequence that had ended came free in the attempt.
            self.let_leave(now, records);
            self.see_all();
            self.looks.idle();
            self.handover.ready.extend(self.handover.arrived.drain(..));
            self.compose(&mut composed, now, records);
        }
        composed.preempted.drain(..).for_each(|request| records.preempt(request));
        if composed.is_empty() {
            assert!(self.may_rest(), "whoever waits at an idle replica is admitted");
            self.host_at_once();
            self.looks.idle();
            self.composed = composed;
            return None;
        }
        for (id, _) in &composed.chunks {
            let entry = self.entry(*id, now);
            let slot = &mut self.slots[*id as usize];
            slot.lag.ticks = slot.lag.ticks.saturating_add(entry.signed() - now.signed());
            // What is computed before its first chunk was cached.
            records.schedule(slot.request, entry, [slot.computed, slot.below[0], slot.below[1]]);
        }
        self.newcomers.clear();
        self.pipeline.forget_places(now);
        let going = match self.flow_in(now, &composed) {
            None => self.plan(now, &mut composed),
            Some(free) => Going::once(now, free - now),
        };
        let end = going.end_of(going.n_steps);
        self.going = Some(going);
        self.composed = composed;
        self.look_as_it_begins();
        Some(end)
    }

    /// Composes an iteration of whoever the host sees.
    fn compose(&mut self, composed: &mut Composed, now: Tick, records: &mut Records) {
        composed.clear();
        self.go_on();
        self.pool.begin(now);
        match self.role() {
            Role::Decode => self.receive(composed, now, records),
            Role::Outputs => self.join_computed(now, records),
            Role::Both | Role::Prefill => {}
        }
        let batcher = self.batcher;
        batcher.compose(self, composed);
    }

    /// How long the composed iteration takes, and how often it repeats.
    fn plan(&mut self, now: Tick, composed: &mut Composed) -> Going {
        let elsewhere = self.attend_elsewhere(composed);
        let encoding = self.encode_ticks(composed);
        let table = &self.engine.table;
        let n_decode = if composed.decodes { self.n_decode } else { 0 };
        let adapters = self.adapter_load(composed);
        if composed.chunks.is_empty() {
            let is_alike = composed.returning.is_empty() && composed.transfer_ticks == Tick::ZERO;
            let is_same = composed.decodes && composed.n_preempted == 0 && is_alike;
            // What others are owed is computed once.
            let has_news = self.n_unseen > 0 || self.handover.has_news();
            let is_looked_for = has_news || !self.leaving.is_empty() || composed.gathers;
            let is_settled = is_same && elsewhere == Elsewhere::default() && !is_looked_for;
            let context = if composed.decodes { self.context - elsewhere.keys } else { 0 };
            let law = table.law_of(n_decode, adapters, context);
            let (rate, least) = (law.rate, law.least);
            let n_decode = u64::from(n_decode);
            let n_steps = if is_settled { self.span_steps().min(law.steps(context, n_decode)) } else { 1 };
            let fixed = law.fixed + composed.transfer_ticks + elsewhere.added;
            let stage_share = table.stage_share(self.n_decode);
            let going =
                Going { start: now, n_steps, fixed, rate, context, n_decode, least, n_least: 0, stage_share }.paced();
            return self.behind_chunks(going);
        }
        let load = StepLoad {
            n_decode,
            context: if composed.decodes { self.context - elsewhere.keys } else { 0 },
            n_chunk_tokens: composed.n_chunk_tokens,
            n_chunks: u32::try_from(composed.chunks.len()).expect("few chunks"),
            n_sampled: n_decode + self.n_completed(composed),
            adapters,
            ahead: self.pipeline.ahead(now),
        };
        let placed = |((id, new), rank): (&(u32, u32), &u32)| Placed {
            chunk: Chunk { past: self.slots[*id as usize].computed, new: *new },
            rank: Some(*rank),
        };
        let chunks = composed.chunks.iter().zip(&composed.on_rank).map(placed);
        let mut round = table.round(&load, chunks);
        composed.batches = std::mem::take(&mut round.of_chunks);
        // The first stage encodes while the others wait for it.
        let stage_ticks = round.stage_ticks + encoding / u64::from(table.lanes().stages);
        let stage_share = (stage_ticks.get(), (round.ticks + encoding).get().max(1));
        let step = round.ticks + encoding + composed.transfer_ticks;
        let fixed = (step + elsewhere.added).saturating_sub(elsewhere.saved);
        self.pipeline.enter(round);
        Going { stage_share, ..Going::once(now, fixed) }
    }

    /// Prompts of which an iteration has the last chunk.
    pub(super) fn n_completed(&self, composed: &Composed) -> u32 {
        let is_last = |(id, new): &&(u32, u32)| {
            let slot = &self.slots[*id as usize];
            slot.computed + new == slot.target
        };
        u32::try_from(composed.chunks.iter().filter(is_last).count()).expect("few chunks")
    }

    /// Iterations until a sequence ends or blocks run out, the composed one included. Whoever waits cannot be admitted before:
    /// its place or its blocks come free only when a sequence ends.
    fn span_steps(&self) -> u64 {
        let is_single = self.engine.spans == Spans::Stepwise || self.engine.table.acceptance().is_some();
        if is_single || self.is_stepwise() || !self.firsts.is_empty() {
            return 1;
        }
        // What a store holds, and how soon, changes with other replicas: whoever waits may fit then.
        if self.pool.has_remote() && self.has_waiting() {
            return 1;
        }
        let until_end = self.next_end() - self.step;
        let block = u64::from(self.limits().block_tokens);
        let (n, available) = (u64::from(self.n_decode), u64::from(self.pool.quiet()));
        if (until_end - 1).div_ceil(block) * n <= available {
            return until_end;
        }
        // Whole turns of the block size, then step by step.
        let turns = available / n;
        let mut left = available - turns * n;
        let mut steps = 1 + turns * block;
        while steps < until_end {
            let need = u64::from(self.phases[self.phase_of(self.step + steps)]);
            if need > left {
                break;
            }
            left -= need;
            steps += 1;
        }
        steps.min(until_end)
    }

    /// Prefixes leave the device by now that leave it during the span under way: an iteration has its blocks as it begins.
    pub(crate) fn evict_until(&mut self, now: Tick) {
        if let Some(going) = self.going.filter(|going| going.n_steps > 1) {
            let blocks = self.grown(going.steps_until(now));
            self.pool.make_free(blocks);
        }
    }

    /// Decode iteration after which the next sequence ends. Void entries are left where they are: they only make a span shorter.
    fn next_end(&self) -> u64 {
        let Reverse((end, ..)) = self.ends.peek().expect("someone decodes");
        (*end).max(self.step + 1)
    }

    /// Ends what is under way and starts what comes next. Returns the end of that.
    pub fn advance(&mut self, records: &mut Records) -> Option<Tick> {
        let going = self.going.take().expect("something is under way");
        let now = going.end_of(going.n_steps);
        self.count_time(now);
        self.count_until(&going, going.n_steps, now);
        self.count_looks(going.n_steps);
        self.count_boundaries(going.n_steps);
        let queue = self.hand_on(going.n_steps, &going);
        let mut n_verified = 0;
        if self.composed.decodes {
            self.give_firsts(queue.through(1, [going.end_of(1); 2]), records);
            match self.engine.table.acceptance() {
                None => self.decoded(going.n_steps, &going, queue),
                Some(acceptance) => n_verified = self.verified(acceptance, now),
            }
        }
        self.pool.begin(now);
        self.prefilled([going.start, now], records);
        self.finish_verified(n_verified, now, records);
        self.finish_ended(now, records);
        if !self.leaving.is_empty() && self.looks_between() {
            self.let_leave(now, records);
        }
        self.begin(now, records)
    }

    /// Counts the iterations that have ended towards the next look. A host that is ahead counted the first of them as it began.
    fn count_looks(&mut self, n_steps: u64) {
        let interval = self.engine.limits.recv_interval;
        if self.engine.table.is_asynchronous() {
            self.looks.count(n_steps - 1, false, interval);
        } else {
            self.looks.count(n_steps, !self.composed.chunks.is_empty(), interval);
        }
    }

    /// Whether what is under way has chunks of prompts behind which the host looks.
    pub(super) fn looks_behind_chunks(&self) -> bool {
        !self.composed.chunks.is_empty() && !self.engine.table.is_asynchronous()
    }

    /// Whether the host looks between what has ended and a decode iteration.
    fn looks_between(&self) -> bool {
        if self.engine.table.is_asynchronous() {
            self.looks.next(self.engine.limits.recv_interval)
        } else {
            self.looks.now()
        }
    }

    /// Counts what was under way until now, and so many iterations of it. Time behind the end of the run does not count.
    pub(super) fn count_until(&mut self, going: &Going, n_steps: u64, now: Tick) {
        let until = self.run_ends.map_or(now, |end| now.min(end.max(going.start)));
        self.counts.n_beyond += if until < now { n_steps - n_steps.min(going.steps_done(until)) } else { 0 };
        let now = until;
        self.counts.busy_ticks += now - going.start;
        self.counts.n_steps += n_steps;
        self.counts.n_spans += 1;
        if going.n_least > 0 && self.engine.table.launches_tokens(self.n_decode) {
            self.counts.launch_ticks += now - going.start;
        }
        self.count_adapters(n_steps);
        if self.engine.table.lanes().stages > 1 {
            let (part, whole) = going.stage_share;
            self.counts.stage_ticks += (now - going.start).share(part, whole);
        }
    }

    /// Every decoding sequence has `k` tokens more.
    pub(super) fn decoded(&mut self, k: u64, going: &Going, queue: Queue) {
        if let Some(log) = &mut self.token_log {
            log.span(self.step, k, going, (queue, self.pipeline.held_up()));
        }
        let is_there = self.pool.take(self.grown(k));
        assert!(is_there, "a span ends before blocks run out");
        self.promised -= u64::from(self.phases[self.phase_of(self.step)] + self.grown(k));
        self.step += k;
        self.context += k * u64::from(self.n_decode);
        self.counts.output_tokens += k * u64::from(self.n_decode - self.n_spent);
    }

    /// Blocks that decoding sequences take in `k` iterations, but for those of the first one, which were taken when it was composed.
    pub(super) fn grown(&self, k: u64) -> u32 {
        let block = u64::from(self.limits().block_tokens);
        let later = k - 1;
        let mut blocks = later / block * u64::from(self.n_decode);
        for step in self.step + 1 + later / block * block..self.step + k {
            blocks += u64::from(self.phases[self.phase_of(step)]);
        }
        u32::try_from(blocks).expect("a span ends before blocks run out")
    }

    /// Chunks of an iteration are computed; prompts that are done give their first token.
    fn prefilled(&mut self, [start, now]: [Tick; 2], records: &mut Records) {
        let chunks = std::mem::take(&mut self.composed.chunks);
        let (flow_lag, in_queue) = (self.flow_lag(now), self.in_queue(now));
        let (n_batches, mut last) = (self.composed.n_filled(), None);
        for (at, &(id, new)) in chunks.iter().enumerate() {
            self.counts.prefill_tokens += u64::from(new);
            let [first, index] = self.composed.batches_of(at);
            self.counts.n_chunks += u64::from(index - first) + 1;
            let early = self.slots[id as usize].early();
            let passed = Passed { n_before: first, n: index + 1, early };
            last = Some(Passed { n: n_batches, ..passed });
            let slot = &mut self.slots[id as usize];
            slot.computed += new;
            if slot.computed < slot.target {
                // Only its first chunk waited for a place.
                slot.lag.ticks = if slot.generated == 0 { slot.lag.ticks.min(0) } else { slot.lag.ticks };
                continue;
            }
            self.lag_behind(id, passed, start);
            let slot = &mut self.slots[id as usize];
            slot.generated += 1;
            slot.lag.ticks = slot.lag.ticks.saturating_add(flow_lag);
            let slot = *slot;
            let given = now.shifted(self.lag(&slot)) + in_queue;
            self.counts.output_tokens += 1;
            if let Some(log) = &mut self.token_log {
                log.at_once(slot.request, given, 1);
            }
            let goes_on = slot.generated < self.requests.list[slot.request as usize].output;
            if self.tells_at_end(!goes_on) {
                records.give_first_token(slot.request, given);
            }
            let index = self.prefilling.iter().position(|other| *other == id).expect("a prompt under way");
            self.prefilling.remove(index);
            self.share(id);
            if goes_on {
                match self.role() {
                    Role::Prefill => self.hand_over(id, now),
                    Role::Both | Role::Decode | Role::Outputs => self.join(id, slot.target),
                }
                continue;
            }
            self.conclude(id, now, records);
            if self.engine.table.is_asynchronous() {
                self.join(id, slot.target);
                self.spend(id);
            } else {
                let blocks = self.slots[id as usize].blocks;
                self.give_place(id, blocks, now);
                self.vacate(id, blocks);
            }
        }
        self.composed.chunks = chunks;
        last.into_iter().for_each(|passed| self.pipeline.drain(passed, [start, now]));
        let returning = std::mem::take(&mut self.composed.returning);
        for &id in &returning {
            let tokens = self.slots[id as usize].target - 1;
            self.slots[id as usize].target = tokens;
            // Prefixes that had left the device are there again for others.
            self.share(id);
            self.join(id, tokens);
            self.remember(id);
        }
        self.n_returning = 0;
        self.composed.returning = returning;
    }

    /// Keeps the prefixes of a computed prompt for others.
    pub(super) fn share(&mut self, id: u32) {
        let slot = self.slots[id as usize];
        let ids = self.prefix(&slot);
        let n_full = slot.target.checked_div(self.pool.prefix_tokens()).unwrap_or(0) as usize;
        let ids = &ids[..ids.len().min(n_full)];
        if ids.len() <= slot.shared as usize {
            return;
        }
        let most = self.publishable(id, slot.blocks) / self.pool.blocks_per_prefix();
        let ids = &ids[slot.shared as usize..];
        let turned = self.pool.publish(&ids[..ids.len().min(most as usize)]);
        let slot = &mut self.slots[id as usize];
        slot.shared += turned;
        slot.blocks -= turned * self.pool.blocks_per_prefix();
    }

    /// Keeps what a sequence of so many cached tokens said, for the next turn of its session; how many of its own blocks are shared now.
    pub(super) fn keep(&mut self, id: u32, tokens: u32, blocks: u32) -> u32 {
        let slot = self.slots[id as usize];
        let (ids, per_id) = (self.prefix(&slot), self.pool.prefix_tokens());
        // A trace names what prompts share; a session names its answers as well.
        if per_id == 0 || self.requests.follows.is_empty() {
            return 0;
        }
        let most = self.publishable(id, blocks) / self.pool.blocks_per_prefix();
        let n = ids.len().min((tokens / per_id) as usize).min((slot.shared + most) as usize);
        let turned = self.pool.publish(&ids[slot.shared as usize..n]);
        self.slots[id as usize].shared += turned;
        turned * self.pool.blocks_per_prefix()
    }

    /// Sequences whose last token is there leave, from an asynchronous engine an iteration later.
    fn finish_ended(&mut self, now: Tick, records: &mut Records) {
        while let Some(&Reverse((end, id, epoch))) = self.ends.peek() {
            let slot = self.slots[id as usize];
            let is_void = slot.epoch != epoch;
            if end > self.step && !is_void {
                break;
            }
            self.ends.pop();
            if is_void {
                continue;
            }
            if slot.phase == Phase::Decode {
                self.conclude(id, now, records);
            }
            if slot.phase == Phase::Decode && self.engine.table.is_asynchronous() {
                self.spend(id);
                self.ends.push(Reverse((end + 1, id, epoch)));
            } else {
                // Nobody knew what the last iteration of one that had ended computed.
                self.retire(id, u32::from(slot.phase == Phase::Spent), now);
            }
        }
    }

    /// A sequence that has ended leaves the batch; what it said stays for the next turn of its session, but for its last tokens of which nobody knew.
    pub(super) fn retire(&mut self, id: u32, n_unknown: u32, now: Tick) {
        let (tokens, blocks) = self.leave(id, false);
        let own = blocks - self.keep(id, tokens - n_unknown, blocks);
        self.slots[id as usize].blocks = own;
        self.give_place(id, own, now);
        self.vacate(id, own);
    }

    /// The client has its last token.
    pub(super) fn conclude(&mut self, id: u32, now: Tick, records: &mut Records) {
        let slot = self.slots[id as usize];
        records.finish(slot.request, now.shifted(self.lag(&slot)), self.in_queue(now));
        self.leaving.retain(|request| *request != slot.request);
        self.count_out(slot.request);
    }

    /// A sequence that has ended stays for one more iteration.
    pub(super) fn spend(&mut self, id: u32) {
        self.slots[id as usize].phase = Phase::Spent;
        self.n_spent += 1;
    }

    /// A slot and its blocks come free.
    pub(super) fn vacate(&mut self, id: u32, blocks: u32) {
        self.keep_no_more(id);
        let slot = self.slots[id as usize];
        self.n_spent -= u32::from(slot.phase == Phase::Spent);
        self.let_adapter_go(id);
        self.leave_rank(id);
        self.pool.give(blocks);
        self.pool.let_go(&self.prefix(&slot)[..slot.shared as usize]);
        self.give_back(id);
        let freed = &mut self.slots[id as usize];
        freed.epoch += 1;
        freed.phase = Phase::Free;
        self.free_slots.push(id);
    }

    /// A request that comes during a round enters with the next of its micro-batches that has no chunk yet, or behind all of them as soon as the first stage is
    /// free. It is composed with the next round, and its tokens are there as much earlier as its micro-batch started before that.
    fn note_newcomer(&mut self, request: u32, now: Tick) {
        let Some(going) = self.going.filter(|_| self.has_rounds()) else { return };
        let (start, end) = (going.end_of(going.n_steps - 1), going.end_of(going.n_steps));
        if now < start {
            return;
        }
        if let Some(entry) = self.next_entry(now, [start, end], self.composed.n_filled()) {
            self.newcomers.push((request, entry));
        }
    }

    /// Adds up requests in the system over time.
    pub(super) fn count_time(&mut self, now: Tick) {
        self.counts.request_ticks += (now - self.outstanding_since).of_each(self.outstanding);
        self.outstanding_since = now;
    }
}
