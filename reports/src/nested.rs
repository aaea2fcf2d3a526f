//! Metrics whose keys have a part after a dot: an object per key in JSON, one flat map in memory.
//!
//! The contract has `"ttft_s": {"mean": …, "p50": …}`; in memory the figures are `ttft_s.mean` and `ttft_s.p50`. A figure that is not
//! finite is absent.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes parts as objects.
pub(crate) fn figures<S: Serializer>(flat: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut nested: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    for (key, &value) in flat.iter().filter(|(_, value)| value.is_finite()) {
        match key.split_once('.') {
            None => drop(nested.insert(key, value.into())),
            // Indexing a missing entry makes it an object.
            Some((key, part)) => nested.entry(key).or_default()[part] = value.into(),
        }
    }
    nested.serialize(serializer)
}

/// Reads what `figures` wrote.
pub(crate) fn flat<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let nested = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
    let mut flat = BTreeMap::new();
    let number = |key: &str, value: &serde_json::Value| {
        value.as_f64().ok_or_else(|| D::Error::custom(format!("metric `{key}` is {value}, expected a number")))
    };
    for (key, value) in nested {
        match value {
            serde_json::Value::Object(parts) => {
                for (part, value) in parts {
                    let key = format!("{key}.{part}");
                    let value = number(&key, &value)?;
                    flat.insert(key, value);
                }
            }
            value => {
                let value = number(&key, &value)?;
                flat.insert(key, value);
            }
        }
    }
    Ok(flat)
}

#[cfg(test)]
mod tests {
    use crate::PolicyResult;

    #[test]
    fn parts_are_objects_in_json_and_come_back_flat() {
        let figures = [("e2e_s.mean", 1.5), ("e2e_s.p99", 4.0), ("n_requests", 7.0), ("ttft_s.mean", f64::NAN)];
        let metrics = figures.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let json = serde_json::to_value(PolicyResult { metrics, ..PolicyResult::default() }).expect("finite");
        assert_eq!(json["metrics"].to_string(), r#"{"e2e_s":{"mean":1.5,"p99":4.0},"n_requests":7.0}"#);
        let back: PolicyResult = serde_json::from_value(json).expect("what was written");
        assert_eq!(back.metrics.keys().collect::<Vec<_>>(), ["e2e_s.mean", "e2e_s.p99", "n_requests"]);
    }
}
