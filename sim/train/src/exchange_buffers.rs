//! Memory that connections of NCCL or RCCL hold on a device. It lies outside of PyTorch's allocator: no figure of `max_memory_allocated` has it, the card does.
//!
//! Who receives over NVLink has a buffer for each of three protocols in every channel, in one allocation of whole pages; who sends has one page
//! (NVIDIA/nccl @ 5067397c, `p2pSendSetup` and `p2pRecvSetup` of src/transport/p2p.cc, `computeBuffSizes` of src/init.cc). A ring has a neighbour
//! before and one behind in every channel. Messages have their own channels to every peer, and those to other nodes share a pool. Connections are made when they are first used.
//! Trees, NVLS, and groups that exchange a few numbers a step are not counted. Derived from the source, and compared with two measured figures:
//! NVIDIA/nccl issue 1685 (a first all-to-all among eight H100: allocations of 10 and 2 MiB in 32 channels for every pair, 3.28 GB more on the card) and issue
//! 964 (four A100: 544 MB for a group of two and 688 MB for one of three or four, with trees and the library's own code).
//!
//! RCCL is the same library with threads, channels and defaults of its own on cards of AMD (ROCm/rccl @ 0cbce2a7571c, of MI300X). No measured figure of it is known. MI350X
//! has as many channels, until RCCL 2.30.4 lowered those between nodes from 64 to 48.

use engine::shard::Framework;
use hw::{Bytes, Capability, InsideLink, Maker, Rank};

use crate::layout::{ContextExchange, Position};
use crate::problem::Problem;

/// Bytes of the buffer for large chunks (`DEFAULT_BUFFSIZE`).
const SIMPLE: u64 = 4 << 20;
/// The buffers of a receiver for small chunks: 8 steps of 512 threads with 8 lines of 16 bytes (LL), and of 640 threads with 120 words of 8 bytes (LL128).
const SMALL: u64 = 8 * 512 * 8 * 16 + 8 * 640 * 120 * 8;
/// The same of RCCL: 8 steps of 256 threads with 8 lines of 16 bytes, and with 28 words of 8 bytes (src/include/device.h).
const SMALL_OF_AMD: u64 = 8 * 256 * 8 * 16 + 8 * 256 * 28 * 8;
/// What allocations are rounded up to (`CUDA_IPC_MIN`).
const PAGE: u64 = 2 << 20;
/// Channels of a ring over NVLink: six of 40 GB/s on Ampere, six of 60 on Hopper, eight of 90 on Blackwell, each halved and doubled
/// (`ncclTopoCompute`, `ncclTopoDupChannels`, `ncclTopoPostset`).
const RING_CHANNELS: [u64; 2] = [24, 32];
/// The same over PCIe.
const BUS_CHANNELS: u64 = 2;
/// Channels of a ring over cards of AMD: of two, of up to four, and of more (src/init.cc; `rome_model_81` of src/graph/rome_models.cc has 64 rings).
const RING_CHANNELS_OF_AMD: [u64; 3] = [32, 24, 64];
/// Channels to a peer there, where all are in one node, and else (`ncclTopoComputeP2pChannels`).
const PEER_CHANNELS_OF_AMD: [u64; 2] = [8, 2];
/// Channels to a peer of messages over NVLink, twice the links as a power of two, at most 32 (`ncclTopoComputeP2pChannels`).
const PEER_CHANNELS: u64 = 32;
/// Part of a channel in the pool of messages to other nodes, of which there is one for each way: 16 steps of 128 KiB (`sharedNetBuffersInit`).
const POOLED: u64 = 16 * (128 << 10);
/// Channels of such a pool; those of RCCL.
const POOL_CHANNELS: [u64; 2] = [32, 64];

