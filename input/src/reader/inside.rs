//! Sections inside of a section: a scenario that is made of others has the sections of each under a name.

use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use super::{Reader, copied, place_of, seen};
use crate::diagnostic::Code;

impl Reader<'_> {
    /// Reads the sections inside of the section `name`. Of the sections `shared` each has the keys of this file's that it does not say otherwise.
    pub fn inside<T>(&mut self, name: &'static str, shared: &[&str], read: impl FnOnce(&mut Reader<'_>) -> T) -> T {
        let (_, root) = self.taken(name, &format!("sections `[{name}.…]`"));
        self.sections(name, shared, root, read)
    }

    /// The same with keys of `over` laid over them; the section stays where it is.
    pub fn inside_with<T>(
        &mut self,
        name: &'static str,
        shared: &[&str],
        over: Table<'static>,
        read: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> T {
        let (mut root, mut over) = (Table::new(), over);
        for (key, value) in self.root.get(name).and_then(Value::as_table).into_iter().flatten() {
            root.insert(key.clone(), merged(value, over.remove(key.name.as_ref())));
        }
        root.append(&mut over);
        self.sections(name, shared, root, read)
    }

    /// Warns of keys of a section that each of these lies over, where nothing reads the section without one of them.
    pub fn overlaid(&mut self, name: &str, overs: &[&Table<'static>]) {
        let Some(root) = self.root.get(name).and_then(Value::as_table) else {
            _ = self.taken(name, &format!("sections `[{name}.…]`"));
            return;
        };
        let mut hidden = Vec::new();
        for (section, value) in root {
            let of_all: Option<Vec<&Value<'_>>> = overs.iter().map(|over| over.get(section.name.as_ref())).collect();
            let Some(of_all) = of_all else { continue };
            let Some(keys) = value.as_table() else {
                hidden.push((format!("{name}.{}", section.name), place_of(value)));
                continue;
            };
            let says = |key: &str, over: &Value<'_>| over.as_table().is_none_or(|over| over.contains_key(key));
            let idle = keys.iter().filter(|(key, _)| of_all.iter().all(|over| says(&key.name, over)));
            hidden.extend(idle.map(|(key, value)| (format!("{name}.{}.{}", section.name, key.name), place_of(value))));
        }
        for (key, at) in hidden {
            let help = "it needs something that does not say it otherwise";
            self.warn(Code::NoEffect, at, format!("`{key}` has no effect: all that it is for say it otherwise"), help);
        }
    }

    fn sections<T>(
        &mut self,
        name: &'static str,
        shared: &[&str],
        mut root: Table<'static>,
        read: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> T {
        for section in shared {
            if let Some((key, value)) = self.root.get_key_value(*section) {
                let own = root.remove(*section);
                root.insert(key.clone(), merged(value, own));
            }
        }
        self.once(|reader| {
            let mut sections = Reader { root, findings: reader.findings };
            seen::inside(name, || read(&mut sections))
        })
    }

    /// Reads what others may have read: what is wrong with a shared section is said by the first one that reads it.
    pub fn once<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.findings.len();
        let found = read(self);
        for finding in self.findings.split_off(before) {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
        found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_has_the_keys_of_the_file_that_it_does_not_say_otherwise() {
        let text =
            "[model]\nname = 'a'\nlayers = 4\n[cluster]\nnodes = 2\n[train.model]\nname = 'b'\n[train.own]\nx = 1\n";
        let mut findings = Vec::new();
        let mut reader = Reader::new(toml_span::parse(text).expect("TOML"), &mut findings);
        reader.inside("train", &["model", "cluster"], |inside| {
            let mut model = inside.section("model");
            assert_eq!(model.text("name").map(|(name, _)| name).as_deref(), Some("b"));
            assert_eq!(model.count("layers", None, 0..=9).0, 4);
            assert_eq!(inside.section("cluster").count("nodes", None, 0..=9).0, 2);
            assert_eq!(inside.section("own").count("x", None, 0..=9).0, 1);
        });
        // The file keeps what it shares.
        assert_eq!(reader.section("model").text("name").map(|(name, _)| name).as_deref(), Some("a"));
        assert!(findings.is_empty());
    }

    #[test]
    fn keys_of_a_part_lie_over_those_of_the_section_which_stays() {
        let text = "[train.model]\nname = 'b'\nlayers = 4\n[stage.model]\nlayers = 5\n[stage.own]\nx = 1\n";
        let mut findings = Vec::new();
        let mut reader = Reader::new(toml_span::parse(text).expect("TOML"), &mut findings);
        let (_, over) = reader.taken("stage", "a table");
        reader.inside_with("train", &[], over, |inside| {
            let mut model = inside.section("model");
            assert_eq!(model.text("name").map(|(name, _)| name).as_deref(), Some("b"));
            assert_eq!(model.count("layers", None, 0..=9).0, 5);
            assert_eq!(inside.section("own").count("x", None, 0..=9).0, 1);
        });
        reader.inside("train", &[], |inside| {
            assert_eq!(inside.section("model").count("layers", None, 0..=9).0, 4);
            assert!(!inside.has("own"));
        });
        assert!(findings.is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_shared_section_is_said_once() {
        let mut findings = Vec::new();
        let mut reader = Reader::new(toml_span::parse("[model]\nlayers = 'x'").expect("TOML"), &mut findings);
        for side in ["train", "generate"] {
            reader.inside(side, &["model"], |inside| inside.section("model").count("layers", None, 0..=9));
        }
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn a_side_that_is_no_table_is_said() {
        let mut findings = Vec::new();
        let mut reader = Reader::new(toml_span::parse("train = 3").expect("TOML"), &mut findings);
        reader.inside("train", &["model"], |_| ());
        assert!(findings[0].what.contains("expected sections `[train.…]`"), "{}", findings[0].what);
    }
}
