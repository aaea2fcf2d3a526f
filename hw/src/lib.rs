//! Hardware as a description: units, virtual time, GPUs, links, clusters and the topology between ranks.
//!
//! Reading order: `units.rs`, `count.rs` (the only number casts), `quantile.rs`, `time.rs`, `tick.rs`, `generation.rs`, `gpu.rs`, `cluster.rs`, `topology.rs`, `catalog.rs`.
//! Nothing here opens a file, reads a clock or knows that a simulator exists.

pub mod catalog;
pub mod cluster;
pub mod count;
pub mod format;
pub mod generation;
mod gpu;
pub mod power;
pub mod quantile;
pub mod tick;
pub mod time;
pub mod topology;
pub mod units;
mod words;

pub use cluster::{Cluster, CollectiveAlgorithm, Fabric, GroupShape, InsideLink, Rank};
pub use count::{GIB, in_thousands, real, whole};
pub use format::{Dtype, Format};
pub use generation::{Generation, Maker};
pub use gpu::{Capability, Draw, Gpu, Reached};
pub use power::Power;
pub use tick::{Tick, TickSum};
pub use time::{Span, Time};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds, Tokens, Usd};
