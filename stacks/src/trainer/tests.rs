//! Jobs of every dialect.

use input::diagnostic::{Code, Severity};

use crate::example::{h100, has_parts, said};
use crate::{Imported, Machine, Stack, import, recognise};

const AXOLOTL: &str = "base_model: NousResearch/Llama-2-70b-hf\nload_in_4bit: true\nadapter: qlora\nsequence_len: 512\nmicro_batch_size: 1\n\
    gradient_accumulation_steps: 4\noptimizer: adamw_torch\ngradient_checkpointing: true\nlora_target_linear: true\nfsdp:\n  - full_shard\n";
const LLAMA_FACTORY: &str = "deepspeed --num_gpus 8 src/train_bash.py --deepspeed examples/ds_z3.json --stage sft --model_name_or_path meta-llama/Llama-2-7b-hf \
    --do_train --finetuning_type full --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --cutoff_len 1024 --bf16\n";
const SCRIPT: &str = "accelerate launch --num_processes 8 --mixed_precision bf16 train.py --model_name_or_path meta-llama/Llama-2-7b-hf \
    --per_device_train_batch_size 4 --max_seq_length 2048 ";
const TORCHTUNE: &str = "# tune run --nproc_per_node 4 full_finetune_distributed --config llama3_1/8B_full\nmodel:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\n\
    tokenizer:\n  max_seq_len: 4096\nbatch_size: 2\noptimizer:\n  _component_: torch.optim.AdamW\nenable_activation_checkpointing: True\ncompile: True\ndtype: bf16\n";
const ENGINE: &str = r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}"#;

fn found(text: &str, machine: &Machine) -> Imported {
    assert_eq!(recognise(text), Some(Stack::Trainer), "{text}");
    import(Stack::Trainer, text, machine)
}

fn check(text: &str, set: &[&str], lines: &[&str]) -> Imported {
    let found = found(text, &h100(set));
    has_parts(&found, lines);
    found
}

fn errors(found: &Imported) -> Vec<&str> {
    let wrong = found.findings.iter().filter(|finding| finding.severity == Severity::Error);
    wrong.map(|finding| finding.what.as_str()).collect()
}

#[test]
fn axolotl_trains_adapters_over_shares() {
    let lines = [
        "llama-2-70b",
        "zero = 3",
        "trains = \"adapters\"",
        "adapter_rank = 8",
        "adapters_beside = \"all\"",
        "frozen = \"nf4-double\"",
        "tokens = 512",
        // Eight ranks with four micro-batches of one sequence each.
        "batch_size = 32",
        "bucket_tokens = 512",
        "recompute = \"full\"",
        "framework = \"pytorch\"",
    ];
    let found = check(AXOLOTL, &["cluster.nodes=1", "cluster.gpus_per_node=8"], &lines);
    assert_eq!(errors(&found), [""; 0]);
    let alone = check(AXOLOTL, &[], &[]);
    assert_eq!(errors(&alone), ["the file does not say how many GPUs there are, which share the model's states"]);
}

#[test]
fn llama_factory_takes_the_file_of_its_engine_or_the_stage_in_its_name() {
    let lines = [
        "llama-2-7b",
        "zero = 3",
        "gpus_per_node = 8",
        "batch_size = 128",
        "bucket_tokens = 4096",
        "recompute = \"full\"",
    ];
    let absent = check(LLAMA_FACTORY, &[], &lines);
    assert_eq!(errors(&absent), [""; 0]);
    assert!(said(&absent).iter().any(|what| what.contains("ZeRO 3 is taken, as its name says")), "{:?}", said(&absent));
    assert_eq!(crate::named_beside(LLAMA_FACTORY), ["ds_z3.json", "meta-llama/Llama-2-7b-hf/config.json"]);
    let files = vec![("ds_z3.json".to_owned(), ENGINE.to_owned())];
    let beside = found(LLAMA_FACTORY, &Machine { files, ..h100(&[]) });
    // What the trainer fills in is not asked for.
    assert_eq!(errors(&beside), [""; 0]);
    has_parts(&beside, &["zero = 3", "offload_ratio = 1", "dtype = \"bf16\""]);
    assert!(!beside.scenario.contains("gradient_sync"), "stage 3 has one way: {}", beside.scenario);
}

