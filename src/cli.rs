//! The command line: types only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Simulate and plan training and serving of large models before paying for the GPUs.
#[derive(Debug, Parser)]
#[command(
    name = "skrull-sim",
    version,
    after_help = "Examples:\n  skrull-sim run                          the shipped quickstart\n  skrull-sim init my                      a scenario of your own: edit my.toml\n  skrull-sim run my.toml --set training.batch_size=512\n  skrull-sim list scenarios               training, serving, renting: one to start from"
)]
pub struct Cli {
    /// Print no table, warning or progress; `--format` still prints a document, and verbs that write no file their answer
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Simulate every policy of a scenario, print a table, write the report
    Run(RunArgs),
    /// Only decide: write plan.json
    Plan(PlanArgs),
    /// What a fleet costs that keeps the limits of a serving scenario: price against attainment, headroom, what breaks first
    #[command(mut_arg("scenario", |arg| arg.default_value("serving/capacity")))]
    Capacity(ScenarioArgs),
    /// Which settings of an engine and a fleet are the best within the limits: few of many are served, the others are bounded
    #[command(mut_arg("scenario", |arg| arg.default_value("serving/tune")))]
    Tune(TuneArgs),
    /// Policies side by side over seeded batches, or results against the first; gates for CI
    #[command(mut_arg("seed", |arg| arg.help("First seed [default: 0]")))]
    Compare(CompareArgs),
    /// Show what is known: policies, routers, schedules, gpus, clusters, models, workloads, profiles, scenarios
    List {
        /// Kind of thing.
        kind: Kind,
    },
    /// Show a policy, router, schedule, GPU, cluster, model, workload, profile or scenario by its name
    Show {
        /// Its name, as `list` shows it; the word of its kind may stand before it.
        #[arg(required = true, num_args = 1..=2, value_names = ["NAME"])]
        name: Vec<String>,
    },
    /// Write a commented scenario to start from
    Init(InitArgs),
    /// Write a plan as files of another stack: launch scripts, schedules, configurations
    Export(ExportArgs),
    /// Turn a launch script of another stack into a scenario, or measured operator tables into a profile
    Import(ImportArgs),
    /// Run many points of a scenario, side by side; the same command goes on where it was stopped
    Sweep(SweepArgs),
    /// Measure this machine and fit a profile
    Calibrate(CalibrateArgs),
    /// Run a plan on real hardware: plan.json to timeline.json
    Execute(ExecuteArgs),
    /// Calibrate, plan, predict, execute, and show the error term by term
    #[command(mut_arg("scenario", |arg| arg.default_value("validate/cpu-small")))]
    Validate(ValidateArgs),
    /// Play measured serving runs, steps of training or of reinforcement learning, or figures of your own scenarios, and print what is predicted over what was measured
    Score(ScoreArgs),
    /// Print the JSON schema of scenario files, with which editors complete and check them
    Schema {
        /// Of scenarios of this kind alone
        #[arg(long, value_parser = crate::kinds::words())]
        kind: Option<String>,
    },
    /// What a code of an error or warning means, with examples; all codes without one
    Explain(ExplainArgs),
    /// Print a script that completes verbs, options and shipped names in a shell
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Code as it stands in brackets, for example S036, a key of a scenario, for example trace.lengths, or a metric, for example ttft_s.p99
    pub code: Option<String>,
    /// Everything about all codes as a Markdown page
    #[arg(long, conflicts_with = "code")]
    pub page: bool,
    /// Every key of scenarios as a Markdown page
    #[arg(long, conflicts_with_all = ["code", "page"])]
    pub keys: bool,
    /// Every metric of results as a Markdown page
    #[arg(long, conflicts_with_all = ["code", "page", "keys"])]
    pub metrics: bool,
}

/// Arguments of `init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Name of the scenario; the file is NAME.toml, and `-` prints it
    pub name: String,
    /// Shipped scenario to start from (`skrull-sim list scenarios`)
    #[arg(long, value_name = "SCENARIO", default_value = scenario::STARTER)]
    pub from: String,
}

