//! The best that a fleet of equal replicas may do with given requests, in closed form: what a search needs to leave settings out unplayed.
//!
//! Every figure is optimistic: no schedule, router or luck gives a better one. Work is priced by `StepTable::least`; attention of prompts by
//! `first_token.rs`; a token is never there before its own passage through the layers. Who is on time within limits is bounded by jobs with
//! deadlines on one machine that has the speed of all replicas (`on_time`). Left out, so that figures stay optimistic: queues, host times,
//! memory, uneven replicas. Of a prefix that another request has too nothing is computed, where prefixes are kept. Which drafts are accepted is drawn by request
//! and position, so the verifications of a request are known beforehand. They are as many only where nobody is computed again, so with drafts nothing is
//! known unless memory holds all sequences that may run. Where some replicas compute prompts and others decode, each does its part of the same requests, and all
//! of a fleet is what holds for both. Requests that are sent when others have ended are under no deadline that is known beforehand; users who are held pass
//! all of them through the fleet, one after another each. Units: seconds, tokens, requests.

mod energy;
mod load;
mod phase;
pub mod work;

use std::sync::OnceLock;

use engine::CostModel;
use hw::power::JOULES_PER_WH;
use hw::{Power, Seconds, Tick};

use crate::first_token;
use crate::metrics::Slo;
use crate::replica::Limits;
use crate::request::Request;
use crate::speculation::Acceptance;
use crate::step_cost::least::Prices;
use crate::step_cost::{ReplicaConfig, StepTable};
pub use load::{Counted, Load};
use phase::Phase;

/// Relative error that sums of ticks and interpolated tables may have against each other.
const SLACK: f64 = 0.01;
/// Share of requests that are in time at least where the 99th percentile is: it lies between two of them.
const P99: f64 = 0.985;
/// Knots of prompt attention per doubling of the prompt.
const KNOTS_PER_OCTAVE: u32 = 2;

/// How a request decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Decoding {
    /// Iterations that its tokens after the first one take.
    passes: f64,
    /// Keys that it attends to in them.
    keys: f64,
}

/// A replica of a deployment: what its work costs at least.
pub struct Replica<'l> {
    load: Load<'l>,
    table: StepTable,
    /// Seconds that attention of a prompt takes at least in all layers, by the tokens from which on that holds.
    attention: Vec<(u32, f64)>,
    /// The same of all prompts.
    attention_s: f64,
    stages: f64,
    /// How every request decodes, and all together.
    decoding: Vec<Decoding>,
    all_decoding: Decoding,
    /// Iterations of a request over its tokens after the first one, in increasing order.
    paces: Vec<f64>,
    /// What runs, and what a GPU of it draws, where that is known.
    config: ReplicaConfig<'l>,
    power: Option<Power>,
    /// What work adds to that; asked for energy alone.
    work: OnceLock<energy::Work>,
}

/// What a fleet may do at best: replicas that do all, or those of each role.
pub struct Outlook<'l> {
    phases: Vec<Phase<'l>>,
    /// When the last request ends at best.
    end_s: f64,
}

impl Decoding {
    /// Of a request by its position: its tokens one by one, or as many as are accepted.
    fn of((index, request): (u32, &Request), acceptance: Option<&Acceptance>) -> Self {
        let (prompt, more) = (f64::from(request.prompt), f64::from(request.output - 1));
        let Some(acceptance) = acceptance else {
            return Self { passes: more, keys: more * prompt + more * (more - 1.0).max(0.0) / 2.0 };
        };
        // The prompt, and what came before.
        let pass = |generated: u32| Self { passes: 1.0, keys: prompt + f64::from(generated - 1) };
        acceptance.verifications(index, request.output).map(pass).fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self { passes: self.passes + other.passes, keys: self.keys + other.keys }
    }
}

