//! Nodes of every rank from the tasks of a step whose ranks are lanes of their own.

use std::collections::BTreeMap;

use engine::task::{Collective, CopyKind, Op, Task, TaskGraph, TaskId};
use engine::validation::elementary;
use engine::{CostModel, Model};
use hw::{Rank, real};
use train::metrics::op_flops;

/// Numbers of Chakra's collectives.
const ALL_REDUCE: u64 = 0;
const ALL_GATHER: u64 = 2;
const ALL_TO_ALL: u64 = 6;
const REDUCE_SCATTER: u64 = 7;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Load,
    Store,
    Computation,
    Send,
    Receive,
    Collective,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Int32(u32),
    Int64(u64),
    Uint64(u64),
    Flag(bool),
    Text(String),
}

/// A node of a rank's trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Nodes before it on its stream.
    pub(super) control: Vec<u64>,
    /// What it waits for besides.
    pub(super) data: Vec<u64>,
    pub(super) duration_us: u64,
    pub(super) attributes: Vec<(&'static str, Value)>,
}

/// What a trace has no words for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsayable {
    #[error("ranks that are simulated as one: stages of different tensor degrees")]
    Folded,
    #[error("a wait without a message: rank {rank} for `{what}` of rank {of}; `[cost.units]` makes such waits")]
    Bare { rank: u32, what: String, of: u32 },
}

/// Nodes of every rank, in an order in which each comes after what it waits for.
pub(super) fn traces(
    graph: &TaskGraph,
    (model, cost): (&Model, &dyn CostModel),
) -> Result<BTreeMap<u32, Vec<Node>>, Unsayable> {
    if graph.lanes.iter().any(|lane| lane.multiplicity > 1) {
        return Err(Unsayable::Folded);
    }
    let traces = graph.lanes.iter().map(|lane| (lane.rank.0, Vec::new())).collect();
    let mut writer = Writer {
        graph,
        model,
        cost,
        traces,
        n_nodes: 0,
        last: BTreeMap::new(),
        ended: Vec::new(),
        received: BTreeMap::new(),
    };
    for index in 0..graph.tasks.len() {
        writer.add(TaskId(u32::try_from(index).expect("ids fit u32")))?;
    }
    Ok(writer.traces)
}

struct Writer<'g> {
    graph: &'g TaskGraph,
    model: &'g Model,
    cost: &'g dyn CostModel,
    traces: BTreeMap<u32, Vec<Node>>,
    n_nodes: u64,
    /// Last nodes of every stream of every rank.
    last: BTreeMap<(Rank, usize), Vec<u64>>,
    /// Nodes that end each task on its own rank.
    ended: Vec<Vec<u64>>,
    /// Receiving ends of messages.
    received: BTreeMap<TaskId, u64>,
}

