//! The page of all keys: made from what the readers ask for, every key with its meaning.

use std::collections::BTreeSet;

use skrull_sim::commands::keys;

/// How readers ask for a key by its name: the words before it.
const ASKS: [&str; 22] = [
    ".count(",
    ".number(",
    ".text(",
    ".flag(",
    ".word(",
    ".one_of(",
    ".small(",
    ".size(",
    ".some_number(",
    ".some_count(",
    ".needed(",
    ".numbers(",
    ".some_numbers(",
    ".take(",
    ".table(",
    ".each_table(",
    ".known(",
    ".named(",
    "(section,",
    "(&mut section,",
    "(table,",
    "(&mut table,",
];

/// Beginnings of keys, and words of messages, that stand where a key would.
const NO_KEYS: [&str; 3] = ["operators", "sequence", "tasks"];

/// Keys that stand as texts in a reader's source, behind the words that ask for one.
fn asked_in(source: &str) -> BTreeSet<String> {
    let source = super::product::product(source);
    let mut found = BTreeSet::new();
    for ask in ASKS {
        for (at, _) in source.match_indices(ask) {
            let Some(text) = source[at + ask.len()..].trim_start().strip_prefix('"') else { continue };
            let key = text.split('"').next().unwrap_or_default();
            if !key.is_empty()
                && !NO_KEYS.contains(&key)
                && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
            {
                found.insert(key.to_owned());
            }
        }
    }
    found
}

/// The page is made by watching readers, and a reader may ask for a key where no scenario leads it. Their source has every key.
#[test]
fn every_key_in_the_source_of_a_reader_is_on_the_page() {
    let page = keys().page();
    let mut missing = BTreeSet::new();
    for path in super::files(&super::root().join("scenario/src"), "rs") {
        let source = std::fs::read_to_string(&path).expect("a source");
        let asked = asked_in(&source).into_iter().filter(|key| !page.contains(&format!("| `{key}` |")));
        missing.extend(asked.map(|key| format!("{key} of {}", path.display())));
    }
    assert_eq!(missing, BTreeSet::new(), "a scenario, right or wrong, that has the key brings it onto the page");
}

/// Policies of training say by their card which parameters they take.
#[test]
fn every_parameter_of_a_policy_is_on_the_page() {
    let page = keys().page();
    for policy in planner::train::policies::POLICIES {
        let section = page.split(&format!("## `policies.{}`", policy.card().name)).nth(1).unwrap_or_default();
        let section = section.split("## ").next().unwrap_or_default();
        for parameter in policy.card().parameters {
            assert!(
                section.contains(&format!("| `{}` |", parameter.name)),
                "{} of {}",
                parameter.name,
                policy.card().name
            );
        }
    }
}

#[test]
fn every_key_has_a_meaning_and_every_meaning_a_key() {
    assert_eq!(keys().gaps(), Vec::<String>::new());
}

#[test]
fn the_page_of_keys_is_the_one_that_the_program_writes() {
    let path = super::root().join("docs/keys.md");
    let page = std::fs::read_to_string(path).expect("the page");
    assert!(page == keys().page(), "docs/keys.md is stale: write it with `skrull-sim explain --keys > docs/keys.md`");
}
