//! `[graph]`: a graph from a file, from a seed, or by the counts of a published one.

use std::path::{Path, PathBuf};

use ::graph::Csr;
use ::graph::csr::{Direction, Removed};
use ::graph::distribution::Degrees;
use ::graph::generate::{self, Bursts, Quadrants};
use ::graph::published::{SHAPES, Shape};
use ::graph::read::{self, Columns, Edges, ReadError};
use ::graph::tcsr::Event;
use ::planner::graph::Known;
use ::planner::graph::source::{Source, trained};

use input::diagnostic::Code;
use input::reader::{Place, Section, small};
use input::text_file;

/// Exponent of degrees where nothing is said: an assumption, social and web graphs lie between 2 and 2.5.
const EXPONENT: f64 = 2.2;
/// Most edges of a graph that is made or read into memory.
const EDGES_MAX: u64 = 200_000_000;
const GENERATORS: [&str; 5] = ["degrees", "rmat", "barabasi-albert", "configuration", "bursts"];
/// Keys of a graph that is made or read, which a published one has by itself.
const DESCRIBED: [&str; 8] =
    ["vertices", "edges", "direction", "train_ratio", "skew", "burst_events", "features_file", "generator"];
/// Keys of a published one alone, and of several sources.
const OTHERS: [&str; 3] = ["train_vertices", "exponent", "features"];
const DIRECTIONS: [(&str, Direction); 2] = [("undirected", Direction::Undirected), ("directed", Direction::Directed)];

/// A graph as far as it is known.
pub struct Given {
    /// Rows, degrees or events.
    pub source: Source,
    /// Edges.
    pub n_edges: u64,
    /// Numbers of a feature.
    pub width: u64,
    /// Where a published graph comes from.
    pub input: Vec<String>,
    /// What was assumed.
    pub assumed: Vec<String>,
}

/// Reads the section; `is_temporal` where events are asked for, `has_batches` where a part of the vertices is trained on.
pub fn given(
    mut section: Section<'_>,
    folder: &Path,
    seed: u64,
    is_temporal: bool,
    has_batches: bool,
) -> Option<Given> {
    let sources = section.alternatives(&["published", "generator", "file"]);
    let source = match sources[..] {
        [one] => one,
        [] => {
            section.missing("generator", "give one of `published`, `generator` and `file`");
            return None;
        }
        _ => {
            let what = format!("`graph` has {} together", sources.join(" and "));
            section.refuse_all(Code::ExclusiveKeys, what, "keep the one that is meant");
            return None;
        }
    };
    if !has_batches && !is_temporal {
        let key = if source == "published" { "train_vertices" } else { "train_ratio" };
        section.idle(&[key], "`objective.is = \"caching\"`: pairs are trained on, whichever vertices they have");
    }
    let n_errors = section.n_errors();
    let found = match source {
        "published" => published(&mut section, is_temporal),
        "file" => file(&mut section, folder, is_temporal),
        _ => generated(&mut section, seed, is_temporal),
    };
    if source == "published" {
        described_twice(&mut section);
    } else if section.n_errors() > n_errors {
        // Keys that a wrong value kept from being read are not unknown.
        DESCRIBED.into_iter().chain(OTHERS).for_each(|key| drop(section.take(key)));
    }
    section.finish();
    found
}

/// Refuses keys that describe another graph beside a published one.
fn described_twice(section: &mut Section<'_>) {
    let keys: Vec<&'static str> = DESCRIBED.into_iter().filter(|key| section.has(key)).collect();
    let Some(at) = keys.first().and_then(|key| section.place(key)) else { return };
    for key in &keys {
        section.take(key);
    }
    let what = format!("`graph.published` has its own counts, and `graph` also says `{}`", keys.join("`, `"));
    let help = "`published`, `generator` and `file` exclude each other: leave out what describes another graph";
    section.refuse(Code::ExclusiveKeys, at, what, help);
}

fn published(section: &mut Section<'_>, is_temporal: bool) -> Option<Given> {
    let names = || SHAPES.iter().map(|shape| shape.name);
    let shape = section.known("published", (Code::UnknownName, "graph"), names, Shape::named)?;
    let n_train = section.count("train_vertices", Some(shape.n_train.min(shape.n_vertices)), 1..=shape.n_vertices).0;
    let width = section.count("features", Some(shape.width), 1..=65_536).0;
    let found = by_degrees(section, (shape.n_vertices, shape.n_edges), shape.slots_per_edge, n_train, width);
    if is_temporal {
        section.refuse_all(Code::WrongGraph, format!("`{}` has no times", shape.name), "give `generator` or a `file`");
    }
    Some(Given { input: vec![format!("{}: {}", shape.name, shape.source)], ..found })
}

