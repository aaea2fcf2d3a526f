//! `quantization_config` of a `config.json` → formats of a model's parts.
//!
//! A file names one format, or one per module, and modules that stay whole. Every module of the model is asked for its format; a part has
//! the format of most of its weights, and what differs from it is named. Output heads stay whole, as engines keep them.
//! Sources of keys: huggingface/transformers `utils/quantization_config.py`, vllm-project/compressed-tensors, NVIDIA/TensorRT-Model-Optimizer.

use std::collections::BTreeMap;

use hw::{Dtype, Format};
use serde_json::{Map, Value};

use super::modules::{self, Part, names};
use super::no_format::NoFormat;
use crate::formats::Formats;
use crate::model::{Model, Unpriced};

/// Values of `quant_method`.
const METHODS: [&str; 8] =
    ["fp8", "fbgemm_fp8", "mxfp4", "awq", "gptq", "compressed-tensors", "modelopt", "modelopt_fp4"];

/// Values of `quant_algo` that have a format.
const ALGORITHMS: [(&str, Format); 9] = [
    ("FP8", Format::Fp8),
    ("FP8_PB_WO", Format::Fp8Block),
    ("FP8_BLOCK_SCALES", Format::Fp8Block),
    ("MXFP8", Format::Mxfp8),
    ("NVFP4", Format::Nvfp4),
    ("MXFP4", Format::Mxfp4),
    ("W4A16_AWQ", Format::Int4),
    ("W8A16", Format::Int8Weights),
    ("INT8_SQ", Format::Int8),
];

/// What a file says.
pub(super) struct Scheme {
    /// Format of modules that are not named; `None` where they stay whole.
    rest: Option<Format>,
    /// Formats of modules by name.
    named: BTreeMap<String, Format>,
    /// Formats of modules by pattern; the first that fits holds.
    targets: Vec<(modules::Pattern, Format)>,
    /// Patterns of modules that stay whole.
    whole: Vec<modules::Pattern>,
    /// Whether layers that predict tokens further on are named among them.
    predicting_whole: bool,
    /// Format of the output head.
    head: Format,
    /// Weights that share a scale, where kernels have fewer.
    group: Option<u64>,
    /// Bits of a group's zero.
    zero_bits: u64,
    kv: Dtype,
}

/// Elements that share a scale in MX formats.
const MX_GROUP: u64 = 32;
/// Weights that share a scale in the tables of 4-bit integers.
const GROUP: u64 = 128;
/// Weights that share a scale in the smaller groups that have a format of their own.
const SMALL_GROUP: u64 = 32;
/// Bits of a scale, and of a zero point where groups have one.
const SCALE_BITS: u64 = 16;
const ZERO_BITS: u64 = 4;

impl Scheme {
    /// Puts the formats into a model.
    pub(super) fn apply(&self, model: &mut Model) {
        let mut formats = Formats { kv: self.kv, head: self.head, ..Formats::of(Dtype::Bf16) };
        let weights = self.weights(model);
        for part in [Part::Attention, Part::Output, Part::Dense, Part::Experts] {
            let of_part = weights.iter().filter(|((known, _), _)| *known == part);
            let most = of_part.clone().max_by_key(|(_, n)| **n);
            // A part that the model lacks has the format of the last one that it has.
            let most = most.map_or(formats.dense, |((_, format), _)| *format);
            match part {
                Part::Attention => (formats.attention, formats.dense) = (most, most),
                Part::Output => formats.output = Some(most).filter(|format| *format != formats.attention),
                Part::Dense => formats.dense = most,
                Part::Experts => formats.experts = most,
            }
            for ((_, format), n) in of_part.filter(|((_, format), _)| *format != most) {
                let what = format!("`quantization_config`: {} in {}", part.words(), format.word());
                model.unpriced.push(Unpriced::taken(what, most.word().to_owned(), *n));
            }
        }
        model.formats = formats;
        let is_left = |module: &modules::Module| self.of(&module.name) == Format::Bf16;
        model.predicting_whole =
            model.n_predicting > 0 && (self.predicting_whole || modules::predicting(model).iter().all(is_left));
        model.unpriced.extend(self.scales(&weights));
    }

