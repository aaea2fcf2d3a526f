//! Two engines term by term, against arithmetic that knows nothing of the simulator and against measured tables: tensor parallelism over PCIe, and
//! experts with data-parallel attention, on two RTX PRO 6000 without access to each other's memory. `docs/serving-terms.md` has the same figures.
//!
//! Tables: casys-kaist/LLMServingSim @ 5daddb21a545, profiler/perf/RTXPRO6000 (MIT), vLLM 0.19, one layer on one GPU.

use std::collections::BTreeMap;

use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::play::Case;
use hw::{Cluster, Time};

use crate::arrivals::{Arrivals, lay};
use crate::fleet::serve;
use crate::metrics::latencies;
use crate::replica::{Engine, Limits, Spans};
use crate::request::{Request, Requests};
use crate::step_cost::average::Average;
use crate::step_cost::{Chunk, ReplicaConfig, StepLoad, StepTable};
use crate::{batcher, router};

/// Bytes per second of the memory, operations per second in 16 bits, bytes per second of the way to the host: datasheet.
const MEMORY: f64 = 1792e9;
const PEAK: f64 = 467.8e12;
const LINK: f64 = 64e9;
/// What the machine's description says of an exchange, and what a collective's kernel adds: its start and a fifth of a start for its second step.
const EXCHANGED: f64 = 16e9;
const EXCHANGE_START_S: f64 = 20e-6 + 15e-6 + 4e-6;
/// An exchange in one step.
const ONE_STEP_START_S: f64 = 20e-6 + 15e-6;

/// A term of one step of one GPU.
struct Term {
    /// Names under which the simulator has it.
    what: &'static [&'static str],
    /// Seconds of bytes and operations at the datasheet's speed.
    floor_s: f64,
    /// Share of that speed that the kernels reach at least.
    reach: f64,
    /// Measured, in seconds, and how far off the prediction may be; `None` where no table has it.
    table: Option<(f64, f64)>,
}

/// A GPU's product with a matrix of so many elements in 16 bits.
fn product(rows: f64, elements: f64) -> f64 {
    f64::max(2.0 * elements / MEMORY, 2.0 * rows * elements / PEAK)
}

fn cluster() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("rtx-pro-6000").expect("listed"), 1, 2)
}

fn profile() -> Profile {
    Profile::parse(include_str!("../../../../../profiles/rtx-pro-6000.toml")).expect("shipped")
}

/// Seconds of a step by what is done: so many decoding sequences of 1024 keys on every rank, or a prompt of so many tokens on every rank.
fn step(name: &str, (tp, ep): (u32, u32), (decode, prompt): (f64, f64)) -> BTreeMap<&'static str, f64> {
    let (cluster, profile) = (cluster(), profile());
    let model = engine::model::embedded(name).expect("listed");
    let config = ReplicaConfig { expert_degree: ep, ..ReplicaConfig::new(&model, &cluster, tp) };
    let ranks = f64::from(config.lanes().n());
    let average = Average {
        decode: decode * ranks,
        keys: 1024.0,
        prompt: prompt * ranks,
        prompt_whole: prompt,
        adapted: 0.0,
        adapters: 0.0,
        speculation: None,
    };
    let mut found = BTreeMap::new();
    for (what, _, seconds) in average.provenance(&config, &Profiled::new(&profile, &cluster)).seconds() {
        *found.entry(what).or_default() += seconds;
    }
    found
}

/// Tables of a model on so many GPUs; says aloud that they are absent.
struct Tables {
    folder: Option<String>,
}

impl Tables {
    fn of(model: &str, tp: u32) -> Self {
        let root =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/llmservingsim/profiler/perf/RTXPRO6000/Qwen");
        let folder = format!("{root}/{model}/bf16/tp{tp}");
        let exists = std::path::Path::new(&folder).is_dir();
        if !exists {
            println!("skipped: shared data absent ({folder})");
        }
        Self { folder: exists.then_some(folder) }
    }

