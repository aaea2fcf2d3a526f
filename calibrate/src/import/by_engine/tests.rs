//! Shipped profiles of engines, held to the tables that they were fitted to, where those are there.

use engine::CostModel;
use engine::cost::Source;
use engine::cost::decode::{DecodeShape, Reads};
use engine::cost::experts::{FusedExperts, Routing, Tactic};
use engine::cost::mixed::MixedChunk;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::layer;
use engine::model::Mixer;
use engine::shard::Shard;
use engine::state::State;
use engine::task::{Collective, Document, Op, Pass, PassKind};
use hw::{Cluster, Dtype, Format, GroupShape};

use super::*;
use crate::profiles;

const CARDS: [&str; 3] = ["a100-sxm", "h100-sxm", "h200-sxm"];
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/aiconfigurator/data");

fn shipped(card: &str, engine: &str) -> Profile {
    let name = profiles::of_engine(card, engine).expect(card);
    Profile::parse(profiles::embedded(name).expect(name)).expect(name)
}

fn cluster(card: &str) -> Cluster {
    let name = if card == "a100-sxm" { "a100-sxm-80g" } else { card };
    hw::catalog::cluster(&hw::catalog::gpu(name).expect(name), 1, 8)
}

/// Folder of a card's tables; says aloud that a test skips where there is none.
fn folder(card: &str) -> Option<PathBuf> {
    let folder = Path::new(DATA).join(card.replace('-', "_"));
    if !folder.is_dir() {
        eprintln!("skipped: no tables in {}", folder.display());
    }
    folder.is_dir().then_some(folder)
}

#[test]
fn every_engine_has_the_curves_that_its_tables_hold() {
    for card in CARDS {
        for engine in ENGINES {
            let profile = shipped(card, engine);
            let has = |name: &str| profile.operators.contains_key(name);
            assert!(has("gemm") && has("attention-128"), "{card} {engine}");
            assert!(profile.decode.contains_key("decode-128") && profile.experts.contains_key("experts"));
            if card != "a100-sxm" {
                assert!(has("gemm-fp8") && has("gemm-fp8-block") && has("attention-128-fp8") && has("attention-mla"));
                assert!(profile.decode.contains_key("decode-128-fp8") && profile.decode.contains_key("decode-mla"));
                assert!(profile.experts.contains_key("experts-fp8-block"));
            }
            assert!(profile.collectives.iter().any(|curve| curve.kind == "custom_all_reduce"));
        }
    }
}

#[test]
fn errors_on_unseen_shapes_stay_below_their_ceilings() {
    for card in CARDS {
        for engine in ENGINES {
            let profile = shipped(card, engine);
            // TensorRT-LLM's kernels of small batches take their keys one after another, which no line follows; the tables of the A100 are
            // of older engines and of fewer shapes.
            let wide = if engine == "trtllm" || card == "a100-sxm" { 2.0 } else { 1.0 };
            for (name, operator) in &profile.operators {
                let error = operator.residuals.median_error;
                // What is left of a block that was launched kernel by kernel, of two models.
                let most = if name.starts_with("attention-selected") { 0.22 } else { 0.12 };
                assert!(error < most, "{card} {engine} {name}: {error}");
            }
            for (name, law) in &profile.decode {
                let error = law.residuals.median_error;
                let is_wide = ["512", "mla", "selected"].iter().any(|word| name.contains(word));
                let most = match name.as_str() {
                    // The table of H100 has a quarter of the others' rows.
                    "decode-selected" if card == "h100-sxm" && engine == "sglang" => 0.22,
                    _ if is_wide => 0.155,
                    _ => 0.08,
                };
                assert!(error < most * wide, "{card} {engine} {name}: {error}");
            }
            for (name, curve) in &profile.experts {
                let error = curve.residuals.median_error;
                // Tiles by default are of shapes that nobody tuned alone, of one older release.
                let most = if name.contains("default-tiles") { 0.12 } else { 0.10 };
                assert!(error < most * wide, "{card} {engine} {name}: {error}");
            }
        }
    }
}

