//! Extraction against training: where workers stop to help, what is kept, and what limits allow.

use engine::cost::roofline::Roofline;
use graph::csr::Direction;
use graph::generate::configuration;
use graph::subgraph::Paths;

use super::*;

fn asked(workers_max: u32) -> Asked {
    let edges = configuration(&[(4, 4000), (20, 1000), (100, 100)], 1);
    let (graph, _) = graph::Csr::from_edges(5100, &edges, Direction::Undirected).expect("a graph");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-40g").expect("listed"), 1, 1);
    Asked {
        known: Known::Whole { graph, train: Vec::new(), removed: graph::csr::Removed::default() },
        width: 64,
        hidden: 64,
        n_layers: 2,
        n_pairs: 100_000.0,
        batch: 64,
        encode_batch: 1024,
        n_epochs: 10,
        ratios: vec![1.0],
        rule: Rule { hops: 1, ratio: 1.0, neighbours_max: u64::MAX, paths: Paths::WithoutEdge },
        workers_max,
        costs: HostCosts::of_ns(25.0, 8.0),
        host_bytes: 0.0,
        hot_bytes: 0.0,
        epoch_s_max: f64::INFINITY,
        machine: Machine {
            memory_bytes: cluster.gpu.memory.0,
            cluster,
            stragglers: train::straggler::Rates::default(),
            usd_per_gpu_hour: Some(3.0),
        },
        n_drawn: 200,
        seed: 0,
    }
}

fn cost(asked: &Asked) -> Roofline {
    Roofline::new(&asked.machine.cluster)
}

/// workers* = t_x · batch / t_gpu, with t_gpu from the cost model and the crossing from the played steps.
#[test]
fn the_gpu_is_the_limit_from_the_analytic_number_of_workers_on() {
    for item_ns in [8.0, 30.0] {
        let mut asked = asked(24);
        asked.costs.item_s = item_ns * 1e-9;
        let work = work(&asked, Method::PathLabels, 1.0);
        let extracted = (work, pair_s(&asked, Method::PathLabels, &work));
        let mut crossing = None;
        let mut analytic = 0.0;
        for n_workers in 1..=24 {
            let plan = Plan { ratio: 1.0, n_workers, storage: Storage::OnTheFly };
            let way = way(&asked, Method::PathLabels, extracted, plan, &cost(&asked));
            analytic = way.pair_s * f64::from(asked.batch) / way.gpu_s;
            let per_step = way.times.further_s[1];
            // Below the crossing a step takes what the workers take, above what the GPU takes.
            let expected = (way.pair_s * f64::from(asked.batch) / f64::from(n_workers)).max(way.gpu_s);
            assert!((per_step / expected - 1.0).abs() < 0.1, "{n_workers}: {per_step} {expected}");
            if crossing.is_none() && per_step <= 1.02 * way.gpu_s {
                crossing = Some(f64::from(n_workers));
            }
        }
        let crossing = crossing.expect("the GPU becomes the limit");
        assert!(analytic > 1.5, "the question is trivial: {analytic}");
        assert!((crossing - analytic).abs() <= 1.0, "{crossing} {analytic}");
    }
}

/// Where workers are the limit, an epoch takes what they take for all pairs, and the GPU's share of the last burst besides.
#[test]
fn an_epoch_takes_the_time_of_its_pairs_over_the_workers() {
    for item_ns in [30.0, 200.0] {
        let mut asked = asked(16);
        asked.costs.item_s = item_ns * 1e-9;
        let work = work(&asked, Method::RadiusLabels, 1.0);
        let pair_s = pair_s(&asked, Method::RadiusLabels, &work);
        let mut n_bound = 0;
        for n_workers in 1..=16 {
            let plan = Plan { ratio: 1.0, n_workers, storage: Storage::OnTheFly };
            let way = way(&asked, Method::RadiusLabels, (work, pair_s), plan, &cost(&asked));
            let [low, expected, high] = way.epoch_s;
            assert!(low <= expected && expected <= high, "{n_workers}: {:?}", way.epoch_s);
            if pair_s * f64::from(asked.batch) / f64::from(n_workers) < way.gpu_s {
                continue;
            }
            n_bound += 1;
            // A batch takes whole nanoseconds.
            let least = (1.0 - 1e-6) * asked.n_pairs * pair_s / f64::from(n_workers);
            assert!(expected >= least, "{n_workers}: {expected} s, workers alone take {least} s");
            assert!(expected <= 1.03 * least, "{n_workers}: {expected} s, workers alone take {least} s");
        }
        assert!(n_bound >= 4, "the GPU is the limit: {n_bound}");
    }
}

/// Rows are compared by workers alone: no figure, task or cause is of a GPU, and what is left agrees.
#[test]
fn common_neighbours_are_compared_by_workers_alone() {
    let asked = Asked { n_pairs: 100_001.0, ..asked(6) };
    let found = judged(&asked, Method::CommonNeighbours, &cost(&asked));
    let metrics = &found.metrics;
    let epoch_s = asked.n_pairs * metrics["extraction_per_pair_s"] / 6.0;
    for key in ["epoch_time_s", "sampling_per_epoch_s"] {
        assert!((metrics[key] / epoch_s - 1.0).abs() < 1e-4, "{key}: {} s, {epoch_s} s by hand", metrics[key]);
    }
    let of_gpu =
        ["gather_per_epoch_s", "training_per_epoch_s", "crossing_workers", "gpu_per_step_s", "iteration_time_s"];
    assert!(of_gpu.iter().all(|key| !metrics.contains_key(*key)), "{metrics:?}");
    let (graph, _) = found.played.as_ref().expect("played");
    assert!(graph.tasks.iter().all(|task| task.role == engine::task::Role::Sampling && task.lane.0 >= 1));
}

