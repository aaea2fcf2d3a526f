//! Reads `kind = "deployment"`: the objective decides which sections there are besides the inventory.

mod given;
pub mod goodput;
mod inventory;
mod load;
mod objective;
mod placements;
mod replica;
pub mod throughput;
pub mod time;
mod working;

use std::path::Path;

use serve::batcher::BATCHERS;
use serve::lengths::{self, Lengths};

use crate::Overrides;
use input::diagnostic::{Code, Finding, Source};
use input::reader::{Reader, Section};

/// A checked question of each objective.
pub enum Asked {
    /// What to rent for given work.
    Rent(Box<time::Rental>),
    /// What to rent or use so that most requests meet limits.
    Goodput(Box<goodput::Goodput>),
    /// How a model lies on given GPUs so that most tokens pass.
    Throughput(Box<throughput::Throughput>),
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Asked> {
    capacity(reader);
    match objective::objective(reader.section("objective")) {
        objective::Asked::Rent(objective, limits) => {
            time::read(reader, (objective, &limits), source, folder, overrides).map(Box::new).map(Asked::Rent)
        }
        objective::Asked::Goodput(targets) => {
            goodput::read(reader, &targets, source, folder, overrides).map(Box::new).map(Asked::Goodput)
        }
        objective::Asked::Throughput => {
            throughput::read(reader, source, folder, overrides).map(Box::new).map(Asked::Throughput)
        }
    }
}

/// `[capacity]` tries fleets under a batching policy; a policy of deployments decides its fleet by itself.
fn capacity(reader: &mut Reader<'_>) {
    if !reader.has("capacity") {
        return;
    }
    let at = reader.section("capacity").at();
    let takers: Vec<&str> = BATCHERS.iter().map(|batcher| batcher.name()).collect();
    let what = "no policy of deployments takes `capacity`: each decides by itself what runs";
    let help = format!("policies of `kind = \"serving\"` take it: {}", takers.join(", "));
    reader.find(Finding::error(Code::AskedElsewhere, at, what).label("asked by kind `serving`").help(help));
}

/// A table of request lengths by name; a finding where there is none.
pub fn lengths_table(section: &mut Section<'_>) -> Option<&'static Lengths> {
    let names: Vec<&str> = lengths::names().collect();
    section.needs("lengths", &format!("name a table ({})", names.join(", ")));
    section.known("lengths", (Code::UnknownLengths, "table of lengths"), lengths::names, lengths::named)
}