    /// Seconds of the row of a table that begins so.
    fn at(&self, table: &str, key: &str) -> Option<f64> {
        let text = std::fs::read_to_string(format!("{}/{table}.csv", self.folder.as_ref()?)).expect("a table");
        let row = text.lines().find_map(|line| line.strip_prefix(&format!("{key},")));
        Some(row.expect(key).parse::<f64>().expect("a number") * 1e-6)
    }

    /// Seconds of several layers' kernels with so many tokens, so many times, and of the head of so many sequences.
    fn products(&self, names: &[&str], (tokens, sequences): (u32, u32), n_layers: f64) -> Option<f64> {
        let layer: Option<f64> = names.iter().map(|name| self.at("dense", &format!("{name},{tokens}"))).sum();
        Some(layer? * n_layers + self.at("per_sequence", &format!("lm_head,{sequences}"))?)
    }
}

fn check(step: &BTreeMap<&'static str, f64>, name: &str, terms: &[Term]) {
    for Term { what, floor_s, reach, table } in terms {
        let predicted: f64 = what.iter().map(|what| step.get(what).copied().unwrap_or(0.0)).sum();
        println!(
            "{name}, {what:?}: {:.2} ms, floor {:.2}, table {:.2?}",
            predicted * 1e3,
            floor_s * 1e3,
            table.map(|(seconds, _)| seconds * 1e3)
        );
        assert!(predicted >= floor_s * 0.99, "{name}, {what:?}: {predicted} s is faster than the datasheet");
        assert!(predicted <= floor_s / reach, "{name}, {what:?}: {predicted} s is far above {floor_s} s");
        if let Some((measured, within)) = table {
            assert!(
                (predicted / measured - 1.0).abs() < *within,
                "{name}, {what:?}: {predicted} s, measured {measured} s"
            );
        }
    }
}

const PRODUCTS: [&str; 4] = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"];

/// Elements of Qwen3-32B's matrices of a layer and of its head on one GPU of two: 64 heads of 128 and 8 of keys and of values, width 5120, inner width
/// 25,600, 151,936 words.
const DENSE: [f64; 2] = [
    (5120.0 * (64.0 + 16.0) * 128.0 + 5120.0 * 64.0 * 128.0 + 3.0 * 5120.0 * 25_600.0) / 2.0,
    5120.0 * 151_936.0 / 2.0,
];
/// Sums over the group in a step: behind the embedding, and two in each of 64 layers.
const N_SUMS: f64 = 129.0;

