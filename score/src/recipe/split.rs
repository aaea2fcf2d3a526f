//! How workers of split runs were started: limits and attention ranks that were published for a layout and a load.
//!
//! The table of runs says neither how many sequences a worker takes at once nor, in some rows, whether prompts were computed with data-parallel
//! attention. The configurations do (`tables/splits.tsv`, with its source). Units: GPUs, tokens and sequences of an attention rank.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::OnceLock;

use engine::Model;
use engine::cost::experts::Routing;
use serve::engine_preset;
use serve::replica::Role;
use serve::step_cost::prompt_exchange::PromptExchange;

use crate::run::{Run, Shape, Worker, Workers};

/// Workers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    workers: u32,
    gpus: u32,
    ranks: u32,
    /// Tokens of an iteration; `None` where nothing was published, as of workers that decode.
    pub tokens: Option<u32>,
    /// Sequences at once.
    pub sequences: u32,
    /// Iterations that only decode between two looks for requests.
    pub looks: NonZeroU32,
    /// Tokens of keys and values that a rank holds at most, where that was said.
    pub kv_tokens: Option<u32>,
    /// Places of experts where the engine moves them, so that GPUs have equal load; else 0.
    places: u32,
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
    in_flight: Vec<u32>,
    prefill: Side,
    decode: Side,
    /// Tokens that are drafted for each verification; 0 where none are.
    pub drafts: u32,
    /// How ranks of attention exchange tokens of prompts with experts.
    pub prompt_exchange: PromptExchange,
}

/// First day on which the configurations of SGLang on GB200 say how workers are cut. Before, their degrees "do nothing" beside scripts that have others
/// (InferenceX, nvidia-master.yaml @ c040b5cf2, replaced by 2767db504), and the table has these degrees.
const CUT_SINCE: &str = "2026-02-07";

/// Whether the table says how the workers of a run were cut.
fn says_cut(run: &Run) -> bool {
    let is_of_scripts = run.engine == "sglang" && run.card == "gb200" && !run.measured.is_empty();
    !is_of_scripts || run.measured.as_str() >= CUT_SINCE
}

impl Split {
    /// How many prefill and decode workers there are.
    pub const fn n_workers(&self) -> [u32; 2] {
        [self.prefill.workers, self.decode.workers]
    }

    /// Workers that do this; `None` for what is no half of a split run.
    pub const fn side(&self, role: Role) -> Option<&Side> {
        match role {
            Role::Prefill => Some(&self.prefill),
            Role::Decode => Some(&self.decode),
            Role::Both | Role::Outputs => None,
        }
    }

    /// Whether it was published for the engine, model, card, format, lengths and load of a run.
    fn is_for(&self, run: &Run) -> bool {
        let named = self.engine == run.engine
            && run.model.contains(self.model)
            && self.card == run.card
            && self.format == run.precision;
        let loaded =
            self.lengths == [run.prompt, run.output] && run.in_flight.is_some_and(|n| self.in_flight.contains(&n));
        named && loaded
    }

    fn fits(&self, run: &Run, [prefill, decode]: [&Worker; 2]) -> bool {
        let laid = self.prefill.is_of(prefill) && self.decode.is_of(decode);
        let is_cut = !says_cut(run) || self.decode.ranks == decode.shape().groups;
        self.drafts == 0 && self.is_for(run) && laid && is_cut
    }

    /// Whether workers lie on so many GPUs, however many workers and ranks of attention there are: the table writes one rank where the configurations of
    /// its loads have data-parallel attention.
    fn may_be(&self, run: &Run, [prefill, decode]: [&Worker; 2]) -> bool {
        let lie = self.prefill.gpus == prefill.shape().gpus && self.decode.gpus == decode.shape().gpus;
        self.is_for(run) && lie
    }
}

impl Side {
    /// How a worker lies on its GPUs. With ranks of attention its experts are spread.
    pub fn shape(&self, worker: &Worker) -> Shape {
        let shape = worker.shape();
        Shape { groups: self.ranks, spreads_experts: shape.spreads_experts || self.ranks > 1, ..shape }
    }

