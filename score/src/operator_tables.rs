//! Tables of operators that are scored whole: which one a text is, and what is predicted of it.

use crate::networks;
use crate::operators::{self, Predicted};
use crate::served::{self, Costs};
use crate::table::{Beside, Fault};

/// What is predicted of every operator, and what its device is called in the heading.
pub type Found = (Vec<Predicted>, &'static str);

/// Operators of a table; `None` where its header is of another one. `costs` are those of a serving engine.
pub fn read(text: &str, beside: &Beside<'_>, costs: &Costs<'_>) -> Option<Result<Found, Vec<Fault>>> {
    if let Some(found) = operators::read(text, beside) {
        return Some(found.map(|found| (operators::predict(&found), operators::LEFT_OUT)));
    }
    if let Some(found) = networks::read(text, beside) {
        return Some(found.map(|found| (networks::predict(&found), operators::LEFT_OUT)));
    }
    served::read(text).map(|found| found.map(|found| (served::predict(&found, costs), "card")))
}
