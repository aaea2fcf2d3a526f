//! Training of several tasks that share parts of a model: what is asked (here), how long a part takes on some devices (`cost`), what is
//! decided (`schedule`), and how it is played by the engine (`lower`, `play`).
//!
//! In one iteration every task sends its batch through operators (equal layers of one type, for example an encoder of images) that
//! other tasks run too, on batches of their own. A *call* is one task's use of an operator. A *MetaOp* is a run of layers
//! that have one type and one input size and follow each other without a branch (Spindle, arXiv:2409.03365, section 3.1); it is planned as a
//! whole and cut only between layers.

pub mod cost;
pub mod curve;
pub mod flow;
pub mod lower;
pub mod play;
pub mod schedule;

#[cfg(test)]
pub mod tests;

use engine::verdict::Refused;
use hw::{Bytes, Cluster, Dtype};

use crate::problem::{self, Recompute};
use crate::straggler::Rates;
use cost::{Activations, Made, Size};
use curve::Curve;

/// Bytes of an element of activations: 16 bits.
pub const ELEMENT: u64 = 2;

/// What a layer computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Attention and feed-forward.
    Transformer {
        /// Query heads.
        n_heads: u64,
        /// Key-value heads.
        n_kv_heads: u64,
        /// Width of the feed-forward.
        intermediate: u64,
        /// Whether the feed-forward has three matrices instead of two.
        gated: bool,
        /// Whether a token sees only earlier ones.
        causal: bool,
        /// Experts in the place of one feed-forward, each as wide: how many there are, and how many a token visits. Every device holds its share of all.
        experts: Option<[u64; 2]>,
    },
    /// Two matrices with an activation between them: a projection or a head.
    FeedForward {
        /// Width between the matrices.
        intermediate: u64,
    },
    /// Nothing is known but times, which each call gives.
    Given,
}

/// A stack of equal layers whose parameters all tasks share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Name.
    pub name: String,
    /// Layers.
    pub n_layers: u32,
    /// Width of its output.
    pub hidden: u64,
    /// What a layer computes.
    pub body: Body,
    /// Parameters of a layer.
    pub parameters: u64,
    /// Tensor degrees that may be used, ascending.
    pub tensor_degrees: Vec<u32>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name.
    pub name: String,
    /// Samples in an iteration.
    pub batch: u64,
}

/// One task's use of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Index of the task.
    pub task: usize,
    /// Index of the operator.
    pub operator: usize,
    /// Name inside the task.
    pub name: String,
    /// Tokens of a sample.
    pub tokens: u64,
    /// Tokens of a sample that go on to later calls (a pooled embedding is one).
    pub output_tokens: u64,
    /// Calls, by index, whose output it needs; all come before it.
    pub after: Vec<usize>,
    /// Devices and seconds of one layer, forward and backward, as measured; empty where the cost model answers.
    pub times: Vec<(u32, f64)>,
}

/// How an iteration is executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// How layers are computed, what is kept of them, and how they are stepped with: as in a step of one model.
    pub of_step: problem::Execution,
    /// Number format of parameters and activations.
    pub dtype: Dtype,
    /// Whether optimizer states are sharded over the devices that hold the same parameters (ZeRO 1).
    pub shards_optimizer: bool,
    /// Part of a measured time that is forward.
    pub forward_ratio: f64,
}

impl Default for Execution {
    fn default() -> Self {
        let of_step = problem::Execution { recompute: Recompute::Off, ..problem::Execution::default() };
        Self { of_step, dtype: Dtype::Bf16, shards_optimizer: false, forward_ratio: 1.0 / 3.0 }
    }
}

/// Tasks, operators and machine: what is asked.
#[derive(Clone, Debug)]
pub struct MultiTask {
    /// Operators.
    pub operators: Vec<Operator>,
    /// Tasks.
    pub tasks: Vec<Task>,
    /// Calls, task by task, each behind those that it needs.
    pub calls: Vec<Call>,
    /// Machine.
    pub cluster: Cluster,
    /// Memory of each device that the framework takes.
    pub reserved: Bytes,
    /// Execution.
    pub execution: Execution,
}

impl MultiTask {
    /// Operator of a call.
    pub fn operator(&self, call: usize) -> &Operator {
        &self.operators[self.calls[call].operator]
    }

    /// Samples of a call's task.
    pub fn batch(&self, call: usize) -> u64 {
        self.tasks[self.calls[call].task].batch
    }

    /// Bytes that travel inside a call from a layer to the next.
    pub fn inner_bytes(&self, call: usize) -> u64 {
        self.batch(call) * self.calls[call].tokens * self.operator(call).hidden * ELEMENT
    }

    /// Bytes that a call hands to each call after it.
    pub fn output_bytes(&self, call: usize) -> u64 {
        self.batch(call) * self.calls[call].output_tokens * self.operator(call).hidden * ELEMENT
    }

