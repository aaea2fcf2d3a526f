//! How long one iteration of an engine takes, tabulated from a cost model so that a query is a few additions.
//!
//! An iteration of `m` tokens runs the GEMMs, norms and exchanges of every layer over all of them, prefill attention over its
//! chunks, decode attention over the cached tokens of its decoding sequences, and the head over the sequences that sample.
//! Decode attention is linear in cached tokens (`cost/decode.rs`), with other coefficients in iterations that also compute chunks, so a
//! span of iterations with one batch has a closed form. With pipeline stages or data-parallel attention an iteration is a round of
//! several batches (`lanes.rs`) and takes as long as the largest. Approximations: prefill chunks of one iteration add up as if run
//! one after another; sizes between the knots of a table are interpolated linearly, and beyond its end times are in proportion to the size; a verification
//! of drafts reads cached tokens once. Where ranks of data-parallel attention have unequal tokens of prompts, the time lies on the line between one rank
//! that has them alone and all ranks that have as many.
//! Units: ticks of 1/1024 ns, so that sums of many iterations are exact.

pub mod adapter_room;
pub mod adapters;
pub mod average;
pub mod census;
pub mod chunks;
pub mod decode_attention;
pub mod decoding;
mod drafts;
pub mod encoder;
mod ffn_side;
pub mod fusion;
pub mod graphs;
pub mod host;
pub mod host_bytes;
pub mod host_weights;
pub mod lanes;
mod law;
pub mod least;
mod ping_pong;
mod prefill;
pub mod prompt_exchange;
mod replica_config;
mod shared_experts;
mod sizes;
pub mod stages;
pub mod transit;
mod two_sides;
mod uneven;
mod writer;

pub use ffn_side::FfnSide;
pub use law::Law;
pub use replica_config::{PromptKernel, ReplicaConfig};

use hw::{Seconds, Tick};

use crate::request::Requests;
use adapters::{AdapterLoad, AdapterTicks};
use chunks::{ChunkLaw, Chunking};
use decode_attention::DecodeTicks;
pub use drafts::DraftLaw;
use drafts::{Draft, Drafting};
use encoder::Encoder;
use engine::cost::{CostModel, Source};
use engine::model::Image;
use engine::play::Case;
use engine::task::Document;
use graphs::Graphs;
use host::Host;
use lanes::{Lanes, Spread};
use ping_pong::PingPong;
use prefill::Prefill;
use sizes::{at, filled};
use stages::Stages;
use transit::Transit;
use uneven::Uneven;
use writer::Writer;

/// Time of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTable {
    /// All layers but attention, and hand-offs between stages, by tokens.
    tokens: Vec<Tick>,
    /// The same where one rank of data-parallel attention has the tokens and all others none, at most as long; empty without such ranks.
    alone: Vec<Tick>,
    /// What an iteration with prompts exchanges longer, by tokens of all ranks; empty where it exchanges as any other does.
    exchanged: Vec<Tick>,
    /// Head and sampler, by tokens that are sampled.
    head: Vec<Tick>,
    /// Decode attention of all layers.
    decode: DecodeTicks,
    prefill: Prefill,
    adapters: Option<AdapterTicks>,
    host: Host,
    lanes: Lanes,
    /// Layers of its stages, where these have not equally many.
    uneven: Option<Uneven>,
    graphs: Graphs,
    /// Tokens of a batch.
    tokens_max: u32,
    /// How prompts are cut, where not by the room of an iteration alone.
    chunking: Option<Chunking>,
    drafting: Option<Drafting>,
    /// The model that drafts, where there is one.
    draft: Option<Box<Draft>>,
    /// The encoder of images, where the model has one.
    encoder: Option<Encoder>,
    /// Attention and experts, where these have GPUs of their own; they take the place of `tokens` and go by their own law in keys.
    apart: Option<Box<PingPong>>,
    /// Times of every stage, where stages differ; they take the place of `tokens`, `decode` and `prefill`.
    stages: Option<Stages>,
    /// Weakest source among all that was asked.
    pub source: Source,
}

/// How long an iteration takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Ticks until the next one may start.
    pub ticks: Tick,
    /// Ticks that a stage computes in it, on average over stages.
    pub stage_ticks: Tick,
    /// Its micro-batches in their order; none where an iteration is one batch.
    pub transits: Vec<Transit>,
    /// The first and the last micro-batch of every chunk; none where an iteration is one batch.
    pub of_chunks: Vec<[u32; 2]>,
    /// Ticks from the start of the first of them until the next round's may start.
    pub turn: Tick,
    /// How many of these it waits for batches of earlier rounds.
    pub held_up: Tick,
}

