//! Keys of the command line in the text of a scenario: where a key stands its value is another one, and where it does not it is written.
//!
//! What such a key means, the reader of scenarios says (`input::reader`): a text is taken when it reads as the file with the keys laid over it.

use std::ops::Range;

use input::reader::{Reader, path};
use serde_json::Value as Json;
use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use super::line;

/// What gave such a key.
const REMARK: &str = "--set";

/// A scenario with `section.key=value` in it, in this order. Remarks of other keys stay; where a key has no place between them, none does.
pub fn laid_over(text: &str, set: &[String]) -> String {
    let asked = read(text, set);
    let mut out = text.to_owned();
    for (index, item) in set.iter().enumerate() {
        // Keys of the items so far: a later one may enter what an earlier one wrote.
        let so_far = read(text, &set[..=index]);
        let edited = path(item).and_then(|path| Some((value_at(&so_far, &path)?.clone(), path)));
        if let Some((value, path)) = edited {
            out = written(&out, &path, &toml(&value)).unwrap_or(out);
        }
    }
    if read(&out, &[]) == asked { out } else { plain(&asked) }
}

/// A text as scenarios are read, with keys laid over it.
fn read(text: &str, set: &[String]) -> Json {
    let Ok(value) = toml_span::parse(text) else { return Json::Null };
    // What is wrong with a key, the reader of the scenario says.
    let mut findings = Vec::new();
    let mut reader = Reader::new(value, &mut findings);
    reader.lay_over(set);
    reader.json()
}

/// A value by its path; lists of tables are entered by name.
fn value_at<'j>(json: &'j Json, path: &[&str]) -> Option<&'j Json> {
    let is_named =
        |item: &&Json, name: &str| item.get("name").or_else(|| item.get("gpu")).is_some_and(|own| own == name);
    path.iter().try_fold(json, |at, name| match at {
        Json::Array(items) => items.iter().find(|item| is_named(item, name)),
        _ => at.get(name),
    })
}

