//! Training of graph neural networks: graphs (`csr`, `generate`, `read`, `published`, `distribution`), what a step reads of them (`sample`,
//! `partition`, `cache`, `traffic`), Legion's split of caches (`legion`), enclosing subgraphs (`subgraph`), temporal graphs (`tcsr`), and the
//! step as a task graph of the engine (`step`). What a host takes for all of it is `host`, what of it an epoch has is `epoch`, and how soon a row
//! or a mark comes again is `recurrence` and `marks`.
//!
//! Read `csr.rs` first. Vertices are `u32` from 0, offsets are `u64`. Every random draw has an owner (a vertex, an edge, a pair) with a stream
//! of its own, so results do not depend on the number of threads. No planner, report or clock is known here.

pub mod cache;
pub mod csr;
pub mod distribution;
pub mod epoch;
pub mod generate;
pub mod host;
pub mod legion;
pub mod marks;
pub mod partition;
pub mod pipeline;
pub mod published;
pub mod read;
pub mod recurrence;
pub mod sample;
pub mod step;
pub mod subgraph;
pub mod tcsr;
pub mod traffic;

pub use csr::Csr;
