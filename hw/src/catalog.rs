//! GPUs and clusters by name, read from `hw/catalog/*.toml`, where every figure has a dated source.
//!
//! Units are in the keys of the file. Invariant: the embedded file parses, which a test holds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::cluster::{Cluster, Fabric};
use crate::generation::{Generation, Maker};
use crate::gpu::{Capability, Draw, Gpu, Price, Reached};
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// Start-up time of a message over NVLink: astra-sim's validated HGX-H100 network file has 936 ns per hop.
const INTRA_NODE_LATENCY_S: f64 = 1e-6;
/// Start-up time of a message between nodes: the order of the smallest multi-node collectives that papers print.
const INTER_NODE_LATENCY_S: f64 = 5e-6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    generation: String,
    multiprocessors: Option<u32>,
    memory_gib: f64,
    visible_mib: Option<f64>,
    memory_gb_per_s: f64,
    l2_gb_per_s: Option<f64>,
    peak_bf16_tflops: f64,
    peak_fp8_tflops: Option<f64>,
    peak_fp32_tflops: Option<f64>,
    peak_int8_tops: Option<f64>,
    peak_fp4_tflops: Option<f64>,
    power_watts: Option<f64>,
    draw: Option<Draw>,
    reached: Option<Reached>,
    intra_node_gb_per_s: f64,
    mesh_links: Option<u32>,
    host_gb_per_s: f64,
    #[serde(default = "has_peer_access")]
    peer_access: bool,
    nic_gb_per_s: f64,
    #[serde(default = "usual_node")]
    gpus_per_node: u32,
    nvlink_domain: Option<u32>,
    source: String,
    date: String,
    prices: Vec<PriceEntry>,
}

/// GPUs of a host where nothing else is known: HGX and DGX boards have eight.
const fn usual_node() -> u32 {
    8
}

const fn has_peer_access() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceEntry {
    provider: String,
    date: String,
    usd_per_hour: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterEntry {
    gpu: String,
    gpus_per_node: Option<u32>,
    port: Option<PortEntry>,
    host_memory_gib: Option<f64>,
    source: String,
    date: String,
}

/// A network port that is not the card's usual one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortEntry {
    nic_gb_per_s: f64,
    why: String,
}

static CLUSTERS: LazyLock<BTreeMap<String, ClusterEntry>> = LazyLock::new(|| {
    toml::from_str(include_str!("../catalog/clusters.toml")).expect("the embedded catalogue is held by a test")
});

static ENTRIES: LazyLock<BTreeMap<String, Entry>> = LazyLock::new(|| {
    toml::from_str(include_str!("../catalog/gpus.toml")).expect("the embedded catalogue is held by a test")
});

/// The generation of a GPU of the catalogue.
pub fn generation(name: &str) -> Option<Generation> {
    Generation::named(&ENTRIES.get(name)?.generation)
}

/// Whose card a GPU of the catalogue is.
pub fn maker(name: &str) -> Option<Maker> {
    generation(name).map(Generation::maker)
}

/// Whether two GPUs of the catalogue run the same kernels.
pub fn same_generation(one: &str, other: &str) -> bool {
    generation(one).is_some() && generation(one) == generation(other)
}

impl Gpu {
    /// Whose card it is by the catalogue. One that the catalogue lacks counts as NVIDIA's, as all measured kernels are.
    pub fn maker(&self) -> Maker {
        maker(&self.name).unwrap_or(Maker::Nvidia)
    }

    /// Its compute capability by the catalogue, whatever links it was given; of a card that the catalogue lacks, what its figures tell. No card of NVIDIA with 8 bits
    /// is joined by a mesh.
    pub fn capability(&self) -> Capability {
        match generation(&self.name) {
            Some(Generation::Hopper) => Capability::Nine,
            Some(Generation::Blackwell) => Capability::Ten,
            Some(_) => Capability::Other,
            None => match (
                self.has_own_link() && self.mesh_links.is_none(),
                self.peak_fp8.is_some(),
                self.peak_fp4.is_some(),
            ) {
                (true, _, true) => Capability::Ten,
                (true, true, false) => Capability::Nine,
                _ => Capability::Other,
            },
        }
    }
}

