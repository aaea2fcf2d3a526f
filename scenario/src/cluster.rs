//! `[cluster]`: a named machine, or a GPU of the catalogue with nodes and network.

use hw::CollectiveAlgorithm::{Hierarchical, Ring, Tree};
use hw::{Bytes, BytesPerSecond, Cluster, CollectiveAlgorithm, Fabric, Seconds};

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section, small, unknown};

/// Memory that CUDA, NCCL and the framework take from a device in training; a usual figure, overridden by `cluster.reserved_gib`. A process that serves
/// keeps less (`serve::engine_preset::RESERVED_GIB`): it has fewer groups of NCCL, each with buffers of its own. It is taken off the board's memory, so what the
/// driver keeps (`Gpu::visible`) is in it: off what CUDA shows, three measured steps of `examples/score/training.csv` would not fit.
const RESERVED_GIB: f64 = 2.0;

/// The cluster's base: a named machine, or a GPU of the catalogue with its usual network.
fn machine(section: &mut Section<'_>, nodes: u32) -> Option<Cluster> {
    section.offers("name", hw::catalog::cluster_names);
    section.offers("gpu", hw::catalog::gpu_names);
    let (named, gpu) = (section.text("name"), section.text("gpu"));
    let usual = hw::catalog::gpus_per_node(gpu.as_ref().map_or("", |(name, _)| name));
    let (per_node, per_node_at) = section.count("gpus_per_node", Some(usual.into()), 1..=1024);
    let per_node = u32::try_from(per_node).expect("at most 1024");
    match (named, gpu) {
        (Some((name, at)), gpu) => {
            if let Some((_, gpu_at)) = gpu {
                let what = "`cluster.name` and `cluster.gpu` exclude each other";
                section.wrong(Code::ExclusiveKeys, gpu_at, what);
            } else if let Some(per_node_at) = per_node_at {
                let what = "`cluster.name` fixes `gpus_per_node`";
                section.wrong(Code::ExclusiveKeys, Some(per_node_at), what);
            }
            let cluster = hw::catalog::cluster_named(&name, nodes);
            if cluster.is_none() {
                let known = hw::catalog::cluster_names();
                section.find(unknown(Code::UnknownCluster, format!("unknown cluster `{name}`"), &name, known, at));
            }
            cluster
        }
        (None, None) => {
            section.missing(
                "gpu",
                "`skrull-sim list gpus` shows the catalogue; or give `name`, see `skrull-sim list clusters`",
            );
            None
        }
        (None, Some((name, at))) => {
            let gpu = hw::catalog::gpu(&name);
            if gpu.is_none() {
                // What the command line lays over a file has no place that would show the key.
                let what = match &at {
                    Some(_) => format!("unknown GPU `{name}`"),
                    None => format!("`{}` names an unknown GPU `{name}`", section.full("gpu")),
                };
                section.find(unknown_gpu(what, &name, at));
            }
            gpu.map(|gpu| hw::catalog::cluster(&gpu, nodes, per_node))
        }
    }
}

/// An error about a GPU that the catalogue lacks.
pub fn unknown_gpu(what: String, name: &str, at: Place) -> Finding {
    let names = hw::catalog::gpu_names();
    if !is_of_amd(name) {
        return unknown(Code::UnknownGpu, what, name, names, at);
    }
    let own: Vec<&str> = names.into_iter().filter(|name| hw::catalog::maker(name) == Some(hw::Maker::Amd)).collect();
    let help =
        format!("of AMD's cards there are {}, by their datasheets; no kernel of others is known", own.join(", "));
    unknown(Code::UnknownGpu, what, name, own, at).help(help)
}

/// Whether a card is AMD's by its name: `mi300x`, `MI355X`, `amd-instinct-mi250`, `radeon-pro-w7900`.
fn is_of_amd(name: &str) -> bool {
    let name = name.to_lowercase();
    let is_numbered =
        |word: &str| word.strip_prefix("mi").is_some_and(|n| n.starts_with(|letter: char| letter.is_ascii_digit()));
    name.split(|letter: char| !letter.is_alphanumeric())
        .any(|word| ["amd", "instinct", "radeon"].contains(&word) || is_numbered(word))
}

/// What a section changes of a machine, whatever its GPU is.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    nic_gb_per_s: f64,
    host_gb_per_s: f64,
    intra_node_gb_per_s: f64,
    intra_node_latency_us: f64,
    inter_node_latency_us: f64,
    /// Whether GPUs reach each other's memory, where it is not as the catalogue says.
    peer_access: Option<bool>,
    oversubscription: f64,
    memory_gib: f64,
    algorithm: Option<CollectiveAlgorithm>,
    fabric: Fabric,
    /// GPUs of an NVLink island, where they are not those that the catalogue says.
    nvlink_island: Option<u32>,
    gpus_per_switch: u32,
}

