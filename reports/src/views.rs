//! What the table of each kind of result shows, the metric that counts first: keys with their headings.

use crate::{Column, PolicyResult, RunResult};

/// Metrics that a table shows.
pub fn columns(view: &[(&str, &str)]) -> Vec<Column> {
    view.iter().map(|(key, heading)| Column { key: (*key).to_owned(), heading: (*heading).to_owned() }).collect()
}

/// Steps of training, which are compared by their time. Of several metrics in one column the first counts that a row has: without a pipeline
/// there is no bubble, and ranks wait for each other alone.
const STEPS: [&[(&str, &str)]; 6] = [
    &[("iteration_time_s", "iteration")],
    &[("tokens_per_s", "tokens/s")],
    &[("mfu_ratio", "MFU")],
    &[("bubble_ratio", "bubble"), ("dp_imbalance_ratio", "imbalance")],
    &[("comm_exposed_ratio", "exposed")],
    &[("peak_memory_bytes", "peak mem")],
];

/// What the table of a result shows that names no columns of its own and is of steps.
pub(crate) fn steps(run: &RunResult) -> [(&'static str, &'static str); 6] {
    let has = |key: &str| run.results.iter().any(|result| result.metrics.contains_key(key));
    STEPS.map(|column| *column.iter().find(|(key, _)| has(key)).unwrap_or(&column[column.len() - 1]))
}

/// Training on GPUs of several types.
pub const MIXED_GPUS: [(&str, &str); 6] = [
    ("iteration_time_s", "iteration"),
    ("tokens_per_s", "tokens/s"),
    ("compute_busy_ratio", "busy"),
    ("gradient_reduction_ratio", "gradients"),
    ("cost_usd_per_mtok", "USD/Mtok"),
    ("peak_memory_bytes", "memory"),
];

/// The view of training on mixed cards.
pub const fn of_mixed(is_of_days: bool) -> &'static [(&'static str, &'static str)] {
    if is_of_days { &RUN_OF_DAYS } else { &MIXED_GPUS }
}

/// Training over days, by what it keeps.
pub const RUN_OF_DAYS: [(&str, &str); 6] = [
    ("run_tokens_per_s", "kept tokens/s"),
    ("run_goodput_ratio", "useful"),
    ("run_cost_usd_per_mtok", "USD/Mtok"),
    ("checkpoint_interval_s", "saved every"),
    ("iteration_time_s", "step"),
    ("peak_memory_bytes", "peak mem"),
];

/// What the table shows of training steps, the metric first by which rows are compared; nothing for steps that are compared by their time.
pub const fn of_steps(is_of_days: bool, is_by_cost: bool) -> &'static [(&'static str, &'static str)] {
    match (is_of_days, is_by_cost) {
        (true, _) => &RUN_OF_DAYS,
        (false, true) => &STEP_BY_COST,
        (false, false) => &[],
    }
}

/// Training steps by what they cost.
pub const STEP_BY_COST: [(&str, &str); 6] = [
    ("tokens_per_usd", "tokens/USD"),
    ("cost_usd_per_step", "USD per step"),
    ("iteration_time_s", "step"),
    ("tokens_per_s", "tokens/s"),
    ("mfu_ratio", "MFU"),
    ("peak_memory_bytes", "peak mem"),
];

/// Fine-tuning in stages.
pub const CURRICULUM: [(&str, &str); 7] = [
    ("mastered_facts", "mastered"),
    ("mastered_gain_facts", "over retests"),
    ("total_s", "time"),
    ("budget_ratio", "of budget"),
    ("classification_ratio", "classifying"),
    ("cost_usd", "cost"),
    ("n_stages", "stages"),
];

/// What a table of fine-tuning shows: costs and shares of a budget where some row has them.
pub fn of_curriculum(results: &[PolicyResult]) -> Vec<Column> {
    let has = |key: &str| results.iter().any(|result| result.metrics.contains_key(key));
    let mut shown = CURRICULUM.to_vec();
    shown.retain(|(key, _)| !["cost_usd", "budget_ratio"].contains(key) || has(key));
    columns(&shown)
}

/// Steps of reinforcement learning.
pub const RL: [(&str, &str); 7] = [
    ("step_s", "step"),
    ("generation_s", "generation"),
    ("log_probability_s", "log probs"),
    ("training_s", "training"),
    ("weights_s", "weights"),
    ("tokens_per_s_per_gpu", "tokens/s/GPU"),
    ("idle_ratio", "idle"),
];

