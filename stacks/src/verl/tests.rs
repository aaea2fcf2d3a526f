//! Whole commands of verl: which configuration they lie over, and what keys of both kinds of actors give.

use input::diagnostic::Code;

use crate::Machine;
use crate::example::{has_parts, on, said};

/// Words of a command whose step is complete, with the actor's and the model's keys in short. Gives the scenario and what is said of it.
fn read(model: &str, words: &str) -> (String, Vec<String>) {
    let usual = "data.max_prompt_length=1024 data.max_response_length=1024 data.train_batch_size=64 actor.ppo_mini_batch_size=64 \
                 actor.use_dynamic_bsz=True algorithm.adv_estimator=grpo rollout.name=vllm trainer.n_gpus_per_node=8";
    let long = |word: &str| match word.split_once('.') {
        Some(("actor" | "rollout" | "ref" | "model", _)) => format!("actor_rollout_ref.{word}"),
        _ => word.to_owned(),
    };
    let words: Vec<String> = usual.split_whitespace().chain(words.split_whitespace()).map(long).collect();
    read_text(&format!("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={model} {}\n", words.join(" ")))
}

fn read_text(text: &str) -> (String, Vec<String>) {
    let read = super::import(text, &on("h100-sxm"));
    let said = read.findings.into_iter().map(|finding| finding.what).collect();
    (read.scenario, said)
}

fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|own| own.starts_with(line)), "`{line}` in {text}");
    }
}

fn says(said: &[String], part: &str) -> bool {
    said.iter().any(|what| what.contains(part))
}

const DENSE: &str = "Qwen/Qwen2.5-7B";
const MIXTURE: &str = "Qwen/Qwen3-235B-A22B";

#[test]
fn a_configuration_of_megatron_is_known_by_its_name() {
    let tp = "actor.megatron.tensor_model_parallel_size=4";
    for named in [
        "--config-name='ppo_megatron_trainer.yaml'",
        "--config-path=config --config-name ppo_megatron_trainer",
        "--config-name=fully_async_ppo_megatron_trainer.yaml",
        "actor@actor_rollout_ref.actor=megatron_actor",
        "model_engine=megatron",
    ] {
        let (scenario, said) = read(DENSE, &format!("{named} {tp} trainer.nnodes=1"));
        has(&scenario, &["tp = 4", "zero = 1", "framework = \"megatron-core\"", "gradient_sync = \"at_end\""]);
        assert!(!says(&said, "megatron"), "{named}: {said:?}");
    }
    // The command line says it last.
    let (scenario, _) = read(DENSE, "--config-name=ppo_megatron_trainer actor.strategy=fsdp2");
    has(&scenario, &["zero = 3", "framework = \"pytorch\""]);
    let (_, said) = read(DENSE, tp);
    assert!(
        says(&said, "tensor_model_parallel_size` is of Megatron Core, and the actor is taken to be in FSDP"),
        "{said:?}"
    );
    let yaml = "defaults:\n  - ppo_megatron_trainer\n  - _self_\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B\n  actor:\n    ppo_mini_batch_size: 64\n    \
                use_dynamic_bsz: True\ndata:\n  train_batch_size: 64\n";
    has(&read_text(yaml).0, &["framework = \"megatron-core\""]);
}

#[test]
fn configurations_and_commands_that_are_not_read_are_named() {
    let (scenario, said) = read(DENSE, "--config-name=gsm8k_multiturn_grpo");
    assert!(scenario.contains("pytorch") && says(&said, "`--config-name gsm8k_multiturn_grpo` is a file"), "{said:?}");
    let (_, said) = read(DENSE, "--config-name=$NAME");
    assert!(says(&said, "`--config-name` is known only when"), "{said:?}");
    let (_, said) = read(DENSE, "--config-name=ppo_trainer");
    assert!(!says(&said, "--config-name"), "{said:?}");
    let one = |degree: u64| {
        format!(
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={DENSE} data.train_batch_size=64 \
                 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True \
                 actor_rollout_ref.actor.ulysses_sequence_parallel_size={degree}\n"
        )
    };
    let (scenario, said) = read_text(&format!("{}{}", one(2), one(4)));
    has(&scenario, &["cp = 2"]);
    assert!(says(&said, "another command of the script starts verl"), "{said:?}");
}