/// Parts of a task that a trace has a node for.
enum Piece<'o> {
    /// Kernels, one after another.
    Kernels(Vec<(&'o Op, u32)>),
    /// An exchange or a copy.
    Moved(&'o Op),
}

/// A task's parts: kernels in a row are one, and every exchange is one for each time that it runs.
fn pieces(op: &Op) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for (part, n) in elementary(op) {
        match (part, pieces.last_mut()) {
            (Op::Collective { .. } | Op::Copy { .. }, _) => pieces.extend((0..n).map(|_| Piece::Moved(part))),
            (kernel, Some(Piece::Kernels(all))) => all.push((kernel, n)),
            (kernel, _) => pieces.push(Piece::Kernels(vec![(kernel, n)])),
        }
    }
    pieces
}

/// The message of a task, where it is one.
fn message_of(op: &Op) -> Option<u64> {
    match elementary(op)[..] {
        [(Op::Collective { kind: Collective::SendRecv, bytes, .. }, 1)] => Some(*bytes),
        _ => None,
    }
}

impl Writer<'_> {
    fn op(&self, task: &Task) -> &Op {
        &self.graph.ops[task.op.0 as usize]
    }

    fn rank(&self, task: &Task) -> Rank {
        self.graph.lanes[task.lane.index()].rank
    }

    /// The group that a task meets, and its ranks.
    fn group(&self, task: &Task) -> (u32, &[Rank]) {
        let Some(meeting) = task.meeting else { return (0, &[]) };
        let group = self.graph.meetings[meeting.0 as usize];
        (group.0, &self.graph.groups[group.0 as usize])
    }

    /// Adds the nodes of a task to its rank, and the receiving ends of the messages that it waits for.
    fn add(&mut self, id: TaskId) -> Result<(), Unsayable> {
        let graph = self.graph;
        let task = &graph.tasks[id.0 as usize];
        let (rank, op) = (self.rank(task), &graph.ops[task.op.0 as usize]);
        let mut data = Vec::new();
        for pred in graph.preds(id) {
            data.extend(self.waited(*pred, rank)?);
        }
        let mut control = self.last.remove(&(rank, task.stream.index())).unwrap_or_default();
        for piece in pieces(op) {
            control = self.piece(id, &piece, (control, std::mem::take(&mut data)));
        }
        self.last.insert((rank, task.stream.index()), control.clone());
        self.ended.push(control);
        Ok(())
    }

    /// Adds the nodes of a part of a task; what comes next waits for those that it returns.
    fn piece(&mut self, id: TaskId, piece: &Piece<'_>, waits: Waits) -> Vec<u64> {
        let graph = self.graph;
        let task = &graph.tasks[id.0 as usize];
        let rank = self.rank(task);
        let (group, ranks) = self.group(task);
        let (kind, attributes) = match piece {
            Piece::Kernels(parts) => {
                let duration_us = self.duration_us(task, parts);
                return vec![self.push(task, (Kind::Computation, duration_us), waits, work(self.model, parts))];
            }
            Piece::Moved(Op::Copy { kind: CopyKind::DeviceToHost, bytes }) => (Kind::Store, sized(*bytes)),
            Piece::Moved(Op::Copy { bytes, .. }) => (Kind::Load, sized(*bytes)),
            Piece::Moved(Op::Collective { kind: Collective::SendRecv, bytes, .. }) => {
                let to = ranks.get(1).copied().unwrap_or(rank);
                (Kind::Send, message(*bytes, [rank, to], id.0))
            }
            Piece::Moved(Op::Collective { kind: Collective::RingShift, bytes, .. }) => {
                let [before, after] = neighbours(ranks, rank);
                let tag = hop_tag(graph, task);
                let received = message(*bytes, [before, rank], tag);
                let received = self.push(task, (Kind::Receive, 0), waits.clone(), received);
                let sent = self.push(task, (Kind::Send, 0), waits, message(*bytes, [rank, after], tag));
                return vec![received, sent];
            }
            Piece::Moved(Op::Collective { kind, bytes, .. }) => (Kind::Collective, exchange(*kind, *bytes, group)),
            Piece::Moved(other) => unreachable!("{} moves nothing", other.class()),
        };
        vec![self.push(task, (kind, 0), waits, attributes)]
    }

    /// Adds a node to the rank of a task.
    fn push(&mut self, task: &Task, (kind, duration_us): (Kind, u64), waits: Waits, attributes: Attributes) -> u64 {
        let rank = self.rank(task);
        self.push_to(
            rank,
            Node { id: 0, name: name(task), kind, control: waits.0, data: waits.1, duration_us, attributes },
        )
    }

    fn push_to(&mut self, rank: Rank, node: Node) -> u64 {
        let id = self.n_nodes;
        self.n_nodes += 1;
        self.traces.get_mut(&rank.0).expect("every rank is a lane").push(Node { id, ..node });
        id
    }

    /// Expected time of a task's kernels, up to the next microsecond.
    fn duration_us(&self, task: &Task, parts: &[(&Op, u32)]) -> u64 {
        let op = self.op(task);
        let is_whole = elementary(op).len() == parts.len();
        let time = |(part, n): &(&Op, u32)| self.cost.estimate(part).times(*n).time.get();
        // Kernels that are slowed or launched one by one are asked for as a whole.
        let seconds = if is_whole { self.cost.estimate(op).time.get() } else { parts.iter().map(time).sum() };
        hw::whole((seconds * self.graph.lanes[task.lane.index()].rate * 1e6).ceil())
    }

    /// Nodes of a rank that stand for a task that it waits for: the task's own, or what is received of it.
    fn waited(&mut self, pred: TaskId, rank: Rank) -> Result<Vec<u64>, Unsayable> {
        let graph = self.graph;
        let task = &graph.tasks[pred.0 as usize];
        let from = self.rank(task);
        if from == rank {
            return Ok(self.ended[pred.0 as usize].clone());
        }
        let is_to = self.group(task).1.get(1) == Some(&rank);
        let Some(bytes) = message_of(self.op(task)).filter(|_| is_to) else {
            return Err(Unsayable::Bare { rank: rank.0, what: name(task), of: from.0 });
        };
        if let Some(known) = self.received.get(&pred) {
            return Ok(vec![*known]);
        }
        let (control, data) = (Vec::new(), Vec::new());
        let attributes = message(bytes, [from, rank], pred.0);
        let node = Node { id: 0, name: name(task), kind: Kind::Receive, control, data, duration_us: 0, attributes };
        let id = self.push_to(rank, node);
        self.received.insert(pred, id);
        Ok(vec![id])
    }
}

