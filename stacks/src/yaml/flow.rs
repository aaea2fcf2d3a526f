//! Values in braces and brackets as keys of their own (YAML 1.2.2, section 7.4), and files that are one such value, as JSON is.

use std::ops::Range;

use super::{DEPTH_MAX, Entry, Unreadable, closing, entries, unquoted};

/// Every key of a file, in order, those of values in braces too. A list of words stays one value.
///
/// # Errors
/// As those of `entries`.
pub(crate) fn unfolded(text: &str) -> Result<Vec<Entry>, Unreadable> {
    if let Some(found) = document(text) {
        return Ok(found);
    }
    let mut found = Vec::new();
    for entry in entries(text)? {
        let inner = Some(&entry).filter(|entry| entry.is_plain && begins(&entry.value)).and_then(|entry| {
            let flow = Flow { text: &entry.value, place: Some(entry.at.clone()), ..Flow::default() };
            flow.whole(entry.path.clone(), entry.begins_item)
        });
        match inner {
            Some(inner) => found.extend(inner),
            None => found.push(entry),
        }
    }
    Ok(found)
}

/// The keys of a file that is one value in braces.
fn document(text: &str) -> Option<Vec<Entry>> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let body = line.trim();
        if !(body.is_empty() || body.starts_with('#') || body.starts_with("---")) {
            break;
        }
        start += line.len();
    }
    let start = start + text[start..].find(|letter: char| !letter.is_whitespace())?;
    if !begins(&text[start..]) {
        return None;
    }
    Flow { text, at: start, ..Flow::default() }.whole(Vec::new(), false)
}

/// Whether a value is one in braces or brackets; templates of charts begin with two braces.
fn begins(value: &str) -> bool {
    value.starts_with(['{', '[']) && !value.starts_with("{{")
}

/// A value that is being read.
#[derive(Default)]
struct Flow<'t> {
    text: &'t str,
    at: usize,
    /// Where its entries stand, where that is not where they are read.
    place: Option<Range<usize>>,
    found: Vec<Entry>,
}

