//! Attention to keys that an index picks (DeepSeek-V3.2, GLM-5), of prompts and of decoding sequences.
//!
//! Tables time a whole block of latent attention with its index. Its products are taken off by the engine's own curves; what is left is the index's
//! scores, the picking of the largest, and attention to what was picked, with the small kernels around them. Prompts are launched one kernel after
//! another, so short ones take as long as the host: those rows are left out. SGLang's newest tables leave the index out of some layers. Its rows are
//! those of a version before that, as the published runs had.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::cost::decode::{DecodeShape, Reads};
use engine::cost::mixed::{self, MixedChunk};
use engine::cost::names;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::layer;
use engine::memory::index_key_bytes;
use engine::model::{Mixer, Model};
use engine::shard::Shard;
use engine::task::{Op, PassKind};
use hw::Dtype;

use super::decode::{self, Launch};
use super::{Part, Source};
use crate::fit::Row;
use crate::fit::surfaces;
use crate::import::{ImportError, Table};

/// Models of the tables, and the same as they are embedded.
const MODELS: [(&str, &str); 2] = [("DeepSeek-V3.2", "deepseek-v3.2"), ("GLM-5", "glm-5")];
/// Keys that their index picks.
const PICKED: u64 = 2048;
/// SGLang's kernel before some layers were without an index.
const WITH_INDEX: &str = "dsa_nsa";
/// How much longer than the shortest prompt of its shape a prompt must take, so that it is the device's time and not the host's.
const ABOVE_HOST: f64 = 1.5;
const START_S: f64 = 2e-6;
const LENGTH_KNOTS: [f64; 5] = [2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];
const HEADS_KNOTS: [f64; 3] = [8.0, 64.0, 128.0];

/// A measured block.
struct Block {
    model: Model,
    tp: u32,
    batch: u64,
    length: u64,
    past: u64,
    seconds: f64,
}

impl Block {
    fn shard(&self) -> Shard<'_> {
        Shard::forward(&self.model, Dtype::Bf16, self.tp)
    }

    const fn shape(&self) -> u64 {
        self.model.hidden * 1009 + self.tp as u64
    }

    /// Its products by an engine's own curves: projections in front of the attention, of the index too, and the one behind it.
    fn products_s(&self, curves: &Profiled) -> f64 {
        let (shard, tokens) = (self.shard(), self.batch * self.length);
        let mut ops = layer::before_mixing(&shard, Mixer::Selected(PICKED), tokens, PassKind::Forward);
        let k = shard.model.mixed_width(Mixer::Full).div_ceil(u64::from(self.tp));
        ops.push((Op::Gemm { m: tokens, n: self.model.hidden, k, format: shard.formats.attention }, 1));
        ops.retain(|(op, _)| matches!(op, Op::Gemm { .. }));
        curves.estimate(&Op::Sequence(ops)).time.get()
    }
}

/// All attention to selected keys of an engine.
pub(super) fn all(source: &Source<'_>, profile: &Profile) -> Result<Part, ImportError> {
    let curves = Profiled::new(profile, source.cluster());
    let mut part = Part::default();
    let prompts = table(source, "dsa_context_module_perf.csv.gz")?;
    let sequences = table(source, "dsa_generation_module_perf.csv.gz")?;
    for kv in [Dtype::Bf16, Dtype::Fp8] {
        if let Some((table, path)) = &prompts {
            part = part.with(prompt(source, &blocks(table, kv)?, &curves, kv, path));
        }
        if let Some((table, path)) = &sequences {
            part = part.with(decoding(source, &blocks(table, kv)?, &curves, kv, path));
        }
    }
    Ok(part)
}

/// The newest table; of SGLang the largest of those whose layers all have an index.
fn table(source: &Source<'_>, file: &'static str) -> Result<Option<(Table, String)>, ImportError> {
    if source.engine != "sglang" {
        return source.table("sparse_attention", source.engine, file);
    }
    let mut largest: Option<(Table, String, usize)> = None;
    for found in source.versions("sparse_attention", source.engine, file) {
        let (table, path) = found?;
        let kernels = table.words("kernel_source")?;
        let is_larger = largest.as_ref().is_none_or(|(.., n)| kernels.len() > *n);
        if is_larger && kernels.iter().all(|kernel| kernel == WITH_INDEX) {
            largest = Some((table, path, kernels.len()));
        }
    }
    Ok(largest.map(|(table, path, _)| (table, path)))
}

