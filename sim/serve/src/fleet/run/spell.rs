//! How long something is so, until the end of a run that is known behind it. Units: ticks.

use hw::Tick;

/// Times in which something is so.
#[derive(Clone, Debug, Default)]
pub(super) struct Spell {
    /// Starts and ends of those that are over.
    over: Vec<[Tick; 2]>,
    since: Option<Tick>,
}

impl Spell {
    /// One that begins with the run, or later.
    pub(super) fn from_start(begins: bool) -> Self {
        Self { over: Vec::new(), since: begins.then_some(Tick::ZERO) }
    }

    /// From now on it is so, or not.
    pub(super) fn set(&mut self, is_so: bool, now: Tick) {
        match self.since {
            None if is_so => self.since = Some(now),
            Some(since) if !is_so => {
                self.over.push([since, now]);
                self.since = None;
            }
            _ => {}
        }
    }

    /// Ticks until the end of the run, whatever comes behind it.
    pub(super) fn until(&self, end: Tick) -> Tick {
        let now = self.since.map(|since| [since, end]);
        let all = self.over.iter().copied().chain(now);
        all.map(|[from, to]| to.min(end).saturating_sub(from)).sum()
    }
}

impl Spell {
    /// Whether it is so now.
    pub(super) const fn is_so(&self) -> bool {
        self.since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_behind_the_end_does_not_count() {
        let at = Tick::new;
        let mut spell = Spell::from_start(true);
        spell.set(false, at(10));
        spell.set(true, at(15));
        spell.set(false, at(40));
        spell.set(true, at(50));
        for (end, expected) in [(5, 5), (10, 10), (12, 10), (20, 15), (40, 35), (45, 35), (60, 45)] {
            assert_eq!(spell.until(at(end)), at(expected), "{end}");
        }
    }
}
