//! Every row of a table that says `sets` is read: with its flag the scenario is another, or something is said of the flag.

use serde_json::{Value, json};

use crate::example::on;
use crate::flags::{Effect, Known, Table};
use crate::{Imported, Stack, deepspeed, import, megatron, nanotron, sglang, torchtitan, trainer, trtllm, verl, vllm};

/// Values that are tried where a flag is no choice of a few words.
const VALUES: [&str; 23] = [
    "",
    "0",
    "1",
    "2",
    "4",
    "64",
    "0.5",
    "true",
    "false",
    "fp8",
    "float8",
    "mtp",
    "chunked_nll",
    "null",
    "llama-3-8b",
    "torchtune.modules.loss.LinearCrossEntropyLoss",
    "max_tokens:9",
    "0:1",
    "a=b c=d",
    "eager",
    "bfloat16",
    "no_prefetch",
    "'{\"temperature\":0.5}'",
];

/// A stack's table, files in which its flags have a meaning, and how such a file says one flag more.
struct Rows {
    stack: Stack,
    table: &'static Table,
    files: &'static [&'static str],
    with: fn(&str, &str, &str) -> String,
}

/// A command with one flag more.
fn option(file: &str, name: &str, value: &str) -> String {
    format!("{file} --{name} {value}\n")
}

/// A command with one override more.
fn assignment(file: &str, name: &str, value: &str) -> String {
    format!("{file} {name}={value}\n")
}

/// A file of YAML with one key more.
fn yaml(file: &str, name: &str, value: &str) -> String {
    let name = name.replace('-', "_");
    match name.split_once('.') {
        Some((section, key)) => format!("{file}\n{section}:\n  {key}: {value}\n"),
        None => format!("{file}\n{name}: {value}\n"),
    }
}

/// A file of JSON with one key more.
fn json(file: &str, name: &str, value: &str) -> String {
    let mut whole: Value = serde_json::from_str(file).expect("JSON");
    let mut part = &mut whole;
    for key in name.split('.') {
        if !part[key].is_object() && !part[key].is_null() {
            part[key] = json!(null);
        }
        part = &mut part[key];
    }
    *part = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    whole.to_string()
}

/// The scenario of a file, and what is said.
fn read(stack: Stack, text: &str) -> (String, Vec<String>) {
    let Imported { scenario, findings } = import(stack, text, &on("h100-sxm"));
    (scenario, findings.into_iter().map(|finding| finding.what).collect())
}

/// Whether one of its values changes one of the files.
fn is_read(rows: &Rows, known: &Known) -> bool {
    let words: Vec<&str> = known.allowed.split(' ').collect();
    let values = if known.allowed.is_empty() { &VALUES[..] } else { &words };
    rows.files.iter().any(|file| {
        let before = read(rows.stack, file);
        values.iter().any(|value| read(rows.stack, &(rows.with)(file, known.name, value)) != before)
    })
}

fn check(rows: &Rows) {
    let sets = rows.table.rows().iter().filter(|known| matches!(known.effect, Effect::Sets(_)));
    let idle: Vec<&str> = sets.filter(|known| !is_read(rows, known)).map(|known| known.name).collect();
    assert_eq!(idle, [""; 0], "{}: rows say `sets` and nothing reads them", rows.stack.name());
}

/// A command of Megatron-LM with some flags.
macro_rules! megatron {
    ($flags:literal) => {
        concat!(
            "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 ",
            "--seq-length 4096 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 64 ",
            $flags
        )
    };
}

/// A command of torchtitan with some options.
macro_rules! torchtitan {
    ($options:literal) => {
        concat!("torchrun --nproc_per_node=8 -m torchtitan.train ", $options)
    };
}

/// A command of verl with some overrides.
macro_rules! verl {
    ($overrides:literal) => {
        concat!(
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.max_prompt_length=1024 ",
            "data.max_response_length=1024 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 ",
            "actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8 ",
            $overrides
        )
    };
}

#[test]
fn rows_of_vllm_are_read() {
    check(&Rows {
        stack: Stack::Vllm,
        table: &vllm::FLAGS,
        files: &[
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8",
            "vllm serve deepseek-ai/DeepSeek-V3 --enable-lora --spec-tokens 2",
            "vllm serve deepseek-ai/DeepSeek-V3 --cpu-offload-gb 8",
            "vllm serve deepseek-ai/DeepSeek-V3 --offload-group-size 4",
            "vllm serve",
        ],
        with: option,
    });
}

