//! Operations of a job: those of its model, and those that backward computes again. Each layer counts what it has: attention where it attends, the products of
//! its scan where it has linear attention. A state-space scan is memory traffic and counts none.

use engine::Model;
use engine::layer;
use engine::recompute::{Module, Modules};
use engine::task::{Document, Op, Ops, Pass};

use crate::experts::ExpertLoad;
use crate::layout::{ContextExchange, Layout, Zero};
use crate::lower::training::hybrid;
use crate::problem::{AttentionKernel, Problem, Recompute};
use crate::schedule::PassKind;
use crate::stage::{Stage, stages};

/// Operations of some layers.
#[derive(Clone, Copy, Debug, Default)]
struct Layers {
    /// Products around mixers, forward.
    products: f64,
    /// What mixes tokens, forward.
    mixing: f64,
    /// Its gradients.
    gradients: f64,
}

/// A problem without its layout: no cut, no padding, no experts but the visited ones, and these for every token, as without expert ranks nothing is merged.
struct Whole {
    problem: Problem,
    documents: Vec<Document>,
    tokens: u64,
}

/// Operations of an elementary operation of a model. Latent attention multiplies values that are narrower than keys, and its kernels are priced as wide as keys.
pub fn op_flops(model: &Model, op: &Op) -> f64 {
    match (op, model.latent) {
        (Op::Attention { .. }, Some(latent)) => op.flops() * hw::real(latent.mean_dim()) / hw::real(latent.key_dim()),
        _ => op.flops(),
    }
}

/// Operations over the whole workload: of the model, and of what backward computes again. Causal attention counts the pairs
/// that are computed, so a long document is not credited with the masked half. Nor are frozen weights with gradients (NVIDIA-NeMo/Megatron-Bridge,
/// `training/utils/flop_utils.py`).
pub(super) fn of(problem: &Problem) -> [f64; 2] {
    let whole = Whole::of(problem);
    let of_stages = stages(problem);
    let (mut products, mut mixing, mut again) = (whole.head(), 0.0, 0.0);
    for stage in &of_stages {
        let layers = whole.layers(stage);
        products += layers.products;
        mixing += layers.mixing + layers.gradients;
        again += whole.again(stage);
    }
    // Each product has two gradients: of what it reads and of its weights.
    let n_passes = if problem.execution.trains_weights() { 3.0 } else { 2.0 };
    [n_passes * products + mixing, again]
}

