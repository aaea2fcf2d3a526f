//! Layout strings of a pipeline, as Megatron-LM reads them: `Et*2|(tt|)*5t|tmL`.
//!
//! Stages stand along the path of a micro-batch with `|` between them: `E` the embedding, `t` a layer, `m` a layer that predicts further
//! tokens, `L` the head. `*n` repeats a letter or what stands in parentheses.

use thiserror::Error;

/// Letters of a string after repetition.
const LETTERS_MAX: usize = 100_000;
/// Parentheses inside of each other.
const DEPTH_MAX: usize = 8;

/// What a stage holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Layers.
    pub layers: u32,
    /// Layers that predict further tokens.
    pub predicting: u32,
    /// Embeddings.
    pub embeddings: u32,
    /// Heads.
    pub heads: u32,
}

/// Why a string is no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WrongLayout {
    /// More parentheses close than open.
    #[error("a parenthesis closes that was not opened")]
    NotOpened,
    /// More parentheses open than close.
    #[error("a parenthesis is not closed")]
    NotClosed,
    /// Nobody writes so many parentheses.
    #[error("parentheses lie more than {DEPTH_MAX} deep")]
    Deep,
    /// Nobody has so many layers.
    #[error("it has more than {LETTERS_MAX} letters")]
    Long,
    /// A repetition of nothing.
    #[error("`*` has no number behind it")]
    NoNumber,
    /// A letter without a meaning.
    #[error("`{letter}` is none of E, t, m, L, |")]
    Letter { letter: char },
    /// The embedding stands elsewhere, or twice.
    #[error("the first stage, and no other, holds the embedding `E`")]
    Embedding,
    /// The head stands elsewhere, or twice.
    #[error("the last stage, and no other, holds the head `L`")]
    Head,
}

/// Stages of a string.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<Vec<Held>, WrongLayout> {
    let letters: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace() && *letter != ',').collect();
    let mut next = 0;
    let flat = repeated(&letters, &mut next, 0)?;
    if next < letters.len() {
        return Err(WrongLayout::NotOpened);
    }
    let mut stages = vec![Held::default()];
    for letter in flat {
        let stage = stages.last_mut().expect("never empty");
        match letter {
            'E' => stage.embeddings += 1,
            't' => stage.layers += 1,
            'm' => stage.predicting += 1,
            'L' => stage.heads += 1,
            '|' => stages.push(Held::default()),
            other => return Err(WrongLayout::Letter { letter: other }),
        }
    }
    let n = stages.len();
    let (first, last) = (stages[0], stages[n - 1]);
    let count = |of: fn(&Held) -> u32| stages.iter().map(of).sum::<u32>();
    if first.embeddings != 1 || count(|stage| stage.embeddings) != 1 {
        return Err(WrongLayout::Embedding);
    }
    if last.heads != 1 || count(|stage| stage.heads) != 1 {
        return Err(WrongLayout::Head);
    }
    Ok(stages)
}

/// Letters up to the end or a closing parenthesis, repeated as they say.
fn repeated(letters: &[char], next: &mut usize, depth: usize) -> Result<Vec<char>, WrongLayout> {
    if depth > DEPTH_MAX {
        return Err(WrongLayout::Deep);
    }
    let mut out = Vec::new();
    while let Some(&letter) = letters.get(*next) {
        let group = match letter {
            ')' => return Ok(out),
            '(' => {
                *next += 1;
                let inner = repeated(letters, next, depth + 1)?;
                if letters.get(*next) != Some(&')') {
                    return Err(WrongLayout::NotClosed);
                }
                inner
            }
            other => vec![other],
        };
        *next += 1;
        let times = times(letters, next)?;
        if out.len() + group.len().saturating_mul(times) > LETTERS_MAX {
            return Err(WrongLayout::Long);
        }
        out.extend(group.repeat(times));
    }
    Ok(out)
}

/// The number behind `*`, or 1.
fn times(letters: &[char], next: &mut usize) -> Result<usize, WrongLayout> {
    if letters.get(*next) != Some(&'*') {
        return Ok(1);
    }
    let digits: String = letters[*next + 1..].iter().take_while(|letter| letter.is_ascii_digit()).collect();
    *next += 1 + digits.len();
    digits.parse().map_err(|_| WrongLayout::NoNumber)
}

/// The string of stages with so many layers.
pub fn write(layers: &[u32]) -> String {
    let last = layers.len().saturating_sub(1);
    let stage = |(index, &n): (usize, &u32)| {
        let layers = match n {
            0 => String::new(),
            1 => "t".to_owned(),
            n => format!("t*{n}"),
        };
        format!("{}{layers}{}", if index == 0 { "E" } else { "" }, if index == last { "L" } else { "" })
    };
    layers.iter().enumerate().map(stage).collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[u32]) {
        let layers: Vec<u32> = read(text).unwrap().iter().map(|stage| stage.layers).collect();
        assert_eq!(layers, expected, "{text}");
    }

    #[test]
    fn strings_of_published_tests_hold_their_layers() {
        // Counted by hand; the strings are those of Megatron-LM's functional tests with 13, 14, 14 and 16 layers.
        check("Et|(tt|)*6mL", &[1, 2, 2, 2, 2, 2, 2, 0]);
        check("Et*7|t*7mL", &[7, 7]);
        check("Et*2|(tt|)*5t|tmL", &[2, 2, 2, 2, 2, 2, 1, 1]);
        check("Et*3|(tt|)*6tmL", &[3, 2, 2, 2, 2, 2, 2, 1]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for layers in [vec![3, 2, 1], vec![1, 0, 4, 4], vec![8]] {
            check(&write(&layers), &layers);
        }
    }

    #[test]
    fn wrong_strings_say_what_is_wrong() {
        for (text, word) in [
            ("tt|tL", "embedding"),
            ("Et|t", "head"),
            ("Et|(tt|", "closed"),
            ("Et)|L", "opened"),
            ("Ex|L", "`x`"),
            ("Et*|L", "number"),
            ("Et*999999999|L", "letters"),
            ("((((((((((t))))))))))", "deep"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.to_string().contains(word), "{text}: {why}");
        }
    }
}
