//! Graph of links between devices; a pair's route is the links that its traffic loads.

use crate::cluster::{Cluster, Rank};
use crate::units::BytesPerSecond;

/// Identity of a directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Links of a cluster.
#[derive(Clone, Debug)]
pub struct Topology {}

impl Topology {
    /// Topology of a cluster.
    #[must_use]
    pub fn of(_cluster: &Cluster) -> Self {
        Self {}
    }

    /// Number of links.
    #[must_use]
    pub fn n_links(&self) -> usize {
        todo!()
    }

    /// Capacity of a link.
    #[must_use]
    pub fn capacity(&self, _link: LinkId) -> BytesPerSecond {
        todo!()
    }

    /// Links from one rank to another, in order.
    #[must_use]
    pub fn route(&self, _from: Rank, _to: Rank) -> Vec<LinkId> {
        todo!()
    }
}
