//! Layers behind the last one that predict tokens further on: how many, and what they are where their type has others than its own layers.
//!
//! Source: `step3p5_mtp.py`, `mimo_v2_flash_mtp.py`, `longcat_flash_mtp.py` and `qwen3_next_mtp.py` of vllm-project/vllm, `model_executor/models`.

use super::reader::Reader;
use super::types::{Family, Type};
use crate::model::{FeedForward, Layer, Mixer, Pattern};

/// Keys that say how many; each file has one of them.
const KEYS: [&str; 3] = ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"];

/// How many, behind so many layers, and what each is; `None` where it is as the model's others.
pub(super) fn predicting(of: Type, layers: &Pattern, n_layers: u64, reader: &mut Reader<'_>) -> (u64, Option<Layer>) {
    let is_stated = KEYS.into_iter().filter(|key| reader.has(key)).count() > 0;
    let stated = KEYS.map(|key| reader.count(key)).into_iter().max().unwrap_or(0);
    let n = if is_stated { stated } else { of.n_predicting };
    let near = layers.kinds().into_iter().map(|layer| layer.mixer).find(|mixer| matches!(mixer, Mixer::Window(_)));
    let near = near.unwrap_or(Mixer::Full);
    let layer = match of.family {
        Family::Step => Some(step(near, n_layers, reader)),
        Family::MimoV2 => Some(Layer { mixer: near, ..Layer::DENSE }),
        Family::Longcat => Some(Layer::DENSE),
        _ => None,
    };
    (n, layer)
}

/// Step: files list their windows and experts behind those of the model's layers, and have windows and no experts there.
fn step(near: Mixer, n_layers: u64, reader: &mut Reader<'_>) -> Layer {
    let at = usize::try_from(n_layers).unwrap_or(usize::MAX);
    let is_whole = reader.words("layer_types").is_some_and(|words| words.get(at) == Some(&"full_attention"));
    let listed = reader.word("moe_layers_enum").unwrap_or("");
    let has_experts = listed.split(',').any(|part| part.trim().parse() == Ok(n_layers));
    Layer {
        mixer: if is_whole { Mixer::Full } else { near },
        feed_forward: if has_experts { FeedForward::Experts } else { FeedForward::Dense },
    }
}
