//! With which options engines were started for the runs: data, laid over the presets of the engines.
//!
//! Rows are asked from the top, and the first that fits a run holds. What a row leaves out, the preset says. Scripts changed over time, so a row
//! may hold for runs of some dates alone. Where options of a run are not published, the row says so. Units: tokens, sequences, shares of memory.

mod aiperf;
pub(crate) mod drafts;
pub(crate) mod frontends;
mod inferencex;
pub mod layouts;
pub(crate) mod split;
pub(crate) mod tokens;

use std::num::NonZeroU32;

use engine::cost::experts::Tactic;
use hw::{Dtype, Format};
use serve::engine_preset::{GraphRule, PromptGraphs, Version};
use serve::engine_reduces::Asked;
use serve::memory_rule::MemoryRule;
use serve::replica::{Gather, Role};
use serve::step_cost::host::EngineLoop;

use crate::client::Client;
use crate::run::{Run, Shape, Workers};

/// A number that follows the load: a fixed part, so many per request in flight and per prompt token, and at least so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    fixed: u32,
    per_request: u32,
    per_prompt_token: u32,
    at_least: u32,
}

/// Prompts that wait for others: boundaries at most, and the share of an iteration's tokens that is enough.
type Wait = (u32, f64);

/// Options that were given to an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Runs that were started so.
    of: Of,
    /// Batching policy, where it is not the preset's.
    pub batcher: Option<&'static str>,
    /// Tokens of an iteration or of a chunk.
    pub tokens_max: Option<Amount>,
    /// Sequences at once.
    pub sequences_max: Option<Amount>,
    /// Captured batches, and the largest.
    pub graphs: Option<(GraphRule, Amount)>,
    /// Iterations with prompts that run in graphs, where they are not those that the preset says.
    pub prompt_graphs: Option<PromptGraphs>,
    /// Memory.
    pub memory: Option<MemoryRule>,
    /// Overlap of host and device.
    pub engine_loop: Option<EngineLoop>,
    /// Whether equal beginnings of prompts share blocks, where the preset says otherwise.
    pub prefix_cache: Option<bool>,
    /// Format of keys and values.
    pub kv: Option<Dtype>,
    /// Format of experts whose kernel computes them, where it is not that of the checkpoint's.
    pub experts: Option<Format>,
    /// Which kernel of experts was asked for, where one was: with tensor groups alone, and with ranks of data-parallel attention.
    pub expert_tactic: Option<[Tactic; 2]>,
    /// Iterations between two looks for new requests, below 16 requests in flight and from there on.
    recv_interval: [u32; 2],
    /// How long prompts wait for others.
    wait: Option<Wait>,
    /// How long they wait for a prompt on every rank of data-parallel attention, where there are such ranks: boundaries, and those behind it.
    rank_wait: Option<[u32; 2]>,
    /// Whether norms are asked for inside of all-reduces.
    pub all_reduce: Asked,
    /// Where this stands.
    pub source: &'static str,
}

/// Runs for which a recipe holds; what is empty fits all.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Of {
    /// Beginning of the client's name.
    client: &'static str,
    engine: &'static str,
    /// First version of the engine.
    since: Version,
    /// Part of the model's path.
    model: &'static str,
    /// Beginning of the card's name.
    card: &'static str,
    /// Format in a word.
    format: &'static str,
    /// First day, and the first one after the last.
    days: [&'static str; 2],
    /// Tokens of prompt and answer.
    lengths: Option<[u32; 2]>,
    /// Least and most GPUs of a tensor group.
    tensor: [u32; 2],
    /// Least requests in flight.
    in_flight: u32,
    /// Whether one engine does everything.
    whole: bool,
    /// Whether whole experts are spread over GPUs.
    spreads_experts: bool,
}

const ANY: Of = Of {
    client: "",
    engine: "",
    since: Version(0, 0, 0),
    model: "",
    card: "",
    format: "",
    days: ["", "~"],
    lengths: None,
    tensor: [1, u32::MAX],
    in_flight: 0,
    whole: false,
    spreads_experts: false,
};

const fn fixed(n: u32) -> Amount {
    Amount { fixed: n, per_request: 0, per_prompt_token: 0, at_least: 1 }
}

/// As many as requests in flight.
const IN_FLIGHT: Amount = Amount { fixed: 0, per_request: 1, per_prompt_token: 0, at_least: 1 };

const PLAIN: Recipe = Recipe {
    of: ANY,
    batcher: None,
    tokens_max: None,
    sequences_max: None,
    graphs: None,
    prompt_graphs: None,
    memory: None,
    engine_loop: None,
    prefix_cache: None,
    kv: None,
    experts: None,
    expert_tactic: None,
    recv_interval: [1, 1],
    wait: None,
    rank_wait: None,
    all_reduce: Asked::Auto,
    source: "nothing is published: the engine's defaults",
};

impl Recipe {
    /// The engine's defaults with so much of the memory, and with a loop of its own where that is given.
    pub const fn of_defaults(memory: MemoryRule, engine_loop: Option<EngineLoop>) -> Self {
        Self { memory: Some(memory), engine_loop, ..PLAIN }
    }
}

impl Amount {
    /// The number under a load.
    pub fn under(&self, in_flight: u32, prompt: u32) -> u32 {
        (self.fixed + self.per_request * in_flight + self.per_prompt_token * prompt).max(self.at_least)
    }
}

