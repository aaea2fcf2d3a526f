//! What presets say of a model on a card: formats, graphs, experts and all-reduces.

use hw::Dtype;

use super::*;
use crate::step_cost::ReplicaConfig;

#[test]
fn a_bias_that_balances_experts_makes_tokens_draw_them_alike() {
    let of = |name: &str| routing(&engine::model::embedded(name).expect("embedded"));
    assert_eq!(of("deepseek-r1"), Routing::Balanced(SKEW, RouterGroups { all: 8, of_token: 4 }));
    for name in ["kimi-k2.5", "glm-5", "minimax-m2.5", "nemotron-3-nano-30b-a3b"] {
        assert_eq!(of(name), Routing::Balanced(SKEW, RouterGroups::NONE), "{name}");
    }
    for name in ["qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b", "llama-3-8b"] {
        assert_eq!(of(name), Routing::PowerLaw(SKEW), "{name}");
    }
}

#[test]
fn versions_are_read_as_releases_write_them() {
    for (text, expected) in [
        ("0.19.0", Version(0, 19, 0)),
        ("1.0.0rc3", Version(1, 0, 0)),
        ("0.5.8.post1", Version(0, 5, 8)),
        ("0.14", Version(0, 14, 0)),
        ("nightly-5b8c30d62b754b57", Version::NEWEST),
        ("", Version::NEWEST),
    ] {
        assert_eq!(Version::parse(text), expected, "{text}");
    }
}

#[test]
fn captured_batches_are_those_that_engines_print() {
    // vLLM logs 51 sizes up to 512: 1, 2, 4, 31 multiples of 8 below 256, 17 multiples of 16 from there.
    let vllm = GraphRule::Vllm.sizes(512);
    assert_eq!((vllm.len(), vllm[3], vllm[50]), (51, 8, 512));
    // SGLang on an H100 with tp 1: 5 small ones and 31 multiples of 8 from 16 to 256.
    assert_eq!(GraphRule::Sglang.sizes(256).len(), 36);
    assert_eq!(GraphRule::Trtllm.sizes(4), [1, 2, 4]);
    assert_eq!(GraphRule::Trtllm.sizes(300).last(), Some(&300));
    // `_generate_cuda_graph_batch_sizes` without padding: 1 to 31 and 32, 64, 128, then powers of two and the largest.
    let exact = GraphRule::TrtllmExact.sizes(600);
    assert_eq!((exact.len(), &exact[30..]), (37, &[31, 32, 64, 128, 256, 512, 600][..]));
    // Batches that never run are left out; no size is put in their place.
    assert_eq!(GraphRule::TrtllmExact.captured(128, 100), ((1..=32).chain([64]).collect(), 64));
    assert_eq!(GraphRule::Trtllm.captured(128, 100).1, 100);
}

#[test]
fn a_list_that_is_given_is_captured_as_it_is() {
    assert_eq!(GraphRule::Vllm.captured_of(&[64, 1, 8], 8192), (vec![1, 8, 64], 64));
    // SGLang and a padding TensorRT-LLM add all places where the list goes beyond them.
    assert_eq!(GraphRule::Sglang.captured_of(&[1, 8, 64], 32), (vec![1, 8, 32], 32));
    assert_eq!(GraphRule::Trtllm.captured_of(&[1, 8, 64], 32), (vec![1, 8, 32], 32));
    assert_eq!(GraphRule::TrtllmExact.captured_of(&[1, 8, 64], 32), (vec![1, 8], 8));
    assert_eq!(GraphRule::Vllm.captured_of(&[1, 8, 64], 32), (vec![1, 8], 8));
}

#[test]
fn the_largest_captured_batch_follows_from_places_and_budget() {
    // vLLM: `min(max_num_seqs * 2, 512)`, at most the budget, and what is written whatever the places are.
    assert_eq!(GraphRule::Vllm.most((64, 8192), false), 128);
    assert_eq!(GraphRule::Vllm.most((1024, 300), false), 300);
    assert_eq!(GraphRule::Vllm.most((64, 8192), true), 8192);
    // The others capture batches that decode, of which there are no larger ones than places.
    assert_eq!(GraphRule::Sglang.most((64, 32), false), 64);
    assert_eq!(GraphRule::Trtllm.most((64, 32), true), 32);
}

