//! Adapters of serving scenarios through the shell: what is refused, what a choice of slots answers, and what stays as it was.

use input::diagnostic;
use scenario::Overrides;
use skrull_sim::kinds;

const BASE: &str = r#"
kind = "serving"
seed = 3
[model]
name = "llama-3.1-8b"
[cluster]
gpu = "h100-sxm"
nodes = 1
gpus_per_node = 8
[trace]
lengths = "azure-conv"
requests = 300
arrivals = "poisson"
rate_per_s = 4.0
adapters = { count = 12, rank = 16 }
[engine]
max_context = 16384
adapters = { slots = 4, host_slots = 12 }
[policies]
run = ["vllm-v1"]
"#;

fn checked(text: &str, set: &[&str]) -> kinds::Checked {
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let source = diagnostic::Source { path: "adapters.toml".to_owned(), text: text.to_owned() };
    kinds::check(source, std::path::Path::new(""), &Overrides { set, ..Overrides::default() })
}

#[test]
fn what_adapters_cannot_be_or_stand_beside_is_refused() {
    for (set, expected) in [
        (&["trace.adapters.rank=0"][..], "`trace.adapters.rank`"),
        (&["engine.adapters.slots=0"], "`engine.adapters.slots`"),
        (&["trace.adapters.rank=32"], "adapters of rank 32 in slots of `rank_max` = 16"),
        (&["engine.adapters.host_slots=3"], "`host_slots` = 3 is below `slots` = 4"),
        (&["engine.adapters.host_slots=6"], "write `disk_gb_per_s`"),
        (&["engine.adapters.slot=6"], "did you mean `slots`?"),
        (&["engine.pp=2"], "adapters beside several batches at once"),
        (&["policies.run=['trtllm']"], "adapters by the rules of TensorRT-LLM"),
        (&["engine.batch_wait={ iterations = 3 }"], "adapters by the rules of TensorRT-LLM"),
        (&["kv.borrow=when-short", "cluster.nodes=1"], "adapters beside memory that is lent"),
        (&["model.name=mixtral-8x22b", "engine.tp=8", "engine.ep=8"], "adapters on experts that lie whole on GPUs"),
        (&["model.name=glm-4.5-air", "engine.tp=8"], "those on experts beside shared or dense ones"),
    ] {
        let checked = checked(BASE, set);
        let said = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && said.contains(expected), "{set:?}:\n{said}");
    }
    let without = BASE.replace("adapters = { slots = 4, host_slots = 12 }\n", "");
    let checked = checked(&without, &[]);
    let said = diagnostic::render(&checked.source, &checked.findings);
    assert!(checked.scenario.is_none() && said.contains("the engine has no room for any"), "{said}");
}

#[test]
fn merged_weights_cost_what_the_model_alone_costs() {
    let row = |text: &str, set: &[&str]| {
        let checked = checked(text, set);
        let said = diagnostic::render(&checked.source, &checked.findings);
        checked.scenario.unwrap_or_else(|| panic!("{said}")).run(&|_| {}).results.swap_remove(0).metrics
    };
    let alone = BASE
        .replace("adapters = { count = 12, rank = 16 }\n", "")
        .replace("adapters = { slots = 4, host_slots = 12 }\n", "");
    let merged = BASE.replace("{ slots = 4, host_slots = 12 }", "{ merged = true }");
    let (alone, merged, apart) = (row(&alone, &[]), row(&merged, &[]), row(BASE, &[]));
    assert_eq!(alone, merged, "nothing is shared in such a trace");
    assert!(apart["tpot_s.mean"] > alone["tpot_s.mean"] && apart["n_adapter_loads"] > 0.0);
}

#[test]
fn the_best_number_of_slots_is_chosen_among_those_that_are_listed() {
    let best = r#"
[[policies.best]]
name = "slots"
policy = "vllm-v1"
by = "ttft_s.mean"
adapters = [{ slots = 1, host_slots = 12 }, { slots = 4, host_slots = 12 }, { slots = 12 }]
"#;
    let text = BASE.replace("run = [\"vllm-v1\"]", "run = [\"slots\"]") + best;
    let checked = checked(&text, &[]);
    let said = diagnostic::render(&checked.source, &checked.findings);
    let row = checked.scenario.unwrap_or_else(|| panic!("{said}")).run(&|_| {}).results.swap_remove(0);
    assert!(row.why.contains("12-slots"), "{}", row.why);
}