#[test]
fn a_step_over_pcie_is_the_sum_of_terms_that_first_principles_bound() {
    let tables = Tables::of("Qwen3-32B", 2);
    let decode = step("qwen3-32b", (2, 1), (64.0, 0.0));
    // 64 rows of 5120 numbers of two bytes; of a sum over two GPUs each sends and receives all of them.
    let sent = 64.0 * 5120.0 * 2.0;
    let by_hand = N_SUMS * (EXCHANGE_START_S + sent / EXCHANGED);
    check(
        &decode,
        "decode",
        &[
            Term {
                what: &["matrix products"],
                floor_s: 64.0 * product(64.0, DENSE[0]) + product(64.0, DENSE[1]),
                reach: 0.65,
                table: tables.products(&PRODUCTS, (64, 64), 64.0).map(|seconds| (seconds, 0.05)),
            },
            // Half of 8 heads of 128 elements, keys and values.
            Term {
                what: &["attention of decoding sequences"],
                floor_s: 64.0 * (64.0 * 1024.0 * 4.0 * 128.0 * 2.0 * 2.0) / MEMORY,
                reach: 0.6,
                table: tables.at("attention", "0,0,64,1024").map(|seconds| (64.0 * seconds, 0.15)),
            },
            Term { what: &["all-reduce"], floor_s: N_SUMS * sent / LINK, reach: 0.12, table: Some((by_hand, 0.01)) },
            // Each GPU receives the logits of the other half of the words.
            Term {
                what: &["messages"],
                floor_s: 64.0 * 151_936.0 / LINK,
                reach: 0.22,
                table: Some((ONE_STEP_START_S + 64.0 * 151_936.0 / EXCHANGED, 0.02)),
            },
        ],
    );
    let prefill = step("qwen3-32b", (2, 1), (0.0, 2048.0));
    let sent = 2048.0 * 5120.0 * 2.0;
    check(
        &prefill,
        "prompt",
        &[
            Term {
                what: &["matrix products"],
                floor_s: 64.0 * product(2048.0, DENSE[0]) + product(1.0, DENSE[1]),
                reach: 0.8,
                table: tables.products(&PRODUCTS, (2048, 1), 64.0).map(|seconds| (seconds, 0.05)),
            },
            // Half of the pairs, two products of 128 elements for each of 32 heads.
            Term {
                what: &["attention"],
                floor_s: 64.0 * (2048.0 * 2048.0 / 2.0 * 2.0 * 2.0 * 128.0 * 32.0) / PEAK,
                reach: 0.4,
                table: tables.at("attention", "2048,0,0,0").map(|seconds| (64.0 * seconds, 0.1)),
            },
            Term {
                what: &["all-reduce"],
                floor_s: N_SUMS * sent / LINK,
                reach: 0.24,
                table: Some((N_SUMS * (EXCHANGE_START_S + sent / EXCHANGED), 0.01)),
            },
        ],
    );
}

/// Elements of Qwen3-30B-A3B's attention and router of a layer and of its head: 32 heads of 128 and 4 of keys and of values, width 2048, 128 experts.
const SPARSE: [f64; 2] = [2048.0 * (32.0 + 8.0) * 128.0 + 2048.0 * 32.0 * 128.0 + 2048.0 * 128.0, 2048.0 * 151_936.0];
/// Elements of an expert.
const EXPERT: f64 = 3.0 * 2048.0 * 768.0;

#[test]
fn a_step_with_experts_over_two_cards_is_the_sum_of_terms_that_first_principles_bound() {
    let tables = Tables::of("Qwen3-30B-A3B-Instruct-2507", 1);
    let decode = step("qwen3-30b-a3b", (1, 2), (64.0, 0.0));
    // Each GPU receives the other's rows, 64 of 2048 numbers, before the experts, and sends as many sums behind them; 48 layers.
    let by_hand = |rows: f64| 96.0 * (ONE_STEP_START_S + rows * 2048.0 * 2.0 / EXCHANGED);
    let floor = |rows: f64| 96.0 * rows * 2048.0 * 2.0 / LINK;
    check(
        &decode,
        "decode",
        &[
            Term {
                what: &["matrix products"],
                floor_s: 48.0 * product(64.0, SPARSE[0]) + product(64.0, SPARSE[1]),
                reach: 0.7,
                // The tables have no router, a fifth of a microsecond of weights and a launch.
                table: tables.products(&["qkv_proj", "o_proj"], (64, 64), 48.0).map(|seconds| (seconds, 0.2)),
            },
            Term {
                what: &["attention of decoding sequences"],
                floor_s: 48.0 * (64.0 * 1024.0 * 4.0 * 128.0 * 2.0 * 2.0) / MEMORY,
                reach: 0.6,
                table: tables.at("attention", "0,0,64,1024").map(|seconds| (48.0 * seconds, 0.15)),
            },
            Term { what: &["messages"], floor_s: floor(64.0), reach: 0.07, table: Some((by_hand(64.0), 0.01)) },
            // 128 tokens leave an expert alone with a probability of (1 - 8/128)^128, so all 64 are read. The table has 512 rows with 64 tokens.
            Term {
                what: &["experts"],
                floor_s: 48.0 * product(8.0, 64.0 * EXPERT),
                reach: 0.7,
                table: tables.at("moe", "64,64").map(|seconds| (48.0 * seconds, 0.1)),
            },
        ],
    );
    let prefill = step("qwen3-30b-a3b", (1, 2), (0.0, 2048.0));
    check(
        &prefill,
        "prompt",
        &[
            Term {
                what: &["matrix products"],
                floor_s: 48.0 * product(2048.0, SPARSE[0]) + product(1.0, SPARSE[1]),
                reach: 0.55,
                table: tables.products(&["qkv_proj", "o_proj"], (2048, 1), 48.0).map(|seconds| (seconds, 0.15)),
            },
            Term {
                what: &["attention"],
                floor_s: 48.0 * (2048.0 * 2048.0 / 2.0 * 2.0 * 2.0 * 128.0 * 32.0) / PEAK,
                reach: 0.4,
                table: tables.at("attention", "2048,0,0,0").map(|seconds| (48.0 * seconds, 0.1)),
            },
            Term { what: &["messages"], floor_s: floor(2048.0), reach: 0.2, table: Some((by_hand(2048.0), 0.01)) },
            // Half of eight rows of each of 4096 tokens, as of 2048 tokens in the table.
            Term {
                what: &["experts"],
                floor_s: 48.0 * 2.0 * 16_384.0 * EXPERT / PEAK,
                reach: 0.4,
                table: tables.at("moe", "2048,64").map(|seconds| (48.0 * seconds, 0.15)),
            },
        ],
    );
}

