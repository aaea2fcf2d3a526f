//! As much of a validator of JSON schema as the schema of scenarios uses; a word that it does not know is a fault of the schema.

use serde_json::Value;

/// Words that say something to people alone.
const SILENT: [&str; 5] = ["$schema", "title", "description", "default", "$defs"];

/// What is wrong with a value, as places and rules.
pub fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let holds = match word.as_str() {
            word if SILENT.contains(&word) => true,
            "$ref" => {
                let pointer = rule.as_str().and_then(|path| path.strip_prefix('#')).expect("a path in this schema");
                check(root, root.pointer(pointer).expect("what is referred to"), value, at, found);
                true
            }
            "allOf" => {
                items(rule).iter().for_each(|part| check(root, part, value, at, found));
                true
            }
            "if" => {
                if is_valid(root, rule, value) {
                    check(root, &schema["then"], value, at, found);
                }
                true
            }
            "then" => true,
            "properties" => {
                for (key, below) in rule.as_object().expect("properties") {
                    if let Some(value) = value.get(key) {
                        check(root, below, value, &format!("{at}/{key}"), found);
                    }
                }
                true
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{at}/{index}"), found);
                }
                true
            }
            "anyOf" => items(rule).iter().any(|part| is_valid(root, part, value)),
            word => is_kept(schema, word, rule, value),
        };
        if !holds {
            found.push(format!("{at}: {word} {rule}, found {value}"));
        }
    }
}

fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut found = Vec::new();
    check(root, schema, value, "", &mut found);
    found.is_empty()
}

/// Rules that look at nothing below the value.
fn is_kept(schema: &Value, word: &str, rule: &Value, value: &Value) -> bool {
    match word {
        "type" => match rule.as_str().expect("one type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|found| found.fract() == 0.0),
            other => panic!("type {other}"),
        },
        "const" => value == rule,
        // The only pattern is a letter that has to be there.
        "pattern" => value.as_str().is_none_or(|text| text.contains(rule.as_str().expect("a pattern"))),
        "enum" => items(rule).contains(value),
        "minimum" => value.as_f64().is_none_or(|found| found >= rule.as_f64().expect("a number")),
        "maximum" => value.as_f64().is_none_or(|found| found <= rule.as_f64().expect("a number")),
        "minItems" => value.as_array().is_none_or(|all| all.len() as u64 >= rule.as_u64().expect("a count")),
        "maxItems" => value.as_array().is_none_or(|all| all.len() as u64 <= rule.as_u64().expect("a count")),
        "required" => {
            items(rule).iter().all(|key| !value.is_object() || value.get(key.as_str().expect("a key")).is_some())
        }
        "additionalProperties" => {
            let is_known = |key: &String| schema["properties"].get(key).is_some();
            rule == true || value.as_object().is_none_or(|table| table.keys().all(is_known))
        }
        other => panic!("the validator does not know `{other}`"),
    }
}

fn items(rule: &Value) -> &Vec<Value> {
    rule.as_array().expect("a list")
}
