//! A brute-force engine: vLLM V1 sequence by sequence and block by block.
//!
//! It keeps every sequence by itself, counts blocks by dividing, and moves one iteration at a time. Who comes first and who gives way it takes from vLLM's
//! `schedule` (vllm/v1/core/sched/scheduler.py). It shares with the engine only the table of iteration times.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::*;
use crate::records::End;
use crate::request::Patience;

/// A sequence of the brute-force engine.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) request: usize,
    pub(super) generated: u32,
    pub(super) cached: u32,
    /// Tokens that must be cached before the next output token.
    pub(super) target: u32,
    /// Whether its last iteration gave a token: what it computes now is one more, and no chunk of a prompt.
    pub(super) decodes: bool,
    /// Its blocks, by number.
    pub(super) blocks: Vec<usize>,
}

/// Blocks one by one: free ones in the order in which they are taken, and the sequence and place of what each holds.
struct Blocks {
    free: VecDeque<usize>,
    holds: Vec<Option<(usize, usize)>>,
    /// Whether anybody looks for what free ones hold.
    keeps: bool,
}

impl Blocks {
    /// The blocks that a sequence finds again, of those in front of its last token.
    fn found(&self, sequence: &Sequence, block_tokens: u32) -> Vec<usize> {
        let is_of = |at: usize, block: &usize| self.holds[*block] == Some((sequence.request, at));
        let most = if self.keeps { (sequence.target - 1) / block_tokens } else { 0 };
        (0..most as usize).map_while(|at| self.free.iter().copied().find(|block| is_of(at, block))).collect()
    }

    /// A sequence has so many blocks.
    fn grow(&mut self, sequence: &mut Sequence, n: u32) {
        while sequence.blocks.len() < n as usize {
            let block = self.free.pop_front().expect("a free block");
            self.holds[block] = None;
            sequence.blocks.push(block);
        }
    }

    /// A sequence gives its blocks up, the last one first; full ones hold what they held.
    fn give(&mut self, sequence: &mut Sequence, block_tokens: u32) {
        let n_full = (sequence.cached / block_tokens) as usize;
        for (at, block) in sequence.blocks.drain(..).enumerate().rev() {
            self.holds[block] = (at < n_full).then_some((sequence.request, at));
            self.free.push_back(block);
        }
    }
}

fn blocks_of(limits: &Limits, tokens: u32) -> u32 {
    if tokens == 0 { 0 } else { limits.blocks_per_sequence + tokens.div_ceil(limits.block_tokens) }
}

/// Class of a request, and its place among those of the class: the lowest comes first and the highest gives way.
fn rank(requests: &Requests, request: usize) -> (u32, usize) {
    (requests.priority_of(request), request)
}

/// Puts a sequence before everybody of a higher rank.
fn wait(requests: &Requests, waiting: &mut VecDeque<Sequence>, sequence: Sequence) {
    let own = rank(requests, sequence.request);
    waiting.insert(waiting.partition_point(|other| rank(requests, other.request) < own), sequence);
}

/// Tokens of every running sequence in the next iteration, none of those behind the last, and how many sequences lose their blocks.
fn brute_force_step(
    (requests, limits): (&Requests, &Limits),
    blocks: &mut Blocks,
    waiting: &mut VecDeque<Sequence>,
    running: &mut Vec<Sequence>,
) -> (Vec<u32>, u64) {
    // Tokens of every running sequence in this iteration, in order of admission: decodes, then chunks.
    let mut tokens: Vec<u32> = Vec::new();
    let mut lost = 0;
    let mut index = 0;
    let held = |running: &[Sequence], tokens: &[u32]| -> u32 {
        let of = |(i, s): (usize, &Sequence)| blocks_of(limits, s.cached + tokens.get(i).copied().unwrap_or(0));
        running.iter().enumerate().map(of).sum()
    };
    'turns: while index < running.len() {
        let used: u32 = tokens.iter().sum();
        let want = (running[index].target - running[index].cached).min(limits.tokens_max - used);
        tokens.push(want);
        while held(running, &tokens) > limits.kv_blocks {
            let ranks = running.iter().map(|sequence| rank(requests, sequence.request)).enumerate();
            let last = ranks.max_by_key(|(_, rank)| *rank).map(|(at, _)| at).expect("someone runs");
            let mut victim = running.remove(last);
            blocks.give(&mut victim, limits.block_tokens);
            (victim.cached, victim.decodes) = (0, false);
            wait(requests, waiting, victim);
            lost += 1;
            if last <= index {
                tokens.remove(last);
            }
            match last.cmp(&index) {
                Ordering::Less => index -= 1,
                Ordering::Equal => break 'turns,
                Ordering::Greater => {}
            }
        }
        index += 1;
    }
    for (sequence, new) in running.iter_mut().zip(&tokens) {
        let n = blocks_of(limits, sequence.cached + new);
        blocks.grow(sequence, n);
    }
    while lost == 0 && running.len() < limits.sequences_max as usize {
        let used: u32 = tokens.iter().sum();
        let Some(head) = waiting.front() else { break };
        let found = blocks.found(head, limits.block_tokens);
        let cached = u32::try_from(found.len()).expect("few") * limits.block_tokens;
        let want = (head.target - cached).min(limits.tokens_max - used);
        if want == 0 || held(running, &tokens) + blocks_of(limits, cached + want) > limits.kv_blocks {
            break;
        }
        blocks.free.retain(|block| !found.contains(block));
        let mut head = waiting.pop_front().expect("somebody waits");
        (head.cached, head.blocks) = (cached, found);
        blocks.grow(&mut head, blocks_of(limits, cached + want));
        running.push(head);
        tokens.push(want);
    }
    (tokens, lost)
}

