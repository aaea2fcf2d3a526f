//! `collectives` and `oversubscription` of a machine: a way that no exchange of a scenario takes is named, and narrow links that none passes.

use calibrate::costs::cost_model;
use engine::Model;
use engine::cost::profile::Profile;
use engine::task::{Collective, Op};
use hw::{Cluster, GroupShape};

use input::diagnostic::Code;
use input::reader::{Place, Reader, Section};

/// Keys that say how exchanges travel.
const KEYS: [&str; 2] = ["collectives", "oversubscription"];
/// Kinds of exchanges of which there are several ways.
pub const SUMS: [Collective; 3] = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
/// Kinds of exchanges of a model without experts.
pub const OF_DENSE: [Collective; 4] = [SUMS[0], SUMS[1], SUMS[2], Collective::SendRecv];
/// Kinds of exchanges of a model; the last one is of experts alone.
static OF_MODELS: [Collective; 5] = [SUMS[0], SUMS[1], SUMS[2], Collective::SendRecv, Collective::AllToAll];
/// Bytes of exchanges that are asked for: few, and many.
const ASKED_BYTES: [u64; 3] = [1 << 10, 1 << 20, 1 << 28];

/// Kinds of exchanges of a model that is cut over GPUs.
pub fn of_model(model: &Model) -> &'static [Collective] {
    if model.experts.is_some() { &OF_MODELS } else { &OF_MODELS[..4] }
}

/// Exchanges that a scenario may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchanges(Vec<(Collective, GroupShape)>);

impl Exchanges {
    /// Those of these kinds among so many GPUs side by side, and among some of them.
    pub fn among(cluster: &Cluster, n_gpus: u32, kinds: &[Collective]) -> Self {
        let n_nodes = n_gpus.div_ceil(cluster.domain());
        Self::default().and(cluster, cluster.group(n_gpus, n_nodes), kinds)
    }

    /// The same and those of a group, and of parts of it.
    pub fn and(mut self, cluster: &Cluster, whole: GroupShape, kinds: &[Collective]) -> Self {
        for n_ranks in parts(whole.n_ranks).filter(|n| *n > 1) {
            // Parts over several nodes may lie on as many leaves as the whole.
            let on = |n_nodes| GroupShape {
                n_nodes,
                leaf_ports: if n_nodes > 1 { whole.ports_of(n_ranks) } else { 0 },
                ..GroupShape::inside(n_ranks)
            };
            let lie = parts(whole.n_nodes.min(n_ranks)).map(on);
            let lie = lie.filter(|shape| shape.n_ranks.div_ceil(shape.n_nodes) <= cluster.domain());
            self.0.extend(lie.flat_map(|shape| kinds.iter().map(move |kind| (*kind, shape))));
        }
        self
    }

    /// Whether any of them takes another time on another machine.
    fn differ(&self, machines: [&Cluster; 2], profile: Option<&Profile>) -> bool {
        let [one, other] = machines.map(|cluster| cost_model(cluster, profile, 1.0));
        let ops = self
            .0
            .iter()
            .flat_map(|(kind, shape)| ASKED_BYTES.map(|bytes| Op::Collective { kind: *kind, bytes, shape: *shape }));
        ops.into_iter().any(|op| one.estimate(&op).time != other.estimate(&op).time)
    }
}

/// Powers of two below a number, and itself.
fn parts(n: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|power| 1 << power).take_while(move |part| *part < n).chain([n])
}

/// A machine, what was measured of it, and the exchanges on it.
pub type Exchanging<'a> = (&'a Cluster, Option<&'a Profile>, Exchanges);

/// Where a section says how exchanges travel, with the names of its keys.
#[derive(Clone, Debug)]
pub struct Written {
    collectives: Option<(String, Place)>,
    oversubscription: Option<(String, Place)>,
}

impl Written {
    /// In `[cluster]`.
    pub fn of(reader: &Reader<'_>) -> Self {
        let [collectives, oversubscription] = KEYS.map(|key| {
            let (_, at) = reader.peek_in("cluster", key)?;
            Some((format!("cluster.{key}"), at))
        });
        Self { collectives, oversubscription }
    }

    /// In a section of which no key was taken yet.
    pub fn inside(section: &Section<'_>) -> Self {
        let [collectives, oversubscription] = KEYS.map(|key| Some((section.full(key), section.place(key)?)));
        Self { collectives, oversubscription }
    }

