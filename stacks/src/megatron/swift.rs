//! ms-swift's Megatron: `megatron sft`, `megatron pt` and `megatron rlhf` start Megatron-LM with its own flags, and with defaults of their own.
//!
//! Source: modelscope/ms-swift 3.9.3 (`swift/megatron/argument/megatron_args.py`, `train_args.py`, `swift/cli/_megatron/main.py`).

use std::sync::LazyLock;

use engine::model::of_checkpoint;
use input::diagnostic::Code;

use crate::document::Document;
use crate::flags::{Flag, Flags, Table, last};
use crate::job::LENGTHS as OF_DATA;
use crate::launch::{self, Launch};
use crate::megatron::{self, Shape};
use crate::{Machine, trainer};

/// Its flags.
pub(crate) static OWN: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../../tables/megatron-swift.tsv")));
/// Those, and the flags of Megatron-LM.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| OWN.clone().over(&megatron::FLAGS));

/// What it does, by the word behind `megatron`.
const DOES: [&str; 3] = ["sft", "pt", "rlhf"];
/// Its command, and the word of a path to its programs.
const COMMAND: &str = "megatron";
const FOLDER: &str = "_megatron/";
/// Flags that it gives Megatron-LM where a command is silent (`MegatronArguments`). A flag without a value is a switch.
const USUAL: [(&str, &str); 8] = [
    ("micro-batch-size", "1"),
    ("global-batch-size", "16"),
    ("recompute-granularity", "selective"),
    ("attention-backend", "flash"),
    ("use-distributed-optimizer", ""),
    ("hidden-dropout", "0"),
    ("attention-dropout", "0"),
    ("expert-tensor-parallel-size", "1"),
];
/// Tokens of a sequence, the first that is given (`MegatronTrainArguments`).
const LENGTHS: [&str; 2] = ["packing-length", "max-length"];
/// Flags of Megatron-LM that have other names in release 4.
const RENAMED: [(&str, &str); 2] = [
    ("virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"),
    ("microbatch-group-size-per-vp-stage", "microbatch-group-size-per-virtual-pipeline-stage"),
];
/// Names of a checkpoint.
const CHECKPOINTS: [&str; 3] = ["model", "load", "mcore-model"];
/// What names of checkpoints that it converted end in.
const CONVERTED: &str = "-mcore";
/// What is trained, in releases 4 and 3.
const TRAINED: [&str; 2] = ["tuner-type", "train-type"];
/// Rank of its adapters where nobody says it.
const RANK: u64 = 8;

/// Whether a text starts it.
pub(crate) fn starts(text: &str) -> bool {
    launch::lines(text).any(is_start)
}

fn is_start(line: &str) -> bool {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    begins(&words).is_some() || line.contains(FOLDER) && line.contains(".py")
}

/// Which word of a command begins it.
pub(super) fn begins(words: &[String]) -> Option<usize> {
    words.windows(2).position(|pair| pair[0] == COMMAND && DOES.contains(&pair[1].as_str()))
}

/// Whether a program is it.
pub(super) fn is_job(program: &[String]) -> bool {
    begins(program).is_some() || program.first().is_some_and(|word| word.contains(FOLDER))
}

