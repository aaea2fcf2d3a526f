//! The tabulated iteration against the cost model itself, and against weights over bandwidth.

mod beside_chunk;
mod compressed;
mod counted;
mod exchange;
mod host_weights;
mod latent;
mod ranks;
mod shared;
mod sparse;
mod terms;

use hw::{Cluster, Tick};

use super::census;
use super::host::RoundLaunches;
use super::prefill::{knot, past_position, position};
use super::*;
use crate::speculation::{DraftKind, Speculation, Tree};
use engine::cost::roofline::{KERNEL_START_S, Roofline};
use engine::model::DraftHead;
use engine::task::{Op, PassKind};

fn a100() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8)
}

fn with_table(tensor_degree: u32, check: impl Fn(&StepTable, &Writer<'_>)) {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let cost = Roofline::new(&cluster);
    let deployment = ReplicaConfig::new(&model, &cluster, tensor_degree);
    check(
        &StepTable::new(&deployment, (2048, 256), &cost, Case::Expected),
        &Writer::new(&deployment, &cost, Case::Expected),
    );
}

#[test]
fn knots_and_positions_are_each_others_inverse() {
    for index in 0..40 {
        assert_eq!(position(knot(index)), (index, 0.0));
    }
    assert_eq!((position(5).0, position(5).1), (3, 0.5));
    assert_eq!((past_position(0), past_position(32), past_position(64)), ((0, 0.0), (0, 0.5), (1, 0.0)));
}

#[test]
fn a_decode_step_reads_all_weights_and_all_cached_tokens_once() {
    with_table(1, |table, _| {
        // 8.03e9 parameters, embedding of 0.53e9 left out, two bytes each at 0.75 · 2039e9 B/s: 9.81 ms; starts of
        // kernels add at most 12 per layer.
        let step_s = |ticks: Tick| ticks.span().to_seconds().get();
        let floor = (8.03e9 - 0.53e9) * 2.0 / (0.75 * 2039e9);
        let found = step_s(table.law(1).fixed);
        assert!(found > floor, "{found} of {floor}");
        assert!(found < floor + 32.0 * (12.0 * KERNEL_START_S + 18e-6), "{found} of {floor}");
        // A cached token is 131,072 bytes at the 0.83 of the bandwidth that is assumed where nothing was fitted: 77.4 ns.
        assert!((step_s(table.rate(1) * 1_000_000) / 1e6 - 77.45e-9).abs() < 0.1e-9);
    });
}

#[test]
fn the_table_says_what_the_cost_model_says() {
    with_table(2, |table, writer| {
        for m in [1, 7, 64, 65, 100, 511, 513, 1000, 2048] {
            let (found, direct) = (table.tokens_at(m), Tick::from_seconds(writer.layers(m)));
            assert!(found.abs_diff(direct) * 100 <= direct, "{m} tokens: {found:?} of {direct:?}");
        }
        for (past, new) in [(0, 1), (0, 333), (10, 512), (777, 512), (3000, 100), (100_000, 512), (5000, 2000)] {
            let chunk = Chunk { past, new };
            let (found, direct) = (table.prefill.ticks(chunk), Tick::from_seconds(writer.prefill(chunk)));
            assert!(found.abs_diff(direct) * 25 <= direct, "{chunk:?}: {found:?} of {direct:?}");
        }
    });
}

#[test]
fn an_iteration_is_the_sum_of_its_parts() {
    with_table(1, |table, writer| {
        let chunk = Chunk { past: 512, new: 512 };
        let load = StepLoad {
            n_decode: 8,
            context: 10_000,
            n_chunk_tokens: 512,
            n_chunks: 1,
            n_sampled: 9,
            ..StepLoad::default()
        };
        let parts = [writer.layers(520), writer.head(9), writer.prefill(chunk)];
        let parts: Tick = parts.into_iter().map(Tick::from_seconds).sum();
        let attention = table.decode.fixed(8, 1) + table.decode.per_key(8, 1) * 10_000;
        let found = table.step(&load, std::iter::once(chunk));
        assert!(found.abs_diff(parts + attention) * 200 <= found, "{found:?} of {:?}", parts + attention);
    });
}

#[test]
fn more_gpus_are_faster_but_not_by_more_than_their_number() {
    let at = std::cell::RefCell::new(Vec::new());
    for tp in [1, 2, 4, 8] {
        with_table(tp, |table, _| at.borrow_mut().push(table.law(64).fixed));
    }
    let at = at.into_inner();
    assert!(at.windows(2).all(|pair| pair[1] < pair[0] && pair[1] * 2 > pair[0]), "{at:?}");
}

/// Table of a deployment on H200 nodes, 4,096 tokens and 512 sequences.
fn of_model(name: &str, tp: u32, pp: u32, ep: u32) -> StepTable {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 8, 8);
    let model = engine::model::embedded(name).expect("listed");
    let base = ReplicaConfig::new(&model, &cluster, tp);
    let deployment = ReplicaConfig { pipeline_degree: pp, expert_degree: ep, ..base };
    StepTable::new(&deployment, (4096, 512), &Roofline::new(&cluster), Case::Expected)
}

