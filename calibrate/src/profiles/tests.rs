//! Shipped profiles against the tables and papers that they are of.

use super::*;
use engine::cost::experts::{FusedExperts, Routing, Tactic};
use engine::cost::profiled::Profiled;
use engine::cost::{CostModel, Source};
use engine::shard::{Casts, TorchModules};
use engine::task::{Collective, Document, Op, Pass};
use hw::Dtype;

/// Exchanges of a card by an engine's tables, or by its datasheet where nobody lends it any, with so much of a link inside a node.
fn exchange_s(card: &str, engine: &str, gb_per_s: Option<f64>, op: &Op) -> f64 {
    let gpu = hw::catalog::gpu(card).expect("listed");
    let mut cluster = hw::catalog::cluster(&gpu, 1, 8);
    if let Some(rate) = gb_per_s {
        cluster.gpu.intra_node_bandwidth = hw::BytesPerSecond::new(rate * 1e9);
    }
    let costs = crate::costs::of_serving(&cluster, engine);
    costs.engine(op).unwrap_or_else(|| costs.estimate(op)).time.get()
}

#[test]
fn a_faster_link_never_lengthens_an_exchange() {
    for card in hw::catalog::gpu_names().into_iter().filter(|card| *card != "cpu") {
        let usual = hw::catalog::gpu(card).expect("listed").intra_node_bandwidth.get() / 1e9;
        let mut rates: Vec<f64> = vec![8.0, 32.0, 40.0, 64.0, 100.0, 300.0, 450.0, 600.0, 900.0, usual * 0.999, usual];
        rates.sort_by(f64::total_cmp);
        for engine in ["vllm", "sglang", "trtllm"] {
            for kind in [Collective::AllReduce, Collective::AllToAll, Collective::AllGather, Collective::SendRecv] {
                for (n_ranks, power) in [(2, 12), (2, 20), (4, 24), (8, 16), (8, 28)] {
                    let shape = hw::GroupShape::inside(n_ranks);
                    let op = Op::Collective { kind, bytes: 1 << power, shape };
                    let times: Vec<f64> = rates.iter().map(|rate| exchange_s(card, engine, Some(*rate), &op)).collect();
                    let falls = times.windows(2).all(|pair| pair[1] <= pair[0] * 1.000_000_1);
                    assert!(falls, "{card}, {engine}, {op:?}: {rates:?} GB/s take {times:?} s");
                }
            }
        }
    }
}

#[test]
fn experts_in_four_bits_run_on_hopper_by_the_kernel_that_servers_take() {
    for card in ["h100-sxm", "h200-sxm"] {
        let [sglang, vllm] = ["sglang", "vllm"].map(|engine| of_serving(card, Some(engine)).expect("shipped"));
        assert_eq!(sglang.experts["experts-mxfp4"], vllm.experts["experts-mxfp4"], "{card}");
        let own = &parsed_of_engine(card, "sglang").expect("shipped").experts["experts-mxfp4"];
        assert_eq!(&sglang.experts["experts-mxfp4-elsewhere"], own, "{card}");
    }
    let own = &parsed_of_engine("b200", "sglang").expect("shipped").experts["experts-mxfp4"];
    assert_eq!(&of_serving("b200", Some("sglang")).expect("shipped").experts["experts-mxfp4"], own);
}

#[test]
fn experts_without_a_gate_run_by_the_kernel_that_servers_take() {
    let of = |card: &str, engine: &str| of_serving(card, Some(engine)).expect("shipped").experts;
    let plain = "experts-fp8-plain";
    for (card, engine) in [("h100-sxm", "vllm"), ("h200-sxm", "vllm"), ("b200", "sglang")] {
        let own = &parsed_of_engine(card, "trtllm").expect("shipped").experts[plain];
        assert_eq!(&of(card, engine)[plain], own, "{card} {engine}");
    }
    // SGLang tunes FlashInfer's kernel nowhere and runs Triton's in 16 bits.
    let hopper = of("h200-sxm", "sglang");
    assert!(!hopper.contains_key(plain) && !hopper.contains_key("experts-plain"));
}

/// Microseconds of 128 experts of 4096 by 1536 over four A100, by tokens: vLLM 0.14.0 with the same kernel of Triton (ai-dynamo/aiconfigurator @ 095f58a51c4c,
/// a100_sxm, `vllm_fused_moe`, `power_law_1.2`).
const OVER_FOUR: [(u64, f64); 2] = [(64, 994.0), (256, 1163.0)];

