//! Many points of a scenario: axes and samples make points, each is run once, and rows are kept so that a sweep that was killed goes on.
//!
//! A point is what is laid over a scenario, so nothing here knows a kind of scenario: the caller runs points. Invariant: the file of rows is
//! a function of the sweep alone. Threads, shards, and when it was killed change none of its bytes.

pub mod axis;
pub mod condition;
pub mod front;
pub mod given;
pub mod key;
pub mod play;
pub mod refine;
pub mod report;
pub mod row;
pub mod sample;
mod sobol;
pub mod store;
pub mod vary;

pub use axis::Axis;
pub use given::Sweep;
pub use row::Outcome;
pub use sample::Point;
