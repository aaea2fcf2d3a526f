//! Attention of decoding sequences in all layers of a deployment, from the device's law (`cost/decode.rs`).
//!
//! For a number of sequences the time is linear in cached tokens, which closed-form spans rest on; both coefficients may depend on that
//! number. They are tabulated at ever sparser numbers and interpolated between them; beyond the table the last sequence's cost goes on.

use hw::{Seconds, Tick};

use super::ReplicaConfig;
use super::decoding::Decoding;
use engine::cost::decode::by_head::ByHead;
use engine::cost::decode::{DecodeLaw, DecodeShape, DecodeTime, Reads, ShapedDecode};
use engine::cost::{CostModel, Source};
use engine::model::Mixer;
use engine::play::Case;
use engine::state::State;

/// Ticks of decode attention in all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeTicks {
    alone: Coefficients,
    mixed: Coefficients,
    /// Where the law comes from.
    pub source: Source,
}

/// Ticks by the number of sequences, from none on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Coefficients {
    /// Per iteration.
    fixed: Vec<Tick>,
    /// Per cached token.
    per_key: Vec<Tick>,
}

impl Coefficients {
    /// Of seconds of all layers by the number of sequences: without their keys, and per key.
    fn tabulated(n_max: u32, times: impl Fn(u64) -> [f64; 2]) -> Self {
        let knots = numbers(n_max);
        let ticks = |seconds: f64| Tick::from_seconds(Seconds::new(seconds));
        let of = |n: &u32| {
            let [fixed, per_key] = times(u64::from(*n)).map(ticks);
            (fixed, per_key.max(Tick::ONE))
        };
        let (fixed, per_key): (Vec<Tick>, Vec<Tick>) = knots.iter().map(of).unzip();
        Self { fixed: filled(&knots, &fixed), per_key: filled(&knots, &per_key) }
    }

    fn fixed(&self, n: u32) -> Tick {
        let last = self.fixed.len() - 1;
        // Beyond the table sequences cost what they cost at its end.
        match self.fixed.get(n as usize) {
            Some(ticks) => *ticks,
            None => self.fixed[last] * u64::from(n) / (last.max(1) as u64),
        }
    }

    fn per_key(&self, n: u32) -> Tick {
        self.per_key[(n as usize).min(self.per_key.len() - 1)]
    }
}

/// Numbers of sequences from 1 on, each a sixteenth larger than the one before.
fn numbers(n_max: u32) -> Vec<u32> {
    let mut numbers = vec![1];
    while let Some(last) = numbers.last().copied().filter(|last| *last < n_max) {
        numbers.push((last + (last / 16).max(1)).min(n_max));
    }
    numbers
}

/// Values of every number up to the last knot, on lines between the knots; nothing has what one has.
fn filled(knots: &[u32], values: &[Tick]) -> Vec<Tick> {
    let mut all = vec![values[0]; 2];
    for (ends, values) in knots.windows(2).zip(values.windows(2)) {
        let whole = u64::from(ends[1] - ends[0]);
        all.extend((1..=whole).map(|part| (values[0] * (whole - part) + values[1] * part) / whole));
    }
    all
}

impl DecodeTicks {
    /// Nothing but a time per cached token.
    pub fn linear(per_key: Tick) -> Self {
        let only = Coefficients { fixed: vec![Tick::ZERO], per_key: vec![per_key] };
        Self { alone: only.clone(), mixed: only, source: Source::Measured }
    }

    const fn beside(&self, n_chunks: u32) -> &Coefficients {
        if n_chunks == 0 { &self.alone } else { &self.mixed }
    }

    /// Ticks of an iteration with so many decoding sequences and chunks, but for cached tokens; none without sequences.
    pub fn fixed(&self, n_decode: u32, n_chunks: u32) -> Tick {
        if n_decode == 0 { Tick::ZERO } else { self.beside(n_chunks).fixed(n_decode) }
    }

    /// Ticks per cached token in an iteration with so many decoding sequences and chunks.
    pub fn per_key(&self, n_decode: u32, n_chunks: u32) -> Tick {
        self.beside(n_chunks).per_key(n_decode)
    }

    /// Decode attention of a deployment with at most so many sequences, fitted or assumed.
    pub fn new(deployment: &ReplicaConfig<'_>, n_max: u32, cost: &dyn CostModel, case: Case) -> Self {
        let kernels = kernels(deployment, cost);
        let end = |[low, high]: [f64; 2]| match case {
            Case::Low => low,
            Case::Expected => 1.0,
            Case::High => high,
        };
        let alone = Coefficients::tabulated(n_max, |n| of_all(&kernels, n, |law| (law.alone(n), end(law.interval(n)))));
        let mixed = Coefficients::tabulated(n_max, |n| {
            of_all(&kernels, n, |law| (law.beside_chunk(n), end(law.interval_beside_chunk(n))))
        });
        let source = kernels.iter().map(|(law, _)| law.source()).max().unwrap_or(Source::Measured);
        Self { alone, mixed, source }
    }
}

