//! What commands of servers become, engine by engine.

use input::diagnostic::Code;

use crate::Machine;
use crate::example::{codes, has_parts, import_text, on};

/// The scenario that a command becomes.
fn scenario(text: &str) -> String {
    import_text(text, &on("h200-sxm")).scenario
}

/// Keys of the scenario that a command becomes.
fn check(text: &str, expected: &[&str], told: &[Code]) {
    let imported = import_text(text, &on("h200-sxm"));
    has_parts(&imported, expected);
    assert_eq!(codes(&imported), told, "{text}: {:#?}", imported.findings);
}

#[test]
fn sequences_of_tensorrt_llm_are_those_of_all_stages() {
    for (degrees, line) in [("", "max_sequences = 16"), ("--pp_size 4", "max_sequences = 64")] {
        let text = format!("trtllm-serve Qwen/Qwen3-32B --tp_size 2 --max_batch_size 16 {degrees}");
        assert!(scenario(&text).contains(line), "{}", scenario(&text));
    }
}

#[test]
fn a_model_that_is_named_takes_the_place_of_the_files() {
    for text in ["vllm serve meta-llama/Llama-3.1-70B-Instruct", "tensor_parallel_size: 8\nenable_attention_dp: true\n"]
    {
        let machine = Machine { model: Some("qwen3-32b".to_owned()), ..on("h200-sxm") };
        let imported = import_text(text, &machine);
        assert!(imported.scenario.contains("name = \"qwen3-32b\""), "{text}:\n{}", imported.scenario);
    }
}

#[test]
fn commands_of_vllm_say_degrees_limits_formats_and_drafts() {
    check(
        "M=meta-llama/Llama-3.1-70B-Instruct\nvllm serve $M -tp 4 --data_parallel_size=2 --max-num-seqs 128 --enforce-eager --quantization fp8",
        &[
            "name = \"llama-3.1-70b\"",
            "tp = 4",
            "nodes = 1",
            "gpus_per_node = 8",
            "max_sequences = 128",
            "graph_max = 0",
            "weights = \"fp8\"",
        ],
        &[Code::MissingFlag],
    );
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2 --enable-expert-parallel --speculative-config '{\"num_speculative_tokens\": 2}'",
        &["tp = 8", "ep = 16", "nodes = 2", "draft_tokens = 2"],
        &[Code::MissingFlag, Code::MissingFlag],
    );
    // A release with positions of its own stays named.
    check(
        "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --max-model-len 262144",
        &["name = \"Qwen/Qwen3-30B-A3B-Instruct-2507\"", "max_context = 262144"],
        &[Code::MissingFlag],
    );
    check("vllm serve llama-3-8b --scheduling-policy priority", &["scheduling = \"priority\""], &[Code::MissingFlag]);
}

#[test]
fn eagle_of_sglang_without_a_model_drafts_with_the_own_layer() {
    check(
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algorithm EAGLE --speculative-num-steps 3",
        &["draft_tokens = 3", "draft_model = \"mtp\"", "name = \"deepseek-ai/DeepSeek-R1\" "],
        &[Code::MissingFlag, Code::MissingFlag],
    );
}

