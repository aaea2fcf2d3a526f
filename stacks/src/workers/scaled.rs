//! Objects of Kubernetes that change how many servers run: a scenario's replicas stay as many as the file starts, and a warning says so.

use input::diagnostic::{Code, Finding};

use super::manifests::documents;
use super::started::{is_of_manifests, move_by};
use crate::yaml::{self, Entry};

/// Kinds of such objects, their keys for the fewest and the most, and the fewest where nothing is said.
const KINDS: [(&str, [&str; 2], &str); 3] = [
    ("HorizontalPodAutoscaler", ["minReplicas", "maxReplicas"], "1"),
    ("ScaledObject", ["minReplicaCount", "maxReplicaCount"], "0"),
    ("PodAutoscaler", ["minReplicas", "maxReplicas"], "1"),
];

/// A warning for each of them.
pub(super) fn findings(text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut start = 0;
    for document in if is_of_manifests(text) { documents(text) } else { Vec::new() } {
        let entries = yaml::unfolded(document).unwrap_or_default();
        found.extend(finding(&entries).map(|mut finding| {
            finding.at.iter_mut().for_each(|at| move_by(at, start));
            finding
        }));
        start += document.len();
    }
    found
}

fn finding(entries: &[Entry]) -> Option<Finding> {
    let kind = entries.iter().find(|entry| entry.path == ["kind"])?;
    let (name, [least, most], usual) = KINDS.iter().find(|(name, ..)| kind.value == *name)?;
    let value = |key: &str| {
        let found =
            entries.iter().find(|entry| entry.path.first().is_some_and(|first| first == "spec") && entry.key() == key);
        found.map(|entry| entry.value.clone())
    };
    let target = entries.iter().find(|entry| entry.path == ["spec", "scaleTargetRef", "name"]);
    let target = target.map_or_else(String::new, |entry| format!(" of `{}`", entry.value));
    let (least, most) =
        (value(least).unwrap_or_else(|| (*usual).to_owned()), value(most).unwrap_or_else(|| "any number".to_owned()));
    let metric = entries.iter().find(|entry| {
        ["metricName", "query"].contains(&entry.key())
            || entry.path.ends_with(&["metric".to_owned(), "name".to_owned()])
    });
    let metric = metric.map_or_else(String::new, |entry| format!(" by `{}`", entry.value));
    let what = format!(
        "`{name}` is not modelled: replicas{target} go from {least} to {most}{metric}, and stay as many as the file starts here"
    );
    let help = "give the group `scaling = { rule = \"concurrency\", target = …, min = …, start_up_s = … }` and the most as its `replicas`";
    Some(Finding::warning(Code::NotModelled, Some(kind.at.clone()), what).help(help))
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on};
    use input::diagnostic::Code;

    #[test]
    fn replicas_that_follow_the_load_are_told() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  template:\n    spec:\n      containers:\n      - name: engine\n        \
                    image: vllm/vllm-openai:v0.11.0\n        args: [\"--model\", \"llama-3-8b\"]\n---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                    metadata:\n  name: a\nspec:\n  scaleTargetRef:\n    apiVersion: apps/v1\n    kind: Deployment\n    name: a\n  minReplicas: 2\n  maxReplicas: 8\n  \
                    metrics:\n  - type: Pods\n    pods:\n      metric:\n        name: vllm:num_requests_waiting\n      target:\n        type: AverageValue\n        averageValue: \"5\"\n";
        let found = import_text(text, &on("h100-sxm")).findings;
        let told = found.iter().find(|one| one.code == Code::NotModelled).unwrap_or_else(|| panic!("{found:?}"));
        for part in ["`a` go from 2 to 8", "vllm:num_requests_waiting"] {
            assert!(told.what.contains(part), "{part} in {}", told.what);
        }
        assert!(text[told.at.clone().expect("a place")].contains("HorizontalPodAutoscaler"));
    }
}
