//! Keys and values on their way between replicas: transfers that share a port or a link share it max-min fairly.
//!
//! A transfer waits for its latency and its packing, then its bytes flow over the sender's port, the link of the two groups and the
//! receiver's port, each where it has a limit. All rates are found again whenever a transfer starts or ends, by progressive filling
//! (`engine::share`), as fair queues of a network and concurrent reads of one card do. Units: bytes, bytes per second, ticks.
//! Invariant: a transfer ends at the first tick at which all its bytes are there; equal ticks end in order of start.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use engine::share::{Flow, max_min};
use hw::{BytesPerSecond, Tick};

/// Bytes per second that a GPU sends to another node, as a share of its port's: large messages of NCCL reach 36 of 50 GB/s between nodes of H100
/// (`profiles/h100-sxm.toml`).
pub const PORT_REACHED: f64 = 0.75;

/// Bytes per second that large messages reach of a GPU's link.
pub fn reached(link: BytesPerSecond) -> f64 {
    link.get() * PORT_REACHED
}

/// A transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Names it; one transfer at a time has a name.
    pub name: u32,
    /// Ticks before its bytes flow.
    pub delay: Tick,
    /// Bytes.
    pub bytes: f64,
    /// Links with a limit that it takes, each once.
    pub links: Vec<usize>,
}

/// A transfer whose bytes flow.
#[derive(Clone, Debug)]
struct Flowing {
    name: u32,
    left: f64,
    /// Bytes per tick.
    rate: f64,
    links: Vec<usize>,
    end: Tick,
}

/// A transfer that has not begun to flow, by its tick and the order of starts.
#[derive(Clone, Debug)]
struct Pending {
    at: Tick,
    order: u64,
    transfer: Transfer,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Pending {}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// All transfers of a fleet.
#[derive(Clone, Debug, Default)]
pub struct Transfers {
    /// Bytes per second of every link, above 0 and finite.
    capacity: Vec<f64>,
    /// Links that carry one transfer after another, in the order in which they began.
    in_order: BTreeSet<usize>,
    flowing: Vec<Flowing>,
    pending: BinaryHeap<Reverse<Pending>>,
    now: Tick,
    n_started: u64,
    /// Bytes that every link has carried.
    carried: Vec<f64>,
}

impl Transfers {
    /// Nothing is on its way over links of so many bytes per second.
    pub fn new(capacity: Vec<f64>) -> Self {
        assert!(capacity.iter().all(|rate| rate.is_finite() && *rate > 0.0), "a link has a positive bandwidth");
        let carried = vec![0.0; capacity.len()];
        Self { capacity, carried, ..Self::default() }
    }

    /// Time that the busiest link takes for what it has carried so far.
    pub fn busiest(&self) -> Tick {
        let seconds = self.carried.iter().zip(&self.capacity).map(|(bytes, rate)| bytes / rate);
        Tick::from_f64(seconds.fold(0.0, f64::max) * Tick::PER_SECOND)
    }

    /// The same where some links carry one transfer after another, as the stream of one pair of communicators does.
    pub fn in_order(self, links: BTreeSet<usize>) -> Self {
        Self { in_order: links, ..self }
    }

    /// Starts a transfer now.
    pub fn start(&mut self, transfer: Transfer, now: Tick) {
        let (at, order) = (now + transfer.delay, self.n_started);
        self.n_started += 1;
        self.pending.push(Reverse(Pending { at, order, transfer }));
    }

    /// When something happens next: a transfer begins to flow or ends.
    pub fn next(&self) -> Option<Tick> {
        let flows = self.pending.peek().map(|Reverse(pending)| pending.at);
        self.flowing.iter().map(|flowing| flowing.end).chain(flows).min()
    }

    /// Moves time on to `now`, which is not beyond `next`; returns what has ended.
    pub fn advance(&mut self, now: Tick) -> Vec<u32> {
        self.settle(now);
        let mut ended = Vec::new();
        self.flowing.retain(|flowing| {
            if flowing.end <= now {
                ended.push(flowing.name);
            }
            flowing.end > now
        });
        while let Some(Reverse(pending)) = self.pending.peek() {
            if pending.at > now {
                break;
            }
            let Some(Reverse(Pending { transfer, .. })) = self.pending.pop() else { break };
            if transfer.links.is_empty() || transfer.bytes <= 0.0 {
                ended.push(transfer.name);
                continue;
            }
            let Transfer { name, bytes, links, .. } = transfer;
            self.flowing.push(Flowing { name, left: bytes, rate: 0.0, links, end: Tick::NEVER });
        }
        self.share();
        ended
    }

