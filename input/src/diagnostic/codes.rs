//! Codes of findings: a number that stays, a meaning in one sentence, and an explanation with a wrong and a right example.
//!
//! Numbers and meanings stand here, explanations in `codes.toml`. A code has one meaning; a number is never used again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

/// Declares every code once: number, name and meaning.
macro_rules! codes {
    ($($name:ident = $number:literal, $meaning:literal;)+) => {
        /// What a finding is about, for people who look it up and for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $meaning] $name = $number,)+
        }

        impl Code {
            /// Every code, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What it means, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)+
                }
            }
        }
    };
}

codes! {
    NoScenario = 0, "The scenario cannot be read.";
    NotToml = 1, "The file is not valid TOML.";
    WrongOverride = 2, "An argument of `--set` cannot be laid over the file.";
    NotASection = 3, "A name that stands for a section stands for something else.";
    UnknownName = 4, "Nothing has that name.";
    WrongFileName = 5, "A name cannot be that of a file.";
    FileExists = 6, "A file that would be written is there already.";
    UnknownCode = 7, "No finding has that code.";
    WrongType = 10, "A value is of another type than its key takes.";
    OutOfRange = 11, "A number lies outside its range.";
    UnknownWord = 12, "A word is not among those that its key allows.";
    MissingKey = 13, "A key that is needed is missing.";
    UnknownKey = 14, "A key means nothing where it stands.";
    WrongName = 15, "A name cannot be part of a file's name.";
    NothingRuns = 16, "`policies.run` names no policy.";
    NoEffect = 17, "A key changes nothing beside the others.";
    UnreadableModel = 20, "The configuration of a model cannot be read.";
    WrongModel = 21, "The configuration of a model lacks something or contradicts itself.";
    UnknownModel = 22, "No model has that name.";
    UnknownGpu = 23, "No GPU of the catalogue, or of the offers, has that name.";
    UnreadableFile = 24, "A file that the scenario names cannot be read.";
    WrongLengths = 25, "A list of lengths is empty, or has an entry that is not a length.";
    UnknownLengths = 26, "No distribution or table of lengths has that name.";
    UnknownPolicy = 27, "No policy of this kind of scenario has that name.";
    TwiceNamed = 28, "Two things that are told apart by their names have the same one.";
    UnknownBaseline = 29, "A baseline, or a policy that a question is about, does not run.";
    WrongIsland = 30, "NVLink islands or PCIe switches are no equal parts of a node, and no whole nodes.";
    UnevenDegree = 31, "A degree of parallelism does not divide the heads or layers of the model.";
    UnknownParameter = 32, "A policy has no parameter of that name.";
    WrongParameter = 33, "A policy's parameter cannot have that value.";
    UnknownProfile = 34, "A profile is neither shipped nor a file that can be read.";
    WrongProfile = 35, "The text of a profile cannot be used.";
    ExclusiveKeys = 36, "Keys that exclude each other are given together.";
    UnknownCluster = 37, "No cluster of the catalogue has that name.";
    UnknownSchedule = 38, "No pipeline schedule has that name.";
    WrongRankOrder = 39, "The order of ranks does not name every axis once.";
    WrongGpuCount = 40, "Degrees or replicas do not fit the GPUs that there are.";
    UlyssesHeads = 41, "Ulysses cannot cut the heads of the model over so many ranks.";
    LongSequence = 43, "A sequence is longer than a context group can hold.";
    CrossesIslands = 44, "A tensor group crosses NVLink islands.";
    WrongExperts = 45, "Expert parallelism does not fit the model or the layout.";
    WrongStages = 46, "Pipeline stages and layers do not fit each other.";
    ShardedSplitBackward = 47, "A schedule with split backward passes meets sharded gradients.";
    WrongPolicyDegree = 48, "A policy's context degree does not divide its ranks.";
    WrongScaling = 49, "Groups that a planner scales cannot be planned together.";
    WrongExpectation = 50, "An expectation cannot be read.";
    WrongUnits = 51, "Times of a pipeline's passes are incomplete.";
    OtherGpu = 52, "A profile was measured on another GPU than the cluster has.";
    NoReplica = 53, "A policy has no replica to run on.";
    WrongShares = 54, "A group has another number of shares than there are types of requests.";
    UnknownGroup = 55, "No group of the fleet has that name.";
    MissingRole = 57, "Prompts are computed where nobody decodes, or the other way round.";
    NoCompression = 58, "A policy has hash functions where the scenario compresses nothing.";
    WrongCompression = 59, "Compression does not fit the model, the layout or itself.";
    OutsideHull = 60, "Shapes lie outside what the profile measured.";
    LeftOut = 61, "A part of a model is left out of time or memory, or taken for something else.";
    NoLink = 62, "Stages of different zones exchange data, and no link joins the zones.";
    UnevenBatch = 63, "A batch does not divide into the micro-batches of all replicas.";
    WrongTables = 70, "Measured tables cannot be read, or give no profile.";
    WrongGate = 80, "A gate cannot be read or names nothing that is compared.";
    NotComparable = 81, "The inputs of `compare` cannot be laid side by side.";
    WrongResult = 82, "A file is not the result of a run.";
    WrongVariation = 83, "An argument of `--vary` cannot be read.";
    NothingMeasured = 84, "A calibration ended before anything was measured.";
    UnusablePlan = 85, "A plan cannot be executed.";
    OtherDevice = 86, "Figures of one device would be used for another.";
    UnknownDevice = 87, "No device has that name.";
    WrongAxis = 88, "An axis, a condition or a front of a sweep cannot be read.";
    WrongKind = 90, "The verb has nothing to do in a scenario of this kind.";
    WrongTrace = 91, "A trace has lines that are no requests.";
    NoRequests = 92, "No request is left to serve.";
    FewTokens = 93, "An iteration has fewer tokens than sequences.";
    NoRoomForCache = 94, "There is less memory for keys and values than is asked.";
    UnknownRouter = 95, "No router has that name.";
    UnknownFormat = 96, "No format of traces has that name.";
    LongRequests = 97, "Requests are longer than a replica can hold.";
    WrongOperation = 98, "Parallelism, number formats or drafting do not fit the model or its GPUs.";
    EstimatedTokens = 99, "Tokens of a trace are estimated from its text.";
    WrongSchedule = 100, "Rates over time are out of order or end at none.";
    LateArrivals = 101, "Requests would arrive too late to be simulated.";
    NoArrivals = 102, "Requests are to be replayed and have no arrivals.";
    WrongLending = 103, "Words about lending memory mean nothing: nobody borrows, or nobody lends.";
    WrongAdapters = 104, "Adapters are asked for where no room is for them, or stand beside what knows none.";
    WrongExpertCounts = 105, "A file has no counts of experts.";
    WrongImages = 107, "Images have no size, do not fit the model, or are left out.";
    NothingToRent = 110, "There is nothing to rent or nothing to serve.";
    WrongBudget = 111, "A budget is no amount of dollars per hour.";
    NoLengths = 113, "Rates are to be found for requests of unknown length.";
    WrongRates = 114, "A configuration has other rates than there are request types.";
    WrongPlan = 115, "A given plan cannot be carried out on the configurations.";
    NoGpus = 116, "A configuration takes no GPU.";
    WrongStageLaw = 120, "The law of a stage's time is incomplete.";
    NoSparseBudget = 121, "Sparse attention has no budget for the model.";
    ManyFleets = 122, "More fleets are asked for than are tried.";
    NoLimit = 123, "Capacity is asked for without a limit to keep.";
    NoQuestion = 124, "The scenario asks nothing about capacity.";
    NoPrice = 125, "Fleets are to be compared in dollars and a group has no price.";
    UnsupportedModel = 126, "The policies do not know models of this kind.";
    NoTimes = 130, "The tables have no times for a type of node.";
    OtherModel = 131, "Tables of layer times are of another model.";
    WrongLayerTimes = 132, "A table of layer times cannot be read.";
    LayerTooLarge = 133, "Not one layer fits a node.";
    WrongRanges = 134, "Ranges of layers are not one pair for each node.";
    UnknownPosition = 140, "A position counts beyond what there is.";
    NoReference = 141, "The machine that targets are multiples of cannot serve the model.";
    WrongSize = 142, "A size cannot be read, may be below 1, or is too large.";
    WrongBounds = 143, "What a compiler is told of sizes contradicts itself or the batches.";
    UnreachableGrowth = 160, "Mastered facts cannot grow by as much, or as little, as they are calibrated to.";
    WrongMatrix = 161, "A matrix of transitions is none.";
    AskedElsewhere = 170, "Another kind has what this one asks.";
    WrongGraph = 180, "A graph cannot be read, made or trained on as it is asked.";
    UnreadableScript = 190, "A launch script or a file of flags cannot be read, or starts nothing that is known.";
    UnknownFlag = 191, "A flag of another stack is in none of its tables.";
    NotModelled = 192, "A flag matters for time or memory and is not modelled.";
    UnknownValue = 193, "A value is known only when a script runs.";
    WrongFlag = 194, "A flag of another stack has a value that it cannot have, or does not fit the others.";
    MissingFlag = 195, "A flag that a scenario needs is not given.";
    UnsupportedJob = 196, "A job of another stack is of a kind that is not simulated.";
    NotExpressible = 197, "The target of an export cannot say what a plan has.";
    NotExported = 198, "A plan or a target of an export is none that is known.";
    TakesTooLong = 199, "An answer would take longer than anybody waits.";
    PublishedFormat = 210, "A model is served in 16 bits, and nobody publishes it so.";
    NoKernel = 211, "An engine has no kernel for a number format.";
    OtherEngine = 212, "A policy batches as another engine does.";
    UnknownVersion = 213, "Nothing is known of a version of an engine.";
    LongContext = 214, "A context is longer than a model has positions.";
    OtherUnit = 215, "A value looks like one in another unit.";
    OtherObjective = 220, "A policy of deployments does not serve the objective.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{:03}", *self as u16)
    }
}

