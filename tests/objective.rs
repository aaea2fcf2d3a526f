//! What a search looks for, and where: keys of `[search]`, `maximize` and `minimize`; and slow nodes of a run of days.

use std::collections::BTreeSet;

use reports::{PolicyResult, RunResult};
use skrull_sim::kinds::training::run as pipeline;

/// A shipped scenario laid over by `set`.
fn run(name: &str, set: &[&str]) -> RunResult {
    let checked = super::checked(name, &[set, &["expect={}"]].concat());
    pipeline::run(&super::training(checked), &|_| {}).result
}

fn row(result: &RunResult) -> &PolicyResult {
    assert!(result.results[0].status.is_ok(), "{}", result.results[0].why);
    &result.results[0]
}

fn words(name: &str, set: &[&str]) -> String {
    super::checked(name, set).findings.iter().map(|found| format!("{found:?}")).collect()
}

const SEARCHED: &str = "search/llama-8b-usd";

#[test]
fn dollars_take_fewer_nodes_than_seconds_and_no_row_is_better_at_either() {
    let [usd, seconds] = ["tokens_per_usd", "tokens_per_s"]
        .map(|metric| run(SEARCHED, &[&format!("policies.maximize=\"{metric}\"") as &str, "search.front_ratio=1"]));
    let of = |result: &RunResult, key: &str| row(result).metrics[key];
    assert!(of(&usd, "cost_usd_per_step") < of(&seconds, "cost_usd_per_step"));
    assert!(of(&usd, "iteration_time_s") > of(&seconds, "iteration_time_s"));
    // 64 sequences of 4,096 tokens.
    let tokens = of(&usd, "tokens_per_usd") * of(&usd, "cost_usd_per_step");
    assert!((tokens / f64::from(64 * 4096) - 1.0).abs() < 1e-9, "{tokens}");
    assert_eq!(usd.columns[0].key, "tokens_per_usd");
    assert!(seconds.columns.is_empty());
    let least =
        run(SEARCHED, &["policies={run=[\"megatron\"],minimize=\"cost_usd_per_step\"}", "search.front_ratio=1"]);
    assert_eq!(row(&least).chosen, row(&usd).chosen);
    assert!(row(&usd).planner.as_ref().expect("planned").bound.expect("a bound") <= of(&usd, "cost_usd_per_step"));
}

/// What a search says of itself is what the run of its row keeps, and no other objective's layout keeps more.
#[test]
fn a_run_of_days_is_sought_by_what_it_keeps() {
    let days = ["failures={days=20.0,gpu_mtbf_hours=3000.0,spare_nodes=1}", "checkpoint={storage_gb_per_s=20.0}"];
    let few = ["search.front_ratio=1", "search.products=[\"bf16\"]", "search.head_layers=[0]"];
    let of = |metric: &str| {
        let sought = format!("policies.maximize=\"{metric}\"");
        run(SEARCHED, &[&days[..], &few, &[&sought]].concat())
    };
    let all = ["run_tokens_per_usd", "run_tokens_per_s", "tokens_per_s"].map(of);
    for (at, key) in ["run_tokens_per_usd", "run_tokens_per_s"].into_iter().enumerate() {
        let kept: Vec<f64> = all.iter().map(|result| row(result).metrics[key]).collect();
        assert!(kept.iter().all(|other| *other <= kept[at] * (1.0 + 1e-9)), "{key}: {kept:?}");
        let planner = row(&all[at]).planner.as_ref().expect("planned");
        let (objective, bound) = (planner.objective.expect("counted"), planner.bound.expect("a bound"));
        assert!((objective / kept[at] - 1.0).abs() < 1e-9 && bound >= objective, "{key}: {objective} {bound} {kept:?}");
    }
    let words = |more: &str| words(SEARCHED, &[more]);
    let without = words("policies.maximize=\"run_tokens_per_usd\"");
    assert!(without.contains("`run_tokens_per_usd` is sought, and the scenario has no run of days"), "{without}");
}

