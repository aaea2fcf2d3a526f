//! Cells of CSV.

/// A comma before every cell but the first.
pub fn separate(text: &mut String, at: usize) {
    if at > 0 {
        text.push(',');
    }
}

/// Text of a cell, in quotes where it needs them.
pub fn quoted(text: &mut String, word: &str) {
    if !word.contains([',', '"', '\n', '\r']) {
        return text.push_str(word);
    }
    text.push('"');
    text.push_str(&word.replace('"', "\"\""));
    text.push('"');
}
