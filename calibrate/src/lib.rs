//! Everything that touches measurements or a real device.
//!
//! `device.rs` is the seam to hardware, `cpu.rs` the device that every machine has. `import.rs`, `llmservingsim.rs` and `network.rs` read what others
//! measured, `host.rs` runs what graph training does on the host, `fit.rs` fits it, `profiles.rs` holds what is shipped.

pub mod campaign;
pub mod costs;
mod cpu;
mod cuda;
mod design;
pub mod device;
pub mod devices;
pub mod execute;
pub mod family;
pub mod fit;
pub mod host;
pub mod import;
pub mod llmservingsim;
pub mod nccl_tests;
pub mod network;
pub mod profiles;
pub mod sample;

#[cfg(test)]
mod tests {
    pub(crate) mod fake;
}