#[test]
fn a_command_is_given_a_yaml_and_its_overrides() {
    let yaml = "model_name_or_path: Qwen/Qwen3-4B\nfinetuning_type: lora\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n";
    let text = "CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train examples/a.yaml lora_rank=16\n";
    assert_eq!(crate::named_beside(text), ["a.yaml"]);
    let with = found(text, &Machine { files: vec![("a.yaml".to_owned(), yaml.to_owned())], ..h100(&[]) });
    assert_eq!(errors(&with), [""; 0]);
    has_parts(&with, &["qwen3-4b", "gpus_per_node = 2", "adapter_rank = 16", "adapters_beside = \"all\"", "zero = 0"]);
    let without = found(text, &h100(&[]));
    assert!(
        errors(&without).iter().any(|what| what.starts_with("`a.yaml` does not lie beside")),
        "{:?}",
        errors(&without)
    );
}

/// modelscope/ms-swift 3.9.3 and hiyouga/LLaMA-Factory take such words.
#[test]
fn flash_attention_three_is_named() {
    let line = "attention = \"flash-attention-3\"";
    for (start, more) in [
        ("swift sft --model", "--attn_impl flash_attention_3"),
        ("swift sft --model", "--attn_impl kernels-community/vllm-flash-attn3"),
        ("swift sft --model", "--attn_impl kernels-community/flash-attn3"),
        ("llamafactory-cli train --model_name_or_path", "--flash_attn fa3"),
    ] {
        let text = format!("{start} Qwen/Qwen3-8B --per_device_train_batch_size 1 {more}\n");
        let machine = Machine::of_overrides(&["cluster.gpu=h100-sxm".to_owned()]);
        let found = import(Stack::Trainer, &text, &machine);
        assert!(found.scenario.contains(line), "{more}: {}", found.scenario);
        let two = text.replace("_3", "_2").replace("attn3", "attn2").replace("fa3", "fa2");
        let two = import(Stack::Trainer, &two, &machine);
        assert!(!two.scenario.contains(line), "{more}: {}", two.scenario);
        let four = text.replace("_3", "_4").replace("attn3", "attn4").replace("fa3", "fa4");
        let four = import(Stack::Trainer, &four, &machine);
        let is_said =
            four.findings.iter().any(|one| one.what.ends_with("is not modelled") && one.what.contains("attn"));
        assert!(is_said && !four.scenario.contains(line), "{more}: {:?}", four.findings);
    }
}

/// A node of eight.
const EIGHT: [&str; 2] = ["cluster.nodes=1", "cluster.gpus_per_node=8"];

#[test]
fn a_loss_over_chunks_is_that_of_its_library() {
    let text =
        |more: &str| format!("accelerate launch sft.py --model_name_or_path Qwen/Qwen3-8B --max_length 4096 {more}\n");
    let loss = |more: &str| check(&text(more), &EIGHT, &[]).scenario;
    assert!(loss("--loss_type chunked_nll").contains("loss = \"chunked-nll\""));
    assert!(!loss("--loss_type nll").contains("loss ="));
}

