//! Fits a profile to samples that a device left, on a machine without that device, and predicts other samples with it.
//!
//! `cargo run --release -p calibrate --example fit_samples -- samples.jsonl [executed.samples.jsonl]`

use std::collections::BTreeMap;
use std::path::Path;

use calibrate::campaign::{Header, profile};
use calibrate::device::Facts;
use calibrate::family::Family;
use calibrate::sample::{self, Sample};
use engine::cost::profile::Profile;
use hw::quantile;

/// Multiprocessors of an H100 SXM and an H200.
const MULTIPROCESSORS: u64 = 132;

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = paths.first().and_then(|path| sample::device_of(Path::new(path))) else {
        eprintln!(
            "usage: fit_samples SAMPLES [EXECUTED...]: a log of samples that `calibrate` wrote, and others to predict"
        );
        std::process::exit(2);
    };
    let facts = Facts::of_gpu(&name, None, MULTIPROCESSORS);
    let read = |path: &String| sample::of_log(Path::new(path), &facts);
    let header = Header { name: "fit".to_owned(), date: String::new(), command: String::new(), seconds: 0.0 };
    let samples = read(&paths[0]);
    let fitted = profile(&samples, &facts, &header);
    println!("{} samples of {}", samples.len(), paths[0]);
    for (name, operator) in &fitted.operators {
        let r = &operator.residuals;
        println!(
            "{name:24} {:5} {:6.1} % {:6.1} %  {:?}",
            r.n_fit,
            r.median_error * 100.0,
            r.p90_error * 100.0,
            operator.law
        );
    }
    for path in &paths[1..] {
        compare(&fitted, &read(path));
    }
}

fn compare(fitted: &Profile, samples: &[Sample]) {
    let mut errors: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        let Some(family) = Family::of(&sample.op) else { continue };
        let Some(operator) = fitted.operators.get(&family.name()) else { continue };
        let Some((start, rest)) = operator.law.as_ref().and_then(|law| law.seconds(&sample.op)) else { continue };
        let seconds = start + rest * operator.surface.factor(&Family::point(&sample.op)).0;
        errors.entry(family.name()).or_default().push((seconds, sample.seconds));
    }
    for (name, pairs) in errors {
        let off: Vec<f64> = pairs.iter().map(|(predicted, measured)| (predicted / measured - 1.0).abs()).collect();
        let signed: Vec<f64> = pairs.iter().map(|(predicted, measured)| predicted / measured - 1.0).collect();
        let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
        println!(
            "  executed {name:24} {:5} median {:6.1} % ({:+.1}) 90 % {:6.1} % sum {:+.1} %",
            pairs.len(),
            quantile::of(&off, 0.5) * 100.0,
            quantile::of(&signed, 0.5) * 100.0,
            quantile::of(&off, 0.9) * 100.0,
            (sum(|p| p.0) / sum(|p| p.1) - 1.0) * 100.0
        );
    }
}
