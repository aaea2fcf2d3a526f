//! Fitted curves and residuals of one device (`profiles/*.toml`), and the cost model that reads them.
//!
//! A fitted operator is the roofline's base times a `Surface`, plus a start-up. GEMM axes are m, n, k; attention axes are the
//! mean keys per query doubled (the length of a whole causal document), the query tiles of all documents together, so that
//! a packed micro-batch costs the sum of its documents at the occupancy of all of them. Collectives are curves over bytes.
//! The interval is the 5 % and 95 % quantile of the residuals of rows that the fit did not see.

use std::collections::BTreeMap;

use hw::{Cluster, Dtype, GroupShape, Seconds};
use serde::{Deserialize, Serialize};

use crate::cost::roofline::{ATTENTION_BACKWARD, Roofline, datasheet};
use crate::cost::surface::Surface;
use crate::cost::{CostModel, Estimate, Source};
use crate::task::{Collective, Document, Op, Pass};

/// Schema of profile files.
pub const SCHEMA: &str = "skrull-sim/profile/1";
/// Query rows of one tile of a flash attention kernel.
pub const ATTENTION_TILE: u64 = 128;
/// Factor by which an interval widens outside the hull, on each side.
const OUTSIDE_WIDENING: f64 = 1.3;
/// Spread of attention backward around its factor, which is published and not measured here.
const BACKWARD_SPREAD: f64 = 1.2;

/// A profile file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `SCHEMA`.
    pub schema: String,
    /// Name, as scenarios give it.
    pub name: String,
    /// GPU of the catalogue that it is for.
    pub gpu: String,
    /// Where the rows come from.
    pub source: String,
    /// When it was fitted.
    pub date: String,
    /// Fitted kernels by name: `gemm`, `attention-64`, `attention-128`.
    pub operators: BTreeMap<String, Operator>,
    /// Fitted collectives inside a node.
    pub collectives: Vec<CollectiveCurve>,
    /// Fitted messages between two GPUs.
    #[serde(default)]
    pub links: Vec<Link>,
}

/// A fitted message between two GPUs: seconds = alpha + bytes over bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Whether the GPUs are in different nodes.
    pub crosses_nodes: bool,
    /// Start-up, seconds.
    pub alpha_s: f64,
    /// Bandwidth that large messages reach, 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Datasheet bandwidth of the measured network port, where nodes are crossed; another machine's is in proportion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_gb_per_s: Option<f64>,
    /// Largest measured message.
    pub bytes_max: f64,
    /// Error on unseen sizes.
    pub residuals: Residuals,
}

/// How well a fit does on rows that it did not see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residuals {
    /// Rows that were fitted.
    pub n_fit: usize,
    /// Rows that were held out.
    pub n_held_out: usize,
    /// Median of |predicted / measured − 1| over held-out rows.
    pub median_error: f64,
    /// 90 % quantile of the same.
    pub p90_error: f64,
    /// 5 % quantile of measured / predicted.
    pub low: f64,
    /// 95 % quantile of measured / predicted.
    pub high: f64,
}

/// A fitted kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operator {
    /// Error on unseen rows.
    pub residuals: Residuals,
    /// Start-up, seconds.
    pub start_s: f64,
    /// Correction of the roofline base.
    pub surface: Surface,
}

/// A fitted collective inside a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCurve {
    /// `all_gather`, `reduce_scatter`, `all_reduce` or `all_to_all`.
    pub kind: String,
    /// Ranks.
    pub n_ranks: u32,
    /// Error on unseen sizes.
    pub residuals: Residuals,
    /// Bytes as `task::Collective` defines them, increasing.
    pub bytes: Vec<f64>,
    /// Seconds at each size.
    pub seconds: Vec<f64>,
}

/// Names of collectives in profile files.
const COLLECTIVES: [&str; 4] = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"];