/// Launches over so many sequences that lie outside of what was measured: seconds of their layers but for keys, and per key, and the dimension.
pub fn outside(deployment: &ReplicaConfig<'_>, n: u64, cost: &dyn CostModel) -> Option<([f64; 2], &'static str)> {
    let mut kernels = kernels(deployment, cost);
    kernels.retain(|(law, _)| law.outside(n).is_some());
    let dimension = kernels.iter().find_map(|(law, _)| law.outside(n))?;
    Some((of_all(&kernels, n, |law| (law.alone(n), 1.0)), dimension))
}

/// Seconds of all layers for `n` sequences but for their keys, and per key.
fn of_all(kernels: &[(ShapedDecode, Decoding)], n: u64, of: impl Fn(&ShapedDecode) -> (DecodeTime, f64)) -> [f64; 2] {
    let mut all = [0.0; 2];
    for (law, layers) in kernels {
        let (time, factor) = of(law);
        let found = layers.seconds(time.fixed_s, time.per_key_s, n);
        all = [all[0] + found[0] * factor, all[1] + found[1] * factor];
    }
    all
}

/// Kernels of decoding sequences with the layers that run them: those that were measured by themselves, and those of plain attention for the rest, one for
/// each kind of heads.
fn kernels(deployment: &ReplicaConfig<'_>, cost: &dyn CostModel) -> Vec<(ShapedDecode, Decoding)> {
    let mut own = Vec::new();
    let mut taken: Vec<Mixer> = Vec::new();
    let mut shapes: Vec<DecodeShape> = Vec::new();
    for (kind, _) in deployment.model.kinds(0, deployment.model.n_layers) {
        if taken.contains(&kind.mixer) {
            continue;
        }
        let measured = own_shape(deployment, kind.mixer).and_then(|shape| Some((cost.decode(&shape)?, shape)));
        let Some((law, of_own)) = measured else {
            let plain = shape(deployment, kind.mixer);
            if !shapes.contains(&plain) {
                shapes.push(plain);
            }
            continue;
        };
        let read_of = |window: u64| window.min(deployment.context_max);
        let layers = Decoding::new(deployment, |mixer| mixer == kind.mixer, of_own.token_bytes(), read_of);
        taken.push(kind.mixer);
        own.push((law, layers));
    }
    for plain in shapes {
        let assumed = || ShapedDecode::of_law(&DecodeLaw::assumed(), plain, deployment.cluster.gpu.memory_bandwidth);
        // No kernel of compressed vectors was fitted, and those of latent ones start with other work.
        let fitted = if deployment.model.compressed.is_some() { None } else { cost.decode(&plain) };
        let law = fitted.unwrap_or_else(assumed).by_head(by_head(deployment, &plain, cost));
        let read_of = |window| law.keys_in_window(deployment.context_max, window);
        let is_one = |mixer| !taken.contains(&mixer) && shape(deployment, mixer) == plain;
        let layers = Decoding::new(deployment, is_one, plain.token_bytes(), read_of);
        if own.is_empty() || !layers.is_empty() {
            own.push((law, layers));
        }
    }
    own
}

/// What keys of plain attention cost beside a chunk, where an engine has one launch for both. Attention with sinks goes through Triton, which shares reads
/// (vLLM: `flash_attn_supports_sinks` is of FlashAttention 3).
fn by_head(deployment: &ReplicaConfig<'_>, plain: &DecodeShape, cost: &dyn CostModel) -> Option<ByHead> {
    if deployment.joint_attention && !deployment.model.has_sinks() {
        ByHead::on(&deployment.cluster.gpu, plain, cost)
    } else {
        None
    }
}

/// What a layer is whose kernel is no plain attention. Nobody measured an index of pools, nor one over heads.
fn own_shape(deployment: &ReplicaConfig<'_>, mixer: Mixer) -> Option<DecodeShape> {
    let plain = shape(deployment, mixer);
    match mixer {
        Mixer::Selected(_) => {
            let is_measured =
                plain.reads == Reads::Latent && deployment.model.index.is_some_and(|index| index.pool == 1);
            is_measured.then_some(DecodeShape { reads: Reads::Selected, ..plain })
        }
        Mixer::Linear => {
            let state = State::of(&deployment.shard(), mixer)?;
            let (heads, reads) = (state.n_heads, Reads::State { bytes: state.bytes() });
            Some(DecodeShape { n_heads: heads, n_kv_heads: heads, head_dim: state.key_dim, kv: plain.kv, reads })
        }
        _ => None,
    }
}

