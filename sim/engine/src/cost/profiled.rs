//! The cost model that a profile gives: fitted kernels where it has them, the roofline where it is silent.
//!
//! A fitted operator is a base times a `Surface`, plus a start-up; the base is the operator's law, or the datasheet roofline. GEMM
//! axes are m, n, k; attention axes are the mean keys per query doubled (the length of a whole causal document), the query tiles of
//! all documents together, so that a packed micro-batch costs the sum of its documents at the occupancy of all of them, and heads per
//! key-value head. Collectives and memory-bound kernels are curves over bytes. The interval is the 5 % and 95 % quantile of the
//! residuals of rows that the fit did not see.

pub mod borrowed;
mod engine;
mod links;
mod powered;

use hw::{Cluster, Dtype, Format, GroupShape, InsideLink, Seconds};

use crate::cost::decode::{DecodeShape, ShapedDecode};
use crate::cost::experts::FusedExperts;
use crate::cost::law::Law;
use crate::cost::mixed::MixedChunk;
use crate::cost::names;
use crate::cost::profile::{CollectiveCurve, Operator, Profile, Residuals, memory_bound};
use crate::cost::reduce::ReduceKernel;
use crate::cost::roofline::{ATTENTION_BACKWARD, Roofline, datasheet};
use crate::cost::{CostModel, Estimate, OUTSIDE_WIDENING, Source};
use crate::cost::{collective, curve};
use crate::task::{Collective, Document, Op, Pass, PassKind};
use links::{begun, is_same, over_link, own_link_ratio};

/// Query rows of one tile of a flash attention kernel.
pub const ATTENTION_TILE: u64 = 128;
pub use crate::cost::names::{CUSTOM_ALL_REDUCE, GROUPED_GEMM};

/// Rows of the tiles of products in 8 bits beyond few rows (`sm90_fp8_config_default` of csrc/quantization/w8a8/cutlass/c3x in vLLM: 128 rows, two blocks
/// of threads beside each other).
const TILE_ROWS: u64 = 256;
/// Keys per query that a window's second edge computes in vain: half a tile, as the diagonal does.
const WINDOW_EDGE: u64 = ATTENTION_TILE / 2;
/// Products with a scale for every 32 elements over those with one for a tensor, on units that scale blocks: 7.161 over 6.812 ms for those of a layer on B300, of
/// operands that are narrow already (Transformer Engine @ d0067d0da6cb, `docs/examples/gemm_profiling/gemm_profiling.rst`).
pub const BLOCKS_OVER_TENSORS: f64 = 1.051;
/// Dimension of estimates from another card's profile.
const ANOTHER_CARD: &str = "another card's profile";
/// Spread of attention backward around its factor, where only forward was measured.
const BACKWARD_SPREAD: f64 = 1.2;

/// A profile on a cluster, with the roofline where the profile is silent.
#[derive(Clone, Debug)]
pub struct Profiled {
    profile: Profile,
    roofline: Roofline,
    /// How near the card is that lent the profile, where another one did.
    lender: Option<Source>,
    /// What `own_link_ratio` finds, once for all estimates.
    own_link: Option<f64>,
}

impl Profiled {
    /// Cost model of a cluster from a profile.
    pub fn new(profile: &Profile, cluster: &Cluster) -> Self {
        let roofline = Roofline::new(cluster);
        let mut network = roofline.network();
        let [inside_s, across_s] = links::later_s(cluster);
        for link in &profile.links {
            match link.port_gb_per_s {
                Some(port) if link.crosses_nodes => {
                    network.across_share = link.gb_per_s / port;
                    network.across_alpha_s = (link.alpha_s + across_s).max(0.0);
                }
                _ => network.inside_alpha_s = (link.alpha_s + inside_s).max(0.0),
            }
        }
        let (lender, own_link) = (profile.lender(), own_link_ratio(profile, cluster));
        Self { profile: profile.clone(), roofline: roofline.with_network(network), lender, own_link }
    }

    /// The same where large exchanges reach such shares of the links inside a node and of the ports between nodes.
    pub fn with_link_shares(self, [inside_share, across_share]: [f64; 2]) -> Self {
        let network = collective::Network { inside_share, across_share, ..self.roofline.network() };
        Self { roofline: self.roofline.with_network(network), ..self }
    }