#[test]
fn a_part_of_the_experts_takes_what_another_engine_measured_with_the_same_kernel() {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    let profile = of_serving(&gpu.name, Some("sglang")).expect("shipped");
    // Rows of a part of the experts are left out, so the tables say of no traffic that rows of other GPUs cost.
    for name in ["experts", "experts-int4"] {
        assert!(profile.experts[name].law.everywhere.abs() < 1e-12, "{name}");
    }
    let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 4));
    for (tokens, expected_us) in OVER_FOUR {
        let layer = |parts: u64| FusedExperts {
            rows: Routing::PowerLaw(1.2).rows(tokens, 8, 128, parts),
            tokens,
            top_k: 8,
            hidden: 4096,
            width: 1536 * parts / 4,
            gated: true,
            format: Format::Bf16,
            tactic: Tactic::Tuned,
        };
        let [parts, slices] = [4, 1].map(|parts| costs.experts(&layer(parts)).expect("measured").time.get() * 1e6);
        assert!((0.7..1.3).contains(&(parts / expected_us)), "{tokens} tokens: {parts} us of {expected_us}");
        // As many bytes and, but for the busiest GPU, as many products.
        assert!((0.6..2.0).contains(&(parts / slices)), "{tokens} tokens: {parts} us and {slices} us");
    }
}

/// Layers of experts that other versions timed on B200 than those of the profiles, by the kernel beside the faster one: engine, kernel, format, width, inner width on a GPU,
/// experts, and microseconds by tokens (ai-dynamo/aiconfigurator @ 095f58a51c4c, b200_sxm, `power_law_1.2`: `sglang_fused_moe_triton` of 0.5.9,
/// `moe_torch_flow_cutlass` of 1.3.0rc10).
type OtherVersion = (&'static str, Tactic, Format, [u64; 3], [(u64, f64); 4]);
const BESIDE: [OtherVersion; 3] = [
    ("sglang", Tactic::Triton, Format::Bf16, [4096, 192, 128], [(1, 33.7), (8, 74.0), (64, 133.5), (1024, 292.7)]),
    (
        "sglang",
        Tactic::Triton,
        Format::Fp8Block,
        [3072, 384, 256],
        [(1, 38.2), (16, 111.2), (128, 216.5), (4096, 548.5)],
    ),
    (
        "trtllm",
        Tactic::Cutlass,
        Format::Nvfp4,
        [4096, 384, 128],
        [(1, 60.0), (64, 195.0), (1024, 311.0), (8192, 1177.0)],
    ),
];

#[test]
fn a_kernel_beside_a_faster_one_takes_what_other_versions_measured() {
    let gpu = hw::catalog::gpu("b200").expect("listed");
    for (engine, kernel, format, [hidden, width, n_experts], timed) in BESIDE {
        let profile = of_serving(&gpu.name, Some(engine)).expect("shipped");
        let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 1));
        for (tokens, expected_us) in timed {
            let rows = Routing::PowerLaw(1.2).rows(tokens, 8, n_experts, 1);
            let by = |tactic: Tactic| {
                let rows = rows.clone();
                let layer = FusedExperts { rows, tokens, top_k: 8, hidden, width, gated: true, format, tactic };
                costs.experts(&layer).expect("measured").time.get() * 1e6
            };
            let found = by(kernel);
            assert!((found / expected_us - 1.0).abs() < 0.3, "{engine}, {tokens} tokens: {found} us of {expected_us}");
            assert!(by(Tactic::Tuned) < found, "{engine}, {tokens} tokens");
        }
    }
}

#[test]
fn a_card_on_pcie_borrows_no_curve_of_nvlink() {
    // 64 MiB between two cards at three quarters of 32 GB/s: 2.8 ms; over NVLink they would take a tenth of it.
    let shape = hw::GroupShape::inside(2);
    let op = Op::Collective { kind: Collective::AllReduce, bytes: 1 << 26, shape };
    let found = exchange_s("a100-pcie-80g", "vllm", None, &op);
    assert!(found > 2.7e-3, "{found} s");
}

