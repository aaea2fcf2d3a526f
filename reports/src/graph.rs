//! Pictures of graph training, each with the question that it answers.

use crate::RunResult;
use crate::svg::graph::{cache_map, epoch_by_cause, epoch_over_workers, hits_over_alpha};

/// Pictures that the result has figures for, each with its caption.
pub(crate) fn pictures(run: &RunResult) -> Vec<(String, &'static str)> {
    if run.kind != "graph" {
        return Vec::new();
    }
    vec![
        (
            epoch_by_cause(run),
            "What an epoch takes and why. Parts overlap, so bars do not add up; the upright line is the epoch. A gather adds up PCIe and NVLink, which run beside each other.",
        ),
        (
            hits_over_alpha(run),
            "How the memory for caches is best split: the share of the transactions that is saved, over the share of the memory for rows.",
        ),
        (
            cache_map(run),
            "What lies on which GPU. Grey is memory for caches that others fill and this policy does not; hover for the amounts.",
        ),
        (
            epoch_over_workers(run),
            "How many workers a GPU needs: left of the dashed line it waits for them, right of it nothing is gained.",
        ),
    ]
}
