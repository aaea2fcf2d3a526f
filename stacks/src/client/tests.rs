//! What clients ask for: published commands and the rules of their sources.

use input::diagnostic::{Code, Finding, Severity};

use crate::example::{codes, h100, has_parts, import_text};
use crate::{Imported, recognise};

const SERVER: &str = "vllm serve meta-llama/Llama-3.1-8B-Instruct &\n";

/// What a script becomes where the command line states more.
fn found(text: &str, set: &[&str]) -> Imported {
    import_text(text, &h100(set))
}

/// Keys of `[trace]` without remarks, with spaces between them.
fn trace(found: &Imported) -> String {
    let section = found.scenario.split("[trace]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.split(" #").next().unwrap_or_default().trim()).collect::<Vec<_>>().join("; ")
}

/// Codes of what is said.
fn check(text: &str, set: &[&str], expected: &str, said: &[Code]) {
    let found = found(text, set);
    assert_eq!(trace(&found), expected, "{text}: {:#?}", found.findings);
    assert_eq!(codes(&found), said, "{text}: {:#?}", found.findings);
}

/// A client behind a server of vLLM.
fn client(command: &str, expected: &str, said: &[Code]) {
    check(&format!("{SERVER}{command}\n"), &[], expected, said);
}

#[test]
fn a_published_command_of_each_client_is_its_requests() {
    // vLLM, docs/benchmarking/cli.md: the maximum request concurrency beside a named data set.
    client(
        "vllm bench serve --backend vllm --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --random-input-len 1024 --random-output-len 128 \
         --num-prompts 1000 --request-rate inf --max-concurrency 64 --num-warmups 10",
        "prompt_tokens = 1024; output_tokens = 128; concurrency = 64; requests = 1010; warm_up_requests = 10",
        &[],
    );
    // SGLang, docs/developer_guide/bench_serving.md: lengths from half to the whole, and a rate.
    client(
        "python3 -m sglang.bench_serving --backend sglang --host 127.0.0.1 --port 30000 --dataset-name random --random-input-len 1024 --random-output-len 1024 \
         --random-range-ratio 0.5 --num-prompts 2000 --request-rate 100",
        "prompt_tokens = [512, 1024]; output_tokens = [512, 1024]; arrivals = \"poisson\"; rate_per_s = 100.0; requests = 2000",
        &[],
    );
    // TensorRT-LLM, docs/source/commands/trtllm-serve: its own client.
    client(
        "python -m tensorrt_llm.serve.scripts.benchmark_serving --model m --backend openai-chat --dataset-name random --random-input-len 8192 \
         --random-output-len 1024 --random-prefix-len 0 --random-ids --num-prompts 1280 --max-concurrency 256 --ignore-eos --tokenize-on-client",
        "prompt_tokens = 8192; output_tokens = 1024; concurrency = 256; requests = 1280",
        &[],
    );
    // InferenceX, benchmarks/benchmark_lib.sh, which its scripts call.
    client(
        "ISL=1024\nOSL=1024\nCONC=32\nrun_benchmark_serving --model \"$MODEL\" --port \"$PORT\" --backend vllm --input-len \"$ISL\" --output-len \"$OSL\" \
         --random-range-ratio 0.8 --num-prompts \"$((CONC * 10))\" --max-concurrency \"$CONC\" --result-filename \"$RESULT_FILENAME\" --result-dir /workspace/",
        "prompt_tokens = [819, 1024]; output_tokens = [819, 1024]; concurrency = 32; requests = 384; warm_up_requests = 64",
        &[],
    );
    // AIPerf, README.
    client(
        "aiperf profile --model Qwen/Qwen3-0.6B --streaming --endpoint-type chat --url http://localhost:8000 --synthetic-input-tokens-mean 100 \
         --output-tokens-mean 50 --concurrency 10 --request-count 60",
        "prompt_tokens = 100; output_tokens = 50; concurrency = 10; requests = 60",
        &[],
    );
    // GenAI-Perf, its tutorial; 0.0.16 sends twice the requests in flight, at least ten.
    client(
        "genai-perf profile -m gpt2 --synthetic-input-tokens-mean 200 --output-tokens-mean 100 --streaming --concurrency 16 --tokenizer t",
        "prompt_tokens = 200; output_tokens = 100; concurrency = 16; requests = 32",
        &[],
    );
    // GuideLLM, README, with a rate of its own.
    client(
        "guidellm benchmark --target http://localhost:8000 --rate-type constant --rate 2 --max-seconds 30 --data \"prompt_tokens=256,output_tokens=128\"",
        "prompt_tokens = 256; output_tokens = 128; arrivals = \"gamma\"; rate_per_s = 2.0; cv = 0.01; requests = 60",
        &[],
    );
    client(
        "guidellm run --backend kind=openai_http,target=http://localhost:8000 --profile kind=concurrent,streams=8 --constraint kind=max_requests,value=40 \
         --data kind=synthetic_text,prompt_tokens=256,output_tokens=128,output_tokens_min=64,output_tokens_max=192",
        "prompt_tokens = 256; output_tokens = [64, 192]; concurrency = 8; requests = 40",
        &[],
    );
}

#[test]
fn defaults_are_those_of_each_client() {
    let together = "arrivals = \"together\"";
    let sharegpt = format!("lengths = \"sharegpt\"; {together}; requests = 1000");
    client("vllm bench serve", &format!("prompt_tokens = 1024; output_tokens = 128; {together}; requests = 1000"), &[]);
    client("python benchmark_serving.py", &sharegpt, &[Code::NotModelled]);
    client("python -m sglang.bench_serving", &sharegpt, &[Code::NotModelled]);
    // Without a ratio SGLang draws from 1.
    client(
        "python -m sglang.bench_serving --dataset-name random",
        &format!("prompt_tokens = [1, 1024]; output_tokens = [1, 1024]; {together}; requests = 1000"),
        &[],
    );
    // AIPerf has one request in flight, prompts of 550 tokens, and answers that the model ends.
    client(
        "aiperf profile -m x",
        "prompt_tokens = 550; output_tokens = 256; concurrency = 1; requests = 10",
        &[Code::MissingFlag],
    );
    client(
        "aiperf profile -m x --osl 8 --concurrency 64 --num-requests 256",
        "prompt_tokens = 550; output_tokens = 8; concurrency = 64; dataset_prompts = 100; requests = 256",
        &[],
    );
    client(
        "genai-perf profile -m x --osl 10 --request-rate 2",
        "prompt_tokens = 550; output_tokens = 10; arrivals = \"gamma\"; rate_per_s = 2.0; cv = 0.01; requests = 10",
        &[],
    );
}

#[test]
fn gaps_and_caps_are_those_of_the_options() {
    let lengths = "prompt_tokens = 1024; output_tokens = 128";
    for (options, expected, said) in [
        ("--request-rate 4 --burstiness 4", "arrivals = \"gamma\"; rate_per_s = 4.0; cv = 0.5", vec![]),
        ("--request-rate 4 --burstiness 1", "arrivals = \"poisson\"; rate_per_s = 4.0", vec![]),
        ("--request-rate 4 --max-concurrency 8", "arrivals = \"poisson\"; rate_per_s = 4.0", vec![Code::NotModelled]),
        ("--request-rate inf --max-concurrency 8", "concurrency = 8", vec![]),
        ("--request-rate INF", "arrivals = \"together\"", vec![]),
        // Before a rate a warm-up changes nothing: a server of the simulator is warm.
        ("--request-rate 4 --num-warmups 9", "arrivals = \"poisson\"; rate_per_s = 4.0", vec![]),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 4",
            "arrivals = \"poisson\"; rate_per_s = 2.5",
            vec![Code::NotModelled],
        ),
        ("--max-concurrency 8,16", "concurrency = 8", vec![Code::NotModelled]),
        ("--request-rate 4 --no-such-option 3", "arrivals = \"poisson\"; rate_per_s = 4.0", vec![Code::UnknownFlag]),
    ] {
        client(&format!("vllm bench serve {options}"), &format!("{lengths}; {expected}; requests = 1000"), &said);
    }
    client(
        "aiperf profile --osl 10 --request-rate 5 --arrival-pattern constant --benchmark-duration 20",
        "prompt_tokens = 550; output_tokens = 10; arrivals = \"gamma\"; rate_per_s = 5.0; cv = 0.01; requests = 100",
        &[],
    );
}

