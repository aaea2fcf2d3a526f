//! A measured run as a table states it: what ran where, under which load, and its mean latencies.
//!
//! The format is `silicon_sample.csv` of ai-dynamo/aiconfigurator. Degrees of a worker are those of the table; `Worker::shape` undoes what its writers did to them, and
//! `recipe/layouts.rs` has those that scripts chose by themselves. Units: tokens, sequences, GPUs, seconds.

use serve::engine_preset::{self, Version};

use crate::table::{Cells, Fault, Table, header};

/// Columns without which nothing can be said.
const NEEDED: [&str; 11] = [
    "id",
    "silicon_data_source",
    "backend",
    "backend_version",
    "model_path",
    "system",
    "mode",
    "isl",
    "osl",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
];

/// Whether a table has columns of measured serving runs.
pub fn is_known(text: &str) -> bool {
    header(text).iter().any(|name| NEEDED.contains(name) && name.starts_with("silicon"))
}

/// A measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Line of the file.
    pub line: u64,
    /// Identity in the table.
    pub id: String,
    /// Who measured it, as the table says it.
    pub source: String,
    /// Day on which it was measured, as `2026-01-21`; empty where it is not stated.
    pub measured: String,
    /// Engine.
    pub engine: String,
    /// Its version or that of its image.
    pub version: String,
    /// Path of the checkpoint.
    pub model: String,
    /// Card of the catalogue.
    pub card: String,
    /// Format of the checkpoint in a word; empty is 16 bits.
    pub precision: String,
    /// Format of products and of experts, in the table's words.
    pub formats: [String; 2],
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens of an answer.
    pub output: u32,
    /// Requests in flight, where they are stated.
    pub in_flight: Option<u32>,
    /// Who serves.
    pub workers: Workers,
    /// Mean seconds to first token.
    pub ttft_s: f64,
    /// Mean seconds per output token.
    pub tpot_s: f64,
}

/// Who serves: workers that do everything, or some that compute prompts and some that decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One that does everything.
    Whole(Worker),
    /// Prompts and decoding apart.
    Split {
        /// Those that compute prompts.
        prefill: Worker,
        /// Those that decode.
        decode: Worker,
    },
}

/// Equal workers with the degrees as the table writes them; 0 where it writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// How many; `None` where it is not stated.
    pub n: Option<u32>,
    /// Sequences of a batch.
    pub batch: u32,
    /// Tensor degree.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Groups of data-parallel attention.
    pub dp: u32,
    /// Tensor degree of experts.
    pub moe_tp: u32,
    /// GPUs over which experts are spread.
    pub moe_ep: u32,
}

/// How a worker lies on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// GPUs of a stage.
    pub gpus: u32,
    /// Groups of data-parallel attention.
    pub groups: u32,
    /// Pipeline stages.
    pub stages: u32,
    /// Whether whole experts are spread over GPUs.
    pub spreads_experts: bool,
}

impl Worker {
    /// GPUs with so many groups of attention, as a table would write them; experts are spread where there are several.
    pub fn of(gpus: u32, attention_groups: u32) -> Self {
        let [moe_tp, moe_ep] = if attention_groups > 1 { [1, gpus] } else { [gpus, 1] };
        Self { n: None, batch: 0, tp: gpus / attention_groups, pp: 1, dp: 0, moe_tp, moe_ep }
    }

    /// Degrees as they were. Rows that state attention groups write overlapping degrees as their product: `t` GPUs whose tensor and expert
    /// degrees are both `t` have a tensor degree of `t²` and `t × t` experts; with data-parallel attention on each, that degree is `t²`. (The ids of the
    /// same rows write `tp2_ep2`.) Of vLLM they write `t` for the tensor degree and for attention, and experts of `t²`. That is a tensor group with its experts spread:
    /// nvidia-master.yaml of InferenceX has these runs without `dp-attn`, but for those of `recipe/layouts.rs`.
    pub fn shape(&self) -> Shape {
        let [tp, dp, moe_tp, moe_ep] = [self.tp, self.dp, self.moe_tp, self.moe_ep].map(|degree| degree.max(1));
        let product = tp * dp;
        let root = product.isqrt();
        let is_product = self.dp > 0 && root > 1 && root * root == product;
        let has_square = is_product && moe_tp == root && moe_ep == root && (tp == 1 || dp == 1);
        let has_squared_experts = is_product && tp == dp && moe_tp == 1 && moe_ep == product;
        let (gpus, tensor) = if has_square || has_squared_experts {
            (root, if dp > 1 && has_square { 1 } else { root })
        } else {
            (product.max(moe_tp * moe_ep), tp)
        };
        Shape { gpus, groups: (gpus / tensor).max(1), stages: self.pp.max(1), spreads_experts: moe_ep > 1 }
    }
}

impl Run {
    /// Whether prompts and decoding are apart.
    pub const fn is_split(&self) -> bool {
        matches!(self.workers, Workers::Split { .. })
    }

