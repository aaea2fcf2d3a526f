//! Which layouts are looked at: lists of values per knob, and every legal combination of them; and what the best one is best at.

use engine::formats::Formats;
use engine::model::Mixer;
use engine::stage;
use train::layout::{ContextExchange, Layout, Zero};
use train::long_run::LongRun;
use train::problem::{Framework, Launches, Modules, Problem, Recompute};
use train::schedule::{Placement, Schedule};

use super::runs;
use crate::train::objective::Objective;

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
    /// Sequences of the longest length that a micro-batch holds, or rows.
    pub micro_batch: Vec<u64>,
    /// Tokens of a row into which sequences are packed; `None` where none are.
    pub row_tokens: Option<u64>,
    /// Whether micro-batches that hold about the mean are tried besides, where lengths differ.
    pub packs: bool,
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
    /// Nodes of the cluster that are used.
    pub nodes: Vec<u32>,
    /// Number formats of matrix products; `None` for those of the activations.
    pub products: Vec<Option<Formats>>,
    /// Layers that the embedding counts as when a pipeline is cut.
    pub embedding_layers: Vec<u32>,
    /// Layers that the head counts as.
    pub head_layers: Vec<u32>,
    /// What is sought.
    pub objective: Objective,
    /// A run of days over steps of a layout, where its figures are sought.
    pub run: Option<LongRun>,
    /// Layouts up to so many times the best one are looked at for less memory; 1 for the best one alone.
    pub front_ratio: f64,
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
    /// Nodes that are used.
    pub nodes: u32,
    /// Number formats of matrix products.
    pub products: Option<Formats>,
    /// Layers that the embedding and the head count as when the pipeline is cut.
    pub ends: [u32; 2],
    /// The host's launches under this layout.
    pub launches: Launches,
}

/// Micro-batches of about the mean that each rank of a pipeline has, as recipes have them: few, so that a pipeline fills, and up to four (GPipe,
/// arXiv:1811.06965, section 2.3).
const MEANS_OF_RANK: [u64; 3] = [1, 2, 4];

/// How much a micro-batch of a candidate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Sequences of the longest length.
    micro_batch: u64,
    /// Tokens on a rank.
    tokens: u64,
}