    /// What scales and zeros of groups take beyond those of the format, in parameters of 16 bits.
    fn scales(&self, weights: &BTreeMap<(Part, Format), u64>) -> Option<Unpriced> {
        let (group, format) = (self.group?, self.grouped(Format::Int4));
        let packed: u64 = weights.iter().filter(|((_, found), _)| *found == format).map(|(_, n)| n).sum();
        let bits = hw::real(SCALE_BITS + self.zero_bits) / hw::real(group) - (format.weight_bits() - 4.0);
        let parameters = hw::whole(hw::real(packed) * bits.max(0.0) / 16.0);
        let what = format!("`quantization_config`: what scales of {group} weights each take more");
        let instead = if format == Format::Int4 { GROUP } else { SMALL_GROUP };
        (parameters > 0).then(|| Unpriced::taken(what, format!("scales of {instead}"), parameters))
    }

    /// A format with the size of its groups.
    fn grouped(&self, format: Format) -> Format {
        if format == Format::Int4 && self.group == Some(SMALL_GROUP) { Format::Int4By32 } else { format }
    }

    /// Weights of every part in every format.
    fn weights(&self, model: &Model) -> BTreeMap<(Part, Format), u64> {
        let mut weights = BTreeMap::new();
        for module in modules::of(model) {
            *weights.entry((module.part, self.of(&module.name))).or_insert(0) += module.parameters;
        }
        weights
    }

    /// The format of a module: of the longest part of its path that is named, else of the rest.
    fn of(&self, name: &str) -> Format {
        if self.whole.iter().any(|pattern| pattern.matches(name)) {
            return Format::Bf16;
        }
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        let named = ends.filter_map(|end| self.named.get(&name[..end])).next_back().copied();
        let target = || self.targets.iter().find(|(pattern, _)| pattern.matches(name)).map(|(_, format)| *format);
        self.grouped(named.or_else(target).or(self.rest).unwrap_or(Format::Bf16))
    }
}

/// What the keys say.
///
/// # Errors
/// A finding with key, what was found and what is allowed.
pub(super) fn scheme(keys: &Map<String, Value>) -> Result<Scheme, NoFormat> {
    let (mut whole, mut predicting_whole) = (Vec::new(), false);
    for key in ["modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"] {
        for text in names(keys, key)? {
            whole.extend(modules::Pattern::of(key, text)?);
            predicting_whole |= modules::is_predicting(text);
        }
    }
    let named = match keys.get("quantized_layers") {
        Some(Value::Object(layers)) => layers.iter().map(|(name, of)| named(name, of)).collect::<Result<_, _>>()?,
        _ => BTreeMap::new(),
    };
    let (mut targets, mut rest) = (Vec::new(), None);
    if has_groups(keys) {
        (targets, rest) = groups(keys)?;
    } else if named.is_empty() {
        rest = Some(uniform(keys)?);
    }
    dynamic(keys, &mut whole, &mut targets)?;
    let has_head = keys.get("lm_head").and_then(Value::as_bool).unwrap_or(false);
    let head = rest.filter(|_| has_head).unwrap_or(Format::Bf16);
    let (group, zero_bits) = (group(keys), if is_symmetric(keys) { 0 } else { ZERO_BITS });
    let scheme = Scheme { rest, named, targets, whole, predicting_whole, head, group, zero_bits, kv: kept(keys)? };
    Ok(Scheme { head: scheme.grouped(head), ..scheme })
}

/// Whether formats are those of groups.
fn has_groups(keys: &Map<String, Value>) -> bool {
    let is_named = ["compressed-tensors", "modelopt", "modelopt_fp4"]
        .map(Value::from)
        .contains(keys.get("quant_method").unwrap_or(&Value::Null));
    let groups = keys.get("config_groups").and_then(Value::as_object);
    is_named && !keys.contains_key("quant_algo") && groups.is_some_and(|groups| !groups.is_empty())
}

/// Modules that GPTQ treats differently (ModelCloud/GPTQModel, `dynamic`): `-:` in front of an expression leaves them whole, `+:` or nothing gives bits.
fn dynamic(
    keys: &Map<String, Value>,
    whole: &mut Vec<modules::Pattern>,
    targets: &mut Vec<(modules::Pattern, Format)>,
) -> Result<(), NoFormat> {
    let Some(Value::Object(rules)) = keys.get("dynamic") else { return Ok(()) };
    for (text, rule) in rules {
        let pattern = |text| modules::Pattern::expression("dynamic", text);
        match (text.strip_prefix("-:"), rule.get("bits").and_then(number_of_bits)) {
            (Some(text), _) => whole.push(pattern(text)?),
            (None, None) => {}
            (None, bits) => targets.push((pattern(text.strip_prefix("+:").unwrap_or(text))?, of_bits(bits)?)),
        }
    }
    Ok(())
}

