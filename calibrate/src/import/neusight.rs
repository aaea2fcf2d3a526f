//! Tables of operators in 32 bits without tensor cores → a profile: products, and memory-bound kernels.
//!
//! The format is that of sitar-lab/NeuSight (scripts/asplos): one CSV, an operator of a device a line, milliseconds. The rows of one device are taken. Products
//! of one matrix are fitted; batches of small ones are another kernel, and are left out. Kernels that add, multiply or normalise are one curve over
//! the bytes that they move.

use std::path::Path;

use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::gemm_name;
use engine::cost::roofline::Roofline;
use hw::{Dtype, Format};

use super::{ImportError, Provenance, Table};
use crate::fit::{Row, curve, surfaces};

/// Start-up of a kernel, seconds; the surface corrects what it leaves.
const START_S: f64 = 2e-6;
const SIZES: [f64; 8] = [64.0, 128.0, 512.0, 1024.0, 2048.0, 4096.0, 16_384.0, 65_536.0];
/// Products of one matrix.
const LINEAR: &str = "linear";
/// Kernels with two inputs; others have one.
const OF_TWO: [&str; 4] = ["add", "div", "mul", "pow"];
/// Other memory-bound kernels.
const OF_ONE: [&str; 9] = ["addu", "divu", "mulu", "powu", "gelu", "relu", "tanh", "softmax", "ln"];

/// Fits the rows of a device.
///
/// # Errors
/// When the GPU is unknown, the table is missing or broken, or has no rows of it.
pub fn operator_tables(path: &Path, provenance: &Provenance) -> Result<Profile, ImportError> {
    let gpu = provenance.gpu()?;
    let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
    let table = Table::read(path.to_owned())?;
    let (devices, ops) = (table.words("device")?, table.words("op")?);
    let [sizes @ .., latency] = table.columns(["b", "m", "n", "k", "h", "latency_ms"])?;
    let (mut products, mut moved) = (Vec::new(), Vec::new());
    for row in (0..ops.len()).filter(|row| is_device(&devices[*row], &gpu.name)) {
        let at = |column: usize| hw::whole(sizes[column][row].max(0.0));
        let seconds = latency[row] / 1e3;
        let op = ops[row].as_str();
        if op == LINEAR {
            products.push(product(&roofline, [at(0).max(1) * at(1), at(2), at(3)], seconds));
        } else if let Some(tensors) = tensors(op) {
            moved.push((hw::real(tensors * at(0) * at(4) * Dtype::Fp32.bytes()), seconds));
        }
    }
    if products.is_empty() && moved.is_empty() {
        let mut known = devices;
        known.sort_unstable();
        known.dedup();
        return Err(ImportError::NoRows { gpu: gpu.name, devices: known.join(", ") });
    }
    let mut profile = provenance.profile();
    profile.operators.extend(surface(&products).map(|operator| (gemm_name(Format::Fp32).to_owned(), operator)));
    profile.memory.extend(curve::fit(&moved).map(|curve| ("elementwise".to_owned(), curve)));
    Ok(profile)
}

/// Whether a device of the table is a GPU of the catalogue: `NVIDIA A100-PCIE-40GB` is `a100-pcie-40g`.
fn is_device(device: &str, gpu: &str) -> bool {
    let device = device.to_lowercase().replace("gb", "g");
    let words: Vec<&str> = device.split([' ', '-']).collect();
    gpu.split('-').all(|part| words.contains(&part))
}

/// Tensors that a memory-bound kernel reads and writes.
fn tensors(op: &str) -> Option<u64> {
    if OF_TWO.contains(&op) {
        return Some(3);
    }
    OF_ONE.contains(&op).then_some(2)
}

fn product(roofline: &Roofline, [m, n, k]: [u64; 3], measured_s: f64) -> Row {
    let base_s = roofline.gemm_base(m, n, k, Format::Fp32).get();
    Row { point: [m, n, k].map(hw::real).to_vec(), base_s, measured_s, shape: n * 1_000_003 + k }
}

fn surface(rows: &[Row]) -> Option<Operator> {
    surfaces::operator(rows, ["m", "n", "k"], [&SIZES; 3], START_S)
}

#[cfg(test)]
mod tests {
    use engine::cost::CostModel;
    use engine::cost::profiled::Profiled;
    use engine::task::Op;

    use super::*;

    const HEAD: &str = "device,op,b,m,n,k,h,measurements,latency_ms,max_over_min";

    /// Products at half of the datasheet's speed, and kernels at 80 % of the memory's, on one device; ten times as slow on another one.
    fn table(gpu: &hw::Gpu) -> String {
        let roofline = Roofline::new(&hw::catalog::cluster(gpu, 1, 8));
        let mut lines = vec![HEAD.to_owned()];
        for (device, slow) in [("NVIDIA A100-PCIE-40GB", 1.0), ("Tesla V100-PCIE-32GB", 10.0)] {
            for (m, n, k) in [(1024, 4096, 4096), (2048, 4096, 1024), (4096, 4096, 4096), (16_384, 1024, 4096)] {
                let ms = (roofline.gemm_base(m, n, k, Format::Fp32).get() * 2.0 * slow + START_S) * 1e3;
                lines.push(format!("{device},linear,1,{m},{n},{k},,1,{ms},1.0"));
            }
            for rows in [1024, 8192, 65_536] {
                let bytes = f64::from(rows) * 1024.0 * 4.0 * 3.0;
                let ms = bytes / gpu.memory_bandwidth.get() / 0.8 * slow * 1e3;
                lines.push(format!("{device},add,{rows},,,,1024,1,{ms},1.0"));
            }
        }
        lines.join("\n") + "\n"
    }

    #[test]
    fn the_rows_of_one_device_become_its_profile() {
        let gpu = hw::catalog::gpu("a100-pcie-40g").expect("listed");
        let path = std::env::temp_dir().join(format!("skrull-sim-neusight-{}.csv", std::process::id()));
        std::fs::write(&path, table(&gpu)).expect("a temporary file");
        let of = |gpu: &str| {
            let [name, source, date] = ["a100", "test", "2026-11-24"].map(str::to_owned);
            operator_tables(&path, &Provenance { name, gpu: gpu.to_owned(), source, date })
        };
        let (profile, missing) = (of("a100-pcie-40g").expect("a table"), of("h100-pcie"));
        std::fs::remove_file(&path).expect("it was written");
        let costs = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 8));
        let product = Op::Gemm { m: 4096, n: 4096, k: 4096, format: Format::Fp32 };
        let half = product.flops() / gpu.peak(Format::Fp32).get() * 2.0 + START_S;
        let took = costs.estimate(&product).time.get();
        assert!((took / half - 1.0).abs() < 0.01, "{took} {half}");
        let bytes = 3 * 4 * 8192 * 1024;
        let moved = hw::real(bytes) / gpu.memory_bandwidth.get() / 0.8;
        let took = costs.estimate(&Op::Elementwise { bytes }).time.get();
        assert!((took / moved - 1.0).abs() < 0.05, "{took} {moved}");
        let why = missing.expect_err("no rows").to_string();
        assert!(why.contains("h100-pcie") && why.contains("Tesla V100-PCIE-32GB"), "{why}");
    }

    #[test]
    fn devices_are_those_of_the_catalogue() {
        assert!(is_device("NVIDIA A100-PCIE-40GB", "a100-pcie-40g") && is_device("NVIDIA L4", "l4"));
        assert!(!is_device("NVIDIA A100-PCIE-80GB", "a100-pcie-40g") && !is_device("NVIDIA L40S", "l4"));
    }
}
