//! Keys of `[optimizer]` and of sharding through a scenario: each changes memory and time as its closed form says.

use std::collections::BTreeMap;
use train::optimizer::UpdateKernels;

use input::diagnostic::{Code, Finding, Source};
use scenario::Overrides;
use scenario::training::Scenario;
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;
use train::stage::stages;

const BASE: &str = "kind = \"training\"\nname = \"a\"\n[model]\nname = \"llama-3-8b\"\n\
                    [cluster]\ngpu = \"b200\"\nnodes = 2\ngpus_per_node = 8\n[parallel]\ntp = 2\nzero = 1\n[optimizer]\n\
                    [training]\nbatch_size = 16\nbucket_tokens = 4096\nframework = \"megatron-core\"\n[workload]\ntokens = 4096\n\
                    [policies]\nrun = [\"megatron\"]\n";

fn checked(text: String) -> (Option<Scenario>, Vec<Finding>) {
    let checked = super::written(text, &[]);
    (checked.scenario.and_then(|scenario| scenario.training().cloned()), checked.findings)
}

/// The scenario above with lines of `[parallel]` and `[optimizer]`.
fn text(parallel: &str, optimizer: &str) -> String {
    BASE.replace("zero = 1\n", parallel).replace("[optimizer]\n", &format!("[optimizer]\n{optimizer}\n"))
}

fn scenario(parallel: &str, optimizer: &str) -> Scenario {
    scenario_of(&text(parallel, optimizer))
}

fn scenario_of(text: &str) -> Scenario {
    let (scenario, findings) = checked(text.to_owned());
    scenario.unwrap_or_else(|| panic!("{findings:?}\n{text}"))
}

/// Metrics of the one policy of a scenario.
fn played(scenario: &Scenario) -> BTreeMap<String, f64> {
    let result = pipeline::run(scenario, &|_| {}).result.results.remove(0);
    assert!(result.status.is_ok(), "{}", result.why);
    result.metrics.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

fn step_s(scenario: &Scenario) -> f64 {
    played(scenario)["iteration_time_s"]
}

/// Bytes of the optimizer's states on a rank.
fn state_bytes(scenario: &Scenario) -> f64 {
    let problem = &scenario.problem;
    train::memory::states(problem, &stages(problem)).optimizer.as_f64()
}

/// Parameters of a rank.
fn parameters(scenario: &Scenario) -> f64 {
    let problem = &scenario.problem;
    let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), &stages(problem)[0]);
    shared + experts
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} against {expected}");
}

#[test]
fn every_key_of_the_optimizer_changes_states_and_step() {
    let zero = "zero = 1\n";
    let plain = scenario(zero, "");
    let (held, time) = (parameters(&plain) / 8.0, step_s(&plain));
    close(state_bytes(&plain), held * 12.0);
    // A master copy of two bytes.
    let narrow = scenario(zero, "master = \"fp16\"");
    close(state_bytes(&narrow), held * 10.0);
    assert!(step_s(&narrow) < time);
    // Half of the states on the host, whose memory is slower.
    let offloaded = scenario(zero, "offload_ratio = 0.5\nhost_memory_gb_per_s = 20");
    close(state_bytes(&offloaded), held * 6.0);
    assert!(step_s(&offloaded) > time);
    // Muon keeps no second moment of matrices of layers, and multiplies.
    let muon = scenario(zero, "rule = \"muon\"");
    let tables = 2.0 * 128_256.0 * 4096.0 / 2.0 / 8.0;
    assert!(state_bytes(&muon) > held * 8.0 && state_bytes(&muon) < held * 8.0 + tables * 4.1);
    assert!(step_s(&muon) > time);
    // More iterations, a matrix of queries, keys and values together, and exchanges of the tensor group take longer.
    let of_muon = |more: &str| step_s(&scenario(zero, &format!("rule = \"muon\"\n{more}")));
    assert!(of_muon("muon_iterations = 8") > step_s(&muon));
    assert!(of_muon("muon_qkv = \"whole\"") > step_s(&muon));
    let [duplicated, distributed] =
        ["duplicated", "distributed"].map(|word| of_muon(&format!("muon_tensor = \"{word}\"")));
    assert!(duplicated > distributed && distributed > step_s(&muon), "{duplicated} {distributed}");
    // Adapters have states of their own alone: in 32 layers a pair of rank 32 beside the one product of half of 6144 columns over 4096, over eight ranks.
    let adapters = scenario(zero, "trains = \"adapters\"\nadapters_beside = \"qkv\"");
    close(state_bytes(&adapters), 32.0 * 32.0 * (3072.0 + 4096.0) / 8.0 * 12.0);
    assert!(step_s(&adapters) < 0.8 * time);
    // Kernels of adapters are thin: a larger rank and more products take longer, and less than gradients of all weights.
    let of = |more: &str| step_s(&scenario(zero, &format!("trains = \"adapters\"\n{more}")));
    let [qkv, attention, all] = ["qkv", "attention", "all"].map(|word| of(&format!("adapters_beside = \"{word}\"")));
    assert!(qkv < attention && attention < all && all < time, "{qkv} {attention} {all} {time}");
    assert!(of("adapter_rank = 256") > all);
}

