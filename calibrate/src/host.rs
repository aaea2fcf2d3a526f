//! Kernels of the host under measurement: sampling, gathering, conversion and extraction, as `graph` has them, over graphs of swept sizes.
//!
//! Graphs grow until the budget is spent or the largest size is reached, so that what a profile covers ends where its surface ends. A sample is
//! the lower quartile of several runs, as of every other kernel: whatever else uses the machine only adds time. Waiting for a core is taken out. Kernels run on the threads of
//! the pool that they are called in; seconds are multiplied by the threads, so they are those of one thread among as many.

mod cases;
mod clock;
pub mod execute;
mod sampling;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::cost::host::HostKernel;
use engine::cost::surface::Axis;
use engine::stop;
use graph::host::{Job, Kernel};
use hw::quantile;

use crate::fit;
use crate::sample::UNDISTURBED;

/// Runs of a sample.
const RUNS: usize = 9;
/// Runs of a sample that takes longer than this each, seconds.
const RUNS_LONG: usize = 3;
const LONG_S: f64 = 0.05;
/// Seconds that a run should take at the least.
const RUN_S: f64 = 0.005;
/// Bytes of the smallest graph; every next one is twice as large.
const BYTES_MIN: f64 = 262_144.0;
/// Ratio of one size to the next.
const STEP: f64 = 2.0;
/// Bytes of the tables that are gathered between batches of sampling.
const TABLES: [f64; 3] = [33_554_432.0, 100_663_296.0, 268_435_456.0];
/// Knots lie no closer to each other than this ratio.
const KNOT_RATIO: f64 = 1.3;
/// Samples below which a kernel is left out of a profile.
const ENOUGH: usize = 6;

/// What was measured together.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSample {
    /// What ran: one job, or the rows and marks of sampling.
    pub jobs: Vec<Job>,
    /// Seconds of a thread, the lower quartile of the runs.
    pub seconds: f64,
    /// The slowest run over the fastest.
    pub spread: f64,
}

/// Measures and fits every kernel on the threads of a pool.
pub fn measured(
    pool: &rayon::ThreadPool,
    bytes_max: f64,
    budget: Duration,
    say: &(dyn Fn(&str) + Sync),
) -> BTreeMap<String, HostKernel> {
    let samples = pool.install(|| sweep(bytes_max, budget, say));
    fit(&samples, u32::try_from(pool.current_num_threads()).unwrap_or(u32::MAX))
}

/// Measures every kernel on graphs up to so many bytes, while the budget lasts; the smallest size is always measured. Gathers go on to the
/// largest table: that costs seconds, and features are many times larger than the graph that they belong to.
pub fn sweep(bytes_max: f64, budget: Duration, say: &(dyn Fn(&str) + Sync)) -> Vec<HostSample> {
    let begun = Instant::now();
    let lasts = |budget: Duration| begun.elapsed() < budget && !stop::is_asked();
    let mut samples = Vec::new();
    let mut bytes = BYTES_MIN;
    loop {
        say(&format!("kernels of the host on {:.1} MiB", bytes / hw::GIB * 1024.0));
        samples.extend(timed(cases::of_size(bytes), RUNS));
        // The next size takes as long as all before it.
        if bytes >= bytes_max || !lasts(budget / 2) {
            break;
        }
        bytes *= STEP;
    }
    for table_bytes in TABLES {
        if lasts(budget) {
            say(&format!("samplings between gathers of {:.0} MiB", table_bytes / hw::GIB * 1024.0));
            samples.extend(timed(cases::sampling_apart(bytes, table_bytes), RUNS_LONG));
        }
    }
    while bytes < cases::TABLE_MAX && lasts(budget) {
        bytes *= STEP;
        say(&format!("gathers from {:.0} MiB", bytes / hw::GIB * 1024.0));
        samples.extend(timed(cases::gathers(bytes), RUNS));
    }
    samples
}

/// A case with what its runs took, over their base.
struct Timed {
    case: cases::Case,
    /// Inputs of a run: as many as fill the wanted time.
    n: u64,
    runs: usize,
    ratios: Vec<f64>,
    last: Vec<Job>,
}

