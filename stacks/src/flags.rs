//! Flags as they were given, and tables of what flags of a stack do to time and memory.
//!
//! A flag counts as asked for when its value is read; what a stack's table says of the others becomes a finding.

use std::ops::Range;

use input::diagnostic::{Code, Finding, nearest};
use input::reader::Place;

use crate::shell::{UNKNOWN, Word};

/// A flag as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name without dashes in front, with `-` where people write `_`.
    pub name: String,
    /// Words behind it.
    pub values: Vec<String>,
    /// Bytes of the file.
    pub at: Range<usize>,
}

impl Flag {
    /// A flag that no text gives, so no finding points to it.
    pub(crate) fn added(name: &str, values: Vec<String>) -> Self {
        Self { name: name.to_owned(), values, at: 0..0 }
    }

    /// Words behind it, with spaces.
    pub fn value(&self) -> String {
        self.values.join(" ")
    }
}

/// The flag of a name; the last one counts where it stands more than once.
pub(crate) fn last<'f>(given: &'f [Flag], name: &str) -> Option<&'f Flag> {
    given.iter().rev().find(|flag| flag.name == name)
}

/// Whether a word is a flag. Numbers below zero are not.
pub(crate) fn is_flag(text: &str) -> bool {
    let rest = text.trim_start_matches('-');
    rest.len() < text.len() && rest.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

/// Cuts the words of a command into flags; words in front of the first one are left out, and those behind `--name=value` are no values of it.
pub fn of_words(words: &[Word]) -> Vec<Flag> {
    with_own(words).0
}

/// The same, and the program's own words: those behind `--name=value`.
pub(crate) fn with_own(words: &[Word]) -> (Vec<Flag>, Vec<String>) {
    let (mut flags, mut own): (Vec<Flag>, Vec<String>) = (Vec::new(), Vec::new());
    let mut is_whole = false;
    for word in words {
        let text = word.text();
        if is_flag(&text) {
            let (name, value) = text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value)));
            is_whole = value.is_some_and(|value| !value.is_empty());
            let values = value.map(str::to_owned).into_iter().collect();
            flags.push(Flag { name: named(name), values, at: word.at() });
        } else if is_whole {
            own.push(text);
        } else if let Some(flag) = flags.last_mut() {
            flag.at.end = if word.at().end > flag.at.start { flag.at.end.max(word.at().end) } else { flag.at.end };
            // A value from another line is pointed to where it was written.
            if word.at().start < flag.at.start || word.at().start > flag.at.start + 400 {
                flag.at = word.at();
            }
            flag.values.push(text);
        }
    }
    (flags, own)
}

/// The first word behind options that is no value of one, taken from it: switches have none, all but lists have one.
pub(crate) fn word_behind(flags: &mut [Flag], is_switch: fn(&str) -> bool, lists: &[&str]) -> Option<String> {
    let behind = flags.iter_mut().find_map(|flag| {
        let n_own = if is_switch(&flag.name) { 0 } else { 1 };
        let has_more = flag.values.len() > n_own && !lists.contains(&flag.name.as_str());
        has_more.then_some((flag, n_own))
    });
    behind.map(|(flag, n_own)| flag.values.remove(n_own))
}

/// A flag's name as tables have it.
pub fn named(text: &str) -> String {
    text.trim_start_matches('-').replace('_', "-")
}

/// What a flag does to the time and memory of a step or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It gives a key of the scenario.
    Sets(&'static str),
    /// None.
    Silent,
    /// It matters and is not modelled, for this reason.
    NotModelled(&'static str),
}

/// A row of a table of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Name without dashes.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
    /// Values for which that holds, with `!` in front those for which it does not; empty for all. Other values are silent.
    pub values: &'static str,
    /// Words that the stack takes, with spaces between them; empty where it is not a choice of a few.
    pub allowed: &'static str,
}

