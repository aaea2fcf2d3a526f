//! Codes of findings: a number that stays, a meaning in one sentence, and an explanation with a wrong and a right example.
//!
//! Numbers and meanings stand here, explanations in `codes.toml`. A code has one meaning; a number is never used again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Declares every code once: number, name and meaning.
macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $name:ident = $number:literal,)+) => {
        /// What a finding is about, for people who look it up and for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code {
            $($(#[doc = $meaning])+ $name = $number,)+
        }

        impl Code {
            /// Every code, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What it means, in one sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($meaning),+).trim_start(),)+
                }
            }
        }
    };
}

codes! {
    /// The scenario cannot be read.
    NoScenario = 0,
    /// The file is not valid TOML.
    NotToml = 1,
    /// An argument of `--set` cannot be laid over the file.
    WrongOverride = 2,
    /// A name that stands for a section stands for something else.
    NotASection = 3,
    /// Nothing has that name.
    UnknownName = 4,
    /// A name cannot be that of a file.
    WrongFileName = 5,
    /// A file that would be written is there already.
    FileExists = 6,
    /// No finding has that code.
    UnknownCode = 7,
    /// A value is of another type than its key takes.
    WrongType = 10,
    /// A number lies outside its range.
    OutOfRange = 11,
    /// A word is none of those that its key takes.
    UnknownWord = 12,
    /// A key that is needed is missing.
    MissingKey = 13,
    /// A key means nothing where it stands.
    UnknownKey = 14,
    /// A name cannot be part of a file's name.
    WrongName = 15,
    /// `policies.run` names no policy.
    NothingRuns = 16,
    /// A key changes nothing beside the others.
    NoEffect = 17,
    /// The configuration of a model cannot be read.
    UnreadableModel = 20,
    /// The configuration of a model lacks something or contradicts itself.
    WrongModel = 21,
    /// No model has that name.
    UnknownModel = 22,
    /// No GPU of the catalogue, or of the offers, has that name.
    UnknownGpu = 23,
    /// A file that the scenario names cannot be read.
    UnreadableFile = 24,
    /// A list of lengths holds no length, or something that is none.
    WrongLengths = 25,
    /// No distribution or table of lengths has that name.
    UnknownLengths = 26,
    /// No policy of this kind of scenario has that name.
    UnknownPolicy = 27,
    /// Two things that are told apart by their names have the same one.
    TwiceNamed = 28,
    /// A baseline, or a policy that a question is about, does not run.
    UnknownBaseline = 29,
    /// NVLink islands do not cut a node into equal parts.
    WrongIsland = 30,
    /// A degree of parallelism does not divide the heads or layers of the model.
    UnevenDegree = 31,
    /// A policy has no parameter of that name.
    UnknownParameter = 32,
    /// A policy's parameter cannot have that value.
    WrongParameter = 33,
    /// A profile is neither shipped nor a file that can be read.
    UnknownProfile = 34,
    /// The text of a profile cannot be used.
    WrongProfile = 35,
    /// Keys that exclude each other are given together.
    ExclusiveKeys = 36,
    /// No cluster of the catalogue has that name.
    UnknownCluster = 37,
    /// No pipeline schedule has that name.
    UnknownSchedule = 38,
    /// The order of ranks does not name every axis once.
    WrongRankOrder = 39,
    /// Degrees or replicas do not fit the GPUs that there are.
    WrongGpuCount = 40,
    /// Ulysses cannot cut the heads of the model over so many ranks.
    UlyssesHeads = 41,
    /// Parameters, gradients and optimizer do not fit the memory of a GPU.
    ModelTooLarge = 42,
    /// A sequence is longer than a context group can hold.
    LongSequence = 43,
    /// A tensor group crosses NVLink islands.
    CrossesIslands = 44,
    /// Expert parallelism does not fit the model or the layout.
    WrongExperts = 45,
    /// Pipeline stages and layers do not fit each other.
    WrongStages = 46,
    /// A schedule with split backward passes meets sharded gradients.
    ShardedSplitBackward = 47,
    /// A policy's context degree does not divide its ranks.
    WrongPolicyDegree = 48,
    /// Groups that a planner scales cannot be planned together.
    WrongScaling = 49,
    /// An expectation cannot be read.
    WrongExpectation = 50,
    /// Times of a pipeline's passes are incomplete.
    WrongUnits = 51,
    /// A profile was measured on another GPU than the cluster has.
    OtherGpu = 52,
    /// A policy has no replica to run on.
    NoReplica = 53,
    /// A group has another number of shares than there are types of requests.
    WrongShares = 54,
    /// No group of the fleet has that name.
    UnknownGroup = 55,
    /// Prompts are computed where nobody decodes, or the other way round.
    MissingRole = 57,
    /// A policy has hash functions where the scenario compresses nothing.
    NoCompression = 58,
    /// Compression does not fit the model, the layout or itself.
    WrongCompression = 59,
    /// Shapes lie outside what the profile measured.
    OutsideHull = 60,
    /// Measured tables cannot be turned into a profile.
    WrongTables = 70,
    /// A gate cannot be read or names nothing that is compared.
    WrongGate = 80,
    /// The inputs of `compare` cannot be laid side by side.
    NotComparable = 81,
    /// A file is not the result of a run.
    WrongResult = 82,
    /// An argument of `--vary` cannot be read.
    WrongVariation = 83,
    /// A calibration ended before anything was measured.
    NothingMeasured = 84,
    /// A plan cannot be executed.
    UnusablePlan = 85,
    /// Figures of one device would be used for another.
    OtherDevice = 86,
    /// No device has that name.
    UnknownDevice = 87,
    /// The verb has nothing to do in a scenario of this kind.
    WrongKind = 90,
    /// A trace has lines that are no requests.
    WrongTrace = 91,
    /// No request is left to serve.
    NoRequests = 92,
    /// An iteration has fewer tokens than sequences.
    FewTokens = 93,
    /// Weights leave no memory for keys and values.
    NoRoomForCache = 94,
    /// No router has that name.
    UnknownRouter = 95,
    /// No format of traces has that name.
    UnknownFormat = 96,
    /// Requests are longer than a replica can hold.
    LongRequests = 97,
    /// Parallelism or drafting of an engine does not fit the model or its GPUs.
    WrongOperation = 98,
    /// Tokens of a trace are estimated from its text.
    EstimatedTokens = 99,
    /// Rates over time are out of order or end at none.
    WrongSchedule = 100,
    /// Requests would arrive too late to be simulated.
    LateArrivals = 101,
    /// Requests are to be replayed and have no arrivals.
    NoArrivals = 102,
    /// There is nothing to rent or nothing to serve.
    NothingToRent = 110,
    /// A budget is no amount of dollars per hour.
    WrongBudget = 111,
    /// Rates are to be found for requests of unknown length.
    NoLengths = 113,
    /// A configuration has other rates than there are request types.
    WrongRates = 114,
    /// A given plan cannot be carried out on the configurations.
    WrongPlan = 115,
    /// A configuration takes no GPU.
    NoGpus = 116,
    /// The law of a stage's time is incomplete.
    WrongStageLaw = 120,
    /// Sparse attention has no budget for the model.
    NoSparseBudget = 121,
    /// More fleets are asked for than are tried.
    ManyFleets = 122,
    /// Capacity is asked for without a limit to keep.
    NoLimit = 123,
    /// The scenario asks nothing about capacity.
    NoQuestion = 124,
    /// Fleets are to be compared in dollars and a group has no price.
    NoPrice = 125,
    /// The policies do not know models of this kind.
    UnsupportedModel = 126,
    /// The tables have no times for a type of node.
    NoTimes = 130,
    /// Tables of layer times are of another model.
    OtherModel = 131,
    /// A table of layer times cannot be read.
    WrongLayerTimes = 132,
    /// Not one layer fits a node.
    LayerTooLarge = 133,
    /// Ranges of layers are not one pair for each node.
    WrongRanges = 134,
    /// A position counts beyond what there is.
    UnknownPosition = 140,
    /// The machine that targets are multiples of cannot serve the model.
    NoReference = 141,
    /// A size cannot be read, may be below 1, or is too large.
    WrongSize = 142,
    /// What a compiler is told of sizes contradicts itself or the batches.
    WrongBounds = 143,
    /// Mastered facts cannot grow by as much, or as little, as they are calibrated to.
    UnreachableGrowth = 160,
    /// A matrix of transitions is none.
    WrongMatrix = 161,
    /// Another kind has what this one asks.
    AskedElsewhere = 170,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{:03}", *self as u16)
    }
}