#[test]
fn attention_over_data_parallel_groups_cuts_the_tensor_degree() {
    check(
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 4 --enable-dp-attention --chunked-prefill-size 4096",
        &["tp = 4 ", "ep = 16", "nodes = 2", "max_tokens = 1024"],
        &[Code::NotModelled, Code::MissingFlag],
    );
    check(
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --attn-dp-size 8 --ep-size 16 --max-running-requests 512",
        &["tp = 2 ", "ep = 16", "nodes = 2", "max_sequences = 64"],
        &[Code::MissingFlag],
    );
    check(
        "model: Qwen/Qwen3-235B-A22B\ntensor_parallel_size: 8\nenable_attention_dp: true\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n",
        &["tp = 1 ", "ep = 8", "gpus_per_node = 8", "memory_ratio = 0.8", "the server cuts the experts"],
        &[Code::NotModelled, Code::MissingFlag],
    );
    // With data-parallel attention prompts wait for a prompt on every rank, without it for tokens.
    let waits = "batch_wait_timeout_iters: 20\nbatch_wait_max_tokens_ratio: 0.9\nattention_dp_config:\n  enable_balance: true\n  timeout_iters: 60\n";
    let model = "model: Qwen/Qwen3-235B-A22B\ntensor_parallel_size: 8\nmoe_expert_parallel_size: 8\nmax_num_tokens: 16384\ndisable_overlap_scheduler: false\n";
    check(
        &format!("{model}enable_attention_dp: true\n{waits}"),
        &["batch_wait = { iterations = 60, until = \"ranks\", more_iterations = 10 }"],
        &[Code::MissingFlag],
    );
    check(
        &format!("{model}{waits}"),
        &["batch_wait = { iterations = 20, enough_tokens = 14746 }"],
        &[Code::MissingFlag],
    );
}

/// What the servers' own parsers take besides: letters behind numbers, short names, what was called otherwise before.
#[test]
fn options_are_read_as_the_servers_parsers_read_them() {
    check(
        "vllm serve llama-3-8b -q fp8 --max-model-len 32K --max-num-batched-tokens 8k --max-num-active-seqs 64 --watermark 0.05 -sc '{\"method\": \"ngram\", \"num_speculative_tokens\": 2}'",
        &[
            "weights = \"fp8\"",
            "max_context = 32768",
            "max_tokens = 8000",
            "max_sequences = 64",
            "watermark_ratio = 0.05",
            "draft_tokens = 2",
        ],
        &[Code::MissingFlag, Code::MissingFlag],
    );
    check(
        "vllm serve llama-3-8b --max-model-len auto --no-enable-lora --no-enforce-eager",
        &["tp = 1 "],
        &[Code::MissingFlag],
    );
    check(
        "python -m sglang.launch_server --model-path llama-3-8b --cuda-graph-bs-decode 1 2 48 --disable-cuda-graph-padding --scheduler-recv-interval 30 --enable-priority-scheduling",
        &["graph_sizes = [1, 2, 48]", "graph_padding = false", "recv_interval = 30", "scheduling = \"priority\""],
        &[Code::MissingFlag],
    );
    check("vllm serve llama-3-8b --long-prefill-token-threshold 512", &["chunk_tokens = 512"], &[Code::MissingFlag]);
    check("vllm serve llama-3-8b --long-prefill-token-threshold 0", &["tp = 1 "], &[Code::MissingFlag]);
    check(
        "python -m sglang.launch_server --model-path llama-3-8b --pp-size 2 --enable-dynamic-chunking",
        &["chunk_sizes = \"equal-time\""],
        &[Code::MissingFlag],
    );
    let reduces = [("enable", "fused"), ("enforce-disable", "separate")];
    for (word, key) in reduces {
        let flag = format!("--{word}-flashinfer-allreduce-fusion");
        check(
            &format!("python -m sglang.launch_server --model-path llama-3-8b --tp 2 {flag}"),
            &[&format!("all_reduce = \"{key}\"")],
            &[Code::MissingFlag],
        );
    }
    check(
        "vllm serve llama-3-8b --config serve.yaml",
        &["name = \"llama-3-8b\""],
        &[Code::MissingFlag, Code::NotModelled],
    );
}

/// Engines that are replicas share the API servers of their command; ranks of one replica have them all.
#[test]
fn who_hands_tokens_to_clients_is_read() {
    let of = |script: &str, lines: &[&str]| check(script, lines, &[Code::MissingFlag]);
    let vllm = "vllm serve llama-3-8b --stream-interval 10 --api-server-count 8";
    of(vllm, &["stream_interval = 10", "api_servers = 8"]);
    of(&format!("{vllm} -dp 4"), &["api_servers = 2"]);
    of("vllm serve deepseek-ai/DeepSeek-V3 -tp 4 -dp 4 --enable-expert-parallel -asc 4", &["api_servers = 4"]);
    of(
        "python -m sglang.launch_server --model-path llama-3-8b --stream-interval 30 --tokenizer-worker-num 6",
        &["stream_interval = 30", "api_servers = 6"],
    );
    of("trtllm-serve llama-3-8b --num_postprocess_workers 4", &["api_servers = 4"]);
    of("trtllm-serve llama-3-8b --num_postprocess_workers 0", &["tp = 1 "]);
}

