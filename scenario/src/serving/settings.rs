//! What a scenario writes for the engines of a policy, key by key, so that a plan carries it as fields and an export says or refuses each.
//!
//! Keys of a way of serving stand for those of `[engine]` and `[kv]`. What is left out has its default and is not here.

use std::collections::BTreeMap;

use engine::Origin;
use toml::{Table, Value};

use super::Serving;
use super::ffn;
use super::listed::{self, Shown};
use crate::formats;

/// The key of the models' names, among them paths of checkpoints, which say formats.
const NAME: &str = "model.name";
/// The key of formats.
const WEIGHTS: &str = "engine.weights";
/// The key of drafts, which may be a number of them.
const DRAFTS: &str = "speculation";
/// Keys of a way that are not of its engines.
const OF_WAYS: [&str; 11] = [
    "by",
    "concurrency",
    "groups",
    "name",
    "policy",
    "prefill_replicas",
    "prefill_tp",
    "replicas",
    "router",
    "streams",
    "within",
];
/// Keys of `[trace]` and its streams that say how clients wait.
const OF_CLIENTS: [&str; 6] =
    ["adapters", "cancel_ratio", "first_token_timeout_s", "priority", "sampling", "timeout_s"];
/// Keys of `[fleet]` that a deployment does not hold.
const OF_FLEETS: [&str; 4] = ["first_token", "link", "outage", "router"];
/// Keys of its groups that a deployment does not hold.
const OF_GROUPS: [&str; 8] =
    ["failures", "kv_blocks", "model", "port_gb_per_s", "reserved_gib", "scaling", "share", "lend"];

/// Values by key, as `engine.scheduling`. `chosen` are the values of a way that lists several, in words.
pub fn settings(origin: &Origin, policy: &str, chosen: &[(String, String)]) -> BTreeMap<String, Value> {
    of_table(&origin.table(), policy, chosen)
}

/// The same of a scenario that is read: of a model in a file, the file's formats stand for those of `model.weights`.
pub fn of_scenario(scenario: &Serving, policy: &str, chosen: &[(String, String)]) -> BTreeMap<String, Value> {
    let mut table = scenario.head.origin.table();
    let of_file = scenario.groups.iter().find(|group| engine::model::embedded(&group.model.name).is_none());
    let model = table.get_mut("model").and_then(Value::as_table_mut).filter(|model| model.contains_key("config"));
    if let Some((model, group)) = model.zip(of_file) {
        model.insert("weights".to_owned(), formats::written(&group.model.formats));
    }
    of_table(&table, policy, chosen)
}

fn of_table(table: &Table, policy: &str, chosen: &[(String, String)]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    add(&mut found, "engine", table.get("engine"));
    add(&mut found, "kv", table.get("kv"));
    found.extend(names(table).map(|names| (NAME.to_owned(), names)));
    if let Some(weights) = table.get("model").and_then(|model| model.get("weights")) {
        let of_engine = found.insert(WEIGHTS.to_owned(), weights.clone());
        of_engine.into_iter().for_each(|weights| add_weights(&mut found, weights));
    }
    for way in ways(table).filter(|way| way.get("name").and_then(Value::as_str) == Some(policy)) {
        add_way(&mut found, way, chosen);
    }
    if let Some(fleet) = table.get("fleet") {
        add_fleet(&mut found, fleet);
    }
    if let Some(trace) = table.get("trace") {
        add_clients(&mut found, trace);
    }
    found
}

/// The name of the model, or those of several.
fn names(table: &Table) -> Option<Value> {
    let of_many = |models: &Vec<Value>| models.iter().filter_map(|model| model.get("name")).cloned().collect();
    let many = || table.get("models").and_then(Value::as_array).map(of_many).map(Value::Array);
    table.get("model").and_then(|model| model.get("name")).cloned().or_else(many)
}

/// Every key of a section.
fn add(found: &mut BTreeMap<String, Value>, section: &str, table: Option<&Value>) {
    let keys = table.and_then(Value::as_table).into_iter().flatten();
    found.extend(keys.map(|(key, value)| (format!("{section}.{key}"), value.clone())));
}

/// Ways of serving that are written out: variants, and those that list values.
fn ways(table: &Table) -> impl Iterator<Item = &Table> {
    let policies = table.get("policies");
    let of = move |key: &str| policies.and_then(|policies| policies.get(key)?.as_array());
    [of("variant"), of("best")].into_iter().flatten().flatten().filter_map(Value::as_table)
}

