//! When each request was scheduled, gave its first token and ended, and how it ended.
//!
//! A client that has patience for so long gives up at a deadline; what comes later is nobody's. Units: ticks of the engine. Invariant:
//! each moment is set once, in order; `Tick::NEVER` until then. Every request ends once.

use hw::{Tick, Time};

use crate::request::{Patience, Requests};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its client has all that it asked for, or it has not ended.
    Served,
    /// Its client gave up at a deadline.
    TimedOut,
    /// Its client had enough before the end.
    Cancelled,
}

/// Moments of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    scheduled: Tick,
    first_token: Tick,
    ended: Tick,
    end: End,
    refused: Tick,
    /// Replica that served it; `u32::MAX` for a refused request.
    pub replica: u32,
    /// Times that it lost its blocks.
    pub n_preempted: u32,
    /// Tokens of its prompt that were cached when it was first served.
    pub cached_tokens: u32,
    /// Those of them that came from below the device.
    pub brought_tokens: u32,
    /// Those of them that came from the store that replicas share.
    pub remote_tokens: u32,
}

impl Record {
    /// Nothing has happened yet.
    const NEW: Self = Self {
        scheduled: Tick::NEVER,
        first_token: Tick::NEVER,
        ended: Tick::NEVER,
        end: End::Served,
        refused: Tick::NEVER,
        replica: u32::MAX,
        n_preempted: 0,
        cached_tokens: 0,
        brought_tokens: 0,
        remote_tokens: 0,
    };
}

impl Record {
    /// First iteration with a part of it began.
    pub fn scheduled(&self) -> Option<Time> {
        (self.scheduled != Tick::NEVER).then(|| self.scheduled.time())
    }

    /// First output token.
    pub fn first_token(&self) -> Option<Time> {
        (self.first_token != Tick::NEVER).then(|| self.first_token.time())
    }

    /// Last output token of a request whose client has all of them.
    pub fn finished(&self) -> Option<Time> {
        self.ended().filter(|_| self.end == End::Served)
    }

    /// Last output token that its client wanted: of all, or of as many as were enough. Tokens of a client who gave up are nobody's.
    pub fn satisfied(&self) -> Option<Time> {
        self.ended().filter(|_| self.end != End::TimedOut)
    }

    /// When it ended, whichever way.
    pub fn ended(&self) -> Option<Time> {
        (self.ended != Tick::NEVER).then(|| self.ended.time())
    }

    /// When nobody could hold it.
    pub fn refused(&self) -> Option<Time> {
        (self.refused != Tick::NEVER).then(|| self.refused.time())
    }

    /// Whether it has ended by a moment, or was refused.
    pub fn is_over(&self, now: Time) -> bool {
        self.refused().is_some() || self.ended().is_some_and(|ended| ended <= now)
    }

    /// How it ended.
    pub const fn end(&self) -> End {
        self.end
    }
}

/// Moments of all requests, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// By request.
    pub list: Vec<Record>,
    /// Ticks until which each client waits for its first token and for its last; empty where all have patience.
    deadlines: Vec<[Tick; 2]>,
    /// Whether each client has enough before the end; empty where none has.
    cancels: Vec<bool>,
    n_ended: u64,
    n_refused: u64,
    last_refusal: Tick,
    /// Requests that ended or were refused since somebody looked, and how much later their clients know; `None` where nobody looks.
    ended: Option<Vec<(u32, Tick)>>,
}

impl Records {
    /// Nothing has happened to any of the requests.
    pub fn new(requests: &Requests) -> Self {
        let n = requests.len();
        let cancels = if requests.asked.is_empty() { 0 } else { n };
        Self {
            list: vec![Record::NEW; n],
            deadlines: vec![[Tick::NEVER; 2]; if requests.has_deadlines() { n } else { 0 }],
            cancels: (0..cancels).map(|index| requests.is_cancelled(index)).collect(),
            n_ended: 0,
            n_refused: 0,
            last_refusal: Tick::ZERO,
            ended: None,
        }
    }

    /// Requests that have ended, whichever way.
    pub const fn n_ended(&self) -> u64 {
        self.n_ended
    }

    /// How many requests ended in a way.
    pub fn count(&self, end: End) -> u64 {
        self.list.iter().filter(|record| record.ended != Tick::NEVER && record.end == end).count() as u64
    }

    /// A client sends a request at a tick and waits as long as it has patience. Returns the ticks at which it may give up.
    pub fn wait(&mut self, request: u32, since: Tick, patience: &Patience) -> [Tick; 2] {
        let until = |limit: Option<hw::Span>| limit.map_or(Tick::NEVER, |span| since + Tick::from(span));
        let deadlines = [until(patience.first_token), until(patience.whole)];
        self.deadlines[request as usize] = deadlines;
        deadlines
    }

    /// The deadline that a request has missed, or will miss if nothing comes; `Tick::NEVER` where there is none.
    fn deadline(&self, request: u32) -> Tick {
        let Some(&[first, last]) = self.deadlines.get(request as usize) else { return Tick::NEVER };
        if self.list[request as usize].first_token > first { first.min(last) } else { last }
    }