/// A pipeline of a candidate: schedule, chunks, and what embedding and head count as.
type Cut = (&'static Schedule, u32, [u32; 2]);

/// Multiplications of the head over those of a layer, to the nearest whole number: attention left out.
fn head_weight(problem: &Problem) -> u32 {
    let model = &problem.model;
    let head = hw::real(model.hidden * model.vocab);
    let layers = hw::real(model.active_parameters()) - head;
    u32::try_from(hw::whole((head * hw::real(model.n_layers) / layers.max(1.0)).min(100.0))).expect("at most 100")
}

/// Layers of the stages of a pipeline where embedding and head count as so many layers; `None` where a stage has none left.
pub fn layers(n_layers: u32, n_stages: u32, [embedding, head]: [u32; 2]) -> Option<Vec<u32>> {
    let mut layers = stage::even(n_layers + embedding + head, n_stages);
    let first = layers.first_mut()?;
    *first = first.checked_sub(embedding)?;
    let last = layers.last_mut()?;
    *last = last.checked_sub(head)?;
    layers.iter().all(|&n| n > 0).then_some(layers)
}

/// Nothing, what is computed again at little cost, and whole layers.
fn recompute(problem: &Problem) -> Vec<Recompute> {
    let cheap = match problem.execution.framework {
        Framework::MegatronCore => Recompute::Modules(Modules::cheap(&problem.model)),
        Framework::Formulas | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => Recompute::Selective,
    };
    vec![Recompute::Off, cheap, Recompute::Full]
}

/// Tokens of the longest sequence that a rank of a context group has at least. Published recipes give it 2,048 and more (NVIDIA-NeMo/Megatron-Bridge: 4,096 over
/// two ranks). A scenario may list wider groups; each further power takes the search as much longer.
const CONTEXT_TOKENS_MIN: u64 = 2_048;

/// Context groups: powers of two up to the largest that leaves a rank its least tokens of the longest sequence.
fn context_groups(problem: &Problem, longest: u64) -> Vec<u32> {
    let model = &problem.model;
    let is_whole = |mixer: Mixer| matches!(mixer, Mixer::StateSpace | Mixer::Linear) || mixer.kept_together() > 1;
    // Layers with a state, or with keys of several tokens together, are computed on whole sequences.
    if model.count(model.n_layers, |layer| is_whole(layer.mixer)) > 0 {
        return vec![1];
    }
    let most = longest / CONTEXT_TOKENS_MIN;
    let powers = std::iter::successors(Some(1_u32), |n| n.checked_mul(2));
    powers.take_while(|n| *n == 1 || (*n <= problem.cluster.n_gpus() && u64::from(*n) <= most)).collect()
}

/// Whether the exchange of context can cut sequences over such groups: Ulysses cuts heads.
fn cuts_context(problem: &Problem, tp: u32, cp: u32) -> bool {
    let heads = problem.model.n_heads;
    cp == 1
        || problem.layout.exchange != ContextExchange::Ulysses
        || heads.is_multiple_of(u64::from(tp) * u64::from(cp))
}

impl Space {
    /// Every value that makes sense for a problem, and that its framework has.
    pub fn of(problem: &Problem) -> Self {
        let n_gpus = problem.cluster.n_gpus();
        let divisors = |n: u32| (1..=n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>();
        let longest = problem.workload.lengths.iter().max().copied().unwrap_or(1);
        let node = problem.cluster.domain().min(n_gpus);
        let ep = match problem.model.experts {
            Some(experts) => divisors(u32::try_from(experts.n_routed).expect("few experts")),
            None => vec![1],
        };
        let framework = problem.execution.framework;
        let schedules = runs::schedules(framework).iter().filter_map(|name| train::schedule::named(name));
        Self {
            tp: divisors(node),
            cp: context_groups(problem, longest),
            pp: divisors(n_gpus),
            chunks: vec![1, 2, 3, 4, 5, 6, 7, 8],
            ep,
            micro_batch: vec![1, 2, 3, 4, 6, 8, 12, 16],
            row_tokens: None,
            packs: true,
            schedules: schedules.collect(),
            zero: runs::zero(framework),
            recompute: recompute(problem),
            offload: runs::offload(framework),
            sequence_parallel: vec![true, false],
            nodes: vec![problem.cluster.n_nodes],
            products: vec![problem.execution.formats],
            embedding_layers: vec![0],
            head_layers: match head_weight(problem) {
                0 => vec![0],
                weight => vec![0, weight],
            },
            objective: Objective::Seconds,
            run: None,
            front_ratio: 1.0,
        }
    }

    /// The same of a batch whose sequences are packed into rows of so many tokens: micro-batches are rows, and none is filled to the mean.
    #[must_use]
    pub fn of_rows(self, row_tokens: Option<u64>) -> Self {
        Self { row_tokens, packs: self.packs && row_tokens.is_none(), ..self }
    }

    /// The same for a part of a problem's cluster: degrees that follow from its GPUs are those of the part, and listed ones stay.
    #[must_use]
    pub fn of_part(&self, whole: &Problem, part: &Problem) -> Self {
        let (all, own) = (Self::of(whole), Self::of(part));
        let of = |listed: &Vec<u32>, all: &Vec<u32>, own: Vec<u32>| if listed == all { own } else { listed.clone() };
        let (tp, cp, pp) =
            (of(&self.tp, &all.tp, own.tp), of(&self.cp, &all.cp, own.cp), of(&self.pp, &all.pp, own.pp));
        Self { tp, cp, pp, nodes: own.nodes, ..self.clone() }
    }

    /// Every legal combination, in a fixed order.
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for &nodes in &self.nodes {
            for layout in self.degrees(problem, nodes) {
                for cut in self.pipelines(problem, layout.pp) {
                    for bucket in self.buckets(problem, &layout) {
                        let layout = Layout { chunks: cut.1, ..layout };
                        self.executions(problem, (nodes, layout), cut, bucket, &mut candidates);
                    }
                }
            }
        }
        candidates
    }

    /// Micro-batches of a layout: so many rows, or so many of the longest sequence, and, where nobody lists them and lengths differ, those with which every replica has so many
    /// of about the mean for each rank of its pipeline. Heavy tails leave wide gaps between multiples of the longest.
    fn buckets(&self, problem: &Problem, layout: &Layout) -> Vec<Bucket> {
        let (lengths, ranks) = (&problem.workload.lengths, u64::from(layout.cp));
        let longest = self.row_tokens.or_else(|| lengths.iter().max().copied()).unwrap_or(1);
        let listed = self.micro_batch.iter().filter(|&&n| self.looks_at(problem, layout, n));
        let of = |&micro_batch: &u64| Bucket { micro_batch, tokens: (longest * micro_batch).div_ceil(ranks) };
        let mut all: Vec<Bucket> = listed.map(of).collect();
        if !self.packs || lengths.iter().all(|length| *length == longest) {
            return all;
        }
        let batch = problem.workload.batch_size.max(1);
        let most = lengths.chunks(batch).map(|step| step.iter().sum::<u64>()).max().unwrap_or(0);
        let largest = all.iter().map(|bucket| bucket.tokens).max().unwrap_or(0);
        for of_rank in MEANS_OF_RANK {
            let n = u64::from(layout.dp) * u64::from(layout.pp) * of_rank * ranks;
            // The last sequence of a micro-batch passes the mean by half of its length, as a rule.
            let tokens = most.div_ceil(n) + most.div_ceil(batch as u64 * ranks);
            let is_known = all.iter().any(|bucket| bucket.tokens == tokens);
            if tokens > longest.div_ceil(ranks) && tokens < largest && !is_known {
                all.push(Bucket { micro_batch: tokens * ranks / longest, tokens });
            }
        }
        all
    }

    /// Whether micro-batches of so many sequences are looked at: all that somebody lists, as a scenario may have them without a search. Where nobody does and
    /// sequences are equal, every replica has work, and those numbers count that divide it.
    fn looks_at(&self, problem: &Problem, layout: &Layout, micro_batch: u64) -> bool {
        let lengths = &problem.workload.lengths;
        if !self.packs || lengths.iter().any(|length| *length != lengths[0]) {
            return true;
        }
        let (batch, replicas) = (problem.workload.batch_size as u64, u64::from(layout.dp));
        batch >= replicas && batch.div_ceil(replicas).is_multiple_of(micro_batch)
    }

    /// Degrees that use every GPU of so many nodes and that the model can be cut by.
    fn degrees(&self, problem: &Problem, nodes: u32) -> Vec<Layout> {
        let (model, n_gpus) = (&problem.model, nodes * problem.cluster.gpus_per_node);
        let n_layers = u32::try_from(model.n_layers).expect("few layers");
        let mut layouts = Vec::new();
        let is_priced = |tp: &&u32| **tp == 1 || !problem.scatters_tensor_groups();
        for &tp in self.tp.iter().filter(|&&tp| model.n_heads.is_multiple_of(u64::from(tp))).filter(is_priced) {
            for &pp in self.pp.iter().filter(|&&pp| pp <= n_layers) {
                for &cp in self.cp.iter().filter(|&&cp| cuts_context(problem, tp, cp)) {
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

    /// Schedules with their chunks and cuts.
    fn pipelines(&self, problem: &Problem, pp: u32) -> Vec<Cut> {
        let n_layers = problem.model.n_layers;
        let chunks = |schedule: &Schedule| match schedule.placement {
            Placement::Linear => vec![1],
            Placement::Loop => self.chunks.iter().copied().filter(|&chunks| chunks > 1).collect(),
            Placement::V | Placement::Bidirectional => vec![2],
        };
        // One stage has no order of passes to choose: it runs a micro-batch after the other, whatever the list names.
        if pp == 1 {
            let plain = train::schedule::named("1f1b").expect("the table has 1F1B");
            return vec![(plain, 1, [0, 0])];
        }
        let all = self.schedules.iter().flat_map(|&schedule| chunks(schedule).into_iter().map(move |n| (schedule, n)));
        all.filter(|(schedule, chunks)| schedule.placement.n_stages(pp as usize, *chunks as usize) as u64 <= n_layers)
            .flat_map(|(schedule, chunks)| {
                self.ends(problem, schedule, (pp, chunks)).into_iter().map(move |ends| (schedule, chunks, ends))
            })
            .collect()
    }

    /// What embedding and head may count as: every pair of the lists that cuts the layers in another way than those before it.
    fn ends(&self, problem: &Problem, schedule: &Schedule, (pp, chunks): (u32, u32)) -> Vec<[u32; 2]> {
        let n_layers = u32::try_from(problem.model.n_layers).expect("few layers");
        let n_stages = u32::try_from(schedule.placement.n_stages(pp as usize, chunks as usize)).expect("few stages");
        let is_in_line = matches!(schedule.placement, Placement::Linear | Placement::Loop);
        let mut known: Vec<Vec<u32>> = Vec::new();
        let mut ends = Vec::new();
        for &embedding in &self.embedding_layers {
            for &head in &self.head_layers {
                let pair = [embedding, head];
                let cut = layers(n_layers, n_stages, pair).filter(|cut| !known.contains(cut));
                if let Some(cut) = cut.filter(|_| is_in_line || pair == [0, 0]) {
                    known.push(cut);
                    ends.push(pair);
                }
            }
        }
        ends
    }

    /// A layout under every sharding that it can have. Copies of the states that were asked for divide its ranks, or it is none; without
    /// sharding there is nothing to copy. A sharding among one rank alone is none by another name: it stays where the list has nothing else.
    fn sharded(&self, problem: &Problem, layout: Layout) -> Vec<Layout> {
        let with = |zero| Layout { zero, replicate: if zero == Zero::Off { 1 } else { layout.replicate }, ..layout };
        let runs = |of: &Layout| runs::shards(problem.execution.framework, of);
        let all = self.zero.iter().copied().map(with).filter(runs);
        let possible: Vec<Layout> = all.filter(|of| of.n_holders().is_multiple_of(of.replicate)).collect();
        let has_experts = problem.model.experts.is_some();
        let differs =
            |of: &&Layout| of.zero == Zero::Off || of.n_shards() > 1 || has_experts && of.n_expert_shards() > 1;
        let sharded: Vec<Layout> = possible.iter().filter(differs).copied().collect();
        if sharded.is_empty() {
            return possible.into_iter().min_by_key(|of| of.zero).into_iter().collect();
        }
        sharded
    }

    /// Whether sequences are cut over a tensor group of so many ranks. One rank alone has nothing to cut, whatever the list says.
    fn cut_sequences(&self, tp: u32) -> &[bool] {
        if tp > 1 { &self.sequence_parallel } else { &[false] }
    }

    fn executions(
        &self,
        problem: &Problem,
        (nodes, layout): (u32, Layout),
        (schedule, _, ends): Cut,
        Bucket { micro_batch, tokens: bucket_tokens }: Bucket,
        candidates: &mut Vec<Candidate>,
    ) {
        let blank = Candidate {
            layout,
            schedule,
            bucket_tokens,
            micro_batch,
            recompute: Recompute::Off,
            offload: 0.0,
            nodes,
            products: None,
            ends,
            launches: problem.execution.launches_with(layout.ep),
        };
        let sharded = self.sharded(problem, layout);
        let can_be_split = |layout: &&Layout| layout.zero < Zero::Gradients;
        for &layout in sharded.iter().filter(|layout| !schedule.splits_backward || can_be_split(layout)) {
            for &products in &self.products {
                for &recompute in &self.recompute {
                    let sends = |share: &&f64| **share == 0.0 || runs::sends(problem.execution.framework, recompute);
                    for &offload in self.offload.iter().filter(sends) {
                        for &sequence_parallel in self.cut_sequences(layout.tp) {
                            let layout = Layout { sequence_parallel, ..layout };
                            candidates.push(Candidate { layout, products, recompute, offload, ..blank });
                        }
                    }
                }
            }
        }
    }
}

impl Candidate {
    /// What a problem has by itself: what a scenario says without a search.
    pub fn own(problem: &Problem) -> Self {
        Self {
            layout: problem.layout,
            schedule: problem.schedule,
            bucket_tokens: problem.bucket_tokens,
            micro_batch: 1,
            recompute: problem.execution.recompute,
            offload: problem.execution.offload,
            nodes: problem.cluster.n_nodes,
            products: problem.execution.formats,
            ends: [0, 0],
            launches: problem.execution.launches,
        }
    }

    /// What has to be set up for this layout, least first among equal steps: degrees above one, what is computed again, what waits on the host, what is sharded.
    pub fn effort(&self) -> [u64; 5] {
        let Layout { dp: _, cp, tp, pp, ep, chunks, .. } = self.layout;
        let n_degrees = [cp, tp, pp, ep, chunks].into_iter().filter(|degree| *degree > 1).count() as u64;
        let recomputed = match self.recompute {
            Recompute::Off => 0,
            Recompute::Full => 2,
            Recompute::Selective | Recompute::Modules(_) => 1,
        };
        let [narrow, uneven] = [self.products.is_some(), self.ends != [0, 0]].map(u64::from);
        [n_degrees, recomputed, u64::from(self.offload > 0.0), self.layout.zero as u64, narrow + uneven]
    }

    /// The problem with this layout.
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
        if self.products != problem.execution.formats {
            problem.execution.multiply_in(self.products);
        }
        problem.execution.layers = self.layers(problem);
        problem.execution.launches = self.launches;
        problem.cluster.n_nodes = self.nodes;
    }

    /// Layers of every stage; empty for an even cut.
    pub fn layers(&self, problem: &Problem) -> Vec<u32> {
        if self.ends == [0, 0] {
            return Vec::new();
        }
        let n_layers = u32::try_from(problem.model.n_layers).expect("few layers");
        let (pp, chunks) = (self.layout.pp as usize, self.layout.chunks as usize);
        let n_stages = u32::try_from(self.schedule.placement.n_stages(pp, chunks)).expect("few stages");
        layers(n_layers, n_stages, self.ends).expect("the space leaves out what cannot be cut")
    }

    /// The layout of a problem in the words of a scenario file, one key a line.
    pub fn to_toml(&self, problem: &Problem) -> String {
        let layout = &self.layout;
        let recompute = self.recompute.written();
        let layers = self.layers(problem);
        let layers = if layers.is_empty() { String::new() } else { format!("layers = {layers:?}\n") };
        let replicate =
            if layout.replicate > 1 { format!("replicate = {}\n", layout.replicate) } else { String::new() };
        let nodes = match self.nodes == problem.cluster.n_nodes {
            true => String::new(),
            false => format!("[cluster]\nnodes = {}\n\n", self.nodes),
        };
        let products = match self.products {
            Some(formats) if self.products != problem.execution.formats => {
                format!("products = \"{}\"\n", formats.dense.word())
            }
            _ => String::new(),
        };
        format!(
            "{nodes}[parallel]\ndp = {}\ncp = {}\ntp = {}\npp = {}\nep = {}\nschedule = \"{}\"\nchunks = {}\nzero = {}\n\
             {replicate}sequence_parallel = {}\n{layers}\n[training]\nbucket_tokens = {}\nrecompute = {recompute}\n\
             offload_ratio = {}\n{products}",
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

#[cfg(test)]
mod tests {
    use train::layout::Axis;
    use train::problem::Execution;

    use super::*;
    use crate::train::search::tests::problem;

    /// Eight replicas share twenty equal sequences: two or three each. A list holds any number; without one, those of one and of all three.
    #[test]
    fn listed_micro_batches_of_equal_sequences_are_all_looked_at() {
        let problem = problem(vec![1024; 20], Execution::default(), 80.0);
        let tried = |space: Space| {
            let of_all = space.candidates(&problem).into_iter().filter(|of| of.layout.dp == 8);
            of_all.map(|of| of.micro_batch).collect::<std::collections::BTreeSet<u64>>()
        };
        let listed = Space { micro_batch: vec![1, 2, 3, 4], packs: false, ..Space::of(&problem) };
        assert_eq!(tried(listed), [1, 2, 3, 4].into());
        assert_eq!(tried(Space::of(&problem)), [1, 3].into());
    }

    /// NVLink joins pairs. A tensor group of four side by side exchanges over PCIe, which has a price; where tensor ranks lie apart there is none.
    #[test]
    fn scattered_tensor_groups_are_no_candidates() {
        let mut problem = problem(vec![1024; 16], Execution::default(), 80.0);
        problem.cluster.nvlink_island = 2;
        let widest = |problem: &Problem| {
            let all = Space { tp: vec![1, 2, 4], ..Space::of(problem) }.candidates(problem);
            all.iter().map(|candidate| candidate.layout.tp).max()
        };
        assert_eq!(widest(&problem), Some(4));
        problem.layout.order = [Axis::Context, Axis::Tensor, Axis::Data, Axis::Pipeline];
        assert_eq!(widest(&problem), Some(1));
    }
}
