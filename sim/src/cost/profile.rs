//! Fitted curves and residuals of one device (`profiles/*.toml`), and the cost model that reads them.

use hw::Cluster;

use crate::cost::{CostModel, Estimate};
use crate::task::Op;

/// A profile file.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name.
    pub name: String,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// What is wrong with the file, with its line.
    pub fn parse(_text: &str) -> Result<Self, String> {
        todo!()
    }
}

/// A profile on a cluster, with the roofline where the profile is silent.
#[derive(Clone, Debug)]
pub struct Profiled {}

impl Profiled {
    /// Cost model of a cluster from a profile.
    #[must_use]
    pub fn new(_profile: &Profile, _cluster: &Cluster) -> Self {
        Self {}
    }
}

impl CostModel for Profiled {
    fn elementary(&self, _op: &Op) -> Estimate {
        todo!()
    }
}
