//! What arrives: requests with their prompt, their output and the prefixes that they share.
//!
//! Units: tokens and `Time`. Invariants: requests are in order of arrival, every prompt and output has at least one token, and
//! prefix identities are dense numbers, each standing for `Requests::prefix_tokens` tokens and for everything before them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use engine::model::Image;
use engine::{random, stop};
use hw::{Seconds, Span, Time};

/// Most tokens that a prompt or an output may have.
pub const TOKENS_MAX: u32 = 100_000_000;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it reaches the router.
    pub arrival: Time,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens, the first one included.
    pub output: u32,
    /// First of its prefix identities in `Requests::prefix_ids`.
    pub prefix_first: u32,
    /// How many prefix identities it has.
    pub prefix_count: u32,
    /// First of its images in `Requests::images`.
    pub image_first: u32,
    /// How many images its prompt has, those of earlier turns included.
    pub image_count: u32,
}

/// An image in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Tokens of the prompt before it.
    pub at: u32,
    /// What it is to the encoder.
    pub image: Image,
}

impl Placed {
    /// Tokens of the prompt up to its last one.
    pub const fn end(&self) -> u32 {
        self.at + self.image.tokens
    }
}

impl Request {
    /// A request that shares no prefix.
    pub const fn new(arrival: Time, prompt: u32, output: u32) -> Self {
        Self { arrival, prompt, output, prefix_first: 0, prefix_count: 0, image_first: 0, image_count: 0 }
    }
}

/// How long a client waits before it gives up; without a limit it waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// For the first token.
    pub first_token: Option<Span>,
    /// For the last one.
    pub whole: Option<Span>,
}

impl Patience {
    /// Whether it ever ends.
    pub const fn ends(&self) -> bool {
        self.first_token.is_some() || self.whole.is_some()
    }
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The requests.
    pub list: Vec<Request>,
    /// Prefix identities of all requests, one request after another.
    pub prefix_ids: Vec<u32>,
    /// Prefix identities are below this number.
    pub n_prefix_ids: u32,
    /// Tokens that one prefix identity stands for; 0 where nothing is shared.
    pub prefix_tokens: u32,
    /// Images of all requests, one request after another, in the order of their prompts.
    pub images: Vec<Placed>,
    /// Stream that each request belongs to; empty where there is one.
    pub streams: Vec<u32>,
    /// Model that every stream asks for; empty where all ask for the same.
    pub models: Vec<u32>,
    /// Whether each request is a further turn of the session of the one before; empty where none is.
    pub follows: Vec<bool>,
    /// How long each request's user pauses before it; empty where nobody does.
    pub pauses: Vec<Span>,
    /// Whether a tool ran before each request, and not its user's pause; empty where none does.
    pub after_tool: Vec<bool>,
    /// Output tokens that each request asks for: more than its `output` where the client has enough after those. Empty where none has.
    pub asked: Vec<u32>,
    /// Priority of every stream, lower first; empty where none has one.
    pub priorities: Vec<u32>,
    /// How long clients of every stream wait; empty where all wait for ever.
    pub patience: Vec<Patience>,
    /// Adapter that each request asks for, from 1 on; 0 asks for the model alone. Empty where all do.
    pub adapters: Vec<u32>,
    /// Rank of every adapter, by its number less one.
    pub ranks: Vec<u32>,
}

impl Requests {
    /// Requests per second, from the first arrival to the last; `None` where all come at one moment.
    pub fn per_s(&self) -> Option<f64> {
        let lasting_s = (self.list.last()?.arrival - self.list.first()?.arrival).to_seconds().get();
        (lasting_s > 0.0).then(|| hw::real(self.list.len() as u64 - 1) / lasting_s)
    }

    /// Tokens of a sequence in the middle of its answer, on average over all.
    pub fn mean_sequence(&self) -> u64 {
        let prompts: u64 = self.list.iter().map(|request| u64::from(request.prompt)).sum();
        let answers: u64 = self.list.iter().map(|request| u64::from(request.output)).sum();
        (prompts + answers / 2).div_ceil((self.list.len() as u64).max(1)).max(1)
    }

