//! Steps of one graph at the sizes of their batches under one compiler: what each needs, what is evicted, how long it takes.
//!
//! Units: bytes, tokens, nanoseconds. A batch is as long as its longest sequence, or as the bucket above it.

use std::collections::BTreeMap;

use engine::cost::{CostModel, Source};
use hw::{Bytes, real};
use train::tensor_graph::TensorGraph;
use train::tensor_graph::bound::{of_orders, of_working_sets};
use train::tensor_graph::play::{AtSizes, Eviction, play};
use train::tensor_graph::program::Program;
use train::tensor_graph::symbolic::{Symbol, SymbolId};

use super::{Compiled, Manager, Passes, Rules, Way, choose};
use crate::proof::Decision;

/// Steps that differ in their sizes alone.
#[derive(Clone, Debug)]
pub struct Steps {
    /// The step; symbols 0 and 1 are the batch and the sequence length.
    pub graph: TensorGraph,
    /// Memory of a GPU that the step may take.
    pub room: Bytes,
    /// Allocated over live bytes.
    pub fragmentation: f64,
    /// Batches.
    pub n_batches: usize,
    /// Lengths, tokens; a batch takes as many as it has sequences, from the first on.
    pub lengths: Vec<u64>,
    /// Rules of recompute subgraphs.
    pub rules: Rules,
    /// Host time of a check, nanoseconds.
    pub check_ns: u64,
    /// Time to compile a program for new sizes, seconds.
    pub compile_s: f64,
}

/// How a compiler goes about a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compiler {
    /// Edge to whose multiples sequences are padded, a program for each; 0 for one program for all sizes.
    pub bucket_tokens: u64,
    /// Whether operations are ordered for memory.
    pub schedule: bool,
    /// Who evicts; `None` where nothing is.
    pub manager: Option<Manager>,
    /// Memory that the step may take; 0 for all that the device has.
    pub limit: Bytes,
}

/// A batch, or all batches of one length.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Tokens of each of its sequences, padding included.
    pub sequence: u64,
    /// What was decided.
    pub choice: Decision<Way>,
    /// Time with nothing computed again: expected, low and high, nanoseconds.
    pub undisturbed_ns: [u64; 3],
    /// The same of what is computed again.
    pub again_ns: [u64; 3],
    /// Time of checks on the host, nanoseconds.
    pub checks_ns: u64,
    /// Peak of the original order.
    pub original_bytes: u64,
    /// No order without recompute has a lower peak.
    pub order_bound_bytes: u64,
    /// No order at all has a lower peak.
    pub floor_bytes: u64,
}

/// All batches of one size.
#[derive(Clone, Debug)]
pub struct Batches {
    /// In order.
    pub all: Vec<Batch>,
    /// Programs by padded length; one at length 0 for all.
    pub compiled: BTreeMap<u64, Compiled>,
    /// Live bytes that fit.
    pub limit: u64,
    /// Real tokens and tokens computed.
    pub tokens: [u64; 2],
    /// Weakest source of the times.
    pub source: Source,
}

impl Batches {
    /// Compiles and plays.
    pub fn play(steps: &Steps, compiler: &Compiler, size: u32, model: &dyn CostModel) -> Self {
        let room = if compiler.limit == Bytes(0) { steps.room } else { compiler.limit };
        let limit = hw::whole(room.as_f64() / steps.fragmentation);
        let groups: Vec<&[u64]> = steps.lengths.chunks_exact(size as usize).take(steps.n_batches).collect();
        let mut played: BTreeMap<u64, (Batch, Source)> = BTreeMap::new();
        let mut batches =
            Self { all: Vec::new(), compiled: BTreeMap::new(), limit, tokens: [0; 2], source: Source::Measured };
        for group in groups {
            let longest = group.iter().max().copied().unwrap_or(1);
            let bucket = compiler.bucket_tokens;
            let sequence = if bucket == 0 { longest } else { longest.div_ceil(bucket) * bucket };
            let compiled = batches
                .compiled
                .entry(if bucket == 0 { 0 } else { sequence })
                .or_insert_with_key(|known| compile(steps, compiler, size, *known));
            let (batch, source) = played.entry(sequence).or_insert_with(|| {
                let sized = Sized::new(&steps.graph, [u64::from(size), sequence], model);
                let manager = compiler.manager.unwrap_or(Manager::AtLimit(Eviction::FirstFound));
                (sized.batch(&steps.graph, compiled, (limit, steps.check_ns), manager), sized.source)
            });
            batches.all.push(batch.clone());
            batches.source = batches.source.max(*source);
            batches.tokens[0] += group.iter().sum::<u64>();
            batches.tokens[1] += u64::from(size) * sequence;
        }
        batches
    }

