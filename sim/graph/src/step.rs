//! Steps of training as a task graph of the engine: sample, gather over PCIe and NVLink, forward, backward, reduction, update.
//!
//! Reading is a stream of its own beside training, as loaders with a queue of two batches do it: a batch is read while the one before is
//! trained. Sampling and gathering are kernels that read over PCIe and memory, so they stand on the stream of copies from the host. What
//! they take from the multiprocessors while products run is left out. GPUs of a PCIe switch share its link, which the engine plays.

use engine::task::{Collective, CopyKind, Lane, LaneId, Op, Role, Stream, Task, TaskGraph, TaskId};
use hw::{Cluster, Format, GroupShape, Rank};

use crate::cache::LINE_BYTES;

/// Batches that may wait between reading and training.
const QUEUE: usize = 2;

/// Kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The mean of the neighbours beside the vertex itself (arXiv:1706.02216).
    GraphSage,
    /// The weighted sum with the vertex itself (arXiv:1609.02907).
    Gcn,
}

/// A network of one layer per hop, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Kind of its layers.
    pub layer: Layer,
    /// Numbers of a feature.
    pub width: u64,
    /// Numbers between layers, and at the end.
    pub hidden: u64,
}

/// What a GPU does for a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuStep {
    /// Transactions over PCIe for rows.
    pub row_lines: f64,
    /// Transactions over PCIe for features.
    pub feature_lines: f64,
    /// Bytes from other GPUs of the clique.
    pub peer_bytes: f64,
    /// Bytes from its own memory.
    pub local_bytes: f64,
    /// Vertices of the frontiers, per hop and gathered.
    pub n_vertices: Vec<f64>,
    /// Edges picked, per hop.
    pub n_picks: Vec<f64>,
}

/// Who samples and who trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every GPU does both.
    Together,
    /// The first so many GPUs sample for the others (GNNLab, EuroSys 2022).
    Apart {
        /// GPUs that sample.
        n_samplers: u32,
    },
}

/// A graph in the making.
struct Builder<'a> {
    graph: TaskGraph,
    cluster: &'a Cluster,
    network: Network,
    split: Split,
    /// Last task that read a batch, per GPU and batch.
    ready: Vec<Vec<Vec<TaskId>>>,
    /// Last task that trained on a batch, per GPU and batch.
    trained: Vec<Vec<TaskId>>,
}

/// Tasks of `n_steps` steps; every GPU trains on one batch in each, except those that only sample.
///
/// # Panics
/// When there is not one entry for each GPU.
pub fn steps(cluster: &Cluster, network: Network, split: Split, gpus: &[GpuStep], n_steps: usize) -> TaskGraph {
    assert_eq!(gpus.len(), cluster.n_gpus() as usize, "a step for every GPU");
    let n = gpus.len();
    let lane = |rank| Lane { rank: Rank(rank), multiplicity: 1, group: rank, stage: 0, rate: 1.0 };
    let graph = TaskGraph::with_lanes((0..cluster.n_gpus()).map(lane).collect());
    let mut builder =
        Builder { graph, cluster, network, split, ready: vec![Vec::new(); n], trained: vec![Vec::new(); n] };
    builder.read(gpus, 0);
    for step in 0..n_steps {
        // In the order of the streams the next batch is read before this one's gradients are reduced.
        if step + 1 < n_steps {
            builder.read(gpus, step + 1);
        }
        builder.train(gpus, step);
    }
    builder.graph
}

/// First GPU that trains.
const fn first_trainer(split: Split) -> u32 {
    match split {
        Split::Together => 0,
        Split::Apart { n_samplers } => n_samplers,
    }
}

fn bytes(amount: f64) -> u64 {
    hw::whole(amount)
}

/// A kernel that reads lines over PCIe and bytes of its own memory.
fn reading(lines: f64, local_bytes: f64) -> Op {
    let over_pcie = Op::Copy { kind: CopyKind::HostToDevice, bytes: bytes(lines) * LINE_BYTES };
    let here = Op::Elementwise { bytes: bytes(local_bytes) };
    match (lines >= 0.5, local_bytes >= 0.5) {
        (true, true) => Op::Sequence(vec![(over_pcie, 1), (here, 1)]),
        (true, false) => over_pcie,
        _ => here,
    }
}

