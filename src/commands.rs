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
mod outputs;
mod plan;
mod run;
mod schema;
mod score;
mod sweep;
mod tune;
mod validate;

use stacks::elsewhere;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::ask::{self, WrongInput};
use crate::cli::{Cli, Command, Common, ScenarioArgs};
use crate::kinds::Kind;
use engine::stop;
use input::diagnostic::{self, Code, Severity, Source};
use input::text_file;
use scenario::training::Scenario;
use scenario::{self, Overrides};

pub use capacity::capacity_of;
pub use explain::keys;

/// How a verb fails.
#[derive(Debug)]
pub enum Failure {
    /// A gate failed or nothing was feasible: exit 1.
    Gate(String),
    /// The input is wrong: exit 2.
    Input(String),
    /// A file is wrong, with everything that was found in it: exit 2.
    Findings(WrongInput),
    /// The machine failed: exit 3.
    Machine(String),
}

impl Failure {
    /// The input is wrong: what it is about, and what is wrong and allowed.
    fn input(code: Code, what: impl std::fmt::Display) -> Self {
        Self::Input(format!("error[{code}]: {what}\n\n{}", diagnostic::footer([code])))
    }

    /// The same about a file, which stands under the first line as with findings.
    fn about(path: &str, code: Code, what: impl std::fmt::Display) -> Self {
        let what = what.to_string();
        let (title, help) = what.split_once('\n').unwrap_or((&what, ""));
        Self::input(code, format!("{title}\n --> {path}\n{help}").trim_end())
    }

    /// Exit code, and what standard error says.
    pub fn told(self) -> (u8, String) {
        match self {
            Self::Gate(message) => (1, message),
            Self::Input(message) => (2, message),
            Self::Findings(wrong) => (2, wrong.message()),
            Self::Machine(message) => (3, message),
        }
    }
}

impl From<serde_json::Error> for Failure {
    /// A document cannot be written as text.
    fn from(error: serde_json::Error) -> Self {
        Self::Machine(format!("error: {error}"))
    }
}

impl From<WrongInput> for Failure {
    fn from(wrong: WrongInput) -> Self {
        Self::Findings(wrong)
    }
}

/// Time that what is being played has to end by itself once searches were asked to.
const GRACE: Duration = Duration::from_secs(1);
/// Time after which a verb that does not end is ended, whatever it does.
const LAST: Duration = Duration::from_secs(20);

/// Runs a verb.
pub fn dispatch(cli: Cli) -> ExitCode {
    listen();
    let why = "error: stopped before anything was done: give it more time, or a smaller scenario";
    let ended = || Err(Failure::Gate(why.to_owned()));
    let done = stop::unless_over(|| perform(cli)).unwrap_or_else(ended);
    let Err(failure) = done else { return ExitCode::SUCCESS };
    let (code, message) = failure.told();
    // Standard error may be closed as well; the exit code still tells.
    let _ = writeln!(std::io::stderr(), "{}", diagnostic::marked(&message));
    ExitCode::from(code)
}

/// Runs a verb for a program, which looks after Ctrl-C and exit codes itself.
///
/// # Errors
/// How it failed.
pub fn perform(cli: Cli) -> Result<(), Failure> {
    if !cli.quiet {
        return performed(cli.command);
    }
    let is_printed = cli.command.is_printed();
    let (done, kept) = ask::kept(|| performed(cli.command));
    done.and_then(|()| if is_printed { print(&kept.text) } else { Ok(()) })
}

