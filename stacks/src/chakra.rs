//! A step as execution traces of MLCommons Chakra, a file per rank, which other simulators play (ASTRA-sim reads them as they are).
//!
//! A task of a rank is a node. What comes before it on its stream is a control dependency, what its graph asks for a data dependency. A message
//! is two nodes, one at each end, and a hop around a ring as well. Computation has its expected time, its operations and its bytes. Exchanges have bytes
//! alone: how long they take is the other simulator's to say. Units: microseconds, bytes.

mod nodes;
mod wire;

use train::lower::training::{Fold, lower_folded};

use crate::export::{ExportError, File, Planned, Target, Words, training};
use nodes::Unsayable;

const NAME: &str = "chakra";
/// The version that the first message of a trace names.
const SCHEMA: &str = "0.0.4";
const VERSION: &str = "Chakra's et_def.proto, schema 0.0.4";
/// Ranks that get a file each.
const RANKS_MAX: u32 = 2048;

/// The target.
pub const TARGET: Target = Target::new(NAME, "execution traces of a step, a file per rank", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let refused = |what: String| ExportError::NotExpressible { target: NAME, what: vec![what] };
    let Planned::Training { cost, .. } = planned else { unreachable!("it is a training step") };
    let n_ranks = problem.layout.n_ranks();
    if n_ranks > RANKS_MAX {
        return Err(refused(format!("{n_ranks} ranks with a file each; {RANKS_MAX} are the most")));
    }
    let graph = lower_folded(problem, plan, 0, Fold::Nothing);
    let traces = nodes::traces(&graph, (&problem.model, *cost)).map_err(|why: Unsayable| refused(why.to_string()))?;
    let mut files: Vec<File> =
        traces.iter().map(|(rank, nodes)| File::new(&format!("step.{rank}.et"), wire::trace(SCHEMA, nodes))).collect();
    files.push(File::new("groups.json", format!("{:#}\n", groups(&graph))));
    files.push(words.beside(VERSION));
    Ok(files)
}

/// Ranks of every group, by the name that nodes have for it.
fn groups(graph: &engine::TaskGraph) -> serde_json::Value {
    let mut named = serde_json::Map::new();
    for (index, group) in graph.groups.iter().enumerate() {
        named.insert(index.to_string(), group.iter().map(|rank| rank.0).collect());
    }
    named.into()
}
