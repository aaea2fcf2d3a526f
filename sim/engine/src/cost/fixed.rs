//! Exact times for tests: a table of operations and a default.

use hw::Seconds;

use crate::cost::{CostModel, Estimate, Source};
use crate::task::Op;

/// Fixed times.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// Time of everything that is not in the table.
    pub default: Seconds,
    /// Times of particular operations.
    pub table: Vec<(Op, Seconds)>,
}

impl CostModel for Fixed {
    fn elementary(&self, op: &Op) -> Estimate {
        let time = self.table.iter().find(|(known, _)| known == op).map_or(self.default, |(_, time)| *time);
        Estimate::exact(time, Source::Measured)
    }
}
