//! `objective.is = "throughput"`: one model over nodes of several types, each with a range of its layers, and most tokens per second.
//!
//! `load.rs` reads what arrives, `placements.rs` the ways of placing and scheduling.

use std::path::Path;

use engine::Model;
use engine::cost::Source as Cost;
use planner::deploy::helix::played::means;
use planner::deploy::helix::{Asked, HandOver, Machines, Typical, tables};
use planner::deploy::objective::Objective;
use planner::deploy::thunderserve::Beside;
use planner::deploy::thunderserve::beside::STATIONS_DRAFT_NOTHING;
use serve::pool::NodeType;
use serve::request::Request;

use super::inventory::{Stock, inventory};
pub use super::placements::ThroughputChoice;
use super::working::{self, Asks, Engine};
use super::{lengths_table, load, placements};
use crate::serving::{AdapterChoice, adapters};
use crate::{Head, Overrides, cluster, expect, model};
use input::diagnostic::{Code, Finding, Source};
use input::reader::{Place, Reader, Section, small, unknown};

const SECTIONS: [&str; 8] = ["model", "inventory", "objective", "engine", "requests", "load", "policies", "expect"];

/// A checked scenario of most tokens per second.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// Whose it is.
    pub head: Head,
    /// What every way is asked.
    pub asked: Asked,
    /// Where the times come from.
    pub times: Cost,
    /// Ways of serving, in order.
    pub choices: Vec<ThroughputChoice>,
    /// Parameters that were chosen and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Throughput> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let (requests, typical, asks) = requests(reader.section("requests"), head.seed);
    let stock = inventory(reader.section("inventory"), Objective::Throughput);
    let mut section = reader.section("engine");
    let engine = engine(&mut section);
    let beside = model.as_ref().map_or_else(Beside::default, |model| engine.beside(model, asks));
    let (nodes, kinds) = (stock.machines(), stock.kinds());
    let pool = machines(section, folder, (model.as_ref(), &beside), typical, stock);
    check(reader, model.as_ref(), (&engine, asks), &beside);
    let n_layers = pool.as_ref().map_or(0, |(machines, _)| machines.n_layers);
    // Without a pool nobody knows how many there are.
    let [nodes, kinds] = [&nodes, &kinds].map(|all| if pool.is_some() { &all[..] } else { &[] });
    let load = load::load(reader.section("load"), kinds);
    let extent = placements::Extent { nodes, n_layers, kinds };
    let (choices, baseline) = placements::policies(reader.section("policies"), &load, extent);
    let expectations = expect::read(reader.section("expect"));
    let (machines, times) = pool?;
    let free_parameters = vec![
        format!(
            "batches are planned for prompts of {:.0} and outputs of {:.0} tokens with {:.0} % of the caches in use",
            typical.prompt,
            typical.output,
            typical.cache_ratio * 100.0
        ),
        "concurrency of policies without admission (`in_flight`) is set by hand, as in the publication".to_owned(),
    ];
    let head = Head { baseline, expectations, ..head };
    let asked = Asked { model: model?, machines, requests, seed: head.seed };
    Some(Throughput { head, asked, times, choices, free_parameters })
}

/// What nodes run beside their layers: adapters, and nothing else that engines of whole models do.
fn engine(section: &mut Section<'_>) -> Engine {
    working::no_ffn(section);
    let keeps = "nodes with a part of the layers keep no prefixes: keys and values of one lie on every node of a way";
    for (key, what) in [("speculation", STATIONS_DRAFT_NOTHING), ("tiers", keeps)] {
        section.elsewhere(key, what, "`is = \"goodput\"` takes it for replicas of the whole model");
    }
    Engine {
        adapters: section.table("adapters").map_or(AdapterChoice::Unknown, adapters::adapters),
        ..Engine::default()
    }
}

/// Finds adapters that do not go with the model, with requests or with nodes.
fn check(reader: &mut Reader<'_>, model: Option<&Model>, (engine, asks): (&Engine, Asks), beside: &Beside) {
    if let Some(model) = model {
        engine.check(reader, model, asks);
    }
    if let Some(what) = beside.undone_by_stations() {
        reader.refuse(Code::WrongAdapters, None, what, "raise `slots` in `adapters` of `[engine]`");
    }
}

/// `[requests]`: lengths, what a typical batch is planned for, and adapters.
fn requests(mut section: Section<'_>, seed: u64) -> (Vec<Request>, Typical, Asks) {
    let n = section.size("requests", 20_000, 1..=10_000_000);
    let prompt_max = section.count("prompt_max", Some(2048), 1..=10_000_000).0;
    let output_max = section.count("output_max", Some(1024), 1..=10_000_000).0;
    let table = lengths_table(&mut section);
    let mut list = table.map_or_else(Vec::new, |table| table.sample(n, seed).list);
    list.retain(|request| u64::from(request.prompt) <= prompt_max && u64::from(request.output) <= output_max);
    if table.is_some() && list.is_empty() {
        let what = "no request is within `requests.prompt_max` and `requests.output_max`";
        section.refuse_all(Code::NoRequests, what, "raise the limits, or draw more `requests.requests`");
    }
    let (prompt, output) = means(&list);
    let typical = Typical {
        prompt: section.number("planned_prompt", prompt.max(1.0), 1.0..=1e7),
        output: section.number("planned_output", output.max(1.0), 1.0..=1e7),
        cache_ratio: section.number("planned_cache_ratio", 0.3, 0.01..=1.0),
    };
    let asks = Asks { adapters: section.table("adapters").map(adapters::popularity), shares: false };
    section.finish();
    (list, typical, asks)
}

