//! How quantities read in reports: three to four significant digits, the unit that keeps the number below a thousand.
//!
//! Invariant: a figure that is not finite, or absent, is shown as `-` and never as `NaN`.

/// What stands where a figure is absent.
pub(crate) const ABSENT: &str = "-";

/// A count as a float (exact below 2^53).
pub(crate) const fn float(count: u64) -> f64 {
    hw::real(count)
}

/// A length or position as a float.
pub(crate) fn float_of(n: usize) -> f64 {
    float(u64::try_from(n).expect("a usize fits 64 bits"))
}

/// Three to four significant digits, scientific outside 0.001..1,000,000.
pub(crate) fn significant(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if !(0.001..1e6).contains(&size) => format!("{value:.2e}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 10.0 => format!("{value:.2}"),
        _ if size >= 0.1 => format!("{value:.3}"),
        _ if size >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// Unit of a duration: (factor from seconds, name).
fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds.abs() {
        s if s >= 1.0 || s == 0.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e3, "ms"),
        s if s >= 1e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    }
}

/// Part of the larger deviation by which the smaller one may be less, where one figure stands for both.
const UNEVEN: f64 = 0.2;

/// An end of so many units is written in its own.
const FAR: f64 = 1e4;

/// A duration, with its deviation where an interval reaches about as far to both sides: `1.842 ± 0.092 s`. Else its ends say more, and one
/// deviation would name an end that nobody expects: `24.29 ms (16.77 to 68.12)`.
pub(crate) fn duration(seconds: f64, interval: Option<[f64; 2]>) -> String {
    if !seconds.is_finite() {
        return ABSENT.to_owned();
    }
    let (factor, unit) = time_unit(seconds);
    let value = significant(seconds * factor);
    match interval {
        Some([low, high]) if low.is_finite() && high.is_finite() => {
            let (below, above) = (seconds - low, high - seconds);
            let deviation = above.max(below).max(0.0);
            let ends = [low, high].map(|end| significant(end * factor));
            if deviation == 0.0 || ends.iter().all(|end| *end == value) {
                return format!("{value} {unit}");
            }
            let is_uneven = deviation - above.min(below) > UNEVEN * deviation;
            if 0.0 <= low && below >= 0.0 && above >= 0.0 && (is_uneven || deviation > seconds) {
                if high * factor >= FAR {
                    let [low, high] = [low, high].map(|end| duration(end, None));
                    return format!("{value} {unit} ({low} to {high})");
                }
                let [low, high] = ends;
                return format!("{value} {unit} ({low} to {high})");
            }
            let digits = value.split('.').nth(1).filter(|rest| !rest.contains('e')).map_or(0, str::len);
            format!("{value} ± {:.digits$} {unit}", (deviation * factor).min(1e6))
        }
        _ => format!("{value} {unit}"),
    }
}

/// A share beside a target, with as many digits as tell which of them is larger: 0.98956 of 0.99 is `98.96 %`, and not `99.0 %`.
pub(crate) fn share(ratio: f64, target: f64) -> String {
    let shown = |digits: usize| format!("{:.digits$}", ratio * 100.0);
    let is_told = |text: &String| {
        text.parse::<f64>()
            .is_ok_and(|shown| (shown + ALIKE >= target * 100.0) == (ratio * 100.0 + ALIKE >= target * 100.0))
    };
    match (1..=SHARE_DIGITS).map(shown).find(is_told) {
        Some(text) if ratio.is_finite() && target.is_finite() && text != "-0.0" => format!("{text} %"),
        _ => percent(ratio),
    }
}

/// A target as it was asked: `99.0 %`, `99.95 %`.
pub(crate) fn target(ratio: f64) -> String {
    let is_whole = |text: &String| text.parse::<f64>().is_ok_and(|shown| (shown - ratio * 100.0).abs() < ALIKE);
    let found = (1..=SHARE_DIGITS).map(|digits| format!("{:.digits$}", ratio * 100.0)).find(is_whole);
    found.map_or_else(|| percent(ratio), |text| format!("{text} %"))
}

/// Digits of a share at most, and per cents by which two are alike.
const SHARE_DIGITS: usize = 6;
const ALIKE: f64 = 1e-9;

/// A ratio as a percentage: `18.2 %`; no zero has a sign.
pub(crate) fn percent(ratio: f64) -> String {
    if !ratio.is_finite() || ratio.abs() >= 1e4 {
        return ABSENT.to_owned();
    }
    let shown = format!("{:.1} %", ratio * 100.0);
    if shown == "-0.0 %" { "0.0 %".to_owned() } else { shown }
}

/// Least ratio that is not shown as zero per cent.
pub(crate) const SHOWN_RATIO_MIN: f64 = 0.0005;