#[test]
fn a_capacity_scheduler_is_read() {
    for policy in ["MAX_UTILIZATION", "GUARANTEED_NO_EVICT"] {
        let options = format!("cat >x.yaml <<END\nscheduler_config:\n  capacity_scheduler_policy: {policy}\nEND\n");
        let key = format!("capacity_policy = \"{}\"", policy.to_lowercase());
        let script = format!("{options}trtllm-serve llama-3-8b --extra_llm_api_options x.yaml");
        check(&script, &[&key], &[Code::MissingFlag]);
    }
}

#[test]
fn experts_that_lie_twice_are_read_where_a_server_balances_them() {
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2 --enable-expert-parallel --enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'",
        &["ep = 16", "redundant_experts = 32"],
        &[Code::MissingFlag],
    );
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --enable-eplb",
        &["redundant_experts = 0"],
        &[Code::MissingFlag],
    );
    let sglang = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --ep-size 16";
    check(
        &format!("{sglang} --enable-eplb --ep-num-redundant-experts 16"),
        &["redundant_experts = 16"],
        &[Code::MissingFlag],
    );
    check(&format!("{sglang} --ep-num-redundant-experts 16"), &["ep = 16"], &[Code::NotModelled, Code::MissingFlag]);
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --enable-eplb --eplb-config '{\"num_redundant_experts\": -1}'",
        &["ep = 8"],
        &[Code::WrongFlag, Code::MissingFlag],
    );
    check("vllm serve llama-3-8b --eplb-config '{}'", &["tp = 1"], &[Code::NotModelled, Code::MissingFlag]);
}

/// `--json-arg.key value` of `FlexibleArgumentParser`: one option whose keys come one by one.
#[test]
fn keys_of_json_options_may_come_one_by_one() {
    let codes = [Code::MissingFlag, Code::MissingFlag];
    for options in [
        "--speculative-config.method ngram --speculative-config.num_speculative_tokens 4",
        "--speculative_config.method=ngram --speculative_config.num_speculative_tokens=4",
        "-sc.method ngram -sc.num_speculative_tokens 4",
        // The keys that come one by one take the place of the whole.
        "-sc.method ngram -sc.num_speculative_tokens 4 --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 2}'",
    ] {
        check(&format!("vllm serve llama-3-8b {options}"), &["draft_tokens = 4"], &codes);
    }
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --enable-eplb --eplb-config.num_redundant_experts 32",
        &["redundant_experts = 32"],
        &codes[1..],
    );
    check(
        "vllm serve llama-3-8b --speculative-config.method ngram",
        &["tp = 1"],
        &[Code::WrongFlag, Code::MissingFlag],
    );
    check(
        "vllm serve llama-3-8b --speculative-config.num_speculative_tokens $N",
        &["tp = 1"],
        &[Code::UnknownValue, Code::MissingFlag],
    );
    check(
        "vllm serve llama-3-8b --speculative-confg.method ngram",
        &["tp = 1"],
        &[Code::MissingFlag, Code::UnknownFlag],
    );
}

#[test]
fn the_image_of_a_container_says_the_version() {
    let of = |text: &str, parts: &[&str]| check(text, parts, &[Code::MissingFlag]);
    of("docker run --gpus all vllm/vllm-openai:v0.9.2 --model llama-3-8b", &["version = \"0.9.2\""]);
    of(
        "docker run -p 8000:8000 registry.example/vllm/vllm-openai:v0.10.1rc1 vllm serve llama-3-8b",
        &["version = \"0.10.1\""],
    );
    let sglang =
        "docker run --gpus all lmsysorg/sglang:v0.5.5-cu129 python3 -m sglang.launch_server --model-path llama-3-8b";
    of(sglang, &["name = \"sglang\"", "version = \"0.5.5\""]);
    for tag in [":latest", ":nightly-0123", ""] {
        of(&format!("docker run vllm/vllm-openai{tag} --model llama-3-8b"), &["defaults of the newest"]);
    }
}

