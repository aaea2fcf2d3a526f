//! A pool of real nodes: the cluster that is planned on, and what the simulator plays of a placement.
//!
//! Links: nodes of a region have one bandwidth and latency, nodes of two regions another; the coordinator sits in region 0. A hop gets the
//! link's bandwidth, or the part of either end's network card that the planned flow gives it. Units: bytes per second, seconds, tokens.

use hw::Seconds;
use serve::deployment::{self, Deployment, EngineOptions, LayerTimes, Messages, Route, STATION_BATCHER};
use serve::fleet::dynamics::Failures;
use serve::pool::{NodeType, Pool};
use serve::replica::{PromptRank, Role};

use super::flow::goes_on;
use super::routes::routes;
use super::typical::{self, Typical};
use super::{Flow, FlowProblem, HandOver, Node, Range};
use crate::deploy::RentalError;
use crate::deploy::inventory::{Inventory, Link, Offer};

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
    /// Tensor-parallel GPUs of every node.
    pub tensor: u32,
    /// Host of every node, and bytes per second between nodes of it; empty where each node has a host of its own.
    pub hosts: Vec<(usize, f64)>,
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
        let link = |a: usize, b: usize| self.link(Some(a), Some(b)).bytes_per_s / self.activation_bytes;
        FlowProblem {
            n_layers: self.n_layers,
            nodes: self.nodes().map(node).collect(),
            links: self.nodes().map(|a| self.nodes().map(|b| link(a, b)).collect()).collect(),
            border: self.inventory.network.coordinator.unwrap_or(self.inventory.network.within).bytes_per_s
                / TOKEN_BYTES,
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
    pub fn type_of(&self, node: usize) -> usize {
        let name = &self.inventory.offers[node].name;
        self.types.iter().position(|of| of.name == *name).expect("every node has one of the types")
    }

    /// The link between two nodes, or between a node and the coordinator.
    fn link(&self, a: Option<usize>, b: Option<usize>) -> Link {
        let region = |node: Option<usize>| node.map_or(0, |node| self.inventory.offers[node].region);
        let network = self.inventory.network;
        let host = |node: Option<usize>| self.hosts.get(node?);
        if let Some((a, b)) = host(a).zip(host(b)).filter(|(a, b)| a.0 == b.0) {
            return Link { bytes_per_s: a.1.min(b.1), ..network.within };
        }
        if let Some(link) = network.coordinator.filter(|_| a.is_none() || b.is_none()) {
            return link;
        }
        if region(a) == region(b) { network.within } else { network.between }
    }

    /// The machines of a deployment: a node each.
    pub fn machines(&self) -> Vec<deployment::Machine> {
        let machine = |offer: &Offer| deployment::Machine {
            name: offer.name.clone(),
            gpu: offer.gpu.as_ref().map_or(&offer.name, |gpu| &gpu.name).clone(),
            n_gpus: self.tensor,
            gpus_per_node: self.tensor,
            memory: offer.gpu.as_ref().map(|gpu| gpu.memory),
            ..offer.terms()
        };
        self.inventory.offers.iter().map(machine).collect()
    }

    /// A placement as a deployment: a station for each node that holds layers and is on a way over all of them; with a planned flow only
    /// links that carry some, and routes with their shares.
    ///
    /// # Errors
    /// When a range is longer than its node can hold, or no way leads over all layers.
    pub fn deployment(&self, model: &str, ranges: &[Range], flow: Option<&Flow>) -> Result<Deployment, RentalError> {
        let hops = self.useful_hops(ranges, flow);
        let mut held: Vec<usize> = hops.iter().filter_map(|hop| hop.0).collect();
        held.sort_unstable();
        held.dedup();
        if held.is_empty() {
            return Err(RentalError::Infeasible("no pipeline has all layers".to_owned()));
        }
        let at = |node: usize| small(held.binary_search(&node).expect("a node on a way"));
        let replicas = held.iter().map(|&node| self.station(node, ranges[node]));
        let link = |&(from, to, weight): &Hop| {
            let network = self.link(from, to);
            let of_card = card_ratio(&hops, (from, to, weight));
            let card = self.inventory.network.card_bytes_per_s * of_card;
            deployment::Link {
                from: from.map(at),
                to: to.map(at),
                bytes_per_s: Some(network.bytes_per_s.min(card)),
                latency_s: network.latency_s,
                wire: None,
                wire_ratio: 1.0,
                pack_s_per_token: 0.0,
            }
        };
        let planned = flow.map_or_else(Vec::new, routes);
        let route = |(nodes, share_ratio): (Vec<usize>, f64)| Route {
            class: 0,
            replicas: nodes.into_iter().map(at).collect(),
            share_ratio,
        };
        Ok(Deployment {
            replicas: replicas.collect::<Result<_, _>>()?,
            links: hops.iter().map(link).collect(),
            routes: planned.into_iter().map(route).collect(),
            ..Deployment::new(model, self.n_layers, self.machines())
        })
    }

    /// A node with its layers as a station.
    fn station(&self, node: usize, range: Range) -> Result<deployment::Replica, RentalError> {
        let of = &self.types[self.type_of(node)];
        let n_layers = range.end - range.first;
        let Some(room) = of.room(n_layers) else {
            let name = &of.name;
            return Err(RentalError::Infeasible(format!("{n_layers} layers do not fit a node of type `{name}`")));
        };
        let layers = deployment::Range::new(range.first, n_layers);
        let gpus = deployment::Range::new(0, self.tensor);
        Ok(deployment::Replica {
            name: format!("{node} ({})", of.name),
            copies: 1,
            role: Role::Both,
            stages: vec![deployment::Stage {
                machine: small(node),
                gpus,
                tensor: self.tensor,
                ffn_gpus: 0,
                on_host: None,
                layers,
            }],
            engine: EngineOptions {
                batcher: STATION_BATCHER.to_owned(),
                sequences_max: room.decodes,
                tokens_max: self.prompt_tokens_max.saturating_mul(room.prompts),
                context_max: None,
                prompts_max: Some(room.prompts),
                batch_context_max: Some(u64::from(self.context_per_decode) * u64::from(room.decodes)),
                block_tokens: 1,
                kv_tokens: room.kv_tokens,
                watermark_blocks: 0,
                prefix_cache: false,
                recv_interval: std::num::NonZeroU32::MIN,
                batch_wait: None,
                capacity_policy: serve::replica::CapacityPolicy::MaxUtilization,
                prompt_rank: PromptRank::Even,
            },
        })
    }

    /// What the loop plays of a deployment on these machines.
    ///
    /// # Errors
    /// Says what stations do not do.
    pub fn stations(&self, placed: &Deployment) -> Result<Pool, RentalError> {
        let times = |replica: &deployment::Replica| {
            let node = replica.stages.first().map_or(0, |stage| stage.machine as usize);
            let of = &self.types[self.type_of(node)];
            LayerTimes { prompt: of.prompt.clone(), decode: of.decode.clone() }
        };
        let messages = Messages {
            activation_bytes: self.activation_bytes,
            token_bytes: TOKEN_BYTES,
            copy_bytes_per_s: self.copy_bytes_per_s,
        };
        let times = placed.replicas.iter().map(times).collect();
        deployment::stations(placed, times, messages).map_err(|why| RentalError::Refused(why.to_string()))
    }

    /// Whether some machine is lost at random.
    pub fn has_losses(&self) -> bool {
        self.inventory.offers.iter().any(|offer| offer.losses.is_some())
    }

    /// How the stations of a deployment fail.
    pub fn failures(&self, placed: &Deployment, seed: u64) -> Vec<Option<Failures>> {
        let of_station = |replica: &deployment::Replica| {
            let losses = self.inventory.offers[replica.stages.first()?.machine as usize].losses?;
            Some(Failures { mtbf: Seconds::new(losses.mtbf_s), mttr: Seconds::new(losses.mttr_s), seed })
        };
        placed.replicas.iter().map(of_station).collect()
    }

    /// What the loop plays of a placement.
    ///
    /// # Errors
    /// As `deployment`.
    pub fn pool(&self, ranges: &[Range], flow: Option<&Flow>) -> Result<Pool, RentalError> {
        self.stations(&self.deployment("", ranges, flow)?)
    }

    /// Ways between nodes that hold layers, and from and to the coordinator, with what is planned for each; only those that are on a way
    /// over all layers.
    fn useful_hops(&self, ranges: &[Range], flow: Option<&Flow>) -> Vec<Hop> {
        let weight = |from: Option<usize>, to: Option<usize>| {
            let planned =
                |flow: &Flow| flow.edges.iter().find(|edge| (edge.0, edge.1) == (from, to)).map_or(0.0, |edge| edge.2);
            flow.map_or(1.0, planned)
        };
        let held: Vec<usize> = (0..ranges.len()).filter(|&i| !ranges[i].is_empty()).collect();
        let mut hops: Vec<Hop> = Vec::new();
        for &i in &held {
            if ranges[i].first == 0 {
                hops.push((None, Some(i), weight(None, Some(i))));
            }
            if ranges[i].end == self.n_layers {
                hops.push((Some(i), None, weight(Some(i), None)));
            }
        }
        for &i in &held {
            let onward = held.iter().filter(|&&j| i != j && goes_on(self.hand_over, ranges[i], ranges[j]));
            hops.extend(onward.map(|&j| (Some(i), Some(j), weight(Some(i), Some(j)))));
        }
        hops.retain(|hop| hop.2 > 0.0);
        // Whoever takes a way that leads nowhere, or that nobody comes to, is left out, and then those before and behind it.
        loop {
            let comes = |node: Option<usize>| node.is_none() || hops.iter().any(|hop| hop.1 == node);
            let leaves = |node: Option<usize>| node.is_none() || hops.iter().any(|hop| hop.0 == node);
            let kept: Vec<Hop> = hops.iter().copied().filter(|hop| comes(hop.0) && leaves(hop.1)).collect();
            if kept.len() == hops.len() {
                return hops;
            }
            hops = kept;
        }
    }
}

/// From, to, and what is planned; `None` is the coordinator.
type Hop = (Option<usize>, Option<usize>, f64);

/// Part of either end's card that a hop has, the smaller one.
fn card_ratio(hops: &[Hop], (from, to, weight): Hop) -> f64 {
    let out: f64 = hops.iter().filter(|hop| hop.0 == from).map(|hop| hop.2).sum();
    let into: f64 = hops.iter().filter(|hop| hop.1 == to).map(|hop| hop.2).sum();
    (weight / out).min(weight / into)
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 nodes")
}
