//! One file per verb, and what they share: exit codes and writing to a pipe that may be closed.

mod calibrate;
mod capacity;
mod compare;
mod completions;
mod execute;
mod explain;
mod export;
mod given;
mod import;
mod init;
mod list;
mod plan;
mod run;
mod score;
mod tune;
mod validate;

use std::io::Write;
use std::process::ExitCode;

use crate::cli::{Cli, Command, ScenarioArgs};
use crate::kinds::{self, Kind};
use input::diagnostic::{self, Code, Severity, Source};
use scenario::training::Scenario;
use scenario::{self, Overrides};

pub use capacity::capacity_of;
pub use explain::keys;
use given::Given;

/// How a verb fails.
pub enum Failure {
    /// A gate failed or nothing was feasible: exit 1.
    Gate(String),
    /// The input is wrong: exit 2.
    Input(String),
    /// The machine failed: exit 3.
    Machine(String),
}

impl Failure {
    /// The input is wrong: what it is about, and what is wrong and allowed.
    fn input(code: Code, what: impl std::fmt::Display) -> Self {
        Self::Input(format!("error[{code}]: {what}\n\n{}", diagnostic::footer([code])))
    }
}

/// Runs a verb.
#[must_use]
pub fn dispatch(cli: Cli) -> ExitCode {
    listen();
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Capacity(args) => capacity::capacity(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::List { kind } => list::list(kind),
        Command::Show { name } => list::show(&name),
        Command::Export(args) => export::export(&args),
        Command::Init(args) => init::init(&args),
        Command::Import(args) => import::import(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::Execute(args) => execute::execute(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Score(args) => score::score(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Completions { shell } => completions::completions(shell),
    };
    let (code, message) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Gate(message)) => (1, message),
        Err(Failure::Input(message)) => (2, message),
        Err(Failure::Machine(message)) => (3, message),
    };
    // Standard error may be closed as well; the exit code still tells.
    let _ = writeln!(std::io::stderr(), "{}", diagnostic::marked(&message));
    ExitCode::from(code)
}

/// The first Ctrl-C asks planners for what they have, the second one ends the program as the shell expects it (128 + SIGINT).
fn listen() {
    let handler = || {
        if planner::stop::is_asked() {
            std::process::exit(130);
        }
        planner::stop::ask();
        let _ = writeln!(std::io::stderr(), "stopping: plans are the best found so far; Ctrl-C again to quit at once");
    };
    // Without a handler, Ctrl-C ends the program as it always did.
    let _ = ctrlc::set_handler(handler);
}

/// Prints to standard output; a closed pipe is success, as for other filters.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Machine(format!("error: cannot write output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Machine(format!("error: cannot write `{}`: {error}", path.display())))
}

/// The training scenario of a kind; a failure where it is another one.
fn training(scenario: &dyn Kind) -> Result<Scenario, Failure> {
    scenario.training().cloned().ok_or_else(|| {
        let what = format!("`{}` is not of kind `training`, and this verb takes no other", scenario.head().name);
        Failure::input(Code::WrongKind, what + "\n  = `skrull-sim run` takes every kind")
    })
}

/// Reads the scenario of a command line; warnings go to standard error.
fn load(args: &ScenarioArgs) -> Result<Box<dyn Kind>, Failure> {
    let overrides = Overrides { set: args.set.clone(), seed: args.seed };
    let (source, folder) = scenario::find(&args.scenario).map_err(|why| Failure::input(Code::NoScenario, why))?;
    // A plan carries its scenario; what other JSON there is, importers know.
    if source.text.starts_with('{') && source.text.contains("\"skrull-sim/") {
        let given = Given::read(std::path::Path::new(&args.scenario), &overrides);
        let boxed = given.map(|given| Box::new(given) as Box<dyn Kind>);
        let wrong = |why| Failure::input(Code::UnusablePlan, format!("`{}` cannot be used: {why}", args.scenario));
        return boxed.map_err(wrong);
    }
    let source = imported(source, &stacks::Machine::of_overrides(&args.set))?;
    let checked = kinds::check(source, &folder, &overrides);
    let rendered = diagnostic::render(&checked.source, &checked.findings);
    let Some(scenario) = checked.scenario else {
        let errors = checked.findings.iter().filter(|finding| finding.severity == Severity::Error);
        let footer = diagnostic::footer(errors.map(|finding| finding.code));
        return Err(Failure::Input(format!("{rendered}\n\n{footer}")));
    };
    if !rendered.is_empty() {
        let _ = writeln!(std::io::stderr(), "{rendered}\n");
    }
    Ok(scenario)
}

/// The scenario that a script of another stack says; any other text as it is. Warnings go to standard error.
fn imported(source: Source, machine: &stacks::Machine) -> Result<Source, Failure> {
    let Some(stack) = stacks::recognise(&source.text) else { return Ok(source) };
    let found = stacks::import(stack, &source.text, machine);
    let rendered = diagnostic::render(&source, &found.findings);
    let errors: Vec<Code> =
        found.findings.iter().filter(|one| one.severity == Severity::Error).map(|one| one.code).collect();
    if !errors.is_empty() {
        return Err(Failure::Input(format!("{rendered}\n\n{}", diagnostic::footer(errors))));
    }
    if !rendered.is_empty() {
        let _ = writeln!(std::io::stderr(), "{rendered}\n");
    }
    Ok(Source { path: format!("{}.toml (imported)", source.path), text: found.scenario })
}

/// Uses so many threads.
fn threads(jobs: Option<u16>) -> Result<(), Failure> {
    let Some(jobs) = jobs else { return Ok(()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.into()).build_global();
    pool.map_err(|error| Failure::Machine(format!("error: cannot start {jobs} threads: {error}")))
}

/// Output directory of a scenario.
fn out_dir(args: &ScenarioArgs, name: &str) -> Result<std::path::PathBuf, Failure> {
    let dir = args.out.clone().unwrap_or_else(|| std::path::Path::new("out").join(name));
    std::fs::create_dir_all(&dir)
        .map_err(|error| Failure::Machine(format!("error: cannot create `{}`: {error}", dir.display())))?;
    Ok(dir)
}
