//! Sections inside of a section: a scenario that is made of others has the sections of each under a name.

use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use super::{Reader, copied, place};
use crate::diagnostic::{Code, Finding};

impl Reader<'_> {
    /// A reader of the sections inside of the section `name`. Of the sections `shared` each has the keys of this file's that it does not say otherwise.
    pub fn inside(&mut self, name: &'static str, shared: &[&str]) -> Reader<'_> {
        let mut root = match self.root.remove(name) {
            None => Table::new(),
            Some(mut value) => {
                let at = place(value.span);
                match value.take() {
                    ValueInner::Table(table) => table,
                    other => {
                        let what = format!("`{name}` is {}, expected sections `[{name}.…]`", other.type_str());
                        self.findings.push(Finding::error(Code::NotASection, at, what));
                        Table::new()
                    }
                }
            }
        };
        for section in shared {
            if let Some((key, value)) = self.root.get_key_value(*section) {
                let own = root.remove(*section);
                root.insert(key.clone(), merged(value, own));
            }
        }
        Reader { root, findings: self.findings }
    }
}

/// A section with the keys of another one that it lacks.
fn merged(of_all: &Value<'static>, own: Option<Value<'static>>) -> Value<'static> {
    let Some(mut own) = own else { return copied(of_all) };
    let span = own.span;
    let mut inner = own.take();
    if let (ValueInner::Table(table), Some(given)) = (&mut inner, of_all.as_table()) {
        for (key, value) in given {
            if !table.contains_key(key.name.as_ref()) {
                table.insert(key.clone(), copied(value));
            }
        }
    }
    Value::with_span(inner, span)
}
