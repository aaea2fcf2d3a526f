//! Kernels that are fitted together: one entry of a profile each, with its place on the axes and its regions to measure.

use std::collections::BTreeMap;

use engine::cost::profile::memory_bound;
use engine::cost::profiled::{attention_names, attention_point, gemm_name};
use engine::task::{Collective, CopyKind, Document, Op, Pass};
use hw::{Format, GroupShape};

/// A kernel, as profiles know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Matrix products of a number format.
    Gemm(Format),
    /// Attention of a direction; widths from 128 on are fitted apart from narrower ones.
    Attention {
        /// Direction.
        pass: Pass,
        /// Whether heads have 128 elements or more.
        wide: bool,
    },
    /// Time by bytes, by its name in profiles.
    Memory(&'static str),
    /// An exchange of so many ranks.
    Collective(Collective, u32),
}

impl Family {
    /// Family of an elementary operation; `None` for what is not fitted by itself.
    pub fn of(op: &Op) -> Option<Self> {
        match op {
            // Half precision runs at one rate whatever its exponent.
            Op::Gemm { format: Format::Fp16, .. } => Some(Self::Gemm(Format::Bf16)),
            // Nothing that is calibrated runs products in 32 bits.
            Op::Gemm { format: Format::Fp32, .. } => None,
            Op::Gemm { format, .. } => Some(Self::Gemm(*format)),
            Op::Attention { head_dim, pass, .. } => Some(Self::Attention { pass: *pass, wide: *head_dim >= 128 }),
            Op::Collective { kind, shape, .. } if shape.n_nodes == 1 => Some(Self::Collective(*kind, shape.n_ranks)),
            op => memory_bound(op).map(|(name, _)| Self::Memory(name)),
        }
    }

    /// Name in profiles, logs and reports.
    pub fn name(self) -> String {
        match self {
            Self::Gemm(format) => gemm_name(format).to_owned(),
            Self::Attention { pass, wide } => attention_names(if wide { 128 } else { 64 }, pass)[0].to_owned(),
            Self::Memory(name) => name.to_owned(),
            Self::Collective(kind, n) => format!("{}-{n}", kind.name()),
        }
    }

    /// Place of one of its operations on its axes.
    pub fn point(op: &Op) -> Vec<f64> {
        match op {
            Op::Gemm { m, n, k, .. } => vec![hw::real(*m), hw::real(*n), hw::real(*k)],
            Op::Collective { bytes, .. } => vec![hw::real(*bytes)],
            op => match attention_point(op) {
                Some(point) => point.to_vec(),
                None => vec![memory_bound(op).map_or(1.0, |(_, bytes)| hw::real(bytes))],
            },
        }
    }
}

/// Sizes that a family is measured at: an inclusive range for each.
pub type Range = (u64, u64);

/// Where to measure a family.
#[derive(Clone, Debug, PartialEq)]
pub enum Region {
    /// Products.
    Gemm {
        /// Rows, columns, inner dimension.
        sizes: [Range; 3],
    },
    /// Attention.
    Attention {
        /// Heads, key-value heads and width of a head that occur.
        heads: Vec<[u64; 3]>,
        /// Queries of a document.
        queries: Range,
        /// Documents of a kernel.
        documents: Range,
        /// Keys per query of a document, at most.
        keys_ratio: u64,
    },
    /// Anything by bytes; rows of an embedding are this long.
    Bytes {
        /// Bytes.
        bytes: Range,
        /// Bytes of a row.
        row_bytes: u64,
    },
}

/// Regions of all families to measure.
pub type Domain = BTreeMap<Family, Region>;

/// Narrowest matrix of a product that a profile for whatever may come has seen: a head of a small model.
const WIDTH_MIN: u64 = 64;