/// The scenario under PyTorch's modules with keys of the optimizer.
fn of_pytorch(optimizer: &str) -> String {
    text("zero = 3\n", optimizer).replace("megatron-core", "pytorch").replace("gpu = \"b200\"", "gpu = \"h100-sxm\"")
}

#[test]
fn parameters_in_sixteen_bits_without_a_master_copy_take_half_of_all_states() {
    let [wide, pure] = ["", "master = \"none\""].map(|keys| scenario_of(&of_pytorch(keys)));
    let held = parameters(&wide) / 8.0;
    let states = |scenario: &Scenario| {
        let problem = &scenario.problem;
        let states = train::memory::states(problem, &stages(problem));
        [states.parameters, states.gradients, states.optimizer].map(|bytes| bytes.as_f64() / held)
    };
    let near = |found: [f64; 3], expected: [f64; 3]| {
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-3), "{found:?}");
    };
    // Parameter, gradient as the file has it, and two moments in 32 bits; all of them in 16.
    near(states(&wide), [4.0, 2.0, 8.0]);
    near(states(&pure), [2.0, 2.0, 4.0]);
    // Gradients that are reduced in 32 bits are held in those of the parameter.
    let reduced = of_pytorch("master = \"none\"").replace("[training]", "[training]\ngradient_dtype = \"fp32\"");
    near(states(&scenario_of(&reduced)), [2.0, 2.0, 4.0]);
    // Moments may have another format.
    near(
        states(&scenario_of(&of_pytorch("master = \"none\"\nfirst_moment = \"fp8\"\nsecond_moment = \"fp8\""))),
        [2.0, 2.0, 2.0],
    );
    assert!(step_s(&pure) < step_s(&wide));
}

#[test]
fn updates_in_sixteen_bits_are_refused_where_nobody_makes_them() {
    let pure = "master = \"none\"";
    for (text, help) in [
        (text("zero = 1\n", pure), "Megatron-Core and DeepSpeed keep a master copy"),
        (of_pytorch(pure).replace("[training]", "[training]\ndtype = \"fp16\""), "fp16 is too coarse"),
    ] {
        let (scenario, findings) = checked(text);
        let is_said = |finding: &Finding| finding.help.as_deref().is_some_and(|words| words.contains(help));
        assert!(scenario.is_none() && findings.iter().any(is_said), "{help}: {findings:?}");
    }
}

