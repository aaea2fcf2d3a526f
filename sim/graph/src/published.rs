//! Nine graphs that papers train on: vertices, edges, width of a feature, training vertices. Counts as the papers and OGB give them.
//!
//! The first six are of Legion's table (arXiv:2305.16588 and its artefact); the last three are link-prediction sets of OGB (arXiv:2005.00687),
//! which SEG uses (arXiv:2201.05293), where training items are pairs.

/// A graph by its counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Name in scenarios.
    pub name: &'static str,
    /// Short name of the paper.
    pub short: &'static str,
    /// Vertices.
    pub n_vertices: u64,
    /// Edges as published.
    pub n_edges: u64,
    /// Numbers of a feature.
    pub width: u64,
    /// Training vertices, or pairs.
    pub n_train: u64,
    /// Adjacency slots of an edge: 1 where edges are counted as rows hold them, 2 where each is counted once and read from both ends.
    pub slots_per_edge: u64,
    /// Where the counts come from.
    pub source: &'static str,
}

const LEGION: &str = "Legion, USENIX ATC 2023, table of graphs and artefact";
const OGB: &str = "OGB, arXiv:2005.00687, link prediction; training pairs rounded";

/// Every published graph.
pub const SHAPES: [Shape; 9] = [
    shape("products", "PR", [2_449_029, 123_718_280, 100, 196_615], LEGION),
    shape("papers100m", "PA", [111_059_956, 1_615_685_872, 128, 11_105_995], LEGION),
    shape("friendster", "CO", [65_608_366, 1_806_067_135, 256, 6_560_836], LEGION),
    shape("uk-union", "UKS", [133_633_040, 5_507_679_822, 256, 13_363_304], LEGION),
    shape("uk-2014", "UKL", [787_801_471, 47_284_178_505, 128, 78_780_147], LEGION),
    shape("clueweb", "CL", [955_207_488, 42_574_107_469, 128, 95_520_748], LEGION),
    shape("ppa", "ppa", [576_289, 30_326_273, 58, 21_231_931], OGB),
    shape("collab", "collab", [235_868, 1_285_465, 128, 1_179_052], OGB),
    shape("citation2", "citation2", [2_927_963, 30_561_187, 128, 30_387_995], OGB),
];

const fn shape(name: &'static str, short: &'static str, counts: [u64; 4], source: &'static str) -> Shape {
    let [n_vertices, n_edges, width, n_train] = counts;
    let slots_per_edge = if n_train > n_vertices { 2 } else { 1 };
    Shape { name, short, n_vertices, n_edges, width, n_train, slots_per_edge, source }
}

impl Shape {
    /// One by name.
    pub fn named(name: &str) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// Bytes of all features, 4 for each number.
    pub const fn feature_bytes(&self) -> u64 {
        4 * self.width * self.n_vertices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_columns_follow_from_vertices_edges_and_width() {
        // Columns of Legion's table in GB, rounded there: features PR 0.96, PA 56, UKS 136, UKL 400; by formula as asserted.
        let gb = |name: &str| hw::real(Shape::named(name).expect("listed").feature_bytes()) / 1e9;
        for (name, expected) in [("products", 0.98), ("papers100m", 56.9), ("uk-union", 136.8), ("uk-2014", 403.4)] {
            assert!((gb(name) - expected).abs() < 0.05 * expected.min(1.0), "{name}: {}", gb(name));
        }
        // Topology: PA 6.4 and UKL 189 GB are 4 bytes an edge.
        for (name, expected) in [("papers100m", 6.46), ("uk-2014", 189.1)] {
            let neighbours = 4e-9 * hw::real(Shape::named(name).expect("listed").n_edges);
            assert!((neighbours - expected).abs() < 0.1, "{name}: {neighbours}");
        }
    }

    #[test]
    fn mean_degrees_are_those_of_the_published_counts() {
        for (name, expected) in [("ppa", 105.0), ("citation2", 21.0), ("collab", 11.0)] {
            let shape = Shape::named(name).expect("listed");
            let mean = 2.0 * hw::real(shape.n_edges) / hw::real(shape.n_vertices);
            assert!((mean - expected).abs() < 0.5, "{name}: {mean}");
        }
    }
}