/// Whether a GPU of the catalogue is older than compute capability 8.0, with which bf16, flash attention and cuDNN's fused attention came.
pub fn is_before_ampere(name: &str) -> bool {
    matches!(generation(name), Some(Generation::Volta | Generation::Turing))
}

/// Multiprocessors of a GPU of the catalogue.
pub fn multiprocessors(name: &str) -> Option<u32> {
    ENTRIES.get(name)?.multiprocessors
}

/// What all multiprocessors of a GPU of the catalogue read from its L2 cache together, where it is published.
pub fn l2_bandwidth(name: &str) -> Option<BytesPerSecond> {
    Some(BytesPerSecond::new(ENTRIES.get(name)?.l2_gb_per_s? * 1e9))
}

/// Shares of its limit that a GPU of the catalogue draws, where they were fitted.
pub fn draw(name: &str) -> Option<Draw> {
    ENTRIES.get(name)?.draw
}

/// Shares of its datasheet that kernels of a GPU of the catalogue reach, where they are published; empty elsewhere.
pub fn reached(name: &str) -> Reached {
    ENTRIES.get(name).and_then(|entry| entry.reached).unwrap_or_default()
}

/// A GPU by name.
pub fn gpu(name: &str) -> Option<Gpu> {
    let entry = ENTRIES.get(name)?;
    let giga = |value: f64| BytesPerSecond::new(value * 1e9);
    let tera = |value: f64| FlopsPerSecond::new(value * 1e12);
    Some(Gpu {
        name: name.to_owned(),
        memory: Bytes::from_gib(entry.memory_gib),
        visible_memory: entry.visible_mib.map(|mib| Bytes::from_gib(mib / 1024.0)),
        memory_bandwidth: giga(entry.memory_gb_per_s),
        peak_bf16: tera(entry.peak_bf16_tflops),
        peak_fp32: entry.peak_fp32_tflops.map(tera),
        peak_fp8: entry.peak_fp8_tflops.map(tera),
        peak_int8: entry.peak_int8_tops.map(tera),
        peak_fp4: entry.peak_fp4_tflops.map(tera),
        power_watts: entry.power_watts,
        intra_node_bandwidth: giga(entry.intra_node_gb_per_s),
        mesh_links: entry.mesh_links,
        host_bandwidth: giga(entry.host_gb_per_s),
        peer_access: entry.peer_access,
        source: format!("{}, {}", entry.source, entry.date),
        prices: entry
            .prices
            .iter()
            .map(|price| Price {
                provider: price.provider.clone(),
                date: price.date.clone(),
                usd_per_hour: price.usd_per_hour,
            })
            .collect(),
    })
}

/// Names of all GPUs.
pub fn gpu_names() -> Vec<&'static str> {
    ENTRIES.keys().map(String::as_str).collect()
}

/// GPUs of a host of such cards.
pub fn gpus_per_node(gpu: &str) -> u32 {
    ENTRIES.get(gpu).map_or_else(usual_node, |entry| entry.gpus_per_node)
}

/// GPUs of a rack whose hosts share NVLink switches; `None` where NVLink ends at the host.
fn nvlink_domain(gpu: &str) -> Option<u32> {
    ENTRIES.get(gpu)?.nvlink_domain
}

/// GPUs of a job of so many nodes that NVLink joins: those of a node, or of a block of nodes in a rack. A scheduler gives equal blocks of whole nodes: the largest
/// that fit the rack and fill the job. Where these are less than half of what fits, the rack is filled, and the last one in part.
pub fn nvlink_island(gpu: &str, n_nodes: u32, gpus_per_node: u32) -> u32 {
    let domain = nvlink_domain(gpu).unwrap_or(gpus_per_node);
    let most = (domain / gpus_per_node.max(1)).max(1);
    let even = (1..=most.min(n_nodes)).rev().find(|block| n_nodes.is_multiple_of(*block)).unwrap_or(1);
    let block = if n_nodes > most && 2 * even < most { most } else { even };
    block * gpus_per_node
}