#[test]
fn words_of_the_trainer_give_keys() {
    for (options, line) in [
        ("", "gradient_dtype = \"fp32\""),
        ("", "zero = 0"),
        ("--gradient_checkpointing True", "recompute = \"full\""),
        ("--gradient_checkpointing false", "recompute = \"none\""),
        ("--fsdp 'full_shard auto_wrap'", "zero = 3"),
        ("--fsdp shard_grad_op", "zero = 2"),
        ("--torch_dtype bfloat16", "master = \"none\""),
        ("--torch_dtype bfloat16", "gradient_dtype = \"bf16\""),
        ("--optim adamw_bnb_8bit", "first_moment = \"int8\""),
        ("--optim paged_adamw_8bit", "second_moment = \"int8\""),
        ("--use_peft --load_in_4bit", "frozen = \"nf4\""),
        ("--use_peft --use_4bit_quantization True --use_nested_quant True", "frozen = \"nf4-double\""),
        ("--use_peft --load_in_4bit --bnb_4bit_use_double_quant", "frozen = \"nf4-double\""),
        ("--use_peft --load_in_8bit", "frozen = \"int8\""),
        ("--use_peft --load_in_4bit --optim adamw_8bit", "first_moment = \"int8\""),
        ("--attn_implementation eager", "attention = \"unfused\""),
        ("--torch_compile", "compile = true"),
        ("--fp16", "dtype = \"fp16\""),
        ("--use_peft", "adapters_beside = [\"q_proj\", \"v_proj\"]"),
        ("--lora_r 64 --lora_target_modules query_key_value", "adapters_beside = [\"q_proj\", \"k_proj\", \"v_proj\"]"),
        ("--use_peft --lora_target_modules all-linear", "adapters_beside = \"all\""),
        ("--zero_stage 2", "zero = 2"),
        ("--optim adamw_torch", "kernels = \"foreach\""),
        ("--use_peft --lora_dropout 0.1", "adapter_dropout = true"),
        ("--use_peft", "adapter_dtype = \"fp32\""),
        ("--use_liger_kernel", "loss = \"linear\""),
    ] {
        let found = check(&format!("{SCRIPT}{options}\n"), &[], &[line, "batch_size = 32", "bucket_tokens = 8192"]);
        assert_eq!(errors(&found), [""; 0], "{options}");
    }
}

#[test]
fn accelerate_reduces_gradients_in_the_last_micro_batch() {
    let text = format!("{SCRIPT}--fsdp full_shard --gradient_accumulation_steps 4\n");
    check(&text, &[], &["gradient_sync = \"at_end\"", "batch_size = 128"]);
    let one = found(&format!("{SCRIPT}--fsdp full_shard\n"), &h100(&[]));
    assert!(!one.scenario.contains("gradient_sync"), "one micro-batch is the last: {}", one.scenario);
}

#[test]
fn nothing_is_ignored_in_silence() {
    for (options, what) in [
        ("--use_liger_kernel", "`--use_liger_kernel true` is not modelled"),
        ("--optim lion_32bit", "`--optim lion_32bit` is not modelled"),
        ("--load_in_4bit", "`--load_in_4bit true` is not modelled"),
        ("--load_in_8bit", "`--load_in_8bit true` is not modelled"),
        (
            "--use_peft --load_in_4bit --bnb_4bit_compute_dtype float32",
            "`--bnb_4bit_compute_dtype float32` is not modelled",
        ),
        ("--optim paged_adamw_32bit", "pages of states that `paged_adamw_32bit` sends to the host are not modelled"),
        ("--optim paged_adamw_8bit", "pages of states that `paged_adamw_8bit` sends to the host are not modelled"),
        ("--optim adamw_bnb_8bit", "states of the embedding are counted in 8 bits"),
        ("--use_peft --lora_target_modules lm_head", "`--lora_target_modules lm_head` is not modelled"),
        ("--made_up 3", "`--made_up` is not in the table of flags"),
    ] {
        let found = check(&format!("{SCRIPT}{options}\n"), &[], &[]);
        assert!(said(&found).contains(&what), "{options}: {:?}", said(&found));
    }
}

#[test]
fn what_is_missing_is_asked_for_by_the_override_that_says_it() {
    let text = "accelerate launch train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16\n";
    let found = import(Stack::Trainer, text, &Machine::default());
    let help: String = found.findings.iter().filter_map(|one| one.help.clone()).collect::<Vec<_>>().join(" ");
    for key in ["workload.tokens", "cluster.gpu=", "cluster.nodes", "training.bucket_tokens"] {
        assert!(help.contains(&format!("--set {key}")), "{key}: {help}");
    }
    let stated =
        import(Stack::Trainer, text, &h100(&["workload.tokens=512", "training.bucket_tokens=512", "cluster.nodes=1"]));
    assert!(stated.findings.iter().all(|one| one.code != Code::MissingFlag), "{:?}", stated.findings);
}

