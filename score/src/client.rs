//! How benchmark clients load an engine: data, one row per client.
//!
//! All of them hold a number of requests in flight, warm up and let the warm-up drain, and then count every request: the first ones find an
//! idle engine and arrive together. Prompts are random, so no prefix is shared, unless they come again; ends of text are ignored, so lengths are those asked
//! for.

use hw::{Seconds, Time};
use rand_mt::Mt;
use serve::dataset::Dataset;
use serve::request::{Request, Requests};

/// Requests of a warm-up for each in flight.
const WARM_UP_PER_PLACE: u32 = 2;
/// Prompts that AIPerf makes up where nobody says how many (`NUM_DATASET_ENTRIES`, ai-dynamo/aiperf, src/aiperf/common/config/config_defaults.py).
const AIPERF_PROMPTS: u32 = 100;
/// Tokens of a block of keys and values that prompts share: vLLM's.
const BLOCK: u32 = 16;

/// Bytes of a token of text.
const TEXT: f64 = 4.0;
/// Bytes of a token where prompts are neighbours of the vocabulary, rare and long ones as often as any (`sample_random_requests`).
const WHOLE_VOCABULARY: f64 = 6.0;

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
    /// Lengths are drawn evenly from this share of the length to the whole of it, as NumPy draws them from seed 0.
    pub shortest: f64,
    /// Bytes of a token of its prompts.
    pub bytes_per_token: f64,
    /// Prompts of its dataset, which it goes through in a new order every time; `None` where every request has one of its own.
    pub prompts: Option<u32>,
    /// Where this stands.
    pub source: &'static str,
}

/// Every client; the first that knows a run is its.
pub static CLIENTS: [Client; 6] = [
    Client {
        name: "aiperf-dataset",
        known_by: &["nvidia_Llama-3.1-8B-Instruct-FP8.csv"],
        since: "",
        requests_per_place: 10,
        shortest: 1.0,
        bytes_per_token: TEXT,
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
        bytes_per_token: TEXT,
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
        bytes_per_token: TEXT,
        prompts: None,
        source: "ai-dynamo/aiconfigurator @ 8745c7714, src/aiconfigurator/eval/benchmarks/genai_perf_runner.py: --request-count 10 times \
                 the concurrency after a warm-up of 2 times, standard deviations of lengths 0, ignore_eos",
    },
    Client {
        name: "vllm-bench",
        known_by: &["vllm bench serve; "],
        since: "",
        requests_per_place: 4,
        shortest: 1.0,
        bytes_per_token: WHOLE_VOCABULARY,
        prompts: None,
        source: "calibrate/vllm/runs.py, which starts vLLM's own client with neighbours of the vocabulary as prompts; a warm-up ends before",
    },
    Client {
        name: "inferencex",
        known_by: &["db-dump/", "; model=", "-gap-analysis.csv"],
        since: "",
        requests_per_place: 10,
        shortest: 0.8,
        bytes_per_token: WHOLE_VOCABULARY,
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
        bytes_per_token: TEXT,
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
        let all = in_flight * self.requests_per_place + self.warm_up(in_flight);
        let n = (in_flight * self.requests_per_place).min(n_max.max(3 * in_flight)) + self.warm_up(in_flight);
        // All prompts are drawn first, and then all answers.
        let mut numbers = Mt::new(0);
        let [prompts, outputs] = lengths.map(|length| self.drawn(length, all, &mut numbers));
        let of_both = prompts.into_iter().zip(outputs).take(n as usize);
        let list = of_both.map(|(prompt, output)| Request::new(Time::ZERO, prompt, output)).collect();
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

    /// Time of the tokenizer for a token of a prompt, of that for one of text.
    pub fn tokenize(&self, text: Seconds) -> Seconds {
        text * (self.bytes_per_token / TEXT)
    }

    /// So many lengths.
    fn drawn(&self, length: u32, n: u32, numbers: &mut Mt) -> Vec<u32> {
        let shortest = hw::whole((f64::from(length) * self.shortest).floor());
        let shortest = u32::try_from(shortest).expect("at most the length");
        (0..n).map(|_| (shortest + at_most(length - shortest, numbers)).max(1)).collect()
    }
}

/// A whole number from 0 to a largest one as NumPy's `randint` draws it: bits that are too large are thrown away (`buffered_bounded_masked_uint32` in
/// numpy/random/src/distributions/distributions.c). A range of one number takes no bits.
fn at_most(largest: u32, numbers: &mut Mt) -> u32 {
    if largest == 0 {
        return 0;
    }
    let mask = u32::MAX >> largest.leading_zeros();
    loop {
        let bits = numbers.next_u32() & mask;
        if bits <= largest {
            return bits;
        }
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
    fn lengths_are_those_that_numpy_draws() {
        // numpy.random.seed(0); numpy.random.randint(819, 1025, size=10); numpy.random.randint(819, 1025, size=10), by NumPy 2.
        let client = Client { requests_per_place: 10, ..*of("db-dump/2026-04-27", "") };
        let requests = client.requests([1024, 1024], 1, u32::MAX);
        let prompts: Vec<u32> = requests.list.iter().map(|request| request.prompt).collect();
        let outputs: Vec<u32> = requests.list.iter().map(|request| request.output).collect();
        assert_eq!(prompts, [991, 866, 936, 1011, 886, 1014, 922, 828, 840, 855]);
        assert_eq!(outputs[..5], [906, 889, 907, 959, 877]);
    }

    #[test]
    fn own_runs_of_vllm_have_four_requests_for_each_in_flight() {
        let client = of("vllm bench serve; silicon_concurrency=16; measured=2026-11-28", "2026-11-28");
        let requests = client.requests([1024, 256], 16, u32::MAX);
        assert_eq!((client.name, requests.tokens()), ("vllm-bench", (64 * 1024, 64 * 256)));
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
