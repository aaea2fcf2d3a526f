//! Runs `kind = "deployment"`, a file for each objective.

pub mod goodput;
pub mod throughput;
pub mod time;

/// Names that a deployment scenario may use for policies, with what they do.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str)> {
    let (time, goodput, throughput) = (time::policies(), goodput::policies(), throughput::policies());
    let mut all: Vec<(&'static str, &'static str)> = Vec::new();
    for (name, about) in time.into_iter().chain(goodput).chain(throughput) {
        if all.iter().all(|(known, _)| *known != name) {
            all.push((name, about));
        }
    }
    all
}
