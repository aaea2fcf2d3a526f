//! Active flows: what each loads on which link, and how fast it runs while others share its links.
//!
//! Progress is counted in nanoseconds of undisturbed running; a flow at rate 1 finishes exactly at its estimate.

use std::collections::BTreeMap;
use std::rc::Rc;

use hw::topology::{LinkId, Topology};
use hw::{Rank, Span, Time};

use crate::share::{self, Flow as ShareFlow};
use crate::task::{Collective, CopyKind, Op};

/// Bytes that a flow puts on each link over its life.
pub type Loads = Rc<[(LinkId, f64)]>;

/// Bytes per link of an operation among `members`.
pub fn loads(op: &Op, members: &[Rank], topology: &Topology) -> Vec<(LinkId, f64)> {
    let mut loads = BTreeMap::new();
    add(op, 1.0, members, topology, &mut loads);
    loads.into_iter().filter(|(_, bytes)| *bytes > 0.0).collect()
}

fn add(op: &Op, times: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    match op {
        Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => {
            parts.iter().for_each(|(part, n)| add(part, times * f64::from(*n), members, topology, loads));
        }
        Op::Copy { kind, bytes } => {
            let links = match kind {
                CopyKind::HostToDevice => topology.from_host(members[0]),
                CopyKind::DeviceToHost => topology.to_host(members[0]),
                CopyKind::DeviceToDevice => return,
            };
            for link in links {
                *loads.entry(link).or_default() += hw::real(*bytes) * times;
            }
        }
        Op::Collective { kind, bytes, shape } => {
            let bytes = hw::real(*bytes) * times;
            match kind {
                Collective::AllGather | Collective::ReduceScatter => rings(bytes, members, topology, loads),
                Collective::AllReduce => rings(2.0 * bytes, members, topology, loads),
                Collective::RingShift => ring(bytes, members, topology, loads),
                Collective::SendRecv => send(bytes, members, topology, loads),
                Collective::AllToAll => all_to_all(bytes, f64::from(shape.n_nodes), members, topology, loads),
            }
        }
        _ => {}
    }
}

/// A message from the first member to the second.
fn send(bytes: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    if let [from, to] = members {
        for link in topology.route(*from, *to) {
            *loads.entry(link).or_default() += bytes;
        }
    }
}

/// One direction of a ring collective of `bytes` per rank. Where every node has as many members, all its ports carry their part: a ring
/// inside each node, and one across nodes for each place in them, which stays on its rail (the table of `cost/collective.rs`).
fn rings(bytes: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    let nodes: Vec<&[Rank]> = members.chunk_by(|&a, &b| topology.domain(a) == topology.domain(b)).collect();
    let (n, w, g) = (members.len(), nodes.len(), nodes[0].len());
    let f = |n: usize| hw::real(n as u64);
    if w < 2 || g < 2 || nodes.iter().any(|node| node.len() != g) {
        return ring(bytes * (f(n) - 1.0) / f(n), members, topology, loads);
    }
    for node in &nodes {
        ring(bytes * (f(g) - 1.0) / f(g), node, topology, loads);
    }
    for place in 0..g {
        let across: Vec<Rank> = nodes.iter().map(|node| node[place]).collect();
        ring(bytes * (f(w) - 1.0) / f(n), &across, topology, loads);
    }
}

fn ring(per_hop: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    for (index, &from) in members.iter().enumerate() {
        let to = members[(index + 1) % members.len()];
        for link in topology.route(from, to) {
            *loads.entry(link).or_default() += per_hop;
        }
    }
}

/// Each rank sends an equal part to every other; the part inside its node uses the island ports, the rest the network, and what leaves its leaf the spine.
fn all_to_all(bytes: f64, n_nodes: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    let n = f64::from(u32::try_from(members.len()).expect("members fit u32"));
    let inside = (n / n_nodes - 1.0).max(0.0) / n;
    let outside = 1.0 - 1.0 / n - inside;
    for &rank in members {
        let ((island_out, island_in), (nic_out, nic_in)) = (topology.island_ports(rank), topology.nic_ports(rank));
        for (link, part) in [(island_out, inside), (island_in, inside), (nic_out, outside), (nic_in, outside)] {
            if part > 0.0 {
                *loads.entry(link).or_default() += bytes * part;
            }
        }
    }
    if outside > 0.0 {
        over_spine(bytes / n, members, topology, loads);
    }
}