#[test]
fn lengths_are_those_of_the_data_sets() {
    let rest = "arrivals = \"together\"; requests = 1000";
    for (options, expected, said) in [
        (
            "--input-len 100 --output-len 10 --random-range-ratio 0.2",
            "prompt_tokens = [80, 120]; output_tokens = [8, 12]",
            vec![],
        ),
        (
            "--random-range-ratio '{\"input\": 0.5, \"output\": 0.0}'",
            "prompt_tokens = [512, 1536]; output_tokens = 128",
            vec![],
        ),
        (
            "--random-prefix-len 512",
            "prompt_tokens = 1024; output_tokens = 128; sessions = { turns = 1, system_tokens = 512 }",
            vec![],
        ),
        (
            "--dataset-name prefix_repetition --prefix-repetition-num-prefixes 1",
            "prompt_tokens = 256; output_tokens = 128; sessions = { turns = 1, system_tokens = 256 }",
            vec![],
        ),
        ("--dataset-name prefix_repetition", "prompt_tokens = 512; output_tokens = 128", vec![Code::NotModelled]),
        ("--dataset-name hf --dataset-path x/y", "lengths = \"azure-conv\"", vec![Code::NotModelled]),
        (
            "--dataset-name random-mm --random-mm-bucket-config '{(256, 512, 1): 1.0}'",
            "prompt_tokens = 1024; output_tokens = 128; images = { per_request = 1, width = 512, height = 256 }",
            vec![],
        ),
        ("--dataset-name sharegpt --output-len 10", "lengths = \"sharegpt\"", vec![Code::NotModelled; 2]),
        ("--dataset-name random-mm", "prompt_tokens = 1024; output_tokens = 128", vec![Code::NotModelled]),
    ] {
        client(&format!("vllm bench serve {options}"), &format!("{expected}; {rest}"), &said);
    }
    client(
        "python -m sglang.bench_serving --dataset-name image --image-count 2 --image-resolution 720p --random-range-ratio 1",
        &format!(
            "prompt_tokens = 1024; output_tokens = 1024; images = {{ per_request = 2, width = 1280, height = 720 }}; {rest}"
        ),
        &[],
    );
    client(
        "python -m sglang.bench_serving --dataset-name generated-shared-prefix --gsp-num-groups 1 --gsp-prompts-per-group 64",
        "prompt_tokens = 128; output_tokens = 256; sessions = { turns = 1, system_tokens = 2048 }; arrivals = \"together\"; requests = 64",
        &[],
    );
    client(
        "guidellm benchmark --rate-type concurrent --rate 8 --rate 16 --max-requests 9 --data '{\"prompt_tokens\": 8, \"output_tokens\": 4}'",
        "prompt_tokens = 8; output_tokens = 4; concurrency = 8; requests = 9",
        &[Code::NotModelled],
    );
    client(
        "vllm bench serve --random-prefix-len 8 --num-warmups 2 --max-concurrency 4",
        "prompt_tokens = 1024; output_tokens = 128; sessions = { turns = 1, system_tokens = 8 }; concurrency = 4; requests = 1000",
        &[Code::NotModelled],
    );
    // A bell is drawn evenly, with the same deviation.
    client(
        "aiperf profile --isl 100 --isl-stddev 10 --osl 10 --concurrency 4",
        "prompt_tokens = [83, 117]; output_tokens = 10; concurrency = 4; requests = 10",
        &[Code::NotModelled],
    );
}

