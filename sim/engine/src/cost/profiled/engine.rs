//! What serving engines alone ask a profile: their own exchanges, decode attention of a shape, and the fused layer of experts.

use hw::{Dtype, Format, GroupShape, Seconds};

use super::{Fitted, Profiled, links};
use crate::cost::decode::{DecodeShape, Reads, ShapedDecode};
use crate::cost::experts::{ExpertsCurve, FusedExperts, kernel};
use crate::cost::mixed::{self, MixedChunk, MixingKernel};
use crate::cost::profile::CollectiveCurve;
use crate::cost::reduce::ReduceKernel;
use crate::cost::{CostModel, Estimate, Source, names};
use crate::task::{Collective, Op};

/// Names of the axes of experts in estimates.
const EXPERT_AXES: [&str; 3] = ["rows per expert", "experts with rows", "elements of an expert"];

impl Profiled {
    /// An operation by an engine's own kernel.
    pub(super) fn own_kernel(&self, op: &Op) -> Option<Estimate> {
        match op {
            Op::Collective { kind: Collective::AllReduce, .. } => self.reduced(ReduceKernel::Own, op),
            Op::Collective { kind: Collective::AllToAll, bytes, shape } => {
                Some(self.over_other_link(shape.n_ranks, *shape, self.deep_ep(*bytes, *shape)?))
            }
            Op::GroupedGemm { rows, n, k, format: Format::Bf16 | Format::Fp16, .. } => {
                self.grouped_kernel(rows, *n, *k)
            }
            _ => None,
        }
    }

    /// An all-reduce by a kernel, or by the engine's own where that one was not fitted. Engines go over to the library where that is faster.
    pub(super) fn reduced(&self, kernel: ReduceKernel, op: &Op) -> Option<Estimate> {
        let Op::Collective { kind: Collective::AllReduce, bytes, shape } = op else { return None };
        let by = |kernel: ReduceKernel| self.exchange(kernel.name(), *bytes, *shape);
        let own = by(kernel).or_else(|| by(ReduceKernel::Own))?;
        Some(faster(self.over_other_link(shape.n_ranks, *shape, own), self.estimate(op)))
    }

    /// An exchange by an engine's own kernel inside a node.
    fn exchange(&self, kind: &str, bytes: u64, shape: GroupShape) -> Option<Estimate> {
        if shape.n_nodes > 1 {
            return None;
        }
        let is_measured =
            |curve: &&CollectiveCurve| curve.kind == kind && curve.n_ranks == shape.n_ranks && curve.n_nodes == 1;
        let curve = self.profile.collectives.iter().find(is_measured)?;
        let (measured, outside) = links::over_link(curve, hw::real(bytes), self.link_ratio(shape.n_ranks, shape)?);
        // One kernel reads what all others have, so it starts once.
        let later_s = links::later_s(self.roofline.cluster())[0];
        let seconds = Seconds::new(links::begun(curve, measured, 1.0, later_s));
        let outside = (outside || later_s != 0.0).then_some(0);
        let fitted = Fitted { seconds, residuals: &curve.residuals, outside };
        Some(self.own(fitted.estimate(["collective bytes or ranks", "", ""])))
    }

    /// Tokens to experts or back by `DeepEP`: half of both ways, in the faster of its two modes among those whose sizes were measured.
    fn deep_ep(&self, bytes: u64, shape: GroupShape) -> Option<Estimate> {
        let mode = |ways: [&str; 2]| {
            let [there, back] = ways.map(|kind| self.exchange(kind, bytes, shape));
            Some(halved(there?.then(back?)))
        };
        let [throughput, latency] = names::DEEP_EP.map(mode);
        match (throughput, latency.filter(|latency| latency.outside == Seconds::ZERO)) {
            (Some(throughput), Some(latency)) => Some(faster(latency, throughput)),
            (either, other) => either.or(other),
        }
    }

    /// One grouped product of experts in one launch, where that was fitted by itself.
    fn grouped_kernel(&self, rows: &[u64], n: u64, k: u64) -> Option<Estimate> {
        let with_rows = rows.iter().filter(|&&m| m > 0);
        let (n_active, routed) = (with_rows.clone().count() as u64, with_rows.clone().sum::<u64>());
        let active = hw::real(n_active.max(1));
        let base: Seconds = with_rows.map(|&m| self.roofline.gemm_base(m, n, k, Format::Bf16)).sum();
        let point = vec![hw::real(routed) / active, active, hw::real(n * k)];
        let fitted = self.fitted(names::GROUPED_GEMM, std::iter::once((base, point)))?;
        Some(self.own(fitted.estimate(EXPERT_AXES)))
    }

