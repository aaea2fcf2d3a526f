//! Kinds that scenarios had once: which kind and which keys take their place.

use crate::diagnostic::{Code, Finding};
use crate::scenario::reader::Reader;

/// A kind that is no more.
struct Gone {
    /// Word of `kind`.
    name: &'static str,
    /// Kind that takes its place.
    is_now: &'static str,
    /// Its keys there.
    keys: &'static str,
}

static GONE: &[Gone] = &[Gone {
    name: "kv-sharing",
    is_now: "serving",
    keys: "`[kv]` or `kv` of a variant has `borrow` (`when-short` for distkv-llm, `when-long` with `moves = \"planned\"` for infinite-llm), \
           `lend_ratio` and `heartbeat_s`; `[long]` is `[trace.long]`, and `engine.prefill = \"elsewhere\"` is a `[[fleet.group]]` with \
           `role = \"outputs\"`",
}];

/// Finds fault with a kind that is no more, and says what takes its place; false where there never was one of that name.
pub fn find(reader: &mut Reader<'_>, name: &str) -> bool {
    let Some(gone) = GONE.iter().find(|gone| gone.name == name) else { return false };
    let at = reader.top(&[]).text("kind").and_then(|(_, at)| at);
    let what = format!("kind `{name}` is `{}` now", gone.is_now);
    reader.find(
        Finding::error(Code::OldKind, at, what).help(format!("write `kind = \"{}\"`; {}", gone.is_now, gone.keys)),
    );
    true
}
