//! Named length distributions: quantile tables, sampled by log-linear interpolation of the inverse CDF.
//!
//! Units: tokens. Each table names its source; what a source does not state (the lowest edge, the shape between its points)
//! is a choice that the table's `source` names. `exp` and `ln` come from `libm`, so samples are the same on every platform.

use engine::random;

/// Draws above `max_tokens` before the limit itself is taken.
const REDRAWS_MAX: usize = 1000;

/// A length distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Name in scenario files.
    pub name: &'static str,
    /// Where its figures come from.
    pub source: &'static str,
    /// (cumulative share, tokens), both increasing, first share 0, last share 1.
    pub points: &'static [(f64, f64)],
}

const SKRULL_CDF: &str = "arXiv:2505.19609, table of length CDFs; lowest edge 64 tokens and the median between the printed points are choices";

static DISTRIBUTIONS: [Distribution; 8] = [
    Distribution {
        name: "codealpaca-like",
        source: "arXiv:2412.16985: samples of CodeAlpaca-20K, about 100 to 3000 tokens; all between the two ends is a choice",
        points: &[(0.0, 100.0), (0.5, 350.0), (0.9, 900.0), (0.99, 2000.0), (1.0, 3000.0)],
    },
    Distribution {
        name: "wikipedia",
        source: "measured by us: AFDWang/Hetu-Galvatron @ caf6766 galvatron/datasets/wikipedia.txt, 1,000,000 lengths, mean 1013.6",
        points: &[
            (0.0, 1.0),
            (0.001, 17.0),
            (0.01, 39.0),
            (0.025, 52.0),
            (0.05, 67.0),
            (0.1, 87.0),
            (0.15, 103.0),
            (0.2, 122.0),
            (0.25, 146.0),
            (0.3, 171.0),
            (0.35, 205.0),
            (0.4, 243.0),
            (0.45, 290.0),
            (0.5, 347.0),
            (0.55, 411.0),
            (0.6, 472.0),
            (0.65, 556.0),
            (0.7, 685.0),
            (0.75, 862.0),
            (0.8, 1092.0),
            (0.85, 1464.0),
            (0.9, 2112.0),
            (0.925, 2705.0),
            (0.95, 3720.0),
            (0.97, 5390.0),
            (0.98, 7087.0),
            (0.99, 10_919.0),
            (0.995, 15_986.0),
            (0.998, 26_511.0),
            (0.999, 37_353.0),
            (0.9995, 51_510.0),
            (0.9998, 75_413.0),
            (0.9999, 101_537.0),
            (0.99995, 129_653.0),
            (0.99999, 230_941.0),
            (1.0, 1_823_777.0),
        ],
    },
    Distribution {
        name: "wikipedia-cn",
        source: SKRULL_CDF,
        points: &[
            (0.0, 64.0),
            (0.8788, 1024.0),
            (0.9934, 4096.0),
            (0.9992, 8192.0),
            (0.9999, 32_768.0),
            (1.0, 79_872.0),
        ],
    },
    Distribution {
        name: "lmsys-chat-1m",
        source: SKRULL_CDF,
        points: &[
            (0.0, 64.0),
            (0.8712, 1024.0),
            (0.9935, 4096.0),
            (0.9987, 8192.0),
            (0.9998, 32_768.0),
            (0.9999, 131_072.0),
            (1.0, 1_682_432.0),
        ],
    },
    Distribution {
        name: "chatqa2-long-sft",
        source: SKRULL_CDF,
        points: &[
            (0.0, 64.0),
            (0.2192, 1024.0),
            (0.3148, 4096.0),
            (0.4043, 8192.0),
            (0.9986, 32_768.0),
            (1.0, 101_376.0),
        ],
    },
    Distribution {
        name: "github-like",
        source: "token shares of arXiv:2502.21231 figure 4 by doublings from 4K: 34.0 % below, 10.7, 10.4, 10.2, 9.5, 8.8 up to 128K, 6.4, 4.5; the 5.3 % above 512K as 3.1 and 2.2; below 4K a choice",
        points: &[
            (0.0, 64.0),
            (0.1688, 700.0),
            (0.422, 1800.0),
            (0.6753, 3000.0),
            (0.8441, 4096.0),
            (0.9255, 8192.0),
            (0.965_07, 16_384.0),
            (0.984_47, 32_768.0),
            (0.993_51, 65_536.0),
            (0.997_693, 131_072.0),
            (0.999_215, 262_144.0),
            (0.999_750, 524_288.0),
            (0.999_935, 1_048_576.0),
            (1.0, 2_097_152.0),
        ],
    },
    Distribution {
        name: "commoncrawl-like",
        source: "arXiv:2412.01523: of 512 sequences the shortest 379 and the next 109, 12, 9, 3 hold about 1/6, 1/3, 1/6, 1/6, 1/6 of the tokens (figure 5b, table 3), 1.5 to 2.3 M tokens in all; shape within these groups a choice, nothing known above 384K",
        points: &[
            (0.0, 32.0),
            (0.25, 350.0),
            (0.5, 1100.0),
            (0.74, 2800.0),
            (0.9, 6500.0),
            (0.953, 15_000.0),
            (0.9775, 30_000.0),
            (0.994, 50_000.0),
            (0.9985, 120_000.0),
            (1.0, 384_000.0),
        ],
    },
    Distribution {
        name: "byted-like",
        source: "token shares of arXiv:2502.21231 figure 4 by doublings from 4K: 14.2 % below, 11.4, 7.6 four times up to 128K, 7.3, 7.6, 7.6, 9.7, 12.1 from 2M; below 4K and above 2M a choice",
        points: &[
            (0.0, 64.0),
            (0.1418, 700.0),
            (0.3546, 1800.0),
            (0.5673, 3000.0),
            (0.7092, 4096.0),
            (0.8837, 8192.0),
            (0.9418, 16_384.0),
            (0.9709, 32_768.0),
            (0.985_46, 65_536.0),
            (0.992_736, 131_072.0),
            (0.996_228, 262_144.0),
            (0.998_045, 524_288.0),
            (0.998_954, 1_048_576.0),
            (0.999_534, 2_097_152.0),
            (1.0, 2_621_440.0),
        ],
    },
];

