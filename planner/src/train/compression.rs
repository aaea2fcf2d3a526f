//! How many hash functions each layer with experts gets, and whether merging tokens pays: LSH-MoE (arXiv:2411.08446).
//!
//! More functions make more buckets, so more rows travel, more coordinates are computed and outputs are closer to the experts' own
//! (`train::compression::merge`). A step never gets shorter with functions, so the fewest whose error is within the limit
//! are best: functions are added until it holds. The error is a stand-in for convergence, which the
//! paper measured and nobody can compute; with a given rate nothing is counted. A layer's time is the cost model's, forward and
//! backward, with its exchanges and nothing behind computation. Units: rates and errors as ratios, seconds.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::compression::{Compression, ExpertRows};
use engine::layer;
use engine::verdict::Refused;
use hw::{Seconds, real};
use train::Problem;
use train::compression::hash::Family;
use train::compression::merge::{self, Merging, StandIn};
use train::compression::tokens::{self, Similarity};
use train::lower::training;
use train::plan::MicroBatch;

use crate::proof::{Aim, Bound, Decision, Status};

/// Functions of one layer at most.
pub const HASHES_MAX: u32 = 32;
/// Rows of an expert that are drawn at most, and coordinates of a row: rates go with the logarithm of the width.
const ROWS_MAX: u64 = 1024;
const WIDTH_MAX: u64 = 1024;

/// Tokens that are drawn to count what is merged; all of it assumed or fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Different contents among the rows of one sender to one expert.
    pub clusters: u64,
    /// Exponent of Zipf's law over them.
    pub skew: f64,
    /// Length of the noise over that of a content: one for all layers with experts, or one each.
    pub spreads: Vec<f64>,
    /// Rows of one sender to one expert; `None` for what a full micro-batch sends when routing is even.
    pub rows: Option<u64>,
    /// How far the stand-in for an expert moves a token at most, over its length.
    pub expert_change: f64,
}

/// What a scenario says of compression.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Hash functions of every layer; `None` for the fewest within `error_max`.
    pub hashes: Option<u32>,
    /// Rows that travel over rows that were routed, where they were measured; `None` to count them on drawn tokens.
    pub rate: Option<f64>,
    /// Error of outputs that is accepted.
    pub error_max: Option<f64>,
    /// Kind of hash function.
    pub family: Family,
    /// Coordinates that a rotation keeps; `None` for the model's width.
    pub hash_width: Option<u64>,
    /// Whether senders keep residuals.
    pub compensation: bool,
    /// Rows that experts compute.
    pub expert_rows: ExpertRows,
    /// Host time per layer and pass: a free parameter.
    pub host: Seconds,
    /// Tokens that are drawn.
    pub sample: Sample,
}

/// What one layer with experts gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Hash functions.
    pub hashes: u32,
    /// Rows that travel over rows that were routed.
    pub rate: f64,
    /// Errors of outputs with and without residuals, where tokens were drawn.
    pub errors: Option<[f64; 2]>,
    /// What one function fewer would do.
    pub fewer: Option<Merging>,
}

/// Functions of all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Layers with experts, in order.
    pub layers: Vec<Layer>,
    /// What the step is made of: means over the layers.
    pub compression: Compression,
    /// The same with one function in every layer, than which no number is faster; only where tokens were drawn.
    pub least: Option<Compression>,
}

/// Rows that a rank sends to one expert from a full micro-batch when routing is even.
pub fn rows_per_expert(problem: &Problem) -> f64 {
    let Some(experts) = problem.model.experts else { return 0.0 };
    real(layer::dispatched(&problem.shard(), experts, problem.bucket_tokens)) / real(experts.n_routed)
}

/// Functions for every layer.
///
/// # Errors
/// When no number of functions up to `HASHES_MAX` is within the error limit.
pub fn choose(question: &Question, problem: &Problem) -> Result<Choice, Refused> {
    let n_layers = usize::try_from(problem.model.n_expert_layers()).expect("few layers");
    let (layers, least_rate) = match (question.rate, question.hashes) {
        (Some(rate), hashes) => {
            let layer = Layer { hashes: hashes.unwrap_or(0), rate, errors: None, fewer: None };
            (vec![layer; n_layers], None)
        }
        (None, _) => counted(question, problem, n_layers)?,
    };
    let n = real(layers.len().max(1) as u64);
    let hashes = layers.iter().map(|layer| f64::from(layer.hashes)).sum::<f64>() / n;
    let rate = layers.iter().map(|layer| layer.rate).sum::<f64>() / n;
    let least = least_rate.map(|rate| compression(question, problem, 1.0, rate));
    Ok(Choice { compression: compression(question, problem, hashes, rate), layers, least })
}

