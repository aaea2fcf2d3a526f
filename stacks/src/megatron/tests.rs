//! What flags of Megatron-LM become, and what is said of those that do not.

use input::diagnostic::{Code, Finding};

use super::{FLAGS, import};
use crate::example::{h100, on};
use crate::{Imported, Machine};

const BASE: &str = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 \
                    --seq-length 4096 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 64 ";

fn found(flags: &str) -> Imported {
    import(&format!("{BASE}{flags}\n"), &on("h100-sxm"))
}

fn of(found: &Imported, code: Code) -> Vec<&Finding> {
    found.findings.iter().filter(|finding| finding.code == code).collect()
}

/// What is said with a code, and the help.
fn said(flags: &str, code: Code) -> Vec<(String, String)> {
    let found = found(flags);
    of(&found, code).iter().map(|one| (one.what.clone(), one.help.clone().unwrap_or_default())).collect()
}

#[test]
fn a_word_that_no_flag_takes_is_refused_with_what_is_allowed() {
    let choices = FLAGS.rows().iter().filter(|known| !known.allowed.is_empty());
    let mut n = 0;
    for known in choices {
        let wrong = said(&format!("--{} foo", known.name), Code::WrongFlag);
        assert_eq!(wrong.len(), 1, "--{}: {wrong:?}", known.name);
        let first = known.allowed.split(' ').next().expect("a word");
        assert!(wrong[0].0.contains("foo") && wrong[0].1.contains(first), "{wrong:?}");
        n += 1;
    }
    assert!(n > 40, "{n} flags with choices");
}

#[test]
fn unknown_flags_of_formats_and_experts_are_not_called_harmless() {
    for (flag, part) in [
        ("--zz-fp8-zz", "may change both"),
        ("--zz-moe-zz", "may change both"),
        ("--zz-zz", "change neither time nor memory"),
    ] {
        let unknown = said(flag, Code::UnknownFlag);
        assert!(unknown.len() == 1 && unknown[0].1.contains(part), "{flag}: {unknown:?}");
    }
    // A recipe of MS-AMP.
    let named = said("--fp8-format hybrid --msamp", Code::NotModelled);
    assert!(named.iter().any(|(what, _)| what == "`--msamp` is not modelled"), "{named:?}");
}

#[test]
fn states_of_thirty_two_bits_are_said_to_be_smaller() {
    let plain = BASE.replace("--bf16", "");
    let found = import(&plain, &on("h100-sxm"));
    let help = of(&found, Code::NotModelled).iter().filter_map(|one| one.help.clone()).collect::<String>();
    assert!(help.contains("18 bytes a parameter, and 32 bits have 16"), "{help}");
}

#[test]
fn a_misspelt_word_is_shown_with_the_nearest() {
    for (flags, near) in [
        ("--attention-backend fussed", "fused"),
        ("--position-embedding-type rop", "rope"),
        ("--normalization RMSnorm", "RMSNorm"),
        ("--optimizer adm", "adam"),
        ("--cuda-graph-modules attn moe_rooter", "moe_router"),
    ] {
        let wrong = said(flags, Code::WrongFlag);
        assert!(wrong.len() == 1 && wrong[0].1.contains(&format!("did you mean `{near}`?")), "{flags}: {wrong:?}");
    }
    assert_eq!(said("--attention-backend", Code::WrongFlag).len(), 1);
    assert_eq!(said("--attention-backend fused --position-embedding-type rope", Code::WrongFlag), []);
    // The last one counts where a flag stands twice.
    assert_eq!(said("--optimizer foo --optimizer adam", Code::WrongFlag), []);
}

#[test]
fn query_groups_without_a_number_are_one() {
    let groups = [
        ("", 16),
        ("--group-query-attention", 1),
        ("--group-query-attention --num-query-groups 4", 4),
        ("--num-query-groups 4", 16),
    ];
    for (flags, n) in groups {
        let found = found(flags);
        assert!(found.scenario.contains(&format!("num_key_value_heads = {n} ")), "{flags}: {}", found.scenario);
    }
}