/// A distribution by name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Distribution> {
    DISTRIBUTIONS.iter().find(|distribution| distribution.name == name)
}

/// Names of all distributions.
#[must_use]
pub fn names() -> Vec<&'static str> {
    DISTRIBUTIONS.iter().map(|distribution| distribution.name).collect()
}

impl Distribution {
    /// Length below which this share of sequences lies.
    ///
    /// # Panics
    /// When the share is not within 0 to 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        assert!((0.0..=1.0).contains(&share), "a share lies within 0 to 1, found {share}");
        let upper = self.points.iter().position(|&(at, _)| at >= share).unwrap_or(self.points.len() - 1).max(1);
        let ((from, low), (to, high)) = (self.points[upper - 1], self.points[upper]);
        let part = ((share - from) / (to - from)).clamp(0.0, 1.0);
        low * libm::exp(part * libm::log(high / low))
    }

    /// Draws `n` lengths; longer ones than `max_tokens` are drawn again.
    #[must_use]
    pub fn sample(&self, n: usize, max_tokens: u64, seed: u64) -> Vec<u64> {
        let mut draws = self.draws(seed);
        let mut fitting =
            || draws.by_ref().take(REDRAWS_MAX).find(|&length| length <= max_tokens).unwrap_or(max_tokens);
        (0..n).map(|_| fitting()).collect()
    }

    /// The first `n` sequences of drawn documents; one longer than `max_tokens` is cut into sequences of that length and a rest, so every limit
    /// trains on the same tokens.
    #[must_use]
    pub fn sample_cut(&self, n: usize, max_tokens: u64, seed: u64) -> Vec<u64> {
        cut(self.draws(seed), max_tokens).take(n).collect()
    }

    /// Endless lengths, at least 1.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "table values are small and positive")]
    fn draws(&self, seed: u64) -> impl Iterator<Item = u64> {
        let mut stream = random::stream(seed, "lengths");
        std::iter::repeat_with(move || (self.quantile(stream.unit()).round() as u64).max(1))
    }
}

