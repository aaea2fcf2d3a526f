//! The table of policies: one file each, one `mod` line and one row here.

use crate::policy::Policy;

/// Every policy.
pub static POLICIES: &[&dyn Policy] = &[];

/// A policy by name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.card().name == name)
}
