//! Whole models on devices that are left out: the sum of their operators, each from its datasheet and the other devices' efficiencies.
//!
//! Source: sitar-lab/NeuSight @ 6945927d9afc, end to end runs in 32 bits without an optimizer, PyTorch in eager mode. Operators of a layer are those
//! of the models' own modules. Backward runs every product twice, and element-wise operators over one tensor more. Nothing is fitted. Units: seconds.

use crate::operators::{self, Datasheets, Operator, Predicted};
use crate::table::{Beside, Cells, Fault, Table};

/// Columns that tell the table from every other, and without which nothing can be said.
pub(crate) const NEEDED: [&str; 11] =
    ["device", "model", "mode", "seq_tokens", "batch_seqs", "gpus", "layers", "hidden", "heads", "vocab", "e2e_ms"];
/// Measured operators, in a file beside the table.
const OPERATORS: &str = "neusight_ops.csv.gz";

/// A run as it was measured.
#[derive(Clone, Debug)]
pub struct Network {
    line: u64,
    device: String,
    /// Model, whether it is trained, and whether its kernels are fused.
    name: String,
    measured_s: f64,
    /// Operators with how often they run; none where the model has parts that are not known.
    operators: Option<Vec<(f64, Operator)>>,
}

/// Runs of a table with the measured operators beside it.
#[derive(Clone, Debug)]
pub struct Networks {
    runs: Vec<Network>,
    known: Vec<Operator>,
}

/// Runs of a table; `None` where its header is of another one.
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<Networks, Vec<Fault>>> {
    let names: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    NEEDED.iter().all(|name| names.contains(name)).then(|| networks(text, beside))
}

fn networks(text: &str, beside: &Beside<'_>) -> Result<Networks, Vec<Fault>> {
    let datasheets = Datasheets::read(beside)?;
    let absent =
        || vec![Fault { line: 1, column: String::new(), what: format!("needs `{OPERATORS}` in the same folder") }];
    let known = beside(OPERATORS).ok_or_else(absent)?;
    let known = operators::read(&known, beside).ok_or_else(absent)??;
    let runs = Table::read(text, &NEEDED)?.read_rows(|cells| network(cells, &datasheets))?;
    Ok(Networks { runs, known })
}

/// Sizes of a run.
struct Shape {
    rows: f64,
    tokens: f64,
    batch: f64,
    layers: f64,
    hidden: f64,
    heads: f64,
    vocab: f64,
}

fn network(cells: &mut Cells<'_>, datasheets: &Datasheets) -> Network {
    let [device, model, mode] = ["device", "model", "mode"].map(|column| cells.word(column).to_owned());
    let mut of = |column: &str| f64::from(cells.positive(column));
    let (tokens, batch) = (of("seq_tokens"), of("batch_seqs"));
    let shape = Shape {
        rows: tokens * batch,
        tokens,
        batch,
        layers: of("layers"),
        hidden: of("hidden"),
        heads: of("heads"),
        vocab: of("vocab"),
    };
    let is_known = cells.word("gpus") == "1" && !model.starts_with("switch");
    let has_backward = mode == "train";
    let is_fused = cells.flag("fused");
    let list = is_known.then(|| operators_of(&shape, has_backward, is_fused));
    let on = |(n, op, sizes): (f64, &str, [f64; 4])| (n, datasheets.operator(cells, &device, op, sizes));
    let operators = list.map(|list| list.into_iter().map(on).collect());
    let fused = if is_fused { " fused" } else { "" };
    let name = format!("{mode} {model}{fused}");
    Network { line: cells.line, device, name, measured_s: cells.seconds("e2e_ms"), operators }
}

/// Operators of a transformer with separate projections and unfused attention: how often, its word, and its sizes (b, m, n, k for products,
/// rows and width for others).
fn operators_of(shape: &Shape, has_backward: bool, is_fused: bool) -> Vec<(f64, &'static str, [f64; 4])> {
    let Shape { rows, tokens, batch, layers, hidden, heads, vocab } = *shape;
    let linear = |n: f64, m: f64, k: f64| (n, "linear", [1.0, rows, m, k]);
    let groups = batch * heads;
    let scores = [groups * tokens, tokens, 1.0, 1.0];
    let wide = [rows, 4.0 * hidden, 1.0, 1.0];
    let narrow = [rows, hidden, 1.0, 1.0];
    // A compiler scales, masks and adds in the kernels behind.
    let apart = if is_fused { 0.0 } else { 1.0 };
    let forward = vec![
        linear(4.0 * layers, hidden, hidden),
        linear(layers, 4.0 * hidden, hidden),
        linear(layers, hidden, 4.0 * hidden),
        linear(1.0, vocab, hidden),
        (layers, "bmm", [groups, tokens, tokens, hidden / heads]),
        (layers, "bmm", [groups, tokens, hidden / heads, tokens]),
        // Scaled, masked, and softmax.
        (apart * layers, "divu", scores),
        (apart * layers, "add", scores),
        (layers, "softmax", scores),
        (layers, "gelu", wide),
        (apart * 2.0 * layers, "add", narrow),
        (2.0 * layers + 1.0, "ln", narrow),
    ];
    if !has_backward {
        return forward;
    }
    let backward = forward.iter().map(|&(n, op, sizes)| (if is_product(op) { 2.0 * n } else { 1.5 * n }, op, sizes));
    forward.iter().copied().chain(backward).collect()
}