/// What ranks that send each other so many bytes put on the links above their leaves.
fn over_spine(to_each: f64, members: &[Rank], topology: &Topology, loads: &mut BTreeMap<LinkId, f64>) {
    let (mut in_domain, mut on_leaf, mut in_both) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let place = |rank: Rank| (topology.domain(rank), topology.leaf(rank));
    for (domain, leaf) in members.iter().map(|&rank| place(rank)) {
        *in_domain.entry(domain).or_insert(0) += 1;
        *on_leaf.entry(leaf).or_insert(0) += 1;
        *in_both.entry((domain, leaf)).or_insert(0) += 1;
    }
    for &rank in members {
        let (domain, leaf) = place(rank);
        let n_near = in_domain[&domain] + on_leaf[&leaf] - in_both[&(domain, leaf)];
        let far = to_each * hw::real((members.len() - n_near) as u64);
        let (up, down) = topology.spine_links(rank);
        for link in [up, down] {
            *loads.entry(link).or_default() += far;
        }
    }
}

/// A flow in progress.
#[derive(Clone, Debug)]
struct Active {
    /// Bytes per second on each link where nobody disturbs it.
    demands: Box<[(LinkId, f64)]>,
    /// The largest of them.
    cap: f64,
    /// Links of them that are crowded.
    n_crowded: u32,
    /// Undisturbed time left at `since`, nanoseconds.
    left: f64,
    since: Time,
    /// Share of the undisturbed rate.
    rate: f64,
    /// Insertion number of the event that ends it; others are stale.
    event: u32,
}

/// A link with who uses it.
#[derive(Clone, Debug)]
struct Link {
    /// Flows in progress.
    flows: Vec<u32>,
    /// Bytes per second.
    capacity: f64,
    /// What its flows ask together.
    asked: f64,
    /// The search for a component that found it last, and its number in that component.
    found_by: u32,
    number: u32,
}

/// Part by which a link may be asked for more than it has: far above rounding, and far below any real share.
const ROUNDING: f64 = 1e-12;
/// No event ends a flow yet.
const NO_EVENT: u32 = u32::MAX;

impl Link {
    const fn free(capacity: f64) -> Self {
        Self { flows: Vec::new(), capacity, asked: 0.0, found_by: 0, number: 0 }
    }

    /// Whether its flows slow each other down.
    fn is_crowded(&self) -> bool {
        self.flows.len() > 1 && self.asked > self.capacity * (1.0 + ROUNDING)
    }
}

/// All flows in progress. Flows disturb each other over crowded links alone: on any other they fit together at their undisturbed rates.
#[derive(Debug)]
pub struct Flows {
    active: Vec<Option<Active>>,
    links: Vec<Link>,
    /// By link: whether it is crowded. Searches ask this of many links, so it stands apart from the rest of a link.
    crowded: Vec<bool>,
    /// By flow: the search for a component that found it last.
    found_by: Vec<u32>,
    n_searches: u32,
}

impl Flows {
    /// No flows on any link.
    pub fn new(topology: &Topology) -> Self {
        let links: Vec<Link> = topology.capacities().map(|capacity| Link::free(capacity.get())).collect();
        Self { active: Vec::new(), crowded: vec![false; links.len()], links, found_by: Vec::new(), n_searches: 0 }
    }

    /// Starts a flow that would take `span` alone; returns its number.
    pub fn start(&mut self, loads: &[(LinkId, f64)], span: Span, now: Time) -> u32 {
        let id = u32::try_from(self.active.len()).expect("fewer than 2^32 flows");
        let left = hw::real(span.as_ns());
        let seconds = (left / 1e9).max(1e-9);
        let demands: Box<[(LinkId, f64)]> = loads.iter().map(|&(link, bytes)| (link, bytes / seconds)).collect();
        let cap = demands.iter().map(|(_, demand)| *demand).fold(0.0, f64::max);
        let mut n_crowded = 0;
        for &(link, demand) in &demands {
            let at = link.0 as usize;
            let link = &mut self.links[at];
            link.flows.push(id);
            link.asked += demand;
            if !link.is_crowded() {
                continue;
            }
            n_crowded += 1;
            if !std::mem::replace(&mut self.crowded[at], true) {
                let others = link.flows.iter().filter(|other| **other != id);
                others.for_each(|other| active(&mut self.active, *other).n_crowded += 1);
            }
        }
        self.active.push(Some(Active { demands, cap, n_crowded, left, since: now, rate: 1.0, event: NO_EVENT }));
        self.found_by.push(0);
        id
    }