impl<'l> Replica<'l> {
    /// What a deployment with a table takes at least for a load.
    pub fn new(config: &ReplicaConfig<'l>, cost: &dyn CostModel, table: StepTable, load: Load<'l>) -> Self {
        let longest = load.requests.list.iter().map(|request| request.prompt).max().unwrap_or(1);
        let mut attention: Vec<(u32, f64)> =
            knots(longest).map(|tokens| (tokens, first_token::attention(config, cost, tokens).get())).collect();
        // A longer prompt may be cheaper where attention becomes sparse; what holds from a knot on is the least behind it.
        let mut behind = f64::INFINITY;
        for (_, seconds) in attention.iter_mut().rev() {
            behind = behind.min(*seconds);
            *seconds = behind;
        }
        let stages = f64::from(config.pipeline_degree);
        let (acceptance, list) = (table.acceptance(), &load.requests.list);
        let of = |request| if load.decodes() { Decoding::of(request, acceptance) } else { Decoding::default() };
        let decoding: Vec<Decoding> = (0..).zip(list).map(of).collect();
        let all_decoding = decoding.iter().copied().fold(Decoding::default(), Decoding::and);
        let several = list.iter().zip(&decoding).filter(|(request, _)| request.output > 1 && load.decodes());
        let mut paces: Vec<f64> =
            several.map(|(request, decoding)| decoding.passes / f64::from(request.output - 1)).collect();
        paces.sort_unstable_by(f64::total_cmp);
        let (config, power, work) = (config.clone(), Power::of(&config.cluster.gpu), OnceLock::new());
        let attention_s = 0.0;
        let mut replica =
            Self { load, table, attention, attention_s, stages, decoding, all_decoding, paces, config, power, work };
        replica.attention_s = replica.load.computed.iter().map(|tokens| replica.attention_of(*tokens)).sum();
        replica
    }

    /// Attention of a prompt in all layers: that of the next knot below.
    fn attention_of(&self, prompt: u32) -> f64 {
        let below = self.attention.partition_point(|(tokens, _)| *tokens <= prompt);
        below.checked_sub(1).map_or(0.0, |index| self.attention[index].1)
    }

    /// Batches that are under way at once: each computes the attention of its own prompts.
    fn lanes(&self) -> f64 {
        f64::from(self.table.lanes().n())
    }

    /// So many of them, of so many GPUs each, under limits; `None` where no price is known.
    pub fn outlook(&self, n_replicas: u32, gpus_each: u32, limits: &Limits) -> Option<Outlook<'_>> {
        if self.table.acceptance().is_some() && !holds_all(&self.table, &self.load.sequences, limits) {
            return None;
        }
        let sequences_max = limits.sequences_max.saturating_mul(self.table.lanes().ranks);
        let least = self.table.least(sequences_max, limits.tokens_max)?;
        let steps_min = self.steps_min([sequences_max, limits.tokens_max].map(f64::from));
        let held = self.table.least_held(sequences_max, limits.tokens_max, self.keys_max(limits))?;
        let phase = Phase::new(self, (least, &held), [n_replicas, gpus_each], steps_min, limits.frontend.takes_time());
        Some(Outlook { end_s: phase.end_s(), phases: vec![phase] })
    }

    /// Keys that a batch attends to at most, because memory has room for no more. Sequences that share a prefix attend to the same keys, so nothing limits them.
    fn keys_max(&self, limits: &Limits) -> f64 {
        let shares = self.load.computed.iter().zip(&self.load.requests.list).any(|(n, request)| *n < request.prompt);
        let tokens = f64::from(limits.kv_blocks) * f64::from(limits.block_tokens);
        if shares && limits.shares_prefixes { f64::INFINITY } else { tokens }
    }

    /// Fewest iterations of all replicas, where each has so many decoding sequences at most, over all ranks of data-parallel attention, and so many tokens in a
    /// batch of a rank or stage.
    fn steps_min(&self, [sequences, tokens]: [f64; 2]) -> f64 {
        let lanes = self.table.lanes();
        let each = f64::from(self.table.tokens_per_sequence());
        let (passes, prompts) = (self.all_decoding.passes, self.load.prompt_tokens);
        // Where an engine's limit is that of prompts alone, decoding sequences may have more tokens.
        let all = (passes * each + prompts) / (tokens.max(sequences * each) * f64::from(lanes.n()));
        (passes / sequences).max(all)
    }

    /// What work draws at least over so many iterations and more, in seconds at the limit of a GPU.
    fn work(&self, power: &Power, steps_min: f64) -> f64 {
        let totals = || energy::Totals {
            passes: self.all_decoding.passes,
            prompt_tokens: self.load.prompt_tokens,
            speculation: self.table.speculation(),
            steps_min: self
                .steps_min([f64::from(self.table.lanes().ranks), 1.0].map(|n| n * self.table.largest_batch())),
        };
        self.work.get_or_init(|| energy::Work::of(&self.config, power, &self.load, totals())).least(steps_min)
    }
}