#[test]
fn what_is_wrong_or_left_out_is_named() {
    check(
        "vllm serve llama-3-8b --max-num-sequences 4 --decode-context-parallel-size 2 -tp x",
        &["tp = 1"],
        &[Code::WrongFlag, Code::MissingFlag, Code::UnknownFlag, Code::NotModelled],
    );
    check("vllm serve somebody/unheard-of-model", &[], &[Code::UnknownModel, Code::MissingFlag]);
}

/// vLLM cuts experts over data-parallel ranks without a flag; SGLang and TensorRT-LLM may cut them inside of groups.
#[test]
fn experts_that_are_cut_are_taken_whole_and_warned_of() {
    let cut = &[Code::NotModelled, Code::MissingFlag];
    for text in [
        "vllm serve deepseek-ai/DeepSeek-V3 -dp 8",
        "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 4 -tp 2",
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --ep 2",
        "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 4",
    ] {
        check(text, &["ep = 8 ", "the server cuts the experts over them", "nodes = 1"], cut);
    }
    let latency = "model: deepseek-ai/DeepSeek-R1\ntensor_parallel_size: 8\nmoe_expert_parallel_size: 2\n";
    check(latency, &["ep = 8 ", "tp = 8 "], cut);
    // A model without experts has replicas, whatever the flag.
    for flag in ["", "--enable-expert-parallel"] {
        let text = format!("vllm serve Qwen/Qwen3-32B -dp 2 {flag}");
        check(&text, &["tp = 1 ", "gpus_per_node = 2"], &[Code::MissingFlag]);
    }
}

#[test]
fn chunks_of_tensorrt_llm_are_cut_by_the_tokens_of_an_iteration() {
    let text = "model: llama-3-8b\ntensor_parallel_size: 1\nmax_num_tokens: 2048\nenable_chunked_prefill: true\n";
    check(text, &["run = [\"sarathi\"]", "max_tokens = 2048"], &[Code::MissingFlag]);
    let waits = format!("{text}batch_wait_timeout_iters: 20\nbatch_wait_max_tokens_ratio: 0.9\n");
    check(&waits, &["run = [\"sarathi\"]"], &[Code::NotModelled, Code::MissingFlag]);
    let whole = text.replace("true", "false");
    check(&whole, &["run = [\"trtllm\"]"], &[Code::MissingFlag]);
}

#[test]
fn what_sends_tokens_of_vllm_to_experts_is_read() {
    let server = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 --enable-expert-parallel";
    for (backend, word) in [("deepep_high_throughput", "deepep-normal"), ("deepep_low_latency", "deepep-low-latency")] {
        let keys = [&*format!("dispatcher = \"{word}\"")];
        check(&format!("{server} --all2all-backend {backend}"), &keys, &[Code::MissingFlag]);
        let halves = [keys[0], "two_batch_overlap = true"];
        check(&format!("{server} --all2all-backend {backend} --enable-dbo"), &halves, &[Code::MissingFlag]);
    }
    check(&format!("{server} --enable-dbo"), &["ep = 16 "], &[Code::NotModelled, Code::MissingFlag]);
    check(&format!("{server} --all2all-backend allgather_reducescatter"), &["ep = 16 "], &[Code::MissingFlag]);
    let named = &[Code::NotModelled, Code::MissingFlag];
    check(&format!("{server} --all2all-backend pplx"), &["ep = 16 "], named);
    // A tensor group has all tokens on every GPU.
    let group =
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --all2all-backend deepep_low_latency";
    check(group, &["ep = 8 "], &[Code::NoEffect, Code::MissingFlag]);
}

