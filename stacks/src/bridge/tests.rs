//! Overrides that change a recipe's model, its formats, what it trains and what it hides.

use input::diagnostic::{Code, Severity};

use super::precision;
use crate::Imported;
use crate::example::{on, said};

fn of_recipe(words: &str) -> Imported {
    let text = format!("torchrun --nproc_per_node=8 --nnodes=32 run_recipe.py {words}\n");
    super::import::import(&text, &on("h100-sxm"))
}

/// Lines of the scenario that a recipe has with some words and not without, and what is said then beside the recipe's own words.
fn changed(recipe: &str, words: &str) -> (Vec<String>, Vec<String>) {
    let base = of_recipe(&format!("--recipe {recipe}"));
    let found = of_recipe(&format!("--recipe {recipe} {words}"));
    let lines = found.scenario.lines().filter(|line| !base.scenario.lines().any(|own| own == *line));
    let said =
        found.findings.into_iter().filter(|finding| finding.code != Code::MissingFlag).map(|finding| finding.what);
    (lines.map(|line| line.split(" #").next().unwrap_or(line).trim_end().to_owned()).collect(), said.collect())
}

const LLAMA: &str = "llama3_70b_pretrain_config";

#[test]
fn overrides_of_the_shape_change_the_model() {
    let (lines, said) = changed(LLAMA, "model.num_layers=40 model.num_query_groups=16");
    for line in ["num_hidden_layers = 40", "num_key_value_heads = 16", "hidden_size = 8192", "vocab_size = 128256"] {
        assert!(lines.iter().any(|own| own == line), "{line} in {lines:?}");
    }
    assert_eq!(said, Vec::<String>::new());
    // Padded for four tensor ranks.
    let (lines, _) = changed(LLAMA, "model.vocab_size=32000");
    assert!(lines.iter().any(|line| line == "vocab_size = 32256"), "{lines:?}");
    let (lines, _) = changed(LLAMA, "model.share_embeddings_and_output_weights=true");
    assert!(lines.iter().any(|line| line == "tie_word_embeddings = true"), "{lines:?}");
    let (lines, said) = changed("qwen3_30b_a3b_pretrain_config", "model.num_moe_experts=64 model.moe_router_topk=4");
    assert!(lines.iter().any(|line| line == "num_experts_per_tok = 4") && said.is_empty(), "{lines:?} {said:?}");
    let (_, said) = changed("qwen3_30b_a3b_pretrain_config", "model.num_moe_experts=4");
    assert!(said.iter().any(|what| what.contains("4 experts")), "{said:?}");
    // Words of other sections change no shape.
    assert!(changed(LLAMA, "tokenizer.tokenizer_type=NullTokenizer").0.is_empty());
}

#[test]
fn a_shape_that_no_flag_says_stays_and_is_named() {
    let text = "torchrun --nproc_per_node=8 run_recipe.py --recipe gpt_oss_20b_pretrain_config dataset.seq_length=4096 model.num_layers=12\n";
    let found = super::import::import(text, &on("h100-sxm"));
    assert!(found.scenario.contains("name = \"gpt-oss-20b\""), "{}", found.scenario);
    let said = said(&found);
    assert!(said.contains(&"`model.num_layers 12` is not modelled"), "{said:?}");
}

#[test]
fn every_name_of_mixed_precision_is_read() {
    for (name, line, kept) in [
        ("bf16_with_fp8_delayed_scaling_mixed", "products = \"fp8\"", None),
        ("bf16-with-fp8-current-scaling-mixed", "products = \"fp8\"", Some(2)),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", "products = \"fp8-block\"", Some(4)),
        ("fp16_with_mxfp8_mixed", "dtype = \"fp16\"", None),
        ("fp16_with_fp8_subchannel_scaling_mixed", "products = \"fp8-block\"", None),
        ("nemotron_3_super_bf16_with_nvfp4_mixed", "products = \"nvfp4\"", Some(14)),
    ] {
        let (lines, said) = changed(LLAMA, &format!("mixed_precision={name}"));
        assert!(lines.iter().any(|own| own == line), "{name}: {lines:?}");
        let expected = kept.map(|n: u32| format!("keeps {n} layers at both ends in 16 bits"));
        assert_eq!(said.len(), usize::from(kept.is_some()), "{said:?}");
        assert!(expected.is_none_or(|part| said[0].contains(&part)), "{said:?}");
    }
    let wrong = of_recipe(&format!("--recipe {LLAMA} mixed_precision=bf16_with_mxpf8_mixed"));
    let errors: Vec<_> = wrong.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(
        matches!(errors[..], [one] if one.help.as_ref().is_some_and(|help| help.starts_with("did you mean `bf16_with_mxfp8_mixed`?"))),
        "{errors:?}"
    );
    let (_, said) = changed(LLAMA, "mixed_precision=$FORMAT");
    assert!(said.iter().any(|what| what.contains("known only when the script runs")), "{said:?}");
}

