//! Parts of a public configuration that neither time nor memory is given for here, so that a report can say what it leaves out.

use super::Model;

/// A part that is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unpriced {
    /// What it is, with the key that names it.
    pub what: String,
    /// Its parameters, as far as the configuration tells; 0 where nothing is known.
    pub parameters: u64,
}

impl Model {
    /// Parts that are left out, each with its share of the parameters of all that the configuration names, from 0 to 1. A share of 0 is one that
    /// the configuration does not tell.
    #[must_use]
    pub fn not_priced(&self) -> Vec<(&str, f64)> {
        let left_out: u64 = self.unpriced.iter().map(|part| part.parameters).sum();
        let whole = hw::Tokens(self.n_parameters() + left_out).as_f64();
        let share = |part: &Unpriced| hw::Tokens(part.parameters).as_f64() / whole;
        self.unpriced.iter().map(|part| (part.what.as_str(), share(part))).collect()
    }
}
