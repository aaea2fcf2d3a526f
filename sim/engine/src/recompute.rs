//! Which activations are dropped in forward and computed again in backward.

use crate::model::Model;

/// Which activations are dropped in forward and computed again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recompute {
    /// Everything is kept.
    Off,
    /// The cheap, large ones: attention internals, norms and activation functions (arXiv:2205.05198, section 5).
    Selective,
    /// What these modules of every layer make.
    Modules(Modules),
    /// Only each layer's input is kept.
    Full,
}

impl Recompute {
    /// The same, and what a module of every layer makes.
    #[must_use]
    pub const fn with(self, module: Module) -> Self {
        match self {
            Self::Off => Self::Modules(Modules::NONE.with(module)),
            Self::Modules(modules) => Self::Modules(modules.with(module)),
            Self::Selective => Self::Modules(Modules::NONE.with(Module::CoreAttention).with(module)),
            Self::Full => Self::Full,
        }
    }

    /// Words of scenario files beside those of modules.
    pub const WORDS: [(&'static str, Self); 3] =
        [("selective", Self::Selective), ("none", Self::Off), ("full", Self::Full)];

    /// As a scenario file says it: a word, or several of modules.
    pub fn words(self) -> Vec<&'static str> {
        match self {
            Self::Modules(modules) => modules.iter().map(Module::word).collect(),
            _ => Self::WORDS.iter().filter(|(_, value)| *value == self).map(|(word, _)| *word).collect(),
        }
    }

    /// The same as one name.
    pub fn name(self) -> String {
        self.words().join("+")
    }

    /// The same as the value of a key.
    pub fn written(self) -> String {
        let words: Vec<String> = self.words().iter().map(|word| format!("\"{word}\"")).collect();
        if words.len() == 1 { words.concat() } else { format!("[{}]", words.join(", ")) }
    }

    /// The modules that are computed again by themselves.
    pub const fn modules(self) -> Modules {
        match self {
            Self::Modules(modules) => modules,
            Self::Off | Self::Selective | Self::Full => Modules::NONE,
        }
    }

    /// Whether some layers of this kind compute anything again.
    pub fn concerns(self, with_experts: bool) -> bool {
        match self {
            Self::Off => false,
            Self::Selective | Self::Full => true,
            Self::Modules(modules) => modules.iter().any(|module| module.is_in_layers(with_experts)),
        }
    }
}

hw::words! {
    /// A part of a layer that is computed again by itself, as Megatron-Core cuts a layer (`--recompute-modules`). Norms, activation functions of
    /// experts and up-projections drop what they give, and the others keep what they read (`TransformerConfig.recompute_modules`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Module: word {
        /// Attention between its projections.
        CoreAttention = "core_attn",
        /// The norm before attention, and the one before the feed-forward.
        Norms = "layernorm",
        /// The activation function of routed experts.
        ExpertActivation = "moe_act",
        /// What latent attention makes of its compressed vectors, with rotary positions.
        UpProjections = "mla_up_proj",
        /// The dense feed-forward.
        FeedForward = "mlp",
        /// Routed experts with router and exchanges, and the shared ones.
        Experts = "moe",
        /// Shared experts.
        SharedExperts = "shared_experts",
    }
}

impl Module {
    /// Whether layers of this kind have it.
    pub const fn is_in_layers(self, with_experts: bool) -> bool {
        match self {
            Self::CoreAttention | Self::Norms | Self::UpProjections => true,
            Self::FeedForward => !with_experts,
            Self::ExpertActivation | Self::Experts | Self::SharedExperts => with_experts,
        }
    }

    /// Whether it is a part of the module of experts.
    pub const fn is_inside_experts(self) -> bool {
        matches!(self, Self::ExpertActivation | Self::SharedExperts)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Modules(u8);

impl Modules {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Those of a model that take little time and keep nothing of their own: norms, up-projections, and activation functions of experts.
    pub const fn cheap(model: &Model) -> Self {
        let mut modules = Self::NONE.with(Module::Norms);
        if model.latent.is_some() {
            modules = modules.with(Module::UpProjections);
        }
        if model.experts.is_some() {
            modules = modules.with(Module::ExpertActivation);
        }
        modules
    }

    /// One module more.
    pub const fn with(self, module: Module) -> Self {
        Self(self.0 | module.bit())
    }

    /// Whether the set holds a module.
    pub const fn has(self, module: Module) -> bool {
        self.0 & module.bit() != 0
    }

    /// Those that layers of this kind have, each alone: what lies inside of another one is computed again with it.
    pub fn apart(self, with_experts: bool) -> impl Iterator<Item = Module> {
        let has_all = self.has(Module::Experts);
        self.iter().filter(move |module| module.is_in_layers(with_experts) && !(has_all && module.is_inside_experts()))
    }

    /// Its modules, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = Module> {
        Module::ALL.into_iter().filter(move |module| self.has(*module))
    }
}

impl FromIterator<Module> for Modules {
    fn from_iter<I: IntoIterator<Item = Module>>(modules: I) -> Self {
        modules.into_iter().fold(Self::NONE, Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_its_own_word_and_bit() {
        for (index, (word, module)) in Module::WORDS.into_iter().enumerate() {
            assert_eq!((module as usize, module.word(), Module::named(word)), (index, word, Some(module)));
            let alone = Modules::NONE.with(module);
            assert_eq!(alone.iter().collect::<Vec<_>>(), [module]);
            assert_eq!(Recompute::Modules(alone).words(), [word]);
        }
        assert_eq!(Recompute::WORDS.map(|(word, value)| value.words() == [word]), [true; 3]);
    }

    #[test]
    fn modules_concern_the_layers_that_have_them() {
        let of = |module| Recompute::Modules(Modules::NONE.with(module));
        assert_eq!([false, true].map(|experts| of(Module::FeedForward).concerns(experts)), [true, false]);
        assert_eq!([false, true].map(|experts| of(Module::ExpertActivation).concerns(experts)), [false, true]);
        assert_eq!([false, true].map(|experts| of(Module::Norms).concerns(experts)), [true, true]);
        assert_eq!([false, true].map(|experts| Recompute::Off.concerns(experts)), [false, false]);
    }
}
