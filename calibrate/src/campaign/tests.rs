//! Campaigns against a device whose law is known, and what becomes of faults.

use engine::CostModel;
use engine::cost::profiled::Profiled;
use engine::task::Pass;
use hw::Format;

use super::*;
use crate::family::{around, general};
use crate::tests::fake::Fake;

/// Nanoseconds of a device of 2 µs launches, 200 GFLOP/s and 20 GB/s, with 2 % of noise that depends on the launch.
fn truth(op: &Op) -> f64 {
    2e-6 + op.flops() / 2e11 + engine::cost::profile::memory_bound(op).map_or(0.0, |(_, bytes)| hw::real(bytes) / 2e10)
}

fn fake() -> Fake {
    Fake::new(Box::new(|op, launch| {
        let noise = 1.0 + 0.02 * ((hw::real(launch) * 0.618).fract() - 0.5);
        hw::whole(truth(op) * noise * 1e9).max(1)
    }))
}

fn header() -> Header {
    Header { name: "test".to_owned(), date: "2026-11-21".to_owned(), command: "test".to_owned(), seconds: 1.0 }
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("skrull-sim-campaign-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

const EFFORT: Effort = Effort { budget: Duration::from_secs(120), width: 0.10 };

#[test]
fn a_device_is_known_within_its_noise_after_a_campaign() {
    let folder = folder("whole");
    let (mut log, earlier) = Log::open(&folder.join("log.jsonl"), fake().facts()).expect("a log");
    let domain = general(4096, 1);
    let campaign = measure(&mut fake(), &domain, EFFORT, &mut log, earlier, &|_| ()).expect("a campaign");
    assert!(campaign.ended.contains("known within"), "{}", campaign.ended);
    let profile = profile(&campaign.samples, &Fake::facts_of("fake"), &header());
    assert_eq!(Profile::parse(&profile.to_toml()).as_ref(), Ok(&profile), "the file is read back as it was");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 1);
    let model = Profiled::new(&profile, &cluster);
    // Places that no candidate is at.
    let mut errors: Vec<f64> = Vec::new();
    for (family, region) in &domain {
        for part in [0.31, 0.47, 0.62, 0.83] {
            let op = region.at(*family, [part, 1.0 - part, part, part, part]);
            errors.push((model.estimate(&op).time.get() / truth(&op) - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 0.03, "{errors:?}");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_budget_that_is_spent_at_once_still_holds_a_place_of_every_family() {
    let folder = folder("first");
    let reference_s = truth(&Fake::facts_of("fake").reference);
    for (budget_s, n_places) in [(reference_s / 2.0, 0), (reference_s * 1.2, 1)] {
        let path = folder.join(format!("{n_places}.jsonl"));
        let (mut log, earlier) = Log::open(&path, fake().facts()).expect("a log");
        let domain = general(256, 1);
        let effort = Effort { budget: Duration::from_secs_f64(budget_s), width: 1e-9 };
        // Whatever else the machine does, the budget is gone before the second sample.
        let say = |_: &str| std::thread::sleep(effort.budget);
        let campaign = measure(&mut fake(), &domain, effort, &mut log, earlier, &say).expect("a campaign");
        let is_of = |family: Family, sample: &&Sample| Family::of(&sample.op) == Some(family);
        for family in domain.keys() {
            let n = campaign.samples.iter().filter(|sample| is_of(*family, sample)).count();
            assert!(n >= n_places, "{}: {n} of {n_places}", family.name());
        }
    }
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_device_that_is_lost_leaves_its_samples_and_the_next_campaign_goes_on_from_them() {
    let folder = folder("lost");
    let path = folder.join("log.jsonl");
    let gemm = Op::Gemm { m: 2000, n: 2000, k: 2000, format: Format::Bf16 };
    let small = Op::Gemm { m: 2, n: 20, k: 20, format: Format::Bf16 };
    let domain = around([gemm, small].iter());
    let mut device = fake();
    device.lost_at = Some(600);
    let (mut log, earlier) = Log::open(&path, device.facts()).expect("a log");
    let error = measure(&mut device, &domain, EFFORT, &mut log, earlier, &|_| ()).err().expect("it is lost");
    assert!(error.to_string().contains("device lost"), "{error}");
    drop(log);
    let (mut log, earlier) = Log::open(&path, device.facts()).expect("a log");
    let n = earlier.len();
    assert!(n > 3, "{n} samples were kept");
    let campaign = measure(&mut fake(), &domain, EFFORT, &mut log, earlier, &|_| ()).expect("a campaign");
    let first: Vec<&Op> = campaign.samples[..n].iter().map(|sample| &sample.op).collect();
    assert!(campaign.samples[n..].iter().all(|sample| !first.contains(&&sample.op)), "nothing is measured twice");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn throttled_samples_are_marked_and_left_out() {
    let sample = |m: u64, slow: bool| {
        let op = Op::Gemm { m, n: 512, k: 512, format: Format::Bf16 };
        let slowdown = if slow { 1.5 } else { 1.0 };
        Sample { seconds: truth(&op) * slowdown, op, spread: 0.0, slowdown }
    };
    let samples: Vec<Sample> = (0..60).map(|i| sample(16 + 16 * i, i % 3 == 0)).collect();
    let profile = profile(&samples, &Fake::facts_of("fake"), &header());
    assert_eq!(profile.device.as_ref().map(|device| device.throttled_ratio), Some(0.333));
    assert!(profile.operators["gemm"].residuals.p90_error < 0.01, "{:?}", profile.operators["gemm"].residuals);
}

#[test]
fn what_moves_the_reference_kernel_is_taken_out_of_products_and_not_out_of_copies() {
    let sample = |op: Op, slowdown: f64| Sample { seconds: truth(&op) * slowdown, op, spread: 0.0, slowdown };
    let product = |m| Op::Gemm { m, n: 512, k: 512, format: Format::Bf16 };
    // All within a tenth, so that none is left out.
    let samples: Vec<Sample> =
        (1..=60_u32).map(|i| sample(product(16 * u64::from(i)), 0.92 + 0.17 * f64::from(i % 7) / 6.0)).collect();
    let profile = profile(&samples, &Fake::facts_of("fake"), &header());
    assert!(profile.operators["gemm"].residuals.p90_error < 0.01, "{:?}", profile.operators["gemm"].residuals);
    let kernel = sample(Op::Elementwise { bytes: 1 << 20 }, 1.05);
    assert!((kernel.steady_s() - kernel.seconds).abs() < 1e-15);
}

#[test]
fn directions_of_attention_are_families_of_their_own() {
    let forward = Family::Attention { pass: Pass::Forward, wide: false };
    assert_eq!(forward.name(), "attention-64");
    assert_eq!(Family::Attention { pass: Pass::Backward, wide: true }.name(), "attention-backward-128");
}

/// `--quick` promises 20 s in all.
#[test]
fn a_quick_budget_holds_the_kernels_of_the_host_too() {
    let quick = Budget::of(Duration::from_secs(120), true);
    assert_eq!(quick.device + quick.host, Duration::from_secs(20));
    let plain = Budget::of(Duration::from_secs(120), false);
    assert_eq!((plain.device, plain.host), (Duration::from_secs(120), Duration::from_secs(60)));
}
