//! Flags of BigScience's Megatron-DeepSpeed, as those of Megatron-LM that say the same.
//!
//! Sources: bigscience-workshop/Megatron-DeepSpeed @ 8387ae17c470 (`megatron/arguments.py`, `megatron/model/gpt_model.py`, `megatron/tokenizer/tokenizer.py`),
//! deepspeedai/DeepSpeed @ edaa72212672 (`deepspeed/runtime/pipe/module.py`, `deepspeed/runtime/engine.py`), microsoft/DeepSpeed @ 06e39a561
//! (`deepspeed/runtime/bf16_optimizer.py` of 2022).

use input::diagnostic::{Code, Finding};

use crate::flags::{Flag, Flags, last};
use crate::job::Job;
use crate::launch::Launch;

/// Which kinds of layers are counted where stages are cut.
const CUT: &str = "pp-partition-method";
/// Rows of the padded vocabulary.
const ROWS: &str = "pad-vocab-size-to";
/// A gated feed-forward, whose width is that of a plain one where no flag says it.
const GATED: &str = "glu-activation";

/// Its flags as those of Megatron-LM.
pub(super) fn today(launch: &mut Launch) {
    let find = |name: &str| last(&launch.flags, name);
    let mut more = Vec::new();
    if let Some(flag) = find(ROWS) {
        more.push(Flag { name: "padded-vocab-size".to_owned(), ..flag.clone() });
    }
    if let Some(flag) = find(GATED) {
        more.push(Flag { name: "swiglu".to_owned(), values: Vec::new(), at: flag.at.clone() });
        let hidden = find("hidden-size").and_then(|flag| flag.value().parse::<u64>().ok());
        let width = hidden.filter(|_| find("ffn-hidden-size").is_none()).and_then(|hidden| hidden.checked_mul(4));
        more.extend(width.map(|width| Flag::added("ffn-hidden-size", vec![width.to_string()])));
    }
    let mut findings = Vec::new();
    if let Some(flag) = find(CUT) {
        match kinds(&flag.value()) {
            Some(true) => more.extend(["embedding", "loss"].map(|end| Flag {
                name: format!("account-for-{end}-in-pipeline-split"),
                values: Vec::new(),
                at: flag.at.clone(),
            })),
            Some(false) => {}
            None => {
                let what = format!("`--{CUT} {}` is not modelled", flag.value());
                let help = "stages have as many layers each";
                findings.push(Finding::warning(Code::NotModelled, Some(flag.at.clone()), what).help(help));
            }
        }
    }
    launch.flags.extend(more);
    launch.findings.extend(findings);
}

/// Whether both tables are counted as layers, of `type:transformer|embedding`; `None` where stages are cut by anything but kinds of layers.
fn kinds(value: &str) -> Option<bool> {
    let lower = value.trim_matches(['\'', '"']).to_lowercase();
    let kinds: Vec<&str> = lower.strip_prefix("type:")?.split('|').collect();
    let is_known = |kind: &&str| ["transformer", "embedding"].contains(kind);
    (kinds.contains(&"transformer") && kinds.iter().all(is_known)).then(|| kinds.contains(&"embedding"))
}

/// Without ZeRO the engine's pipeline trains in bf16 by `BF16_Optimizer`, whose ranks share masters and moments (`_do_optimizer_sanity_check`). That
/// of BigScience's time adds gradients up in 32 bits.
pub(super) fn shared_by_pipeline(flags: &Flags<'_>, job: &mut Job, half: &str) {
    if half != "bf16" || job.zero() != Some(0) {
        return;
    }
    job.key(("parallel", "zero"), 1, "BF16_Optimizer of DeepSpeed's pipeline shares masters and moments");
    if flags.is(CUT) || flags.is(ROWS) {
        job.word(("training", "gradient_dtype"), "fp32", "BF16_Optimizer of 2022");
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::{Code, Severity};

    use crate::Imported;
    use crate::example::{has_lines, import_text, on};

    /// As bigscience-workshop/bigscience has it, in short: `train/tr11-176B-ml/tr11-176B-ml.slurm`.
    const BLOOM: &str = "
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
GPT_ARGS=\" --pp-partition-method 'type:transformer|embedding' --num-layers 70 --hidden-size 14336 --num-attention-heads 112 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 2048 --tokenizer-type PretrainedFromHF \\
    --tokenizer-name-or-path $TOKENIZER --embed-layernorm --sync-tp-duplicated-parameters --bf16 --position-embedding-type alibi \\
    --checkpoint-activations --abort-on-unmet-fused-kernel-constraints --kill-switch-path $KILL --pad-vocab-size-to 250880 \"
ZERO_STAGE=0
config_json=\"./ds_config.$SLURM_JOB_ID.json\"
cat <<EOT > $config_json
{ \"train_micro_batch_size_per_gpu\": 2, \"train_batch_size\": 2048, \"zero_optimization\": {\"stage\": $ZERO_STAGE}, \"bf16\": {\"enabled\": true} }
EOT
export LAUNCHER=\"python -u -m torch.distributed.run --nproc_per_node 8 --nnodes $SLURM_NNODES \"
export CMD=\" pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 $GPT_ARGS --train-weighted-split-paths-path $T \\
    --valid-num-workers 0 --deepspeed --deepspeed_config ${config_json} --zero-stage ${ZERO_STAGE} --deepspeed-activation-checkpointing \"
srun bash -c \"$LAUNCHER --node_rank \\$SLURM_PROCID $CMD\"
";

    fn found(text: &str) -> Imported {
        import_text(text, &on("a100-sxm-80g"))
    }

    fn check(text: &str, lines: &[&str]) {
        let found = found(text);
        has_lines(&found, lines);
    }

    #[test]
    fn tables_count_as_layers_and_a_pipeline_in_bf16_shares_its_states() {
        let lines = [
            "layers = [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]",
            "vocab_size = 250880",
            // The script writes the engine's file under a name that the batch system completes.
            "zero = 1",
            "gradient_dtype = \"fp32\"",
            "framework = \"deepspeed\"",
            "nodes = 48",
            "batch_size = 2048",
            "learned_positions = false",
        ];
        check(BLOOM, &lines);
        let said = found(BLOOM).findings;
        assert!(said.iter().all(|one| one.severity == Severity::Warning), "{said:?}");
        let is_bad = |code: Code| [Code::UnknownFlag, Code::MissingFlag].contains(&code);
        assert!(said.iter().all(|one| !is_bad(one.code)), "{said:?}");
        // ZeRO 0 is none in fp16, and without the engine's pipeline.
        let half = BLOOM.replace("--bf16", "--fp16").replace("\"bf16\": {", "\"fp16\": {");
        check(&half, &["zero = 0"]);
        let alone = BLOOM.replace("--pipeline-model-parallel-size 12", "--no-pipeline-parallel");
        check(&alone, &["zero = 0"]);
    }

    #[test]
    fn stages_that_are_cut_by_something_else_are_named() {
        let even = BLOOM.replace("--num-layers 70", "--num-layers 72");
        let plain = even.replace("transformer|embedding", "transformer");
        assert!(!found(&plain).scenario.contains("layers = ["), "{}", found(&plain).scenario);
        let other = even.replace("type:transformer|embedding", "parameters");
        let said: Vec<String> = found(&other).findings.into_iter().map(|one| one.what).collect();
        assert!(said.contains(&"`--pp-partition-method parameters` is not modelled".to_owned()), "{said:?}");
        let gated = BLOOM.replace("--embed-layernorm", "--glu-activation swiglu");
        check(&gated, &["gated = true", "intermediate_size = 57344"]);
    }
}
