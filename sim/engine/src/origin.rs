//! What was asked: the scenario as it was read, with what was laid over it. Plans and results carry it, so that either file alone can be run again.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// Where a plan or a result comes from; the same scenario, keys and seed give the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Version of the program.
    #[serde(default)]
    pub version: String,
    /// What scenarios of this kind ask.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub question: String,
    /// Path or name of the scenario.
    pub scenario: String,
    /// Its text.
    pub text: String,
    /// Keys that were laid over it, `section.key=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Seed, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Origin {
    /// The scenario with what was laid over it; empty where its text is no TOML.
    pub fn table(&self) -> Table {
        let mut table: Table = self.text.parse().unwrap_or_default();
        self.set.iter().for_each(|set| lay_over(&mut table, set));
        table
    }
}

/// Sets a key as `--set` does; a value that is no TOML is a text.
fn lay_over(table: &mut Table, set: &str) {
    let Some((path, value)) = set.split_once('=') else { return };
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut parsed| parsed.remove("value"));
    let value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().unwrap_or_default();
    let mut at = table;
    for key in keys {
        let next = at.entry(key).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(next) = next else { return };
        at = next;
    }
    at.insert(last.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_over_counts() {
        let origin = Origin {
            text: "[cluster]\nnodes = 4\n".to_owned(),
            set: vec!["cluster.nodes=8".to_owned(), "cluster.gpu=h100-sxm".to_owned(), "cost.a.b=[1, 2]".to_owned()],
            ..Origin::default()
        };
        let expected = "[cluster]\nnodes = 8\ngpu = \"h100-sxm\"\n[cost.a]\nb = [1, 2]\n";
        assert_eq!(origin.table(), expected.parse::<Table>().expect("TOML"));
    }
}