impl Tuning {
    /// The machine with what the section says of it.
    pub fn of(&self, mut cluster: Cluster) -> Cluster {
        if self.memory_gib > 0.0 {
            cluster.gpu.set_memory(Bytes::from_gib(self.memory_gib));
        }
        cluster.oversubscription = self.oversubscription;
        cluster.collective_algorithm = self.algorithm;
        cluster.fabric = self.fabric;
        cluster.nvlink_island = self.nvlink_island.unwrap_or(cluster.nvlink_island);
        cluster.gpus_per_switch = self.gpus_per_switch;
        if self.nic_gb_per_s > 0.0 {
            cluster.nic_bandwidth = BytesPerSecond::new(self.nic_gb_per_s * 1e9);
        }
        if self.intra_node_gb_per_s > 0.0 {
            cluster.gpu.intra_node_bandwidth = BytesPerSecond::new(self.intra_node_gb_per_s * 1e9);
        }
        if self.intra_node_latency_us > 0.0 {
            cluster.intra_node_latency = Seconds::new(self.intra_node_latency_us / 1e6);
        }
        if self.inter_node_latency_us > 0.0 {
            cluster.inter_node_latency = Seconds::new(self.inter_node_latency_us / 1e6);
        }
        cluster.gpu.peer_access = self.peer_access.unwrap_or(cluster.gpu.peer_access);
        if self.host_gb_per_s > 0.0 {
            cluster.gpu.host_bandwidth = BytesPerSecond::new(self.host_gb_per_s * 1e9);
        }
        cluster
    }
}

/// Warns of links above leaves of a single node, which nothing passes, and of a fabric whose links carry whatever comes. Places are those of `oversubscription` and `fabric`.
fn warn_of_network(
    section: &mut Section<'_>,
    [narrow_at, fabric_at]: [Option<Place>; 2],
    nodes: u32,
    (fabric, oversubscription): (Fabric, f64),
) {
    let is_narrow = oversubscription > 1.0;
    if let Some(at) = narrow_at.filter(|_| is_narrow && fabric.is_one_leaf(nodes)) {
        let what = format!("`{}` changes nothing", section.full("oversubscription"));
        section.warn(Code::NoEffect, at, what, "links above leaves carry what goes between leaves: it needs several");
    }
    if let Some(at) = fabric_at.filter(|_| !is_narrow && fabric != Fabric::Rail) {
        let what = format!("`{}` changes nothing", section.full("fabric"));
        let help = "it needs `oversubscription` above 1: else links above leaves carry all that comes";
        section.warn(Code::NoEffect, at, what, help);
    }
}

/// Links that are wider than the catalogue's by just what other units make of them.
fn warn_of_units(section: &mut Section<'_>, machine: &Cluster, written: [f64; 2], places: [Place; 2]) {
    let links = [machine.nic_bandwidth, machine.gpu.intra_node_bandwidth];
    let units = [
        ("nic_gb_per_s", 8.0, "it counts gigabytes: a port of 400 Gb/s carries 50"),
        ("intra_node_gb_per_s", 2.0, "it counts one direction: datasheets often add up both"),
    ];
    for (((key, times, help), at), (value, own)) in units.into_iter().zip(places).zip(written.into_iter().zip(links)) {
        if own.is_in_gb_per_s(value, times) {
            let what = format!("`{}` = {value} is {times} times the link of the catalogue", section.full(key));
            section.warn(Code::OtherUnit, at, what, help);
        }
    }
}

/// Reads the section: the cluster and the memory that is not the job's.
pub fn cluster(section: Section<'_>) -> Option<(Cluster, Bytes)> {
    tuned(section, RESERVED_GIB).map(|(cluster, reserved, _)| (cluster, reserved))
}

/// The machine of a step of training. What a step costs is said of training by itself, and not where its sequences are given.
pub fn of_steps(mut section: Section<'_>, is_given: bool) -> Option<(Cluster, Bytes)> {
    let host_gib = section.some_number("host_memory_gib", 0.001..=1e6);
    let (mut cluster, reserved) = if is_given { cluster(section) } else { priced(section) }?;
    cluster.host_memory = host_gib.map(Bytes::from_gib).or(cluster.host_memory);
    Some((cluster, reserved))
}

/// The same with dollars of a GPU and hour, where the section has them: they stand in the place of quoted prices.
pub fn priced(mut section: Section<'_>) -> Option<(Cluster, Bytes)> {
    let price = section.some_number("usd_per_gpu_hour", 1e-6..=1e6);
    let (mut cluster, reserved) = cluster(section)?;
    if let Some(usd_per_hour) = price {
        cluster.gpu.set_price(usd_per_hour);
    }
    Some((cluster, reserved))
}