/// Experts in 16 bits, all with as many rows, over GPUs of H100: width, inner width, experts here, tokens, and microseconds with tiles by default and with tuned ones.
/// Mixtral 8x7B and 8x22B with 64 tokens (ai-dynamo/aiconfigurator @ 095f58a51c4c, h100_sxm, `balanced`, vLLM 0.14.0 and 0.24.0).
const BY_TILES: [([u64; 2], u64, u64, [f64; 2]); 4] = [
    ([4096, 14_336], 4, 64, [709.0, 511.0]),
    ([4096, 14_336], 2, 64, [433.0, 289.0]),
    ([4096, 14_336], 1, 64, [293.0, 184.0]),
    ([6144, 16_384], 2, 64, [660.0, 452.0]),
];

#[test]
fn experts_with_default_tiles_take_what_an_older_release_measured() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let profile = of_serving(&gpu.name, Some("vllm")).expect("shipped");
    let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 8));
    for ([hidden, width], n_experts, tokens, timed) in BY_TILES {
        let rows = vec![tokens * 2 / 8; usize::try_from(n_experts).expect("few")];
        for (tactic, us) in [Tactic::DefaultTiles, Tactic::Tuned].into_iter().zip(timed) {
            let format = Format::Bf16;
            let rows = rows.clone();
            let layer = FusedExperts { rows, tokens, top_k: 2, hidden, width, gated: true, format, tactic };
            let found = costs.experts(&layer).expect("measured").time.get() * 1e6;
            assert!((found / us - 1.0).abs() < 0.1, "{n_experts} of {width}, {tactic:?}: {found} of {us} us");
        }
    }
}

/// Microseconds of 8192 by 12,288 in 8 bits on H100 by rows that fill tiles (the same tables, vLLM 0.24.0 and SGLang 0.5.14).
const WHOLE_TILES: [(u64, [f64; 2]); 4] =
    [(512, [87.0, 81.0]), (1024, [177.0, 167.0]), (2048, [369.0, 337.0]), (8192, [1255.0, 1536.0])];

#[test]
fn rows_that_fill_tiles_are_met_and_a_row_more_takes_longer() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    for (at, engine) in ["vllm", "sglang"].into_iter().enumerate() {
        let profile = of_serving(&gpu.name, Some(engine)).expect("shipped");
        let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 1));
        let us = |m| costs.estimate(&Op::Gemm { m, n: 8192, k: 12_288, format: Format::Fp8 }).time.get() * 1e6;
        for (m, expected) in WHOLE_TILES.map(|(m, timed)| (m, timed[at])) {
            assert!((us(m) / expected - 1.0).abs() < 0.12, "{engine}, {m} rows: {} of {expected} us", us(m));
        }
        assert!(us(513) > 1.2 * us(512) && us(2049) > 1.05 * us(2048), "{engine}");
    }
}

#[test]
fn every_shipped_profile_parses_and_keeps_its_promise_on_unseen_rows() {
    for name in names() {
        let profile = Profile::parse(embedded(name).expect("listed")).expect(name);
        assert_eq!(profile.name, name);
        for (operator, fitted) in &profile.operators {
            let error = fitted.residuals.median_error;
            // Experts differ in more than three axes tell, one card's attention mixes head counts of three models, few shapes were
            // measured of the widest heads, and vLLM's latent attention is what is left of a block.
            // Of training on one card there are a few shapes each of experts and latent attention, and products that differ by a fifth at
            // neighbouring shapes.
            let most = match operator.as_str() {
                operator if operator.starts_with("grouped-gemm-") => 0.30,
                "attention-mla" if name == "b200" => 0.20,
                "gemm" if name == "b200" => 0.10,
                "grouped-gemm" => 0.20,
                // Five rows a curve, of which the shortest sequence is held out: it lies beyond those that are seen.
                _ if name.starts_with("gb") => 0.30,
                // What is left of a block that was launched kernel by kernel, of two models; on this card few rows are above the host's time.
                "attention-selected-fp8" if name == "b200-sglang" => 0.31,
                "attention-selected" | "attention-selected-fp8" => 0.22,
                "scan-delta" => 0.12,
                "attention-512" | "attention-mla" | "attention-mla-fp8" => 0.12,
                // Triton's kernel, which the makers of models with such heads do not use there.
                "attention-192" | "attention-192-fp8" if name == "b200-sglang" => 0.14,
                _ => 0.08,
            };
            assert!(error < most, "{name} {operator}: median error {error} on unseen rows");
        }
    }
}

