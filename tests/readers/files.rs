//! A small file of every format with its reader.

use std::io::Cursor;
use std::sync::OnceLock;

use engine::cost::profile::Profile;
use flate2::Compression;
use hw::GIB;
use serve::trace::{self, Format};

/// A file that is changed, and who reads it.
pub struct File {
    pub name: &'static str,
    /// One of so many draws of the file is played: long files are slow.
    pub one_in: u64,
    pub bytes: fn() -> Vec<u8>,
    /// Reads it; the refusal in words.
    pub read: fn(&[u8]) -> Result<(), String>,
}

const fn file(name: &'static str, bytes: fn() -> Vec<u8>, read: fn(&[u8]) -> Result<(), String>) -> File {
    File { name, one_in: 1, bytes, read }
}

/// The text of a file as the program takes it.
fn text(bytes: &[u8]) -> Result<String, String> {
    input::text_file::text(bytes).map_err(|why| why.to_string())
}

/// Refusals in words.
fn words<T, E: std::fmt::Debug>(read: Result<T, E>) -> Result<(), String> {
    read.map(|_| ()).map_err(|why| format!("{why:?}"))
}

fn requests(format: Format, bytes: &[u8]) -> Result<(), String> {
    let found = trace::read(format, &mut &bytes[..], 16).map_err(|faults| format!("{:?}", faults.found.first()))?;
    assert!(found.requests.len() <= bytes.len(), "no more requests than bytes");
    Ok(())
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let text = text(bytes)?;
    let stack = stacks::recognise(&text).ok_or("of no stack")?;
    let (gpu, model) = (Some("h100-sxm".to_owned()), Some("llama-3-8b".to_owned()));
    let machine = stacks::Machine { gpu, model, tokens: Some(4096), ..stacks::Machine::default() };
    let found = stacks::import(stack, &text, &machine);
    assert!(found.scenario.len() < 64 * text.len() + 65_536, "a text grows without bound");
    let source = input::diagnostic::Source { path: "x".to_owned(), text };
    let _ = input::diagnostic::render(&source, &found.findings);
    if found.scenario.is_empty() { Err("nothing is left".to_owned()) } else { Ok(()) }
}

fn recorded(bytes: &[u8]) -> Result<(), String> {
    let is_report = score::profiler::nsys::is_report(bytes);
    let recorded =
        if is_report { score::profiler::nsys::read(Cursor::new(bytes)) } else { score::profiler::read(bytes) };
    let recorded = recorded.map_err(|why| why.to_string())?;
    assert!(recorded.events.len() <= bytes.len(), "no more kernels than bytes");
    let found = score::profiler::step::measured(recorded).map_err(|why| why.to_string())?;
    let busy = [found.busy.compute_s, found.busy.exposed_s, found.busy.copy_s, found.busy.idle_s];
    assert!(busy.iter().all(|seconds| *seconds > -1e-6), "{busy:?}");
    Ok(())
}

fn scenario(bytes: &[u8]) -> Result<(), String> {
    let source = input::diagnostic::Source { path: "x".to_owned(), text: text(bytes)? };
    let checked = skrull_sim::kinds::check(source, std::path::Path::new("/nowhere"), &scenario::Overrides::default());
    let shown = input::diagnostic::render(&checked.source, &checked.findings);
    if checked.scenario.is_some() { Ok(()) } else { Err(shown) }
}

fn sweep(bytes: &[u8]) -> Result<(), String> {
    let mut findings = Vec::new();
    let text = text(bytes)?;
    let found = sweep::given::read(&text, &mut findings);
    let source = input::diagnostic::Source { path: "x".to_owned(), text };
    let shown = input::diagnostic::render(&source, &findings);
    found.map(|_| ()).ok_or(shown)
}

/// A result as a program reads it: none that breaks a rule is taken for sound.
fn result(bytes: &[u8]) -> Result<(), String> {
    let result = reports::json::parse(&text(bytes)?).map_err(|why| why.to_string())?;
    let _ = reports::sound::faults(&result);
    let _ = reports::table::render_at(&result, 80);
    let _ = reports::markdown::render(&result);
    Ok(())
}