#[test]
fn windows_are_read_layer_by_layer() {
    let part = |flags: &str, part: &str| {
        let found = found(flags);
        assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
    };
    part("--window-size 127,0", "sliding_window = 128");
    part("--window-size '(127,0)' --window-attn-skip-freq 4", "sliding_window = 128");
    let three = "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"";
    part("--window-size 127,0 --window-attn-skip-freq 4", &format!("layer_types = [{three}, {three}]"));
    part("--window-size 127,0 --window-attn-skip-freq [1,1,1,0]*2", &format!("layer_types = [{three}, {three}]"));
    for wrong in ["--window-size foo", "--window-size 5", "--window-size 127,0 --window-attn-skip-freq [1]*3"] {
        assert_eq!(said(wrong, Code::WrongFlag).len(), 1, "{wrong}");
    }
}

#[test]
fn keys_that_a_scenario_has_are_given() {
    let experts = "--num-experts 16 --expert-model-parallel-size 8 --moe-ffn-hidden-size 512 --moe-grouped-gemm --moe-token-dispatcher-type alltoall";
    for (flags, part) in [
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "graphs = \"attention\""),
        ("--cuda-graph-impl transformer_engine", "graphs = \"attention+router\""),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "graphs = \"step\""),
        ("--enable-cuda-graph", "graphs = \"step\""),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "dispatcher = \"hybridep\""),
        ("--moe-token-dispatcher-type flex", "dispatcher = \"flex\""),
        ("--fp8-format hybrid --fp8-recipe mxfp8 --fp8-param-gather", "narrow_gather = true"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "dispatcher = \"deepep\""),
        ("--moe-layer-recompute", "recompute = [\"core_attn\", \"moe\"]"),
        ("--attention-backend flash", "attention = \"flash-attention-2\""),
        ("--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", "tensor = 0.75"),
        // Sixteen micro-batches on two stages and four replicas of it: all but the first two forwards meet a backward.
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --overlap-moe-expert-parallel-comm",
            "expert = 0.75",
        ),
        // One micro-batch in each of 16 replicas: passes are interleaved, and none has a neighbour.
        ("--micro-batch-size 4 --overlap-moe-expert-parallel-comm --delay-wgrad-compute", "expert = 0 "),
        ("--mtp-num-layers 2", "predicting_layers = 2"),
        ("--cpu-offloading-num-layers 2", "offload_ratio = 0.25"),
        ("--cross-entropy-loss-fusion", "loss = \"native\""),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "loss = \"te\""),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "loss = \"linear\""),
        ("", "dropout = \"both\""),
        ("--attention-dropout 0.0", "dropout = \"residual\""),
        ("--attention-dropout 0 --hidden-dropout 0.0", "dropout = \"none\""),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 \
             --microbatch-group-size-per-virtual-pipeline-stage 4",
            "micro_batch_group = 4",
        ),
        ("--overlap-moe-expert-parallel-comm --delay-wgrad-compute", "delayed_weights = true"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --use-transformer-engine-op-fuser", "fused = true"),
        ("", "unfused = [\"permutation\"]"),
    ] {
        let found = found(&format!("{experts} {flags}"));
        assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        assert!(of(&found, Code::NotModelled).is_empty(), "{flags}: {:?}", found.findings);
    }
}

#[test]
fn a_backend_of_a_dispatcher_that_is_not_asked_for_gives_none() {
    let flags = "--num-experts 16 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend hybridep";
    assert!(!found(flags).scenario.contains("dispatcher = "));
    let idle = said(flags, Code::NoEffect);
    assert!(matches!(&idle[..], [(what, _)] if what.contains("the dispatcher is `alltoall`")), "{idle:?}");
}

