//! `quantization_config` of a `config.json` → formats of a model's parts.
//!
//! A file names one format, or one per module, and modules that stay whole. Every module of the model is asked for its format; a part has
//! the format of most of its weights, and what differs from it is named. Output heads stay whole, as engines keep them.
//! Sources of keys: huggingface/transformers `utils/quantization_config.py`, vllm-project/compressed-tensors, NVIDIA/TensorRT-Model-Optimizer.

use std::collections::BTreeMap;

use hw::{Dtype, Format};
use serde_json::{Map, Value};

use super::modules::{self, Asked, Module, Part};
use super::name_list::{self, NameList};
use super::names::Names;
use super::no_format::NoFormat;
use super::reader::says_something;
use crate::formats::{Apart, Formats};
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
    names: Names,
    /// Format of modules that are not named; `None` where they stay whole.
    rest: Option<Format>,
    /// Formats of modules by name.
    named: BTreeMap<String, Format>,
    /// Formats of modules by list; the first that fits holds.
    targets: Vec<(NameList, Format)>,
    /// Modules that stay whole.
    whole: NameList,
    /// Modules that do not, where a file names these.
    narrow: Option<NameList>,
    /// Whether layers that predict tokens further on are named among those that stay whole.
    predicting_whole: bool,
    /// Format of the output head.
    head: Format,
    /// Weights that share a scale, where a file says so.
    group: Option<u64>,
    /// Bits of a group's zero.
    zero_bits: u64,
    kv: Dtype,
    /// Keys that say something and that nobody reads.
    unread: Vec<String>,
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
        let (kv, head, group) = (self.kv, self.head, self.group);
        let mut formats = Formats { kv, head, group, ..Formats::of(Dtype::Bf16) };
        let asked = Asked { names: &self.names, each_expert: self.tells_experts_apart() };
        let weights = self.weights(model, &asked);
        let mut apart = [0.0; 2];
        for part in Part::ALL {
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
            for ((_, format), n) in of_part.clone().filter(|((_, format), _)| *format != most) {
                let what = format!("`quantization_config`: {} in {}", part.words(), format.word());
                model.unpriced.push(Unpriced::taken(what, in_time(most.word()), *n));
            }
            let bits = of_part.map(|((_, format), n)| (self.bits(*format) - most.weight_bits()) * hw::real(*n));
            apart[usize::from(part == Part::Experts)] += bits.sum::<f64>() / 8.0;
        }
        let of_layers = |bytes: f64, n: u64| (bytes / hw::real(n.max(1))).round() as i64;
        let [shared, routed] = apart;
        formats.apart =
            Apart { shared: of_layers(shared, model.n_layers), routed: of_layers(routed, model.n_expert_layers()) };
        model.formats = formats;
        let is_left = |module: &Module| self.of(module) == Format::Bf16;
        model.predicting_whole =
            model.n_predicting > 0 && (self.predicting_whole || modules::predicting(model, &asked).iter().all(is_left));
        model.unpriced.extend(self.scales(&weights));
        model.unpriced.extend(self.idle());
        model.unpriced.extend(self.unread.iter().map(|what| Unpriced::left_out(what.clone(), 0)));
    }

    /// Weights that share a scale, where that are fewer than kernels were measured with.
    fn small_group(&self) -> Option<u64> {
        self.group.filter(|group| *group < GROUP)
    }

    /// Bits of a stored weight with what scales and zeros of its group take more than those of the format.
    fn bits(&self, format: Format) -> f64 {
        let plain = format.weight_bits();
        match self.small_group().filter(|_| format == self.grouped(Format::Int4)) {
            Some(group) => plain.max(4.0 + hw::real(SCALE_BITS + self.zero_bits) / hw::real(group)),
            None => plain,
        }
    }

    /// Scales and zeros of groups beyond those of the format, in parameters of 16 bits.
    fn scales(&self, weights: &BTreeMap<(Part, Format), u64>) -> Option<Unpriced> {
        let (group, format) = (self.small_group()?, self.grouped(Format::Int4));
        let packed: u64 = weights.iter().filter(|((_, found), _)| *found == format).map(|(_, n)| n).sum();
        let parameters = hw::whole(hw::real(packed) * (self.bits(format) - format.weight_bits()) / 16.0);
        let zeros = if self.zero_bits > 0 { " and zeros" } else { "" };
        let what = format!("`quantization_config`: what scales{zeros} of groups of {group} take more");
        let kernels = if format == Format::Int4 { GROUP } else { SMALL_GROUP };
        (parameters > 0).then(|| Unpriced::taken(what, in_time(&format!("scales of groups of {kernels}")), parameters))
    }

    /// Names in lists that are those of no matrix.
    fn idle(&self) -> Vec<Unpriced> {
        let lists = [&self.whole].into_iter().chain(&self.narrow).chain(self.targets.iter().map(|(list, _)| list));
        let idle: Vec<&str> = lists.flat_map(NameList::idle).collect();
        let Some(first) = idle.first() else { return Vec::new() };
        let more = match idle.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let what = format!("`quantization_config` names `{first}`{more}, which no matrix of this type is called: it");
        vec![Unpriced::left_out(what, 0)]
    }

    /// A format with the size of its groups.
    fn grouped(&self, format: Format) -> Format {
        if format == Format::Int4 && self.group == Some(SMALL_GROUP) { Format::Int4By32 } else { format }
    }

    /// Whether experts of a layer may differ.
    fn tells_experts_apart(&self) -> bool {
        let mut lists = [&self.whole].into_iter().chain(&self.narrow).chain(self.targets.iter().map(|(list, _)| list));
        lists.any(NameList::tells_experts_apart) || self.named.keys().any(|name| name_list::tells_experts_apart(name))
    }

    /// Weights of every part in every format.
    fn weights(&self, model: &Model, asked: &Asked<'_>) -> BTreeMap<(Part, Format), u64> {
        let mut weights = BTreeMap::new();
        for module in modules::of(model, asked) {
            *weights.entry((module.part, self.of(&module))).or_insert(0) += module.parameters;
        }
        weights
    }

    /// The format of a module: of the longest part of its path that is named, else of the rest.
    fn of(&self, module: &Module) -> Format {
        let is_left = self.narrow.as_ref().is_some_and(|narrow| !narrow.holds(module));
        if self.whole.holds(module) || is_left {
            return Format::Bf16;
        }
        let target = || self.targets.iter().find(|(list, _)| list.holds(module)).map(|(_, format)| *format);
        let named = name_list::longest(&self.named, module);
        self.grouped(named.or_else(target).or(self.rest).unwrap_or(Format::Bf16))
    }
}

