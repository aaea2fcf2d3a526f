//! slime: reinforcement learning whose actor Megatron-Core trains, and whose answers SGLang gives. Of its scripts the update of the actor is read.
//!
//! Source: THUDM/slime @ 624b824a898a (`slime/utils/arguments.py`, `slime/backends/megatron_utils/arguments.py`).

use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use super::Shape;
use crate::document::Document;
use crate::flags::{Flag, Flags, Table, last};
use crate::launch::Launch;
use crate::megatron;

/// Its flags.
pub(crate) static OWN: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../../tables/slime.tsv")));
/// Those, and the flags of Megatron-LM.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| OWN.clone().over(&megatron::FLAGS));

/// Flags of which a script of it has one, and no other stack's has.
const SIGNS: [&str; 3] = ["actor-num-nodes", "rollout-num-gpus-per-engine", "n-samples-per-prompt"];
/// Its flags of GPUs, and those of a launcher that say the same.
const GPUS: [(&str, &str); 2] = [("actor-num-nodes", "nnodes"), ("actor-num-gpus-per-node", "nproc-per-node")];
/// Tokens that a GPU takes at once, and the switch that fills micro-batches up to them.
const TOKENS: &str = "max-tokens-per-gpu";
const FILLS: &str = "use-dynamic-batch-size";
/// Sequences of a step.
const BATCH: &str = "global-batch-size";

/// Whether flags are those of a job of slime.
pub(super) fn is_job(given: &[Flag]) -> bool {
    given.iter().any(|flag| SIGNS.contains(&flag.name.as_str()))
}

/// Its flags as those of Megatron-LM, with what it sets itself (`_set_default_megatron_args`).
pub(super) fn today(launch: &mut Launch) {
    let Some(first) = launch.flags.iter().find(|flag| SIGNS.contains(&flag.name.as_str())) else { return };
    let what = "slime is reinforcement learning with Megatron and SGLang: the update of its actor alone is read";
    let help = "answers, rewards and log probabilities are not part of the step: a scenario of `kind = \"rl\"` has them (docs/rl.md)";
    launch.findings.push(Finding::warning(Code::NotModelled, Some(first.at.clone()), what).help(help));
    let find = |name: &str| last(&launch.flags, name);
    let number = |name: &str| find(name).and_then(|flag| flag.value().parse::<u64>().ok());
    let mut more = vec![Flag::added("use-distributed-optimizer", Vec::new())];
    if find("fp16").is_none() {
        more.push(Flag::added("bf16", Vec::new()));
    }
    let of_rollout = number("rollout-batch-size").zip(number("n-samples-per-prompt"));
    let steps = number("num-steps-per-rollout").unwrap_or(1).max(1);
    if let Some((prompts, samples)) = of_rollout.filter(|_| find(BATCH).is_none()) {
        let batch = (prompts.saturating_mul(samples) / steps).max(1);
        more.push(Flag::added(BATCH, vec![batch.to_string()]));
    }
    let gpus = GPUS.into_iter().filter_map(|(own, name)| Some(Flag { name: name.to_owned(), ..find(own)?.clone() }));
    let gpus: Vec<Flag> = gpus.collect();
    launch.launcher.extend(gpus);
    launch.flags.extend(more);
}

/// Micro-batches that are filled up to so many tokens; a longer sequence is alone.
pub(super) fn filled(flags: &mut Flags<'_>, out: &mut Document, shape: &Shape) {
    if !flags.is(FILLS) {
        return;
    }
    let Some(tokens) = flags.count(TOKENS, 1..=100_000_000) else { return };
    let cp = flags.count("context-parallel-size", 1..=100_000).unwrap_or(1);
    let bucket = tokens.max(shape.tokens.div_ceil(cp));
    out.set("training", "bucket_tokens", bucket, "--max-tokens-per-gpu: micro-batches are filled up to them");
}

#[cfg(test)]
mod tests {
    use input::diagnostic::{Code, Severity};

    use crate::example::{h100, has_lines, is_known};
    use crate::{Imported, Stack, import, recognise};