/// Serving by the coefficients of published runs.
pub const PUBLISHED_RUNS: [(&str, &str); 4] = [
    ("output_tokens_per_s_per_gpu", "tokens/s/GPU"),
    ("ttft_s.mean", "TTFT mean"),
    ("tpot_s.mean", "TPOT mean"),
    ("output_tokens_per_s_per_user", "tokens/s/user"),
];

/// Figure of a planner that decides with what is to come, so that nobody can deploy it.
pub const KNOWS_FUTURE: &str = "knows_future";

/// Fleets that a planner scales.
pub const PLANNED_FLEETS: [(&str, &str); 6] = [
    ("cost_usd_per_mreq_met", "per 1M met"),
    ("slo_attainment_ratio", "in limits"),
    ("cost_usd", "cost"),
    ("cost_gap_ratio", "gap to bound"),
    ("ttft_s.p90", "TTFT p90"),
    ("tpot_s.p90", "TPOT p90"),
];

/// Deployments by the requests that keep their limits.
pub const GOODPUT: [(&str, &str); 6] = [
    ("goodput_requests_per_s", "goodput req/s"),
    ("planned_requests_per_s", "planned req/s"),
    ("tokens_per_s", "tokens/s"),
    ("ttft_s", "TTFT"),
    ("tpot_s", "TPOT"),
    ("n_prefill_gpus", "prefill GPUs"),
];

/// Deployments of stations by the tokens that they pass.
pub const THROUGHPUT: [(&str, &str); 7] = [
    ("decode_tokens_per_s", "decode tok/s"),
    ("tokens_per_s", "all tok/s"),
    ("bound_tokens_per_s", "bound"),
    ("max_flow_tokens_per_s", "planned flow"),
    ("prompt_latency_s.mean", "prompt"),
    ("decode_latency_s.mean", "token"),
    ("kv_asked_ratio", "cache"),
];

/// Rented GPUs whose plans are replayed.
pub const REPLAYED: [(&str, &str); 6] = [
    ("replay_makespan_s", "replayed"),
    ("makespan_s", "planned"),
    ("cost_usd_per_hour", "per hour"),
    ("cost_usd_per_mtok", "per Mtok"),
    ("n_replicas", "replicas"),
    ("n_gpus", "GPUs"),
];

/// Rented GPUs whose plans are not.
pub const RENTED: [(&str, &str); 4] =
    [("makespan_s", "makespan"), ("cost_usd_per_hour", "per hour"), ("n_replicas", "replicas"), ("n_gpus", "GPUs")];

/// Rented GPUs for the fewest dollars, whose plans are replayed or not.
pub const CHEAPEST: [(&str, &str); 6] = [
    ("cost_usd_per_hour", "per hour"),
    ("makespan_s", "planned"),
    ("replay_makespan_s", "replayed"),
    ("cost_usd", "dollars"),
    ("n_replicas", "replicas"),
    ("n_gpus", "GPUs"),
];

/// Several tasks in one step.
pub const MULTI_TASK: [(&str, &str); 6] = [
    ("iteration_time_s", "iteration"),
    ("planned_s", "planned"),
    ("theory_gap_ratio", "over optimum"),
    ("messages_ratio", "messages"),
    ("sync_ratio", "gradients"),
    ("peak_memory_bytes", "memory"),
];

/// Steps of symbolic sizes within a memory.
pub const MEMORY: [(&str, &str); 6] = [
    ("tokens_per_s", "tokens/s"),
    ("peak_memory_bytes", "peak"),
    ("peak_memory_mean_bytes", "mean peak"),
    ("recompute_ratio", "recompute"),
    ("n_compiles", "programs"),
    ("n_not_fitting", "do not fit"),
];

/// Graphs whose rows are cached.
pub const CACHING: [(&str, &str); 6] = [
    ("epoch_time_s", "epoch"),
    ("hit_ratio", "hits"),
    ("transactions_per_epoch", "transactions"),
    ("alpha_ratio", "rows' share"),
    ("gather_per_epoch_s", "gather"),
    ("training_per_epoch_s", "training"),
];

/// Graphs whose subgraphs workers extract.
pub const SUBGRAPHS: [(&str, &str); 6] = [
    ("epoch_time_s", "epoch"),
    ("n_workers", "workers"),
    ("crossing_workers", "GPU busy from"),
    ("neighbour_ratio", "neighbours"),
    ("sampling_per_epoch_s", "extraction"),
    ("training_per_epoch_s", "training"),
];

/// Temporal graphs in sequences of events.
pub const SEQUENCES: [(&str, &str); 6] = [
    ("epoch_time_s", "epoch"),
    ("n_neighbours", "neighbours"),
    ("batch_events", "batch"),
    ("sampling_per_epoch_s", "sampling"),
    ("training_per_epoch_s", "training"),
    ("conversion_s", "conversion"),
];
