//! `explain`: what a code of a finding means, with a wrong and a right example.

use std::path::Path;

use super::{Failure, print};
use crate::cli::ExplainArgs;
use crate::kinds;
use input::diagnostic::{Code, Source, codes, meant};
use input::keys::Keys;
use input::reader::seen::watch;
use reports::metrics;
use scenario::{self, Overrides};

/// Every key that reading scenarios asks for, the shipped ones and those that are wrong.
pub fn keys() -> Keys {
    let mut keys = Keys::default();
    for (name, text) in scenario::EMBEDDED.iter().chain(scenario::WRONG) {
        let source = Source { path: (*name).to_owned(), text: (*text).to_owned() };
        let (checked, seen) = watch(|| kinds::check(source, Path::new(""), &Overrides::default()));
        keys.add(kinds::word(text), seen, checked.scenario.is_none());
    }
    keys
}

/// Runs the verb.
pub fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    if args.page {
        return print(&codes::page());
    }
    if args.keys {
        return print(&keys().page());
    }
    if args.metrics {
        return print(&metrics::page());
    }
    let Some(text) = &args.code else { return print(&codes::listed()) };
    // No key begins as a code does.
    let is_code = text.trim_start_matches(['S', 's']).starts_with(|first: char| first.is_ascii_digit());
    let rows = if is_code { String::new() } else { keys().rows_of(text) + &metrics::explained(text) };
    if !rows.is_empty() {
        return print(&rows);
    }
    let code: Code = text.parse().map_err(|why: codes::NoCode| {
        let near = meant(text, metrics::TABLE.values().flat_map(|kind| kind.keys().map(String::as_str)));
        let near = if is_code { String::new() } else { near };
        Failure::Input(format!("error[{}]: {why}{near}\n  = `skrull-sim explain` lists all", Code::UnknownCode))
    })?;
    print(&codes::explained(code))
}