const MEGATRON: &str = "--config-name=ppo_megatron_trainer trainer.nnodes=8 actor.megatron.tensor_model_parallel_size=4 \
                        actor.megatron.pipeline_model_parallel_size=8 actor.megatron.expert_model_parallel_size=4";

/// A key of Megatron Core that overrides its own.
fn over(key: &str) -> String {
    format!("+actor_rollout_ref.actor.megatron.override_transformer_config.{key}")
}

#[test]
fn overrides_of_megatron_core_are_read() {
    let words = [
        over("account_for_loss_in_pipeline_split=True"),
        over("account_for_embedding_in_pipeline_split=True"),
        over("moe_token_dispatcher_type=flex"),
        over("moe_permute_fusion=True"),
        over("apply_rope_fusion=False"),
        over("moe_router_dtype=fp32"),
        over("hidden_size=64"),
        "actor.megatron.expert_tensor_parallel_size=1".to_owned(),
        "+actor.optim.override_optimizer_config.optimizer_cpu_offload=True"
            .replace("actor.", "actor_rollout_ref.actor."),
        "+actor.optim.override_optimizer_config.optimizer_offload_fraction=0.5"
            .replace("actor.", "actor_rollout_ref.actor."),
        "+actor.megatron.override_ddp_config.overlap_grad_reduce=True".replace("actor.", "actor_rollout_ref.actor."),
    ];
    let (scenario, said) = read(MIXTURE, &format!("{MEGATRON} {}", words.join(" ")));
    // 94 layers and both ends over 8 ranks.
    has(
        &scenario,
        &[
            "layers = [11, 12, 12, 12, 12, 12, 12, 11]",
            "expert_tp = 1",
            "dispatcher = \"flex\"",
            "unfused = [\"positions\"]",
            "offload_ratio = 0.5",
            "gradient_sync = \"overlapped\"",
            "stage = false",
            "[train.optimizer]",
            "[train.experts]",
            "[train.overlap]",
        ],
    );
    let of_core: Vec<&String> = said.iter().filter(|what| what.contains("override_")).collect();
    assert!(matches!(of_core[..], [one] if one.contains("hidden_size 64` is not modelled")), "{said:?}");
    let (_, said) = read(MIXTURE, &format!("{MEGATRON} actor.megatron.sequence_parallel=False"));
    assert!(says(&said, "does not go with experts beside tensor ranks"), "{said:?}");
    // Without a key experts are cut as the rest is.
    has(&read(MIXTURE, MEGATRON).0, &["expert_tp = 4"]);
}

#[test]
fn stages_of_the_actor_lose_no_layers() {
    let (_, said) = read(MIXTURE, MEGATRON);
    assert!(says(&said, "94 layers do not divide into 8 stages"), "{said:?}");
    let ends = [over("num_layers_in_first_pipeline_stage=12"), over("num_layers_in_last_pipeline_stage=10")].join(" ");
    has(&read(MIXTURE, &format!("{MEGATRON} {ends}")).0, &["layers = [12, 12, 12, 12, 12, 12, 12, 10]"]);
    let (_, said) = read(MIXTURE, &format!("{MEGATRON} {}", over("num_layers_in_last_pipeline_stage=11")));
    assert!(says(&said, "94 layers less those of the ends do not divide"), "{said:?}");
    let many = "--config-name=ppo_megatron_trainer actor.megatron.pipeline_model_parallel_size=100000 \
                actor.megatron.virtual_pipeline_model_parallel_size=1000";
    let (_, said) = read(MIXTURE, &format!("{many} {}", over("num_layers_in_last_pipeline_stage=11")));
    assert!(says(&said, "94 layers less those of the ends do not divide"), "{said:?}");
}

