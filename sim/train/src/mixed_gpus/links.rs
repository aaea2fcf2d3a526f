//! Machines of one type, what joins them and their zones, and what an exchange over that takes. Units: seconds, bytes, dollars.

use engine::cost::collective::Network;
use hw::{Cluster, Seconds};
use thiserror::Error;

use super::{MixedJob, Pipelines, Slot};
use crate::problem::{AttentionKernel, Launches};
use crate::timed::ring_steps;

/// Machines of one type in one zone.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name in the scenario.
    pub name: String,
    /// The machines, with their card and their network.
    pub cluster: Cluster,
    /// Whether the card is known. Else only the number of GPUs counts, and stages on them were measured.
    pub has_card: bool,
    /// Where they are.
    pub zone: String,
    /// Price of a GPU.
    pub usd_per_gpu_hour: f64,
    /// Mean time between failures of a GPU in a run of days, seconds, where it is not that of the run.
    pub gpu_mtbf_s: Option<f64>,
    /// Time per layer and pass in which a device waits for its host.
    pub host_per_layer: Seconds,
    /// The lane of launches of its host.
    pub launches: Launches,
    /// Kernel of attention on its card.
    pub attention: AttentionKernel,
}

/// What connects two zones, or the machines of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its ends.
    pub zones: [String; 2],
    /// Bytes per second of one connection between two stages, by the bytes of a message, rising; straight lines over the logarithm of the size between them.
    pub bytes_per_s: Vec<(f64, f64)>,
    /// Start-up of a message.
    pub latency_s: f64,
    /// Price of a gigabyte.
    pub usd_per_gb: f64,
}

/// Why a plan cannot run.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Unlinked {
    /// Two zones that a plan joins, with nothing between them; or one, of cards whose ports are not known.
    #[error("stages of zones `{0}` and `{1}` exchange data, and no link joins them")]
    Zones(String, String),
}

/// Bytes per second and start-up of what joins two slots, and the price of a gigabyte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    pub(super) bytes_per_s: f64,
    pub(super) latency_s: f64,
    pub(super) usd_per_gb: f64,
}

impl Link {
    /// Whether it is between two zones, in either order.
    pub fn joins(&self, ends: [&str; 2]) -> bool {
        let zones = [self.zones[0].as_str(), self.zones[1].as_str()];
        zones == ends || [zones[1], zones[0]] == ends
    }

    fn at(&self, bytes: f64) -> Wire {
        let points = &self.bytes_per_s;
        let above = points.iter().position(|(size, _)| *size >= bytes).unwrap_or(points.len() - 1);
        let ((from, slow), (to, fast)) = (points[above.saturating_sub(1)], points[above]);
        let way = if to > from { (libm::log(bytes / from) / libm::log(to / from)).clamp(0.0, 1.0) } else { 1.0 };
        let bytes_per_s = slow + (fast - slow) * way;
        Wire { bytes_per_s, latency_s: self.latency_s, usd_per_gb: self.usd_per_gb }
    }
}

/// Ports that a slot sends through, and whether its group's part of an exchange lies in one node.
#[derive(Clone, Copy, Debug)]
struct Ports {
    n: u32,
    is_inside: bool,
}

impl MixedJob {
    /// What joins two slots, for a message of so many bytes.
    pub(super) fn wire(&self, from: Slot, to: Slot, bytes: f64) -> Result<Wire, Unlinked> {
        let ports = |slot: Slot| Ports { n: slot.n_gpus, is_inside: self.groups[slot.group].cluster.n_domains() == 1 };
        self.joined([from, to], bytes, &ports)
    }

    /// What joins two slots of a ring over the replicas of a stage. Replicas on a card lie side by side, and rings go through every port of a node (NCCL), so
    /// what leaves a node has the ports of all replicas there.
    fn in_ring(&self, slots: &[Slot], ends: [Slot; 2], bytes: f64) -> Result<Wire, Unlinked> {
        let ports = |slot: Slot| {
            let used: u32 = slots.iter().filter(|other| other.group == slot.group).map(|other| other.n_gpus).sum();
            let per_node = self.groups[slot.group].cluster.domain();
            let is_inside = used <= per_node;
            Ports {
                n: if is_inside && ends[0].group == ends[1].group { slot.n_gpus } else { used.min(per_node) },
                is_inside,
            }
        };
        self.joined(ends, bytes, &ports)
    }

