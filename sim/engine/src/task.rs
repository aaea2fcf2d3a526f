//! The waist: device-neutral tasks with a lane, a stream and predecessors, in flat arrays with `u32` ids.
//!
//! Simulator and executor interpret the same graph. Semantics, as on a CUDA device:
//! a stream of a lane runs its tasks in the order they were added; a task starts when its stream is free and all its
//! predecessors have ended; a collective starts when every member has reached it and ends for all at once.
//! Memory effects apply at the start or the end of their task.

use std::collections::BTreeMap;

use hw::{Dtype, Format, GroupShape, Rank};
use serde::{Deserialize, Serialize};

/// Identity of a task: its position in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Identity of an interned operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// Identity of a lane: ranks that act alike, simulated once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneId(pub u32);

impl LaneId {
    /// Index into per-lane arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Ranks that act alike. The first one's links and memory stand for all: what each of them loads is its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    /// First of the ranks.
    pub rank: Rank,
    /// How many they are.
    pub multiplicity: u32,
    /// Data-parallel group of the first.
    pub group: u32,
    /// Pipeline rank.
    pub stage: u32,
    /// Straggling rate of the slowest of them: what computation takes over a healthy device's time, at least 1.
    pub rate: f64,
}

/// Identity of an interned group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Identity of a collective: the tasks of all its members carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeetingId(pub u32);

/// Identity of a memory label, for example `activations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelId(pub u16);

hw::words! {
    /// Engine of a device on which tasks queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Stream: name {
        /// Kernels.
        Compute = "compute",
        /// Communication inside a node.
        IntraNode = "network in the node",
        /// Communication between nodes.
        InterNode = "network between nodes",
        /// Copies from host memory.
        HostToDevice = "copy from host",
        /// Copies to host memory.
        DeviceToHost = "copy to host",
        /// Messages between pipeline stages; where each direction has a line of its own, those to the next stage.
        PointToPoint = "messages between stages",
        /// Messages to the stage before, where they have a line of their own.
        Back = "messages to the stage before",
        /// Messages that have left their line and are not there yet. They hold nothing, so any number of them runs at a
        /// time, each behind a task of another stream.
        OnTheWay = "messages on their way",
        /// Reductions of gradients: where they have a communicator of their own, they follow one another and queue behind no other exchange.
        Gradients = "reductions of gradients",
    }
}

impl Stream {
    /// Index into per-stream arrays.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether its tasks run one after another.
    pub const fn is_in_turn(self) -> bool {
        !matches!(self, Self::OnTheWay)
    }
}

hw::words! {
    /// Kind of a collective.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Collective: name {
        /// Everyone ends with the concatenation; `bytes` is the gathered size.
        AllGather = "all_gather",
        /// Everyone ends with a reduced share; `bytes` is the input size on each rank.
        ReduceScatter = "reduce_scatter",
        /// Everyone ends with the reduced whole; `bytes` is its size.
        AllReduce = "all_reduce",
        /// Everyone sends a different share to everyone; `bytes` is the input size on each rank.
        AllToAll = "all_to_all",
        /// Neighbour exchange around a ring, one hop; `bytes` is the size of the message.
        RingShift = "ring_shift",
        /// Message from the first rank of a group of two to the second; `bytes` is its size.
        SendRecv = "send_recv",
    }
}

/// One document as an attention kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Document {
    /// Query rows on this rank.
    pub queries: u64,
    /// Keys that they may see.
    pub keys: u64,
    /// Query-key pairs that are computed.
    pub pairs: u64,
}

impl Document {
    /// A whole causal document of `tokens` tokens.
    pub const fn causal(tokens: u64) -> Self {
        Self { queries: tokens, keys: tokens, pairs: tokens * (tokens + 1) / 2 }
    }