/// A graph of which degrees are assumed.
fn by_degrees(
    section: &mut Section<'_>,
    (n_vertices, n_edges): (u64, u64),
    slots_per_edge: u64,
    n_train: u64,
    width: u64,
) -> Given {
    let exponent = section.number("exponent", EXPONENT, 1.5..=5.0);
    let degrees = Degrees::power_law(hw::real(n_vertices), hw::real(slots_per_edge * n_edges), exponent);
    Given {
        source: Source::Known(Known::Degrees { degrees, n_train: hw::real(n_train) }),
        n_edges,
        width,
        input: Vec::new(),
        assumed: vec![format!(
            "`graph.exponent` = {exponent}: degrees are assumed to fall so, only their mean is known"
        )],
    }
}

fn generated(section: &mut Section<'_>, seed: u64, is_temporal: bool) -> Option<Given> {
    let at = section.place("generator").flatten();
    let name = GENERATORS[section.word("generator", 0, &GENERATORS)];
    let (degrees_only, n_errors) = (name == "degrees", section.n_errors());
    let most = if degrees_only { 1 << 40 } else { 1 << 31 };
    // What is missing is said and stands at its least here.
    let n_vertices = section.count("vertices", None, 2..=most).0.max(2);
    let n_edges = section.count("edges", None, 1..=if degrees_only { 1 << 50 } else { EDGES_MAX }).0.max(1);
    let width = section.count("features", None, 1..=65_536).0.max(1);
    // What is wrong with a count was said already.
    if section.n_errors() == n_errors && n_edges / n_vertices > n_vertices {
        let what = format!("{n_edges} edges are more than {n_vertices} vertices can have");
        section.refuse_all(Code::WrongGraph, what, "`vertices` and `edges` count the whole graph");
        return None;
    }
    if degrees_only {
        let ratio = if is_temporal { 1.0 } else { train_ratio(section) };
        let n_train = hw::whole(hw::real(n_vertices) * ratio).max(1);
        let slots_per_edge = match section.one_of("direction", Direction::Undirected, &DIRECTIONS) {
            Direction::Directed => 1,
            Direction::Undirected => 2,
        };
        return Some(by_degrees(section, (n_vertices, n_edges), slots_per_edge, n_train, width));
    }
    if is_temporal != (name == "bursts") {
        let help = "sequences take `bursts` or `degrees`, the others every generator but `bursts`";
        section.refuse(Code::WrongGraph, at, format!("`{name}` makes no graph for this objective"), help);
        return None;
    }
    let n_small = small(n_vertices);
    if name == "bursts" {
        let length = section.number("burst_events", 8.0, 1.0..=1e6);
        let skew = section.number("skew", 2.0, 1.0..=20.0);
        let shape = Bursts { n_vertices: n_small, n_events: n_edges, length, skew, span: 1 << 40 };
        return Some(temporal(n_small, n_edges, Box::new(move || generate::bursts(&shape, seed)), width));
    }
    let make: Box<dyn FnOnce() -> Vec<(u32, u32)> + Send> = match name {
        "rmat" => {
            let scale = 64 - (n_vertices - 1).leading_zeros();
            if 1_u64 << scale != n_vertices {
                let what = format!("`graph.vertices` is {n_vertices}, R-MAT has a power of two");
                section.refuse(Code::WrongGraph, None, what, format!("write `vertices = {}`", 1_u64 << scale));
                return None;
            }
            let skew = section.number("skew", Quadrants::GRAPH500.a, 0.25..=0.9);
            Box::new(move || generate::rmat(scale, n_edges, Quadrants::skewed(skew), seed))
        }
        "barabasi-albert" => {
            let per_vertex = u32::try_from(n_edges.div_ceil(n_vertices)).unwrap_or(u32::MAX);
            Box::new(move || generate::barabasi_albert(n_small, per_vertex, seed))
        }
        _ => {
            let exponent = section.number("exponent", EXPONENT, 1.5..=5.0);
            Box::new(move || {
                let degrees = Degrees::power_law(hw::real(n_vertices), hw::real(n_edges + n_edges), exponent);
                generate::configuration(&degrees.rounded(), seed)
            })
        }
    };
    let direction = section.one_of("direction", Direction::Undirected, &DIRECTIONS);
    let source = Source::Edges { make, n_vertices: n_small, direction, train_ratio: train_ratio(section) };
    Some(Given { source, n_edges, width, input: Vec::new(), assumed: Vec::new() })
}

fn train_ratio(section: &mut Section<'_>) -> f64 {
    section.number("train_ratio", 0.1, 1e-9..=1.0)
}

fn temporal(n_vertices: u32, n_edges: u64, make: Box<dyn FnOnce() -> Vec<Event> + Send>, width: u64) -> Given {
    Given { source: Source::Events { make, n_vertices }, n_edges, width, input: Vec::new(), assumed: Vec::new() }
}