impl Known {
    /// Whether its effect is that of a value.
    fn holds_for(&self, value: &str) -> bool {
        let is_among = |all: &str| all.split(' ').any(|word| words(value).any(|own| own == word));
        match self.values.strip_prefix('!') {
            Some(others) => !is_among(others),
            None => self.values.is_empty() || is_among(self.values),
        }
    }

    /// The first word of a value that the stack does not take, and nothing where it takes all of them. A value may be a list.
    pub fn refused<'v>(&self, value: &'v str) -> Option<&'v str> {
        if self.allowed.is_empty() || value.contains(UNKNOWN) {
            return None;
        }
        let mut words = words(value).peekable();
        if words.peek().is_none() {
            return Some("");
        }
        words.find(|word| !self.allowed.split(' ').any(|allowed| allowed == *word))
    }
}

/// The numbers of a flag's list, as a list of a scenario; `None` without one.
pub(crate) fn listed(text: &str) -> Option<String> {
    let numbers = words(text).filter_map(|word| word.parse::<u64>().ok());
    let numbers: Vec<String> = numbers.map(|n| n.to_string()).collect();
    (!numbers.is_empty()).then(|| format!("[{}]", numbers.join(", ")))
}

/// Words of a value, which may be a list of Python or of YAML.
pub(crate) fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split([' ', ',', '[', ']', '(', ')', '"', '\'']).filter(|word| !word.is_empty())
}

/// Known flags of a stack: one line each, `name`, `sets KEY`, `silent` or `missing`, the reason, values for which that holds, and words that the
/// stack takes, with tabs between them.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Known>,
    /// Whether each flag has the name with `no-` in front too.
    negates: bool,
}

impl Table {
    /// Reads a table; lines that begin with `#` are remarks.
    ///
    /// # Panics
    /// Where a line is none: tables are part of the program.
    pub fn new(text: &'static str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { rows: lines.map(row).collect(), negates: true }
    }

    /// The rows of a table of several programs that hold for one of them: its word stands among those behind the other cells.
    pub(crate) fn of_program(text: &'static str, program: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let of_program =
            |line: &&str| line.split('\t').nth(5).is_some_and(|all| all.split(' ').any(|one| one == program));
        Self { rows: lines.filter(of_program).map(row).collect(), negates: true }
    }

    /// The same of a stack whose flags have the names that the rows say, and no others.
    #[must_use]
    pub fn without_negations(mut self) -> Self {
        self.negates = false;
        self
    }

    /// The same with the rows of a common table behind it, but for names that it has itself.
    #[must_use]
    pub fn over(mut self, common: &Self) -> Self {
        let own: Vec<&str> = self.rows.iter().map(|known| known.name).collect();
        let further: Vec<Known> = common.rows.iter().filter(|known| !own.contains(&known.name)).copied().collect();
        self.rows.extend(further);
        self.negates &= common.negates;
        self
    }

    /// Every row.
    pub fn rows(&self) -> &[Known] {
        &self.rows
    }

    /// The row of a flag; else the first whose name ends in `*` and begins like it.
    pub fn find(&self, name: &str) -> Option<&Known> {
        let begins = |known: &&Known| known.name.strip_suffix('*').is_some_and(|start| name.starts_with(start));
        self.rows.iter().find(|known| known.name == name).or_else(|| self.rows.iter().find(begins))
    }

    /// The name that is meant by one with a single slip in its last part, where a row for all that begin so would say nothing of it.
    pub fn slip(&self, name: &str) -> Option<&'static str> {
        let is_swept = self.find(name).is_some_and(|known| known.name.ends_with('*') && known.effect == Effect::Silent);
        let (section, own) = name.rsplit_once('.').unwrap_or(("", name));
        let is_meant = |known: &&Known| {
            let (other_section, other) = known.name.rsplit_once('.').unwrap_or(("", known.name));
            known.effect != Effect::Silent && section == other_section && is_slip(own, other)
        };
        self.rows.iter().filter(|_| is_swept).find(is_meant).map(|known| known.name)
    }

    /// What a flag with a value does; `None` for one that no row has. `no-X` or `section.no-X` without a row of its own is the usual for a known
    /// `X`, silent, where the stack has such names.
    pub fn effect(&self, name: &str, value: &str) -> Option<Effect> {
        let Some(known) = self.find(name) else {
            let (section, own) = name.rsplit_once('.').map_or(("", name), |(section, own)| (section, own));
            let gap = if section.is_empty() { "" } else { "." };
            let usual = own.strip_prefix("no-").filter(|_| self.negates).map(|own| format!("{section}{gap}{own}"))?;
            return self.find(&usual).map(|_| Effect::Silent);
        };
        Some(if known.holds_for(value) { known.effect } else { Effect::Silent })
    }
}