    /// One rank's zigzag share of a causal document cut over `parts` ranks.
    pub const fn zigzag(tokens: u64, parts: u64) -> Self {
        let whole = Self::causal(tokens);
        Self { queries: tokens.div_ceil(parts), keys: tokens, pairs: whole.pairs.div_ceil(parts) }
    }

    /// A chunk of `tokens` new tokens after `past` earlier ones.
    pub const fn chunk(past: u64, tokens: u64) -> Self {
        Self { queries: tokens, keys: past + tokens, pairs: past * tokens + tokens * (tokens + 1) / 2 }
    }

    /// The same where each token sees at most `window` keys, its own among them; 0 is no window.
    pub const fn windowed(past: u64, tokens: u64, window: u64) -> Self {
        let whole = Self::chunk(past, tokens);
        if window == 0 || window >= whole.keys {
            return whole;
        }
        // Tokens that have not yet as many keys as the window: the first `window - past` of them.
        let short = window.saturating_sub(past);
        let short = if short < tokens { short } else { tokens };
        let pairs = past * short + short * (short + 1) / 2 + (tokens - short) * window;
        Self { pairs, ..whole }
    }

    /// The same where each token sees at most `window` keys, its own among them. A chunk loses what lies before the window of each of its tokens, and a share of a
    /// document as large a part of its pairs as the whole document does.
    pub const fn within(self, window: u64) -> Self {
        let past = self.keys.saturating_sub(self.queries);
        if self.pairs == Self::chunk(past, self.queries).pairs {
            return Self { keys: self.keys, ..Self::windowed(past, self.queries, window) };
        }
        let [left, all] = [Self::windowed(0, self.keys, window).pairs, Self::causal(self.keys).pairs];
        let pairs = if all == 0 { 0 } else { (self.pairs as u128 * left as u128).div_ceil(all as u128) as u64 };
        Self { pairs, ..self }
    }
}

/// Direction of differentiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Inputs to outputs.
    Forward,
    /// Gradients of inputs and weights.
    Backward,
}

/// What a rank computes of a micro-batch in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassKind {
    /// Forward.
    Forward,
    /// Gradients of inputs and weights together.
    Backward,
    /// Gradients of inputs only; the stage before can go on.
    Input,
    /// Gradients of weights only; nothing waits for it but the end.
    Weight,
}

/// Operations with their repeat counts.
pub type Ops = Vec<(Op, u32)>;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    /// Host memory to device memory.
    HostToDevice,
    /// Device memory to host memory.
    DeviceToHost,
    /// Inside a device.
    DeviceToDevice,
}

/// Device-neutral work of a task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `m × k` times `k × n`.
    Gemm {
        /// Rows (tokens).
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Inner dimension.
        k: u64,
        /// Format of the operands.
        format: Format,
    },
    /// One GEMM per expert, run as one kernel.
    GroupedGemm {
        /// Rows of each expert.
        rows: Vec<u64>,
        /// Columns of the result.
        n: u64,
        /// Inner dimension.
        k: u64,
        /// Format of the operands.
        format: Format,
        /// Forward, or the gradient of inputs or of weights; the gradient of weights sums over the rows.
        kind: PassKind,
    },
    /// Variable-length causal attention: work is the sum over documents, never the square of the sum.
    Attention {
        /// Documents of the packed micro-batch on this rank.
        documents: Vec<Document>,
        /// Query heads.
        n_heads: u64,
        /// Key-value heads.
        n_kv_heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// Format of keys and values.
        kv: Dtype,
        /// Direction.
        pass: Pass,
    },
    /// Memory-bound kernel (norm, rotary, activation function, residual) that moves `bytes` in total.
    Elementwise {
        /// Bytes read plus written.
        bytes: u64,
    },
    /// Table look-up of `tokens` rows of `bytes` each.
    Embedding {
        /// Rows.
        tokens: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// Communication of a group.
    Collective {
        /// Kind, which defines `bytes`.
        kind: Collective,
        /// Size as the kind defines it.
        bytes: u64,
        /// How the group lies on the nodes.
        shape: GroupShape,
    },
    /// Copy of memory.
    Copy {
        /// Direction.
        kind: CopyKind,
        /// Size.
        bytes: u64,
    },
    /// Host time on the compute stream that no kernel hides, nanoseconds.
    Host {
        /// Nanoseconds.
        ns: u64,
    },
    /// Parts that run back to back on one stream, each so many times.
    Sequence(Vec<(Op, u32)>),
    /// The same, `permille` thousandths of the time: kernels that share the device with communication.
    Slowed {
        /// Parts, each so many times.
        parts: Vec<(Op, u32)>,
        /// Thousandths of the undisturbed time, 1000 or more.
        permille: u32,
    },
    /// The same where a host launches every kernel and waits for some of them: it takes as long as the device or as the host, whichever is longer.
    Launched {
        /// Parts, each so many times.
        parts: Vec<(Op, u32)>,
        /// Time of the host, nanoseconds.
        ns: u64,
    },
}