/// A default that is written out is the same answer, and what is taken in the place of one is said.
#[test]
fn defaults_of_experts_are_megatron_s_own() {
    let experts = "--num-experts 16 --expert-model-parallel-size 8";
    let (silent, written) = (found(experts), found(&format!("{experts} --moe-token-dispatcher-type allgather")));
    assert_eq!(silent.scenario, written.scenario);
    let told = |found: &Imported, part: &str| found.findings.iter().filter(|one| one.what.contains(part)).count();
    for read in [&silent, &written] {
        assert_eq!(told(read, "tokens are taken to go by all-to-all"), 1, "{:?}", read.findings);
        assert_eq!(told(read, "without `--moe-grouped-gemm`"), 1, "{:?}", read.findings);
    }
    // One expert of a rank is one product either way, and without expert ranks nothing is sent.
    let alone = found("--num-experts 8 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall");
    assert_eq!(of(&alone, Code::NotModelled), Vec::<&Finding>::new());
    let here = found("--num-experts 8 --moe-grouped-gemm");
    assert_eq!(of(&here, Code::NotModelled), Vec::<&Finding>::new());
}

/// Python's `argparse` knows a flag by its own name alone: Megatron-LM has few with `no-` in front.
#[test]
fn flags_that_megatron_does_not_have_are_no_opposites() {
    for name in ["no-overlap-grad-reduce", "no-bf16", "no-sequence-parallel", "no-use-distributed-optimizer"] {
        let unknown = said(&format!("--{name}"), Code::UnknownFlag);
        assert!(unknown.len() == 1 && unknown[0].0.contains(name), "{name}: {unknown:?}");
    }
    for name in ["no-data-sharding", "no-load-optim", "use-cpu-initialization", "mrope-section 16 24 24"] {
        assert_eq!(said(&format!("--{name}"), Code::UnknownFlag), [], "{name}");
    }
    assert_eq!(said("--heterogeneous-layers-config-path /x.json", Code::UnsupportedJob).len(), 1);
}

#[test]
fn stages_and_experts_that_fit_no_degree_are_said_with_what_does() {
    let base = BASE.replace("--num-layers 8", "--num-layers 81");
    let help = |flags: &str| {
        let found = import(&format!("{base}{flags}\n"), &on("h100-sxm"));
        of(&found, Code::WrongFlag).iter().filter_map(|one| one.help.clone()).collect::<Vec<_>>()
    };
    let stages =
        |each: u32| help(&format!("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage {each}"));
    assert!(
        stages(5)[0].contains("no pipeline degree fits: stages may have 1, 3, 9, 27, 81 layers"),
        "{:?}",
        stages(5)
    );
    assert!(stages(3)[0].contains("allowed pipeline degrees are 1, 3, 9, 27"), "{:?}", stages(3));
    // 16 GPUs, and experts on 2 × 8 × 2 of them.
    let wide = "--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
                --expert-tensor-parallel-size 2";
    let wrong = said(wide, Code::WrongFlag);
    assert!(matches!(&wrong[..], [(what, _)] if what.contains("= 32 GPUs, which do not divide the 16")), "{wrong:?}");
}

#[test]
fn what_matters_and_is_not_modelled_is_named() {
    for flags in [
        "--softmax-type learnable",
        "--attention-output-gate",
        "--no-fp8-wgrad",
        "--keep-fp8-transpose-cache",
        "--outer-dp-sharding-strategy optim",
        "--enable-full-sharding-in-hsdp",
        "--fsdp-double-buffer",
        "--nccl-ub",
        "--distribute-saved-activations",
        "--fp16-lm-cross-entropy",
        "--moe-shared-expert-gate",
        "--use-transformer-engine-op-fuser",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--cuda-graph-impl transformer_engine --cuda-graph-modules mlp",
    ] {
        let named = said(flags, Code::NotModelled);
        assert!(named.len() == 1 && !named[0].1.is_empty(), "{flags}: {named:?}");
    }
    let silent =
        ["--softmax-type vanilla", "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"];
    silent.iter().for_each(|flags| assert_eq!(said(flags, Code::NotModelled), []));
}