#[test]
fn adapters_are_trained_where_a_recipe_or_a_word_asks_for_them() {
    let (lines, said) = changed(LLAMA, "peft=lora");
    let all = ["[optimizer]", "trains = \"adapters\"", "adapter_rank = 32", "adapters_beside = \"all\""];
    assert!(all.iter().all(|line| lines.iter().any(|own| own == line)) && said.is_empty(), "{lines:?} {said:?}");
    assert_eq!(changed(LLAMA, "--peft_scheme lora train.train_iters=10"), (lines, Vec::new()));
    assert_eq!(changed(LLAMA, "--mode pretrain train.train_iters=10"), (Vec::new(), Vec::new()));
    assert_eq!(changed(LLAMA, "--peft_scheme none").0, Vec::<String>::new());
    let (lines, said) = changed(LLAMA, "peft=dora peft.dim=8 peft.target_modules=[linear_qkv,linear_proj]");
    assert!(
        lines.contains(&"adapter_rank = 8".to_owned()) && lines.contains(&"adapters_beside = \"attention\"".to_owned())
    );
    assert!(matches!(&said[..], [one] if one.contains("`dora`")), "{said:?}");
    assert!(changed(LLAMA, "peft=lora peft.dim=many").1.iter().any(|what| what.contains("`peft.dim=many`")));
    let tuned = of_recipe("--model llama3_70b --mode lora dataset.seq_length=4096");
    assert!(tuned.scenario.contains("trains = \"adapters\"") && tuned.scenario.contains("name = \"llama-3-70b\""));
}

#[test]
fn what_is_turned_off_is_off() {
    let of = |words: &str| of_recipe(&format!("--recipe {LLAMA} {words}")).scenario;
    assert!(of("").contains("tensor = 0.75"));
    let off = of("comm_overlap=null");
    assert!(!off.contains("tensor = 0.75") && off.contains("gradient_sync = \"overlapped\""), "{off}");
    assert!(of("model.apply_rope_fusion=false").contains("unfused = [\"positions\"]"));
    let added_up = of("model.gradient_accumulation_fusion=false");
    assert!(added_up.contains("unfused = [\"gradient-accumulation\"]"), "{added_up}");
    assert!(of("model.bias_activation_fusion=false").contains("unfused = [\"activation\"]"));
    assert!(!of("model.bias_activation_fusion=true").contains("unfused"));
    // Bridge has no overlap of tensor exchange without shared sequences.
    let (_, said) = changed(LLAMA, "model.sequence_parallel=false");
    assert!(!of("model.sequence_parallel=false").contains("tensor = 0.75"));
    assert!(matches!(&said[..], [one] if one.contains("tp_comm_overlap` is off")), "{said:?}");
    assert_eq!(changed(LLAMA, "model.sequence_parallel=false -tp 1").1, Vec::<String>::new());
}

#[test]
fn experts_beside_tensor_ranks_share_sequences() {
    let refused = |words: &str| {
        let (_, said) = changed("qwen3_30b_a3b_pretrain_config", words);
        said.iter().any(|what| what.contains("needs `--sequence-parallel`"))
    };
    assert!(refused("model.tensor_model_parallel_size=4"));
    assert!(!refused("model.tensor_model_parallel_size=4 model.sequence_parallel=true"));
    assert!(!refused("model.tensor_model_parallel_size=1"));
}

