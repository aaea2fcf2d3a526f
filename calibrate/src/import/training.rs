//! Tables of kernels of training, forward and backward → a profile: products, grouped products by pass, attention and its backward.
//!
//! The format is that of the operator tables of MooreThreads/SimuMax: one CSV, a kernel a line, milliseconds. Attention is counted there as
//! the full square though the kernels are causal; only its time is read. Every operator is a correction of the datasheet roofline. A table may say the format of
//! an operator, the kernel that ran (`calibrate/torch/operators.py`), and the window of attention (`profiles/published/cudnn`).

use std::path::Path;

use engine::cost::names;
use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::{ATTENTION_TILE, computed, document_length};
use engine::cost::roofline::Roofline;
use engine::task::{Document, PassKind};
use hw::{Dtype, Format};

use super::{ImportError, Provenance, Table};
use crate::fit::{Row, surfaces};

/// Start-up of a kernel, seconds; the surface corrects what it leaves.
const START_S: f64 = 2e-6;
/// Backward of attention.
const BACKWARD: &str = "sdp_bwd";
/// Width of a head of queries and keys of latent attention.
const LATENT: u64 = 192;
/// Widths of heads that tables have; none stands for latent attention.
const WIDTHS: [Option<u64>; 4] = [Some(64), Some(128), Some(256), None];
const SIZES: [f64; 8] = [128.0, 512.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 131_072.0];
const LENGTHS: [f64; 6] = [384.0, 2048.0, 4096.0, 16_384.0, 65_536.0, 131_072.0];
const TILES: [f64; 5] = [128.0, 512.0, 2048.0, 8192.0, 131_072.0];
const GROUPS: [f64; 3] = [1.0, 8.0, 32.0];
const ROWS: [f64; 5] = [128.0, 256.0, 512.0, 1024.0, 8192.0];
const EXPERTS: [f64; 4] = [16.0, 64.0, 128.0, 256.0];
const ELEMENTS: [f64; 3] = [4_194_304.0, 16_777_216.0, 67_108_864.0];

/// Columns of the table as they are used.
struct Columns {
    op: Vec<String>,
    stage: Vec<String>,
    /// Format of an operator.
    format: Vec<Format>,
    /// Last keys that a query of attention sees, itself among them; none without a window.
    window: Vec<Option<u64>>,
    /// What ran; empty where the table does not say it.
    kernel: Vec<String>,
    numbers: [Vec<f64>; NUMBERS.len()],
}

const NUMBERS: [&str; 10] =
    ["m", "n", "k", "groups", "batch", "seq_tokens", "heads", "kv_heads", "qk_head_dim", "time_ms"];

impl Columns {
    fn of(&self, name: &str, row: usize) -> f64 {
        let column = NUMBERS.iter().position(|known| *known == name).expect("a column of the list");
        self.numbers[column][row]
    }

    fn count(&self, name: &str, row: usize) -> u64 {
        hw::whole(self.of(name, row))
    }

    /// Rows of an operation, of one stage where that is asked for.
    fn rows(&self, op: &str, stage: &str) -> Vec<usize> {
        let is_asked = |row: &usize| self.op[*row] == op && (stage.is_empty() || self.stage[*row] == stage);
        (0..self.op.len()).filter(is_asked).collect()
    }

    /// Formats of products, each once.
    fn formats(&self) -> Vec<Format> {
        let rows = self.rows("matmul", "");
        Format::ALL.into_iter().filter(|format| rows.iter().any(|row| self.format[*row] == *format)).collect()
    }

    /// Formats of attention. Of those in 8 bits scales per block come first, as recipes with scales per block are those that ask for 8 bits.
    fn formats_of_attention(&self, op: &str) -> Vec<(Dtype, Format)> {
        let rows = self.rows(op, "");
        let has = |format: &Format| rows.iter().any(|row| self.format[*row] == *format);
        let narrow = [Format::Mxfp8, Format::Fp8].into_iter().find(has);
        let wide = Some(Format::Bf16).filter(has);
        wide.map(|format| (Dtype::Bf16, format)).into_iter().chain(narrow.map(|format| (Dtype::Fp8, format))).collect()
    }

