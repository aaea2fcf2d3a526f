//! Micro-batches that go to and fro between GPUs that attend and GPUs that hold the experts (`two_sides.rs`), layer by layer: a ping-pong pipeline.
//!
//! A layer has four stations: attention, the way there, the experts, the way back. Each takes one micro-batch at a time, in order, and a micro-batch is at the
//! first one again when it has left the last one. With `L` layers, `m` micro-batches, `B` as the longest station and `S` as the sum of all four, a layer's period is
//! `P = max(m · B, S)` and an iteration takes `(L − 1) · P + S + (m − 1) · B`. That is MegaScale-Infer's (arXiv:2504.02263, section 4.1) where no way is longer
//! than the longer side, which it asks for; here a way is a station, so a slow link sets the pace. The form is exact for layers that are alike (a test plays
//! the stations one by one). Attention is linear in keys, so the time is the largest of four lines.
//!
//! Approximations: layers are alike, so their mean counts, and layers without experts lengthen the attention of all others; micro-batches are as long as the
//! largest. Units: ticks of all layers with experts together.

use hw::Tick;

use super::sizes::{at, filled};
use super::writer::Writer;
use super::{Batch, ReplicaConfig, StepLoad, StepTable};
use engine::cost::{CostModel, Source};
use engine::play::Case;

/// What a micro-batch takes at each station, in all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stations {
    attention: Tick,
    there: Tick,
    experts: Tick,
    back: Tick,
}

/// Times of the stations by the tokens of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PingPong {
    /// Layers with experts.
    n_layers: u32,
    /// Parts of a batch, where it has as many tokens.
    micro_batches: u32,
    /// Groups that attend.
    ranks: u32,
    /// All but attention to earlier tokens and the experts, by tokens of a group.
    attention: Vec<Tick>,
    /// By tokens of all groups.
    experts: Vec<Tick>,
    /// By tokens of a group.
    there: Vec<Tick>,
    back: Vec<Tick>,
    /// Weakest source.
    pub(super) source: Source,
}

/// Ticks by keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) fixed: Tick,
    pub(super) rate: Tick,
}

/// Lines of which the longest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines([Line; 4]);

impl Line {
    fn at(&self, keys: u64) -> Tick {
        self.fixed + self.rate * keys
    }

    /// Most keys for which it is no shorter than a steeper one; it is longer before.
    fn until(&self, steeper: &Self) -> u64 {
        self.fixed.saturating_sub(steeper.fixed).get() / steeper.rate.saturating_sub(self.rate).get()
    }
}

impl Lines {
    pub(super) fn at(&self, keys: u64) -> Tick {
        self.0.iter().map(|line| line.at(keys)).max().unwrap_or_default()
    }

    /// The longest at so many keys, and most keys for which it is that.
    pub(super) fn longest(&self, keys: u64) -> (Line, u64) {
        let longest = *self.0.iter().max_by_key(|line| (line.at(keys), line.rate)).expect("four lines");
        let steeper = self.0.iter().filter(|line| line.rate > longest.rate);
        (longest, steeper.map(|line| longest.until(line)).min().unwrap_or(u64::MAX))
    }

    fn and(self, ticks: Tick) -> Self {
        Self(self.0.map(|line| Line { fixed: line.fixed + ticks, ..line }))
    }
}

impl Stations {
    /// An iteration of so many layers and micro-batches. Per key of the whole batch, attention of a micro-batch takes such a part of some ticks longer.
    fn lines(self, n_layers: u32, micro_batches: u32, (per_key, part, whole): (Tick, u64, u64)) -> Lines {
        let [layers, m] = [n_layers, micro_batches].map(u64::from);
        let rest = self.there + self.experts + self.back;
        let other = self.there.max(self.experts).max(self.back);
        // How often attention counts in as many iterations as there are layers, and the rest. Whether attention or another station is the longest, and whether
        // that one or the round trip is the period.
        let all = [
            (layers * m, rest),
            (layers + m - 1, rest * layers),
            (1, rest + other * (layers * m - 1)),
            (layers, rest * layers + other * (m - 1)),
        ];
        Lines(all.map(|(times, others)| Line {
            fixed: (self.attention * times + others) / layers,
            rate: per_key * (times * part) / (layers * whole),
        }))
    }
}

