//! What a model's code has beside its widths, and what neither time nor memory is told apart by: scripts of training have to say it.
//!
//! Source: huggingface/transformers, `modeling_<type>.py` and `configuration_<type>.py`.

/// Kind of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
    /// The same with weights around one (Nemotron's `LayerNorm1P`).
    LayerAroundOne,
    /// The same without weights (OLMo).
    LayerWithoutWeights,
}

/// Function of feed-forwards, of a gate or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// SiLU, also called swish.
    Silu,
    /// GELU or an approximation of it.
    Gelu,
    /// ReLU.
    Relu,
    /// The square of ReLU.
    SquaredRelu,
    /// Another one.
    Other,
}

impl Activation {
    /// Whether it is what scripts of training have a switch for: a gate of SiLU, or a plain GELU or squared ReLU.
    pub const fn is_usual(self, gated: bool) -> bool {
        match self {
            Self::Silu => gated,
            Self::Gelu | Self::SquaredRelu => !gated,
            Self::Relu | Self::Other => false,
        }
    }

    /// The function of a word of `hidden_act`.
    pub(super) fn named(word: &str) -> Self {
        match word {
            "silu" | "swish" => Self::Silu,
            "relu" => Self::Relu,
            "relu2" => Self::SquaredRelu,
            word if word.contains("gelu") => Self::Gelu,
            _ => Self::Other,
        }
    }
}

/// How positions come in where they are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rotary,
    /// Nowhere.
    Off,
    /// As biases of attention that grow with the distance (ALiBi, arXiv:2108.12409).
    Biases,
}

/// What stands beside the widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Norms.
    pub norm: Norm,
    /// Function of feed-forwards; `None` where nobody says one.
    pub activation: Option<Activation>,
    /// Positions.
    pub positions: Positions,
    /// Whether attention and feed-forward run beside each other, also where each has a norm of its own (GPT-NeoX).
    pub parallel: bool,
}

impl Style {
    /// As in Llama, with the function that is usual for a feed-forward.
    pub const PLAIN: Self = Self { norm: Norm::Rms, activation: None, positions: Positions::Rotary, parallel: false };
}