    /// How tokens spread over the experts: evenly where the engine balances their load.
    pub fn routing(&self, model: &Model) -> Routing {
        if self.places > 0 { Routing::Even } else { engine_preset::routing(model) }
    }

    /// Whether as many workers of as many GPUs are stated.
    fn is_of(&self, stated: &Worker) -> bool {
        Some(self.workers) == stated.n && self.gpus == stated.shape().gpus
    }
}

/// The configuration without drafts of a split run, where it was published.
pub fn of(run: &Run) -> Option<&'static Split> {
    match &run.workers {
        Workers::Whole(_) => None,
        Workers::Split { prefill, decode } => {
            let fitting = || table().iter().filter(|split| split.fits(run, [prefill, decode]));
            // Of configurations that differ in how prompts are computed, the one that the table has.
            let ranks = prefill.shape().groups;
            let stated = fitting().find(|split| says_cut(run) && split.prefill.ranks == ranks);
            stated.or_else(|| fitting().next())
        }
    }
}

/// The published configurations that a split run may have had, one for each number of workers, of ranks that decode and of drafts.
pub fn layouts_of(run: &Run) -> Vec<&'static Split> {
    let Workers::Split { prefill, decode } = &run.workers else { return Vec::new() };
    let mut found = BTreeMap::new();
    for split in table().iter().filter(|split| split.may_be(run, [prefill, decode])) {
        found.entry((split.n_workers(), split.decode.ranks, split.drafts)).or_insert(split);
    }
    found.into_values().collect()
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
    let [places, looks, kv_tokens] = [16, 18, 20].map(|column| pair(cells[column]));
    Split {
        engine: cells[0],
        model: cells[1],
        card: cells[2],
        format: cells[3],
        lengths: [count(cells[4]), count(cells[5])],
        in_flight: cells[15].split(' ').map(count).collect(),
        prefill: side(&cells[6..9], (Some(count(cells[9])), count(cells[10])), [places[0], looks[0], kv_tokens[0]]),
        decode: side(&cells[11..14], (None, count(cells[14])), [places[1], looks[1], kv_tokens[1]]),
        drafts: count(cells[17]),
        prompt_exchange: exchange(cells[19]),
    }
}

fn side(cells: &[&str], (tokens, sequences): (Option<u32>, u32), [places, looks, kv_tokens]: [u32; 3]) -> Side {
    let [workers, gpus, ranks] = [0, 1, 2].map(|column| count(cells[column]));
    let looks = NonZeroU32::new(looks).expect("a look now and then");
    let kv_tokens = (kv_tokens > 0).then_some(kv_tokens);
    Side { workers, gpus, ranks, tokens, sequences, looks, kv_tokens, places }
}

/// `sum` of workers whose ranks add up buffers, `-` of all others.
fn exchange(cell: &str) -> PromptExchange {
    if cell == "sum" { PromptExchange::Summed } else { PromptExchange::Gathered }
}

/// What a prefill and a decode worker have.
fn pair(cell: &str) -> [u32; 2] {
    let (prefill, decode) = cell.split_once(' ').expect("two counts");
    [count(prefill), count(decode)]
}

