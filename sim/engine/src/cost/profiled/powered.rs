//! Products of one card under the power of another card of its generation.
//!
//! The power of a clock grows with its third power: P ∝ f·V², and the voltage goes with the clock (T. Mudge, "Power: a first-class architectural design constraint",
//! IEEE Computer 34(4), 2001). So a product that asks for `ask` times the power of its card, all of it at the full clock, runs at the cube root of that power. A
//! product that asks for less runs at the full clock, and what it reaches of the peak is the kernel's.
//!
//! What a card's largest products hold, where the kernel alone would reach `UNTHROTTLED`, says what power a card has of what is asked. Another card has as much more as it has
//! watts for an operation of its peak. Cards of one generation are made alike, so nothing else differs.

use hw::{Format, Generation, Gpu};

use crate::cost::law::{GemmLaw, Law};
use crate::cost::names;
use crate::cost::profile::Profile;
use crate::cost::surface::Surface;

/// What large products reach of the peak where a card has power to spare: 114.1 of 119.5 TFLOP/s on L20, the same library and script as `FILLS`
/// (zzc0721/torch-performance-test-data, database.md; `torch.matmul` in 16 bits, PyTorch 2.8).
const UNTHROTTLED: f64 = 0.955;
/// Generations whose public maxima bear it out. Those of Blackwell's data centres do not: GB200 has 8 % more watts for an operation than B200, and its best product
/// holds 6 % less of the peak (stas00/ml-engineering @ 744d01e).
const HELD: [Generation; 3] = [Generation::Ampere, Generation::Ada, Generation::Hopper];
/// Edge of a product that fills every card, elements.
const FILLS: f64 = 8192.0;

/// The power of a card over what a kernel asks for that fills all of its units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Power(f64);

impl Power {
    /// That of a card whose large products hold such a share of the peak.
    fn of_held(share: f64) -> Self {
        Self(libm::pow(share, 3.0) / (UNTHROTTLED * UNTHROTTLED))
    }

    /// Share of the peak that a kernel would reach at the full clock, by the share that it holds.
    fn asked(self, held: f64) -> f64 {
        if held <= self.0 { held } else { libm::sqrt(held * held * held / self.0) }
    }

    /// Share of the peak that a kernel holds, by the share that it would reach at the full clock.
    fn held(self, asked: f64) -> f64 {
        if asked <= self.0 { asked } else { libm::cbrt(self.0 * asked * asked) }
    }
}

/// Moves the products of a profile from a card's power to another's, where both are of one generation and the power of both is known.
pub(super) fn moved(profile: &mut Profile, from: &Gpu, to: &Gpu) {
    let is_held = hw::catalog::generation(&from.name).is_some_and(|generation| HELD.contains(&generation));
    let is_alike = hw::catalog::same_generation(&from.name, &to.name);
    let Some((from_watts, to_watts)) = from.power_watts.zip(to.power_watts).filter(|_| is_held && is_alike) else {
        return;
    };
    let ratio = (to_watts / to.peak_bf16.get()) / (from_watts / from.peak_bf16.get());
    if (ratio - 1.0).abs() < 1e-9 {
        return;
    }
    for (name, operator) in &mut profile.operators {
        let Some(format) = names::product_format(name) else { continue };
        match &mut operator.law {
            Some(Law::Gemm(law)) => of_law(law, &operator.surface, (to, format), ratio),
            _ => of_surface(&mut operator.surface, (from, format), ratio),
        }
    }
}

/// The same of a law, which is in seconds of the other card already: all that multiplies holds what large products hold.
fn of_law(law: &mut GemmLaw, surface: &Surface, (to, format): (&Gpu, Format), ratio: f64) {
    if law.multiply_s <= 0.0 {
        return;
    }
    let share = 2.0 / (law.multiply_s * surface.factor(&[FILLS; 3]).0 * to.peak(format).get());
    let power = Power::of_held(share);
    law.multiply_s *= share / Power(power.0 * ratio).held(power.asked(share)).min(UNTHROTTLED.max(share));
}

/// The same of one surface: corners at which the units are the limit, and not memory.
fn of_surface(surface: &mut Surface, (from, format): (&Gpu, Format), ratio: f64) {
    let power = Power::of_held(1.0 / surface.factor(&[FILLS; 3]).0);
    let there = Power(power.0 * ratio);
    let points = surface.points();
    for (value, point) in surface.values.iter_mut().zip(points) {
        let [m, n, k] = point[..] else { return };
        let flops_s = 2.0 * m * n * k / from.peak(format).get();
        let bytes = format.product_bytes(hw::whole(m), hw::whole(n), hw::whole(k));
        if flops_s > bytes / from.memory_bandwidth.get() {
            let held = libm::exp(-*value);
            // What holds more than most products do is no sign of a kernel beyond them.
            let moved = there.held(power.asked(held)).min(UNTHROTTLED.max(held));
            *value += libm::log(held / moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of the peak that the largest square products of a card hold, and what its generation's measured card says of it: TFLOP/s of `torch.matmul` in bf16
    /// (zzc0721/torch-performance-test-data, database.md and issue 95: the greatest of 1,024 to 10,240 cubed).
    #[test]
    fn a_card_with_less_power_for_an_operation_holds_what_was_measured() {
        let share = |tflops: f64, card: &str| tflops * 1e12 / hw::catalog::gpu(card).expect("listed").peak_bf16.get();
        for (from, measured, to, watts, expected) in [
            ("h100-sxm", 790.5, "h20", 500.0, 142.0),
            ("h100-sxm", 790.5, "h100-pcie", 350.0, 499.9),
            ("h100-sxm", 790.5, "h200-sxm", 700.0, 790.3),
            ("a100-sxm-80g", 264.5, "a800", 400.0, 266.5),
            ("a100-sxm-80g", 264.5, "a100-pcie-40g", 250.0, 234.1),
        ] {
            let [gpu, other] = [from, to].map(|card| hw::catalog::gpu(card).expect("listed"));
            let ratio = (watts / other.peak_bf16.get()) / (gpu.power_watts.expect("known") / gpu.peak_bf16.get());
            let power = Power::of_held(share(measured, from));
            let found = Power(power.0 * ratio).held(power.asked(share(measured, from)));
            let error = found / share(expected, to) - 1.0;
            assert!(error.abs() < 0.06, "{to}: {found} of the peak, {error:+.3}");
        }
    }

    #[test]
    fn as_much_power_changes_nothing_and_more_of_it_never_slows_a_kernel() {
        let power = Power::of_held(0.8);
        let mut last = 0.0;
        for step in 1..=95 {
            let held = power.held(f64::from(step) / 100.0);
            assert!((power.asked(held) - f64::from(step) / 100.0).abs() < 1e-12 && held > last);
            last = held;
            let with = [0.5, 1.0, 2.0].map(|ratio| Power(power.0 * ratio).held(f64::from(step) / 100.0));
            assert!(with[0] <= with[1] && with[1] <= with[2], "{with:?}");
        }
        assert!((power.held(UNTHROTTLED) - 0.8).abs() < 1e-12, "the card that was measured");
    }
}
