//! Findings that readers of a file and of its sections add.

use super::{Place, Reader, Section};
use crate::diagnostic::{Code, Finding};

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
