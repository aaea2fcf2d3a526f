//! What no table holds and may be fitted: four numbers per engine, for all models, cards and loads alike. Today nothing is fitted.

use engine::cost::decode::{DecodeShape, ShapedDecode};
use engine::cost::experts::FusedExperts;
use engine::cost::{CostModel, Estimate, Source};
use engine::task::Op;
use hw::Seconds;

/// Constants of an engine on its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineConstants {
    /// Host time of an iteration.
    pub host_per_step: Seconds,
    /// Host time per sequence of an iteration.
    pub host_per_sequence: Seconds,
    /// Mean time from the client's sending to the engine's queue, per prompt token.
    pub request_start: Seconds,
    /// Share of the datasheet's roofline that kernels reach for which there is no table.
    pub unmeasured_efficiency: f64,
}

impl EngineConstants {
    /// Nothing but what tables and datasheets say.
    pub const NONE: Self = Self {
        host_per_step: Seconds::ZERO,
        host_per_sequence: Seconds::ZERO,
        request_start: Seconds::ZERO,
        unmeasured_efficiency: 1.0,
    };

    /// Constants by the name of an engine, with the runs that they were fitted on.
    const FITTED: [(&'static str, Self, &'static str); 3] =
        [("vllm", Self::NONE, ""), ("sglang", Self::NONE, ""), ("trtllm", Self::NONE, "")];

    /// Constants of an engine.
    #[must_use]
    pub fn of(engine: &str) -> Self {
        Self::FITTED.iter().find(|(name, ..)| *name == engine).map_or(Self::NONE, |(_, constants, _)| *constants)
    }

    /// Every engine with its constants and the runs that they were fitted on.
    pub fn all() -> impl Iterator<Item = (&'static str, Self, &'static str)> {
        Self::FITTED.into_iter()
    }
}

/// A cost model whose datasheet estimates reach a share of the roofline.
pub(crate) struct Unmeasured<'c> {
    pub(crate) inner: &'c dyn CostModel,
    pub(crate) efficiency: f64,
}

impl CostModel for Unmeasured<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        let found = self.inner.elementary(op);
        if found.source != Source::Datasheet {
            return found;
        }
        let factor = 1.0 / self.efficiency;
        let [time, low, high] = [found.time, found.low, found.high].map(|seconds| seconds * factor);
        Estimate { time, low, high, outside: found.outside * factor, ..found }
    }

    fn least(&self, op: &Op) -> Seconds {
        self.inner.least(op)
    }

    fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        self.inner.decode(shape)
    }

    fn experts(&self, layer: &FusedExperts) -> Option<Estimate> {
        self.inner.experts(layer)
    }

    fn engine(&self, op: &Op) -> Option<Estimate> {
        self.inner.engine(op)
    }
}
