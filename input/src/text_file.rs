//! Files of a user, packed ones as the text they stand for: read whole, text without a byte-order mark and never more than `BYTES_MAX` of it;
//! written whole or not at all.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use packed::PackedError;
use thiserror::Error;

/// Largest file that is read whole: 20 million lengths of a workload fit.
const BYTES_MAX: u64 = 128 << 20;
/// Largest table that is: a shard of a tokenised data set has 500 MB, and its lengths a hundredth.
const TABLE_BYTES_MAX: u64 = 2 << 30;
/// Bytes that say whether a file is a table.
const HEAD_BYTES: u64 = 16;

/// Text of the standard input, once it was read.
static INPUT: Mutex<Option<String>> = Mutex::new(None);
/// Places of the files that this program has read.
static READ: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Why a file gives no text.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoText {
    /// The system refuses it.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// A folder has no text.
    #[error("it is a folder")]
    Folder,
    /// Standard input gives its bytes once.
    #[error("standard input was read already")]
    Taken,
    /// It might never end.
    #[error("it is a pipe or a device, and no regular file")]
    Device,
    /// It is packed and stands for nothing, or it is larger than what is read whole.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// Bytes that are no characters.
    #[error("it is not UTF-8 text (byte {byte})")]
    NotUtf8 { byte: usize },
}

/// The text of a file.
///
/// # Errors
/// Why it cannot be read.
pub fn read(path: &Path) -> Result<String, NoText> {
    open(path).and_then(text)
}

/// The text of a file that a command line names. `-` is standard input, which gives its text once; who asks again gets the same.
///
/// # Errors
/// Why it cannot be read.
pub fn operand(path: &Path) -> Result<String, NoText> {
    if path != Path::new("-") {
        return read(path);
    }
    let mut kept = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_none() {
        *kept = Some(text(io::stdin())?);
    }
    Ok(kept.clone().unwrap_or_default())
}

/// A file that a command line names, to read bit by bit. `-` is standard input, for one who asks.
///
/// # Errors
/// Why it cannot be read.
pub fn stream(path: &Path) -> Result<BufReader<File>, NoText> {
    if path != Path::new("-") {
        return open(path).map(BufReader::new);
    }
    match INPUT.lock().unwrap_or_else(PoisonError::into_inner).replace(String::new()) {
        Some(_) => Err(NoText::Taken),
        None => Ok(BufReader::new(io::stdin().as_fd().try_clone_to_owned()?.into())),
    }
}

/// The bytes that a file stands for, of any length.
///
/// # Errors
/// Why it cannot be read.
pub fn bytes(path: &Path) -> Result<Vec<u8>, NoText> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(packed::plain(bytes, u64::MAX)?)
}

/// A file to read bit by bit, of any length; what is packed stands for its text. Only a table that is no text is unpacked whole.
///
/// # Errors
/// Why it cannot be read.
pub fn lines(path: &Path) -> Result<Box<dyn BufRead>, NoText> {
    unpacked(BufReader::new(open(path)?))
}

/// The same of a file that is open, and of which nothing was taken yet: a pipe gives its bytes once.
///
/// # Errors
/// Why it cannot be read.
pub fn unpacked(mut file: BufReader<File>) -> Result<Box<dyn BufRead>, NoText> {
    let head = file.fill_buf()?;
    if packed::is_gzip(head) {
        return Ok(Box::new(BufReader::new(packed::Unpacked::new(file))));
    }
    if packed::is_table(head) {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return Ok(Box::new(Cursor::new(packed::plain(bytes, u64::MAX)?)));
    }
    Ok(Box::new(file))
}

/// A file that has an end: a regular one, or what another program writes to the standard input or to a descriptor of this process. Any other
/// pipe or device might never answer.
///
/// # Errors
/// Why it cannot be read.
pub fn open(path: &Path) -> Result<File, NoText> {
    let is_given = path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd") || path == Path::new("/dev/stdin");
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        return Err(NoText::Folder);
    }
    if !kind.is_file() && !is_given {
        return Err(NoText::Device);
    }
    let file = File::open(path)?;
    READ.lock().unwrap_or_else(PoisonError::into_inner).insert(place(path));
    Ok(file)
}

