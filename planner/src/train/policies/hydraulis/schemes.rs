//! Schemes: the pipeline shapes that a strategy is made of, with the time of a stage and the tokens that fit.
//!
//! A micro-batch of sequences s takes a stage Σ (a·s² + b·s) + c seconds, forward and backward. The authors count a pipeline of v micro-batches
//! as (largest + c) · (pp − 1 + v); with the scenario's own coefficients unequal ones count for what they are, Σ + (pp − 1) · largest,
//! which is the same for equal ones. The coefficients are the authors' (`profiles/published/hydraulis.toml`), or fitted to the scenario's
//! cost model: the slowest stage at a few lengths, least squares of the relative error. Published token limits follow the authors'
//! memory formula: (memory − safe − states − gap) / (L · H / tp · A), in whole multiples of 128. Those of the scenario's own costs are held against the player.

use std::sync::OnceLock;

use engine::CostModel;
use serde::Deserialize;
use train::lower::training::mixed::{own_states, shaped, shares};
use train::lower::training::pipelines;
use train::plan::{MicroBatch, PipelineShape, Place, Placement, Step};
use train::schedule::PassKind;
use train::{Plan, Problem, fitting, memory};

/// Token limits are whole multiples of this.
const TOKENS_STEP: u64 = 128;
/// Tokens below which a micro-batch does not pay, where nothing was published: a tile of a GEMM's rows and twice that.
const USEFUL_TOKENS: u64 = 512;
/// Degrees that are tried with the scenario's own cost model.
const TENSOR: [u32; 5] = [1, 2, 4, 8, 16];
const PIPELINE: [u32; 6] = [1, 2, 3, 4, 6, 8];

/// A pipeline shape with its costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scheme {
    pub(super) shape: PipelineShape,
    /// Seconds per token².
    pub(super) a: f64,
    /// Seconds per token.
    pub(super) b: f64,
    /// Seconds per micro-batch.
    pub(super) c: f64,
    /// Tokens that a micro-batch may have.
    pub(super) max_tokens: u64,
    /// Tokens below which a micro-batch does not pay.
    pub(super) useful_tokens: u64,
    /// Whether every micro-batch of a pipeline counts as its largest.
    pub(super) each_as_largest: bool,
}

impl Scheme {
    /// Seconds that one sequence adds to a stage.
    pub(super) fn sequence_s(&self, tokens: u64) -> f64 {
        let tokens = hw::real(tokens);
        self.a * tokens * tokens + self.b * tokens
    }

    /// Seconds of a pipeline whose micro-batches take these on a stage, without c.
    pub(super) fn pipeline_s(&self, micro_batches_s: &[f64]) -> f64 {
        let largest = micro_batches_s.iter().copied().fold(0.0, f64::max) + self.c;
        let n = hw::real(micro_batches_s.len() as u64);
        let work = if self.each_as_largest { largest * n } else { micro_batches_s.iter().sum::<f64>() + self.c * n };
        work + largest * (f64::from(self.shape.pp) - 1.0)
    }
}

/// What the authors fitted to one model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedModel {
    name: String,
    hidden: u32,
    layers: u32,
    vocab: u32,
    memory_bytes: u64,
    safe_bytes: u64,
    gap_bytes: u64,
    state_factor: f64,
    sharded_share: f64,
    /// Reduction over pipelines of different shape, milliseconds.
    pub(super) hetero_sync_ms: f64,
    degrees: Vec<Degree>,
    schemes: Vec<Coefficients>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Degree {
    tp: u32,
    activation_factor: f64,
    useful_tokens: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Coefficients {
    tp: u32,
    pp: u32,
    a_ms: f64,
    b_ms: f64,
    c_ms: f64,
}

/// A published model by name.
pub(super) fn published(name: &str) -> Option<&'static PublishedModel> {
    static ALL: OnceLock<Vec<PublishedModel>> = OnceLock::new();
    let all =
        ALL.get_or_init(|| crate::published::models(include_str!("../../../../../profiles/published/hydraulis.toml")));
    all.iter().find(|model| model.name == name)
}

impl PublishedModel {
    /// Tokens of a micro-batch that fit beside the states of an optimizer cut over dp × tp × pp ranks.
    fn max_tokens(&self, shape: PipelineShape, optimizer: (u32, PipelineShape)) -> u64 {
        let Some(degree) = self.degrees.iter().find(|degree| degree.tp == shape.tp) else { return 0 };
        let (layers, hidden, vocab) = (f64::from(self.layers), f64::from(self.hidden), f64::from(self.vocab));
        let (dp, cut) = optimizer;
        // Layers and tables of one rank of a shape; the table's states weigh double where one rank has both ends.
        let states = |of: PipelineShape| {
            let table = if of.pp == 1 { 32.0 } else { 16.0 };
            let (tp, pp) = (f64::from(of.tp), f64::from(of.pp));
            layers / pp * hidden * hidden / tp * self.state_factor + hidden * vocab / tp * table
        };
        let held = states(cut) * self.sharded_share / f64::from(dp) + states(shape) * (1.0 - self.sharded_share);
        let free = [self.memory_bytes, self.safe_bytes, self.gap_bytes].map(hw::real);
        let per_token = layers * hidden / f64::from(shape.tp) * degree.activation_factor;
        let tokens = (free[0] - free[1] - free[2] - held) / per_token;
        hw::whole(tokens.max(0.0).floor()) / TOKENS_STEP * TOKENS_STEP
    }