    /// Takes a transfer off the links.
    pub fn cancel(&mut self, name: u32, now: Tick) {
        self.settle(now);
        self.flowing.retain(|flowing| flowing.name != name);
        self.pending.retain(|Reverse(pending)| pending.transfer.name != name);
        self.share();
    }

    /// Counts what has flowed.
    fn settle(&mut self, now: Tick) {
        let ticks = (now - self.now).as_f64();
        for flowing in &mut self.flowing {
            let bytes = (flowing.rate * ticks).min(flowing.left);
            flowing.left -= bytes;
            for link in &flowing.links {
                self.carried[*link] += bytes;
            }
        }
        self.now = now;
    }

    /// Transfers that wait behind another one on a link that carries one at a time.
    fn waiting(&self) -> Vec<bool> {
        let mut taken = BTreeSet::new();
        let mut waiting = Vec::with_capacity(self.flowing.len());
        for flowing in &self.flowing {
            let mut is_behind = false;
            for link in flowing.links.iter().filter(|link| self.in_order.contains(link)) {
                is_behind |= !taken.insert(*link);
            }
            waiting.push(is_behind);
        }
        waiting
    }

    /// Finds rates and ends.
    fn share(&mut self) {
        if self.flowing.is_empty() {
            return;
        }
        let narrowest = |links: &[usize]| links.iter().map(|link| self.capacity[*link]).fold(f64::INFINITY, f64::min);
        let flow = |flowing: &Flowing| Flow {
            cap: narrowest(&flowing.links),
            links: flowing.links.iter().map(|link| (*link, 1.0)).collect(),
        };
        let waiting = self.waiting();
        let moving = self.flowing.iter().zip(&waiting).filter(|(_, waits)| !**waits);
        let flows: Vec<Flow> = moving.map(|(flowing, _)| flow(flowing)).collect();
        let mut rates = max_min(&flows, &self.capacity).into_iter();
        for (flowing, waits) in self.flowing.iter_mut().zip(waiting) {
            if waits {
                (flowing.rate, flowing.end) = (0.0, Tick::NEVER);
                continue;
            }
            flowing.rate = rates.next().expect("a rate of every transfer that moves") / Tick::PER_SECOND;
            flowing.end = self.now + Tick::from_f64((flowing.left / flowing.rate).ceil());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::random;
    use hw::{Seconds, Span};

    fn at(seconds: f64) -> Tick {
        Tick::from_seconds(Seconds::new(seconds))
    }

    /// Ends in milliseconds of transfers (start in milliseconds, kilobytes, links).
    fn ends(capacity: &[f64], transfers: &[(u64, f64, &[usize])]) -> Vec<f64> {
        let tick = |ms: u64| Tick::from(Span::from_ns(ms * 1_000_000));
        let mut network = Transfers::new(capacity.to_vec());
        let mut found = vec![0.0; transfers.len()];
        let mut next = 0;
        loop {
            let start = transfers.get(next).map(|(at, ..)| tick(*at));
            let event = network.next();
            if start.is_some_and(|start| event.is_none_or(|event| start <= event)) {
                let (_, bytes, links) = transfers[next];
                let name = u32::try_from(next).expect("few");
                let transfer = Transfer { name, delay: Tick::ZERO, bytes: bytes * 1e3, links: links.to_vec() };
                network.start(transfer, start.expect("checked"));
                next += 1;
                continue;
            }
            let Some(event) = event else { break };
            for name in network.advance(event) {
                found[name as usize] = event.to_seconds() * 1e3;
            }
        }
        found
    }

    fn check(capacity: &[f64], transfers: &[(u64, f64, &[usize])], expected: &[f64]) {
        for (found, expected) in ends(capacity, transfers).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "found {found} ms, expected {expected} ms");
        }
    }

    #[test]
    fn two_transfers_on_one_link() {
        // 1 MB/s is 1 KB per ms. 100 KB from 0 ms, 100 KB from 50 ms: 50 KB are through when the second comes; both run at half the
        // rate; the first ends 100 ms later, at 150 ms, with 50 KB of the second through; the rest takes 50 ms.
        check(&[1e6], &[(0, 100.0, &[0]), (50, 100.0, &[0])], &[150.0, 200.0]);
    }