/// A script as Bridge ships them: a loop over layouts, and the command as a text (`examples/models/*/slurm_pretrain.sh`).
const SLURM: &str = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nMODEL=nemotron_3_nano\nLAYOUTS=(\"4,1,8,1,True\" \"2,2,8,1,True\")\n\
    RUN=\"srun --mpi=pmix --container-image=\"\nfor LAYOUT in \"${LAYOUTS[@]}\"; do\n  IFS=',' read -r TP PP EP CP SP <<< \"$LAYOUT\"\n\
    WORDS=\" dataset.seq_length=512 train.global_batch_size=32 model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP \\\n\
    model.expert_model_parallel_size=$EP model.sequence_parallel=$SP model.context_parallel_size=$CP\"\n\
    CMD=\"uv run python scripts/training/run_recipe.py\"\n  CMD=\"$CMD --recipe ${MODEL}_pretrain_config\"\n  CMD=\"$CMD $WORDS\"\n\
    echo $CMD\n  $RUN bash -c \"$CMD\"\ndone\n";

#[test]
fn a_loop_over_layouts_is_read_for_its_first_one() {
    let machine = on("h100-sxm");
    let found = super::import::import(SLURM, &machine);
    for line in [
        "name = \"nemotron-3-nano-30b-a3b\"",
        "tp = 4",
        "pp = 1",
        "ep = 8",
        "batch_size = 32",
        "tokens = 512",
        "nodes = 4",
    ] {
        assert!(found.scenario.lines().any(|own| own.starts_with(line)), "{line} in {}", found.scenario);
    }
    let said = said(&found);
    assert!(said.iter().any(|what| what.ends_with("its first value is followed")), "{said:?}");
    // What is shown is read where nothing is started, and nothing else of the script.
    let shown = super::import::import(&SLURM.replace("$RUN bash -c \"$CMD\"", "true"), &machine);
    assert!(shown.scenario.contains("\ntp = 4"), "{}", shown.scenario);
    let in_text = SLURM.replace("$RUN bash -c \"$CMD\"", "true").replace("echo $CMD", "true");
    let said = super::import::import(&in_text, &machine).findings;
    assert!(matches!(&said[..], [one] if one.what.contains("`run_recipe.py` is not read")), "{said:?}");
    let open = super::import::import(&SLURM.replace("MODEL=nemotron_3_nano\n", ""), &machine).findings;
    let errors: Vec<_> = open.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(matches!(errors[..], [one] if one.what.contains("name of the recipe is known only")), "{errors:?}");
}

#[test]
fn flags_of_the_program_that_are_not_read_are_named() {
    let (lines, said) = changed(LLAMA, "--deterministic --made-up 3 --max_steps 10 --config-file x.yaml");
    assert_eq!(lines, Vec::<String>::new());
    assert!(
        matches!(&said[..], [a, b, c] if a.contains("--deterministic") && b.contains("--made-up") && c.contains("--config-file")),
        "{said:?}"
    );
}

#[test]
fn what_recipes_share_and_a_plan_lacks_is_turned_off() {
    let all = ["use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "sequence-parallel"];
    assert_eq!(super::off(&all), "model.cross_entropy_loss_fusion=false\n");
    let with_loss: Vec<&str> = all[1..].iter().copied().chain(["cross-entropy-loss-fusion"]).collect();
    assert_eq!(super::off(&with_loss), "ddp.use_distributed_optimizer=false\n");
    // Bridge turns it on for sharded parameters of its own.
    let sharded: Vec<&str> = with_loss.into_iter().chain(["use-megatron-fsdp"]).collect();
    assert_eq!(super::off(&sharded), "");
}

/// `MixedPrecisionConfig.setup` copies its own fields over those of `ddp` and of the model.
#[test]
fn gradients_of_16_bits_are_said_by_mixed_precision() {
    let (lines, said) = changed(LLAMA, "mixed_precision.grad_reduce_in_fp32=false");
    assert!(lines.contains(&"gradient_dtype = \"bf16\"".to_owned()) && said.is_empty(), "{lines:?} {said:?}");
    let (lines, said) = changed(LLAMA, "ddp.grad_reduce_in_fp32=false");
    assert!(lines.is_empty() && said[0].contains("mixed precision overwrites it"), "{lines:?} {said:?}");
}

/// Names and their `fp8_param_gather` of `mixed_precision.py` @ 067f987df03b.
#[test]
fn names_of_mixed_precision_gather_parameters_in_their_format() {
    let gathers = |words: &str| changed(LLAMA, words).0.contains(&"narrow_gather = true".to_owned());
    assert!(gathers("mixed_precision=bf16_with_mxfp8_mixed") && gathers("mixed_precision=bf16_with_nvfp4_mixed"));
    assert!(!gathers("mixed_precision=bf16_with_fp8_subchannel_scaling_mixed"));
    assert!(!gathers("mixed_precision=bf16_with_mxfp8_mixed mixed_precision.fp8_param_gather=false"));
    assert!(gathers("mixed_precision=bf16_with_fp8_subchannel_scaling_mixed mixed_precision.fp8_param_gather=true"));
}

#[test]
fn what_no_name_says_is_written_field_by_field_and_read_back() {
    let asked = |wide, recipe, gathers, sums_wide| precision::Asked { wide, recipe, gathers, sums_wide };
    let named = |asked: &precision::Asked<'_>| precision::written(asked).concat();
    assert_eq!(named(&asked("bf16", "", false, true)), "mixed_precision=bf16_mixed");
    assert_eq!(named(&asked("fp16", "", false, false)), "mixed_precision=fp16_mixed");
    assert_eq!(named(&asked("bf16", "mxfp8", true, true)), "mixed_precision=bf16_with_mxfp8_mixed");
    let formats = [("", ""), ("tensorwise", "fp8"), ("blockwise", "fp8-block"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")];
    for wide in ["bf16", "fp16"] {
        for ((recipe, format), gathers) in formats.into_iter().flat_map(|one| [(one, false), (one, true)]) {
            for sums_wide in [false, true] {
                let gathers = gathers && !recipe.is_empty();
                let words = precision::written(&asked(wide, recipe, gathers, sums_wide));
                let words: String = words.iter().map(|word| format!(" '{word}'")).collect();
                let found = of_recipe(&format!("--recipe {LLAMA}{words}"));
                // No layer at the ends stays in 16 bits.
                let said = found.findings.iter().filter(|finding| finding.code != Code::MissingFlag).count();
                assert_eq!(said, 0, "{words}: {:?}", found.findings);
                let gradients = if sums_wide { "fp32" } else { "bf16" };
                for line in [format!("gradient_dtype = \"{gradients}\""), format!("dtype = \"{wide}\"")] {
                    assert!(found.scenario.contains(&line), "{words}: {line} in {}", found.scenario);
                }
                assert_eq!(found.scenario.contains("narrow_gather = true"), gathers, "{words}: {}", found.scenario);
                let product = format!("products = \"{format}\"");
                assert_eq!(found.scenario.contains(&product), !recipe.is_empty(), "{words}: {}", found.scenario);
            }
        }
    }
}

/// Words that Bridge would stop on, or that do something that is not followed.
#[test]
fn overrides_that_nobody_knows_are_said() {
    for (word, meant) in [
        ("ddp.overlap_grad_reduc=false", "did you mean `ddp.overlap_grad_reduce`?"),
        ("optimizer.use_distributed_optimize=false", "did you mean `"),
        ("mixed_precison=fp16_mixed", "did you mean `mixed_precision`?"),
        ("trian.global_batch_size=4", "did you mean `train.global_batch_size`?"),
        ("modle.tensor_model_parallel_size=4", "did you mean `model.tensor_model_parallel_size`?"),
        ("nosuch.key=3", "it is taken to change neither"),
        ("~model.seq_length", "what it deletes of the recipe"),
    ] {
        let found = of_recipe(&format!("--recipe {LLAMA} {word}"));
        let key = word.split('=').next().unwrap();
        let said = found.findings.iter().find(|one| one.what.contains(key));
        let help = said.and_then(|one| one.help.as_deref()).unwrap_or_default();
        assert!(help.starts_with(meant), "{word}: {:?}", found.findings);
    }
    let known = "ddp.overlap_grad_reduce=false model.sequence_parallel=false checkpoint.save=null comm_overlap=null";
    let (_, said) = changed(LLAMA, known);
    assert!(!said.iter().any(|what| what.contains("not in the table")), "{said:?}");
}
