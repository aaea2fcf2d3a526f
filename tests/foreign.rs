//! Files of other stacks: how many of their published configurations become scenarios, and that nothing of them is lost.

use std::collections::BTreeMap;
use std::io::Read;

use input::diagnostic::{Finding, Severity, Source};
use skrull_sim::kinds;
use skrull_sim::scenario::Overrides;
use stacks::Machine;

/// Columns of the table of functional tests and the flags of Megatron-LM that they were read from.
const COLUMNS: [(&str, &str); 26] = [
    ("global_batch_seqs", "global-batch-size"),
    ("micro_batch_seqs", "micro-batch-size"),
    ("seq_tokens", "seq-length"),
    ("tp_gpus", "tensor-model-parallel-size"),
    ("pp_stages", "pipeline-model-parallel-size"),
    ("cp_gpus", "context-parallel-size"),
    ("ep_gpus", "expert-model-parallel-size"),
    ("etp_gpus", "expert-tensor-parallel-size"),
    ("pipeline_layout", "pipeline-model-parallel-layout"),
    ("layers", "num-layers"),
    ("hidden", "hidden-size"),
    ("ffn", "ffn-hidden-size"),
    ("heads", "num-attention-heads"),
    ("kv_heads", "num-query-groups"),
    ("head_dim", "kv-channels"),
    ("experts", "num-experts"),
    ("topk", "moe-router-topk"),
    ("moe_ffn", "moe-ffn-hidden-size"),
    ("shared_ffn", "moe-shared-expert-intermediate-size"),
    ("moe_dispatcher", "moe-token-dispatcher-type"),
    ("mtp_layers", "mtp-num-layers"),
    ("fp8_recipe", "fp8-recipe"),
    ("recompute_granularity", "recompute-granularity"),
    ("recompute_modules", "recompute-modules"),
    ("attention_backend", "attention-backend"),
    ("layer_pattern", "hybrid-override-pattern"),
];

/// Columns of 0 and 1, and their switches.
const SWITCHES: [(&str, &str); 9] = [
    ("sequence_parallel", "sequence-parallel"),
    ("mla", "multi-latent-attention"),
    ("swiglu", "swiglu"),
    ("untied_embeddings", "untie-embeddings-and-output-weights"),
    ("distributed_optimizer", "use-distributed-optimizer"),
    ("grad_reduce_overlap", "overlap-grad-reduce"),
    ("param_gather_overlap", "overlap-param-gather"),
    ("tp_comm_overlap", "tp-comm-overlap"),
    ("fsdp", "use-megatron-fsdp"),
];

/// Rows of the table; `None` where it is absent.
fn rows() -> Option<Vec<BTreeMap<String, String>>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/truth/megatron_lm.csv.gz");
    let Ok(bytes) = std::fs::read(path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("a packed text");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    Some(reader.deserialize().map(|row| row.expect("a row")).collect())
}

/// The YAML from which a row was read, with the flags that the table keeps.
fn yaml(row: &BTreeMap<String, String>) -> String {
    let mut text = "MODEL_ARGS:\n".to_owned();
    let mut flag = |name: &str, value: &str| text += &format!("  --{name}: {value}\n");
    COLUMNS.iter().filter(|(column, _)| !row[*column].is_empty()).for_each(|(column, name)| flag(name, &row[*column]));
    SWITCHES.iter().filter(|(column, _)| row[*column] == "1").for_each(|(_, name)| flag(name, "true"));
    if row["linear_bias"] == "0" {
        flag("disable-bias-linear", "true");
    }
    if row["kv_heads"] != row["heads"] {
        flag("group-query-attention", "true");
    }
    if !row["fp8_recipe"].is_empty() {
        flag("fp8-format", "hybrid");
    }
    let chunks: u32 = row["vp_chunks"].parse().unwrap_or(1);
    if chunks > 1 && row["pipeline_layout"].is_empty() {
        flag("num-virtual-stages-per-pipeline-rank", &chunks.to_string());
    }
    flag(if row["precision"] == "fp16" { "fp16" } else { "bf16" }, "true");
    for other in row["other_flags"].split(';').filter(|other| !other.is_empty()) {
        let (name, value) = other.split_once('=').unwrap_or((other, "true"));
        flag(name, value);
    }
    text
}

fn machine(gpu: &str, row: &BTreeMap<String, String>) -> Machine {
    let gpu = match gpu {
        "A100" => "a100-sxm-80g",
        "GB200" => "gb200",
        _ => "h100-sxm",
    };
    let n: Option<u32> = row.get("gpus").and_then(|gpus| gpus.parse().ok());
    let per_node = if gpu == "gb200" { 64 } else { 8 };
    let per_node = n.map(|n| n.min(per_node));
    let nodes = n.zip(per_node).map(|(n, per_node)| n.div_ceil(per_node));
    Machine { gpu: Some(gpu.to_owned()), nodes, gpus_per_node: per_node, is_named: false }
}

fn errors(findings: &[Finding]) -> Vec<String> {
    let wrong = findings.iter().filter(|finding| finding.severity == Severity::Error);
    wrong.map(|finding| finding.what.clone()).collect()
}

/// What is wrong with a file of another stack, as a scenario.
fn wrong(text: &str, machine: &Machine) -> Vec<String> {
    let stack = stacks::recognise(text).expect("a known stack");
    let imported = stacks::import(stack, text, machine);
    let wrong = errors(&imported.findings);
    if !wrong.is_empty() {
        return wrong;
    }
    let source = Source { path: "imported.toml".to_owned(), text: imported.scenario };
    errors(&kinds::check(source, std::path::Path::new(""), &Overrides::default()).findings)
}

#[test]
fn four_of_five_functional_tests_of_megatron_become_scenarios_and_the_rest_has_a_reason() {
    let Some(rows) = rows() else { return };
    let (mut n, mut tests) = (0, BTreeMap::<String, bool>::new());
    let mut reasons = BTreeMap::<String, usize>::new();
    for row in &rows {
        // The table keeps what kind of model a test trains; its flags alone do not say so.
        let kind = row["kind"].as_str();
        let wrong = match kind {
            "gpt" | "moe" | "nemotron" => wrong(&yaml(row), &machine(&row["gpu"], row)),
            other => vec![format!("trains {other}")],
        };
        let is_read = wrong.is_empty();
        n += usize::from(is_read);
        *tests.entry(row["test"].clone()).or_default() |= is_read;
        for reason in wrong.into_iter().take(1) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let n_tests = tests.values().filter(|is_read| **is_read).count();
    println!("{n} of {} rows, {n_tests} of {} tests; the rest: {reasons:#?}", rows.len(), tests.len());
    assert!(n * 5 >= rows.len() * 4, "{n} of {} rows become scenarios: {reasons:#?}", rows.len());
    assert!(n_tests * 5 >= tests.len() * 4, "{n_tests} of {} tests", tests.len());
}
