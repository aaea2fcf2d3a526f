//! `[workload]`: sequence lengths, from a named distribution, a file, a list, or all equal.

use std::path::Path;

use toml_span::value::ValueInner;
use train::Workload;
use train::workload::distribution;

use super::lengths;
use super::training::Training;
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, place_of, unknown};
use input::text_file;

/// Sequences that do not come from the section.
#[derive(Clone, Debug)]
pub struct Given {
    /// Tokens of each.
    pub lengths: Vec<u64>,
    /// Where they come from, in words.
    pub source: String,
}

impl Given {
    /// All of them, in as many steps as their batches are.
    pub fn workload(self, reader: &mut Reader<'_>, training: &mut Training) -> Option<Workload> {
        let (n, batch) = (self.lengths.len() as u64, training.batch_size);
        if n == 0 || batch == 0 {
            // Somebody has said so before.
            return None;
        }
        if !n.is_multiple_of(batch) {
            let what = format!("`training.batch_size` = {batch} does not divide {n} sequences ({})", self.source);
            let help =
                "it is the sequences of an optimizer step; as many steps follow one another as there are batches";
            reader.refuse(Code::OutOfRange, None, what, help);
            return None;
        }
        training.steps = n / batch;
        let batch_size = usize::try_from(batch).expect("bounded");
        Some(Workload { lengths: self.lengths, batch_size, source: self.source })
    }
}

/// Sequences that come from elsewhere, or those of the section. Steps may differ in which experts their tokens find.
pub fn asked(
    reader: &mut Reader<'_>,
    folder: &Path,
    training: &mut Training,
    (given, seed): (Option<Given>, u64),
    draws_experts: bool,
) -> Option<Workload> {
    match given {
        Some(sequences) => sequences.workload(reader, training),
        None => {
            let found = workload(reader.section("workload"), folder, (training.batch_size, training.steps), seed);
            // Devices may be slow in some of the steps alone.
            let may_differ = draws_experts || reader.has("stragglers");
            if let Some(found) = found.as_ref().filter(|_| !may_differ) {
                equal_steps(reader, training, found);
            }
            found
        }
    }
}

/// Warns of several steps that repeat the same sequences: one stands for all.
fn equal_steps(reader: &mut Reader<'_>, training: &Training, workload: &Workload) {
    let mut steps = workload.lengths.chunks(workload.batch_size.max(1));
    let first = steps.next();
    if training.steps > 1 && steps.all(|step| Some(step) == first) {
        let what = format!("`training.steps` = {} changes nothing: every step has the same sequences", training.steps);
        let help = "one step stands for all; give more sequences than a batch, or a distribution: `workload.lengths`";
        reader.warn(Code::NoEffect, training.steps_at.clone(), what, help);
    }
}

/// Reads the section: sequences of so many steps of such a batch.
pub fn workload(mut section: Section<'_>, folder: &Path, (batch, steps): (u64, u64), seed: u64) -> Option<Workload> {
    let given = section.alternatives(&["lengths", "file", "tokens", "list"]);
    if given != ["file"] {
        section.idle(&["field"], "`file`");
    }
    let field = section.text("field").map(|(field, _)| field);
    // What is drawn may always be longer than some limit.
    let mut cuts_nothing = !section.has("max_tokens");
    let max_tokens = section.count("max_tokens", Some(distribution::LENGTH_MAX), 1..=distribution::LENGTH_MAX).0;
    // Whether a document above `max_tokens` makes room for another draw (a given one is left out), becomes several sequences, or loses its end.
    let longer_at = section.place("longer");
    let longer = section.word("longer", 0, &["redraw", "cut", "truncate"]);
    let (is_cut, is_truncated) = (longer == 1, longer == 2);
    let n = usize::try_from(batch * steps).expect("bounded");
    let batch_size = usize::try_from(batch).expect("bounded");
    let mut repeated = |lengths: &[u64]| -> Vec<u64> {
        cuts_nothing |= lengths.iter().all(|length| *length <= max_tokens);
        let documents = lengths.iter().copied().cycle();
        if is_cut {
            return distribution::cut(documents, max_tokens).take(n).collect();
        }
        if is_truncated {
            return documents.map(|length| length.min(max_tokens)).take(n).collect();
        }
        let short: Vec<u64> = lengths.iter().copied().filter(|length| *length <= max_tokens).collect();
        short.into_iter().cycle().take(n).collect()
    };
    let lengths: Option<(Vec<u64>, String)> = match given[..] {
        ["lengths"] => named(&mut section).map(|(found, name)| {
            let lengths = match longer {
                1 => found.sample_cut(n, max_tokens, seed),
                2 => found.sample_truncated(n, max_tokens, seed),
                _ => found.sample(n, max_tokens, seed),
            };
            (lengths, name)
        }),
        ["file"] => file(&mut section, folder, field.as_deref()).map(|(lengths, path)| (repeated(&lengths), path)),
        ["tokens"] => {
            let tokens = equal(&mut section, max_tokens, is_cut);
            let each = if is_cut { tokens } else { tokens.min(max_tokens) };
            Some((repeated(&[each]), format!("{tokens} tokens each")))
        }
        ["list"] => Some(list(&mut section))
            .filter(|list| !list.is_empty())
            .map(|list| (repeated(&list), "listed lengths".to_owned())),
        [] => {
            section.missing(
                "lengths",
                "name a distribution (`skrull-sim list workloads`) or give `file`, one length per line, `tokens`, one length for all, or `list`",
            );
            None
        }
        _ => {
            let keys: Vec<String> = given.iter().map(|key| format!("`{key}`")).collect();
            let what = format!("{} of a workload exclude each other", keys.join(" and "));
            section.refuse(Code::ExclusiveKeys, section.at(), what, "keep the one that is meant");
            section.rest();
            None
        }
    };
    longer_at.filter(|_| is_cut && cuts_nothing).into_iter().for_each(|at| cut_nothing(&mut section, at));
    let leaves_out_all = n > 0 && lengths.as_ref().is_some_and(|(lengths, _)| lengths.is_empty());
    if leaves_out_all {
        let what = format!("every sequence of the workload is longer than `max_tokens = {max_tokens}`");
        let at = section.place("max_tokens").unwrap_or_else(|| section.at());
        section.refuse(Code::WrongLengths, at, what, "raise it, or cut them: `longer = \"cut\"`");
    }
    section.finish();
    lengths.filter(|_| !leaves_out_all).map(|(lengths, source)| Workload { lengths, batch_size, source })
}

