//! Measuring a device within a budget, and the profile that comes of it.
//!
//! Every family starts with a few places that fill its region, whatever the budget; then, as long as the budget lasts, the family that is least sure
//! measures the operation that it knows least of. A reference kernel runs in between: samples taken while it is more than a tenth
//! slower than its lower quartile are marked, and left out of the fit where enough others are there; what is left of its changes is taken
//! out of products and attention. The last fifth of the budget goes to samples that took far longer than their neighbours say; of two samples
//! of one operation the faster counts, because whatever else uses a machine only adds time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::cost::law::{AttentionLaw, GemmLaw, Law};
use engine::cost::profile::{self, CollectiveCurve, Profile};
use engine::stop;
use engine::task::Op;
use hw::quantile;
use thiserror::Error;

use crate::design::{self, Next};
use crate::device::{Device, DeviceError, Facts};
use crate::family::{Domain, Family, Region};
use crate::fit;
use crate::fit::law::Row;
use crate::import::Provenance;
use crate::sample::{self, Log, Sample, Timed, UNDISTURBED};

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Time in all.
    pub budget: Duration,
    /// Measuring stops when every time is known within this relative width of a 90 % interval.
    pub width: f64,
}

/// Time for the kernels of a device, and for those of its host behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Kernels of the device.
    pub device: Duration,
    /// Kernels of the host.
    pub host: Duration,
}

/// Time of a quick calibration in all.
pub const QUICK: Duration = Duration::from_secs(20);
/// Kernels of the host take so much of a quick one, and otherwise half as long as those of the device, on top.
const HOST_OF_QUICK: f64 = 0.3;
const HOST: f64 = 0.5;

impl Budget {
    /// That of a quick calibration, all together, or one of so long for the device.
    pub fn of(device: Duration, is_quick: bool) -> Self {
        if is_quick {
            let host = QUICK.mul_f64(HOST_OF_QUICK);
            return Self { device: QUICK.saturating_sub(host), host };
        }
        Self { device, host: device.mul_f64(HOST) }
    }
}

