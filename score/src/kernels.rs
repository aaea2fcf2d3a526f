//! Measured kernels of training on one card, forward and backward, over what its costs say of them.
//!
//! The format is that of SimuMax's operator tables (MooreThreads/SimuMax @ 4dcaae513ba7): products, products of experts, attention. Sizes of products
//! are those of the kernel; those of experts are forward's at every stage. A table may say the format of products and the kernel that ran. What PyTorch's own modules
//! run (FlashAttention 2, CUTLASS) is compared with the costs of that framework, and the rest with those of Transformer Engine. Units: seconds.

use engine::cost::CostModel;
use engine::shard::{Casts, Framework, TorchModules};
use engine::task::{Document, Op, Pass, PassKind};
use hw::{Dtype, Format};

use crate::operators::Predicted;
use crate::table::{Cells, Fault, Table, has_columns};
use crate::training::play::Costs;

/// Columns that tell the table from every other, and without which nothing can be said.
pub(crate) const NEEDED: [&str; 11] =
    ["gpu", "op", "stage", "batch", "groups", "m", "k", "n", "seq_tokens", "qk_head_dim", "time_ms"];

/// Kernels of PyTorch's own modules: attention on Hopper, and experts in one launch (`torch._grouped_mm`).
const OF_TORCH: [&str; 2] = ["flash", "cutlass"];

/// A kernel as it was measured.
#[derive(Clone, Debug)]
pub struct Kernel {
    line: u64,
    card: String,
    /// What it computes, and in which direction.
    name: String,
    /// Equal kernels, one after another.
    n: u32,
    op: Op,
    /// Whose kernel it is.
    framework: Framework,
    measured_s: f64,
}

/// Kernels of a table; `None` where its header is of another one.
pub fn read(text: &str) -> Option<Result<Vec<Kernel>, Vec<Fault>>> {
    has_columns(text, &NEEDED).then(|| Table::read(text, &NEEDED).and_then(|table| table.read_rows(kernel)))
}

fn kernel(cells: &mut Cells<'_>) -> Kernel {
    let [op, stage] = ["op", "stage"].map(|column| cells.word(column).to_owned());
    let kind = match stage.as_str() {
        "data gradient" => PassKind::Input,
        "weight gradient" => PassKind::Weight,
        _ => PassKind::Forward,
    };
    let batch = cells.count("batch").unwrap_or(1).max(1);
    let (n, op) = match op.as_str() {
        "matmul" => (batch, product(cells)),
        "group_matmul" => (1, experts(cells, kind)),
        "sdp_fwd" => (1, attention(cells, batch, Pass::Forward)),
        "sdp_bwd" => (1, attention(cells, batch, Pass::Backward)),
        word => {
            cells.fault("op", format!("`{word}` is none of matmul, group_matmul, sdp_fwd, sdp_bwd"));
            (1, Op::Elementwise { bytes: 1 })
        }
    };
    let [kernel, format] = ["kernel", "format"].map(|column| cells.word(column).to_owned());
    let format = if matches!(format.as_str(), "" | "bf16") { String::new() } else { format!(" {format}") };
    let (name, card) = (format!("{} {stage}{format}", cells.word("op")), cells.word("gpu").to_owned());
    let framework = framework(&kernel);
    Kernel { line: cells.line, card, name, n, op, framework, measured_s: cells.seconds("time_ms") }
}

/// Whose modules run a kernel.
fn framework(kernel: &str) -> Framework {
    let modules =
        TorchModules { compiled: true, casts: Casts::Off, in_pieces: false, fused_norms: true, repeats_keys: true };
    if OF_TORCH.contains(&kernel) { Framework::Fsdp2(modules) } else { Framework::MegatronCore }
}

fn sizes(cells: &mut Cells<'_>) -> [u64; 3] {
    ["m", "n", "k"].map(|column| u64::from(cells.positive(column)))
}

fn product(cells: &mut Cells<'_>) -> Op {
    let [m, n, k] = sizes(cells);
    let word = cells.word("format").to_owned();
    let format = if word.is_empty() { Some(Format::Bf16) } else { Format::of_word(&word) };
    if format.is_none() {
        cells.fault("format", format!("`{word}` is no format of products"));
    }
    Op::Gemm { m, n, k, format: format.unwrap_or(Format::Bf16) }
}

