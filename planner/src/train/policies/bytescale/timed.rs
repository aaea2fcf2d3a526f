//! Widths, places and lists by the cost model's times, for the step that ends first. Not in the paper, which takes the least ranks that hold a
//! sequence and weighs model operations.
//!
//! Moldable tasks on consecutive ranks: a ring takes at least the ranks that hold its sequence; more of them compute less each, down to
//! the time in which all keys and values pass a port. For a limit on the time of a ring, every long sequence takes the narrowest ring
//! within it; rings go longest first to the ranks that are free first, on ties where they leave least idle. Short sequences then fill what
//! rings leave idle before they begin, and even out the ends, one by one, longest first (a whole pack would be too coarse); only then each
//! rank packs its own. Several limits and two orders are tried; after that, rings that end last are widened or narrowed while that helps.
//! Prices: `RankTimes`. What comes out is compared with the paper's lists and is never worse in predicted time.
//!
//! With a pipeline of p stages a rank takes the sum of its micro-batches and p − 1 times the longest of them, whatever their order (a
//! proportionate flow shop), so the longest ring of a rank costs it p times its time. Widths come from limits as above; packs stay whole, and
//! every pipeline gets one length class as in the paper.

use std::collections::{BTreeMap, BTreeSet};

use train::lower::training::RankTimes;
use train::plan::MicroBatch;

use super::offload::Offload;
use super::{Deal, Lists, Rings, Sequence, Unit, longest_first, packs, placed, span, windows};

/// Ratio of neighbouring widths that are weighed.
const WIDER: f64 = 1.05;
/// Limits that are tried, over the time of the longest narrowest ring.
const LIMITS: [f64; 10] = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.42, 0.35, 0.3, 0.25];
/// Changes of one ring that are tried.
const CHANGES: usize = 40;
/// Rings that end within this share of the step's end are worth a change.
const LATE: f64 = 0.97;

/// A sequence that one rank does not hold.
struct Long {
    sequence: Sequence,
    /// Ranks that hold it.
    least: u32,
    offload_permille: u32,
}

/// A long sequence with its place.
#[derive(Clone, Copy)]
struct Ring {
    long: usize,
    first: usize,
    width: usize,
    end_s: f64,
}

/// Time on a rank before a ring begins.
struct Gap {
    rank: usize,
    ring: usize,
    room_s: f64,
}

/// Everything of a step with its place; the predicted end.
struct Filled {
    rings: Vec<Ring>,
    gaps: Vec<Gap>,
    in_gaps: Vec<Vec<Sequence>>,
    behind: Vec<Vec<Sequence>>,
    end_s: f64,
}

/// Which ring is placed first.
#[derive(Clone, Copy)]
enum First {
    Longest,
    Widest,
}

/// The ranks of a step and what goes to them.
struct Pool<'a, 'b> {
    times: &'a mut RankTimes<'b>,
    n_ranks: u32,
    per_node: u32,
    longs: Vec<Long>,
    /// Short sequences, most time first, with their seconds in a full micro-batch.
    shorts: Vec<(Sequence, f64)>,
    known: BTreeMap<(u64, u32), f64>,
}

/// Micro-batches of a step whose predicted end is early.
pub(super) fn deal(
    sequences: &[Sequence],
    capacity: u64,
    offload: &Offload<'_>,
    times: &mut RankTimes<'_>,
) -> Vec<MicroBatch> {
    let layout = &offload.problem.layout;
    let (long, short): (Vec<Sequence>, Vec<Sequence>) =
        sequences.iter().copied().partition(|(_, tokens)| *tokens > capacity);
    let longs = long.into_iter().map(|sequence| {
        let (offload_permille, least) = offload.of(sequence.1, capacity);
        Long { sequence, least, offload_permille }
    });
    let longs = longs.collect();
    let price = |(id, tokens): Sequence| ((id, tokens), times.share_s(tokens, capacity));
    let mut shorts: Vec<(Sequence, f64)> = short.into_iter().map(price).collect();
    shorts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let per_node = (offload.problem.cluster.domain() / layout.tp).max(1);
    let mut pool = Pool { times, n_ranks: layout.cp, per_node, longs, shorts, known: BTreeMap::new() };
    if layout.pp > 1 {
        return pool.classes(capacity, offload);
    }
    let best = pool.best();
    pool.lists(&best, capacity, offload)
}

