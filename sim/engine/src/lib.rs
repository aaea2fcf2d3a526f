//! What operations cost (`cost`), what a model is made of (`model`), what a run is made of (`task`), and how long it takes (`play`).
//!
//! Read `task.rs` first: the task graph is the waist of training, and the simulator and the hardware executor are two interpreters of
//! it. Training and serving rest on this crate and do not know each other. No file, clock, thread or solver is touched here.

pub mod capacity;
pub mod cause;
pub mod compression;
pub mod cost;
pub mod dispatcher;
pub mod encoder;
pub mod formats;
pub mod frozen;
pub mod latent_layout;
pub mod launch;
pub mod layer;
pub mod loss;
pub mod memory;
pub mod mixing;
pub mod model;
pub mod origin;
pub mod play;
pub mod queue;
pub mod random;
pub mod recompute;
pub mod shard;
pub mod share;
pub mod stage;
pub mod state;
pub mod stop;
pub mod task;
pub mod timeline;
pub mod unfused;
pub mod validation;
pub mod verdict;

pub use cost::{CostModel, Estimate, Source};
pub use model::Model;
pub use origin::Origin;
pub use play::{Outcome, simulate};
pub use task::{Op, TaskGraph};
pub use timeline::Timeline;