fn engine(name: &str, (tp, ep): (u32, u32), sequences_max: u32) -> Engine {
    let (cluster, profile) = (cluster(), profile());
    let model = engine::model::embedded(name).expect("listed");
    let config = ReplicaConfig { expert_degree: ep, ..ReplicaConfig::new(&model, &cluster, tp) };
    let limits = Limits { sequences_max, tokens_max: 2048, ..Limits::ROOMY };
    let cost = Profiled::new(&profile, &cluster);
    let table = StepTable::new(&config, (limits.tokens_max, sequences_max), &cost, Case::Expected);
    Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed }
}

/// Seconds of a step with so many tokens of one prompt and so many decoding sequences of 1024 keys.
fn seconds(engine: &Engine, prompt: u32, decode: u32) -> f64 {
    let chunk = (prompt > 0).then_some(Chunk { past: 0, new: prompt });
    let load = StepLoad {
        n_decode: decode,
        context: 1024 * u64::from(decode),
        n_chunk_tokens: prompt,
        n_chunks: u32::from(prompt > 0),
        n_sampled: decode + u32::from(prompt > 0),
        ..StepLoad::default()
    };
    engine.table.step(&load, chunk.into_iter()).to_seconds()
}

#[test]
fn an_idle_rank_waits_for_the_other_and_its_experts_get_half_the_rows() {
    let engine = engine("qwen3-30b-a3b", (1, 2), 128);
    let (both, one) = (of_two_prompts(&engine), seconds(&engine, 2048, 0));
    // Products, attention and exchange are those of the busy rank, whether the other has a prompt or none: over a link in both directions what one sends
    // takes as long as what both send. Experts have 8192 rows and not 16,384, and read as many weights.
    let (saved, most) = (both - one, 48.0 * 2.0 * 8192.0 * EXPERT / PEAK);
    assert!(saved > 0.0 && saved < most, "{both} s with two prompts, {one} s with one, {most} s of products at most");
    let tables = Tables::of("Qwen3-30B-A3B-Instruct-2507", 1);
    if let Some((full, half)) = tables.at("moe", "2048,64").zip(tables.at("moe", "1024,64")) {
        let measured = 48.0 * (full - half);
        assert!((saved / measured - 1.0).abs() < 0.3, "{saved} s, measured {measured} s");
    }
}

