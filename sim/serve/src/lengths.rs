//! Embedded prompt and output lengths of public traces, as joint quantiles that keep their correlation; and even draws between two ends.
//!
//! Units: tokens. A table (`tables/*.toml`, with source and licence) has bins of equal count by prompt length, and in each the
//! quantiles of prompts and of outputs; a draw picks a bin and interpolates the logarithms of both. Within a bin the two are taken as
//! independent, which is the one approximation.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::request::{Request, Requests, TOKENS_MAX};
use engine::{random, stop};

/// Joint lengths of one trace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Repository, commit and path of the trace.
    pub source: String,
    /// Licence of the trace.
    pub licence: String,
    /// What the trace is, in words.
    pub about: String,
    /// Requests of the trace.
    pub n_requests: u64,
    /// Mean prompt tokens of the trace.
    pub mean_prompt: f64,
    /// Mean output tokens of the trace.
    pub mean_output: f64,
    prompt_shares: Vec<f64>,
    output_shares: Vec<f64>,
    bins: Vec<Bin>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bin {
    prompt: Vec<f64>,
    output: Vec<f64>,
}

static TABLES: LazyLock<Vec<(&'static str, Lengths)>> = LazyLock::new(|| {
    let texts = [
        ("azure-conv", include_str!("tables/azure-conv.toml")),
        ("azure-code", include_str!("tables/azure-code.toml")),
        ("mooncake-conversation", include_str!("tables/mooncake-conversation.toml")),
        ("sharegpt", include_str!("tables/sharegpt.toml")),
    ];
    let parse = |text| toml::from_str(text).expect("the embedded tables are held by a test");
    texts.into_iter().map(|(name, text)| (name, parse(text))).collect()
});

/// Names of the embedded tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

/// A table by name.
pub fn named(name: &str) -> Option<&'static Lengths> {
    TABLES.iter().find(|(known, _)| *known == name).map(|(_, table)| table)
}

impl Lengths {
    /// Draws requests that all arrive at the start; `arrivals::lay` spreads them.
    pub fn sample(&self, n: usize, seed: u64) -> Requests {
        let mut stream = random::stream(seed, "lengths of requests");
        let tokens = |value: f64| {
            u32::try_from(hw::whole(value.max(1.0))).expect("tables stay below 2^32 tokens").min(TOKENS_MAX)
        };
        let list = (0..n)
            .map(|_| {
                stop::pause();
                let bin = usize::try_from(stream.below(self.bins.len() as u64)).expect("an index below the length");
                let bin = &self.bins[bin];
                let prompt = at(&self.prompt_shares, &bin.prompt, stream.unit());
                let output = at(&self.output_shares, &bin.output, stream.unit());
                Request::new(hw::Time::ZERO, tokens(prompt), tokens(output))
            })
            .collect();
        Requests::of(list)
    }
}

/// Draws requests whose prompts and outputs lie evenly between two ends each, both included; all arrive at the start. Either has a stream of its own, so
/// that other ends of the one leave the other as it is.
pub fn between(n: usize, prompt: [u32; 2], output: [u32; 2], seed: u64) -> Requests {
    let mut streams = ["prompts between two ends", "outputs between two ends"].map(|name| random::stream(seed, name));
    let mut drawn = |of: usize, [from, to]: [u32; 2]| {
        let above = streams[of].below(u64::from(to - from) + 1);
        from + u32::try_from(above).expect("ends stay below 2^32 tokens")
    };
    let list = (0..n)
        .map(|_| {
            stop::pause();
            Request::new(hw::Time::ZERO, drawn(0, prompt), drawn(1, output))
        })
        .collect();
    Requests::of(list)
}

