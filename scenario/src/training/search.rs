//! `[search]`: which layouts `parallel.layout = "search"` looks at. Every key but `front_ratio` is a list; left out, every sensible value.

use engine::formats::Formats;
use hw::Gpu;
use planner::train::search::space::Space;
use toml_span::value::ValueInner;
use train::Problem;
use train::layout::Zero;
use train::problem::Recompute;

use super::parallel;
use crate::{formats, recompute};
use input::diagnostic::Code;
use input::reader::{Reader, Section, place_of};

/// Lists of the section, before the problem that gives the defaults is known.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    numbers: Vec<(&'static str, Vec<u64>)>,
    schedules: Option<Vec<&'static train::schedule::Schedule>>,
    recompute: Option<Vec<Recompute>>,
    offload: Option<Vec<f64>>,
    sequence_parallel: Option<Vec<bool>>,
    products: Option<Vec<Formats>>,
    front_ratio: f64,
}

const NUMBERS: [&str; 10] =
    ["tp", "cp", "pp", "ep", "chunks", "micro_batch", "zero", "nodes", "embedding_layers", "head_layers"];
/// Those of them that may be 0.
const FROM_ZERO: [&str; 3] = ["zero", "embedding_layers", "head_layers"];

/// The keys beside them.
const OTHERS: [&str; 6] = ["offload_ratio", "sequence_parallel", "recompute", "schedules", "products", "front_ratio"];
/// What the section needs.
const IS_SEARCHED: &str = "`parallel.layout = \"search\"`";

/// Reads the section, which nothing asks for where no layout is searched.
pub fn search(mut section: Section<'_>, gpu: Option<&Gpu>, is_searched: bool) -> Lists {
    let mut lists = Lists::default();
    if !is_searched {
        section.idle(&NUMBERS, IS_SEARCHED);
        section.idle(&OTHERS, IS_SEARCHED);
    }
    for key in NUMBERS {
        let least = i64::from(!FROM_ZERO.contains(&key));
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
    lists.products = products(&mut section, gpu);
    lists.front_ratio = section.number("front_ratio", 1.0, 1.0..=10.0);
    section.finish();
    lists
}

/// Formats of matrix products that the card multiplies.
fn products(section: &mut Section<'_>, gpu: Option<&Gpu>) -> Option<Vec<Formats>> {
    let multiplies = |formats: &Formats| gpu.is_none_or(|gpu| gpu.multiplies(formats.dense));
    let on = gpu.map_or_else(String::new, |gpu| format!(" that {} multiplies", gpu.name));
    let words = formats::words().into_iter().filter(|word| formats::of_word(word).is_some_and(|of| multiplies(&of)));
    let allowed = format!("formats{on}: {}", words.collect::<Vec<_>>().join(", "));
    list(section, "products", &allowed, |value| value.as_str().and_then(formats::of_word).filter(multiplies))
}

fn schedules(section: &mut Section<'_>) -> Option<Vec<&'static train::schedule::Schedule>> {
    let (value, at) = section.take("schedules")?;
    let ValueInner::Array(items) = value else {
        section.wrong(Code::WrongType, at, "`search.schedules` is not a list");
        return None;
    };
    let named = |item: &toml_span::Value<'_>| {
        let Some(name) = item.as_str() else {
            let what = "`search.schedules` holds something that is no name";
            section.refuse(Code::WrongType, place_of(item), what, "`skrull-sim list schedules` shows all");
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
        section.refuse(Code::WrongType, at, what, format!("a list of {allowed}"));
        return None;
    };
    let mut values = Vec::with_capacity(items.len());
    for item in &items {
        match read(item) {
            Some(value) => values.push(value),
            None => {
                let what = format!("`search.{key}` holds a value that is not allowed");
                section.refuse(Code::OutOfRange, place_of(item), what, format!("allowed are {allowed}"));
            }
        }
    }
    Some(values)
}

impl Lists {
    /// Refuses what the lists hold and the problem has not.
    fn check(&self, reader: &mut Reader<'_>, problem: &Problem) {
        let above = |key: &str, most: u64| {
            let of_key = self.numbers.iter().filter(|(known, _)| *known == key);
            of_key.flat_map(|(_, values)| values).copied().find(|value| *value > most)
        };
        let n_nodes = problem.cluster.n_nodes;
        if let Some(n) = above("nodes", n_nodes.into()) {
            let what = format!("`search.nodes` has {n}, the cluster has {n_nodes}");
            reader.refuse(Code::OutOfRange, None, what, "more nodes in `[cluster]`");
        }
        if let Some(ep) = above("ep", 1).filter(|_| problem.model.experts.is_none()) {
            let what = format!("`search.ep` has {ep}, and `{}` has no experts", problem.model.name);
            reader.refuse(Code::OutOfRange, None, what, "leave `ep` out");
        }
    }

    /// The space that the lists leave of a problem's own.
    pub fn space(self, reader: &mut Reader<'_>, problem: &Problem, row_tokens: Option<u64>) -> Space {
        self.check(reader, problem);
        let mut space = Space::of(problem).of_rows(row_tokens);
        for (key, values) in self.numbers {
            let small: Vec<u32> = values.iter().filter_map(|n| u32::try_from(*n).ok()).collect();
            match key {
                "tp" => space.tp = small,
                "cp" => space.cp = small,
                "pp" => space.pp = small,
                "ep" => space.ep = small,
                "nodes" => space.nodes = small,
                "embedding_layers" => space.embedding_layers = small,
                "head_layers" => space.head_layers = small,
                "chunks" => space.chunks = small,
                "micro_batch" => (space.micro_batch, space.packs) = (values, false),
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
        space.products = self.products.map_or(space.products, |all| all.into_iter().map(Some).collect());
        space.front_ratio = self.front_ratio;
        space
    }
}