#[test]
fn rows_of_sglang_are_read() {
    check(&Rows {
        stack: Stack::Sglang,
        table: &sglang::FLAGS,
        files: &[
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --pp 2",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --enable-lora --speculative-algorithm EAGLE",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --moe-a2a-backend deepep",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --offload-group-size 4",
        ],
        with: option,
    });
}

#[test]
fn rows_of_tensorrt_llm_are_read() {
    check(&Rows {
        stack: Stack::Trtllm,
        table: &trtllm::FLAGS,
        files: &[
            "model: deepseek-ai/DeepSeek-V3\ntensor_parallel_size: 8",
            "model: deepseek-ai/DeepSeek-V3\ntensor_parallel_size: 8\nenable_attention_dp: true\nattention_dp_config:\n  enable_balance: true",
            "model: deepseek-ai/DeepSeek-V3\nbatch_wait_timeout_iters: 2\nbatch_wait_max_tokens_ratio: 0.25",
            "model: deepseek-ai/DeepSeek-V3\nspeculative_config:\n  decoding_type: Eagle",
            "model: deepseek-ai/DeepSeek-V3\nspeculative_config:\n  decoding_type: MADE_UP",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_deepspeed_are_read() {
    check(&Rows {
        stack: Stack::Deepspeed,
        table: &deepspeed::import::KEYS,
        files: &[
            "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 3}}",
            "{\"train_batch_size\": 64, \"gradient_accumulation_steps\": 2, \"zero_optimization\": {\"stage\": 2}}",
            "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
        ],
        with: json,
    });
}

#[test]
fn rows_of_the_trainer_are_read() {
    check(&Rows {
        stack: Stack::Trainer,
        table: &trainer::TRAINER,
        files: &[
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nmax_length: 512\nper_device_train_batch_size: 1",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nfsdp: full_shard",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nuse_peft: true",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nuse_peft: true\nload_in_4bit: true",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nuse_deepspeed: true",
            "model_name_or_path: Qwen/Qwen3-8B\nlearning_rate: 1\nnum_processes: 8\nnum_generations: 8",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_axolotl_are_read() {
    check(&Rows {
        stack: Stack::Trainer,
        table: &trainer::AXOLOTL,
        files: &[
            "base_model: Qwen/Qwen3-8B\nsequence_len: 512\nnum_processes: 8",
            "base_model: Qwen/Qwen3-8B\nadapter: lora\nnum_processes: 8\nbf16: false",
            "base_model: Qwen/Qwen3-8B\nadapter: qlora\nnum_processes: 8",
            "base_model: Qwen/Qwen3-8B\nnum_processes: 8\nmicro_batch_size: 1\nfsdp: full_shard",
            "base_model: Qwen/Qwen3-8B\nnum_processes: 8\nmicro_batch_size: 1\nuse_deepspeed: true",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_llama_factory_are_read() {
    check(&Rows {
        stack: Stack::Trainer,
        table: &trainer::LLAMA_FACTORY,
        files: &[
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nnum_processes: 8",
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\nnum_processes: 8",
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\nnum_processes: 8\nquantization_bit: 4",
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nnum_processes: 8\nfsdp: full_shard",
            "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nnum_processes: 8\nuse_deepspeed: true",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_ms_swift_are_read() {
    check(&Rows {
        stack: Stack::Trainer,
        table: &trainer::SWIFT,
        files: &[
            "swift sft --model Qwen/Qwen3-8B --tuner_type full --max_length 512 --num_processes 8",
            "swift sft --model Qwen/Qwen3-8B --max_length 512 --num_processes 8",
            "swift sft --model Qwen/Qwen3-8B --max_length 512 --num_processes 8 --quant_bits 4 --quant_method bnb",
            "swift sft --model Qwen/Qwen3-8B --max_length 512 --num_processes 8 --tuner_type full --fsdp fsdp2",
            "swift sft --model Qwen/Qwen3-8B --max_length 512 --num_processes 8 --tuner_type full --use_deepspeed true",
            "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_length 512 --num_processes 8",
            "swift sft --model Qwen/Qwen3-8B --max_length 512 --num_processes 8 --packing true",
        ],
        with: option,
    });
}

#[test]
fn rows_of_torchtune_are_read() {
    check(&Rows {
        stack: Stack::Trainer,
        table: &trainer::TORCHTUNE,
        files: &[
            "model:\n  _component_: torchtune.models.qwen3.qwen3_8b\noptimizer:\n  a: b\ntokenizer:\n  max_seq_len: 512\nnproc_per_node: 8",
            "model:\n  _component_: torchtune.models.qwen3.lora_qwen3_8b\noptimizer:\n  a: b\ntokenizer:\n  max_seq_len: 512\nnproc_per_node: 8",
            "model:\n  _component_: torchtune.models.qwen3.qwen3_8b\noptimizer:\n  _component_: torch.optim.AdamW\ntokenizer:\n  max_seq_len: 512\nnproc_per_node: 8",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_torchtitan_are_read() {
    check(&Rows {
        stack: Stack::Torchtitan,
        table: &torchtitan::import::FLAGS,
        files: &[
            torchtitan!("--config llama3_8b"),
            torchtitan!("--config llama3_8b --training.seq_len 4096 --compile.enable"),
            torchtitan!("--config llama3_8b --parallelism.pipeline_parallel_degree 4"),
            torchtitan!("--config llama3_8b --parallelism.pipeline_parallel_degree 4 --training.seq_len 4096"),
            torchtitan!(
                "--config llama3_8b --parallelism.tensor_parallel_degree 2 --parallelism.context_parallel_degree 2 --compile.enable"
            ),
            torchtitan!("--config llama3_8b --model.converters float8 --ac.mode selective"),
            torchtitan!("--config llama3_8b --model.converters float8 --activation_checkpoint.mode selective"),
            torchtitan!("--config deepseek_v3_16b --parallelism.expert_parallel_degree 8"),
            torchtitan!("--model.name llama3 --model.flavor 8b"),
            torchtitan!("--model.name llama3"),
        ],
        with: option,
    });
}

/// A command of Megatron-DeepSpeed with some flags.
macro_rules! megatron_deepspeed {
    ($flags:literal) => {
        concat!(megatron!("--deepspeed --deepspeed_config x.json --no-pipeline-parallel "), $flags)
    };
}

#[test]
fn rows_of_megatron_deepspeed_are_read() {
    check(&Rows {
        stack: Stack::Megatron,
        table: &megatron::deepspeed::OWN,
        files: &[
            megatron!(""),
            megatron!("--pipeline-model-parallel-size 2"),
            megatron_deepspeed!("--zero-stage 3"),
            megatron_deepspeed!("--num-experts 8 --moe-expert-parallel-size 2"),
            megatron_deepspeed!("--num-experts 8 --tensor-model-parallel-size 2"),
        ],
        with: option,
    });
}

#[test]
fn rows_of_megatron_are_read() {
    check(&Rows {
        stack: Stack::Megatron,
        table: &megatron::FLAGS,
        files: &[
            megatron!(""),
            megatron!("--pipeline-model-parallel-size 2"),
            megatron!("--pipeline-model-parallel-size 2 --num-layers 7"),
            megatron!("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"),
            megatron!("--tensor-model-parallel-size 2 --context-parallel-size 2"),
            megatron!("--position-embedding-type rope --swiglu --disable-bias-linear"),
            megatron!("--swiglu --grad-reduce-in-bf16"),
            megatron!("--num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type flex"),
            megatron!("--num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"),
            megatron!("--multi-latent-attention"),
            megatron!("--hybrid-layer-pattern M*M-M*M-"),
            megatron!("--use-distributed-optimizer --use-precision-aware-optimizer"),
            megatron!("--use-distributed-optimizer --main-params-dtype fp16"),
            megatron!("--use-megatron-fsdp"),
            megatron!("--data-parallel-sharding-strategy optim_grads_params"),
            megatron!("--optimizer muon"),
            megatron!("--optimizer-cpu-offload"),
            megatron!("--fp8-format hybrid"),
            megatron!("--fp4-format e2m1"),
            megatron!("--cross-entropy-loss-fusion"),
            megatron!("--cuda-graph-impl local"),
            megatron!("--recompute-granularity full --recompute-num-layers 2"),
            megatron!("--transformer-impl local"),
            "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 32000 --fp16",
            "torchrun --nproc-per-node 8 pretrain_gpt.py --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 1",
            "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --tokenizer-model llama-3-8b",
        ],
        with: option,
    });
}

#[test]
fn rows_of_slime_are_read() {
    check(&Rows {
        stack: Stack::Megatron,
        table: &megatron::slime::OWN,
        files: &[
            "python3 train.py --n-samples-per-prompt 4 --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 32000",
            "python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --rollout-batch-size 64 --n-samples-per-prompt 4 --max-tokens-per-gpu 8192 --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 32000",
            "python3 train.py --actor-num-nodes 2 --use-dynamic-batch-size --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 32000",
        ],
        with: option,
    });
}

#[test]
fn rows_of_swift_s_megatron_are_read() {
    check(&Rows {
        stack: Stack::Megatron,
        table: &megatron::swift::OWN,
        files: &[
            "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --max_length 4096",
            "NPROC_PER_NODE=8 megatron sft --load Qwen3-8B-mcore --tuner_type lora --max_length 4096",
            "NPROC_PER_NODE=8 megatron sft --load Qwen3-8B-mcore",
            "NPROC_PER_NODE=8 megatron sft --max_length 4096",
        ],
        with: option,
    });
}

#[test]
fn rows_of_nanotron_are_read() {
    check(&Rows {
        stack: Stack::Nanotron,
        table: &nanotron::KEYS,
        files: &[
            "parallelism:\n  dp: 1\ntokens:\n  batch_accumulation_per_replica: 1\nmodel:\n  model_config:\n    is_llama_config: true\n    vocab_size: 32000",
            "parallelism:\n  pp: 2\n  tp: 2\ntokens:\n  batch_accumulation_per_replica: 1\n  sequence_length: 512",
        ],
        with: yaml,
    });
}

#[test]
fn rows_of_verl_are_read() {
    check(&Rows {
        stack: Stack::Verl,
        table: &verl::KEYS,
        files: &[
            verl!("actor_rollout_ref.actor.use_dynamic_bsz=True"),
            verl!("actor_rollout_ref.actor.use_dynamic_bsz=False"),
            verl!(
                "actor_rollout_ref.model.path=XiaomiMiMo/MiMo-7B-RL actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.strategy=megatron"
            ),
            verl!(
                "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.model.lora.rank=8 actor_rollout_ref.actor.strategy=megatron"
            ),
            verl!("actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.strategy=megatron"),
            verl!(
                "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.use_kl_loss=True"
            ),
            verl!(
                "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=0.5"
            ),
            verl!(
                "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True"
            ),
        ],
        with: assignment,
    });
}

/// Options of a client, which stand behind the words of its command.
macro_rules! client {
    ($file:literal) => {
        concat!("vllm serve llama-3-8b &\n", $file)
    };
}

/// Clients by their words in the table, each with files in which its options have a meaning.
const CLIENTS: [(&str, Stack, &[&str]); 13] = [
    (
        "vllm",
        Stack::Vllm,
        &[
            client!("vllm bench serve --max-concurrency 3"),
            client!("vllm bench serve --ramp-up-start-rps 7 --ramp-up-end-rps 9"),
            client!(
                "vllm bench serve --request-rate 3 --ramp-up-strategy linear --ramp-up-start-rps 7 --ramp-up-end-rps 9"
            ),
            client!("vllm bench serve --request-rate 3"),
            client!("vllm bench serve --dataset-name sonnet"),
            client!("vllm bench serve --dataset-name prefix_repetition"),
            client!("vllm bench serve --dataset-name random-mm"),
            client!("vllm bench serve --dataset-name hf"),
        ],
    ),
    (
        "older",
        Stack::Vllm,
        &[
            client!("python benchmark_serving.py --max-concurrency 3 --dataset-name random"),
            client!("python benchmark_serving.py --dataset-name random --request-rate 3"),
            client!("python benchmark_serving.py --dataset-name sonnet"),
            client!("python benchmark_serving.py --dataset-name hf"),
            client!("python benchmark_serving.py --dataset-name random --ramp-up-start-rps 7 --ramp-up-end-rps 9"),
            client!("python benchmark_serving.py --dataset-name prefix_repetition"),
            client!("python benchmark_serving.py --dataset-name random-mm"),
            client!(
                "python benchmark_serving.py --dataset-name random --ramp-up-strategy linear --ramp-up-start-rps 7 --ramp-up-end-rps 9"
            ),
        ],
    ),
    (
        "inferencex",
        Stack::Vllm,
        &[
            client!("python bench_serving/benchmark_serving.py --max-concurrency 3 --dataset-name random"),
            client!("python bench_serving/benchmark_serving.py --dataset-name random --request-rate 3"),
            client!("python bench_serving/benchmark_serving.py --dataset-name sonnet"),
            client!("python bench_serving/benchmark_serving.py --dataset-name hf"),
        ],
    ),
    (
        "trtllm",
        Stack::Vllm,
        &[
            client!("python -m tensorrt_llm.serve.scripts.benchmark_serving --max-concurrency 3 --dataset-name random"),
            client!("python -m tensorrt_llm.serve.scripts.benchmark_serving --dataset-name random --request-rate 3"),
            client!("python -m tensorrt_llm.serve.scripts.benchmark_serving --dataset-name sonnet"),
            client!("python -m tensorrt_llm.serve.scripts.benchmark_serving --dataset-name hf"),
            client!("python -m tensorrt_llm.serve.scripts.benchmark_serving --dataset-name random_image"),
        ],
    ),
    (
        "sglang",
        Stack::Vllm,
        &[
            client!("python -m sglang.bench_serving --dataset-name random --max-concurrency 3"),
            client!("python -m sglang.bench_serving --dataset-name generated-shared-prefix"),
            client!("python -m sglang.bench_serving --dataset-name image"),
            client!("python -m sglang.bench_serving --dataset-name custom"),
        ],
    ),
    (
        "aiperf",
        Stack::Vllm,
        &[
            client!("aiperf profile --osl 5 --request-rate 3 --arrival-pattern gamma"),
            client!("aiperf profile --osl 5 --request-rate 3 --arrival-smoothness 3"),
            client!("aiperf profile --osl 5 --concurrency 3 --shared-system-prompt-length 0"),
            client!("aiperf profile --osl 5 --concurrency 3 --request-count 300"),
            client!("aiperf profile --osl 5 --prefix-prompt-length 30"),
            client!("aiperf profile --concurrency 3"),
            client!("aiperf profile --osl 5 --image-width-mean 64 --image-height-mean 64"),
            client!("aiperf profile --osl 5 --image-width-mean 64"),
            client!("aiperf profile --osl 5 --image-height-mean 64"),
            client!("aiperf profile --osl 5 --random-range-ratio 0.25"),
        ],
    ),
    (
        "genai-perf",
        Stack::Vllm,
        &[
            client!("genai-perf profile --osl 5 --concurrency 3"),
            client!("genai-perf profile --osl 5 --prefix-prompt-length 30"),
            client!("genai-perf profile --concurrency 3"),
            client!("genai-perf profile --osl 5 --concurrency 3 --request-count 300"),
            client!("genai-perf profile --osl 5 --image-width-mean 64 --image-height-mean 64"),
            client!("genai-perf profile --osl 5 --image-width-mean 64"),
            client!("genai-perf profile --osl 5 --image-height-mean 64"),
        ],
    ),
    (
        "guidellm",
        Stack::Vllm,
        &[
            client!("guidellm benchmark --rate-type constant --rate 3 --data prompt_tokens=4,output_tokens=4"),
            client!("guidellm benchmark"),
        ],
    ),
    (
        "throughput",
        Stack::Vllm,
        &[
            "vllm bench throughput --model llama-3-8b",
            "vllm bench throughput --model llama-3-8b --dataset-name hf",
            "vllm bench throughput --model llama-3-8b --dataset-name prefix_repetition",
        ],
    ),
    ("latency", Stack::Vllm, &["vllm bench latency --model llama-3-8b"]),
    (
        "offline",
        Stack::Sglang,
        &[
            "python -m sglang.bench_offline_throughput --model-path llama-3-8b --dataset-name random",
            "python -m sglang.bench_offline_throughput --model-path llama-3-8b --dataset-name custom",
            "python -m sglang.bench_offline_throughput --model-path llama-3-8b --dataset-name generated-shared-prefix",
        ],
    ),
    ("batch", Stack::Sglang, &["python -m sglang.bench_one_batch --model-path llama-3-8b"]),
    ("trtllm-bench", Stack::Trtllm, &["trtllm-bench --model llama-3-8b throughput --concurrency 3"]),
];

#[test]
fn rows_of_clients_are_read() {
    for (word, stack, files) in CLIENTS {
        check(&Rows { stack, table: crate::client::table(word), files, with: option });
    }
}
