//! Stands in for `bindgen` where `highs-sys` is built, so that a build needs no libclang (half a gigabyte of packages and root).
//!
//! `highs-sys` asks bindgen for the Rust declarations of one C header each time it is built, and they are the same each time.
//! Here are the calls that it makes; the answer is `highs-1.15.0.txt`, which bindgen 0.72.1 made of the header of HiGHS 1.15.0:
//!
//! ```text
//! bindgen wrapper.h --allowlist-item 'k?Highs.*' --no-doc-comments --output bindings/highs-VERSION.txt -- -I INCLUDE/highs
//! ```
//!
//! (`wrapper.h` is in the folder of `highs-sys`, `INCLUDE` in that of its build.) Other headers than those are refused: a new
//! version of HiGHS needs its declarations first.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The declarations.
const DECLARATIONS: &str = include_str!("../highs-1.15.0.txt");
/// What they were made of, below the folder of includes.
const HEADERS: [&str; 3] = ["interfaces/highs_c_api.h", "lp_data/HighsCallbackStruct.h", "util/HighsInt.h"];
/// `fingerprint` of these headers in HiGHS 1.15.0.
const FINGERPRINT: u64 = 0x149f_5ac5_5779_d85a;

/// What bindgen tells its caller while it reads.
pub mod callbacks {
    /// All calls may be left out.
    pub trait ParseCallbacks: std::fmt::Debug {
        /// A header that was asked for.
        fn header_file(&self, _name: &str) {}
        /// A header that another one includes.
        fn include_file(&self, _name: &str) {}
        /// An environment variable that was read.
        fn read_env_var(&self, _name: &str) {}
    }
}

/// Why there are no declarations.
#[derive(Debug)]
pub enum Error {
    /// A header cannot be read.
    Header(PathBuf, io::Error),
    /// The headers are of another version.
    Version(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Version(found) => write!(
                f,
                "the declarations in bindings/ are of HiGHS 1.15.0 (headers {FINGERPRINT:#x}), these headers are {found:#x}; \
                 bindings/src/lib.rs says how to make them anew"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// Collects the folders of includes.
#[derive(Debug, Default)]
pub struct Builder {
    includes: Vec<PathBuf>,
}

impl Builder {
    /// An argument of clang; folders of includes count.
    pub fn clang_arg(mut self, argument: impl Into<String>) -> Self {
        self.includes.extend(argument.into().strip_prefix("-I").map(PathBuf::from));
        self
    }

    /// Whether to assert sizes; the declarations do.
    pub fn layout_tests(self, _wanted: bool) -> Self {
        self
    }

    /// The header to read; it includes those of HiGHS.
    pub fn header(self, _name: impl Into<String>) -> Self {
        self
    }

    /// Whom to tell of headers; the headers of a registry's package do not change.
    pub fn parse_callbacks(self, _callbacks: Box<dyn callbacks::ParseCallbacks>) -> Self {
        self
    }

    /// The declarations, where the headers are those that they were made of.
    ///
    /// # Errors
    /// When a header cannot be read or is another.
    pub fn generate(self) -> Result<Bindings, Error> {
        let found = fingerprint(&self.includes)?;
        if found == FINGERPRINT { Ok(Bindings) } else { Err(Error::Version(found)) }
    }
}

/// Declarations that fit.
#[derive(Debug)]
pub struct Bindings;

impl Bindings {
    /// Writes the declarations.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_to_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::write(path, DECLARATIONS)
    }
}

/// FNV-1a of all headers (Fowler, Noll, Vo), ends of lines left out.
fn fingerprint(includes: &[PathBuf]) -> Result<u64, Error> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for header in HEADERS {
        let known = includes.iter().map(|folder| folder.join(header)).find(|path| path.is_file());
        let path = known.unwrap_or_else(|| PathBuf::from(header));
        let text = std::fs::read(&path).map_err(|error| Error::Header(path, error))?;
        for byte in text.into_iter().filter(|byte| !b"\r\n".contains(byte)) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}
