//! How benchmark clients load an engine: data, one row per client.
//!
//! All of them hold a number of requests in flight, warm up and let the warm-up drain, and then count every request: the first ones find an
//! idle engine and arrive together. Prompts are random, so no prefix is shared, unless they come again; ends of text are ignored, so lengths are those asked
//! for.

use engine::random;
use hw::Time;
use serve::dataset::Dataset;
use serve::request::{Request, Requests};

/// Requests of a warm-up for each in flight.
const WARM_UP_PER_PLACE: u32 = 2;
/// Prompts that AIPerf makes up where nobody says how many (`NUM_DATASET_ENTRIES`, ai-dynamo/aiperf, src/aiperf/common/config/config_defaults.py).
const AIPERF_PROMPTS: u32 = 100;
/// Tokens of a block of keys and values that prompts share: vLLM's.
const BLOCK: u32 = 16;

/// A benchmark client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Client {
    /// Name.
    pub name: &'static str,
    /// Parts of a run's source by which it is known; an empty one matches every run.
    known_by: &'static [&'static str],
    /// First day of its runs; where it is not empty, runs without a day are not its.
    since: &'static str,
    /// Requests that it sends for each in flight.
    pub requests_per_place: u32,
    /// Lengths are drawn evenly from this share of the length to the whole of it.
    pub shortest: f64,
    /// Prompts of its dataset, which it goes through in a new order every time; `None` where every request has one of its own.
    pub prompts: Option<u32>,
    /// Where this stands.
    pub source: &'static str,
}

/// Every client; the first that knows a run is its.
pub static CLIENTS: [Client; 5] = [
    Client {
        name: "aiperf-dataset",
        known_by: &["nvidia_Llama-3.1-8B-Instruct-FP8.csv"],
        since: "",
        requests_per_place: 10,
        shortest: 1.0,
        prompts: Some(AIPERF_PROMPTS),
        source: "assumed: one GPU answers more prompts than its datasheet lets it compute, so they were cached. ai-dynamo/aiconfigurator @ f90534bc2, \
                 src/aiconfigurator/generator/config/backend_templates/benchmark/bench_run.sh.j2: a warm-up of 2 times the concurrency and no \
                 --num-dataset-entries, so AIPerf's 100 prompts come again and again, and vLLM caches prefixes by default. \
                 That script sends 50 for each in flight; 10 are taken as in the other runs",
    },
    Client {
        name: "aiperf-script",
        known_by: &["aic-auto-gap-analysis"],
        since: "2026-02-11",
        requests_per_place: 50,
        shortest: 1.0,
        prompts: Some(AIPERF_PROMPTS),
        source: "ai-dynamo/aiconfigurator @ f90534bc2 of that day, src/aiconfigurator/generator/config/backend_templates/benchmark: --num-requests 50 \
                 times the concurrency after a warm-up of 2 times; that later runs were loaded by it is assumed",
    },
    Client {
        name: "aiperf",
        known_by: &["aic-auto-gap-analysis"],
        since: "",
        requests_per_place: 10,
        shortest: 1.0,
        prompts: None,
        source: "ai-dynamo/aiconfigurator @ 8745c7714, src/aiconfigurator/eval/benchmarks/genai_perf_runner.py: --request-count 10 times \
                 the concurrency after a warm-up of 2 times, standard deviations of lengths 0, ignore_eos",
    },
    Client {
        name: "inferencex",
        known_by: &["db-dump/", "; model=", "-gap-analysis.csv"],
        since: "",
        requests_per_place: 10,
        shortest: 0.8,
        prompts: None,
        source: "SemiAnalysisAI/InferenceX @ 843c6254f, benchmarks/benchmark_lib.sh and utils/bench_serving/benchmark_serving.py: \
                 --num-prompts 10 times the concurrency, --random-range-ratio 0.8, --request-rate inf, --ignore-eos; since 2026-01-21 \
                 (d053ae24e) a warm-up of 2 times the concurrency, which ends before the run begins",
    },
    Client {
        name: "other",
        known_by: &[""],
        since: "",
        requests_per_place: 10,
        shortest: 1.0,
        prompts: None,
        source: "assumed, as of aiperf: nothing is known of these runs",
    },
];

