//! The cost seam: how long an operation takes, with an interval and where the figure comes from.

pub mod between;
pub mod busy;
pub mod calibrated;
pub mod collective;
pub mod curve;
pub mod decode;
pub mod experts;
pub mod fixed;
pub mod host;
pub mod kernel_kind;
pub mod key_reads;
pub mod law;
pub mod mixed;
pub mod names;
pub mod profile;
pub mod profiled;
pub mod provenance;
pub mod reduce;
pub mod residuals;
pub mod roofline;
pub mod sparse_attention;
pub mod sparse_weights;
pub mod surface;
pub mod sustained;
pub mod unusable;

use hw::Seconds;

use crate::cost::decode::{DecodeShape, ShapedDecode};
use crate::cost::experts::FusedExperts;
use crate::cost::mixed::MixedChunk;
use crate::cost::reduce::ReduceKernel;
use crate::task::Op;

/// Factor by which an interval widens on each side outside of what was measured.
pub(crate) const OUTSIDE_WIDENING: f64 = 1.3;
/// Factor by which an interval widens on each side where a neighbour stands in: what one shipped card's curves miss of another's tables
/// (`docs/profiles.md`).
const BORROWED_WIDENING: f64 = 1.3;

hw::words! {
    /// Where an estimate comes from, weakest last: a sum of parts takes the weakest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Source: name {
        /// Fitted to measurements on this device type.
        Measured = "measured",
        /// Fitted to measurements of another card of its generation, which runs the same kernels, and scaled by the ratio of datasheet figures.
        WithinGeneration = "borrowed within generation",
        /// Fitted to measurements of another generation or another format, and scaled by the ratio of datasheet figures.
        Borrowed = "borrowed",
        /// Fitted to figures that a paper or vendor published.
        Published = "published",
        /// Datasheet roofline.
        Datasheet = "datasheet",
    }
}

/// Time of an operation on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Expected time.
    pub time: Seconds,
    /// Low end of the 90 % interval of the calibration residuals near the query.
    pub low: Seconds,
    /// High end.
    pub high: Seconds,
    /// Weakest source among the parts.
    pub source: Source,
    /// Part of `time` that lies outside the measured hull.
    pub outside: Seconds,
    /// Dimension outside the hull, if any, for example `attention document length > 65536`.
    pub dimension: Option<&'static str>,
}

impl Estimate {
    /// A time known exactly.
    pub const fn exact(time: Seconds, source: Source) -> Self {
        Self { time, low: time, high: time, source, outside: Seconds::ZERO, dimension: None }
    }

    /// Parts one after another: times add, intervals add (residuals are taken as fully correlated, the wide choice).
    pub fn then(self, next: Self) -> Self {
        Self {
            time: self.time + next.time,
            low: self.low + next.low,
            high: self.high + next.high,
            source: self.source.max(next.source),
            outside: self.outside + next.outside,
            dimension: self.dimension.or(next.dimension),
        }
    }

    /// The same from a neighbour: all of it counts as outside of what was measured, and the interval is wider by `BORROWED_WIDENING`.
    pub fn borrowed(self, dimension: &'static str) -> Self {
        self.lent(Source::Borrowed, dimension)
    }

    /// The same from a neighbour that is as near as the source says.
    pub fn lent(self, source: Source, dimension: &'static str) -> Self {
        Self {
            low: self.low * (1.0 / BORROWED_WIDENING),
            high: self.high * BORROWED_WIDENING,
            source: self.source.max(source),
            outside: self.time,
            dimension: self.dimension.or(Some(dimension)),
            ..self
        }
    }

    /// The same with this least time; the interval keeps its shape around a time that is raised.
    pub fn at_least(self, least: Seconds) -> Self {
        if self.time >= least {
            return self;
        }
        let factor = least.get() / self.time.get();
        Self { time: least, low: self.low * factor, high: self.high * factor, outside: self.outside * factor, ..self }
    }

    /// The same where the host needs so long for its launches: all of the interval moves up to it.
    pub fn at_least_host(self, least: Seconds) -> Self {
        Self { time: self.time.max(least), low: self.low.max(least), high: self.high.max(least), ..self }
    }