/// `[engine]`: times of layers, and how tokens go from node to node.
fn machines(
    mut section: Section<'_>,
    folder: &Path,
    (model, beside): (Option<&Model>, &Beside),
    typical: Typical,
    stock: Stock,
) -> Option<(Machines, Cost)> {
    let tables = section.text("layer_times");
    let hand_over = [HandOver::Strict, HandOver::Partial][section.word("hand_over", 0, &["strict", "partial"])];
    let copy = section.number("copy_gb_per_s", 20.0 / 9.0, 1e-3..=1e6) * 1e9;
    let prompt_tokens_max = section.small("prompt_tokens_max", Some(2048), 1..=10_000_000);
    let context_per_decode = section.small("context_per_decode", Some(1000), 1..=10_000_000);
    let (known, times) = types(&mut section, folder, (model, beside), tables, &stock, typical)?;
    let mut types: Vec<NodeType> = Vec::new();
    for (offer, at) in stock.inventory.offers.iter().zip(&stock.places) {
        let name = &offer.name;
        match known.iter().find(|of| of.name == *name) {
            Some(found) if types.iter().all(|of| of.name != *name) => types.push(found.clone()),
            Some(_) => {}
            None => {
                let names = known.iter().map(|of| of.name.as_str());
                let what = format!("no times for nodes of type `{name}`");
                section.find(unknown(Code::NoTimes, what, name, names, at.clone()));
            }
        }
    }
    section.finish();
    let model = model?;
    let machines = Machines {
        n_layers: small(model.n_layers),
        activation_bytes: 2.0 * hw::real(model.hidden),
        types,
        inventory: stock.inventory.by_machine(),
        tensor: 1,
        hosts: Vec::new(),
        typical,
        hand_over,
        copy_bytes_per_s: copy,
        prompt_tokens_max,
        context_per_decode,
    };
    let is_known = machines.inventory.offers.iter().all(|node| machines.types.iter().any(|of| of.name == node.name));
    (stock.is_whole && is_known && !machines.inventory.offers.is_empty()).then_some((machines, times))
}

/// Types of nodes from published tables, a file or the datasheets of the catalogue, and where they come from.
fn types(
    section: &mut Section<'_>,
    folder: &Path,
    (model, beside): (Option<&Model>, &Beside),
    tables: Option<(String, Place)>,
    stock: &Stock,
    typical: Typical,
) -> Option<(Vec<NodeType>, Cost)> {
    let model = model?;
    let Some((name, at)) = tables else {
        let context = typical.prompt + typical.output / 2.0;
        let of = |name: &String| tables::datasheet_of((&hw::catalog::gpu(name)?, 1), (model, beside), context);
        let names = || stock.inventory.offers.iter().map(|offer| &offer.name);
        let known: Vec<NodeType> = names().filter_map(of).collect();
        if known.len() < stock.places.len() {
            let wrong = names().zip(&stock.places).filter(|(name, _)| of(name).is_none());
            wrong.for_each(|(name, at)| section.find(no_datasheet(name, at.clone(), model)));
            return None;
        }
        return Some((known, Cost::Datasheet));
    };
    if beside.adapts() {
        let what = "`adapters` beside `layer_times`: those times are of layers alone";
        section.refuse(Code::ExclusiveKeys, at, what, "leave `engine.layer_times` out to use datasheets");
        return None;
    }
    if let Some(table) = tables::published().iter().find(|table| table.name == name) {
        if table.model != model.name {
            let what = format!("`{name}` was measured with `{}`, the model is `{}`", table.model, model.name);
            section.refuse(Code::OtherModel, at, what, "leave `engine.layer_times` out to use datasheets");
            return None;
        }
        return Some((table.types.clone(), Cost::Published));
    }
    let text = match input::text_file::read(&folder.join(&name)) {
        Ok(text) => text,
        Err(error) => {
            let names: Vec<&str> = tables::published().iter().map(|table| table.name.as_str()).collect();
            let what = format!("`{name}` is no published table and cannot be read as a file: {error}");
            section.refuse(Code::UnreadableFile, at, what, format!("published are {}", names.join(", ")));
            return None;
        }
    };
    match tables::parse(&text) {
        Ok(found) => match found.into_iter().find(|table| table.model == model.name) {
            Some(table) => Some((table.types, Cost::Measured)),
            None => {
                let what = format!("`{name}` has no table of the model `{}`", model.name);
                section.wrong(Code::OtherModel, at, what);
                None
            }
        },
        Err(why) => {
            section.wrong(Code::WrongLayerTimes, at, format!("`{name}`: {why}"));
            None
        }
    }
}

fn no_datasheet(name: &str, at: Place, model: &Model) -> Finding {
    if hw::catalog::gpu(name).is_some() {
        let what = format!("not one layer of `{}` fits a node of type `{name}`", model.name);
        return Finding::error(Code::LayerTooLarge, at, what);
    }
    let what = format!("unknown GPU `{name}`; nodes without `engine.layer_times` are GPUs of the catalogue");
    cluster::unknown_gpu(what, name, at)
}
