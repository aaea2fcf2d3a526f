//! `schema`: the JSON schema of scenario files, for editors.

use super::{Failure, explain, print};
use crate::kinds;

/// Runs the verb.
pub fn schema(kind: Option<&str>) -> Result<(), Failure> {
    let schema = explain::keys().schema(kind, kinds::KINDS[0].name);
    print(&format!("{schema:#}\n"))
}
