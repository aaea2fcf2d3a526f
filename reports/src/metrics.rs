//! What every metric means: one table (`metrics.toml`), by the kind of scenario that prints it.
//!
//! A unit is the end of a name, as the contract has it. Parts behind a dot (`ttft_s.p99`) are of the metric before it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// Meanings by kind and metric.
const MEANINGS: &str = include_str!("metrics.toml");
/// What a metric counts, by the end of its name; the longer ends first.
const UNITS: [(&str, &str); 20] = [
    ("_per_s_per_gpu", "per second and GPU"),
    ("_per_s_per_user", "per second and client"),
    ("_per_s", "per second"),
    ("_per_usd", "per $"),
    ("_usd_per_hour", "$ per hour"),
    ("_usd_per_mtok", "$ per million tokens"),
    ("_usd_per_mreq_met", "$ per million requests"),
    ("_usd_per_step", "$"),
    ("_usd_per_epoch", "$"),
    ("_usd", "$"),
    ("_j_per_token", "J"),
    ("_j_per_output_token", "J"),
    ("_wh", "Wh"),
    ("_w", "W"),
    ("_hours", "hours"),
    ("_ratio", "ratio"),
    ("_bytes", "bytes"),
    ("_bytes_min", "bytes"),
    ("_s", "s"),
    ("_tokens", "tokens"),
];

/// Section of the table with figures that planners know of their plans.
pub const PLANNER: &str = "planner";

/// The end of a name in the table that stands for a family.
const FAMILY: &str = "_*";

/// Metrics of every kind with their meanings, read once; a test holds that they can be.
pub static TABLE: LazyLock<BTreeMap<String, BTreeMap<String, String>>> =
    LazyLock::new(|| toml::from_str(MEANINGS).expect("metrics.toml is a table of tables of texts"));

/// What the end of a name counts; a number where it says nothing.
fn unit(name: &str) -> &'static str {
    UNITS.iter().find(|(end, _)| name.ends_with(end)).map_or("number", |(_, unit)| unit)
}

/// Whether a name says what it counts, as those of figures do: by its end, or as a number of things.
pub fn has_unit(name: &str) -> bool {
    name.starts_with("n_") || UNITS.iter().any(|(end, _)| name.ends_with(end))
}

/// Whether a row of the table is of a metric, by its key in results.
fn is_of(row: &str, key: &str) -> bool {
    let name = key.split('.').next().unwrap_or(key);
    row.strip_suffix('*').map_or(row == name, |beginning| name.starts_with(beginning))
}

/// Whether the table has a metric of a kind, by its key in results: `ttft_s.p99`, `group_busy_ratio.NAME`.
pub fn is_known(kind: &str, key: &str) -> bool {
    TABLE.get(kind).is_some_and(|metrics| metrics.keys().any(|row| is_of(row, key)))
}

/// What a metric means in every kind that prints it; nothing where none does.
pub fn explained(key: &str) -> String {
    let mut out = String::new();
    for (kind, metrics) in &*TABLE {
        for (name, meaning) in metrics.iter().filter(|(name, _)| is_of(name, key)) {
            let unit = if name.ends_with(FAMILY) { "" } else { unit(name) };
            let gap = if unit.is_empty() { "" } else { ", " };
            let _ = writeln!(out, "{name}: metric of {kind}{gap}{unit}\n  {meaning}");
        }
    }
    out
}

/// The page.
pub fn page() -> String {
    let mut out = "# Every metric of a result\n\nMade by `skrull-sim explain --metrics`. Do not edit it: meanings stand in `reports/src/metrics.toml`.\n\n\
                   Metrics stand under `results[].metrics` in `result.json` ([output.md](output.md)), by the kind of the scenario. Gates, `[expect]` and\n\
                   sweeps take the same names. A metric with parts is written with a dot: `ttft_s.p99`. One that has no meaning in a run is absent.\n\
                   Figures of planners stand under `results[].planner.figures`; notes beside them say the rest.\n"
        .to_owned();
    for (kind, metrics) in &*TABLE {
        let _ = write!(out, "\n## `{kind}`\n\n| metric | unit | meaning |\n|---|---|---|\n");
        for (name, meaning) in metrics {
            let unit = if name.ends_with(FAMILY) { "as the metric" } else { unit(name) };
            let _ = writeln!(out, "| `{name}` | {unit} | {} |", meaning.replace('|', "\\|"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_families_have_the_meaning_of_their_metric() {
        for (kind, key, known) in [
            ("serving", "ttft_s.p99", true),
            ("serving", "group_busy_ratio.old", true),
            ("serving", "group", false),
            ("training", "ttft_s.p99", false),
            ("training", "mfu_ratio", true),
            ("training", "mfu", false),
        ] {
            assert_eq!(is_known(kind, key), known, "{kind}: {key}");
        }
        assert!(explained("ttft_s.p99").contains("ttft_s: metric of serving, s\n"), "{}", explained("ttft_s.p99"));
        assert!(explained("made_up").is_empty());
    }

    #[test]
    fn units_are_the_ends_of_names() {
        let cases = [
            ("tokens_per_s_per_gpu", "per second and GPU"),
            ("cost_usd_per_mtok", "$ per million tokens"),
            ("transactions_per_epoch", "number"),
            ("gather_per_epoch_s", "s"),
            ("gpu_power_w", "W"),
            ("peak_memory_bytes_min", "bytes"),
        ];
        cases.iter().for_each(|(name, found)| assert_eq!(unit(name), *found, "{name}"));
    }

    #[test]
    fn meanings_are_sentences() {
        for (kind, metrics) in &*TABLE {
            for (name, meaning) in metrics {
                assert!(meaning.ends_with('.') && !meaning.contains('\n'), "{kind}: {name}: {meaning}");
            }
        }
    }
}
