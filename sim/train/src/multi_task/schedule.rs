//! What is decided: which layers run on which devices, in which order, with a checker that shares nothing with any planner.

use std::ops::Range;

use hw::Rank;

use super::Work;

/// Some layers of a `MetaOp` on some devices: the paper's tuple <n, s, l> with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Index of the `MetaOp`.
    pub meta_op: usize,
    /// First of its layers.
    pub first: u32,
    /// How many.
    pub n_layers: u32,
    /// Index into the `MetaOp`'s sizes.
    pub size: usize,
    /// Wave that it belongs to, where the plan has waves.
    pub wave: u32,
    /// Planned start, seconds; forward and backward of a layer are counted together.
    pub start_s: f64,
    /// Devices: tensor groups one after another, the batch cut in their order.
    pub devices: Vec<Rank>,
}

/// What follows one another, whoever has devices left: a task in its turn goes forward and backward before the next one begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// Nothing: pieces are an order, and a device goes on when what it needs is there.
    #[default]
    Off,
    /// Tasks; pieces of one may run side by side.
    Tasks,
    /// Tasks, and the pieces of each.
    Pieces,
}

/// Pieces in the order in which devices take them; backward goes through those of a turn in reverse.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Pieces by planned start.
    pub pieces: Vec<Piece>,
    /// What follows one another.
    pub turns: Turns,
}

/// Planned times are sums of floats; two that differ by less are equal.
const TOLERANCE: f64 = 1e-9;

impl Piece {
    /// Planned end, seconds.
    pub fn end_s(&self, work: &Work) -> f64 {
        self.start_s + self.seconds(work)
    }

    /// Planned seconds.
    pub fn seconds(&self, work: &Work) -> f64 {
        f64::from(self.n_layers) * work.sizes[self.meta_op][self.size].seconds()
    }
}

impl Schedule {
    /// Planned seconds from the first start to the last end.
    pub fn seconds(&self, work: &Work) -> f64 {
        self.pieces.iter().map(|piece| piece.end_s(work)).fold(0.0, f64::max)
    }

    /// Positions of the pieces of each turn: all of them where nothing takes turns, else those of a task.
    pub fn in_turn(&self, work: &Work) -> Vec<Range<usize>> {
        if self.turns == Turns::Off {
            return std::iter::once(0..self.pieces.len()).collect();
        }
        let is_of_one = |a: &Piece, b: &Piece| work.meta_ops[a.meta_op].task == work.meta_ops[b.meta_op].task;
        let mut from = 0;
        let each = self.pieces.chunk_by(is_of_one).map(|turn| {
            from += turn.len();
            from - turn.len()..from
        });
        each.collect()
    }

    /// Waves.
    pub fn n_waves(&self) -> usize {
        let mut waves: Vec<u32> = self.pieces.iter().map(|piece| piece.wave).collect();
        waves.sort_unstable();
        waves.dedup();
        waves.len()
    }
}

/// A rule that a schedule breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Broken {
    /// A piece names a size that its `MetaOp` does not have.
    #[error("`{name}` from layer {first}: no such size")]
    NoSuchSize { name: String, first: u32 },
    /// A piece has no layers, or does not go on where the one before ended.
    #[error("`{name}` from layer {first}: {done} layers were done before")]
    OutOfOrder { name: String, first: u32, done: u32 },
    /// A piece has other devices than its size says.
    #[error("`{name}` from layer {first}: {devices:?} are not {needed} devices of the machine")]
    WrongDevices { name: String, first: u32, devices: Vec<u32>, needed: u32 },
    /// A piece begins before the layers that it needs.
    #[error("`{name}` from layer {first}: begins before what it needs has ended")]
    TooEarly { name: String, first: u32 },
    /// A device runs two pieces at once.
    #[error("`{name}` from layer {first}: device {device} is busy until {until_s}")]
    Busy { name: String, first: u32, device: u32, until_s: f64 },
    /// A piece begins before the turn ahead of it has ended, or its task had its turn before.
    #[error("`{name}` from layer {first}: begins out of turn")]
    OutOfTurn { name: String, first: u32 },
    /// Layers are missing at the end.
    #[error("`{name}` has layers that nobody runs")]
    Unfinished { name: String },
}

/// Holds a schedule against the work: every layer once and in order, no device twice at a time, nothing before what it needs.
///
/// # Errors
/// The first rule that is broken.
pub fn check(work: &Work, schedule: &Schedule) -> Result<(), Broken> {
    let slack = TOLERANCE * schedule.seconds(work).max(1e-3);
    let mut done = vec![0_u32; work.meta_ops.len()];
    let mut ends = vec![0.0_f64; work.meta_ops.len()];
    let mut free_s = vec![0.0_f64; work.n_devices() as usize];
    for piece in &schedule.pieces {
        let meta_op = &work.meta_ops[piece.meta_op];
        let (name, first) = (meta_op.name.clone(), piece.first);
        let Some(size) = work.sizes[piece.meta_op].get(piece.size) else {
            return Err(Broken::NoSuchSize { name, first });
        };
        if piece.n_layers == 0 || piece.first != done[piece.meta_op] {
            return Err(Broken::OutOfOrder { name, first, done: done[piece.meta_op] });
        }
        let mut devices: Vec<u32> = piece.devices.iter().map(|rank| rank.0).collect();
        devices.sort_unstable();
        devices.dedup();
        if devices.len() != size.n_devices as usize || devices.iter().any(|device| *device >= work.n_devices()) {
            return Err(Broken::WrongDevices { name, first, devices, needed: size.n_devices });
        }
        let needed = meta_op.preds.iter().map(|&pred| (done[pred] == work.n_layers(pred), ends[pred]));
        let mut ready = std::iter::once((true, ends[piece.meta_op])).chain(needed);
        if ready.any(|(is_done, end)| !is_done || end > piece.start_s + slack) {
            return Err(Broken::TooEarly { name, first });
        }
        let end = piece.end_s(work);
        for &device in &devices {
            let free = &mut free_s[device as usize];
            if *free > piece.start_s + slack {
                return Err(Broken::Busy { name, first, device, until_s: *free });
            }
            *free = end;
        }
        done[piece.meta_op] += piece.n_layers;
        ends[piece.meta_op] = end;
    }
    match (0..done.len()).find(|&meta_op| done[meta_op] != work.n_layers(meta_op)) {
        Some(left) => Err(Broken::Unfinished { name: work.meta_ops[left].name.clone() }),
        None => keeps_turns(work, schedule, slack),
    }
}

/// Every task has one turn, and no turn begins before the one ahead of it has ended; with `Turns::Pieces` no piece does either.
fn keeps_turns(work: &Work, schedule: &Schedule, slack: f64) -> Result<(), Broken> {
    if schedule.turns == Turns::Off {
        return Ok(());
    }
    let (mut known, mut ended_s) = (Vec::new(), 0.0_f64);
    for turn in schedule.in_turn(work) {
        let pieces = &schedule.pieces[turn];
        let task = work.meta_ops[pieces[0].meta_op].task;
        let mut begins_s = ended_s;
        for piece in pieces {
            if known.contains(&task) || piece.start_s + slack < begins_s {
                let name = work.meta_ops[piece.meta_op].name.clone();
                return Err(Broken::OutOfTurn { name, first: piece.first });
            }
            ended_s = ended_s.max(piece.end_s(work));
            if schedule.turns == Turns::Pieces {
                begins_s = ended_s;
            }
        }
        known.push(task);
    }
    Ok(())
}
