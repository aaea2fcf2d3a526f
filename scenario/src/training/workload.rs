//! `[workload]`: sequence lengths, from a named distribution, a file, a list, or all equal.

use std::path::Path;

use planner::train::pack;
use toml_span::value::ValueInner;
use train::Workload;
use train::workload::distribution::{self, Distribution};

use super::lengths;
use super::training::{SEQUENCES_MAX, Training};
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

/// Sequences that come from elsewhere, or those of the section. Steps may differ in which experts their tokens find; context ranks cut
/// sequences into whole tokens.
pub fn asked(
    reader: &mut Reader<'_>,
    folder: &Path,
    training: &mut Training,
    (given, seed): (Option<Given>, u64),
    (draws_experts, cp): (bool, u32),
) -> Option<Workload> {
    match given {
        Some(sequences) => sequences.workload(reader, training),
        None => {
            let found = packed(reader.section("workload"), folder, training, (cp, seed));
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

/// Sequences of a step, and rows into which they are packed.
#[derive(Clone, Copy)]
struct Batch {
    /// Sequences of a step, or its rows.
    n: u64,
    steps: u64,
    /// Tokens of a row; `None` where nothing packs.
    row_tokens: Option<u64>,
    /// Context ranks, over which a sequence is cut into whole tokens.
    cp: u64,
}

impl Batch {
    /// Sequences of a step. So many rows take as many as best fit packs into them.
    fn sequences(self, first: &dyn Fn(usize) -> Vec<u64>) -> usize {
        let [n, steps, most] = [self.n, self.steps, SEQUENCES_MAX / self.steps.max(1)]
            .map(|count| usize::try_from(count).expect("bounded"));
        let whole = |n: usize| first(n).into_iter().map(|tokens| tokens.next_multiple_of(self.cp)).collect();
        self.row_tokens.map_or(n, |row_tokens| pack::filling(&whole, (n, row_tokens), steps, most.max(n)))
    }
}

/// Where lengths come from.
enum Lengths {
    Named(&'static Distribution),
    Given(Vec<u64>),
}

/// What becomes of a document that is longer than a sequence may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Longer {
    /// It makes room for another draw, or is left out.
    Redraw,
    /// It becomes several sequences.
    Cut,
    /// It loses its end.
    Truncate,
}

impl Lengths {
    /// The first so many sequences.
    fn first(&self, n: usize, (max_tokens, longer): (u64, Longer), seed: u64) -> Vec<u64> {
        let given = match self {
            Self::Named(found) => {
                return match longer {
                    Longer::Redraw => found.sample(n, max_tokens, seed),
                    Longer::Cut => found.sample_cut(n, max_tokens, seed),
                    Longer::Truncate => found.sample_truncated(n, max_tokens, seed),
                };
            }
            Self::Given(lengths) => lengths.iter().copied(),
        };
        match longer {
            Longer::Redraw => {
                let short: Vec<u64> = given.filter(|length| *length <= max_tokens).collect();
                short.into_iter().cycle().take(n).collect()
            }
            Longer::Cut => distribution::cut(given.cycle(), max_tokens).take(n).collect(),
            Longer::Truncate => given.cycle().map(|length| length.min(max_tokens)).take(n).collect(),
        }
    }

    /// Whether one is longer. What is drawn may always be longer than some limit.
    fn pass(&self, max_tokens: u64) -> bool {
        match self {
            Self::Named(_) => true,
            Self::Given(lengths) => lengths.iter().any(|length| *length > max_tokens),
        }
    }
}

/// Reads the section: sequences of so many steps of such a batch.
pub fn workload(section: Section<'_>, folder: &Path, (n, steps): (u64, u64), seed: u64) -> Option<Workload> {
    sequences(section, folder, Batch { n, steps, row_tokens: None, cp: 1 }, seed)
}

/// The same of a step that may have rows, into which sequences are packed.
fn packed(
    mut section: Section<'_>,
    folder: &Path,
    training: &mut Training,
    (cp, seed): (u32, u64),
) -> Option<Workload> {
    let row_tokens = section.some_count("row_tokens", 1..=distribution::LENGTH_MAX).map(u64::from);
    training.row_tokens = row_tokens;
    if let Some(row_tokens) = row_tokens.filter(|_| training.bucket_tokens == 0) {
        // A micro-batch is a row where nobody says another thing.
        training.bucket_tokens = row_tokens.div_ceil(cp.max(1).into());
    }
    let batch = Batch { n: training.batch_size, steps: training.steps, row_tokens, cp: cp.max(1).into() };
    sequences(section, folder, batch, seed)
}

fn sequences(mut section: Section<'_>, folder: &Path, batch: Batch, seed: u64) -> Option<Workload> {
    let given = section.alternatives(&["lengths", "file", "tokens", "list"]);
    if given != ["file"] {
        section.idle(&["field"], "`file`");
    }
    let field = section.text("field").map(|(field, _)| field);
    let has_limit = section.has("max_tokens") || batch.row_tokens.is_some();
    let longest = batch.row_tokens.unwrap_or(distribution::LENGTH_MAX);
    let max_tokens = section.count("max_tokens", Some(longest), 1..=longest).0;
    let longer_at = section.place("longer");
    let longer =
        [Longer::Redraw, Longer::Cut, Longer::Truncate][section.word("longer", 0, &["redraw", "cut", "truncate"])];
    let found: Option<(Lengths, String)> = match given[..] {
        ["lengths"] => named(&mut section).map(|(found, name)| (Lengths::Named(found), name)),
        ["file"] => file(&mut section, folder, field.as_deref()).map(|(lengths, path)| (Lengths::Given(lengths), path)),
        ["tokens"] => {
            let tokens = equal(&mut section, max_tokens, longer == Longer::Cut);
            let each = if longer == Longer::Cut { tokens } else { tokens.min(max_tokens) };
            Some((Lengths::Given(vec![each]), format!("{tokens} tokens each")))
        }
        ["list"] => Some(list(&mut section))
            .filter(|list| !list.is_empty())
            .map(|list| (Lengths::Given(list), "listed lengths".to_owned())),
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
    let is_passed = found.as_ref().is_some_and(|(lengths, _)| has_limit && lengths.pass(max_tokens));
    longer_at.filter(|_| longer == Longer::Cut && !is_passed).into_iter().for_each(|at| cut_nothing(&mut section, at));
    let drawn = found.map(|(lengths, source)| {
        let first = |n: usize| lengths.first(n, (max_tokens, longer), seed);
        let batch_size = if first(1).is_empty() { 1 } else { batch.sequences(&first) };
        let steps = usize::try_from(batch.steps).expect("bounded");
        Workload { lengths: first(batch_size * steps), batch_size, source }
    });
    let is_asked = batch.n > 0 && batch.steps > 0;
    if is_asked && drawn.as_ref().is_some_and(|drawn| drawn.lengths.is_empty()) {
        let what = format!("every sequence of the workload is longer than `max_tokens = {max_tokens}`");
        let at = section.place("max_tokens").unwrap_or_else(|| section.at());
        section.refuse(Code::WrongLengths, at, what, "raise it, or cut them: `longer = \"cut\"`");
    }
    section.finish();
    drawn.filter(|drawn| !drawn.lengths.is_empty() || !is_asked)
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
