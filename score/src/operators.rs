//! Measured operators of several devices, each device left out in turn: what its datasheet and the others' shape of efficiency say of it.
//!
//! Source: sitar-lab/NeuSight @ 6945927d9afc, operators in 32 bits without tensor cores. The least time of an operator is that of its
//! products or of its bytes by the datasheet, with the share of the bandwidth that its maker says is delivered; an efficiency is the least
//! time over the measured one. A device's efficiency is the middle of
//! those of other devices of the same maker, each taken from its nearest shapes. Nothing is fitted. Units: seconds.

use std::collections::{BTreeMap, BTreeSet};

use hw::quantile::median;
use rayon::prelude::*;
use serde::Serialize;

use crate::errors::mean;
use crate::table::{Beside, Cells, Fault, Table, has_columns, read_beside};
use crate::text::{or_dash, percent_1};

/// Datasheets, in a file beside the table.
const DEVICES: &str = "neusight_devices.csv";
/// Columns that tell the table from every other, and without which nothing can be said.
const NEEDED: [&str; 8] = ["device", "op", "b", "m", "n", "k", "h", "latency_ms"];
/// Shapes of a device that stand for one that it has not run.
const NEIGHBOURS: usize = 3;
/// Bytes of a value.
const BYTES: f64 = 4.0;

/// Share of the memory's peak that GPUs deliver since Volta. NVIDIA, Volta Tuning Guide (CUDA 12.4), 1.4.3.1: above 95 %.
const DELIVERED: f64 = 0.95;
/// Share that GP100 delivers: the same section says that Volta's controller delivers 1.5 times as many bytes, 900 GB/s against 732.
const DELIVERED_BY_GP100: f64 = DELIVERED * 900.0 / (1.5 * 732.0);

/// Peaks of a device.
#[derive(Clone, Copy)]
struct Datasheet {
    flops_per_s: f64,
    bytes_per_s: f64,
}

/// An operator as it was measured.
#[derive(Clone, Debug)]
pub struct Operator {
    device: String,
    op: String,
    line: u64,
    /// Logarithms of its sizes.
    shape: [f64; 4],
    /// Least time by the datasheet.
    least_s: f64,
    measured_s: f64,
}

/// An operator beside what is predicted of it.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// Line of the table.
    pub line: u64,
    /// Device that was left out.
    pub device: String,
    /// Operator.
    pub op: String,
    /// As it was measured.
    pub measured_s: f64,
    /// As the other devices say; absent where no other one ran the operator.
    pub predicted_s: Option<f64>,
    /// Why there is none, where that is known of the row.
    pub reason: Option<String>,
}

/// Errors of an operator on a device that was left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Device.
    pub device: String,
    /// Operator; `all` for every one of the device.
    pub op: String,
    /// Measurements.
    pub n_rows: usize,
    /// Those with a prediction.
    pub n_predicted: usize,
    /// Median of |predicted / measured − 1|.
    pub median_error: Option<f64>,
    /// Its mean.
    pub mean_error: Option<f64>,
}

/// Operators of a table; `None` where its header is of another one. `beside` reads the datasheets.
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<Vec<Operator>, Vec<Fault>>> {
    has_columns(text, &NEEDED).then(|| operators(text, beside))
}

fn operators(text: &str, beside: &Beside<'_>) -> Result<Vec<Operator>, Vec<Fault>> {
    let datasheets = Datasheets::read(beside)?;
    Table::read(text, &NEEDED)?.read_rows(|cells| operator(cells, &datasheets))
}

/// Datasheets of all devices by name.
pub(crate) struct Datasheets(BTreeMap<String, Datasheet>);

impl Datasheets {
    /// Those of the file beside a table.
    ///
    /// # Errors
    /// Every fault of that file.
    pub(crate) fn read(beside: &Beside<'_>) -> Result<Self, Vec<Fault>> {
        let needed = ["device", "memory_bandwidth_gb_per_s", "fp32_gflop_per_s"];
        Ok(Self(read_beside(beside, DEVICES, &needed, datasheet)?.into_iter().collect()))
    }

