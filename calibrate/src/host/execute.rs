//! An epoch of a graph scenario on this host, predicted and executed, part by part.

use engine::random;
use engine::validation::{How, Pair, Point, Validation, classes};
use graph::Csr;
use graph::csr::index;
use graph::epoch::{Epoch, Term, pairs, queries};
use graph::host::{HostCosts, Job};
use graph::sample::{self, Sampling, batches, each_batch, epoch_stream};
use graph::subgraph::{self, Rule};
use graph::tcsr::{Event, Reverse, TCsr, Take};
use hw::quantile;
use rayon::prelude::*;

use super::clock::Clock;
use crate::sample::UNDISTURBED;

/// Number of the first epoch that is executed; jobs are counted on an earlier one.
const EXECUTED: u32 = 2;
/// Share of a term's time above which what lies outside of the measured range is said.
const OUTSIDE: f64 = 0.1;

/// Predicts an epoch and runs it so many times on a pool: the comparison, and the spread of the runs in words.
pub fn validated(
    pool: &rayon::ThreadPool,
    name: &str,
    epoch: &Epoch,
    costs: &HostCosts,
    runs: u32,
    say: &(dyn Fn(&str) + Sync),
) -> (Validation, Vec<String>) {
    let terms = pool.install(|| epoch.terms());
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); terms.len()];
    for run in 0..runs.max(1) {
        say(&format!("epoch {} of {}", run + 1, runs.max(1)));
        let seconds = pool.install(|| executed(epoch, EXECUTED + run));
        measured.iter_mut().zip(seconds).for_each(|(all, own)| all.push(own));
    }
    let threads = hw::real(pool.current_num_threads() as u64);
    let mut points = Vec::with_capacity(terms.len());
    let mut words = Vec::with_capacity(terms.len());
    for (term, measured) in terms.iter().zip(&measured) {
        points.push(point(term, measured, costs, threads));
        words.push(spread(term, measured, costs));
    }
    let sum = |part: fn(&Point) -> f64| points.iter().map(part).sum::<f64>();
    let step =
        Pair { predicted_s: sum(|point| point.time.predicted_s), measured_s: sum(|point| point.time.measured_s) };
    let totals: Vec<f64> = (0..measured[0].len()).map(|run| measured.iter().map(|term| term[run]).sum()).collect();
    let validation = Validation {
        policy: name.to_owned(),
        step,
        interval_s: [sum(|point| point.low_s), sum(|point| point.high_s)],
        classes: classes(&points),
        streams: points.iter().map(|point| (point.class, point.time)).collect(),
        ranks: std::collections::BTreeMap::new(),
        how: [(How::Live, points.len())].into(),
        hidden_copies: None,
        // Terms and epochs are of the same runs.
        work_s: [step.measured_s; 2],
        unsteady: quantile::of(&totals, 1.0) / quantile::of(&totals, 0.0),
        points,
    };
    (validation, words)
}

fn point(term: &Term, measured: &[f64], costs: &HostCosts, threads: f64) -> Point {
    let sum = |part: &dyn Fn(&Job) -> f64| term.jobs.iter().map(part).sum::<f64>() / threads;
    Point {
        class: term.name,
        time: Pair { predicted_s: sum(&|job| costs.seconds(job)), measured_s: quantile::of(measured, UNDISTURBED) },
        low_s: sum(&|job| costs.ends(job)[0]),
        high_s: sum(&|job| costs.ends(job)[1]),
        n: 1,
    }
}

fn spread(term: &Term, measured: &[f64], costs: &HostCosts) -> String {
    let ends = [0.0, UNDISTURBED, 1.0].map(|part| quantile::of(measured, part));
    let outside = outside(term, costs);
    let outside = outside.map_or_else(String::new, |axis| format!("; {axis} lie outside of what was measured"));
    format!(
        "{}: {} runs from {:.3} to {:.3} s, lower quartile {:.3} s{outside}",
        term.name,
        measured.len(),
        ends[0],
        ends[2],
        ends[1]
    )
}

