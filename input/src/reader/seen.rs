//! Which keys readers ask for: what the page of all keys is made of. Nothing is noted unless somebody watches.

use std::cell::RefCell;

/// Type of a key whose value a reader looks at before it asks for it.
pub const EITHER: &str = "one of several";
/// Type of a note that says which names a text may be.
pub const NAME: &str = "name";
/// End of the path of a section that takes keys which it does not know beforehand.
pub const OTHERS: &str = "*";

/// What a key may be, as a reader asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Key with the path of its section; list entries have no numbers.
    pub path: String,
    /// `whole number`, `number`, `text`, `true or false`, `word`, or `value`, `list` and `table` where a reader looks closer.
    pub what: &'static str,
    /// What it is without the key; empty where there is none.
    pub default: String,
    /// Range or words.
    pub allowed: String,
    /// What it means, where whoever asks has the words; otherwise `keys.toml` has them.
    pub about: &'static str,
}

thread_local! {
    static SEEN: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// Runs something and returns the keys that readers of this thread asked for meanwhile.
pub fn watch<T>(run: impl FnOnce() -> T) -> (T, Vec<Seen>) {
    SEEN.set(Some(Vec::new()));
    let found = run();
    (found, SEEN.take().unwrap_or_default())
}

/// Notes that a key was asked for; `seen` is made only while somebody watches.
pub(super) fn note(seen: impl FnOnce() -> Seen) {
    SEEN.with_borrow_mut(|all| {
        if let Some(all) = all {
            all.push(seen());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_noted_only_while_somebody_watches() {
        let key = |path: &str| Seen { path: path.to_owned(), what: "text", ..Seen::default() };
        note(|| key("before"));
        let ((), seen) = watch(|| note(|| key("meanwhile")));
        note(|| key("after"));
        assert_eq!(seen, [key("meanwhile")]);
    }
}