#[test]
fn a_file_of_an_engine_is_small() {
    for name in profiles::names() {
        assert!(profiles::embedded(name).expect("listed").len() < 140_000, "{name}");
    }
}

#[test]
fn every_table_of_a_folder_is_used_or_named_with_a_reason() {
    let Some(dir) = folder("a100-sxm") else { return };
    for engine in ENGINES {
        let header = shipped("a100-sxm", engine);
        let Profile { name, gpu, source, date, .. } = header.clone();
        let found = tables(&dir, engine, &Provenance { name, gpu, source, date }).expect("tables");
        for path in files(&dir) {
            let below = path.strip_prefix(&dir).expect("below").to_owned();
            let used = found.lines.iter().any(|line| line.table == below.display().to_string());
            let named = found.unused.iter().any(|(unused, reason)| *unused == below && !reason.is_empty());
            assert!(used != named, "{engine}: {} used {used}, named {named}", below.display());
        }
        assert!(found.unused.iter().all(|(_, reason)| reason.contains("another engine")), "{:?}", found.unused);
        // What is shipped is what this code makes of the tables.
        assert!(found.profile == header, "{engine}: the shipped profile is another");
    }
}

/// Rows of a table, every so many.
fn sampled(table: &Table, every: usize, columns: &[&str]) -> Vec<Vec<f64>> {
    let columns: Vec<Vec<f64>> = columns.iter().map(|name| table.numbers(name).expect("a column")).collect();
    (0..columns[0].len()).step_by(every).map(|row| columns.iter().map(|column| column[row]).collect()).collect()
}

#[test]
fn a_cost_model_prices_products_of_every_format_as_the_tables_measured_them() {
    let Some(dir) = folder("h200-sxm") else { return };
    // SGLang's rows of all formats are its own.
    let model = Profiled::new(&shipped("h200-sxm", "sglang"), &cluster("h200-sxm"));
    let table = Table::read(find(&dir, "gemm/sglang", "gemm_perf.csv.gz").expect("a table")).expect("a table");
    let words = table.words("gemm_dtype").expect("a column");
    for (word, format) in [("bfloat16", Format::Bf16), ("fp8", Format::Fp8), ("fp8_block", Format::Fp8Block)] {
        let rows = sampled(&table, 97, &["m", "n", "k", "latency"]).into_iter().zip(words.iter().step_by(97));
        let errors = rows.filter(|(_, found)| *found == word).map(|(row, _)| {
            let [m, n, k] = [row[0], row[1], row[2]].map(hw::whole);
            let found = model.estimate(&Op::Gemm { m, n, k, format });
            assert_eq!(found.source, Source::Measured);
            (found.time.get() / (row[3] / 1e3) - 1.0).abs()
        });
        let error = hw::quantile::median(&errors.collect::<Vec<f64>>());
        // As much as shipped profiles may be off on shapes that they did not see.
        assert!(error < 0.08, "{word}: {error}");
    }
}

#[test]
fn a_cost_model_prices_fused_experts_as_the_tables_measured_them() {
    let Some(dir) = folder("h200-sxm") else { return };
    let model = Profiled::new(&shipped("h200-sxm", "vllm"), &cluster("h200-sxm"));
    let table = Table::read(find(&dir, "moe/vllm", "moe_perf.csv.gz").expect("a table")).expect("a table");
    let columns =
        ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "latency"];
    let (words, spread) = (table.words("moe_dtype").expect("a column"), table.words("distribution").expect("a column"));
    let mut errors = Vec::new();
    for (index, row) in sampled(&table, 101, &columns).into_iter().enumerate() {
        if words[index * 101] != "fp8_block" || spread[index * 101] != "balanced" {
            continue;
        }
        let [tokens, hidden, inter, top_k, n_experts, tp, ep] =
            [0, 1, 2, 3, 4, 5, 6].map(|column: usize| hw::whole(row[column]));
        let rows = Routing::Even.rows(tokens, top_k, n_experts, ep);
        let format = Format::Fp8Block;
        let layer =
            FusedExperts { rows, tokens, top_k, hidden, width: inter / tp, gated: true, format, tactic: Tactic::Tuned };
        let found = model.experts(&layer).expect("fitted");
        errors.push((found.time.get() / (row[7] / 1e3) - 1.0).abs());
    }
    assert!(errors.len() > 20);
    let error = hw::quantile::median(&errors);
    assert!(error < 0.08, "{error}");
}