/// Exchanges that spread experts over the tensor group do so whatever degree is asked for; DeepEP's kernels for prompts stand in no graph.
#[test]
fn exchanges_of_sglang_spread_experts_over_the_tensor_group() {
    let server = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8";
    let named = &[Code::NotModelled, Code::MissingFlag];
    let normal = &["ep = 8 ", "graph_max = 0 "];
    for options in ["", "--ep-size 2"] {
        check(&format!("{server} {options} --moe-a2a-backend deepep --deepep-mode normal"), normal, named);
    }
    check(&format!("{server} --enable-deepep-moe --deepep-mode normal"), normal, named);
    // Groups of attention send tokens to each other's experts.
    let groups = format!("{server} --dp-size 8 --enable-dp-attention");
    for (options, word) in [
        ("--moe-a2a-backend deepep --deepep-mode normal", "deepep-normal"),
        ("--moe-a2a-backend deepep --deepep-mode low_latency", "deepep-low-latency"),
        ("--enable-deepep-moe", "deepep"),
    ] {
        let key = format!("dispatcher = \"{word}\"");
        check(&format!("{groups} {options}"), &[&key], &[Code::MissingFlag]);
        let halves = &[&*key, "two_batch_overlap = true"];
        check(&format!("{groups} {options} --enable-two-batch-overlap"), halves, &[Code::MissingFlag]);
    }
    check(
        &format!("{groups} --ep-size 8 --enable-two-batch-overlap"),
        &["ep = 8 "],
        &[Code::NotModelled, Code::MissingFlag],
    );
    for exchange in ["mooncake", "nixl", "deepep_v2", "flashinfer"] {
        let found = scenario(&format!("{server} --moe-a2a-backend {exchange} --deepep-mode normal"));
        assert!(found.contains("ep = 8 ") && !found.contains("graph_max"), "{exchange}: {found}");
    }
    for options in ["--moe-a2a-backend deepep --deepep-mode auto", "--enable-ep-moe", "--enable-waterfill"] {
        let found = scenario(&format!("{server} {options}"));
        assert!(found.contains("ep = 8 ") && !found.contains("graph_max"), "{options}: {found}");
    }
    for options in ["--moe-a2a-backend none --deepep-mode normal", "--deepep-mode normal"] {
        let found = scenario(&format!("{server} {options}"));
        assert!(!found.contains("ep = ") && !found.contains("graph_max"), "{options}: {found}");
    }
    // A model without experts has none to spread.
    let dense = "python -m sglang.launch_server --model-path llama-3-8b --tp 2 --moe-a2a-backend deepep";
    assert!(!scenario(dense).contains("ep = "));
}

#[test]
fn memory_of_layers_with_a_window_is_named_where_it_changes() {
    check(
        "vllm serve openai/gpt-oss-120b --disable-hybrid-kv-cache-manager",
        &[],
        &[Code::MissingFlag, Code::NotModelled],
    );
    check("vllm serve openai/gpt-oss-120b --no-disable-hybrid-kv-cache-manager", &[], &[Code::MissingFlag]);
}

/// The file of options overwrites the command, and of several names the last given counts.
#[test]
fn the_last_given_name_of_an_option_counts() {
    let file = "tensor_parallel_size: 8\nmax_batch_size: 64\nkv_cache_config:\n  free_gpu_memory_fraction: 0.5\n";
    let server = "trtllm-serve Qwen/Qwen3-32B --tp_size 2 --max_batch_size 16 --kv_cache_free_gpu_memory_fraction 0.9";
    let lines = &["tp = 8 ", "max_sequences = 64 ", "memory_ratio = 0.5 "];
    check(&format!("cat >o.yaml <<END\n{file}END\n{server} --config o.yaml\n"), lines, &[Code::MissingFlag]);
    let experts = "moe_expert_parallel_size: 8\n";
    check(
        &format!(
            "cat >o.yaml <<END\n{experts}END\ntrtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 4 --config o.yaml\n"
        ),
        &["ep = 8 "],
        &[Code::MissingFlag],
    );
    check("vllm serve llama-3-8b -tp 2 --tensor-parallel-size 4", &["tp = 4 "], &[Code::MissingFlag]);
    // Two limits are no two names: the narrower counts.
    check(
        "vllm serve llama-3-8b --max-num-active-seqs 8 --max-num-seqs 64",
        &["max_sequences = 8 "],
        &[Code::MissingFlag],
    );
}

