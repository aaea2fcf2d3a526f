//! Types of nodes: from the authors' measurements (`profiles/published/helix.toml`), from a file like it, or from a datasheet.
//!
//! Units: milliseconds in files, seconds in types; tokens.

use std::sync::LazyLock;

use engine::model::Model;
use hw::Gpu;
use serde::Deserialize;
use serve::pool::curve::NoCurve;
use serve::pool::{Curve, NodeType, Room};

use crate::deploy::roofline::{BATCH_MAX, Layer, MEMORY_USED, Pass};
use crate::deploy::thunderserve::Beside;

/// Schema of a file of tables.
const SCHEMA: &str = "skrull-sim/published-helix/1";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: String,
    model: Vec<Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    model: String,
    node: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    layers_max: u32,
    layers_typical: u32,
    prompt_ms: Vec<(f64, f64)>,
    decode_ms: Vec<(f64, f64)>,
    rooms: Vec<(u32, u64, u32, u32)>,
}

/// Types of nodes with times of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTypes {
    /// Name of the table.
    pub name: String,
    /// Model that it was measured with.
    pub model: String,
    /// Types.
    pub types: Vec<NodeType>,
}

static PUBLISHED: LazyLock<Vec<NodeTypes>> = LazyLock::new(|| {
    parse(include_str!("../../../../profiles/published/helix.toml")).expect("the shipped file is held by a test")
});

/// The published tables.
pub fn published() -> &'static [NodeTypes] {
    &PUBLISHED
}

/// What is wrong with a file of tables.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoTable {
    /// It is not TOML, or has other keys.
    #[error("{0}")]
    Syntax(String),
    /// It is of another version.
    #[error("schema is `{0}`, expected `{SCHEMA}`")]
    Schema(String),
    /// A list of times makes no curve.
    #[error("`{key}` of `{name}`: {why}")]
    Curve { key: String, name: String, why: NoCurve },
    /// Rooms of a type of node do not rise.
    #[error("`rooms` of `{0}` must have rising layers and nothing that is 0")]
    Rooms(String),
    /// Layers lie outside of the rooms.
    #[error("`layers_max` and `layers_typical` of `{name}` are 1 to {most}, the layers of `rooms`")]
    Layers { name: String, most: u32 },
}

/// Reads a file of tables.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<NodeTypes>, NoTable> {
    let file: File = toml::from_str(text).map_err(|error| NoTable::Syntax(error.message().to_owned()))?;
    if file.schema != SCHEMA {
        return Err(NoTable::Schema(file.schema));
    }
    let table = |table: Table| {
        let types = table.node.into_iter().map(node).collect::<Result<Vec<_>, NoTable>>()?;
        Ok(NodeTypes { name: table.name, model: table.model, types })
    };
    file.model.into_iter().map(table).collect()
}

fn node(row: Row) -> Result<NodeType, NoTable> {
    let name = row.name;
    let curve = |points: Vec<(f64, f64)>, key: &str| {
        let seconds = points.into_iter().map(|(tokens, ms)| (tokens, ms / 1e3)).collect();
        Curve::new(seconds).map_err(|why| NoTable::Curve { key: key.to_owned(), name: name.clone(), why })
    };
    let (prompt, decode) = (curve(row.prompt_ms, "prompt_ms")?, curve(row.decode_ms, "decode_ms")?);
    let room =
        |&(layers, kv_tokens, prompts, decodes): &(u32, u64, u32, u32)| Room { layers, kv_tokens, prompts, decodes };
    let rooms: Vec<Room> = row.rooms.iter().map(room).collect();
    let bare = |room: &Room| room.layers == 0 || room.kv_tokens == 0 || room.prompts == 0 || room.decodes == 0;
    if rooms.is_empty() || rooms.iter().any(bare) || rooms.windows(2).any(|pair| pair[1].layers <= pair[0].layers) {
        return Err(NoTable::Rooms(name));
    }
    let most = rooms.last().map_or(0, |room| room.layers);
    if !(1..=most).contains(&row.layers_max) || !(1..=most).contains(&row.layers_typical) {
        return Err(NoTable::Layers { name, most });
    }
    let (layers_max, layers_typical) = (row.layers_max, row.layers_typical);
    Ok(NodeType { name, prompt, decode, rooms, layers_max, layers_typical })
}

/// Share of the memory that weights may take, so that caches have room; Helix's rule.
const WEIGHTS_RATIO: f64 = 0.5;
/// Batch sizes at which a datasheet's curve has a point: powers of two up to this one.
const TOKENS_LOG2: u32 = 13;