    fn joined(&self, [from, to]: [Slot; 2], bytes: f64, ports: &dyn Fn(Slot) -> Ports) -> Result<Wire, Unlinked> {
        let [a, b] = [from, to].map(|slot| &self.groups[slot.group]);
        let ends = [a.zone.as_str(), b.zone.as_str()];
        if let Some(link) = self.links.iter().find(|link| link.joins(ends)) {
            return Ok(link.at(bytes));
        }
        if a.zone != b.zone || !a.has_card || !b.has_card {
            return Err(Unlinked::Zones(a.zone.clone(), b.zone.clone()));
        }
        // Ports of both sides carry a part each; the side with fewer or slower ones sets the pace.
        let side = |slot: Slot| {
            let cluster = &self.groups[slot.group].cluster;
            let network = Network::assumed(cluster);
            let Ports { n, is_inside } = ports(slot);
            let is_inside = is_inside && from.group == to.group;
            let port = if is_inside {
                cluster.inside_bandwidth_to(cluster.domain(), 1).get() * network.inside_share
            } else {
                cluster.nic_bandwidth.get() * network.across_share
            };
            let latency_s = if is_inside { network.inside_alpha_s } else { network.across_alpha_s };
            (port * f64::from(n), latency_s)
        };
        let ((one, early), (other, late)) = (side(from), side(to));
        Ok(Wire { bytes_per_s: one.min(other), latency_s: early.max(late), usd_per_gb: 0.0 })
    }

    /// Pairs of zones that a plan joins without a link, each once, with the first stage that does.
    pub fn unlinked(&self, plan: &Pipelines) -> Vec<(usize, Unlinked)> {
        let mut found: Vec<(usize, Unlinked)> = Vec::new();
        for (stage, [from, to]) in plan.exchanges() {
            if let Err(unlinked) = self.wire(from, to, 1.0)
                && !found.iter().any(|(_, known)| *known == unlinked)
            {
                found.push((stage, unlinked));
            }
        }
        found
    }

    /// Links that nothing of a plan crosses.
    pub fn unused(&self, plan: &Pipelines) -> Vec<&Link> {
        let zones = |slots: &[Slot; 2]| slots.map(|slot| self.groups[slot.group].zone.as_str());
        let is_crossed = |link: &Link| plan.exchanges().iter().any(|(_, slots)| link.joins(zones(slots)));
        self.links.iter().filter(|link| !is_crossed(link)).collect()
    }

    /// Seconds and dollars of a ring over the replicas of a stage: half of its steps add up gradients, the other half bring back so many bytes.
    pub(super) fn reduction(&self, slots: &[Slot], both: [f64; 2]) -> Result<(f64, f64), Unlinked> {
        let (mut all_s, mut usd) = (0.0, 0.0);
        if slots.len() < 2 {
            return Ok((all_s, usd));
        }
        let n_steps = ring_steps(slots.len()) / 2.0;
        for part in both.map(|bytes| bytes / hw::real(slots.len() as u64)).into_iter().filter(|part| *part > 0.0) {
            let mut slowest_s = 0.0_f64;
            for (index, &slot) in slots.iter().enumerate() {
                let wire = self.in_ring(slots, [slot, slots[(index + 1) % slots.len()]], part)?;
                slowest_s = slowest_s.max(wire.latency_s + part / wire.bytes_per_s);
                usd += n_steps * wire.usd_per_gb * part / 1e9;
            }
            all_s += n_steps * slowest_s;
        }
        Ok((all_s, usd))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Batch;
    use super::*;
    use crate::timed::Messages;

    #[test]
    fn a_ring_has_a_start_up_for_each_of_its_steps() {
        // Four replicas in four zones, links of 50 ms and 1 GB/s, faster for longer messages: 6 steps of 1 GB each, a quarter of all gradients.
        let group = |zone: usize| Group {
            name: format!("g{zone}"),
            cluster: hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8),
            has_card: false,
            zone: format!("z{zone}"),
            usd_per_gpu_hour: 0.0,
            gpu_mtbf_s: None,
            host_per_layer: Seconds::ZERO,
            launches: Launches::UNSEEN,
            attention: AttentionKernel::Flash,
        };
        let link = |zone: usize| Link {
            zones: [zone, (zone + 1) % 4].map(|zone| format!("z{zone}")),
            bytes_per_s: vec![(1e9, 1e9), (4e9, 2e9)],
            latency_s: 0.05,
            usd_per_gb: 0.02,
        };
        let job = MixedJob {
            groups: (0..4).map(group).collect(),
            links: (0..4).map(link).collect(),
            problem: None,
            batch: Batch::new(vec![1; 4], 1),
            messages: Messages::Behind,
            run: None,
            slow_node: None,
        };
        let slots: Vec<Slot> = (0..4).map(|group| Slot { group, n_gpus: 1, times: None }).collect();
        let (seconds, usd) = job.reduction(&slots, [4e9; 2]).expect("linked");
        assert!((seconds - 6.0 * (0.05 + 1.0)).abs() < 1e-9, "{seconds}");
        // Six gigabytes over each of four links.
        assert!((usd - 4.0 * 6.0 * 0.02).abs() < 1e-9, "{usd}");
    }
}