/// A number of things: `1 GPU`, `2 GPUs`.
pub(crate) fn counted(n: u64, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// A number on an axis: large ones with a prefix, so that neighbours are written alike.
pub(crate) fn amount(value: f64) -> String {
    if value.abs() < 1e4 { significant(value) } else { rate(value) }
}

/// A ratio as it is: `1.40`.
pub(crate) fn ratio(value: f64) -> String {
    match value {
        _ if !value.is_finite() => ABSENT.to_owned(),
        _ if value.abs() < 1e4 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// A rate with a decimal prefix: `712.3 k`.
pub(crate) fn rate(value: f64) -> String {
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    let prefixes = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    prefixes.iter().find(|(factor, _)| value.abs() >= *factor).map_or_else(
        || format!("{value:.1}"),
        |(factor, prefix)| {
            let scaled = value / factor;
            if scaled < 1e4 { format!("{scaled:.1}{prefix}") } else { format!("{value:.1e}") }
        },
    )
}

/// Dollars, never cut from their sign: `$ 2.25`; small amounts keep their digits.
pub(crate) fn usd(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => ABSENT.to_owned(),
        size if size > 0.0 && size < 0.1 => format!("$\u{a0}{}", significant(value)),
        _ => format!("$\u{a0}{}", ratio(value)),
    }
}

/// Memory in GiB: `41.3 GiB`.
pub(crate) fn gib(bytes: f64) -> String {
    let value = gib_of(bytes);
    match value {
        _ if !value.is_finite() => ABSENT.to_owned(),
        _ if value.abs() < 1e5 => format!("{value:.1} GiB"),
        _ => format!("{value:.1e} GiB"),
    }
}

/// Bytes as GiB.
pub(crate) fn gib_of(bytes: f64) -> f64 {
    bytes / hw::GIB
}

/// Power of two as people write lengths: `512`, `4K`, `1M`.
pub(crate) fn power_of_two(exponent: u32) -> String {
    match exponent {
        0..=9 => format!("{}", 1_u64 << exponent),
        10..=19 => format!("{}K", 1_u64 << (exponent - 10)),
        20..=29 => format!("{}M", 1_u64 << (exponent - 20)),
        30..=63 => format!("{}G", 1_u64 << (exponent - 30)),
        _ => format!("2^{exponent}"),
    }
}

/// One line of plain text: control characters, which a terminal would obey, and marks that turn the direction of text become `?`.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '\n' || c == '\t' {
                ' '
            } else if c.is_control() || turns(c) {
                '?'
            } else {
                c
            }
        })
        .collect()
}

