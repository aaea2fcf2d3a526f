//! When each request was scheduled, gave its first token and ended.
//!
//! Units: ticks of the engine. Invariant: each moment is set once, in order; `NEVER` until then.

use hw::Time;

use crate::step_cost::time_of;

/// A moment that has not come.
const NEVER: u64 = u64::MAX;

/// Moments of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    scheduled: u64,
    first_token: u64,
    finished: u64,
    /// Replica that served it; `u32::MAX` for a refused request.
    pub replica: u32,
    /// Times that it lost its blocks.
    pub n_preempted: u32,
    /// Tokens of its prompt that were cached when it was first served.
    pub cached_tokens: u32,
}

impl Record {
    /// Nothing has happened yet.
    const NEW: Self = Self {
        scheduled: NEVER,
        first_token: NEVER,
        finished: NEVER,
        replica: u32::MAX,
        n_preempted: 0,
        cached_tokens: 0,
    };
}

impl Record {
    /// First iteration with a part of it began.
    #[must_use]
    pub fn scheduled(&self) -> Option<Time> {
        (self.scheduled != NEVER).then(|| time_of(self.scheduled))
    }

    /// First output token.
    #[must_use]
    pub fn first_token(&self) -> Option<Time> {
        (self.first_token != NEVER).then(|| time_of(self.first_token))
    }

    /// Last output token.
    #[must_use]
    pub fn finished(&self) -> Option<Time> {
        (self.finished != NEVER).then(|| time_of(self.finished))
    }
}

/// Moments of all requests, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// By request.
    pub list: Vec<Record>,
    n_finished: u64,
    n_refused: u64,
    /// Requests that ended or were refused since somebody looked; `None` where nobody does.
    ended: Option<Vec<u32>>,
}

impl Records {
    /// Nothing has happened to any of `n` requests.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self { list: vec![Record::NEW; n], n_finished: 0, n_refused: 0, ended: None }
    }

    /// Requests that have ended.
    #[must_use]
    pub const fn n_finished(&self) -> u64 {
        self.n_finished
    }

    /// Requests that were refused.
    #[must_use]
    pub const fn n_refused(&self) -> u64 {
        self.n_refused
    }

    /// Somebody looks at which requests end.
    pub fn watch(&mut self) {
        self.ended = Some(Vec::new());
    }

    /// Requests that ended or were refused since the last call, in that order; none where nobody watches.
    pub fn take_ended(&mut self) -> Vec<u32> {
        self.ended.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Nobody looks any more.
    pub fn close(&mut self) {
        self.ended = None;
    }

    /// Notes that nobody can hold a request.
    pub fn refuse(&mut self, request: u32) {
        self.n_refused += 1;
        self.ended.iter_mut().for_each(|ended| ended.push(request));
    }

    /// Tick of the last token of all; 0 where nothing was served.
    #[must_use]
    pub fn end_ticks(&self) -> u64 {
        self.list.iter().map(|record| record.finished).filter(|finished| *finished != NEVER).max().unwrap_or(0)
    }

    /// Notes the replica that takes a request.
    pub fn route(&mut self, request: u32, replica: u32) {
        self.list[request as usize].replica = replica;
    }

    /// Notes the start of service with so many tokens cached, the first time only.
    pub fn schedule(&mut self, request: u32, tick: u64, cached_tokens: u32) {
        let record = &mut self.list[request as usize];
        if record.scheduled == NEVER {
            (record.scheduled, record.cached_tokens) = (tick, cached_tokens);
        }
    }

    /// Notes that a request lost its blocks.
    pub fn preempt(&mut self, request: u32) {
        self.list[request as usize].n_preempted += 1;
    }

    /// Notes the first token, the first time only: a preempted request computes it again, but the client has it.
    pub fn give_first_token(&mut self, request: u32, tick: u64) {
        let record = &mut self.list[request as usize];
        if record.first_token == NEVER {
            record.first_token = tick;
        }
    }

    /// A replica was lost while a first token was on its way out: it counts as given now.
    pub fn lose(&mut self, request: u32, tick: u64) {
        let record = &mut self.list[request as usize];
        if record.first_token != NEVER {
            record.first_token = record.first_token.min(tick);
        }
    }

    /// Notes the last token.
    ///
    /// # Panics
    /// When the request has ended before, which is a bug of the engine.
    pub fn finish(&mut self, request: u32, tick: u64) {
        let record = &mut self.list[request as usize];
        assert!(record.finished == NEVER, "request {request} ends once");
        assert!(record.first_token <= tick, "request {request} ends after its first token");
        record.finished = tick;
        self.n_finished += 1;
        self.ended.iter_mut().for_each(|ended| ended.push(request));
    }
}