#[test]
fn a_model_that_drafts_by_itself_pays_a_layer_and_its_head() {
    // A roofline at few sequences reads weights: a verification of no accepted draft costs one layer, the head and the product of joined
    // states on top of the pass, which has two tokens for each sequence.
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 1, 8);
    let model = engine::model::embedded("deepseek-v3.2").expect("listed");
    let (predicting, cost) = (model.predicting().expect("one layer"), Roofline::new(&cluster));
    let base = ReplicaConfig::new(&model, &cluster, 8);
    let drafted = ReplicaConfig { draft: Some((&predicting, DraftKind::Own)), ..base.clone() };
    let table = |config: &ReplicaConfig<'_>| StepTable::new(config, (4096, 512), &cost, Case::Expected);
    let speculation = Speculation { n_drafts: 1, tree: None, acceptance: 0.0, per_draft: Seconds::ZERO, seed: 1 };
    let (plain, drafts) = (table(&base), table(&drafted).speculating(&speculation));
    let layer = plain.tokens_at(1).as_f64() / 61.0;
    let added = drafts.law(1).fixed - plain.tokens_at(2) - plain.head_at(2) - plain.decode_fixed(1, 0);
    let added = (added - plain.head_at(1)).as_f64();
    // 2 · 7168² numbers of 16 bits at 8 TB/s, as far as a roofline reaches it; one of 61 layers is dense in three and has all experts in the others.
    let joins_s = 2.0 * 7168.0 * 7168.0 * 2.0 / 8e12;
    let joins = joins_s * Tick::PER_SECOND;
    assert!(
        added > 0.8 * layer + joins && added < 2.5 * (layer + joins),
        "{added} ticks, a layer takes {layer}, joins {joins}"
    );
}

#[test]
fn idle_ranks_of_attention_have_no_rows_for_the_experts_and_no_part_of_what_is_gathered() {
    let table = of_model("deepseek-v3", 1, 1, 8);
    let chunk = Chunk { past: 0, new: 2048 };
    let step = |n: u32| {
        let load = StepLoad { n_chunk_tokens: n * 2048, n_chunks: n, n_sampled: n, ..StepLoad::default() };
        table.step(&load, std::iter::repeat_n(chunk, n as usize))
    };
    let steps: Vec<Tick> = [1, 2, 4, 8].map(step).into();
    // Each rank has its prompt; the more of them there are, the more rows an expert has.
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
    assert_eq!(table.uneven(2048, 0), table.tokens_at(2048), "all alike");
    assert_eq!(table.uneven(2048, 7 * 2048), at(&table.alone, 2048), "one alone");
    // 58 layers with eight experts of 3 · 7168 · 2048 numbers for a token, in 8 bits; of the rows of all ranks an eighth is left.
    let experts_s = 58.0 * 2048.0 * 8.0 * 2.0 * 3.0 * 7168.0 * 2048.0 * 7.0 / 8.0 / 1979e12;
    // Every rank receives the tokens of one other in place of seven, before the experts and behind them, at three quarters of 450 GB/s.
    let gathered_s = 58.0 * 2.0 * 6.0 * 2048.0 * 7168.0 * 2.0 / (0.75 * 450e9);
    let saved_s = (table.tokens_at(2048) - at(&table.alone, 2048)).span().to_seconds().get();
    let of_experts_s = saved_s - gathered_s;
    assert!(
        of_experts_s > experts_s && of_experts_s < 3.0 * experts_s,
        "{saved_s} s of {experts_s} s and {gathered_s} s"
    );
}

