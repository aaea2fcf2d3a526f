//! What adapters of PyTorch's modules and the packed weights beside them take on a rank. Units: elements, bytes, bytes per token.
//!
//! Sources: huggingface/peft (`tuners/lora/layer.py`, `Linear.forward`), bitsandbytes-foundation/bitsandbytes (`autograd/_functions.py`: `MatMul4Bit` keeps packed
//! weights, and no input). A frozen product keeps no input for its backward: adapters alone read it there.

use super::sizes::{HALF, cut};
use super::{Layer, parts_of_layers, stage_parameters};
use crate::shard::{AdaptedProducts, Adapters, Shard};
use crate::stage::Stage;

/// Bytes of an element in 32 bits, and of dropout's mask.
const WIDE: u64 = 4;
const MASK: u64 = 1;

/// A product of a layer: which one, its columns and its inner dimension on one rank.
type Product = (AdaptedProducts, u64, u64);

/// Products of a layer that may have an adapter.
fn products(shard: &Shard<'_>, layer: Layer) -> Vec<Product> {
    let (model, hidden) = (shard.model, shard.model.hidden);
    let of = model.heads(layer.mixer);
    let key = of.n_kv * of.key_dim;
    let mut all = Vec::new();
    if layer.mixer.attends() && model.latent.is_none() && model.compressed.is_none() {
        let widths = [model.query_columns(layer.mixer), key, of.projected_width() - key];
        let names = [AdaptedProducts::QUERY, AdaptedProducts::KEY, AdaptedProducts::VALUE];
        if shard.joins(AdaptedProducts::QUERY_KEY_VALUE) {
            all.push((AdaptedProducts::QUERY_KEY_VALUE, cut(shard, widths.iter().sum()), hidden));
        } else {
            all.extend(names.into_iter().zip(widths).map(|(name, width)| (name, cut(shard, width), hidden)));
        }
    }
    if layer.mixer.attends() && model.compressed.is_none() {
        all.push((AdaptedProducts::OUTPUT, hidden, cut(shard, model.mixed_width(layer.mixer))));
    }
    if layer.feed_forward == crate::model::FeedForward::Dense {
        let wide = cut(shard, model.dense_intermediate(layer.mixer));
        if model.gated && shard.joins(AdaptedProducts::FACTORS) {
            all.push((AdaptedProducts::FACTORS, 2 * wide, hidden));
        } else {
            all.push((AdaptedProducts::UP, wide, hidden));
            if model.gated {
                all.push((AdaptedProducts::GATE, wide, hidden));
            }
        }
        all.push((AdaptedProducts::DOWN, hidden, wide));
    }
    all
}

/// Adapters of PyTorch's modules.
fn adapters(shard: &Shard<'_>) -> Option<Adapters> {
    shard.adapters.filter(|_| shard.framework.torch().is_some())
}

/// Parameters of the adapters of a stage on one rank, of any framework.
pub fn adapter_parameters(shard: &Shard<'_>, stage: &Stage) -> f64 {
    let Some(adapters) = shard.adapters else { return 0.0 };
    let (mut parameters, mut n_layers) = (0, 0);
    for (layer, n) in shard.model.kinds(0, shard.model.n_layers) {
        let beside = products(shard, layer).into_iter().filter(|(product, ..)| adapters.beside.has(*product));
        parameters += n * beside.map(|(_, n, k)| adapters.rank * (n + k)).sum::<u64>();
        n_layers += n;
    }
    f64::from(stage.n_layers()) * hw::real(parameters) / hw::real(n_layers.max(1))
}

/// Bytes of a stage's frozen weights on one rank: packed ones, their scales, and those that stay wide.
pub fn frozen_bytes(shard: &Shard<'_>, stage: &Stage) -> [f64; 3] {
    let linear = parts_of_layers(shard, stage).iter().sum::<f64>();
    let [packed, scales] = shard.frozen().bytes(linear);
    let (shared, routed) = stage_parameters(shard, stage);
    [
        packed,
        scales,
        (shared - linear).max(0.0) * hw::real(shard.dtype.bytes()) + routed * hw::real(shard.dtype.bytes()),
    ]
}

