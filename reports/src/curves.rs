//! What reports draw of requests that were served: how latencies are spread, and how the fleet stood over time.

/// Latencies and load of one choice. Units: seconds, requests, tokens per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Name of the choice.
    pub policy: String,
    /// Quantiles at equal distances from 0 to 1 of the time to the first token, the time per further token, and the whole time.
    pub latencies_s: [Vec<f64>; 3],
    /// Limits of the same.
    pub limits_s: [Option<f64>; 3],
    /// Moment, requests that wait, requests that are served, output tokens per second, tokens whose keys and values are held, replicas that are
    /// paid, and dollars so far, which are 0 without prices.
    pub samples: Vec<[f64; 7]>,
}
