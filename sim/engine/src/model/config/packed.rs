//! `quantization_config` of bitsandbytes → how the weights of layers lie beside adapters.
//!
//! Its kernels widen a matrix before each product, so they are no format of a product. Source of keys: huggingface/transformers
//! `utils/quantization_config.py` (`BitsAndBytesConfig`; files of older releases have no `quant_method`). `fp4` has the bytes of `nf4`.

use serde_json::{Map, Value};

use super::no_format::NoFormat;
use super::reader::says_something;
use crate::frozen::Frozen;
use crate::model::Unpriced;

/// Switches of 4 and of 8 bits, the private names of newer files too.
const FOUR: [&str; 2] = ["load_in_4bit", "_load_in_4bit"];
const EIGHT: [&str; 2] = ["load_in_8bit", "_load_in_8bit"];
/// Further keys that are read, or change neither time nor memory of training.
const KNOWN: [&str; 10] = [
    "quant_method",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "modules_to_not_convert",
];
/// What bitsandbytes leaves wide by itself.
const WIDE: &str = "lm_head";

/// How weights are packed, with what is not priced of it; `None` where the file is not of bitsandbytes.
///
/// # Errors
/// Where it packs nothing.
pub(super) fn packed(keys: &Map<String, Value>) -> Option<Result<(Frozen, Vec<Unpriced>), NoFormat>> {
    let is_on = |key: &str| keys.get(key) == Some(&Value::Bool(true));
    let (four, eight) = (FOUR.into_iter().any(is_on), EIGHT.into_iter().any(is_on));
    let method = keys.get("quant_method").and_then(Value::as_str);
    if method != Some("bitsandbytes") && !(method.is_none() && (four || eight)) {
        return None;
    }
    let frozen = match (four, eight) {
        (true, _) if is_on("bnb_4bit_use_double_quant") => Frozen::Nf4Double,
        (true, _) => Frozen::Nf4,
        (false, true) => Frozen::Int8,
        (false, false) => {
            let (key, found) = (FOUR[0].to_owned(), "`false`".to_owned());
            return Some(Err(NoFormat::NoKernel { key, found, allowed: "true, or `load_in_8bit`".to_owned() }));
        }
    };
    Some(Ok((frozen, not_priced(keys))))
}

/// Modules that stay wide, products in 32 bits, and keys that nobody reads.
fn not_priced(keys: &Map<String, Value>) -> Vec<Unpriced> {
    let mut found = Vec::new();
    let skipped = keys.get("llm_int8_skip_modules").and_then(Value::as_array);
    let n = skipped.map_or(0, |names| names.iter().filter(|name| name.as_str() != Some(WIDE)).count());
    if n > 0 {
        let what = format!("`quantization_config.llm_int8_skip_modules`, which names {n} beside the head,");
        found.push(Unpriced::taken(what, "an empty list".to_owned(), 0));
    }
    if keys.get("bnb_4bit_compute_dtype").and_then(Value::as_str) == Some("float32") {
        let what = "`quantization_config.bnb_4bit_compute_dtype`: products in 32 bits".to_owned();
        found.push(Unpriced::taken(what, "products in 16".to_owned(), 0));
    }
    let is_known = |key: &str| FOUR.contains(&key) || EIGHT.contains(&key) || KNOWN.contains(&key);
    let unread = keys.iter().filter(|(key, value)| says_something(value) && !is_known(key));
    found.extend(unread.map(|(key, _)| Unpriced::left_out(format!("key `quantization_config.{key}`"), 0)));
    found
}
