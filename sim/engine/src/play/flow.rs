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
#[must_use]
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
    let nodes: Vec<&[Rank]> = members.chunk_by(|&a, &b| topology.node(a) == topology.node(b)).collect();
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

/// Each rank sends an equal part to every other; the part inside its node uses the island ports, the rest the network.
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
}

/// A flow in progress.
#[derive(Clone, Debug)]
struct Active {
    loads: Loads,
    /// Undisturbed duration, nanoseconds.
    duration: f64,
    /// Undisturbed time left at `since`.
    left: f64,
    since: Time,
    /// Share of the undisturbed rate.
    rate: f64,
    /// Insertion number of the event that ends it; others are stale.
    event: u32,
}

/// All flows in progress.
#[derive(Debug, Default)]
pub struct Flows {
    active: Vec<Option<Active>>,
    /// Flows on each link.
    on_link: Vec<Vec<u32>>,
}

impl Flows {
    /// No flows, on so many links.
    #[must_use]
    pub fn new(n_links: usize) -> Self {
        Self { active: Vec::new(), on_link: vec![Vec::new(); n_links] }
    }

    /// Starts a flow that would take `span` alone; returns its number.
    pub fn start(&mut self, loads: Loads, span: Span, now: Time) -> u32 {
        let id = u32::try_from(self.active.len()).expect("fewer than 2^32 flows");
        for (link, _) in loads.iter() {
            self.on_link[link.0 as usize].push(id);
        }
        let duration = hw::real(span.as_ns());
        self.active.push(Some(Active { loads, duration, left: duration, since: now, rate: 0.0, event: u32::MAX }));
        id
    }

    /// Whether the event with this insertion number ends the flow; events from before a change of rate do not.
    #[must_use]
    pub fn ends_with(&self, id: u32, event: u32) -> bool {
        self.active[id as usize].as_ref().is_some_and(|flow| flow.event == event)
    }

    /// Ends a flow; returns the flows that shared a link with it, in order.
    pub fn end(&mut self, id: u32) -> Vec<u32> {
        let flow = self.active[id as usize].take().expect("a flow ends once");
        let mut neighbours = Vec::new();
        for (link, _) in flow.loads.iter() {
            let on_link = &mut self.on_link[link.0 as usize];
            on_link.retain(|other| *other != id);
            neighbours.extend_from_slice(on_link);
        }
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours
    }

    /// Computes rates again for the flows that `changed` ones can reach over shared links, and calls `ends` with the new
    /// end of each whose rate changed.
    pub fn settle(&mut self, changed: &[u32], now: Time, topology: &Topology, mut ends: impl FnMut(u32, Time) -> u32) {
        // Most flows share no link with another: no component to look for.
        let mut shared = Vec::new();
        for &id in changed {
            let Some(flow) = &self.active[id as usize] else { continue };
            if flow.loads.iter().all(|(link, _)| self.on_link[link.0 as usize].len() == 1) {
                self.run_at(id, 1.0, now, &mut ends);
            } else {
                shared.push(id);
            }
        }
        let component = self.component(&shared);
        if component.is_empty() {
            return;
        }
        let rates = self.rates(&component, topology);
        for (&id, rate) in component.iter().zip(rates) {
            self.run_at(id, rate, now, &mut ends);
        }
    }

    /// Lets a flow go on at a rate; its end is new when the rate is.
    fn run_at(&mut self, id: u32, rate: f64, now: Time, ends: &mut impl FnMut(u32, Time) -> u32) {
        let flow = self.active[id as usize].as_mut().expect("only flows in progress run");
        if flow.event != u32::MAX && (flow.rate - rate).abs() <= 1e-12 {
            return;
        }
        flow.left -= hw::real((now - flow.since).as_ns()) * flow.rate;
        flow.left = flow.left.max(0.0);
        flow.since = now;
        flow.rate = rate;
        let end = now + ceil_ns(flow.left / rate);
        flow.event = ends(id, end);
    }

    fn component(&self, changed: &[u32]) -> Vec<u32> {
        let mut found: Vec<u32> = changed.iter().copied().filter(|id| self.active[*id as usize].is_some()).collect();
        let mut seen: std::collections::BTreeSet<u32> = found.iter().copied().collect();
        let mut cursor = 0;
        while cursor < found.len() {
            let flow = self.active[found[cursor] as usize].as_ref().expect("found flows are in progress");
            for (link, _) in flow.loads.iter() {
                let others = &self.on_link[link.0 as usize];
                if others.len() > 1 {
                    found.extend(others.iter().copied().filter(|other| seen.insert(*other)));
                }
            }
            cursor += 1;
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Rates of a component, as shares of each flow's undisturbed rate.
    fn rates(&self, component: &[u32], topology: &Topology) -> Vec<f64> {
        if component.len() == 1 {
            return vec![1.0];
        }
        let mut numbers: BTreeMap<LinkId, usize> = BTreeMap::new();
        let mut capacity: Vec<f64> = Vec::new();
        let flows: Vec<ShareFlow> = component
            .iter()
            .map(|id| {
                let flow = self.active[*id as usize].as_ref().expect("a component holds flows in progress");
                let seconds = (flow.duration / 1e9).max(1e-9);
                let cap = flow.loads.iter().map(|(_, bytes)| bytes / seconds).fold(0.0, f64::max);
                let links = flow.loads.iter().map(|&(link, bytes)| {
                    let number = *numbers.entry(link).or_insert_with(|| {
                        capacity.push(topology.capacity(link).get());
                        capacity.len() - 1
                    });
                    capacity[number] = capacity[number].max(bytes / seconds);
                    (number, bytes / seconds / cap)
                });
                ShareFlow { links: links.collect(), cap }
            })
            .collect();
        // A flow that loads no link has no cap and is never disturbed.
        let rates = share::max_min(&flows, &capacity);
        rates.iter().zip(&flows).map(|(rate, flow)| if flow.cap > 0.0 { rate / flow.cap } else { 1.0 }).collect()
    }
}

/// Nanoseconds rounded up, forgiving what float division adds to a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "asserted to be a span")]
fn ceil_ns(ns: f64) -> Span {
    assert!((0.0..9.0e15).contains(&ns), "a flow must end within 104 days, found {ns} ns");
    Span::from_ns((ns - 1e-6).ceil().max(0.0) as u64)
}
