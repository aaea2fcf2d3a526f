//! The average iteration of a run, and what share of its time comes from where.
//!
//! A run has iterations of many sizes. Their average has as many decoding sequences, prompt tokens and keys as a run's iterations have on
//! average, so shares of its time are close to those of the run where iterations are alike.

use engine::cost::busy::{Busy, Part};
use engine::cost::provenance::Provenance;
use engine::cost::{CostModel, Estimate, Source};
use engine::play::Case;
use hw::{Seconds, Tick};

use super::adapters::AdapterWriter;
use super::decode_attention::{self, DecodeTicks};
use super::writer::Writer;
use super::{Chunk, ReplicaConfig};
use crate::sampler::Drawing;
use crate::speculation::{DraftKind, Speculation};

/// What an iteration of a run holds on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Average {
    /// Decoding sequences.
    pub decode: f64,
    /// Keys that each attends to.
    pub keys: f64,
    /// Tokens of prompts.
    pub prompt: f64,
    /// Tokens of a whole prompt.
    pub prompt_whole: f64,
    /// Tokens with an adapter.
    pub adapted: f64,
    /// Different adapters.
    pub adapters: f64,
    /// How tokens are drafted, where they are: each decoding sequence then has a verification, and the drafts before it.
    pub speculation: Option<Speculation>,
}

/// What is made of a key by several tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfKeys {
    /// It is read once for all of them, and so it is timed.
    Read,
    /// Each of them is multiplied with it.
    Multiplied,
}

/// What decodes in an iteration of one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decodes {
    /// Sequences.
    n: u64,
    /// Keys of each.
    keys: f64,
    /// What its tokens make of them.
    of_keys: OfKeys,
}

impl Average {
    /// Where the time of the iteration comes from on a deployment.
    pub fn provenance(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel) -> Provenance {
        let mut provenance = self.on_device(deployment, cost, OfKeys::Read);
        let lanes = f64::from(deployment.lanes().n());
        let decode = (self.decode / lanes).ceil();
        let host = deployment.host_per_step.get() + deployment.host_per_sequence.get() * decode;
        if deployment.engine_loop == crate::step_cost::host::EngineLoop::Serial {
            // Fitted to published runs, or said by the user.
            provenance.add("host", Source::Published, host);
        }
        provenance
    }

    /// How long a part of every GPU is busy in the iteration. Of what the engine does only the products and bytes count, not when: what it hides behind
    /// something else is work as well, and how tokens are drawn is little. Rows that only fill a block of experts are zeros: their weights are read,
    /// and products with zeros switch few transistors.
    pub fn busy(&self, deployment: &ReplicaConfig<'_>, part: Part) -> Seconds {
        let in_turn = ReplicaConfig {
            shared_beside: 0,
            overlaps_batches: false,
            drawing: Drawing::GREEDY,
            expert_rows: deployment.expert_rows.filter(|_| part == Part::Memory),
            ..deployment.clone()
        };
        let busy = Busy { part, gpu: &deployment.cluster.gpu };
        let of_keys = if part == Part::Memory { OfKeys::Read } else { OfKeys::Multiplied };
        let attending = whole_s(&self.attending(&in_turn, &busy, of_keys));
        let Some(ffn) = in_turn.ffn else { return Seconds::new(attending) };
        // On average over the GPUs of both sides.
        let experts = whole_s(&self.with_experts(&in_turn, &busy));
        let [n_attending, n_experts] = [in_turn.n_attending(), ffn.gpus].map(f64::from);
        Seconds::new((n_attending * attending + n_experts * experts) / (n_attending + n_experts))
    }

    /// The same without the host. Where experts have GPUs of their own it is what both sides do, one beside the other.
    fn on_device(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel, of_keys: OfKeys) -> Provenance {
        let mut all = self.attending(deployment, cost, of_keys);
        all.merge(&self.with_experts(deployment, cost));
        all
    }