/// Holds that a file was not read before: what it asked would be lost with it.
///
/// # Errors
/// When it was.
pub fn spare(path: &Path) -> io::Result<()> {
    if READ.lock().unwrap_or_else(PoisonError::into_inner).contains(&place(path)) {
        return Err(io::Error::other("it was read, and would be lost; give another name"));
    }
    Ok(())
}

/// The text that a reader holds.
///
/// # Errors
/// Why it cannot be read.
pub fn text(reader: impl Read) -> Result<String, NoText> {
    let (mut reader, mut bytes) = (reader, Vec::new());
    reader.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes)?;
    let most = if packed::is_table(&bytes) { TABLE_BYTES_MAX } else { BYTES_MAX };
    reader.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(PackedError::TooLong { most }.into());
    }
    let bytes = packed::plain(bytes, BYTES_MAX)?;
    let text =
        String::from_utf8(bytes).map_err(|error| NoText::NotUtf8 { byte: error.utf8_error().valid_up_to() + 1 })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Writes a file whole or not at all: beside its place first, then under its name. A program that is killed, or a disk that is full, leaves what
/// was there before. Pipes and devices are written as they are.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
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

/// Whether a path is of a file, or of nothing yet: a pipe or a device takes what several write.
pub fn is_file(path: &Path) -> bool {
    path.metadata().map_or(true, |found| found.is_file())
}

/// Where a path leads: as far as it is there the disk says it, and the rest is as it was written.
pub fn place(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = absolute.ancestors().find_map(|part| {
        let rest = absolute.strip_prefix(part).ok()?;
        let found = part.canonicalize().ok()?;
        Some(if rest.as_os_str().is_empty() { found } else { found.join(rest) })
    });
    known.unwrap_or(absolute)
}

/// Whether a folder is there or could be made, before long work is done for it: what is there of its path is a folder.
///
/// # Errors
/// When something else is.
pub fn can_make(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|part| part.exists());
    if there.is_none_or(Path::is_dir) { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Whether a file could be written there, before long work is done for it: an empty one is made beside its place, and removed.
///
/// # Errors
/// When it could not.
pub fn can_write(path: &Path) -> io::Result<()> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if target.exists() && !target.is_file() {
        return Ok(());
    }
    let beside = beside(&target);
    std::fs::write(&beside, []).and_then(|()| std::fs::remove_file(&beside))
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
    fn a_folder_can_be_made_where_no_file_is_in_the_way() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (below, can) in [("src", true), ("no/such/folder", true), ("Cargo.toml", false), ("Cargo.toml/x/y", false)]
        {
            assert_eq!(can_make(&here.join(below)).is_ok(), can, "{below}");
        }
        assert!(can_make(Path::new("")).is_ok() && can_make(Path::new("out/x")).is_ok());
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        assert!(text("\u{feff}100\n".as_bytes()).is_ok_and(|text| text == "100\n"));
        assert!(matches!(text(&b"37\xe4"[..]), Err(NoText::NotUtf8 { byte: 3 })));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_or_a_folder_is_refused_before_it_is_opened() {
        assert!(open(Path::new("/dev/zero")).is_err_and(|why| matches!(why, NoText::Device)));
        assert!(open(&std::env::temp_dir()).is_err_and(|why| matches!(why, NoText::Folder)));
    }

    #[test]
    fn a_place_is_tried_before_it_is_written_and_keeps_what_is_there() {
        let folder = std::env::temp_dir().join(format!("skrull-sim-can-write-{}", std::process::id()));
        let place = folder.join("x.toml");
        assert!(can_write(&place).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        std::fs::create_dir(&folder).expect("a folder");
        assert!(can_write(&place).is_ok() && !place.exists());
        std::fs::write(&place, "kept").expect("a file");
        assert!(can_write(&place).is_ok() && std::fs::read(&place).is_ok_and(|text| text == b"kept"));
        assert!(can_write(&folder).is_err_and(|error| error.kind() == io::ErrorKind::IsADirectory));
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left over");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let why = text(io::repeat(b' ')).expect_err("it has no end");
        assert_eq!(why.to_string(), "it is longer than 128 MiB");
    }
}
