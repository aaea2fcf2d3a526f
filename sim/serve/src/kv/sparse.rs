//! A table by dense numbers of which few have an entry: memory grows with the entries, not with the numbers.
//!
//! Numbers lie in pages. A page is made with its first entry and used again when its last one is gone. Chains of prefixes have numbers that
//! follow each other, so pages are full or absent. Looking up costs one step more than in a plain list.

/// Numbers of a page.
const PAGE: usize = 64;
/// Marks a page that is not there.
const NO_PAGE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Page<T> {
    entries: [Option<T>; PAGE],
    n: usize,
}

/// Entries by number.
#[derive(Clone, Debug)]
pub(super) struct Sparse<T> {
    /// Position of every page in `pages`, up to the last one that ever was.
    places: Vec<u32>,
    pages: Vec<Page<T>>,
    /// Positions of pages without an entry.
    spare: Vec<u32>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { places: Vec::new(), pages: Vec::new(), spare: Vec::new() }
    }
}

impl<T: Copy> Sparse<T> {
    fn place(&self, id: u32) -> Option<usize> {
        let place = *self.places.get(id as usize / PAGE)?;
        (place != NO_PAGE).then_some(place as usize)
    }

    /// The entry of a number.
    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.pages[self.place(id)?].entries[id as usize % PAGE].as_ref()
    }

    /// The entry of a number, to be changed.
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let place = self.place(id)?;
        self.pages[place].entries[id as usize % PAGE].as_mut()
    }

    /// Gives a number an entry.
    pub(super) fn insert(&mut self, id: u32, entry: T) {
        let place = self.place(id).unwrap_or_else(|| self.new_page(id));
        let page = &mut self.pages[place];
        page.n += usize::from(page.entries[id as usize % PAGE].replace(entry).is_none());
    }

    fn new_page(&mut self, id: u32) -> usize {
        let at = id as usize / PAGE;
        if self.places.len() <= at {
            self.places.resize(at + 1, NO_PAGE);
        }
        let place = self.spare.pop().unwrap_or_else(|| {
            self.pages.push(Page { entries: [None; PAGE], n: 0 });
            u32::try_from(self.pages.len() - 1).expect("fewer pages than numbers")
        });
        self.places[at] = place;
        place as usize
    }

    /// Takes the entry of a number away.
    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let place = self.place(id)?;
        let page = &mut self.pages[place];
        let entry = page.entries[id as usize % PAGE].take()?;
        page.n -= 1;
        if page.n == 0 {
            self.places[id as usize / PAGE] = NO_PAGE;
            self.spare.push(u32::try_from(place).expect("a position of a page"));
        }
        Some(entry)
    }

    /// Takes all entries away.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// All entries, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.entries.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::random;
    use std::collections::BTreeMap;

    #[test]
    fn it_answers_as_an_ordinary_map() {
        let mut stream = random::stream(5, "sparse");
        let (mut sparse, mut map) = (Sparse::default(), BTreeMap::new());
        for step in 0..20_000_u64 {
            let id = u32::try_from(stream.below(3000)).expect("small");
            match stream.below(3) {
                0 => assert_eq!(sparse.remove(id), map.remove(&id)),
                1 => {
                    sparse.insert(id, step);
                    map.insert(id, step);
                }
                _ => {
                    if let (Some(one), Some(other)) = (sparse.get_mut(id), map.get_mut(&id)) {
                        (*one, *other) = (*one + 1, *other + 1);
                    }
                }
            }
            assert_eq!(sparse.get(id), map.get(&id));
        }
        let mut values: Vec<u64> = sparse.values().copied().collect();
        values.sort_unstable();
        let mut expected: Vec<u64> = map.values().copied().collect();
        expected.sort_unstable();
        assert_eq!(values, expected);
        sparse.clear();
        assert_eq!(sparse.values().count(), 0);
    }

    #[test]
    fn memory_follows_the_entries_and_not_the_numbers() {
        // A window of 1,000 numbers moves over ten million: no more pages than it touches at once.
        let mut sparse = Sparse::default();
        for id in 0..10_000_000 {
            sparse.insert(id, ());
            if id >= 1000 {
                assert_eq!(sparse.remove(id - 1000), Some(()));
            }
        }
        assert!(sparse.pages.len() <= 1000 / PAGE + 2, "{} pages", sparse.pages.len());
    }
}