#[test]
fn gpus_find_their_profile() {
    assert_eq!(of_gpu("a100-sxm-80g"), Some("a100-sxm"));
    assert_eq!(of_gpu("h100-sxm"), Some("h100-sxm"));
    assert_eq!(of_gpu("rtx-4090"), Some("rtx-4090"));
    assert_eq!(of_gpu("l4"), None);
    assert_eq!(of_engine("a100-sxm-80g", "vllm"), Some("a100-sxm-vllm"));
    assert_eq!(of_engine("h200-sxm", "trtllm"), Some("h200-sxm-trtllm"));
    assert_eq!((of_engine("h200-sxm", "other"), of_engine("l4", "vllm")), (None, None));
    assert_eq!((of_gpu("b200"), of_engine("b200", "vllm")), (Some("b200"), Some("b200-vllm")));
    // B200's own table is of training.
    let serving = |gpu: &str| of_serving(gpu, None).map(|profile| profile.name);
    assert_eq!(
        ["h200-sxm", "b200", "rtx-4090"].map(serving),
        ["h200-sxm", "b200-vllm", "rtx-4090"].map(|name| Some(name.to_owned()))
    );
}

#[test]
fn cards_without_tables_are_lent_those_of_their_family_first() {
    let lender = |gpu: &str| of_serving(gpu, Some("sglang")).expect("lent").lent_by;
    assert_eq!((lender("b300").as_deref(), lender("b200")), (Some("b200"), None));
    for gpu in ["gb200", "gb300"] {
        assert_eq!(lender(gpu).as_deref(), Some("b200"), "{gpu}");
    }
    assert_eq!(lender("l4").as_deref(), Some("h200-sxm"));
    // Left out, B200 takes H200's, and latent attention is TensorRT-LLM's there as well.
    let left_out = of_neighbour("b200", "sglang").expect("lent");
    assert_eq!(left_out.lent_by.as_deref(), Some("h200-sxm"));
    let latent = parsed_of_engine("h200-sxm", "trtllm").expect("shipped").decode["decode-mla"].kernel.clone();
    assert_eq!(left_out.decode["decode-mla"].kernel, latent);
}

/// Who lends a card its curves: for training, and for an engine.
fn lenders(card: &str) -> [Option<String>; 2] {
    let gpu = hw::catalog::gpu(card).expect("listed");
    let trains = training(&gpu, Framework::MegatronCore, AttentionKernel::Flash);
    [trains.lent_by, of_serving(card, Some("vllm")).and_then(|profile| profile.lent_by)]
}

#[test]
fn a_card_is_lent_the_curves_of_the_nearest_card_of_its_generation() {
    let [none, h200] = [None, Some("h200-sxm")];
    let [sxm, pcie, hopper] = [Some("a100-sxm-80g"), Some("a100-pcie-80g"), Some("h100-sxm")];
    for (card, training, serving) in [
        ("a800", sxm, sxm),
        ("a100-sxm-40g", none, none),
        ("a100-pcie-80g", none, sxm),
        ("a100-pcie-40g", pcie, sxm),
        ("a30", pcie, sxm),
        ("h800", hopper, hopper),
        ("h100-pcie", hopper, hopper),
        ("h100-nvl", hopper, hopper),
        ("h20", hopper, hopper),
        ("gh200-96g", hopper, hopper),
        ("gh200-144g", h200, h200),
        ("b300", Some("b200"), Some("b200")),
        // Nobody measured their generation over a grid of shapes.
        ("l4", hopper, h200),
        ("rtx-5090", hopper, h200),
        ("a10", hopper, h200),
        ("v100-sxm-32g", hopper, h200),
    ] {
        assert_eq!(lenders(card).each_ref().map(Option::as_deref), [training, serving], "{card}");
    }
}

#[test]
fn no_generation_that_was_measured_is_lent_the_curves_of_another() {
    let cards = hw::catalog::gpu_names();
    for card in cards.iter().filter(|card| **card != "cpu") {
        for lent_by in lenders(card)[0].iter() {
            let kin = |other: &&str| hw::catalog::same_generation(other, card) && of_gpu(other).is_some();
            let is_measured = cards.iter().filter(|other| kin(other)).any(|other| !other.starts_with("rtx-"));
            assert_eq!(hw::catalog::same_generation(lent_by, card), is_measured, "{card} by {lent_by}");
        }
        for engine in ENGINES {
            let lent_by = of_serving(card, Some(engine)).and_then(|profile| profile.lent_by);
            let kin = |other: &&str| hw::catalog::same_generation(other, card) && of_engine(other, engine).is_some();
            let is_measured = cards.iter().any(kin);
            let is_near = lent_by.as_ref().is_none_or(|lender| hw::catalog::same_generation(lender, card));
            assert!(is_near || !is_measured, "{card} {engine} by {lent_by:?}");
        }
    }
}