    /// The batch with the highest peak.
    pub fn largest(&self) -> &Batch {
        let largest = self.all.iter().max_by_key(|batch| (batch.choice.plan.played.peak_bytes, batch.sequence));
        largest.expect("there are batches")
    }

    /// The batch that would need most as operations come.
    pub fn longest(&self) -> &Batch {
        let longest = self.all.iter().max_by_key(|batch| (batch.original_bytes, batch.sequence));
        longest.expect("there are batches")
    }

    /// Batches that do not fit.
    pub fn misses(&self) -> Vec<&Batch> {
        self.all.iter().filter(|batch| batch.choice.plan.residual_bytes > 0).collect()
    }

    /// One batch of each length.
    pub fn shapes(&self) -> Vec<&Batch> {
        let mut shapes: BTreeMap<u64, &Batch> = BTreeMap::new();
        self.all.iter().for_each(|batch| {
            shapes.insert(batch.sequence, batch);
        });
        shapes.into_values().collect()
    }

    fn mean(&self, of: impl Fn(&Batch) -> u64) -> f64 {
        self.all.iter().map(|batch| real(of(batch))).sum::<f64>() / real(self.all.len() as u64)
    }

    /// Time of a step without compiling: expected, low or high.
    fn step_ns(batch: &Batch, case: usize) -> u64 {
        batch.undisturbed_ns[case] + batch.again_ns[case] + batch.checks_ns
    }

    /// Mean time of a step, nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.all.iter().map(|batch| Self::step_ns(batch, 0)).sum::<u64>() / self.all.len() as u64
    }

    /// The same with nothing computed again and no check: no way to run the graph takes less.
    pub fn mean_undisturbed_ns(&self) -> u64 {
        self.all.iter().map(|batch| batch.undisturbed_ns[0]).sum::<u64>() / self.all.len() as u64
    }

    fn compile_s(&self, steps: &Steps) -> f64 {
        steps.compile_s * real(self.compiled.len() as u64)
    }

    fn tokens_per_s(&self, steps: &Steps, case: usize) -> f64 {
        let seconds: f64 = self.all.iter().map(|batch| real(Self::step_ns(batch, case)) / 1e9).sum();
        real(self.tokens[0]) / (seconds + self.compile_s(steps))
    }

    /// Figures; those of time only where every batch fits, because a run ends at the first that does not.
    pub fn metrics(&self, steps: &Steps) -> BTreeMap<String, f64> {
        let peak = |batch: &Batch| batch.choice.plan.played.peak_bytes;
        let allocated = |bytes: f64| bytes * steps.fragmentation;
        let padded = 1.0 - real(self.tokens[0]) / real(self.tokens[1]);
        let mut metrics = vec![
            ("peak_memory_bytes", allocated(real(peak(self.largest())))),
            ("peak_memory_mean_bytes", allocated(self.mean(peak))),
            ("peak_memory_bound_bytes", allocated(real(self.longest().floor_bytes))),
            ("peak_memory_original_bytes", allocated(real(self.longest().original_bytes))),
            ("n_not_fitting", real(self.misses().len() as u64)),
            ("n_batches", real(self.all.len() as u64)),
            ("n_compiles", real(self.compiled.len() as u64)),
            ("evictions_per_step", self.mean(|batch| batch.choice.plan.played.n_evictions as u64)),
            ("evicted_mean_bytes", self.mean(|batch| batch.choice.plan.played.evicted_bytes)),
            ("padding_ratio", padded),
        ];
        if self.misses().is_empty() {
            let seconds = self.mean(|batch| Self::step_ns(batch, 0)) / 1e9;
            let again = self.mean(|batch| batch.again_ns[0]) / 1e9;
            metrics.extend([
                ("iteration_time_s", seconds),
                ("recompute_time_s", again),
                ("recompute_ratio", again / seconds),
                ("check_time_s", self.mean(|batch| batch.checks_ns) / 1e9),
                ("compile_time_s", self.compile_s(steps)),
                ("tokens_per_s", self.tokens_per_s(steps, 0)),
            ]);
        }
        metrics.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The same decisions with every cost at its low and at its high end.
    pub fn interval(&self, steps: &Steps) -> BTreeMap<String, [f64; 2]> {
        if !self.misses().is_empty() {
            return BTreeMap::new();
        }
        let step = |case: usize| self.mean(|batch| Self::step_ns(batch, case)) / 1e9;
        let rate = |case: usize| self.tokens_per_s(steps, case);
        [("iteration_time_s".to_owned(), [step(1), step(2)]), ("tokens_per_s".to_owned(), [rate(2), rate(1)])].into()
    }
}

