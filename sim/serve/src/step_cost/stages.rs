//! Replicas whose stages differ in GPUs, tensor degree or layers: times of every stage by itself, from a law of each.
//!
//! In *rounds* every stage works on another micro-batch (`lanes.rs`), so a round takes as long as a micro-batch needs for all stages, or
//! as all micro-batches in flight need for the slowest one, whichever is longer; both are taken term by term, which is never too short. A round whose tokens
//! nobody waits for takes as long as the slowest stage needs for all of its batches.
//! In a *flow* nothing comes back, as on a replica that only reads prompts: a batch enters when the first stage is free and leaves in
//! order (`replica/flow.rs`). Drafts and adapters come on top (`drafts.rs`, `adapters.rs`). Units: ticks, tokens, pairs of a query and a key. Not modelled
//! here: a head, host times.

use engine::cost::Source;
use engine::task::Document;
use hw::{Seconds, Tick};

use super::adapters::AdapterLoad;
use super::lanes::Lanes;
use super::sizes::{at, filled};
use super::transit::Transit;
use super::{Chunk, Placed, Round, StepLoad, StepTable};

/// How long a stage takes.
pub struct StageLaw<'l> {
    /// Seconds of all its layers for so many tokens, but for attention.
    pub tokens: &'l dyn Fn(u64) -> Seconds,
    /// Seconds of prefill attention per pair of a query and a key.
    pub per_pair: Seconds,
    /// Seconds of decode attention per cached key.
    pub per_key: Seconds,
    /// Seconds from here to the next stage for so many tokens; zero behind the last.
    pub hand_over: &'l dyn Fn(u64) -> Seconds,
}

/// How batches go through the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Every sequence comes back for its next token.
    Rounds,
    /// Nothing comes back.
    Flow,
}

/// Times of a stage.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    tokens: Vec<Tick>,
    hand_over: Vec<Tick>,
    /// Ticks per pair of a query and a key.
    per_pair: f64,
    /// Ticks per cached key.
    per_key: Tick,
}

/// What a batch weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    tokens: u64,
    /// Pairs of a query and a key in its chunks.
    pairs: u64,
}

impl Weight {
    fn of(decoding: u32, chunks: impl Iterator<Item = Chunk>) -> Self {
        let mut weight = Self { tokens: u64::from(decoding), pairs: 0 };
        for chunk in chunks {
            weight.tokens += u64::from(chunk.new);
            weight.pairs += Document::chunk(u64::from(chunk.past), u64::from(chunk.new)).pairs;
        }
        weight
    }
}

impl Table {
    fn new(law: &StageLaw<'_>, tokens_max: u32) -> Self {
        Self {
            tokens: filled(tokens_max as usize, law.tokens),
            hand_over: filled(tokens_max as usize, law.hand_over),
            per_pair: Tick::unrounded(law.per_pair),
            per_key: Tick::from_seconds(law.per_key),
        }
    }

    fn busy(&self, weight: Weight) -> Tick {
        at(&self.tokens, weight.tokens) + Tick::from_f64(self.per_pair * hw::real(weight.pairs))
    }

    fn hand_over(&self, weight: Weight) -> Tick {
        at(&self.hand_over, weight.tokens)
    }
}

/// Times of all stages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stages {
    tables: Vec<Table>,
    passage: Passage,
}

impl Stages {
    pub(super) fn new(laws: &[StageLaw<'_>], passage: Passage, tokens_max: u32) -> Self {
        assert!(!laws.is_empty(), "a replica has a stage");
        Self { tables: laws.iter().map(|law| Table::new(law, tokens_max)).collect(), passage }
    }

    /// Whether batches only go through.
    pub(super) fn flows(&self) -> bool {
        self.passage == Passage::Flow && self.tables.len() > 1
    }

    /// Batches under way at once.
    pub(super) fn lanes(&self) -> Lanes {
        let stages = if self.passage == Passage::Flow { 1 } else { self.tables.len() };
        Lanes { stages: u32::try_from(stages).expect("few stages"), ranks: 1 }
    }

    /// A round but for cached keys: so many tokens of each decoding sequence, and of chunks as many as there is room for beside them in a micro-batch.
    pub(super) fn round(
        &self,
        load: &StepLoad,
        chunks: impl Iterator<Item = Placed>,
        [tokens_max, per_sequence]: [u32; 2],
    ) -> Round {
        let lanes = self.lanes();
        let decoding = lanes.largest(load.n_decode).saturating_mul(per_sequence);
        let room = tokens_max.saturating_sub(decoding);
        let spread = lanes.spread(chunks, room, |_| u32::MAX);
        let weights = spread.parts[0].iter().map(|part| Weight::of(decoding, part.chunks.iter().copied()));
        let round = Round::of(
            weights.map(|weight| self.transit(weight)).collect(),
            lanes.in_flight(load.n_decode + load.n_chunks),
            load,
        );
        Round { stage_ticks: round.ticks, of_chunks: spread.of_chunks, ..round }
    }

    fn transit(&self, weight: Weight) -> Transit {
        let whole: Tick = self.tables.iter().map(|table| table.busy(weight) + table.hand_over(weight)).sum();
        let pace = self.tables.iter().map(|table| table.busy(weight)).max().unwrap_or_default();
        Transit { pace, fill: whole - pace }
    }

    /// Ticks per cached key of the largest micro-batch, with so many in flight.
    pub(super) fn per_key(&self, n_decode: u32) -> Tick {
        let in_flight = u64::from(self.lanes().in_flight(n_decode));
        let all: Tick = self.tables.iter().map(|table| table.per_key).sum();
        let most = self.tables.iter().map(|table| table.per_key).max().unwrap_or_default();
        all.max(most * in_flight)
    }

    /// Ticks of a batch of chunks at every stage, and from there to the next.
    pub(super) fn steps<'s>(&'s self, chunks: impl Iterator<Item = Chunk>) -> impl Iterator<Item = (Tick, Tick)> + 's {
        let weight = Weight::of(0, chunks);
        self.tables.iter().map(move |table| (table.busy(weight), table.hand_over(weight)))
    }
}

impl StepTable {
    /// From a law of each stage, for batches of at most so many tokens.
    pub fn of_stages(laws: &[StageLaw<'_>], passage: Passage, tokens_max: u32, source: Source) -> Self {
        let stages = Stages::new(laws, passage, tokens_max);
        let lanes = stages.lanes();
        Self {
            tokens: vec![Tick::ZERO; 2],
            lanes,
            tokens_max,
            stages: Some(stages),
            source,
            ..Self::constant(Seconds::ZERO)
        }
    }

    /// Whether batches go through several stages and do not come back.
    pub fn flows(&self) -> bool {
        self.stages.as_ref().is_some_and(Stages::flows)
    }

    /// Ticks of a batch of chunks at every stage, and from there to the next. Each stage has its part of the adapters, the last one the draft model.
    ///
    /// # Panics
    /// Where stages are alike.
    pub fn stage_steps(&self, chunks: &[Chunk], adapters: AdapterLoad) -> Vec<(Tick, Tick)> {
        let stages = self.stages.as_ref().expect("stages with times of their own");
        let mut steps: Vec<(Tick, Tick)> = stages.steps(chunks.iter().copied()).collect();
        let of_adapters = self.adapters_of(adapters) / steps.len() as u64;
        steps.iter_mut().for_each(|(busy, _)| *busy += of_adapters);
        if let Some((busy, _)) = steps.last_mut() {
            *busy += self.drafts_of_chunks(chunks.iter().map(|chunk| chunk.new.into()));
        }
        steps
    }
}
