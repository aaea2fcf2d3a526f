//! Why a run has no prediction. A run is never left out: it has a prediction or one of these.

use engine::verdict::Refused;

/// Why a run cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The same latencies of the same setting stand in an earlier line.
    Repeats {
        /// The line.
        line: u64,
    },
    /// The model is not known.
    Model,
    /// The card is not in the catalogue.
    Card,
    /// The engine has no preset.
    Engine,
    /// A number format that is not known.
    Format {
        /// The table's word.
        word: String,
    },
    /// Tokens were drafted, and nobody says how many were accepted.
    Drafted,
    /// Nobody says how many requests were in flight.
    InFlight,
    /// Nobody says how many workers there were.
    WorkersNotStated,
    /// Degrees do not divide what they cut.
    Degrees {
        /// What does not divide what.
        what: String,
    },
    /// Weights, keys and values do not fit.
    Memory {
        /// In figures.
        what: String,
    },
}

impl Reason {
    /// Word under which runs are counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Repeats { .. } => "repeats",
            Self::Model => "model",
            Self::Card => "card",
            Self::Engine => "engine",
            Self::Format { .. } => "format",
            Self::Drafted => "drafts",
            Self::InFlight => "in-flight",
            Self::WorkersNotStated => "workers",
            Self::Degrees { .. } => "degrees",
            Self::Memory { .. } => "memory",
        }
    }

    /// What the word means.
    #[must_use]
    pub const fn about(&self) -> &'static str {
        match self {
            Self::Repeats { .. } => "a measurement that an earlier line has already",
            Self::Model => "a model that is not known",
            Self::Card => "a card that is not in the catalogue",
            Self::Engine => "an engine without a preset",
            Self::Format { .. } => "a number format that is not known",
            Self::Drafted => "tokens were drafted, and how many were accepted is not published",
            Self::InFlight => "requests in flight are not stated",
            Self::WorkersNotStated => "the number of prefill and decode workers is not stated",
            Self::Degrees { .. } => "degrees that do not divide the model",
            Self::Memory { .. } => "weights that do not fit the memory",
        }
    }

    /// The same of a question that is refused.
    #[must_use]
    pub fn refused(&self) -> Refused {
        match (self, self.detail()) {
            (Self::Memory { what }, _) => Refused::out_of_memory(what.clone()),
            (_, detail) if detail.is_empty() => Refused::infeasible(self.about()),
            (_, detail) => Refused::infeasible(format!("{}: {detail}", self.about())),
        }
    }

    /// What it is about in this run, where that says more.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Repeats { line } => format!("line {line}"),
            Self::Format { word } => word.clone(),
            Self::Degrees { what } | Self::Memory { what } => what.clone(),
            Self::Model | Self::Card | Self::Engine | Self::Drafted | Self::InFlight | Self::WorkersNotStated => {
                String::new()
            }
        }
    }
}