impl PingPong {
    /// Of a deployment whose experts have GPUs of their own, for batches of at most so many tokens of a group.
    pub(super) fn of(
        deployment: &ReplicaConfig<'_>,
        tokens_max: u32,
        cost: &dyn CostModel,
        case: Case,
    ) -> Option<Self> {
        let (ffn, apart) = deployment.ffn.zip(deployment.of_experts())?;
        let kernels = [deployment, &apart].map(|side| side.kernels(cost));
        let attending = Writer::new(deployment, kernels[0].as_ref(), case);
        let experts = Writer::new(&apart, kernels[1].as_ref(), case);
        let tokens = tokens_max.div_ceil(ffn.micro_batches) as usize;
        let [there, back] = [0, 1].map(|way| filled(tokens, |m| attending.ways(m)[way]));
        let mut found = Self {
            n_layers: attending.n_with_experts(),
            micro_batches: ffn.micro_batches,
            ranks: ffn.attention_ranks,
            attention: filled(tokens, |m| attending.layers(m)),
            experts: filled(tokens * ffn.attention_ranks as usize, |m| experts.routed_experts(m)),
            there,
            back,
            source: Source::Measured,
        };
        found.source = attending.source.get().max(experts.source.get());
        Some(found)
    }

    /// Parts of a batch of so many tokens of a group.
    pub(super) fn parts(&self, tokens: u64) -> u32 {
        u32::try_from(tokens.max(1)).map_or(self.micro_batches, |tokens| tokens.min(self.micro_batches))
    }

    /// Sequences of a part where a group has so many.
    pub(super) const fn of_part(&self, n: u32) -> u32 {
        n.div_ceil(self.micro_batches)
    }

    /// A part of a batch of so many tokens of the fullest group, and of all groups.
    fn stations(&self, [of_group, of_all]: [u64; 2]) -> Stations {
        let m = u64::from(self.parts(of_group));
        let (own, all) = (of_group.div_ceil(m), of_all.div_ceil(m));
        Stations {
            attention: at(&self.attention, own),
            there: at(&self.there, own),
            experts: at(&self.experts, all),
            back: at(&self.back, own),
        }
    }

    /// Ticks of batches of every size up to so many tokens, without attention to earlier tokens: where all groups have as many, and where all others have none.
    pub(super) fn by_tokens(&self, tokens_max: u32) -> [Vec<Tick>; 2] {
        [self.ranks, 1].map(|n_busy| (0..=u64::from(tokens_max)).map(|m| self.of_tokens(m, n_busy.into())).collect())
    }

    /// Ticks of a batch of so many tokens of each of some groups, where all others have none.
    fn of_tokens(&self, m: u64, n_busy: u64) -> Tick {
        let lines = self.stations([m, m * n_busy]).lines(self.n_layers, self.parts(m), (Tick::ZERO, 1, 1));
        if m == 0 { Tick::ZERO } else { lines.at(0) }
    }
}

impl StepTable {
    /// Ticks of an iteration by the keys that its decoding sequences attend to together, where experts are apart.
    pub(super) fn lines(&self, apart: &PingPong, load: &StepLoad, batch: &Batch) -> Lines {
        let n_decode = self.padded(load);
        let tokens = u64::from(n_decode) + batch.chunk_tokens;
        let of_all = tokens * u64::from(apart.ranks) - batch.fewer;
        let m = apart.parts(tokens);
        let mut stations = apart.stations([tokens, of_all]);
        let decoding = self.decode_fixed(apart.of_part(n_decode), load.n_chunks);
        stations.attention = stations.attention + decoding + batch.prefill / u64::from(m);
        let n_sampled = self.lanes.largest(load.n_sampled).max(n_decode);
        // The largest part has its share of the keys of its group.
        let n_lane = self.lanes.largest(load.n_decode);
        let of_group = self.rate_in(load.n_decode, load.n_chunks);
        let per_key = (of_group, apart.of_part(n_lane).into(), n_lane.max(1).into());
        stations.lines(apart.n_layers, m, per_key).and(self.head_at(n_sampled.into()))
    }
}

mod least;

#[cfg(test)]
mod tests;
