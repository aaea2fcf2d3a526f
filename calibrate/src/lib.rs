//! Everything that touches measurements: reading measured tables, fitting profiles, and the profiles that are shipped.
//!
//! Devices (calibrate, execute, validate) come later; `import.rs` and `network.rs` read what others measured, `fit.rs` fits it.

pub mod fit;
pub mod import;
pub mod network;
pub mod profiles;
