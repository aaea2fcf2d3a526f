//! Values of the command line among those of a file: where they go, and that they have no place in the text.

use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use super::{FROM_COMMAND_LINE, owned};
use crate::diagnostic::{Code, Finding};

/// Names on the way to the key of `section.key=value`, in quotes where they hold dots as in TOML; nothing where there is none.
pub fn path(item: &str) -> Option<Vec<&str>> {
    let mut rest = Some(item.split_once('=')?.0.trim());
    let mut names = Vec::new();
    while let Some(text) = rest {
        let (name, behind) = first_name(text)?;
        names.push(name);
        rest = behind;
    }
    Some(names)
}

/// The first name of a path, and what stands behind its dot.
fn first_name(text: &str) -> Option<(&str, Option<&str>)> {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''));
    let (name, behind) = match quote {
        Some(quote) => {
            let (name, behind) = text[1..].split_once(quote)?;
            (name, if behind.is_empty() { None } else { Some(behind.strip_prefix('.')?) })
        }
        None => text.split_once('.').map_or((text, None), |(name, behind)| (name, Some(behind))),
    };
    (!name.is_empty()).then_some((name, behind))
}

/// The same, and the value. One that is no TOML is a text.
pub(super) fn read(item: &str) -> Result<(Vec<&str>, ValueInner<'static>), Finding> {
    let wrong = |what: String| Finding::error(Code::WrongOverride, None, what).help("write `--set section.key=value`");
    let (_, text) = item.split_once('=').ok_or_else(|| wrong(format!("`--set {item}` has no `=`")))?;
    let path = path(item).ok_or_else(|| wrong(format!("`--set {item}` has a key or a section without a name")))?;
    let parsed = toml_span::parse(&format!("v = {text}")).map(owned);
    let value = match parsed.map(|mut value| value.take()) {
        Ok(ValueInner::Table(table)) => table.into_iter().next().map(|(_, mut value)| value.take()),
        _ => None,
    };
    let is_empty = |value: &ValueInner<'_>| matches!(value, ValueInner::String(word) if word.is_empty());
    let value = value.filter(|value| !is_empty(value));
    Ok((path, value.unwrap_or_else(|| ValueInner::String(text.to_owned().into()))))
}

/// A list of tables in which none has the name of a path.
pub(super) fn no_table(path: &str) -> Finding {
    let what = format!("`--set {path}`: no table of that list has that name");
    let help = "lists are entered by name, for example `--set fleet.group.decode.replicas=4`";
    Finding::error(Code::WrongOverride, None, what).help(help)
}

/// Values inside a value of the command line stand in no file either.
pub(super) fn forget_places(value: &mut ValueInner<'static>) {
    let span = toml_span::Span::new(FROM_COMMAND_LINE, FROM_COMMAND_LINE);
    let forgotten = |mut value: Value<'static>| {
        let mut inner = value.take();
        forget_places(&mut inner);
        Value::with_span(inner, span)
    };
    match value {
        ValueInner::Array(items) => *items = std::mem::take(items).into_iter().map(forgotten).collect(),
        ValueInner::Table(table) => {
            let keyed = |(key, value): (toml_span::value::Key<'static>, _)| {
                (toml_span::value::Key { name: key.name, span }, forgotten(value))
            };
            *table = std::mem::take(table).into_iter().map(keyed).collect();
        }
        _ => {}
    }
}

/// A value as JSON.
pub(super) fn json(value: &ValueInner<'static>) -> serde_json::Value {
    match value {
        ValueInner::String(text) => text.to_string().into(),
        ValueInner::Integer(number) => (*number).into(),
        ValueInner::Float(number) => (*number).into(),
        ValueInner::Boolean(flag) => (*flag).into(),
        ValueInner::Array(items) => items.iter().map(|item| json(item.as_ref())).collect(),
        ValueInner::Table(table) => {
            table.iter().map(|(key, value)| (key.name.to_string(), json(value.as_ref()))).collect()
        }
    }
}

/// Lays a value over a key; a list of tables is entered by the name of one. Whether there was a place for it.
pub(super) fn insert(table: &mut Table<'static>, path: &[&str], inner: ValueInner<'static>) -> bool {
    let span = toml_span::Span::new(FROM_COMMAND_LINE, FROM_COMMAND_LINE);
    let key = || toml_span::value::Key { name: path[0].to_owned().into(), span };
    if path.len() == 1 {
        table.remove(path[0]);
        table.insert(key(), Value::with_span(inner, span));
        return true;
    }
    if let Some(value) = table.get_mut(path[0]).filter(|value| value.as_array().is_some()) {
        let span = value.span;
        let ValueInner::Array(mut items) = value.take() else { return false };
        let is_placed = path.len() > 2 && insert_named(&mut items, path, inner);
        *value = Value::with_span(ValueInner::Array(items), span);
        return is_placed;
    }
    let mut child = match table.remove(path[0]).map(|mut value| value.take()) {
        Some(ValueInner::Table(child)) => child,
        _ => Table::new(),
    };
    let is_placed = insert(&mut child, &path[1..], inner);
    table.insert(key(), Value::with_span(ValueInner::Table(child), span));
    is_placed
}

/// Lays a value over a key of the table with that name.
fn insert_named(items: &mut [Value<'static>], path: &[&str], inner: ValueInner<'static>) -> bool {
    let name = |item: &Value<'static>| -> Option<String> {
        let table = item.as_table()?;
        table.get("name").or_else(|| table.get("gpu"))?.as_str().map(str::to_owned)
    };
    let Some(item) = items.iter_mut().find(|item| name(item).as_deref() == Some(path[1])) else { return false };
    let span = item.span;
    let ValueInner::Table(mut table) = item.take() else { return false };
    let is_placed = insert(&mut table, &path[2..], inner);
    *item = Value::with_span(ValueInner::Table(table), span);
    is_placed
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn names_in_quotes_hold_dots() {
        assert_eq!(path("a.b = 1"), Some(vec!["a", "b"]));
        assert_eq!(path("expect.\"metrics.megatron.x\"={ max = 1 }"), Some(vec!["expect", "metrics.megatron.x"]));
        assert_eq!(path("expect.'a.b'.max=1"), Some(vec!["expect", "a.b", "max"]));
        for wrong in ["a..b=1", "=1", "a.=1", "a", "a.\"b=1", "a.\"b\"c=1", "a.\"\"=1"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
