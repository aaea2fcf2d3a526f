//! How tokens spread over experts, and which experts lie twice: `expert_skew`, `expert_counts` and `redundant_experts` of `[engine]`.
//! What sends tokens to experts: `dispatcher` and `two_batch_overlap`. And what computes them: `expert_kernel`.
//!
//! Counts come as engines write them. A table of commas has a row for every layer with a number for every expert, as the `weight` of DeepSeek's EPLB. Or it has
//! the columns `layer`, `expert` and `count`. JSON has `logical_count`, which SGLang's `--init-expert-location` reads: [layers][experts], or
//! [steps][layers][experts] as its recorder keeps them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use engine::Model;
use engine::cost::experts::Routing;
use engine::cost::experts::counts::{ExpertCounts, WrongCounts};
use engine::cost::experts::kernel::ExpertKernel;
use engine::dispatcher::DeepEpMode;
use engine::model::Experts;
use serde_json::Value;
use serve::engine_preset::{self, EnginePreset};
use thiserror::Error;

use input::diagnostic::Code;
use input::reader::{Place, Section};

/// Experts of a layer at most, and rows of a table.
const EXPERTS_MAX: u64 = 65_536;

/// What the engine does by itself.
const AUTO: &str = "auto";

/// Words of `dispatcher`: what the engine does by itself, and DeepEP.
const DISPATCHERS: [&str; 4] =
    [AUTO, DeepEpMode::Auto.word(), DeepEpMode::Normal.word(), DeepEpMode::LowLatency.word()];

/// What the section says of experts.
#[derive(Clone, Debug)]
pub struct ExpertChoice {
    /// How tokens spread over them; `None` leaves it to a named engine and its model.
    routing: Option<Routing>,
    /// How many of a layer lie once more, all packed so that GPUs have as much to do; `None` keeps each once and in order.
    pub redundant: Option<u32>,
    /// Kernels of DeepEP that send tokens to them; `None` exchanges tokens as the engine does by itself.
    pub deep_ep: Option<DeepEpMode>,
    /// Whether tokens of one half of an iteration travel while the other one computes.
    pub overlaps_batches: bool,
    /// Library whose kernel computes them; `None` leaves it to the engine.
    pub kernel: Option<ExpertKernel>,
}

/// Why a file has no counts.
#[derive(Debug, PartialEq, Error)]
enum NoCounts {
    #[error("it is no JSON with `logical_count`, a list of layers with a number for every expert")]
    NoList,
    #[error("line {line} has `{found}` where a number of tokens is expected")]
    NoNumber { line: usize, found: String },
    #[error("line {line} has `{found}` where a layer or an expert is expected, from 0 to {}", EXPERTS_MAX - 1)]
    NoIndex { line: usize, found: String },
    #[error(transparent)]
    Wrong(#[from] WrongCounts),
}

/// Reads the keys; a named engine has a law of its own.
pub fn experts(section: &mut Section<'_>, folder: &Path, preset: Option<&EnginePreset>) -> ExpertChoice {
    let plain = preset.is_none().then_some(Routing::Even);
    let given = section.alternatives(&["expert_skew", "expert_counts"]);
    let (skew, file) = (section.some_number("expert_skew", 0.01..=4.0), section.text("expert_counts"));
    let counts_at = file.as_ref().and_then(|(_, at)| at.clone());
    if given.len() > 1 {
        let what = "`engine.expert_skew` and `engine.expert_counts` exclude each other";
        section.wrong(Code::ExclusiveKeys, counts_at.clone(), what);
    }
    let counted = file.and_then(|(name, at)| counts(section, folder, &name, at));
    let routing = counted.or(skew.map(Routing::PowerLaw)).or(plain);
    let is_balanced = section.has("redundant_experts");
    let n = section.small("redundant_experts", Some(0), 0..=EXPERTS_MAX);
    let deep_ep = DeepEpMode::named(DISPATCHERS[section.word("dispatcher", 0, &DISPATCHERS)]);
    let overlaps_batches = section.flag("two_batch_overlap", false);
    let libraries: Vec<&str> = [AUTO].into_iter().chain(ExpertKernel::ALL.map(ExpertKernel::word)).collect();
    let kernel = ExpertKernel::named(libraries[section.word("expert_kernel", 0, &libraries)]);
    ExpertChoice { routing, redundant: is_balanced.then_some(n), deep_ep, overlaps_batches, kernel }
}

/// Counts of a file.
fn counts(section: &mut Section<'_>, folder: &Path, name: &str, at: Place) -> Option<Routing> {
    if Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("pt")) {
        let help = "`python3 -c 'import json, sys, torch; json.dump({\"logical_count\": torch.load(sys.argv[1])[\"logical_count\"].tolist()}, \
                    open(sys.argv[2], \"w\"))' IN.pt OUT.json` writes one that is read";
        section.refuse(Code::WrongExpertCounts, at, format!("`{name}` is a file of PyTorch, which is no text"), help);
        return None;
    }
    let mut text = String::new();
    let read = crate::shipped::lines(&folder.join(name)).map_err(|error| error.to_string());
    if let Err(error) = read.and_then(|mut file| file.read_to_string(&mut text).map_err(|error| error.to_string())) {
        section.wrong(Code::UnreadableFile, at, format!("cannot read `{name}`: {error}"));
        return None;
    }
    match parsed(&text) {
        Ok(counts) => Some(Routing::Counted(Arc::new(counts))),
        Err(why) => {
            let help = "a row for every layer with a count for every expert, columns `layer,expert,count`, or JSON with `logical_count`";
            section.refuse(Code::WrongExpertCounts, at, format!("`{name}`: {why}"), help);
            None
        }
    }
}

