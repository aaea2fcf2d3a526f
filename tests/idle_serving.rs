//! Keys of serving that change nothing beside the others: each is named, and the answer without it is the same.

use input::diagnostic;
use skrull_sim::kinds;

/// One group computes prompts, another one decodes.
const SPLIT: &str = r#"
kind = "serving"
seed = 1
[model]
name = "llama-3-8b"
[trace]
prompt_tokens = 4000
output_tokens = 8
requests = 20
arrivals = "poisson"
rate_per_s = 4.0
[engine]
max_context = 8192
[[fleet.group]]
name = "prompts"
gpu = "h100-sxm"
role = "prefill"
usd_per_gpu_hour = 3.0
[[fleet.group]]
name = "answers"
gpu = "h100-sxm"
role = "decode"
usd_per_gpu_hour = 3.0
[policies]
run = ["vllm-v1"]
"#;

/// Experts in 8 bits under an engine whose tables have Triton beside TensorRT-LLM's kernels on B200.
const EXPERTS: &str = r#"
kind = "serving"
seed = 1
[model]
name = "minimax-m2.5"
[cluster]
gpu = "b200"
nodes = 1
gpus_per_node = 4
[engine]
name = "sglang"
version = "0.5.10"
tp = 4
[trace]
prompt_tokens = 1000
output_tokens = 20
requests = 16
arrivals = "held"
concurrency = 16
"#;

fn checked(text: &str) -> kinds::Checked {
    super::written(text.to_owned(), &[])
}

/// What is said of keys that change nothing.
fn idle(text: &str) -> String {
    let found = checked(text).findings.into_iter().filter(|found| found.code == diagnostic::Code::NoEffect);
    found.map(|found| found.what).collect::<Vec<_>>().join("; ")
}

/// The mean time per token of the only way of serving.
fn tpot_s(text: &str) -> f64 {
    let result = checked(text).scenario.expect("a good scenario").run(&|_| {});
    result.results[0].metrics["tpot_s.mean"]
}

#[test]
fn links_above_ports_late_outages_and_a_second_price_are_named() {
    for (added, what) in [
        (
            "[[fleet.link]]\nfrom = \"prompts\"\nto = \"answers\"\ngb_per_s = 40\n",
            "the ports of `prompts` carry 37.5 GB/s",
        ),
        ("[fleet]\nusd_per_gpu_hour = 2.0\n", "`fleet.usd_per_gpu_hour` changes nothing"),
        ("[[fleet.outage]]\ngroup = \"answers\"\nat_s = 4000\n", "begins after the last request came"),
    ] {
        let text = SPLIT.replacen("[[fleet.group]]", &format!("{added}[[fleet.group]]"), 1);
        assert!(idle(&text).contains(what), "{added}: {}", idle(&text));
    }
    // A port of 400 Gb/s carries three quarters of them; a link below that is a limit.
    let narrow = "[[fleet.link]]\nfrom = \"prompts\"\nto = \"answers\"\ngb_per_s = 30\n";
    let narrow = SPLIT.replacen("[[fleet.group]]", &format!("{narrow}[[fleet.group]]"), 1);
    assert_eq!((idle(&narrow), idle(SPLIT)), (String::new(), String::new()));
}

#[test]
fn links_that_nothing_passes_and_tiers_without_room_are_named() {
    let with = |key: &str| EXPERTS.replacen("[engine]", &format!("{key}\n[engine]"), 1);
    assert!(idle(&with("nic_gb_per_s = 25")).contains("`cluster.nic_gb_per_s` changes nothing"));
    assert!(idle(&with("host_gb_per_s = 50")).contains("`cluster.host_gb_per_s` changes nothing"));
    let tiers = |room: &str| EXPERTS.replacen("tp = 4", &format!("tp = 4\ntiers = {{ host_gib = {room} }}"), 1);
    assert!(idle(&tiers("0")).contains("`engine.tiers` change nothing: none has room"));
    // Prefixes go over the link to the host, where there are some.
    let sessions = "[trace.sessions]\nturns = 4\nsystem_tokens = 500\n";
    let shares = |text: String| {
        text.replace("arrivals = \"held\"\nconcurrency = 16\n", "arrivals = \"poisson\"\nrate_per_s = 1.0\n") + sessions
    };
    assert!(
        idle(&shares(tiers("0.000001"))).contains("it has no room for a block"),
        "{}",
        idle(&shares(tiers("0.000001")))
    );
    let uses_host = shares(tiers("64")).replacen("[engine]", "host_gb_per_s = 50\n[engine]", 1);
    assert_eq!(idle(&uses_host), "");
}