/// Seconds of a step in which both ranks compute a prompt of 2048 tokens.
fn of_two_prompts(engine: &Engine) -> f64 {
    let two = StepLoad { n_chunk_tokens: 4096, n_chunks: 2, n_sampled: 2, ..StepLoad::default() };
    let whole = Chunk { past: 0, new: 2048 };
    engine.table.step(&two, [whole, whole].into_iter()).to_seconds()
}

#[test]
fn the_queue_over_pcie_follows_from_the_step() {
    // Prompts alone, one at a time: W = ρ·S / (2·(1 − ρ)) before a step of S (M/D/1). A prompt of 2048 tokens takes 0.36 s, half of it in exchanges.
    let engine = engine("qwen3-32b", (2, 1), 1);
    let (step_s, load) = (seconds(&engine, 2048, 0), 0.6);
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 2048, 1); 200_000]);
    lay(&mut requests, Arrivals::Poisson { per_s: load / step_s }, 3);
    let [ttft, _] = means(&requests, &engine);
    let expected = step_s * (1.0 + load / (2.0 * (1.0 - load)));
    assert!((ttft / expected - 1.0).abs() < 0.03, "TTFT {ttft} s, {expected} s by hand");
}

#[test]
fn the_queue_over_two_ranks_follows_from_the_step() {
    // Sixty-four prompts come at once. The first finds an idle engine and has the step to itself, then every step takes one on each rank, and the last
    // is alone again: 31 pairs wait for 1, 2, ... steps behind the first.
    let engine = engine("qwen3-30b-a3b", (1, 2), 64);
    let requests = Requests::of(vec![Request::new(Time::ZERO, 2048, 1); 64]);
    let [ttft, _] = means(&requests, &engine);
    let (both, one) = (of_two_prompts(&engine), seconds(&engine, 2048, 0));
    let pairs = 2.0 * 31.0 * 32.0 / 2.0;
    let expected = (64.0 * one + pairs * both + 31.0 * both + one) / 64.0;
    assert!((ttft / expected - 1.0).abs() < 0.001, "TTFT {ttft} s, {expected} s by hand");
}

#[test]
fn time_per_token_follows_from_the_steps() {
    for (name, degrees) in [("qwen3-32b", (2, 1)), ("qwen3-30b-a3b", (1, 2))] {
        // A sequence alone takes 256 steps behind its first token, and its keys grow from 1024 to 1280: a step in the middle is the mean one.
        let engine = engine(name, degrees, 1);
        let requests = Requests::of(vec![Request::new(Time::ZERO, 1024, 257)]);
        let [_, tpot] = means(&requests, &engine);
        let load = StepLoad { n_decode: 1, context: 1152, n_sampled: 1, ..StepLoad::default() };
        let expected = engine.table.step(&load, std::iter::empty()).to_seconds();
        assert!((tpot / expected - 1.0).abs() < 0.005, "{name}: TPOT {tpot} s, {expected} s by hand");
    }
}

/// Means of TTFT and TPOT over all requests.
fn means(requests: &Requests, engine: &Engine) -> [f64; 2] {
    let served = serve(requests, &[engine], (router::ROUTERS[0].make)(0).as_mut());
    let found: Vec<_> = latencies(requests, &served).flatten().collect();
    assert_eq!(found.len(), requests.list.len(), "all are served");
    let n = hw::real(found.len() as u64);
    let sums = found.iter().fold([0.0, 0.0], |[ttft, tpot], one| [ttft + one.ttft_s, tpot + one.tpot_s.unwrap_or(0.0)]);
    sums.map(|sum| sum / n)
}

#[test]
fn a_step_is_the_sum_of_its_terms() {
    for (name, degrees) in [("qwen3-32b", (2, 1)), ("qwen3-30b-a3b", (1, 2))] {
        let terms: f64 = step(name, degrees, (64.0, 0.0)).values().sum();
        let whole = seconds(&engine(name, degrees, 128), 0, 64 * degrees.1);
        assert!((terms / whole - 1.0).abs() < 0.01, "{name}: {terms} s in terms, {whole} s as a whole");
    }
}
