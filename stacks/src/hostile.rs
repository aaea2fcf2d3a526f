//! Files that were changed at random are read or refused in words: no panic, and no text that grows without bound.

use proptest::prelude::*;

use crate::{Machine, Stack, import, recognise};

/// A file of every format, with whatever its reader knows.
const FILES: [(Stack, &str); 33] = [
    (
        Stack::Trainer,
        "n=4\nNPROC_PER_NODE=$n CUDA_VISIBLE_DEVICES=0,1,2,3 \\\nswift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --tuner_type lora --max_length 2048 \\\n\
         --max_completion_length 512 --quant_bits 4 --quant_method bnb --deepspeed zero2_offload --packing true --packing_length 4096 --sequence_parallel_size 2\n",
    ),
    (
        Stack::Megatron,
        "if [ \"$1\" == \"\" ]; then N=2; fi\nray job submit --runtime-env-json=\"{}\" -- python3 train.py --actor-num-nodes $N --actor-num-gpus-per-node 8 ${M[@]} \\\n\
         --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216 --num-layers 12 \\\n\
         --hidden-size 768 --num-attention-heads 12 --seq-length 512 --context-parallel-size 2\n",
    ),
    (
        Stack::Megatron,
        "C=./ds.$SLURM_JOB_ID.json\ncat <<EOT > $C\n{\"train_batch_size\": 64, \"bf16\": {\"enabled\": true}}\nEOT\nA=\" --pp-partition-method 'type:transformer|embedding' --num-layers 10 \\\n\
         --hidden-size 768 --num-attention-heads 12 --seq-length 512 --glu-activation swiglu --pad-vocab-size-to 1024 \"\nsrun bash -c \"python -m torch.distributed.run \\\n\
         --nproc_per_node 8 pretrain_gpt.py --pipeline-model-parallel-size 4 $A --bf16 --deepspeed --deepspeed_config ${C} --zero-stage 0\"\n",
    ),
    (
        Stack::Megatron,
        "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8\nN=$((2*${M:-4}+1)) # why\nL=(--num-layers 12 \\\n --hidden-size 768)\nL+=(--num-attention-heads 12)\n\
         if [ -z \"$1\" ]; then X=2; else X='3'; fi\ncat <<EOF >x\n--seq-length 4\nEOF\ntorchrun --nproc_per_node=8 pretrain_gpt.py ${L[@]} --seq-length 512 \\\n\
         --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*2|(tt|)*4t|tL' --moe-layer-freq '([0]*3+[1]*9)' --num-experts 8 \"$@\" `date` $(nproc) 2>&1 | tee log &\n",
    ),
    (
        Stack::Megatron,
        "#SBATCH -N 2 --gres=gpu:8\nA=x; declare -a L=(--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 512)\nif [[ \"$A\" == x* && 1 -lt $N ]] || ((N > 1)); then L+=(--swiglu); elif [ -z $A ]; then B=1; else \\\n\
         for S in 1 2; do L+=(--micro-batch-size $S); done; fi\ncase $A in\n  x|y) C='--bf16' ;;\n  *) C=$1 ;;\nesac\n[ $A = x ] && { D=--fp16; }\nsbatch <<EOF\n#SBATCH --nodes=2\n\
         export N=\\$M\neval \"torchrun --nproc_per_node 8 pretrain_gpt.py ${L[@]} $C $D --num-experts 8 --moe-layer-freq '([0]*3+[1]*9)' --step-batch-size-schedule '0:16 2:32'\"\nEOF\n",
    ),
    (
        Stack::Megatron,
        "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 12 # why\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --seq-length: 1024\n  --bf16: true\n\
         \u{20} --cuda-graph-modules: [attn mlp]\n  --data-path: ${DATA}/x\n  --moe-layer-freq: ([0]*1+[1]*11)\nTEST_TYPE: regular\n",
    ),
    (
        Stack::Megatron,
        "Z=3\nC=x.json\ncat <<EOT > $C\n{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": $Z}}\nEOT\ndeepspeed --num_gpus 8 pretrain_gpt.py --num-layers 12 \\\n\
         --hidden-size 768 --num-attention-heads 12 --seq-length 512 --num-experts 8 8 16 --expert-interval 2 --topk 2 --mlp-type residual --deepspeed \\\n\
         --deepspeed_config $C --zero-stage=$Z --no-pipeline-parallel --ds-sequence-parallel-size 2 --remote-device cpu --use-flash-attn-v2\n",
    ),
    (
        Stack::Vllm,
        "MODEL=llama-3-8b\nvllm serve $MODEL -tp 2 --max-num-seqs=64 --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 3}' --kv-cache-dtype fp8\n",
    ),
    (
        Stack::Sglang,
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 2 --enable-dp-attention --mem-fraction-static 0.85\n",
    ),
    (
        Stack::Trtllm,
        "model: Qwen/Qwen3-32B\ntensor_parallel_size: 2\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: false\nlist:\n  - a: 1\n    b: [1, 2]\n  - c\n",
    ),
    (
        Stack::Deepspeed,
        "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"bf16\": {\"enabled\": true},\n\
         \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}}, \"tensor_parallel\": {\"autotp_size\": 2}, \"gradient_clipping\": \"auto\"}\n",
    ),
    (
        Stack::Torchtitan,
        "torchrun --nproc_per_node=8 -m torchtitan.train --config llama3_8b --training.seq_len=8192 --parallelism.pipeline_parallel_degree=4 \\\n\
         --parallelism.pipeline_parallel_schedule Interleaved1F1B --parallelism.pipeline_parallel_layers_per_stage=4 --ac.mode full\n",
    ),
    (
        Stack::Verl,
        "data:\n  max_prompt_length: 512\n  max_response_length: 512\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B\n  actor:\n    strategy: megatron\n\
         \u{20}   ppo_mini_batch_size: 64\n    ppo_micro_batch_size_per_gpu: 2\n    megatron:\n      tensor_model_parallel_size: 2\n  rollout:\n    n: 8\n",
    ),
    (
        Stack::Verl,
        "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n\
         actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.nnodes=1 trainer.n_gpus_per_node=8\n",
    ),
    (
        Stack::Verl,
        "data:\n  max_prompt_length: 512\n  max_response_length: 512\n  train_batch_size: 128\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B\n  actor:\n\
         \u{20}   ppo_mini_batch_size: 64\n    use_dynamic_bsz: true\n    use_kl_loss: true\n    fsdp_config:\n      optimizer_offload: true\n  rollout:\n    name: vllm\n\
         \u{20}   n: 8\n    tensor_model_parallel_size: 2\n    expert_parallel_size: 1\n    cudagraph_capture_sizes: [1, 2, 8]\ntrainer:\n  n_gpus_per_node: 8\n",
    ),
    (
        Stack::Verl,
        "python -m verl.experimental.fully_async_policy.fully_async_main data.max_prompt_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n\
         actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.name=sglang \\\n\
         rollout.nnodes=1 rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=4 async_training.staleness_threshold=0.5 async_training.require_batches=4\n",
    ),
    (
        Stack::Bridge,
        "torchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b model.tensor_model_parallel_size=2 model.pipeline_model_parallel_layout='Et*2|t' \\\n\
         dataset.sequence_length=4096 train.global_batch_size=64 mixed_precision.grad_reduce_in_fp32=false mixed_precision=bf16_with_mxfp8_mixed\n",
    ),
    (
        Stack::Dynamo,
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n    read:\n      \
         componentType: worker\n      subComponentType: prefill\n      replicas: 3\n      extraPodSpec:\n        mainContainer:\n          command:\n          - python3\n          \
         - -m\n          - dynamo.vllm\n          args:\n          - \"--model\"\n          - \"llama-3-8b\"\n          - --tensor-parallel-size=2\n",
    ),
    (
        Stack::Dynamo,
        "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nspec:\n  components:\n  - name: Frontend\n    type: frontend\n  - name: read\n    \
         podTemplate:\n      spec:\n        containers:\n        - args: [\"--model\", \"llama-3-8b\", \"--speculative-config\", \"{\\\"a\\\": 1}\"]\n          command:\n          \
         - /bin/sh\n          - -c\n          - python3 -m dynamo.vllm\n          name: main\n    replicas: 3\n    type: prefill\n",
    ),
    (
        Stack::Vllm,
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  replicas: 2\n  template:\n    spec:\n      containers:\n      - name: side\n        \
         image: busybox:1.36\n      - name: engine\n        image: vllm/vllm-openai:v0.11.0\n        env:\n        - name: TP\n          value: \"2\"\n        \
         args: [\n          \"--model\", 'llama-3-8b',\n          --tensor-parallel-size, $(TP)\n        ]\n---\napiVersion: v1\nkind: Service\n",
    ),
    (
        Stack::Vllm,
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    environment:\n      - TP=2\n    command: >\n      --model ${MODEL:-llama-3-8b}\n      \
         --tensor-parallel-size 2\n    deploy:\n      replicas: 2\n  web:\n    image: nginx\n    entrypoint: [nginx, -g]\n",
    ),
    (
        Stack::Nanotron,
        "model:\n  dtype: bfloat16\n  make_vocab_size_divisible_by: 128\n  model_config:\n    is_llama_config: true\n    hidden_size: 4096\n    num_hidden_layers: 32\n\
         \u{20}   vocab_size: 128256\nparallelism:\n  dp: 4\n  pp: 2\n  tp: 2\n  tp_linear_async_communication: true\ntokens:\n  micro_batch_size: 2\n\
         \u{20} batch_accumulation_per_replica: 8\n  sequence_length: 4096\n",
    ),
    (
        Stack::Megatron,
        "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 megatron sft --load Qwen2.5-7B-Instruct-mcore --tensor_model_parallel_size 2 --sequence_parallel true \\\n\
         --micro_batch_size 16 --global_batch_size 16 --max_length 2048 --train_type lora --lora_rank 8 --packing true\n",
    ),
    (
        Stack::Trainer,
        "base_model: Qwen/Qwen3-8B\nsequence_len: 4096\nsample_packing: true\nadapter: qlora\nlora_target_modules:\n  - q_proj\n  - v_proj\nfsdp:\n  - full_shard\n\
         fsdp_config: {offload_params: true, fsdp_version: 2}\ngradient_accumulation_steps: 4\noptimizer: adamw_bnb_8bit\nbf16: auto\n",
    ),
    (
        Stack::Trainer,
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file a.yaml src/train_bash.py --model_name_or_path Qwen/Qwen3-8B --deepspeed ds_z3.json \\\n\
         --finetuning_type lora --lora_target q_proj,v_proj --cutoff_len 1024 --bf16 --per_device_train_batch_size=2 --config x.yaml a=b\n",
    ),
    (
        Stack::Trainer,
        "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n  lora_attn_modules: ['q_proj', 'v_proj']\n  apply_lora_to_mlp: True\n\
         optimizer:\n  _component_: torch.optim.AdamW\nbatch_size: 2\nbatch_size_val: ${batch_size}\ndtype: bf16\n",
    ),
    (
        Stack::Trtllm,
        "cat >o.yaml <<'END'\nkv_cache_config:\n  dtype: fp8\ncuda_graph_config:\n  batch_sizes: [1, 2, 4]\nEND\ntrtllm-serve llama-3-8b --config o.yaml --tp_size 4\n",
    ),
    (
        Stack::Vllm,
        "C=8; vllm serve llama-3-8b --port 8000 &\nfor R in 1 4 inf; do\n  vllm bench serve --dataset-name random --random-input-len 1024 --random-output-len $((C*16)) \\\n\
         --random-range-ratio '{\"input\": 0.5, \"output\": 0.2}' --random-prefix-len 64 --request-rate $R --burstiness 0.5 --max-concurrency $C --num-warmups 3 --num-prompts 1_000\ndone\n\
         vllm bench serve --dataset-name random-mm --random-mm-bucket-config '{(256, 512, 1): 1.0, (8, 8, 2): 0}' --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9\n",
    ),
    (
        Stack::Sglang,
        "python -m sglang.launch_server --model-path llama-3-8b &\npython3 -m sglang.bench_serving --dataset-name image --image-resolution 720x1280 --image-count 2 --random-input 64 \\\n\
         --random-output 8 --random-range-ratio 0.5 --gsp-num-groups 1 --warmup-requests 2 --max-concurrency 4\n",
    ),
    (
        Stack::Vllm,
        "vllm serve llama-3-8b &\naiperf profile --isl 100 --isl-stddev 1e3 --osl 10 --concurrency 4,8 --request-rate 2 --arrival-pattern gamma --arrival-smoothness 3 \\\n\
         --benchmark-duration 60 --prefix-prompt-length 30 --num-prefix-prompts 1 --image-width-mean 64 --image-height-mean 64 --num-dataset-entries 7\n",
    ),
    (
        Stack::Vllm,
        "vllm serve llama-3-8b &\nguidellm benchmark --rate-type=constant --rate 2 --rate 4 --max-seconds 30 --data \"prompt_tokens=256,output_tokens=128,prompt_tokens_stdev=9,\\\n\
         output_tokens_min=1,output_tokens_max=99\" --constraint kind=max_requests,value=9\n",
    ),
    (Stack::Vllm, "vllm bench latency --model llama-3-8b --input-len 32 --output-len 8 --batch-size 4 8 -tp 2 --n 1\n"),
    (
        Stack::Trtllm,
        "python prepare_dataset.py --tokenizer=m --stdout token-norm-dist --num-requests=30 --input-mean=128 --output-mean=64 --input-stdev=5 --output-stdev=0 > s\n\
         trtllm-bench -m llama-3-8b --model_path x throughput --dataset s --tp 2 --ep 1 --concurrency -1 --num_requests 20 --scheduler_policy max_utilization\n",
    ),
];

