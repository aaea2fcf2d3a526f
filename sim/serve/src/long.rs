//! Long requests: a share of a trace is made long, so that conversations have a few documents among them. Units: tokens.

use engine::random;

use crate::request::Requests;

/// Requests that are made long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Long {
    /// Share of the requests.
    pub share: f64,
    /// Fewest and most prompt tokens.
    pub tokens: [u32; 2],
    /// Output tokens.
    pub output: u32,
}

impl Long {
    /// Makes a share of requests long, chosen at random, with log-uniform prompts that share nothing.
    pub fn lay(&self, requests: &mut Requests, seed: u64) {
        let mut stream = random::stream(seed, "long requests");
        let [least, most] = self.tokens.map(f64::from);
        for request in &mut requests.list {
            let (chosen, at) = (stream.unit() < self.share, stream.unit());
            if chosen {
                let tokens = hw::whole(least * random::power(most / least, at));
                request.prompt = u32::try_from(tokens).unwrap_or(u32::MAX);
                request.output = self.output;
                (request.prefix_first, request.prefix_count) = (0, 0);
            }
        }
    }
}
