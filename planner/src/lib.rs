//! Policies: each turns a `sim::Problem` into a `sim::Plan`.
//!
//! Read `policy.rs` (the trait and the card), then `policies.rs` (the table), then any file under `policies/`:
//! a paper is a file. The solver lives behind `milp.rs` alone.

pub mod compression;
pub mod curriculum;
pub mod dacp;
pub mod long_prompt;
pub mod milp;
pub mod multi_task;
pub mod optimal_schedule;
pub mod orders;
pub mod pack;
pub mod policies;
pub mod policy;
mod published;
pub mod rematerialisation;
pub mod rental;
pub mod search;
pub mod sparse_decode;
pub mod stop;

pub use policy::{Card, Decision, Parameter, PlanContext, PlanError, Policy, Status, Value};