    /// A message between two GPUs.
    fn message(&self, bytes: u64, shape: GroupShape) -> Option<Estimate> {
        let crosses = shape.n_nodes > 1;
        let inside = if crosses { 1.0 } else { self.link_ratio(shape.n_ranks, shape)? };
        let later_s = links::later_s(self.roofline.cluster())[usize::from(crosses)];
        let link = self.profile.links.iter().find(|link| link.crosses_nodes == crosses)?;
        let scale = match link.port_gb_per_s {
            Some(port) if crosses => self.port(Collective::SendRecv, shape) / (port * 1e9),
            _ => 1.0 / inside,
        };
        let bytes = hw::real(bytes);
        let seconds = (link.alpha_s + later_s).max(0.0) + bytes / (link.gb_per_s * 1e9 * scale);
        let is_other = (scale - 1.0).abs() > 0.01 || later_s != 0.0;
        let outside = (bytes > link.bytes_max * 1.5 || is_other).then_some(0);
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

    /// An operation by the fitted shape of its kernel, if the profile has one.
    fn by_law(&self, name: &str, op: &Op, point: &[f64]) -> Option<Fitted<'_>> {
        let operator = self.profile.operators.get(name)?;
        let (start, rest) = operator.law.as_ref()?.seconds(op)?;
        let (factor, outside) = operator.surface.factor(point);
        Some(Fitted { seconds: Seconds::new(start + rest * factor), residuals: &operator.residuals, outside })
    }

    /// An operation whose time depends on its bytes alone.
    fn memory(&self, op: &Op) -> Option<Estimate> {
        let (name, bytes) = memory_bound(op)?;
        let curve = self.profile.memory.get(name)?;
        let (seconds, outside) = curve::at(&curve.bytes, &curve.seconds, hw::real(bytes));
        let outside = outside.then_some(0);
        Some(
            Fitted { seconds: Seconds::new(seconds), residuals: &curve.residuals, outside }.estimate(["bytes", "", ""]),
        )
    }

    /// A product by the curve of its format, or by that of the nearest format that was fitted.
    fn gemm(&self, m: u64, n: u64, k: u64, format: Format) -> Option<Estimate> {
        let found = |near: &Format| self.gemm_as(m, n, k, format, gemm_name(*near)).map(|found| (*near, found));
        let (near, found) = names::neighbours(format).iter().find_map(found)?;
        if gemm_name(near) == gemm_name(format) {
            return Some(found);
        }
        Some(found.scaled(self.over_neighbour(format, near)).borrowed("format of a product"))
    }

    /// How many times as long a product takes as one of the format that lends its curve, beyond what both datasheets say.
    fn over_neighbour(&self, format: Format, near: Format) -> f64 {
        let scales_blocks = self.roofline.cluster().gpu.multiplies(Format::Mxfp8);
        if (format, near) == (Format::Mxfp8, Format::Fp8) && scales_blocks { BLOCKS_OVER_TENSORS } else { 1.0 }
    }

    /// By a curve of a name, or by that of whole tiles where the rows fill them and there is one. Kernels of CUTLASS take up to twice as long for a row more:
    /// 8192 by 12,288 in 8 bits takes 87 µs with 512 rows on H100, and 171 with 513. What 256 rows and fewer take has knots at the edges of tiles.
    fn gemm_as(&self, m: u64, n: u64, k: u64, format: Format, name: &str) -> Option<Estimate> {
        let fills_tiles = m > TILE_ROWS && m.is_multiple_of(TILE_ROWS) && name == gemm_name(Format::Fp8);
        let has_own = fills_tiles && self.profile.operators.contains_key(names::WHOLE_TILES);
        let name = if has_own { names::WHOLE_TILES } else { name };
        let point = [m, n, k].map(hw::real).to_vec();
        let axes = ["gemm m", "gemm n", "gemm k"];
        if let Some(fitted) = self.by_law(name, &Op::Gemm { m, n, k, format }, &point) {
            return Some(fitted.estimate(axes));
        }
        let base = self.roofline.gemm_base(m, n, k, format);
        Some(self.fitted(name, std::iter::once((base, point)))?.estimate(axes))
    }