/// What is measured, and for how long.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// Device: cpu, cpu:THREADS or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Time to measure in all
    #[arg(long, default_value = "120s", value_parser = humantime::parse_duration, conflicts_with = "quick")]
    pub budget: Duration,
    /// A usable profile in 20 seconds
    #[arg(long)]
    pub quick: bool,
    /// Measure although a kernel disagrees with its reference; the profile's header keeps the command
    #[arg(long)]
    pub unchecked: bool,
    /// Stop when every predicted time is known within this width of its 90 % interval
    #[arg(long, default_value = "0.05", allow_negative_numbers = true, value_parser = |of: &str| share(of, [0.001, 1.0]))]
    pub width: f64,
}

impl DeviceArgs {
    /// Time to measure.
    pub fn time(&self) -> Duration {
        if self.quick { calibrate::campaign::QUICK } else { self.budget }
    }
}

/// A name for files.
fn name(text: &str) -> Result<String, &'static str> {
    let is_name = text.contains(|letter: char| letter.is_ascii_alphanumeric());
    if is_name { Ok(text.to_owned()) } else { Err("a name has a letter or a digit") }
}

/// A file or folder, which standard output is not.
fn on_disk() -> impl TypedValueParser<Value = PathBuf> {
    let no_place = "this goes to a file or folder alone; one of that name is `./-`";
    PathBufValueParser::new().try_map(move |path| if path == Path::new("-") { Err(no_place) } else { Ok(path) })
}

/// The name of a file or of something shipped, which messages and results write out.
fn written() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|name| name.into_string().map_err(|_| "this name is no UTF-8 text: rename it"))
}

/// A time limit: seconds, or a number with a unit such as 5m.
fn seconds(text: &str) -> Result<Duration, String> {
    let bare = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = bare.map_or_else(|| humantime::parse_duration(text).map_err(|why| why.to_string()), Ok)?;
    if limit.is_zero() { Err("allowed are times above zero".to_owned()) } else { Ok(limit) }
}

/// A seed, as a scenario may have it.
fn seed(text: &str) -> Result<u64, String> {
    let allowed = || format!("allowed are whole numbers from 0 to {}", i64::MAX);
    text.parse().ok().filter(|seed| i64::try_from(*seed).is_ok()).ok_or_else(allowed)
}

/// A share within these ends.
fn share(text: &str, [low, high]: [f64; 2]) -> Result<f64, String> {
    let share = text.parse().map_err(|_| "not a number".to_owned())?;
    if (low..=high).contains(&share) { Ok(share) } else { Err(format!("allowed are numbers from {low} to {high}")) }
}

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Device and effort.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Name of the profile [default: the device's]
    #[arg(long, value_parser = name)]
    pub name: Option<String>,
    /// File to write; samples are kept beside it [default: profiles/NAME.toml]
    #[arg(long, value_name = "FILE", value_parser = on_disk())]
    pub out: Option<PathBuf>,
    /// Largest number of tokens in a kernel
    #[arg(long, default_value = "8192", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub max_len: u64,
    /// Forget samples of earlier calibrations
    #[arg(long)]
    pub fresh: bool,
    /// Check kernels against their references, and measure nothing
    #[arg(long)]
    pub check: bool,
    /// No progress
    #[arg(long)]
    pub no_progress: bool,
}

/// Arguments of `execute`.
#[derive(Args, Debug)]
pub struct ExecuteArgs {
    /// plan.json of `plan`, or result.json of `run`, which is planned by its last policy
    pub plan: PathBuf,
    /// Device: cpu, cpu:THREADS or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Runs of a step whose lower quartile counts
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub runs: u64,
    /// Directory for output [default: that of the plan]
    #[arg(long, value_name = "DIR", value_parser = on_disk())]
    pub out: Option<PathBuf>,
}

