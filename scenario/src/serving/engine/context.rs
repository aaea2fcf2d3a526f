//! `max_context`, tokens of a request, or as many as memory holds; and the blocks that hold them.

use input::diagnostic::Code;
use input::reader::{Section, unknown};
use serve::engine_preset::EnginePreset;

const KEY: &str = "max_context";
/// The word for a length that follows from memory.
const FITS: &str = "fits";

/// Tokens of a block, and blocks where somebody says how many.
pub(super) fn blocks(section: &mut Section<'_>, preset: Option<&EnginePreset>) -> [u32; 2] {
    let block_tokens = section.small("block_tokens", Some(preset.map_or(16, |preset| preset.block_tokens)), 1..=4096);
    [block_tokens, section.small("kv_blocks", Some(0), 1..=1_000_000_000)]
}

/// Most tokens of a request, 0 where they follow from the model, and whether a server takes what fits (`--max-model-len auto` of vLLM).
pub(super) fn context_max(section: &mut Section<'_>) -> (u32, bool) {
    if !section.is_text(KEY) {
        return (section.small(KEY, Some(0), 2..=100_000_000), false);
    }
    section.offers(KEY, || [FITS]);
    if let Some((word, at)) = section.text(KEY).filter(|(word, _)| word != FITS) {
        let what = format!("`{}` is `{word}`", section.full(KEY));
        let finding = unknown(Code::UnknownWord, what, &word, [FITS], at);
        section.find(finding.help("allowed are a whole number of tokens, and `fits` for as many as memory holds"));
    }
    (0, true)
}
