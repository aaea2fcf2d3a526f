//! Parts of a script that run or not, or often. A `for` loop over words that are known is followed for its first word; conditions and other loops are not.
//!
//! Behind a loop the values before it stand again.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::{LETTERS_MAX, Letter, Piece, UNKNOWN, Unreadable, Values, Word};

/// Loops of a script that are followed; others are left out, so that no script takes long.
const FOLLOWED_MAX: usize = 64;
/// Loops inside one another that are followed.
const INSIDE_MAX: usize = 4;

/// A loop that was followed for its first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its variable.
    pub name: String,
    /// The word that its variable has.
    pub first: Word,
    /// Words that it runs over.
    pub n_words: usize,
    /// Commands of the script that stand in it, by their numbers.
    pub commands: Range<usize>,
}

impl Loop {
    /// A warning that other words than the first are not read, where there are any and a command stands in the loop.
    pub(crate) fn others(&self, command: usize) -> Option<Finding> {
        let is_said = self.n_words > 1 && self.commands.contains(&command);
        let (name, n, first) = (&self.name, self.n_words, self.first.text());
        let what = format!("the loop over `{name}` is read for the first of its {n} words, `{first}`");
        let help = "put the word that counts first, or write a script for each";
        is_said.then(|| Finding::warning(Code::NotModelled, Some(self.first.at()), what).help(help))
    }
}

/// A part that is open.
enum Open {
    /// A condition, or a loop that is not followed.
    Skipped,
    /// A loop by its number, and the values before it.
    Followed { index: usize, before: Values },
}

/// Parts that are open, and loops that were followed.
#[derive(Default)]
pub(super) struct Parts {
    open: Vec<Open>,
    pub(super) loops: Vec<Loop>,
}

impl Parts {
    /// Whether assignments count here.
    pub(super) fn is_followed(&self) -> bool {
        !self.open.iter().any(|open| matches!(open, Open::Skipped))
    }

    /// Opens a part that begins with these pieces. Gives whether it is a loop that is followed, whose head is no command.
    pub(super) fn open(
        &mut self,
        pieces: &[Piece],
        values: &mut Values,
        n_commands: usize,
    ) -> Result<bool, Unreadable> {
        let is_room = self.loops.len() < FOLLOWED_MAX && self.open.len() < INSIDE_MAX && self.is_followed();
        let head = if is_room { head(pieces, values)? } else { None };
        let Some((name, words)) = head else {
            self.open.push(Open::Skipped);
            return Ok(false);
        };
        let before = values.clone();
        values.put(&name, words[0].clone())?;
        self.open.push(Open::Followed { index: self.loops.len(), before });
        let (first, n_words) = (words[0].clone(), words.len());
        self.loops.push(Loop { name, first, n_words, commands: n_commands..usize::MAX });
        Ok(true)
    }

    /// Closes the last part that is open.
    pub(super) fn close(&mut self, values: &mut Values, n_commands: usize) {
        if let Some(Open::Followed { index, before }) = self.open.pop() {
            self.loops[index].commands.end = n_commands;
            // What a loop added up counts as much as before: it may not be added again and again.
            let letters = values.letters;
            *values = Values { letters, ..before };
        }
    }
}

/// Variable and words of `for NAME in WORDS`, where there are words and all are known.
fn head(pieces: &[Piece], values: &Values) -> Result<Option<(String, Vec<Word>)>, Unreadable> {
    let [first, name, inside, rest @ ..] = pieces else { return Ok(None) };
    let name = name.plain();
    let is_name = !name.is_empty() && name.chars().all(super::is_of_name);
    if first.plain() != "for" || inside.plain() != "in" || !is_name {
        return Ok(None);
    }
    let words = values.fields(rest)?;
    let is_known = !words.is_empty() && !words.iter().any(|word| word.text().contains(UNKNOWN));
    Ok(is_known.then_some((name, words)))
}

impl Values {
    /// Remembers a word of a name.
    fn put(&mut self, name: &str, word: Word) -> Result<(), Unreadable> {
        self.letters += word.letters.len() + 1;
        if self.letters > LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        self.words.insert(name.to_owned(), vec![word]);
        Ok(())
    }

    /// What `read -r NAMES <<< TEXT` puts into its names: parts between the letters of `IFS`, and the rest into the last one.
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
        let is_plain = names.iter().all(|name| !name.is_empty() && name.chars().all(super::is_of_name));
        let Some(text) = text.filter(|_| is_plain && !names.is_empty()) else { return Ok(()) };
        let letters = self.whole(text)?.letters;
        let parts = letters.splitn(names.len(), |letter: &Letter| marks.contains(letter.0));
        let parts: Vec<Word> = parts.map(|letters| Word { letters: letters.to_vec() }).collect();
        for (index, name) in names.into_iter().enumerate() {
            self.put(name, parts.get(index).cloned().unwrap_or_default())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, Stack, import};

    #[test]
    fn words_of_a_loop_that_are_not_read_are_named() {
        let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() };
        let said = |stack: Stack, text: &str| {
            let findings = import(stack, text, &machine).findings;
            findings.iter().filter(|finding| finding.what.contains("the loop over `X`")).count()
        };
        let script = |words: &str, command: &str| format!("for X in {words}; do\n  {command}\ndone\n");
        let train = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 \
                     --tensor-model-parallel-size $X --bf16";
        assert_eq!(said(Stack::Megatron, &script("2 4", train)), 1);
        assert_eq!(said(Stack::Megatron, &script("2", train)), 0);
        assert_eq!(said(Stack::Megatron, &format!("{}{train}\n", script("2 4", "ls"))), 0);
        assert_eq!(said(Stack::Vllm, &script("8000 8001", "vllm serve llama-3-8b --port $X &")), 1);
        let reinforce =
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.nnodes=$X";
        assert_eq!(said(Stack::Verl, &script("1 2", reinforce)), 1);
    }
}
