//! Datasheet roofline: the fallback where nothing was measured, and the base that fitted corrections multiply.
//!
//! Time = launch + max(operations / peak, bytes / bandwidth). A collective is a start-up plus its bytes over the slowest link
//! that each rank needs. The efficiencies below are stated assumptions, not measurements, and the interval is wide. Where somebody published what the largest
//! kernels of a card reach, that stands in the place of the assumption (`reached` in `hw/catalog/gpus.toml`).

use hw::{Bytes, Cluster, Flops, Format, GroupShape, Reached, Seconds, real};

use crate::cost::collective::{self, Network};
use crate::cost::{CostModel, Estimate, Source};
use crate::task::{Collective, CopyKind, Document, Op, Pass};

/// Start-up of a kernel on the device; the smallest times of the measured tables are 3 to 6 µs.
pub const KERNEL_START_S: f64 = 4e-6;
/// Share of the datasheet peak and bandwidth that large kernels reach; assumption.
const REACHED: f64 = 0.75;
/// Share of a link's bandwidth that a large collective reaches; NCCL's published bus bandwidths lie around it.
const LINK_REACHED: f64 = 0.75;
/// Ends of a datasheet estimate over what is expected.
pub const ENDS: [f64; 2] = [0.7, 1.6];
/// Attention backward over forward: 2.5 times the matrix work at the lower throughput that arXiv:2307.08691 and
/// arXiv:2407.08608 print for backward (about 0.86 of forward).
pub const ATTENTION_BACKWARD: f64 = 2.9;

/// Roofline of a cluster's GPU and links.
#[derive(Clone, Debug)]
pub struct Roofline {
    cluster: Cluster,
    network: Network,
    reached: Reached,
}

impl Roofline {
    /// Roofline of a cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let reached = hw::catalog::reached(&cluster.gpu.name);
        Self { cluster: cluster.clone(), network: Network::assumed(cluster), reached }
    }

    /// The same with what a network was measured to reach.
    pub fn with_network(self, network: Network) -> Self {
        Self { network, ..self }
    }

    /// The machine.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What the network reaches.
    pub const fn network(&self) -> Network {
        self.network
    }

    /// Base time of a GEMM at datasheet figures, start-up left out. An expert without rows is not read.
    pub fn gemm_base(&self, m: u64, n: u64, k: u64, format: Format) -> Seconds {
        let [products, traffic] = self.gemm_parts(m, n, k, format);
        products.max(traffic)
    }

    /// What its operations and its bytes take.
    fn gemm_parts(&self, m: u64, n: u64, k: u64, format: Format) -> [Seconds; 2] {
        if m == 0 {
            return [Seconds::ZERO; 2];
        }
        let flops = Flops::new(2.0 * real(m) * real(n) * real(k));
        let bytes = Bytes::from_f64(format.product_bytes(m, n, k));
        [flops / self.cluster.gpu.peak(format), bytes / self.cluster.gpu.memory_bandwidth]
    }

    /// Base time of forward attention over one document at datasheet figures.
    pub fn attention_base(&self, document: &Document, n_heads: u64, n_kv_heads: u64, head_dim: u64) -> Seconds {
        let [products, traffic] = self.attention_parts(document, n_heads, n_kv_heads, head_dim);
        products.max(traffic)
    }

    /// What its operations and its bytes take.
    fn attention_parts(&self, document: &Document, n_heads: u64, n_kv_heads: u64, head_dim: u64) -> [Seconds; 2] {
        let flops = Flops::new(4.0 * real(document.pairs) * real(n_heads) * real(head_dim));
        let elements = 2 * document.queries * n_heads * head_dim + 2 * document.keys * n_kv_heads * head_dim;
        [flops / self.cluster.gpu.peak(Format::Bf16), Bytes(2 * elements) / self.cluster.gpu.memory_bandwidth]
    }

    /// Such a kernel at the shares of peak and bandwidth that large ones reach.
    fn at_reach(&self, [products, traffic]: [Seconds; 2], format: Format) -> Seconds {
        (products * self.slowness(format)).max(traffic * (1.0 / self.reached.memory.unwrap_or(REACHED)))
    }

    /// How many times as long large products take as at the datasheet's peak.
    fn slowness(&self, format: Format) -> f64 {
        let reached = match format {
            Format::Fp32 => None,
            Format::Fp8 | Format::Fp8Block | Format::Mxfp8 | Format::Int8 | Format::Nvfp4 => self.reached.narrow,
            _ => self.reached.products,
        };
        1.0 / reached.unwrap_or(REACHED)
    }

    /// Time of an attention's forward matrix work at the datasheet peak.
    pub fn attention_flops(&self, op: &Op) -> Seconds {
        let Op::Attention { documents, n_heads, head_dim, .. } = op else { return Seconds::ZERO };
        let pairs: f64 = documents.iter().map(|document| real(document.pairs)).sum();
        Flops::new(4.0 * pairs * real(*n_heads) * real(*head_dim)) / self.cluster.gpu.peak(Format::Bf16)
    }

    /// Time of `bytes` of device memory traffic.
    pub fn traffic(&self, bytes: u64) -> Seconds {
        Bytes(bytes) / (self.cluster.gpu.memory_bandwidth * self.reached.memory.unwrap_or(REACHED))
    }

    /// Time of a collective from link bandwidths.
    pub fn collective(&self, kind: Collective, bytes: u64, shape: GroupShape) -> Seconds {
        collective::time(&self.cluster, &self.network, kind, bytes, shape).0
    }
}