    /// Warns of both.
    pub fn warn(&self, reader: &mut Reader<'_>, machines: &[Exchanging<'_>]) {
        self.warn_of_collectives(reader, machines);
        self.warn_of_leaves(reader, machines);
    }

    /// Warns of a way that no exchange of any number of GPUs takes, where NVLink joins all.
    pub fn warn_inside(&self, reader: &mut Reader<'_>, cluster: &Cluster, profile: Option<&Profile>) {
        if cluster.n_domains() == 1 {
            self.warn_of_collectives(reader, &[(cluster, profile, Exchanges::among(cluster, cluster.n_gpus(), &SUMS))]);
        }
    }

    /// Warns of a way that none of the exchanges takes.
    pub fn warn_of_collectives(&self, reader: &mut Reader<'_>, machines: &[Exchanging<'_>]) {
        let is_asked = machines.iter().any(|(cluster, ..)| cluster.collective_algorithm.is_some());
        let Some((key, at)) = self.collectives.as_ref().filter(|_| is_asked && !machines.iter().any(takes_way)) else {
            return;
        };
        let help = "exchanges of GPUs that NVLink joins are measured; it needs groups over several nodes, or `[cost] profile = \"roofline\"`";
        reader.warn(Code::NoEffect, at.clone(), format!("`{key}` changes nothing"), help);
    }

    /// Warns of narrow links above several leaves that none of the exchanges passes.
    fn warn_of_leaves(&self, reader: &mut Reader<'_>, machines: &[Exchanging<'_>]) {
        let is_asked = machines.iter().any(|(cluster, ..)| is_narrow(cluster));
        let Some((key, at)) =
            self.oversubscription.as_ref().filter(|_| is_asked && !machines.iter().any(passes_leaves))
        else {
            return;
        };
        let help = "no exchange passes links above leaves: on rails an all-to-all of experts over several nodes does, on `fabric = \"fat_tree\"` every exchange between leaves";
        reader.warn(Code::NoEffect, at.clone(), format!("`{key}` changes nothing"), help);
    }
}

/// Whether an exchange takes the way that is asked for, and another one would be another time.
fn takes_way((cluster, profile, exchanges): &Exchanging<'_>) -> bool {
    let fastest = Cluster { collective_algorithm: None, ..(*cluster).clone() };
    exchanges.differ([cluster, &fastest], *profile)
}

/// Whether links above several leaves are narrow.
fn is_narrow(cluster: &Cluster) -> bool {
    cluster.oversubscription > 1.0 && !cluster.fabric.is_one_leaf(cluster.n_nodes)
}

/// Whether an exchange takes longer over narrow links above leaves.
fn passes_leaves((cluster, profile, exchanges): &Exchanging<'_>) -> bool {
    let wide = Cluster { oversubscription: 1.0, ..(*cluster).clone() };
    exchanges.differ([cluster, &wide], *profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hw::CollectiveAlgorithm;

    fn cluster(n_nodes: u32) -> Cluster {
        hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), n_nodes, 8)
    }

    #[test]
    fn parts_of_a_group_lie_on_as_many_nodes_as_they_can() {
        assert_eq!(parts(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        let of = |n_gpus| Exchanges::among(&cluster(4), n_gpus, &SUMS[..1]).0;
        // On rails: two nodes of four have half of the links that a leaf has, and parts of their ranks their part of these.
        let shape = |n_ranks: u32, n_nodes: u32| {
            let leaf_ports = if n_nodes > 1 { (n_ranks / 8).max(1) } else { 0 };
            (Collective::AllReduce, GroupShape { n_nodes, leaf_ports, ..GroupShape::inside(n_ranks) })
        };
        assert_eq!(of(1), []);
        assert_eq!(of(8), [shape(2, 1), shape(4, 1), shape(8, 1)]);
        // Sixteen do not lie on one node, and two may.
        assert_eq!(of(16).last(), Some(&shape(16, 2)));
        assert!(of(16).contains(&shape(2, 1)) && of(16).contains(&shape(2, 2)) && !of(16).contains(&shape(16, 1)));
    }

    #[test]
    fn ways_and_leaves_make_a_difference_where_the_model_of_collectives_says_so() {
        let differ = |n_nodes: u32, n_gpus: u32, kinds: &[Collective], change: fn(&mut Cluster)| {
            let (plain, mut changed) = (cluster(n_nodes), cluster(n_nodes));
            change(&mut changed);
            Exchanges::among(&plain, n_gpus, kinds).differ([&plain, &changed], None)
        };
        let tree: fn(&mut Cluster) = |cluster| cluster.collective_algorithm = Some(CollectiveAlgorithm::Tree);
        let parts: fn(&mut Cluster) = |cluster| cluster.collective_algorithm = Some(CollectiveAlgorithm::Hierarchical);
        let narrow: fn(&mut Cluster) = |cluster| cluster.oversubscription = 4.0;
        // Gathers have no tree, and one node has no hierarchy.
        assert!(differ(2, 16, &SUMS, tree) && !differ(2, 16, &SUMS[1..], tree));
        assert!(differ(2, 16, &SUMS, parts) && !differ(2, 8, &SUMS, parts));
        // Rings stay on their rails, an all-to-all does not.
        let all_to_all = [Collective::AllToAll];
        assert!(
            !differ(2, 16, &SUMS, narrow) && differ(2, 16, &all_to_all, narrow) && !differ(2, 8, &all_to_all, narrow)
        );
    }
}