/// Memory counts what kernels are not told apart by.
fn in_time(word: &str) -> String {
    format!("{word} in time (memory has its bytes)")
}

/// What the keys say of a model of such a type.
///
/// # Errors
/// A finding with key, what was found and what is allowed.
pub(super) fn scheme(keys: &Map<String, Value>, kind: &str) -> Result<Scheme, NoFormat> {
    let names = Names::of(kind);
    let (mut whole, mut predicting_whole) = (NameList::default(), false);
    for key in WHOLE {
        for text in texts(keys, key)? {
            whole.add(&names, key, text)?;
            predicting_whole |= modules::is_predicting(text);
        }
    }
    let named = match keys.get("quantized_layers") {
        Some(Value::Object(layers)) => {
            layers.iter().map(|(name, of)| named(&names, name, of)).collect::<Result<_, _>>()?
        }
        _ => BTreeMap::new(),
    };
    let (mut targets, mut rest) = (Vec::new(), None);
    if has_groups(keys) {
        (targets, rest) = groups(keys, &names)?;
    } else if named.is_empty() {
        rest = Some(uniform(keys)?);
    }
    dynamic(keys, &mut whole, &mut targets)?;
    let has_head = keys.get("lm_head").and_then(Value::as_bool).unwrap_or(false);
    let head = rest.filter(|_| has_head).unwrap_or(Format::Bf16);
    let (group, zero_bits) = (group(keys)?, if is_symmetric(keys) { 0 } else { ZERO_BITS });
    let (narrow, unread, kv) = (in_blocks(keys, &names)?, unread(keys), kept(keys)?);
    let scheme =
        Scheme { names, rest, named, targets, whole, narrow, predicting_whole, head, group, zero_bits, kv, unread };
    Ok(Scheme { head: scheme.grouped(head), ..scheme })
}

/// Keys that list modules which stay whole.
const WHOLE: [&str; 4] = ["modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"];
/// Keys of public files that change neither time nor memory, and those that are read here.
const KNOWN: &str = include_str!("quantization.txt");

/// Keys that are not known, and what no kernel is timed for.
fn unread(keys: &Map<String, Value>) -> Vec<String> {
    let mut found: Vec<String> = keys
        .iter()
        .filter(|(key, value)| says_something(value) && !KNOWN.lines().any(|known| known == key.as_str()))
        .map(|(key, _)| format!("key `quantization_config.{key}`"))
        .collect();
    if keys.get("sparsity_config").is_some_and(says_something) {
        found.push("sparsity of weights (`quantization_config.sparsity_config`)".to_owned());
    }
    found
}

/// A list of names.
///
/// # Errors
/// Where it is something else.
fn texts<'a>(keys: &'a Map<String, Value>, key: &str) -> Result<Vec<&'a str>, NoFormat> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => {
            let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            list.flatten().ok_or_else(|| NoFormat::NoList { key: key.to_owned(), found: value.to_string() })
        }
    }
}