/// Documents as sequences: one longer than `max_tokens` becomes sequences of that length and a rest.
pub fn cut(documents: impl Iterator<Item = u64>, max_tokens: u64) -> impl Iterator<Item = u64> {
    documents.flat_map(move |length| {
        let whole = usize::try_from(length / max_tokens).expect("a document has few parts");
        let rest = length % max_tokens;
        std::iter::repeat_n(max_tokens, whole).chain((rest > 0).then_some(rest))
    })
}

/// A line of a length file that is not a length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLength {
    /// Line, from 1.
    pub line: usize,
    /// What stands there.
    pub found: String,
}

/// Longest sequence that a length file may name; ten times what any published training run used.
pub const LENGTH_MAX: u64 = 100_000_000;

/// Reads one integer per line, or the first column of a CSV whose header is not a number. Blank lines are skipped.
///
/// # Errors
/// Every line that is not a whole number from 1 to `LENGTH_MAX`; for a file without lengths or of JSON, one finding on line 1.
pub fn parse_lengths(text: &str) -> Result<Vec<u64>, Vec<BadLength>> {
    if text.trim_start().starts_with(['[', '{']) {
        return Err(vec![BadLength { line: 1, found: text.trim_start().chars().take(40).collect() }]);
    }
    let mut lengths = Vec::new();
    let mut bad = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (index, line) in lines {
        let field = line.split(',').next().unwrap_or("").trim();
        let header = lengths.is_empty() && bad.is_empty() && matches!(field, "length" | "tokens" | "lengths");
        match field.parse::<u64>() {
            Ok(length) if (1..=LENGTH_MAX).contains(&length) => lengths.push(length),
            _ if header => {}
            _ => bad.push(BadLength { line: index + 1, found: field.chars().take(40).collect() }),
        }
    }
    if lengths.is_empty() && bad.is_empty() {
        bad.push(BadLength { line: 1, found: String::new() });
    }
    if bad.is_empty() { Ok(lengths) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_rise_from_zero_to_one() {
        for distribution in &DISTRIBUTIONS {
            assert_eq!(distribution.points[0].0, 0.0, "{}", distribution.name);
            assert_eq!(distribution.points[distribution.points.len() - 1].0, 1.0, "{}", distribution.name);
            for pair in distribution.points.windows(2) {
                assert!(pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1, "{}: {pair:?}", distribution.name);
            }
        }
    }

    #[test]
    fn samples_follow_the_printed_cdf() {
        for distribution in &DISTRIBUTIONS {
            let sample = distribution.sample(100_000, u64::MAX, 3);
            for &(share, tokens) in distribution.points {
                let below = sample.iter().filter(|&&length| hw::real(length) <= tokens).count();
                let found = hw::real(below as u64) / 100_000.0;
                assert!((found - share).abs() < 0.01, "{}: {found} below {tokens}, table {share}", distribution.name);
            }
        }
    }

    /// Shares of tokens by length, counted on draws, against the labels of arXiv:2502.21231 figure 4 and the facts of its section 3.1.
    #[test]
    fn published_token_shares_come_out_of_the_tables() {
        let share = |name: &str, from: u64, to: u64| {
            let table = named(name).expect("listed");
            // Strata instead of draws: a single sequence of 2M would move a share by a tenth of a point.
            let lengths: Vec<f64> = (0..400_000).map(|at| table.quantile((f64::from(at) + 0.5) / 400_000.0)).collect();
            let (from, to) = (hw::real(from), hw::real(to));
            let within: f64 = lengths.iter().filter(|&&length| from <= length && length < to).sum();
            100.0 * within / lengths.iter().sum::<f64>()
        };
        let k = 1024;
        let rows = [
            ("github-like", 128 * k, u64::MAX, 16.2),
            ("github-like", 256 * k, u64::MAX, 9.8),
            ("github-like", 0, 4 * k, 34.0),
            ("byted-like", 128 * k, u64::MAX, 44.3),
            ("byted-like", 256 * k, u64::MAX, 37.0),
            ("byted-like", 2048 * k, u64::MAX, 12.1),
        ];
        for (name, from, to, published) in rows {
            let found = share(name, from, to);
            assert!((found - published).abs() < 0.5, "{name} {from}..{to}: {found} %, published {published}");
        }
        // Sixths of the tokens of arXiv:2412.01523, figure 5b: 379, 109, 12 and 12 of 512 sequences.
        let edges = [0, 2800, 15_000, 30_000, u64::MAX];
        for (pair, sixths) in edges.windows(2).zip([1.0, 2.0, 1.0, 2.0]) {
            let found = share("commoncrawl-like", pair[0], pair[1]);
            assert!((found - 100.0 * sixths / 6.0).abs() < 3.0, "{pair:?}: {found} %");
        }
    }

    #[test]
    fn cut_documents_keep_their_tokens() {
        let table = named("github-like").expect("listed");
        let whole = table.sample_cut(20_000, u64::MAX, 4);
        let parts = table.sample_cut(25_000, 8192, 4);
        assert!(parts.iter().all(|&length| (1..=8192).contains(&length)));
        // The same documents in the same order: sums of whole documents agree where both have them.
        let mut rest = parts.iter().copied();
        for &document in &whole[..10_000] {
            let n_parts = usize::try_from(document.div_ceil(8192)).expect("few");
            assert_eq!(rest.by_ref().take(n_parts).sum::<u64>(), document);
        }
        assert_eq!(table.sample_cut(500, u64::MAX, 9), table.sample(500, u64::MAX, 9));
    }

    #[test]
    fn wikipedia_shares_are_those_of_the_measured_file() {
        // Statistics of the file, counted independently: 41.65 % up to 256, 95.61 % up to 4096.
        let sample = named("wikipedia").expect("listed").sample(200_000, u64::MAX, 1);
        for (tokens, expected) in [(256, 0.4165), (4096, 0.9561), (32_768, 0.9987)] {
            let below = sample.iter().filter(|&&length| length <= tokens).count();
            assert!((hw::real(below as u64) / 200_000.0 - expected).abs() < 0.01);
        }
    }

    #[test]
    fn the_quantile_table_is_that_of_the_file_where_the_file_is_there() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/lengths/wikipedia.txt");
        let Ok(text) = std::fs::read_to_string(path) else {
            println!("skipped: shared data absent ({path})");
            return;
        };
        let mut lengths = parse_lengths(&text).expect("a file of lengths");
        lengths.sort_unstable();
        for &(share, tokens) in &named("wikipedia").expect("listed").points[1..] {
            let index = ((share * 1e6) as usize).saturating_sub(1);
            let ratio = hw::real(lengths[index]) / tokens;
            assert!(
                (0.99..1.01).contains(&ratio),
                "share {share}: {} in the file, {tokens} in the table",
                lengths[index]
            );
        }
    }

    #[test]
    fn every_bad_line_is_found() {
        let bad = parse_lengths("12\nabc\n-4\n\n1000000000\nnan\n").expect_err("bad lines");
        assert_eq!(bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [2, 3, 5, 6]);
        assert_eq!(parse_lengths("").expect_err("empty").len(), 1);
        assert_eq!(parse_lengths("[\n{},\n{}\n]").expect_err("no list of lengths").len(), 1);
        assert_eq!(parse_lengths("length,other\n5,x\n7,y\n").expect("a CSV"), [5, 7]);
    }
}