    /// What a query of a sequence sees in a row.
    fn document(&self, row: usize) -> Document {
        let tokens = self.count("seq_tokens", row);
        let whole = Document::causal(tokens);
        let Some(window) = self.window[row].filter(|window| *window < tokens) else { return whole };
        Document { pairs: Document::causal(window).pairs + (tokens - window) * window, ..whole }
    }

    /// An operator with the kernel that its rows name.
    fn named(&self, operator: Option<Operator>, rows: &[usize]) -> Option<Operator> {
        let kernel = rows.first().map(|row| self.kernel[*row].clone()).filter(|kernel| !kernel.is_empty());
        operator.map(|operator| Operator { kernel, ..operator })
    }
}

/// Fits the table of a device.
///
/// # Errors
/// When the GPU is unknown or the table is missing or broken.
pub fn operator_tables(path: &Path, provenance: &Provenance) -> Result<Profile, ImportError> {
    let gpu = provenance.gpu()?;
    let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
    let table = Table::read(path.to_owned())?;
    let numbers = table.columns(NUMBERS)?;
    let (op, stage, format) = (table.words("op")?, table.words("stage")?, table.formats()?);
    let window = table.words_if_any("window").iter().map(|word| word.parse().ok()).collect();
    let columns = Columns { op, stage, format, window, kernel: table.words_if_any("kernel"), numbers };
    let mut profile = provenance.profile();
    let mut put = |name: String, operator: Option<Operator>| {
        profile.operators.extend(operator.map(|operator| (name, operator)));
    };
    for format in columns.formats() {
        put(names::of_format("gemm", format), products(&columns, &roofline, format));
    }
    let stages =
        [(PassKind::Forward, "forward"), (PassKind::Input, "data gradient"), (PassKind::Weight, "weight gradient")];
    for (kind, stage) in stages {
        put(names::grouped_training(kind).to_owned(), grouped(&columns, &roofline, stage));
    }
    for (op, kernel) in [("sdp_fwd", "attention"), (BACKWARD, "attention-backward")] {
        for (kv, format) in columns.formats_of_attention(op) {
            for width in WIDTHS {
                put(names::of_width(kernel, width, kv), attention(&columns, &roofline, op, format, width));
            }
        }
    }
    Ok(profile)
}

fn products(columns: &Columns, roofline: &Roofline, format: Format) -> Option<Operator> {
    let row = |row: usize| {
        let [m, n, k] = ["m", "n", "k"].map(|name| columns.count(name, row));
        Row {
            point: [m, n, k].map(hw::real).to_vec(),
            base_s: roofline.gemm_base(m, n, k, format).get(),
            measured_s: columns.of("time_ms", row) / 1e3,
            shape: n * 1_000_003 + k,
        }
    };
    let mut rows = columns.rows("matmul", "");
    rows.retain(|at| columns.format[*at] == format);
    let found =
        surfaces::operator(&rows.iter().copied().map(row).collect::<Vec<Row>>(), ["m", "n", "k"], [&SIZES; 3], START_S);
    columns.named(found, &rows)
}

/// Experts in one launch, by pass.
fn grouped(columns: &Columns, roofline: &Roofline, stage: &str) -> Option<Operator> {
    let row = |row: usize| {
        let [m, n, k, groups] = ["m", "n", "k", "groups"].map(|name| columns.count(name, row));
        // The table writes forward's shape at every stage; the gradient of inputs has its columns and its inner dimension exchanged.
        let (n, k) = if stage == "data gradient" { (k, n) } else { (n, k) };
        Row {
            point: [m, groups, n * k].map(hw::real).to_vec(),
            base_s: roofline.gemm_base(m, n, k, Format::Bf16).get() * hw::real(groups),
            measured_s: columns.of("time_ms", row) / 1e3,
            shape: groups * 1_000_003 + n,
        }
    };
    let rows = columns.rows("group_matmul", stage);
    let axes = ["rows per expert", "experts with rows", "elements of an expert"];
    let points: Vec<Row> = rows.iter().copied().map(row).collect();
    columns.named(surfaces::operator(&points, axes, [&ROWS, &EXPERTS, &ELEMENTS], START_S), &rows)
}

