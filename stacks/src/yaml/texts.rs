//! Texts of deeper lines behind `|` and `>`.
//!
//! Source: YAML 1.2.2, sections 8.1.1 to 8.1.3. The end of a line of a folded text is a blank, but not beside lines that begin with a blank. Of empty lines
//! each is the end of a line. Blanks at the ends of lines and of the text are left out: no reader of flags tells them apart.

/// A text whose lines are being read.
#[derive(Debug)]
pub(super) struct Text {
    is_folded: bool,
    /// Indentation of the key or the dash in front.
    parent: usize,
    /// Indentation of its own lines, where it is known.
    own: Option<usize>,
    lines: Vec<String>,
}

impl Text {
    /// One that begins with such a mark: `|`, `>-`, `|2`.
    pub(super) fn of(mark: &str, parent: usize) -> Option<Self> {
        let rest = mark.strip_prefix(['|', '>'])?;
        let is_mark = rest.chars().all(|letter| matches!(letter, '-' | '+' | '1'..='9'));
        let said = rest.chars().find_map(|letter| letter.to_digit(10)).and_then(|n| usize::try_from(n).ok());
        let own = said.map(|n| parent + n);
        is_mark.then(|| Self { is_folded: mark.starts_with('>'), parent, own, lines: Vec::new() })
    }

    /// Takes a line, where it is one of the text.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let line = line.trim_end();
        let indentation = line.len() - line.trim_start_matches(' ').len();
        let is_own = line.is_empty() || self.own.map_or(indentation > self.parent, |own| indentation >= own);
        if is_own {
            if !line.is_empty() {
                self.own.get_or_insert(indentation);
            }
            self.lines.push(line.get(self.own.unwrap_or(0)..).unwrap_or_default().to_owned());
        }
        is_own
    }

    /// The whole text.
    pub(super) fn folded(&self) -> String {
        let text = if self.is_folded { fold(&self.lines) } else { self.lines.join("\n") };
        text.trim_end().to_owned()
    }
}

/// Lines with blanks in the place of their ends.
fn fold(lines: &[String]) -> String {
    let mut text = String::new();
    let (mut before, mut n_empty) = (None, 0);
    for line in lines {
        if line.is_empty() {
            n_empty += 1;
            continue;
        }
        let is_deep = |line: &str| line.starts_with([' ', '\t']);
        let n_ends = n_empty + usize::from(before.is_some_and(|before: &str| is_deep(before) || is_deep(line)));
        match n_ends {
            0 if before.is_some() => text.push(' '),
            n => text.extend(std::iter::repeat_n('\n', n)),
        }
        text.push_str(line);
        (before, n_empty) = (Some(line.as_str()), 0);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::yaml::entries;

    /// Examples 7.4, 8.2, 8.7, 8.10 to 8.12 of YAML 1.2.2, without blanks at the ends.
    #[test]
    fn texts_are_those_of_the_specification() {
        for (text, expected) in [
            ("a: |\n literal\n \ttext\n\n", "literal\n\ttext"),
            ("a: >\n\n folded\n text\n\n\n", "\nfolded text"),
            (
                "a: >\n\n folded\n line\n\n next\n line\n   * bullet\n\n   * list\n   * lines\n\n last\n line\n\n# Comment\n",
                "\nfolded line\nnext line\n  * bullet\n\n  * list\n  * lines\n\nlast line",
            ),
            ("- |\n detected\n- >\n \n  \n  # detected\n- |1\n  explicit\n", "detected"),
            ("a: \"implicit block key\"\n", "implicit block key"),
        ] {
            assert_eq!(entries(text).expect("YAML")[0].value, expected, "{text}");
        }
        let found = entries("- |\n detected\n- >\n \n  \n  # detected\n- |1\n  explicit\n").expect("YAML");
        let values: Vec<&str> = found.iter().map(|entry| entry.value.as_str()).collect();
        assert_eq!(values, ["detected", "\n\n# detected", " explicit"]);
    }

    /// Examples 7.5 and 7.9 of YAML 1.2.2, as far as words have them.
    #[test]
    fn words_in_quotes_are_folded() {
        for (text, expected) in [
            ("a: \"folded \n  to a space,\n\n  to a line feed, or \\\n  non-content: no key\" # why\nb: 1", {
                "folded to a space,\nto a line feed, or non-content: no key"
            }),
            ("a: ' 1st non-empty\n\n   2nd: it''s non-empty '\nb: 1", " 1st non-empty\n2nd: it's non-empty "),
        ] {
            let found = entries(text).expect("YAML");
            assert_eq!((found[0].value.as_str(), found.len()), (expected, 2), "{text}");
        }
    }

    #[test]
    fn keys_behind_a_text_of_an_item_are_keys() {
        let found = entries("l:\n- a: >-\n    run\n    on\n  b: 1\n-\n  a: |\n    x\n      y\n").expect("YAML");
        let found: Vec<(String, &str, bool)> =
            found.iter().map(|entry| (entry.path.join("/"), entry.value.as_str(), entry.begins_item)).collect();
        let of = |path: &str, value, begins| (path.to_owned(), value, begins);
        let expected =
            [of("l", "", false), of("l/-/a", "run on", true), of("l/-/b", "1", false), of("l/-/a", "x\n  y", true)];
        assert_eq!(found, expected);
    }
}
