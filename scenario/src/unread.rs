//! Keys and sections of kind `training` that a kind beside it does not read: each is refused with what stands in its place there.

use input::diagnostic::Code;
use input::reader::{Place, Section};

/// What is not read, and where.
pub struct Unread {
    /// Sections, with why they are not read.
    pub sections: &'static [(&'static str, &'static str)],
    /// Keys of sections that are read, with why they are not.
    pub keys: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Where that is, behind "is not read".
    pub place: &'static str,
    /// Where it acts, behind the reason.
    pub acts: &'static str,
}

impl Unread {
    /// Refuses sections that are there.
    pub fn sections(&self, top: &mut Section<'_>) {
        for (name, why) in self.sections {
            if let Some(at) = top.away(name) {
                self.refuse(top, at, &format!("section `[{name}]`"), why);
            }
        }
    }

    /// Refuses keys of the section of this name that are there.
    pub fn keys(&self, name: &str, section: &mut Section<'_>) {
        for (_, keys, why) in self.keys.iter().filter(|(of, ..)| *of == name) {
            for key in *keys {
                if let Some(at) = section.away(key) {
                    let what = format!("key `{}`", section.full(key));
                    self.refuse(section, at, &what, why);
                }
            }
        }
    }

    fn refuse(&self, section: &mut Section<'_>, at: Place, what: &str, why: &str) {
        let help = format!("{why}; {}", self.acts);
        section.refuse(Code::UnknownKey, at, format!("{what} is not read {}", self.place), help);
    }
}

/// Warns of keys that are there and change nothing, with what they need.
pub fn idle(section: &mut Section<'_>, keys: impl IntoIterator<Item = (String, Place)>, needs: &str) {
    for (key, at) in keys {
        let what = format!("`{}` changes nothing", section.full(&key));
        section.warn(Code::NoEffect, at, what, format!("it needs {needs}"));
    }
}

/// Keys of a section that were there before and were read since.
pub fn read_since(section: &Section<'_>, before: Vec<(String, Place)>) -> Vec<(String, Place)> {
    let left = section.left();
    before.into_iter().filter(|(key, _)| !left.iter().any(|(other, _)| other == key)).collect()
}
