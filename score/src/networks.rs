//! Whole models on devices that are left out: the sum of their operators, each from its datasheet and the other devices' efficiencies.
//!
//! Source: sitar-lab/NeuSight @ 6945927d9afc, end to end runs in 32 bits without an optimizer. Operators are those of the models' own modules
//! (`modules.rs`, `switch.rs`), or those of Megatron-LM and what ranks exchange where there are several GPUs (`ranks.rs`). Where no device of a maker has measured products, whole runs on its other devices say how much longer they take than as the
//! other maker's shares say. Nothing is fitted to the device that is left out. Units: seconds.

mod kernel;
mod modules;
mod ranks;
mod switch;

use std::collections::BTreeMap;

use engine::cost::collective::{self, Network as Reached};
use hw::quantile::median;
use hw::{Cluster, GroupShape};

use crate::operators::{self, Datasheets, Known, Operator, Predicted};
use crate::reason::Reason;
use crate::table::{Beside, Cells, Fault, Table, has_columns};
use kernel::{Kernel, Sizes};
use modules::{Family, Run};
use ranks::{Degrees, Step};

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
    /// What runs, or why it cannot be said.
    work: Result<Work, Reason>,
}

/// Operators with how often they run, and what ranks exchange.
#[derive(Clone, Debug)]
struct Work {
    operators: Vec<(f64, Operator)>,
    exchanges: Vec<Exchanged>,
}

/// Exchanges of a size: how often, seconds of one, and what runs beside it.
#[derive(Clone, Debug)]
struct Exchanged {
    n: f64,
    time_s: f64,
    behind: Option<Operator>,
}

/// Cards by the device's name, as the catalogue has them with their links.
const CARDS: [(&str, &str); 5] = [
    ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ("NVIDIA A100-SXM4-40GB", "a100-sxm-40g"),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
    ("NVIDIA L4", "l4"),
];

/// Runs of a table with the measured operators beside it.
#[derive(Clone, Debug)]
pub struct Networks {
    runs: Vec<Network>,
    known: Vec<Operator>,
}

