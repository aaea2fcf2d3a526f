//! Runs the points of a sweep by the chunk: known rows from the files, the others side by side, all in order.

use std::io;
use std::path::Path;

use rayon::prelude::*;
use thiserror::Error;

use crate::axis::NoGrid;
use crate::front::{UnknownObjective, candidates, front};
use crate::given::Sweep;
use crate::key::{Key, Keys};
use crate::refine::{Refinement, gain};
use crate::row::{Outcome, line, rows};
use crate::sample::{Grid, Point, points};
use crate::store::Store;

/// One part of several, by the hash of a point's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: u32,
    /// How many there are.
    pub n: u32,
}

/// A word that is no part of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write I/N with I from 1 to N, for example 2/8")]
pub struct NoShard;

impl std::str::FromStr for Shard {
    type Err = NoShard;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('/').and_then(|(index, n)| Some((index.parse().ok()?, n.parse().ok()?)));
        let found = parts.map(|(index, n)| Self { index, n }).filter(|shard| (1..=shard.n).contains(&shard.index));
        found.ok_or(NoShard)
    }
}

impl Shard {
    /// Name of the file of its rows.
    pub fn file_name(this: Option<Self>) -> String {
        this.map_or_else(|| "points.jsonl".to_owned(), |shard| format!("points-{}-of-{}.jsonl", shard.index, shard.n))
    }
}

/// How a sweep is played.
pub struct Work<'a> {
    /// Makes keys of points.
    pub keys: Keys,
    /// Runs a point.
    pub run: &'a (dyn Fn(&Point) -> Outcome + Sync),
    /// Whether somebody wants it to stop; points that ended before are kept.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Called after each chunk with the points that are done, and all of them where they are counted.
    pub progress: &'a dyn Fn(u64, Option<u64>),
    /// The part that is played.
    pub shard: Option<Shard>,
    /// Refines around the front until a round gains less than this share.
    pub until: Option<f64>,
}

/// What came of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Lines of all points, in order.
    pub lines: Vec<String>,
    /// Points that were run now; the others were known.
    pub n_new: usize,
    /// Whether every point is there.
    pub is_whole: bool,
}

impl Played {
    /// What was done, in a line.
    pub fn counted(&self) -> String {
        let (n_new, n_known) = (self.n_new, self.lines.len() - self.n_new);
        let goes_on = if self.is_whole { "" } else { "; stopped: the same command goes on" };
        format!("{n_new} points were run, {n_known} were known{goes_on}\n")
    }
}

