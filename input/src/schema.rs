//! The JSON schema (draft 2020-12) of scenario files, for editors: what `keys.rs` collects of readers, as types, ranges and words.
//!
//! Invariant, which a test holds by changing shipped scenarios: what the schema refuses, a reader refuses. It is the looser of the two,
//! because what keys say together only a reader knows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::keys::{Key, Keys, Meanings, meaning, meanings, unit};
use crate::reader::seen::{EITHER, LISTED, OTHERS, PATHS};

/// Dialect of the schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A key or a section, with what stands below it.
#[derive(Default)]
struct Node {
    path: String,
    key: Option<Key>,
    below: BTreeMap<String, Self>,
}

impl Keys {
    /// The schema of scenarios of one kind, or of all of them: there, `kind` decides, and `first` is meant where it is left out.
    pub fn schema(&self, kind: Option<&str>, first: &str) -> Value {
        let mut schema = match kind {
            Some(kind) => self.of_kind(kind, &meanings()),
            None => self.of_all(first),
        };
        schema["$schema"] = DIALECT.into();
        schema["title"] = "Scenario of skrull-sim".into();
        schema
    }

    /// Kinds that asked for keys.
    fn kinds(&self) -> BTreeSet<&str> {
        self.0.values().flat_map(|by_kind| by_kind.keys().map(String::as_str)).collect()
    }

    /// What every kind may have, for completion, and the exact schema of each behind a condition.
    fn of_all(&self, first: &str) -> Value {
        let meanings = meanings();
        let kinds = self.kinds();
        let exact = |kind: &&str| {
            // A file without the word is of the first kind.
            let needed = if *kind == first { json!([]) } else { json!(["kind"]) };
            let asked = json!({ "properties": { "kind": { "const": kind } }, "required": needed });
            json!({ "if": asked, "then": { "$ref": format!("#/$defs/{kind}") } })
        };
        let each: Vec<Value> = kinds.iter().map(exact).collect();
        let of_kind = |kind: &&str| ((*kind).to_owned(), self.of_kind(kind, &meanings));
        let mut defs: Map<String, Value> = kinds.iter().map(of_kind).collect();
        let mut any = object(&self.tree(None), &meanings);
        needs_nothing(&mut any);
        any["properties"]["kind"] = json!({ "enum": kinds, "description": meaning(&meanings, "kind", "") });
        defs.insert("any".to_owned(), any);
        let all: Vec<Value> = std::iter::once(json!({ "$ref": "#/$defs/any" })).chain(each).collect();
        json!({ "allOf": all, "$defs": defs })
    }

    fn of_kind(&self, kind: &str, meanings: &Meanings) -> Value {
        let mut schema = object(&self.tree(Some(kind)), meanings);
        schema["properties"]["kind"] = json!({ "const": kind, "description": meaning(meanings, "kind", "") });
        schema
    }

    /// Keys of a kind, or of all kinds together, below their sections.
    fn tree(&self, kind: Option<&str>) -> Node {
        let mut root = Node::default();
        for (path, by_kind) in &self.0 {
            let of = by_kind.iter().filter(|(name, _)| kind.is_none_or(|kind| kind == *name)).map(|(_, key)| key);
            let Some(key) = of.cloned().reduce(|all, key| all.merged(&key)) else { continue };
            let mut node = &mut root;
            for part in path.split('.') {
                let below = if node.path.is_empty() { part.to_owned() } else { format!("{}.{part}", node.path) };
                node = node.below.entry(part.to_owned()).or_default();
                node.path = below;
            }
            node.key = Some(key);
        }
        root
    }
}

/// What one kind needs another one may not know.
fn needs_nothing(schema: &mut Value) {
    for section in schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        section.as_object_mut().map(|section| section.remove("required"));
    }
}

