//! How many GPUs, how large a batch and which products sparse: decoding with sparse weights, after Flash-LLM (arXiv:2309.10285, section 6).
//!
//! A step is the engine's iteration with the time of each product replaced by that of its sparse kernel where that is chosen. Sparse weights
//! take less memory, so a model fits fewer GPUs or a larger batch; the gain is mostly that. The objective is tokens per second and GPU;
//! GPUs, batches and the sixteen choices of sparse products are enumerated, so an answer is proved best among them.

use engine::CostModel;
use engine::Model;
use engine::cost::Estimate;
use engine::cost::sparse_weights::{SPARSITY_MIN, SparseGemm, matrix_bytes, products};
use engine::play::Case;
use engine::task::Op;
use hw::{Bytes, Cluster};
use serve::decode_attention::kv_bytes_per_token;
use serve::step_cost::{ReplicaConfig, StepLoad, StepTable, span_of};

use crate::proof::{self, Aim, Bound, Decision, Status};

/// Bytes of an element.
const ELEMENT: u64 = 2;

/// Which of a layer's four products are sparse, in the order of `products`.
pub type SparseProducts = [bool; 4];

/// What is decoded and on what.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// Architecture; dense, without experts.
    pub model: &'a Model,
    /// Machine.
    pub cluster: &'a Cluster,
    /// Cost model of everything but sparse products.
    pub cost: &'a dyn CostModel,
    /// End of its interval.
    pub case: Case,
    /// GPUs that may share the model.
    pub degrees: &'a [u32],
    /// Sequences that may decode together.
    pub batches: &'a [u32],
    /// Share of the layers' weights that are zero.
    pub sparsity: f64,
    /// Choices of sparse products that may be taken.
    pub choices: &'a [SparseProducts],
    /// Tokens of a prompt.
    pub prompt_tokens: u64,
    /// Tokens that each sequence generates.
    pub output_tokens: u64,
    /// Memory of a GPU that the engine may use.
    pub room: Bytes,
    /// Host and small kernels per layer, and per layer and sequence, seconds: free parameters.
    pub other_s: [f64; 2],
}

/// One way to decode.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// GPUs.
    pub n_gpus: u32,
    /// Sequences.
    pub batch: u32,
    /// Sparse products.
    pub sparse: SparseProducts,
    /// Seconds of a step at the mean context.
    pub step_s: f64,
    /// Part of it in products of the layers.
    pub products_s: f64,
    /// Part of the step outside the measured hull.
    pub outside_s: f64,
    /// Weights per GPU.
    pub weights: Bytes,
    /// Keys and values per GPU at the end of the longest sequence.
    pub kv: Bytes,
}

impl Decoding {
    /// Tokens per second and GPU.
    #[must_use]
    pub fn tokens_per_s_per_gpu(&self) -> f64 {
        f64::from(self.batch) / (self.step_s * f64::from(self.n_gpus))
    }

    /// Sequences, GPUs and formats in words.
    #[must_use]
    pub fn words(&self) -> String {
        let format = match self.sparse.iter().filter(|sparse| **sparse).count() {
            0 => "dense weights".to_owned(),
            4 => "sparse weights".to_owned(),
            n => format!("{n} of 4 products sparse"),
        };
        format!("{} sequences on {} GPUs, {format}", self.batch, self.n_gpus)
    }
}

/// The best way, the next best, and what holds it back.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The way, what keeps its batch from growing, and the best with another number of GPUs or another batch.
    pub best: Decision<Decoding>,
    /// Every way that fits, in order of enumeration.
    pub all: Vec<Decoding>,
    /// Ways that do not fit memory.
    pub n_too_large: usize,
}