#[test]
fn hybrids_are_read_by_the_letters_of_their_layers() {
    let experts = "--num-experts 16 --moe-ffn-hidden-size 512 --moe-router-topk 4 --moe-latent-size 256";
    let text = found(&format!("{experts} --hybrid-layer-pattern ME*EM-/*E --mamba-num-heads 32")).scenario;
    for part in [
        "num_hidden_layers = 6",
        "hybrid_override_pattern = \"ME*EM-\"",
        "mamba_num_heads = 32",
        "mamba_head_dim = 64",
        "ssm_state_size = 128",
        "moe_latent_size = 256",
        "predicting_layers = 1",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let stages = "--pipeline-model-parallel-size 2 --hybrid-override-pattern 'MM|M*M|M-|MM*-/*E'";
    let text = found(&format!("{experts} {stages}")).scenario;
    for part in ["layers = [2, 3, 2, 6]", "chunks = 2", "schedule = \"interleaved\""] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let other = said("--hybrid-layer-pattern MGM", Code::WrongFlag);
    assert!(other[0].0.contains("`G`") && other[0].1.contains("M for Mamba"), "{other:?}");
    let uneven = said("--pipeline-model-parallel-size 4 --hybrid-layer-pattern 'MM|MM|MM'", Code::WrongFlag);
    assert!(uneven[0].0.contains("marks 3 stages"), "{uneven:?}");
    assert_eq!(said("--hybrid-layer-pattern ME", Code::MissingFlag).len(), 1);
    assert_eq!(said("--is-hybrid-model --hybrid-attention-ratio 0.1", Code::UnsupportedJob).len(), 1);
}

#[test]
fn options_that_megatron_lm_refuses_are_refused() {
    let experts = "--num-experts 16 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm";
    let spread = format!("{experts} --expert-model-parallel-size 8");
    for (flags, others) in [
        ("--delay-wgrad-compute", "`--overlap-moe-expert-parallel-comm`"),
        ("--recompute-activations --recompute-granularity full", "`--recompute-granularity full`"),
        (&format!("{experts} --expert-model-parallel-size 1"), "`--expert-model-parallel-size above 1`"),
        (experts, "`--expert-model-parallel-size above 1`"),
        (
            &format!("{spread} --recompute-granularity full --recompute-method uniform"),
            "`--recompute-granularity full`",
        ),
        (
            &format!("{spread} --recompute-granularity selective --recompute-modules layernorm moe"),
            "`--recompute-modules moe`",
        ),
        (&format!("{spread} --pipeline-model-parallel-size 2"), "`--pipeline-model-parallel-size 2`"),
        ("--use-torch-fsdp2 --pipeline-model-parallel-size 2", "`--pipeline-model-parallel-size above 1`"),
        ("--overlap-param-gather --use-distributed-optimizer", "`--overlap-grad-reduce`"),
        ("--overlap-param-gather --overlap-grad-reduce", "`--use-distributed-optimizer` or `--use-megatron-fsdp`"),
        ("--use-megatron-fsdp --optimizer muon", "`--optimizer muon`"),
        ("--fp16", "`--fp16`"),
        ("--num-experts 16 --moe-enable-deepep", "`--moe-token-dispatcher-type flex`"),
        (
            "--num-experts 16 --moe-token-dispatcher-type alltoall --moe-enable-deepep",
            "`--moe-token-dispatcher-type flex`",
        ),
        (
            "--num-experts 16 --moe-token-dispatcher-type flex --moe-enable-deepep --moe-flex-dispatcher-backend hybridep",
            "`--moe-flex-dispatcher-backend hybridep`",
        ),
        (&format!("{spread} --moe-token-dispatcher-type allgather"), "`--moe-token-dispatcher-type alltoall`"),
        ("--main-grads-dtype bf16", "`--use-precision-aware-optimizer`"),
        ("--optimizer-cpu-offload", "`--use-precision-aware-optimizer`"),
        ("--recompute-granularity full", "`--recompute-method`"),
        ("--recompute-granularity selective --recompute-method uniform", "`--recompute-method`"),
        ("--cpu-offloading-num-layers 2 --pipeline-model-parallel-size 2", "`--pipeline-model-parallel-size above 1`"),
        ("--cpu-offloading-num-layers 2 --recompute-activations", "`--recompute-activations`"),
        ("--max-position-embeddings 2048", "4096 tokens of `--seq-length`"),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 2",
            "`--num-virtual-stages-per-pipeline-rank`",
        ),
        ("--num-virtual-stages-per-pipeline-rank 2", "2 virtual stages to a rank, and 1 pipeline ranks"),
        ("--encoder-seq-length 4096", "`--encoder-seq-length`"),
        ("--train-iters 10 --train-samples 640", "`--train-samples`"),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "`--sequence-parallel`"),
    ] {
        let wrong = said(flags, Code::WrongFlag);
        let [(what, help)] = &wrong[..] else { panic!("{flags}: {wrong:?}") };
        assert!(what.contains(others) && help.contains("Megatron-LM asserts"), "{flags}: {wrong:?}");
    }
    for flags in [
        "--recompute-activations --recompute-granularity selective",
        &format!("{spread} --recompute-granularity selective --recompute-modules layernorm"),
        &format!("{spread} --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
        "--use-torch-fsdp2 --pipeline-model-parallel-size 1",
        "--num-experts 16 --moe-token-dispatcher-type flex --moe-enable-deepep",
        "--main-grads-dtype bf16 --use-precision-aware-optimizer --use-distributed-optimizer",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--max-position-embeddings 4096",
        "--num-virtual-stages-per-pipeline-rank 1",
        "--overlap-param-gather --overlap-grad-reduce --optimizer dist_muon",
        "--overlap-param-gather --overlap-grad-reduce --use-megatron-fsdp",
    ] {
        assert_eq!(said(flags, Code::WrongFlag), [], "{flags}");
    }
    // What only the shell knows is no mistake of these.
    assert!(said(&format!("{experts} --expert-model-parallel-size $EP"), Code::WrongFlag).is_empty());
}

