//! The shell as a library: run a scenario, hold its expectations. The binary and the tests go through here.

pub mod ask;
pub mod cli;
pub mod commands;
pub mod hardware;
pub mod kinds;
mod progress;
