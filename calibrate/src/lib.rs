//! Everything that touches measurements: reading measured tables, fitting profiles, and the profiles that are shipped.
//!
//! Devices (calibrate, execute, validate) come later; `import.rs` reads what others measured, `fit.rs` fits it.

pub mod fit;
pub mod import;
pub mod profiles;
