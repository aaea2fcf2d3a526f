//! A pool of real nodes: the cluster that is planned on, and what the simulator plays of a placement.
//!
//! Links: nodes of a region have one bandwidth and latency, nodes of two regions another; the coordinator sits in region 0. A hop gets the
//! link's bandwidth, or the part of either end's network card that the planned flow gives it. Units: bytes per second, seconds, tokens.

use hw::{Seconds, Span};
use serve::pool::{Hop, Node as Station, NodeType, Pool};

use super::flow::goes_on;
use super::typical::{self, Typical};
use super::{Flow, FlowProblem, HandOver, Node, Range};
use crate::deploy::RentalError;
use crate::deploy::inventory::{Inventory, Link};

/// Machines, links, and the model that they serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    /// Layers of the model.
    pub n_layers: u32,
    /// Bytes of a token's activations.
    pub activation_bytes: f64,
    /// Types of nodes.
    pub types: Vec<NodeType>,
    /// Nodes, a row each, of these types by name; the coordinator sits in region 0.
    pub inventory: Inventory,
    /// What batches are planned for.
    pub typical: Typical,
    /// How a token may go on.
    pub hand_over: HandOver,
    /// Bytes per second at which activations are put together and into a GPU.
    pub copy_bytes_per_s: f64,
    /// Tokens of a prompt batch per prompt.
    pub prompt_tokens_max: u32,
    /// Cached tokens of a decode batch per request.
    pub context_per_decode: u32,
}

/// Bytes of a token's identity; the artefact's.
pub(super) const TOKEN_BYTES: f64 = 2.0;

/// How many layers a node may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// As its type's plan allows, which leaves room for caches.
    Planned,
    /// As fit.
    Full,
}

impl Machines {
    /// The cluster that placements are planned on.
    #[must_use]
    pub fn cluster(&self, fill: Fill) -> FlowProblem {
        let count = |of: usize| self.nodes().filter(|node| self.type_of(*node) == of).count();
        let n_nodes: Vec<u32> =
            (0..self.types.len()).map(|of| u32::try_from(count(of)).expect("fewer than 2^32 nodes")).collect();
        let card = self.inventory.network.card_bytes_per_s / self.activation_bytes;
        let rates = typical::rates(&self.types, &n_nodes, self.n_layers, self.typical);
        let node = |node: usize| {
            let of = &self.types[self.type_of(node)];
            let most = if fill == Fill::Planned { of.layers_max as usize } else { usize::MAX };
            let rates = rates[self.type_of(node)].iter().take(most).map(|rate| rate.min(card));
            Node { name: of.name.clone(), tokens_per_s: rates.collect() }
        };
        let link = |a: usize, b: usize| self.inventory.link(a, b).bytes_per_s / self.activation_bytes;
        FlowProblem {
            n_layers: self.n_layers,
            nodes: self.nodes().map(node).collect(),
            links: self.nodes().map(|a| self.nodes().map(|b| link(a, b)).collect()).collect(),
            border: self.inventory.network.within.bytes_per_s / TOKEN_BYTES,
            hand_over: self.hand_over,
        }
    }

    /// Positions of the nodes.
    pub(super) fn nodes(&self) -> std::ops::Range<usize> {
        0..self.inventory.offers.len()
    }

    /// Position of a node's type.
    ///
    /// # Panics
    /// When the node has none of the types.
    #[must_use]
    pub fn type_of(&self, node: usize) -> usize {
        let name = &self.inventory.offers[node].name;
        self.types.iter().position(|of| of.name == *name).expect("every node has one of the types")
    }

    /// The link between two nodes, or between a node and the coordinator.
    fn link(&self, a: Option<usize>, b: Option<usize>) -> Link {
        let region = |node: Option<usize>| node.map_or(0, |node| self.inventory.offers[node].region);
        let network = self.inventory.network;
        if region(a) == region(b) { network.within } else { network.between }
    }