impl Flow<'_> {
    /// Entries of the whole text; `None` where it is no such value.
    fn whole(mut self, mut path: Vec<String>, begins_item: bool) -> Option<Vec<Entry>> {
        let start = self.at;
        self.node(&mut path, start, begins_item)?;
        self.skip();
        (self.at == self.text.len()).then_some(self.found)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn next_is(&self, letter: char) -> bool {
        self.rest().starts_with(letter)
    }

    /// Goes past blanks and remarks.
    fn skip(&mut self) {
        loop {
            self.at += self.rest().len() - self.rest().trim_start().len();
            if !self.next_is('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn push(&mut self, path: &[String], value: String, start: usize, begins_item: bool) {
        let at = self.place.clone().unwrap_or(start..self.at);
        self.found.push(Entry { path: path.to_vec(), value, at, begins_item, is_plain: false });
    }

    /// A value behind such keys; an item of a list has the key `-`.
    fn node(&mut self, path: &mut Vec<String>, start: usize, begins_item: bool) -> Option<()> {
        self.skip();
        if path.len() >= DEPTH_MAX {
            return None;
        }
        match self.rest().chars().next()? {
            '{' => {
                let is_item = path.last().is_none_or(|key| key == "-");
                if !is_item {
                    self.push(path, String::new(), start, begins_item);
                }
                self.keys(path, is_item && begins_item)
            }
            '[' => self.list(path, start, begins_item),
            _ => {
                let value = self.word()?;
                self.push(path, value, start, begins_item);
                Some(())
            }
        }
    }

    /// Keys in braces; the first may begin an item.
    fn keys(&mut self, path: &mut Vec<String>, mut begins_item: bool) -> Option<()> {
        self.at += 1;
        loop {
            self.skip();
            if self.next_is('}') {
                self.at += 1;
                return Some(());
            }
            let start = self.at;
            path.push(self.word()?);
            self.skip();
            let is_one = self.next_is(':');
            if is_one {
                self.at += 1;
                self.skip();
            }
            if is_one && !self.rest().starts_with([',', '}']) {
                self.node(path, start, begins_item)?;
            } else {
                self.push(path, String::new(), start, begins_item);
            }
            path.pop();
            begins_item = false;
            self.comma('}')?;
        }
    }

    /// A list: of words it is one value.
    fn list(&mut self, path: &mut Vec<String>, start: usize, begins_item: bool) -> Option<()> {
        let (from, before) = (self.at, self.found.len());
        self.push(path, String::new(), start, begins_item);
        self.at += 1;
        path.push("-".to_owned());
        let mut has_inner = false;
        loop {
            self.skip();
            if self.next_is(']') {
                self.at += 1;
                break;
            }
            has_inner |= self.rest().starts_with(['{', '[']);
            self.node(path, self.at, true)?;
            self.comma(']')?;
        }
        path.pop();
        if !has_inner {
            self.found.truncate(before);
            let value = self.text[from..self.at].to_owned();
            self.push(path, value, start, begins_item);
        }
        Some(())
    }

    /// Goes past a comma, or up to the end of what is open.
    fn comma(&mut self, end: char) -> Option<()> {
        self.skip();
        if self.next_is(',') {
            self.at += 1;
            return Some(());
        }
        self.next_is(end).then_some(())
    }

    /// A word, with or without quotes.
    fn word(&mut self) -> Option<String> {
        let rest = self.rest();
        if rest.starts_with(['"', '\'']) {
            let word = &rest[..=closing(rest)?];
            let (value, len) = (unquoted(word), word.len());
            self.at += len;
            return Some(value);
        }
        let mut depth = 0_usize;
        let end = rest.char_indices().find(|(at, letter)| {
            let behind = rest[at + letter.len_utf8()..].chars().next();
            match letter {
                '{' | '[' => depth += 1,
                '}' | ']' if depth > 0 => depth -= 1,
                ':' => return behind.is_none_or(|next| next.is_whitespace() || [',', '}', ']'].contains(&next)),
                ',' | '}' | ']' => return depth == 0,
                letter if letter.is_whitespace() => return behind == Some('#'),
                _ => {}
            }
            false
        });
        let end = end.map_or(rest.len(), |(at, _)| at);
        let value = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        self.at += end;
        (end > 0).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        super::super::tests::are(&unfolded(text).expect("YAML"), expected, text);
    }

    /// Examples 7.13 to 7.15 and 7.20 of YAML 1.2.2, and what people write.
    #[test]
    fn values_in_braces_are_keys() {
        check(
            "m: {one : two , three: four , }\nn: {five: six,seven : eight}\n",
            &[("m", ""), ("m/one", "two"), ("m/three", "four"), ("n", ""), ("n/five", "six"), ("n/seven", "eight")],
        );
        check(
            "a: {uri: \"hf://x/y\", n.com/gpu.product: A-B}",
            &[("a", ""), ("a/uri", "hf://x/y"), ("a/n.com/gpu.product", "A-B")],
        );
        check(
            "l:\n- {a: 1, b: [x, 'y z']}\n- {a: {c: 2}}",
            &[("l", ""), ("l/-/a", "1"), ("l/-/b", "[x, 'y z']"), ("l/-/a", ""), ("l/-/a/c", "2")],
        );
        check(
            "a: [ # why\n  {b: ${X},\n   c: }, d]\ne: 1",
            &[("a", ""), ("a/-/b", "${X}"), ("a/-/c", ""), ("a/-", "d"), ("e", "1")],
        );
        // Words in quotes, texts and templates are none.
        check(
            "a: '{b: 1}'\nc: {{ .Values.d }}\ne: |\n  {f: 1}",
            &[("a", "{b: 1}"), ("c", "{{ .Values.d }}"), ("e", "{f: 1}")],
        );
    }

    #[test]
    fn a_file_of_json_has_keys_with_places() {
        let text = "{\"kind\":\"List\",\n \"items\": [{\"a\": [\"x\", \"y: z\"], \"n\": 2}, {\"a\": {}}]}\n";
        check(
            text,
            &[
                ("kind", "List"),
                ("items", ""),
                ("items/-/a", "[\"x\", \"y: z\"]"),
                ("items/-/n", "2"),
                ("items/-/a", ""),
            ],
        );
        let found = unfolded(text).expect("JSON");
        assert_eq!(&text[found[3].at.clone()], "\"n\": 2");
        let begins: Vec<bool> = found.iter().map(|entry| entry.begins_item).collect();
        assert_eq!(begins, [false, false, true, false, true]);
    }

    #[test]
    fn brackets_inside_of_brackets_are_refused_or_left() {
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(unfolded(&deep).expect("YAML").len(), 1);
        assert_eq!(document(&"{a: ".repeat(100)), None);
        assert_eq!(document("{a: 1"), None);
    }
}
