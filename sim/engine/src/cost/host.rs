//! Measured kernels of a host: what its threads take to sample graphs, gather features, convert and sample
//! events, and extract subgraphs.
//!
//! A kernel's base is so many reads of memory and so many items at hand, at the times below. The surface is the correction that was measured, so
//! the base has to be the same for fit and query. Seconds are those of one thread.

use serde::{Deserialize, Serialize};

use crate::cost::residuals::Residuals;
use crate::cost::surface::Surface;
use crate::cost::unusable::Unusable;

/// Seconds of a read of memory in the base of every kernel: several that a thread has under way hide most of a miss of some 90 ns.
pub const READ_S: f64 = 25e-9;
/// Seconds of an item that is at hand in the base: a comparison, a copy, a probe.
pub const ITEM_S: f64 = 2e-9;

/// Names of kernels in profile files.
pub const KERNELS: [&str; 6] =
    ["sample-rows", "sample-marks", "gather-rows", "convert-events", "sample-past", "extract-subgraphs"];

/// A measured kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKernel {
    /// Error on unseen sizes.
    pub residuals: Residuals,
    /// Threads that ran beside each other.
    pub threads: u32,
    /// Correction of the base.
    pub surface: Surface,
}

impl HostKernel {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, name: &str) -> Result<(), Unusable> {
        if !KERNELS.contains(&name) {
            return Err(Unusable::NotAllowed { allowed: KERNELS.join(", ") });
        }
        if self.threads == 0 || self.surface.axes.len() != 2 {
            return Err(Unusable::HostKernel { threads: self.threads, axes: self.surface.axes.len() });
        }
        self.surface.check()?;
        self.residuals.check()
    }
}