/// Name of a collective in profile files.
#[must_use]
pub const fn collective_name(kind: Collective) -> Option<&'static str> {
    match kind {
        Collective::AllGather => Some("all_gather"),
        Collective::ReduceScatter => Some("reduce_scatter"),
        Collective::AllReduce => Some("all_reduce"),
        Collective::AllToAll => Some("all_to_all"),
        Collective::RingShift | Collective::SendRecv => None,
    }
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// What is wrong with the file, with its line where the format is broken.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            format!("line {line}: {}", error.message())
        })?;
        if profile.schema != SCHEMA {
            return Err(format!("schema is `{}`, expected `{SCHEMA}`", profile.schema));
        }
        for (name, operator) in &profile.operators {
            let n_axes = operator.surface.axes.len();
            if n_axes != 3 {
                return Err(format!("operator `{name}` has {n_axes} axes, expected 3"));
            }
            operator.surface.check().map_err(|why| format!("operator `{name}`: {why}"))?;
            check_residuals(&operator.residuals).map_err(|why| format!("operator `{name}`: {why}"))?;
            if !operator.start_s.is_finite() || operator.start_s < 0.0 {
                return Err(format!("operator `{name}`: `start_s` is {}, must be at least 0", operator.start_s));
            }
        }
        for curve in &profile.collectives {
            if !COLLECTIVES.contains(&curve.kind.as_str()) || curve.n_ranks < 2 {
                let allowed = COLLECTIVES.join(", ");
                return Err(format!(
                    "collective `{}` of {} ranks: allowed are {allowed} of 2 or more",
                    curve.kind, curve.n_ranks
                ));
            }
            let sorted = curve.bytes.windows(2).all(|pair| pair[0] < pair[1]);
            let positive = curve.bytes.iter().chain(&curve.seconds).all(|value| value.is_finite() && *value > 0.0);
            if curve.bytes.is_empty() || curve.bytes.len() != curve.seconds.len() || !sorted || !positive {
                let what = "`bytes` and `seconds` must be positive, of one length, and `bytes` increasing";
                return Err(format!("collective `{}` of {} ranks: {what}", curve.kind, curve.n_ranks));
            }
            check_residuals(&curve.residuals).map_err(|why| format!("collective `{}`: {why}", curve.kind))?;
        }
        for link in &profile.links {
            if !(link.alpha_s >= 0.0 && link.gb_per_s > 0.0 && link.port_gb_per_s.is_none_or(|port| port > 0.0)) {
                return Err("a link needs `alpha_s` of at least 0 and positive bandwidths".to_owned());
            }
            check_residuals(&link.residuals).map_err(|why| format!("link: {why}"))?;
        }
        Ok(profile)
    }

    /// The profile as a file.
    ///
    /// # Panics
    /// Never: every part of a profile has a TOML form.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile has a TOML form")
    }
}

fn check_residuals(residuals: &Residuals) -> Result<(), String> {
    let (low, high) = (residuals.low, residuals.high);
    if low.is_finite() && high.is_finite() && 0.0 < low && low <= 1.0 && high >= 1.0 {
        return Ok(());
    }
    Err(format!("residual quantiles must lie around 1, found {low} and {high}"))
}

/// A profile on a cluster, with the roofline where the profile is silent.
#[derive(Clone, Debug)]
pub struct Profiled {
    profile: Profile,
    roofline: Roofline,
}

impl Profiled {
    /// Cost model of a cluster from a profile.
    #[must_use]
    pub fn new(profile: &Profile, cluster: &Cluster) -> Self {
        let roofline = Roofline::new(cluster);
        let mut network = roofline.network();
        for link in &profile.links {
            match link.port_gb_per_s {
                Some(port) if link.crosses_nodes => {
                    network.across_alpha_s = link.alpha_s;
                    network.across_share = link.gb_per_s / port;
                }
                _ => network.inside_alpha_s = link.alpha_s,
            }
        }
        Self { profile: profile.clone(), roofline: roofline.with_network(network) }
    }

    /// A message between two GPUs.
    fn message(&self, bytes: u64, shape: GroupShape) -> Option<Estimate> {
        let crosses = shape.n_nodes > 1;
        let link = self.profile.links.iter().find(|link| link.crosses_nodes == crosses)?;
        let scale = match link.port_gb_per_s {
            Some(port) if crosses => self.roofline.cluster().nic_bandwidth.get() / (port * 1e9),
            _ => 1.0,
        };
        let bytes = hw::Bytes(bytes).as_f64();
        let seconds = link.alpha_s + bytes / (link.gb_per_s * 1e9 * scale);
        let outside = (bytes > link.bytes_max * 1.5 || (scale - 1.0).abs() > 0.01).then_some(0);
        let fitted = Fitted { seconds: Seconds::new(seconds), residuals: &link.residuals, outside };
        Some(fitted.estimate(["message bytes or network", "", ""]))
    }