#[test]
fn a_version_takes_the_newest_preset_that_is_not_newer() {
    let engine_loop = |version: &str| named("vllm", Version::parse(version)).expect("listed").engine_loop;
    assert_eq!(engine_loop("0.12.0"), EngineLoop::Serial);
    assert_eq!(engine_loop("0.14.1"), EngineLoop::Asynchronous);
    let rows = |version: &str, degree: u32| {
        named("vllm", Version::parse(version)).expect("listed").expert_rows_of(Format::Fp8Block, degree)
    };
    assert_eq!(["0.11.0", "0.12.0", "0.14.0"].map(|version| rows(version, 4)), [None, Some(128), None]);
    assert_eq!(rows("0.12.0", 8), None);
    assert_eq!(engine_loop("0.1.0"), EngineLoop::Serial);
    assert_eq!(named("tgi", Version::NEWEST), None);
    assert_eq!(names(), ["vllm", "sglang", "trtllm"]);
}

#[test]
fn a_build_without_a_version_is_no_newer_than_its_day() {
    let days = ["2025-11-18", "2026-04-05", "2026-04-06", ""];
    assert_eq!(days.map(|day| newest_on("sglang", day) == Version(0, 5, 9)), [true, true, false, false]);
    assert_eq!(newest_on("vllm", "2025-11-18"), Version(0, 16, 0));
    assert_eq!(newest_on("trtllm", "2025-11-18"), Version::NEWEST);
}

#[test]
fn experts_are_tuned_as_far_as_an_engine_finds_what_it_has_tuned() {
    let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
    let tactic = |engine: &str, version: &str, name: &str, format: Format, (card, ranks): (&str, u32)| {
        let model = engine::model::embedded(name).expect("listed");
        named(engine, Version::parse(version)).expect("listed").expert_tactic(format, &model, &gpu(card), ranks)
    };
    let of = |engine: &str, version: &str, format: Format, card: &str| {
        tactic(engine, version, "deepseek-v3", format, (card, 1))
    };
    assert_eq!(of("sglang", "0.5.9", Format::Fp8Block, "b200"), Tactic::Untuned);
    assert_eq!(of("sglang", "0.5.10", Format::Fp8Block, "b200"), Tactic::Tuned);
    assert_eq!(of("sglang", "0.5.9", Format::Nvfp4, "b200"), Tactic::Tuned);
    assert_eq!(of("sglang", "0.5.9", Format::Fp8Block, "h200-sxm"), Tactic::Tuned);
    assert_eq!(of("vllm", "0.12.0", Format::Fp8Block, "b200"), Tactic::Tuned);
    assert_eq!(tactic("sglang", "0.5.9", "deepseek-v3", Format::Fp8Block, ("b200", 8)), Tactic::Tuned);
    // `resolve_moe_backend` of TensorRT-LLM.
    assert_eq!(of("trtllm", "1.2.0", Format::Nvfp4, "b200"), Tactic::Cutlass);
    assert_eq!(tactic("trtllm", "1.2.0", "gpt-oss-120b", Format::Mxfp4, ("b200", 1)), Tactic::Tuned);
}

/// Files of vLLM 0.11.1 and its `get_default_config`; other tiles by default came with 0.17 (vllm-project/vllm#34846).
#[test]
fn experts_in_16_bits_run_with_default_tiles_where_vllm_has_no_file_of_their_shape() {
    let of = |version: &str, format: Format, card: &str, shape: (u64, u64)| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let preset = named("vllm", Version::parse(version)).expect("listed");
        preset.with_default_tiles(Tactic::Tuned, format, &gpu, shape) == Tactic::DefaultTiles
    };
    // Two of Llama 4 Scout's sixteen experts on each of eight GPUs; Mixtral's eight, cut over two, have a file.
    assert!(of("0.11.1", Format::Bf16, "h100-sxm", (2, 8192)));
    assert!(!of("0.11.1", Format::Bf16, "h100-sxm", (8, 7168)));
    assert!(of("0.16.0", Format::Bf16, "b200", (128, 768)) && !of("0.17.0", Format::Bf16, "b200", (128, 768)));
    assert!(!of("0.21.0", Format::Bf16, "h100-sxm", (2, 8192)));
    // Files of other formats are not listed, and A100's curve has shapes of both kinds.
    assert!(!of("0.11.1", Format::Fp8Block, "h100-sxm", (2, 8192)));
    assert!(!of("0.11.1", Format::Bf16, "a100-sxm-80g", (2, 8192)));
}

