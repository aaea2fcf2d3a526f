//! Names that commands of the shell itself give values, and those that sums do. What is not followed makes a name unknown, and leaves no older value.

use std::borrow::Cow;
use std::ops::Range;
use std::slice;

use super::arithmetic;
use super::branches::Runs;
use super::cut::{Dollar, Part, Piece};
use super::reader::Reader;
use super::{Unreadable, Word, is_of_name};

/// Options of `read` behind which a word stands that is no name.
const OF_READ: [char; 7] = ['p', 't', 'n', 'N', 'd', 'u', 'i'];

impl Reader {
    /// What a command gives to names; `text` is that of `<<<`, `prefix` stands in front of it.
    pub(super) fn give(
        &mut self,
        pieces: &[Piece],
        text: Option<&Piece>,
        prefix: &[&Piece],
        here: Runs,
    ) -> Result<(), Unreadable> {
        let Some((first, rest)) = pieces.split_first() else { return Ok(()) };
        match first.plain().as_str() {
            "unset" => self.unset(rest, here),
            "printf" => match rest {
                [option, name, ..] if option.plain() == "-v" => self.unknow(&name.plain(), name.at(), here),
                _ => Ok(()),
            },
            "read" => {
                let is_read = here.inside(self.branches.runs()) == Runs::Yes && self.read_text(rest, text, prefix)?;
                if is_read { Ok(()) } else { self.unknow_all(&names_of_read(rest), first.at(), here) }
            }
            "mapfile" | "readarray" => {
                let last = rest.last().map(Piece::plain).filter(|word| is_name(word));
                self.unknow(&last.unwrap_or_else(|| "MAPFILE".to_owned()), first.at(), here)
            }
            "getopts" => {
                let name = rest.get(1).map(Piece::plain).unwrap_or_default();
                self.unknow_all(&[name, "OPTARG".to_owned(), "OPTIND".to_owned()], first.at(), here)
            }
            "let" => {
                for piece in rest {
                    let text = self.values.whole(piece)?.text();
                    self.compute(&text, piece.at(), slice::from_ref(piece), here)?;
                }
                Ok(())
            }
            _ => match first.assigns_item() {
                Some(name) => self.unknow(&name, first.at(), here),
                None => Ok(()),
            },
        }
    }

    fn unset(&mut self, rest: &[Piece], here: Runs) -> Result<(), Unreadable> {
        if rest.first().is_some_and(|option| option.plain() == "-f") {
            return Ok(());
        }
        for piece in rest {
            let word = self.values.whole(piece)?.text();
            match word.split_once('[') {
                Some((name, _)) => self.unknow(name, piece.at(), here)?,
                None if is_name(&word) => self.assign(&Piece::emptying(&word, piece.at()), here)?,
                None => {}
            }
        }
        Ok(())
    }

    fn unknow_all(&mut self, names: &[String], at: Range<usize>, here: Runs) -> Result<(), Unreadable> {
        names.iter().try_for_each(|name| self.unknow(name, at.clone(), here))
    }

    /// Makes a name one that only a shell knows.
    fn unknow(&mut self, name: &str, at: Range<usize>, here: Runs) -> Result<(), Unreadable> {
        if !is_name(name) {
            return Ok(());
        }
        self.assign(&Piece::giving(name, Dollar::Else, at), here)
    }

    /// Computes a sum and gives names what it assigns. Words that it stands in say on which names it stands.
    pub(super) fn compute(
        &mut self,
        text: &str,
        at: Range<usize>,
        on: &[Piece],
        here: Runs,
    ) -> Result<Option<i64>, Unreadable> {
        let computed = arithmetic::computed(text, &|name: &str| self.values.number(name));
        for (name, value) in computed.assigned {
            let value = value.map_or(Dollar::Else, |number| Dollar::Words { words: vec![digits(number, at.start)] });
            self.assign_on(&Piece::giving(&name, value, at.clone()), on, here)?;
        }
        Ok(computed.value)
    }

    /// Words whose sums have given names what they assign, as those of `${NAME:=…}` have.
    pub(super) fn settled<'p>(&mut self, pieces: &'p [Piece], here: Runs) -> Result<Cow<'p, [Piece]>, Unreadable> {
        if here.inside(self.branches.runs()) == Runs::No || !pieces.iter().any(gives) {
            return Ok(Cow::Borrowed(pieces));
        }
        let mut settled = pieces.to_vec();
        for piece in &mut settled {
            let on = piece.clone();
            for own in piece.list.iter_mut().flatten() {
                self.settle(own, &on, here)?;
            }
            self.settle(piece, &on, here)?;
        }
        Ok(Cow::Owned(settled))
    }

    fn settle(&mut self, piece: &mut Piece, on: &Piece, here: Runs) -> Result<(), Unreadable> {
        for part in &mut piece.parts {
            let Part::Dollar { what, at, .. } = part else { continue };
            let (at, on) = (*at, slice::from_ref(on));
            let words = match &*what {
                Dollar::Sum { text } => {
                    let filled = self.values.filled(text, at, 0)?;
                    self.compute(&filled, at..at + 1, on, here)?.map(|number| vec![digits(number, at)])
                }
                Dollar::Name { name, is_kept: true, .. } => {
                    let words = self.values.value(what, at, 0)?;
                    let given = Piece::giving(name, Dollar::Words { words: words.clone() }, at..at + 1);
                    self.assign_on(&given, on, here)?;
                    Some(words)
                }
                plain => Some(self.values.value(plain, at, 0)?),
            };
            *what = words.map_or(Dollar::Else, |words| Dollar::Words { words });
        }
        Ok(())
    }
}