/// Why a sweep cannot be played.
#[derive(Debug, Error)]
pub enum SweepError {
    /// The axes make no points.
    #[error("{0}")]
    Axes(#[from] NoGrid),
    /// The front is to be refined, and the sweep says no objective.
    #[error("`--until` refines around the front, and the sweep has no `[front]`")]
    NoFront,
    /// A refinement depends on all rows, so no part of it stands alone.
    #[error("`--until` and `--shard` exclude each other")]
    NoParts,
    /// The front is of the beginning of a metric.
    #[error(transparent)]
    NoMetric(#[from] UnknownObjective),
    /// The disk failed.
    #[error("cannot keep rows: {0}")]
    Disk(#[from] io::Error),
}

/// Plays a sweep; rows are kept in a folder.
///
/// # Errors
/// When the axes make no points, the options do not fit each other, or the disk fails.
pub fn play(sweep: &Sweep, folder: &Path, work: &Work<'_>) -> Result<Played, SweepError> {
    let store = Store::open(folder, &Shard::file_name(work.shard))?;
    let mut run = Run { store, work, chunk: sweep.chunk, has_figures: false, played: Played::default() };
    let is_whole = match work.until {
        None => run.all(sweep)?,
        Some(_) if work.shard.is_some() => return Err(SweepError::NoParts),
        Some(share) => run.refined(sweep, share)?,
    };
    // Of a sweep that was stopped, rows may follow.
    if is_whole {
        run.store.finish()?;
    }
    Ok(Played { is_whole, ..run.played })
}

struct Run<'a> {
    store: Store,
    work: &'a Work<'a>,
    chunk: usize,
    /// Whether a point has figures.
    has_figures: bool,
    played: Played,
}

impl Run<'_> {
    /// Every point; whether it came to the end.
    fn all(&mut self, sweep: &Sweep) -> Result<bool, SweepError> {
        let n = points(sweep)?.count() as u64;
        let mut all = points(sweep)?;
        let mut done = 0;
        loop {
            // The first point alone says what is wrong with all of them.
            let size = if done == 0 { 1 } else { self.chunk };
            let chunk: Vec<Point> = all.by_ref().take(size).collect();
            if chunk.is_empty() {
                return Ok(true);
            }
            done += chunk.len() as u64;
            if !self.play(&chunk)? {
                return Ok(false);
            }
            self.ask_for_cut_objectives(sweep)?;
            (self.work.progress)(done, Some(n));
        }
    }

    /// Rounds around the front; whether it came to the end.
    fn refined(&mut self, sweep: &Sweep, share: f64) -> Result<bool, SweepError> {
        if sweep.objectives.is_empty() {
            return Err(SweepError::NoFront);
        }
        let grid = Grid::of(sweep)?;
        let mut refinement = Refinement::new(grid.sizes());
        let mut positions: Vec<(Vec<usize>, Point)> = Vec::new();
        let mut round = refinement.first();
        loop {
            let n_before = self.candidates(sweep).len();
            let new: Vec<(Vec<usize>, Point)> =
                round.into_iter().filter_map(|position| grid.at(&position).map(|point| (position, point))).collect();
            let seeded = new.iter().flat_map(|(_, point)| {
                sweep.seeds().into_iter().map(|seed| Point { seed, ..point.clone() }).collect::<Vec<_>>()
            });
            for chunk in seeded.collect::<Vec<_>>().chunks(self.chunk) {
                if !self.play(chunk)? {
                    return Ok(false);
                }
                self.ask_for_cut_objectives(sweep)?;
                (self.work.progress)(self.played.lines.len() as u64, None);
            }
            positions.extend(new);
            let all = self.candidates(sweep);
            let gained = gain(&all, n_before, &sweep.objectives);
            if n_before > 0 && refinement.is_finest() && gained <= share {
                return Ok(true);
            }
            let best: Vec<_> = front(&all, &sweep.objectives).into_iter().map(|index| &all[index].point).collect();
            let is_best = |point: &Point| {
                best.iter()
                    .any(|best| best.len() == point.set.len() && point.set.iter().all(|(k, v)| best.get(k) == Some(v)))
            };
            let centres: Vec<Vec<usize>> =
                positions.iter().filter(|(_, point)| is_best(point)).map(|(position, _)| position.clone()).collect();
            round = refinement.next(&centres);
            if round.is_empty() {
                return Ok(true);
            }
        }
    }

    /// An objective that is cut short ends the sweep with the first points that have figures. Any other may come with later points, so the end says it.
    fn ask_for_cut_objectives(&mut self, sweep: &Sweep) -> Result<(), SweepError> {
        if self.has_figures {
            return Ok(());
        }
        let rows: Vec<_> = self.played.lines.iter().flat_map(|line| rows(line)).collect();
        self.has_figures = rows.iter().any(|row| !row.metrics.is_empty());
        let cut = UnknownObjective::of(sweep, &rows).filter(UnknownObjective::is_cut);
        cut.map_or(Ok(()), |unknown| Err(unknown.into()))
    }

    fn candidates(&self, sweep: &Sweep) -> Vec<crate::front::Candidate> {
        let rows: Vec<_> = self.played.lines.iter().flat_map(|line| rows(line)).collect();
        candidates(&rows, &sweep.objectives)
    }

    /// Plays the points of a chunk that are of this part and not known, and keeps all its rows; whether nobody stopped it.
    fn play(&mut self, chunk: &[Point]) -> Result<bool, SweepError> {
        let keyed = chunk.iter().map(|point| (self.work.keys.of(point), point));
        let is_mine = |key: Key| self.work.shard.is_none_or(|shard| key.shard(shard.n) + 1 == shard.index);
        let keyed: Vec<(Key, &Point)> = keyed.filter(|(key, _)| is_mine(*key)).collect();
        let known: Vec<Option<&str>> = keyed.iter().map(|(key, _)| self.store.known(&key.to_string())).collect();
        let n_known = known.iter().flatten().count();
        let (run, is_stopped) = (self.work.run, self.work.is_stopped);
        let play = |((key, point), known): (&(Key, &Point), &Option<&str>)| {
            known.map_or_else(|| ended(*key, point, run, is_stopped), |known| Some(known.to_owned()))
        };
        let ended: Vec<Option<String>> = keyed.par_iter().zip(&known).map(play).collect();
        let is_whole = ended.iter().all(Option::is_some);
        let lines: Vec<String> = ended.into_iter().flatten().collect();
        self.store.append(&lines)?;
        self.played.n_new += lines.len() - n_known;
        self.played.lines.extend(lines);
        Ok(is_whole)
    }
}

/// The line of a point that is played; `None` where it was stopped before it ended: who is stopped answers with the best so far, which is no row.
fn ended(
    key: Key,
    point: &Point,
    run: &(dyn Fn(&Point) -> Outcome + Sync),
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Option<String> {
    if is_stopped() {
        return None;
    }
    let found = line(key, point, &run(point));
    (!is_stopped()).then_some(found)
}