/// Buffers of a rank of a run; none where no framework is asked.
pub fn of(problem: &Problem) -> Bytes {
    if problem.execution.framework == Framework::Formulas {
        return Bytes::ZERO;
    }
    let (layout, experts) = (&problem.layout, problem.model.experts.is_some());
    let data = layout.dp * layout.cp;
    let expert_ranks = if experts { layout.ep * layout.expert_tp } else { 1 };
    let is_gathered = layout.exchange == ContextExchange::Gather;
    let rings = [
        (layout.tp, true),
        (data, true),
        (data * layout.tp / expert_ranks, expert_ranks > 1),
        (layout.cp, is_gathered),
    ];
    let of_rings: u64 =
        rings.iter().filter(|(n_ranks, runs)| *runs && *n_ranks > 1).map(|(n, _)| ring_channels(problem, *n)).sum();
    let is_amd = problem.cluster.gpu.maker() == Maker::Amd;
    let [inside, across] = peers(problem);
    let to_peers = inside * peer_channels(problem);
    let pools = if across > 0 { 2 * POOL_CHANNELS[usize::from(is_amd)] * POOLED } else { 0 };
    Bytes((of_rings + to_peers) * connection(if is_amd { SMALL_OF_AMD } else { SMALL }) + pools)
}

/// A connection of a channel, both of its ways, with such buffers for small chunks.
const fn connection(small: u64) -> u64 {
    (SIMPLE + small).next_multiple_of(PAGE) + PAGE
}

/// Channels of a ring over so many ranks.
fn ring_channels(problem: &Problem, n_ranks: u32) -> u64 {
    let cluster = &problem.cluster;
    if cluster.inside_link(cluster.gpus_per_node) != InsideLink::Own || !cluster.gpu.has_own_link() {
        return BUS_CHANNELS;
    }
    match (cluster.gpu.maker(), n_ranks) {
        (Maker::Amd, 0..=2) => RING_CHANNELS_OF_AMD[0],
        (Maker::Amd, 3..=4) => RING_CHANNELS_OF_AMD[1],
        (Maker::Amd, _) => RING_CHANNELS_OF_AMD[2],
        _ => RING_CHANNELS[usize::from(cluster.gpu.capability() == Capability::Ten)],
    }
}

/// Channels to a peer in its node.
fn peer_channels(problem: &Problem) -> u64 {
    let of_ring = ring_channels(problem, problem.layout.n_ranks());
    if problem.cluster.gpu.maker() == Maker::Amd && of_ring > BUS_CHANNELS {
        return PEER_CHANNELS_OF_AMD[usize::from(problem.cluster.n_domains() > 1)];
    }
    of_ring.min(PEER_CHANNELS).next_power_of_two()
}

