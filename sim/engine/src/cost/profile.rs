//! Fitted curves and residuals of one device: the file (`profiles/*.toml`). `profiled.rs` is the cost model that reads it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cost::Source;
use crate::cost::calibrated::Calibrated;
use crate::cost::curve::{self, Curve};
use crate::cost::decode::{DecodeLaw, DecodeSurfaces};
use crate::cost::experts::ExpertsCurve;
use crate::cost::host::HostKernel;
use crate::cost::law::{COEFFICIENT_S_MAX, Law};
use crate::cost::names;
pub use crate::cost::residuals::Residuals;
use crate::cost::surface::Surface;
use crate::cost::unusable::Unusable;
use crate::task::{CopyKind, Op};

/// Schema of profile files.
pub const SCHEMA: &str = "skrull-sim/profile/1";

/// A profile file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `SCHEMA`.
    pub schema: String,
    /// Name, as scenarios give it.
    pub name: String,
    /// GPU of the catalogue that it is for.
    pub gpu: String,
    /// GPU that was measured, where it stands for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_by: Option<String>,
    /// Where the rows come from.
    pub source: String,
    /// When it was fitted.
    pub date: String,
    /// The very device that was measured, where this project measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// What runs of a whole engine say of its times, where it was calibrated on some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Calibrated>,
    /// Fitted kernels by name: `gemm`, `attention-64`, `attention-128`.
    pub operators: BTreeMap<String, Operator>,
    /// Those of them that were measured on this very card, where another one lent the rest; no file says it.
    #[serde(skip)]
    pub own: BTreeSet<String>,
    /// Fitted kernels and copies whose time depends on bytes alone, by name: `elementwise`, `embedding`, `device_to_host` and so on.
    #[serde(default)]
    pub memory: BTreeMap<String, Curve>,
    /// Fitted collectives, inside a node and over several.
    pub collectives: Vec<CollectiveCurve>,
    /// Fitted messages between two GPUs.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Attention of decoding sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_attention: Option<DecodeLaw>,
    /// Attention of decoding sequences by head width and format of keys and values: `decode-128`, `decode-128-fp8`, `decode-mla`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decode: BTreeMap<String, DecodeSurfaces>,
    /// Fused layers of experts by format: `experts`, `experts-fp8-block`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub experts: BTreeMap<String, ExpertsCurve>,
    /// Kernels of the host by name: `sample-rows`, `gather-rows` and so on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host: BTreeMap<String, HostKernel>,
}

/// The device that a profile was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What it calls itself, for example `NVIDIA H200`; a profile is refused on a device of another name.
    pub name: String,
    /// Driver and libraries.
    pub driver: String,
    /// Clocks at the start.
    pub clocks: String,
    /// Command that measured it.
    pub command: String,
    /// Seconds that measuring took.
    pub seconds: f64,
    /// Share of measurements during which the reference kernel was more than a tenth slower than its best.
    pub throttled_ratio: f64,
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

/// A fitted kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operator {
    /// Error on unseen rows.
    pub residuals: Residuals,
    /// What was measured, where a table says so, for example `DeepGemmFp8BlockScaledMMKernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Start-up, seconds.
    pub start_s: f64,
    /// Fitted shape that the surface corrects; without it, the datasheet roofline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Law>,
    /// Correction of the base.
    pub surface: Surface,
}

/// A fitted collective, inside a node or over several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCurve {
    /// `all_gather`, `reduce_scatter`, `all_reduce` or `all_to_all`.
    pub kind: String,
    /// Ranks.
    pub n_ranks: u32,
    /// Nodes that they lie on, the same number on each.
    #[serde(default = "one_node", skip_serializing_if = "is_one_node")]
    pub n_nodes: u32,
    /// Bandwidth of the port of each GPU between nodes, where there are several, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_gb_per_s: Option<f64>,
    /// Error on unseen sizes.
    pub residuals: Residuals,
    /// Bytes as `task::Collective` defines them, increasing.
    pub bytes: Vec<f64>,
    /// Seconds at each size.
    pub seconds: Vec<f64>,
}

const fn one_node() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_one_node(n: &u32) -> bool {
    *n == 1
}

/// Names of memory-bound kernels and copies in profile files.
const MEMORY: [&str; 5] = ["elementwise", "embedding", "host_to_device", "device_to_host", "device_to_device"];