fn f(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

impl Question<'_> {
    fn estimated(&self, estimate: Estimate) -> f64 {
        match self.case {
            Case::Low => estimate.low,
            Case::Expected => estimate.time,
            Case::High => estimate.high,
        }
        .get()
    }

    /// Weights per GPU: sparse products in their format, the rest dense.
    #[must_use]
    pub fn weights(&self, n_gpus: u32, sparse: SparseProducts) -> Bytes {
        let shapes = products(self.model, n_gpus);
        let dense: u64 = shapes.iter().map(|(_, m, k)| m * k * ELEMENT).sum();
        let rest = (self.model.n_parameters() * ELEMENT)
            .div_ceil(u64::from(n_gpus))
            .saturating_sub(dense * self.model.n_layers);
        let chosen: u64 = shapes
            .iter()
            .zip(sparse)
            .map(|((_, m, k), sparse)| if sparse { matrix_bytes(*m, *k, self.sparsity).0 } else { m * k * ELEMENT })
            .sum();
        Bytes(chosen * self.model.n_layers + rest)
    }

    /// Keys and values per GPU when all sequences are at their end.
    #[must_use]
    pub fn kv(&self, n_gpus: u32, batch: u32) -> Bytes {
        let tokens = u64::from(batch) * (self.prompt_tokens + self.output_tokens);
        Bytes(tokens * kv_bytes_per_token(self.model, n_gpus, ELEMENT))
    }

    /// Time of a layer's products, dense and sparse, and what of the sparse ones is outside the hull, per product.
    fn product_times(&self, n_gpus: u32, batch: u32) -> [(f64, f64, f64); 4] {
        products(self.model, n_gpus).map(|(_, m, k)| {
            let n = u64::from(batch);
            let dense = self.cost.estimate(&Op::Gemm { m: n, n: m, k, format: hw::Format::Bf16 });
            let sparse = SparseGemm { m, k, n, sparsity: self.sparsity }.estimate(&self.cluster.gpu);
            (self.estimated(dense), self.estimated(sparse), sparse.outside.get())
        })
    }

    /// Every way with so many GPUs: batches by formats.
    fn ways(&self, n_gpus: u32, found: &mut Vec<Decoding>, n_too_large: &mut usize) {
        let deployment = ReplicaConfig {
            host_per_step: hw::Seconds::new(self.other_s[0] * f(self.model.n_layers)),
            host_per_sequence: hw::Seconds::new(self.other_s[1] * f(self.model.n_layers)),
            ..ReplicaConfig::new(self.model, self.cluster, n_gpus)
        };
        let batch_max = self.batches.iter().copied().max().unwrap_or(1);
        let table = StepTable::new(&deployment, (batch_max, batch_max), self.cost, self.case);
        let layers = f(self.model.n_layers);
        // Half of the output is there on average.
        let context = self.prompt_tokens + self.output_tokens / 2;
        for &batch in self.batches {
            let context = context * u64::from(batch);
            let load = StepLoad { n_decode: batch, n_sampled: batch, context, ..StepLoad::default() };
            let dense_s = span_of(table.step(&load, std::iter::empty())).to_seconds().get();
            let times = self.product_times(n_gpus, batch);
            for &sparse in self.choices {
                let (weights, kv) = (self.weights(n_gpus, sparse), self.kv(n_gpus, batch));
                if weights + kv > self.room {
                    *n_too_large += 1;
                    continue;
                }
                let chosen = || times.iter().zip(sparse);
                let products_s = layers * chosen().map(|(t, sparse)| if sparse { t.1 } else { t.0 }).sum::<f64>();
                let step_s = dense_s - layers * times.iter().map(|t| t.0).sum::<f64>() + products_s;
                let outside_s = layers * chosen().map(|(t, sparse)| if sparse { t.2 } else { 0.0 }).sum::<f64>();
                found.push(Decoding { n_gpus, batch, sparse, step_s, products_s, outside_s, weights, kv });
            }
        }
    }

    /// What keeps a way's batch from growing.
    fn limit(&self, way: &Decoding) -> String {
        let Some(&next) = self.batches.iter().filter(|&&batch| batch > way.batch).min() else {
            return format!("limited by the largest batch that may be tried, {}", way.batch);
        };
        let gib = |bytes: Bytes| bytes.as_f64() / 1_073_741_824.0;
        let needed = way.weights + self.kv(way.n_gpus, next);
        if needed > self.room {
            return format!(
                "limited by memory: {next} sequences on {} GPUs would need {:.1} of {:.1} GiB",
                way.n_gpus,
                gib(needed),
                gib(self.room)
            );
        }
        format!("limited by time: {next} sequences fit, and give fewer tokens per GPU")
    }
}

/// The best way of all.
///
/// # Errors
/// A sentence when sparsity is below what the kernel can hold, or nothing fits memory.
pub fn best(question: &Question<'_>) -> Result<Best, String> {
    let is_sparse = question.choices.iter().any(|choice| choice.contains(&true));
    if is_sparse && question.sparsity < SPARSITY_MIN {
        return Err(format!(
            "sparsity {:.2} is below {SPARSITY_MIN}: tiles would hold more items than the kernel's registers (half of a tile), and dense weights are smaller from 0.5 down",
            question.sparsity
        ));
    }
    let (mut all, mut n_too_large) = (Vec::new(), 0);
    question.degrees.iter().for_each(|&n_gpus| question.ways(n_gpus, &mut all, &mut n_too_large));
    let rates = all.iter().map(|way| (way.tokens_per_s_per_gpu(), way.clone())).collect();
    // Formats that differ in one product are hardly another choice: the runner-up has other GPUs or another batch.
    let is_other = |other: &Decoding, best: &Decoding| (other.n_gpus, other.batch) != (best.n_gpus, best.batch);
    let best = proof::ranked(Aim::TokensPerSPerGpu, rates, |_| (), is_other).ok_or_else(|| too_large(question))?;
    // All were tried, so the bound is the answer.
    let (bound, limit) = (Bound::plain(best.plan.tokens_per_s_per_gpu()), question.limit(&best.plan));
    Ok(Best { best: best.bounded(Some(bound), Status::Optimal).limited(limit), all, n_too_large })
}

