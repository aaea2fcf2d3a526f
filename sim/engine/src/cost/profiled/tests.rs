//! Costs by a small profile, counted by hand.

use super::*;
use crate::cost::profile::{Link, Operator, SCHEMA};
use crate::cost::surface::Surface;
use hw::Fabric;

fn profile() -> Profile {
    let axis = |name: &str, knots: &[f64]| crate::cost::surface::Axis::new(name, knots.to_vec());
    let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.03, p90_error: 0.1, low: 0.9, high: 1.2 };
    let axes = vec![axis("m", &[1.0, 1024.0]), axis("n", &[1.0, 1024.0]), axis("k", &[1.0, 1024.0])];
    let surface = Surface { axes, values: vec![0.5; 8] };
    let gemm = Operator { residuals: residuals.clone(), kernel: None, start_s: 2e-6, law: None, surface };
    let curve = CollectiveCurve {
        kind: "all_gather".to_owned(),
        n_ranks: 8,
        n_nodes: 1,
        port_gb_per_s: None,
        residuals,
        bytes: vec![1e3, 1e6],
        seconds: vec![1e-5, 1e-4],
    };
    Profile {
        lent_by: None,
        schema: SCHEMA.to_owned(),
        name: "test".to_owned(),
        gpu: "h100-sxm".to_owned(),
        source: "test".to_owned(),
        date: "2026-11-20".to_owned(),
        device: None,
        calibrated: None,
        memory: std::collections::BTreeMap::new(),
        operators: [("gemm".to_owned(), gemm)].into(),
        own: std::collections::BTreeSet::new(),
        collectives: vec![curve],
        links: Vec::new(),
        decode_attention: None,
        decode: std::collections::BTreeMap::new(),
        experts: std::collections::BTreeMap::new(),
        host: std::collections::BTreeMap::new(),
    }
}

fn estimate(op: &Op) -> Estimate {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    Profiled::new(&profile(), &hw::catalog::cluster(&gpu, 1, 8)).estimate(op)
}

#[test]
fn inside_the_hull_the_estimate_is_measured_and_lies_in_its_interval() {
    let found = estimate(&Op::Gemm { m: 512, n: 512, k: 512, format: Format::Bf16 });
    assert_eq!((found.source, found.dimension), (Source::Measured, None));
    assert!(
        (found.low.get() / found.time.get() - 0.9).abs() < 1e-9
            && (found.high.get() / found.time.get() - 1.2).abs() < 1e-9
    );
}

#[test]
fn outside_the_hull_the_dimension_is_named_and_the_interval_widens() {
    let found = estimate(&Op::Gemm { m: 512, n: 4096, k: 512, format: Format::Bf16 });
    assert_eq!(found.dimension, Some("gemm n"));
    assert_eq!(found.outside, found.time);
    assert!(found.high.get() > found.time.get() * 1.5);
    assert_eq!(estimate(&Op::Gemm { m: 1, n: 1, k: 1, format: Format::Fp32 }).source, Source::Datasheet);
}

#[test]
fn a_curve_between_nodes_is_for_groups_of_as_many_ranks_in_each_node() {
    let mut profile = profile();
    let inside = profile.collectives[0].clone();
    let across = CollectiveCurve { n_ranks: 16, n_nodes: 2, port_gb_per_s: Some(50.0), ..inside };
    profile.collectives.push(CollectiveCurve { seconds: vec![2e-5, 4e-4], ..across });
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let seconds = |n_ranks, n_nodes, nic: f64| {
        let mut cluster = hw::catalog::cluster(&gpu, 4, 8);
        cluster.nic_bandwidth = hw::BytesPerSecond::new(nic * 1e9);
        let shape = cluster.group(n_ranks, n_nodes);
        let op = Op::Collective { kind: Collective::AllGather, bytes: 1_000_000, shape };
        let found = Profiled::new(&profile, &cluster).estimate(&op);
        (found.time.get(), found.outside == Seconds::ZERO, found.source)
    };
    for (shape, expected) in [((8, 1), 1e-4), ((16, 2), 4e-4)] {
        let (found, is_measured, source) = seconds(shape.0, shape.1, 50.0);
        assert!((found - expected).abs() < 1e-12 && is_measured && source == Source::Measured, "{found}");
    }
    // Ports of half the bandwidth take twice as long above the start, and were not measured.
    let (slow, is_measured, _) = seconds(16, 2, 25.0);
    assert!((slow - (2e-5 + 2.0 * 3.8e-4)).abs() < 1e-9 && !is_measured, "{slow}");
    // 32 ranks on four nodes move 31/32 of the bytes, 16 on two 15/16.
    let (more, is_measured, _) = seconds(32, 4, 50.0);
    assert!((more - 4e-4 * (31.0 / 32.0) / (15.0 / 16.0)).abs() < 1e-9 && !is_measured, "{more}");
    // One rank in each of two nodes is another exchange: it is no faster than two ranks of one node by their curve.
    let (apart, _, source) = seconds(2, 2, 50.0);
    assert!((apart - seconds(2, 1, 50.0).0).abs() < 1e-12 && source == Source::Borrowed, "{apart} {source:?}");
}

