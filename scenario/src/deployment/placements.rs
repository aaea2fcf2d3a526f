//! `[policies]` of `throughput`: policies by name, and variants with a placement and a load of their own.

use planner::deploy::helix::{Placement, Range, Scheduling, Way};
use planner::deploy::objective::Objective;
use planner::deploy::policies::serving;
use toml_span::value::ValueInner;

use super::inventory::placed;
use super::load::{self, Given};
use super::objective;
use input::diagnostic::Code;
use input::reader::Section;
use input::run_list::RunList;

/// Where layers lie, and how requests go.
type Flowing = (&'static Placement, Scheduling);

/// One way of serving that a scenario compares.
#[derive(Clone, Debug)]
pub struct ThroughputChoice {
    /// Name in results.
    pub name: String,
    /// What it does.
    pub way: Way,
}

/// What a placement is about.
#[derive(Clone, Copy)]
pub struct Extent<'e> {
    /// Nodes of the pool, as the file lists them.
    pub nodes: &'e [usize],
    /// Layers of the model.
    pub n_layers: u32,
    /// Types of nodes, as the file lists them; each is a pipeline of its own under `separate`.
    pub kinds: &'e [usize],
}

fn choice(name: &str, (placement, scheduling): Flowing, load: &Given) -> ThroughputChoice {
    let (placement, load) = (placement.clone(), load.load.clone());
    ThroughputChoice { name: name.to_owned(), way: Way { placement, scheduling, load, decodes_max: None } }
}

/// Reads the section: the choices in order, and the baseline.
pub fn policies(mut section: Section<'_>, load: &Given, extent: Extent<'_>) -> (Vec<ThroughputChoice>, String) {
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, load, extent)));
    let plain = serving(Objective::Throughput, |policy| policy.flows.map(|flows| choice(policy.name, flows, load)));
    let RunList { choices, baseline } = objective::run_list(&mut section, Objective::Throughput, plain, variants);
    section.finish();
    (choices.into_iter().map(|(_, choice)| choice).collect(), baseline)
}

/// `[[policies.variant]]`: a policy under a name of its own.
fn variant(mut section: Section<'_>, load: &Given, extent: Extent<'_>) -> Option<(String, ThroughputChoice)> {
    let name = section.name();
    let policy = of_key(&mut section, "policy");
    if policy.is_none() && section.at().is_some() {
        section.missing("policy", "a policy, for example `helix`");
    }
    let placement = of_key(&mut section, "placement").map(|flows| flows.0.clone());
    let solver_s = section.number("solver_s", 0.0, 0.0..=36_000.0);
    let ranges = ranges(&mut section, extent.nodes, extent.n_layers);
    let placed = placement.clone().or(policy.map(|flows| flows.0.clone()));
    let is_split = placed == Some(Placement::Separate) && policy.is_some_and(|flows| flows.1 != Scheduling::Flow);
    let load = load::variant(&mut section, load, if is_split { extent.kinds } else { &[0] }).load;
    let decodes_max = section.some_count("decodes_max", 1..=1_000_000);
    section.finish();
    let (name, policy) = (name?, policy?);
    let mut placement = ranges.map(Placement::Given).or(placement).unwrap_or_else(|| policy.0.clone());
    if let Placement::Searched { solver_s: seconds } = &mut placement {
        *seconds = solver_s;
    }
    let way = Way { placement, scheduling: policy.1, load, decodes_max };
    Some((name.clone(), ThroughputChoice { name, way }))
}

fn of_key(section: &mut Section<'_>, key: &'static str) -> Option<Flowing> {
    objective::named(section, key, None, Objective::Throughput)?.flows
}

/// A layer range for every node, in the order of `[[inventory.gpus]]`, machine by machine; an empty list is no layers.
fn ranges(section: &mut Section<'_>, nodes: &[usize], n_layers: u32) -> Option<Vec<Range>> {
    let (value, at) = section.take("ranges")?;
    let range = |value: &toml_span::Value<'_>| {
        let pair = value.as_array()?;
        let bound = |at: usize| pair.get(at)?.as_integer().and_then(|n| u32::try_from(n).ok());
        match pair.len() {
            0 => Some(Range::default()),
            2 => Some(Range { first: bound(0)?, end: bound(1)? }).filter(|r| r.first < r.end && r.end <= n_layers),
            _ => None,
        }
    };
    let found = match &value {
        ValueInner::Array(items) => items.iter().map(range).collect::<Option<Vec<Range>>>(),
        _ => None,
    };
    let n_nodes = nodes.len();
    let found = found.filter(|ranges| ranges.len() == n_nodes);
    if found.is_none() && n_nodes > 0 {
        let what = format!("`ranges` must be a list of {n_nodes} pairs, one for each node");
        let help = format!("a pair is [first layer, one beyond the last], from 0 to {n_layers}; [] holds none");
        section.refuse(Code::WrongRanges, at, what, help);
    }
    Some(placed(&found?, nodes))
}