#[test]
fn beyond_as_many_gpus_as_a_token_has_experts_tokens_come_to_their_experts_alone() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let gpu = hw::catalog::gpu("gb200").expect("listed");
    let seen = |expert_degree: u32| {
        let cluster = hw::catalog::cluster(&gpu, 1, expert_degree);
        let cost = Roofline::new(&cluster);
        let deployment = ReplicaConfig { expert_degree, ..ReplicaConfig::new(&model, &cluster, 1) };
        let rows = vec![100; 256 / expert_degree as usize];
        let product = Op::GroupedGemm { rows, n: 4096, k: 7168, format: hw::Format::Bf16, kind: PassKind::Forward };
        let writer = Writer::new(&deployment, &cost, Case::Expected);
        writer.fused_layer(&product, 3200).map(|layer| layer.tokens)
    };
    // 25,600 rows of 3200 tokens with eight experts each: an eighth of them on each of eight GPUs, a sixteenth on each of 16.
    assert_eq!((seen(8), seen(16)), (Some(3200), Some(200)));
}

#[test]
fn stages_divide_a_batch_and_add_hand_offs() {
    let (one, four) = (of_model("llama-3-70b", 8, 1, 1), of_model("llama-3-70b", 8, 4, 1));
    // 64 sequences are four batches of 16; the head of each runs on the last stage, one after another.
    let (whole, round) = (one.law(16), four.law(64));
    assert!(one.rate(64).abs_diff(four.rate(64) * 4) <= Tick::new(4), "up to rounding");
    let hand_offs = round.fixed - whole.fixed - one.head_at(16) * 3;
    // Three messages of 16 · 8192 · 2 bytes between nodes at 50 GB/s, and their starts.
    let seconds = hand_offs.span().to_seconds().get();
    let bytes_s = 3.0 * 16.0 * 8192.0 * 2.0 / 50e9;
    assert!(
        seconds > bytes_s && seconds < 3.0 * bytes_s + 3.0 * 20e-6,
        "{seconds} s of hand-offs, {bytes_s} s of bytes"
    );
    // A lone sequence passes all stages by itself.
    assert!(four.law(1).fixed >= one.law(1).fixed && four.rate(1) == one.rate(1));
}

#[test]
fn few_tokens_read_few_experts() {
    // Experts of a lone token: 2 of 8 in mixtral, 8 of 256 in deepseek-v3, in the time that their bytes take at 0.75 of the bandwidth.
    for (name, tp, top_k, n_layers) in [("mixtral-8x22b", 8, 2, 56), ("deepseek-v3", 16, 8, 58)] {
        let model = engine::model::embedded(name).expect("listed");
        let table = of_model(name, tp, 1, 1);
        let (one, many) = (table.tokens_at(1), table.tokens_at(512));
        let bytes = 2.0 / f64::from(tp) * hw::real(model.expert_parameters()) * f64::from(n_layers);
        let expert_s = bytes / (0.75 * 4.8e12);
        let n_routed = hw::real(model.experts.expect("experts").n_routed);
        let least = (n_routed - f64::from(top_k)) * expert_s;
        let found = (many - one).span().to_seconds().get();
        assert!(found > least, "{name}: {found} s between one and all experts, which takes {least} s alone");
    }
}

#[test]
fn experts_over_more_gpus_are_fewer_to_read_and_must_be_reached() {
    // DeepSeek-V3 in attention groups of 8, experts over 8 or 32 GPUs, 32 sequences per attention group.
    let (narrow, wide) = (of_model("deepseek-v3", 8, 1, 8), of_model("deepseek-v3", 8, 1, 32));
    assert_eq!((narrow.lanes().ranks, wide.lanes().ranks), (1, 4));
    let (at_8, at_32) = (narrow.law(32).fixed, wide.law(128).fixed);
    // The same batch per group: a quarter of the experts is read, two all-to-all per layer come on top.
    assert!(at_32 != at_8 && at_32 < at_8 * 3 && at_8 < at_32 * 3, "{at_8:?} and {at_32:?}");
    assert!(narrow.rate(32).abs_diff(wide.rate(128) * 4) <= Tick::new(4), "each group reads its own sequences");
    // Mixtral's 8 experts: whole ones on each GPU move no more bytes than slices of all.
    let (sliced, whole) = (of_model("mixtral-8x22b", 8, 1, 1), of_model("mixtral-8x22b", 8, 1, 8));
    let ratio = whole.law(512).fixed.as_f64() / sliced.law(512).fixed.as_f64();
    assert!((0.7..1.3).contains(&ratio), "{ratio}");
}

