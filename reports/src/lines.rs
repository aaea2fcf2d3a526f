//! Sentences in lines of a page.

/// Widest line of what is no table of results, in characters.
pub(crate) const PAGE: usize = 100;

/// Characters between columns, and before lines that go on.
pub(crate) const GAP: usize = 2;

/// A text whose lines are no wider than a page.
pub fn paged(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let sentence = line.trim_start();
        if line.chars().count() <= PAGE {
            out += &format!("{line}\n");
        } else {
            wrap(&mut out, sentence, &line[..line.len() - sentence.len()], PAGE);
        }
    }
    out
}

/// Breaks a sentence at spaces; continuation lines are indented by two more.
pub(crate) fn wrap(out: &mut String, sentence: &str, indent: &str, room: usize) {
    let mut current = indent.to_owned();
    let mut is_empty = true;
    for word in sentence.split(' ').filter(|word| !word.is_empty()) {
        for piece in pieces(word, room - indent.len() - GAP) {
            if !is_empty && current.chars().count() + 1 + piece.chars().count() > room {
                out.push_str(&current);
                out.push('\n');
                current = format!("{indent}  ");
                is_empty = true;
            }
            if !is_empty {
                current.push(' ');
            }
            current.push_str(&piece);
            is_empty = false;
        }
    }
    out.push_str(&current);
    out.push('\n');
}

/// A word cut where it is longer than a line.
fn pieces(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(width).map(|chunk| chunk.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_words_indents_and_empty_lines() {
        let long = ["layers 0..15 of a node"; 12].join(", ");
        let text = format!("short\n\n  {long}\n[parallel]\ntp = 2\n");
        let paged = paged(&text);
        assert!(paged.lines().all(|line| line.chars().count() <= PAGE), "{paged}");
        assert!(paged.starts_with("short\n\n  layers 0..15") && paged.ends_with("[parallel]\ntp = 2\n"), "{paged}");
        assert_eq!(paged.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        assert_eq!(super::paged(""), "");
    }
}
