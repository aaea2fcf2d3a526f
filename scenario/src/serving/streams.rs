//! Whether streams, models and groups fit each other: a stream asks for a model, a group serves one, and a variant names some of both.

use super::{Serving, ServingChoice, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Reader, unknown};

/// Fills in which model every stream asks for and every group serves, and finds what does not fit.
pub fn build(reader: &mut Reader<'_>, serving: &mut Serving) {
    let mut models: Vec<String> = Vec::new();
    for group in &mut serving.groups {
        let index = models.iter().position(|name| *name == group.model.name).unwrap_or(models.len());
        if index == models.len() {
            models.push(group.model.name.clone());
        }
        group.model_index = u32::try_from(index).expect("few models");
    }
    let mut asked = Vec::new();
    for stream in &serving.streams {
        let Some((name, at)) = &stream.model else {
            if models.len() > 1 && !is_alone(serving) {
                let what = format!("groups serve {}, and a stream says not which it asks for", models.join(" and "));
                reader.refuse(Code::MissingKey, None, what, "write `model` in each `[[trace.stream]]`");
            }
            asked.push(0);
            continue;
        };
        let index = models.iter().position(|model| model == name);
        if index.is_none() {
            let what = format!("no group serves `{name}`");
            reader.find(unknown(Code::UnknownModel, what, name, models.iter().map(String::as_str), at.clone()));
        }
        asked.push(u32::try_from(index.unwrap_or(0)).expect("few models"));
    }
    if models.len() > 1 && !is_alone(serving) {
        serving.requests.models = asked;
    }
    for choice in &serving.choices {
        if let Some((code, what, help)) = misfit(serving, choice) {
            reader.refuse(code, None, format!("`{}`: {what}", choice.name), help);
        }
    }
}

/// Whether every choice serves with groups of one model, so that no request has to say which.
fn is_alone(serving: &Serving) -> bool {
    let has_one = |choice: &ServingChoice| {
        let groups = serving.groups_of(choice);
        groups.windows(2).all(|pair| pair[0].model_index == pair[1].model_index)
    };
    serving.streams.iter().all(|stream| stream.model.is_none()) && serving.choices.iter().all(has_one)
}

/// What is wrong with the streams and models of a choice, and what to do.
fn misfit(serving: &Serving, choice: &ServingChoice) -> Option<(Code, String, &'static str)> {
    if let Some(name) = choice.streams.iter().find(|name| serving.streams.iter().all(|stream| stream.name != **name)) {
        return Some((Code::UnknownGroup, format!("no stream is called `{name}`"), "names of `[[trace.stream]]`"));
    }
    let groups = serving.groups_of(choice);
    let is_planned = groups.iter().any(|group| group.scaling.as_ref().is_some_and(|scaling| scaling.planned.is_some()));
    let is_typed = !serving.assignment.types.is_empty();
    if !choice.streams.is_empty() && (is_planned || is_typed || serving.capacity.is_some()) {
        let what = "a plan of shares, of replicas or of capacity is made for all streams".to_owned();
        return Some((Code::WrongOperation, what, "leave `streams` out of a variant that is planned"));
    }
    let is_of = |group: &&ServingGroup, index: u32| group.model_index == index;
    let served = |index: u32| groups.iter().any(|group| is_of(group, index));
    let asks = serving.streams.iter().zip(&serving.requests.models).filter(|(stream, _)| choice.takes(stream));
    for (stream, &index) in asks {
        if !served(index) {
            let what = format!("no group of it serves the model of stream `{}`", stream.name);
            return Some((Code::UnknownGroup, what, "name a group with that `model`"));
        }
    }
    let is_mixed = groups.windows(2).any(|pair| pair[0].model_index != pair[1].model_index);
    if is_mixed && is_planned {
        let what = "a planner of replicas knows one model".to_owned();
        return Some((Code::WrongOperation, what, "one model per fleet that is planned"));
    }
    None
}