impl Pool<'_, '_> {
    /// Different widths of all rings, within one limit each.
    fn widths(&mut self) -> BTreeSet<Vec<u32>> {
        let all = 0..self.longs.len();
        let longest = all.clone().map(|long| self.ring_s(long, self.longs[long].least)).fold(0.0, f64::max);
        let within = |limit: f64| all.clone().map(|long| self.width(long, limit * longest)).collect();
        LIMITS.map(within).into_iter().collect()
    }

    /// One length class per pipeline, with the widths that end first.
    fn classes(&mut self, capacity: u64, offload: &Offload<'_>) -> Vec<MicroBatch> {
        let problem = offload.problem;
        let short: Vec<Sequence> = self.shorts.iter().map(|(sequence, _)| *sequence).collect();
        let lengths = |unit: &Unit| unit.sequences.iter().map(|(_, tokens)| *tokens).collect::<Vec<u64>>();
        let priced = |unit: Unit| Unit { work: self.times.whole_s(&lengths(&unit)), ..unit };
        let packs: Vec<Unit> = packs(&short, capacity, offload).into_iter().map(priced).collect();
        let mut best: Option<(f64, Vec<MicroBatch>)> = None;
        for widths in self.widths() {
            let rings = widths.iter().enumerate().map(|(long, &n_ranks)| {
                let work = self.ring_s(long, n_ranks);
                let Long { sequence, offload_permille, .. } = self.longs[long];
                Unit { sequences: vec![sequence], n_ranks, work, offload_permille }
            });
            let mut units: Vec<Unit> = rings.collect();
            units.extend(packs.iter().cloned());
            longest_first(&mut units);
            let placed = placed(&units, problem, Deal::Timed, Rings::Anywhere);
            let end_s = span::of(&placed, problem, self.times);
            if best.as_ref().is_none_or(|(least, _)| end_s < *least) {
                best = Some((end_s, placed));
            }
        }
        best.expect("there is at least one limit").1
    }

    /// The earliest end over limits and orders, then over changes of single rings.
    fn best(&mut self) -> Filled {
        let mut best: Option<(Filled, Vec<u32>, First)> = None;
        for widths in self.widths() {
            for order in [First::Longest, First::Widest] {
                let filled = self.filled(&widths, order);
                if best.as_ref().is_none_or(|(least, ..)| filled.end_s < least.end_s) {
                    best = Some((filled, widths.clone(), order));
                }
            }
        }
        let (mut best, mut widths, order) = best.expect("there is at least one limit");
        for change in 0..CHANGES {
            let late = best.rings.iter().filter(|ring| ring.end_s >= LATE * best.end_s);
            let late: Vec<usize> = late.map(|ring| ring.long).collect();
            if late.is_empty() {
                break;
            }
            let long = late[change / 4 % late.len()];
            let factor = [1.1, 1.3, 0.9, 0.75][change % 4];
            let mut changed = widths.clone();
            changed[long] = self.scaled(long, widths[long], factor);
            let filled = self.filled(&changed, order);
            if filled.end_s < best.end_s {
                (best, widths) = (filled, changed);
            }
        }
        best
    }

    /// A width by a factor wider or narrower, within what holds the sequence and what there is.
    fn scaled(&self, long: usize, width: u32, factor: f64) -> u32 {
        let scaled = hw::whole((f64::from(width) * factor).ceil());
        u32::try_from(scaled).unwrap_or(self.n_ranks).clamp(self.longs[long].least, self.n_ranks)
    }

    fn ring_s(&mut self, long: usize, width: u32) -> f64 {
        let tokens = self.longs[long].sequence.1;
        *self.known.entry((tokens, width)).or_insert_with(|| self.times.ring_s(tokens, width))
    }

    /// The narrowest ring within a limit; the fastest where none is.
    fn width(&mut self, long: usize, limit_s: f64) -> u32 {
        let mut width = self.longs[long].least;
        let mut fastest = (self.ring_s(long, width), width);
        while fastest.0 > limit_s && width < self.n_ranks {
            width = self.scaled(long, width, WIDER).max(width + 1);
            let seconds = self.ring_s(long, width);
            if seconds < fastest.0 {
                fastest = (seconds, width);
            }
        }
        fastest.1
    }