/// Operations that a model of the size of Llama 3 asks of one GPU of eight.
fn asked() -> Vec<Op> {
    let mut ops = Vec::new();
    for m in [1, 8, 64, 512, 4096] {
        for (n, k) in [(10_240, 8192), (8192, 8192), (7168, 8192), (8192, 28_672), (2560, 8192)] {
            ops.extend([Format::Bf16, Format::Fp8, Format::Fp8Block].map(|format| Op::Gemm { m, n, k, format }));
        }
    }
    for queries in [128, 1024, 8192] {
        let documents = vec![Document::causal(queries)];
        ops.push(Op::Attention {
            documents,
            n_heads: 8,
            n_kv_heads: 1,
            head_dim: 128,
            kv: Dtype::Bf16,
            pass: Pass::Forward,
        });
    }
    ops
}

#[test]
fn one_card_lent_to_another_is_near_the_other_cards_own_curves_and_says_that_it_is_borrowed() {
    for engine in ENGINES {
        for (from, to) in [("h100-sxm", "h200-sxm"), ("h200-sxm", "h100-sxm")] {
            let own = Profiled::new(&shipped(to, engine), &cluster(to));
            let lent = Profiled::borrowed(&shipped(from, engine), &cluster(to));
            let mut inside = 0;
            let mut errors = Vec::new();
            for op in asked() {
                let (wanted, found) = (own.estimate(&op), lent.estimate(&op));
                assert_eq!((wanted.source, found.source), (Source::Measured, Source::WithinGeneration), "{op:?}");
                assert!(found.dimension.is_some());
                errors.push((found.time.get() / wanted.time.get() - 1.0).abs());
                inside += u32::from(found.low <= wanted.time && wanted.time <= found.high);
            }
            let n = u32::try_from(errors.len()).expect("few");
            let error = hw::quantile::median(&errors);
            assert!(error < 0.15, "{engine} {from} for {to}: {error}");
            assert!(inside * 10 >= n * 9, "{engine} {from} for {to}: {inside} of {n} inside");
        }
    }
}

#[test]
fn a_card_that_nobody_measured_is_priced_by_another_ones_curves_over_its_own_datasheet() {
    let b200 = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 1, 8);
    let (h200, lent) = (
        Profiled::new(&shipped("h200-sxm", "sglang"), &cluster("h200-sxm")),
        Profiled::borrowed(&shipped("h200-sxm", "sglang"), &b200),
    );
    let op = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Fp8 };
    let (there, here) = (h200.estimate(&op).time, lent.estimate(&op).time);
    let peaks = b200.gpu.peak(Format::Fp8).get() / cluster("h200-sxm").gpu.peak(Format::Fp8).get();
    assert!((there.get() / here.get() / peaks - 1.0).abs() < 0.02, "a large product follows the peaks");
    let shape = DecodeShape { n_heads: 8, n_kv_heads: 1, head_dim: 128, kv: Dtype::Fp8, reads: Reads::Heads };
    let [there, here] = [h200.decode(&shape), lent.decode(&shape)].map(|law| law.expect("fitted"));
    assert_eq!(here.source(), Source::Borrowed);
    assert_eq!(there.alone(64).fixed_s, here.alone(64).fixed_s, "starts are kept");
    let bandwidths = b200.gpu.memory_bandwidth.get() / cluster("h200-sxm").gpu.memory_bandwidth.get();
    assert!((there.alone(64).per_key_s / here.alone(64).per_key_s / bandwidths - 1.0).abs() < 1e-9);
}