/// One program for all sizes (`known` 0), or one for a batch of this size and length.
fn compile(steps: &Steps, compiler: &Compiler, size: u32, known: u64) -> Compiled {
    let passes = Passes { schedule: compiler.schedule, rematerialise: compiler.manager.map(|_| steps.rules) };
    if known == 0 {
        return Compiled::new(&steps.graph, passes);
    }
    let mut graph = steps.graph.clone();
    graph.symbols.set(SymbolId(0), Symbol::known("batch", u64::from(size)));
    graph.symbols.set(SymbolId(1), Symbol::known("sequence", known));
    Compiled::new(&graph, passes)
}

/// A step at known sizes with its costs.
struct Sized {
    sequence: u64,
    at: AtSizes,
    low_ns: Vec<u64>,
    high_ns: Vec<u64>,
    source: Source,
}

impl Sized {
    fn new(graph: &TensorGraph, [batch, sequence]: [u64; 2], model: &dyn CostModel) -> Self {
        let of = |id: SymbolId| if id.0 == 0 { batch } else { sequence };
        let estimates: Vec<_> = graph.ops(&of).iter().map(|op| model.estimate(op)).collect();
        let ns = |seconds: hw::Seconds| hw::Span::from_seconds(seconds).as_ns();
        Self {
            sequence,
            at: AtSizes { bytes: graph.bytes(&of), ns: estimates.iter().map(|estimate| ns(estimate.time)).collect() },
            low_ns: estimates.iter().map(|estimate| ns(estimate.low)).collect(),
            high_ns: estimates.iter().map(|estimate| ns(estimate.high)).collect(),
            source: estimates.iter().map(|estimate| estimate.source).max().unwrap_or(Source::Datasheet),
        }
    }

    fn batch(&self, graph: &TensorGraph, compiled: &Compiled, limit: (u64, u64), manager: Manager) -> Batch {
        let choice = choose(graph, compiled, &self.at, limit, manager);
        let original = Program::of_order(graph.original_order());
        let times = [&self.at.ns, &self.low_ns, &self.high_ns];
        Batch {
            sequence: self.sequence,
            undisturbed_ns: times.map(|times| times.iter().sum()),
            again_ns: times.map(|times| choice.plan.played.again(times)),
            checks_ns: choice.plan.checks_ns,
            original_bytes: play(graph, &original, &self.at, u64::MAX, Eviction::FirstFound).peak_bytes,
            order_bound_bytes: of_orders(graph, &self.at.bytes).bytes,
            floor_bytes: of_working_sets(graph, &self.at.bytes).bytes,
            choice,
        }
    }
}
