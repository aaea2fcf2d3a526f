//! A server that is exported, read back and run again gives the same figures: formats of checkpoints, degrees and options by engine.

use input::diagnostic::Source;
use scenario::Overrides;
use serve::deployment::Deployment;
use skrull_sim::kinds;
use stacks::export::{Planned, Words};
use stacks::{Machine, checked, targets};

use super::foreign::errors;

/// What servers are asked: the load of every row.
const LOAD: &str =
    "[trace]\nprompt_tokens = 1000\noutput_tokens = 60\nrequests = 24\narrivals = \"held\"\nconcurrency = 8\n";

/// Model, card, keys of the engine, and engines whose commands say all of it.
const ROWS: [(&str, &str, &str, &[&str]); 16] = [
    // Formats that the path of a checkpoint says.
    ("name = \"openai/gpt-oss-120b\"", "h100-sxm", "tp = 2", &["vllm", "sglang", "trtllm"]),
    ("name = \"openai/gpt-oss-20b\"", "h100-sxm", "tp = 1", &["vllm", "sglang", "trtllm"]),
    ("name = \"Qwen/Qwen3-32B-FP8\"", "h200-sxm", "tp = 1", &["vllm", "sglang", "trtllm"]),
    ("name = \"RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8\"", "h200-sxm", "tp = 1", &["vllm", "sglang", "trtllm"]),
    ("name = \"nvidia/DeepSeek-R1-0528-FP4-v2\"", "b200", "tp = 4", &["vllm", "sglang", "trtllm"]),
    // Formats that a server makes of 16 bits, and of keys and values.
    ("name = \"llama-3.1-8b\"", "h100-sxm", "weights = \"fp8\"", &["vllm", "sglang"]),
    ("name = \"llama-3.1-8b\"", "h100-sxm", "weights = { format = \"fp8\", kv = \"fp8\" }", &["vllm", "sglang"]),
    ("name = \"openai/gpt-oss-20b\"", "h200-sxm", "weights = { kv = \"fp8\" }", &["vllm", "sglang"]),
    // Degrees: whole experts on one tensor group, ranks of attention, stages.
    ("name = \"Qwen/Qwen3-30B-A3B\"", "h100-sxm", "tp = 2", &["vllm", "sglang", "trtllm"]),
    ("name = \"Qwen/Qwen3-30B-A3B\"", "h100-sxm", "tp = 2\nep = 2", &["vllm", "sglang", "trtllm"]),
    ("name = \"Qwen/Qwen3-30B-A3B\"", "h100-sxm", "tp = 1\nep = 4", &["vllm", "sglang", "trtllm"]),
    ("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2\npp = 2", &["vllm", "sglang"]),
    // Options.
    ("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2\nall_reduce = \"separate\"", &["vllm", "sglang"]),
    ("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2\nall_reduce = \"fused\"\ngraph_max = 64", &["vllm", "sglang"]),
    ("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2\nrecv_interval = 30", &["sglang"]),
    ("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2\nloop = \"serial\"", &["vllm", "sglang", "trtllm"]),
];

fn scenario((model, gpu, engine): (&str, &str, &str), name: &str) -> String {
    let rules = if name == "trtllm" { "[policies]\nrun = [\"trtllm\"]\n" } else { "" };
    let rules = if name == "sglang" { "[policies]\nrun = [\"sglang\"]\n" } else { rules };
    format!(
        "kind = \"serving\"\n[model]\n{model}\n[cluster]\ngpu = \"{gpu}\"\nnodes = 1\ngpus_per_node = 4\n{LOAD}\
         [engine]\nname = \"{name}\"\n{engine}\n{rules}[fleet]\nreplicas = 1\n"
    )
}

