//! A profile of one card on another: surfaces correct a roofline, so they stand as they are over the other card's, but for products that power holds
//! (`powered`); what is in seconds is scaled by the ratio of datasheet figures, and starts are kept.

use hw::{Cluster, Gpu};

use super::{Profiled, powered};
use crate::cost::law::{AttentionLaw, GemmLaw, Law};
use crate::cost::profile::Profile;

/// Ratios of one card's datasheet figures to another's: how much longer the other takes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slower {
    compute: f64,
    memory: f64,
    link: f64,
    host: f64,
    /// Whether both are joined by NVLink, both by PCIe, or both by a mesh. The one's curves say nothing of the other.
    has_same_link: bool,
}

impl Slower {
    /// As fast.
    const NOT: Self = Self { compute: 1.0, memory: 1.0, link: 1.0, host: 1.0, has_same_link: true };

    fn of(from: &Gpu, to: &Gpu) -> Self {
        // What a cluster says of its own link is heeded where curves are asked.
        let usual = hw::catalog::gpu(&to.name).unwrap_or_else(|| to.clone());
        Self {
            compute: from.peak_bf16.get() / to.peak_bf16.get(),
            memory: from.memory_bandwidth.get() / to.memory_bandwidth.get(),
            link: from.intra_node_bandwidth.get() / usual.intra_node_bandwidth.get(),
            host: from.host_bandwidth.get() / to.host_bandwidth.get(),
            has_same_link: from.has_own_link() == usual.has_own_link() && from.mesh_links == usual.mesh_links,
        }
    }

    fn law(&self, law: &Law) -> Law {
        match law {
            Law::Gemm(law) => Law::Gemm(GemmLaw {
                multiply_s: law.multiply_s * self.compute,
                left_s: law.left_s * self.memory,
                right_s: law.right_s * self.memory,
                out_s: law.out_s * self.memory,
                byte_s: law.byte_s * self.memory,
                ..*law
            }),
            Law::Attention(law) => Law::Attention(AttentionLaw {
                pair_s: law.pair_s * self.compute,
                score_s: law.score_s * self.compute,
                query_s: law.query_s * self.memory,
                key_s: law.key_s * self.memory,
                ..*law
            }),
        }
    }
}

/// Seconds whose start, the least of them, is kept.
fn scaled(seconds: &mut [f64], ratio: f64) {
    let start = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    seconds.iter_mut().for_each(|seconds| *seconds = start + (*seconds - start) * ratio);
}

/// A profile as it would be on another card.
fn on(profile: &Profile, slower: Slower, to: &Gpu) -> Profile {
    let (name, lent_by) = (format!("{} for {}", profile.name, to.name), Some(profile.gpu.clone()));
    let mut profile = Profile { name, gpu: to.name.clone(), lent_by, ..profile.clone() };
    for operator in profile.operators.values_mut() {
        operator.law = operator.law.as_ref().map(|law| slower.law(law));
    }
    for (name, curve) in &mut profile.memory {
        let ratio = if name.contains("host") { slower.host } else { slower.memory };
        scaled(&mut curve.seconds, ratio);
    }
    if !slower.has_same_link {
        profile.collectives.clear();
        profile.links.retain(|link| link.crosses_nodes);
    }
    for curve in &mut profile.collectives {
        scaled(&mut curve.seconds, slower.link);
    }
    for link in profile.links.iter_mut().filter(|link| !link.crosses_nodes) {
        link.gb_per_s /= slower.link;
    }
    profile
}

impl Profile {
    /// The same for another card, scaled by the datasheets of both. Every estimate then says that it is borrowed, and its interval is wider. A
    /// profile of a card that is not in the catalogue is taken as it is.
    pub fn lent_to(&self, gpu: &Gpu) -> Self {
        let Some(from) = hw::catalog::gpu(&self.gpu) else { return on(self, Slower::NOT, gpu) };
        let mut lent = on(self, Slower::of(&from, gpu), gpu);
        powered::moved(&mut lent, &from, gpu);
        lent
    }
}

impl Profiled {
    /// Cost model of a cluster from a profile of another card.
    pub fn borrowed(profile_of_another_card: &Profile, cluster: &Cluster) -> Self {
        Self::new(&profile_of_another_card.lent_to(&cluster.gpu), cluster)
    }
}
