//! Why a measured step or transfer has no prediction. A row is never left out: it has a prediction or one of these.

hw::words! {
    /// Why a row cannot be played.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Reason { .. }: name, about {
        /// The card is not stated, or is not in the catalogue.
        Card {
            /// The table's word.
            word: String,
        } = ("card", "a card that is not stated or not in the catalogue"),
        /// The model's shape is not known.
        Model {
            /// The table's word.
            word: String,
        } = ("model", "a model whose shape is not known"),
        /// How long answers are is not stated.
        Lengths {
            /// What is stated of them.
            stated: String,
        } = ("lengths", "how long answers are in the mean is not stated"),
        /// How many answers a step has is not stated.
        Batch = ("batch", "the number of answers of a step is not stated"),
        /// How the trainer or the engine is cut is not stated.
        Layout = ("layout", "degrees of trainer or engine are not stated"),
        /// The recipe of a row is not one that was read.
        Recipe {
            /// The table's word.
            word: String,
        } = ("recipe", "a recipe that was not read"),
        /// Degrees do not divide what they cut.
        Degrees {
            /// What does not divide what.
            what: String,
        } = ("degrees", "degrees that do not divide the GPUs or the batch"),
        /// Answers do not fit their limit.
        Limit {
            /// In figures.
            what: String,
        } = ("limit", "answers that do not fit their limit"),
        /// The trainer cannot be played.
        Trainer {
            /// Why.
            why: String,
        } = ("trainer", "a trainer that cannot be played"),
        /// The engine cannot be played.
        Generator {
            /// Why.
            why: String,
        } = ("generator", "an engine that cannot be played"),
        /// Only what changed is sent.
        Delta = ("delta", "only parameters that changed are sent, and how many is not stated"),
    }
}

impl Reason {
    /// What it is about in this row, where that says more.
    pub fn detail(&self) -> String {
        match self {
            Self::Card { word } | Self::Model { word } | Self::Recipe { word } => word.clone(),
            Self::Lengths { stated } => stated.clone(),
            Self::Degrees { what } | Self::Limit { what } => what.clone(),
            Self::Trainer { why } | Self::Generator { why } => why.clone(),
            Self::Batch | Self::Layout | Self::Delta => String::new(),
        }
    }
}

impl From<crate::training::reason::Reason> for Reason {
    fn from(reason: crate::training::reason::Reason) -> Self {
        Self::Trainer { why: reason.words() }
    }
}

impl From<crate::reason::Reason> for Reason {
    fn from(reason: crate::reason::Reason) -> Self {
        Self::Generator { why: format!("{} {}", reason.about(), reason.detail()).trim_end().to_owned() }
    }
}