impl Op {
    /// Name of its kind for people.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Gemm { .. } => "gemm",
            Self::GroupedGemm { .. } => "grouped gemm",
            Self::Attention { pass: Pass::Forward, .. } => "attention forward",
            Self::Attention { pass: Pass::Backward, .. } => "attention backward",
            Self::Elementwise { .. } => "elementwise",
            Self::Embedding { .. } => "embedding",
            Self::Collective { .. } => "collective",
            Self::Copy { .. } => "copy",
            Self::Host { .. } => "host",
            Self::Sequence(_) | Self::Slowed { .. } | Self::Launched { .. } => "sequence",
        }
    }

    /// Floating-point operations of its matrix products.
    pub fn flops(&self) -> f64 {
        let product = |factors: &[u64]| factors.iter().map(|&factor| hw::real(factor)).product::<f64>();
        match self {
            Self::Gemm { m, n, k, .. } => 2.0 * product(&[*m, *n, *k]),
            Self::GroupedGemm { rows, n, k, .. } => 2.0 * product(&[rows.iter().sum(), *n, *k]),
            Self::Attention { documents, n_heads, head_dim, pass, .. } => {
                let pairs = documents.iter().map(|document| hw::real(document.pairs)).sum::<f64>();
                let forward = 4.0 * pairs * product(&[*n_heads, *head_dim]);
                if *pass == Pass::Forward { forward } else { 2.0 * forward }
            }
            _ => 0.0,
        }
    }
}

hw::words! {
    /// What a task is for; reports group and colour by it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Role: name {
        /// Forward computation.
        Forward = "forward",
        /// Backward computation.
        Backward = "backward",
        /// Gradients of weights by themselves, where a schedule splits backward.
        WeightGradient = "weight gradient",
        /// Forward computed again inside backward.
        Recompute = "recompute",
        /// Exchange inside a context group.
        ContextExchange = "context exchange",
        /// Exchange inside a tensor group.
        TensorExchange = "tensor exchange",
        /// All-to-all of tokens and experts.
        ExpertExchange = "expert exchange",
        /// Message between pipeline stages.
        StageExchange = "stage exchange",
        /// Gradient reduction.
        GradientSync = "gradient sync",
        /// Parameter gather (ZeRO 3, or after the optimizer step).
        ParameterGather = "parameter gather",
        /// Optimizer step.
        Optimizer = "optimizer",
        /// Copy to or from the host.
        Offload = "offload",
        /// Change from one plan to another.
        Replan = "change of plan",
        /// Sampling of a graph.
        Sampling = "sampling",
        /// Gathering of what was sampled.
        Gather = "gather",
    }
}

/// When a memory effect applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// As the task starts.
    Start,
    /// As the task ends.
    End,
}

