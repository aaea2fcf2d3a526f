//! Profiles fitted to what GPUs measured: errors on samples that the fit has not seen, and on plans that were executed.

use std::path::{Path, PathBuf};

use calibrate::campaign::{self, Header};
use calibrate::device::Facts;
use calibrate::family::Family;
use calibrate::sample;
use engine::cost::law::Law;
use engine::cost::profile::Profile;
use hw::quantile;

fn folder(card: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles/measured").join(card)
}

fn h200() -> Facts {
    Facts::of_gpu("NVIDIA H200", Some("h200-sxm".to_owned()), 132)
}

fn fitted(card: &str, facts: &Facts) -> Profile {
    let samples = sample::of_log(&folder(card).join("samples.jsonl"), facts);
    assert!(samples.len() > 1000, "{} samples", samples.len());
    let header = Header { name: card.to_owned(), date: String::new(), command: String::new(), seconds: 0.0 };
    campaign::profile(&samples, facts, &header)
}

#[test]
fn a_fit_predicts_samples_that_it_has_not_seen() {
    let h200 = fitted("h200-sxm", &h200());
    // Errors of five-fold cross-validation on H200: 5.7, 4.8, 3.3, 2.9, 5.5 and 4.9 %.
    for name in ["gemm", "gemm-fp8", "attention-128", "attention-64", "attention-backward-128", "attention-backward-64"]
    {
        let operator = &h200.operators[name];
        assert!(operator.residuals.median_error < 0.08, "{name}: {:?}", operator.residuals);
        assert!(operator.residuals.p90_error < 0.25, "{name}: {:?}", operator.residuals);
        if let Some(Law::Attention(law)) = operator.law {
            assert!(law.tile == 128 && law.path_s > 0.0, "tiles run at once on a GPU: {law:?}");
        }
    }
}

#[test]
fn a_fit_predicts_operations_of_plans_that_were_executed() {
    let facts = h200();
    let profile = fitted("h200-sxm", &facts);
    let executed = sample::of_log(&folder("h200-sxm").join("executed.jsonl"), &facts);
    // Medians of all shapes on the card itself: 5.6 % for products and 7.7 % for backward attention.
    for (name, bound) in [("gemm", 0.08), ("attention-64", 0.1), ("attention-backward-64", 0.1)] {
        let operator = &profile.operators[name];
        let law = operator.law.as_ref().expect("measured operators have a law");
        let off: Vec<f64> = executed
            .iter()
            .filter(|sample| Family::of(&sample.op).is_some_and(|family| family.name() == name))
            .map(|sample| {
                let (start, rest) = law.seconds(&sample.op).expect("an operation of the law");
                let seconds = start + rest * operator.surface.factor(&Family::point(&sample.op)).0;
                (seconds / sample.seconds - 1.0).abs()
            })
            .collect();
        assert!(off.len() >= 80, "{name}: {} operations", off.len());
        assert!(quantile::of(&off, 0.5) < bound, "{name}: {:.3}", quantile::of(&off, 0.5));
    }
}