/// Name in profile files and bytes of an operation whose time depends on bytes alone.
pub const fn memory_bound(op: &Op) -> Option<(&'static str, u64)> {
    match op {
        Op::Elementwise { bytes } => Some(("elementwise", *bytes)),
        Op::Embedding { tokens, row_bytes } => Some(("embedding", 2 * *tokens * *row_bytes)),
        Op::Copy { kind, bytes } => Some(match kind {
            CopyKind::HostToDevice => ("host_to_device", *bytes),
            CopyKind::DeviceToHost => ("device_to_host", *bytes),
            CopyKind::DeviceToDevice => ("device_to_device", *bytes),
        }),
        _ => None,
    }
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// What is wrong with the file, with its line where the format is broken.
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let profile: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            Unusable::Syntax { line, message: error.message().to_owned() }
        })?;
        if profile.schema != SCHEMA {
            return Err(Unusable::Schema { found: profile.schema, expected: SCHEMA });
        }
        for (name, curve) in &profile.memory {
            if !MEMORY.contains(&name.as_str()) {
                let unknown = Unusable::NotAllowed { allowed: MEMORY.join(", ") };
                return Err(unknown.of(format!("memory-bound kernel `{name}`")));
            }
            let checked = curve::check(&curve.bytes, &curve.seconds).and_then(|()| curve.residuals.check());
            checked.map_err(|why| why.of(format!("memory-bound kernel `{name}`")))?;
        }
        for (name, operator) in &profile.operators {
            check_operator(name, operator).map_err(|why| why.of(format!("operator `{name}`")))?;
        }
        for curve in &profile.collectives {
            let part = || format!("collective `{}` of {} ranks", curve.kind, curve.n_ranks);
            let is_even = curve.n_nodes > 0 && curve.n_ranks % curve.n_nodes == 0;
            let has_port = curve.port_gb_per_s.is_none_or(|port| (1e-9..=1e15).contains(&port));
            if !(is_even && has_port) {
                return Err(Unusable::Nodes.of(part()));
            }
            if !names::COLLECTIVES.contains(&curve.kind.as_str()) || curve.n_ranks < 2 {
                return Err(Unusable::Collective { allowed: names::COLLECTIVES.join(", ") }.of(part()));
            }
            let checked = curve::check(&curve.bytes, &curve.seconds).and_then(|()| curve.residuals.check());
            checked.map_err(|why| why.of(part()))?;
        }
        for link in &profile.links {
            let positive = |value: f64| (1e-9..=1e15).contains(&value);
            let has_bandwidths = positive(link.gb_per_s) && link.port_gb_per_s.is_none_or(positive);
            if !((0.0..=COEFFICIENT_S_MAX).contains(&link.alpha_s) && has_bandwidths && positive(link.bytes_max)) {
                return Err(Unusable::Link);
            }
            link.residuals.check().map_err(|why| why.of("link"))?;
        }
        if let Some(law) = &profile.decode_attention {
            let mixed = law.mixed.as_ref().map_or(Ok(()), |mixed| mixed.residuals.check());
            let checked = law.check().and_then(|()| law.residuals.check()).and(mixed);
            checked.map_err(|why| why.of("decode attention"))?;
        }
        profile.check_engine()?;
        profile.calibrated.as_ref().map_or(Ok(()), Calibrated::check).map_err(|why| why.of("`calibrated`"))?;
        for (name, kernel) in &profile.host {
            kernel.check(name).map_err(|why| why.of(format!("kernel of the host `{name}`")))?;
        }
        Ok(profile)
    }

    /// How near the card is that lent its curves, where another one did.
    pub fn lender(&self) -> Option<Source> {
        let is_near = hw::catalog::same_generation(self.lent_by.as_ref()?, &self.gpu);
        Some(if is_near { Source::WithinGeneration } else { Source::Borrowed })
    }

    /// The profile as a file.
    ///
    /// # Panics
    /// Never: every part of a profile has a TOML form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile has a TOML form")
    }
}

impl Profile {
    /// The same, calibrated on runs of a whole engine. Its name says so, because results show it.
    pub fn calibrated(&self, found: Calibrated) -> Self {
        let plain = self.name.split(" calibrated").next().unwrap_or_default();
        let runs = if found.on.len() == 1 { "run" } else { "runs" };
        let name = format!("{plain} calibrated on {} {runs}", found.on.len());
        Self { name, calibrated: Some(found), ..self.clone() }
    }

    /// What is wrong with the kernels that serving engines alone have, if anything.
    fn check_engine(&self) -> Result<(), Unusable> {
        for (name, surfaces) in &self.decode {
            let checked = names::known(&names::decode(), name)
                .and_then(|()| surfaces.check())
                .and_then(|()| surfaces.residuals.check());
            checked.map_err(|why| why.of(format!("decode attention `{name}`")))?;
        }
        for (name, curve) in &self.experts {
            let checked = names::known(&names::experts(), name)
                .and_then(|()| curve.check())
                .and_then(|()| curve.residuals.check());
            checked.map_err(|why| why.of(format!("experts `{name}`")))?;
        }
        Ok(())
    }
}

fn check_operator(name: &str, operator: &Operator) -> Result<(), Unusable> {
    names::known(&names::operators(), name)?;
    if let Some(law) = &operator.law {
        law.check()?;
        if matches!(law, Law::Attention(_)) != name.starts_with("attention") {
            return Err(Unusable::ForeignLaw);
        }
    }
    let n_axes = operator.surface.axes.len();
    if n_axes != 3 {
        return Err(Unusable::Axes { found: n_axes, expected: 3 });
    }
    operator.surface.check()?;
    operator.residuals.check()?;
    if !(0.0..=COEFFICIENT_S_MAX).contains(&operator.start_s) {
        let what = format!("`start_s` is {},", operator.start_s);
        return Err(Unusable::range(what, 0, format!("{COEFFICIENT_S_MAX:e}")));
    }
    Ok(())
}