    fn fitted(&self, name: &str, parts: impl Iterator<Item = (Seconds, Vec<f64>)>) -> Option<Fitted<'_>> {
        let operator = self.profile.operators.get(name)?;
        let mut seconds = operator.start_s;
        let mut outside = None;
        for (base, point) in parts {
            let (factor, axis) = operator.surface.factor(&point);
            seconds += base.get() * factor;
            outside = outside.or(axis);
        }
        Some(Fitted { seconds: Seconds::new(seconds), residuals: &operator.residuals, outside })
    }

    fn gemm(&self, m: u64, n: u64, k: u64, dtype: Dtype) -> Option<Estimate> {
        let point = [m, n, k].map(|size| hw::Tokens(size).as_f64()).to_vec();
        let base = self.roofline.gemm_base(m, n, k, dtype);
        let fitted = self.fitted(gemm_name(dtype)?, std::iter::once((base, point)))?;
        Some(fitted.estimate(["gemm m", "gemm n", "gemm k"]))
    }

    /// Experts one after another at each one's own efficiency with one start-up. The fused kernel itself was not fitted,
    /// so the estimate counts as outside the hull.
    fn grouped_gemm(&self, rows: &[u64], n: u64, k: u64, dtype: Dtype) -> Option<Estimate> {
        let parts = rows.iter().filter(|&&m| m > 0).map(|&m| {
            let point = [m, n, k].map(|size| hw::Tokens(size).as_f64()).to_vec();
            (self.roofline.gemm_base(m, n, k, dtype), point)
        });
        let fitted = self.fitted("gemm", parts).filter(|_| matches!(dtype, Dtype::Bf16 | Dtype::Fp16))?;
        Some(Fitted { outside: Some(0), ..fitted }.estimate(["grouped gemm", "", ""]))
    }

    /// Fitted attention of a head width; widths between the measured ones take the nearest below that is measured.
    fn attention_name(&self, head_dim: u64) -> Option<&'static str> {
        let measured = |name: &&str| self.profile.operators.contains_key(*name);
        let names = if head_dim >= 128 { ["attention-128", "attention-64"] } else { ["attention-64", "attention-128"] };
        names.into_iter().find(measured)
    }

    fn attention(&self, op: &Attention<'_>) -> Option<Estimate> {
        let name = self.attention_name(op.head_dim)?;
        let tiles: u64 = op.documents.iter().map(|d| op.n_heads * d.queries.div_ceil(ATTENTION_TILE)).sum();
        let group = hw::Tokens(op.n_heads).as_f64() / hw::Tokens(op.n_kv_heads).as_f64();
        let parts = op.documents.iter().map(|document| {
            let base = self.roofline.attention_base(document, op.n_heads, op.n_kv_heads, op.head_dim);
            (base, vec![document_length(document), hw::Tokens(tiles).as_f64(), group])
        });
        let fitted = self.fitted(name, parts)?;
        Some(fitted.estimate([
            "attention document length",
            "attention query tiles",
            "attention heads per key-value head",
        ]))
    }

    fn collective(&self, op: &Op) -> Option<Estimate> {
        let Op::Collective { kind, bytes, shape } = op else { return None };
        if *kind == Collective::SendRecv {
            return self.message(*bytes, *shape);
        }
        if shape.n_nodes != 1 {
            return None;
        }
        // A hop around a ring is the 1/(n−1) part of an all-gather of n messages.
        let (name, bytes, factor) = match collective_name(*kind) {
            Some(name) => (name, hw::Bytes(*bytes).as_f64(), 1.0),
            None => {
                let n = f64::from(shape.n_ranks);
                ("all_gather", hw::Bytes(*bytes).as_f64() * n, 1.0 / (n - 1.0).max(1.0))
            }
        };
        let curves = self.profile.collectives.iter().filter(|curve| curve.kind == name);
        let curve = curves.min_by_key(|curve| curve.n_ranks.abs_diff(shape.n_ranks))?;
        // Ranks that were not measured take the nearest count's curve, scaled by the ring's share of bytes that move.
        let moves = |n: u32| f64::from(n - 1) / f64::from(n);
        let scale = if shape.n_ranks < 2 { 0.0 } else { moves(shape.n_ranks) / moves(curve.n_ranks) };
        let (seconds, outside) = curve.at(bytes);
        let outside = (outside || curve.n_ranks != shape.n_ranks).then_some(0);
        let fitted = Fitted { seconds: Seconds::new(seconds * factor * scale), residuals: &curve.residuals, outside };
        Some(fitted.estimate(["collective bytes or ranks", "", ""]))
    }
}

/// Fitted operator of products in a number format.
const fn gemm_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::Bf16 | Dtype::Fp16 => Some("gemm"),
        Dtype::Fp8 => Some("gemm-fp8"),
        Dtype::Fp32 => None,
    }
}