#[test]
fn decoding_sequences_read_slower_beside_a_chunk_where_that_was_measured() {
    let profile =
        engine::cost::profile::Profile::parse(include_str!("../../../../profiles/rtx-4090.toml")).expect("shipped");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("rtx-4090").expect("listed"), 1, 1);
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let cost = engine::cost::profiled::Profiled::new(&profile, &cluster);
    let table = StepTable::new(&ReplicaConfig::new(&model, &cluster, 1), (2048, 256), &cost, Case::Expected);
    let at = |context, n_chunks| {
        let load = StepLoad {
            n_decode: 8,
            context,
            n_chunk_tokens: 64 * n_chunks,
            n_chunks,
            n_sampled: 8,
            ..StepLoad::default()
        };
        table.step(&load, (0..n_chunks).map(|_| Chunk { past: 0, new: 64 }))
    };
    let law = profile.decode_attention.expect("fitted");
    for (n_chunks, reached) in [(0, law.reached), (1, law.mixed.expect("fitted").reached)] {
        // A cached token is 131,072 bytes over a share of 1008 GB/s.
        let expected = 131_072.0 / (1008e9 * reached);
        let found = (at(1_010_000, n_chunks) - at(10_000, n_chunks)).span().to_seconds().get() / 1e6;
        assert!((found / expected - 1.0).abs() < 1e-3, "{n_chunks} chunks: {found} of {expected}");
    }
}

#[test]
fn a_decoding_batch_costs_what_the_next_captured_size_does() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let base = ReplicaConfig::new(&model, &cluster, 1);
    let captured = ReplicaConfig { graph_sizes: vec![1, 2, 4, 8], ..base.clone() };
    let [plain, padded] =
        [base, captured].map(|config| StepTable::new(&config, (2048, 256), &Roofline::new(&cluster), Case::Expected));
    for (n, as_of) in [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 9), (100, 100)] {
        assert_eq!(padded.law(n).fixed, plain.law(as_of).fixed, "{n} sequences");
        // Keys are read for the real ones only.
        assert_eq!(padded.law(n).rate, plain.law(n).rate);
    }
    // Chunks of prompts run without a graph.
    let load =
        StepLoad { n_decode: 5, context: 5000, n_chunk_tokens: 512, n_chunks: 1, n_sampled: 5, ..StepLoad::default() };
    let chunk = Chunk { past: 0, new: 512 };
    assert_eq!(padded.step(&load, std::iter::once(chunk)), plain.step(&load, std::iter::once(chunk)));
    // A span is the sum of its iterations.
    let law = padded.law(5);
    let load = StepLoad { n_decode: 5, context: 4321, n_sampled: 5, ..StepLoad::default() };
    assert_eq!(padded.step(&load, std::iter::empty()), law.fixed + law.rate * 4321);
}

