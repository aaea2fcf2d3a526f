//! Which layouts are looked at: lists of values per knob, and every legal combination of them.

use train::layout::{Layout, Zero};
use train::problem::{Framework, Modules, Problem, Recompute};
use train::schedule::{Placement, Schedule};

/// Values of every knob; combinations that are not legal for a problem are left out.
#[derive(Clone, Debug)]
pub struct Space {
    /// Tensor degrees.
    pub tp: Vec<u32>,
    /// Context degrees.
    pub cp: Vec<u32>,
    /// Pipeline ranks.
    pub pp: Vec<u32>,
    /// Chunks per pipeline rank, for interleaved stages.
    pub chunks: Vec<u32>,
    /// Expert degrees.
    pub ep: Vec<u32>,
    /// Sequences of the longest length that a micro-batch holds.
    pub micro_batch: Vec<u64>,
    /// Pipeline schedules.
    pub schedules: Vec<&'static Schedule>,
    /// Sharding.
    pub zero: Vec<Zero>,
    /// Recompute.
    pub recompute: Vec<Recompute>,
    /// Share of activations in host memory.
    pub offload: Vec<f64>,
    /// Sequence parallelism, where tp is above 1.
    pub sequence_parallel: Vec<bool>,
}

/// One layout with the rest of what a search decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Degrees.
    pub layout: Layout,
    /// Pipeline schedule.
    pub schedule: &'static Schedule,
    /// Tokens of a micro-batch on a rank.
    pub bucket_tokens: u64,
    /// Sequences of the longest length that this holds.
    pub micro_batch: u64,
    /// Recompute.
    pub recompute: Recompute,
    /// Share of activations in host memory.
    pub offload: f64,
}

/// Nothing, what is computed again at little cost, and whole layers.
fn recompute(problem: &Problem) -> Vec<Recompute> {
    let cheap = match problem.execution.framework {
        Framework::MegatronCore => Recompute::Modules(Modules::cheap(&problem.model)),
        Framework::Formulas | Framework::Fsdp2(_) => Recompute::Selective,
    };
    vec![Recompute::Off, cheap, Recompute::Full]
}

impl Space {
    /// Every value that makes sense for a problem.
    #[must_use]
    pub fn of(problem: &Problem) -> Self {
        let n_gpus = problem.cluster.n_gpus();
        let divisors = |n: u32| (1..=n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>();
        let longest = problem.workload.lengths.iter().max().copied().unwrap_or(1);
        let powers = |most: u32| (0..=most.ilog2()).map(|power| 1 << power).collect::<Vec<u32>>();
        let node = problem.cluster.gpus_per_node;
        let ep = match problem.model.experts {
            Some(experts) => divisors(u32::try_from(experts.n_routed).expect("few experts")),
            None => vec![1],
        };
        let named = |name| train::schedule::named(name);
        Self {
            tp: divisors(node),
            // Context parallelism pays for long sequences only: from 8,192 tokens on.
            cp: powers(u32::try_from((longest / 8192).clamp(1, u64::from(node))).expect("at most a node")),
            pp: divisors(n_gpus),
            chunks: vec![1, 2, 3, 4, 5, 6, 7, 8],
            ep,
            micro_batch: vec![1, 2, 3, 4, 6, 8, 12, 16],
            schedules: ["1f1b", "interleaved", "zb-1p"].into_iter().filter_map(named).collect(),
            zero: vec![Zero::Off, Zero::OptimizerStates],
            recompute: recompute(problem),
            offload: vec![0.0, 1.0],
            sequence_parallel: vec![true, false],
        }
    }

    /// Every legal combination, in a fixed order.
    #[must_use]
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for layout in self.degrees(problem) {
            for (schedule, chunks) in self.pipelines(problem, layout.pp) {
                for &micro_batch in self.micro_batch.iter().filter(|&&n| fills(problem, &layout, n)) {
                    let layout = Layout { chunks, ..layout };
                    self.executions(problem, layout, schedule, micro_batch, &mut candidates);
                }
            }
        }
        candidates
    }