    /// Whether the event with this insertion number ends the flow; events from before a change of rate do not.
    pub fn ends_with(&self, id: u32, event: u32) -> bool {
        self.active[id as usize].as_ref().is_some_and(|flow| flow.event == event)
    }

    /// Ends a flow; returns the flows that it disturbed, in order.
    pub fn end(&mut self, id: u32) -> Vec<u32> {
        let flow = self.active[id as usize].take().expect("a flow ends once");
        let mut neighbours = Vec::new();
        for &(link, demand) in &flow.demands {
            let at = link.0 as usize;
            let link = &mut self.links[at];
            let was_crowded = self.crowded[at];
            link.flows.retain(|other| *other != id);
            // What is left of rounding goes with the last one.
            link.asked = if link.flows.is_empty() { 0.0 } else { link.asked - demand };
            if was_crowded {
                neighbours.extend_from_slice(&link.flows);
            }
            if was_crowded && !link.is_crowded() {
                self.crowded[at] = false;
                link.flows.iter().for_each(|other| active(&mut self.active, *other).n_crowded -= 1);
            }
        }
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours
    }

    /// Computes rates again for the flows that `changed` ones can reach over crowded links, and calls `ends` with the new
    /// end of each whose rate changed.
    pub fn settle(&mut self, changed: &[u32], now: Time, mut ends: impl FnMut(u32, Time) -> u32) {
        let mut shared = Vec::new();
        for &id in changed {
            let Some(flow) = &self.active[id as usize] else { continue };
            if flow.n_crowded > 0 {
                shared.push(id);
            } else {
                self.run_at(id, 1.0, now, &mut ends);
            }
        }
        if shared.is_empty() {
            return;
        }
        let component = self.component(&shared);
        let rates = self.rates(&component);
        for (&id, rate) in component.iter().zip(rates) {
            self.run_at(id, rate, now, &mut ends);
        }
    }

    /// Lets a flow go on at a rate; its end is new when the rate is.
    fn run_at(&mut self, id: u32, rate: f64, now: Time, ends: &mut impl FnMut(u32, Time) -> u32) {
        let flow = self.active[id as usize].as_mut().expect("only flows in progress run");
        if flow.event != NO_EVENT && (flow.rate - rate).abs() <= ROUNDING {
            return;
        }
        flow.left -= hw::real((now - flow.since).as_ns()) * flow.rate;
        flow.left = flow.left.max(0.0);
        flow.since = now;
        flow.rate = rate;
        let end = now + ceil_ns(flow.left / rate);
        flow.event = ends(id, end);
    }

    /// Flows in progress that some of them reach over crowded links, in order.
    fn component(&mut self, from: &[u32]) -> Vec<u32> {
        self.n_searches += 1;
        let mut found = Vec::new();
        find(from, &mut self.found_by, self.n_searches, &mut found);
        let mut cursor = 0;
        while cursor < found.len() {
            let flow = self.active[found[cursor] as usize].as_ref().expect("only flows in progress are found");
            for (link, _) in &flow.demands {
                if !self.crowded[link.0 as usize] {
                    continue;
                }
                let link = &mut self.links[link.0 as usize];
                if link.found_by != self.n_searches {
                    link.found_by = self.n_searches;
                    find(&link.flows, &mut self.found_by, self.n_searches, &mut found);
                }
            }
            cursor += 1;
        }
        found.sort_unstable();
        found
    }

    /// Rates of a component, as shares of each flow's undisturbed rate.
    fn rates(&mut self, component: &[u32]) -> Vec<f64> {
        let capacity = self.number_links(component);
        let share = |id: &u32| {
            let flow = self.active[*id as usize].as_ref().expect("a component holds flows in progress");
            let mut links = Vec::with_capacity(flow.n_crowded as usize);
            for &(link, demand) in flow.demands.iter().filter(|(link, _)| self.crowded[link.0 as usize]) {
                links.push((self.links[link.0 as usize].number as usize, demand / flow.cap));
            }
            ShareFlow { links, cap: flow.cap }
        };
        let flows: Vec<ShareFlow> = component.iter().map(share).collect();
        // A flow that loads no link has no cap and is never disturbed.
        let rates = share::max_min(&flows, &capacity);
        rates.iter().zip(&flows).map(|(rate, flow)| if flow.cap > 0.0 { rate / flow.cap } else { 1.0 }).collect()
    }