impl Whole {
    fn of(problem: &Problem) -> Self {
        let mut whole = problem.clone();
        whole.layout = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather);
        // What is not fused computes the masked half too, which no model asks for.
        if whole.execution.attention == AttentionKernel::Unfused && whole.execution.recompute == Recompute::Selective {
            whole.execution.recompute = Recompute::Modules(Modules::NONE.with(Module::CoreAttention));
        }
        whole.execution.attention = AttentionKernel::Flash;
        let tokens = whole.workload.lengths.iter().sum();
        let documents = whole.workload.lengths.iter().map(|&length| Document::causal(length)).collect();
        Self { problem: whole, documents, tokens }
    }

    /// Operations of a list.
    fn count(&self, ops: &Ops) -> f64 {
        ops.iter().map(|(op, n)| op_flops(&self.problem.model, op) * f64::from(*n)).sum()
    }

    fn head(&self) -> f64 {
        self.count(&layer::head(&self.problem.shard(), self.tokens, PassKind::Forward))
    }

    /// Attention in one layer, forward.
    fn attention(&self) -> f64 {
        self.count(&layer::attention(&self.problem.shard(), &self.documents, 1, Pass::Forward))
    }

    fn layers(&self, stage: &Stage) -> Layers {
        if let Some(parts) = hybrid::apart(&self.problem, stage, &self.documents) {
            let [products, mixing, gradients] = parts.map(|ops| self.count(&ops));
            return Layers { products, mixing, gradients };
        }
        let shard = self.problem.shard();
        let before = self.count(&layer::before_attention(&shard, self.tokens, PassKind::Forward));
        let after = |load| self.count(&layer::after_attention(&shard, self.tokens, PassKind::Forward, load));
        let of = |n: u32, load| if n == 0 { 0.0 } else { f64::from(n) * (before + after(load)) };
        let products = of(stage.n_dense, None) + of(stage.n_expert, Some(&ExpertLoad::EVEN));
        let mixing = f64::from(stage.n_layers()) * self.attention();
        Layers { products, mixing, gradients: 2.0 * mixing }
    }

    /// What backward computes again of a stage.
    fn again(&self, stage: &Stage) -> f64 {
        match self.problem.execution.recompute {
            Recompute::Off => 0.0,
            Recompute::Full => {
                let layers = self.layers(&stage.again());
                layers.products + layers.mixing
            }
            Recompute::Selective | Recompute::Modules(_) => {
                self.count(&hybrid::recomputed(&self.problem, ExpertLoad::EVEN, stage, self.tokens, &self.documents))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::model::Mixer;

    use super::*;
    use crate::problem::{Execution, Framework};

    fn problem(model: Model, lengths: Vec<u64>) -> Problem {
        let gpu = hw::catalog::gpu("b200").expect("listed");
        Problem {
            model,
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: Layout::data_and_context(8, 1, Zero::Parameters, ContextExchange::Gather),
            workload: crate::Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 512,
            execution: Execution { framework: Framework::MegatronCore, ..Execution::default() },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 1,
        }
    }

    /// Layers of a model that attend to all tokens, by counting.
    fn n_whole(model: &Model) -> u64 {
        let is_whole = |index: &u64| model.layers.layer(*index).mixer == Mixer::Full;
        (0..model.n_layers).filter(is_whole).count() as u64
    }

    fn trained() -> impl Iterator<Item = &'static Model> {
        engine::model::embedded_models().filter(|model| model.not_trained().is_empty())
    }

    #[test]
    fn attention_is_counted_where_a_layer_attends_and_as_wide_as_its_keys_and_values() {
        let mut n_hybrid = 0;
        // Compressed attention has a test of its own.
        for model in trained().filter(|model| model.compressed.is_none()) {
            let of = |length: u64, n| of(&problem(model.clone(), vec![length; n]))[0];
            // What grows with the square of a length, whatever is linear in it: one of 131,072 tokens less two of half of that.
            let long = 131_072_u64;
            let found = of(long, 1) - of(long / 2, 2);
            let [key_dim, value_dim] = model
                .latent
                .map_or([model.head_dim; 2], |latent| [latent.nope_dim + latent.rope_dim, latent.value_dim]);
            let causal = |tokens: u64| hw::real(tokens * (tokens + 1) / 2);
            let pairs = causal(long) - 2.0 * causal(long / 2);
            let of_pair = 3.0 * 2.0 * hw::real(model.n_heads * (key_dim + value_dim));
            let expected = pairs * of_pair * hw::real(n_whole(model));
            // Windows end at both borders of a document.
            let within = of_pair * hw::real(model.n_layers * 8192) * hw::real(8192_u64);
            let has_windows = model.layers.kinds().iter().any(|layer| matches!(layer.mixer, Mixer::Window(_)));
            let slack = if has_windows { within } else { 1e-9 * of(long, 1) };
            assert!((found - expected).abs() <= slack, "{}: {found:e} and not {expected:e}", model.name);
            n_hybrid += usize::from(model.is_hybrid());
        }
        assert!(n_hybrid > 5, "{n_hybrid}");
    }

    #[test]
    fn products_are_those_of_the_parameters_that_a_token_visits() {
        for model in trained().filter(|model| model.compressed.is_none() && model.linear.is_none()) {
            let (n_tokens, model) = (4096, model.clone().with_predicting(0));
            let found = of(&problem(model.clone(), vec![1; n_tokens]))[0] / hw::real(n_tokens as u64);
            let table = if model.learned_positions { model.max_positions * model.hidden } else { 0 };
            let rows = if model.tied { 0 } else { model.vocab * model.hidden };
            let visited = 6.0 * hw::real(model.active_parameters() - rows - table);
            assert!((found / visited - 1.0).abs() < 0.03, "{}: {found:e} and not {visited:e}", model.name);
        }
    }

    #[test]
    fn two_models_as_counted_by_hand() {
        let per_token = |name: &str, length: u64| {
            let model = engine::model::embedded(name).expect("embedded");
            of(&problem(model, vec![length]))[0] / hw::real(length)
        };
        // 118 layers of which ten attend, with 64 heads of 128: 331 G a token of products, and 6 · layers · width · length.
        let expected = 331e9 + 6.0 * 10.0 * 64.0 * 128.0 * 131_072.0;
        let found = per_token("nemotron-h-56b", 131_072);
        assert!((found / expected - 1.0).abs() < 0.01, "{found:e} {expected:e}");
        // 27 layers with 16 heads, keys of 192 and values of 128: 69.83 G a token.
        let found = per_token("moonlight-16b-a3b", 131_072);
        assert!((found / 69.83e9 - 1.0).abs() < 0.005, "{found:e}");
    }

    #[test]
    fn what_is_computed_again_is_attention_of_the_layers_that_attend() {
        let model = engine::model::embedded("nemotron-h-56b").expect("embedded");
        let mut problem = problem(model, vec![8192]);
        problem.execution.recompute = Recompute::Modules(Modules::NONE.with(Module::CoreAttention));
        let [_, again] = of(&problem);
        let expected = 10.0 * 4.0 * hw::real(8192 * 8193 / 2_u64) * 64.0 * 128.0;
        assert!((again / expected - 1.0).abs() < 1e-9, "{again:e} {expected:e}");
    }
}