/// Peers that a rank sends messages to, inside its node and in others: neighbours of its stage, of a ring of keys and values, and all ranks of a group of
/// experts or of heads. DeepEP and HybridEP do without.
fn peers(problem: &Problem) -> [u64; 2] {
    let (layout, cluster) = (&problem.layout, &problem.cluster);
    let rank = |position| layout.rank(position);
    let neighbours = |n: u32| n.min(3).saturating_sub(1);
    let stages = (1..=neighbours(layout.pp)).map(|step| rank(Position { pp: step, ..Position::default() }));
    let n_context = match layout.exchange {
        ContextExchange::Gather => 0,
        ContextExchange::Ring => neighbours(layout.cp),
        ContextExchange::Ulysses => layout.cp - 1,
    };
    let context = (1..=n_context).map(|step| rank(Position { cp: step, ..Position::default() }));
    let is_sent = problem.model.experts.is_some() && !problem.execution.experts.dispatcher.is_once_per_node();
    let n_experts = if is_sent { layout.ep - 1 } else { 0 };
    // Ranks of a group of experts follow one another, but for those of one expert's cut.
    let experts = (1..=n_experts).map(|step| Rank(step * layout.expert_tp));
    let all: Vec<Rank> = stages.chain(context).chain(experts).collect();
    let inside = all.iter().filter(|&&peer| cluster.domain_of(peer) == 0).count() as u64;
    [inside, all.len() as u64 - inside]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, Zero};
    use crate::problem::Execution;
    use crate::workload::Workload;
    use engine::dispatcher::Dispatcher;

    /// Buffers in MiB of a run of `dp` replicas on nodes of eight cards by Megatron-Core.
    fn mib(card: &str, model: &str, dp: u32, change: impl Fn(&mut Problem)) -> u64 {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let mut problem = Problem {
            model: engine::model::embedded(model).expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 2, 8),
            layout: Layout::data_and_context(dp, 1, Zero::OptimizerStates, ContextExchange::Gather),
            workload: Workload { batch_size: 8, lengths: vec![8192; 8], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 8192,
            execution: Execution { framework: Framework::MegatronCore, ..Execution::default() },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: Bytes::ZERO,
            seed: 1,
        };
        change(&mut problem);
        of(&problem).0 >> 20
    }

    #[test]
    fn a_ring_has_twelve_mib_in_every_channel() {
        // 0.5, 4.6875 and 4 MiB are five pages of 2 MiB with what stands before them, and the sender has one.
        assert_eq!(connection(SMALL) >> 20, 12);
        let dense = "llama-3.1-8b";
        assert_eq!(mib("h100-sxm", dense, 8, |_| {}), 24 * 12);
        assert_eq!(mib("b200", dense, 8, |_| {}), 32 * 12);
        assert_eq!(mib("a100-pcie-80g", dense, 8, |_| {}), 2 * 12);
        assert_eq!(mib("h100-sxm", dense, 1, |_| {}), 0, "one rank exchanges with nobody");
        // Two groups: of the tensor ranks and of the replicas.
        assert_eq!(mib("h100-sxm", dense, 4, |problem| problem.layout.tp = 2), 2 * 24 * 12);
        let formulas = |problem: &mut Problem| problem.execution.framework = Framework::Formulas;
        assert_eq!(mib("h100-sxm", dense, 8, formulas), 0);
    }

    /// RCCL: 0.25, 0.4375 and 4 MiB are three pages of 2 MiB, and the sender has one.
    #[test]
    fn a_ring_of_cards_of_amd_has_eight_mib_in_more_channels() {
        assert_eq!(connection(SMALL_OF_AMD) >> 20, 8);
        let replicas = |dp| mib("mi300x", "llama-3.1-8b", dp, |_| {});
        assert_eq!([2, 4, 8, 16].map(replicas), [32 * 8, 24 * 8, 64 * 8, 64 * 8]);
        // Two nodes are there: a peer of the node has two channels, and one of another node is in two pools of 128 MiB.
        let experts = |dp: u32| mib("mi300x", "qwen3-30b-a3b", dp, |problem| problem.layout.ep = dp);
        assert_eq!([8, 16].map(experts), [(64 + 7 * 2) * 8, (64 + 7 * 2) * 8 + 256]);
    }

    #[test]
    fn a_first_all_to_all_of_eight_takes_what_was_seen() {
        // NVIDIA/nccl, issue 1685: 1.06 GB of a card were used before, 4.34 GB after. Of a group with experts without its ring of replicas.
        let found = mib("h100-sxm", "qwen3-30b-a3b", 8, |problem| problem.layout.ep = 8) - 24 * 12;
        let gb = hw::real(found << 20) / 1e9;
        assert!((0.85..1.0).contains(&(gb / (4.34 - 1.06))), "{gb} GB");
    }

    #[test]
    fn messages_have_their_own_channels_to_every_peer() {
        let experts = "qwen3-30b-a3b";
        let rings = 24 * 12;
        // Seven peers of a node with 32 channels each, beside the ring of replicas.
        let in_a_node = |problem: &mut Problem| problem.layout.ep = 8;
        assert_eq!(mib("h100-sxm", experts, 8, in_a_node), rings + 7 * 32 * 12);
        // Sixteen ranks of two nodes: eight of the other node share two pools of 64 MiB.
        let over_nodes = |problem: &mut Problem| problem.layout.ep = 16;
        assert_eq!(mib("h100-sxm", experts, 16, over_nodes), rings + 7 * 32 * 12 + 128);
        let once = |problem: &mut Problem| {
            problem.layout.ep = 8;
            problem.execution.experts.dispatcher = Dispatcher::DeepEp;
        };
        assert_eq!(mib("h100-sxm", experts, 8, once), rings, "DeepEP and HybridEP send by themselves");
        // A stage has one behind, in a pipeline of two, in the other node.
        let stages = |problem: &mut Problem| problem.layout.pp = 2;
        assert_eq!(mib("h100-sxm", "llama-3.1-8b", 8, stages), rings + 128);
    }
}