/// Change of a lane's memory tied to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEffect {
    /// Task whose lane it touches.
    pub task: TaskId,
    /// When.
    pub moment: Moment,
    /// What the memory is for.
    pub label: LabelId,
    /// Bytes allocated (positive) or freed (negative).
    pub delta_bytes: i64,
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Work.
    pub op: OpId,
    /// Device, and those that act like it.
    pub lane: LaneId,
    /// Engine of the device.
    pub stream: Stream,
    /// Purpose.
    pub role: Role,
    /// Micro-batch index inside the rank's step, or `u32::MAX` where there is none.
    pub micro_batch: u32,
    /// Meeting, for members of a collective.
    pub meeting: Option<MeetingId>,
}

/// Tasks of one step.
#[derive(Clone, Debug, Default)]
pub struct TaskGraph {
    /// Lanes; tasks name them by position.
    pub lanes: Vec<Lane>,
    /// Tasks in submission order.
    pub tasks: Vec<Task>,
    /// Interned operations.
    pub ops: Vec<Op>,
    /// Group of ranks that each meeting is of; one task per lane among them joins it.
    pub meetings: Vec<GroupId>,
    /// Ranks of each group.
    pub groups: Vec<Vec<Rank>>,
    group_ids: BTreeMap<Vec<Rank>, GroupId>,
    /// Memory effects in task order.
    pub effects: Vec<MemoryEffect>,
    /// Names of memory labels.
    pub labels: Vec<String>,
    /// The label of what a cache holds free: it is given back where something else needs the room.
    pub spare: Option<LabelId>,
    /// Memory held from before the first task, per lane: (label, bytes).
    pub resident: Vec<Vec<(LabelId, u64)>>,
    /// Predecessors of all tasks, one after another; `pred_ends` delimits them.
    preds: Vec<TaskId>,
    pred_ends: Vec<u32>,
}

impl TaskGraph {
    /// An empty graph over `n_ranks` ranks, a lane each.
    pub fn new(n_ranks: u32) -> Self {
        let lane = |rank| Lane { rank: Rank(rank), multiplicity: 1, group: 0, stage: 0, rate: 1.0 };
        Self::with_lanes((0..n_ranks).map(lane).collect())
    }

    /// An empty graph over lanes.
    pub fn with_lanes(lanes: Vec<Lane>) -> Self {
        Self { resident: vec![Vec::new(); lanes.len()], lanes, ..Self::default() }
    }

    /// Adds an operation and returns its id; the caller shares ids between equal operations.
    pub fn add_op(&mut self, op: Op) -> OpId {
        self.ops.push(op);
        OpId(u32::try_from(self.ops.len() - 1).expect("fewer than 2^32 operations"))
    }

    /// Adds a memory label, or finds the one of that name.
    pub fn label(&mut self, name: &str) -> LabelId {
        let index = self.labels.iter().position(|label| label == name).unwrap_or_else(|| {
            self.labels.push(name.to_owned());
            self.labels.len() - 1
        });
        LabelId(u16::try_from(index).expect("fewer than 2^16 labels"))
    }

    /// Cuts what a cache holds free, of bytes by label, so that all of them stay within `room`; returns what it gives back.
    pub fn give_back(&self, held: &mut [i64], room: i64) -> i64 {
        let Some(spare) = self.spare else { return 0 };
        let missing = held.iter().sum::<i64>() - room;
        let given = missing.clamp(0, held[spare.0 as usize].max(0));
        held[spare.0 as usize] -= given;
        given
    }

    /// Interns a group of ranks.
    pub fn add_group(&mut self, members: &[Rank]) -> GroupId {
        assert!(!members.is_empty(), "a group has members");
        if let Some(&id) = self.group_ids.get(members) {
            return id;
        }
        let id = GroupId(u32::try_from(self.groups.len()).expect("fewer than 2^32 groups"));
        self.groups.push(members.to_vec());
        self.group_ids.insert(members.to_vec(), id);
        id
    }

    /// Adds a meeting of a group; the caller then adds one task per lane that takes part.
    pub fn add_meeting(&mut self, group: GroupId) -> MeetingId {
        self.meetings.push(group);
        MeetingId(u32::try_from(self.meetings.len() - 1).expect("fewer than 2^32 meetings"))
    }