#[test]
fn frozen_weights_have_sixteen_bits_in_every_framework() {
    let lora = "trains = \"adapters\"\nadapters_beside = \"qkv\"";
    let of = |text: &str| {
        let scenario = scenario_of(text);
        let problem = &scenario.problem;
        train::memory::states(problem, &stages(problem)).parameters.as_f64() / parameters(&scenario)
    };
    for framework in ["formulas", "megatron-core", "pytorch"] {
        let text = |parallel: &str| text(parallel, lora).replace("megatron-core", framework);
        // Two bytes of each, or an eighth of them; PyTorch's adapters are a few thousandths besides.
        let [whole, cut] = ["zero = 0\n", "zero = 3\n"].map(|parallel| of(&text(parallel)));
        assert!((whole / 2.0 - 1.0).abs() < 6e-3 && (cut / 0.25 - 1.0).abs() < 6e-3, "{framework}: {whole}, {cut}");
    }
    // 8.03 billion parameters in 16 bits are 15.0 GiB: one card of 40 GiB holds them beside a sequence (litgpt on an A100: 21.3 GB for Llama 2 7B).
    let alone = "kind = \"training\"\nname = \"a\"\n[model]\nname = \"llama-2-7b\"\n[cluster]\ngpu = \"a100-sxm-40g\"\n\
                 nodes = 1\ngpus_per_node = 1\n[parallel]\nzero = 0\n[optimizer]\ntrains = \"adapters\"\nadapter_rank = 8\n\
                 adapters_beside = \"qkv\"\n[training]\nbatch_size = 1\nbucket_tokens = 1304\nframework = \"pytorch\"\n\
                 recompute = \"none\"\n[workload]\ntokens = 1304\n[policies]\nrun = [\"megatron\"]\n";
    let peak = played(&scenario_of(alone))["peak_memory_bytes"] / 21.3e9;
    assert!((0.85..1.2).contains(&peak), "{peak} of what was measured");
}

/// Llama 2 7B on one card with adapters and keys of `[optimizer]`.
fn on_one_card(keys: &str) -> String {
    format!(
        "kind = \"training\"\nname = \"a\"\n[model]\nname = \"llama-2-7b\"\n[cluster]\ngpu = \"a100-sxm-80g\"\nnodes = 1\ngpus_per_node = 1\n\
         [parallel]\nzero = 0\n[optimizer]\ntrains = \"adapters\"\nadapter_rank = 8\n{keys}\n[training]\nbatch_size = 1\nbucket_tokens = 1024\n\
         framework = \"pytorch\"\nrecompute = \"full\"\n[workload]\ntokens = 1024\n[policies]\nrun = [\"megatron\"]\n"
    )
}

#[test]
fn packed_weights_take_fewer_bytes_and_more_time() {
    let of = |keys: &str| {
        let figures = played(&scenario_of(&on_one_card(keys)));
        [figures["peak_memory_bytes"], figures["iteration_time_s"]]
    };
    let words = ["nf4-double", "nf4", "int8", "same"];
    let [double, nf4, int8, same] = words.map(|word| of(&format!("frozen = \"{word}\"")));
    assert_eq!(of(""), same, "the default");
    // Seven matrices of 32 layers: 6.476 billion weights of 4.127, 4.5, 8 and 16 bits, and one matrix of 4096 by 11,008 that is wide.
    let (weights, matrix) = (32.0 * (4.0 * 4096.0 * 4096.0 + 3.0 * 4096.0 * 11_008.0), 2.0 * 4096.0 * 11_008.0);
    for (found, bits) in [(double, 4.127), (nf4, 4.5), (int8, 8.0)] {
        let fewer = (same[0] - found[0] + matrix) / (weights * (16.0 - bits) / 8.0);
        assert!((fewer - 1.0).abs() < 1e-4, "{bits}: {fewer}");
    }
    assert_eq!(of("frozen = \"nf4-torchao\""), double, "on one card nothing is cut");
    // Of 0.127 bits of scales a rank of eight keeps an eighth where they are cut.
    let sharded = |word: &str| {
        let text = on_one_card(&format!("frozen = \"{word}\"")).replace("gpus_per_node = 1", "gpus_per_node = 8");
        played(&scenario_of(&text.replace("zero = 0", "zero = 3")))["peak_memory_bytes"]
    };
    let fewer = (sharded("nf4-double") - sharded("nf4-torchao")) / (weights * 0.127 / 8.0 * 7.0 / 8.0);
    assert!((fewer - 1.0).abs() < 5e-3, "{fewer}");
    // Each weight is read packed and written in 16 bits in three passes of a step.
    let more = nf4[1] - same[1];
    let least =
        3.0 * weights * (4.5 + 16.0) / 8.0 / hw::catalog::gpu("a100-sxm-80g").expect("listed").memory_bandwidth.get();
    assert!(more > 0.9 * least && more < 2.5 * least, "{more} s more, {least} at least");
}

