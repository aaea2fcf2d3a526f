//! Tables of measured steps by their header.

use super::row::Row;
use super::{bridge, megatron, sailor, simumax, torchtitan};
use crate::table::{Beside, Fault, Table};

/// Rows of a table, with files beside it where it needs them.
type Rows = fn(&Table, &Beside<'_>) -> Result<Vec<Row>, Vec<Fault>>;

/// A table of measured steps.
struct Known {
    /// Columns that tell it from every other.
    header: &'static [&'static str],
    needed: &'static [&'static str],
    rows: Rows,
}

const TABLES: [Known; 6] = [
    Known {
        header: &["iter_time_ms", "peak_mem_allocated_mib_by_rank"],
        needed: &simumax::NEEDED,
        rows: |table, _| table.read_rows(simumax::row),
    },
    Known {
        header: &["iter_time_s", "time_uncertainty_pct"],
        needed: &simumax::NEEDED,
        rows: |table, _| table.read_rows(simumax::row),
    },
    Known {
        header: &["fsdp_gpus", "activation_checkpointing"],
        needed: &torchtitan::NEEDED,
        rows: |table, _| table.read_rows(torchtitan::row),
    },
    Known {
        header: &["recipe_tag", "tokens_per_s_per_gpu_best"],
        needed: &bridge::NEEDED,
        rows: |table, _| table.read_rows(bridge::row),
    },
    Known {
        header: &["iter_time_median_s", "peak_mem_allocated_bytes"],
        needed: &megatron::NEEDED,
        rows: |table, _| table.read_rows(megatron::row),
    },
    Known { header: &["gpus_by_stage", "layers_by_stage", "iter_time_s"], needed: &sailor::NEEDED, rows: sailor::rows },
];

/// The rows of a table of measured steps; `None` where its header is of no such table. `beside` reads files that some tables need beside them.
///
/// # Errors
/// Every fault of the file.
#[must_use]
pub fn read(text: &str, beside: &Beside<'_>) -> Option<Result<Vec<Row>, Vec<Fault>>> {
    let names: Vec<&str> = text.lines().next().unwrap_or("").split(',').map(str::trim).collect();
    let known = TABLES.iter().find(|known| known.header.iter().all(|name| names.contains(name)))?;
    Some(Table::read(text, known.needed).and_then(|table| (known.rows)(&table, beside)))
}

/// Text of a file of measured rows that may be packed.
#[cfg(test)]
pub(crate) fn unpacked(bytes: Vec<u8>) -> std::io::Result<String> {
    let bytes = packed::plain(bytes, u64::MAX).map_err(std::io::Error::other)?;
    String::from_utf8(bytes).map_err(std::io::Error::other)
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
        let missing =
            read("iter_time_ms,peak_mem_allocated_mib_by_rank\n1,2\n", &|_| None).expect("known").expect_err("columns");
        assert!(missing.iter().any(|fault| fault.words() == "line 1, column `layers`: no such column"));
    }
}
