//! One model over a pool of nodes that hold ranges of its layers: every request travels a pipeline of its own.
//!
//! A node holds layers `first..end` and works through a batch layer by layer; a hop carries the activations of a request from node to node.
//! A request takes its path once, with its prompt; each token that it generates follows the same path, because keys and values lie there.
//! Batches are first in, first out within limits. `fleet/run/stations.rs` plays them in the loop of all fleets, `path.rs` the seam of how paths are chosen (a file each for
//! Helix's flow weights, SWARM's priorities and random choice), `curve.rs` the time of a layer. Source: Helix (arXiv:2406.01566, section 5)
//! and its public simulator. Not modelled: a node whose cache is full evicts nothing; the fullest moment is reported instead.
//!
//! Units: nanoseconds inside, seconds and bytes per second at the border, tokens; a cache is counted in tokens times layers.

pub mod curve;
pub mod path;
#[cfg(test)]
mod tests;

use hw::{Span, Time};

use crate::request::Request;
pub use curve::Curve;

/// How fast a layer is on a type of node, and what fits beside the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeType {
    /// Name, for messages and for pipelines of one type.
    pub name: String,
    /// Seconds of one layer by prompt tokens of a batch.
    pub prompt: Curve,
    /// Seconds of one layer by decoding requests of a batch.
    pub decode: Curve,
    /// What fits with so many layers, in rising order of layers.
    pub rooms: Vec<Room>,
    /// Layers that a plan may give to a node.
    pub layers_max: u32,
    /// Layers that such a node typically gets: the planner's guess of how long the rest of a pipeline takes.
    pub layers_typical: u32,
}

/// What fits beside some layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Layers on the node.
    pub layers: u32,
    /// Tokens whose keys and values fit for each layer.
    pub kv_tokens: u64,
    /// Prompts of a batch at most.
    pub prompts: u32,
    /// Decoding requests of a batch at most.
    pub decodes: u32,
}

impl NodeType {
    /// What fits with so many layers: between rows the cache (tokens times layers) is linear and the limits are those of the row below;
    /// `None` beyond the last row.
    pub fn room(&self, layers: u32) -> Option<Room> {
        let above = self.rooms.iter().position(|room| room.layers >= layers)?;
        let high = self.rooms[above];
        if high.layers == layers || above == 0 {
            return Some(Room { layers, ..high });
        }
        let low = self.rooms[above - 1];
        let cache = |room: Room| room.kv_tokens * u64::from(room.layers);
        let (part, whole) = (u64::from(layers - low.layers), u64::from(high.layers - low.layers));
        // Weights that are added take from the cache, so it falls; the sum stays above both terms.
        let between = (cache(low) * (whole - part) + cache(high) * part) / whole;
        Some(Room { layers, kv_tokens: between / u64::from(layers), ..low })
    }
}

/// A machine with its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name, for messages.
    pub name: String,
    /// First layer.
    pub first: u32,
    /// One beyond the last layer; above `first`.
    pub end: u32,
    /// Seconds of one layer by prompt tokens of a batch.
    pub prompt: Curve,
    /// Seconds of one layer by decoding requests of a batch.
    pub decode: Curve,
    /// Limits of a batch, and the cache.
    pub room: Room,
}

impl Node {
    /// Layers that it holds.
    pub const fn n_layers(&self) -> u32 {
        self.end - self.first
    }

    /// Tokens times layers of its cache.
    pub fn cache(&self) -> u64 {
        self.room.kv_tokens * u64::from(self.n_layers())
    }
}

/// A way from node to node, or from the coordinator to a node and back.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// Sender; `None` is the coordinator.
    pub from: Option<usize>,
    /// Receiver; `None` is the coordinator.
    pub to: Option<usize>,
    /// Planned tokens per second; 1 where nothing was planned.
    pub weight: f64,
    /// Bytes per second of a message.
    pub bytes_per_s: f64,
    /// Time that a message travels after it left.
    pub latency: Span,
}

/// Nodes and the ways between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Layers of the model.
    pub n_layers: u32,
    /// Nodes with their layers.
    pub nodes: Vec<Node>,
    /// Ways: from the coordinator to layer 0, onwards to the next layer, from the last layer back.
    pub hops: Vec<Hop>,
    /// Bytes of a token's activations between nodes.
    pub activation_bytes: f64,
    /// Bytes of a token's identity.
    pub token_bytes: f64,
    /// Bytes per second at which a node puts received activations together and into its GPU before its first layer.
    pub copy_bytes_per_s: f64,
    /// Tokens of a prompt batch per prompt that it may hold.
    pub prompt_tokens_max: u32,
    /// Cached tokens of a decode batch per request that it may hold.
    pub context_per_decode: u32,
}

