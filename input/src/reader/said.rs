//! Findings that readers of a file and of its sections add.

use super::{Place, Reader, Section};
use crate::diagnostic::{Code, Finding, nearest};

macro_rules! says {
    ($reader:ident) => {
        impl $reader<'_> {
            /// Adds a finding.
            pub fn find(&mut self, finding: Finding) {
                self.findings.push(finding);
            }

            /// Adds an error without more to say.
            pub fn wrong(&mut self, code: Code, at: Place, what: impl Into<String>) {
                self.find(Finding::error(code, at, what));
            }

            /// Adds an error with what is allowed or what to do.
            pub fn refuse(&mut self, code: Code, at: Place, what: impl Into<String>, help: impl Into<String>) {
                self.find(Finding::error(code, at, what).help(help));
            }

            /// Adds a warning with what to do.
            pub fn warn(&mut self, code: Code, at: Place, what: impl Into<String>, help: impl Into<String>) {
                self.find(Finding::warning(code, at, what).help(help));
            }
        }
    };
}

says!(Reader);
says!(Section);

impl Section<'_> {
    /// Adds an error about the section as a whole.
    pub fn refuse_all(&mut self, code: Code, what: impl Into<String>, help: impl Into<String>) {
        self.refuse(code, self.at.clone(), what, help);
    }
}

/// An error about a name that is none of some, with the nearest; those that begin like it come first.
pub fn unknown<'a>(
    code: Code,
    what: String,
    found: &str,
    names: impl IntoIterator<Item = &'a str>,
    at: Place,
) -> Finding {
    let mut names: Vec<&str> = names.into_iter().collect();
    let near = nearest(found, names.iter().copied());
    let label = near.map_or_else(String::new, |near| format!("did you mean `{near}`?"));
    let begin = found.to_lowercase();
    // Short words begin too many names.
    names.sort_by_key(|name| begin.len() < BEGINNING || !name.starts_with(&begin));
    Finding::error(code, at, what).label(label).help(format!("allowed are {}", names.join(", ")))
}

/// Fewest letters with which names that begin so come first.
const BEGINNING: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_that_begin_as_asked_come_first() {
        let cards = ["h100-sxm", "a100-sxm-80g", "l4", "a100-pcie-40g"];
        let found = unknown(Code::UnknownGpu, "unknown GPU `A100`".to_owned(), "A100", cards, None);
        assert_eq!(found.label, "did you mean `a100-sxm-80g`?");
        assert_eq!(found.help.as_deref(), Some("allowed are a100-sxm-80g, a100-pcie-40g, h100-sxm, l4"));
    }
}