/// Published latencies of one sequence without graphs (sgl-project/sglang, pull request 1401): 8.23 ms for 32 layers, and 24.9 ms for 27 with latent
/// attention and experts.
#[test]
fn batches_beyond_the_largest_graph_take_at_least_their_launches() {
    let cluster = a100();
    let table = |name: &str, graph_max: u32| {
        let model = engine::model::embedded(name).expect("listed");
        let config = ReplicaConfig { graph_max, ..ReplicaConfig::new(&model, &cluster, 1) };
        StepTable::new(&config, (2048, 256), &Roofline::new(&cluster), Case::Expected)
    };
    let [eager, few, all] = [0, 16, u32::MAX].map(|graph_max| table("qwen2.5-0.5b", graph_max));
    // 24 layers of 8.23/32 ms, whatever few tokens take on the device; keys are read meanwhile.
    let launches = Tick::from_seconds(Seconds::new(24.0 * 8.23e-3 / 32.0));
    assert!(all.law(1).fixed < launches);
    for (n, table, is_held) in [(1, &eager, false), (16, &few, true), (17, &few, false), (256, &all, true)] {
        let load = StepLoad { n_decode: n, n_sampled: n, ..StepLoad::default() };
        let (law, held) = (table.law(n), all.law(n));
        assert_eq!(law.fixed, held.fixed, "{n} sequences");
        let step = table.step(&load, std::iter::empty());
        assert_eq!(step, if is_held { held.fixed } else { held.fixed.max(launches) }, "{n} sequences");
        assert_eq!(law.fixed.max(law.least), step, "a span is the sum of its iterations");
    }
    // Chunks beside decoding sequences take no kernel away, and by themselves they have launches of their own.
    let load = StepLoad { n_decode: 1, n_chunk_tokens: 16, n_chunks: 1, n_sampled: 2, ..StepLoad::default() };
    assert_eq!(eager.step(&load, std::iter::once(Chunk { past: 0, new: 16 })), launches);
    let load = StepLoad { n_chunk_tokens: 16, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
    let chunk = Chunk { past: 0, new: 16 };
    assert_eq!(eager.step(&load, std::iter::once(chunk)), all.step(&load, std::iter::once(chunk)));
    let latent = table("deepseek-v2-lite", 0).law(1).least;
    assert_eq!(latent, Tick::from_seconds(Seconds::new(4.0 * 6.22e-3)));
}

#[test]
fn norms_of_queries_and_keys_are_launched_where_no_graph_holds_them() {
    // 28 layers of ten kernels, of which 32 take 8.23 ms. vLLM and SGLang launch two norms besides, TensorRT-LLM one kernel for both.
    let kernel_s = 8.23e-3 / 320.0;
    let cluster = a100();
    for (model, census, launches) in [
        ("qwen3-0.6b", census::VLLM, 12.0),
        ("qwen3-0.6b", census::SGLANG, 12.0),
        ("qwen3-0.6b", census::TRTLLM, 11.0),
        ("qwen3-0.6b", census::NONE, 10.0),
        ("qwen2.5-1.5b", census::VLLM, 10.0),
    ] {
        let model = engine::model::embedded(model).expect("listed");
        let config = ReplicaConfig { graph_max: 0, census, ..ReplicaConfig::new(&model, &cluster, 1) };
        let table = StepTable::new(&config, (2048, 256), &Roofline::new(&cluster), Case::Expected);
        let expected = Tick::from_seconds(Seconds::new(28.0 * launches * kernel_s));
        let off = table.law(1).least.saturating_sub(expected).max(expected.saturating_sub(table.law(1).least));
        assert!(off <= Tick::new(1), "{launches} launches: {:?}", table.law(1).least);
    }
}

#[test]
fn a_head_that_was_trained_to_draft_reads_its_weights_with_every_draft() {
    // A roofline at few tokens reads weights. Of EAGLE-3's head each draft reads the layer, whose queries, keys and values are twice as deep, and its own
    // head over 32,000 tokens. What fuses states is read once for a verification.
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("b200").expect("listed"), 1, 8);
    let model = engine::model::embedded("llama-3-70b").expect("listed");
    let (head, cost) = (model.draft_head(DraftHead::Eagle3), Roofline::new(&cluster));
    let base = ReplicaConfig::new(&model, &cluster, 1);
    let drafted = ReplicaConfig { draft: Some((&head, DraftKind::Head(DraftHead::Eagle3))), ..base };
    let table = StepTable::new(&drafted, (4096, 512), &cost, Case::Expected);
    let drafts_of = |n_drafts, tree| {
        let speculation = Speculation { n_drafts, tree, acceptance: 0.0, per_draft: Seconds::ZERO, seed: 1 };
        let load = StepLoad { n_decode: 1, ..StepLoad::default() };
        table.clone().speculating(&speculation).drafts_of(&load, &[]).as_f64()
    };
    let (one, two) = (drafts_of(1, None), drafts_of(2, None));
    let of_bytes = |parameters: u64| 2.0 * hw::real(parameters) / 8e12 * Tick::PER_SECOND;
    let (fused, all) = (3 * 8192 * 8192, DraftHead::Eagle3.parameters(&head));
    // A roofline reaches four fifths of the datasheet's speed and more, and kernels have starts.
    for (found, bytes) in [(two - one, of_bytes(all - fused)), (one, of_bytes(all))] {
        assert!(found > bytes && found < 1.8 * bytes, "{found} ticks, the bytes take {bytes}");
    }
    // A tree of two branches computes no more weights, and a later draft of it has two tokens.
    let tree = drafts_of(2, Some(Tree { branches: 2, verified: 3 }));
    assert!(tree >= two && tree < 1.1 * two, "{tree} and {two}");
}