/// The rule of `forward_backward_pipelining_with_interleaving`: groups of at most all micro-batches, and a rest of none or at least the ranks.
#[test]
fn micro_batches_that_interleaved_stages_do_not_take_are_refused() {
    // Four ranks of a pipeline and four replicas: a sequence each is a micro-batch for every replica.
    let stages = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1";
    let wrong = |n: u32, group: Option<u32>| {
        let group =
            group.map_or_else(String::new, |n| format!("--microbatch-group-size-per-virtual-pipeline-stage {n}"));
        said(&format!("{stages} --global-batch-size {} {group}", 4 * n), Code::WrongFlag)
    };
    for (n, group) in [(4, None), (8, None), (16, Some(6)), (14, Some(5)), (12, Some(12)), (15, Some(10))] {
        assert_eq!(wrong(n, group), [], "{n} {group:?}");
    }
    for (n, group) in [(6, None), (3, None), (13, Some(5)), (11, Some(12)), (13, Some(10))] {
        let found = wrong(n, group);
        assert!(found.len() == 1 && found[0].0.contains(&format!("{n} micro-batches")), "{n} {group:?}: {found:?}");
    }
    assert!(wrong(6, None)[0].1.contains("`--global-batch-size 32`"), "{:?}", wrong(6, None));
    // Without virtual stages any number goes.
    assert_eq!(said("--pipeline-model-parallel-size 4 --global-batch-size 24", Code::WrongFlag), []);
    let other = said(&format!("{stages} --microbatch-group-size-per-virtual-pipeline-stage 3"), Code::WrongFlag);
    assert!(other[0].1.contains("allowed are 4"), "{other:?}");
}

