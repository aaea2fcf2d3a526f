//! AIPerf and GenAI-Perf, which came before it: `aiperf profile --isl 1024 --osl 128 --concurrency 32`.
//!
//! Sources: packages aiperf 0.13.0 (`aiperf/config/flags/cli_config.py`) and genai-perf 0.0.16 (`genai_perf/parser.py`, `config/input/config_defaults.py`).

use std::collections::BTreeSet;

use serde_json::Value;

use super::arrivals::{self, EVEN, Load, OF_A_TIME, REQUESTS_MAX, Said};
use super::body;
use super::lengths::{self, Rule, TOKENS_MAX};
use super::reader::Reader;
use super::sampling;

/// Which of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Aiperf,
    GenaiPerf,
}

/// Names of each length's mean, then of its deviation.
const PROMPT: [&[&str]; 2] = [
    &["isl", "synthetic-input-tokens-mean", "prompt-input-tokens-mean"],
    &["isl-stddev", "synthetic-input-tokens-stddev", "prompt-input-tokens-stddev"],
];
const ANSWER: [&[&str]; 2] = [
    &["osl", "output-tokens-mean", "prompt-output-tokens-mean"],
    &["osl-stddev", "output-tokens-stddev", "prompt-output-tokens-stddev"],
];
/// Tokens of a prompt where nothing says them.
const PROMPT_TOKENS: u64 = 550;
/// Prompts that are made up where nothing says how many.
const PROMPTS: u64 = 100;

/// Reads the options.
pub(super) fn read(read: &mut Reader<'_>, which: Which) {
    let is_made_up = data_set(read);
    images(read);
    let load = load(read, which);
    let is_held = arrivals::write(read, &load);
    let count = requests(read, &load);
    let warm_up = arrivals::warm_up(read, &["warmup-request-count", "num-warmup-requests"]);
    if is_made_up {
        again(read, count.as_ref().map(|(n, _)| *n));
    }
    arrivals::count(read, count, warm_up, is_held);
    sampling::read_pairs(read, EXTRA, extra);
    body::name_others(read, EXTRA, names_of_extra(read).iter().map(String::as_str), &OF_REQUESTS);
}

/// Writes lengths. Gives whether prompts are made up, which have no shared beginning.
fn data_set(read: &mut Reader<'_>) -> bool {
    const FILES: [&str; 4] = ["input-file", "public-dataset", "custom-dataset-type", "hf-weka-dataset"];
    if let Some(option) = read.given(&FILES) {
        let set = read.flags.text(option).unwrap_or_else(|| option.to_owned());
        if set == "sharegpt" {
            lengths::conversations(read, option);
        } else {
            lengths::fallback(read, option, &set);
        }
        return false;
    }
    tokens(read, "prompt_tokens", PROMPT, Some(PROMPT_TOKENS));
    if !answers_of_requests(read) {
        tokens(read, "output_tokens", ANSWER, None);
    }
    !beginnings(read)
}

/// Options of requests beside the client's own.
const EXTRA: &str = "extra-inputs";
/// What requests call the length of their answers; where both are said the first counts.
const OF_REQUESTS: [&str; 3] = ["max_completion_tokens", "max_tokens", "min_tokens"];

/// The length of answers that `--extra-inputs` asks for: it stands over the client's own in every request.
fn answers_of_requests(read: &mut Reader<'_>) -> bool {
    let Some((name, text)) = OF_REQUESTS.into_iter().find_map(|name| Some((name, extra(read, name)?))) else {
        return false;
    };
    if !read.wants_tokens("output_tokens") {
        return false;
    }
    match text.parse::<u64>().ok().filter(|tokens| (1..=TOKENS_MAX).contains(tokens)) {
        Some(tokens) => read.set("output_tokens", tokens, format!("--{EXTRA} {name}")),
        None => {
            let what = format!("`--{EXTRA} {name}:{text}` is no length of answers");
            read.flags.wrong(EXTRA, what, format!("allowed are whole numbers from 1 to {TOKENS_MAX}"));
        }
    }
    true
}

