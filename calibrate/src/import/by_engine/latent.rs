//! Latent attention (MLA), of prompts and of decoding sequences.
//!
//! Where an engine's tables time attention by itself, that is fitted. Where they time the whole block of DeepSeek-V3, its products are taken
//! off by the engine's own curves of products, and the error is that of the whole block. Decoding of vLLM in sixteen bits is an exception: its block
//! was timed without `torch.compile`, so 40 µs of small kernels are in it that an engine fuses. SGLang's rows of the same kernel (`FlashAttention`'s
//! for latent vectors), timed by itself, stand in. Prompts expand keys and values for every head, so
//! heads are 192 wide (128 and 64 that rotate); decoding sequences read the latent vector of 512 and 64 elements that all heads share.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::cost::decode::{DecodeShape, Reads};
use engine::cost::names;
use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::{ATTENTION_TILE, Profiled, document_length};
use engine::task::{Document, Op};
use hw::{Dtype, Format};

use super::decode::{self, Launch};
use super::prefill::{AXES, LENGTH_KNOTS, START_S, TILE_KNOTS};
use super::products::joined;
use super::{Part, Source};
use crate::fit::surfaces::{self, Point};
use crate::import::{ImportError, Table};

/// Sizes of DeepSeek-V3 (arXiv:2412.19437, section 4.2): width, ranks of queries and of keys and values, parts of a head.
const HIDDEN: u64 = 7168;
const QUERY_RANK: u64 = 1536;
const KV_RANK: u64 = 512;
const ROPE: u64 = 64;
const NOPE: u64 = 128;
/// Share of a block below which attention is not told from its products.
const TOLD: f64 = 0.05;

/// A measured block or its attention.
struct Block {
    n_heads: u64,
    batch: u64,
    length: u64,
    past: u64,
    beside_s: f64,
    seconds: f64,
}

impl Block {
    /// The whole block without its attention: products of an engine's own curves.
    fn products_s(&self, model: &Profiled, is_prompt: bool) -> f64 {
        let (m, heads) = (self.batch * self.length, self.n_heads);
        let latents =
            [(QUERY_RANK + KV_RANK + ROPE, HIDDEN), (heads * (NOPE + ROPE), QUERY_RANK), (HIDDEN, heads * NOPE)];
        // Prompts expand the latent vector; decoding sequences take the expansion into their queries and results instead.
        let expanded = if is_prompt { vec![(heads * 2 * NOPE, KV_RANK)] } else { vec![(heads * KV_RANK, NOPE); 2] };
        let of = |(n, k): (u64, u64)| model.estimate(&Op::Gemm { m, n, k, format: Format::Bf16 }).time.get();
        latents.into_iter().chain(expanded).map(of).sum()
    }
}

/// All latent attention of an engine.
pub(super) fn all(source: &Source<'_>, profile: &Profile) -> Result<Part, ImportError> {
    let model = Profiled::new(profile, source.cluster());
    let mut part = Part::default();
    for kv in [Dtype::Bf16, Dtype::Fp8] {
        for is_prompt in [true, false] {
            let stand_in = if is_prompt { None } else { stand_in(source, kv)? };
            let Some((table, path, of_block)) =
                stand_in.map_or_else(|| table(source, is_prompt), |found| Ok(Some(found)))?
            else {
                continue;
            };
            let (blocks, kernel) =
                blocks(&table, kv, |block| if of_block { block.products_s(&model, is_prompt) } else { 0.0 })?;
            let name = names::of_width(if is_prompt { "attention" } else { "decode" }, None, kv);
            let left_out = if of_block { "products of the block are taken off by their curves" } else { "" };
            let line = (path, kernel, left_out.to_owned());
            part = part.with(if is_prompt {
                prompt(source, &blocks, name, line)
            } else {
                decoding(source, &blocks, name, kv, line)
            });
        }
    }
    Ok(part)
}

/// The decoding kernel of vLLM in sixteen bits as SGLang's table times it by itself.
fn stand_in(source: &Source<'_>, kv: Dtype) -> Result<Option<(Table, String, bool)>, ImportError> {
    if source.engine != "vllm" || kv != Dtype::Bf16 {
        return Ok(None);
    }
    let found = source.table("mla", "sglang", "generation_mla_perf.csv.gz")?;
    Ok(found.map(|(table, path)| (table, path, false)))
}

/// The table of attention by itself, or that of the whole block, and which of the two it is.
fn table(source: &Source<'_>, is_prompt: bool) -> Result<Option<(Table, String, bool)>, ImportError> {
    let [own, block] = if is_prompt {
        ["context_mla_perf.csv.gz", "mla_context_module_perf.csv.gz"]
    } else {
        ["generation_mla_perf.csv.gz", "mla_generation_module_perf.csv.gz"]
    };
    if let Some((table, path)) = source.table("mla", source.engine, own)? {
        return Ok(Some((table, path, false)));
    }
    Ok(source.table("mla", source.engine, block)?.map(|(table, path)| (table, path, true)))
}

