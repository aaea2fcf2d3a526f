//! The product's part of a source: without items that only tests have, wherever they stand.
//!
//! It reads Rust as far as that needs: strings, letters and comments have no brackets, and an item ends at its semicolon or with its block.

/// What a test item has in front.
const MARK: &str = "#[cfg(test)]";

/// A source without its test items. Lines keep their places: those of a test item are left out whole.
pub(crate) fn product(text: &str) -> String {
    let plain = without_quotes(text);
    let mut kept = String::new();
    let mut at = 0;
    while let Some(found) = plain[at..].find(MARK) {
        let start = at + found;
        kept.push_str(text[at..start].trim_end_matches(' '));
        at = end_of_item(&plain, start + MARK.len());
        // What is left of the item's last line is its end.
        if text[at..].starts_with('\n') {
            at += 1;
        }
    }
    kept + &text[at..]
}

/// Where the item ends that begins here, in a text without quotes.
fn end_of_item(plain: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, letter) in plain[start..].char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if letter == '}' && depth == 0 {
                    return start + at + 1;
                }
            }
            ';' if depth == 0 => return start + at + 1,
            _ => {}
        }
    }
    plain.len()
}

/// The same length of text, with blanks in the place of comments and of what stands in quotation marks.
fn without_quotes(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = quoted(bytes, at);
        plain[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end.max(at + 1);
    }
    String::from_utf8(plain).expect("whole letters are blanks")
}

/// One behind the comment, string or letter that begins here; the place itself where none does.
fn quoted(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let find = |what: &[u8], from: usize| {
        rest[from..].windows(what.len()).position(|part| part == what).map_or(bytes.len(), |n| at + from + n)
    };
    let closed = |what: &[u8], from: usize| (find(what, from) + what.len()).min(bytes.len());
    // A name may end with these letters.
    let is_inside = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => find(b"\n", 2),
        [b'/', b'*', ..] => closed(b"*/", 2),
        [b'"', ..] => at + 1 + string(&rest[1..]),
        [b'r', b'"' | b'#', ..] if !is_inside || bytes[at - 1] == b'b' => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            // A raw name, as `r#type`, is no string.
            if rest.get(1 + hashes) != Some(&b'"') {
                return at;
            }
            closed(&[b"\"".as_slice(), &vec![b'#'; hashes]].concat(), 2 + hashes)
        }
        [b'\'', b'\\', ..] => closed(b"'", 3),
        [b'\'', ..] => letter(bytes, at),
        _ => at,
    }
}

/// Length of a string behind its first quotation mark, with the last one.
fn string(rest: &[u8]) -> usize {
    let mut is_escaped = false;
    for (n, byte) in rest.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return n + 1,
            _ => {}
        }
    }
    rest.len()
}

/// One behind a letter in quotation marks; a lifetime is none.
fn letter(bytes: &[u8], at: usize) -> usize {
    let width = match bytes.get(at + 1) {
        Some(first) if *first >= 0xf0 => 4,
        Some(first) if *first >= 0xe0 => 3,
        Some(first) if *first >= 0xc0 => 2,
        _ => 1,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') { at + width + 2 } else { at }
}

#[test]
fn test_items_are_left_out_wherever_they_stand() {
    let cases = [
        ("a;\n#[cfg(test)]\nmod tests;\nb;\n", "a;\nb;\n"),
        ("a;\n#[cfg(test)]\nmod tests {\n    fn f() { \"}\" }\n}\nb;\n", "a;\nb;\n"),
        ("#[cfg(test)]\n#[expect(x)]\npub(crate) fn f(n: [u8; 2]) {\n    g(';');\n}\nb;\n", "b;\n"),
        ("    #[cfg(test)]\n    pub const A: &str = r#\"}\";\"#;\n    b;\n", "    b;\n"),
        ("#[cfg(test)]\nimpl<'a> A<'a> {}\nfn b<'a>(c: &'a str) {}\n", "fn b<'a>(c: &'a str) {}\n"),
        ("let a = \"#[cfg(test)]\";\n// #[cfg(test)]\nb;\n", "let a = \"#[cfg(test)]\";\n// #[cfg(test)]\nb;\n"),
    ];
    for (text, wanted) in cases {
        assert_eq!(product(text), wanted, "{text}");
    }
}

#[test]
fn every_source_keeps_its_brackets() {
    // An item that is cut in its middle would leave one over.
    for path in super::sources() {
        let text = std::fs::read_to_string(&path).expect("a source");
        let plain = without_quotes(&product(&text));
        for [open, close] in [['{', '}'], ['(', ')'], ['[', ']']] {
            let n = |letter| plain.matches(letter).count();
            assert_eq!(n(open), n(close), "{}", path.display());
        }
    }
}