fn json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<(), String> {
    words(serde_json::from_str::<T>(&text(bytes)?))
}

fn nccl(bytes: &[u8]) -> Result<(), String> {
    let base = Profile::parse(&text(&profile())?).expect("shipped");
    calibrate::nccl_tests::measured(base, &text(bytes)?, None).map(|_| ()).map_err(|why| why.to_string())
}

fn packed(bytes: &[u8]) -> Result<(), String> {
    let plain = packed::plain(bytes.to_vec(), u64::MAX).map_err(|why| why.to_string())?;
    assert!(hw::real(plain.len() as u64) < GIB, "a small file becomes a large one");
    graph::read::edges(&plain, graph::read::Columns::Edge, None).map(|_| ()).map_err(|why| why.to_string())
}

/// Lengths of a file that stands for a line each.
fn lengths(bytes: &[u8]) -> Result<(), String> {
    let plain = packed::plain(bytes.to_vec(), 1 << 27).map_err(|why| why.to_string())?;
    words(train::workload::distribution::parse_lengths(&text(&plain)?))
}

/// A table whose text has 128 MiB at most.
fn table(bytes: &[u8]) -> Result<(), String> {
    packed::plain(bytes.to_vec(), 1 << 27).map(|_| ()).map_err(|why| why.to_string())
}

fn events(bytes: &[u8]) -> Result<(), String> {
    let found = graph::read::edges(bytes, graph::read::Columns::Event, Some(9));
    found.map(|_| ()).map_err(|why| why.to_string())
}

fn array(bytes: &[u8]) -> Result<(), String> {
    graph::read::array("x", bytes).map(|_| ()).map_err(|why| why.to_string())
}

fn rows(bytes: &[u8]) -> Result<(), String> {
    graph::read::rows(bytes).map(|_| ()).map_err(|why| why.to_string())
}

pub fn gzip(text: &str, level: Compression) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

/// A `.npy` file of version 1 with its header.
fn npy(numbers: &[u64]) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({},), }}\n", numbers.len());
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).expect("short").to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    bytes
}

/// A zip archive of stored files, as its format has it: a head before each, then a directory, then its end.
pub fn npz() -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in [("indptr.npy", npy(&[0, 1, 2, 3])), ("indices.npy", npy(&[1, 2, 0]))] {
        let sizes = [u32::try_from(content.len()).expect("short").to_le_bytes(); 2].concat();
        let names = [u16::try_from(name.len()).expect("short").to_le_bytes(), [0; 2]].concat();
        let start = u32::try_from(bytes.len()).expect("short").to_le_bytes();
        directory.extend([b"PK\x01\x02", &[0; 16][..], &sizes, &names, &[0; 10], &start, name.as_bytes()].concat());
        bytes.extend([b"PK\x03\x04", &[0; 14][..], &sizes, &names, name.as_bytes(), &content].concat());
    }
    let at = u32::try_from(bytes.len()).expect("short").to_le_bytes();
    [bytes, directory, b"PK\x05\x06".to_vec(), vec![0; 12], at.to_vec(), vec![0; 2]].concat()
}

/// The result of a small run, and its plan.
fn of_a_run() -> &'static [String; 2] {
    static FOUND: OnceLock<[String; 2]> = OnceLock::new();
    FOUND.get_or_init(|| {
        let checked = crate::checked("pipeline/ragged", &[]);
        let scenario = checked.scenario.expect("a good scenario");
        let result = reports::json::render(&scenario.run(&|_| {})).expect("figures");
        let plan = scenario.plan("deepspeed").expect("it decides").expect("a plan").file.expect("a text");
        [result, plan]
    })
}

const DEEPSPEED: &str = "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"bf16\": {\"enabled\": true},\n\
    \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}}, \"tensor_parallel\": {\"autotp_size\": 2}, \"gradient_clipping\": \"auto\"}\n";
