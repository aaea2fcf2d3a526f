//! Moments at equal distances from the start to the end of a run, and the tokens that clients had between them. Units: nanoseconds, tokens.

use hw::{Span, Tick, Time};

/// Moments at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Time from one to the next.
    pub step: Span,
    /// How many follow the first.
    pub n: u32,
}

impl Samples {
    /// So many behind the first one, over a run that ends then.
    ///
    /// # Panics
    /// When there are none.
    pub fn over(end: Time, n: u32) -> Self {
        assert!(n > 0, "a series has a sample");
        Self { step: Span::from_ns(((end - Time::ZERO).as_ns() / u64::from(n)).max(1)), n }
    }

    fn within(self, index: u64) -> usize {
        usize::try_from(index.min(self.n.into())).expect("samples in memory")
    }

    /// The first that sees what happened at a moment.
    pub fn seen(self, at: Time) -> usize {
        self.within((at - Time::ZERO).as_ns().div_ceil(self.step.as_ns()))
    }

    /// The last that is no later than a moment.
    pub fn before(self, at: Time) -> usize {
        self.within((at - Time::ZERO).as_ns() / self.step.as_ns())
    }

    /// Moment of one.
    pub fn at(self, index: usize) -> Time {
        Time::from_ns(index as u64 * self.step.as_ns())
    }
}

/// Tokens of requests whose moments are known, by samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenTokens {
    /// The samples.
    pub samples: Samples,
    /// Tokens from each sample to the next.
    pub given: Vec<u32>,
    /// By how much the output tokens of requests under way are more at a sample than at the one before.
    pub under_way: Vec<i64>,
}

impl GivenTokens {
    /// None yet.
    pub fn none(samples: Samples) -> Self {
        let n = samples.n as usize + 1;
        Self { samples, given: vec![0; n], under_way: vec![0; n] }
    }

    /// Adds the tokens of a request, whose last one ends it.
    pub fn add(&mut self, ticks: &[Tick]) {
        let Some(last) = ticks.last() else { return };
        for tick in ticks {
            self.given[self.samples.before(tick.time())] += 1;
            self.under_way[self.samples.seen(tick.time())] += 1;
        }
        self.under_way[self.samples.seen(last.time())] -= i64::try_from(ticks.len()).expect("few tokens");
    }
}