/// A cluster of `n_nodes` nodes of `gpus_per_node` GPUs with the GPU's usual network, non-blocking.
pub fn cluster(gpu: &Gpu, n_nodes: u32, gpus_per_node: u32) -> Cluster {
    // A device that is not in the catalogue gets 100 Gb/s per GPU.
    let nic_gb_per_s = ENTRIES.get(&gpu.name).map_or(12.5, |entry| entry.nic_gb_per_s);
    let [intra_node_latency, inter_node_latency] = usual_latencies();
    Cluster {
        name: format!("{n_nodes} × {gpus_per_node} {}", gpu.name),
        gpu: gpu.clone(),
        n_nodes,
        gpus_per_node,
        nvlink_island: nvlink_island(&gpu.name, n_nodes, gpus_per_node),
        gpus_per_switch: 1,
        host_memory: None,
        nic_bandwidth: BytesPerSecond::new(nic_gb_per_s * 1e9),
        intra_node_latency,
        inter_node_latency,
        oversubscription: 1.0,
        fabric: Fabric::Rail,
        collective_algorithm: None,
    }
}

/// Start-up times of messages that a cluster has where nobody says otherwise: inside a node, and between nodes.
pub fn usual_latencies() -> [Seconds; 2] {
    [INTRA_NODE_LATENCY_S, INTER_NODE_LATENCY_S].map(Seconds::new)
}

/// Names of all clusters.
pub fn cluster_names() -> Vec<&'static str> {
    CLUSTERS.keys().map(String::as_str).collect()
}

/// A cluster by name, with so many nodes.
pub fn cluster_named(name: &str, n_nodes: u32) -> Option<Cluster> {
    let entry = CLUSTERS.get(name)?;
    let per_node = entry.gpus_per_node.or(nvlink_domain(&entry.gpu)).unwrap_or_else(usual_node);
    let mut found = cluster(&gpu(&entry.gpu)?, n_nodes, per_node);
    name.clone_into(&mut found.name);
    found.host_memory = entry.host_memory_gib.map(Bytes::from_gib);
    if let Some(port) = &entry.port {
        found.nic_bandwidth = BytesPerSecond::new(port.nic_gb_per_s * 1e9);
    }
    Some(found)
}