impl FromStr for Code {
    type Err = String;

    /// Reads `S036`, also as `s036` or `36`; the nearest codes where there is none of that number.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix(['S', 's']).unwrap_or(text).parse::<u16>();
        let number = number.map_err(|_| format!("`{text}` is no code; codes are `S` and three digits"))?;
        Self::ALL.iter().copied().find(|code| *code as u16 == number).ok_or_else(|| {
            let mut near = Self::ALL.to_vec();
            near.sort_by_key(|code| (*code as u16).abs_diff(number));
            near.truncate(3);
            near.sort();
            let near: Vec<String> = near.iter().map(Self::to_string).collect();
            format!("no finding has the code `{text}`; the nearest are {}", near.join(", "))
        })
    }
}

/// What is known about a code besides its meaning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// Why it is refused, and what to do.
    pub about: String,
    /// Shipped scenario over which both examples are laid; `None` where they are command lines.
    pub base: Option<String>,
    /// An example with the finding.
    pub wrong: String,
    /// One without it.
    pub right: String,
}

/// Explanations by code.
///
/// # Panics
/// When `codes.toml` cannot be read, which a test excludes.
#[must_use]
pub fn explanations() -> BTreeMap<String, Explanation> {
    toml::from_str(include_str!("codes.toml")).expect("explanations that a test has read")
}

