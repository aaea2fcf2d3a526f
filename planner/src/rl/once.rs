//! Values that are made once for each key, however many ask for them, on however many threads.
//!
//! Who asks for a value that another one makes waits for it. So a value whose making spreads over threads is to be made before many ask: a thread that waits
//! inside its own work would never end.

use std::sync::OnceLock;

/// Values by their keys.
#[derive(Debug)]
pub struct Once<K, V> {
    values: Vec<(K, OnceLock<V>)>,
}

impl<K: PartialEq, V> Once<K, V> {
    /// Nothing made yet, for these keys; equal ones are one.
    pub fn of(keys: impl IntoIterator<Item = K>) -> Self {
        let mut values: Vec<(K, OnceLock<V>)> = Vec::new();
        for key in keys {
            if !values.iter().any(|(known, _)| *known == key) {
                values.push((key, OnceLock::new()));
            }
        }
        Self { values }
    }

    /// The value of a key, made by the first who asks.
    ///
    /// # Panics
    /// When the key is none of those.
    pub fn get(&self, key: &K, make: impl FnOnce() -> V) -> &V {
        let found = self.values.iter().find(|(known, _)| known == key);
        found.expect("one of the keys").1.get_or_init(make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_for_each_key() {
        let once = Once::of(["a", "b", "a"]);
        let mut n_made = 0;
        let mut ask = |key| {
            *once.get(&key, || {
                n_made += 1;
                n_made
            })
        };
        assert_eq!(["b", "a", "b", "b", "a"].map(&mut ask), [1, 2, 1, 1, 2]);
    }
}
