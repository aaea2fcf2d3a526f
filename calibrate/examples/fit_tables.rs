//! Fits one device's tables and writes the profile to a path: `fit_tables DIR NAME GPU SOURCE DATE OUT`.
use calibrate::import::{Provenance, operator_tables};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let p = Provenance { name: a[2].clone(), gpu: a[3].clone(), source: a[4].clone(), date: a[5].clone() };
    let profile = operator_tables(a[1].as_ref(), &p).expect("tables");
    for (n, o) in &profile.operators {
        println!("{n} {:?}", o.residuals);
    }
    std::fs::write(&a[6], profile.to_toml()).expect("write");
}
