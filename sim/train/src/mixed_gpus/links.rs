//! Machines of one type, what joins them and their zones, and what an exchange over that takes. Units: seconds, bytes, dollars.

use std::collections::{BTreeMap, BTreeSet};

use engine::CostModel;
use engine::play::Case;
use engine::task::{Collective, Op};
use hw::{Cluster, Rank, Seconds, Span};
use thiserror::Error;

use super::{AtCase, MixedJob, Pipelines, Placed, Slot, span};
use crate::problem::{AttentionKernel, Launches};
use crate::timed::{Message, ring_steps};

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

impl Link {
    /// Whether it is between two zones, in either order.
    pub fn joins(&self, ends: [&str; 2]) -> bool {
        let zones = [self.zones[0].as_str(), self.zones[1].as_str()];
        zones == ends || [zones[1], zones[0]] == ends
    }

    /// A message of so many bytes.
    fn message(&self, bytes: f64) -> Message {
        Message { line: span(bytes / self.bytes_per_s_at(bytes)), latency: span(self.latency_s) }
    }

    fn usd(&self, bytes: f64) -> f64 {
        self.usd_per_gb * bytes / 1e9
    }

    fn bytes_per_s_at(&self, bytes: f64) -> f64 {
        let points = &self.bytes_per_s;
        let above = points.iter().position(|(size, _)| *size >= bytes).unwrap_or(points.len() - 1);
        let ((from, slow), (to, fast)) = (points[above.saturating_sub(1)], points[above]);
        let way = if to > from { (libm::log(bytes / from) / libm::log(to / from)).clamp(0.0, 1.0) } else { 1.0 };
        slow + (fast - slow) * way
    }
}

/// A message that takes its start-up alone.
const ONE_BYTE: u64 = 1;

/// Exchanges of some replicas, which several cards price.
pub(super) struct Priced<'c> {
    pub(super) costs: &'c [Box<dyn CostModel>],
    pub(super) case: Case,
}

impl Priced<'_> {
    fn time(&self, group: usize, op: &Op) -> Span {
        Span::from_seconds(AtCase(self.costs[group].as_ref(), self.case).estimate(op).time)
    }
}

impl MixedJob {
    /// The link that carries what two groups exchange; `None` where their cards reach each other over their own ports.
    fn link(&self, [from, to]: [usize; 2]) -> Result<Option<&Link>, Unlinked> {
        let [a, b] = [from, to].map(|group| &self.groups[group]);
        let link = self.links.iter().find(|link| link.joins([&a.zone, &b.zone]));
        if link.is_none() && (a.zone != b.zone || !a.has_card || !b.has_card) {
            return Err(Unlinked::Zones(a.zone.clone(), b.zone.clone()));
        }
        Ok(link)
    }

    /// Machines of a group as they would be were all that some replicas lie on of its kind, and the first GPU of each replica there. Groups follow one another,
    /// each from a domain of its own on.
    pub(super) fn seen_from(&self, group: usize, members: &[&Placed]) -> (Cluster, Vec<Rank>) {
        let mut cluster = self.groups[group].cluster.clone();
        let per_domain = cluster.domain().div_ceil(cluster.gpus_per_node);
        let (mut first_node, mut n_nodes) = (BTreeMap::new(), 0_u32);
        for of in members.iter().map(|placed| placed.slot.group).collect::<BTreeSet<usize>>() {
            let taken = members.iter().filter(|placed| placed.slot.group == of).map(|placed| self.node(placed));
            first_node.insert(of, n_nodes.next_multiple_of(per_domain));
            n_nodes = first_node[&of] + taken.max().map_or(0, |last| last + 1).max(self.groups[of].cluster.n_nodes);
        }
        cluster.n_nodes = n_nodes;
        let rank = |placed: &&Placed| {
            let inside = placed.first_gpu % self.groups[placed.slot.group].cluster.gpus_per_node;
            let node = first_node[&placed.slot.group] + self.node(placed);
            Rank(node * cluster.gpus_per_node + inside.min(cluster.gpus_per_node - 1))
        };
        let ranks = members.iter().map(rank).collect();
        (cluster, ranks)
    }

    /// Node of its group that a replica begins on.
    fn node(&self, placed: &Placed) -> u32 {
        placed.first_gpu / self.groups[placed.slot.group].cluster.gpus_per_node
    }