#[test]
fn the_device_waits_for_batches_of_local_attention_under_vllm() {
    let waiting = |engine: &str, name: &str| {
        let model = engine::model::embedded(name).expect("listed");
        named(engine, Version::NEWEST).expect("listed").host_waiting(&model)
    };
    assert_eq!(waiting("vllm", "llama-4-scout"), hw::Seconds::new(1e-3));
    assert_eq!(waiting("vllm", "llama-3-8b"), hw::Seconds::ZERO);
    assert_eq!(waiting("sglang", "llama-4-scout"), hw::Seconds::ZERO);
}

#[test]
fn sglang_keeps_triton_for_experts_that_it_does_not_list() {
    let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
    for (version, name, format, card, is_triton) in [
        // `server_args.py` of v0.5.6: Qwen3's where `quantization` is fp8, from v0.5.8 on where there is none as well.
        ("0.5.6", "qwen3-235b-a22b", Format::Bf16, "b200", true),
        ("0.5.8", "qwen3-235b-a22b", Format::Bf16, "b200", false),
        ("0.5.6", "qwen3-235b-a22b", Format::Fp8Block, "b200", false),
        // Neither MiniMax-M2 nor GLM-4.5 is in its list, but for GLM-4.5 in 4 bits.
        ("0.5.8", "minimax-m2.5", Format::Fp8Block, "b200", true),
        ("0.5.8", "minimax-m2.5", Format::Fp8Block, "h200-sxm", false),
        ("0.5.6", "glm-4.5-air", Format::Bf16, "b200", true),
        ("0.5.10", "glm-4.5-air", Format::Nvfp4, "b200", false),
        ("0.5.9", "glm-5", Format::Fp8Block, "b200", false),
        ("0.5.9", "qwen3.5-397b-a17b", Format::Bf16, "b200", false),
    ] {
        let model = engine::model::embedded(name).expect("listed");
        let preset = named("sglang", Version::parse(version)).expect("listed");
        let found = preset.expert_tactic(format, &model, &gpu(card), 1);
        assert_eq!(found == Tactic::Triton, is_triton, "{version} {name} {format:?} {card}");
    }
}

#[test]
fn sglang_keeps_the_shared_expert_of_deepseek_among_the_routed_ones_before_blackwell() {
    let keeps = |engine: &str, name: &str, card: &str, spreads: bool| {
        let (model, gpu) = (engine::model::embedded(name).expect("listed"), hw::catalog::gpu(card).expect("listed"));
        named(engine, Version::NEWEST).expect("listed").shared_among_routed(&model, &gpu, spreads)
    };
    assert!(keeps("sglang", "deepseek-r1", "h200-sxm", false) && keeps("sglang", "deepseek-v3", "h100-sxm", false));
    assert!(!keeps("sglang", "deepseek-r1", "b200", false) && !keeps("sglang", "deepseek-r1", "h200-sxm", true));
    assert!(!keeps("vllm", "deepseek-r1", "h200-sxm", false));
    for name in ["glm-5", "kimi-k2.5", "qwen3.5-397b-a17b", "llama-3-8b"] {
        assert!(!keeps("sglang", name, "h200-sxm", false), "{name}");
    }
}