#[test]
fn a_server_over_several_nodes_has_its_share_of_gpus_on_each() {
    for command in ["vllm serve llama-3-8b -tp 8", "python -m sglang.launch_server --model-path llama-3-8b --tp 8"] {
        check(&format!("{command} --nnodes 2"), &["nodes = 2 ", "gpus_per_node = 4"], &[Code::MissingFlag]);
        check(&format!("{command} --nnodes 1"), &["nodes = 1 ", "gpus_per_node = 8"], &[Code::MissingFlag]);
    }
    let trtllm = "trtllm-serve llama-3-8b --tp_size 8 --gpus_per_node 4";
    check(trtllm, &["nodes = 2 ", "gpus_per_node = 4"], &[Code::MissingFlag]);
}

#[test]
fn files_of_options_are_read_however_a_script_writes_them() {
    for line in ["cat << EOF > o.yaml", "tee o.yaml << EOF", "cat > \"$CFG\" << EOF", "cat <<EOF | tee \"$CFG\""] {
        let text = format!(
            "CFG=o.yaml\nTP=4\n{line}\ntensor_parallel_size: $TP\nEOF\ntrtllm-serve Qwen/Qwen3-32B --extra_llm_api_options $CFG\n"
        );
        check(&text, &["tp = 4 "], &[Code::MissingFlag]);
    }
}

#[test]
fn the_format_of_keys_and_values_has_two_options_in_tensorrt_llm() {
    let of = |lines: &str, part: &str, codes: &[Code]| {
        check(&format!("model: Qwen/Qwen3-32B\ntensor_parallel_size: 2\nmax_batch_size: 8\n{lines}"), &[part], codes);
    };
    let algorithm = "quant_config:\n  kv_cache_quant_algo: FP8\n";
    of(algorithm, "weights = { kv = \"fp8\" }", &[Code::MissingFlag]);
    of(&format!("{algorithm}kv_cache_config:\n  dtype: auto\n"), "{ kv = \"fp8\" }", &[Code::MissingFlag]);
    of(&format!("{algorithm}kv_cache_config:\n  dtype: nvfp4\n"), "{ kv = \"nvfp4\" }", &[Code::MissingFlag]);
    of(&algorithm.replace("FP8", "MADE_UP"), "tp = 2 ", &[Code::NotModelled, Code::MissingFlag]);
}

#[test]
fn a_tree_of_drafts_has_its_branches_and_what_is_verified() {
    check(
        "python3 -m sglang.launch_server --model-path llama-3-8b --speculative-algorithm EAGLE3 --speculative-draft-model-path x/y \
         --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 32",
        &["draft_tokens = 5,", "draft_model = \"eagle3\", draft_branches = 8, verified_tokens = 32"],
        &[Code::MissingFlag, Code::MissingFlag],
    );
}

#[test]
fn formats_of_eight_bits_are_whole_numbers_or_not() {
    let of = |engine: &str, word: &str, format: &str| {
        check(&format!("{engine} --quantization {word}"), &[format], &[Code::MissingFlag]);
    };
    let sglang = "python -m sglang.launch_server --model-path llama-3-8b";
    of(sglang, "w8a8_int8", "weights = \"int8\"");
    of(sglang, "w8a8_fp8", "weights = \"fp8\"");
    of(sglang, "modelopt_fp8", "weights = \"fp8\"");
    of("vllm serve llama-3-8b", "mxfp8", "weights = \"mxfp8\"");
    check(&format!("{sglang} --quantization w4afp8"), &[], &[Code::NotModelled, Code::MissingFlag]);
}