/// Modules of a layer that GPTQ treats, where a file lists them (`modules_in_block_to_quantize` of huggingface/optimum): all others stay whole.
fn in_blocks(keys: &Map<String, Value>, names: &Names) -> Result<Option<NameList>, NoFormat> {
    let key = "modules_in_block_to_quantize";
    let Some(value) = keys.get(key).filter(|value| says_something(value)) else { return Ok(None) };
    let groups: Option<Vec<&Value>> = value.as_array().map(|groups| {
        groups
            .iter()
            .flat_map(|group| group.as_array().map_or_else(|| vec![group], |group| group.iter().collect()))
            .collect()
    });
    let texts: Option<Vec<&str>> = groups.and_then(|groups| groups.into_iter().map(Value::as_str).collect());
    let texts = texts.ok_or_else(|| NoFormat::NoList { key: key.to_owned(), found: value.to_string() })?;
    let mut list = NameList::default();
    for text in texts {
        list.add(names, key, text)?;
    }
    Ok(Some(list))
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
    whole: &mut NameList,
    targets: &mut Vec<(NameList, Format)>,
) -> Result<(), NoFormat> {
    let Some(Value::Object(rules)) = keys.get("dynamic") else { return Ok(()) };
    for (text, rule) in rules {
        match (text.strip_prefix("-:"), rule.get("bits")) {
            (Some(text), _) => whole.add_expression("dynamic", text)?,
            (None, None) => {}
            (None, bits) => {
                let mut list = NameList::default();
                list.add_expression("dynamic", text.strip_prefix("+:").unwrap_or(text))?;
                targets.push((list, of_bits(bits)?));
            }
        }
    }
    Ok(())
}

/// Weights that share a scale, where a file says so. A size of -1 is a whole row.
///
/// # Errors
/// Where no group can have so many.
fn group(keys: &Map<String, Value>) -> Result<Option<u64>, NoFormat> {
    // Rows, tensors and blocks have no groups (`QuantizationStrategy` of vllm-project/compressed-tensors).
    let in_groups = || {
        let groups = keys.get("config_groups")?.as_object()?;
        let weights = groups.values().filter_map(|group| group.get("weights"));
        let mut grouped = weights.filter(|weights| {
            let strategy = weights.get("strategy").and_then(Value::as_str);
            strategy.is_none_or(|strategy| strategy.contains("group"))
        });
        grouped.find_map(|weights| weights.get("group_size").filter(|size| !size.is_null()))
    };
    let stated = ["group_size", "q_group_size"].iter().find_map(|key| keys.get(*key).filter(|size| !size.is_null()));
    let Some(size) = stated.or_else(in_groups) else { return Ok(None) };
    match size.as_i64() {
        Some(-1) => Ok(None),
        Some(size) if size > 0 => Ok(u64::try_from(size).ok()),
        _ => Err(NoFormat::NoGroup { found: size.to_string() }),
    }
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

fn named(names: &Names, name: &str, of: &Value) -> Result<(String, Format), NoFormat> {
    let algorithm = of.get("quant_algo").and_then(Value::as_str).unwrap_or("");
    Ok((names.inside(name).to_owned(), of_algorithm(algorithm)?))
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
    let bits = keys.get("bits").or_else(|| keys.get("w_bit"));
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

/// A number of bits, which some files write as a word or with a point.
fn number_of_bits(value: &Value) -> Option<u64> {
    let of_point = || value.as_f64().filter(|bits| bits.fract() == 0.0 && (0.0..64.0).contains(bits)).map(hw::whole);
    value.as_u64().or_else(of_point).or_else(|| value.as_str()?.trim().parse().ok())
}

fn of_bits(bits: Option<&Value>) -> Result<Format, NoFormat> {
    match bits.and_then(number_of_bits) {
        Some(4) => Ok(Format::Int4),
        Some(8) => Ok(Format::Int8Weights),
        _ => {
            let found = bits.map_or_else(|| "missing".to_owned(), Value::to_string);
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
type Groups = (Vec<(NameList, Format)>, Option<Format>);

/// `config_groups`: formats of weights and of activations, each of the modules that a group targets. A class of modules, as `Linear`, is all of them.
fn groups(keys: &Map<String, Value>, names: &Names) -> Result<Groups, NoFormat> {
    let Some(Value::Object(groups)) = keys.get("config_groups") else {
        return Err(NoFormat::NoGroups);
    };
    let (mut targets, mut classes) = (Vec::new(), Vec::new());
    for group in groups.values() {
        let format = group_format(keys, group)?;
        let listed = group.as_object().map_or_else(|| Ok(Vec::new()), |group| texts(group, "targets"))?;
        let (of_class, by_name): (Vec<&str>, Vec<&str>) =
            listed.iter().partition(|text| text.starts_with(char::is_uppercase));
        let mut list = NameList::default();
        for text in by_name {
            list.add(names, "config_groups.targets", text)?;
        }
        targets.push((list, format));
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
