//! Training: what is asked (`problem`), what is decided (`plan`), what follows (`lower`), and what came of it (`metrics`).
//!
//! A plan is checked (`check`), lowered to the engine's task graph and played there. No file, clock, thread or solver is touched here.

pub mod activation;
pub mod batches;
pub mod bound;
pub mod check;
pub mod compression;
pub mod exchange_buffers;
pub mod experts;
pub mod fitting;
pub mod host_memory;
pub mod layout;
pub mod long_run;
pub mod lower;
pub mod megatron_core;
pub mod memory;
pub mod metrics;
pub mod mixed_gpus;
pub mod multi_task;
pub mod muon;
pub mod optimizer;
pub mod peak;
pub mod pipeline_states;
pub mod plan;
pub mod problem;
pub mod schedule;
pub mod stage;
pub mod stage_text;
pub mod straggler;
pub mod tensor_graph;
pub mod timed;
pub(crate) mod units_in_use;
pub mod workload;

pub use layout::Layout;
pub use metrics::Metrics;
pub use plan::Plan;
pub use problem::Problem;
pub use workload::Workload;
