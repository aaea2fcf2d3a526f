//! Tables of measured steps by their header, and what their readers share: degrees, machines, labels.

use std::io::Read;

use engine::Model;
use hw::{Bytes, Cluster, Dtype, Seconds};
use train::layout::{Axis, ContextExchange, Layout, Zero};
use train::problem::{Execution, Problem};
use train::workload::Workload;

use super::constants::Constants;
use super::reason::Reason;
use super::row::{Label, Row};
use super::{bridge, megatron, simumax, torchtitan};
use crate::table::{Cells, Fault, Table};

/// Bytes of a mebibyte, in which SimuMax prints.
pub(super) const MEBIBYTE: f64 = 1_048_576.0;
/// Bytes of a gibibyte, in which torchtitan prints.
pub(super) const GIBIBYTE: f64 = 1_073_741_824.0;

/// A table of measured steps.
struct Known {
    /// Columns that tell it from every other.
    header: &'static [&'static str],
    needed: &'static [&'static str],
    row: fn(&mut Cells<'_>) -> Row,
}

const TABLES: [Known; 5] = [
    Known { header: &["iter_time_ms", "peak_mem_allocated_mib_by_rank"], needed: &simumax::NEEDED, row: simumax::row },
    Known { header: &["iter_time_s", "time_uncertainty_pct"], needed: &simumax::NEEDED, row: simumax::row },
    Known { header: &["fsdp_gpus", "activation_checkpointing"], needed: &torchtitan::NEEDED, row: torchtitan::row },
    Known { header: &["recipe_tag", "tokens_per_s_per_gpu_best"], needed: &bridge::NEEDED, row: bridge::row },
    Known {
        header: &["iter_time_median_s", "peak_mem_allocated_bytes"],
        needed: &megatron::NEEDED,
        row: megatron::row,
    },
];

/// The rows of a table of measured steps; `None` where its header is of no such table.
///
/// # Errors
/// Every fault of the file.
#[must_use]
pub fn read(text: &str) -> Option<Result<Vec<Row>, Vec<Fault>>> {
    let names: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    let known = TABLES.iter().find(|known| known.header.iter().all(|name| names.contains(name)))?;
    Some(rows(text, known))
}

fn rows(text: &str, known: &Known) -> Result<Vec<Row>, Vec<Fault>> {
    let table = Table::read(text, known.needed)?;
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for mut cells in table.rows() {
        rows.push((known.row)(&mut cells));
        faults.append(&mut cells.faults);
    }
    if faults.is_empty() { Ok(rows) } else { Err(faults) }
}

/// Text of a file that may be gzipped.
///
/// # Errors
/// What the file is not.
pub fn unpacked(bytes: Vec<u8>) -> Result<String, String> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned());
    }
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Degrees of a row; 1 where a table has no such column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Degrees {
    pub(super) tp: u32,
    pub(super) pp: u32,
    pub(super) cp: u32,
    pub(super) ep: u32,
    pub(super) dp: u32,
    pub(super) chunks: u32,
    pub(super) expert_tp: u32,
}

impl Degrees {
    pub(super) fn read(cells: &mut Cells<'_>) -> Self {
        let mut of = |name: &str| cells.count(name).unwrap_or(1).max(1);
        Self {
            tp: of("tp_gpus"),
            pp: of("pp_stages"),
            cp: of("cp_gpus"),
            ep: of("ep_gpus"),
            dp: of("dp_replicas"),
            chunks: of("vp_chunks"),
            expert_tp: of("etp_gpus"),
        }
    }

    pub(super) const fn n_gpus(&self) -> u32 {
        self.tp * self.pp * self.cp * self.dp
    }

