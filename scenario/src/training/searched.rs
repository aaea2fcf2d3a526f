//! Keys of one layout beside a search of layouts: the search decides what they say, so each is a warning with the list of `[search]` that holds it.

use input::diagnostic::Code;
use input::reader::{Place, Reader};

use super::PolicyChoice;

/// Sections and keys of one layout, with what of `[search]` says the same of all of them.
const KEYS: [(&str, &str, &str); 14] = [
    ("parallel", "dp", "`search.tp`, `search.cp`, `search.pp` and `search.nodes` leave it"),
    ("parallel", "cp", "`search.cp` lists what is tried"),
    ("parallel", "tp", "`search.tp` lists what is tried"),
    ("parallel", "pp", "`search.pp` lists what is tried"),
    ("parallel", "ep", "`search.ep` lists what is tried"),
    ("parallel", "zero", "`search.zero` lists what is tried"),
    ("parallel", "schedule", "`search.schedules` lists what is tried"),
    ("parallel", "chunks", "`search.chunks` lists what is tried"),
    ("parallel", "layers", "`search.embedding_layers` and `search.head_layers` list what is tried"),
    ("parallel", "sequence_parallel", "`search.sequence_parallel` lists what is tried"),
    ("training", "recompute", "`search.recompute` lists what is tried"),
    ("training", "offload_ratio", "`search.offload_ratio` lists what is tried"),
    ("training", "bucket_tokens", "`search.micro_batch` lists how many of the longest sequences it holds"),
    ("training", PRODUCTS, "`search.products` lists what is tried, and stands in the file"),
];

/// The one of them that a search takes where its own list is left out.
const PRODUCTS: &str = "products";

/// Those that a file has, with their places; taken before sections are read.
pub struct Given(Vec<(&'static str, &'static str, &'static str, Place)>);

impl Given {
    /// What a file has.
    pub fn of(reader: &Reader<'_>) -> Self {
        let is_overridden = reader.peek_in("search", PRODUCTS).is_some();
        let keys = KEYS.iter().filter(|(_, key, _)| *key != PRODUCTS || is_overridden);
        let given = keys.filter_map(|(section, key, instead)| {
            let (_, at) = reader.peek_in(section, key)?;
            Some((*section, *key, *instead, at))
        });
        Self(given.collect())
    }
}

/// Warns of what the search decides, of the file and of the policies that run.
pub fn warn(reader: &mut Reader<'_>, given: &Given, policies: &[PolicyChoice]) {
    for (section, key, instead, at) in &given.0 {
        let what = format!("`{section}.{key}` changes nothing: the search decides it");
        reader.warn(Code::NoEffect, at.clone(), what, (*instead).to_owned());
    }
    for choice in policies {
        let own = [
            ("schedule", choice.schedule.is_some(), "schedules"),
            ("chunks", choice.chunks.is_some(), "chunks"),
            ("cp", choice.cp.is_some(), "cp"),
            ("recompute", choice.recompute.is_some(), "recompute"),
        ];
        for (key, _, list) in own.into_iter().filter(|(_, is_given, _)| *is_given) {
            let what = format!("`{key}` of policy `{}` changes nothing: the search decides it", choice.name);
            reader.warn(Code::NoEffect, None, what, format!("`search.{list}` lists what is tried"));
        }
    }
}
