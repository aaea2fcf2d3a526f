//! Which measured card lends its curves to a GPU that nobody measured.
//!
//! Cards of one generation run the same kernels (`hw::Generation`), so the lender is of the GPU's own generation wherever one was measured: of these the card with
//! the nearest figures. Only where there is none another generation lends.

use engine::cost::names;
use engine::cost::profile::Profile;
use hw::Gpu;

use super::parsed;

/// The shipped profile of the card that is nearest to a GPU inside its generation; `of` says which profile a card of the catalogue has, and a GPU's own is left out.
pub(super) fn nearest(gpu: &Gpu, of: impl Fn(&str) -> Option<&'static str>) -> Option<&'static str> {
    let own = of(&gpu.name);
    let alike = hw::catalog::gpu_names().into_iter().filter(|card| hw::catalog::same_generation(card, &gpu.name));
    let measured = alike.filter_map(|card| of(card).filter(|name| Some(*name) != own).zip(hw::catalog::gpu(card)));
    // A profile stands for variants of its card with other memory; it is scaled from the card that was measured.
    let measured =
        measured.filter(|(name, card)| parsed(name).is_some_and(|own| own.gpu == card.name && carries_over(own)));
    measured.min_by(|(_, one), (_, other)| distance(one, gpu).total_cmp(&distance(other, gpu))).map(|(name, _)| name)
}

/// Rows of products that a profile has to have for another card to borrow it. Those of RTX 4090 and RTX PRO 6000 end at 2,048, whose activations lie in the cache.
/// Lent so, a step of L40S in full was 28 % short, where H100's curves are 6 % short.
const ROWS_LEAST: f64 = 8192.0;

/// Whether a profile has products as large as those of a training step.
fn carries_over(profile: &Profile) -> bool {
    let products = profile.operators.get(&names::of_format("gemm", hw::Format::Bf16));
    let rows = products.and_then(|operator| operator.surface.axes.iter().find(|axis| axis.name == "m"));
    rows.and_then(|axis| axis.knots.last()).is_some_and(|most| *most >= ROWS_LEAST)
}

/// How far the figures of two cards lie apart, as one ratio: those of products in 16 bits, memory, and links inside a node, each the greater over the less.
fn distance(one: &Gpu, other: &Gpu) -> f64 {
    let figures = |gpu: &Gpu| [gpu.peak_bf16.get(), gpu.memory_bandwidth.get(), gpu.intra_node_bandwidth.get()];
    figures(one).iter().zip(figures(other)).map(|(a, b)| (a / b).max(b / a)).product()
}
