//! Graph of directed links between devices; a pair's route is the links that its traffic loads.
//!
//! GPUs of a mesh have a port to all their links together: what two flows between one pair take from each other is left out there.
//! Capacities in bytes per second. Each GPU has a port up to and down from its NVLink island's switch, a network port to
//! a leaf (of its rail: GPU `i` of every node shares leaf `i`; or of its node and the next ones), and a link from and to its
//! host. GPUs of one PCIe switch share the switch's link to the host. Leaves meet in a spine
//! whose links carry a node count's worth of ports over the oversubscription. Islands of one node meet over the host; an
//! island of several nodes is one switch.
//! Invariant: `LinkId` is the edge index of the petgraph graph: six links per GPU, then two per leaf, then two per PCIe switch.

use petgraph::graph::{DiGraph, NodeIndex};

use crate::cluster::{Cluster, Fabric, Rank};
use crate::units::{BytesPerSecond, Seconds};

/// Identity of a directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What a link connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vertex {
    /// A device.
    Gpu(Rank),
    /// NVLink switch of an island.
    Island(u32),
    /// Host of a node.
    Host(u32),
    /// PCIe switch between a host and some of its GPUs.
    Switch(u32),
    /// Leaf switch of a rail.
    Leaf(u32),
    /// Spine.
    Spine,
}

const LINKS_PER_GPU: u32 = 6;
const ISLAND_UP: u32 = 0;
const ISLAND_DOWN: u32 = 1;
const NIC_UP: u32 = 2;
const NIC_DOWN: u32 = 3;
const HOST_TO_DEVICE: u32 = 4;
const DEVICE_TO_HOST: u32 = 5;

/// Links of a cluster.
#[derive(Clone, Debug)]
pub struct Topology {
    graph: DiGraph<Vertex, BytesPerSecond>,
    n_gpus: u32,
    gpus_per_node: u32,
    nvlink_island: u32,
    domain: u32,
    gpus_per_switch: u32,
    n_leaves: u32,
    fabric: Fabric,
    intra_node_latency: Seconds,
    inter_node_latency: Seconds,
}