#[test]
fn the_range_ratio_of_a_file_is_by_where_it_lies() {
    for (file, ratio, expected, said) in [
        ("benchmarks/benchmark_serving.py", "1.0", "1024", vec![]),
        ("benchmarks/benchmark_serving.py", "0.5", "[512, 1536]", vec![Code::NotModelled]),
        ("utils/bench_serving/benchmark_serving.py", "0.5", "[512, 1024]", vec![]),
        ("tensorrt_llm/serve/scripts/benchmark_serving.py", "0.5", "[512, 1536]", vec![]),
    ] {
        let text = format!("{SERVER}python3 {file} --dataset-name random --random-range-ratio {ratio}");
        let found = found(&text, &[]);
        assert!(trace(&found).starts_with(&format!("prompt_tokens = {expected};")), "{text}: {}", trace(&found));
        assert_eq!(codes(&found), said, "{text}");
    }
}

#[test]
fn what_the_command_line_states_is_not_read() {
    let open = "vllm bench serve --random-input-len $ISL --random-output-len 16 --max-concurrency $C --num-prompts $N";
    let text = format!("{SERVER}{open}");
    let held = ["trace.prompt_tokens=64", "trace.concurrency=4", "trace.requests=32"];
    check(&text, &held, "output_tokens = 16", &[]);
    check(&text, &["trace.file=mine.csv"], "", &[]);
    let rate = ["trace.lengths=azure-code", "trace.rate_per_s=4", "trace.requests=32"];
    check(&text, &rate, "arrivals = \"poisson\"", &[]);
    let together = ["trace.prompt_tokens=64", "trace.arrivals=\"together\"", "trace.requests=8"];
    let found = found(&text, &together);
    assert!(!trace(&found).contains("concurrency"), "{found:?}");
    // Known words of the client fill what is left open.
    let known = format!("{SERVER}vllm bench serve --request-rate 8 --max-concurrency 2 --num-warmups 3");
    check(
        &known,
        &["trace.arrivals=\"poisson\""],
        "prompt_tokens = 1024; output_tokens = 128; rate_per_s = 8.0; requests = 1000",
        &[],
    );
    check(
        &known,
        &["trace.rate_per_s=2"],
        "prompt_tokens = 1024; output_tokens = 128; arrivals = \"poisson\"; requests = 1000",
        &[],
    );
    check(
        &known,
        &["trace.concurrency=2"],
        "prompt_tokens = 1024; output_tokens = 128; requests = 1003; warm_up_requests = 3",
        &[],
    );
}

