//! Datasheet roofline: the fallback where nothing was measured.

use hw::Cluster;

use crate::cost::{CostModel, Estimate};
use crate::task::Op;

/// Roofline of a cluster's GPU and links.
#[derive(Clone, Debug)]
pub struct Roofline {}

impl Roofline {
    /// Roofline of a cluster.
    #[must_use]
    pub fn new(_cluster: &Cluster) -> Self {
        Self {}
    }
}

impl CostModel for Roofline {
    fn elementary(&self, _op: &Op) -> Estimate {
        todo!()
    }
}