    /// Version of the engine. A build without one is no newer than the day of the run.
    pub fn engine_version(&self) -> Version {
        let stated = Version::parse(&self.version);
        if stated == Version::NEWEST { engine_preset::newest_on(&self.engine, &self.measured) } else { stated }
    }

    /// Equal engines behind one client: where the table states a batch of one of them, the requests in flight are as many such batches.
    pub fn n_engines(&self) -> u32 {
        let (Workers::Whole(worker), Some(in_flight)) = (&self.workers, self.in_flight) else { return 1 };
        // Degrees as they are written: a batch is divided by them.
        let batch = worker.batch * worker.dp.max(1);
        if batch > 0 && in_flight.is_multiple_of(batch) { in_flight / batch } else { 1 }
    }

    /// GPUs of all workers; `None` where their number is not stated.
    pub fn n_gpus(&self) -> Option<u32> {
        match &self.workers {
            Workers::Whole(worker) => Some(self.n_engines() * gpus_of(worker)),
            Workers::Split { prefill, decode } => Some(prefill.n? * gpus_of(prefill) + decode.n? * gpus_of(decode)),
        }
    }

    /// What stays the same when a setting is measured again.
    pub fn setting(&self) -> String {
        format!(
            "{}|{}|{}|{:?}|{}|{}|{:?}|{:?}",
            self.engine, self.model, self.card, self.formats, self.prompt, self.output, self.in_flight, self.workers
        )
    }
}

fn gpus_of(worker: &Worker) -> u32 {
    let shape = worker.shape();
    shape.gpus * shape.stages
}

/// Reads a table of runs.
///
/// # Errors
/// Every fault of the file.
pub fn read(text: &str) -> Result<Vec<Run>, Vec<Fault>> {
    Table::read(text, &NEEDED)?.read_rows(run)
}

fn run(cells: &mut Cells<'_>) -> Run {
    let prompt = cells.positive("isl");
    let output = cells.positive("osl");
    let workers = workers(cells);
    let [ttft_s, tpot_s] = ["silicon_ttft_ms", "silicon_tpot_ms"].map(|column| cells.seconds(column));
    let text = |column: &str| cells.word(column).to_owned();
    let source = text("silicon_data_source");
    let in_flight = stated(&source);
    Run {
        line: cells.line,
        id: text("id"),
        engine: text("backend"),
        version: text("backend_version"),
        model: text("model_path"),
        card: card(&text("system")),
        precision: text("precision"),
        formats: ["gemm_quant_mode", "moe_quant_mode"].map(text),
        measured: day(&source),
        source,
        prompt,
        output,
        in_flight,
        workers,
        ttft_s,
        tpot_s,
    }
}

fn workers(cells: &mut Cells<'_>) -> Workers {
    match cells.word("mode") {
        "agg" => Workers::Whole(worker(cells, "")),
        "disagg" => Workers::Split { prefill: worker(cells, "prefill_"), decode: as_wide(worker(cells, "decode_")) },
        other => {
            let what = format!("`{other}` is neither `agg` nor `disagg`");
            cells.fault("mode", what);
            Workers::Whole(worker(cells, ""))
        }
    }
}

/// A worker that decodes on as many GPUs as its tensor degree says. Of some the table writes the expert degree of the worker that computes prompts, and the
/// rest of the GPUs as cut experts. Where both are as large that reads as a square (`Worker::shape`), and published configurations of all such loads
/// have the whole width (`tables/splits.tsv`).
const fn as_wide(worker: Worker) -> Worker {
    let Worker { moe_tp, moe_ep, .. } = worker;
    if moe_tp > 1 && moe_ep > 1 { Worker { moe_tp: 1, moe_ep: moe_tp * moe_ep, ..worker } } else { worker }
}

fn worker(cells: &mut Cells<'_>, part: &str) -> Worker {
    let of = |name: &str| cells.count(&format!("{part}{name}"));
    Worker {
        n: of("num_workers").filter(|n| *n > 0),
        batch: of("batch_size").unwrap_or(0),
        tp: of("tp_size").unwrap_or(0),
        pp: of("pp_size").unwrap_or(0),
        dp: of("attention_dp_size").unwrap_or(0),
        moe_tp: of("moe_tp_size").unwrap_or(0),
        moe_ep: of("moe_ep_size").unwrap_or(0),
    }
}

/// Requests in flight as the source states them.
fn stated(source: &str) -> Option<u32> {
    let rest = source.split("silicon_concurrency=").nth(1)?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok().filter(|n| *n > 0)
}

/// Day of the measurement as the source states it.
fn day(source: &str) -> String {
    let rest = source.split("measured=").nth(1).unwrap_or("");
    rest.split(|letter: char| !letter.is_ascii_digit() && letter != '-').next().unwrap_or("").to_owned()
}

/// A system of the table as the catalogue calls its card.
fn card(system: &str) -> String {
    let name = system.replace('_', "-");
    match name.strip_suffix("-sxm") {
        // The catalogue has one B200 and one B300, without the form of the board.
        Some(short) if short.starts_with('b') => short.to_owned(),
        _ => name,
    }
}