const TORCHTITAN: &str = "torchrun --nproc_per_node=8 -m torchtitan.train --config llama3_8b --training.seq_len=8192 \\\n\
    --parallelism.pipeline_parallel_degree=4 --parallelism.pipeline_parallel_schedule Interleaved1F1B --ac.mode full\n";
const VERL: &str = "data:\n  max_prompt_length: 512\n  max_response_length: 512\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B\n  actor:\n    \
    strategy: megatron\n    ppo_mini_batch_size: 64\n    ppo_micro_batch_size_per_gpu: 2\n    megatron:\n      tensor_model_parallel_size: 2\n  rollout:\n    n: 8\n";
const BRIDGE: &str = "torchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b model.tensor_model_parallel_size=2 \\\n\
    dataset.sequence_length=4096 train.global_batch_size=64 mixed_precision.grad_reduce_in_fp32=false mixed_precision=bf16_with_mxfp8_mixed\n";
const DYNAMO: &str = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n    read:\n      \
    componentType: worker\n      subComponentType: prefill\n      replicas: 3\n      extraPodSpec:\n        mainContainer:\n          command:\n          - python3\n          \
    - -m\n          - dynamo.vllm\n          args:\n          - \"--model\"\n          - \"llama-3-8b\"\n          - --tensor-parallel-size=2\n";
/// Two kernels that overlap, a copy, the calls that launched them, and a step around.
const KINETO: &str = "{\"schemaVersion\": 1, \"distributedInfo\": {\"rank\": 1, \"world_size\": 8}, \"traceEvents\": [\n\
    {\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#7\", \"ts\": 1000, \"dur\": 100},\n\
    {\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"ts\": 1005, \"dur\": 5.5, \"args\": {\"correlation\": 1}},\n\
    {\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"nvjet_gemm\", \"pid\": 0, \"ts\": 1020, \"dur\": 30, \"args\": {\"device\": 0, \"correlation\": 1}},\n\
    {\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"ncclDevKernel_SendRecv\", \"ts\": 1045.25, \"dur\": 10, \"args\": {\"device\": 0, \"Collective name\": \"all_to_all\"}},\n\
    {\"ph\": \"X\", \"cat\": \"gpu_memcpy\", \"name\": \"Memcpy HtoD\", \"ts\": 1060, \"dur\": 8, \"args\": {\"device\": 0}}]}\n";
const MEGATRON: &str = "#!/bin/bash\nN=$((2*${M:-4}+1)) # why\nL=(--num-layers 12 \\\n --hidden-size 768)\nL+=(--num-attention-heads 12)\n\
    torchrun --nproc_per_node=8 pretrain_gpt.py ${L[@]} --seq-length 512 --micro-batch-size 2 --global-batch-size 16 --bf16 \\\n\
    --tensor-model-parallel-size 2 --max-position-embeddings 512 --vocab-size 50304 \"$@\" 2>&1 | tee log &\n";
const MEGATRON_TESTS: &str = "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 12 # why\n  --hidden-size: 512\n  --num-attention-heads: 8\n  \
    --seq-length: 1024\n  --bf16: true\n  --cuda-graph-modules: [attn mlp]\n  --moe-layer-freq: ([0]*1+[1]*11)\nTEST_TYPE: regular\n";
const VLLM: &str = "MODEL=llama-3-8b\nvllm serve $MODEL -tp 2 --max-num-seqs=64 --speculative-config '{\"method\": \"ngram\", \
    \"num_speculative_tokens\": 3}' --kv-cache-dtype fp8\n";
const SGLANG: &str = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 2 --enable-dp-attention \
    --mem-fraction-static 0.85\n";
const TRTLLM: &str = "model: Qwen/Qwen3-32B\ntensor_parallel_size: 2\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  \
    enable_block_reuse: false\nlist:\n  - a: 1\n    b: [1, 2]\n  - c\n";
const AZURE: &str =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:50.75,396,109\n";
const BURST: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,API\n9.25,GPT-4,396,109,505,API\n";
const VIDUR: &str = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.25,396,109\n";
const MOONCAKE: &str =
    "{\"timestamp\": 100, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [70, 80, 90]}\n";