/// A draft model's passes come one after another and before the pass that verifies them, so launches add up.
#[test]
fn drafts_beyond_the_largest_graph_are_launched_too() {
    let cluster = a100();
    let [model, draft] = ["llama-3-8b", "qwen2.5-0.5b"].map(|name| engine::model::embedded(name).expect("listed"));
    let config = ReplicaConfig {
        graph_max: 0,
        draft: Some((&draft, DraftKind::Model)),
        ..ReplicaConfig::new(&model, &cluster, 1)
    };
    let speculation = Speculation { n_drafts: 4, tree: None, acceptance: 0.0, per_draft: Seconds::ZERO, seed: 1 };
    let table =
        StepTable::new(&config, (2048, 256), &Roofline::new(&cluster), Case::Expected).speculating(&speculation);
    let load = StepLoad { n_decode: 1, n_sampled: 1, ..StepLoad::default() };
    // 32 layers are read for 10 ms on an A100, so they hide their own launches; those of 24 layers are 6.2 ms, four times.
    let drafted = table.drafts_of(&load, &[]);
    let verified = table.device(&load, std::iter::empty()).0.ticks - drafted;
    let launched = |layers: u32| Tick::from_seconds(Seconds::new(f64::from(layers) * 8.23e-3 / 32.0));
    let of_draft = launched(24) * 4;
    assert_eq!(drafted, of_draft);
    assert_eq!(table.step(&load, std::iter::empty()), verified.max(launched(32)) + of_draft);
    let law = table.law(1);
    assert_eq!(law.fixed.max(law.least), table.step(&load, std::iter::empty()));
}

/// A host that does not work ahead launches what lies between graphs while the device waits. The later passes hide what they are longer than.
#[test]
fn a_round_of_drafts_waits_for_what_the_host_launches() {
    let cluster = a100();
    let [model, draft] = ["llama-3-8b", "qwen2.5-0.5b"].map(|name| engine::model::embedded(name).expect("listed"));
    let plain = ReplicaConfig { draft: Some((&draft, DraftKind::Model)), ..ReplicaConfig::new(&model, &cluster, 1) };
    let drafts = |round_launches: RoundLaunches, n_drafts: u32| {
        let config = ReplicaConfig { round_launches, ..plain.clone() };
        let speculation = Speculation { n_drafts, tree: None, acceptance: 0.0, per_draft: Seconds::ZERO, seed: 1 };
        let table = StepTable::new(&config, (2048, 256), &Roofline::new(&cluster), Case::Expected);
        table.speculating(&speculation).drafts_of(&StepLoad { n_decode: 1, ..StepLoad::default() }, &[]).as_f64()
    };
    let waited = RoundLaunches { accepted: 30, drafts: 10, later_draft: 5, verification: 0 };
    let launch = 8.23e-3 / 320.0 * Tick::PER_SECOND;
    for (n_drafts, launches) in [(1, 40.0), (3, 50.0)] {
        let found = drafts(waited, n_drafts) - drafts(RoundLaunches::NONE, n_drafts);
        assert!((found - launches * launch).abs() < 2.0, "{n_drafts} drafts: {found} ticks");
    }
    // One draft has no later passes that would hide a verification's launches; those of three take some of it.
    let verification = |n: u32| drafts(RoundLaunches { verification: 100, ..RoundLaunches::NONE }, n);
    assert!((verification(1) - drafts(RoundLaunches::NONE, 1) - 100.0 * launch).abs() < 2.0);
    let rest = drafts(RoundLaunches::NONE, 1) + 100.0 * launch;
    assert!((verification(3) - rest.max(drafts(RoundLaunches::NONE, 3))).abs() < 2.0);
}

