//! An iteration or a span under way at a replica: when each of its iterations ends.
//!
//! `k` iterations that decode `n` sequences with `c` cached keys at first take `k · fixed + rate · (k · c + n · k(k−1)/2)` ticks, so the
//! end of a span and the boundary at which an arrival cuts it are closed forms of whole ticks. Where the host works behind the device,
//! iterations take at least the host's time: keys only grow within a span, so those that the host paces come first.

use hw::Tick;

/// An iteration or a span under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Going {
    pub(super) start: Tick,
    pub(super) n_steps: u64,
    /// Ticks of every iteration but for its cached tokens.
    pub(super) fixed: Tick,
    /// Ticks per cached token.
    pub(super) rate: Tick,
    pub(super) context: u64,
    pub(super) n_decode: u64,
    /// Ticks that an iteration takes at least, and how many take no more.
    pub(super) least: Tick,
    pub(super) n_least: u64,
    /// Share of the time in which a stage computes, as part and whole.
    pub(super) stage_share: (u64, u64),
}

impl Going {
    /// One iteration of so many ticks.
    pub(super) fn once(start: Tick, ticks: Tick) -> Self {
        Self {
            start,
            n_steps: 1,
            fixed: ticks,
            rate: Tick::ZERO,
            context: 0,
            n_decode: 0,
            least: Tick::ZERO,
            n_least: 0,
            stage_share: (1, 1),
        }
    }

    /// Finds how many iterations the host paces.
    pub(super) fn paced(mut self) -> Self {
        let first = self.fixed + self.rate * self.context;
        if first < self.least {
            let growth = self.rate * self.n_decode;
            self.n_least = if growth == Tick::ZERO { u64::MAX } else { (self.least - first).div_ceil(growth) };
        }
        self
    }

    /// Keys that the first `k` iterations read.
    const fn keys(&self, k: u64) -> u64 {
        k * self.context + self.n_decode * (k * k.saturating_sub(1) / 2)
    }

    /// Tick at which `k` of its iterations are done.
    pub(super) fn end_of(&self, k: u64) -> Tick {
        if self.n_least == 0 {
            return self.start + self.fixed * k + self.rate * self.keys(k);
        }
        let n_least = k.min(self.n_least);
        let device = self.fixed * (k - n_least) + self.rate * (self.keys(k) - self.keys(n_least));
        self.start + self.least * n_least + device
    }

    /// Iterations that are done at a tick before the last one's end.
    pub(super) fn steps_done(&self, tick: Tick) -> u64 {
        let k = self.steps_until(tick);
        if self.end_of(k) <= tick { k } else { k - 1 }
    }

    /// Iterations that have begun at a tick before the last one's end.
    pub(super) fn steps_begun(&self, tick: Tick) -> u64 {
        let k = self.steps_done(tick) + 1;
        if k < self.n_steps { k } else { self.n_steps }
    }

    /// Iterations at whose end a tick lies, in real numbers and rounded up, where the host paces none.
    fn root(&self, tick: Tick) -> u64 {
        let growth = self.rate.as_f64() * hw::real(self.n_decode) / 2.0;
        let first = self.fixed.as_f64() + self.rate.as_f64() * hw::real(self.context) - growth;
        let time = tick.saturating_sub(self.start).as_f64();
        let half = first / 2.0;
        // Of both forms of the root this one has no division by a growth of zero; a span takes time, so the sum is above zero.
        hw::whole((time / (half + (half * half + growth * time).sqrt()).max(1.0)).ceil())
    }

    /// Fewest iterations, at least one, that are done at a tick or after it.
    pub(super) fn steps_until(&self, tick: Tick) -> u64 {
        let (mut low, mut high) = (1, self.n_steps);
        if low < high && self.n_least == 0 {
            // The root of the sum in real numbers is right or one off: the search has nothing left to do.
            let near = self.root(tick).clamp(low, high);
            if self.end_of(near) >= tick {
                high = near;
                if near > low && self.end_of(near - 1) < tick {
                    low = near;
                }
            } else {
                low = high.min(near + 1);
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.end_of(middle) >= tick {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root lands where a search over every number of iterations lands.
    #[test]
    fn the_boundary_of_a_tick_is_the_first_that_reaches_it() {
        let going = |fixed: u64, rate: u64, context: u64, n_decode: u64, least: u64| {
            Going {
                n_steps: 300,
                rate: Tick::new(rate),
                context,
                n_decode,
                least: Tick::new(least),
                ..Going::once(Tick::new(1_000_000_007), Tick::new(fixed))
            }
            .paced()
        };
        for case in [
            going(9_000_000_000, 1_300, 40_000, 64, 0),
            going(1, 0, 0, 1, 0),
            going(0, 1, 1, 1, 0),
            going(7, 3, 1, 250, 0),
            going(9_000_000, 1_300, 4_000, 64, 15_000_000),
        ] {
            for k in [1, 2, 3, 150, 299, 300] {
                for tick in [-1, 0, 1].map(|by| case.end_of(k).shifted(by)) {
                    let first = (1..300).find(|k| case.end_of(*k) >= tick).unwrap_or(300);
                    assert_eq!(case.steps_until(tick), first, "{case:?} {k} {tick:?}");
                }
            }
        }
    }
}