#[test]
fn the_first_of_several_clients_is_read_and_the_others_are_named() {
    let text = format!(
        "{SERVER}for C in 1 4 16; do\n  vllm bench serve --max-concurrency $C --result-filename $C.json\ndone\nvllm bench serve --request-rate 4\n"
    );
    let found = found(&text, &[]);
    assert!(trace(&found).contains("concurrency = 1;"), "{}", trace(&found));
    let said: Vec<&Finding> = found.findings.iter().collect();
    let [of_loop, others] = said[..] else { panic!("{said:#?}") };
    assert_eq!((of_loop.code, others.code), (Code::UnknownValue, Code::NotModelled), "{said:#?}");
    assert!(others.help.as_deref().is_some_and(|help| help.contains("line 5")), "{others:?}");
}

#[test]
fn values_that_a_shell_alone_knows_are_errors_where_a_key_needs_them() {
    let text = format!("{SERVER}vllm bench serve --model $MODEL --port $PORT --random-input-len $1 --result-dir $DIR");
    let found = found(&text, &[]);
    let errors: Vec<&Finding> = found.findings.iter().filter(|one| one.severity == Severity::Error).collect();
    let [only] = errors[..] else { panic!("{:#?}", found.findings) };
    assert_eq!(only.code, Code::UnknownValue);
    assert!(only.what.contains("random-input-len"), "{only:?}");
}

