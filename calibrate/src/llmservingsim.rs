//! Operator tables of casys-kaist/LLMServingSim → a profile.
//!
//! The layout is `ORGANISATION/MODEL/bf16/tpN/{dense,per_sequence,attention}.csv` with times in microseconds of one layer on one GPU, under
//! vLLM. Products, memory-bound kernels, prefill attention over earlier tokens, and decode attention alone and beside a chunk are
//! fitted. Only the shapes of a few models were measured, so whole sizes are held out and not shapes: the stated error is between sizes of
//! those shapes, and other shapes are outside of what was measured even where the grid reaches them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::Model;
use engine::cost::experts::{FusedExperts, Tactic};
use engine::cost::law::{AttentionLaw, Law};
use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::attention_point;
use engine::cost::roofline::Roofline;
use engine::cost::surface::Axis;
use engine::task::{Document, Op, Pass};
use hw::{Cluster, Format};

use crate::fit::decode::{self, Launch};
use crate::fit::{self, Row, curve, law};
use crate::import::by_engine::experts::{self, Timed};
use crate::import::{ImportError, Provenance, Table};

/// Models of the tables by their embedded names, with the start of the tables' names.
const MODELS: [(&str, &str); 3] =
    [("Llama-3.1-8B", "llama-3-8b"), ("Qwen3-32B", "qwen3-32b"), ("Qwen3-30B-A3B", "qwen3-30b-a3b")];
/// Bytes of an activation.
const WIDE: u64 = 2;
/// Bytes per logit of the sampler, as in `sim/serve/src/step_cost.rs`.
const SAMPLER_BYTES_PER_LOGIT: u64 = 10;
/// Start-up of a product, seconds; the surface corrects what it leaves.
const GEMM_START_S: f64 = 2e-6;
/// Cached tokens of a batch up to which launches beside a chunk count: the tables go on to batches that no such card holds.
const MIXED_TOKENS_MAX: f64 = 131_072.0;

/// What one folder of tables measured.
struct Folder {
    path: PathBuf,
    model: Model,
    tp: u64,
}

/// All folders below a device's, in order of their names.
fn folders(dir: &Path) -> Result<Vec<Folder>, ImportError> {
    let children = |dir: &Path| {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        paths.sort();
        paths
    };
    let mut found = Vec::new();
    for model_dir in children(dir).iter().flat_map(|organisation| children(organisation)) {
        let name = model_dir.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        for path in children(&model_dir.join("bf16")) {
            let degree = path.file_name().and_then(|name| name.to_str()?.strip_prefix("tp")?.parse().ok());
            let known = MODELS.iter().find(|(start, _)| name.starts_with(start));
            let model = known
                .and_then(|(_, name)| engine::model::embedded(name))
                .ok_or_else(|| ImportError::Model(name.clone()))?;
            if let Some(tp) = degree {
                found.push(Folder { path, model, tp });
            }
        }
    }
    if found.is_empty() {
        return Err(ImportError::Missing(dir.to_path_buf(), "ORGANISATION/MODEL/bf16/tpN/dense.csv"));
    }
    Ok(found)
}

impl Folder {
    /// Columns and inner width of a product on one GPU.
    fn product(&self, layer: &str) -> Option<[u64; 2]> {
        let (m, tp) = (&self.model, self.tp);
        let queries = m.n_heads * m.head_dim;
        match layer {
            "qkv_proj" => Some([(queries + 2 * m.kv_width()) / tp, m.hidden]),
            "o_proj" => Some([m.hidden, queries / tp]),
            "gate_up_proj" => Some([2 * m.intermediate / tp, m.hidden]),
            "down_proj" => Some([m.hidden, m.intermediate / tp]),
            "lm_head" => Some([m.vocab / tp, m.hidden]),
            _ => None,
        }
    }

