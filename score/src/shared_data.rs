//! Measured tables for tests, from the folder beside the checkout.

use std::path::Path;

/// Text of a file below `shared/data/`, which may be packed; `None`, with a line that says so, where it is absent.
///
/// # Panics
/// When the file is no text.
pub(crate) fn text(file: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(file);
    let Ok(bytes) = std::fs::read(&path) else {
        println!("skipped: shared data absent ({})", path.display());
        return None;
    };
    let plain = packed::plain(bytes, u64::MAX).expect("a file that can be unpacked");
    Some(String::from_utf8(plain).expect("a text"))
}

/// The same of a table of measured steps or operators, or of a file beside one.
pub(crate) fn truth(file: &str) -> Option<String> {
    text(&format!("truth/{file}"))
}