    /// Requests that share nothing, sorted by arrival (equal arrivals keep their order).
    pub fn of(mut list: Vec<Request>) -> Self {
        list.sort_by_key(|request| request.arrival);
        Self { list, ..Self::default() }
    }

    /// Several streams in order of arrival, equal arrivals in order of the streams. What one stream shares, no other does.
    ///
    /// # Panics
    /// When prefix identities of two streams stand for different numbers of tokens.
    pub fn merged(streams: Vec<Self>) -> Self {
        let mut all: Vec<(u32, Request, [bool; 2], Span, u32, u32)> = Vec::new();
        let (has_turns, has_pauses) =
            (streams.iter().any(|part| !part.follows.is_empty()), streams.iter().any(|part| !part.pauses.is_empty()));
        let has_tools = streams.iter().any(|part| !part.after_tool.is_empty());
        let (has_cancels, has_limits) =
            (streams.iter().any(|part| !part.asked.is_empty()), streams.iter().any(Self::has_deadlines));
        let has_classes = streams.iter().any(|part| !part.priorities.is_empty());
        let has_adapters = streams.iter().any(|part| !part.adapters.is_empty());
        let mut merged = Self::default();
        for (stream, part) in (0..).zip(streams) {
            merged.patience.extend(has_limits.then(|| part.patience_of(0)));
            merged.priorities.extend(has_classes.then(|| part.priority_of(0)));
            let ids_before = u32::try_from(merged.prefix_ids.len()).expect("fewer than 2^32 identities");
            let images_before = u32::try_from(merged.images.len()).expect("fewer than 2^32 images");
            merged.images.extend(&part.images);
            let moved = |request: Request| Request {
                prefix_first: request.prefix_first + ids_before,
                image_first: request.image_first + images_before,
                ..request
            };
            let before = u32::try_from(merged.ranks.len()).expect("few adapters");
            let adapter = |at: usize| part.adapter_of(at).map_or(0, |adapter| adapter.get() + before);
            let row = |at: usize| {
                let turn = [part.is_turn(at), part.is_after_tool(at)];
                (stream, moved(part.list[at]), turn, part.pause(at), part.asked_of(at), adapter(at))
            };
            all.extend((0..part.len()).map(row));
            merged.ranks.extend(&part.ranks);
            merged.prefix_ids.extend(part.prefix_ids.iter().map(|id| id + merged.n_prefix_ids));
            merged.n_prefix_ids += part.n_prefix_ids;
            if part.prefix_tokens > 0 {
                assert!([0, part.prefix_tokens].contains(&merged.prefix_tokens), "one size of a shared prefix");
                merged.prefix_tokens = part.prefix_tokens;
            }
        }
        all.sort_by_key(|(_, request, ..)| request.arrival);
        for (stream, request, [is_turn, is_after_tool], pause, asked, adapter) in all {
            stop::pause();
            merged.streams.push(stream);
            merged.list.push(request);
            merged.follows.extend(has_turns.then_some(is_turn));
            merged.pauses.extend(has_pauses.then_some(pause));
            merged.after_tool.extend(has_tools.then_some(is_after_tool));
            merged.asked.extend(has_cancels.then_some(asked));
            merged.adapters.extend(has_adapters.then_some(adapter));
        }
        merged
    }

    /// Stream of a request, by its position.
    pub fn stream_of(&self, index: usize) -> u32 {
        self.streams.get(index).copied().unwrap_or(0)
    }

    /// Model that a request asks for, by the request's position.
    pub fn model_of(&self, index: usize) -> u32 {
        self.models.get(self.stream_of(index) as usize).copied().unwrap_or(0)
    }

    /// The requests of some streams.
    pub fn of_streams(&self, is_kept: &dyn Fn(u32) -> bool) -> Self {
        self.at(&(0..self.len()).filter(|&index| is_kept(self.stream_of(index))).collect::<Vec<_>>())
    }

