//! Why a run has no prediction. A run is never left out: it has a prediction or one of these.

use engine::verdict::Refused;

hw::words! {
    /// Why a run cannot be played.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Reason { .. }: name, about {
        /// The same latencies of the same setting stand in an earlier line.
        Repeats {
            /// The line.
            line: u64,
        } = ("repeats", "a measurement that an earlier line has already"),
        /// The model is not known.
        Model = ("model", "a model that is not known"),
        /// The card is not in the catalogue.
        Card = ("card", "a card that is not in the catalogue"),
        /// The engine has no preset.
        Engine = ("engine", "an engine without a preset"),
        /// A number format that is not known.
        Format {
            /// The table's word.
            word: String,
        } = ("format", "a number format that is not known"),
        /// Tokens were drafted, and nobody says how many were accepted.
        Drafted = ("drafts", "tokens were drafted, and how many were accepted is not published"),
        /// Nobody says how many requests were in flight.
        InFlight = ("in-flight", "requests in flight are not stated"),
        /// Nobody says how many workers there were.
        WorkersNotStated = ("workers", "the number of prefill and decode workers is not stated"),
        /// Degrees do not divide what they cut.
        Degrees {
            /// What does not divide what.
            what: String,
        } = ("degrees", "degrees that do not divide the model"),
        /// Weights, keys and values do not fit.
        Memory {
            /// In figures.
            what: String,
        } = ("memory", "weights that do not fit the memory"),
    }
}

impl Reason {
    /// The same of a question that is refused.
    pub fn refused(&self) -> Refused {
        match (self, self.detail()) {
            (Self::Memory { what }, _) => Refused::out_of_memory(what.clone()),
            (_, detail) if detail.is_empty() => Refused::infeasible(self.about()),
            (_, detail) => Refused::infeasible(format!("{}: {detail}", self.about())),
        }
    }

    /// What it is about in this run, where that says more.
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