/// Attention of heads of a width, or latent attention where no width is given. Backward in 8 bits leaves no key out for a window (`engine::layer::attention`).
fn attention(columns: &Columns, roofline: &Roofline, op: &str, format: Format, width: Option<u64>) -> Option<Operator> {
    let width = width.unwrap_or(LATENT);
    let row = |row: usize| {
        let [batch, tokens, heads, kv] =
            ["batch", "seq_tokens", "heads", "kv_heads"].map(|name| columns.count(name, row));
        let heeds_window = format.is_whole() || op != BACKWARD;
        let document = if heeds_window { computed(&columns.document(row)) } else { Document::causal(tokens) };
        let tiles = batch * heads * tokens.div_ceil(ATTENTION_TILE);
        Row {
            point: vec![document_length(&document), hw::real(tiles), hw::real(heads) / hw::real(kv)],
            base_s: roofline.attention_base(&document, heads, kv, width).get() * hw::real(batch),
            measured_s: columns.of("time_ms", row) / 1e3,
            shape: heads * 1_000_003 + kv * 1009 + tokens,
        }
    };
    let mut rows = columns.rows(op, "");
    rows.retain(|&row| columns.count("qk_head_dim", row) == width && columns.format[row] == format);
    let names = ["document length", "query tiles", "heads per key-value head"];
    let points: Vec<Row> = rows.iter().copied().map(row).collect();
    columns.named(surfaces::operator(&points, names, [&LENGTHS, &TILES, &GROUPS], START_S), &rows)
}

#[cfg(test)]
mod tests {
    use engine::cost::CostModel;
    use engine::cost::profiled::Profiled;
    use engine::task::{Op, Pass};

    use super::*;

    const HEAD: &str = "gpu,op,stage,batch,groups,m,k,n,seq_tokens,heads,kv_heads,qk_head_dim,time_ms";

    /// A table in which every kernel runs at half of the datasheet's speed and backward of attention at three times forward.
    fn table() -> String {
        let gpu = hw::catalog::gpu("b200").expect("listed");
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
        let mut lines = vec![HEAD.to_owned()];
        for (m, n, k) in [(4096, 8192, 8192), (8192, 8192, 4096), (4096, 28_672, 8192), (16_384, 8192, 28_672)] {
            let ms = roofline.gemm_base(m, n, k, Format::Bf16).get() * 2e3 + 2e-3;
            lines.push(format!("B200,matmul,forward,1,,{m},{k},{n},,,,,{ms}"));
            let grouped = roofline.gemm_base(m, n, k, Format::Bf16).get() * 8.0 * 2e3 + 2e-3;
            lines.push(format!("B200,group_matmul,forward,,8,{m},{k},{n},,,,,{grouped}"));
        }
        for tokens in [4096, 8192, 32_768] {
            let ms = roofline.attention_base(&Document::causal(tokens), 64, 8, 128).get() * 2e3;
            lines.push(format!("B200,sdp_fwd,forward,1,,,,,{tokens},64,8,128,{}", ms + 2e-3));
            lines.push(format!("B200,sdp_bwd,backward,1,,,,,{tokens},64,8,128,{}", 3.0 * ms + 2e-3));
        }
        lines.join("\n") + "\n"
    }