    /// The requests at some positions, with all that is known of each.
    fn at(&self, kept: &[usize]) -> Self {
        fn some<T: Copy>(kept: &[usize], of: &[T]) -> Vec<T> {
            kept.iter().filter_map(|&index| of.get(index).copied()).collect()
        }
        let (adapters, ranks) = renumbered(&some(kept, &self.adapters), &self.ranks);
        Self {
            list: some(kept, &self.list),
            streams: some(kept, &self.streams),
            follows: some(kept, &self.follows),
            pauses: some(kept, &self.pauses),
            after_tool: some(kept, &self.after_tool),
            asked: some(kept, &self.asked),
            adapters,
            ranks,
            ..self.clone()
        }
    }

    /// Adapter that a request asks for, by its position; `None` asks for the model alone.
    pub fn adapter_of(&self, index: usize) -> Option<NonZeroU32> {
        self.adapters.get(index).copied().and_then(NonZeroU32::new)
    }

    /// Output tokens that a request asks for, by its position.
    pub fn asked_of(&self, index: usize) -> u32 {
        self.asked.get(index).copied().unwrap_or_else(|| self.list[index].output)
    }

    /// Whether a request's client has enough before the end, by the request's position.
    pub fn is_cancelled(&self, index: usize) -> bool {
        self.asked_of(index) > self.list[index].output
    }

    /// How long a request's client waits, by the request's position.
    pub fn patience_of(&self, index: usize) -> Patience {
        self.patience.get(self.stream_of(index) as usize).copied().unwrap_or_default()
    }

    /// Priority of a request, lower first, by its position.
    pub fn priority_of(&self, index: usize) -> u32 {
        self.priorities.get(self.stream_of(index) as usize).copied().unwrap_or(0)
    }

    /// Whether some client gives up.
    pub fn has_deadlines(&self) -> bool {
        self.patience.iter().any(Patience::ends)
    }

    /// Whether every client waits for all that it has asked for.
    pub fn is_patient(&self) -> bool {
        self.asked.is_empty() && !self.has_deadlines()
    }

    /// Whether a request counts in the figures of a run, by its position: it arrives at `from` or later, and its client does not have enough before the end.
    pub fn counts(&self, index: usize, from: Seconds) -> bool {
        self.list[index].arrival >= Time::ZERO + Span::from_seconds(from) && !self.is_cancelled(index)
    }

    /// The requests that count.
    pub fn counted(&self, from: Seconds) -> impl Iterator<Item = &Request> {
        (0..self.len()).filter(move |&index| self.counts(index, from)).map(|index| &self.list[index])
    }

    /// Lets the clients of a share of the requests have enough after a part of their output, drawn evenly from the first token on to the
    /// last but one. A request of one token has no such part.
    pub fn cancel(&mut self, share_ratio: f64, seed: u64) {
        let mut stream = random::stream(seed, "clients who have enough");
        self.asked = self.list.iter().map(|request| request.output).collect();
        for request in &mut self.list {
            stop::pause();
            let (is_drawn, part) = (stream.unit() < share_ratio, stream.next_u64());
            if is_drawn && request.output > 1 {
                request.output = 1 + u32::try_from(part % u64::from(request.output - 1)).expect("below the output");
            }
        }
    }

    /// Whether a request is a further turn of the session of the one before, by its position.
    pub fn is_turn(&self, index: usize) -> bool {
        self.follows.get(index).copied().unwrap_or(false)
    }

    /// Whether a tool ran before a request, by its position.
    pub fn is_after_tool(&self, index: usize) -> bool {
        self.after_tool.get(index).copied().unwrap_or(false)
    }

    /// How long a request's user pauses before it, or a tool runs, by the request's position.
    pub fn pause(&self, index: usize) -> Span {
        self.pauses.get(index).copied().unwrap_or(Span::ZERO)
    }

    /// Prefix identities of a request, from the first token on.
    pub fn prefix(&self, request: &Request) -> &[u32] {
        let first = request.prefix_first as usize;
        &self.prefix_ids[first..first + request.prefix_count as usize]
    }

