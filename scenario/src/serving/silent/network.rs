//! Ports, links to the host and links between groups that nothing passes or that narrow nothing.

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader};
use serve::kv::lending::Borrow;
use serve::kv::tiers::NO_STORE;
use serve::replica::Role;

use super::super::{Serving, ServingChoice, ServingGroup};

/// Keys of `[cluster]` whose links a fleet may leave alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    ports: [(&'static str, Option<Place>); 2],
    hosts: [(&'static str, Option<Place>); 2],
}

/// Those that are written.
pub(super) fn written(reader: &Reader<'_>) -> Written {
    let at = |key: &str| reader.peek_in("cluster", key).map(|(_, at)| at);
    let [ports, hosts] = [["nic_gb_per_s", "inter_node_latency_us"], ["host_gb_per_s", "gpus_per_switch"]];
    Written { ports: ports.map(|key| (key, at(key))), hosts: hosts.map(|key| (key, at(key))) }
}

/// Those that change nothing. A search over machines may take others than this one.
pub(super) fn idle(serving: &Serving, written: &Written) -> Vec<Finding> {
    if serving.tune.is_some() || serving.capacity.is_some() {
        return Vec::new();
    }
    let mut all = serving.choices.iter().flat_map(|choice| pairs(serving, choice));
    let goes_out = all.any(|(choice, group)| leaves_node(serving, choice, group));
    let mut all = serving.choices.iter().flat_map(|choice| pairs(serving, choice));
    let reaches_host = all.any(|(choice, group)| uses_host(serving, choice, group));
    let of_ports = written.ports.iter().filter(|_| !goes_out).filter_map(|(key, at)| {
        let help = "nothing leaves a node: it needs replicas over several nodes, replicas on several nodes that prefill for others, `remote_gib` in \
                    `tiers`, or memory that is lent";
        Some(unused(key, at.as_ref()?, help))
    });
    let of_host = written.hosts.iter().filter(|_| !reaches_host).filter_map(|(key, at)| {
        let help = "nothing goes to the host: it needs `tiers` without a rate of their own, `preemption = \"swap\"`, adapters, `host_weights`, or GPUs \
                    that exchange over the bus";
        Some(unused(key, at.as_ref()?, help))
    });
    of_ports.chain(of_host).collect()
}

fn unused(key: &str, at: &Place, help: &str) -> Finding {
    Finding::warning(Code::NoEffect, at.clone(), format!("`cluster.{key}` changes nothing")).help(help)
}

/// Groups that a choice serves with, each beside it.
fn pairs<'s>(
    serving: &'s Serving,
    choice: &'s ServingChoice,
) -> impl Iterator<Item = (&'s ServingChoice, &'s ServingGroup)> {
    serving.groups_of(choice).into_iter().map(move |group| (choice, group))
}

/// Whether something of a group goes to other nodes: exchanges of a replica, keys and values of other replicas, or a store.
fn leaves_node(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> bool {
    let is_wide = serving.deployment_of(choice, group).n_gpus() > group.cluster.domain();
    let lends = choice.kv.borrow != Borrow::Never;
    let hands_over = group.role != Role::Both && !serving.is_one_node(choice);
    is_wide || lends || hands_over || choice.operation.remote != NO_STORE
}

/// Whether something of a group goes to the host, or over its bus.
fn uses_host(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> bool {
    let deployment = serving.deployment_of(choice, group);
    let n_gpus = deployment.n_gpus();
    let exchanges = n_gpus > 1 && (!group.cluster.gpu.has_own_link() || n_gpus > group.cluster.nvlink_island);
    let keeps = choice.operation.tiers.iter().any(|store| *store != NO_STORE && store.gb_per_s.is_none());
    let copies = serving.engine.swap.is_some() || deployment.host_weights.is_some();
    exchanges || keeps || copies || deployment.adapters.is_some()
}

/// Links whose bytes per second are no fewer than the ports of all replicas on one of its ends, which are then the limit.
pub(super) fn wide_links(serving: &Serving) -> Vec<Finding> {
    serving.links.iter().filter_map(|link| wide_link(serving, link)).collect()
}

fn wide_link(serving: &Serving, link: &super::super::dynamics::ServingLink) -> Option<Finding> {
    let (ends, rate) = (link.ends(), link.bytes_per_s()?);
    // A choice with larger replicas has fewer of them, and as many GPUs at most.
    let ports = |name: &str| {
        let group = serving.groups.iter().find(|group| group.name == name)?;
        let of = |choice: &ServingChoice| {
            serving
                .deployment_of(choice, group)
                .ports(serving.replicas_of(choice, group), serving.port_of(choice, group))
        };
        Some(serving.choices.iter().filter(|choice| choice.serves(group)).map(of).fold(0.0, f64::max))
    };
    let (from, to) = (ports(ends[0])?, ports(ends[1])?);
    let most = from.min(to);
    if most <= 0.0 || rate < most {
        return None;
    }
    let what = format!(
        "`gb_per_s` of the link from `{}` to `{}` changes nothing: the ports of `{}` carry {:.1} GB/s in all",
        ends[0],
        ends[1],
        if from <= to { ends[0] } else { ends[1] },
        most / 1e9
    );
    let help = "`port_gb_per_s` of a group, or `cluster.nic_gb_per_s`, says what a GPU sends to another node";
    Some(Finding::warning(Code::NoEffect, link.place().clone(), what).help(help))
}

/// Outages that begin when the last request has come: they lose what is still running then, and often nothing is.
pub(super) fn late_outages(serving: &Serving) -> Vec<Finding> {
    // Users who wait send their requests when answers come.
    if serving.streams.iter().any(|stream| stream.users.is_some()) {
        return Vec::new();
    }
    let Some(last) = serving.requests.list.iter().map(|request| request.arrival).max() else { return Vec::new() };
    let last_s = hw::Span::from_ns(last.as_ns()).to_seconds().get();
    let late = serving.outages.iter().filter(|outage| outage.at_s() > last_s);
    late.map(|outage| {
        let what = format!(
            "the outage in `{}` at {} s begins after the last request came, at {last_s:.1} s",
            outage.group(),
            outage.at_s()
        );
        let help = "it loses what still runs then, and changes nothing else: let it begin earlier, or let requests come longer";
        Finding::warning(Code::NoEffect, outage.place().clone(), what).help(help)
    })
    .collect()
}