    /// Schemes that fit `n_ranks` ranks.
    pub(super) fn schemes(&self, n_ranks: u32, optimizer: (u32, PipelineShape)) -> Vec<Scheme> {
        let scheme = |of: &Coefficients| {
            let shape = PipelineShape { tp: of.tp, pp: of.pp };
            let useful_tokens = self.degrees.iter().find(|degree| degree.tp == of.tp)?.useful_tokens;
            let max_tokens = self.max_tokens(shape, optimizer);
            let fits = shape.n_ranks() <= n_ranks && max_tokens > 0;
            let [a, b, c] = [of.a_ms, of.b_ms, of.c_ms].map(|ms| ms * 1e-3);
            fits.then_some(Scheme { shape, a, b, c, max_tokens, useful_tokens, each_as_largest: true })
        };
        self.schemes.iter().filter_map(scheme).collect()
    }
}

/// Schemes of the scenario's model under its cost model.
pub(super) fn own(problem: &Problem, cost: &dyn CostModel) -> Vec<Scheme> {
    let n_ranks = problem.layout.n_ranks();
    let shapes = TENSOR.iter().flat_map(|&tp| PIPELINE.iter().map(move |&pp| PipelineShape { tp, pp }));
    let possible = |shape: &PipelineShape| cuts(problem, *shape) && shape.n_ranks() <= n_ranks;
    shapes.filter(possible).filter_map(|shape| fitted(problem, shape, cost)).collect()
}

/// Whether a problem's model can be cut into a shape.
pub(super) fn cuts(problem: &Problem, shape: PipelineShape) -> bool {
    problem.layout.cuts(&problem.model, shape.tp) && u64::from(shape.pp) <= problem.model.n_layers
}

fn fitted(problem: &Problem, shape: PipelineShape, cost: &dyn CostModel) -> Option<Scheme> {
    let part = shaped(problem, shape, 1);
    let cut = shares(problem, problem.layout.n_ranks());
    let room = |need: &memory::Need| {
        let states = own_states(problem, need.states).total().0 + cut.total().0;
        part.cluster.gpu.memory.0.saturating_sub(part.reserved_memory.0 + states) / need.bytes_per_token.max(1)
    };
    let free = memory::needs(&part).iter().map(room).min()?;
    // The player charges more than states and activations: buffers of exchanges, logits, a layer that is made again.
    let max_tokens = fitting::most_in(problem, shape, free) / TOKENS_STEP * TOKENS_STEP;
    if max_tokens == 0 {
        return None;
    }
    let lengths =
        std::iter::successors(Some(TOKENS_STEP), |length| Some(length * 2)).take_while(|length| *length <= max_tokens);
    let timed = lengths.map(|length| (hw::real(length), stage_s(&part, length, cost)));
    // A cost model in which nothing takes time has nothing to fit.
    let points: Vec<(f64, f64)> = timed.filter(|(_, seconds)| *seconds > 0.0).collect();
    let [a, b, c] = least_squares(&points);
    let useful_tokens = USEFUL_TOKENS.min(max_tokens);
    Some(Scheme { shape, a, b, c, max_tokens, useful_tokens, each_as_largest: false })
}

/// Slowest stage of one sequence, forward and backward, seconds.
fn stage_s(problem: &Problem, tokens: u64, cost: &dyn CostModel) -> f64 {
    let mut problem = problem.clone();
    problem.workload.lengths = vec![tokens];
    problem.workload.batch_size = 1;
    let placement = Placement { sequence: 0, from: 0, tokens, place: Place::Local(0) };
    let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
    let plan = Plan::new("", &problem, vec![Step::of_groups(vec![vec![micro_batch]])]);
    let (found, _) = pipelines(&problem, &plan, 0, cost);
    let pass = |kind, stage: usize| found[0].duration(kind, stage, 0);
    let of_stage = |stage| pass(PassKind::Forward, stage) + pass(PassKind::Backward, stage);
    hw::Span::from_ns((0..found[0].n_stages()).map(of_stage).max().unwrap_or(0)).to_seconds().get()
}