/// Arguments of `validate`.
#[derive(Args, Debug)]
pub struct ValidateArgs {
    /// Scenario.
    #[command(flatten)]
    pub scenario: ScenarioArgs,
    /// Device and effort.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Predict with this profile, and measure none
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Take a profile or a scenario of another device all the same
    #[arg(long)]
    pub allow_foreign_profile: bool,
    /// Fit the profile again with what every other plan measured, or with the runs and steps of `--measured`
    #[arg(long)]
    pub refit: bool,
    /// Runs of a step whose lower quartile counts
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub runs: u64,
    /// Compare with what was measured, and run nothing: traces of the PyTorch profiler or reports of Nsight Systems, one a rank; of engines that
    /// serve, results of vllm bench serve, guidellm, aiperf, inference-perf, logs
    #[arg(long, value_name = "RUN", num_args = 1.., conflicts_with_all = ["device", "budget", "quick", "unchecked", "width", "profile", "allow_foreign_profile", "runs"])]
    pub measured: Vec<PathBuf>,
    /// Exit 1 unless a figure holds: step_error<=0.08, operator_error<=0.1, tau>=0.8, regret<=0.02; of measured runs ttft_error<=0.1, tpot_error<=0.05
    #[arg(long, value_name = "GATE")]
    pub gate: Vec<String>,
}

/// Where a scenario comes from and what is laid over it.
#[derive(Args, Debug, Default)]
pub struct ScenarioArgs {
    /// Scenario file, plan.json or result.json, `-` for standard input, or the name of a shipped one
    #[arg(default_value = scenario::STARTER, value_parser = written())]
    pub scenario: String,
    /// What is laid over it.
    #[command(flatten)]
    pub laid: Laid,
    /// Directory for output [default: out/NAME, with the scenario's name]
    #[arg(long, value_name = "DIR", value_parser = on_disk())]
    pub out: Option<PathBuf>,
    /// Machine and print.
    #[command(flatten)]
    pub common: Common,
}

/// What is laid over a scenario: keys, its seed, and what is sought.
#[derive(Args, Clone, Debug, Default)]
pub struct Laid {
    /// Override a key, checked like the file: section.key=value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed of every random choice [default: the scenario's]
    #[arg(long, allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Look for the layout, and compare policies, by most of this: tokens_per_s, tokens_per_usd (training)
    #[arg(long, value_name = "METRIC", conflicts_with = "minimize", value_parser = |of: &str| key("maximize", of))]
    pub maximize: Option<String>,
    /// The same by least of this: iteration_time_s, cost_usd_per_step (training)
    #[arg(long, value_name = "METRIC", value_parser = |of: &str| key("minimize", of))]
    pub minimize: Option<String>,
}

impl Laid {
    /// Every key with its value but the seed; what is sought is one as well.
    pub fn keys(&self) -> Vec<String> {
        self.set.iter().chain(&self.maximize).chain(&self.minimize).cloned().collect()
    }
}

/// What lies over a scenario for an objective.
fn key(name: &str, metric: &str) -> Result<String, std::convert::Infallible> {
    Ok(format!("policies.{name}={metric}"))
}

/// How much of the machine a verb uses and for how long, and what it prints.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Common {
    /// Threads [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// End after this time with what there is, as Ctrl-C does [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub time_limit: Option<Duration>,
    /// No progress
    #[arg(long)]
    pub no_progress: bool,
    /// What to print
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Scenario.
    #[command(flatten)]
    pub scenario: ScenarioArgs,
    /// Exit 1 when an expectation of the scenario fails
    #[arg(long)]
    pub check: bool,
    /// Refuse a training step or an engine with shapes outside of what the profile measured
    #[arg(long)]
    pub strict_hull: bool,
    /// Write what became of every request as CSV, or as Parquet where the name ends so; `-` prints it in place of the table (serving)
    #[arg(long, value_name = "FILE")]
    pub requests: Option<PathBuf>,
    /// Write how the fleet stood over time in the same ways (serving)
    #[arg(long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// Write every task of the drawn steps as Parquet (training)
    #[arg(long, value_name = "FILE", value_parser = on_disk())]
    pub tasks: Option<PathBuf>,
}

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Scenario.
    #[command(flatten)]
    pub scenario: ScenarioArgs,
    /// Policy of the scenario [default: the last one]
    #[arg(long)]
    pub policy: Option<String>,
    /// Write the plan as files of another stack too
    #[arg(long, value_name = "TARGET", value_parser = stacks::targets::names())]
    pub export: Option<String>,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// plan.json of `plan`, or result.json of `run`, which is planned by its last policy
    pub plan: PathBuf,
    /// Whose files are written
    #[arg(long, value_name = "TARGET", value_parser = stacks::targets::names())]
    pub to: String,
    /// Folder for them [default: that of the plan]
    #[arg(long, value_name = "DIR", value_parser = on_disk())]
    pub out: Option<PathBuf>,
}

