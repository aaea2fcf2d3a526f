//! Groups of replicas behind a router: what a fleet is, and what serving with it gives.
//!
//! Replicas of a group are equal; groups differ in GPU, layout, limits and price. The event loop is in `fleet/run.rs`. A request that no
//! replica could ever hold is refused and counted. Units: replicas, GPUs, dollars per GPU and hour, ticks.

mod ends;
mod run;

use crate::serving::assignment::Assignment;
use crate::serving::records::Records;
use crate::serving::replica::{Counts, Engine};
use crate::serving::request::Requests;
use crate::serving::router::Router;
use run::{Run, Setup};

/// Equal replicas.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name in results.
    pub name: String,
    /// What every replica runs.
    pub engine: Engine,
    /// Replicas.
    pub n_replicas: u32,
    /// GPUs of one replica.
    pub gpus_per_replica: u32,
    /// Price of a GPU, where it is known.
    pub usd_per_gpu_hour: Option<f64>,
}

/// Groups and what was planned for them.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Groups; their replicas are numbered group by group.
    pub groups: Vec<Group>,
    /// Shares for the routers that follow a plan.
    pub assignment: Assignment,
}

/// What a simulation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Moments of every request, in order of arrival.
    pub records: Records,
    /// Counts of every replica.
    pub counts: Vec<Counts>,
    /// Most blocks in use and all blocks, of every replica.
    pub blocks: Vec<(u32, u32)>,
    /// Group of every replica.
    pub group_of: Vec<u32>,
    /// Ticks for which every replica is paid.
    pub paid_ticks: Vec<u64>,
    /// Requests that no replica could hold.
    pub n_refused: u64,
}

impl Fleet {
    /// A fleet of one group.
    #[must_use]
    pub fn of(group: Group) -> Self {
        Self { groups: vec![group], ..Self::default() }
    }

    /// Replicas of all groups.
    #[must_use]
    pub fn n_replicas(&self) -> u32 {
        self.groups.iter().map(|group| group.n_replicas).sum()
    }

    /// Serves all requests to the end.
    ///
    /// # Panics
    /// When there is no replica.
    #[must_use]
    pub fn serve(&self, requests: &Requests, router: &mut dyn Router) -> Served {
        let of_group = |(index, group): (usize, &'_ Group)| {
            let index = u32::try_from(index).expect("few groups");
            std::iter::repeat_n(index, group.n_replicas as usize)
        };
        let group_of: Vec<u32> = self.groups.iter().enumerate().flat_map(of_group).collect();
        let engines: Vec<&Engine> = group_of.iter().map(|group| &self.groups[*group as usize].engine).collect();
        Run::new(Setup { requests, engines: &engines, group_of, assignment: &self.assignment }, router).play()
    }
}

/// Serves all requests with these replicas, one group.
///
/// # Panics
/// When there is no replica.
#[must_use]
pub fn serve(requests: &Requests, engines: &[&Engine], router: &mut dyn Router) -> Served {
    let (group_of, assignment) = (vec![0; engines.len()], Assignment::default());
    Run::new(Setup { requests, engines, group_of, assignment: &assignment }, router).play()
}

#[cfg(test)]
mod tests;
