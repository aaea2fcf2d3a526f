//! When the host looks for requests that have come: at every boundary, or only after so many iterations that decode.
//!
//! Source: sgl-project/sglang, `--scheduler-recv-interval` and `SchedulerRecvSkipper` (Apache-2.0): a decode iteration counts one, an iteration with
//! prompts counts a thousand, and an idle host looks all the time.
//!
//! A host that is an iteration ahead counts an iteration when it has launched it, and looks then. So it looks as prompts begin, and not as they end:
//! who comes while prompts are computed waits for the next look, after a whole interval of decode iterations. Units: iterations.

use std::num::NonZeroU32;

/// Looks of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looks {
    /// Iterations since the last look.
    since: u64,
}

impl Looks {
    /// First boundary from the `k`-th on at which the host looks, counted in iterations of what is under way.
    pub(super) const fn from(self, k: u64, has_chunks: bool, interval: NonZeroU32) -> u64 {
        let interval = interval.get() as u64;
        if has_chunks { k } else { (self.since + k).next_multiple_of(interval) - self.since }
    }

    /// So many iterations are counted.
    pub(super) const fn count(&mut self, n_steps: u64, has_chunks: bool, interval: NonZeroU32) {
        self.since = if has_chunks { 0 } else { (self.since + n_steps) % interval.get() as u64 };
    }

    /// Nothing is under way, so the host looks all the time.
    pub(super) const fn idle(&mut self) {
        self.since = 0;
    }

    /// Whether the host looks now.
    pub(super) const fn now(self) -> bool {
        self.since == 0
    }

    /// Whether it looks when one more decode iteration is counted.
    pub(super) const fn next(self, interval: NonZeroU32) -> bool {
        (self.since + 1).is_multiple_of(interval.get() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_looks_after_every_so_many_decodes_and_after_prompts() {
        let interval = NonZeroU32::new(10).expect("ten");
        let mut looks = Looks::default();
        assert_eq!([1, 10, 11].map(|k| looks.from(k, false, interval)), [10, 10, 20]);
        looks.count(4, false, interval);
        assert_eq!((looks.now(), looks.from(1, false, interval), looks.from(7, false, interval)), (false, 6, 16));
        assert_eq!(looks.from(1, true, interval), 1);
        looks.count(1, true, interval);
        assert!(looks.now());
        looks.count(30, false, interval);
        assert!(looks.now(), "looks in between found nobody");
    }
}