/// The domain of a device that is measured for whatever may come: sizes up to `tokens` rows.
pub fn general(tokens: u64, n_devices: u32) -> Domain {
    let mut domain = Domain::new();
    domain.insert(
        Family::Gemm(Format::Bf16),
        Region::Gemm { sizes: [(1, tokens), (WIDTH_MIN, tokens), (WIDTH_MIN, tokens)] },
    );
    // Devices without eight-bit products leave these out; their libraries want multiples of 16.
    domain.insert(
        Family::Gemm(Format::Fp8),
        Region::Gemm { sizes: [(16, tokens), (WIDTH_MIN, tokens), (WIDTH_MIN, tokens)] },
    );
    for pass in [Pass::Forward, Pass::Backward] {
        for wide in [false, true] {
            let dim = if wide { 128 } else { 64 };
            let heads = [(8, 8), (8, 2), (16, 2), (32, 8)].map(|(n, kv)| [n, kv, dim]).to_vec();
            let region = Region::Attention { heads, queries: (16, tokens), documents: (1, 16), keys_ratio: 4 };
            domain.insert(Family::Attention { pass, wide }, region);
        }
    }
    let bytes = Region::Bytes { bytes: (1 << 10, tokens << 14), row_bytes: 4096 };
    for name in ["elementwise", "embedding", "host_to_device", "device_to_host", "device_to_device"] {
        domain.insert(Family::Memory(name), bytes.clone());
    }
    if n_devices > 1 {
        for kind in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::AllToAll] {
            domain.insert(Family::Collective(kind, n_devices), bytes.clone());
        }
        domain.insert(Family::Collective(Collective::SendRecv, 2), bytes);
    }
    domain
}

/// The box around some operations, a quarter wider at its upper ends.
pub fn around<'a>(ops: impl Iterator<Item = &'a Op>) -> Domain {
    let mut domain = Domain::new();
    for op in ops {
        let Some(family) = Family::of(op) else { continue };
        let new = region_of(op);
        match domain.get_mut(&family) {
            Some(region) => region.join(&new),
            None => {
                domain.insert(family, new);
            }
        }
    }
    domain
}

fn region_of(op: &Op) -> Region {
    let wider = |n: u64| (n, n + n / 4);
    match op {
        Op::Gemm { m, n, k, .. } => Region::Gemm { sizes: [wider(*m), wider(*n), wider(*k)] },
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, .. } => {
            let of = |pick: fn(u64, u64) -> u64, start: u64, value: fn(&Document) -> u64| {
                documents.iter().map(value).fold(start, pick)
            };
            Region::Attention {
                heads: vec![[*n_heads, *n_kv_heads, *head_dim]],
                queries: (of(u64::min, u64::MAX, |d| d.queries).max(1), wider(of(u64::max, 1, |d| d.queries)).1),
                documents: (documents.len() as u64, documents.len() as u64),
                keys_ratio: of(u64::max, 1, |d| d.keys.div_ceil(d.queries.max(1))).min(16),
            }
        }
        Op::Embedding { tokens, row_bytes } => {
            Region::Bytes { bytes: wider(2 * tokens * row_bytes), row_bytes: *row_bytes }
        }
        Op::Collective { bytes, .. } | Op::Copy { bytes, .. } | Op::Elementwise { bytes } => {
            Region::Bytes { bytes: wider((*bytes).max(1)), row_bytes: 4096 }
        }
        _ => Region::Bytes { bytes: (1, 1), row_bytes: 4096 },
    }
}

impl Region {
    fn join(&mut self, other: &Self) {
        let join = |a: &mut Range, b: &Range| *a = (a.0.min(b.0), a.1.max(b.1));
        match (self, other) {
            (Self::Gemm { sizes: a }, Self::Gemm { sizes: b }) => a.iter_mut().zip(b).for_each(|(a, b)| join(a, b)),
            (
                Self::Attention { heads, queries, documents, keys_ratio },
                Self::Attention { heads: h, queries: q, documents: d, keys_ratio: k },
            ) => {
                heads.extend(h.iter().filter(|new| !heads.contains(new)).copied().collect::<Vec<_>>());
                join(queries, q);
                join(documents, d);
                *keys_ratio = (*keys_ratio).max(*k);
            }
            (Self::Bytes { bytes: a, .. }, Self::Bytes { bytes: b, .. }) => join(a, b),
            _ => {}
        }
    }

