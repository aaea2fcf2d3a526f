//! Which devices a slot gets (Spindle, section 3.5), slot by slot in order of start, those that hear most first.
//!
//! A slot that fits the free part of a node stays inside one: the node that already holds most of what it needs, then the one that holds most
//! of its parameters, then the tightest. A wider one takes the freest nodes. Inside, each position of the batch goes to the device
//! that holds most of its input. Devices without room are passed over. The whole plan is placed in a few ways that differ in which slots of a
//! wave choose first, and the one whose exchanges take least is kept (the paper goes back to earlier waves instead); where none fits
//! memory, once more with the emptiest devices first, whatever has to travel. Devices in order of slots are played beside it (`plan`).
//! Devices that a task has for itself are chosen once, for its first slot.

use std::collections::{BTreeMap, BTreeSet};

use engine::random;
use hw::Rank;
use train::multi_task::Work;
use train::multi_task::flow::{messages, sources};
use train::multi_task::lower::memory_bytes;
use train::multi_task::schedule::{Piece, Schedule};

use super::{Decided, Own, Slot, traffic};

/// How devices are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Near their input and their parameters.
    Local,
    /// The first free ones, in the order of slots.
    Consecutive,
    /// Any free ones.
    Random {
        /// Seed of the draw.
        seed: u64,
    },
}

/// Names of placements.
pub const PLACEMENTS: [&str; 3] = ["local", "consecutive", "random"];

/// Planned times are sums of floats.
const TOLERANCE: f64 = 1e-9;

/// Which slots of a wave choose first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// Those that hear most, then the widest.
    Heard,
    /// The widest, then those that hear most.
    Wide,
    /// The emptiest devices are given, whoever chooses.
    ByMemory,
}

/// Ways of each order that are tried: as it is, and with disturbed weights.
const WAYS: u64 = 12;

struct Placer<'a> {
    work: &'a Work,
    placement: Placement,
    first: First,
    /// Whether weights are disturbed.
    is_disturbed: bool,
    random: random::Stream,
    pieces: Vec<Piece>,
    /// Latest piece of each `MetaOp`.
    last: Vec<Option<usize>>,
    free_s: Vec<f64>,
    /// Memory that is taken, bytes.
    taken: Vec<u64>,
    /// (operator, layer) that each device holds.
    held: Vec<BTreeSet<(usize, u32)>>,
    /// Devices that tasks have for themselves.
    owned: BTreeMap<usize, Vec<usize>>,
}

/// How many devices are chosen, and how many of them are a tensor group, which stays inside a node.
#[derive(Clone, Copy)]
struct Wanted {
    needed: usize,
    tensor: usize,
}

/// Gives every slot its devices; a note where memory decided.
pub fn place(work: &Work, decided: &Decided, placement: Placement) -> (Schedule, Option<String>) {
    let fits = |schedule: &Schedule| memory_bytes(work, schedule).iter().all(|&bytes| bytes <= work.training.room().0);
    match placement {
        Placement::Local => {}
        Placement::Consecutive => return (place_all(work, decided, placement, (First::Heard, 0)), None),
        Placement::Random { seed } => return (place_all(work, decided, placement, (First::Heard, seed)), None),
    }
    let ways = (0..WAYS).flat_map(|seed| [(First::Heard, seed), (First::Wide, seed)]);
    let mut placed: Vec<(f64, Schedule)> = ways
        .map(|way| place_all(work, decided, placement, way))
        .map(|schedule| (traffic::seconds(work, &schedule), schedule))
        .collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some(at) = placed.iter().position(|(_, schedule)| fits(schedule)) {
        return (placed.swap_remove(at).1, None);
    }
    let balanced = place_all(work, decided, placement, (First::ByMemory, 0));
    if fits(&balanced) {
        return (balanced, Some("placed by free memory: the nearest devices have no room".to_owned()));
    }
    (placed.swap_remove(0).1, Some("no placement was found that fits memory".to_owned()))
}

