//! Why a measured step has no prediction. A row is never left out: it has a prediction or one of these.

/// Why a row cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The card is not in the catalogue.
    Card {
        /// The table's word.
        word: String,
    },
    /// The model's shape is not known.
    Model {
        /// The table's word.
        word: String,
    },
    /// A kind of model that training does not have.
    Kind {
        /// The table's word.
        word: String,
    },
    /// Layers that training does not time.
    Layers {
        /// Which.
        what: String,
    },
    /// Only a part of the parameters is trained.
    Task {
        /// The table's word.
        word: String,
    },
    /// No table has the times of a model's layers on a card.
    LayerTimes {
        /// Model.
        model: &'static str,
        /// Card.
        card: String,
    },
    /// No table has the link between two cards.
    Link {
        /// Which.
        between: String,
    },
    /// A number format that is not known.
    Format {
        /// The table's word.
        word: String,
    },
    /// The number of GPUs is not published.
    GpusNotPublished,
    /// The vocabulary is not stated.
    Vocabulary,
    /// Degrees do not divide what they cut.
    Degrees {
        /// What does not divide what.
        what: String,
    },
    /// An option that changes time or memory and is not modelled.
    Option {
        /// Which.
        what: String,
    },
}

impl Reason {
    /// Word under which rows are counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Card { .. } => "card",
            Self::Model { .. } => "model",
            Self::Kind { .. } => "kind",
            Self::Layers { .. } => "layers",
            Self::Task { .. } => "task",
            Self::LayerTimes { .. } => "layer times",
            Self::Link { .. } => "link",
            Self::Format { .. } => "format",
            Self::GpusNotPublished => "gpus",
            Self::Vocabulary => "vocabulary",
            Self::Degrees { .. } => "degrees",
            Self::Option { .. } => "option",
        }
    }

    /// What the word means.
    #[must_use]
    pub const fn about(&self) -> &'static str {
        match self {
            Self::Card { .. } => "a card that is not in the catalogue",
            Self::Model { .. } => "a model whose shape is not known",
            Self::Kind { .. } => "a kind of model that training does not have",
            Self::Layers { .. } => "layers that training does not time",
            Self::Task { .. } => "only a part of the parameters is trained",
            Self::LayerTimes { .. } => "layers that no table has times of",
            Self::Link { .. } => "cards between which no link is stated",
            Self::Format { .. } => "a number format that is not known",
            Self::GpusNotPublished => "the number of GPUs is not published",
            Self::Vocabulary => "the size of the vocabulary is not stated",
            Self::Degrees { .. } => "degrees that do not divide the model or the batch",
            Self::Option { .. } => "an option that is not modelled",
        }
    }

    /// What it is about in this row, where that says more.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Card { word }
            | Self::Model { word }
            | Self::Kind { word }
            | Self::Task { word }
            | Self::Format { word } => word.clone(),
            Self::Layers { what } | Self::Degrees { what } | Self::Option { what } => what.clone(),
            Self::LayerTimes { model, card } => format!("{model} on {card}"),
            Self::Link { between } => between.clone(),
            Self::GpusNotPublished | Self::Vocabulary => String::new(),
        }
    }
}
