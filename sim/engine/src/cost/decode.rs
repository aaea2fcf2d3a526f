//! Attention of decoding sequences: one query each over all cached keys and values, bound by memory.
//!
//! Every law is linear in cached tokens for a given number of sequences, so that iterations with an unchanged batch add up in closed
//! form: a `fixed` time and a time per key. Two laws have that form.
//! - `DecodeLaw`, per layer `start + 32-head sequences · per_sequence + bytes / (reached · bandwidth)`. Kernels that take a prompt's chunk and
//!   decoding sequences in one launch tile for the chunk and serve the decoding sequences worse: what each of those then costs beside the
//!   chunk is `mixed`, or follows from the kernel (`cost/decode/by_head.rs`).
//! - `DecodeSurfaces`, of an engine's own tables: start and share of the bandwidth each depend on how many key-value heads there are to hand
//!   out over the device, how many query heads share one, and how many a sequence has.
//!
//! A window is no law of its own: a layer with one attends to fewer keys. Layers that attend to selected keys, and layers with a state, have
//! kernels of their own where tables time them: a sequence with a state has one key, which is that state.
//! Units: seconds; `reached` is a share of the datasheet's memory bandwidth.

pub mod by_head;

use hw::{BytesPerSecond, Dtype};
use serde::{Deserialize, Serialize};

use crate::cost::law::COEFFICIENT_S_MAX;
use crate::cost::residuals::Residuals;
use crate::cost::surface::Surface;
use crate::cost::unusable::Unusable;
use crate::cost::{OUTSIDE_WIDENING, Source};
use by_head::ByHead;

/// What a decoding sequence reads in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// A key and a value of every token and key-value head.
    Heads,
    /// One vector of every token, which all heads share.
    Latent,
    /// Such vectors of tokens that an index picks, and the index's key of every token.
    Selected,
    /// A state, which is written too: all that there is, as if it were one key.
    State {
        /// Its size.
        bytes: u64,
    },
}

/// What one layer's decoding sequences are on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DecodeShape {
    /// Query heads on this GPU.
    pub n_heads: u64,
    /// Key-value heads on this GPU; 1 where attention is latent; heads of a state.
    pub n_kv_heads: u64,
    /// Elements of a key; of the shared latent vector with its rotary part where attention is latent.
    pub head_dim: u64,
    /// Format of keys and values.
    pub kv: Dtype,
    /// What is read.
    pub reads: Reads,
}

impl DecodeShape {
    /// Bytes that a cached token takes in a layer, or that a state is read and written by.
    pub const fn token_bytes(&self) -> u64 {
        let vector = self.n_kv_heads * self.head_dim * self.kv.bytes();
        match self.reads {
            Reads::Heads => 2 * vector,
            Reads::Latent | Reads::Selected => vector,
            Reads::State { bytes } => 2 * bytes,
        }
    }

    /// Place of a number of sequences on the axes of the surfaces.
    pub fn point(&self, n_sequences: u64) -> [f64; 3] {
        let [n, heads, kv_heads] = [n_sequences.max(1), self.n_heads, self.n_kv_heads.max(1)].map(hw::real);
        [n * kv_heads, (heads / kv_heads).max(1.0), kv_heads]
    }
}

/// Names of the axes of the surfaces.
pub const AXES: [&str; 3] = ["key-value heads of all sequences", "query heads per key-value head", "key-value heads"];

/// Fitted decode attention of one head width and format of keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeSurfaces {
    /// Error on unseen shapes.
    pub residuals: Residuals,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Keys that the kernel reads beyond a window, of sequences that have more than it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub window_edge: f64,
    /// Logarithm of the seconds that no key adds to.
    pub start: Surface,
    /// Logarithm of the time per byte over that of the datasheet's bandwidth.
    pub read: Surface,
}

/// Whether there are none.
fn is_none(edge: &f64) -> bool {
    *edge <= 0.0
}

impl DecodeSurfaces {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        for surface in [&self.start, &self.read] {
            if surface.axes.len() != AXES.len() {
                return Err(Unusable::Axes { found: surface.axes.len(), expected: AXES.len() });
            }
            surface.check()?;
        }
        if !(0.0..=EDGE_MAX).contains(&self.window_edge) {
            return Err(Unusable::range(format!("`window_edge` is {},", self.window_edge), 0, EDGE_MAX));
        }
        Ok(())
    }
}

/// Most keys beyond a window that are taken for real.
const EDGE_MAX: f64 = 65_536.0;

