//! Strict input that explains what is wrong: sections of a TOML file, findings with their place and a suggestion, text files of bounded size.
//!
//! It knows no kind of scenario and reads no section by itself. Whoever reads one asks for keys; what nobody asked for is a finding. Words
//! about keys stand here as data: what they mean (`keys.toml`), and what other tools call them (`borrowed.rs`).

mod borrowed;
pub mod diagnostic;
pub mod keys;
mod meant;
pub mod reader;
pub mod run_list;
pub mod schema;
pub mod text_file;