/// Whether memory holds the longest sequences that may run together, so that nobody ever gives way. Behind an asynchronous host those that have
/// ended keep their blocks for one more iteration.
fn holds_all(table: &StepTable, sequences: &[u32], limits: &Limits) -> bool {
    let ended = if table.is_asynchronous() { 2 } else { 1 };
    let n = u64::from(limits.sequences_max) * u64::from(table.lanes().ranks) * ended;
    let longest = sequences.iter().take(usize::try_from(n).unwrap_or(usize::MAX));
    longest.map(|tokens| u64::from(limits.blocks_of(*tokens))).sum::<u64>() <= u64::from(limits.kv_blocks)
}

/// Least time that decoding takes at these prices, where so much is sampled for a verification.
fn decoding_s(prices: &Prices, sampled: f64, decoding: &Decoding) -> f64 {
    (decoding.passes * (prices.decoded + sampled) + decoding.keys * prices.key) * Tick::SECONDS
}

/// Sizes of prompts whose attention is asked: powers of two and what lies between them, up to the longest.
fn knots(most: u32) -> impl Iterator<Item = u32> {
    let octaves = most.max(1).ilog2() + 1;
    let at = move |index: u32| {
        let base = 1_u64 << (index / KNOTS_PER_OCTAVE);
        base + base * u64::from(index % KNOTS_PER_OCTAVE) / u64::from(KNOTS_PER_OCTAVE)
    };
    let mut last = 0;
    (0..octaves * KNOTS_PER_OCTAVE).filter_map(move |index| {
        let tokens = u32::try_from(at(index)).ok().filter(|tokens| *tokens > last && *tokens <= most)?;
        last = tokens;
        Some(tokens)
    })
}