    /// How much slower the link among so many GPUs of a group's node is than the one over which curves were measured; `None` where they say nothing of it.
    fn link_ratio(&self, n_gpus: u32, shape: GroupShape) -> Option<f64> {
        let is_own = !shape.crosses_islands && self.roofline.cluster().inside_link(n_gpus) == InsideLink::Own;
        self.own_link.filter(|_| is_own)
    }

    /// How much slower the ports of the cluster are than those over which a curve between nodes was measured; `None` where it says nothing of them.
    fn port_ratio(&self, curve: &CollectiveCurve, kind: Collective, shape: GroupShape) -> Option<f64> {
        Some(curve.port_gb_per_s? * 1e9 / self.port(kind, shape))
    }

    /// Bytes per second that a port has for an exchange, where links above leaves carry less.
    fn port(&self, kind: Collective, shape: GroupShape) -> f64 {
        let cluster = self.roofline.cluster();
        cluster.nic_bandwidth.get() / collective::above_leaves(cluster, kind, shape)
    }

    /// Experts one after another at each one's own efficiency with one start-up. What training runs was not fitted, so the estimate
    /// counts as outside the hull.
    fn grouped_gemm(&self, rows: &[u64], n: u64, k: u64, format: Format) -> Option<Estimate> {
        let law = self.profile.operators.get("gemm")?.law.as_ref();
        let parts = rows.iter().filter(|&&m| m > 0).map(|&m| {
            let point = [m, n, k].map(hw::real).to_vec();
            let by_law = law.and_then(|law| law.seconds(&Op::Gemm { m, n, k, format }));
            (by_law.map_or_else(|| self.roofline.gemm_base(m, n, k, format), |(_, rest)| Seconds::new(rest)), point)
        });
        let fitted = self.fitted("gemm", parts).filter(|_| matches!(format, Format::Bf16 | Format::Fp16))?;
        Some(Fitted { outside: Some(0), ..fitted }.estimate(["grouped gemm", "", ""]))
    }

    /// Narrow products of experts as training runs them: one of the library for each expert (Transformer Engine, `nvte_multi_tensor_gemm`, whose
    /// `multi_stream_cublas_gemm` puts them on a few streams). Tables of grouped products have 16 bits alone. Engines that serve have kernels of their own,
    /// which their tables hold.
    fn narrow_experts(&self, rows: &[u64], n: u64, k: u64, format: Format, kind: PassKind) -> Option<Estimate> {
        if format.is_whole() || !self.profile.experts.is_empty() {
            return None;
        }
        let is_narrow = |near: &Format| !near.is_whole() && self.profile.operators.contains_key(gemm_name(*near));
        names::neighbours(format).iter().any(is_narrow).then_some(())?;
        let mut all: Option<Estimate> = None;
        for equal in rows.chunk_by(|a, b| a == b).filter(|equal| equal[0] > 0) {
            let m = equal[0];
            let [m, n, k] = if kind == PassKind::Weight { [n, k, m] } else { [m, n, k] };
            let found = self.gemm(m, n, k, format)?.times(u32::try_from(equal.len()).expect("few experts"));
            all = Some(all.map_or(found, |before| before.then(found)));
        }
        all
    }

    /// Experts in one launch as training runs them, by the curve of the pass.
    fn grouped_training(&self, rows: &[u64], n: u64, k: u64, format: Format, kind: PassKind) -> Option<Estimate> {
        let n_active = rows.iter().filter(|&&m| m > 0).count() as u64;
        let active = hw::real(n_active.max(1));
        let base: Seconds = rows.iter().map(|&m| self.roofline.gemm_base(m, n, k, format)).sum();
        let point = vec![hw::real(rows.iter().sum()) / active, active, hw::real(n * k)];
        let fitted = self.fitted(names::grouped_training(kind), std::iter::once((base, point)))?;
        let found = fitted.estimate(["rows per expert", "experts with rows", "elements of an expert"]);
        Some(if format.is_whole() { found } else { found.borrowed("format of a product") })
    }

