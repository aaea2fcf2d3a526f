//! One step at known sizes: buffers come and go, and what does not fit below a limit is evicted and made again before its next use.
//!
//! The eviction manager of arXiv:2412.16985, section 3.3: it counts bytes at every allocation; below the limit nothing is evicted; above it
//! candidates go until the allocation fits. A candidate that never fits changes nothing: the step goes on and its peak says by how much the
//! limit was missed. Invariant: an operation finds all of its inputs, evicted or not, and nothing is freed that is read again.

use super::program::{Candidate, Program, within};
use super::{Operation, OperationId, TensorGraph, TensorId};

hw::words! {
    /// Which candidates go first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Eviction: word {
        /// As they are found, one at a time.
        FirstFound = "first-found",
        /// By size times distance to the next use, largest first.
        SizeTimesDistance = "size-times-distance",
        /// By the time that it takes to make a byte again, least first.
        LeastTimePerByte = "least-time-per-byte",
    }
}

/// Sizes and times of a graph where its symbols are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtSizes {
    /// Bytes of every tensor.
    pub bytes: Vec<u64>,
    /// Nanoseconds of every operation.
    pub ns: Vec<u64>,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation of the order runs.
    Run(OperationId),
    /// An operation runs again for something that was evicted.
    Again(OperationId),
    /// A buffer is evicted.
    Evict(TensorId),
    /// A buffer is not needed any more.
    Free(TensorId),
}

/// A played step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Highest sum of live bytes, arguments included.
    pub peak_bytes: u64,
    /// Operation that ran at the peak.
    pub peak_at: Option<OperationId>,
    /// Evictions.
    pub n_evictions: usize,
    /// What they freed.
    pub evicted_bytes: u64,
    /// How often each operation ran.
    pub runs: Vec<u32>,
    /// Everything in order.
    pub events: Vec<Event>,
}

impl Played {
    /// Time that went into computing again, in the unit of `times`, one per operation.
    pub fn again(&self, times: &[u64]) -> u64 {
        self.runs.iter().zip(times).map(|(runs, time)| u64::from(runs - 1) * time).sum()
    }
}

/// Plays a program at known sizes, below a limit on all live bytes.
///
/// # Panics
/// When the program is not of this graph.
pub fn play(graph: &TensorGraph, program: &Program, at: &AtSizes, limit: u64, rule: Eviction) -> Played {
    assert!(program.order.len() == graph.operations.len(), "an order has every operation");
    assert!(at.bytes.len() == graph.tensors.len(), "every tensor has its bytes");
    assert!(at.ns.len() == graph.operations.len(), "every operation has its time");
    let mut player = Player::new(graph, program, at, limit, rule);
    for at in 0..program.order.len() {
        player.at = at;
        player.step(program.order[at]);
    }
    player.played
}

struct Player<'a> {
    graph: &'a TensorGraph,
    program: &'a Program,
    bytes: &'a [u64],
    ns: &'a [u64],
    limit: u64,
    rule: Eviction,
    /// Position of the operation that runs or is made ready.
    at: usize,
    live: u64,
    present: Vec<bool>,
    /// Reads to come in the order; a result of the step has one that never comes.
    uses_left: Vec<u32>,
    /// Evicted tensors that need it when they are made again.
    pins: Vec<u32>,
    /// Operations under way that read it.
    held: Vec<u32>,
    /// Candidate by which a tensor is gone.
    evicted_by: Vec<Option<&'a Candidate>>,
    played: Played,
}