#[test]
fn a_kind_of_fusion_without_its_switch_fuses_nothing() {
    assert!(!found("--cross-entropy-fusion-impl te").scenario.contains("loss = "));
}

#[test]
fn layers_that_predict_are_layers_of_a_stage() {
    let layout = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*4|t*4mL'";
    assert!(found(&format!("{layout} --mtp-num-layers 1")).scenario.contains("layers = [4, 5]"));
    let even = found("--pipeline-model-parallel-size 4 --mtp-num-layers 2").scenario;
    assert!(even.contains("layers = [2, 2, 2, 4]"), "{even}");
    let wrong = said(layout, Code::WrongFlag);
    assert!(wrong[0].0.contains("holds 1 layers that predict"), "{wrong:?}");
}

#[test]
fn experts_cut_over_a_part_of_the_tensor_group_are_said_as_they_were_written() {
    let flags =
        "--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 4";
    let wrong = said(flags, Code::WrongFlag);
    assert_eq!(wrong[0].0, "`--expert-tensor-parallel-size 4` does not divide 2 tensor ranks");
    let part =
        "--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 4 --expert-tensor-parallel-size 2";
    let scenario = found(part).scenario;
    assert!(scenario.contains("ep = 4") && scenario.contains("expert_tp = 2"), "{scenario}");
}

#[test]
fn flags_of_muon_become_keys_where_muon_is_the_optimizer() {
    let flags = "--muon-num-ns-steps 6 --muon-tp-mode distributed --muon-no-split-qkv";
    let keys = ["muon_iterations = 6", "muon_tensor = \"distributed\"", "muon_qkv = \"whole\""];
    let muon = found(&format!("--optimizer dist_muon {flags}")).scenario;
    let adam = found(&format!("--optimizer adam {flags}")).scenario;
    for key in keys {
        assert!(muon.contains(key) && !adam.contains(key), "{key}: {muon}\n{adam}");
    }
    assert_eq!(said("--optimizer muon --muon-num-ns-steps 0", Code::WrongFlag).len(), 1);
    // What keeps states narrow or on the host is of Adam alone.
    let on_host = said("--optimizer muon --use-precision-aware-optimizer --optimizer-cpu-offload", Code::WrongFlag);
    assert!(on_host.len() == 1 && on_host[0].0.contains("`--optimizer muon`"), "{on_host:?}");
}

/// Two ranks have two ends and nothing between (`get_num_layers_to_build`, where no stages are left).
#[test]
fn a_first_and_a_last_stage_may_hold_all_layers() {
    let ends = |first: u32, last: u32, pp: u32| {
        format!(
            "--pipeline-model-parallel-size {pp} --decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
        )
    };
    assert!(found(&ends(3, 5, 2)).scenario.contains("layers = [3, 5]"));
    assert!(found(&ends(1, 3, 4)).scenario.contains("layers = [1, 2, 2, 3]"));
    for wrong in [ends(3, 4, 2), ends(4, 4, 1), ends(2, 3, 4), ends(6, 3, 2)] {
        assert_eq!(said(&wrong, Code::WrongFlag).len(), 1, "{wrong}");
    }
}