/// A law of one shape on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapedDecode {
    shape: DecodeShape,
    bandwidth: BytesPerSecond,
    law: Form,
    interval: [f64; 2],
    source: Source,
    /// What a neighbour stands in for, if one does.
    neighbour: Option<&'static str>,
    /// Factor of every time.
    factor: f64,
    /// What keys cost beside a chunk where nothing was measured there and the kernel takes each query head by itself.
    by_head: Option<ByHead>,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Law(DecodeLaw),
    Surfaces(DecodeSurfaces),
}

/// Seconds of one layer: what is there without keys, and what each key adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeTime {
    /// Without keys.
    pub fixed_s: f64,
    /// Per key that a sequence attends to.
    pub per_key_s: f64,
}

impl DecodeTime {
    /// The same with every time multiplied.
    fn scaled(self, by: f64) -> Self {
        Self { fixed_s: self.fixed_s * by, per_key_s: self.per_key_s * by }
    }
}

impl ShapedDecode {
    /// A device's simple law, for a shape of that device.
    pub fn of_law(law: &DecodeLaw, shape: DecodeShape, bandwidth: BytesPerSecond) -> Self {
        let interval = [law.residuals.low, law.residuals.high];
        Self {
            shape,
            bandwidth,
            source: law.source(),
            interval,
            neighbour: None,
            law: Form::Law(law.clone()),
            factor: 1.0,
            by_head: None,
        }
    }

    /// Surfaces, for a shape.
    pub fn of_surfaces(surfaces: &DecodeSurfaces, shape: DecodeShape, bandwidth: BytesPerSecond) -> Self {
        let interval = [surfaces.residuals.low, surfaces.residuals.high];
        let law = Form::Surfaces(surfaces.clone());
        let source = Source::Measured;
        Self { shape, bandwidth, source, neighbour: None, interval, law, factor: 1.0, by_head: None }
    }

    /// The same with every time multiplied.
    pub fn scaled(self, by: f64) -> Self {
        Self { factor: self.factor * by, ..self }
    }

    /// The same where sequences beside a chunk go through a kernel that takes each query head by itself.
    pub fn by_head(self, by_head: Option<ByHead>) -> Self {
        Self { by_head, ..self }
    }

    /// The same from another shape, format or card, as `what` says: a weaker source and an interval that is wider on each side.
    pub fn lent(self, source: Source, widening: f64, what: &'static str) -> Self {
        let [low, high] = self.interval;
        let interval = [low / widening, high * widening];
        Self { source: self.source.max(source), interval, neighbour: Some(what), ..self }
    }

    /// In which dimension launches over so many sequences lie outside of what was measured, if in any.
    pub fn outside(&self, n_sequences: u64) -> Option<&'static str> {
        self.outside_surfaces(n_sequences).map(|axis| AXES[axis]).or(self.neighbour)
    }

    /// The axis of the surfaces outside of which such launches lie.
    fn outside_surfaces(&self, n_sequences: u64) -> Option<usize> {
        let Form::Surfaces(surfaces) = &self.law else { return None };
        let point = self.shape.point(n_sequences);
        surfaces.start.factor(&point).1.or_else(|| surfaces.read.factor(&point).1)
    }

    /// An interval as it is for so many sequences: wider outside of the surfaces.
    fn widened(&self, [low, high]: [f64; 2], n_sequences: u64) -> [f64; 2] {
        match self.outside_surfaces(n_sequences) {
            Some(_) => [low / OUTSIDE_WIDENING, high * OUTSIDE_WIDENING],
            None => [low, high],
        }
    }

    /// Interval of times over so many sequences, as factors.
    pub fn interval(&self, n_sequences: u64) -> [f64; 2] {
        self.widened(self.interval, n_sequences)
    }

    /// Where it comes from.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Keys that a sequence of so many attends to in a layer with a window, with those that the kernel reads beyond it.
    pub fn keys_in_window(&self, keys: u64, window: u64) -> u64 {
        let edge = match &self.law {
            Form::Law(_) => 0,
            Form::Surfaces(surfaces) => hw::whole(surfaces.window_edge),
        };
        if keys > window { keys.min(window + edge) } else { keys }
    }

    /// Seconds to read a cached token at the datasheet's bandwidth.
    fn token_s(&self) -> f64 {
        hw::real(self.shape.token_bytes()) / self.bandwidth.get()
    }

    /// A launch over so many sequences.
    pub fn alone(&self, n_sequences: u64) -> DecodeTime {
        let found = match &self.law {
            Form::Law(law) => DecodeTime {
                fixed_s: law.start_s + law.per_sequence_s * self.sequences(n_sequences),
                per_key_s: self.token_s() / law.reached,
            },
            Form::Surfaces(surfaces) => {
                let point = self.shape.point(n_sequences);
                let (fixed_s, _) = surfaces.start.factor(&point);
                DecodeTime { fixed_s, per_key_s: self.token_s() * surfaces.read.factor(&point).0 }
            }
        };
        found.scaled(self.factor)
    }

    /// What so many sequences add to a launch over a prompt's chunk.
    pub fn beside_chunk(&self, n_sequences: u64) -> DecodeTime {
        match &self.law {
            Form::Law(DecodeLaw { mixed: Some(mixed), .. }) => DecodeTime {
                fixed_s: mixed.per_sequence_s * self.sequences(n_sequences),
                per_key_s: self.token_s() / mixed.reached,
            }
            .scaled(self.factor),
            _ => {
                let alone = self.alone(n_sequences);
                let by_head = self.by_head.map(|by_head| by_head.per_key_s(n_sequences, alone.per_key_s));
                DecodeTime { per_key_s: by_head.unwrap_or(alone.per_key_s), ..alone }
            }
        }
    }

    /// Interval of what sequences take beside a chunk.
    pub fn interval_beside_chunk(&self, n_sequences: u64) -> [f64; 2] {
        match &self.law {
            Form::Law(DecodeLaw { mixed: Some(mixed), .. }) => [mixed.residuals.low, mixed.residuals.high],
            _ if self.by_head.is_some() => {
                let ([low, high], [least, most]) = (self.interval, by_head::INTERVAL);
                self.widened([low.min(least), high.max(most)], n_sequences)
            }
            _ => self.interval(n_sequences),
        }
    }

    /// Sequences of 32 query heads.
    fn sequences(&self, n_sequences: u64) -> f64 {
        hw::real(n_sequences) * hw::real(self.shape.n_heads) / HEADS
    }
}

