//! `explain`: what a code of a finding means, with a wrong and a right example.

use super::{Failure, print};
use crate::cli::ExplainArgs;
use input::diagnostic::{Code, codes};

/// Runs the verb.
pub fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    if args.page {
        return print(&codes::page());
    }
    let Some(text) = &args.code else { return print(&codes::listed()) };
    let code: Code = text.parse().map_err(|why: String| {
        Failure::Input(format!("error[{}]: {why}\n  = `skrull-sim explain` lists all", Code::UnknownCode))
    })?;
    print(&codes::explained(code))
}