fn performed(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Capacity(args) => capacity::capacity(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::List { kind } => list::list(kind),
        Command::Show { name } => list::show_words(&name),
        Command::Export(args) => export::export(&args),
        Command::Init(args) => init::init(&args),
        Command::Import(args) => import::import(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::Execute(args) => execute::execute(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Score(args) => score::score(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Schema { kind } => schema::schema(kind.as_deref()),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Completions { shell } => completions::completions(shell),
    }
}

/// The first Ctrl-C asks for what there is, the second one ends the program as the shell expects it (128 + SIGINT).
fn listen() {
    let handler = || {
        if stop::is_asked() {
            std::process::exit(130);
        }
        end_after(Duration::ZERO, "stopping with what is there by now; Ctrl-C again to quit at once\n");
    };
    // Without a handler, Ctrl-C ends the program as it always did.
    let _ = ctrlc::set_handler(handler);
}

/// After a time asks searches for the best they have, then ends what is still played, and at last the program.
fn end_after(time: Duration, why: &'static str) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        stop::ask();
        let _ = write!(std::io::stderr(), "{why}");
        std::thread::sleep(GRACE);
        stop::ask_all();
        std::thread::sleep(LAST);
        let _ = writeln!(std::io::stderr(), "error: what is under way does not end; files are as they were");
        std::process::exit(1);
    });
}

/// Prints to standard output; a closed pipe is success, as for other filters.
fn print(text: &str) -> Result<(), Failure> {
    ask::print(text).map_err(|error| Failure::Machine(format!("error: cannot write output: {error}")))
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    write_bytes(path, text.as_bytes())
}

/// Writes a file that an option names and that was not read, or prints it where its name is `-`.
fn put(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    if path == std::path::Path::new("-") {
        return print(&String::from_utf8_lossy(bytes));
    }
    text_file::spare(path).map_err(|error| unwritable(path, &error)).and_then(|()| write_bytes(path, bytes))
}

fn write_bytes(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    path.parent().map_or(Ok(()), make)?;
    text_file::write(path, bytes).map_err(|error| unwritable(path, &error))
}

/// Makes a folder and those that it lies in; an empty name is the folder where the program runs.
fn make(dir: &std::path::Path) -> Result<(), Failure> {
    let failed = |error| Failure::Machine(format!("error: cannot create `{}`: {error}", dir.display()));
    if dir.as_os_str().is_empty() { Ok(()) } else { std::fs::create_dir_all(dir).map_err(failed) }
}

fn unwritable(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::Machine(format!("error: cannot write `{}`: {error}", path.display()))
}

/// What is wrong with a scenario that was read.
fn wrong(scenario: &dyn Kind, code: Code, what: impl std::fmt::Display) -> Failure {
    Failure::about(&scenario.head().origin.scenario, code, what)
}

/// The training scenario of a kind; a failure where it is another one.
fn training(scenario: &dyn Kind) -> Result<Scenario, Failure> {
    let what = "this kind of scenario is not validated like this\n  = kinds `training` and `graph` are, and `serving` with `--measured`; `skrull-sim run` takes every kind";
    scenario.training().cloned().ok_or_else(|| wrong(scenario, Code::WrongKind, what))
}

/// Reads the scenario of a command line, of which measured requests may be played in the place of its own; warnings go to standard error.
fn load(args: &ScenarioArgs, measured: bool) -> Result<Box<dyn Kind>, Failure> {
    let overrides = Overrides { set: args.laid.keys(), seed: args.laid.seed, measured };
    let out = args.out.as_deref().unwrap_or(std::path::Path::new(""));
    text_file::can_make(out).map_err(|error| unwritable(out, &error))?;
    let (source, folder) = scenario::find(&args.scenario).map_err(|why| match elsewhere::of_name(&args.scenario) {
        Some(what) if std::path::Path::new(&args.scenario).exists() => no_scenario(&args.scenario, what),
        _ => Failure::input(Code::NoScenario, why),
    })?;
    // A plan carries its scenario; what other JSON there is, importers know.
    let is_own = source.text.contains("\"skrull-sim/") || source.text.contains("\"origin\"");
    if source.text.starts_with('{') && is_own {
        let wrong = |why| Failure::input(Code::UnusablePlan, format!("`{}` cannot be used: {why}", args.scenario));
        return given::of_text(&source.text, std::path::Path::new(&args.scenario), &overrides).map_err(wrong);
    }
    let source = imported(source, &stacks::Machine::of_overrides(&args.laid.set))?;
    if let Some(what) = elsewhere::of_text(&source.text) {
        return Err(no_scenario(&args.scenario, what));
    }
    Ok(ask::scenario(source, &folder, &overrides)?)
}

/// A file that belongs elsewhere.
fn no_scenario(name: &str, what: &str) -> Failure {
    Failure::input(Code::NoScenario, format!("`{name}` is no scenario\n  = it is {what}"))
}

/// The scenario that a script of another stack says; any other text as it is. Warnings go to standard error.
fn imported(source: Source, machine: &stacks::Machine) -> Result<Source, Failure> {
    let Some(stack) = stacks::recognise(&source.text) else { return Ok(source) };
    // What it names beside it is read with it.
    let folder =
        std::path::Path::new(&source.path).parent().map_or_else(Default::default, std::path::Path::to_path_buf);
    let machine = machine.with_files(&source.text, &|name| text_file::read(&folder.join(name)).ok());
    let found = stacks::import(stack, &source.text, &machine);
    let is_wrong = found.findings.iter().any(|one| one.severity == Severity::Error);
    let path = format!("{}.toml (imported)", source.path);
    let text = ask::sound((!is_wrong).then_some(found.scenario), source, found.findings)?;
    Ok(Source { path, text })
}

/// Uses so many threads, for so long.
fn begin(common: Common) -> Result<(), Failure> {
    if let Some(limit) = common.time_limit {
        end_after(limit, if ask::is_kept() { "" } else { "time limit: the result is what there is by now\n" });
    }
    threads(common.jobs)
}

/// Uses so many threads. A process keeps those of its first run.
fn threads(jobs: Option<u16>) -> Result<(), Failure> {
    let Some(jobs) = jobs else { return Ok(()) };
    match rayon::ThreadPoolBuilder::new().num_threads(jobs.into()).build_global() {
        Err(error) if rayon::current_num_threads() != usize::from(jobs) => {
            Err(Failure::Machine(format!("error: cannot start {jobs} threads: {error}")))
        }
        _ => Ok(()),
    }
}

/// Where the output of a scenario goes.
fn dir_of(args: &ScenarioArgs, name: &str) -> std::path::PathBuf {
    args.out.clone().unwrap_or_else(|| std::path::Path::new("out").join(name))
}

/// Output directory of a scenario.
fn out_dir(args: &ScenarioArgs, name: &str) -> Result<std::path::PathBuf, Failure> {
    let dir = dir_of(args, name);
    make(&dir).map(|()| dir)
}
