//! Wavefront scheduling of one level (Spindle, section 3.4): parts of `MetaOps` packed into waves.
//!
//! Per wave: (a) take parts, at most one of each `MetaOp`, while devices are left; (b) give devices that are left to the parts with most time
//! left; (c) set the length, cut what does not fit and bring the rest back; (d) the next wave starts when this one ends. A wave
//! finishes at least one part and a `MetaOp` has at most two, so there are at most twice as many waves as `MetaOps`.
//!
//! The paper leaves open in which order parts are taken; `Preference` says it. Two steps are ours: before (b), parts that did not fit may run on
//! a smaller size than they were cut for; and in (c) the length is not always that of the shortest part, but of the lengths at which a
//! part ends or a layer beyond the shortest part ends the one that gets most work done per device and second. `Preference::starts_all` leaves out
//! those that end before a layer of every part has.

use engine::random;
use train::multi_task::Work;

use super::Slot;
use super::optimum::Part;

hw::words! {
    /// By what parts are preferred, largest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Order: name {
        /// Time left to the `MetaOp`.
        Longest = "longest first",
        /// Devices.
        Widest = "widest first",
        /// Device time left to the `MetaOp`.
        MostWork = "most work first",
    }
}

/// An order, perhaps disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The order.
    pub order: Order,
    /// Number of the disturbance: weights of parts are multiplied by seeded draws; 0 leaves them as they are.
    pub disturbance: u64,
    /// Whether a wave is as long as the longest layer in it at least, so that no part holds devices and runs nothing.
    pub starts_all: bool,
}

/// A `MetaOp`'s parts that are left to run.
#[derive(Clone, Debug)]
struct Left {
    meta_op: usize,
    parts: Vec<Part>,
    /// Next layer.
    first: u32,
}

/// A part in a wave, perhaps on another size than it was cut for.
#[derive(Clone, Copy, Debug)]
struct Taken {
    left: usize,
    part: usize,
    size: usize,
}

struct Packer<'a> {
    work: &'a Work,
    preference: Preference,
    random: Option<random::Stream>,
    left: Vec<Left>,
}

/// Where a level begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    /// Number of its first wave.
    pub wave: u32,
    /// Seconds.
    pub start_s: f64,
}

/// Packs the parts of `MetaOps` that need nothing of each other into waves.
pub fn pack(work: &Work, level: &[(usize, Vec<Part>)], preference: Preference, begin: Begin) -> Vec<Slot> {
    let left =
        level.iter().map(|(meta_op, parts)| Left { meta_op: *meta_op, parts: parts.clone(), first: 0 }).collect();
    let random = (preference.disturbance > 0).then(|| random::stream(preference.disturbance, "waves"));
    let mut packer = Packer { work, preference, random, left };
    let mut slots = Vec::new();
    let Begin { mut wave, mut start_s } = begin;
    while packer.left.iter().any(|left| !left.parts.is_empty()) {
        engine::stop::pause();
        let taken = packer.take();
        let of_wave = packer.run(&taken, wave, start_s);
        start_s = of_wave.iter().map(|slot| slot.end_s(work)).fold(start_s, f64::max);
        slots.extend(of_wave);
        wave += 1;
    }
    slots
}