/// The same where processes keep so many GiB if nobody says otherwise, and what the section says whatever the GPU is.
pub fn tuned(mut section: Section<'_>, reserved_gib: f64) -> Option<(Cluster, Bytes, Tuning)> {
    let nodes = section.small("nodes", None, 1..=100_000);
    let machine = machine(&mut section, nodes);
    let (per_node, usual) = machine.as_ref().map_or((8, 8), |found| (found.gpus_per_node, found.nvlink_island));
    let links_at = ["nic_gb_per_s", "intra_node_gb_per_s"].map(|key| section.place(key).flatten());
    let nic_gb_per_s = section.number("nic_gb_per_s", 0.0, 0.001..=100_000.0);
    let host_gb_per_s = section.number("host_gb_per_s", 0.0, 0.001..=100_000.0);
    let intra_node_gb_per_s = section.number("intra_node_gb_per_s", 0.0, 0.001..=100_000.0);
    if let Some(machine) = &machine {
        warn_of_units(&mut section, machine, [nic_gb_per_s, intra_node_gb_per_s], links_at);
    }
    let intra_node_latency_us = section.number("intra_node_latency_us", 0.0, 0.001..=100_000.0);
    let inter_node_latency_us = section.number("inter_node_latency_us", 0.0, 0.001..=100_000.0);
    let says_access = section.has("peer_access");
    let peer_access = Some(section.flag("peer_access", true)).filter(|_| says_access);
    let network_at = ["oversubscription", "fabric"].map(|key| section.place(key));
    let oversubscription = section.number("oversubscription", 1.0, 1.0..=1000.0);
    let memory_gib = section.number("memory_gib", 0.0, 0.001..=100_000.0);
    let reserved = section.number("reserved_gib", reserved_gib, 0.0..=10_000.0);
    let algorithms = [None, Some(Ring), Some(Tree), Some(Hierarchical)];
    let algorithm = algorithms[section.word("collectives", 0, &["fastest", "ring", "tree", "hierarchical"])];
    let is_fat_tree = section.word("fabric", 0, &["rail", "fat_tree"]) == 1;
    if !is_fat_tree {
        section.idle(&["nodes_per_leaf"], "`fabric = \"fat_tree\"`: a rail has a leaf for each port of a node");
    }
    let nodes_per_leaf = section.small("nodes_per_leaf", Some(4), 1..=100_000);
    let fabric = if is_fat_tree { Fabric::FatTree { nodes_per_leaf } } else { Fabric::Rail };
    warn_of_network(&mut section, network_at, nodes, (fabric, oversubscription));
    let (island, island_at) = section.count("nvlink_island", Some(usual.into()), 1..=1024);
    let is_whole = u64::from(per_node).is_multiple_of(island) || island.is_multiple_of(per_node.into());
    if !is_whole {
        let what = format!("NVLink islands of {island} are no part and no multiple of the {per_node} GPUs of a node");
        section.wrong(Code::WrongIsland, island_at, what);
    }
    let (gpus_per_switch, switch_at) = section.count("gpus_per_switch", Some(1), 1..=1024);
    let is_even = u64::from(per_node).is_multiple_of(gpus_per_switch);
    if !is_even {
        let what = format!("PCIe switches of {gpus_per_switch} GPUs do not divide the {per_node} GPUs of a node");
        section.wrong(Code::WrongIsland, switch_at, what);
    }
    section.finish();
    let nvlink_island = Some(small(island)).filter(|island| *island != usual);
    let tuning = Tuning {
        nic_gb_per_s,
        host_gb_per_s,
        intra_node_gb_per_s,
        intra_node_latency_us,
        inter_node_latency_us,
        peer_access,
        oversubscription,
        memory_gib,
        algorithm,
        fabric,
        nvlink_island,
        gpus_per_switch: small(gpus_per_switch),
    };
    machine.filter(|_| is_whole && is_even).map(|cluster| (tuning.of(cluster), Bytes::from_gib(reserved), tuning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_of_amd_are_told_from_words_that_are_written_wrongly() {
        for name in ["mi300x", "MI355X", "amd-instinct-mi250", "Radeon Pro W7900"] {
            assert!(is_of_amd(name), "{name}");
        }
        for name in ["a100", "mig-1g", "h100-sxm", "rtx-4090", "minimax"] {
            assert!(!is_of_amd(name), "{name}");
        }
        let found = |name: &str| unknown_gpu(String::new(), name, None).help.unwrap_or_default();
        assert!(found("mi250x").contains("mi300x, mi325x, mi355x") && !found("mi250x").contains("h100"));
        assert!(found("h100").contains("h100-sxm"));
        let label = |name: &str| unknown_gpu(String::new(), name, None).label;
        assert!(label("MI300X").contains("`mi300x`"), "{}", label("MI300X"));
    }
}
