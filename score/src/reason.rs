//! Why a row of a measured table has no prediction: a run, a step or a transfer. A row is never left out: it has a prediction or one of these.

use engine::verdict::Refused;

hw::words! {
    /// Why a row cannot be played.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Reason { .. }: name, about {
        /// The same latencies of the same setting stand in an earlier line.
        Repeats {
            /// The line.
            line: u64,
        } = ("repeats", "a measurement that an earlier line has already"),
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
        /// The vocabulary is not stated.
        Vocabulary = ("vocabulary", "the size of the vocabulary is not stated"),
        /// The card is not stated, or is not in the catalogue.
        Card {
            /// The table's word.
            word: String,
        } = ("card", "a card that is not stated or not in the catalogue"),
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
        /// The number of GPUs is not published.
        GpusNotPublished = ("gpus", "the number of GPUs is not published"),
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
        } = ("degrees", "degrees that do not divide the model, the GPUs or the batch"),
        /// Weights, keys and values do not fit.
        Memory {
            /// In figures.
            what: String,
        } = ("memory", "weights that do not fit the memory"),
        /// Answers do not fit their limit.
        Limit {
            /// In figures.
            what: String,
        } = ("limit", "answers that do not fit their limit"),
        /// An option that changes time or memory and is not modelled.
        Option {
            /// Which.
            what: String,
        } = ("option", "an option that is not modelled"),
        /// The trainer of a step of reinforcement learning cannot be played.
        Trainer {
            /// Why.
            why: String,
        } = ("trainer", "a trainer that cannot be played"),
        /// Its engine cannot be played.
        Generator {
            /// Why.
            why: String,
        } = ("generator", "an engine that cannot be played"),
        /// Only what changed is sent.
        Delta = ("delta", "only parameters that changed are sent, and how many is not stated"),
    }
}

impl Reason {
    /// The same of the trainer of a step of reinforcement learning.
    pub(crate) fn of_trainer(self) -> Self {
        Self::Trainer { why: self.words() }
    }

    /// The same of its engine.
    pub(crate) fn of_generator(self) -> Self {
        Self::Generator { why: self.words() }
    }

    /// The same of a question that is refused.
    pub fn refused(&self) -> Refused {
        if let Self::Memory { what } = self {
            Refused::out_of_memory(what.clone())
        } else {
            Refused::infeasible(self.words())
        }
    }

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
            Self::Repeats { line } => format!("line {line}"),
            Self::Model { word }
            | Self::Kind { word }
            | Self::Task { word }
            | Self::Card { word }
            | Self::Format { word }
            | Self::Recipe { word } => word.clone(),
            Self::Layers { what }
            | Self::Degrees { what }
            | Self::Memory { what }
            | Self::Limit { what }
            | Self::Option { what } => what.clone(),
            Self::LayerTimes { model, card } => format!("{model} on {card}"),
            Self::Link { between } => between.clone(),
            Self::Lengths { stated } => stated.clone(),
            Self::Trainer { why } | Self::Generator { why } => why.clone(),
            Self::Vocabulary
            | Self::GpusNotPublished
            | Self::Engine
            | Self::Drafted
            | Self::InFlight
            | Self::WorkersNotStated
            | Self::Batch
            | Self::Layout
            | Self::Delta => String::new(),
        }
    }
}