/// Blocks with products in 16 bits.
fn blocks(table: &Table, kv: Dtype) -> Result<Vec<Block>, ImportError> {
    let [heads, batch, length, past, latency] = table.columns(["num_heads", "batch_size", "isl", "step", "latency"])?;
    let [cache, products, models] = ["kv_cache_dtype", "gemm_type", "model"].map(|name| table.words(name));
    let (cache, products, models) = (cache?, products?, models?);
    let word = super::word(kv);
    let known = MODELS.map(|(name, embedded)| (name, engine::model::embedded(embedded).expect("embedded")));
    let mut found = Vec::new();
    for row in (0..heads.len()).filter(|&row| cache[row] == word && products[row] == "bfloat16" && latency[row] > 0.0) {
        let [n_heads, batch, length, past] = [heads[row], batch[row], length[row], past[row]].map(hw::whole);
        let Some((_, model)) = known.iter().find(|(name, _)| models[row].ends_with(name)) else { continue };
        let tp = u32::try_from(model.n_heads / n_heads.max(1)).expect("few");
        if tp > 0 {
            found.push(Block { model: model.clone(), tp, batch, length, past, seconds: latency[row] / 1e3 });
        }
    }
    Ok(found)
}

fn prompt(source: &Source<'_>, blocks: &[Block], curves: &Profiled, kv: Dtype, path: &str) -> Part {
    let mut least: BTreeMap<u64, f64> = BTreeMap::new();
    for block in blocks {
        let known = least.entry(block.shape()).or_insert(f64::INFINITY);
        *known = known.min(block.seconds);
    }
    let row = |block: &Block| {
        let chunk = MixedChunk::of(&block.shard(), Mixer::Selected(PICKED), block.past, block.length)?;
        let base_s = source.roofline.estimate(&Op::Sequence(chunk.parts)).time.get() * hw::real(block.batch);
        let measured_s = block.seconds - block.products_s(curves);
        let is_told = block.seconds > ABOVE_HOST * least[&block.shape()] && measured_s > 0.0;
        is_told.then(|| Row { point: chunk.at.to_vec(), base_s, measured_s, shape: block.shape() + block.batch })
    };
    let rows: Vec<Row> = blocks.iter().filter_map(row).collect();
    let mut part = Part::default();
    let knots: [&[f64]; 3] = [&LENGTH_KNOTS, &HEADS_KNOTS, &[1.0]];
    let Some(mut operator) = surfaces::operator(&rows, mixed::AXES, knots, START_S) else { return part };
    operator.kernel = Some(WITH_INDEX.to_owned()).filter(|_| source.engine == "sglang");
    let left_out = format!("{} rows are attended to as a whole, or wait for the host", blocks.len() - rows.len());
    part.add(path, names::of_selected("attention", kv), &left_out, operator);
    part
}

/// Keys of a sequence are those that are picked, and the index's keys in bytes of these.
fn decoding(source: &Source<'_>, blocks: &[Block], curves: &Profiled, kv: Dtype, path: &str) -> Part {
    let launch = |block: &Block| {
        let n_heads = block.model.n_heads / u64::from(block.tp);
        let head_dim = block.model.kept_elements(Mixer::Full, block.tp);
        let shape = DecodeShape { n_heads, n_kv_heads: 1, head_dim, kv, reads: Reads::Selected };
        let index = block.model.index.map_or(0, index_key_bytes);
        let keys = block.past + block.length;
        let in_keys = hw::real(keys * index) / hw::real(shape.token_bytes());
        Launch {
            shape,
            n: block.batch,
            keys: hw::real(keys.min(PICKED)) + in_keys,
            window: 0.0,
            beside_s: block.products_s(curves),
            seconds: block.seconds,
        }
    };
    let launches: Vec<Launch> = blocks.iter().map(launch).collect();
    let kernel = if source.engine == "sglang" { WITH_INDEX } else { "" };
    decode::fitted(source, &launches, names::of_selected("decode", kv), (path.to_owned(), kernel.to_owned()))
}
