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

/// Runs of a table with the operators beside it; `None` where its header is of another one.
#[must_use]
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<(Vec<Network>, Vec<Operator>), Vec<Fault>>> {
    let names: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    NEEDED.iter().all(|name| names.contains(name)).then(|| networks(text, beside))
}

fn networks(text: &str, beside: &Beside<'_>) -> Result<(Vec<Network>, Vec<Operator>), Vec<Fault>> {
    let datasheets = Datasheets::read(beside)?;
    let absent =
        || vec![Fault { line: 1, column: String::new(), what: format!("needs `{OPERATORS}` in the same folder") }];
    let known = beside(OPERATORS).ok_or_else(absent)?;
    let known = operators::read(&known, beside).ok_or_else(absent)??;
    let networks = Table::read(text, &NEEDED)?.read_rows(|cells| network(cells, &datasheets))?;
    Ok((networks, known))
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
#[must_use]
pub fn predict(networks: &[Network], known: &[Operator]) -> Vec<Predicted> {
    let known = operators::by_device(known);
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
    networks.iter().map(of).collect()
}
