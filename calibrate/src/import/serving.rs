//! Tables of ai-dynamo/aiconfigurator that only serving asks for: decode attention, the engine's own all-reduce, experts in one launch.
//!
//! Each is left out where its table is missing: a profile for training needs none of them.

use std::collections::BTreeMap;
use std::path::Path;

use engine::cost::decode::DecodeLaw;
use engine::cost::profile::{CollectiveCurve, Operator};
use engine::cost::profiled::CUSTOM_ALL_REDUCE;
use engine::cost::roofline::Roofline;
use hw::{Cluster, Format};

use super::{ImportError, Table, axis, find};
use crate::fit::decode::{self, Launch};
use crate::fit::{self, Row, curve};

/// Bytes of a key, a value or an element of a message.
const WIDE: f64 = 2.0;
/// Width of a head of the rows that are fitted.
const HEAD_DIM: f64 = 128.0;
/// Start-up of one grouped product; the table times two.
const GROUPED_START_S: f64 = 4e-6;

/// Decode attention of vLLM's kernel.
pub(super) fn decode(dir: &Path, cluster: &Cluster) -> Result<Option<DecodeLaw>, ImportError> {
    let Ok(path) = find(dir, "attention/vllm", "generation_attention_perf.csv.gz") else { return Ok(None) };
    let table = Table::read(path)?;
    let [batch, heads, kv_heads, width, keys, latency] =
        table.columns(["batch_size", "num_heads", "num_key_value_heads", "head_dim", "step", "latency"])?;
    let (dtype, cache) = (table.words("attn_dtype")?, table.words("kv_cache_dtype")?);
    let window = table.windows();
    let bandwidth = cluster.gpu.memory_bandwidth.get();
    let launches: Vec<Launch> = (0..batch.len())
        .filter(|&row| dtype[row] == "bfloat16" && cache[row] == "bfloat16" && window[row] == 0.0)
        .filter(|&row| (width[row] - HEAD_DIM).abs() < 0.5 && latency[row] > 0.0)
        .map(|row| {
            let kv = if kv_heads[row] > 0.0 { kv_heads[row] } else { heads[row] };
            Launch {
                heads: batch[row] * heads[row],
                read_s: batch[row] * (keys[row] + 1.0) * 2.0 * kv * HEAD_DIM * WIDE / bandwidth,
                chunk_s: 0.0,
                seconds: latency[row] / 1e3,
            }
        })
        .collect();
    Ok(decode::law(&launches, &[]))
}

/// The all-reduce that vLLM runs inside a CUDA graph, one curve per number of GPUs.
pub(super) fn all_reduce(dir: &Path) -> Result<Vec<CollectiveCurve>, ImportError> {
    let Ok(path) = find(dir, "comm/vllm", "custom_allreduce_perf.csv.gz") else { return Ok(Vec::new()) };
    let table = Table::read(path)?;
    let kernel = table.words("kernel_source")?;
    let [ranks, size, latency] = table.columns(["num_gpus", "message_size", "latency"])?;
    let mut points: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for row in (0..kernel.len()).filter(|&row| kernel[row].ends_with("custom_graph") && latency[row] > 0.0) {
        points.entry(hw::whole(ranks[row])).or_default().push((size[row] * WIDE, latency[row] / 1e3));
    }
    let of = |(n_ranks, points): (u64, Vec<(f64, f64)>)| {
        let fitted = curve::fit(&points)?;
        let n_ranks = u32::try_from(n_ranks).ok()?;
        let (residuals, bytes, seconds) = (fitted.residuals, fitted.bytes, fitted.seconds);
        Some(CollectiveCurve {
            kind: CUSTOM_ALL_REDUCE.to_owned(),
            n_ranks,
            n_nodes: 1,
            port_gb_per_s: None,
            residuals,
            bytes,
            seconds,
        })
    };
    Ok(points.into_iter().filter_map(of).collect())
}

/// Experts in one launch, 16 bits, with an even load: both products of a layer share a correction over the sum of their bases.
pub(super) fn grouped(dir: &Path, cluster: &Cluster) -> Result<Option<Operator>, ImportError> {
    let Ok(path) = find(dir, "moe/vllm", "moe_perf.csv.gz") else { return Ok(None) };
    let table = Table::read(path)?;
    let (dtype, load) = (table.words("moe_dtype")?, table.words("distribution")?);
    let [tokens, hidden, inter, top_k, experts, tp, ep, latency] = table.columns([
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "latency",
    ])?;
    let roofline = Roofline::new(cluster);
    let rows: Vec<Row> = (0..dtype.len())
        .filter(|&row| dtype[row] == "bfloat16" && load[row] == "balanced" && latency[row] > 0.0)
        .map(|row| {
            let routed = tokens[row] * top_k[row] / ep[row];
            let active = (experts[row] / ep[row]).min(routed).max(1.0);
            let m = hw::whole((routed / active).ceil());
            let (hidden, width) = (hw::whole(hidden[row]), hw::whole(inter[row] / tp[row]));
            let base = roofline.gemm_base(m, 2 * width, hidden, Format::Bf16)
                + roofline.gemm_base(m, hidden, width, Format::Bf16);
            Row {
                // The products have 2 · and 1 · hidden · width elements; the correction stands between them.
                point: vec![routed / active, active, 1.5 * hw::real(hidden * width)],
                base_s: base.get() * active,
                measured_s: latency[row] / 1e3,
                shape: hidden * 1_000_003 + width * 1009 + hw::whole(experts[row] / ep[row]) * 31,
            }
        })
        .collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let powers = |first: i32, last: i32, step: usize| {
        (first..=last).step_by(step).map(|power| 2.0_f64.powi(power)).collect::<Vec<f64>>()
    };
    let axes = vec![
        axis("rows per expert", &powers(0, 14, 1)),
        axis("experts with rows", &powers(0, 9, 1)),
        axis("elements of an expert", &powers(18, 28, 2)),
    ];
    let (surface, residuals) = fit::surface(&rows, axes, 2.0 * GROUPED_START_S);
    Ok(Some(Operator { residuals, kernel: None, start_s: GROUPED_START_S, law: None, surface }))
}
