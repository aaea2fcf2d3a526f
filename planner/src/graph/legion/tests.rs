//! Caches on graphs in memory: predicted transactions against counted ones, what must hold of cliques, and who is faster.

use engine::cost::roofline::Roofline;
use engine::verdict::Ended;
use graph::Csr;
use graph::csr::Direction;
use graph::generate::{Quadrants, rmat};
use graph::legion::{N_STEPS, point};
use graph::sample::Replacement;
use graph::step::Layer;

use super::*;

/// The platforms of the paper: card, GPUs of a clique, GPUs of a PCIe switch, NVLink in GB/s.
const PLATFORMS: [(&str, u32, u32, f64); 3] =
    [("v100-sxm-16g", 4, 2, 100.0), ("a100-pcie-40g", 2, 4, 300.0), ("a100-sxm-40g", 8, 2, 300.0)];

fn machine((gpu, island, per_switch, nvlink): (&str, u32, u32, f64)) -> Machine {
    let gpu = hw::catalog::gpu(gpu).expect("listed");
    let mut cluster = hw::catalog::cluster(&gpu, 1, 8);
    cluster.nvlink_island = island;
    cluster.gpus_per_switch = per_switch;
    cluster.gpu.intra_node_bandwidth = hw::BytesPerSecond::new(nvlink * 1e9);
    Machine {
        memory_bytes: cluster.gpu.memory.0,
        cluster,
        stragglers: train::straggler::Rates::default(),
        usd_per_gpu_hour: Some(2.0),
    }
}

/// An R-MAT graph of which a share of the vertices is trained on; caches hold this share of all features in a clique of four.
fn asked(scale: u32, n_edges: u64, skew: f64, platform: (&str, u32, u32, f64), cached: f64) -> Asked {
    let n_vertices = 1 << scale;
    let edges = rmat(scale, n_edges, Quadrants::skewed(skew), 1);
    let (graph, _) = Csr::from_edges(n_vertices, &edges, Direction::Undirected).expect("a graph");
    let train = (0..n_vertices).step_by(2).collect();
    let width = 64;
    let sampling = Sampling { fan_out: vec![10, 5], replacement: Replacement::Without, batch: 500, seed: 7 };
    let network = Network { layer: Layer::GraphSage, width, hidden: 64 };
    let cache_bytes = hw::real(4 * width * u64::from(n_vertices)) * cached / 4.0;
    let known = Known::Whole { graph, train, removed: graph::csr::Removed::default() };
    Asked { known, network, sampling, machine: machine(platform), cache_bytes, replay: true }
}

fn costs(cluster: &hw::Cluster) -> Box<dyn CostModel> {
    Box::new(Roofline::new(cluster))
}

fn run(asked: &Asked, name: &str) -> Judged<Caches> {
    let policy = POLICIES.iter().find(|policy| policy.name == name).expect("a policy");
    judged(asked, policy, &costs)
}

#[test]
fn planned_transactions_are_within_ten_per_cent_of_counted_ones() {
    for skew in [0.3, 0.45, 0.57] {
        for platform in &PLATFORMS[..2] {
            let asked = asked(16, 1_000_000, skew, *platform, 0.3);
            for name in ["dgl-uva", "pagraph", "quiver", "legion", "legion-replicated"] {
                let found = run(&asked, name);
                let error = found.metrics["replay_error_ratio"];
                assert!(error.abs() < 0.1, "{name} on {} at skew {skew}: {error}", platform.0);
            }
        }
    }
}

#[test]
fn the_split_is_the_best_of_the_grid_and_no_worse_than_either_end() {
    let asked = asked(13, 60_000, 0.5, PLATFORMS[0], 0.4);
    let found = run(&asked, "legion").decision.expect("a plan");
    assert_eq!(found.status, Status::Optimal);
    let groups = groups::of(&asked, &LEGION, 4).expect("a streamed cut");
    for (group, (_, chosen)) in groups.iter().zip(&found.plan.groups) {
        for step in 0..=N_STEPS {
            let other = point(&group.demand, 4.0 * asked.cache_bytes, f64::from(step) / f64::from(N_STEPS));
            assert!(chosen.sum() <= other.sum(), "{} at {}", chosen.alpha, other.alpha);
        }
    }
    assert!(found.bound().expect("bounded") <= found.objective().expect("counted"));
    assert!(found.runner_up().is_some_and(|other| other.objective >= found.objective().expect("counted")));
}

/// The same bytes on every GPU: a larger clique shares more of them, so no platform with larger cliques reads more over PCIe.
#[test]
fn larger_cliques_and_more_memory_never_read_more() {
    let policy = Policy { cut: Cut::Hash, ..LEGION };
    let mut before = f64::INFINITY;
    for clique in [1, 2, 4, 8] {
        let mut asked = asked(13, 60_000, 0.5, PLATFORMS[0], 0.3);
        asked.machine.cluster.nvlink_island = clique;
        let found = judged(&asked, &policy, &costs).decision.expect("a plan");
        let left = found.objective().expect("counted");
        assert!(left <= before * 1.001, "{clique}: {left} after {before}");
        before = left;
        asked.cache_bytes *= 2.0;
        let more = judged(&asked, &policy, &costs).decision.expect("a plan");
        assert!(more.objective().expect("counted") <= left);
    }
}