/// Arguments of `tune`.
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// Scenario.
    #[command(flatten)]
    pub scenario: ScenarioArgs,
    /// Settings that are shown; tuned.json has all that were served
    #[arg(long, default_value = "10")]
    pub top: usize,
}

/// Arguments of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Sweep file: the scenario, axes, and what is sought
    #[arg(value_parser = written())]
    pub file: String,
    /// What is laid over every point.
    #[command(flatten)]
    pub laid: Laid,
    /// Run one of N parts, by the hash of each point; a run without it joins them
    #[arg(long, value_name = "I/N", conflicts_with = "format")]
    pub shard: Option<sweep::play::Shard>,
    /// Refine the grid around the front until a round gains less than this share
    #[arg(long, value_name = "SHARE")]
    pub until: Option<f64>,
    /// Directory for output [default: out/NAME, with the sweep's name]
    #[arg(long, value_name = "DIR", value_parser = on_disk())]
    pub out: Option<PathBuf>,
    /// Machine and print.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Scenarios (files or shipped), or two or more result.json files
    #[arg(required = true, value_parser = written())]
    pub inputs: Vec<String>,
    /// Policy that ratios are relative to; the scenario where each has one policy [default: each scenario's baseline]
    #[arg(long)]
    pub baseline: Option<String>,
    /// Batches per scenario, with consecutive seeds [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
    /// Exit 1 unless it holds: a ratio to the baseline (metric<=1.02, metric<=2x) or an amount (ttft_s.p99<=2s); policy:metric<=0.9 asks one policy
    #[arg(long, value_name = "GATE")]
    pub gate: Vec<String>,
    /// Gates ask that the far end of this interval over batches holds as well, for example 0.95
    #[arg(long, value_name = "SHARE", requires = "gate", value_parser = |of: &str| share(of, [0.5, 0.9999]))]
    pub confidence: Option<f64>,
    /// Write the gates as JUnit XML; `-` prints it in place of the table
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Draw the ratios with their intervals as SVG, or print that with `-`
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// What is laid over every scenario.
    #[command(flatten)]
    pub laid: Laid,
    /// Run every scenario with each of these values, in all combinations of keys: section.key=value,value
    #[arg(long, value_name = "KEY=VALUES")]
    pub vary: Vec<String>,
    /// Machine and print.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `score`.
#[derive(Args, Debug)]
pub struct ScoreArgs {
    /// Table of measured runs, plain or gzipped; what it is of is read off its header (docs/accuracy.md; for figures of your own docs/validation.md)
    pub table: PathBuf,
    /// Runs that are scored: serving by mode, card, engine, version, model, format, tp, lengths, load, id; training and reinforcement learning by set, card, model, format, layout, variant, row; `*` ends a beginning, and a comma that no key follows belongs to the value
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    pub only: String,
    /// Leave every model or card out of what is fitted, and print the errors on it; steps of training know `card` alone
    #[arg(long, value_name = "WHAT", value_parser = ["model", "card"])]
    pub leave_out: Option<String>,
    /// Correct every one of N parts of the settings by what the others leave over, and print the errors before and after
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=50), conflicts_with = "leave_out")]
    pub residual: Option<u8>,
    /// Correct by what is learned of published runs and shipped, and print the errors before and after
    #[arg(long, conflicts_with_all = ["leave_out", "residual", "refit"])]
    pub corrected: bool,
    /// Calibrate the profile on every one of N parts of the settings of an engine, model and card, and print the errors on the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=50), conflicts_with_all = ["leave_out", "residual"])]
    pub refit: Option<u8>,
    /// What to print
    #[arg(long, value_parser = score::form::WORDS, default_value = "table")]
    pub format: String,
    /// Threads [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// No progress bar
    #[arg(long)]
    pub no_progress: bool,
}

