//! The key of a point: a hash of everything that its row depends on.
//!
//! That is the version, the scenario's text, what is laid over it, the seed, and the content of every file that either of them names.
//! FNV-1a with 128 bits: nobody attacks it, and a million points meet by chance once in 10^26 sweeps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value;

use crate::sample::Point;

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// A key; in files it is written with 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u128);

impl Key {
    const EMPTY: Self = Self(OFFSET);

    /// With more bytes; each part is closed by its length, so that parts do not run into each other.
    fn with(self, part: &[u8]) -> Self {
        let length = (part.len() as u64).to_le_bytes();
        let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        Self(part.iter().chain(&length).fold(self.0, step))
    }

    /// The part of `n` that it falls into, from 0.
    pub fn shard(self, n: u32) -> u32 {
        // The high half is mixed best.
        u32::try_from((self.0 >> 64) % u128::from(n.max(1))).expect("below n")
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Makes keys of points of one scenario; each file is read once.
pub struct Keys {
    base: Key,
    folder: PathBuf,
    files: Mutex<BTreeMap<String, Option<Key>>>,
}

impl Keys {
    /// Keys of a scenario's points: the version of the program, the scenario's text, its folder, and what is laid over every point.
    pub fn new(version: &str, text: &str, folder: &Path, set: &[String]) -> Self {
        let base = set
            .iter()
            .fold(Key::EMPTY.with(version.as_bytes()).with(text.as_bytes()), |key, set| key.with(set.as_bytes()));
        let mut keys = Self { base, folder: folder.to_path_buf(), files: Mutex::default() };
        let mut named = Vec::new();
        if let Ok(value) = toml_span::parse(text) {
            texts(&crate::axis::json(&value), &mut named);
        }
        named.extend(set.iter().filter_map(|set| Some(set.split_once('=')?.1.trim_matches('"').to_owned())));
        keys.base =
            named.iter().filter_map(|name| keys.file(name)).fold(base, |key, file| key.with(&file.0.to_le_bytes()));
        keys
    }

    /// The key of a point.
    pub fn of(&self, point: &Point) -> Key {
        let mut key = self.base;
        for (name, value) in &point.set {
            key = key.with(name.as_bytes()).with(value.to_string().as_bytes());
            let file = value.as_str().and_then(|text| self.file(text));
            key = file.map_or(key, |file| key.with(&file.0.to_le_bytes()));
        }
        key.with(&point.seed.map_or_else(Vec::new, |seed| seed.to_le_bytes().to_vec()))
    }

    /// A hash of the content of a file, where a text is the name of one.
    fn file(&self, name: &str) -> Option<Key> {
        let mut files = self.files.lock().expect("nobody panics with it");
        let read = || std::fs::read(self.folder.join(name)).ok().map(|bytes| Key::EMPTY.with(&bytes));
        // A folder, an empty name and a long text are no files; reading says so.
        *files.entry(name.to_owned()).or_insert_with(|| if name.is_empty() { None } else { read() })
    }
}

/// Every text in a value.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(table) => table.values().for_each(|item| texts(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(n: u32) -> Point {
        Point { set: vec![("a.b".to_owned(), Value::from(n))], seed: None }
    }

    #[test]
    fn a_hash_is_the_published_one() {
        // FNV-1a, 128 bits, of the letter `a` (Fowler, Noll, Vo: test vectors).
        assert_eq!((OFFSET ^ u128::from(b'a')).wrapping_mul(PRIME), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn everything_that_a_row_depends_on_changes_its_key() {
        let folder = std::env::temp_dir().join(format!("skrull-sim-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("lengths.txt"), "1\n").expect("a file");
        let text = "[workload]\nfile = \"lengths.txt\"\n";
        let of =
            |version: &str, text: &str, set: &[String], n: u32| Keys::new(version, text, &folder, set).of(&point(n));
        let first = of("1", text, &[], 1);
        assert_eq!(first, of("1", text, &[], 1));
        let others = [
            of("2", text, &[], 1),
            of("1", "a = 1", &[], 1),
            of("1", text, &["a.c=1".to_owned()], 1),
            of("1", text, &[], 2),
        ];
        std::fs::write(folder.join("lengths.txt"), "2\n").expect("a file");
        let changed = of("1", text, &[], 1);
        assert!(others.iter().chain([&changed]).all(|other| *other != first));
        std::fs::remove_dir_all(&folder).expect("it was made above");
    }

    #[test]
    fn shards_are_about_equal() {
        let keys = Keys::new("1", "", Path::new(""), &[]);
        let mut n = [0; 4];
        (0..4000).for_each(|index| n[keys.of(&point(index)).shard(4) as usize] += 1);
        // Binomial with n = 4000, p = 1/4: standard deviation 27, so 150 is more than five of them.
        assert!(n.iter().all(|n| (850..=1150).contains(n)), "{n:?}");
    }
}
