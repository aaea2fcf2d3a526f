//! Which activations are computed again, by Megatron Core's options: granularity, modules, method and layers. Megatron-LM has them as flags; verl passes them on
//! as keys (`transformer_config.py`: `recompute_granularity`, `recompute_modules`, `recompute_method`, `recompute_num_layers`).

use engine::recompute::{Module, Modules, Recompute};
use input::diagnostic::nearest;

use crate::flags::{Flags, words};

/// How a stack writes the options.
pub(crate) struct Names<'n> {
    pub(crate) granularity: &'n str,
    pub(crate) modules: &'n str,
    pub(crate) method: &'n str,
    pub(crate) n_layers: &'n str,
}

/// What they say.
pub(crate) struct Again {
    pub(crate) recompute: Recompute,
    /// Layers of a stage that are computed again, where it is not all of them.
    pub(crate) layers: Option<u64>,
}

impl Again {
    /// Reads the options. `is_selective` where something else asks for selective recompute, `is_unfused` where attention is in pieces.
    pub(crate) fn of(flags: &mut Flags<'_>, names: &Names<'_>, is_selective: bool, is_unfused: bool) -> Self {
        let granularity = flags.word(names.granularity, &[("full", "full"), ("selective", "selective")]);
        let granularity = granularity.or_else(|| is_selective.then_some("selective"));
        let modules = modules(flags, names.modules);
        let recompute = match granularity {
            None => Recompute::Off,
            Some("full") => Recompute::Full,
            // Nothing but the score matrix and what is made of it is dropped then, as selective recompute of the paper does.
            Some(_) if is_unfused && modules == Modules::NONE.with(Module::CoreAttention) => Recompute::Selective,
            Some(_) if modules == Modules::NONE => Recompute::Off,
            Some(_) => Recompute::Modules(modules),
        };
        Self { recompute, layers: layers(flags, names, recompute) }
    }
}

/// Modules that are named; attention between its projections where none is.
fn modules(flags: &mut Flags<'_>, name: &str) -> Modules {
    let Some(text) = flags.text(name) else { return Modules::NONE.with(Module::CoreAttention) };
    let known = Module::WORDS.map(|(word, _)| word);
    let mut modules = Modules::NONE;
    for word in words(&text) {
        match Module::named(word) {
            Some(module) => modules = modules.with(module),
            None => {
                let near = nearest(word, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
                let what = format!("`{word}` of `{}` is no module of a layer", flags.shown(name));
                flags.wrong(name, what, format!("{near}allowed are {}", known.join(", ")));
            }
        }
    }
    modules
}

/// Layers of a stage, where they are counted (`block`). `uniform` keeps the input of every so many layers.
fn layers(flags: &mut Flags<'_>, names: &Names<'_>, recompute: Recompute) -> Option<u64> {
    let method = flags.text(names.method);
    let n_layers = flags.count(names.n_layers, 1..=10_000);
    if recompute != Recompute::Full {
        return None;
    }
    match method.as_deref() {
        Some("block") => n_layers,
        Some("uniform") if n_layers.is_some_and(|n| n > 1) => {
            let why = "the input of every layer is kept, not of every so many: memory comes out too large";
            flags.not_modelled(names.n_layers, why);
            None
        }
        _ => None,
    }
}