    /// Attention by a law: the surface is asked once, at the mean document and the occupancy of all.
    fn attention_by_law(&self, op: &Op) -> Option<Estimate> {
        let Op::Attention { head_dim, pass, .. } = op else { return None };
        let point = attention_point(op)?;
        let by_pass =
            |pass| attention_names(*head_dim, pass).into_iter().find_map(|name| self.by_law(name, op, &point));
        if let Some(fitted) = by_pass(*pass) {
            return Some(fitted.estimate(ATTENTION_AXES));
        }
        (*pass == Pass::Backward)
            .then(|| by_pass(Pass::Forward))?
            .map(|fitted| backward(fitted.estimate(ATTENTION_AXES)))
    }

    /// Fitted attention of a head width and a format of keys and values, and whether it is of another format.
    fn attention_name(&self, kernel: &str, op: &Attention<'_>) -> Option<(String, bool)> {
        let latent = op.head_dim == LATENT_DIM && op.n_kv_heads == op.n_heads;
        let latent_names = [op.kv, Dtype::Bf16].map(|kv| names::of_width(kernel, None, kv));
        let names = latent_names.into_iter().filter(|_| latent);
        let mut names = names.chain(names::nearest(kernel, op.head_dim, op.kv));
        let name = names.find(|name| self.profile.operators.contains_key(name))?;
        let is_other = op.kv.bytes() == 1 && !name.ends_with("p8") && !name.ends_with("t8");
        Some((name, is_other))
    }

    /// Attention, or its backward, by the correction of the datasheet's forward.
    fn attention(&self, kernel: &str, op: &Attention<'_>) -> Option<Estimate> {
        let (name, is_other) = self.attention_name(kernel, op)?;
        let tiles: u64 = op.documents.iter().map(|d| op.n_heads * d.queries.div_ceil(ATTENTION_TILE)).sum();
        let group = hw::real(op.n_heads) / hw::real(op.n_kv_heads);
        let parts = op.documents.iter().map(computed).map(|document| {
            let base = self.roofline.attention_base(&document, op.n_heads, op.n_kv_heads, op.head_dim);
            (base, vec![document_length(&document), hw::real(tiles), group])
        });
        let found = self.fitted(&name, parts)?.estimate(ATTENTION_AXES);
        Some(if is_other { found.borrowed("format of keys and values") } else { found })
    }

