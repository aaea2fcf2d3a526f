//! `run` and `baseline` of a `[policies]` section whose policies are a table of names, with variants beside them.

use toml_span::value::ValueInner;

use super::reader::{Section, place_of, unknown};

/// What is compared, in order, each with its name; and the name of the baseline.
pub struct RunList<T> {
    /// Choices.
    pub choices: Vec<(String, T)>,
    /// The one that the others are compared with: given, or the first.
    pub baseline: String,
}

/// Reads `run` and `baseline`; `variants` come first where names are equal.
pub fn run_list<T: Clone>(section: &mut Section<'_>, plain: Vec<(&str, T)>, variants: Vec<(String, T)>) -> RunList<T> {
    let known = || variants.iter().map(|(name, _)| name.as_str()).chain(plain.iter().map(|(name, _)| *name));
    let mut choices: Vec<(String, T)> = Vec::new();
    match section.take("run") {
        Some((ValueInner::Array(items), _)) if !items.is_empty() => {
            for item in &items {
                let name = item.as_str().unwrap_or_default();
                let variant = variants.iter().find(|(known, _)| known == name).map(|(_, choice)| choice);
                match variant.or_else(|| plain.iter().find(|(known, _)| *known == name).map(|(_, choice)| choice)) {
                    Some(choice) => choices.push((name.to_owned(), choice.clone())),
                    None => {
                        let what = format!("unknown policy `{name}`");
                        section.find(unknown("S027", what, name, known(), place_of(item)));
                    }
                }
            }
        }
        _ => {
            let names: Vec<&str> = known().collect();
            section.missing("run", &format!("a list of {}", names.join(", ")));
        }
    }
    let baseline = baseline(section, choices.iter().map(|(name, _)| name.as_str()).collect());
    RunList { choices, baseline }
}

/// `baseline`: one of the names that run, or the first of them.
pub fn baseline(section: &mut Section<'_>, running: Vec<&str>) -> String {
    let first = running.first().copied().unwrap_or_default().to_owned();
    section.text("baseline").map_or(first, |(name, at)| {
        if !running.contains(&name.as_str()) {
            section.find(unknown("S029", format!("baseline `{name}` is not in `policies.run`"), &name, running, at));
        }
        name
    })
}
