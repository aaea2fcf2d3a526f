//! Planners: of training (`train`), of what serves (`deploy`), of fine-tuning in stages (`curriculum`), of training on graphs (`graph`), and of
//! steps of reinforcement learning (`rl`).
//!
//! A paper is a file. Every planner answers with the `Decision` of `proof.rs`. The solver lives behind `milp.rs` alone.

pub mod curriculum;
pub mod deploy;
pub mod effort;
pub mod graph;
pub mod milp;
pub mod proof;
mod published;
pub mod rl;
pub mod train;

pub use self::train::policy::{Card, Parameter, PlanContext, PlanError, Policy, Value};
pub use proof::{Aim, Bound, Decision, RunnerUp, Status};
