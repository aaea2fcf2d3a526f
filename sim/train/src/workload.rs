//! Sequence lengths of a training job: given, or sampled from a named distribution.
//!
//! Units: tokens. Invariant: every length is at least 1; sequence `i` belongs to step `i / batch_size` unless a
//! policy that re-orders the data set (sorted batching) decides otherwise.

pub mod distribution;

/// Sequences of all simulated steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Lengths in arrival order; `steps × batch_size` of them.
    pub lengths: Vec<u64>,
    /// Sequences per optimizer step over all data-parallel groups.
    pub batch_size: usize,
    /// Name or file that they came from.
    pub source: String,
}

impl Workload {
    /// Optimizer steps that the lengths make.
    pub fn n_steps(&self) -> usize {
        self.lengths.len() / self.batch_size
    }

    /// Sequences of one step in arrival order: (id, length).
    pub fn step(&self, step_index: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let first = step_index * self.batch_size;
        (first..first + self.batch_size)
            .map(|index| (u32::try_from(index).expect("sequence ids fit u32"), self.lengths[index]))
    }
}