fn count(cell: &str) -> u32 {
    cell.parse().expect("a count")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Columns of a table with split runs.
    pub(crate) const HEADER: &str = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,\
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
        assert_eq!((found.decode.sequences, found.decode.workers, found.prefill.ranks), (8, 4, 4));
        assert_eq!((found.prefill.places, found.decode.places), (0, 0));
        assert_eq!(of_run(37, "1,4,1,4"), None);
        // A row that writes tensor parallelism of prompts has the ranks that were published.
        let found = of_run(36, "4,1,1,4").expect("the same");
        let shape = found.prefill.shape(&Worker { n: Some(1), batch: 1, tp: 4, pp: 1, dp: 1, moe_tp: 1, moe_ep: 4 });
        assert_eq!((shape.gpus, shape.groups), (4, 4));
    }

    #[test]
    fn a_worker_that_decodes_is_as_wide_as_its_tensor_degree() {
        // The table writes the four expert ranks of the prompts' workers for decoding too. Both configurations of this load decode on sixteen GPUs.
        let source = "db-dump/2026-04-27; silicon_concurrency=4301; measured=2026-03-23";
        let line = format!(
            "a,{source},trtllm,1.2,deepseek-ai/DeepSeek-R1,gb200,fp4,disagg,1024,1024,nvfp4,nvfp4,,,,,4,1,1,4,,,16,1,4,4,3561,23.5\n"
        );
        let run = crate::run::read(&format!("{HEADER}{line}")).expect("a table").remove(0);
        let found: Vec<_> = layouts_of(&run).iter().map(|split| (split.decode.gpus, split.decode.ranks)).collect();
        assert!(!found.is_empty() && found.iter().all(|found| *found == (16, 16)), "{found:?}");
    }

    /// A run of SGLang whose prompts' worker has four GPUs and such ranks, and whose four others have four GPUs each.
    fn of_sglang(
        card: &str,
        day: &str,
        (in_flight, n_decode): (u32, u32),
        degrees: [&str; 2],
    ) -> Option<&'static Split> {
        let source = format!("db-dump/2026-04-27; silicon_concurrency={in_flight}; measured={day}");
        let [prefill, decode] = degrees;
        let line = format!(
            "a,{source},sglang,0.5,deepseek-ai/DeepSeek-V3,{card},fp4,disagg,8192,1024,nvfp4,nvfp4,,,,1,{prefill},1,4,1,{n_decode},{decode},2571,11.5\n"
        );
        of(&crate::run::read(&format!("{HEADER}{line}")).expect("a table")[0])
    }

    #[test]
    fn degrees_that_do_nothing_are_not_asked() {
        // gb200-fp4/8k1k/low-latency @ fbb628e7 computes prompts and tokens by tensor groups of four GPUs. The table has ranks of attention.
        let of_day = |day: &str| of_sglang("gb200", day, (64, 4), ["1,4", "1,4,4,1"]);
        let found = of_day("2025-12-21").expect("published");
        assert_eq!((found.prefill.ranks, found.decode.ranks, found.prefill.kv_tokens), (1, 1, Some(32_768)));
        assert_eq!(of_day("2026-02-08"), None);
    }

    #[test]
    fn of_two_configurations_of_a_load_the_stated_one_holds() {
        // b200-fp4/8k1k has 64 in flight over one worker of each kind, with and without ranks of attention.
        let of_ranks = |degrees| of_sglang("b200", "2026-02-11", (64, 1), [degrees, "8,1,1,8"]).expect("published");
        let (ranks, whole) = (of_ranks("1,4"), of_ranks("4,1"));
        assert_eq!((ranks.prefill.ranks, ranks.prompt_exchange), (4, PromptExchange::Summed));
        assert_eq!((whole.prefill.ranks, whole.prompt_exchange), (1, PromptExchange::Gathered));
    }

    #[test]
    fn workers_of_racks_look_seldom_where_they_have_one_rank() {
        let of = |card: &str| {
            let is_it = |split: &&Split| {
                split.engine == "sglang" && split.card == card && split.format == "fp8" && split.prefill.ranks == 1
            };
            table().iter().find(is_it).expect("published")
        };
        // `scheduler-recv-interval` of gb200-fp8/1k1k/low-latency is 10 in both roles, that of gb300-fp8 is 10 and 1; b200-fp8 leaves it out.
        let looks =
            ["gb200", "gb300", "b200"].map(|card| [of(card).prefill.looks, of(card).decode.looks].map(NonZeroU32::get));
        assert_eq!(looks, [[10, 10], [10, 1], [1, 1]]);
    }

    #[test]
    fn every_row_can_be_a_layout() {
        for split in table() {
            for side in [&split.prefill, &split.decode] {
                assert!(side.gpus.is_multiple_of(side.ranks) && side.workers > 0 && side.sequences > 0, "{split:?}");
            }
            assert!(split.prefill.tokens.is_some_and(|tokens| tokens > 0), "{split:?}");
            assert!(hw::catalog::gpu(split.card).is_some(), "{split:?}");
        }
    }
}
