//! Cards of AMD through the shell: datasheets, engines and kernels that exist there, and plans beside cards of NVIDIA.

use input::diagnostic::{Code, Severity};
use skrull_sim::kinds;

/// One server of a small model with long answers, whose GPU is asked for by its key.
const SERVED: &str = r#"
kind = "serving"
seed = 1
[model]
name = "llama-3-8b"
[cluster]
gpu = "mi300x"
nodes = 1
gpus_per_node = 1
[engine]
name = "vllm"
tp = 1
[trace]
prompt_tokens = 16
output_tokens = 200
requests = 1
arrivals = "together"
[policies]
run = ["vllm-v1"]
"#;

const TRAINED: &str = r#"
kind = "training"
seed = 1
[model]
name = "llama-3-8b"
[cluster]
gpu = "mi300x"
nodes = 1
[parallel]
dp = 4
tp = 2
[training]
framework = "megatron-core"
batch_size = 8
steps = 1
[workload]
tokens = 4096
[policies]
run = ["megatron"]
"#;

/// A replica on cards of NVIDIA and one on cards of AMD.
const MIXED: &str = r#"
kind = "training"
[model]
name = "llama-3-8b"
[training]
framework = "megatron-core"
batch_size = 8
micro_batch = 1
[[group]]
name = "green"
gpu = "h100-sxm"
nodes = 1
[[group]]
name = "red"
gpu = "mi300x"
nodes = 1
[[stage]]
layers = 32
replicas = [{ group = "green", gpus = 8 }, { group = "red", gpus = 8 }]
[workload]
tokens = 4096
[policies]
run = ["given"]
"#;

fn read(text: &str, set: &[&str]) -> kinds::Checked {
    super::written(text.to_owned(), set)
}

fn metrics(text: &str, set: &[&str]) -> std::collections::BTreeMap<String, f64> {
    let checked = read(text, set);
    let job = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
    let mut result = job.run(&|_| {});
    assert_eq!(result.cost_model.source, "datasheet");
    assert_eq!(result.cost_model.profile, "roofline");
    result.results.remove(0).metrics.into_iter().collect()
}

/// What is refused, in words.
fn refused(text: &str, set: &[&str]) -> Vec<String> {
    let checked = read(text, set);
    let errors = checked.findings.into_iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.what).collect()
}

/// A token of one sequence reads every weight once: 16 GB at 0.79 of 5.3 TB/s are 3.8 ms, and no more than launches of kernels come on top.
#[test]
fn decoding_one_sequence_takes_the_weights_over_the_bandwidth() {
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    // The embedding is a lookup.
    let read_bytes = 2.0 * hw::real(model.n_parameters() - model.vocab * model.hidden);
    for (gpu, bytes_per_s) in [("mi300x", 0.79 * 5.3e12), ("mi325x", 0.75 * 6e12), ("mi355x", 0.75 * 8e12)] {
        let found = metrics(SERVED, &[&format!("cluster.gpu='{gpu}'")]);
        let least_s = read_bytes / bytes_per_s;
        let ratio = found["tpot_s.mean"] / least_s;
        assert!((1.0..1.9).contains(&ratio), "{gpu}: {ratio}");
    }
    // More bandwidth is never slower.
    let of = |gpu: &str| metrics(SERVED, &[&format!("cluster.gpu='{gpu}'")])["tpot_s.mean"];
    assert!(of("mi355x") < of("mi325x") && of("mi325x") < of("mi300x"));
}

/// Two GPUs of a mesh have one link, eight have seven: a tensor group of two exchanges over a seventh of what a switch of as much would give.
#[test]
fn a_tensor_group_of_two_pays_for_its_one_link() {
    let long = ["trace.prompt_tokens=8000", "trace.output_tokens=1", "engine.tp=2", "cluster.gpus_per_node=2"];
    let of = |more: &str| metrics(SERVED, &[&long[..], &[more]].concat())["ttft_s.mean"];
    let (mesh, wider) = (of("cluster.intra_node_gb_per_s=448"), of("cluster.intra_node_gb_per_s=3136"));
    // 8,000 rows of 4,096 elements of two bytes, twice a layer, half of them in each direction twice: 64 · 65.5 MB over 64 GB/s and over 448 GB/s, at 0.7 of each.
    let moved = 2.0 * 32.0 * 8000.0 * 4096.0 * 2.0;
    let saved = moved / (0.7 * 64e9) - moved / (0.7 * 448e9);
    assert!(((mesh - wider) / saved - 1.0).abs() < 0.05, "{mesh} s, {wider} s, {saved} s");
}