/// Weights that share a scale, where that is not what kernels were measured with.
fn group(keys: &Map<String, Value>) -> Option<u64> {
    let in_groups = || {
        let groups = keys.get("config_groups")?.as_object()?;
        groups.values().find_map(|group| group.get("weights")?.get("group_size")?.as_u64())
    };
    let size = ["group_size", "q_group_size"].iter().find_map(|key| keys.get(*key)?.as_u64()).or_else(in_groups);
    size.filter(|size| (1..GROUP).contains(size))
}

/// Whether groups have no zeros (`sym` of GPTQ, `zero_point` of AWQ, `symmetric` of compressed-tensors).
fn is_symmetric(keys: &Map<String, Value>) -> bool {
    let says = |at: Option<&Value>, symmetric: bool| at.and_then(Value::as_bool) == Some(symmetric);
    let in_group = |group: &Value| says(group.get("weights").and_then(|weights| weights.get("symmetric")), true);
    let groups = keys.get("config_groups").and_then(Value::as_object);
    says(keys.get("sym"), true)
        || says(keys.get("zero_point"), false)
        || groups.is_some_and(|groups| !groups.is_empty() && groups.values().all(in_group))
}

fn named(name: &str, of: &Value) -> Result<(String, Format), NoFormat> {
    let algorithm = of.get("quant_algo").and_then(Value::as_str).unwrap_or("");
    Ok((modules::inside(name).to_owned(), of_algorithm(algorithm)?))
}

fn of_algorithm(word: &str) -> Result<Format, NoFormat> {
    let known = ALGORITHMS.iter().find(|(known, _)| *known == word);
    known.map(|(_, format)| *format).ok_or_else(|| {
        let allowed = ALGORITHMS.map(|(word, _)| word).join(", ");
        NoFormat::NoKernel { key: "quant_algo".to_owned(), found: format!("`{word}`"), allowed }
    })
}

/// The one format of a file.
fn uniform(keys: &Map<String, Value>) -> Result<Format, NoFormat> {
    let word = |key: &str| keys.get(key).and_then(Value::as_str);
    let bits = keys.get("bits").or_else(|| keys.get("w_bit")).and_then(number_of_bits);
    match (word("quant_method"), word("quant_algo")) {
        (Some("fp8"), None) if keys.contains_key("weight_block_size") => block(&keys["weight_block_size"]),
        (Some("fp8" | "fbgemm_fp8"), None) => Ok(Format::Fp8),
        (Some("mxfp4"), _) => Ok(Format::Mxfp4),
        (Some("awq" | "gptq"), _) => of_bits(bits),
        (_, Some(algorithm)) => of_algorithm(algorithm),
        (Some("compressed-tensors" | "modelopt" | "modelopt_fp4"), None) => Err(NoFormat::NoGroups),
        (method, None) => Err(NoFormat::NoKernel {
            key: "quant_method".to_owned(),
            found: format!("`{}`", method.unwrap_or("")),
            allowed: METHODS.join(", "),
        }),
    }
}

