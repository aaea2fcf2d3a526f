//! Saturated requests per second of a replica from datasheet figures: the simple roofline where no table was measured.
//!
//! A replica of tp x pp equal GPUs works on a full batch of b requests at once, b = memory left beside the weights / KV bytes of a request.
//! A stage's time is that of its layers (`roofline.rs`); the batch is cut into pp parts that follow each other through the stages, so that
//! a token of every request takes pp times a stage's time. Then
//!
//! h = b / (b·t_prefill(input) + output·t_decode(b, input + output/2))
//!
//! which is a served batch over the time that its prompts and its decode steps take. Units: bytes, seconds, requests per second. An
//! approximation: no interference, no queueing, attention of the prompt at the matrix rate. Compare plans with it, not absolute figures.

use engine::model::Model;
use engine::verdict::Refused;
use hw::{Gpu, Tokens, real};

use super::Configuration;
use super::roofline::{BATCH_MAX, Layer, MEMORY_USED, Pass};

/// Lengths of a request type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens that are generated.
    pub output: Tokens,
}

/// How one replica lies on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor-parallel GPUs of a stage.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
}

/// A model on GPUs of one type.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// Type of all its GPUs.
    pub gpu: &'a Gpu,
    /// What it serves, in bf16.
    pub model: &'a Model,
    /// How.
    pub parallel: Parallel,
}

impl Replica<'_> {
    fn n_gpus(&self) -> f64 {
        f64::from(self.parallel.tp) * f64::from(self.parallel.pp)
    }

    fn weight_bytes(&self) -> f64 {
        2.0 * real(self.model.n_parameters())
    }

    /// Bytes of keys and values of one token in all layers.
    pub fn kv_bytes(&self) -> f64 {
        real(self.model.n_layers) * Layer::of(self.model).kv_bytes
    }

    /// Requests in the batch when the cache is full; 0 where not one fits.
    pub fn batch(&self, lengths: Lengths) -> f64 {
        let room = MEMORY_USED * self.gpu.memory.as_f64() * self.n_gpus() - self.weight_bytes();
        let request = self.kv_bytes() * (lengths.input + lengths.output).as_f64();
        (room / request.max(1.0)).floor().clamp(0.0, BATCH_MAX)
    }

    /// Why it holds no request: weights beside the part of memory that is used.
    pub fn without_room(&self) -> Refused {
        let room = MEMORY_USED * self.gpu.memory.as_f64() * self.n_gpus();
        let [weights, room] = [self.weight_bytes(), room].map(|bytes| bytes / hw::GIB);
        Refused::out_of_memory(format!(
            "weights take {weights:.1} GiB in bf16, and {} x {} leave {room:.1} GiB to weights and requests",
            self.n_gpus(),
            self.gpu.name
        ))
    }

    /// Seconds of one of the equal stages.
    fn stage_s(&self, pass: Pass) -> f64 {
        let layers = real(self.model.n_layers) / f64::from(self.parallel.pp);
        layers * Layer::of(self.model).seconds(self.gpu, f64::from(self.parallel.tp), pass)
    }

    /// Seconds of pipeline occupancy that one prompt takes.
    pub fn prefill_s(&self, input: Tokens) -> f64 {
        let tokens = input.as_f64();
        // Causal attention: half of the prompt on average, and what is read was just written.
        self.stage_s(Pass { tokens, attended: tokens / 2.0, read: 0.0 })
    }

    /// Seconds until every request of a batch has one token more, at a context.
    pub fn decode_s(&self, batch: f64, context: f64) -> f64 {
        let pp = f64::from(self.parallel.pp);
        let part = batch / pp;
        // Attention waits for memory here, so its operations are left out.
        pp * self.stage_s(Pass { tokens: part, attended: 0.0, read: part * context })
    }

    /// Saturated requests per second; 0 where no request fits.
    pub fn requests_per_s(&self, lengths: Lengths) -> f64 {
        let batch = self.batch(lengths);
        if batch < 1.0 || self.parallel.tp == 0 || self.parallel.pp == 0 {
            return 0.0;
        }
        let context = lengths.input.as_f64() + lengths.output.as_f64() / 2.0;
        batch / (batch * self.prefill_s(lengths.input) + lengths.output.as_f64() * self.decode_s(batch, context))
    }
}

/// Configurations of a model on each GPU type alone that can hold it; `demands` has the model and the lengths of every demand.
pub fn configurations(
    gpus: &[Gpu],
    model: (usize, &Model),
    parallels: &[Parallel],
    demands: &[(usize, Lengths)],
) -> Vec<Configuration> {
    let mut all = Vec::new();
    for (offer, gpu) in gpus.iter().enumerate() {
        for &parallel in parallels {
            let replica = Replica { gpu, model: model.1, parallel };
            let rate =
                |&(of, lengths): &(usize, Lengths)| if of == model.0 { replica.requests_per_s(lengths) } else { 0.0 };
            let requests_per_s: Vec<f64> = demands.iter().map(rate).collect();
            if requests_per_s.iter().all(|&rate| rate == 0.0) {
                continue;
            }
            let mut n_gpus = vec![0; gpus.len()];
            n_gpus[offer] = parallel.tp.saturating_mul(parallel.pp);
            let Parallel { tp, pp } = parallel;
            let name = format!("{} on {} tp {tp} pp {pp}", model.1.name, gpu.name);
            all.push(Configuration { name, model: model.0, n_gpus, requests_per_s });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbound_batch_reads_weights_and_cache_once_per_step() {
        // Llama-3-8B on one A100 80G: 16.06 GB of weights; a request of 1,000 + 100 tokens holds 1,100 x 131,072 B = 144 MB, and
        // 0.9 x 85.9 GB - 16.06 GB = 61.25 GB hold 424 of them, above the cap of 256.
        let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
        let model = engine::model::embedded("llama-3-8b").expect("embedded");
        let replica = Replica { gpu: &gpu, model: &model, parallel: Parallel { tp: 1, pp: 1 } };
        assert_eq!(replica.kv_bytes(), 131_072.0);
        assert_eq!(replica.batch(Lengths { input: Tokens(1000), output: Tokens(100) }), 256.0);
        // (16.0605 GB + 8 x 1,000 x 131,072 B) / (0.8 x 2,039 GB/s) = 10.49 ms.
        assert!((replica.decode_s(8.0, 1000.0) - 10.489e-3).abs() < 2e-6, "{}", replica.decode_s(8.0, 1000.0));
    }

    #[test]
    fn what_does_not_fit_has_no_rate() {
        let gpu = hw::catalog::gpu("rtx-4090").expect("listed");
        let model = engine::model::embedded("llama-3-70b").expect("embedded");
        let lengths = Lengths { input: Tokens(824), output: Tokens(253) };
        let rate = |tp, pp| Replica { gpu: &gpu, model: &model, parallel: Parallel { tp, pp } }.requests_per_s(lengths);
        assert_eq!(rate(4, 1), 0.0);
        assert!(rate(8, 1) > 0.0);
    }
}
