//! Links of a cluster beside those over which a profile was measured.

use hw::Cluster;

use crate::cost::curve;
use crate::cost::profile::{CollectiveCurve, Profile};

/// How much slower a card's own link is than the one of a profile; `None` where that says nothing of it. A link that is only slower or faster has the
/// curve's shape, so a faster link never takes longer. PCIe, NVLink and a mesh have no shape in common.
pub(super) fn own_link_ratio(profile: &Profile, cluster: &Cluster) -> Option<f64> {
    let Some(measured) = hw::catalog::gpu(&profile.gpu) else { return Some(1.0) };
    let usual = hw::catalog::gpu(&cluster.gpu.name).unwrap_or_else(|| cluster.gpu.clone());
    let is_same_kind = measured.has_own_link() == usual.has_own_link() && measured.mesh_links == usual.mesh_links;
    is_same_kind.then(|| measured.intra_node_bandwidth.get() / cluster.gpu.intra_node_bandwidth.get())
}

/// Seconds of an exchange by a curve where the link is so many times as slow, and whether they lie outside of what was measured. The start, the least
/// that the curve has, is not the link's.
pub(super) fn over_link(curve: &CollectiveCurve, bytes: f64, ratio: f64) -> (f64, bool) {
    let (seconds, outside) = curve::at(&curve.bytes, &curve.seconds, bytes);
    if is_same(ratio) {
        return (seconds, outside);
    }
    let start = start_s(curve);
    (start + (seconds - start).max(0.0) * ratio, outside)
}

/// Seconds by a curve, of which such a part is asked, where the exchange starts so much later. No earlier start takes away what bytes take.
pub(super) fn begun(curve: &CollectiveCurve, seconds: f64, part: f64, later_s: f64) -> f64 {
    if later_s == 0.0 {
        return seconds * part;
    }
    (seconds * part + later_s).max((seconds - start_s(curve)).max(0.0) * part)
}

/// The least that a curve has.
fn start_s(curve: &CollectiveCurve) -> f64 {
    curve.seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Whether a link is the one that was measured.
pub(super) fn is_same(ratio: f64) -> bool {
    (ratio - 1.0).abs() < 1e-12
}

/// How much later than usual a message starts inside a node and between nodes, seconds; below 0 where it starts earlier.
pub(super) fn later_s(cluster: &Cluster) -> [f64; 2] {
    let [inside, across] = hw::catalog::usual_latencies();
    [cluster.intra_node_latency.get() - inside.get(), cluster.inter_node_latency.get() - across.get()]
}