/// Whether a word is another one with a letter too many, too few or another, or with two of them in the wrong order.
fn is_slip(word: &str, other: &str) -> bool {
    const SHORTEST: usize = 3;
    let (word, other) = (word.as_bytes(), other.as_bytes());
    let n_same = word.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (word, other) = (&word[n_same..], &other[n_same..]);
    let n_last = word.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let (word, other) = (&word[..word.len() - n_last], &other[..other.len() - n_last]);
    let is_swapped = matches!((word, other), ([a, b], [c, d]) if a == d && b == c);
    n_same + n_last + other.len() >= SHORTEST && word != other && (word.len().max(other.len()) == 1 || is_swapped)
}

/// Rows of a table with tabs between its cells; cells that are missing at the end are empty.
pub(crate) fn rows<const N: usize>(text: &'static str) -> Vec<[&'static str; N]> {
    let cut = |line: &'static str| {
        let mut cells = line.split('\t');
        std::array::from_fn(|_| cells.next().unwrap_or(""))
    };
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(cut).collect()
}

fn row(line: &'static str) -> Known {
    let cells: Vec<&'static str> = line.split('\t').collect();
    let cell = |index: usize| cells.get(index).copied().unwrap_or("");
    let effect = match cell(1) {
        "silent" => Effect::Silent,
        "missing" => Effect::NotModelled(cell(2)),
        sets => Effect::Sets(sets.strip_prefix("sets ").unwrap_or_else(|| panic!("a row of a table: {line}"))),
    };
    Known { name: cell(0), effect, values: cell(3), allowed: cell(4) }
}

/// Flags that are being read, and what is wrong with them.
pub struct Flags<'t> {
    /// As they were given.
    pub given: Vec<Flag>,
    /// The stack's table.
    pub table: &'t Table,
    /// Findings so far.
    pub findings: Vec<Finding>,
    /// What stands before a name in messages.
    mark: &'static str,
}

impl<'t> Flags<'t> {
    /// Flags of a stack.
    pub const fn new(given: Vec<Flag>, table: &'t Table) -> Self {
        Self { given, table, findings: Vec::new(), mark: "--" }
    }

    /// Keys of a file, which have no dashes.
    pub const fn of_keys(given: Vec<Flag>, table: &'t Table) -> Self {
        Self { given, table, findings: Vec::new(), mark: "" }
    }

    /// A flag; the last one counts where it stands more than once.
    pub fn find(&self, name: &str) -> Option<&Flag> {
        last(&self.given, name)
    }

