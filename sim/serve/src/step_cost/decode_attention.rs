//! Attention of decoding sequences in all layers of a deployment, from the device's law (`cost/decode.rs`).
//!
//! For a number of sequences the time is linear in cached tokens, which closed-form spans rest on; both coefficients may depend on that
//! number. They are tabulated at ever sparser numbers and interpolated between them; beyond the table the last sequence's cost goes on.

use hw::{Seconds, Tick};

use super::ReplicaConfig;
use super::decoding::Decoding;
use engine::cost::decode::{DecodeLaw, DecodeShape, DecodeTime, ShapedDecode};
use engine::cost::{CostModel, Source};
use engine::memory;
pub use engine::memory::kv_bytes_per_token;
use engine::play::Case;

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
    fn tabulated(n_max: u32, times: impl Fn(u64) -> DecodeTime, layers: &Decoding, factor: f64) -> Self {
        let knots = numbers(n_max);
        let of_all = |n: &u32| {
            let time = times(u64::from(*n));
            layers.seconds(time.fixed_s, time.per_key_s, u64::from(*n))
        };
        let ticks = |seconds: f64| Tick::from_seconds(Seconds::new(seconds * factor));
        let (fixed, per_key): (Vec<Tick>, Vec<Tick>) =
            knots.iter().map(of_all).map(|[fixed, per_key]| (ticks(fixed), ticks(per_key).max(Tick::ONE))).unzip();
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
    #[must_use]
    pub fn linear(per_key: Tick) -> Self {
        let only = Coefficients { fixed: vec![Tick::ZERO], per_key: vec![per_key] };
        Self { alone: only.clone(), mixed: only, source: Source::Measured }
    }

    const fn beside(&self, n_chunks: u32) -> &Coefficients {
        if n_chunks == 0 { &self.alone } else { &self.mixed }
    }

    /// Ticks of an iteration with so many decoding sequences and chunks, but for cached tokens; none without sequences.
    #[must_use]
    pub fn fixed(&self, n_decode: u32, n_chunks: u32) -> Tick {
        if n_decode == 0 { Tick::ZERO } else { self.beside(n_chunks).fixed(n_decode) }
    }

    /// Ticks per cached token in an iteration with so many decoding sequences and chunks.
    #[must_use]
    pub fn per_key(&self, n_decode: u32, n_chunks: u32) -> Tick {
        self.beside(n_chunks).per_key(n_decode)
    }

    /// Decode attention of a deployment with at most so many sequences, fitted or assumed.
    #[must_use]
    pub fn new(deployment: &ReplicaConfig<'_>, n_max: u32, cost: &dyn CostModel, case: Case) -> Self {
        let shape = shape(deployment);
        let assumed = || ShapedDecode::of_law(&DecodeLaw::assumed(), shape, deployment.cluster.gpu.memory_bandwidth);
        let law = cost.decode(&shape).unwrap_or_else(assumed);
        let layers = Decoding::new(deployment, |window| law.keys_in_window(u64::MAX, window));
        let end = |[low, high]: [f64; 2]| match case {
            Case::Low => low,
            Case::Expected => 1.0,
            Case::High => high,
        };
        let alone = Coefficients::tabulated(n_max, |n| law.alone(n), &layers, end(law.interval()));
        let beside = end(law.interval_beside_chunk());
        let mixed = Coefficients::tabulated(n_max, |n| law.beside_chunk(n), &layers, beside);
        Self { alone, mixed, source: law.source() }
    }
}

/// What a layer's decode attention is on one GPU of a deployment.
#[must_use]
pub fn shape(deployment: &ReplicaConfig<'_>) -> DecodeShape {
    let (model, tp, kv) = (deployment.model, deployment.tensor_degree, deployment.formats.kv);
    let n_heads = model.n_heads.div_ceil(u64::from(tp));
    let per_layer = memory::kv_elements_per_layer(model, tp);
    match model.latent {
        Some(_) => DecodeShape { n_heads, n_kv_heads: 1, head_dim: per_layer, kv, latent: true },
        None => {
            let n_kv_heads = model.n_kv_heads.div_ceil(u64::from(tp));
            DecodeShape { n_heads, n_kv_heads, head_dim: model.head_dim, kv, latent: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_knots_the_time_is_on_the_line_and_beyond_them_it_goes_on() {
        let times = |n: u64| DecodeTime { fixed_s: 1e-6 * hw::real(n), per_key_s: 1e-9 };
        let model = engine::model::embedded("llama-3-8b").expect("embedded");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
        let layers = Decoding::new(&ReplicaConfig::new(&model, &cluster, 1), |window| window);
        let found = Coefficients::tabulated(100, times, &layers, 1.0);
        for n in [1, 7, 33, 64, 99, 100, 1000] {
            // 32 layers.
            let wanted = Tick::from_seconds(Seconds::new(32e-6 * f64::from(n)));
            assert!(
                found.fixed(n).abs_diff(wanted) <= Tick::ONE + wanted / 1000,
                "{n}: {:?} of {wanted:?}",
                found.fixed(n)
            );
            assert_eq!(found.per_key(n), Tick::from_seconds(Seconds::new(32e-9)));
        }
    }

    #[test]
    fn without_decoding_sequences_there_is_no_launch() {
        let ticks = DecodeTicks::linear(Tick::new(5));
        assert_eq!([ticks.fixed(0, 0), ticks.fixed(3, 1), ticks.per_key(3, 0)].map(Tick::get), [0, 0, 5]);
    }
}