/// Bytes of so many whole weights of layers as products, or what widens them, read them from memory.
pub fn gathered_weights(shard: &Shard<'_>, weights: u64) -> u64 {
    shard.frozen().packed_bits().map_or(HALF * weights, |bits| bits * weights / 8)
}

/// The largest matrix of a layer that is made wide, in 16 bits. One is there at a time.
pub fn widened_matrix(shard: &Shard<'_>) -> u64 {
    if !shard.frozen().is_packed() {
        return 0;
    }
    let kinds = shard.model.kinds(0, shard.model.n_layers).into_iter();
    let largest = kinds.flat_map(|(layer, _)| products(shard, layer)).map(|(_, n, k)| n * k).max();
    HALF * largest.unwrap_or(0)
}

/// What a layer keeps of its inputs for adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inputs {
    /// Of attention's projections and of those of the feed-forward.
    pub(super) norms: u64,
    /// Of the product behind attention, beside what attention keeps itself, and what lies between the products of each adapter.
    pub(super) attention: u64,
    /// Of the last product.
    pub(super) activated: u64,
}

/// Inputs that a dense layer of PyTorch's modules keeps, bytes per token; `None` where products keep them themselves.
pub(super) fn inputs(shard: &Shard<'_>) -> Option<Inputs> {
    let adapters = adapters(shard)?;
    let (hidden, model) = (shard.model.hidden, shard.model);
    let of = |beside: AdaptedProducts, width: u64, is_kept: bool| kept_of(shard, adapters, beside, width, is_kept);
    let factors = if model.gated { AdaptedProducts::FACTORS } else { AdaptedProducts::UP };
    let n = shard.n_adapters(AdaptedProducts::ALL);
    Some(Inputs {
        norms: of(AdaptedProducts::QUERY_KEY_VALUE, hidden, false) + of(factors, hidden, false),
        attention: of(AdaptedProducts::OUTPUT, cut(shard, model.n_heads * model.head_dim), true)
            + HALF * adapters.rank * u64::from(n),
        activated: of(AdaptedProducts::DOWN, cut(shard, model.intermediate), false),
    })
}

/// What adapters of one input keep of it, so many elements wide: the input itself, once and where nobody else keeps it, or a copy for each of them. Single kernels
/// of dropout keep a mask as well.
fn kept_of(shard: &Shard<'_>, adapters: Adapters, beside: AdaptedProducts, width: u64, is_kept: bool) -> u64 {
    let n = u64::from(shard.n_adapters(beside));
    let is_single = shard.framework.runs_single_kernels();
    let copies = if is_single { adapters.copies_input() } else { adapters.drops };
    let n_inputs = match (copies, is_kept) {
        (true, _) => n,
        (false, true) => 0,
        (false, false) => n.min(1),
    };
    let mask = if is_single && adapters.drops { n * MASK } else { 0 };
    width * (HALF * n_inputs + mask)
}