/// Query heads of the sequence that `per_sequence_s` stands for.
pub const HEADS: f64 = 32.0;

/// Shares of the bandwidth that a law may have; with the datasheet's bandwidth far off, more than 1 is no mistake.
const REACHED: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// Law of one device type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeLaw {
    /// Start of the kernel and its reduction.
    pub start_s: f64,
    /// Per sequence of 32 query heads.
    pub per_sequence_s: f64,
    /// Share of the bandwidth.
    pub reached: f64,
    /// Error: of fitted rows, as three coefficients cannot follow thousands of them.
    pub residuals: Residuals,
    /// In one launch with a prompt's chunk, where that was measured; otherwise as alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<MixedLaw>,
}

/// What decoding sequences add to the launch of a chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedLaw {
    /// Per sequence of 32 query heads.
    pub per_sequence_s: f64,
    /// Share of the bandwidth.
    pub reached: f64,
    /// Error of the whole launch.
    pub residuals: Residuals,
}

/// Start, seconds per sequence and share of the bandwidth where nothing was fitted: the middle of the fitted devices.
pub const ASSUMED: [f64; 3] = [12e-6, 0.07e-6, 0.83];
/// Interval there.
pub const ASSUMED_INTERVAL: [f64; 2] = [0.6, 1.8];

impl DecodeLaw {
    /// The law where nothing was fitted.
    pub fn assumed() -> Self {
        let [start_s, per_sequence_s, reached] = ASSUMED;
        let [low, high] = ASSUMED_INTERVAL;
        let residuals = Residuals { n_fit: 0, n_held_out: 0, median_error: 0.0, p90_error: 0.0, low, high };
        Self { start_s, per_sequence_s, reached, residuals, mixed: None }
    }

    /// Where the law comes from.
    pub const fn source(&self) -> Source {
        if self.residuals.n_fit == 0 { Source::Datasheet } else { Source::Measured }
    }

    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        let mixed = self.mixed.as_ref().map_or((0.0, 1.0), |mixed| (mixed.per_sequence_s, mixed.reached));
        let times = [self.start_s, self.per_sequence_s, mixed.0];
        if !times.iter().all(|value| (0.0..=COEFFICIENT_S_MAX).contains(value)) {
            return Err(Unusable::range("times", 0, format!("{COEFFICIENT_S_MAX:e}")));
        }
        if ![self.reached, mixed.1].iter().all(|value| REACHED.contains(value)) {
            let [low, high] = [REACHED.start(), REACHED.end()].map(|end| format!("{end:e}"));
            return Err(Unusable::range("`reached`", low, high));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::surface::Axis;

    fn shape(kv: Dtype) -> DecodeShape {
        DecodeShape { n_heads: 32, n_kv_heads: 8, head_dim: 128, kv, reads: Reads::Heads }
    }

    fn surfaces() -> DecodeSurfaces {
        let axis = |name: &str, knots: &[f64]| Axis::new(name, knots.to_vec());
        let axes = vec![axis(AXES[0], &[8.0, 512.0]), axis(AXES[1], &[4.0]), axis(AXES[2], &[8.0])];
        let of = |values: [f64; 2]| Surface { axes: axes.clone(), values: values.map(f64::ln).to_vec() };
        let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.03, p90_error: 0.1, low: 0.9, high: 1.2 };
        DecodeSurfaces { residuals, kernel: None, window_edge: 64.0, start: of([10e-6, 40e-6]), read: of([1.25, 1.0]) }
    }