/// Runs of a table; `None` where its header is of another one.
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<Networks, Vec<Fault>>> {
    has_columns(text, &NEEDED).then(|| networks(text, beside))
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

fn network(cells: &mut Cells<'_>, datasheets: &Datasheets) -> Network {
    let [device, model, mode] = ["device", "model", "mode"].map(|column| cells.word(column).to_owned());
    let is_fused = cells.flag("fused");
    let sizes = {
        let of = |column: &str| f64::from(cells.positive(column));
        Sizes {
            tokens: of("seq_tokens"),
            batch: of("batch_seqs"),
            layers: of("layers"),
            hidden: of("hidden"),
            heads: of("heads"),
            vocab: of("vocab"),
        }
    };
    let is_trained = mode == "train";
    let work = if cells.word("gpus") == "1" {
        let kernels = kernels_of(&model, is_trained, is_fused, sizes);
        kernels.map(|kernels| Work { operators: timed(&kernels, &device, cells, datasheets), exchanges: vec![] })
    } else {
        on_ranks(&model, &device, is_trained, sizes, cells, datasheets)
    };
    let fused = if is_fused { " fused" } else { "" };
    let name = format!("{mode} {model}{fused}{}", layout(cells));
    Network { line: cells.line, device, name, measured_s: cells.seconds("e2e_ms"), work }
}

/// Degrees above 1.
fn layout(cells: &Cells<'_>) -> String {
    let of = |name: &str| match cells.word(name) {
        "" | "1" => String::new(),
        n => format!(" {name}{n}"),
    };
    ["dp", "tp", "pp"].map(of).concat()
}

/// Kernels of a model on one GPU.
fn kernels_of(model: &str, is_trained: bool, is_fused: bool, sizes: Sizes) -> Result<Vec<Kernel>, Reason> {
    if model == SWITCH {
        return Ok(switch::kernels(&sizes, is_trained));
    }
    let family = Family::named(model).ok_or_else(|| Reason::Model { word: model.to_owned() })?;
    Ok(modules::kernels(&Run { family, is_trained, is_fused, sizes }))
}

/// The model with experts, whose widths no column states.
const SWITCH: &str = "switchxl4";

fn timed(kernels: &[Kernel], device: &str, cells: &mut Cells<'_>, datasheets: &Datasheets) -> Vec<(f64, Operator)> {
    let of = |kernel: &Kernel| (kernel.n, datasheets.operator(cells, device, kernel.op, kernel.sizes));
    kernels.iter().map(of).collect()
}

/// A run on several GPUs of a node: a GPT that trains.
fn on_ranks(
    model: &str,
    device: &str,
    is_trained: bool,
    sizes: Sizes,
    cells: &mut Cells<'_>,
    datasheets: &Datasheets,
) -> Result<Work, Reason> {
    if Family::named(model) != Some(Family::Gpt) || !is_trained {
        let what = "a model on several GPUs that is no GPT in training".to_owned();
        return Err(Reason::Option { what });
    }
    let [dp, tp, pp] = ["dp", "tp", "pp"].map(|column| cells.count(column).unwrap_or(1).max(1));
    let gpus = cells.positive("gpus");
    if dp.saturating_mul(tp).saturating_mul(pp) != gpus {
        return Err(Reason::Degrees { what: format!("{dp} · {tp} · {pp} on {gpus} GPUs") });
    }
    let step = Step::new(sizes, Degrees { dp, tp, pp })?;
    let card = CARDS.iter().find(|(name, _)| *name == device);
    let gpu = card.and_then(|(_, card)| hw::catalog::gpu(card));
    let link = || Reason::Link { between: format!("{gpus} {device}") };
    let node = hw::catalog::cluster(&gpu.ok_or_else(link)?, 1, gpus);
    let mut exchanges = Vec::new();
    for exchange in step.exchanges() {
        let behind = exchange.behind.map(|kernel| datasheets.operator(cells, device, kernel.op, kernel.sizes));
        exchanges.push(Exchanged { n: exchange.n, time_s: seconds(&node, &exchange), behind });
    }
    Ok(Work { operators: timed(&step.kernels(), device, cells, datasheets), exchanges })
}

/// Time of an exchange inside a node, as its datasheet and the usual share of its links say.
fn seconds(node: &Cluster, exchange: &ranks::Exchange) -> f64 {
    let shape = GroupShape::inside(exchange.ranks);
    collective::time(node, &Reached::assumed(node), exchange.kind, hw::whole(exchange.bytes), shape).0.get()
}

/// Times of a run without what is known of a device: of its products, and of the rest.
#[derive(Clone, Copy)]
struct Parts {
    products_s: f64,
    others_s: f64,
}

impl Network {
    fn without(&self, left_out: &str, known: &Known<'_>) -> Option<Parts> {
        let mut parts = Parts { products_s: 0.0, others_s: 0.0 };
        let work = self.work.as_ref().ok()?;
        for (n, operator) in &work.operators {
            let time = n * operators::time_without(operator, known, left_out)?;
            if operator.is_product() {
                parts.products_s += time;
            } else {
                parts.others_s += time;
            }
        }
        for exchange in &work.exchanges {
            let hidden = exchange
                .behind
                .as_ref()
                .map_or(Some(0.0), |beside| operators::time_without(beside, known, left_out))?;
            parts.others_s += exchange.n * (exchange.time_s - hidden).max(0.0);
        }
        Some(parts)
    }
}

/// How much longer products take on a device that is left out than the shares of others say: 1 where a device of its maker has measured ones. Else
/// what whole runs on the maker's other devices say, in the middle: their time without what is no product, over their products.
fn longer(networks: &Networks, left_out: &str, known: &Known<'_>) -> f64 {
    let is_like = |device: &str| device != left_out && operators::maker(device) == operators::maker(left_out);
    if known.keys().any(|(op, device)| operators::is_product(op) && is_like(device)) {
        return 1.0;
    }
    let of = |run: &Network| {
        let Parts { products_s, others_s } = run.without(left_out, known)?;
        Some((run.measured_s - others_s) / products_s)
    };
    let found: Vec<f64> = networks.runs.iter().filter(|run| is_like(&run.device)).filter_map(of).collect();
    if found.is_empty() { 1.0 } else { median(&found) }
}

/// Every run from the devices that are not its own.
pub fn predict(networks: &Networks) -> Vec<Predicted> {
    let known = operators::by_device(&networks.known);
    let mut longer_by = BTreeMap::new();
    for run in &networks.runs {
        longer_by.entry(run.device.as_str()).or_insert_with(|| longer(networks, &run.device, &known));
    }
    let time = |run: &Network| {
        let Parts { products_s, others_s } = run.without(&run.device, &known)?;
        Some(products_s * longer_by[run.device.as_str()] + others_s)
    };
    let of = |run: &Network| Predicted {
        line: run.line,
        device: run.device.clone(),
        op: run.name.clone(),
        measured_s: run.measured_s,
        predicted_s: time(run),
        reason: run.work.as_ref().err().map(Reason::words),
    };
    networks.runs.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_data::truth;

    const HEAD: &str = "device,model,mode,seq_tokens,batch_seqs,fused,gpus,layers,hidden,heads,vocab,e2e_ms";

    /// Every operator of one device takes twice its least time. The second one's datasheet is twice as fast, and so are two of another maker.
    fn beside(name: &str) -> Option<String> {
        let sheets = "device,memory_bandwidth_gb_per_s,fp32_gflop_per_s\none,1,1\ntwo,2,2\nAMD a,2,2\nAMD b,2,2\n";
        let mut lines = "device,op,b,m,n,k,h,latency_ms\n".to_owned();
        for op in ["bmm", "linear"] {
            // 2 · 100³ operations at 1 GFLOP/s take 2 ms.
            lines += &format!("one,{op},1,100,100,100,,4\n");
        }
        // 100 rows of 100 values of four bytes at 1 GB/s: 40 us a tensor.
        for (op, ms) in [("addu", 0.08), ("softmax", 0.08), ("gelu", 0.08), ("ln", 0.08)] {
            lines += &format!("one,{op},100,,,,100,{}\n", 2.0 * ms);
        }
        for op in ["add", "mul"] {
            lines += &format!("one,{op},100,,,,100,{}\n", 2.0 * 0.12);
        }
        Some(if name == "neusight_devices.csv" { sheets.to_owned() } else { lines })
    }

    fn read_rows(lines: &str) -> Vec<Predicted> {
        predict(&read(&format!("{HEAD}\n{lines}"), &beside).expect("a table of networks").expect("no fault"))
    }

    /// Twice the least times of products and of the rest for a layer of BERT, 8 tokens of 16 numbers in two heads, on two GFLOP/s and 2 GB/s.
    fn bert() -> [f64; 2] {
        // Products are bound by bytes or operations.
        let product = |b: f64, m: f64, n: f64, k: f64| {
            (2.0 * b * m * n * k / 2e9_f64).max(4.0 * b * (m * k + k * n + m * n) / 2e9)
        };
        let elements = |tensors: f64, n: f64| 4.0 * tensors * n / 2e9;
        let products = 4.0 * product(1.0, 8.0, 16.0, 16.0)
            + 2.0 * product(1.0, 8.0, 64.0, 16.0)
            + 2.0 * product(2.0, 8.0, 8.0, 8.0);
        // Scaled, masked and softmax; the activation; the result by token, two residuals, three norms.
        let others = elements(2.0 + 2.0 + 2.0, 2.0 * 8.0 * 8.0)
            + elements(2.0, 8.0 * 64.0)
            + elements(2.0 + 2.0 * 3.0 + 3.0 * 2.0, 8.0 * 16.0);
        [2.0 * products, 2.0 * others]
    }

    fn close(found: &Predicted, wanted: f64) {
        let predicted = found.predicted_s.expect("a time");
        assert!((predicted / wanted - 1.0).abs() < 1e-9, "{predicted} {wanted}");
    }

    #[test]
    fn a_network_is_the_sum_of_its_operators() {
        let [products, others] = bert();
        close(&read_rows("two,bert_mine,inf,8,1,0,1,1,16,2,32,1\n")[0], products + others);
    }

    #[test]
    fn products_of_a_maker_without_measured_ones_take_as_long_as_its_other_devices_say() {
        let [products, others] = bert();
        // Products of the first device take three times as long as another maker's shares say, whatever the second one took.
        let measured_ms = 1e3 * (3.0 * products + others);
        let row = "bert_mine,inf,8,1,0,1,1,16,2,32";
        let found = read_rows(&format!("AMD a,{row},{measured_ms}\nAMD b,{row},1\ntwo,{row},1\n"));
        close(&found[1], 3.0 * products + others);
        close(&found[2], products + others);
    }

    #[test]
    fn training_is_longer_fused_is_shorter_and_an_unknown_model_has_its_reason() {
        let rows =
            ["inf,8,1,0", "train,8,1,0", "inf,8,1,1"].map(|middle| format!("two,bert_mine,{middle},1,1,16,2,32,1\n"));
        let found = read_rows(&(rows.concat() + "two,t5,inf,8,1,0,1,1,16,2,32,1\n"));
        let times: Vec<Option<f64>> = found.iter().map(|row| row.predicted_s).collect();
        assert!(times[1] > times[0].map(|time| 2.0 * time) && times[2] < times[0] && times[3].is_none(), "{times:?}");
        assert_eq!(found[3].reason.as_deref(), Some("a model whose shape is not known: t5"));
    }

    #[test]
    fn ranks_need_a_link_and_degrees_that_make_their_number() {
        let head = "device,model,mode,seq_tokens,batch_seqs,fused,gpus,dp,tp,pp,layers,hidden,heads,vocab,e2e_ms";
        let sheets = |name: &str| {
            let found = beside(name)?;
            let more = "NVIDIA H100 80GB HBM3,2,2\n";
            Some(if name == "neusight_devices.csv" { found + more } else { found + "one,tanh,100,,,,100,1\n" })
        };
        let of = |device: &str, model: &str, mode: &str, cut: &str| {
            let text = format!("{head}\n{device},{model},{mode},8,4,0,4,{cut},4,16,4,32,1\n");
            let found = read(&text, &sheets).expect("a table of networks").expect("no fault");
            predict(&found).remove(0)
        };
        let card = "NVIDIA H100 80GB HBM3";
        assert!(of(card, "gpt_mine", "train", "4,1,1").predicted_s.is_some());
        assert_eq!(of(card, "gpt_mine", "train", "1,4,1").op, "train gpt_mine tp4");
        for (device, model, mode, cut, reason) in [
            ("two", "gpt_mine", "train", "4,1,1", "cards between which no link is stated: 4 two"),
            (
                card,
                "gpt_mine",
                "train",
                "2,1,1",
                "degrees that do not divide the model, the GPUs or the batch: 2 · 1 · 1 on 4 GPUs",
            ),
            (
                card,
                "gpt_mine",
                "inf",
                "4,1,1",
                "an option that is not modelled: a model on several GPUs that is no GPT in training",
            ),
        ] {
            assert_eq!(of(device, model, mode, cut).reason.as_deref(), Some(reason));
        }
    }

    /// Measured runs; none where the tables are absent.
    fn measured() -> Option<Networks> {
        Some(read(&truth("neusight_e2e.csv")?, &truth).expect("a table").expect("no fault"))
    }

    #[test]
    fn whole_models_are_met_from_the_other_devices() {
        let Some(networks) = measured() else { return };
        let groups = operators::groups(&predict(&networks));
        println!("{}", operators::markdown(&groups, operators::LEFT_OUT));
        for group in groups.iter().filter(|group| group.op == "all") {
            // V100's products reach more of its peak than those of any other device.
            let most = if group.device.starts_with("Tesla V100") { 0.22 } else { 0.12 };
            assert!(group.mean_error.expect("errors") < most, "{group:?}");
        }
    }

    /// Whether the list of kernels is right shows where every kernel has its own device's time.
    #[test]
    fn kernels_of_a_whole_model_add_up_to_it_on_a_device_that_measured_them() {
        let Some(networks) = measured() else { return };
        let known = operators::by_device(&networks.known);
        for device in ["Tesla V100-PCIE-32GB", "Tesla P100-PCIE-16GB", "NVIDIA A100-PCIE-40GB"] {
            let error = |run: &Network| {
                let Parts { products_s, others_s } = run.without("none", &known)?;
                Some(((products_s + others_s) / run.measured_s - 1.0).abs())
            };
            let errors: Vec<f64> = networks.runs.iter().filter(|run| run.device == device).filter_map(error).collect();
            let found = crate::errors::mean(&errors).expect("runs");
            println!("{device}: {found:.3}");
            assert!(found < 0.07, "{device}: {found}");
        }
    }
}
