//! Factors of a profile from recorded steps: what each kind of kernels took over what was predicted of it.
//!
//! Factors are of sums over all files, so a kernel that takes long counts much. A recorded exchange also waits for its last rank, and a predicted one
//! does not. Of several files the one that waited least counts, for each kind of exchange; of a single one a factor is 1 at most, because what is longer
//! than predicted may be a wait. What is predicted without a kernel, or recorded without a prediction, says no factor.

use std::collections::BTreeMap;

use engine::cost::calibrated::{Calibrated, FACTORS};
use engine::cost::kernel_kind::KernelKind;
use engine::cost::profile::Profile;

use super::compare::{Compared, Row};
use super::term::Term;

/// Factors, and in words what says none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors {
    /// By kind.
    pub kernels: BTreeMap<KernelKind, f64>,
    /// Terms without a factor, with the reason.
    pub left_out: Vec<String>,
}

/// Chooses factors on recorded steps, which were predicted without any.
pub fn factors(found: &[(String, Compared)]) -> Factors {
    let mut chosen = Factors::default();
    for term in Term::ALL {
        let rows: Vec<&Row> =
            found.iter().filter_map(|(_, found)| found.rows.iter().find(|row| row.term == term)).collect();
        if rows.is_empty() {
            continue;
        }
        match factor(term, &rows) {
            Ok((kind, factor)) => drop(chosen.kernels.insert(kind, factor)),
            Err(why) => chosen.left_out.push(format!("{}: {why}", term.name())),
        }
    }
    chosen
}

/// A profile with factors of recorded steps, and what was chosen in words. `found` were predicted with the profile without its factors; those of
/// kinds that were not recorded stay.
pub fn calibrated(profile: &Profile, found: &[(String, Compared)], date: String) -> (Profile, String) {
    let mut all = profile.calibrated.clone().unwrap_or_else(|| Calibrated::plain(0.0));
    let chosen = factors(found);
    all.kernels.extend(&chosen.kernels);
    let on = found.iter().map(|(name, found)| format!("{name}: {}", found.measured.words())).collect();
    (profile.calibrated(Calibrated { date, on, ..all }), chosen.words())
}

/// The factor of a term, or why it has none.
fn factor(term: Term, rows: &[&Row]) -> Result<(KernelKind, f64), &'static str> {
    let kind = term.kind().ok_or("a profile has no time of its own for it")?;
    let times: Vec<[f64; 2]> = rows.iter().map(|row| [row.measured_s.unwrap_or(0.0), row.predicted_s]).collect();
    let [measured, predicted] = times.iter().fold([0.0, 0.0], |sum, time| [sum[0] + time[0], sum[1] + time[1]]);
    if predicted <= 0.0 {
        return Err("it was recorded and is not predicted");
    }
    if measured <= 0.0 {
        return Err("it is predicted and was not recorded");
    }
    let ratio = if kind.is_exchange() {
        // A rank without such an exchange has waited for nobody.
        let both = times.iter().filter(|[measured, predicted]| *measured > 0.0 && *predicted > 0.0);
        let waited_least = both.map(|[measured, predicted]| measured / predicted).fold(f64::INFINITY, f64::min);
        if times.len() == 1 { waited_least.min(1.0) } else { waited_least }
    } else {
        measured / predicted
    };
    if !FACTORS.contains(&ratio) {
        return Err("it is off by more than ten times, so other kernels ran than are predicted");
    }
    Ok((kind, ratio))
}

impl Factors {
    /// What was chosen, in words.
    pub fn words(&self) -> String {
        let name =
            |kind: KernelKind| Term::ALL.into_iter().find(|term| term.kind() == Some(kind)).map_or("", Term::name);
        let each: Vec<String> =
            self.kernels.iter().map(|(kind, factor)| format!("{} × {factor:.3}", name(*kind))).collect();
        let left_out: String = self.left_out.iter().map(|why| format!("- left as it is: {why}\n")).collect();
        format!("{}\n\n{left_out}", each.join(", "))
    }
}