    /// Whether an operation has a curve of this very card among those that another one lent.
    fn is_of_card(&self, op: &Op) -> bool {
        let Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass } = op else { return false };
        let (n_heads, n_kv_heads, head_dim, kv) = (*n_heads, *n_kv_heads, *head_dim, *kv);
        let kernel = if *pass == Pass::Forward { "attention" } else { "attention-backward" };
        let name = self.attention_name(kernel, &Attention { documents, n_heads, n_kv_heads, head_dim, kv });
        name.is_some_and(|(name, _)| self.profile.own.contains(&name))
    }

    fn collective(&self, op: &Op) -> Option<Estimate> {
        let Op::Collective { kind, bytes, shape } = op else { return None };
        self.by_curve((*kind, *bytes), *shape, shape.n_ranks).or_else(|| self.over_nodes(op))
    }

    /// An exchange over nodes that was not measured, where as many GPUs of one node take longer by their curve than the model says of nodes: it is no faster.
    fn over_nodes(&self, op: &Op) -> Option<Estimate> {
        let Op::Collective { kind, bytes, shape } = op else { return None };
        if shape.n_nodes < 2 {
            return None;
        }
        let one = GroupShape { n_nodes: 1, ..*shape };
        let inside = self.by_curve((*kind, *bytes), one, shape.n_ranks.div_ceil(shape.n_nodes))?;
        (inside.time > self.roofline.elementary(op).time).then(|| inside.borrowed("collective over nodes"))
    }

    /// An exchange by a measured curve, where so many GPUs of a node say its link inside.
    fn by_curve(&self, (kind, moved): (Collective, u64), shape: GroupShape, n_inside: u32) -> Option<Estimate> {
        let messages = |curve: &CollectiveCurve| curve.kind == "send_recv";
        if kind == Collective::SendRecv && !self.profile.collectives.iter().any(messages) {
            return self.message(moved, shape);
        }
        // A hop around a ring is the 1/(n−1) part of an all-gather of n messages.
        let crosses = shape.n_nodes > 1;
        let of_place = |curve: &&CollectiveCurve| (curve.n_nodes > 1) == crosses;
        let is_measured = |name: &str| self.profile.collectives.iter().filter(of_place).any(|curve| curve.kind == name);
        let (name, bytes, factor) = if kind == Collective::RingShift && !is_measured("ring_shift") {
            let n = f64::from(shape.n_ranks);
            ("all_gather", hw::real(moved) * n, 1.0 / (n - 1.0).max(1.0))
        } else {
            (kind.name(), hw::real(moved), 1.0)
        };
        let of_node = |curve: &&CollectiveCurve| {
            !crosses || curve.n_ranks / curve.n_nodes == shape.n_ranks / shape.n_nodes.max(1)
        };
        let curves =
            self.profile.collectives.iter().filter(of_place).filter(|curve| curve.kind == name).filter(of_node);
        let curve = curves.min_by_key(|curve| curve.n_ranks.abs_diff(shape.n_ranks))?;
        let link = if crosses { self.port_ratio(curve, kind, shape)? } else { self.link_ratio(n_inside, shape)? };
        // Ranks that were not measured take the nearest count's curve, scaled by the ring's share of bytes that move.
        let moves = |n: u32| f64::from(n - 1) / f64::from(n);
        let scale = if shape.n_ranks < 2 { 0.0 } else { moves(shape.n_ranks) / moves(curve.n_ranks) };
        let (seconds, outside) = over_link(curve, bytes, link);
        let later_s = self.later_s(kind, moved, shape);
        let is_other = curve.n_ranks != shape.n_ranks || (crosses && !is_same(link)) || later_s != 0.0;
        let outside = (outside || is_other).then_some(0);
        let seconds = Seconds::new(begun(curve, seconds, factor * scale, later_s));
        let fitted = Fitted { seconds, residuals: &curve.residuals, outside };
        let found = fitted.estimate(["collective bytes or ranks", "", ""]);
        Some(if crosses { found } else { self.over_other_link(n_inside, shape, found) })
    }

    /// How much later an exchange ends because its messages start later than usual: by all steps of the algorithm. Curves were measured over
    /// usual starts, and keep their shape.
    fn later_s(&self, kind: Collective, bytes: u64, shape: GroupShape) -> f64 {
        let (cluster, network) = (self.roofline.cluster(), self.roofline.network());
        let [inside_s, across_s] = links::later_s(cluster);
        if [inside_s, across_s] == [0.0; 2] {
            return 0.0;
        }
        let usual = collective::Network {
            inside_alpha_s: network.inside_alpha_s - inside_s,
            across_alpha_s: network.across_alpha_s - across_s,
            ..network
        };
        let [with, without] = [&network, &usual].map(|of| collective::time(cluster, of, kind, bytes, shape).0);
        with.get() - without.get()
    }

    /// An exchange by a curve of another link inside a node says so.
    fn over_other_link(&self, n_gpus: u32, shape: GroupShape, found: Estimate) -> Estimate {
        if self.link_ratio(n_gpus, shape).is_none_or(is_same) { found } else { found.borrowed("link inside a node") }
    }
}

const ATTENTION_AXES: [&str; 3] =
    ["attention document length", "attention query tiles", "attention heads per key-value head"];

/// Width of a head of latent attention in prompts: 128 elements and 64 that rotate, as in the models whose tables there are.
const LATENT_DIM: u64 = 192;

/// What a kernel computes of a document: with a window that leaves most keys out, whole tiles on both of its edges.
pub const fn computed(document: &Document) -> Document {
    let is_windowed = 4 * document.pairs < document.queries * document.keys;
    let in_vain = if is_windowed { WINDOW_EDGE * document.queries } else { 0 };
    Document { pairs: document.pairs + in_vain, ..*document }
}

/// Fitted attention of a head width in sixteen bits by this project's own measurements, nearest first.
pub const fn attention_names(head_dim: u64, pass: Pass) -> [&'static str; 2] {
    match (pass, head_dim >= 128) {
        (Pass::Forward, true) => ["attention-128", "attention-64"],
        (Pass::Forward, false) => ["attention-64", "attention-128"],
        (Pass::Backward, true) => ["attention-backward-128", "attention-backward-64"],
        (Pass::Backward, false) => ["attention-backward-64", "attention-backward-128"],
    }
}

