//! Files that a verb writes: no two of them are one.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::cli::Format;
use input::diagnostic::Code;
use input::text_file;

/// A file that is written, by the option or the words that name it.
pub type Output<'a> = (&'a str, &'a Path);

/// Holds that no two outputs are one file, whatever their names say of it, and that standard output has one thing alone. What is there and is no file, such as a pipe, takes all of them.
///
/// # Errors
/// When two of them are.
pub fn apart(outputs: &[Output<'_>], format: Format) -> Result<(), Failure> {
    let twice = outputs.iter().find(|(_, path)| *path == Path::new("-") && format != Format::Table);
    if let Some((name, _)) = twice {
        let what =
            format!("{name} and `--format` both go to standard output\n  = give {name} a file, or leave one out");
        return Err(Failure::input(Code::TwiceNamed, what));
    }
    let places: Vec<PathBuf> = outputs.iter().map(|(_, path)| text_file::place(path)).collect();
    for (index, (name, path)) in outputs.iter().enumerate() {
        if let Some(other) =
            places[..index].iter().position(|other| *other == places[index]).filter(|_| text_file::is_file(path))
        {
            let what = format!("{} and {name} are one file: `{}`", outputs[other].0, path.display());
            return Err(Failure::input(
                Code::TwiceNamed,
                what + "\n  = the later one would stand for both; give each a file of its own",
            ));
        }
    }
    Ok(())
}
