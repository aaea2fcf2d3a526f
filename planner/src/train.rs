//! Planners of training: each turns a `train::Problem` into a `train::Plan`.
//!
//! Read `policy.rs` (the trait and the card), then `policies.rs` (the table), then any file under `policies/`: a paper is a file.

pub mod chosen;
pub mod compression;
pub mod dacp;
pub mod mixed_gpus;
pub mod multi_task;
pub mod objective;
pub mod optimal_schedule;
pub mod orders;
pub mod pack;
pub mod policies;
pub mod policy;
pub mod rematerialisation;
pub mod search;
pub mod slow_nodes;
pub mod updates;
