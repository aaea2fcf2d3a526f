//! What is known while a script is followed, statement by statement.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::branches::{Branches, Kind, Runs, Status};
use super::cut::Statement;
use super::uses::{Left, Uses};
use super::{Command, Values, Word};

/// What is known so far.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) values: Values,
    /// Names whose values may be others: what they are assigned is not followed.
    pub(super) uncertain: BTreeSet<String>,
    /// Names that are whole numbers (`declare -i`): what they are assigned is a sum.
    pub(super) integers: BTreeSet<String>,
    pub(super) uses: Uses,
    pub(super) branches: Branches,
    /// What stood before each part that is open.
    pub(super) scopes: Vec<Scope>,
    /// Letters of that.
    pub(super) n_kept: usize,
    pub(super) status: Status,
    /// Whether a statement in front of `(` runs.
    pub(super) opening: Option<Runs>,
    /// Whether a pattern has taken the `)` that comes.
    pub(super) is_behind_pattern: bool,
    pub(super) functions: BTreeMap<String, Function>,
    /// The function whose body comes.
    pub(super) defined: Option<String>,
    pub(super) record: Option<Record>,
    /// Functions that are being read.
    pub(super) calling: Vec<String>,
    /// Letters of functions that were read.
    pub(super) n_called: usize,
    pub(super) commands: Vec<Command>,
    pub(super) n_letters: usize,
}

/// A part that is open, with what stood before it.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) kind: Kind,
    pub(super) leaves: Leaves,
    pub(super) before: BTreeMap<String, Kept>,
    /// Names that end with it, whatever else stays.
    pub(super) own: BTreeSet<String>,
}

/// What of its changes a part leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// All of them.
    All,
    /// Nothing: it runs in a shell of its own.
    Nothing,
    /// Only a shell knows: it was followed for what stands in it.
    Unknown,
}

/// What is known of a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub(super) words: Option<Vec<Word>>,
    pub(super) is_uncertain: bool,
    pub(super) is_exported: bool,
    pub(super) left: Option<Left>,
}

/// A function.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) body: Rc<[Statement]>,
    pub(super) n_letters: usize,
    /// Its place among those of the script.
    pub(super) index: usize,
    pub(super) is_called: bool,
}

/// A function whose body is being written down.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) body: Vec<Statement>,
    /// Parts that were open in front of it.
    pub(super) depth: usize,
}

/// Texts of words, with spaces.
pub(super) fn text_of(words: &[Word]) -> String {
    words.iter().map(Word::text).collect::<Vec<_>>().join(" ")
}