    /// As THUDM/slime has it, in short: `scripts/run-qwen3-4B.sh`, whose shape another file states.
    const SCRIPT: &str = "source \"${SCRIPT_DIR}/models/qwen3-4B.sh\"
ROLLOUT_ARGS=( --prompt-data /root/a.jsonl --input-key prompt --rollout-shuffle --rm-type deepscaler --num-rollout 3000
   --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --rollout-temperature 1 --balance-data )
PERF_ARGS=( --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --recompute-granularity full
   --recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216 )
RUNTIME_ENV_JSON=\"{ \\\"env_vars\\\": { \\\"NCCL_NVLS_ENABLE\\\": \\\"${HAS_NVLINK}\\\" } }\"
ray job submit --address=\"http://127.0.0.1:8265\" --runtime-env-json=\"${RUNTIME_ENV_JSON}\" \\
   -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate ${MODEL_ARGS[@]} ${ROLLOUT_ARGS[@]} \\
   --hf-checkpoint /root/Qwen3-4B --advantage-estimator grpo --use-kl-loss --eps-clip 0.2 ${PERF_ARGS[@]} \\
   --sglang-mem-fraction-static 0.7 --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
";

    fn found(text: &str, set: &[&str]) -> Imported {
        assert_eq!(recognise(text), Some(Stack::Megatron));
        import(Stack::Megatron, text, &h100(set))
    }

    #[test]
    fn the_command_line_says_the_model_and_the_length_of_a_script_of_slime() {
        let found = found(SCRIPT, &["model.name=qwen3-4b", "workload.tokens=4096"]);
        has_lines(
            &found,
            &[
                "name = \"qwen3-4b\"",
                "tokens = 4096",
                // 32 prompts of 8 samples.
                "batch_size = 256",
                "bucket_tokens = 9216",
                "zero = 1",
                "dtype = \"bf16\"",
                "nodes = 1",
                "gpus_per_node = 8",
                "dropout = \"none\"",
            ],
        );
        is_known(&found, SCRIPT);
        let named: Vec<_> = found.findings.iter().filter(|one| one.code == Code::NotModelled).collect();
        let [of_slime] = named[..] else { panic!("{named:?}") };
        assert!(of_slime.what.starts_with("slime is reinforcement learning"), "{of_slime:?}");
    }

    /// PPO has a critic, which slime trains with Megatron on GPUs of its own.
    #[test]
    fn a_critic_is_named() {
        let ppo = SCRIPT.replace("--advantage-estimator grpo", "--advantage-estimator ppo --critic-num-nodes 1");
        let found = found(&ppo, &["model.name=qwen3-4b", "workload.tokens=4096"]);
        for what in ["`--advantage-estimator ppo` is not modelled", "`--critic-num-nodes 1` is not modelled"] {
            assert!(found.findings.iter().any(|one| one.what == what), "{what}: {:?}", found.findings);
        }
    }

    #[test]
    fn what_a_script_leaves_to_another_file_is_asked_for_by_the_keys_that_say_it() {
        let found = found(SCRIPT, &[]);
        let errors = || found.findings.iter().filter(|one| one.severity == Severity::Error);
        assert!(errors().all(|one| one.code == Code::MissingFlag), "{:?}", found.findings);
        let helps: Vec<String> = errors().filter_map(|one| one.help.clone()).collect();
        assert!(
            helps.iter().all(|help| help.contains("model.name=") && help.contains("workload.tokens=")),
            "{helps:?}"
        );
    }

    #[test]
    fn a_flag_that_states_another_shape_is_named() {
        let base = "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 12 --bf16 --global-batch-size 64 --swiglu\n";
        let one = found(base, &["model.name=llama-3-8b", "workload.tokens=4096"]);
        let what = one.findings.iter().map(|one| one.what.as_str()).collect::<Vec<_>>();
        assert_eq!(what, ["`--num-layers 12` is not modelled"]);
        assert!(one.scenario.contains("name = \"llama-3-8b\""), "{}", one.scenario);
        // A script that states all of it keeps its own.
        let whole = format!("{} --hidden-size 1024 --num-attention-heads 16\n", base.trim_end());
        let own = found(&whole, &["model.name=llama-3-8b", "workload.tokens=4096"]);
        assert!(
            own.scenario.contains("num_hidden_layers = 12") && own.scenario.contains("tokens = 4096"),
            "{}",
            own.scenario
        );
        let wrong = found(base, &["model.name=made-up-7b", "workload.tokens=4096"]);
        assert!(wrong.findings.iter().any(|one| one.code == Code::UnknownModel), "{:?}", wrong.findings);
    }
}
