//! The section of a report on graph training: its pictures, each with the question that it answers.

use crate::RunResult;
use crate::html::figure;
use crate::svg::graph::{cache_map, epoch_by_cause, epoch_over_workers, hits_over_alpha};

/// Adds the pictures that the result has figures for.
pub(crate) fn section(out: &mut String, run: &RunResult) {
    if run.kind != "graph" {
        return;
    }
    out.push_str("<section>\n<h2>Epoch</h2>\n");
    figure(
        out,
        &epoch_by_cause(run),
        "What an epoch takes and why. Parts overlap, so bars do not add up; the red line is the epoch. It is no shorter than the longest bar.",
    );
    figure(
        out,
        &hits_over_alpha(run),
        "How the memory for caches is best split: the share of the transactions that is saved, over the share of the memory for rows.",
    );
    figure(
        out,
        &cache_map(run),
        "What lies on which GPU. Grey is memory for caches that others fill and this policy does not; hover for the amounts.",
    );
    figure(
        out,
        &epoch_over_workers(run),
        "How many workers a GPU needs: left of the dashed line it waits for them, right of it nothing is gained.",
    );
    out.push_str("</section>\n");
}
