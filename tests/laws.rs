//! Laws between two runs: what a change of the question must do to the answer, over random valid scenarios.
//!
//! No figure is known beforehand here. A law says how two answers stand to each other. Where a law does not hold for a reason, the reason is
//! an anomaly with a name, a smallest case and a place in docs/reliability.md.

mod neutral;
mod pipeline;
mod serving;
mod training;

use std::path::Path;

use engine::random::{self, Stream};
use reports::PolicyResult;
use scenario::Overrides;
use skrull_sim::kinds;

/// A draw of a law; the same in every run of the test.
fn stream(law: &str, number: u64) -> Stream {
    random::stream(number, law)
}

fn pick<T: Copy>(draw: &mut Stream, of: &[T]) -> T {
    of[usize::try_from(draw.below(of.len() as u64)).expect("an index")]
}

/// The rows of a shipped scenario under some keys, its files beside it or in a folder; `None` where the keys are refused together.
fn rows(name: &str, folder: Option<&Path>, set: &[String]) -> Option<Vec<PolicyResult>> {
    let (source, own) = scenario::find(name).expect("shipped");
    let overrides = Overrides { set: set.to_vec(), ..Overrides::default() };
    let scenario = kinds::check(source, folder.unwrap_or(&own), &overrides).scenario?;
    Some(scenario.run(&|_| {}).results)
}

/// Some keys with more after them.
fn with(set: &[String], more: &[String]) -> Vec<String> {
    [set, more].concat()
}