    /// Images of a request's prompt.
    pub fn images_of(&self, request: &Request) -> &[Placed] {
        let first = request.image_first as usize;
        &self.images[first..first + request.image_count as usize]
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing arrives.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sum of prompt and of output tokens.
    pub fn tokens(&self) -> (u64, u64) {
        let sum = |of: fn(&Request) -> u32| self.list.iter().map(|request| u64::from(of(request))).sum();
        (sum(|request| request.prompt), sum(|request| request.output))
    }

    /// The requests that arrive from `start` on and before `end`, with arrivals counted from `start`.
    pub fn window(&self, start: Time, end: Time) -> Self {
        let is_inside = |index: &usize| (start..end).contains(&self.list[*index].arrival);
        let mut inside = self.at(&(0..self.len()).filter(is_inside).collect::<Vec<_>>());
        for request in &mut inside.list {
            request.arrival = Time::ZERO + (request.arrival - start);
        }
        inside
    }
}

/// Adapters of some requests, numbered from 1 without gaps: the numbers, and the ranks by number.
fn renumbered(asked: &[u32], ranks: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut numbers: BTreeMap<u32, u32> = asked.iter().filter(|asked| **asked > 0).map(|asked| (*asked, 0)).collect();
    for (number, next) in numbers.values_mut().zip(1..) {
        *number = next;
    }
    let kept = numbers.keys().map(|asked| ranks[*asked as usize - 1]).collect();
    (asked.iter().map(|asked| numbers.get(asked).copied().unwrap_or(0)).collect(), kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_starts_at_its_own_zero() {
        let at = |s: u64| Request::new(Time::from_ns(s), 1, 1);
        let requests = Requests::of(vec![at(30), at(10), at(20), at(40)]).window(Time::from_ns(20), Time::from_ns(40));
        assert_eq!(requests.list, [at(0), at(10)]);
    }

    #[test]
    fn requests_of_a_window_keep_their_streams_and_adapters() {
        let at = |s: u64| Request::new(Time::from_ns(s), 1, 1);
        let both = Requests {
            streams: vec![0, 1, 0, 1],
            adapters: vec![1, 2, 0, 3],
            ranks: vec![8, 16, 32],
            asked: vec![1, 5, 1, 2],
            ..Requests::of([10, 20, 30, 40].map(at).to_vec())
        };
        let found = both.window(Time::from_ns(20), Time::from_ns(50));
        assert_eq!((found.streams, found.asked), (vec![1, 0, 1], vec![5, 1, 2]));
        // Adapters count from 1 again.
        assert_eq!((found.adapters, found.ranks), (vec![1, 0, 2], vec![16, 32]));
    }

    #[test]
    fn streams_come_together_in_order_of_arrival_and_part_again() {
        let at = |ns: u64, prompt: u32| Request::new(Time::from_ns(ns), prompt, 1);
        let shared = Requests {
            list: vec![Request { prefix_first: 1, prefix_count: 1, ..at(20, 2) }],
            prefix_ids: vec![0, 4],
            n_prefix_ids: 5,
            prefix_tokens: 16,
            ..Requests::default()
        };
        let merged = Requests::merged(vec![Requests::of(vec![at(10, 1), at(20, 1)]), shared.clone(), shared]);
        assert_eq!(merged.list.iter().map(|request| request.prompt).collect::<Vec<_>>(), [1, 1, 2, 2]);
        assert_eq!(merged.streams, [0, 0, 1, 2]);
        let prefixes = merged.list.iter().map(|request| merged.prefix(request).to_vec()).collect::<Vec<_>>();
        assert_eq!(prefixes, [vec![], vec![], vec![4], vec![9]], "what one stream shares, no other does");
        let kept = merged.of_streams(&|stream| stream == 2);
        assert_eq!((kept.len(), kept.stream_of(0), kept.prefix(&kept.list[0])), (1, 2, &[9][..]));
    }

    #[test]
    fn kept_adapters_are_numbered_without_gaps() {
        let (numbers, ranks) = renumbered(&[5, 0, 2, 5], &[8, 16, 8, 8, 64]);
        assert_eq!((numbers, ranks), (vec![2, 0, 1, 2], vec![16, 64]));
    }
}