#[test]
fn torchtune_updates_parameters_in_sixteen_bits() {
    let lines = [
        "llama-3.1-8b",
        "zero = 3",
        "gpus_per_node = 4",
        "master = \"none\"",
        "compile = true",
        "recompute = \"full\"",
        "batch_size = 8",
        "bucket_tokens = 8192",
    ];
    let several_gpus = check(TORCHTUNE, &["cluster.nodes=1", "cluster.gpus_per_node=4"], &lines);
    assert_eq!(errors(&several_gpus), [""; 0]);
    let single = TORCHTUNE.replace("full_finetune_distributed", "full_finetune_single_device");
    check(&single, &[], &["zero = 0", "gpus_per_node = 1"]);
    // Its recipes for one card update each parameter in backward and make logits by chunks.
    let small = format!(
        "{single}optimizer_in_bwd: True\nloss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
    );
    let alone = check(&small, &[], &["kernels = \"in-backward\"", "loss = \"chunked\""]);
    assert_eq!(errors(&alone), [""; 0]);
    // Its recipe raises where gradients of several micro-batches are added up (`full_finetune_single_device.py`).
    let several = found(&format!("{small}gradient_accumulation_steps: 4\n"), &h100(&[]));
    assert!(errors(&several).iter().any(|what| what.contains("`optimizer_in_bwd`")), "{:?}", errors(&several));
    // Configurations that generate or evaluate train nothing.
    assert_eq!(recognise("model:\n  _component_: torchtune.models.llama3.llama3_8b\ntemperature: 0.6\n"), None);
}

#[test]
fn configurations_of_accelerate_say_what_is_shared() {
    let yaml = "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n";
    let text = "accelerate launch --config_file fsdp.yaml train.py --model_name_or_path Qwen/Qwen3-8B --max_length 512 --per_device_train_batch_size 1\n";
    let with = found(text, &Machine { files: vec![("fsdp.yaml".to_owned(), yaml.to_owned())], ..h100(&[]) });
    assert_eq!(errors(&with), [""; 0]);
    has_parts(&with, &["nodes = 2", "gpus_per_node = 8", "zero = 3", "batch_size = 16"]);
}

#[test]
fn programs_pack_frozen_weights_as_they_do_by_themselves() {
    let llama_factory = "model_name_or_path: Qwen/Qwen3-4B\nfinetuning_type: lora\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n";
    let tuned = TORCHTUNE.replace("full_finetune_distributed", "lora_finetune_single_device");
    let qlora = tuned.replace("llama3_1.llama3_1_8b", "llama3_1.qlora_llama3_1_8b");
    let quantised = tuned.replace("llama3_1.llama3_1_8b", "llama3_1.lora_llama3_1_8b\n  quantize_base: True");
    let optimizer = |name: &str| qlora.replace("torch.optim.AdamW", name);
    let plain = AXOLOTL.replace(
        "gradient_checkpointing",
        "bnb_config_kwargs:\n  bnb_4bit_use_double_quant: false\ngradient_checkpointing",
    );
    for (text, line) in [
        (format!("{llama_factory}quantization_bit: 4\nquantization_method: bnb\n"), "frozen = \"nf4-double\""),
        (format!("{llama_factory}quantization_bit: 4\ndouble_quantization: false\n"), "frozen = \"nf4\""),
        (format!("{llama_factory}quantization_bit: 8\n"), "frozen = \"int8\""),
        (plain, "frozen = \"nf4\""),
        (quantised, "frozen = \"nf4-torchao\""),
        (optimizer("bitsandbytes.optim.PagedAdamW8bit"), "first_moment = \"int8\""),
        (optimizer("torchao.optim.AdamW8bit"), "second_moment = \"int8\""),
        (qlora.clone(), "frozen = \"nf4-torchao\""),
    ] {
        let found = check(&text, &["cluster.nodes=1", "cluster.gpus_per_node=1"], &[line, "trains = \"adapters\""]);
        assert_eq!(errors(&found), [""; 0], "{text}");
    }
    for (more, what) in [
        ("quantization_bit: 3\n", "`quantization_bit 3` is not modelled"),
        ("quantization_bit: 4\nquantization_method: hqq\n", "`quantization_method hqq` is not modelled"),
    ] {
        let found = check(&format!("{llama_factory}{more}"), &[], &[]);
        assert!(said(&found).contains(&what), "{more}: {:?}", said(&found));
    }
}

