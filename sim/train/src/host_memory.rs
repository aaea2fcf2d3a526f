//! Bytes that a training job keeps in the memory of its hosts: shares of states that a scenario puts there, and activations that wait between two passes.
//!
//! What a rank keeps for the whole step follows from its stages; activations are those of played steps. A node has the sum of its ranks. Of every parameter that
//! the host steps, frameworks keep its gradient there besides, in pinned memory for the whole run, and some its 16 bits on their way back:
//!
//! - Megatron-Core (`HybridDeviceOptimizer`, `cpu_copy_map_grad`): a gradient as wide as the master copy;
//! - DeepSpeed (`initialize_optimizer_states` of `stage_1_and_2.py` and `stage3.py`): the same, and in ZeRO 1 and 2 a partition of 16 bits
//!   (`param_buffer_of_bit16_for_cpu_offload_groups`);
//! - FSDP2 (`CPUOffloadPolicy`): a gradient as wide as the sharded parameter.
//!
//! Not counted are what an allocator of pinned memory rounds up, ZeRO's buffer of the largest parameter (`temp_grad_buffer_for_cpu_offload`), input pipelines, and
//! checkpoints of a run of days. The published formulas have no such copies.

use std::collections::{BTreeMap, BTreeSet};

use engine::task::{CopyKind, LaneId, Op, Role, TaskGraph};
use engine::timeline::Timeline;
use engine::verdict::Refused;
use hw::{Cluster, Rank};

use crate::layout::Zero;
use crate::memory;
use crate::optimizer::{Optimizer, Rule};
use crate::problem::{Execution, Framework, Problem};
use crate::schedule::Pipeline;
use crate::stage::{Stage, stages};

/// What lies on the hosts, in the order of `Kept::bytes`.
const PARTS: [&str; 5] = ["optimizer states", "gradients", "parameters", "activations", "pinned copies"];

/// Bytes of a gradient of a parameter without a master copy: 32 bits, as the host's Adam takes it.
const GRADIENT: f64 = 4.0;

/// Bytes of a node, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    /// Optimizer states, gradients, parameters, activations, pinned copies of gradients and parameters.
    pub bytes: [f64; 5],
}

impl Kept {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.bytes.iter().sum()
    }

    /// The same with so many bytes of activations.
    #[must_use]
    pub fn with_activations(self, bytes: u64) -> Self {
        let [optimizer, gradients, parameters, _, copies] = self.bytes;
        Self { bytes: [optimizer, gradients, parameters, hw::real(bytes), copies] }
    }

    fn and(self, other: Self) -> Self {
        let mut bytes = self.bytes;
        bytes.iter_mut().zip(other.bytes).for_each(|(sum, more)| *sum += more);
        Self { bytes }
    }

    /// Its parts in GiB, the empty ones left out.
    fn parts(&self) -> String {
        let all = PARTS.iter().zip(self.bytes).filter(|(_, bytes)| *bytes > 0.0);
        let said: Vec<String> = all.map(|(name, bytes)| format!("{name} {:.1} GiB", bytes / hw::GIB)).collect();
        said.join(", ")
    }

    /// All of it as a figure of the contract; `None` where no host keeps anything.
    pub fn figure(&self) -> Option<(String, f64)> {
        Some(("host_memory_bytes".to_owned(), self.total())).filter(|(_, bytes)| *bytes > 0.0)
    }

    /// What the fullest node keeps, as a sentence; `None` where no host keeps anything.
    pub fn words(&self) -> Option<String> {
        (self.total() > 0.0).then(|| format!("the host of the fullest node keeps {}", self.parts()))
    }

    /// Whether the hosts of a job have room for it. Hosts whose memory is not known have.
    ///
    /// # Errors
    /// A sentence with the figures.
    pub fn fits(&self, problem: &Problem) -> Result<(), Refused> {
        self.fits_nodes(&problem.cluster, "a node", "cluster")
    }

    /// The same of machines that a section describes.
    ///
    /// # Errors
    /// As `fits`.
    pub fn fits_nodes(&self, cluster: &Cluster, node: &str, section: &str) -> Result<(), Refused> {
        let needed = self.total();
        match cluster.host_memory {
            Some(room) if needed > room.as_f64() => Err(Refused::out_of_memory(format!(
                "the host of {node} needs {:.1} GiB ({}), and has {:.1} GiB (`{section}.host_memory_gib`)",
                needed / hw::GIB,
                self.parts(),
                room.as_f64() / hw::GIB
            ))),
            _ => Ok(()),
        }
    }
}

/// What a rank keeps for the whole step: its states with everything on the device, less those with what is said to lie on the host.
pub fn of_states(problem: &Problem, held: &[Stage]) -> Kept {
    let execution = &problem.execution;
    let optimizer = Optimizer { on_host: None, ..execution.optimizer };
    let whole = Execution { optimizer, parameters_on_host: false, ..execution.clone() };
    let whole = memory::states(&Problem { execution: whole, ..problem.clone() }, held);
    let here = memory::states(problem, held);
    let less = |of: fn(&memory::States) -> hw::Bytes| (of(&whole).as_f64() - of(&here).as_f64()).max(0.0);
    let copies = stepped_there(problem, held) * copied(problem);
    Kept { bytes: [less(|of| of.optimizer), less(|of| of.gradients), less(|of| of.parameters), 0.0, copies] }
}