#[test]
fn cards_of_amd_borrow_no_curve_of_nvidia() {
    for card in ["mi300x", "mi325x", "mi355x"] {
        for engine in [None, Some("vllm"), Some("sglang"), Some("trtllm")] {
            assert_eq!(of_serving(card, engine), None, "{card} {engine:?}");
        }
        let gpu = hw::catalog::gpu(card).expect("listed");
        let cluster = hw::catalog::cluster(&gpu, 1, 8);
        let datasheet = engine::cost::roofline::Roofline::new(&cluster);
        for framework in [Framework::Formulas, Framework::MegatronCore] {
            let profile = training(&gpu, framework, AttentionKernel::Flash);
            assert_eq!((profile.name.as_str(), profile.gpu.as_str()), ("roofline", card));
            let profiled = Profiled::new(&profile, &cluster);
            let document = engine::task::Document::chunk(0, 4096);
            let attention = Op::Attention {
                documents: vec![document],
                n_heads: 32,
                n_kv_heads: 8,
                head_dim: 128,
                kv: hw::Dtype::Bf16,
                pass: engine::task::Pass::Backward,
            };
            for op in [Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Fp8 }, attention] {
                let found = profiled.estimate(&op);
                assert_eq!((found, found.source), (datasheet.estimate(&op), Source::Datasheet), "{op:?}");
            }
        }
    }
}

#[test]
fn blackwell_attends_as_the_authors_of_cudnn_measured() {
    // Two sequences of 4,096 and of 8,192 tokens: what `profiles/published/cudnn` has, forward and backward. A query sees itself among its last 128 tokens.
    let windowed = |tokens: u64| Document { pairs: 128 * tokens - 128 * 127 / 2, ..Document::causal(tokens) };
    let grouped = ([64, 8, 128], Dtype::Bf16, Document::causal as fn(u64) -> Document);
    let latent = ([128, 128, 192], Dtype::Bf16, grouped.2);
    let narrow = ([128, 128, 192], Dtype::Fp8, grouped.2);
    let seen = ([128, 128, 64], Dtype::Bf16, windowed as fn(u64) -> Document);
    let measured = [
        ("gb200", grouped, [[0.391, 1.198], [1.397, 4.127]]),
        ("gb300", grouped, [[0.323, 1.101], [1.185, 3.832]]),
        ("gb200", latent, [[0.977, 3.383], [3.470, 11.984]]),
        ("gb300", latent, [[0.864, 3.127], [3.013, 11.074]]),
        ("gb200", narrow, [[0.714, 2.620], [2.478, 9.567]]),
        ("gb200", seen, [[0.210, 0.465], [0.414, 0.911]]),
    ];
    for (card, ([n_heads, n_kv_heads, head_dim], kv, document), measured) in measured {
        for (tokens, measured) in [4096, 8192].into_iter().zip(measured) {
            for (pass, measured) in [Pass::Forward, Pass::Backward].into_iter().zip(measured) {
                let op =
                    Op::Attention { documents: vec![document(tokens); 2], n_heads, n_kv_heads, head_dim, kv, pass };
                let found = ms(card, Framework::MegatronCore, &op);
                assert!((found / measured - 1.0).abs() < 0.12, "{card} {op:?}: {found} and not {measured}");
            }
        }
    }
}

#[test]
fn attention_is_a_card_s_own_where_that_card_was_measured() {
    let sources = |card: &str| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let costs = Profiled::new(
            &training(&gpu, Framework::MegatronCore, AttentionKernel::Flash),
            &hw::catalog::cluster(&gpu, 1, 4),
        );
        let documents = vec![Document::causal(4096); 2];
        let attention = [Pass::Forward, Pass::Backward].map(|pass| {
            let documents = documents.clone();
            Op::Attention { documents, n_heads: 64, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, pass }
        });
        let product = Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Bf16 };
        [&attention[0], &attention[1], &product].map(|op| costs.estimate(op).source)
    };
    let [own, near] = [engine::cost::Source::Measured, engine::cost::Source::WithinGeneration];
    assert_eq!(sources("gb200"), [own, own, near]);
    assert_eq!(sources("gb300"), [own, own, near]);
    assert_eq!(sources("b300"), [near; 3]);
    assert_eq!(sources("b200"), [own; 3]);
}