const OPENAI: &str = "{\"timestamp\": 3, \"body\": {\"max_tokens\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"letters!\"}]}}\n\
    {\"timestamp\": 7.25, \"response\": {\"body\": {\"usage\": {\"prompt_tokens\": 396, \"completion_tokens\": 109}}}}\n";
const VLLM_BENCH: &str = "{\"model_id\": \"org/M\", \"request_rate\": 2.0, \"max_concurrency\": null, \"completed\": 2, \"total_input_tokens\": 30, \
    \"total_output_tokens\": 4, \"input_lens\": [10, 20, 5], \"output_lens\": [3, 1, 0], \"ttfts\": [0.1, 0.2, 0.0], \"itls\": [[0.1, 0.1], [], []], \
    \"start_times\": [7.0, 7.5, 8.0], \"errors\": [\"\", \"\", \"timed out\"], \"mean_ttft_ms\": 150.0, \"mean_tpot_ms\": 100.0}";
const GUIDELLM: &str = "{\"benchmarks\": [{\"config\": {\"strategy\": {\"type_\": \"poisson\", \"rate\": 2.0}}, \"requests\": {\"successful\": [\
    {\"request_start_time\": 7.5, \"prompt_tokens\": 20, \"output_tokens\": 1, \"time_to_first_token_ms\": 200.0, \"request_latency\": 0.2},\
    {\"request_start_time\": 7.0, \"prompt_tokens\": 10, \"output_tokens\": 3, \"time_to_first_token_ms\": 100.0, \"request_latency\": 0.3}],\
    \"errored\": [{}], \"incomplete\": []}}]}";
const ENGINE_LOG: &str = "{\"request_id\": \"a\", \"input_toks\": 10, \"output_toks\": 3, \"queued_ts\": 7.0, \"scheduled_ts\": 7.02, \
    \"first_token_ts\": 7.1, \"last_token_ts\": 7.3}\n{\"request_id\": \"b\", \"input_toks\": 20, \"output_toks\": 1, \"queued_ts\": 7.5, \
    \"scheduled_ts\": 7.5, \"first_token_ts\": 7.7, \"last_token_ts\": 7.7}\n";
const NCCL: &str = "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 2 minBytes 8 maxBytes 67108864\n# Using devices\n#  Rank  0 Group  0 Pid 1 on host device  0 [0x07] NVIDIA H100\n\
    #  Rank  1 Group  0 Pid 1 on host device  1 [0x0a] NVIDIA H100\n\
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
    1048576 262144 float sum -1 12.5 83.8 83.8 0 12.4 84.5 84.5 0\n 2097152 524288 float sum -1 22.5 93.2 93.2 0 22.4 93.6 93.6 0\n\
    4194304 1048576 float sum -1 42.5 98.6 98.6 0 42.4 98.9 98.9 0\n 8388608 2097152 float sum -1 80.5 104.2 104.2 0 80.4 104.3 104.3 0\n\
    16777216 4194304 float sum -1 150.5 111.4 111.4 0 150.4 111.5 111.5 0\n";
const SWEEP: &str = "scenario = \"quickstart\"\nchunk = 3\nseeds = 2\n[[axis]]\nkey = \"training.steps\"\nvalues = [1, 2, 0]\n\
    [[axis]]\nkey = \"parallel.cp\"\nfrom = 1\nto = 8\nsteps = 4\nscale = \"log\"\n[front]\nleast = [\"iteration_time_s\"]\n";
const CONFIG: &str = "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"num_hidden_layers\": 16, \"num_attention_heads\": 32, \
    \"num_key_value_heads\": 8, \"head_dim\": 64, \"intermediate_size\": 8192, \"vocab_size\": 128256, \"max_position_embeddings\": 131072, \
    \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\"}";
const EDGES: &str = "# from to\n0 1\n1 2\n2,0\n";
const EVENTS: &str = "source,target,time\n0,1,5\n1,2,5\n2,0,9\n";
const LENGTHS: &str = "tokens\n400\n65536\n12\n";