/// A graph of a file's edges.
fn of_edges(section: &mut Section<'_>, edges: &Edges, direction: Direction, at: &Place) -> Option<Given> {
    match Csr::from_edges(edges.n_vertices, &edges.edges, direction) {
        Ok((graph, removed)) => of_rows(section, graph, removed),
        Err(why) => {
            section.wrong(Code::WrongGraph, at.clone(), why.to_string());
            None
        }
    }
}

fn of_rows(section: &mut Section<'_>, graph: Csr, removed: Removed) -> Option<Given> {
    if graph.n_slots() == 0 {
        let what = "no edge is left, so every frontier is empty".to_owned();
        section.refuse_all(Code::WrongGraph, what, "the graph has self-loops alone");
        return None;
    }
    let (n_edges, train) = (graph.n_slots(), trained(&graph, train_ratio(section)));
    let source = Source::Known(Known::Whole { graph, train, removed });
    Some(Given { source, n_edges, width: 0, input: Vec::new(), assumed: Vec::new() })
}

fn file(section: &mut Section<'_>, folder: &Path, is_temporal: bool) -> Option<Given> {
    let (name, at) = section.text("file")?;
    let n_vertices = section.has("vertices").then(|| section.count("vertices", None, 1..=1 << 31).0);
    let direction = section.one_of("direction", Direction::Undirected, &DIRECTIONS);
    let width = section.has("features").then(|| section.count("features", None, 1..=65_536).0);
    let features = section.text("features_file");
    let path = edges_of(&folder.join(&name));
    let bytes = match text_file::bytes(&path) {
        Ok(bytes) => bytes,
        Err(why) => {
            section.wrong(Code::UnreadableFile, at, format!("cannot read `{name}`: {why}"));
            return None;
        }
    };
    let columns = if is_temporal { Columns::Event } else { Columns::Edge };
    let mut found = match made(section, (&name, &at), (bytes, columns, n_vertices), direction)? {
        Made::Rows(graph) => of_rows(section, graph, Removed::default())?,
        Made::Listed(edges) if is_temporal => {
            temporal(edges.n_vertices, edges.edges.len() as u64, Box::new(move || edges.events()), 0)
        }
        Made::Listed(edges) => of_edges(section, &edges, direction, &at)?,
    };
    let n_vertices = match &found.source {
        Source::Known(Known::Whole { graph, .. }) => u64::from(graph.n_vertices()),
        Source::Events { n_vertices, .. } => u64::from(*n_vertices),
        _ => 0,
    };
    found.width = match (width, features) {
        (Some(width), None) => width,
        (given, Some((name, at))) => features_of(section, folder, (&name, at), n_vertices, given)?,
        (None, None) => {
            section.missing("features", "numbers of a feature, or `features_file`");
            return None;
        }
    };
    Some(found)
}

enum Made {
    Rows(Csr),
    Listed(Edges),
}

/// A graph of a file's bytes; a finding where there is none.
fn made(
    section: &mut Section<'_>,
    (name, at): (&str, &Place),
    (bytes, columns, n_vertices): (Vec<u8>, Columns, Option<u64>),
    direction: Direction,
) -> Option<Made> {
    let read = || -> Result<Made, ReadError> {
        if bytes.starts_with(b"PK") {
            return Ok(Made::Rows(read::rows(&bytes)?));
        }
        Ok(Made::Listed(read::edges(&bytes, columns, n_vertices)?))
    };
    let made = read().map_err(|why| section.wrong(Code::WrongGraph, at.clone(), format!("`{name}`: {why}"))).ok()?;
    if matches!(made, Made::Rows(_)) && (direction == Direction::Directed || n_vertices.is_some()) {
        let what = format!("`{name}` has rows; `direction` and `vertices` are for lists of edges");
        section.refuse(Code::NoEffect, at.clone(), what, "leave both out");
    }
    Some(made)
}

/// The list of edges of a folder as OGB lays it out, or the file itself.
fn edges_of(path: &Path) -> PathBuf {
    let places = ["raw/edge.csv.gz", "raw/edge.csv", "edge.csv.gz", "edge.csv"];
    let found = places.iter().map(|place| path.join(place)).find(|place| place.is_file());
    found.unwrap_or_else(|| path.to_path_buf())
}

/// Width of the features in a file.
fn features_of(
    section: &mut Section<'_>,
    folder: &Path,
    (name, at): (&str, Place),
    n_vertices: u64,
    given: Option<u64>,
) -> Option<u64> {
    let width = text_file::bytes(&folder.join(name))
        .map_err(|why| why.to_string())
        .and_then(|bytes| read::width(name, &bytes, n_vertices).map_err(|why| why.to_string()));
    match (width, given) {
        (Ok(width), Some(given)) if width != given => {
            let what = format!("`graph.features` is {given}, `{name}` has {width} numbers for each vertex");
            section.refuse(Code::WrongGraph, at, what, format!("write `features = {width}`"));
            None
        }
        (Ok(width), _) => Some(width),
        (Err(why), _) => {
            section.wrong(Code::WrongGraph, at, why);
            None
        }
    }
}