/// The axis on which more than a tenth of a term's time lies outside of what was measured.
fn outside(term: &Term, costs: &HostCosts) -> Option<&'static str> {
    let seconds = |jobs: &mut dyn Iterator<Item = &Job>| jobs.map(|job| costs.seconds(job)).sum::<f64>();
    let all = seconds(&mut term.jobs.iter());
    let beyond = seconds(&mut term.jobs.iter().filter(|job| costs.outside(job).is_some()));
    if beyond > OUTSIDE * all { term.jobs.iter().find_map(|job| costs.outside(job)) } else { None }
}

/// Runs the parts of an epoch; seconds of each, in the order of its terms.
fn executed(epoch: &Epoch, number: u32) -> Vec<f64> {
    match epoch {
        Epoch::Sampled { graph, train, sampling, width } => sampled(graph, train, sampling, *width, number),
        Epoch::Past { n_vertices, events, reverse, k, take, batch, width } => {
            past((*n_vertices, events, *reverse), (*k, *take), *batch, *width, number)
        }
        Epoch::Pairs { graph, n_pairs, rule, seed } => vec![extracted(graph, *n_pairs, rule, *seed, number)],
    }
}

/// Extraction of all pairs.
fn extracted(graph: &Csr, n_pairs: u64, rule: &Rule, seed: u64, number: u32) -> f64 {
    let (pairs, stream) = pairs(graph, n_pairs, seed, number);
    let clock = Clock::of_pool();
    std::hint::black_box(subgraph::works(graph, &pairs, rule, &stream));
    clock.seconds()
}

/// Sampling of all batches with the gather of each behind it; a thread does one batch after the other.
fn sampled(graph: &Csr, train: &[u32], sampling: &Sampling, width: u64, number: u32) -> Vec<f64> {
    let width = index(width);
    let features = vec![1.0_f32; graph.n_vertices() as usize * width];
    let all = batches(train, sampling, number, 0);
    let threads = hw::real(rayon::current_num_threads() as u64);
    let clock = Clock::of_pool();
    let gathers = each_batch(graph, &all, sampling, &epoch_stream(sampling, number, 0), |_, hops| {
        gathered(&features, width, hops.frontiers[sampling.fan_out.len()].iter().map(|vertex| *vertex as usize))
    });
    let whole = clock.seconds();
    // What is not the gather of one thread is its sampling.
    let gather = gathers.iter().sum::<f64>() / threads;
    vec![whole - gather, gather]
}

thread_local! {
    /// The batch that a thread gathers into, as a loader keeps it.
    static BATCH: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Seconds of a gather.
pub(super) fn gathered(features: &[f32], width: usize, rows: impl ExactSizeIterator<Item = usize>) -> f64 {
    BATCH.with_borrow_mut(|batch| {
        let clock = Clock::of_thread();
        sample::gather(features, width, rows, batch);
        std::hint::black_box(&batch);
        clock.seconds()
    })
}

fn past(
    (n_vertices, events, reverse): (u32, &[Event], Reverse),
    (k, take): (usize, Take),
    batch: usize,
    width: u64,
    number: u32,
) -> Vec<f64> {
    let width = index(width);
    let features = vec![1.0_f32; events.len() * width];
    let clock = Clock::of_pool();
    let graph = TCsr::convert(n_vertices, events, reverse).expect("readers check events");
    let conversion = clock.seconds();
    let (mut sampling, mut gather) = (0.0, 0.0);
    let threads = hw::real(rayon::current_num_threads() as u64);
    let stream = random::stream(u64::from(number), "executed past");
    for batch in events.chunks(batch) {
        let queries = queries(batch);
        let clock = Clock::of_pool();
        let found = graph.sample_all(&queries, k, take, &stream);
        sampling += clock.seconds();
        let rows: Vec<usize> = found.iter().flatten().map(|past| index(past.edge)).collect();
        let part = rows.len().div_ceil(rayon::current_num_threads()).max(1);
        let seconds = rows.par_chunks(part).map(|rows| gathered(&features, width, rows.iter().copied()));
        gather += seconds.sum::<f64>() / threads;
    }
    vec![conversion, sampling, gather]
}
