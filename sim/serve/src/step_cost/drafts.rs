//! What speculative decoding adds to an iteration: passes of what drafts, before the pass that verifies.
//!
//! A draft that reads the model's states has those of a token once it is verified. So its first pass takes all tokens of a verification, and each later
//! one takes what a step adds: one token of a sequence, or as many as a tree has branches. Units: ticks, tokens, sequences.

use super::decode_attention::DecodeTicks;
use super::host::RoundLaunches;
use super::lanes::Lanes;
use super::least::least_of;
use super::writer::Writer;
use super::{Batch, ReplicaConfig, StepLoad, StepTable, at, filled};
use crate::speculation::{Acceptance, DraftKind, Speculation};
use engine::cost::CostModel;
use engine::play::Case;
use hw::{Seconds, Tick};

/// How tokens are drafted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drafting {
    speculation: Speculation,
    acceptance: Acceptance,
}

/// How long a model that drafts takes, where no cost model says it.
pub struct DraftLaw<'l> {
    /// Seconds of a pass over so many tokens but for cached keys.
    pub tokens: &'l dyn Fn(u64) -> Seconds,
    /// Seconds per cached key of a pass.
    pub per_key: Seconds,
    /// Whether it reads the states of the model that it drafts for.
    pub reads_states: bool,
}

/// A model that drafts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draft {
    /// Its own table.
    table: StepTable,
    /// Whether it reads the states of the model that it drafts for.
    reads_states: bool,
    /// Ticks of making one state of several, by tokens.
    fused_states: Vec<Tick>,
    /// What the host launches between its passes.
    launches: RoundLaunches,
}

impl Draft {
    /// Of a deployment whose batches have at most so many tokens and sampled tokens.
    pub(super) fn of(
        deployment: &ReplicaConfig<'_>,
        sizes_max: (u32, u32),
        cost: &dyn CostModel,
        case: Case,
    ) -> Option<Self> {
        let draft = deployment.of_draft()?;
        let kernels = draft.kernels(cost);
        let writer = Writer::new(&draft, kernels.as_ref(), case);
        let tokens_max = sizes_max.0.saturating_add(sizes_max.1) as usize;
        Some(Self {
            table: StepTable::new(&draft, sizes_max, cost, case),
            reads_states: draft.drafts_as.is_some_and(DraftKind::reads_states),
            fused_states: filled(tokens_max, |m| writer.fused_states(m)),
            launches: deployment.round_launches,
        })
    }

    /// By a law, for batches of at most so many tokens.
    fn of_law(law: &DraftLaw<'_>, tokens_max: u32) -> Self {
        let table = StepTable {
            tokens: filled(tokens_max as usize, law.tokens),
            decode: DecodeTicks::linear(Tick::from_seconds(law.per_key)),
            ..StepTable::constant(Seconds::ZERO)
        };
        let (fused_states, launches) = (vec![Tick::ZERO; 2], RoundLaunches::NONE);
        Self { table, reads_states: law.reads_states, fused_states, launches }
    }

    /// Ticks of its layers for tokens whose states the model has just computed.
    fn first_tokens(&self, m: u64) -> Tick {
        self.table.tokens_at(m) + at(&self.fused_states, m)
    }

    /// Ticks of its passes for so many sequences, one after another, and of the host between them.
    fn passes(&self, n_decode: u32, speculation: &Speculation) -> Tick {
        let (n, table) = (u64::from(n_decode), &self.table);
        let n_first = if self.reads_states { n * u64::from(speculation.n_verified()) } else { n };
        let n_later = n * u64::from(speculation.tree.map_or(1, |tree| tree.branches));
        let pass = |tokens: Tick, n_sampled: u64| {
            let kernels = tokens + table.head_at(n_sampled) + table.decode_fixed(n_decode, 0);
            kernels.max(table.host.launched(false, !table.graphs.hold(n_decode)))
        };
        let n_passes = speculation.n_drafts.saturating_sub(1);
        let later = pass(table.tokens_at(n_later), n_later) * u64::from(n_passes);
        let [waited, beside] = self.launches.times(n_passes);
        waited + pass(self.first_tokens(n_first), n) + later.max(beside)
    }
}