/// A run of one engine on a tensor group: its line from `id` to both latencies, with degree and batch in front of these.
#[cfg(test)]
pub(crate) fn of_line(line: &str) -> Run {
    let head = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,\
                tp_size,silicon_ttft_ms,silicon_tpot_ms";
    read(&format!("{head}\n{line}\n")).expect("a table").remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,\
        moe_quant_mode,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n";

    fn one(cells: &str) -> Result<Vec<Run>, Vec<Fault>> {
        read(&format!("{HEADER}{cells}\n"))
    }

    #[test]
    fn a_run_is_read_with_its_load_and_latencies() {
        let runs = one(
            "a,db; silicon_concurrency=64; x,vllm,0.19.0,org/M,b200_sxm,fp8,agg,8192,1024,fp8,fp8,16,1,1,4,1,4,500,20",
        )
        .expect("a table");
        let run = &runs[0];
        assert_eq!((run.in_flight, run.prompt, run.output, run.card.as_str()), (Some(64), 8192, 1024, "b200"));
        assert_eq!((run.ttft_s, run.tpot_s, run.line, run.n_gpus()), (0.5, 0.02, 2, Some(4)));
    }

    #[test]
    fn requests_in_flight_of_several_batches_are_of_as_many_engines() {
        let of = |in_flight: u32, dp: u32| {
            let cells = format!(
                "a,db; silicon_concurrency={in_flight}; x,trtllm,1,org/M,b200_sxm,fp4,agg,4000,1000,,,14,2,1,{dp},1,1,500,20"
            );
            let run = one(&cells).expect("a table").remove(0);
            (run.n_engines(), run.n_gpus())
        };
        // 448 of 14 each are 32 engines of two GPUs; of two attention groups with 14 each they are 16.
        assert_eq!((of(448, 1), of(448, 2), of(14, 1)), ((32, Some(64)), (16, Some(64)), (1, Some(2))));
        // What is no whole number of batches says nothing of engines.
        assert_eq!(of(15, 1), (1, Some(2)));
    }

    #[test]
    fn every_fault_of_a_broken_table_is_found_with_its_place() {
        let text = format!(
            "{HEADER}a,s,vllm,1,m,h100_sxm,,agg,x,1024,,,8,1,1,1,1,1,500,20\n\
             b,s,vllm,1,m,h100_sxm,,both,1024,0,,,8,1,1,1,1,1,-1,\n\
             c,s,vllm\n"
        );
        let faults = read(&text).expect_err("a broken line");
        assert_eq!(faults[0].words(), "line 4: 3 cells where the header has 20");
        let without_short = text.lines().take(3).collect::<Vec<_>>().join("\n");
        let words: Vec<String> = read(&without_short).expect_err("broken cells").iter().map(Fault::words).collect();
        assert_eq!(
            words,
            [
                "line 2, column `isl`: `x` is not a count",
                "line 3, column `osl`: must be at least 1, found 0",
                "line 3, column `mode`: `both` is neither `agg` nor `disagg`",
                "line 3, column `silicon_ttft_ms`: must be above 0, found `-1`",
                "line 3, column `silicon_tpot_ms`: `` is not a number of milliseconds",
            ]
        );
    }

    #[test]
    fn columns_that_are_not_there_are_all_named() {
        let faults = read("id,backend\na,vllm\n").expect_err("few columns");
        assert_eq!(faults.len(), 9);
        assert_eq!(faults[0].words(), "line 1, column `silicon_data_source`: no such column");
        assert_eq!(read(HEADER).expect_err("no rows")[0].what, "the table has no rows");
    }

    #[test]
    fn folded_degrees_are_those_of_one_node() {
        let shape = |tp, dp, moe_tp, moe_ep| {
            let shape = Worker { n: None, batch: 8, tp, pp: 1, dp, moe_tp, moe_ep }.shape();
            (shape.gpus, shape.groups, shape.spreads_experts)
        };
        // Plain tensor parallelism, dense and with experts cut or spread.
        assert_eq!(
            (shape(4, 0, 1, 1), shape(8, 1, 8, 1), shape(8, 1, 1, 8)),
            ((4, 1, false), (8, 1, false), (8, 1, true))
        );
        // `tp8_ep8` and `tp2_ep2`; with data-parallel attention on each of eight GPUs; tensor groups of vLLM with their experts spread.
        assert_eq!((shape(64, 1, 8, 8), shape(4, 1, 2, 2)), ((8, 1, true), (2, 1, true)));
        assert_eq!(
            (shape(1, 64, 8, 8), shape(4, 4, 1, 16), shape(2, 2, 1, 4)),
            ((8, 8, true), (4, 1, true), (2, 1, true))
        );
        // Rows that state no attention groups write degrees as they are.
        assert_eq!((shape(4, 0, 2, 2), shape(1, 0, 4, 1)), ((4, 1, true), (4, 4, false)));
        // A rack of 72.
        assert_eq!(shape(72, 1, 72, 1), (72, 1, false));
    }
}
