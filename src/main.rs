//! Parse, dispatch, exit code.

use clap::Parser;

fn main() -> std::process::ExitCode {
    skrull_sim::commands::dispatch(skrull_sim::cli::Cli::parse())
}
