//! `[transitions]`: where facts go, as probabilities or as counted facts, for a retest and for every stage.

use curriculum::{Class, Effect, Transition};
use planner::curriculum::Stage;
use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use input::diagnostic::Code;
use input::reader::Section;

/// What the section says.
pub(super) struct Transitions {
    /// What a retest without training does.
    pub retest: Option<Transition>,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// What each says otherwise of `[train]`.
    pub trains: Vec<Option<Table<'static>>>,
    /// Effect of a stage on all classes.
    pub everything: Option<Effect>,
}

/// Keys of one matrix: probabilities, and counts of facts.
type Keys = [&'static str; 2];

const RETEST: Keys = ["retest", "retest_counts"];
const TRAINED: Keys = ["trained", "trained_counts"];
const OTHERS: Keys = ["others", "others_counts"];

/// Reads the section.
pub(super) fn transitions(mut section: Section<'_>) -> Transitions {
    let retest = matrix(&mut section, RETEST);
    let (mut stages, mut trains) = (Vec::new(), Vec::new());
    section.each_table("stage", &mut |mut table| {
        let epochs = table.small("epochs", None, 1..=10_000);
        trains.push(train(&mut table));
        stages.extend(effect(table).map(|effect| Stage { epochs, effect }));
    });
    let everything = section.table("everything").and_then(effect);
    section.finish();
    Transitions { retest, stages, trains, everything }
}

/// `train`: sections of training whose keys lie over those of `[train]`.
fn train(table: &mut Section<'_>) -> Option<Table<'static>> {
    let (value, at) = table.take("train")?;
    let ValueInner::Table(sections) = value else {
        let help = "sections with the keys that are other ones in this stage, for example `train = { training = { batch_size = 64 } }`";
        let what = format!("`{}` is {}", table.full("train"), value.type_str());
        table.refuse(Code::WrongType, at, what, help);
        return None;
    };
    Some(sections)
}

fn effect(mut section: Section<'_>) -> Option<Effect> {
    let (trained, others) = (matrix(&mut section, TRAINED), matrix(&mut section, OTHERS));
    section.finish();
    trained.zip(others).map(|(trained, others)| Effect { trained, others })
}

/// One matrix, under one of its keys.
fn matrix(section: &mut Section<'_>, keys: Keys) -> Option<Transition> {
    section.alternatives(&keys);
    let (probabilities, counts) = (section.take(keys[0]), section.take(keys[1]));
    let (given, is_counted, key) = match (probabilities, counts) {
        (Some(_), Some((_, at))) => {
            let what = format!("`{}` and `{}` exclude each other", section.full(keys[0]), section.full(keys[1]));
            section.wrong(Code::ExclusiveKeys, at, what);
            return None;
        }
        (Some(given), None) => (given, false, keys[0]),
        (None, Some(given)) => (given, true, keys[1]),
        (None, None) => {
            let help = format!("four rows of four probabilities, or of four counts under `{}`", keys[1]);
            section.missing(keys[0], &help);
            return None;
        }
    };
    let ((value, at), name) = (given, section.full(key));
    let order = Class::ALL.map(Class::key).join(", ");
    let help = format!("rows are classes before, columns classes after, in the order {order}");
    let Some(rows) = rows(&value) else {
        let what = format!("`{name}` is not four rows of four numbers");
        section.refuse(Code::WrongMatrix, at, what, help);
        return None;
    };
    let found = if is_counted { Transition::of_counts(rows) } else { Transition::of_probabilities(rows) };
    found.map_err(|why| section.refuse(Code::WrongMatrix, at, format!("`{name}`: {why}"), help)).ok()
}

fn rows(value: &ValueInner<'_>) -> Option<[[f64; 4]; 4]> {
    let ValueInner::Array(rows) = value else { return None };
    let number = |value: &Value<'_>| value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    let row = |value: &Value<'_>| -> Option<[f64; 4]> {
        let found: Option<Vec<f64>> = value.as_array()?.iter().map(number).collect();
        found.filter(|row| row.iter().all(|entry| entry.is_finite()))?.try_into().ok()
    };
    let found: Option<Vec<[f64; 4]>> = rows.iter().map(row).collect();
    found?.try_into().ok()
}