/// A scenario that is read.
fn read(text: &str) -> Box<dyn kinds::Kind> {
    let source = Source { path: "scenario.toml".to_owned(), text: text.to_owned() };
    let checked = kinds::check(source, std::path::Path::new(""), &Overrides::default());
    let why = errors(&checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{why:?} in {text}"))
}

/// What clients saw: every metric of the only policy.
fn figures(text: &str) -> Vec<(String, f64)> {
    let results = read(text).run(&|_| {}).results;
    assert!(results[0].status.is_ok(), "{}", results[0].why);
    results[0].metrics.clone().into_iter().collect()
}

/// The first file of an export of a scenario's plan.
fn exported(text: &str, target: &str) -> String {
    let scenario = read(text);
    let choice = scenario.choices()[0].to_owned();
    let plan = scenario.plan(&choice).expect("a plan").unwrap_or_else(|why| panic!("{}", why.why)).json;
    let deployments: Vec<Deployment> = serde_json::from_value(plan["deployments"].clone()).expect("deployments");
    let settings: stacks::settings::Settings = serde_json::from_value(plan["settings"].clone()).expect("settings");
    checked::deployments(&deployments, &settings).unwrap_or_else(|why| panic!("{target}: {why} of {text}"));
    let planned = Planned::Serving { deployments: &deployments, settings: &settings };
    let files = targets::export(target, &planned, &Words::default());
    files.unwrap_or_else(|why| panic!("{target}: {why} of {text}"))[0].text().into_owned()
}

/// A file of a server as a scenario with the load and the machine of another one: neither is the server's.
fn read_back(file: &str, first: &str) -> String {
    let table = |text: &str| -> toml::Table { text.parse().unwrap_or_else(|why| panic!("{why} in {text}")) };
    let first = table(first);
    let gpu = first["cluster"]["gpu"].as_str().map(str::to_owned);
    let machine = Machine { gpu, ..Machine::default() };
    let found = stacks::import(stacks::recognise(file).expect("a server"), file, &machine);
    assert_eq!(errors(&found.findings), Vec::<String>::new(), "{file}");
    let mut again = table(&found.scenario);
    for section in ["trace", "cluster", "fleet"] {
        again.insert(section.to_owned(), first[section].clone());
    }
    toml::to_string(&again).expect("a scenario")
}

#[test]
fn servers_that_are_exported_and_read_back_give_the_same_figures() {
    for (model, gpu, engine, engines) in ROWS {
        for name in engines {
            let first = scenario((model, gpu, engine), name);
            let script = exported(&first, name);
            let again = read_back(&script, &first);
            assert_eq!(figures(&again), figures(&first), "{first}\n{script}\n{again}");
        }
    }
}

/// The tag of an image tells the version, so no remark has to.
#[test]
fn fleets_have_images_of_the_version_that_is_asked_for() {
    for (name, version, image) in [
        ("vllm", "0.11.0", "vllm/vllm-openai:v0.11.0"),
        ("vllm", "0.19", "vllm/vllm-openai:v0.19.0"),
        ("sglang", "0.5.5", "lmsysorg/sglang:v0.5.5"),
    ] {
        let first = scenario(("name = \"llama-3.1-8b\"", "h100-sxm", &format!("version = \"{version}\"")), name);
        for target in ["kubernetes", "skypilot", "llm-d"].iter().filter(|target| name == "vllm" || **target != "llm-d")
        {
            let file = exported(&first, target);
            assert!(file.contains(&format!("{image}\n")) && !file.contains("engine.version"), "{target}: {file}");
            if *target == "kubernetes" {
                let again = read_back(&file, &first);
                assert_eq!(figures(&again), figures(&first), "{file}\n{again}");
            }
        }
        assert!(exported(&first, name).contains("engine.version"), "a script names no image");
    }
}

/// A file that describes a model says formats which no key of the scenario does: the checkpoint decides them, and a remark tells it.
#[test]
fn formats_of_a_configuration_are_told() {
    let config = "[model.config]\nmodel_type = \"llama\"\nhidden_size = 4096\nnum_attention_heads = 32\nnum_key_value_heads = 8\n\
                  num_hidden_layers = 32\nintermediate_size = 14336\nvocab_size = 128256\n";
    let narrow = "quantization_config = { quant_method = \"fp8\", weight_block_size = [128, 128] }\n";
    for (formats, is_narrow) in [("", false), (narrow, true)] {
        let text = scenario(("", "h100-sxm", "tp = 1"), "vllm").replace("[model]\n\n", &format!("{config}{formats}"));
        let script = exported(&text, "vllm");
        assert_eq!(script.contains("Weights are narrow in the prediction"), is_narrow, "{script}");
        assert!(!script.contains("--quantization"), "{script}");
        assert!(script.contains("Put the path of the checkpoint in the place of the model's name"), "{script}");
    }
}

/// Replicas that compute prompts for others have a degree of their own, and an export says both.
#[test]
fn workers_of_both_roles_have_their_own_degrees() {
    let apart = "[policies]\nrun = [\"apart\"]\n[[policies.variant]]\nname = \"apart\"\npolicy = \"vllm-v1\"\nprefill_replicas = 2\nprefill_tp = 1\n";
    let first = scenario(("name = \"Qwen/Qwen3-32B\"", "h100-sxm", "tp = 2"), "vllm");
    let file = exported(&first.replace("[fleet]\nreplicas = 1\n", apart), "dynamo");
    let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() };
    let again = stacks::import(stacks::recognise(&file).expect("a fleet"), &file, &machine).scenario;
    for group in ["tp = 1\nreplicas = 2\nrole = \"prefill\"", "tp = 2\nreplicas = 1\nrole = \"decode\""] {
        assert!(again.contains(group), "{file}\n{again}");
    }
}