/// Places in one way: who chooses first, and the seed of what is drawn; a local placement of seed 0 draws nothing.
fn place_all(work: &Work, decided: &Decided, placement: Placement, (first, seed): (First, u64)) -> Schedule {
    let Decided { slots, turns, .. } = decided;
    let n = work.n_devices() as usize;
    let mut placer = Placer {
        work,
        placement,
        first,
        is_disturbed: seed > 0 && placement == Placement::Local,
        random: random::stream(seed, "placement"),
        pieces: Vec::with_capacity(slots.len()),
        last: vec![None; work.meta_ops.len()],
        free_s: vec![0.0; n],
        taken: vec![0; n],
        held: vec![BTreeSet::new(); n],
        owned: BTreeMap::new(),
    };
    let mut at = 0;
    while at < slots.len() {
        let together = slots[at..].iter().take_while(|slot| slot.start_s == slots[at].start_s).count();
        let group = placer.in_turn(&slots[at..at + together]);
        group.iter().for_each(|slot| placer.slot(slot));
        at += together;
    }
    Schedule { pieces: placer.pieces, turns: *turns }
}

impl Placer<'_> {
    /// Slots of one start in the order in which they choose.
    fn in_turn(&mut self, slots: &[Slot]) -> Vec<Slot> {
        if self.placement != Placement::Local {
            return slots.to_vec();
        }
        let mut weighted: Vec<([f64; 2], Slot)> = Vec::with_capacity(slots.len());
        for slot in slots {
            let heard: u64 = sources(self.work, slot.meta_op, &self.last).map(|(_, bytes)| bytes).sum();
            let width = f64::from(self.work.sizes[slot.meta_op][slot.size].n_devices);
            let draw = if self.is_disturbed { 0.5 + self.random.unit() } else { 1.0 };
            let heard = hw::real(heard);
            weighted
                .push((if self.first == First::Wide { [width * draw, heard] } else { [heard * draw, width] }, *slot));
        }
        // Sorting is stable: equal slots stay in their order.
        weighted.sort_by(|(a, _), (b, _)| b[0].total_cmp(&a[0]).then(b[1].total_cmp(&a[1])));
        weighted.into_iter().map(|(_, slot)| slot).collect()
    }

    fn slot(&mut self, slot: &Slot) {
        let size = self.work.sizes[slot.meta_op][slot.size];
        let wanted = Wanted { needed: size.n_devices as usize, tensor: size.tensor as usize };
        let devices = match slot.own {
            // Always the first of them: parts that need nothing of each other would run side by side elsewhere.
            Some(own) => self.own(slot, own)[..wanted.needed].to_vec(),
            None => self.chosen(slot, wanted),
        };
        self.settle(slot, &devices);
    }

    /// Devices of the slot's task, chosen when its first slot asks.
    fn own(&mut self, slot: &Slot, own: Own) -> Vec<usize> {
        if let Some(devices) = self.owned.get(&own.task) {
            return devices.clone();
        }
        let devices = self.chosen(slot, Wanted { needed: own.n_devices as usize, tensor: own.tensor as usize });
        for &device in &devices {
            self.free_s[device] = own.until_s;
        }
        self.owned.insert(own.task, devices.clone());
        devices
    }

    /// Some of the devices that are free.
    fn chosen(&mut self, slot: &Slot, wanted: Wanted) -> Vec<usize> {
        let needed = wanted.needed;
        let slack = TOLERANCE * slot.start_s.max(1e-3);
        let is_free = |device: &usize| self.free_s[*device] <= slot.start_s + slack;
        let free: Vec<usize> = (0..self.free_s.len()).filter(is_free).collect();
        assert!(free.len() >= needed, "slots of one time fit the machine: {} free of {needed}", free.len());
        match self.placement {
            Placement::Local => self.near(slot, &free, wanted),
            Placement::Consecutive => free[..needed].to_vec(),
            Placement::Random { .. } => self.any(free, needed),
        }
    }

    /// Any of the free devices: as many swaps of a shuffle as are needed.
    fn any(&mut self, mut free: Vec<usize>, needed: usize) -> Vec<usize> {
        for at in 0..needed {
            let other = self.random.below((free.len() - at) as u64);
            free.swap(at, at + usize::try_from(other).expect("below a length"));
        }
        free.truncate(needed);
        free
    }

    fn layers<'a>(&'a self, slot: &'a Slot) -> impl Iterator<Item = (usize, u32)> + 'a {
        let meta_op = &self.work.meta_ops[slot.meta_op];
        let operator = self.work.training.calls[meta_op.call].operator;
        let range = slot.first as usize..(slot.first + slot.n_layers) as usize;
        meta_op.layers[range].iter().map(move |&layer| (operator, layer))
    }

    /// Bytes that a device would take more.
    fn more_bytes(&self, slot: &Slot, device: usize) -> u64 {
        let size = self.work.sizes[slot.meta_op][slot.size];
        let kept = self.work.activations(slot.meta_op, slot.size, slot.n_layers).kept;
        let new = self.layers(slot).filter(|layer| !self.held[device].contains(layer));
        kept + new.map(|(operator, _)| self.state_bytes(operator, size.tensor)).sum::<u64>()
    }

    /// Model states of a layer on one device of a tensor group, without those of the optimizer where devices share them.
    fn state_bytes(&self, operator: usize, tensor: u32) -> u64 {
        let of_training = &self.work.training;
        let [parameter, gradient, states] = self.work.of_parameter;
        let own = if of_training.execution.shards_optimizer { 0.0 } else { states };
        let bytes = hw::real(of_training.operators[operator].parameters) * (parameter + gradient + own);
        hw::whole((bytes / f64::from(tensor)).ceil())
    }

    /// Input bytes of each position by the device that holds them: (position, device, bytes).
    fn input(&self, slot: &Slot) -> Vec<(usize, usize, u64)> {
        let needed = self.work.sizes[slot.meta_op][slot.size].n_devices as usize;
        let mut found = Vec::new();
        for (from, bytes) in sources(self.work, slot.meta_op, &self.last) {
            let devices = &self.pieces[from].devices;
            let parts = messages(bytes, devices.len(), needed);
            found.extend(parts.into_iter().map(|part| (part.to, devices[part.from].index(), part.bytes)));
        }
        found
    }

    /// Devices near the input and the parameters of a slot.
    fn near(&self, slot: &Slot, free: &[usize], wanted: Wanted) -> Vec<usize> {
        let needed = wanted.needed;
        let room = self.work.training.room().0;
        let with_room: Vec<usize> =
            free.iter().copied().filter(|&device| self.taken[device] + self.more_bytes(slot, device) <= room).collect();
        let free = if with_room.len() >= needed { &with_room[..] } else { free };
        if self.first == First::ByMemory {
            let mut emptiest = free.to_vec();
            emptiest.sort_by_key(|&device| (self.taken[device], device));
            emptiest.truncate(needed);
            emptiest.sort_unstable();
            return emptiest;
        }
        let input = self.input(slot);
        self.nodes(slot, (free, wanted), &input).map_or_else(
            || free[..needed].to_vec(),
            |nodes| {
                let mut devices = Vec::with_capacity(needed);
                for (of_node, n) in nodes {
                    let chosen = self.inside(slot, &of_node, (devices.len(), n), &input);
                    devices.extend(chosen);
                }
                devices
            },
        )
    }

    /// Nodes for a slot by number, each with its free devices and how many of them it gives; `None` where tensor groups do not fit nodes.
    fn nodes(
        &self,
        slot: &Slot,
        (free, Wanted { needed, tensor }): (&[usize], Wanted),
        input: &[(usize, usize, u64)],
    ) -> Option<Vec<(Vec<usize>, usize)>> {
        let cluster = &self.work.training.cluster;
        let node_of = |device: usize| device / cluster.nvlink_island as usize;
        let n_nodes = cluster.n_gpus().div_ceil(cluster.nvlink_island) as usize;
        let mut nodes: Vec<(usize, Vec<usize>)> = (0..n_nodes)
            .map(|node| (node, free.iter().copied().filter(|&device| node_of(device) == node).collect()))
            .collect();
        let usable = |devices: &Vec<usize>| devices.len() / tensor * tensor;
        let heard =
            |node: usize| input.iter().filter(|(_, device, _)| node_of(*device) == node).map(|part| part.2).sum();
        let known = |devices: &Vec<usize>| devices.iter().map(|&device| self.known(slot, device)).max().unwrap_or(0);
        let fits = |devices: &Vec<usize>| usable(devices) >= needed;
        if nodes.iter().any(|(_, devices)| fits(devices)) {
            nodes.retain(|(_, devices)| fits(devices));
            let best = nodes.into_iter().min_by_key(|(node, devices)| {
                let heard: u64 = heard(*node);
                (std::cmp::Reverse((heard, known(devices))), devices.len(), *node)
            })?;
            return Some(vec![(best.1, needed)]);
        }
        nodes.sort_by_key(|(node, devices)| {
            let heard: u64 = heard(*node);
            (std::cmp::Reverse((usable(devices), heard)), *node)
        });
        let mut left = needed;
        let mut chosen = Vec::new();
        for (node, devices) in nodes {
            let n = usable(&devices).min(left);
            left -= n;
            if n > 0 {
                chosen.push((node, devices, n));
            }
        }
        // By number, so that wide slots have one order and little travels between them.
        chosen.sort_by_key(|(node, ..)| *node);
        (left == 0).then(|| chosen.into_iter().map(|(_, devices, n)| (devices, n)).collect())
    }

    /// Layers of a slot whose parameters a device holds.
    fn known(&self, slot: &Slot, device: usize) -> usize {
        engine::stop::pause();
        self.layers(slot).filter(|layer| self.held[device].contains(layer)).count()
    }

    /// `n` devices of a node for the positions from `first` on: each position where most of its input is, the rest where parameters are.
    fn inside(
        &self,
        slot: &Slot,
        devices: &[usize],
        (first, n): (usize, usize),
        input: &[(usize, usize, u64)],
    ) -> Vec<usize> {
        let mut chosen: Vec<Option<usize>> = vec![None; n];
        let mut rest: Vec<usize> = devices.to_vec();
        let mut wishes: Vec<&(usize, usize, u64)> = input
            .iter()
            .filter(|(position, device, _)| (first..first + n).contains(position) && devices.contains(device))
            .collect();
        wishes.sort_by_key(|(position, device, bytes)| (std::cmp::Reverse(*bytes), *position, *device));
        for (position, device, _) in wishes {
            if chosen[position - first].is_none() && rest.contains(device) {
                chosen[position - first] = Some(*device);
                rest.retain(|other| other != device);
            }
        }
        rest.sort_by_key(|&device| (std::cmp::Reverse(self.known(slot, device)), self.taken[device], device));
        let mut rest = rest.into_iter();
        chosen.into_iter().map(|device| device.or_else(|| rest.next()).expect("the node has enough devices")).collect()
    }

    fn settle(&mut self, slot: &Slot, devices: &[usize]) {
        let end_s = slot.end_s(self.work);
        let layers: Vec<(usize, u32)> = self.layers(slot).collect();
        for &device in devices {
            self.taken[device] += self.more_bytes(slot, device);
            self.held[device].extend(layers.iter().copied());
            self.free_s[device] = slot.own.map_or(end_s, |own| own.until_s);
        }
        self.last[slot.meta_op] = Some(self.pieces.len());
        let rank = |&device: &usize| Rank(u32::try_from(device).expect("ranks fit u32"));
        self.pieces.push(Piece {
            meta_op: slot.meta_op,
            first: slot.first,
            n_layers: slot.n_layers,
            size: slot.size,
            wave: slot.wave,
            start_s: slot.start_s,
            devices: devices.iter().map(rank).collect(),
        });
    }
}
