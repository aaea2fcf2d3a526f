//! Named length distributions: quantile tables (`distributions.toml`), sampled by log-linear interpolation of the inverse CDF.
//!
//! Units: tokens. `exp` and `ln` come from `libm`, so samples are the same on every platform.

use std::sync::LazyLock;

use engine::random;
use serde::Deserialize;

/// Draws above `max_tokens` before the limit itself is taken.
const REDRAWS_MAX: usize = 1000;

/// A length distribution.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Name in scenario files.
    pub name: String,
    /// Where its figures come from.
    pub source: String,
    /// (cumulative share, tokens), both increasing, first share 0, last share 1.
    pub points: Vec<(f64, f64)>,
}

/// Every distribution, in the order of the file.
static DISTRIBUTIONS: LazyLock<Vec<Distribution>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        distributions: Vec<Distribution>,
    }
    let table: Table = toml::from_str(include_str!("distributions.toml")).expect("the shipped table is whole");
    table.distributions
});

/// A distribution by name.
pub fn named(name: &str) -> Option<&'static Distribution> {
    DISTRIBUTIONS.iter().find(|distribution| distribution.name == name)
}

/// Names of all distributions.
pub fn names() -> Vec<&'static str> {
    DISTRIBUTIONS.iter().map(|distribution| distribution.name.as_str()).collect()
}

impl Distribution {
    /// Length below which this share of sequences lies.
    ///
    /// # Panics
    /// When the share is not within 0 to 1.
    pub fn quantile(&self, share: f64) -> f64 {
        assert!((0.0..=1.0).contains(&share), "a share lies within 0 to 1, found {share}");
        let upper = self.points.iter().position(|&(at, _)| at >= share).unwrap_or(self.points.len() - 1).max(1);
        let ((from, low), (to, high)) = (self.points[upper - 1], self.points[upper]);
        let part = ((share - from) / (to - from)).clamp(0.0, 1.0);
        low * libm::exp(part * libm::log(high / low))
    }

    /// Draws `n` lengths; longer ones than `max_tokens` are drawn again.
    pub fn sample(&self, n: usize, max_tokens: u64, seed: u64) -> Vec<u64> {
        let mut draws = self.draws(seed);
        let mut fitting =
            || draws.by_ref().take(REDRAWS_MAX).find(|&length| length <= max_tokens).unwrap_or(max_tokens);
        (0..n).map(|_| fitting()).collect()
    }

    /// `n` documents, of which each loses what it has beyond `max_tokens`.
    pub fn sample_truncated(&self, n: usize, max_tokens: u64, seed: u64) -> Vec<u64> {
        self.draws(seed).map(|length| length.min(max_tokens)).take(n).collect()
    }

    /// The first `n` sequences of drawn documents; one longer than `max_tokens` is cut into sequences of that length and a rest, so every limit
    /// trains on the same tokens.
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
    let (mut lengths, mut bad, mut has_header) = (Vec::new(), Vec::new(), false);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (index, line) in lines {
        let first = line.split(',').next().unwrap_or("").trim();
        let is_header = lengths.is_empty() && bad.is_empty() && matches!(first, "length" | "tokens" | "lengths");
        has_header |= is_header;
        // Of several columns the first one counts where a header says that it has the lengths.
        let field = if has_header { first } else { line.trim() };
        match field.parse::<u64>() {
            Ok(length) if (1..=LENGTH_MAX).contains(&length) => lengths.push(length),
            _ if is_header => {}
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
        for distribution in DISTRIBUTIONS.iter() {
            assert_eq!(distribution.points[0].0, 0.0, "{}", distribution.name);
            assert_eq!(distribution.points[distribution.points.len() - 1].0, 1.0, "{}", distribution.name);
            for pair in distribution.points.windows(2) {
                assert!(pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1, "{}: {pair:?}", distribution.name);
            }
        }
    }

    #[test]
    fn what_is_truncated_is_as_drawn_up_to_the_limit() {
        let drawn = DISTRIBUTIONS[0].sample(1000, u64::MAX, 5);
        let expected: Vec<u64> = drawn.into_iter().map(|length| length.min(700)).collect();
        assert_eq!(DISTRIBUTIONS[0].sample_truncated(1000, 700, 5), expected);
    }

    #[test]
    fn samples_follow_the_printed_cdf() {
        for distribution in DISTRIBUTIONS.iter() {
            let sample = distribution.sample(100_000, u64::MAX, 3);
            for &(share, tokens) in &distribution.points {
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
        let bad = parse_lengths("100,200\n300,400\n").expect_err("columns without names");
        assert_eq!(bad[0].found, "100,200");
    }
}
