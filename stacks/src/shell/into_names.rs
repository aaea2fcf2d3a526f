//! What `read -r NAMES <<< TEXT` puts into its names.

use super::cut::Piece;
use super::reader::Reader;
use super::{LETTERS_MAX, Letter, Unreadable, Word, is_of_name};

impl Reader {
    /// Parts of the text between the letters of `IFS`, and the rest into the last name; whether such words are read.
    pub(super) fn read_text(
        &mut self,
        rest: &[Piece],
        text: Option<&Piece>,
        prefix: &[&Piece],
    ) -> Result<bool, Unreadable> {
        let rest: Vec<String> = rest.iter().map(Piece::plain).collect();
        // Set in front of the command, it holds for it alone.
        let own = prefix.iter().rev().find(|piece| piece.assigns().is_some_and(|(name, _)| name == "IFS"));
        let own = own.map(|piece| self.values.assigned(piece)).transpose()?;
        let marks = own.as_deref().unwrap_or_else(|| self.values.words_of("IFS")).first().map(Word::text);
        let marks = marks.unwrap_or_else(|| " \t\n".to_owned());
        let names: Vec<&String> = rest.iter().filter(|word| *word != "-r").collect();
        let is_plain = names.iter().all(|name| !name.is_empty() && name.chars().all(is_of_name));
        let Some(text) = text.filter(|_| is_plain && !names.is_empty()) else { return Ok(false) };
        let letters = self.values.whole(text)?.letters;
        let parts = letters.splitn(names.len(), |letter: &Letter| marks.contains(letter.0));
        let parts: Vec<Word> = parts.map(|letters| Word { letters: letters.to_vec() }).collect();
        for (index, name) in names.into_iter().enumerate() {
            let word = parts.get(index).cloned().unwrap_or_default();
            self.values.letters += word.letters.len() + 1;
            if self.values.letters > LETTERS_MAX {
                return Err(Unreadable::Long);
            }
            self.note(name)?;
            self.values.put(name, word);
            self.uncertain.remove(name);
        }
        Ok(true)
    }
}
