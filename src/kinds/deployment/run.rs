//! Runs `kind = "deployment"`, a file for each objective.

pub mod goodput;
pub mod throughput;
pub mod time;

/// Names that a deployment scenario may use for policies, with what they do.
pub fn policies() -> Vec<(&'static str, &'static str)> {
    ::planner::deploy::policies::POLICIES.iter().map(|policy| (policy.name, policy.about)).collect()
}