    fn words(&self) -> String {
        let named =
            [("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("vp", self.chunks), ("ep", self.ep), ("dp", self.dp)];
        let shown: Vec<String> =
            named.iter().filter(|(_, degree)| *degree > 1).map(|(name, degree)| format!("{name}{degree}")).collect();
        if shown.is_empty() { "one GPU".to_owned() } else { shown.join(" ") }
    }
}

/// What all tables say of a row.
pub(super) fn label(cells: &Cells<'_>, degrees: &Degrees) -> Label {
    let text = |column: &str| cells.word(column).to_owned();
    Label {
        row: text("row"),
        line: cells.line,
        model: text("model"),
        card: text("gpu"),
        layout: degrees.words(),
        ..Label::default()
    }
}

/// Cards as tables write them, and their entries of the catalogue.
const CARDS: [(&str, &str); 10] = [
    ("A100 PCIe", "a100-pcie-80g"),
    ("A100 80GB", "a100-sxm-80g"),
    ("A100", "a100-sxm-80g"),
    ("H100 96 GB HBM2e, 500 W", "h100-sxm-96g"),
    ("H100 94-96 GB HBM2e", "h100-sxm-96g"),
    ("H100", "h100-sxm"),
    ("B200", "b200"),
    ("B300", "b300"),
    ("GB200", "gb200"),
    ("GB300", "gb300"),
];

/// A cluster of one card.
pub(super) struct Machine {
    cluster: Cluster,
}

impl Machine {
    /// So many GPUs of a card on nodes of so many.
    pub(super) fn of(card: &str, n_gpus: u32, per_node: u32) -> Result<Self, Reason> {
        let unknown = || Reason::Card { word: card.to_owned() };
        let (_, name) = CARDS.iter().find(|(word, _)| *word == card).ok_or_else(unknown)?;
        let gpu = hw::catalog::gpu(name).ok_or_else(unknown)?;
        let per_node = per_node.min(n_gpus);
        Ok(Self { cluster: hw::catalog::cluster(&gpu, n_gpus.div_ceil(per_node), per_node) })
    }

    /// The problem of a model on it, with a distributed optimizer; sequences come with the plan.
    pub(super) fn problem(self, model: Model, degrees: &Degrees, execution: Execution) -> Result<Problem, Reason> {
        check(&model, degrees)?;
        let not_timed = super::models::not_timed(&model);
        if !not_timed.is_empty() {
            return Err(Reason::Layers { what: not_timed });
        }
        let schedule = if degrees.chunks > 1 { "interleaved" } else { "1f1b" };
        let constants = Constants::of(&self.cluster.gpu.name);
        let execution =
            Execution { host_overhead_per_layer: Seconds::new(constants.host_per_layer_us * 1e-6), ..execution };
        let layout = Layout {
            tp: degrees.tp,
            pp: degrees.pp,
            chunks: degrees.chunks,
            ep: degrees.ep,
            expert_tp: degrees.expert_tp,
            sequence_parallel: degrees.tp > 1,
            order: [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline],
            ..Layout::data_and_context(degrees.dp, degrees.cp, Zero::OptimizerStates, ContextExchange::Ring)
        };
        if layout.expert_span().is_none() {
            return Err(Reason::Degrees { what: format!("expert groups of {} in {}", degrees.ep, degrees.words()) });
        }
        Ok(Problem {
            model,
            cluster: self.cluster,
            layout,
            schedule: train::schedule::named(schedule).expect("listed"),
            workload: Workload { lengths: Vec::new(), batch_size: 0, source: "measured".to_owned() },
            dtype: Dtype::Bf16,
            execution,
            bucket_tokens: u64::MAX,
            reserved_memory: Bytes::ZERO,
            seed: 0,
        })
    }
}

fn check(model: &Model, degrees: &Degrees) -> Result<(), Reason> {
    let refused = |what: String| Err(Reason::Degrees { what });
    if !model.n_heads.is_multiple_of(u64::from(degrees.tp)) {
        return refused(format!("{} heads over {} GPUs", model.n_heads, degrees.tp));
    }
    if model.n_layers < u64::from(degrees.pp * degrees.chunks) {
        return refused(format!("{} layers in {} stages", model.n_layers, degrees.pp * degrees.chunks));
    }
    match model.experts {
        Some(experts) if !experts.n_routed.is_multiple_of(u64::from(degrees.ep)) => {
            refused(format!("{} experts over {} GPUs", experts.n_routed, degrees.ep))
        }
        None if degrees.ep > 1 => refused(format!("no experts for {} GPUs", degrees.ep)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "row,model,layers,gpu,gpus,seq_tokens,micro_batch_seqs,micro_batches_per_step,tp_gpus,pp_stages,ep_gpus,dp_replicas,\
                        iter_time_ms,peak_mem_allocated_mib_by_rank,memory_measured_in_this_run";

    fn rows(line: &str) -> Result<Vec<Row>, Vec<Fault>> {
        read(&format!("{HEAD}\n{line}\n")).expect("a table of steps")
    }

    #[test]
    fn a_table_is_known_by_its_header() {
        assert!(read("id,silicon_ttft_ms\n1,2\n").is_none());
        let rows = rows("2,llama3-70b,12,B200,8,4096,1,4,2,2,1,2,725.5,100 101 102 103 90 91 92 93,1").expect("a row");
        let asked = rows[0].asked.as_ref().expect("a problem");
        assert_eq!((asked.problem.layout.tp, asked.problem.layout.dp, asked.problem.cluster.n_gpus()), (2, 2, 8));
        assert_eq!((asked.micro_batch, asked.n_micro_batches, asked.tokens), (1, 4, 4096));
        // Peaks of two stages of four ranks, the highest of each.
        assert_eq!(rows[0].measured.memory, [(0, 103.0 * MEBIBYTE), (1, 93.0 * MEBIBYTE)]);
        assert_eq!(rows[0].measured.step_s, Some(0.7255));
    }

    #[test]
    fn what_cannot_be_played_has_a_reason() {
        let reason = |line: &str| rows(line).expect("a row")[0].asked.as_ref().expect_err("a reason").clone();
        let name = |line: &str| reason(line).name();
        assert_eq!(name("1,other,12,B200,8,4096,1,4,2,1,1,4,7,1,1"), "model");
        assert_eq!(name("1,llama3-70b,12,B900,8,4096,1,4,2,1,1,4,7,1,1"), "card");
        assert_eq!(name("1,llama3-70b,12,B200,8,4096,1,4,3,1,1,4,7,1,1"), "degrees");
        assert_eq!(name("1,llama3-70b,12,B200,8,4096,1,4,2,1,8,4,7,1,1"), "degrees");
    }

    #[test]
    fn faults_are_named_with_line_and_column() {
        let faults = rows("1,llama3-70b,twelve,B200,8,4096,1,4,2,1,1,4,-7,1,1").expect_err("faults");
        let words: Vec<String> = faults.iter().map(Fault::words).collect();
        assert_eq!(
            words,
            [
                "line 2, column `layers`: `twelve` is not a count",
                "line 2, column `iter_time_ms`: must be above 0, found `-7`",
            ]
        );
        let missing = read("iter_time_ms,peak_mem_allocated_mib_by_rank\n1,2\n").expect("known").expect_err("columns");
        assert!(missing.iter().any(|fault| fault.words() == "line 1, column `layers`: no such column"));
    }
}
