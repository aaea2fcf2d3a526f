//! The model and the length that the command line gives where a script leaves them to another file: `--set model.name=…`, `--set workload.tokens=…`.

use engine::model::{Model, QueryKeyNorm, of_checkpoint};
use input::diagnostic::Finding;

use super::Shape;
use super::model::positions;
use crate::Machine;
use crate::checkpoint;
use crate::document::Document;
use crate::flags::{Flag, Flags};

/// Flags of which a script has all that states a shape.
const STATING: [&str; 3] = ["num-layers", "hidden-size", "num-attention-heads"];
/// Older names of layers and of tokens.
const ENCODER: [(&str, &str); 2] = [("num-layers", "encoder-num-layers"), (LENGTH, "encoder-seq-length")];
/// Tokens of a sequence.
pub(super) const LENGTH: &str = "seq-length";

/// Whether a flag is given, maybe under its older name.
fn is_given(flags: &Flags<'_>, name: &str) -> bool {
    let older = ENCODER.iter().find(|(today, _)| *today == name).map(|(_, older)| *older);
    flags.find(name).is_some() || older.is_some_and(|older| flags.find(older).is_some())
}

/// The length of the command line in the place of a flag that is not there.
pub(super) fn length(flags: &mut Flags<'_>, machine: &Machine) {
    if let Some(tokens) = machine.tokens.filter(|_| !is_given(flags, LENGTH)) {
        flags.given.push(Flag::added(LENGTH, vec![tokens.to_string()]));
    }
}

/// The model of the command line, where the script does not state its shape.
pub(super) fn model(flags: &Flags<'_>, machine: &Machine) -> Option<Result<Model, Finding>> {
    let is_stated = super::hybrid::flag(flags).is_some() || STATING.into_iter().all(|name| is_given(flags, name));
    let asked = machine.model.as_ref().filter(|_| !is_stated)?;
    Some(of_checkpoint(asked).ok_or_else(|| checkpoint::unknown(asked, None)))
}

/// Writes it; nothing without a length.
pub(super) fn write(flags: &mut Flags<'_>, out: &mut Document, model: &Model) -> Option<Shape> {
    differing(flags, model);
    let tokens = flags.count(LENGTH, 1..=super::model::MOST);
    if !is_given(flags, LENGTH) {
        flags.missing(LENGTH, super::model::NEEDED);
    }
    let n_predicting = flags.count("mtp-num-layers", 0..=100).unwrap_or(0);
    let stated: Vec<String> = flags.given.iter().map(|flag| flag.name.clone()).collect();
    add(&mut flags.given, model, &stated);
    super::dropout(flags, out, super::model::DROPOUT);
    out.word("model", "name", &model.name, "--set model.name, or --model and --load of ms-swift");
    Some(Shape {
        n_layers: model.n_layers,
        n_predicting,
        layers_per_further_token: if model.state_space.is_some() { super::model::PREDICTING_OF_HYBRID } else { 1 },
        stages: Vec::new(),
        n_heads: model.n_heads,
        n_groups: model.n_kv_heads,
        n_experts: model.experts.as_ref().map_or(0, |experts| experts.n_routed),
        tokens: tokens?,
    })
}

/// Says which flags of the script state another shape than the model has.
fn differing(flags: &mut Flags<'_>, model: &Model) {
    let own = as_flags(model, &[]);
    let is_other = |flag: &Flag| {
        let same = own.iter().find(|own| own.name == flag.name);
        same.is_some_and(|same| same.value() != flag.value() && flag.name != "max-position-embeddings")
    };
    let others: Vec<String> = flags.given.iter().filter(|flag| is_other(flag)).map(|flag| flag.name.clone()).collect();
    for name in others {
        flags.not_modelled(&name, &format!("the shape is that of `{}`, which `--set model.name` names", model.name));
    }
}

/// The shape as flags, without those that an override states.
fn as_flags(model: &Model, stated: &[String]) -> Vec<Flag> {
    let is_stated = |name: &str| stated.iter().any(|own| own == name);
    let rows = if is_stated("vocab-size") || is_stated("make-vocab-size-divisible-by") {
        "vocab-size"
    } else {
        "padded-vocab-size"
    };
    let mut given = vec![
        ("num-layers", model.n_layers.to_string()),
        ("hidden-size", model.hidden.to_string()),
        ("ffn-hidden-size", model.intermediate.to_string()),
        ("num-attention-heads", model.n_heads.to_string()),
        ("kv-channels", model.head_dim.to_string()),
        ("num-query-groups", model.n_kv_heads.to_string()),
        ("max-position-embeddings", model.max_positions.to_string()),
        ("position-embedding-type", positions(model).to_owned()),
        (rows, model.vocab.to_string()),
    ];
    // Groups are as many as heads where nothing says so.
    let switches = [
        ("group-query-attention", true),
        ("swiglu", model.gated),
        ("untie-embeddings-and-output-weights", !model.tied),
        ("disable-bias-linear", !model.output_bias),
        ("add-qkv-bias", model.qkv_bias && !model.output_bias),
        ("qk-layernorm", model.qk_norm == QueryKeyNorm::Head),
        ("multi-latent-attention", model.latent.is_some()),
    ];
    given.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| (name, String::new())));
    if let Some(latent) = &model.latent {
        given.extend(latent.q_rank.map(|rank| ("q-lora-rank", rank.to_string())));
        given.push(("kv-lora-rank", latent.kv_rank.to_string()));
        given.push(("qk-head-dim", latent.nope_dim.to_string()));
        given.push(("qk-pos-emb-head-dim", latent.rope_dim.to_string()));
        given.push(("v-head-dim", latent.value_dim.to_string()));
    }
    given.extend(experts(model));
    let flag =
        |(name, value): (&str, String)| Flag::added(name, if value.is_empty() { Vec::new() } else { vec![value] });
    given.into_iter().filter(|(name, _)| !is_stated(name)).map(flag).collect()
}

/// Experts, and the layers that have them.
fn experts(model: &Model) -> Vec<(&'static str, String)> {
    let Some(experts) = &model.experts else { return Vec::new() };
    let mut given = vec![
        ("num-experts", experts.n_routed.to_string()),
        ("moe-router-topk", experts.top_k.to_string()),
        ("moe-ffn-hidden-size", experts.intermediate.to_string()),
    ];
    if experts.shared_intermediate > 0 {
        given.push(("moe-shared-expert-intermediate-size", experts.shared_intermediate.to_string()));
    }
    given.extend(super::export::expert_layers(model).map(|layers| ("moe-layer-freq", layers)));
    given
}

/// Puts the shape in front of what is given, so that an override counts. `stated` are the flags of overrides.
pub(crate) fn add(given: &mut Vec<Flag>, model: &Model, stated: &[String]) {
    given.splice(0..0, as_flags(model, stated));
}
