//! Tests of projects' own scripts and recipes, as they stand in their repositories.

use input::diagnostic::{Code, Severity};

use crate::example::{h100, has_lines, is_known, said};
use crate::{Imported, Stack, import, recognise};

/// As huggingface/open-r1 @ 1416fa0cf has it: `recipes/DeepSeek-R1-Distill-Qwen-1.5B/grpo/config_demo.yaml`, in short.
const OPEN_R1: &str = "model_name_or_path: Qwen/Qwen2.5-Math-7B\ntorch_dtype: bfloat16\nsystem_prompt: \"x\"\nbf16: true\nuse_vllm: true\nlearning_rate: 1.0e-06\n\
    gradient_accumulation_steps: 4\nmax_prompt_length: 2000\nmax_completion_length: 8192\nnum_generations: 16\nper_device_train_batch_size: 2\n\
    reward_funcs:\n- accuracy\nreward_weights:\n- 1.0\n";
/// As haotian-liu/LLaVA @ 003466152 has it: `scripts/v1_5/finetune_lora.sh`, in short.
const LLAVA: &str = "deepspeed --num_gpus 8 llava/train/train_mem.py --lora_enable True --mm_projector_lr 2e-5 --deepspeed ./scripts/zero3.json \
    --model_name_or_path meta-llama/Llama-2-13b-hf --version v1 --vision_tower openai/clip-vit-large-patch14-336 --bf16 True \
    --per_device_train_batch_size 16 --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True ";
/// As QwenLM/Qwen @ 00dceebba has it: `finetune/finetune_lora_ds.sh`, in short.
const QWEN: &str = "MODEL=\"Qwen/Qwen2.5-7B\"\ntorchrun --nproc_per_node 8 --nnodes 1 finetune.py --model_name_or_path $MODEL --bf16 True \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 512 --use_lora --gradient_checkpointing \
    --deepspeed finetune/ds_config_zero2.json ";
/// As deepspeedai/DeepSpeedExamples @ 45b4b7156 has it: `DeepSpeed-Chat/training/step1_supervised_finetuning/training_scripts`, in short.
const CHAT: &str = "deepspeed --num_gpus 8 main.py --data_split 2,4,4 --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 \
    --max_seq_len 512 --num_warmup_steps 0 --gradient_checkpointing --deepspeed ";
/// As modelscope/ms-swift @ 3602360a5 has them: `examples/train`, in short.
const SWIFT: &str = "CUDA_VISIBLE_DEVICES=0,1,2,3 \\\nNPROC_PER_NODE=$n \\\nswift sft --model Qwen/Qwen3-8B --dataset 'swift/self-cognition#500' \
    --torch_dtype bfloat16 --per_device_train_batch_size 1 --max_length 2048 --system 'You are a helpful assistant.' \
    --model_author swift --model_name swift-robot ";

fn found(text: &str, set: &[&str]) -> Imported {
    assert_eq!(recognise(text), Some(Stack::Trainer), "{text}");
    import(Stack::Trainer, text, &h100(set))
}

/// Lines that a scenario has, nothing that is wrong, and nothing that no table knows; what is said.
fn check(text: &str, set: &[&str], lines: &[&str], parts: &[&str]) {
    let found = found(text, set);
    has_lines(&found, lines);
    is_known(&found, text);
    for part in parts {
        assert!(said(&found).iter().any(|what| what.contains(part)), "{part} of {text}: {:?}", said(&found));
    }
}

#[test]
fn a_sequence_of_grpo_is_a_prompt_with_its_answer() {
    const ONE: [&str; 2] = ["cluster.nodes=1", "cluster.gpus_per_node=8"];
    let whole = "2000 + 8192 = 10192 tokens";
    let left = "answers, rewards and log probabilities beside it are not modelled";
    check(OPEN_R1, &ONE, &["tokens = 10192", "bucket_tokens = 20384", "batch_size = 64"], &[whole, left]);
    // Defaults of `GRPOConfig`.
    let bare = OPEN_R1.replace("max_prompt_length: 2000\nmax_completion_length: 8192\n", "");
    check(&bare, &ONE, &["tokens = 768"], &["the number of prompts and answers is TRL's default", left]);
    let stated = found(OPEN_R1, &[&ONE[..], &["workload.tokens=3000"]].concat());
    assert!(
        !said(&stated).iter().any(|what| what.contains("10192"))
            && said(&stated).iter().any(|what| what.contains(left))
    );
    // Pairs of answers have one length for both together.
    let pairs = "model_name_or_path: Qwen/Qwen3-4B\nlearning_rate: 1\nbeta: 0.1\nmax_length: 1024\nmax_prompt_length: 512\nper_device_train_batch_size: 1\n";
    check(pairs, &ONE, &["tokens = 1024"], &["pairs of answers and a reference are not modelled"]);
    check("trl grpo --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 8", &ONE, &["tokens = 1024"], &[]);
}