/// Its flags as those of Megatron-LM, and the machine with the model that it names.
pub(super) fn today(launch: &mut Launch, machine: &Machine) -> Machine {
    if !is_job(&launch.program) {
        return machine.clone();
    }
    for (name, of_megatron) in RENAMED {
        launch
            .flags
            .iter_mut()
            .filter(|flag| flag.name == name)
            .for_each(|flag| of_megatron.clone_into(&mut flag.name));
    }
    let is_given = |name: &str| launch.flags.iter().any(|flag| flag.name == name);
    let mut more: Vec<Flag> = USUAL.into_iter().filter(|(name, _)| !is_given(name)).map(plain).collect();
    launch.flags.retain(|flag| !is(flag, "false"));
    launch.flags.iter_mut().filter(|flag| is(flag, "true")).for_each(|flag| flag.values.clear());
    let find = |name: &str| last(&launch.flags, name);
    let is_half = find("torch-dtype").is_some_and(|flag| is(flag, "float16"));
    if find("fp16").is_none() && find("bf16").is_none() {
        more.push(plain((if is_half { "fp16" } else { "bf16" }, "")));
    }
    let length = LENGTHS.into_iter().find_map(find).filter(|_| find("seq-length").is_none());
    more.extend(length.map(|flag| Flag { name: "seq-length".to_owned(), ..flag.clone() }));
    let mut named = CHECKPOINTS.into_iter().filter_map(find).map(|flag| flag.value().replace(CONVERTED, ""));
    let model = machine.model.clone().or_else(|| named.find(|path| of_checkpoint(path).is_some()));
    launch.flags.extend(more);
    launch.launcher.splice(0..0, trainer::gpus_of_variables(&launch.environment));
    Machine { model, ..machine.clone() }
}

fn is(flag: &Flag, word: &str) -> bool {
    flag.value().eq_ignore_ascii_case(word)
}

fn plain((name, value): (&str, &str)) -> Flag {
    let values = if value.is_empty() { Vec::new() } else { vec![value.to_owned()] };
    Flag::added(name, values)
}

/// What is said of lengths. Documents of a row that is packed are attended to by themselves: `get_packed_seq_params` begins one at every position 0
/// (`swift/megatron/trainers/utils.py`).
fn lengths(flags: &mut Flags<'_>, out: &mut Document, (shape, machine): (&Shape, &Machine)) {
    let (packs, has_lengths) = (flags.is("packing"), machine.states(&OF_DATA));
    if packs && has_lengths {
        out.set("workload", "row_tokens", shape.tokens, "--packing: what sequences are packed into");
        return out.word("policies.megatron", "fill", "packed", "--packing");
    }
    if has_lengths {
        return;
    }
    let what = if packs {
        "documents of a row are attended to one by one, and nothing says how long they are: attention is counted over whole rows, and the step is too long"
    } else {
        "all sequences are taken to be as long as the longest"
    };
    let help = "give lengths of your own: `--set workload.lengths=…`, or `workload.file`";
    flags.warn(Code::MissingFlag, flags.at("packing"), what, help);
}

