//! What `read -r NAMES <<< TEXT` puts into its names.

use super::cut::Piece;
use super::{LETTERS_MAX, Letter, Unreadable, Values, Word, is_of_name};

impl Values {
    /// Parts of the text between the letters of `IFS`, and the rest into the last name.
    pub(super) fn read(&mut self, pieces: &[Piece], text: Option<&Piece>) -> Result<(), Unreadable> {
        let words: Vec<String> = pieces.iter().map(Piece::plain).collect();
        let [first, rest @ ..] = words.as_slice() else { return Ok(()) };
        if first != "read" {
            return Ok(());
        }
        // Set in front of the command, it holds for it alone.
        let marks = self.words.remove("IFS").and_then(|words| words.first().map(Word::text));
        let marks = marks.unwrap_or_else(|| " \t\n".to_owned());
        let names: Vec<&String> = rest.iter().filter(|word| *word != "-r").collect();
        let is_plain = names.iter().all(|name| !name.is_empty() && name.chars().all(is_of_name));
        let Some(text) = text.filter(|_| is_plain && !names.is_empty()) else { return Ok(()) };
        let letters = self.whole(text)?.letters;
        let parts = letters.splitn(names.len(), |letter: &Letter| marks.contains(letter.0));
        let parts: Vec<Word> = parts.map(|letters| Word { letters: letters.to_vec() }).collect();
        for (index, name) in names.into_iter().enumerate() {
            let word = parts.get(index).cloned().unwrap_or_default();
            self.letters += word.letters.len() + 1;
            if self.letters > LETTERS_MAX {
                return Err(Unreadable::Long);
            }
            self.put(name, word);
        }
        Ok(())
    }
}