/// One chunk of a prompt in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens whose keys and values are there already.
    pub past: u32,
    /// Tokens that are computed.
    pub new: u32,
}

/// A chunk and where it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The chunk.
    pub chunk: Chunk,
    /// Its rank of data-parallel attention, where that is known; otherwise the one with the fewest tokens takes it.
    pub rank: Option<u32>,
}

impl From<Chunk> for Placed {
    fn from(chunk: Chunk) -> Self {
        Self { chunk, rank: None }
    }
}

/// Chunks of a micro-batch of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    /// Their tokens on the fullest rank of data-parallel attention.
    chunk_tokens: u64,
    /// Tokens that all other ranks have fewer, together.
    fewer: u64,
    /// Attention of the slowest rank.
    prefill: Tick,
}

/// What an iteration holds besides its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Decoding sequences, one token each.
    pub n_decode: u32,
    /// Keys that they attend to, together.
    pub context: u64,
    /// Tokens of all chunks.
    pub n_chunk_tokens: u32,
    /// Chunks.
    pub n_chunks: u32,
    /// Sequences that sample: the decoding ones, and those whose prompt ends here.
    pub n_sampled: u32,
    /// What adapters compute beside them.
    pub adapters: AdapterLoad,
    /// Ticks until the batches of earlier rounds have left the last stage.
    pub ahead: Tick,
}

impl StepLoad {
    /// Whether the next iteration needs what this one gives: a token that somebody decodes next.
    const fn waits(&self) -> bool {
        self.n_decode > 0 || self.n_sampled > 0
    }
}

impl Round {
    /// Micro-batches that follow each other through all stages, so many of them in flight. Who waits for the tokens waits for the largest one, and for what is
    /// ahead of the first one. Chunks of prompts that go on wait for nothing but the stage before them, so the next round starts when the slowest stage has taken all.
    fn of(transits: Vec<Transit>, in_flight: u32, load: &StepLoad) -> Self {
        let all = transits.iter().copied().fold(Transit::default(), Transit::and);
        if !load.waits() {
            return Self { ticks: all.pace, stage_ticks: all.pace, turn: all.pace, transits, ..Self::default() };
        }
        let largest = transits.iter().map(|transit| transit.turn(in_flight)).max().unwrap_or_default();
        let first = transits.first().map_or(Tick::ZERO, |first| first.pace);
        let held_up = (load.ahead + first).saturating_sub(largest);
        let turn = largest + held_up;
        Self { ticks: turn, stage_ticks: all.pace, turn, transits, held_up, ..Self::default() }
    }

    /// One batch that nothing follows.
    fn alone(ticks: Tick) -> Self {
        Self { ticks, stage_ticks: ticks, ..Self::default() }
    }

    /// So many ticks more, of which a stage computes `share`, a part of a whole.
    fn and(self, ticks: Tick, (part, whole): (u64, u64)) -> Self {
        Self { ticks: self.ticks + ticks, stage_ticks: self.stage_ticks + ticks * part / whole, ..self }
    }
}

impl StepTable {
    /// Tabulates a deployment for batches of at most so many tokens and sampled tokens, at one end of the cost model's interval
    /// or as expected. More sampled tokens than tokens are those of an engine whose limit is that of prompts alone (`SGLang`): they come on top.
    pub fn new(deployment: &ReplicaConfig<'_>, sizes_max: (u32, u32), cost: &dyn CostModel, case: Case) -> Self {
        let (tokens_max, sampled_max) = sizes_max;
        let kernels = deployment.kernels(cost);
        let writer = Writer::new(deployment, kernels.as_ref(), case);
        let sampled = sampled_max.max(1) as usize;
        let of_batch = if sampled_max > tokens_max { tokens_max.saturating_add(sampled_max) } else { tokens_max };
        let lanes = deployment.lanes();
        let apart = PingPong::of(deployment, of_batch, cost, case).map(Box::new);
        let (tokens, alone) = match &apart {
            Some(apart) => apart.by_tokens(of_batch).into(),
            None => by_tokens(&writer, of_batch),
        };
        let exchanged = writer.sums_added(of_batch as usize * lanes.ranks as usize);
        let head = filled(sampled, |n| writer.head(n));
        let prefill = Prefill::of(&writer, tokens_max, cost, case);
        let adapters = deployment.adapters.as_ref().map(|room| AdapterTicks::new(&writer, room, of_batch));
        let decode = DecodeTicks::new(deployment, sampled_max.max(1), cost, case);
        let draft = Draft::of(deployment, sizes_max, cost, case).map(Box::new);
        let source =
            writer.source.get().max(decode.source).max(apart.as_ref().map_or(Source::Measured, |of| of.source));
        Self {
            tokens,
            alone,
            exchanged,
            head,
            decode,
            prefill,
            adapters,
            host: deployment.host().copying(writer.copied()),
            lanes,
            uneven: Uneven::of(&deployment.stages()),
            graphs: deployment.graphs(),
            tokens_max,
            chunking: None,
            drafting: None,
            draft,
            encoder: Encoder::new(deployment, cost, case),
            apart,
            stages: None,
            source,
        }
    }

