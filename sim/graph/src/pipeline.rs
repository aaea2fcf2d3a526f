//! Batches that workers of the host prepare and GPUs train on: a copy over PCIe, a forward and a backward pass, a reduction, an update.
//!
//! Each GPU has workers of its own; worker w prepares the batches w, w + W, … of its GPU, as loaders with processes do. Where preparing
//! overlaps with training a worker is at most two of its batches ahead; where it does not, a batch is prepared after the one before is trained.

use engine::task::{Collective, CopyKind, Lane, LaneId, Op, Ops, Role, Stream, Task, TaskGraph, TaskId};
use hw::{Cluster, Rank, Span};

/// Batches of a worker that may wait.
const AHEAD: usize = 2;

/// Whether the host prepares while GPUs train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// It waits for the batch before.
    None,
    /// It goes ahead.
    Ahead,
}

/// What a batch takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Workers of each GPU.
    pub n_workers: u32,
    /// Time of one worker.
    pub preparing: Span,
    /// Bytes to the GPU.
    pub copied_bytes: u64,
    /// Forward pass.
    pub forward: Ops,
    /// Backward pass.
    pub backward: Ops,
    /// Bytes of gradients that all GPUs add up.
    pub reduced_bytes: u64,
    /// Whether parts overlap.
    pub overlap: Overlap,
}

/// GPUs, and behind them the workers of each. A worker stands beside its GPU; it loads no link.
fn lanes(n_gpus: u32, n_workers: u32) -> Vec<Lane> {
    let lane = |rank| Lane { rank: Rank(rank), multiplicity: 1, group: rank, stage: 0, rate: 1.0 };
    let workers = (0..n_gpus * n_workers).map(|worker| lane(worker / n_workers));
    (0..n_gpus).map(lane).chain(workers).collect()
}

/// Tasks of so many batches for every GPU that workers prepare, and that no GPU trains on.
///
/// # Panics
/// When there is no worker.
pub fn prepared(cluster: &Cluster, n_workers: u32, preparing: Span, n_batches: usize) -> TaskGraph {
    assert!(n_workers > 0, "somebody prepares batches");
    let n_gpus = cluster.n_gpus();
    let mut graph = TaskGraph::with_lanes(lanes(n_gpus, n_workers));
    let op = graph.add_op(Op::Host { ns: preparing.as_ns() });
    for at in 0..n_batches {
        let micro_batch = u32::try_from(at).expect("few batches");
        for gpu in 0..n_gpus {
            let lane = LaneId(n_gpus + gpu * n_workers + micro_batch % n_workers);
            let (stream, role) = (Stream::Compute, Role::Sampling);
            graph.add_task(Task { op, lane, stream, role, micro_batch, meeting: None }, &[]);
        }
    }
    graph
}

/// Tasks of so many batches on every GPU.
///
/// # Panics
/// When there is no worker.
pub fn batches(cluster: &Cluster, batch: &Batch, n_batches: usize) -> TaskGraph {
    assert!(batch.n_workers > 0, "somebody prepares batches");
    let n_gpus = cluster.n_gpus();
    let mut graph = TaskGraph::with_lanes(lanes(n_gpus, batch.n_workers));
    let members: Vec<Rank> = (0..n_gpus).map(Rank).collect();
    let ops = [
        graph.add_op(Op::Host { ns: batch.preparing.as_ns() }),
        graph.add_op(Op::Copy { kind: CopyKind::HostToDevice, bytes: batch.copied_bytes }),
        graph.add_op(Op::Sequence(batch.forward.clone())),
        graph.add_op(Op::Sequence(batch.backward.clone())),
        graph.add_op(Op::Collective {
            kind: Collective::AllReduce,
            bytes: batch.reduced_bytes,
            shape: cluster.shape_of(&members),
        }),
        // Adam reads and writes weights and two moments, and reads gradients.
        graph.add_op(Op::Elementwise { bytes: 7 * batch.reduced_bytes }),
    ];
    let group = graph.add_group(&members);
    let mut trained: Vec<Vec<TaskId>> = Vec::with_capacity(n_batches);
    for at in 0..n_batches {
        let micro_batch = u32::try_from(at).expect("few batches");
        let worker = micro_batch % batch.n_workers;
        let ahead = match batch.overlap {
            Overlap::None => 1,
            Overlap::Ahead => AHEAD * batch.n_workers as usize,
        };
        let meeting = (n_gpus > 1).then(|| graph.add_meeting(group));
        let mut updated = Vec::with_capacity(n_gpus as usize);
        for gpu in 0..n_gpus {
            let wait: Vec<TaskId> =
                at.checked_sub(ahead).map(|before| trained[before][gpu as usize]).into_iter().collect();
            let task = |op: usize, lane: u32, stream, role, meeting| Task {
                op: ops[op],
                lane: LaneId(lane),
                stream,
                role,
                micro_batch,
                meeting,
            };
            let host = n_gpus + gpu * batch.n_workers + worker;
            let mut last = graph.add_task(task(0, host, Stream::Compute, Role::Sampling, None), &wait);
            last = graph.add_task(task(1, gpu, Stream::HostToDevice, Role::Gather, None), &[last]);
            last = graph.add_task(task(2, gpu, Stream::Compute, Role::Forward, None), &[last]);
            last = graph.add_task(task(3, gpu, Stream::Compute, Role::Backward, None), &[last]);
            if meeting.is_some() {
                last = graph.add_task(task(4, gpu, Stream::IntraNode, Role::GradientSync, meeting), &[last]);
            }
            updated.push(graph.add_task(task(5, gpu, Stream::Compute, Role::Optimizer, None), &[last]));
        }
        trained.push(updated);
    }
    graph
}