/// When the client of a request gives up, who has had a first token or not.
fn deadline(requests: &Requests, request: usize, first: Option<Time>) -> Tick {
    let patience = requests.patience_of(request);
    let limits = [patience.whole, patience.first_token.filter(|_| first.is_none())];
    let soonest = limits.into_iter().flatten().min();
    soonest.map_or(Tick::NEVER, |limit| Tick::from(requests.list[request].arrival + limit))
}

/// First and last token that the client of a request has; `None` where it gave up before.
type Moments = [Option<Time>; 2];

/// At a look, sequences leave whose clients have given up.
fn leave(blocks: &mut Blocks, limits: &Limits, (waiting, running): Queues<'_>, late: &dyn Fn(usize) -> bool) {
    waiting.retain(|sequence| !late(sequence.request));
    for sequence in running.iter_mut().filter(|sequence| late(sequence.request)) {
        blocks.give(sequence, limits.block_tokens);
    }
    running.retain(|sequence| !late(sequence.request));
}

/// Who waits, and who runs.
type Queues<'q> = (&'q mut VecDeque<Sequence>, &'q mut Vec<Sequence>);

/// A sequence has computed so many tokens, and perhaps gives one to a client who is still there.
fn compute(requests: &Requests, sequence: &mut Sequence, new: u32, [first, last]: &mut Moments, now: Tick) {
    sequence.cached += new;
    if new == 0 || sequence.cached < sequence.target {
        return;
    }
    sequence.generated += 1;
    sequence.target += 1;
    sequence.decodes = true;
    if deadline(requests, sequence.request, *first) >= now {
        first.get_or_insert(now.time());
        let is_last = sequence.generated == requests.list[sequence.request].output;
        *last = is_last.then(|| now.time());
    }
}

/// vLLM V1 with recompute, sequence by sequence and block by block. Returns the tokens of every request, and preemptions.
fn brute_force(requests: &Requests, engine: &Engine) -> (Vec<Moments>, u64) {
    let limits = engine.limits;
    let (mut waiting, mut running): (VecDeque<Sequence>, Vec<Sequence>) = (VecDeque::new(), Vec::new());
    let (mut next, mut now, mut n_preempted) = (0, Tick::ZERO, 0);
    let n_blocks = limits.kv_blocks as usize;
    let mut blocks =
        Blocks { free: (0..n_blocks).collect(), holds: vec![None; n_blocks], keeps: limits.shares_prefixes };
    // Iterations without a chunk since the engine looked for newcomers.
    let mut since = 0;
    let mut times = vec![[None; 2]; requests.len()];
    let arrival = |index: usize| Tick::from(requests.list[index].arrival);
    loop {
        let mut is_idle = false;
        if waiting.is_empty() && running.is_empty() {
            if next == requests.len() {
                return (times, n_preempted);
            }
            is_idle = arrival(next) > now;
            now = now.max(arrival(next));
            since = 0;
        }
        if since == 0 {
            let late = |request: usize| deadline(requests, request, times[request][0]) < now;
            leave(&mut blocks, &limits, (&mut waiting, &mut running), &late);
        }
        while since == 0 && next < requests.len() && arrival(next) <= now {
            if deadline(requests, next, None) < now {
                next += 1;
                continue;
            }
            let target = requests.list[next].prompt;
            let blocks = Vec::new();
            let newcomer = Sequence { request: next, generated: 0, cached: 0, target, decodes: false, blocks };
            wait(requests, &mut waiting, newcomer);
            next += 1;
            // An idle engine starts with the first arrival, whoever comes in the same instant.
            if is_idle {
                break;
            }
        }
        if waiting.is_empty() && running.is_empty() {
            continue;
        }
        let (tokens, lost) = brute_force_step((requests, &limits), &mut blocks, &mut waiting, &mut running);
        n_preempted += lost;
        if tokens.is_empty() {
            // The first one had to give up its own blocks: nothing is under way, and the engine composes once more.
            since = 0;
            continue;
        }
        now += step_ticks(engine, &running, &tokens);
        let has_chunk = running.iter().zip(&tokens).any(|(sequence, new)| !sequence.decodes && *new > 0);
        since = if has_chunk { 0 } else { (since + 1) % engine.limits.recv_interval.get() };
        for (sequence, new) in running.iter_mut().zip(&tokens) {
            compute(requests, sequence, *new, &mut times[sequence.request], now);
            if sequence.generated == requests.list[sequence.request].output {
                blocks.give(sequence, limits.block_tokens);
            }
        }
        running.retain(|sequence| sequence.generated < requests.list[sequence.request].output);
    }
}