/// A type of node with one GPU from datasheet figures, in 16 bits, with the times of `deploy/roofline.rs`.
/// `context` is the cached tokens of a decoding request; `None` where not one layer fits.
pub fn datasheet(gpu: &Gpu, model: &Model, context: f64) -> Option<NodeType> {
    datasheet_of((gpu, 1), (model, &Beside::default()), context)
}

/// The same with so many tensor-parallel GPUs, and with adapters beside the model: their slots lie with the layers.
pub fn datasheet_of((gpu, tp): (&Gpu, u32), (model, beside): (&Model, &Beside), context: f64) -> Option<NodeType> {
    let n_gpus = f64::from(tp);
    let layer = Layer::of(model);
    let (weights, cached) = (layer.weight_bytes + beside.slot_bytes(model, tp), layer.kv_bytes);
    let adapted = |tokens: f64, requests: f64| beside.adapting_s(model, (gpu, tp), tokens, requests);
    let seconds = |tokens: f64, attended: f64, read: f64| layer.seconds(gpu, n_gpus, Pass { tokens, attended, read });
    let sizes = || (0..=TOKENS_LOG2).map(|power| f64::from(1_u32 << power));
    // Causal attention: half of the prompt on average.
    let prompt = Curve::new(sizes().map(|s| (s, seconds(s, s / 2.0, s) + adapted(s, 1.0))).collect()).ok()?;
    let decode = Curve::new(sizes().map(|b| (b, seconds(b, context, b * context) + adapted(b, b))).collect()).ok()?;
    let usable = MEMORY_USED * n_gpus * gpu.memory.as_f64();
    let room = |k: u32| {
        let free = usable - f64::from(k) * weights;
        let kv_tokens = (free / (f64::from(k) * cached)).max(0.0).floor();
        Room { layers: k, kv_tokens: hw::whole(kv_tokens), prompts: 1, decodes: crate::deploy::whole(BATCH_MAX) }
    };
    let n_layers = u32::try_from(model.n_layers).unwrap_or(u32::MAX);
    let rooms: Vec<Room> = (1..=n_layers).map(room).take_while(|room| room.kv_tokens > 0).collect();
    let most = rooms.last()?.layers;
    let layers_max =
        crate::deploy::whole((WEIGHTS_RATIO * n_gpus * gpu.memory.as_f64() / weights).floor()).clamp(1, most);
    let name = gpu.name.clone();
    Some(NodeType { name, prompt, decode, rooms, layers_max, layers_typical: (2 * layers_max / 3).max(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datasheets_layer_reads_its_weights_once() {
        // Llama-2-70B: 68.98e9 parameters over 80 layers are 1.7244 GB each; at 0.8 x 300 GB/s that takes 7.185 ms, as far as a decoding
        // request with 1,000 cached tokens of 4,096 bytes adds 4.1 MB, 0.017 ms.
        let gpu = hw::catalog::gpu("l4").expect("listed");
        let model = engine::model::embedded("llama-2-70b").expect("embedded");
        let node = datasheet(&gpu, &model, 1000.0).expect("it fits");
        assert!((node.decode.at(1.0) - 7.20e-3).abs() < 0.02e-3, "{}", node.decode.at(1.0));
        // Half of 24 GiB over 1.7244 GB.
        assert_eq!(node.layers_max, 7);
        // The authors measured 6.9 ms.
        let measured = &published()[0].types[1];
        assert_eq!(measured.name, "L4");
        assert!((measured.decode.at(1.0) - 6.9e-3).abs() < 1e-12);
    }

    #[test]
    fn files_without_meaning_are_named() {
        let text = include_str!("../../../../profiles/published/helix.toml");
        let why = |from: &str, to: &str| parse(&text.replacen(from, to, 1)).expect_err("no meaning").to_string();
        assert_eq!(why("helix/1", "helix/9"), format!("schema is `skrull-sim/published-helix/9`, expected `{SCHEMA}`"));
        assert!(why("layers_max = 12", "layers_max = 99").starts_with("`layers_max` and `layers_typical` of `A100`"));
        assert_eq!(why("[500, 4]", "[250, 4]"), "`prompt_ms` of `A100`: tokens must rise, found 250 after 250");
        assert!(why("[2, 3777712, 3, 480]", "[1, 3777712, 3, 480]").starts_with("`rooms` of `A100`"));
    }
}
