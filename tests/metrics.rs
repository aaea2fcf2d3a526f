//! The table of metrics: what kinds compute stands in it, what stands in it is computed, and its page is written anew.

use std::collections::BTreeSet;
use std::path::Path;

use reports::metrics::{self, PLANNER, TABLE};

/// Where figures of results are computed.
const SOURCES: [&str; 6] = ["hw/src", "sim", "planner/src", "score/src", "scenario/src", "src/kinds"];

/// Names that are put together where they are computed, or have a name of their own, by what stands in the source of each.
const PARTS: [(&str, &str); 12] = [
    ("knows_future", "KNOWS_FUTURE"),
    ("sampling_per_epoch_s", "{cause}_per_epoch_s"),
    ("training_per_epoch_s", "{cause}_per_epoch_s"),
    ("busy_gemm_ratio", "busy_{class}_ratio"),
    ("busy_attention_ratio", "busy_{class}_ratio"),
    ("busy_memory_bound_ratio", "busy_{class}_ratio"),
    ("busy_host_ratio", "busy_{class}_ratio"),
    ("maybe_known_facts", "{}_facts"),
    ("weakly_known_facts", "{}_facts"),
    ("unknown_facts", "{}_facts"),
    ("reduction_per_epoch_s", "{cause}_per_epoch_s"),
    ("gather_per_epoch_s", "{cause}_per_epoch_s"),
];

/// Figures that stand in the table behind a beginning alone: `group_share_ratio`.
const BEHIND: [&str; 1] = ["share_ratio"];

/// What the sources compute, tests left out.
fn sources() -> String {
    let files = SOURCES.iter().flat_map(|folder| super::files(&super::root().join(folder), "rs"));
    let is_test = |path: &Path| path.to_string_lossy().contains("tests");
    let text = |path| super::product::product(&std::fs::read_to_string(path).expect("a source"));
    files.filter(|path| !is_test(path)).map(text).collect()
}

/// First texts of pairs and calls that are put among figures: `("key", value)`, `insert("key".to_owned(), value)`.
fn keyed(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices("(\"") {
        let Some((key, rest)) = source[at + 2..].split_once('"') else { continue };
        let is_first = rest.starts_with(", ") || rest.starts_with(".to_owned(), ");
        let is_key =
            key.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_.".contains(letter));
        if is_first && is_key {
            found.insert(key.split('.').next().unwrap_or(key));
        }
    }
    found
}

#[test]
fn the_page_of_metrics_is_what_the_table_says() {
    let page = std::fs::read_to_string(super::root().join("docs/metrics.md")).expect("docs/metrics.md");
    assert!(page == metrics::page(), "`skrull-sim explain --metrics > docs/metrics.md` writes it anew");
}

#[test]
fn the_table_has_every_kind_and_nothing_else() {
    let mut kinds: BTreeSet<&str> = skrull_sim::kinds::KINDS.iter().map(|kind| kind.name).collect();
    kinds.insert(PLANNER);
    assert_eq!(TABLE.keys().map(String::as_str).collect::<BTreeSet<_>>(), kinds);
}

/// Files that hold figures of results alone have no other pairs of a text and a number.
#[test]
fn every_figure_in_the_source_of_a_kind_is_in_the_table() {
    let known: BTreeSet<&str> = TABLE.values().flat_map(|kind| kind.keys().map(String::as_str)).collect();
    let source = sources();
    let is_figure = |key: &&&str| metrics::has_unit(key) && !known.contains(**key) && !BEHIND.contains(*key);
    let mut missing: Vec<&str> = Vec::new();
    for part in source.split("BTreeMap<String, f64>").skip(1) {
        let body = part.split("\nfn ").next().unwrap_or(part);
        missing.extend(keyed(body).iter().filter(is_figure));
    }
    assert!(missing.is_empty(), "`reports/src/metrics.toml` lacks {missing:?}");
}

#[test]
fn every_row_of_the_table_is_computed_somewhere() {
    let source = sources();
    let parts = |name: &str| PARTS.iter().find(|(whole, _)| *whole == name).map(|(_, parts)| *parts);
    for (kind, metrics) in &*TABLE {
        for name in metrics.keys() {
            let written = parts(name).map_or_else(|| format!("\"{}", name.trim_end_matches('*')), str::to_owned);
            assert!(source.contains(&written), "{kind}: nobody computes `{name}`");
        }
    }
}

/// `explain METRIC` shows one meaning alone, where nothing stands before it.
#[test]
fn every_meaning_stands_alone() {
    let leans = ["The same", "Those ", "That ", "Their ", "They ", "It "];
    for (kind, metrics) in &*TABLE {
        for (name, meaning) in metrics {
            let leaning = leans.iter().find(|word| meaning.starts_with(**word));
            assert!(leaning.is_none() && meaning.ends_with('.'), "{kind}: `{name}`: {meaning}");
        }
    }
}