/// Gives requests one of three streams each, drawn.
fn with_streams(requests: &mut Requests, seed: u64) {
    let mut stream = random::stream(seed, "streams of a test");
    requests.streams = requests.list.iter().map(|_| u32::try_from(stream.below(3)).expect("small")).collect();
}

pub(super) fn step_ticks(engine: &Engine, running: &[Sequence], tokens: &[u32]) -> Tick {
    let mut load = StepLoad::default();
    let mut chunks = Vec::new();
    for (sequence, &new) in running.iter().zip(tokens) {
        if sequence.decodes {
            load.n_decode += 1;
            load.context += u64::from(sequence.cached) + 1;
        } else if new > 0 {
            chunks.push(Chunk { past: sequence.cached, new });
            load.n_chunks += 1;
            load.n_chunk_tokens += new;
        }
        let samples = new > 0 && sequence.cached + new == sequence.target;
        load.n_sampled += u32::from(samples);
    }
    engine.table.step(&load, chunks.into_iter())
}

#[test]
fn the_engine_does_what_a_brute_force_engine_does() {
    let mut preemptions = 0;
    for (kv_blocks, blocks_per_sequence, order) in [
        (1000, 0, Order::Arrival),
        (40, 0, Order::Arrival),
        (20, 0, Order::Arrival),
        (60, 7, Order::Arrival),
        (40, 0, Order::Priority),
        (20, 0, Order::Priority),
        (60, 7, Order::Priority),
    ] {
        for seed in 0..64 {
            let mut requests = requests(300, [15.0, 50.0, 150.0, 1000.0][seed as usize % 4], 100 + seed, false);
            if order == Order::Priority {
                with_streams(&mut requests, seed);
                requests.priorities = vec![1, 0, 2];
            }
            let mut engine = engine("vllm-v1", kv_blocks, Preemption::Recompute, Spans::Closed);
            engine.limits.order = order;
            engine.limits.shares_prefixes = seed % 16 < 8 || seed > 32;
            engine.limits.blocks_per_sequence = blocks_per_sequence;
            engine.limits.recv_interval = looks_every([1, 10, 3][seed as usize % 3]);
            let served = run(&requests, &engine);
            let (times, n_preempted) = brute_force(&requests, &engine);
            for (index, (record, tokens)) in served.records.list.iter().zip(&times).enumerate() {
                let found = [record.first_token(), record.finished()];
                assert_eq!(found, *tokens, "{kv_blocks} blocks, {order:?}, seed {seed}, request {index}");
            }
            assert_eq!(served.counts[0].n_preempted, n_preempted, "{kv_blocks} blocks, {order:?}, seed {seed}");
            preemptions += n_preempted;
        }
    }
    assert!(preemptions > 1000, "the cases are about preemption, found {preemptions}");
}

/// Clients of one stream stay, of another wait so long for the first token, of the third so long for all.
#[test]
fn clients_leave_as_they_leave_a_brute_force_engine() {
    let (mut n_left, mut n_preempted) = (0, 0);
    let limit = |ns: u64| Some(hw::Span::from_ns(ns));
    for (kv_blocks, order) in [(1000, Order::Arrival), (30, Order::Arrival), (30, Order::Priority)] {
        for seed in 0..96 {
            let mut requests = requests(300, [50.0, 150.0, 1000.0][seed as usize % 3], 200 + seed, false);
            with_streams(&mut requests, seed);
            let first = Patience { first_token: limit(50_000_017 + seed * 7_000_003), whole: None };
            let whole = Patience { first_token: None, whole: limit(90_000_019 + seed * 11_000_009) };
            requests.patience = vec![Patience::default(), first, whole];
            requests.priorities = if order == Order::Priority { vec![1, 0, 2] } else { Vec::new() };
            let mut engine = engine("vllm-v1", kv_blocks, Preemption::Recompute, Spans::Closed);
            (engine.limits.shares_prefixes, engine.limits.order) = (false, order);
            engine.limits.recv_interval = looks_every([1, 10, 3, 30][seed as usize % 4]);
            let served = run(&requests, &engine);
            let (times, preempted) = brute_force(&requests, &engine);
            for (index, (record, [first, last])) in served.records.list.iter().zip(&times).enumerate() {
                let (end, at) = match last {
                    Some(last) => (End::Served, *last),
                    None => (End::TimedOut, deadline(&requests, index, *first).time()),
                };
                let what = format!("{kv_blocks} blocks, {order:?}, seed {seed}, request {index}");
                assert_eq!((record.end(), record.ended()), (end, Some(at)), "{what}");
                assert!(last.is_none() || record.first_token() == *first, "{what}");
                n_left += u32::from(last.is_none());
            }
            assert_eq!(served.counts[0].n_preempted, preempted, "{kv_blocks} blocks, {order:?}, seed {seed}");
            n_preempted += preempted;
        }
    }
    assert!(n_left > 2000 && n_preempted > 200, "the cases are about leaving: {n_left} left, {n_preempted} preempted");
}
