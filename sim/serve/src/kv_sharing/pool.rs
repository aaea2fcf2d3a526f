//! The memory of all instances: who uses how many blocks of whom.
//!
//! Invariants: no instance holds more blocks than it has; what a debtor owes a lender is what the lender has lent it (one table, read both
//! ways); a lender gives only free blocks of its own, so there are no chains; each block of a request lies on exactly one instance.

/// Why a lender says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has not so many free blocks; it never asks another one.
    Full,
    /// It has lent as much as it may.
    Cap,
}

/// Blocks of all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    capacity: Vec<u64>,
    used: Vec<u64>,
    /// `owed[debtor][lender]`.
    owed: Vec<Vec<u64>>,
    lent_max: u64,
}

impl Pool {
    /// Empty instances; each lends at most `lent_max` blocks.
    #[must_use]
    pub fn new(capacity: Vec<u64>, lent_max: u64) -> Self {
        let n = capacity.len();
        Self { capacity, used: vec![0; n], owed: vec![vec![0; n]; n], lent_max }
    }

    /// Number of instances.
    #[must_use]
    pub fn len(&self) -> usize {
        self.capacity.len()
    }

    /// Whether there is no instance.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.capacity.is_empty()
    }

    /// Blocks of an instance.
    #[must_use]
    pub fn capacity(&self, instance: usize) -> u64 {
        self.capacity[instance]
    }

    /// Free blocks of an instance.
    #[must_use]
    pub fn free(&self, instance: usize) -> u64 {
        self.capacity[instance] - self.used[instance]
    }

    /// Blocks that an instance has lent.
    #[must_use]
    pub fn lent(&self, lender: usize) -> u64 {
        self.owed.iter().map(|owed| owed[lender]).sum()
    }

    /// Blocks that an instance has borrowed.
    #[must_use]
    pub fn borrowed(&self, debtor: usize) -> u64 {
        self.owed[debtor].iter().sum()
    }

    /// All debts, `[debtor][lender]`.
    #[must_use]
    pub fn debts(&self) -> &[Vec<u64>] {
        &self.owed
    }

    /// Sum of all debts.
    #[must_use]
    pub fn debt(&self) -> u64 {
        self.owed.iter().flatten().sum()
    }

    /// Takes blocks of an instance for a request of its own, or of another one as a loan.
    ///
    /// # Errors
    /// The lender's refusal; then nothing has changed.
    pub fn take(&mut self, home: usize, from: usize, blocks: u64) -> Result<(), Refusal> {
        if blocks > self.free(from) {
            return Err(Refusal::Full);
        }
        if home != from && self.lent(from) + blocks > self.lent_max {
            return Err(Refusal::Cap);
        }
        self.used[from] += blocks;
        if home != from {
            self.owed[home][from] += blocks;
        }
        Ok(())
    }

    /// Gives blocks back.
    ///
    /// # Panics
    /// When more are given back than were taken, which is a bug.
    pub fn give(&mut self, home: usize, from: usize, blocks: u64) {
        assert!(blocks <= self.used[from], "{blocks} blocks given back, {} are used", self.used[from]);
        self.used[from] -= blocks;
        if home != from {
            let owed = &mut self.owed[home][from];
            assert!(blocks <= *owed, "{blocks} blocks given back, {owed} were borrowed");
            *owed -= blocks;
        }
    }

    /// Compares the tables with where the blocks of all requests lie: home, and blocks by instance.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn check<'a>(&self, placements: impl Iterator<Item = (usize, &'a [u64])>) -> Result<(), String> {
        let n = self.len();
        let (mut used, mut owed) = (vec![0; n], vec![vec![0; n]; n]);
        for (home, placed) in placements {
            for (instance, &blocks) in placed.iter().enumerate() {
                used[instance] += blocks;
                if instance != home {
                    owed[home][instance] += blocks;
                }
            }
        }
        if used != self.used {
            return Err(format!("blocks in use {:?}, requests hold {used:?}", self.used));
        }
        if owed != self.owed {
            return Err(format!("debts {:?}, requests borrow {owed:?}", self.owed));
        }
        let over = (0..n).find(|&instance| used[instance] > self.capacity[instance]);
        over.map_or(Ok(()), |instance| Err(format!("instance {instance} holds more blocks than it has")))
    }
}