/// A datasheet estimate with its wide interval.
pub fn datasheet(time: Seconds) -> Estimate {
    let [low, high] = ENDS;
    Estimate {
        time,
        low: time * low,
        high: time * high,
        source: Source::Datasheet,
        outside: Seconds::ZERO,
        dimension: None,
    }
}

impl CostModel for Roofline {
    fn elementary(&self, op: &Op) -> Estimate {
        crate::stop::pause();
        let start = Seconds::new(KERNEL_START_S);
        let gemm = |m, n, k, format| self.at_reach(self.gemm_parts(m, n, k, format), format);
        let time = match op {
            Op::Gemm { m, n, k, format } => start + gemm(*m, *n, *k, *format),
            Op::GroupedGemm { rows, n, k, format, .. } => start + rows.iter().map(|&m| gemm(m, *n, *k, *format)).sum(),
            Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass, .. } => {
                let factor = if *pass == Pass::Forward { 1.0 } else { ATTENTION_BACKWARD };
                let parts = documents.iter().map(|d| self.attention_parts(d, *n_heads, *n_kv_heads, *head_dim));
                start + parts.map(|parts| self.at_reach(parts, Format::Bf16)).sum::<Seconds>() * factor
            }
            Op::Elementwise { bytes } => start + self.traffic(*bytes),
            Op::Embedding { tokens, row_bytes } => start + self.traffic(2 * tokens * row_bytes),
            Op::Collective { kind, bytes, shape } => self.collective(*kind, *bytes, *shape),
            Op::Copy { kind: CopyKind::DeviceToDevice, bytes } => start + self.traffic(2 * bytes),
            Op::Copy { bytes, .. } => start + Bytes(*bytes) / (self.cluster.gpu.host_bandwidth * LINK_REACHED),
            Op::Host { .. } | Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => return self.estimate(op),
        };
        datasheet(time)
    }

    fn least(&self, op: &Op) -> Seconds {
        let reached = self.slowness(Format::Bf16);
        match op {
            Op::Elementwise { bytes } => self.traffic(*bytes),
            Op::Attention { pass: Pass::Backward, .. } => self.attention_flops(op) * (reached * ATTENTION_BACKWARD),
            Op::Attention { .. } => self.attention_flops(op) * reached,
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => {
                Flops::new(op.flops()) / self.cluster.gpu.peak(*format) * self.slowness(*format)
            }
            _ => Seconds::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::PassKind;

    fn roofline(n_nodes: u32) -> Roofline {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        Roofline::new(&hw::catalog::cluster(&gpu, n_nodes, 8))
    }

    #[test]
    fn a_large_gemm_runs_at_the_assumed_share_of_peak() {
        // 2 · 8192³ = 1.0995e12 operations at 0.75 · 989e12 per second: 1.4823 ms, plus the start-up.
        let op = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Bf16 };
        let found = roofline(1).estimate(&op).time.get();
        assert!((found - 1.4823e-3 - KERNEL_START_S).abs() < 1e-7, "{found}");
    }

    #[test]
    fn what_is_published_of_a_card_stands_in_the_place_of_the_assumption() {
        let of = |card: &str, op: &Op| {
            let gpu = hw::catalog::gpu(card).expect("listed");
            Roofline::new(&hw::catalog::cluster(&gpu, 1, 8)).estimate(op).time.get() - KERNEL_START_S
        };
        // TFLOP/s of products and GB/s of copies (hw/catalog/gpus.toml). Layers reach less than the best shapes: on MI300X as much less as on MI325X.
        let product = |m, n, k, format| Op::Gemm { m, n, k, format };
        for (card, format, n, published) in [
            ("mi300x", Format::Bf16, 4864, 708e12 * 616.0 / 831.0),
            ("mi300x", Format::Fp8, 3648, 1273e12 * 1143.0 / 1408.0),
            ("mi325x", Format::Bf16, 4864, 616e12),
            ("mi325x", Format::Fp8, 3648, 1143e12),
        ] {
            let op = product(4096, n, 32_896, format);
            let found = op.flops() / of(card, &op);
            assert!((found / published - 1.0).abs() < 0.015, "{card} {format:?}: {found:e}");
        }
        let op = product(8192, 8192, 8192, Format::Fp8);
        assert!((op.flops() / of("mi355x", &op) / 3130e12 - 1.0).abs() < 0.015);
        let copied = 2e9 / of("mi300x", &Op::Copy { kind: CopyKind::DeviceToDevice, bytes: 1_000_000_000 });
        assert!((copied / 4177e9 - 1.0).abs() < 0.015, "{copied:e}");
        // One row reads all weights once, at what copies reach, or at the assumption where no copy is published.
        let row = product(1, 8192, 8192, Format::Bf16);
        let bytes = Format::Bf16.product_bytes(1, 8192, 8192);
        for (card, bytes_per_s) in [("mi300x", 5300e9 * 0.79), ("mi325x", 6000e9 * REACHED)] {
            assert!((of(card, &row) * bytes_per_s / bytes - 1.0).abs() < 1e-9, "{card}");
        }
    }

    #[test]
    fn experts_without_rows_take_no_time() {
        let of = |rows: Vec<u64>| {
            let op = Op::GroupedGemm { rows, n: 4096, k: 4096, format: Format::Bf16, kind: PassKind::Forward };
            roofline(1).estimate(&op).time.get()
        };
        assert!((of(vec![8, 0, 0, 8]) - of(vec![8, 8])).abs() < 1e-15 && of(vec![8, 8]) > of(vec![8]));
    }

    #[test]
    fn packed_documents_cost_the_sum_of_squares_and_not_the_square_of_the_sum() {
        let attention = |documents| Op::Attention {
            documents,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 128,
            kv: hw::Dtype::Bf16,
            pass: Pass::Forward,
        };
        let cost = |documents| roofline(1).estimate(&attention(documents)).time.get() - KERNEL_START_S;
        let halves = cost(vec![Document::causal(16_384); 2]);
        let whole = cost(vec![Document::causal(32_768)]);
        assert!((whole / halves - 2.0).abs() < 1e-3, "{}", whole / halves);
    }

    #[test]
    fn crossing_nodes_never_makes_a_collective_faster() {
        for kind in [Collective::AllGather, Collective::AllReduce, Collective::AllToAll, Collective::RingShift] {
            let inside = roofline(1).collective(kind, 1 << 26, GroupShape::inside(8));
            let shape = GroupShape { n_nodes: 2, leaf_ports: 8, ..GroupShape::inside(16) };
            let across = roofline(2).collective(kind, 1 << 26, shape);
            assert!(across.get() >= inside.get() * 0.99, "{kind:?}: {across:?} against {inside:?}");
        }
    }
}