#[test]
fn permutations_are_fused_by_a_switch_and_other_kernels_without_one() {
    let unfused = |flags: &str| {
        let text = found(flags).scenario;
        text.lines()
            .find_map(|line| line.strip_prefix("unfused = "))
            .map(|rest| rest.split(" #").next().unwrap_or(rest).trim().to_owned())
    };
    let experts = "--num-experts 16 --moe-ffn-hidden-size 512 ";
    assert_eq!(unfused(&format!("{experts}--moe-permute-fusion")), None);
    assert_eq!(unfused(experts).as_deref(), Some("[\"permutation\"]"));
    // Each switch is of one activation function, and a plain one without a bias is a kernel by itself.
    for (flags, expected) in [
        ("--swiglu", None),
        ("--swiglu --no-bias-swiglu-fusion", Some("[\"activation\"]")),
        ("--swiglu --no-bias-gelu-fusion", None),
        ("--no-bias-gelu-fusion", Some("[\"activation\"]")),
        ("--no-bias-gelu-fusion --disable-bias-linear", None),
        ("--no-gradient-accumulation-fusion", Some("[\"gradient-accumulation\"]")),
        ("--no-rope-fusion", None),
        ("--no-rope-fusion --position-embedding-type rope", Some("[\"positions\"]")),
    ] {
        assert_eq!(unfused(flags).as_deref(), expected, "{flags}");
    }
}

#[test]
fn positions_that_turn_nothing_are_said() {
    for (kind, expected) in
        [("rope", None), ("learned_absolute", None), ("none", Some("false")), ("alibi", Some("false"))]
    {
        let text = found(&format!("--position-embedding-type {kind}")).scenario;
        let key = text.lines().find_map(|line| line.strip_prefix("rotary_positions = "));
        assert_eq!(key.map(|rest| rest.split(" #").next().unwrap_or(rest).trim()), expected, "{kind}: {text}");
    }
}

