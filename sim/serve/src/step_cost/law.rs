//! Time of iterations that only decode, as a law in the keys that their sequences attend to together. Units: ticks, keys.

use hw::Tick;

use super::adapters::AdapterLoad;
use super::{StepLoad, StepTable};

/// A line in the keys, and what an iteration takes at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// Ticks but for cached tokens.
    pub fixed: Tick,
    /// Ticks per key.
    pub rate: Tick,
    /// Ticks that it takes at least.
    pub least: Tick,
    /// Most keys for which that is the line: beyond them another one is longer.
    pub until: u64,
}

impl Law {
    /// Iterations in a row that it holds for, where the first attends to so many keys and each to so many more than the one before.
    pub fn steps(&self, context: u64, more: u64) -> u64 {
        (self.until.saturating_sub(context)).checked_div(more).map_or(u64::MAX, |steps| steps.saturating_add(1))
    }
}

impl StepTable {
    /// Law of iterations that only decode.
    pub fn law(&self, n_decode: u32) -> Law {
        self.law_of(n_decode, AdapterLoad::default(), 0)
    }

    /// The same from so many keys on, where some of the sequences have adapters.
    pub fn law_of(&self, n_decode: u32, adapters: AdapterLoad, context: u64) -> Law {
        let load = StepLoad { n_decode, context, n_sampled: n_decode, adapters, ..StepLoad::default() };
        let (added, least) = self.around(&load);
        let (device, launches) = self.device(&load, std::iter::empty());
        let least = least.max(launches + added);
        match &self.apart {
            None => Law { fixed: device.ticks + added, rate: self.rate(n_decode), least, until: u64::MAX },
            Some(apart) => {
                let batches = self.micro_batches(&load, std::iter::empty());
                let (line, until) = self.lines(apart, &load, &batches[0]).longest(context);
                Law { fixed: line.fixed + added, rate: line.rate, least, until }
            }
        }
    }
}
