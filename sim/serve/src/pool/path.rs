//! How a request gets its path through a pool: the seam, and a file per way to choose.

pub mod flow;
pub mod random;
pub mod swarm;

pub use flow::Flow;
pub use random::Random;
pub use swarm::Swarm;

/// Ways that are left where only some hops may be taken.
fn left(all: &[Vec<usize>], usable: &[bool]) -> Vec<Vec<usize>> {
    all.iter().map(|ways| ways.iter().copied().filter(|&hop| usable[hop]).collect()).collect()
}

/// A path from the coordinator over all layers and back, where each end has ways, each hop leads to a node or back, and one way is chosen at a time.
fn walk(
    ways: &[Vec<usize>],
    to: &[Option<usize>],
    mut choose: impl FnMut(&[usize]) -> Option<usize>,
) -> Option<Vec<usize>> {
    let mut path = Vec::new();
    // The coordinator is behind the last node.
    let mut at = ways.len() - 1;
    loop {
        let hop = choose(&ways[at])?;
        path.push(hop);
        match to[hop] {
            Some(node) => at = node,
            None => return Some(path),
        }
    }
}

/// Chooses paths.
pub trait Paths {
    /// Hops from the coordinator over all layers and back, for a prompt of so many tokens; `None` while there is none.
    fn path(&mut self, prompt: u32) -> Option<Vec<usize>>;

    /// From now on new paths take only some hops: stations come and go.
    fn limit_to(&mut self, usable: &[bool]);

    /// A generated token goes along a path again.
    fn again(&mut self, _path: &[usize]) {}

    /// A request needed so many seconds for a hop and the node at its end.
    fn crossed(&mut self, _hop: usize, _seconds: f64) {}

    /// A request with such a prompt has ended and leaves its path.
    fn left(&mut self, _path: &[usize], _prompt: u32) {}

    /// Share of the fullest layer's cache that requests are expected to need.
    fn filled_ratio(&self) -> f64 {
        0.0
    }
}
