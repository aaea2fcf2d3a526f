//! A deployment of parts of the layers as the stations that the request loop plays.
//!
//! Weights of the ways are the shares of the routes that take them; where no route is given, every way is as good as another and the
//! choice of paths decides. What a station does not do is refused, not ignored. Units as in `deployment.rs`.

use hw::{Seconds, Span};

use super::lower::Unplayable;
use super::{Deployment, Link, Replica};
use crate::pool::{Curve, Hop, Node, Pool, Room};
use crate::replica::Role;

/// Batching of a station: whole rounds of requests, first in, first out, through its layers.
pub const STATION_BATCHER: &str = "layers-fifo";

/// Seconds of one layer of a station.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTimes {
    /// By prompt tokens of a batch.
    pub prompt: Curve,
    /// By decoding requests of a batch.
    pub decode: Curve,
}

/// What messages between stations weigh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Messages {
    /// Bytes of a token's activations.
    pub activation_bytes: f64,
    /// Bytes of a token's identity.
    pub token_bytes: f64,
    /// Bytes per second at which a station puts received activations together and into its GPU.
    pub copy_bytes_per_s: f64,
}

/// The stations of a deployment, with the times of each.
///
/// # Errors
/// Says what stations do not do.
pub fn stations(deployment: &Deployment, times: Vec<LayerTimes>, messages: Messages) -> Result<Pool, Unplayable> {
    let (n_tables, n_replicas) = (times.len(), deployment.replicas.len());
    if n_tables != n_replicas {
        return Err(Unplayable::Tables { n_tables, n_replicas });
    }
    let [first, ..] = &deployment.replicas[..] else { return Err(Unplayable::NoReplica) };
    let of_batch = limits(first).ok_or(Unplayable::NotAtStation(0, "batches without limits"))?;
    let mut nodes = Vec::new();
    for (at, (replica, times)) in deployment.replicas.iter().zip(times).enumerate() {
        refuse(at, replica)?;
        if limits(replica) != Some(of_batch) {
            return Err(Unplayable::NotAtStation(
                at,
                "limits per prompt or per request that differ from the first one's",
            ));
        }
        nodes.push(node(replica, times));
    }
    let mut hops = Vec::new();
    for (at, link) in deployment.links.iter().enumerate() {
        hops.push(hop(deployment, at, link)?);
    }
    let (prompt_tokens_max, context_per_decode) = of_batch;
    Ok(Pool {
        n_layers: deployment.n_layers,
        nodes,
        hops,
        activation_bytes: messages.activation_bytes,
        token_bytes: messages.token_bytes,
        copy_bytes_per_s: messages.copy_bytes_per_s,
        prompt_tokens_max,
        context_per_decode,
    })
}

/// Tokens of a batch per prompt that it may hold, and cached tokens per decoding request.
fn limits(replica: &Replica) -> Option<(u32, u32)> {
    let options = &replica.engine;
    let context = options.batch_context_max? / u64::from(options.sequences_max.max(1));
    Some((options.tokens_max / options.prompts_max?.max(1), u32::try_from(context).unwrap_or(u32::MAX)))
}

fn refuse(at: usize, replica: &Replica) -> Result<(), Unplayable> {
    let options = &replica.engine;
    let found = [
        (replica.stages.len() != 1, "several stages"),
        (replica.copies != 1, "copies"),
        (replica.role != Role::Both, "only prompts or only tokens"),
        (options.batcher != STATION_BATCHER, "another batching policy than `layers-fifo`"),
        (
            options.prefix_cache,
            "kept prefixes: keys and values of a prefix lie on one path, and a request may get another",
        ),
        (options.context_max.is_some(), "a longest request"),
        (options.watermark_blocks > 0, "blocks that stay free"),
    ];
    match found.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err(Unplayable::NotAtStation(at, why)),
        None => Ok(()),
    }
}

fn node(replica: &Replica, times: LayerTimes) -> Node {
    let (layers, options) = (replica.layers(), &replica.engine);
    let room = Room {
        layers: layers.n(),
        kv_tokens: options.kv_tokens,
        prompts: options.prompts_max.unwrap_or(u32::MAX),
        decodes: options.sequences_max,
    };
    let LayerTimes { prompt, decode } = times;
    Node { name: replica.name.clone(), first: layers.first, end: layers.end, prompt, decode, room }
}

fn hop(deployment: &Deployment, at: usize, link: &Link) -> Result<Hop, Unplayable> {
    let Some(bytes_per_s) = link.bytes_per_s else { return Err(Unplayable::NotBetweenStations(at, "no limit")) };
    if link.wire.is_some() {
        return Err(Unplayable::NotBetweenStations(at, "a wire that others share"));
    }
    let is_plain = (link.wire_ratio - 1.0).abs() < f64::EPSILON && link.pack_s_per_token <= 0.0;
    if !is_plain {
        return Err(Unplayable::NotBetweenStations(at, "packed messages"));
    }
    Ok(Hop {
        from: link.from.map(|from| from as usize),
        to: link.to.map(|to| to as usize),
        weight: weight(deployment, link),
        bytes_per_s,
        latency: Span::from_seconds(Seconds::new(link.latency_s)),
    })
}

/// Share of the requests that go over a link; 1 where nothing was planned.
fn weight(deployment: &Deployment, link: &Link) -> f64 {
    if deployment.routes.is_empty() {
        return 1.0;
    }
    let mut sum = 0.0;
    for route in &deployment.routes {
        let ends: Vec<Option<u32>> =
            std::iter::once(None).chain(route.replicas.iter().copied().map(Some)).chain([None]).collect();
        if ends.windows(2).any(|pair| (pair[0], pair[1]) == (link.from, link.to)) {
            sum += route.share_ratio;
        }
    }
    sum
}