#[test]
fn products_of_eight_bits_are_found_where_the_list_has_them() {
    let of = |list: &str| {
        let set = [format!("search.products={list}"), "search.front_ratio=1".to_owned(), "search.nodes=[4]".to_owned()];
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        row(&run(SEARCHED, &set)).metrics["iteration_time_s"]
    };
    let (both, wide) = (of("[\"bf16\", \"fp8\"]"), of("[\"bf16\"]"));
    assert!(both < wide && (of("[\"fp8\"]") - both).abs() < 1e-12, "{both} {wide}");
    let refused = words(SEARCHED, &["search.products=[\"fp8\"]", "cluster.name=\"dgx-a100\""]);
    assert!(refused.contains("search.products") && refused.contains("bf16"), "{refused}");
}

#[test]
fn a_front_has_less_memory_for_more_dollars() {
    let found = run(SEARCHED, &[]);
    let front = row(&found).chosen["front"].as_array().expect("a list").clone();
    let of = |key: &str| front.iter().map(|layout| layout[key].as_f64().expect("a number")).collect::<Vec<_>>();
    assert!(front.len() > 2 && of("peak_memory_bytes").is_sorted_by(|a, b| a > b), "{front:?}");
    let usd: Vec<f64> = of("nodes").iter().zip(of("iteration_time_s")).map(|(nodes, step_s)| nodes * step_s).collect();
    assert!(usd.is_sorted() && usd[usd.len() - 1] <= 1.5 * usd[0], "{usd:?}");
    assert_eq!(of("peak_memory_bytes")[0], row(&found).metrics["peak_memory_bytes"]);
    assert!(!row(&run(SEARCHED, &["search.front_ratio=1"])).chosen.contains_key("front"));
    // Each row is told from the others by its fields, and what is ranked is in both.
    let named = |layout: &serde_json::Value| {
        let fields = layout.as_object().expect("fields").iter();
        let measured = ["iteration_time_s", "peak_memory_bytes", "cost_usd_per_step"];
        fields
            .filter(|(key, _)| !measured.contains(&key.as_str()))
            .map(|(key, value)| format!("{key} {value}"))
            .collect()
    };
    let layouts: BTreeSet<Vec<String>> = front.iter().map(named).collect();
    assert_eq!(layouts.len(), front.len(), "{front:?}");
    for key in ["products", "sequence_parallel", "expert_tp", "bucket_tokens", "order", "exchange", "replicate"] {
        assert!(front.iter().all(|layout| layout.get(key).is_some()), "{key}: {front:?}");
    }
    let cost = of("cost_usd_per_step");
    assert!((cost[0] / row(&found).metrics["cost_usd_per_step"] - 1.0).abs() < 1e-9, "{cost:?}");
    let notes = &row(&found).planner.as_ref().expect("a planner").notes;
    let first = format!("front: {:.4} USD in ", cost[0]);
    assert!(notes.iter().any(|note| note.starts_with(&first)), "{notes:?}");
}

#[test]
fn a_head_that_counts_as_layers_cuts_the_pipeline_otherwise() {
    let set = |head: &str| {
        let head = format!("search.head_layers={head}");
        row(&run(SEARCHED, &[&head, "search.front_ratio=1", "search.pp=[4]", "search.nodes=[4]"])).clone()
    };
    let (even, heavy) = (set("[0]"), set("[2]"));
    assert!(!even.chosen.contains_key("layers"));
    let layers: Vec<u64> =
        heavy.chosen["layers"].as_array().expect("a list").iter().map(|n| n.as_u64().expect("a count")).collect();
    assert_eq!(layers.iter().sum::<u64>(), 32);
    assert!(layers[layers.len() - 1] < layers[0], "{layers:?}");
    let moved = row(&run(
        SEARCHED,
        &[
            "search.embedding_layers=[1]",
            "search.head_layers=[1]",
            "search.front_ratio=1",
            "search.pp=[4]",
            "search.nodes=[4]",
        ],
    ))
    .clone();
    assert_ne!(moved.chosen.get("layers"), heavy.chosen.get("layers"));
}