impl Pool {
    /// Ways out of a node, or of the coordinator.
    pub fn ways(&self, from: Option<usize>) -> Vec<usize> {
        (0..self.hops.len()).filter(|&hop| self.hops[hop].from == from).collect()
    }

    /// Layer at which a request enters a node that it reaches by a hop.
    pub(crate) fn entry(&self, hop: &Hop, to: usize) -> u32 {
        hop.from.map_or(0, |from| self.nodes[from].end).max(self.nodes[to].first)
    }

    /// Bytes of a token's message over a hop: its identity, and between nodes its activations.
    pub const fn message_bytes(&self, hop: &Hop) -> f64 {
        let inner = if hop.from.is_some() && hop.to.is_some() { self.activation_bytes } else { 0.0 };
        self.token_bytes + inner
    }

    /// Layers that a request does on the node at the end of a hop; none at the coordinator.
    pub fn layers_done(&self, hop: usize) -> u64 {
        let hop = &self.hops[hop];
        hop.to.map_or(0, |to| u64::from(self.nodes[to].end - self.entry(hop, to)))
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many at a time: one that ends is replaced.
    Closed {
        /// Requests.
        in_flight: u32,
    },
    /// As long as the fullest layer's cache is expected to be below a share: asked whenever a prompt or a request ends. One without a path
    /// is put back, for there are others.
    Filled {
        /// Requests at the beginning.
        start: u32,
        /// Share of the cache.
        level_ratio: f64,
    },
    /// As they arrive.
    Open,
}

/// Time between requests at the beginning, and before one that replaces another.
pub const PAUSE: Span = Span::from_ns(100_000_000);

/// What is served, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Run<'r> {
    /// Requests in order; taken again from the first where a closed load needs more.
    pub requests: &'r [Request],
    /// When they come.
    pub load: Load,
    /// What ends before is not counted.
    pub warm_up: Time,
    /// When the run ends.
    pub until: Time,
}

/// What went through a pool in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Tokens of prompts that came back.
    pub prompt_tokens: u64,
    /// Generated tokens that came back, without the first of each request.
    pub decode_tokens: u64,
    /// Nanoseconds that requests had a path, of all together: over the span, the mean number in flight.
    pub in_flight_ns: u64,
}

impl Passed {
    /// Prompt and generated tokens.
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens + self.decode_tokens
    }

    pub(crate) fn add(&mut self, is_prompt: bool, tokens: u32) {
        *(if is_prompt { &mut self.prompt_tokens } else { &mut self.decode_tokens }) += u64::from(tokens);
    }
}

/// When a client of an open load had its first token, and its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// First token.
    pub first: Time,
    /// Last token.
    pub last: Time,
}

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests of an open load in order; `None` for those that did not end.
    pub answers: Vec<Option<Answer>>,
    /// Requests that got a path.
    pub n_issued: u64,
    /// Requests that ended.
    pub n_ended: u64,
    /// Requests that found no path yet.
    pub n_waiting: u64,
    /// Times that a filled load tried a request, found no path, and put it back.
    pub n_put_back: u64,
    /// Prompt tokens counted.
    pub prompt_tokens: u64,
    /// Generated tokens counted, without the first of each request, which is the prompt's.
    pub decode_tokens: u64,
    /// All that was done from the start on, counted or not.
    pub from_start: Passed,
    /// Of what is counted the rounds that began after the warm-up too, so that all work on them lies in the counted time.
    pub within: Passed,
    /// From issue to first token, nanoseconds, of each counted prompt.
    pub prompt_ns: Vec<u64>,
    /// From token to token, nanoseconds, of each counted generated token.
    pub decode_ns: Vec<u64>,
    /// Nanoseconds at work, of every node.
    pub busy_ns: Vec<u64>,
    /// Most tokens times layers in the cache, of every node.
    pub kv_peak: Vec<u64>,
    /// Tokens over every hop.
    pub hop_tokens: Vec<u64>,
    /// Stations lost.
    pub n_outages: u64,
    /// Times that a request lost its path and went again.
    pub n_retried: u64,
    /// Tokens that were computed again after a loss.
    pub recomputed_tokens: u64,
}
