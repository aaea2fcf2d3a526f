//! What the process at the door of an engine works: the API server of vLLM, the `TokenizerManager` of `SGLang`, the proxy of TensorRT-LLM.
//!
//! It is one thread of Python. It reads a request, checks it, renders and tokenizes its text, and hands it to the engine. Tokens of answers pass it on their way
//! back (`frontend.rs`). Units: microseconds of that thread.

use hw::Seconds;

/// What one API server works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApiServer {
    /// On a request, beside the tokenizer; zero where nobody measured it.
    pub us_per_request: f64,
    /// On a token that it streams to a client, from and to. Results say where it matters; `engine.stream_us_per_token` counts it.
    pub us_per_token: [f64; 2],
    /// Whether requests that wait go on together. Each handler of vLLM waits for the tokenizer once, so asyncio begins with all that are there before it ends the
    /// first. `SGLang` hands a request on in one go.
    pub gathers: bool,
    /// Where this stands.
    pub source: &'static str,
}

impl ApiServer {
    /// Nothing is known of it.
    pub const NONE: Self = Self { us_per_request: 0.0, us_per_token: [0.0; 2], gathers: false, source: "" };

    /// Time on a request.
    pub fn per_request(&self) -> Seconds {
        Seconds::new(self.us_per_request / 1e6)
    }

    /// Share of the time that one works, where so many requests come and so many tokens go in a second: from and to.
    pub fn busy(&self, requests_per_s: f64, tokens_per_s: f64) -> [f64; 2] {
        self.us_per_token.map(|token| (requests_per_s * self.us_per_request + tokens_per_s * token) / 1e6)
    }
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_requests_and_tokens_is_busy_by_both() {
        let server = ApiServer { us_per_request: 2000.0, us_per_token: [40.0, 60.0], ..ApiServer::NONE };
        let [from, to] = server.busy(100.0, 10_000.0);
        assert!((from - 0.6).abs() < 1e-9 && (to - 0.8).abs() < 1e-9, "{from} to {to}");
    }
}