    #[test]
    fn a_transfer_takes_what_others_leave() {
        // Link 0 carries 1 KB per ms, link 1 carries 3. A takes both, B only link 1: A runs at 1, B at 2, and at 3 when A has ended at
        // 100 ms: B's 300 KB are 200 until then and 100 more in 33.3 ms.
        check(&[1e6, 3e6], &[(0, 100.0, &[0, 1]), (0, 300.0, &[1])], &[100.0, 100.0 + 100.0 / 3.0]);
    }

    #[test]
    fn a_link_in_order_carries_one_transfer_after_another() {
        // 1 KB per ms, 100 KB twice at 0 ms: the first ends at 100 ms as if it were alone, the second at 200 ms.
        let mut network = Transfers::new(vec![1e6]).in_order([0].into());
        for name in 0..2 {
            network.start(Transfer { name, delay: Tick::ZERO, bytes: 1e5, links: vec![0] }, Tick::ZERO);
        }
        assert!(network.advance(Tick::ZERO).is_empty());
        assert_eq!(network.next(), Some(at(0.1)));
        assert_eq!(network.advance(at(0.1)), [0]);
        assert_eq!(network.next(), Some(at(0.2)));
        assert_eq!(network.advance(at(0.2)), [1]);
    }

    #[test]
    fn the_busiest_link_is_the_one_that_takes_longest_for_what_it_carried() {
        // 200 KB over 1 MB/s, of which 100 KB over 10 MB/s too, and 300 KB over 3 MB/s: 200, 10 and 100 ms. A pause between them is no work.
        let mut network = Transfers::new(vec![1e6, 10e6, 3e6]);
        let transfer =
            |name, bytes, links: &[usize]| Transfer { name, delay: Tick::ZERO, bytes, links: links.to_vec() };
        network.start(transfer(0, 1e5, &[0, 1]), Tick::ZERO);
        network.start(transfer(1, 3e5, &[2]), Tick::ZERO);
        while let Some(next) = network.next() {
            network.advance(next);
        }
        network.start(transfer(2, 1e5, &[0]), at(5.0));
        while let Some(next) = network.next() {
            network.advance(next);
        }
        assert!((network.busiest().to_seconds() / 0.2 - 1.0).abs() < 1e-6, "{} s", network.busiest().to_seconds());
        assert_eq!(Transfers::new(Vec::new()).busiest(), Tick::ZERO);
    }

    #[test]
    fn nothing_to_move_or_no_limit_ends_at_once() {
        check(&[1e6], &[(7, 0.0, &[0]), (9, 5.0, &[])], &[7.0, 9.0]);
    }

    #[test]
    fn shares_of_one_link_are_those_of_small_steps() {
        // Against a link that deals single bytes in turn: random transfers on one link.
        let mut stream = random::stream(3, "transfers");
        let mut at = 0;
        let transfers: Vec<(u64, f64, &[usize])> = (0..20)
            .map(|_| {
                at += stream.below(40);
                (at, hw::real(1 + stream.below(50)), &[0][..])
            })
            .collect();
        let (mut left, mut expected): (Vec<f64>, Vec<f64>) =
            (transfers.iter().map(|(_, kilobytes, _)| kilobytes * 1e3).collect(), vec![0.0; 20]);
        // Steps of 10 µs, 10 bytes each.
        for step in 0..200_000_u64 {
            let there = |index: &usize| transfers[*index].0 * 100 <= step && left[*index] > 0.0;
            let active: Vec<usize> = (0..20).filter(there).collect();
            for &index in &active {
                left[index] -= 10.0 / hw::real(active.len() as u64);
                if left[index] <= 1e-9 {
                    left[index] = 0.0;
                    expected[index] = hw::real(step + 1) / 100.0;
                }
            }
        }
        for (found, expected) in ends(&[1e6], &transfers).iter().zip(expected) {
            assert!((found - expected).abs() < 0.3, "found {found} ms, expected {expected} ms");
        }
    }

    #[test]
    fn a_cancelled_transfer_leaves_the_link_to_the_others() {
        let mut network = Transfers::new(vec![1e6]);
        let transfer = |name| Transfer { name, delay: Tick::ZERO, bytes: 1e5, links: vec![0] };
        network.start(transfer(0), Tick::ZERO);
        network.start(transfer(1), Tick::ZERO);
        assert!(network.advance(Tick::ZERO).is_empty());
        let half = at(0.1);
        network.cancel(0, half);
        // 50 KB are through after 100 ms at half the rate; the rest takes 50 ms.
        assert_eq!(network.next(), Some(at(0.15)));
        assert_eq!(network.advance(at(0.15)), [1]);
        assert_eq!(network.next(), None);
    }
}