/// Client of a run, by its source and its day.
///
/// # Panics
/// Never: the last client knows every run.
pub fn of(source: &str, measured: &str) -> &'static Client {
    let is_its =
        |client: &&Client| measured >= client.since && client.known_by.iter().any(|part| source.contains(part));
    CLIENTS.iter().find(is_its).expect("one of them knows every run")
}

/// Client of a name; the last one where there is none.
pub fn named(name: &str) -> &'static Client {
    let last = &CLIENTS[CLIENTS.len() - 1];
    CLIENTS.iter().find(|client| client.name == name).unwrap_or(last)
}

impl Client {
    /// A source of runs by which it is known.
    pub fn source_of_runs(&self) -> &'static str {
        self.known_by[0]
    }

    /// What it sends with so many requests in flight, at most `n_max` requests and at least three for each in flight.
    pub fn requests(&self, lengths: [u32; 2], in_flight: u32, n_max: u32) -> Requests {
        let n = (in_flight * self.requests_per_place).min(n_max.max(3 * in_flight));
        let mut stream = random::stream(0, "lengths of a benchmark");
        let mut list = Vec::new();
        for _ in 0..n + self.warm_up(in_flight) {
            let [prompt, output] = lengths.map(|length| self.drawn(length, &mut stream));
            list.push(Request::new(Time::ZERO, prompt, output));
        }
        let mut requests = Requests::of(list);
        if let Some(prompts) = self.prompts {
            Dataset { prompts }.lay(&mut requests, BLOCK, 0);
        }
        requests
    }

    /// Requests before those that are counted, where it matters what they leave behind: prompts of a dataset come again.
    pub const fn warm_up(&self, in_flight: u32) -> u32 {
        if self.prompts.is_some() { WARM_UP_PER_PLACE * in_flight } else { 0 }
    }

    fn drawn(&self, length: u32, stream: &mut random::Stream) -> u32 {
        let shortest = hw::whole(f64::from(length) * self.shortest);
        let above = stream.below(u64::from(length) + 1 - shortest);
        u32::try_from(shortest + above).expect("at most the length").max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_drawn_evenly_from_the_share_to_the_whole() {
        let client = of("db-dump/2026-04-27; silicon_concurrency=64", "");
        assert_eq!(client.name, "inferencex");
        let requests = client.requests([1024, 1000], 64, u32::MAX);
        assert_eq!(requests.len(), 640);
        let (prompts, outputs) = requests.tokens();
        // int(0.8 · 1024) = 819 to 1024: mean 921.5; 800 to 1000: mean 900. Deviations of a mean of 640: 2.4 and 2.3.
        assert!(prompts.abs_diff(589_760) < 5 * 640 * 3 && outputs.abs_diff(576_000) < 5 * 640 * 3);
        assert!(requests.list.iter().all(|request| (819..=1024).contains(&request.prompt)));
    }

    #[test]
    fn fixed_lengths_stay_and_long_runs_are_cut_short() {
        let client = of("source_file=/data/aic-auto-gap-analysis/x.csv", "");
        let requests = client.requests([512, 128], 100, 400);
        assert_eq!(requests.len(), 400);
        assert!(requests.list.iter().all(|request| (request.prompt, request.output) == (512, 128)));
        assert_eq!(client.requests([512, 128], 1000, 400).len(), 3000, "at least three turns");
        let newer = of("source_file=/data/aic-auto-gap-analysis/x.csv", "2026-03-07");
        assert_eq!(newer.requests([512, 128], 4, u32::MAX).len(), 208, "fifty for each of four, and a warm-up of two");
    }
}
