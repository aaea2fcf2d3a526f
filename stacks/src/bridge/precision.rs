//! Mixed precision of Bridge by its names (`megatron/bridge/training/mixed_precision.py`, NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b).

use std::ops::Range;

use input::diagnostic::{Code, Finding, nearest};

use crate::flags::Flag;
use crate::shell::UNKNOWN;

/// Key of it, which has no dot.
pub(super) const KEY: &str = "mixed_precision";

/// A name: what is computed in 16 bits, the recipe of narrow products (nothing without them), and layers at both ends that stay in 16 bits.
struct Precision {
    name: &'static str,
    wide: &'static str,
    recipe: &'static str,
    ends: u32,
}

const fn of(name: &'static str, wide: &'static str, recipe: &'static str, ends: u32) -> Precision {
    Precision { name, wide, recipe, ends }
}

const ALL: [Precision; 14] = [
    of("bf16_mixed", "bf16", "", 0),
    of("fp16_mixed", "fp16", "", 0),
    of("bf16_with_fp8_delayed_scaling_mixed", "bf16", "delayed", 0),
    of("fp16_with_fp8_delayed_scaling_mixed", "fp16", "delayed", 0),
    of("bf16_with_fp8_current_scaling_mixed", "bf16", "tensorwise", 2),
    of("fp16_with_fp8_current_scaling_mixed", "fp16", "tensorwise", 2),
    of("nemotron_h_bf16_with_fp8_current_scaling_mixed", "bf16", "tensorwise", 4),
    of("nanov2_bf16_with_fp8_current_scaling_mixed", "bf16", "blockwise", 4),
    of("bf16_with_fp8_subchannel_scaling_mixed", "bf16", "blockwise", 0),
    of("fp16_with_fp8_subchannel_scaling_mixed", "fp16", "blockwise", 0),
    of("bf16_with_mxfp8_mixed", "bf16", "mxfp8", 0),
    of("fp16_with_mxfp8_mixed", "fp16", "mxfp8", 0),
    of("bf16_with_nvfp4_mixed", "bf16", "nvfp4", 0),
    of("nemotron_3_super_bf16_with_nvfp4_mixed", "bf16", "nvfp4", 14),
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
    let warning = (found.ends > 0).then(|| {
        let what = format!("`{KEY}={bare}` keeps {} layers at both ends in 16 bits, which is not modelled", found.ends);
        let help = "products of all layers are counted as narrow: time comes out a little too short";
        Finding::warning(Code::NotModelled, Some(at.clone()).filter(|at| !at.is_empty()), what).help(help)
    });
    Ok((flags, warning))
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