const SLOW: &str = "resilience/weeks-slow";

#[test]
fn the_best_reaction_to_slow_nodes_keeps_most_of_a_run() {
    let kept = |reaction: &str| {
        let set = [format!("slow_nodes.reaction=\"{reaction}\""), "policies={run=[\"megatron\"]}".to_owned()];
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        row(&run(SLOW, &set)).metrics["run_goodput_ratio"]
    };
    let [none, restart, replan, best] = ["none", "restart", "replan", "best"].map(kept);
    assert!(best >= none && best == none.max(restart).max(replan), "{none} {restart} {replan} {best}");
    assert!(replan > none && restart > none, "{none} {restart} {replan}");
    // Short spells are not worth a restart of five minutes.
    let short = |reaction: &str| {
        let reaction = format!("slow_nodes.reaction=\"{reaction}\"");
        let set = [&reaction as &str, "slow_nodes.lasts_hours=0.02", "policies={run=[\"megatron\"]}"];
        row(&run(SLOW, &set)).metrics["run_goodput_ratio"]
    };
    assert!(short("restart") < short("none") && short("best") >= short("none"));
}

#[test]
fn slow_nodes_by_a_trace_cost_their_time_and_need_a_run_of_days() {
    let set = ["slow_nodes={at_hours=[100.0],lasts_hours=24.0,rate=2.57}", "policies={run=[\"megatron\"]}"];
    let found = run(SLOW, &set);
    let metrics = &row(&found).metrics;
    // One day of thirty at the pace of the slow node.
    let expected = (1.0 - 1.0 / metrics["slow_step_ratio"]) / 30.0;
    assert!((metrics["run_slow_ratio"] / expected - 1.0).abs() < 0.03, "{} {expected}", metrics["run_slow_ratio"]);
    assert!(words("quickstart", &["slow_nodes={node_hours=10.0,lasts_hours=1.0,rate=2.0}"]).contains("NoEffect"));
    assert!(words(SLOW, &["slow_nodes={lasts_hours=1.0,rate=2.0}"]).contains("node_hours"));
}

/// A contract price stands in the place of quotes, so that cards without one can be asked too.
#[test]
fn a_price_of_the_cluster_is_what_a_step_costs() {
    let of = |set: &[&str]| row(&run("quickstart", set)).metrics.clone();
    let priced = of(&["cluster.usd_per_gpu_hour=7.5"]);
    let n_gpus = priced["cost_usd_per_step"] / (7.5 / 3600.0 * priced["iteration_time_s"]);
    assert!((n_gpus - n_gpus.round()).abs() < 1e-9 && n_gpus >= 1.0, "{n_gpus}");
    let quoted = of(&[]);
    assert!((quoted["cost_usd_per_step"] / priced["cost_usd_per_step"] - 2.25 / 7.5).abs() < 1e-9, "{quoted:?}");
    assert_eq!(quoted["iteration_time_s"], priced["iteration_time_s"]);
    let dollars = "policies={run=[\"megatron\"],maximize=\"tokens_per_usd\"}";
    let without = words(SEARCHED, &["cluster={gpu=\"h20\",nodes=4}", dollars]);
    assert!(without.contains("write `cluster.usd_per_gpu_hour`"), "{without}");
    let with = words(SEARCHED, &["cluster={gpu=\"h20\",nodes=4,usd_per_gpu_hour=1.8}", dollars]);
    assert!(!with.contains("cluster.usd_per_gpu_hour"), "{with}");
}

