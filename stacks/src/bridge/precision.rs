//! Mixed precision of Bridge by its names (`megatron/bridge/training/mixed_precision.py`, NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b).

use std::ops::Range;

use input::diagnostic::{Code, Finding, nearest};

use crate::flags::Flag;
use crate::shell::UNKNOWN;

/// Key of it, which has no dot.
pub(super) const KEY: &str = "mixed_precision";

/// A name: what is computed in 16 bits, the recipe of narrow products (nothing without them), layers at both ends that stay in 16 bits, and whether
/// parameters are kept and gathered in the format of the products.
struct Precision {
    name: &'static str,
    wide: &'static str,
    recipe: &'static str,
    ends: u32,
    gathers: bool,
}

const fn of(name: &'static str, wide: &'static str, recipe: &'static str, ends: u32) -> Precision {
    Precision { name, wide, recipe, ends, gathers: false }
}

impl Precision {
    const fn gathering(self) -> Self {
        Self { gathers: true, ..self }
    }
}

const ALL: [Precision; 14] = [
    of("bf16_mixed", "bf16", "", 0),
    of("fp16_mixed", "fp16", "", 0),
    of("bf16_with_fp8_delayed_scaling_mixed", "bf16", "delayed", 0).gathering(),
    of("fp16_with_fp8_delayed_scaling_mixed", "fp16", "delayed", 0).gathering(),
    of("bf16_with_fp8_current_scaling_mixed", "bf16", "tensorwise", 2).gathering(),
    of("fp16_with_fp8_current_scaling_mixed", "fp16", "tensorwise", 2).gathering(),
    of("nemotron_h_bf16_with_fp8_current_scaling_mixed", "bf16", "tensorwise", 4).gathering(),
    of("nanov2_bf16_with_fp8_current_scaling_mixed", "bf16", "blockwise", 4).gathering(),
    of("bf16_with_fp8_subchannel_scaling_mixed", "bf16", "blockwise", 0),
    of("fp16_with_fp8_subchannel_scaling_mixed", "fp16", "blockwise", 0),
    of("bf16_with_mxfp8_mixed", "bf16", "mxfp8", 0).gathering(),
    of("fp16_with_mxfp8_mixed", "fp16", "mxfp8", 0).gathering(),
    of("bf16_with_nvfp4_mixed", "bf16", "nvfp4", 0).gathering(),
    of("nemotron_3_super_bf16_with_nvfp4_mixed", "bf16", "nvfp4", 14).gathering(),
];