/// Length of the whole causal document that has the same keys per query.
#[must_use]
pub fn document_length(document: &Document) -> f64 {
    2.0 * hw::Tokens(document.pairs).as_f64() / hw::Tokens(document.queries.max(1)).as_f64()
}

struct Attention<'a> {
    documents: &'a [Document],
    n_heads: u64,
    n_kv_heads: u64,
    head_dim: u64,
}

struct Fitted<'a> {
    seconds: Seconds,
    residuals: &'a Residuals,
    outside: Option<usize>,
}

impl Fitted<'_> {
    fn estimate(&self, axes: [&'static str; 3]) -> Estimate {
        let time = self.seconds;
        let widening = if self.outside.is_some() { OUTSIDE_WIDENING } else { 1.0 };
        Estimate {
            time,
            low: time * (self.residuals.low / widening),
            high: time * (self.residuals.high * widening),
            source: Source::Measured,
            outside: if self.outside.is_some() { time } else { Seconds::ZERO },
            dimension: self.outside.map(|axis| axes[axis]),
        }
    }
}

impl CollectiveCurve {
    /// Seconds for a size, straight in logarithms between measured sizes, and whether it lies outside them.
    fn at(&self, bytes: f64) -> (f64, bool) {
        let last = self.bytes.len() - 1;
        if last == 0 || bytes <= self.bytes[0] {
            return (self.seconds[0], bytes < self.bytes[0]);
        }
        let (low, high) = {
            let upper = self.bytes.partition_point(|size| *size <= bytes).clamp(1, last);
            (upper - 1, upper)
        };
        if bytes > self.bytes[last] {
            // Beyond the largest size the last bandwidth holds.
            return (self.seconds[last] * bytes / self.bytes[last], true);
        }
        let part = libm::log(bytes / self.bytes[low]) / libm::log(self.bytes[high] / self.bytes[low]);
        let log = libm::log(self.seconds[low]) * (1.0 - part) + libm::log(self.seconds[high]) * part;
        (libm::exp(log), false)
    }
}

impl CostModel for Profiled {
    fn elementary(&self, op: &Op) -> Estimate {
        let fitted = match op {
            Op::Gemm { m, n, k, dtype } => self.gemm(*m, *n, *k, *dtype),
            Op::GroupedGemm { rows, n, k, dtype } => self.grouped_gemm(rows, *n, *k, *dtype),
            Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass } => {
                let attention =
                    Attention { documents, n_heads: *n_heads, n_kv_heads: *n_kv_heads, head_dim: *head_dim };
                self.attention(&attention)
                    .map(|forward| if *pass == Pass::Forward { forward } else { backward(forward) })
            }
            Op::Collective { .. } => self.collective(op),
            _ => None,
        };
        fitted.unwrap_or_else(|| datasheet(self.roofline.elementary(op).time))
    }

    fn least(&self, op: &Op) -> Seconds {
        let attention = |n_heads: u64, n_kv_heads: u64, head_dim: u64, documents: &[Document], pass: Pass| {
            let operator = &self.profile.operators[self.attention_name(head_dim)?];
            let group = hw::Tokens(n_heads).as_f64() / hw::Tokens(n_kv_heads).as_f64();
            let longest = documents.iter().map(|document| document.keys).max().unwrap_or(1);
            // A late chunk of a document sees at most all keys for each query, as the middle of one twice as long.
            let lengths = (1.0, 2.0 * hw::Tokens(longest).as_f64());
            let factor = operator.surface.least(&[lengths, (1.0, f64::MAX), (1.0, group.max(1.0))]);
            let passes = if pass == Pass::Forward { 1.0 } else { ATTENTION_BACKWARD };
            Some(self.roofline.attention_flops(op) * (factor * passes))
        };
        let known = match op {
            Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass } => {
                attention(*n_heads, *n_kv_heads, *head_dim, documents, *pass)
            }
            Op::Gemm { dtype, .. } | Op::GroupedGemm { dtype, .. } => {
                gemm_name(*dtype).and_then(|name| self.profile.operators.get(name)).map(|operator| {
                    let factor = operator.surface.least(&[(1.0, f64::MAX); 3]);
                    hw::Flops::new(op.flops()) / self.roofline.cluster().gpu.peak(*dtype) * factor
                })
            }
            _ => None,
        };
        known.unwrap_or_else(|| self.roofline.least(op))
    }
}