/// Parameters of a rank that its host steps, counted by what Adam would keep of them.
fn stepped_there(problem: &Problem, held: &[Stage]) -> f64 {
    let states = |on_host| {
        let optimizer = Optimizer { rule: Rule::Adam, on_host, ..problem.execution.optimizer };
        let execution = Execution { optimizer, ..problem.execution.clone() };
        memory::states(&Problem { execution, ..problem.clone() }, held).optimizer.as_f64()
    };
    let [_, of_one] = memory::bytes_per_parameter(problem);
    (states(None) - states(problem.execution.optimizer.on_host)).max(0.0) / of_one
}

/// Bytes that stay pinned of a parameter which the host steps.
fn copied(problem: &Problem) -> f64 {
    let gradient = problem.execution.optimizer.master.map_or(GRADIENT, |master| hw::real(master.bytes()));
    let whole = hw::real(problem.dtype.bytes());
    match problem.execution.framework {
        Framework::Formulas => 0.0,
        Framework::DeepSpeed(_) if problem.layout.zero < Zero::Parameters => gradient + whole,
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => gradient,
    }
}

/// What the fullest node keeps in played steps.
pub fn of_steps<'s>(problem: &Problem, steps: impl Iterator<Item = (&'s TaskGraph, &'s Timeline)>) -> Kept {
    let execution = &problem.execution;
    let mut activations: BTreeMap<u32, u64> = BTreeMap::new();
    for (graph, timeline) in steps {
        for (lane, peak) in waiting(graph, timeline) {
            let most = activations.entry(graph.lanes[lane.index()].stage).or_default();
            *most = peak.max(*most);
        }
    }
    let has_states = execution.optimizer.on_device() < 1.0 || problem.hosts_parameters();
    if execution.unit_times.is_some() || !has_states && activations.is_empty() {
        return Kept::default();
    }
    let (all, layout) = (stages(problem), &problem.layout);
    let pipeline = Pipeline::of_schedule(problem.schedule, layout.pp as usize, layout.chunks as usize, 1);
    let of_rank = |pp: u32| {
        let held: Vec<Stage> =
            (0..layout.chunks as usize).map(|chunk| all[pipeline.stage(pp as usize, chunk)]).collect();
        let kept = of_states(&problem.at_stage(pp as usize), &held);
        kept.with_activations(activations.get(&pp).copied().unwrap_or(0))
    };
    let by_stage: Vec<Kept> = (0..layout.pp).map(of_rank).collect();
    fullest(problem, &by_stage)
}

/// The fullest node, where ranks of a pipeline stage keep so much each.
fn fullest(problem: &Problem, by_stage: &[Kept]) -> Kept {
    let (n_ranks, per_node) = (problem.layout.n_ranks(), problem.cluster.gpus_per_node.max(1));
    // Nodes with ranks of the same stages are alike.
    let stages_of = |first: u32| {
        let ranks = first..(first + per_node).min(n_ranks);
        ranks.map(|rank| problem.position(Rank(rank)).pp).collect::<Vec<u32>>()
    };
    let nodes: BTreeSet<Vec<u32>> = (0..n_ranks).step_by(per_node as usize).map(stages_of).collect();
    fullest_of(nodes.iter().map(|node| node.iter().map(|pp| by_stage[*pp as usize]).collect()))
}

/// The fullest of some nodes, each with what its ranks keep.
pub fn fullest_of(nodes: impl Iterator<Item = Vec<Kept>>) -> Kept {
    let sum = |node: Vec<Kept>| node.into_iter().fold(Kept::default(), Kept::and);
    nodes.map(sum).max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default()
}

/// Most bytes of activations that each lane has on its host at once: there from the end of their copy until the last backward of the micro-batch.
fn waiting(graph: &TaskGraph, timeline: &Timeline) -> BTreeMap<LaneId, u64> {
    let mut sent: BTreeMap<(LaneId, u32), u64> = BTreeMap::new();
    let mut moves: BTreeMap<LaneId, Vec<(hw::Time, bool, u64)>> = BTreeMap::new();
    for (index, task) in graph.tasks.iter().enumerate().filter(|(_, task)| task.role == Role::Offload) {
        if let Some(bytes) = to_host(&graph.ops[task.op.0 as usize]) {
            *sent.entry((task.lane, task.micro_batch)).or_default() += bytes;
            moves.entry(task.lane).or_default().push((timeline.end[index], true, bytes));
        }
    }
    let mut ends: BTreeMap<(LaneId, u32), hw::Time> = BTreeMap::new();
    for (index, task) in
        graph.tasks.iter().enumerate().filter(|(_, task)| sent.contains_key(&(task.lane, task.micro_batch)))
    {
        let end = ends.entry((task.lane, task.micro_batch)).or_insert(timeline.end[index]);
        *end = (*end).max(timeline.end[index]);
    }
    for (key, end) in ends {
        moves.entry(key.0).or_default().push((end, false, sent[&key]));
    }
    moves.into_iter().map(|(lane, moves)| (lane, highest(moves))).collect()
}

/// The highest sum of what has come and not gone; what goes does so before what comes at the same moment.
fn highest(mut moves: Vec<(hw::Time, bool, u64)>) -> u64 {
    moves.sort_unstable();
    let (mut now, mut most) = (0_u64, 0);
    for (_, comes, bytes) in moves {
        now = if comes { now + bytes } else { now.saturating_sub(bytes) };
        most = most.max(now);
    }
    most
}

/// Bytes of a rank's copy to the host. Ranks that take turns have a copy each.
fn to_host(op: &Op) -> Option<u64> {
    match op {
        Op::Copy { kind: CopyKind::DeviceToHost, bytes } => Some(*bytes),
        Op::Sequence(ops) => to_host(&ops.first()?.0),
        _ => None,
    }
}