#[test]
fn adapters_of_a_known_program_are_its_own() {
    let all = "adapters_beside = \"all\"";
    let zero = ["parallel.zero=3"];
    check(
        LLAVA,
        &zero,
        &["adapter_rank = 64", all, "adapter_dropout = true"],
        &["trains the projector", "`--vision_tower"],
    );
    check(&format!("{LLAVA}--lora_r 128 --bits 4"), &zero, &["adapter_rank = 128", "frozen = \"nf4-double\""], &[]);
    check(QWEN, &zero, &["adapter_rank = 64", all], &["trains both tables of a base model"]);
    let packed = "`--q_lora true` is not modelled";
    check(&format!("{QWEN} --q_lora"), &zero, &["frozen = \"nf4\""], &[packed]);
    let chat = format!("{CHAT}--zero_stage 3 --lora_dim 128 --lora_module_name decoder.layers. ");
    check(&chat, &[], &["adapter_rank = 128", all, "dtype = \"fp16\""], &["trains tables, norms and biases in whole"]);
    assert!(!found(&chat, &[]).scenario.contains("adapter_dtype"), "its adapters have the format of the weights");
    let alone = found(&format!("{chat} --only_optimize_lora"), &[]);
    assert!(!said(&alone).iter().any(|what| what.contains("in whole")), "{:?}", said(&alone));
    let full = format!("{CHAT}--zero_stage 3 --offload --lora_dim 0");
    check(&full, &[], &["parameters_on_host = true", "offload_ratio = 1"], &[]);
    assert!(!found(&full, &[]).scenario.contains("adapters"));
    check(&format!("{CHAT}--zero_stage 2"), &[], &["zero = 2", "gradient_sync = \"overlapped\""], &[]);
    // PEFT's own rank and products are a guess in a script that nobody knows.
    let other = QWEN.replace("finetune.py", "tune.py");
    check(
        &other,
        &zero,
        &["adapter_rank = 8"],
        &["adapters beside `q_proj`, `v_proj` of rank 8, PEFT's own, are taken"],
    );
    let known = found(&format!("{other} --lora_r 8 --lora_target_modules q_proj"), &zero);
    assert!(!said(&known).iter().any(|what| what.contains("PEFT's own")), "{:?}", said(&known));
}

#[test]
fn a_projector_alone_is_refused() {
    let text = format!("{}--tune_mm_mlp_adapter True", LLAVA.replace("--lora_enable True ", ""));
    let found = found(&text, &["parallel.zero=2"]);
    let errors: Vec<Code> =
        found.findings.iter().filter(|one| one.severity == Severity::Error).map(|one| one.code).collect();
    assert_eq!(errors, [Code::UnsupportedJob]);
}

#[test]
fn a_stage_on_the_command_line_stands_for_one_that_the_script_leaves_open() {
    let text = format!("{CHAT}--zero_stage $ZERO_STAGE");
    check(&text, &["parallel.zero=3"], &["zero = 3", "framework = \"deepspeed\""], &[]);
    let open = found(&text, &[]);
    assert!(open.findings.iter().any(|one| one.code == Code::UnknownValue && one.severity == Severity::Error));
}

#[test]
fn ms_swift_trains_adapters_unless_it_is_told_to_train_all() {
    let of = |more: &str| format!("n=4\n{SWIFT}{more}\n");
    let lines = [
        "name = \"qwen3-8b\"",
        "gpus_per_node = 4",
        "tokens = 2048",
        "adapter_rank = 8",
        "adapters_beside = \"all\"",
        "adapter_dropout = true",
        "recompute = \"full\"",
        "dtype = \"bf16\"",
        // Sixteen sequences of a step, where nothing is said.
        "batch_size = 16",
    ];
    check(&of(""), &[], &lines, &[]);
    for (more, lines) in [
        ("--tuner_type full --deepspeed zero3", &["zero = 3", "framework = \"deepspeed\""][..]),
        ("--train_type full --deepspeed zero3_offload", &["offload_ratio = 1", "parameters_on_host = true"]),
        ("--sft_type full --deepspeed zero2_offload", &["zero = 2", "offload_ratio = 1"]),
        ("--tuner_type full", &["zero = 0", "master = \"none\"", "framework = \"pytorch\""]),
        ("--tuner_type full --fsdp fsdp2", &["zero = 3", "framework = \"pytorch\""]),
        ("--quant_bits 4 --quant_method bnb --lora_rank 16", &["frozen = \"nf4-double\"", "adapter_rank = 16"]),
        ("--train_type qlora", &["frozen = \"nf4-double\""]),
        ("--target_modules q_proj k_proj", &["adapters_beside = [\"q_proj\", \"k_proj\"]"]),
        ("--sequence_parallel_size 2", &["cp = 2", "exchange = \"ulysses\""]),
        ("--gradient_accumulation_steps 2", &["batch_size = 8"]),
        ("--packing true --attn_impl flash_attn --packing_length 8192", &["tokens = 8192"]),
        ("--torch_dtype float16", &["dtype = \"fp16\""]),
    ] {
        check(&of(more), &[], lines, &[]);
    }
    let grpo = of("--rlhf_type grpo --reward_funcs accuracy --num_generations 8 --use_vllm true --vllm_mode colocate");
    let grpo = grpo.replace("swift sft", "swift rlhf");
    // `max_length` is that of a prompt, and an answer has 512.
    check(&grpo, &[], &["tokens = 2560"], &["2048 + 512 = 2560", "are not modelled"]);
    let dpo = grpo.replace("grpo", "dpo").replace("--reward_funcs accuracy --num_generations 8 --use_vllm true", "");
    check(&dpo, &[], &["tokens = 2048"], &["pairs of answers and a reference are not modelled"]);
    let one = of("").replace("NPROC_PER_NODE=$n \\\n", "");
    check(&one, &[], &["gpus_per_node = 4"], &["one process has the layers on 4 devices"]);
    let open = found(&SWIFT.replace("CUDA_VISIBLE_DEVICES=0,1,2,3", "X=1"), &[]);
    assert!(said(&open).iter().any(|what| what.contains("`--nproc-per-node` is known only when")), "{:?}", said(&open));
}
