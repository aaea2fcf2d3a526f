//! How well a fit does on rows that it did not see. Ratios and shares, no units.

use serde::{Deserialize, Serialize};

use crate::cost::unusable::Unusable;

/// How well a fit does on rows that it did not see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residuals {
    /// Rows that were fitted.
    pub n_fit: usize,
    /// Rows that were held out.
    pub n_held_out: usize,
    /// Median of |predicted / measured − 1| over held-out rows.
    pub median_error: f64,
    /// 90 % quantile of the same.
    pub p90_error: f64,
    /// 5 % quantile of measured / predicted.
    pub low: f64,
    /// 95 % quantile of measured / predicted.
    pub high: f64,
}

impl Residuals {
    /// What is wrong with the quantiles, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        let (low, high) = (self.low, self.high);
        if (1e-6..=1.0).contains(&low) && (1.0..=1e6).contains(&high) {
            return Ok(());
        }
        Err(Unusable::Residuals { low, high })
    }
}
