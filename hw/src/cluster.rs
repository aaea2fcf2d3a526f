//! Nodes, devices and the links between them; ranks are dense from 0, node by node.
//!
//! Invariant: `n_nodes`, `gpus_per_node`, `nvlink_island`, `gpus_per_switch` are at least 1, the switch divides the node, and so does the island, or it has several
//! nodes. The last island may be filled in part. The catalogue and the scenario reader check this before a `Cluster` exists.

use serde::{Deserialize, Serialize};

use crate::gpu::Gpu;
use crate::units::{Bytes, BytesPerSecond, Seconds};

/// Position of a device in the job, dense from 0, consecutive within a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// Index into per-rank arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identical nodes of identical GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Catalogue name, or `custom`.
    pub name: String,
    /// Device type.
    pub gpu: Gpu,
    /// Number of nodes.
    pub n_nodes: u32,
    /// GPUs in each node.
    pub gpus_per_node: u32,
    /// GPUs that reach each other by NVLink: a part of a node, a node, or several nodes of a rack.
    pub nvlink_island: u32,
    /// Consecutive GPUs of a node that share one PCIe link to the host; 1 where each has its own.
    pub gpus_per_switch: u32,
    /// Memory of the host of a node, where it is known.
    pub host_memory: Option<Bytes>,
    /// Network bandwidth per GPU and direction between nodes.
    pub nic_bandwidth: BytesPerSecond,
    /// Start-up time of a message inside a node.
    pub intra_node_latency: Seconds,
    /// Start-up time of a message between nodes.
    pub inter_node_latency: Seconds,
    /// Ratio of the leaf's downlinks to its uplinks; 1 is non-blocking.
    pub oversubscription: f64,
    /// How nodes are wired.
    pub fabric: Fabric,
    /// Algorithm of every collective that can use it; `None` takes the fastest for the size, as NCCL aims to.
    pub collective_algorithm: Option<CollectiveAlgorithm>,
}

/// Over what GPUs of one node exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsideLink {
    /// Their own link: NVLink, or PCIe where the device has no other.
    Own,
    /// PCIe from one NVLink island to another.
    Bus,
    /// Host memory: one writes, the other reads.
    Host,
}

impl Cluster {
    /// Over what so many consecutive GPUs of a node exchange: the slowest link between two of them.
    pub const fn inside_link(&self, n_gpus: u32) -> InsideLink {
        if !self.gpu.peer_access {
            InsideLink::Host
        } else if n_gpus > self.nvlink_island {
            InsideLink::Bus
        } else {
            InsideLink::Own
        }
    }

    /// Datasheet bandwidth of that link, per GPU and direction, where each of so many GPUs exchanges with all others.
    pub fn inside_bandwidth(&self, n_gpus: u32) -> BytesPerSecond {
        self.inside_bandwidth_to(n_gpus, n_gpus.saturating_sub(1))
    }

    /// The same where each exchanges with so many of the others at once: a message goes to one.
    pub fn inside_bandwidth_to(&self, n_gpus: u32, n_others: u32) -> BytesPerSecond {
        match self.inside_link(n_gpus) {
            InsideLink::Own | InsideLink::Host => self.gpu.bandwidth_to(n_others),
            InsideLink::Bus => self.gpu.host_bandwidth,
        }
    }
}

/// How nodes are wired to leaf switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// GPU i of every node on leaf i: equal positions of all nodes meet without the spine.
    Rail,
    /// All GPUs of so many consecutive nodes on a leaf; further nodes are reached over the spine.
    FatTree {
        /// Nodes on a leaf.
        nodes_per_leaf: u32,
    },
}

impl Fabric {
    /// Whether so many neighbouring nodes, the first of them the first of a leaf, reach each other without the spine.
    pub const fn is_one_leaf(self, n_nodes: u32) -> bool {
        match self {
            Self::Rail => n_nodes == 1,
            Self::FatTree { nodes_per_leaf } => n_nodes <= nodes_per_leaf,
        }
    }

    /// Leaf of a rank where each node has so many GPUs.
    pub const fn leaf_of(self, gpus_per_node: u32, rank: Rank) -> u32 {
        match self {
            Self::Rail => rank.0 % gpus_per_node,
            Self::FatTree { nodes_per_leaf } => rank.0 / gpus_per_node / nodes_per_leaf,
        }
    }
}

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveAlgorithm {
    /// Around all ranks, nodes one after the other.
    Ring,
    /// Up and down a double binary tree.
    Tree,
    /// Inside nodes, then between them.
    Hierarchical,
    /// Every pair by itself.
    Direct,
}

impl Cluster {
    /// Number of devices.
    pub const fn n_gpus(&self) -> u32 {
        self.n_nodes * self.gpus_per_node
    }

    /// What the ports of a node carry together, one way.
    pub fn node_ports(&self) -> BytesPerSecond {
        self.nic_bandwidth * f64::from(self.gpus_per_node)
    }

    /// GPUs that reach each other without the network: those of a node, or of the nodes that NVLink joins.
    pub const fn domain(&self) -> u32 {
        if self.nvlink_island > self.gpus_per_node { self.nvlink_island } else { self.gpus_per_node }
    }

    /// How many GPUs NVLink joins, where they are those of several nodes.
    pub fn joined(&self) -> Option<String> {
        let n_gpus = self.domain().min(self.n_gpus());
        (n_gpus > self.gpus_per_node).then(|| {
            let (nodes, per_node) = (n_gpus.div_ceil(self.gpus_per_node), self.gpus_per_node);
            format!("NVLink joins {n_gpus} GPUs, {nodes} nodes of {per_node} (`cluster.nvlink_island`)")
        })
    }

