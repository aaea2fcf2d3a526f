//! What threads of the host take to sample, gather, convert and extract: reads of memory and items at hand, or what was measured of a kernel.
//!
//! A `Job` is an amount of work of one kernel. Its base is the same wherever it comes from: counts of a graph, of degrees, or of a run under
//! measurement. Where a profile has the kernel, its surface corrects the base; else the scenario's times of a read and an item stand.
//! Seconds are those of one thread.

use std::collections::BTreeMap;

use engine::cost::host::{HostKernel, ITEM_S, READ_S};

use crate::cache::LINE_BYTES;
use crate::subgraph::Work;

/// Steps of a binary search in a row of this length, at least one.
pub fn log2(length: f64) -> f64 {
    libm::log2(length.max(2.0))
}

/// A kernel of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernel {
    /// Rows of the vertices of a frontier, read for the neighbours that are drawn of them (`sample.rs`).
    SampleRows,
    /// Marks of those neighbours, which say whether the batch has them (`marks.rs`).
    SampleMarks,
    /// Rows of features copied into a batch.
    Gather,
    /// Events to T-CSR.
    Convert,
    /// Neighbours before a moment.
    Past,
    /// Enclosing subgraphs of pairs (`subgraph.rs`).
    Extract,
}

impl Kernel {
    /// Every kernel.
    pub const ALL: [Self; 6] =
        [Self::SampleRows, Self::SampleMarks, Self::Gather, Self::Convert, Self::Past, Self::Extract];

    /// Name in profiles.
    pub const fn name(self) -> &'static str {
        engine::cost::host::KERNELS[self as usize]
    }

    /// What the axes of its surface are.
    pub const fn axes(self) -> [&'static str; 2] {
        match self {
            Self::SampleRows => ["fan-out", "bytes between visits of a row"],
            Self::SampleMarks => ["fan-out", "bytes between touches of a mark"],
            Self::Gather => ["bytes of a row", "bytes between visits of a row"],
            Self::Convert => ["slots of a vertex", "bytes of slots"],
            Self::Past => ["neighbours", "bytes between visits of a row"],
            Self::Extract => ["vertices of a subgraph", "bytes between visits of a row"],
        }
    }
}

/// An amount of work of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Kernel.
    pub kernel: Kernel,
    /// Reads of memory that the base counts.
    pub reads: f64,
    /// Items at hand that it counts.
    pub items: f64,
    /// Place on the kernel's axes.
    pub point: [f64; 2],
}

impl Job {
    /// So many rows are read of which `fan_out` neighbours are drawn, where so many bytes lie between two visits of a row; `fan_out` of 1 stands
    /// for rows of which every neighbour is taken.
    pub fn rows(fan_out: u32, rows: f64, apart: f64) -> Self {
        // A row's offset and its line.
        Self { kernel: Kernel::SampleRows, reads: 2.0 * rows, items: 0.0, point: [f64::from(fan_out), apart] }
    }

    /// So many neighbours are drawn and marked, where so many bytes lie between two touches of a mark.
    pub fn marks(fan_out: u32, picks: f64, apart: f64) -> Self {
        // A pick's mark. Distinct picks of k compare each with half of the others, some four at a time.
        let items = picks * (1.0 + f64::from(fan_out) / 8.0);
        Self { kernel: Kernel::SampleMarks, reads: picks, items, point: [f64::from(fan_out), apart] }
    }

    /// So many rows of `row_bytes` are copied, where so many bytes lie between two visits of a row.
    pub fn gather(rows: f64, row_bytes: f64, apart: f64) -> Self {
        let lines = libm::ceil(row_bytes / hw::real(LINE_BYTES));
        Self { kernel: Kernel::Gather, reads: rows, items: rows * lines, point: [row_bytes, apart.max(row_bytes)] }
    }

    /// So many pairs with this mean work are extracted, where so many bytes lie between two visits of a row.
    pub fn extract(pairs: f64, work: &Work, apart: f64) -> Self {
        let point = [work.n_vertices.max(1.0), apart.max(1.0)];
        Self { kernel: Kernel::Extract, reads: pairs * work.reads, items: pairs * work.probes, point }
    }

    /// A conversion of rows of these lengths, each with how many have it: count and scatter read memory for every slot, the scan handles every
    /// vertex, the sort d log2 d items of a row.
    pub fn convert(rows: &[(f64, f64)]) -> Self {
        let (mut n_vertices, mut n_slots, mut sorting) = (0.0, 0.0, 0.0);
        for &(length, count) in rows {
            n_vertices += count;
            n_slots += length * count;
            sorting += count * length * log2(length);
        }
        let point = [(n_slots / n_vertices.max(1.0)).max(1e-3), 24.0 * n_slots.max(1.0)];
        Self { kernel: Kernel::Convert, reads: 2.0 * n_slots, items: n_vertices + sorting, point }
    }

    /// So many queries of rows with this mean binary logarithm of the length, which find so many neighbours each. Binary search misses at every
    /// halving; a neighbour is three numbers of adjacent slots. So many bytes lie between two visits of a row.
    pub fn past(queries: f64, log2_length: f64, found: f64, apart: f64) -> Self {
        let items = queries * 3.0 * found;
        let point = [found.max(1.0), apart.max(1.0)];
        Self { kernel: Kernel::Past, reads: queries * log2_length, items, point }
    }