fn compression(question: &Question, problem: &Problem, hashes: f64, rate: f64) -> Compression {
    let width = question.family.columns(question.hash_width.unwrap_or(problem.model.hidden));
    Compression {
        columns: hw::whole(hashes * real(width)),
        rate_permille: hw::whole(rate * 1000.0),
        expert_rows: question.expert_rows,
        compensation: question.compensation,
        host_ns: hw::Span::from_seconds(question.host).as_ns(),
    }
}

/// Layers by counting on drawn tokens, and the mean rate of one function.
fn counted(question: &Question, problem: &Problem, n_layers: usize) -> Result<(Vec<Layer>, Option<f64>), Refused> {
    let spreads = &question.sample.spreads;
    let spread = |layer: usize| spreads.get(layer).or_else(|| spreads.last()).copied().unwrap_or(0.0);
    // Layers whose tokens are alike are counted once.
    let mut known: Vec<(f64, (Layer, f64))> = Vec::new();
    let mut layers = Vec::with_capacity(n_layers);
    for spread in (0..n_layers).map(spread) {
        let found = match known.iter().find(|(other, _)| other.total_cmp(&spread).is_eq()) {
            Some((_, found)) => *found,
            None => {
                known.push((spread, of_layer(question, problem, spread)?));
                known[known.len() - 1].1
            }
        };
        layers.push(found);
    }
    let least = layers.iter().map(|(_, rate)| rate).sum::<f64>() / real(n_layers.max(1) as u64);
    Ok((layers.into_iter().map(|(layer, _)| layer).collect(), Some(least)))
}

/// Functions of a layer whose tokens have that spread, and the rate of one function.
fn of_layer(question: &Question, problem: &Problem, spread: f64) -> Result<(Layer, f64), Refused> {
    let sample = &question.sample;
    let rows = sample.rows.map_or_else(|| rows_per_expert(problem), real);
    let rows = hw::whole(rows).clamp(1, ROWS_MAX);
    let small = |n: u64| usize::try_from(n.min(WIDTH_MAX)).expect("small");
    let width = small(problem.model.hidden);
    let similarity = Similarity { clusters: sample.clusters, skew: sample.skew, spread };
    let drawn = tokens::draw(similarity, rows, width, problem.seed);
    let expert = StandIn::draw(width, sample.expert_change, problem.seed);
    let hash_width = question.hash_width.map_or(width, small);
    let functions = merge::by_hashes(&drawn, question.family, hash_width, &expert, problem.seed);
    let error = |merging: &Merging| {
        if question.compensation { merging.error } else { merging.error_without_residuals }
    };
    let (mut before, mut least, mut best) = (None, None, f64::INFINITY);
    for merging in functions.take(HASHES_MAX as usize) {
        let least_rate = *least.get_or_insert(merging.rate);
        best = best.min(error(&merging));
        let enough = match question.hashes {
            Some(hashes) => merging.hashes == hashes,
            None => error(&merging) <= question.error_max.unwrap_or(f64::INFINITY),
        };
        if enough {
            let errors = Some([merging.error, merging.error_without_residuals]);
            let layer = Layer { hashes: merging.hashes, rate: merging.rate, errors, fewer: before };
            return Ok((layer, least_rate));
        }
        before = Some(merging);
    }
    let limit = question.error_max.unwrap_or(f64::INFINITY);
    Err(Refused::infeasible(format!(
        "no number of hash functions up to {HASHES_MAX} keeps the error of outputs within {limit}: the least is {best:.4}"
    )))
}

/// Seconds of one layer with experts for a micro-batch, forward and backward, nothing behind computation.
fn layer_s(problem: &Problem, compression: Option<Compression>, micro_batch: &MicroBatch, cost: &dyn CostModel) -> f64 {
    let mut problem = problem.clone();
    problem.execution.overlap.expert = None;
    problem.execution.experts.compression = compression;
    training::parts(&problem, micro_batch, train::experts::mean(&problem), cost).layer(true).iter().sum()
}