/// Keys of a way, over those of the engine.
fn add_way(found: &mut BTreeMap<String, Value>, way: &Table, chosen: &[(String, String)]) {
    for (key, value) in way.iter().filter(|(key, _)| !OF_WAYS.contains(&key.as_str())) {
        let word = chosen.iter().find(|(known, _)| known == key).map(|(_, word)| word);
        let value = match (value, word) {
            (Value::Array(_) | Value::Table(_), Some(word)) => one_of(&spread(key, value), word),
            _ => value.clone(),
        };
        if key == "kv" && value.is_table() {
            add(found, "kv", Some(&value));
        } else if key == "weights" {
            add_weights(found, value);
        } else if let (DRAFTS, Some(n)) = (key.as_str(), value.as_integer()) {
            add_drafts(found, n);
        } else {
            found.insert(format!("engine.{key}"), value);
        }
    }
}

/// What a key lists; tables of `ffn` may list their own numbers, and stand for each combination of them.
fn spread(key: &str, value: &Value) -> Vec<Value> {
    let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let Some(keys) = (key == "ffn").then_some(ffn::NUMBERS) else { return listed.to_vec() };
    keys.iter().fold(listed.to_vec(), |all, key| all.iter().flat_map(|table| each(table, key)).collect())
}

/// A table once for each value that one of its keys lists.
fn each(table: &Value, key: &str) -> Vec<Value> {
    let Some(listed) = table.get(key).and_then(Value::as_array) else { return vec![table.clone()] };
    let with = |value: &Value| {
        let mut table = table.clone();
        table[key] = value.clone();
        table
    };
    listed.iter().map(with).collect()
}

/// The listed value that a word stands for; the word itself where it does not stand for one.
fn one_of(listed: &[Value], word: &str) -> Value {
    let shown: Vec<Shown> = listed.iter().map(Shown::of_text).collect();
    let words = listed::words(&shown);
    let mut found = listed.iter().zip(words).filter(|(_, of)| of == word);
    match (found.next(), found.next()) {
        (Some((value, _)), None) => value.clone(),
        _ => Value::String(word.to_owned()),
    }
}

/// So many drafts in place of those of the engine; none with 0.
fn add_drafts(found: &mut BTreeMap<String, Value>, n: i64) {
    let of_engine = found.remove("engine.speculation");
    if n > 0 {
        let mut table = of_engine.and_then(|drafts| drafts.as_table().cloned()).unwrap_or_default();
        table.insert("draft_tokens".to_owned(), Value::Integer(n));
        found.insert("engine.speculation".to_owned(), Value::Table(table));
    }
}

/// Formats over those that hold without them: one for all layers leaves the head, keys and values as they are.
fn add_weights(found: &mut BTreeMap<String, Value>, weights: Value) {
    let table = |value: Value| match value {
        Value::Table(table) => table,
        word => Table::from_iter([("format".to_owned(), word)]),
    };
    let all = match found.remove(WEIGHTS) {
        None => weights,
        Some(base) => {
            let (mut all, over) = (table(base), table(weights));
            all.retain(|key, _| !over.contains_key("format") || ["head", "kv"].contains(&key));
            all.extend(over);
            match all.get("format") {
                Some(word) if all.len() == 1 => word.clone(),
                _ => Value::Table(all),
            }
        }
    };
    found.insert(WEIGHTS.to_owned(), all);
}

/// What a fleet and its groups have besides engines on machines, by key; of groups by their names.
fn add_fleet(found: &mut BTreeMap<String, Value>, fleet: &Value) {
    for key in OF_FLEETS {
        found.extend(fleet.get(key).map(|value| (format!("fleet.{key}"), value.clone())));
    }
    for group in fleet.get("group").and_then(Value::as_array).into_iter().flatten() {
        let name = group.get("name").and_then(Value::as_str).unwrap_or("group");
        for key in OF_GROUPS {
            found.extend(group.get(key).map(|value| (format!("fleet.{name}.{key}"), value.clone())));
        }
    }
}