    /// An operator of a device: b, m, n, k of products, rows and width of others. Its measured time is unknown.
    pub(crate) fn operator(&self, cells: &mut Cells<'_>, device: &str, op: &str, sizes: [f64; 4]) -> Operator {
        let datasheet = self.0.get(device).copied().unwrap_or_else(|| {
            cells.fault("device", format!("`{device}` is not in `{DEVICES}`"));
            Datasheet { flops_per_s: 1.0, bytes_per_s: 1.0 }
        });
        let [b, m, n, k] = sizes;
        let (flops, bytes) = if is_product(op) {
            (2.0 * b * m * n * k, BYTES * b * (m * k + k * n + m * n))
        } else {
            (0.0, BYTES * tensors(op) * b * m)
        };
        Operator {
            device: device.to_owned(),
            line: cells.line,
            shape: sizes.map(libm::log),
            least_s: (flops / datasheet.flops_per_s).max(bytes / datasheet.bytes_per_s),
            measured_s: 1.0,
            op: op.to_owned(),
        }
    }
}

fn datasheet(cells: &mut Cells<'_>) -> (String, Datasheet) {
    let [bytes_per_s, flops_per_s] =
        ["memory_bandwidth_gb_per_s", "fp32_gflop_per_s"].map(|name| cells.number(name) * 1e9);
    let device = cells.word("device").to_owned();
    let bytes_per_s = bytes_per_s * delivered(&device);
    (device, Datasheet { flops_per_s, bytes_per_s })
}

/// Share of a device's memory bandwidth that its controller delivers.
fn delivered(device: &str) -> f64 {
    if device.starts_with("Tesla P100") { DELIVERED_BY_GP100 } else { DELIVERED }
}

fn operator(cells: &mut Cells<'_>, datasheets: &Datasheets) -> Operator {
    let [device, op] = ["device", "op"].map(|column| cells.word(column).to_owned());
    let [b, m, n, k, h] = ["b", "m", "n", "k", "h"].map(|name| f64::from(cells.count(name).unwrap_or(1).max(1)));
    let sizes = if is_product(&op) { [b, m, n, k] } else { [b, h, 1.0, 1.0] };
    let operator = datasheets.operator(cells, &device, &op, sizes);
    Operator { measured_s: cells.seconds("latency_ms"), ..operator }
}

/// Whether an operator multiplies matrices.
pub(crate) fn is_product(op: &str) -> bool {
    matches!(op, "bmm" | "linear")
}

impl Operator {
    pub(crate) fn is_product(&self) -> bool {
        is_product(&self.op)
    }
}

/// Tensors that an element-wise operator reads and writes: two inputs, or one.
fn tensors(op: &str) -> f64 {
    if matches!(op, "add" | "div" | "mul" | "pow") { 3.0 } else { 2.0 }
}

/// Predicts every operator from the devices that are not its own.
pub fn predict(operators: &[Operator]) -> Vec<Predicted> {
    let known = by_device(operators);
    let of = |operator: &Operator| Predicted {
        line: operator.line,
        device: operator.device.clone(),
        op: operator.op.clone(),
        measured_s: operator.measured_s,
        predicted_s: time_without(operator, &known, &operator.device),
        reason: None,
    };
    operators.par_iter().map(of).collect()
}

/// Operators by their word and device.
pub(crate) type Known<'o> = BTreeMap<(&'o str, &'o str), Vec<&'o Operator>>;

/// Measured operators by their word and device.
pub(crate) fn by_device(operators: &[Operator]) -> Known<'_> {
    let mut known = Known::new();
    for operator in operators {
        known.entry((&operator.op, &operator.device)).or_default().push(operator);
    }
    known
}