impl Builder<'_> {
    fn add(&mut self, op: Op, gpu: u32, stream: Stream, role: Role, step: usize, preds: &[TaskId]) -> TaskId {
        let op = self.graph.add_op(op);
        let micro_batch = u32::try_from(step).expect("few steps");
        self.graph.add_task(Task { op, lane: LaneId(gpu), stream, role, micro_batch, meeting: None }, preds)
    }

    /// A collective of consecutive GPUs; each waits for its own tasks.
    fn meet(
        &mut self,
        kind: Collective,
        amount: u64,
        first: u32,
        role: Role,
        step: usize,
        preds: &[Vec<TaskId>],
    ) -> Vec<TaskId> {
        let n_ranks = u32::try_from(preds.len()).expect("GPUs of a machine");
        let members: Vec<Rank> = (first..first + n_ranks).map(Rank).collect();
        let shape: GroupShape = self.cluster.shape_of(&members);
        let group = self.graph.add_group(&members);
        let meeting = Some(self.graph.add_meeting(group));
        let op = self.graph.add_op(Op::Collective { kind, bytes: amount, shape });
        let micro_batch = u32::try_from(step).expect("few steps");
        let mut tasks = Vec::with_capacity(preds.len());
        for (gpu, preds) in (first..).zip(preds) {
            let task = Task { op, lane: LaneId(gpu), stream: Stream::IntraNode, role, micro_batch, meeting };
            tasks.push(self.graph.add_task(task, preds));
        }
        tasks
    }

    /// Reads the batches of a step on every GPU that trains.
    fn read(&mut self, gpus: &[GpuStep], step: usize) {
        let first = first_trainer(self.split);
        let n = self.cluster.n_gpus();
        let mut sampled: Vec<Vec<TaskId>> = vec![Vec::new(); n as usize];
        for gpu in first..n {
            let own = &gpus[gpu as usize];
            // A queue of two: the batch before the last must be trained on before the next one is read.
            let wait: Vec<TaskId> =
                step.checked_sub(QUEUE).map(|at| self.trained[gpu as usize][at]).into_iter().collect();
            let picks: f64 = own.n_picks.iter().sum();
            let kernel = match self.split {
                Split::Together => {
                    let op = reading(own.row_lines, hw::real(LINE_BYTES) * picks);
                    self.add(op, gpu, Stream::HostToDevice, Role::Sampling, step, &wait)
                }
                Split::Apart { n_samplers } => {
                    self.sampled_elsewhere(own, gpu, (gpu - first) % n_samplers, step, &wait)
                }
            };
            sampled[gpu as usize].push(kernel);
            let op = reading(own.feature_lines, own.local_bytes);
            let features = self.add(op, gpu, Stream::HostToDevice, Role::Gather, step, &[kernel]);
            self.ready[gpu as usize].push(vec![features]);
        }
        self.read_peers(gpus, step, &sampled);
    }

    /// Another GPU samples, and the batch comes over the host.
    fn sampled_elsewhere(&mut self, own: &GpuStep, gpu: u32, sampler: u32, step: usize, wait: &[TaskId]) -> TaskId {
        let picks: f64 = own.n_picks.iter().sum();
        let kernel = Op::Elementwise { bytes: bytes(hw::real(LINE_BYTES) * picks) };
        let kernel = self.add(kernel, sampler, Stream::Compute, Role::Sampling, step, wait);
        // Both ends of every edge, 4 bytes each.
        let size = bytes(8.0 * picks);
        let out = Op::Copy { kind: CopyKind::DeviceToHost, bytes: size };
        let out = self.add(out, sampler, Stream::DeviceToHost, Role::Sampling, step, &[kernel]);
        let back = Op::Copy { kind: CopyKind::HostToDevice, bytes: size };
        self.add(back, gpu, Stream::HostToDevice, Role::Sampling, step, &[out])
    }

    /// GPUs of a clique read from each other; each reads as much, so the largest amount stands for all.
    fn read_peers(&mut self, gpus: &[GpuStep], step: usize, sampled: &[Vec<TaskId>]) {
        let size = self.cluster.nvlink_island.min(self.cluster.n_gpus());
        let first = first_trainer(self.split);
        for clique in (0..self.cluster.n_gpus()).step_by(size as usize) {
            let members = clique as usize..(clique + size) as usize;
            let most = gpus[members.clone()].iter().map(|gpu| gpu.peer_bytes).fold(0.0, f64::max);
            if most < 0.5 || clique < first {
                continue;
            }
            // An all-to-all sends 1/K to each of K ranks, itself among them.
            let amount = bytes(most * f64::from(size) / f64::from(size - 1));
            let tasks = self.meet(Collective::AllToAll, amount, clique, Role::Gather, step, &sampled[members]);
            for (gpu, task) in (clique as usize..).zip(tasks) {
                self.ready[gpu][step].push(task);
            }
        }
    }

    /// Trains on the batches of a step and reduces the gradients.
    fn train(&mut self, gpus: &[GpuStep], step: usize) {
        let first = first_trainer(self.split);
        let mut backward = Vec::new();
        for gpu in first..self.cluster.n_gpus() {
            let preds = self.ready[gpu as usize][step].clone();
            let parts = forward(&self.network, &gpus[gpu as usize]);
            let task = self.add(Op::Sequence(parts.clone()), gpu, Stream::Compute, Role::Forward, step, &preds);
            // Gradients of inputs and weights: twice the products and the traffic.
            let twice: Vec<(Op, u32)> = parts.into_iter().map(|(op, n)| (op, 2 * n)).collect();
            let task = self.add(Op::Sequence(twice), gpu, Stream::Compute, Role::Backward, step, &[task]);
            backward.push(vec![task]);
        }
        let n_hops = gpus[first as usize].n_picks.len();
        let weights = n_weights(&self.network, n_hops);
        let reduced = if backward.len() > 1 {
            self.meet(Collective::AllReduce, 4 * weights, first, Role::GradientSync, step, &backward)
        } else {
            backward.concat()
        };
        for (gpu, reduced) in (first..).zip(reduced) {
            // Adam reads and writes weights and two moments, and reads gradients: 7 numbers of 4 bytes.
            let op = Op::Elementwise { bytes: 28 * weights };
            let task = self.add(op, gpu, Stream::Compute, Role::Optimizer, step, &[reduced]);
            self.trained[gpu as usize].push(task);
        }
    }
}

