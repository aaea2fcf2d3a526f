//! Random numbers of draws of experts: the same question always has the same draws.

/// xorshift (Marsaglia, Journal of Statistical Software 8(14), 2003): numbers from 0 to 1.
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of a question: tokens, experts, and how many of them a token visits.
    pub(super) const fn of([tokens, n_experts, top_k]: [u64; 3]) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (tokens * 7919 + n_experts * 31 + top_k))
    }

    /// So many different numbers below a limit, all alike, in place of what was there.
    pub(super) fn different(&mut self, n: u64, limit: u64, found: &mut Vec<u64>) {
        found.clear();
        while (found.len() as u64) < n.min(limit) {
            self.next();
            let number = (self.0 >> 11) % limit;
            if !found.contains(&number) {
                found.push(number);
            }
        }
    }

    /// The next number from 0 to 1.
    pub(super) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        hw::real(self.0 >> 11) / hw::real(1 << 53)
    }
}