    /// Numbers the crowded links of a component from 0; their capacities. A link is as fast as its fastest flow alone.
    fn number_links(&mut self, component: &[u32]) -> Vec<f64> {
        self.n_searches += 1;
        let mut capacity = Vec::new();
        for id in component {
            let flow = self.active[*id as usize].as_ref().expect("a component holds flows in progress");
            for &(link, demand) in &flow.demands {
                if !self.crowded[link.0 as usize] {
                    continue;
                }
                let link = &mut self.links[link.0 as usize];
                if link.found_by != self.n_searches {
                    link.found_by = self.n_searches;
                    link.number = u32::try_from(capacity.len()).expect("fewer than 2^32 links");
                    capacity.push(link.capacity);
                }
                let capacity = &mut capacity[link.number as usize];
                *capacity = f64::max(*capacity, demand);
            }
        }
        capacity
    }
}

/// A flow in progress.
fn active(flows: &mut [Option<Active>], id: u32) -> &mut Active {
    flows[id as usize].as_mut().expect("links know flows in progress alone")
}

/// Adds flows to those that a search has found, each once.
fn find(flows: &[u32], found_by: &mut [u32], search: u32, found: &mut Vec<u32>) {
    for &id in flows {
        if std::mem::replace(&mut found_by[id as usize], search) != search {
            found.push(id);
        }
    }
}