/// The profile with an exchange of two nodes and a message between them, over ports of 50 GB/s.
fn profile_of_two_nodes() -> Profile {
    let mut profile = profile();
    let inside = profile.collectives[0].clone();
    let residuals = inside.residuals.clone();
    let port_gb_per_s = Some(50.0);
    profile.collectives.push(CollectiveCurve { n_ranks: 16, n_nodes: 2, port_gb_per_s, ..inside });
    let link = Link { crosses_nodes: true, alpha_s: 1e-5, gb_per_s: 40.0, port_gb_per_s, bytes_max: 1e9, residuals };
    profile.links.push(link);
    profile
}

/// Four times narrower links are ports of a quarter, for messages between stages and for exchanges by curves alike.
#[test]
fn links_above_leaves_narrow_what_was_measured_between_nodes() {
    let profile = profile_of_two_nodes();
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let seconds = |kind, (fabric, oversubscription): (Fabric, f64), nic: f64| {
        let mut cluster = hw::catalog::cluster(&gpu, 4, 8);
        cluster.nic_bandwidth = hw::BytesPerSecond::new(nic * 1e9);
        let cluster = hw::Cluster { fabric, oversubscription, ..cluster };
        let shape = cluster.group(16, 2);
        Profiled::new(&profile, &cluster).estimate(&Op::Collective { kind, bytes: 1_000_000, shape }).time.get()
    };
    for kind in [Collective::SendRecv, Collective::RingShift, Collective::AllGather] {
        let narrow = seconds(kind, (Fabric::FatTree { nodes_per_leaf: 1 }, 4.0), 50.0);
        assert!((narrow / seconds(kind, (Fabric::Rail, 1.0), 12.5) - 1.0).abs() < 1e-9, "{kind:?}");
        // Messages and rings stay on their rail, and below one leaf nothing is narrow.
        for fabric in [Fabric::Rail, Fabric::FatTree { nodes_per_leaf: 4 }] {
            assert!((seconds(kind, (fabric, 4.0), 50.0) / seconds(kind, (fabric, 1.0), 50.0) - 1.0).abs() < 1e-12);
        }
    }
    // 1 MB at 40 GB/s is 25 us behind a start of 10, and 100 at a quarter of that.
    assert!((seconds(Collective::SendRecv, (Fabric::FatTree { nodes_per_leaf: 1 }, 4.0), 50.0) - 110e-6).abs() < 1e-9);
}

#[test]
fn collectives_run_straight_in_logarithms_between_measured_sizes() {
    // Half-way between 1e3 and 1e6 bytes in logarithms: the geometric mean of 1e-5 and 1e-4 s.
    let shape = hw::GroupShape::inside(8);
    let found = estimate(&Op::Collective { kind: Collective::AllGather, bytes: 31_623, shape });
    assert!((found.time.get() / 1e-9_f64.sqrt() - 1.0).abs() < 1e-4, "{found:?}");
}