/// The text with a value at a path; `None` where no line has room for it.
fn written(text: &str, path: &[&str], value: &str) -> Option<String> {
    let root = toml_span::parse(text).ok()?;
    let mut table = root.as_table()?;
    let mut open = "";
    let mut items: Option<&[Value<'_>]> = None;
    for (depth, name) in path.iter().enumerate() {
        let found = match items.take() {
            Some(items) => items.iter().find(|item| is_named(item, name))?,
            None => match table.get(*name) {
                Some(found) => found,
                None => return added(text, (table, open), (path, depth), value),
            },
        };
        if depth + 1 == path.len() {
            return Some(replaced(text, place(text, found), value));
        }
        match found.as_ref() {
            ValueInner::Table(inner) => (table, open) = (inner, &text[found.span.start..found.span.end]),
            ValueInner::Array(list) => items = Some(list),
            _ => return None,
        }
    }
    None
}

/// Whether a table of a list has a name.
fn is_named(item: &Value<'_>, name: &str) -> bool {
    let table = item.as_table();
    table.and_then(|table| table.get("name").or_else(|| table.get("gpu"))?.as_str()).is_some_and(|own| own == name)
}

/// Where a value stands, with its quotation marks.
fn place(text: &str, value: &Value<'_>) -> Range<usize> {
    let Range { start, end } = value.span.start..value.span.end;
    let is_bare = value.as_str().is_some() && !text[start..].starts_with(['"', '\'']);
    if is_bare { start.saturating_sub(1)..(end + 1).min(text.len()) } else { start..end }
}

/// Another value in a place. A remark behind it says what gave it.
fn replaced(text: &str, at: Range<usize>, value: &str) -> String {
    let begins = text[..at.start].rfind('\n').map_or(0, |end| end + 1);
    let ends = text[at.end..].find('\n').map_or(text.len(), |end| at.end + end);
    let rest = text[at.end..ends].trim_start();
    let key = &text[begins..at.start];
    if rest.is_empty() || rest.starts_with('#') {
        let new = line(&format!("{key}{value}"), REMARK);
        return format!("{}{new}{}", &text[..begins], &text[ends..]);
    }
    format!("{}{value}{}", &text[..at.start], &text[at.end..])
}

/// A key that a table lacks: behind the others of a section or of a table in one line, or in a section of its own.
fn added(
    text: &str,
    (table, open): (&Table<'_>, &str),
    (path, depth): (&[&str], usize),
    value: &str,
) -> Option<String> {
    let dotted = |names: &[&str]| names.iter().map(|name| word(name)).collect::<Vec<_>>().join(".");
    let pair = format!("{} = {value}", dotted(&path[depth..]));
    let last = table.values().filter(|value| is_on_its_line(text, value)).map(|value| place(text, value).end).max();
    if open.starts_with('{') {
        let at = last?;
        return Some(format!("{}, {pair}{}", &text[..at], &text[at..]));
    }
    let is_section = depth > 0 || path.len() == 1;
    if let Some(last) = last.filter(|_| is_section) {
        let ends = text[last..].find('\n').map_or(text.len(), |end| last + end);
        return Some(format!("{}\n{}{}", &text[..ends], line(&pair, REMARK), &text[ends..]));
    }
    let (name, section) = path.split_last()?;
    let pair = format!("{} = {value}", word(name));
    Some(format!("{}\n\n[{}]\n{}\n", text.trim_end(), dotted(section), line(&pair, REMARK)))
}

/// Whether a value stands behind its key, and not under a heading.
fn is_on_its_line(text: &str, value: &Value<'_>) -> bool {
    let is_heading = |value: &Value<'_>| value.as_table().is_some() && !text[value.span.start..].starts_with('{');
    !is_heading(value) && !value.as_array().is_some_and(|items| items.iter().any(is_heading))
}

/// A name as keys have it.
fn word(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if name.chars().all(is_bare) { name.to_owned() } else { Json::from(name).to_string() }
}

/// A value in one line.
fn toml(value: &Json) -> String {
    match value {
        Json::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Json::Object(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{} = {}", word(key), toml(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        plain => plain.to_string(),
    }
}

/// A scenario without remarks: keys before the first section, then a section each.
fn plain(root: &Json) -> String {
    let (sections, keys): (Vec<_>, Vec<_>) =
        root.as_object().into_iter().flatten().partition(|(_, value)| value.is_object());
    let pairs = |(key, value): (&String, &Json)| format!("{} = {}\n", word(key), toml(value));
    let mut out: String = keys.into_iter().map(pairs).collect();
    for (name, table) in sections {
        let _ = std::fmt::Write::write_fmt(&mut out, format_args!("\n[{}]\n", word(name)));
        out.extend(table.as_object().into_iter().flatten().map(pairs));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A job.\nkind = \"training\"\nseed = 0\n\n[cluster]\nnodes = 2                         # --nnodes\nlinks = { port = 1 }\n\n\
                        [[fleet.group]]\nname = \"decode\"\nreplicas = 1\n\n[cost.units]\nx = [1, 2] # here\n";

    fn over(set: &[&str]) -> String {
        laid_over(TEXT, &set.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_key_that_stands_there_has_another_value_and_another_remark() {
        let expected =
            TEXT.replace("nodes = 2                         # --nnodes", "nodes = 4                         # --set");
        assert_eq!(over(&["cluster.nodes=4"]), expected);
        assert!(over(&["kind=memory"]).contains("kind = \"memory\"                   # --set\nseed = 0"));
        assert!(over(&["cluster.links.port=8"]).contains("links = { port = 8 }\n"));
        assert!(over(&["fleet.group.decode.replicas=4"]).contains("name = \"decode\"\nreplicas = 4 "));
        assert!(over(&["cost.units.x=[3]"]).contains("x = [3]                           # --set\n"));
    }

    #[test]
    fn a_key_that_is_missing_stands_in_its_section() {
        let found = over(&["cluster.gpu=h100-sxm", "cluster.gpu=b200"]);
        assert!(
            found.contains("links = { port = 1 }\ngpu = \"b200\"                      # --set\n\n[[fleet.group]]"),
            "{found}"
        );
        assert!(over(&["name=x"]).starts_with("# A job.\nkind = \"training\"\nseed = 0\nname = \"x\" "));
        assert!(over(&["cluster.links.latency=2"]).contains("links = { port = 1, latency = 2 }\n"));
        assert!(over(&["model.name=gpt-2"]).ends_with("\n\n[model]\nname = \"gpt-2\"                    # --set\n"));
        assert!(over(&["fleet.group.decode.tp=2"]).contains("replicas = 1\ntp = 2 "));
    }

    #[test]
    fn a_text_reads_as_the_file_with_the_keys_laid_over_it() {
        let all = [
            "cluster.nodes=4",
            "cluster={ gpu = 'a', nodes = 2 }",
            "cluster.nodes.of=3",
            "fleet.group.decode.engine.tp=4",
            "fleet.x=1",
            "fleet.group=[]",
            "cost.units=1",
            "cost.x.y=\"a \\\"b\\\"\"",
            "kind.x=1",
            "seed=1.5",
            "a.b.c=true",
            "a.b={}",
            "cost.units.x=1979-05-27",
            "a.\"b c\".d=1",
            "policies.run=[\"a\", 'b']",
        ];
        for first in all {
            for second in all {
                let set = [first.to_owned(), second.to_owned()];
                let found = laid_over(TEXT, &set);
                assert_eq!(read(&found, &[]), read(TEXT, &set), "{set:?}: {found}");
            }
        }
    }

    #[test]
    fn what_is_no_override_changes_nothing() {
        assert_eq!(over(&["nodes", ".x=1", "fleet.group.prefill.replicas=2"]), TEXT);
    }
}
