//! Tables of measured steps by their header.

use super::row::Row;
use super::{bridge, llm_foundry, megatron, sailor, simumax, torchtitan};
use crate::table::{Beside, Fault, Table, header};

/// Rows of a table, with files beside it where it needs them.
type Rows = fn(&Table, &Beside<'_>) -> Result<Vec<Row>, Vec<Fault>>;

/// Columns of tables that are not needed, and what is taken where they are not there.
const OPTIONAL: [(&str, &str); 13] = [
    ("tp_gpus", "one GPU of a tensor group"),
    ("pp_stages", "one stage"),
    ("cp_gpus", "one GPU of a context group"),
    ("vp_chunks", "one chunk of a stage"),
    ("ep_gpus", "one GPU of an expert group"),
    ("dp_replicas", "one replica"),
    ("pipeline_layout", "an even split of layers"),
    ("recompute_granularity", "no recompute"),
    ("cuda_graph_impl", "no graphs"),
    ("grad_reduce_overlap", "gradients are reduced at the end"),
    ("distributed_optimizer", "optimizer states on every rank"),
    ("fp8_recipe", "products in 16 bits"),
    ("deterministic", "usual kernels"),
];

/// A table of measured steps.
struct Known {
    /// Its word for people.
    name: &'static str,
    /// Optional columns of its format.
    optional: &'static [&'static [&'static str]],
    /// Columns that tell it from every other.
    header: &'static [&'static str],
    needed: &'static [&'static str],
    rows: Rows,
}

/// Degrees that a table may leave out.
const DEGREES: [&str; 5] = ["tp_gpus", "pp_stages", "cp_gpus", "ep_gpus", "dp_replicas"];
/// Settings that a table of Megatron's launchers may leave out.
const SETTINGS: [&str; 9] = [
    "tp_gpus",
    "pp_stages",
    "cp_gpus",
    "vp_chunks",
    "ep_gpus",
    "dp_replicas",
    "pipeline_layout",
    "recompute_granularity",
    "grad_reduce_overlap",
];

static TABLES: [Known; 7] = [
    Known {
        name: "SimuMax, B200",
        optional: &[&DEGREES],
        header: &["iter_time_ms", "peak_mem_allocated_mib_by_rank"],
        needed: &simumax::NEEDED,
        rows: |table, _| table.read_rows(simumax::row),
    },
    Known {
        name: "SimuMax, A100",
        optional: &[&DEGREES],
        header: &["iter_time_s", "time_uncertainty_pct"],
        needed: &simumax::NEEDED,
        rows: |table, _| table.read_rows(simumax::row),
    },
    Known {
        name: "torchtitan",
        optional: &[&["tp_gpus", "pp_stages", "cp_gpus"]],
        header: &["fsdp_gpus", "activation_checkpointing"],
        needed: &torchtitan::NEEDED,
        rows: |table, _| table.read_rows(torchtitan::row),
    },
    Known {
        name: "Megatron Bridge",
        optional: &[&SETTINGS, &["cuda_graph_impl"]],
        header: &["recipe_tag", "tokens_per_s_per_gpu_best"],
        needed: &bridge::NEEDED,
        rows: |table, _| table.read_rows(bridge::row),
    },
    Known {
        name: "Megatron-LM's tests",
        optional: &[&SETTINGS, &["distributed_optimizer", "fp8_recipe", "deterministic"]],
        header: &["iter_time_median_s", "peak_mem_allocated_bytes"],
        needed: &megatron::NEEDED,
        rows: |table, _| table.read_rows(megatron::row),
    },
    Known {
        name: "llm-foundry",
        optional: &[],
        header: &["MicroBatchSize", "Sharding Strategy"],
        needed: &llm_foundry::NEEDED,
        rows: |table, _| table.read_rows(llm_foundry::row),
    },
    Known {
        name: "Sailor",
        optional: &[],
        header: &["gpus_by_stage", "layers_by_stage", "iter_time_s"],
        needed: &sailor::NEEDED,
        rows: sailor::rows,
    },
];