/// Llama 2 7B as a file that bitsandbytes has packed.
const PACKED_FILE: &str = "[model.config]\nmodel_type = \"llama\"\nhidden_size = 4096\nnum_attention_heads = 32\nnum_key_value_heads = 32\n\
    num_hidden_layers = 32\nintermediate_size = 11008\nvocab_size = 32000\nmax_position_embeddings = 4096\n[model.config.quantization_config]\n\
    quant_method = \"bitsandbytes\"\nload_in_4bit = true\nbnb_4bit_quant_type = \"nf4\"\n";

#[test]
fn a_file_that_bitsandbytes_has_packed_is_frozen_beside_adapters_and_nothing_else() {
    let of_file = |keys: &str| on_one_card(keys).replace("[model]\nname = \"llama-2-7b\"\n", PACKED_FILE);
    let figures = |text: &str| {
        let all = played(&scenario_of(text));
        [all["peak_memory_bytes"], all["iteration_time_s"]]
    };
    let nf4 = figures(&on_one_card("frozen = \"nf4\""));
    assert_eq!(figures(&of_file("")), nf4);
    assert_eq!(checked(of_file("frozen = \"nf4\"")).1, [], "the same word says nothing new");
    // The file comes first, as it does in transformers.
    let (scenario, findings) = checked(of_file("frozen = \"nf4-double\""));
    assert!(findings.len() == 1 && findings[0].code == Code::NoEffect, "{findings:?}");
    assert_eq!(played(&scenario.expect("a warning alone"))["peak_memory_bytes"], nf4[0]);
    for (text, what) in [
        (of_file("").replace("trains = \"adapters\"\nadapter_rank = 8\n", ""), "nothing trains such weights"),
        (of_file("").replace("\"pytorch\"", "\"formulas\""), "has no kernels here"),
    ] {
        let (scenario, findings) = checked(text);
        let is_said = findings.iter().any(|finding| finding.what.contains(what));
        assert!(scenario.is_none() && is_said, "{what}: {findings:?}");
    }
}

#[test]
fn packed_weights_are_refused_beside_what_nobody_packs_or_cuts() {
    let packed = on_one_card("frozen = \"nf4\"");
    let two = packed.replace("gpus_per_node = 1", "gpus_per_node = 2");
    for (text, help) in [
        (packed.replace("\"pytorch\"", "\"formulas\""), "bitsandbytes and torchao pack modules of PyTorch"),
        (packed.replace("llama-2-7b", "mixtral-8x7b"), "experts lie in one tensor"),
        (two.replace("zero = 0", "zero = 0\ntp = 2"), "over a tensor group"),
        (two.replace("zero = 0", "zero = 3").replace("nf4", "int8"), "FSDP cuts weights of 4 bits alone"),
        (
            packed.replace("a100-sxm-80g", "h100-sxm").replace("[training]", "[training]\nproducts = \"fp8\""),
            "widened to 16 bits",
        ),
    ] {
        let (scenario, findings) = checked(text);
        let is_said = |finding: &Finding| finding.help.as_deref().is_some_and(|words| words.contains(help));
        assert!(scenario.is_none() && findings.iter().any(is_said), "{help}: {findings:?}");
    }
    let (scenario, findings) = checked(packed.replace("nf4", "int8"));
    let is_told = findings.iter().any(|finding| finding.code == Code::NotModelled);
    assert!(scenario.is_some() && is_told, "{findings:?}");
    let (_, findings) = checked(packed.replace("nf4", "nf5"));
    assert!(findings.iter().any(|finding| finding.code == Code::UnknownWord), "{findings:?}");
    // Two ranks gather packed weights: a quarter of the bytes and more.
    let gathered = |word: &str| {
        let text = two.replace("zero = 0", "zero = 3").replace("batch_size = 1", "batch_size = 2").replace("nf4", word);
        played(&scenario_of(&text))["peak_memory_bytes"]
    };
    assert!(gathered("nf4") < 0.6 * gathered("same"));
}

