//! Tests of how jobs are started: what a shell gives to names, how many processes there are, and launches that stop.

use input::diagnostic::{Code, Severity};

use crate::example::{h100, has_lines, said};
use crate::{Imported, Machine, Stack, import};

const JOB: &str = "train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 \
    --max_seq_length 4096 --output_dir o ";

fn found(text: &str, set: &[&str]) -> Imported {
    import(Stack::Trainer, text, &h100(set))
}

fn says(found: &Imported, code: Code, part: &str) -> bool {
    found.findings.iter().any(|one| one.code == code && one.what.contains(part))
}

fn errors(found: &Imported) -> Vec<&str> {
    let wrong = found.findings.iter().filter(|one| one.severity == Severity::Error);
    wrong.map(|one| one.what.as_str()).collect()
}

/// A script whose lines stand before the launch, and the GPUs of a node that bash gives it.
#[test]
fn gpus_are_those_that_the_shell_gives() {
    for (lines, n) in [
        ("N=4\nN=8 echo hi", 4),
        ("N=4\nf() { N=8; }", 4),
        ("N=4\nusage() { N=8; echo usage; exit 1; }\n[ $# -gt 9 ] && usage", 4),
        ("N=4\n( N=8 )", 4),
        ("N=4\necho x | N=8", 4),
        ("N=4\n((N*=2))", 8),
        ("N=4\nunset N\nN=${N:-8}", 8),
        ("N=$((010))", 8),
    ] {
        let text = format!("{lines}\ntorchrun --nproc_per_node $N {JOB}--fsdp full_shard\n");
        has_lines(&found(&text, &[]), &[&format!("gpus_per_node = {n}"), &format!("batch_size = {}", 8 * n)]);
    }
    let open = found(&format!("N=4\nprintf -v N '%d' 8\ntorchrun --nproc_per_node $N {JOB}--fsdp full_shard\n"), &[]);
    assert!(says(&open, Code::UnknownValue, "`--nproc-per-node` is known only when"), "{:?}", open.findings);
    // What stands in front of another command is not of this one.
    let text = format!("CUDA_VISIBLE_DEVICES=0 python prep.py\naccelerate launch {JOB}--fsdp full_shard\n");
    has_lines(&found(&text, &["cluster.nodes=1"]), &["gpus_per_node = 8"]);
    let swift = "swift sft --model Qwen/Qwen3-8B --max_length 2048 --per_device_train_batch_size 1\n";
    let other = found(&format!("NPROC_PER_NODE=2 python tool.py\n{swift}"), &["cluster.nodes=1"]);
    has_lines(&other, &["gpus_per_node = 8"]);
    has_lines(&found(&format!("NPROC_PER_NODE=2 {swift}"), &[]), &["gpus_per_node = 2"]);
    has_lines(&found(&format!("export NPROC_PER_NODE=2\n{swift}"), &[]), &["gpus_per_node = 2"]);
}

/// As many processes as devices that are seen: `gpu` and `auto` say the same to torchrun (`torch/distributed/run.py`, `determine_local_world_size`).
#[test]
fn a_word_for_all_gpus_is_no_number() {
    for word in ["gpu", "auto"] {
        let text = format!("torchrun --nproc_per_node {word} {JOB}--fsdp full_shard\n");
        assert_eq!(errors(&found(&text, &[])).len(), 1, "{word}");
        has_lines(&found(&text, &["cluster.nodes=2"]), &["nodes = 2", "gpus_per_node = 8", "batch_size = 128"]);
        let two = found(&format!("CUDA_VISIBLE_DEVICES=2,3 {text}"), &[]);
        has_lines(&two, &["gpus_per_node = 2", "batch_size = 16"]);
    }
    let gres = found(&format!("#SBATCH --nodes=1 --gres=gpu\nsrun python {JOB}\n"), &[]);
    has_lines(&gres, &["gpus_per_node = 1"]);
    let listed = found(&format!("deepspeed --include localhost:0,1,2,3 {JOB}--fsdp full_shard\n"), &[]);
    has_lines(&listed, &["gpus_per_node = 4"]);
}

#[test]
fn gpus_of_a_node_alone_change_the_batch_too() {
    let text = format!("torchrun --nproc_per_node 4 {JOB}--fsdp full_shard\n");
    has_lines(&found(&text, &[]), &["gpus_per_node = 4", "batch_size = 32"]);
    for set in [&["cluster.gpus_per_node=8"][..], &["cluster.gpus_per_node=8", "cluster.nodes=1"]] {
        has_lines(&found(&text, set), &["gpus_per_node = 8", "batch_size = 64"]);
    }
    // Tensor ranks of the command line leave fewer replicas.
    has_lines(&found(&text, &["parallel.tp=2"]), &["tp = 2", "batch_size = 16"]);
    let odd = found(&format!("accelerate launch --num_machines 2 --num_processes 15 {JOB}--fsdp full_shard\n"), &[]);
    assert!(says(&odd, Code::WrongFlag, "15 GPUs do not fill nodes of 8"), "{:?}", odd.findings);
}

