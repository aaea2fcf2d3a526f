//! Host times of an engine that a section writes, over its constants. Units: microseconds.

use hw::Seconds;
use input::reader::Section;
use serve::engine_constants::EngineConstants;
use serve::engine_preset::EnginePreset;

use super::us;

/// `detokenize_us_per_sequence`: what the loop of iterations waits for text.
pub(super) fn detokenize(section: &mut Section<'_>, preset: Option<&EnginePreset>) -> f64 {
    let usual = preset.map_or(0.0, |preset| preset.detokenizer.us_per_sequence);
    section.number("detokenize_us_per_sequence", usual, 0.0..=1e6)
}

/// Host time of an iteration, what it takes longer without the overlapped loop, and that of each of its sequences, microseconds. What is written of an iteration holds for
/// every loop.
pub(super) fn iterations(section: &mut Section<'_>, constants: &EngineConstants) -> [f64; 3] {
    let serial = if section.has("host_us_per_step") { 0.0 } else { us(constants.serial_step) };
    let per_step = section.number("host_us_per_step", us(constants.host_per_step), 0.0..=1e6);
    [per_step, serial, section.number("host_us_per_sequence", us(constants.host_per_sequence), 0.0..=1e6)]
}

/// Microseconds of the launches of a layer without experts, of one with them, and the least of an intricate one; what is written
/// of layers alone holds for all.
pub(super) fn launches(section: &mut Section<'_>, constants: &EngineConstants) -> [f64; 3] {
    let written = section.some_number("host_us_per_layer", 0.0..=1e6);
    let of = |time: Seconds| written.unwrap_or(us(time));
    [
        of(constants.host_per_layer),
        section.number("host_us_per_expert_layer", of(constants.usual_expert_layer), 0.0..=1e6),
        section.number("host_us_per_intricate_layer", of(constants.host_per_intricate_layer), 0.0..=1e6),
    ]
}