impl Topology {
    /// Topology of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let n_gpus = cluster.n_gpus();
        let mut graph = DiGraph::new();
        let gpus: Vec<NodeIndex> = (0..n_gpus).map(|rank| graph.add_node(Vertex::Gpu(Rank(rank)))).collect();
        let n_islands = n_gpus.div_ceil(cluster.nvlink_island);
        let islands: Vec<NodeIndex> = (0..n_islands).map(|island| graph.add_node(Vertex::Island(island))).collect();
        let hosts: Vec<NodeIndex> = (0..cluster.n_nodes).map(|node| graph.add_node(Vertex::Host(node))).collect();
        let leaves: Vec<NodeIndex> = (0..cluster.n_leaves()).map(|leaf| graph.add_node(Vertex::Leaf(leaf))).collect();
        let n_switches = n_gpus / cluster.gpus_per_switch;
        let switches: Vec<NodeIndex> = (0..n_switches).map(|switch| graph.add_node(Vertex::Switch(switch))).collect();
        let spine = graph.add_node(Vertex::Spine);
        for rank in 0..n_gpus {
            let gpu = gpus[rank as usize];
            let island = islands[(rank / cluster.nvlink_island) as usize];
            let leaf = leaves[cluster.leaf_of(Rank(rank)) as usize];
            let switch = switches[(rank / cluster.gpus_per_switch) as usize];
            graph.add_edge(gpu, island, cluster.gpu.intra_node_bandwidth);
            graph.add_edge(island, gpu, cluster.gpu.intra_node_bandwidth);
            graph.add_edge(gpu, leaf, cluster.nic_bandwidth);
            graph.add_edge(leaf, gpu, cluster.nic_bandwidth);
            graph.add_edge(switch, gpu, cluster.gpu.host_bandwidth);
            graph.add_edge(gpu, switch, cluster.gpu.host_bandwidth);
        }
        let ports = f64::from(n_gpus) / f64::from(cluster.n_leaves());
        let uplink = cluster.nic_bandwidth * (ports / cluster.oversubscription);
        for leaf in leaves {
            graph.add_edge(leaf, spine, uplink);
            graph.add_edge(spine, leaf, uplink);
        }
        for (index, switch) in switches.into_iter().enumerate() {
            let host = hosts[index * cluster.gpus_per_switch as usize / cluster.gpus_per_node as usize];
            graph.add_edge(host, switch, cluster.gpu.host_bandwidth);
            graph.add_edge(switch, host, cluster.gpu.host_bandwidth);
        }
        Self {
            graph,
            n_gpus,
            gpus_per_node: cluster.gpus_per_node,
            nvlink_island: cluster.nvlink_island,
            domain: cluster.domain(),
            gpus_per_switch: cluster.gpus_per_switch,
            n_leaves: cluster.n_leaves(),
            fabric: cluster.fabric,
            intra_node_latency: cluster.intra_node_latency,
            inter_node_latency: cluster.inter_node_latency,
        }
    }

    /// Capacities of all links, in order.
    pub fn capacities(&self) -> impl Iterator<Item = BytesPerSecond> + '_ {
        self.graph.edge_weights().copied()
    }

    /// The graph itself, for walks that need vertices.
    pub const fn graph(&self) -> &DiGraph<Vertex, BytesPerSecond> {
        &self.graph
    }

    const fn port(rank: Rank, which: u32) -> LinkId {
        LinkId(rank.0 * LINKS_PER_GPU + which)
    }

    /// Domain of a rank: GPUs of one reach each other without the network (`Cluster::domain`).
    pub const fn domain(&self, rank: Rank) -> u32 {
        rank.0 / self.domain
    }

    /// Links from one rank to another, in order; none from a rank to itself.
    pub fn route(&self, from: Rank, to: Rank) -> Vec<LinkId> {
        if from == to {
            return Vec::new();
        }
        if self.domain(from) != self.domain(to) {
            let mut links = vec![Self::port(from, NIC_UP)];
            if self.leaf(from) != self.leaf(to) {
                links.extend([self.spine_links(from).0, self.spine_links(to).1]);
            }
            links.push(Self::port(to, NIC_DOWN));
            return links;
        }
        if from.0 / self.nvlink_island == to.0 / self.nvlink_island {
            vec![Self::port(from, ISLAND_UP), Self::port(to, ISLAND_DOWN)]
        } else {
            let (switch_from, switch_to) = (from.0 / self.gpus_per_switch, to.0 / self.gpus_per_switch);
            if switch_from == switch_to {
                return vec![Self::port(from, DEVICE_TO_HOST), Self::port(to, HOST_TO_DEVICE)];
            }
            [self.to_host(from), self.from_host(to)].concat()
        }
    }

    /// Ports that traffic of a rank to all others of its node loads: (out, in).
    pub const fn island_ports(&self, rank: Rank) -> (LinkId, LinkId) {
        (Self::port(rank, ISLAND_UP), Self::port(rank, ISLAND_DOWN))
    }

    /// Ports that traffic of a rank to other nodes loads: (out, in).
    pub const fn nic_ports(&self, rank: Rank) -> (LinkId, LinkId) {
        (Self::port(rank, NIC_UP), Self::port(rank, NIC_DOWN))
    }

    /// Leaf switch of a rank's port.
    pub const fn leaf(&self, rank: Rank) -> u32 {
        self.fabric.leaf_of(self.gpus_per_node, rank)
    }

    /// Links between a rank's leaf and the spine: (up, down).
    pub const fn spine_links(&self, rank: Rank) -> (LinkId, LinkId) {
        let up = self.n_gpus * LINKS_PER_GPU + 2 * self.leaf(rank);
        (LinkId(up), LinkId(up + 1))
    }

    /// Links from a host to its rank: that of the PCIe switch, which its GPUs share, and the rank's own.
    pub fn from_host(&self, rank: Rank) -> Vec<LinkId> {
        vec![self.switch_link(rank, 0), Self::port(rank, HOST_TO_DEVICE)]
    }

    /// Links from a rank to its host.
    pub fn to_host(&self, rank: Rank) -> Vec<LinkId> {
        vec![Self::port(rank, DEVICE_TO_HOST), self.switch_link(rank, 1)]
    }

    const fn switch_link(&self, rank: Rank, up: u32) -> LinkId {
        LinkId(self.n_gpus * LINKS_PER_GPU + 2 * self.n_leaves + 2 * (rank.0 / self.gpus_per_switch) + up)
    }

    /// Start-up time of a message between two ranks.
    pub const fn latency(&self, from: Rank, to: Rank) -> Seconds {
        if self.domain(from) == self.domain(to) { self.intra_node_latency } else { self.inter_node_latency }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::units::{Bytes, FlopsPerSecond};
    use petgraph::graph::EdgeIndex;

    fn cluster(n_nodes: u32, nvlink_island: u32) -> Cluster {
        Cluster {
            name: "test".to_owned(),
            gpu: Gpu {
                name: "test".to_owned(),
                memory: Bytes(80_000_000_000),
                visible_memory: None,
                memory_bandwidth: BytesPerSecond::new(1e12),
                peak_bf16: FlopsPerSecond::new(1e14),
                peak_fp32: None,
                peak_fp8: None,
                peak_int8: None,
                peak_fp4: None,
                power_watts: None,
                intra_node_bandwidth: BytesPerSecond::new(300e9),
                mesh_links: None,
                host_bandwidth: BytesPerSecond::new(32e9),
                peer_access: true,
                source: String::new(),
                prices: Vec::new(),
            },
            host_memory: None,
            n_nodes,
            gpus_per_node: 8,
            nvlink_island,
            gpus_per_switch: 1,
            nic_bandwidth: BytesPerSecond::new(25e9),
            intra_node_latency: Seconds::new(1e-6),
            inter_node_latency: Seconds::new(5e-6),
            oversubscription: 2.0,
            fabric: Fabric::Rail,
            collective_algorithm: None,
        }
    }

    fn capacity(topology: &Topology, link: LinkId) -> f64 {
        topology.capacities().nth(link.0 as usize).expect("a link of the graph").get()
    }

    #[test]
    fn routes_walk_connected_links_from_source_to_target() {
        let topology = Topology::of(&cluster(4, 4));
        for (from, to, n_links) in [(0, 3, 2), (0, 5, 4), (0, 8, 2), (0, 9, 4), (7, 7, 0)] {
            let route = topology.route(Rank(from), Rank(to));
            assert_eq!(route.len(), n_links, "{from} to {to}");
            let ends: Vec<_> = route
                .iter()
                .map(|link| {
                    topology.graph.edge_endpoints(EdgeIndex::new(link.0 as usize)).expect("a link of the graph")
                })
                .collect();
            assert!(ends.windows(2).all(|pair| pair[0].1 == pair[1].0), "links follow each other");
            if let (Some(first), Some(last)) = (ends.first(), ends.last()) {
                assert_eq!(topology.graph[first.0], Vertex::Gpu(Rank(from)));
                assert_eq!(topology.graph[last.1], Vertex::Gpu(Rank(to)));
            }
        }
    }

    #[test]
    fn an_island_of_several_nodes_is_one_switch_and_the_last_one_may_be_filled_in_part() {
        // Three nodes of eight, NVLink joins two of them: the third is an island of its own.
        let cluster = cluster(3, 16);
        let topology = Topology::of(&cluster);
        for (from, to, n_links, latency_s) in [(0, 15, 2, 1e-6), (7, 8, 2, 1e-6), (0, 16, 2, 5e-6), (15, 17, 4, 5e-6)] {
            assert_eq!(topology.route(Rank(from), Rank(to)).len(), n_links, "{from} to {to}");
            assert_eq!(topology.latency(Rank(from), Rank(to)).get(), latency_s, "{from} to {to}");
        }
        let (inside, across) = (topology.route(Rank(7), Rank(8)), topology.route(Rank(0), Rank(16)));
        assert_eq!([capacity(&topology, inside[0]), capacity(&topology, across[0])], [300e9, 25e9]);
        assert_eq!((cluster.domain(), cluster.n_domains()), (16, 2));
        let shape = |ranks: std::ops::Range<u32>| cluster.shape_of(&ranks.map(Rank).collect::<Vec<_>>());
        assert_eq!([shape(0..16).n_nodes, shape(8..24).n_nodes], [1, 2]);
        // What hosts say stays with them: a link from each of three hosts to its PCIe switches.
        assert_eq!(topology.capacities().count(), 24 * 6 + 8 * 2 + 24 * 2);
    }

    #[test]
    fn a_fat_tree_keeps_neighbouring_nodes_off_the_spine() {
        let fabric = Fabric::FatTree { nodes_per_leaf: 2 };
        let topology = Topology::of(&Cluster { fabric, ..cluster(4, 8) });
        assert_eq!(topology.route(Rank(0), Rank(9)).len(), 2, "two nodes of one leaf");
        let across = topology.route(Rank(0), Rank(16));
        assert_eq!(across.len(), 4, "another leaf");
        // Sixteen ports of 25 GB/s, two to one.
        assert_eq!(capacity(&topology, across[1]), 200e9);
    }

    #[test]
    fn a_group_crosses_leaves_where_a_route_between_two_of_its_ranks_passes_the_spine() {
        for fabric in [Fabric::Rail, Fabric::FatTree { nodes_per_leaf: 2 }, Fabric::FatTree { nodes_per_leaf: 3 }] {
            let cluster = Cluster { fabric, ..cluster(6, 8) };
            let topology = Topology::of(&cluster);
            for (first, stride, n) in
                [(0, 1, 8), (0, 1, 16), (8, 1, 16), (16, 8, 2), (0, 8, 2), (0, 16, 2), (24, 8, 3), (0, 4, 4)]
            {
                let group: Vec<Rank> = (0..n).map(|index| Rank(first + stride * index)).collect();
                let pairs = group.iter().flat_map(|&from| group.iter().map(move |&to| (from, to)));
                let mut links = pairs.flat_map(|(from, to)| topology.route(from, to));
                let passes = links.any(|link| (cluster.n_gpus() * LINKS_PER_GPU..).contains(&link.0));
                assert_eq!(cluster.shape_of(&group).crosses_leaves(), passes, "{fabric:?}: {group:?}");
                let from_the_first: Vec<Rank> = (0..n).map(|index| Rank(stride * index)).collect();
                let known = cluster.shape_of(&from_the_first);
                if stride == 1 {
                    assert_eq!(cluster.group(known.n_ranks, known.n_nodes), known, "{fabric:?}");
                }
            }
        }
    }

    #[test]
    fn a_group_on_several_islands_of_a_node_meets_over_pcie() {
        for island in [2, 4, 8] {
            let cluster = cluster(2, island);
            let topology = Topology::of(&cluster);
            for group in [[0, 1], [0, 2], [2, 3], [1, 2], [3, 4], [0, 4], [4, 5], [8, 9]] {
                let group = group.map(Rank);
                let is_own = topology.route(group[0], group[1])[0] == topology.island_ports(group[0]).0;
                assert_eq!(cluster.shape_of(&group).crosses_islands, !is_own, "{island} {group:?}");
            }
        }
    }

    #[test]
    fn the_spine_carries_the_ports_of_a_rail_over_the_oversubscription() {
        // Four nodes' ports of 25 GB/s on a rail, two to one: 50 GB/s.
        let topology = Topology::of(&cluster(4, 8));
        let across = topology.route(Rank(0), Rank(9));
        assert_eq!(capacity(&topology, across[1]), 50e9);
        assert_eq!(capacity(&topology, across[0]), 25e9);
        // Six links per GPU, two per leaf, two per PCIe switch of one GPU.
        assert_eq!(topology.capacities().count(), 32 * 6 + 8 * 2 + 32 * 2);
    }

    #[test]
    fn gpus_of_one_switch_share_its_link_to_the_host() {
        let topology = Topology::of(&Cluster { gpus_per_switch: 2, ..cluster(1, 8) });
        let shared = |a: u32, b: u32| topology.from_host(Rank(a))[0] == topology.from_host(Rank(b))[0];
        assert!(shared(0, 1) && !shared(1, 2) && shared(6, 7));
        assert_eq!(capacity(&topology, topology.from_host(Rank(3))[0]), 32e9);
        assert_eq!(topology.capacities().count(), 8 * 6 + 8 * 2 + 4 * 2);
    }
}