fn too_large(question: &Question<'_>) -> String {
    let n_gpus = question.degrees.iter().copied().max().unwrap_or(1);
    let batch = question.batches.iter().copied().min().unwrap_or(1);
    let least = question.choices.iter().map(|&choice| question.weights(n_gpus, choice)).min().unwrap_or_default();
    let gib = |bytes: Bytes| bytes.as_f64() / 1_073_741_824.0;
    format!(
        "`{}` does not fit: {n_gpus} GPUs keep {:.1} GiB of weights and {:.1} GiB of keys and values for {batch} sequences each, {:.1} GiB may be used",
        question.model.name,
        gib(least),
        gib(question.kv(n_gpus, batch)),
        gib(question.room)
    )
}

/// Every choice of sparse products, all dense first and all sparse last.
#[must_use]
pub fn every_choice() -> Vec<SparseProducts> {
    (0..16_u8).map(|bits| [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0]).collect()
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;

    use super::*;

    fn ask(sparsity: f64, choices: &[SparseProducts], degrees: &[u32]) -> Result<Best, String> {
        let model = engine::model::embedded("opt-66b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
        let (cost, room) = (Roofline::new(&cluster), Bytes(82_000_000_000));
        best(&Question {
            model: &model,
            cluster: &cluster,
            cost: &cost,
            case: Case::Expected,
            degrees,
            batches: &[8, 16, 32, 64],
            sparsity,
            choices,
            prompt_tokens: 64,
            output_tokens: 512,
            room,
            other_s: [1e-4, 1e-6],
        })
    }

    #[test]
    fn memory_is_counted_as_the_paper_counts_it() {
        // 132 GB of weights: two GPUs hold 16 dense sequences of 576 tokens and no 32; at 80 % they hold 64, and one GPU holds 16.
        let batch_max = |sparsity, choice, degree| {
            let found = ask(sparsity, &[[choice; 4]], &[degree]).expect("fits");
            found.all.iter().map(|way| way.batch).max()
        };
        assert_eq!(batch_max(0.8, false, 2), Some(16));
        assert_eq!(batch_max(0.8, true, 2), Some(64));
        assert_eq!(batch_max(0.8, true, 1), Some(16));
        assert!(ask(0.8, &[[false; 4]], &[1]).expect_err("132 GB").contains("does not fit"));
    }

    #[test]
    fn the_best_way_is_the_best_of_all_and_mixed_formats_never_hurt() {
        let choices = every_choice();
        let mixed = ask(0.6, &choices, &[1, 2, 4, 8]).expect("fits");
        let rates = mixed.all.iter().map(Decoding::tokens_per_s_per_gpu);
        assert_eq!(mixed.best.plan.tokens_per_s_per_gpu(), rates.fold(0.0, f64::max));
        for choice in [[false; 4], [true; 4]] {
            let pure = ask(0.6, &[choice], &[1, 2, 4, 8]).expect("fits");
            assert!(pure.best.plan.tokens_per_s_per_gpu() <= mixed.best.plan.tokens_per_s_per_gpu());
        }
    }

    #[test]
    fn too_little_sparsity_is_refused_with_the_reason() {
        assert!(ask(0.5, &[[true; 4]], &[2]).expect_err("below the range").contains("below 0.55"));
        assert!(ask(0.5, &[[false; 4]], &[2]).is_ok(), "dense weights do not mind");
    }

    #[test]
    fn an_engine_with_sparse_weights_decodes_as_fast_as_this_says() {
        use engine::cost::sparse_weights::SparseLayers;

        let model = engine::model::embedded("opt-66b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8);
        let cost = Roofline::new(&cluster);
        for is_sparse in [[true; 4], [false, false, true, true]] {
            let found = ask(0.8, &[is_sparse], &[2]).expect("fits");
            let layers = SparseLayers { sparsity: 0.8, is_sparse };
            let layer_s = |per_layer: f64| hw::Seconds::new(per_layer * f(model.n_layers));
            let config = ReplicaConfig {
                sparse_weights: Some(layers),
                host_per_step: layer_s(1e-4),
                host_per_sequence: layer_s(1e-6),
                ..ReplicaConfig::new(&model, &cluster, 2)
            };
            let table = StepTable::new(&config, (64, 64), &cost, Case::Expected);
            for way in &found.all {
                let context = u64::from(way.batch) * (64 + 512 / 2);
                let load = StepLoad { n_decode: way.batch, n_sampled: way.batch, context, ..StepLoad::default() };
                let step_s = span_of(table.step(&load, std::iter::empty())).to_seconds().get();
                assert!((step_s / way.step_s - 1.0).abs() < 1e-6, "{way:?}: engine {step_s}");
            }
            // Weights: this took all parameters over the GPUs, an engine has embedding and head where they are.
            let capacity = serve::capacity::of(&config, 1.0, Bytes::ZERO).expect("fits");
            let ratio = capacity.weights.as_f64() / found.best.plan.weights.as_f64();
            assert!((ratio - 1.0).abs() < 5e-3, "{ratio}");
        }
    }
}