/// Whether a word gives a name something.
fn gives(piece: &Piece) -> bool {
    let of_part = |part: &Part| match part {
        Part::Dollar { what: Dollar::Sum { text }, .. } => arithmetic::assigns(text),
        Part::Dollar { what: Dollar::Name { is_kept, .. }, .. } => *is_kept,
        _ => false,
    };
    piece.parts.iter().any(of_part) || piece.list.iter().flatten().any(gives)
}

fn digits(number: i64, at: usize) -> Word {
    Word { letters: number.to_string().chars().map(|digit| (digit, at)).collect() }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(is_of_name) && !word.starts_with(|first: char| first.is_ascii_digit())
}

/// Names behind the options of `read`; `REPLY` where there is none.
fn names_of_read(rest: &[Piece]) -> Vec<String> {
    let words: Vec<String> = rest.iter().map(Piece::plain).collect();
    let is_value = |index: usize| index > 0 && words[index - 1].starts_with('-') && words[index - 1].ends_with(OF_READ);
    let names = (0..words.len()).filter(|index| is_name(&words[*index]) && !is_value(*index));
    let names: Vec<String> = names.map(|index| words[index].clone()).collect();
    if names.is_empty() { vec!["REPLY".to_owned()] } else { names }
}

#[cfg(test)]
mod tests {
    use super::super::{UNKNOWN, Word, commands};

    /// The last command of a script with one behind it that shows `N`.
    fn shown(script: &str) -> String {
        let words = commands(&format!("{script}\nrun ${{N[@]}}")).unwrap();
        let last = words.iter().rev().find(|words| words[0].text() == "run").unwrap();
        last[1..].iter().map(Word::text).collect::<Vec<_>>().join(" ")
    }

    /// What bash 5.2 has in `N` behind each.
    #[test]
    fn names_have_what_a_shell_gives_them() {
        for (script, expected) in [
            ("N=4\nN=8 echo hi", "4"),
            ("N=4\nf() { N=8; }", "4"),
            ("N=4\nf() { N=8; }\nf", "8"),
            ("N=4\nfunction f { local N=8; }\nf", "4"),
            ("N=4\nf() {\n  local M=2\n  N=$((M * 4))\n}\nf", "8"),
            ("N=4\nf()\n{\n  N=8\n}\ng() { f; }\ng", "8"),
            ("N=4\nf() ( N=8 )\nf", "4"),
            ("N=4\nf() { N=8; }\nN=2 f", "4"),
            ("N=4\nf() { N=8; }\nf &", "4"),
            ("N=4\nf() { N=8; }\nf > x.log 2>&1", "8"),
            ("N=4\nf() { N=8; }\nf &> x.log", "8"),
            ("N=4\n( N=8 )", "4"),
            ("N=4\n( N=8; N=9 ) && true", "4"),
            ("N=4\necho x | N=8", "4"),
            ("N=4\nN=8 | cat", "4"),
            ("N=4\n{ N=8; } | cat", "4"),
            ("N=4\n{ N=8; }", "8"),
            ("N=4\nfor M in 1; do N=8; done | cat", "4"),
            ("N=4\necho x | while read L; do N=8; done", "4"),
            ("N=4\nN=8 &", "4"),
            ("N=4\ncase a in (a) N=8 ;; esac", "8"),
            ("N=4\n( case a in a) N=8 ;; esac )", "4"),
            ("N=4\nN=$((N++)) true", "5"),
            ("N=4\n((N*=2))", "8"),
            ("N=4\n(( N = N * 2 ))", "8"),
            ("N=4\n: $((N*=2))", "8"),
            ("N=4\nlet \"N*=2\"", "8"),
            ("N=4\nlet N+=1 N*=2", "10"),
            ("N=4\nM=$((N*=2))", "8"),
            ("N=4\n((N++))", "5"),
            ("N=4\n((N > 8 ? N++ : N--))", "3"),
            ("N=4\n((N == 4 && (N = 8)))", "8"),
            ("N=4\nif ((N++ == 4)); then M=1; fi", "5"),
            ("N=4\nunset N\nN=${N:-8}", "8"),
            ("L=(1 2)\nunset L\nL+=(8)\nN=${L[@]}", "8"),
            ("unset N\n: ${N:=8}", "8"),
            ("N=4\n: ${N:=8}", "4"),
            ("declare -i N=4\nN+=2", "6"),
            ("N=$((010))", "8"),
            ("N=$((0x10 | 1))", "17"),
            ("N=$(expr 010 + 1)", "11"),
            ("N=4\nIFS=, read -r N M <<< '8,9'", "8"),
            ("N=4\nIFS=,\nread -r N M <<< '8,9'", "8"),
            ("N=4\nN=8 eval 'M=$N'\n", "4"),
            ("N=1\nN=8 eval 'M=$N'\nN=$M", "8"),
        ] {
            assert_eq!(shown(script), expected, "{script}");
        }
    }

    #[test]
    fn what_is_not_followed_is_unknown_and_not_as_before() {
        for script in [
            "N=4\nprintf -v N \"%d\" 8",
            "N=4\nread N < x",
            "N=4\nread -p 'how many ' N",
            "N=4\nmapfile -t N < x",
            "N=(4)\nN[0]=8",
            "N=4\ngetopts n: N",
            "N=$((08))",
            "N=4\n((N = UNSET_M))",
        ] {
            assert_eq!(shown(script), UNKNOWN.to_string(), "{script}");
        }
    }
}
