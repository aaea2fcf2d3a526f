//! Measured serving runs through the request loop: what is predicted, over what was measured.
//!
//! A table of published runs is read (`table.rs`, `run.rs`), a run becomes an engine as it was started (`client.rs`, `recipe.rs`, `setup.rs`) or a
//! reason why it cannot (`reason.rs`), the request loop plays it as the benchmark's client loads it (`play.rs`), and what comes out is set
//! beside the measurement (`scored.rs`, `errors.rs`, `summary.rs`, `order.rs`) and written (`text.rs`, `written.rs`). Split runs that do not state their workers have an interval
//! (`between.rs`). What is fitted to runs is a few constants of an engine
//! (`serve::engine_constants`); `leave_out.rs` chooses them without the runs that they are then asked about. What the loop leaves over is learned
//! (`residual.rs`, `learned.rs`) and corrects what clients of a replica see at a held load (`steady.rs`). Units: milliseconds in tables, seconds inside.

pub mod bench;
mod between;
mod client;
mod errors;
pub mod form;
mod group;
pub mod kernels;
pub mod known;
pub mod learned;
pub mod leave_out;
#[cfg(test)]
mod measured;
mod networks;
pub mod operator_tables;
pub mod operators;
mod order;
mod play;
pub mod profiler;
mod reason;
pub mod recipe;
pub mod refit;
pub mod residual;
pub mod rl;
pub mod run;
pub mod scenarios;
mod scored;
pub mod select;
mod served;
mod setup;
#[cfg(test)]
mod shared_data;
pub mod steady;
pub mod summary;
pub mod table;
mod tally;
mod text;
pub mod training;
mod written;
