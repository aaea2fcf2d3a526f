//! A launch script as the commands that it would run: variables, arrays and arithmetic are substituted, nothing is executed.
//!
//! Assignments of the script itself are followed in order. Of conditions whose sides the script says the branch that runs is followed, of a loop its
//! first value. Under other conditions the value before stands, and each command knows what it uses of that.
//! What cannot be known becomes `UNKNOWN` in the text. Every letter keeps its byte in the script, so findings point where it was written.

mod arguments;
mod arithmetic;
mod branches;
mod conditions;
mod cut;
mod expand;
mod follow;
mod functions;
mod into_names;
mod reader;
mod scopes;
mod sets;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) use arguments::is_of_function;
pub use uses::{Left, Why};

/// Stands for text that only a shell, an environment or a caller knows.
pub const UNKNOWN: char = '\u{fffc}';
/// Letters that all values and commands of a script may have after substitution.
const LETTERS_MAX: usize = 1 << 20;
/// Substitutions inside substitutions.
const DEPTH_MAX: usize = 32;
/// Letters that the words of all commands may have.
const ALL_LETTERS_MAX: usize = 16 << 20;
/// Words in front of a command that say nothing of it.
const IN_FRONT: [&str; 8] = ["exec", "time", "nohup", "command", "sudo", "!", "env", "coproc"];
/// Words in front of assignments, which may have options of their own.
const DECLARING: [&str; 5] = ["export", "declare", "local", "readonly", "typeset"];

/// Beginnings of variables that servers and their libraries read, and of those that say how many processes start and which devices they see.
const READ: [&str; 15] = [
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "TRTLLM_",
    "TLLM_",
    "LMCACHE_",
    "NCCL_",
    "CUDA_LAUNCH_",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "NPROC_PER_NODE",
    "NNODES",
    "NGPU",
    "CONFIG",
];

/// Whether a word tells a shell to run the next one: `-c`, `-lc`, `-ec`.
pub(crate) fn runs_text(word: &str) -> bool {
    let letters = word.strip_prefix('-');
    letters.is_some_and(|letters| letters.contains('c') && letters.chars().all(|letter| "celxu".contains(letter)))
}

/// A letter and the byte where it stands in the script.
type Letter = (char, usize);

/// What letters spell.
fn spelled(letters: &[Letter]) -> String {
    letters.iter().map(|(letter, _)| *letter).collect()
}

/// A word of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    letters: Vec<Letter>,
}

impl Word {
    /// Its text; `UNKNOWN` stands for what cannot be known.
    pub fn text(&self) -> String {
        spelled(&self.letters)
    }

    /// Bytes of the script from its first letter to its last, where they stand together.
    pub fn at(&self) -> Range<usize> {
        let Some((_, start)) = self.letters.first() else { return 0..0 };
        let together = self.letters.iter().zip(self.letters.iter().skip(1)).take_while(|(a, b)| b.1 > a.1);
        let end = together.last().map_or_else(|| end_of(&self.letters[0]), |(_, last)| end_of(last));
        *start..end
    }

    /// Its words, where it is a whole command in quotes: that command has quotes of its own.
    pub fn cut(&self) -> Vec<Self> {
        self.cut_as_commands().unwrap_or_else(|_| {
            let words = self.letters.split(|(letter, _)| letter.is_whitespace());
            words.filter(|letters| !letters.is_empty()).map(|letters| Self { letters: letters.to_vec() }).collect()
        })
    }

    fn cut_as_commands(&self) -> Result<Vec<Self>, Unreadable> {
        let statements = cut::statements(self.letters.clone(), 0)?;
        let none = Values::default();
        let words: Result<Vec<Vec<Self>>, Unreadable> =
            statements.iter().map(|statement| none.fields(&statement.pieces)).collect();
        Ok(words?.concat())
    }
}

const fn end_of(letter: &Letter) -> usize {
    // What stands for something unknown is as long as its dollar.
    if letter.0 == UNKNOWN { letter.1 + 1 } else { letter.1 + letter.0.len_utf8() }
}

/// Values of the script so far.
#[derive(Clone, Debug, Default)]
struct Values {
    words: BTreeMap<String, Vec<Word>>,
    /// Names that programs see.
    exported: BTreeSet<String>,
    /// What the function that is being read is given, where that is followed.
    given: Option<Vec<Word>>,
    /// Bytes where arguments of the script stand.
    arguments: BTreeSet<usize>,
    letters: usize,
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether a letter may stand in a name.
const fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// A command of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its words.
    pub words: Vec<Word>,
    /// What it uses and is not followed.
    pub left: Vec<Left>,
    /// Variables that servers, their libraries and launchers read, as they stand when it runs.
    pub environment: Vec<(String, Word)>,
    /// Whether it runs; a command of a function that nothing in the script calls does not, unless something outside calls it.
    pub is_called: bool,
}

/// Commands of a script, in order; without those under conditions that are false.
///
/// # Errors
/// Why it cannot be read: a quote without an end, or more text than anybody writes.
pub fn script(script: &str) -> Result<Vec<Command>, Unreadable> {
    follow::commands(script)
}