#[test]
fn prompts_run_in_graphs_as_far_as_an_engine_captures_them() {
    let model = |name: &str| engine::model::embedded(name).expect("listed");
    let tokens = |engine: &str, version: &str, name: &str, is_plain: bool| {
        let preset = named(engine, Version::parse(version)).expect("listed");
        preset.prompt_graphs.tokens(&model(name), 512, is_plain)
    };
    assert_eq!(tokens("vllm", "0.19.0", "llama-3-8b", false), 512);
    assert_eq!(tokens("trtllm", "1.2.0", "llama-3-8b", true), 0);
    assert_eq!(tokens("sglang", "0.5.9", "llama-3-8b", true), 0);
    // From 0.5.10 on by themselves, with latent attention up to 2048 tokens, and none with attention to selected keys.
    let of = |name: &str| tokens("sglang", "0.5.10", name, true);
    assert_eq!(["llama-3-8b", "deepseek-v3", "glm-5"].map(of), [u32::MAX, 2048, 0]);
    assert_eq!(tokens("sglang", "0.5.10", "llama-3-8b", false), 0);
}

#[test]
fn experts_run_through_triton_where_a_card_lacks_their_units() {
    let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
    let has = |engine: &str, format: Format, card: &str| {
        named(engine, Version::NEWEST).expect("listed").has_triton_experts(format, &gpu(card))
    };
    assert!(has("trtllm", Format::Mxfp4, "h200-sxm"));
    assert!(!has("trtllm", Format::Mxfp4, "b200") && !has("trtllm", Format::Fp8Block, "h200-sxm"));
    assert!(!has("vllm", Format::Mxfp4, "h200-sxm"));
}

#[test]
fn no_known_engine_waits_for_its_text() {
    assert!(PRESETS.iter().all(|preset| preset.detokenizer.us_per_sequence == 0.0));
    let process = |name: &str| named(name, Version::NEWEST).expect("listed").detokenizer.process;
    assert_eq!(
        names().into_iter().map(process).collect::<Vec<_>>(),
        ["the API server", "the detokenizer", "the proxy"]
    );
}

#[test]
fn vllm_has_an_api_server_for_each_rank_and_no_name_says_how_long_a_token_takes() {
    let of = |name: &str| named(name, Version::NEWEST).expect("listed").frontend([4, 32]);
    assert_eq!(["vllm", "sglang", "trtllm"].map(|name| of(name).processes.get()), [8, 1, 1]);
    assert_eq!(named("vllm", Version::NEWEST).expect("listed").frontend([4, 1]), Frontend::NONE);
}

#[test]
fn presets_name_batching_policies_and_h100_has_the_large_sizes() {
    let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
    for preset in &PRESETS {
        assert!(crate::batcher::named(preset.batcher).is_some(), "{}", preset.batcher);
    }
    let vllm = named("vllm", Version::NEWEST).expect("listed");
    let tokens = ["h100-sxm", "a100-sxm-80g", "l4"].map(|name| vllm.sizes_on(&gpu(name)).tokens_max);
    assert_eq!(tokens, [8192, 2048, 2048]);
}

#[test]
fn sglang_takes_fewer_sequences_and_waits_for_its_host_where_it_drafts() {
    // server_args.py of 0.4.6 to 0.5.12; environ.py, SGLANG_ENABLE_SPEC_V2: false in 0.5.10, true in 0.5.11.
    let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
    let of = |engine: &str, version: &str| named(engine, Version::parse(version)).expect("listed");
    let sequences = |engine: &str, ranks: u32, drafts: bool| {
        let preset = of(engine, "0.5.9");
        preset.sequences_of_rank(&preset.sizes_on(&gpu), ranks, drafts)
    };
    assert_eq!(
        [(1, true), (8, true), (8, false)].map(|(ranks, drafts)| sequences("sglang", ranks, drafts)),
        [48, 6, 4096]
    );
    assert_eq!(sequences("vllm", 1, true), sequences("vllm", 1, false));
    let loops = |version: &str| [None, Some(true), Some(false)].map(|chain| of("sglang", version).loop_beside(chain));
    let (ahead, waits) = (EngineLoop::Asynchronous, EngineLoop::Serial);
    assert_eq!(loops("0.5.10"), [ahead, waits, waits]);
    assert_eq!(loops("0.5.11"), [ahead, ahead, waits]);
    assert_eq!(of("vllm", "0.14.0").loop_beside(Some(true)), ahead);
}

