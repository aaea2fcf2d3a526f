//! `init`: a commented scenario to start from.

use super::{Failure, print, write};
use crate::cli::InitArgs;
use input::diagnostic::{Code, meant};
use scenario::{EMBEDDED, shipped};

/// Runs the verb.
pub fn init(args: &InitArgs) -> Result<(), Failure> {
    let name = &args.name;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let is_name = name.starts_with(is_plain) && name.chars().all(|letter| is_plain(letter) || "-.".contains(letter));
    if !is_name && name != "-" {
        let what =
            format!("`{name}` is no file name; begin with a letter, a digit or `_`, go on with those, `-` and `.`");
        return Err(Failure::input(Code::WrongFileName, what));
    }
    let Some(text) = shipped(&args.from) else {
        let near = meant(&args.from, EMBEDDED.iter().map(|(name, _)| *name));
        let help = "`skrull-sim list scenarios` shows all";
        let what = format!("no shipped scenario is called `{}`{near}\n  = {help}", args.from);
        return Err(Failure::input(Code::UnknownName, what));
    };
    let text = scenario::starting::with_framework(text);
    if name == "-" {
        return print(&text);
    }
    let path = std::path::PathBuf::from(format!("{}.toml", name.trim_end_matches(".toml")));
    if path.exists() {
        return Err(Failure::input(Code::FileExists, format!("`{}` is there already", path.display())));
    }
    write(&path, &text)?;
    print(&format!("{}: edit it, then `skrull-sim run {}`\n", path.display(), path.display()))
}
