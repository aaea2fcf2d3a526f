//! What reports say of what was asked: the question in words, sections in a line each, and the command that asks it again.

use engine::Origin;
use toml::Value;

use crate::quantity::plain;

/// Sections that say whom a report is about, in the order of its header, with their words.
const NAMED: [(&str, &str); 10] = [
    ("model", "Model"),
    ("models", "Models"),
    ("cluster", "Hardware"),
    ("inventory", "Hardware to rent"),
    ("workload", "Workload"),
    ("trace", "Requests"),
    ("requests", "Requests"),
    ("graph", "Graph"),
    ("task", "Tasks"),
    ("policies", "Policies"),
];
/// Sections that ask nothing.
const SILENT: [&str; 5] = ["expect", "kind", "name", "seed", "schema"];
/// Values of a list of tables that are written out.
const LISTED: usize = 12;

/// The command that asks it again.
pub fn command(origin: &Origin, verb: &str) -> String {
    let scenario = origin.scenario.trim_end_matches(" (shipped)");
    let mut words = vec!["skrull-sim".to_owned(), verb.to_owned(), quoted(scenario)];
    for set in &origin.set {
        words.extend(["--set".to_owned(), quoted(set)]);
    }
    if let Some(seed) = origin.seed {
        words.extend(["--seed".to_owned(), seed.to_string()]);
    }
    words.join(" ")
}

/// The question in a sentence: the comment that begins the scenario, else what its kind asks.
pub fn question(origin: &Origin) -> String {
    let comments = origin.text.lines().map_while(|line| line.strip_prefix('#'));
    let said = comments.map(str::trim).collect::<Vec<_>>().join(" ");
    let end = said.find('?').or_else(|| said.find(". ")).map_or(said.len(), |at| at + 1);
    let question = plain(said[..end].trim());
    if question.is_empty() { plain(&origin.question) } else { question }
}

/// Every section with its keys in a line, whom it is about first. What the scenario leaves out has its default.
pub fn facts(origin: &Origin) -> Vec<(String, String)> {
    let mut table = origin.table();
    SILENT.iter().for_each(|key| drop(table.remove(*key)));
    let named = NAMED.iter().filter_map(|(key, word)| Some(((*word).to_owned(), table.remove(*key)?)));
    let mut facts: Vec<(String, Value)> = named.collect();
    facts.extend(table);
    facts.into_iter().map(|(name, value)| (plain(&name), plain(&line(&value)))).collect()
}

/// A value in a line: `name = qwen2.5-0.5b, layers = 24`.
fn line(value: &Value) -> String {
    match value {
        Value::Table(table) => {
            let keys: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {}", inner(value))).collect();
            keys.join(", ")
        }
        other => inner(other),
    }
}

fn inner(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Table(table) => format!("{{{}}}", line(&Value::Table(table.clone()))),
        Value::Array(values) => {
            let mut shown: Vec<String> = values.iter().take(LISTED).map(named).collect();
            if values.len() > LISTED {
                shown.push(format!("and {} more", values.len() - LISTED));
            }
            shown.join("; ")
        }
        other => other.to_string(),
    }
}

/// The name of a table in a list, where it has one.
fn named(value: &Value) -> String {
    value.get("name").and_then(Value::as_str).map_or_else(|| inner(value), str::to_owned)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", plain(word).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            question: "how fast is a step".to_owned(),
            scenario: "quickstart (shipped)".to_owned(),
            text: "# Which one is fastest? And why.\nkind = \"training\"\n[cluster]\ngpu = \"h100\"\nnodes = 4\n[model]\nname = \"m\"\n".to_owned(),
            set: vec!["cluster.nodes=8".to_owned(), "cost.a.b=[1, 2]".to_owned()],
            seed: Some(3),
            ..Origin::default()
        }
    }

    #[test]
    fn a_result_can_be_asked_for_again() {
        assert_eq!(
            command(&origin(), "run"),
            "skrull-sim run quickstart --set cluster.nodes=8 --set 'cost.a.b=[1, 2]' --seed 3"
        );
    }

    #[test]
    fn the_first_comment_is_the_question() {
        assert_eq!(question(&origin()), "Which one is fastest?");
        assert_eq!(question(&Origin { text: String::new(), ..origin() }), "how fast is a step");
    }

    #[test]
    fn what_is_laid_over_counts_and_the_model_comes_first() {
        let facts = facts(&origin());
        let facts: Vec<(&str, &str)> = facts.iter().map(|(name, line)| (name.as_str(), line.as_str())).collect();
        let expected = [("Model", "name = m"), ("Hardware", "gpu = h100, nodes = 8"), ("cost", "a = {b = 1; 2}")];
        assert_eq!(facts, expected);
    }
}
