//! A step as operations over tensors whose sizes are expressions: what a compiler for dynamic shapes orders, evicts and makes again.
//!
//! Units: bytes, and whatever the operations' work counts. Tensors without a producer are arguments (parameters, inputs): they stay for the
//! whole step. Invariant: operations stand in an order that can run, inputs before their readers, and that is the original order.
//! Read `symbolic.rs` (sizes), `program.rs` (an order with what may be evicted), then `play.rs` (one step at known sizes).

pub mod bound;
pub mod parse;
pub mod play;
pub mod program;
pub mod symbolic;
pub mod transformer;

use engine::task::{Document, Op, Pass};
use symbolic::{Expression, SymbolId, Symbols};

/// Identity of a tensor: its position in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorId(pub u32);

impl TensorId {
    /// Index into per-tensor arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identity of an operation: its position in the original order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(pub u32);

impl OperationId {
    /// Index into per-operation arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name for people.
    pub name: String,
    /// Size.
    pub bytes: Expression,
    /// What writes it; `None` for an argument.
    pub producer: Option<OperationId>,
    /// Whether it is a result of the step, which stays to the end.
    pub is_output: bool,
}

hw::words! {
    /// What a compiler may do with an operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind: word {
        /// May run again at any time.
        Compute = "compute",
        /// May run again, and its input is smaller than its output (broadcast, half to float): making more than it again saves nothing.
        Expanding = "expanding",
        /// Exchange between ranks: never again, because ranks that decide differently would wait for each other for ever.
        Collective = "collective",
        /// Kernel of a library: never again, its insides are not known.
        Custom = "custom",
    }
}

/// What an operation costs, as the cost model sees it once sizes are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Product of `m × k` and `k × n`.
    Gemm {
        /// Rows.
        m: Expression,
        /// Columns of the result.
        n: Expression,
        /// Inner dimension.
        k: Expression,
    },
    /// Causal attention over sequences of one length.
    Attention {
        /// Sequences.
        sequences: Expression,
        /// Tokens of each.
        tokens: Expression,
        /// Query heads, key-value heads, width of a head.
        heads: [u64; 3],
        /// Direction.
        pass: Pass,
    },
    /// A kernel that reads and writes so many bytes.
    Traffic(Expression),
    /// A given time, nanoseconds.
    Fixed(u64),
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Name for people.
    pub name: String,
    /// What may be done with it.
    pub kind: Kind,
    /// Tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that it writes.
    pub outputs: Vec<TensorId>,
    /// Argument that it changes in place (an optimizer's update): readers keep their side of it.
    pub updates: Option<TensorId>,
    /// Cost.
    pub work: Work,
}

/// A step.
#[derive(Clone, Debug, Default)]
pub struct TensorGraph {
    /// Sizes that are not known.
    pub symbols: Symbols,
    /// Tensors.
    pub tensors: Vec<Tensor>,
    /// Operations in their original order.
    pub operations: Vec<Operation>,
}

impl TensorGraph {
    /// Adds an argument.
    pub fn argument(&mut self, name: &str, bytes: &Expression) -> TensorId {
        self.tensor(name, bytes, None)
    }

    fn tensor(&mut self, name: &str, bytes: &Expression, producer: Option<OperationId>) -> TensorId {
        let bytes = self.symbols.canonical(bytes);
        self.tensors.push(Tensor { name: name.to_owned(), bytes, producer, is_output: false });
        TensorId(u32::try_from(self.tensors.len() - 1).expect("fewer than 2^32 tensors"))
    }

    /// Adds an operation behind all others, with the names and sizes of what it writes.
    ///
    /// # Panics
    /// When an input does not exist, or what it updates is no argument.
    pub fn operation(&mut self, operation: Operation, outputs: &[(&str, &Expression)]) -> Vec<TensorId> {
        assert!(operation.inputs.iter().all(|input| input.index() < self.tensors.len()), "inputs come first");
        let is_argument = |tensor: TensorId| self.tensors[tensor.index()].producer.is_none();
        assert!(operation.updates.is_none_or(is_argument), "arguments alone are updated in place");
        let id = OperationId(u32::try_from(self.operations.len()).expect("fewer than 2^32 operations"));
        let written: Vec<TensorId> = outputs.iter().map(|(name, bytes)| self.tensor(name, bytes, Some(id))).collect();
        self.operations.push(Operation { outputs: written.clone(), ..operation });
        written
    }

    /// An operation.
    pub fn at(&self, id: OperationId) -> &Operation {
        &self.operations[id.index()]
    }