    /// Adds a task behind all earlier tasks of its stream.
    ///
    /// # Panics
    /// When the rank, the operation or a predecessor does not exist.
    pub fn add_task(&mut self, task: Task, preds: &[TaskId]) -> TaskId {
        assert!(task.lane.index() < self.lanes.len(), "lane {} of {}", task.lane.0, self.lanes.len());
        assert!((task.op.0 as usize) < self.ops.len(), "operation {} of {}", task.op.0, self.ops.len());
        let id = TaskId(u32::try_from(self.tasks.len()).expect("fewer than 2^32 tasks"));
        assert!(preds.iter().all(|pred| *pred < id), "predecessors come before their task");
        self.tasks.push(task);
        self.preds.extend_from_slice(preds);
        self.pred_ends.push(u32::try_from(self.preds.len()).expect("fewer than 2^32 edges"));
        id
    }

    /// Adds a memory effect to a task.
    pub fn add_effect(&mut self, effect: MemoryEffect) {
        assert!((effect.task.0 as usize) < self.tasks.len(), "an effect belongs to a task");
        self.effects.push(effect);
    }

    /// Adds the lanes and tasks of another graph, whose ranks and data-parallel groups begin at these numbers here. Ids of tasks and lanes
    /// of the other graph then lie that much higher: (tasks, lanes).
    pub fn append(&mut self, other: &Self, first_rank: u32, first_group: u32) -> (u32, u32) {
        let n = |n: usize| u32::try_from(n).expect("fewer than 2^32 parts");
        let (tasks, lanes, ops) = (n(self.tasks.len()), n(self.lanes.len()), n(self.ops.len()));
        self.lanes.extend(other.lanes.iter().map(|lane| Lane {
            rank: Rank(lane.rank.0 + first_rank),
            group: lane.group + first_group,
            ..*lane
        }));
        self.ops.extend(other.ops.iter().cloned());
        let labels: Vec<LabelId> = other.labels.iter().map(|name| self.label(name)).collect();
        self.spare = self.spare.or_else(|| other.spare.map(|spare| labels[spare.0 as usize]));
        let named = |(label, bytes): &(LabelId, u64)| (labels[label.0 as usize], *bytes);
        self.resident.extend(other.resident.iter().map(|held| held.iter().map(named).collect()));
        let shifted = |ranks: &Vec<Rank>| ranks.iter().map(|rank| Rank(rank.0 + first_rank)).collect::<Vec<Rank>>();
        let groups: Vec<GroupId> = other.groups.iter().map(|ranks| self.add_group(&shifted(ranks))).collect();
        let meetings: Vec<MeetingId> =
            other.meetings.iter().map(|group| self.add_meeting(groups[group.0 as usize])).collect();
        for (index, task) in other.tasks.iter().enumerate() {
            let preds: Vec<TaskId> = other.preds(TaskId(n(index))).iter().map(|pred| TaskId(pred.0 + tasks)).collect();
            let moved = Task {
                op: OpId(task.op.0 + ops),
                lane: LaneId(task.lane.0 + lanes),
                meeting: task.meeting.map(|meeting| meetings[meeting.0 as usize]),
                ..*task
            };
            self.add_task(moved, &preds);
        }
        for effect in &other.effects {
            let task = TaskId(effect.task.0 + tasks);
            self.add_effect(MemoryEffect { task, label: labels[effect.label.0 as usize], ..*effect });
        }
        (tasks, lanes)
    }

    /// Tasks that must end before `task` starts, besides those ahead of it on its stream.
    pub fn preds(&self, task: TaskId) -> &[TaskId] {
        let index = task.0 as usize;
        let first = if index == 0 { 0 } else { self.pred_ends[index - 1] as usize };
        &self.preds[first..self.pred_ends[index] as usize]
    }
}