/// Place of an attention on the axes of its surface: mean document length, query tiles, heads per key-value head.
pub fn attention_point(op: &Op) -> Option<[f64; 3]> {
    let Op::Attention { documents, n_heads, n_kv_heads, .. } = op else { return None };
    let sum = |of: fn(&Document) -> u64| hw::real(documents.iter().map(of).sum());
    let tiles: u64 = documents.iter().map(|d| n_heads * d.queries.div_ceil(ATTENTION_TILE)).sum();
    let length = 2.0 * sum(|d| d.pairs) / sum(|d| d.queries).max(1.0);
    Some([length, hw::real(tiles), hw::real(*n_heads) / hw::real(*n_kv_heads)])
}

/// Fitted operator of products in a format.
pub const fn gemm_name(format: Format) -> &'static str {
    match format {
        Format::Bf16 | Format::Fp16 => "gemm",
        Format::Fp8 => "gemm-fp8",
        Format::Fp8Block => "gemm-fp8-block",
        Format::Mxfp8 => "gemm-mxfp8",
        Format::Int8 => "gemm-int8",
        Format::Int8Weights => "gemm-int8-weights",
        Format::Int4 | Format::Int4By32 => "gemm-int4",
        Format::Mxfp4 => "gemm-mxfp4",
        Format::Nvfp4 => "gemm-nvfp4",
        Format::Fp32 => "gemm-fp32",
    }
}

/// Length of the whole causal document that has the same keys per query.
pub fn document_length(document: &Document) -> f64 {
    2.0 * hw::real(document.pairs) / hw::real(document.queries.max(1))
}

struct Attention<'a> {
    documents: &'a [Document],
    n_heads: u64,
    n_kv_heads: u64,
    head_dim: u64,
    kv: Dtype,
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

impl CostModel for Profiled {
    fn elementary(&self, op: &Op) -> Estimate {
        crate::stop::pause();
        let fitted = match op {
            Op::Gemm { m, n, k, format } => self.gemm(*m, *n, *k, *format),
            Op::GroupedGemm { rows, n, k, format, kind } => {
                let narrow = self.narrow_experts(rows, *n, *k, *format, *kind);
                let by_kernel = narrow.or_else(|| self.grouped_training(rows, *n, *k, *format, *kind));
                by_kernel.or_else(|| self.grouped_gemm(rows, *n, *k, *format))
            }
            Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass } => {
                let (n_heads, n_kv_heads, head_dim, kv) = (*n_heads, *n_kv_heads, *head_dim, *kv);
                let attention = Attention { documents, n_heads, n_kv_heads, head_dim, kv };
                let by_surface = || match pass {
                    Pass::Forward => self.attention("attention", &attention),
                    Pass::Backward => {
                        let measured = self.attention("attention-backward", &attention);
                        measured.or_else(|| self.attention("attention", &attention).map(backward))
                    }
                };
                self.attention_by_law(op).or_else(by_surface)
            }
            Op::Collective { .. } => self.collective(op),
            memory => self.memory(memory),
        };
        let fitted = fitted.map(|found| if self.is_of_card(op) { found } else { self.own(found) });
        fitted.unwrap_or_else(|| datasheet(self.roofline.elementary(op).time)).scaled(self.calibration(op))
    }

    fn decode(&self, shape: &DecodeShape) -> Option<ShapedDecode> {
        let memory = self.profile.calibrated.as_ref().map_or(1.0, |found| found.memory);
        Some(self.shaped_decode(shape)?.scaled(memory))
    }

    fn engine(&self, op: &Op) -> Option<Estimate> {
        Some(self.own_kernel(op)?.scaled(self.calibration(op)))
    }

    fn reduce(&self, kernel: ReduceKernel, op: &Op) -> Option<Estimate> {
        Some(self.reduced(kernel, op)?.scaled(self.calibration(op)))
    }

    fn experts(&self, layer: &FusedExperts) -> Option<Estimate> {
        let found = self.profile.calibrated.as_ref();
        let gpu = &self.roofline.cluster().gpu;
        let factor = found.map_or(1.0, |found| found.of_experts(layer, gpu));
        Some(self.fused_layer(layer)?.scaled(factor).at_least(layer.least(gpu)))
    }

    fn mixed(&self, chunk: &MixedChunk) -> Option<Estimate> {
        let found = self.profile.calibrated.as_ref();
        Some(self.mixed_chunk(chunk)?.scaled(found.map_or(1.0, |found| found.compute)))
    }

    fn least(&self, op: &Op) -> Seconds {
        let known = match op {
            Op::Attention { .. } => self.least_attention(op),
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => self.products(*format).map(|operator| {
                let peak = self.roofline.cluster().gpu.peak(*format);
                let base = match &operator.law {
                    Some(Law::Gemm(law)) => Seconds::new(op.flops() / 2.0 * law.multiply_s),
                    _ => hw::Flops::new(op.flops()) / peak,
                };
                let whole = self.profile.operators.get(names::WHOLE_TILES).filter(|_| *format == Format::Fp8);
                let surfaces = std::iter::once(&operator.surface).chain(whole.map(|whole| &whole.surface));
                let least = surfaces.map(|surface| surface.least(&[(1.0, f64::MAX); 3])).fold(f64::INFINITY, f64::min);
                base * least
            }),
            Op::Elementwise { bytes } => {
                let curve = self.profile.memory.get("elementwise");
                curve.map(|curve| Seconds::new(hw::real(*bytes) * curve.least_per_byte()))
            }
            _ => None,
        };
        let factor = self.profile.calibrated.as_ref().map_or(1.0, |found| found.least(op));
        known.unwrap_or_else(|| self.roofline.least(op)) * factor
    }
}

