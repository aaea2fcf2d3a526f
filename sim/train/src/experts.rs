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

/// Least load of any step: what a bound on all of them may count on.
pub fn least(problem: &Problem) -> ExpertLoad {
    let of_steps = (0..problem.workload.n_steps()).filter_map(|step_index| load(problem, step_index));
    of_steps.min().unwrap_or(ExpertLoad::EVEN)
}

/// Mean load of the steps: what a planner expects that has no step before it.
pub fn mean(problem: &Problem) -> ExpertLoad {
    let all: Vec<ExpertLoad> =
        (0..problem.workload.n_steps()).filter_map(|step_index| load(problem, step_index)).collect();
    let n = all.len() as u64;
    if n == 0 {
        return ExpertLoad::EVEN;
    }
    ExpertLoad {
        permille: all.iter().map(|load| load.permille).sum::<u64>() / n,
        dropped_permille: all.iter().map(|load| load.dropped_permille).sum::<u64>() / n,
    }
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
    let n_servers = problem.layout.ep.div_ceil(cluster.domain());
    let top_k = problem.model.experts.map_or(0, |experts| experts.top_k);
    all_to_all_over_compute(cluster.gpu.peak(problem.dtype).get(), elements, top_k, n_servers, problem.model.hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3 30B over eight ranks of one pipeline stage.
    fn problem(traffic: crate::problem::ExpertTraffic) -> Problem {
        use crate::layout::{ContextExchange, Layout, Zero};
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        Problem {
            model: engine::model::embedded("qwen3-30b-a3b").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: Layout { ep: 8, ..Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather) },
            workload: crate::workload::Workload { batch_size: 8, lengths: vec![8192; 8], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 8192,
            execution: crate::problem::Execution {
                framework: crate::problem::Framework::MegatronCore,
                experts: traffic,
                recompute: engine::recompute::Recompute::Off,
                ..crate::problem::Execution::default()
            },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes::ZERO,
            seed: 1,
        }
    }

    fn held(problem: &Problem) -> u64 {
        problem.execution.experts.held_permille(&problem.model, &problem.layout)
    }

    #[test]
    fn a_capacity_scales_what_experts_keep() {
        use crate::problem::ExpertTraffic;
        let kept = |capacity| {
            let problem = problem(ExpertTraffic { capacity, ..ExpertTraffic::EVEN });
            crate::memory::activation_bytes_per_token(&problem, &crate::stage::stages(&problem)[0])
        };
        // Of a token and layer: eight copies of the input of 2,048, both factors of 768 and their product, two bytes each; 48 layers.
        let routed = 48 * 8 * 2 * (2048 + 3 * 768);
        assert_eq!(kept(Some(1.0)), kept(None));
        assert_eq!(kept(Some(2.0)) - kept(None), routed);
        assert_eq!(kept(None) - kept(Some(0.5)), routed / 2);
    }

    #[test]
    fn the_fullest_rank_of_drawn_popularities_holds_no_more_than_is_said() {
        use crate::problem::ExpertTraffic;
        for imbalance in [0.3, 1.0] {
            let problem = problem(ExpertTraffic { imbalance, ..ExpertTraffic::EVEN });
            let said = hw::real(held(&problem)) / 1000.0;
            // Ranks of sixteen experts over 48 layers, a hundred steps.
            let mut random = random::stream(7, "test");
            let mut sum = 0.0;
            for _ in 0..100 {
                let mut held = [0.0; 8];
                for _ in 0..48 {
                    let drawn: Vec<f64> = (0..128).map(|_| libm::exp(imbalance * random.normal())).collect();
                    let mean = drawn.iter().sum::<f64>() / 8.0;
                    held.iter_mut()
                        .zip(drawn.chunks(16))
                        .for_each(|(held, of)| *held += of.iter().sum::<f64>() / mean / 48.0);
                }
                sum += held.into_iter().fold(0.0, f64::max);
            }
            let found = sum / 100.0;
            assert!(found > 1.0 && found < said && said - 1.0 < 2.0 * (found - 1.0), "{imbalance}: {found} {said}");
        }
        assert_eq!(held(&problem(ExpertTraffic::EVEN)), 1000);
    }

    #[test]
    fn steps_are_drawn_anew_and_none_is_below_the_least_of_them() {
        use crate::problem::ExpertTraffic;
        let mut problem = problem(ExpertTraffic { imbalance: 1.5, ..ExpertTraffic::EVEN });
        problem.workload.lengths = vec![8192; 4 * problem.workload.batch_size];
        let drawn: Vec<u64> = (0..4).map(|step| load(&problem, step).expect("experts").permille).collect();
        assert!(drawn.iter().any(|of| *of != drawn[0]), "{drawn:?}");
        assert_eq!(Some(least(&problem).permille), drawn.iter().min().copied());
        assert_eq!(mean(&problem).permille, drawn.iter().sum::<u64>() / 4);
        // A capacity is what every expert computes, whatever is drawn.
        problem.execution.experts.capacity = Some(1.25);
        assert_eq!([least(&problem), mean(&problem)].map(|load| load.permille), [1250; 2]);
    }

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
