//! The average iteration of a run, and what share of its time comes from where.
//!
//! A run has iterations of many sizes. Their average has as many decoding sequences, prompt tokens and keys as a run's iterations have on
//! average, so shares of its time are close to those of the run where iterations are alike.

use engine::cost::busy::{Busy, Part};
use engine::cost::provenance::Provenance;
use engine::cost::{CostModel, Source};
use engine::play::Case;
use hw::{Seconds, Tick};

use super::adapters::AdapterWriter;
use super::decode_attention::DecodeTicks;
use super::writer::Writer;
use super::{Chunk, ReplicaConfig};
use crate::sampler::Drawing;

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
}

impl Average {
    /// Where the time of the iteration comes from on a deployment.
    pub fn provenance(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel) -> Provenance {
        let mut provenance = self.on_device(deployment, cost);
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
        let gpu = &deployment.cluster.gpu;
        Seconds::new(self.on_device(&in_turn, &Busy { part, gpu }).seconds().map(|(_, _, seconds)| seconds).sum())
    }

    /// The same without the host.
    fn on_device(&self, deployment: &ReplicaConfig<'_>, cost: &dyn CostModel) -> Provenance {
        let lanes = f64::from(deployment.lanes().n());
        let [decode, prompt] = [self.decode, self.prompt].map(|n| hw::whole((n / lanes).ceil()));
        let kernels = deployment.kernels(cost);
        let writer = Writer::new(deployment, kernels.as_ref(), Case::Expected).itemised();
        writer.layers((decode + prompt).max(1));
        writer.head(decode.max(1));
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
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
        let n = small(decode);
        let table = DecodeTicks::new(deployment, n.max(1), cost, Case::Expected);
        let n_chunks = u32::from(prompt > 0);
        let ticks =
            table.fixed(n, n_chunks).as_f64() + table.per_key(n, n_chunks).as_f64() * self.keys * hw::real(decode);
        provenance.add("attention of decoding sequences", table.source, ticks * Tick::SECONDS);
        provenance
    }
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;

    use super::super::StepLoad;
    use super::super::StepTable;
    use super::*;

    #[test]
    fn parts_of_an_iteration_add_up_to_its_time() {
        let model = engine::model::embedded("mixtral-8x22b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let config = ReplicaConfig::new(&model, &cluster, 4);
        let cost = Roofline::new(&cluster);
        let average =
            Average { decode: 32.0, keys: 2000.0, prompt: 256.0, prompt_whole: 256.0, adapted: 0.0, adapters: 0.0 };
        let provenance = average.provenance(&config, &cost);
        let seconds: f64 = provenance.seconds().map(|(_, _, seconds)| seconds).sum();
        let table = StepTable::new(&config, (512, 64), &cost, Case::Expected);
        let load = StepLoad {
            n_decode: 32,
            context: 64_000,
            n_chunk_tokens: 256,
            n_chunks: 1,
            n_sampled: 32,
            ..StepLoad::default()
        };
        let whole = table.step(&load, std::iter::once(Chunk { past: 0, new: 256 })).to_seconds();
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
            let average = Average { decode, keys: 1000.0, prompt: 0.0, prompt_whole: 1.0, adapted: 0.0, adapters: 0.0 };
            [Part::Memory, Part::Products].map(|part| average.busy(&config, part).get())
        };
        let [memory, products] = of(16.0);
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.02, "{found} of {wanted}");
        near(memory, (2.0 * 7.505e9 + 16.0 * 1000.0 * 131_072.0) / 3.35e12);
        // Every head multiplies a key twice: 4 · 32 · 128 operations in each of 32 layers.
        near(products, 16.0 * (2.0 * 7.505e9 + 1000.0 * 32.0 * 16_384.0) / 989e12);
        near(of(32.0)[1], 2.0 * products);
    }
}