/// Why a word is no code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoCode {
    /// It is not written like one.
    #[error(
        "`{word}` is neither a code, which are `S` and three digits, nor a key of a scenario (`explain --keys` lists all), nor a metric (`explain --metrics`)"
    )]
    Form { word: String },
    /// No finding has it.
    #[error("no finding has the code `{word}`; the nearest are {}", near.iter().map(Code::to_string).collect::<Vec<_>>().join(", "))]
    Unknown { word: String, near: Vec<Code> },
}

impl FromStr for Code {
    type Err = NoCode;

    /// Reads `S036`, also as `s036` or `36`; the nearest codes where there is none of that number.
    fn from_str(text: &str) -> Result<Self, NoCode> {
        let number = text.strip_prefix(['S', 's']).unwrap_or(text).parse::<u16>();
        let number = number.map_err(|_| NoCode::Form { word: text.to_owned() })?;
        Self::ALL.iter().copied().find(|code| *code as u16 == number).ok_or_else(|| {
            let mut near = Self::ALL.to_vec();
            near.sort_by_key(|code| (*code as u16).abs_diff(number));
            near.truncate(3);
            near.sort();
            NoCode::Unknown { word: text.to_owned(), near }
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
pub fn explanations() -> BTreeMap<String, Explanation> {
    toml::from_str(include_str!("codes.toml")).expect("explanations that a test has read")
}

/// Everything about a code, for a terminal.
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
pub fn listed() -> String {
    Code::ALL.iter().map(|code| format!("{code}  {}\n", code.meaning())).collect()
}

/// The page of all codes, in Markdown.
pub fn page() -> String {
    let explanations = explanations();
    let mut text = "# Codes of findings\n\nEvery error and warning about input carries a code. `skrull-sim explain S036` prints what stands here. \
        Examples are laid over the\nshipped scenario that is named with them. Tests hold that the wrong one has the finding and the right one has not.\n\n\
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