/// Times cases in turn, so that a while in which others use the machine meets a run of each and not all runs of one.
fn timed(cases: Vec<cases::Case>, runs: usize) -> Vec<HostSample> {
    let threads = hw::real(rayon::current_num_threads() as u64);
    let mut all: Vec<Timed> = cases.into_iter().map(|case| started(case, runs)).collect();
    for run in 0..runs {
        all.iter_mut().filter(|timed| run < timed.runs).for_each(|timed| timed.run(run as u64));
    }
    let sample = |timed: Timed| {
        let seconds = threads * quantile::of(&timed.ratios, UNDISTURBED) * base_s(&timed.last);
        let spread = quantile::of(&timed.ratios, 1.0) / quantile::of(&timed.ratios, 0.0);
        HostSample { jobs: timed.last, seconds, spread }
    };
    all.into_iter().map(sample).collect()
}

fn base_s(jobs: &[Job]) -> f64 {
    jobs.iter().map(Job::base_s).sum()
}

fn started(mut case: cases::Case, most_runs: usize) -> Timed {
    case(0);
    let (seconds, last) = case(1);
    let n = hw::whole((RUN_S / seconds.max(1e-9)).clamp(1.0, 1000.0));
    let runs = if seconds < LONG_S { most_runs } else { RUNS_LONG };
    Timed { case, n, runs, ratios: Vec::with_capacity(RUNS), last }
}

impl Timed {
    /// Runs do different amounts, so each is compared with its own base.
    fn run(&mut self, run: u64) {
        let (mut took, mut base_s) = (0.0, 0.0);
        // Caches hold what the case before left: the first pass brings its own.
        let first = 2 + run * (self.n + 1);
        (self.case)(first);
        for at in 1..=self.n {
            let (seconds, jobs) = (self.case)(first + at);
            took += seconds;
            base_s += self::base_s(&jobs);
            self.last = jobs;
        }
        self.ratios.push(took / base_s);
    }
}

/// Fits what was measured, by kernel.
pub fn fit(samples: &[HostSample], threads: u32) -> BTreeMap<String, HostKernel> {
    let mut found = BTreeMap::new();
    let of = |kernel| samples.iter().filter(move |sample| sample.jobs.iter().any(|job| job.kernel == kernel));
    let sampled: Vec<&HostSample> = of(Kernel::SampleRows).collect();
    if sampled.len() >= ENOUGH {
        let (surfaces, residuals) = sampling::fit(&sampled);
        let kernels = surfaces.map(|surface| HostKernel { residuals: residuals.clone(), threads, surface });
        found.extend(
            [Kernel::SampleRows, Kernel::SampleMarks].map(|kernel| kernel.name().to_owned()).into_iter().zip(kernels),
        );
    }
    for kernel in Kernel::ALL.into_iter().filter(|kernel| !sampling::is_part(*kernel)) {
        let own: Vec<&HostSample> = of(kernel).collect();
        if own.len() < ENOUGH {
            continue;
        }
        let rows: Vec<fit::Row> = own.iter().zip(0..).map(|(sample, shape)| row(sample, shape)).collect();
        let axes = [0, 1].map(|axis| knots(&own, axis, kernel.axes()[axis])).to_vec();
        let (surface, residuals) = fit::surface_of_all(&rows, axes);
        found.insert(kernel.name().to_owned(), HostKernel { residuals, threads, surface });
    }
    found
}

fn row(sample: &HostSample, shape: u64) -> fit::Row {
    let job = &sample.jobs[0];
    fit::Row { point: job.point.to_vec(), base_s: job.base_s(), measured_s: sample.seconds, shape }
}

/// Knots at what was measured, those that are close as one.
fn knots(samples: &[&HostSample], axis: usize, name: &str) -> Axis {
    let mut places: Vec<f64> = samples.iter().map(|sample| sample.jobs[0].point[axis]).collect();
    places.sort_by(f64::total_cmp);
    let mut knots: Vec<f64> = Vec::new();
    for place in places {
        if knots.last().is_none_or(|last| place > last * KNOT_RATIO) {
            knots.push(place);
        }
    }
    Axis::new(name, knots)
}

#[cfg(test)]
mod tests;
