//! How workers of split runs were started: limits and attention ranks that were published for a layout and a load.
//!
//! The table of runs says neither how many sequences a worker takes at once nor, in some rows, whether prompts were computed with data-parallel
//! attention. The configurations do (`tables/splits.tsv`, with its source). Units: GPUs, tokens and sequences of an attention rank.

use std::sync::OnceLock;

use engine::cost::experts::Routing;
use serve::engine_preset::ROUTING;

use crate::run::{Run, Shape, Worker, Workers};

/// Workers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    workers: u32,
    gpus: u32,
    ranks: u32,
}

/// A configuration that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    engine: &'static str,
    /// Part of the model's path.
    model: &'static str,
    card: &'static str,
    format: &'static str,
    lengths: [u32; 2],
    prefill: Kind,
    decode: Kind,
    in_flight: Vec<u32>,
    /// Tokens of an iteration with prompts.
    pub prefill_tokens: u32,
    /// Prompts at once.
    pub prefill_sequences: u32,
    /// Sequences that decode at once.
    pub decode_sequences: u32,
    /// Places of experts in a prefill and in a decode worker where the engine moves them, so that GPUs have equal load; else 0.
    places: [u32; 2],
}

impl Split {
    /// How a prefill worker lies on its GPUs.
    #[must_use]
    pub fn prefill_shape(&self, worker: &Worker) -> Shape {
        let shape = worker.shape();
        Shape { groups: self.prefill.ranks, spreads_experts: shape.spreads_experts || self.prefill.ranks > 1, ..shape }
    }

    /// How tokens spread over the experts of a prefill or of a decode worker: evenly where the engine balances their load.
    #[must_use]
    pub fn routing(&self, is_prefill: bool) -> Routing {
        let places = self.places[usize::from(!is_prefill)];
        if places > 0 { Routing::Even } else { ROUTING }
    }

    fn fits(&self, run: &Run, [prefill, decode]: [&Worker; 2]) -> bool {
        let named = self.engine == run.engine
            && run.model.contains(self.model)
            && self.card == run.card
            && self.format == run.precision;
        let loaded =
            self.lengths == [run.prompt, run.output] && run.in_flight.is_some_and(|n| self.in_flight.contains(&n));
        let laid = self.prefill.is_of(prefill) && self.decode.is_of(decode);
        named && loaded && laid && self.decode.ranks == decode.shape().groups
    }
}

impl Kind {
    /// Whether as many workers of as many GPUs are stated.
    fn is_of(self, stated: &Worker) -> bool {
        Some(self.workers) == stated.n && self.gpus == stated.shape().gpus
    }
}

/// The configuration of a split run, where it was published.
#[must_use]
pub fn of(run: &Run) -> Option<&'static Split> {
    match &run.workers {
        Workers::Whole(_) => None,
        Workers::Split { prefill, decode } => table().iter().find(|split| split.fits(run, [prefill, decode])),
    }
}

/// Rows of the table, in order.
fn table() -> &'static [Split] {
    static TABLE: OnceLock<Vec<Split>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("../../tables/splits.tsv").lines();
        lines.filter(|line| !line.starts_with('#')).map(row).collect()
    })
}

fn row(line: &'static str) -> Split {
    let cells: Vec<&str> = line.split('\t').collect();
    Split {
        engine: cells[0],
        model: cells[1],
        card: cells[2],
        format: cells[3],
        lengths: [count(cells[4]), count(cells[5])],
        prefill: kind(&cells[6..9]),
        prefill_tokens: count(cells[9]),
        prefill_sequences: count(cells[10]),
        decode: kind(&cells[11..14]),
        decode_sequences: count(cells[14]),
        in_flight: cells[15].split(' ').map(count).collect(),
        places: [0, 1].map(|at| count(cells[16].split(' ').nth(at).expect("two counts"))),
    }
}

fn kind(cells: &[&str]) -> Kind {
    Kind { workers: count(cells[0]), gpus: count(cells[1]), ranks: count(cells[2]) }
}

fn count(cell: &str) -> u32 {
    cell.parse().expect("a count")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,\
        moe_quant_mode,batch_size,tp_size,prefill_batch_size,prefill_num_workers,prefill_tp_size,prefill_attention_dp_size,\
        prefill_moe_tp_size,prefill_moe_ep_size,decode_batch_size,decode_num_workers,decode_tp_size,decode_attention_dp_size,\
        decode_moe_tp_size,decode_moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n";

    fn of_run(in_flight: u32, prefill: &str) -> Option<&'static Split> {
        let source = format!("db-dump/2026-04-27; silicon_concurrency={in_flight}; measured=2026-02-07");
        let line = format!(
            "a,{source},trtllm,1.0,deepseek-ai/DeepSeek-V3,gb300,fp8,disagg,1024,8192,fp8,fp8,,,1,1,{prefill},9,4,8,1,1,8,10433,11.3\n"
        );
        of(&crate::run::read(&format!("{HEADER}{line}")).expect("a table")[0])
    }

    #[test]
    fn a_published_configuration_is_found_by_its_layout_and_load() {
        // ctx1_gen4_tep8_batch8_eplb0_mtp0 of gb300-fp8/1k8k: 36 in flight, four workers of eight GPUs with eight sequences each.
        let found = of_run(36, "1,4,1,4").expect("published");
        assert_eq!((found.decode_sequences, found.decode.workers, found.prefill.ranks), (8, 4, 4));
        assert_eq!((found.routing(true), found.routing(false)), (ROUTING, ROUTING));
        assert_eq!(of_run(37, "1,4,1,4"), None);
        // A row that writes tensor parallelism of prompts has the ranks that were published.
        let found = of_run(36, "4,1,1,4").expect("the same");
        let shape = found.prefill_shape(&Worker { n: Some(1), batch: 1, tp: 4, pp: 1, dp: 1, moe_tp: 1, moe_ep: 4 });
        assert_eq!((shape.gpus, shape.groups), (4, 4));
    }

    #[test]
    fn every_row_can_be_a_layout() {
        for split in table() {
            for kind in [split.prefill, split.decode] {
                assert!(kind.gpus.is_multiple_of(kind.ranks) && kind.workers > 0, "{split:?}");
            }
            assert!(split.decode_sequences > 0 && split.prefill_sequences > 0 && split.prefill_tokens > 0, "{split:?}");
            assert!(hw::catalog::gpu(split.card).is_some(), "{split:?}");
        }
    }
}