/// Why a campaign stopped.
#[derive(Debug, Error)]
pub enum CampaignError {
    /// The device failed; samples so far are in the log.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The log cannot be written.
    #[error("cannot write the samples: {0}")]
    Log(#[from] std::io::Error),
}

/// What a campaign found.
pub struct Campaign {
    /// Samples, earlier ones of the log included.
    pub samples: Vec<Sample>,
    /// Seconds that it took.
    pub seconds: f64,
    /// What stopped it, in words.
    pub ended: String,
}

/// Seconds between two runs of the reference kernel.
const REFERENCE_EVERY: Duration = Duration::from_secs(4);
/// A reference slower than usual by this factor marks samples.
pub const SLOW: f64 = 1.1;
/// Share of the budget after which only suspects are looked at.
const FIRST_LOOK: f64 = 0.8;
/// A sample slower than the fit by this factor is measured once more.
const SUSPECT: f64 = 1.08;
/// Places that every family starts with.
const FIRST: usize = 6;
/// Longest operation, as a share of the budget.
const LONGEST: f64 = 0.004;
/// 90 % of a normal distribution lies within so many standard deviations, both sides together.
const INTERVAL: f64 = 3.29;
/// Spread around the law that is assumed before anything is known, and never gone below.
const SPREAD: (f64, f64) = (0.3, 0.02);

/// Measures a domain.
///
/// # Errors
/// When the device or the log fails; what was measured is in the log.
pub fn measure(
    device: &mut dyn Device,
    domain: &Domain,
    effort: Effort,
    log: &mut Log,
    earlier: Vec<Sample>,
    say: &dyn Fn(&str),
) -> Result<Campaign, CampaignError> {
    stop::finish(stop::Whose::Process);
    let (begun, reference) = (Instant::now(), device.facts().reference.clone());
    let seconds = sample::time(device, &reference)?.seconds;
    let mut clock = Clock { reference, last: seconds, at: Instant::now(), seen: vec![seconds], beside: Vec::new() };
    let flops_per_s = clock.reference.flops() / seconds;
    // First places are measured however slow the machine is beside the device, but not where one kernel takes longer than the whole budget.
    let holds_first = effort.budget.as_secs_f64() > seconds;
    let mut states = states(device, domain, effort, flops_per_s);
    let n_earlier = earlier.len();
    let mut samples = Vec::new();
    for sample in earlier {
        if let Some(state) = states.iter_mut().find(|state| Some(state.family) == Family::of(&sample.op)) {
            state.add(&sample);
        }
        samples.push(sample);
    }
    let ended = loop {
        if stop::is_asked() {
            break "it was asked to stop".to_owned();
        }
        let is_spent = begun.elapsed() >= effort.budget.mul_f64(FIRST_LOOK);
        let all = states.iter_mut().enumerate().filter(|(_, state)| !is_spent || (holds_first && state.is_new()));
        let all: Vec<(usize, Next)> = all.filter_map(|(index, state)| Some((index, state.next()?))).collect();
        if is_spent && all.is_empty() {
            break "the budget is spent".to_owned();
        }
        let is_sure = all.iter().all(|(_, next)| next.deviation * INTERVAL < effort.width);
        let gain = |next: &Next| next.gain(flops_per_s);
        let Some((index, next)) = all.into_iter().max_by(|a, b| gain(&a.1).total_cmp(&gain(&b.1))) else {
            break "every candidate is measured".to_owned();
        };
        if is_sure {
            break format!("expected times are known within {:.1} %", effort.width * 100.0);
        }
        say(&format!("{} ± {:.0} %", crate::device::describe(&next.op), next.deviation * 164.0));
        match sampled(device, &next.op, &mut clock) {
            Ok(sample) => {
                log.append(&sample)?;
                states[index].add(&sample);
                samples.push(sample);
            }
            // What does not fit is not measured; everything else goes on.
            Err(DeviceError::OutOfMemory { .. }) => states[index].leave_out(&next.op),
            Err(error) => return Err(error.into()),
        }
    };
    for op in suspects(&states) {
        if begun.elapsed() >= effort.budget || stop::is_asked() {
            break;
        }
        say(&format!("{}, again", crate::device::describe(&op)));
        let sample = sampled(device, &op, &mut clock)?;
        log.append(&sample)?;
        samples.push(sample);
    }
    // What is usual is known at the end.
    let usual = clock.usual();
    for (sample, reference) in samples[n_earlier..].iter_mut().zip(&clock.beside) {
        sample.slowdown = reference / usual;
    }
    Ok(Campaign { samples, seconds: begun.elapsed().as_secs_f64(), ended })
}

/// What may be measured of every family: nothing that takes too much of the budget, by the rate of the reference kernel in operations
/// per second, which is a first guess for what is not a product.
fn states(device: &dyn Device, domain: &Domain, effort: Effort, flops_per_s: f64) -> Vec<State> {
    let longest = effort.budget.as_secs_f64() * LONGEST;
    let state = |(family, region): (&Family, &Region)| {
        let mut all = design::candidates(*family, region, |op| device.runs(op));
        // Where everything is long, the shortest few are measured all the same.
        let mut sizes: Vec<f64> = all.iter().map(Op::flops).collect();
        sizes.sort_by(f64::total_cmp);
        let least = sizes.get(FIRST.min(sizes.len().max(1)) - 1).copied().unwrap_or(0.0);
        all.retain(|op| op.flops() <= (flops_per_s * longest).max(least));
        State::new(*family, all, longest, flops_per_s, device.facts())
    };
    domain.iter().map(state).collect()
}

/// Operations that are measured once more: those that took far longer than others of their kind say, the worst first, and then those of families
/// that were sure after their first few, which all lie in one short while.
fn suspects(states: &[State]) -> Vec<Op> {
    let mut found: Vec<(f64, &Op)> = Vec::new();
    for state in states {
        let predicted: Vec<Option<f64>> = match fit::law::operator(&state.rows, state.shape.as_slice(), [""; 3]) {
            Some(operator) => {
                let law = operator.law.as_ref();
                let seconds = |row| law.map(|law| fit::law::predicted(law, &operator.surface, row));
                state.rows.iter().map(seconds).collect()
            }
            None => {
                let points: Vec<(f64, f64)> = state.rows.iter().map(|row| (row.point[0], row.seconds)).collect();
                let curve = fit::curve::fit(&points);
                let at = |row: &Row| {
                    let curve = curve.as_ref()?;
                    Some(engine::cost::curve::at(&curve.bytes, &curve.seconds, row.point[0]).0)
                };
                state.rows.iter().map(at).collect()
            }
        };
        let ratios =
            state.rows.iter().zip(predicted).filter_map(|(row, seconds)| Some((row.seconds / seconds?, &row.op)));
        found.extend(ratios.filter(|(ratio, _)| *ratio > SUSPECT));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let brief = states.iter().filter(|state| state.rows.len() <= FIRST).flat_map(|state| &state.rows);
    found.into_iter().map(|(_, op)| op).chain(brief.map(|row| &row.op)).cloned().collect()
}

/// The reference kernel over time.
struct Clock {
    reference: Op,
    last: f64,
    at: Instant,
    /// All times.
    seen: Vec<f64>,
    /// The time beside each sample.
    beside: Vec<f64>,
}

impl Clock {
    fn see(&mut self, seconds: f64) {
        self.last = seconds;
        self.seen.push(seconds);
    }

    /// What others on the machine leave undisturbed.
    fn usual(&self) -> f64 {
        quantile::of(&self.seen, UNDISTURBED)
    }
}

/// One sample, marked with the state of the reference kernel.
fn sampled(device: &mut dyn Device, op: &Op, clock: &mut Clock) -> Result<Sample, DeviceError> {
    if clock.at.elapsed() >= REFERENCE_EVERY {
        clock.see(sample::time(device, &clock.reference)?.seconds);
        clock.at = Instant::now();
    }
    let Timed { seconds, spread, reference_s } = sample::time(device, op)?;
    reference_s.into_iter().for_each(|seconds| clock.see(seconds));
    clock.beside.push(clock.last);
    Ok(Sample { op: op.clone(), seconds, spread, slowdown: clock.last / clock.usual() })
}

/// What is known of a family while it is measured.
struct State {
    family: Family,
    candidates: Vec<Op>,
    rows: Vec<Row>,
    /// Relative spread of measured times around the law.
    spread: f64,
    /// Seconds that an operation may take.
    longest: f64,
    /// Rate of the reference kernel.
    flops_per_s: f64,
    /// Shape of the law of its family: that of the device's tiles, where it has any.
    shape: Option<Law>,
    /// The answer of the last round, until a row comes.
    known: Option<Option<Next>>,
}

impl State {
    fn new(family: Family, candidates: Vec<Op>, longest: f64, flops_per_s: f64, facts: &Facts) -> Self {
        let shapes = shapes(family, facts);
        let shape = shapes.get(1).or_else(|| shapes.first()).cloned();
        Self { family, candidates, rows: Vec::new(), spread: SPREAD.0, longest, flops_per_s, shape, known: None }
    }

    /// Whether its first places are not all measured.
    const fn is_new(&self) -> bool {
        self.rows.len() < FIRST
    }

    fn leave_out(&mut self, op: &Op) {
        self.candidates.retain(|candidate| candidate != op);
        self.known = None;
    }

    fn add(&mut self, sample: &Sample) {
        let row = Row { op: sample.op.clone(), point: Family::point(&sample.op), seconds: sample.steady_s() };
        if sample.seconds > self.longest {
            // Nothing larger in every dimension is measured after one that took too long.
            let larger = |op: &Op| Family::point(op).iter().zip(&row.point).all(|(at, than)| at >= than);
            self.candidates.retain(|op| !larger(op));
        }
        self.rows.push(row);
        self.known = None;
        // A law runs through a few rows whatever they are: what it leaves says nothing before there are several per coefficient.
        if let Some(shape) = self.shape.as_ref().filter(|_| self.rows.len() >= ENOUGH) {
            self.spread = fit::law::spread(&self.rows, shape).max(SPREAD.1);
        }
    }

    fn next(&mut self) -> Option<Next> {
        if let Some(known) = &self.known {
            return known.clone();
        }
        let first = self.candidates.get(self.rows.len()).filter(|_| self.is_new());
        let next = match first {
            Some(op) => Some(Next { op: op.clone(), deviation: 1.0 }),
            None if self.shape.is_none() => {
                let points: Vec<(f64, f64)> = self.rows.iter().map(|row| (row.point[0], row.seconds)).collect();
                design::for_curve(&self.candidates, &points)
            }
            None => design::for_law(&self.candidates, &self.rows, self.spread, self.flops_per_s),
        };
        self.known = Some(next.clone());
        next
    }
}

/// Shapes of a family's law, none for what is a curve: one thing after the other, then the device's tiles in waves and, of products, smaller
/// and wider ones. The library picks among these by rules of its own.
fn shapes(family: Family, facts: &Facts) -> Vec<Law> {
    let (m, n, slots) = facts.tile;
    let is_tiled = facts.tile != (1, 1, 1);
    match family {
        Family::Gemm(_) => {
            let mut tiles = vec![(1, 1, 1)];
            tiles.extend(is_tiled.then_some(facts.tile));
            if slots > 1 {
                tiles.extend([(m / 2, n / 2, slots), (m / 2, n, slots), (m, n * 2, slots)]);
            }
            let gemm = |(tile_m, tile_n, slots)| Law::Gemm(GemmLaw { tile_m, tile_n, slots, ..GemmLaw::default() });
            tiles.into_iter().map(gemm).collect()
        }
        Family::Attention { .. } => {
            let rows = [Some(0), (slots > 1).then_some(m)].into_iter().flatten();
            rows.map(|tile| Law::Attention(AttentionLaw { tile, ..AttentionLaw::default() })).collect()
        }
        Family::Memory(_) | Family::Collective(..) => Vec::new(),
    }
}

/// Names and dates of a profile that is fitted here.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Profile name.
    pub name: String,
    /// Date of the fit.
    pub date: String,
    /// Command that measured it.
    pub command: String,
    /// Seconds that measuring took.
    pub seconds: f64,
}

/// Rows that a fit needs before it says how good it is, and before marked ones are left out.
const ENOUGH: usize = 24;

/// Fits a profile to samples of a device.
pub fn profile(samples: &[Sample], facts: &Facts, header: &Header) -> Profile {
    let mut families: BTreeMap<Family, Vec<&Sample>> = BTreeMap::new();
    let mut fastest: BTreeMap<&Op, &Sample> = BTreeMap::new();
    for sample in samples {
        let known = fastest.entry(&sample.op).or_insert(sample);
        if sample.steady_s() < known.steady_s() {
            *known = sample;
        }
    }
    for sample in fastest.into_values() {
        if let Some(family) = Family::of(&sample.op) {
            families.entry(family).or_default().push(sample);
        }
    }
    let n_slow = samples.iter().filter(|sample| sample.slowdown > SLOW).count();
    let float = |n: usize| hw::real(n as u64);
    let provenance = Provenance {
        name: header.name.clone(),
        gpu: facts.gpu.clone().unwrap_or_else(|| header.name.clone()),
        source: format!("measured by skrull-sim, {} samples", samples.len()),
        date: header.date.clone(),
    };
    let mut profile = Profile {
        device: Some(profile::Device {
            name: facts.name.clone(),
            driver: facts.driver.clone(),
            clocks: facts.clocks.clone(),
            command: header.command.clone(),
            seconds: (header.seconds * 10.0).round() / 10.0,
            throttled_ratio: (float(n_slow) / float(samples.len().max(1)) * 1000.0).round() / 1000.0,
        }),
        ..provenance.profile()
    };
    for (family, samples) in families {
        let steady: Vec<&Sample> = samples.iter().copied().filter(|sample| sample.slowdown <= SLOW).collect();
        let used = if steady.len() >= ENOUGH { steady } else { samples };
        add(&mut profile, family, &used, facts);
    }
    profile
}

fn add(profile: &mut Profile, family: Family, samples: &[&Sample], facts: &Facts) {
    let row =
        |sample: &&Sample| Row { op: sample.op.clone(), point: Family::point(&sample.op), seconds: sample.steady_s() };
    let rows: Vec<Row> = samples.iter().map(row).collect();
    let shapes = shapes(family, facts);
    if !shapes.is_empty() {
        let names = match family {
            Family::Gemm(_) => ["m", "n", "k"],
            _ => ["document length", "query tiles", "heads per key-value head"],
        };
        profile.operators.extend(fit::law::operator(&rows, &shapes, names).map(|operator| (family.name(), operator)));
        return;
    }
    let points: Vec<(f64, f64)> = rows.iter().map(|row| (row.point[0], row.seconds)).collect();
    let Some(curve) = fit::curve::fit(&points) else { return };
    match family {
        Family::Collective(kind, n_ranks) => profile.collectives.push(CollectiveCurve {
            kind: kind.name().to_owned(),
            n_ranks,
            n_nodes: 1,
            port_gb_per_s: None,
            residuals: curve.residuals,
            bytes: curve.bytes,
            seconds: curve.seconds,
        }),
        _ => {
            profile.memory.insert(family.name(), curve);
        }
    }
}

#[cfg(test)]
mod tests;
