//! New weights on their way from the trainer to the engine, and states on their way to the host and back. Units: bytes, seconds.
//!
//! Trainers cut a model otherwise than engines do. Frameworks put every parameter together on the ranks that share the model, and load it from there (NeMo-RL,
//! `refit_policy_generation`; verl, `per_tensor_generator`). On the same GPUs each takes its part of what it holds then. GPUs of their own get every
//! parameter over the network. Buckets follow one another, so the slower of both ways counts. A broadcast is as fast as the orchestrator's is known to be, and else as
//! fast as the ports of a node.

use engine::cost::CostModel;
use engine::play::Case;
use engine::task::{Collective, CopyKind, Op};
use hw::{Bytes, Cluster, GroupShape, Rank};
use train::layout::Zero;
use train::memory::{self, States};
use train::problem::Problem;
use train::stage::stages;

use crate::cycle::{CASES, Placement};
use crate::orchestrator::Orchestrator;

/// Ranks of the trainer that hold one copy of the model together, and how they lie: stages of tensor groups, or of expert groups where those are wider.
/// Where parameters are sharded, all ranks that share them.
fn sharing(problem: &Problem) -> GroupShape {
    let layout = &problem.layout;
    let shards = if layout.zero == Zero::Parameters { layout.n_shards() } else { 1 };
    let n = layout.pp * (layout.tp * shards).max(layout.ep * layout.expert_tp);
    let ranks: Vec<Rank> = (0..n.clamp(1, problem.cluster.n_gpus())).map(Rank).collect();
    problem.cluster.shape_of(&ranks)
}

/// Bytes of new weights, in the trainer's format: an engine with narrower ones casts them itself. Of adapters they alone are sent, and the engine adds them to the
/// weights that it has (verl, `collect_lora_params` and `TensorLoRARequest`).
pub fn moved(problem: &Problem) -> Bytes {
    let whole = Bytes(problem.model.n_parameters() * problem.dtype.bytes());
    memory::all_adapters(problem).map_or(whole, |[parameters, element]| Bytes::from_f64(parameters * element))
}

/// Time of new weights of so many bytes, at one end of the costs. Where both groups have GPUs of their own, the problem's cluster holds both: what joins
/// them follows from its nodes.
pub fn transfer_s(
    problem: &Problem,
    bytes: Bytes,
    (placement, orchestrator): (Placement, Orchestrator),
    cost: &dyn CostModel,
    case: Case,
) -> f64 {
    if bytes == Bytes::ZERO {
        return 0.0;
    }
    let seconds = |op: &Op| case.of(&cost.estimate(op)).get();
    let shape = sharing(problem);
    let gathered = if shape.n_ranks > 1 {
        seconds(&Op::Collective { kind: Collective::AllGather, bytes: bytes.0, shape })
    } else {
        0.0
    };
    match placement {
        Placement::Colocated => gathered,
        Placement::Split => gathered.max(match orchestrator.broadcast(&problem.cluster) {
            Some(bytes_per_s) => bytes.as_f64() / bytes_per_s,
            None => seconds(&between(&problem.cluster, bytes)),
        }),
    }
}

/// A message from each GPU of a node to one of another. A node of engines gets all bytes, and each of its ports a part of them.
fn between(cluster: &Cluster, bytes: Bytes) -> Op {
    // The trainer has the first GPUs, and engines the last.
    let ends = [Rank(0), Rank(cluster.n_gpus() - 1)];
    let bytes = bytes.0.div_ceil(cluster.domain().into());
    Op::Collective { kind: Collective::SendRecv, bytes, shape: cluster.shape_of(&ends) }
}

/// The most that a stage's ranks hold of a part of their states.
pub(crate) fn most(problem: &Problem, part: fn(&States) -> u64) -> Bytes {
    let of_stage = |stage| part(&memory::states(problem, std::slice::from_ref(stage)));
    Bytes(stages(problem).iter().map(of_stage).max().unwrap_or(0))
}

/// States of the optimizer that the fullest rank holds.
pub fn optimizer(problem: &Problem) -> Bytes {
    most(problem, |states| states.optimizer.0)
}

/// Parameters, gradients and states of the optimizer that the fullest rank holds between two steps.
pub fn states(problem: &Problem) -> Bytes {
    most(problem, |states| states.total().0)
}

/// Time in which a trainer takes the reference's weights in place of its own and changes back, at one end of the costs: its own go to the host, the
/// reference's come from there, and its own come back (NeMo-RL, `use_reference_model`).
pub fn reference_s(problem: &Problem, cost: &dyn CostModel, case: Case) -> f64 {
    let bytes = most(problem, |states| states.parameters.0);
    copy_s(bytes, CopyKind::DeviceToHost, cost, case) + 2.0 * copy_s(bytes, CopyKind::HostToDevice, cost, case)
}

/// Time in which a trainer sends its parameters and the states of its optimizer to the host and brings them back, at an end of the costs (position in [`CASES`]).
/// Gradients are given up and made anew. Parameters go through pinned memory (NeMo-RL, `offload_after_refit`; Megatron-Core, `offload_to_cpu`), states as the orchestrator
/// copies them.
pub fn switch_s(problem: &Problem, orchestrator: Orchestrator, cost: &dyn CostModel, end: usize) -> f64 {
    let parameters = most(problem, |states| states.parameters.0);
    let states = optimizer(problem);
    out_and_back_s(parameters, cost, CASES[end])
        + orchestrator.out_and_back_s(states, end).unwrap_or_else(|| out_and_back_s(states, cost, CASES[end]))
}

