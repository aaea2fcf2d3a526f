//! Planners: of training (`train`), of what serves (`deploy`), of fine-tuning in stages (`curriculum`).
//!
//! A paper is a file. The solver lives behind `milp.rs` alone.

pub mod curriculum;
pub mod deploy;
pub mod milp;
mod published;
pub mod stop;
pub mod train;

pub use self::train::policy::{Card, Decision, Parameter, PlanContext, PlanError, Policy, Status, Value};