fn blocks(table: &Table, kv: Dtype, beside: impl Fn(&Block) -> f64) -> Result<(Vec<Block>, String), ImportError> {
    let [heads, batch, length, past, latency] = table.columns(["num_heads", "batch_size", "isl", "step", "latency"])?;
    let (cache, kernels) = (table.words("kv_cache_dtype")?, table.words("kernel_source")?);
    let products = table.words("gemm_type").unwrap_or_else(|_| vec!["bfloat16".to_owned(); heads.len()]);
    let word = super::word(kv);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for row in (0..heads.len()).filter(|&row| cache[row] == word && products[row] == "bfloat16" && latency[row] > 0.0) {
        *counts.entry(&kernels[row]).or_default() += 1;
        let [n_heads, batch, length, past] = [heads[row], batch[row], length[row], past[row]].map(hw::whole);
        let mut block = Block { n_heads, batch, length, past, beside_s: 0.0, seconds: latency[row] / 1e3 };
        block.beside_s = beside(&block);
        found.push(block);
    }
    Ok((found, joined(&counts)))
}

fn decoding(source: &Source<'_>, blocks: &[Block], name: String, kv: Dtype, line: (String, String, String)) -> Part {
    let of = |block: &Block| Launch {
        shape: DecodeShape {
            n_heads: block.n_heads,
            n_kv_heads: 1,
            head_dim: KV_RANK + ROPE,
            kv,
            reads: Reads::Latent,
        },
        n: block.batch,
        keys: hw::real(block.past + 1),
        window: 0.0,
        beside_s: block.beside_s,
        seconds: block.seconds,
    };
    let (table, kernel, left_out) = line;
    let mut part = decode::fitted(source, &blocks.iter().map(of).collect::<Vec<Launch>>(), name, (table, kernel));
    for line in part.lines.iter_mut().filter(|_| !left_out.is_empty()) {
        line.left_out = [line.left_out.as_str(), left_out.as_str()].join("; ").trim_start_matches("; ").to_owned();
    }
    part
}

/// A prompt's attention on its axes.
struct Row {
    at: Vec<f64>,
    base_s: f64,
    beside_s: f64,
    seconds: f64,
    shape: u64,
}

fn prompt(source: &Source<'_>, blocks: &[Block], name: String, line: (String, String, String)) -> Part {
    let of = |block: &Block| {
        let document = Document::chunk(block.past, block.length);
        let tiles = block.batch * block.n_heads * document.queries.div_ceil(ATTENTION_TILE);
        let base = source.roofline.attention_base(&document, block.n_heads, block.n_heads, NOPE + ROPE);
        Row {
            at: vec![document_length(&document), hw::real(tiles), 1.0],
            base_s: base.get() * hw::real(block.batch),
            beside_s: block.beside_s,
            seconds: block.seconds,
            shape: block.n_heads * 1_000_003 + block.batch,
        }
    };
    let rows: Vec<Row> = blocks.iter().map(of).collect();
    let told: Vec<&Row> = rows.iter().filter(|row| share(row) > TOLD).collect();
    let mut part = Part::default();
    if told.len() < 10 {
        return part;
    }
    let knots: [&[f64]; 3] = [&LENGTH_KNOTS, &TILE_KNOTS, &[1.0]];
    let axes = surfaces::axes(&AXES, &knots, told.iter().map(|row| row.at.as_slice()));
    let (seen, held) = surfaces::split(&rows, |row| row.shape);
    let judged = surfaces::through(&points(&seen), axes.clone());
    let residuals = surfaces::errors(&held, seen.len(), |row| {
        row.seconds / (row.beside_s + START_S + row.base_s * judged.factor(&row.at).0)
    });
    let surface = surfaces::through(&points(&rows.iter().collect::<Vec<&Row>>()), axes);
    let (table, kernel, left_out) = line;
    let operator = Operator { residuals, kernel: Some(kernel), start_s: START_S, law: None, surface };
    part.add(&table, name, &left_out, operator);
    part
}

/// Share of a block that its attention takes.
fn share(row: &Row) -> f64 {
    1.0 - row.beside_s / row.seconds
}

fn points(rows: &[&Row]) -> Vec<Point> {
    let told = rows.iter().filter(|row| share(row) > TOLD);
    let point = |row: &&&Row| {
        let left = (row.seconds - row.beside_s - START_S).max(row.seconds * TOLD);
        Point { at: row.at.clone(), log: (left / row.base_s).ln(), weight: share(row).powi(2) }
    };
    told.map(|row| point(&row)).collect()
}