/// The layout in the sentence about a search, as `--set` takes it.
fn by_hand(why: &str) -> Vec<String> {
    let words = why.split("bounded above it): ").nth(1).expect("a search").split("\u{a0}%").next().expect("a layout");
    let (words, layers) = match words.split_once(", layers [") {
        Some((before, behind)) => (before, behind.split(']').next()),
        None => (words, None),
    };
    let mut set = vec!["parallel.layout=\"given\"".to_owned(), "search={}".to_owned()];
    set.extend(layers.map(|layers| format!("parallel.layers=[{layers}]")));
    let parts: Vec<&str> = words.split(", ").collect();
    let degrees: Vec<&str> = parts[0].split(' ').collect();
    set.extend(degrees.chunks(2).map(|pair| format!("parallel.{}={}", pair[0], pair[1])));
    let schedule: Vec<&str> = parts[1].split(' ').collect();
    set.extend([format!("parallel.schedule=\"{}\"", schedule[0]), format!("parallel.chunks={}", schedule[2])]);
    for part in &parts[2..] {
        let Some((key, value)) =
            part.split_once(' ').filter(|(key, _)| key.chars().all(|c| c == '_' || c.is_alphabetic()))
        else {
            continue;
        };
        set.push(match key {
            "recompute" if value.contains('+') => format!("training.recompute=[\"{}\"]", value.replace('+', "\",\"")),
            "recompute" => format!("training.recompute=\"{value}\""),
            "bucket_tokens" | "offload_ratio" => format!("training.{key}={value}"),
            "nodes" => format!("cluster.nodes={value}"),
            _ => format!("parallel.{key}={value}"),
        });
    }
    set
}

/// Whoever writes what the sentence says has the same step.
#[test]
fn the_sentence_about_a_search_can_be_written_by_hand() {
    let card = "cluster={gpu=\"h100-sxm\",nodes=1}";
    for lists in [
        "{tp=[1,2],pp=[2],recompute=[[\"layernorm\",\"mlp\"]],offload_ratio=[0.3],micro_batch=[2]}",
        "{tp=[2],pp=[2,4],chunks=[2],head_layers=[2],recompute=[\"none\"],sequence_parallel=[false]}",
        "{tp=[4],pp=[1],zero=[3],micro_batch=[1,2]}",
    ] {
        let search = format!("search={lists}");
        let framework = "training={framework=\"megatron-core\",batch_size=16}";
        let policies = "policies={run=[\"megatron\"]}";
        let base = [card, framework, policies];
        let found = run(SEARCHED, &[&base[..], &[&search]].concat());
        let set = by_hand(&row(&found).why);
        let set: Vec<&str> = base.iter().copied().chain(set.iter().map(String::as_str)).collect();
        let again = run(SEARCHED, &set);
        for key in ["iteration_time_s", "peak_memory_bytes"] {
            assert_eq!(row(&again).metrics[key], row(&found).metrics[key], "{key} of {}: {set:?}", row(&found).why);
        }
    }
}

/// The same plan with a slow rank and without: all that the step takes longer is said of the slow device, and no other cause has more.
#[test]
fn what_others_wait_for_a_slow_device_is_its_own_loss() {
    let base = ["policies.run=[\"deepspeed\"]", "policies.baseline=\"deepspeed\"", "training.steps=2"];
    let of = |set: &[&str]| row(&run("quickstart", &[&base[..], set].concat())).metrics.clone();
    let (healthy, slow) = (of(&[]), of(&["stragglers=[{ranks=[3],rate=1.5}]"]));
    let more = slow["iteration_time_s"] - healthy["iteration_time_s"];
    assert!(more > 0.1 * healthy["iteration_time_s"]);
    let lost = |metrics: &std::collections::BTreeMap<String, f64>, key: &str| metrics.get(key).copied().unwrap_or(0.0);
    assert!((lost(&slow, "lost_straggler_s") / more - 1.0).abs() < 0.02, "{slow:?} {healthy:?}");
    for key in ["lost_imbalance_s", "lost_bubble_s", "lost_communication_s", "lost_kernel_s", "lost_recompute_s"] {
        assert!(lost(&slow, key) <= lost(&healthy, key) + 1e-6, "{key}: {slow:?} {healthy:?}");
    }
    let sum: f64 = slow.iter().filter(|(key, _)| key.starts_with("lost_")).map(|(_, seconds)| seconds).sum();
    let gap = slow["iteration_time_s"] - slow["iteration_time_bound_s"];
    assert!((sum / gap - 1.0).abs() < 1e-6, "{sum} of {gap}");
}