#[test]
fn cards_outside_of_racks_attend_as_those_with_their_die() {
    let of = |card: &str, head_dim, pass| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let documents = vec![Document::causal(4096); 4];
        let op = Op::Attention { documents, n_heads: 64, n_kv_heads: 8, head_dim, kv: Dtype::Bf16, pass };
        ms(card, Framework::MegatronCore, &op) * gpu.peak_bf16.get()
    };
    for pass in [Pass::Forward, Pass::Backward] {
        for (card, rack, head_dim) in [("b300", "gb300", 128), ("b300", "gb300", 64), ("b200", "gb200", 64)] {
            let ratio = of(card, head_dim, pass) / of(rack, head_dim, pass);
            assert!((ratio - 1.0).abs() < 0.01, "{card} {head_dim} {pass:?}: {ratio}");
        }
        // B200 has a table of its own at 128.
        assert!((of("b200", 128, pass) / of("gb200", 128, pass) - 1.0).abs() > 0.05, "{pass:?}");
    }
}

/// An operation of training on a card under a framework, milliseconds.
fn ms(card: &str, framework: Framework, op: &Op) -> f64 {
    let gpu = hw::catalog::gpu(card).expect("listed");
    Profiled::new(&training(&gpu, framework, AttentionKernel::Flash), &hw::catalog::cluster(&gpu, 1, 8))
        .estimate(op)
        .time
        .get()
        * 1e3
}

/// A kernel that is named runs under every framework; cuDNN's stands for FlashAttention 3, with a wider interval.
#[test]
fn attention_on_hopper_is_by_the_kernel_that_is_named() {
    let modules =
        TorchModules { compiled: true, casts: Casts::Off, in_pieces: false, fused_norms: true, repeats_keys: true };
    let [torch, deepspeed] = [Framework::Fsdp2(modules), Framework::DeepSpeed(modules)];
    let documents = vec![Document::causal(65_536)];
    let pass = Pass::Backward;
    let op = Op::Attention { documents, n_heads: 32, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, pass };
    let of = |card: &str, framework, attention| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let found =
            Profiled::new(&training(&gpu, framework, attention), &hw::catalog::cluster(&gpu, 1, 8)).estimate(&op);
        [found.low, found.time, found.high].map(hw::Seconds::get)
    };
    for card in ["h100-sxm", "h200-sxm"] {
        let usual = of(card, Framework::MegatronCore, AttentionKernel::Flash);
        for framework in [torch, deepspeed] {
            assert_eq!(of(card, framework, AttentionKernel::CuDnn), usual, "{card}");
            let two = of(card, framework, AttentionKernel::FlashTwo);
            assert_eq!(of(card, framework, AttentionKernel::Flash), two, "{card}");
            let three = of(card, framework, AttentionKernel::FlashThree);
            assert!(three[1] == usual[1] && three[0] < usual[0] && three[2] > usual[2], "{card}: {three:?} {usual:?}");
            assert!(three[1] < two[1], "{card}");
        }
    }
    // Other generations have one curve for all.
    assert_eq!(of("b200", torch, AttentionKernel::CuDnn), of("b200", torch, AttentionKernel::Flash));
}