#[test]
fn moments_in_integers_are_refused_where_no_optimizer_has_them() {
    let keys = "first_moment = \"int8\"\nsecond_moment = \"int8\"";
    for (text, help) in [
        (text("zero = 1\n", keys), "Megatron-Core keeps moments"),
        (of_pytorch(&format!("{keys}\nkernels = \"foreach\"")), "PyTorch's own AdamW"),
    ] {
        let (scenario, findings) = checked(text);
        let is_said = |finding: &Finding| finding.help.as_deref().is_some_and(|words| words.contains(help));
        assert!(scenario.is_none() && findings.iter().any(is_said), "{help}: {findings:?}");
    }
    let [wide, narrow] = ["", keys].map(|keys| scenario_of(&of_pytorch(keys)));
    let fewer = (state_bytes(&wide) - state_bytes(&narrow)) / (parameters(&wide) / 8.0);
    // Two moments of four bytes, or of one with a scale of four bytes for 256.
    assert!((fewer - (8.0 - 2.0 * (1.0 + 4.0 / 256.0))).abs() < 1e-2, "{fewer}");
    assert!(step_s(&narrow) < step_s(&wide));
}

/// `OptimizerConfig` of Megatron-Core: `--use-precision-aware-optimizer`, which an offload needs too, takes Adam alone.
#[test]
fn muon_with_states_that_are_narrow_or_on_the_host_is_refused_under_megatron() {
    let on_host = "offload_ratio = 0.5\nhost_memory_gb_per_s = 50.0";
    for more in [on_host, "first_moment = \"bf16\"", "master = \"fp16\""] {
        let of = |rule: &str| checked(text("zero = 1\n", &format!("rule = \"{rule}\"\n{more}")));
        assert!(of("adam").0.is_some(), "{more}: {:?}", of("adam").1);
        let (scenario, findings) = of("muon");
        let is_said = findings.iter().any(|finding| finding.code == Code::WrongOperation);
        assert!(scenario.is_none() && is_said, "{more}: {findings:?}");
    }
}

#[test]
fn keys_of_muon_without_their_need_are_said() {
    let n_found = |parallel: &str, optimizer: &str| {
        let (_, findings) = checked(text(parallel, optimizer));
        findings.iter().filter(|finding| finding.code == Code::NoEffect).count()
    };
    let keys = "muon_iterations = 6\nmuon_tensor = \"distributed\"\nmuon_qkv = \"whole\"\n";
    assert_eq!(n_found("zero = 1\n", keys), 3);
    assert_eq!(n_found("zero = 1\n", &format!("rule = \"muon\"\n{keys}")), 0);
}

#[test]
fn groups_that_hold_all_states_hold_more_and_gather_inside_of_them() {
    // Eight ranks hold the same parameters: four on either node. Between slow nodes a shard of a quarter is reduced there and back, where two gathers and a
    // reduction of an eighth each went.
    let slow = "nic_gb_per_s = 5.0\n[parallel]";
    let narrow = "[training]\ngradient_dtype = \"bf16\"";
    let of =
        |parallel: &str| scenario_of(&text(parallel, "").replace("[parallel]", slow).replace("[training]", narrow));
    let [whole, twice] = ["zero = 3\n", "zero = 3\nreplicate = 2\n"].map(of);
    close(state_bytes(&twice), 2.0 * state_bytes(&whole));
    assert!(step_s(&twice) < step_s(&whole), "gathers stay inside a node");
    // Sharded optimizer states alone.
    let [one, four] = ["zero = 1\n", "zero = 1\nreplicate = 4\n"].map(|parallel| scenario(parallel, ""));
    close(state_bytes(&four), 4.0 * state_bytes(&one));
    assert_ne!(step_s(&four).to_bits(), step_s(&one).to_bits());
    // A group of one rank shards nothing.
    let plain = step_s(&scenario("zero = 0\n", ""));
    for parallel in ["zero = 1\nreplicate = 8\n", "zero = 3\nreplicate = 8\n"] {
        close(step_s(&scenario(parallel, "")), plain);
    }
}