/// With PEFT's modules stage 3 drops the order that it recorded in every step (deepspeedai/DeepSpeed issue 6870), so nothing is gathered ahead.
#[test]
fn stage_three_gathers_nothing_ahead_beside_adapters() {
    let prefetches = |text: &str| {
        let found = found(text, &h100(&["cluster.nodes=1", "cluster.gpus_per_node=4"]));
        ["forward_prefetch = false", "backward_prefetch = false"].map(|line| found.scenario.contains(line))
    };
    let adapters = LLAMA_FACTORY.replace("finetuning_type full", "finetuning_type lora");
    assert_eq!(prefetches(&adapters), [true; 2], "{adapters}");
    assert_eq!(prefetches(LLAMA_FACTORY), [false; 2]);
    assert_eq!(prefetches(&adapters.replace("ds_z3.json", "ds_z2.json")), [false; 2]);
}

#[test]
fn engines_hold_sixteen_bits_and_what_names_of_files_say_of_the_host() {
    let of = |file: &str| LLAMA_FACTORY.replace("ds_z3.json", file);
    for (file, has, has_not) in [
        ("ds_z3.json", &["zero = 3"][..], &["offload_ratio", "parameters_on_host"][..]),
        ("ds_z2_offload_config.json", &["zero = 2", "offload_ratio = 1"], &["parameters_on_host"]),
        ("ds_z3_offload_config.json", &["zero = 3", "offload_ratio = 1", "parameters_on_host = true"], &[]),
        ("zero3_bf16_cpuoffload_params.json", &["zero = 3", "parameters_on_host = true"], &["offload_ratio"]),
    ] {
        let found = check(&of(file), &[], has);
        has_parts(&found, &["framework = \"deepspeed\"", "gradient_dtype = \"bf16\""]);
        for line in has_not {
            assert!(!found.scenario.contains(line), "{file}: {}", found.scenario);
        }
    }
    let found = check(&of("ds_z3_offload_config.json"), &[], &[]);
    let words = "ZeRO 3 with optimizer and parameters on the host is taken, as its name says";
    assert!(said(&found).iter().any(|what| what.contains(words)), "{:?}", said(&found));
}

#[test]
fn a_host_beside_adapters_is_named() {
    let torchtune = TORCHTUNE.replace("llama3_1.llama3_1_8b", "llama3_1.lora_llama3_1_8b") + "fsdp_cpu_offload: True\n";
    let axolotl = format!("{AXOLOTL}fsdp_config:\n  fsdp_offload_params: true\n");
    for (text, name) in [(torchtune, "fsdp_cpu_offload"), (axolotl, "fsdp_offload_params")] {
        let lines = ["trains = \"adapters\"", "parameters_on_host = true"];
        let found = check(&text, &["cluster.nodes=1", "cluster.gpus_per_node=8"], &lines);
        let named = said(&found).iter().any(|what| what.contains(name) && what.contains("is not modelled"));
        assert!(named && !found.scenario.contains("offload_ratio"), "{name}: {:?}", said(&found));
    }
    let engine = LLAMA_FACTORY.replace("ds_z3.json", "ds_z3_offload_config.json");
    let found =
        check(&engine.replace("finetuning_type full", "finetuning_type lora"), &[], &["parameters_on_host = true"]);
    let words = "the optimizer on the host is not modelled beside adapters";
    assert!(said(&found).contains(&words) && !found.scenario.contains("offload_ratio"), "{:?}", said(&found));
}