#[test]
fn offline_benchmarks_are_a_server_and_its_requests() {
    let scenario = |text: &str, parts: &[&str]| {
        let found = found(text, &[]);
        has_parts(&found, parts);
    };
    // vLLM, docs/benchmarking/cli.md.
    check(
        "vllm bench throughput --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --input-len 512 --output-len 64 --num-prompts 64 -tp 2 --n 1",
        &[],
        "prompt_tokens = 512; output_tokens = 64; arrivals = \"together\"; requests = 64; sampling = { temperature = 1.0 }",
        &[],
    );
    scenario(
        "python3 benchmarks/benchmark_throughput.py --model meta-llama/Llama-3.1-8B-Instruct -tp 2 --input-len 8 --output-len 8",
        &["tp = 2"],
    );
    let latency = "vllm bench latency --model meta-llama/Llama-3.1-8B-Instruct --input-len 32 --output-len 128 --batch-size 8 --num-iters 5";
    let draws = "prompt_tokens = 32; output_tokens = 128; arrivals = \"together\"; requests = 8; sampling = { temperature = 1.0 }";
    check(latency, &[], draws, &[]);
    scenario(latency, &["prefix_cache = false", "name = \"llama-3.1-8b\"", "max_tokens = 16384"]);
    scenario(&format!("{latency} --max-num-batched-tokens 4096"), &["max_tokens = 4096"]);
    // SGLang, docs/developer_guide/benchmark_and_profiling.md.
    check(
        "python -m sglang.bench_one_batch --model-path meta-llama/Meta-Llama-3.1-8B-Instruct --batch 32 --input-len 256 --output-len 32",
        &[],
        "prompt_tokens = 256; output_tokens = 32; arrivals = \"together\"; requests = 32",
        &[Code::NotModelled],
    );
    check(
        "python -m sglang.bench_offline_throughput --model-path meta-llama/Meta-Llama-3.1-8B-Instruct --dataset-name random --num-prompts 10 --tp 2",
        &[],
        "prompt_tokens = [1, 1024]; output_tokens = [1, 1024]; arrivals = \"together\"; requests = 10",
        &[],
    );
    // TensorRT-LLM, docs/source/developer-guide/perf-overview.md.
    let made = "python benchmarks/cpp/prepare_dataset.py --tokenizer=m --stdout token-norm-dist --num-requests=300 --input-mean=128 --output-mean=2048 \
                --input-stdev=0 --output-stdev=0 > /tmp/s.txt\n";
    let bench = "trtllm-bench --model meta-llama/Llama-3.1-8B throughput --dataset /tmp/s.txt --tp 2 --concurrency 16 --kv_cache_free_gpu_mem_fraction 0.85";
    check(
        &format!("{made}{bench}"),
        &[],
        "prompt_tokens = 128; output_tokens = 2048; concurrency = 16; requests = 300",
        &[],
    );
    scenario(bench, &["tp = 2", "memory_ratio = 0.85", "name = \"llama-3.1-8b\"", "lengths = \"azure-conv\""]);
    let open = bench.replace("/tmp/s.txt", "$YOUR_DATA_PATH");
    let stated = ["trace.prompt_tokens=8", "trace.output_tokens=8", "trace.requests=4", "trace.concurrency=2"];
    check(&open, &stated, "", &[]);
    assert!(codes(&found(&open, &[])).contains(&Code::UnknownValue));
}

#[test]
fn a_client_without_a_server_stays_unread() {
    assert_eq!(recognise("vllm bench serve --model m --request-rate 4"), None);
    assert_eq!(recognise("aiperf profile -m x --concurrency 4"), None);
    // What is shown is not run.
    let text = format!("echo vllm bench serve --max-concurrency 3\n{SERVER}vllm bench serve --max-concurrency 2");
    assert!(trace(&found(&text, &[])).contains("concurrency = 2;"));
}

/// A server of vLLM in a manifest of Kubernetes, with a document behind it.
fn in_cluster(more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: llm\nspec:\n  replicas: 1\n  template:\n    spec:\n      containers:\n      - name: engine\n        \
         image: vllm/vllm-openai:v0.11.0\n        args: [--model, meta-llama/Llama-3.1-8B-Instruct]\n---\napiVersion: batch/v1\nkind: Job\nmetadata:\n  \
         name: bench\nspec:\n  template:\n    spec:\n      containers:\n      - name: bench\n{more}"
    )
}

#[test]
fn a_client_in_a_container_beside_the_server_asks_as_one_in_a_script_does() {
    let asked = "prompt_tokens = 777; output_tokens = 33; concurrency = 17; requests = 170";
    let own = "        image: vllm/vllm-openai:v0.11.0\n        command: [vllm, bench, serve]\n        args:\n        - --dataset-name=random\n        \
               - --random-input-len\n        - \"777\"\n        - --random-output-len=33\n        - --max-concurrency=17\n        - --num-prompts=170\n";
    check(&in_cluster(own), &[], asked, &[]);
    let shell = "        image: python:3.12\n        command: [/bin/bash, -c]\n        args:\n        - |\n          pip install aiperf\n          \
                 aiperf profile -m m --isl 777 --osl 33 --concurrency 17 --request-count 170 --num-dataset-entries 170\n";
    check(&in_cluster(shell), &[], asked, &[]);
    // A service of Compose, also one that starts where its profile is asked for.
    for profile in ["", "    profiles: [bench]\n"] {
        let compose = format!(
            "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model meta-llama/Llama-3.1-8B-Instruct\n  bench:\n{profile}    \
             image: nvcr.io/nvidia/tritonserver:25.01-py3-sdk\n    command: genai-perf profile -m m --synthetic-input-tokens-mean 777 \
             --output-tokens-mean 33 --concurrency 17 --request-count 170 --num-dataset-entries 170\n"
        );
        check(&compose, &[], asked, &[]);
    }
}