/// Everything about a code, for a terminal.
#[must_use]
pub fn explained(code: Code) -> String {
    let Some(explanation) = explanations().remove(&code.to_string()) else {
        return format!("{code}: {}\n", code.meaning());
    };
    let place = explanation.base.as_ref().map_or_else(String::new, |base| format!(", laid over `{base}`"));
    let indented = |text: &str| text.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "{code}: {}\n\n{}\n\nwrong{place}:\n\n{}\nright:\n\n{}",
        code.meaning(),
        filled(&explanation.about),
        indented(&explanation.wrong),
        indented(&explanation.right)
    )
    .replace("    \n", "\n")
}

/// A sentence or more in lines of at most 100 letters.
fn filled(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        match last.chars().count() {
            0 => *last += word,
            n if n + word.chars().count() < 100 => *last = format!("{last} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// A line for each code.
#[must_use]
pub fn listed() -> String {
    Code::ALL.iter().map(|code| format!("{code}  {}\n", code.meaning())).collect()
}

/// The page of all codes, in Markdown.
#[must_use]
pub fn page() -> String {
    let explanations = explanations();
    let mut text = "# Codes of findings\n\nEvery error and warning about input carries a code. `skrull-sim explain S036` prints what stands here. \
        Examples are laid over the\nshipped scenario that is named with them; the tests hold that the wrong one has the finding and the right one has not.\n\n\
        This page is written by `skrull-sim explain --page`.\n"
        .to_owned();
    for code in Code::ALL {
        text += &format!("\n## {code}\n\n{}\n", code.meaning());
        let Some(explanation) = explanations.get(&code.to_string()) else { continue };
        let (place, language) = match &explanation.base {
            Some(base) => (format!(", in `{base}`"), "toml"),
            None => (String::new(), "sh"),
        };
        text += &format!(
            "{}\n\nWrong{place}:\n\n```{language}\n{}\n```\n\nRight:\n\n```{language}\n{}\n```\n",
            explanation.about.trim(),
            explanation.wrong.trim(),
            explanation.right.trim()
        );
    }
    text
}
