//! `init`: a commented scenario to start from.

use super::{Failure, print, write};
use crate::scenario::EMBEDDED;

/// Runs the verb.
pub fn init(name: &str) -> Result<(), Failure> {
    let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'));
    if name.is_empty() || !plain {
        return Err(Failure::Input(format!(
            "error[S005]: `{name}` is no file name; use letters, digits, `-`, `_` and `.`"
        )));
    }
    let path = std::path::PathBuf::from(format!("{}.toml", name.trim_end_matches(".toml")));
    if path.exists() {
        return Err(Failure::Input(format!("error[S005]: `{}` is there already", path.display())));
    }
    write(&path, EMBEDDED[0].1)?;
    print(&format!("{}: edit it, then `skrull-sim run {}`\n", path.display(), path.display()))
}