/// A section, a table or an item of a list of tables.
fn object(node: &Node, meanings: &Meanings) -> Value {
    let keys = || node.below.iter().filter(|(name, _)| *name != OTHERS);
    let properties: Map<String, Value> = keys().map(|(name, below)| (name.clone(), value(below, meanings))).collect();
    let needed = if is_section(node) { needed(node) } else { Vec::new() };
    // Of a table that no shipped scenario has, nothing is known.
    let is_open = node.below.is_empty() || node.below.contains_key(OTHERS);
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": is_open });
    if !needed.is_empty() {
        schema["required"] = json!(needed);
    }
    schema
}

/// Whether it is a section, of which a file has one: items of a list, and tables below sections, may differ in what they need.
fn is_section(node: &Node) -> bool {
    node.key.is_none() && !node.path.is_empty() && !node.path.contains('.')
}

/// Keys that every reader of a section needs.
fn needed(section: &Node) -> Vec<&String> {
    let keys = || section.below.iter().filter_map(|(name, below)| Some((name, below.key.as_ref()?)));
    let n_scenarios = keys().map(|(_, key)| key.n_scenarios).max().unwrap_or(0);
    let is_needed = |key: &Key| key.defaults.iter().eq(["needed"]) && key.n_scenarios == n_scenarios;
    keys()
        .filter(|(_, key)| is_needed(key) && ![EITHER, LISTED].iter().any(|what| key.whats.contains(what)))
        .map(|(name, _)| name)
        .collect()
}

/// A key with its type, its meaning, its unit and its default.
fn value(node: &Node, meanings: &Meanings) -> Value {
    let Some(key) = &node.key else { return object(node, meanings) };
    let is_exact = |what: &&str| !["value", EITHER, LISTED].contains(what);
    let exact: Vec<&str> = key.whats.iter().copied().filter(is_exact).collect();
    let exact: Vec<&str> = exact.into_iter().filter(|what| *what != "text" || key.is_text()).collect();
    let is_one_of_more = key.whats.contains(EITHER) && exact.len() == 1;
    let is_open = exact.is_empty() || key.is_looked_at() || is_one_of_more || key.whats.contains(LISTED);
    let mut types: Vec<Value> = exact.iter().map(|what| typed(what, key, node, meanings)).collect();
    let mut schema = match types.len() {
        _ if is_open => json!({}),
        1 => types.remove(0),
        _ => json!({ "anyOf": types }),
    };
    let unit = unit(&node.path, key);
    let own = node.key.as_ref().map_or("", |key| key.about);
    let about = meaning(meanings, &node.path, own).unwrap_or_default();
    let about = if unit.is_empty() { about.to_owned() } else { format!("{about} Unit: {unit}.") };
    schema["description"] = about.into();
    if let Some(default) = default(key, &schema) {
        schema["default"] = default;
    }
    schema
}

/// One of the types of a key.
fn typed(what: &str, key: &Key, node: &Node, meanings: &Meanings) -> Value {
    match what {
        "whole number" => json!({ "type": "integer", "minimum": ends(key).0, "maximum": ends(key).1 }),
        "number" => json!({ "type": "number", "minimum": ends(key).0, "maximum": ends(key).1 }),
        "number or list of numbers" => {
            let number = json!({ "type": "number", "minimum": ends(key).0, "maximum": ends(key).1 });
            json!({ "anyOf": [number, { "type": "array", "items": number, "minItems": 1 }] })
        }
        "list of whole numbers" => {
            let item = json!({ "type": "integer", "minimum": ends(key).0, "maximum": ends(key).1 });
            json!({ "type": "array", "items": item, "minItems": 1 })
        }
        "whole number or two ends" => {
            let number = json!({ "type": "integer", "minimum": ends(key).0, "maximum": ends(key).1 });
            json!({ "anyOf": [number, { "type": "array", "items": number, "minItems": 2, "maxItems": 2 }] })
        }
        "list of names" => json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
        "true or false" => json!({ "type": "boolean" }),
        "word" => json!({ "enum": words(key) }),
        "list of tables" => json!({ "type": "array", "items": object(node, meanings) }),
        "table" => object(node, meanings),
        "text" => match key.all_names() {
            Some(names) if names.contains(PATHS) => {
                let names: Vec<&String> = names.iter().filter(|name| *name != PATHS).collect();
                json!({ "anyOf": [{ "enum": names }, { "type": "string", "pattern": "/" }] })
            }
            Some(names) => json!({ "enum": names }),
            None => json!({ "type": "string" }),
        },
        _ => json!({}),
    }
}