#[test]
fn a_hierarchical_cache_hits_no_less_than_a_replicated_one_of_equal_bytes() {
    for platform in PLATFORMS {
        let asked = asked(13, 60_000, 0.57, platform, 0.3);
        let hits = |name: &str| run(&asked, name).metrics["hit_ratio"];
        assert!(hits("legion") >= hits("legion-replicated"), "{}", platform.0);
        assert!(hits("legion") >= hits("legion-features") - 1e-9, "{}", platform.0);
    }
    // With a GPU in each clique and vertices cut by hash, nothing is shared. What is left is that each GPU ranks by its own visits, which
    // always hold its own training vertices; a replicated cache ranks by the visits of all.
    let mut alone = asked(13, 60_000, 0.57, PLATFORMS[0], 0.3);
    alone.machine.cluster.nvlink_island = 1;
    let (own, same) =
        (run(&alone, "legion-hashed").metrics["hit_ratio"], run(&alone, "legion-replicated").metrics["hit_ratio"]);
    assert!(own >= same && own - same < 0.1, "{own} {same}");
}

/// Either it cuts, and hits at least about what a cut by hash hits; or it says how it is built in. Degrees have nothing to cut.
#[test]
fn the_cut_by_metis_is_asked_for_at_build_time() {
    let mut asked = asked(11, 16_000, 0.57, PLATFORMS[0], 0.3);
    let found = run(&asked, "legion-metis");
    if cfg!(feature = "metis") {
        assert!(found.metrics["hit_ratio"] >= run(&asked, "legion-hashed").metrics["hit_ratio"] - 0.02);
    } else {
        assert!(found.decision.is_none() && found.why.contains("--features metis"), "{}", found.why);
    }
    asked.known = Known::Degrees { degrees: graph::distribution::Degrees::power_law(1e5, 1e6, 2.2), n_train: 1e4 };
    assert!(run(&asked, "legion-metis").why.contains("no edges to cut"));
}

/// Papers100M by its degrees on the first platform: the cache that is shared and ranked by sampling reads least, and nothing cached reads most.
#[test]
fn the_order_on_published_graphs_is_the_papers() {
    let shape = graph::published::Shape::named("papers100m").expect("listed");
    let n_slots = hw::real(shape.n_edges);
    let degrees = graph::distribution::Degrees::power_law(hw::real(shape.n_vertices), n_slots, 2.2);
    let known = Known::Degrees { degrees, n_train: hw::real(shape.n_train) };
    for (platform, gib) in PLATFORMS.into_iter().zip([12.0, 32.0, 32.0]) {
        let sampling = Sampling { fan_out: vec![25, 10], replacement: Replacement::Without, batch: 8000, seed: 0 };
        let network = Network { layer: Layer::GraphSage, width: shape.width, hidden: 256 };
        let machine = machine(platform);
        let asked =
            Asked { known: known.clone(), network, sampling, machine, cache_bytes: gib * hw::GIB, replay: false };
        let found = |name: &str| run(&asked, name).metrics;
        let [legion, quiver, pagraph, dgl] = ["legion", "quiver", "pagraph", "dgl-uva"].map(found);
        let [by_time, features] = ["legion-timed", "legion-features"].map(found);
        let left = |row: &std::collections::BTreeMap<String, f64>| row["transactions_per_epoch"];
        let time = |row: &std::collections::BTreeMap<String, f64>| row["epoch_time_s"];
        assert!(left(&legion) <= left(&quiver) && left(&quiver) <= left(&pagraph) && left(&pagraph) <= left(&dgl));
        assert!(time(&quiver) <= time(&pagraph) && time(&pagraph) <= time(&dgl), "{}", platform.0);
        // What transactions save may come over a busy NVLink instead; the split that is chosen by seconds takes no option that loses.
        assert!(time(&by_time) <= time(&legion) && time(&by_time) <= time(&features), "{}", platform.0);
        assert!(time(&by_time) <= 1.001 * time(&quiver), "{}: {} {}", platform.0, time(&by_time), time(&quiver));
        assert!(time(&legion) <= 1.05 * time(&quiver), "{}: {} {}", platform.0, time(&legion), time(&quiver));
    }
}

#[test]
fn what_does_not_fit_says_why() {
    let mut small = asked(13, 60_000, 0.5, PLATFORMS[0], 0.05);
    let found = run(&small, "gnnlab");
    assert_eq!((found.ended, found.why.starts_with("all rows take")), (Ended::OutOfMemory, true));
    small.machine.memory_bytes = hw::whole(small.cache_bytes) + 1000;
    let found = run(&small, "legion");
    assert_eq!((found.ended, found.why.starts_with("a batch takes")), (Ended::OutOfMemory, true));
    // With room for all rows a GPU or more samples for the others.
    let large = asked(13, 60_000, 0.5, PLATFORMS[0], 4.0);
    let found = run(&large, "gnnlab");
    assert!((1.0..8.0).contains(&found.metrics["n_samplers"]), "{}", found.why);
}

#[test]
fn a_straggler_is_played_and_the_notes_say_that_nobody_plans_around_it() {
    let mut asked = asked(13, 60_000, 0.5, PLATFORMS[0], 0.4);
    let healthy = run(&asked, "legion");
    let slow = train::straggler::Straggler { ranks: vec![hw::Rank(3)], rate: 50.0, from_step: 0, until_step: None };
    asked.machine.stragglers = train::straggler::Rates::at(&[slow], 0);
    let found = run(&asked, "legion");
    let step = |row: &Judged<Caches>| row.metrics["iteration_time_s"];
    // All GPUs wait for its gradients, so a step is as long as its computation: fifty times that of the others.
    assert!(step(&found) > 5.0 * step(&healthy), "{} {}", step(&found), step(&healthy));
    let notes = found.decision.expect("a plan").notes.join(" ");
    assert!(notes.contains("GPU 3 × 50") && notes.contains("not planned around"), "{notes}");
    assert_eq!(found.metrics["transactions_per_epoch"], healthy.metrics["transactions_per_epoch"]);
}