    /// A chunk through a mixer by the curve of its kernels, over the datasheet's time of what they compute.
    pub(super) fn mixed_chunk(&self, chunk: &MixedChunk) -> Option<Estimate> {
        let names = match chunk.kernel {
            MixingKernel::Delta => vec![names::SCAN_DELTA.to_owned()],
            MixingKernel::Selected(kv) => names::nearest_selected("attention", kv).to_vec(),
        };
        let name = names.iter().find(|name| self.profile.operators.contains_key(*name))?;
        let base = self.roofline.estimate(&Op::Sequence(chunk.parts.clone())).time;
        let fitted = self.fitted(name, std::iter::once((base, chunk.at.to_vec())))?.estimate(mixed::AXES);
        Some(self.own(if *name == names[0] { fitted } else { fitted.borrowed("format of keys and values") }))
    }

    /// Decode attention of a shape: its own format and width, then a neighbouring width, then sixteen bits, then the simple law. Selected keys and
    /// states have no neighbours.
    pub(super) fn shaped_decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        let bandwidth = self.roofline.cluster().gpu.memory_bandwidth;
        let names = match shape.reads {
            Reads::Heads => {
                let exact = names::of_width("decode", Some(shape.head_dim), shape.kv);
                [vec![exact], names::nearest("decode", shape.head_dim, shape.kv)].concat()
            }
            Reads::Latent => [shape.kv, Dtype::Bf16, Dtype::Fp8].map(|kv| names::of_width("decode", None, kv)).to_vec(),
            Reads::Selected => names::nearest_selected("decode", shape.kv).to_vec(),
            Reads::State { .. } => vec![names::DECODE_DELTA.to_owned()],
        };
        let fitted = |name: &String| self.profile.decode.get(name).map(|surfaces| (*name == names[0], surfaces));
        let found = names.iter().find_map(fitted);
        let has_simple = match shape.reads {
            Reads::Heads => true,
            Reads::Latent => self.profile.decode.is_empty(),
            Reads::Selected | Reads::State { .. } => false,
        };
        let simple = || self.profile.decode_attention.as_ref().filter(|_| has_simple);
        let (is_exact, law) = match found {
            Some((is_exact, surfaces)) => (is_exact, ShapedDecode::of_surfaces(surfaces, *shape, bandwidth)),
            None => (true, ShapedDecode::of_law(simple()?, *shape, bandwidth)),
        };
        let lender = self.lender.max((!is_exact).then_some(Source::Borrowed));
        let what = if is_exact { super::ANOTHER_CARD } else { "width or format of keys and values" };
        Some(match lender {
            Some(source) => law.lent(source, super::OUTSIDE_WIDENING, what),
            None => law,
        })
    }

    /// The fused layer of experts by the curve of its format, or by that of the nearest format that was fitted.
    pub(super) fn fused_layer(&self, layer: &FusedExperts) -> Option<Estimate> {
        if layer.tokens == 0 {
            return None;
        }
        let near = names::neighbours(layer.format).iter();
        let (format, curve) = near.filter_map(|near| Some((*near, self.experts_curve(layer, *near)?))).next()?;
        let (seconds, outside) = curve.seconds(layer, &self.roofline.cluster().gpu);
        let fitted = Fitted { seconds: Seconds::new(seconds), residuals: &curve.residuals, outside };
        let found = fitted.estimate(EXPERT_AXES);
        let same = names::of_format("experts", format) == names::of_format("experts", layer.format);
        Some(self.own(if same { found } else { found.borrowed("format of experts") }))
    }

    /// The curve of a format for the kernel and the variant that a layer is, or for the plainest one.
    fn experts_curve(&self, layer: &FusedExperts, format: Format) -> Option<&ExpertsCurve> {
        kernel::curve(&self.profile.experts, format, layer.tactic, [layer.gated, layer.has_experts_elsewhere()])
    }

    /// An estimate of this card, or one that is borrowed.
    pub(super) fn own(&self, found: Estimate) -> Estimate {
        match self.lender {
            Some(lender) => found.lent(lender, super::ANOTHER_CARD),
            None => found,
        }
    }
}

fn faster(a: Estimate, b: Estimate) -> Estimate {
    if a.time <= b.time { a } else { b }
}

fn halved(both: Estimate) -> Estimate {
    both.scaled(0.5)
}
