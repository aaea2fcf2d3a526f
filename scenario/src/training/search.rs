//! `[search]`: which layouts `parallel.layout = "search"` looks at. Every key is a list; left out, every sensible value.

use planner::train::search::space::Space;
use toml_span::value::ValueInner;
use train::Problem;
use train::layout::Zero;
use train::problem::Recompute;

use super::parallel;
use crate::recompute;
use input::diagnostic::{Code, Finding};
use input::reader::{Section, place_of};

/// Lists of the section, before the problem that gives the defaults is known.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    numbers: Vec<(&'static str, Vec<u64>)>,
    schedules: Option<Vec<&'static train::schedule::Schedule>>,
    recompute: Option<Vec<Recompute>>,
    offload: Option<Vec<f64>>,
    sequence_parallel: Option<Vec<bool>>,
}

const NUMBERS: [&str; 7] = ["tp", "cp", "pp", "ep", "chunks", "micro_batch", "zero"];

/// Reads the section.
pub fn search(mut section: Section<'_>) -> Lists {
    let mut lists = Lists::default();
    for key in NUMBERS {
        let least = i64::from(key != "zero");
        let whole = |value: &toml_span::Value<'_>| {
            value.as_integer().filter(|n| (least..=100_000).contains(n)).and_then(|n| u64::try_from(n).ok())
        };
        if let Some(values) = list(&mut section, key, "whole numbers", whole) {
            lists.numbers.push((key, values));
        }
    }
    lists.offload = list(&mut section, "offload_ratio", "numbers from 0 to 1", |value| {
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        number.filter(|number| (0.0..=1.0).contains(number))
    });
    lists.sequence_parallel = list(&mut section, "sequence_parallel", "true and false", |value| value.as_bool());
    lists.recompute = list(&mut section, "recompute", recompute::ALLOWED, recompute::of_value);
    lists.schedules = schedules(&mut section);
    section.finish();
    lists
}

fn schedules(section: &mut Section<'_>) -> Option<Vec<&'static train::schedule::Schedule>> {
    let (value, at) = section.take("schedules")?;
    let ValueInner::Array(items) = value else {
        section.find(Finding::error(Code::WrongType, at, "`search.schedules` is not a list"));
        return None;
    };
    let named = |item: &toml_span::Value<'_>| {
        let Some(name) = item.as_str() else {
            let what = "`search.schedules` holds something that is no name";
            section.find(
                Finding::error(Code::WrongType, place_of(item), what).help("`skrull-sim list schedules` shows all"),
            );
            return None;
        };
        parallel::schedule(section, name, place_of(item))
    };
    Some(items.iter().map(named).collect::<Vec<_>>().into_iter().flatten().collect())
}

/// A list of values that `read` accepts.
fn list<T>(
    section: &mut Section<'_>,
    key: &'static str,
    allowed: &str,
    read: impl Fn(&toml_span::Value<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let (value, at) = section.take(key)?;
    let ValueInner::Array(items) = value else {
        let what = format!("`search.{key}` is not a list");
        section.find(Finding::error(Code::WrongType, at, what).help(format!("a list of {allowed}")));
        return None;
    };
    let mut values = Vec::with_capacity(items.len());
    for item in &items {
        match read(item) {
            Some(value) => values.push(value),
            None => {
                let what = format!("`search.{key}` holds a value that is not allowed");
                section.find(
                    Finding::error(Code::OutOfRange, place_of(item), what).help(format!("allowed are {allowed}")),
                );
            }
        }
    }
    Some(values)
}

impl Lists {
    /// The space that the lists leave of a problem's own.
    #[must_use]
    pub fn space(self, problem: &Problem) -> Space {
        let mut space = Space::of(problem);
        for (key, values) in self.numbers {
            let small: Vec<u32> = values.iter().filter_map(|n| u32::try_from(*n).ok()).collect();
            match key {
                "tp" => space.tp = small,
                "cp" => space.cp = small,
                "pp" => space.pp = small,
                "ep" => space.ep = small,
                "chunks" => space.chunks = small,
                "micro_batch" => space.micro_batch = values,
                _ => {
                    let stages = [Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters];
                    space.zero = small.iter().filter_map(|n| stages.get(*n as usize).copied()).collect();
                }
            }
        }
        space.schedules = self.schedules.unwrap_or(space.schedules);
        space.recompute = self.recompute.unwrap_or(space.recompute);
        space.offload = self.offload.unwrap_or(space.offload);
        space.sequence_parallel = self.sequence_parallel.unwrap_or(space.sequence_parallel);
        space
    }
}