#[test]
fn groups_that_do_not_divide_are_refused_and_those_of_nothing_are_said() {
    let (none, findings) = checked(text("zero = 3\nreplicate = 3\n", ""));
    assert!(none.is_none());
    let wrong = findings.iter().find(|finding| finding.code == Code::UnevenDegree).expect("a finding");
    assert_eq!(wrong.help.as_deref(), Some("allowed here: 1, 2, 4, 8"));
    let (_, findings) = checked(text("zero = 0\nreplicate = 2\n", ""));
    assert_eq!(findings.iter().filter(|finding| finding.code == Code::NoEffect).count(), 1, "{findings:?}");
}

const FIXED: &str = "kind = \"training\"\nname = \"a\"\n[model]\nname = \"mixtral-8x7b\"\n\
                     [cluster]\ngpu = \"h100-sxm\"\nnodes = 2\ngpus_per_node = 8\n[parallel]\npp = 2\ncp = 2\ntp = 2\nep = 2\n\
                     [optimizer]\n[overlap]\n[experts]\n[training]\nbatch_size = 8\nbucket_tokens = 4096\n\
                     [workload]\nlist = [4000, 100, 200, 1000, 3000, 64, 512, 700]\n[policies]\nrun = [\"skrull\"]\n\
                     [cost.units]\nforward_us = 1\ninput_us = 1\nweight_us = 1\nmessage_us = 1\n";

/// Passes of fixed duration have no states, gradients or exchanges, in any framework. A key of those is a warning, and the step is as before.
#[test]
fn keys_of_costs_beside_passes_of_fixed_duration_change_nothing_and_are_said() {
    for framework in ["formulas", "megatron-core", "pytorch"] {
        let base = FIXED.replace("[training]\n", &format!("[training]\nframework = \"{framework}\"\n"));
        let plain = figures(&base);
        for (section, key) in [
            ("optimizer", "rule = \"muon\""),
            ("optimizer", "trains = \"adapters\""),
            ("optimizer", "first_moment = \"bf16\""),
            ("optimizer", "second_moment = \"bf16\""),
            ("optimizer", "master = \"fp16\""),
            ("overlap", "tensor = 0.5"),
            ("overlap", "expert = 0.5"),
            ("overlap", "slowdown = 1.5"),
            ("overlap", "parameter_gather = true"),
            ("overlap", "forward_prefetch = false"),
            ("overlap", "backward_prefetch = false"),
            ("experts", "fused = true"),
            ("training", "gradient_dtype = \"fp32\""),
            ("training", "gradient_sync = \"at_end\""),
            ("training", "host_overhead_per_layer_us = 100"),
            ("parallel", "replicate = 2"),
        ] {
            let header = format!("[{section}]\n");
            let changed = base.replace(&header, &format!("{header}{key}\n"));
            assert_eq!(figures(&changed), plain, "{framework} {key}");
            let (_, findings) = checked(changed);
            let said = findings.iter().filter(|finding| finding.what == format!("`{section}.{key}` changes nothing"));
            assert_eq!(said.count(), 1, "{framework} {key}: {findings:?}");
        }
    }
    // A run of days saves the optimizer's states, whatever a pass takes.
    let days = "[failures]\ndays = 10\ngpu_mtbf_hours = 5000\n[checkpoint]\nstorage_gb_per_s = 10\n";
    let (_, findings) = checked(FIXED.replace("[optimizer]\n", "[optimizer]\ntrains = \"adapters\"\n") + days);
    assert_eq!(findings.iter().filter(|finding| finding.code == Code::NoEffect).count(), 0, "{findings:?}");
}

/// Metrics of a step, without the time that planning took.
fn figures(text: &str) -> BTreeMap<String, f64> {
    let mut all = played(&scenario_of(text));
    all.retain(|key, _| !key.starts_with("planning"));
    all
}

#[test]
fn modules_of_adapters_are_those_of_a_list() {
    let of =
        |beside: &str| step_s(&scenario("zero = 1\n", &format!("trains = \"adapters\"\nadapters_beside = {beside}")));
    let listed = of("[\"q_proj\", \"v_proj\"]");
    assert!(listed < of("\"all\"") && listed > of("[\"v_proj\"]"));
    // All of them are what the word says.
    close(of("[\"q_proj\", \"k_proj\", \"v_proj\"]"), of("\"qkv\""));
    for (beside, code) in [("[\"q_prj\"]", Code::UnknownWord), ("[]", Code::OutOfRange), ("3", Code::WrongType)] {
        let (none, findings) =
            checked(text("zero = 1\n", &format!("trains = \"adapters\"\nadapters_beside = {beside}")));
        assert!(none.is_none() && findings.iter().any(|finding| finding.code == code), "{beside}: {findings:?}");
    }
}

