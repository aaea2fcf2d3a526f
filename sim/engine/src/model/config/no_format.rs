//! Why a `quantization_config` cannot be priced.

/// Why `quantization_config` names no format that can be priced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoFormat {
    /// A key has a value that no kernel is known for.
    #[error("`quantization_config.{key}` is {found}, of which no kernel is known; allowed are {allowed}")]
    NoKernel { key: String, found: String, allowed: String },
    /// The groups are missing.
    #[error("key `quantization_config.config_groups` is missing")]
    NoGroups,
    /// Groups of the same modules differ in format.
    #[error(
        "`quantization_config.config_groups` has {0} formats for the same modules, allowed is one; `targets` tell groups apart"
    )]
    Several(usize),
    /// Weights and activations of a group fit no kernel.
    #[error(
        "`quantization_config.config_groups` has {weights} weights and {activations} activations, of which no kernel is known; \
         allowed are 8-bit weights with 8- or 16-bit activations, 4-bit integers and mxfp4 with 16-bit ones, 4-bit floats with 4-bit ones"
    )]
    Pair { weights: String, activations: String },
    /// No group has so many weights.
    #[error("`quantization_config.group_size` is {found}, allowed are whole numbers from 1, and -1 for whole rows")]
    NoGroup { found: String },
    /// A list of modules is something else.
    #[error("`quantization_config.{key}` is {found}, allowed are lists of names")]
    NoList { key: String, found: String },
    /// A regular expression cannot be read, for example one that looks ahead.
    #[error(
        "`quantization_config.{key}` has the expression `{found}`, which cannot be read; `[model] weights = {{ attention = …, experts = … }}` says formats itself"
    )]
    NoExpression { key: String, found: String },
}