impl Command {
    /// Whether a quiet verb prints: it was told to print a document, or writes no file.
    pub fn is_printed(&self) -> bool {
        use Command::{Calibrate, Capacity, Compare, Execute, Export, Init, Plan, Run, Sweep, Tune, Validate};
        let is_document = |common: &Common| common.format != Format::Table;
        match self {
            Run(args) => is_document(&args.scenario.common) || is_stdout([&args.requests, &args.series]),
            Compare(args) => is_document(&args.common) || is_stdout([&args.junit, &args.chart]),
            Plan(PlanArgs { scenario, .. }) | Tune(TuneArgs { scenario, .. }) => is_document(&scenario.common),
            Validate(ValidateArgs { scenario, .. }) | Capacity(scenario) => is_document(&scenario.common),
            Sweep(args) => is_document(&args.common),
            Init(args) => args.name == "-",
            Calibrate(_) | Execute(_) | Export(_) => false,
            _ => true,
        }
    }
}

/// Whether one of some files is standard output.
pub fn is_stdout(files: [&Option<PathBuf>; 2]) -> bool {
    files.into_iter().flatten().any(|file| file == Path::new("-"))
}

impl ScoreArgs {
    /// Whether something is asked that runs of serving alone know.
    pub fn is_of_serving(&self) -> bool {
        let leaves_models = self.leave_out.as_deref() == Some("model");
        leaves_models || self.corrected || self.residual.is_some() || self.refit.is_some()
    }
}

/// Arguments of `import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Launch script or file of flags of another stack; or a folder with the tables of one device, for neusight, serving-runs and simumax the table itself
    #[arg(value_name = "FILE")]
    pub dir: PathBuf,
    /// Whose format the tables have [default: aiconfigurator]
    #[arg(long, value_enum)]
    pub format: Option<ImportFormat>,
    /// Serving engine whose tables are fitted, for a profile of that engine (aiconfigurator)
    #[arg(long, value_parser = calibrate::import::by_engine::ENGINES, conflicts_with = "network")]
    pub engine: Option<String>,
    /// Name of the profile; the file is profiles/NAME.toml
    #[arg(long)]
    pub name: Option<String>,
    /// GPU of the catalogue; for serving-runs several with commas
    #[arg(long)]
    pub gpu: Option<String>,
    /// Nodes that a script runs on, where it does not say so
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: Option<u32>,
    /// GPUs of such a node
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub gpus_per_node: Option<u32>,
    /// Override a key of a script's scenario, checked as `run` does: section.key=value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Model of the catalogue, where a file names none
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens of a sequence, where a file does not say them
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub tokens: Option<u64>,
    /// Repository, commit and licence of the tables, for the header
    #[arg(long)]
    pub source: Option<String>,
    /// Date of the fit, for the header
    #[arg(long)]
    pub date: Option<String>,
    /// Folder with send_recv.csv of the same device (vidur's format)
    #[arg(long, value_name = "DIR")]
    pub network: Option<PathBuf>,
    /// Network port of the machine in that folder; without it only links inside a node are used
    #[arg(long, value_name = "GB/S")]
    pub port_gb_per_s: Option<f64>,
    /// File to write [default: profiles/NAME.toml; a scenario is printed]
    #[arg(long, visible_alias = "to", value_name = "FILE", value_parser = on_disk())]
    pub out: Option<PathBuf>,
}

/// Formats of `import`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// gemm/, attention/ and comm/ with gzipped CSV.
    Aiconfigurator,
    /// ORGANISATION/MODEL/bf16/tpN/ with CSV of operators.
    Llmservingsim,
    /// One CSV of kernels of training, forward and backward.
    Simumax,
    /// One CSV of operators of several devices in 32 bits, of which `--gpu` is one.
    Neusight,
    /// One CSV of measured serving runs, which are played: what the request loop leaves over of them.
    ServingRuns,
}

/// Kinds of `list`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// What decides: schedulers of training, batchers of serving, planners of renting and of pools.
    Policies,
    /// Routing policies of serving.
    Routers,
    /// GPU catalogue.
    Gpus,
    /// Machines by name.
    Clusters,
    /// Models by name.
    Models,
    /// Pipeline schedules.
    Schedules,
    /// Length distributions.
    Workloads,
    /// Measured profiles.
    Profiles,
    /// Shipped scenarios.
    Scenarios,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For pull requests.
    Markdown,
}