    /// The operation at a place of the unit cube, sizes in equal ratios; all zeros and all ones are its ends.
    pub fn at(&self, family: Family, place: [f64; 5]) -> Op {
        let scaled = |(low, high): Range, part: f64| {
            let (low, high) = (hw::real(low.max(1)), hw::real(high.max(1)));
            hw::whole(low * (high / low).powf(part)).max(1)
        };
        match (self, family) {
            (Self::Gemm { sizes: [m, n, k] }, Family::Gemm(format)) => {
                let [m, n, k] =
                    [(*m, place[0]), (*n, place[1]), (*k, place[2])].map(|(range, part)| scaled(range, part));
                // Eight bits are taken in whole vectors of 16. Widths of models are even in any format, numbers of tokens are not.
                let even = |n: u64| match format {
                    Format::Fp8 => n.next_multiple_of(16),
                    _ if n > WIDTH_MIN => n / 8 * 8,
                    _ => n,
                };
                let m = if format == Format::Fp8 { even(m) } else { m };
                Op::Gemm { m, n: even(n), k: even(k), format }
            }
            (Self::Attention { heads, queries, documents, keys_ratio }, Family::Attention { pass, .. }) => {
                let last = heads.len() - 1;
                let index = hw::whole(place[3] * hw::real(heads.len() as u64));
                let [n_heads, n_kv_heads, head_dim] = heads[usize::try_from(index).unwrap_or(last).min(last)];
                let n = scaled(*queries, place[0]);
                let n_documents = scaled(*documents, place[1]);
                // Half of them are whole documents, the others come after earlier tokens.
                let past = if place[2] < 0.5 || *keys_ratio < 2 {
                    0
                } else {
                    n * (scaled((1, *keys_ratio), 2.0 * place[2] - 1.0) - 1)
                };
                let documents = (0..n_documents).map(|_| Document::chunk(past, n)).collect();
                Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: hw::Dtype::Bf16, pass }
            }
            (Self::Bytes { bytes, row_bytes }, family) => of_bytes(family, scaled(*bytes, place[0]), *row_bytes),
            (region, family) => unreachable!("{family:?} is not measured in {region:?}"),
        }
    }
}

/// The operation of a family that moves so many bytes.
fn of_bytes(family: Family, bytes: u64, row_bytes: u64) -> Op {
    match family {
        Family::Collective(kind, n_ranks) => Op::Collective { kind, bytes, shape: GroupShape::inside(n_ranks) },
        Family::Memory("embedding") => Op::Embedding { tokens: (bytes / 2).div_ceil(row_bytes), row_bytes },
        Family::Memory("host_to_device") => Op::Copy { kind: CopyKind::HostToDevice, bytes },
        Family::Memory("device_to_host") => Op::Copy { kind: CopyKind::DeviceToHost, bytes },
        Family::Memory("device_to_device") => Op::Copy { kind: CopyKind::DeviceToDevice, bytes },
        _ => Op::Elementwise { bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_box_around_operations_holds_them() {
        let gemm = |m, n, k| Op::Gemm { m, n, k, format: Format::Bf16 };
        let ops = [gemm(5, 100, 7), gemm(50, 10, 70), Op::Elementwise { bytes: 1000 }];
        let domain = around(ops.iter());
        assert_eq!(domain.len(), 2);
        let family = Family::Gemm(Format::Bf16);
        assert_eq!(domain[&family], Region::Gemm { sizes: [(5, 62), (10, 125), (7, 87)] });
        assert_eq!(domain[&family].at(family, [0.0; 5]), gemm(5, 10, 7));
        // Widths are whole vectors.
        assert_eq!(domain[&family].at(family, [1.0; 5]), gemm(62, 120, 80));
    }

    #[test]
    fn every_place_of_a_general_domain_is_an_operation_of_its_family() {
        for (family, region) in general(4096, 2) {
            for part in [0.0, 0.3, 0.5, 0.99, 1.0] {
                assert_eq!(Family::of(&region.at(family, [part; 5])), Some(family));
            }
        }
    }
}
