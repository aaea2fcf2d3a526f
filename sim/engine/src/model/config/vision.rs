//! `vision_config` of a `config.json` → `VisionEncoder`: those of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, Gemma 3 and Llama 4.
//!
//! A processor's limits of pixels are in another file, `preprocessor_config.json`; those that the public checkpoints have are taken.

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::model::vision::{LLAMA4_TILES, QWEN2_PIXELS, QWEN3_PIXELS};
use crate::model::{Grid, SIDE_MAX, Squares, Tower, VisionEncoder};

/// Tokens of an image where the file does not say so, as in `configuration_gemma3.py`.
const GEMMA3_TOKENS: u64 = 256;
/// Largest width that is taken for real, so that parameters can be counted.
const WIDTH_MAX: u64 = 1_000_000;
/// Most layers that are taken for real.
const LAYERS_MAX: u64 = 10_000;

/// The encoder that a file describes, with what is wrong with it; `None` where nobody here knows it. `hidden`: width of the model behind it.
pub(super) fn vision(
    keys: &Map<String, Value>,
    mm_tokens: Option<u64>,
    hidden: u64,
    findings: &mut Vec<String>,
) -> Option<VisionEncoder> {
    let mut reader = Reader::new(keys);
    let has = |key: &str| keys.get(key).is_some_and(|value| !value.is_null());
    let is = |kind: &str| keys.get("model_type").and_then(Value::as_str) == Some(kind);
    let found = if has("fullatt_block_indexes") {
        qwen25(&mut reader, hidden)
    } else if has("embed_dim") && has("spatial_merge_size") {
        qwen2(&mut reader)
    } else if has("deepstack_visual_indexes") {
        qwen3(&mut reader, hidden)
    } else if is("siglip_vision_model") {
        siglip(&mut reader, mm_tokens.unwrap_or(GEMMA3_TOKENS), hidden)
    } else if has("pixel_shuffle_ratio") {
        llama4(&mut reader, hidden)
    } else {
        return None;
    };
    let mut wrong = reader.findings;
    if wrong.is_empty() {
        wrong.extend(contradictions(&found));
    }
    let is_right = wrong.is_empty();
    findings.extend(wrong.into_iter().map(|what| format!("`vision_config`: {what}")));
    is_right.then_some(found)
}

/// Shape that all encoders of Qwen share.
fn qwen(reader: &mut Reader<'_>, (tower, hidden, intermediate): (Tower, u64, u64), out: u64) -> VisionEncoder {
    let merge = reader.optional(&["spatial_merge_size"]).unwrap_or(2);
    let joined = hidden.saturating_mul(merge.saturating_mul(merge));
    let [pixels_min, pixels_max] = if matches!(tower, Tower::Qwen3 { .. }) { QWEN3_PIXELS } else { QWEN2_PIXELS };
    VisionEncoder {
        tower,
        n_layers: reader.required(&["depth"]),
        hidden,
        n_heads: reader.required(&["num_heads"]),
        intermediate,
        patch: reader.required(&["patch_size", "spatial_patch_size"]),
        frames: reader.optional(&["temporal_patch_size"]).unwrap_or(2),
        merge,
        grid: Grid::Resized { pixels_min, pixels_max },
        squares: None,
        projector: vec![[joined, joined], [joined, out]],
    }
}

fn qwen2(reader: &mut Reader<'_>) -> VisionEncoder {
    let (hidden, out) = (reader.required(&["embed_dim"]), reader.required(&["hidden_size"]));
    let ratio = reader.optional(&["mlp_ratio"]).unwrap_or(4);
    qwen(reader, (Tower::Qwen2, hidden, hidden.saturating_mul(ratio)), out)
}

fn qwen25(reader: &mut Reader<'_>, text: u64) -> VisionEncoder {
    let (hidden, wide) = (reader.required(&["hidden_size"]), reader.required(&["intermediate_size"]));
    let out = reader.optional(&["out_hidden_size"]).unwrap_or(text);
    let n_whole = reader.numbers("fullatt_block_indexes").map_or(0, |list| list.len() as u64);
    let pixels = reader.optional(&["window_size"]).unwrap_or(112);
    let base = qwen(reader, (Tower::Qwen25, hidden, wide), out);
    if !pixels.is_multiple_of(base.patch * base.merge) {
        reader.find(
            "window_size",
            &pixels,
            &format!("multiples of {} pixels, a token's side", base.patch * base.merge),
        );
    }
    VisionEncoder { squares: Some(Squares { side: (pixels / base.patch).max(1), n_whole }), ..base }
}