#[test]
fn layers_that_predict_are_trained_where_verl_is_told_to() {
    let base = "--config-name=ppo_megatron_trainer actor.megatron.pipeline_model_parallel_size=2";
    let (scenario, _) = read("XiaomiMiMo/MiMo-7B-RL", base);
    has(&scenario, &["predicting_layers = 0"]);
    assert!(!scenario.contains("layers = ["), "{scenario}");
    has(
        &read("XiaomiMiMo/MiMo-7B-RL", &format!("{base} model.mtp.enable=True")).0,
        &["predicting_layers = 1", "layers = [18, 19]"],
    );
}

#[test]
fn adapters_of_megatron_alone_are_trained() {
    let base = "--config-name=ppo_megatron_trainer model.lora.rank";
    let (scenario, said) = read(DENSE, &format!("{base}=256"));
    has(&scenario, &["trains = \"adapters\"", "adapter_rank = 256", "adapters_beside = \"all\""]);
    assert!(!says(&said, "lora"), "{said:?}");
    let modules = "model.lora.target_modules=[\"linear_qkv\",\"linear_proj\"]";
    has(&read(DENSE, &format!("{base}=16 {modules}")).0, &["adapters_beside = \"attention\""]);
    let (_, said) = read("Qwen/Qwen3-30B-A3B", &format!("{base}=16 model.lora.target_modules=[router]"));
    assert!(says(&said, "lora.rank 16") && says(&said, "target_modules"), "{said:?}");
    let (scenario, said) = read(DENSE, &format!("{base}=0 model.lora_rank=0 model.lora.exclude_modules=[x]"));
    assert!(!scenario.contains("adapters") && !says(&said, "lora"), "{said:?}");
    assert!(says(&read(DENSE, "model.lora_rank=64").1, "`actor_rollout_ref.model.lora_rank 64` is not modelled"));
}

#[test]
fn logits_are_held_as_flash_attention_holds_them() {
    let native = "loss = \"native\"";
    let (scenario, said) = read(DENSE, "actor.entropy_coeff=0");
    assert!(scenario.contains(native) && !says(&said, "entropy"), "{said:?}");
    let (scenario, said) = read(DENSE, "actor.entropy_coeff=0.001");
    assert!(!scenario.contains(native) && says(&said, "entropy_coeff 0.001` is not modelled"), "{said:?}");
    let (scenario, said) = read(DENSE, "model.use_fused_kernels=True actor.entropy_coeff=0.001");
    assert!(scenario.contains(native) && says(&said, "use_fused_kernels True` is not modelled"), "{said:?}");
    let n = said.iter().filter(|what| what.contains("use_fused_kernels")).count();
    assert_eq!(n, 1, "{said:?}");
    // Parameters that are kept have no modules whose loss could be told.
    assert!(!read(DENSE, "actor.fsdp_config.reshard_after_forward=False").0.contains("loss"));
    has(&read(DENSE, "actor.fsdp_config.ulysses_sequence_parallel_size=2 trainer.nnodes=1").0, &["cp = 2"]);
}

fn found(text: &str) -> crate::Imported {
    super::import(text, &on("h100-sxm"))
}

#[test]
fn an_update_has_all_answers_of_its_prompts() {
    let yaml = "data:\n  max_prompt_length: 1024 # why\n  max_response_length: 3072\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B-Instruct\n    \
                enable_gradient_checkpointing: True\n  actor:\n    strategy: fsdp2\n    ppo_mini_batch_size: 64\n    ppo_micro_batch_size_per_gpu: 2\n    \
                ulysses_sequence_parallel_size: 2\n    fsdp_config:\n      optimizer_offload: True\n  rollout:\n    n: 8\ntrainer:\n  nnodes: 2\n  n_gpus_per_node: 8\nmade_up: 1\n";
    let read = found(yaml);
    // 64 prompts of 8 answers each; micro-batches of 2 × 4,096 tokens over two ranks.
    has_parts(
        &read,
        &[
            "batch_size = 512",
            "bucket_tokens = 4096",
            "tokens = 4096",
            "cp = 2",
            "exchange = \"ulysses\"",
            "zero = 3",
            "nodes = 2",
            "recompute = \"full\"",
        ],
    );
    let words = said(&read);
    assert!(
        words.contains(&"`actor_rollout_ref.actor.fsdp_config.optimizer_offload True` is not modelled"),
        "{words:?}"
    );
    assert!(words.contains(&"`made_up` is not in the table of keys"), "{words:?}");
    let offloaded =
        found(&yaml.replace("    enable_gradient", "    enable_activation_offload: True\n    enable_gradient"));
    assert!(offloaded.scenario.contains("offload_ratio = 1") && !read.scenario.contains("offload_ratio"));
    let of_shell = "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n \
                    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.nnodes=$NODES trainer.n_gpus_per_node=8\n";
    let told = Machine { nodes: Some(3), ..on("h100-sxm") };
    assert!(super::import(of_shell, &told).scenario.contains("nodes = 3"));
    assert!(found(of_shell).findings.iter().any(|finding| finding.what.contains("`trainer.nnodes` is known only")));
    let script = "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n \
                  actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\\n \
                  +actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \\\n \
                  trainer.nnodes=1 trainer.n_gpus_per_node=8\n";
    let read = found(script);
    has_parts(&read, &["batch_size = 64", "bucket_tokens = 16384", "tp = 4", "zero = 1", "megatron-core"]);
}

