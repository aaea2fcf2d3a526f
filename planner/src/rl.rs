//! Steps of reinforcement learning: a trainer that is planned and played once for all ways that share it, and nodes of one machine that are shared out
//! between trainer and engines.

pub mod floor;
pub mod once;
pub mod split;
pub mod trained;