/// Attention backward from forward: the factor is published, not measured on this device.
fn backward(forward: Estimate) -> Estimate {
    Estimate {
        time: forward.time * ATTENTION_BACKWARD,
        low: forward.low * (ATTENTION_BACKWARD / BACKWARD_SPREAD),
        high: forward.high * (ATTENTION_BACKWARD * BACKWARD_SPREAD),
        outside: forward.outside * ATTENTION_BACKWARD,
        source: forward.source.max(Source::Published),
        dimension: forward.dimension,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let axis =
            |name: &str, knots: &[f64]| crate::cost::surface::Axis { name: name.to_owned(), knots: knots.to_vec() };
        let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.03, p90_error: 0.1, low: 0.9, high: 1.2 };
        let axes = vec![axis("m", &[1.0, 1024.0]), axis("n", &[1.0, 1024.0]), axis("k", &[1.0, 1024.0])];
        let surface = Surface { axes, values: vec![0.5; 8] };
        let gemm = Operator { residuals: residuals.clone(), start_s: 2e-6, surface };
        let curve = CollectiveCurve {
            kind: "all_gather".to_owned(),
            n_ranks: 8,
            residuals,
            bytes: vec![1e3, 1e6],
            seconds: vec![1e-5, 1e-4],
        };
        Profile {
            schema: SCHEMA.to_owned(),
            name: "test".to_owned(),
            gpu: "h100-sxm".to_owned(),
            source: "test".to_owned(),
            date: "2026-11-20".to_owned(),
            operators: [("gemm".to_owned(), gemm)].into(),
            collectives: vec![curve],
            links: Vec::new(),
        }
    }

    fn estimate(op: &Op) -> Estimate {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        Profiled::new(&profile(), &hw::catalog::cluster(&gpu, 1, 8)).estimate(op)
    }

    #[test]
    fn inside_the_hull_the_estimate_is_measured_and_lies_in_its_interval() {
        let found = estimate(&Op::Gemm { m: 512, n: 512, k: 512, dtype: Dtype::Bf16 });
        assert_eq!((found.source, found.dimension), (Source::Measured, None));
        assert!(
            (found.low.get() / found.time.get() - 0.9).abs() < 1e-9
                && (found.high.get() / found.time.get() - 1.2).abs() < 1e-9
        );
    }

    #[test]
    fn outside_the_hull_the_dimension_is_named_and_the_interval_widens() {
        let found = estimate(&Op::Gemm { m: 512, n: 4096, k: 512, dtype: Dtype::Bf16 });
        assert_eq!(found.dimension, Some("gemm n"));
        assert_eq!(found.outside, found.time);
        assert!(found.high.get() > found.time.get() * 1.5);
        assert_eq!(estimate(&Op::Gemm { m: 1, n: 1, k: 1, dtype: Dtype::Fp32 }).source, Source::Datasheet);
    }

    #[test]
    fn collectives_run_straight_in_logarithms_between_measured_sizes() {
        // Half-way between 1e3 and 1e6 bytes in logarithms: the geometric mean of 1e-5 and 1e-4 s.
        let shape = hw::GroupShape { n_ranks: 8, n_nodes: 1 };
        let found = estimate(&Op::Collective { kind: Collective::AllGather, bytes: 31_623, shape });
        assert!((found.time.get() / 1e-9_f64.sqrt() - 1.0).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_with_a_reason() {
        let good = profile().to_toml();
        assert_eq!(Profile::parse(&good), Ok(profile()));
        for (from, to, reason) in [
            ("schema = \"skrull-sim/profile/1\"", "schema = \"other\"", "schema"),
            ("knots = [1.0, 1024.0]", "knots = [1024.0, 1.0]", "increasing"),
            ("values = [0.5", "values = [nan", "finite"),
            ("values = [0.5, ", "values = [", "knots"),
            ("low = 0.9", "low = -1.0", "quantiles"),
            ("n_ranks = 8", "n_ranks = 1", "2 or more"),
            ("all_gather", "all_gathers", "allowed"),
            ("date", "dade", "line"),
            ("start_s = 0.000002", "start_s = -1.0", "start_s"),
        ] {
            assert!(good.contains(from), "`{from}` is not in the file:\n{good}");
            let why = Profile::parse(&good.replacen(from, to, 1)).expect_err(to);
            assert!(why.contains(reason), "{to}: {why}");
        }
        for end in [good.len() / 4, good.len() / 2, good.len() - 5] {
            assert!(Profile::parse(&good[..end]).is_err(), "cut at {end}");
        }
    }
}
