//! The best that a fleet of equal replicas may do with given requests, in closed form: what a search needs to leave settings out unplayed.
//!
//! Every figure is optimistic: no schedule, router or luck gives a better one. Work is priced by `StepTable::least`; attention of prompts by
//! `first_token.rs`; a token is never there before its own passage through the layers. Who is on time within limits is bounded by jobs with
//! deadlines on one machine that has the speed of all replicas (`on_time`). Left out, so that figures stay optimistic: queues, host times,
//! memory, uneven replicas. It holds for requests that share no prefix. Units: seconds, tokens, requests.

use engine::CostModel;
use hw::{Seconds, Tick, Time};

use crate::first_token;
use crate::metrics::Slo;
use crate::request::{Request, Requests};
use crate::step_cost::least::Least;
use crate::step_cost::{ReplicaConfig, StepTable};

/// Relative error that sums of ticks and interpolated tables may have against each other.
const SLACK: f64 = 0.01;
/// Share of requests that are in time at least where the 99th percentile is: it lies between two of them.
const P99: f64 = 0.985;
/// Knots of prompt attention per doubling of the prompt.
const KNOTS_PER_OCTAVE: u32 = 2;

/// What arrives, summed up.
#[derive(Clone, Debug)]
pub struct Load<'r> {
    requests: &'r Requests,
    /// Prompt tokens of all requests, in increasing order.
    prompts: Vec<u32>,
    prompt_tokens: f64,
    output_tokens: f64,
    /// Keys that decoded tokens attend to.
    keys: f64,
    first_s: f64,
    last_s: f64,
}

/// A replica of a deployment: what its work costs at least.
pub struct Replica<'l> {
    load: &'l Load<'l>,
    table: StepTable,
    /// Seconds that attention of a prompt takes at least in all layers, by the tokens from which on that holds.
    attention: Vec<(u32, f64)>,
    /// The same of all prompts.
    attention_s: f64,
    stages: f64,
}

/// What a fleet of replicas may do at best.
pub struct Outlook<'l> {
    replica: &'l Replica<'l>,
    least: Least,
    n_replicas: f64,
    n_gpus: f64,
    /// When the last request ends at best.
    end_s: f64,
}

impl<'r> Load<'r> {
    /// Sums of requests; `None` where there are none, or where work may be left out: prefixes are shared, or clients leave.
    pub fn of(requests: &'r Requests) -> Option<Self> {
        let (first, last) = (requests.list.first()?, requests.list.last()?);
        if requests.prefix_tokens > 0 || !requests.is_patient() {
            return None;
        }
        let seconds = |request: &Request| (request.arrival - Time::ZERO).to_seconds().get();
        let mut load = Self {
            requests,
            prompts: requests.list.iter().map(|request| request.prompt).collect(),
            prompt_tokens: 0.0,
            output_tokens: 0.0,
            keys: 0.0,
            first_s: seconds(first),
            last_s: seconds(last),
        };
        load.prompts.sort_unstable();
        for request in &requests.list {
            load.prompt_tokens += f64::from(request.prompt);
            load.output_tokens += f64::from(request.output);
            load.keys += keys(request);
        }
        Some(load)
    }

    fn n(&self) -> f64 {
        hw::real(self.requests.len() as u64)
    }

    fn decoded(&self) -> f64 {
        self.output_tokens - self.n()
    }
}

/// Keys that the tokens of a request after its first one attend to: the prompt, and what came before them.
fn keys(request: &Request) -> f64 {
    let more = f64::from(request.output - 1);
    more * f64::from(request.prompt) + more * (more - 1.0).max(0.0) / 2.0
}

impl<'l> Replica<'l> {
    /// What a deployment with a table takes at least for a load.
    pub fn new(config: &ReplicaConfig<'_>, cost: &dyn CostModel, table: StepTable, load: &'l Load<'l>) -> Self {
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
        let mut replica = Self { load, table, attention, attention_s: 0.0, stages };
        replica.attention_s = load.requests.list.iter().map(|request| replica.attention_of(request.prompt)).sum();
        replica
    }

    /// Attention of a prompt in all layers: that of the next knot below.
    fn attention_of(&self, prompt: u32) -> f64 {
        let below = self.attention.partition_point(|(tokens, _)| *tokens <= prompt);
        below.checked_sub(1).map_or(0.0, |index| self.attention[index].1)
    }