    /// Whether a tensor is an argument.
    pub fn is_argument(&self, tensor: TensorId) -> bool {
        self.tensors[tensor.index()].producer.is_none()
    }

    /// The original order.
    pub fn original_order(&self) -> Vec<OperationId> {
        (0..self.operations.len()).map(|at| OperationId(u32::try_from(at).expect("fewer than 2^32"))).collect()
    }

    /// Operations that must run before each: writers of what it reads, and for arguments that change in place whoever stood before the
    /// change, or the change itself.
    pub fn predecessors(&self) -> Vec<Vec<OperationId>> {
        let mut readers: Vec<Vec<OperationId>> = vec![Vec::new(); self.tensors.len()];
        let mut updates: Vec<Option<OperationId>> = vec![None; self.tensors.len()];
        let mut all = Vec::with_capacity(self.operations.len());
        for (id, operation) in self.original_order().into_iter().zip(&self.operations) {
            let mut before: Vec<OperationId> = Vec::new();
            for input in &operation.inputs {
                before.extend(self.tensors[input.index()].producer);
                before.extend(updates[input.index()]);
                readers[input.index()].push(id);
            }
            if let Some(changed) = operation.updates {
                before.extend(readers[changed.index()].iter().filter(|reader| **reader != id));
                before.extend(updates[changed.index()].replace(id));
            }
            before.sort_unstable();
            before.dedup();
            all.push(before);
        }
        all
    }

    /// Whether an order runs every operation once, each behind what it waits for.
    #[cfg(test)]
    pub fn can_run(&self, order: &[OperationId]) -> bool {
        let mut done = vec![false; self.operations.len()];
        let before = self.predecessors();
        let runs = |done: &mut Vec<bool>, id: &OperationId| {
            let is_ready = id.index() < before.len() && before[id.index()].iter().all(|other| done[other.index()]);
            is_ready && !std::mem::replace(&mut done[id.index()], true)
        };
        order.len() == self.operations.len() && order.iter().all(|id| runs(&mut done, id))
    }

    /// Bytes of every tensor where `of` gives the symbols' values.
    pub fn bytes(&self, of: &dyn Fn(SymbolId) -> u64) -> Vec<u64> {
        self.tensors.iter().map(|tensor| self.symbols.count(&tensor.bytes, of)).collect()
    }

    /// Work of every operation where `of` gives the symbols' values.
    pub fn ops(&self, of: &dyn Fn(SymbolId) -> u64) -> Vec<Op> {
        let count = |expression: &Expression| self.symbols.count(expression, of);
        let op = |operation: &Operation| match &operation.work {
            Work::Gemm { m, n, k } => Op::Gemm { m: count(m), n: count(n), k: count(k), format: hw::Format::Bf16 },
            Work::Attention { sequences, tokens, heads: [n_heads, n_kv_heads, head_dim], pass } => {
                let n = usize::try_from(count(sequences)).expect("few sequences");
                let documents = vec![Document::causal(count(tokens)); n];
                let (n_heads, n_kv_heads, head_dim, pass) = (*n_heads, *n_kv_heads, *head_dim, *pass);
                Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: hw::Dtype::Bf16, pass }
            }
            Work::Traffic(bytes) => Op::Elementwise { bytes: count(bytes) },
            Work::Fixed(ns) => Op::Host { ns: *ns },
        };
        self.operations.iter().map(op).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights that an update changes are read before it by whoever stood before it, also when another order is chosen.
    #[test]
    fn readers_keep_their_side_of_an_update() {
        let mut graph = TensorGraph::default();
        let one = Expression::constant(1);
        let weight = graph.argument("w", &one);
        let operation = |inputs: Vec<TensorId>, updates| Operation {
            name: "op".to_owned(),
            kind: Kind::Compute,
            inputs,
            outputs: Vec::new(),
            updates,
            work: Work::Fixed(1),
        };
        let y = graph.operation(operation(vec![weight], None), &[("y", &one)])[0];
        graph.operation(operation(vec![weight, y], None), &[("z", &one)]);
        graph.operation(operation(vec![y], Some(weight)), &[]);
        graph.operation(operation(vec![weight], None), &[("new", &one)]);
        let [a, b, c, d] = [0, 1, 2, 3].map(OperationId);
        assert_eq!(graph.predecessors(), [vec![], vec![a], vec![a, b], vec![c]]);
        assert!(graph.can_run(&[a, b, c, d]));
        assert!(!graph.can_run(&[a, c, b, d]), "an update before its reader");
        assert!(!graph.can_run(&[a, b, d, c]), "a reader of the new weight before the update");
        assert!(!graph.can_run(&[a, b, c]));
    }
}
