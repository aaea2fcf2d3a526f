//! `[trace.long]`: a share of the requests is made long, so that a trace of conversations has a few documents in it.

use serve::long::Long;

use input::diagnostic::Code;
use input::reader::{Section, small};

/// Reads the table.
pub fn long(mut section: Section<'_>) -> Long {
    let share = section.number("share", 0.0, 0.0..=1.0);
    let (least, at) = section.count("tokens_min", Some(100_000), 1..=16_000_000);
    let most = section.count("tokens_max", Some(200_000), 1..=16_000_000).0;
    let output = section.small("output_tokens", Some(256), 1..=1_000_000);
    if least > most {
        let what = format!("`trace.long.tokens_min` = {least} is above `trace.long.tokens_max` = {most}");
        section.wrong(Code::OutOfRange, at, what);
    }
    section.finish();
    Long { share, tokens: [small(least), small(most.max(least))], output }
}
