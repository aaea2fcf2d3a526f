//! Reads `kind = "deployment"`: the objective decides which sections there are besides the inventory.

mod given;
pub mod goodput;
mod inventory;
mod load;
mod placements;
mod replica;
pub mod throughput;
pub mod time;

use std::path::Path;

use serve::lengths::{self, Lengths};

use crate::kinds::{Kind, boxed};
use crate::scenario::Overrides;
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section};

/// What is to be best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Given work ends soonest within a budget of dollars per hour.
    Time,
    /// Most requests per second of which a share meets limits.
    Goodput,
    /// Most tokens per second.
    Throughput,
}

/// Words of `objective.is`, in the order of `Objective`.
const WORDS: [&str; 3] = ["time", "goodput", "throughput"];
const OBJECTIVES: [Objective; 3] = [Objective::Time, Objective::Goodput, Objective::Throughput];

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Box<dyn Kind>> {
    let word = reader.peek_in("objective", "is").map_or_else(String::new, |(word, _)| word);
    // A word that does not exist is found where the section is read, as that of the first objective.
    let known = WORDS.iter().position(|known| word.trim_matches('"') == *known);
    let objective = known.map_or(Objective::Time, |at| OBJECTIVES[at]);
    match objective {
        Objective::Time => boxed(time::read(reader, source, folder, overrides)),
        Objective::Goodput => boxed(goodput::read(reader, source, folder, overrides)),
        Objective::Throughput => boxed(throughput::read(reader, source, folder, overrides)),
    }
}

/// Takes `objective.is` out of its section.
fn take_objective(section: &mut Section<'_>) {
    if section.has("is") {
        section.word("is", 0, &WORDS);
    } else {
        section.missing("is", "`time`, `goodput` or `throughput`");
    }
}

/// A table of request lengths by name; a finding where there is none.
pub fn lengths_table(section: &mut Section<'_>) -> Option<&'static Lengths> {
    let names: Vec<&str> = lengths::names().collect();
    section.needs("lengths", &format!("name a table ({})", names.join(", ")));
    section.known("lengths", (Code::UnknownLengths, "table of lengths"), lengths::names, lengths::named)
}
