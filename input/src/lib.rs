//! Strict input that explains what is wrong: sections of a TOML file, findings with their place and a suggestion, text files of bounded size.
//!
//! It knows no kind of scenario and no section. Whoever reads one asks for keys; what nobody asked for is a finding.

pub mod diagnostic;
pub mod keys;
pub mod reader;
pub mod run_list;
pub mod schema;
pub mod text_file;
