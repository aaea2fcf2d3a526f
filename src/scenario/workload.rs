//! `[workload]`: sequence lengths, from a named distribution, a file, a list, or all equal.

use std::path::Path;

use sim::Workload;
use sim::workload::distribution;
use toml_span::value::ValueInner;

use super::reader::{Section, place_of, unknown};
use super::training::Training;
use crate::diagnostic::Finding;

/// Reads the section.
pub fn workload(mut section: Section<'_>, folder: &Path, training: &Training, seed: u64) -> Option<Workload> {
    let (fixed, list) = (section.count("tokens", Some(0), 0..=distribution::LENGTH_MAX).0, list(&mut section));
    let (named, file) = (section.text("lengths"), section.text("file"));
    let max_tokens = section.count("max_tokens", Some(distribution::LENGTH_MAX), 1..=distribution::LENGTH_MAX).0;
    // Whether a document above `max_tokens` makes room for another draw (a file's is shortened), or becomes several sequences.
    let is_cut = section.word("longer", 0, &["redraw", "cut"]) == 1;
    let n = usize::try_from((training.batch_size * training.steps).min(10_000_000)).expect("bounded");
    let batch_size = usize::try_from(training.batch_size).expect("bounded");
    let lengths = match (named, file) {
        (None, None) if fixed > 0 => Some((vec![fixed; n], format!("{fixed} tokens each"))),
        (None, None) if !list.is_empty() => {
            Some((list.iter().copied().cycle().take(n).collect(), "listed lengths".to_owned()))
        }
        (None, None) => {
            section.missing(
                "lengths",
                "name a distribution (`skrull-sim list workloads`) or give `file`, one length per line, `tokens`, one length for all, or `list`",
            );
            None
        }
        (_, Some((path, at))) => match std::fs::read_to_string(folder.join(&path)) {
            Err(error) => {
                section.find(Finding::error("S024", at, format!("cannot read `{path}`: {error}")));
                None
            }
            Ok(text) => match distribution::parse_lengths(&text) {
                Ok(lengths) if is_cut => {
                    Some((distribution::cut(lengths.iter().copied().cycle(), max_tokens).take(n).collect(), path))
                }
                Ok(lengths) => {
                    Some((lengths.iter().copied().cycle().take(n).map(|l| l.min(max_tokens)).collect(), path))
                }
                Err(bad) => {
                    bad.iter().take(5).for_each(|bad| section.find(bad_length(&path, bad, at.clone())));
                    if bad.len() > 5 {
                        section.find(Finding::error(
                            "S025",
                            at,
                            format!("`{path}` has {} more bad lines", bad.len() - 5),
                        ));
                    }
                    None
                }
            },
        },
        (Some((name, at)), None) => match distribution::named(&name) {
            Some(distribution) if is_cut => Some((distribution.sample_cut(n, max_tokens, seed), name)),
            Some(distribution) => Some((distribution.sample(n, max_tokens, seed), name)),
            None => {
                section.find(unknown("S026", format!("unknown workload `{name}`"), &name, distribution::names(), at));
                None
            }
        },
    };
    section.finish();
    lengths.map(|(lengths, source)| Workload { lengths, batch_size, source })
}

fn bad_length(path: &str, bad: &distribution::BadLength, at: Option<std::ops::Range<usize>>) -> Finding {
    let what = if bad.found.is_empty() {
        format!("`{path}` holds no lengths")
    } else {
        format!("`{path}` line {}: `{}` is not a length", bad.line, bad.found)
    };
    Finding::error("S025", at, what)
        .help(format!("allowed are whole numbers from 1 to {}, one per line", distribution::LENGTH_MAX))
}

/// `list = [4, 1, 2]`.
fn list(section: &mut Section<'_>) -> Vec<u64> {
    let Some((value, at)) = section.take("list") else { return Vec::new() };
    let ValueInner::Array(items) = value else {
        section.find(Finding::error("S011", at, "`workload.list` is not a list of lengths"));
        return Vec::new();
    };
    let mut lengths = Vec::with_capacity(items.len());
    for item in &items {
        match item.as_integer().and_then(|length| u64::try_from(length).ok()) {
            Some(length) if (1..=distribution::LENGTH_MAX).contains(&length) => lengths.push(length),
            _ => {
                let what = "`workload.list` holds something that is not a length";
                let help = format!("allowed are whole numbers from 1 to {}", distribution::LENGTH_MAX);
                section.find(Finding::error("S025", place_of(item), what).help(help));
            }
        }
    }
    lengths
}
