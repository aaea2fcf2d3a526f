//! Fits the published serving runs again where they are there, and holds the error on settings that the fit did not see.

use std::collections::BTreeMap;
use std::path::Path;

use calibrate::endpoints::{Run, Split, fit, held_out, read};
use calibrate::import::Provenance;
use engine::cost::published_runs::{Laws, Steady};

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[hw::whole(hw::real(values.len() as u64 - 1) * share) as usize]
}

/// Median and 90 % error and share inside the interval, for TTFT and TPOT.
fn errors(rows: &[&(&Run, Steady)]) -> [[f64; 3]; 2] {
    let of = |pairs: Vec<(f64, f64, [f64; 2])>| {
        let inside = pairs.iter().filter(|(measured, _, [low, high])| (low..=high).contains(&measured)).count();
        let n = hw::real(pairs.len() as u64);
        let mut off: Vec<f64> = pairs.iter().map(|(measured, mean, _)| (mean / measured - 1.0).abs()).collect();
        [quantile(&mut off, 0.5), quantile(&mut off, 0.9), hw::real(inside as u64) / n]
    };
    [
        of(rows.iter().map(|(run, steady)| (run.ttft_s, steady.ttft.mean, steady.ttft.interval)).collect()),
        of(rows.iter().map(|(run, steady)| (run.tpot_s, steady.tpot.mean, steady.tpot.interval)).collect()),
    ]
}

#[test]
fn held_out_settings_are_within_the_aims_and_the_shipped_file_is_a_fresh_fit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/aiconfigurator/silicon_sample_given.csv");
    if !path.is_file() {
        println!("skipped: shared data absent ({})", path.display());
        return;
    }
    let found = read(&path, &["h100-sxm", "h200-sxm"]).expect("a readable table");
    println!("{} runs; left out: {:?}", found.runs.len(), found.left_out);
    let rows = held_out(&found.runs, Split::Settings);
    assert_eq!(rows.len(), found.runs.len(), "every run is predicted once");
    let mut parts: BTreeMap<String, Vec<&(&Run, Steady)>> = BTreeMap::new();
    for row in &rows {
        let run = row.0;
        let kind = if run.model.experts.is_some() { "experts" } else { "dense" };
        for key in [
            format!("gpu {}", run.gpu.name),
            format!("kind {kind}"),
            format!("{} {kind}", run.framework),
            "all".to_owned(),
        ] {
            parts.entry(key).or_default().push(row);
        }
    }
    for (part, rows) in &parts {
        let [ttft, tpot] = errors(rows);
        println!("{part}: {} runs; median, 90 %, inside: TTFT {ttft:.3?}, TPOT {tpot:.3?}", rows.len());
        if part.starts_with("gpu") || part == "all" {
            assert!(ttft[0] < 0.20, "{part}: median TTFT error {}", ttft[0]);
            assert!(tpot[0] < 0.10, "{part}: median TPOT error {}", tpot[0]);
        }
        if part == "all" {
            assert!(ttft[2] >= 0.89 && tpot[2] >= 0.89, "inside the interval: {} and {}", ttft[2], tpot[2]);
        }
    }
    // Another question, and a harder one: a model that no run of the framework has shown.
    let models = held_out(&found.runs, Split::Models);
    println!("models held out: {} runs; {:.3?}", models.len(), errors(&models.iter().collect::<Vec<_>>()));
    let shipped = Laws::parse(calibrate::profiles::serving()).expect("shipped");
    let provenance = Provenance {
        name: String::new(),
        gpu: String::new(),
        source: shipped.source.clone(),
        date: shipped.date.clone(),
    };
    let fresh = fit(&found.runs, &provenance);
    assert_eq!(shipped, fresh, "the shipped coefficients are those of a fresh fit");
}