    /// The same with prompts that are cut so.
    ///
    /// # Panics
    /// When a chunk is larger than a batch, or has no token.
    pub fn chunked(self, chunking: Chunking) -> Self {
        let Chunking { tokens_max, block, .. } = chunking;
        assert!((1..=self.tokens_max).contains(&tokens_max), "chunks of {tokens_max} tokens in {}", self.tokens_max);
        assert!(block > 0, "a block has a token");
        Self { chunking: Some(chunking), ..self }
    }

    /// The same with other host times.
    pub fn hosted(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// Every iteration takes the same time, whatever it holds: for queues that have a theory.
    pub fn constant(step: Seconds) -> Self {
        Self::linear(step, Seconds::ZERO, Seconds::ZERO)
    }

    /// A fixed part, a part per token and a part per cached token that is read.
    pub fn linear(step: Seconds, per_token: Seconds, per_cached_token: Seconds) -> Self {
        let (step, per_token) = (Tick::from_seconds(step), Tick::from_seconds(per_token));
        Self {
            tokens: (0..=1 << 16).map(|m| step + per_token * m).collect(),
            alone: Vec::new(),
            exchanged: Vec::new(),
            head: vec![Tick::ZERO; 2],
            decode: DecodeTicks::linear(Tick::from_seconds(per_cached_token)),
            prefill: Prefill::NONE,
            adapters: None,
            host: Host::default(),
            lanes: Lanes::ONE,
            uneven: None,
            graphs: Graphs::EACH,
            tokens_max: 1 << 16,
            chunking: None,
            drafting: None,
            draft: None,
            encoder: None,
            apart: None,
            stages: None,
            source: Source::Measured,
        }
    }

    /// Chunks take what a law says on each of so many stages, in batches of at most so many tokens; tokens that are decoded take what a chunk
    /// takes but for its attention.
    pub fn of_chunks(law: &ChunkLaw, stages: u32, tokens_max: u32) -> Self {
        let whole = f64::from(stages);
        let tokens = (1..=tokens_max).map(|m| Tick::from_seconds(law.linear(m) * whole));
        Self {
            tokens: std::iter::once(Tick::ZERO).chain(tokens).collect(),
            prefill: Prefill::Law { law: *law, stages },
            lanes: Lanes { stages, ranks: 1 },
            tokens_max,
            ..Self::constant(Seconds::ZERO)
        }
    }

    /// The same with an encoder that takes so much for a patch.
    #[cfg(test)]
    pub(crate) fn encoding_at(self, per_patch: Seconds) -> Self {
        Self { encoder: Some(Encoder::linear(per_patch)), ..self }
    }

    /// The same in several lanes of so many tokens each, without hand-offs.
    #[cfg(test)]
    pub(crate) fn in_lanes(self, lanes: Lanes, tokens_max: u32) -> Self {
        Self { lanes, tokens_max, ..self }
    }

    /// The same with adapters that take so long per token and per different one, up to so many tokens and adapters.
    #[cfg(test)]
    pub(crate) fn adapted(self, per_token: Tick, per_adapter: Tick, most: [u32; 2]) -> Self {
        Self { adapters: Some(AdapterTicks::linear(per_token, per_adapter, most)), ..self }
    }

    /// Batches that are under way at once.
    pub const fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// Whether the host works an iteration ahead of what it knows.
    pub fn is_asynchronous(&self) -> bool {
        self.host.engine_loop == host::EngineLoop::Asynchronous
    }

    /// Time of an iteration.
    pub fn step(&self, load: &StepLoad, chunks: impl Iterator<Item = Chunk>) -> Tick {
        self.round(load, chunks).ticks
    }

    /// An iteration with its stages.
    pub fn round(&self, load: &StepLoad, chunks: impl Iterator<Item: Into<Placed>>) -> Round {
        let (device, launches) = self.device(load, chunks.map(Into::into));
        let rate = if self.apart.is_some() { Tick::ZERO } else { self.rate_in(load.n_decode, load.n_chunks) };
        let attended = rate * load.context;
        let device = device.and(attended, self.stage_share(load.n_decode));
        let (added, least) = self.around(load);
        let ticks = device.ticks.max(launches);
        Round { ticks: (ticks + added).max(least), ..device }
    }

    /// Ticks of encoding some images on one rank of data-parallel attention; none where the model has no encoder.
    pub fn encoding(&self, images: impl Iterator<Item = Image>) -> Tick {
        self.encoder.as_ref().map_or(Tick::ZERO, |encoder| encoder.ticks(images))
    }

    /// Weakest source of what requests ask for, with images or without.
    pub fn source_of(&self, requests: &Requests) -> Source {
        let encoder = self.encoder.as_ref().filter(|_| !requests.images.is_empty());
        encoder.map_or(self.source, |encoder| self.source.max(encoder.source))
    }

    /// Least ticks of an iteration whose kernels are launched, with the drafts that no launch waits for beside: none where a graph holds it. Chunks beside
    /// decoding sequences take no kernel away.
    fn launches(&self, load: &StepLoad, batches: &[Batch]) -> Tick {
        let n_decode = self.lanes.largest(load.n_decode);
        // Each lane runs graphs of its own, and the fullest one sets the pace.
        let of_chunks = batches.iter().map(|batch| batch.chunk_tokens).max().unwrap_or(0);
        let tokens = u64::from(n_decode) * u64::from(self.tokens_per_sequence()) + of_chunks;
        let is_held = load.n_chunks > 0 && self.graphs.hold_prompts(tokens);
        let launched = self.host.launched(load.n_chunks > 0, !self.graphs.hold(n_decode));
        // Tokens are drafted before they are verified, so drafting hides no launch of the model behind it.
        // Every micro-batch launches the kernels of all layers.
        let launched = launched * self.apart.as_ref().map_or(1, |apart| apart.parts(tokens)).into();
        if is_held || launched == Tick::ZERO { Tick::ZERO } else { launched + self.drafts_of(load, batches) }
    }

    /// Whether kernels of a batch that only decodes are launched one by one.
    pub fn launches_tokens(&self, n_decode: u32) -> bool {
        !self.graphs.hold(self.lanes.largest(n_decode))
    }

    /// Tokens of a prompt's next chunk after `past` tokens in one micro-batch; all that there is room for where prompts are not cut besides.
    pub fn chunk_max(&self, past: u32) -> u32 {
        self.chunking.map_or(u32::MAX, |chunking| chunking.size(past, |past, new| self.chunk_ticks(past, new)))
    }

    /// How prompts are cut, where not by the room of an iteration alone.
    pub const fn chunking(&self) -> Option<&Chunking> {
        self.chunking.as_ref()
    }

    /// Sizes of the chunks of a prompt that is alone, where prompts are cut.
    pub fn chunks_of(&self, prompt: u32) -> Option<Vec<u32>> {
        let chunking = self.chunking?;
        Some(chunking.of_prompt(prompt, |past, new| self.chunk_ticks(past, new)))
    }

    /// Ticks that so many tokens of a prompt take at least through all stages but for attention, in batches of any size.
    pub fn least_tokens(&self, tokens: u32) -> Tick {
        let sized = self.lone().iter().enumerate().skip(1);
        let ticks = |(size, ticks): (usize, &Tick)| *ticks * u64::from(tokens) / size as u64;
        sized.map(ticks).min().unwrap_or_default()
    }

    /// Ticks of the attention of a prompt of so many tokens at least through all stages, however it is cut; nothing is said where some layers attend to less
    /// than all tokens, and where attention may hide behind experts on other GPUs.
    pub fn least_attention(&self) -> impl Fn(u32) -> f64 + use<> {
        let [start, per_pair] = if self.apart.is_some() { [0.0; 2] } else { self.prefill.least() };
        move |prompt| start + per_pair * hw::real(Document::causal(prompt.into()).pairs)
    }

    /// Ticks of a chunk by itself through all stages.
    fn chunk_ticks(&self, past: u32, new: u32) -> Tick {
        self.tokens_at(u64::from(new)) + self.prefill.ticks(Chunk { past, new })
    }

    /// Ticks per key that decoding sequences attend to; the largest lane holds its share of all keys.
    pub fn rate(&self, n_decode: u32) -> Tick {
        self.rate_in(n_decode, 0)
    }

    /// The same in an iteration with so many chunks.
    fn rate_in(&self, n_decode: u32, n_chunks: u32) -> Tick {
        let n_lane = self.lanes.largest(n_decode);
        let drafts = self.drafts_per_key(n_lane);
        let n_at_once = self.apart.as_ref().map_or(n_lane, |apart| apart.of_part(n_lane));
        let alike = self.stretched(self.decode.per_key(n_at_once, n_chunks), self.lanes.in_flight(n_decode + n_chunks));
        let whole = drafts + self.stages.as_ref().map_or(alike, |stages| stages.per_key(n_decode + n_chunks));
        if self.lanes == Lanes::ONE || n_decode == 0 {
            return whole;
        }
        let (share, n) = (u64::from(self.lanes.largest(n_decode)), u64::from(n_decode));
        (whole * share + Tick::new(n / 2)) / n
    }

    /// Host time that adds to the device's, and the least time of an iteration.
    fn around(&self, load: &StepLoad) -> (Tick, Tick) {
        let n = load.n_decode + load.n_chunks;
        self.host.added_and_least(u64::from(self.lanes.largest(n)), u64::from(self.lanes.in_flight(n)))
    }

    /// The device but for cached tokens of decoding sequences, unless experts are apart: ticks of the largest batch, and those that its launches take at least.
    fn device(&self, load: &StepLoad, chunks: impl Iterator<Item = Placed>) -> (Round, Tick) {
        if let Some(stages) = &self.stages {
            let chunks: Vec<Placed> = chunks.collect();
            let sizes = [self.tokens_max, self.tokens_per_sequence()];
            let round = stages.round(load, chunks.iter().copied(), sizes);
            let drafts = self.drafts_of(load, &self.micro_batches(load, chunks.into_iter()));
            return (round.and(drafts + self.adapters_of(load.adapters), (1, 1)), Tick::ZERO);
        }
        let (batches, of_chunks) = self.in_batches(load, chunks);
        let round = match &self.apart {
            Some(apart) => Round::alone(self.lines(apart, load, &batches[0]).at(load.context)),
            None => self.computed(load, &batches),
        };
        (Round { of_chunks, ..round }, self.launches(load, &batches))
    }

    /// What the device computes of these micro-batches.
    fn computed(&self, load: &StepLoad, batches: &[Batch]) -> Round {
        let per_sequence = u64::from(self.tokens_per_sequence());
        let n_decode = self.padded(load);
        let decode_tokens = u64::from(n_decode) * per_sequence;
        let n_sampled = self.lanes.largest(load.n_sampled).max(n_decode);
        let sampled = u64::from(n_sampled) + u64::from(n_decode) * (per_sequence - 1);
        let in_flight = self.lanes.in_flight(load.n_decode + load.n_chunks);
        let head =
            self.heads(self.head_at(sampled), self.lanes.in_flight(load.n_sampled), self.tokens_at(decode_tokens));
        let drafts = self.drafts_of(load, batches);
        let adapters = self.adapters_of(load.adapters);
        let exchanged = self.exchanged(load, n_decode);
        let of_layers = self.decode_fixed(n_decode, load.n_chunks) + adapters + exchanged;
        let rest = head + drafts + self.stretched(of_layers, in_flight);
        if self.lanes == Lanes::ONE {
            let of_batch = |batch: &Batch| self.tokens_at(self.run_as(decode_tokens, batch)) + batch.prefill;
            let ticks = batches.iter().map(of_batch).sum::<Tick>() + rest;
            return Round::alone(ticks);
        }
        let of_batch = |batch: &Batch| {
            let tokens = self.run_as(decode_tokens, batch);
            let ticks = if tokens == 0 { Tick::ZERO } else { self.uneven(tokens, batch.fewer) + batch.prefill };
            self.transit(ticks)
        };
        let transits = batches.iter().map(of_batch).collect();
        let round = Round::of(transits, in_flight, load);
        let stage_ticks = self.on_average(round.stage_ticks);
        Round { stage_ticks, ..round }.and(rest, self.stage_share(load.n_decode.max(load.n_sampled)))
    }

    /// Chunks of every micro-batch of a round; the slowest rank of each counts.
    fn micro_batches(&self, load: &StepLoad, chunks: impl Iterator<Item = Placed>) -> Vec<Batch> {
        self.in_batches(load, chunks).0
    }

    /// The same, and the first and the last micro-batch of every chunk.
    fn in_batches(&self, load: &StepLoad, chunks: impl Iterator<Item = Placed>) -> (Vec<Batch>, Vec<[u32; 2]>) {
        if self.lanes == Lanes::ONE {
            let prefill = chunks.map(|placed| self.prefill.ticks(placed.chunk)).sum();
            return (vec![Batch { chunk_tokens: load.n_chunk_tokens.into(), fewer: 0, prefill }], Vec::new());
        }
        let room = self.tokens_max.saturating_sub(self.padded(load).saturating_mul(self.tokens_per_sequence()));
        let Spread { parts, of_chunks } = self.lanes.spread(chunks, room, |past| self.chunk_max(past));
        let prefill = |part: &lanes::Part| part.chunks.iter().map(|chunk| self.prefill.ticks(*chunk)).sum::<Tick>();
        let micro_batch = |index: usize| {
            let chunk_tokens = parts.iter().map(|rank| u64::from(rank[index].n_tokens)).max().unwrap_or(0);
            let fewer = parts.iter().map(|rank| chunk_tokens - u64::from(rank[index].n_tokens)).sum();
            Batch {
                chunk_tokens,
                fewer,
                prefill: parts.iter().map(|rank| prefill(&rank[index])).max().unwrap_or_default(),
            }
        };
        ((0..self.lanes.stages as usize).map(micro_batch).collect(), of_chunks)
    }

    /// Sequences of the fullest lane that decode, with the idle ones that a graph adds.
    fn padded(&self, load: &StepLoad) -> u32 {
        let n_real = self.lanes.largest(load.n_decode);
        if load.n_chunks == 0 { self.graphs.padded(n_real) } else { n_real }
    }

    /// What adapters add to an iteration.
    fn adapters_of(&self, load: AdapterLoad) -> Tick {
        self.adapters.as_ref().map_or(Tick::ZERO, |table| table.ticks(load))
    }

    fn decode_fixed(&self, n_decode: u32, n_chunks: u32) -> Tick {
        self.decode.fixed(n_decode, n_chunks)
    }

    /// What an iteration with prompts exchanges longer than another one, with so many sequences on every rank.
    fn exchanged(&self, load: &StepLoad, n_decode: u32) -> Tick {
        if load.n_chunks == 0 || self.exchanged.is_empty() {
            return Tick::ZERO;
        }
        let decoding = n_decode * self.lanes.ranks * self.tokens_per_sequence();
        at(&self.exchanged, u64::from(load.n_chunk_tokens) + u64::from(decoding))
    }

    fn tokens_at(&self, m: u64) -> Tick {
        at(&self.tokens, m)
    }

    /// The same where all ranks but the fullest have so many tokens fewer than that one, together.
    fn uneven(&self, m: u64, fewer: u64) -> Tick {
        let even = self.tokens_at(m);
        if fewer == 0 || self.alone.is_empty() {
            return even;
        }
        let others = m * u64::from(self.lanes.ranks - 1);
        even - (even - at(&self.alone, m)) * fewer.min(others) / others
    }

    /// Ticks by tokens of a batch that is alone: other ranks of data-parallel attention, if any, have none.
    fn lone(&self) -> &[Tick] {
        if self.alone.is_empty() { &self.tokens } else { &self.alone }
    }

    fn head_at(&self, n: u64) -> Tick {
        at(&self.head, n)
    }
}

/// Ticks of batches of every size up to so many tokens: where all ranks of data-parallel attention have as many, and where all others have none.
fn by_tokens(writer: &Writer<'_>, tokens_max: u32) -> (Vec<Tick>, Vec<Tick>) {
    let even = filled(tokens_max as usize, |m| writer.layers(m));
    let alone = if writer.deployment.lanes().ranks > 1 { alone(writer, &even) } else { Vec::new() };
    (even, alone)
}

/// Ticks of batches of one rank of data-parallel attention while all others have none: never longer than where they have as much.
fn alone(writer: &Writer<'_>, even: &[Tick]) -> Vec<Tick> {
    let alone = filled(even.len() - 1, |m| writer.layers_beside(m, 1));
    alone.into_iter().zip(even).map(|(alone, even)| alone.min(*even)).collect()
}

#[cfg(test)]
mod tests;