impl<'a> Player<'a> {
    fn new(graph: &'a TensorGraph, program: &'a Program, sizes: &'a AtSizes, limit: u64, rule: Eviction) -> Self {
        let AtSizes { bytes, ns } = sizes;
        let n = graph.tensors.len();
        let mut uses_left: Vec<u32> = graph.tensors.iter().map(|tensor| u32::from(tensor.is_output)).collect();
        for input in graph.operations.iter().flat_map(|operation| &operation.inputs) {
            uses_left[input.index()] += 1;
        }
        let present: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.producer.is_none()).collect();
        let live = bytes.iter().zip(&present).filter(|(_, present)| **present).map(|(bytes, _)| bytes).sum();
        let played = Played { runs: vec![0; graph.operations.len()], peak_bytes: live, ..Played::default() };
        let (pins, held) = (vec![0; n], vec![0; n]);
        Self {
            graph,
            program,
            bytes,
            ns,
            limit,
            rule,
            at: 0,
            live,
            present,
            uses_left,
            pins,
            held,
            evicted_by: vec![None; n],
            played,
        }
    }

    /// One operation of the order.
    fn step(&mut self, id: OperationId) {
        let graph = self.graph;
        let Operation { inputs, outputs, .. } = graph.at(id);
        self.make_ready(inputs);
        self.run(id, outputs);
        self.played.events.push(Event::Run(id));
        outputs.iter().for_each(|output| self.present[output.index()] = true);
        for input in inputs {
            self.held[input.index()] -= 1;
            self.uses_left[input.index()] -= 1;
            self.release(*input);
        }
        outputs.iter().for_each(|output| self.release(*output));
    }

    /// Holds tensors, and makes those again that are gone.
    fn make_ready(&mut self, tensors: &[TensorId]) {
        tensors.iter().for_each(|tensor| self.held[tensor.index()] += 1);
        for tensor in tensors {
            if !self.present[tensor.index()] {
                self.regenerate(*tensor);
            }
        }
    }

    /// Makes room and runs; who calls says what it ran for.
    fn run(&mut self, id: OperationId, outputs: &[TensorId]) {
        let need: u64 = outputs.iter().map(|output| self.bytes[output.index()]).sum();
        self.make_room(need);
        self.live += need;
        if self.live > self.played.peak_bytes {
            (self.played.peak_bytes, self.played.peak_at) = (self.live, Some(id));
        }
        self.played.runs[id.index()] += 1;
    }

    /// Evicts until so many bytes more fit, or nothing is left to evict.
    fn make_room(&mut self, need: u64) {
        if self.live + need <= self.limit {
            return;
        }
        let program = self.program;
        let mut found: Vec<&Candidate> =
            program.candidates.iter().filter(|candidate| self.may_evict(candidate)).collect();
        if self.rule != Eviction::FirstFound {
            found.sort_by_key(|candidate| (std::cmp::Reverse(self.score(candidate)), candidate.tensor));
        }
        for candidate in found {
            if self.live + need <= self.limit {
                return;
            }
            // An earlier one may have pinned it.
            if self.may_evict(candidate) {
                self.evict(candidate);
            }
        }
    }

    /// What is largest goes first.
    fn score(&self, candidate: &Candidate) -> u128 {
        let bytes = u128::from(self.bytes[candidate.tensor.index()]);
        match self.rule {
            Eviction::FirstFound => 0,
            Eviction::SizeTimesDistance => bytes * ((candidate.next_use - self.at) as u128),
            Eviction::LeastTimePerByte => {
                let ns: u64 = candidate.recompute.iter().map(|id| self.ns[id.index()]).sum();
                // Bytes per nanosecond in thousandths: large enough to tell kernels apart.
                bytes * 1000 / u128::from(ns.max(1))
            }
        }
    }

    fn may_evict(&self, candidate: &Candidate) -> bool {
        let at = candidate.tensor.index();
        let is_free = self.present[at] && self.held[at] == 0 && self.pins[at] == 0 && self.bytes[at] > 0;
        is_free && within(candidate, self.at) && candidate.kept.iter().all(|kept| self.present[kept.index()])
    }

    fn evict(&mut self, candidate: &'a Candidate) {
        let at = candidate.tensor.index();
        candidate.kept.iter().for_each(|kept| self.pins[kept.index()] += 1);
        self.present[at] = false;
        self.evicted_by[at] = Some(candidate);
        self.live -= self.bytes[at];
        self.played.n_evictions += 1;
        self.played.evicted_bytes += self.bytes[at];
        self.played.events.push(Event::Evict(candidate.tensor));
    }

    /// Makes an evicted tensor again, with whatever is gone on the way to it.
    fn regenerate(&mut self, tensor: TensorId) {
        let graph = self.graph;
        let candidate = self.evicted_by[tensor.index()].expect("a tensor that is gone was evicted");
        let needed = self.needed(candidate);
        let made: Vec<TensorId> = needed.iter().map(|id| graph.at(*id).outputs[0]).collect();
        let reads = || needed.iter().flat_map(|id| &graph.at(*id).inputs);
        let leaves: Vec<TensorId> = reads().copied().filter(|input| !made.contains(input)).collect();
        self.make_ready(&leaves);
        let mut reads_left: Vec<usize> =
            made.iter().map(|made| reads().filter(|input| *input == made).count()).collect();
        for id in &needed {
            let Operation { inputs, outputs, .. } = graph.at(*id);
            self.run(*id, outputs);
            self.played.events.push(Event::Again(*id));
            for input in inputs {
                let Some(at) = made.iter().position(|made| made == input) else { continue };
                reads_left[at] -= 1;
                if reads_left[at] == 0 {
                    self.live -= self.bytes[input.index()];
                    self.played.events.push(Event::Free(*input));
                }
            }
        }
        self.present[tensor.index()] = true;
        self.evicted_by[tensor.index()] = None;
        candidate.kept.iter().for_each(|kept| self.pins[kept.index()] -= 1);
        leaves.iter().for_each(|leaf| self.held[leaf.index()] -= 1);
        leaves.iter().chain(&candidate.kept).for_each(|leaf| self.release(*leaf));
    }

    /// Operations of a candidate that must run: those whose results are not there, back from the tensor.
    fn needed(&self, candidate: &Candidate) -> Vec<OperationId> {
        let mut wanted = vec![candidate.tensor];
        let mut needed: Vec<OperationId> = Vec::new();
        for id in candidate.recompute.iter().rev() {
            let operation = self.graph.at(*id);
            if operation.outputs.iter().any(|output| wanted.contains(output)) {
                needed.push(*id);
                wanted.extend(operation.inputs.iter().filter(|input| !self.present[input.index()]));
            }
        }
        needed.reverse();
        needed
    }

    /// Frees a tensor that nobody needs any more.
    fn release(&mut self, tensor: TensorId) {
        let at = tensor.index();
        let is_needed = self.uses_left[at] > 0 || self.pins[at] > 0 || self.held[at] > 0;
        if is_needed || !self.present[at] || self.graph.is_argument(tensor) {
            return;
        }
        self.present[at] = false;
        self.live -= self.bytes[at];
        self.played.events.push(Event::Free(tensor));
    }
}