/// What `--extra-inputs` says last of a name: pairs as `max_tokens:128`, or objects.
fn extra(read: &Reader<'_>, name: &str) -> Option<String> {
    let given = read.flags.given.iter().filter(|flag| flag.name == EXTRA).flat_map(|flag| &flag.values);
    given.filter_map(|word| of_word(word, name)).next_back()
}

/// The value of a name in one word.
fn of_word(word: &str, name: &str) -> Option<String> {
    if let Ok(object) = serde_json::from_str::<Value>(word) {
        return object.get(name).map(Value::to_string);
    }
    let (own, value) = word.split_once(':')?;
    (own == name).then(|| value.to_owned())
}

/// Names of all pairs that `--extra-inputs` gives.
fn names_of_extra(read: &Reader<'_>) -> BTreeSet<String> {
    let given = read.flags.given.iter().filter(|flag| flag.name == EXTRA).flat_map(|flag| &flag.values);
    let names = |word: &String| match serde_json::from_str::<Value>(word) {
        Ok(Value::Object(fields)) => fields.keys().cloned().collect::<Vec<String>>(),
        _ => word.split_once(':').map(|(name, _)| name.to_owned()).into_iter().collect(),
    };
    given.flat_map(names).collect()
}

/// Writes one of both lengths; without a mean the model ends the answer.
fn tokens(read: &mut Reader<'_>, key: &'static str, [means, deviations]: [&[&str]; 2], usual: Option<u64>) {
    if !read.wants_tokens(key) {
        return;
    }
    let (mean, flag) = match (read.given(means), usual) {
        (Some(name), _) => match read.whole(name, 1..=TOKENS_MAX) {
            Some(mean) => (mean, read.flags.shown(name)),
            None => return,
        },
        (None, Some(usual)) => (usual, read.usual()),
        (None, None) => return lengths::open_answers(read, "--osl"),
    };
    if let Some(ends) = by_ratio(read, mean) {
        return read.set(key, lengths::text(ends), format!("{flag}, --{RATIO}"));
    }
    let deviation = read.given(deviations).and_then(|name| Some((name, read.real(name)?)));
    let ends = deviation.map_or([mean, mean], |(name, deviation)| lengths::deviating(read, mean, name, deviation));
    read.set(key, lengths::text(ends), flag);
}

/// The option of how far lengths are from their means.
const RATIO: &str = "random-range-ratio";

/// Ends by the ratio, in the manner of vLLM's client or of SGLang's.
fn by_ratio(read: &mut Reader<'_>, mean: u64) -> Option<[u64; 2]> {
    read.flags.find(RATIO)?;
    let ratio = read.real(RATIO)?;
    let is_sglang = read.flags.find("random-corpus-style").is_some_and(|flag| flag.value() == "sglang");
    let rule = if is_sglang { Rule::UpTo } else { Rule::Around };
    if !rule.takes(ratio) {
        let what = format!("`--{RATIO} {ratio}` is no such ratio");
        read.flags.wrong(RATIO, what, "allowed are numbers from 0 to 1".to_owned());
        return None;
    }
    Some(rule.ends(mean, ratio))
}

/// Beginnings that prompts share: one is that of all, several are not told apart. Gives whether there are some.
fn beginnings(read: &mut Reader<'_>) -> bool {
    const POOLS: [&str; 3] = ["num-prefix-prompts", "prefix-prompt-pool-size", "prompt-prefix-pool-size"];
    const LENGTHS: [&str; 3] = ["shared-system-prompt-length", "prefix-prompt-length", "prompt-prefix-length"];
    let Some(name) = read.given(&LENGTHS).filter(|_| read.wants("sessions")) else { return false };
    let pool = read.given(&POOLS).and_then(|name| read.whole(name, 0..=TOKENS_MAX));
    let Some(tokens) = read.whole(name, 0..=1_000_000).filter(|tokens| *tokens > 0) else { return false };
    let flag = read.flags.shown(name);
    if name == LENGTHS[0] || pool == Some(1) {
        lengths::shared_beginning(read, tokens, format!("{flag}: a beginning that all prompts share"));
        return true;
    }
    let what = format!("beginnings of {tokens} tokens that some prompts share are not modelled");
    read.warn(
        name,
        what,
        "prompts are counted without them; one that all share is `trace.sessions` with `system_tokens`",
    );
    false
}