/// What a choice does to a layer, for a micro-batch that the plan has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Seconds of a layer with experts.
    pub layer_s: f64,
    /// The same without compression.
    pub uncompressed_s: f64,
    /// What compression adds when every row travels, over the layer without it.
    pub overhead: f64,
    /// Highest rate at which a layer is as fast as without compression, in thousandths; 0 where none is.
    pub crossover: f64,
}

/// Times of a layer under a choice; the bound is the layer with one hash function, below which no number of functions gets.
pub fn judge(problem: &Problem, choice: &Choice, micro_batch: &MicroBatch, cost: &dyn CostModel) -> Decision<Judged> {
    let seconds = |compression| layer_s(problem, compression, micro_batch, cost);
    let at = |rate_permille| seconds(Some(Compression { rate_permille, ..choice.compression }));
    let uncompressed_s = seconds(None);
    // The least rate that is slower, by bisection: a layer's time grows with its rows.
    let (mut pays, mut slower) = (0, 1001);
    while slower - pays > 1 {
        let middle = u64::midpoint(pays, slower);
        if at(middle) <= uncompressed_s { pays = middle } else { slower = middle }
    }
    let layer_s = seconds(Some(choice.compression));
    let bound = choice.least.map(|least| Bound::plain(seconds(Some(least))));
    let overhead = at(1000) / uncompressed_s - 1.0;
    let judged = Judged { layer_s, uncompressed_s, overhead, crossover: real(pays) / 1000.0 };
    Decision::new(judged, Aim::Seconds, layer_s).bounded(bound, Status::Heuristic)
}