#[test]
fn what_recipes_send_to_the_host_is_there() {
    let activations = format!("{TORCHTUNE}enable_activation_offloading: True\n");
    let found = check(&activations, &EIGHT, &["offload_ratio = 1", "recompute = \"full\""]);
    assert!(!said(&found).iter().any(|what| what.contains("offloading")), "{:?}", said(&found));
    let adapters = activations.replace("llama3_1.llama3_1_8b", "llama3_1.lora_llama3_1_8b");
    check(&adapters, &EIGHT, &["trains = \"adapters\"", "offload_ratio = 1"]);
    let off = activations.replace("offloading: True", "offloading: False");
    assert!(!check(&off, &EIGHT, &[]).scenario.contains("offload_ratio"));
    let states = format!("{TORCHTUNE}fsdp_cpu_offload: True\n");
    let lines = ["zero = 3", "offload_ratio = 1", "parameters_on_host = true", "host_memory_gb_per_s = 50"];
    let found = check(&states, &EIGHT, &lines);
    assert!(said(&found).contains(&"`fsdp_cpu_offload True` is not modelled"), "{:?}", said(&found));
    let axolotl = AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: offload");
    let in_line = check(&axolotl, &EIGHT, &["offload_ratio = 1", "recompute = \"full\""]);
    assert!(said(&in_line).contains(&"`gradient_checkpointing offload` is not modelled"), "{:?}", said(&in_line));
    // Unsloth's copies stand between kernels; TRL's have streams of their own.
    for (value, is_said) in [("legacy", true), ("true", false)] {
        let found = check(&format!("{AXOLOTL}activation_offloading: {value}\n"), &EIGHT, &["offload_ratio = 1"]);
        let named = said(&found).contains(&format!("`activation_offloading {value}` is not modelled").as_str());
        assert_eq!(named, is_said, "{value}: {:?}", said(&found));
    }
}

/// `per_device_train_batch_size` rows are a micro-batch (transformers `Trainer`), which TRL's collator pads or lays flat.
#[test]
fn what_nobody_packs_is_padded_row_by_row() {
    let padded = ["[policies.megatron]", "fill = \"padded\"", "sequences = 4", "bucket_tokens = 8192"];
    let found = check(SCRIPT, &[], &padded);
    assert!(!found.scenario.contains("order = "), "{}", found.scenario);
    check(&format!("{SCRIPT} --padding_free True"), &[], &["fill = \"flat\"", "sequences = 4"]);
    for words in ["--group_by_length True", "--train_sampling_strategy group_by_length"] {
        check(&format!("{SCRIPT} {words}"), &[], &["order = \"longest_first\"", "fill = \"padded\""]);
    }
    for (text, set) in [
        (format!("{SCRIPT} --packing True"), vec![]),
        (SCRIPT.to_owned(), vec!["training.bucket_tokens=4096"]),
        (SCRIPT.to_owned(), vec!["policies.run=[\"skrull\"]"]),
    ] {
        assert!(!check(&text, &set, &[]).scenario.contains("fill = "), "{text} {set:?}");
    }
    let whole = format!("{AXOLOTL}sample_packing: false\npad_to_sequence_len: true\n");
    check(&whole, &["cluster.nodes=1"], &["sequences = 1", "row_tokens = 512"]);
}

/// `HfArgumentParser` gives a switch that is on by itself an opposite.
#[test]
fn switches_that_are_on_are_turned_off_by_their_opposites() {
    let trl = "trl sft --model_name_or_path meta-llama/Llama-2-7b-hf --max_length 2048 --per_device_train_batch_size 1 --bf16 ";
    check(trl, &["cluster.nodes=1"], &["recompute = \"full\""]);
    let off = check(&format!("{trl}--no_gradient_checkpointing\n"), &["cluster.nodes=1"], &["recompute = \"none\""]);
    assert!(off.findings.iter().all(|one| one.code != Code::UnknownFlag), "{:?}", said(&off));
}

