//! Sweep and fit of the host's kernels: what a fit of known times gives back, and that every kernel runs.

use super::*;
use graph::epoch::Epoch;
use graph::host::HostCosts;
use graph::sample::{Replacement, Sampling};
use graph::subgraph::{Paths, Rule};

/// Times of a law: reads as the square root of the bytes, so that a surface in logarithms has it exactly.
fn by_law(job: Job) -> HostSample {
    let seconds = job.base_s() * (job.point[1] / 1e6).sqrt();
    HostSample { jobs: vec![job], seconds, spread: 1.0 }
}

#[test]
fn a_fit_gives_back_the_law_that_made_its_samples() {
    let jobs = (0..8).flat_map(|size| {
        [64.0, 512.0, 2048.0].map(|row_bytes| Job::gather(1000.0, row_bytes, 1e5 * f64::from(1 << size)))
    });
    let found = fit(&jobs.map(by_law).collect::<Vec<HostSample>>(), 1);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["gather-rows"], "no other kernel was measured");
    assert!(found["gather-rows"].check("gather-rows").is_ok());
    let costs = HostCosts { measured: found, ..HostCosts::assumed() };
    let between = Job::gather(10.0, 512.0, 512.0 * 700.0);
    let error = costs.seconds(&between) / by_law(between.clone()).seconds - 1.0;
    assert!(error.abs() < 0.02, "{error}");
    assert_eq!(costs.outside(&Job::gather(1.0, 512.0, 512e9)), Some("bytes between visits of a row"));
}

#[test]
fn every_kernel_runs_and_an_epoch_has_its_parts() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let samples = pool.install(|| sweep(1.0, Duration::ZERO, &|_| {}));
    for kernel in Kernel::ALL {
        assert!(
            samples.iter().any(|sample| sample.jobs.iter().any(|job| job.kernel == kernel) && sample.seconds > 0.0),
            "{kernel:?}"
        );
    }
    let edges = graph::generate::rmat(10, 8000, graph::generate::Quadrants::GRAPH500, 1);
    let (graph, _) = graph::Csr::from_edges(1 << 10, &edges, graph::csr::Direction::Undirected).expect("a graph");
    let sampling = Sampling { fan_out: vec![5, 3], replacement: Replacement::Without, batch: 64, seed: 1 };
    let epoch = Epoch::Sampled { graph, train: (0..500).collect(), sampling, width: 16 };
    let (found, words) = execute::validated(&pool, "epoch", &epoch, &HostCosts::assumed(), 2, &|_| {});
    assert_eq!(found.points.iter().map(|point| point.class).collect::<Vec<_>>(), ["sampling", "gather"]);
    assert!(found.step.predicted_s > 0.0 && found.step.measured_s > 0.0 && words.len() == 2);
    let Epoch::Sampled { graph, .. } = epoch else { unreachable!("it was made above") };
    let rule = Rule { hops: 1, ratio: 1.0, neighbours_max: u64::MAX, paths: Paths::WithoutEdge };
    let pairs = Epoch::Pairs { graph, n_pairs: 50, rule, seed: 3 };
    let (found, _) = execute::validated(&pool, "epoch", &pairs, &HostCosts::assumed(), 2, &|_| {});
    assert_eq!(found.points[0].class, "extraction");
    assert!(found.step.predicted_s > 0.0 && found.step.measured_s > 0.0);
}