/// The scenario on a card, with lines of `[training]` in the place of its framework.
fn on_card(gpu: &str, lines: &str) -> String {
    text("zero = 1\n", "").replace("b200", gpu).replace("framework = \"megatron-core\"\n", lines)
}

#[test]
fn a_result_says_what_formulas_hold_that_nobody_asked_for_and_which_peak_is_meant() {
    let notes = |gpu: &str, lines: &str| scenario_of(&on_card(gpu, lines)).free_parameters.join("\n");
    // Frameworks hold 0.72 of an A100's peak in 16 bits and all of an H100's, and 0.67 of that in 8 (score/src/training/constants.rs).
    assert!(notes("a100-sxm-80g", "").contains("frameworks hold 0.72 on `a100-sxm-80g`"));
    for (gpu, lines) in [
        ("h100-sxm", ""),
        ("a100-sxm-80g", "framework = \"formulas\"\n"),
        ("a100-sxm-80g", "framework = \"megatron-core\"\n"),
    ] {
        assert!(!notes(gpu, lines).contains("is left out"), "{gpu} {lines}");
    }
    let narrow = notes("h100-sxm", "products = \"fp8\"\n");
    assert!(narrow.contains("frameworks hold 0.67"), "{narrow}");
    assert!(narrow.contains("MFU is over the card's peak in 16 bits"), "{narrow}");
    assert!(!notes("h100-sxm", "").contains("MFU"));
}

#[test]
fn a_card_without_bf16_is_told_of_and_a_micro_batch_is_said_in_tokens() {
    let warned = |lines: &str| {
        let (_, findings) = checked(on_card("v100-sxm-16g", lines));
        findings.iter().any(|finding| finding.code == Code::WrongOperation && finding.what.contains("no bf16"))
    };
    assert!(warned("") && !warned("dtype = \"fp16\"\n"));
    let (_, findings) = checked(on_card("h100-sxm", "micro_batch = 2\n"));
    assert!(findings.iter().any(|finding| finding.label.contains("`bucket_tokens`")), "{findings:?}");
}

#[test]
fn a_card_without_flash_attention_is_told_of_and_computes_scores_where_nothing_is_said() {
    for (framework, lines, is_unfused, is_told) in [
        ("megatron-core", "", true, true),
        ("megatron-core", "attention = \"unfused\"\n", true, false),
        ("megatron-core", "attention = \"flash\"\n", false, true),
        // PyTorch has a kernel without a score matrix there, too.
        ("pytorch", "", false, true),
    ] {
        let (scenario, findings) =
            checked(on_card("v100-sxm-32g", &format!("framework = \"{framework}\"\n{lines}dtype = \"fp16\"\n")));
        let unfused = train::problem::AttentionKernel::Unfused;
        let is_found = scenario.is_some_and(|scenario| scenario.problem.execution.attention == unfused);
        assert_eq!(is_found, is_unfused, "{framework} {lines}: {findings:?}");
        let told = findings.iter().any(|finding| finding.what.contains("no flash attention"));
        assert_eq!(told, is_told, "{framework} {lines}: {findings:?}");
    }
    let (_, findings) = checked(on_card("a100-sxm-80g", ""));
    assert!(!findings.iter().any(|finding| finding.what.contains("no flash attention")), "{findings:?}");
}

#[test]
fn adam_over_lists_moves_more_and_holds_a_list() {
    let [fused, lists] = ["fused", "foreach"].map(|word| scenario_of(&of_pytorch(&format!("kernels = \"{word}\""))));
    let kernels = [&lists, &fused].map(|scenario| scenario.problem.execution.optimizer.kernels);
    assert_eq!(kernels, [UpdateKernels::Foreach, UpdateKernels::Fused]);
    assert!(step_s(&lists) > step_s(&fused));
    assert_eq!(figures(&of_pytorch("kernels = \"fused\"")), figures(&of_pytorch("")), "the default");
    let (_, findings) = checked(text("zero = 1\n", "kernels = \"foreach\""));
    assert!(findings.iter().any(|finding| finding.code == Code::NoEffect), "{findings:?}");
}