    /// A message of so many bytes between two replicas of stages, and its dollars. Each rank sends its part. Between tensor groups of different size the fewer ranks carry
    /// it all, and the slower card sets the pace.
    pub(super) fn message(
        &self,
        ends: [&Placed; 2],
        bytes: f64,
        priced: &Priced<'_>,
    ) -> Result<(Message, f64), Unlinked> {
        if let Some(link) = self.link(ends.map(|placed| placed.slot.group))? {
            return Ok((link.message(bytes), link.usd(bytes)));
        }
        let n_gpus = ends[0].slot.n_gpus.min(ends[1].slot.n_gpus);
        let part = hw::whole(bytes).div_ceil(u64::from(n_gpus));
        let mut slowest = Message::default();
        for group in ends.map(|placed| placed.slot.group) {
            let (cluster, ranks) = self.seen_from(group, &ends);
            let shape = cluster.shape_of(&ranks);
            let time = |bytes| priced.time(group, &Op::Collective { kind: Collective::SendRecv, bytes, shape });
            let (whole, latency) = (time(part), time(ONE_BYTE.min(part)));
            if whole > slowest.whole() {
                slowest = Message { line: Span::from_ns(whole.as_ns().saturating_sub(latency.as_ns())), latency };
            }
        }
        Ok((slowest, 0.0))
    }

    /// What some replicas do together in both halves of a ring, and its dollars: the first adds up so many bytes, the second brings so many back. Cards price it by the
    /// operations that it is for them, and the slowest sets the pace. Where neighbours have a link, messages around the ring do.
    pub(super) fn together(
        &self,
        members: &[&Placed],
        halves: [f64; 2],
        ops: &dyn Fn(&Placed) -> [Vec<Op>; 2],
        priced: &Priced<'_>,
    ) -> Result<([Span; 2], f64), Unlinked> {
        if members.len() < 2 {
            return Ok(([Span::ZERO; 2], 0.0));
        }
        let neighbours = (0..members.len()).map(|index| [members[index], members[(index + 1) % members.len()]]);
        let neighbours: Vec<[&Placed; 2]> = neighbours.collect();
        let mut has_link = false;
        for ends in &neighbours {
            has_link |= self.link(ends.map(|placed| placed.slot.group))?.is_some();
        }
        if has_link {
            return self.around(&neighbours, halves, priced);
        }
        let mut seen = BTreeSet::new();
        let mut slowest = [Span::ZERO; 2];
        for placed in members.iter().filter(|placed| seen.insert((placed.slot.group, placed.slot.n_gpus))) {
            for (slowest, ops) in slowest.iter_mut().zip(ops(placed)) {
                *slowest = (*slowest).max(ops.iter().map(|op| priced.time(placed.slot.group, op)).sum());
            }
        }
        Ok((slowest, 0.0))
    }

    /// The same where the slowest message sets the pace: each of n - 1 steps sends one n-th.
    fn around(
        &self,
        neighbours: &[[&Placed; 2]],
        halves: [f64; 2],
        priced: &Priced<'_>,
    ) -> Result<([Span; 2], f64), Unlinked> {
        let (n, n_steps) = (neighbours.len() as u64, ring_steps(neighbours.len()) / 2.0);
        let (mut times, mut usd) = ([Span::ZERO; 2], 0.0);
        for (time, part) in times.iter_mut().zip(halves.map(|bytes| bytes / hw::real(n))) {
            let mut slowest = Span::ZERO;
            for ends in neighbours.iter().filter(|_| part > 0.0) {
                let (message, usd_each) = self.message(*ends, part, priced)?;
                slowest = slowest.max(message.whole());
                usd += n_steps * usd_each;
            }
            *time = slowest * (n - 1);
        }
        Ok((times, usd))
    }

    /// Pairs of zones that a plan joins without a link, each once, with the first stage that does.
    pub fn unlinked(&self, plan: &Pipelines) -> Vec<(usize, Unlinked)> {
        let mut found: Vec<(usize, Unlinked)> = Vec::new();
        for (stage, [from, to]) in self.exchanges(plan) {
            if let Err(unlinked) = self.link([from.group, to.group])
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
        let is_crossed = |link: &Link| self.exchanges(plan).iter().any(|(_, slots)| link.joins(zones(slots)));
        self.links.iter().filter(|link| !is_crossed(link)).collect()
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
        let placed = |group| Placed {
            stage: 0,
            replica: group,
            slot: Slot { group, n_gpus: 1, times: None },
            first_gpu: 0,
            micro_batches: 0..1,
        };
        let placed: Vec<Placed> = (0..4).map(placed).collect();
        let members: Vec<&Placed> = placed.iter().collect();
        let priced = Priced { costs: &[], case: Case::Expected };
        let nothing = |_: &Placed| <[Vec<Op>; 2]>::default();
        let (halves, usd) = job.together(&members, [4e9; 2], &nothing, &priced).expect("linked");
        let seconds = halves.map(|half| half.to_seconds().get()).iter().sum::<f64>();
        assert!((seconds - 6.0 * (0.05 + 1.0)).abs() < 1e-9, "{seconds}");
        // Six gigabytes over each of four links.
        assert!((usd - 4.0 * 6.0 * 0.02).abs() < 1e-9, "{usd}");
    }
}
