//! Kind `graph`: training of graph neural networks: what to cache where, how to extract subgraphs, how to sample the past.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "graph",
    about: "training of graph neural networks: what to cache on which GPU, how to extract subgraphs, how to sample the past",
    read: |reader, source, folder, overrides| boxed(scenario::graph::read(reader, source, folder, overrides)),
};