#[test]
fn a_format_without_a_curve_takes_the_nearest_ones_and_says_so() {
    let model = Profiled::new(&shipped("h100-sxm", "vllm"), &cluster("h100-sxm"));
    let product = |format| model.estimate(&Op::Gemm { m: 16, n: 8192, k: 8192, format });
    let (int4, bf16) = (product(Format::Int4), product(Format::Bf16));
    assert_eq!((int4.source, int4.dimension), (Source::Borrowed, Some("format of a product")));
    assert_eq!(int4.outside, int4.time);
    // A quarter of the bytes, and a start.
    let ratio = int4.time.get() / bf16.time.get();
    assert!((0.25..0.40).contains(&ratio), "{ratio}");
    assert!(int4.high.get() / int4.time.get() > bf16.high.get() / bf16.time.get());
    assert_eq!(product(Format::Fp32).source, Source::Datasheet, "nothing is near 32 bits");
}

#[test]
fn an_engine_exchanges_tokens_with_experts_in_the_faster_mode() {
    let model = Profiled::new(&shipped("h200-sxm", "sglang"), &cluster("h200-sxm"));
    let shape = GroupShape::inside(8);
    let seconds = |tokens: u64| {
        let op = Op::Collective { kind: Collective::AllToAll, bytes: tokens * 8 * 7168 * 2, shape };
        model.engine(&op).expect("fitted").time.get()
    };
    // One token takes about ten microseconds each way in the mode for latency, 16,384 take milliseconds in that for throughput.
    assert!((6e-6..20e-6).contains(&seconds(1)), "{}", seconds(1));
    assert!((1e-3..6e-3).contains(&seconds(16_384)), "{}", seconds(16_384));
    let none = Profiled::new(&shipped("h200-sxm", "vllm"), &cluster("h200-sxm"));
    assert!(none.engine(&Op::Collective { kind: Collective::AllToAll, bytes: 1 << 20, shape }).is_none());
}

#[test]
fn no_shape_is_faster_than_what_its_kernel_can_at_best() {
    for (card, engine) in [("h100-sxm", "vllm"), ("h200-sxm", "sglang"), ("a100-sxm", "trtllm")] {
        let model = Profiled::new(&shipped(card, engine), &cluster(card));
        for format in Format::ALL {
            for m in [1, 100, 4096, 32_768] {
                let op = Op::Gemm { m, n: 8192, k: 8192, format };
                assert!(model.least(&op) <= model.estimate(&op).time, "{card} {engine} {op:?}");
            }
        }
        for head_dim in [64, 128, 192, 256, 512] {
            for (n_kv_heads, kv) in [(1, Dtype::Bf16), (8, Dtype::Fp8)] {
                for tokens in [1, 500, 20_000] {
                    let documents = vec![Document::causal(tokens), Document::windowed(0, tokens, 128)];
                    let op = Op::Attention { documents, n_heads: 8, n_kv_heads, head_dim, kv, pass: Pass::Forward };
                    assert!(model.least(&op) <= model.estimate(&op).time, "{card} {engine} {op:?}");
                }
            }
        }
    }
}