/// Where a cluster's figures come from.
pub fn cluster_source(name: &str) -> Option<String> {
    let ClusterEntry { source, port, date, .. } = CLUSTERS.get(name)?;
    let why = port.as_ref().map_or_else(String::new, |port| format!("; {}", port.why));
    Some(format!("{source}{why}, {date}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    #[test]
    fn every_entry_parses_with_a_source_a_date_and_sane_figures() {
        for name in gpu_names() {
            let gpu = gpu(name).expect("a listed GPU");
            assert!(!gpu.source.is_empty(), "{name}");
            assert!(generation(name).is_some(), "{name}: generation");
            if name == "cpu" {
                continue;
            }
            assert!((1.6e10..3.2e11).contains(&gpu.memory.as_f64()), "{name}: memory");
            assert!((2e11..1e13).contains(&gpu.memory_bandwidth.get()), "{name}: bandwidth");
            assert!((3e13..3e15).contains(&gpu.peak_bf16.get()), "{name}: peak");
        }
        assert!(gpu("h101").is_none());
    }

    #[test]
    fn cards_of_one_generation_are_those_with_one_compute_capability() {
        assert!(same_generation("b200", "gb300") && same_generation("h100-sxm", "h20"));
        assert!(!same_generation("b200", "rtx-5090"), "10.0 and 12.0");
        assert!(!same_generation("a100-sxm-80g", "a40"), "8.0 and 8.6");
        assert!(!same_generation("mine", "mine"), "nothing is known of a card of the user's own");
        assert!(same_generation("mi300x", "mi325x") && !same_generation("mi325x", "mi355x"), "gfx942 and gfx950");
    }

    #[test]
    fn a_capability_is_that_of_the_card_and_not_of_a_link_that_it_was_given() {
        for name in gpu_names() {
            let mut gpu = gpu(name).expect("listed");
            let before = gpu.capability();
            for share in [0.5, 2.0] {
                gpu.intra_node_bandwidth = gpu.host_bandwidth * share;
                assert_eq!(gpu.capability(), before, "{name}");
            }
        }
        let of = |name: &str| gpu(name).expect("listed").capability();
        assert_eq!(
            [of("h100-pcie"), of("gh200-96g"), of("gb300")],
            [Capability::Nine, Capability::Nine, Capability::Ten]
        );
        assert_eq!([of("a100-sxm-80g"), of("l40s"), of("rtx-5090")], [Capability::Other; 3]);
        assert_eq!(["mi300x", "mi325x", "mi355x"].map(of), [Capability::Other; 3], "none is NVIDIA's");
        // A card of the user's own is known by its figures.
        let own = Gpu { name: "mine".to_owned(), ..gpu("b200").expect("listed") };
        assert_eq!(own.capability(), Capability::Ten);
        // Eight bits and a link of its own do not make a Hopper of a card of a mesh.
        for like in ["mi300x", "mi355x"] {
            let own = Gpu { name: "mine".to_owned(), ..gpu(like).expect("listed") };
            assert!(own.has_own_link() && own.peak_fp8.is_some());
            assert_eq!(own.capability(), Capability::Other, "{like}");
        }
    }

    #[test]
    fn cards_of_amd_have_compute_units_and_the_peak_of_their_matrix_cores() {
        // Four matrix cores of a unit, operations of an instruction over its cycles, and the highest clock in GHz: AMD's white papers of CDNA 3 and 4. In 16 bits CDNA 3 has
        // 32 x 32 x 8 and CDNA 4 32 x 32 x 16 in 32 cycles; 8 bits are twice as fast, 4 bits twice that; 32 bits are 32 x 32 x 2 in 64 cycles.
        for (name, units, deep, ghz) in
            [("mi300x", 304, 8.0, 2.1), ("mi325x", 304, 8.0, 2.1), ("mi355x", 256, 16.0, 2.4)]
        {
            let gpu = gpu(name).expect("listed");
            assert_eq!(multiprocessors(name), Some(units));
            assert_eq!(maker(name), Some(Maker::Amd));
            let of = |k: f64, cycles: f64| 2.0 * 32.0 * 32.0 * k / cycles * 4.0 * f64::from(units) * ghz * 1e9;
            let is_near = |peak: Option<FlopsPerSecond>, expected: f64| {
                peak.is_some_and(|peak| (peak.get() / expected - 1.0).abs() < 1e-3)
            };
            let sixteen = of(deep, 32.0);
            assert!(is_near(Some(gpu.peak_bf16), sixteen) && is_near(gpu.peak_fp8, 2.0 * sixteen), "{name}");
            assert!(is_near(gpu.peak_int8, 2.0 * sixteen) && is_near(gpu.peak_fp32, of(2.0, 64.0)), "{name}");
            assert_eq!(gpu.peak_fp4.is_some(), deep > 8.0, "{name}");
            assert!(gpu.peak_fp4.is_none() || is_near(gpu.peak_fp4, 4.0 * sixteen), "{name}");
            // A mesh of eight: a link of 16 lanes to each other card, of 32 or 38.4 Gb/s.
            let link = 16.0 * if deep > 8.0 { 38.4e9 } else { 32e9 } / 8.0;
            assert!((gpu.intra_node_bandwidth.get() / (7.0 * link) - 1.0).abs() < 1e-9, "{name}");
            assert_eq!(gpu.mesh_links, Some(gpus_per_node(name) - 1), "{name}");
        }
    }

    #[test]
    fn cards_of_a_mesh_exchange_over_as_many_links_as_there_are_others() {
        let mesh = cluster(&gpu("mi300x").expect("listed"), 1, 8);
        for (n, links) in [(2, 1.0), (4, 3.0), (8, 7.0)] {
            assert_eq!(mesh.inside_bandwidth(n).get(), 64e9 * links, "{n}");
            assert_eq!(mesh.inside_bandwidth_to(n, 1).get(), 64e9, "{n}");
        }
        let switched = cluster(&gpu("h100-sxm").expect("listed"), 1, 8);
        assert_eq!([2, 8].map(|n| switched.inside_bandwidth_to(n, 1).get()), [450e9; 2]);
    }

    #[test]
    fn units_of_amd_multiply_blocks_of_32_and_none_of_16() {
        let of = |name: &str| {
            let gpu = gpu(name).expect("listed");
            [Format::Fp8, Format::Mxfp8, Format::Nvfp4].map(|format| gpu.multiplies(format))
        };
        assert_eq!([of("mi300x"), of("mi355x"), of("b200")], [[true, false, false], [true, true, false], [true; 3]]);
    }

    #[test]
    fn cards_of_nvidia_have_multiprocessors_and_the_peak_of_their_units() {
        for name in gpu_names().into_iter().filter(|name| maker(name) == Some(Maker::Nvidia)) {
            assert!(multiprocessors(name).is_some_and(|n| (40..=200).contains(&n)), "{name}");
        }
        // Products of 16 bits that a multiprocessor adds in a cycle, and the boost clock in GHz, of NVIDIA's white papers. Two operations each.
        for (name, products, ghz) in [
            ("v100-sxm-16g", 512.0, 1.53),
            ("t4", 512.0, 1.59),
            ("a100-sxm-80g", 1024.0, 1.41),
            ("a30", 1024.0, 1.44),
            ("a10", 512.0, 1.695),
            ("a40", 512.0, 1.74),
            ("rtx-3090", 256.0, 1.695),
            ("l4", 512.0, 2.04),
            ("rtx-4090", 256.0, 2.52),
            ("rtx-6000-ada", 512.0, 2.505),
            ("h100-sxm", 2048.0, 1.83),
        ] {
            let n = f64::from(multiprocessors(name).expect("listed"));
            let peak = gpu(name).expect("listed").peak_bf16.get();
            assert!((2.0 * n * products * ghz * 1e9 / peak - 1.0).abs() < 0.01, "{name}");
        }
        assert_eq!((multiprocessors("cpu"), multiprocessors("mine")), (None, None));
    }

    #[test]
    fn nvlink_joins_the_hosts_of_a_rack_in_equal_blocks() {
        // Hosts of four in a rack of 18: 16 fill one rack, 32 two blocks of 16, 36 two racks. 19 have no equal blocks, so one rack is full.
        for (nodes, island) in [(1, 4), (2, 8), (16, 64), (18, 72), (32, 64), (36, 72), (256, 64), (19, 72)] {
            assert_eq!(nvlink_island("gb200", nodes, 4), island, "{nodes} nodes");
        }
        assert_eq!(nvlink_island("gb300", 2, 8), 16, "hosts that are said to be larger");
        assert_eq!(nvlink_island("gb300", 2, 72), 72, "a rack that is said to be a node");
        for card in ["h100-sxm", "b200", "mine"] {
            assert_eq!(nvlink_island(card, 4, 4), 4, "{card}: NVLink ends at the host");
        }
        assert_eq!(cluster_named("gb200-nvl72", 2).expect("listed").domain(), 72);
        assert_eq!([gpus_per_node("gb300"), gpus_per_node("b300")], [4, 8]);
    }

    #[test]
    fn a_named_machine_has_its_cards_port_or_says_why_not() {
        let why: Vec<&str> = cluster_names().into_iter().filter(|name| CLUSTERS[*name].port.is_some()).collect();
        assert_eq!(why, ["aws-g5-12xlarge"]);
        for name in cluster_names() {
            let machine = cluster_named(name, 2).expect("listed");
            let usual = cluster(&machine.gpu, 2, machine.gpus_per_node).nic_bandwidth;
            let reason = CLUSTERS[name].port.as_ref().map(|port| port.why.as_str());
            assert_eq!(machine.nic_bandwidth != usual, reason.is_some_and(|why| why.len() > 10), "{name}");
        }
    }

    #[test]
    fn every_cluster_names_a_gpu_of_the_catalogue_and_its_source() {
        for name in cluster_names() {
            let cluster = cluster_named(name, 2).expect("a listed cluster with a listed GPU");
            assert_eq!(cluster.n_gpus(), 2 * cluster.gpus_per_node, "{name}");
            assert!(cluster_source(name).is_some_and(|source| source.len() > 10), "{name}");
        }
    }

    #[test]
    fn peaks_are_dense() {
        // Datasheets print 1,979 TFLOP/s for H100 bf16 with sparsity; dense is half.
        assert_eq!(gpu("h100-sxm").expect("listed").peak_bf16.get(), 989e12);
        assert_eq!(gpu("a100-sxm-80g").expect("listed").peak_bf16.get(), 312e12);
    }
}