/// A number of bits, which some files write as a word.
fn number_of_bits(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn of_bits(bits: Option<u64>) -> Result<Format, NoFormat> {
    match bits {
        Some(4) => Ok(Format::Int4),
        Some(8) => Ok(Format::Int8Weights),
        found => {
            let found = found.map_or_else(|| "missing".to_owned(), |bits| bits.to_string());
            Err(NoFormat::NoKernel { key: "bits".to_owned(), found, allowed: "4, 8".to_owned() })
        }
    }
}

/// Scales of blocks: kernels have squares of 128.
fn block(size: &Value) -> Result<Format, NoFormat> {
    let is_128 = size.as_array().is_some_and(|sizes| sizes.len() == 2 && sizes.iter().all(|n| n.as_u64() == Some(128)));
    match size {
        Value::Null => Ok(Format::Fp8),
        _ if is_128 => Ok(Format::Fp8Block),
        _ => Err(NoFormat::NoKernel {
            key: "weight_block_size".to_owned(),
            found: size.to_string(),
            allowed: "[128, 128]".to_owned(),
        }),
    }
}

/// What groups make of modules: formats by pattern, and the one of all others.
type Groups = (Vec<(modules::Pattern, Format)>, Option<Format>);

/// `config_groups`: formats of weights and of activations, each of the modules that a group targets. A class of modules, as `Linear`, is all of them.
fn groups(keys: &Map<String, Value>) -> Result<Groups, NoFormat> {
    let Some(Value::Object(groups)) = keys.get("config_groups") else {
        return Err(NoFormat::NoGroups);
    };
    let (mut targets, mut classes) = (Vec::new(), Vec::new());
    for group in groups.values() {
        let format = group_format(keys, group)?;
        let listed = group.as_object().map_or_else(|| Ok(Vec::new()), |group| names(group, "targets"))?;
        let (of_class, by_name): (Vec<&str>, Vec<&str>) =
            listed.iter().partition(|text| text.starts_with(char::is_uppercase));
        for text in by_name {
            targets.extend(modules::Pattern::of("config_groups.targets", text)?.map(|pattern| (pattern, format)));
        }
        if !of_class.is_empty() || listed.is_empty() {
            classes.push(format);
        }
    }
    classes.sort_unstable();
    classes.dedup();
    match classes[..] {
        [] => Ok((targets, None)),
        [format] => Ok((targets, Some(format))),
        _ => Err(NoFormat::Several(classes.len())),
    }
}

fn group_format(keys: &Map<String, Value>, group: &Value) -> Result<Format, NoFormat> {
    let numbers = |side: &str| {
        let side = group.get(side).unwrap_or(&Value::Null);
        let kind = side.get("type").and_then(Value::as_str).map(str::to_owned);
        side.get("num_bits").and_then(number_of_bits).map(|bits| (bits, kind.unwrap_or_default()))
    };
    let word = |at: &Value, key: &str| at.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let weights = &group["weights"];
    let packed = keys.get("format").and_then(Value::as_str).unwrap_or("").to_owned() + &word(group, "format");
    let (stored, active) = (numbers("weights"), numbers("input_activations"));
    // MX formats have a scale for 32 elements (`MXFP4` and `MXFP8` of `quant_scheme.py`).
    let by_32 =
        word(weights, "strategy") == "group" && weights.get("group_size").and_then(Value::as_u64) == Some(MX_GROUP);
    let is_mx = |word| by_32 || packed.contains(word);
    let sides = (
        stored.as_ref().map(|(bits, kind)| (*bits, kind.as_str())),
        active.as_ref().map(|(bits, kind)| (*bits, kind.as_str())),
    );
    match sides {
        (Some((8, "float")), Some((8, "float"))) if word(weights, "strategy") == "block" => Ok(Format::Fp8Block),
        (Some((8, "float")), Some((8, "float"))) if is_mx("mxfp8") => Ok(Format::Mxfp8),
        (Some((8, "float")), Some((8, "float"))) => Ok(Format::Fp8),
        (Some((8, "int")), Some((8, "int"))) => Ok(Format::Int8),
        (Some((8, _)), None) => Ok(Format::Int8Weights),
        (Some((4, "int")), None) => Ok(Format::Int4),
        (Some((4, "float")), None) if packed.contains("mxfp4") => Ok(Format::Mxfp4),
        // Kernels of MXFP4 are known with 16-bit activations alone.
        (Some((4, "float")), Some((4, "float"))) if is_mx("mxfp4") => Ok(Format::Mxfp4),
        (Some((4, "float")), Some((4, "float"))) => Ok(Format::Nvfp4),
        _ => Err(NoFormat::Pair { weights: sided(stored.as_ref()), activations: sided(active.as_ref()) }),
    }
}

fn sided(side: Option<&(u64, String)>) -> String {
    side.map_or_else(|| "16-bit".to_owned(), |(bits, kind)| format!("{bits}-bit {kind}"))
}

/// Format of keys and values.
fn kept(keys: &Map<String, Value>) -> Result<Dtype, NoFormat> {
    let found = ["kv_cache_scheme", "kv_cache_quant_algo"]
        .into_iter()
        .find_map(|key| keys.get(key).filter(|value| !value.is_null()).map(|value| (key, value)));
    let Some((key, value)) = found else { return Ok(Dtype::Bf16) };
    let scheme = (value.get("num_bits").and_then(Value::as_u64), value.get("type").and_then(Value::as_str));
    match (value.as_str(), scheme) {
        (Some("FP8"), _) | (None, (Some(8), Some("float"))) => Ok(Dtype::Fp8),
        (Some("INT8"), _) | (None, (Some(8), Some("int"))) => Ok(Dtype::Int8),
        _ => Err(NoFormat::NoKernel { key: key.to_owned(), found: value.to_string(), allowed: "FP8, INT8".to_owned() }),
    }
}
