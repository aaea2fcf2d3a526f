//! Text files of a user: read whole, without a byte-order mark, and never more than `BYTES_MAX` of them.

use std::io::Read;
use std::path::Path;

/// Largest file that is read whole: 20 million lengths of a workload fit.
const BYTES_MAX: u64 = 128 << 20;

/// The text of a file.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn read(path: &Path) -> Result<String, String> {
    std::fs::File::open(path).map_err(|error| error.to_string()).and_then(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_text() {
        assert_eq!(text("\u{feff}100\n".as_bytes()), Ok("100\n".to_owned()));
        assert_eq!(text(&b"37\xe4"[..]), Err("it is not UTF-8 text (byte 3)".to_owned()));
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert_eq!(text(std::io::repeat(b' ')), Err("it is longer than 128 MiB".to_owned()));
    }
}