/// Columns that a table of measured steps lacks though its format has them, each with what is taken for it.
pub fn absent(text: &str) -> Vec<(&'static str, &'static str)> {
    let names = header(text);
    let Some(known) = known(&names) else { return Vec::new() };
    let is_absent = |(name, _): &&(&str, &str)| {
        known.optional.iter().any(|columns| columns.contains(name)) && !names.contains(name)
    };
    OPTIONAL.iter().filter(is_absent).copied().collect()
}

/// The same in words; `None` where nothing is absent.
pub fn absent_words(text: &str) -> Option<String> {
    let taken: Vec<String> = absent(text).iter().map(|(column, taken)| format!("`{column}` ({taken})")).collect();
    (!taken.is_empty()).then(|| taken.join(", "))
}

/// Every table of measured steps by its name, with the columns that tell it from others.
pub fn known_tables() -> Vec<String> {
    TABLES.iter().map(|known| format!("{} ({})", known.name, known.header.join(", "))).collect()
}

fn known(names: &[&str]) -> Option<&'static Known> {
    TABLES.iter().find(|known| known.header.iter().all(|name| names.contains(name)))
}

/// The rows of a table of measured steps; `None` where its header is of no such table. `beside` reads files that some tables need beside them.
///
/// # Errors
/// Every fault of the file.
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<Vec<Row>, Vec<Fault>>> {
    let known = known(&header(text))?;
    Some(Table::read(text, known.needed).and_then(|table| (known.rows)(&table, beside)))
}

#[cfg(test)]
mod tests {
    use super::super::row::Asked;
    use super::super::setting::MEBIBYTE;
    use super::*;

    const HEAD: &str = "row,model,layers,gpu,gpus,seq_tokens,micro_batch_seqs,micro_batches_per_step,tp_gpus,pp_stages,ep_gpus,dp_replicas,\
                        iter_time_ms,peak_mem_allocated_mib_by_rank,memory_measured_in_this_run";

    fn rows(line: &str) -> Result<Vec<Row>, Vec<Fault>> {
        read(&format!("{HEAD}\n{line}\n"), &|_| None).expect("a table of steps")
    }

    #[test]
    fn a_table_is_known_by_its_header() {
        assert!(read("id,silicon_ttft_ms\n1,2\n", &|_| None).is_none());
        let rows = rows("2,llama3-70b,12,B200,8,4096,1,4,2,2,1,2,725.5,100 101 102 103 90 91 92 93,1").expect("a row");
        let Ok(Asked::Layout(asked)) = &rows[0].asked else { panic!("a problem") };
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
    fn rows_that_contradict_themselves_have_a_reason() {
        let found = rows("1,llama3-70b,12,B200,8,4096,1,4,2,1,1,8,7,1,1").expect("a row");
        let reason = found[0].asked.as_ref().expect_err("sixteen GPUs");
        assert_eq!((reason.name(), reason.detail().as_str()), ("degrees", "tp2 dp8 is 16 GPUs, and `gpus` is 8"));
    }

    #[test]
    fn columns_that_are_absent_are_named_with_what_is_taken() {
        assert_eq!(absent(HEAD), [("cp_gpus", "one GPU of a context group")]);
        assert_eq!(absent("id,silicon_ttft_ms"), []);
        assert_eq!(known_tables().len(), 7);
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
        // A line counts as many with a carriage return before its end.
        let with_returns = format!("{HEAD}\r\n1,llama3-70b,twelve,B200,8,4096,1,4,2,1,1,4,7,1,1\r\n");
        let faults = read(&with_returns, &|_| None).expect("known").expect_err("a fault");
        assert_eq!(faults[0].words(), "line 2, column `layers`: `twelve` is not a count");
        let renamed = HEAD.replace("seq_tokens", "seq_token");
        let faults = read(&format!("{renamed}\n"), &|_| None).expect("known").expect_err("a column");
        assert_eq!(faults[0].words(), "line 1, column `seq_tokens`: no such column; did you mean `seq_token`?");
        let missing =
            read("iter_time_ms,peak_mem_allocated_mib_by_rank\n1,2\n", &|_| None).expect("known").expect_err("columns");
        assert!(missing.iter().any(|fault| fault.words() == "line 1, column `layers`: no such column"));
    }
}