#[test]
fn permutations_are_fused_by_an_override_alone() {
    let unfused = |model: &str, more: &str| {
        let script = format!(
            "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path={model} \\\n \
             actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.ppo_mini_batch_size=64 \\\n \
             actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.nnodes=1 {more}\n"
        );
        found(&script).scenario.contains("unfused = [\"permutation\"]")
    };
    let fused = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True";
    assert!(unfused("Qwen/Qwen3-30B-A3B", ""));
    assert!(!unfused("Qwen/Qwen3-30B-A3B", fused));
    assert!(!unfused("Qwen/Qwen2.5-7B", ""));
}

/// Keys with one letter that is wrong: each is near one that is read, below rows that say nothing of all that begin so.
#[test]
fn slips_are_said_with_the_name_that_is_meant() {
    for (word, meant) in [
        ("data.train_batch_siz=4", "data.train_batch_size"),
        ("data.max_response_lengt=4", "data.max_response_length"),
        ("trainer.nnode=4", "trainer.nnodes"),
        ("trainer.n_gpus_per_nod=4", "trainer.n_gpus_per_node"),
        ("model.pat=x", "actor_rollout_ref.model.path"),
        ("actor.ppo_mini_batch_siz=32", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("actor.ppo_micro_batch_size_per_gp=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        ("actor.use_dynamic_bs=True", "actor_rollout_ref.actor.use_dynamic_bsz"),
        ("actor.fsdp_config.param_ofload=True", "actor_rollout_ref.actor.fsdp_config.param_offload"),
        ("actor.ulysses_sequence_parallel_siz=2", "actor_rollout_ref.actor.ulysses_sequence_parallel_size"),
        ("rollout.tensor_model_parallel_siz=4", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        ("rollout.gpu_memory_utilisation=0.9", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("algorithm.use_kl_in_rewar=True", "algorithm.use_kl_in_reward"),
    ] {
        let text = format!(
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={DENSE} data.train_batch_size=64 \
             actor_rollout_ref.actor.ppo_mini_batch_size=64 {}\n",
            if word.starts_with("data") || word.starts_with("trainer") || word.starts_with("algo") {
                word.to_owned()
            } else {
                format!("actor_rollout_ref.{word}")
            }
        );
        let found = super::import(&text, &on("h100-sxm")).findings;
        let said = found
            .iter()
            .find(|one| one.code == Code::UnknownFlag && one.what.contains(word.split('=').next().unwrap()));
        let help = said.and_then(|one| one.help.as_deref()).unwrap_or_default();
        assert!(help.starts_with(&format!("did you mean `{meant}`?")), "{word}: {found:?}");
    }
    let (scenario, said) = read(DENSE, "rollout.free_cache_engine=True data.shuffle=True actor.optim.lr=1e-6");
    assert!(!says(&said, "not in the table"), "{said:?}");
    // `rollout.yaml` has 1024 where nothing is said.
    has(&scenario, &["max_sequences = 1024"]);
}