#[test]
fn beginnings_that_one_option_alone_has_are_that_option() {
    check("vllm serve llama-3-8b --tensor-parallel 4", &["tp = 4"], &[Code::MissingFlag]);
    check(
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algo NEXTN --mem-frac 0.8",
        &["draft_model = \"mtp\"", "memory_ratio = 0.8"],
        &[Code::MissingFlag, Code::MissingFlag],
    );
    // Several begin so.
    check("vllm serve llama-3-8b --max-num 4", &[], &[Code::MissingFlag, Code::UnknownFlag]);
}

#[test]
fn graphs_and_levels_of_compilation_are_read_in_any_form() {
    check(
        "cat >o.yaml <<'END'\ncuda_graph_config:\n  enable_padding: true\n  batch_sizes: [1, 4]\nEND\ntrtllm-serve llama-3-8b --config o.yaml",
        &["graph_sizes = [1, 4]", "graph_padding = true"],
        &[Code::MissingFlag],
    );
    for (option, key) in [
        ("-cc.max_cudagraph_capture_size=64", "graph_max = 64"),
        ("--compilation-config '{\"cudagraph_capture_sizes\":[1,2,64]}'", "graph_sizes = [1, 2, 64]"),
        ("--cudagraph-capture-sizes 1 2 64", "graph_sizes = [1, 2, 64]"),
        ("--cuda-graph-sizes 64", "graph_max = 64"),
        ("--cuda-graph-sizes 1 64", "graph_sizes = [1, 64]"),
    ] {
        let text = format!("vllm serve llama-3-8b {option}");
        let found = import_text(&text, &on("h200-sxm"));
        assert!(found.scenario.contains(key), "{text}: {}", found.scenario);
        assert!(found.findings.iter().all(|one| one.code != Code::UnknownFlag), "{text}: {:?}", found.findings);
    }
    check(
        "vllm serve llama-3-8b -cc.max_cudagraph_capture_size=64 -O3",
        &["graph_max = 64"],
        &[Code::MissingFlag, Code::NotModelled],
    );
    check(
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --enable-eplb --eplb-config '{\"num_redundant_experts\": \"32\"}'",
        &["redundant_experts = 32"],
        &[Code::MissingFlag],
    );
}

/// Engines do not start where heads of attention are not shared evenly.
#[test]
fn a_tensor_degree_that_does_not_divide_the_heads_is_refused_with_those_that_do() {
    for (text, heads) in [
        ("vllm serve llama-3-8b -tp 3", "32 attention heads"),
        ("python -m sglang.launch_server --model-path llama-3-8b --tp 3", "32 attention heads"),
        ("trtllm-serve llama-3-8b --tp_size 3", "32 attention heads"),
        ("vllm serve Qwen/Qwen2.5-7B-Instruct -tp 7", "4 heads of keys and values"),
    ] {
        let found = import_text(text, &on("h200-sxm")).findings;
        let wrong =
            found.iter().find(|one| one.code == Code::UnevenDegree).unwrap_or_else(|| panic!("{text}: {found:?}"));
        assert!(wrong.what.contains(heads) && wrong.at.is_some(), "{wrong:?}");
        assert!(wrong.help.as_ref().is_some_and(|help| help.contains("1, 2, 4")), "{wrong:?}");
    }
    // Groups of attention have a part of the tensor ranks each.
    let groups = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --dp 16 --enable-dp-attention --ep 16";
    check(groups, &["ep = 16"], &[Code::MissingFlag]);
}

#[test]
fn options_of_a_file_beside_a_command_give_way_to_those_of_the_command() {
    let text = "vllm serve Qwen/Qwen3-32B --config ./conf/vllm.yaml --max-num-seqs 32\n";
    assert_eq!(crate::named_beside(text), ["vllm.yaml", "Qwen/Qwen3-32B/config.json"]);
    let file = "tensor-parallel-size: 4\nmax-num-seqs: 64\nenable-prefix-caching: false\n";
    let files = vec![("vllm.yaml".to_owned(), file.to_owned())];
    let machine = Machine { files, ..on("h200-sxm") };
    let found = import_text(text, &machine);
    has_parts(&found, &["tp = 4 ", "max_sequences = 32"]);
    check(text, &["max_sequences = 32"], &[Code::MissingFlag, Code::NotModelled]);
}

