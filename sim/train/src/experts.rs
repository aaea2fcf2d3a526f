//! How unevenly tokens spread over expert ranks, drawn from a stated distribution.
//!
//! An expert's popularity is log-normal: exp(σ·z), z standard normal, drawn anew for every layer and step from a named
//! stream. Every rank of an expert group keeps the pace of its busiest one, because each layer's all-to-all joins them; the
//! figures are means over layers. Units: thousandths of the even share.

use crate::problem::Problem;
use engine::random;
pub use engine::shard::ExpertLoad;

/// Load of the busiest expert rank in one step; `None` without experts.
pub fn load(problem: &Problem, step_index: usize) -> Option<ExpertLoad> {
    let experts = problem.model.experts?;
    let traffic = problem.execution.experts;
    if traffic.imbalance == 0.0 && traffic.capacity.is_none() {
        return Some(ExpertLoad::EVEN);
    }
    let n_layers = problem.model.n_expert_layers();
    let mut random = random::stream(problem.seed, &format!("experts of step {step_index}"));
    let (mut busiest, mut dropped) = (0.0, 0.0);
    for _ in 0..n_layers {
        let popularity: Vec<f64> =
            (0..experts.n_routed).map(|_| libm::exp(traffic.imbalance * random.normal())).collect();
        let mean = popularity.iter().sum::<f64>() / hw::real(experts.n_routed);
        let shares: Vec<f64> = popularity.iter().map(|popularity| popularity / mean).collect();
        match traffic.capacity {
            // Every expert computes its capacity, full or padded.
            Some(capacity) => {
                busiest += capacity;
                let over: f64 = shares.iter().map(|share| (share - capacity).max(0.0)).sum();
                dropped += over / hw::real(experts.n_routed);
            }
            None => {
                let per_rank = usize::try_from(experts.n_routed / u64::from(problem.layout.ep)).expect("few experts");
                let rank = |shares: &[f64]| shares.iter().sum::<f64>() / hw::real(shares.len() as u64);
                busiest += shares.chunks(per_rank.max(1)).map(rank).fold(0.0, f64::max);
            }
        }
    }
    let n = hw::real(n_layers.max(1));
    let permille = |sum: f64| hw::whole(sum / n * 1000.0);
    Some(ExpertLoad { permille: permille(busiest), dropped_permille: permille(dropped) })
}

/// All-to-all time over computation time of a model with experts on `n_servers` servers that share one port each, from shapes
/// alone: FLOPS/(6 B) · k/(1 + 2 k) · (w − 1)/(w h), with B in elements per second (LSH-MoE, arXiv:2411.08446, section on
/// scalability). A quick check of a set-up; the simulation counts links, overlap and imbalance.
pub fn all_to_all_over_compute(
    flops_per_s: f64,
    port_elements_per_s: f64,
    top_k: u64,
    n_servers: u32,
    hidden: u64,
) -> f64 {
    let (k, h, w) = (hw::real(top_k), hw::real(hidden), f64::from(n_servers));
    flops_per_s / (6.0 * port_elements_per_s) * k / (1.0 + 2.0 * k) * (w - 1.0) / (w * h)
}

/// `all_to_all_over_compute` of a problem: its expert group on whole nodes, each rank with its own port.
pub fn of_shapes(problem: &Problem) -> f64 {
    let cluster = &problem.cluster;
    let elements = cluster.nic_bandwidth.get() / hw::real(problem.dtype.bytes());
    let n_servers = problem.layout.ep.div_ceil(cluster.gpus_per_node);
    let top_k = problem.model.experts.map_or(0, |experts| experts.top_k);
    all_to_all_over_compute(cluster.gpu.peak(problem.dtype).get(), elements, top_k, n_servers, problem.model.hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_of_a100_spend_half_of_the_time_in_all_to_all() {
        // 312 TFLOP/s, 25 GB/s of two-byte elements, k = 2, h = 768: 13/12, which the page rounds to 1.08; a share of 52 %.
        let ratio = all_to_all_over_compute(312e12, 25e9 / 2.0, 2, 2, 768);
        assert!((ratio - 13.0 / 12.0).abs() < 1e-12, "{ratio}");
        assert!((ratio / (1.0 + ratio) - 0.52).abs() < 0.001);
        // The share of the two moves by 3.6 points when four servers double, and not with layers, which the ratio does not know.
        let share = |n_servers| {
            let ratio = all_to_all_over_compute(312e12, 25e9 / 2.0, 2, n_servers, 768);
            ratio / (1.0 + ratio)
        };
        assert!((share(8) - share(4) - 0.036).abs() < 0.001);
        // Flat when servers double.
        let doubled = all_to_all_over_compute(312e12, 25e9 / 2.0, 2, 8, 768)
            / all_to_all_over_compute(312e12, 25e9 / 2.0, 2, 4, 768);
        assert!((doubled - 7.0 / 6.0).abs() < 1e-12);
    }
}