#[test]
fn keys_of_pytorchs_modules_are_used_there_and_said_to_be_idle_elsewhere() {
    let idle = |text: String| {
        let (scenario, findings) = checked(text);
        assert!(scenario.is_some(), "{findings:?}");
        findings.iter().any(|finding| finding.code == Code::NoEffect)
    };
    let gathered = |text: String| text.replace("[training]", "[training]\nloss_parallel = false");
    let waiting = |text: String| text.replace("[training]", "[training]\ngradient_sync = \"at_end\"");
    let adapters = "trains = \"adapters\"\nadapter_dtype = \"fp32\"\nadapter_dropout = true";
    assert!(!idle(gathered(of_pytorch(""))) && idle(gathered(text("zero = 1\n", ""))));
    assert!(!idle(waiting(of_pytorch(""))) && idle(waiting(text("zero = 3\n", ""))));
    assert!(
        !idle(of_pytorch(adapters)) && idle(text("zero = 1\n", adapters)) && idle(of_pytorch("adapter_dropout = true"))
    );
    // Casts and dropout of inputs, and a whole loss on every rank, take time.
    assert!(step_s(&scenario_of(&of_pytorch(adapters))) > step_s(&scenario_of(&of_pytorch("trains = \"adapters\""))));
    assert!(step_s(&scenario_of(&gathered(of_pytorch("")))) > step_s(&scenario_of(&of_pytorch(""))));
}

#[test]
fn a_file_that_is_no_scenario_is_answered_with_the_files_that_are_read() {
    let help = |path: &str| {
        let source = Source { path: path.to_owned(), text: "base_model: llama\nadapter: qlora\n".to_owned() };
        let found = kinds::check(source, std::path::Path::new(""), &Overrides::default()).findings;
        found[0].help.clone().unwrap_or_default()
    };
    assert!(help("axolotl.yaml").contains("DeepSpeed"), "{}", help("axolotl.yaml"));
    assert_eq!(help("mine.toml"), "");
}

/// torchtune: "Gradient accumulation is not supported with optimizer in bwd" (`recipes/full_finetune_single_device.py`).
#[test]
fn updates_in_backward_are_refused_beside_several_micro_batches() {
    let of = |batch: u64, kernels: &str, policy: &str| {
        let text = text("tp = 1\nzero = 0\n", &format!("kernels = \"{kernels}\"\nmaster = \"none\""));
        let training =
            format!("batch_size = {batch}\nbucket_tokens = 4096\nframework = \"pytorch\"\ngradient_dtype = \"bf16\"\n");
        let before = "batch_size = 16\nbucket_tokens = 4096\nframework = \"megatron-core\"\n";
        let text =
            text.replace("tp = 2\n", "").replace(before, &training).replace("\"megatron\"", &format!("\"{policy}\""));
        checked(text)
    };
    let errors = |(_, findings): (Option<Scenario>, Vec<Finding>)| {
        findings.into_iter().filter(|of| of.code == Code::WrongOperation).collect::<Vec<_>>()
    };
    // Sixteen replicas hold 4,096 tokens each.
    assert_eq!(errors(of(16, "in-backward", "megatron")), []);
    assert_eq!(errors(of(32, "fused", "megatron")), []);
    let refused = errors(of(32, "in-backward", "megatron"));
    let [finding] = refused.as_slice() else { panic!("{refused:?}") };
    assert!(
        finding.at.is_some() && finding.help.as_deref().is_some_and(|help| help.contains("`training.batch_size = 16`")),
        "{finding:?}"
    );
    // A policy that cuts sequences is asked for its plan.
    let (scenario, findings) = of(32, "in-backward", "chunkflow");
    let scenario = scenario.unwrap_or_else(|| panic!("{findings:?}"));
    let row = pipeline::run(&scenario, &|_| {}).result.results.remove(0);
    assert!(!row.status.is_ok() && row.why.contains("micro-batches") && row.why.contains("in-backward"), "{}", row.why);
}