/// Nanoseconds rounded up, forgiving what float division adds to a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "asserted to be a span")]
fn ceil_ns(ns: f64) -> Span {
    assert!((0.0..9.0e15).contains(&ns), "a flow must end within 104 days, found {ns} ns");
    Span::from_ns((ns - 1e-6).ceil().max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hw::{Cluster, Fabric};
    use proptest::prelude::*;

    #[test]
    fn an_all_to_all_loads_the_links_on_the_ways_of_all_its_messages() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let whole: Vec<Rank> = (0..32).map(Rank).collect();
        let on_a_rail: Vec<Rank> = (0..4).map(|node| Rank(8 * node + 3)).collect();
        for fabric in [Fabric::Rail, Fabric::FatTree { nodes_per_leaf: 2 }, Fabric::FatTree { nodes_per_leaf: 4 }] {
            let cluster = Cluster { fabric, oversubscription: 4.0, ..hw::catalog::cluster(&gpu, 4, 8) };
            let topology = Topology::of(&cluster);
            for members in [&whole, &on_a_rail] {
                let op = Op::Collective { kind: Collective::AllToAll, bytes: 3200, shape: cluster.shape_of(members) };
                let mut expected: BTreeMap<LinkId, f64> = BTreeMap::new();
                for (from, to) in members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to))) {
                    let part = 3200.0 / hw::real(members.len() as u64);
                    topology.route(from, to).into_iter().for_each(|link| *expected.entry(link).or_default() += part);
                }
                let found = loads(&op, members, &topology);
                assert_eq!(found.len(), expected.len(), "{fabric:?}");
                for (link, bytes) in found {
                    assert!((bytes - expected[&link]).abs() < 1e-9, "{fabric:?} {link:?}: {bytes}");
                }
            }
        }
    }

    /// Groups that lie alike exchange at once: the fullest link above leaves, against the fullest port, is what the cost model says of them.
    #[test]
    fn links_above_leaves_hold_an_exchange_back_by_what_they_carry() {
        let mut gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        gpu.intra_node_bandwidth = hw::BytesPerSecond::new(1e15);
        let bytes = 1 << 34;
        for (nodes_per_leaf, stride) in [(1, 1), (2, 1), (4, 1), (8, 1), (4, 8), (4, 32), (2, 16)] {
            let fabric = Fabric::FatTree { nodes_per_leaf };
            let of = |oversubscription| Cluster { fabric, oversubscription, ..hw::catalog::cluster(&gpu, 16, 8) };
            let (narrow, wide) = (of(16.0), of(1.0));
            let n = 128 / stride;
            let groups = (0..stride).map(|first| (0..n).map(|index| Rank(first + stride * index)).collect());
            let groups: Vec<Vec<Rank>> = groups.collect();
            for kind in [Collective::AllGather, Collective::AllToAll] {
                let topology = Topology::of(&narrow);
                let mut all: BTreeMap<LinkId, f64> = BTreeMap::new();
                for group in &groups {
                    let op = Op::Collective { kind, bytes, shape: narrow.shape_of(group) };
                    loads(&op, group, &topology)
                        .into_iter()
                        .for_each(|(link, bytes)| *all.entry(link).or_default() += bytes);
                }
                let capacity: Vec<f64> = topology.capacities().map(hw::BytesPerSecond::get).collect();
                let filled = |(link, bytes): (&LinkId, &f64)| (link.0 >= 128 * 6, bytes / capacity[link.0 as usize]);
                let most = |above: bool| {
                    all.iter().map(filled).filter(|(is, _)| *is == above).map(|(_, s)| s).fold(0.0, f64::max)
                };
                let expected = (most(true) / most(false)).max(1.0);
                let seconds = |cluster: &Cluster| {
                    let network = crate::cost::collective::Network::assumed(cluster);
                    crate::cost::collective::time(cluster, &network, kind, bytes, cluster.shape_of(&groups[0])).0.get()
                };
                let found = seconds(&narrow) / seconds(&wide);
                assert!(
                    (found / expected - 1.0).abs() < 0.01,
                    "{kind:?} {nodes_per_leaf} {stride}: {found} for {expected}"
                );
            }
        }
    }

    /// Rates of all flows in progress at once, by fair shares of every link.
    fn all_at_once(flows: &Flows) -> Vec<(u32, f64)> {
        let ids: Vec<u32> = (0..).zip(&flows.active).filter(|(_, flow)| flow.is_some()).map(|(id, _)| id).collect();
        let mut capacity: Vec<f64> = flows.links.iter().map(|link| link.capacity).collect();
        let share = |id: &u32| {
            let demands = &flows.active[*id as usize].as_ref().expect("in progress").demands;
            let cap = demands.iter().map(|(_, demand)| *demand).fold(0.0, f64::max);
            demands.iter().for_each(|(link, demand)| {
                capacity[link.0 as usize] = capacity[link.0 as usize].max(*demand);
            });
            ShareFlow { links: demands.iter().map(|(link, demand)| (link.0 as usize, demand / cap)).collect(), cap }
        };
        let shares: Vec<ShareFlow> = ids.iter().map(share).collect();
        let rates = share::max_min(&shares, &capacity);
        ids.into_iter().zip(rates.iter().zip(&shares).map(|(rate, share)| rate / share.cap)).collect()
    }

    proptest! {
        #[test]
        fn flows_that_come_and_go_have_the_rates_of_all_at_once(
            steps in prop::collection::vec((prop::collection::btree_map(0_u32..6, 1.0..60.0_f64, 1..4), 0_usize..8, any::<bool>()), 1..40)
        ) {
            let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
            let mut flows = Flows::new(&Topology::of(&hw::catalog::cluster(&gpu, 1, 1)));
            let mut event = 0;
            for (now, (loads, victim, ends)) in (0..).zip(steps) {
                let now = Time::from_ns(now * 1000);
                let in_progress: Vec<u32> = all_at_once(&flows).into_iter().map(|(id, _)| id).collect();
                let changed = if ends && !in_progress.is_empty() {
                    flows.end(in_progress[victim % in_progress.len()])
                } else {
                    // A second of undisturbed running, at up to three times what a link has.
                    let loads: Vec<_> = loads.into_iter().map(|(link, gb)| (LinkId(link), gb * 1e9)).collect();
                    vec![flows.start(&loads, Span::from_ns(1_000_000_000), now)]
                };
                flows.settle(&changed, now, |_, _| { event += 1; event });
                for (id, expected) in all_at_once(&flows) {
                    let found = flows.active[id as usize].as_ref().expect("in progress").rate;
                    prop_assert!((found - expected).abs() < 1e-9, "flow {id}: {found}, expected {expected}");
                }
            }
        }
    }
}