/// A choice as figures with units in the keys.
pub fn figures(choice: &Choice, decision: &Decision<Judged>) -> BTreeMap<String, f64> {
    let judged = &decision.plan;
    let n = real(choice.layers.len().max(1) as u64);
    let mean = |get: &dyn Fn(&Layer) -> f64| choice.layers.iter().map(get).sum::<f64>() / n;
    let mut figures: BTreeMap<String, f64> = [
        ("hashes", mean(&|layer| f64::from(layer.hashes))),
        ("hashes_max", choice.layers.iter().map(|layer| f64::from(layer.hashes)).fold(0.0, f64::max)),
        ("compression_rate_ratio", mean(&|layer| layer.rate)),
        ("compression_crossover_ratio", judged.crossover),
        ("compression_overhead_ratio", judged.overhead),
        ("expert_layer_time_s", judged.layer_s),
        ("expert_layer_uncompressed_s", judged.uncompressed_s),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    if choice.layers.iter().all(|layer| layer.errors.is_some()) {
        let error = |index: usize| mean(&|layer| layer.errors.map_or(0.0, |errors| errors[index]));
        figures.insert("output_error_ratio".to_owned(), error(0));
        figures.insert("output_error_without_residuals_ratio".to_owned(), error(1));
    }
    if let Some(bound_s) = decision.bound() {
        figures.insert("expert_layer_bound_s".to_owned(), bound_s);
        figures.insert("expert_layer_gap_ratio".to_owned(), (1.0 - bound_s / judged.layer_s).max(0.0));
    }
    figures
}

/// A choice in words: functions of every layer, what binds and what would come next.
pub fn notes(question: &Question, choice: &Choice, judged: &Judged, problem: &Problem) -> Vec<String> {
    let mut notes: Vec<String> = alike(&choice.layers).map(|(from, to, layer)| of_layers(from, to, layer)).collect();
    let pays = if judged.crossover > 0.0 {
        format!(
            "a layer with experts is faster than without compression where at most {:.1} % of its rows travel",
            judged.crossover * 100.0
        )
    } else {
        "no rate makes a layer with experts as fast as without compression: the merging costs more than its exchange"
            .to_owned()
    };
    notes.push(pays);
    match (question.hashes, question.error_max, choice.layers.iter().max_by_key(|layer| layer.hashes)) {
        (None, Some(limit), Some(Layer { fewer: Some(fewer), .. })) => {
            let error = if question.compensation { fewer.error } else { fewer.error_without_residuals };
            notes.push(format!(
                "the error limit of {limit} binds; the runner-up, {} functions with an error of {error:.4}, would send {:.1} % of the rows",
                fewer.hashes,
                fewer.rate * 100.0
            ));
        }
        (None, Some(limit), Some(_)) => {
            notes.push(format!("one function is within the error limit of {limit}: the exchange itself binds"));
        }
        _ => {}
    }
    let (rows, rate) = (rows_per_expert(problem), real(choice.compression.rate_permille) / 1000.0);
    if question.rate.is_some() && rate * rows < 1.0 {
        notes.push(format!(
            "with even routing a rank sends {rows:.1} rows to an expert, and no fewer than one of them can travel: the given rate of {:.1} % asks for uneven routing or larger micro-batches",
            rate * 100.0
        ));
    }
    notes
}

fn of_layers(from: usize, to: usize, layer: &Layer) -> String {
    let which =
        if from == to { format!("layer {from} with experts") } else { format!("layers {from} to {to} with experts") };
    let errors = layer.errors.map_or_else(String::new, |[with, without]| {
        format!("; error of outputs {with:.4}, without residuals {without:.4}")
    });
    format!("{which}: {} hash functions, {:.1} % of the rows travel{errors}", layer.hashes, layer.rate * 100.0)
}

/// Runs of equal layers, counted from 1.
fn alike(layers: &[Layer]) -> impl Iterator<Item = (usize, usize, &Layer)> {
    let mut from = 0;
    layers.chunk_by(|a, b| a == b).map(move |run| {
        let first = from + 1;
        from += run.len();
        (first, from, &run[0])
    })
}

#[cfg(test)]
mod tests {
    use engine::Op;
    use engine::cost::roofline::Roofline;
    use engine::task::Collective;
    use hw::Dtype;
    use train::Workload;
    use train::layout::{ContextExchange, Layout, Zero};
    use train::plan::{Place, Placement};
    use train::problem::Execution;

    use super::*;

    /// RoBERTa-MoE on two nodes of eight, a micro-batch of 1,024 tokens.
    fn problem() -> Problem {
        let gpu = hw::catalog::gpu("a100-sxm-40g").expect("listed");
        let mut layout = Layout::data_and_context(16, 1, Zero::OptimizerStates, ContextExchange::Gather);
        layout.ep = 16;
        Problem {
            model: engine::model::embedded("roberta-moe").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 2, 8),
            layout,
            workload: Workload { batch_size: 16, lengths: vec![1024; 16], source: "test".to_owned() },
            dtype: Dtype::Bf16,
            bucket_tokens: 1024,
            execution: Execution::default(),
            schedule: train::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 3,
        }
    }

    fn micro_batch() -> MicroBatch {
        let whole = Placement { sequence: 0, from: 0, tokens: 1024, place: Place::Sharded };
        MicroBatch { sequences: vec![whole], ..MicroBatch::default() }
    }

    fn question(hashes: Option<u32>, error_max: f64) -> Question {
        Question {
            hashes,
            rate: None,
            error_max: Some(error_max),
            family: Family::CrossPolytope,
            hash_width: None,
            compensation: true,
            expert_rows: ExpertRows::Centroids,
            host: Seconds::ZERO,
            sample: Sample { clusters: 20, skew: 1.0, spreads: vec![0.2], rows: None, expert_change: 0.5 },
        }
    }

    fn layer(hashes: u32) -> Layer {
        choose(&question(Some(hashes), 0.0), &problem()).expect("a given number").layers[0]
    }

    #[test]
    fn a_full_micro_batch_sends_its_tokens_twice_over_sixteen_experts() {
        assert!((rows_per_expert(&problem()) - 1024.0 * 2.0 / 16.0).abs() < 1e-12);
    }

    #[test]
    fn the_fewest_functions_within_the_limit_are_chosen() {
        let problem = problem();
        for limit in [0.05, 0.03, 0.02] {
            let chosen = choose(&question(None, limit), &problem).expect("some number is enough");
            let best = (1..=HASHES_MAX).find(|&hashes| layer(hashes).errors.expect("counted")[0] <= limit);
            assert_eq!(Some(chosen.layers[0].hashes), best, "limit {limit}");
            assert_eq!(chosen.layers.len(), 4);
            assert_eq!(chosen.compression.columns, 768 * u64::from(chosen.layers[0].hashes));
        }
    }

    #[test]
    fn every_layer_gets_its_own_functions_and_less_similar_tokens_send_more_rows() {
        let mut question = question(None, 0.03);
        question.sample.spreads = vec![0.05, 0.05, 0.2, 0.4];
        let problem = problem();
        let chosen = choose(&question, &problem).expect("some number is enough");
        let hashes: Vec<u32> = chosen.layers.iter().map(|layer| layer.hashes).collect();
        let rates: Vec<f64> = chosen.layers.iter().map(|layer| layer.rate).collect();
        assert!(hashes[0] == hashes[1] && hashes[1] < hashes[2] && rates.is_sorted(), "{hashes:?} {rates:?}");
        // Each layer as if it were alone, and the step made of their means.
        let mean = chosen.layers.iter().map(|layer| layer.rate).sum::<f64>() / 4.0;
        assert_eq!(chosen.compression.rate_permille, hw::whole(mean * 1000.0));
        assert_eq!(chosen.compression.columns, 768 * u64::from(hashes.iter().sum::<u32>()) / 4);
        assert_eq!(alike(&chosen.layers).next().map(|(from, to, _)| (from, to)), Some((1, 2)));
    }

    #[test]
    fn no_number_is_enough_without_residuals_and_with_a_limit_of_nothing() {
        let mut question = question(None, 1e-9);
        question.compensation = false;
        question.sample.spreads = vec![0.01];
        let why = choose(&question, &problem()).expect_err("near tokens stay together").why;
        assert!(why.contains("within 0.000000001: the least is"), "{why}");
    }

    #[test]
    fn the_crossover_is_where_a_search_over_all_rates_finds_it() {
        let problem = problem();
        let cost = Roofline::new(&problem.cluster);
        let chosen = choose(&question(Some(6), 0.0), &problem).expect("a given number");
        let decision = judge(&problem, &chosen, &micro_batch(), &cost);
        let judged = &decision.plan;
        let seconds = |rate_permille| {
            let compression = Compression { rate_permille, ..chosen.compression };
            layer_s(&problem, Some(compression), &micro_batch(), &cost)
        };
        let pays = (0..=1000).rev().find(|&rate| seconds(rate) <= judged.uncompressed_s).expect("rate 0 pays");
        assert!((judged.crossover - real(pays) / 1000.0).abs() < 1e-12);
        assert!(decision.bound().expect("counted") <= judged.layer_s);
        assert!(judged.overhead > 0.0 && judged.crossover < 1.0);
        let times: Vec<f64> = (0..=10).map(|tenth| seconds(100 * tenth)).collect();
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn at_a_rate_of_one_a_layer_takes_its_hashing_and_one_small_exchange_longer() {
        let problem = problem();
        let cost = Roofline::new(&problem.cluster);
        let mut question = question(Some(6), 0.0);
        question.rate = Some(1.0);
        let chosen = choose(&question, &problem).expect("given");
        let judged = judge(&problem, &chosen, &micro_batch(), &cost).plan;
        // 2,048 rows of 768: products with six rotations, the largest coordinates, two kernels that read and write all rows in each
        // direction; and the counts of rows for 16 experts.
        let time = |op: Op| cost.estimate(&op).time.get();
        let shape = problem.cluster.group(16, 2);
        let expected = time(Op::Gemm { m: 2048, n: 6 * 768, k: 768, format: hw::Format::Bf16 })
            + time(Op::Elementwise { bytes: 2048 * (6 * 768 * 2 + 4) })
            + 4.0 * time(Op::Elementwise { bytes: 2 * 2048 * 768 * 2 })
            + time(Op::Collective { kind: Collective::AllToAll, bytes: 16 * 4, shape });
        assert!((judged.layer_s - judged.uncompressed_s - expected).abs() < 1e-9);
        assert!((judged.overhead - expected / judged.uncompressed_s).abs() < 1e-9);
    }

    #[test]
    fn a_rate_below_one_row_per_expert_is_said_to_be_out_of_reach_of_even_routing() {
        let mut problem = problem();
        let cost = Roofline::new(&problem.cluster);
        let mut question = question(Some(6), 0.0);
        question.rate = Some(0.2);
        let mut said = |bucket_tokens| {
            problem.bucket_tokens = bucket_tokens;
            let chosen = choose(&question, &problem).expect("given");
            let judged = judge(&problem, &chosen, &micro_batch(), &cost).plan;
            notes(&question, &chosen, &judged, &problem).join("\n").contains("uneven routing")
        };
        // 32 tokens send 4 rows to each of 16 experts, 40 tokens send 5.
        assert!(said(32) && !said(40));
    }
}