#[test]
fn a_prompt_takes_at_least_as_long_as_its_kernels_are_launched() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let base = ReplicaConfig::new(&model, &cluster, 1);
    let launched = ReplicaConfig { host_per_layer: Seconds::new(1e-3), ..base.clone() };
    let [plain, slow] =
        [base, launched].map(|config| StepTable::new(&config, (8192, 8), &Roofline::new(&cluster), Case::Expected));
    let step = |table: &StepTable, new: u32| {
        let load = StepLoad { n_chunk_tokens: new, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
        table.step(&load, std::iter::once(Chunk { past: 0, new }))
    };
    // 32 layers of 1 ms each: few tokens wait for the host, many hide it.
    assert_eq!((step(&slow, 16)).span().to_seconds(), Seconds::new(0.032));
    assert!(step(&plain, 16) < step(&slow, 16));
    assert_eq!(step(&plain, 8192), step(&slow, 8192));
    // Batches that only decode are captured.
    assert_eq!(plain.law(8), slow.law(8));
}

#[test]
fn layers_with_experts_are_launched_for_longer_and_captured_prompts_are_not_launched() {
    let (model, cluster) = (engine::model::embedded("minimax-m2.5").expect("listed"), a100());
    let us = |us: f64| Seconds::new(us * 1e-6);
    let base = ReplicaConfig {
        host_per_layer: us(100.0),
        host_per_expert_layer: us(10_000.0),
        graph_sizes: vec![8, 512],
        ..ReplicaConfig::new(&model, &cluster, 8)
    };
    let captured = ReplicaConfig { prompt_graph_tokens: 512, ..base.clone() };
    let [launched, captured] =
        [base, captured].map(|config| StepTable::new(&config, (2048, 8), &Roofline::new(&cluster), Case::Expected));
    let step = |table: &StepTable, new: u32| {
        let load = StepLoad { n_chunk_tokens: new, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
        table.step(&load, std::iter::once(Chunk { past: 0, new })).span().to_seconds()
    };
    // 62 layers, all with experts.
    assert_eq!([512, 513].map(|new| step(&launched, new)), [Seconds::new(0.62); 2]);
    assert!(step(&captured, 512) < Seconds::new(0.62));
    assert_eq!(step(&captured, 513), Seconds::new(0.62));
}

#[test]
fn intricate_layers_are_launched_for_their_least_time() {
    let (model, cluster) = (engine::model::embedded("deepseek-v3").expect("listed"), a100());
    let us = |us: f64| Seconds::new(us * 1e-6);
    let base = ReplicaConfig {
        host_per_layer: us(100.0),
        host_per_expert_layer: us(50_000.0),
        ..ReplicaConfig::new(&model, &cluster, 8)
    };
    let least = ReplicaConfig { host_per_intricate_layer: us(20_000.0), ..base.clone() };
    let step = |config: &ReplicaConfig<'_>| {
        let table = StepTable::new(config, (16, 8), &Roofline::new(&cluster), Case::Expected);
        let load = StepLoad { n_chunk_tokens: 16, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
        table.step(&load, std::iter::once(Chunk { past: 0, new: 16 })).span().to_seconds()
    };
    // Three dense layers and 58 with experts.
    for (config, wanted) in [(&base, 58.0 * 0.05 + 3.0 * 1e-4), (&least, 58.0 * 0.05 + 3.0 * 0.02)] {
        assert!((step(config).get() / wanted - 1.0).abs() < 1e-9, "{:?} of {wanted} s", step(config));
    }
    // A model without latent attention has no such layers, unless its experts run through Triton.
    let model = engine::model::embedded("minimax-m2.5").expect("listed");
    let long = ReplicaConfig { host_per_intricate_layer: us(80_000.0), ..least.clone() };
    let triton = ReplicaConfig { triton_experts: true, ..long.clone() };
    let [base, least, long, triton] =
        [base, least, long, triton].map(|config| step(&ReplicaConfig { model: &model, ..config }).get());
    assert_eq!([base, least, long], [62.0 * 0.05; 3]);
    assert!((triton / (62.0 * 0.08) - 1.0).abs() < 1e-9, "{triton}");
    // Of four layers of Qwen3.5 three scan through a state; all have experts.
    let model = engine::model::embedded("qwen3.5-397b-a17b").expect("listed");
    let long = ReplicaConfig {
        host_per_expert_layer: us(50_000.0),
        host_per_intricate_layer: us(80_000.0),
        ..ReplicaConfig::new(&model, &cluster, 8)
    };
    let found = step(&long).get();
    assert!((found / (45.0 * 0.08 + 15.0 * 0.05) - 1.0).abs() < 1e-9, "{found}");
    // 23 layers of Nemotron 3 Nano scan, 23 have experts and six attend: each is half a layer, and experts are launched as elsewhere.
    let model = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("listed");
    let halves = ReplicaConfig { host_per_layer: us(40_000.0), model: &model, tensor_degree: 2, ..long };
    let found = step(&halves).get();
    assert!((found / (23.0 * 0.04 + 23.0 * 0.05 + 6.0 * 0.02) - 1.0).abs() < 1e-9, "{found}");
}

/// The datasheet, and a layer of experts that takes no time.
struct FreeExperts(Roofline);

impl CostModel for FreeExperts {
    fn elementary(&self, op: &engine::task::Op) -> engine::cost::Estimate {
        self.0.elementary(op)
    }

    fn experts(&self, _: &engine::cost::experts::FusedExperts) -> Option<engine::cost::Estimate> {
        Some(engine::cost::Estimate::exact(Seconds::ZERO, Source::Measured))
    }

    fn least(&self, op: &engine::task::Op) -> Seconds {
        self.0.least(op)
    }
}

#[test]
fn experts_that_are_filled_up_take_the_same_time_whatever_the_batch() {
    let (model, cluster) = (engine::model::embedded("minimax-m2.5").expect("listed"), a100());
    let plain = ReplicaConfig::new(&model, &cluster, 4);
    let filled = ReplicaConfig { expert_rows: Some(128), ..plain.clone() };
    let [plain, filled] = [plain, filled]
        .map(|config| StepTable::new(&config, (64, 64), &FreeExperts(Roofline::new(&cluster)), Case::Expected));
    let more = |n: u32| filled.law(n).fixed - plain.law(n).fixed;
    // 256 experts of 127 rows and 8 of a token, in blocks of 128: 32,640 rows; with sixteen tokens the same.
    assert!(more(1).abs_diff(more(16)) <= Tick::ONE, "up to rounding");
    // In 62 layers at the card's peak: 3 matrices of 3072 by 1536 over four GPUs.
    let operations = 62.0 * 32_640.0 * 2.0 * 3.0 * 3072.0 * 1536.0 / 4.0;
    let least = operations / cluster.gpu.peak(model.formats.experts).get();
    let found = more(1).span().to_seconds().get();
    assert!(found > least && found < 3.0 * least, "{found} s, at least {least}");
    // The matrices of 255 blocks are read, each for its own rows.
    let bytes = model.formats.experts.weight_bytes(62.0 * 255.0 * 3.0 * 3072.0 * 1536.0 / 4.0);
    let read = bytes / cluster.gpu.memory_bandwidth.get();
    assert!(found > read, "{found} s, at least {read}");
}

#[test]
fn sequences_beyond_a_limit_of_prompts_have_their_own_time() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let cost = Roofline::new(&cluster);
    let deployment = ReplicaConfig::new(&model, &cluster, 1);
    let of = |tokens_max| {
        let table = StepTable::new(&deployment, (tokens_max, 1024), &cost, Case::Expected);
        let load = StepLoad { n_decode: 1024, n_sampled: 1024, context: 1024 * 100, ..StepLoad::default() };
        table.round(&load, std::iter::empty::<Placed>()).ticks
    };
    // `SGLang` limits prompts alone, so a batch of 1,024 that decode takes as long whatever the limit is.
    let [small, large] = [of(64), of(8192)].map(|ticks| hw::real(ticks.get()));
    assert!((small / large - 1.0).abs() < 1e-3, "{small} and {large}");
}