/// Every word of the lists of words.
fn words(key: &Key) -> BTreeSet<&str> {
    key.allowed.iter().filter(|text| range(text).is_none()).flat_map(|text| text.split(", ")).collect()
}

/// The least and the largest of the ranges.
fn ends(key: &Key) -> (Value, Value) {
    let ranges = || key.allowed.iter().filter_map(|text| range(text));
    let low = ranges().map(|(low, _)| low).min_by(|one, other| number(one).total_cmp(&number(other)));
    let high = ranges().map(|(_, high)| high).max_by(|one, other| number(one).total_cmp(&number(other)));
    (low.unwrap_or_default(), high.unwrap_or_default())
}

/// Ends of a range that is written with `to` between them.
fn range(text: &str) -> Option<(Value, Value)> {
    let (low, high) = text.split_once(" to ")?;
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_number);
    Some((parsed(low)?, parsed(high)?))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The default, where there is one alone and the key may have it; readers also use a number outside of the range for "not given".
fn default(key: &Key, schema: &Value) -> Option<Value> {
    let text = key.defaults.iter().next().filter(|_| key.defaults.len() == 1)?;
    let is_within = |found: f64| {
        let end = |name: &str| schema.get(name).map(number);
        end("minimum").is_none_or(|low| low <= found) && end("maximum").is_none_or(|high| found <= high)
    };
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => text.parse::<bool>().ok().map(Value::from),
        Some("integer") => text.parse::<u64>().ok().filter(|found| is_within(*found as f64)).map(Value::from),
        Some("number") => text.parse::<f64>().ok().filter(|found| is_within(*found)).map(Value::from),
        _ => words(key).contains(text.as_str()).then(|| text.as_str().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::seen::Seen;

    fn seen(path: &str, what: &'static str, default: &str, allowed: &str) -> Seen {
        Seen {
            path: path.to_owned(),
            what,
            default: default.to_owned(),
            allowed: allowed.to_owned(),
            ..Seen::default()
        }
    }

    #[test]
    fn a_key_has_its_type_range_and_default_and_a_section_is_closed() {
        let mut keys = Keys::default();
        keys.add(
            "a",
            vec![seen("engine.window_ms", "number", "5", "0 to 10"), seen("engine.window_ms", "value", "", "")],
            false,
        );
        keys.add(
            "a",
            vec![seen("engine.rule", "word", "x", "x, y"), seen("engine.n", "whole number", "needed", "1 to 9")],
            false,
        );
        let schema = keys.schema(Some("a"), "a");
        let engine = &schema["properties"]["engine"];
        let window = &engine["properties"]["window_ms"];
        assert_eq!(window["type"], "number");
        assert_eq!((&window["minimum"], &window["maximum"], &window["default"]), (&json!(0), &json!(10), &json!(5.0)));
        assert_eq!(engine["properties"]["rule"]["enum"], json!(["x", "y"]));
        assert_eq!(engine["required"], json!(["n"]));
        assert_eq!(engine["additionalProperties"], json!(false));
    }

    #[test]
    fn a_value_that_is_looked_at_first_may_be_of_another_type() {
        let mut keys = Keys::default();
        keys.add("a", vec![seen("cost.law", EITHER, "", ""), seen("cost.law", "text", "", "")], false);
        let schema = keys.schema(Some("a"), "a");
        assert!(schema["properties"]["cost"]["properties"]["law"].get("type").is_none());
    }
}
