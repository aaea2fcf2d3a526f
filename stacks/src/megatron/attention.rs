//! Which kernel of attention a job has: flash or fused ones, or a score matrix.

use super::{Flags, Machine};

/// A card of the generation that flash attention and Transformer Engine's fused kernels leave out: both need compute capability 8.0.
const BEFORE_FLASH: &str = "v100-sxm-32g";
/// A flag that Megatron-LM dropped in 2023. Before, its own modules (`local`) ran without flash attention but for a switch.
const OF_2023: &str = "data-impl";
/// A switch that matters to a score matrix alone.
const OF_SCORES: &str = "no-masked-softmax-fusion";
/// A switch of older releases.
const SWITCH: &str = "use-flash-attn";

/// What leaves attention with a score matrix, as a remark; `None` where it is fused, and then a switch about such a matrix says nothing.
pub(super) fn unfused_by(flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    let found = of_flags(flags).or_else(|| of_card(flags, machine));
    if found.is_none() {
        flags.given.retain(|flag| flag.name != OF_SCORES);
    }
    found
}

fn of_flags(flags: &mut Flags<'_>) -> Option<&'static str> {
    let backend = flags.text("attention-backend");
    let implementation = flags.text("transformer-impl");
    let has_flash = flags.is(SWITCH);
    if backend.as_ref().is_some_and(|word| word == "unfused" || word == "local") {
        return Some("--attention-backend");
    }
    if implementation.as_ref().is_some_and(|word| word == "local") && !has_flash {
        return Some("--transformer-impl local");
    }
    let is_of_2023 = flags.find(OF_2023).is_some() && implementation.is_none() && backend.is_none();
    (is_of_2023 && !has_flash).then_some("--data-impl: Megatron-LM of 2023 without --use-flash-attn")
}

fn of_card(flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    let card = machine.gpu.as_deref()?;
    if !hw::catalog::same_generation(card, BEFORE_FLASH) {
        return None;
    }
    if flags.is(SWITCH) {
        flags.not_modelled(
            SWITCH,
            "flash attention needs compute capability 8.0, which this card has not: a score matrix is counted",
        );
    }
    Some("neither flash attention nor Transformer Engine's kernels run below compute capability 8.0")
}