/// Images of every prompt, of the mean size.
fn images(read: &mut Reader<'_>) {
    let names = ["image-width-mean", "image-height-mean"];
    if !read.wants("images") || names.iter().any(|name| read.flags.find(name).is_none()) {
        return;
    }
    let each = read.whole_or(&["image-batch-size", "batch-size-image"], 1, 1000);
    let [width, height] = names.map(|name| read.real(name).map(|pixels| hw::whole(pixels.min(65_536.0))));
    let (Some((each, _)), Some(width), Some(height)) = (each, width, height) else { return };
    if width > 0 && height > 0 {
        let table = format!("{{ per_request = {each}, width = {width}, height = {height} }}");
        read.set("images", table, "--image-width-mean, --image-height-mean");
    }
}

/// When requests are sent: AIPerf's rate is a Poisson process, GenAI-Perf's has even gaps. Without both options one request is in flight.
fn load(read: &mut Reader<'_>, which: Which) -> Load {
    const PATTERNS: [&str; 2] = ["arrival-pattern", "request-rate-mode"];
    let per_s = arrivals::rate(read, &["request-rate"]);
    let cap = arrivals::cap(read, &["concurrency"]);
    let pattern = read.given(&PATTERNS).and_then(|name| Some((name, read.word(name)?)));
    let cv = match (which, &pattern) {
        (Which::GenaiPerf, _) => Some((EVEN, format!("even gaps, {}", read.usual()))),
        (_, Some((name, word))) if word == "constant" => Some((EVEN, format!("{} constant", read.flags.shown(name)))),
        (_, Some((_, word))) if word == "gamma" => {
            arrivals::burstiness(read, &["arrival-smoothness", "vllm-burstiness"])
        }
        _ => None,
    };
    let is_open = per_s.is_none() && cap.is_none() && read.given(&["request-rate", "concurrency"]).is_none();
    let cap = if is_open { Some((1, read.usual())) } else { cap };
    Load { per_s, cv, cap }
}

/// How many requests there are: twice those in flight and at least ten, or those of a time.
fn requests(read: &mut Reader<'_>, load: &Load) -> Said<u64> {
    const TIME: &str = "benchmark-duration";
    if !read.wants("requests") {
        return None;
    }
    let names = ["request-count", "num-requests"];
    if read.given(&names).is_none() && read.flags.find(TIME).is_some() {
        let seconds = read.real(TIME)?;
        if let Some(found) = arrivals::within(load, seconds, TIME) {
            return Some(found);
        }
        let what = format!("how many requests fit into `--{TIME} {seconds}` is not known: {OF_A_TIME} are taken");
        read.warn(TIME, what, "give `--set trace.requests=…`");
        return Some((OF_A_TIME, "stands for those of a time".to_owned()));
    }
    let twice = load.cap.as_ref().map_or(0, |(n, _)| n.saturating_mul(2));
    read.whole_or(&names, twice.max(10), REQUESTS_MAX)
}

/// Prompts that come again: so many are made up, and the client goes through them until all requests are sent.
fn again(read: &mut Reader<'_>, count: Option<u64>) {
    if !read.wants("dataset_prompts") || read.gives("images") {
        return;
    }
    let Some((prompts, flag)) = read.whole_or(&["num-dataset-entries", "num-prompts"], PROMPTS, REQUESTS_MAX) else {
        return;
    };
    if count.is_some_and(|count| count > prompts) {
        read.set("dataset_prompts", prompts, format!("{flag}: prompts come again"));
    }
}