#[test]
fn states_scans_and_selected_keys_take_what_tables_say() {
    // ai-dynamo/aiconfigurator @ 095f58a51c4c, h200_sxm, SGLang: microseconds of `gdn_perf`, both kernels of a layer: prompts of 0.5.14,
    // decoding of 0.5.9 with as many heads as eight GPUs have of eight times the sequences.
    let model = Profiled::new(&shipped("h200-sxm", "sglang"), &cluster("h200-sxm"));
    let near = |found: f64, wanted_us: f64| {
        assert!((found / (wanted_us * 1e-6) - 1.0).abs() < 0.2, "{} us of {wanted_us}", found * 1e6);
    };
    let qwen = engine::model::embedded("qwen3.5-397b-a17b").expect("embedded");
    let shard = Shard::forward(&qwen, Dtype::Bf16, 8);
    for (tokens, us) in [(256, 46.0), (1024, 65.0), (8192, 341.0)] {
        let chunk = MixedChunk::of(&shard, Mixer::Linear, 0, tokens).expect("a scan");
        near(model.mixed(&chunk).expect("measured").time.get(), us);
    }
    let bytes = State::of(&shard, Mixer::Linear).expect("a state").bytes();
    let reads = Reads::State { bytes };
    let state = DecodeShape { n_heads: 8, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, reads };
    let law = model.decode(&state).expect("measured");
    for (n, us) in [(1, 9.5), (16, 11.0), (128, 43.5), (512, 150.0)] {
        let time = law.alone(n);
        near(time.fixed_s + time.per_key_s * hw::real(n), us);
    }
    // `dsa_generation_module_perf` (0.5.10) of GLM-5 with 8 heads: the whole block over 4096 keys, with its products in 16 bits.
    let glm = engine::model::embedded("glm-5").expect("embedded");
    let shard = Shard::forward(&glm, Dtype::Bf16, 8);
    let selected = DecodeShape { n_heads: 8, n_kv_heads: 1, head_dim: 576, kv: Dtype::Bf16, reads: Reads::Selected };
    for (n, us) in [(1, 96.0), (16, 110.0), (64, 147.0)] {
        let mut products = layer::before_mixing(&shard, Mixer::Selected(2048), n, PassKind::Forward);
        products.push((Op::Gemm { m: n, n: glm.hidden, k: 8 * 256, format: Format::Bf16 }, 1));
        products.retain(|(op, _)| matches!(op, Op::Gemm { .. }));
        let time = model.decode(&selected).expect("measured").alone(n);
        let keys = hw::real(n) * (2048.0 + 4096.0 * 132.0 / 1152.0);
        near(time.fixed_s + time.per_key_s * keys + model.estimate(&Op::Sequence(products)).time.get(), us);
    }
    // A card without tables borrows them; a profile without them has no answer.
    let chunk = MixedChunk::of(&Shard::forward(&qwen, Dtype::Bf16, 8), Mixer::Linear, 0, 1024).expect("a scan");
    let b300 = hw::catalog::cluster(&hw::catalog::gpu("b300").expect("listed"), 1, 8);
    let lent = Profiled::borrowed(&shipped("b200", "sglang"), &b300);
    assert_eq!(lent.mixed(&chunk).expect("lent").source, Source::WithinGeneration);
    assert!(Profiled::new(&shipped("a100-sxm", "sglang"), &cluster("a100-sxm")).mixed(&chunk).is_none());
}

/// `dsa_context_module_perf` (0.5.10) of two models on H200: microseconds of a whole block with its products in 16 bits. Eight heads take nearly as long as 64,
/// because the kernel fills them up.
#[test]
fn prompts_that_attend_to_selected_keys_take_what_the_tables_of_both_models_say() {
    let model = Profiled::new(&shipped("h200-sxm", "sglang"), &cluster("h200-sxm"));
    for (name, tp, tokens, us) in [
        ("glm-5", 8, 8192, 5853.0),
        ("glm-5", 8, 16_384, 13_426.0),
        ("glm-5", 1, 8192, 10_390.0),
        ("deepseek-v3.2", 16, 8192, 6250.0),
        ("deepseek-v3.2", 2, 8192, 7770.0),
        ("deepseek-v3.2", 1, 8192, 13_880.0),
    ] {
        let of = engine::model::embedded(name).expect("embedded");
        let shard = Shard::forward(&of, Dtype::Bf16, tp);
        let mut products = layer::before_mixing(&shard, Mixer::Selected(2048), tokens, PassKind::Forward);
        let k = shard.model.mixed_width(Mixer::Full) / u64::from(tp);
        products.push((Op::Gemm { m: tokens, n: of.hidden, k, format: Format::Bf16 }, 1));
        products.retain(|(op, _)| matches!(op, Op::Gemm { .. }));
        let chunk = MixedChunk::of(&shard, Mixer::Selected(2048), 0, tokens).expect("longer than what is selected");
        let found =
            (model.mixed(&chunk).expect("measured").time + model.estimate(&Op::Sequence(products)).time).get() * 1e6;
        assert!((found / us - 1.0).abs() < 0.2, "{name}, {tp} GPUs, {tokens} tokens: {found} us of {us}");
    }
}