#[test]
fn a_program_that_calls_vllm_has_larger_batches_than_its_server() {
    // `UsageContext.LLM_CLASS` in get_batch_defaults of vllm/engine/arg_utils.py; A100 has the small sizes whatever its memory.
    let tokens = |engine: &str, card: &str| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        named(engine, Version::NEWEST).expect("listed").offline_tokens_on(&gpu)
    };
    let cards = ["h100-sxm", "rtx-4090", "a100-sxm-80g"];
    assert_eq!(cards.map(|card| tokens("vllm", card)), [Some(16_384), Some(8192), Some(8192)]);
    assert_eq!(tokens("sglang", "h100-sxm"), None);
}

/// `supports_sink` in vLLM's flash_attn.py (version 3 alone, which is Hopper's) and flashinfer.py (kernels of TensorRT-LLM, which are those of servers of Blackwell).
#[test]
fn vllm_runs_sinks_through_triton_where_its_faster_kernels_have_none() {
    let reads_again = |engine: &str, name: &str, card: &str| {
        let (model, gpu) = (engine::model::embedded(name).expect("listed"), hw::catalog::gpu(card).expect("listed"));
        named(engine, Version::NEWEST).expect("listed").reads_keys_again(&model, &gpu)
    };
    for card in ["a100-sxm-80g", "rtx-4090", "rtx-pro-6000"] {
        assert!(reads_again("vllm", "gpt-oss-20b", card), "{card}");
        assert!(!reads_again("vllm", "llama-3-8b", card) && !reads_again("sglang", "gpt-oss-20b", card), "{card}");
    }
    assert!(["h100-sxm", "b200"].into_iter().all(|card| !reads_again("vllm", "gpt-oss-20b", card)));
}

#[test]
fn prefixes_of_states_are_kept_from_the_versions_on_that_can() {
    let keeps = |engine: &str, version: &str, model: &str| {
        let model = engine::model::embedded(model).expect("embedded");
        named(engine, Version::parse(version)).expect("listed").keeps_prefixes_of(&model)
    };
    // A gated delta net and Mamba-2.
    for model in ["qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"] {
        assert_eq!(
            ["0.9.2", "0.19.0", "0.27.1", "0.28.0", ""].map(|version| keeps("vllm", version, model)),
            [false, false, false, true, true]
        );
        assert_eq!(
            ["0.5.0", "0.5.7", "0.5.9", "0.5.14"].map(|version| keeps("sglang", version, model)),
            [false, true, true, true]
        );
        assert_eq!(["1.0.0", "1.2.0", ""].map(|version| keeps("trtllm", version, model)), [false; 3]);
    }
    for (engine, model) in
        names().into_iter().flat_map(|engine| ["llama-3-8b", "gpt-oss-120b"].map(|model| (engine, model)))
    {
        assert!(keeps(engine, "0.0.1", model), "{engine} and {model}");
    }
}

#[test]
fn latent_vectors_that_are_selected_have_scales_where_hopper_reads_them() {
    let model = engine::model::embedded("deepseek-v3.2").expect("listed");
    let of_token = |engine: &str, card: &str, kv: Dtype| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        let cluster = hw::catalog::cluster(&gpu, 1, 8);
        let latent_layout = named(engine, Version::NEWEST).expect("listed").latent_layout(&gpu, &model);
        let mut config = ReplicaConfig { latent_layout, ..ReplicaConfig::new(&model, &cluster, 8) };
        config.formats.kv = kv;
        config.kv_bytes_per_token(8)
    };
    // A key of the index takes 132 bytes in every layer.
    for engine in ["vllm", "sglang"] {
        assert_eq!(of_token(engine, "h200-sxm", Dtype::Fp8), 61 * (656 + 132), "{engine}");
        assert_eq!(of_token(engine, "b200", Dtype::Fp8), 61 * (576 + 132), "{engine}");
        assert_eq!(of_token(engine, "h200-sxm", Dtype::Bf16), 61 * (2 * 576 + 132), "{engine}");
    }
    assert_eq!(of_token("trtllm", "h200-sxm", Dtype::Fp8), 61 * (576 + 132));
}