/// Engines do not start where a part of a block-scaled feed-forward ends inside of a block.
#[test]
fn a_tensor_degree_that_ends_inside_of_a_block_is_refused_with_what_lays_experts_whole() {
    let machine = on("h200-sxm");
    let of = |text: &str| {
        let found = import_text(text, &machine).findings;
        found.into_iter().find(|one| one.code == Code::UnevenDegree)
    };
    let sglang = "python -m sglang.launch_server --model-path";
    let vllm = "docker run vllm/vllm-openai:v0.24.0 --model";
    for (text, width, help) in [
        (format!("{vllm} Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 8"), "= 192", "--enable-expert-parallel"),
        (format!("{vllm} Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 -tp 8"), "= 320", "allowed are 1, 2, 4"),
        (format!("{vllm} Qwen/Qwen3-30B-A3B-FP8 -tp 4"), "= 192", "allowed are 1, 2"),
        (format!("{vllm} MiniMaxAI/MiniMax-M2 -tp 8"), "= 192", "vLLM 0.29.0 and newer"),
        (format!("{vllm} Qwen/Qwen3-235B-A22B-FP8 -dp 8"), "= 192", "--enable-expert-parallel"),
        (format!("{sglang} deepseek-ai/DeepSeek-R1 --tp 32"), "= 64", "allowed are 1, 2, 4, 8, 16"),
        (format!("{sglang} deepseek-ai/DeepSeek-R1 --tp 32 --ep 32"), "= 576", "allowed are"),
        (format!("{sglang} Qwen/Qwen3-235B-A22B-FP8 --tp 8"), "= 192", "--ep-size"),
    ] {
        let wrong = of(&text).unwrap_or_else(|| panic!("{text}"));
        assert!(wrong.what.contains(width) && wrong.at.is_some(), "{text}: {wrong:?}");
        assert!(wrong.help.as_ref().is_some_and(|said| said.contains(help)), "{text}: {wrong:?}");
    }
    for text in [
        "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel".to_owned(),
        "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 4".to_owned(),
        "docker run vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 8".to_owned(),
        "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8".to_owned(),
        "trtllm-serve Qwen/Qwen3-235B-A22B-FP8 --tp_size 8".to_owned(),
        format!("{sglang} Qwen/Qwen3-235B-A22B-FP8 --tp 8 --ep 4"),
        format!("{sglang} deepseek-ai/DeepSeek-R1 --tp 32 --moe-a2a-backend deepep --moe-dense-tp-size 1"),
    ] {
        assert_eq!(of(&text), None, "{text}");
    }
}

#[test]
fn the_model_behind_options_is_read() {
    const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
    for (options, part) in [
        ("--enforce-eager", "graph_max = 0"),
        ("--port 8000", "tp = 1 "),
        ("--tensor-parallel-size=2", "tp = 2 "),
        ("--tensor-parallel-size 2 --trust-remote-code", "tp = 2 "),
        ("--no-enable-prefix-caching --max-num-seqs 64", "max_sequences = 64"),
    ] {
        let text = format!("vllm serve {options} {MODEL}");
        check(&text, &["name = \"llama-3.1-8b\"", part], &[Code::MissingFlag]);
        check(
            &format!("vllm serve {options} {MODEL} --max-model-len 4096"),
            &["max_context = 4096", part],
            &[Code::MissingFlag],
        );
    }
    for options in ["--tp_size 2", "--tp_size=2", "--tp_size 2 --trust_remote_code"] {
        check(&format!("trtllm-serve serve {options} {MODEL}"), &["llama-3.1-8b", "tp = 2 "], &[Code::MissingFlag]);
    }
}
