//! `[trace.long]`: a share of the requests is made long, so that a trace of conversations has a few documents in it.

use serve::request::Requests;

use input::diagnostic::Code;
use input::reader::{Section, small};

/// Requests that are made long.
pub struct Long {
    share: f64,
    /// Fewest and most prompt tokens.
    pub tokens: [u32; 2],
    output: u32,
}

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

impl Long {
    /// Makes a share of requests long, chosen at random, with log-uniform prompts that share nothing.
    pub fn lay(&self, requests: &mut Requests, seed: u64) {
        let mut stream = engine::random::stream(seed, "long requests");
        let [least, most] = self.tokens.map(f64::from);
        for request in &mut requests.list {
            let (chosen, at) = (stream.unit() < self.share, stream.unit());
            if chosen {
                let tokens = least * engine::random::power(most / least, at);
                request.prompt = small(hw::whole(tokens));
                request.output = self.output;
                (request.prefix_first, request.prefix_count) = (0, 0);
            }
        }
    }
}
