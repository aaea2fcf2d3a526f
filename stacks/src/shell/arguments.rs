//! Arguments of a script, `$1` or `${10}`: a run without them has none, which decides conditions that ask whether they are there.

use std::collections::BTreeSet;

/// Bytes where arguments of the script stand; nothing where it gives itself others (`set --`). What functions are given is not the script's.
pub(super) fn places(script: &str) -> BTreeSet<usize> {
    if script.split_inclusive('\n').any(sets) {
        return BTreeSet::new();
    }
    all(script).into_iter().filter(|(_, is_of_function)| !is_of_function).map(|(at, _)| at).collect()
}

/// Whether an argument that stands at a byte is one of a function.
pub(crate) fn is_of_function(script: &str, at: usize) -> bool {
    all(script).contains(&(at, true))
}

/// Bytes where arguments stand, and whether they are those of a function.
fn all(script: &str) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    let (mut start, mut end_of_function): (usize, Option<String>) = (0, None);
    for line in script.split_inclusive('\n') {
        let at = start;
        start += line.len();
        let is_inside = end_of_function.is_some() || is_function(line);
        match &end_of_function {
            Some(end) if line.starts_with(end.as_str()) => end_of_function = None,
            None if is_inside && !line.trim_end().ends_with('}') => {
                let indent: String = line.chars().take_while(|letter| letter.is_whitespace()).collect();
                end_of_function = Some(indent + "}");
            }
            _ => {}
        }
        let places = line.match_indices('$').filter(|(index, _)| is_argument(&line[index + 1..]));
        found.extend(places.map(|(index, _)| (at + index, is_inside)));
    }
    found
}

/// Whether what stands behind a dollar is the number of an argument.
fn is_argument(rest: &str) -> bool {
    let number = rest.strip_prefix('{').unwrap_or(rest);
    number.starts_with(|first: char| ('1'..='9').contains(&first))
}

/// Whether a line gives the script arguments of its own.
fn sets(line: &str) -> bool {
    line.trim_start().starts_with("set -- ")
}

/// Whether a line begins a function: `name() {`, `function name`.
fn is_function(line: &str) -> bool {
    let line = line.trim();
    let is_named = line.split_once("()").is_some_and(|(name, rest)| {
        let name = name.trim();
        let is_name = !name.is_empty() && name.chars().all(|letter| super::is_of_name(letter) || letter == '-');
        is_name && (rest.trim().is_empty() || rest.trim_start().starts_with('{'))
    });
    is_named || line.starts_with("function ")
}

#[cfg(test)]
mod tests {
    use super::super::{Word, commands};
    use super::*;

    #[test]
    fn arguments_of_functions_are_not_those_of_the_script() {
        let script = "A=$1\nf() {\n  B=${2}\n}\nfunction g {\n  C=$3\n}\nD=${10} $0 $$ $X\n";
        let found: Vec<&str> = places(script).into_iter().map(|at| &script[at..at + 3]).collect();
        assert_eq!(found, ["$1\n", "${1"]);
        assert_eq!(places("set -- a b\nA=$1\n"), BTreeSet::new());
    }

    #[test]
    fn a_run_without_arguments_takes_what_the_script_has_in_their_place() {
        for (condition, expected) in [
            ("[ \"$Z\" == \"\" ]", "3"),
            ("[ -z \"$Z\" ]", "3"),
            ("[ -z $Z ]", "3"),
            ("[[ ! -n $Z ]]", "3"),
            ("[ x$Z = x ]", "3"),
            ("[ ! \"$Z\" ]", "3"),
            // Which argument is asked for, nobody knows.
            ("[ \"$Z\" = 2 ]", "\u{fffc}"),
            ("[ $Z -gt 2 ]", "\u{fffc}"),
            // Arguments that are there are what they are.
            ("[ -n \"$Z\" ]", "\u{fffc}"),
            ("[ \"$Z\" != \"\" ]", "\u{fffc}"),
        ] {
            let script = format!("Z=$2\nif {condition}; then\n  Z=3\nfi\nrun $Z");
            let last = commands(&script).unwrap().pop().unwrap();
            assert_eq!(last.iter().map(Word::text).collect::<Vec<_>>(), ["run", expected], "{condition}");
        }
        let usage = "while [[ \"$1\" != \"\" ]]; do case $1 in -m) M=$2;; esac; shift; done\nM=a\nrun $M";
        let left = super::super::script(usage).unwrap().pop().unwrap().left;
        assert_eq!(left, []);
    }
}