/// Coefficients of t = a·s² + b·s + c, none below 0, with the least squares of the relative error: the coefficient that would be
/// negative is left out.
fn least_squares(points: &[(f64, f64)]) -> [f64; 3] {
    let mut kept = [true; 3];
    loop {
        let found = normal_equations(points, kept);
        match found.iter().position(|value| *value < 0.0) {
            Some(index) => kept[index] = false,
            None => return found,
        }
    }
}

/// Solves the normal equations over the kept coefficients by elimination.
fn normal_equations(points: &[(f64, f64)], kept: [bool; 3]) -> [f64; 3] {
    let mut rows = [[0.0; 4]; 3];
    for &(s, t) in points {
        let terms = [s * s / t, s / t, 1.0 / t];
        for (row, of_row) in rows.iter_mut().zip(terms) {
            for (cell, term) in row.iter_mut().zip(terms.into_iter().chain([1.0])) {
                *cell += of_row * term;
            }
        }
    }
    for (index, kept) in kept.into_iter().enumerate() {
        if !kept {
            rows.iter_mut().for_each(|row| row[index] = 0.0);
            rows[index] = std::array::from_fn(|column| if column == index { 1.0 } else { 0.0 });
        }
    }
    for pivot in 0..3 {
        for row in 0..3 {
            if row != pivot && rows[pivot][pivot] != 0.0 {
                let factor = rows[row][pivot] / rows[pivot][pivot];
                let of_pivot = rows[pivot];
                rows[row].iter_mut().zip(of_pivot).for_each(|(cell, value)| *cell -= factor * value);
            }
        }
    }
    std::array::from_fn(|index| if rows[index][index] == 0.0 { 0.0 } else { rows[index][3] / rows[index][index] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_token_limits_come_out_of_the_formula() {
        // The limits that the authors' planner prints for 32B on 64 GPUs, optimizer on dp 4 × tp 16.
        let model = published("published-32b").expect("shipped");
        let optimizer = (4, PipelineShape { tp: 16, pp: 1 });
        let limit = |tp, pp| model.max_tokens(PipelineShape { tp, pp }, optimizer);
        assert_eq!([limit(16, 1), limit(4, 1), limit(8, 3)], [43_520, 7_808, 27_264]);
        // More pipeline ranks leave more room, fewer optimizer shards less.
        assert!(limit(8, 1) < limit(8, 2) && limit(8, 2) < limit(8, 3));
        assert!(model.max_tokens(PipelineShape { tp: 4, pp: 1 }, (2, PipelineShape { tp: 16, pp: 1 })) < limit(4, 1));
        assert_eq!(limit(3, 1), 0, "nothing was fitted for this degree");
        assert!(published("published-70b").is_none());
    }

    #[test]
    fn short_sequences_are_twice_as_cheap_in_narrow_pipelines() {
        // GPU milliseconds per 1,024 tokens of one sequence of 4,096, from the same figures: 2354, 1476, 1165.
        let all = published("published-32b").expect("shipped").schemes(64, (4, PipelineShape { tp: 16, pp: 1 }));
        for (tp, expected) in [(16, 2354.0), (8, 1476.0), (4, 1165.0)] {
            let scheme = all.iter().find(|scheme| scheme.shape == PipelineShape { tp, pp: 1 }).expect("listed");
            let found = scheme.pipeline_s(&[scheme.sequence_s(4096)]) * f64::from(tp) / 4.0 * 1e3;
            assert!((found / expected - 1.0).abs() < 0.01, "tp {tp}: {found}");
        }
    }

    #[test]
    fn equal_micro_batches_take_the_authors_formula_and_unequal_ones_less() {
        let shape = PipelineShape { tp: 1, pp: 4 };
        let own = Scheme { shape, a: 0.0, b: 1.0, c: 0.5, max_tokens: 1, useful_tokens: 1, each_as_largest: false };
        let authors = Scheme { each_as_largest: true, ..own };
        assert_eq!(authors.pipeline_s(&[2.0; 6]), 2.5 * (4.0 - 1.0 + 6.0));
        assert_eq!(own.pipeline_s(&[2.0; 6]), authors.pipeline_s(&[2.0; 6]));
        assert_eq!(authors.pipeline_s(&[2.0, 1.0]), 2.5 * 5.0);
        assert_eq!(own.pipeline_s(&[2.0, 1.0]), 2.5 + 1.5 + 3.0 * 2.5);
    }

    #[test]
    fn coefficients_of_a_parabola_are_found_and_never_negative() {
        let of = |a: f64, b: f64, c: f64| {
            let points: Vec<(f64, f64)> = [128.0, 512.0, 2048.0, 8192.0].map(|s| (s, a * s * s + b * s + c)).to_vec();
            least_squares(&points)
        };
        for (found, expected) in of(2e-9, 3e-5, 0.01).into_iter().zip([2e-9, 3e-5, 0.01]) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        }
        let [a, b, c] = of(2e-9, 3e-5, -0.003);
        assert!(a >= 0.0 && b > 0.0 && c == 0.0, "{a} {b} {c}");
    }
}
