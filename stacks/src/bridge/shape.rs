//! The shape of a recipe's model as flags of Megatron-LM, and overrides that change it.

use engine::model::{Mixer, Model, Norms, OutputGate, QueryKeyNorm};

use crate::Machine;
use crate::document::Document;
use crate::flags::{Effect, Flags};
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
