//! The shape of a recipe's model as flags of Megatron-LM, and overrides that change it.

use engine::model::{Mixer, Model, Norms, OutputGate, QueryKeyNorm};

use crate::Machine;
use crate::document::Document;
use crate::flags::{Effect, Flag, Flags};
use crate::megatron::{self, Shape};

/// What keys of a model's shape have in front in the table of Megatron-LM.
const OF_SHAPE: &str = "model.config.";

/// Whether a flag says something of a model's shape.
fn is_of_shape(name: &str) -> bool {
    let known = megatron::FLAGS.find(name);
    known.is_some_and(|known| matches!(known.effect, Effect::Sets(key) if key.starts_with(OF_SHAPE)))
}

/// Why flags of Megatron-LM do not say the shape of a model; nothing where they do.
fn unsaid(model: &Model) -> Option<&'static str> {
    let kinds = model.layers.kinds();
    let is_other = model.state_space.is_some()
        || model.linear.is_some()
        || model.compressed.is_some()
        || model.index.is_some()
        || model.convolution.is_some();
    let odd = [
        (is_other || kinds.iter().any(|layer| layer.mixer != Mixer::Full), "layers that do not attend to all tokens"),
        (model.sinks, "learned scores that no key belongs to"),
        (model.norms != Norms::Each, "norms behind mixer and feed-forward, or one for both"),
        (model.output_gate != OutputGate::Off, "a gate behind attention"),
        (model.qk_norm == QueryKeyNorm::Whole, "one norm over all heads of queries and keys"),
        (
            model.heads_by_layer.is_some() || model.layer_inputs.is_some(),
            "heads or inputs that layers have of their own",
        ),
        (model.streams.is_some(), "several residual streams"),
        (model.vision.is_some(), "an encoder of images"),
    ];
    odd.into_iter().find(|(is_so, _)| *is_so).map(|(_, what)| what)
}

/// The shape as flags, without those that an override states.
fn flags(model: &Model, stated: &[String]) -> Vec<Flag> {
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
        ("position-embedding-type", if model.learned_positions { "learned_absolute" } else { "rope" }.to_owned()),
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
    let flag = |(name, value): (&str, String)| Flag {
        name: name.to_owned(),
        values: if value.is_empty() { Vec::new() } else { vec![value] },
        at: 0..0,
    };
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
    let has: Vec<bool> = (0..model.n_layers)
        .map(|index| model.n_expert_layers_of(index + 1) > model.n_expert_layers_of(index))
        .collect();
    if has.contains(&false) {
        given.push(("moe-layer-freq", megatron::export::runs(&has)));
    }
    given
}

/// Puts the shape in front of what is given, so that an override counts. `stated` are the flags of overrides.
pub(super) fn add(given: &mut Vec<Flag>, model: &Model, stated: &[String]) {
    given.splice(0..0, flags(model, stated));
}

/// Writes the model with what overrides change of its shape; nothing where they change nothing of it, or what no flag says.
pub(super) fn write(flags: &mut Flags<'_>, out: &mut Document, model: &Model, stated: &[String]) -> Option<Shape> {
    let changed: Vec<&String> = stated.iter().filter(|name| is_of_shape(name)).collect();
    if changed.is_empty() {
        return None;
    }
    if let Some(what) = unsaid(model) {
        for name in changed {
            let why =
                format!("the shape is that of `{}`, whose {what} no flag says: give `[model.config]`", model.name);
            flags.not_modelled(name, &why);
        }
        return None;
    }
    out.remark(format!("The shape is that of `{}` with what overrides change.", model.name));
    megatron::shape(flags, out, &Machine::default())
}