/// What a node waits for on its stream, and besides.
type Waits = (Vec<u64>, Vec<u64>);

/// Tag of the hops of a meeting, which no message has. Hops of one meeting come in order.
fn hop_tag(graph: &TaskGraph, task: &Task) -> u32 {
    let n_tasks = u32::try_from(graph.tasks.len()).expect("ids fit u32");
    task.meeting.map_or(0, |meeting| n_tasks.saturating_add(meeting.0))
}

/// Attributes of a node with their names.
type Attributes = Vec<(&'static str, Value)>;

fn name(task: &Task) -> String {
    let of = if task.micro_batch == u32::MAX { String::new() } else { format!(" of micro-batch {}", task.micro_batch) };
    format!("{}{of}", task.role.name())
}

/// The ranks before and after one in a ring.
fn neighbours(ring: &[Rank], rank: Rank) -> [Rank; 2] {
    let Some(at) = ring.iter().position(|member| *member == rank) else { return [rank; 2] };
    [ring[(at + ring.len() - 1) % ring.len()], ring[(at + 1) % ring.len()]]
}

/// Every node runs on the device.
fn on_device(mut attributes: Attributes) -> Attributes {
    attributes.insert(0, ("is_cpu_op", Value::Flag(false)));
    attributes
}

fn sized(bytes: u64) -> Attributes {
    on_device(vec![("tensor_size", Value::Uint64(bytes))])
}

/// A message from a rank to another.
fn message(bytes: u64, [from, to]: [Rank; 2], tag: u32) -> Attributes {
    on_device(vec![
        ("comm_size", Value::Uint64(bytes)),
        ("comm_src", Value::Int32(from.0)),
        ("comm_dst", Value::Int32(to.0)),
        ("comm_tag", Value::Int32(tag)),
    ])
}

/// A collective of a group.
fn exchange(kind: Collective, bytes: u64, group: u32) -> Attributes {
    let number = match kind {
        Collective::AllReduce => ALL_REDUCE,
        Collective::AllGather => ALL_GATHER,
        Collective::ReduceScatter => REDUCE_SCATTER,
        Collective::AllToAll | Collective::RingShift | Collective::SendRecv => ALL_TO_ALL,
    };
    on_device(vec![
        ("comm_type", Value::Int64(number)),
        ("comm_size", Value::Uint64(bytes)),
        ("pg_name", Value::Text(group.to_string())),
    ])
}

/// Operations of kernels and the bytes that they move, for simulators that time them themselves.
fn work(model: &Model, parts: &[(&Op, u32)]) -> Attributes {
    let flops: f64 = parts.iter().map(|(part, n)| op_flops(model, part) * f64::from(*n)).sum();
    let bytes: f64 = parts.iter().map(|(part, n)| moved(part) * f64::from(*n)).sum();
    on_device(vec![("num_ops", Value::Int64(hw::whole(flops))), ("tensor_size", Value::Uint64(hw::whole(bytes)))])
}

/// Bytes that an operation reads and writes.
fn moved(op: &Op) -> f64 {
    match op {
        Op::Gemm { m, n, k, format } => format.product_bytes(*m, *n, *k),
        Op::GroupedGemm { rows, n, k, format, .. } => rows.iter().map(|m| format.product_bytes(*m, *n, *k)).sum(),
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, .. } => {
            let of_queries = real(2 * n_heads * head_dim * kv.bytes());
            let of_keys = real(2 * n_kv_heads * head_dim * kv.bytes());
            documents.iter().map(|one| real(one.queries) * of_queries + real(one.keys) * of_keys).sum()
        }
        Op::Elementwise { bytes } | Op::Copy { bytes, .. } => real(*bytes),
        Op::Embedding { tokens, row_bytes } => 2.0 * real(*tokens) * real(*row_bytes),
        _ => 0.0,
    }
}
