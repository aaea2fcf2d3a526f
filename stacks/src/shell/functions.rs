//! Functions of a script: what they are made of is read where they are called, and not where they are written.

use std::mem;
use std::rc::Rc;

use super::branches::{Kind, Runs, Status};
use super::cut::{Mark, Piece, Statement};
use super::reader::{Function, Leaves, Reader, Record};
use super::{DEPTH_MAX, LETTERS_MAX, Unreadable, Word};

impl Reader {
    /// Begins to write down the body of the function whose name stands before; what stands in it does not run here.
    pub(super) fn begin_body(&mut self, first: Statement, here: Runs) -> Runs {
        let Some(name) = self.defined.take() else { return here };
        if self.record.is_none() && here.inside(self.branches.runs()) != Runs::No {
            self.record = Some(Record { name, body: vec![first], depth: self.branches.depth() });
        }
        Runs::No
    }

    /// Writes a statement down, where it is one of a body.
    pub(super) fn write_down(&mut self, statement: &Statement) {
        if let Some(record) = &mut self.record {
            record.body.push(statement.clone());
        }
    }

    /// Ends a body whose last part is closed.
    pub(super) fn end_body(&mut self) {
        let depth = self.branches.depth();
        if self.record.as_ref().is_some_and(|record| depth <= record.depth) {
            self.define();
        }
    }

    fn define(&mut self) {
        let Some(Record { name, body, .. }) = self.record.take() else { return };
        let n_letters = body.iter().flat_map(|one| &one.pieces).map(Piece::n_letters).sum::<usize>() + body.len();
        let function = Function { body: body.into(), n_letters, index: self.functions.len(), is_called: false };
        self.functions.insert(name, function);
    }

    /// Whether a word calls a function. One that calls itself is not followed further.
    pub(super) fn calls(&self, name: &str, depth: usize) -> bool {
        depth < DEPTH_MAX && self.functions.contains_key(name) && !self.calling.iter().any(|one| one == name)
    }

    /// Reads a function where it is called, with names in front of the call.
    pub(super) fn call(
        &mut self,
        name: &str,
        (here, is_apart): (Runs, bool),
        (prefix, given): (&[&Piece], Option<Vec<Word>>),
        depth: usize,
    ) -> Result<(), Unreadable> {
        let Some(function) = self.functions.get_mut(name) else { return Ok(()) };
        function.is_called = true;
        let body = Rc::clone(&function.body);
        self.n_called += function.n_letters;
        if self.n_called > LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        let leaves = match here.inside(self.branches.runs()) {
            _ if is_apart => Leaves::Nothing,
            Runs::Unknown if ends_script(&body) => Leaves::Nothing,
            Runs::Unknown => Leaves::Unknown,
            Runs::Yes | Runs::No => Leaves::All,
        };
        self.calling.push(name.to_owned());
        let own = prefix.iter().filter_map(|piece| piece.assigns()).map(|(name, _)| name).collect();
        self.enter(Kind::Call, leaves, own);
        for piece in prefix {
            self.assign(piece, Runs::Yes)?;
        }
        let before = mem::replace(&mut self.values.given, given.filter(|_| !moves_arguments(&body)));
        self.read(&body, depth + 1)?;
        self.values.given = before;
        self.close(Kind::Call, Mark::Next)?;
        self.calling.pop();
        let status = if self.branches.is_condition() { Status::Unknown } else { Status::Command };
        self.end(status, here);
        Ok(())
    }

    /// Reads functions that nothing in the script calls, the last one first: it may call the others. Their commands are marked.
    pub(super) fn read_uncalled(&mut self) -> Result<(), Unreadable> {
        self.define();
        let n_before = self.commands.len();
        while let Some(name) = self.last_uncalled() {
            self.call(&name, (Runs::Yes, true), (&[], None), 0)?;
        }
        for command in &mut self.commands[n_before..] {
            command.is_called = false;
        }
        Ok(())
    }

    fn last_uncalled(&self) -> Option<String> {
        let uncalled = self.functions.iter().filter(|(_, function)| !function.is_called);
        uncalled.max_by_key(|(_, function)| function.index).map(|(name, _)| name.clone())
    }
}

/// Whether a body gives itself other arguments, which nobody follows.
fn moves_arguments(body: &[Statement]) -> bool {
    let moves = |statement: &Statement| {
        let words: Vec<String> = statement.pieces.iter().map(Piece::plain).collect();
        words.iter().any(|word| word == "shift") || words.windows(2).any(|pair| pair[0] == "set" && pair[1] == "--")
    };
    body.iter().any(moves)
}