#[test]
fn what_has_no_kernel_of_rocm_is_refused_with_the_reason() {
    for (text, set, what) in [
        (SERVED, &["engine.name='trtllm'", "policies.run=['trtllm']"][..], "`trtllm` does not run on `mi300x`"),
        (SERVED, &["cluster.gpu='mi355x'", "model.weights='nvfp4'"], "multiplies no nvfp4"),
        (SERVED, &["model.weights='mxfp8'"], "`mi300x` multiplies no mxfp8"),
        (SERVED, &["cost.profile='h100-sxm-vllm'"], "was measured on `h100-sxm`, the cluster has `mi300x`"),
        (TRAINED, &["cost.profile='h100-sxm'"], "was measured on `h100-sxm`, the cluster has `mi300x`"),
        (TRAINED, &["overlap.tensor=1.0"], "`overlap.tensor` has no kernel on `mi300x`"),
        (MIXED, &["overlap.tensor=1.0"], "`overlap.tensor` has no kernel on `mi300x`"),
        (TRAINED, &["training.products='nvfp4'", "cluster.gpu='mi355x'"], "multiplies no nvfp4"),
        (TRAINED, &["training.products='mxfp8'"], "multiplies no mxfp8"),
    ] {
        let found = refused(text, set);
        assert!(found.iter().any(|found| found.contains(what)), "{set:?}: {found:?}");
    }
    for (text, set) in [
        (SERVED, &["model.weights='fp8'"][..]),
        (SERVED, &["cluster.gpu='mi355x'", "model.weights='mxfp8'"]),
        (SERVED, &["engine.name='sglang'", "policies.run=['sglang']"]),
        (TRAINED, &["training.products='fp8'"]),
        (MIXED, &[]),
        (TRAINED, &["training.products='mxfp8'", "cluster.gpu='mi355x'"]),
    ] {
        assert_eq!(refused(text, set), [""; 0], "{set:?}");
    }
}

#[test]
fn a_step_of_a_framework_holds_what_is_published_of_the_card() {
    let checked = read(TRAINED, &[]);
    let job = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
    let result = job.run(&|_| {});
    assert_eq!((result.cost_model.profile.as_str(), result.cost_model.source.as_str()), ("roofline", "datasheet"));
    let said = result.cost_model.free_parameters.join("\n");
    assert!(said.contains("hold 0.4 of the peak") && said.contains("links reach 0.7"), "{said}");
    let mfu = result.results[0].metrics["mfu_ratio"];
    assert!((0.1..0.4).contains(&mfu), "{mfu}");
}

/// Cards of both makers in one inventory: no plan is better than its bound, and a card that is almost free is the one that is rented.
#[test]
fn a_plan_over_cards_of_two_makers_keeps_its_bound() {
    let text = |usd: f64| {
        format!(
            "kind = \"deployment\"\nseed = 1\n[[models]]\nname = \"llama-3-70b\"\n[[inventory.gpus]]\ngpu = \"h100-sxm\"\ncount = 8\nusd_per_hour = 2.25\n\
             [[inventory.gpus]]\ngpu = \"mi300x\"\ncount = 8\nusd_per_hour = {usd}\n[[requests.types]]\ninput = 500\noutput = 200\nrequests = 400\n\
             [engine]\ntp = [1, 2, 4]\nmax_sequences = 64\nmax_tokens = 2048\n[objective]\nis = \"time\"\nusd_per_hour = [10]\n[policies]\n\
             run = [\"melange\", \"cost-efficiency\"]\n"
        )
    };
    for usd in [0.5, 2.59] {
        let checked = super::written(text(usd), &[]);
        let job = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
        let result = job.run(&|_| {});
        for row in &result.results {
            let facts = row.planner.as_ref().expect("a planner");
            let (found, bound) = (facts.objective.expect("a plan"), facts.bound.unwrap_or(0.0));
            assert!(found >= bound * (1.0 - 1e-9), "{}: {found} below {bound}", row.policy);
        }
        assert_eq!(result.cost_model.source, "datasheet", "the weakest of both");
    }
}

#[test]
fn cards_of_amd_that_are_not_known_are_told_from_slips() {
    for (name, what) in [("mi250x", "mi300x, mi325x, mi355x"), ("MI300X", "mi300x")] {
        let checked = read(SERVED, &[&format!("cluster.gpu='{name}'")]);
        let found = checked.findings.into_iter().find(|finding| finding.code == Code::UnknownGpu).expect("a finding");
        assert!(found.help.clone().unwrap_or_default().contains(what), "{found:?}");
    }
}