impl Profiled {
    /// What runs of a whole engine say of an operation's time.
    fn calibration(&self, op: &Op) -> f64 {
        let found = self.profile.calibrated.as_ref();
        found.map_or(1.0, |found| found.of_operation(op, &self.roofline.cluster().gpu))
    }

    /// The curve that products of a format are priced by.
    fn products(&self, format: Format) -> Option<&Operator> {
        let of = |near: &Format| self.profile.operators.get(gemm_name(*near));
        names::neighbours(format).iter().find_map(of)
    }

    /// The curve that forward attention is priced by.
    fn forward(&self, op: &Attention<'_>) -> Option<&Operator> {
        let own =
            attention_names(op.head_dim, Pass::Forward).into_iter().find_map(|name| self.profile.operators.get(name));
        let by_surface = || self.profile.operators.get(&self.attention_name("attention", op)?.0);
        own.filter(|operator| operator.law.is_some()).or_else(by_surface)
    }

    fn least_attention(&self, op: &Op) -> Option<Seconds> {
        let Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass } = op else { return None };
        let (n_kv_heads, kv) = (*n_kv_heads, *kv);
        let forward = Attention { documents, n_heads: *n_heads, n_kv_heads, head_dim: *head_dim, kv };
        let backward =
            || attention_names(*head_dim, *pass).into_iter().find_map(|name| self.profile.operators.get(name));
        let (operator, passes) = match pass {
            Pass::Forward => (self.forward(&forward)?, 1.0),
            Pass::Backward => match backward() {
                Some(operator) => (operator, 1.0),
                None => (self.forward(&forward)?, ATTENTION_BACKWARD),
            },
        };
        let group = hw::real(*n_heads) / hw::real(n_kv_heads);
        let longest = documents.iter().map(|document| document.keys).max().unwrap_or(1);
        // A late chunk of a document sees at most all keys for each query, as the middle of one twice as long.
        let lengths = (1.0, 2.0 * hw::real(longest));
        let factor = operator.surface.least(&[lengths, (1.0, f64::MAX), (1.0, group.max(1.0))]);
        let base = match &operator.law {
            Some(Law::Attention(law)) => {
                let pairs: f64 = documents.iter().map(|document| hw::real(document.pairs)).sum();
                let per_pair = law.pair_s * hw::real(*head_dim) + law.score_s;
                Seconds::new(pairs * hw::real(*n_heads) * per_pair)
            }
            _ => self.roofline.attention_flops(op),
        };
        Some(base * (factor * passes))
    }
}

/// Attention backward from forward where only that was measured: the factor is published, not measured on this device.
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
mod tests;