/// Pieces that readers look for, and numbers at the ends of what they hold.
const PIECES: [&str; 26] = [
    "$",
    "${",
    "}",
    "$((",
    "))",
    "(",
    ")",
    "\"",
    "'",
    "`",
    "\\",
    "\n",
    ";",
    "<<",
    ">",
    "#",
    ":-",
    "[@]",
    "--",
    "=",
    "|",
    "*99999999999",
    "-1",
    "18446744073709551616",
    "\u{fffc}",
    "\t- - : ",
];

fn machine() -> Machine {
    let (gpu, model) = (Some("h100-sxm".to_owned()), Some("llama-3-8b".to_owned()));
    Machine { gpu, model, tokens: Some(4096), ..Machine::default() }
}

/// A file with some pieces put in, some parts left out and some said twice.
fn changed(text: &str, changes: &[(usize, usize, u8)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for &(at, what, how) in changes {
        let at = at % (letters.len() + 1);
        let end = (at + what % 40).min(letters.len());
        match how % 3 {
            0 => drop(letters.splice(at..at, PIECES[what % PIECES.len()].chars())),
            1 => drop(letters.drain(at..end)),
            _ => {
                let again: Vec<char> = letters[at..end].to_vec();
                drop(letters.splice(at..at, again));
            }
        }
    }
    letters.into_iter().collect()
}

#[test]
fn the_files_are_read_as_what_they_are() {
    for (stack, text) in FILES {
        assert_eq!(recognise(text), Some(stack), "{text}");
        let scenario = import(stack, text, &machine()).scenario;
        assert!(scenario.contains("cluster]") || scenario.contains("[[fleet.group]]"), "{text}");
    }
}

/// Changed files that one run tries, of every format; the environment asks for more.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn no_change_of_a_file_stops_its_reader(which in 0..FILES.len(), changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..12)) {
        let (stack, text) = FILES[which];
        let text = changed(text, &changes);
        let _ = recognise(&text);
        let imported = import(stack, &text, &machine());
        prop_assert!(imported.scenario.len() < 1 << 21);
        for finding in imported.findings {
            if let Some(at) = finding.at {
                prop_assert!(at.start <= at.end && at.end <= text.len() && text.is_char_boundary(at.start) && text.is_char_boundary(at.end), "{:?} of {text:?}", at);
            }
        }
    }
}