/// Time of an operator without what is known of one device.
pub(crate) fn time_without(operator: &Operator, known: &Known<'_>, left_out: &str) -> Option<f64> {
    efficiency(operator, known, left_out).map(|efficiency| operator.least_s / efficiency)
}

/// The device's own efficiency where it is not left out and was measured. Else the middle of the others' efficiencies, those of the same maker where
/// there are any.
fn efficiency(operator: &Operator, known: &Known<'_>, left_out: &str) -> Option<f64> {
    let (op, device) = (operator.op.as_str(), operator.device.as_str());
    if let Some(own) = known.get(&(op, device)).filter(|_| device != left_out) {
        return Some(libm::exp(nearest(operator, own)));
    }
    let is_other = |(of, _): &(&(&str, &str), &Vec<&Operator>)| of.0 == op && of.1 != left_out;
    let others: Vec<(&str, f64)> =
        known.iter().filter(is_other).map(|(of, all)| (of.1, nearest(operator, all))).collect();
    let own_maker: Vec<f64> =
        others.iter().filter(|(other, _)| maker(other) == maker(device)).map(|(_, log)| *log).collect();
    let logs = if own_maker.is_empty() { others.iter().map(|(_, log)| *log).collect() } else { own_maker };
    mean(&logs).map(libm::exp)
}

/// Whose device it is.
pub(crate) fn maker(device: &str) -> &'static str {
    if device.starts_with("AMD") { "AMD" } else { "NVIDIA" }
}

/// Mean logarithm of a device's efficiency at the shapes next to an operator's.
fn nearest(operator: &Operator, all: &[&Operator]) -> f64 {
    let mut found: Vec<(f64, f64)> = Vec::with_capacity(NEIGHBOURS + 1);
    for other in all {
        let distance: f64 = other.shape.iter().zip(operator.shape).map(|(a, b)| (a - b) * (a - b)).sum();
        let at = found.partition_point(|(known, _)| *known <= distance);
        if at < NEIGHBOURS {
            found.insert(at, (distance, libm::log(other.least_s / other.measured_s)));
            found.truncate(NEIGHBOURS);
        }
    }
    let logs: Vec<f64> = found.iter().map(|(_, log)| *log).collect();
    mean(&logs).unwrap_or(0.0)
}

/// Errors by device, and by operator of each.
pub fn groups(predicted: &[Predicted]) -> Vec<Group> {
    let devices: BTreeSet<&str> = predicted.iter().map(|row| row.device.as_str()).collect();
    let mut groups = Vec::new();
    for device in devices {
        let of_device: Vec<&Predicted> = predicted.iter().filter(|row| row.device == device).collect();
        groups.push(group(device, "all", &of_device));
        let ops: BTreeSet<&str> = of_device.iter().map(|row| row.op.as_str()).collect();
        for op in ops {
            let rows: Vec<&Predicted> = of_device.iter().copied().filter(|row| row.op == op).collect();
            groups.push(group(device, op, &rows));
        }
    }
    groups
}

fn group(device: &str, op: &str, rows: &[&Predicted]) -> Group {
    let error = |row: &&Predicted| Some((row.predicted_s? / row.measured_s - 1.0).abs());
    let errors: Vec<f64> = rows.iter().filter_map(error).collect();
    Group {
        device: device.to_owned(),
        op: op.to_owned(),
        n_rows: rows.len(),
        n_predicted: errors.len(),
        mean_error: mean(&errors),
        median_error: (!errors.is_empty()).then(|| median(&errors)),
    }
}

/// What the table of devices that are left out is headed with.
pub const LEFT_OUT: &str = "device left out";

/// Groups as a Markdown table, devices under a heading.
pub fn markdown(groups: &[Group], device: &str) -> String {
    let mut text = format!("| {device} | operator | rows | median | mean |\n|---|---|---|---|---|\n");
    for Group { device, op, n_rows, n_predicted, median_error, mean_error } in groups {
        let [median, mean] = [*median_error, *mean_error].map(|error| or_dash(error, percent_1));
        text += &format!("| {device} | {op} | {n_predicted}/{n_rows} | {median} | {mean} |\n");
    }
    text
}