impl Packer<'_> {
    fn points(&self, left: usize) -> &[(u32, f64)] {
        self.work.curves[self.left[left].meta_op].points()
    }

    fn devices(&self, of: &Taken) -> u32 {
        self.points(of.left)[of.size].0
    }

    fn layer_s(&self, of: &Taken) -> f64 {
        self.points(of.left)[of.size].1
    }

    fn n_layers(&self, of: &Taken) -> u32 {
        self.left[of.left].parts[of.part].n_layers
    }

    /// Seconds of a whole part on its size.
    fn seconds(&self, of: &Taken) -> f64 {
        f64::from(self.n_layers(of)) * self.layer_s(of)
    }

    /// Device seconds of a layer on the size that it was cut for: what running it is worth.
    fn worth(&self, of: &Taken) -> f64 {
        let (n, seconds) = self.points(of.left)[self.left[of.left].parts[of.part].size];
        f64::from(n) * seconds
    }

    /// All parts that are left on their own sizes.
    fn parts(&self) -> Vec<Taken> {
        let each = |(left, of): (usize, &Left)| {
            of.parts.iter().enumerate().map(|(part, of)| Taken { left, part, size: of.size }).collect::<Vec<Taken>>()
        };
        self.left.iter().enumerate().flat_map(each).collect()
    }

    /// Parts in the order of preference.
    fn preferred(&mut self) -> Vec<Taken> {
        let parts = self.parts();
        let of_meta_op = |weight: &dyn Fn(&Taken) -> f64, left: usize| -> f64 {
            parts.iter().filter(|of| of.left == left).map(weight).sum()
        };
        let time = |of: &Taken| self.seconds(of);
        let area = |of: &Taken| self.seconds(of) * f64::from(self.devices(of));
        let mut weighted: Vec<(f64, f64, Taken)> = parts
            .iter()
            .map(|of| {
                let devices = f64::from(self.devices(of));
                let (first, second) = match self.preference.order {
                    Order::Longest => (of_meta_op(&time, of.left), devices),
                    Order::Widest => (devices, of_meta_op(&time, of.left)),
                    Order::MostWork => (of_meta_op(&area, of.left), devices),
                };
                (first, second, *of)
            })
            .collect();
        if let Some(random) = &mut self.random {
            weighted.iter_mut().for_each(|(first, ..)| *first *= 0.5 + random.unit());
        }
        // Sorting is stable: equal parts stay in their order.
        weighted.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
        weighted.into_iter().map(|(_, _, of)| of).collect()
    }

    /// Parts of a wave: those that fit, then others on smaller sizes, then wider ones for devices that are left.
    fn take(&mut self) -> Vec<Taken> {
        let preferred = self.preferred();
        let mut free = self.work.n_devices();
        let mut taken: Vec<Taken> = Vec::new();
        for candidate in &preferred {
            let is_new = taken.iter().all(|other| other.left != candidate.left);
            if is_new && self.devices(candidate) <= free {
                free -= self.devices(candidate);
                taken.push(*candidate);
            }
        }
        for candidate in preferred {
            let is_new = taken.iter().all(|other| other.left != candidate.left);
            let smaller = self.work.curves[self.left[candidate.left].meta_op].within(free);
            if let Some(size) = smaller.filter(|_| is_new) {
                let narrow = Taken { size, ..candidate };
                free -= self.devices(&narrow);
                taken.push(narrow);
            }
        }
        self.widen(&mut taken, free);
        taken
    }

    /// Gives the devices that are left to the parts that take longest.
    fn widen(&self, taken: &mut [Taken], mut free: u32) {
        loop {
            let mut longest: Vec<usize> = (0..taken.len()).collect();
            longest
                .sort_unstable_by(|&a, &b| self.seconds(&taken[b]).total_cmp(&self.seconds(&taken[a])).then(a.cmp(&b)));
            let wider = longest.into_iter().find_map(|at| {
                let more = self.points(taken[at].left).get(taken[at].size + 1)?.0 - self.devices(&taken[at]);
                (more <= free).then_some((at, more))
            });
            let Some((at, more)) = wider else { return };
            taken[at].size += 1;
            free -= more;
        }
    }

    /// Layers of a part that fit a length.
    fn fitting(&self, of: &Taken, length_s: f64) -> u32 {
        // A float that is short of a whole number by rounding alone is that number.
        let fitting = hw::whole((length_s / self.layer_s(of) + 1e-9).floor());
        u32::try_from(fitting).unwrap_or(u32::MAX).min(self.n_layers(of))
    }

    /// The length at which a wave gets most done per second; the shortest part ends within all that are tried.
    fn length_s(&self, taken: &[Taken]) -> f64 {
        let longest_layer = taken.iter().map(|of| self.layer_s(of)).fold(0.0, f64::max);
        let least = if self.preference.starts_all { longest_layer } else { 0.0 };
        let shortest = taken.iter().map(|of| self.seconds(of)).fold(f64::INFINITY, f64::min).max(least);
        let beyond = |of: &Taken| {
            let whole = self.fitting(of, shortest);
            let until = if f64::from(whole) * self.layer_s(of) < shortest { whole + 1 } else { whole };
            f64::from(until) * self.layer_s(of)
        };
        let lengths = taken.iter().flat_map(|of| [beyond(of), self.seconds(of)]).filter(|length_s| *length_s >= least);
        let done = |length_s: f64| -> f64 {
            let worth = taken.iter().map(|of| f64::from(self.fitting(of, length_s)) * self.worth(of));
            worth.sum::<f64>() / length_s
        };
        let rated = std::iter::once(shortest).chain(lengths).map(|length_s| (done(length_s), length_s));
        let best = rated.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        best.expect("the shortest part's length is tried").1
    }

    /// Runs a wave.
    fn run(&mut self, taken: &[Taken], wave: u32, start_s: f64) -> Vec<Slot> {
        let length_s = self.length_s(taken);
        let mut slots = Vec::with_capacity(taken.len());
        for of in taken {
            let n_layers = self.fitting(of, length_s);
            if n_layers == 0 {
                continue;
            }
            let left = &mut self.left[of.left];
            left.parts[of.part].n_layers -= n_layers;
            let (meta_op, first, size) = (left.meta_op, left.first, of.size);
            slots.push(Slot { meta_op, first, n_layers, size, wave, start_s, own: None });
            left.first += n_layers;
        }
        self.left.iter_mut().for_each(|left| left.parts.retain(|part| part.n_layers > 0));
        slots
    }
}