    #[test]
    fn a_cached_token_is_read_once_and_narrow_formats_read_half() {
        // 2 · 8 heads · 128 elements of two bytes; a latent vector of 512 + 64 has no values of its own.
        assert_eq!(shape(Dtype::Bf16).token_bytes(), 4096);
        assert_eq!(shape(Dtype::Fp8).token_bytes(), 2048);
        let latent = DecodeShape { n_heads: 128, n_kv_heads: 1, head_dim: 576, kv: Dtype::Bf16, reads: Reads::Latent };
        assert_eq!(latent.token_bytes(), 1152);
        // A state is read and written.
        let state = DecodeShape { reads: Reads::State { bytes: 1000 }, ..shape(Dtype::Bf16) };
        assert_eq!(state.token_bytes(), 2000);
    }

    #[test]
    fn start_and_share_of_the_bandwidth_follow_the_heads_that_there_are_to_hand_out() {
        let shaped = ShapedDecode::of_surfaces(&surfaces(), shape(Dtype::Bf16), BytesPerSecond::new(4096e9));
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-9, "{found} of {wanted}");
        let (one, many) = (shaped.alone(1), shaped.alone(64));
        near(one.fixed_s, 10e-6);
        near(one.per_key_s, 1.25e-9);
        near(many.fixed_s, 40e-6);
        near(many.per_key_s, 1e-9);
        // The middle in logarithms: 64 heads, eight sequences.
        near(shaped.alone(8).fixed_s, 20e-6);
        assert_eq!(shaped.beside_chunk(8), shaped.alone(8), "nothing was measured beside a chunk");
    }

    #[test]
    fn a_window_is_read_with_its_edge_and_never_more_than_there_is() {
        let shaped = ShapedDecode::of_surfaces(&surfaces(), shape(Dtype::Bf16), BytesPerSecond::new(1e12));
        assert_eq!([100, 128, 150, 5000].map(|keys| shaped.keys_in_window(keys, 128)), [100, 128, 150, 192]);
    }

    #[test]
    fn what_is_borrowed_is_less_sure() {
        let shaped = ShapedDecode::of_surfaces(&surfaces(), shape(Dtype::Bf16), BytesPerSecond::new(1e12));
        let borrowed = shaped.clone().lent(Source::Borrowed, 1.5, "another card");
        assert_eq!((shaped.source(), borrowed.source()), (Source::Measured, Source::Borrowed));
        let [low, high] = borrowed.interval(3);
        assert!((low - 0.6).abs() < 1e-9 && (high - 1.8).abs() < 1e-9);
        assert_eq!(borrowed.alone(3), shaped.alone(3));
        assert_eq!((shaped.outside(3), borrowed.outside(3)), (None, Some("another card")));
    }

    #[test]
    fn more_sequences_than_were_measured_are_less_sure_and_say_so() {
        let mut surfaces = surfaces();
        // Eight key-value heads of one to sixteen sequences; the last knot is at 64.
        surfaces.start.axes[0].measured = Some([8.0, 128.0]);
        let shaped = ShapedDecode::of_surfaces(&surfaces, shape(Dtype::Bf16), BytesPerSecond::new(1e12));
        assert_eq!([1, 16].map(|n| (shaped.outside(n), shaped.interval(n))), [(None, [0.9, 1.2]); 2]);
        for n in [17, 64, 1000] {
            let ([low, high], beside) = (shaped.interval(n), shaped.interval_beside_chunk(n));
            assert_eq!((shaped.outside(n), beside), (Some(AXES[0]), [low, high]));
            assert!((low - 0.9 / 1.3).abs() < 1e-9 && (high - 1.2 * 1.3).abs() < 1e-9);
        }
    }
}
