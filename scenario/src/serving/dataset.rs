//! `dataset_prompts` of `[trace]`: requests that come with the same prompts again and again.

use serve::dataset::Dataset;
use serve::request::Requests;

use input::diagnostic::Code;
use input::reader::Section;

/// Reads the key, and gives the prompts of a dataset to the requests where it is there.
pub fn read(section: &mut Section<'_>, mut requests: Requests, (seed, block_tokens): (u64, u32)) -> Requests {
    let Some(at) = section.place("dataset_prompts") else { return requests };
    let prompts = section.small("dataset_prompts", None, 1..=10_000_000);
    if requests.prefix_tokens > 0 || !requests.images.is_empty() {
        let help = "leave it out: these prompts have beginnings, sessions or images of their own";
        section.refuse(Code::ExclusiveKeys, at, "`trace.dataset_prompts` beside prompts that are told apart", help);
    } else {
        Dataset { prompts }.lay(&mut requests, block_tokens, seed);
    }
    requests
}