fn parsed(text: &str) -> Result<ExpertCounts, NoCounts> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let counts = if text.starts_with(['{', '[']) { of_json(text)? } else { of_table(text)? };
    Ok(ExpertCounts::new(counts)?)
}

fn of_json(text: &str) -> Result<Vec<Vec<f64>>, NoCounts> {
    let value: Value = serde_json::from_str(text).map_err(|_| NoCounts::NoList)?;
    let list = value.get("logical_count").unwrap_or(&value).as_array().ok_or(NoCounts::NoList)?;
    let is_nested = list.first().and_then(|layer| layer.get(0)).is_some_and(Value::is_array);
    if !is_nested {
        return layers(list);
    }
    let steps = list.iter().map(|step| layers(step.as_array().ok_or(NoCounts::NoList)?));
    steps.reduce(|sum, step| Ok(added(sum?, step?))).unwrap_or(Err(NoCounts::NoList))
}

/// Counts of two steps together.
fn added(mut sum: Vec<Vec<f64>>, step: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    sum.resize(sum.len().max(step.len()), Vec::new());
    for (all, layer) in sum.iter_mut().zip(step) {
        all.resize(all.len().max(layer.len()), 0.0);
        all.iter_mut().zip(layer).for_each(|(all, count)| *all += count);
    }
    sum
}

fn layers(list: &[Value]) -> Result<Vec<Vec<f64>>, NoCounts> {
    let layer = |layer: &Value| layer.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    list.iter().map(|found| layer(found).ok_or(NoCounts::NoList)).collect()
}

/// Lines of a table with their numbers, without blank ones.
type Lines<'t> = Vec<(usize, Vec<&'t str>)>;

fn of_table(text: &str) -> Result<Vec<Vec<f64>>, NoCounts> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut lines: Lines<'_> =
        lines.map(|(index, line)| (index + 1, line.split(',').map(str::trim).collect())).collect();
    let columns = lines.first().and_then(|(_, head)| columns(head));
    let has_head = lines.first().is_some_and(|(_, head)| head.iter().all(|cell| cell.parse::<f64>().is_err()));
    if has_head {
        lines.remove(0);
    }
    columns.map_or_else(|| by_layer(&lines), |columns| by_expert(&lines, columns))
}

/// Positions of layer, expert and count in a head.
fn columns(head: &[&str]) -> Option<[usize; 3]> {
    let column = |name: &str| head.iter().position(|cell| cell.eq_ignore_ascii_case(name));
    Some([column("layer")?, column("expert")?, column("count")?])
}

/// A row for every layer.
fn by_layer(lines: &Lines<'_>) -> Result<Vec<Vec<f64>>, NoCounts> {
    lines.iter().map(|(line, cells)| cells.iter().map(|cell| number(*line, cell)).collect()).collect()
}

/// A row for every expert; one that no row names had no token.
fn by_expert(lines: &Lines<'_>, [layer, expert, count]: [usize; 3]) -> Result<Vec<Vec<f64>>, NoCounts> {
    let mut counts: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (line, cells) in lines {
        let cell = |column: usize| cells.get(column).copied().unwrap_or_default();
        let place = (index(*line, cell(layer))?, index(*line, cell(expert))?);
        *counts.entry(place).or_default() += number(*line, cell(count))?;
    }
    let end = |of: fn(&(usize, usize)) -> usize| counts.keys().map(of).max().map_or(0, |last| last + 1);
    let mut rows = vec![vec![0.0; end(|place| place.1)]; end(|place| place.0)];
    counts.iter().for_each(|((layer, expert), count)| rows[*layer][*expert] = *count);
    Ok(rows)
}

fn number(line: usize, cell: &str) -> Result<f64, NoCounts> {
    cell.parse().map_err(|_| NoCounts::NoNumber { line, found: cell.to_owned() })
}

/// A layer or an expert.
fn index(line: usize, cell: &str) -> Result<usize, NoCounts> {
    let index = cell.parse::<u64>().ok().filter(|index| *index < EXPERTS_MAX);
    let index = index.and_then(|index| usize::try_from(index).ok());
    index.ok_or_else(|| NoCounts::NoIndex { line, found: cell.to_owned() })
}

impl ExpertChoice {
    /// How tokens spread over the experts of a model.
    pub fn routing(&self, model: &Model) -> Routing {
        self.routing.clone().unwrap_or_else(|| engine_preset::routing(model))
    }

