//! `completions`: scripts that complete verbs, options and shipped names in a shell.

use clap::builder::PossibleValuesParser;
use clap::{CommandFactory, ValueHint};
use clap_complete::Shell;

use super::list::names;
use super::{Failure, print};
use crate::cli::Cli;
use scenario::EMBEDDED;

/// Runs the verb.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let scenarios = || EMBEDDED.iter().map(|(name, _)| *name);
    let policies = || planner::train::policies::POLICIES.iter().map(|policy| policy.card().name);
    let policies = || policies().chain(crate::kinds::policies().into_iter().map(|(_, name, _)| name));
    let mut command = Cli::command()
        .mut_subcommand("init", |verb| verb.mut_arg("from", |arg| arg.value_parser(one_of(scenarios()))))
        .mut_subcommand("show", |verb| verb.mut_arg("name", |arg| arg.value_parser(one_of(names()))))
        .mut_subcommand("plan", |verb| verb.mut_arg("policy", |arg| arg.value_parser(one_of(policies()))))
        .mut_subcommand("compare", |verb| verb.mut_arg("baseline", |arg| arg.value_parser(one_of(policies()))));
    // Only here files are offered where no name fits; elsewhere names would hide them.
    if shell == Shell::Bash {
        for (verb, arg) in [("run", "scenario"), ("plan", "scenario"), ("capacity", "scenario"), ("compare", "inputs")]
        {
            command = command.mut_subcommand(verb, |verb| {
                verb.mut_arg(arg, |arg| arg.value_hint(ValueHint::FilePath).value_parser(one_of(scenarios())))
            });
        }
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "skrull-sim", &mut script);
    let script = String::from_utf8_lossy(&script);
    // Labels of verbs do not match what they are compared with where a program's name has a hyphen: clap-rs/clap#6421.
    print(&if shell == Shell::Bash {
        script.replace("skrull__subcmd__sim", "skrull__sim")
    } else {
        script.into_owned()
    })
}

/// Names that a script offers, in order and each once.
fn one_of(names: impl IntoIterator<Item = &'static str>) -> PossibleValuesParser {
    let names: std::collections::BTreeSet<&'static str> = names.into_iter().collect();
    PossibleValuesParser::new(names)
}
