//! `dataset_prompts` of `[trace]`: requests that come with the same prompts again and again.

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