    /// Bytes that a memory-bound kernel moves for a token or a sequence.
    fn bytes(&self, layer: &str) -> Option<u64> {
        let (m, tp) = (&self.model, self.tp);
        match layer {
            "layernorm" | "final_layernorm" => Some(4 * m.hidden * WIDE),
            "rotary_emb" => Some(2 * (m.n_heads + m.n_kv_heads) * m.head_dim / tp * WIDE),
            "act_fn" => Some(3 * m.intermediate / tp * WIDE),
            "sampler" => Some(m.vocab * SAMPLER_BYTES_PER_LOGIT),
            _ => None,
        }
    }
}

/// Rows of all folders, by what they are fitted to.
#[derive(Default)]
struct Rows {
    products: Vec<Row>,
    elementwise: Vec<(f64, f64)>,
    embedding: Vec<(f64, f64)>,
    prefill: Vec<law::Row>,
    alone: Vec<Launch>,
    mixed: Vec<Launch>,
    experts: Vec<Timed>,
}

/// Fits the tables below a device's folder.
///
/// # Errors
/// When the GPU or a model is unknown, or a table is missing or broken.
pub fn operator_tables(dir: &Path, provenance: &Provenance) -> Result<Profile, ImportError> {
    let gpu = provenance.gpu()?;
    let cluster = hw::catalog::cluster(&gpu, 1, 8);
    let mut rows = Rows::default();
    for folder in folders(dir)? {
        rows.dense(&folder, &cluster)?;
        rows.attention(&folder, &cluster)?;
        rows.experts(&folder)?;
    }
    let curves = [("elementwise", &rows.elementwise), ("embedding", &rows.embedding)];
    let memory = curves.into_iter().filter_map(|(name, points)| Some((name.to_owned(), curve::fit(points)?))).collect();
    let names = ["document length", "query tiles", "heads per key-value head"];
    let operators = [
        ("gemm", Some(surface(&rows.products, ["m", "n", "k"], GEMM_START_S))),
        ("attention-128", law::operator(&rows.prefill, &[Law::Attention(AttentionLaw::default())], names)),
    ];
    Ok(Profile {
        operators: operators.into_iter().filter_map(|(name, operator)| Some((name.to_owned(), operator?))).collect(),
        memory,
        decode_attention: decode::law(&rows.alone, &rows.mixed),
        experts: experts::of_layers(&rows.experts, &gpu)
            .map(|curve| ("experts".to_owned(), curve))
            .into_iter()
            .collect(),
        ..provenance.profile()
    })
}

/// A surface with knots where the rows are: all of a few values, else at equal ratios.
fn surface(rows: &[Row], names: [&str; 3], start_s: f64) -> Operator {
    let axes = (0..3).map(|axis| Axis::new(names[axis], knots(rows, axis))).collect();
    let (surface, residuals) = fit::surface(rows, axes, start_s);
    Operator { residuals, kernel: None, start_s, law: None, surface }
}

/// Ratio of neighbouring knots where there are many values.
const KNOT_RATIO: f64 = 1.4;
/// Values of an axis that all become knots.
const VALUES_MAX: usize = 6;

fn knots(rows: &[Row], axis: usize) -> Vec<f64> {
    let mut values: Vec<f64> = rows.iter().map(|row| row.point[axis]).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let ratio = if values.len() <= VALUES_MAX { 1.0 } else { KNOT_RATIO };
    let last = values[values.len() - 1];
    let mut knots: Vec<f64> = Vec::new();
    for value in values {
        if knots.last().is_none_or(|knot| value >= knot * ratio) {
            knots.push(value);
        }
    }
    if let Some(knot) = knots.last_mut() {
        // The hull ends where the rows end.
        *knot = last;
    }
    knots
}