    /// The profile of a table, which lies in a file while it is read.
    fn fitted(name: &str, gpu: &str, table: &str) -> Profile {
        let path = std::env::temp_dir().join(format!("skrull-sim-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, table).expect("a temporary file");
        let [name, gpu, source, date] = [gpu, gpu, "test", "2026-11-22"].map(str::to_owned);
        let profile = operator_tables(&path, &Provenance { name, gpu, source, date }).expect("a table");
        std::fs::remove_file(&path).expect("it was written");
        profile
    }

    #[test]
    fn what_the_table_says_is_found_again() {
        let profile = fitted("training", "b200", &table());
        let gpu = hw::catalog::gpu("b200").expect("listed");
        let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 8));
        let attention = |pass| Op::Attention {
            documents: vec![Document::causal(8192)],
            n_heads: 64,
            n_kv_heads: 8,
            head_dim: 128,
            kv: Dtype::Bf16,
            pass,
        };
        let time = |op: &Op| costs.estimate(op).time.get() - START_S;
        let ratio = time(&attention(Pass::Backward)) / time(&attention(Pass::Forward));
        assert!((ratio - 3.0).abs() < 0.01, "{ratio}");
        let gemm = Op::Gemm { m: 4096, n: 8192, k: 8192, format: Format::Bf16 };
        let half = gemm.flops() / gpu.peak(Format::Bf16).get() * 2.0;
        assert!((time(&gemm) / half - 1.0).abs() < 0.01);
        let experts = |kind| Op::GroupedGemm { rows: vec![4096; 8], n: 8192, k: 8192, format: Format::Bf16, kind };
        assert!((time(&experts(PassKind::Forward)) / (8.0 * half) - 1.0).abs() < 0.01);
        assert!(!profile.operators.contains_key("grouped-gemm-weight"), "no rows, no curve");
    }

    #[test]
    fn windows_and_formats_of_attention_are_heeded() {
        // Kernels at half of the datasheet's speed, backward in 8 bits with all keys whatever the window.
        let gpu = hw::catalog::gpu("gb200").expect("listed");
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 4));
        let seen = |tokens: u64| Document { pairs: 128 * tokens - 128 * 127 / 2, ..Document::causal(tokens) };
        let base = |document: &Document| roofline.attention_base(document, 128, 128, 64).get() * 2e3;
        let mut lines = vec![format!("{HEAD},format,window")];
        for tokens in [2048, 4096, 8192, 16_384] {
            let (near, all) = (base(&computed(&seen(tokens))), base(&Document::causal(tokens)));
            for (op, format, ms) in [
                ("sdp_fwd", "bf16", near),
                ("sdp_bwd", "bf16", 2.0 * near),
                ("sdp_fwd", "mxfp8", near),
                ("sdp_bwd", "mxfp8", 2.0 * all),
                ("sdp_bwd", "fp8", 9.0 * all),
            ] {
                lines.push(format!("GB200,{op},,2,,,,,{tokens},128,128,64,{},{format},128", 2.0 * ms + 2e-3));
            }
        }
        let profile = fitted("windows", "gb200", &(lines.join("\n") + "\n"));
        let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 4));
        let ms = |document: Document, kv, pass| {
            let op =
                Op::Attention { documents: vec![document; 2], n_heads: 128, n_kv_heads: 128, head_dim: 64, kv, pass };
            costs.estimate(&op).time.get() * 1e3
        };
        let near = 2.0 * base(&computed(&seen(4096)));
        for (kv, factor) in [(Dtype::Bf16, 1.0), (Dtype::Fp8, 1.0)] {
            let found = ms(seen(4096), kv, Pass::Forward);
            assert!((found / (factor * near) - 1.0).abs() < 0.03, "{kv:?}: {found} {near}");
        }
        assert!((ms(seen(4096), Dtype::Bf16, Pass::Backward) / (2.0 * near) - 1.0).abs() < 0.03);
        // A layer asks for all keys where 8 bits run backward; scales per block come before one scale.
        let all = 4.0 * base(&Document::causal(4096));
        let found = ms(Document::causal(4096), Dtype::Fp8, Pass::Backward);
        assert!((found / all - 1.0).abs() < 0.03, "{found} {all}");
    }
}