/// AIPerf with such options asks for answers of such a length.
fn answers(options: &str, tokens: u64) {
    let command = format!("aiperf profile -m m --isl 100 --concurrency 2 --request-count 20 {options}");
    let asked = format!("prompt_tokens = 100; output_tokens = {tokens}; concurrency = 2; requests = 20");
    client(&command, &asked, &[]);
}

#[test]
fn what_requests_are_told_of_their_answers_stands_over_the_options_of_the_client() {
    answers("--osl 64", 64);
    answers("--extra-inputs max_tokens:150 --extra-inputs min_tokens:100 --extra-inputs ignore_eos:true", 150);
    answers("--osl 64 --extra-inputs ignore_eos:true min_tokens:32", 32);
    answers("--extra-inputs '{\"max_completion_tokens\": 32, \"temperature\": 0}'", 32);
    answers("--osl 64 --extra-inputs temperature:0.0", 64);
}

#[test]
fn chats_of_the_release_that_parses_their_template_for_each_are_named() {
    for (tag, backend, said) in [
        ("v0.11.0", "openai-chat", &[Code::NotModelled][..]),
        ("v0.11.0", "openai", &[]),
        ("v0.11.1", "openai-chat", &[]),
    ] {
        let script = format!(
            "docker run -d vllm/vllm-openai:{tag} --model meta-llama/Llama-3.1-8B-Instruct\nvllm bench serve --backend {backend} --dataset-name random \
             --random-input-len 128 --random-output-len 4 --num-prompts 1000\n"
        );
        assert_eq!(codes(&found(&script, &[])), said, "{script}");
    }
}

/// Fields of a body stand over those of the client (`payload.update` of `endpoint_request_func.py` and `bench_serving.py`).
#[test]
fn what_is_added_to_the_body_of_requests_is_read_or_named() {
    let vllm = "vllm bench serve --dataset-name random --random-input-len 128 --random-output-len 64 --num-prompts 10";
    let chat = format!("{vllm} --backend openai-chat");
    let sglang = "python3 -m sglang.bench_serving --backend sglang --dataset-name random --random-input-len 128 --random-output-len 64 --random-range-ratio 1 --num-prompts 10";
    let named = [Code::NotModelled];
    for (command, body, output, said) in [
        (vllm, "--extra-body '{\"max_tokens\": 32, \"temperature\": 0.6, \"ignore_eos\": true}'", 32, &[][..]),
        // A chat carries `max_completion_tokens`, which counts before `max_tokens`.
        (&chat, "--extra-body '{\"max_tokens\": 32}'", 64, &named),
        (&chat, "--extra-body '{\"max_completion_tokens\": 32}'", 32, &[]),
        (vllm, "--extra-body '{\"chat_template_kwargs\": {\"enable_thinking\": false}}'", 64, &named),
        (vllm, "--extra-body '{\"unheard_of\": 1}'", 64, &named),
        (sglang, "--extra-request-body '{\"sampling_params\": {\"max_new_tokens\": 16, \"temperature\": 0}}'", 16, &[]),
        (sglang, "--extra-request-body '{\"sampling_params\": {\"temperature\": 0}}'", 64, &named),
        (sglang, "--extra-request-body '{\"ignore_eos\": false}'", 64, &named),
        (sglang, "--extra-request-body '{\"stream\": false}'", 64, &named),
    ] {
        let found = found(&format!("{SERVER}{command} {body}\n"), &[]);
        assert!(trace(&found).contains(&format!("output_tokens = {output};")), "{command} {body}: {}", trace(&found));
        assert_eq!(codes(&found), said, "{command} {body}: {:#?}", found.findings);
    }
    let perf = "aiperf profile -m m --isl 128 --osl 64 --concurrency 2 --request-count 10 --num-dataset-entries 10 --extra-inputs";
    let guidellm = "guidellm benchmark --rate-type concurrent --rate 4 --max-requests 9 --data prompt_tokens=4,output_tokens=4 --backend-kwargs";
    for (command, said) in [
        (format!("{vllm} --extra-body '{{\"min_p\": 0.1, \"seed\": 1}}'"), &[][..]),
        (format!("{perf} ignore_eos:true temperature:0.7 max_tokens:64"), &[]),
        (format!("{perf} logprobs:true response_format:json"), &[Code::NotModelled; 2]),
        (format!("{perf} '{{\"min_p\": 0.1, \"temperature\": 1}}'"), &[]),
        (format!("{guidellm} '{{\"extras\": {{\"body\": {{\"temperature\": 0.6, \"logprobs\": 5}}}}}}'"), &named),
        (format!("{guidellm} '{{\"timeout\": 60}}'"), &[]),
    ] {
        let found = found(&format!("{SERVER}{command}\n"), &[]);
        assert_eq!(codes(&found), said, "{command}: {:#?}", found.findings);
    }
    let wrong = found(&format!("{SERVER}{vllm} --extra-body max_tokens=3\n"), &[]);
    assert_eq!(codes(&wrong), [Code::WrongFlag], "{:#?}", wrong.findings);
}