/// Names a cut of sequences of which none is longer.
fn cut_nothing(section: &mut Section<'_>, at: Place) {
    let what = "`workload.longer = \"cut\"` changes nothing";
    section.warn(Code::NoEffect, at, what, "it needs `max_tokens`, and sequences that are longer");
}

/// `tokens`: one length for all.
fn equal(section: &mut Section<'_>, max_tokens: u64, is_cut: bool) -> u64 {
    let (tokens, at) = section.count("tokens", None, 1..=distribution::LENGTH_MAX);
    if tokens > max_tokens && !is_cut {
        let what =
            format!("`workload.tokens = {tokens}` changes nothing: `max_tokens` makes every sequence {max_tokens}");
        let help = "leave one of them out; `longer = \"cut\"` makes several sequences of each";
        section.warn(Code::NoEffect, at, what, help);
    }
    tokens
}

/// `lengths`: a distribution by name.
fn named(section: &mut Section<'_>) -> Option<(&'static distribution::Distribution, String)> {
    section.offers("lengths", distribution::names);
    let (name, at) = section.text("lengths")?;
    let found = distribution::named(&name);
    if found.is_none() {
        section.find(unknown(
            Code::UnknownLengths,
            format!("unknown workload `{name}`"),
            &name,
            distribution::names(),
            at,
        ));
    }
    found.map(|found| (found, name))
}

/// `file`: one length per line, or what `field` names of each.
pub fn file(section: &mut Section<'_>, folder: &Path, field: Option<&str>) -> Option<(Vec<u64>, String)> {
    let (path, at) = section.text("file")?;
    let text = match text_file::read(&folder.join(&path)) {
        Ok(text) => text,
        Err(error) => {
            section.wrong(Code::UnreadableFile, at, format!("cannot read `{path}`: {error}"));
            return None;
        }
    };
    let read = match field {
        Some(field) => lengths::of_field(&text, field),
        None => distribution::parse_lengths(&text),
    };
    let bad = match read {
        Ok(lengths) => return Some((lengths, path)),
        Err(bad) => bad,
    };
    bad.iter().take(5).for_each(|bad| section.find(bad_length(&path, bad, field, at.clone())));
    if bad.len() > 5 {
        section.wrong(Code::WrongLengths, at, format!("`{path}` has {} more bad lines", bad.len() - 5));
    }
    None
}

fn bad_length(path: &str, bad: &distribution::BadLength, field: Option<&str>, at: Place) -> Finding {
    let what = if bad.found.is_empty() {
        format!("`{path}` holds no lengths")
    } else {
        format!("`{path}` line {}: `{}` is not a length", bad.line, bad.found)
    };
    let place = match field {
        Some(field) => format!("; each line needs `{field}` as such a number, or as a list of tokens"),
        None if bad.found.starts_with(['[', '{']) => {
            ", one per line; `field = \"tokens\"` names what holds it in JSON lines".to_owned()
        }
        None => ", one per line".to_owned(),
    };
    Finding::error(Code::WrongLengths, at, what)
        .help(format!("allowed are whole numbers from 1 to {}{place}", distribution::LENGTH_MAX))
}

/// `list = [4, 1, 2]`.
fn list(section: &mut Section<'_>) -> Vec<u64> {
    let Some((value, at)) = section.take("list") else { return Vec::new() };
    let ValueInner::Array(items) = value else {
        section.wrong(Code::WrongType, at, "`workload.list` is not a list of lengths");
        return Vec::new();
    };
    if items.is_empty() {
        let help = format!("allowed are whole numbers from 1 to {}", distribution::LENGTH_MAX);
        section.refuse(Code::WrongLengths, at, "`workload.list` holds no length", help);
    }
    let mut lengths = Vec::with_capacity(items.len());
    for item in &items {
        match item.as_integer().and_then(|length| u64::try_from(length).ok()) {
            Some(length) if (1..=distribution::LENGTH_MAX).contains(&length) => lengths.push(length),
            _ => {
                let what = "`workload.list` holds something that is not a length";
                let help = format!("allowed are whole numbers from 1 to {}", distribution::LENGTH_MAX);
                section.refuse(Code::WrongLengths, place_of(item), what, help);
            }
        }
    }
    lengths
}