fn qwen3(reader: &mut Reader<'_>, text: u64) -> VisionEncoder {
    let (hidden, wide) = (reader.required(&["hidden_size"]), reader.required(&["intermediate_size"]));
    let out = reader.optional(&["out_hidden_size"]).unwrap_or(text);
    let n_positions = reader.required(&["num_position_embeddings"]);
    let n_inner = reader.numbers("deepstack_visual_indexes").map_or(0, |list| list.len() as u64);
    qwen(reader, (Tower::Qwen3 { n_positions, n_inner }, hidden, wide), out)
}

fn siglip(reader: &mut Reader<'_>, tokens: u64, text: u64) -> VisionEncoder {
    let hidden = reader.required(&["hidden_size"]);
    let (side, patch) = (reader.required(&["image_size"]), reader.required(&["patch_size"]));
    let root = (1..=tokens.min(u64::from(SIDE_MAX))).find(|root| root.saturating_mul(*root) >= tokens).unwrap_or(1);
    if root * root != tokens || !(side / patch).is_multiple_of(root) {
        reader.find("mm_tokens_per_image", &tokens, "squares whose root divides the patches of a side");
    }
    VisionEncoder {
        tower: Tower::SigLip,
        n_layers: reader.required(&["num_hidden_layers"]),
        hidden,
        n_heads: reader.required(&["num_attention_heads"]),
        intermediate: reader.required(&["intermediate_size"]),
        patch,
        frames: 1,
        merge: (side / patch / root).max(1),
        grid: Grid::Square { side },
        squares: None,
        projector: vec![[hidden, text]],
    }
}

fn llama4(reader: &mut Reader<'_>, text: u64) -> VisionEncoder {
    let hidden = reader.required(&["hidden_size"]);
    let ratio = reader.value("pixel_shuffle_ratio").and_then(Value::as_f64).unwrap_or(0.0);
    let merge = (1..=16_u64).find(|merge| (hw::real(*merge) * ratio - 1.0).abs() < 1e-9).unwrap_or(0);
    if merge == 0 {
        reader.find("pixel_shuffle_ratio", &ratio, "1 over a whole number up to 16");
    }
    let merge = merge.max(1);
    let (into, out) = (reader.required(&["projector_input_dim"]), reader.required(&["projector_output_dim"]));
    let given = reader.required(&["vision_output_dim"]);
    VisionEncoder {
        tower: Tower::Llama4,
        n_layers: reader.required(&["num_hidden_layers"]),
        hidden,
        n_heads: reader.required(&["num_attention_heads"]),
        intermediate: reader.required(&["intermediate_size"]),
        patch: reader.required(&["patch_size"]),
        frames: 1,
        merge,
        grid: Grid::Tiles { side: reader.required(&["image_size"]), n_max: LLAMA4_TILES },
        squares: None,
        projector: vec![[hidden.saturating_mul(merge * merge), into], [into, out], [given, text]],
    }
}

fn contradictions(found: &VisionEncoder) -> Option<String> {
    let side = match found.grid {
        Grid::Square { side } | Grid::Tiles { side, .. } => side,
        Grid::Resized { .. } => found.patch.saturating_mul(found.merge),
    };
    let widths = found.projector.iter().flatten().copied().chain([found.hidden, found.intermediate]);
    if widths.max().unwrap_or(0) > WIDTH_MAX
        || found.n_layers > LAYERS_MAX
        || side > u64::from(SIDE_MAX)
        || found.frames > 64
    {
        return Some(format!("widths up to {WIDTH_MAX}, {LAYERS_MAX} layers and {SIDE_MAX} pixels are allowed"));
    }
    if let Tower::Qwen3 { n_positions, n_inner } = found.tower
        && (n_positions > WIDTH_MAX || n_inner > found.n_layers)
    {
        return Some(format!("{n_positions} positions and {n_inner} inner projectors of {} layers", found.n_layers));
    }
    if !found.hidden.is_multiple_of(found.n_heads) {
        return Some(format!("{} heads do not divide `hidden_size` {}", found.n_heads, found.hidden));
    }
    if found.squares.is_some_and(|squares| squares.n_whole > found.n_layers) {
        return Some(format!("`fullatt_block_indexes` has more entries than the {} layers", found.n_layers));
    }
    let per_token = found.patch * found.merge;
    (!side.is_multiple_of(per_token))
        .then(|| format!("`image_size` {side} is no multiple of {per_token}, a token's side"))
}