#[test]
fn a_kernel_of_experts_counts_where_a_table_has_it() {
    let with = |kernel: &str| EXPERTS.replacen("tp = 4", &format!("tp = 4\nexpert_kernel = \"{kernel}\""), 1);
    // SGLang keeps Triton's for MiniMax (`moe_runner_backend` in `server_args.py` of 0.5.10), and both are in its table of B200.
    let [auto, triton, trtllm] = ["auto", "triton", "trtllm"].map(|kernel| tpot_s(&with(kernel)));
    assert!(auto.to_bits() == triton.to_bits() && trtllm < triton, "{auto} {triton} {trtllm}");
    for kernel in ["auto", "triton", "trtllm"] {
        assert_eq!(idle(&with(kernel)), "", "{kernel}");
    }
    assert!(idle(&with("marlin")).contains("no table has that kernel for experts in"), "{}", idle(&with("marlin")));
    assert_eq!(tpot_s(&with("marlin")).to_bits(), auto.to_bits());
}

/// Attention of four ranks and experts of eight GPUs of one node.
const RANKS: &str = r#"
kind = "serving"
seed = 1
[model]
name = "qwen3-30b-a3b"
weights = "bf16"
[cluster]
gpu = "h100-sxm"
nodes = 2
gpus_per_node = 8
[engine]
tp = 2
ep = 8
[trace]
prompt_tokens = 1000
output_tokens = 20
requests = 16
arrivals = "held"
concurrency = 16
[policies]
run = ["sglang"]
"#;

#[test]
fn a_dispatcher_counts_where_tokens_travel_otherwise_by_it() {
    let with = |ep: u32, keys: &str| RANKS.replacen("ep = 8", &format!("ep = {ep}\n{keys}"), 1);
    // Eight of 128 experts are visited: by 8 GPUs all tokens are gathered, by 16 they are sent anyway, between nodes by other kernels.
    for (ep, keys, warned) in [
        (8, "dispatcher = \"auto\"", ""),
        (8, "dispatcher = \"deepep\"", ""),
        (8, "dispatcher = \"deepep-normal\"", "the mode of `engine.dispatcher = \"deepep-normal\"` changes nothing"),
        (8, "dispatcher = \"deepep-normal\"\ntwo_batch_overlap = true", ""),
        (16, "dispatcher = \"deepep-low-latency\"", ""),
    ] {
        let found = idle(&with(ep, keys));
        assert!(if warned.is_empty() { found.is_empty() } else { found.contains(warned) }, "{ep}, {keys}: {found}");
    }
    // Sixteen GPUs in one node share the experts.
    let wide = |text: String| text.replace("nodes = 2\ngpus_per_node = 8", "nodes = 1\ngpus_per_node = 16");
    let [auto, deepep] = ["auto", "deepep"].map(|word| wide(with(16, &format!("dispatcher = \"{word}\""))));
    assert_eq!(idle(&auto), "");
    assert!(idle(&deepep).contains("`engine.dispatcher = \"deepep\"` changes nothing"), "{}", idle(&deepep));
    assert_eq!(tpot_s(&auto).to_bits(), tpot_s(&deepep).to_bits(), "the warning says so");
    // Where nothing is warned of, a figure changes; where a mode makes no difference, none does.
    let of = |keys: &str| tpot_s(&with(8, keys)).to_bits();
    assert_ne!(of("dispatcher = \"auto\""), of("dispatcher = \"deepep\""));
    assert_eq!(of("dispatcher = \"deepep\""), of("dispatcher = \"deepep-normal\""));
}