/// Flags of Megatron-LM that say the same, and a warning about what they do not say.
pub(super) fn flags(value: &str, at: &Range<usize>) -> Result<(Vec<Flag>, Option<Finding>), Box<Finding>> {
    let flag = |name: &str, value: Option<&str>| Flag {
        name: name.to_owned(),
        values: value.iter().map(|value| (*value).to_owned()).collect(),
        at: at.clone(),
    };
    let bare = value.trim_matches(['"', '\'']).replace('-', "_");
    if bare.contains(UNKNOWN) || matches!(bare.to_lowercase().as_str(), "null" | "none") {
        return Ok((vec![flag("bf16", None)], Some(open(&bare, at))));
    }
    if value.starts_with('{') {
        return Ok(fields(value, &flag));
    }
    let Some(found) = ALL.iter().find(|known| known.name == bare) else {
        let names = ALL.iter().map(|known| known.name);
        let near = nearest(&bare, names.clone()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        let what = format!("`{KEY}={value}` is none of its names");
        let help = format!("{near}allowed are {}", names.collect::<Vec<_>>().join(", "));
        return Err(Box::new(Finding::error(Code::WrongFlag, Some(at.clone()), what).help(help)));
    };
    let mut flags = vec![flag(found.wide, None)];
    if !found.recipe.is_empty() {
        flags.push(flag("fp8-recipe", Some(found.recipe)));
    }
    flags.extend(found.gathers.then(|| flag(GATHERS, None)));
    let warning = (found.ends > 0).then(|| {
        let what = format!("`{KEY}={bare}` keeps {} layers at both ends in 16 bits, which is not modelled", found.ends);
        let help = "products of all layers are counted as narrow: time comes out a little too short";
        Finding::warning(Code::NotModelled, Some(at.clone()).filter(|at| !at.is_empty()), what).help(help)
    });
    Ok((flags, warning))
}

/// Flag of parameters that are gathered in the format of the products.
pub(super) const GATHERS: &str = "fp8-param-gather";
/// Keys that say the same, of which setting one sets the other (`MixedPrecisionConfig.__setattr__`).
const GATHERING: [&str; 4] = ["fp8_param_gather", "fp8_param", "fp4_param_gather", "fp4_param"];

/// Whether a key of mixed precision says how parameters are gathered.
pub(super) fn is_gathering(key: &str) -> bool {
    key.strip_prefix(KEY).and_then(|own| own.strip_prefix('.')).is_some_and(|own| GATHERING.contains(&own))
}

/// Flags of a configuration that is written field by field: `{_target_:…,bf16:true,fp8:hybrid}`.
fn fields(value: &str, flag: &impl Fn(&str, Option<&str>) -> Flag) -> (Vec<Flag>, Option<Finding>) {
    let pairs: Vec<(&str, &str)> =
        value.trim_matches(['{', '}']).split([',', '{', '}']).filter_map(|pair| pair.split_once(':')).collect();
    let of = |name: &str| pairs.iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let is = |name: &str| of(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let has = |name: &str| of(name).is_some_and(|value| !matches!(value, "" | "null" | "None"));
    let mut flags = vec![flag(if is("fp16") { "fp16" } else { "bf16" }, None)];
    if has("fp4") {
        flags.push(flag("fp8-recipe", Some(of("fp4_recipe").unwrap_or("nvfp4"))));
    } else if has("fp8") {
        flags.push(flag("fp8-recipe", Some(of("fp8_recipe").unwrap_or("tensorwise"))));
    }
    flags.extend(GATHERING.iter().any(|key| is(key)).then(|| flag(GATHERS, None)));
    // Without a word gradients are added up in 32 bits.
    let sums_wide = !of("grad_reduce_in_fp32").is_some_and(|value| value.eq_ignore_ascii_case("false"));
    let of_gradients = match (is("fp16"), sums_wide) {
        (true, true) => Some("accumulate-allreduce-grads-in-fp32"),
        (false, false) => Some("grad-reduce-in-bf16"),
        _ => None,
    };
    flags.extend(of_gradients.map(|name| flag(name, None)));
    (flags, None)
}

/// What a plan computes in, keeps and gathers.
pub(super) struct Asked<'a> {
    /// `bf16` or `fp16`.
    pub(super) wide: &'a str,
    /// Recipe of narrow products; nothing without them.
    pub(super) recipe: &'a str,
    /// Whether parameters are gathered in the format of the products.
    pub(super) gathers: bool,
    /// Whether gradients are added up in 32 bits.
    pub(super) sums_wide: bool,
}

/// Overrides that say it: a name where one says all of it. Otherwise all fields, for mixed precision overwrites what `ddp` and `model` say of the same
/// (`MixedPrecisionConfig.setup`). The name in front of them replaces what a recipe has, whose fields would stay beside them.
pub(super) fn written(asked: &Asked<'_>) -> Vec<String> {
    let Asked { wide, recipe, gathers, sums_wide } = *asked;
    let says = |known: &&Precision| {
        (known.wide, known.recipe, known.ends, known.gathers) == (wide, recipe, 0, gathers)
            && sums_wide == (known.wide == "bf16")
    };
    if let Some(known) = ALL.iter().find(says) {
        return vec![format!("{KEY}={}", known.name)];
    }
    let torch = if wide == "fp16" { "torch.half" } else { "torch.bfloat16" };
    let dtype = format!("{{_target_:{torch},_call_:false}}");
    let format = match recipe {
        "" => String::new(),
        "nvfp4" => format!(",fp4:e2m1,fp4_recipe:nvfp4,fp4_param_gather:{gathers}"),
        "mxfp8" => {
            format!(",fp8:e4m3,fp8_recipe:mxfp8,fp8_param_gather:{gathers},reuse_grad_buf_for_mxfp8_param_ag:{gathers}")
        }
        other => format!(",fp8:hybrid,fp8_recipe:{other},fp8_param_gather:{gathers}"),
    };
    let all = format!(
        "{KEY}={{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,{wide}:true,params_dtype:{dtype},\
         pipeline_dtype:{dtype},grad_reduce_in_fp32:{sums_wide}{format}}}"
    );
    vec![format!("{KEY}={wide}_mixed"), all]
}

/// A warning about a name that no file says.
fn open(bare: &str, at: &Range<usize>) -> Finding {
    let help = "write one of its names, for example `bf16_with_mxfp8_mixed`";
    let place = Some(at.clone()).filter(|at| !at.is_empty());
    if bare.contains(UNKNOWN) {
        let what = format!("the value of `{KEY}` is known only when the script runs: `bf16_mixed` is taken");
        return Finding::warning(Code::UnknownValue, place, what).help(help);
    }
    let what = format!("`{KEY}={bare}` is taken as `bf16_mixed`");
    Finding::warning(Code::NotModelled, place, what).help(help)
}