/// Whether a character changes how others are shown, or shows nothing.
fn turns(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// At most `width` characters, the cut marked.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let text = plain(text);
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// How many times as much.
pub(crate) fn times(value: f64) -> String {
    if value.is_finite() { format!("{}×", ratio(value)) } else { ABSENT.to_owned() }
}

/// Text made safe inside tags and quoted attributes; control characters become `?`.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// Escaped text in which keys and commands, which stand between backticks, are code.
pub(crate) fn prose(text: &str) -> String {
    let escaped = escape(text);
    let parts: Vec<&str> = escaped.split('`').collect();
    if parts.len().is_multiple_of(2) {
        // One of them has no other.
        return escaped;
    }
    let between = |(at, part): (usize, &&str)| {
        if at.is_multiple_of(2) { (*part).to_owned() } else { format!("<code>{part}</code>") }
    };
    parts.iter().enumerate().map(between).collect()
}

/// Words of keys that people write in another way.
const SPELLED: [(&str, &str); 9] = [
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("mfu", "MFU"),
    ("usd", "USD"),
    ("gpu", "GPU"),
    ("gpus", "GPUs"),
    ("kv", "KV"),
    ("slo", "SLO"),
    ("mtok", "Mtok"),
];

/// The key of a metric in words, without the unit that its figures are shown with: `time to answer`, `TTFT p99`.
pub(crate) fn key_words(key: &str) -> String {
    let (name, part) = key.split_once('.').map_or((key, None), |(name, part)| (name, Some(part)));
    let is_rate = name.contains("_per_");
    let unit = ["_s", "_ratio", "_bytes", "_facts"].into_iter().find(|unit| !is_rate && name.ends_with(unit));
    let name = unit.map_or(name, |unit| &name[..name.len() - unit.len()]);
    let spelled = |word: &str| SPELLED.iter().find(|(key, _)| *key == word).map_or(word, |(_, words)| words).to_owned();
    name.split('_').chain(part).map(spelled).collect::<Vec<_>>().join(" ")
}

/// Watts, watt-hours and joules with three digits, where a key ends with one of them.
pub(crate) fn drawn(key: &str, value: f64) -> Option<String> {
    let unit = match key {
        _ if key.ends_with("_w") => "W",
        _ if key.ends_with("_wh") => "Wh",
        _ if key.contains("_j_per_") => "J",
        _ => return None,
    };
    let digits = (value.abs().max(1e-3).log10().floor() as i32 - 2).min(0).unsigned_abs() as usize;
    Some(format!("{value:.digits$} {unit}"))
}

/// A metric in the unit that its key names.
pub(crate) fn figure_text(key: &str, value: f64) -> String {
    if let Some(text) = drawn(key, value) {
        return text;
    }
    match key {
        _ if key.contains("_bytes") => gib(value),
        _ if key.ends_with("per_s") => rate(value),
        _ if key.split('.').next().is_some_and(|key| key.ends_with("_s")) => duration(value, None),
        _ if key.contains("imbalance") => ratio(value),
        _ if key.ends_with("_ratio") => percent(value),
        _ if key.contains("_usd") => usd(value),
        _ => rate(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_between_backticks_are_code_and_everything_stays_escaped() {
        assert_eq!(prose("`a<b` shows & says"), "<code>a&lt;b</code> shows &amp; says");
        assert_eq!(prose("one ` alone"), "one ` alone");
        assert_eq!(prose("`x` and `y`"), "<code>x</code> and <code>y</code>");
    }

    #[test]
    fn what_is_drawn_has_three_digits_and_its_unit() {
        let of = |key: &str, value: f64| figure_text(key, value);
        assert_eq!(of("gpu_power_w", 564.21), "564 W");
        assert_eq!(of("energy_wh", 11.982), "12.0 Wh");
        assert_eq!(of("energy_wh", 1_234_567.0), "1234567 Wh");
        assert_eq!(of("energy_j_per_output_token", 0.0791), "0.0791 J");
    }

    #[test]
    fn a_duration_takes_the_unit_below_a_thousand() {
        assert_eq!(duration(1.8421, None), "1.842 s");
        assert_eq!(duration(0.012_345, None), "12.35 ms");
        assert_eq!(duration(3.2e-6, None), "3.200 µs");
        assert_eq!(duration(0.0, None), "0 s");
        assert_eq!(duration(f64::NAN, None), "-");
    }

    #[test]
    fn a_figure_has_three_digits_at_least_whatever_its_size() {
        // Seconds per token of a sweep, and limits of `[expect]`, have no unit that keeps them above one.
        let words = [0.006_941, 0.008_28, 0.0123, 0.647, 3.0].map(significant);
        assert_eq!(words, ["0.00694", "0.00828", "0.0123", "0.647", "3.000"]);
    }

    #[test]
    fn an_interval_that_reaches_further_to_one_side_shows_its_ends() {
        // 1.842 - 1.750 = 0.092 is more than 1.930 - 1.842 = 0.088.
        assert_eq!(duration(1.842, Some([1.75, 1.93])), "1.842 ± 0.092 s");
        // ± 14.24 would say 44.14, where nothing below 48.03 is expected.
        assert_eq!(duration(58.38, Some([48.03, 72.62])), "58.38 s (48.03 to 72.62)");
        // ± 43.8 would reach below zero.
        assert_eq!(duration(24.29e-3, Some([16.77e-3, 68.12e-3])), "24.29 ms (16.77 to 68.12)");
        assert_eq!(duration(0.2681, Some([0.1609, 61.3])), "268.1 ms (160.9 ms to 61.30 s)");
        // Ends that cannot be told from the figure say nothing.
        assert_eq!(duration(1.457, Some([1.457, 1.457_01])), "1.457 s");
    }

    #[test]
    fn a_share_that_misses_its_target_never_reads_as_the_target() {
        let shares = [0.989_56, 0.99, 0.994, 0.5].map(|ratio| share(ratio, 0.99));
        assert_eq!(shares, ["98.96 %", "99.0 %", "99.4 %", "50.0 %"]);
        assert_eq!([0.999_96, 1.0].map(|ratio| share(ratio, 1.0)), ["99.996 %", "100.0 %"]);
        // A target with more digits is kept, and who reaches it does not read as less.
        assert_eq!((target(0.9902), share(0.9904, 0.9902)), ("99.02 %".to_owned(), "99.04 %".to_owned()));
        assert_eq!([target(0.99), target(1.0), share(f64::NAN, 0.99)], ["99.0 %", "100.0 %", "-"]);
    }

    #[test]
    fn nothing_is_zero_without_a_sign_and_without_a_deviation() {
        assert_eq!([-1e-9, 0.0, -0.01].map(percent), ["0.0 %", "0.0 %", "-1.0 %"]);
        assert_eq!(duration(0.0, Some([0.0, 0.0])), "0 s");
        assert_eq!(duration(1.457, Some([1.457, 1.457])), "1.457 s");
    }

    #[test]
    fn a_key_in_words_has_no_unit_that_figures_have() {
        let keys = ["iteration_time_s", "ttft_s.p99", "tokens_per_s", "cost_usd_per_mtok", "peak_memory_bytes"];
        let words = ["iteration time", "TTFT p99", "tokens per s", "cost USD per Mtok", "peak memory"];
        assert_eq!(keys.map(key_words), words);
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "GPU")), ["0 GPUs", "1 GPU", "2 GPUs"]);
    }

    #[test]
    fn neighbours_on_an_axis_are_written_alike() {
        assert_eq!([200.0, 800_000.0, 1e6].map(amount), ["200.0", "800.0 k", "1.0 M"]);
    }

    #[test]
    fn a_gibibyte_is_two_to_the_thirty() {
        assert_eq!(gib(42.5 * 1024.0 * 1024.0 * 1024.0), "42.5 GiB");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb"), "a?[31mb");
        assert_eq!(plain("a\u{202e}b"), "a?b");
        assert_eq!(shortened("abcdef", 4), "abc…");
    }
}
