//! What a card draws, by how busy its memory and its units for products are.
//!
//! A card that holds a program draws a part of its limit all the time. Bytes that its memory moves and products that it computes add to it in
//! proportion, up to the limit. Three shares of the limit describe a card; they are fitted to measured runs (`docs/energy.md`) and stand in
//! `hw/catalog/gpus.toml`. Units: watts; shares of the limit.

use crate::gpu::Draw;
use crate::{Generation, Gpu, catalog};

/// Joules of a watt-hour.
pub const JOULES_PER_WH: f64 = 3600.0;

/// Metric: the share of the energy that follows from another card's shares of power; absent where none does.
pub const BORROWED: &str = "energy_borrowed_ratio";

/// Why figures of energy are less sure, where a card has the shares of another one.
pub fn borrowed_in_words(lender: &str) -> String {
    format!("watts and joules follow from the shares of power of `{lender}`, as none were fitted on this card")
}

/// Ends of what cards draw over what is expected: quantiles of the runs of `docs/energy.md`.
const ENDS: [f64; 2] = [0.75, 1.4];

/// The same where all shares are those of another card. The two cards that have some draw 0.69 to 1.47 times what each other's shares say, however busy they are.
/// Both errors are apart: their logarithms add up as squares do.
const BORROWED_ENDS: [f64; 2] = [0.61, 1.7];

/// Ends of what cards draw over what is expected, where they are expected to draw so many watts and may draw so many: nothing draws more than its limit. A part
/// of it may follow from the shares of other cards.
pub fn ends(watts: f64, limit_watts: f64, borrowed_ratio: f64) -> [f64; 2] {
    let [low, high] = [0, 1].map(|end| ENDS[end] + (BORROWED_ENDS[end] - ENDS[end]) * borrowed_ratio);
    [low, high.min(limit_watts / watts)]
}

/// What a card draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// The most that it may draw for hours, watts.
    pub limit_watts: f64,
    /// Shares of the limit.
    pub draw: Draw,
    /// Card that the shares were fitted on, where that is another one.
    pub lender: Option<&'static str>,
}

/// Card whose shares stand for those of others of its generation, of what comes after it, and of what another maker builds at its time.
const BLACKWELL: &str = "b200";
/// The same for older ones.
const HOPPER: &str = "h100-sxm";

impl Power {
    /// Of a card whose limit is known.
    pub fn of(gpu: &Gpu) -> Option<Self> {
        let limit_watts = gpu.power_watts?;
        if let Some(draw) = catalog::draw(&gpu.name) {
            return Some(Self { limit_watts, draw, lender: None });
        }
        let is_newer = match catalog::generation(&gpu.name)? {
            Generation::Blackwell | Generation::BlackwellOfDesks | Generation::Cdna4 => true,
            Generation::Host | Generation::Volta | Generation::Turing | Generation::Ampere => false,
            Generation::AmpereOfDesks | Generation::Ada | Generation::Hopper | Generation::Cdna3 => false,
        };
        let lender = if is_newer { BLACKWELL } else { HOPPER };
        Some(Self { limit_watts, draw: catalog::draw(lender)?, lender: Some(lender) })
    }

    /// Watts while memory and products are busy for these shares of the time.
    ///
    /// # Panics
    /// When a share is negative or not finite.
    pub fn watts(&self, memory: f64, products: f64) -> f64 {
        assert!(memory >= 0.0 && products >= 0.0 && (memory + products).is_finite(), "busy for a share of the time");
        let Draw { idle, memory: of_memory, products: of_products } = self.draw;
        self.limit_watts * (idle + of_memory * memory + of_products * products).min(1.0)
    }

    /// Watts of a card that waits.
    pub fn idle_watts(&self) -> f64 {
        self.watts(0.0, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(name: &str) -> Option<Power> {
        Power::of(&catalog::gpu(name).expect("listed"))
    }

    #[test]
    fn a_card_draws_more_the_busier_it_is_and_never_more_than_its_limit() {
        let h100 = power("h100-sxm").expect("its limit is known");
        assert!(h100.lender.is_none() && h100.idle_watts() > 0.0);
        assert!(h100.watts(0.5, 0.0) > h100.idle_watts() && h100.watts(0.5, 0.3) > h100.watts(0.5, 0.0));
        assert!((h100.watts(1.0, 1.0) - 700.0).abs() < 1e-9);
    }

    #[test]
    fn a_card_that_borrows_may_be_as_far_off_as_the_two_that_lend_are_from_each_other() {
        let [mine, theirs] = ["h100-sxm", "b200"].map(|name| power(name).expect("a limit"));
        let share = |power: &Power, memory: f64, products: f64| power.watts(memory, products) / power.limit_watts;
        let [low, high] = ends(100.0, 1000.0, 1.0);
        for memory in 0..=20 {
            for products in 0..=20 {
                let [memory, products] = [memory, products].map(|n| f64::from(n) / 20.0);
                let ratio = share(&mine, memory, products) / share(&theirs, memory, products);
                assert!(low < ratio.min(1.0 / ratio) && ratio.max(1.0 / ratio) < high, "{ratio}");
            }
        }
        assert_eq!(ends(100.0, 1000.0, 0.0), [0.75, 1.4]);
        assert_eq!(ends(900.0, 900.0, 1.0)[1], 1.0, "nothing draws more than its limit");
    }

    #[test]
    fn a_card_without_measured_runs_has_the_shares_of_the_nearest_one_and_its_own_limit() {
        let [h100, h200, b300] = ["h100-sxm", "h200-sxm", "b300"].map(|name| power(name).expect("a limit"));
        assert_eq!((h200.draw, h200.lender), (h100.draw, Some("h100-sxm")));
        assert_eq!((b300.draw, b300.lender), (power("b200").expect("a limit").draw, Some("b200")));
        assert!(b300.limit_watts > 1000.0);
        let mut own = catalog::gpu("h100-sxm").expect("listed");
        own.power_watts = None;
        assert_eq!(Power::of(&own), None, "without a limit nothing is known");
    }
}
