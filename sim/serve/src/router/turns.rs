//! Turns by weights: smooth weighted round robin (the rule of nginx's upstream module).
//!
//! Everybody gains its weight, whoever is owed most has the turn and pays the sum of all. So turns of the same one lie as far apart as its weight says, weights may
//! be any numbers, and after `n` turns each has its share of them to within one turn for two, and close to that for more. Who is away gains nothing.

/// What everybody is owed.
#[derive(Debug, Default)]
pub(super) struct Turns {
    owed: Vec<f64>,
}

impl Turns {
    /// Whose turn it is, of those with a weight above zero; the first among equals, `None` where nobody has one.
    pub(super) fn next(&mut self, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        let (mut most, mut sum): (Option<u32>, f64) = (None, 0.0);
        for (who, weight) in weights.filter(|(_, weight)| *weight > 0.0) {
            let at = who as usize;
            self.owed.resize(self.owed.len().max(at + 1), 0.0);
            self.owed[at] += weight;
            sum += weight;
            if most.is_none_or(|most| self.owed[at] > self.owed[most as usize]) {
                most = Some(who);
            }
        }
        if let Some(who) = most {
            self.owed[who as usize] -= sum;
        }
        most
    }
}