/// `trace.sampling` of a script, as it is written.
fn sampling(text: &str, set: &[&str]) -> Option<String> {
    let found = found(text, set);
    trace(&found).split("; ").find_map(|line| line.strip_prefix("sampling = ")).map(str::to_owned)
}

/// Names and ranges are those of OpenAI's API. `vllm bench serve` sends no temperature of its own (0.32), the clients that came of
/// `benchmark_serving.py` and SGLang's send 0, and vLLM's offline benchmarks 1.
#[test]
fn how_tokens_are_drawn_is_that_of_requests() {
    let newest = format!("{SERVER}vllm bench serve");
    let older = format!("{SERVER}python benchmark_serving.py --dataset-name random");
    let sglang = format!("{SERVER}python -m sglang.bench_serving --dataset-name random");
    let perf = format!("{SERVER}aiperf profile --osl 8 --concurrency 4");
    let guidellm = format!(
        "{SERVER}guidellm benchmark --rate-type concurrent --rate 4 --max-requests 9 --data prompt_tokens=4,output_tokens=4"
    );
    for (client, options, expected) in [
        (&newest, "--temperature 0.6 --top-p 0.95 --top-k 20", Some("{ temperature = 0.6, top_k = 20, top_p = 0.95 }")),
        (&newest, "--temperature 0 --top-p 1.0", None),
        (&newest, "--temperature 0 --presence-penalty 1.5", Some("{ temperature = 0.0, presence_penalty = 1.5 }")),
        (&newest, "--top-p 0.9 --top-k -1 --repetition-penalty 1.0", Some("{ top_p = 0.9 }")),
        (&newest, "", None),
        // What requests have on top stands over options.
        (
            &newest,
            "--temperature 0.5 --extra-body '{\"temperature\": 0.7, \"top_k\": 40}'",
            Some("{ temperature = 0.7, top_k = 40 }"),
        ),
        (&older, "--top-p 0.9", None),
        (&older, "--temperature 0.8 --frequency-penalty 0.2", Some("{ temperature = 0.8, frequency_penalty = 0.2 }")),
        (&sglang, "", None),
        (
            &sglang,
            "--extra-request-body '{\"temperature\": 1.0, \"top_p\": 0.8}'",
            Some("{ temperature = 1.0, top_p = 0.8 }"),
        ),
        (&perf, "--extra-inputs temperature:0.7 top_p:0.8", Some("{ temperature = 0.7, top_p = 0.8 }")),
        (&perf, "--extra-inputs temperature:0", None),
        (
            &guidellm,
            "--backend-kwargs '{\"extras\": {\"body\": {\"temperature\": 0.6}}}'",
            Some("{ temperature = 0.6 }"),
        ),
    ] {
        assert_eq!(sampling(&format!("{client} {options}\n"), &[]).as_deref(), expected, "{client} {options}");
    }
    assert_eq!(sampling(&format!("{newest} --temperature 0.6\n"), &["trace.sampling={}"]), None);
    let filter = found(&format!("{older} --top-p 0.9\n"), &[]);
    assert!(codes(&filter).contains(&Code::NoEffect), "{:?}", filter.findings);
    let wrong = found(&format!("{newest} --temperature 200\n"), &[]);
    assert!(wrong.findings.iter().any(|one| one.severity == Severity::Error), "{:?}", wrong.findings);
    let open = found(&format!("{newest} --temperature $T\n"), &[]);
    assert_eq!(codes(&open), [Code::NotModelled], "{:?}", open.findings);
}

