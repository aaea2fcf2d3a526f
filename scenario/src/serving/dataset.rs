//! `dataset_prompts` of `[trace]`: requests that come with the same prompts again and again; and files that have fewer than are asked for.

use serve::dataset::Dataset;
use serve::request::Requests;

use input::diagnostic::Code;
use input::reader::{Place, Section};

/// A dataset, and where it is asked for.
pub type Asked = Option<(Dataset, Place)>;

/// Reads the key.
pub fn read(section: &mut Section<'_>) -> Asked {
    let at = section.place("dataset_prompts").flatten();
    let prompts = section.some_count("dataset_prompts", 1..=10_000_000)?;
    Some((Dataset { prompts }, at))
}

/// Gives the prompts of the dataset to the requests, where there is one.
pub fn lay(asked: Asked, section: &mut Section<'_>, requests: &mut Requests, (seed, block_tokens): (u64, u32)) {
    let Some((dataset, at)) = asked else { return };
    if requests.prefix_tokens > 0 || !requests.images.is_empty() {
        let help = "leave it out: these prompts have beginnings, sessions or images of their own";
        section.refuse(Code::ExclusiveKeys, at, "`trace.dataset_prompts` beside prompts that are told apart", help);
    } else {
        dataset.lay(requests, block_tokens, seed);
    }
}

/// Says that a file has fewer requests than `requests` asks for.
pub fn fewer(section: &mut Section<'_>, file: &str, (asked, found): (usize, usize)) {
    if asked > found {
        let what =
            format!("`{}` = {asked}, and `{file}` has {found}: all of them are served", section.full("requests"));
        let help = "leave it out, or give a longer trace; `lengths` draws as many as are asked for";
        section.warn(Code::NoEffect, section.at(), what, help);
    }
}