    /// Rings of these widths in their places, and everything short around them.
    fn filled(&mut self, widths: &[u32], order: First) -> Filled {
        let mut seconds: Vec<(usize, f64)> =
            (0..widths.len()).map(|long| (long, self.ring_s(long, widths[long]))).collect();
        seconds.sort_by(|a, b| {
            let wider = match order {
                First::Longest => std::cmp::Ordering::Equal,
                First::Widest => widths[b.0].cmp(&widths[a.0]),
            };
            wider.then(b.1.total_cmp(&a.1)).then(self.longs[a.0].sequence.cmp(&self.longs[b.0].sequence))
        });
        let mut load = vec![0.0_f64; self.n_ranks as usize];
        let (mut rings, mut gaps) = (Vec::with_capacity(widths.len()), Vec::new());
        for (long, ring_s) in seconds {
            let width = widths[long] as usize;
            let (first, begin_s) = windows::first_free(&load, width, self.per_node as usize);
            for (rank, load) in load.iter_mut().enumerate().skip(first).take(width) {
                if begin_s > *load {
                    gaps.push(Gap { rank, ring: rings.len(), room_s: begin_s - *load });
                }
                *load = begin_s + ring_s;
            }
            rings.push(Ring { long, first, width, end_s: begin_s + ring_s });
        }
        self.fill(rings, gaps, load)
    }

    /// Short sequences, most time first: to the widest gap that takes them, else to the rank that is free first.
    fn fill(&self, rings: Vec<Ring>, gaps: Vec<Gap>, mut load: Vec<f64>) -> Filled {
        // Times are not negative, so their bits are in order.
        let mut by_room: BTreeSet<(u64, usize)> =
            gaps.iter().enumerate().map(|(gap, of)| (of.room_s.to_bits(), gap)).collect();
        let mut by_load: BTreeSet<(u64, usize)> =
            load.iter().enumerate().map(|(rank, load)| (load.to_bits(), rank)).collect();
        let mut in_gaps = vec![Vec::new(); gaps.len()];
        let mut behind = vec![Vec::new(); load.len()];
        for &(sequence, seconds) in &self.shorts {
            let widest = by_room.last().copied().filter(|(room, _)| f64::from_bits(*room) >= seconds);
            if let Some((room, gap)) = widest {
                by_room.remove(&(room, gap));
                by_room.insert(((f64::from_bits(room) - seconds).max(0.0).to_bits(), gap));
                in_gaps[gap].push(sequence);
            } else {
                let (_, rank) = by_load.pop_first().expect("a pool has ranks");
                load[rank] += seconds;
                by_load.insert((load[rank].to_bits(), rank));
                behind[rank].push(sequence);
            }
        }
        let end_s = load.into_iter().fold(0.0, f64::max);
        Filled { rings, gaps, in_gaps, behind, end_s }
    }

    /// Lists of all ranks: what fills a gap before its ring, then what is behind the last one.
    fn lists(&self, filled: &Filled, capacity: u64, offload: &Offload<'_>) -> Vec<MicroBatch> {
        let mut lists = Lists::new(self.n_ranks);
        let mut next_gap = 0;
        for (index, ring) in filled.rings.iter().enumerate() {
            while let Some(gap) = filled.gaps.get(next_gap).filter(|gap| gap.ring == index) {
                for unit in packs(&filled.in_gaps[next_gap], capacity, offload) {
                    lists.put(&unit, gap.rank);
                }
                next_gap += 1;
            }
            let long = &self.longs[ring.long];
            let n_ranks = u32::try_from(ring.width).expect("ranks fit u32");
            let sequences = vec![long.sequence];
            let unit = Unit { sequences, n_ranks, work: 0.0, offload_permille: long.offload_permille };
            lists.put(&unit, ring.first);
        }
        for (rank, sequences) in filled.behind.iter().enumerate() {
            for unit in packs(sequences, capacity, offload) {
                lists.put(&unit, rank);
            }
        }
        lists.micro_batches
    }
}