#[test]
fn hopper_trains_with_the_kernels_of_its_framework() {
    let torch = Framework::Fsdp2(TorchModules {
        compiled: true,
        casts: Casts::Off,
        in_pieces: false,
        fused_norms: true,
        repeats_keys: true,
    });
    // 8,192 tokens, 32 heads over 8: what `operators.csv` and `operators-flash.csv` of both cards have.
    let measured =
        [(Framework::MegatronCore, [[0.888, 0.901], [2.662, 2.601]]), (torch, [[1.755, 1.767], [4.906, 4.813]])];
    for (framework, measured) in measured {
        for (pass, measured) in [Pass::Forward, Pass::Backward].into_iter().zip(measured) {
            let documents = vec![Document::causal(8192)];
            let op = Op::Attention { documents, n_heads: 32, n_kv_heads: 8, head_dim: 128, kv: Dtype::Bf16, pass };
            for (card, measured) in ["h100-sxm", "h200-sxm"].into_iter().zip(measured) {
                let found = ms(card, framework, &op);
                assert!((found / measured - 1.0).abs() < 0.03, "{card} {framework:?} {pass:?}: {found}");
            }
            let of_a100 = [Framework::MegatronCore, torch].map(|framework| ms("a100-sxm-80g", framework, &op));
            assert!((of_a100[0] - of_a100[1]).abs() < 1e-12, "{of_a100:?}");
        }
    }
    // TensorRT-LLM's table has the quantisation of the input in it: it says 143 us.
    let narrow = ms("h100-sxm", torch, &Op::Gemm { m: 8192, n: 576, k: 7168, format: Format::Fp8 });
    assert!((narrow / 0.0468 - 1.0).abs() < 0.1, "{narrow}");
    // Transformer Engine multiplies expert by expert; PyTorch's modules multiply all in one launch, which 128 small ones gain by.
    let experts = Op::GroupedGemm {
        rows: vec![512; 128],
        n: 1536,
        k: 2048,
        format: Format::Bf16,
        kind: engine::task::PassKind::Forward,
    };
    let [one_by_one, together] = [Framework::MegatronCore, torch].map(|framework| ms("h100-sxm", framework, &experts));
    assert!((together / 0.673 - 1.0).abs() < 0.1 && one_by_one > together, "{one_by_one} {together}");
}

#[test]
fn nodes_are_never_faster_than_one_island_of_as_many_gpus_by_shipped_profiles() {
    let kinds = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::AllToAll];
    for card in ["h100-sxm", "h200-sxm", "b200", "gb200", "gb300", "a100-sxm-80g"] {
        let gpu = hw::catalog::gpu(card).expect("listed");
        for profile in
            [of_serving(card, Some("vllm")), Some(training(&gpu, Framework::MegatronCore, AttentionKernel::Flash))]
        {
            let profile = profile.expect("shipped or lent");
            for (n_nodes, per_node) in [(2, 4), (2, 8), (4, 4), (16, 4), (8, 8)] {
                let mut cluster = hw::catalog::cluster(&gpu, n_nodes, per_node);
                let all: Vec<hw::Rank> = (0..cluster.n_gpus()).map(hw::Rank).collect();
                for (kind, power) in kinds.into_iter().flat_map(|kind| (8..31).map(move |power| (kind, power))) {
                    let [one, many] = [n_nodes * per_node, per_node].map(|island| {
                        cluster.nvlink_island = island;
                        let (bytes, shape) = (1 << power, cluster.shape_of(&all));
                        Profiled::new(&profile, &cluster).estimate(&Op::Collective { kind, bytes, shape }).time
                    });
                    let what = format!("{card} {} {kind:?} 2^{power} on {n_nodes} of {per_node}", profile.name);
                    assert!(one <= many, "{what}: {} {}", one.get(), many.get());
                }
            }
        }
    }
}

#[test]
fn training_takes_narrow_products_and_exchanges_of_the_card_or_of_its_generation() {
    let product = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Fp8 };
    let four_bits = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Nvfp4 };
    let gather = |n_ranks| {
        let shape = hw::GroupShape::inside(n_ranks);
        Op::Collective { kind: Collective::AllGather, bytes: 64 << 20, shape }
    };
    let estimate = |card: &str, op: &Op| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        Profiled::new(
            &training(&gpu, Framework::MegatronCore, AttentionKernel::Flash),
            &hw::catalog::cluster(&gpu, 1, 8),
        )
        .estimate(op)
    };
    for op in [&product, &four_bits, &gather(8)] {
        let sources = ["b200", "b300", "gb200", "gb300"].map(|card| estimate(card, op).source);
        let lent = Source::WithinGeneration;
        assert_eq!(sources, [Source::Measured, lent, lent, lent], "{op:?}");
    }
    assert_eq!(estimate("h100-sxm", &product).source, Source::Measured);
    assert_eq!(estimate("a100-sxm-80g", &product).source, Source::Borrowed, "it has 16 bits alone");
    // Two ranks move 32 MiB each and eight 56 MiB, which would be 0.57 at one share of the link.
    let [two, eight] = [2, 8].map(|n_ranks| estimate("gb200", &gather(n_ranks)).time.get());
    assert!((0.62..0.8).contains(&(two / eight)), "{two} {eight}");
}