/// What a layer's decode attention is on one GPU of a deployment. Latent and compressed vectors are read once for all heads.
pub fn shape(deployment: &ReplicaConfig<'_>, mixer: Mixer) -> DecodeShape {
    let (model, tp, kv) = (deployment.model, deployment.tensor_degree, deployment.formats.kv);
    let heads = model.heads(mixer);
    let n_heads = heads.n.div_ceil(u64::from(tp));
    if model.latent.is_some() || model.compressed.is_some() {
        let head_dim = model.kept_elements(mixer, tp);
        return DecodeShape { n_heads, n_kv_heads: 1, head_dim, kv, reads: Reads::Latent };
    }
    let n_kv_heads = heads.n_kv.div_ceil(u64::from(tp));
    DecodeShape { n_heads, n_kv_heads, head_dim: heads.mean_dim(), kv, reads: Reads::Heads }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_knots_the_time_is_on_the_line_and_beyond_them_it_goes_on() {
        // 32 layers.
        let found = Coefficients::tabulated(100, |n| [32e-6 * hw::real(n), 32e-9]);
        for n in [1, 7, 33, 64, 99, 100, 1000] {
            let wanted = Tick::from_seconds(Seconds::new(32e-6 * f64::from(n)));
            assert!(
                found.fixed(n).abs_diff(wanted) <= Tick::ONE + wanted / 1000,
                "{n}: {:?} of {wanted:?}",
                found.fixed(n)
            );
            assert_eq!(found.per_key(n), Tick::from_seconds(Seconds::new(32e-9)));
        }
    }

    /// The datasheet, and kernels of their own for states and for selected keys: a start, and a share of the bandwidth.
    struct Own(engine::cost::roofline::Roofline, [f64; 2]);

    impl CostModel for Own {
        fn elementary(&self, op: &engine::task::Op) -> engine::cost::Estimate {
            self.0.elementary(op)
        }

        fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
            let [start_s, reached] = self.1;
            let law = DecodeLaw { start_s, per_sequence_s: 0.0, reached, ..DecodeLaw::assumed() };
            let is_own = matches!(shape.reads, Reads::Selected | Reads::State { .. });
            is_own.then(|| ShapedDecode::of_law(&law, *shape, self.0.cluster().gpu.memory_bandwidth))
        }
    }

    #[test]
    fn a_window_holds_no_more_than_the_longest_context() {
        // Every second of Gemma 2's layers has a window of 4,096 tokens.
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let cost = engine::cost::roofline::Roofline::new(&cluster);
        let model = engine::model::embedded("gemma-2-9b").expect("embedded");
        let found = |context_max: u64| {
            let config = ReplicaConfig { context_max, ..ReplicaConfig::new(&model, &cluster, 1) };
            DecodeTicks::new(&config, 64, &cost, Case::Expected).fixed(64, 0).as_f64()
        };
        let [any, long, half, none] = [u64::MAX, 8192, 2048, 0].map(found);
        assert_eq!(any.to_bits(), long.to_bits());
        assert!(((any - none) / (half - none) - 2.0).abs() < 1e-3, "{any}, {half} and {none}");
    }

    #[test]
    fn layers_with_kernels_of_their_own_are_priced_by_them_and_the_rest_as_before() {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let bandwidth = cluster.gpu.memory_bandwidth.get();
        let own = Own(engine::cost::roofline::Roofline::new(&cluster), [5e-6, 0.5]);
        let ticks = |name: &str, tp: u32, cost: &dyn CostModel| {
            let model = engine::model::embedded(name).expect("embedded");
            let config = ReplicaConfig::new(&model, &cluster, tp);
            DecodeTicks::new(&config, 64, cost, Case::Expected)
        };
        let near = |ticks: Tick, wanted_s: f64| {
            let found = ticks.span().to_seconds().get();
            assert!((found / wanted_s - 1.0).abs() < 1e-4, "{found} of {wanted_s}");
        };
        // Qwen3.5 on eight GPUs: 45 states of 8 heads of 128 by 128 in 32 bits with 3 tokens of 1536 channels, and 15 layers of plain attention.
        let state = hw::real(2 * (8 * 128 * 128 * 4 + 3 * 1536 * 2));
        let plain = [12e-6 + 0.07e-6 * 16.0 * 4.0 / 32.0, 2.0 * 256.0 * 2.0 / (0.83 * bandwidth)];
        let qwen = ticks("qwen3.5-397b-a17b", 8, &own);
        near(qwen.fixed(16, 0), 45.0 * (5e-6 + 16.0 * state / (0.5 * bandwidth)) + 15.0 * plain[0]);
        // GLM-5: 2048 latent vectors of 1152 bytes in each of 78 layers, and 132 bytes of the index for every token.
        let glm = ticks("glm-5", 8, &own);
        near(glm.fixed(4, 0), 78.0 * (5e-6 + 4.0 * 2048.0 * 1152.0 / (0.5 * bandwidth)));
        near(glm.per_key(4, 0) * 1_000_000, 78.0 * 132.0 * 1e6 / (0.5 * bandwidth));
        // Nothing changes for a model without such layers.
        assert_eq!(ticks("llama-3-8b", 1, &own), ticks("llama-3-8b", 1, &own.0));
    }

    #[test]
    fn without_decoding_sequences_there_is_no_launch() {
        let ticks = DecodeTicks::linear(Tick::new(5));
        assert_eq!([ticks.fixed(0, 0), ticks.fixed(3, 1), ticks.per_key(3, 0)].map(Tick::get), [0, 0, 5]);
    }
}