    /// Of several names of one option the one that is given last, which counts.
    pub(crate) fn last_of<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        self.given.iter().rev().find_map(|flag| names.iter().copied().find(|name| *name == flag.name))
    }

    /// Where a flag stands.
    pub fn at(&self, name: &str) -> Option<Range<usize>> {
        self.find(name).map(|flag| flag.at.clone())
    }

    /// A name as the stack writes it.
    pub fn shown(&self, name: &str) -> String {
        format!("{}{name}", self.mark)
    }

    /// Whether a switch is given.
    pub fn is(&self, name: &str) -> bool {
        self.find(name).is_some_and(|flag| flag.value() != "false")
    }

    /// The words behind a flag, where all of them are known.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let flag = self.find(name)?.clone();
        let value = flag.value();
        if value.contains(UNKNOWN) {
            let what = format!("the value of `{}{name}` is known only when the script runs", self.mark);
            let of_script = "write the value into the script, or set the variable in it";
            let of_file = "write the value into the file: what is `auto` there a trainer fills in";
            let help = if self.mark.is_empty() { of_file } else { of_script };
            self.findings.push(Finding::error(Code::UnknownValue, Some(flag.at), what).help(help));
            return None;
        }
        (!value.is_empty()).then_some(value)
    }

    /// The words behind a flag that has no meaning without them.
    pub(crate) fn needed(&mut self, name: &str) -> Option<String> {
        let value = self.text(name);
        // A key of a file without a value is `null` there.
        let is_bare = |flag: &&Flag| flag.values.iter().all(String::is_empty) && !self.mark.is_empty();
        let Some(flag) = self.find(name).filter(is_bare) else { return value };
        let (at, what) = (flag.at.clone(), format!("`{}{name}` has no value behind it", self.mark));
        let is_said = |finding: &Finding| finding.what == what && finding.at.as_ref() == Some(&at);
        if !self.findings.iter().any(is_said) {
            let help = "write its value behind it, or leave the flag out";
            self.findings.push(Finding::error(Code::WrongFlag, Some(at), what).help(help));
        }
        None
    }

    /// One of a few words.
    pub fn word<T: Copy>(&mut self, name: &str, allowed: &[(&str, T)]) -> Option<T> {
        let value = self.needed(name)?;
        let found = allowed.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = allowed.iter().map(|(word, _)| *word).collect();
            let near = nearest(&value, words.iter().copied())
                .map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            self.wrong(
                name,
                format!("`{}{name} {value}` is none of its words", self.mark),
                format!("{near}allowed are {}", words.join(", ")),
            );
        }
        found
    }

    /// A whole number within a range.
    pub fn count(&mut self, name: &str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let value = self.needed(name)?;
        let number = value.replace('_', "").parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let allowed = format!("allowed are whole numbers from {} to {}", range.start(), range.end());
            self.wrong(name, format!("`{}{name} {value}` is no such number", self.mark), allowed);
        }
        number
    }

    /// A number.
    pub fn number(&mut self, name: &str) -> Option<f64> {
        let value = self.needed(name)?;
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
        if number.is_none() {
            self.wrong(
                name,
                format!("`{}{name} {value}` is no number", self.mark),
                "allowed are numbers, for example 0.9".to_owned(),
            );
        }
        number
    }

    /// Adds an error with what is allowed or what to do.
    pub fn refuse(&mut self, code: Code, at: Place, what: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::error(code, at, what).help(help));
    }

    /// Adds a warning with what to do.
    pub fn warn(&mut self, code: Code, at: Place, what: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::warning(code, at, what).help(help));
    }

    /// An error about a flag; about the whole file where it is not given.
    pub fn wrong(&mut self, name: &str, what: String, help: String) {
        let at = self.at(name);
        self.findings.push(Finding::error(Code::WrongFlag, at, what).help(help));
    }

    /// An error about a flag that is needed.
    pub fn missing(&mut self, name: &str, why: &str) {
        let what = format!("`{}{name}` is not given", self.mark);
        self.findings.push(Finding::error(Code::MissingFlag, None, what).help(why.to_owned()));
    }

    /// A warning that something matters and is not modelled.
    pub fn not_modelled(&mut self, name: &str, why: &str) {
        let flag = self.find(name);
        let value = flag.map_or_else(String::new, Flag::value);
        let gap = if value.is_empty() { "" } else { " " };
        let what = format!("`{}{name}{gap}{value}` is not modelled", self.mark);
        let at = flag.map(|flag| flag.at.clone());
        self.findings.push(Finding::warning(Code::NotModelled, at, what).help(why.to_owned()));
    }

    /// Refuses a value that is none of the words that the stack takes. What was read before may have said so already.
    fn refuse_word(&mut self, flag: &Flag) {
        let value = flag.value();
        let Some((known, word)) = self.table.find(&flag.name).and_then(|known| Some((known, known.refused(&value)?)))
        else {
            return;
        };
        let is_said = |finding: &Finding| finding.code == Code::WrongFlag && finding.at.as_ref() == Some(&flag.at);
        if self.findings.iter().any(is_said) {
            return;
        }
        let near = nearest(word, known.allowed.split(' ')).map(|near| format!("did you mean `{near}`? "));
        let what = match word {
            "" => format!("`{}{}` has no word behind it", self.mark, flag.name),
            _ => format!("`{}{} {value}`: `{word}` is none of its words", self.mark, flag.name),
        };
        let help = format!("{}allowed are {}", near.unwrap_or_default(), known.allowed.replace(' ', ", "));
        self.findings.push(Finding::error(Code::WrongFlag, Some(flag.at.clone()), what).help(help));
    }

    /// Says what the table does not know, which words it does not take, and what matters without being modelled: each flag once, with the value
    /// that counts.
    pub fn judge(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        for flag in self.given.clone() {
            if seen.insert(flag.name.clone()) {
                let last = self.find(&flag.name).cloned().unwrap_or(flag);
                self.judge_flag(&last);
            }
        }
    }

    const fn kind(&self) -> &'static str {
        if self.mark.is_empty() { "keys" } else { "flags" }
    }

    fn judge_flag(&mut self, flag: &Flag) {
        self.refuse_word(flag);
        if let Some(near) = self.table.slip(&flag.name) {
            let what = format!("`{}{}` is not in the table of {}", self.mark, flag.name, self.kind());
            let help = format!("did you mean `{}{near}`? it is taken to change neither time nor memory", self.mark);
            self.findings.push(Finding::warning(Code::UnknownFlag, Some(flag.at.clone()), what).help(help));
            return;
        }
        match self.table.effect(&flag.name, &flag.value()) {
            Some(Effect::NotModelled(why)) => self.not_modelled(&flag.name, why),
            Some(_) => {}
            None => {
                let what = format!("`{}{}` is not in the table of {}", self.mark, flag.name, self.kind());
                let names = self.table.rows().iter().map(|known| known.name);
                let near = nearest(&flag.name, names).map(|near| format!("did you mean `{}{near}`? ", self.mark));
                // What such names say matters nearly always.
                let may_matter = ["fp8", "fp4", "moe"].iter().any(|part| flag.name.contains(part));
                let taken = if may_matter {
                    "time and memory are counted without it, and its name says that it may change both"
                } else {
                    "it is taken to change neither time nor memory"
                };
                let help = near.unwrap_or_default() + taken;
                self.findings.push(Finding::warning(Code::UnknownFlag, Some(flag.at.clone()), what).help(help));
            }
        }
    }
}

/// Options by their whole names: parsers of Python's `argparse` take a beginning that one option alone has.
pub(crate) fn with_whole_names(flags: Vec<Flag>, table: &Table) -> Vec<Flag> {
    flags.into_iter().map(|flag| Flag { name: whole_name(flag.name, table), ..flag }).collect()
}

/// The option that a name is, or that alone begins so.
fn whole_name(name: String, table: &Table) -> String {
    let mut begin = table.rows().iter().filter(|known| known.name.starts_with(&name) && !known.name.ends_with('*'));
    match (begin.next(), begin.next()) {
        (Some(only), None) if name.len() >= SHORTEST_BEGINNING => only.name.to_owned(),
        _ => name,
    }
}

/// Letters of a beginning: with fewer, it is a short name or a slip.
const SHORTEST_BEGINNING: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_belong_to_the_flag_before_them() {
        let words = crate::shell::commands("x.py --a 1 2 --b --c=-3 own -d -4").unwrap().remove(0);
        assert_eq!(with_own(&words).1, ["own"]);
        let found: Vec<(String, String)> =
            of_words(&words).iter().map(|flag| (flag.name.clone(), flag.value())).collect();
        let expected = [("a", "1 2"), ("b", ""), ("c", "-3"), ("d", "-4")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