fn is_product(op: &str) -> bool {
    matches!(op, "bmm" | "linear")
}

/// Every run from the devices that are not its own.
pub fn predict(networks: &Networks) -> Vec<Predicted> {
    let known = operators::by_device(&networks.known);
    let time = |network: &Network| -> Option<f64> {
        network.operators.as_ref()?.iter().map(|(n, operator)| Some(n * operators::time(operator, &known)?)).sum()
    };
    let of = |network: &Network| Predicted {
        line: network.line,
        device: network.device.clone(),
        op: network.name.clone(),
        measured_s: network.measured_s,
        predicted_s: time(network),
    };
    networks.runs.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "device,model,mode,seq_tokens,batch_seqs,fused,gpus,layers,hidden,heads,vocab,e2e_ms";

    /// Every operator of one device takes twice its least time, and the other device's datasheet is twice as fast.
    fn beside(name: &str) -> Option<String> {
        let sheets = "device,memory_bandwidth_gb_per_s,fp32_gflop_per_s\none,1,1\ntwo,2,2\n";
        let mut lines = "device,op,b,m,n,k,h,latency_ms\n".to_owned();
        for op in ["bmm", "linear"] {
            // 2 · 100³ operations at 1 GFLOP/s take 2 ms.
            lines += &format!("one,{op},1,100,100,100,,4\n");
        }
        for (op, ms) in [("divu", 0.08), ("add", 0.12), ("softmax", 0.08), ("gelu", 0.08), ("ln", 0.08)] {
            // 100 rows of 100 values of four bytes at 1 GB/s: 40 us a tensor.
            lines += &format!("one,{op},100,,,,100,{}\n", 2.0 * ms);
        }
        Some(if name == "neusight_devices.csv" { sheets.to_owned() } else { lines })
    }

    fn read_rows(lines: &str) -> Vec<Predicted> {
        predict(&read(&format!("{HEAD}\n{lines}"), &beside).expect("a table of networks").expect("no fault"))
    }

    #[test]
    fn a_network_is_the_sum_of_its_operators() {
        let found = read_rows("two,mine,inf,8,1,0,1,1,16,2,32,1\n");
        // Products are bound by bytes or operations; each operator takes twice its least time.
        let product = |b: f64, m: f64, n: f64, k: f64| {
            (2.0 * b * m * n * k / 2e9_f64).max(4.0 * b * (m * k + k * n + m * n) / 2e9)
        };
        let elements = |tensors: f64, n: f64| 4.0 * tensors * n / 2e9;
        let products = 4.0 * product(1.0, 8.0, 16.0, 16.0)
            + product(1.0, 8.0, 64.0, 16.0)
            + product(1.0, 8.0, 16.0, 64.0)
            + product(1.0, 8.0, 32.0, 16.0)
            + product(2.0, 8.0, 8.0, 8.0)
            + product(2.0, 8.0, 8.0, 8.0);
        let scores = 2.0 * 8.0 * 8.0;
        let others = elements(2.0 + 3.0 + 2.0, scores)
            + elements(2.0, 8.0 * 64.0)
            + 2.0 * elements(3.0, 8.0 * 16.0)
            + 3.0 * elements(2.0, 8.0 * 16.0);
        let wanted = 2.0 * (products + others);
        let predicted = found[0].predicted_s.expect("a time");
        assert!((predicted / wanted - 1.0).abs() < 1e-9, "{predicted} {wanted}");
    }

    #[test]
    fn training_is_longer_fused_is_shorter_and_experts_have_no_prediction() {
        let rows = ["inf,8,1,0", "train,8,1,0", "inf,8,1,1"].map(|middle| format!("two,mine,{middle},1,1,16,2,32,1\n"));
        let found = read_rows(&(rows.concat() + "two,switchxl4,inf,8,1,0,1,1,16,2,32,1\n"));
        let times: Vec<Option<f64>> = found.iter().map(|row| row.predicted_s).collect();
        assert!(times[1] > times[0].map(|time| 2.0 * time) && times[2] < times[0] && times[3].is_none(), "{times:?}");
    }
}