/// Every file.
pub static FILES: [File; 39] = [
    file("trace, azure", || AZURE.into(), |bytes| requests(Format::Azure, bytes)),
    file("trace, burstgpt", || BURST.into(), |bytes| requests(Format::BurstGpt, bytes)),
    file("trace, vidur", || VIDUR.into(), |bytes| requests(Format::Vidur, bytes)),
    file("trace, mooncake", || MOONCAKE.into(), |bytes| requests(Format::Mooncake, bytes)),
    file("trace, openai", || OPENAI.into(), |bytes| requests(Format::OpenAi, bytes)),
    file("script of megatron", || MEGATRON.into(), script),
    file("tests of megatron", || MEGATRON_TESTS.into(), script),
    file("command of vllm", || VLLM.into(), script),
    file("command of sglang", || SGLANG.into(), script),
    file("options of trtllm", || TRTLLM.into(), script),
    file("configuration of deepspeed", || DEEPSPEED.into(), script),
    file("options of torchtitan", || TORCHTITAN.into(), script),
    file("configuration of verl", || VERL.into(), script),
    file("overrides of bridge", || BRIDGE.into(), script),
    file("deployment of dynamo", || DYNAMO.into(), script),
    file("trace of a profiler", || KINETO.into(), recorded),
    file("report of Nsight Systems", || include_bytes!("../../score/src/profiler/tests/nsys.sqlite").into(), recorded),
    file("run, vllm bench", || VLLM_BENCH.into(), |bytes| words(score::bench::read(bytes))),
    file("run, guidellm", || GUIDELLM.into(), |bytes| words(score::bench::read(bytes))),
    file("run, engine's log", || ENGINE_LOG.into(), |bytes| words(score::bench::read(bytes))),
    File { one_in: 4, ..file("nccl-tests", || NCCL.into(), nccl) },
    file("sweep", || SWEEP.into(), sweep),
    file("config.json", || CONFIG.into(), |bytes| words(engine::Model::from_config("x", &text(bytes)?))),
    file("edges", || EDGES.into(), packed),
    file("edges, packed", || gzip(EDGES, Compression::fast()), packed),
    file("events", || EVENTS.into(), events),
    file("array", || npy(&[3, 1, 4, 1]), array),
    file("rows of a matrix", npz, rows),
    file("lengths", || LENGTHS.into(), |bytes| words(train::workload::distribution::parse_lengths(&text(bytes)?))),
    file("lengths, index of Megatron-LM", || include_bytes!("../../packed/src/tests/lengths.idx").into(), lengths),
    File {
        one_in: 4,
        ..file("lengths, Arrow", || include_bytes!("../../packed/src/tests/lengths.arrows").into(), table)
    },
    file("gate", || "ttft_s.p99<=2s".into(), |bytes| words(reports::gate::Gate::parse(&text(bytes)?))),
    File { one_in: 4, ..file("result.json", || of_a_run()[0].clone().into(), result) },
    file("plan.json", || of_a_run()[1].clone().into(), json::<train::Plan>),
    File { one_in: 16, ..file("scenario, training", || shipped("quickstart"), scenario) },
    File { one_in: 16, ..file("scenario, serving", || shipped("serving/speculation"), scenario) },
    File { one_in: 16, ..file("scenario, memory", || shipped("search/gpt-530b-2520"), scenario) },
    File { one_in: 16, ..file("scenario, deployment", || shipped("cloud/milp-example"), scenario) },
    File { one_in: 8, ..file("profile", profile, |bytes| words(Profile::parse(&text(bytes)?))) },
];

fn shipped(name: &str) -> Vec<u8> {
    scenario::shipped(name).expect("shipped").into()
}

/// The shortest of the shipped profiles.
fn profile() -> Vec<u8> {
    static FOUND: OnceLock<&str> = OnceLock::new();
    let shortest = || {
        let texts = calibrate::profiles::names().into_iter().filter_map(calibrate::profiles::embedded);
        texts.min_by_key(|text| text.len()).expect("profiles")
    };
    FOUND.get_or_init(shortest).to_owned().into()
}