/// Numbers that a vertex brings into a layer's product, over its width.
const fn fan_in(layer: Layer) -> u64 {
    match layer {
        Layer::GraphSage => 2,
        Layer::Gcn => 1,
    }
}

/// Weights of all layers.
pub fn n_weights(network: &Network, n_hops: usize) -> u64 {
    let first = fan_in(network.layer) * network.width * network.hidden;
    let later = fan_in(network.layer) * network.hidden * network.hidden;
    first + (n_hops as u64 - 1) * later
}

/// Operations of a forward pass: the layer nearest to the features works on the last hop's edges, the last layer on the seeds'.
fn forward(network: &Network, step: &GpuStep) -> Vec<(Op, u32)> {
    let n_hops = step.n_picks.len();
    let mut parts = Vec::with_capacity(2 * n_hops);
    for layer in 0..n_hops {
        let hop = n_hops - 1 - layer;
        let width = if layer == 0 { network.width } else { network.hidden };
        let rows = bytes(step.n_vertices[hop]).max(1);
        // Every edge brings a row of numbers, every vertex writes its sum; 4 bytes each.
        let aggregated = 4.0 * hw::real(width) * (step.n_picks[hop] + step.n_vertices[hop]);
        parts.push((Op::Elementwise { bytes: bytes(aggregated) }, 1));
        let k = fan_in(network.layer) * width;
        parts.push((Op::Gemm { m: rows, n: network.hidden, k, format: Format::Fp32 }, 1));
    }
    parts
}

/// Bytes of a batch on a GPU: two batches of features in the queue, and what the layers keep for backward.
pub fn batch_bytes(network: &Network, step: &GpuStep) -> f64 {
    let n_hops = step.n_picks.len();
    let features = hw::real(4 * network.width) * step.n_vertices[n_hops];
    let kept: f64 =
        step.n_vertices[..n_hops].iter().map(|n| n * hw::real(4 * (network.width + 2 * network.hidden))).sum();
    let edges: f64 = step.n_picks.iter().map(|n| 8.0 * n).sum();
    hw::real(QUEUE as u64) * (features + edges) + kept
}

#[cfg(test)]
mod tests;
