//! A measured row: what it is, what was run, and what was measured. Units: seconds.

use super::step::Step;
use super::transfer::Transfer;
use crate::reason::Reason;
use crate::training::row::Label;

/// One line of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is.
    pub label: Label,
    /// What was run, or why it cannot be played.
    pub asked: Result<Asked, Reason>,
    /// What was measured.
    pub measured: Measured,
}

/// What was run.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A step.
    Step(Box<Step>),
    /// Weights on their way from trainer to engine.
    Transfer(Box<Transfer>),
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Shortest and longest time; both are equal where one value is printed.
    pub seconds: Option<[f64; 2]>,
    /// Whether what the source prints of the row contradicts itself.
    pub disagrees: bool,
}

impl Measured {
    /// The time that is compared: the geometric middle of shortest and longest.
    pub fn middle(&self) -> Option<f64> {
        self.seconds.map(|[low, high]| (low * high).sqrt())
    }
}