fn experts(cells: &mut Cells<'_>, kind: PassKind) -> Op {
    let [m, n, k] = sizes(cells);
    // The gradient of inputs has columns and inner dimension of forward exchanged.
    let (n, k) = if kind == PassKind::Input { (k, n) } else { (n, k) };
    Op::GroupedGemm { rows: vec![m; cells.positive("groups") as usize], n, k, format: Format::Bf16, kind }
}

fn attention(cells: &mut Cells<'_>, batch: u32, pass: Pass) -> Op {
    let [tokens, n_heads, n_kv_heads, head_dim] =
        ["seq_tokens", "heads", "kv_heads", "qk_head_dim"].map(|column| u64::from(cells.positive(column)));
    let documents = vec![Document::causal(tokens); batch as usize];
    Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: Dtype::Bf16, pass }
}

/// Every kernel beside what costs say of its card; no prediction where the card is not in the catalogue.
pub fn predict(kernels: &[Kernel], costs: &Costs<'_>) -> Vec<Predicted> {
    let of = |kernel: &Kernel| {
        let cluster = crate::training::setting::one_card(&kernel.card);
        let predicted = cluster
            .map(|cluster| costs(&cluster, kernel.framework).estimate(&kernel.op).time.get() * f64::from(kernel.n));
        Predicted {
            line: kernel.line,
            device: kernel.card.clone(),
            op: kernel.name.clone(),
            measured_s: kernel.measured_s,
            predicted_s: predicted,
            reason: None,
        }
    };
    kernels.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;

    use super::*;

    const HEAD: &str = "gpu,op,stage,batch,groups,m,k,n,seq_tokens,heads,kv_heads,qk_head_dim,time_ms";

    #[test]
    fn kernels_are_those_of_their_rows() {
        let text = format!(
            "{HEAD}\nB200,matmul,forward,1,,4096,8192,1024,,,,,1\nB200,group_matmul,data gradient,,8,64,512,256,,,,,1\n\
             B200,sdp_bwd,backward,2,,,,,4096,32,8,128,1\nB900,matmul,forward,1,,1,1,1,,,,,1\n"
        );
        let kernels = read(&text).expect("a table of kernels").expect("no fault");
        assert_eq!(kernels[0].op, Op::Gemm { m: 4096, n: 1024, k: 8192, format: Format::Bf16 });
        let Op::GroupedGemm { rows, n, k, .. } = &kernels[1].op else { panic!("experts") };
        assert_eq!((rows.len(), *n, *k), (8, 512, 256));
        assert!((kernels[2].op.flops() / (2.0 * 8.0 * 4096.0 * 4097.0 / 2.0 * 32.0 * 128.0) - 1.0).abs() < 1e-9);
        let predicted = predict(&kernels, &|cluster, _| Box::new(Roofline::new(cluster)));
        assert!(predicted[0].predicted_s.is_some() && predicted[3].predicted_s.is_none());
        let faults = read(&format!("{HEAD}\nB200,conv,forward,1,,1,1,1,,,,,1\n")).expect("known").expect_err("a fault");
        assert_eq!(faults[0].words(), "line 2, column `op`: `conv` is none of matmul, group_matmul, sdp_fwd, sdp_bwd");
        assert!(read("row,model\n1,2\n").is_none());
    }

    #[test]
    fn a_table_may_say_the_format_and_whose_kernel_it_is() {
        let head = format!("{HEAD},format,kernel");
        let text = format!(
            "{head}\nH100,matmul,forward,1,,512,256,128,,,,,1,fp8,cublas\nH100,sdp_fwd,forward,1,,,,,4096,32,8,128,1,bf16,flash\n"
        );
        let kernels = read(&text).expect("a table of kernels").expect("no fault");
        assert_eq!(kernels[0].op, Op::Gemm { m: 512, n: 128, k: 256, format: Format::Fp8 });
        assert_eq!(kernels[0].name, "matmul forward fp8");
        assert_eq!(kernels.iter().map(|kernel| kernel.framework.torch().is_some()).collect::<Vec<_>>(), [false, true]);
        let faults =
            read(&format!("{head}\nH100,matmul,forward,1,,1,1,1,,,,,1,fp9,\n")).expect("known").expect_err("a fault");
        assert_eq!(faults[0].words(), "line 2, column `format`: `fp9` is no format of products");
    }
}