    /// Seconds of the base that measurements are compared with.
    pub fn base_s(&self) -> f64 {
        self.reads * READ_S + self.items * ITEM_S
    }
}

/// What a thread of the host takes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCosts {
    /// A read of memory that no cache holds, seconds; assumed.
    pub read_s: f64,
    /// Handling an item that is at hand, seconds; assumed.
    pub item_s: f64,
    /// Kernels that were measured, by their names in profiles.
    pub measured: BTreeMap<String, HostKernel>,
}

impl HostCosts {
    /// From nanoseconds of a read and of an item.
    pub fn of_ns(read_ns: f64, item_ns: f64) -> Self {
        Self { read_s: read_ns * 1e-9, item_s: item_ns * 1e-9, measured: BTreeMap::new() }
    }

    /// The base's own times.
    pub const fn assumed() -> Self {
        Self { read_s: READ_S, item_s: ITEM_S, measured: BTreeMap::new() }
    }

    /// The measurement of a kernel; `None` where its times are assumed.
    pub fn of(&self, kernel: Kernel) -> Option<&HostKernel> {
        self.measured.get(kernel.name())
    }

    /// Seconds of a job.
    pub fn seconds(&self, job: &Job) -> f64 {
        let [read_s, item_s] = self.unit_s(job);
        job.reads * read_s + job.items * item_s
    }

    /// Seconds of a read and of an item in a job.
    pub fn unit_s(&self, job: &Job) -> [f64; 2] {
        match self.of(job.kernel) {
            Some(kernel) => [READ_S, ITEM_S].map(|base| base * kernel.surface.factor(&job.point).0),
            None => [self.read_s, self.item_s],
        }
    }

    /// Ends of the interval of a job's seconds: the residuals of the fit where the kernel was measured.
    pub fn ends(&self, job: &Job) -> [f64; 2] {
        let seconds = self.seconds(job);
        match self.of(job.kernel) {
            Some(kernel) => [seconds * kernel.residuals.low, seconds * kernel.residuals.high],
            None => [seconds; 2],
        }
    }

    /// The axis on which a job lies outside of what was measured, if it does.
    pub fn outside(&self, job: &Job) -> Option<&'static str> {
        let axis = self.of(job.kernel)?.surface.factor(&job.point).1?;
        Some(job.kernel.axes()[axis])
    }

    /// Where the times of some kernels come from, a sentence each.
    pub fn sources(&self, kernels: &[Kernel]) -> Vec<String> {
        let words = |kernel: &Kernel| match self.of(*kernel) {
            Some(found) => format!(
                "`{}` was measured on {} thread{}: median error {:.1} % on unseen sizes",
                kernel.name(),
                found.threads,
                if found.threads == 1 { "" } else { "s" },
                100.0 * found.residuals.median_error
            ),
            None => format!(
                "`{}` is assumed: {:.1} ns for a read of memory, {:.1} ns for an item",
                kernel.name(),
                self.read_s * 1e9,
                self.item_s * 1e9
            ),
        };
        kernels.iter().map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cost::residuals::Residuals;
    use engine::cost::surface::{Axis, Surface};

    fn measured(kernel: Kernel, factor: f64) -> HostCosts {
        let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.05, p90_error: 0.1, low: 0.9, high: 1.2 };
        let axis = |name: &str| Axis::new(name, vec![100.0]);
        let surface = Surface { axes: vec![axis("a"), axis("b")], values: vec![libm::log(factor)] };
        let mut costs = HostCosts::of_ns(100.0, 10.0);
        costs.measured.insert(kernel.name().to_owned(), HostKernel { residuals, threads: 1, surface });
        costs
    }

    #[test]
    fn a_measured_kernel_stands_for_what_is_assumed_and_for_nothing_else() {
        let costs = measured(Kernel::Gather, 3.0);
        // 10 rows of 2 lines: 10 reads and 20 items, three times the base of 25 and 2 ns.
        let gather = Job::gather(10.0, 100.0, 1.0);
        assert!((costs.seconds(&gather) - 3.0 * (10.0 * 25e-9 + 20.0 * 2e-9)).abs() < 1e-15);
        assert!((costs.ends(&gather)[1] / costs.seconds(&gather) - 1.2).abs() < 1e-12);
        let past = Job::past(10.0, 4.0, 5.0, 1.0);
        assert!((costs.seconds(&past) - (40.0 * 100e-9 + 150.0 * 10e-9)).abs() < 1e-15);
        assert_eq!(costs.ends(&past), [costs.seconds(&past); 2]);
    }

    #[test]
    fn a_job_outside_of_what_was_measured_says_on_which_axis() {
        let costs = measured(Kernel::Gather, 1.0);
        assert_eq!(costs.outside(&Job::gather(1.0, 100.0, 1.0)), None, "an axis of one knot holds everything");
        assert_eq!(costs.outside(&Job::past(1.0, 1.0, 1.0, 1.0)), None, "what is assumed was measured nowhere");
        assert!(costs.sources(&[Kernel::Gather])[0].contains("measured on 1 thread:"));
        assert!(costs.sources(&[Kernel::Past])[0].contains("assumed: 100.0 ns"));
    }
}