/// Adapters, where they alone are trained, and what is said of lengths.
pub(super) fn trained(flags: &mut Flags<'_>, out: &mut Document, (shape, machine): (&Shape, &Machine)) {
    for name in ["torch-dtype", "model", "mcore-model"].into_iter().chain(LENGTHS) {
        flags.text(name);
    }
    lengths(flags, out, (shape, machine));
    let kind = TRAINED.into_iter().find_map(|name| flags.text(name));
    if kind.as_deref() != Some("lora") {
        return;
    }
    out.word("optimizer", "trains", "adapters", "--train-type, --tuner-type");
    out.set("optimizer", "adapter_rank", flags.count("lora-rank", 1..=100_000).unwrap_or(RANK), "--lora-rank");
    out.word("optimizer", "adapters_beside", "all", "--target-modules: all linear layers, where nothing is said");
    if flags.text("target-modules").is_some_and(|names| names != "all-linear") {
        flags.not_modelled("target-modules", "adapters are counted beside every product");
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use crate::example::{has_lines, is_known, on};
    use crate::{Imported, Stack, import, recognise};

    /// As modelscope/ms-swift has it: `examples/megatron/sft.sh` of release 3, in short.
    const SCRIPT: &str = "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 megatron sft --load Qwen2.5-7B-Instruct-mcore \\
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' --tensor_model_parallel_size 2 --sequence_parallel true \\
    --micro_batch_size 16 --global_batch_size 16 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \\
    --finetune true --cross_entropy_loss_fusion true --lr 1e-5 --lr_warmup_fraction 0.05 --min_lr 1e-6 --max_epochs 1 \\
    --save megatron_output/Qwen2.5-7B-Instruct --save_interval 100 --max_length 2048 --system 'You are a helpful assistant.' \\
    --num_workers 4 --no_save_optim true --no_save_rng true --dataset_num_proc 4 --model_author swift --model_name swift-robot
";

    fn found(text: &str) -> Imported {
        assert_eq!(recognise(text), Some(Stack::Megatron));
        import(Stack::Megatron, text, &on("h100-sxm"))
    }

    fn check(text: &str, lines: &[&str]) {
        let found = found(text);
        has_lines(&found, lines);
        is_known(&found, text);
    }

    #[test]
    fn its_words_are_those_of_megatron_and_its_defaults_its_own() {
        let lines = [
            "name = \"qwen2.5-7b\"",
            "gpus_per_node = 2",
            "tp = 2",
            "sequence_parallel = true",
            "tokens = 2048",
            "batch_size = 16",
            // Sixteen sequences at once.
            "bucket_tokens = 32768",
            "recompute = \"full\"",
            "dtype = \"bf16\"",
            "dropout = \"none\"",
            // `attention_backend: str = 'flash'`.
            "attention = \"flash-attention-2\"",
            "zero = 1",
            "framework = \"megatron-core\"",
        ];
        check(SCRIPT, &lines);
        assert!(!found(SCRIPT).scenario.contains("adapters"), "all is trained where nothing is said");
        let silent = SCRIPT.replace("--micro_batch_size 16 --global_batch_size 16 ", "");
        check(&silent, &["batch_size = 16", "bucket_tokens = 2048"]);
        let whole =
            SCRIPT.replace("--sequence_parallel true", "--sequence_parallel false --use_distributed_optimizer false");
        check(&whole, &["zero = 0"]);
        assert!(!found(&whole).scenario.contains("sequence_parallel = true"));
        let lora = SCRIPT.replace("--finetune true", "--finetune true --train_type lora --lora_rank 16");
        check(&lora, &["trains = \"adapters\"", "adapter_rank = 16", "adapters_beside = \"all\""]);
        let newest = SCRIPT.replace(
            "--load Qwen2.5-7B-Instruct-mcore",
            "--model Qwen/Qwen3-8B --tuner_type lora --torch_dtype float16",
        );
        check(&newest, &["name = \"qwen3-8b\"", "adapter_rank = 8", "dtype = \"fp16\""]);
        // Words of release 4, with lines and underscores.
        let words =
            "--output_dir out --eval_steps 200 --save-steps 200 --dataloader_num_workers 8 --num-train-epochs 1";
        let of_four = SCRIPT.replace(
            "--tensor_model_parallel_size 2",
            "--pipeline_model_parallel_size 2 --virtual_pipeline_model_parallel_size 2 --micro_batch_size 1",
        );
        let of_four = of_four
            .replace("--micro_batch_size 16", "")
            .replace("--save megatron_output/Qwen2.5-7B-Instruct --save_interval 100", words)
            .replace("--sequence_parallel true", "");
        check(&of_four, &["pp = 2", "chunks = 2"]);
    }

    #[test]
    fn what_it_does_otherwise_is_named() {
        let said = |text: &str| found(text).findings.into_iter().map(|one| one.what).collect::<Vec<_>>();
        let pairs = SCRIPT.replace("megatron sft", "megatron rlhf --rlhf_type dpo");
        assert!(said(&pairs).contains(&"`--rlhf-type dpo` is not modelled".to_owned()), "{:?}", said(&pairs));
        let longest = "all sequences are taken to be as long as the longest";
        let packed = SCRIPT.replace("--finetune true", "--packing true");
        let none = SCRIPT.replace("--finetune true", "--packing false");
        for (text, start) in
            [(SCRIPT, longest), (&none, longest), (&packed, "documents of a row are attended to one by one")]
        {
            let lengths: Vec<_> =
                found(text).findings.into_iter().filter(|one| one.code == Code::MissingFlag).collect();
            assert!(matches!(&lengths[..], [one] if one.what.starts_with(start)), "{lengths:?}");
            assert!(!lengths[0].help.iter().any(|help| help.contains("--packing")), "{lengths:?}");
        }
    }
}