#[test]
fn files_that_cannot_be_used_are_refused_with_a_reason() {
    let good = profile().to_toml();
    assert_eq!(Profile::parse(&good), Ok(profile()));
    for (from, to, reason) in [
        ("schema = \"skrull-sim/profile/1\"", "schema = \"other\"", "schema"),
        ("knots = [1.0, 1024.0]", "knots = [1024.0, 1.0]", "increasing"),
        ("values = [0.5", "values = [nan", "finite"),
        ("values = [0.5, ", "values = [", "knots"),
        ("low = 0.9", "low = -1.0", "quantiles"),
        ("n_ranks = 8", "n_ranks = 1", "2 or more"),
        ("all_gather", "all_gathers", "allowed"),
        ("date", "dade", "line"),
        ("start_s = 0.000002", "start_s = -1.0", "start_s"),
    ] {
        assert!(good.contains(from), "`{from}` is not in the file:\n{good}");
        let why = Profile::parse(&good.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(why.contains(reason), "{to}: {why}");
    }
    for end in [good.len() / 4, good.len() / 2, good.len() - 5] {
        assert!(Profile::parse(&good[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn narrow_products_of_experts_are_those_of_the_library_one_by_one() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let mut with_narrow = profile();
    let half = with_narrow.operators["gemm"].clone();
    with_narrow.operators.insert("gemm-fp8".to_owned(), half);
    let costs = Profiled::new(&with_narrow, &hw::catalog::cluster(&gpu, 1, 8));
    let seconds = |op: &Op| costs.estimate(op).time.get();
    let product = |m, n, k| seconds(&Op::Gemm { m, n, k, format: Format::Fp8 });
    let experts =
        |kind| seconds(&Op::GroupedGemm { rows: vec![700, 600, 600, 0], n: 256, k: 512, format: Format::Fp8, kind });
    // Three experts have rows; two have equally many.
    let forward = product(700, 256, 512) + 2.0 * product(600, 256, 512);
    assert!((experts(PassKind::Forward) / forward - 1.0).abs() < 1e-12);
    // The gradient of weights sums over the rows.
    let weights = product(256, 512, 700) + 2.0 * product(256, 512, 600);
    assert!((experts(PassKind::Weight) / weights - 1.0).abs() < 1e-12);
    // Without narrow products in the tables the datasheet stands, as for engines that serve.
    let wide = Profiled::new(&profile(), &hw::catalog::cluster(&gpu, 1, 8));
    let op = Op::GroupedGemm { rows: vec![600], n: 256, k: 512, format: Format::Fp8, kind: PassKind::Forward };
    assert_eq!(wide.estimate(&op).source, Source::Datasheet);
}

#[test]
fn later_starts_between_nodes_lengthen_measured_exchanges_and_messages_and_no_start_is_a_jump() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let measured = profile_of_two_nodes();
    for (kind, n_ranks) in [(Collective::AllGather, 16), (Collective::SendRecv, 2)] {
        let seconds = |start_us: f64| {
            let mut cluster = hw::catalog::cluster(&gpu, 2, 8);
            cluster.inter_node_latency = Seconds::new(start_us / 1e6);
            let shape = cluster.group(n_ranks, 2);
            Profiled::new(&measured, &cluster).estimate(&Op::Collective { kind, bytes: 30_000, shape }).time.get()
        };
        let usual_us = hw::catalog::usual_latencies()[1].get() * 1e6;
        let starts = [0.001, 0.1, 0.999, 1.0, 1.001, 2.0, 10.0, 100.0];
        let all = starts.map(|start| seconds(start * usual_us));
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{kind:?}: {all:?}");
        assert!((seconds(1.001 * usual_us) - seconds(usual_us)).abs() < 1e-6, "{kind:?}");
        assert!(seconds(2.0 * usual_us) >= seconds(usual_us) + 0.99e-6 * usual_us, "{kind:?}: one start at least");
    }
}

/// An all-gather of eight ranks has one start-up and a fifth of one for each of the six further hops (`cost::collective`): 2.2 in all.
#[test]
fn later_starts_lengthen_an_exchange_inside_a_node_by_its_steps_and_no_start_is_a_jump() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let seconds = |start_us: f64, bytes: u64| {
        let mut cluster = hw::catalog::cluster(&gpu, 1, 8);
        cluster.intra_node_latency = Seconds::new(start_us * 1e-6);
        let shape = GroupShape::inside(8);
        let op = Op::Collective { kind: Collective::AllGather, bytes, shape };
        Profiled::new(&profile(), &cluster).estimate(&op).time.get()
    };
    let usual_us = hw::catalog::usual_latencies()[0].get() * 1e6;
    for bytes in [1000, 30_000, 1_000_000] {
        let later = seconds(usual_us + 2.0, bytes) - seconds(usual_us, bytes);
        assert!((later - 2.2 * 2e-6).abs() < 1e-10, "{later}");
        let starts = [0.001, 0.1, 0.5, 0.999, 1.0, 1.001, 1.5, 2.0, 10.0, 100.0];
        let all = starts.map(|start| seconds(start * usual_us, bytes));
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{all:?}");
        // Close to the usual start lies close to what was measured.
        assert!((seconds(1.001 * usual_us, bytes) - seconds(usual_us, bytes)).abs() < 1e-8);
    }
}
