//! Attention of prompts by head width and format of keys and values, over earlier tokens and in windows too: a document has queries, keys and
//! pairs, and a kernel computes what `computed` says of it.

use std::collections::BTreeMap;

use engine::cost::names;
use engine::cost::profiled::{ATTENTION_TILE, computed, document_length};
use engine::task::Document;
use hw::Dtype;

use super::products::most;
use super::{Part, Source};
use crate::fit::{Row, surfaces};
use crate::import::{ImportError, Table};

pub(super) const LENGTH_KNOTS: [f64; 11] =
    [2.0, 32.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];
pub(super) const TILE_KNOTS: [f64; 9] = [1.0, 8.0, 32.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0];
const GROUP_KNOTS: [f64; 5] = [1.0, 4.0, 8.0, 16.0, 64.0];
/// The same for few shapes, which cannot tell more apart.
const GROUP_KNOTS_FEW: [f64; 2] = [1.0, 16.0];
/// Rows below which there are few shapes.
const ROWS_FEW: usize = 2500;
/// Names of the axes.
pub(super) const AXES: [&str; 3] = ["document length", "query tiles", "heads per key-value head"];
/// Start-up of an attention kernel, seconds.
pub(super) const START_S: f64 = 2e-6;

/// All attention of prompts but for latent attention.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let mut part = Part::default();
    let file = "context_attention_perf.csv.gz";
    let Some((table, path)) = source.table("attention", source.engine, file)? else { return Ok(part) };
    for width in names::WIDTHS {
        for kv in [Dtype::Bf16, Dtype::Fp8] {
            let (rows, kernel, left_out) = rows(source, &table, width, kv)?;
            let groups: &[f64] = if rows.len() < ROWS_FEW { &GROUP_KNOTS_FEW } else { &GROUP_KNOTS };
            let knots: [&[f64]; 3] = [&LENGTH_KNOTS, &TILE_KNOTS, groups];
            let Some(mut operator) = surfaces::operator(&rows, AXES, knots, START_S) else { continue };
            operator.kernel = Some(kernel);
            part.add(&path, names::of_width("attention", Some(width), kv), &left_out, operator);
        }
    }
    Ok(part)
}

/// Rows of a width and format, their kernels, and what was left out: with narrow keys and values, queries in sixteen bits where the table
/// has narrow ones too.
fn rows(source: &Source<'_>, table: &Table, width: u64, kv: Dtype) -> Result<(Vec<Row>, String, String), ImportError> {
    let (queries, cache) = (table.words("attn_dtype")?, table.words("kv_cache_dtype")?);
    let kernels = table.words("kernel_source")?;
    let [batch, length, heads, kv_heads, widths, latency, past] =
        table.columns(["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency", "step"])?;
    let window = table.windows();
    let word = super::word(kv);
    let of = |row: &usize| hw::whole(widths[*row]) == width && cache[*row] == word && latency[*row] > 0.0;
    let here: Vec<usize> = (0..batch.len()).filter(of).collect();
    let is_narrow = kv == Dtype::Fp8 && here.iter().any(|row| queries[*row] == "fp8");
    let of_query = if is_narrow { "fp8" } else { "bfloat16" };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in here.iter().filter(|row| queries[**row] == of_query) {
        *counts.entry(&kernels[*row]).or_default() += 1;
    }
    let kernel = most(&counts);
    let mut found = Vec::new();
    for &row in here.iter().filter(|row| queries[**row] == of_query && kernels[**row] == kernel) {
        let n_heads = hw::whole(heads[row]);
        // The table writes 0 key-value heads for as many as heads.
        let n_kv_heads = if kv_heads[row] > 0.0 { hw::whole(kv_heads[row]) } else { n_heads };
        let document =
            computed(&Document::windowed(hw::whole(past[row]), hw::whole(length[row]), hw::whole(window[row])));
        let tiles = batch[row] * heads[row] * hw::real(document.queries.div_ceil(ATTENTION_TILE));
        found.push(Row {
            point: vec![document_length(&document), tiles, hw::real(n_heads) / hw::real(n_kv_heads)],
            base_s: source.roofline.attention_base(&document, n_heads, n_kv_heads, width).get() * batch[row],
            measured_s: latency[row] / 1e3,
            shape: n_heads * 1_000_003 + n_kv_heads * 1009 + hw::whole(batch[row]),
        });
    }
    let left_out = match here.len() - found.len() {
        0 => String::new(),
        n => format!("{n} rows have queries in sixteen bits over narrow keys, or are of another kernel"),
    };
    Ok((found, kernel, left_out))
}