/// Rows without a prediction by their reason; nothing where there are none.
pub fn reasons(predicted: &[Predicted]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in predicted.iter().filter_map(|row| row.reason.as_deref()) {
        *counts.entry(reason).or_default() += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let rows: String = counts.iter().map(|(reason, n)| format!("| {n} | {reason} |\n")).collect();
    format!("\n| rows without prediction | reason |\n|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_data::truth;

    const DATASHEETS: &str = "device,memory_bandwidth_gb_per_s,fp32_gflop_per_s\none,100,1000\ntwo,200,4000\n";

    fn read_rows(lines: &str) -> Result<Vec<Operator>, Vec<Fault>> {
        let beside = |_: &str| Some(DATASHEETS.to_owned());
        read(&format!("device,op,b,m,n,k,h,latency_ms\n{lines}"), &beside).expect("a table of operators")
    }

    #[test]
    fn a_device_takes_the_efficiency_of_another_one() {
        // 2 · 100³ operations at 1 TFLOP/s are 2 us, half of 4 us; the other device has a quarter of them, and half of its peak.
        let rows = read_rows("one,bmm,1,100,100,100,,0.004\ntwo,bmm,1,100,100,100,,0.002\n").expect("rows");
        let predicted = predict(&rows);
        let close = |found: Option<f64>, wanted: f64| (found.expect("a time") / wanted - 1.0).abs() < 1e-9;
        // By delivered bytes the second one needs 0.6 us / 0.95, more than its 0.5 us of operations: an efficiency of 0.3 / 0.95.
        assert!(close(predicted[1].predicted_s, 1.2e-6 / 0.95), "{predicted:?}");
        assert!(close(predicted[0].predicted_s, 2e-6 * 0.95 / 0.3), "{predicted:?}");
    }

    #[test]
    fn volta_delivers_half_as_many_bytes_again_as_gp100() {
        let ratio = delivered("Tesla V100-PCIE-32GB") * 900.0 / (delivered("Tesla P100-PCIE-16GB") * 732.0);
        assert!((ratio - 1.5).abs() < 1e-12, "{ratio}");
    }

    #[test]
    fn an_operator_that_no_other_device_ran_has_no_prediction() {
        let rows = read_rows("one,relu,8,,,,8,1\ntwo,add,8,,,,8,1\n").expect("rows");
        let groups = groups(&predict(&rows));
        assert!(groups.iter().all(|group| group.n_predicted == 0 && group.median_error.is_none()), "{groups:?}");
    }

    #[test]
    fn faults_are_named() {
        let faults = read_rows("three,relu,8,,,,8,1\none,relu,8,,,,8,-1\n").expect_err("faults");
        let words: Vec<String> = faults.iter().map(Fault::words).collect();
        assert_eq!(words[0], "line 2, column `device`: `three` is not in `neusight_devices.csv`");
        assert_eq!(words[1], "line 3, column `latency_ms`: must be above 0, found `-1`");
        assert!(read("row,model\n1,2\n", &|_| None).is_none());
    }

    #[test]
    fn every_device_of_neusight_is_met_from_the_others() {
        let Some(text) = truth("neusight_ops.csv.gz") else { return };
        let rows = read(&text, &truth).expect("a table of operators").expect("no fault");
        let groups = groups(&predict(&rows));
        println!("{}", markdown(&groups, LEFT_OUT));
        for group in groups.iter().filter(|group| group.op == "all") {
            assert_eq!(group.n_predicted, group.n_rows, "{}", group.device);
            // A100 lies at 7.8 %. V100 was at 15.6 % while GP100 was taken to deliver as much of its bandwidth as later cards do.
            assert!(group.median_error.expect("errors") < 0.08, "{group:?}");
        }
    }
}