/// Ten pairs take as long in a batch that has room for a million as in one of ten.
#[test]
fn a_batch_has_no_more_pairs_than_there_are() {
    let epoch_s = |batch: u32| {
        let asked = Asked { n_pairs: 10.0, batch, ..asked(1) };
        let work = work(&asked, Method::PathLabels, 1.0);
        let extracted = (work, pair_s(&asked, Method::PathLabels, &work));
        let plan = Plan { ratio: 1.0, n_workers: 1, storage: Storage::OnTheFly };
        way(&asked, Method::PathLabels, extracted, plan, &cost(&asked)).epoch_s[1]
    };
    assert_eq!(epoch_s(10).to_bits(), epoch_s(1_000_000).to_bits());
    assert!(epoch_s(1) > epoch_s(10));
}

#[test]
fn more_workers_never_take_longer_and_the_answer_is_the_best() {
    let asked = asked(16);
    let found = judged(&asked, Method::PathLabels, &cost(&asked)).decision.expect("a plan");
    let ways = ways(&asked, Method::PathLabels, 1.0, &cost(&asked));
    let best = ways.iter().map(|way| way.epoch_s[1]).fold(f64::INFINITY, f64::min);
    assert_eq!(found.objective(), Some(best));
    assert!(found.bound().expect("bounded") <= best);
    for pair in ways.windows(2) {
        assert!(pair[1].epoch_s[1] <= pair[0].epoch_s[1] * 1.01, "{:?}", pair[1].plan);
    }
}

#[test]
fn subgraphs_are_kept_where_memory_allows_and_it_helps() {
    let mut asked = asked(1);
    asked.costs.item_s = 50e-9;
    let plan = |asked: &Asked| judged(asked, Method::PathLabels, &cost(asked)).decision.expect("a plan").plan;
    assert_eq!(plan(&asked).storage, Storage::OnTheFly);
    asked.host_bytes = 1e12;
    assert_eq!(plan(&asked).storage, Storage::Ahead);
    // For one epoch nothing is gained.
    asked.n_epochs = 1;
    assert_eq!(plan(&asked).storage, Storage::OnTheFly);
}

#[test]
fn the_largest_share_within_the_limit_is_taken() {
    let mut asked = asked(2);
    asked.costs.item_s = 50e-9;
    asked.ratios = vec![0.1, 1.0, 0.5];
    let found = |asked: &Asked| judged(asked, Method::PathLabels, &cost(asked));
    let whole = found(&asked).metrics["epoch_time_s"];
    assert_eq!(found(&asked).metrics["neighbour_ratio"], 1.0);
    asked.epoch_s_max = whole * 0.9;
    assert!(found(&asked).metrics["neighbour_ratio"] < 1.0);
    asked.epoch_s_max = 1e-9;
    assert_eq!(found(&asked).ended, Ended::Infeasible);
}

#[test]
fn hot_rows_save_reads_and_a_graph_that_is_too_large_is_not_encoded() {
    let mut asked = asked(1);
    let before = work(&asked, Method::PathLabels, 1.0).reads;
    // Half of the slots belong to the 1100 vertices of 20 and 100 neighbours and more: their rows are 113 kB.
    asked.hot_bytes = 120_000.0;
    let after = work(&asked, Method::PathLabels, 1.0).reads;
    assert!((0.2..0.6).contains(&(after / before)), "{after} {before}");
    asked.machine.memory_bytes = 1000;
    assert_eq!(judged(&asked, Method::EncodeOnce, &cost(&asked)).ended, Ended::OutOfMemory);
}

/// A measured kernel takes its factor of the base, whatever is assumed of reads and of rows in caches; rows that are compared stay assumed.
#[test]
fn a_measured_extraction_stands_for_what_is_assumed() {
    use engine::cost::host::{HostKernel, ITEM_S, READ_S};
    use engine::cost::residuals::Residuals;
    use engine::cost::surface::{Axis, Surface};
    let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.05, p90_error: 0.1, low: 0.9, high: 1.2 };
    let axis = |name: &str| Axis::new(name, vec![100.0]);
    let surface = Surface { axes: vec![axis("a"), axis("b")], values: vec![3.0_f64.ln()] };
    let mut asked = asked(1);
    asked.hot_bytes = 1e9;
    let assumed = work(&asked, Method::PathLabels, 1.0);
    assert_eq!(assumed.reads, 0.0, "every row is in a cache");
    let compared = |asked: &Asked| pair_s(asked, Method::CommonNeighbours, &work(asked, Method::CommonNeighbours, 1.0));
    let before = compared(&asked);
    asked.costs.measured.insert("extract-subgraphs".to_owned(), HostKernel { residuals, threads: 1, surface });
    let found = work(&asked, Method::PathLabels, 1.0);
    assert!(found.reads > 0.0);
    let base = found.reads * READ_S + found.probes * ITEM_S;
    assert!((pair_s(&asked, Method::PathLabels, &found) / (3.0 * base) - 1.0).abs() < 1e-9);
    assert_eq!(compared(&asked), before);
}