/// Least ticks of drafting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LeastDrafts {
    /// For a sequence of a batch.
    pub(super) sequence: f64,
    /// For a batch.
    pub(super) iteration: f64,
    /// For a token of a prompt.
    pub(super) prompt_token: f64,
}

impl StepTable {
    /// The same with tokens that are drafted and verified.
    pub fn speculating(self, speculation: &Speculation) -> Self {
        let drafting = Drafting { speculation: *speculation, acceptance: Acceptance::new(speculation) };
        Self { drafting: Some(drafting), ..self }
    }

    /// The same with a model that drafts.
    pub fn drafted_by(self, law: &DraftLaw<'_>) -> Self {
        Self { draft: Some(Box::new(Draft::of_law(law, self.tokens_max))), ..self }
    }

    /// How tokens are drafted, where they are.
    pub fn speculation(&self) -> Option<Speculation> {
        self.drafting.as_ref().map(|drafting| drafting.speculation)
    }

    /// Draws of accepted drafts, where tokens are drafted.
    pub fn acceptance(&self) -> Option<&Acceptance> {
        self.drafting.as_ref().map(|drafting| &drafting.acceptance)
    }

    /// Tokens of a decoding sequence in an iteration: one, and its drafts.
    pub fn tokens_per_sequence(&self) -> u32 {
        self.drafting.as_ref().map_or(1, |drafting| drafting.speculation.n_verified())
    }

    /// Ticks of drafting in an iteration, and of the draft model's passes over chunks. The last stage has the drafts of every micro-batch, as the head's
    /// tokens are there. Ranks draft in step, so the fullest one of each counts.
    pub(super) fn drafts_of(&self, load: &StepLoad, batches: &[Batch]) -> Tick {
        let n_batches = u64::from(self.lanes.in_flight(load.n_decode));
        let of_chunks = self.drafts_of_chunks(batches.iter().map(|batch| batch.chunk_tokens));
        of_chunks + self.drafts(self.padded(load)) * n_batches
    }

    /// Ticks of the draft model's passes over chunks of so many tokens each.
    pub(super) fn drafts_of_chunks(&self, tokens: impl Iterator<Item = u64>) -> Tick {
        let draft = self.draft.as_deref().filter(|_| self.drafting.is_some());
        draft.map_or(Tick::ZERO, |draft| tokens.map(|tokens| draft.first_tokens(tokens)).sum())
    }

    /// Ticks of drafting for the decoding sequences of a batch.
    fn drafts(&self, n_decode: u32) -> Tick {
        let Some(Drafting { speculation, .. }) = self.drafting.as_ref().filter(|_| n_decode > 0) else {
            return Tick::ZERO;
        };
        let passes = self.draft.as_ref().map_or(Tick::ZERO, |draft| draft.passes(n_decode, speculation));
        Tick::from_seconds(speculation.per_draft) * u64::from(speculation.n_drafts) + passes
    }

    /// Ticks that drafts of so many sequences take per key that these attend to.
    pub(super) fn drafts_per_key(&self, n_decode: u32) -> Tick {
        let n_drafts = self.drafting.as_ref().map_or(0, |drafting| drafting.speculation.n_drafts);
        self.draft.as_ref().map_or(Tick::ZERO, |draft| draft.table.decode.per_key(n_decode, 0) * u64::from(n_drafts))
    }

    /// What drafting takes at least with at most so many sequences; nothing where several batches share a round.
    pub(super) fn least_drafts(&self, sequences_max: u32) -> LeastDrafts {
        if self.drafting.is_none() || self.lanes != Lanes::ONE {
            return LeastDrafts::default();
        }
        let batches = || (1..=self.graphs.padded(sequences_max)).map(|n| (f64::from(n), self.drafts(n).as_f64()));
        let of_tokens = |draft: &Draft| {
            let sizes = 1..draft.table.tokens.len() as u64;
            least_of(sizes.map(|m| draft.first_tokens(m).as_f64() / hw::real(m)))
        };
        LeastDrafts {
            sequence: least_of(batches().map(|(n, ticks)| ticks / n)),
            iteration: least_of(batches().map(|(_, ticks)| ticks)),
            prompt_token: self.draft.as_deref().map_or(0.0, of_tokens),
        }
    }
}