impl Outlook<'_> {
    /// Of a fleet that has these replicas and those: some compute prompts, the others decode.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        self.phases.extend(other.phases);
        self.end_s = self.end_s.max(other.end_s);
        self
    }

    /// Where so many users send all requests, each the next one when its own has ended.
    #[must_use]
    pub fn held(mut self, users: u32) -> Self {
        let passages_s: f64 = self.phases.iter().map(Phase::passages_s).sum();
        self.end_s = self.end_s.max(passages_s / f64::from(users));
        self
    }

    /// Requests per second that the fleet serves at most, however many wait: what a full batch of each phase does. More of the same requests cannot be served
    /// for long.
    pub fn requests_per_s_most(&self) -> f64 {
        self.phases.iter().map(Phase::requests_per_s).fold(f64::INFINITY, f64::min)
    }

    /// The best that a metric may be; `None` for one that has no bound. `usd_per_gpu_hour` is what a GPU costs.
    pub fn figure(&self, metric: &str, usd_per_gpu_hour: Option<f64>) -> Option<f64> {
        let load = self.phases[0].load();
        let n_gpus: f64 = self.phases.iter().map(|phase| phase.n_gpus).sum();
        let usd_per_hour = usd_per_gpu_hour.map(|usd| usd * n_gpus);
        let (n, tokens) = (load.n(), load.output_tokens);
        Some(match metric {
            "makespan_s" => self.end_s,
            "requests_per_s" | "goodput_requests_per_s" => n / self.end_s,
            "output_tokens_per_s" => tokens / self.end_s,
            "output_tokens_per_s_per_gpu" => tokens / self.end_s / n_gpus,
            "cost_usd_per_hour" => usd_per_hour?,
            "cost_usd_per_mtok" => usd_per_hour? * self.end_s / 3600.0 / (tokens / 1e6),
            "energy_wh" => self.joules()? / JOULES_PER_WH,
            "energy_j_per_output_token" => self.joules()? / tokens,
            "ttft_s.mean" => self.ttft_s(0.0),
            "ttft_s.p50" => self.ttft_s(0.5),
            "ttft_s.p90" => self.ttft_s(0.9),
            "ttft_s.p99" => self.ttft_s(0.99),
            "tpot_s.mean" => self.tpot_s(None)?,
            "tpot_s.p50" => self.tpot_s(Some(0.5))?,
            "tpot_s.p90" => self.tpot_s(Some(0.9))?,
            "tpot_s.p99" => self.tpot_s(Some(0.99))?,
            _ => return None,
        })
    }

    /// Why a metric cannot lie between two ends, whatever happens; `None` where it may. `slo` says who is in time.
    pub fn misses(
        &self,
        metric: &str,
        [low, high]: [f64; 2],
        slo: &Slo,
        usd_per_gpu_hour: Option<f64>,
    ) -> Option<String> {
        let late = |share: f64, ttft, tpot| {
            let met = self.met_ratio(ttft, tpot);
            let what = || format!("`{metric}`: at most {met:.3} of the requests can be in time, {share:.3} are asked");
            (met < share).then(what)
        };
        match (metric, slo.ttft) {
            ("slo_attainment_ratio", Some(ttft)) => late(low, ttft, slo.tpot),
            // No work is too much for a limit that is none.
            ("ttft_s.p99", _) if high.is_finite() => late(P99, Seconds::new(high), None),
            ("ttft_s.p99", _) => None,
            _ => {
                let best = self.figure(metric, usd_per_gpu_hour)?;
                let (is_missed, end) = if metric.contains("per_s") { (best < low, low) } else { (best > high, high) };
                is_missed.then(|| format!("`{metric}` is {best:.3} at best, and the limit is {end}"))
            }
        }
    }

    /// The largest share of requests that may have their first token within `ttft`, and, where `tpot` is given, all others each within that.
    pub fn met_ratio(&self, ttft: Seconds, tpot: Option<Seconds>) -> f64 {
        self.phases.iter().map(|phase| phase.met_ratio(ttft, tpot)).fold(1.0, f64::min)
    }

    /// What all GPUs draw at least until the last request has ended.
    fn joules(&self) -> Option<f64> {
        self.phases.iter().map(|phase| phase.joules(self.end_s)).sum()
    }

    fn ttft_s(&self, share: f64) -> f64 {
        self.phases.iter().map(|phase| phase.ttft_s(share)).fold(0.0, f64::max)
    }

    fn tpot_s(&self, share: Option<f64>) -> Option<f64> {
        self.phases.iter().find_map(|phase| phase.tpot_s(share))
    }
}

/// Position of a quantile among so many values in order: of two neighbours the first.
fn below(share: f64, n: usize) -> Option<usize> {
    usize::try_from(hw::whole((share * hw::real(n.checked_sub(1)? as u64)).floor())).ok()
}

/// Work with a deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// When it has to be done, seconds from the start.
    pub due_s: f64,
    /// Seconds that it takes.
    pub work_s: f64,
}

/// The most jobs that one machine can finish by their deadlines, if all are there from the start: in order of deadlines, and whenever one
/// comes too late the longest so far is given up (J. M. Moore, Management Science 15(1), 1968, proved best there).
pub fn on_time(jobs: &mut [Job]) -> usize {
    jobs.sort_unstable_by(|a, b| a.due_s.total_cmp(&b.due_s));
    let mut kept = std::collections::BinaryHeap::new();
    let mut busy_s = 0.0;
    for job in jobs.iter() {
        assert!(job.work_s >= 0.0, "work is not negative");
        busy_s += job.work_s;
        // Bits of numbers that are not negative are ordered as the numbers are.
        kept.push(job.work_s.to_bits());
        if busy_s > job.due_s {
            busy_s -= f64::from_bits(kept.pop().expect("one was just kept"));
        }
    }
    kept.len()
}

#[cfg(test)]
mod tests;