impl Rows {
    /// Products and memory-bound kernels.
    fn dense(&mut self, folder: &Folder, cluster: &Cluster) -> Result<(), ImportError> {
        let roofline = Roofline::new(cluster);
        for (file, size) in [("dense.csv", "tokens"), ("per_sequence.csv", "sequences")] {
            let table = Table::read(folder.path.join(file))?;
            let (layer, size, time) = (table.words("layer")?, table.numbers(size)?, table.numbers("time_us")?);
            for row in (0..layer.len()).filter(|&row| time[row] > 0.0) {
                let (m, seconds) = (hw::whole(size[row]), time[row] * 1e-6);
                if let Some([n, k]) = folder.product(&layer[row]) {
                    let point = [m, n, k].map(hw::real).to_vec();
                    let base_s = roofline.gemm_base(m, n, k, Format::Bf16).get();
                    self.products.push(Row { point, base_s, measured_s: seconds, shape: m });
                } else if let Some(bytes) = folder.bytes(&layer[row]) {
                    self.elementwise.push((size[row] * hw::real(bytes), seconds));
                } else if layer[row] == "embedding" {
                    let bytes = 2 * folder.model.hidden * WIDE;
                    self.embedding.push((size[row] * hw::real(bytes), seconds));
                }
            }
        }
        Ok(())
    }

    /// Layers of experts on one GPU that holds them all. Only some of the experts were visited, each by as many tokens.
    fn experts(&mut self, folder: &Folder) -> Result<(), ImportError> {
        let path = folder.path.join("moe.csv");
        let Some(experts) = folder.model.experts.filter(|_| path.exists()) else { return Ok(()) };
        let table = Table::read(path)?;
        let [tokens, visited, time] = table.columns(["tokens", "activated_experts", "time_us"])?;
        for ((tokens, visited), time_us) in tokens.into_iter().zip(visited).zip(time) {
            let (tokens, visited) = (hw::whole(tokens), hw::whole(visited));
            let routed = tokens * experts.top_k;
            let layer = FusedExperts {
                rows: (0..visited).map(|expert| routed / visited + u64::from(expert < routed % visited)).collect(),
                tokens,
                top_k: experts.top_k,
                hidden: folder.model.hidden,
                width: experts.intermediate / folder.tp,
                gated: folder.model.gated,
                format: Format::Bf16,
                tactic: Tactic::Tuned,
            };
            self.experts.push(Timed { layer, seconds: time_us * 1e-6, group: tokens });
        }
        Ok(())
    }

    /// Chunks by themselves, decoding sequences by themselves, and both in one launch.
    fn attention(&mut self, folder: &Folder, cluster: &Cluster) -> Result<(), ImportError> {
        let table = Table::read(folder.path.join("attention.csv"))?;
        let [new, past, n, keys, time] =
            table.columns(["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"])?;
        let m = &folder.model;
        let (n_heads, n_kv_heads) = (m.n_heads / folder.tp, m.n_kv_heads.div_ceil(folder.tp));
        let mut chunks: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        for row in (0..n.len()).filter(|&row| n[row] == 0.0 && new[row] > 0.0) {
            let (past, new, measured_s) = (hw::whole(past[row]), hw::whole(new[row]), time[row] * 1e-6);
            chunks.insert((new, past), measured_s);
            let document = Document::chunk(past, new);
            let op = Op::Attention {
                documents: vec![document],
                n_heads,
                n_kv_heads,
                head_dim: m.head_dim,
                kv: hw::Dtype::Bf16,
                pass: Pass::Forward,
            };
            let point = attention_point(&op).expect("attention").to_vec();
            self.prefill.push(law::Row { op, point, seconds: measured_s });
        }
        let bytes_per_key = hw::real(2 * n_kv_heads * m.head_dim * WIDE);
        for row in (0..n.len()).filter(|&row| n[row] > 0.0) {
            let chunk_s = if new[row] > 0.0 {
                chunks.get(&(hw::whole(new[row]), hw::whole(past[row]))).copied()
            } else {
                Some(0.0)
            };
            let Some(chunk_s) = chunk_s else { continue };
            let launch = Launch {
                heads: n[row] * hw::real(n_heads),
                read_s: n[row] * keys[row] * bytes_per_key / cluster.gpu.memory_bandwidth.get(),
                chunk_s,
                seconds: time[row] * 1e-6,
            };
            if new[row] == 0.0 {
                self.alone.push(launch);
            } else if n[row] * keys[row] <= MIXED_TOKENS_MAX {
                self.mixed.push(launch);
            }
        }
        Ok(())
    }
}