    /// The same operation `n` times in a row.
    pub fn times(self, n: u32) -> Self {
        self.scaled(f64::from(n))
    }

    /// The same with every time multiplied.
    pub fn scaled(self, by: f64) -> Self {
        Self { time: self.time * by, low: self.low * by, high: self.high * by, outside: self.outside * by, ..self }
    }
}

/// A model behind a pointer is a model, boxed or lent.
impl<P: std::ops::Deref<Target: CostModel> + Sync> CostModel for P {
    fn elementary(&self, op: &Op) -> Estimate {
        (**self).elementary(op)
    }

    fn least(&self, op: &Op) -> Seconds {
        (**self).least(op)
    }

    fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        (**self).decode(shape)
    }

    fn engine(&self, op: &Op) -> Option<Estimate> {
        (**self).engine(op)
    }

    fn experts(&self, layer: &FusedExperts) -> Option<Estimate> {
        (**self).experts(layer)
    }

    fn mixed(&self, chunk: &MixedChunk) -> Option<Estimate> {
        (**self).mixed(chunk)
    }

    fn reduce(&self, kernel: ReduceKernel, op: &Op) -> Option<Estimate> {
        (**self).reduce(kernel, op)
    }
}

/// Time of an operation; `Op::Sequence` and `Op::Host` are handled by `estimate` for every model alike.
pub trait CostModel: Sync {
    /// Estimate of an elementary operation.
    fn elementary(&self, op: &Op) -> Estimate;

    /// The model below one that changes some of its answers: whatever the upper one does not say, this one does.
    fn inner(&self) -> Option<&dyn CostModel> {
        None
    }

    /// Lower bound on what the parts of an elementary operation take together, however it is cut over rows, documents, heads or ranks:
    /// no start-up, the best efficiency that any shape has. Zero where nothing is known.
    fn least(&self, op: &Op) -> Seconds {
        self.inner().map_or(Seconds::ZERO, |inner| inner.least(op))
    }

    /// Attention of decoding sequences of a shape, where it was fitted.
    fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        self.inner()?.decode(shape)
    }

    /// An operation by a serving engine's own kernel (all-reduce inside a node, experts in one launch), where that was fitted.
    fn engine(&self, op: &Op) -> Option<Estimate> {
        self.inner()?.engine(op)
    }

    /// The whole layer of routed experts as a serving engine fuses it, where that was fitted. It is one question and not a sum of
    /// operations, because what was measured is the layer: both products, the activation between them, and the permutation around them.
    fn experts(&self, layer: &FusedExperts) -> Option<Estimate> {
        self.inner()?.experts(layer)
    }

    /// An all-reduce inside a node by one of the kernels that engines have for it; by the engine's own where that one was not fitted.
    fn reduce(&self, kernel: ReduceKernel, op: &Op) -> Option<Estimate> {
        match self.inner() {
            Some(inner) => inner.reduce(kernel, op),
            None => self.engine(op),
        }
    }

    /// A prompt's chunk through a mixer whose kernels were measured together, where that was fitted.
    fn mixed(&self, chunk: &MixedChunk) -> Option<Estimate> {
        self.inner()?.mixed(chunk)
    }

    /// Estimate of any operation.
    fn estimate(&self, op: &Op) -> Estimate {
        match op {
            Op::Host { ns } => Estimate::exact(hw::Span::from_ns(*ns).to_seconds(), Source::Measured),
            Op::Sequence(parts) => parts
                .iter()
                .map(|(part, n)| self.estimate(part).times(*n))
                .reduce(Estimate::then)
                .unwrap_or(Estimate::exact(Seconds::ZERO, Source::Measured)),
            Op::Slowed { parts, permille } => {
                let parts = self.estimate(&Op::Sequence(parts.clone()));
                parts.scaled(f64::from(*permille) / 1000.0)
            }
            Op::Launched { parts, ns } => {
                let least = hw::Span::from_ns(*ns).to_seconds();
                self.estimate(&Op::Sequence(parts.clone())).at_least_host(least)
            }
            elementary => self.elementary(elementary),
        }
    }
}
