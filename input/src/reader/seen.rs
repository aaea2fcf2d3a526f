//! Which keys readers ask for: what the page of all keys is made of. Nothing is noted unless somebody watches.

use std::cell::{Cell, RefCell};

/// Type of a key whose value a reader looks at before it asks for it.
pub const EITHER: &str = "one of several";
/// Type of a key that may have a list of its values.
pub const LISTED: &str = "one or a list";
/// Type of a note that says which names a text may be.
pub const NAME: &str = "name";
/// Stands among names where any path with a slash is a name as well.
pub const PATHS: &str = "*/*";
/// End of the path of a section that takes keys which it does not know beforehand.
pub const OTHERS: &str = "*";

/// What a key may be, as a reader asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Section inside of which it stands with sections of its own; empty where it stands in the file.
    pub inside: &'static str,
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

impl Seen {
    /// Path from the file on.
    pub fn in_file(&self) -> String {
        if self.inside.is_empty() { self.path.clone() } else { format!("{}.{}", self.inside, self.path) }
    }
}

thread_local! {
    static INSIDE: Cell<&'static str> = const { Cell::new("") };
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
            all.push(Seen { inside: INSIDE.get(), ..seen() });
        }
    });
}

/// Runs something whose keys stand inside of a section.
pub(super) fn inside<T>(section: &'static str, run: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(section);
    let found = run();
    INSIDE.set(before);
    found
}

/// A default as it is listed. What stands for a key that is left out is none where nobody may write it.
pub(super) fn listed<T: PartialOrd + ToString>(default: &T, allowed: &std::ops::RangeInclusive<T>) -> String {
    if allowed.contains(default) { default.to_string() } else { String::new() }
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

    #[test]
    fn keys_inside_of_a_section_are_known_by_it() {
        let key = || Seen { path: "parallel.tp".to_owned(), ..Seen::default() };
        let ((), seen) = watch(|| {
            inside("train", || note(key));
            note(key);
        });
        let paths: Vec<String> = seen.iter().map(Seen::in_file).collect();
        assert_eq!(paths, ["train.parallel.tp", "parallel.tp"]);
    }
}
