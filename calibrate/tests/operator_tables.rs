//! Fits the measured tables again where they are there, and holds the error on unseen rows.

use std::path::Path;

use calibrate::import::{Provenance, operator_tables};
use calibrate::llmservingsim;

#[test]
fn a_fresh_fit_stays_within_the_stated_error_on_unseen_rows() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/aiconfigurator/data/a100_sxm");
    if !dir.is_dir() {
        eprintln!("skipped: shared data absent ({})", dir.display());
        return;
    }
    let provenance = Provenance {
        name: "a100-sxm".to_owned(),
        gpu: "a100-sxm-80g".to_owned(),
        source: "test".to_owned(),
        date: "2026-11-20".to_owned(),
    };
    let profile = operator_tables(&dir, &provenance).expect("readable tables");
    for (name, operator) in &profile.operators {
        println!("{name}: {:?}", operator.residuals);
        assert!(operator.residuals.median_error < 0.05, "{name}: {:?}", operator.residuals);
    }
}

#[test]
fn the_shipped_profiles_of_rtx_cards_are_fresh_fits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/llmservingsim/profiler/perf");
    for (name, folder) in [("rtx-4090", "RTX4090"), ("rtx-pro-6000", "RTXPRO6000")] {
        let dir = root.join(folder);
        if !dir.is_dir() {
            println!("skipped: shared data absent ({})", dir.display());
            continue;
        }
        let text = calibrate::profiles::embedded(name).expect("shipped");
        let shipped = engine::cost::profile::Profile::parse(text).expect("shipped");
        let provenance = Provenance {
            name: shipped.name.clone(),
            gpu: shipped.gpu.clone(),
            source: shipped.source.clone(),
            date: shipped.date.clone(),
        };
        assert_eq!(llmservingsim::operator_tables(&dir, &provenance).expect("readable tables"), shipped, "{name}");
    }
}