    /// Devices that compute slower than the rest.
    pub fn rates(&self) -> Rates {
        Rates::at(&self.execution.of_step.stragglers, 0)
    }

    /// Memory of a device that the job may use.
    pub fn room(&self) -> Bytes {
        Bytes(self.cluster.gpu.memory.0.saturating_sub(self.reserved.0))
    }
}

/// A run of equal layers that is planned as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaOp {
    /// Task and calls, for people.
    pub name: String,
    /// Index of the task.
    pub task: usize,
    /// First call; all layers have its operator's type and its input size.
    pub call: usize,
    /// Last call, whose output goes on.
    pub last_call: usize,
    /// Layers in order: the same index of the same operator is the same parameters.
    pub layers: Vec<u32>,
    /// `MetaOps` whose output it needs, by index; all come before it.
    pub preds: Vec<usize>,
    /// Longest way from the start: `MetaOps` of one level need nothing of each other.
    pub level: u32,
}

/// What is asked, contracted, with the times of every allocation that is worth having.
#[derive(Clone, Debug)]
pub struct Work {
    /// What is asked.
    pub training: MultiTask,
    /// `MetaOps`, each behind those that it needs.
    pub meta_ops: Vec<MetaOp>,
    /// Sizes of each `MetaOp`: more devices, less time.
    pub sizes: Vec<Vec<Size>>,
    /// The times of the sizes as curves.
    pub curves: Vec<Curve>,
    /// What a layer of each `MetaOp` makes on each of its sizes.
    made: Vec<Vec<Made>>,
    /// Bytes of a parameter, of its gradient, and of what the optimizer keeps of it on the device.
    pub of_parameter: [f64; 3],
    /// Devices of the machine that a plan may use, the first ones.
    n_devices: u32,
}

impl Work {
    /// Asks the cost model for every size of every `MetaOp`.
    ///
    /// # Errors
    /// The name of a call that no number of devices can run.
    pub fn new(
        training: MultiTask,
        meta_ops: Vec<MetaOp>,
        cost: &dyn engine::CostModel,
        case: engine::play::Case,
    ) -> Result<Self, Refused> {
        let mut sizes: Vec<Vec<Size>> = Vec::with_capacity(meta_ops.len());
        for (index, meta_op) in meta_ops.iter().enumerate() {
            let is_alike = |other: &MetaOp| cost::is_alike(&training, other.call, meta_op.call);
            let known = meta_ops[..index].iter().position(is_alike);
            let found = known.map_or_else(|| cost::sizes(&training, meta_op.call, cost, case), |at| sizes[at].clone());
            if found.is_empty() {
                let (name, n) = (&meta_op.name, training.cluster.n_gpus());
                return Err(Refused::infeasible(format!(
                    "`{name}` runs on no number of devices from 1 to {n}: none divides its batch"
                )));
            }
            sizes.push(found);
        }
        let curves = sizes.iter().map(|sizes| curve(sizes)).collect();
        let of_meta_op = |(of, sizes): (&MetaOp, &Vec<Size>)| {
            sizes.iter().map(|size| cost::made(&training, of.call, size)).collect()
        };
        let made = meta_ops.iter().zip(&sizes).map(of_meta_op).collect();
        let (of_parameter, n_devices) = (cost::bytes_per_parameter(&training), training.cluster.n_gpus());
        Ok(Self { training, meta_ops, sizes, curves, made, of_parameter, n_devices })
    }

    /// The same on fewer devices of the machine; `None` where a `MetaOp` runs on none of these numbers.
    pub fn on_fewer(&self, n_devices: u32) -> Option<Self> {
        let fitting = |of: &Vec<Size>| of.iter().take_while(|size| size.n_devices <= n_devices).copied().collect();
        let sizes: Vec<Vec<Size>> = self.sizes.iter().map(fitting).collect();
        if sizes.iter().any(Vec::is_empty) {
            return None;
        }
        let curves = sizes.iter().map(|sizes| curve(sizes)).collect();
        Some(Self { sizes, curves, n_devices, ..self.clone() })
    }

    /// What so many layers of a `MetaOp` keep on each device of its size of that index.
    pub fn activations(&self, meta_op: usize, size: usize, n_layers: u32) -> Activations {
        self.made[meta_op][size].by(&self.training.execution.of_step, n_layers)
    }

    /// Layers of a `MetaOp`.
    pub fn n_layers(&self, meta_op: usize) -> u32 {
        u32::try_from(self.meta_ops[meta_op].layers.len()).expect("layers fit u32")
    }

    /// Devices that a plan may use.
    pub const fn n_devices(&self) -> u32 {
        self.n_devices
    }
}

/// The times of sizes as a curve.
fn curve(sizes: &[Size]) -> Curve {
    Curve::new(sizes.iter().map(|size| (size.n_devices, size.seconds())).collect())
}