/// Time in which so many bytes of a GPU go to the host and come back, at one end of the costs: also those of an engine that sleeps (vLLM, `sleep(level=1)`).
pub fn out_and_back_s(bytes: Bytes, cost: &dyn CostModel, case: Case) -> f64 {
    copy_s(bytes, CopyKind::DeviceToHost, cost, case) + copy_s(bytes, CopyKind::HostToDevice, cost, case)
}

fn copy_s(bytes: Bytes, kind: CopyKind, cost: &dyn CostModel, case: Case) -> f64 {
    case.of(&cost.estimate(&Op::Copy { kind, bytes: bytes.0 })).get()
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use engine::shard::{AdaptedProducts, Adapters};

    use super::*;
    use crate::example;

    /// On two nodes of H100.
    fn problem(tp: u32, pp: u32, dp: u32) -> Problem {
        example::trainer([tp, pp, dp], 2)
    }

    fn transfer(problem: &Problem, placement: Placement) -> f64 {
        transfer_by(problem, placement, Orchestrator::None)
    }

    fn transfer_by(problem: &Problem, placement: Placement, orchestrator: Orchestrator) -> f64 {
        let cost = Roofline::new(&problem.cluster);
        transfer_s(problem, moved(problem), (placement, orchestrator), &cost, Case::Expected)
    }

    /// Bytes per second of the host's link by the datasheet's law.
    fn host_link(problem: &Problem) -> f64 {
        0.75 * problem.cluster.gpu.host_bandwidth.get()
    }

    #[test]
    fn weights_that_are_whole_on_every_gpu_need_no_exchange() {
        assert_eq!(transfer(&problem(1, 1, 16), Placement::Colocated), 0.0);
    }

    #[test]
    fn sharded_parameters_are_put_together_over_all_that_share_them() {
        let mut sharded = problem(1, 1, 16);
        sharded.layout.zero = Zero::Parameters;
        let found = transfer(&sharded, Placement::Colocated);
        // Fifteen sixteenths come in over the network cards of two nodes, as with stages that have a part each.
        assert!((found / transfer(&problem(8, 2, 1), Placement::Colocated) - 1.0).abs() < 1e-9, "{found}");
        sharded.layout.replicate = 2;
        assert!(transfer(&sharded, Placement::Colocated) < found, "a copy on each node");
    }

    #[test]
    fn the_slower_of_both_ways_counts() {
        // Half of 15.2 GB comes over NVLink inside a node, all of it over eight NICs of 50 GB/s to the other group. The datasheet's law has three quarters of a link.
        let (inside, between) =
            (transfer(&problem(2, 1, 8), Placement::Colocated), transfer(&problem(2, 1, 8), Placement::Split));
        assert!((0.0..0.1).contains(&inside), "{inside}");
        let bytes = 2.0 * 7.616e9;
        assert!((between / (bytes / (8.0 * 50e9 * 0.75)) - 1.0).abs() < 1e-2, "{between}");
        // No framework is faster than a step without one.
        let framework = transfer_by(&problem(2, 1, 8), Placement::Split, Orchestrator::NemoRl);
        assert!(between < framework, "{between} against {framework}");
        // Stages on two nodes put more of the model together, and are no faster than one node of sixteen: 15/16 against 1/2.
        let stages = transfer(&problem(8, 2, 1), Placement::Colocated);
        assert!((stages / inside - 1.875).abs() < 0.01, "{stages} against {inside}");
    }

    /// Llama-like: a pair of matrices of rank r beside a product of n columns over k has r (n + k) parameters, on however many GPUs.
    #[test]
    fn adapters_are_sent_by_their_rank() {
        let sent = |rank: u64, degrees: [u32; 3]| {
            let mut problem = problem(degrees[0], degrees[1], degrees[2]);
            problem.execution.adapters = Some(Adapters::new(rank, AdaptedProducts::OUTPUT));
            let width = problem.model.n_heads * problem.model.head_dim;
            let expected = problem.model.n_layers * rank * (problem.model.hidden + width) * problem.dtype.bytes();
            (moved(&problem).0, expected)
        };
        for degrees in [[1, 1, 16], [4, 1, 4], [2, 2, 4]] {
            for rank in [16, 512] {
                let (found, expected) = sent(rank, degrees);
                assert_eq!(found, expected, "rank {rank} over {degrees:?}");
            }
        }
    }

    #[test]
    fn the_reference_costs_three_copies_of_the_parameters() {
        // Half of the parameters on each of two ranks, in 16 bits.
        let problem = problem(2, 1, 8);
        let found = reference_s(&problem, &Roofline::new(&problem.cluster), Case::Expected);
        let parameters = hw::real(problem.model.n_parameters());
        assert!((found / (3.0 * parameters / host_link(&problem)) - 1.0).abs() < 1e-2, "{found}");
    }

    #[test]
    fn parameters_and_optimizer_go_out_and_back_over_the_host_link() {
        let problem = problem(1, 1, 16);
        let all = memory::states(&problem, &stages(&problem));
        let moved = hw::real(all.parameters.0 + all.optimizer.0);
        let found = switch_s(&problem, Orchestrator::None, &Roofline::new(&problem.cluster), 1);
        assert!((found / (2.0 * moved / host_link(&problem)) - 1.0).abs() < 1e-3, "{found}");
        assert_eq!(states(&problem), all.total());
    }
}