    /// So many of them, of so many GPUs each, under limits of sequences and tokens; `None` where no price is known.
    pub fn outlook(&self, n_replicas: u32, gpus_each: u32, limits: (u32, u32)) -> Option<Outlook<'_>> {
        let least = self.table.least(limits.0, limits.1)?;
        let n_gpus = f64::from(n_replicas) * f64::from(gpus_each);
        let mut outlook = Outlook { replica: self, least, n_replicas: f64::from(n_replicas), n_gpus, end_s: 0.0 };
        outlook.end_s = outlook.end_s();
        Some(outlook)
    }
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
    /// The best that a metric may be; `None` for one that has no bound. `usd_per_gpu_hour` is what a GPU costs.
    pub fn figure(&self, metric: &str, usd_per_gpu_hour: Option<f64>) -> Option<f64> {
        let load = self.replica.load;
        let usd_per_hour = usd_per_gpu_hour.map(|usd| usd * self.n_gpus);
        Some(match metric {
            "makespan_s" => self.end_s,
            "requests_per_s" | "goodput_requests_per_s" => load.n() / self.end_s,
            "output_tokens_per_s" => load.output_tokens / self.end_s,
            "output_tokens_per_s_per_gpu" => load.output_tokens / self.end_s / self.n_gpus,
            "cost_usd_per_hour" => usd_per_hour?,
            "cost_usd_per_mtok" => usd_per_hour? * self.end_s / 3600.0 / (load.output_tokens / 1e6),
            "ttft_s.mean" => self.ttft_s(0.0),
            "ttft_s.p50" => self.ttft_s(0.5),
            "ttft_s.p90" => self.ttft_s(0.9),
            "ttft_s.p99" => self.ttft_s(0.99),
            "tpot_s.mean" | "tpot_s.p50" | "tpot_s.p90" | "tpot_s.p99" => self.passage_s(),
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
    /// Both are deadlines for the work of a request.
    pub fn met_ratio(&self, ttft: Seconds, tpot: Option<Seconds>) -> f64 {
        let by = |pair: &[f64; 2]| {
            let mut jobs: Vec<Job> =
                self.replica.load.requests.list.iter().map(|request| self.job(request, pair, ttft, tpot)).collect();
            hw::real(on_time(&mut jobs) as u64)
        };
        self.least.pairs.iter().map(by).fold(self.replica.load.n(), f64::min) / self.replica.load.n()
    }

    /// A request as work for one machine that is as fast as all replicas.
    fn job(&self, request: &Request, pair: &[f64; 2], ttft: Seconds, tpot: Option<Seconds>) -> Job {
        let [prompt, decoded] = *pair;
        let more = f64::from(request.output - 1);
        let attention = self.replica.attention_of(request.prompt) / self.replica.stages;
        let first = (f64::from(request.prompt) * prompt + self.least.sampled) * Tick::SECONDS + attention;
        let rest = (more * (decoded + self.least.sampled) + keys(request) * self.least.key) * Tick::SECONDS;
        let since_first = (request.arrival - Time::ZERO).to_seconds().get() - self.replica.load.first_s;
        let speed = self.n_replicas * (1.0 + SLACK);
        match tpot {
            None => Job { due_s: since_first + ttft.get(), work_s: first / speed },
            Some(tpot) => Job { due_s: since_first + ttft.get() + more * tpot.get(), work_s: (first + rest) / speed },
        }
    }

    /// When the last request ends at best: all work is done, and the last one to arrive has passed.
    fn end_s(&self) -> f64 {
        let load = self.replica.load;
        let sampled = load.output_tokens * self.least.sampled + load.keys * self.least.key;
        let tokens = |pair: &[f64; 2]| load.prompt_tokens * pair[0] + load.decoded() * pair[1];
        let most = self.least.pairs.iter().map(tokens).fold(0.0, f64::max);
        let work_s = (most + sampled) * Tick::SECONDS + self.replica.attention_s / self.replica.stages;
        let busy_until = load.first_s + work_s / self.n_replicas / (1.0 + SLACK);
        busy_until.max(load.last_s + self.passage_s())
    }

    /// A passage through all layers, which every token needs.
    fn passage_s(&self) -> f64 {
        self.least.passage * Tick::SECONDS / (1.0 + SLACK)
    }

    /// Least time to the first token of the prompt that is longer than so large a share of all.
    fn ttft_s(&self, share: f64) -> f64 {
        let prompts = &self.replica.load.prompts;
        // Of two neighbours the shorter one.
        let at = hw::whole((share * hw::real(prompts.len() as u64 - 1)).floor());
        let prompt = prompts[usize::try_from(at).expect("an index")];
        let linear = f64::from(prompt) * self.least.token * Tick::SECONDS;
        let whole = linear + self.replica.attention_of(prompt);
        (whole / self.replica.stages / (1.0 + SLACK)).max(self.passage_s())
    }
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