    /// Degrees that use every GPU and that the model can be cut by.
    fn degrees(&self, problem: &Problem) -> Vec<Layout> {
        let (model, n_gpus) = (&problem.model, problem.cluster.n_gpus());
        let n_layers = u32::try_from(model.n_layers).expect("few layers");
        let mut layouts = Vec::new();
        for &tp in self.tp.iter().filter(|&&tp| model.n_heads.is_multiple_of(u64::from(tp))) {
            for &pp in self.pp.iter().filter(|&&pp| pp <= n_layers) {
                for &cp in &self.cp {
                    let used = u64::from(tp) * u64::from(pp) * u64::from(cp);
                    if used > u64::from(n_gpus) || !u64::from(n_gpus).is_multiple_of(used) {
                        continue;
                    }
                    let dp = u32::try_from(u64::from(n_gpus) / used).expect("below the GPUs");
                    for &ep in &self.ep {
                        let layout = Layout { dp, cp, tp, pp, ep, ..problem.layout };
                        layouts.extend(layout.expert_span().is_some().then_some(layout));
                    }
                }
            }
        }
        layouts
    }

    /// Schedules with their chunks.
    fn pipelines(&self, problem: &Problem, pp: u32) -> Vec<(&'static Schedule, u32)> {
        let n_layers = problem.model.n_layers;
        let chunks = |schedule: &Schedule| match schedule.placement {
            Placement::Linear => vec![1],
            Placement::Loop => self.chunks.iter().copied().filter(|&chunks| chunks > 1).collect(),
            Placement::V | Placement::Bidirectional => vec![2],
        };
        if pp == 1 {
            return self.schedules.first().map(|&schedule| (schedule, 1)).into_iter().collect();
        }
        let all = self.schedules.iter().flat_map(|&schedule| chunks(schedule).into_iter().map(move |n| (schedule, n)));
        all.filter(|(schedule, chunks)| schedule.placement.n_stages(pp as usize, *chunks as usize) as u64 <= n_layers)
            .collect()
    }

    fn executions(
        &self,
        problem: &Problem,
        layout: Layout,
        schedule: &'static Schedule,
        micro_batch: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        let longest = problem.workload.lengths.iter().max().copied().unwrap_or(1);
        let bucket_tokens = (longest * micro_batch).div_ceil(u64::from(layout.cp));
        for &zero in self.zero.iter().filter(|&&zero| zero == Zero::Off || layout.n_shards() > 1) {
            if layout.pp > 1 && zero >= Zero::Gradients && schedule.splits_backward {
                continue;
            }
            for &recompute in &self.recompute {
                for &offload in &self.offload {
                    for &sequence_parallel in self.sequence_parallel.iter().filter(|&&on| !on || layout.tp > 1) {
                        let layout = Layout { zero, sequence_parallel, ..layout };
                        candidates.push(Candidate { layout, schedule, bucket_tokens, micro_batch, recompute, offload });
                    }
                }
            }
        }
    }
}

/// Whether the batch fills every data-parallel group with whole micro-batches of equal sequences; always for mixed lengths.
fn fills(problem: &Problem, layout: &Layout, micro_batch: u64) -> bool {
    let lengths = &problem.workload.lengths;
    let mixed = lengths.iter().any(|length| *length != lengths[0]);
    let batch = problem.workload.batch_size as u64;
    mixed || batch.is_multiple_of(u64::from(layout.dp) * micro_batch)
}

impl Candidate {
    /// The problem with this layout.
    #[must_use]
    pub fn problem(&self, problem: &Problem) -> Problem {
        let mut problem = problem.clone();
        self.apply(&mut problem);
        problem
    }

    /// Puts this layout into a problem.
    pub fn apply(&self, problem: &mut Problem) {
        problem.layout = self.layout;
        problem.schedule = self.schedule;
        problem.bucket_tokens = self.bucket_tokens;
        problem.execution.recompute = self.recompute;
        problem.execution.offload = self.offload;
        problem.execution.layers.clear();
    }

    /// The layout in the words of a scenario file, one key a line.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let layout = &self.layout;
        let recompute = self.recompute.written();
        format!(
            "[parallel]\ndp = {}\ncp = {}\ntp = {}\npp = {}\nep = {}\nschedule = \"{}\"\nchunks = {}\nzero = {}\n\
             sequence_parallel = {}\n\n[training]\nbucket_tokens = {}\nrecompute = {recompute}\noffload_ratio = {}\n",
            layout.dp,
            layout.cp,
            layout.tp,
            layout.pp,
            layout.ep,
            self.schedule.name,
            layout.chunks,
            layout.zero as u8,
            layout.sequence_parallel,
            self.bucket_tokens,
            self.offload,
        )
    }
}
