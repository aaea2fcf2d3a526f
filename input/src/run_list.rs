//! `run` and `baseline` of a `[policies]` section: policies of a table by name, and variants beside them.

use toml_span::value::ValueInner;

use crate::diagnostic::{Code, Finding};
use crate::reader::{Place, Section, place_of, unknown};

/// What is compared, in order, each with its name; and the name of the baseline.
pub struct RunList<T> {
    /// Choices.
    pub choices: Vec<(String, T)>,
    /// The one that the others are compared with: given, or the first.
    pub baseline: String,
}

/// What is to be said of a name that is not in the lists; `None` where it is unknown.
pub type Elsewhere<'a> = dyn Fn(&str, Place) -> Option<Finding> + 'a;

/// Reads `run` and `baseline`; `variants` come first where names are equal.
pub fn run_list<T: Clone>(section: &mut Section<'_>, plain: Vec<(&str, T)>, variants: Vec<(String, T)>) -> RunList<T> {
    run_list_among(section, plain, variants, &|_, _| None)
}

/// What a section means that names no policy and has no variants.
pub enum Silence<'n> {
    /// A policy.
    Means(&'n str),
    /// Nothing; what to write instead.
    Lacks(String),
}

/// The same where a section may be silent.
pub fn run_list_or<T: Clone>(
    section: &mut Section<'_>,
    plain: Vec<(&str, T)>,
    variants: Vec<(String, T)>,
    silence: Silence<'_>,
) -> RunList<T> {
    if section.has("run") || !variants.is_empty() {
        return run_list(section, plain, variants);
    }
    let meant = match silence {
        Silence::Means(usual) => plain.iter().find(|(name, _)| *name == usual),
        Silence::Lacks(help) => {
            section.missing("run", &help);
            return RunList { choices: Vec::new(), baseline: String::new() };
        }
    };
    let Some((name, choice)) = meant else { return run_list(section, plain, variants) };
    section.lists_names("run");
    let choices = vec![((*name).to_owned(), choice.clone())];
    RunList { baseline: baseline(section, vec![*name]), choices }
}

/// The same where names that are not in the lists may mean something elsewhere.
pub fn run_list_among<T: Clone>(
    section: &mut Section<'_>,
    plain: Vec<(&str, T)>,
    variants: Vec<(String, T)>,
    elsewhere: &Elsewhere<'_>,
) -> RunList<T> {
    let known = || variants.iter().map(|(name, _)| name.as_str()).chain(plain.iter().map(|(name, _)| *name));
    for (index, (name, _)) in variants.iter().enumerate() {
        if variants[..index].iter().any(|(other, _)| other == name) {
            let what = format!("two variants are called `{name}`");
            section.refuse_all(Code::TwiceNamed, what, "results go by name; give each variant its own");
        }
    }
    let mut choices: Vec<(String, T)> = Vec::new();
    for (name, at) in asked(section, &known().collect::<Vec<_>>()) {
        let variant = variants.iter().find(|(known, _)| *known == name).map(|(_, choice)| choice);
        match variant.or_else(|| plain.iter().find(|(known, _)| *known == name).map(|(_, choice)| choice)) {
            Some(_) if choices.iter().any(|(other, _)| *other == name) => {
                let what = format!("`policies.run` names `{name}` twice");
                section.refuse(Code::TwiceNamed, at, what, "a variant runs the same policy under another name");
            }
            Some(choice) => choices.push((name, choice.clone())),
            None => {
                let what = format!("unknown policy `{name}`");
                let finding = elsewhere(&name, at.clone());
                section.find(finding.unwrap_or_else(|| unknown(Code::UnknownPolicy, what, &name, known(), at)));
            }
        }
    }
    let baseline = baseline(section, choices.iter().map(|(name, _)| name.as_str()).collect());
    RunList { choices, baseline }
}

/// Names of `run` with their places.
fn asked(section: &mut Section<'_>, known: &[&str]) -> Vec<(String, Place)> {
    let help = format!("a list of some of {}", known.join(", "));
    section.lists_names("run");
    let items = match section.take("run") {
        Some((ValueInner::Array(items), at)) => {
            if items.is_empty() {
                section.refuse(Code::NothingRuns, at, "`policies.run` names no policy", help);
            }
            items
        }
        Some((_, at)) => {
            section.refuse(Code::WrongType, at, "`policies.run` is not a list of names", help);
            Vec::new()
        }
        None => {
            section.missing("run", &help);
            Vec::new()
        }
    };
    let mut names = Vec::with_capacity(items.len());
    for item in &items {
        match item.as_str() {
            Some(name) => names.push((name.to_owned(), place_of(item))),
            None => section.refuse(
                Code::WrongType,
                place_of(item),
                "`policies.run` holds something that is no name",
                "write names of policies, in quotation marks",
            ),
        }
    }
    names
}

/// `baseline`: one of the names that run, or the first of them.
fn baseline(section: &mut Section<'_>, running: Vec<&str>) -> String {
    let first = running.first().copied().unwrap_or_default().to_owned();
    section.text("baseline").map_or(first, |(name, at)| {
        // Without a policy that runs, the list itself is what is wrong.
        if !running.is_empty() && !running.contains(&name.as_str()) {
            section.find(unknown(
                Code::UnknownBaseline,
                format!("baseline `{name}` is not in `policies.run`"),
                &name,
                running,
                at,
            ));
        }
        name
    })
}
