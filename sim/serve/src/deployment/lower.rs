//! A deployment of plain replicas as the fleet that the request loop plays: a group for each replica, shares for the routers.
//!
//! What the loop would not heed is refused, not ignored. Units as in `deployment.rs`.

use thiserror::Error;

use super::{Deployment, EngineOptions, Link, Replica};
use crate::assignment::Assignment;
use crate::batcher::{self, Batcher};
use crate::fleet::{self, Fleet, Group};
use crate::replica::{Engine, Limits, Role, Spans};
use crate::step_cost::StepTable;

/// Why the loop cannot play a deployment as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Unplayable {
    /// Parts of the layers are played as stations.
    #[error("replica {0} has a part of the layers: such a deployment is played by its stations")]
    Station(usize),
    /// Plain replicas have the coordinator beside them.
    #[error("link {0} leads to the coordinator, which only stations have apart")]
    Coordinator(usize),
    /// Options of stations.
    #[error("replica {0} limits the prompts or the cached tokens of a batch, which only stations do")]
    OfStations(usize),
    /// Nothing serves.
    #[error("it has no replica")]
    NoReplica,
    /// What a station does not do.
    #[error("station {0} has {1}")]
    NotAtStation(usize, &'static str),
    /// What no message between stations does.
    #[error("link {0} between stations has {1}")]
    NotBetweenStations(usize, &'static str),
    /// A policy that does not exist.
    #[error("no batching policy is called `{0}`")]
    Batcher(String),
    /// Shares that depend on more than the loop knows.
    #[error("the way from prefill to decode replicas cannot differ by type of request")]
    OnwardByType,
    /// As many tables as replicas.
    #[error("{n_tables} tables of times for {n_replicas} replicas")]
    Tables { n_tables: usize, n_replicas: usize },
}

/// The fleet of a deployment, with the times of every replica; `kv_bytes_per_token` is what moves from prefill to decode replicas.
///
/// # Errors
/// Says what the loop would not heed.
pub fn fleet(deployment: &Deployment, tables: Vec<StepTable>, kv_bytes_per_token: f64) -> Result<Fleet, Unplayable> {
    let (n_tables, n_replicas) = (tables.len(), deployment.replicas.len());
    if n_tables != n_replicas {
        return Err(Unplayable::Tables { n_tables, n_replicas });
    }
    let whole = super::Range::new(0, deployment.n_layers);
    if let Some(at) = deployment.replicas.iter().position(|replica| replica.layers() != whole) {
        return Err(Unplayable::Station(at));
    }
    let replicas = deployment.replicas.iter().zip(tables).enumerate();
    let groups = replicas.map(|(at, (replica, table))| group(deployment, at, replica, table));
    let links = deployment.links.iter().enumerate().map(|(at, of)| link(at, of));
    let fleet = Fleet {
        groups: groups.collect::<Result<_, _>>()?,
        assignment: assignment(deployment)?,
        links: links.collect::<Result<_, _>>()?,
        ..Fleet::default()
    };
    Ok(fleet.handing_on(kv_bytes_per_token))
}

fn group(deployment: &Deployment, at: usize, replica: &Replica, table: StepTable) -> Result<Group, Unplayable> {
    let options = &replica.engine;
    if options.prompts_max.is_some() || options.batch_context_max.is_some() {
        return Err(Unplayable::OfStations(at));
    }
    let batcher: &'static dyn Batcher =
        batcher::named(&options.batcher).ok_or_else(|| Unplayable::Batcher(options.batcher.clone()))?;
    let engine = Engine { limits: limits(options), table, batcher, spans: Spans::Closed };
    Ok(Group {
        gpus_per_replica: replica.n_gpus(),
        usd_per_gpu_hour: usd_per_gpu_hour(deployment, replica),
        role: replica.role,
        ..Group::new(replica.name.clone(), engine, replica.copies)
    })
}

fn limits(options: &EngineOptions) -> Limits {
    let blocks = options.kv_tokens / u64::from(options.block_tokens.max(1));
    Limits {
        sequences_max: options.sequences_max,
        tokens_max: options.tokens_max,
        context_max: options.context_max.unwrap_or(u32::MAX),
        block_tokens: options.block_tokens,
        kv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        watermark_blocks: options.watermark_blocks,
        capacity_policy: options.capacity_policy,
        shares_prefixes: options.prefix_cache,
        recv_interval: options.recv_interval,
        gather: options.batch_wait,
        prompt_rank: options.prompt_rank,
        ..Limits::ROOMY
    }
}

/// Mean price of a replica's GPUs; `None` where one is unknown.
fn usd_per_gpu_hour(deployment: &Deployment, replica: &Replica) -> Option<f64> {
    let mut usd_per_hour = 0.0;
    for stage in &replica.stages {
        let machine = deployment.machines.get(stage.machine as usize)?;
        usd_per_hour += machine.usd_per_gpu_hour? * f64::from(stage.gpus.n());
    }
    Some(usd_per_hour / f64::from(replica.n_gpus().max(1)))
}

fn link(at: usize, link: &Link) -> Result<fleet::Link, Unplayable> {
    let (Some(from), Some(to)) = (link.from, link.to) else { return Err(Unplayable::Coordinator(at)) };
    Ok(fleet::Link {
        from: from as usize,
        to: to as usize,
        bytes_per_s: link.bytes_per_s,
        wire: link.wire,
        latency_s: link.latency_s,
        wire_ratio: link.wire_ratio,
        pack_s_per_token: link.pack_s_per_token,
    })
}

/// Shares of the first replica of a route by type, and of the decode replica by the one before it.
fn assignment(deployment: &Deployment) -> Result<Assignment, Unplayable> {
    if deployment.routes.is_empty() {
        return Ok(Assignment::default());
    }
    let n = deployment.replicas.len();
    let n_classes = deployment.routes.iter().map(|route| route.class as usize + 1).max().unwrap_or(1);
    let is_split = deployment.replicas.iter().any(|replica| replica.role == Role::Prefill);
    if is_split && n_classes > 1 {
        return Err(Unplayable::OnwardByType);
    }
    let mut shares = vec![vec![0.0; n]; n_classes];
    let mut onward = if is_split { vec![vec![0.0; n]; n] } else { Vec::new() };
    for route in &deployment.routes {
        let [first, rest @ ..] = &route.replicas[..] else { continue };
        shares[route.class as usize][*first as usize] += route.share_ratio;
        if let [second, ..] = rest {
            onward[*first as usize][*second as usize] += route.share_ratio;
        }
    }
    Ok(Assignment { types: Vec::new(), shares, onward })
}

#[cfg(test)]
mod tests;
