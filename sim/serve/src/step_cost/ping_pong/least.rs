//! What two sides take at least: prices of tokens on each of them, which hold for every batch.
//!
//! Of an iteration of `L` layers and `m` micro-batches two things are known for each station. It takes all micro-batches in all layers, and one passes all other
//! stations once. And a micro-batch makes the round trip of every layer, and in one layer the station takes all others. Both are sums over the
//! stations (`ping_pong.rs` has the law). Tokens of a group set the pace of its attention and of both ways, tokens of all groups that of the experts, so each side
//! has a linear program of its own (`step_cost/least.rs`), and the sum of two prices holds for the sum of both sides. Units: ticks, tokens.

use super::PingPong;
use crate::step_cost::least::{self, Prices, Size};
use crate::step_cost::sizes::{at, knots};

/// Stations whose pace is asked for: attention, experts, the way back. The way there carries no more than that.
const PACES: [Station; 3] = [Station::Attention, Station::Experts, Station::Back];

/// A station of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Station {
    Attention,
    There,
    Experts,
    Back,
}

/// What of an iteration is counted: how often each station takes a micro-batch.
#[derive(Clone, Copy)]
enum Counted {
    /// This one is never idle.
    Busy(Station),
    /// Each layer is a round trip.
    Trips(Station),
}

impl Counted {
    /// Times of a station by those of a micro-batch in all of so many layers, of which there are so many.
    fn times(self, station: Station, n_layers: u32, micro_batches: u32) -> f64 {
        let [layers, m] = [n_layers, micro_batches].map(f64::from);
        match self {
            Self::Busy(pace) if pace == station => m,
            Self::Busy(_) => 1.0 / layers,
            Self::Trips(pace) if pace == station => 1.0 + (m - 1.0) / layers,
            Self::Trips(_) => 1.0,
        }
    }
}

impl PingPong {
    /// Prices where a group has so many decoding sequences and tokens at most, and a key takes so long for all of its micro-batches.
    pub(in crate::step_cost) fn prices(&self, decoding: u32, tokens: u32, key: f64) -> Vec<Prices> {
        let counted = PACES.iter().flat_map(|pace| [Counted::Busy(*pace), Counted::Trips(*pace)]);
        counted.flat_map(|counted| self.prices_of(counted, [decoding, tokens], key)).collect()
    }

    fn prices_of(&self, counted: Counted, [decoding, tokens]: [u32; 2], key: f64) -> Vec<Prices> {
        let times = |station: Station, m: u32| counted.times(station, self.n_layers, m);
        let own = |m: u32, part: u64| {
            let of = |station: Station, table| at(table, part).as_f64() * times(station, m);
            of(Station::Attention, &self.attention) + of(Station::There, &self.there) + of(Station::Back, &self.back)
        };
        let experts = |m: u32, part: u64| at(&self.experts, part).as_f64() * times(Station::Experts, m);
        let of_side = |groups: u32, ticks: &dyn Fn(u32, u64) -> f64| {
            let [decoding, tokens] = [decoding, tokens].map(|n| u64::from(n) * u64::from(groups));
            let sizes = self.sizes(groups, [decoding, tokens], ticks);
            least::prices(&sizes, hw::real(decoding), 1.0)
        };
        let ranks = f64::from(self.ranks);
        // Fewer micro-batches have a larger part of the keys each.
        let key = key * times(Station::Attention, self.micro_batches) / f64::from(self.micro_batches);
        let both = of_side(1, &own).into_iter().zip(of_side(self.ranks, &experts));
        both.map(|(own, experts)| {
            let [prompt, decoded] = [0, 1].map(|of| own[of] / ranks + experts[of]);
            Prices { prompt, decoded, key }
        })
        .collect()
    }

    /// The largest batches that take as long, where so many groups have so many decoding sequences and tokens together at most; `ticks` are those of so many micro-batches of
    /// so many tokens. Times are linear between knots, so the least of prices is at one of them or where no more sequences decode.
    fn sizes(&self, groups: u32, [decoding, tokens]: [u64; 2], ticks: &dyn Fn(u32, u64) -> f64) -> Vec<Size> {
        let mut sizes = Vec::new();
        for m in 1..=self.micro_batches {
            // A smaller batch of a group has fewer parts, of one token each.
            let parts_max = if m < self.micro_batches { groups.into() } else { tokens.div_ceil(m.into()) };
            let largest = tokens.min(parts_max * u64::from(m));
            let mut add = |part: u64, size: u64| {
                let (tokens, ticks) = (hw::real(size), ticks(m, part));
                sizes.push(Size { tokens, even: ticks, lone: ticks });
            };
            for part in knots(usize::try_from(parts_max).expect("a table has them")) {
                add(part as u64, largest.min(part as u64 * u64::from(m)));
            }
            let within = [decoding / u64::from(m) * u64::from(m), decoding, decoding.next_multiple_of(m.into())];
            for size in within.into_iter().filter(|size| (1..=largest).contains(size)) {
                add(size.div_ceil(m.into()), size);
            }
        }
        sizes
    }
}