    /// What the simulator plays: nodes that hold layers and hops between them; with a planned flow only hops that carry some.
    ///
    /// # Errors
    /// When a range is longer than its node can hold, or no hop leads on.
    pub fn pool(&self, ranges: &[Range], flow: Option<&Flow>) -> Result<Pool, RentalError> {
        let held: Vec<usize> = (0..ranges.len()).filter(|&i| !ranges[i].is_empty()).collect();
        let station = |&i: &usize| {
            let Range { first, end } = ranges[i];
            let of = &self.types[self.type_of(i)];
            let room = of.room(end - first).ok_or_else(|| {
                let (name, n) = (&of.name, end - first);
                RentalError::Infeasible(format!("{n} layers do not fit a node of type `{name}`"))
            })?;
            let name = format!("{i} ({})", of.name);
            Ok(Station { name, first, end, prompt: of.prompt.clone(), decode: of.decode.clone(), room })
        };
        let nodes = held.iter().map(station).collect::<Result<Vec<_>, RentalError>>()?;
        let hops = self.hops(ranges, &held, flow);
        let reaches = |to: Option<usize>, from: Option<usize>| hops.iter().any(|hop| hop.to == to && hop.from == from);
        let ends = |i: usize| nodes[i].end == self.n_layers && reaches(None, Some(i));
        if !(0..nodes.len()).any(ends) || !hops.iter().any(|hop| hop.from.is_none()) {
            return Err(RentalError::Infeasible("no pipeline has all layers".to_owned()));
        }
        Ok(Pool {
            n_layers: self.n_layers,
            nodes,
            hops,
            activation_bytes: self.activation_bytes,
            token_bytes: TOKEN_BYTES,
            copy_bytes_per_s: self.copy_bytes_per_s,
            prompt_tokens_max: self.prompt_tokens_max,
            context_per_decode: self.context_per_decode,
        })
    }

    fn hops(&self, ranges: &[Range], held: &[usize], flow: Option<&Flow>) -> Vec<Hop> {
        let weight = |from: Option<usize>, to: Option<usize>| {
            let planned =
                |flow: &Flow| flow.edges.iter().find(|edge| (edge.0, edge.1) == (from, to)).map_or(0.0, |edge| edge.2);
            flow.map_or(1.0, planned)
        };
        let borders = |&i: &usize| {
            let first = (ranges[i].first == 0).then_some((None, Some(i)));
            let last = (ranges[i].end == self.n_layers).then_some((Some(i), None));
            first.into_iter().chain(last)
        };
        let pairs = held.iter().flat_map(|&i| held.iter().map(move |&j| (i, j)));
        let inner = pairs.filter(|&(i, j)| i != j && goes_on(self.hand_over, ranges[i], ranges[j]));
        let all = held.iter().flat_map(borders).chain(inner.map(|(i, j)| (Some(i), Some(j))));
        let all: Vec<(Option<usize>, Option<usize>, f64)> =
            all.map(|(a, b)| (a, b, weight(a, b))).filter(|hop| hop.2 > 0.0).collect();
        let at =
            |node: Option<usize>| node.map(|i| held.iter().position(|&known| known == i).expect("it holds layers"));
        let hop = |&(from, to, weight): &(Option<usize>, Option<usize>, f64)| {
            let link = self.link(from, to);
            let out: f64 = all.iter().filter(|hop| hop.0 == from).map(|hop| hop.2).sum();
            let into: f64 = all.iter().filter(|hop| hop.1 == to).map(|hop| hop.2).sum();
            let card = self.inventory.network.card_bytes_per_s * (weight / out).min(weight / into);
            Hop {
                from: at(from),
                to: at(to),
                weight,
                bytes_per_s: link.bytes_per_s.min(card),
                latency: Span::from_seconds(Seconds::new(link.latency_s)),
            }
        };
        all.iter().map(hop).collect()
    }
}
