//! Rows of a scenario whose costs are of published runs: a benchmark of each choice, played and corrected, or why there is none.

use std::time::Instant;

use engine::cost::Source;
use engine::cost::provenance::Provenance;
use reports::views;
use reports::{Column, Ended, Measured, PolicyResult};
use score::learned::Learned;

use super::Row;
use calibrate::costs::of_serving;
use scenario::serving::{CostLaw, Serving, ServingChoice, published};

const fn is_published(scenario: &Serving) -> bool {
    matches!(scenario.law, CostLaw::PublishedRuns(_))
}

/// Name of the coefficients, where they are asked.
pub fn profile(scenario: &Serving) -> Option<String> {
    is_published(scenario).then(|| "published/serving".to_owned())
}

/// Columns of the table; those of serving where nothing published is asked.
pub fn columns(scenario: &Serving) -> Vec<Column> {
    if is_published(scenario) { views::columns(&views::PUBLISHED_RUNS) } else { Vec::new() }
}

/// What a row is worth: settings are of different GPUs, so tokens per GPU count.
pub fn worth(scenario: &Serving, row: &PolicyResult) -> Option<f64> {
    row.metrics.get(views::PUBLISHED_RUNS[0].0).copied().filter(|_| is_published(scenario))
}

/// The row of a choice.
pub fn row(scenario: &Serving, choice: &ServingChoice, learned: &Learned) -> Row {
    let begun = Instant::now();
    let mut row = PolicyResult { policy: choice.name.clone(), ..PolicyResult::default() };
    let (asked, n_replicas) = published::of(scenario, choice).expect("the reader holds what can be asked");
    match learned.steady(&asked, &of_serving).map_err(|reason| reason.refused()) {
        Err(refused) => (row.status, row.why) = (refused.ended, refused.why),
        Ok(steady) => {
            (row.metrics, row.interval) = steady.figures(&asked, n_replicas);
            (row.status, row.why) = (Ended::Ok, steady.why(&asked));
        }
    }
    row.measured = Measured { planner_wall_s: 0.0, simulate_wall_s: begun.elapsed().as_secs_f64() };
    Row { result: row, source: Source::Published, curves: None, provenance: Provenance::default() }
}