/// Whether a body ends the whole script, so that nothing behind it sees its names.
fn ends_script(body: &[Statement]) -> bool {
    let firsts = body.iter().rev().filter_map(|statement| statement.pieces.first()).map(Piece::plain);
    firsts.filter(|first| first != "}").take(1).any(|first| first == "exit")
}

#[cfg(test)]
mod tests {
    use super::super::{Command, Unreadable, Word, script};

    fn text_of(command: &Command) -> String {
        command.words.iter().map(Word::text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_function_is_read_where_it_is_called() {
        let texts = |text: &str| script(text).unwrap().iter().map(text_of).collect::<Vec<_>>();
        assert_eq!(texts("f() { run $N; }\nN=2\nf\nN=3\nf"), ["run 2", "run 3"]);
        // One that calls itself is followed once.
        assert_eq!(texts("f() {\n  run 1\n  f\n}\nf"), ["run 1", "f"]);
        let doubled = (1..40).map(|n| format!("f{n}() {{ f{0}; f{0}; }}\n", n - 1)).collect::<String>();
        assert_eq!(script(&format!("f0() {{ run; }}\n{doubled}f39")), Err(Unreadable::Long));
    }

    /// What a shell makes of arguments, with `bash` where it is there.
    #[test]
    fn a_function_has_the_arguments_of_its_call() {
        for (text, expected) in [
            ("f() { run \"$@\"; }\nf -a 2 'b c'", "run|-a|2|b c"),
            ("f() { run $*; }\nf -a 2 'b c'", "run|-a|2|b|c"),
            ("f() { run \"$*\" ${@} ${1} $2x ${3:-4} \"${9}\"; }\nf -a 2", "run|-a 2|-a|2|-a|2x|4|"),
            ("f() { run \"$@\"; }\nf", "run"),
            ("f() { \"$@\"; }\nf run -a 2", "run|-a|2"),
            ("f() { run --a=$1; }\ng() { f $2; run $1; }\ng 1 2", "run|--a=2\nrun|1"),
            ("f() {\n  local A=$1\n  run $A\n}\nf 3\nf 4", "run|3\nrun|4"),
            ("A=7\nf() { run $1; }\nf $A", "run|7"),
        ] {
            let found = script(text).unwrap();
            let words = |one: &Command| one.words.iter().map(Word::text).collect::<Vec<_>>().join("|");
            let found: Vec<String> = found.iter().map(words).collect();
            assert_eq!(found.join("\n"), expected, "{text}");
            let printing = format!("run() {{ local IFS='|'; echo \"run${{1+|}}$*\"; }}\n{text}");
            let Ok(output) = std::process::Command::new("bash").args(["-c", &printing]).output() else { continue };
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{text}");
        }
        // Those of the script, and those that a function moves, nobody knows.
        for text in ["run \"$@\"", "f() { shift; run $1; }\nf 1 2", "f() { run $1; }"] {
            assert!(
                text_of(script(text).unwrap().last().expect("a command")).contains(super::super::UNKNOWN),
                "{text}"
            );
        }
    }

    #[test]
    fn a_function_that_nothing_calls_is_marked() {
        let found = script("a() { run a; }\nb() { N=4; a; run $N; }\nrun c").unwrap();
        let found: Vec<(String, bool)> = found.iter().map(|one| (text_of(one), one.is_called)).collect();
        let expected = [("run c", true), ("run a", false), ("run 4", false)];
        assert_eq!(found, expected.map(|(text, is_called)| (text.to_owned(), is_called)));
    }

    #[test]
    fn a_call_that_only_a_shell_decides_is_followed_inside_alone() {
        let text = "N=4\nf() { N=8; run $N; }\ncase $1 in a) f ;; esac\nrun $N";
        let found = script(text).unwrap();
        assert_eq!(found.iter().map(text_of).collect::<Vec<_>>(), ["run 8", "run 4"]);
        let left: Vec<&str> = found[1].left.iter().map(|left| left.name.as_str()).collect();
        assert_eq!(left, ["N"]);
        // Behind one that ends the script nobody sees its names.
        let text = "N=4\nusage() { N=8; echo usage; exit 1; }\nif [ $# -lt 1 ]; then usage; fi\nrun $N";
        assert_eq!(script(text).unwrap().pop().unwrap().left, []);
    }
}