    /// Whether it says more than a law of loads.
    pub const fn is_written(&self) -> bool {
        matches!(self.routing, Some(Routing::Counted(_))) || self.redundant.is_some() || self.deep_ep.is_some()
    }

    /// What is balanced by loads that nobody counted, as a sentence.
    pub fn drawn(&self) -> Option<String> {
        let n = self.redundant.filter(|_| !matches!(self.routing, Some(Routing::Counted(_))))?;
        Some(format!(
            "`engine.redundant_experts` = {n}: loads are drawn from a law, not counted; `expert_counts` has counted ones"
        ))
    }

    /// Why nothing is sent on so many ranks of data-parallel attention, or nothing beside computation, and what to do.
    pub fn misfit_of_ranks(&self, ranks: u32) -> Option<(String, &'static str)> {
        if self.overlaps_batches && self.deep_ep.is_none() {
            let what = "`engine.two_batch_overlap` without DeepEP: nothing is sent beside computation".to_owned();
            return Some((what, "a `dispatcher` of DeepEP, or no overlap"));
        }
        let mode = self.deep_ep.filter(|_| ranks < 2)?;
        let what =
            format!("`engine.dispatcher` = \"{}\" with one rank of attention: every GPU has all tokens", mode.word());
        Some((what, "data-parallel attention, an `ep` above `tp`; or no `dispatcher`"))
    }

    /// What does not fit a model whose experts are cut over so many GPUs that attend as well, if any do, and what to do.
    pub fn misfit(&self, model: &Model, expert_degree: Option<u32>) -> Option<(String, &'static str)> {
        let experts = model.experts?;
        let of_counts = self.misfit_of_counts(model, experts);
        of_counts.or_else(|| self.misfit_of_replicas(experts, expert_degree?))
    }

    fn misfit_of_counts(&self, model: &Model, experts: Experts) -> Option<(String, &'static str)> {
        let Some(Routing::Counted(counts)) = &self.routing else { return None };
        let n_layers = (0..model.n_layers).filter(|index| model.layers.layer(*index).has_experts()).count();
        let (found, layers) = (counts.n_experts() as u64, counts.n_layers());
        if found != experts.n_routed || (layers != 1 && layers != n_layers) {
            let (name, expected) = (&model.name, experts.n_routed);
            let what = format!(
                "`expert_counts` has {layers} layers of {found} experts, `{name}` has {n_layers} of {expected}"
            );
            return Some((what, "counts of this model: one row for all layers, or one for each that has experts"));
        }
        let (layer, expert, [found, most]) = counts.too_busy(experts.top_k)?;
        let what = format!(
            "`expert_counts`: expert {expert} of row {layer} has {found:.1} % of all visits, above {most:.1} %"
        );
        Some((what, "a token visits each of its experts once, so none has more than `1 / top_k` of the visits"))
    }

    fn misfit_of_replicas(&self, experts: Experts, expert_degree: u32) -> Option<(String, &'static str)> {
        let (redundant, n) = (self.redundant?, experts.n_routed);
        if expert_degree == 1 {
            let what = "`redundant_experts` with `ep = 1`: every GPU has a part of each expert".to_owned();
            return Some((what, "an `ep` above 1, or no `redundant_experts`"));
        }
        let divides = (n + u64::from(redundant)).is_multiple_of(u64::from(expert_degree));
        let what = format!("{n} experts and {redundant} `redundant_experts` on `ep` = {expert_degree} GPUs");
        (!divides).then_some((what, "every GPU holds as many: a sum that `ep` divides"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Result<ExpertCounts, NoCounts> {
        parsed(text)
    }

    #[test]
    fn all_forms_of_the_same_counts_are_the_same() {
        let expected = counts("1,2,3\n0,0,0\n4,5,6\n").expect("a table");
        assert_eq!((expected.n_layers(), expected.n_experts()), (2, 3));
        for text in [
            "a,b,c\n1,2,3\n4,5,6\n",
            "layer,expert,count\n3,0,1\n3,1,2\n3,2,3\n4,0,4\n4,1,5\n4,2,5\n4,2,1\n",
            "{ \"logical_count\": [[1, 2, 3], [0, 0, 0], [4, 5, 6]] }",
            "[[[1, 1, 1], [4, 5, 6]], [[0, 1, 2], [0, 0, 0]]]",
        ] {
            assert_eq!(counts(text), Ok(expected.clone()), "{text}");
        }
    }

    #[test]
    fn what_is_no_count_is_named_with_its_line() {
        assert_eq!(counts("1,2\n3,x\n"), Err(NoCounts::NoNumber { line: 2, found: "x".to_owned() }));
        assert_eq!(counts("layer,expert,count\n0,-1,3\n"), Err(NoCounts::NoIndex { line: 2, found: "-1".to_owned() }));
        assert_eq!(counts("{ \"physical\": 3 }"), Err(NoCounts::NoList));
        assert!(matches!(counts("1,2\n3\n"), Err(NoCounts::Wrong(WrongCounts::Ragged { layer: 1, .. }))));
        assert_eq!(counts(""), Err(NoCounts::Wrong(WrongCounts::Empty)));
    }
}