impl Recipe {
    /// Iterations between two looks for new requests with so many in flight.
    pub fn recv_interval(&self, in_flight: u32) -> NonZeroU32 {
        NonZeroU32::new(self.recv_interval[usize::from(in_flight >= 16)]).unwrap_or(NonZeroU32::MIN)
    }

    /// How long prompts wait for others, where an iteration has at most so many tokens, on so many ranks of data-parallel attention. Ranks of a worker that does
    /// half of the work wait for none: recipes without drafts have no `enable_balance` there (NVIDIA/srt-slurm @ c88ef731).
    pub fn gather(&self, tokens_max: u32, n_ranks: u32, role: Role) -> Option<Gather> {
        if n_ranks > 1 {
            let waits = self.rank_wait.filter(|_| role == Role::Both);
            return waits.map(|[iterations, more]| Gather::Ranks { iterations, more });
        }
        let (iterations, share) = self.wait?;
        let tokens = u32::try_from(hw::whole(share * f64::from(tokens_max))).unwrap_or(u32::MAX);
        Some(Gather::Tokens { iterations, tokens })
    }
}

impl Of {
    fn fits(&self, run: &Run, client: &Client) -> bool {
        let (Workers::Whole(worker) | Workers::Split { decode: worker, .. }) = &run.workers;
        let Shape { gpus, groups, spreads_experts, .. } = worker.shape();
        let names = (self.client.is_empty() || client.name.starts_with(self.client))
            && (self.engine.is_empty() || self.engine == run.engine)
            && (self.format.is_empty() || self.format == run.precision)
            && run.model.contains(self.model)
            && run.card.starts_with(self.card)
            && self.since <= run.engine_version();
        let load = self.lengths.is_none_or(|lengths| lengths == [run.prompt, run.output])
            && run.in_flight.unwrap_or(0) >= self.in_flight;
        let layout = (self.tensor[0]..=self.tensor[1]).contains(&(gpus / groups))
            && (!self.whole || !run.is_split())
            && (!self.spreads_experts || spreads_experts);
        names && load && layout && self.has_day(&run.measured)
    }

    /// Whether a run was measured in its days; one without a day fits rows of all days alone.
    fn has_day(&self, measured: &str) -> bool {
        self.days == ANY.days || is_within(self.days, measured)
    }
}

/// Whether a day lies within some days, of which the last is not one; no day at all does not.
fn is_within([first, behind]: [&str; 2], day: &str) -> bool {
    !day.is_empty() && first <= day && day < behind
}

/// Every recipe, special ones first.
fn recipes() -> impl Iterator<Item = &'static Recipe> {
    aiperf::RECIPES.iter().chain(&inferencex::RECIPES)
}

/// Options of a run.
pub fn of(run: &Run, client: &Client) -> &'static Recipe {
    const DEFAULTS: &Recipe = &PLAIN;
    recipes().find(|recipe| recipe.of.fits(run, client)).unwrap_or(DEFAULTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_run(source: &str, cells: &str) -> &'static Recipe {
        let run = crate::run::of_line(&format!("a,{source},{cells},500,20"));
        of(&run, crate::client::of(&run.source, &run.measured))
    }

    fn of_version(version: &str) -> &'static Recipe {
        let cells = format!("sglang,{version},org/M,h200_sxm,fp8,agg,1000,100,fp8,fp8,8,1");
        of_run("/data/aic-auto-gap-analysis/x.csv", &cells)
    }

    #[test]
    fn newer_versions_of_an_engine_may_be_started_otherwise() {
        assert_eq!(of_version("0.5.1.post1").batcher, None);
        assert_eq!(of_version("0.5.6.post2").batcher, Some("trtllm"));
    }

    #[test]
    fn scripts_changed_over_time() {
        let tokens = |day: &str| {
            let source = format!("db-dump/x; silicon_concurrency=64; measured={day}T00:00:00.000Z");
            let cells = "trtllm,1.1.0rc2,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,1024,1024,fp8_block,fp8_block,64,8";
            of_run(&source, cells).tokens_max.expect("given").under(64, 1024)
        };
        // Before evaluations were added the budget was one prompt; since then it is 8192 at least.
        assert_eq!((tokens("2026-01-14"), tokens("2026-01-21")), (64 + 1024 + 64, 8192));
    }

    #[test]
    fn prompts_of_some_lengths_wait_for_others_on_few_gpus() {
        let gather = |output: u32, tp: u32| {
            let cells = format!("trtllm,,meta/Llama-3.1-70B,h200_sxm,fp8,agg,1024,{output},fp8,fp8,64,{tp}");
            of_run("source_file=x; model=y; silicon_concurrency=64", &cells).gather(16_384, 1, Role::Both)
        };
        // 0.9 of 16384 tokens.
        assert_eq!(gather(1024, 4), Some(Gather::Tokens { iterations: 20, tokens: 14_746 }));
        assert_eq!((gather(1024, 8), gather(8192, 4)), (None, None));
    }

    #[test]
    fn recipes_name_batching_policies_that_are_there() {
        for batcher in recipes().filter_map(|recipe| recipe.batcher) {
            assert!(serve::batcher::named(batcher).is_some(), "{batcher}");
        }
    }
}