/// What backward of an adapter beside the last product holds of that product's input, bytes per token: the product's gradient of it and, of single kernels,
/// two of the adapter's before and behind a cast or dropout.
pub(super) fn backward(shard: &Shard<'_>) -> u64 {
    let Some(modules) = shard.framework.torch() else { return 0 };
    let Some(adapters) = shard.adapters.filter(|adapters| adapters.beside.has(AdaptedProducts::DOWN)) else { return 0 };
    let of_adapter = match (modules.compiled, adapters.is_wide, adapters.drops) {
        (true, ..) | (false, false, false) => HALF,
        (false, false, true) => 2 * HALF,
        (false, true, false) => HALF + WIDE,
        (false, true, true) => 2 * WIDE,
    };
    cut(shard, (HALF + of_adapter) * shard.model.intermediate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::Frozen;
    use crate::recompute::Recompute;
    use crate::shard::{Casts, Framework, TorchModules};
    use hw::Dtype;

    const WHOLE: Stage = Stage { n_dense: 32, first: true, last: true, ..Stage::NONE };

    fn shard(model: &crate::Model, adapters: Adapters) -> Shard<'_> {
        let modules = TorchModules {
            compiled: false,
            fused_norms: true,
            casts: Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        let framework = Framework::Fsdp2(modules);
        Shard { framework, adapters: Some(adapters), ..Shard::forward(model, Dtype::Bf16, 1) }
    }

    #[test]
    fn adapters_have_as_many_parameters_as_peft_prints() {
        // PEFT's `print_trainable_parameters` for Llama 2 7B: 4,194,304 of rank 8 beside queries and values, 39,976,960 of rank 16 beside all products.
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let [query, value] = [AdaptedProducts::QUERY, AdaptedProducts::VALUE];
        let of = |rank, beside| adapter_parameters(&shard(&model, Adapters::new(rank, beside)), &WHOLE).to_bits();
        assert_eq!(of(8, query.with(value)), 4_194_304_f64.to_bits());
        assert_eq!(of(16, AdaptedProducts::ALL), 39_976_960_f64.to_bits());
    }

    #[test]
    fn packed_weights_take_what_a_loaded_model_does() {
        // Seven matrices of 32 layers in 4 bits; two tables of 32,000 rows and 65 norms in 16 bits.
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let adapters = Adapters { frozen: Frozen::Nf4, ..Adapters::new(8, AdaptedProducts::ALL) };
        let linear = 32.0 * (4.0 * 4096.0 * 4096.0 + 3.0 * 4096.0 * 11_008.0);
        let wide = 2.0 * (2.0 * 32_000.0 * 4096.0 + 65.0 * 4096.0);
        let [packed, scales, rest] = frozen_bytes(&shard(&model, adapters), &WHOLE);
        assert!((packed - linear / 2.0).abs() < 1.0 && (scales - linear / 16.0).abs() < 1.0);
        assert!((rest - wide).abs() < 1.0, "{rest} {wide}");
        assert_eq!(widened_matrix(&shard(&model, adapters)), 2 * 4096 * 11_008);
        assert_eq!(widened_matrix(&shard(&model, Adapters::new(8, AdaptedProducts::ALL))), 0);
    }

    #[test]
    fn a_layer_keeps_what_adapters_read_again() {
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let layer = Stage { n_dense: 1, ..Stage::NONE };
        let kept = |adapters| {
            let shard = Shard { recompute: Recompute::Off, ..shard(&model, adapters) };
            super::super::activation_bytes_per_token(&shard, &layer)
        };
        let (hidden, wide, rank) = (4096, 11_008, 16);
        // Inputs of norms; queries, keys, values and outputs of attention with 32 numbers; gate, up-projection and the gate's function.
        let frozen = 2 * (2 * hidden + 4 * hidden + 3 * wide) + 4 * 32;
        let all = Adapters::new(rank, AdaptedProducts::ALL);
        assert_eq!(kept(all), frozen + 2 * (2 * hidden + wide) + 2 * 7 * rank);
        // Queries and values alone: their input, and nothing of the feed-forward.
        let two = Adapters::new(rank, AdaptedProducts::QUERY.with(AdaptedProducts::VALUE));
        assert_eq!(kept(two), frozen + 2 * hidden + 2 * 2 * rank);
        // In 32 bits each has a copy in 16 of its own; dropout has a mask besides.
        let wide_copies = 2 * (6 * hidden + wide);
        assert_eq!(kept(Adapters { is_wide: true, ..all }), frozen + wide_copies + 2 * 7 * rank);
        let dropped = Adapters { is_wide: true, drops: true, ..all };
        assert_eq!(kept(dropped), frozen + wide_copies + 6 * hidden + wide + 2 * 7 * rank);
    }
}