    /// Whether the client of a request gives up at a tick, as far as its tokens have come.
    pub fn is_late(&self, request: u32, tick: Tick) -> bool {
        self.list[request as usize].ended == Tick::NEVER && self.deadline(request) <= tick
    }

    /// Whether the client of a request has given up at a tick by which all that came has come; notes it, the first time.
    pub fn expire(&mut self, request: u32, tick: Tick) -> bool {
        if self.is_late(request, tick) {
            self.note_end(request, (self.deadline(request), Tick::ZERO), End::TimedOut);
        }
        self.has_given_up(request)
    }

    /// Whether the client of a request is known to have given up.
    fn has_given_up(&self, request: u32) -> bool {
        let record = &self.list[request as usize];
        record.ended != Tick::NEVER && record.end == End::TimedOut
    }

    fn note_end(&mut self, request: u32, (tick, late): (Tick, Tick), end: End) {
        let record = &mut self.list[request as usize];
        assert!(record.ended == Tick::NEVER, "request {request} ends once");
        (record.ended, record.end) = (tick, end);
        self.n_ended += 1;
        self.ended.iter_mut().for_each(|ended| ended.push((request, late)));
    }

    /// Requests that were refused.
    pub const fn n_refused(&self) -> u64 {
        self.n_refused
    }

    /// Somebody looks at which requests end.
    pub fn watch(&mut self) {
        self.ended = Some(Vec::new());
    }

    /// Requests that ended or were refused since the last call, in that order, with the ticks until their clients know; none where nobody watches.
    pub fn take_ended(&mut self) -> Vec<(u32, Tick)> {
        self.ended.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Nobody looks any more.
    pub fn close(&mut self) {
        self.ended = None;
    }

    /// Notes at a tick that nobody can hold a request.
    pub fn refuse(&mut self, request: u32, tick: Tick) {
        self.n_refused += 1;
        self.list[request as usize].refused = tick;
        self.last_refusal = self.last_refusal.max(tick);
        // It is answered at once.
        self.deadlines.get_mut(request as usize).into_iter().for_each(|deadlines| *deadlines = [Tick::NEVER; 2]);
        self.ended.iter_mut().for_each(|ended| ended.push((request, Tick::ZERO)));
    }

    /// Tick at which the last request of all ended or was refused; 0 where there was none. What is paid and what is counted ends there.
    pub fn end_ticks(&self) -> Tick {
        let ended = self.list.iter().map(|record| record.ended).filter(|ended| *ended != Tick::NEVER);
        ended.fold(self.last_refusal, Tick::max)
    }

    /// Notes the replica that takes a request.
    pub fn route(&mut self, request: u32, replica: u32) {
        self.list[request as usize].replica = replica;
    }

    /// Notes the start of service, the first time only: with so many tokens cached, brought from below the device, and from the store.
    pub fn schedule(&mut self, request: u32, tick: Tick, tokens: [u32; 3]) {
        let record = &mut self.list[request as usize];
        if record.scheduled == Tick::NEVER {
            record.scheduled = tick;
            [record.cached_tokens, record.brought_tokens, record.remote_tokens] = tokens;
        }
    }

    /// Notes that a request lost its blocks.
    pub fn preempt(&mut self, request: u32) {
        self.list[request as usize].n_preempted += 1;
    }

    /// Notes the first token, the first time only: a preempted request computes it again, but the client has it.
    pub fn give_first_token(&mut self, request: u32, tick: Tick) {
        let record = &mut self.list[request as usize];
        if record.first_token == Tick::NEVER {
            record.first_token = tick;
        }
    }

    /// A replica was lost while a first token was on its way out: it counts as given now.
    pub fn lose(&mut self, request: u32, tick: Tick) {
        let record = &mut self.list[request as usize];
        if record.first_token != Tick::NEVER {
            record.first_token = record.first_token.min(tick);
        }
    }

    /// Notes the last token, which the frontend hands on so many ticks after the engine; one that comes after its client gave up is nobody's.
    ///
    /// # Panics
    /// When the request has ended before, which is a bug of the engine.
    pub fn finish(&mut self, request: u32, given: Tick, in_queue: Tick) {
        if self.has_given_up(request) {
            return;
        }
        let (deadline, tick) = (self.deadline(request), given + in_queue);
        if deadline < tick {
            let late = in_queue.min(deadline.saturating_sub(given));
            return self.note_end(request, (deadline, late), End::TimedOut);
        }
        if tick == Tick::NEVER {
            // The clock ends while the token waits in the frontend.
            return;
        }
        assert!(self.list[request as usize].first_token <= tick, "request {request} ends after its first token");
        let is_cancelled = self.cancels.get(request as usize).is_some_and(|cancels| *cancels);
        self.note_end(request, (tick, in_queue), if is_cancelled { End::Cancelled } else { End::Served });
    }
}