/// A step of packed rows stays so many rows: what they hold is the reader's of scenarios.
#[test]
fn rows_that_are_packed_are_rows_of_real_lengths_too() {
    let lengths = "workload.lengths=\"wikipedia\"";
    let packed = format!("{AXOLOTL}sample_packing: true\n");
    let lines = ["batch_size = 32", "bucket_tokens = 512", "row_tokens = 512", "fill = \"packed\""];
    let eight = ["cluster.nodes=1", "cluster.gpus_per_node=8", lengths];
    for more in [vec![], vec!["training.bucket_tokens=512"], vec!["workload.max_tokens=128"]] {
        let found = check(&packed, &[&eight[..], &more].concat(), &lines);
        assert!(errors(&found).is_empty() && !found.scenario.contains("longer = "), "{}", found.scenario);
    }
    let whole = check(&packed, &eight[..2], &["batch_size = 32", "bucket_tokens = 512"]);
    assert!(!whole.scenario.contains("row_tokens") && !whole.scenario.contains("fill = "), "{}", whole.scenario);
    // Texts of LLaMA-Factory go on in the next row, whether a word packs them or the stage does.
    let texts = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: pt\nfinetuning_type: full\ncutoff_len: 4096\nper_device_train_batch_size: 2\nbf16: true\n";
    for words in ["", "packing: true\n"] {
        let rows = ["row_tokens = 4096", "bucket_tokens = 8192", "longer = \"cut\"", "fill = \"packed\""];
        let found = check(&format!("{texts}{words}"), &eight, &rows);
        assert!(said(&found).iter().any(|what| what.contains("without `neat_packing`")), "{:?}", said(&found));
    }
    check(&format!("{texts}packing: false\n"), &eight, &["fill = \"padded\"", "max_tokens = 4096"]);
    check(&texts.replace("stage: pt", "stage: sft"), &eight, &["fill = \"padded\""]);
}

/// transformers: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values".
#[test]
fn a_file_of_deepspeed_that_contradicts_the_trainer_is_refused() {
    let of = |engine: String| {
        let files = vec![("ds_z3.json".to_owned(), engine)];
        let found = found(LLAMA_FACTORY, &Machine { files, ..h100(&[]) });
        errors(&found).iter().map(|what| (*what).to_owned()).collect::<Vec<_>>()
    };
    for (auto, value, part) in [
        (
            "\"train_micro_batch_size_per_gpu\": \"auto\"",
            "\"train_micro_batch_size_per_gpu\": 8",
            "per_device_train_batch_size` says 4",
        ),
        (
            "\"gradient_accumulation_steps\": \"auto\"",
            "\"gradient_accumulation_steps\": 2",
            "gradient_accumulation_steps` says 4",
        ),
        ("\"train_batch_size\": \"auto\"", "\"train_batch_size\": 64", "says 128"),
        ("\"fp16\": {\"enabled\": \"auto\"}", "\"fp16\": {\"enabled\": true}", "does not ask for fp16"),
    ] {
        let wrong = of(ENGINE.replace(auto, value));
        assert!(wrong.iter().any(|one| one.contains(part)), "{value}: {wrong:?}");
    }
    let same = ENGINE.replace("\"train_batch_size\": \"auto\"", "\"train_batch_size\": 128");
    assert_eq!(of(same), [""; 0]);
}

/// Real lengths in the place of the longest one: the file's length is then the most that a row has.
#[test]
fn lengths_of_the_command_line_leave_the_files_own_as_their_limit() {
    let lengths = "workload.lengths=\"lmsys-chat-1m\"";
    let lines = ["max_tokens = 2048", "longer = \"truncate\"", "bucket_tokens = 8192", "sequences = 4"];
    let found = check(SCRIPT, &[lengths], &lines);
    assert!(errors(&found).is_empty() && !found.scenario.contains("\ntokens = "), "{}", found.scenario);
    let axolotl = check(AXOLOTL, &[lengths, "cluster.nodes=1"], &["max_tokens = 512"]);
    assert!(errors(&axolotl).is_empty() && !axolotl.scenario.contains("longer = "), "{}", axolotl.scenario);
    let open = SCRIPT.replace("--max_seq_length 2048", "");
    let found = check(&open, &[lengths], &[]);
    assert_eq!(errors(&found), ["the file does not say how long sequences may be, of which micro-batches are made"]);
    let found = check(&open, &[lengths, "workload.max_tokens=1024"], &["bucket_tokens = 4096"]);
    assert!(errors(&found).is_empty(), "{:?}", errors(&found));
    let found = check(&open, &[lengths, "training.bucket_tokens=8192"], &["bucket_tokens = 8192"]);
    assert!(errors(&found).is_empty(), "{:?}", errors(&found));
}
