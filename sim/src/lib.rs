//! What is asked (`problem`), what is decided (`plan`), what follows (`task`), and how long it takes (`engine`).
//!
//! Read `task.rs` first: the task graph is the narrow waist, and the simulator and the hardware executor are
//! two interpreters of it. Then `plan.rs` and `engine.rs`. No file, clock, thread or solver is touched here.

pub mod bound;
pub mod check;
pub mod compression;
pub mod cost;
pub mod curriculum;
pub mod engine;
pub mod experts;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod multi_task;
pub mod plan;
pub mod problem;
pub mod random;
pub mod schedule;
pub mod serving;
pub mod stage;
pub mod straggler;
pub mod task;
pub mod tensor_graph;
pub mod timeline;
pub mod validation;
pub mod workload;

pub use cost::{CostModel, Estimate, Source};
pub use engine::{Outcome, simulate};
pub use layout::Layout;
pub use metrics::Metrics;
pub use model::Model;
pub use plan::Plan;
pub use problem::Problem;
pub use task::{Op, TaskGraph};
pub use timeline::Timeline;
pub use workload::Workload;