    /// Domain of a rank.
    pub const fn domain_of(&self, rank: Rank) -> u32 {
        rank.0 / self.domain()
    }

    /// How many domains there are; the last one may be filled in part.
    pub const fn n_domains(&self) -> u32 {
        self.n_gpus().div_ceil(self.domain())
    }

    /// How a group of ranks lies on the domains.
    ///
    /// # Panics
    /// When the group is empty.
    pub fn shape_of(&self, group: &[Rank]) -> GroupShape {
        assert!(!group.is_empty(), "a group has at least one rank");
        let mut domains: Vec<u32> = group.iter().map(|&rank| self.domain_of(rank)).collect();
        domains.sort_unstable();
        domains.dedup();
        let n_nodes = u32::try_from(domains.len()).expect("domains fit u32");
        let island = |rank: Rank| rank.0 / self.nvlink_island;
        GroupShape {
            n_ranks: u32::try_from(group.len()).expect("ranks fit u32"),
            n_nodes,
            leaf_ports: if n_nodes > 1 { self.leaf_ports(group) } else { 0 },
            crosses_islands: group
                .windows(2)
                .any(|pair| self.domain_of(pair[0]) == self.domain_of(pair[1]) && island(pair[0]) != island(pair[1])),
        }
    }

    /// A group of which only the numbers are known: its nodes are neighbours from the first of a leaf on, each with as many of the ranks.
    pub fn group(&self, n_ranks: u32, n_nodes: u32) -> GroupShape {
        // Nodes of one NVLink domain count as one of `n_nodes`, and have ports of their own.
        let n_neighbours = n_nodes.max(n_ranks.div_ceil(self.gpus_per_node));
        let of_node = n_ranks.div_ceil(n_neighbours.max(1));
        let ranks =
            (0..n_neighbours).flat_map(|node| (0..of_node).map(move |gpu| Rank(node * self.gpus_per_node + gpu)));
        let leaf_ports = if n_nodes > 1 { self.leaf_ports(&ranks.collect::<Vec<Rank>>()) } else { 0 };
        let crosses_islands = n_ranks.div_ceil(n_nodes.max(1)) > self.nvlink_island;
        GroupShape { n_ranks, n_nodes, leaf_ports, crosses_islands }
    }

    /// `GroupShape::leaf_ports` of a group over nodes.
    fn leaf_ports(&self, group: &[Rank]) -> u32 {
        let mut leaves: Vec<u32> = group.iter().map(|&rank| self.leaf_of(rank)).collect();
        leaves.sort_unstable();
        if leaves.first() == leaves.last() {
            return 0;
        }
        let links = u64::from(self.n_gpus() / self.n_leaves());
        let of_leaf = |own: &[u32]| links * own.len() as u64 / u64::from(self.gpus_on_leaf(own[0])).max(1);
        let fewest = leaves.chunk_by(|a, b| a == b).map(of_leaf).min().unwrap_or(0);
        u32::try_from(fewest).expect("ports fit u32").max(1)
    }

    /// Leaf switches.
    pub const fn n_leaves(&self) -> u32 {
        match self.fabric {
            Fabric::Rail => self.gpus_per_node,
            Fabric::FatTree { nodes_per_leaf } => self.n_nodes.div_ceil(nodes_per_leaf),
        }
    }

    /// GPUs with their port on a leaf: the last one of a fat tree may have fewer nodes.
    fn gpus_on_leaf(&self, leaf: u32) -> u32 {
        match self.fabric {
            Fabric::Rail => self.n_nodes,
            Fabric::FatTree { nodes_per_leaf } => {
                self.n_nodes.saturating_sub(leaf * nodes_per_leaf).min(nodes_per_leaf) * self.gpus_per_node
            }
        }
    }

    /// Leaf switch of a rank's port.
    pub const fn leaf_of(&self, rank: Rank) -> u32 {
        self.fabric.leaf_of(self.gpus_per_node, rank)
    }
}

/// How a communication group lies on the machine; what a collective's time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupShape {
    /// Ranks in the group.
    pub n_ranks: u32,
    /// Nodes that the group touches, where NVLink joins no others: 1 means that it never needs the network. Nodes of one NVLink domain count as one.
    pub n_nodes: u32,
    /// Where some of them reach each other over the spine alone: ports' worth of a leaf's links to it that are the group's, the fewest of its leaves. Groups
    /// that lie alike have the other links. 0 where none needs the spine.
    #[serde(default)]
    pub leaf_ports: u32,
    /// Whether neighbours of one node lie on several of its NVLink islands, so that they meet over PCIe.
    #[serde(default)]
    pub crosses_islands: bool,
}

impl GroupShape {
    /// So many ranks of one node.
    pub const fn inside(n_ranks: u32) -> Self {
        Self { n_ranks, n_nodes: 1, leaf_ports: 0, crosses_islands: false }
    }

    /// Whether some of them reach each other over the spine alone.
    pub const fn crosses_leaves(self) -> bool {
        self.leaf_ports > 0
    }

    /// Ports of a leaf for so many of its ranks, at least one where it needs the spine.
    pub const fn ports_of(self, n_ranks: u32) -> u32 {
        let ports = self.leaf_ports * n_ranks / self.n_ranks;
        if ports == 0 && self.leaf_ports > 0 { 1 } else { ports }
    }

    /// One rank of each of the nodes.
    pub const fn one_of_each_node(self) -> Self {
        let leaf_ports = self.ports_of(self.n_nodes);
        Self { n_ranks: self.n_nodes, leaf_ports, crosses_islands: false, ..self }
    }
}
