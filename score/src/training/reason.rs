//! Why a measured step has no prediction. A row is never left out: it has a prediction or one of these.

hw::words! {
    /// Why a row cannot be played.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Reason { .. }: name, about {
        /// The card is not in the catalogue.
        Card {
            /// The table's word.
            word: String,
        } = ("card", "a card that is not in the catalogue"),
        /// The model's shape is not known.
        Model {
            /// The table's word.
            word: String,
        } = ("model", "a model whose shape is not known"),
        /// A kind of model that training does not have.
        Kind {
            /// The table's word.
            word: String,
        } = ("kind", "a kind of model that training does not have"),
        /// Layers that training does not time.
        Layers {
            /// Which.
            what: String,
        } = ("layers", "layers that training does not time"),
        /// Only a part of the parameters is trained.
        Task {
            /// The table's word.
            word: String,
        } = ("task", "only a part of the parameters is trained"),
        /// No table has the times of a model's layers on a card.
        LayerTimes {
            /// Model.
            model: &'static str,
            /// Card.
            card: String,
        } = ("layer times", "layers that no table has times of"),
        /// No table has the link between two cards.
        Link {
            /// Which.
            between: String,
        } = ("link", "cards between which no link is stated"),
        /// A number format that is not known.
        Format {
            /// The table's word.
            word: String,
        } = ("format", "a number format that is not known"),
        /// The number of GPUs is not published.
        GpusNotPublished = ("gpus", "the number of GPUs is not published"),
        /// The vocabulary is not stated.
        Vocabulary = ("vocabulary", "the size of the vocabulary is not stated"),
        /// Degrees do not divide what they cut.
        Degrees {
            /// What does not divide what.
            what: String,
        } = ("degrees", "degrees that do not divide the model or the batch"),
        /// An option that changes time or memory and is not modelled.
        Option {
            /// Which.
            what: String,
        } = ("option", "an option that is not modelled"),
    }
}

impl Reason {
    /// What it is, and what it is about in this row.
    pub fn words(&self) -> String {
        match self.detail() {
            detail if detail.is_empty() => self.about().to_owned(),
            detail => format!("{}: {detail}", self.about()),
        }
    }

    /// What it is about in this row, where that says more.
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
