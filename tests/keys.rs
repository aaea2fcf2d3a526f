//! The page of all keys: made from what the readers ask for, every key with its meaning.

use skrull_sim::commands::keys;

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