    /// Decoding sequences and tokens of prompts of a lane.
    fn of_lane(&self, deployment: &ReplicaConfig<'_>) -> [u64; 2] {
        let lanes = f64::from(deployment.lanes().n());
        [self.decode, self.prompt].map(|n| hw::whole((n / lanes).ceil()))
    }

    /// What GPUs with experts alone do, where there are some, and the ways to them and back.
    fn with_experts(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel) -> Provenance {
        let Some((ffn, apart)) = deployment.ffn.zip(deployment.of_experts()) else { return Provenance::default() };
        let (n, tokens) = parts(deployment, self.of_lane(deployment).iter().sum());
        let kernels = [deployment, &apart].map(|side| side.kernels(cost));
        let ways = Writer::new(deployment, kernels[0].as_ref(), Case::Expected).itemised();
        let experts = Writer::new(&apart, kernels[1].as_ref(), Case::Expected).itemised();
        for _ in 0..n {
            ways.ways(tokens);
            experts.routed_experts(tokens * u64::from(ffn.attention_ranks));
        }
        let mut all = ways.provenance();
        all.merge(&experts.provenance());
        all
    }

    /// What GPUs that attend do: all, but for experts that have GPUs of their own.
    fn attending(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel, of_keys: OfKeys) -> Provenance {
        let [decode, prompt] = self.of_lane(deployment);
        let per_sequence = self.speculation.map_or(1, |speculation| u64::from(speculation.n_verified()));
        let kernels = deployment.kernels(cost);
        let writer = Writer::new(deployment, kernels.as_ref(), Case::Expected).itemised();
        let (n, tokens) = parts(deployment, decode * per_sequence + prompt);
        for _ in 0..n {
            writer.layers(tokens);
        }
        writer.head((decode * per_sequence).max(1));
        if prompt > 0 {
            // On average a chunk lies in the middle of its prompt.
            let past = small(hw::whole((self.prompt_whole / 2.0 - hw::real(prompt) / 2.0).max(0.0)));
            writer.prefill(Chunk { past, new: small(prompt) });
        }
        if let Some(room) = deployment.adapters.filter(|_| self.adapted > 0.0) {
            let [tokens, n] = [self.adapted, self.adapters].map(|n| hw::whole(n.ceil()));
            AdapterWriter::new(&writer, room).time(tokens, n);
        }
        let mut provenance = writer.provenance();
        let decodes = Decodes { n: decode, keys: self.keys, of_keys };
        decodes.attend(&mut provenance, deployment, cost, (per_sequence, small(prompt).min(1)));
        if let Some(speculation) = self.speculation {
            decodes.draft(&mut provenance, deployment, cost, (&speculation, prompt));
        }
        provenance
    }
}

/// Micro-batches of so many tokens of a lane, where experts have GPUs of their own, and the tokens of each; else one of all.
fn parts(deployment: &ReplicaConfig<'_>, tokens: u64) -> (u64, u64) {
    let tokens = tokens.max(1);
    let n = deployment.ffn.map_or(1, |ffn| u64::from(ffn.micro_batches)).min(tokens);
    (n, tokens.div_ceil(n))
}

fn whole_s(parts: &Provenance) -> f64 {
    parts.seconds().map(|(_, _, seconds)| seconds).sum()
}

fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Decodes {
    /// Attention of the sequences, each with so many tokens, beside so many chunks.
    fn attend(
        self,
        into: &mut Provenance,
        deployment: &ReplicaConfig<'_>,
        cost: &dyn CostModel,
        (tokens, n_chunks): (u64, u32),
    ) {
        let n = small(self.n);
        let table = DecodeTicks::new(deployment, n.max(1), cost, Case::Expected);
        let of_keys = table.per_key(n, n_chunks).as_f64() * self.keys * hw::real(self.n);
        let times = if self.of_keys == OfKeys::Multiplied { hw::real(tokens) } else { 1.0 };
        let ticks = (table.fixed(n, n_chunks).as_f64() + of_keys) * times;
        let time = Seconds::new(ticks * Tick::SECONDS);
        let found = Estimate::exact(time, table.source);
        let found = match decode_attention::outside(deployment, self.n, cost) {
            Some(([fixed_s, per_key_s], dimension)) if self.n > 0 => {
                let outside_s = (fixed_s + per_key_s * self.keys * hw::real(self.n)) * times;
                Estimate { outside: Seconds::new(outside_s.min(time.get())), dimension: Some(dimension), ..found }
            }
            _ => found,
        };
        into.add_estimate("attention of decoding sequences", &found, 1.0);
    }

    /// Passes of the model that drafts, one behind the other, and of the prompts that it reads. What is looked up, or takes a time that is given, is no work.
    /// As in the times of iterations, its attention over prompts is left out.
    fn draft(
        self,
        into: &mut Provenance,
        deployment: &ReplicaConfig<'_>,
        cost: &dyn CostModel,
        (speculation, prompt): (&Speculation, u64),
    ) {
        let Some(draft) = deployment.of_draft() else { return };
        let kernels = draft.kernels(cost);
        let writer = Writer::new(&draft, kernels.as_ref(), Case::Expected).itemised();
        if prompt > 0 {
            writer.layers(prompt);
            writer.fused_states(prompt);
        }
        let reads_states = draft.drafts_as.is_some_and(DraftKind::reads_states);
        let first = if reads_states { u64::from(speculation.n_verified()) } else { 1 };
        let later = speculation.tree.map_or(1, |tree| u64::from(tree.branches));
        for pass in 0..if self.n > 0 { speculation.n_drafts } else { 0 } {
            let tokens = if pass == 0 { first } else { later };
            writer.layers(self.n * tokens);
            if pass == 0 {
                writer.fused_states(self.n * tokens);
            }
            writer.head(if pass == 0 { self.n } else { self.n * tokens });
            self.attend(into, &draft, cost, (tokens, 0));
        }
        into.merge(&writer.provenance());
    }
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;

    use super::super::StepLoad;
    use super::super::StepTable;
    use super::*;

    /// Nothing.
    const IDLE: Average = Average {
        decode: 0.0,
        keys: 0.0,
        prompt: 0.0,
        prompt_whole: 1.0,
        adapted: 0.0,
        adapters: 0.0,
        speculation: None,
    };

    /// Thirty-two sequences of 2,000 tokens, and a prompt of 256.
    const MIXED: Average = Average { decode: 32.0, keys: 2000.0, prompt: 256.0, prompt_whole: 256.0, ..IDLE };

    /// Seconds of that iteration as a table has it.
    fn whole(table: &StepTable) -> f64 {
        let load = StepLoad {
            n_decode: 32,
            context: 64_000,
            n_chunk_tokens: 256,
            n_chunks: 1,
            n_sampled: 32,
            ..StepLoad::default()
        };
        table.step(&load, std::iter::once(Chunk { past: 0, new: 256 })).to_seconds()
    }

    #[test]
    fn parts_of_an_iteration_add_up_to_its_time() {
        let model = engine::model::embedded("mixtral-8x22b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let config = ReplicaConfig::new(&model, &cluster, 4);
        let cost = Roofline::new(&cluster);
        let provenance = MIXED.provenance(&config, &cost);
        let seconds: f64 = provenance.seconds().map(|(_, _, seconds)| seconds).sum();
        let table = StepTable::new(&config, (512, 64), &cost, Case::Expected);
        let whole = whole(&table);
        assert!((seconds / whole - 1.0).abs() < 0.02, "{seconds} s in parts, {whole} s as a whole");
        assert!(provenance.shares().iter().all(|share| share.source == Source::Datasheet));
    }

    #[test]
    fn memory_is_busy_with_weights_and_keys_and_products_with_every_token() {
        // Llama-3-8B has 8.03 billion parameters, of which 0.53 are a table that is looked up, and 131,072 bytes of keys and values a token.
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let config = ReplicaConfig::new(&model, &cluster, 1);
        let of = |decode: f64| {
            let average = Average { decode, keys: 1000.0, ..IDLE };
            [Part::Memory, Part::Products].map(|part| average.busy(&config, part).get())
        };
        let [memory, products] = of(16.0);
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.02, "{found} of {wanted}");
        near(memory, (2.0 * 7.505e9 + 16.0 * 1000.0 * 131_072.0) / 3.35e12);
        // Every head multiplies a key twice: 4 · 32 · 128 operations in each of 32 layers.
        near(products, 16.0 * (2.0 * 7.505e9 + 1000.0 * 32.0 * 16_384.0) / 989e12);
        near(of(32.0)[1], 2.0 * products);
    }

    /// Four drafts of a chain.
    const FOUR: Speculation =
        Speculation { n_drafts: 4, tree: None, acceptance: 0.7, per_draft: Seconds::ZERO, seed: 0 };

    #[test]
    fn parts_of_an_iteration_with_drafts_add_up_to_its_time() {
        let [model, small] = ["llama-3-70b", "llama-3.2-1b"].map(|name| engine::model::embedded(name).expect("listed"));
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let cost = Roofline::new(&cluster);
        let eagle = model.draft_head(engine::model::DraftHead::Eagle3);
        let heads = DraftKind::Head(engine::model::DraftHead::Eagle3);
        for draft in [None, Some((&small, DraftKind::Model)), Some((&eagle, heads))] {
            let config = ReplicaConfig { draft, ..ReplicaConfig::new(&model, &cluster, 4) };
            let average = Average { speculation: Some(FOUR), ..MIXED };
            let seconds: f64 = average.provenance(&config, &cost).seconds().map(|(_, _, seconds)| seconds).sum();
            let table = StepTable::new(&config, (512, 160), &cost, Case::Expected).speculating(&FOUR);
            let whole = whole(&table);
            assert!((seconds / whole - 1.0).abs() < 0.02, "{draft:?}: {seconds} s in parts, {whole} s as a whole");
        }
    }

    #[test]
    fn a_verification_reads_weights_and_keys_once_and_multiplies_them_with_every_draft() {
        let [model, small] = ["llama-3-8b", "llama-3.2-1b"].map(|name| engine::model::embedded(name).expect("listed"));
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let of = |draft: Option<(&engine::Model, DraftKind)>, speculation: Option<Speculation>| {
            let config = ReplicaConfig { draft, ..ReplicaConfig::new(&model, &cluster, 1) };
            let average = Average { decode: 16.0, keys: 1000.0, speculation, ..IDLE };
            [Part::Memory, Part::Products].map(|part| average.busy(&config, part).get())
        };
        // What is kept between products, and logits, are up to 3 % of the draft model's bytes.
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.03, "{found} of {wanted}");
        let [plain, looked_up] = [of(None, None), of(None, Some(FOUR))];
        // Five tokens of every sequence in the place of one: weights and keys stay.
        near(looked_up[1], 5.0 * plain[1]);
        assert!(looked_up[0] > plain[0] && looked_up[0] < 1.1 * plain[0], "{looked_up:?} {plain:?}");
        // Llama-3.2-1B has 1.236 billion parameters, its table is its head too, and keys and values of 32,768 bytes a token; it goes through them four times.
        let drafted = of(Some((&small, DraftKind::Model)), Some(FOUR));
        near(drafted[0] - looked_up[0], 4.0 * (2.0 * 1.236e9 + 16.0 * 1000.0 * 32_768.0) / 3.35e12);
        near(drafted[1] - looked_up[1], 4.0 * 16.0 * (2.0 * 1.236e9 + 1000.0 * 16.0 * 4.0 * 2048.0) / 989e12);
    }
}
