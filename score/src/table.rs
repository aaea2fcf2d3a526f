//! A CSV table by the names of its columns, with every fault of the file by line and column.
//!
//! Reading never stops at the first fault. Lines count from 1, the header being the first; an empty cell is a value that is not stated.

use std::cell::RefCell;

use csv::StringRecord;

/// Faults of a file that are listed; the rest is counted.
const FAULTS_SHOWN: usize = 20;

/// Likeness of names above which one may stand for the other.
const ALIKE: f64 = 0.9;

/// What is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the file.
    pub line: u64,
    /// Column by its name; empty where the whole line is meant.
    pub column: String,
    /// What is wrong.
    pub what: String,
}

impl Fault {
    /// In a sentence, as compilers write places.
    pub fn words(&self) -> String {
        match self.column.as_str() {
            "" => format!("line {}: {}", self.line, self.what),
            column => format!("line {}, column `{column}`: {}", self.line, self.what),
        }
    }
}

/// Faults of a file, a line each.
pub fn listed(path: &str, faults: &[Fault]) -> String {
    let mut lines: Vec<String> =
        faults.iter().take(FAULTS_SHOWN).map(|fault| format!("{path}: {}", fault.words())).collect();
    if faults.len() > FAULTS_SHOWN {
        lines.push(format!("and {} more", faults.len() - FAULTS_SHOWN));
    }
    lines.join("\n  ")
}

/// Names of the columns of a text.
pub(crate) fn header(text: &str) -> Vec<&str> {
    text.lines().next().unwrap_or("").split(',').map(str::trim).collect()
}

/// Whether a text has all of these columns, by which its table is told from every other.
pub(crate) fn has_columns(text: &str, needed: &[&str]) -> bool {
    let names = header(text);
    needed.iter().all(|name| names.contains(name))
}

/// Rows of a table under the names of its header.
#[derive(Debug)]
pub struct Table {
    names: Vec<String>,
    rows: Vec<StringRecord>,
}

/// Text of a file in a table's folder, where it is there.
pub type Beside<'b> = dyn Fn(&str) -> Option<String> + 'b;

/// What is read of every row of a file beside a table, with its name before every fault.
///
/// # Errors
/// Every fault of the file, also that it is not there.
pub fn read_beside<T>(
    beside: &Beside<'_>,
    file: &str,
    needed: &[&str],
    read: impl FnMut(&mut Cells<'_>) -> T,
) -> Result<Vec<T>, Vec<Fault>> {
    let absent = || vec![Fault { line: 1, column: String::new(), what: format!("needs `{file}` in the same folder") }];
    let named = |fault: Fault| Fault { what: format!("{} (in `{file}`)", fault.what), ..fault };
    let text = beside(file).ok_or_else(absent)?;
    let found = Table::read(&text, needed).and_then(|table| table.read_rows(read));
    found.map_err(|faults| faults.into_iter().map(named).collect())
}

/// One row while it is read; what is wrong with it is kept aside.
#[derive(Debug)]
pub struct Cells<'t> {
    names: &'t [String],
    cells: &'t StringRecord,
    /// Line of the file.
    pub line: u64,
    /// Faults so far, each once.
    faults: RefCell<Vec<Fault>>,
}

impl Table {
    /// Reads a text, and says which of the columns that are asked for are not there and which lines are broken.
    ///
    /// # Errors
    /// Every fault.
    pub fn read(text: &str, needed: &[&str]) -> Result<Self, Vec<Fault>> {
        // The reader of lines counts one too few behind a carriage return.
        let text = text.replace("\r\n", "\n");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| vec![broken(&error)])?.clone();
        let names: Vec<String> = header.iter().map(str::to_owned).collect();
        let missing = needed.iter().filter(|name| !names.iter().any(|known| known == *name));
        let unasked: Vec<&str> = names.iter().map(String::as_str).filter(|name| !needed.contains(name)).collect();
        let mut faults: Vec<Fault> = missing.map(|name| not_there(name, &unasked)).collect();
        let mut rows = Vec::new();
        for record in reader.records() {
            match record {
                Ok(record) => rows.push(record),
                Err(error) => faults.push(broken(&error)),
            }
        }
        if rows.is_empty() && faults.is_empty() {
            faults.push(Fault { line: 1, column: String::new(), what: "the table has no rows".to_owned() });
        }
        if faults.is_empty() { Ok(Self { names, rows }) } else { Err(faults) }
    }

    /// What is read of every row.
    ///
    /// # Errors
    /// Every fault of every row.
    pub fn read_rows<T>(&self, mut read: impl FnMut(&mut Cells<'_>) -> T) -> Result<Vec<T>, Vec<Fault>> {
        let (mut found, mut faults) = (Vec::with_capacity(self.rows.len()), Vec::new());
        for mut cells in self.rows() {
            found.push(read(&mut cells));
            faults.append(cells.faults.get_mut());
        }
        if faults.is_empty() { Ok(found) } else { Err(faults) }
    }

    /// Every row.
    fn rows(&self) -> impl Iterator<Item = Cells<'_>> {
        self.rows.iter().map(|cells| {
            let line = cells.position().map_or(0, csv::Position::line);
            Cells { names: &self.names, cells, line, faults: RefCell::default() }
        })
    }
}

