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

use crate::Overrides;
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

/// A checked question of each objective.
pub enum Asked {
    /// What to rent so that work ends soonest.
    Time(time::Rental),
    /// What to rent or use so that most requests meet limits.
    Goodput(goodput::Goodput),
    /// How a model lies on given GPUs so that most tokens pass.
    Throughput(throughput::Throughput),
}

/// Words of `objective.is`, in the order of `Objective`.
const WORDS: [&str; 3] = ["time", "goodput", "throughput"];
const OBJECTIVES: [Objective; 3] = [Objective::Time, Objective::Goodput, Objective::Throughput];

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Asked> {
    let word = reader.peek_in("objective", "is").map_or_else(String::new, |(word, _)| word);
    // A word that does not exist is found where the section is read, as that of the first objective.
    let known = WORDS.iter().position(|known| word.trim_matches('"') == *known);
    let objective = known.map_or(Objective::Time, |at| OBJECTIVES[at]);
    match objective {
        Objective::Time => time::read(reader, source, folder, overrides).map(Asked::Time),
        Objective::Goodput => goodput::read(reader, source, folder, overrides).map(Asked::Goodput),
        Objective::Throughput => throughput::read(reader, source, folder, overrides).map(Asked::Throughput),
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