#[test]
fn a_server_draws_by_its_own_words_where_requests_say_nothing() {
    let server = "vllm serve llama-3.1-8b --override-generation-config '{\"temperature\": 0.6, \"top_p\": 0.9}'";
    let both = Some("{ temperature = 0.6, top_p = 0.9 }");
    for (client, expected) in [
        ("", both),
        (" &\nvllm bench serve", both),
        (" &\nvllm bench serve --temperature 0.3", Some("{ temperature = 0.3, top_p = 0.9 }")),
        (" &\npython benchmark_serving.py --dataset-name random", None),
    ] {
        assert_eq!(sampling(&format!("{server}{client}\n"), &[]).as_deref(), expected, "{client}");
    }
    let named = |json: &str| {
        let text = format!("vllm serve llama-3.1-8b --override-generation-config '{json}'\n");
        codes(&found(&text, &[])).contains(&Code::NotModelled)
    };
    assert!(named(r#"{"max_new_tokens": 512, "temperature": 0.6}"#) && !named(r#"{"min_p": 0.1}"#));
    assert!(!named(r#"{"temperature": 0.6, "repetition_penalty": 1.1}"#));
    let sglang = "python -m sglang.launch_server --model-path llama-3.1-8b --preferred-sampling-params '{\"temperature\": 0.6}'\n";
    assert_eq!(sampling(sglang, &[]).as_deref(), Some("{ temperature = 0.6 }"));
}

/// Beside a configuration there may be a file that says how tokens are drawn: what requests state stands over it, neutral or not.
#[test]
fn what_requests_say_stands_over_the_file_of_a_model() {
    let file = ["model.config=\"config.json\""];
    let off = "{ temperature = 1.0, top_k = 0, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0 }";
    for (command, expected) in [
        ("vllm serve llama-3.1-8b", None),
        ("vllm serve llama-3.1-8b --generation-config vllm", Some(off)),
        ("vllm serve llama-3.1-8b --generation-config auto", None),
        ("python -m sglang.launch_server --model-path llama-3.1-8b --sampling-defaults openai", Some(off)),
        (
            "vllm serve llama-3.1-8b &\nvllm bench serve --temperature 0.6 --top-p 1.0",
            Some("{ temperature = 0.6, top_p = 1.0 }"),
        ),
        ("vllm serve llama-3.1-8b &\nvllm bench serve --temperature 0", Some("{ temperature = 0.0 }")),
    ] {
        assert_eq!(sampling(&format!("{command}\n"), &file).as_deref(), expected, "{command}");
    }
    assert_eq!(sampling("vllm serve llama-3.1-8b --generation-config vllm\n", &[]), None, "there is no file");
}

/// Milliseconds of the clients are seconds of `[slo]`.
#[test]
fn limits_of_clients_are_those_of_the_scenario() {
    let limits = |command: &str, set: &[&str]| {
        let found = found(&format!("{SERVER}{command}\n"), set);
        let section = found.scenario.split("[slo]\n").nth(1).unwrap_or_default().to_owned();
        let lines = section.lines().take_while(|line| !line.is_empty());
        let keys = lines.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned());
        (keys.collect::<Vec<_>>().join("; "), codes(&found))
    };
    let own = "vllm bench serve --goodput ttft:2000 tpot:40 e2el:25000";
    assert_eq!(limits(own, &[]), ("ttft_s = 2.0; tpot_s = 0.04; e2e_s = 25.0".to_owned(), vec![]));
    assert_eq!(limits(own, &["slo.tpot_s=0.1"]).0, "ttft_s = 2.0; e2e_s = 25.0");
    let perf = "aiperf profile --osl 8 --concurrency 4 --goodput";
    let named = limits(&format!("{perf} \"time_to_first_token:100 inter_token_latency:12.5\""), &[]);
    assert_eq!(named, ("ttft_s = 0.1; tpot_s = 0.0125".to_owned(), vec![]));
    let other = limits(&format!("{perf} output_token_throughput_per_user:600"), &[]);
    assert_eq!(other, (String::new(), vec![Code::NotModelled]));
    let wrong = found(&format!("{SERVER}vllm bench serve --goodput ttft:soon\n"), &[]);
    assert!(wrong.findings.iter().any(|one| one.what == "`--goodput ttft:soon` is no limit"), "{:?}", wrong.findings);
}