/// Words of the Trainer at their defaults, which share nothing.
#[test]
fn sharding_is_off_where_its_words_are_at_their_defaults() {
    for (start, job) in [
        ("torchrun --nproc_per_node 8 ", JOB),
        ("llamafactory-cli train ", "--model_name_or_path Qwen/Qwen3-8B --finetuning_type full --bf16 "),
        ("swift sft ", "--model Qwen/Qwen3-8B --max_length 2048 --tuner_type full "),
    ] {
        for words in ["", "--fsdp ''", "--deepspeed ''", "--fsdp full_shard --fsdp ''", "--use_fsdp false"] {
            let found = found(&format!("{start}{job}{words}\n"), &["cluster.nodes=1"]);
            assert!(found.scenario.contains("zero = 0 "), "{start}{words}: {}", found.scenario);
        }
        let shared = found(&format!("{start}{job}--deepspeed zero3.json\n"), &["cluster.nodes=1"]);
        assert!(shared.scenario.contains("zero = 3 "), "{start}: {}", shared.scenario);
    }
    for word in ["no", "false", "ful_shard"] {
        let found = found(&format!("torchrun --nproc_per_node 8 {JOB}--fsdp {word}\n"), &[]);
        assert!(says(&found, Code::WrongFlag, &format!("`{word}` is none of its words")), "{:?}", found.findings);
    }
}

/// The section alone asks for it (Axolotl's `fsdp` is of older releases), whatever stands in it.
#[test]
fn a_section_of_axolotl_is_fsdp() {
    let of = |section: &str| {
        let yaml = "base_model: NousResearch/Llama-2-7b-hf\nsequence_len: 512\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\n";
        found(&format!("{yaml}{section}"), &["cluster.nodes=1", "cluster.gpus_per_node=8"])
    };
    for (section, stage) in [
        ("fsdp_version: 2\n", 0),
        ("fsdp_config:\n  reshard_after_forward: false\n", 2),
        ("fsdp_config:\n  reshard_after_forward: true\n", 3),
        ("fsdp_config:\n  offload_params: true\n", 3),
        ("fsdp_config:\n  transformer_layer_cls_to_wrap: LlamaDecoderLayer\n", 3),
    ] {
        has_lines(&of(section), &[&format!("zero = {stage}")]);
    }
}

#[test]
fn launches_that_stop_are_refused() {
    let eight = format!("torchrun --nproc_per_node 8 {JOB}");
    for (text, part) in [
        (format!("{eight}--fp16"), "`--bf16` and `--fp16` are both on"),
        (format!("{eight}--optim nosuch"), "`nosuch` is none of its words"),
        (
            format!("CUDA_VISIBLE_DEVICES=0,1 {eight}"),
            "8 processes of a node, and `CUDA_VISIBLE_DEVICES` shows 2 devices",
        ),
        (
            format!("HIP_VISIBLE_DEVICES=0,1,2 {eight}"),
            "8 processes of a node, and `HIP_VISIBLE_DEVICES` shows 3 devices",
        ),
        (format!("deepspeed --include localhost:0-3 {JOB}"), "`--include localhost:0-3` is no list of slots"),
    ] {
        let found = found(&format!("{text}\n"), &[]);
        assert!(errors(&found).iter().any(|what| what.contains(part)), "{text}: {:?}", found.findings);
    }
    // DeepSpeed leaves the variable aside where its own flags say how many (`runner.py`).
    let own = found(&format!("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 8 {JOB}\n"), &[]);
    assert!(!says(&own, Code::WrongFlag, "devices"), "{:?}", own.findings);
}

#[test]
fn lines_that_end_in_cr_lf_go_on() {
    let text = format!("torchrun --nproc_per_node 8 {JOB}\\\n --gradient_checkpointing \\\n --fsdp full_shard\n");
    let plain = found(&text, &[]);
    let crlf = found(&text.replace('\n', "\r\n"), &[]);
    assert_eq!(crlf.scenario, plain.scenario);
    assert_eq!(crlf.findings.len(), plain.findings.len() + 1, "{:?}", crlf.findings);
    assert!(says(&crlf, Code::UnreadableScript, "lines end in CR LF"), "{:?}", crlf.findings);
    let server = "vllm serve meta-llama/Meta-Llama-3-8B \\\n --max-num-seqs 64\n";
    let machine = Machine::of_overrides(&["cluster.gpu=h100-sxm".to_owned()]);
    let [plain, crlf] =
        [server.to_owned(), server.replace('\n', "\r\n")].map(|text| import(Stack::Vllm, &text, &machine));
    assert_eq!(crlf.scenario, plain.scenario);
    assert!(says(&crlf, Code::UnreadableScript, "lines end in CR LF"), "{:?}", crlf.findings);
}

/// Programs that are modules, and TRL's own command, which hands the number of processes to accelerate.
#[test]
fn modules_have_the_gpus_of_their_launcher() {
    const OPTIONS: &str = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --gradient_checkpointing --max_length 2048 --bf16\n";
    for start in [
        "torchrun --nproc_per_node 8 sft.py",
        "torchrun --nproc_per_node 8 -m trl.scripts.sft",
        "python -m torch.distributed.run --nproc_per_node 8 -m trl.scripts.sft",
        "accelerate launch --num_processes 8 -m trl.scripts.sft",
        "accelerate launch --num_processes 8 --module trl.scripts.sft",
        "trl sft --num_processes 8",
    ] {
        let found = found(&format!("{start} {OPTIONS}"), &[]);
        for key in ["gpus_per_node = 8", "batch_size = 16 "] {
            assert!(found.scenario.contains(key), "{start}: {}", found.scenario);
        }
        assert!(!says(&found, Code::NotModelled, "how many GPUs there are"), "{start}: {:?}", found.findings);
        assert!(!said(&found).iter().any(|what| what.contains("`--m`")), "{start}: {:?}", found.findings);
    }
}