#[test]
fn a_flag_without_its_value_is_refused_at_the_flag() {
    for (name, flags) in [
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size --sequence-parallel"),
        ("--moe-expert-capacity-factor", "--moe-expert-capacity-factor"),
        ("--pipeline-model-parallel-layout", "--pipeline-model-parallel-layout --sequence-parallel"),
        ("--cross-entropy-fusion-impl", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl"),
    ] {
        let words: Vec<String> = said(flags, Code::WrongFlag).into_iter().map(|(what, _)| what).collect();
        assert!(matches!(&words[..], [one] if one.starts_with(&format!("`{name}` has no"))), "{flags}: {words:?}");
    }
    let text = BASE.replace("--hidden-size 1024", "--hidden-size");
    let found = import(&text, &on("h100-sxm"));
    let wrong = of(&found, Code::WrongFlag);
    let at = wrong[0].at.clone().expect("a place");
    assert_eq!((wrong.len(), &text[at]), (1, "--hidden-size"));
}

#[test]
fn a_vocabulary_is_that_of_a_flag_a_tokenizer_or_the_command_line() {
    let base = BASE.replace("--vocab-size 32000 ", "");
    let of = |flags: &str, set: &[&str]| {
        let found = import(&format!("{base}{flags}\n"), &h100(set));
        let line = found.scenario.lines().find_map(|line| line.strip_prefix("vocab_size = ").map(str::to_owned));
        let rows = line.and_then(|line| line.split(' ').next().and_then(|number| number.parse::<u64>().ok()));
        let of_rows = found.findings.iter().filter(|one| one.code == Code::MissingFlag);
        (rows, of_rows.map(|one| one.what.clone()).collect::<Vec<_>>())
    };
    const HF: &str = "--tokenizer-type HuggingFaceTokenizer";
    assert_eq!(of("--tokenizer-type NullTokenizer --vocab-size 128256", &[]), (Some(128_256), Vec::new()));
    assert_eq!(of(&format!("{HF} --tokenizer-model deepseek-ai/DeepSeek-V3"), &[]), (Some(129_280), Vec::new()));
    // A flag beside a tokenizer that has its own rows: `build_tokenizer` hands it to NullTokenizer and TikTokenizer alone.
    let llama = format!("{HF} --tokenizer-model meta-llama/Llama-3.1-8B --vocab-size 32000");
    assert_eq!(of(&llama, &[]), (Some(128_256), Vec::new()));
    assert_eq!(of("--tokenizer-type GPT2BPETokenizer --vocab-size 128256", &[]), (Some(50_304), Vec::new()));
    assert_eq!(of("--tokenizer-type TikTokenizer --vocab-size 65536", &[]), (Some(65_536), Vec::new()));
    assert_eq!(of(&format!("{HF} --tokenizer-model /mine --vocab-size 32000"), &[]), (Some(32_000), Vec::new()));
    assert_eq!(of(HF, &["model.config.vocab_size=1000"]), (Some(1000), Vec::new()));
    assert_eq!(of(HF, &["model.name=deepseek-v3"]), (Some(129_280), Vec::new()));
    assert_eq!(of(HF, &[]), (None, vec!["`--vocab-size` is not given".to_owned()]));
    assert_eq!(of("--vocab-file gpt2-vocab.json", &[]), (Some(50_304), Vec::new()));
    let (rows, said) = of("", &[]);
    assert_eq!(rows, Some(50_304));
    assert!(matches!(&said[..], [one] if one.contains("of GPT-2 are taken")), "{said:?}");
}

#[test]
fn a_schedule_of_batches_is_taken_at_its_last() {
    let base = BASE.replace("--global-batch-size 64", "--step-batch-size-schedule '0:16 12B:1536'");
    let found = import(&base, &on("h100-sxm"));
    assert!(found.scenario.contains("batch_size = 1536"), "{}", found.scenario);
    assert_eq!(of(&found, Code::NotModelled).len(), 1);
    assert_eq!(said("--step-batch-size-schedule 12", Code::WrongFlag).len(), 1);
}

#[test]
fn launches_that_megatron_stops_on_are_refused() {
    for (flags, part) in [
        ("--exp-avg-dtype bf16", "needs `--use-precision-aware-optimizer`"),
        ("--squared-relu --swiglu", "does not go with `--swiglu`"),
        ("--sequence-parallel false", "takes no word, and `false` stands behind it"),
    ] {
        let wrong = said(flags, Code::WrongFlag);
        assert!(wrong.iter().any(|(what, _)| what.contains(part)), "{flags}: {wrong:?}");
    }
    let both = "--exp-avg-dtype bf16 --use-precision-aware-optimizer --use-distributed-optimizer";
    assert_eq!(said(both, Code::WrongFlag), []);
    assert_eq!(said("--exp-avg-dtype fp32", Code::WrongFlag), []);
}

/// What only a function, a subshell or another command has been given is not the script's.
#[test]
fn degrees_are_those_that_the_shell_gives() {
    for lines in [
        "TP=2\nTP=4 ./convert.sh\n",
        "TP=2\nusage() { TP=4; echo usage; exit 1; }\n",
        "usage() { TP=4; exit 1; }\nTP=2\nwhile getopts h o; do usage; done\n",
        "TP=1\n((TP=TP*2))\n",
    ] {
        let text = format!("{lines}{BASE}--tensor-model-parallel-size $TP\n");
        let found = import(&text, &on("h100-sxm"));
        assert!(found.scenario.contains("tp = 2 "), "{lines}: {}", found.scenario);
        assert_eq!(of(&found, Code::UnknownValue), Vec::<&Finding>::new(), "{lines}");
    }
}

/// `gpu` is as many as there are, and GPUs of a node alone change the replicas.
#[test]
fn gpus_of_a_node_are_those_of_the_command_line() {
    let machine = |per_node, nodes| Machine {
        gpu: Some("h100-sxm".to_owned()),
        gpus_per_node: per_node,
        nodes,
        ..Machine::default()
    };
    let all = BASE.replace("--nproc-per-node 8 --nnodes 2", "--nproc_per_node gpu");
    let text = format!("{all}--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2\n");
    let found = import(&text, &machine(None, Some(1)));
    assert!(found.scenario.contains("gpus_per_node = 8 "), "{}", found.scenario);
    let [wider, both] =
        [machine(Some(4), None), machine(Some(4), Some(2))].map(|machine| import(BASE, &machine).scenario);
    assert_eq!(wider, both);
}