/// How clients wait, of all streams together where there are several.
fn add_clients(found: &mut BTreeMap<String, Value>, trace: &Value) {
    for key in OF_CLIENTS {
        let streams = trace.get("stream").and_then(Value::as_array).into_iter().flatten();
        let of_streams: Vec<Value> = streams.filter_map(|stream| stream.get(key)).cloned().collect();
        let value = trace.get(key).cloned().or_else(|| (!of_streams.is_empty()).then_some(Value::Array(of_streams)));
        found.extend(value.map(|value| (format!("trace.{key}"), value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_way_stand_for_those_of_the_engine() {
        let text = r#"
            [engine]
            tp = 2
            loop = "async"
            [model]
            weights = "fp8"
            [[trace.stream]]
            priority = 1
            [[trace.stream]]
            priority = 2
            [[policies.variant]]
            name = "a"
            policy = "vllm-v1"
            loop = "serial"
            kv = { borrow = "when-short" }
            [[policies.best]]
            name = "b"
            scheduling = ["fcfs", "priority"]
            recv_interval = [1, 10]
            kv = [{ borrow = "never" }, { borrow = "when-long" }]
        "#;
        let origin =
            Origin { text: text.to_owned(), set: vec!["engine.max_tokens=512".to_owned()], ..Origin::default() };
        let written = |policy: &str, chosen: &[(&str, &str)]| {
            let chosen: Vec<_> = chosen.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect();
            let found = settings(&origin, policy, &chosen);
            found.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let common = "engine.max_tokens=512";
        assert_eq!(
            written("a", &[]),
            format!(
                "engine.loop=\"serial\" {common} engine.tp=2 engine.weights=\"fp8\" kv.borrow=\"when-short\" trace.priority=[1, 2]"
            )
        );
        assert_eq!(
            written("b", &[("scheduling", "priority"), ("recv_interval", "10"), ("kv", "when-long")]),
            format!(
                "engine.loop=\"async\" {common} engine.recv_interval=10 engine.scheduling=\"priority\" engine.tp=2 engine.weights=\"fp8\" \
                 kv.borrow=\"when-long\" trace.priority=[1, 2]"
            )
        );
    }

    #[test]
    fn a_number_of_drafts_stands_in_the_table_of_the_engine() {
        let of = |way: &str| {
            let text = format!(
                "[engine]\nspeculation = {{ draft_tokens = 3, acceptance = 0.7 }}\n[[policies.best]]\nname = \"a\"\n{way}\n"
            );
            let chosen = [("speculation".to_owned(), "2".to_owned())];
            let found = settings(&Origin { text, ..Origin::default() }, "a", &chosen);
            found.get("engine.speculation").map(ToString::to_string)
        };
        let listed = of("speculation = [0, 2]").expect("two drafts");
        assert!(listed.contains("draft_tokens = 2") && listed.contains("acceptance = 0.7"), "{listed}");
        assert_eq!(of("speculation = 0"), None);
        assert!(of("").expect("those of the engine").contains("draft_tokens = 3"));
    }

    #[test]
    fn formats_of_the_model_of_the_engine_and_of_a_way_stand_over_each_other() {
        let of = |model: &str, engine: &str, way: &str| {
            let line = |weights: &str| {
                if weights.is_empty() { String::new() } else { format!("weights = {weights}\n") }
            };
            let text = format!(
                "[model]\n{}[engine]\n{}[[policies.variant]]\nname = \"a\"\n{}",
                line(model),
                line(engine),
                line(way)
            );
            settings(&Origin { text, ..Origin::default() }, "a", &[]).remove(WEIGHTS).map(|value| value.to_string())
        };
        for (model, engine, way, expected) in [
            ("", "", "", None),
            ("{ kv = \"fp8\" }", "", "", Some("{ kv = \"fp8\" }")),
            ("{ kv = \"fp8\" }", "\"fp8\"", "", Some("{ format = \"fp8\", kv = \"fp8\" }")),
            ("\"int4\"", "\"fp8\"", "\"bf16\"", Some("\"bf16\"")),
            (
                "{ format = \"fp8\", dense = \"bf16\", head = \"fp8\" }",
                "{ kv = \"fp8\" }",
                "\"int4\"",
                Some("{ format = \"int4\", head = \"fp8\", kv = \"fp8\" }"),
            ),
        ] {
            assert_eq!(of(model, engine, way).as_deref(), expected, "{model} {engine} {way}");
        }
    }
}