/// The name that is most like a word, where it is like enough to stand for it.
pub(crate) fn likest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let alike = names.map(|name| (strsim::jaro_winkler(word, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    alike.filter(|(likeness, _)| *likeness > ALIKE).map(|(_, name)| name)
}

/// A column that is missing, with the one of another name that it may be.
fn not_there(name: &str, others: &[&str]) -> Fault {
    let what = match likest(name, others.iter().copied()) {
        Some(other) => format!("no such column; did you mean `{other}`?"),
        None => "no such column".to_owned(),
    };
    Fault { line: 1, column: name.to_owned(), what }
}

fn broken(error: &csv::Error) -> Fault {
    let line = error.position().map_or(1, csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells where the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".to_owned(),
        _ => error.to_string(),
    };
    Fault { line, column: String::new(), what }
}

impl Cells<'_> {
    /// A cell's text without the blanks around it.
    pub fn word(&self, column: &str) -> &str {
        let index = self.names.iter().position(|name| name == column);
        index.and_then(|index| self.cells.get(index)).unwrap_or("").trim()
    }

    /// Whether the table has a column.
    pub fn has(&self, column: &str) -> bool {
        self.names.iter().any(|name| name == column)
    }

    /// Whether a flag is set: 1 or true; one that is not stated is not.
    pub fn flag(&self, column: &str) -> bool {
        match self.word(column).to_ascii_lowercase().as_str() {
            "1" | "true" => true,
            "" | "0" | "false" => false,
            other => {
                self.fault(column, format!("`{other}` is neither 0, 1, true nor false"));
                false
            }
        }
    }

    pub(crate) fn fault(&self, column: &str, what: String) {
        let fault = Fault { line: self.line, column: column.to_owned(), what };
        let mut faults = self.faults.borrow_mut();
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }

    /// A count; `None` where it is not stated.
    pub fn count(&self, column: &str) -> Option<u32> {
        let text = self.word(column).to_owned();
        if text.is_empty() {
            return None;
        }
        let found = text.parse().ok();
        if found.is_none() {
            self.fault(column, format!("`{text}` is not a count"));
        }
        found
    }

    /// A count of at least one that has to be there; 1 with a fault where it is not.
    pub fn positive(&self, column: &str) -> u32 {
        match self.count(column) {
            Some(n) if n > 0 => n,
            Some(_) => {
                self.fault(column, "must be at least 1, found 0".to_owned());
                1
            }
            None => {
                if self.word(column).is_empty() {
                    self.fault(column, "must be stated".to_owned());
                }
                1
            }
        }
    }

    /// A number above 0; `None` where it is not stated.
    pub fn positive_number(&self, column: &str) -> Option<f64> {
        let text = self.word(column).to_owned();
        if text.is_empty() {
            return None;
        }
        match text.parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => return Some(number),
            Ok(_) => self.fault(column, format!("must be above 0, found `{text}`")),
            Err(_) => self.fault(column, format!("`{text}` is not a number")),
        }
        None
    }

    /// Numbers with blanks between them; a fault for each that is none.
    pub fn numbers<T: std::str::FromStr>(&self, column: &str) -> Vec<T> {
        let number = |word: &str| {
            let found = word.parse().ok();
            if found.is_none() {
                self.fault(column, format!("`{word}` is not a number"));
            }
            found
        };
        self.word(column).split_whitespace().filter_map(number).collect()
    }

    /// A number that has to be there; 0 with a fault where it is not.
    pub fn number(&self, column: &str) -> f64 {
        let text = self.word(column).to_owned();
        let found = text.parse::<f64>().ok().filter(|number| number.is_finite());
        if found.is_none() {
            self.fault(column, format!("`{text}` is not a number"));
        }
        found.unwrap_or(0.0)
    }

    /// A positive duration in milliseconds, as seconds; 1 s with a fault where there is none.
    pub fn seconds(&self, column: &str) -> f64 {
        let text = self.word(column).to_owned();
        match text.parse::<f64>() {
            Ok(ms) if ms > 0.0 && ms.is_finite() => return ms / 1e3,
            Ok(_) => self.fault(column, format!("must be above 0, found `{text}`")),
            Err(_) => self.fault(column, format!("`{text}` is not a number of milliseconds")),
        }
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_cannot_be_read_is_a_fault_once_with_its_line_and_column() {
        let text = "flag,n,share,list\n1,2,0.5,1 2\ntrue,,,\nFalse,ten,abc,1 x\nyes,-1,0,\n";
        let table = Table::read(text, &["flag"]).expect("a table");
        let mut flags = Vec::new();
        let faults = table.read_rows(|cells| {
            flags.push(cells.flag("flag") && cells.flag("flag"));
            (cells.count("n"), cells.positive_number("share"), cells.numbers::<u32>("list"))
        });
        assert_eq!(flags, [true, true, false, false]);
        let words: Vec<String> = faults.expect_err("faults").iter().map(Fault::words).collect();
        let wanted = [
            "line 4, column `n`: `ten` is not a count",
            "line 4, column `share`: `abc` is not a number",
            "line 4, column `list`: `x` is not a number",
            "line 5, column `flag`: `yes` is neither 0, 1, true nor false",
            "line 5, column `n`: `-1` is not a count",
            "line 5, column `share`: must be above 0, found `0`",
        ];
        assert_eq!(words, wanted);
    }
}
