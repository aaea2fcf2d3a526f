//! How unevenly tokens spread over expert ranks, drawn from a stated distribution.
//!
//! An expert's popularity is log-normal: exp(σ·z), z standard normal, drawn anew for every layer and step from a named
//! stream. Every rank of an expert group keeps the pace of its busiest one, because each layer's all-to-all joins them; the
//! figures are means over layers. Units: thousandths of the even share.

use crate::problem::Problem;
use crate::random;

/// Rows that the busiest rank of a layer's expert group computes and receives, over the even share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpertLoad {
    /// Mean over layers, thousandths.
    pub permille: u64,
    /// Tokens that find their expert full, of all routed ones, thousandths.
    pub dropped_permille: u64,
}

impl ExpertLoad {
    /// Every rank has its even share.
    pub const EVEN: Self = Self { permille: 1000, dropped_permille: 0 };
}

/// Load of the busiest expert rank in one step; `None` without experts.
#[must_use]
pub fn load(problem: &Problem, step_index: usize) -> Option<ExpertLoad> {
    let experts = problem.model.experts?;
    let traffic = problem.execution.experts;
    if traffic.imbalance == 0.0 && traffic.capacity.is_none() {
        return Some(ExpertLoad::EVEN);
    }
    let n_layers = problem.model.n_layers - experts.n_dense_layers;
    let mut random = random::stream(problem.seed, &format!("experts of step {step_index}"));
    let (mut busiest, mut dropped) = (0.0, 0.0);
    for _ in 0..n_layers {
        let popularity: Vec<f64> =
            (0..experts.n_routed).map(|_| libm::exp(traffic.imbalance * normal(&mut random))).collect();
        let mean = popularity.iter().sum::<f64>() / hw::Tokens(experts.n_routed).as_f64();
        let shares: Vec<f64> = popularity.iter().map(|popularity| popularity / mean).collect();
        match traffic.capacity {
            // Every expert computes its capacity, full or padded.
            Some(capacity) => {
                busiest += capacity;
                let over: f64 = shares.iter().map(|share| (share - capacity).max(0.0)).sum();
                dropped += over / hw::Tokens(experts.n_routed).as_f64();
            }
            None => {
                let per_rank = usize::try_from(experts.n_routed / u64::from(problem.layout.ep)).expect("few experts");
                let rank = |shares: &[f64]| shares.iter().sum::<f64>() / hw::Tokens(shares.len() as u64).as_f64();
                busiest += shares.chunks(per_rank.max(1)).map(rank).fold(0.0, f64::max);
            }
        }
    }
    let n = hw::Tokens(n_layers.max(1)).as_f64();
    let permille = |sum: f64| hw::Bytes::from_f64(sum / n * 1000.0).0;
    Some(ExpertLoad { permille: permille(busiest), dropped_permille: permille(dropped) })
}

/// A standard normal draw (Box-Muller; one of the pair is enough here).
fn normal(random: &mut random::Stream) -> f64 {
    let (radius, turn) = (1.0 - random.unit(), random.unit());
    libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(2.0 * std::f64::consts::PI * turn)
}
