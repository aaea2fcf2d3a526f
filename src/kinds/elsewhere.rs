//! Words for kinds that are asked elsewhere: the kind that answers today, and the keys that ask it.

use crate::diagnostic::{Code, Finding};
use crate::scenario::reader::Place;

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
        "write `kind = \"serving\"` with a section `[kv]`: who lends memory, who borrows, who decides",
    ),
    (
        "long-prompt",
        "serving",
        "write `kind = \"serving\"`: `chunk_sizes` and `prefill_attention` of `[engine]` or of a variant cut prompts and make attention sparse",
    ),
    (
        "sparse-decode",
        "serving",
        "write `kind = \"serving\"`: `weights` of `[engine]` or of a variant says their format and how sparse they are",
    ),
    ("endpoint", "serving", "write `kind = \"serving\"` with `law = \"published-runs\"` in `[cost]`"),
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

/// What to say of a word that is no kind, where another kind has what it asks.
pub fn finding(word: &str, at: Place) -> Option<Finding> {
    let (_, kind, help) = ELSEWHERE.iter().find(|(known, ..)| *known == word)?;
    let what = format!("`{word}` is no kind of its own");
    Some(Finding::error(Code::AskedElsewhere, at, what).label(format!("asked by kind `{kind}`")).help(*help))
}
