//! What a bound is asked for: how prompt and generated tokens are mixed, and what limits the requests that are in flight.
//!
//! Units: tokens, requests.

use serve::pool::Passed;
use serve::request::Request;

/// Classes of generated tokens by what their requests hold.
const CLASSES: u64 = 6;
/// Parts of an output, each counted with what is held at its beginning.
const PARTS: u64 = 4;

/// Tokens that pass, and who holds what meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Part of the tokens that are prompts'; the rest is generated.
    pub prompt_share: f64,
    /// Tokens of the longest prompt.
    pub prompt_max: u32,
    /// What limits the requests in flight.
    pub held: Held,
    /// Seconds that a generated token may take on average; infinite without a limit. Only bounds over any placement heed it.
    pub token_s_max: f64,
}

/// What limits the requests in flight.
#[derive(Clone, Debug, PartialEq)]
pub enum Held {
    /// So many at a time, on average.
    InFlight(f64),
    /// Their keys and values lie in the caches, and the caches are never overfilled.
    Cached(Vec<Holding>),
}

/// A part of the generated tokens, by what their requests hold at least while these are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holding {
    /// Tokens with keys and values in every layer.
    pub tokens: f64,
    /// Part of the generated tokens.
    pub share: f64,
}

impl Traffic {
    /// What a run passed in a span of `seconds`; `None` where nothing passed.
    pub fn of_run(passed: &Passed, seconds: f64, prompt_max: u32) -> Option<Self> {
        let all = passed.tokens();
        let in_flight = hw::Span::from_ns(passed.in_flight_ns).to_seconds().get() / seconds;
        (all > 0).then(|| Self {
            prompt_share: hw::real(passed.prompt_tokens) / hw::real(all),
            prompt_max,
            held: Held::InFlight(in_flight),
            token_s_max: f64::INFINITY,
        })
    }

    /// What requests bring in the long run when all of them are served; `None` without requests.
    pub fn of_requests(requests: &[Request]) -> Option<Self> {
        // The first token of an output is the prompt's.
        let generated = |request: &Request| u64::from(request.output.saturating_sub(1));
        let prompts: u64 = requests.iter().map(|request| u64::from(request.prompt)).sum();
        let decodes: u64 = requests.iter().map(generated).sum();
        (prompts + decodes > 0).then(|| Self {
            prompt_share: hw::real(prompts) / hw::real(prompts + decodes),
            prompt_max: requests.iter().map(|request| request.prompt).max().unwrap_or(0),
            held: Held::Cached(holdings(requests, decodes)),
            token_s_max: f64::INFINITY,
        })
    }
}

/// Generated tokens in classes of about equal size, from those whose requests hold least.
fn holdings(requests: &[Request], decodes: u64) -> Vec<Holding> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for request in requests {
        let n = u64::from(request.output.saturating_sub(1));
        let cut = |part: u64| n * part / PARTS;
        parts.extend((0..PARTS).map(|part| (u64::from(request.prompt) + cut(part), cut(part + 1) - cut(part))));
    }
    parts.retain(|(_, n)| *n > 0);
    parts.sort_unstable();
    let mut all: Vec<Holding> = Vec::new();
    let mut before = 0;
    for (tokens, n) in parts {
        let share = hw::real(n) / hw::real(decodes);
        let n_begun = all.len() as u64;
        match all.last_mut() {
            Some(last) if before * CLASSES / decodes < n_begun => last.share += share,
            _ => all.push(Holding { tokens: hw::real(tokens), share }),
        }
        before += n;
    }
    all
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;

    #[test]
    fn requests_bring_their_prompts_and_hold_what_they_have_cached() {
        // 100 + 300 prompt tokens, 4 + 8 generated ones after the first of each. The first request holds 100 to 103 tokens, a token for a
        // part each; the second 300, 302, 304 and 306 at the beginning of its parts of two tokens.
        let request = |prompt, output| Request::new(Time::ZERO, prompt, output);
        let traffic = Traffic::of_requests(&[request(300, 9), request(100, 5)]).expect("tokens");
        assert!((traffic.prompt_share - 400.0 / 412.0).abs() < 1e-12);
        assert_eq!(traffic.prompt_max, 300);
        let Held::Cached(holdings) = traffic.held else { panic!("caches") };
        let held: Vec<f64> = holdings.iter().map(|holding| holding.tokens).collect();
        assert_eq!(held, [100.0, 102.0, 300.0, 302.0, 304.0, 306.0]);
        assert!((holdings.iter().map(|holding| holding.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(Traffic::of_requests(&[]), None);
    }
}
