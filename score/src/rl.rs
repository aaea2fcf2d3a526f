//! Measured steps of reinforcement learning, and measured transfers of weights: predicted over measured.
//!
//! A table is recognised by its header (`table.rs`). A line becomes a step (`step.rs`), a transfer (`transfer.rs`), or a reason why there is none
//! (`reason.rs`). A step has a trainer, an engine that generates, and lengths. Words of cards and models are in `named.rs`, what a recipe says beside the table in `recipe.rs`, how
//! sequences share micro-batches in `packs.rs`. `predict.rs` plays the parts of a step and puts them together. `summary.rs` sets
//! them beside the measurement, and `text.rs` and `written.rs` write them. Units: seconds, tokens, bytes.

#[cfg(test)]
mod measured;
mod named;
mod packs;
pub mod predict;
mod recipe;
pub mod row;
mod step;
pub mod summary;
pub mod table;
pub(crate) mod text;
mod transfer;
pub(crate) mod written;