/// Quantile by log-linear interpolation.
fn at(shares: &[f64], values: &[f64], share: f64) -> f64 {
    let above = shares.iter().position(|known| *known > share).unwrap_or(shares.len() - 1).max(1);
    let (low, high) = (shares[above - 1], shares[above]);
    let (from, to) = (libm::log(values[above - 1]), libm::log(values[above]));
    libm::exp(from + (to - from) * (share - low) / (high - low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_whole_and_their_draws_have_the_means_of_the_traces() {
        assert_eq!(names().count(), 4);
        for name in names() {
            let table = named(name).expect("listed");
            assert!(table.source.contains(" @ ") && !table.licence.is_empty(), "{name} has a source and a licence");
            for bin in &table.bins {
                assert_eq!(
                    (bin.prompt.len(), bin.output.len()),
                    (table.prompt_shares.len(), table.output_shares.len())
                );
                assert!(bin.prompt.is_sorted() && bin.output.is_sorted(), "{name}: quantiles rise");
            }
            let (requests, n) = (table.sample(200_000, 1), 200_000.0);
            let (prompt, output) = requests.tokens();
            let (prompt, output) = (hw::real(prompt) / n, hw::real(output) / n);
            assert!((prompt / table.mean_prompt - 1.0).abs() < 0.02, "{name}: {prompt} of {}", table.mean_prompt);
            assert!((output / table.mean_output - 1.0).abs() < 0.03, "{name}: {output} of {}", table.mean_output);
        }
    }

    #[test]
    fn lengths_between_two_ends_are_even_and_reach_both() {
        let (n, ends) = (40_000, [[1, 1000], [5, 8]]);
        let drawn = between(n, ends[0], ends[1], 3);
        let columns = [|request: &Request| request.prompt, |request: &Request| request.output];
        for ([from, to], column) in ends.into_iter().zip(columns) {
            let all: Vec<u32> = drawn.list.iter().map(column).collect();
            assert_eq!((all.iter().min(), all.iter().max()), (Some(&from), Some(&to)));
            // Even draws have the mean of their ends, and a quarter of them lies in the lowest quarter.
            let total: u64 = all.iter().map(|tokens| u64::from(*tokens)).sum();
            let (mean, wanted) = (hw::real(total) / hw::real(n as u64), f64::from(from + to) / 2.0);
            assert!((mean / wanted - 1.0).abs() < 0.01, "{mean} of {wanted}");
            let n_low = all.iter().filter(|tokens| **tokens < from + (to - from + 1) / 4).count();
            assert!((n_low * 4).abs_diff(n) < n / 25, "{n_low} in the lowest quarter");
        }
        // Another seed draws otherwise, and other outputs leave prompts alone.
        assert_ne!(between(n, ends[0], ends[1], 4), drawn);
        let other = between(n, ends[0], [9, 9], 3);
        assert!(other.list.iter().zip(&drawn.list).all(|(one, two)| one.prompt == two.prompt && one.output == 9));
    }

    /// Correlation of the ranks of two columns (Spearman), ties by position.
    fn rank_correlation(pairs: &[(u32, u32)]) -> f64 {
        let ranks = |of: fn(&(u32, u32)) -> u32| {
            let mut order: Vec<usize> = (0..pairs.len()).collect();
            order.sort_by_key(|&index| of(&pairs[index]));
            let mut ranks = vec![0.0; pairs.len()];
            order.iter().enumerate().for_each(|(rank, &index)| ranks[index] = hw::real(rank as u64));
            ranks
        };
        let (a, b, n) = (ranks(|pair| pair.0), ranks(|pair| pair.1), hw::real(pairs.len() as u64));
        let mean = (n - 1.0) / 2.0;
        let covariance: f64 = a.iter().zip(&b).map(|(a, b)| (a - mean) * (b - mean)).sum();
        covariance / (n * (n * n - 1.0) / 12.0 / n) / n
    }

    #[test]
    fn draws_keep_the_correlation_of_the_trace_where_the_trace_is_there() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/azure/AzureLLMInferenceTrace_conv.csv");
        let Ok(text) = std::fs::read_to_string(path) else {
            println!("skipped: shared data absent ({path})");
            return;
        };
        let trace: Vec<(u32, u32)> = text
            .lines()
            .skip(1)
            .map(|line| {
                let mut fields = line.split(',').skip(1).map(|field| field.trim().parse().expect("a count"));
                (fields.next().expect("a prompt"), fields.next().expect("an output"))
            })
            .collect();
        let drawn: Vec<(u32, u32)> = named("azure-conv")
            .expect("listed")
            .sample(trace.len(), 5)
            .list
            .iter()
            .map(|request| (request.prompt, request.output))
            .collect();
        let (of_trace, of_draws) = (rank_correlation(&trace), rank_correlation(&drawn));
        assert!((of_trace - of_draws).abs() < 0.05, "{of_trace} in the trace, {of_draws} in draws");
    }
}
