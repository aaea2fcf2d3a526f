//! Text files of a user: read whole, without a byte-order mark, and never more than `BYTES_MAX` of them; written whole or not at all.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest file that is read whole: 20 million lengths of a workload fit.
const BYTES_MAX: u64 = 128 << 20;

/// The text of a file.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn read(path: &Path) -> Result<String, String> {
    open(path).and_then(text)
}

/// A file that has an end: a regular one, or what another program writes to the standard input or to a descriptor of this process. Any other
/// pipe or device might never answer.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn open(path: &Path) -> Result<File, String> {
    let is_given = path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd") || path == Path::new("/dev/stdin");
    let kind = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if kind.is_dir() {
        return Err("it is a folder".to_owned());
    }
    if !kind.is_file() && !is_given {
        return Err("it is a pipe or a device, and no regular file".to_owned());
    }
    File::open(path).map_err(|error| error.to_string())
}

/// The text that a reader holds.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn text(reader: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it is longer than {} MiB", BYTES_MAX >> 20));
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 text (byte {})", error.utf8_error().valid_up_to() + 1))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Writes a file whole or not at all: beside its place first, then under its name. A program that is killed, or a disk that is full, leaves what
/// was there before. Pipes and devices are written as they are.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
    // A link keeps its place, and its target gets the content.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.exists() && !target.is_file() {
        return std::fs::write(target, bytes);
    }
    let beside = beside(&target);
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, &target));
    if written.is_err() {
        // The first error counts; there may be nothing to remove.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// A hidden name in the same folder, of this process alone.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.part-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_text() {
        assert_eq!(text("\u{feff}100\n".as_bytes()), Ok("100\n".to_owned()));
        assert_eq!(text(&b"37\xe4"[..]), Err("it is not UTF-8 text (byte 3)".to_owned()));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_or_a_folder_is_refused_before_it_is_opened() {
        assert!(open(Path::new("/dev/zero")).is_err_and(|why| why.contains("no regular file")));
        assert!(open(&std::env::temp_dir()).is_err_and(|why| why.contains("folder")));
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert_eq!(text(std::io::repeat(b' ')), Err("it is longer than 128 MiB".to_owned()));
    }
}