/// Commands of a script, each with its words alone.
///
/// # Errors
/// As those of `script`.
pub fn commands(text: &str) -> Result<Vec<Vec<Word>>, Unreadable> {
    Ok(script(text)?.into_iter().map(|command| command.words).collect())
}

/// Why a script cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A quote, a brace or a bracket has no end.
    #[error("`{what}` has no end")]
    Open {
        /// What was opened.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// The text grows too long.
    #[error("its text grows beyond {LETTERS_MAX} letters")]
    Long,
    /// Substitutions lie too deep inside each other.
    #[error("substitutions lie more than {DEPTH_MAX} deep")]
    Deep,
}

impl Unreadable {
    /// Where, if it has a place.
    pub fn at(&self) -> Option<Range<usize>> {
        match self {
            Self::Open { at, .. } => Some(*at..*at + 1),
            Self::Long | Self::Deep => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(script: &str, expected: &[&[&str]]) {
        let found: Vec<Vec<String>> =
            commands(script).unwrap().iter().map(|words| words.iter().map(Word::text).collect()).collect();
        assert_eq!(found, expected, "{script}");
    }

    #[test]
    fn variables_arrays_and_sums_are_substituted() {
        check(
            "A=2\nB=$((A*4+1))\nD=$(((A + 1) * 2))\nrun --d $D --n $B --m ${C:-7} \\\n  --k \"${A}x\"",
            &[&["run", "--d", "6", "--n", "9", "--m", "7", "--k", "2x"]],
        );
        check(
            "S=\"2 + 1\"\nrun $(( ${X:-4} * 1024 )) $((1 << ${X:-$((1+2))})) $(( -2 ** 3 )) $(( ${S} * 2 )) $(( $1 * 2 ))",
            &[&["run", "4096", "8", "-8", "4", "\u{fffc}"]],
        );
        check(
            "N=2\nrun $(expr 16 / $N) `expr $N \\* 3` \"$(expr \\( 1 + $N \\) '*' 4)\" $(expr $N = 2) $(expr length $N) $(exprs 2)",
            &[&["run", "8", "6", "12", "\u{fffc}", "\u{fffc}", "\u{fffc}"]],
        );
        check(
            "L=(--a 1 # why\n --b 2)\nL+=(--c)\nrun ${L[@]} \"${L[@]}\"",
            &[&["run", "--a", "1", "--b", "2", "--c", "--a", "1", "--b", "2", "--c"]],
        );
        check(
            "O=\"--a 1 \\\n --b 2\"\nO+=' --c 3'\nexport X=1; python x.py $O >log 2>&1 &",
            &[&["python", "x.py", "--a", "1", "--b", "2", "--c", "3"]],
        );
    }

    #[test]
    fn what_a_script_asks_of_slurm_it_finds_in_variables() {
        check(
            "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nrun $SLURM_NNODES ${SLURM_GPUS_PER_NODE:-1} $((SLURM_NNODES * 8)) $SLURM_NTASKS",
            &[&["run", "4", "8", "32", "\u{fffc}"]],
        );
        let script = "#SBATCH -N 2\nSLURM_NNODES=3\nrun $SLURM_NNODES";
        check(script, &[&["run", "3"]]);
    }

    #[test]
    fn what_a_shell_alone_knows_is_marked_and_conditions_are_not_followed() {
        check(
            "A=1\nif [ -z $X ]; then A=2; fi\nrun $A $(nproc) $1",
            &[&["[", "-z", "\u{fffc}", "]"], &["run", "1", "\u{fffc}", "\u{fffc}"]],
        );
        check("cat <<EOF\nrun --no\nEOF\nrun --yes", &[&["cat"], &["run", "--yes"]]);
    }

    #[test]
    fn the_branch_that_runs_is_followed() {
        for (condition, is_taken) in [
            ("[ \"$A\" = x ]", true),
            ("[[ $A == \"y\" ]]", false),
            ("[[ $A == x* && $N -gt 1 ]]", true),
            ("[ $A = x ] && [ $N -lt 2 ]", false),
            ("[ -z \"${B:-}\" ]", true),
            ("[ -n \"$A\" -a 1 -eq 2 ]", false),
            ("! test $N -ge 3", true),
            ("(( N > 1 ))", true),
            ("(( N << 1 ))", true),
            ("(( N * ${K:-2} == 4 ))", true),
            ("((N == 3))", false),
            ("[[ ! -n $A || $N != 3 ]]", true),
            ("false", false),
        ] {
            let script =
                format!("A=x\nN=2\nif {condition}; then\n  T=yes\n  run then\nelse T=no; run else; fi\nrun $T");
            let found: Vec<String> = script_texts(&script).into_iter().filter(|one| one.starts_with("run")).collect();
            let expected = if is_taken { ["run then", "run yes"] } else { ["run else", "run no"] };
            assert_eq!(found, expected, "{condition}");
        }
        let nested = "A=1\nif [ $A = 2 ]; then B=2; elif [ $A = 1 ]; then if [ $A -gt 5 ]; then B=5; else B=1; fi; else B=0; fi\nrun $B";
        assert_eq!(script_texts(nested).last().map(String::as_str), Some("run 1"));
        let case = "M=b\ncase $M in\n  a|x) S=1 ;;\n  (b | c) S=2; T=3 ;;\n  *) S=9 ;;\nesac\nrun $S $T";
        assert_eq!(script_texts(case), ["run 2 3"]);
        let short =
            "A=1\n[ $A = 1 ] && B=1\n[ $A = 2 ] && C=2 || C=3\ncd x && D=4\n[ $A = 2 ] && { D=5; B=6; }\nrun $B $C $D";
        assert_eq!(script_texts(short).last().map(String::as_str), Some("run 1 3 4"));
        assert_eq!(script_texts("for S in 1 2; do L+=(--s $S); done\nrun ${L[@]}"), ["run --s 1"]);
    }

    /// Commands, each with spaces between its words.
    fn script_texts(text: &str) -> Vec<String> {
        let text_of = |words: &Vec<Word>| words.iter().map(Word::text).collect::<Vec<_>>().join(" ");
        commands(text).unwrap().iter().map(text_of).collect()
    }

    #[test]
    fn what_is_not_followed_is_known_where_it_is_used() {
        let left = |text: &str| {
            let command = script(text).unwrap().pop().unwrap();
            command.left.into_iter().map(|left| (left.name, left.flags.join(" "))).collect::<Vec<_>>()
        };
        let expected = |name: &str, flags: &str| vec![(name.to_owned(), flags.to_owned())];
        let list = "L=(--a 1)\nif [ $1 = x ]; then L+=(--fp8 --b=2); fi\nALL=\"${L[@]}\"\nrun $ALL";
        assert_eq!(left(list), expected("L", "fp8 b"));
        // What is said again behind it, or is the same, or is not used, changes nothing.
        assert_eq!(left("if [ $1 = x ]; then A=2; fi\nA=3\nrun $A"), []);
        assert_eq!(left("A=2\nif [ $1 = x ]; then A=2; fi\nrun $A"), []);
        assert_eq!(left("if [ $1 = x ]; then A=2; fi\nrun"), []);
        // An assignment works, so what stands behind `||` does not run. One of a command may fail.
        assert_eq!(left("A=x\n[ $A = x ] && B=1 || B=2\nrun $B"), []);
        assert_eq!(left("A=x\n[ $A = x ] && export B=1 || B=2\nrun $B"), []);
        assert_eq!(left("A=x\n[ $A = x ] && B=$(get) || B=2\nrun $B"), expected("B", ""));
        // A condition on such a name is not decided either.
        let chain = "A=0\nB=0\nif [ $1 = x ]; then A=1; fi\nif [ $A = 1 ]; then B=1; fi\nrun $B";
        assert_eq!(left(chain), expected("B", ""));
        assert_eq!(
            left("while [ $# -gt 0 ]; do case $1 in --fp8) F=--fp8;; esac; shift; done\nrun $F"),
            expected("F", "fp8")
        );
        assert_eq!(left("for N in 1 2; do run $N; done"), expected("N", ""));
        let flag = script("D=1\nif [ $1 = x ]; then D=2; fi\nrun --a --save $D").unwrap().pop().unwrap();
        assert_eq!(flag.left[0].of_flag.as_deref(), Some("save"));
    }

    #[test]
    fn declarations_texts_in_place_and_eval_are_read_as_a_shell_reads_them() {
        check("declare -a L=(--a 1)\nexport -n X=2\nrun ${L[@]} $X", &[&["run", "--a", "1", "2"]]);
        check(
            "L=(--f \"'([0]*1+[1]*2)'\" --l 'E\\|t')\neval \"run ${L[@]}\"",
            &[&["run", "--f", "([0]*1+[1]*2)", "--l", "E|t"]],
        );
        check(
            "N=2\nsbatch <<EOF\n#SBATCH --nodes=4\nM=3\nrun $N \\$M\nEOF\nrun on",
            &[&["sbatch"], &["run", "2", "3"], &["run", "on"]],
        );
        check("bash <<'EOF'\nM=3\nrun $M\nEOF", &[&["bash"], &["run", "3"]]);
        check("export N=2\nsrun bash -c 'run --n $N' x", &[&["srun", "bash", "-c", "run", "--n", "2", "x"]]);
        assert_eq!(commands(&"eval ".repeat(1000)), Err(Unreadable::Deep));
    }

    #[test]
    fn a_value_keeps_the_place_where_it_was_written() {
        let script = "TP=8\nrun --tp $TP";
        let words = commands(script).unwrap().remove(0);
        assert_eq!(&script[words[2].at()], "8");
        assert_eq!(&script[words[1].at()], "--tp");
    }

    #[test]
    fn text_that_doubles_itself_is_refused() {
        let script = "A=xxxxxxxx\n".to_owned() + &"A=$A$A\n".repeat(40);
        assert_eq!(commands(&script), Err(Unreadable::Long));
        assert_eq!(commands("run 'x"), Err(Unreadable::Open { what: "'", at: 4 }));
        assert!(commands(&"${".repeat(100_000)).is_err());
        assert!(commands(&"A=(".repeat(100_000)).is_err());
    }
}
