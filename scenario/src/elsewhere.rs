//! Words for kinds that are asked elsewhere: the kind that answers today, and the keys that ask it. And keys of the command line that one kind has.

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader};

/// The kind that looks for a layout and compares policies by an objective of the command line, and the keys that say it.
const SEEKS: (&str, [&str; 2]) = ("training", ["policies.maximize", "policies.minimize"]);

/// How other kinds are told what is best.
const BEST: [(&str, &str); 3] = [
    ("serving", "`by` in `[tune]`, or in `[[policies.best]]`, says what is best"),
    ("deployment", "`is` in `[objective]` says what is best"),
    ("graph", "`is` in `[objective]` says what is asked"),
];

/// A word, the kind that has what it asks, and how it is asked there.
const ELSEWHERE: [(&str, &str, &str); 8] = [
    (
        "capacity",
        "serving",
        "write `kind = \"serving\"` with a section `[capacity]`, which `skrull-sim capacity` answers",
    ),
    (
        "kv-sharing",
        "serving",
        "write `kind = \"serving\"`; `[kv]`, or `kv` of a variant, has `borrow` (`when-short` for distkv-llm, `when-long` with `moves = \"planned\"` for \
         infinite-llm), `lend_ratio` and `heartbeat_s`; `skrull-sim show serving/distkv` is an example",
    ),
    (
        "long-prompt",
        "serving",
        "write `kind = \"serving\"` with `chunk_tokens`, `chunk_sizes` and `prefill_attention` in `[engine]` or a variant, `prompt_tokens` in \
         `[trace]`, `attention_flops_ratio` or `stage_ms` in `[cost]`; `skrull-sim show serving/qwen-1m` is an example",
    ),
    (
        "sparse-decode",
        "serving",
        "write `kind = \"serving\"` with `weights = { format = \"tiled-csl\", sparsity = 0.8 }` in `[engine]` or a variant, and lists of `tp`, \
         `max_sequences` and `weights` in `[[policies.best]]`; `skrull-sim show serving/flash-llm` is an example",
    ),
    (
        "endpoint",
        "serving",
        "write `kind = \"serving\"` with `law = \"published-runs\"` in `[cost]` and `concurrency` of a held `[[trace.stream]]`; \
         `skrull-sim show serving/silicon` is an example",
    ),
    (
        "rental",
        "deployment",
        "write `kind = \"deployment\"`: `[inventory]` says what may be rented, `is = \"time\"` in `[objective]` what counts",
    ),
    (
        "pool",
        "deployment",
        "write `kind = \"deployment\"`: `[inventory]` says which nodes there are and how far apart, `is = \"throughput\"` in `[objective]` what counts",
    ),
    (
        "phases",
        "deployment",
        "write `kind = \"deployment\"`: `[inventory]` says which machines there are, `is = \"goodput\"` in `[objective]` what counts, a policy splits the phases",
    ),
];

/// Lays what the command line says over a file; an objective of training is refused in another kind.
pub fn lay_over(reader: &mut Reader<'_>, set: &[String]) {
    let (of, keys) = SEEKS;
    let kind = reader.peek("kind").unwrap_or(of).to_owned();
    let seeks = |item: &&String| keys.iter().any(|key| item.split('=').next() == Some(key));
    let (sought, rest): (Vec<&String>, Vec<&String>) = set.iter().partition(|item| kind != of && seeks(item));
    reader.lay_over(&rest.into_iter().cloned().collect::<Vec<_>>());
    for item in sought {
        let key = item.split('=').next().unwrap_or_default().trim_start_matches("policies.");
        let what = format!("`--{key}` is for kind `{of}`, and this scenario is of kind `{kind}`");
        let help = BEST.iter().find(|(known, _)| *known == kind).map(|(_, help)| *help);
        reader.refuse(
            Code::AskedElsewhere,
            None,
            what,
            help.unwrap_or("leave it out: its policies are compared by one figure"),
        );
    }
}

/// What to say of a word that is no kind, where another kind has what it asks.
pub fn finding(word: &str, at: Place) -> Option<Finding> {
    let (_, kind, help) = ELSEWHERE.iter().find(|(known, ..)| *known == word)?;
    let what = format!("`{word}` is no kind of its own");
    Some(Finding::error(Code::AskedElsewhere, at, what).label(format!("asked by kind `{kind}`")).help(*help))
}
