//! `trtllm-bench`: its requests lie in a file, which a command of the same script may have made.
//!
//! Sources: NVIDIA/TensorRT-LLM `tensorrt_llm/bench/benchmark/throughput.py` @ 000a01de66f0, and the verbs of `prepare_dataset` with a law for tokens.

use super::arrivals::{self, Load, REQUESTS_MAX, Said};
use super::lengths::{self, TOKENS_MAX};
use super::reader::Reader;
use crate::flags::{Flag, last};
use crate::launch::{self, Begins};

/// Verbs that make a data set up: lengths from a bell, or even ones.
const NORMAL: &str = "token-norm-dist";
const EVEN: &str = "token-unif-dist";

fn makes(words: &[String]) -> Option<usize> {
    words.iter().position(|word| [NORMAL, EVEN].iter().any(|verb| word.replace('_', "-") == *verb))
}

/// Reads the options.
pub(super) fn read(read: &mut Reader<'_>, text: &str) {
    let made = made(text);
    match &made {
        Some(flags) => of_made(read, flags),
        None if lengths::are_open(read) => {
            let set = read.flags.text("dataset").unwrap_or_else(|| "of standard input".to_owned());
            lengths::fallback(read, "dataset", &set);
        }
        None => {}
    }
    let load = Load { cap: cap(read), ..Load::default() };
    let is_held = arrivals::write(read, &load);
    let count = requests(read, made.as_deref().unwrap_or_default());
    let warm_up = arrivals::warm_up(read, &["warmup"]);
    arrivals::count(read, count, warm_up, is_held);
}

/// Options of the first command that makes a data set up.
fn made(text: &str) -> Option<Vec<Flag>> {
    let begins: [Begins; 1] = [makes];
    let all = launch::begun(text, &begins, &|_, _| false).ok()?;
    all.into_iter().next().map(|one| one.launch.flags)
}

/// A number of that command.
fn number(flags: &[Flag], name: &str) -> Option<f64> {
    let flag = last(flags, name)?;
    flag.value().parse::<f64>().ok().filter(|number| (0.0..=1e7).contains(number))
}

/// Lengths of the data set that a script makes.
fn of_made(read: &mut Reader<'_>, flags: &[Flag]) {
    for (key, side) in [("prompt_tokens", "input"), ("output_tokens", "output")] {
        if !read.wants_tokens(key) {
            continue;
        }
        let end = |name: &str| number(flags, &format!("{side}-{name}"));
        let ends = match (end("mean"), end("min"), end("max")) {
            (Some(mean), ..) => {
                let mean = hw::whole(mean).clamp(1, TOKENS_MAX);
                Some(lengths::deviating(read, mean, "dataset", end("stdev").unwrap_or(0.0)))
            }
            (None, Some(from), Some(to)) => Some([from, to.max(from)].map(|end| hw::whole(end).max(1))),
            _ => None,
        };
        let Some(ends) = ends else {
            let what = format!("tokens of {side}s of the data set are known only when the script runs");
            let help = format!("write them into the script, or give `--set trace.{key}=…`");
            let at = read.flags.at("dataset");
            read.flags.refuse(input::diagnostic::Code::UnknownValue, at, what, help);
            continue;
        };
        read.set(key, lengths::text(ends), format!("{side} tokens of the data set that the script makes"));
    }
}

/// Requests in flight; without them all are there at once. A number below 1 is none.
fn cap(read: &mut Reader<'_>) -> Said<u64> {
    const NAME: &str = "concurrency";
    let is_none = read.flags.find(NAME).is_some_and(|flag| flag.value().starts_with('-') || flag.value() == "0");
    if is_none { None } else { arrivals::cap(read, &[NAME]) }
}

/// How many requests there are: at most those of the data set.
fn requests(read: &mut Reader<'_>, made: &[Flag]) -> Said<u64> {
    const NAME: &str = "num-requests";
    if !read.wants("requests") {
        return None;
    }
    let of_file = number(made, NAME).map(hw::whole).filter(|n| *n > 0);
    let is_all = read.flags.find(NAME).is_none_or(|flag| flag.value() == "0");
    match (of_file, is_all) {
        (Some(n), true) => Some((n, "requests of the data set that the script makes".to_owned())),
        (Some(most), false) => read.whole_or(&[NAME], most, REQUESTS_MAX).map(|(n, flag)| (n.min(most), flag)),
        (None, false) => read.whole_or(&[NAME], 1, REQUESTS_MAX),
        (None, true) => Some((arrivals::OF_A_TIME, "stands for the requests of the data set".to_owned())),
    }
}
