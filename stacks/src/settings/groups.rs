//! Settings of a fleet's groups: a scenario has those of all its policies, and a plan has the groups of one.

use serde_json::Value;
use serve::deployment::Deployment;

use super::{LINKS, Settings};

/// Losses of single replicas.
const OUTAGES: &str = "fleet.outage";

/// Settings without those of groups that no deployment has.
pub(crate) fn of_plan(settings: &Settings, deployments: &[Deployment]) -> Settings {
    let has = |name: &str| deployments.iter().flat_map(|one| &one.replicas).any(|replica| replica.name == name);
    let kept = settings.iter().filter_map(|(key, value)| {
        let value = match (key.as_str(), group(key)) {
            (_, Some(name)) => has(name).then(|| value.clone()),
            (LINKS, _) => some(value, &["from", "to"], &has),
            (OUTAGES, _) => some(value, &["group"], &has),
            _ => Some(value.clone()),
        };
        Some((key.clone(), value?))
    });
    kept.collect()
}

/// The group of a key, as `decode` of `fleet.decode.scaling`.
fn group(key: &str) -> Option<&str> {
    key.strip_prefix("fleet.")?.rsplit_once('.').map(|(group, _)| group)
}

/// Tables of a list whose groups are all there; what is no list stays.
fn some(value: &Value, keys: &[&str], has: &impl Fn(&str) -> bool) -> Option<Value> {
    let Some(tables) = value.as_array() else { return Some(value.clone()) };
    let is_there = |table: &&Value| {
        let mut names = keys.iter().filter_map(|key| table.get(key).and_then(Value::as_str));
        names.all(has)
    };
    let kept: Vec<Value> = tables.iter().filter(is_there).cloned().collect();
    (!kept.is_empty()).then_some(Value::Array(kept))
}

/// Whether a link packs keys and values.
pub(super) fn is_packed(links: &Value) -> bool {
    let ratios = links.as_array().into_iter().flatten().filter_map(|link| link.get("wire_ratio")?.as_f64());
    ratios.into_iter().any(|ratio| ratio < 1.0)
}
